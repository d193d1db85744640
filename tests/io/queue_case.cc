#include "queue_case.h"

#include <limits>

#include "io/thread_queue.h"
#include "io/uring_queue.h"
#include "support/faulty_queue.h"
#include "support/recording_queue.h"
#include "testing/rate_limited_queue.h"

namespace cairn {

std::vector<QueueCase> AllQueues() {
  const IoQueueFactory uring = [] { return MakeUringQueue(kTestDepth); };
  const IoQueueFactory threads = [] { return MakeThreadQueue(kTestDepth); };
  const IoQueueFactory old_kernel = [] {
    return MakeUringQueue(
        kTestDepth, {.without_opcodes = {IoOp::kFtruncate, IoOp::kRename, IoOp::kUnlink, IoOp::kMkdir, IoOp::kRmdir,
                                         IoOp::kLink, IoOp::kSyncRange, IoOp::kFallocate, IoOp::kOpen, IoOp::kClose},
                     .without_setup_flags = true});
  };
  // It models another directory: the contract is only about the queue.
  const auto recorded = [](const IoQueueFactory& inner) -> IoQueueFactory {
    return [inner] {
      const TempDir base;
      return Recording::Make(base.path())->Wrap(inner)();
    };
  };
  return {{"Uring", uring},
          {"UringOfAnOldKernel", old_kernel},
          {"Threads", threads},
          {"FaultyUring", FaultPlan::Make()->Wrap(uring)},
          {"FaultyThreads", FaultPlan::Make()->Wrap(threads)},
          {"RateLimitedUring", RateLimitedDisk::Make(std::uint64_t{1} << 40)->Wrap(uring)},
          {"RateLimitedThreads", RateLimitedDisk::Make(std::uint64_t{1} << 40)->Wrap(threads)},
          {"RecordingUring", recorded(uring)},
          {"RecordingThreads", recorded(threads)}};
}

}  // namespace cairn
