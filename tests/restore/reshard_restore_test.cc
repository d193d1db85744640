// Tensors assembled from parts, through files and onto devices.

#include <array>
#include <deque>

#include "base/strided.h"
#include "device/host_device.h"
#include "restore_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr std::int64_t kRows = 1501;
constexpr std::int64_t kColumns = 700;

/// "w" [kRows, kColumns] of floats, rows saved in four shards.
class ReshardRestoreTest : public RestoreTest {
 protected:
  ReshardRestoreTest() {
    std::vector<SavedShardContent> shards;
    for (int rank = 0; rank < 4; ++rank) {
      SavedTensor part = MakeTensor("w", DType::kF32, {Cut(rank + 1) - Cut(rank), kColumns}, 7U + rank);
      part.part = TensorPart{"w", {kRows, kColumns}, {Cut(rank), 0}};
      whole_ += part.bytes;
      shards.push_back({.tensors = {part}});
    }
    folder_ = WriteCheckpoint(root(), {.shards = std::move(shards)});
  }
  static std::int64_t Cut(int rank) { return kRows * rank / 4; }

  /// Rows and columns [begin, end) of the whole, with these strides.
  struct Wanted {
    std::array<std::int64_t, 2> rows;
    std::array<std::int64_t, 2> columns;
    std::vector<std::int64_t> strides;
    DeviceId device;
    std::string memory;
    [[nodiscard]] std::vector<std::int64_t> shape() const { return {rows[1] - rows[0], columns[1] - columns[0]}; }
  };
  void Want(std::array<std::int64_t, 2> rows, std::array<std::int64_t, 2> columns,
            std::vector<std::int64_t> strides = {}, DeviceId device = {}) {
    Wanted& wanted = wanted_.emplace_back(Wanted{rows, columns, std::move(strides), device, {}});
    wanted.memory.assign(static_cast<std::size_t>(2 * kRows * kColumns) * 4, Targets::kUntouched);
    const Status added = state_.Add("t" + std::to_string(wanted_.size()),
                                    {.data = wanted.memory.data(),
                                     .shape = wanted.shape(),
                                     .strides = wanted.strides,
                                     .device = device,
                                     .part = TensorPart{"w", {kRows, kColumns}, {rows[0], columns[0]}}});
    EXPECT_TRUE(added.ok()) << added;
  }
  void ExpectRestored() {
    for (Wanted& wanted : wanted_) {
      std::string expected;
      for (std::int64_t row = wanted.rows[0]; row < wanted.rows[1]; ++row) {
        expected += whole_.substr(static_cast<std::size_t>(row * kColumns + wanted.columns[0]) * 4,
                                  static_cast<std::size_t>(wanted.columns[1] - wanted.columns[0]) * 4);
      }
      std::string found(expected.size(), '\0');
      GatherBytes(MakeStridedLayout(wanted.memory.data(), 4, wanted.shape(), wanted.strides), 0, found.size(),
                  reinterpret_cast<std::byte*>(found.data()));
      EXPECT_TRUE(found == expected) << "rows from " << wanted.rows[0] << ", columns from " << wanted.columns[0];
    }
  }
  [[nodiscard]] Result<Restored> Restore() {
    RestoreParts parts = Parts();
    parts.device = [this](DeviceId id) -> Result<Device*> {
      if (id == kGpu) return gpu_.get();
      return cpu_.get();
    };
    return RestoreSelected(parts, {}, Folder(folder_), 0, state_, {});
  }

  std::unique_ptr<HostDevice> cpu_ = HostDevice::Make({}, workers_);
  std::unique_ptr<HostDevice> gpu_ = HostDevice::Make({.id = kGpu, .lanes = 2, .streams = true}, workers_);
  std::string whole_;
  std::string folder_;
  State state_;
  std::deque<Wanted> wanted_;
};

TEST_F(ReshardRestoreTest, FillsPartsOfOtherCutsWithAnyStrides) {
  Want({0, kRows}, {0, kColumns});
  Want({0, kRows}, {0, kColumns}, {1, kRows});
  Want({0, kRows}, {3, 401});
  Want({700, 1200}, {401, kColumns}, {kColumns, 2});
  Want({375, 376}, {0, kColumns});

  const auto restored = Restore();

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->tensors, 5);
  ExpectRestored();
}

TEST_F(ReshardRestoreTest, FillsPartsOfOtherCutsOnADevice) {
  Want({0, kRows}, {0, kColumns}, {}, kGpu);
  Want({0, kRows}, {0, kColumns}, {1, kRows}, kGpu);
  Want({0, kRows}, {3, 401}, {400, 1}, kGpu);
  Want({700, 1200}, {401, kColumns}, {kColumns, 2}, kGpu);
  Want({10, 20}, {0, kColumns});

  const auto restored = Restore();

  ASSERT_TRUE(restored.ok()) << restored.status();
  ExpectRestored();
}

TEST_F(ReshardRestoreTest, WritesPartsThatShareMemoryOneAtATime) {
  // The same memory as another cut of the same logical tensor.
  Want({0, kRows}, {0, kColumns});
  Wanted& whole = wanted_.front();
  ASSERT_TRUE(state_
                  .Add("columns", {.data = whole.memory.data() + 40,
                                   .shape = {kRows, 300},
                                   .strides = {kColumns, 1},
                                   .part = TensorPart{"w", {kRows, kColumns}, {0, 10}}})
                  .ok());

  const auto restored = Restore();

  ASSERT_TRUE(restored.ok()) << restored.status();
  ExpectRestored();
}

TEST_F(ReshardRestoreTest, PassesThroughAPoolOfOneChunk) {
  MakePool(1);
  Want({0, kRows}, {100, 200}, {1, kRows});
  Want({0, kRows}, {0, kColumns}, {}, kGpu);

  const auto restored = Restore();

  ASSERT_TRUE(restored.ok()) << restored.status();
  ExpectRestored();
}

TEST_F(ReshardRestoreTest, FindsAFlippedBitOnlyInNeededBlocks) {
  const std::string path = folder_ + "/shard-00002.safetensors";
  std::string shard = ReadWholeFile(path);
  shard.back() = static_cast<char>(shard.back() ^ 0x40);
  WriteWholeFile(path, shard);

  Want({0, Cut(2)}, {0, kColumns});
  const auto without = Restore();
  Want({Cut(3) - 1, kRows}, {600, kColumns});
  const auto with = Restore();

  EXPECT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(with.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(with.status().message(), HasSubstr("shard-00002"));
}

TEST_F(ReshardRestoreTest, WritesNothingIfAPartIsMissing) {
  SavedTensor part = MakeTensor("w", DType::kF32, {2, 4}, 1);
  part.part = TensorPart{"w", {4, 4}, {2, 0}};
  const std::string folder = WriteCheckpoint(root(), {.step = 2, .shards = {{.tensors = {part}}}});
  Targets targets;
  targets.Add(MakeTensor("w", DType::kF32, {4, 4}, 1));

  const auto restored = RestoreTest::Restore(folder, targets, {.allow_missing = true});

  EXPECT_EQ(restored.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(restored.status().message(), HasSubstr("found no part of \"w\" with 8 of its 16 elements"));
  EXPECT_TRUE(targets.untouched());
}

}  // namespace
}  // namespace cairn
