#include "group/store_link.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "base/uuid.h"
#include "group/solo_group.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

// One wait in the store: c10d prints a warning after each.
constexpr milliseconds kLongestWait = std::chrono::hours(1);
// One wait while the group opens: it may be closed meanwhile.
constexpr milliseconds kOpeningWait = std::chrono::seconds(1);
// Between rank 0's checks for a message that was counted and does not come.
constexpr milliseconds kGap = std::chrono::seconds(1);
// In a hello's id, before the size of the group.
constexpr std::string_view kOfSize = " of ";
// Begins an answer that is no session.
constexpr char kRefused = '!';
// The longest pause between rank 0's checks for the successor of a rank that has not taken its answer.
constexpr milliseconds kSuccessor{100};
// The longest pause before a full store is tried again.
constexpr milliseconds kFull{250};
// Until a listener that has not ended is woken.
constexpr milliseconds kBlocked{50};
// Entries of the log that the last rank removes: those written while others left.
constexpr std::int64_t kLeftovers = 32;

Result<bool> Put(const KeyValueStore& store, const std::string& key, const StoreEntry& entry) {
  return store.set_if_absent(key, PackEntry(entry));
}

const Status& StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

std::string Seconds(std::chrono::nanoseconds span) {
  return fmt::format("{:g} s", std::chrono::duration<double>(span).count());
}

/// A rank's end of a StoreLink, as its owner sees it.
class LinkedGroup : public Group {
 public:
  explicit LinkedGroup(std::shared_ptr<StoreLink> link) : process_(::getpid()), link_(std::move(link)) {}
  ~LinkedGroup() override {
    if (::getpid() == process_) {
      link_->Close();
    } else {  // The threads are the parent's: their handles may be neither joined nor destroyed here.
      static_cast<void>(new (std::nothrow) std::shared_ptr<StoreLink>(link_));
    }
  }
  LinkedGroup(const LinkedGroup&) = delete;
  LinkedGroup& operator=(const LinkedGroup&) = delete;

  [[nodiscard]] int rank() const override { return link_->group().rank(); }
  [[nodiscard]] int size() const override { return link_->group().size(); }
  void Send(const std::string& key, std::string message) override { link_->group().Send(key, std::move(message)); }
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override {
    link_->group().Collect(key, deadline, std::move(on_message), std::move(end));
  }
  void Announce(const std::string& key, std::string message) override {
    link_->group().Announce(key, std::move(message));
  }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override {
    link_->group().Await(key, deadline, std::move(on_announced));
  }

 private:
  const pid_t process_;
  const std::shared_ptr<StoreLink> link_;
};

}  // namespace

Result<std::shared_ptr<Group>> MakeStoreGroup(StoreGroupOptions options,
                                              std::function<Result<KeyValueStore>()> connect) {
  if (options.rank < 0 || options.rank >= options.size) {
    return Error(StatusCode::kInvalidArgument, "group {}: expected a rank from 0 to {}, found {}", options.name,
                 options.size - 1, options.rank);
  }
  if (options.size == 1) return std::shared_ptr<Group>(std::make_shared<SoloGroup>());
  const auto link = std::make_shared<StoreLink>(std::move(options), std::move(connect));
  CAIRN_RETURN_IF_ERROR(link->Start());
  return std::shared_ptr<Group>(std::make_shared<LinkedGroup>(link));
}

StoreLink::StoreLink(StoreGroupOptions options, Connect connect)
    : options_(std::move(options)),
      connect_(std::move(connect)),
      leads_(options_.rank == 0),
      group_(options_.rank, options_.size),
      readers_(options_.size - 1) {}

// The threads.

Status StoreLink::StartServing(const char* name, Served StoreLink::*served, Status (StoreLink::*work)()) {
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(
      (this->*served).thread, StartThread(name, [self = shared_from_this(), served, work] {
        StoreLink& link = *self;
        if (const Status status = (link.*work)(); !status.ok()) {
          link.group_.Fail(Error(status.code(), "group {}: {}", link.options_.name, status.message()));
        }
        MutexLock ending(link.mutex_);
        (link.*served).running = false;
        link.ended_.NotifyAll();
      }));
  (this->*served).running = true;
  return {};
}

bool StoreLink::HasEnded(const Served StoreLink::*served, Deadline deadline) {
  MutexLock lock(mutex_);
  while ((this->*served).running && !deadline.passed()) ended_.WaitUntil(mutex_, deadline);
  return !(this->*served).running;
}

