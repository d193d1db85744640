#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cairn/group.h"
#include "ranks/backend.h"
#include "ranks/environment.h"
#include "ranks/peers.h"

namespace cairn::trainer {

/// The ranks of a data-parallel job. Each call is made by all of them, in the same order.
///
/// The calls throw std::runtime_error if a rank is gone, or does not come within the patience: the message names it.
/// The job cannot go on then. Not safe for concurrent use.
class Ranks {
 public:
  /// Meets the other ranks. A job of one rank may have them too.
  Ranks(RankEnvironment environment, const std::string& backend, at::Device device, std::chrono::seconds patience);
  /// During an exception it tells the other ranks that this one ends.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  [[nodiscard]] int rank() const { return environment_.rank; }
  [[nodiscard]] int world() const { return environment_.world; }
  [[nodiscard]] std::chrono::seconds patience() const { return patience_; }

  /// Throws std::runtime_error, naming it, if a setting differs from rank 0's.
  void ExpectAlike(const Settings& settings);
  /// Gives every rank rank 0's values, in place.
  void Broadcast(const std::vector<at::Tensor>& tensors);
  /// Gives every rank the sums over all ranks, in place: the same bits on each. Of two ranks the sum is exactly a + b.
  void Sum(const std::vector<at::Tensor>& tensors);
  /// Returns once all ranks have made the call.
  void Barrier();
  /// For Checkpointers.
  [[nodiscard]] std::shared_ptr<cairn::Group> MakeGroup(const std::string& root) const;
  /// Tells the other ranks that this one ends, because of this error.
  void Leave(const std::string& why);

  /// Checks that the backend moves bytes: sums, broadcasts, and sends to the next rank, with NCCL also to itself.
  /// Throws std::runtime_error if any arrive wrong.
  void Prove();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  [[nodiscard]] std::chrono::milliseconds timeout() const { return patience_; }
  [[nodiscard]] Store OpenStore() const;
  /// Waits for it, or for a rank's death.
  void Finish(const Work& work);
  void ProveExchange();
  [[noreturn]] void Fail(const std::string& why);

  const RankEnvironment environment_;
  const std::string backend_name_;
  const at::Device device_;
  const std::chrono::seconds patience_;
  const int exceptions_;  // In flight when this was made.
  Store store_;
  std::unique_ptr<Peers> peers_;
  Backend backend_;
  bool left_ = false;
};

}  // namespace cairn::trainer
