#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// The kernel takes no smaller quota: 1 ms in each period.
constexpr double kLeastCores = 0.05;

struct GroupLimits {
  /// CPU time per second; may be a fraction, at least kLeastCores. 0: not limited.
  double cores = 0;
  /// Page cache included. 0: not limited.
  std::uint64_t memory_bytes = 0;
};

/// A control group (version 2, or version 1's "cpu" and "memory") of one command, made where this process's own group
/// permits it. Not thread-safe.
class ControlGroup {
 public:
  /// Unsupported, with the reason, if there are no control groups or they cannot be changed. `root` replaces "/" in
  /// tests.
  [[nodiscard]] static Result<std::unique_ptr<ControlGroup>> Make(const GroupLimits& limits,
                                                                  const std::string& root = {});
  /// As KillAll; gives the memory that files take in the page cache back, so that the next group pays for it again; and
  /// removes the group.
  ~ControlGroup();
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  /// Moves the calling process, which may be a forked child: it only writes to descriptors. 0, or errno.
  [[nodiscard]] int Join() const;
  /// Kills every process of the group and waits until they are gone.
  void KillAll();
  /// The most memory it used, page cache included; 0: unknown.
  [[nodiscard]] std::uint64_t peak_bytes() const;
  /// Whether the kernel killed a process because the memory did not suffice.
  [[nodiscard]] bool killed_for_memory() const;

 private:
  struct Folder {
    std::string path;
    bool version2 = false;
    // Which of the controllers' limits are set here: both where they share a hierarchy.
    bool cpu = false;
    bool memory = false;
    UniqueFd joins;
  };
  ControlGroup() = default;
  Status Add(const std::string& controller, const std::string& name, const std::string& root);
  [[nodiscard]] Status Limit(const GroupLimits& limits) const;

  std::vector<Folder> folders_;
};

}  // namespace cairn
