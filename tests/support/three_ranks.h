#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "support/held_group.h"
#include "support/small_run.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {

inline constexpr int kRanks = 3;
inline constexpr std::chrono::hours kNever{1};  // A group_timeout that a test alone makes pass.
using Statuses = std::vector<Status>;

MATCHER_P(HasCode, code, "") { return arg.code() == code; }

/// Three checkpointers on one root; rank r's queues follow plans_[r], its group is behind groups_[r].
class Ranks : public testing::Test {
 protected:
  void OpenAll(Options options) {
    const auto local = MakeLocalGroup(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      plans_.push_back(FaultPlan::Make());
      groups_.push_back(std::make_shared<HeldGroup>(local[static_cast<std::size_t>(rank)]));
      options.group = groups_.back();
      ranks_.push_back(OpenOrFail(options, Through(plans_.back())));
      ASSERT_NE(ranks_.back(), nullptr);
    }
  }
  void OpenAll() { OpenAll(SmallOptions(root())); }
  void OpenAll(std::chrono::nanoseconds group_timeout) {
    Options options = SmallOptions(root());
    options.group_timeout = group_timeout;
    OpenAll(options);
  }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] Checkpointer& rank(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] FaultPlan& plan(int rank) { return *plans_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] HeldGroup& group(int rank) { return *groups_[static_cast<std::size_t>(rank)]; }

  SaveHandle Start(int of, std::uint64_t step, const SaveOptions& options = {}) {
    states_.push_back(SmallState(step, of));
    auto save = rank(of).Save(step, states_.back()->state(), options);
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  std::vector<SaveHandle> StartAll(std::uint64_t step) {
    std::vector<SaveHandle> saves;
    for (int of = 0; of < kRanks; ++of) saves.push_back(Start(of, step));
    return saves;
  }
  static Statuses WaitAll(const std::vector<SaveHandle>& saves) {
    Statuses statuses;
    for (const SaveHandle& save : saves) statuses.push_back(save.WaitDurable(Soon()));
    return statuses;
  }
  /// Where the coordinator's message is lost: the others hear nothing, and their deadline passes once it has ended.
  Statuses WaitAllWithoutTheOutcome(const std::vector<SaveHandle>& saves) {
    static_cast<void>(saves[0].WaitDurable(Soon()));
    for (int of = 1; of < kRanks; ++of) group(of).Expire("outcome/");
    return WaitAll(saves);
  }
  Statuses SaveAll(std::uint64_t step) { return WaitAll(StartAll(step)); }
  void CloseAll() {
    ranks_.clear();
    groups_.clear();
    plans_.clear();
  }

  void ExpectWorksFrom(std::uint64_t step) {
    for (const auto& one : plans_) one->Clear();
    EXPECT_THAT(SaveAll(step), testing::Each(Status::Ok()));
    EXPECT_THAT(ListedSteps(rank(0)), testing::Contains(step));
  }

  const TempDir dir_;
  std::vector<std::unique_ptr<Tensors>> states_;  // Until every save is over.
  std::vector<std::shared_ptr<FaultPlan>> plans_;
  std::vector<std::shared_ptr<HeldGroup>> groups_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
};

}  // namespace cairn
