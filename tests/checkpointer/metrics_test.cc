// What a Checkpointer counts, as Prometheus reads it, and the file that has it.

#include "base/metrics.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "api/checkpointer_impl.h"
#include "api/metrics_file.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/full_disk.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// By name, and the last of the labels, which is the value's own: "cairn_saves_total durable".
using Scrape = std::map<std::string, double>;

/// Every line is a comment or a sample; what is not is a test failure. So is a metric without HELP and TYPE.
Scrape Parse(const std::string& text) {
  Scrape found;
  std::string family;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      continue;
    }
    if (line.starts_with("# HELP ")) continue;
    const std::size_t open = line.find('{');
    const std::size_t close = line.rfind('}');
    if (open == std::string::npos || close == std::string::npos || !line.starts_with(family)) {
      ADD_FAILURE() << line;
      continue;
    }
    std::string labels = line.substr(open + 1, close - open - 1);
    std::string name = line.substr(0, open);
    const std::size_t node = labels.find(",", labels.find("node="));
    for (std::size_t at = node; at != std::string::npos; at = labels.find("=\"", at + 1)) {
      if (labels[at] == ',') continue;
      name += " " + labels.substr(at + 2, labels.find('"', at + 2) - at - 2);
    }
    EXPECT_TRUE(found.emplace(name, std::stod(line.substr(close + 1))).second) << name;
  }
  return found;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Collects warnings and errors, but not that the disk is slow.
class Warnings {
 public:
  EventCallback Callback() {
    return [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.severity == Severity::kInfo || event.phase == "disk") return;
      events_.push_back(event);
      changed_.NotifyAll();
    };
  }
  /// Waits for the first, if there is none.
  std::vector<Event> Await() {
    const Deadline end = Soon();
    MutexLock lock(mutex_);
    while (events_.empty() && !end.passed()) changed_.WaitUntil(mutex_, end);
    return events_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> events_ CAIRN_GUARDED_BY(mutex_);
};

TEST(Metrics, EachMovesWithWhatItCounts) {
  const TempDir dir;
  Warnings warnings;
  const auto plan = FaultPlan::Make();
  Options options = SmallOptions(dir / "run");
  options.keep_last = 1;
  options.stop_after_failures = 2;
  options.on_event = warnings.Callback();
  auto checkpointer = OpenOrFail(options, Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  const Scrape before = Parse(checkpointer->MetricsText());
  EXPECT_EQ(before.at("cairn_saves_total durable"), 0);
  EXPECT_FALSE(before.contains("cairn_newest_step"));
  EXPECT_GT(before.at("cairn_disk_free_bytes"), 0);

  plan->Shorten({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, 64_KiB);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  const Scrape saved = Parse(checkpointer->MetricsText());
  plan->Fail({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, EIO);
  EXPECT_EQ(SaveDurably(*checkpointer, 3).code(), StatusCode::kIoError);
  const Scrape failed = Parse(checkpointer->MetricsText());

  EXPECT_EQ(saved.at("cairn_saves_total durable"), 2);
  EXPECT_EQ(saved.at("cairn_saves_started_total"), 2);
  EXPECT_GT(saved.at("cairn_save_bytes_total durable"), 2e6);
  EXPECT_GT(saved.at("cairn_written_bytes_total"), saved.at("cairn_save_bytes_total durable"));
  EXPECT_EQ(saved.at("cairn_save_seconds_count"), 2);
  EXPECT_EQ(saved.at("cairn_save_seconds_bucket +Inf"), 2);
  double phases = 0;
  for (const char* const phase : {"wait", "copy", "write", "checksum", "hold", "commit"}) {
    EXPECT_EQ(saved.at(std::string("cairn_save_phase_seconds_count ") + phase), 2) << phase;
    phases += saved.at(std::string("cairn_save_phase_seconds_sum ") + phase);
  }
  EXPECT_NEAR(phases, saved.at("cairn_save_seconds_sum"), 1e-6);
  EXPECT_FALSE(saved.contains("cairn_save_phase_seconds_count agree")) << "there is nobody to agree with";
  EXPECT_EQ(saved.at("cairn_retries_total"), 1);
  EXPECT_EQ(saved.at("cairn_checkpoints_removed_total"), 1);
  EXPECT_EQ(saved.at("cairn_newest_step"), 2);
  EXPECT_GE(saved.at("cairn_newest_timestamp_seconds"), saved.at("cairn_opened_timestamp_seconds"));
  EXPECT_LT(saved.at("cairn_newest_age_seconds"), 60);
  EXPECT_GT(saved.at("cairn_pool_peak_bytes"), 0);
  EXPECT_EQ(failed.at("cairn_saves_total failed"), 1);
  EXPECT_EQ(failed.at("cairn_save_failures_total IoError"), 1);
  EXPECT_EQ(failed.at("cairn_failures_in_a_row"), 1);
  EXPECT_EQ(failed.at("cairn_events_total error"), 1);
  EXPECT_EQ(failed.at("cairn_newest_step"), 2);

  // An event has the same in fields.
  const Event event = warnings.Await().front();
  EXPECT_EQ(event.kind, EventKind::kSaveFailed);
  EXPECT_EQ(event.status.code(), StatusCode::kIoError);
  EXPECT_EQ(event.phase, "save");
  EXPECT_EQ(event.path, dir / "run");
  EXPECT_GT(event.duration, std::chrono::nanoseconds(0));
}

/// A root with step 7, of long ago.
void MakeOldRoot(const std::string& root) {
  ASSERT_EQ(SaveDurably(*OpenOrFail(SmallOptions(root)), 7), Status::Ok());
  const std::string manifest = root + "/step-00000000000000000007/manifest.json";
  const std::array<timespec, 2> long_ago{timespec{.tv_sec = 1'000'000'000}, timespec{.tv_sec = 1'000'000'000}};
  ASSERT_EQ(::utimensat(AT_FDCWD, manifest.c_str(), long_ago.data(), 0), 0);
}

TEST(Metrics, ARunThatStartsAgainKnowsTheNewestCheckpointsAge) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(MakeOldRoot(dir / "run"));

  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));

  ASSERT_NE(checkpointer, nullptr);
  const Scrape found = Parse(checkpointer->MetricsText());
  EXPECT_EQ(found.at("cairn_newest_step"), 7);
  EXPECT_EQ(found.at("cairn_newest_timestamp_seconds"), 1e9);
  EXPECT_EQ(checkpointer->stats().newest_step, 7U);
  EXPECT_GT(checkpointer->stats().newest_age, std::chrono::hours(24 * 365));
  EXPECT_EQ(checkpointer->stats().since_durable, std::nullopt);
}

