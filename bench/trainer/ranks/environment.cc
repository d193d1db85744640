#include "ranks/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace cairn::trainer {
namespace {

const char* Find(const char* name) { return std::getenv(name); }  // NOLINT(concurrency-mt-unsafe): nobody sets it.

[[noreturn]] void Reject(const std::string& name, const std::string& expected, const char* found) {
  throw std::runtime_error("the environment's " + name + ": expected " + expected + ", found " +
                           (found == nullptr ? "none" : found));
}

int Number(const char* name, int least, int most) {
  const char* found = Find(name);
  int number = 0;
  const std::string_view text = found == nullptr ? "" : found;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    Reject(name, "a number from " + std::to_string(least) + " to " + std::to_string(most), found);
  }
  return number;
}

}  // namespace

RankEnvironment ReadRankEnvironment() {
  RankEnvironment environment;
  if (Find("WORLD_SIZE") == nullptr) return environment;
  environment.world = Number("WORLD_SIZE", 1, 1 << 20);
  environment.rank = Number("RANK", 0, environment.world - 1);
  environment.local_rank = Find("LOCAL_RANK") == nullptr ? environment.rank : Number("LOCAL_RANK", 0, 1 << 10);
  const char* address = Find("MASTER_ADDR");
  if (address == nullptr) Reject("MASTER_ADDR", "the host of rank 0", address);
  environment.master_address = address;
  environment.master_port =
      static_cast<std::uint16_t>(Number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max()));
  const char* runs = Find("TORCHELASTIC_USE_AGENT_STORE");
  environment.store_runs = runs != nullptr && std::string_view(runs) == "True";
  if (const char* attempt = Find("TORCHELASTIC_RESTART_COUNT")) environment.attempt = attempt;
  return environment;
}

}  // namespace cairn::trainer
