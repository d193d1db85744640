#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::tools {

// The commands. Each prints its result to stdout (with --json as JSON) and errors to stderr, and returns an exit code
// of output.h.

int List(const std::string& root, bool json);
int Show(const std::string& path, const std::optional<std::uint64_t>& step, bool json);
int Verify(const std::string& path, const std::optional<std::uint64_t>& step, bool json);
int Diff(const std::string& a, const std::string& b, bool json);

struct ExportOptions {
  std::string path;
  std::optional<std::uint64_t> step;
  std::string out;
  /// Exact names or patterns; empty: all.
  std::vector<std::string> names;
  /// Also write tied names, each as a copy.
  bool copy_tied = false;
  bool json = false;
};
int Export(const ExportOptions& options);

struct CollectOptions {
  std::string root;
  std::uint64_t keep_last = 0;
  std::uint64_t keep_every = 0;
  bool dry_run = false;
  bool json = false;
};
int Collect(const CollectOptions& options);

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
  bool json = false;
};
int Tune(const TuneOptions& options);

struct DoctorOptions {
  std::string root;
  std::string probe_time = "6s";
  bool json = false;
};
int Doctor(const DoctorOptions& options);

}  // namespace cairn::tools
