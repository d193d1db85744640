#include "device/device_contract.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/strided.h"

namespace cairn {

TEST_P(DeviceContract, CopiesManySmallTensorsToOneChunkAndBack) {
  constexpr std::uint64_t kTensors = 300;
  std::vector<StridedLayout> layouts;
  std::vector<std::byte> expected;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    const std::vector<std::byte> contents = Pattern(1 + (i * 37) % 900, i);
    layouts.push_back(Contiguous(under_test_->MakeTensor(contents), contents.size()));
    expected.insert(expected.end(), contents.begin(), contents.end());
  }
  const MutableBytes chunk = under_test_->MakeHostMemory(expected.size());
  CopyBatch to_host;
  std::byte* at = chunk.data();
  for (const StridedLayout& layout : layouts) {
    to_host.pieces.push_back({&layout, 0, layout.bytes, at});
    at += layout.bytes;
  }
  CopyBatch to_device = to_host;
  to_device.direction = CopyDirection::kToDevice;

  ASSERT_EQ(CopyAndWait(device(), std::move(to_host)), Status::Ok());
  EXPECT_EQ(Copied(chunk), expected);

  const std::vector<std::byte> changed = Pattern(expected.size(), 77);
  std::copy(changed.begin(), changed.end(), chunk.begin());
  ASSERT_EQ(CopyAndWait(device(), std::move(to_device)), Status::Ok());
  std::vector<std::byte> found;
  for (const StridedLayout& layout : layouts) {
    const std::vector<std::byte> tensor = under_test_->ReadTensor(layout.base, layout.bytes);
    found.insert(found.end(), tensor.begin(), tensor.end());
  }
  EXPECT_EQ(found, changed);
}

TEST_P(DeviceContract, CopiesStridedTensorsInRowMajorOrder) {
  // 3 of every 5 columns of 4 bytes in 70,000 rows; then a transposed matrix: rows of one element.
  constexpr std::int64_t kRows = 70'000;
  const std::vector<std::byte> wide = Pattern(kRows * 20, 1);
  const std::vector<std::byte> square = Pattern(64 * 48 * 2, 2);
  const StridedLayout columns = Rows(under_test_->MakeTensor(wide), 12, kRows, 20);
  const std::vector<std::int64_t> shape = {48, 64};
  const std::vector<std::int64_t> strides = {1, 48};
  const StridedLayout transposed = MakeStridedLayout(under_test_->MakeTensor(square), 2, shape, strides);
  std::vector<std::byte> expected;
  for (std::int64_t row = 0; row < kRows; ++row) {
    expected.insert(expected.end(), wide.begin() + row * 20, wide.begin() + row * 20 + 12);
  }
  for (int i = 0; i < 48; ++i) {
    for (int j = 0; j < 64; ++j) {
      expected.insert(expected.end(), square.begin() + (j * 48 + i) * 2, square.begin() + (j * 48 + i) * 2 + 2);
    }
  }
  ASSERT_EQ(device().CheckLayout(columns), Status::Ok());
  const MutableBytes chunk = under_test_->MakeHostMemory(expected.size());
  CopyBatch batch{.pieces = {{&columns, 0, columns.bytes, chunk.data()},
                             {&transposed, 0, transposed.bytes, chunk.data() + columns.bytes}}};
  // Devices need not support more than one strided dimension.
  if (const Status taken = device().CheckLayout(transposed); !taken.ok()) {
    ASSERT_EQ(taken.code(), StatusCode::kInvalidArgument);
    batch.pieces.pop_back();
    expected.resize(columns.bytes);
  }
  CopyBatch back = batch;
  back.direction = CopyDirection::kToDevice;

  ASSERT_EQ(CopyAndWait(device(), batch), Status::Ok());
  EXPECT_TRUE(Copied(chunk.first(expected.size())) == expected);

  const std::vector<std::byte> changed = Pattern(expected.size(), 3);
  std::copy(changed.begin(), changed.end(), chunk.begin());
  ASSERT_EQ(CopyAndWait(device(), std::move(back)), Status::Ok());
  std::fill(chunk.begin(), chunk.end(), std::byte{0});
  ASSERT_EQ(CopyAndWait(device(), std::move(batch)), Status::Ok());
  EXPECT_TRUE(Copied(chunk.first(expected.size())) == changed);
  // The columns between are unchanged.
  const std::vector<std::byte> after = under_test_->ReadTensor(columns.base, wide.size());
  for (std::int64_t row = 0; row + 1 < kRows; ++row) {
    ASSERT_TRUE(std::equal(wide.begin() + row * 20 + 12, wide.begin() + row * 20 + 20, after.begin() + row * 20 + 12));
  }
}

