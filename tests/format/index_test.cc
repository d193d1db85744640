#include "format/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "format/index_bytes.h"
#include "format/index_samples.h"
#include "format/shard_bytes.h"
#include "support/points.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

IndexPieces Whole(std::uint32_t shard) { return {.shard = shard}; }

TEST(Index, BytesAreAsDocumented) {
  // The exact bytes of docs/format.md: files of this version stay readable forever.
  const std::vector<ShardHeader> shards = DocumentedIndex();

  const auto built = Build(shards);

  ASSERT_TRUE(built);
  EXPECT_EQ(HexOf(built->bytes),
            "00 04 62 69 61 73 00 00 "
            "00 06 77 65 69 67 68 74 05 00 04 01 00 02 00 00 02 03 "
            "01 04 01 04 62 69 61 73 1a 38 d9 ae 73");
  EXPECT_EQ(built->head_bytes, 13U);
  EXPECT_EQ(built->head_digest, 0x26773be7U);
}

TEST(Index, NothingToIndexGivesNoBlocks) {
  const std::vector<std::string> empty_runs(3, EncodeIndexRun(ShardHeader()));

  for (const std::vector<std::string>& runs : {std::vector<std::string>(), empty_runs}) {
    const auto built = BuildIndex(runs);
    ASSERT_TRUE(built);
    const auto head = DecodeHead(*built, runs.size());
    ASSERT_TRUE(head.ok()) << head.status();
    EXPECT_THAT(head->blocks(), IsEmpty());
    EXPECT_EQ(head->Find("any"), std::pair(std::size_t{0}, std::size_t{0}));
  }
}

TEST(Index, EvenPartsAreOneEntry) {
  std::vector<ShardHeader> shards(1024);
  for (std::int64_t rank = 0; rank < 1024; ++rank) AddPart(shards[rank], "w", {2048, 8}, {2 * rank, 0}, {2, 8});

  const auto entries = EntriesOf(shards);

  EXPECT_THAT(entries, ElementsAre(Entry{"w", IndexPieces{.shard = 0,
                                                          .count = 1024,
                                                          .shard_step = 1,
                                                          .along = 0,
                                                          .offset_step = 2,
                                                          .offset = {0, 0},
                                                          .shape = {2, 8}}}));
}

TEST(Index, UnevenEndIsASeparateEntry) {
  // As torch splits 10 rows over 6 ranks: 2, 2, 2, 2, 2 and none.
  std::vector<ShardHeader> shards(6);
  for (std::int64_t rank = 0; rank < 5; ++rank) AddPart(shards[rank], "w", {10, 3}, {2 * rank, 0}, {2, 3});
  AddPart(shards[5], "w", {10, 3}, {10, 0}, {0, 3});

  const auto entries = EntriesOf(shards);

  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].second.count, 5U);
  EXPECT_EQ(entries[1].second, (IndexPieces{.shard = 5, .offset = {10, 0}, .shape = {0, 3}}));
}

TEST(Index, ReplicasAreOneEntry) {
  std::vector<ShardHeader> shards(6);
  for (const std::size_t rank : {1U, 3U, 5U}) AddWhole(shards[rank], "step", {});
  for (const std::size_t rank : {0U, 2U}) AddPart(shards[rank], "w", {8}, {4}, {4});

  const auto entries = EntriesOf(shards);

  EXPECT_THAT(entries, ElementsAre(Entry{"step", IndexPieces{.shard = 1, .count = 3, .shard_step = 2}},
                                   Entry{"w", IndexPieces{.count = 2, .shard_step = 2, .offset = {4}, .shape = {4}}}));
}

TEST(Index, ReplicatedPartsAreOneEntryPerReplica) {
  // Two replicas of four parts each, as in HSDP: rank = replica * 4 + part.
  std::vector<ShardHeader> shards(8);
  for (std::int64_t rank = 0; rank < 8; ++rank) AddPart(shards[rank], "w", {8}, {rank % 4 * 2}, {2});

  const auto entries = EntriesOf(shards);

  ASSERT_THAT(entries, SizeIs(2));
  for (std::uint32_t replica = 0; replica < 2; ++replica) {
    EXPECT_EQ(entries[replica].second,
              (IndexPieces{
                  .shard = replica * 4, .count = 4, .shard_step = 1, .offset_step = 2, .offset = {0}, .shape = {2}}));
  }
}