void StoreLink::Close() {
  const Deadline deadline = Deadline::In(options_.close_timeout);
  {
    MutexLock lock(mutex_);
    close_by_ = deadline.when();
    ended_.NotifyAll();  // A thread that pauses because the store is full may have to end.
  }
  group_.Stop();
  if (!HasEnded(&StoreLink::sender_, deadline) || !HasEnded(&StoreLink::listener_, deadline)) {
    MutexLock lock(mutex_);
    left_behind_ = shared_from_this();
    return;
  }
  Served sender;
  Served listener;
  {
    MutexLock lock(mutex_);
    std::swap(sender, sender_);
    std::swap(listener, listener_);
  }
  sender.thread.join();
  if (listener.thread.joinable()) listener.thread.join();
}

template <typename Call>
auto StoreLink::TryWhileFull(const Call& call, Deadline until) {
  for (milliseconds pause(1);; pause = std::min(2 * pause, kFull)) {
    auto result = call();
    if (StatusOf(result).code() != StatusCode::kNoSpace) return result;
    const Deadline next = Deadline::In(pause);
    MutexLock lock(mutex_);
    // Before the last moment, so that Close sees the thread end.
    if (next.when() >= std::min(until.when(), close_by_.load())) return result;
    ended_.WaitUntil(mutex_, next);
  }
}

KeyValueStore StoreLink::WhileFull(const KeyValueStore& store, Deadline until) {
  const auto patient = [this, until](auto call) {
    return [this, until, call = std::move(call)](const auto&... arguments) {
      return this->TryWhileFull([&] { return call(arguments...); }, until);
    };
  };
  return {.set = patient(store.set),
          .set_if_absent = patient(store.set_if_absent),
          .get = patient(store.get),
          .check = patient(store.check),
          .wait = patient(store.wait),
          .add = patient(store.add),
          .erase = patient(store.erase)};
}

Status StoreLink::Send() {
  const Deadline opened_by = Deadline::In(options_.open_timeout);
  CAIRN_ASSIGN_OR_RETURN(const KeyValueStore connected, TryWhileFull(connect_, opened_by));
  CAIRN_RETURN_IF_ERROR(Meet(WhileFull(connected, opened_by), opened_by));
  const KeyValueStore store = WhileFull(connected, Deadline::Infinite());
  CAIRN_RETURN_IF_ERROR(StartServing("cairn-listen", &StoreLink::listener_, &StoreLink::Listen));
  while (true) {
    Result<StoreGroup::Message> message = group_.NextMessage(leads_ ? Deadline::In(kGap) : Deadline::Infinite());
    if (message.ok()) {
      CAIRN_RETURN_IF_ERROR(
          Append(store, {StoreEntry::Kind::kMessage, 0, std::move(message->key), std::move(message->text)}));
    } else if (message.status().code() == StatusCode::kDeadlineExceeded) {
      CAIRN_RETURN_IF_ERROR(FillGap(store));
    } else {
      return Leave(store);
    }
  }
}

Status StoreLink::Listen() {
  CAIRN_ASSIGN_OR_RETURN(const KeyValueStore connected, TryWhileFull(connect_, Deadline::Infinite()));
  const KeyValueStore store = WhileFull(connected, Deadline::Infinite());
  while (group_.WaitUntilWanted(Deadline::Infinite()).ok()) {
    CAIRN_ASSIGN_OR_RETURN(const bool there, store.wait(AwaitedKey(), kLongestWait));
    if (there) CAIRN_RETURN_IF_ERROR(leads_ ? ReadInbox(store) : ReadLog(store));
  }
  return {};
}

// Opening.

Status StoreLink::Meet(const KeyValueStore& store, Deadline deadline) {
  return leads_ ? MeetAsCoordinator(store, deadline) : MeetCoordinator(store, deadline);
}

Status StoreLink::MeetCoordinator(const KeyValueStore& store, Deadline deadline) {
  const std::string id = MakeUuid() + std::string(kOfSize) + std::to_string(options_.size);
  const std::string hello = HelloKey(options_.rank);
  CAIRN_RETURN_IF_ERROR(store.set(hello, id));
  const Result<bool> welcomed = Await(store, WelcomeKey(id), deadline);
  if (!welcomed.ok() || !*welcomed) {
    static_cast<void>(store.erase(hello));
    CAIRN_RETURN_IF_ERROR(welcomed.status());
    return Error(StatusCode::kDeadlineExceeded, "not opened by rank 0 within {}", Seconds(options_.open_timeout));
  }
  CAIRN_ASSIGN_OR_RETURN(session_, store.get(WelcomeKey(id)));
  CAIRN_RETURN_IF_ERROR(store.erase(WelcomeKey(id)));
  if (session_.starts_with(kRefused)) return {StatusCode::kFailedPrecondition, session_.substr(1)};
  return {};
}

