#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "advice/control_group.h"
#include "advice/measured_command.h"
#include "advice/output_file.h"
#include "advice/profile_file.h"
#include "base/human.h"
#include "base/memory_limit.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tools/commands.h"
#include "tools/interruption.h"
#include "tools/output.h"
#include "tools/quantities.h"

namespace cairn::tools {
namespace {

struct ProfileRequest {
  /// Without what depends on the budget.
  CommandOptions command;
  ProfileOptions options;
  ProfileLimits limits;
  Budget full;
  std::vector<Budget> checks;
  std::vector<std::string> data;
};

Status CheckCores(const std::string& flag, double found, double most) {
  if (found >= kLeastCores && found <= most) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{}: expected {} to {} cores, found {}", flag, kLeastCores, most, found);
}

Result<Budget> ParseCheck(const std::string& text, const Budget& full) {
  const std::size_t colon = text.find(':');
  Budget budget = full;
  CAIRN_ASSIGN_OR_RETURN(budget.cores, ParseShare("--check", text.substr(0, colon)));
  CAIRN_RETURN_IF_ERROR(CheckCores("--check", budget.cores, full.cores));
  if (colon != std::string::npos) {
    CAIRN_ASSIGN_OR_RETURN(budget.memory_bytes, ParseSize("--check", text.substr(colon + 1)));
  }
  return budget;
}

/// The command at so many cores, as Synergy's launcher starts it: under torchrun, with what is handed on to the job.
std::vector<std::string> CommandAt(const ProfileOptions& options, double cores) {
  std::vector<std::string> words;
  auto begin = options.command.begin();
  const int ranks = options.num_gpus.value_or(1);
  if (options.num_gpus || options.nodes) {
    words = {"torchrun", fmt::format("--nnodes={}", options.nodes.value_or(1)),
             fmt::format("--node-rank={}", options.node_rank.value_or(0))};
    if (!options.master_address.empty()) words.push_back("--master-addr=" + options.master_address);
    if (options.master_port) words.push_back(fmt::format("--master-port={}", *options.master_port));
    words.push_back(fmt::format("--nproc-per-node={}", ranks));
    const std::string first = std::filesystem::path(*begin).filename();
    if (first.starts_with("python") && begin + 1 != options.command.end()) ++begin;  // torchrun starts it.
  }
  words.insert(words.end(), begin, options.command.end());
  if (options.workers) {
    const auto share = static_cast<std::uint64_t>(std::max(1.0, cores / ranks));
    words.push_back(fmt::format("--workers={}", std::min(*options.workers, share)));
  }
  if (options.batch) {
    words.emplace_back("-b");
    words.push_back(fmt::to_string(*options.batch));
  }
  if (options.max_iterations) {
    words.push_back(fmt::format("--max_iterations={}", options.warm_up + *options.max_iterations + 1));
  }
  if (!options.job_name.empty() && !options.data.empty() &&
      std::ranges::none_of(options.command, [](const std::string& word) { return word.starts_with("--data"); })) {
    words.push_back("--data=" + options.data[0]);
  }
  return words;
}

Status CheckSynergysNames(const ProfileOptions& options) {
  if (!options.docker_image.empty() || !options.container_mount.empty()) {
    return Error(
        StatusCode::kInvalidArgument,
        "--docker-img and --container-mnt: expected none, because no container is started; by hand: docker run --rm "
        "-it --gpus all --ipc=host --network=host --privileged --mount type=bind,src=/,target={} {} cairn profile "
        "...",
        options.container_mount.empty() ? "/host" : options.container_mount,
        options.docker_image.empty() ? "IMAGE" : options.docker_image);
  }
  if (options.command.empty()) {
    return {StatusCode::kInvalidArgument,
            "profile: expected the command behind --, such as: cairn profile -- python train.py"};
  }
  if (options.num_gpus || options.nodes) return Status::Ok();
  if (!options.node_rank && options.master_address.empty() && !options.master_port) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "--node_rank, --master_addr and --master_port: expected --num-gpus or --nnodes beside them, found neither"};
}

/// Of memory, without a unit in GB, as Synergy means it: no job runs in so few bytes.
Result<std::uint64_t> ParseMemory(const std::string& text) {
  constexpr std::uint64_t kMostGigabytes = 65536;
  const std::optional<std::uint64_t> number = ParseStep(text);
  return ParseSize("--memory", number && *number > 0 && *number < kMostGigabytes ? text + "GB" : text);
}

Result<ProfileRequest> Parse(const ProfileOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckSynergysNames(options));
  ProfileRequest request;
  request.options = options;
  CommandOptions& command = request.command;
  command.stopped = CatchInterruptions();
  command.counting = {.pattern = options.pattern, .warm_up = options.warm_up, .iterations = options.iterations};
  if (!options.means.empty() && options.pattern.empty()) {
    return Error(StatusCode::kInvalidArgument, "--means: expected --pattern, whose match it explains, found none");
  }
  if (options.means == "line") command.counting.meaning = PatternMeaning::kLine;
  if (options.means == "counter") command.counting.meaning = PatternMeaning::kCounter;
  if (options.means == "rate") command.counting.meaning = PatternMeaning::kRate;
  CAIRN_RETURN_IF_ERROR(IterationCounter::Make(command.counting).status());
  constexpr const char* kLongest = "1d";
  CAIRN_ASSIGN_OR_RETURN(const auto least, ParseTime("--least-time", options.least_time, "0", kLongest));
  command.counting.least_seconds = std::chrono::duration<double>(least).count();
  if (options.max_iterations) {  // The job ends after them.
    command.counting.iterations = *options.max_iterations;
    command.counting.least_seconds = 0;
  }
  CAIRN_ASSIGN_OR_RETURN(command.timeout, ParseTime("--timeout", options.timeout, "0", kLongest));
  const double all = CountCores();
  request.full.cores = options.cores.value_or(all);
  CAIRN_RETURN_IF_ERROR(CheckCores("--cores", request.full.cores, all));
  request.limits.least_cores = options.least_cores.value_or(std::min(1.0, request.full.cores));
  CAIRN_RETURN_IF_ERROR(CheckCores("--least-cores", request.limits.least_cores, request.full.cores));
  CAIRN_ASSIGN_OR_RETURN(request.limits.least_memory_bytes, ParseSize("--least-memory", options.least_memory));
  request.full.memory_bytes = FindMemory().available;
  if (!options.memory.empty()) {
    CAIRN_ASSIGN_OR_RETURN(request.full.memory_bytes, ParseMemory(options.memory));
  }
  if (request.full.memory_bytes == 0 || request.limits.least_memory_bytes == 0) {
    return Error(StatusCode::kInvalidArgument, "--memory and --least-memory: expected at least 1 byte, found 0");
  }
  if (options.cores_only) request.full.memory_bytes = 0;
  for (const std::string& check : options.checks) {
    CAIRN_ASSIGN_OR_RETURN(const Budget budget, ParseCheck(check, request.full));
    request.checks.push_back(budget);
  }
  request.data = options.data;
  return request;
}

