#include "support/small_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "api/checkpointer_impl.h"
#include "base/status_macros.h"
#include "store/list.h"
#include "store/writer.h"
#include "testing/local_group.h"

namespace cairn {

using namespace literals;

namespace {

constexpr std::size_t kLargeElements = 300'000;  // Over one chunk, and no whole number of blocks.
constexpr std::size_t kSmallElements = 1'001;

std::uint64_t Seed(std::uint64_t step, int rank, std::uint64_t variant) {
  return (step * 100 + static_cast<std::uint64_t>(rank)) * 100 + variant + 1;
}

/// The tensors of a rank have names of their own: the ranks' states are one checkpoint's.
Tensors Shaped(int rank) {
  Tensors tensors;
  tensors.Add(fmt::format("rank{}.large", rank), kLargeElements);
  tensors.Add(fmt::format("rank{}.small", rank), kSmallElements);
  return tensors;
}

}  // namespace

Options SmallOptions(const std::string& root) {
  return {.root = root,
          .open_timeout = std::chrono::seconds(0),
          .max_in_flight = 3,
          .group_timeout = std::chrono::seconds(30),
          .host_memory_bytes = 4_MiB,
          .chunk_bytes = 1_MiB,
          .queue_depth = 2,
          .worker_threads = 2};
}

Wiring Through(const std::shared_ptr<FaultPlan>& plan) {
  Wiring wiring;
  wiring.wrap_queue = [plan](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
  wiring.wrap_memory_queue = wiring.wrap_queue;
  return wiring;
}

std::unique_ptr<Checkpointer> OpenOrFail(const Options& options, const Wiring& wiring) {
  auto opened = Checkpointer::Open(options, wiring);
  if (opened.ok()) return *std::move(opened);
  ADD_FAILURE() << opened.status();
  return nullptr;
}

void AbandonAtOnce(Checkpointer& checkpointer) { Inside::Of(checkpointer).CloseBy(Soon()); }

std::unique_ptr<Tensors> SmallState(std::uint64_t step, int rank, std::uint64_t variant) {
  auto tensors = std::make_unique<Tensors>(Shaped(rank));
  tensors->Fill(Seed(step, rank, variant));
  return tensors;
}

bool Holds(const Tensors& tensors, std::uint64_t step, int rank, std::uint64_t variant) {
  return tensors.Holds(Seed(step, rank, variant));
}

FrozenTensor::FrozenTensor(int rank) : name_(fmt::format("rank{}.frozen", rank)) {}

void FrozenTensor::Fill(std::uint64_t seed, std::size_t from) {
  for (std::size_t i = from; i < memory_.size(); ++i) memory_[i] = seed * 0x9e3779b97f4a7c15 + i;
}

bool FrozenTensor::Holds(std::uint64_t seed) const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (memory_[i] != seed * 0x9e3779b97f4a7c15 + i) return false;
  }
  return true;
}

State FrozenTensor::With(const State& state) {
  State both = state;
  const Status added = both.Add(name_, {.data = memory_.data(),
                                        .dtype = DType::kU64,
                                        .shape = {static_cast<std::int64_t>(memory_.size())},
                                        .frozen = true,
                                        .version = version});
  EXPECT_EQ(added, Status::Ok());
  return both;
}

void ExpectFrozen(Checkpointer& reader, std::uint64_t seed, int rank) {
  for (const std::uint64_t step : ListedSteps(reader)) {
    FrozenTensor frozen(rank);
    const auto restored = ReadAlone(reader, Step(step), frozen.With({}), {.resume = false});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_TRUE(frozen.Holds(seed)) << "step " << step << ", rank " << rank;
  }
}

void ExpectFrozenIn(const std::string& root, std::uint64_t seed, int ranks) {
  if (!std::filesystem::exists(root + "/.writer")) return;
  Options options = SmallOptions(root);
  options.read_only = true;
  const std::unique_ptr<Checkpointer> reader = OpenOrFail(options);
  if (reader == nullptr) return;
  for (int rank = 0; rank < ranks; ++rank) ExpectFrozen(*reader, seed, rank);
}

void ExpectSuspectsIn(const std::string& root, std::uint64_t origin, std::uint64_t found) {
  const Result<std::vector<CheckpointInfo>> list = ListInfos(root);
  if (!list.ok() || list->empty()) return;
  const bool there = list->back().step >= found;
  for (const CheckpointInfo& info : *list) {
    if (info.step == origin || info.step >= found) {
      EXPECT_FALSE(info.suspect) << "step " << info.step;
    } else if (there) {
      EXPECT_TRUE(info.suspect) << "step " << info.step;
    }
  }
}

