#include "ranks/backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace cairn::trainer {
namespace {

// In nccl_module.cc.
constexpr const char* kConnectNccl = "cairn_train_connect_nccl";

Backend ConnectGloo(const BackendRequest& request) {
  const auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe): nobody sets it.
  options->devices.push_back(interface != nullptr ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                                  : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.rank, request.world, options);
}

ConnectBackend LoadNccl() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string module = folder / "libcairn_train_nccl.so";
  void* loaded = ::dlopen(module.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (loaded == nullptr) throw std::runtime_error(std::string("--backend nccl: ") + ::dlerror());
  auto* const connect = reinterpret_cast<Backend (*)(const BackendRequest&)>(::dlsym(loaded, kConnectNccl));
  if (connect == nullptr) throw std::runtime_error(std::string("--backend nccl: ") + ::dlerror());
  return connect;
}

}  // namespace

ConnectBackend LoadBackend(const std::string& name, at::Device device) {
  if (name == "gloo") return ConnectGloo;
  if (!device.is_cuda()) throw std::runtime_error("--backend nccl: expected --device cuda, found cpu");
  return LoadNccl();
}

}  // namespace cairn::trainer
