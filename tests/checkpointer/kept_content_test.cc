// Frozen tensors into which nobody counts writes: each save compares them with the file of before, links it if nothing
// has changed, and writes another one if something has.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "checkpointer/kept_run.h"
#include "support/full_disk.h"
#include "support/small_run.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The tensor has two checksum blocks, of which the second begins with this element.
constexpr std::size_t kSecondBlock = (1U << 20) / sizeof(std::uint64_t);
constexpr std::size_t kElements = kFrozenBytes / sizeof(std::uint64_t);

class KeptContent : public Kept {
 protected:
  KeptContent() { frozen_.version = std::nullopt; }

  /// What the checkpoint has of the frozen tensor is what was saved.
  void ExpectSaved(std::uint64_t step, const FrozenTensor& saved) {
    EXPECT_EQ(checkpointer_->Verify(Step(step)), Status::Ok());
    FrozenTensor read;
    ASSERT_TRUE(ReadAlone(*checkpointer_, Step(step), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read == saved) << "step " << step;
  }
  /// Overwrites a byte of a file.
  static void Damage(const std::string& path, std::int64_t at) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    const char other = 99;
    ASSERT_EQ(::pwrite(fd.get(), &other, 1, at), 1);
  }
  /// Where its data begins.
  [[nodiscard]] std::int64_t DataBegin(std::uint64_t step) const {
    return static_cast<std::int64_t>(KeptOf(step).front().length - kFrozenBytes);
  }
};

TEST_F(KeptContent, IsLinkedIfNothingHasChanged) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  const std::uint64_t first = written_;

  for (std::uint64_t step = 2; step <= 4; ++step) {
    ASSERT_EQ(Save(step), Status::Ok());
    EXPECT_GT(first - written_, kFrozenBytes);
    EXPECT_TRUE(Linked(1, step));
  }

  EXPECT_EQ(std::filesystem::hard_link_count(KeptPath(4)), 4U);
  EXPECT_EQ(KeptOf(4), KeptOf(1));
  ExpectWhole();
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(KeptContent, InAnotherMemoryIsLinkedToo) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  FrozenTensor other;
  other.version = std::nullopt;
  other.Fill(kSeed);
  const auto small = SmallState(2);

  ASSERT_EQ(Save(2, other.With(small->state())), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  ExpectWhole();
}

// Each bit of it: the first, the last, those on both sides of the border of two blocks.
TEST_F(KeptContent, IsWrittenAnewWhereverOneElementDiffers) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  std::vector<FrozenTensor> saved{frozen_};
  std::uint64_t step = 1;
  for (const std::size_t element : {std::size_t{0}, kSecondBlock - 1, kSecondBlock, kElements - 1}) {
    frozen_.Fill(kSeed + step, element);
    frozen_.Fill(kSeed, element + 1);
    saved.push_back(frozen_);

    ASSERT_EQ(Save(++step), Status::Ok());
    EXPECT_FALSE(Linked(step - 1, step)) << "element " << element;
    saved.push_back(frozen_);
    ASSERT_EQ(Save(++step), Status::Ok());
    EXPECT_TRUE(Linked(step - 1, step));
  }

  for (std::uint64_t one = 1; one <= step; ++one) ExpectSaved(one, saved[one - 1]);
  EXPECT_THAT(Leftovers(root()), testing::Each(testing::StartsWith(".spare-")));
  for (std::uint64_t one = 1; one <= step; ++one) {
    EXPECT_THAT(KeptOf(one), SizeIs(1));
    const std::filesystem::directory_iterator files(Folder(one));
    EXPECT_EQ(std::distance(begin(files), end(files)), 3) << "the manifest, the shard and a kept file";
  }
  EXPECT_THAT(warnings(), IsEmpty()) << "it was seen";
}

// The chunk that was equal is gone by then, and the tensor may change.
TEST_F(KeptContent, NothingIsReadFromTheTensorOnceItIsCaptured) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  frozen_.Fill(kSeed + 1, kSecondBlock);
  const FrozenTensor saved = frozen_;
  const auto small = SmallState(2);
  const FaultGate gate = plan_->Hold({.op = IoOp::kFallocate, .path = "/kept-"});

  const auto save = checkpointer_->Save(2, frozen_.With(small->state()));
  ASSERT_TRUE(save.ok() && gate.WaitHeld(Soon()));
  ASSERT_EQ(save->WaitCaptured(Soon()), Status::Ok());
  frozen_.Fill(kSeed + 2);
  gate.Release();
  ASSERT_EQ(save->WaitDurable(Soon()), Status::Ok());

  ExpectSaved(2, saved);
  EXPECT_GT(save->stats().bytes_written, kFrozenBytes) << "what was copied counts";
}

