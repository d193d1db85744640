#pragma once

#include <functional>
#include <string>
#include <thread>

namespace cairn {

/// Starts a library thread: every signal blocked, so that the program's handlers run on the program's own threads;
/// named for debuggers (15 characters at most).
[[nodiscard]] std::thread StartThread(const std::string& name, std::function<void()> body);

/// Asks that the calling thread, which runs seldom and shortly, need not wait for the end of others' time slices when
/// it wakes (Linux from 6.12 on; before, nothing happens). Threads that it starts, and the kernel's for its ring,
/// inherit it.
void AskForShortSlices();

}  // namespace cairn
