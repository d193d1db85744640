#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::tools {

// The commands. Each prints its outcome to stdout (as JSON where asked for), complaints to stderr, and returns the exit
// code of output.h.

int List(const std::string& root, bool json);
int Show(const std::string& path, const std::optional<std::uint64_t>& step, bool json);
int Verify(const std::string& path, const std::optional<std::uint64_t>& step, bool json);
int Diff(const std::string& a, const std::string& b, bool json);

struct ExportOptions {
  std::string path;
  std::optional<std::uint64_t> step;
  std::string out;
  std::vector<std::string> names;  ///< Exact or patterns; empty: all.
  bool copy_tied = false;          ///< Write tied names too, each as a copy.
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

}  // namespace cairn::tools
