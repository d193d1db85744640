#include "bench/pipeline/hosts.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "bench/pipeline/launcher.h"
#include "bench/pipeline/node.h"
#include "bench/pipeline/served_memory.h"
#include "bench/pipeline/socket.h"
#include "bench/pipeline/stage.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

constexpr auto kPatience = std::chrono::minutes(1);  // For the other host to answer.
constexpr auto kBetweenTries = std::chrono::milliseconds(50);
constexpr std::uint32_t kMost = 1U << 20;  // Of a text: more is not one.
constexpr const char* kEverywhere = "0.0.0.0";

std::string_view Find(const char* name) {
  const char* const found = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it.
  return found == nullptr ? std::string_view() : found;
}

Result<int> Number(const char* name, int least, int most) {
  const std::string_view text = Find(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && number <= most) return number;
  return Error(StatusCode::kInvalidArgument,
               "--network hosts: the environment's {}: expected {}, as torchrun --nnodes 2 sets it, found \"{}\"", name,
               least == most ? std::to_string(least) : fmt::format("a number from {} to {}", least, most), text);
}

/// Where this host is in the job, and where rank 0 listens.
struct Place {
  int rank = 0;
  std::string master;
  int port = 0;
};

Result<Place> FindPlace() {
  Place place;
  CAIRN_RETURN_IF_ERROR(Number("WORLD_SIZE", kStages, kStages).status());
  CAIRN_ASSIGN_OR_RETURN(place.rank, Number("RANK", 0, kStages - 1));
  CAIRN_ASSIGN_OR_RETURN(place.port, Number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max() - 1));
  if (Find("TORCHELASTIC_USE_AGENT_STORE") == "True") ++place.port;
  place.master = Find("MASTER_ADDR");
  if (!place.master.empty()) return place;
  return Error(StatusCode::kInvalidArgument,
               "--network hosts: the environment's MASTER_ADDR: expected rank 0's host, found none");
}

Status Tell(Socket& other, const std::string& text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  CAIRN_RETURN_IF_ERROR(other.Send(std::as_bytes(std::span(&length, 1))));
  return other.Send(std::as_bytes(std::span(text)));
}

Result<std::string> Hear(Socket& other) {
  std::uint32_t length = 0;
  CAIRN_RETURN_IF_ERROR(other.Receive(std::as_writable_bytes(std::span(&length, 1))));
  if (length > kMost) return Error(StatusCode::kIoError, "expected a node of this program, found other bytes");
  std::string text(length, '\0');
  CAIRN_RETURN_IF_ERROR(other.Receive(std::as_writable_bytes(std::span(text))));
  return text;
}

Result<std::string> TellAndHear(Socket& other, const std::string& text) {
  CAIRN_RETURN_IF_ERROR(Tell(other, text));
  return Hear(other);
}

// Both tell whether they have failed; returns once both have. The error is the own one, with what the other one says.
Status BothSucceeded(Socket& other, int stage, const Status& own) {
  const Result<std::string> theirs = TellAndHear(other, own.ok() ? "" : std::string(own.message()));
  const std::string said = theirs.ok() ? *theirs : std::string(theirs.status().message());
  if (own.ok() && said.empty()) return {};
  if (own.ok()) return Error(StatusCode::kFailedPrecondition, "stage {}: {}", 1 - stage, said);
  if (said.empty()) return Error(own.code(), "stage {}: {}", stage, own.message());
  return Error(own.code(), "stage {}: {}; stage {}: {}", stage, own.message(), 1 - stage, said);
}

