#include "models/config_file.h"

#include "json_file.h"

namespace cairn::trainer {
namespace {

/// The name of this field in the file; `key` if the file has neither name.
const char* KeyIn(const JsonFile& config, const ConfigField& field) {
  if (field.other_key == nullptr || !config.Has(field.other_key)) return field.key;
  if (!config.Has(field.key)) return field.other_key;
  const std::uint64_t other = config.Count(field.other_key);
  if (config.Count(field.key) != other) {
    config.Reject(field.key, std::to_string(other) + ", as in " + field.other_key);
  }
  return field.key;
}

}  // namespace

std::map<std::string, std::int64_t> ReadSizes(const std::string& folder, const ConfigLayout& layout) {
  const JsonFile config(folder + "/config.json");
  if (config.Text("model_type") != layout.model_type) {
    config.Reject("model_type", std::string("\"") + layout.model_type + "\", as for --model");
  }
  std::map<std::string, std::int64_t> sizes;
  for (const ConfigField& field : layout.fields) {
    switch (field.kind) {
      case ConfigField::Kind::kSize: {
        const char* const key = KeyIn(config, field);
        if (config.Count(key) > static_cast<std::uint64_t>(kMaxSize))
          config.Reject(key, "at most " + std::to_string(kMaxSize));
        sizes[field.here] = static_cast<std::int64_t>(config.Count(key));
        break;
      }
      case ConfigField::Kind::kFlag:
        sizes[field.here] = config.Flag(field.key) ? 1 : 0;
        break;
      case ConfigField::Kind::kFixed:
        config.Require(field.key, field.here);
        break;
    }
  }
  return sizes;
}

}  // namespace cairn::trainer
