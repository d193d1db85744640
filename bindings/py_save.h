#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "api/checkpointer_impl.h"
#include "base/status_macros.h"
#include "cairn/cairn.h"
#include "conversions.h"
#include "py_calls.h"
#include "watched_save.h"

namespace cairn {

/// One save; see SaveHandle. Times in seconds. The caller may change the tensors once it hears that the save is
/// captured, so their memory is checked before it hears so.
class PySave {
 public:
  /// `watched` is null if the save reads nothing after its call.
  PySave(SaveHandle save, std::shared_ptr<WatchedSave> watched, std::shared_ptr<Watcher> watcher)
      : save_(std::move(save)), watched_(std::move(watched)), watcher_(std::move(watcher)) {}

  [[nodiscard]] std::uint64_t step() const { return save_.step(); }
  [[nodiscard]] const std::shared_ptr<WatchedSave>& watched() const { return watched_; }
  /// For a fence: if it is captured, its tensors are checked now.
  [[nodiscard]] bool captured() const {
    const bool so = save_.stats().phase >= SavePhase::kCaptured;
    if (so && watched_ != nullptr) watcher_->Settle(watched_, Watcher::kShort);
    return so;
  }
  /// Whether it reads its tensors no more, and they were checked.
  [[nodiscard]] bool settled() const {
    return Inside::Of(save_).WaitTensorsFree(Deadline::In({})) && (watched_ == nullptr || watched_->checked());
  }
  /// True in a forked child, which will hear nothing more of it.
  [[nodiscard]] bool ended() const { return watcher_->forked() || Inside::Of(save_).ended(); }
  [[nodiscard]] pybind11::dict stats() const { return FromStats(Checked(save_.stats())); }
  /// (file, names): the file with what it has frozen, and the tensors in that; None without. Known once `written` is.
  [[nodiscard]] pybind11::object Kept() const;
  [[nodiscard]] bool Cancel() const { return save_.Cancel(); }
  void Release() const { watched_ != nullptr ? watched_->Release() : Inside::Of(save_).Release(); }
  void WaitCaptured(std::optional<double> timeout) const {
    Wait(timeout, [&](Deadline deadline) { return save_.WaitCaptured(deadline); });
    if (watched_ == nullptr) return;
    if (IsCaller()) {
      watcher_->Settle(watched_, Watcher::kShort);
    } else {
      RaiseIfError(InSlices(watcher_->EndOf(timeout), [&](Deadline slice) {
        if (watcher_->WaitChecked(*watched_, slice)) return Status::Ok();
        return Error(
            StatusCode::kDeadlineExceeded,
            "step {}: a thread may still be writing the tensors, which were read: it has called nothing of Cairn's",
            save_.step());
      }));
    }
    if (!watched_->CheckMemory()) WaitDurable(timeout);  // Raises why.
  }
  void WaitKept(std::optional<double> timeout) const {
    Wait(timeout, [&](Deadline deadline) { return save_.WaitKept(deadline); });
  }
  void Want() const { Inside::Of(save_).Want(); }
  void WaitDurable(std::optional<double> timeout) const {
    Wait(timeout, [&](Deadline deadline) { return save_.WaitDurable(deadline); });
  }
  /// Whether it has ended, or is kept in memory, if that is enough, within the timeout. Its failure stays unheard, for
  /// the user.
  [[nodiscard]] bool WaitEnded(std::optional<double> timeout, bool or_kept) const {
    watcher_->EndStep();
    const Watcher::Waiting waiting(*watcher_);
    const auto over = [&](Deadline slice) {
      SaveTask& save = Inside::Of(save_);
      return watcher_->forked() || (or_kept ? save.WaitKeptOrEnded(slice) : save.WaitEnded(slice));
    };
    const auto waits = [&](Deadline slice) {
      return over(slice) ? Status() : Status(StatusCode::kDeadlineExceeded, "");
    };
    return Interruptible([end = DeadlineFrom(timeout)] { return end; }, waits).ok();
  }

 private:
  template <typename Call>
  void Wait(std::optional<double> timeout, const Call& call) const {
    watcher_->EndStep();
    const Watcher::Waiting waiting(*watcher_);
    std::optional<Status> end;
    const Status status = Interruptible(watcher_->EndOf(timeout), [&](Deadline deadline) {
      Status now = call(deadline);
      if (now.code() != StatusCode::kDeadlineExceeded) return now;
      Status ended = save_.status();
      if (ended.ok()) return now;
      end = std::move(ended);  // It has failed, perhaps by a deadline of its own.
      return Status::Ok();
    });
    RaiseIfError(end ? *end : status);
  }
  // The thread that called save hears that it may change the tensors. If another one asks, a write may be under way.
  [[nodiscard]] SaveStats Checked(SaveStats stats) const {
    if (watched_ != nullptr && IsCaller() && stats.phase >= SavePhase::kCaptured)
      watcher_->Settle(watched_, Watcher::kShort);
    return stats;
  }

  [[nodiscard]] bool IsCaller() const { return watched_->caller() == ThisThread(); }

  SaveHandle save_;
  std::shared_ptr<WatchedSave> watched_;
  std::shared_ptr<Watcher> watcher_;
};

/// Keeps a checkpoint where it is until Release; see Chosen::hold.
class PyHold {
 public:
  explicit PyHold(std::shared_ptr<const void> hold) : hold_(std::move(hold)) {}
  void Release() { hold_.reset(); }

 private:
  std::shared_ptr<const void> hold_;
};

void BindSave(pybind11::module_& module);

}  // namespace cairn
