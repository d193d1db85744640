#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cairn/group.h"

namespace cairn::trainer {

/// A process, as the other processes of a job can tell it from theirs.
struct ProcessPlace {
  std::string host;
  /// Equal for processes that see each other's numbers.
  std::string numbering;
  int number = 0;
};
ProcessPlace ThisProcess();

/// What a rank was started with: "--seed" -> "7".
using Settings = std::vector<std::pair<std::string, std::string>>;

/// The other ranks' processes: who of them has died, and what those say that end.
///
/// A process on the same machine is watched by a pidfd, so that its death is known at once. Of others it is known that
/// they did not answer within a deadline. Not safe for concurrent use.
class Peers {
 public:
  /// Tells the other ranks of this one, and waits for all of them. Throws std::runtime_error, naming those that do not
  /// come by the deadline, another process of the same rank, or a rank that was told another `world`. `patience` is how
  /// long later calls wait for ranks that do not answer.
  Peers(cairn::KeyValueStore store, int rank, int world, const ProcessPlace& place, std::chrono::nanoseconds patience);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Made by all ranks. Throws std::runtime_error, naming it, if a setting of this rank differs from rank 0's.
  void ExpectAlike(const Settings& settings);
  /// Waits until the descriptor is readable. False if a process of another rank ended a second before, or `patience`
  /// has passed.
  [[nodiscard]] bool AwaitReadable(int descriptor) const;
  /// Tells the other ranks that this one ends because of an error of its own.
  void Leave(const std::string& why);
  /// Which ranks are gone, and why as far as it is known, for an error message. Called by every rank that fails because
  /// of others; empty if none is. Waits until all have answered, at most `patience`, unless it knows already.
  [[nodiscard]] std::string DescribeGone();

 private:
  struct Peer {
    std::string name;  // "rank 1 (process 4711 on gpu-2)".
    int descriptor = -1;
  };
  [[nodiscard]] bool AwaitReadable(int descriptor, cairn::Deadline deadline) const;
  [[nodiscard]] bool HasEnded(const Peer& peer) const;
  void TellPlace(const ProcessPlace& place);
  void Watch(int rank, const std::string& message, const ProcessPlace& place);
  void Say(const std::string& message);
  /// What the rank has said of its end; empty if it has said nothing by then. Not ok if the store is lost.
  [[nodiscard]] cairn::Result<std::string> Heard(std::size_t rank, cairn::Deadline deadline) const;

  const cairn::KeyValueStore store_;
  const std::size_t rank_;
  const std::chrono::nanoseconds patience_;
  std::vector<Peer> peers_;  // By rank.
};

}  // namespace cairn::trainer
