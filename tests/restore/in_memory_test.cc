#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "device/host_device.h"
#include "restore_fixture.h"
#include "testing/forwarding_queue.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DeviceId kAnyGpu{DeviceKind::kCuda, 0};

/// Tells of each read before it begins.
class WatchedReads : public ForwardingQueue {
 public:
  WatchedReads(const std::shared_ptr<std::function<void(const IoRequest&)>>& on_read, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), on_read_(on_read) {}
  void Submit(IoRequest request, IoDone done) override {
    if (request.op == IoOp::kRead) (*on_read_)(request);
    ForwardingQueue::Submit(std::move(request), std::move(done));
  }

 private:
  const std::shared_ptr<std::function<void(const IoRequest&)>> on_read_;
};

/// A checkpoint on tmpfs: two tensors for a GPU and one for the CPU, 5 MiB in each shard.
class InMemoryTest : public RestoreTest {
 protected:
  void Write(int shards) {
    CheckpointContent content;
    for (int rank = 0; rank < shards; ++rank) {
      const std::string name = "t" + std::to_string(rank);
      content.shards.push_back({.tensors = {MakeTensor(name + ".gpu", DType::kF32, {700001}, rank),
                                            MakeTensor(name + ".small", DType::kU8, {77}, rank + 1),
                                            MakeTensor(name + ".cpu", DType::kF32, {600000}, rank + 2)}});
      for (const SavedTensor& saved : content.shards.back().tensors) {
        targets_.Add(saved, saved.name.ends_with(".cpu") ? DeviceId{} : kAnyGpu);
        saved_.push_back(saved);
      }
    }
    folder_ = WriteCheckpoint(memory_.path(), content);
  }
  [[nodiscard]] Status TryRestore(std::function<void(const IoRequest&)> on_read) {
    RestoreParts parts = Parts();
    parts.memory.path = memory_.path();
    parts.device = [this](DeviceId id) -> Result<Device*> { return id == kAnyGpu ? gpu_.get() : cpu_.get(); };
    parts.queue = WrapQueues<WatchedReads>(std::make_shared<std::function<void(const IoRequest&)>>(std::move(on_read)),
                                           parts.queue);
    return RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, {}).status();
  }

  TempDir memory_{"/dev/shm"};
  std::unique_ptr<HostDevice> cpu_ = HostDevice::Make({}, workers_);
  std::unique_ptr<HostDevice> gpu_ = HostDevice::Make({.id = kAnyGpu, .lanes = 2, .streams = true}, workers_);
  std::vector<SavedTensor> saved_;
  Targets targets_;
  std::string folder_;
};

class InMemoryShardsTest : public InMemoryTest, public ::testing::WithParamInterface<int> {};

TEST_P(InMemoryShardsTest, AreMappedAndNotRead) {
  Write(GetParam());
  std::uint64_t longest = 0;

  const Status restored = TryRestore([&](const IoRequest& request) { longest = std::max(longest, request.length); });

  ASSERT_TRUE(restored.ok()) << restored;
  for (const SavedTensor& saved : saved_) EXPECT_EQ(targets_[saved.name], saved.bytes) << saved.name;
  EXPECT_LE(longest, 64U << 10) << "more than headers";
}

// Of many, files are closed after their last read.
INSTANTIATE_TEST_SUITE_P(, InMemoryShardsTest, ::testing::Values(1, 20));

TEST_F(InMemoryTest, AFileThatIsShortenedMeanwhileIsDamagedAndEndsNoProcess) {
  Write(1);
  const std::string shard = folder_ + "/shard-00000.safetensors";

  // After its length was seen.
  const Status restored = TryRestore([&](const IoRequest& request) {
    if (request.name != shard) return;
    ASSERT_EQ(::truncate(shard.c_str(), 1 << 20), 0);
  });

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << restored;
  EXPECT_THAT(restored.message(), AllOf(HasSubstr("reading "), HasSubstr(shard)));
}

// By another program, say, or a device.
TEST_F(InMemoryTest, WhatIsWrittenMeanwhileIsFoundOrNotDelivered) {
  const SavedTensor saved = MakeTensor("t", DType::kU8, {5 << 20}, 1);
  folder_ = WriteCheckpoint(memory_.path(), {.shards = {{.tensors = {saved}}}});
  targets_.Add(saved);
  const UniqueFd shard(::open((folder_ + "/shard-00000.safetensors").c_str(), O_RDWR | O_CLOEXEC));
  void* const mapped = ::mmap(nullptr, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, shard.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::atomic<char>& byte = static_cast<std::atomic<char>*>(mapped)[3 << 20];
  std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) byte.fetch_xor(1);
  });

  int damaged = 0;
  for (int i = 0; i < 100 || (damaged == 0 && i < 10'000); ++i) {
    const Status restored = TryRestore([](const IoRequest&) {});
    damaged += restored.code() == StatusCode::kCorrupt ? 1 : 0;
    if (restored.code() == StatusCode::kCorrupt) continue;
    EXPECT_TRUE(restored.ok()) << restored;
    EXPECT_TRUE(targets_["t"] == saved.bytes);
  }

  writer.request_stop();
  writer.join();
  ::munmap(mapped, 4 << 20);
  EXPECT_GT(damaged, 0) << "the two have not met";
}

TEST_F(InMemoryTest, ADamagedBitIsFound) {
  Write(1);
  const UniqueFd shard(::open((folder_ + "/shard-00000.safetensors").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(shard.get(), "?!", 2, 3 << 20), 2);
  const Status restored = TryRestore([](const IoRequest&) {});
  EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << restored;
  EXPECT_THAT(restored.message(), HasSubstr("CRC32C of data bytes"));
}

}  // namespace
}  // namespace cairn
