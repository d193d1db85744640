#include "tune/iteration_counter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <regex>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

// A longer line is cut: std::regex recurses for each character.
constexpr std::size_t kLongestLine = 1024;
constexpr std::uint64_t kFewest = 2;

constexpr std::array<std::pair<const char*, PatternMeaning>, 4> kDefaults = {{
    // tqdm: " 12%|#2  | 12/100 [00:01<00:09, 9.5it/s]", and without a total "12it [00:01, 9.5it/s]".
    {R"((\d+)/(?:\d+|\?) \[)", PatternMeaning::kCounter},
    {R"((?:^|\s)(\d+)it \[)", PatternMeaning::kCounter},
    // cairn_train, Lightning, Hugging Face, Megatron, and what people print; but not cairn_train's "durable step=12".
    {R"(^(?!.*\bdurable\b).*?\b(?:global_step|step|iteration|iter)['"]?\s*[=:]?\s*[\[(#]?\s*(\d+)(?![.\d]))",
     PatternMeaning::kCounter},
    {R"((\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?:it|its|iter|iters|iterations|step|steps|batches)\s*/\s*s(?:ec)?\b)",
     PatternMeaning::kRate},
}};

}  // namespace

struct IterationCounter::Track {
  std::regex regex;
  PatternMeaning meaning = PatternMeaning::kLine;
  /// Iterations; of a counter, since its first number.
  std::uint64_t seen = 0;
  bool begun = false;
  double last_number = 0;
  /// When the warm-up ended, and after how many.
  bool warm = false;
  std::uint64_t warm_seen = 0;
  double warm_time = 0;
  double last_time = 0;
  double rate_sum = 0;

  void Add(const Options& options, double number, double seconds);
  [[nodiscard]] CountedRate Rate() const;
};

void IterationCounter::Track::Add(const Options& options, double number, double seconds) {
  if (meaning == PatternMeaning::kCounter) {
    const bool new_epoch = number <= 1 && last_number > 1;
    // Printed twice, or of something that lags.
    if (begun && number <= last_number && !new_epoch) return;
    if (begun) seen += static_cast<std::uint64_t>(new_epoch ? number : number - last_number);
    begun = true;
    last_number = number;
  } else {
    ++seen;
  }
  last_time = seconds;
  if (warm) {
    rate_sum += number;
  } else if (seen >= options.warm_up) {
    warm = true;
    warm_seen = seen;
    warm_time = seconds;
  }
}

CountedRate IterationCounter::Track::Rate() const {
  CountedRate rate{.iterations = warm ? seen - warm_seen : 0, .seconds = warm ? last_time - warm_time : 0};
  if (rate.iterations == 0) return rate;
  const auto count = static_cast<double>(rate.iterations);
  if (meaning == PatternMeaning::kRate) {
    rate.throughput = rate_sum / count;
  } else if (rate.seconds > 0) {
    rate.throughput = count / rate.seconds;
  }
  return rate;
}

IterationCounter::IterationCounter(const Options& options) : options_(options) {}
IterationCounter::~IterationCounter() = default;
IterationCounter::IterationCounter(IterationCounter&&) noexcept = default;
IterationCounter& IterationCounter::operator=(IterationCounter&&) noexcept = default;

Result<IterationCounter> IterationCounter::Make(const Options& options) {
  IterationCounter counter(options);
  if (options.pattern.empty()) {
    for (const auto& [pattern, meaning] : kDefaults) {
      counter.tracks_.push_back(
          {.regex = std::regex(pattern, std::regex::icase | std::regex::optimize), .meaning = meaning});
    }
    return counter;
  }
  Track track;
  try {
    track.regex = std::regex(options.pattern);
  } catch (const std::regex_error& error) {
    return Error(StatusCode::kInvalidArgument, "--pattern: expected a regular expression, found \"{}\": {}",
                 options.pattern, error.what());
  }
  const unsigned groups = track.regex.mark_count();
  track.meaning = options.meaning.value_or(groups > 0 ? PatternMeaning::kRate : PatternMeaning::kLine);
  const unsigned expected = track.meaning == PatternMeaning::kLine ? 0 : 1;
  if (groups != expected) {
    return Error(StatusCode::kInvalidArgument, "--pattern: expected {}, found {} in \"{}\"",
                 expected == 1 ? "one group, the number" : "no group (write (?:...)) if lines are counted", groups,
                 options.pattern);
  }
  counter.tracks_.push_back(std::move(track));
  return counter;
}

void IterationCounter::Add(std::string_view line, double seconds) {
  const std::string plain = PlainLine(line);
  for (Track& track : tracks_) {
    std::smatch match;
    if (!std::regex_search(plain, match, track.regex)) continue;
    double number = 0;
    if (track.meaning != PatternMeaning::kLine) {
      const std::string text = match[1].str();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || end != text.data() + text.size() || !(number >= 0) || number > 1e15) continue;
    }
    track.Add(options_, number, seconds);
  }
}

std::vector<CountedRate> IterationCounter::Rates() const {
  // A progress bar prints its own rate too, but that is smoothed.
  const bool counts = std::ranges::any_of(
      tracks_, [](const Track& track) { return track.meaning != PatternMeaning::kRate && track.seen > 0; });
  std::vector<CountedRate> rates;
  for (const Track& track : tracks_) {
    if (track.meaning != PatternMeaning::kRate || !counts) rates.push_back(track.Rate());
  }
  return rates;
}

std::optional<CountedRate> IterationCounter::Complete() const {
  for (const CountedRate& rate : Rates()) {
    const bool enough = rate.iterations >= std::max(options_.iterations, kFewest) &&
                        rate.seconds >= options_.least_seconds && rate.throughput > 0;
    if (enough) return rate;
  }
  return std::nullopt;
}

std::optional<CountedRate> IterationCounter::SoFar() const {
  CountedRate best;
  for (const CountedRate& rate : Rates()) {
    if (rate.throughput > 0 && rate.iterations > best.iterations) best = rate;
  }
  return best.iterations >= kFewest ? std::optional(best) : std::nullopt;
}

std::uint64_t IterationCounter::seen() const {
  std::uint64_t most = 0;
  for (const Track& track : tracks_) most = std::max(most, track.seen);
  return most;
}

std::string PlainLine(std::string_view line) {
  std::string plain;
  line = line.substr(0, kLongestLine);
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      plain += line[i];
      continue;
    }
    // "ESC [ 0-9;? ... final", or ESC and one character.
    if (i + 1 < line.size() && line[++i] == '[') {
      while (i + 1 < line.size() && (line[i + 1] < '@' || line[i + 1] > '~')) ++i;
      ++i;
    }
  }
  return plain;
}

}  // namespace cairn
