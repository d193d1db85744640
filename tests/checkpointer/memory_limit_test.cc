// A memory control group smaller than the pool.

#include "base/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/sanitizer.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  return static_cast<bool>(file << text << std::flush);
}

TEST(MemoryLimited, OpenRejectsAPoolAboveTheControlGroupsLimit) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more memory than the group has";
  const std::vector<std::string> own = MemoryGroupFolders();
  if (own.empty()) GTEST_SKIP() << "no memory control group here";
  const std::string group = own.front() + "/cairn-test-" + std::to_string(::getpid());
  if (::mkdir(group.c_str(), 0755) != 0) GTEST_SKIP() << "no memory control group can be made: " << group;
  const TempDir dir;
  const std::string limit =
      group + (::access((group + "/memory.max").c_str(), F_OK) == 0 ? "/memory.max" : "/memory.limit_in_bytes");
  constexpr int kNotHere = 77;
  Forked child([&](const Say& say) {
    if (!WriteTo(limit, std::to_string(256_MiB)) || !WriteTo(group + "/cgroup.procs", std::to_string(::getpid()))) {
      return kNotHere;
    }
    Options options = SmallOptions(dir / "run");
    options.host_memory_bytes = 300_MiB;
    say(Checkpointer::Open(options).status().ToString());
    options.host_memory_bytes = 64_MiB;
    say(Checkpointer::Open(options).status().ToString());
    return 0;
  });
  const Forked::End end = child.Wait(Soon());
  ::rmdir(group.c_str());

  if (end.value == kNotHere) GTEST_SKIP() << "the memory control group takes no limit and no process: " << group;
  ASSERT_THAT(end.lines, ::testing::SizeIs(2)) << "signal or exit value " << end.value;
  EXPECT_THAT(end.lines[0],
              AllOf(StartsWith("ResourceExhausted: Options::host_memory_bytes: expected at most "), HasSubstr(limit),
                    HasSubstr(std::to_string(256_MiB)), HasSubstr("found " + std::to_string(300_MiB))));
  EXPECT_EQ(end.lines[1], "Ok");
}

}  // namespace
}  // namespace cairn