TEST_P(DeviceContract, PartialRangesBeginAndEndWithinRows) {
  const std::vector<std::byte> contents = Pattern(100 * 16, 4);
  std::byte* const at = under_test_->MakeTensor(contents);
  const StridedLayout whole = Contiguous(at, contents.size());
  const StridedLayout rows = Rows(at, 10, 100, 16);
  std::vector<std::byte> logical;
  for (int row = 0; row < 100; ++row) {
    logical.insert(logical.end(), contents.begin() + row * 16, contents.begin() + row * 16 + 10);
  }
  // Within one row; from the middle of one row to the middle of another; whole rows; the last byte.
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges = {{13, 17}, {25, 777}, {100, 300}, {999, 1000}};
  const MutableBytes chunk = under_test_->MakeHostMemory(4096);

  for (const auto& [begin, end] : ranges) {
    std::fill(chunk.begin(), chunk.end(), std::byte{0});
    ASSERT_EQ(CopyAndWait(device(),
                          {.pieces = {{&rows, begin, end, chunk.data()}, {&whole, begin, end, chunk.data() + 2048}}}),
              Status::Ok());
    const auto from = static_cast<std::ptrdiff_t>(begin);
    const auto size = static_cast<std::ptrdiff_t>(end - begin);
    EXPECT_TRUE(std::equal(logical.begin() + from, logical.begin() + from + size, chunk.begin())) << begin;
    EXPECT_TRUE(std::equal(contents.begin() + from, contents.begin() + from + size, chunk.begin() + 2048)) << begin;
    EXPECT_EQ(chunk[end - begin], std::byte{0});
  }

  const std::vector<std::byte> changed = Pattern(752, 5);
  std::copy(changed.begin(), changed.end(), chunk.begin());
  ASSERT_EQ(CopyAndWait(device(), {.direction = CopyDirection::kToDevice, .pieces = {{&rows, 25, 777, chunk.data()}}}),
            Status::Ok());
  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&rows, 0, 1000, chunk.data()}}}), Status::Ok());
  std::copy(changed.begin(), changed.end(), logical.begin() + 25);
  EXPECT_TRUE(std::equal(logical.begin(), logical.end(), chunk.begin()));
}

