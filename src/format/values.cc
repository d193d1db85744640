#include <fmt/format.h>

#include <limits>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "format/fields.h"
#include "format/json_reader.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

constexpr std::string_view kJsonTag = "json";

struct ValueWriter {
  std::string& out;

  void operator()(std::nullptr_t) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(std::int64_t value) const { fmt::format_to(std::back_inserter(out), "{}", value); }
  void operator()(double value) const {
    const std::string text = fmt::format("{}", value);  // The shortest text that parses to the same bits.
    out += text;
    if (text.find_first_of(".e") == std::string::npos) out += ".0";
  }
  void operator()(const std::string& value) const { AppendJsonString(out, value); }
  void operator()(const Json& value) const {
    out += "{\"json\":";
    AppendJsonString(out, value.text);
    out += '}';
  }
};

class ValuesReader final : public JsonEvents {
 public:
  bool OnScalar(const JsonScalar& value) override {
    if (depth_ == 1) return Store(value);
    if (value.kind != JsonScalar::Kind::kText) return FailTagged("JSON in a string", value.Describe());
    if (!IsJson(value.text)) return FailTagged("JSON in a string", value.Describe());
    return Insert(Json{std::string(value.text)});
  }
  bool OnKey(std::string_view key) override {
    if (depth_ == 1) {
      name_ = key;
      if (values.contains(name_)) return Fail("value {}: expected once, found twice", Quoted(name_));
      return true;
    }
    if (key != kJsonTag) return FailTagged("only the key \"json\"", Quoted(key));
    if (values.contains(name_)) return FailTagged("the key \"json\" once", "two");
    return true;
  }
  bool OnOpen(char bracket) override {
    if (depth_ != 0 && bracket == '[') return FailTagged("no array", "an array");
    if (depth_ == 2) return FailTagged("JSON in a string", "an object");
    ++depth_;
    return true;
  }
  bool OnClose() override {
    --depth_;
    if (depth_ == 1 && !values.contains(name_)) return FailTagged("the key \"json\"", "none");
    return true;
  }

  Values values;

 private:
  bool Store(const JsonScalar& value) {
    switch (value.kind) {
      case JsonScalar::Kind::kNull:
        return Insert(nullptr);
      case JsonScalar::Kind::kBool:
        return Insert(value.boolean);
      case JsonScalar::Kind::kText:
        return Insert(std::string(value.text));
      case JsonScalar::Kind::kNatural:
        if (value.natural > std::numeric_limits<std::int64_t>::max()) return FailInteger(value);
        return Insert(static_cast<std::int64_t>(value.natural));
      case JsonScalar::Kind::kNegative:
        return Insert(value.negative);
      case JsonScalar::Kind::kReal:
        // The parser converts integers that are too large to doubles, which would change the value.
        if (value.text.find_first_of(".eE") == std::string_view::npos) return FailInteger(value);
        return Insert(value.real);
    }
    return false;
  }
  bool Insert(Value value) {
    values.emplace(name_, std::move(value));
    return true;
  }
  bool FailInteger(const JsonScalar& value) {
    return Fail("value {}: expected an integer from -2^63 to 2^63 - 1, found {}", Quoted(name_), value.Describe());
  }
  bool FailTagged(std::string_view expected, const std::string& found) {
    return Fail("value {}: expected {}, found {}", Quoted(name_), expected, found);
  }

  int depth_ = 0;
  std::string name_;
};

}  // namespace

std::string EncodeValues(const Values& values) {
  std::string out = "{";
  for (const auto& [name, value] : values) {
    if (out.size() > 1) out += ',';
    AppendJsonString(out, name);
    out += ':';
    std::visit(ValueWriter{out}, value);
  }
  out += '}';
  return out;
}

Result<Values> DecodeValues(std::string_view json, const std::string& file) {
  ValuesReader reader;
  CAIRN_RETURN_IF_ERROR(ReadJson(json, reader, file));
  return std::move(reader.values);
}

}  // namespace cairn
