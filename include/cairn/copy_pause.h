#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace cairn {

class CopyPauses;

/// Holds back a Checkpointer's copies to the host while it lives (see Checkpointer::PauseCopies). Move-only. May
/// outlive the Checkpointer. In a forked child it does nothing.
class CopyPause {
 public:
  /// Holds nothing back.
  CopyPause() = default;
  ~CopyPause() { End(); }
  CopyPause(CopyPause&& other) noexcept : pauses_(std::move(other.pauses_)), id_(other.id_) {}
  CopyPause& operator=(CopyPause&& other) noexcept {
    if (this == &other) return *this;
    End();
    pauses_ = std::move(other.pauses_);
    id_ = other.id_;
    return *this;
  }
  CopyPause(const CopyPause&) = delete;
  CopyPause& operator=(const CopyPause&) = delete;

  /// Ends it now. Safe from any thread, but not from two at once.
  void End();

  CopyPause(std::shared_ptr<CopyPauses> pauses, std::uint64_t id) : pauses_(std::move(pauses)), id_(id) {}

 private:
  std::shared_ptr<CopyPauses> pauses_;
  std::uint64_t id_ = 0;
};

}  // namespace cairn
