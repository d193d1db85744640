#include "tools/unknown_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"

namespace cairn::tools {
namespace {

/// How many letters must be inserted, removed, replaced or swapped with their neighbours.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

Status Unknown(std::string_view kind, const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t kNear = 2;
  const std::string* nearest = nullptr;
  std::size_t least = std::min(kNear + 1, word.size());
  for (const std::string& one : known) {
    if (const std::size_t distance = Distance(word, one); distance < least) {
      least = distance;
      nearest = &one;
    }
  }
  return Error(StatusCode::kInvalidArgument, "unknown {} \"{}\"; {}", kind, word,
               nearest != nullptr ? fmt::format("did you mean {}?", *nearest)
                                  : fmt::format("there are {}", fmt::join(known, ", ")));
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool IsOption(const std::string& word) {
  const bool is_number = word.size() > 1 && (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
  return word.size() > 1 && word[0] == '-' && word != "--" && !is_number;
}

}  // namespace

Status CheckWords(const CLI::App& app, int argc, char** argv) {
  const std::vector<CLI::App*> used = app.get_subcommands();
  if (used.empty() && argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> commands;
    for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
      commands.push_back(one->get_name());
    }
    return Unknown("command", argv[1], commands);
  }
  const CLI::App& last = used.empty() ? app : *used.front();
  for (const std::string& word : last.remaining()) {
    if (IsOption(word)) return Unknown("option", word.substr(0, word.find('=')), OptionNames(last));
  }
  return Status::Ok();
}

bool FirstIsUnknown(const CLI::App& app, const std::string& first) {
  const std::vector<CLI::App*> used = app.get_subcommands();
  if (used.empty() || !IsOption(first)) return false;
  const std::vector<std::string> unknown = used.front()->remaining();
  return std::ranges::find(unknown, first) != unknown.end();
}

}  // namespace cairn::tools
