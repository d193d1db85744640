#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mirror/mirror.h"
#include "support/checkpoint_writer.h"
#include "support/faulty_queue.h"
#include "testing/temp_dir.h"

namespace cairn {

/// A root with an id, and checkpoints that are written into it as saves leave them. Its mirror is beside it.
class MirrorCase {
 public:
  MirrorCase();

  /// Of two ranks, each more than two chunks of the mirror's pool: a whole checksum block is not the last. An old
  /// checkpoint of the step is exchanged for it.
  StoredCheckpoint Save(std::uint64_t step, std::uint32_t seed = 0, std::uint64_t line = 1);
  /// Of each shard's large tensor: few in tests with many runs.
  static constexpr std::int64_t kMany = 2'200'001;
  static constexpr std::int64_t kFew = 2000;
  std::int64_t elements = kMany;
  /// They have a kept file, of this seed.
  std::optional<std::uint32_t> frozen;

  /// Retention's removal, with recycling, of another process's writer.
  [[nodiscard]] Status Retire(std::uint64_t step) const;

  /// Whether the target's folder of a step has what was saved, byte for byte, and nothing else.
  [[nodiscard]] Status Compare(const std::string& target, std::uint64_t step) const;
  [[nodiscard]] Status CompareFolder(const std::string& folder) const;
  /// The steps that the target lists; each is compared with what was saved. A difference is a test failure.
  [[nodiscard]] std::vector<std::uint64_t> GoodSteps(const std::string& target) const;
  /// What the target or the root has beside checkpoints and their writers' files; of the root also what is held.
  [[nodiscard]] std::vector<std::string> Leftovers(const std::string& folder) const;

  [[nodiscard]] MirrorOptions Options(const MirrorRules& rules = {});
  [[nodiscard]] std::string StepFolder(std::uint64_t step) const;
  void FlipABit(std::uint64_t step, std::uint32_t shard, std::uint64_t offset) const;

  [[nodiscard]] const std::string& base() const { return base_.path(); }
  const std::string& root() const { return root_; }
  const std::string& target() const { return target_; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  const TempDir base_;
  const std::string root_ = base_ / "run";
  // Apart from the root, so that a power cut can be of the target alone.
  const std::string target_ = base_ / "disk/mirror";
  std::string id_;
  // By attempt: file name -> bytes.
  std::map<std::string, std::map<std::string, std::string>> saved_;
  std::vector<std::string> notes_;
};

[[nodiscard]] IoQueueFactory PlainFactory();
/// As a mirror to an object store has it.
[[nodiscard]] IoQueueFactory ThreadsFactory();
[[nodiscard]] std::unique_ptr<IoQueue> MakeQueue(const IoQueueFactory& factory = PlainFactory());
/// A mirror; a failure is a test failure, and null.
[[nodiscard]] std::unique_ptr<Mirror> OpenMirror(IoQueue& queue, const MirrorOptions& options);
/// Copies until nothing is due; returns the steps in the order in which they were copied.
[[nodiscard]] Result<std::vector<std::uint64_t>> CopyAll(Mirror& mirror);

}  // namespace cairn
