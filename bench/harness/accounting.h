#pragma once

#include <cstdint>
#include <vector>

#include "bench/harness/training_loop.h"

namespace cairn::bench {

/// The results of a run. In seconds unless stated otherwise.
struct Accounts {
  double iterations_per_second = 0;  ///< Up to the end of the last iteration; draining is not training.
  double slowdown = 0;               ///< An iteration's time divided by that of one without delays.
  double stall_p50 = 0;              ///< Over all iterations, also those without a save.
  double stall_p99 = 0;
  double stall_max = 0;
  double stall_total = 0;
  std::uint64_t durable = 0;       ///< Saves that became durable.
  double first_to_durable = 0;     ///< From the call of the first save.
  double to_durable_p50 = 0;       ///< Of all but the first; of the first where there is no other.
  double to_durable_max = 0;       ///< The same.
  std::vector<double> to_durable;  ///< By save; negative if a newer one overtook it.
  double age_max = 0;              ///< See MaxAge.
  double drain = 0;                ///< From the end of the last iteration.
};
/// Of what came after the warm-up.
[[nodiscard]] Accounts Account(const LoopRecord& record, const LoopSettings& settings);

/// The most work that a failure between the two times could have cost: the greatest age of the newest durable
/// checkpoint, counted from the call of its save, or before the first one from the begin of the loop.
[[nodiscard]] double MaxAge(const std::vector<SaveRecord>& saves, double begin, double end);

/// The least value that at least this share of the values does not exceed (nearest rank); 0 of none.
[[nodiscard]] double Quantile(std::vector<double> values, double share);

}  // namespace cairn::bench
