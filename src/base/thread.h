#pragma once

#include <functional>
#include <string>
#include <thread>

#include "cairn/status.h"

namespace cairn {

/// Starts a library thread. It blocks every signal, so that the program's handlers run on the program's threads;
/// debuggers show its name (at most 15 characters). ResourceExhausted if the system allows no more threads. The
/// caller's signal mask stays as it is.
[[nodiscard]] Result<std::thread> StartThread(const std::string& name, std::function<void()> body);

/// Requests the shortest time slice for the calling thread, so that it runs sooner after it wakes; its share of a core
/// stays the same. Threads that it starts inherit this, and so do the kernel's threads for its ring. Does nothing
/// before Linux 6.12 or where the kernel refuses.
void RequestShortSlices();

}  // namespace cairn
