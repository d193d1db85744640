#include "engine/engine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "engine/save_line.h"

namespace cairn {
namespace {

// How long the end waits for copies that read the tensors of saves that are abandoned.
constexpr std::chrono::seconds kCopiesEnd{10};

}  // namespace

Engine::Engine(EngineParts parts)
    : retention_(context_, {.files_in_flight = [this] { return FilesInFlight(); },
                            .on_busy = [this](bool busy) { OnRetention(busy); },
                            .on_scanned =
                                [this] {
                                  for (const auto& job : jobs_) job->NameAttempt();
                                }}) {
  context_.parts = std::move(parts);
  context_.line = std::make_shared<SaveLine>(context_);
  context_.makes_room = [this](const ShardWriter& writer) { return MakesRoom(writer); };
  context_.spares = [this] { return retention_.Spares(); };
  context_.not_recycled = [this](const std::string& why) {
    MutexLock lock(mutex_);
    not_recycled_ = why;
  };
}

Result<std::unique_ptr<Engine>> Engine::Start(EngineParts parts) {
  std::unique_ptr<Engine> engine(new Engine(std::move(parts)));
  Mutex mutex;
  CondVar changed;
  bool known = false;
  Status outcome;
  Result<std::thread> thread = StartThread("cairn-engine", [&, raw = engine.get()] {
    raw->Run([&](Status status) {
      MutexLock lock(mutex);
      known = true;
      outcome = std::move(status);
      changed.NotifyAll();
    });
    std::function<void()> at_end;
    {
      MutexLock lock(raw->mutex_);
      raw->ended_ = true;
      at_end = std::move(raw->at_end_);
      raw->changed_.NotifyAll();
    }
    if (at_end) at_end();
  });
  CAIRN_RETURN_IF_ERROR(thread.status());
  engine->thread_ = *std::move(thread);
  {
    MutexLock lock(mutex);
    while (!known) changed.Wait(mutex);
  }
  if (!outcome.ok()) return outcome;
  return engine;
}

Engine::~Engine() {
  if (!thread_.joinable()) return;
  static_cast<void>(Stop(Deadline::Infinite()));
  thread_.join();
}

bool Engine::Stop(Deadline deadline) {
  context_.inbox->Post([this] {
    stopping_ = true;
    for (const auto& job : jobs_) job->Close();
  });
  std::vector<std::shared_ptr<SaveTask>> left;
  {
    MutexLock lock(mutex_);
    while (!ended_ && !deadline.passed() && disk_hangs_.ok() && !(removal_hangs_ && tasks_.empty())) {
      changed_.WaitUntil(mutex_, deadline);
    }
    if (ended_) return true;
    left = tasks_;
  }
  // The caller may free the tensors then: copies under way end whatever the disk does, unless their stream stands
  // still.
  const Deadline copies_end = Deadline::In(kCopiesEnd);
  for (const std::shared_ptr<SaveTask>& task : left) static_cast<void>(task->WaitTensorsFree(copies_end));
  {
    MutexLock lock(mutex_);
    if (ended_) return true;
    left = tasks_;
  }
  AbandonTasks(left);
  return false;
}

void Engine::AtEnd(std::function<void()> then) {
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      at_end_ = std::move(then);
      return;
    }
  }
  then();
}

void Engine::AbandonTasks(const std::vector<std::shared_ptr<SaveTask>>& tasks) {
  const std::string busy = Busy();
  for (const std::shared_ptr<SaveTask>& task : tasks) {
    const Status status = task->FinishUnanswered();
    MutexLock lock(mutex_);
    if (!status.ok()) failures_.Add(task, status);
  }
  context_.Notify({.severity = Severity::kWarning,
                   .message = fmt::format("{} is closed, and this goes on behind: {}; the root's lock is released when "
                                          "it ends, and the pool remains until the process exits",
                                          context_.parts.root, busy),
                   .phase = "close"});
  context_.Silence();  // The callback must not be called after the checkpointer is gone.
}

