#include "json_file.h"

#include <fstream>
#include <stdexcept>
#include <utility>

namespace cairn::trainer {

using nlohmann::json;

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw std::runtime_error(path_ + ": cannot be read");
  json_ = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json_.is_object()) throw std::runtime_error(path_ + ": expected a JSON object");
}

std::uint64_t JsonFile::Count(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_number_unsigned()) Refuse(key, "a whole number");
  return at->get<std::uint64_t>();
}

bool JsonFile::Flag(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_boolean()) Refuse(key, "true or false");
  return at->get<bool>();
}

std::string JsonFile::Text(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_string()) Refuse(key, "a text");
  return at->get<std::string>();
}

const json& JsonFile::Object(const char* key) const {
  const auto at = json_.find(key);
  if (at == json_.end() || !at->is_object()) Refuse(key, "an object");
  return *at;
}

void JsonFile::Demand(const char* key, const char* value) const {
  const auto at = json_.find(key);
  if (at != json_.end() && *at != json::parse(value)) Refuse(key, value);
}

void JsonFile::Refuse(const char* key, const std::string& expected) const {
  const auto at = json_.find(key);
  throw std::runtime_error(path_ + ": " + key + ": expected " + expected + ", found " +
                           (at == json_.end() ? "none" : at->dump()));
}

}  // namespace cairn::trainer
