#pragma once

#include <CLI/App.hpp>
#include <string>

#include "cairn/status.h"

namespace cairn::tools {

/// After a parse that failed: InvalidArgument if the words have an unknown command or option. It names the known one
/// that is most like it, or where all are listed.
[[nodiscard]] Status CheckWords(const CLI::App& app, int argc, char** argv);
/// After it: whether the subcommand's first word is an option that it does not know.
[[nodiscard]] bool FirstIsUnknown(const CLI::App& app, const std::string& first);

}  // namespace cairn::tools
