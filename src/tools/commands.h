#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/status.h"

namespace cairn::tools {

// The commands. Each prints its result to stdout (with --json as JSON), and returns an exit code of output.h. An error
// may come after some of the output.

struct ListOptions {
  std::vector<std::string> roots;
  bool json = false;
};
Result<int> List(const ListOptions& options);

/// Of a root or a checkpoint's folder; for Show also a safetensors file.
struct ReadOptions {
  std::string path;
  std::optional<std::uint64_t> step;
  bool json = false;
};
Result<int> Show(const ReadOptions& options);
Result<int> Verify(const ReadOptions& options);

struct DiffOptions {
  /// Two paths; or a root and one step (against its newest) or two.
  std::vector<std::string> sides;
  /// Of the sides that are roots: one for all of them, or one each.
  std::vector<std::uint64_t> steps;
  bool json = false;
};
Result<int> Diff(const DiffOptions& options);

struct ExportOptions {
  std::string path;
  std::optional<std::uint64_t> step;
  /// The file to write, or, instead, the folder.
  std::string out;
  std::string model_folder;
  /// Of a model folder: where config and tokenizer are, if not in the checkpoint's folder.
  std::string config_from;
  /// Of a model folder: of one file.
  std::string max_shard_size = "50GB";
  /// Exact names or patterns; empty: all.
  std::vector<std::string> names;
  /// Only tensors below this prefix, named without it. Empty: all, as they are named.
  std::string strip_prefix;
  /// Replace an existing file.
  bool force = false;
  bool json = false;
};
Result<int> Export(const ExportOptions& options);
/// The part of Export that writes a folder.
Result<int> ExportModelFolder(const ExportOptions& options);

struct CollectOptions {
  std::string root;
  std::uint64_t keep_last = 0;
  std::uint64_t keep_every = 0;
  bool dry_run = false;
  /// Do not ask.
  bool yes = false;
  bool json = false;
};
Result<int> Collect(const CollectOptions& options);

struct MirrorRootOptions {
  std::string root;
  std::string target;
  std::uint64_t every = 1;
  std::uint64_t keep_last = 0;
  std::uint64_t keep_every = 0;
  /// Bytes in a second: "100MB". Empty: no limit.
  std::string bandwidth;
  /// End once nothing is due; or do so once stdin is closed, or can be read: with both, at once.
  bool once = false;
  bool with_stdin = false;
  bool json = false;
  // No flags: see MirrorOptions.
  bool brings_back = false;
  std::chrono::seconds wait{2};
};
Result<int> MirrorRoot(const MirrorRootOptions& options);
/// The way back: `root` is what has the copies, a directory or a place in an object store; `target` the root that gets
/// them.
Result<int> Fetch(const MirrorRootOptions& options);

struct StepsOptions {
  std::string root;
  /// Steps and ranges: "35", "10-40".
  std::vector<std::string> steps;
  /// Do not ask.
  bool yes = false;
  bool json = false;
};
Result<int> Remove(const StepsOptions& options);
/// Pins, or ends the pins.
Result<int> Pin(const StepsOptions& options, bool pinned);

/// As given on the command line; empty if not given.
struct TuneOptions {
  std::string root;
  std::string state_bytes;
  std::string iteration_time;
  std::string update_time = "0";
  std::string slowdown;
  std::string mtbf;
  std::string restart_time = "0";
  std::string memory;
  std::string device = "host";
  std::optional<double> training_cores;
  std::string copy_rate;
  std::string write_rate;
  std::string probe_time = "6s";
  /// Of `cairn profile`.
  std::string profile;
  bool json = false;
};
Result<int> Tune(const TuneOptions& options);

/// As given on the command line; empty if not given.
struct ProfileOptions {
  std::vector<std::string> command;
  std::string out = "profile.json";
  std::optional<double> cores;
  std::optional<double> least_cores;
  std::string memory;
  std::string least_memory = "64MiB";
  bool cores_only = false;
  std::string pattern;
  /// What the pattern's match is: "line", "counter" or "rate".
  std::string means;
  std::uint64_t warm_up = 5;
  std::uint64_t iterations = 20;
  std::string least_time = "2s";
  std::string timeout = "2m";
  /// Files whose page cache is dropped before each run.
  std::vector<std::string> data;
  /// "1.5" or "1.5:512MiB".
  std::vector<std::string> checks;
  bool json = false;

  // By Synergy's names (docs/coming-from.md): what starts the job under torchrun, and what is handed on to it.
  std::string job_name;
  std::optional<int> num_gpus;
  std::optional<int> nodes;
  std::optional<int> node_rank;
  std::string master_address;
  std::optional<int> master_port;
  std::optional<std::uint64_t> batch;
  std::optional<std::uint64_t> workers;
  std::optional<std::uint64_t> max_iterations;
  /// Refused, with the line that does the same by hand.
  std::string docker_image;
  std::string container_mount;

  /// A file of jobs, one a line, instead of a command.
  std::string all;
};
Result<int> ProfileJob(const ProfileOptions& options);
/// Each job of `all`, and one table.
Result<int> ProfileJobs(const ProfileOptions& options);

struct DoctorOptions {
  /// May be empty if GPUs are examined.
  std::string root;
  /// Memory on each GPU, and pinned, with which they are examined. 0: they are not.
  std::uint64_t gpu_bytes = 0;
  std::string probe_time = "6s";
  bool json = false;
};
Result<int> Doctor(const DoctorOptions& options);

/// As given on the command line. Who this rank is, the environment says.
struct PeersOptions {
  /// Of rank 0: the topology to write.
  std::string out = "topology.json";
  /// Of this rank; by default the environment's, or the host.
  std::string domain;
  /// Where rank 0 listens; by default MASTER_PORT, or the next one under torchrun.
  std::optional<int> port;
  std::string pair_time = "1s";
  std::string timeout = "60s";
  bool json = false;
};
Result<int> MeasurePeers(const PeersOptions& options);

struct PlaceOptions {
  /// A file.
  std::string topology;
  /// What is given here precedes the file's; empty if not given.
  std::string state_bytes;
  std::optional<std::size_t> stages;
  std::string gradient_bytes;
  std::string activation_bytes;
  std::uint64_t seed = 1;
  /// Placements to price; by default as many as take some seconds.
  std::optional<std::size_t> evaluations;
  bool json = false;
};
Result<int> Place(const PlaceOptions& options);

struct SlackOptions {
  /// Of all ranks of one run.
  std::vector<std::string> files;
  /// See docs/planning.md: records of energy, or speeds.
  std::vector<std::string> energy;
  std::optional<double> waiting_watts;
  bool json = false;
};
Result<int> Slack(const SlackOptions& options);

struct PlanOptions {
  /// A JSON file of shapes.
  std::string model;
  /// Pipeline, tensor and data parallel ranks: "4,2,1".
  std::string from;
  std::string to;
  int gpus_per_host = 8;
  bool json = false;
};
Result<int> PlanLayouts(const PlanOptions& options);

}  // namespace cairn::tools
