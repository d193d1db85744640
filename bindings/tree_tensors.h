#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/tensor.h"
#include "torch_reader.h"

namespace cairn {

/// The tensors of one tree, gathered while it is walked: for a save, while the caller waits. All calls need the GIL.
///
/// A tree that has not changed its tensors since an earlier save gives that save's State again, which is much cheaper
/// than a new one, and of which the engine has checked and sorted everything already.
class TreeTensors {
 public:
  /// `torch` is null where torch is not there.
  explicit TreeTensors(std::shared_ptr<TorchReader> torch) : torch_(std::move(torch)) {}

  /// (name, address, dtype, shape, strides in elements, cuda index or -1, bytes at the address)
  void Add(const pybind11::tuple& view);
  /// A dict at once, whose tensors are named by `prefix` and `keys`. Returns its text (see _tree.py): the members of an
  /// object or, with `pairs`, "KEY,NODE,KEY,NODE". Whatever is no plain, dense torch tensor goes through
  /// `node(value, name)`, which returns its text. None, with nothing done, where a key is no plain name.
  pybind11::object AddAll(const pybind11::list& keys, const pybind11::list& values, std::string_view prefix, bool pairs,
                          const pybind11::function& node);

  [[nodiscard]] std::set<int> cuda_devices() const;
  /// `earlier` itself where it holds the same tensors in the same order. Invalid views raise.
  [[nodiscard]] Result<State> Build(const std::optional<State>& earlier) const;

 private:
  struct Tensor {
    TorchReader::Dense dense;
    std::size_t name_end = 0;     // In names_; it begins where the one before ends.
    std::size_t extents_end = 0;  // In extents_; the strides, where there are any, follow the shape.
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] bool IsSame(const State& earlier) const;

  const std::shared_ptr<const TorchReader> torch_;
  std::vector<Tensor> tensors_;
  std::string names_;
  std::vector<std::int64_t> extents_;
};

}  // namespace cairn
