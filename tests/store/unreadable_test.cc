// How a listing and a reader's lock handle failing or interrupted system calls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>

#include "format/manifest.h"
#include "store/list.h"
#include "store/locks.h"
#include "store/names.h"
#include "store_case.h"
#include "support/hooked_calls.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr std::uint64_t kListed = 100;
constexpr std::array kMediumErrors = {EIO, EUCLEAN, EBADMSG, ENODATA, EREMOTEIO, EILSEQ};
constexpr std::array kOtherErrors = {EACCES, EPERM, EMFILE, ENFILE, ENOMEM, ESTALE, ENXIO, ETIMEDOUT};

class UnreadableTest : public ::testing::Test {
 protected:
  void Save(const TestSave& save) { ASSERT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok()); }
  [[nodiscard]] std::string StepFolder(std::uint64_t step) const { return root_ / StepName(step); }
  /// Makes kListed checkpoints of a manifest only.
  void MakeManifests() const {
    for (std::uint64_t step = 0; step < kListed; ++step) {
      std::filesystem::create_directory(StepFolder(step));
      WriteAll(StepFolder(step) + "/manifest.json", EncodeManifest(ManifestOf({.step = step}, "uuid")));
    }
  }
  /// The steps that `selector` selects, or the error, with `hook` on each call.
  Result<std::vector<std::uint64_t>> Choose(long call, const CallHook& hook, const Selector& selector) {
    Result<std::vector<StoredCheckpoint>> chosen = std::vector<StoredCheckpoint>();
    if (!RunHooked(call, hook, [&] { chosen = ChooseCheckpoints(root_.path(), selector); })) {
      return Status(StatusCode::kUnsupported, "no seccomp");
    }
    if (!chosen.ok()) return chosen.status();
    std::vector<std::uint64_t> steps;
    for (const StoredCheckpoint& checkpoint : *chosen) steps.push_back(checkpoint.info.step);
    return steps;
  }
  void SetUp() override {
    if (!RunHooked(
            SYS_getppid, [](const seccomp_data&) { return 0; }, [] {}))
      GTEST_SKIP() << "seccomp is not permitted";
  }

  TempDir root_;
  std::unique_ptr<IoQueue> queue_ = MakeQueue();
};

TEST_F(UnreadableTest, OnlyMediumErrorsOfAManifestAreCorrupt) {
  Save({.step = 1});
  Save({.step = 2});
  const auto with = [this](int error) {
    // The newest is read last, because names are listed in order.
    int reads = 0;
    return Choose(
        SYS_pread64, [&](const seccomp_data&) { return ++reads >= 2 ? error : 0; }, Latest());
  };

  for (const int error : kMediumErrors) {
    const Status status = with(error).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status;
    EXPECT_THAT(status.message(), HasSubstr(StepName(2) + "/manifest.json"));
  }
  for (const int error : kOtherErrors) {
    const Status status = with(error).status();
    EXPECT_FALSE(status.ok()) << error;
    EXPECT_NE(status.code(), StatusCode::kCorrupt) << status;
  }
}

TEST_F(UnreadableTest, EndlessInterruptionsOfAListingAreAnError) {
  Save({.step = 1});
  int interrupted = 0;
  constexpr int kMany = 1000;

  const auto chosen = Choose(
      SYS_pread64, [&](const seccomp_data&) { return ++interrupted < kMany ? EINTR : 0; }, Latest());

  EXPECT_EQ(chosen.status().code(), StatusCode::kIoError) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr("manifest.json"));
  EXPECT_THAT(interrupted, Le(kMaxRetries + 1));
}

TEST_F(UnreadableTest, FewInterruptionsOfAListingAreRetried) {
  Save({.step = 1});
  int interrupted = 0;

  const auto chosen = Choose(
      SYS_pread64, [&](const seccomp_data&) { return ++interrupted <= kMaxRetries ? EINTR : 0; }, Latest());

  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(*chosen, ElementsAre(1));
}

