#pragma once

#include <string>

namespace cairn::trainer {

/// Prints a line to standard output in one write, at once: lines of several threads stay whole, and a reader of a pipe
/// has each of them even when the process is killed right after. Safe from any thread.
void Say(const std::string& line);
/// The same for a line that the next one supersedes: on a terminal they share a row.
void SayProgress(const std::string& line);
/// The same to standard error, after the program's name.
void Complain(const std::string& line);

}  // namespace cairn::trainer