TEST(Index, GridIsOneEntryPerRowOrColumn) {
  // Four rows and two columns, with ranks in column order and in row order.
  for (const bool down : {true, false}) {
    std::vector<ShardHeader> shards(8);
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t column = 0; column < 2; ++column) {
        AddPart(shards[down ? column * 4 + row : row * 2 + column], "w", {8, 6}, {row * 2, column * 3}, {2, 3});
      }
    }

    const auto entries = EntriesOf(shards);

    EXPECT_THAT(entries, SizeIs(down ? 2 : 4));
    EXPECT_EQ(PiecesOf(entries), PiecesOf(shards));
  }
}

TEST(Index, IrregularPartsRoundTrip) {
  std::vector<ShardHeader> shards(7);
  const std::vector<std::int64_t> begins{0, 1, 3, 4, 9, 10, 11, 20};
  const std::vector<std::size_t> order{3, 0, 6, 5, 1, 4, 2};
  for (std::size_t i = 0; i < 7; ++i) {
    AddPart(shards[order[i]], "w", {20, 2}, {begins[i], 0}, {begins[i + 1] - begins[i], 2});
  }

  const auto entries = EntriesOf(shards);

  EXPECT_EQ(PiecesOf(entries), PiecesOf(shards));
  EXPECT_TRUE(std::is_sorted(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.first, a.second.offset, a.second.shard) < std::tie(b.first, b.second.offset, b.second.shard);
  }));
}

TEST(Index, DiagonalIsOneEntryPerPiece) {
  std::vector<ShardHeader> shards(4);
  for (std::int64_t rank = 0; rank < 4; ++rank) AddPart(shards[rank], "w", {8, 12}, {rank * 2, rank * 3}, {2, 3});

  const auto entries = EntriesOf(shards);

  EXPECT_THAT(entries, SizeIs(4));
  EXPECT_EQ(PiecesOf(entries), PiecesOf(shards));
}

TEST(Index, PartsInReverseOrder) {
  std::vector<ShardHeader> shards(4);
  for (std::int64_t rank = 0; rank < 4; ++rank) AddPart(shards[rank], "w", {8}, {6 - 2 * rank}, {2});

  EXPECT_EQ(PiecesOf(EntriesOf(shards)), PiecesOf(shards));
}

TEST(Index, SeveralPartsInOneShardAreSeveralEntries) {
  std::vector<ShardHeader> shards(2);
  for (std::int64_t i = 0; i < 4; ++i) AddPart(shards[i / 2], "w", {8}, {2 * i}, {2}, "stored as " + std::to_string(i));

  const auto entries = EntriesOf(shards);

  EXPECT_EQ(PiecesOf(entries), PiecesOf(shards));
  for (const auto& [name, pieces] : entries) EXPECT_EQ(name, "w");
}

TEST(Index, NameThatIsWholeInOneShardAndAPartInAnother) {
  std::vector<ShardHeader> shards(3);
  AddPart(shards[0], "w", {4}, {0}, {4});
  AddWhole(shards[1], "w", {4});
  AddPart(shards[2], "w", {4, 1}, {0, 0}, {4, 1});

  const auto entries = EntriesOf(shards);

  EXPECT_THAT(entries, ElementsAre(Entry{"w", Whole(1)},  //
                                   Entry{"w", IndexPieces{.shard = 0, .offset = {0}, .shape = {4}}},
                                   Entry{"w", IndexPieces{.shard = 2, .offset = {0, 0}, .shape = {4, 1}}}));
}