std::string Describe(const Budget& budget) {
  std::string text = fmt::format("{:.3g} cores", budget.cores);
  if (budget.memory_bytes > 0) text += ", " + HumanBytes(budget.memory_bytes);
  return text;
}

/// Whether a process can be given this budget: making a control group may be permitted, but not moving to it.
Status TryBudget(const Budget& budget) {
  CommandOptions nothing;
  nothing.command = {"true"};
  nothing.budget = budget;
  const Status status = MeasureCommand(nothing).status();
  return status.code() == StatusCode::kUnsupported ? status : Status::Ok();
}

/// What the page cache holds of these files would cost the job nothing.
Status DropCache(const std::vector<std::string>& data) {
  const auto drop = [](const std::filesystem::path& path) -> Status {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return ErrnoStatus(errno, "opening " + path.string());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    return Status::Ok();
  };
  for (const std::string& path : data) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      CAIRN_RETURN_IF_ERROR(drop(path));
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) CAIRN_RETURN_IF_ERROR(drop(entry.path()));
    }
  }
  return Status::Ok();
}

/// Runs the command at one budget after the other.
class Profiling {
 public:
  explicit Profiling(ProfileRequest request) : request_(std::move(request)) {
    file_.command = CommandAt(request_.options, request_.full.cores);
    file_.job = request_.options.job_name;
    file_.profile.full = request_.full;
  }

  Status Run(bool cores_only, bool least_cores_given) {
    TryGroups(cores_only, least_cores_given);
    CAIRN_RETURN_IF_ERROR(CheckChecks());
    Profile& profile = file_.profile;
    while (const std::optional<Budget> budget = NextBudget(profile, request_.limits)) {
      const bool again =
          std::ranges::any_of(profile.samples, [&budget](const ProfileSample& one) { return one.budget == *budget; });
      if (again) PrintError("{} once more, because less gave more:\n", Describe(*budget));
      CAIRN_ASSIGN_OR_RETURN(ProfileSample sample, Sample(*budget));
      AddSample(profile, std::move(sample));
    }
    for (Budget budget : request_.checks) {
      if (profile.full.memory_bytes == 0) budget.memory_bytes = 0;
      CAIRN_ASSIGN_OR_RETURN(ProfileSample sample, Sample(budget));
      file_.checks.push_back(std::move(sample));
    }
    return Status::Ok();
  }
  [[nodiscard]] const ProfileFile& file() const { return file_; }

