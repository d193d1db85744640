// Ranks over a TCPStore that are killed in the middle of their words: what the others say, and what is on the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "cairn/cairn.h"
#include "cairn/torch.h"
#include "support/forked.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace cairn::literals;
using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kWorld = 3;
constexpr std::uint64_t kSteps = 2;

c10::intrusive_ptr<c10d::TCPStore> OpenStore(int port) {
  c10d::TCPStoreOptions options;
  options.isServer = port == 0;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

int HostStore(const Say& say) {
  const auto store = OpenStore(0);
  say(std::to_string(store->getPort()));
  return ::pause();
}

/// Its process is killed in one of its calls: the first is 1.
struct Death {
  int rank = -1;
  int call = 0;
  /// The store has answered; otherwise it has not heard of the call.
  bool answered = false;
};

/// The store's calls, in one of which this process is killed.
class Mortal {
 public:
  Mortal(const Death& death, int rank) : death_(death), counts_(death.rank == rank) {}

  KeyValueStore Wrap(const KeyValueStore& store) {
    const auto mortal = [this](auto call) {
      return [this, call](const auto&... arguments) {
        const bool now = counts_ && ++calls_ == death_.call;
        if (now && !death_.answered) ::raise(SIGKILL);
        auto result = call(arguments...);
        if (now) ::raise(SIGKILL);
        return result;
      };
    };
    return {.set = mortal(store.set),
            .set_if_absent = mortal(store.set_if_absent),
            .get = mortal(store.get),
            .check = mortal(store.check),
            .wait = mortal(store.wait),
            .add = mortal(store.add),
            .erase = mortal(store.erase)};
  }

 private:
  const Death death_;
  const bool counts_;
  std::atomic<int> calls_{0};
};

/// A tensor of the rank's own and one that all hold, which have the step's number in each element.
struct Tensors {
  explicit Tensors(const std::vector<int>& ranks) {
    for (const int rank : ranks) names.push_back("of rank " + std::to_string(rank));
    names.emplace_back("of all");
    values.resize(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_TRUE(state.Add(names[i], {.data = values[i].data(), .dtype = DType::kI64, .shape = {1024}}).ok());
    }
  }
  std::vector<std::string> names;
  std::vector<std::array<std::int64_t, 1024>> values;
  State state;
};

int RunRank(const Say& say, int rank, int port, const std::string& root, const Death& death, std::uint64_t first) {
  Mortal mortal(death, rank);
  const auto group =
      MakeStoreGroup({.rank = rank, .size = kWorld, .name = "run7", .open_timeout = 5s, .close_timeout = 1s},
                     [&, port]() -> Result<KeyValueStore> { return mortal.Wrap(WrapStore(OpenStore(port))); });
  Tensors tensors({rank});
  const auto checkpointer =
      Checkpointer::Open({.root = root, .group = *group, .group_timeout = 1s, .host_memory_bytes = 64_MiB});
  if (!checkpointer.ok()) {
    say("open: " + checkpointer.status().ToString());
    return 1;
  }
  for (std::uint64_t step = first; step < first + kSteps; ++step) {
    for (auto& values : tensors.values) values.fill(static_cast<std::int64_t>(step));
    const auto save = (*checkpointer)->Save(step, tensors.state, {.replicated = {.tensors = {"of all"}}});
    const Status status = save.ok() ? save->WaitDurable() : save.status();
    if (status.ok()) say("durable " + std::to_string(step));
    if (!status.ok()) say("step " + std::to_string(step) + ": " + status.ToString());
    if (!status.ok()) return 1;
  }
  return 0;
}

/// Says the newest step, 0 if there is none, once it has found that nothing else is in it.
int ReadNewest(const Say& say, const std::string& root) {
  Tensors tensors({0, 1, 2});
  const auto checkpointer = Checkpointer::Open({.root = root, .read_only = true, .host_memory_bytes = 64_MiB});
  if (!checkpointer.ok()) return 1;
  const auto restored = (*checkpointer)->Restore(Latest(), tensors.state);
  if (restored.status().code() == StatusCode::kNotFound) {
    say("0");
    return 0;
  }
  if (!restored.ok()) return 2;
  for (const auto& values : tensors.values) {
    for (const std::int64_t value : values) {
      if (value != static_cast<std::int64_t>(restored->step)) return 3;
    }
  }
  say(std::to_string(restored->step));
  return 0;
}

class TorchGroup : public testing::Test {
 protected:
  std::vector<Forked::End> RunRanks(const Death& death, std::uint64_t first) {
    std::vector<std::unique_ptr<Forked>> ranks;
    for (int rank = 0; rank < kWorld; ++rank) {
      ranks.push_back(std::make_unique<Forked>(
          [&, rank](const Say& say) { return RunRank(say, rank, port_, root_.path(), death, first); }));
    }
    std::vector<Forked::End> ends;
    for (const auto& rank : ranks) ends.push_back(rank->Wait(Deadline::In(20s)));
    return ends;
  }
  std::uint64_t Newest() {
    const auto end = Forked([&](const Say& say) { return ReadNewest(say, root_.path()); }).Wait(Deadline::In(20s));
    EXPECT_EQ(end.value, 0);
    return end.lines.empty() ? 0 : std::stoull(end.lines.front());
  }

  const TempDir root_;
  Forked host_{HostStore};
  const int port_ = std::stoi(host_.NextLine(Deadline::In(20s)).value_or("0"));
};

std::string Lines(const Forked::End& end) {
  std::string all;
  for (const std::string& line : end.lines) all += line + "\n";
  return all;
}

TEST_F(TorchGroup, RankThatIsKilledInAnyCallIsNamedAndTheJobStartsAgainInTheSameStore) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 3; ++round) {
    const Death death = {.rank = static_cast<int>(random() % kWorld),
                         .call = 1 + static_cast<int>(random() % 30),
                         .answered = random() % 2 == 0};
    SCOPED_TRACE("rank " + std::to_string(death.rank) + " in call " + std::to_string(death.call) +
                 (death.answered ? ", answered" : ""));
    const std::uint64_t before = Newest();

    const auto ends = RunRanks(death, before + 1);

    const std::uint64_t after = Newest();
    const bool died = ends[static_cast<std::size_t>(death.rank)].how == Forked::How::kKilled;
    for (int rank = 0; rank < kWorld; ++rank) {
      const Forked::End& end = ends[static_cast<std::size_t>(rank)];
      EXPECT_NE(end.how, Forked::How::kTimedOut) << "rank " << rank << ": " << Lines(end);
      for (std::uint64_t step = after + 1; step <= before + kSteps; ++step) {
        EXPECT_THAT(Lines(end), Not(HasSubstr("durable " + std::to_string(step))));
      }
      if (rank == death.rank || end.value == 0) continue;
      EXPECT_TRUE(died) << Lines(end);
      EXPECT_THAT(Lines(end), AnyOf(HasSubstr("rank " + std::to_string(death.rank)),
                                    HasSubstr(death.rank == 0 ? "from the coordinator" : "rank")));
    }
    const auto again = std::chrono::steady_clock::now();
    for (const Forked::End& end : RunRanks({}, after + 1)) EXPECT_EQ(end.value, 0) << Lines(end);
    EXPECT_EQ(Newest(), after + kSteps);
    EXPECT_LT(std::chrono::steady_clock::now() - again, 10s);
  }
}

TEST(TorchFileStore, WithoutTheKeyInTimeIsNotLost) {
  const TempDir dir;
  const KeyValueStore store = WrapStore(c10::make_intrusive<c10d::FileStore>(dir / "store", 1));

  const Result<bool> there = store.wait("key", 1s);

  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_FALSE(*there);
}

}  // namespace
}  // namespace cairn
