// A checkpoint of four ranks, restored by other numbers of ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/wiring.h"
#include "cairn/cairn.h"
#include "support/all_ranks.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using ::testing::HasSubstr;
using Range = std::pair<std::int64_t, std::int64_t>;
using Ranks = std::vector<std::unique_ptr<Checkpointer>>;

constexpr std::int64_t kRows = 1003;
constexpr std::int64_t kColumns = 614;
constexpr int kSaved = 4;

float Element(std::int64_t row, std::int64_t column) { return static_cast<float>(row * kColumns + column); }

// The part of [0, size) of rank `rank` of `world`: like torch's chunks, the last ones may be short or empty.
Range Chunk(std::int64_t size, int rank, int world) {
  const std::int64_t each = (size + world - 1) / world;
  return {std::min(size, each * rank), std::min(size, each * (rank + 1))};
}

// A box of "w" in its own memory, with rows `spare` elements apart.
struct Part {
  Part(Range its_rows, Range its_columns, std::int64_t spare = 0)
      : rows(its_rows),
        columns(its_columns),
        pitch(columns.second - columns.first + spare),
        memory(static_cast<std::size_t>((rows.second - rows.first) * pitch), -1.0F) {}

  [[nodiscard]] TensorView View(const std::string& logical, bool whole = false) {
    TensorView view{.data = memory.data(),
                    .shape = {rows.second - rows.first, columns.second - columns.first},
                    .strides = {pitch, 1}};
    if (!whole) view.part = TensorPart{logical, {kRows, kColumns}, {rows.first, columns.first}};
    return view;
  }
  float& At(std::int64_t row, std::int64_t column) {
    return memory[static_cast<std::size_t>((row - rows.first) * pitch + column - columns.first)];
  }
  void Fill(float sign) {
    for (std::int64_t r = rows.first; r < rows.second; ++r) {
      for (std::int64_t c = columns.first; c < columns.second; ++c) At(r, c) = sign * Element(r, c);
    }
  }
  [[nodiscard]] std::int64_t Wrong(float sign) {
    std::int64_t wrong = 0;
    for (std::int64_t r = rows.first; r < rows.second; ++r) {
      for (std::int64_t c = columns.first; c < columns.second; ++c) wrong += At(r, c) == sign * Element(r, c) ? 0 : 1;
    }
    return wrong;
  }

  Range rows;
  Range columns;
  std::int64_t pitch;
  std::vector<float> memory;
};

/// Saved: "w" and its moment "m" by rows over four ranks, and each rank's value.
class Reshard : public testing::Test {
 protected:
  Reshard() {
    const Ranks ranks = Open(kSaved);
    std::vector<std::unique_ptr<Part>> parts;
    std::vector<SaveHandle> saves;
    for (int rank = 0; rank < kSaved; ++rank) {
      State state;
      for (const char* name : {"w", "m"}) {
        parts.push_back(std::make_unique<Part>(Chunk(kRows, rank, kSaved), Range(0, kColumns)));
        parts.back()->Fill(*name == 'w' ? 1.0F : 0.5F);
        EXPECT_EQ(state.Add(name, parts.back()->View(name)), Status::Ok());
      }
      EXPECT_EQ(state.Set("rank", std::int64_t{rank}), Status::Ok());
      auto save = ranks[static_cast<std::size_t>(rank)]->Save(5, state);
      EXPECT_TRUE(save.ok()) << save.status();
      saves.push_back(*save);
    }
    for (const SaveHandle& save : saves)
      EXPECT_EQ(save.WaitDurable(Deadline::In(std::chrono::seconds(60))), Status::Ok());
  }

  [[nodiscard]] Ranks Open(int world) const {
    Ranks ranks;
    for (const auto& group : MakeLocalGroup(world)) {
      Options options{.root = dir_ / "run",
                      .group = group,
                      .host_memory_bytes = 4_MiB,
                      .chunk_bytes = 1_MiB,
                      .queue_depth = 2,
                      .worker_threads = 2};
      options.on_event = [this](const Event& event) { Heard(event); };
      auto opened = Checkpointer::Open(options);
      EXPECT_TRUE(opened.ok()) << opened.status();
      ranks.push_back(*std::move(opened));
    }
    return ranks;
  }