 private:
  /// Finds out which limits this process may set, and says what it may not.
  void TryGroups(bool cores_only, bool least_cores_given) {
    Profile& profile = file_.profile;
    const Status quota = TryBudget({.cores = 0.5});
    request_.limits.fractions = quota.ok();
    quota_note_ = quota.message();
    if (!quota.ok()) {
      PrintError("cairn: no fractions of a core: {}\n", Printable(quota.message()));
      request_.limits.least_cores = std::max(1.0, request_.limits.least_cores);
    } else if (!least_cores_given) {
      request_.limits.least_cores = std::min(kQuarter, profile.full.cores);
    }
    if (cores_only) {
      file_.memory_note = "not asked for (--cores-only)";
      return;
    }
    const Status memory = TryBudget({.cores = 1, .memory_bytes = profile.full.memory_bytes});
    file_.memory_note = memory.ok() ? "limited by a control group" : memory.message();
    if (memory.ok()) return;
    profile.full.memory_bytes = 0;
    PrintError("cairn: memory is not profiled, only cores: {}\n", Printable(memory.message()));
  }

  /// Before anything is measured.
  [[nodiscard]] Status CheckChecks() const {
    for (const Budget& budget : request_.checks) {
      if (std::floor(budget.cores) == budget.cores || request_.limits.fractions) continue;
      return Error(StatusCode::kUnsupported, "--check: expected whole cores, found {}: {}", budget.cores, quota_note_);
    }
    return Status::Ok();
  }

  Result<ProfileSample> Sample(const Budget& budget) {
    Profile& profile = file_.profile;
    CAIRN_RETURN_IF_ERROR(DropCache(request_.data));
    CommandOptions command = request_.command;
    command.command = CommandAt(request_.options, budget.cores);
    command.budget = budget;
    CAIRN_ASSIGN_OR_RETURN(const MeasuredCommand measured, MeasureCommand(command));
    if (!measured.rate && profile.samples.empty()) {
      return Error(StatusCode::kFailedPrecondition, "{} with {}: {}", command.command[0], Describe(budget),
                   measured.failure);
    }
    if (profile.samples.empty()) profile.peak_bytes = measured.peak_bytes;
    PrintError(
        "{}: {}\n", Describe(budget),
        measured.rate ? fmt::format("{:.4g} iterations/s", measured.rate->throughput) : Printable(measured.failure));
    return ProfileSample{
        .budget = budget, .throughput = measured.rate ? measured.rate->throughput : 0, .failure = measured.failure};
  }

  static constexpr double kQuarter = 0.25;
  ProfileRequest request_;
  ProfileFile file_;
  std::string quota_note_;
};

void Print(const ProfileFile& file, const std::string& path) {
  const Profile& profile = file.profile;
  const double full = profile.samples.front().throughput;
  std::vector<std::vector<std::string>> rows{{"cores", "memory", "iterations/s", "of all", ""}};
  const auto add = [&](const ProfileSample& sample, std::string note) {
    const std::uint64_t memory = sample.budget.memory_bytes;
    rows.push_back({fmt::format("{:.3g}", sample.budget.cores), memory == 0 ? "-" : HumanBytes(memory),
                    fmt::format("{:.4g}", sample.throughput), fmt::format("{:.0f} %", 100 * sample.throughput / full),
                    std::move(note)});
  };
  std::vector<ProfileSample> samples = profile.samples;
  std::ranges::stable_sort(samples, [](const ProfileSample& a, const ProfileSample& b) {
    return std::pair(a.budget.cores, a.budget.memory_bytes) > std::pair(b.budget.cores, b.budget.memory_bytes);
  });
  for (const ProfileSample& sample : samples) add(sample, sample.failure.empty() ? "" : "does not run");
  for (const ProfileSample& check : file.checks) {
    add(check, fmt::format("predicted {:.4g}", PredictThroughput(profile, check.budget)));
  }
  PrintTable(rows);
  const ProfileAdvice advice = Advise(profile);
  rows = {{"", ""},
          {"knee", Describe(FindKnee(profile))},
          {"worker_threads", fmt::to_string(advice.worker_threads)},
          {"host_memory", advice.host_memory_bytes ? "up to " + HumanBytes(*advice.host_memory_bytes) : "auto"},
          {"checksums", "host"}};
  for (const std::string& why : advice.why) rows.push_back({&why == &advice.why.front() ? "why" : "", why});
  rows.push_back({"written to", path});
  PrintTable(rows);
}

}  // namespace

Result<int> ProfileJob(const ProfileOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(ProfileRequest request, Parse(options));
  Profiling profiling(std::move(request));
  CAIRN_RETURN_IF_ERROR(CheckWritable(options.out));
  CAIRN_RETURN_IF_ERROR(profiling.Run(options.cores_only, options.least_cores.has_value()));
  const Status written = WriteProfile(options.out, profiling.file());
  // What was measured took minutes: print it in any case.
  options.json ? PrintJson(ToJson(profiling.file())) : Print(profiling.file(), written.ok() ? options.out : "nowhere");
  CAIRN_RETURN_IF_ERROR(written);
  return kGood;
}

}  // namespace cairn::tools
