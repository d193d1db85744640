#include "mirror/mirror.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/human.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "mirror/bucket.h"
#include "mirror/rclone.h"
#include "store/names.h"
#include "tools/commands.h"
#include "tools/interruption.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

using Clock = std::chrono::system_clock;

// How often to look at the time of the root's directory, which says that checkpoints came or went.
constexpr std::chrono::milliseconds kTick{500};
// Between lists of a root whose time does not change: marks in its checkpoints' folders do not change it.
constexpr std::chrono::seconds kQuiet{60};
constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{60};
// Between signs of life.
constexpr std::chrono::seconds kBeat{1};
// For a job before, or its fetch, to let go of the root: as long as a job waits.
constexpr std::chrono::seconds kFetchWait{10};
constexpr int kDepth = 8;

Status CheckTarget(const std::string& target) {
  if (IsBucket(target)) return BucketAddress::Parse(target).status();
  struct stat found {};
  return ::stat(target.c_str(), &found) == 0 ? CheckRoot(target) : Status::Ok();
}

/// 0: no limit.
Result<std::uint64_t> ParseBandwidth(const std::string& text) {
  if (text.empty()) return std::uint64_t{0};
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseSize("--bandwidth", text));
  if (bytes > 0) return bytes;
  return Error(StatusCode::kInvalidArgument, "--bandwidth: expected at least 1 byte, found {}", text);
}

/// When an entry of the directory last changed; 0 if that cannot be read.
Clock::time_point LastChange(const std::string& root) {
  struct stat found {};
  if (::stat(root.c_str(), &found) != 0) return {};
  const auto since_epoch = std::chrono::seconds(found.st_mtim.tv_sec) + std::chrono::nanoseconds(found.st_mtim.tv_nsec);
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(since_epoch));
}

void PrintCopied(const MirrorRootOptions& options, const Mirror::Copied& copied) {
  const CheckpointInfo& info = copied.info;
  if (options.json) {
    fmt::print("{}\n", JsonLine({{"event", "copied"},
                                 {"step", info.step},
                                 {"line", info.line},
                                 {"attempt", info.attempt},
                                 {"bytes", copied.bytes},
                                 {"seconds", copied.time.count()}}));
  } else {
    const double time = std::max(copied.time.count(), 1e-9);
    fmt::print("copied step {}, {} in {} ({})\n", info.step, HumanBytes(copied.bytes), HumanSeconds(time),
               HumanRate(static_cast<double>(copied.bytes) / time));
  }
  std::fflush(stdout);  // It goes on for days.
}

/// For a program that has started this one: see --with-stdin.
void TellProgram(const MirrorRootOptions& options, const nlohmann::json& event) {
  if (!options.json || !options.with_stdin) return;
  fmt::print("{}\n", JsonLine(event));
  std::fflush(stdout);
}

/// The program that has started this one, with --with-stdin: it closes stdin, or dies. Its forked children may have
/// stdin, too.
class Starter {
 public:
  explicit Starter(bool watched)
      : input_(watched ? STDIN_FILENO : -1),
        process_(watched ? static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)) : -1) {}

  /// Whether it has let go within the time.
  [[nodiscard]] bool HasEnded(std::chrono::milliseconds time = {}) const {
    std::array<pollfd, 2> watched{
        {{.fd = input_, .events = POLLIN, .revents = 0}, {.fd = process_.get(), .events = POLLIN, .revents = 0}}};
    return ::poll(watched.data(), watched.size(), static_cast<int>(time.count())) > 0;
  }

 private:
  int input_;
  UniqueFd process_;
};

/// Roots beside that one.
std::vector<std::string> ListBeside(const std::string& root) {
  std::vector<std::string> beside;
  std::error_code unknown;
  const std::filesystem::path place = std::filesystem::canonical(root, unknown);
  for (const auto& entry : std::filesystem::directory_iterator(place.parent_path(), unknown)) {
    if (entry.path() != place && std::filesystem::exists(entry.path() / kWriterName, unknown)) {
      beside.push_back(entry.path().filename());
    }
  }
  return beside;
}