  /// How often a restore has read all headers for lack of a good index.
  [[nodiscard]] int all_headers_read() const { return all_headers_read_; }

  const TempDir dir_;

 private:
  void Heard(const Event& event) const {
    if (event.message.find("the headers of all") != std::string::npos) ++all_headers_read_;
  }
  mutable std::atomic<int> all_headers_read_ = 0;
};

TEST_F(Reshard, RestoresOnFewerRanksByRows) {
  const Ranks ranks = Open(2);
  OnAllRanks(2, [&](int rank) {
    Part w(Chunk(kRows, rank, 2), {0, kColumns});
    Part m(Chunk(kRows, rank, 2), {0, kColumns}, 3);
    State state;
    EXPECT_EQ(state.Add("w", w.View("w")), Status::Ok());
    EXPECT_EQ(state.Add("m", m.View("m")), Status::Ok());

    const auto restored = ranks[static_cast<std::size_t>(rank)]->Restore(Latest(), state);

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->tensors, 2U);
    EXPECT_EQ(restored->values.at("rank"), Value(std::int64_t{rank}));
    EXPECT_EQ(w.Wrong(1.0F), 0);
    EXPECT_EQ(m.Wrong(0.5F), 0);
  });
  EXPECT_EQ(all_headers_read(), 0);
}

TEST_F(Reshard, RestoresOnMoreRanksByRowsAndByColumns) {
  const Ranks ranks = Open(8);
  OnAllRanks(8, [&](int rank) {
    Part w(Chunk(kRows, rank, 8), {0, kColumns});
    Part m({0, kRows}, Chunk(kColumns, rank, 8), rank);
    State state;
    EXPECT_EQ(state.Add("w", w.View("w")), Status::Ok());
    EXPECT_EQ(state.Add("m by columns", m.View("m")), Status::Ok());

    const auto restored = ranks[static_cast<std::size_t>(rank)]->Restore(Latest(), state);

    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->values.size(), rank < kSaved ? 1U : 0U) << "a rank that did not save has no values";
    EXPECT_EQ(w.Wrong(1.0F), 0);
    EXPECT_EQ(m.Wrong(0.5F), 0);
  });
  EXPECT_EQ(all_headers_read(), 0);
}

TEST_F(Reshard, RestoresWholeOnOneRankAndContinues) {
  const Ranks one = Open(1);
  Part w({0, kRows}, {0, kColumns});
  Part m({0, kRows}, {0, kColumns}, 5);
  State state;
  ASSERT_EQ(state.Add("w", w.View("w", true)), Status::Ok());
  ASSERT_EQ(state.Add("m", m.View("m", true)), Status::Ok());

  const auto restored = one[0]->Restore(Latest(), state);

  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(w.Wrong(1.0F), 0);
  EXPECT_EQ(m.Wrong(0.5F), 0);
  const auto save = one[0]->Save(6, state);
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitDurable(), Status::Ok());
  Part corner({900, kRows}, {600, kColumns});
  State from_whole;
  ASSERT_EQ(from_whole.Add("corner", corner.View("m")), Status::Ok());
  ASSERT_TRUE(one[0]->Restore(Step(6), from_whole).ok());
  EXPECT_EQ(corner.Wrong(0.5F), 0);
}

TEST_F(Reshard, FindsAFlippedBitInANeededBlock) {
  const std::string path = dir_ / "run/step-00000000000000000005/shard-00002.safetensors";
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(byte);
  }
  const Ranks one = Open(1);
  Part w({0, kRows}, {0, kColumns});
  State state;
  ASSERT_EQ(state.Add("w", w.View("w", true)), Status::Ok());

  const auto restored = one[0]->Restore(Latest(), state);

  EXPECT_EQ(restored.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.status().message(), HasSubstr("shard-00002"));
}

}  // namespace
}  // namespace cairn
