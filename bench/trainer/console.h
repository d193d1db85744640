#pragma once

#include <string>

namespace cairn::trainer {

/// From now on this process is one of several: only rank 0 prints to standard output, and errors name the rank. Call it
/// before other threads print.
void PrintAsRank(int rank);
/// Prints a line to standard output with one unbuffered write: lines of several threads do not mix, and a pipe's reader
/// gets the line even if the process is killed right after. Safe from any thread.
void PrintLine(const std::string& line);
/// Like PrintLine, but the next line replaces this one: on a terminal they share a row.
void PrintProgress(const std::string& line);
/// Like PrintLine, to standard error and prefixed with the program's name.
void PrintError(const std::string& line);

}  // namespace cairn::trainer
