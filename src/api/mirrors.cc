#include "api/mirrors.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>

#include "api/mirror_specs.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/mirrors.h"

namespace cairn {
namespace {

// Before it is started again; doubled each time, unless it ran for longer than the longest.
constexpr std::chrono::seconds kFirstRestart{1};
constexpr std::chrono::seconds kLongestRestart{60};
// How many saves a mirror may be behind before an event says so; then twice as many, and so on.
constexpr std::uint64_t kFirstLag = 3;
constexpr std::size_t kMostWaiting = 64;

}  // namespace

Result<std::unique_ptr<Mirrors>> Mirrors::Start(Parts parts) {
  std::unique_ptr<Mirrors> mirrors(new Mirrors(std::move(parts)));
  if (!mirrors->wake_.valid()) return ErrnoStatus(errno, "starting mirrors");
  CAIRN_ASSIGN_OR_RETURN(mirrors->thread_, StartThread("cairn-mirrors", [it = mirrors.get()] { it->Run(); }));
  return mirrors;
}

Mirrors::Mirrors(Parts parts)
    : parts_(std::move(parts)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), on_event_(parts_.on_event) {
  for (const MirrorSpec& spec : parts_.specs) {
    mirrors_.push_back({.spec = spec, .pause = kFirstRestart, .next_lag = kFirstLag});
    known_.push_back({.state = {.target = spec.target}});
  }
}

Mirrors::~Mirrors() {
  if (!thread_.joinable()) return;
  Tell();
  thread_.join();
}

void Mirrors::Wake() const {
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

std::string Mirrors::LastWords(const Known& known) {
  if (!known.waits.empty()) return ". It waits: " + known.waits;
  return known.error.empty() ? "" : ". Its last error: " + known.error;
}

void Mirrors::Tell() {
  {
    MutexLock lock(mutex_);
    if (told_at_) return;
    told_at_ = Clock::now();
  }
  Wake();
}

bool Mirrors::told() const {
  MutexLock lock(mutex_);
  return told_at_.has_value();
}

Status Mirrors::WaitEnded(Deadline deadline) {
  Tell();
  MutexLock lock(mutex_);
  const auto patience = Deadline::In(parts_.timeout - (Clock::now() - *told_at_));
  const auto end = Deadline::At(std::min(deadline.when(), patience.when()));
  while (!ended_ && !end.passed()) changed_.WaitUntil(mutex_, end);
  if (ended_ || patience.passed()) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded, "{}: mirrors are still copying", parts_.root);
}

bool Mirrors::End(Deadline deadline) {
  static_cast<void>(WaitEnded(deadline));
  bool left = false;
  std::vector<Known> late;
  {
    MutexLock lock(mutex_);
    left_ = left_ || !ended_;
    left = left_;
    for (const Known& one : known_) {
      if (!one.over) late.push_back(one);
    }
    changed_.NotifyAll();
  }
  MutexLock lock(event_mutex_);
  for (const Known& one : late) {
    if (!on_event_) break;
    on_event_(
        {.severity = Severity::kWarning,
         .message = fmt::format("{}: mirror {}: has not ended in time, and is left behind (process {}): it copies "
                                "what is due, then ends{}",
                                parts_.root, one.state.target, one.process, LastWords(one)),
         .phase = "mirror",
         .path = one.state.target});
  }
  on_event_ = nullptr;
  return !left;
}

void Mirrors::Committed(const CheckpointInfo& newest) {
  {
    MutexLock lock(mutex_);
    if (!committed_.empty() && committed_.back().attempt == newest.attempt) return;
    committed_.push_back(newest);
    if (committed_.size() > kMostWaiting) committed_.pop_front();
    for (std::size_t i = 0; i < known_.size(); ++i) {
      if (newest.step % parts_.specs[i].every != 0) continue;
      ++known_[i].state.behind;
      known_[i].waiting.emplace_back(newest.step, Clock::now());
      if (known_[i].waiting.size() > kMostWaiting) known_[i].waiting.pop_front();
    }
  }
  Wake();
}

std::optional<CheckpointInfo> Mirrors::FindCommitted(std::uint64_t step) const {
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(committed_.rbegin(), committed_.rend(), [step](const auto& one) { return one.step == step; });
  return found == committed_.rend() ? std::nullopt : std::optional(*found);
}

std::vector<MirrorState> Mirrors::states() const {
  MutexLock lock(mutex_);
  std::vector<MirrorState> states;
  for (const Known& one : known_) states.push_back(one.state);
  return states;
}

Status Mirrors::Wait(const std::string& target, const CheckpointInfo& wanted, Deadline deadline) {
  CAIRN_ASSIGN_OR_RETURN(const std::string whole, CheckMirrorTarget(target, "the mirror"));
  const auto spec = std::ranges::find(parts_.specs, whole, &MirrorSpec::target);
  if (spec == parts_.specs.end()) {
    std::string all;
    for (const MirrorSpec& one : parts_.specs) all += (all.empty() ? "" : ", ") + one.target;
    return Error(StatusCode::kInvalidArgument, "{} has no mirror {}: expected one of {}", parts_.root, whole, all);
  }
  const std::string what = fmt::format("{}: step {} is not at the mirror {}", parts_.root, wanted.step, whole);
  if (wanted.step % spec->every != 0) {
    return Error(StatusCode::kFailedPrecondition, "{}, and never will be: that takes only steps divisible by {}", what,
                 spec->every);
  }
  MutexLock lock(mutex_);
  const Known& known = known_[static_cast<std::size_t>(spec - parts_.specs.begin())];
  const std::string& error = known.error;
  while (!known.there.contains(wanted.attempt)) {
    if (known.looked && *known.looked >= std::pair(wanted.line, wanted.step)) {
      return Error(StatusCode::kFailedPrecondition, "{}, and never will be: {}", what,
                   error.empty() ? "the root had removed it before its turn, or the mirror keeps newer ones only"
                                 : "the mirror passes it over. " + error);
    }
    if (known.over || left_) return Error(StatusCode::kCancelled, "{}, which has ended", what);
    if (deadline.passed()) {
      return Error(StatusCode::kDeadlineExceeded, "{} yet{}", what, LastWords(known));
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return Status::Ok();
}

void Mirrors::Run() {
  while (true) {
    bool all_over = true;
    for (std::size_t i = 0; i < mirrors_.size(); ++i) {
      Begin(i);
      Hear(i);
      all_over = all_over && mirrors_[i].over;
    }
    TellOfLag();
    if (all_over) break;
    Sleep();
  }
  {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
    if (!left_) return;
  }
  // Nobody joins this thread any more.
  while (true) ::poll(nullptr, 0, -1);
}

void Mirrors::Begin(std::size_t i) {
  One& one = mirrors_[i];
  const bool last = told();
  if (one.over || one.process != nullptr) return;
  if (!last && Clock::now() < one.start_at) return;
  std::vector<std::string> words{parts_.command, "mirror", parts_.root, one.spec.target, "--with-stdin", "--json"};
  const auto add = [&words](const char* name, std::uint64_t value) {
    words.insert(words.end(), {name, std::to_string(value)});
  };
  if (one.spec.every != 1) add("--every", one.spec.every);
  if (one.spec.keep_last != 0) add("--keep-last", one.spec.keep_last);
  if (one.spec.keep_every != 0) add("--keep-every", one.spec.keep_every);
  if (one.spec.bandwidth != 0) add("--bandwidth", one.spec.bandwidth);
  one.last = last;
  one.begun = Clock::now();
  one.said_before = std::exchange(one.said, {});
  auto started = CommandProcess::Start({.words = std::move(words), .session = true});
  if (!started.ok()) {
    Fail(i, started.status(), "cannot be started: " + started.status().message());
    one.start_at =
        Clock::now() + std::exchange(one.pause, std::min<std::chrono::nanoseconds>(2 * one.pause, kLongestRestart));
    one.over = last;
  } else {
    one.process = *std::move(started);
  }
  ReadRecord(i);
  MutexLock lock(mutex_);
  known_[i].process = one.process == nullptr ? 0 : one.process->id();
  known_[i].over = one.over;
  changed_.NotifyAll();
}

void Mirrors::Sleep() {
  std::vector<pollfd> watched{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  const bool last = told();
  auto until = Clock::time_point::max();
  for (const One& one : mirrors_) {
    if (one.process != nullptr) {
      for (const pollfd& fd : one.process->Watched()) watched.push_back(fd);
    } else if (!one.over) {
      until = std::min(until, last ? Clock::now() : one.start_at);
    }
  }
  const auto left = std::max<Clock::duration>(until - Clock::now(), {});
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec most{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
  ::ppoll(watched.data(), watched.size(), until == Clock::time_point::max() ? nullptr : &most, nullptr);
  std::uint64_t count = 0;
  static_cast<void>(::read(wake_.get(), &count, sizeof(count)));
}

void Mirrors::Hear(std::size_t i) {
  One& one = mirrors_[i];
  if (one.process == nullptr) return;
  if (told()) one.process->EndInput();
  const std::optional<int> end = one.process->FindEnd();  // First: what it has said is then in the pipes.
  for (const std::string& line : one.process->TakeOutput()) HearEvent(i, line);
  constexpr std::string_view kPrefix = "cairn: ";
  for (const std::string& line : one.process->TakeErrors()) {
    if (!line.starts_with(kPrefix)) {
      Say(i, Status::Ok(), line);
    } else {
      Fail(i, StatusOf(line.substr(kPrefix.size())), line.substr(kPrefix.size()));
    }
  }
  if (end) HearEnd(i, *end);
}

void Mirrors::HearEvent(std::size_t i, const std::string& line) try {
  const nlohmann::json said = nlohmann::json::parse(line);
  const auto event = said.at("event").get<std::string>();
  {
    MutexLock lock(mutex_);
    known_[i].waits = event == "waiting" ? said.at("message").get<std::string>() : "";
  }
  if (event == "error") {
    const auto message = said.at("message").get<std::string>();
    return Fail(i, StatusOf(message), message);
  }
  if (event != "copied" && event != "idle") return;
  ReadRecord(i);
  if (event == "copied") {
    return Copied(i, said.at("step").get<std::uint64_t>(), said.at("attempt").get<std::string>());
  }
  if (!said.contains("step")) return;  // The root has nothing.
  MutexLock lock(mutex_);
  known_[i].looked = std::pair(said.at("line").get<std::uint64_t>(), said.at("step").get<std::uint64_t>());
  changed_.NotifyAll();
} catch (const nlohmann::json::exception& error) {
  Say(i, Status::Ok(), fmt::format("expected one of its events, found {}: {}", Printable(line), error.what()));
}

void Mirrors::Copied(std::size_t i, std::uint64_t step, const std::string& attempt) {
  MutexLock lock(mutex_);
  Known& known = known_[i];
  known.there.insert(attempt);
  known.state.newest = std::max(known.state.newest.value_or(step), step);
  known.error.clear();
  // Those before it in the list are older.
  const auto found =
      std::find_if(known.waiting.rbegin(), known.waiting.rend(), [step](const auto& one) { return one.first == step; });
  if (found != known.waiting.rend()) {
    known.waiting.erase(known.waiting.begin(), found.base());
    known.state.behind = known.waiting.size();
  }
  changed_.NotifyAll();
}

void Mirrors::ReadRecord(std::size_t i) {
  const pid_t process = mirrors_[i].process == nullptr ? 0 : mirrors_[i].process->id();
  for (const MirrorRecord& record : ListMirrors(PathAt(parts_.root))) {
    // By links, a target may have another name there.
    if (record.target != parts_.specs[i].target && record.process != static_cast<std::uint64_t>(process)) continue;
    std::set<std::string> there;
    for (const MirroredCheckpoint& one : record.checkpoints) there.insert(one.attempt);
    MutexLock lock(mutex_);
    known_[i].there = std::move(there);
  }
}

void Mirrors::TellOfLag() {
  for (std::size_t i = 0; i < mirrors_.size(); ++i) {
    const auto [state, since, last] = [&] {
      MutexLock lock(mutex_);
      const Known& known = known_[i];
      return std::tuple(known.state, known.waiting.empty() ? Clock::now() : known.waiting.front().second,
                        LastWords(known));
    }();
    if (state.behind < mirrors_[i].next_lag || Clock::now() - since < parts_.patience) continue;
    mirrors_[i].next_lag = 2 * state.behind;
    Say(i, Status::Ok(),
        fmt::format("lags: {} steps are durable that it has not copied{}{}", state.behind,
                    state.newest ? fmt::format("; its newest is step {}", *state.newest) : "", last));
  }
}

void Mirrors::HearEnd(std::size_t i, int end) {
  One& one = mirrors_[i];
  one.process.reset();
  const auto [is_told, is_left] = [&] {
    MutexLock lock(mutex_);
    known_[i].waits.clear();
    return std::pair(told_at_.has_value(), left_);
  }();
  if (end != 0 || !is_told) {
    const std::string again = is_told ? "" : ", and is started again";
    Fail(i, Status::Ok(), fmt::format("has ended {}{}", DescribeEnd(end), again));
  }
  one.over = one.last || is_left || (is_told && end == 0);
  if (!one.over) {
    if (Clock::now() - one.begun > kLongestRestart) one.pause = kFirstRestart;
    one.start_at = Clock::now() + one.pause;
    one.pause = std::min<std::chrono::nanoseconds>(2 * one.pause, kLongestRestart);
  }
  MutexLock lock(mutex_);
  known_[i].over = one.over;
  changed_.NotifyAll();
}

void Mirrors::Fail(std::size_t i, const Status& why, const std::string& text) {
  const bool ended = mirrors_[i].process == nullptr;
  {
    MutexLock lock(mutex_);
    ++known_[i].state.failures;
    // How it has ended says less than why.
    if (!ended || known_[i].error.empty()) known_[i].error = text;
    changed_.NotifyAll();
  }
  Say(i, why, text);
}

void Mirrors::Say(std::size_t i, const Status& why, const std::string& text) {
  constexpr std::size_t kMostSaid = 100;
  One& one = mirrors_[i];
  if (one.said.size() >= kMostSaid) one.said.clear();
  if (text.empty() || !one.said.insert(text).second || one.said_before.contains(text)) return;
  MutexLock lock(event_mutex_);
  if (!on_event_) return;
  on_event_({.severity = Severity::kWarning,
             .status = why,
             .message = fmt::format("{}: mirror {}: {}", parts_.root, one.spec.target, text),
             .phase = "mirror",
             .path = one.spec.target});
}

}  // namespace cairn
