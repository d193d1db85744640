#include "bench/pipeline/served_memory.h"

#include <utility>

#include "base/status_macros.h"

namespace cairn::bench {

Result<std::unique_ptr<ServedMemory>> ServedMemory::Open(const std::string& address, std::uint64_t state_bytes) {
  CAIRN_ASSIGN_OR_RETURN(PeerMemory memory, PeerMemory::Make(state_bytes));
  CAIRN_ASSIGN_OR_RETURN(Listener listener, Listener::Open(address));
  return std::unique_ptr<ServedMemory>(new ServedMemory(std::move(listener), std::move(memory)));
}

ServedMemory::ServedMemory(Listener listener, PeerMemory memory)
    : listener_(std::move(listener)), memory_(std::move(memory)), thread_([this] { Serve(); }) {}

ServedMemory::~ServedMemory() {
  listener_.Shutdown();
  thread_.join();
}

// One training after the other, until the listener is shut down. By then the last training must be gone.
void ServedMemory::Serve() {
  for (;;) {
    const Result<std::unique_ptr<Socket>> training = listener_.Accept(Deadline::Infinite());
    if (!training.ok()) return;
    static_cast<void>(memory_.Serve(**training));  // Always an error: it has ended or was killed.
  }
}

}  // namespace cairn::bench
