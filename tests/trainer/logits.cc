// trainer_logits: what a model with weights from elsewhere makes of the first --batch samples of --data, and of
// --accumulate batches in all one after the other, as raw floats in the file that --report names; and "loss=N", in
// training on the last of them with random generators that --seed has set. Takes cairn_train's flags; test_opt.py and
// the like compare with other implementations.
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
  Say(line.str());
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
    Complain(error.what());
    return 1;
  }
}
