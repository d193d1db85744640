#include "trainer/training_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <system_error>

namespace cairn::trainer {

TrainingProcess::TrainingProcess(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<std::string> words = {CAIRN_TRAIN};
  const auto unless_given = [&](const char* flag, const std::vector<std::string>& otherwise) {
    if (std::ranges::find(arguments, flag) == arguments.end())
      words.insert(words.end(), otherwise.begin(), otherwise.end());
  };
  unless_given("--threads", {"--threads", "1"});
  unless_given("--batch", {"--batch", "4"});
  unless_given("--host-memory", {"--host-memory", "64MiB"});
  unless_given("--model", {"--size", "width=2"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  const int error = ::posix_spawn(&child_, CAIRN_TRAIN, &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  pipe_ = ends[0];
  if (error != 0) {
    ::close(pipe_);
    throw std::system_error(error, std::generic_category(), CAIRN_TRAIN);
  }
}

TrainingProcess::~TrainingProcess() {
  if (child_ > 0) {
    Kill();
    Finish();
  }
  ::close(pipe_);
}

std::optional<std::string> TrainingProcess::NextLine(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (unread_.find('\n') == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd readable{.fd = pipe_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) <= 0) return std::nullopt;
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(pipe_, buffer.data(), buffer.size());
    if (count <= 0) return std::nullopt;
    unread_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  const std::size_t end = unread_.find('\n');
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  output_ += line + '\n';
  if (line.starts_with("step=")) {
    std::string loss = line.substr(line.find("loss="));
    losses_[NumberAfter(line, "step")] = loss.substr(0, loss.find(' '));
  }
  return line;
}

std::optional<std::string> TrainingProcess::NextLine(const std::string& beginning) {
  while (auto line = NextLine()) {
    if (line->starts_with(beginning)) return line;
  }
  return std::nullopt;
}

void TrainingProcess::Signal(int signal) { ::kill(child_, signal); }
void TrainingProcess::Kill() { Signal(SIGKILL); }

int TrainingProcess::Finish() {
  while (NextLine()) {
  }
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void ExpectRefused(const std::vector<std::string>& arguments, const std::string& why) {
  TrainingProcess training(arguments);
  EXPECT_EQ(training.Finish(), 1);
  EXPECT_NE(training.output().find(why), std::string::npos) << training.output();
  EXPECT_TRUE(training.losses().empty());
}

cairn::Result<cairn::CheckpointDetails> NewestCheckpoint(const std::string& root) {
  const auto reader = Checkpointer::Open({.root = root, .read_only = true, .host_memory_bytes = 64_MiB});
  if (!reader.ok()) return reader.status();
  return reader.value()->Inspect(Latest());
}

std::uint64_t NumberAfter(const std::string& line, const std::string& name) {
  std::istringstream text(line.substr(line.find(name + "=") + name.size() + 1));
  std::uint64_t number = 0;
  text >> number;
  return number;
}

}  // namespace cairn::trainer