/// Names for a message: "run5, run6, ... and 7 more".
std::string FirstOf(std::vector<std::string> names) {
  constexpr std::size_t kMostNamed = 10;
  std::ranges::sort(names);
  const std::size_t named = std::min(names.size(), kMostNamed);
  const std::string more = named < names.size() ? fmt::format(" and {} more", names.size() - named) : "";
  names.resize(named);
  return Printable(fmt::format("{}", fmt::join(names, ", "))) + more;
}

/// If a mirror that is to be copied back was never begun, as nothing is there: what is beside it, because that place
/// may be a misspelt one. None also where all that is unknown.
std::optional<std::string> BesideIfEmpty(const std::string& root) {
  if (!IsBucket(root)) {
    const Result<std::vector<FolderEntry>> entries = ListRoot(root);
    if (!entries.ok() || !std::ranges::all_of(*entries, IsOfFilesystem)) return std::nullopt;
    return FirstOf(ListBeside(root));
  }
  Result<BucketAddress> address = BucketAddress::Parse(root);
  Result<Rclone> rclone = Rclone::Find();
  if (!address.ok() || !rclone.ok()) return std::nullopt;
  Bucket bucket(*std::move(rclone), *std::move(address));
  const auto writer = bucket.ReadWriter();
  if (!writer.ok() || *writer) return std::nullopt;
  // A bucket that is missing is an error: it may be a misspelt one.
  const auto list = bucket.List();
  if (!list.ok() || !list->empty()) return std::nullopt;
  const auto beside = bucket.ListBeside();
  return beside.ok() ? FirstOf(*beside) : "";
}

/// One mirror, from its first look to its end.
class MirrorLoop {
 public:
  MirrorLoop(const MirrorRootOptions& options, Mirror& mirror, const Starter& starter,
             std::function<bool()> interrupted)
      : options_(options), mirror_(mirror), starter_(starter), interrupted_(std::move(interrupted)) {}

  [[nodiscard]] Result<int> UntilTheEnd() {
    while (!interrupted_()) {
      const Clock::time_point change = LastChange(options_.root);
      const std::size_t damaged = mirror_.damaged();
      const auto copied = mirror_.CopyNext([this] { return Beat(); });
      if (copied.ok()) {
        pause_ = kFirstPause;
        said_.clear();
        if (*copied) {
          PrintCopied(options_, **copied);
          continue;
        }
        TellIdle();
        if (last_) return exit_code_;
        // After a change just now, the directory's clock may give the next one the same time.
        const bool fresh = std::chrono::abs(Clock::now() - change) < kTick;
        Sleep(fresh ? kTick : kQuiet, [&] { return LastChange(options_.root) != change; });
        continue;
      }
      CAIRN_RETURN_IF_ERROR(Fail(copied.status(), mirror_.damaged() > damaged));
    }
    if (options_.once) return Status(StatusCode::kCancelled, "interrupted");
    return exit_code_;
  }

 private:
  /// Called as bytes move.
  bool Beat() {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ >= kBeat) {
      told_ = now;
      TellProgram(options_, {{"event", "copying"}});
    }
    return interrupted_();
  }

  /// Nothing is due; and which checkpoints were looked at.
  void TellIdle() {
    nlohmann::json event = {{"event", options_.once && !mirror_.found_any() ? "empty" : "idle"}};
    if (const CheckpointInfo* const newest = mirror_.newest()) {
      event["step"] = newest->step;
      event["line"] = newest->line;
    }
    if (event != std::exchange(idle_, event)) TellProgram(options_, event);
  }

  /// Not ok if the mirror cannot go on. Else waits before the next try, unless the checkpoint is passed over.
  Status Fail(const Status& why, bool passed_over) {
    if (interrupted_()) return Status::Ok();
    CAIRN_RETURN_IF_ERROR(mirror_.Check());
    if (last_ && !passed_over) return why;
    if (std::exchange(said_, why.ToString()) != why.ToString()) Say(why);
    if (passed_over) {
      exit_code_ = kDamagedOrDifferent;
    } else {
      Sleep(std::exchange(pause_, std::min(2 * pause_, kLongestPause)), [] { return false; });
    }
    return Status::Ok();
  }

  /// Until it is over, or the process is interrupted: a signal ends a tick, unless it came right before that.
  void Sleep(std::chrono::milliseconds most, const std::function<bool()>& over) {
    for (auto left = most / kTick; left > 0 && !last_ && !interrupted_() && !over(); --left) {
      last_ = starter_.HasEnded(kTick);
    }
  }

  void Say(const Status& why) const {
    if (!options_.json) return static_cast<void>(ReportError(why));
    fmt::print("{}\n", JsonLine({{"event", "error"}, {"message", why.ToString()}}));
    std::fflush(stdout);
  }

  const MirrorRootOptions& options_;
  Mirror& mirror_;
  const Starter& starter_;
  const std::function<bool()> interrupted_;
  // Ends once nothing is due.
  bool last_ = options_.once;
  std::chrono::seconds pause_ = kFirstPause;
  std::string said_;
  nlohmann::json idle_;
  std::chrono::steady_clock::time_point told_;
  int exit_code_ = kGood;
};

