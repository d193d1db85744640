#include "fuzz/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace cairn {
namespace {

// A message has a few names, each cut at 200 bytes.
constexpr std::size_t kLongestMessage = 4000;

}  // namespace

void Require(bool holds, std::string_view promise, std::string_view detail) {
  if (holds) return;
  const std::string text = "broken promise: " + std::string(promise) + "\n" + std::string(detail) + "\n";
  std::fputs(text.c_str(), stderr);
  std::abort();
}

void RequireRefusal(const Status& status, std::string_view file) {
  const std::string& message = status.message();
  Require(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
          "hostile input is Corrupt or Unsupported", message);
  Require(message.find(file) != std::string::npos, "a refusal names the file", message);
  Require(message.size() <= kLongestMessage, "a refusal's message is of bounded length", message);
}

}  // namespace cairn
