#pragma once

#include <cassert>

namespace cairn {

/// A lifecycle's state. Every transition must satisfy Follows(from, to), which is declared beside the enum.
template <typename Stage>
class Lifecycle {
 public:
  explicit Lifecycle(Stage first) : now_(first) {}

  void MoveTo(Stage next) {
    assert(Follows(now_, next));
    now_ = next;
  }
  [[nodiscard]] Stage operator*() const { return now_; }
  [[nodiscard]] friend bool operator==(const Lifecycle& cycle, Stage stage) { return cycle.now_ == stage; }

 private:
  Stage now_;
};

}  // namespace cairn
