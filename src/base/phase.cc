#include "cairn/stats.h"

namespace cairn {

std::string_view SavePhaseName(SavePhase phase) {
  switch (phase) {
    case SavePhase::kQueued:
      return "queued";
    case SavePhase::kCapturing:
      return "capturing";
    case SavePhase::kCaptured:
      return "captured";
    case SavePhase::kCommitting:
      return "committing";
    case SavePhase::kDurable:
      return "durable";
    case SavePhase::kFailed:
      return "failed";
  }
  return "?";
}

}  // namespace cairn