Result<std::unique_ptr<Socket>> ConnectToMaster(const Place& place) {
  const Deadline deadline = Deadline::In(kPatience);
  for (;;) {
    Result<std::unique_ptr<Socket>> connected = ConnectTo(place.master, place.port);
    if (connected.ok() || connected.status().code() == StatusCode::kInvalidArgument) return connected;
    if (deadline.passed()) {
      return Error(StatusCode::kDeadlineExceeded, "rank 0 does not answer ({}): expected the same command there",
                   connected.status().message());
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

/// What must be the same on both hosts, as options.
std::string Words(const PipelineFlags& flags) {
  const Flags& run = flags.run;
  return fmt::format(
      "--strategy {} --every {} --iterations {} --warmup {} --micro-batches {} --iteration-seconds {:g} --in-flight {} "
      "--host-memory-bytes {} --writers {} --queue-depth {} --scale {:g} --dilation {:g} --pcie-bytes-per-second {} "
      "--disk-bytes-per-second {}",
      run.strategy, run.every, run.iterations, run.warmup, flags.micro_batches, run.iteration_seconds, run.in_flight,
      run.host_memory_bytes, run.writers, run.queue_depth, run.scale, run.dilation, run.pcie_bytes_per_second,
      run.disk_bytes_per_second);
}

/// This host's part of the run: its listening socket on stage 0, and what outlives the training.
class Host {
 public:
  Status Meet(const PipelineFlags& flags) {
    CAIRN_ASSIGN_OR_RETURN(place_, FindPlace());
    if (place_.rank == 0) {
      CAIRN_ASSIGN_OR_RETURN(const Listener listener, Listener::Open(kEverywhere, place_.port));
      // The node's own, which is closed with it: before the other host may begin its next run.
      link_ = UniqueFd(::fcntl(listener.fd(), F_DUPFD_CLOEXEC, 0));
      if (!link_.valid()) return ErrnoStatus(errno, "copying a descriptor");
      Result<std::unique_ptr<Socket>> accepted = listener.Accept(Deadline::In(kPatience));
      if (!accepted.ok()) {
        return Error(accepted.status().code(),
                     "rank 1 does not answer at port {} ({}): expected the same command there", place_.port,
                     accepted.status().message());
      }
      other_ = *std::move(accepted);
    } else {
      CAIRN_ASSIGN_OR_RETURN(other_, ConnectToMaster(place_));
    }
    const std::string mine = Words(flags);
    CAIRN_ASSIGN_OR_RETURN(const std::string theirs, TellAndHear(*other_, mine));
    if (mine == theirs) return {};
    return Error(StatusCode::kInvalidArgument, "expected the same command on both hosts, found here {}, there {}", mine,
                 theirs);
  }

  // What the launcher says to its nodes elsewhere.
  Status Prepare(PipelineFlags& flags) {
    NodeFlags& node = flags.node;
    node.stage = place_.rank;
    node.link = fmt::format("{}:{}", other_->peer(), place_.port);
    try {
      directory_ = std::make_unique<TempDir>(flags.run.directory);
    } catch (const std::system_error& error) {
      return ErrnoStatus(error.code().value(), "making a directory in " + flags.run.directory);
    }
    node.directory = directory_->path();
    CAIRN_RETURN_IF_ERROR(MakeNodeDirectories(node.directory));
    if (flags.run.strategy != "gemini") return {};
    CAIRN_ASSIGN_OR_RETURN(memory_,
                           ServedMemory::Open(kEverywhere, BytesOf(OptStage(1 - place_.rank, flags.run.scale))));
    return {};
  }
  // Gemini saves to the other one's memory, and cairn's ranks write one checkpoint, in the first one's directory.
  Status Share(PipelineFlags& flags) {
    NodeFlags& node = flags.node;
    CAIRN_ASSIGN_OR_RETURN(const std::string port,
                           TellAndHear(*other_, memory_ == nullptr ? "" : std::to_string(memory_->port())));
    if (!port.empty()) node.memory = fmt::format("{}:{}", other_->peer(), port);
    std::error_code error;
    CAIRN_ASSIGN_OR_RETURN(const std::string theirs,
                           TellAndHear(*other_, std::filesystem::absolute(node.directory, error).string()));
    if (flags.run.strategy != "cairn" || place_.rank == 0) return {};
    node.directory = theirs;
    if (std::filesystem::is_directory(theirs, error)) return {};
    return Error(StatusCode::kInvalidArgument,
                 "--dir {}: expected storage that both hosts share, because cairn's ranks write one checkpoint; rank 0 "
                 "made {}, which is not here",
                 flags.run.directory, theirs);
  }

  Status Run(PipelineFlags flags) {
    CAIRN_RETURN_IF_ERROR(BothSucceeded(*other_, place_.rank, Prepare(flags)));
    CAIRN_RETURN_IF_ERROR(BothSucceeded(*other_, place_.rank, Share(flags)));
    if (place_.rank == 0) flags.node.link_fd = link_.Release();
    return BothSucceeded(*other_, place_.rank, RunNode(flags));
  }

 private:
  Place place_;
  UniqueFd link_;
  std::unique_ptr<Socket> other_;
  std::unique_ptr<TempDir> directory_;
  std::unique_ptr<ServedMemory> memory_;
};

}  // namespace

Status RunHost(PipelineFlags flags) {
  CAIRN_RETURN_IF_ERROR(CheckRoomForNodes(flags));
  Host host;
  CAIRN_RETURN_IF_ERROR(host.Meet(flags));
  return host.Run(std::move(flags));
}

}  // namespace cairn::bench