TEST(Metrics, AfterARemovalTheNewestIsTheOneBefore) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(MakeOldRoot(dir / "run"));
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 8), Status::Ok());
  EXPECT_EQ(Parse(checkpointer->MetricsText()).at("cairn_newest_step"), 8);

  ASSERT_EQ(checkpointer->Remove(8), Status::Ok());

  const Scrape before = Parse(checkpointer->MetricsText());
  EXPECT_EQ(before.at("cairn_newest_step"), 7);
  EXPECT_EQ(before.at("cairn_newest_timestamp_seconds"), 1e9);
  EXPECT_GT(before.at("cairn_newest_age_seconds"), 1e8);

  ASSERT_EQ(checkpointer->Publish(7, dir / "published"), Status::Ok());

  EXPECT_FALSE(Parse(checkpointer->MetricsText()).contains("cairn_newest_step"));
  EXPECT_EQ(checkpointer->stats().newest_step, std::nullopt);
  EXPECT_EQ(checkpointer->stats().newest_age, std::nullopt);
}

TEST(Metrics, ASaveThatEndsAfterAYoungerOneIsNotTheNewest) {
  const TempDir dir;
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(1);
  const auto held =
      Inside::Of(*checkpointer).Save(1, state->state(), state->state().values(), {}, std::chrono::minutes(10));
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());

  Inside::Of(*held).Release();

  ASSERT_EQ(held->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(Parse(checkpointer->MetricsText()).at("cairn_newest_step"), 2);
}

TEST(Metrics, ARestoreCountsOnce) {
  const TempDir dir;
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()).code(), StatusCode::kNotFound);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());

  const Scrape counted = Parse(checkpointer->MetricsText());

  EXPECT_EQ(counted.at("cairn_restores_total failed"), 1);
  EXPECT_EQ(counted.at("cairn_restores_total done"), 1);
}

