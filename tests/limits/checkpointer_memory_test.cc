// A memory control group smaller than the pool.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "base/memory_limit.h"
#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  return static_cast<bool>(file << text << std::flush);
}

constexpr int kNotHere = 77;

/// Runs `body` in a child whose control group may use `bytes`. Not ended: such a group cannot be made here.
std::optional<Forked::End> RunLimited(std::uint64_t bytes, std::string& limit,
                                      const std::function<void(const Say&)>& body) {
  const std::vector<std::string> own = MemoryGroupFolders();
  if (own.empty()) return std::nullopt;
  const std::string group = own.front() + "/cairn-test-" + std::to_string(::getpid());
  if (::mkdir(group.c_str(), 0755) != 0) return std::nullopt;
  limit = group + (::access((group + "/memory.max").c_str(), F_OK) == 0 ? "/memory.max" : "/memory.limit_in_bytes");
  Forked child([&](const Say& say) {
    if (!WriteTo(limit, std::to_string(bytes)) || !WriteTo(group + "/cgroup.procs", std::to_string(::getpid()))) {
      return kNotHere;
    }
    body(say);
    return 0;
  });
  const Forked::End end = child.Wait(Soon());
  ::rmdir(group.c_str());
  if (end.value == kNotHere) return std::nullopt;
  return end;
}

TEST(MemoryLimited, OpenRejectsAPoolAboveTheControlGroupsLimit) {
  const TempDir dir;
  std::string limit;
  const auto end = RunLimited(256_MiB, limit, [&](const Say& say) {
    Options options = SmallOptions(dir / "run");
    options.host_memory_bytes = 300_MiB;
    say(Checkpointer::Open(options).status().ToString());
    options.host_memory_bytes = 64_MiB;
    say(Checkpointer::Open(options).status().ToString());
  });
  if (!end) GTEST_SKIP() << "no memory control group can be made here";

  ASSERT_THAT(end->lines, ::testing::SizeIs(2)) << "signal or exit value " << end->value;
  EXPECT_THAT(end->lines[0],
              AllOf(StartsWith("ResourceExhausted: host_memory_bytes: expected at most "), HasSubstr(limit),
                    HasSubstr(std::to_string(256_MiB)), HasSubstr("found " + std::to_string(300_MiB))));
  EXPECT_EQ(end->lines[1], "Ok");
}

TEST(MemoryLimited, APoolThatChoosesItsSizeStaysWithinAQuarterOfTheGroups) {
  const TempDir dir;
  std::string limit;
  const auto end = RunLimited(256_MiB, limit, [&](const Say& say) {
    Options options = SmallOptions(dir / "run");
    options.host_memory_bytes = 0;
    auto checkpointer = Checkpointer::Open(options);
    say(checkpointer.status().ToString());
    Tensors state = Tensors::Many(120, 1_MiB / sizeof(float));
    say((*checkpointer)->Save(1, state.state())->WaitDurable(Soon()).ToString());
    const CheckpointerStats stats = (*checkpointer)->stats();
    say(stats.pool_limit_bytes <= 64_MiB ? "bounded" : std::to_string(stats.pool_limit_bytes));
    // What the state takes is not available any more.
    say(stats.pool_bytes <= 40_MiB ? "smaller" : std::to_string(stats.pool_bytes));
  });
  if (!end) GTEST_SKIP() << "no memory control group can be made here";

  EXPECT_THAT(end->lines, ElementsAre("Ok", "Ok", "bounded", "smaller")) << "signal or exit value " << end->value;
}

}  // namespace
}  // namespace cairn