TEST(Index, AliasHasTheBoxOfItsTensor) {
  std::vector<ShardHeader> shards(2);
  AddPart(shards[0], "embed", {8, 4}, {2, 0}, {2, 4});
  AddWhole(shards[1], "norm", {4});
  shards[0].aliases = {{"head", "embed"}};
  shards[1].aliases = {{"a", "norm"}, {"z", "norm"}};

  const auto entries = EntriesOf(shards);

  const IndexPieces part{.shard = 0, .offset = {2, 0}, .shape = {2, 4}};
  EXPECT_THAT(entries, ElementsAre(Entry{"a", Whole(1)}, Entry{"embed", part}, Entry{"head", part},
                                   Entry{"norm", Whole(1)}, Entry{"z", Whole(1)}));
}

TEST(Index, DuplicatePieceInOneShardIsOneEntry) {
  std::vector<ShardHeader> shards(1);
  AddPart(shards[0], "w", {8}, {0}, {2}, "one");
  AddPart(shards[0], "w", {8}, {0}, {2}, "two");

  EXPECT_THAT(EntriesOf(shards), SizeIs(1));
}

TEST(Index, EmptyTensorsAndScalarsAreIndexed) {
  std::vector<ShardHeader> shards(1);
  AddWhole(shards[0], "empty", {0, 4});
  AddWhole(shards[0], "scalar", {});
  AddPart(shards[0], "scalar part", {}, {}, {});
  AddWhole(shards[0], "", {1});

  EXPECT_THAT(EntriesOf(shards), ElementsAre(Entry{"", Whole(0)}, Entry{"empty", Whole(0)}, Entry{"scalar", Whole(0)},
                                             Entry{"scalar part", Whole(0)}));
}

TEST(Index, NamesAreSortedAsBytes) {
  std::vector<ShardHeader> shards(3);
  const std::vector<std::string> names{"a", "a\x01", "ab", "b", "\x7f", "\xc3\xa9", "\xf0\x9f\x90\xa7", "a.b"};
  for (std::size_t i = 0; i < names.size(); ++i) AddWhole(shards[i % 3], names[i], {1});

  std::vector<std::string> found;
  for (const auto& [name, pieces] : EntriesOf(shards)) found.push_back(name);

  EXPECT_THAT(found, ElementsAre("a", "a\x01", "a.b", "ab", "b", "\x7f", "\xc3\xa9", "\xf0\x9f\x90\xa7"));
}

TEST(Index, EveryNameIsFoundOverManyBlocks) {
  const std::vector<ShardHeader> shards = ManyNames(9, 3000);
  const auto built = Build(shards);
  ASSERT_TRUE(built);
  const auto head = DecodeHead(*built, shards.size());
  ASSERT_TRUE(head.ok()) << head.status();
  ASSERT_GT(head->blocks().size(), 3U);

  std::map<std::string, std::set<Piece>> by_name;
  for (const Piece& piece : PiecesOf(shards)) by_name[std::get<0>(piece)].insert(piece);
  Sample tried(4);
  int nth = 0;
  for (const auto& [name, pieces] : by_name) {
    const bool begins_a_block =
        std::any_of(head->blocks().begin(), head->blocks().end(),
                    [&wanted = name](const IndexHead::Block& block) { return block.first_name == wanted; });
    if ((++nth % 199 != 0 && !begins_a_block) || !tried.Takes()) continue;
    const auto [first, last] = head->Find(name);
    ASSERT_LE(last - first, 2U) << name;
    std::vector<Entry> entries;
    for (std::size_t b = first; b < last; ++b) {
      for (Entry& entry : EntriesOfBlock(*built, head->blocks()[b], shards.size())) {
        if (entry.first == name) entries.push_back(std::move(entry));
      }
    }
    ASSERT_EQ(PiecesOf(entries), pieces) << name;
  }
}

TEST(Index, NameMaySpanSeveralBlocks) {
  // 40,000 pieces that fit no sequence.
  std::vector<ShardHeader> shards(20);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < 40'000; ++i) {
    const std::int64_t extent = 1 + i * 7919 % 1000;
    AddPart(shards[i * 31 % 20], "w", {40'000'000}, {begin}, {extent}, "w" + std::to_string(i));
    begin += extent;
  }
  AddWhole(shards[0], "a", {1});
  AddWhole(shards[19], "z", {1});

  const auto built = Build(shards);
  ASSERT_TRUE(built);
  const auto head = DecodeHead(*built, shards.size());
  ASSERT_TRUE(head.ok()) << head.status();

  const auto [first, last] = head->Find("w");
  EXPECT_GT(last - first, 4U);
  EXPECT_EQ(head->Find("a").second, 1U);
  EXPECT_EQ(head->Find("z").second, head->blocks().size());
  EXPECT_EQ(PiecesOf(EntriesOf(shards)), PiecesOf(shards));
}

