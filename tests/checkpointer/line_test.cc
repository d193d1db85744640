#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cairn/cairn.h"
#include "support/tensors.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Saving twice, rolling back, saving on, retention and pins on real folders, with reopening in between.
class Line : public testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open(std::uint64_t keep_last = 0, std::uint64_t keep_every = 0) {
    checkpointer_.reset();
    auto opened = Checkpointer::Open({.root = dir_ / "run",
                                      .keep_last = keep_last,
                                      .keep_every = keep_every,
                                      .host_memory_bytes = 4_MiB,
                                      .chunk_bytes = 1_MiB,
                                      .queue_depth = 2});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpointer_ = *std::move(opened);
  }
  Status Save(std::uint64_t step, std::uint64_t seed, IfExists if_exists = IfExists::kFail) {
    EXPECT_TRUE(checkpointer_->Fence().ok());
    tensors_.Fill(seed);
    const auto save = checkpointer_->Save(step, tensors_.state(), {.if_exists = if_exists});
    return save.ok() ? save->WaitDurable(Deadline::In(std::chrono::seconds(60))) : save.status();
  }
  std::vector<std::uint64_t> Steps() {
    EXPECT_TRUE(checkpointer_->Drain().ok());
    std::vector<std::uint64_t> steps;
    for (const CheckpointInfo& info : *checkpointer_->List()) steps.push_back(info.step);
    return steps;
  }
  void Damage(std::uint64_t step) {
    const std::string manifest = checkpointer_->List()->back().path + "/../" + StepFolder(step) + "/manifest.json";
    std::filesystem::resize_file(manifest, 10);
  }
  static std::string StepFolder(std::uint64_t step) {
    std::string digits = std::to_string(step);
    return "step-" + std::string(20 - digits.size(), '0') + digits;
  }

  const TempDir dir_;
  Tensors tensors_ = Tensors::Many(3, 1000);
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Line, AnEmptyRootHasNothingToRestore) {
  EXPECT_EQ(checkpointer_->Restore(Latest(), tensors_.state()).status().code(), StatusCode::kNotFound);
}

TEST_F(Line, SavingAStepTwiceFailsAndWritesNothing) {
  ASSERT_TRUE(Save(5, 1).ok());

  EXPECT_EQ(Save(5, 2).code(), StatusCode::kAlreadyExists);

  ASSERT_TRUE(checkpointer_->Restore(Step(5), tensors_.state()).ok());
  EXPECT_TRUE(tensors_.Holds(1));
}

TEST_F(Line, ReplacingAStepKeepsOnlyTheNewOne) {
  ASSERT_TRUE(Save(5, 1).ok());

  ASSERT_TRUE(Save(5, 2, IfExists::kReplace).ok());

  EXPECT_THAT(Steps(), ElementsAre(5));
  ASSERT_TRUE(checkpointer_->Restore(Step(5), tensors_.state()).ok());
  EXPECT_TRUE(tensors_.Holds(2));
}

TEST_F(Line, ACrashNeverResumesFromTheAbandonedLine) {
  for (const std::uint64_t step : {10, 20, 30}) ASSERT_TRUE(Save(step, step).ok());
  ASSERT_TRUE(checkpointer_->Restore(Step(10), tensors_.state()).ok());
  ASSERT_TRUE(Save(15, 150).ok());

  Open();
  const auto restored = checkpointer_->Restore(Latest(), tensors_.state());

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 15U);
  EXPECT_EQ(restored->line, 1U);
  EXPECT_TRUE(tensors_.Holds(150));
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30, 15));
  EXPECT_EQ(checkpointer_->List()->back().parent, 10U);
}

