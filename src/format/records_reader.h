#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/json_reader.h"

namespace cairn {

/// Reads {name: {text field, list field, list field}, ...}: a safetensors header or cairn.parts.
///
/// Each record has exactly these three fields; the lists hold natural numbers below 2^63. The derived class checks that
/// the records' names are unique. The member of one name may be a table of strings instead.
class RecordsReader : public JsonEvents {
 public:
  bool OnScalar(const JsonScalar& value) final;
  bool OnKey(std::string_view key) final;
  bool OnOpen(char bracket) final;
  bool OnClose() final;

 protected:
  struct Fields {
    std::string_view text;
    std::array<std::string_view, 2> lists;
  };
  /// `strings` is the name of the member that is a table of strings, or empty.
  RecordsReader(Fields fields, std::string_view strings) : fields_(fields), strings_name_(strings) {}

  /// Valid during the call.
  struct Record {
    std::string name;
    std::string text;
    std::array<std::vector<std::int64_t>, 2> lists;
  };
  virtual bool OnRecord(const Record& record) = 0;

  std::map<std::string, std::string> strings_;

 private:
  enum class At : std::uint8_t { kOutside, kTop, kRecord, kList, kStrings };

  bool FailExpected(std::string_view expected, const std::string& found);
  [[nodiscard]] std::string Place() const;

  const Fields fields_;
  const std::string_view strings_name_;
  At at_ = At::kOutside;
  Record record_;
  // Bit 0: the text; bits 1 and 2: the lists.
  unsigned seen_ = 0;
  // The field whose value comes next, numbered in the same way.
  unsigned field_ = 0;
  std::string string_name_;
  bool strings_seen_ = false;
};

}  // namespace cairn
