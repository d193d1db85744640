// The cost of saving and restoring, by Google Benchmark. Run by scripts/bench roofline, alternating with fio.
//
//   build/release/bin/bench_roofline --root DIR [--bytes N] [--source pinned|cpu] [--checksums 0|1] [--queue
//   uring|threads] [--recycle 0|1] [--chunk N] [--depth N] [--pool N] [--benchmark_filter=REGEX] [--benchmark_...]
//
// With --asked it reads names from standard input, runs each benchmark as it is asked for, and answers with its
// counters in one line of JSON. A time is that of the save, restore or call alone; the counters are:
//   write      one save to durable of --bytes in 597 tensors: seconds, cpu_seconds, bytes. With --recycle 1 it writes
//              over the files of the second-to-last save
//   restore    restores the newest checkpoint after dropping the page cache (root only)
//   call/N     a call of Save with a free slot, for N CPU tensors in Adam's mixture: three out of four have 128 KiB
//              (12 KiB above 10,000 tensors), the fourth is a counter of 4 bytes, copied in the call
//   rss        growth of RSS by Open and a save of 1,000 tensors, four times as large as the pool's 512 MiB
//   older      on a disk limited to 400 MB/s: seconds to durable of the older of two saves, and of one alone
//   busy       two busy threads for 2 s, alone and during repeated saves: share of speed lost, CPU share of the saves
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/wiring.h"
#include "bench/roofline/pinned_device.h"
#include "cairn/cairn.h"
#include "testing/rate_limited_queue.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;
using namespace literals;

constexpr std::size_t kTensors = 597;  // The same number as for the peers.
constexpr double kBusySeconds = 2;

struct Settings {
  std::string root;
  std::uint64_t bytes = 4_GiB;
  std::string source = "pinned";
  bool checksums = true;
  std::string queue = "uring";
  bool recycle = false;
  std::uint64_t chunk = Options().chunk_bytes;
  int depth = 8;
  std::uint64_t pool = 512_MiB;
};

void Check(const Status& status) {
  if (status.ok()) return;
  std::cerr << "bench_roofline: " << status << '\n';
  std::exit(2);  // NOLINT(concurrency-mt-unsafe): a benchmark has failed.
}

double Seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One block of memory, touched before any measurement, cut into tensors.
class Memory {
 public:
  Memory(std::uint64_t bytes, std::size_t tensors, DeviceId device) {
    const std::uint64_t elements = bytes / sizeof(float) / tensors;
    if (device.kind == DeviceKind::kCpu) {
      memory_.resize(elements * tensors);
      for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<float>(i * 2654435761U);
    }
    for (std::size_t t = 0; t < tensors; ++t) {
      // The pinned device never reads tensors, so any non-null address will do.
      float* data = memory_.empty() ? reinterpret_cast<float*>(4096) + t * elements : memory_.data() + t * elements;
      Check(state_.Add("model.layers." + std::to_string(t) + ".weight",
                       {.data = data, .shape = {static_cast<std::int64_t>(elements)}, .device = device}));
    }
  }
  // Adam's mixture: out of four tensors, three of `large` bytes and a counter.
  Memory(std::size_t tensors, std::uint64_t large) : memory_(tensors * (large / sizeof(float)), 1.0F) {
    float* data = memory_.data();
    for (std::size_t t = 0; t < tensors; ++t) {
      const std::uint64_t elements = t % 4 == 3 ? 1 : large / sizeof(float);
      Check(state_.Add("optimizer.state." + std::to_string(t),
                       {.data = data, .shape = {static_cast<std::int64_t>(elements)}, .device = {}}));
      data += elements;
    }
  }
  [[nodiscard]] const State& state() const { return state_; }

 private:
  std::vector<float> memory_;
  State state_;
};

class Bench {
 public:
  explicit Bench(Settings settings) : settings_(std::move(settings)) {}

  void Write(benchmark::State& state) {
    Checkpointer& checkpointer = Open();
    const double cpu = CpuSeconds(RUSAGE_SELF);
    const auto begin = Clock::now();
    const auto save = checkpointer.Save(++step_, Tensors().state());
    Check(save.status());
    Check(save->WaitDurable());
    const double seconds = Seconds(Clock::now() - begin);
    const double cpu_seconds = CpuSeconds(RUSAGE_SELF) - cpu;
    const SaveStats stats = save->stats();
    Count(state, seconds, cpu_seconds, stats.bytes_written);
    state.counters["captured"] = Seconds(stats.captured);
    state.counters["written"] = Seconds(stats.written);
    state.counters["direct"] = stats.direct ? 1 : 0;
    state.counters["recycled"] = stats.recycled ? 1 : 0;
    if (settings_.recycle) return Check(checkpointer.Drain());  // Retention removes the previous one.
    if (keep_) Check(checkpointer.Remove(*keep_));
    keep_ = step_;
  }

