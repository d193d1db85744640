#include "group/store_link.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "group/solo_group.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

// One wait in the store: c10d prints a warning after each.
constexpr milliseconds kLongestWait = std::chrono::hours(1);
// Between rank 0's checks for a message that was counted and does not come.
constexpr milliseconds kGap = std::chrono::seconds(1);
// The longest pause before a full store is tried again.
constexpr milliseconds kFull{250};
// Until a listener that has not ended is woken.
constexpr milliseconds kBlocked{50};
// Messages that rank 0 reads before it passes them on.
constexpr std::size_t kAtOnce = 1024;
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

/// A StoreLink with threads of the library's, which keep it alive.
struct LinkWithThreads : std::enable_shared_from_this<LinkWithThreads> {
  LinkWithThreads(StoreGroupOptions options, std::string title) : link(std::move(options), std::move(title)) {}

  void Close(std::chrono::nanoseconds timeout) {
    link.Stop();
    if (link.WaitUntilEnded(Deadline::In(timeout))) {
      sender.join();
      listener.join();
    } else {  // In a forked child the threads are the parent's: their handles may be neither joined nor destroyed.
      left_behind = shared_from_this();
    }
  }

  StoreLink link;
  std::thread sender;
  std::thread listener;
  // This object itself, if its threads hang.
  std::shared_ptr<LinkWithThreads> left_behind;
};

}  // namespace

Result<std::shared_ptr<Group>> MakeStoreGroup(StoreGroupOptions options,
                                              std::function<Result<KeyValueStore>()> connect) {
  const std::string title = "group " + options.name;
  if (options.rank < 0 || options.rank >= options.size) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a rank from 0 to {}, found {}", title, options.size - 1,
                 options.rank);
  }
  if (options.size == 1) return std::shared_ptr<Group>(std::make_shared<SoloGroup>());
  const std::chrono::nanoseconds close_timeout = options.close_timeout;
  const auto served = std::make_shared<LinkWithThreads>(std::move(options), title);
  CAIRN_ASSIGN_OR_RETURN(served->listener,
                         StartThread("cairn-listen", [served, connect] { served->link.RunListener(connect); }));
  Result<std::thread> sender = StartThread("cairn-send", [served, connect] { served->link.RunSender(connect); });
  if (!sender.ok()) {
    served->link.RunSender([&] { return sender.status(); });  // Which ends the listener.
    served->listener.join();
    return sender.status();
  }
  served->sender = *std::move(sender);
  return std::shared_ptr<Group>(&served->link.group(),
                                [served, close_timeout](Group*) { served->Close(close_timeout); });
}

StoreLink::StoreLink(StoreGroupOptions options, std::string title)
    : process_(::getpid()),
      options_(std::move(options)),
      title_(std::move(title)),
      leads_(options_.rank == 0),
      group_(options_.rank, options_.size),
      meeting_(options_, close_by_),
      readers_(options_.size - 1) {}

// The threads.

void StoreLink::RunSender(const Connect& connect) {
  BreakIfLost(Send(connect));
  SetPhase(Phase::kEnded);
}

void StoreLink::RunListener(const Connect& connect) {
  BreakIfLost(Listen(connect));
  MutexLock lock(mutex_);
  listening_ = false;
  changed_.NotifyAll();
}

void StoreLink::BreakIfLost(const Status& status) {
  // The store's NotFound would say that the root has no checkpoint.
  const StatusCode code = status.code() == StatusCode::kNotFound ? StatusCode::kIoError : status.code();
  if (!status.ok()) group_.Fail(Error(code, "{}: {}", title_, status.message()));
}

void StoreLink::SetPhase(Phase phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
  changed_.NotifyAll();
}

bool StoreLink::opened() {
  MutexLock lock(mutex_);
  return phase_ == Phase::kOpened;
}

StoreLink::Phase StoreLink::WaitWhileOpening() {
  MutexLock lock(mutex_);
  while (phase_ == Phase::kOpening && !Deadline::At(close_by_).passed()) {
    changed_.WaitUntil(mutex_, Deadline::At(close_by_));
  }
  return phase_;
}

