#pragma once

// Cairn for programs that use libtorch, 2.4 or newer. Header only: it is compiled against the libtorch of whoever
// includes it, so that the library itself needs none. cairn.h does not include it. No call here throws.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"
#include "cairn/tensor.h"

namespace cairn {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// Tensors and modules. The tensors must outlive the State's saves, and stay where they are: a parameter that is given
// other memory (set_data, to another device) must be added to a new State.

/// A view of the tensor's memory. InvalidArgument if it has none (undefined, sparse, quantized, lazily negated or
/// conjugated), or an element type that safetensors lacks.
[[nodiscard]] inline Result<TensorView> ViewOf(const at::Tensor& tensor);
/// Adds the tensor.
inline Status Add(State& state, const std::string& name, const at::Tensor& tensor);
/// Adds the module's parameters and buffers under the names that torch gives them ("encoder.layer.0.weight"), after
/// `prefix`. Modules that are named as transformers names them thus have transformers' names.
inline Status AddModule(State& state, const torch::nn::Module& module, const std::string& prefix = "");

/// A c10::cuda::CUDAStream, for SaveOptions::streams and Fence.
template <typename CudaStream>
[[nodiscard]] Stream StreamOf(const CudaStream& stream);
/// The device's current stream. Needs libtorch 2.5 or newer: with 2.4 use StreamOf(c10::cuda::getCurrentCUDAStream()).
template <typename TorchStream = c10::Stream>
requires requires(TorchStream stream) { stream.native_handle(); }
[[nodiscard]] Stream CurrentStream(at::Device device);

// Optimizers: torch::optim's SGD, Adam and AdamW. `parameters` are the module's named_parameters().

/// Adds the optimizer's tensors as "<prefix>.exp_avg.<parameter>" and so on, with Python's names for them. Those that
/// torch makes at the first step are made here, as zeros: so a fresh optimizer can be restored into. InvalidArgument
/// for another kind of optimizer, or if a parameter of it has no name. FailedPrecondition for SGD with dampening before
/// its first step, which zeros would change.
inline Status AddOptimizer(State& state, torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                           const std::string& prefix = "optimizer");
/// Sets what the optimizer has beside tensors: "<prefix>.step.<parameter>", "<prefix>.lr.<group>",
/// "<prefix>.kind.<group>". Call it before each Save, and after AddOptimizer.
inline Status SetOptimizerValues(State& state, const torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                                 const std::string& prefix = "optimizer");
/// Takes these values back. Call it after each Restore, with Restored::values. InvalidArgument, naming it, if one is
/// missing or no number, or if the checkpoint has other groups or those of another kind of optimizer;
/// FailedPrecondition before AddOptimizer. The optimizer is then unchanged.
inline Status ResumeOptimizer(const Values& values, torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                              const std::string& prefix = "optimizer");

/// The calls of a store of torch.distributed, through this connection.
[[nodiscard]] inline KeyValueStore WrapStore(const c10::intrusive_ptr<c10d::Store>& store);
/// A group over a store of torch.distributed: TCPStore, FileStore, HashStore, or a PrefixStore of one. See
/// MakeStoreGroup. For a TCPStore each of the group's threads opens a connection of its own. A program without Python
/// should ignore SIGPIPE, which a lost TCPStore raises.
[[nodiscard]] inline Result<std::shared_ptr<Group>> MakeTorchGroup(c10::intrusive_ptr<c10d::Store> store,
                                                                   StoreGroupOptions options);

// What follows is how.
namespace with_torch {

inline Status Failed(StatusCode code, const std::string& what, const std::exception& error) {
  const std::string text = error.what();  // A stack trace follows the first line.
  return {code, what + ": " + text.substr(0, text.find('\n'))};
}

inline std::optional<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kFloat8_e5m2:
      return DType::kF8E5M2;
    case at::kFloat8_e4m3fn:
      return DType::kF8E4M3;
    case at::kShort:
      return DType::kI16;
    case at::kUInt16:
      return DType::kU16;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kInt:
      return DType::kI32;
    case at::kUInt32:
      return DType::kU32;
    case at::kFloat:
      return DType::kF32;
    case at::kComplexFloat:
      return DType::kC64;
    case at::kDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    case at::kUInt64:
      return DType::kU64;
    default:
      return std::nullopt;
  }
}

