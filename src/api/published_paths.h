#pragma once

#include <cstdint>
#include <string>

#include "cairn/options.h"
#include "engine/ledger.h"
#include "io/io_queue.h"
#include "store/root.h"

namespace cairn {

/// What Checkpointer's calls with paths use. All of it outlives them.
struct PathParts {
  const IoQueueFactory& queue;
  const Root& root;
  Ledger* ledger;  ///< Null on ranks other than 0.
  const EventCallback& on_event;
};

/// Checkpointer::Publish and RemovePublished, each on a queue of its own.
[[nodiscard]] Status PublishStep(const PathParts& parts, std::uint64_t step, const std::string& path,
                                 Deadline deadline);
[[nodiscard]] Status RemovePath(const PathParts& parts, const std::string& path, Deadline deadline);

}  // namespace cairn
