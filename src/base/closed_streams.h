#pragma once

namespace cairn {

/// Takes, for good, what is free of the descriptors 0 to 2: in a process with closed standard streams a file would get
/// them, and what other threads print meanwhile would go into it. As before, reading and writing them fails with EBADF,
/// and programs that are executed find them closed. dup2 replaces them, and close frees them. To be called before a
/// file is opened: I/O queues are made so, and open so in each IoTask.
void TakeClosedStreams();

}  // namespace cairn