TEST(Metrics, AFileForEachRankIsReplacedAndGoesWithItsJob) {
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.metrics_file = dir / "job.prom";
  auto ranks = OpenRanks(2, options);
  ASSERT_EQ(ranks.size(), 2U);
  const std::array states{SmallState(1, 0), SmallState(1, 1)};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ASSERT_EQ(ranks[i]->Save(1, states[i]->state()).status(), Status::Ok());
  }
  for (const auto& rank : ranks) ASSERT_EQ(rank->Drain(Soon()), Status::Ok());

  const auto of_rank = [&](int rank) {
    const Deadline end = Soon();
    Scrape found;
    while (found["cairn_saves_total durable"] == 0 && !end.passed()) {
      found = Parse(ReadFile(dir / ("job-rank" + std::to_string(rank) + ".prom")));
    }
    return found;
  };
  const Scrape first = of_rank(0);
  const Scrape second = of_rank(1);
  EXPECT_EQ(first.at("cairn_save_phase_seconds_count agree"), 1);
  EXPECT_EQ(first.at("cairn_save_phase_seconds_count commit"), 1);
  EXPECT_EQ(first.at("cairn_newest_step"), 1);
  EXPECT_EQ(second.at("cairn_save_phase_seconds_count seal"), 1);
  EXPECT_FALSE(second.contains("cairn_newest_step")) << "the group's are rank 0's";
  const std::string text = ranks[1]->MetricsText();
  const std::string labels = text.substr(text.find('{'), text.find('}') - text.find('{'));
  EXPECT_THAT(labels, AllOf(HasSubstr("rank=\"1\""), HasSubstr("root=\"" + (*ranks[0]->List())[0].root + "\"")));

  ranks.clear();

  EXPECT_FALSE(std::filesystem::exists(dir / "job-rank0.prom"));
  EXPECT_FALSE(std::filesystem::exists(dir / "job-rank1.prom"));
}