void Engine::Run(const std::function<void(Status)>& started) {
  RequestShortSlices();
  Result<std::unique_ptr<IoQueue>> queue = context_.parts.queue();
  if (!queue.ok()) return started(queue.status());
  context_.queue = std::make_unique<WatchedQueue>(*std::move(queue), &context_.parts.metrics->retries);
  watch_.emplace(context_.parts.options.stall_timeout);
  context_.inbox->Attach(context_.queue.get());
  if (!context_.parts.in_memory) context_.parts.pool->SetOnFree([inbox = context_.inbox] { inbox->Wake(); });
  for (const auto& device : context_.parts.devices) device->WakeOnRoom(context_.on_room);
  retention_.Begin();
  started(Status::Ok());
  Loop();
  RemoveSpares();
  if (!context_.parts.in_memory) context_.parts.pool->SetOnFree({});
  context_.inbox->Detach();
  context_.queue.reset();
}

// Nobody needs them now, and they are as large as a checkpoint.
void Engine::RemoveSpares() {
  retention_.RemoveSpares();
  while (retention_.busy() && context_.queue->RunOnce(watch_->WakesAt(*context_.queue)).ok()) WatchDisk();
}

void Engine::Loop() {
  while (!stopping_ || !jobs_.empty() || retention_.busy() || !lines_.empty()) {
    // Touch the pool's pages only while idle; a save touches the pages that it uses. The pool may have grown.
    const bool touches_on = context_.parts.touch_pool && jobs_.empty() && context_.parts.pool->TouchNext();
    // Fails only in a forked child, where this thread does not exist.
    static_cast<void>(context_.queue->RunOnce(touches_on ? Deadline::In({}) : WakesAt()));
    for (const Inbox::Message& message : context_.inbox->Take()) message();
    WatchDisk();
    Advance();
    RemoveEndedJobs();
  }
}

Deadline Engine::WakesAt() {
  auto wake = watch_->WakesAt(*context_.queue).when();
  for (const auto& job : jobs_) wake = std::min(wake, job->wakes_at().when());
  wake = std::min(wake, context_.line->wakes_at().when());
  if (copies_paused_) wake = std::min(wake, context_.pauses->until());
  return Deadline::At(wake);
}

void Engine::WatchDisk() {
  std::vector<Event> events;
  bool answers = false;
  if (watch_->Look(*context_.queue, events)) {
    MutexLock lock(mutex_);
    answers = !disk_hangs_.ok() && watch_->hangs().ok();
    slow_ = watch_->slow();
    disk_hangs_ = watch_->hangs();
    removal_hangs_ = !watch_->removal_hangs().ok();
    changed_.NotifyAll();
  }
  for (const Event& event : events) context_.Notify(event);
  if (answers && context_.parts.on_answers) context_.parts.on_answers();
  if (!watch_->hangs().ok()) GiveUpLines(watch_->hangs());
  if (watch_->hangs().ok() && watch_->removal_hangs().ok()) return;
  for (const auto& job : jobs_) {
    watch_->hangs().ok() ? job->OnRemovalHangs(watch_->removal_hangs()) : job->OnDiskHangs(watch_->hangs());
  }
}

