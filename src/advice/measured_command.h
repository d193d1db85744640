#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "advice/profile.h"
#include "tune/iteration_counter.h"

namespace cairn {

struct CommandOptions {
  /// The program, found in PATH, and its arguments.
  std::vector<std::string> command;
  /// Cores: as many as this process may run on, by affinity; and if there are fewer, or a fraction, by a quota too.
  /// Memory: by a control group.
  Budget budget;
  IterationCounter::Options counting;
  /// For all of it.
  std::chrono::nanoseconds timeout = std::chrono::minutes(2);
  /// From SIGTERM to SIGKILL.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  /// Asked whenever a signal arrives; may be empty.
  std::function<bool()> stopped;
  /// Replaces "/" for control groups, in tests.
  std::string root;
};

struct MeasuredCommand {
  /// None if it did not run, or not far enough.
  std::optional<CountedRate> rate;
  /// Then why: how it ended, and its last lines.
  std::string failure;
  /// Page cache included; 0: unknown.
  std::uint64_t peak_bytes = 0;
};

/// Runs the command within the budget until enough iterations are counted or the time is over, and ends it, with all
/// its processes, by SIGTERM and then SIGKILL. It writes to a terminal of its own, so that nothing is buffered, and
/// reads nothing. Its orphans become children of this process, which kills them too. Unsupported if the budget needs a
/// control group that cannot be made; NotFound and the like if the program cannot be started; Cancelled if stopped.
/// Call it while no other thread runs.
[[nodiscard]] Result<MeasuredCommand> MeasureCommand(const CommandOptions& options);

/// How many cores this process may run on.
[[nodiscard]] int CountCores();

}  // namespace cairn