TEST(Metrics, WhoReadsTheFileHasAWholeOne) {
  const TempDir dir;
  std::atomic<int> number = 1;
  const auto file = MetricsFile::Start(
      dir / "job.prom", [&] { return std::to_string(number); }, nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto await = [&](const char* text) {
    for (const Deadline end = Soon(); ReadFile(dir / "job.prom") != text && !end.passed();) std::this_thread::yield();
    return ReadFile(dir / "job.prom");
  };
  ASSERT_EQ(await("1"), "1");
  std::ifstream reading(dir / "job.prom");

  number = 2;
  (*file)->Update();

  ASSERT_EQ(await("2"), "2");
  std::string read;
  EXPECT_TRUE(reading >> read);
  EXPECT_EQ(read, "1");
}

TEST(Metrics, AFileThatCannotBeWrittenFailsNoSave) {
  const TempDir dir;
  Warnings warnings;
  Options options = SmallOptions(dir / "run");
  options.metrics_file = dir / "missing/job.prom";
  options.on_event = warnings.Callback();
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(warnings.Await().size(), 1U);

  for (const std::uint64_t step : {1, 2, 3}) EXPECT_EQ(SaveDurably(*checkpointer, step), Status::Ok());

  const std::vector<Event> events = warnings.Await();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_THAT(events[0].message, StartsWith("the metrics cannot be written: "));
  EXPECT_EQ(events[0].path, options.metrics_file);
  for (const char* const bad : {"job", "job.txt", "dir/.prom", ".prom"}) {
    options.metrics_file = bad;
    EXPECT_EQ(Checkpointer::Open(options).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Metrics, AFileWhoseDiskHangsHoldsUpNoSave) {
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.metrics_file = dir / "job.prom";
  // Who opens it for writing waits for a reader.
  ASSERT_EQ(::mkfifo((options.metrics_file + ".new").c_str(), 0600), 0);
  auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);

  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  const UniqueFd reader(::open((options.metrics_file + ".new").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  checkpointer.reset();
  EXPECT_FALSE(std::filesystem::exists(options.metrics_file));
}

TEST(Metrics, AFileWhoseDiskHangsIsReportedOnce) {
  const TempDir dir;
  const std::string draft = dir / "job.prom.new";
  ASSERT_EQ(::mkfifo(draft.c_str(), 0600), 0);
  Mutex mutex;
  CondVar changed;
  int begun = 0;
  const auto text = [&]() -> std::string {
    MutexLock lock(mutex);
    if (++begun == 2) {  // After a good one the disk hangs again.
      EXPECT_EQ(::mkfifo(draft.c_str(), 0600), 0);
    }
    changed.NotifyAll();
    return "text";
  };
  const auto await_begun = [&](int times) {
    const Deadline end = Soon();
    MutexLock lock(mutex);
    while (begun < times && !end.passed()) changed.WaitUntil(mutex, end);
    return begun;
  };
  std::vector<Event> events;
  auto file = MetricsFile::Start(
      dir / "job.prom", text, [&](const Event& event) { events.push_back(event); }, std::chrono::nanoseconds(0));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(await_begun(1), 1);

  for (int save = 0; save < 3; ++save) (*file)->Update();

  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].severity, Severity::kWarning);
  EXPECT_EQ(events[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(events[0].phase, "metrics");
  EXPECT_EQ(events[0].path, dir / "job.prom");
  EXPECT_GT(events[0].duration, std::chrono::nanoseconds(0));
  EXPECT_THAT(events[0].message, StartsWith("the metrics cannot be written: its disk has not answered for "));
  const auto answer = [&] {
    UniqueFd reader(::open(draft.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_TRUE(reader.valid());
    return reader;
  };
  const UniqueFd first = answer();
  ASSERT_EQ(await_begun(2), 2);
  (*file)->Update();
  EXPECT_EQ(events.size(), 2U) << "it has been written meanwhile";
  const UniqueFd second = answer();
  file->reset();  // Before the reader goes.
}

// Forked, because the thread that waits for the disk is left.
TEST(Metrics, AFileWhoseDiskHangsHoldsUpNoClose) {
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.metrics_file = dir / "job.prom";
  ASSERT_EQ(::mkfifo((options.metrics_file + ".new").c_str(), 0600), 0);
  Forked child([&](const Say& say) {
    auto checkpointer = OpenOrFail(options);
    if (checkpointer == nullptr || !SaveDurably(*checkpointer, 1).ok()) return 1;
    checkpointer.reset();
    say("closed");
    options.metrics_file.clear();
    say(OpenOrFail(options) != nullptr ? "opened again" : "still locked");
    return 0;
  });

  EXPECT_EQ(child.NextLine(Soon()), "closed");
  EXPECT_EQ(child.NextLine(Soon()), "opened again");
}

TEST(Metrics, TextEscapesWhatIsNoPlainLabel) {
  PrometheusText text(PrometheusText::Label("path", "a\"b\\c\nd"));
  text.Gauge("n", "What it is.").Value(1.5).Value(std::uint64_t{1} << 63, PrometheusText::Label("of", "x"));
  EXPECT_EQ(text.text(),
            "# HELP n What it is.\n# TYPE n gauge\nn{path=\"a\\\"b\\\\c\\nd\"} 1.5\n"
            "n{path=\"a\\\"b\\\\c\\nd\",of=\"x\"} 9223372036854775808\n");
}

// Policies on a disk that fails.

TEST(FailurePolicy, TrainingStopsAfterSoManyFailuresInARow) {
  const TempDir dir;
  const auto disk = FullDisk::Make();
  Wiring wiring;
  wiring.wrap_queue = [disk](IoQueueFactory inner) { return disk->Wrap(std::move(inner)); };
  Options options = SmallOptions(dir / "run");
  options.keep_last = 0;
  options.recycle = false;
  options.stop_after_failures = 2;
  const auto checkpointer = OpenOrFail(options, wiring);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());

  disk->Limit({.blocks = 0});
  EXPECT_EQ(SaveDurably(*checkpointer, 2).code(), StatusCode::kNoSpace);
  EXPECT_EQ(checkpointer->CheckFailures(), Status::Ok()) << "one failure";
  disk->Limit({});
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  EXPECT_EQ(checkpointer->stats().failures_in_a_row, 0U);
  disk->Limit({.blocks = 0});
  for (const std::uint64_t step : {4, 5}) EXPECT_EQ(SaveDurably(*checkpointer, step).code(), StatusCode::kNoSpace);

  const Status stop = checkpointer->CheckFailures();
  EXPECT_EQ(stop.code(), StatusCode::kNoSpace);
  EXPECT_THAT(stop.message(), AllOf(StartsWith("2 saves in a row have failed, the newest: "), HasSubstr("shard-")));
  disk->Limit({});
  EXPECT_EQ(SaveDurably(*checkpointer, 6), Status::Ok());
  EXPECT_EQ(checkpointer->CheckFailures(), Status::Ok());
  disk->Limit({.blocks = 0});
  const auto unheard = SmallState(7);
  ASSERT_TRUE(checkpointer->Save(7, unheard->state()).ok());
  ASSERT_EQ(Inside::Of(*checkpointer).WaitIdle(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->CheckFailures(), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok()) << "what it passed over was heard";
}

TEST(FailurePolicy, SavesThatTheirCallRefusesCount) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const TempDir dir;
    Options options = SmallOptions(dir / "run");
    options.stop_after_failures = 2;
    const auto open = OpenRanks(ranks, options);
    ASSERT_EQ(open.size(), static_cast<std::size_t>(ranks));
    std::vector<std::unique_ptr<Tensors>> states;
    // What rank 0's call returns.
    const auto save = [&](std::uint64_t step) {
      Status called;
      std::vector<SaveHandle> others;
      for (int rank = 0; rank < ranks; ++rank) {
        states.push_back(SmallState(step, rank));
        const auto begun = open[static_cast<std::size_t>(rank)]->Save(step, states.back()->state());
        if (rank == 0) called = begun.status();
        if (begun.ok()) others.push_back(*begun);
      }
      for (const SaveHandle& other : others) EXPECT_EQ(other.WaitDurable(Soon()).code(), called.code());
      return called;
    };
    // In a group rank 0 counts its own once it has told the others.
    const auto await_failed = [&](double expected) {
      for (const auto& one : open) {
        const auto failed = [&] { return Parse(one->MetricsText()).at("cairn_saves_total failed"); };
        for (const Deadline end = Soon(); failed() != expected && !end.passed();) std::this_thread::yield();
        EXPECT_EQ(failed(), expected);
      }
    };
    ASSERT_EQ(save(5), Status::Ok());

    EXPECT_EQ(save(5).code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(save(3).code(), StatusCode::kFailedPrecondition);
    await_failed(2);
    for (const auto& one : open) {
      EXPECT_EQ(one->stats().failures_in_a_row, 1U) << "step 5 is saved";
      EXPECT_EQ(one->CheckFailures(), Status::Ok());
    }
    EXPECT_EQ(save(4).code(), StatusCode::kFailedPrecondition);
    await_failed(3);

    for (const auto& one : open) {
      const Status stop = one->CheckFailures();
      EXPECT_EQ(stop.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(stop.message(), AllOf(StartsWith("2 saves in a row have failed, the newest: "),
                                        HasSubstr("step 4 is below the newest one, 5")));
      const Scrape counted = Parse(one->MetricsText());
      EXPECT_EQ(counted.at("cairn_save_failures_total FailedPrecondition"), 2);
      EXPECT_EQ(counted.at("cairn_saves_started_total"), 4);
      EXPECT_EQ(one->Drain(Soon()), Status::Ok()) << "its call has said so";
    }
    EXPECT_EQ(save(6), Status::Ok());
    for (const auto& one : open) EXPECT_EQ(one->CheckFailures(), Status::Ok());
  }
}

// There is room for the checkpoint that is kept and one more. A save that begins before the one before it has ended,
// and retention has followed, waits for both.
TEST(FailurePolicy, AFullDiskWaitsForWhatIsBeingRemoved) {
  const TempDir dir;
  const auto disk = FullDisk::Make();
  const auto plan = FaultPlan::Make();
  Options options = SmallOptions(dir / "run");
  options.keep_last = 1;
  options.recycle = false;
  const auto open = OpenRanks(1, options, [&](int /*rank*/) {
    Wiring wiring;
    wiring.wrap_queue = [=](IoQueueFactory inner) { return plan->Wrap(disk->Wrap(std::move(inner))); };
    return wiring;
  });
  ASSERT_EQ(open.size(), 1U);
  std::vector<SaveHandle> saves;
  std::vector<std::unique_ptr<Tensors>> states;
  const auto save = [&](std::uint64_t step) {
    states.push_back(SmallState(step));
    saves.push_back(*open[0]->Save(step, states.back()->state()));
  };
  save(1);
  for (const auto& one : open) ASSERT_EQ(one->Drain(Soon()), Status::Ok());
  disk->Limit({.blocks = 2});  // A manifest and a shard.
  const FaultGate commit = plan->Hold({.op = IoOp::kRename, .path = "step-"});
  const FaultGate removal = plan->Hold({.op = IoOp::kUnlink, .path = ".retired-"});
  save(2);
  ASSERT_TRUE(commit.WaitHeld(Soon()));
  const auto tries = [&] { return plan->Count({.op = IoOp::kFallocate, .path = "shard-"}); };
  const std::size_t before = tries();
  save(3);
  for (const Deadline end = Soon(); tries() == before && !end.passed();) std::this_thread::yield();
  commit.Release();
  ASSERT_TRUE(removal.WaitHeld(Soon()));
  removal.Release();

  for (const SaveHandle& one : saves) EXPECT_EQ(one.WaitDurable(Soon()), Status::Ok()) << one.step();
  for (const auto& one : open) ASSERT_EQ(one->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*open[0]), ElementsAre(3));
  EXPECT_THAT(Leftovers(dir / "run"), IsEmpty());
}

}  // namespace
}  // namespace cairn
