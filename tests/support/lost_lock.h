#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>

namespace cairn {

/// Calls `call` with each descriptor of this process on the file. Returns how often it returned true.
[[nodiscard]] inline int CountDescriptors(const std::string& path, const std::function<bool(int fd)>& call) {
  struct stat file {};
  struct stat found {};
  int count = 0;
  if (::stat(path.c_str(), &file) != 0) return 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (::fstat(fd, &found) != 0 || found.st_dev != file.st_dev || found.st_ino != file.st_ino) continue;
    if (call(fd)) ++count;
  }
  return count;
}

/// Releases this process's locks on the file behind their owners' backs, as an NFS server does that restarts and
/// forgets them. Returns how many open files could have had one.
[[nodiscard]] inline int DropLock(const std::string& path) {
  return CountDescriptors(path, [](int fd) {
    struct flock released {};
    released.l_type = F_UNLCK;
    released.l_whence = SEEK_SET;
    return ::fcntl(fd, F_OFD_SETLK, &released) == 0;
  });
}

/// Gives one of those open files the lock back.
[[nodiscard]] inline bool TakeLockAgain(const std::string& path) {
  return CountDescriptors(path, [](int fd) {
           struct flock wanted {};
           wanted.l_type = F_WRLCK;
           wanted.l_whence = SEEK_SET;
           return ::fcntl(fd, F_OFD_SETLK, &wanted) == 0;
         }) > 0;
}

}  // namespace cairn
