#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The descriptors of a child: these and no other of the parent's, such as a pipe that a reader waits on.
class ChildFiles {
 public:
  ChildFiles();
  ~ChildFiles();
  ChildFiles(const ChildFiles&) = delete;
  ChildFiles& operator=(const ChildFiles&) = delete;

  /// Nothing to read, and a file to which all that the child prints is appended.
  void Log(const std::string& path);
  /// The child gets a duplicate of it as that number, less than 128.
  Status Give(const UniqueFd& fd, int as);
  /// After the last one given.
  void CloseFrom(int fd);
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
  std::vector<UniqueFd> kept_;
};

enum class Session : std::uint8_t {
  kShared,
  kOwn,  ///< The child outlives its parent's session.
};
/// Starts a program in the calling thread's network namespace. The first argument is its path.
[[nodiscard]] Result<pid_t> Spawn(std::vector<std::string> arguments, const ChildFiles& files, Session session);
/// The path of the program of that name in the folder of this process's own.
[[nodiscard]] std::string ProgramBesideThis(const std::string& name);

}  // namespace cairn::bench
