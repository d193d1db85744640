#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace cairn::trainer {

/// The limit of any size, so that the product of a few does not overflow.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 28;

/// A field of Hugging Face's config.json, and its meaning for the trainer.
struct ConfigField {
  enum class Kind : std::uint8_t {
    /// A number: the size `here`.
    kSize,
    /// true or false: the size `here`, 1 or 0.
    kFlag,
    /// If present, must equal `here`, which is JSON: the model supports no other value.
    kFixed,
  };
  Kind kind;
  const char* key;
  /// The size's name in --size; for kFixed the JSON value.
  const char* here;
  /// For sizes: the name of `key` in older files.
  const char* other_key = nullptr;
};

struct ConfigLayout {
  /// The value of config.json's "model_type".
  const char* model_type;
  std::span<const ConfigField> fields;
};

/// The sizes of FOLDER/config.json. Throws std::runtime_error, naming file and field, for a field that is missing or
/// that the layout does not allow. Fields unknown to the layout are ignored.
std::map<std::string, std::int64_t> ReadSizes(const std::string& folder, const ConfigLayout& layout);

}  // namespace cairn::trainer