void Engine::Advance() {
  context_.line->OnTime();
  // For all jobs: the loops below may stop before the younger ones.
  for (const auto& job : jobs_) job->PollRequests();
  // Begin one at a time: two at once would compete for the same spare.
  const auto writer_that = [this](bool (ShardWriter::*is)() const) -> ShardWriter* {
    for (const auto& job : jobs_) {
      if (job->writer() != nullptr && (job->writer()->*is)()) return job->writer();
    }
    return nullptr;
  };
  const bool frees_space = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->frees_space(); });
  if (writer_that(&ShardWriter::begins) == nullptr && !frees_space) {
    // A younger one must not take the room that the oldest waits for.
    ShardWriter* const next = writer_that(&ShardWriter::is_ready);
    if (next != nullptr && !next->awaits_room()) next->Begin();
  }
  copies_paused_ = CopiesPaused();
  bool chunks = !copies_paused_;
  for (const auto& job : jobs_) {
    job->Advance(chunks);
    chunks = chunks && job->all_buffered();
    if (!job->enqueued()) break;
  }
  int depth = context_.parts.options.queue_depth;
  for (const auto& job : jobs_) {
    ShardWriter* writer = job->writer();
    if (writer == nullptr) continue;
    while (context_.writes_in_flight < depth && writer->HasReadyWrite()) {
      writer->SubmitWrite();
    }
    depth = job->writes_of_younger(depth);
  }
}

bool Engine::MakesRoom(const ShardWriter& writer) const {
  if (retention_.busy()) return true;
  for (const auto& job : jobs_) {
    if (job->writer() == &writer) return false;
    // One that has ended is about to let retention begin.
    if (job->writer() == nullptr || !job->writer()->release_by() || writer.waits_for_held()) return true;
  }
  return false;
}

bool Engine::CopiesPaused() const {
  // A fence waits for older saves, too. One whose copies are all enqueued may have been fenced long ago.
  return context_.pauses->active() && !jobs_.empty() && std::none_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
           return !job->enqueued() && job->task()->fence_waits();
         });
}

void Engine::RemoveEndedJobs() {
  bool ended = false;
  bool retires = false;
  bool waits_to_move = false;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const std::shared_ptr<SaveTask>& task = (*job)->task();
    const Status& status = (*job)->outcome();
    const bool was_behind = (*job)->told();
    const bool is_behind = (*job)->settled() && !(*job)->ended();
    // In the order of their calls.
    waits_to_move = waits_to_move || (*job)->moves();
    if ((*job)->moved() && waits_to_move) {
      ++job;
      continue;
    }
    if ((*job)->moved()) {
      {
        MutexLock lock(mutex_);
        std::erase(tasks_, task);
        --started_;
      }
      context_.parts.on_moved(task, context_.line->off());
      job = jobs_.erase(job);
      continue;
    }
    if ((*job)->settled() && !was_behind) {
      const SaveStats stats = task->stats();
      retires = retires || status.ok();
      if (status.ok() && task->plan().admitted) retention_.OnDurable(task->plan().step);
      {
        MutexLock lock(mutex_);
        std::erase(tasks_, task);
        ++(status.ok() ? durable_ : failed_);
        if (status.ok()) durable_since_ = SaveTask::Clock::now();
        // Whoever reads it hears that, and may go on from an older one.
        const bool was_damaged = task->plan().found && status.code() == StatusCode::kCorrupt;
        if (!was_damaged) CountInARow(status);
        bytes_written_ += stats.bytes_written;
        recycled_ += stats.recycled ? 1 : 0;
        const bool is_failure = !status.ok() && status.code() != StatusCode::kCancelled && !was_damaged;
        if (is_failure) failures_.Add(task, status);
        // Set before the slot is free: whoever waits for idle also waits for what this save retires or leaves.
        removing_ = removing_ || status.ok();
        behind_ += is_behind ? 1 : 0;
      }
      Count(status, stats);
      // Notify waiters last, so that they see the slot free and the failures up to date.
      (*job)->NotifyWaiters();
      if (context_.parts.on_ended) context_.parts.on_ended();
    } else if (was_behind && !is_behind) {
      MutexLock lock(mutex_);
      --behind_;
    }
    if (!(*job)->ended()) {
      ++job;
      continue;
    }
    ended = true;
    if (context_.parts.on_gone) context_.parts.on_gone(task, status, (*job)->attempt());
    // Only now can a listing tell what has become of it.
    if (task->plan().admitted && status.code() == StatusCode::kUnknownOutcome) retention_.RelistAfterNextSave();
    job = jobs_.erase(job);
  }
  changed_.NotifyAll();
  if (retires) retention_.Retire();
  if (ended) retention_.OnSavesEnded();
}

