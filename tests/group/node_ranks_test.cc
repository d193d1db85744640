// How many ranks a node has: what is believed of the launcher's variables, and how the ranks count each other
// otherwise.
#include "group/node_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "group/group_futures.h"
#include "group/solo_group.h"
#include "support/variable.h"
#include "testing/local_group.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Variables = std::map<const char*, std::string>;
using Counts = std::vector<std::uint64_t>;

class NodeRanksTest : public testing::Test {
 protected:
  NodeRanksTest() {
    for (const char* name : {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PMI_SIZE", "PMI_RANK",
                             "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_NODEID"}) {
      outside_.push_back(std::make_unique<Variable>(name, nullptr));
    }
  }

  /// Of a group whose ranks are on these nodes; by rank. Rank 0 comes last.
  static std::vector<NodeRanks> Meet(const std::vector<std::string>& nodes, bool rank0_needs = true,
                                     Deadline deadline = Deadline::Infinite()) {
    const auto groups = MakeLocalGroup(static_cast<int>(nodes.size()));
    std::vector<NodeRanks> found(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::size_t rank = nodes.size() - 1 - i;
      MeetNodeRanks(*groups[rank], nodes[rank], rank != 0 || rank0_needs, deadline,
                    [&found, rank](NodeRanks ranks) { found[rank] = std::move(ranks); });
    }
    return found;
  }
  static Counts CountsOf(const std::vector<NodeRanks>& found) {
    Counts counts;
    for (const NodeRanks& one : found) counts.push_back(one.count);
    return counts;
  }
  /// What rank 1 of a group finds, of which another rank is on its node.
  static NodeRanks With(const Variables& variables, int size = 4) {
    std::vector<std::unique_ptr<Variable>> set;
    for (const auto& [name, value] : variables) set.push_back(std::make_unique<Variable>(name, value));
    if (size == 1) {
      SoloGroup alone;
      return FindNodeRanks(alone, true, Deadline::Infinite()).get();
    }
    std::vector<std::string> nodes(static_cast<std::size_t>(size), "elsewhere");
    nodes[1] = nodes[2] = "here";
    return Meet(nodes)[1];
  }

  std::vector<std::unique_ptr<Variable>> outside_;
};

TEST_F(NodeRanksTest, EqualNamesAreCounted) {
  const auto found = Meet({"a", "ab", "a", "a\nb", "a"});

  EXPECT_THAT(CountsOf(found), ElementsAre(3, 1, 3, 1, 3));
  EXPECT_EQ(found[4].source, "the names of the ranks' nodes");
  EXPECT_EQ(NodeName(), NodeName());
  EXPECT_FALSE(NodeName().empty());
}

TEST_F(NodeRanksTest, WithoutNamesItIsTheWholeGroup) {
  for (const NodeRanks& one : Meet({"a", "b", "a"}, /*rank0_needs=*/false)) {
    EXPECT_EQ(one.count, 3U);
    EXPECT_TRUE(one.guessed);
  }
  const auto groups = MakeLocalGroup(3);
  const NodeRanks late = FindNodeRanks(*groups[0], true, Deadline::In(kSoon)).get();
  EXPECT_EQ(late.count, 3U);
  EXPECT_TRUE(late.guessed);
  EXPECT_THAT(late.source, HasSubstr("nothing from ranks 1, 2"));
  EXPECT_EQ(FindNodeRanks(*groups[1], true, Deadline::Infinite()).get().count, 3U)
      << "it hears at once that nobody knows";
}

TEST_F(NodeRanksTest, ALauncherIsBelieved) {
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "3"}}).count, 3U);
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "3"}}).source, "LOCAL_WORLD_SIZE=3");
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "8"}, {"WORLD_SIZE", "16"}}).count, 8U) << "other groups are there too";
  EXPECT_EQ(
      With({{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}}).count,
      1U);
  EXPECT_EQ(With({{"MPI_LOCALNRANKS", "3"}, {"PMI_SIZE", "4"}, {"PMI_RANK", "1"}}).count, 3U);
  EXPECT_EQ(With({{"PMI_LOCAL_SIZE", "3"}, {"PMI_SIZE", "4"}, {"PMI_RANK", "1"}}).count, 3U);
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}).count, 3U)
      << "mpirun started torchrun";
}

TEST_F(NodeRanksTest, SlurmSaysItForEachNode) {
  const auto on = [](const char* tasks, const char* node, int size) {
    return With({{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", node}, {"SLURM_PROCID", "1"}}, size);
  };
  EXPECT_EQ(on("8(x2),4", "0", 20).count, 8U);
  EXPECT_EQ(on("8(x2),4", "1", 20).count, 8U);
  EXPECT_EQ(on("8(x2),4", "2", 20).count, 4U);
  EXPECT_EQ(on("1,3(x1)", "1", 4).count, 3U);
  EXPECT_EQ(on("4", "0", 4).source, "SLURM_STEP_TASKS_PER_NODE=4, SLURM_NODEID=0");
  for (const char* odd : {"8(x2", "8(x),4", "8x2,4", "8(x2),", ",", "(x2)", "8(x2),4 ", "-8(x2),4", "20(x0)",
                          "99999999999999999999", "1000001(x1000001)", "5(x4),"}) {
    EXPECT_EQ(on(odd, "0", 20).count, 2U) << odd;
  }
  EXPECT_EQ(on("8(x2),4", "3", 20).count, 2U) << "no such node";
  EXPECT_EQ(on("8(x2),4", "", 20).count, 2U) << "which node is this?";
}

TEST_F(NodeRanksTest, WhatContradictsTheGroupIsNotBelieved) {
  for (const char* odd : {"0", "-1", "eight", "3 ", "+3", "5", "99999999999999999999"}) {
    const NodeRanks found = With({{"LOCAL_WORLD_SIZE", odd}});
    EXPECT_EQ(found.count, 2U) << odd;
    EXPECT_THAT(found.source,
                AllOf(HasSubstr("the names of the ranks' nodes; not by LOCAL_WORLD_SIZE="), HasSubstr(odd)));
  }
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "9"}, {"WORLD_SIZE", "8"}}).count, 2U);
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "1"}, {"WORLD_SIZE", "2"}}).count, 2U) << "the group has 4";
  // Launched once a node, a script has started the ranks itself: 4 on each of 4 nodes.
  const Variables launched = {{"SLURM_STEP_TASKS_PER_NODE", "1(x4)"}, {"SLURM_NODEID", "3"}, {"SLURM_PROCID", "3"}};
  EXPECT_THAT(With(launched).source, HasSubstr("SLURM_PROCID is 3, the rank in the group is 1"));
  EXPECT_EQ(With(launched).count, 2U);
  EXPECT_THAT(With(launched, 3).source, HasSubstr("the launcher has started 4 ranks, the group has 3"));
}

TEST_F(NodeRanksTest, AProcessAloneHasOnlyItsLauncher) {
  EXPECT_EQ(With({}, 1).count, 1U);
  EXPECT_EQ(With({}, 1).source, "");
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "8"}}, 1).count, 8U) << "each of them may save for itself";
  EXPECT_EQ(With({{"SLURM_STEP_TASKS_PER_NODE", "2,8"}, {"SLURM_NODEID", "1"}, {"SLURM_PROCID", "3"}}, 1).count, 8U);
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "9"}, {"WORLD_SIZE", "8"}}, 1).count, 1U);
  EXPECT_EQ(With({{"LOCAL_WORLD_SIZE", "many"}}, 1).source,
            "this process alone; not by LOCAL_WORLD_SIZE=many: no number of ranks on this node");
}

}  // namespace
}  // namespace cairn
