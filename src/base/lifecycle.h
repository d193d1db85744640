#pragma once

#include <functional>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

/// A lifecycle's state. Every transition must satisfy Follows(from, to), which is declared beside the enum.
template <typename Stage>
class Lifecycle {
 public:
  using OnBug = std::function<void(Status)>;

  /// `what` has this lifecycle, for the message. `on_bug` is called with Internal for a transition that is forbidden.
  Lifecycle(const char* what, Stage first, OnBug on_bug) : what_(what), now_(first), on_bug_(std::move(on_bug)) {}

  /// False if the transition is forbidden, which is a bug in Cairn: it is reported, the stage stays as it was, and the
  /// caller must do nothing that belongs to the next one.
  [[nodiscard]] bool MoveTo(Stage next) {
    if (!Follows(now_, next)) {
      on_bug_(Error(StatusCode::kInternal, "a bug in Cairn: {} cannot go from stage {} to {}", what_,
                    static_cast<int>(now_), static_cast<int>(next)));
      return false;
    }
    now_ = next;
    return true;
  }
  [[nodiscard]] Stage operator*() const { return now_; }
  [[nodiscard]] friend bool operator==(const Lifecycle& cycle, Stage stage) { return cycle.now_ == stage; }

 private:
  const char* const what_;
  Stage now_;
  const OnBug on_bug_;
};

}  // namespace cairn
