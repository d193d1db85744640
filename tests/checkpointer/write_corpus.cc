// Writes the C++ half of a corpus of old checkpoints: `write_corpus FOLDER`, a new folder. Run once for each version of
// the format, then committed and never again; see tests/format/corpus-v1/README.md. No test runs it.

#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/corpus_v1.h"
#include "testing/local_group.h"

namespace cairn {
namespace {

using namespace literals;

void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T Require(Result<T> result) {
  Require(result.status());
  return *std::move(result);
}

std::unique_ptr<Checkpointer> Open(const std::string& root, bool checksums = true,
                                   const std::shared_ptr<Group>& group = nullptr) {
  return Require(Checkpointer::Open({.root = root,
                                     .keep_last = 0,
                                     .group = group,
                                     .host_memory_bytes = 4_MiB,
                                     .chunk_bytes = 1_MiB,
                                     .queue_depth = 2,
                                     .worker_threads = 2,
                                     .checksums = checksums}));
}

SaveHandle Start(Checkpointer& checkpointer, CorpusState& state, std::uint64_t step, const Values& values = {},
                 const SaveOptions& options = {}) {
  state.Fill(step);
  for (const auto& [name, value] : values) Require(state.state().Set(name, value));
  return Require(checkpointer.Save(step, state.state(), options));
}

void SaveSingle(Checkpointer& checkpointer, std::uint64_t step) {
  CorpusState state = CorpusSingle();
  Require(Start(checkpointer, state, step, CorpusSingleValues(step)).WaitDurable());
}

/// 1000 and 2000, then from the pinned 1000 a new line with 1500.
void WriteSingle(const std::string& root) {
  const auto checkpointer = Open(root);
  SaveSingle(*checkpointer, 1000);
  SaveSingle(*checkpointer, 2000);
  Require(checkpointer->Pin(1000));
  CorpusState state = CorpusSingle();
  Require(checkpointer->Restore(Step(1000), state.state()).status());
  SaveSingle(*checkpointer, 1500);
}

void WriteRanks(const std::string& root) {
  std::vector<std::unique_ptr<Checkpointer>> ranks;
  std::vector<std::unique_ptr<CorpusState>> states;
  std::vector<SaveHandle> saves;
  for (const auto& group : MakeLocalGroup(kCorpusRanks)) ranks.push_back(Open(root, true, group));
  for (int rank = 0; rank < kCorpusRanks; ++rank) {
    states.push_back(std::make_unique<CorpusState>(CorpusRank(rank, kCorpusRanks)));
    saves.push_back(Start(*ranks[static_cast<std::size_t>(rank)], *states.back(), 7, CorpusRankValues(rank),
                          {.replicated = CorpusReplicated()}));
  }
  for (const SaveHandle& save : saves) Require(save.WaitDurable());
}

void WriteOne(const std::string& root, CorpusState state, std::uint64_t step, bool checksums) {
  const auto checkpointer = Open(root, checksums);
  Require(Start(*checkpointer, state, step).WaitDurable());
}

/// Step 2 links what step 1 has written.
void WriteKept(const std::string& root) {
  const auto checkpointer = Open(root);
  CorpusState frozen = CorpusFrozen();
  frozen.Fill(1);
  for (const std::uint64_t step : {1U, 2U}) {
    CorpusState state = CorpusUnchecked();
    frozen.FreezeIn(state.state());
    Require(Start(*checkpointer, state, step).WaitDurable());
  }
}

/// The writer's lock and record are not part of a checkpoint.
void RemoveLocks(const std::string& folder) {
  for (const auto& root : std::filesystem::directory_iterator(folder)) {
    for (const char* const name : {".lock", ".writer"}) std::filesystem::remove(root.path() / name);
  }
}

void Write(const std::string& folder) {
  if (!std::filesystem::create_directory(folder)) throw std::runtime_error(folder + " exists already");
  WriteSingle(folder + "/single");
  WriteRanks(folder + "/ranks");
  WriteOne(folder + "/large", CorpusLarge(), 1, true);
  WriteOne(folder + "/unchecked", CorpusUnchecked(), 3, false);
  WriteKept(folder + "/kept");
  RemoveLocks(folder);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_corpus FOLDER\n";
    return 2;
  }
  try {
    cairn::Write(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
