#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"

namespace cairn {

/// What a match of a pattern means.
enum class PatternMeaning : std::uint8_t {
  kLine,     ///< Each matching line is one iteration.
  kCounter,  ///< The group is the number of the newest iteration; it may skip some, and begin again at 0 or 1.
  kRate,     ///< The group is the iterations per second since the last such line.
};

struct CountedRate {
  /// Iterations per second.
  double throughput = 0;
  /// How many it is the mean of; with kRate, lines.
  std::uint64_t iterations = 0;
  double seconds = 0;
};

/// Counts the iterations of a job by the lines that it prints, given when they came. Uses no clock.
class IterationCounter {
 public:
  struct Options {
    /// ECMAScript. Empty: those of progress bars ("12/100 [", "12it ["), of trainers ("step=12", "Iteration 12/100",
    /// "'step': 12") and of rates ("3.4 it/s"), whichever is the first to be complete.
    std::string pattern;
    /// Of `pattern`; none: kRate if it has a group, else kLine.
    std::optional<PatternMeaning> meaning;
    /// Iterations that are not measured.
    std::uint64_t warm_up = 5;
    /// How many are, at least, in how many seconds, at least.
    std::uint64_t iterations = 20;
    double least_seconds = 2;
  };
  /// InvalidArgument for a pattern that is none, or whose groups do not fit its meaning.
  [[nodiscard]] static Result<IterationCounter> Make(const Options& options);
  ~IterationCounter();
  IterationCounter(IterationCounter&&) noexcept;
  IterationCounter& operator=(IterationCounter&&) noexcept;

  /// The next line, without its end. `seconds` never decreases.
  void Add(std::string_view line, double seconds);
  /// Once it has measured enough.
  [[nodiscard]] std::optional<CountedRate> Complete() const;
  /// The best there is; none with less than two iterations after the warm-up.
  [[nodiscard]] std::optional<CountedRate> SoFar() const;
  /// Iterations seen, warm-up included, by the pattern that saw the most.
  [[nodiscard]] std::uint64_t seen() const;

 private:
  struct Track;
  explicit IterationCounter(const Options& options);
  [[nodiscard]] std::vector<CountedRate> Rates() const;

  Options options_;
  std::vector<Track> tracks_;
};

/// Without escape sequences of terminals, at most 1 KiB.
[[nodiscard]] std::string PlainLine(std::string_view line);

}  // namespace cairn