bool StoreLink::ListenerHasEnded(Deadline deadline) {
  MutexLock lock(mutex_);
  while (listening_ && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return !listening_;
}

bool StoreLink::WaitUntilEnded(Deadline deadline) {
  if (::getpid() != process_) return false;
  MutexLock lock(mutex_);
  while ((listening_ || phase_ != Phase::kEnded) && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return !listening_ && phase_ == Phase::kEnded;
}

void StoreLink::Stop() {
  if (::getpid() != process_) return;
  {
    MutexLock lock(mutex_);
    // The rest of the time is for the threads to end.
    close_by_ = std::min(close_by_.load(), Deadline::In(options_.close_timeout / 4 * 3).when());
    changed_.NotifyAll();  // A thread that pauses because the store is full may have to end.
  }
  group_.Stop();
}

template <typename Call>
auto StoreLink::TryWhileFull(const Call& call, Deadline until) {
  for (milliseconds pause(1);; pause = std::min(2 * pause, kFull)) {
    auto result = call();
    if (StatusOf(result).code() != StatusCode::kNoSpace) return result;
    const Deadline next = Deadline::In(pause);
    MutexLock lock(mutex_);
    if (next.when() >= std::min(until.when(), close_by_.load())) return result;
    changed_.WaitUntil(mutex_, next);
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

Status StoreLink::Send(const Connect& connect) {
  const Deadline opened_by = Deadline::In(options_.open_timeout);
  CAIRN_ASSIGN_OR_RETURN(const KeyValueStore connected, TryWhileFull(connect, opened_by));
  const KeyValueStore opening = WhileFull(connected, opened_by);
  CAIRN_RETURN_IF_ERROR(meeting_.Meet(opening, opened_by,
                                      [&](const Status& why, int told) { return GiveUpOpening(opening, why, told); }));
  SetPhase(Phase::kOpened);
  const KeyValueStore store = WhileFull(connected, Deadline::Infinite());
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

Status StoreLink::Listen(const Connect& connect) {
  const Phase phase = WaitWhileOpening();
  if (phase == Phase::kEnded || (phase == Phase::kOpening && leads_)) return {};
  CAIRN_ASSIGN_OR_RETURN(const KeyValueStore connected, TryWhileFull(connect, Deadline::Infinite()));
  const KeyValueStore store = WhileFull(connected, Deadline::Infinite());
  if (phase == Phase::kOpening) return meeting_.EndWait(store);
  while (group_.WaitUntilWanted(Deadline::Infinite()).ok()) {
    CAIRN_ASSIGN_OR_RETURN(const bool there, store.wait(AwaitedKey(), kLongestWait));
    if (there) CAIRN_RETURN_IF_ERROR(leads_ ? ReadInbox(store) : ReadLog(store));
  }
  return {};
}

// Sending.

Status StoreLink::GiveUpOpening(const KeyValueStore& store, const Status& why, int readers) {
  BreakIfLost(why);
  if (readers == 0) return {};
  const bool late = why.code() == StatusCode::kDeadlineExceeded;
  const StoreEntry entry = {
      .kind = late ? StoreEntry::Kind::kLate : StoreEntry::Kind::kRefused, .number = readers, .text = why.message()};
  for (std::int64_t number = 1;; ++number) {
    CAIRN_ASSIGN_OR_RETURN(const bool put, Put(store, Key("log", number), entry));
    if (put) return {};
  }
}

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
  if (entry.kind == StoreEntry::Kind::kMessage) {
    group_.Hear(0, entry.key, std::move(entry.text));
  } else if (entry.kind == StoreEntry::Kind::kClosed) {
    gone_.insert(0);
    group_.Leave(0);
  } else if (entry.kind == StoreEntry::Kind::kLate) {
    BreakIfLost({StatusCode::kDeadlineExceeded, entry.text});
  } else if (entry.kind == StoreEntry::Kind::kRefused) {
    BreakIfLost({StatusCode::kFailedPrecondition, entry.text});
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t read, store.add(Key("read", number), 1));
  if (read != entry.number) return {};
  CAIRN_RETURN_IF_ERROR(store.erase(name));
  return store.erase(Key("read", number));
}

/// Reads the entries that are there, and then passes them on. Of a rank's messages under one key the newest counts: it
/// may have withdrawn the first.
Status StoreLink::ReadInbox(const KeyValueStore& store) {
  std::vector<StoreEntry> entries;
  std::map<std::pair<int, std::string>, std::size_t> newest;
  while (entries.size() < kAtOnce) {
    Result<StoreEntry> entry = Read(store, Key("inbox", next_ + static_cast<std::int64_t>(entries.size())));
    if (entry.status().code() == StatusCode::kNotFound) break;
    CAIRN_RETURN_IF_ERROR(entry.status());
    if (entry->kind == StoreEntry::Kind::kMessage) newest[{entry->number, entry->key}] = entries.size();
    entries.push_back(*std::move(entry));
  }
  const std::int64_t first = next_;
  for (std::size_t at = 0; at < entries.size(); ++at, ++next_) {
    StoreEntry& entry = entries[at];
    if (entry.kind == StoreEntry::Kind::kFilled) filled_.push_back(next_);
    if (entry.kind == StoreEntry::Kind::kMessage && newest[{entry.number, entry.key}] == at) {
      group_.Hear(entry.number, entry.key, std::move(entry.text));
    }
    if (entry.kind == StoreEntry::Kind::kClosed && entry.number > 0 && entry.number < options_.size) {
      gone_.insert(entry.number);
      readers_ = options_.size - 1 - static_cast<int>(gone_.size());
      group_.Leave(entry.number);
    }
  }
  for (std::size_t at = 0; at < entries.size(); ++at) {  // Last, because others wait for the messages.
    if (entries[at].kind == StoreEntry::Kind::kFilled) continue;
    CAIRN_RETURN_IF_ERROR(store.erase(Key("inbox", first + static_cast<std::int64_t>(at))));
  }
  return {};
}

// Closing.

Status StoreLink::Leave(const KeyValueStore& store) {
  while (!ListenerHasEnded(Deadline::In(kBlocked))) {
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
