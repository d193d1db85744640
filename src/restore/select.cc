#include "restore/select.h"

#include "base/utf8.h"
#include "restore/mismatches.h"

namespace cairn {

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  if (pattern == name) return true;
  // Greedy, with one backtracking point: the last *, and how much of the name it has matched.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t swallowed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = n;
    } else if (p < pattern.size() && pattern[p] == '?') {
      ++p;
      do ++n;
      while (n < name.size() && ContinuesCharacter(name[n]));
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<std::vector<std::uint32_t>> SelectEntries(const TensorTable& table, const std::vector<std::string>& names) {
  std::vector<bool> selected(table.size(), names.empty());
  Mismatches mismatches;
  for (const std::string& pattern : names) {
    if (!IsUtf8(pattern)) {
      mismatches.Add("the pattern {:?} is not valid UTF-8", std::string_view(pattern));
      continue;
    }
    bool matched = false;
    if (const auto exact = table.Find(pattern)) {
      selected[*exact] = true;
      matched = true;
    }
    if (pattern.find_first_of("*?") != std::string::npos) {
      for (std::uint32_t i = 0; i < table.size(); ++i) {
        if (!MatchesPattern(pattern, table[i].name)) continue;
        selected[i] = true;
        matched = true;
      }
    }
    if (!matched) mismatches.Add("\"{}\" matches none of the state's {} tensors", pattern, table.size());
  }
  if (!mismatches.empty()) return mismatches.ToStatus();
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (selected[i]) indices.push_back(i);
  }
  return indices;
}

}  // namespace cairn
