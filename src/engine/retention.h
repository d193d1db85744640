#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "engine/context.h"
#include "store/remove.h"

namespace cairn {

/// What rank 0 does in the root beside its saves: it sweeps at the start, looks at new steps by their names, removes
/// the older ones that retention lets go, and lists the root again after an unknown outcome.
///
/// On other ranks it has nothing to do. Only for the engine's thread.
class Retention {
 public:
  /// What it asks of the engine, and tells it.
  struct Callbacks {
    /// How many saves in flight have a file: with the spares they may use one checkpoint more than those saves.
    std::function<std::uint64_t()> files_in_flight;
    /// Something begins, and nothing is left.
    std::function<void(bool)> on_busy;
    /// A sweep or a listing has ended: attempts may begin.
    std::function<void()> on_scanned;
  };
  /// The context outlives it.
  Retention(EngineContext& context, Callbacks callbacks) : context_(context), callbacks_(std::move(callbacks)) {}

  /// Sweeps what killed writers left, while training starts: unlinking a file as large as a checkpoint may take long.
  void Begin();
  /// A save of this process is durable. Before older steps go for it, it is looked at by its name.
  void OnDurable(std::uint64_t step);
  /// Looks at new steps, then removes what retention lets go.
  void Retire();
  /// A save has ended with an unknown outcome: the root must be listed.
  void RelistAfterNextSave() { relist_due_ = true; }
  /// Lists the root if that is due. Only after a save: a root that cannot be read would be listed endlessly.
  void OnSavesEnded();
  /// At the end.
  void RemoveSpares();
  /// Before that: none is made or used any more.
  void EndSpares();
  /// How what is removed becomes spares now.
  [[nodiscard]] SparePolicy Spares() const;
  [[nodiscard]] bool busy() const { return !removals_.empty() || removal_in_flight_ || looking_ || context_.scanning; }

 private:
  void BeginScan();
  void EndScan();
  void CheckKept();
  void Relist();
  void LookAtNext();
  void OnLooked(std::uint64_t step, const std::string& attempt, const Status& status);
  void RemoveNext();
  void Warn(const Status& status);
  [[nodiscard]] std::string PathOf(std::uint64_t step) const;
  void NotifyRemoval(std::uint64_t step, const Removal& removal);
  [[nodiscard]] bool leads() const { return context_.parts.group->rank() == 0; }
  [[nodiscard]] bool retains() const { return leads() && context_.parts.options.keep_last != 0; }
  [[nodiscard]] bool recycles() const { return leads() && context_.parts.options.recycle && context_.recycles; }

  EngineContext& context_;
  const Callbacks callbacks_;
  std::deque<std::uint64_t> removals_;
  bool removal_in_flight_ = false;
  bool relist_due_ = false;
  bool spares_end_ = false;
  // Durable steps that have not been looked at by their names.
  std::deque<std::uint64_t> unseen_;
  bool looking_ = false;
  // The first of them could not be read.
  bool second_look_ = false;
  // What the sweep has left until a save is durable.
  std::optional<UnnamedAttempt> unnamed_;
  bool unsupported_reported_ = false;
  // The steps that it could not remove, and why, as it was reported.
  std::map<std::uint64_t, std::string> kept_;
};

}  // namespace cairn
