#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace cairn::trainer {

using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

/// What a backend needs of its rank.
struct BackendRequest {
  Store store;
  int rank = 0;
  int world = 1;
  /// How long one operation may take.
  std::chrono::milliseconds timeout{0};
};

/// Connects this rank with all others. Throws what torch throws.
using ConnectBackend = std::function<Backend(const BackendRequest& request)>;

/// "gloo", which communicates over the interface of GLOO_SOCKET_IFNAME, or the one of the host's name. "nccl", from the
/// module libcairn_train_nccl.so beside the program, which is loaded here: **it has never run between two
/// GPUs**. Throws std::runtime_error if the module is missing, or there is no GPU.
ConnectBackend LoadBackend(const std::string& name, at::Device device);

}  // namespace cairn::trainer
