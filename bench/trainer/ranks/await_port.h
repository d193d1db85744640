#pragma once

#include <chrono>
#include <string>

namespace cairn::trainer {

/// Returns once something at host:port accepts connections. Throws std::runtime_error with the last reason if nothing
/// has by the deadline. c10d's TCPStore also waits, but for up to three times its timeout.
void AwaitPort(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

}  // namespace cairn::trainer
