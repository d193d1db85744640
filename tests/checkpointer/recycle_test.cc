// Saves that overwrite retired files: by default, on both queues, on every rank, and never where somebody would notice.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "api/checkpointer_impl.h"
#include "api/wiring.h"
#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "store/locks.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/rate_limited_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Recycle : public testing::TestWithParam<IoQueueKind> {
 protected:
  void SetUp() override {
    const UniqueFd probe(::open((dir_ / "probe").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (const Status status = TakeLease(probe, "a file here"); !status.ok()) GTEST_SKIP() << status;
  }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] Options KeepingOne() const {
    Options options = SmallOptions(root());
    options.keep_last = 1;
    options.io_queue = GetParam();
    return options;
  }
  [[nodiscard]] std::string Shard(std::uint64_t step) const {
    return fmt::format("{}/step-{:020}/shard-00000.safetensors", root(), step);
  }
  /// Saves, and waits for the removals too.
  static void SaveOneByOne(Checkpointer& checkpointer, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t step = from; step <= to; ++step) {
      ASSERT_EQ(SaveDurably(checkpointer, step), Status::Ok());
      ASSERT_EQ(checkpointer.Drain(Soon()), Status::Ok());
    }
  }
  /// Shard files anywhere under the root.
  [[nodiscard]] std::int64_t Shards() const {
    const auto all = std::filesystem::recursive_directory_iterator(root());
    return std::count_if(begin(all), end(all), [](const auto& entry) {
      return entry.is_regular_file() && entry.path().extension() == ".safetensors";
    });
  }

  const TempDir dir_;
};

TEST_P(Recycle, SteadySavesOverwriteRetiredFiles) {
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne());
  ASSERT_NE(checkpointer, nullptr);

  SaveOneByOne(*checkpointer, 1, 5);
  const auto state = SmallState(6);
  const auto save = checkpointer->Save(6, state->state());
  ASSERT_TRUE(save.ok() && save->WaitDurable(Soon()).ok());

  EXPECT_TRUE(save->stats().recycled);
  EXPECT_TRUE(save->stats().direct);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->stats().shards_recycled, 4U) << "all but the first two";
  EXPECT_EQ(checkpointer->stats().not_recycled_reason, "");
  EXPECT_EQ(Shards(), 2) << "keep_last and one more";
}

// Like a loader's worker, which lives long.
TEST_P(Recycle, AForkedChildHoldsNoFile) {
  const auto plan = FaultPlan::Make();
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  const FaultGate gate = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const auto state = SmallState(1);
  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  const Forked child([](const Say&) { return ::pause(); });

  gate.Release();
  ASSERT_EQ(save->WaitDurable(Soon()), Status::Ok());
  SaveOneByOne(*checkpointer, 2, 5);
  EXPECT_EQ(checkpointer->stats().not_recycled_reason, "");
  EXPECT_EQ(Shards(), 2) << "keep_last and one more";
}

TEST_P(Recycle, ConcurrentSavesRecycleToo) {
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne());
  ASSERT_NE(checkpointer, nullptr);

  std::vector<std::unique_ptr<Tensors>> states;
  for (std::uint64_t step = 1; step <= 12; ++step) {
    states.push_back(SmallState(step));
    ASSERT_TRUE(checkpointer->Save(step, states.back()->state()).ok());
  }

  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_GT(checkpointer->stats().shards_recycled, 0U);
  EXPECT_LE(Shards(), 1 + 3 + 1) << "keep_last, max_in_flight and one more";
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_P(Recycle, ConsecutiveSavesAlwaysRecycle) {
  // Slow enough that each Save waits for the previous save, whose retired file the next one needs.
  const auto disk = RateLimitedDisk::Make(20'000'000);
  Wiring wiring;
  wiring.wrap_queue = [disk](IoQueueFactory inner) { return disk->Wrap(std::move(inner)); };
  Options options = KeepingOne();
  options.max_in_flight = 1;
  const auto checkpointer = Checkpointer::Open(options, std::move(wiring));
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
  const auto state = SmallState(1);

  for (std::uint64_t step = 1; step <= 12; ++step) {
    ASSERT_TRUE((*checkpointer)->Save(step, state->state()).ok());
  }
  ASSERT_EQ((*checkpointer)->Drain(Soon()), Status::Ok());

  // A save may begin before the first retired checkpoint has become a spare.
  EXPECT_GE((*checkpointer)->stats().shards_recycled, 12U - 3U);
  EXPECT_LE(Shards(), 1 + 1 + 1) << "keep_last, max_in_flight and one more";
  EXPECT_EQ((*checkpointer)->stats().not_recycled_reason, "");
}

