#include "bench/pauses/pipeline.h"

#include <algorithm>
#include <barrier>
#include <thread>

#include "base/status_macros.h"
#include "testing/local_group.h"

namespace cairn::bench {

Pipeline::Pipeline(const PipelineModel& model, const std::string& root) : root_(root) {
  for (int i = 0; i < model.stages; ++i) stages_.push_back(std::make_unique<Stage>(model, i));
  const auto at = [&](std::size_t i) { return i < stages_.size() ? stages_[i].get() : nullptr; };
  for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i]->SetNeighbours(at(i - 1), at(i + 1));
}

template <typename Body>
Status Pipeline::OnAll(Body body) {
  std::vector<Status> ended(stages_.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      threads.emplace_back([&, i] { ended[i] = body(i, *stages_[i]); });
    }
  }
  const auto failed = std::find_if(ended.begin(), ended.end(), [](const Status& status) { return !status.ok(); });
  return failed == ended.end() ? Status() : *failed;
}

Status Pipeline::Open() {
  const auto groups = MakeLocalGroup(static_cast<int>(stages_.size()));
  return OnAll([&](std::size_t i, Stage& stage) { return stage.Open(root_, groups[i]); });
}

Result<Pipeline::Segment> Pipeline::Run(Saving saving, int iterations) {
  // The gradients' norm, which all stages need before the update, and the start of an iteration.
  std::barrier all(static_cast<std::ptrdiff_t>(stages_.size()));
  std::vector<std::vector<std::chrono::nanoseconds>> fences(stages_.size());
  std::vector<Clock::duration> took(stages_.size());
  const std::uint64_t first = step_ + 1;
  CAIRN_RETURN_IF_ERROR(OnAll([&](std::size_t i, Stage& stage) -> Status {
    Status failed;
    all.arrive_and_wait();
    const auto begun = Clock::now();
    for (int n = 0; n < iterations; ++n) {
      // A stage that fails would leave its neighbours waiting; a benchmark may as well end here.
      if (failed = stage.RunSchedule(saving, first + static_cast<std::uint64_t>(n)); !failed.ok()) std::terminate();
      all.arrive_and_wait();
      CAIRN_ASSIGN_OR_RETURN(const std::chrono::nanoseconds fence,
                             stage.Update(saving, first + static_cast<std::uint64_t>(n)));
      fences[i].push_back(fence);
      all.arrive_and_wait();
    }
    took[i] = Clock::now() - begun;
    return stage.Drain();
  }));
  step_ += static_cast<std::uint64_t>(iterations);
  if (saving != Saving::kNone) saved_ = step_;
  const auto seconds = [&](auto span) { return std::chrono::duration<double>(span).count() / iterations; };
  Segment segment{.seconds = seconds(took[0])};
  for (std::size_t n = 0; n < static_cast<std::size_t>(iterations); ++n) {
    std::chrono::nanoseconds longest{};
    for (const auto& of : fences) longest = std::max(longest, of[n]);
    segment.fence += seconds(longest);
  }
  return segment;
}

Status Pipeline::CheckRestored() {
  return OnAll([&](std::size_t, Stage& stage) { return stage.CheckRestored(saved_); });
}

}  // namespace cairn::bench
