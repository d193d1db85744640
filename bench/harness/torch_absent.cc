// What needs libtorch, in builds without it.
#include "bench/gemini/peer.h"
#include "bench/harness/products.h"
#include "bench/harness/trainer_compute.h"

namespace cairn::bench {
namespace {

Status NoTorch() { return {StatusCode::kUnsupported, "this build has no libtorch"}; }

}  // namespace

Result<std::unique_ptr<TrainerCompute>> OpenTrainer(const TrainerSettings& /*settings*/) { return NoTorch(); }

Result<std::unique_ptr<Products>> OpenProducts(bool /*cuda*/) { return NoTorch(); }

Result<std::unique_ptr<Connection>> ConnectToPeer(const std::string& /*directory*/, std::uint64_t /*state_bytes*/,
                                                  std::uint64_t /*bytes_per_second*/) {
  return NoTorch();
}

}  // namespace cairn::bench
