#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "base/status_macros.h"
#include "bench/strategies/strategy.h"
#include "bench/strategies/torch_build.h"
#include "bench/strategies/trainer_compute.h"

namespace cairn::bench {
namespace {

constexpr const char* kTorchBinary = "bench_training_torch";

Status NoTorch(std::string_view what) {
  return Error(StatusCode::kUnsupported,
               "{} needs libtorch, which this build has not: \"scripts/build release bench_training_torch\" makes the "
               "one that has it",
               what);
}

}  // namespace

Status EnterTorchBuild(const Flags& flags, char** argv) {
  if (flags.strategy != "gemini" && flags.compute != "trainer") return {};
  std::error_code error;
  const std::filesystem::path binary =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / kTorchBinary;
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);  // It warns of names that a network of its own cannot resolve.
  ::execv(binary.c_str(), argv);
  return NoTorch(flags.strategy == "gemini" ? "--strategy gemini" : "--compute trainer");
}

Result<std::unique_ptr<TrainerCompute>> OpenTrainer(const TrainerSettings& /*settings*/) {
  return NoTorch("--compute trainer");
}

StrategyKind GeminiKind() {
  return {.name = "gemini",
          .tuning = "",
          .checkpoints_on_disk = [](int) { return 0; },
          .host_bytes = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; },
          .open = [](const Workplace&) -> Result<std::unique_ptr<Strategy>> { return NoTorch("--strategy gemini"); }};
}

}  // namespace cairn::bench
