// Listing a root of 100 checkpoints of 1,024 ranks each, with manifests in the page cache.
//
//   build/release/bin/bench_micro --dir DIR --benchmark_filter=list
//
// Peer: the same files opened, read and parsed by nlohmann::json, one after another. The list uses up to eight threads,
// which overlap the opens of a network filesystem; that effect is not measured here. There are no shards: a list that
// looked for them would find 102,400 missing.
#include "store/list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "bench/micro/pair.h"
#include "format/manifest.h"
#include "store/names.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

class ManyManifests {
 public:
  ManyManifests(const std::string& dir, std::uint64_t checkpoints, std::uint64_t ranks)
      : root_(dir), checkpoints_(checkpoints) {
    Manifest manifest;
    manifest.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
    manifest.world = ranks;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      manifest.shards.push_back({.file = ShardName(rank),
                                 .length = (4ULL << 30) + rank,
                                 .header_digest = static_cast<std::uint32_t>(rank * 2654435761U)});
    }
    for (manifest.step = 0; manifest.step < checkpoints; ++manifest.step) {
      std::filesystem::create_directory(root_ / StepName(manifest.step));
      std::ofstream(PathOf(manifest.step), std::ios::binary) << EncodeManifest(manifest);
    }
  }

  void List() const {
    const Result<std::vector<StoredCheckpoint>> list = ListCheckpoints(root_.path());
    Check(list.status());
    Expect(list->size() == checkpoints_, "list: checkpoints are missing");
    for (const StoredCheckpoint& checkpoint : *list) Check(checkpoint.info.status);
  }
  void Parse() const {
    for (std::uint64_t step = 0; step < checkpoints_; ++step) {
      const UniqueFd file(::open(PathOf(step).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      struct stat found {};
      Expect(file.valid() && ::fstat(file.get(), &found) == 0, "list: cannot open " + PathOf(step));
      std::string text(static_cast<std::size_t>(found.st_size), '\0');
      Expect(::pread(file.get(), text.data(), text.size(), 0) == found.st_size, "list: a short read");
      const auto manifest = nlohmann::json::parse(text);
      Expect(manifest["step"] == step, "list: wrong step");
    }
  }

 private:
  [[nodiscard]] std::string PathOf(std::uint64_t step) const {
    return root_ / StepName(step) + "/" + std::string(kManifestName);
  }

  const TempDir root_;
  const std::uint64_t checkpoints_;
};

Pair ListBesideParse(const std::string& dir, std::uint64_t checkpoints, std::uint64_t ranks) {
  const auto manifests = std::make_shared<const ManyManifests>(dir, checkpoints, ranks);
  manifests->List();
  return {.cairn = Timed([manifests] { manifests->List(); }), .peer = Timed([manifests] { manifests->Parse(); })};
}

}  // namespace

void AddList(const Settings& settings) {
  const std::uint64_t checkpoints = settings.Sized(100, 8);
  const std::uint64_t ranks = settings.Sized(1024, 4);
  AddPair(settings, "list/100_of_1024_of_parse", "each opened, read and parsed by nlohmann::json", 1, 10,
          [dir = settings.dir, checkpoints, ranks] { return ListBesideParse(dir, checkpoints, ranks); });
}

}  // namespace cairn::bench
