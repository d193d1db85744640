// One rank's plan when a job of 64 ranks changes its layout: GPT-3 6.7B's shapes, 64 shards, no data. From the open
// checkpoint to the first read: headers and index read and decoded, tensors matched, reads planned.
//
//   build/release/bin/bench_micro --dir DIR --benchmark_filter=layouts
//
// Names are pipeline, tensor and data parallel ranks before and after. The time is the median over 8 ranks; "slowest"
// is that of the slowest of them in any turn, in seconds. Goal: 50 ms.
//
// Peer: reading the headers that hold wanted bytes, and parsing each with nlohmann::json.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "advice/forecast.h"
#include "advice/model_shapes.h"
#include "bench/micro/pair.h"
#include "format/index.h"
#include "format/manifest.h"
#include "restore/locate.h"
#include "store/names.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kReadBytes = 4U << 20;
constexpr int kRanksMeasured = 8;

// A checkpoint whose shards are headers, and holes where the data would be.
class HollowCheckpoint {
 public:
  HollowCheckpoint(const std::string& dir, const ForecastSave& save) : root_(dir) {
    std::filesystem::create_directory(folder());
    Manifest manifest{.step = 1, .attempt = save.headers()[0].attempt};
    manifest.world = save.headers().size();
    std::vector<std::string> runs;
    for (ShardHeader header : save.headers()) {
      header.step = 1;
      Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
      Check(writer.status());
      writer->SetSums(header.sums);
      const std::string path = folder() + "/" + ShardName(header.shard);
      std::ofstream(path, std::ios::binary) << writer->bytes();
      std::filesystem::resize_file(path, header.file_bytes());
      manifest.shards.push_back({ShardName(header.shard), header.file_bytes(), writer->digest()});
      header_bytes_.push_back(header.data_begin);
      runs.push_back(EncodeIndexRun(header));
    }
    const std::optional<BuiltIndex> index = BuildIndex(runs);
    Expect(index.has_value(), "layouts: the index was not built");
    std::ofstream(folder() + "/" + std::string(kIndexName), std::ios::binary) << index->bytes;
    manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                   .length = index->bytes.size(),
                                   .head = index->head_bytes,
                                   .digest = index->head_digest};
    std::ofstream(folder() + "/" + std::string(kManifestName), std::ios::binary) << EncodeManifest(manifest);
  }

  [[nodiscard]] std::string folder() const { return root_ / StepName(1); }
  // Its JSON text; safetensors puts its length before it.
  [[nodiscard]] std::string ReadHeader(std::uint32_t shard) const {
    std::string text(header_bytes_[shard], '\0');
    std::ifstream(folder() + "/" + ShardName(shard), std::ios::binary)
        .read(text.data(), static_cast<std::streamsize>(text.size()));
    return text.substr(8);
  }

 private:
  const TempDir root_;
  std::vector<std::uint64_t> header_bytes_;
};

class Change {
 public:
  Change(const std::string& dir, const Model& model, const Layout& from, const Layout& to)
      : save_(MakeSave(model, from)), checkpoint_(dir, save_) {
    const int step = std::max(1, to.ranks() / kRanksMeasured);
    for (int rank = 0; rank < to.ranks(); rank += step) {
      auto forecast = ForecastRestore(save_, model, to, rank, kReadBytes);
      Check(forecast.status());
      ranks_.emplace_back(rank, *std::move(forecast));
    }
    auto stored = ReadCheckpointFolder(checkpoint_.folder());
    Check(stored.status());
    stored_ = *std::move(stored);
    auto choice = ChooseIoQueue(IoQueueKind::kAuto, static_cast<int>(kHeaderReads));
    Check(choice.status());
    auto queue = choice->factory();
    Check(queue.status());
    queue_ = *std::move(queue);
  }

  double Plan() {
    std::vector<double> seconds;
    for (const auto& [rank, forecast] : ranks_) {
      std::vector<PlannedRead> reads;
      seconds.push_back(Timed([&, rank = rank, &forecast = forecast] { reads = PlanOf(rank, *forecast.table); })());
      Expect(reads == forecast.reads, "layouts: the plan differs from the forecast");
    }
    slowest_ = std::max(slowest_, *std::max_element(seconds.begin(), seconds.end()));
    return Median(seconds);
  }
  double Parse() const {
    std::vector<double> seconds;
    for (const auto& [rank, forecast] : ranks_) {
      seconds.push_back(Timed([&, &forecast = forecast] {
        for (const ShardForecast& shard : forecast.shards) {
          benchmark::DoNotOptimize(nlohmann::json::parse(checkpoint_.ReadHeader(shard.shard)));
        }
      })());
    }
    return Median(seconds);
  }
  void Report(benchmark::UserCounters& counters) const {
    const RankForecast& first = ranks_.front().second;
    counters["slowest"] = slowest_;
    counters["tensors"] = static_cast<double>(first.table->size());
    counters["headers"] = static_cast<double>(first.shards.size());
  }

 private:
  static ForecastSave MakeSave(const Model& model, const Layout& layout) {
    auto save = ForecastSave::Make(model, layout);
    Check(save.status());
    return *std::move(save);
  }
  std::vector<PlannedRead> PlanOf(int rank, const TensorTable& table) {
    auto opened = LockCheckpoint(stored_);
    Check(opened.status());
    const auto fail = [](const Event& event) { Expect(false, "layouts: " + event.message); };
    auto matched = LocateTensors(*queue_, stored_, static_cast<std::uint64_t>(rank), true, table, {}, fail, *opened);
    Check(matched.status());
    std::vector<PlannedRead> reads;
    for (std::uint32_t s = 0; s < opened->files.size(); ++s) {
      if (matched->copies[s].empty()) continue;
      const auto of_shard = PlanReads(s, opened->files[s].header, matched->copies[s], kReadBytes);
      reads.insert(reads.end(), of_shard.begin(), of_shard.end());
    }
    return reads;
  }

  const ForecastSave save_;
  const HollowCheckpoint checkpoint_;
  std::vector<std::pair<int, RankForecast>> ranks_;
  StoredCheckpoint stored_;
  std::unique_ptr<IoQueue> queue_;
  double slowest_ = 0;
};

}  // namespace

void AddLayouts(const Settings& settings) {
  const Model model = MakeGpt({.layers = static_cast<std::int64_t>(settings.Sized(32, 8)),
                               .hidden = 4096,
                               .heads = 32,
                               .feed_forward = 16384,
                               .positions = 2048,
                               .vocabulary = 50257});
  const std::vector<std::pair<Layout, Layout>> changes = {
      {{8, 8, 1}, {8, 8, 1}}, {{4, 8, 2}, {8, 4, 2}}, {{8, 2, 4}, {4, 8, 2}}, {{1, 1, 64}, {8, 8, 1}}};
  for (const auto& [from, to] : changes) {
    std::string name = "layouts/" + ToString(from) + "_to_" + ToString(to);
    std::replace(name.begin(), name.end(), ',', '.');
    AddPair(settings, name, "the headers of those shards read and parsed by nlohmann::json", 10, 5,
            [dir = settings.dir, model, from = from, to = to] {
              const auto change = std::make_shared<Change>(dir, model, from, to);
              return Pair{.cairn = [change] { return change->Plan(); },
                          .peer = [change] { return change->Parse(); },
                          .more = [change](benchmark::UserCounters& counters) { change->Report(counters); }};
            });
  }
}

}  // namespace cairn::bench
