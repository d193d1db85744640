#include "format/json_reader.h"

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

using nlohmann::json;

// The parser's SAX interface: names and signatures are nlohmann's.
class Adapter {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() { return events_.OnScalar({.kind = JsonScalar::Kind::kNull}); }
  bool boolean(bool value) { return events_.OnScalar({.kind = JsonScalar::Kind::kBool, .boolean = value}); }
  bool number_integer(json::number_integer_t value) {
    return events_.OnScalar({.kind = JsonScalar::Kind::kNegative, .negative = value});
  }
  bool number_unsigned(json::number_unsigned_t value) {
    return events_.OnScalar({.kind = JsonScalar::Kind::kNatural, .natural = value});
  }
  bool number_float(json::number_float_t value, const std::string& text) {
    return events_.OnScalar({.kind = JsonScalar::Kind::kReal, .real = value, .text = text});
  }
  bool string(const std::string& text) { return events_.OnScalar({.kind = JsonScalar::Kind::kText, .text = text}); }
  bool binary(const json::binary_t& /*value*/) { return false; }
  bool key(const std::string& key) { return events_.OnKey(key); }
  bool start_object(std::size_t /*count*/) { return Open('{'); }
  bool start_array(std::size_t /*count*/) { return Open('['); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& /*error*/) {
    // The exception's message would quote the input, however long and in any encoding.
    error_at_ = position;
    return false;
  }

  [[nodiscard]] bool too_deep() const { return depth_ > kMaxJsonDepth; }
  [[nodiscard]] std::size_t error_at() const { return error_at_; }

 private:
  bool Open(char bracket) { return ++depth_ <= kMaxJsonDepth && events_.OnOpen(bracket); }
  bool Close() {
    --depth_;
    return events_.OnClose();
  }

  JsonEvents& events_;
  int depth_ = 0;
  std::size_t error_at_ = 0;
};

}  // namespace

std::string JsonScalar::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kNatural:
      return fmt::format("the number {}", natural);
    case Kind::kNegative:
      return negative == 0 ? "the number -0" : fmt::format("the number {}", negative);
    case Kind::kReal:
      return fmt::format("the number {}", text.substr(0, 40));
    case Kind::kText:
      return "the text " + Quoted(text);
  }
  return "?";
}

Status ReadJson(std::string_view text, JsonEvents& events, const std::string& where) {
  if (!text.starts_with('{'))
    return Error(StatusCode::kCorrupt, "{}: expected a JSON object that begins with '{{'", where);
  // The parser would stop at a zero byte.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    return Error(StatusCode::kCorrupt, "{}: expected JSON, found a zero byte at {}", where, zero);
  }
  Adapter adapter(events);
  try {
    if (json::sax_parse(text.data(), text.data() + text.size(), &adapter)) return Status::Ok();
  } catch (const std::exception& error) {
    return Error(StatusCode::kResourceExhausted, "{}: {}", where, error.what());
  }
  if (!events.status().ok()) return {events.status().code(), fmt::format("{}: {}", where, events.status().message())};
  if (adapter.too_deep()) {
    return Error(StatusCode::kCorrupt, "{}: expected JSON of at most {} levels, found more", where, kMaxJsonDepth);
  }
  return Error(StatusCode::kCorrupt, "{}: expected JSON, found an error at byte {} of {}", where, adapter.error_at(),
               text.size());
}

}  // namespace cairn
