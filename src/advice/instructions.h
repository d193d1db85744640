#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "advice/slack.h"
#include "cairn/status.h"

namespace cairn {

// The recorded instructions of a pipeline, as --export-timing-csv of the GPT in bench/cairn_bench/reconfigure writes
// them (docs/benchmarks.md): a CSV file of each rank with at least the columns instruction, start, end, step, rank,
// stage and micro_batch, in any order. Instructions that are no forward, no backward and no message do not matter here.

struct InstructionFile {
  /// For messages.
  std::string name;
  std::string text;
};

struct RecordedPipeline {
  /// Medians over the recorded steps, and of a stage's ranks the slowest. A send: from when both its ends were ready
  /// until the receiver had it, the median over both directions; none if the files have no messages.
  PipelineTimes times;
  std::size_t steps = 0;
  /// From the first forward or backward of a step to the end of its last, as it was, on the rank where that takes
  /// longest: the median. Ranks of several hosts need no common clock for that.
  double seconds = 0;
  std::map<std::uint64_t, std::size_t> stage_of_rank;
};

/// What the files of all ranks of one run say.
///
/// InvalidArgument if a file is no such file, if a stage or an instruction of a step is missing or there twice, if
/// ranks recorded different steps, or if a message arrives before it is sent: names the file and the line, or the
/// instruction, the expected and the found value.
[[nodiscard]] Result<RecordedPipeline> ReadInstructions(const std::vector<InstructionFile>& files);

}  // namespace cairn
