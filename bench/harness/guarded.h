#pragma once

#include <exception>
#include <string>

#include "cairn/status.h"

namespace cairn::bench {

/// Calls body(). What it throws becomes a Status that begins with `what`, without torch's stack of calls. Not made by
/// Error(): torch's headers bring an fmt of their own.
template <typename Body>
Status Guarded(const char* what, StatusCode code, const Body& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {code, std::string(what) + ": " + text.substr(0, text.find('\n'))};
  }
}

}  // namespace cairn::bench
