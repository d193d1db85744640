#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "api/wiring.h"
#include "base/mutex.h"
#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::ElementsAre;
using testing::HasSubstr;

// Collects events from the engine's thread.
class Events {
 public:
  EventCallback Callback() {
    return [this](const Event& event) {
      MutexLock lock(mutex_);
      events_.push_back(event);
    };
  }
  [[nodiscard]] std::vector<std::pair<EventKind, std::uint64_t>> Seen() const {
    MutexLock lock(mutex_);
    std::vector<std::pair<EventKind, std::uint64_t>> seen;
    for (const Event& event : events_) seen.emplace_back(event.kind, *event.step);
    return seen;
  }
  [[nodiscard]] std::size_t Warnings() const {
    MutexLock lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        events_.begin(), events_.end(), [](const Event& event) { return event.severity == Severity::kWarning; }));
  }
  [[nodiscard]] Event Last() const {
    MutexLock lock(mutex_);
    return events_.back();
  }

 private:
  mutable Mutex mutex_;
  std::vector<Event> events_ CAIRN_GUARDED_BY(mutex_);
};

TEST(Observe, EventsReportCapturedDurableAndRemoved) {
  const TempDir dir;
  Events events;
  auto checkpointer = Checkpointer::Open(
      {.root = dir / "run", .keep_last = 1, .on_event = events.Callback(), .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 1000);

  for (const std::uint64_t step : {1, 2}) {
    ASSERT_TRUE((*checkpointer)->Save(step, tensors.state())->WaitDurable(Deadline::In(kPatience)).ok());
  }
  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());

  using Seen = std::pair<EventKind, std::uint64_t>;
  EXPECT_THAT(events.Seen(), ElementsAre(Seen(EventKind::kSaveCaptured, 1), Seen(EventKind::kSaveDurable, 1),
                                         Seen(EventKind::kSaveCaptured, 2), Seen(EventKind::kSaveDurable, 2),
                                         Seen(EventKind::kCheckpointRemoved, 1)));
}

TEST(Observe, FailureIsReportedAndTheNextSaveWorks) {
  const TempDir dir;
  Events events;
  const auto plan = FaultPlan::Make();
  Wiring wiring;
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  auto checkpointer = Checkpointer::Open(
      {.root = dir / "run", .on_event = events.Callback(), .host_memory_bytes = 32_MiB}, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 1000);
  plan->Fail({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, EIO);

  const auto save = (*checkpointer)->Save(1, tensors.state());

  const Status status = save->WaitDurable(Deadline::In(kPatience));
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("shard-00000.safetensors"));
  EXPECT_EQ(save->stats().phase, SavePhase::kFailed);
  EXPECT_EQ(events.Last().kind, EventKind::kSaveFailed);
  EXPECT_EQ(events.Last().status, status);
  static_cast<void>((*checkpointer)->Drain(Deadline::In(kPatience)));
  EXPECT_EQ((*checkpointer)->LastFailure(), status);
  EXPECT_TRUE((*checkpointer)->Save(1, tensors.state())->WaitDurable(Deadline::In(kPatience)).ok());
}

TEST(Observe, StatsReportBytesAndTimes) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 500'000);
  EXPECT_EQ((*checkpointer)->stats().since_durable, std::nullopt);

  const auto begin = std::chrono::steady_clock::now();
  const auto save = (*checkpointer)->Save(1, tensors.state());
  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok()) << save->status();

  const SaveStats stats = save->stats();
  EXPECT_EQ(stats.bytes, 4'000'000U);
  EXPECT_GT(stats.bytes_written, stats.bytes);
  EXPECT_GT(stats.call.count(), 0);
  EXPECT_LE(stats.enqueued, stats.captured);
  EXPECT_LE(stats.captured, stats.written);
  EXPECT_LE(stats.written, stats.durable);
  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  const CheckpointerStats all = (*checkpointer)->stats();
  EXPECT_EQ(all.saves_durable, 1U);
  EXPECT_EQ(all.saves_in_flight, 0U);
  EXPECT_LE(all.since_durable, std::chrono::steady_clock::now() - begin - stats.durable);
  EXPECT_LT(all.since_durable, (*checkpointer)->stats().since_durable);
  EXPECT_EQ(all.bytes_written, stats.bytes_written);
  EXPECT_EQ(all.pool_bytes, 32_MiB);
  EXPECT_LE(all.pool_peak_bytes, all.pool_bytes);
  EXPECT_FALSE(all.io_queue_reason.empty());
}

