#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace cairn::trainer {

/// A JSON object from a file. What it lacks, or has otherwise than asked for, is told by file and field: every function
/// throws std::runtime_error for that.
class JsonFile {
 public:
  /// Throws where there is no such file, or no JSON object in it.
  explicit JsonFile(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] bool Has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] std::uint64_t Count(const char* key) const;
  [[nodiscard]] bool Flag(const char* key) const;
  [[nodiscard]] std::string Text(const char* key) const;
  [[nodiscard]] const nlohmann::json& Object(const char* key) const;
  /// Throws where the key is there with another value than this, which is JSON.
  void Demand(const char* key, const char* value) const;
  /// Throws "PATH: KEY: expected EXPECTED, found ...".
  [[noreturn]] void Refuse(const char* key, const std::string& expected) const;

 private:
  std::string path_;
  nlohmann::json json_;
};

}  // namespace cairn::trainer
