#pragma once

#include <functional>
#include <string>

#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

/// The ranks that write one checkpoint together, and how they speak. [interface]
///
/// Rank 0 coordinates: the others send it words, and it announces words to them; no rank hears the others' words, so
/// that a save costs each rank O(1) words. Nothing blocks. Words are hints that hurry: the filesystem decides what is
/// committed, so a word that is lost, or a group that breaks, delays a save or fails it, and never loses a checkpoint.
///
/// Each key is used once, by Send and Collect or by Announce and Await. Calls may come from any thread. Callbacks come
/// from any thread, also from within the call, and never under a lock of the group's; after the group broke (a store
/// that is gone) every wait, under way or new, ends at once with the reason. Destroying a group ends every wait, as
/// Cancelled, before the destructor returns; a checkpointer holds its group for as long as it waits.
class Group {
 public:
  using OnWord = std::function<void(int rank, std::string word)>;
  using OnEnd = std::function<void(Status)>;
  using OnAnnounced = std::function<void(Result<std::string> word)>;

  virtual ~Group() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// On every rank but the coordinator: gives it this rank's word under `key`. A failure shows in what is awaited.
  virtual void Send(const std::string& key, std::string word) = 0;
  /// On the coordinator: hears the word of every other rank, each as it comes (early ones are kept until asked for);
  /// then `end`, once: Ok after the last word; DeadlineExceeded naming the ranks that are missing; FailedPrecondition
  /// as soon as a rank whose word is missing has left. Words that come later are dropped.
  virtual void Collect(const std::string& key, Deadline deadline, OnWord on_word, OnEnd end) = 0;
  /// On the coordinator: tells every other rank.
  virtual void Announce(const std::string& key, std::string word) = 0;
  /// On every rank but the coordinator: hears, once, what is announced under `key` (also what was announced earlier),
  /// or DeadlineExceeded, or FailedPrecondition where the coordinator has left.
  virtual void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) = 0;
};

}  // namespace cairn
