#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>

#include "base/mutex.h"
#include "device/host_device.h"
#include "restore_fixture.h"
#include "support/faulty_device.h"
#include "testing/forwarding_device.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr DeviceId kOtherGpu{DeviceKind::kCuda, 1};

/// Forwards to its inner device and records the order of copies, events and waits.
class RecordingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  /// Whether the stream waits for each lane after that lane's last copy.
  [[nodiscard]] bool HoldsBehindEveryCopy(Stream stream) {
    MutexLock lock(mutex_);
    for (int lane = 0; lane < inner_->lanes(); ++lane) {
      const bool held = std::any_of(waits_.begin(), waits_.end(), [&](const auto& wait) CAIRN_REQUIRES(mutex_) {
        const auto recorded = recorded_.find(wait.second);
        return wait.first == stream.handle && recorded != recorded_.end() && recorded->second.first == lane &&
               recorded->second.second == copies_[lane];
      });
      if (!held) return false;
    }
    return true;
  }
  [[nodiscard]] int copies() {
    MutexLock lock(mutex_);
    int count = 0;
    for (const auto& [lane, of_lane] : copies_) count += of_lane;
    return count;
  }

  Status StreamWait(Stream stream, EventId event) override {
    MutexLock lock(mutex_);
    waits_.emplace_back(stream.handle, event);
    return inner_->StreamWait(stream, event);
  }
  Status RecordOnLane(int lane, EventId event) override {
    MutexLock lock(mutex_);
    recorded_[event] = {lane, copies_[lane]};
    return inner_->RecordOnLane(lane, event);
  }
  Status Copy(CopyBatch batch, CopyDone done) override {
    MutexLock lock(mutex_);
    ++copies_[batch.lane];
    return inner_->Copy(std::move(batch), std::move(done));
  }

 private:
  Mutex mutex_;
  // By lane.
  std::map<int, int> copies_ CAIRN_GUARDED_BY(mutex_);
  // The lane, and its number of copies before.
  std::map<EventId, std::pair<int, int>> recorded_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::pair<std::uintptr_t, EventId>> waits_ CAIRN_GUARDED_BY(mutex_);
};

/// Forwards to its inner device, and counts batches that have not ended.
class WatchedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  [[nodiscard]] int under_way() const { return *under_way_; }

  Status Copy(CopyBatch batch, CopyDone done) override {
    ++*under_way_;
    return inner_->Copy(std::move(batch), [under_way = under_way_, done = std::move(done)](Status status) {
      --*under_way;
      done(std::move(status));
    });
  }

 private:
  // Shared with batches under way, which may outlive this.
  const std::shared_ptr<std::atomic<int>> under_way_ = std::make_shared<std::atomic<int>>(0);
};

class DeviceRestoreTest : public RestoreTest {
 protected:
  DeviceRestoreTest() {
    saved_ = {MakeTensor("on.gpu", DType::kF32, {1500000}, 1), MakeTensor("on.gpu.too", DType::kF32, {777}, 2),
              MakeTensor("on.cpu", DType::kF32, {400000}, 3)};
    folder_ = WriteCheckpoint(root(), {.shards = {{.tensors = saved_}}});
    targets_.Add(saved_[0], kGpu);
    targets_.Add(saved_[1], kGpu);
    targets_.Add(saved_[2]);
  }
  [[nodiscard]] Result<Restored> TryRestore(const RestoreOptions& options = {}) {
    RestoreParts parts = Parts();
    parts.device = [this](DeviceId id) -> Result<Device*> {
      if (id == kGpu) return recording_ != nullptr ? static_cast<Device*>(recording_.get()) : &faulty_;
      return cpu_.get();
    };
    return RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, options);
  }

  std::unique_ptr<HostDevice> cpu_ = HostDevice::Make({}, workers_);
  std::shared_ptr<HostDevice> gpu_ = HostDevice::Make({.id = kGpu, .lanes = 2, .streams = true}, workers_);
  FaultyDevice faulty_{gpu_};
  // Used instead of faulty_, if set.
  std::unique_ptr<RecordingDevice> recording_;
  std::vector<SavedTensor> saved_;
  std::string folder_;
  Targets targets_;
};

TEST_F(DeviceRestoreTest, FillsTensorsOnSeveralDevices) {
  const auto restored = TryRestore();

  ASSERT_TRUE(restored.ok()) << restored.status();
  for (const SavedTensor& tensor : saved_) EXPECT_EQ(targets_[tensor.name], tensor.bytes) << tensor.name;
}

