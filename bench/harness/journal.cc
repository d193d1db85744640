#include "bench/harness/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/status_macros.h"
#include "bench/harness/resources.h"

namespace cairn::bench {
namespace {

std::string Step(std::uint64_t step) { return fmt::format("\"step\": {}", step); }

}  // namespace

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  std::unique_ptr<Journal> journal(new Journal(std::move(file)));
  journal->Write("open", fmt::format("\"pid\": {}", ::getpid()));
  return journal;
}

void Journal::Begin(std::uint64_t step) const { Write("begin", Step(step)); }
void Journal::Save(std::uint64_t step) const { Write("save", Step(step)); }
void Journal::Durable(std::uint64_t step) const { Write("durable", Step(step)); }
void Journal::End(std::uint64_t step) const { Write("end", Step(step)); }

void Journal::Iteration(std::uint64_t step, double stall, std::optional<pid_t> other) const {
  const HostMemory memory = HostMemoryNow(other);
  Write("iteration", fmt::format(R"({}, "stall": {:.6f}, "anonymous": {}, "mapped": {}, "dirty": {})", Step(step),
                                 stall, memory.anonymous, memory.mapped, memory.dirty));
}

void Journal::Write(const std::string& event, const std::string& more) const {
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::string line = fmt::format("{{\"at\": {:.6f}, \"event\": \"{}\", {}}}\n", now, event, more);
  // A line that a full disk refuses is lost: the figures that need it lack it.
  static_cast<void>(::write(file_.get(), line.data(), line.size()) < 0);
}

}  // namespace cairn::bench
