#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cairn {

/// One entry of the inbox or the log that ranks share in a store: see store_link.h. As bytes it is its kind and its
/// parts, each after its length and a colon.
struct StoreEntry {
  enum class Kind {
    kMessage,  ///< `number`, key, text.
    kClosed,   ///< `number`: the writer sends nothing more.
    kFilled,   ///< `number`: nothing; it only takes the place of an entry that does not come.
    kRefused,  ///< `number`, text: why rank 0 did not open, where a rank was refused or it closed.
    kLate,     ///< `number`, text: the same where a rank did not come in time.
  };
  Kind kind = Kind::kFilled;
  /// In the inbox the writer's rank, in the log how many ranks read the entry.
  int number = 0;
  std::string key;
  std::string text;
  friend bool operator==(const StoreEntry&, const StoreEntry&) = default;
};

[[nodiscard]] std::string PackEntry(const StoreEntry& entry);
/// nullopt for bytes that are no entry.
[[nodiscard]] std::optional<StoreEntry> UnpackEntry(std::string_view bytes);

}  // namespace cairn
