// PCcheck's two processes: neither outlives the other, and no death leaves a wrong checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "bench/harness/resources.h"
#include "bench/harness/restore_check.h"
#include "bench/workplace.h"
#include "support/forked.h"

namespace cairn::bench {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kFast = 1'000'000'000'000;

// A descriptor that becomes readable when the process ends.
UniqueFd Watch(pid_t process) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))); }

bool Ends(const UniqueFd& process) {
  pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 60'000) == 1;
}

// Saves steps 1 to 4, then begins 5, of which a quarter is with the disk and no more will be.
bool StopInMidSave(SmallWorkplace& at, Strategy& strategy) {
  for (std::uint64_t step = 1; step <= 4; ++step) {
    if (!TrainAndSave(strategy, at.state(), step).ok() || !strategy.Drain().ok()) return false;
  }
  (*at).disk->SetRate(1);
  const std::uint64_t before = (*at).disk->bytes();
  if (!TrainAndSave(strategy, at.state(), 5).ok()) return false;
  while ((*at).disk->bytes() < before + SmallWorkplace::kBytes / 4) std::this_thread::yield();
  return true;
}

// The killed save overwrites a slot that was in use before, so only the root shows that it is incomplete.
TEST(PcCheckTest, ATrainingThatIsKilledLeavesNoWriterAndNoHalfSave) {
  const TempDir directory;
  Forked child([&directory](const Say& say) {
    SmallWorkplace at(directory.path());
    (*at).disk = RateLimitedDisk::Make(kFast);
    auto strategy = at.Open("pccheck");
    if (strategy == nullptr || !StopInMidSave(at, *strategy)) return 1;
    say(std::to_string(*strategy->process()));
    return strategy->Drain().ok() ? 4 : 5;  // Not reached: the process is killed before.
  });
  const std::optional<std::string> said = child.NextLine(Deadline::In(std::chrono::seconds(60)));
  ASSERT_TRUE(said.has_value());
  const UniqueFd writer = Watch(std::stoi(*said));
  ASSERT_TRUE(writer.valid());

  child.Kill();
  const Forked::End end = child.Wait(Deadline::In(std::chrono::seconds(60)));

  EXPECT_EQ(end.how, Forked::How::kKilled);
  EXPECT_TRUE(Ends(writer));
  SmallWorkplace at(directory.path());
  EXPECT_EQ(CheckRestored(*FindStrategy("pccheck"), *at, 4), Status::Ok());
}

TEST(PcCheckTest, AWriterThatIsKilledFailsTheSavesAndLeavesNoHalfOne) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  (*at).disk = RateLimitedDisk::Make(kFast);
  auto strategy = at.Open("pccheck");
  ASSERT_NE(strategy, nullptr);
  ASSERT_TRUE(StopInMidSave(at, *strategy));

  ASSERT_EQ(::kill(*strategy->process(), SIGKILL), 0);

  const Status drained = strategy->Drain();
  EXPECT_EQ(drained.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(drained.message(), HasSubstr("signal 9"));
  EXPECT_EQ(strategy->BeforeUpdate(), drained);
  EXPECT_EQ(strategy->Save(6), drained);
  strategy.reset();
  (*at).disk = nullptr;
  EXPECT_EQ(CheckRestored(*FindStrategy("pccheck"), *at, 4), Status::Ok());
}

TEST(PcCheckTest, TheWriterEndsWithTheStrategyAndCountsUntilThen) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  auto strategy = at.Open("pccheck");
  ASSERT_NE(strategy, nullptr);
  ASSERT_TRUE(TrainAndSave(*strategy, at.state(), 1).ok());
  ASSERT_TRUE(strategy->Drain().ok());
  const UniqueFd writer = Watch(*strategy->process());
  ASSERT_TRUE(writer.valid());

  const Usage alone = UsageSoFar();
  const Usage both = UsageSoFar(strategy->process());
  strategy.reset();

  EXPECT_GE(both.bytes_written, alone.bytes_written + SmallWorkplace::kBytes);
  EXPECT_GT(both.cpu_seconds, alone.cpu_seconds);
  EXPECT_TRUE(Ends(writer));
}

TEST(PcCheckTest, NamesTheLeastHostMemory) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  (*at).host_memory_bytes = 4096;

  const Status opened = FindStrategy("pccheck")->open(*at).status();

  EXPECT_EQ(opened.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(opened.message(), HasSubstr("at least 1048576 bytes, found 4096"));
}

}  // namespace
}  // namespace cairn::bench
