#include "advice/measured_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): posix_openpt
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "advice/control_group.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLinesKept = 5;
constexpr std::size_t kShownOfALine = 200;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// Both ends of a terminal.
struct Terminal {
  UniqueFd master;
  std::string slave;
};

Result<Terminal> OpenTerminal() {
  Terminal terminal{.master = UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)), .slave = {}};
  std::array<char, 128> name{};
  const int master = terminal.master.get();
  if (!terminal.master.valid() || ::grantpt(master) != 0 || ::unlockpt(master) != 0 ||
      ::ptsname_r(master, name.data(), name.size()) != 0) {
    return ErrnoStatus(errno, "opening a terminal for the command");
  }
  // Progress bars fill it: wide enough for their numbers.
  const winsize size{.ws_row = 50, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(master, TIOCSWINSZ, &size);
  terminal.slave = name.data();
  return terminal;
}

/// The first `count` of those that this process may run on.
cpu_set_t FirstCores(int count) {
  cpu_set_t allowed;
  cpu_set_t chosen;
  CPU_ZERO(&allowed);
  CPU_ZERO(&chosen);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&chosen) < count; ++i) {
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &chosen);
  }
  return chosen;
}

/// What failed in the child before the program began.
struct ChildError {
  int error = 0;
  char step = 0;
};

/// Processes whose parent this is.
std::set<pid_t> Children() {
  std::set<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::string stat;
    if (!std::getline(std::ifstream(entry.path() / "stat"), stat)) continue;
    // "PID (NAME) STATE PARENT", and a name may hold anything.
    pid_t parent = 0;
    char state = 0;
    std::istringstream(stat.substr(std::min(stat.size(), stat.rfind(')') + 1))) >> state >> parent;
    if (parent == ::getpid()) children.insert(std::atoi(entry.path().filename().c_str()));
  }
  return children;
}

/// Kills processes that the command has started outside its own group, such as torchrun's workers and daemons: Linux
/// gives them to this process when their parent ends, because it asked for that. `before`: those that are not meant.
void KillOrphans(const std::set<pid_t>& before) {
  for (bool killed = true; killed;) {
    killed = false;
    for (const pid_t child : Children()) {
      if (before.contains(child) || ::kill(child, SIGKILL) != 0) continue;
      killed = true;
      while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
}

/// In the child. Calls nothing that allocates.
[[noreturn]] void Begin(const std::string& slave, const cpu_set_t& cores, const ControlGroup* group, char** arguments,
                        int errors) {
  const auto fail = [errors](char step, int error) {
    const ChildError told{error, step};
    [[maybe_unused]] const ssize_t written = ::write(errors, &told, sizeof told);
    ::_exit(127);
  };
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::setsid() < 0) fail('t', errno);
  const int in = ::open("/dev/null", O_RDONLY);
  const int out = ::open(slave.c_str(), O_WRONLY);
  if (in < 0 || out < 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0) fail('t', errno);
  if (in > 2) ::close(in);
  if (out > 2) ::close(out);
  if (::sched_setaffinity(0, sizeof cores, &cores) != 0) fail('a', errno);
  if (const int error = group != nullptr ? group->Join() : 0; error != 0) fail('g', error);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  ::execvp(arguments[0], arguments);
  fail('x', errno);
  __builtin_unreachable();
}

/// A running command.
class Running {
 public:
  static Result<std::unique_ptr<Running>> Start(const CommandOptions& options, const ControlGroup* group);
  /// Ends it.
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// Counts until there is enough, the command ends, the time is over or a stop is asked for. Returns the last.
  bool Watch(const CommandOptions& options, IterationCounter& counter);
  /// Ends it by SIGTERM and, after `grace`, SIGKILL. Harmless if it has ended.
  void End(std::chrono::nanoseconds grace);
  /// "exited with code 1"; empty while it runs.
  [[nodiscard]] std::string ended() const;
  [[nodiscard]] bool succeeded() const { return ended_ && WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  /// On one line.
  [[nodiscard]] std::string last_lines() const;

 private:
  Running() = default;
  /// Reads some of what there is. False if there is nothing.
  bool Read(IterationCounter* counter);
  void TakeLine(IterationCounter* counter);
  /// Until output, the end, a signal or the deadline. False at the deadline.
  bool Wait(Clock::time_point deadline);
  void Reap();

  const Clock::time_point start_ = Clock::now();
  const std::set<pid_t> others_ = Children();
  UniqueFd master_;
  UniqueFd process_;
  pid_t pid_ = 0;
  bool ended_ = false;
  int status_ = 0;
  std::string line_;
  std::deque<std::string> lines_;
};

Result<std::unique_ptr<Running>> Running::Start(const CommandOptions& options, const ControlGroup* group) {
  std::unique_ptr<Running> running(new Running);
  CAIRN_ASSIGN_OR_RETURN(Terminal terminal, OpenTerminal());
  running->master_ = std::move(terminal.master);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "opening a pipe");
  const UniqueFd errors(pipe[0]);
  UniqueFd tells(pipe[1]);
  std::vector<std::string> words = options.command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const cpu_set_t cores = FirstCores(static_cast<int>(std::ceil(options.budget.cores)));
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  running->pid_ = ::fork();
  if (running->pid_ < 0) return ErrnoStatus(errno, "starting " + words[0]);
  if (running->pid_ == 0) Begin(terminal.slave, cores, group, arguments.data(), tells.get());
  running->process_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, running->pid_, 0)));
  tells.Reset();
  ChildError told;
  if (::read(errors.get(), &told, sizeof told) != sizeof told) return running;
  running->Reap();
  switch (told.step) {
    case 'a':
      return ErrnoStatus(told.error, fmt::format("limiting {} to {} cores", words[0], options.budget.cores));
    case 'g':
      return Status(StatusCode::kUnsupported, ErrnoStatus(told.error, "joining the control group").message());
    case 't':
      return ErrnoStatus(told.error, "opening the terminal of " + words[0]);
    default:
      return ErrnoStatus(told.error, "starting " + words[0]);
  }
}

