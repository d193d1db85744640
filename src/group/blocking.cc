#include "group/blocking.h"

#include <memory>
#include <utility>

#include "base/mutex.h"

namespace cairn {

std::future<Result<std::string>> AwaitMessage(Group& group, const std::string& key, Deadline deadline) {
  const auto answer = std::make_shared<std::promise<Result<std::string>>>();
  group.Await(key, deadline, [answer](Result<std::string> message) { answer->set_value(std::move(message)); });
  return answer->get_future();
}

std::future<CollectedMessages> CollectMessages(Group& group, const std::string& key, Deadline deadline) {
  struct Collecting {
    Mutex mutex;
    CollectedMessages said CAIRN_GUARDED_BY(mutex);
    std::promise<CollectedMessages> all;
  };
  const auto collecting = std::make_shared<Collecting>();
  group.Collect(
      key, deadline,
      [collecting](int rank, std::string message) {
        MutexLock lock(collecting->mutex);
        collecting->said.messages.insert_or_assign(rank, std::move(message));
      },
      [collecting](Status end) {
        MutexLock lock(collecting->mutex);
        collecting->said.end = std::move(end);
        collecting->all.set_value(std::move(collecting->said));
      });
  return collecting->all.get_future();
}

}  // namespace cairn
