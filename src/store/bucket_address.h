#pragma once

#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// Whether a target means a place in an object store: "s3://...", "gs://...", "az://..." or "rclone:REMOTE:PATH".
[[nodiscard]] bool IsBucket(std::string_view target);

/// The target for messages: of one with settings or a user, which may have secrets, only its kind.
[[nodiscard]] std::string WithoutSettings(std::string_view target);

/// Such a place.
struct BucketAddress {
  /// As it was given, without slashes at its end.
  std::string text;
  /// For rclone.
  std::string remote;

  /// InvalidArgument for what is none.
  [[nodiscard]] static Result<BucketAddress> Parse(std::string_view text);
  /// An object or a folder below it.
  [[nodiscard]] std::string Remote(std::string_view name) const;
};

}  // namespace cairn