void Engine::CountInARow(const Status& status) {
  if (status.ok()) in_a_row_ = 0;
  // The training goes on that asked for a step twice, or cancelled one.
  const bool loses = status.code() != StatusCode::kCancelled && status.code() != StatusCode::kAlreadyExists;
  if (status.ok() || !loses) return;
  ++in_a_row_;
  newest_in_a_row_ = status;
}

void Engine::CountRefused(const Status& why) {
  {
    MutexLock lock(mutex_);
    ++started_;
    ++failed_;
    CountInARow(why);
  }
  Count(why, {});
  if (context_.parts.on_ended) context_.parts.on_ended();
}

void Engine::Count(const Status& status, const SaveStats& stats) const {
  Metrics& metrics = *context_.parts.metrics;
  const auto outcome = static_cast<std::size_t>(status.ok()                                    ? SaveOutcome::kDurable
                                                : status.code() == StatusCode::kCancelled      ? SaveOutcome::kCancelled
                                                : status.code() == StatusCode::kUnknownOutcome ? SaveOutcome::kUnknown
                                                                                               : SaveOutcome::kFailed);
  metrics.stall += static_cast<std::uint64_t>(stats.stall.count());
  if (context_.parts.in_memory && status.ok()) return;  // The disk decides how it ends.
  ++metrics.saves[outcome];
  metrics.save_bytes[outcome] += stats.bytes;
  if (!status.ok()) {
    ++metrics.failures[static_cast<std::size_t>(status.code())];
    return;
  }
  metrics.buffered += stats.direct ? 0 : 1;
}

std::uint64_t Engine::FilesInFlight() const {
  return static_cast<std::uint64_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
    return job->writer() != nullptr && job->writer()->has_file();
  }));
}

void Engine::OnRetention(bool busy) {
  MutexLock lock(mutex_);
  removing_ = busy;
  if (!busy) changed_.NotifyAll();
}

void Engine::Submit(const std::shared_ptr<SaveTask>& task, Status given_up) {
  {
    MutexLock lock(mutex_);
    if (given_up.ok()) tasks_.push_back(task);  // Given-up saves take no slot.
    ++started_;
  }
  context_.inbox->Post([this, task, given_up = std::move(given_up)] {
    jobs_.push_back(std::make_shared<SaveJob>(context_, task));
    jobs_.back()->Start(given_up);
  });
}

void Engine::AddDevice(const std::shared_ptr<Device>& device, std::byte* staging) {
  context_.inbox->Post([this, device, staging] {
    context_.parts.devices.push_back(device);
    device->WakeOnRoom(context_.on_room);
    if (staging != nullptr)
      context_.parts.staging.emplace_back(device.get(), staging, context_.parts.options.staging_bytes,
                                          context_.parts.options.chunk_bytes);
  });
}

void Engine::BeginLine(std::uint64_t line, StatusDone done) {
  context_.inbox->Post([this, line, done = std::make_shared<StatusDone>(std::move(done))] {
    lines_.push_back(done);
    context_.line_record.Ensure(*context_.queue, context_.parts.write_line, line, [this, done](Status status) {
      std::erase(lines_, done);
      if (*done) std::exchange(*done, {})(std::move(status));
    });
  });
}

void Engine::GiveUpLines(const Status& hangs) {
  for (const std::shared_ptr<StatusDone>& done : std::exchange(lines_, {})) {
    std::exchange(
        *done, {})(Error(hangs.code(), hangs.detail(), "its line could not be begun on the disk: {}", hangs.message()));
  }
}

void Engine::AnnounceOff() {
  context_.inbox->Post([this] { context_.line->AnnounceOff(); });
}