TEST_P(Recycle, ManyRetiredAtOnceKeepFewSpares) {
  std::atomic<int> removals{0};
  std::promise<void> removed;
  Options options = KeepingOne();
  options.on_event = [&](const Event& event) {
    if (event.kind == EventKind::kCheckpointRemoved && ++removals == 6) removed.set_value();
  };
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  for (std::uint64_t step = 1; step <= 6; ++step) {
    ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
    ASSERT_EQ(checkpointer->Pin(step), Status::Ok());
  }
  for (std::uint64_t step = 1; step <= 6; ++step) ASSERT_EQ(checkpointer->Unpin(step), Status::Ok());
  const auto state = SmallState(7);
  const auto held =
      Inside::Of(*checkpointer).Save(7, state->state(), state->state().values(), {}, std::chrono::minutes(10));
  ASSERT_TRUE(held.ok()) << held.status();

  ASSERT_EQ(SaveDurably(*checkpointer, 8), Status::Ok());
  removed.get_future().wait();

  EXPECT_EQ(Shards(), 1 + 3 + 1) << "keep_last, max_in_flight (including the held one) and one more";
  Inside::Of(*held).Release();
  EXPECT_EQ(held->WaitDurable(Soon()), Status::Ok());
}

TEST_P(Recycle, WithoutRecyclingRetiredFilesAreUnlinked) {
  Options options = KeepingOne();
  options.recycle = false;
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);

  SaveOneByOne(*checkpointer, 1, 3);

  EXPECT_EQ(checkpointer->stats().shards_recycled, 0U);
  EXPECT_EQ(Shards(), 1);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_P(Recycle, ClosingLeavesNoSpares) {
  std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne());
  ASSERT_NE(checkpointer, nullptr);
  SaveOneByOne(*checkpointer, 1, 2);
  ASSERT_THAT(Leftovers(root()), ElementsAre(".spare-0"));

  checkpointer.reset();

  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_P(Recycle, MappedOldShardKeepsItsBytes) {
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne());
  ASSERT_NE(checkpointer, nullptr);
  SaveOneByOne(*checkpointer, 1, 3);
  std::ifstream file(Shard(3), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  file.close();
  void* mapped = nullptr;
  {
    const UniqueFd fd(::open(Shard(3).c_str(), O_RDONLY | O_CLOEXEC));
    mapped = ::mmap(nullptr, bytes.size(), PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
  }

  SaveOneByOne(*checkpointer, 4, 8);

  EXPECT_EQ(std::string(static_cast<const char*>(mapped), bytes.size()), bytes);
  EXPECT_THAT(checkpointer->stats().not_recycled_reason, HasSubstr("it is open or mapped elsewhere"));
  EXPECT_EQ(checkpointer->stats().shards_recycled, 5U) << "all of the saves 3 to 8 except 5";
  ::munmap(mapped, bytes.size());
}

TEST_P(Recycle, FailedSaveIntoARecycledFileKeepsThePreviousOne) {
  const auto plan = FaultPlan::Make();
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(KeepingOne(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  SaveOneByOne(*checkpointer, 1, 2);
  // The first chunk after the zeros; its descriptor was opened under the spare's name.
  plan->Fail({.op = IoOp::kWrite, .path = ".spare", .nth = 2}, EIO);

  EXPECT_EQ(SaveDurably(*checkpointer, 3).code(), StatusCode::kIoError);

  EXPECT_EQ(plan->Count({.op = IoOp::kRename, .path = ".spare-0/"}), 1U);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(2));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_EQ(Shards(), 1);
  SaveOneByOne(*checkpointer, 4, 6);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_P(Recycle, EveryRankTakesItsOwnFile) {
  const auto ranks = OpenRanks(3, KeepingOne());
  ASSERT_EQ(ranks.size(), 3U);

  std::vector<std::unique_ptr<Tensors>> states;
  for (std::uint64_t step = 1; step <= 4; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      states.push_back(SmallState(step, rank));
      ASSERT_TRUE(ranks[static_cast<std::size_t>(rank)]->Save(step, states.back()->state()).ok());
    }
    for (const auto& rank : ranks) ASSERT_EQ(rank->Drain(Soon()), Status::Ok());
  }

  for (int rank = 0; rank < 3; ++rank) {
    const auto& one = ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one->stats().shards_recycled, 2U) << "rank " << rank << ": " << one->stats().not_recycled_reason;
    const auto fresh = SmallState(0, rank);
    ASSERT_TRUE(ReadAlone(*one, Latest(), fresh->state()).ok());
    EXPECT_TRUE(Holds(*fresh, 4, rank));
  }
  EXPECT_EQ(Shards(), 6) << "keep_last and one more";
}

INSTANTIATE_TEST_SUITE_P(Queue, Recycle, testing::Values(IoQueueKind::kAuto, IoQueueKind::kThreads),
                         [](const auto& of) { return of.param == IoQueueKind::kAuto ? "Auto" : "Threads"; });

}  // namespace
}  // namespace cairn
