#pragma once

#include <functional>
#include <string>

#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

/// The ranks that write one checkpoint together, and how they exchange messages ("words"). [interface]
///
/// Rank 0 is the coordinator. The other ranks send words to it, and it announces words to all of them. The other ranks
/// do not hear each other, so a save costs each of them O(1) words. No call blocks. Words only save time: the
/// filesystem decides what is committed. A lost word or a broken group can delay a save or fail it, but never loses a
/// checkpoint.
///
/// Each key is used once, either by Send and Collect or by Announce and Await. Any thread may call. Callbacks may come
/// from any thread, also from inside the call itself, but never while the group holds a lock. Once the group is broken
/// (its store is gone, for example), every current and later wait ends at once with the reason. The destructor ends
/// every wait with Cancelled before it returns. A checkpointer keeps its group alive while it waits.
class Group {
 public:
  using OnWord = std::function<void(int rank, std::string word)>;
  using OnEnd = std::function<void(Status)>;
  using OnAnnounced = std::function<void(Result<std::string> word)>;

  virtual ~Group() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Not on the coordinator: sends it this rank's word under `key`. A failure is reported by a later Await.
  virtual void Send(const std::string& key, std::string word) = 0;
  /// On the coordinator: calls `on_word` with the word of each other rank, as it arrives. Words that arrived before the
  /// call were kept. Then calls `end`, once: Ok after the last word; DeadlineExceeded, naming the ranks whose words are
  /// missing; or FailedPrecondition as soon as one of these ranks has left. Later words are dropped.
  virtual void Collect(const std::string& key, Deadline deadline, OnWord on_word, OnEnd end) = 0;
  /// On the coordinator: sends the word to every other rank.
  virtual void Announce(const std::string& key, std::string word) = 0;
  /// Not on the coordinator: calls `on_announced`, once, with the word announced under `key`, even if that came before
  /// this call; with DeadlineExceeded; or with FailedPrecondition if the coordinator has left.
  virtual void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) = 0;
};

}  // namespace cairn
