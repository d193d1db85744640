#include "bench/gemini/peer_address.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

using nlohmann::json;

std::string PathIn(const std::string& directory) { return directory + "/gemini-peer"; }

struct flock WholeFile() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

}  // namespace

Result<PeerNotice> PeerNotice::Publish(const std::string& directory, const PeerAddress& address) {
  const std::string path = PathIn(directory);
  const std::string fresh = path + "." + std::to_string(::getpid());
  UniqueFd file(::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + fresh);
  const std::string text = json{
      {"address", address.address},
      {"port", address.port},
      {"training_address", address.training_address},
      {"network", address.network},
      {"state_bytes",
       address.state_bytes}}.dump();
  if (::write(file.get(), text.data(), text.size()) < 0) return ErrnoStatus(errno, "writing " + fresh);
  const struct flock whole = WholeFile();
  if (::fcntl(file.get(), F_SETLK, &whole) != 0) return ErrnoStatus(errno, "locking " + fresh);
  if (::rename(fresh.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "renaming " + fresh);
  return PeerNotice(path, std::move(file));
}

bool PeerNotice::Stands() const {
  struct stat mine {};
  struct stat found {};
  return ::fstat(file_.get(), &mine) == 0 && ::stat(path_.c_str(), &found) == 0 && mine.st_ino == found.st_ino;
}

Result<std::optional<PeerAddress>> FindPeer(const std::string& directory) {
  const std::string path = PathIn(directory);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return std::optional<PeerAddress>();
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  struct flock holder = WholeFile();
  if (::fcntl(file.get(), F_GETLK, &holder) != 0) return ErrnoStatus(errno, "asking for the lock of " + path);
  if (holder.l_type == F_UNLCK) return std::optional<PeerAddress>();
  std::ifstream text(path);
  const json found = json::parse(text, nullptr, false);
  if (!found.is_object()) return Error(StatusCode::kCorrupt, "{}: expected a peer's address", path);
  return std::optional<PeerAddress>({.address = found.value("address", ""),
                                     .port = found.value("port", 0),
                                     .training_address = found.value("training_address", ""),
                                     .network = found.value("network", ""),
                                     .state_bytes = found.value("state_bytes", std::uint64_t{0})});
}

}  // namespace cairn::bench
