#pragma once

#include <gtest/gtest.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): popen
#include <sys/wait.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "testing/temp_dir.h"

namespace cairn {

/// What a program has answered.
struct Ran {
  int code = -1;  ///< -1 where a signal ended it.
  std::string out;
  std::string err;
  [[nodiscard]] nlohmann::json parsed() const { return nlohmann::json::parse(out); }
};

/// Runs the shell's command, without input, to its end.
[[nodiscard]] inline Ran RunShell(const std::string& command) {
  const TempDir directory;
  const std::string errors = directory / "stderr";
  FILE* const pipe = ::popen((command + " 2>'" + errors + "' </dev/null").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Ran ran;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ostringstream text;
  text << std::ifstream(errors).rdbuf();
  ran.err = text.str();
  return ran;
}

/// The same of a program. Arguments hold no apostrophe.
[[nodiscard]] inline Ran RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  std::string command = "'" + program + "'";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  return RunShell(command);
}

}  // namespace cairn
