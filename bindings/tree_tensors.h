#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/tensor.h"
#include "torch_reader.h"

namespace cairn {

/// The tensors of one tree, gathered while it is walked: for a save, while the caller waits. All calls need the GIL.
///
/// A tree that has not changed its tensors since an earlier save gives that save's State again, which is much cheaper
/// than a new one, and of which the engine has checked and sorted everything already.
class TreeTensors {
 private:
  struct Tensor {
    TorchReader::Dense dense;
    std::size_t name_end = 0;     // In names; it begins where the one before ends.
    std::size_t extents_end = 0;  // In extents; the strides, where there are any, follow the shape.
    std::uint64_t bytes = 0;
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  // Everything in three blocks, as what an earlier save has left behind is out of every cache by now.
  struct Seen {
    std::vector<Tensor> tensors;
    std::string names;
    std::vector<std::int64_t> extents;
    std::vector<std::pair<std::size_t, TensorPart>> parts;  // By place in tensors, ascending.
    friend bool operator==(const Seen&, const Seen&) = default;
  };

 public:
  /// A tensor of the caller's, and where its memory was when it was read.
  struct Source {
    std::uint32_t entry;  ///< Its place in the State's table.
    pybind11::object tensor;
    const void* data;
  };
  /// What a Checkpointer remembers of its last save.
  struct Earlier {
    Seen seen;
    State state;
  };

  /// `torch` is null where torch is not there.
  explicit TreeTensors(std::shared_ptr<TorchReader> torch) : torch_(std::move(torch)) {}

  /// (name, address, dtype, shape, strides in elements, cuda index or -1, bytes at the address); (logical name, global
  /// shape, offset) or None; the tensor, None where the memory is no caller's but a copy.
  void Add(const pybind11::tuple& view, const pybind11::object& part, const pybind11::object& tensor);
  /// A dict at once, whose tensors are named by `prefix` and `keys`. Returns its text (see cairn/_tree): the members of
  /// an object or, with `pairs`, "KEY,NODE,KEY,NODE". Whatever is no plain, dense torch tensor goes through
  /// `node(value, name)`, which returns its text. None, with nothing done, where a key is no plain name. `values` must
  /// live, and keep its elements, as long as this.
  pybind11::object AddAll(const pybind11::list& keys, const pybind11::list& values, std::string_view prefix, bool pairs,
                          const pybind11::function& node);

  [[nodiscard]] std::set<int> cuda_devices() const;
  /// The State, which is `earlier`'s where that holds the same tensors in the same order; remembers it there. Once
  /// only. InvalidArgument for views that State::Add refuses.
  [[nodiscard]] Result<State> Build(Earlier& earlier);
  /// Those of the callers' tensors that a save of the State with this table reads after its call has returned.
  [[nodiscard]] std::vector<Source> ReadLater(const TensorTable& table) const;
  [[nodiscard]] const std::shared_ptr<const TorchReader>& torch() const { return torch_; }

 private:
  struct Given {
    pybind11::handle tensor;  // Null: no caller's. Borrowed: what AddAll was given, or kept_, holds it.
    const void* data;
  };

  void Prefetch(const pybind11::list& values, std::size_t at) const;

  const std::shared_ptr<const TorchReader> torch_;
  Seen seen_;
  std::vector<Given> given_;  // By place in seen_.tensors.
  std::vector<pybind11::object> kept_;
};

}  // namespace cairn
