#include "support/hung_fuse.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
namespace {

constexpr std::uint64_t kFileBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kCached = 3600;
constexpr int kLongest = 10'000;
// The bit of a node's number that says that it is a folder.
constexpr std::uint64_t kFolder = std::uint64_t{1} << 32;

fuse_attr Attributes(std::uint64_t node) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.nlink = 1;
  const bool folder = node == FUSE_ROOT_ID || (node & kFolder) != 0;
  attributes.mode = folder ? S_IFDIR | 0755 : S_IFREG | 0644;
  attributes.size = folder ? 0 : kFileBytes;
  attributes.blksize = 4096;
  return attributes;
}

class Server {
 public:
  Server(int device, int control, const std::atomic<std::uint32_t>& held)
      : device_(device), control_(control), held_(held), request_(kFileBytes + 65536) {}

  void Run() {
    while (true) {
      std::array<pollfd, 2> ready = {pollfd{.fd = device_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = control_, .events = POLLIN, .revents = 0}};
      const int count = ::poll(ready.data(), ready.size(), waiting_.empty() ? -1 : kLongest);
      char byte = 0;
      if (ready[1].revents != 0 && ::read(control_, &byte, 1) != 1) return;
      if (count == 0 || ready[1].revents != 0) {
        for (const auto& answer : std::exchange(waiting_, {})) answer();
      }
      if (ready[0].revents == 0) continue;
      const ssize_t got = ::read(device_, request_.data(), request_.size());
      if (got < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT) return;  // Unmounted.
      if (got > 0) Serve();
    }
  }

 private:
  void Serve() {
    fuse_in_header header{};
    std::memcpy(&header, request_.data(), sizeof header);
    const char* argument = request_.data() + sizeof header;
    if (header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET || header.opcode == FUSE_INTERRUPT) return;
    std::function<void()> answer = Answer(header, argument);
    if (header.opcode != held_.load()) return answer();
    waiting_.push_back(std::move(answer));
  }

  std::function<void()> Answer(const fuse_in_header& header, const char* argument) {
    switch (header.opcode) {
      case FUSE_INIT: {
        const auto* asked = reinterpret_cast<const fuse_init_in*>(argument);
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = FUSE_KERNEL_MINOR_VERSION;
        out.max_readahead = asked->max_readahead;
        out.max_write = kFileBytes;
        out.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO;
        return Reply(header, out);
      }
      case FUSE_LOOKUP:
        if (std::string_view(argument).starts_with("new")) return ReplyBytes(header, -ENOENT, {});
        return Reply(header, Entry(argument));
      case FUSE_MKDIR:
        return Reply(header, Entry(argument + sizeof(fuse_mkdir_in)));
      case FUSE_GETATTR:
      case FUSE_SETATTR: {
        fuse_attr_out out{};
        out.attr_valid = kCached;
        out.attr = Attributes(header.nodeid);
        return Reply(header, out);
      }
      case FUSE_OPEN:
      case FUSE_OPENDIR:
        return Reply(header, fuse_open_out{});
      case FUSE_READ: {
        const auto* asked = reinterpret_cast<const fuse_read_in*>(argument);
        return ReplyBytes(header, 0, std::string(asked->size, '\0'));
      }
      case FUSE_WRITE: {
        const auto* asked = reinterpret_cast<const fuse_write_in*>(argument);
        return Reply(header, fuse_write_out{.size = asked->size, .padding = 0});
      }
      case FUSE_POLL:
        return Reply(header, fuse_poll_out{.revents = POLLIN | POLLOUT, .padding = 0});
      case FUSE_FLUSH:
      case FUSE_FSYNC:
      case FUSE_FSYNCDIR:
      case FUSE_FALLOCATE:
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_RENAME:
      case FUSE_RENAME2:
      case FUSE_UNLINK:
      case FUSE_RMDIR:
        return ReplyBytes(header, 0, {});
      default:
        return ReplyBytes(header, -ENOSYS, {});
    }
  }

  static fuse_entry_out Entry(std::string_view name) {
    fuse_entry_out out{};
    const auto hash = static_cast<std::uint32_t>(std::hash<std::string_view>()(name)) | 2U;
    out.nodeid = hash | (name.ends_with("folder") ? kFolder : 0);
    out.entry_valid = kCached;
    out.attr_valid = kCached;
    out.attr = Attributes(out.nodeid);
    return out;
  }

  template <typename Body>
  std::function<void()> Reply(const fuse_in_header& request, const Body& body) {
    return ReplyBytes(request, 0, std::string(reinterpret_cast<const char*>(&body), sizeof body));
  }
  std::function<void()> ReplyBytes(const fuse_in_header& request, int error, std::string body) {
    return [device = device_, unique = request.unique, error, body = std::move(body)] {
      const auto bytes = static_cast<std::uint32_t>(sizeof(fuse_out_header) + body.size());
      fuse_out_header header{.len = bytes, .error = error, .unique = unique};
      const std::array<iovec, 2> parts = {iovec{.iov_base = &header, .iov_len = sizeof header},
                                          iovec{.iov_base = const_cast<char*>(body.data()), .iov_len = body.size()}};
      static_cast<void>(::writev(device, parts.data(), parts.size()));  // ENOENT: interrupted meanwhile.
    };
  }

  const int device_;
  const int control_;
  const std::atomic<std::uint32_t>& held_;
  std::vector<char> request_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace

HungFuse::HungFuse(std::string directory) : directory_(std::move(directory)) {
  const UniqueFd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  const std::string options = "rootmode=40000,user_id=0,group_id=0,fd=" + std::to_string(device.get());
  if (!device.valid() || ::mount("hung", directory_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    refusal_ = "a FUSE filesystem may not be mounted here: " + std::generic_category().message(errno);
    return;
  }
  opcode_ = static_cast<std::atomic<std::uint32_t>*>(
      ::mmap(nullptr, sizeof *opcode_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::array<int, 2> control{};
  if (::pipe2(control.data(), O_CLOEXEC) != 0) std::abort();
  server_ = ::fork();
  if (server_ == 0) {
    ::close(control[1]);
    Server(device.get(), control[0], *opcode_).Run();
    ::umount2(directory_.c_str(), MNT_DETACH);
    ::_exit(0);
  }
  to_server_ = UniqueFd(control[1]);
  ::close(control[0]);
}

HungFuse::~HungFuse() {
  if (server_ < 0) return;
  to_server_.Reset();
  ::waitpid(server_, nullptr, 0);
  ::munmap(opcode_, sizeof *opcode_);
}

void HungFuse::Hold(std::uint32_t opcode) { opcode_->store(opcode); }

void HungFuse::Release() {
  opcode_->store(0);
  static_cast<void>(::write(to_server_.get(), "x", 1));
}

}  // namespace cairn
