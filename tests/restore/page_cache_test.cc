#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "restore_fixture.h"
#include "testing/forwarding_queue.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// The share of a file's pages that are in the page cache.
double Cached(const std::string& path, std::uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  std::vector<unsigned char> pages(bytes / kBlock);
  EXPECT_EQ(::mincore(memory, bytes, pages.data()), 0);
  ::munmap(memory, bytes);
  const auto cached = std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

void Drop(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(fd.get()), 0);
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

struct Case {
  const char* what;
  int world;
  std::uint64_t ranks_of_node;
  bool own;
  std::optional<bool> page_cache;
  std::uint64_t of_rank_0;  // MiB in the shard of rank 0, which reads.
  std::uint64_t of_rank_1;
  bool cached;
};

// Rank 0 reads all of two shards.
class PageCacheTest : public RestoreTest, public ::testing::WithParamInterface<Case> {};

TEST_P(PageCacheTest, IsUsedWhereRanksOfANodeReadTheSame) {
  const Case& given = GetParam();
  const SavedTensor mine = MakeTensor("mine", DType::kU8, {static_cast<std::int64_t>(given.of_rank_0 * kMiB)}, 1);
  const SavedTensor theirs = MakeTensor("theirs", DType::kU8, {static_cast<std::int64_t>(given.of_rank_1 * kMiB)}, 2);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {mine}}, {.tensors = {theirs}}}});
  const std::string shard = folder + "/shard-00001.safetensors";
  Drop(shard);
  if (Cached(shard, given.of_rank_1 * kMiB) > 0) GTEST_SKIP() << "this filesystem keeps its files in memory";
  Targets targets;
  targets.Add(mine);
  targets.Add(theirs);
  RestoreParts parts = Parts();
  parts.world = given.world;
  parts.ranks_of_node = given.ranks_of_node;
  parts.own_shard = given.own;

  const auto restored = RestoreSelected(parts, {}, Folder(folder), 0, targets.state, {.page_cache = given.page_cache});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets["mine"], mine.bytes);
  EXPECT_EQ(targets["theirs"], theirs.bytes);
  const double cached = Cached(shard, given.of_rank_1 * kMiB);
  EXPECT_TRUE(given.cached ? cached > 0.9 : cached < 0.1) << cached;
}

INSTANTIATE_TEST_SUITE_P(, PageCacheTest,
                         ::testing::Values(Case{"Replicated", 2, 2, true, std::nullopt, 4, 4, true},
                                           Case{"FewAreReplicated", 2, 2, true, std::nullopt, 8, 2, false},
                                           Case{"OneRankOfEachNode", 2, 1, true, std::nullopt, 4, 4, false},
                                           Case{"OfAnotherNumberOfRanks", 2, 2, false, std::nullopt, 8, 2, true},
                                           Case{"NoGroupButRanksBeside", 1, 8, true, std::nullopt, 8, 2, true},
                                           Case{"Alone", 1, 1, true, std::nullopt, 4, 4, false},
                                           Case{"AskedFor", 1, 1, true, true, 4, 4, true},
                                           Case{"RefusedThough", 2, 2, true, false, 4, 4, false}),
                         [](const auto& one) { return std::string(one.param.what); });

// The page cache has a wrong bit in each page; the disk has none.
class DamagedCache : public ForwardingQueue {
 public:
  DamagedCache(const std::shared_ptr<int>& damaged, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), damaged_(damaged) {}
  void Submit(IoRequest request, IoDone done) override {
    if (request.op != IoOp::kRead || (::fcntl(request.fd, F_GETFL) & O_DIRECT) != 0) {
      return ForwardingQueue::Submit(std::move(request), std::move(done));
    }
    auto* const byte = static_cast<std::byte*>(request.buffer) + request.length / 2;
    ForwardingQueue::Submit(std::move(request), [this, byte, done = std::move(done)](std::int64_t result) {
      *byte ^= std::byte{1};
      ++*damaged_;
      done(result);
    });
  }

 private:
  const std::shared_ptr<int> damaged_;
};

TEST_F(RestoreTest, WhatIsDamagedInThePageCacheAloneIsReadFromTheDisk) {
  for (const int shards : {1, 20}) {  // Of many, files are closed after their last read.
    CheckpointContent content{.step = static_cast<std::uint64_t>(shards)};
    Targets targets;
    for (int rank = 0; rank < shards; ++rank) {
      content.shards.push_back({.tensors = {MakeTensor("t" + std::to_string(rank), DType::kU8, {3 * kMiB}, rank)}});
      targets.Add(content.shards.back().tensors.front());
    }
    const std::string folder = WriteCheckpoint(root(), content);
    const UniqueFd direct(::open((folder + "/shard-00000.safetensors").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!direct.valid()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
    const auto damaged = std::make_shared<int>(0);
    std::vector<std::string> events;
    RestoreParts parts = Parts();
    parts.queue = WrapQueues<DamagedCache>(damaged, parts.queue);
    parts.on_event = [&](const Event& event) { events.push_back(event.message); };

    const auto restored = RestoreSelected(parts, {}, Folder(folder), 0, targets.state, {.page_cache = true});

    ASSERT_TRUE(restored.ok()) << restored.status();
    for (const SavedShardContent& shard : content.shards) {
      EXPECT_EQ(targets[shard.tensors[0].name], shard.tensors[0].bytes);
    }
    EXPECT_GE(*damaged, shards);
    const std::string said = "found in the page cache, and read again from the disk: ";
    EXPECT_THAT(events, ::testing::Contains(::testing::HasSubstr(said)).Times(*damaged));
  }
}

TEST_F(RestoreTest, DamageOnTheDiskIsFoundThroughThePageCacheToo) {
  const SavedTensor saved = MakeTensor("t", DType::kU8, {3 * kMiB}, 1);
  const std::string folder = WriteCheckpoint(root(), {.shards = {{.tensors = {saved}}}});
  {
    const UniqueFd fd(::open((folder + "/shard-00000.safetensors").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), "?!", 2, 2 * kMiB), 2);
  }
  Targets targets;
  targets.Add(saved);

  const auto restored = Restore(folder, targets, {.page_cache = true});

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt) << restored.status();
}

TEST_F(RestoreTest, FilesThatAreClosedBetweenReadsGoThroughThePageCacheToo) {
  CheckpointContent content;
  Targets targets;
  for (int rank = 0; rank < 20; ++rank) {
    content.shards.push_back({.tensors = {MakeTensor("t" + std::to_string(rank), DType::kU8, {kMiB}, rank)}});
    targets.Add(content.shards.back().tensors.front());
  }
  const std::string folder = WriteCheckpoint(root(), content);
  const std::string shard = folder + "/shard-00019.safetensors";
  Drop(shard);
  if (Cached(shard, kMiB) > 0) GTEST_SKIP() << "this filesystem keeps its files in memory";

  const auto restored = Restore(folder, targets, {.page_cache = true});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(Cached(shard, kMiB), 0.9);
}

}  // namespace
}  // namespace cairn
