#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/status.h"

namespace cairn {

/// Parses a document. `where` begins the messages: the file's name.
///
/// InvalidArgument if it is no JSON, has a member twice or is nested too deeply.
[[nodiscard]] Result<nlohmann::json> ParseJson(std::string_view text, const std::string& where);

/// A value of a document, or a member that is missing, and its path for messages: "net.json: locations[2].count". What
/// is refused is InvalidArgument, and names the path, the expected and the found value. The document must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& document, std::string where) : JsonField(document, std::move(where), ": ") {}

  [[nodiscard]] std::size_t size() const { return value_.size(); }
  [[nodiscard]] bool Has(const char* name) const { return value_.contains(name); }
  /// What is missing is refused by every check.
  [[nodiscard]] JsonField At(const char* name) const;
  /// It must be there.
  [[nodiscard]] JsonField At(std::size_t index) const;
  /// With words that explain the path.
  [[nodiscard]] JsonField Named(std::string_view words) const;

  [[nodiscard]] Status Wrong(std::string_view what) const;
  /// Says what was found, too.
  [[nodiscard]] Status Expected(std::string_view what) const;

  /// An object. If there are `known` members, it has no others.
  [[nodiscard]] Status CheckObject(std::initializer_list<std::string_view> known = {}) const;
  [[nodiscard]] Status CheckArray(std::size_t least, std::size_t most, std::string_view of) const;
  [[nodiscard]] Result<std::string> Text() const;
  /// Not empty.
  [[nodiscard]] Result<std::string> Name() const;
  [[nodiscard]] Result<double> Number(double least = -kInfinity, double most = kInfinity) const;
  [[nodiscard]] Result<std::uint64_t> Whole(std::uint64_t least,
                                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) const;

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  JsonField(const nlohmann::json& value, std::string path, const char* separator)
      : value_(value), path_(std::move(path)), separator_(separator) {}

  const nlohmann::json& value_;
  const std::string path_;
  /// Of a member's name.
  const char* const separator_;
};

}  // namespace cairn
