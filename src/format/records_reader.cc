#include "format/records_reader.h"

#include <limits>

#include "format/fields.h"

namespace cairn {

std::string RecordsReader::Place() const {
  switch (at_) {
    case At::kOutside:
    case At::kTop:
      return "member " + Quoted(record_.name);
    case At::kStrings:
      return fmt::format("{}: key {}", strings_name_, Quoted(string_name_));
    case At::kRecord:
    case At::kList:
      break;
  }
  return fmt::format("tensor {}: {}", Quoted(record_.name), field_ == 0 ? fields_.text : fields_.lists.at(field_ - 1));
}

bool RecordsReader::FailExpected(std::string_view expected, const std::string& found) {
  return Fail("{}: expected {}, found {}", Place(), expected, found);
}

bool RecordsReader::OnScalar(const JsonScalar& value) {
  switch (at_) {
    case At::kOutside:
    case At::kTop:
      return FailExpected("an object", value.Describe());
    case At::kStrings:
      if (value.kind != JsonScalar::Kind::kText) return FailExpected("a string", value.Describe());
      if (!strings_.emplace(string_name_, value.text).second) return FailExpected("once", "twice");
      return true;
    case At::kRecord:
      if (field_ != 0) return FailExpected("an array", value.Describe());
      if (value.kind != JsonScalar::Kind::kText) return FailExpected("a string", value.Describe());
      record_.text = value.text;
      return true;
    case At::kList:
      if (value.kind != JsonScalar::Kind::kNatural || value.natural > std::numeric_limits<std::int64_t>::max()) {
        return FailExpected("integers from 0 to 2^63 - 1", value.Describe());
      }
      record_.lists.at(field_ - 1).push_back(static_cast<std::int64_t>(value.natural));
      return true;
  }
  return false;
}

bool RecordsReader::OnKey(std::string_view key) {
  if (at_ == At::kTop) {
    record_.name = key;
    return true;
  }
  if (at_ == At::kStrings) {
    string_name_ = key;
    return true;
  }
  if (key == fields_.text) {
    field_ = 0;
  } else if (key == fields_.lists[0]) {
    field_ = 1;
  } else if (key == fields_.lists[1]) {
    field_ = 2;
  } else {
    return Fail("tensor {}: expected only {}, {} and {}, found {}", Quoted(record_.name), fields_.text,
                fields_.lists[0], fields_.lists[1], Quoted(key));
  }
  if ((seen_ & 1U << field_) != 0) return FailExpected("once", "twice");
  seen_ |= 1U << field_;
  return true;
}

bool RecordsReader::OnOpen(char bracket) {
  switch (at_) {
    case At::kOutside:
      at_ = At::kTop;
      return true;
    case At::kTop:
      if (bracket != '{') return FailExpected("an object", "an array");
      if (!strings_name_.empty() && record_.name == strings_name_) {
        if (strings_seen_) return FailExpected("once", "twice");
        strings_seen_ = true;
        at_ = At::kStrings;
        return true;
      }
      at_ = At::kRecord;
      seen_ = 0;
      for (auto& list : record_.lists) list.clear();
      return true;
    case At::kRecord:
      if (field_ == 0) return FailExpected("a string", bracket == '{' ? "an object" : "an array");
      if (bracket != '[') return FailExpected("an array", "an object");
      at_ = At::kList;
      return true;
    case At::kList:
      return FailExpected("integers from 0 to 2^63 - 1", bracket == '{' ? "an object" : "an array");
    case At::kStrings:
      return FailExpected("a string", bracket == '{' ? "an object" : "an array");
  }
  return false;
}

bool RecordsReader::OnClose() {
  switch (at_) {
    case At::kOutside:
      return false;
    case At::kTop:
      at_ = At::kOutside;
      return true;
    case At::kStrings:
      at_ = At::kTop;
      return true;
    case At::kList:
      at_ = At::kRecord;
      return true;
    case At::kRecord:
      break;
  }
  at_ = At::kTop;
  for (unsigned field = 0; field < 3; ++field) {
    if ((seen_ & 1U << field) == 0) {
      return Fail("tensor {}: {}: missing", Quoted(record_.name),
                  field == 0 ? fields_.text : fields_.lists.at(field - 1));
    }
  }
  return OnRecord(record_);
}

}  // namespace cairn
