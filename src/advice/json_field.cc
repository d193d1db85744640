#include "advice/json_field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {

using nlohmann::json;

namespace {

/// Looks for a member that an object has twice. json::parse with a callback could do so, too, but needs the square of a
/// list's length. Names and signatures are nlohmann's.
class MemberNames {
 public:
  bool null() { return true; }
  bool boolean(bool /*value*/) { return true; }
  bool number_integer(json::number_integer_t /*value*/) { return true; }
  bool number_unsigned(json::number_unsigned_t /*value*/) { return true; }
  bool number_float(json::number_float_t /*value*/, const std::string& /*text*/) { return true; }
  bool string(const std::string& /*text*/) { return true; }
  bool binary(const json::binary_t& /*value*/) { return true; }
  bool start_array(std::size_t /*count*/) { return true; }
  bool end_array() { return true; }
  bool start_object(std::size_t /*count*/) {
    names_.emplace_back();
    return true;
  }
  bool end_object() {
    names_.pop_back();
    return true;
  }
  bool key(const std::string& name) {
    if (names_.back().insert(name).second) return true;
    twice_ = name;
    return false;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& /*error*/) {
    return false;
  }

  [[nodiscard]] const std::optional<std::string>& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> names_;
  std::optional<std::string> twice_;
};

}  // namespace

Result<json> ParseJson(std::string_view text, const std::string& where) {
  if (IsNestedTooDeeply(text)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected at most {} levels of lists and objects, found more", where,
                 kMostJsonLevels);
  }
  try {
    json parsed = json::parse(text);
    MemberNames names;
    json::sax_parse(text, &names);
    if (!names.twice()) return parsed;
    return Error(StatusCode::kInvalidArgument, "{}: the member {} is there twice", where, Quoted(*names.twice()));
  } catch (const json::exception& error) {
    return Error(StatusCode::kInvalidArgument, "{}: expected JSON, found: {}", where, error.what());
  }
}

JsonField JsonField::At(const char* name) const {
  static const json kNothing(json::value_t::discarded);
  const auto found = value_.find(name);
  return {found == value_.end() ? kNothing : *found, path_ + separator_ + name, "."};
}

JsonField JsonField::At(std::size_t index) const {
  return {value_.at(index), fmt::format("{}[{}]", path_, index), "."};
}

JsonField JsonField::Named(std::string_view words) const {
  return {value_, fmt::format("{} ({})", path_, words), separator_};
}

Status JsonField::Wrong(std::string_view what) const {
  return Error(StatusCode::kInvalidArgument, "{}: {}", path_, what);
}

Status JsonField::Expected(std::string_view what) const {
  std::string found = value_.is_discarded() ? "nothing" : value_.dump(-1, ' ', true, json::error_handler_t::replace);
  if (found.size() > 60) found = found.substr(0, 57) + "...";
  return Wrong(fmt::format("expected {}, found {}", what, found));
}

Status JsonField::CheckObject(std::initializer_list<std::string_view> known) const {
  if (!value_.is_object()) return Expected("an object");
  const std::set<std::string_view> names(known);
  for (const auto& [name, value] : value_.items()) {
    if (names.empty() || names.contains(name)) continue;
    return At(name.c_str()).Wrong(fmt::format("unknown; expected {}", fmt::join(names, ", ")));
  }
  return Status::Ok();
}

Status JsonField::CheckArray(std::size_t least, std::size_t most, std::string_view of) const {
  if (!value_.is_array()) return Expected(fmt::format("a list of {}", of));
  if (size() >= least && size() <= most) return Status::Ok();
  const std::string range = least == most ? fmt::to_string(least) : fmt::format("{} to {}", least, most);
  return Wrong(fmt::format("expected {} {}, found {}", range, of, size()));
}

Result<std::string> JsonField::Text() const {
  if (!value_.is_string()) return Expected("a text");
  return value_.get<std::string>();
}

Result<std::string> JsonField::Name() const {
  if (!value_.is_string() || value_.get_ref<const std::string&>().empty()) return Expected("a name");
  return value_.get<std::string>();
}

Result<double> JsonField::Number(double least, double most) const {
  const double number = value_.is_number() ? value_.get<double>() : -1;
  if (value_.is_number() && number >= least && number <= most) return number;
  return Expected(most == kInfinity ? "a number" : fmt::format("a number from {:g} to {:g}", least, most));
}

Result<std::uint64_t> JsonField::Whole(std::uint64_t least, std::uint64_t most) const {
  if (value_.is_number_unsigned()) {
    const std::uint64_t number = value_.get<std::uint64_t>();
    if (number >= least && number <= most) return number;
  }
  return Expected(least == most ? fmt::to_string(least) : fmt::format("a whole number from {} to {}", least, most));
}

}  // namespace cairn
