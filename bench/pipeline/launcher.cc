#include "bench/pipeline/launcher.h"

#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/emulation/network.h"
#include "bench/harness/resources.h"
#include "bench/pipeline/exit_code.h"
#include "bench/pipeline/poll_time.h"
#include "bench/pipeline/served_memory.h"
#include "bench/pipeline/socket.h"
#include "bench/pipeline/stage.h"
#include "bench/strategies/strategy.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr auto kToNotice = std::chrono::seconds(30);

/// A node's process.
struct Process {
  pid_t pid = -1;
  UniqueFd end;    // Readable once it has ended.
  int status = 0;  // As of waitpid.
  bool ended = false;

  [[nodiscard]] bool killed() const { return WIFSIGNALED(status); }
  [[nodiscard]] bool failed() const { return ended && status != 0; }
  [[nodiscard]] std::string How() const {
    return killed() ? fmt::format("was killed by signal {}", WTERMSIG(status))
                    : fmt::format("ended with exit code {}", WEXITSTATUS(status));
  }
};
using Processes = std::array<Process, kStages>;

/// What outlives the nodes' processes: the network and, for gemini, each node's memory for the other's checkpoints.
class Machines {
 public:
  Status Make(const PipelineFlags& flags) {
    if (flags.run.network == "namespaces") {
      CAIRN_ASSIGN_OR_RETURN(nodes_, TwoNodes::Make(flags.run.network_bytes_per_second));
      far_ = true;
    }
    if (flags.run.strategy != "gemini") return {};
    for (int node = 0; node < kStages; ++node) {
      const std::uint64_t bytes = BytesOf(OptStage(1 - node, flags.run.scale));
      CAIRN_RETURN_IF_ERROR(In(node, [&]() -> Status {
        CAIRN_ASSIGN_OR_RETURN(memories_[Index(node)], ServedMemory::Open(Address(node), bytes));
        return {};
      }));
    }
    return {};
  }

  [[nodiscard]] Result<Listener> Listen(int node) const {
    Result<Listener> listener = Status(StatusCode::kInternal, "");
    CAIRN_RETURN_IF_ERROR(In(node, [&] {
      listener = Listener::Open(Address(node));
      return listener.status();
    }));
    return listener;
  }
  /// From now on this thread, and the processes that it starts, are in the node's network.
  Status Enter(int node) const { return far_ ? EnterNetwork(nodes_.networks[Index(node)].get()) : Status::Ok(); }
  /// Where the node's checkpoints go: the memory of the other one. Empty where there is none.
  [[nodiscard]] std::string MemoryFor(int node) const {
    const std::unique_ptr<ServedMemory>& memory = memories_[Index(1 - node)];
    return memory == nullptr ? "" : fmt::format("{}:{}", Address(1 - node), memory->port());
  }

 private:
  static std::size_t Index(int node) { return static_cast<std::size_t>(node); }
  [[nodiscard]] const char* Address(int node) const { return far_ ? TwoNodes::kAddresses[Index(node)] : kLoopback; }
  Status In(int node, const std::function<Status()>& body) const {
    return far_ ? RunInNetwork(nodes_.networks[Index(node)].get(), body) : body();
  }

  bool far_ = false;
  TwoNodes nodes_;
  std::array<std::unique_ptr<ServedMemory>, kStages> memories_;
};

Status Spawn(Process& process, std::vector<std::string> arguments, const Listener* listener) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  if (listener != nullptr) ::posix_spawn_file_actions_adddup2(&files, listener->fd(), kLinkFd);
  const int error = ::posix_spawn(&process.pid, "/proc/self/exe", &files, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) return ErrnoStatus(error, "starting a node");
  process.end = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  return process.end.valid() ? Status::Ok() : ErrnoStatus(errno, "watching a node");
}

Status Start(Processes& processes, const Machines& machines, const std::vector<std::string>& own,
             const std::string& directory, bool resume) {
  CAIRN_ASSIGN_OR_RETURN(const Listener listener, machines.Listen(0));
  for (int stage = 0; stage < kStages; ++stage) {
    std::vector<std::string> arguments = own;
    const auto add = [&](const char* flag, const std::string& value) {
      arguments.insert(arguments.end(), {flag, value});
    };
    add("--node-stage", std::to_string(stage));
    add("--node-dir", directory);
    if (stage != 0) add("--node-link", fmt::format("{}:{}", listener.address(), listener.port()));
    if (const std::string memory = machines.MemoryFor(stage); !memory.empty()) add("--node-memory", memory);
    if (resume) arguments.emplace_back("--node-resume");
    CAIRN_RETURN_IF_ERROR(machines.Enter(stage));
    CAIRN_RETURN_IF_ERROR(
        Spawn(processes[static_cast<std::size_t>(stage)], std::move(arguments), stage == 0 ? &listener : nullptr));
  }
  return {};
}

