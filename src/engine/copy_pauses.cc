#include "engine/copy_pauses.h"

#include "cairn/copy_pause.h"

namespace cairn {

void CopyPauses::End(std::uint64_t id) {
  if (::getpid() != process_) return;
  {
    MutexLock lock(mutex_);
    pauses_.erase(id);
  }
  engine_->Wake();  // Others may remain, and end sooner than this one would have.
}

void CopyPauses::EndAll() {
  {
    MutexLock lock(mutex_);
    pauses_.clear();
  }
  engine_->Wake();
}

void CopyPause::End() {
  if (const auto pauses = std::exchange(pauses_, nullptr)) pauses->End(id_);
}

}  // namespace cairn