TEST_F(UnreadableTest, UnreadablePinCountsAsSet) {
  Save({.step = 1});
  const auto pinned_with = [this](int error) {
    Result<StoredCheckpoint> read = StoredCheckpoint();
    int asked = 0;
    EXPECT_TRUE(RunHooked(
        SYS_faccessat2, [&](const seccomp_data&) { return ++asked, error; },
        [&] { read = ReadCheckpointFolder(StepFolder(1)); }));
    EXPECT_GT(asked, 0);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() && read->info.pinned;
  };

  for (const int error : {EIO, EACCES, ESTALE, EMFILE}) EXPECT_TRUE(pinned_with(error)) << error;
  EXPECT_FALSE(pinned_with(ENOENT));
  EXPECT_FALSE(pinned_with(0));
}

TEST_F(UnreadableTest, LongListTakesFewThreadsOrNone) {
  MakeManifests();
  for (const int error : {0, EAGAIN}) {
    int threads = 0;

    const auto chosen = Choose(
        SYS_clone3, [&](const seccomp_data&) { return ++threads, error; }, Latest().FallBack());

    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->size(), kListed);
    EXPECT_EQ(threads, error == 0 ? 7 : 1) << "besides the caller's";
  }
}

TEST_F(UnreadableTest, OtherErrorsEndALongList) {
  MakeManifests();

  const auto chosen = Choose(
      SYS_openat, [&](const seccomp_data& call) { return PathOf(call) == StepFolder(50) ? EMFILE : 0; },
      Latest().FallBack());

  EXPECT_EQ(chosen.status().code(), StatusCode::kResourceExhausted) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr(StepName(50)));
}

TEST_F(UnreadableTest, NewestIsFoundIfTheListedOneVanishes) {
  Save({.step = 1});
  Save({.step = 2});
  ASSERT_EQ(SetPin(*queue_, root_.path(), 1, PinOwner::kUser, 0644), Status::Ok());
  bool displaced = false;

  const auto chosen = Choose(
      SYS_openat,
      [&](const seccomp_data& call) {
        if (!displaced && PathOf(call) == StepFolder(2)) {
          displaced = true;
          const auto queue = MakeQueue();
          EXPECT_EQ(SaveTo(*queue, root_.path(), {.step = 3}), Status::Ok());
          EXPECT_EQ(Remove(*queue, root_.path(), 2), Status::Ok());
        }
        return 0;
      },
      Latest());

  EXPECT_TRUE(displaced);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(*chosen, ElementsAre(3));
}

TEST_F(UnreadableTest, ReadLockFollowsAReplacement) {
  Save({.step = 1});
  int locks = 0;
  const auto replace_at_first = [&](const seccomp_data& call) {
    // Between the open of the manifest and its lock.
    if (call.args[1] == (LOCK_SH | LOCK_NB) && ++locks == 1) {
      const auto queue = MakeQueue();
      EXPECT_EQ(SaveTo(*queue, root_.path(), {.step = 1, .seed = 1, .replace = true}), Status::Ok());
    }
    return 0;
  };
  Result<ReadLock> lock = Status(StatusCode::kInternal, "not taken");

  ASSERT_TRUE(RunHooked(SYS_flock, replace_at_first, [&] { lock = ReadLock::Take(StepFolder(1)); }));

  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(locks, 2);
  EXPECT_EQ(Remove(*queue_, root_.path(), 1).code(), StatusCode::kFailedPrecondition);
}

TEST_F(UnreadableTest, ReadLockOfARemovedStepIsNotFound) {
  Save({.step = 1});
  bool removed = false;
  Result<ReadLock> lock = Status(StatusCode::kInternal, "not taken");

  ASSERT_TRUE(RunHooked(
      SYS_flock,
      [&](const seccomp_data&) {
        const auto queue = MakeQueue();
        if (!std::exchange(removed, true)) {
          EXPECT_EQ(Remove(*queue, root_.path(), 1), Status::Ok());
        }
        return 0;
      },
      [&] { lock = ReadLock::Take(StepFolder(1)); }));

  EXPECT_EQ(lock.status().code(), StatusCode::kNotFound) << lock.status();
}

}  // namespace
}  // namespace cairn
