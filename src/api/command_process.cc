#include "api/command_process.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/status_macros.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace cairn {
namespace {

constexpr std::string_view kName = "cairn";
// A longer line is cut into several.
constexpr std::size_t kLongestLine = 64U << 10;

bool IsProgram(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown) && ::access(path.c_str(), X_OK) == 0;
}

/// How the child begins.
class Attributes {
 public:
  explicit Attributes(bool session) {
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_init(&actions_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);  // Threads of the library block all.
    posix_spawnattr_setsigdefault(&attributes_, &all);
    const int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | (session ? POSIX_SPAWN_SETSID : 0);
    posix_spawnattr_setflags(&attributes_, static_cast<short>(flags));
  }
  ~Attributes() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void SetStreams(const std::array<int, 3>& fds) {
    for (int i = 0; i < 3; ++i) {
      posix_spawn_file_actions_adddup2(&actions_, fds.at(static_cast<std::size_t>(i)), i);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
  }
  [[nodiscard]] int Spawn(pid_t& id, std::vector<std::string> words) const {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return ::posix_spawn(&id, words.front().c_str(), &actions_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
};

Result<Ends> MakeEnds(const std::array<int, 2>& fds, const std::string& what) {
  Ends ends{.ours = UniqueFd(fds[0]), .theirs = UniqueFd(fds[1])};
  if (!ends.ours.valid() || !ends.theirs.valid() || ::fcntl(ends.ours.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, what);
  }
  return ends;
}

Result<Ends> MakePipe(const std::string& what) {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, what);
  return MakeEnds(fds, what);
}

// A socket: writing to one whose reader has died raises no signal.
Result<Ends> MakeSocket(const std::string& what) {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) return ErrnoStatus(errno, what);
  return MakeEnds(fds, what);
}

}  // namespace

Result<std::string> FindCommand(const std::string& given) {
  if (!given.empty()) {
    if (IsProgram(given)) return given;
    return Error(StatusCode::kFailedPrecondition, "mirror_command: expected the command cairn, found no program at {}",
                 given);
  }
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  std::vector<std::string> folders;
  if (!unknown) folders.push_back(self.parent_path().string());
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end != 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const std::string& folder : folders) {
    const std::string program = (std::filesystem::path(folder) / kName).string();
    if (IsProgram(program)) return std::filesystem::absolute(program, unknown).string();
  }
  return Error(StatusCode::kFailedPrecondition,
               "mirrors and restore_from need the command cairn, which is neither beside {} nor in PATH: give "
               "mirror_command",
               self.string());
}

Result<std::unique_ptr<CommandProcess>> CommandProcess::Start(const Spec& spec) {
  const std::string what = "starting " + spec.words.front();
  CAIRN_ASSIGN_OR_RETURN(Ends input, MakeSocket(what));
  CAIRN_ASSIGN_OR_RETURN(Ends output, MakePipe(what));
  CAIRN_ASSIGN_OR_RETURN(Ends errors, MakePipe(what));
  Attributes attributes(spec.session);
  attributes.SetStreams({input.theirs.get(), output.theirs.get(), errors.theirs.get()});
  std::unique_ptr<CommandProcess> started(new CommandProcess);
  const int failed = attributes.Spawn(started->id_, spec.words);
  if (failed != 0) return ErrnoStatus(failed, what);
  started->process_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, started->id_, 0)));
  if (!started->process_.valid() && errno != ESRCH) {  // Else the program has reaped it.
    const int why = errno;
    ::kill(started->id_, SIGKILL);
    static_cast<void>(::waitpid(started->id_, nullptr, 0));
    return ErrnoStatus(why, "watching " + spec.words.front());
  }
  started->input_ = std::move(input.ours);
  started->output_.fd = std::move(output.ours);
  started->errors_.fd = std::move(errors.ours);
  return started;
}

std::vector<pollfd> CommandProcess::Watched() const {
  std::vector<pollfd> watched;
  for (const UniqueFd* fd : {&process_, &output_.fd, &errors_.fd}) {
    if (fd->valid()) watched.push_back({.fd = fd->get(), .events = POLLIN, .revents = 0});
  }
  return watched;
}

std::vector<std::string> CommandProcess::Lines::Take() {
  std::array<char, 4096> bytes{};
  while (fd.valid()) {
    const ssize_t got = ::read(fd.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      if (!rest.empty() && !rest.ends_with('\n')) rest += '\n';
      fd.Reset();
      break;
    }
    rest.append(bytes.data(), static_cast<std::size_t>(got));
    if (rest.size() > kLongestLine && rest.find('\n') == std::string::npos) rest += '\n';
  }
  std::vector<std::string> lines;
  for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
    lines.push_back(rest.substr(0, end));
    rest.erase(0, end + 1);
  }
  return lines;
}

void CommandProcess::EndInput() {
  if (!input_.valid()) return;
  static_cast<void>(::send(input_.get(), "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  input_.Reset();
}

void CommandProcess::Kill() const {
  if (process_.valid()) ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
}

std::optional<int> CommandProcess::FindEnd() {
  if (!process_.valid()) return kUnknownEnd;
  siginfo_t found{};
  int failed = 0;
  do {
    failed = ::waitid(P_PIDFD, static_cast<id_t>(process_.get()), &found, WEXITED | WNOHANG);
  } while (failed != 0 && errno == EINTR);
  if (failed == 0 && found.si_pid == 0) return std::nullopt;
  process_.Reset();
  if (failed != 0) return kUnknownEnd;
  return found.si_code == CLD_EXITED ? found.si_status : -found.si_status;
}

Status StatusOf(const std::string& said) {
  for (int code = 1; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const std::string name(StatusCodeName(static_cast<StatusCode>(code)));
    if (said.starts_with(name + ": ")) return {static_cast<StatusCode>(code), said.substr(name.size() + 2)};
  }
  return {StatusCode::kIoError, said};
}

std::string DescribeEnd(int end) {
  if (end == CommandProcess::kUnknownEnd) return "unseen: the program has waited for it";
  return end < 0 ? fmt::format("by signal {}", -end) : fmt::format("with exit code {}", end);
}

}  // namespace cairn