TEST(Index, FindsNoBlockForANameBeforeTheFirst) {
  const std::vector<ShardHeader> shards = ManyNames(2, 10);
  const auto built = Build(shards);
  ASSERT_TRUE(built);
  const auto head = DecodeHead(*built, shards.size());
  ASSERT_TRUE(head.ok()) << head.status();

  EXPECT_EQ(head->Find("!"), std::pair(std::size_t{0}, std::size_t{0}));
  EXPECT_EQ(head->Find("\xff"), std::pair(std::size_t{0}, std::size_t{1}));
}

TEST(Index, ReadingStopsOnRequest) {
  const std::vector<ShardHeader> shards = ManyNames(2, 10);
  const auto built = Build(shards);
  ASSERT_TRUE(built);
  const auto head = DecodeHead(*built, shards.size());
  ASSERT_TRUE(head.ok()) << head.status();

  int calls = 0;
  const Status read = ReadIndexBlock(BlockOf(*built, head->blocks()[0]), head->blocks()[0], shards.size(), "i",
                                     [&](std::string_view, const IndexPieces&) { return ++calls < 3; });

  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(calls, 3);
}

TEST(Index, ShardsBeyondItsLimitsGiveNoIndex) {
  std::vector<ShardHeader> long_name(1);
  AddWhole(long_name[0], std::string(4097, 'n'), {1});
  std::vector<ShardHeader> many_dimensions(1);
  const std::vector<std::int64_t> ones(65, 1);
  AddPart(many_dimensions[0], "w", ones, std::vector<std::int64_t>(65, 0), ones);
  std::vector<ShardHeader> far(1);
  const std::int64_t most = std::int64_t{1} << 62;
  AddPart(far[0], "w", {0, most + 1}, {0, most}, {0, 1});

  for (const auto& shards : {long_name, many_dimensions, far}) {
    EXPECT_EQ(EncodeIndexRun(shards[0]), "");
    EXPECT_FALSE(Build(shards));
  }
}

TEST(Index, ShardsAtItsLimitsRoundTrip) {
  std::vector<ShardHeader> shards(1);
  const std::vector<std::int64_t> ones(64, 1);
  const std::int64_t most = std::int64_t{1} << 62;
  AddWhole(shards[0], std::string(4096, 'n'), {1});
  AddPart(shards[0], "dimensions", ones, std::vector<std::int64_t>(64, 0), ones);
  AddPart(shards[0], "far", {0, most}, {0, most - 1}, {0, 1});

  EXPECT_EQ(PiecesOf(EntriesOf(shards)), PiecesOf(shards));
}

TEST(Index, TooLongAnIndexIsNotBuilt) {
  // Names of 4,096 bytes that share nothing but their first bytes.
  std::string run(1, '\1');
  const std::string rest(4092, 'n');
  for (std::uint32_t i = 0; i < 66'000; ++i) {
    std::string name{static_cast<char>(i >> 16), static_cast<char>(i >> 8), static_cast<char>(i), 'x'};
    std::size_t shared = 0;
    if (i != 0) shared = i % 65'536 == 0 ? 0 : i % 256 == 0 ? 1 : 2;
    AppendNextName(run, name + rest, shared);
    run += '\0';
  }

  EXPECT_FALSE(BuildIndex(std::vector{run}));
}

TEST(Index, IndexOfAThousandRanksIsSmall) {
  const auto even = Build(EvenlyCut(1024, 100));
  const auto different = Build(ManyNames(1024, 100));

  ASSERT_TRUE(even);
  EXPECT_LT(even->bytes.size(), 10'000U);
  ASSERT_TRUE(different);
  EXPECT_LT(different->bytes.size(), 6'400'000U);
}

}  // namespace
}  // namespace cairn