TEST(Observe, TraceIsChromeJson) {
  const TempDir dir;
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB, .trace_events = 1000});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 500'000);
  const CopyPause pause = (*checkpointer)->PauseCopies(kPatience);  // So that the fence has to wait.
  const auto save = (*checkpointer)->Save(7, tensors.state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE((*checkpointer)->Fence({}, Deadline::In(kPatience)).ok());
  ASSERT_TRUE(save->WaitDurable(Deadline::In(kPatience)).ok());

  ASSERT_TRUE((*checkpointer)->WriteTrace(dir / "trace.json").ok());

  std::ifstream file(dir / "trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::set<std::string> names;
  for (const auto& event : trace["traceEvents"]) names.insert(event["name"].get<std::string>());
  EXPECT_THAT(names, testing::IsSupersetOf({"chunk", "write", "fence", "durable"}));
}

TEST(Observe, FilesHaveTheSpecifiedModes) {
  const TempDir dir;
  const mode_t before = ::umask(0);
  {
    auto checkpointer = Checkpointer::Open(
        {.root = dir / "run", .file_mode = 0640, .directory_mode = 0750, .host_memory_bytes = 32_MiB});
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
    Tensors tensors = Tensors::Many(2, 1000);
    ASSERT_TRUE((*checkpointer)->Save(1, tensors.state())->WaitDurable(Deadline::In(kPatience)).ok());
  }
  ::umask(before);

  const auto mode = [&](const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::stat((dir / path).c_str(), &found), 0) << path;
    return found.st_mode & 0777U;
  };
  EXPECT_EQ(mode("run"), 0750U);
  EXPECT_EQ(mode("run/step-00000000000000000001"), 0750U);
  EXPECT_EQ(mode("run/step-00000000000000000001/manifest.json"), 0640U);
  EXPECT_EQ(mode("run/step-00000000000000000001/shard-00000.safetensors"), 0640U);
}

TEST(Observe, ChunksAreSmallerInASmallPool) {
  const TempDir dir;
  const auto chunk = [&](std::uint64_t pool, std::uint64_t asked) {
    auto checkpointer =
        Checkpointer::Open({.root = dir / "run", .host_memory_bytes = pool, .chunk_bytes = asked, .queue_depth = 8});
    EXPECT_TRUE(checkpointer.ok()) << checkpointer.status();
    return checkpointer.ok() ? (*checkpointer)->stats().chunk_bytes : 0;
  };
  EXPECT_EQ(chunk(128_MiB, 0), 8_MiB);
  EXPECT_EQ(chunk(127_MiB, 0), 4_MiB);
  EXPECT_EQ(chunk(128_MiB, 2_MiB), 2_MiB);
}

TEST(Observe, InvalidOptionsAreNamed) {
  const TempDir dir;
  const auto message = [&](const std::function<void(Options&)>& change) {
    Options options{.root = dir / "run"};
    change(options);
    const Status status = Checkpointer::Open(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([](Options& o) { o.root.clear(); }), HasSubstr("root"));
  EXPECT_THAT(message([](Options& o) { o.max_in_flight = 0; }), HasSubstr("max_in_flight: expected 1 to 64, found 0"));
  EXPECT_THAT(message([](Options& o) { o.chunk_bytes = 1_MiB + 1; }), HasSubstr("chunk_bytes"));
  EXPECT_THAT(message([](Options& o) { o.queue_depth = -1; }), HasSubstr("queue_depth"));
  EXPECT_THAT(message([](Options& o) { o.file_mode = 0444; }), HasSubstr("file_mode"));
}

TEST(Observe, OverlaysLowerLayerWarnsOnce) {
  const TempDir dir;
  Events events;
  const auto plan = FaultPlan::Make();
  Wiring wiring;
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  plan->Fail({.op = IoOp::kRename, .path = ".retired-"}, EXDEV);
  auto checkpointer = Checkpointer::Open(
      {.root = dir / "run", .keep_last = 1, .on_event = events.Callback(), .host_memory_bytes = 32_MiB},
      std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  Tensors tensors = Tensors::Many(2, 1000);

  for (const std::uint64_t step : {1, 2, 3, 4}) {
    ASSERT_TRUE((*checkpointer)->Save(step, tensors.state())->WaitDurable(Deadline::In(kPatience)).ok());
    ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  }

  EXPECT_EQ(events.Warnings(), 1U);
  EXPECT_EQ((*checkpointer)->List()->size(), 4U);
}

TEST(Observe, HangingDiskCheckDelaysOnlyItsSave) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();
  Wiring wiring;
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 32_MiB}, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  ASSERT_TRUE((*checkpointer)->Drain(Deadline::In(kPatience)).ok());
  Tensors tensors = Tensors::Many(2, 1000);
  // The check of free space, before the save has a file.
  const FaultGate gate = plan->Hold({.op = IoOp::kCall});

  const auto save = (*checkpointer)->Save(1, tensors.state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Deadline::In(kPatience)));

  EXPECT_EQ(save->WaitCaptured(Deadline::In(kPatience)), Status::Ok()) << "the engine's thread is not blocked";
  EXPECT_EQ(plan->Count({.op = IoOp::kMkdir, .path = ".attempt-"}), 0U);
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
}

}  // namespace
}  // namespace cairn
