#include "tools/interruption.h"

#include <csignal>

namespace cairn::tools {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

std::function<bool()> CatchInterruptions() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, [](int caught) {
      interrupted = 1;
      std::signal(caught, SIG_DFL);
    });
  }
  return [] { return interrupted != 0; };
}

}  // namespace cairn::tools