TEST_F(KeptContent, ADamagedFileIsNotCopied) {
  // One after the other, so that the first block is found equal before the second is found to differ.
  Open(0, [](Options& options, Wiring& /*wiring*/) { options.worker_threads = 1; });
  ASSERT_EQ(Save(1), Status::Ok());
  Damage(KeptPath(1), DataBegin(1) + 7);
  frozen_.Fill(kSeed + 1, kSecondBlock);

  EXPECT_EQ(Save(2).code(), StatusCode::kCorrupt);
  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_EQ(KeptOf(3).front().kept->step, 3U) << "written anew";
  ExpectSaved(3, frozen_);
}

TEST_F(KeptContent, IsWrittenAnewEverySoOftenAndAccusesNobody) {
  frozen_every_ = 3;
  Open(2);
  for (std::uint64_t step = 1; step <= 4; ++step) ASSERT_EQ(Save(step), Status::Ok());
  EXPECT_EQ(KeptOf(3).front().kept->step, 1U);
  EXPECT_EQ(KeptOf(4).front().kept->step, 4U);
  for (const std::uint64_t step : {5, 6}) ASSERT_EQ(Save(step), Status::Ok());
  EXPECT_TRUE(Linked(4, 6));
  frozen_.Fill(kSeed + 1);

  ASSERT_EQ(Save(7), Status::Ok());

  EXPECT_EQ(KeptOf(7).front().kept->step, 7U);
  EXPECT_THAT(warnings(), IsEmpty());
  EXPECT_THAT(Suspects(), IsEmpty());
  ExpectSaved(7, frozen_);
}

TEST_F(KeptContent, WithoutChecksumsIsWrittenWithTheRest) {
  Open(0, [](Options& options, Wiring& /*wiring*/) { options.checksums = false; });
  ASSERT_EQ(Save(1), Status::Ok());
  frozen_.Fill(kSeed + 1);

  ASSERT_EQ(Save(2), Status::Ok());

  EXPECT_THAT(KeptOf(2), IsEmpty());
  ExpectSaved(2, frozen_);
}

// A whole model must not be read for a little that nobody counts.
TEST_F(KeptContent, ALittleBesideWhatIsCountedIsWrittenWithTheRest) {
  Open();
  FrozenTensor counted(1);
  counted.Fill(kSeed);
  std::vector<float> scale(1000, 1);
  const auto save = [&](std::uint64_t step) {
    const auto small = SmallState(step);
    State state = counted.With(small->state());
    EXPECT_EQ(state.Add("scale", {.data = scale.data(), .shape = {1000}, .frozen = true}), Status::Ok());
    return Save(step, state);
  };
  ASSERT_EQ(save(1), Status::Ok());
  std::ranges::fill(scale, 2.0F);
  counted.Fill(kSeed + 1);  // Whoever looks at it would see that.

  ASSERT_EQ(save(2), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  std::vector<float> read(1000);
  State wanted;
  ASSERT_EQ(wanted.Add("scale", {.data = read.data(), .shape = {1000}}), Status::Ok());
  ASSERT_TRUE(ReadAlone(*checkpointer_, Step(2), wanted, {.resume = false}).ok());
  EXPECT_EQ(read, scale);
}

TEST_F(KeptContent, AnotherSetOfTensorsIsWrittenAnew) {
  Open();
  FrozenTensor more(1);
  more.version = std::nullopt;
  more.Fill(kSeed);
  const auto save = [&](std::uint64_t step, bool with) {
    const auto small = SmallState(step);
    const State state = frozen_.With(small->state());
    return Save(step, with ? more.With(state) : state);
  };

  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(save(step, true), Status::Ok());
  for (const std::uint64_t step : {3, 4}) ASSERT_EQ(save(step, false), Status::Ok());
  frozen_.version = 1;
  for (const std::uint64_t step : {5, 6}) ASSERT_EQ(save(step, false), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  EXPECT_FALSE(Linked(2, 3));
  EXPECT_TRUE(Linked(3, 4));
  EXPECT_FALSE(Linked(4, 5)) << "nobody counted before";
  EXPECT_TRUE(Linked(5, 6));
  ExpectWhole();
}

TEST_F(KeptContent, WhatCannotBeLinkedIsCopiedAndThenReplaced) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  plan_->Fail({.op = IoOp::kLink}, EPERM);
  ASSERT_EQ(Save(2), Status::Ok());
  frozen_.Fill(kSeed + 1, kSecondBlock);

  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_EQ(KeptOf(2).front().kept->step, 1U);
  EXPECT_EQ(KeptOf(3).front().kept->step, 3U);
  EXPECT_THAT(KeptOf(3), SizeIs(1));
  ExpectSaved(3, frozen_);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("step 2: what is frozen was copied")));
}

