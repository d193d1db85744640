#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/json_reader.h"

namespace cairn {

/// {name: {text field, list field, list field}, ...}: the form of a safetensors header and of cairn.parts.
///
/// Each record has all three fields, each once, and no others; the lists hold natural numbers below 2^63. Whether the
/// records' names are unique is for the derived class to see. One name may stand for a table of strings instead.
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
  /// `strings` is the name of the member that is a table of strings; empty: there is none.
  RecordsReader(Fields fields, std::string_view strings) : fields_(fields), strings_name_(strings) {}

  /// The members are valid during the call.
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
  unsigned seen_ = 0;   // Bit 0: the text; bits 1 and 2: the lists.
  unsigned field_ = 0;  // The field whose value comes next; 0 text, 1 and 2 lists.
  std::string string_name_;
  bool strings_seen_ = false;
};

}  // namespace cairn