inline DeviceId IdOf(at::Device device) {
  if (!device.is_cuda()) return {};
  return {DeviceKind::kCuda, device.index()};
}

/// A parameter of an optimizer, with its name and its state.
struct OptimizedParameter {
  std::string name;
  at::Tensor tensor;
  torch::optim::OptimizerOptions* options = nullptr;
};

/// Each once, also if the optimizer or the module has it twice (tied). Its name is then the first, as in Python.
inline Result<std::vector<OptimizedParameter>> ParametersOf(torch::optim::Optimizer& optimizer,
                                                            const NamedTensors& parameters) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : parameters) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<OptimizedParameter> found;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      if (name == names.end()) {
        return Status(StatusCode::kInvalidArgument,
                      "optimizer: expected only parameters that have a name, found another one in parameter group " +
                          std::to_string(&group - optimizer.param_groups().data()));
      }
      if (seen.insert(name->first).second) found.push_back({name->second, tensor, &group.options()});
    }
  }
  return found;
}

/// Calls with the parameter's state, null if there is none: with_sgd(state, options), or with_adam(state, options) for
/// Adam and AdamW.
template <typename WithSgd, typename WithAdam>
Status VisitState(torch::optim::Optimizer& optimizer, const OptimizedParameter& parameter, const WithSgd& with_sgd,
                  const WithAdam& with_adam) {
  namespace optim = torch::optim;
  const auto found = optimizer.state().find(parameter.tensor.unsafeGetTensorImpl());
  optim::OptimizerParamState* state = found == optimizer.state().end() ? nullptr : found->second.get();
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(parameter.options)) {
    return with_sgd(static_cast<optim::SGDParamState*>(state), *sgd);
  }
  if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(parameter.options)) {
    return with_adam(static_cast<optim::AdamWParamState*>(state), *adamw);
  }
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(parameter.options)) {
    return with_adam(static_cast<optim::AdamParamState*>(state), *adam);
  }
  return {StatusCode::kInvalidArgument, "optimizer: expected torch::optim's SGD, Adam or AdamW, found another one"};
}

/// Calls fill(state). A state that is missing is made, and given to the optimizer only if the call succeeds: with half
/// a state its next step would fail.
template <typename ParamState, typename Fill>
Status FillState(torch::optim::Optimizer& optimizer, const OptimizedParameter& parameter, ParamState* state,
                 const Fill& fill) {
  if (state != nullptr) return fill(*state);
  auto made = std::make_unique<ParamState>();
  Status filled = fill(*made);
  if (filled.ok()) optimizer.state()[parameter.tensor.unsafeGetTensorImpl()] = std::move(made);
  return filled;
}

/// What decides a group's state, for messages: another one would take this state without an error.
inline std::string KindOf(const torch::optim::OptimizerOptions& options) {
  namespace optim = torch::optim;
  const auto with = [](const char* kind, bool is, const char* option) {
    return std::string(kind) + (is ? std::string(" with ") + option : std::string());
  };
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    return with("SGD", sgd->momentum() != 0, "momentum");
  }
  if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    return with("AdamW", adamw->amsgrad(), "amsgrad");
  }
  const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options);
  return with("Adam", adam != nullptr && adam->amsgrad(), "amsgrad");
}

/// InvalidArgument if the values are those of other groups. Older checkpoints do not say what kind they are.
inline Status CheckGroups(const Values& values, const torch::optim::Optimizer& optimizer, const std::string& prefix) {
  const std::size_t groups = optimizer.param_groups().size();
  for (std::size_t group = 0; group < groups; ++group) {
    const std::string name = prefix + ".kind." + std::to_string(group);
    const std::string own = KindOf(optimizer.param_groups()[group].options());
    const auto found = values.find(name);
    if (found == values.end() || found->second == Value(own)) continue;
    const auto* saved = std::get_if<std::string>(&found->second);
    return {StatusCode::kInvalidArgument,
            name + ": the optimizer is " + own + ", the checkpoint has the state of " + (saved ? *saved : "another")};
  }
  if (!values.contains(prefix + ".lr." + std::to_string(groups))) return {};
  return {StatusCode::kInvalidArgument,
          prefix + ": expected the values of " + std::to_string(groups) + " groups, the checkpoint has more"};
}

