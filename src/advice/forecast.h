#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "advice/layouts.h"
#include "base/tensor_table.h"
#include "format/shard_header.h"
#include "restore/plan.h"

namespace cairn {

// What a restore in another layout would read, planned by the engine's own planner without any data. Pure.

/// The shards that a job would save, one a rank. What several ranks hold is written once, as cairn.dcp does: the
/// largest first, by the rank that has the least to write; of the small ones, all that the same ranks hold by one.
class ForecastSave {
 public:
  /// The layout was checked. InvalidArgument for a model that cannot be saved.
  [[nodiscard]] static Result<ForecastSave> Make(const Model& model, const Layout& layout);

  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<ShardHeader>& headers() const { return headers_; }
  /// The shards that hold a part of any of these, and `own` if there is such a shard: those whose headers a restore
  /// reads.
  [[nodiscard]] std::vector<bool> ShardsFor(std::span<const ShardTensor> wanted, int own) const;

 private:
  Layout layout_;
  std::vector<ShardHeader> headers_;
  struct Piece {
    std::uint32_t shard = 0;
    const ShardTensor* tensor = nullptr;
  };
  // By logical name.
  std::unordered_map<std::string_view, std::vector<Piece>> pieces_;
};

/// What a rank of the new job reads from one shard.
struct ShardForecast {
  std::uint32_t shard = 0;
  /// Bytes that the rank's tensors need.
  std::uint64_t needed = 0;
  /// Bytes of the requests: whole blocks under a checksum.
  std::uint64_t read = 0;
  /// Of these, bytes between the rows of tensors that were cut otherwise along a row.
  std::uint64_t between_rows = 0;
  std::uint64_t header = 0;
};

/// The plan of one rank of the new job.
struct RankForecast {
  /// What it wants: its tensors, without padding whose size changes. Their addresses mean nothing.
  std::unique_ptr<TensorTable> table;
  MatchedTensors matched;
  std::vector<PlannedRead> reads;
  /// Those whose headers it reads.
  std::vector<ShardForecast> shards;

  [[nodiscard]] std::uint64_t needed() const;
  /// Data and headers.
  [[nodiscard]] std::uint64_t read() const;
};

/// InvalidArgument names the tensors that the save does not hold.
[[nodiscard]] Result<RankForecast> ForecastRestore(const ForecastSave& save, const Model& model, const Layout& layout,
                                                   int rank, std::uint64_t chunk_bytes);

/// Bytes of all ranks of one replica, by stage.
[[nodiscard]] std::vector<std::uint64_t> StageBytes(const Model& model, const Layout& layout);

/// For each host of the new job: bytes that its ranks hold and no rank of the old job on that host held. Replicas on
/// one host count once. Ranks fill hosts in order.
[[nodiscard]] std::vector<std::uint64_t> BytesAcrossHosts(const Model& model, const Layout& from, const Layout& to,
                                                          int gpus_per_host);

}  // namespace cairn
