#include <fmt/format.h>

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "format/fields.h"
#include "format/json_reader.h"
#include "format/shard_header.h"

namespace cairn {
namespace {

constexpr std::string_view kJsonTag = "json";
constexpr std::string_view kJsonInTag = "json_in";
constexpr std::string_view kSumTag = "crc32c";

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
    if (key_ == kSumTag) {
      const auto sum = value.kind == JsonScalar::Kind::kText ? ParseHex32(value.text) : std::nullopt;
      if (!sum) return FailTagged("8 lower-case hexadecimal digits", value.Describe());
      sum_ = *sum;
      return true;
    }
    const bool is_json = key_ == kJsonTag;
    if (value.kind != JsonScalar::Kind::kText || (is_json && !IsJson(value.text))) {
      return FailTagged(is_json ? "JSON in a string" : "a tensor's name", value.Describe());
    }
    (is_json ? json_ : tensor_) = value.text;
    return true;
  }
  bool OnKey(std::string_view key) override {
    if (depth_ == 1) {
      name_ = key;
      const bool twice = decoded.values.contains(name_) || long_names_.contains(name_);
      return !twice || Fail("value {}: expected once, found twice", Quoted(name_));
    }
    if (key != kJsonTag && key != kJsonInTag && key != kSumTag) {
      return FailTagged("only the key \"json\", or \"json_in\" and \"crc32c\"", Quoted(key));
    }
    const bool twice = key == kJsonTag ? json_.has_value() : key == kSumTag ? sum_.has_value() : tensor_.has_value();
    if (twice) return FailTagged(fmt::format("the key {} once", Quoted(key)), "two");
    key_ = key;
    return true;
  }
  bool OnOpen(char bracket) override {
    if (depth_ != 0 && bracket == '[') return FailTagged("no array", "an array");
    if (depth_ == 2) return FailTagged("JSON in a string", "an object");
    if (++depth_ == 2) {
      json_.reset();
      tensor_.reset();
      sum_.reset();
    }
    return true;
  }
  bool OnClose() override {
    if (--depth_ != 1) return true;
    if (json_ && !tensor_ && !sum_) return Insert(Json{*std::move(json_)});
    if (json_ || !tensor_ || !sum_) {
      return FailTagged("the key \"json\", or \"json_in\" and \"crc32c\"",
                        json_ || tensor_ || sum_ ? "others" : "none");
    }
    long_names_.insert(name_);
    decoded.long_values.push_back({.name = name_, .tensor = *std::move(tensor_), .crc32c = *sum_});
    return true;
  }

  DecodedValues decoded;

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
    decoded.values.emplace(name_, std::move(value));
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
  std::set<std::string> long_names_;
  // Of the value that is an object.
  std::string key_;
  std::optional<std::string> json_;
  std::optional<std::string> tensor_;
  std::optional<std::uint32_t> sum_;
};

}  // namespace

std::string EncodeValues(const Values& values, std::span<const LongValue> long_values) {
  std::string out = "{";
  const auto begin = [&out](const std::string& name) {
    if (out.size() > 1) out += ',';
    AppendJsonString(out, name);
    out += ':';
  };
  for (const auto& [name, value] : values) {
    begin(name);
    std::visit(ValueWriter{out}, value);
  }
  for (const LongValue& value : long_values) {
    begin(value.name);
    out += "{\"json_in\":";
    AppendJsonString(out, value.tensor);
    out += ",\"crc32c\":\"";
    AppendHex32(out, value.crc32c);
    out += "\"}";
  }
  out += '}';
  return out;
}

Result<DecodedValues> DecodeValues(std::string_view json, const std::string& file) {
  ValuesReader reader;
  CAIRN_RETURN_IF_ERROR(ReadJson(json, reader, file));
  return std::move(reader.decoded);
}

}  // namespace cairn