inline Status NoStateError(const std::string& parameter) {
  return {StatusCode::kFailedPrecondition,
          "optimizer: parameter \"" + parameter + "\" has no state: expected a call of AddOptimizer before"};
}

template <typename Number>
Result<Number> FindNumber(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) return Status(StatusCode::kInvalidArgument, "the checkpoint has no value " + name);
  if (const auto* number = std::get_if<Number>(&found->second)) return *number;
  return Status(StatusCode::kInvalidArgument, "value " + name + ": expected a number, found another type");
}

/// A PrefixStore does not tell its prefix.
struct Prefix : c10d::PrefixStore {
  static const std::string& Of(const c10d::PrefixStore& store) { return store.*(&Prefix::prefix_); }
};

/// The same store through another client connection. A store without connections is returned itself.
template <typename Store>
c10::intrusive_ptr<Store> Reconnect(const c10::intrusive_ptr<Store>& store) {
  if constexpr (requires { store->clone(); }) {
    return store->clone();
  } else {  // Before 2.8.
    if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
      return c10::make_intrusive<c10d::PrefixStore>(Prefix::Of(*prefixed), Reconnect(prefixed->getUnderlyingStore()));
    }
    const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.get());
    if (tcp == nullptr) return store;
    c10d::TCPStoreOptions options;
    options.port = tcp->getPort();
    options.waitWorkers = false;
    options.timeout = tcp->getTimeout();
    return c10::make_intrusive<c10d::TCPStore>(tcp->getHost(), options);
  }
}

inline std::vector<std::uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string Text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// Calls body(), whose exceptions mean that the store is lost.
template <typename Body>
auto InStore(const Body& body) -> Result<decltype(body())> {
  try {
    return body();
  } catch (const std::exception& error) {
    return Failed(StatusCode::kIoError, "torch.distributed's store failed", error);
  }
}

}  // namespace with_torch

inline KeyValueStore WrapStore(const c10::intrusive_ptr<c10d::Store>& store) {
  return {
      .set =
          [store](const std::string& key, const std::string& value) {
            return with_torch::InStore([&] {
                     store->set(key, with_torch::Bytes(value));
                     return true;
                   })
                .status();
          },
      .set_if_absent =
          [store](const std::string& key, const std::string& value) {
            return with_torch::InStore(
                [&] { return with_torch::Text(store->compareSet(key, {}, with_torch::Bytes(value))) == value; });
          },
      .get = [store](const std::string& key) -> Result<std::string> {
        constexpr char kAbsent[] = "-";  // No value is this; c10d's own get would wait.
        Result<std::string> value = with_torch::InStore([&] {
          return with_torch::Text(store->compareSet(key, with_torch::Bytes(kAbsent), with_torch::Bytes(kAbsent)));
        });
        if (value.ok() && *value == kAbsent) return Status(StatusCode::kNotFound, key + " is not in the store");
        return value;
      },
      .check = [store](const std::string& key) { return with_torch::InStore([&] { return store->check({key}); }); },
      .wait =
          [store](const std::string& key, std::chrono::milliseconds timeout) {
            return with_torch::InStore([&] {
              try {
                store->wait({key}, timeout);
                return true;
              } catch (const c10::DistStoreError&) {  // In time, or the next call fails too.
                return store->check({key});
              } catch (const c10::Error& error) {  // A FileStore's has no type of its own.
                if (std::string_view(error.what_without_backtrace()).find("Wait timeout") == std::string_view::npos)
                  throw;
                return store->check({key});
              }
            });
          },
      .add = [store](const std::string& key,
                     std::int64_t amount) { return with_torch::InStore([&] { return store->add(key, amount); }); },
      .erase =
          [store](const std::string& key) {
            return with_torch::InStore([&] { return store->deleteKey(key); }).status();
          },
  };
}