Result<int> CopyCheckpoints(const MirrorRootOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t bandwidth, ParseBandwidth(options.bandwidth));
  // Whoever closes stdin by dying reads no more of what is said.
  if (options.with_stdin) std::signal(SIGPIPE, SIG_IGN);
  const Starter starter(options.with_stdin);
  // A program that waits for --once, and dies, wants nothing any more.
  const std::function<bool()> interrupted = [&, caught = CatchInterruptions()] {
    return caught() || (options.once && starter.HasEnded());
  };
  MirrorOptions mirroring{
      .root = options.root,
      .target = options.target,
      .rules = {.every = options.every, .keep_last = options.keep_last, .keep_every = options.keep_every},
      .brings_back = options.brings_back,
      .bandwidth = bandwidth,
      .wait = options.wait,
      .on_note = [](const std::string& note) { PrintError("{}\n", Printable(note)); }};
  const bool bucket = IsBucket(options.root) || IsBucket(options.target);
  if (bucket) {
    CAIRN_ASSIGN_OR_RETURN(mirroring.rclone, Rclone::Find());
    mirroring.rclone->interrupted = interrupted;
    mirroring.rclone->on_wait = [&](const std::string& why) {
      TellProgram(options, {{"event", "waiting"}, {"message", why}});
    };
  }
  // Pipes to rclone block its threads.
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice,
                         ChooseIoQueue(bucket ? IoQueueKind::kThreads : IoQueueKind::kAuto, kDepth));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, choice.factory());
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Mirror> mirror, Mirror::Open(*queue, mirroring));
  return MirrorLoop(options, *mirror, starter, interrupted).UntilTheEnd();
}

Result<int> BringBack(const MirrorRootOptions& options) {
  struct stat found {};
  if (!IsBucket(options.root) && ::stat(options.root.c_str(), &found) != 0 && errno == ENOENT) {
    return Error(StatusCode::kNotFound,
                 "{}: no such directory: is its disk mounted? For a mirror that is not begun yet, make it first",
                 options.root);
  }
  CAIRN_RETURN_IF_ERROR(IsBucket(options.root) ? CheckTarget(options.root) : CheckRoot(options.root));
  CAIRN_RETURN_IF_ERROR(CheckTarget(options.target));
  return CopyCheckpoints(options);
}

}  // namespace

Result<int> MirrorRoot(const MirrorRootOptions& options) {
  if (IsBucket(options.root)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: expected a directory; `cairn fetch` brings back what an object store has",
                 WithoutSettings(options.root));
  }
  CAIRN_RETURN_IF_ERROR(CheckRoot(options.root));
  CAIRN_RETURN_IF_ERROR(CheckTarget(options.target));
  return CopyCheckpoints(options);
}

Result<int> Fetch(const MirrorRootOptions& options) {
  if (IsBucket(options.target)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a directory, to which {} is brought back",
                 WithoutSettings(options.target), WithoutSettings(options.root));
  }
  MirrorRootOptions once = options;
  once.once = true;
  once.brings_back = true;
  once.wait = kFetchWait;
  const Result<int> ended = BringBack(once);
  if (ended.ok() || (IsBucket(once.root) && ended.status().code() != StatusCode::kFailedPrecondition)) return ended;
  const std::optional<std::string> beside = BesideIfEmpty(once.root);
  if (!beside) return ended;
  TellProgram(once, {{"event", "empty"}, {"beside", *beside}});
  return Error(ended.status().code(), "{}{}{}", ended.status().message(),
               beside->empty() ? "" : "; beside it: ", *beside);
}

}  // namespace cairn::tools
