#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace cairn {

/// A variable of the environment, as long as this lives; nullptr: it is not set. Make and destroy it while the process
/// has no other threads that look at the environment.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    Set(value);
  }
  Variable(const char* name, const std::string& value) : Variable(name, value.c_str()) {}
  ~Variable() { Set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void Set(const char* value) { value == nullptr ? ::unsetenv(name_) : ::setenv(name_, value, 1); }

  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace cairn
