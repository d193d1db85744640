#include "group/local_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace cairn {
namespace {

// What the ranks share: who gave what under which key, and who waits for the rest.
class Hub {
 public:
  explicit Hub(int size) : size_(static_cast<std::size_t>(size)) {
    Result<std::thread> watch = StartThread("cairn-group", [this] { WatchDeadlines(); });
    if (watch.ok()) {
      watch_ = *std::move(watch);
    } else {
      status_ = watch.status();
    }
  }

  ~Hub() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    if (watch_.joinable()) watch_.join();
  }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  [[nodiscard]] std::size_t size() const { return size_; }

  void Give(int rank, const std::string& key, std::string bytes, Deadline deadline, Group::Gathered done)
      CAIRN_EXCLUDES(mutex_) {
    if (!status_.ok()) return done(status_);
    std::vector<Group::Gathered> ready;
    std::vector<std::string> all;
    {
      MutexLock lock(mutex_);
      Gather& gather = gathers_[key];
      if (gather.given.empty()) gather.given.resize(size_);
      gather.given[static_cast<std::size_t>(rank)] = std::move(bytes);
      gather.waiting.push_back({deadline, std::move(done)});
      ++gather.count;
      if (gather.count == size_) {
        for (Waiter& waiter : gather.waiting) ready.push_back(std::move(waiter.done));
        for (std::optional<std::string>& one : gather.given) all.push_back(*std::move(one));
        gathers_.erase(key);
      }
    }
    changed_.NotifyAll();
    for (const Group::Gathered& call : ready) call(all);
  }

 private:
  struct Waiter {
    Deadline deadline;
    Group::Gathered done;
  };
  struct Gather {
    std::vector<std::optional<std::string>> given;  // By rank.
    std::vector<Waiter> waiting;
    std::size_t count = 0;
  };

  void WatchDeadlines() CAIRN_EXCLUDES(mutex_) {
    while (true) {
      std::vector<std::pair<Group::Gathered, Status>> late;
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        Deadline next = Deadline::Infinite();
        for (auto& [key, gather] : gathers_) {
          for (auto it = gather.waiting.begin(); it != gather.waiting.end();) {
            if (it->deadline.passed()) {
              late.emplace_back(std::move(it->done), Missing(key, gather));
              it = gather.waiting.erase(it);
            } else {
              if (it->deadline.when() < next.when()) next = it->deadline;
              ++it;
            }
          }
        }
        if (late.empty()) changed_.WaitUntil(mutex_, next);
      }
      for (auto& [done, status] : late) done(std::move(status));
    }
  }

  Status Missing(const std::string& key, const Gather& gather) const {
    std::vector<std::size_t> missing;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      if (!gather.given[rank]) missing.push_back(rank);
    }
    return Error(StatusCode::kDeadlineExceeded, "gathering \"{}\" from {} ranks: nothing from rank {}", key, size_,
                 fmt::join(missing, ", "));
  }

  const std::size_t size_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Gather> gathers_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  // Constant after construction.
  std::thread watch_;
  Status status_;  // Why there is no watch, and so no gather.
};

class LocalGroup : public Group {
 public:
  LocalGroup(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(hub_->size()); }
  void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) override {
    hub_->Give(rank_, key, std::move(bytes), deadline, std::move(done));
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Group>> MakeLocalGroup(int size) {
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<Group>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_shared<LocalGroup>(hub, rank));
  return ends;
}

}  // namespace cairn