  void Restore(benchmark::State& state) {
    Checkpointer& checkpointer = Open();
    if (step_ == 0) {
      Check(checkpointer.Save(++step_, Tensors().state()).status());
      Check(checkpointer.Drain());
    }
    std::ofstream("/proc/sys/vm/drop_caches") << 3;
    const double cpu = CpuSeconds(RUSAGE_SELF);
    const auto begin = Clock::now();
    const auto restored = checkpointer.Restore(Latest(), Tensors().state());
    const double seconds = Seconds(Clock::now() - begin);
    Check(restored.status());
    Count(state, seconds, CpuSeconds(RUSAGE_SELF) - cpu, restored->bytes);
  }

  void Call(benchmark::State& state) {
    const auto tensors = static_cast<std::size_t>(state.range(0));
    Checkpointer& checkpointer = Open();
    std::unique_ptr<Memory>& memory = called_[tensors];
    if (memory == nullptr) memory = std::make_unique<Memory>(tensors, tensors > 10'000 ? 12_KiB : 128_KiB);
    const auto begin = Clock::now();
    const auto save = checkpointer.Save(++step_, memory->state());
    const double seconds = Seconds(Clock::now() - begin);
    Check(save.status());
    Check(save->WaitDurable());
    Check(checkpointer.Remove(step_));
    state.SetIterationTime(seconds);
    state.counters["microseconds"] = seconds * 1e6;
  }

  void Rss(benchmark::State& state) {
    const std::uint64_t cap = 512_MiB;
    const Memory memory(4 * cap, 1000, DeviceId{});
    std::ofstream("/proc/self/clear_refs") << 5;  // Resets the peak RSS.
    const std::uint64_t before = FromStatus("VmRSS:");
    auto checkpointer = Checkpointer::Open(MakeOptions(cap));
    Check(checkpointer.status());
    for (int i = 0; i < 3; ++i) {
      const auto save = (*checkpointer)->Save(++step_, memory.state());
      Check(save.status());
      Check((*checkpointer)->Fence());
    }
    Check((*checkpointer)->Drain());
    const std::uint64_t peak = FromStatus("VmHWM:");
    Check((*checkpointer)->Remove(step_));
    state.counters["cap"] = static_cast<double>(cap);
    state.counters["grown"] = static_cast<double>(peak - before);
  }

  void Older(benchmark::State& state) {
    const auto disk = RateLimitedDisk::Make(400'000'000);
    Wiring wiring = MakeWiring("pinned");
    wiring.wrap_queue = [disk](IoQueueFactory inner) { return disk->Wrap(std::move(inner)); };
    Options options = MakeOptions(128_MiB);
    auto checkpointer = Checkpointer::Open(options, std::move(wiring));
    Check(checkpointer.status());
    const Memory memory(256_MiB, kTensors, {DeviceKind::kCuda, 0});
    const auto durable = [&](bool second) {
      const auto save = (*checkpointer)->Save(++step_, memory.state());
      Check(save.status());
      if (second) Check((*checkpointer)->Save(++step_, memory.state()).status());
      Check(save->WaitDurable());
      const double seconds = Seconds(save->stats().durable);
      Check((*checkpointer)->Drain());
      return seconds;
    };
    const double alone = durable(false);
    const double older = durable(true);
    state.SetIterationTime(older);
    state.counters["alone"] = alone;
    state.counters["older"] = older;
  }

  void Busy(benchmark::State& state) {
    Checkpointer& checkpointer = Open();
    const State& tensors = Tensors().state();
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> work[2] = {0, 0};
    std::vector<std::thread> loops;
    for (auto& counter : work) {
      loops.emplace_back([&stop, &counter] {
        std::vector<float> a(4096, 1.0F);  // Fits in the L1 cache, so the loop is compute-bound.
        while (!stop.load(std::memory_order_relaxed)) {
          for (float& x : a) x = x * 1.0001F + 0.5F;
          counter.fetch_add(1, std::memory_order_relaxed);
        }
        // Keeps the compiler from removing the loop.
        if (a[0] == 0) std::cerr << "";
      });
    }
    const auto speed = [&](const std::function<void()>& until_over) {
      const std::uint64_t before = work[0] + work[1];
      const auto begin = Clock::now();
      until_over();
      return static_cast<double>(work[0] + work[1] - before) / Seconds(Clock::now() - begin);
    };
    const auto idle_until = [&](Clock::time_point end) { std::this_thread::sleep_until(end); };
    const auto after = [&] {
      return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kBusySeconds));
    };

