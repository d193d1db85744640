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
// What rank 0 was started with.
constexpr const char* kSettings = "settings";

std::string PlaceKey(std::size_t rank) { return "place/" + std::to_string(rank); }
std::string EndKey(std::size_t rank) { return "end/" + std::to_string(rank); }

/// Readable once the process has ended; -1 where that is not possible.
int OpenProcess(int number) { return static_cast<int>(::syscall(SYS_pidfd_open, number, 0)); }

bool IsReadable(int descriptor, milliseconds within = milliseconds(0)) {
  pollfd one{.fd = descriptor, .events = POLLIN, .revents = 0};
  return descriptor >= 0 && ::poll(&one, 1, static_cast<int>(within.count())) > 0;
}

milliseconds Left(cairn::Deadline deadline) {
  return std::chrono::ceil<milliseconds>(deadline.when() - cairn::Deadline::Clock::now());
}

/// Whether the key is there by then.
cairn::Result<bool> Await(const cairn::KeyValueStore& store, const std::string& key, cairn::Deadline deadline) {
  const milliseconds left = Left(deadline);
  return left.count() > 0 ? store.wait(key, left) : store.check(key);
}

template <typename T>
T Take(cairn::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
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
  TellPlace(place);
  const auto deadline = cairn::Deadline::In(patience_);
  std::string missing;
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    peers_[other].name = "rank " + std::to_string(other);
    if (other == rank_) continue;
    if (Take(Await(store_, PlaceKey(other), deadline))) {
      Watch(static_cast<int>(other), Take(store_.get(PlaceKey(other))), place);
    } else {
      Append(missing, peers_[other].name);
    }
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

void Peers::TellPlace(const ProcessPlace& place) {
  std::ostringstream message;
  message << place.numbering << ' ' << place.number << ' ' << place.host << ' ' << peers_.size();
  if (Take(store_.set_if_absent(PlaceKey(rank_), message.str()))) return;
  const std::string found = Take(store_.get(PlaceKey(rank_)));
  if (found == message.str()) return;
  std::istringstream text(found);
  ProcessPlace their;
  text >> their.numbering >> their.number >> their.host;
  throw std::runtime_error("rank " + std::to_string(rank_) + " is process " + std::to_string(their.number) + " on " +
                           their.host +
                           " already: two processes have this RANK, or this is the store of an earlier job");
}

void Peers::Watch(int rank, const std::string& message, const ProcessPlace& place) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::istringstream text(message);
  ProcessPlace their;
  std::size_t world = 0;
  text >> their.numbering >> their.number >> their.host >> world;
  peer.name += " (process " + std::to_string(their.number) + " on " + their.host + ")";
  if (world != peers_.size()) {
    throw std::runtime_error(peer.name + ": expected this rank's WORLD_SIZE, " + std::to_string(peers_.size()) +
                             ", found " + std::to_string(world));
  }
  if (their.numbering == place.numbering) peer.descriptor = OpenProcess(their.number);
}

void Peers::ExpectAlike(const Settings& settings) {
  std::string ours;
  for (const auto& [name, value] : settings) ours += name + " " + value + "\n";
  if (rank_ == 0) {
    if (const auto set = store_.set(kSettings, ours); !set.ok()) throw std::runtime_error(set.ToString());
    return;
  }
  if (!Take(Await(store_, kSettings, cairn::Deadline::In(patience_)))) {
    throw std::runtime_error(peers_[0].name + " does not answer");
  }
  std::istringstream expected(Take(store_.get(kSettings)));
  std::istringstream found(ours);
  std::string one;
  std::string other;
  while (std::getline(expected, one) && std::getline(found, other)) {
    if (one != other) throw std::runtime_error("expected rank 0's " + one + ", found " + other);
  }
}

bool Peers::HasEnded(const Peer& peer) const { return IsReadable(peer.descriptor); }

bool Peers::AwaitReadable(int descriptor) const {
  if (AwaitReadable(descriptor, cairn::Deadline::In(patience_))) return true;
  // A rank may end as soon as it has sent its part of the last operation, before that has arrived here.
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return HasEnded(peer); }) &&
         IsReadable(descriptor, kEnding);
}

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

void Peers::Say(const std::string& message) { static_cast<void>(store_.set_if_absent(EndKey(rank_), message)); }

void Peers::Leave(const std::string& why) { Say("failed: " + why); }

cairn::Result<std::string> Peers::Heard(std::size_t rank, cairn::Deadline deadline) const {
  const auto there = Await(store_, EndKey(rank), deadline);
  if (!there.ok()) return there.status();
  if (!*there) return std::string();
  return store_.get(EndKey(rank));
}

std::string Peers::DescribeGone() {
  Say(kOthers);
  // A connection breaks shortly before its process has ended.
  static_cast<void>(AwaitReadable(-1, cairn::Deadline::In(std::min<std::chrono::nanoseconds>(patience_, kEnding))));
  const bool known = std::ranges::any_of(peers_, [&](const Peer& peer) { return HasEnded(peer); });
  const auto deadline = cairn::Deadline::In(known ? std::chrono::nanoseconds(0) : patience_);
  std::string lost;
  std::string killed;
  std::string failed;
  std::string silent;
  for (std::size_t other = 0; other < peers_.size(); ++other) {
    if (other == rank_) continue;
    const Peer& peer = peers_[other];
    const auto message = Heard(other, deadline);
    if (!message.ok()) lost = message.status().message();
    if (message.ok() && *message == kOthers) continue;
    if (message.ok() && !message->empty()) {
      Append(failed, peer.name + " " + *message);
    } else if (HasEnded(peer)) {  // Without the store it is not known whether it has said why.
      Append(killed, peer.name + (message.ok() ? " was killed or has crashed" : " has ended: see its output"));
    } else if (!known) {
      Append(silent, peer.name + " does not answer");
    }
  }
  if (!killed.empty()) return killed;
  if (!failed.empty()) return failed;
  if (!lost.empty()) return "the store of the ranks is lost, and which of them are gone is not known: " + lost;
  return silent;
}

}  // namespace cairn::trainer
