#include "bench/pipeline/socket_group.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

constexpr std::uint32_t kMost = 64U << 20;  // Of a key or a message: more is not a frame.

}  // namespace

SocketGroup::SocketGroup(int rank, std::unique_ptr<Socket> socket)
    : rank_(rank),
      socket_(std::move(socket)),
      mailbox_(std::make_shared<Mailbox>(rank, 2, watch_)),
      listener_([this] { Listen(); }) {}

SocketGroup::~SocketGroup() {
  socket_->Shutdown();
  listener_.join();
  mailbox_->Close();
}

void SocketGroup::Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) {
  mailbox_->Collect(key, deadline, std::move(on_message), std::move(end));
}

void SocketGroup::Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) {
  mailbox_->Await(key, deadline, std::move(on_announced));
}

// A failure shows as a rank that has left.
void SocketGroup::Write(const std::string& key, const std::string& message) {
  const std::array<std::uint32_t, 2> lengths{static_cast<std::uint32_t>(key.size()),
                                             static_cast<std::uint32_t>(message.size())};
  const auto text = [](const std::string& of) -> Bytes { return std::as_bytes(std::span(of)); };
  MutexLock lock(sending_);
  for (const Bytes part : {Bytes(std::as_bytes(std::span(lengths))), text(key), text(message)}) {
    if (!socket_->Send(part).ok()) return;
  }
}

void SocketGroup::Listen() {
  const auto receive = [this](std::string& text) { return socket_->Receive(std::as_writable_bytes(std::span(text))); };
  const auto next = [&]() -> Status {
    std::array<std::uint32_t, 2> lengths{};
    CAIRN_RETURN_IF_ERROR(socket_->Receive(std::as_writable_bytes(std::span(lengths))));
    if (lengths[0] > kMost || lengths[1] > kMost) return Error(StatusCode::kIoError, "no message but other bytes");
    std::string key(lengths[0], '\0');
    std::string message(lengths[1], '\0');
    CAIRN_RETURN_IF_ERROR(receive(key));
    CAIRN_RETURN_IF_ERROR(receive(message));
    mailbox_->Receive(1 - rank_, key, std::move(message));
    return {};
  };
  while (next().ok()) {
  }
  mailbox_->Leave(1 - rank_);
}

}  // namespace cairn::bench
