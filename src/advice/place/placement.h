#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "advice/place/matching.h"
#include "advice/place/network.h"

namespace cairn {

// The cost of a placement, as DT-FM (NeurIPS 2022) models it. A job has S pipeline stages and D replicas of each; a
// placement puts D of the S * D devices into each stage.
//
// 1. The devices of a stage all-reduce its g bytes of gradients, each a part of g / D. Device i sends a part to each of
//    the others, j, and receives one:
//        DataP = max over stages of max over devices i of the sum over j of 2 (delay_ij + (g / D) / rate_ij).
// 2. Between two stages each device sends a bytes of activations to one of the other stage, all at once. The best way
//    to pair them is the perfect matching whose slowest pair is the fastest:
//        cross(p, q) = bottleneck matching of delay_ij + a / rate_ij.
// 3. The stages stand in the order that makes the sum of cross between neighbours least, an open travelling salesman's
//    path: PipelineP. Forward passes go along it and backward passes return:
//        total = DataP + 2 PipelineP.

struct PlacementJob {
  std::size_t stages = 1;
  /// Of one stage: g.
  double gradient_bytes = 0;
  /// That one replica sends from a stage to the next in an iteration: a.
  double activation_bytes = 0;
};

/// The devices of each stage.
using Groups = std::vector<std::vector<std::size_t>>;

/// Seconds of an iteration.
struct PlacementCost {
  double data = 0;
  /// One way.
  double pipeline = 0;
  [[nodiscard]] double total() const { return data + 2 * pipeline; }
};

struct StagePath {
  double seconds = 0;
  std::vector<std::size_t> order;
};

inline constexpr std::size_t kMostStages = 12;

/// The cheapest path that visits every stage once, from any one to any other; exact. `cross`: stages * stages costs,
/// row by row, symmetric. At most kMostStages.
[[nodiscard]] StagePath CheapestPath(std::span<const double> cross, std::size_t stages);

/// The cost of groups on a network. Keeps memory between calls: for one thread. `network` must outlive it.
class PlacementModel {
 public:
  PlacementModel(const Network& network, const PlacementJob& job);

  /// Of one stage.
  [[nodiscard]] double Data(std::span<const std::size_t> group) const;
  [[nodiscard]] double Cross(std::span<const std::size_t> from, std::span<const std::size_t> to);
  /// A smooth stand-in for Cross, which falls with each device that gets a near one in the other stage, not only with
  /// the last: the root mean square of the devices' cheapest edges. At most Cross.
  [[nodiscard]] double Near(std::span<const std::size_t> from, std::span<const std::size_t> to);
  [[nodiscard]] PlacementCost Cost(const Groups& groups);
  /// The same groups in the order of the cheapest path, each group's devices in the order of the pipelines: its device
  /// r sends to device r of the next.
  [[nodiscard]] Groups InOrder(const Groups& groups);

  [[nodiscard]] std::size_t stages() const { return stages_; }
  [[nodiscard]] std::size_t devices() const { return devices_; }
  /// Seconds that activations take between two devices.
  [[nodiscard]] double Send(std::size_t from, std::size_t to) const { return send_[from * devices_ + to]; }

 private:
  std::span<const double> Edges(std::span<const std::size_t> from, std::span<const std::size_t> to);
  StagePath Path(const Groups& groups);

  std::size_t devices_;
  std::size_t stages_;
  std::vector<double> reduce_;  // Of one part, there and back.
  std::vector<double> send_;
  std::vector<double> edges_;
  std::vector<double> nearest_;  // Of columns.
  BottleneckMatcher matcher_;
};

/// Stage p has `devices / stages` devices in a row.
[[nodiscard]] Groups Contiguous(std::size_t devices, std::size_t stages);
/// Stage p has device p of each row of `stages` devices.
[[nodiscard]] Groups OnePerBlock(std::size_t devices, std::size_t stages);

}  // namespace cairn
