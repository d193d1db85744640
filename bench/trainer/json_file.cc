#include "json_file.h"

#include <fstream>
#include <stdexcept>
#include <utility>

namespace cairn::trainer {

using nlohmann::json;

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw std::runtime_error(path_ + ": cannot read the file");
  json_ = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json_.is_object()) throw std::runtime_error(path_ + ": expected a JSON object");
}

std::uint64_t JsonFile::Count(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_number_unsigned()) Reject(key, "an unsigned integer");
  return at->get<std::uint64_t>();
}

bool JsonFile::Flag(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_boolean()) Reject(key, "true or false");
  return at->get<bool>();
}

std::string JsonFile::Text(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_string()) Reject(key, "a string");
  return at->get<std::string>();
}

const json& JsonFile::Object(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_object()) Reject(key, "an object");
  return *at;
}

void JsonFile::Require(const char* key, const char* value) const {
  const auto at = json_.find(key);
  if (at != json_.end() && *at != json::parse(value)) Reject(key, value);
}

void JsonFile::Reject(const char* key, const std::string& expected) const {
  const auto at = json_.find(key);
  throw std::runtime_error(path_ + ": " + key + ": expected " + expected + ", found " +
                           (at == json_.end() ? "none" : at->dump()));
}

}  // namespace cairn::trainer