inline Result<TensorView> ViewOf(const at::Tensor& tensor) {
  const auto refuse = [](const std::string& found) {
    return Status(StatusCode::kInvalidArgument, "expected a tensor with memory of its own, found " + found);
  };
  try {
    if (!tensor.defined()) return refuse("one that is not defined");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg()) {
      return refuse("a sparse, quantized, conjugated or negated one");
    }
    if (!tensor.is_cpu() && !tensor.is_cuda()) return refuse("one on " + tensor.device().str());
    const auto dtype = with_torch::DTypeOf(tensor.scalar_type());
    if (!dtype) {
      return Status(StatusCode::kInvalidArgument,
                    std::string("Cairn cannot save the element type ") + c10::toString(tensor.scalar_type()));
    }
    TensorView view;
    view.data = tensor.mutable_data_ptr();
    view.dtype = *dtype;
    view.shape = tensor.sizes().vec();
    view.strides = tensor.strides().vec();
    view.device = with_torch::IdOf(tensor.device());
    view.bytes = tensor.storage().nbytes() - tensor.storage_offset() * tensor.element_size();
    return view;
  } catch (const std::exception& error) {
    return with_torch::Failed(StatusCode::kInvalidArgument, "describing a tensor", error);
  }
}

inline Status Add(State& state, const std::string& name, const at::Tensor& tensor) {
  const Result<TensorView> view = ViewOf(tensor);
  if (!view.ok()) return {view.status().code(), "tensor \"" + name + "\": " + view.status().message()};
  return state.Add(name, *view);
}

inline Status AddModule(State& state, const torch::nn::Module& module, const std::string& prefix) {
  try {
    for (const NamedTensors& tensors : {module.named_parameters(), module.named_buffers()}) {
      for (const auto& item : tensors) {
        if (!item.value().defined()) continue;  // A norm that tracks no statistics.
        if (Status added = Add(state, prefix + item.key(), item.value()); !added.ok()) return added;
      }
    }
    return {};
  } catch (const std::exception& error) {
    return with_torch::Failed(StatusCode::kInvalidArgument, "listing a module's tensors", error);
  }
}

template <typename CudaStream>
Stream StreamOf(const CudaStream& stream) {
  return {with_torch::IdOf(stream.device()), reinterpret_cast<std::uintptr_t>(stream.stream())};
}

template <typename TorchStream>
requires requires(TorchStream stream) { stream.native_handle(); }
Stream CurrentStream(at::Device device) {
  if (!device.is_cuda()) return {};
  const TorchStream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return {with_torch::IdOf(stream.device()), reinterpret_cast<std::uintptr_t>(stream.native_handle())};
}

inline Status AddOptimizer(State& state, torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                           const std::string& prefix) {
  const auto found = with_torch::ParametersOf(optimizer, parameters);
  if (!found.ok()) return found.status();
  const c10::NoGradGuard no_grad;
  for (const with_torch::OptimizedParameter& one : *found) {
    Status status;
    const auto add = [&](const char* what, const at::Tensor& tensor) {
      if (status.ok()) status = Add(state, prefix + "." + what + "." + one.name, tensor);
    };
    const auto zeros = [&] { return at::zeros_like(one.tensor, at::MemoryFormat::Preserve); };
    const auto with_sgd = [&](torch::optim::SGDParamState* sgd, const torch::optim::SGDOptions& options) -> Status {
      if (options.momentum() == 0) return {};
      return with_torch::FillState(optimizer, one, sgd, [&](torch::optim::SGDParamState& of) -> Status {
        if (!of.momentum_buffer().defined()) {
          if (options.dampening() != 0) {
            return {StatusCode::kFailedPrecondition,
                    "optimizer: SGD with dampening can be added only after its first step"};
          }
          of.momentum_buffer(zeros());
        }
        add("momentum_buffer", of.momentum_buffer());
        return status;
      });
    };
    const auto with_adam = [&](auto* adam, const auto& options) -> Status {
      return with_torch::FillState(optimizer, one, adam, [&](auto& of) -> Status {
        if (!of.exp_avg().defined()) of.exp_avg(zeros());
        if (!of.exp_avg_sq().defined()) of.exp_avg_sq(zeros());
        if (options.amsgrad() && !of.max_exp_avg_sq().defined()) of.max_exp_avg_sq(zeros());
        add("exp_avg", of.exp_avg());
        add("exp_avg_sq", of.exp_avg_sq());
        if (options.amsgrad()) add("max_exp_avg_sq", of.max_exp_avg_sq());
        return status;
      });
    };
    try {
      if (Status added = with_torch::VisitState(optimizer, one, with_sgd, with_adam); !added.ok()) return added;
    } catch (const std::exception& error) {
      return with_torch::Failed(StatusCode::kResourceExhausted, "making the optimizer's state", error);
    }
  }
  return {};
}