TEST_F(Line, EachRestoreBeginsOne) {
  for (const std::uint64_t step : {10, 20, 30}) {
    ASSERT_TRUE(Save(step, step).ok());
    if (step == 20) Open();
    ASSERT_TRUE(checkpointer_->Restore(Latest(), tensors_.state()).ok());
    EXPECT_EQ(Save(step, 0).code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(Save(step - 1, 0).code(), StatusCode::kFailedPrecondition);
  }

  const auto list = checkpointer_->List();

  ASSERT_TRUE(list.ok() && list->size() == 3) << list.status();
  for (std::uint64_t line = 0; line < 3; ++line) {
    EXPECT_EQ(list->at(line).line, line);
    EXPECT_EQ(list->at(line).root, list->front().root);
    EXPECT_FALSE(list->at(line).copy);
  }
  EXPECT_THAT(list->front().root, SizeIs(36));
}

// A copy of one that was removed may still be somewhere.
TEST_F(Line, EachOpeningBeginsOneThatNoRestoreNeedsToo) {
  for (std::uint64_t line = 0; line < 3; ++line) {
    if (line == 2) {
      ASSERT_TRUE(checkpointer_->Restore(Folder(dir_ / "copy"), tensors_.state()).ok());
    }
    ASSERT_TRUE(Save(10 + line, line).ok());
    EXPECT_EQ(checkpointer_->List()->front().line, line);
    EXPECT_EQ(checkpointer_->List()->front().parent, line == 2 ? std::optional<std::uint64_t>(11) : std::nullopt);
    std::filesystem::copy(checkpointer_->List()->front().path, dir_ / "copy",
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    ASSERT_TRUE(checkpointer_->Remove(10 + line).ok());
    Open();
  }
}

TEST_F(Line, AStepOfTheAbandonedLineMayBeSavedAgain) {
  for (const std::uint64_t step : {10, 20}) ASSERT_TRUE(Save(step, step).ok());
  ASSERT_TRUE(checkpointer_->Restore(Step(10), tensors_.state()).ok());

  ASSERT_TRUE(Save(20, 200).ok());

  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  ASSERT_TRUE(checkpointer_->Restore(Latest(), tensors_.state()).ok());
  EXPECT_TRUE(tensors_.Holds(200));
}

TEST_F(Line, SavingBelowTheNewestFailsAfterReopening) {
  ASSERT_TRUE(Save(20, 1).ok());
  Open();

  EXPECT_EQ(Save(19, 2).code(), StatusCode::kFailedPrecondition);
}

TEST_F(Line, StepsMayBeAnyU64) {
  for (const std::uint64_t step : {9ULL, 10ULL, 100ULL, ~0ULL}) ASSERT_TRUE(Save(step, step).ok());

  EXPECT_THAT(Steps(), ElementsAre(9, 10, 100, ~0ULL));
}

TEST_F(Line, RetentionKeepsTheLastEveryKthAndThePinned) {
  Open(2, 100);
  ASSERT_TRUE(Save(90, 1).ok());
  ASSERT_TRUE(checkpointer_->Pin(90).ok());
  for (const std::uint64_t step : {100, 110, 120, 130}) ASSERT_TRUE(Save(step, step).ok());

  EXPECT_THAT(Steps(), ElementsAre(90, 100, 120, 130));
  ASSERT_TRUE(checkpointer_->Unpin(90).ok());
  ASSERT_TRUE(Save(140, 140).ok());
  EXPECT_THAT(Steps(), ElementsAre(100, 130, 140));
}

TEST_F(Line, PinsOutliveTheCheckpointer) {
  Open(1);
  ASSERT_TRUE(Save(1, 1).ok());
  ASSERT_TRUE(checkpointer_->Pin(1).ok());
  Open(1);
  ASSERT_TRUE(Save(2, 2).ok());
  ASSERT_TRUE(Save(3, 3).ok());

  EXPECT_THAT(Steps(), ElementsAre(1, 3));
  EXPECT_TRUE(checkpointer_->List()->front().pinned);
}

// Pinned by another process, such as an evaluation job: the file counts, even if the writer does not know it.
TEST_F(Line, RetentionKeepsWhatOthersPinned) {
  Open(1);
  ASSERT_TRUE(Save(1, 1).ok());
  std::ofstream(checkpointer_->List()->front().path + "/pinned").close();
  ASSERT_TRUE(Save(2, 2).ok());
  ASSERT_TRUE(Save(3, 3).ok());

  EXPECT_THAT(Steps(), ElementsAre(1, 3));
}

TEST_F(Line, AReplacedStepStaysPinned) {
  Open(1);
  ASSERT_TRUE(Save(1, 1).ok());
  ASSERT_TRUE(checkpointer_->Pin(1).ok());
  ASSERT_TRUE(Save(1, 2, IfExists::kReplace).ok());
  ASSERT_TRUE(Save(2, 3).ok());
  ASSERT_TRUE(Save(3, 4).ok());

  EXPECT_THAT(Steps(), ElementsAre(1, 3));
  EXPECT_TRUE(checkpointer_->List()->front().pinned);
  ASSERT_TRUE(checkpointer_->Restore(Step(1), tensors_.state()).ok());
  EXPECT_TRUE(tensors_.Holds(2));
}

// With keep_last a step may be gone before a later Pin of it.
TEST_F(Line, ASaveThatPinsLosesNoStepToRetention) {
  Open(1);
  ASSERT_TRUE(Save(1, 1).ok());
  ASSERT_TRUE(Save(2, 2).ok());
  ASSERT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(checkpointer_->Pin(1).code(), StatusCode::kNotFound);

  for (std::uint64_t step = 3; step < 9; ++step) {
    ASSERT_TRUE(checkpointer_->Save(step, tensors_.state(), {.pin = true}).ok());
  }

  EXPECT_THAT(Steps(), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_TRUE(checkpointer_->List()->front().pinned);
  ASSERT_TRUE(checkpointer_->Unpin(3).ok());
  ASSERT_TRUE(checkpointer_->Save(8, tensors_.state(), {.if_exists = IfExists::kReplace, .pin = true}).ok());
  EXPECT_THAT(Steps(), ElementsAre(4, 5, 6, 7, 8));
}

TEST_F(Line, RemoveRemovesPinnedOnesToo) {
  ASSERT_TRUE(Save(1, 1).ok());
  ASSERT_TRUE(checkpointer_->Pin(1).ok());

  EXPECT_TRUE(checkpointer_->Remove(1).ok());
  EXPECT_EQ(checkpointer_->Remove(1).code(), StatusCode::kNotFound);
  EXPECT_EQ(checkpointer_->Pin(1).code(), StatusCode::kNotFound);
  EXPECT_THAT(Steps(), SizeIs(0));
}

TEST_F(Line, DamagedNewestIsCorruptAndNamedByFallBack) {
  for (const std::uint64_t step : {10, 20}) ASSERT_TRUE(Save(step, step).ok());
  Damage(20);

  const Status status = checkpointer_->Restore(Latest(), tensors_.state()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr(StepFolder(20)));

  const auto restored = checkpointer_->Restore(Latest().FallBack(), tensors_.state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 10U);
  ASSERT_THAT(restored->passed_over, SizeIs(1));
  EXPECT_THAT(restored->passed_over[0], HasSubstr(StepFolder(20)));
  EXPECT_TRUE(tensors_.Holds(10));
  EXPECT_TRUE(Save(20, 200).ok()) << "training continues and replaces the damaged one";
  EXPECT_EQ(checkpointer_->Restore(Latest(), tensors_.state())->step, 20U);
}

TEST_F(Line, RetentionDoesNotCountDamageFoundByARestore) {
  Open(/*keep_last=*/2);
  for (const std::uint64_t step : {10, 20}) ASSERT_TRUE(Save(step, step).ok());
  std::filesystem::resize_file(checkpointer_->List()->back().path + "/shard-00000.safetensors", 10);
  ASSERT_EQ(checkpointer_->Restore(Latest().FallBack(), tensors_.state())->step, 10U);

  ASSERT_TRUE(Save(30, 30).ok());
  const std::vector<std::uint64_t> with_one_newer = Steps();
  ASSERT_TRUE(Save(40, 40).ok());
  const std::vector<std::uint64_t> with_two_newer = Steps();

  EXPECT_EQ(with_one_newer, (std::vector<std::uint64_t>{10, 20, 30}));
  EXPECT_EQ(with_two_newer, (std::vector<std::uint64_t>{20, 30, 40}));
}

TEST_F(Line, RetentionDoesNotCountAMissingShardAtOpen) {
  Open(/*keep_last=*/2);
  for (const std::uint64_t step : {10, 20}) ASSERT_TRUE(Save(step, step).ok());
  std::filesystem::resize_file(checkpointer_->List()->back().path + "/shard-00000.safetensors", 10);

  Open(/*keep_last=*/2);
  ASSERT_TRUE(Save(30, 30).ok());
  const std::vector<std::uint64_t> with_one_newer = Steps();
  ASSERT_TRUE(Save(40, 40).ok());

  EXPECT_EQ(with_one_newer, (std::vector<std::uint64_t>{10, 20, 30}));
  EXPECT_EQ(Steps(), (std::vector<std::uint64_t>{20, 30, 40}));
}

TEST_F(Line, CopiedFolderRestores) {
  ASSERT_TRUE(Save(10, 10).ok());
  std::filesystem::copy(checkpointer_->List()->front().path, dir_ / "elsewhere",
                        std::filesystem::copy_options::recursive);

  std::vector<std::string> told;
  auto reader = Checkpointer::Open({.root = dir_ / "run",
                                    .read_only = true,
                                    .on_event = [&](const Event& event) { told.push_back(event.message); },
                                    .host_memory_bytes = 32_MiB});
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Restore(Step(10), tensors_.state()).ok());
  const auto restored = (*reader)->Restore(Folder(dir_ / "elsewhere"), tensors_.state());
  reader->reset();

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 10U);
  const auto copies = std::ranges::count_if(told, [](const auto& one) { return one.ends_with(", a copy"); });
  EXPECT_EQ(copies, 1);
  EXPECT_TRUE(checkpointer_->Inspect(Folder(dir_ / "elsewhere"))->info.copy);
  EXPECT_FALSE(checkpointer_->Inspect(Folder(checkpointer_->List()->front().path))->info.copy);
  EXPECT_FALSE(checkpointer_->Inspect(Step(10))->info.copy);
}

TEST_F(Line, InspectReturnsNamesShapesAndValues) {
  ASSERT_TRUE(tensors_.state().Set("lr", 0.1).ok());
  ASSERT_TRUE(Save(10, 10).ok());

  const auto details = checkpointer_->Inspect(Latest());

  ASSERT_TRUE(details.ok()) << details.status();
  ASSERT_THAT(details->tensors, SizeIs(3));
  EXPECT_EQ(details->tensors[0].name, "t0");
  EXPECT_THAT(details->tensors[0].shape, ElementsAre(1000));
  EXPECT_EQ(details->values.at(0).at("lr"), Value(0.1));
  EXPECT_TRUE(checkpointer_->Verify(Latest()).ok());
}

TEST_F(Line, RestoringWithoutResumeChangesNothing) {
  ASSERT_TRUE(Save(10, 10).ok());
  ASSERT_TRUE(Save(20, 20).ok());

  ASSERT_TRUE(checkpointer_->Restore(Step(10), tensors_.state(), {.resume = false}).ok());
  EXPECT_TRUE(tensors_.Holds(10));

  EXPECT_EQ(Save(15, 15).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Save(30, 30).ok());
  const auto list = checkpointer_->List();
  ASSERT_TRUE(list.ok() && list->size() == 3) << list.status();
  EXPECT_EQ(list->back().line, 0U);
}

TEST_F(Line, ReaderTakesNoLockAndWritesNothing) {
  ASSERT_TRUE(Save(10, 10).ok());

  auto reader = Checkpointer::Open({.root = dir_ / "run", .read_only = true, .host_memory_bytes = 32_MiB});

  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Restore(Latest(), tensors_.state()).ok());
  EXPECT_EQ((*reader)->Save(11, tensors_.state()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ((*reader)->Remove(10).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Save(11, 11).ok()) << "the writer is not affected";
}

}  // namespace
}  // namespace cairn
