#include "engine/failures.h"

#include <cstddef>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

void Failures::Add(std::shared_ptr<SaveTask> task, Status status) {
  std::erase_if(saves_, [](const Failed& save) { return save.task->heard(); });
  saves_.push_back({std::move(task), std::move(status)});
}

Status Failures::Newest() const {
  if (saves_.empty()) return Status::Ok();
  saves_.back().task->MarkHeard();
  return saves_.back().status;
}

Status Failures::TakeUnheard() const {
  const Failed* first = nullptr;
  std::size_t more = 0;
  for (const Failed& save : saves_) {
    if (save.task->heard()) continue;
    save.task->MarkHeard();
    if (first == nullptr) {
      first = &save;
    } else {
      ++more;
    }
  }
  if (first == nullptr) return Status::Ok();
  if (more == 0) return first->status;
  return Error(first->status.code(), first->status.detail(), "{} (and {} more {} failed)", first->status.message(),
               more, more == 1 ? "save has" : "saves have");
}

}  // namespace cairn