Status StoreLink::MeetAsCoordinator(const KeyValueStore& store, Deadline deadline) {
  session_ = MakeUuid();
  for (int rank = 1; rank < options_.size; ++rank) {
    CAIRN_ASSIGN_OR_RETURN(const bool came, Await(store, HelloKey(rank), deadline));
    if (!came) {
      CAIRN_ASSIGN_OR_RETURN(std::vector<int> missing, TakeBack(store));
      for (int other = rank; other < options_.size; ++other) {
        CAIRN_ASSIGN_OR_RETURN(const bool there, store.check(HelloKey(other)));
        if (!there) missing.push_back(other);
      }
      return Late(missing);
    }
    CAIRN_RETURN_IF_ERROR(Welcome(store, rank));
    // A refusal ends the opening, unless that rank is dead.
    if (!welcomed_[rank].refusal.ok()) CAIRN_RETURN_IF_ERROR(WelcomeSuccessors(store, deadline));
  }
  return WelcomeSuccessors(store, deadline);
}

Status StoreLink::Welcome(const KeyValueStore& store, int rank) {
  Welcomed welcomed;
  CAIRN_ASSIGN_OR_RETURN(welcomed.id, store.get(HelloKey(rank)));
  CAIRN_RETURN_IF_ERROR(store.erase(HelloKey(rank)));
  const std::string& id = welcomed.id;
  const auto size = id.find(kOfSize);  // Earlier versions did not say it.
  if (size != std::string::npos && id.substr(size + kOfSize.size()) != std::to_string(options_.size)) {
    welcomed.refusal = Error(StatusCode::kFailedPrecondition, "rank 0 opened it with {} ranks, rank {} with {}",
                             options_.size, rank, id.substr(size + kOfSize.size()));
  }
  welcomed_[rank] = welcomed;
  return store.set(WelcomeKey(id), welcomed.refusal.ok() ? session_ : kRefused + welcomed.refusal.message());
}

Status StoreLink::WelcomeSuccessors(const KeyValueStore& store, Deadline deadline) {
  milliseconds pause(1);
  while (true) {
    for (auto it = welcomed_.begin(); it != welcomed_.end();) {
      const auto [rank, welcomed] = *it++;
      CAIRN_ASSIGN_OR_RETURN(const bool waits, store.check(WelcomeKey(welcomed.id)));
      CAIRN_ASSIGN_OR_RETURN(const bool again, store.check(HelloKey(rank)));
      if (waits && !again) continue;
      welcomed_.erase(rank);
      if (!waits) {
        CAIRN_RETURN_IF_ERROR(welcomed.refusal);
        continue;
      }
      CAIRN_RETURN_IF_ERROR(store.erase(WelcomeKey(welcomed.id)));
      CAIRN_RETURN_IF_ERROR(Welcome(store, rank));
    }
    if (welcomed_.empty()) return {};
    if (Deadline::At(std::min(deadline.when(), close_by_.load())).passed()) {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<int> dead, TakeBack(store));
      if (!dead.empty()) return Late(dead);
      continue;  // All have taken theirs meanwhile.
    }
    MutexLock lock(mutex_);
    ended_.WaitUntil(mutex_, Deadline::In(pause));
    pause = std::min(2 * pause, kSuccessor);
  }
}

Result<std::vector<int>> StoreLink::TakeBack(const KeyValueStore& store) const {
  std::vector<int> dead;
  for (const auto& [rank, welcomed] : welcomed_) {
    CAIRN_ASSIGN_OR_RETURN(const bool waits, store.check(WelcomeKey(welcomed.id)));
    if (!waits) continue;
    dead.push_back(rank);
    CAIRN_RETURN_IF_ERROR(store.erase(WelcomeKey(welcomed.id)));
  }
  return dead;
}

Status StoreLink::Late(const std::vector<int>& ranks) const {
  return Error(StatusCode::kDeadlineExceeded, "not opened by rank {} within {}", fmt::join(ranks, ", "),
               Seconds(options_.open_timeout));
}

Result<bool> StoreLink::Await(const KeyValueStore& store, const std::string& key, Deadline deadline) const {
  while (true) {
    const auto left =
        std::chrono::ceil<milliseconds>(std::min(deadline.when(), close_by_.load()) - Deadline::Clock::now());
    if (left.count() <= 0) return store.check(key);
    CAIRN_ASSIGN_OR_RETURN(const bool there, store.wait(key, std::min(left, kOpeningWait)));
    if (there) return true;
  }
}

// Sending.

Status StoreLink::Append(const KeyValueStore& store, StoreEntry entry) {
  if (!leads_) {
    entry.number = options_.rank;
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(const std::int64_t number, store.add(Key("inbox"), 1));
      CAIRN_ASSIGN_OR_RETURN(const bool put, Put(store, Key("inbox", number), entry));
      if (put) return {};
    }
  }
  entry.number = readers_;
  if (entry.number == 0) return {};
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const bool put, Put(store, Key("log", ++written_), entry));
    if (put) return {};
  }
}

