#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// What the training and its writer process tell each other.
struct PcCheckMessage {
  enum class Kind : std::uint8_t {
    kReady,     ///< The writer can save now, or why it cannot. Its first message.
    kSave,      ///< To the writer: save the state, which is that of `step`.
    kCopy,      ///< To the training: copy `bytes` of the state, from `begin` on, to `place` in the shared memory.
    kCaptured,  ///< To the training: the state of a save may be overwritten.
    kTake,      ///< To the training: `bytes` are given to the emulated disk now. The answer says when it has them.
    kRecorded,  ///< To the training: `step` is recorded. The answer comes once every node has it.
    kEnded,     ///< To the training: a save has ended, or why it failed.
    kAnswer,    ///< To the question before it.
  };
  static constexpr std::size_t kMostText = 480;

  Kind kind = Kind::kAnswer;
  StatusCode code = StatusCode::kOk;  ///< Of kReady, kEnded and kAnswer, with `text`.
  bool newest = false;                ///< Of kRecorded: no newer step was recorded before.
  std::uint64_t step = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t place = 0;
  std::int64_t due = 0;  ///< Of kTake's answer: nanoseconds of the steady clock.
  std::array<char, kMostText> text{};

  [[nodiscard]] Status status() const;
};
/// A message that only carries a status. What does not fit its text is cut.
[[nodiscard]] PcCheckMessage StatusMessage(PcCheckMessage::Kind kind, const Status& status);

/// One end of a connection between the two processes. One thread at a time, but for Shut.
class PcCheckChannel {
 public:
  explicit PcCheckChannel(UniqueFd socket) : socket_(std::move(socket)) {}
  /// Both ends. Neither is inherited by a program that is started.
  [[nodiscard]] static Result<std::pair<PcCheckChannel, PcCheckChannel>> Make();

  /// FailedPrecondition once the other process has gone.
  Status Send(const PcCheckMessage& message);
  [[nodiscard]] Result<PcCheckMessage> Receive();
  /// The same, if a message is there already.
  [[nodiscard]] std::optional<Result<PcCheckMessage>> Poll();
  [[nodiscard]] Result<PcCheckMessage> Ask(const PcCheckMessage& question);
  /// Ends the connection, for both processes.
  void Shut();
  [[nodiscard]] const UniqueFd& socket() const { return socket_; }

 private:
  [[nodiscard]] std::optional<Result<PcCheckMessage>> Receive(int flags);

  UniqueFd socket_;
};

}  // namespace cairn::bench