TEST_F(DeviceRestoreTest, WritesOnlyAfterTheCallersStreams) {
  const Stream stream = gpu_->MakeStream();
  std::promise<void> may_go_on;
  std::shared_future<void> gate = may_go_on.get_future().share();
  bool untouched_before = false;
  gpu_->Launch(stream, [&, gate] {
    gate.wait();
    untouched_before = targets_["on.gpu"].find_first_not_of(Targets::kUntouched) == std::string::npos;
  });
  auto restoring = std::async(std::launch::async, [&] { return TryRestore({.streams = {stream}}); });
  ASSERT_TRUE(faulty_.AwaitCopies(2));  // Enqueued, but must not run yet.
  may_go_on.set_value();

  const auto restored = restoring.get();

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(untouched_before);
  EXPECT_EQ(targets_["on.gpu"], saved_[0].bytes);
}

TEST_F(DeviceRestoreTest, CallersStreamsWaitForTheLastCopyOfEachLane) {
  recording_ = std::make_unique<RecordingDevice>(gpu_);
  const Stream stream = gpu_->MakeStream();
  const Stream other = gpu_->MakeStream();

  const auto restored = TryRestore({.streams = {stream, other}});

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(recording_->copies(), gpu_->lanes());
  EXPECT_TRUE(recording_->HoldsBehindEveryCopy(stream));
  EXPECT_TRUE(recording_->HoldsBehindEveryCopy(other));
}

TEST_F(DeviceRestoreTest, NeverCopiesADamagedBlockToTheDevice) {
  std::string shard = ReadWholeFile(folder_ + "/shard-00000.safetensors");
  // Damage every block, so that nothing may be copied.
  for (std::size_t at = shard.size() - 1;; at -= std::min<std::size_t>(at, 1 << 19)) {
    if (at < (1 << 16)) break;
    shard[at] = static_cast<char>(shard[at] ^ 1);
  }
  WriteWholeFile(folder_ + "/shard-00000.safetensors", shard);

  const auto restored = TryRestore();

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt) << restored.status();
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DeviceRestoreTest, EndsWithTheDevicesError) {
  faulty_.BecomeStickyAt(3);

  const auto restored = TryRestore();

  EXPECT_EQ(restored.status().code(), StatusCode::kDeviceError) << restored.status();
}

TEST_F(DeviceRestoreTest, AfterTheLossOfOneDeviceWaitsForTheCopiesOfTheOther) {
  const SavedTensor on_other = MakeTensor("a.on.other.gpu", DType::kF32, {777}, 4);
  saved_.push_back(on_other);
  const std::string folder = WriteCheckpoint(root(), {.step = 2, .shards = {{.tensors = saved_}}});
  targets_.Add(on_other, kOtherGpu);
  const std::shared_ptr<HostDevice> host = HostDevice::Make({.id = kOtherGpu, .lanes = 2, .streams = true}, workers_);
  const auto held = std::make_shared<FaultyDevice>(host);
  ASSERT_EQ(held->HoldCopies(), Status::Ok());
  WatchedDevice other(held);
  RestoreParts parts = Parts();
  parts.device = [&](DeviceId id) -> Result<Device*> {
    if (id == kGpu) return &faulty_;
    return id == kOtherGpu ? static_cast<Device*>(&other) : cpu_.get();
  };
  auto restoring =
      std::async(std::launch::async, [&] { return RestoreSelected(parts, {}, Folder(folder), 0, targets_.state, {}); });
  ASSERT_TRUE(held->AwaitCopies(1));

  faulty_.BecomeSticky();
  EXPECT_EQ(restoring.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  held->ReleaseCopies();
  const auto restored = restoring.get();

  EXPECT_EQ(restored.status().code(), StatusCode::kDeviceError) << restored.status();
  EXPECT_EQ(other.under_way(), 0) << "a tensor of the caller is still written";
}

TEST_F(DeviceRestoreTest, EndsWithTheErrorOfACopy) {
  faulty_.FailCopyLater(2, {StatusCode::kDeviceError, "the second copy"});
  const auto late = TryRestore();
  faulty_.FailCopy(faulty_.copies() + 1, {StatusCode::kDeviceError, "refused"});
  const auto at_once = TryRestore();

  EXPECT_THAT(late.status().message(), HasSubstr("the second copy"));
  EXPECT_THAT(at_once.status().message(), HasSubstr("refused"));
}

TEST_F(DeviceRestoreTest, NamesATensorThatTheDeviceRejects) {
  faulty_.BecomeSticky();

  const auto restored = TryRestore();

  EXPECT_THAT(restored.status().message(), HasSubstr("tensor \"on.gpu"));
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(DeviceRestoreTest, RejectsUnknownDevices) {
  RestoreParts parts = Parts();

  const auto restored = RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, {});

  EXPECT_EQ(restored.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(restored.status().message(), HasSubstr("cuda:0"));
  EXPECT_TRUE(targets_.untouched());
}

}  // namespace
}  // namespace cairn
