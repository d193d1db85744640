#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "advice/profile.h"

namespace cairn {

/// profile.json: what `cairn profile` writes and `cairn tune --profile` reads.
struct ProfileFile {
  std::vector<std::string> command;
  /// What a table calls it; may be empty.
  std::string job;
  Profile profile;
  /// Measured to test the model, which does not use them.
  std::vector<ProfileSample> checks;
  /// How memory was limited, or why it was not.
  std::string memory_note;
};

/// With knee and advice, for people and pictures; reading derives them again.
[[nodiscard]] nlohmann::json ToJson(const ProfileFile& file);
[[nodiscard]] Status WriteProfile(const std::string& path, const ProfileFile& file);
/// InvalidArgument names the file, the field, the expected and the found value.
[[nodiscard]] Result<ProfileFile> ReadProfile(const std::string& path);

}  // namespace cairn
