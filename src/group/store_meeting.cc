#include "group/store_meeting.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <thread>

#include "base/status_macros.h"
#include "base/uuid.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

// The longest pause between rank 0's looks at the hellos.
constexpr milliseconds kLongestPause{100};
// How long rank 0 waits for the others to hear why it refuses them.
constexpr milliseconds kHearing = std::chrono::seconds(5);
// In a hello, between the nonce and the number of ranks.
constexpr std::string_view kOfSize = " of ";
// Between what a rank opens and where.
constexpr std::string_view kOnHost = " on host ";
// Begins an answer that is no session.
constexpr char kRefused = '!';
// What a rank that closes says itself in rank 0's place.
constexpr std::string_view kNoAnswer = "!";

std::string InSeconds(std::chrono::nanoseconds span) {
  return fmt::format("{:g} s", std::chrono::duration<double>(span).count());
}

/// Empty if the hello does not say it.
std::string SizeIn(const std::string& hello) {
  const auto at = hello.find(kOfSize);
  return at == std::string::npos ? "" : hello.substr(at + kOfSize.size());
}

std::string OpensKey(int rank) { return "cairn/opens/" + std::to_string(rank); }

/// Nothing if the key is not there.
Result<std::string> Peek(const KeyValueStore& store, const std::string& key) {
  Result<std::string> value = store.get(key);
  if (value.status().code() == StatusCode::kNotFound) return std::string();
  return value;
}

void Pause(milliseconds& pause) {
  std::this_thread::sleep_for(pause);
  pause = std::min(2 * pause, kLongestPause);
}

}  // namespace

StoreMeeting::StoreMeeting(const StoreGroupOptions& options, const EndOfClosing& close_by)
    : options_(options), close_by_(close_by), id_(fmt::format("{}{}{}", MakeUuid(), kOfSize, options.size)) {
  if (options.rank == 0) session_ = MakeUuid();
}

Status StoreMeeting::Meet(const KeyValueStore& store, Deadline deadline, const GiveUp& give_up) {
  std::array<char, 256> host{"an unknown one"};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  const std::string opens = OpensKey(options_.rank);
  CAIRN_RETURN_IF_ERROR(store.set(opens, fmt::format("{}{}{}", options_.name, kOnHost, host.data())));
  CAIRN_RETURN_IF_ERROR(options_.rank == 0 ? Lead(store, deadline, give_up) : Join(store, deadline));
  return store.erase(opens);
}

Status StoreMeeting::Join(const KeyValueStore& store, Deadline deadline) {
  const std::string hello = HelloKey(options_.rank);
  const std::string welcome = WelcomeKey(id_);
  CAIRN_RETURN_IF_ERROR(store.set(hello, id_));
  for (bool answered = false; !answered && !deadline.passed();) {
    const auto left = std::chrono::ceil<milliseconds>(deadline.when() - Deadline::Clock::now());
    CAIRN_ASSIGN_OR_RETURN(answered, store.wait(welcome, std::max(left, milliseconds(1))));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string answer, Peek(store, welcome));
  if (answer.empty() || answer == kNoAnswer) {  // Also where rank 0 has given up.
    CAIRN_RETURN_IF_ERROR(store.erase(welcome));
    CAIRN_ASSIGN_OR_RETURN(const std::string elsewhere, Elsewhere(store, {0}));
    return Error(StatusCode::kDeadlineExceeded, "rank 0 did not open it within {}{}", InSeconds(options_.open_timeout),
                 elsewhere);
  }
  CAIRN_RETURN_IF_ERROR(store.erase(welcome));
  CAIRN_RETURN_IF_ERROR(store.erase(hello));
  if (answer.front() == kRefused) return {StatusCode::kFailedPrecondition, answer.substr(1)};
  session_ = answer;
  return {};
}

Status StoreMeeting::Lead(const KeyValueStore& store, Deadline deadline, const GiveUp& give_up) {
  CAIRN_RETURN_IF_ERROR(Gather(store, deadline));
  // All ranks have joined; those of a larger number wait in vain.
  if (ended_.ok()) return Refuse(store, options_.size, options_.size);
  if (other_size_ != 0) {
    CAIRN_RETURN_IF_ERROR(LookAgain(store));
    CAIRN_RETURN_IF_ERROR(Refuse(store, 1, std::max(options_.size, other_size_)));
  }
  const auto told = std::ranges::count_if(answered_, [](const auto& one) { return !one.second.refused; });
  CAIRN_RETURN_IF_ERROR(give_up(ended_, joined_ + static_cast<int>(told)));
  if (other_size_ != 0) CAIRN_RETURN_IF_ERROR(WaitUntilHeard(store));
  for (const auto& [rank, answered] : answered_) CAIRN_RETURN_IF_ERROR(store.erase(WelcomeKey(answered.hello)));
  return ended_;
}

