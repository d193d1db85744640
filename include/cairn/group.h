#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/options.h"
#include "cairn/status.h"
#include "cairn/tensor.h"

namespace cairn {

/// The ranks that write one checkpoint together, and how they exchange messages. [interface]
///
/// Rank 0 is the coordinator. The other ranks send messages to it, and it announces messages to all of them. The other
/// ranks do not hear each other, so a save costs each of them O(1) messages. No call blocks. Messages only save time:
/// the filesystem decides what is committed. A lost message or a broken group can delay a save or fail it, but never
/// loses a checkpoint.
///
/// Each key is used once, either by Send and Collect or by Announce and Await. Any thread may call. Callbacks may come
/// from any thread, also from inside the call itself, but never while the group holds a lock. Once the group is broken
/// (its store is gone, for example), every current and later wait ends at once with the reason. The destructor ends
/// every wait with Cancelled before it returns. A checkpointer keeps its group alive while it waits.
class Group {
 public:
  using OnMessage = std::function<void(int rank, std::string message)>;
  using OnEnd = std::function<void(Status)>;
  using OnAnnounced = std::function<void(Result<std::string> message)>;

  virtual ~Group() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Not on the coordinator: sends it this rank's message under `key`. A failure is reported by a later Await.
  virtual void Send(const std::string& key, std::string message) = 0;
  /// On the coordinator: calls `on_message` with the message of each other rank, as it arrives. Messages that arrived
  /// before the call were kept. Then calls `end`, once: Ok after the last message; DeadlineExceeded, naming the ranks
  /// whose messages are missing; or FailedPrecondition as soon as one of these ranks has left. Later messages are
  /// dropped.
  virtual void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) = 0;
  /// On the coordinator: sends the message to every other rank.
  virtual void Announce(const std::string& key, std::string message) = 0;
  /// Not on the coordinator: calls `on_announced`, once, with the message announced under `key`, even if that came
  /// before this call; with DeadlineExceeded; or with FailedPrecondition if the coordinator has left.
  virtual void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) = 0;
};

/// One connection to a key-value store that all ranks of a job reach, such as torch.distributed's (see torch.h). Values
/// are any bytes. The calls may block, and are used by one thread. NoSpace means that the store is full: the call has
/// changed nothing, and is tried again until there is room. Any other status that is not ok means that the store is
/// lost.
struct KeyValueStore {
  std::function<Status(const std::string& key, const std::string& value)> set;
  /// Sets a key that is not there, atomically. Returns whether it was not there.
  std::function<Result<bool>(const std::string& key, const std::string& value)> set_if_absent;
  /// The value of the key; NotFound if it is not there.
  std::function<Result<std::string>(const std::string& key)> get;
  /// Whether the key is there.
  std::function<Result<bool>(const std::string& key)> check;
  /// Waits until the key is there. Returns whether it came within `timeout`, which is above zero.
  std::function<Result<bool>(const std::string& key, std::chrono::milliseconds timeout)> wait;
  /// Adds to the number under the key, 0 if it is not there, atomically. Returns the sum.
  std::function<Result<std::int64_t>(const std::string& key, std::int64_t amount)> add;
  /// Removes the key, if it is there.
  std::function<Status(const std::string& key)> erase;
};

struct StoreGroupOptions {
  int rank = 0;
  int size = 1;
  /// The same text on all ranks, and another one for each group that is open at the same time; the root, for instance.
  std::string name = {};
  /// How long the ranks wait until all of them have made the group. Messages sent before are kept.
  std::chrono::nanoseconds open_timeout = std::chrono::minutes(10);
  /// How long the destructor waits until this rank's last messages are in the store. If the store hangs longer, the
  /// thread that uses it stays behind.
  std::chrono::nanoseconds close_timeout = std::chrono::seconds(5);
};

/// A group over a key-value store. Returns at once: two threads of the group call `connect`, once each, and then use
/// the store. A store that is lost, or ranks that do not come, break the group; a store that hangs does not keep waits
/// from ending at their deadlines. A rank that closes is known to the others at once, one that is killed only by these
/// deadlines. Removes every key that it made, once all ranks have closed.
///
/// InvalidArgument if `rank` is not one of `size`. ResourceExhausted if the system starts no thread.
[[nodiscard]] Result<std::shared_ptr<Group>> MakeStoreGroup(StoreGroupOptions options,
                                                            std::function<Result<KeyValueStore>()> connect);

/// A group over files, for processes that have no store: it needs only a folder that all ranks see, local or on NFS.
/// `folder` may be the root, and is made if it is missing; another one for each group that is open at the same time.
/// The files are in `folder`/.group. Returns at once; see MakeStoreGroup.
///
/// Files that dead processes have left are never taken for this group's. Rank 0 removes them when it opens the group,
/// for which it waits until the rank 0 of an earlier start has ended. If other ranks of an earlier start may still
/// live, give each start a `name` of its own, such as SLURM_JOB_ID with SLURM_RESTART_COUNT: they then stay out.
///
/// The filesystem must support locks: otherwise the group breaks, with Unsupported. While it is full, messages wait for
/// room, as long as the group is open. Others' files are looked for with pauses, which grow to 250 ms.
[[nodiscard]] Result<std::shared_ptr<Group>> MakeFileGroup(const std::string& folder, StoreGroupOptions options);

/// The names of all tensors of the state, for Replicated::tensors where all ranks hold the same.
[[nodiscard]] std::vector<std::string> TensorNames(const State& state);

}  // namespace cairn
