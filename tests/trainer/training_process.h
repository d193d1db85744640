#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"

namespace cairn::trainer {

/// A cairn_train in a process of its own, and what it printed. Killed and reaped at the latest when this goes.
class TrainingProcess {
 public:
  /// Trains VGG-16 at width 2 unless the arguments name a model. Throws std::system_error where it cannot be started.
  explicit TrainingProcess(const std::vector<std::string>& arguments);
  ~TrainingProcess();
  TrainingProcess(const TrainingProcess&) = delete;
  TrainingProcess& operator=(const TrainingProcess&) = delete;

  /// The next line that it prints (standard error too). Nothing once it has ended, or when the time is up.
  std::optional<std::string> NextLine(std::chrono::milliseconds patience = std::chrono::minutes(2));
  /// Reads on until a line begins so; nothing where it ended before.
  std::optional<std::string> NextLine(const std::string& beginning);
  void Signal(int signal);
  void Kill();
  /// Reads to the end and reaps. The exit status, or minus the signal that ended it.
  int Finish();

  /// Of the lines read so far: what each step lost, as printed.
  [[nodiscard]] const std::map<std::uint64_t, std::string>& losses() const { return losses_; }
  /// Every line read so far.
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  pid_t child_ = -1;
  int pipe_ = -1;
  std::string unread_;
  std::string output_;
  std::map<std::uint64_t, std::string> losses_;
};

/// Training ends before its first step, saying why.
void ExpectRefused(const std::vector<std::string>& arguments, const std::string& why);

/// What the newest checkpoint under `root` holds.
cairn::Result<cairn::CheckpointDetails> NewestCheckpoint(const std::string& root);

/// The number after `name=` in a line as "durable step=12".
std::uint64_t NumberAfter(const std::string& line, const std::string& name);

}  // namespace cairn::trainer