/// Answers all hellos, in the order of the ranks, and waits until they are gone.
Status StoreMeeting::Gather(const KeyValueStore& store, Deadline deadline) {
  milliseconds pause(1);
  for (int rank = 1; rank < options_.size || !answered_.empty();) {
    // After one that is refused nobody joins, unless a successor comes.
    const auto before = answered_.find(rank - 1);
    if (rank < options_.size && (before == answered_.end() || !before->second.refused)) {
      CAIRN_ASSIGN_OR_RETURN(const std::string hello, Peek(store, HelloKey(rank)));
      if (!hello.empty()) {
        CAIRN_RETURN_IF_ERROR(Answer(store, rank++, hello));
        pause = milliseconds(1);
        continue;
      }
    }
    CAIRN_RETURN_IF_ERROR(LookAgain(store));
    if (ended_.ok() && deadline.passed()) CAIRN_RETURN_IF_ERROR(NameMissing(store, rank));
    if (ended_.ok() && Deadline::At(close_by_).passed()) {
      ended_ = {StatusCode::kFailedPrecondition, "closed before all ranks had opened it"};
    }
    if (!ended_.ok()) return {};
    Pause(pause);
  }
  return {};
}

Status StoreMeeting::NameMissing(const KeyValueStore& store, int first_silent) {
  std::vector<int> missing;
  for (const auto& [rank, answered] : answered_) missing.push_back(rank);
  for (int rank = first_silent; rank < options_.size; ++rank) {
    CAIRN_ASSIGN_OR_RETURN(const bool there, store.check(HelloKey(rank)));
    if (!there) missing.push_back(rank);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string elsewhere, Elsewhere(store, missing));
  ended_ = Error(StatusCode::kDeadlineExceeded, "not opened by rank {} within {}{}", fmt::join(missing, ", "),
                 InSeconds(options_.open_timeout), elsewhere);
  return {};
}

Status StoreMeeting::Answer(const KeyValueStore& store, int rank, const std::string& hello) {
  const std::string refusal = ended_.ok() ? RefusalOf(rank, hello) : ended_.message();
  answered_[rank] = {hello, !refusal.empty()};
  return store.set(WelcomeKey(hello), refusal.empty() ? session_ : kRefused + refusal);
}

/// Forgets the hellos that are gone, and answers successors. The opening ends if a rank has heard that it is refused.
Status StoreMeeting::LookAgain(const KeyValueStore& store) {
  for (auto it = answered_.begin(); it != answered_.end();) {
    const auto [rank, answered] = *it++;
    CAIRN_ASSIGN_OR_RETURN(const std::string now, Peek(store, HelloKey(rank)));
    if (now == answered.hello) continue;
    if (!now.empty()) {
      CAIRN_RETURN_IF_ERROR(store.erase(WelcomeKey(answered.hello)));
      CAIRN_RETURN_IF_ERROR(Answer(store, rank, now));
      continue;
    }
    answered_.erase(rank);
    if (!answered.refused) ++joined_;
    if (!answered.refused || !ended_.ok()) continue;
    ended_ = {StatusCode::kFailedPrecondition, RefusalOf(rank, answered.hello)};
    const std::string size = SizeIn(answered.hello);
    other_size_ = options_.size;
    std::from_chars(size.data(), size.data() + size.size(), other_size_);
  }
  return {};
}

/// Answers ranks from `first` on that have asked and have no answer yet: up to `end`, and as long as there are more.
Status StoreMeeting::Refuse(const KeyValueStore& store, int first, int end) {
  for (int rank = first;; ++rank) {
    if (answered_.contains(rank)) continue;
    CAIRN_ASSIGN_OR_RETURN(const std::string hello, Peek(store, HelloKey(rank)));
    if (hello.empty() && rank >= end) return {};
    if (!hello.empty()) CAIRN_RETURN_IF_ERROR(Answer(store, rank, hello));
  }
}

Status StoreMeeting::WaitUntilHeard(const KeyValueStore& store) {
  const Deadline end = Deadline::In(kHearing);
  for (milliseconds pause(1); !answered_.empty(); Pause(pause)) {
    CAIRN_RETURN_IF_ERROR(LookAgain(store));
    if (end.passed() || Deadline::At(close_by_).passed()) break;
  }
  return {};
}

/// Why a rank with this hello cannot join; empty if it can.
std::string StoreMeeting::RefusalOf(int rank, const std::string& hello) const {
  const std::string size = SizeIn(hello);
  if (size == std::to_string(options_.size)) return "";
  return fmt::format("rank 0 opened it with {} ranks, rank {} with {}", options_.size, rank,
                     size.empty() ? "an unknown number" : size);
}

Status StoreMeeting::EndWait(const KeyValueStore& store) const {
  return store.set_if_absent(WelcomeKey(id_), std::string(kNoAnswer)).status();
}

Result<std::string> StoreMeeting::Elsewhere(const KeyValueStore& store, const std::vector<int>& ranks) const {
  for (const int rank : ranks) {
    CAIRN_ASSIGN_OR_RETURN(const std::string opens, Peek(store, OpensKey(rank)));
    if (opens.empty() || opens.substr(0, opens.rfind(kOnHost)) == options_.name) continue;
    return fmt::format(", but rank {} opened {}; all ranks must open the same one", rank, opens);
  }
  return std::string();
}

std::string StoreMeeting::WelcomeKey(const std::string& hello) const {
  return Key("welcome/" + hello.substr(0, hello.find(kOfSize)));
}

}  // namespace cairn
