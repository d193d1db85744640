#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "advice/input_file.h"
#include "advice/output_file.h"
#include "advice/profile_file.h"
#include "base/human.h"
#include "base/print_error.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace cairn::tools {
namespace {

constexpr std::size_t kMostJobBytes = 1U << 20;

struct Job {
  int line = 0;
  std::string words;
};

Result<std::vector<Job>> ReadJobs(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "a list of jobs", kMostJobBytes));
  std::vector<Job> jobs;
  std::string_view rest = text;
  for (int line = 1; !rest.empty(); ++line) {
    const std::size_t end = rest.find('\n');
    const std::string_view words = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::size_t first = words.find_first_not_of(" \t\r");
    if (first != std::string_view::npos && words[first] != '#') jobs.push_back({line, std::string(words)});
  }
  if (jobs.empty()) return Error(StatusCode::kInvalidArgument, "{}: expected a job in a line, found none", path);
  return jobs;
}

/// Runs `cairn profile` on one job, whose words a shell reads as it would in a script. Its table goes to stderr.
Status RunJob(const std::string& words, const std::string& out) {
  std::error_code error;
  std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return ErrnoStatus(error.value(), "/proc/self/exe");
  std::string script = "exec \"$0\" profile --out \"$1\" " + words + " >&2";
  std::string path = out;
  std::string shell = "sh";
  std::string option = "-c";
  std::array<char*, 6> arguments{shell.data(), option.data(), script.data(), self.data(), path.data(), nullptr};
  pid_t child = 0;
  if (const int failed = ::posix_spawnp(&child, "sh", nullptr, nullptr, arguments.data(), environ); failed != 0) {
    return ErrnoStatus(failed, "starting sh");
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status::Ok();
  if (WIFSIGNALED(status)) return Error(StatusCode::kCancelled, "ended by signal {}", WTERMSIG(status));
  return Error(StatusCode::kFailedPrecondition, "exit status {}", WEXITSTATUS(status));
}

void PrintJobs(const std::vector<ProfileFile>& files) {
  std::vector<std::vector<std::string>> rows{
      {"JOB", "ITERATIONS/S", "CORES", "MEMORY", "WORKER_THREADS", "HOST_MEMORY"}};
  for (const ProfileFile& file : files) {
    const Budget knee = FindKnee(file.profile);
    const ProfileAdvice advice = Advise(file.profile);
    rows.push_back({file.job.empty() ? fmt::format("{}", fmt::join(file.command, " ")) : file.job,
                    fmt::format("{:.4g}", file.profile.samples.front().throughput), fmt::format("{:.3g}", knee.cores),
                    knee.memory_bytes == 0 ? "-" : HumanBytes(knee.memory_bytes), fmt::to_string(advice.worker_threads),
                    advice.host_memory_bytes ? "up to " + HumanBytes(*advice.host_memory_bytes) : "auto"});
  }
  PrintTable(rows);
}

}  // namespace

Result<int> ProfileJobs(const ProfileOptions& options) {
  if (!options.command.empty()) {
    return Error(StatusCode::kInvalidArgument, "--all: expected no command beside it, found {}", options.command[0]);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Job> jobs, ReadJobs(options.all));
  CAIRN_RETURN_IF_ERROR(CheckWritable(options.out));
  std::vector<ProfileFile> files;
  nlohmann::json document = nlohmann::json::array();
  for (const Job& job : jobs) {
    const std::string part = fmt::format("{}.{}", options.out, job.line);
    const Status ran = RunJob(job.words, part);
    if (ran.code() == StatusCode::kCancelled) return ran;
    if (!ran.ok()) {
      PrintError("cairn: {}:{}: {}\n", Printable(options.all), job.line, ran.message());
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(ProfileFile file, ReadProfile(part));
    document.push_back(ToJson(file));
    files.push_back(std::move(file));
    ::unlink(part.c_str());
  }
  CAIRN_RETURN_IF_ERROR(WriteOutputFile(options.out, nlohmann::json{{"jobs", document}}.dump(2) + '\n'));
  options.json ? PrintJson({{"jobs", document}}) : PrintJobs(files);
  return files.size() == jobs.size() ? kGood : kFailed;
}

}  // namespace cairn::tools
