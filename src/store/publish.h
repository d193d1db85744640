#pragma once

#include <cstdint>
#include <string>

#include "cairn/options.h"
#include "store/remove.h"
#include "store/writer.h"

namespace cairn {

struct PublishOptions {
  /// How long to wait for readers of what the path has.
  Deadline deadline = Deadline::Infinite();
  /// Called before each first rename.
  WriterCheck check_writer = {};
};

/// Moves the durable step-N of the root to the absolute `path`, outside the root and on the same filesystem. Removes
/// what the path had: a checkpoint, or a link (never followed).
///
/// Ok: durable there. `left` lists what of the old one could not be removed, one sentence each. AlreadyExists if the
/// path has something else; DeadlineExceeded, naming the readers, if its checkpoint is being read; NotFound without
/// step-N or without the path's directory; Unsupported if the filesystem cannot do it (an existing path is replaced
/// only by an exchange of names); FailedPrecondition if step-N is being read or another writer has taken over. After
/// all of these, path and step are unchanged. UnknownOutcome if a rename was made, or may have been, that a power cut
/// may undo: nothing is removed. Blocking; needs exclusive use of the queue.
[[nodiscard]] Status Publish(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& path,
                             const PublishOptions& options, Leftovers& left);

/// Removes the checkpoint or link at the absolute `path`, through a `.retired-<uuid>` in the root.
///
/// NotFound if nothing is there, InvalidArgument if something else is; otherwise as for Publish.
[[nodiscard]] Status RemovePublished(IoQueue& queue, const PathAt& root, const std::string& path,
                                     const PublishOptions& options, Leftovers& left);

}  // namespace cairn