inline Status SetOptimizerValues(State& state, const torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                                 const std::string& prefix) {
  auto& all = const_cast<torch::optim::Optimizer&>(optimizer);  // Whose accessors are not all const.
  const auto found = with_torch::ParametersOf(all, parameters);
  if (!found.ok()) return found.status();
  for (const with_torch::OptimizedParameter& one : *found) {
    const auto without = [](const auto*, const auto&) -> Status { return {}; };
    const auto with_adam = [&](const auto* of, const auto&) {
      if (of == nullptr) return with_torch::NoStateError(one.name);
      return state.Set(prefix + ".step." + one.name, std::int64_t{of->step()});
    };
    if (Status set = with_torch::VisitState(all, one, without, with_adam); !set.ok()) return set;
  }
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const double rate = optimizer.param_groups()[group].options().get_lr();
    if (Status set = state.Set(prefix + ".lr." + std::to_string(group), rate); !set.ok()) return set;
    const std::string kind = with_torch::KindOf(optimizer.param_groups()[group].options());
    if (Status set = state.Set(prefix + ".kind." + std::to_string(group), kind); !set.ok()) return set;
  }
  return {};
}

inline Status ResumeOptimizer(const Values& values, torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                              const std::string& prefix) {
  const auto found = with_torch::ParametersOf(optimizer, parameters);
  if (!found.ok()) return found.status();
  if (Status same = with_torch::CheckGroups(values, optimizer, prefix); !same.ok()) return same;
  std::vector<std::function<void()>> changes;
  for (const with_torch::OptimizedParameter& one : *found) {
    const auto without = [](const auto*, const auto&) -> Status { return {}; };
    const auto with_adam = [&](auto* of, const auto&) -> Status {
      if (of == nullptr) return with_torch::NoStateError(one.name);
      const auto step = with_torch::FindNumber<std::int64_t>(values, prefix + ".step." + one.name);
      if (step.ok()) changes.emplace_back([of, number = *step] { of->step(number); });
      return step.status();
    };
    if (Status read = with_torch::VisitState(optimizer, one, without, with_adam); !read.ok()) return read;
  }
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto rate = with_torch::FindNumber<double>(values, prefix + ".lr." + std::to_string(group));
    if (!rate.ok()) return rate.status();
    changes.emplace_back(
        [&options = optimizer.param_groups()[group].options(), number = *rate] { options.set_lr(number); });
  }
  for (const auto& change : changes) change();
  return {};
}

inline Result<std::shared_ptr<Group>> MakeTorchGroup(c10::intrusive_ptr<c10d::Store> store, StoreGroupOptions options) {
  if (store == nullptr)
    return Status(StatusCode::kInvalidArgument, "group " + options.name + ": expected a store, found null");
  return MakeStoreGroup(std::move(options), [store = std::move(store)]() -> Result<KeyValueStore> {
    const auto own = with_torch::InStore([&] { return with_torch::Reconnect(store); });
    if (!own.ok()) return own.status();
    return WrapStore(*own);
  });
}

}  // namespace cairn