void Engine::AnnounceToDisk(std::uint64_t step) {
  context_.inbox->Post([this, step] { context_.line->AnnounceToDisk(step); });
}

void Engine::GiveUpCall(std::uint64_t step, const Status& why) {
  context_.inbox->Post([this, step, why] { context_.line->CallGivenUp(step, why); });
}

void Engine::Retire() {
  {
    MutexLock lock(mutex_);
    removing_ = true;  // Whoever waits for idle also waits for this.
  }
  context_.inbox->Post([this] { retention_.Retire(); });
}

void Engine::EndSpares() {
  {
    MutexLock lock(mutex_);
    removing_ = true;
  }
  context_.inbox->Post([this] { retention_.EndSpares(); });
}

void Engine::ForgetKept(std::shared_ptr<const TensorTable> targets) {
  context_.inbox->Post([this, targets = std::move(targets)] {
    if (context_.kept != nullptr && MayChangeFrozen(*context_.kept->table, *targets)) context_.kept.reset();
    for (const auto& job : jobs_) job->ForgetKept(*targets);
  });
}

std::vector<std::shared_ptr<SaveTask>> Engine::InFlight() const {
  MutexLock lock(mutex_);
  return tasks_;
}

bool Engine::WaitForPlace(int places, Deadline deadline) const {
  MutexLock lock(mutex_);
  while (tasks_.size() >= static_cast<std::size_t>(places)) {
    if (deadline.passed()) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

bool Engine::WaitIdle(Deadline deadline) const {
  MutexLock lock(mutex_);
  while (!tasks_.empty() || WaitsForRemovals()) {
    if (deadline.passed()) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

Status Engine::DiskHangs() const {
  MutexLock lock(mutex_);
  return disk_hangs_;
}

std::string Engine::Busy() const {
  MutexLock lock(mutex_);
  std::vector<std::string> parts;
  if (!tasks_.empty()) {
    std::vector<std::uint64_t> steps;
    for (const auto& task : tasks_) steps.push_back(task->plan().step);
    parts.push_back(fmt::format("{} {} ({} {})", steps.size(), steps.size() == 1 ? "save" : "saves",
                                steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", ")));
  }
  if (behind_ != 0)
    parts.push_back(fmt::format("what {} ended {} left to remove", behind_, behind_ == 1 ? "save" : "saves"));
  if (removing_) parts.emplace_back("removals of older checkpoints");
  if (!slow_.empty()) parts.push_back(slow_);
  return parts.empty() ? "its last files" : fmt::format("{}", fmt::join(parts, ", "));
}

bool Engine::HasSaves() const {
  MutexLock lock(mutex_);
  return !tasks_.empty();
}

Status Engine::NewestFailure() const {
  MutexLock lock(mutex_);
  return failures_.Newest();
}

Status Engine::FailureAfter(std::uint64_t in_a_row) const {
  MutexLock lock(mutex_);
  static_cast<void>(failures_.TakeUnheard());
  if (in_a_row_ < in_a_row) return Status::Ok();
  const Status& newest = newest_in_a_row_;
  return Error(newest.code(), newest.detail(), "{} {} failed, the newest: {}", in_a_row_,
               in_a_row_ == 1 ? "save has" : "saves in a row have", newest.message());
}

Status Engine::TakeUnheardFailure() const {
  MutexLock lock(mutex_);
  return failures_.TakeUnheard();
}

void Engine::AddStats(CheckpointerStats& stats) const {
  MutexLock lock(mutex_);
  stats.saves_started = started_;
  stats.saves_durable = durable_;
  stats.saves_failed = failed_;
  stats.bytes_written = bytes_written_;
  stats.saves_in_flight = tasks_.size();
  if (durable_ != 0) stats.since_durable = SaveTask::Clock::now() - durable_since_;
  stats.failures_in_a_row = in_a_row_;
  stats.shards_recycled = recycled_;
  stats.not_recycled_reason = not_recycled_;
}

}  // namespace cairn
