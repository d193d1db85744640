#include "ranks/peers.h"

#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace cairn::trainer {
namespace {

using std::chrono::milliseconds;

// From the loss of a killed process's connections to its end.
constexpr std::chrono::seconds kEnding{1};
// What a rank says that ends because of others.
constexpr const char* kOthers = "others";

std::string PlaceKey(std::size_t rank) { return "place/" + std::to_string(rank); }
std::string EndKey(std::size_t rank) { return "end/" + std::to_string(rank); }

/// Readable once the process has ended; -1 where that is not possible.
int OpenProcess(int number) { return static_cast<int>(::syscall(SYS_pidfd_open, number, 0)); }

bool IsReadable(int descriptor) {
  pollfd one{.fd = descriptor, .events = POLLIN, .revents = 0};
  return descriptor >= 0 && ::poll(&one, 1, 0) > 0;
}

milliseconds Left(cairn::Deadline deadline) {
  return std::chrono::ceil<milliseconds>(deadline.when() - cairn::Deadline::Clock::now());
}

/// Whether the key is there by then; false if the store is lost.
bool Await(const cairn::KeyValueStore& store, const std::string& key, cairn::Deadline deadline) {
  const milliseconds left = Left(deadline);
  const auto there = left.count() > 0 ? store.wait(key, left) : store.check(key);
  return there.ok() && *there;
}

void Append(std::string& all, const std::string& one) { all += (all.empty() ? "" : "; ") + one; }

}  // namespace

ProcessPlace ThisProcess() {
  ProcessPlace place{.host = {}, .numbering = {}, .number = ::getpid()};
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  place.host = host.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.numbering;
  std::array<char, 64> numbers{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", numbers.data(), numbers.size());
  if (length > 0) place.numbering.append(numbers.data(), static_cast<std::size_t>(length));
  return place;
}

Peers::Peers(cairn::KeyValueStore store, int rank, int world, const ProcessPlace& place,
             std::chrono::nanoseconds patience)
    : store_(std::move(store)),
      rank_(static_cast<std::size_t>(rank)),
      patience_(patience),
      peers_(static_cast<std::size_t>(world)) {
  std::ostringstream word;
  word << place.numbering << ' ' << place.number << ' ' << place.host;
  if (const auto set = store_.set(PlaceKey(rank_), word.str()); !set.ok()) throw std::runtime_error(set.ToString());
  const auto deadline = cairn::Deadline::In(patience_);
  std::string missing;
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    peers_[other].name = "rank " + std::to_string(other);
    if (other == rank_) continue;
    if (!Await(store_, PlaceKey(other), deadline)) {
      Append(missing, peers_[other].name);
      continue;
    }
    const auto their = store_.get(PlaceKey(other));
    if (their.ok()) Watch(static_cast<int>(other), *their, place);
  }
  if (!missing.empty()) {
    throw std::runtime_error(missing + ": not started within " +
                             std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_).count()) +
                             " s");
  }
}

Peers::~Peers() {
  for (const Peer& peer : peers_) {
    if (peer.descriptor >= 0) ::close(peer.descriptor);
  }
}

void Peers::Watch(int rank, const std::string& word, const ProcessPlace& place) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::istringstream text(word);
  ProcessPlace their;
  text >> their.numbering >> their.number >> their.host;
  peer.name += " (process " + std::to_string(their.number) + " on " + their.host + ")";
  if (their.numbering == place.numbering) peer.descriptor = OpenProcess(their.number);
}

bool Peers::HasEnded(const Peer& peer) const { return IsReadable(peer.descriptor); }

bool Peers::AwaitReadable(int descriptor) const { return AwaitReadable(descriptor, cairn::Deadline::In(patience_)); }

bool Peers::AwaitReadable(int descriptor, cairn::Deadline deadline) const {
  std::vector<pollfd> waiting = {{.fd = descriptor, .events = POLLIN, .revents = 0}};
  for (const Peer& peer : peers_) {
    if (peer.descriptor >= 0) waiting.push_back({.fd = peer.descriptor, .events = POLLIN, .revents = 0});
  }
  while (true) {
    const auto left = std::clamp<std::int64_t>(Left(deadline).count(), 0, 3'600'000);
    const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(left));
    if (waiting[0].revents != 0) return true;
    if (ready > 0 || deadline.passed()) return false;
  }
}

void Peers::Say(const std::string& word) { static_cast<void>(store_.set_if_absent(EndKey(rank_), word)); }

void Peers::Leave(const std::string& why) { Say("failed: " + why); }

std::string Peers::Heard(std::size_t rank, cairn::Deadline deadline) const {
  if (!Await(store_, EndKey(rank), deadline)) return {};
  const auto word = store_.get(EndKey(rank));
  return word.ok() ? *word : std::string();
}

std::string Peers::DescribeGone() {
  Say(kOthers);
  // A connection breaks shortly before its process has ended.
  static_cast<void>(AwaitReadable(-1, cairn::Deadline::In(std::min<std::chrono::nanoseconds>(patience_, kEnding))));
  const bool known = std::ranges::any_of(peers_, [&](const Peer& peer) { return HasEnded(peer); });
  const auto deadline = cairn::Deadline::In(known ? std::chrono::nanoseconds(0) : patience_);
  std::string killed;
  std::string failed;
  std::string silent;
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    if (other == rank_) continue;
    const Peer& peer = peers_[other];
    const std::string word = Heard(other, deadline);
    if (word == kOthers) continue;
    if (!word.empty()) {
      Append(failed, peer.name + " " + word);
    } else if (HasEnded(peer)) {
      Append(killed, peer.name + " was killed or has crashed");
    } else if (!known) {
      Append(silent, peer.name + " does not answer");
    }
  }
  if (!killed.empty()) return killed;
  if (!failed.empty()) return failed;
  return silent;
}

}  // namespace cairn::trainer
