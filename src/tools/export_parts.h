#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "restore/whole_tensors.h"
#include "tools/interruption.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {

// What `cairn export` needs whether it writes one file or a model folder.

/// What begins the part of a tensor's name for a key that is text, but reads as something else: ~s0 for "0" beside 0.
constexpr std::string_view kTextKey = "~s";
/// A tensor's name in a file: without the prefix, and without `kTextKey`, which torch's keys do not have. None if it is
/// not below the prefix. "model" is short for "model/" and "model.".
[[nodiscard]] std::optional<std::string> NameInFile(std::string_view prefix, std::string_view name);

/// Which tensors an export takes.
class NameFilter {
 public:
  /// Those below the prefix that match a pattern; all if there are no patterns.
  NameFilter(std::string prefix, const std::vector<std::string>& patterns);
  /// The name in the file; none if it is not taken.
  [[nodiscard]] std::optional<std::string> Take(std::string_view name);
  /// NotFound, in the checkpoint at `path`, if none of the names was below the prefix, or one of the patterns has
  /// matched none.
  [[nodiscard]] Status CheckUsed(const std::string& path) const;

 private:
  const std::string prefix_;
  const std::vector<std::string> patterns_;
  std::vector<bool> used_;
  bool below_ = false;
  // What names begin with: "model/", "optimizer/".
  std::set<std::string> firsts_;
};

/// A tensor of a checkpoint, and its name in a file.
struct NamedInFile {
  std::string name;
  std::string in_file;
};
/// Unsupported if a file cannot hold one of the names, or two tensors would have one. Names may differ by less there
/// than in the checkpoint: "model/w" and "model.w" below "model".
[[nodiscard]] Status CheckNamesInFile(const std::vector<NamedInFile>& tensors);

/// Keeps the first tensor of each name, after checking that the others are equal: several ranks may have written a
/// replicated tensor, but the ranks' own states may share a name too. Unsupported names one that differs.
Status KeepOneOfEach(const Reading& reading, TensorSource& source, std::vector<const StoredTensor*>& tensors);

/// A tensor of a plain safetensors file.
struct FileTensor {
  std::string name;
  /// What it is in the checkpoint.
  WholeTensor whole;
  std::uint64_t bytes = 0;
};
/// The order in which the safetensors library stores tensors.
[[nodiscard]] bool ComesFirst(const FileTensor& a, const FileTensor& b);

/// Writes plain files of tensors, which it puts together from the shards, through two windows of 8 MiB or more.
class PlainFiles {
 public:
  /// Of so many bytes of tensors in all files.
  PlainFiles(const Reading& reading, TensorSource& source, IoQueue& queue, std::uint64_t total);
  /// Writes the tensors, in this order, into a new file, and fsyncs it. Cancelled once the user interrupts.
  Status Write(int fd, const std::string& path, const std::vector<FileTensor>& tensors,
               const std::map<std::string, std::string>& metadata);

 private:
  const Reading& reading_;
  TensorSource& source_;
  IoQueue& queue_;
  const std::uint64_t window_;
  const std::uint64_t total_;
  const std::array<std::unique_ptr<std::byte[]>, 2> memory_;
  const std::function<bool()> interrupted_ = CatchInterruptions();
  ProgressBar bar_{"exporting"};
  std::uint64_t done_ = 0;
};

/// Makes a file that must not exist, to write it.
[[nodiscard]] Result<UniqueFd> CreateFile(IoQueue& queue, const std::string& path);
Status WriteAll(IoQueue& queue, int fd, std::uint64_t offset, Bytes bytes, const std::string& path);

/// AlreadyExists, with the way out, if anything has this name, be it a link that leads nowhere.
[[nodiscard]] Status CheckAbsent(const std::string& target, std::string_view way_out);

/// What an export writes first: a file or folder with a hidden name beside its target. So the target is complete or
/// absent, even after a crash.
class Draft {
 public:
  /// Removes what exports to this target have left that were killed: nobody holds the lock of their drafts.
  explicit Draft(const std::string& target);
  [[nodiscard]] const std::string& path() const { return path_; }

  /// To be called with the draft's descriptor once it exists. Until this process ends, whatever ends it, no other
  /// export removes the draft.
  static void Hold(int fd);
  /// Gives it the target's name, durably. Replaces nothing unless `replace`: then AlreadyExists as of CheckAbsent.
  Status Publish(IoQueue& queue, bool replace, std::string_view way_out);
  /// After a failure.
  void Remove();

 private:
  std::string target_;
  std::string folder_;
  std::string path_;
};

/// Opens, fsyncs, closes.
Status SyncPath(IoQueue& queue, const std::string& path, int flags);

}  // namespace cairn::tools
