#include "base/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cairn/options.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

constexpr const char* kVersion2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kVersion1 =
    "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "36 31 0:33 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";

// The files of /proc and /sys that describe a machine's groups.
class Groups : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void Describe(const std::string& mounts, const std::string& groups) {
    Write("proc/self/mountinfo", mounts);
    Write("proc/self/cgroup", groups);
  }
  [[nodiscard]] std::optional<MemoryLimit> Find() const { return FindMemoryLimit(root_.path()); }

  const TempDir root_;
};

TEST_F(Groups, NoGroupsMeanNoLimit) {
  EXPECT_FALSE(Find().has_value());
  Describe(kVersion2, "0::/\n");
  EXPECT_FALSE(Find().has_value());
  Write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(Find().has_value());
  Write("sys/fs/cgroup/memory.max", "rubbish\n");
  EXPECT_FALSE(Find().has_value());
}

TEST_F(Groups, AvailableIsTheLimitMinusUnreclaimableMemory) {
  Describe(kVersion2, "0::/user.slice/run.scope\n");
  Write("sys/fs/cgroup/user.slice/run.scope/memory.max", "1000000\n");
  Write("sys/fs/cgroup/user.slice/run.scope/memory.current", "700000\n");
  Write("sys/fs/cgroup/user.slice/run.scope/memory.stat",
        "anon 100000\nfile 500000\nshmem 200000\ninactive_file 200000\nactive_file 100000\nslab_reclaimable 50000\n");

  const auto limit = Find();

  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->bytes, 1'000'000U);
  EXPECT_EQ(limit->held, 350'000U) << "a file in memory (shmem) cannot be dropped";
  EXPECT_EQ(limit->available, 650'000U);
  EXPECT_THAT(limit->file, EndsWith("/sys/fs/cgroup/user.slice/run.scope/memory.max"));
}

TEST_F(Groups, TightestParentDecides) {
  Describe(kVersion2, "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "1000000\n");
  Write("sys/fs/cgroup/a/memory.max", "500000\n");
  Write("sys/fs/cgroup/a/memory.current", "100000\n");
  Write("sys/fs/cgroup/memory.max", "max\n");

  const auto limit = Find();

  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->available, 400'000U);
  EXPECT_THAT(limit->file, EndsWith("/a/memory.max"));
}

TEST_F(Groups, ReadsCgroupVersionOne) {
  Describe(kVersion1, "5:cpu:/x\n4:memory:/job\n0::/y\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000\n");
  Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900000\n");
  Write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file 300000\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");

  const auto limit = Find();

  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->held, 600'000U);
  EXPECT_EQ(limit->available, 1'400'000U);
}

TEST_F(Groups, ContainersMountRootIsItsGroup) {
  const std::string mount = "36 31 0:33 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  Describe(mount, "4:memory:/docker/1/inner\n");
  const std::string at = root_ / "sys/fs/cgroup/memory";
  EXPECT_THAT(MemoryGroupFolders(root_.path()), ElementsAre(at + "/inner", at));
  Describe(mount, "4:memory:/docker/10\n");
  EXPECT_THAT(MemoryGroupFolders(root_.path()), ElementsAre(at));
  Describe(mount, "4:memory:/../../else\n");
  EXPECT_THAT(MemoryGroupFolders(root_.path()), ElementsAre(at));
}

TEST_F(Groups, MoreInUseThanAllowedLeavesNothing) {
  Describe(kVersion2, "0::/\n");
  Write("sys/fs/cgroup/memory.max", "1000\n");
  Write("sys/fs/cgroup/memory.current", "5000\n");

  ASSERT_TRUE(Find().has_value());
  EXPECT_EQ(Find()->available, 0U);
}

TEST_F(Groups, AvailableMemoryIsTheMachinesOrTheGroupsIfThatHasLess) {
  EXPECT_EQ(FindMemory(root_.path()).available, 0U);
  Write("proc/meminfo",
        "MemTotal:       4000 kB\nMemFree:   100 kB\nMemAvailable:    3000 kB\nHugePages_Total:       0\n");
  EXPECT_EQ(FindMemory(root_.path()).total, 4'096'000U);
  EXPECT_EQ(FindMemory(root_.path()).available, 3'072'000U);

  Describe(kVersion2, "0::/\n");
  Write("sys/fs/cgroup/memory.max", "2000000\n");
  Write("sys/fs/cgroup/memory.current", "500000\n");

  EXPECT_EQ(FindMemory(root_.path()).total, 2'000'000U);
  EXPECT_EQ(FindMemory(root_.path()).available, 1'500'000U);
}

TEST_F(Groups, OddLinesAreSkipped) {
  Describe("nonsense\n- - -\n36 31 0:33 / /sys - cgroup cgroup rw,memory_of\n", "\n:\n4:memory\nx:y:z\n4:memory:/a\n");
  EXPECT_THAT(MemoryGroupFolders(root_.path()), IsEmpty());
}

}  // namespace
}  // namespace cairn
