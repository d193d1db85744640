#include "bench/harness/flags.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "advice/published_models.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "bench/harness/shapes.h"

namespace cairn::bench {

namespace {

constexpr double kCustomIterationSeconds = 0.5;

// The trainer has its own state and pace, so no shape applies.
Status CheckTrainer(const Flags& flags) {
  if (flags.model == "custom") {
    return Error(StatusCode::kInvalidArgument, "--compute trainer: expected --model, one of cairn_train's");
  }
  if (flags.resume || flags.check || flags.scale != 1 || flags.dilation != 1) {
    return Error(StatusCode::kInvalidArgument,
                 "--compute trainer: expected none of --resume, --check, --scale and --dilation");
  }
  if (flags.device == "cuda") {
    return Error(StatusCode::kInvalidArgument,
                 "--compute trainer: expected --device emulated, as it trains on the CPU");
  }
  if (flags.every == 0 || flags.iterations % flags.every != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--compute trainer: expected --iterations to be a multiple of --every (what is restored is compared "
                 "with the state at the end), found {} and {}",
                 flags.iterations, flags.every);
  }
  if (flags.batch == 0 || flags.sequence <= 0) {
    return Error(StatusCode::kInvalidArgument, "--batch and --sequence: expected 1 or more, found {} and {}",
                 flags.batch, flags.sequence);
  }
  return {};
}

Result<std::map<std::string, std::int64_t>> ParseSizes(const std::vector<std::string>& words) {
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const char* const begin = word.data() + std::min(equals, word.size() - 1) + 1;
    const char* const end = word.data() + word.size();
    std::int64_t value = 0;
    const auto [parsed, error] = std::from_chars(begin, end, value);
    if (equals == std::string::npos || error != std::errc() || parsed != end) {
      return Error(StatusCode::kInvalidArgument, "--size: expected NAME=NUMBER, found \"{}\"", word);
    }
    sizes[word.substr(0, equals)] = value;
  }
  return sizes;
}

// A rate; 0 stays no limit.
std::uint64_t Slowed(std::uint64_t bytes_per_second, double dilation) {
  const double slowed = std::max(1.0, static_cast<double>(bytes_per_second) / dilation);
  return bytes_per_second == 0 ? 0 : static_cast<std::uint64_t>(slowed);
}

// State and pace of a model known by name.
Status TakeModel(Flags& flags, Model& model) {
  Result<PublishedModel> found = FindPublishedModel(flags.model);
  if (!found.ok()) return Error(StatusCode::kInvalidArgument, "{}, or custom", found.status().message());
  model = std::move(found->model);
  flags.state_bytes = DataBytes(model);
  if (const std::optional<PublishedPace>& pace = found->pace; pace && pace->state_bytes != 0) {
    flags.state_bytes = pace->state_bytes;
  }
  if (flags.iteration_seconds != 0) return Status::Ok();
  if (!found->pace) {
    return Error(StatusCode::kInvalidArgument,
                 "--model {}: expected --iteration-seconds, because nobody has published its pace", flags.model);
  }
  flags.iteration_seconds = found->pace->iteration_seconds;
  flags.pace = found->pace->source;
  return Status::Ok();
}

}  // namespace

