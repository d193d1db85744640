// What needs libtorch, in builds without it.
#include "bench/gemini/peer.h"
#include "bench/harness/products.h"
#include "bench/harness/trainer_compute.h"
#include "bench/strategies/torch_archive.h"

namespace cairn::bench {
namespace {

Status NoTorch() { return {StatusCode::kUnsupported, "this build has no libtorch"}; }

}  // namespace

Result<std::unique_ptr<TrainerCompute>> OpenTrainer(const TrainerSettings& /*settings*/) { return NoTorch(); }

Result<std::unique_ptr<Products>> OpenProducts(bool /*cuda*/) { return NoTorch(); }

Status WriteTorchArchive(const std::string& /*path*/, std::uint64_t /*step*/,
                         const std::vector<MutableBytes>& /*tensors*/) {
  return NoTorch();
}

Result<std::uint64_t> ReadTorchArchive(const std::string& /*path*/, const std::vector<MutableBytes>& /*tensors*/) {
  return NoTorch();
}

Result<std::unique_ptr<Connection>> ConnectToPeer(const std::string& /*directory*/, std::uint64_t /*state_bytes*/,
                                                  std::uint64_t /*bytes_per_second*/) {
  return NoTorch();
}

}  // namespace cairn::bench
