#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/pauses/stage.h"

namespace cairn::bench {

/// The stages of a pipeline, a thread for each, and one checkpoint of all.
class Pipeline {
 public:
  Pipeline(const PipelineModel& model, const std::string& root);

  struct Segment {
    double seconds = 0;  ///< For an iteration.
    double fence = 0;    ///< How long the fence of an iteration took, on the stage where it took longest; the mean.
  };
  Status Open();
  /// Runs so many iterations, with a save in each, then waits until they are durable, which is not counted.
  Result<Segment> Run(Saving saving, int iterations);
  Status CheckRestored();

 private:
  template <typename Body>
  Status OnAll(Body body);

  const std::string root_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::uint64_t step_ = 0;
  std::uint64_t saved_ = 0;
};

}  // namespace cairn::bench
