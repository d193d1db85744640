// One rank of a job that trains with libtorch: restores, if there is a checkpoint, trains a step and saves.
//
//   trainer ROOT STORE RANK WORLD STEP SEED
//
// Prints a digest of what it restored and one of what it saved: "restored 1 6f3a...", "saved 2 90c1...".
#include <ATen/ops/ones.h>
#include <cairn/cairn.h>
#include <cairn/torch.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace {

void Check(const cairn::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <typename T>
T Check(cairn::Result<T> result) {
  Check(result.status());
  return std::move(result).value();
}

std::size_t Digest(const cairn::NamedTensors& parameters, const torch::optim::Optimizer& optimizer) {
  std::string all;
  const auto add = [&](const at::Tensor& tensor) {
    all.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  for (const auto& item : parameters) {
    add(item.value());
    const auto& state =
        static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(item.value().unsafeGetTensorImpl()));
    add(state.exp_avg());
    add(state.exp_avg_sq());
    all += std::to_string(state.step()) + ' ';
  }
  for (const auto& group : optimizer.param_groups()) all += std::to_string(group.options().get_lr()) + ' ';
  return std::hash<std::string>()(all);
}

void Run(const std::string& root, const std::string& file, int rank, int world, std::uint64_t step,
         std::uint64_t seed) {
  at::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(300, 200), torch::nn::LayerNorm(torch::nn::LayerNormOptions({200})));
  const double rate = 0.1 / static_cast<double>(seed);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(rate));
  const auto store = c10::make_intrusive<c10d::FileStore>(file, world);
  const auto train = [&] {
    optimizer.zero_grad();
    model->forward(at::ones({4, 300})).square().sum().backward();
    optimizer.step();
  };
  const auto report = [&](const char* what, std::uint64_t at) {
    std::ostringstream line;  // In one write: the ranks share a pipe.
    line << what << ' ' << at << ' ' << std::hex << Digest(model->named_parameters(), optimizer) << '\n';
    std::cerr << line.str();
  };
#include "example.inc"
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    Run(argv[1], argv[2], std::stoi(argv[3]), std::stoi(argv[4]), std::stoull(argv[5]), std::stoull(argv[6]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
