#include "group/blocking.h"

#include <future>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace cairn {

Result<std::string> AwaitWord(Group& group, const std::string& key, Deadline deadline) {
  const auto answer = std::make_shared<std::promise<Result<std::string>>>();
  group.Await(key, deadline, [answer](Result<std::string> word) { answer->set_value(std::move(word)); });
  return answer->get_future().get();
}

CollectedWords CollectWords(Group& group, const std::string& key, Deadline deadline) {
  struct Answer {
    Mutex mutex;
    CondVar changed;
    CollectedWords collected CAIRN_GUARDED_BY(mutex);
    bool ended CAIRN_GUARDED_BY(mutex) = false;
  };
  const auto answer = std::make_shared<Answer>();
  group.Collect(
      key, deadline,
      [answer](int rank, std::string word) {
        MutexLock lock(answer->mutex);
        answer->collected.words.insert_or_assign(rank, std::move(word));
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
