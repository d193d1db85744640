#include "group/blocking.h"

#include <future>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace cairn {

Result<std::string> AwaitMessage(Group& group, const std::string& key, Deadline deadline) {
  const auto answer = std::make_shared<std::promise<Result<std::string>>>();
  group.Await(key, deadline, [answer](Result<std::string> message) { answer->set_value(std::move(message)); });
  return answer->get_future().get();
}

CollectedMessages CollectMessages(Group& group, const std::string& key, Deadline deadline) {
  struct Answer {
    Mutex mutex;
    CondVar changed;
    CollectedMessages collected CAIRN_GUARDED_BY(mutex);
    bool ended CAIRN_GUARDED_BY(mutex) = false;
  };
  const auto answer = std::make_shared<Answer>();
  group.Collect(
      key, deadline,
      [answer](int rank, std::string message) {
        MutexLock lock(answer->mutex);
        answer->collected.messages.insert_or_assign(rank, std::move(message));
      },
      [answer](Status end) {
        MutexLock lock(answer->mutex);
        answer->collected.end = std::move(end);
        answer->ended = true;
        answer->changed.NotifyAll();
      });
  MutexLock lock(answer->mutex);
  while (!answer->ended) answer->changed.Wait(answer->mutex);
  return std::move(answer->collected);
}

}  // namespace cairn