// Waits until one more has ended; false at the deadline.
bool AwaitOne(Processes& processes, Deadline deadline) {
  std::array<pollfd, kStages> ends{};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ends[i] = {.fd = processes[i].ended ? -1 : processes[i].end.get(), .events = POLLIN, .revents = 0};
  }
  int ready = 0;
  while ((ready = ::poll(ends.data(), ends.size(), PollTime(deadline))) < 0 && errno == EINTR) {
  }
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].revents != 0) processes[i].ended = ::waitpid(processes[i].pid, &processes[i].status, 0) > 0;
  }
  return ready > 0;
}

void Kill(Process& process) {
  if (process.pid < 0 || process.ended) return;
  ::kill(process.pid, SIGKILL);
  process.ended = ::waitpid(process.pid, &process.status, 0) > 0;
}

// Until both have ended. DeadlineExceeded where one did not notice that the other had failed.
Status AwaitBoth(Processes& processes) {
  Deadline deadline = Deadline::Infinite();
  for (;;) {
    const auto running = std::find_if(processes.begin(), processes.end(), [](const Process& p) { return !p.ended; });
    if (running == processes.end()) return {};
    const bool failed = std::any_of(processes.begin(), processes.end(), [](const Process& p) { return p.failed(); });
    if (failed && deadline.infinite()) deadline = Deadline::In(kToNotice);
    if (AwaitOne(processes, deadline)) continue;
    Kill(*running);
    return Error(StatusCode::kDeadlineExceeded, "stage {} did not notice within {} s that the other one had ended",
                 running - processes.begin(), kToNotice.count());
  }
}

Status Outcome(const Processes& processes) {
  StatusCode code = StatusCode::kFailedPrecondition;
  std::string how;
  for (std::size_t stage = 0; stage < processes.size(); ++stage) {
    const Process& process = processes[stage];
    if (!process.failed()) continue;
    if (!process.killed() && WEXITSTATUS(process.status) == kExitSkipped) code = StatusCode::kUnsupported;
    if (!process.killed() && WEXITSTATUS(process.status) == kExitCorrupt) code = StatusCode::kCorrupt;
    how += fmt::format("{}stage {} {}", how.empty() ? "" : ", ", stage, process.How());
  }
  return how.empty() ? Status::Ok() : Status(code, how);
}

}  // namespace

Status MakeNodeDirectories(const std::string& directory) {
  std::error_code error;
  for (const char* name : {"/node0", "/node1", "/both"}) {
    std::filesystem::create_directory(directory + name, error);
    if (error) return ErrnoStatus(error.value(), "making " + directory + name);
  }
  return {};
}

Status CheckRoomForNodes(const PipelineFlags& flags) {
  const Flags& run = flags.run;
  CAIRN_ASSIGN_OR_RETURN(const StrategyKind kind, FindStrategy(run.strategy));
  CAIRN_ASSIGN_OR_RETURN(const Resources free, FreeResources(run.directory));
  const auto copies = static_cast<std::uint64_t>(kind.checkpoints_on_disk(run.in_flight));
  const std::uint64_t nodes = run.network == "hosts" ? 1 : kStages;
  return CheckFits({.disk_bytes = nodes * copies * run.state_bytes,
                    .memory_bytes = nodes * (run.state_bytes +
                                             kind.host_bytes(run.state_bytes, run.host_memory_bytes, run.in_flight))},
                   free, nodes * run.state_bytes, run.scale);
}

Status Launch(const PipelineFlags& flags, int argc, char** argv) {
  CAIRN_RETURN_IF_ERROR(CheckRoomForNodes(flags));
  std::unique_ptr<TempDir> directory;
  try {
    directory = std::make_unique<TempDir>(flags.run.directory);
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "making a directory in " + flags.run.directory);
  }
  CAIRN_RETURN_IF_ERROR(MakeNodeDirectories(directory->path()));
  Machines machines;
  CAIRN_RETURN_IF_ERROR(machines.Make(flags));
  const std::vector<std::string> own(argv, argv + argc);
  for (int restarts = 0;; ++restarts) {
    Processes processes;
    Status status = Start(processes, machines, own, directory->path(), restarts > 0);
    if (status.ok()) status = AwaitBoth(processes);
    for (Process& process : processes) Kill(process);
    CAIRN_RETURN_IF_ERROR(status);
    status = Outcome(processes);
    const bool killed = std::any_of(processes.begin(), processes.end(), [](const Process& p) { return p.killed(); });
    if (status.ok() || !killed || restarts == flags.restarts) return status;
    std::cerr << "bench_pipeline: " << status.message() << "; both start again\n";
  }
}

}  // namespace cairn::bench