Status SaveDurably(Checkpointer& checkpointer, std::uint64_t step, const SaveOptions& options, std::uint64_t variant) {
  const std::unique_ptr<Tensors> state = SmallState(step, 0, variant);
  CAIRN_ASSIGN_OR_RETURN(const SaveHandle save, checkpointer.Save(step, state->state(), options));
  Status status = save.WaitDurable(Soon());
  if (status.code() == StatusCode::kDeadlineExceeded) {
    // The state goes now: nothing may read it any more.
    save.Cancel();
    static_cast<void>(save.WaitDurable(Soon()));
  }
  return status;
}

Result<Restored> ReadAlone(Checkpointer& checkpointer, const Selector& selector, const State& state,
                           const RestoreOptions& options) {
  const auto plan = [&](const CheckpointInfo& /*chosen*/) { return ReadPlan{.state = state, .options = options}; };
  return Inside::Of(checkpointer).Restore(selector, {.plan = plan, .resume = options.resume, .alone = true});
}

Status RestoreAndCompare(Checkpointer& checkpointer, const Selector& selector, std::uint64_t variant) {
  Tensors fresh = Shaped(0);
  CAIRN_ASSIGN_OR_RETURN(const Restored restored, checkpointer.Restore(selector, fresh.state()));
  if (selector.step() && *selector.step() != restored.step) {
    return Error(StatusCode::kInternal, "asked for step {}, restored {}", *selector.step(), restored.step);
  }
  if (Holds(fresh, restored.step, 0, variant)) return Status::Ok();
  return Error(StatusCode::kCorrupt, "step {}: restored other bits than were saved", restored.step);
}

std::vector<std::unique_ptr<Checkpointer>> OpenRanks(int ranks, Options options,
                                                     const std::function<Wiring(int rank)>& wiring) {
  std::vector<std::unique_ptr<Checkpointer>> opened;
  for (const auto& group : MakeLocalGroup(ranks)) {
    options.group = group;
    opened.push_back(OpenOrFail(options, wiring ? wiring(group->rank()) : Wiring()));
    if (opened.back() == nullptr) return {};
  }
  return opened;
}

std::vector<std::uint64_t> ListedSteps(const Checkpointer& checkpointer) {
  std::vector<std::uint64_t> steps;
  const auto list = checkpointer.List();
  EXPECT_TRUE(list.ok()) << list.status();
  if (!list.ok()) return steps;
  for (const CheckpointInfo& info : *list) {
    EXPECT_TRUE(info.status.ok()) << info.status;
    steps.push_back(info.step);
  }
  return steps;
}

std::vector<std::string> Leftovers(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".") && name != ".lock" && name != ".writer") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ExpectLinesRecorded(const std::string& root, const Checkpointer& checkpointer, bool writer) {
  const Result<std::optional<WriterRecord>> record = ReadWriter(root);
  ASSERT_TRUE(record.ok() && *record) << record.status();
  const auto list = checkpointer.List();
  ASSERT_TRUE(list.ok()) << list.status();
  for (const CheckpointInfo& info : *list) {
    EXPECT_EQ(info.root, (*record)->root);
    EXPECT_LE(info.line + (writer ? 1 : 0), (*record)->line) << "of step " << info.step;
  }
}

void ExpectNothingLost(const std::string& root, std::optional<std::uint64_t> acknowledged, int ranks) {
  Options options = SmallOptions(root);
  options.keep_last = 0;
  const std::unique_ptr<Checkpointer> checkpointer = OpenOrFail(options);
  if (checkpointer == nullptr) return;
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  ExpectLinesRecorded(root, *checkpointer, /*writer=*/true);
  const std::vector<std::uint64_t> steps = ListedSteps(*checkpointer);
  if (acknowledged) {
    ASSERT_FALSE(steps.empty()) << "step " << *acknowledged << " was acknowledged";
    EXPECT_GE(steps.back(), *acknowledged);
  }
  for (const std::uint64_t step : steps) {
    for (int rank = 0; rank < ranks; ++rank) {
      Tensors fresh = Shaped(rank);
      const auto restored = checkpointer->Restore(Step(step), fresh.state());
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_TRUE(Holds(fresh, step, rank)) << "step " << step << ", rank " << rank;
    }
  }
  if (!steps.empty()) {
    Tensors fresh = Shaped(0);
    const auto restored = checkpointer->Restore(Latest(), fresh.state());
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->step, steps.back());
  }
  const std::uint64_t next = steps.empty() ? 1 : steps.back() + 1;
  EXPECT_EQ(SaveDurably(*checkpointer, next), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(Leftovers(root), testing::Each(testing::StartsWith(".spare-")));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

}  // namespace cairn
