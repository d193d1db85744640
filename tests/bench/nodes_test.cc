// What two nodes save counts only once both have it: each saving strategy, with one node that is lost in between.
#include "bench/strategies/nodes.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/pipeline/served_memory.h"
#include "bench/workplace.h"
#include "testing/local_group.h"

namespace cairn::bench {
namespace {

/// Says when this node has asked the other one about a step: it has its own part by then.
class AskingGroup : public Group {
 public:
  AskingGroup(std::shared_ptr<LocalGroup> group, const std::string& key) : group_(std::move(group)), key_(key) {}

  [[nodiscard]] int rank() const override { return group_->rank(); }
  [[nodiscard]] int size() const override { return group_->size(); }
  void Send(const std::string& key, std::string message) override {
    group_->Send(key, std::move(message));
    Note(key);
  }
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override {
    group_->Collect(key, deadline, std::move(on_message), std::move(end));
    Note(key);
  }
  void Announce(const std::string& key, std::string message) override { group_->Announce(key, std::move(message)); }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override {
    group_->Await(key, deadline, std::move(on_announced));
  }
  [[nodiscard]] bool AwaitAsked() const {
    return was_asked_.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  }

 private:
  void Note(const std::string& key) {
    if (key == key_) asked_.set_value();
  }

  const std::shared_ptr<LocalGroup> group_;
  const std::string key_;
  std::promise<void> asked_;
  const std::shared_future<void> was_asked_ = asked_.get_future().share();
};

/// A node until it is lost: its end of the group, its training's state, and its strategy.
struct Node {
  std::shared_ptr<LocalGroup> group;
  std::shared_ptr<AskingGroup> asking;
  std::unique_ptr<SmallWorkplace> at;
  std::unique_ptr<Strategy> strategy;
};
using Nodes = std::array<Node, 2>;

/// Two nodes in one process. What they have written, also to the memory of gemini's peers, survives a restart.
class NodesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "gemini") return;
    for (auto& memory : memories_) memory = *ServedMemory::Open("127.0.0.1", SmallWorkplace::kBytes);
  }

  static void Both(const std::function<void(std::size_t)>& body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
  }
  Nodes Start() {
    const std::vector<std::shared_ptr<LocalGroup>> groups = MakeLocalGroup(2);
    Nodes nodes;
    Both([&](std::size_t rank) {
      Node& node = nodes[rank];
      node.group = groups[rank];
      node.asking = std::make_shared<AskingGroup>(node.group, "durable/3");
      node.at = std::make_unique<SmallWorkplace>(directories_[GetParam() == "cairn" ? 0 : rank].path());
      Workplace& workplace = **node.at;
      workplace.group = node.asking;
      workplace.connect_to_peer = [this, rank]() -> Result<std::unique_ptr<Connection>> {
        return Result<std::unique_ptr<Connection>>(*ConnectTo("127.0.0.1", memories_[rank]->port()));
      };
      node.strategy = node.at->Open(GetParam());
    });
    return nodes;
  }
  static void SaveOnBoth(Nodes& nodes, std::uint64_t step) {
    Both([&](std::size_t rank) {
      EXPECT_EQ(TrainAndSave(*nodes[rank].strategy, nodes[rank].at->state(), step), Status::Ok());
      EXPECT_EQ(nodes[rank].strategy->Drain(), Status::Ok());
    });
  }
  /// Both restore this step.
  static void ExpectRestored(Nodes& nodes, std::uint64_t step) {
    Both([&](std::size_t rank) {
      TrainingState& state = nodes[rank].at->state();
      ASSERT_TRUE(state.Clear().ok());
      const Result<std::uint64_t> restored = nodes[rank].strategy->Restore();
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(*restored, step);
      EXPECT_TRUE(*state.Is(step));
    });
  }

 private:
  std::array<TempDir, 2> directories_;
  std::array<std::unique_ptr<ServedMemory>, 2> memories_;
};

class LostNodeTest : public NodesTest {
 protected:
  /// One node makes its part of step 3 durable, and goes on to step 4 if it may. The other one is lost before it saves
  /// either.
  static void SaveAlone(Nodes& nodes, std::size_t ahead) {
    Node& node = nodes[ahead];
    // Cairn's ranks prepare, and one of them commits for both: there is nothing that one of them has alone.
    const auto has_step_3 = [&node] { return GetParam() == "cairn" || node.asking->AwaitAsked(); };
    Status last;
    std::promise<void> saved;
    std::thread training([&] {
      last = TrainAndSave(*node.strategy, node.at->state(), 3);
      if (last.ok() && has_step_3()) last = TrainAndSave(*node.strategy, node.at->state(), 4);
      saved.set_value();
      if (last.ok()) last = node.strategy->Drain();
    });
    EXPECT_TRUE(has_step_3());
    // PCcheck alone saves on meanwhile: step 4 must not take the place of step 2.
    if (GetParam() == "pccheck") saved.get_future().wait();
    nodes[1 - ahead].group->Leave();
    training.join();
    EXPECT_FALSE(last.ok());
  }
};

TEST_P(NodesTest, RestoreWhatBothHaveSaved) {
  {
    Nodes nodes = Start();
    for (std::uint64_t step = 1; step <= 5; ++step) SaveOnBoth(nodes, step);
  }

  Nodes nodes = Start();

  ExpectRestored(nodes, 5);
}

TEST_P(LostNodeTest, AStepThatOneNodeHasAloneDoesNotCount) {
  for (const std::size_t ahead : {0U, 1U}) {
    SCOPED_TRACE(ahead);
    Nodes nodes = Start();
    if (ahead == 1) ExpectRestored(nodes, 2);
    if (ahead == 0) {
      SaveOnBoth(nodes, 1);
      SaveOnBoth(nodes, 2);
    }
    SaveAlone(nodes, ahead);
  }

  {
    Nodes nodes = Start();
    ExpectRestored(nodes, 2);
    SaveOnBoth(nodes, 3);  // Replaces what one node had alone.
  }
  Nodes nodes = Start();
  ExpectRestored(nodes, 3);
}

const auto kSaving = testing::Values("sync", "checkfreq", "gpm", "gemini", "pccheck", "cairn");
INSTANTIATE_TEST_SUITE_P(Saving, NodesTest, kSaving, [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Saving, LostNodeTest, kSaving, [](const auto& test) { return test.param; });

}  // namespace
}  // namespace cairn::bench
