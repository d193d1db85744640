// Saves two tensors and a value in a loop, restores the last save into other memory, and compares.
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

  void Train(std::int64_t step) {
    std::iota(kernel.begin(), kernel.end(), static_cast<float>(step));
    steps[0] = step;
  }
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
  cairn::State state = trained.Describe();
  for (std::int64_t step = 1; step <= 7; ++step) {
    Require(checkpointer->Fence());  // Before tensors are overwritten.
    trained.Train(step);
    Require(checkpointer->LastFailure());  // An earlier save has failed: do not train on.
    Require(state.Set("epoch", step / 2));
    Require(checkpointer->Save(static_cast<std::uint64_t>(step), state).status());
  }
  Require(checkpointer->Drain());  // Waits until every save is durable.

  Weights restored;
  const auto result = checkpointer->Restore(cairn::Latest(), restored.Describe());
  Require(result.status());
  const bool same = restored.kernel == trained.kernel && restored.steps == trained.steps && result->step == 7 &&
                    result->values.at("epoch") == cairn::Value(std::int64_t{3});
  std::cout << (same ? "restored step 7 bit by bit\n" : "the restored tensors differ from the saved ones\n");
  return same ? 0 : 1;
}