Status StoreLink::FillGap(const KeyValueStore& store) {
  const std::int64_t awaited = next_;
  if (!group_.wanted()) return {};
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t counted, store.add(Key("inbox"), 0));
  if (counted < awaited) return {};
  if (awaited == missing_) CAIRN_RETURN_IF_ERROR(Put(store, Key("inbox", awaited), {}).status());
  missing_ = awaited;
  return {};
}

// Listening.

Result<StoreEntry> StoreLink::Read(const KeyValueStore& store, const std::string& name) const {
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, store.get(name));
  if (auto entry = UnpackEntry(bytes)) return *std::move(entry);
  return Error(StatusCode::kIoError, "the store: expected a message of Cairn under {}, found other bytes", name);
}

Status StoreLink::ReadLog(const KeyValueStore& store) {
  const std::int64_t number = next_++;
  const std::string name = Key("log", number);
  CAIRN_ASSIGN_OR_RETURN(StoreEntry entry, Read(store, name));
  readers_ = entry.number;
  if (entry.kind == StoreEntry::Kind::kMessage) group_.Hear(0, entry.key, std::move(entry.text));
  if (entry.kind == StoreEntry::Kind::kClosed) {
    gone_.insert(0);
    group_.Leave(0);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t read, store.add(Key("read", number), 1));
  if (read != entry.number) return {};
  CAIRN_RETURN_IF_ERROR(store.erase(name));
  return store.erase(Key("read", number));
}

Status StoreLink::ReadInbox(const KeyValueStore& store) {
  const std::int64_t number = next_++;
  const std::string name = Key("inbox", number);
  CAIRN_ASSIGN_OR_RETURN(StoreEntry entry, Read(store, name));
  if (entry.kind == StoreEntry::Kind::kFilled) {
    filled_.push_back(number);
    return {};
  }
  if (entry.kind == StoreEntry::Kind::kMessage) group_.Hear(entry.number, entry.key, std::move(entry.text));
  if (entry.kind == StoreEntry::Kind::kClosed && entry.number > 0 && entry.number < options_.size) {
    gone_.insert(entry.number);
    readers_ = options_.size - 1 - static_cast<int>(gone_.size());
    group_.Leave(entry.number);
  }
  return store.erase(name);
}

// Closing.

Status StoreLink::Leave(const KeyValueStore& store) {
  while (!HasEnded(&StoreLink::listener_, Deadline::In(kBlocked))) {
    CAIRN_RETURN_IF_ERROR(Put(store, AwaitedKey(), {.number = leads_ ? 0 : readers_.load()}).status());
  }
  if (leads_) {
    CAIRN_RETURN_IF_ERROR(LeaveAsCoordinator(store));
  } else {
    while (true) {  // Read to the end, so that the entries are removed.
      CAIRN_ASSIGN_OR_RETURN(const bool more, store.check(AwaitedKey()));
      if (!more) break;
      CAIRN_RETURN_IF_ERROR(ReadLog(store));
    }
    if (gone_.empty()) CAIRN_RETURN_IF_ERROR(Append(store, {.kind = StoreEntry::Kind::kClosed}));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t left, store.add(Key("left"), 1));
  return left == options_.size ? RemoveRest(store) : Status::Ok();
}

Status StoreLink::LeaveAsCoordinator(const KeyValueStore& store) {
  CAIRN_RETURN_IF_ERROR(Append(store, {.kind = StoreEntry::Kind::kClosed}));
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const bool more, store.check(AwaitedKey()));
    if (!more) break;
    CAIRN_RETURN_IF_ERROR(ReadInbox(store));
  }
  std::string end = fmt::format("{} {}", written_, next_.load());
  for (const std::int64_t number : filled_) end += fmt::format(" {}", number);
  return store.set(Key("end"), end);
}

Status StoreLink::RemoveRest(const KeyValueStore& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::string end, store.get(Key("end")));
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t counted, store.add(Key("inbox"), 0));
  std::istringstream numbers(end);
  std::int64_t written = 0;
  std::int64_t unread = 0;
  numbers >> written >> unread;
  for (std::int64_t number = 0; numbers >> number;) CAIRN_RETURN_IF_ERROR(store.erase(Key("inbox", number)));
  for (; unread <= counted; ++unread) CAIRN_RETURN_IF_ERROR(store.erase(Key("inbox", unread)));
  for (std::int64_t number = std::max<std::int64_t>(1, written - kLeftovers); number < written + kLeftovers; ++number) {
    CAIRN_RETURN_IF_ERROR(store.erase(Key("log", number)));
    CAIRN_RETURN_IF_ERROR(store.erase(Key("read", number)));
  }
  for (const char* name : {"inbox", "end", "left"}) CAIRN_RETURN_IF_ERROR(store.erase(Key(name)));
  return {};
}

}  // namespace cairn
