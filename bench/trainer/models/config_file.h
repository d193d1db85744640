#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace cairn::trainer {

/// Of any size: no product of a few overflows.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 28;

/// A field of config.json, as Hugging Face writes it, and what it means here.
struct ConfigField {
  enum class Kind : std::uint8_t {
    kSize,   ///< A number: this size.
    kFlag,   ///< true or false: this size, 1 or 0.
    kFixed,  ///< Must be as `here`, which is JSON, or left out: the model knows no other value.
  };
  Kind kind;
  const char* key;
  const char* here;                 ///< The size, as --size has it.
  const char* other_key = nullptr;  ///< Of a size: what older files have for `key`.
};

struct ConfigLayout {
  const char* model_type;  ///< What config.json says of itself.
  std::span<const ConfigField> fields;
};

/// The sizes of FOLDER/config.json. Throws std::runtime_error, naming file and field, for one that is missing or that
/// this layout does not allow. Fields that the layout does not know are passed over.
std::map<std::string, std::int64_t> ReadSizes(const std::string& folder, const ConfigLayout& layout);

}  // namespace cairn::trainer
