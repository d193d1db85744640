#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cairn/group.h"

namespace cairn {

/// How the ranks of a group meet in its store: they agree on a session, whatever died before them.
///
///   1. Each rank says in `cairn/opens/<r>` which group it opens, for the others' messages. It stays after a failure.
///   2. Rank r sets `hello/<r>` to a nonce and its number of ranks, and waits for `welcome/<nonce>`.
///   3. Rank 0 answers there: a session, or `!` and why it refuses.
///   4. Rank r removes the answer, and then its hello: it has joined, or it was refused.
///   5. Rank 0 goes on once all hellos are gone. The hello of a rank that has died, or has given up, stays. Its
///      successor overwrites it, and step 3 begins again.
///
/// Rank 0 removes no hello: so the successor of a rank 0 that has died finds them. If it gives up, it says why to all
/// that were told the session: who has not joined yet may still do so, and reads it in the log. If a rank was told
/// another number of ranks, rank 0 also refuses the others that have asked by then, and waits until they have heard.
/// The keys of steps 2 and 3 are under `cairn/<name>/`. A session is a fresh id, so that nobody reads an earlier one's
/// messages.
class StoreMeeting {
 public:
  using EndOfClosing = std::atomic<Deadline::Clock::time_point>;
  /// Why rank 0 gives up, and how many ranks may be in its session.
  using GiveUp = std::function<Status(const Status& why, int told)>;

  StoreMeeting(const StoreGroupOptions& options, const EndOfClosing& close_by);

  /// Ok once this rank has joined; on rank 0, once all have. DeadlineExceeded names the ranks that are missing;
  /// FailedPrecondition if a rank was told another number of ranks, or if this one closes.
  Status Meet(const KeyValueStore& store, Deadline deadline, const GiveUp& give_up);
  /// Not on rank 0, through another connection: ends a Meet that waits on another thread for rank 0's answer.
  Status EndWait(const KeyValueStore& store) const;
  /// Once this rank has joined; on rank 0 from the beginning.
  [[nodiscard]] const std::string& session() const { return session_; }

 private:
  struct Answered {
    std::string hello;
    bool refused = false;
  };

  Status Join(const KeyValueStore& store, Deadline deadline);
  // Rank 0's part. These set `ended_` if the opening ends without a session.
  Status Lead(const KeyValueStore& store, Deadline deadline, const GiveUp& give_up);
  Status Gather(const KeyValueStore& store, Deadline deadline);
  Status Answer(const KeyValueStore& store, int rank, const std::string& hello);
  Status LookAgain(const KeyValueStore& store);
  Status Refuse(const KeyValueStore& store, int first, int end);
  Status WaitUntilHeard(const KeyValueStore& store);
  Status NameMissing(const KeyValueStore& store, int first_silent);

  [[nodiscard]] std::string RefusalOf(int rank, const std::string& hello) const;
  /// For a message: what one of these ranks has opened instead.
  Result<std::string> Elsewhere(const KeyValueStore& store, const std::vector<int>& ranks) const;
  [[nodiscard]] std::string Key(const std::string& name) const { return "cairn/" + options_.name + "/" + name; }
  [[nodiscard]] std::string HelloKey(int rank) const { return Key("hello/" + std::to_string(rank)); }
  [[nodiscard]] std::string WelcomeKey(const std::string& hello) const;

  const StoreGroupOptions& options_;
  const EndOfClosing& close_by_;
  const std::string id_;  // This rank's hello.
  std::string session_;
  // Rank 0's.
  std::map<int, Answered> answered_;  // Hellos that are not gone, by rank.
  int joined_ = 0;
  int other_size_ = 0;  // That a refused rank was told.
  Status ended_;
};

}  // namespace cairn
