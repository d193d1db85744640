#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/status.h"

namespace cairn {

/// A JSON value that is neither object nor array.
struct JsonScalar {
  enum class Kind : std::uint8_t {
    kNull,
    kBool,
    kNatural,   ///< An integer without a sign, up to 2^64 - 1.
    kNegative,  ///< An integer written with a minus sign, down to -2^63. Minus zero too.
    kReal,      ///< Every other number, including integers beyond these ranges.
    kText,
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::uint64_t natural = 0;
  std::int64_t negative = 0;
  double real = 0;
  /// kText: the string. kReal: the number as written.
  std::string_view text;

  /// "the text \"F33\"", "the number -1": for messages.
  [[nodiscard]] std::string Describe() const;
};

/// Receives a JSON text piece by piece. Every function returns whether to continue; Fail() sets the error.
///
/// Views are valid during the call. The text so far is well-formed: keys only in objects, matching brackets.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual bool OnScalar(const JsonScalar& value) = 0;
  virtual bool OnKey(std::string_view key) = 0;
  /// `bracket` is '{' or '['.
  virtual bool OnOpen(char bracket) = 0;
  virtual bool OnClose() = 0;

  [[nodiscard]] const Status& status() const { return status_; }

 protected:
  JsonEvents() = default;
  JsonEvents(const JsonEvents&) = default;
  JsonEvents& operator=(const JsonEvents&) = default;

  template <typename... Args>
  bool Fail(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
    status_ = Status(code, fmt::format(format, std::forward<Args>(args)...));
    return false;
  }
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    return Fail(StatusCode::kCorrupt, format, std::forward<Args>(args)...);
  }

 private:
  Status status_;
};

/// Deeper nesting is refused.
inline constexpr int kMaxJsonDepth = 32;

/// Reads one JSON object that may be hostile. Needs memory for its longest string, and what `events` keeps.
///
/// Corrupt if it is not exactly one JSON object in UTF-8; otherwise the status of `events`. Messages begin with
/// `where`. Nothing is thrown.
[[nodiscard]] Status ReadJson(std::string_view text, JsonEvents& events, const std::string& where);

}  // namespace cairn
