#include "bench/emulation/child_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

constexpr int kAboveAll = 128;  // No child gets a number from here on.

}  // namespace

ChildFiles::ChildFiles() { ::posix_spawn_file_actions_init(&actions_); }
ChildFiles::~ChildFiles() { ::posix_spawn_file_actions_destroy(&actions_); }

void ChildFiles::Log(const std::string& path) {
  ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions_, 1, path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&actions_, 1, 2);
}

Status ChildFiles::Give(const UniqueFd& fd, int as) {
  // Duplicated above all numbers that the child gets, so that none is overwritten before its turn.
  UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kAboveAll));
  if (!high.valid()) return ErrnoStatus(errno, "duplicating a descriptor");
  ::posix_spawn_file_actions_adddup2(&actions_, high.get(), as);
  kept_.push_back(std::move(high));
  return {};
}

void ChildFiles::CloseFrom(int fd) { ::posix_spawn_file_actions_addclosefrom_np(&actions_, fd); }

Result<pid_t> Spawn(std::vector<std::string> arguments, const ChildFiles& files, Session session) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  if (session == Session::kOwn) ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t child = -1;
  const int error = ::posix_spawn(&child, pointers[0], files.get(), &attributes, pointers.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, "starting " + arguments[0]);
  return child;
}

std::string ProgramBesideThis(const std::string& name) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name;
}

}  // namespace cairn::bench
