// Every short history of a run: restores, saves, deaths at each point, and two places for checkpoints, of which the
// second may be away when a process begins. The ledger, the write of the line and the encoded record are the real ones.
//
// The second place stands for what outlives a process elsewhere: another node's memory, a mirror, a copy. What comes
// back with it is as old as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/ledger.h"
#include "engine/line_record.h"
#include "fuzz/inline_queue.h"
#include "store/writer.h"

namespace cairn {
namespace {

/// Makes the same run again and again, each time with other choices, until all have been made.
class Choices {
 public:
  std::size_t Pick(std::size_t of) {
    if (at_ == made_.size()) made_.push_back({0, of});
    return made_[at_++].first;
  }
  bool Next() {
    at_ = 0;
    while (!made_.empty() && made_.back().first + 1 == made_.back().second) made_.pop_back();
    if (made_.empty()) return false;
    ++made_.back().first;
    return true;
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> made_;  // And of how many.
  std::size_t at_ = 0;
};

/// Training from one restore to the next one. Only the last one that began is wanted.
using History = int;

struct Saved {
  CheckpointInfo info;
  History history = 0;
};

class ModelRun {
 public:
  ModelRun(Choices& choices, IoQueue& queue) : choices_(choices), queue_(queue) {}

  void Go() {
    constexpr int kRounds = 4;
    for (int round = 1; round <= kRounds && wrong_.empty(); ++round) {
      const bool goes_on = process_ != nullptr;
      if (!goes_on) Open();
      Restore(goes_on);
      Save(round == kRounds);
      CheckNewest();
    }
  }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] const std::string& told() const { return told_; }

 private:
  // By step: a checkpoint saved again takes the older one's name.
  using Place = std::map<std::uint64_t, Saved>;

  struct Process {
    Process(std::vector<CheckpointInfo> listed, std::uint64_t line) : ledger(std::move(listed), 0, 0, line) {}
    Ledger ledger;
    LineRecord line_record;
    std::uint64_t newest = 0;
  };

  /// What a process sees: of a step the newer one.
  [[nodiscard]] std::vector<Saved> Visible(bool both) const {
    Place all = places_[0];
    for (const auto& [step, one] : places_[1]) {
      const auto there = all.find(step);
      if (both && (there == all.end() || there->second.info.line < one.info.line)) all[step] = one;
    }
    std::vector<Saved> list;
    for (auto& [step, one] : all) list.push_back(std::move(one));
    std::sort(list.begin(), list.end(), [](const Saved& a, const Saved& b) {
      return std::pair(a.info.line, a.info.step) < std::pair(b.info.line, b.info.step);
    });
    return list;
  }
  [[nodiscard]] static std::vector<CheckpointInfo> Infos(const std::vector<Saved>& list) {
    std::vector<CheckpointInfo> infos;
    for (const Saved& one : list) infos.push_back(one.info);
    return infos;
  }

  void Open() {
    away_ = !places_[1].empty() && choices_.Pick(2) == 1;
    const Result<WriterRecord> last = DecodeWriter(record_, "record");
    const WriterRecord record = WriterRecord::Next(last.ok() ? std::optional(*last) : std::nullopt);
    record_ = EncodeWriter(record);
    process_ = std::make_unique<Process>(Infos(Visible(!away_)), record.line);
    told_ += away_ ? " open-without-2" : " open";
  }

  /// The newest or an older one, or none: after an opening a new history then begins, too.
  void Restore(bool goes_on) {
    const std::vector<Saved> list = Visible(!away_);
    const std::size_t some = std::min<std::size_t>(list.size(), 2);
    const std::size_t back = choices_.Pick(some + 1);
    if (back == some) {
      if (!goes_on) {
        process_->newest = list.empty() ? 0 : list.back().info.step;
        history_ = ++begun_;
        told_ += " begin";
      }
      return;
    }
    const Saved& from = list[list.size() - 1 - back];
    process_->ledger.Restored(from.info.step, from.info.line, from.info.attempt);
    process_->newest = from.info.step;
    history_ = ++begun_;
    told_ += " restore-" + from.info.attempt;
  }

