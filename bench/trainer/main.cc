// cairn_train: trains a model with libtorch while Cairn checkpoints it.
//
//   cairn_train --model vgg16 --data digits --steps 100 --every 10 --checkpoint-dir /mnt/nvme/run7
//   cairn_train --model vgg16 --data digits --steps 100 --every 10 --checkpoint-dir /mnt/nvme/run7 --resume
//   cairn_train --model opt-125m --data PREPARED_TEXT --sequence 32 --optimizer adamw --checkpoint-dir /mnt/nvme/run8
//   cairn_train --model transformer-xl-base --data PREPARED_WORDS --sequence 150 --batch 60 --checkpoint-dir RUN
//   torchrun --no-python --nproc-per-node 2 cairn_train --model vgg16 --data digits --checkpoint-dir /mnt/nvme/run7
#include <c10/util/Exception.h>

#include <exception>

#include "console.h"
#include "flags.h"
#include "train.h"

int main(int argc, char** argv) {
  using namespace cairn::trainer;
  Flags flags;
  if (const auto status = ParseFlags(argc, argv, flags)) return *status;
  try {
    return static_cast<int>(Train(flags));
  } catch (const c10::Error& error) {
    PrintError(error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    PrintError(error.what());
    return 1;
  }
}