// Rows of 12 bytes: one every 16 bytes of a chunk, from and to every 20 logical bytes of tensors.
TEST_P(DeviceContract, CopiesOnlyTheRowsOfAPiece) {
  constexpr std::uint64_t kRows = 5000;
  const std::vector<std::byte> contents = Pattern(kRows * 32, 8);
  const MutableBytes chunk = under_test_->MakeHostMemory(kRows * 16);
  // Contiguous; with evenly spaced rows; with rows that the piece cuts.
  for (const auto& [row_bytes, stride] : {std::pair<std::uint64_t, std::int64_t>{0, 0}, {20, 32}, {25, 40}}) {
    std::byte* const at = under_test_->MakeTensor(contents);
    const StridedLayout tensor = stride == 0
                                     ? Contiguous(at, kRows * 20)
                                     : Rows(at, row_bytes, static_cast<std::int64_t>(kRows * 20 / row_bytes), stride);
    std::vector<std::byte> expected = contents;
    StridedLayout host = tensor;
    host.base = expected.data();
    const std::vector<std::byte> source = Pattern(chunk.size(), 9);
    std::copy(source.begin(), source.end(), chunk.begin());
    ScatterRows(host, {.begin = 3, .bytes = 12, .rows = kRows, .pitch = 20}, source.data(), 16);
    const CopyPiece piece{.tensor = &tensor,
                          .begin = 3,
                          .end = 15,
                          .memory = chunk.data(),
                          .rows = kRows,
                          .tensor_pitch = 20,
                          .memory_pitch = 16};

    ASSERT_EQ(CopyAndWait(device(), {.direction = CopyDirection::kToDevice, .pieces = {piece}}), Status::Ok());

    EXPECT_TRUE(under_test_->ReadTensor(at, expected.size()) == expected) << row_bytes;
    std::fill(chunk.begin(), chunk.end(), std::byte{0});
    std::vector<std::byte> back(chunk.size());
    for (std::size_t i = 0; i < source.size(); ++i) back[i] = i % 16 < 12 ? source[i] : std::byte{0};
    ASSERT_EQ(CopyAndWait(device(), {.pieces = {piece}}), Status::Ok());
    EXPECT_TRUE(Copied(chunk) == back) << row_bytes;
    CopyPiece beyond = piece;
    ++beyond.rows;
    EXPECT_EQ(device().Copy({.direction = CopyDirection::kToDevice, .pieces = {beyond}}, [](const Status&) {}).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(DeviceContract, EmptyBatchesAndTensorsOfNoBytesAreDone) {
  const StridedLayout nothing = Contiguous(nullptr, 0);
  const std::vector<std::byte> contents = Pattern(8, 6);
  const StridedLayout some = Contiguous(under_test_->MakeTensor(contents), 8);
  const MutableBytes chunk = under_test_->MakeHostMemory(4096);

  EXPECT_EQ(CopyAndWait(device(), {}), Status::Ok());
  EXPECT_EQ(CopyAndWait(device(), {.pieces = {{&nothing, 0, 0, nullptr}}}), Status::Ok());
  EXPECT_EQ(CopyAndWait(device(), {.pieces = {{&nothing, 0, 0, chunk.data()},
                                              {&some, 0, 8, chunk.data()},
                                              {&nothing, 0, 0, chunk.data() + 8},
                                              {&some, 8, 8, chunk.data() + 8}}}),
            Status::Ok());

  EXPECT_EQ(Copied(chunk.first(8)), contents);
  EXPECT_EQ(device().CheckLayout(nothing), Status::Ok());
}

TEST_P(DeviceContract, BatchesOfOneLaneRunInOrder) {
  constexpr std::uint64_t kBytes = 3 * kChecksumBlock;
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(kBytes, 0)), kBytes);
  constexpr int kRounds = 8;
  std::vector<MutableBytes> in;
  std::vector<MutableBytes> out;
  for (int i = 0; i < kRounds; ++i) {
    in.push_back(under_test_->MakeHostMemory(kBytes));
    out.push_back(under_test_->MakeHostMemory(kBytes));
    const std::vector<std::byte> contents = Pattern(kBytes, 10 + i);
    std::copy(contents.begin(), contents.end(), in.back().begin());
  }

  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(device().Copy(
                  {.direction = CopyDirection::kToDevice, .lane = 1, .pieces = {{&tensor, 0, kBytes, in[i].data()}}},
                  [](const Status& status) { EXPECT_EQ(status, Status::Ok()); }),
              Status::Ok());
    ASSERT_EQ(device().Copy({.lane = 1, .pieces = {{&tensor, 0, kBytes, out[i].data()}}},
                            [](const Status& status) { EXPECT_EQ(status, Status::Ok()); }),
              Status::Ok());
  }
  ASSERT_EQ(CopyAndWait(device(), {.lane = 1}), Status::Ok());

  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(std::equal(in[i].begin(), in[i].end(), out[i].begin())) << i;
}

