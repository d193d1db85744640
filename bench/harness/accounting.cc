#include "bench/harness/accounting.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cairn::bench {

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

double MaxAge(const std::vector<SaveRecord>& saves, double begin, double end) {
  std::vector<SaveRecord> durable;
  for (const SaveRecord& save : saves) {
    if (save.durable.has_value() && *save.durable <= end) durable.push_back(save);
  }
  std::sort(durable.begin(), durable.end(),
            [](const SaveRecord& a, const SaveRecord& b) { return *a.durable < *b.durable; });
  double newest = 0;
  double oldest = 0;
  for (const SaveRecord& save : durable) {
    if (*save.durable >= begin) oldest = std::max(oldest, *save.durable - newest);
    newest = std::max(newest, save.started);
  }
  return std::max(oldest, end - newest);
}

Accounts Account(const LoopRecord& record, const LoopSettings& settings) {
  Accounts accounts;
  const std::size_t warm = std::min<std::size_t>(settings.warmup, record.ends.size() - 1);
  const double begin = warm == 0 ? 0 : record.ends[warm - 1];
  const std::vector<double> stalls(record.stalls.begin() + static_cast<std::ptrdiff_t>(warm), record.stalls.end());
  const auto iterations = static_cast<double>(stalls.size());
  accounts.iterations_per_second = iterations / (record.end - begin);
  accounts.slowdown = (record.end - begin) / (iterations * settings.iteration_seconds);
  accounts.stall_p50 = Quantile(stalls, 0.5);
  accounts.stall_p99 = Quantile(stalls, 0.99);
  accounts.stall_max = Quantile(stalls, 1);
  accounts.stall_total = std::accumulate(stalls.begin(), stalls.end(), 0.0);
  std::vector<double> steady;
  for (std::size_t i = 0; i < record.saves.size(); ++i) {
    const SaveRecord& save = record.saves[i];
    const double took = save.durable.has_value() ? *save.durable - save.started : -1;
    accounts.to_durable.push_back(took);
    if (took < 0) continue;
    ++accounts.durable;
    if (i == 0) accounts.first_to_durable = took;
    if ((i > 0 && save.started >= begin) || record.saves.size() == 1) steady.push_back(took);
  }
  accounts.to_durable_p50 = Quantile(steady, 0.5);
  accounts.to_durable_max = Quantile(steady, 1);
  accounts.age_max = MaxAge(record.saves, begin, record.end);
  accounts.drain = record.drained - record.end;
  return accounts;
}

}  // namespace cairn::bench
