#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/closed_streams.h"
#include "base/status_macros.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/quantities.h"
#include "tools/reading.h"
#include "tools/unknown_words.h"

namespace cairn::tools {
namespace {

/// A chunk of the pool has at most 1 GiB.
constexpr std::uint64_t kMostGpuBytes = 1U << 30;

/// What the command line asks for.
using Action = std::function<Result<int>()>;

/// A whole number from `least` to `most`, or on. Without it, -1 would be read as 2^64 - 1.
CLI::Validator WholeNumber(std::uint64_t least, std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  constexpr std::uint64_t kMillion = 1'000'000;
  std::string range = fmt::format("{} on", least);
  if (most < std::numeric_limits<std::uint64_t>::max()) {
    range = most % kMillion == 0 ? fmt::format("{} to {} million", least, most / kMillion)
                                 : fmt::format("{} to {}", least, most);
  }
  return {[least, most, range](const std::string& text) {
            const std::optional<std::uint64_t> number = ParseStep(text);
            return number && *number >= least && *number <= most
                       ? ""
                       : fmt::format("expected a whole number from {}, found {}", range, text);
          },
          ""};
}

/// A subcommand, and the options that its arguments fill.
template <typename Options>
struct Command {
  CLI::App& app;
  Options& options;
};

/// Adds one that calls `run` with its options.
template <typename Options, typename Run>
Command<Options> AddCommand(CLI::App& app, Action& chosen, Run run, const std::string& name, const std::string& help) {
  const auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(name, help);
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([&chosen, run, options] { chosen = [run, options] { return run(*options); }; });
  return {*command, *options};
}

void AddTune(CLI::App& app, Action& chosen) {
  const auto [tune, tuning] =
      AddCommand<TuneOptions>(app, chosen, Tune, "tune",
                              "Measure this machine for some seconds and choose interval, memory and saves in flight");
  tune.add_option("root", tuning.root, "The directory for checkpoints; it must exist")->required();
  tune.add_option("--state-bytes", tuning.state_bytes, "Size of one checkpoint (of one rank): 12GB, 4GiB")->required();
  tune.add_option("--iteration-time", tuning.iteration_time, "One iteration without saves: 250ms, 1.5")->required();
  tune.add_option("--slowdown", tuning.slowdown, "How much longer training may take: 0.01, 1%")->required();
  tune.add_option("--mtbf", tuning.mtbf, "Mean time between failures of the whole job: 90m, 24h")->required();
  tune.add_option("--restart-time", tuning.restart_time, "From a failure until training continues")
      ->capture_default_str();
  tune.add_option("--update-time", tuning.update_time, "The part of an iteration that changes the state (optimizer)")
      ->capture_default_str();
  tune.add_option("--memory", tuning.memory, "Memory for the pool (default: a quarter of what is available)");
  tune.add_option("--device", tuning.device, "Where the tensors are")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  tune.add_option("--training-cores", tuning.training_cores, "Cores that training keeps busy (host: all, cuda: 0)");
  tune.add_option("--copy-rate", tuning.copy_rate, "Limit of copies in bytes per second, if below the measured rate");
  tune.add_option("--write-rate", tuning.write_rate, "Limit of writes, such as a quota or a share of a disk");
  tune.add_option("--probe-time", tuning.probe_time, "About how long to measure the disk")->capture_default_str();
  tune.add_option("--profile", tuning.profile, "What `cairn profile` wrote: the job's need of cores and memory");
}

/// The options of Synergy's offline profiler that have no other name here.
void AddSynergysNames(CLI::App& profile, ProfileOptions& profiling) {
  const auto positive = [&profile](const std::string& names, auto& to, const std::string& help) {
    profile.add_option(names, to, help)->check(WholeNumber(1, 1'000'000));
  };
  profile.add_option("--job-name", profiling.job_name, "What a table calls the job");
  positive("--num-gpus", profiling.num_gpus, "Start the command, a Python script, by torchrun with so many ranks");
  positive("--nnodes", profiling.nodes, "Of torchrun");
  profile.add_option("--node-rank,--node_rank", profiling.node_rank, "Of torchrun")->check(WholeNumber(0, 1'000'000));
  profile.add_option("--master-addr,--master_addr", profiling.master_address, "Of torchrun");
  profile.add_option("--master-port,--master_port", profiling.master_port, "Of torchrun")->check(WholeNumber(1, 65535));
  positive("-b,--batch,--batch-size", profiling.batch, "Handed on to the job, as -b N");
  positive("-j,--workers", profiling.workers,
           "Handed on to the job, as --workers N: at most so many, and one for each core of a rank");
  positive("--max-iterations,--max_iterations", profiling.max_iterations,
           "As --iterations, for no longer than they take; handed on to the job with those of the warm-up");
  profile.add_option("--docker-img", profiling.docker_image, "Says how to start the container by hand");
  profile.add_option("--container-mnt", profiling.container_mount, "The same");
}

void AddProfile(CLI::App& app, Action& chosen) {
  const auto run = [](const ProfileOptions& options) {
    return options.all.empty() ? ProfileJob(options) : ProfileJobs(options);
  };
  const auto [profile, profiling] = AddCommand<ProfileOptions>(
      app, chosen, run, "profile", "Run a training command again and again with less of the host; see what it needs");
  profile.footer(
      "Runs the command with all cores and memory, then with fewer and less. Each run ends once enough iterations are\n"
      "counted: SIGTERM, after five seconds SIGKILL, with all that it has started. Give the command a folder for\n"
      "checkpoints that you do not need: cairn profile --out profile.json -- python train.py --steps 1000");
  profile.add_option("command", profiling.command, "The command, behind --");
  profile.add_option("--all", profiling.all,
                     "A file of jobs, one a line: options and a command as for one; writes one table");
  profile.add_option("--out", profiling.out, "The file to write")->capture_default_str();
  profile.add_option("--cores,--cpu", profiling.cores, "The most cores (default: all that this process may use)");
  profile.add_option("--least-cores", profiling.least_cores, "The fewest (default: 1; 0.25 if a quota is permitted)");
  profile.add_option("--memory", profiling.memory,
                     "The most memory, page cache included (default: what is available); without a unit: GB");
  profile.add_option("--least-memory", profiling.least_memory, "The least")->capture_default_str();
  profile.add_flag("--cores-only", profiling.cores_only, "Do not limit memory");
  profile.add_option("--pattern", profiling.pattern,
                     "Lines that tell iterations: a regular expression (default: progress bars, step=N, N it/s)");
  profile.add_option("--means", profiling.means, "What it matches (default: rate if it has a group, else line)")
      ->check(CLI::IsMember({"line", "counter", "rate"}));
  profile.add_option("--warm-up", profiling.warm_up, "Iterations to skip in each run")
      ->check(WholeNumber(0))
      ->capture_default_str();
  profile.add_option("--iterations", profiling.iterations, "Iterations to measure, at least")
      ->check(WholeNumber(1))
      ->capture_default_str();
  profile.add_option("--least-time", profiling.least_time, "And for how long, at least")->capture_default_str();
  profile.add_option("--timeout", profiling.timeout, "Of each run")->capture_default_str();
  profile.add_option("--data", profiling.data, "A file or folder that each run shall read from the disk again")
      ->allow_extra_args(false);
  profile.add_option("--check", profiling.checks, "A budget (1.5 or 1.5:2GiB) on which to test the prediction")
      ->allow_extra_args(false);
  AddSynergysNames(profile, profiling);
}

struct DoctorArguments : DoctorOptions {
  bool examine_gpus = false;
  std::string gpu_memory = "512MiB";
  bool measure_peers = false;
  PeersOptions peering;
};

Result<int> RunDoctor(DoctorArguments arguments) {
  if (arguments.measure_peers) {
    arguments.peering.json = arguments.json;
    if (arguments.root.empty() && !arguments.examine_gpus) return MeasurePeers(arguments.peering);
    return Status(StatusCode::kInvalidArgument, "doctor --peers: expected neither a directory nor --gpu");
  }
  if (arguments.examine_gpus) {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseSize("--gpu-memory", arguments.gpu_memory));
    arguments.gpu_bytes = bytes >> 22 << 22;  // In whole chunks.
    if (arguments.gpu_bytes == 0 || arguments.gpu_bytes > kMostGpuBytes) {
      return Error(StatusCode::kInvalidArgument, "--gpu-memory: expected 4 MiB to 1 GiB, found {}",
                   arguments.gpu_memory);
    }
  } else if (arguments.root.empty()) {
    return Status(StatusCode::kInvalidArgument, "doctor: expected a directory, or --gpu, or --peers");
  }
  return Doctor(arguments);
}

void AddDoctor(CLI::App& app, Action& chosen) {
  const auto [doctor, arguments] = AddCommand<DoctorArguments>(
      app, chosen, RunDoctor, "doctor", "Check what this machine supports, and what each missing thing costs");
  doctor.add_option("root", arguments.root, "An existing directory; with --gpu it may be left out");
  doctor.add_flag("--gpu", arguments.examine_gpus,
                  "Measure each GPU: its link, Cairn's copies beside one large one, staging, pinning (some seconds)");
  doctor.add_option("--gpu-memory", arguments.gpu_memory, "Memory for that, on the GPU and pinned")
      ->capture_default_str();
  doctor.add_option("--probe-time", arguments.probe_time, "About how long to measure the disk")->capture_default_str();
  doctor.add_flag("--peers", arguments.measure_peers,
                  "Measure the network between ranks: run it on each, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
  PeersOptions& peering = arguments.peering;
  doctor.add_option("--out", peering.out, "With --peers: the topology that rank 0 writes, for `cairn place`")
      ->capture_default_str();
  doctor.add_option("--domain", peering.domain,
                    "With --peers: what this rank fails together with (default: CAIRN_FAILURE_DOMAIN, or its host)");
  doctor.add_option("--pair-time", peering.pair_time, "With --peers, of rank 0: how long to measure a rate")
      ->capture_default_str();
  doctor.add_option("--timeout", peering.timeout, "With --peers: how long to wait for ranks that do not come")
      ->capture_default_str();
  doctor
      .add_option("--port", peering.port, "With --peers: rank 0's (default: MASTER_PORT; under torchrun the next one)")
      ->check(WholeNumber(1, 65535));
}

void AddPlace(CLI::App& app, Action& chosen) {
  const auto [place, placing] = AddCommand<PlaceOptions>(
      app, chosen, Place, "place", "Choose for a network which device takes which rank, and who keeps whose replica");
  place.add_option("topology", placing.topology, "A JSON file: links, failure domains, the job")->required();
  place.add_option("--state-bytes", placing.state_bytes,
                   "What one device saves: 8GB. This and the next three precede the file's");
  place.add_option("--stages", placing.stages, "Pipeline stages")->check(WholeNumber(1));
  place.add_option("--gradient-bytes", placing.gradient_bytes, "Gradients of one stage");
  place.add_option("--activation-bytes", placing.activation_bytes, "What a replica sends from a stage to the next");
  place.add_option("--seed", placing.seed, "Of the search; equal seeds give equal results")
      ->check(WholeNumber(0))
      ->capture_default_str();
  place.add_option("--evaluations", placing.evaluations, "How many placements to price (default: some seconds' worth)")
      ->check(WholeNumber(1, 100'000'000));
}

void AddPlan(CLI::App& app, Action& chosen) {
  const auto [plan, planning] =
      AddCommand<PlanOptions>(app, chosen, PlanLayouts, "plan",
                              "Forecast what a job reads that restores with other parallel ranks; needs shapes only");
  plan.add_option("model", planning.model,
                  "A model known by name, such as gpt3-xl or bert-large; or a JSON file of its shapes")
      ->required();
  plan.add_option("--from", planning.from, "Pipeline, tensor and data parallel ranks that save: 4,2,2")->required();
  plan.add_option("--to", planning.to, "The same of those that restore")->required();
  plan.add_option("--gpus-per-host", planning.gpus_per_host, "Ranks of one host; they fill hosts in order")
      ->check(WholeNumber(1, 1 << 16))
      ->capture_default_str();
}

void AddSlack(CLI::App& app, Action& chosen) {
  const auto [slack, options] = AddCommand<SlackOptions>(
      app, chosen, Slack, "slack",
      "Show from a pipeline's recorded instructions its longest path and when each stage waits");
  slack.add_option("files", options.files, "instructions-<rank>.csv of all ranks")->required();
  slack.add_option("--energy", options.energy,
                   "time-energy-<rank>.csv of all ranks: what each stage spends while it waits; or a CSV file of each "
                   "stage's times and energies by clock: the slowest clocks that leave the longest path as it is");
  slack.add_option("--waiting-watts", options.waiting_watts, "What a rank's GPU draws while it waits")
      ->check(CLI::Range(0.0, 1e6));
}

/// A path that a command reads: it may also be a checkpoint's folder.
CLI::Option* AddPath(CLI::App& command, const std::string& name, std::string& path, const std::string& help) {
  return command.add_option(name, path, help)->transform(WithStepsZeros);
}

/// Behind the path, or as --step.
void AddStep(CLI::App& command, std::optional<std::uint64_t>& step, const std::string& help) {
  command.add_option("step,--step", step, help)->check(WholeNumber(0));
}

constexpr const char* kSideHelp =
    "A checkpoint's folder (root/step-70), a safetensors file, or a root (its newest checkpoint)";

constexpr const char* kBucketHelp =
    "A root may be where a mirror is in an object store: s3://BUCKET/PREFIX, gs://, az:// or rclone:REMOTE:PATH.";

void AddReaders(CLI::App& app, Action& chosen) {
  const auto [list, listing] =
      AddCommand<ListOptions>(app, chosen, List, "ls",
                              "List the checkpoints of roots, oldest first: time, size, metrics, pins (verify checks "
                              "the bytes)");
  list.footer(kBucketHelp);
  list.add_option("roots", listing.roots, "Directories of checkpoints")->required();

  const auto [show, showing] =
      AddCommand<ReadOptions>(app, chosen, Show, "show", "Show names, shapes and values; reads no tensor data");
  AddPath(show, "path", showing.path, kSideHelp)->required();
  AddStep(show, showing.step, "The step to show, if the path is a root");
  show.footer(kBucketHelp);

  const auto [verify, verifying] =
      AddCommand<ReadOptions>(app, chosen, Verify, "verify", "Read every byte and check its checksum");
  AddPath(verify, "path", verifying.path, "A root (all its checkpoints) or a checkpoint's folder")->required();
  AddStep(verify, verifying.step, "Only this step, if the path is a root");
  verify.footer(kBucketHelp);
}

struct DiffArguments : DiffOptions {
  std::array<std::string, 3> words;
};

void AddDiff(CLI::App& app, Action& chosen) {
  const auto run = [](DiffArguments arguments) {
    for (const std::string& word : arguments.words) {
      if (!word.empty()) arguments.sides.push_back(word);
    }
    return Diff(arguments);
  };
  const auto [diff, arguments] =
      AddCommand<DiffArguments>(app, chosen, run, "diff", "Compare tensors: names, shapes, dtypes, bytes");
  AddPath(diff, "path", arguments.words[0], kSideHelp)->required();
  AddPath(diff, "other", arguments.words[1], "Another of these, or a step of the root");
  diff.add_option("step", arguments.words[2], "If `other` is a step: the step to compare with (default: the newest)");
  diff.add_option("--step", arguments.steps, "The step of each side that is a root; twice: of the first, of the second")
      ->check(WholeNumber(0))
      ->allow_extra_args(false);
}

void AddExport(CLI::App& app, Action& chosen) {
  const auto [plain, exporting] = AddCommand<ExportOptions>(
      app, chosen, Export, "export", "Write one plain .safetensors file, or a folder that from_pretrained reads");
  AddPath(plain, "path", exporting.path, kSideHelp)->required();
  AddStep(plain, exporting.step, "The step to export, if the path is a root");
  plain.add_option("--out", exporting.out, "The file to write");
  CLI::Option* const folder = plain.add_option("--model-folder", exporting.model_folder,
                                               "Instead, the folder to write: weights, config, tokenizer");
  plain
      .add_option("--config-from", exporting.config_from,
                  "Of a model folder: a folder with config and tokenizer, if the checkpoint's has none")
      ->needs(folder);
  plain.add_option("--max-shard-size", exporting.max_shard_size, "Of a model folder: of each file of weights")
      ->needs(folder)
      ->capture_default_str();
  plain.add_flag("--force", exporting.force, "Replace the file if it exists")->excludes(folder);
  plain.add_option("--names", exporting.names, "Only these tensors: names, or patterns with * and ?");
  plain.add_option("--strip-prefix", exporting.strip_prefix,
                   "Only tensors below this, and named without it: model/ for torch's load_state_dict");
}

void AddYes(CLI::App& command, bool& yes) {
  command.add_flag("--yes", yes, "Do not ask; otherwise it asks if standard input is a terminal");
}

void AddCollect(CLI::App& app, Action& chosen) {
  const auto [collect, collecting] =
      AddCommand<CollectOptions>(app, chosen, Collect, "gc", "Remove old checkpoints, except pinned ones");
  collect.add_option("root", collecting.root, "A directory of checkpoints")->required();
  collect.add_option("--keep-last", collecting.keep_last, "How many of the newest to keep")
      ->required()
      ->check(WholeNumber(1));
  collect.add_option("--keep-every", collecting.keep_every, "Also keep steps divisible by this")->check(WholeNumber(1));
  collect.add_flag("--dry-run", collecting.dry_run, "Only print what would be removed; take no lock");
  AddYes(collect, collecting.yes);
}

/// What is copied, and what of it is kept there.
void AddCopying(CLI::App& command, MirrorRootOptions& options) {
  command.add_option("--every", options.every, "Only steps divisible by this")
      ->check(WholeNumber(1))
      ->capture_default_str();
  command.add_option("--keep-last", options.keep_last, "How many of the newest to keep there (default: all)")
      ->check(WholeNumber(1));
  command.add_option("--keep-every", options.keep_every, "With --keep-last: also keep steps divisible by this")
      ->check(WholeNumber(1));
  command.add_option("--bandwidth", options.bandwidth, "Copy at most so many bytes in a second: 100MB");
}

void AddMirror(CLI::App& app, Action& chosen) {
  const auto [mirror, mirroring] = AddCommand<MirrorRootOptions>(
      app, chosen, MirrorRoot, "mirror", "Copy the checkpoints of a root elsewhere as they come, beside its job");
  mirror.footer(
      "Ends with SIGTERM or Ctrl-C. Training does not wait for it. Start it again after an error: it goes on.");
  mirror.add_option("root", mirroring.root, "A directory of checkpoints")->required();
  mirror
      .add_option("target", mirroring.target,
                  "Another directory, on another disk; it is made if it is missing. Or s3://BUCKET/PREFIX, gs://, "
                  "az:// or rclone:REMOTE:PATH, by rclone")
      ->required();
  AddCopying(mirror, mirroring);
  mirror.add_flag("--once", mirroring.once, "Copy what is due now, then end");
  mirror.add_flag("--with-stdin", mirroring.with_stdin, "Once stdin is closed, copy what is due then, and end");
}

void AddFetch(CLI::App& app, Action& chosen) {
  const auto [fetch, fetching] = AddCommand<MirrorRootOptions>(
      app, chosen, Fetch, "fetch", "Bring back what a mirror has, newest first, each block checked");
  fetch.footer(
      "No job has ROOT open meanwhile. Start it again after an error: it goes on. What ROOT has already stays.");
  fetch.add_option("target", fetching.root, "What the mirror was told: a directory, s3://BUCKET/PREFIX, ...")
      ->required();
  fetch.add_option("root", fetching.target, "A directory, made if it is missing")->required();
  AddCopying(fetch, fetching);
  fetch.add_flag("--with-stdin", fetching.with_stdin, "End at once when stdin is closed");
}

/// Commands that are told steps of a root.
template <typename Run>
Command<StepsOptions> AddSteps(CLI::App& app, Action& chosen, Run run, const std::string& name,
                               const std::string& help) {
  const auto [command, options] = AddCommand<StepsOptions>(app, chosen, run, name, help);
  command.add_option("root", options.root, "A directory of checkpoints")->required();
  command.add_option("steps", options.steps, "Steps, or ranges of them: 35 10-40")->required();
  return {command, options};
}

void AddRemoveAndPin(CLI::App& app, Action& chosen) {
  const auto [remove, removing] =
      AddSteps(app, chosen, Remove, "rm", "Remove checkpoints, the newest too if it is named; refuses pinned ones");
  AddYes(remove, removing.yes);
  const auto pin = [](bool pinned) { return [pinned](const StepsOptions& options) { return Pin(options, pinned); }; };
  AddSteps(app, chosen, pin(true), "pin", "Keep checkpoints from gc, rm and a job's retention");
  AddSteps(app, chosen, pin(false), "unpin", "End the pins of checkpoints");
}

/// Without "--", options of the command would be taken for those of `cairn profile`.
bool LacksDashes(int argc, char** argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  return words.size() > 2 && words[1] == "profile" && std::ranges::find(words, "--") == words.end() &&
         std::ranges::none_of(words,
                              [](std::string_view word) { return word == "--all" || word.starts_with("--all="); });
}

int Run(int argc, char** argv) {
  CLI::App app(
      "Inspects Cairn checkpoints and the machine that writes them. Exit codes: 0 ok, 1 damaged or different, "
      "2 wrong usage or I/O error.",
      "cairn");
  app.set_version_flag("--version", std::string("cairn ") + CAIRN_VERSION);
  app.require_subcommand(1);
  Action chosen;
  AddReaders(app, chosen);
  AddDiff(app, chosen);
  AddExport(app, chosen);
  AddCollect(app, chosen);
  AddMirror(app, chosen);
  AddFetch(app, chosen);
  AddRemoveAndPin(app, chosen);
  AddTune(app, chosen);
  AddProfile(app, chosen);
  AddDoctor(app, chosen);
  AddPlace(app, chosen);
  AddPlan(app, chosen);
  AddSlack(app, chosen);
  const Status no_dashes{StatusCode::kInvalidArgument,
                         "profile: expected the command behind --, such as: cairn profile -- python train.py"};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const Status unknown = CheckWords(app, argc, argv);
    if (LacksDashes(argc, argv) && (unknown.ok() || !FirstIsUnknown(app, argv[2]))) return ReportError(no_dashes);
    if (!unknown.ok()) return ReportError(unknown);
    app.exit(error);
    return kFailed;
  }
  if (LacksDashes(argc, argv)) return ReportError(no_dashes);
  const Result<int> code = chosen();
  return code.ok() ? *code : ReportError(code.status());
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  cairn::TakeClosedStreams();
  std::signal(SIGCHLD, SIG_DFL);  // A parent that ignores it would have us not know how our children end.
  try {
    const int code = cairn::tools::Run(argc, argv);
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    return cairn::tools::ReportError(
        {cairn::StatusCode::kIoError, fmt::format("writing to standard output: {}", std::strerror(errno))});
  } catch (const std::exception& error) {
    return cairn::tools::ReportError({cairn::StatusCode::kInternal, error.what()});
  }
}
