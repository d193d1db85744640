#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/status.h"

namespace cairn {

// How fast a job trains with less of the host, and what that leaves for saves: pure functions of what was measured.
//
// As Synergy does (OSDI 2022): the job runs with the whole budget, then with half of the cores, a quarter, and so on,
// at full memory; then the same with memory, at all cores. A stretch between two budgets is examined further only if
// throughput differs there by more than the tolerance (10 %), and only as long as the measured points do not predict
// each other within it.
//
// The model: loading needs cores and memory and overlaps with computing, so the scarcer of the two decides:
//     throughput(c, m) = min(f(c), g(m)), f measured at full memory, g at all cores.
// f is linear in cores between the points and below the lowest one (a loader with half of the cores is half as fast);
// the time of an iteration, 1 / g, is linear in memory (each MiB of cache saves the same number of reads). Neither
// decreases: points that contradict this by noise are averaged. Where less gave more by more than the tolerance, the
// larger budget is measured once more; if less still gave more, nothing is derived from that resource.

struct Budget {
  /// May be a fraction.
  double cores = 0;
  /// 0: not limited.
  std::uint64_t memory_bytes = 0;

  friend bool operator==(const Budget&, const Budget&) = default;
};

struct ProfileSample {
  Budget budget;
  /// Iterations per second. 0: the job does not run with this budget.
  double throughput = 0;
  /// Why it does not; empty if it does.
  std::string failure;
  /// Measured twice.
  bool again = false;
};

struct Profile {
  /// The whole budget. `memory_bytes` is 0 if memory could not be limited: then only cores are profiled.
  Budget full;
  /// The most memory, page cache included, that the job used with the whole budget; 0: unknown.
  std::uint64_t peak_bytes = 0;
  /// A share: what counts as no difference.
  double tolerance = 0.1;
  /// The first has the whole budget. The others have all cores or full memory; the rest is ignored.
  std::vector<ProfileSample> samples;
};

struct ProfileLimits {
  double least_cores = 1;
  std::uint64_t least_memory_bytes = 64U << 20;
  /// Whether cores can be divided, by a quota.
  bool fractions = false;
  std::size_t most_samples = 16;
};

/// What to measure next; none when the profile is complete. A budget that has a sample comes once more if less gave
/// more.
[[nodiscard]] std::optional<Budget> NextBudget(const Profile& profile, const ProfileLimits& limits);
/// Of two samples of one budget the faster stays: what disturbs a run slows it.
void AddSample(Profile& profile, ProfileSample sample);

/// Iterations per second by the model. 0 with less memory than any that was measured: nobody knows whether it runs.
/// The profile must have been checked.
[[nodiscard]] double PredictThroughput(const Profile& profile, const Budget& budget);

/// The least cores, at full memory, and the least memory, with all cores, that keep the throughput within the
/// tolerance. All of a resource of which less gave more.
[[nodiscard]] Budget FindKnee(const Profile& profile);

/// What saves may use.
struct ProfileAdvice {
  /// What the job does not need.
  double spare_cores = 0;
  int worker_threads = 1;
  /// For `host_memory`. None: memory was not profiled, or less of it gave more.
  std::optional<std::uint64_t> host_memory_bytes;
  /// For TuneInput: how many cores' worth of training a busy core of Cairn's slows. 0: it slows nothing.
  double training_cores = 0;
  /// For people, a sentence each.
  std::vector<std::string> why;
};
[[nodiscard]] ProfileAdvice Advise(const Profile& profile);

/// InvalidArgument names the field, as in profile.json, the expected and the found value.
[[nodiscard]] Status CheckProfile(const Profile& profile);

}  // namespace cairn
