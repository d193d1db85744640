// Saves two tensors and a value, restores them into other memory, and compares.
//
//   scripts/build release && cmake --install build/release --prefix PREFIX
//   cmake -S examples -B build/examples -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build/examples
//   build/examples/save_and_restore ROOT
//
// Prints "restored step 7 bit by bit". ROOT is a folder, which is made; afterwards it holds the checkpoint.
#include <cairn/cairn.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

void Require(const cairn::Status& status) {
  if (status.ok()) return;
  std::cerr << status << '\n';
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

struct Weights {
  std::vector<float> kernel = std::vector<float>(100'000);
  std::vector<std::int64_t> steps = {0};

  cairn::State Describe() {
    cairn::State state;
    Require(state.Add("kernel", {.data = kernel.data(), .dtype = cairn::DType::kF32, .shape = {1000, 100}}));
    Require(state.Add("steps", {.data = steps.data(), .dtype = cairn::DType::kI64, .shape = {1}}));
    return state;
  }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace cairn::literals;
  if (argc != 2) return 2;
  auto opened = cairn::Checkpointer::Open({.root = argv[1], .host_memory_bytes = 64_MiB});
  Require(opened.status());
  const auto checkpointer = std::move(opened).value();

  Weights trained;
  std::iota(trained.kernel.begin(), trained.kernel.end(), 0.0F);
  trained.steps[0] = 7;
  cairn::State state = trained.Describe();
  Require(state.Set("epoch", std::int64_t{3}));
  const auto save = checkpointer->Save(7, state);
  Require(save.status());
  Require(checkpointer->Fence());
  Require(save->WaitDurable());

  Weights restored;
  const auto result = checkpointer->Restore(cairn::Latest(), restored.Describe());
  Require(result.status());
  const bool same = restored.kernel == trained.kernel && restored.steps == trained.steps && result->step == 7 &&
                    result->values.at("epoch") == cairn::Value(std::int64_t{3});
  std::cout << (same ? "restored step 7 bit by bit\n" : "the restored tensors differ from the saved ones\n");
  return same ? 0 : 1;
}
