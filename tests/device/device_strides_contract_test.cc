// The contract of every Device for tensors of several strided dimensions. A device may refuse them, but not some.
#include <algorithm>
#include <utility>

#include "base/strided.h"
#include "device/device_contract.h"

namespace cairn {
namespace {

struct Strides {
  std::string name;
  std::size_t item;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  [[nodiscard]] std::uint64_t storage() const {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
    return (static_cast<std::uint64_t>(last) + 1) * item;
  }
  [[nodiscard]] StridedLayout At(std::byte* at) const { return MakeStridedLayout(at, item, shape, strides); }
};

const std::vector<Strides>& Cases() {
  static const std::vector<Strides> cases = {
      {"channels_last", 2, {16, 24, 9, 7}, {1512, 1, 168, 24}},
      {"channels_last of bytes", 1, {3, 5, 17, 19}, {1615, 1, 95, 5}},
      {"channels_last_3d", 4, {4, 6, 5, 3, 7}, {630, 1, 126, 42, 6}},
      {"permuted", 8, {13, 11, 12}, {1, 156, 13}},
      {"a slice of a slice", 4, {7, 5, 33}, {4096, 512, 2}},
      {"rows of 4 KiB", 4, {3, 4, 1024}, {1 << 15, 2048, 1}},
      {"transposed, complex", 8, {300, 70}, {1, 300}},
  };
  return cases;
}

}  // namespace

void DeviceStridesContract::SetUp() {
  DeviceContract::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  std::vector<Status> found;
  for (const Strides& strides : Cases()) {
    std::byte* const at = under_test_->MakeTensor(Pattern(strides.storage(), 1));
    found.push_back(device().CheckLayout(strides.At(at)));
  }
  if (found[0].ok()) {
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](const Status& status) { return status.ok(); }));
    return;
  }
  EXPECT_EQ(found[0].code(), StatusCode::kInvalidArgument);
  EXPECT_NE(found[0].message().find("make it contiguous first"), std::string::npos) << found[0].message();
  GTEST_SKIP() << found[0].message();
}

// In parts that begin and end anywhere, to and from a chunk at odd places.
TEST_P(DeviceStridesContract, CopiesAnyStridesInRowMajorOrderAndBack) {
  for (const Strides& strides : Cases()) {
    const std::vector<std::byte> contents = Pattern(strides.storage(), 3);
    std::vector<std::byte> on_host = contents;
    const StridedLayout layout = strides.At(under_test_->MakeTensor(contents));
    const StridedLayout expected = strides.At(on_host.data());
    std::vector<std::byte> logical(layout.bytes);
    GatherBytes(expected, 0, layout.bytes, logical.data());
    const MutableBytes chunk = under_test_->MakeHostMemory(layout.bytes + 64);
    CopyBatch batch;
    for (std::uint64_t begin = 0, part = 1; begin < layout.bytes; part = part * 7 + 1) {
      const std::uint64_t end = std::min(layout.bytes, begin + part);
      batch.pieces.push_back({&layout, begin, end, chunk.data() + 5 + begin});
      begin = end;
    }

    ASSERT_EQ(CopyAndWait(device(), batch), Status::Ok()) << strides.name;

    EXPECT_TRUE(std::equal(logical.begin(), logical.end(), chunk.begin() + 5)) << strides.name;
    EXPECT_EQ(chunk[4], std::byte{0});
    EXPECT_EQ(chunk[5 + layout.bytes], std::byte{0});

    const std::vector<std::byte> changed = Pattern(layout.bytes, 4);
    std::copy(changed.begin(), changed.end(), chunk.begin() + 5);
    batch.direction = CopyDirection::kToDevice;
    ASSERT_EQ(CopyAndWait(device(), batch), Status::Ok()) << strides.name;

    // Bytes between the elements stay as they were.
    ScatterBytes(expected, 0, layout.bytes, changed.data());
    EXPECT_TRUE(under_test_->ReadTensor(layout.base, on_host.size()) == on_host) << strides.name;
  }
}

// A restore that reads columns of a file's tensor: 40 of every 50 bytes of memory.
TEST_P(DeviceStridesContract, RestoresRowsOfAPieceIntoAnyStrides) {
  const Strides& strides = Cases()[2];
  const std::vector<std::byte> contents = Pattern(strides.storage(), 5);
  std::vector<std::byte> on_host = contents;
  const StridedLayout layout = strides.At(under_test_->MakeTensor(contents));
  constexpr std::uint64_t kRows = 100;
  const MutableBytes chunk = under_test_->MakeHostMemory(kRows * 50);
  const std::vector<std::byte> from = Pattern(chunk.size(), 6);
  std::copy(from.begin(), from.end(), chunk.begin());

  ASSERT_EQ(CopyAndWait(device(), {.direction = CopyDirection::kToDevice,
                                   .pieces = {{.tensor = &layout,
                                               .begin = 20,
                                               .end = 60,
                                               .memory = chunk.data(),
                                               .rows = kRows,
                                               .tensor_pitch = 72,
                                               .memory_pitch = 50}}}),
            Status::Ok());

  ScatterRows(strides.At(on_host.data()), {.begin = 20, .bytes = 40, .rows = kRows, .pitch = 72}, from.data(), 50);
  EXPECT_TRUE(under_test_->ReadTensor(layout.base, on_host.size()) == on_host);
}

TEST_P(DeviceStridesContract, StagesAnyStrides) {
  std::uint64_t bytes = 0;
  std::vector<StridedLayout> layouts;
  std::vector<std::byte> expected;
  for (const Strides& strides : Cases()) {
    std::vector<std::byte> contents = Pattern(strides.storage(), 7);
    layouts.push_back(strides.At(under_test_->MakeTensor(contents)));
    const StridedLayout on_host = strides.At(contents.data());
    expected.resize(bytes + on_host.bytes);
    GatherBytes(on_host, 0, on_host.bytes, expected.data() + bytes);
    bytes += on_host.bytes;
  }
  Result<std::byte*> staging = device().AllocateStaging(bytes);
  ASSERT_EQ(staging.status(), Status::Ok());
  CopyBatch batch{.direction = CopyDirection::kToStaging};
  std::byte* at = *staging;
  for (const StridedLayout& layout : layouts) {
    batch.pieces.push_back({&layout, 0, layout.bytes, at});
    at += layout.bytes;
  }

  ASSERT_EQ(CopyAndWait(device(), std::move(batch)), Status::Ok());

  EXPECT_TRUE(under_test_->ReadTensor(*staging, bytes) == expected);
}

}  // namespace cairn
