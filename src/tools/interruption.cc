#include "tools/interruption.h"

#include <csignal>

namespace cairn::tools {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

std::function<bool()> CatchInterruptions() {
  const auto take = [](int caught) {
    interrupted = 1;
    std::signal(caught, SIG_DFL);
  };
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, take);
  // Not what nohup ignores.
  if (std::signal(SIGHUP, SIG_IGN) != SIG_IGN) std::signal(SIGHUP, take);
  return [] { return interrupted != 0; };
}

}  // namespace cairn::tools