Result<Flags> Resolve(Flags flags) {
  if (flags.compute != "paced" && flags.compute != "products" && flags.compute != "trainer") {
    return Error(StatusCode::kInvalidArgument, "--compute: expected paced, products or trainer, found \"{}\"",
                 flags.compute);
  }
  const bool paced = flags.compute != "trainer";
  if (!paced) CAIRN_RETURN_IF_ERROR(CheckTrainer(flags));
  Model model;
  if (paced && flags.model != "custom") CAIRN_RETURN_IF_ERROR(TakeModel(flags, model));
  if (flags.iteration_seconds == 0) flags.iteration_seconds = kCustomIterationSeconds;
  if (flags.device != "auto" && flags.device != "cuda" && flags.device != "emulated") {
    return Error(StatusCode::kInvalidArgument, "--device: expected auto, cuda or emulated, found \"{}\"", flags.device);
  }
  if (flags.disk != "machine" && flags.disk != "pd-ssd") {
    return Error(StatusCode::kInvalidArgument, "--disk: expected machine or pd-ssd, found \"{}\"", flags.disk);
  }
  if (flags.network != "namespaces" && flags.network != "loopback") {
    return Error(StatusCode::kInvalidArgument, "--network: expected namespaces or loopback, found \"{}\"",
                 flags.network);
  }
  if (flags.network == "loopback") flags.network_bytes_per_second = 0;
  const auto positive = [](const char* flag, double value) {
    return std::isfinite(value) && value > 0
               ? Status::Ok()
               : Error(StatusCode::kInvalidArgument, "{}: expected more than 0, found {}", flag, value);
  };
  CAIRN_RETURN_IF_ERROR(positive("--scale", flags.scale));
  CAIRN_RETURN_IF_ERROR(positive("--dilation", flags.dilation));
  CAIRN_RETURN_IF_ERROR(positive("--state-bytes", static_cast<double>(flags.state_bytes)));
  CAIRN_RETURN_IF_ERROR(positive("--tensors", static_cast<double>(flags.tensors)));
  CAIRN_RETURN_IF_ERROR(positive("--iteration-seconds", flags.iteration_seconds));
  CAIRN_RETURN_IF_ERROR(positive("--iterations", static_cast<double>(flags.iterations)));
  if (flags.network == "namespaces") {
    CAIRN_RETURN_IF_ERROR(positive("--network-bytes-per-second", static_cast<double>(flags.network_bytes_per_second)));
  }
  if (flags.pcie_bytes_per_second < 0 || !std::isfinite(flags.pcie_bytes_per_second)) {
    return Error(StatusCode::kInvalidArgument, "--pcie-bytes-per-second: expected 0 or more, found {}",
                 flags.pcie_bytes_per_second);
  }
  if (!std::isfinite(flags.update_seconds) || flags.update_seconds < 0 ||
      flags.update_seconds >= flags.iteration_seconds * flags.scale * flags.dilation) {
    return Error(StatusCode::kInvalidArgument, "--update-seconds: expected 0 to the iteration's {}, found {}",
                 flags.iteration_seconds * flags.scale * flags.dilation, flags.update_seconds);
  }
  if (flags.again != 0 && flags.again >= flags.every) {
    return Error(StatusCode::kInvalidArgument, "--again: expected less than the {} of --every, found {}", flags.every,
                 flags.again);
  }
  if (flags.warmup >= flags.iterations) {
    return Error(StatusCode::kInvalidArgument, "--warmup: expected less than the {} iterations, found {}",
                 flags.iterations, flags.warmup);
  }
  if (flags.chunk_bytes % kBlock != 0) {
    return Error(StatusCode::kInvalidArgument, "--chunk-bytes: expected a multiple of {}, found {}", kBlock,
                 flags.chunk_bytes);
  }
  if (flags.writers < 1 || flags.writers > 64) {
    return Error(StatusCode::kInvalidArgument, "--writers: expected 1 to 64, found {}", flags.writers);
  }
  if (flags.in_flight < 1 || flags.in_flight > 63) {
    return Error(StatusCode::kInvalidArgument, "--in-flight: expected 1 to 63, found {}", flags.in_flight);
  }
  if (flags.strategy != "none" && (flags.every == 0 || flags.every > flags.iterations)) {
    return Error(StatusCode::kInvalidArgument,
                 "--every: expected 1 to the {} iterations, found {}: {} would write no checkpoint", flags.iterations,
                 flags.every, flags.strategy);
  }
  const double scaled = static_cast<double>(flags.state_bytes) * flags.scale;
  constexpr double kMost = 1ULL << 50;
  if (scaled > kMost) {
    return Error(StatusCode::kInvalidArgument, "--state-bytes: expected at most {}, found {}", kMost, scaled);
  }
  flags.state_bytes = AlignUp(static_cast<std::uint64_t>(std::ceil(scaled)), kBlock);
  if (!model.tensors.empty()) {
    flags.state = ScaledTensors(model, {}, 0, scaled / static_cast<double>(DataBytes(model)));
    flags.state_bytes = BytesOf(flags.state);
    flags.tensors = flags.state.size();
  }
  flags.iteration_seconds *= flags.scale * flags.dilation;
  flags.pcie_bytes_per_second /= flags.dilation;
  flags.disk_bytes_per_second = Slowed(flags.disk_bytes_per_second, flags.dilation);
  flags.network_bytes_per_second = Slowed(flags.network_bytes_per_second, flags.dilation);
  const bool given = flags.host_memory_bytes != 0;
  if (!paced) flags.device = "emulated";
  if (!paced && !given) return flags;  // Its default is twice the state, which is not known yet.
  flags.host_memory_bytes = given
                                ? static_cast<std::uint64_t>(static_cast<double>(flags.host_memory_bytes) * flags.scale)
                                : 2 * flags.state_bytes;
  return flags;
}

