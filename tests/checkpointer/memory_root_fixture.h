#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "store/names.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {

/// The warnings and errors of a checkpointer. Safe from any thread.
class Messages {
 public:
  [[nodiscard]] EventCallback callback() {
    return [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.severity != Severity::kInfo) seen_.push_back(event.message);
    };
  }
  [[nodiscard]] std::vector<std::string> Seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> seen_ CAIRN_GUARDED_BY(mutex_);
};

inline std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

/// Of all files in the folder: how many, and their blocks.
inline std::pair<std::size_t, std::uint64_t> ShardsIn(const std::string& folder) {
  while (true) {
    std::size_t files = 0;
    std::uint64_t blocks = 0;
    std::error_code error;
    std::filesystem::recursive_directory_iterator entry(folder, error);
    for (; entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
      struct stat found {};
      if (entry->path().extension() != ".safetensors" || ::stat(entry->path().c_str(), &found) != 0) continue;
      ++files;
      blocks += static_cast<std::uint64_t>(found.st_blocks);
    }
    if (!error) return {files, blocks};  // Else a folder was renamed meanwhile.
  }
}

inline Options InMemory(const std::string& root, const std::string& memory) {
  Options options = SmallOptions(root);
  options.memory_root = memory;
  options.keep_last = 0;
  return options;
}

/// Says "kept 3" and "durable 3".
inline EventCallback SayOutcomes(const Say& say) {
  return [say](const Event& event) {
    if (event.kind == EventKind::kSaveDurable) say("durable " + std::to_string(*event.step));
    if (event.kind == EventKind::kSaveKept) say("kept " + std::to_string(*event.step));
  };
}

/// The highest step of the lines that begin with the word.
inline std::optional<std::uint64_t> NewestOf(const std::vector<std::string>& lines, const std::string& word) {
  std::optional<std::uint64_t> newest;
  for (const std::string& line : lines) {
    if (line.starts_with(word))
      newest = std::max<std::uint64_t>(newest.value_or(0), std::stoull(line.substr(word.size())));
  }
  return newest;
}

/// A root, and a folder on tmpfs for its memory root.
class MemoryRootTest : public testing::Test {
 protected:
  MemoryRootTest() = default;
  explicit MemoryRootTest(const std::filesystem::path& disk) : dir_(disk) {}

  [[nodiscard]] Options WithMemory() { return InMemory(root_, memory_.path()); }
  [[nodiscard]] Options WithoutMemory() {
    Options options = WithMemory();
    options.memory_root.clear();
    return options;
  }
  /// Saves SmallState of the step, which is captured on return, or the save has failed.
  [[nodiscard]] static Result<SaveHandle> Save(Checkpointer& checkpointer, std::uint64_t step) {
    const auto state = SmallState(step);
    Result<SaveHandle> save = checkpointer.Save(step, state->state());
    if (save.ok()) static_cast<void>(save->WaitCaptured(Soon()));
    return save;
  }
  [[nodiscard]] static Status Keep(Checkpointer& checkpointer, std::uint64_t step) {
    const Result<SaveHandle> save = Save(checkpointer, step);
    return save.ok() ? save->WaitKept(Soon()) : save.status();
  }
  /// The one folder in memory.
  [[nodiscard]] std::string Folder() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(memory_.path()))
      found.push_back(entry.path().string());
    EXPECT_THAT(found, testing::SizeIs(1));
    return found.empty() ? "" : found.front();
  }
  [[nodiscard]] std::string InFolder(std::uint64_t step) const { return Folder() + "/" + StepName(step); }
  /// Another bit in the first block of the step's data.
  static void FlipBit(const std::string& folder, std::uint64_t rank = 0) {
    std::fstream file(folder + "/" + ShardName(rank), std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    const auto at = static_cast<std::streamoff>(sizeof(header) + header + 30'000);
    file.seekg(at);
    const char was = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(was ^ 1));
    EXPECT_TRUE(file.good());
  }
  /// A process that saves these steps, each kept before the next, and dies. While `holds` nothing is written to the
  /// disk's shards.
  void KeepAndDie(const std::vector<std::uint64_t>& steps, bool holds) {
    Forked child([&](const Say& say) {
      const auto plan = FaultPlan::Make();
      const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
      if (!holds) gate.Release();
      const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
      if (!checkpointer.ok()) return 2;
      if (checkpointer->get()->stats().newest_step) {
        if (!RestoreAndCompare(**checkpointer, Latest()).ok()) return 3;
      }
      for (const std::uint64_t step : steps) {
        if (!Keep(**checkpointer, step).ok()) return 4;
        if (!holds && !(*checkpointer)->Drain(Soon()).ok()) return 5;
      }
      say("kept");
      ::kill(::getpid(), SIGKILL);
      return 6;
    });
    const Forked::End end = child.Wait(Soon());
    ASSERT_EQ(end.how, Forked::How::kKilled) << end.value;
  }

  const TempDir dir_;
  const TempDir memory_{"/dev/shm"};
  const std::string root_ = dir_ / "run";
};

}  // namespace cairn
