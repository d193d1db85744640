#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "mirror/rclone.h"
#include "store/bucket_address.h"
#include "store/list.h"
#include "store/writer.h"

namespace cairn {

/// What one call should read of an object of so many bytes, so that several can read it at once: to start rclone costs
/// as much as to read some MB.
[[nodiscard]] std::uint64_t RunBytes(std::uint64_t object);

/// Checkpoints in an object store, each in a folder step-N.<attempt> (see docs/format.md). Blocking; each call runs
/// rclone, and fails as RcloneCall does. For one thread; Start may be called while its calls go on.
class Bucket {
 public:
  /// What is below a folder, by name, with its length.
  using Objects = std::map<std::string, std::uint64_t>;

  /// A checkpoint's, or what was begun to be one.
  struct Folder {
    std::string name;
    std::uint64_t step = 0;
    std::string attempt;
    Objects objects;
    /// When its youngest object was written, in seconds since 1970.
    double time = 0;
    double manifest_time = 0;

    [[nodiscard]] std::optional<std::uint64_t> Length(const std::string& file) const;
  };

  Bucket(Rclone rclone, BucketAddress address) : rclone_(std::move(rclone)), address_(std::move(address)) {}

  [[nodiscard]] const std::string& text() const { return address_.text; }
  [[nodiscard]] static std::string FolderName(const CheckpointInfo& info);

  /// Lists it anew: the newest checkpoint of each step, in the order of ListCheckpoints, as manifests describe them.
  /// Skips what is removed meanwhile.
  /// Of a step's folders the newest counts; kWhole: the newest that lacks no object, if there is one. A mirror has its
  /// own in view, which it completes.
  enum class Rank : bool { kNewest, kWhole };
  [[nodiscard]] Result<std::vector<StoredCheckpoint>> List(Rank by = Rank::kNewest);
  /// The others of the last List: of a step that has a newer one, and those without a manifest.
  [[nodiscard]] const std::vector<Folder>& superseded() const { return superseded_; }
  [[nodiscard]] const std::vector<Folder>& unfinished() const { return unfinished_; }
  [[nodiscard]] const Folder* Find(std::string_view folder) const;
  /// Corrupt if the last List lacks an object that the manifest names, or has it with another length.
  [[nodiscard]] Status CheckObjects(const StoredCheckpoint& one) const;

  /// The names of the folders beside it.
  [[nodiscard]] Result<std::vector<std::string>> ListBeside() const;
  /// The record of who has written it last; none if there is none.
  [[nodiscard]] Result<std::optional<WriterRecord>> ReadWriter();
  [[nodiscard]] Status WriteWriter(const WriterRecord& record);
  /// Byte for byte, of a checkpoint in the last List.
  [[nodiscard]] Result<std::string> ReadManifest(const CheckpointInfo& info);
  [[nodiscard]] Status Put(const std::string& name, std::string_view text);
  /// See store/suspect.h.
  [[nodiscard]] Status MarkSuspect(const CheckpointInfo& info);
  /// Makes it a checkpoint. `manifest` is its text.
  [[nodiscard]] Status PutManifest(const StoredCheckpoint& one, std::string_view manifest);
  /// Removes a folder: first its manifest, without which it is no checkpoint.
  [[nodiscard]] Status Remove(const Folder& folder);

  /// Bytes [offset, offset + length) of an object.
  struct Range {
    std::string name;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  /// Reads them, several at once; a result for each. NotFound if there is no such object (any more), IoError if it is
  /// shorter.
  [[nodiscard]] std::vector<Result<std::string>> Get(std::span<const Range> ranges) const;
  /// The same for whole small objects; if they are many, by one call for all.
  [[nodiscard]] Result<std::vector<Result<std::string>>> GetWhole(std::span<const Range> ranges) const;
  /// The first `count` bytes of each, one after the other, by one call: in any order, and without those that are not
  /// there. All have as many.
  [[nodiscard]] Result<std::string> GetStarts(std::span<const Range> ranges, std::uint64_t count) const;

  /// A call that reads the object's bytes [offset, offset + length), or writes an object of this length.
  [[nodiscard]] Result<std::unique_ptr<RcloneCall>> StartRead(const std::string& name, std::uint64_t offset,
                                                              std::uint64_t length) const;
  [[nodiscard]] Result<std::unique_ptr<RcloneCall>> StartWrite(const std::string& name, std::uint64_t length) const;
  /// The same bytes under another name, made by the store itself where it can.
  [[nodiscard]] Result<std::unique_ptr<RcloneCall>> StartCopy(const std::string& from, const std::string& to) const;

 private:
  [[nodiscard]] Status GetByOneCall(std::span<const Range> ranges, std::vector<Result<std::string>>& read) const;
  [[nodiscard]] Result<std::unique_ptr<RcloneCall>> Start(const std::vector<std::string>& arguments,
                                                          const std::string& doing) const;
  [[nodiscard]] Result<std::string> Finish(Result<std::unique_ptr<RcloneCall>> call, const Range& range) const;
  [[nodiscard]] Status Read(const std::string& json);
  [[nodiscard]] Status ReadManifests();
  [[nodiscard]] StoredCheckpoint Decode(const Folder& folder, const Result<std::string>& manifest) const;
  [[nodiscard]] std::optional<StoredCheckpoint> Describe(const Folder& folder) const;

  const Rclone rclone_;
  const BucketAddress address_;
  // By name.
  std::map<std::string, Folder, std::less<>> folders_;
  std::vector<Folder> superseded_;
  std::vector<Folder> unfinished_;
  // Manifests that have been read: an attempt's never changes. By folder, with its length.
  struct Known {
    std::uint64_t bytes = 0;
    /// None: the next List says it.
    std::optional<double> time;
    StoredCheckpoint checkpoint;
  };
  std::map<std::string, Known> known_;
};

}  // namespace cairn
