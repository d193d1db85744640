// The process that gemini's training keeps its checkpoints in; started by it (peer.h says how).
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/gemini/peer.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const cairn::Status status = cairn::bench::RunPeer(argv[1], std::strtoull(argv[2], nullptr, 10), argv[3], argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  ::dprintf(cairn::bench::kPeerReadyFd, "%s\n", status.ToString().c_str());
  return 1;
}