Running::~Running() {
  if (pid_ > 0) End({});
}

void Running::Reap() {
  if (ended_) return;
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
}

bool Running::Wait(Clock::time_point deadline) {
  std::array<pollfd, 2> watched{
      {{.fd = master_.get(), .events = POLLIN, .revents = 0}, {.fd = process_.get(), .events = POLLIN, .revents = 0}}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (left <= 0) return false;
  // After the last process has closed the terminal, it would wake this loop for ever.
  if (::poll(watched.data(), watched.size(), static_cast<int>(std::min<std::int64_t>(left, 60'000))) < 0) return true;
  if ((watched[0].revents & (POLLERR | POLLHUP)) != 0 && (watched[0].revents & POLLIN) == 0) master_.Reset();
  if (watched[1].revents != 0) Reap();
  return true;
}

void Running::TakeLine(IterationCounter* counter) {
  // The terminal ends each line with "\r\n", which are two ends.
  if (line_.empty()) return;
  if (counter != nullptr) counter->Add(line_, Seconds(Clock::now() - start_));
  std::string plain = PlainLine(line_).substr(0, kShownOfALine);
  line_.clear();
  if (plain.find_first_not_of(" \t") == std::string::npos) return;
  lines_.push_back(std::move(plain));
  if (lines_.size() > kLinesKept) lines_.pop_front();
}

// Not all: a command may print faster than lines can be compared with patterns, and its time must end nevertheless.
bool Running::Read(IterationCounter* counter) {
  constexpr std::size_t kLongest = 1U << 16;
  std::array<char, 4096> bytes{};
  const ssize_t n = ::read(master_.get(), bytes.data(), bytes.size());
  for (ssize_t i = 0; i < n; ++i) {
    const char one = bytes.at(static_cast<std::size_t>(i));
    // A progress bar returns to the beginning of its line.
    if (one == '\n' || one == '\r') {
      TakeLine(counter);
    } else if (line_.size() < kLongest) {
      line_ += one;
    }
  }
  return n > 0;
}

bool Running::Watch(const CommandOptions& options, IterationCounter& counter) {
  const Clock::time_point deadline = start_ + options.timeout;
  while (!ended_ && !counter.Complete() && Wait(deadline)) {
    if (options.stopped && options.stopped()) return true;
    Read(&counter);
  }
  // What it printed last. Other processes may go on printing.
  const Clock::time_point enough = Clock::now() + std::chrono::seconds(1);
  while (!counter.Complete() && Clock::now() < enough && Read(&counter)) {
  }
  TakeLine(&counter);
  return false;
}

void Running::End(std::chrono::nanoseconds grace) {
  if (!ended_ && grace.count() > 0) {
    ::kill(-pid_, SIGTERM);
    const Clock::time_point deadline = Clock::now() + grace;
    while (!ended_ && Wait(deadline)) Read(nullptr);  // It may have much to say.
  }
  ::kill(-pid_, SIGKILL);
  Reap();
  KillOrphans(others_);
}

std::string Running::ended() const {
  if (!ended_) return {};
  if (WIFEXITED(status_)) return fmt::format("it exited with code {}", WEXITSTATUS(status_));
  return fmt::format("it was killed by signal {}", WTERMSIG(status_));
}

std::string Running::last_lines() const {
  if (lines_.empty()) return "; it printed nothing";
  std::string text = "; its last lines: ";
  for (const std::string& line : lines_) text += (&line == &lines_.front() ? "" : " | ") + line;
  return text;
}

/// What was seen of a command that gave no rate, and what would have sufficed.
std::string Describe(std::uint64_t seen, std::uint64_t warm_up, bool failed) {
  constexpr std::uint64_t kFewest = 2;
  if (seen >= warm_up + kFewest) {
    return fmt::format("{} iterations{}", seen, failed ? "" : ", whose rate is 0; expected a rate above 0");
  }
  return fmt::format("{}; expected {} of warm-up and at least {} more",
                     seen == 0 ? "no line that the pattern matches" : fmt::format("{} iterations", seen), warm_up,
                     kFewest);
}

Result<std::unique_ptr<ControlGroup>> MakeGroup(const CommandOptions& options) {
  GroupLimits limits{.cores = 0, .memory_bytes = options.budget.memory_bytes};
  if (std::floor(options.budget.cores) != options.budget.cores) limits.cores = options.budget.cores;
  if (limits.cores <= 0 && limits.memory_bytes == 0) return std::unique_ptr<ControlGroup>();
  return ControlGroup::Make(limits, options.root);
}

}  // namespace

Result<MeasuredCommand> MeasureCommand(const CommandOptions& options) {
  if (options.command.empty()) return Error(StatusCode::kInvalidArgument, "expected a command behind --, found none");
  CAIRN_ASSIGN_OR_RETURN(IterationCounter counter, IterationCounter::Make(options.counting));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<ControlGroup> group, MakeGroup(options));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Running> running, Running::Start(options, group.get()));
  const bool stopped = running->Watch(options, counter);
  const std::string ended = running->ended();
  const bool failed = !ended.empty() && !running->succeeded();
  running->End(options.grace);
  if (stopped) return Error(StatusCode::kCancelled, "interrupted");
  MeasuredCommand measured;
  if (group != nullptr) {
    group->KillAll();
    measured.peak_bytes = group->peak_bytes();
  }
  measured.rate = counter.Complete();
  if (!measured.rate && !failed) measured.rate = counter.SoFar();
  if (measured.rate) return measured;
  if (group != nullptr && group->killed_for_memory()) {
    measured.failure =
        fmt::format("it was killed: {} of memory do not suffice", HumanBytes(options.budget.memory_bytes));
    return measured;
  }
  measured.failure = fmt::format(
      "{} after {}{}", ended.empty() ? fmt::format("{} passed", HumanSeconds(Seconds(options.timeout))) : ended,
      Describe(counter.seen(), options.counting.warm_up, failed), running->last_lines());
  return measured;
}

int CountCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace cairn