TEST_F(KeptContent, SavesInFlightLinkAndWriteBesideEachOther) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 1});
  const auto two = SmallState(2);
  const auto three = SmallState(3);
  FrozenTensor other;
  other.version = std::nullopt;
  other.Fill(kSeed + 1);

  const auto links = checkpointer_->Save(2, frozen_.With(two->state()));
  ASSERT_TRUE(links.ok() && gate.WaitHeld(Soon()));
  const auto writes = checkpointer_->Save(3, other.With(three->state()));
  ASSERT_TRUE(writes.ok() && writes->WaitCaptured(Soon()).ok());
  gate.Release();
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  ASSERT_EQ(Save(4), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  EXPECT_FALSE(Linked(2, 3));
  EXPECT_FALSE(Linked(3, 4)) << "it differs from step 3's";
  ExpectSaved(2, frozen_);
  ExpectSaved(3, other);
  ExpectSaved(4, frozen_);
}

TEST_F(KeptContent, OneRankWritesAndAnotherLinks) {
  const auto ranks = OpenRanks(2, SmallOptions(root()));
  ASSERT_EQ(ranks.size(), 2U);
  std::array frozen{FrozenTensor(0), FrozenTensor(1)};
  for (FrozenTensor& one : frozen) {
    one.version = std::nullopt;
    one.Fill(kSeed);
  }
  for (std::uint64_t step = 1; step <= 3; ++step) {
    if (step == 2) frozen[1].Fill(kSeed + 1, kSecondBlock);
    std::vector<std::unique_ptr<Tensors>> states;
    for (int rank = 0; rank < 2; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      states.push_back(SmallState(step, rank));
      ASSERT_TRUE(ranks[at]->Save(step, frozen[at].With(states.back()->state())).ok());
    }
    for (const auto& rank : ranks) ASSERT_EQ(rank->Drain(Soon()), Status::Ok());
  }

  std::vector<std::uint64_t> written;
  for (const ManifestShard& kept : KeptOf(3)) written.push_back(kept.kept->step);
  EXPECT_THAT(written, ElementsAre(1, 2));
  EXPECT_EQ(ranks[0]->Verify(Step(3)), Status::Ok());
  for (int rank = 0; rank < 2; ++rank) {
    FrozenTensor read(rank);
    ASSERT_TRUE(ReadAlone(*ranks[0], Step(3), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read == frozen.at(static_cast<std::size_t>(rank)));
  }
}

// There is room for a shard, and not for a second kept file.
TEST_F(KeptContent, WithoutRoomFailsTheSaveAndNoOther) {
  const auto disk = FullDisk::Make();
  Open(0, [&](Options& options, Wiring& wiring) {
    options.recycle = false;
    wiring.wrap_queue = [&](IoQueueFactory inner) { return plan_->Wrap(disk->Wrap(std::move(inner))); };
  });
  ASSERT_EQ(Save(1), Status::Ok());
  disk->Limit({.blocks = 1});
  frozen_.Fill(kSeed + 1, kSecondBlock);
  const Status status = Save(2);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_THAT(status.message(), HasSubstr("/kept-00000-"));
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  frozen_.Fill(kSeed);
  disk->Limit({.blocks = 2});

  ASSERT_EQ(Save(3), Status::Ok()) << "linked, it needs none";
  frozen_.Fill(kSeed + 1, kSecondBlock);
  disk->Limit({});
  ASSERT_EQ(Save(4), Status::Ok());

  EXPECT_TRUE(Linked(1, 3));
  ExpectSaved(4, frozen_);
}

// The checkpoint before goes, and with it the only name of its kept file.
TEST_F(KeptContent, WaitsForTheRoomOfWhatIsBeingRemoved) {
  const auto disk = FullDisk::Make();
  Open(1, [&](Options& options, Wiring& wiring) {
    options.recycle = false;
    wiring.wrap_queue = [&](IoQueueFactory inner) { return plan_->Wrap(disk->Wrap(std::move(inner))); };
  });
  ASSERT_EQ(Save(1), Status::Ok());
  FrozenTensor other;
  other.version = std::nullopt;
  other.Fill(kSeed + 1);
  const auto two = SmallState(2);
  const auto three = SmallState(3);
  disk->Limit({.blocks = 4});  // Shards and manifests of two, or a kept file more with those of one.
  const FaultGate removal = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-"});

  const auto first = checkpointer_->Save(2, other.With(two->state()));
  ASSERT_TRUE(first.ok() && first->WaitDurable(Soon()).ok());
  ASSERT_TRUE(removal.WaitHeld(Soon()));
  other.Fill(kSeed + 2, kSecondBlock);
  const auto tries = [&] { return plan_->Count({.op = IoOp::kFallocate, .path = "/kept-"}); };
  const std::size_t before = tries();
  const auto second = checkpointer_->Save(3, other.With(three->state()));
  ASSERT_TRUE(second.ok()) << second.status();
  for (const Deadline end = Soon(); tries() == before && !end.passed();) std::this_thread::yield();
  removal.Release();

  ASSERT_EQ(second->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(tries(), before + 2);
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  ExpectSaved(3, other);
}

}  // namespace
}  // namespace cairn
