// trainer_logits: runs a model with given weights on the first --accumulate batches of --batch samples of --data, and
// writes the logits as raw floats to the file that --report names. Prints "loss=N", the training loss of the last batch
// with random generators seeded by --seed. Takes cairn_train's flags; test_opt.py and its siblings compare the result
// with other implementations.
#include <ATen/Context.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <numeric>
#include <sstream>
#include <vector>

#include "console.h"
#include "flags.h"
#include "models/model.h"
#include "weights.h"

namespace cairn::trainer {
namespace {

void WriteLogits(const Flags& flags) {
  const Dataset data = OpenDataset(
      {.what = flags.data, .kinds = LearnsFrom(flags.model), .sequence = flags.sequence, .batch = flags.batch});
  const Model model = MakeModel(
      {.name = flags.model, .data = data.shape, .sizes = SizesFrom(flags.init_from, flags.model, flags.sizes)});
  LoadWeights(flags.init_from, model);
  std::vector<std::uint64_t> samples(flags.batch);
  std::ofstream out(flags.report, std::ios::binary);
  for (std::uint64_t i = 0; i < flags.accumulate; ++i) {
    std::iota(samples.begin(), samples.end(), i * flags.batch);
    const at::Tensor logits = model.logits(data.read(samples)).contiguous();
    out.write(static_cast<const char*>(logits.const_data_ptr()), static_cast<std::streamsize>(logits.nbytes()));
    if (model.advance) model.advance();
  }
  at::manual_seed(flags.seed);
  std::ostringstream line;
  line.precision(9);
  line << "loss=" << model.loss(data.read(samples)).item<double>();
  PrintLine(line.str());
}

}  // namespace
}  // namespace cairn::trainer

int main(int argc, char** argv) {
  using namespace cairn::trainer;
  Flags flags;
  if (const auto status = ParseFlags(argc, argv, flags)) return *status;
  try {
    WriteLogits(flags);
    return 0;
  } catch (const std::exception& error) {
    PrintError(error.what());
    return 1;
  }
}