TEST_P(DeviceContract, DoneIsCalledOnceAndNeverWithinCopy) {
  constexpr int kBatches = 200;
  const std::vector<std::byte> contents = Pattern(5000, 7);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(contents), contents.size());
  const MutableBytes chunk = under_test_->MakeHostMemory(2 * AlignUp(contents.size(), kBlock));
  Mutex mutex;
  CondVar changed;
  int calls = 0;

  {
    // Locked around Copy: a `done` called within Copy would deadlock.
    MutexLock lock(mutex);
    for (int i = 0; i < kBatches; ++i) {
      std::byte* const to = chunk.data() + (i % 2) * AlignUp(contents.size(), kBlock);
      ASSERT_EQ(device().Copy({.lane = i % 2, .pieces = {{&tensor, 0, contents.size(), to}}},
                              [&](const Status& status) {
                                EXPECT_EQ(status, Status::Ok());
                                MutexLock in_done(mutex);
                                ++calls;
                                changed.NotifyAll();
                              }),
                Status::Ok());
    }
    while (calls < kBatches) changed.Wait(mutex);
  }
  ASSERT_EQ(CopyAndWait(device(), {.lane = 0}), Status::Ok());
  ASSERT_EQ(CopyAndWait(device(), {.lane = 1}), Status::Ok());

  MutexLock lock(mutex);
  EXPECT_EQ(calls, kBatches);
}

TEST_P(DeviceContract, SumsCoverBlocksFromTheBatchStart) {
  if (const Status sums = device().CheckSums({}); !sums.ok()) GTEST_SKIP() << sums;
  // Pieces of odd sizes over three and a half blocks: blocks begin within pieces, and one piece spans two.
  const std::vector<std::uint64_t> sizes = {1, 70'001, 0, 3, 2 * kChecksumBlock + 17, 4096, 1'400'000};
  std::vector<StridedLayout> layouts;
  std::vector<std::byte> expected;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    const std::vector<std::byte> contents = Pattern(sizes[i], 20 + i);
    layouts.push_back(Contiguous(under_test_->MakeTensor(contents), sizes[i]));
    expected.insert(expected.end(), contents.begin(), contents.end());
  }
  const MutableBytes chunk = under_test_->MakeHostMemory(expected.size());
  std::vector<std::uint32_t> sums(DivideUp(expected.size(), kChecksumBlock) + 1, 0xDEADBEEF);
  CopyBatch batch{.sums = sums.data()};
  std::byte* at = chunk.data();
  for (const StridedLayout& layout : layouts) {
    batch.pieces.push_back({&layout, 0, layout.bytes, at});
    at += layout.bytes;
  }

  ASSERT_EQ(CopyAndWait(device(), std::move(batch)), Status::Ok());

  EXPECT_TRUE(Copied(chunk) == expected);
  for (std::size_t block = 0; block + 1 < sums.size(); ++block) {
    const Bytes bytes = Bytes(expected).subspan(block * kChecksumBlock);
    EXPECT_EQ(sums[block], Crc32c(bytes.first(std::min<std::size_t>(bytes.size(), kChecksumBlock)))) << block;
  }
  EXPECT_EQ(sums.back(), 0xDEADBEEF);
}

TEST_P(DeviceContract, RefusesWhatCannotBeCopied) {
  const std::vector<std::byte> contents = Pattern(64, 8);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(contents), contents.size());
  const MutableBytes chunk = under_test_->MakeHostMemory(4096);
  const auto never = [](const Status&) { ADD_FAILURE() << "done of a refused batch"; };

  EXPECT_EQ(device().CheckLayout(Contiguous(nullptr, 8)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device().Copy({.lane = device().lanes()}, never).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device().Copy({.lane = -1}, never).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device().Copy({.pieces = {{&tensor, 0, 65, chunk.data()}}}, never).code(), StatusCode::kInvalidArgument);

  EXPECT_EQ(device().CheckLayout(tensor), Status::Ok());
  EXPECT_EQ(CopyAndWait(device(), {.pieces = {{&tensor, 0, 64, chunk.data()}}}), Status::Ok());
  EXPECT_EQ(device().Health(), Status::Ok());
}

