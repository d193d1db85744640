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

/// A cairn_train process and its output. The destructor kills and reaps it.
class TrainingProcess {
 public:
  /// Trains VGG-16 at width 2 unless the arguments name a model. Throws std::system_error if it cannot be started.
  /// `environment` is added to this process's: "RANK=1".
  explicit TrainingProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  ~TrainingProcess();
  TrainingProcess(const TrainingProcess&) = delete;
  TrainingProcess& operator=(const TrainingProcess&) = delete;

  /// The next line of its output, standard error included; nullopt once it has ended or when the time is up.
  std::optional<std::string> NextLine(std::chrono::milliseconds patience = std::chrono::minutes(2));
  /// Reads until a line with this prefix; nullopt if the process ended before.
  std::optional<std::string> NextLine(const std::string& beginning);
  void Signal(int signal);
  void Kill();
  /// Reads to the end and reaps. Returns the exit status, or minus the signal that ended it.
  int Finish();

  [[nodiscard]] pid_t pid() const { return child_; }
  /// Each step's loss, as printed, in the lines read so far.
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

/// Expects training to end before its first step with this message.
void ExpectRefused(const std::vector<std::string>& arguments, const std::string& why);

/// The details of the newest checkpoint under `root`.
cairn::Result<cairn::CheckpointDetails> NewestCheckpoint(const std::string& root);

/// The number after `name=` in a line such as "durable step=12".
std::uint64_t NumberAfter(const std::string& line, const std::string& name);

}  // namespace cairn::trainer