    const double alone = speed([&] { idle_until(after()); });
    double cpu = 0;
    double wall = 0;
    std::uint64_t saved = 0;
    const double beside = speed([&] {
      const auto begin = Clock::now();
      const auto end = after();
      const double all = CpuSeconds(RUSAGE_SELF);
      const double loops_before = LoopCpu(loops);
      while (Clock::now() < end) {
        const auto save = checkpointer.Save(++step_, tensors);
        Check(save.status());
        Check(save->WaitDurable());
        if (keep_) Check(checkpointer.Remove(*keep_));
        keep_ = step_;
        saved += tensors.bytes();
      }
      wall = Seconds(Clock::now() - begin);
      cpu = CpuSeconds(RUSAGE_SELF) - all - (LoopCpu(loops) - loops_before);
    });
    stop = true;
    for (std::thread& loop : loops) loop.join();
    state.SetIterationTime(wall);
    state.counters["alone"] = alone;
    state.counters["beside"] = beside;
    state.counters["lost"] = 1 - beside / alone;
    state.counters["cpu_share"] = cpu / (2 * wall);
    state.counters["saved_per_second"] = static_cast<double>(saved) / wall;
  }

 private:
  static void Count(benchmark::State& state, double seconds, double cpu_seconds, std::uint64_t bytes) {
    state.SetIterationTime(seconds);
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
    state.counters["seconds"] = seconds;
    state.counters["cpu_seconds"] = cpu_seconds;
    state.counters["bytes"] = static_cast<double>(bytes);
  }
  static double LoopCpu(std::vector<std::thread>& loops) {
    double seconds = 0;
    for (std::thread& loop : loops) {
      clockid_t clock{};
      timespec time{};
      pthread_getcpuclockid(loop.native_handle(), &clock);
      clock_gettime(clock, &time);
      seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    }
    return seconds;
  }

  // In bytes, from /proc/self/status.
  static std::uint64_t FromStatus(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(field)) return std::stoull(line.substr(field.size())) * 1024;
    }
    return 0;
  }

  [[nodiscard]] Options MakeOptions(std::uint64_t pool) const {
    return {.root = settings_.root,
            .keep_last = settings_.recycle ? 1U : 0U,
            .host_memory_bytes = pool,
            .chunk_bytes = settings_.chunk,
            .queue_depth = settings_.depth,
            .checksums = settings_.checksums,
            .io_queue = settings_.queue == "threads" ? IoQueueKind::kThreads : IoQueueKind::kUring};
  }
  static Wiring MakeWiring(const std::string& source) {
    Wiring wiring;
    if (source == "pinned") {
      wiring.devices = [](WorkerPool&) -> Result<std::vector<std::shared_ptr<Device>>> {
        return std::vector<std::shared_ptr<Device>>{std::make_shared<PinnedDevice>()};
      };
    }
    return wiring;
  }
  Checkpointer& Open() {
    if (checkpointer_ == nullptr) {
      auto opened = Checkpointer::Open(MakeOptions(settings_.pool), MakeWiring(settings_.source));
      Check(opened.status());
      checkpointer_ = *std::move(opened);
    }
    return *checkpointer_;
  }
  const Memory& Tensors() {
    if (memory_ == nullptr) {
      const DeviceId device{settings_.source == "pinned" ? DeviceKind::kCuda : DeviceKind::kCpu, 0};
      memory_ = std::make_unique<Memory>(settings_.bytes, kTensors, device);
    }
    return *memory_;
  }

  const Settings settings_;
  std::unique_ptr<Memory> memory_;
  std::map<std::size_t, std::unique_ptr<Memory>> called_;  // By the number of tensors.
  std::unique_ptr<Checkpointer> checkpointer_;
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> keep_;
};

void Register(Bench& bench) {
  const auto add = [&bench](const char* name, void (Bench::*row)(benchmark::State&)) {
    const auto run = [&bench, row](benchmark::State& state) {
      for ([[maybe_unused]] const auto _ : state) (bench.*row)(state);
    };
    return benchmark::RegisterBenchmark(name, run)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
  };
  add("write", &Bench::Write);
  add("restore", &Bench::Restore);
  add("call", &Bench::Call)->Arg(1000)->Arg(100'000);
  add("rss", &Bench::Rss);
  add("older", &Bench::Older);
  add("busy", &Bench::Busy);
}

/// Answers with the counters of each run, as one line of JSON.
class Answers : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      std::string text;
      for (const auto& [name, counter] : run.counters) {
        text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, counter.value);
      }
      std::cout << '{' << text << '}' << std::endl;
    }
  }
};

int Answer() {
  for (std::string name; std::getline(std::cin, name);) {
    Answers answers;
    if (benchmark::RunSpecifiedBenchmarks(&answers, "^" + name + "/iterations:") != 1) {
      std::cerr << "bench_roofline: expected the name of one benchmark, found \"" << name << "\"\n";
      return 2;
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Settings settings;
  bool asked = false;
  CLI::App app("Measures saving and restoring");
  app.add_option("--root", settings.root, "an empty directory")->required();
  app.add_option("--bytes", settings.bytes, "size of the state");
  app.add_option("--source", settings.source)->check(CLI::IsMember({"pinned", "cpu"}));
  app.add_option("--checksums", settings.checksums);
  app.add_option("--queue", settings.queue)->check(CLI::IsMember({"uring", "threads"}));
  app.add_option("--recycle", settings.recycle, "keep one checkpoint, and overwrite the previous one's files");
  app.add_option("--chunk", settings.chunk, "bytes of one write");
  app.add_option("--depth", settings.depth, "writes in flight at once");
  app.add_option("--pool", settings.pool, "bytes of the pinned pool");
  app.add_flag("--asked", asked, "read names of benchmarks from standard input, and answer with their counters");
  CLI11_PARSE(app, argc, argv);

  Bench bench(settings);
  Register(bench);
  if (asked) return Answer();
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
