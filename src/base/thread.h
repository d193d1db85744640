#pragma once

#include <functional>
#include <string>
#include <thread>

#include "cairn/status.h"

namespace cairn {

/// Starts a library thread: every signal blocked, so that the program's handlers run on the program's own threads;
/// named for debuggers (15 characters at most). ResourceExhausted where the system allows no more threads. The caller's
/// signal mask is as it was, either way.
[[nodiscard]] Result<std::thread> StartThread(const std::string& name, std::function<void()> body);

/// Asks that the calling thread, when it wakes, need not wait for the end of the time slices of those that run (Linux
/// from 6.12 on; before, or where it is refused, nothing happens). Its share of a core stays the same. Threads that it
/// starts, and the kernel's for its ring, inherit it.
void AskForShortSlices();

}  // namespace cairn
