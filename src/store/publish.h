#pragma once

#include <cstdint>
#include <string>

#include "cairn/options.h"
#include "store/remove.h"
#include "store/writer.h"

namespace cairn {

struct PublishOptions {
  Deadline deadline = Deadline::Infinite();  ///< For those who read what the path has.
  WriterCheck still_writer = {};             ///< Asked before each first rename.
};

/// Gives step-N of the root, which is durable, the absolute `path`, outside the root and on the same filesystem. What
/// had the path, a checkpoint or a link (never followed), goes.
///
/// Ok: durably so. What of the old one had to stay is told in `left`, a sentence each. AlreadyExists where the path has
/// something else; DeadlineExceeded, naming the readers, while its checkpoint is read; NotFound where there is no
/// step-N, or no directory for the path; Unsupported where the filesystem cannot do it: a path that has something is
/// replaced by an exchange of names alone; FailedPrecondition where step-N is being read, or another writer has taken
/// over. After all of these path and step are as they were. UnknownOutcome where a rename was
/// made, or may have been, that a power cut may undo: nothing is removed. Blocking; the queue is the caller's alone.
[[nodiscard]] Status Publish(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& path,
                             const PublishOptions& options, Leftovers& left);

/// Removes the checkpoint, or the link, that has the absolute `path`, through a `.retired-<uuid>` in the root.
///
/// NotFound where there is nothing, InvalidArgument where there is something else; else as for Publish.
[[nodiscard]] Status RemovePublished(IoQueue& queue, const PathAt& root, const std::string& path,
                                     const PublishOptions& options, Leftovers& left);

}  // namespace cairn
