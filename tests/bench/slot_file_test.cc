#include "bench/strategies/slot_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <future>
#include <string>

#include "base/bytes.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kBytes = 3 * kBlock;

void Put(SlotFile& file, std::uint64_t step) {
  const Result<int> slot = file.Take();
  ASSERT_TRUE(slot.ok()) << slot.status();
  std::memset(file.slot(*slot).data(), static_cast<int>(step), kBytes);
  ASSERT_TRUE(file.Persist(*slot).ok());
  const Result<SlotFile::Recorded> recorded = file.Record(*slot, step);
  ASSERT_TRUE(recorded.ok() && recorded->newest);
  if (recorded->unused.has_value()) file.Free(*recorded->unused);
}

TEST(SlotFileTest, ReopeningFindsTheNewestStep) {
  const TempDir directory;
  {
    const auto file = *SlotFile::Open(directory / "slots", 2, kBytes);
    EXPECT_FALSE(file->newest().has_value());
    for (std::uint64_t step = 1; step <= 5; ++step) Put(*file, step);
  }

  const auto file = *SlotFile::Open(directory / "slots", 2, kBytes);

  ASSERT_TRUE(file->newest().has_value());
  EXPECT_EQ(file->newest()->step, 5U);
  EXPECT_EQ(file->slot(file->newest()->slot)[kBytes - 1], std::byte{5});
}

TEST(SlotFileTest, OneThatIsHeldIsOpenedOnceItIsFree) {
  const TempDir directory;
  auto held = *SlotFile::Open(directory / "slots", 2, kBytes);
  ASSERT_EQ(SlotFile::Open(directory / "slots", 2, kBytes).status().code(), StatusCode::kFailedPrecondition);

  auto opened = std::async(std::launch::async, [&] { return SlotFile::OpenOnceFree(directory / "slots", 2, kBytes); });
  held.reset();

  EXPECT_TRUE(opened.get().ok());
}

TEST(SlotFileTest, ATornRootFallsBackToThePreviousStep) {
  const TempDir directory;
  {
    const auto file = *SlotFile::Open(directory / "slots", 3, kBytes);
    Put(*file, 1);
    Put(*file, 2);
  }
  {
    std::fstream file(directory / "slots", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9);  // Damages the step in the second record, which is in the first block.
    file.put('x');
  }

  const auto file = *SlotFile::Open(directory / "slots", 3, kBytes);

  ASSERT_TRUE(file->newest().has_value());
  EXPECT_EQ(file->newest()->step, 1U);
}

TEST(SlotFileTest, AnOlderStepThatEndsLaterDoesNotReplaceANewer) {
  const TempDir directory;
  const auto file = *SlotFile::Open(directory / "slots", 3, kBytes);
  const int older = *file->Take();
  Put(*file, 2);

  const Result<SlotFile::Recorded> recorded = file->Record(older, 1);

  ASSERT_TRUE(recorded.ok());
  EXPECT_FALSE(recorded->newest);
  EXPECT_EQ(recorded->unused, older);
  EXPECT_EQ(file->newest()->step, 2U);
}

TEST(SlotFileTest, GoesBackToTheStepBefore) {
  const TempDir directory;
  {
    const auto file = *SlotFile::Open(directory / "slots", 3, kBytes);
    for (std::uint64_t step = 1; step <= 3; ++step) Put(*file, step);
    EXPECT_EQ(file->GoBackTo(1).code(), StatusCode::kNotFound);

    ASSERT_TRUE(file->GoBackTo(2).ok());
    Put(*file, 3);
    ASSERT_TRUE(file->GoBackTo(2).ok());
  }

  const auto file = *SlotFile::Open(directory / "slots", 3, kBytes);

  ASSERT_TRUE(file->newest().has_value());
  EXPECT_EQ(file->newest()->step, 2U);
  EXPECT_EQ(file->slot(file->newest()->slot)[kBytes - 1], std::byte{2});
}

TEST(SlotFileTest, RefusesAFileOfAnotherShape) {
  const TempDir directory;
  ASSERT_TRUE(SlotFile::Open(directory / "slots", 2, kBytes).ok());

  EXPECT_EQ(SlotFile::Open(directory / "slots", 3, kBytes).status().code(), StatusCode::kCorrupt);
}

TEST(SlotFileTest, RefusesAFileThatIsHeld) {
  const TempDir directory;
  {
    const auto held = *SlotFile::Open(directory / "slots", 2, kBytes);

    EXPECT_EQ(SlotFile::Open(directory / "slots", 2, kBytes).status().code(), StatusCode::kFailedPrecondition);
  }

  EXPECT_TRUE(SlotFile::Open(directory / "slots", 2, kBytes).ok());
}

}  // namespace
}  // namespace cairn::bench
