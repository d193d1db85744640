// The process that writes pccheck's checkpoints; started by the training (writer_process.h says how).
#include "bench/pccheck/writer_process.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  cairn::bench::RunWriter(argv[1]);
}
