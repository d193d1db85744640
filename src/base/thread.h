#pragma once

#include <functional>
#include <string>
#include <thread>

namespace cairn {

/// Starts a library thread: every signal blocked, so that the program's handlers run on the program's own threads;
/// named for debuggers (15 characters at most).
[[nodiscard]] std::thread StartThread(const std::string& name, std::function<void()> body);

}  // namespace cairn
