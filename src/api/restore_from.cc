#include "api/restore_from.h"

#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/command_process.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "store/list.h"

namespace cairn {
namespace {

/// The wait for the command.
class Bringing {
 public:
  Bringing(const Options& options, const std::function<void()>& goes_on) : options_(options), goes_on_(goes_on) {}

  [[nodiscard]] Status Run() {
    const Status brought = Bring();
    if (brought.ok()) return brought;
    // A caller may take NotFound for a first start.
    const StatusCode code = brought.code() == StatusCode::kNotFound ? StatusCode::kIoError : brought.code();
    return Error(code, "restore_from {}: {}", from_, brought.message());
  }

 private:
  [[nodiscard]] Status Bring() {
    const auto list = ListInfos(options_.root);
    if (list.status().code() != StatusCode::kNotFound) {
      CAIRN_RETURN_IF_ERROR(list.status());
      if (!list->empty()) return Status::Ok();
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string command, FindCommand(options_.mirror_command));
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandProcess> process,
                           CommandProcess::Start({.words = {command, "fetch", from_, options_.root, "--keep-last", "1",
                                                            "--with-stdin", "--json"}}));
    std::optional<int> end;
    while (!(end = process->FindEnd())) {
      Hear(*process);
      if (Deadline::Clock::now() - moved_ >= options_.group_timeout) {
        process->Kill();
        pollfd killed = process->Watched().front();
        ::poll(&killed, 1, kKillMs);  // In a call that hangs it stays.
        static_cast<void>(process->FindEnd());
        const std::string& last = waits_.empty() ? said_ : waits_;
        return Error(StatusCode::kDeadlineExceeded, "nothing has moved for {}{}{}",
                     HumanDuration(options_.group_timeout), last.empty() ? "" : ": ", last);
      }
      std::vector<pollfd> watched = process->Watched();
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(options_.group_timeout - (Deadline::Clock::now() - moved_));
      const auto most = std::clamp<std::int64_t>(left.count(), 0, kMostMs);
      ::poll(watched.data(), watched.size(), static_cast<int>(most));
    }
    Hear(*process);
    // The program may have set out not to know how its children end.
    if ((*end == 0 || *end == CommandProcess::kUnknownEnd) && copied_) {
      Tell(Severity::kInfo, fmt::format("restore_from {}: its step {} is in the root now", from_, *copied_));
    } else if (empty_) {
      Tell(Severity::kWarning, fmt::format("restore_from {}: it has no checkpoint, so the root begins empty{}{}", from_,
                                           beside_.empty() ? "" : ". Beside it: ", beside_));
    } else {
      // Also with exit code 0: it has checkpoints, and none of them could be taken.
      return said_.empty() ? Error(StatusCode::kIoError,
                                   "none of its checkpoints was brought (cairn fetch has ended {}): see cairn ls {}",
                                   DescribeEnd(*end), from_)
                           : StatusOf(said_);
    }
    return Status::Ok();
  }

  void Hear(CommandProcess& process) {
    for (const std::string& line : process.TakeOutput()) HearEvent(line);
    for (std::string line : process.TakeErrors()) {
      constexpr std::string_view kPrefix = "cairn: ";
      if (line.starts_with(kPrefix)) line.erase(0, kPrefix.size());
      said_ = std::move(line);
    }
  }

  /// Each of its events but "waiting" says that bytes have moved.
  void HearEvent(const std::string& line) try {
    const nlohmann::json said = nlohmann::json::parse(line);
    const auto event = said.at("event").get<std::string>();
    if (event == "waiting") {
      waits_ = said.at("message").get<std::string>();
      return;
    }
    waits_.clear();
    if (event == "copied") copied_ = said.at("step").get<std::uint64_t>();
    if (event == "empty") {
      empty_ = true;
      beside_ = said.value("beside", "");
    }
    if (event == "error") said_ = said.at("message").get<std::string>();
    moved_ = Deadline::Clock::now();
    if (moved_ - announced_ < options_.group_timeout / 4) return;
    announced_ = moved_;
    goes_on_();
  } catch (const nlohmann::json::exception& error) {
    said_ = fmt::format("expected one of its events, found {}: {}", Printable(line), error.what());
  }

  void Tell(Severity severity, std::string message) const {
    if (!options_.on_event) return;
    options_.on_event({.severity = severity, .message = std::move(message), .phase = "open", .path = options_.root});
  }

  static constexpr std::int64_t kMostMs = 60'000;
  static constexpr int kKillMs = 1'000;

  const Options& options_;
  const std::string& from_ = options_.restore_from;
  const std::function<void()>& goes_on_;
  Deadline::Clock::time_point moved_ = Deadline::Clock::now();
  Deadline::Clock::time_point announced_ = moved_;
  std::optional<std::uint64_t> copied_;
  // It has no checkpoint; and what is beside it then.
  bool empty_ = false;
  std::string beside_;
  // Its last words, and what it waits for since then.
  std::string said_;
  std::string waits_;
};

}  // namespace

Status BringNewest(const Options& options, const std::function<void()>& goes_on) {
  return options.restore_from.empty() ? Status::Ok() : Bringing(options, goes_on).Run();
}

}  // namespace cairn