  IoTask<Status> WriteLine(std::uint64_t line) {
    if (dies_before_line_) co_return Status(StatusCode::kCancelled, "dead");
    Result<WriterRecord> record = DecodeWriter(record_, "record");
    record->line = line;
    record_ = EncodeWriter(*record);
    co_return Status::Ok();
  }

  void Save(bool last) {
    enum : std::uint8_t { kToFirst, kToSecond, kDiesInFirst, kDiesInSecond, kDiesBeforeCommit, kDiesBeforeLine };
    const std::size_t end = choices_.Pick(last ? 2 : 6);
    const bool second = (end == kToSecond || end == kDiesInSecond) && !away_;
    const Result<SavePlan> plan = process_->ledger.Admit(process_->newest + 1, IfExists::kFail);
    ASSERT_TRUE(plan.ok()) << plan.status() << told_;
    dies_before_line_ = end == kDiesBeforeLine;
    Status recorded;
    process_->line_record.Ensure(queue_, write_, plan->line, [&](const Status& status) { recorded = status; });
    while (queue_.pending() != 0) ASSERT_TRUE(queue_.RunOnce(Deadline::Infinite()).ok());
    if (recorded.ok() && end != kDiesBeforeLine && end != kDiesBeforeCommit) Commit(*plan, second ? 1 : 0);
    if (end >= kDiesInFirst) process_.reset();
    told_ += end == kDiesBeforeLine     ? " die-before-line"
             : end == kDiesBeforeCommit ? " die-before-commit"
             : end >= kDiesInFirst      ? " die"
                                        : "";
  }

  void Commit(const SavePlan& plan, std::size_t place) {
    Saved one{.history = history_};
    one.info.step = plan.step;
    one.info.line = plan.line;
    one.info.attempt = std::to_string(plan.line) + "." + std::to_string(plan.step) + "-" + std::to_string(history_);
    process_->ledger.Committed(plan, one.info.attempt);
    process_->newest = plan.step;
    told_ += " save-" + one.info.attempt + "-in-" + std::to_string(place + 1);
    const auto [owner, fresh] = owners_.emplace(plan.line, history_);
    if (!fresh && owner->second != history_) wrong_ = "two histories share a line:" + told_;
    places_.at(place)[plan.step] = std::move(one);
  }

  // Whoever opens the root next, with the second place or without it.
  void CheckNewest() {
    for (const bool both : {false, true}) {
      const std::vector<Saved> list = Visible(both);
      const std::vector<CheckpointInfo> ranked = Ledger(Infos(list), 0, 0).NewestFirst();
      for (const Saved& one : list) {
        const bool found = one.info.attempt == ranked.front().attempt;
        const bool wanted =
            std::none_of(list.begin(), list.end(), [&](const Saved& other) { return other.history > one.history; });
        if (found && !wanted) wrong_ = "the newest is of an abandoned line:" + told_;
      }
    }
  }

  Choices& choices_;
  IoQueue& queue_;
  const LineRecord::Write write_ = [this](std::uint64_t line) { return WriteLine(line); };
  std::string record_;
  std::array<Place, 2> places_;
  std::map<std::uint64_t, History> owners_;  // By line.
  History begun_ = 0;
  History history_ = 0;
  std::unique_ptr<Process> process_;
  bool away_ = false;
  bool dies_before_line_ = false;
  std::string told_;
  std::string wrong_;
};

TEST(LineModel, NoHistoryBringsAnAbandonedLineBack) {
  const std::unique_ptr<IoQueue> queue = *InlineQueue::Make();
  Choices choices;
  int histories = 0;
  do {
    ModelRun run(choices, *queue);
    run.Go();
    ++histories;
    ASSERT_EQ(run.wrong(), "");
    ASSERT_FALSE(HasFatalFailure()) << run.told();
  } while (choices.Next());
  EXPECT_GT(histories, 1) << "x" << (std::cerr << histories, 0);
}

}  // namespace
}  // namespace cairn