TEST_P(DeviceContract, StagedBytesAreDrainedUnchanged) {
  constexpr std::uint64_t kBytes = 2 * kChecksumBlock;
  const std::vector<std::byte> contents = Pattern(kBytes, 9);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(contents), kBytes);
  const StridedLayout rows = Rows(under_test_->MakeTensor(contents), 512, 1024, 2048);
  const MutableBytes chunk = under_test_->MakeHostMemory(kBytes);
  Result<std::byte*> staging = device().AllocateStaging(kBytes + rows.bytes);
  ASSERT_EQ(staging.status(), Status::Ok());

  ASSERT_EQ(
      CopyAndWait(device(), {.direction = CopyDirection::kToStaging,
                             .pieces = {{&tensor, 0, kBytes, *staging}, {&rows, 0, rows.bytes, *staging + kBytes}}}),
      Status::Ok());
  // The caller overwrites its tensor; the staged bytes stay.
  std::fill(chunk.begin(), chunk.end(), std::byte{1});
  ASSERT_EQ(
      CopyAndWait(device(), {.direction = CopyDirection::kToDevice, .pieces = {{&tensor, 0, kBytes, chunk.data()}}}),
      Status::Ok());
  const StridedLayout staged = Contiguous(*staging, kBytes + rows.bytes);
  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&staged, 0, kBytes, chunk.data()}}}), Status::Ok());
  EXPECT_TRUE(Copied(chunk) == contents);

  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&staged, kBytes, staged.bytes, chunk.data()}}}), Status::Ok());
  for (std::ptrdiff_t row = 0; row < 1024; ++row) {
    ASSERT_TRUE(std::equal(chunk.begin() + row * 512, chunk.begin() + row * 512 + 512, contents.begin() + row * 2048));
  }
}

TEST_P(DeviceContract, PinsAndUnpinsHostMemory) {
  const auto memory = std::unique_ptr<std::byte, decltype(&std::free)>(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, 16 * kBlock)), &std::free);
  const std::vector<std::byte> contents = Pattern(16 * kBlock, 11);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(contents), contents.size());

  ASSERT_EQ(device().PinMemory({memory.get(), 16 * kBlock}), Status::Ok());
  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&tensor, 0, contents.size(), memory.get()}}}), Status::Ok());
  device().UnpinMemory({memory.get(), 16 * kBlock});

  EXPECT_EQ(Copied({memory.get(), 16 * kBlock}), contents);
}

TEST_P(DeviceContract, EventsAreLimited) {
  std::vector<EventId> events;
  Status last;
  while (events.size() < 1'000'000) {
    Result<EventId> event = device().AcquireEvent();
    last = event.status();
    if (!event.ok()) break;
    EXPECT_NE(*event, 0U);
    events.push_back(*event);
  }
  EXPECT_EQ(last.code(), StatusCode::kResourceExhausted);
  std::sort(events.begin(), events.end());
  EXPECT_EQ(std::adjacent_find(events.begin(), events.end()), events.end());

  device().ReleaseEvent(events.back());
  const Result<EventId> again = device().AcquireEvent();

  ASSERT_EQ(again.status(), Status::Ok());
  EXPECT_EQ(*again, events.back());
  for (const EventId event : events) device().ReleaseEvent(event);
}

TEST_P(DeviceContract, FencesWithoutStreamsReturnOkAtOnce) {
  if (device().has_streams()) GTEST_SKIP() << "this device has streams";
  const Result<EventId> event = device().AcquireEvent();
  ASSERT_TRUE(event.ok());

  EXPECT_EQ(device().RecordOnStream({device().id(), 0}, *event), Status::Ok());
  EXPECT_EQ(device().LaneWait(0, *event), Status::Ok());
  EXPECT_EQ(device().RecordOnLane(0, *event), Status::Ok());
  EXPECT_EQ(device().StreamWait({device().id(), 0}, *event), Status::Ok());
  device().ReleaseEvent(*event);
}

}  // namespace cairn