Result<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  std::vector<std::string> sizes;
  CLI::App app("Trains at a set pace with one checkpointing strategy, and reports what the checkpoints cost");
  app.add_option("--strategy", flags.strategy,
                 "none, sync, torch-save, checkfreq, gpm, gemini, pccheck, cairn or cairn-memory")
      ->required();
  app.add_option("--dir", flags.directory, "where to write: the run makes a directory in it")->required();
  app.add_option("--memory", flags.memory, "the same on tmpfs, of cairn-memory")->capture_default_str();
  app.add_option("--device", flags.device,
                 "where the state is: cuda, emulated (in host memory), or auto: cuda if there is a GPU")
      ->capture_default_str();
  app.add_option("--compute", flags.compute,
                 "paced: waits; products: as many of libtorch's matrix products as take that time, on the GPU with "
                 "--device cuda; "
                 "or trainer: libtorch trains --model, on synthetic data")
      ->capture_default_str();
  app.add_option("--model", flags.model,
                 "one known by name, with its state and, if that is published, its pace: " +
                     fmt::format("{}", fmt::join(PublishedModelNames(), ", ")) + ". Or one of cairn_train's")
      ->capture_default_str();
  app.add_option("--size", sizes, "trainer: a size that differs from the published model, NAME=NUMBER");
  app.add_option("--batch", flags.batch, "trainer: samples per iteration")->capture_default_str();
  app.add_option("--sequence", flags.sequence, "trainer: tokens per sample of text")->capture_default_str();
  app.add_option("--state-bytes", flags.state_bytes, "size of the state")->capture_default_str();
  app.add_option("--tensors", flags.tensors, "tensors in the state")->capture_default_str();
  app.add_option("--iteration-seconds", flags.iteration_seconds,
                 "time of an iteration without checkpoints; 0: the model's, or half a second")
      ->capture_default_str();
  app.add_option("--every", flags.every, "iterations between checkpoints")->capture_default_str();
  app.add_option("--again", flags.again, "a second checkpoint so many iterations after each; 0: none")
      ->capture_default_str();
  app.add_option("--iterations", flags.iterations)->capture_default_str();
  app.add_option("--warmup", flags.warmup, "first iterations, which are not counted")->capture_default_str();
  app.add_option("--in-flight", flags.in_flight, "checkpoints in flight: pccheck, cairn, cairn-memory")
      ->capture_default_str();
  app.add_option("--host-memory-bytes", flags.host_memory_bytes,
                 "pinned memory of pccheck and cairn; 0: twice the state")
      ->capture_default_str();
  app.add_option("--chunk-bytes", flags.chunk_bytes,
                 "bytes of one copy and one write: pccheck, cairn; 0: the strategy's default")
      ->capture_default_str();
  app.add_option("--writers", flags.writers, "threads per checkpoint: pccheck")->capture_default_str();
  app.add_option("--queue-depth", flags.queue_depth, "writes in flight to the disk: cairn")->capture_default_str();
  app.add_option("--scale", flags.scale,
                 "factor of state, host memory and iteration time; keeps the ratios of the rates")
      ->capture_default_str();
  app.add_option("--dilation", flags.dilation,
                 "factor of all time: iterations take that many times as long, and link, emulated disk and network are "
                 "that many times slower; keeps their ratios on a machine that copies more slowly than the link")
      ->capture_default_str();
  app.add_option("--pcie-bytes-per-second", flags.pcie_bytes_per_second, "emulated link to the host; 0: no limit")
      ->capture_default_str();
  app.add_option("--disk-bytes-per-second", flags.disk_bytes_per_second, "emulated disk; 0: the machine's own")
      ->capture_default_str();
  app.add_option("--disk", flags.disk,
                 "machine, or pd-ssd: the machine's disk, limited to 480 MB/s (dilated) by a cgroup")
      ->capture_default_str();
  app.add_option("--network", flags.network,
                 "gemini's network to its peer: namespaces (two, with a set rate; needs root), or loopback")
      ->capture_default_str();
  app.add_option("--network-bytes-per-second", flags.network_bytes_per_second,
                 "gemini's network; the default is what PCcheck's authors measured between two a2-highgpu-1g")
      ->capture_default_str();
  app.add_flag("--check", flags.check, "only check whether there is enough disk and memory");
  app.add_flag(
      "--resume", flags.resume,
      "work in --dir and --memory themselves, continue from the newest checkpoint there, and leave everything there");
  app.add_option("--update-seconds", flags.update_seconds, "time of the optimizer step, after scaling; 0: measured")
      ->capture_default_str();
  app.add_option("--journal", flags.journal, "a file to which every iteration and save is appended as it happens");
  app.add_option("--csv", flags.csv, "a file to which the row is appended");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);  // NOLINT(concurrency-mt-unsafe): no other threads yet.
  }
  CAIRN_ASSIGN_OR_RETURN(flags.sizes, ParseSizes(sizes));
  return Resolve(flags);
}

}  // namespace cairn::bench
