// Which file frozen tensors are compared with, and what is taken from it, in the order in which checksums come.

#include "engine/kept_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cairn/tensor.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

using ::testing::SizeIs;

// Of a block each; those whose place is set are frozen, and nobody counts writes into them.
std::shared_ptr<const TensorTable> TableOf(std::vector<std::vector<std::byte>>& memory,
                                           const std::vector<bool>& frozen) {
  State state;
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    memory.emplace_back(kChecksumBlock);
    EXPECT_EQ(state.Add(std::string(1, static_cast<char>('a' + i)), {.data = memory.back().data(),
                                                                     .dtype = DType::kU8,
                                                                     .shape = {kChecksumBlock},
                                                                     .bytes = kChecksumBlock,
                                                                     .frozen = frozen[i]}),
              Status::Ok());
  }
  return state.table();
}

std::shared_ptr<KeptFile> FileOf(std::shared_ptr<const TensorTable> table) {
  std::vector<bool> holds(table->size(), true);
  const std::uint64_t bytes = table->size() * kChecksumBlock;
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = 0; i < table->size(); ++i) sums.push_back(i);
  return std::make_shared<KeptFile>(KeptFile{.table = std::move(table),
                                             .holds = std::move(holds),
                                             .shard = {.file = "kept", .length = 4096 + bytes},
                                             .sums = std::move(sums)});
}

TEST(KeptComparison, WhatIsSummedBesideABlockThatDiffersIsWritten) {
  std::vector<std::vector<std::byte>> memory;
  const auto table = TableOf(memory, {true, true, true});
  Snapshot snapshot(table, {});
  snapshot.LayOut(kChecksumBlock, {.holds = {true, true, true}});
  KeptComparison comparison(snapshot, FileOf(table));
  const auto compare = [&](std::uint32_t block, std::uint32_t sum) {
    FilledChunk chunk;
    chunk.begin = snapshot.kept_begin() + block * kChecksumBlock;
    chunk.end = chunk.begin + kChecksumBlock;
    return comparison.Compare(chunk, std::vector{sum});
  };

  EXPECT_TRUE(compare(0, 0));
  EXPECT_FALSE(compare(2, 99));
  EXPECT_FALSE(compare(1, 1)) << "it is not copied, so it must not be dropped";

  const KeptCopy copies = comparison.Copies(8192);
  ASSERT_THAT(copies.pieces, SizeIs(1));
  EXPECT_EQ(copies.pieces[0].from, 4096U);
  EXPECT_EQ(copies.pieces[0].to, 8192U);
  EXPECT_EQ(copies.pieces[0].bytes, kChecksumBlock);
}

TEST(KeptComparison, IsWithAFileOfTheSameTensors) {
  std::vector<std::vector<std::byte>> memory;
  const auto before = FileOf(TableOf(memory, {true, true, true}));

  EXPECT_TRUE(ChooseKept(TableOf(memory, {true, true, true}), before.get(), {}).compared);
  EXPECT_FALSE(ChooseKept(TableOf(memory, {true, true, false}), before.get(), {}).compared) << "one is trained now";
  EXPECT_FALSE(ChooseKept(TableOf(memory, {true, true}), before.get(), {}).compared);
  EXPECT_FALSE(ChooseKept(TableOf(memory, {true, true, true, true}), before.get(), {}).compared);
}

}  // namespace
}  // namespace cairn
