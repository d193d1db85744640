#include <fstream>

#include "api/checkpointer_impl.h"
#include "base/status_macros.h"

namespace cairn {

Status Checkpointer::LastFailure() const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->engine == nullptr ? Status::Ok() : impl_->engine->last_failure();
}

CheckpointerStats Checkpointer::stats() const {
  CheckpointerStats stats;
  if (!impl_->CheckProcess().ok()) return stats;
  stats.io_queue = impl_->queue_name;
  stats.io_queue_reason = impl_->queue_reason;
  stats.pool_bytes = impl_->pool->total_bytes();
  stats.pool_hugepage_bytes = impl_->pool->HugepageBytes();
  stats.pool_peak_bytes = impl_->pool->peak_bytes();
  stats.chunk_bytes = impl_->pool->chunk_bytes();
  if (impl_->engine != nullptr) impl_->engine->AddStats(stats);
  if (impl_->steered != nullptr) impl_->steered->AddStats(stats);
  return stats;
}

Status Checkpointer::WriteTrace(const std::string& path) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << impl_->trace.ToJson();
  file.close();
  return file ? Status::Ok() : Error(StatusCode::kIoError, "{}: the trace could not be written", path);
}

}  // namespace cairn
