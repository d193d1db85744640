#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace cairn::trainer {

/// A JSON object from a file. Every function throws std::runtime_error, naming file and field, for a field that is
/// missing or has another type or value than expected.
class JsonFile {
 public:
  /// Throws if the file cannot be read or is not a JSON object.
  explicit JsonFile(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] bool Has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] std::uint64_t Count(const char* key) const;
  [[nodiscard]] bool Flag(const char* key) const;
  [[nodiscard]] std::string Text(const char* key) const;
  [[nodiscard]] const nlohmann::json& Object(const char* key) const;
  /// Throws if the key is present with a value other than `value`, which is JSON text.
  void Require(const char* key, const char* value) const;
  /// Throws "PATH: KEY: expected EXPECTED, found ...".
  [[noreturn]] void Reject(const char* key, const std::string& expected) const;

 private:
  std::string path_;
  nlohmann::json json_;
};

}  // namespace cairn::trainer
