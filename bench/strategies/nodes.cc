#include "bench/strategies/nodes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <system_error>

#include "base/status_macros.h"
#include "group/blocking.h"

namespace cairn::bench {
namespace {

constexpr auto kPatience = std::chrono::minutes(10);  // For a node that is slow; one that has gone is noticed at once.
constexpr const char* kNone = "none";

Result<std::uint64_t> ParseStep(const std::string& message) {
  if (message == kNone) return Error(StatusCode::kNotFound, "a node has no checkpoint");
  std::uint64_t step = 0;
  const char* const end = message.data() + message.size();
  const auto [parsed, error] = std::from_chars(message.data(), end, step);
  if (error == std::errc() && parsed == end) return step;
  return Error(StatusCode::kInternal, "expected a step from another node, found \"{}\"", message);
}

// The coordinator answers all with what it makes of their messages.
Result<std::string> Ask(Group& group, const std::string& key, const std::string& mine,
                        const std::function<std::string(const CollectedMessages&)>& answer) {
  const Deadline deadline = Deadline::In(kPatience);
  if (group.rank() != 0) {
    group.Send(key, mine);
    return AwaitMessage(group, key + "/all", deadline).get();
  }
  const CollectedMessages collected = CollectMessages(group, key, deadline).get();
  CAIRN_RETURN_IF_ERROR(collected.end);
  const std::string said = answer(collected);
  group.Announce(key + "/all", said);
  return said;
}

}  // namespace

Status AwaitDurableOnAll(const Workplace& workplace, std::uint64_t step) {
  if (workplace.group == nullptr) return {};
  const auto all = [](const CollectedMessages&) { return std::string("yes"); };
  return Ask(*workplace.group, "durable/" + std::to_string(step), "yes", all).status();
}

Result<std::uint64_t> NewestOnAll(const Workplace& workplace, const Result<std::uint64_t>& newest) {
  if (workplace.group == nullptr) return newest;
  const std::string mine = newest.ok() ? std::to_string(*newest) : kNone;
  const auto least = [&mine](const CollectedMessages& collected) {
    std::string found = mine;
    for (const auto& [rank, message] : collected.messages) {
      const Result<std::uint64_t> here = ParseStep(found);
      const Result<std::uint64_t> there = ParseStep(message);
      if (!here.ok()) break;
      if (!there.ok() || *there < *here) found = message;
    }
    return found;
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string agreed, Ask(*workplace.group, "newest", mine, least));
  if (!newest.ok()) return newest.status();
  return ParseStep(agreed);
}

}  // namespace cairn::bench
