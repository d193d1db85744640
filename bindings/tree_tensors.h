#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/strided.h"
#include "cairn/tensor.h"
#include "stored_tensors.h"
#include "torch_reader.h"

namespace cairn {

/// The tensors of one tree, collected for a save while the tree is walked and the caller waits. All calls need the GIL.
///
/// If the tree's tensors are the same as in the last save, Build returns that save's State. This is much cheaper than a
/// new State, because the engine has already checked and sorted its tensors.
class TreeTensors {
 private:
  struct Tensor {
    TorchReader::Dense dense;
    std::size_t name_end = 0;     // In names; it begins where the one before ends.
    std::size_t extents_end = 0;  // In extents; the strides, where there are any, follow the shape.
    std::uint64_t bytes = 0;
    std::uint64_t frozen = 0;  // TensorView::version, or kUncounted; 0: it is not frozen.
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  // Everything in three blocks, because what the last save left is in no cache any more.
  struct Seen {
    std::vector<Tensor> tensors;
    std::string names;
    std::vector<std::int64_t> extents;
    std::vector<std::pair<std::size_t, TensorPart>> parts;  // By place in tensors, ascending.
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  static constexpr std::uint64_t kUncounted = std::numeric_limits<std::uint64_t>::max();
  // A frozen tensor, and what tells that it is the same and was not written.
  struct Frozen {
    std::uint64_t version = 0;  // 0: nobody counts, or a step has written it.
    const void* data = nullptr;
    std::int64_t writes = 0;  // TorchReader::Version.
    const void* counter = nullptr;
    pybind11::object held_counter;
    // Holds no memory, but keeps the storage's identity from being used again.
    pybind11::object weak_storage;
    const void* storage_id = nullptr;
    std::uint64_t save = 0;  // The last that had a tensor of this name.
  };

 public:
  /// A tensor of the caller, where its memory was when it was read, and its room, version and ends at the save.
  struct Source {
    std::uint32_t entry;  ///< Its place in the State's table.
    pybind11::object tensor;
    const void* data;
    std::int64_t room;     ///< As TorchReader::Room has it; 0 if it is no plain tensor of torch.
    std::int64_t version;  ///< TorchReader::kNoVersion if it has none.
    /// See EndsOf; of those in CPU memory that have no version, and of some others.
    std::optional<std::uint64_t> ends = std::nullopt;
    /// What counts writes besides: see CountBy. So do tensors that are tied to it, and count on their own.
    pybind11::tuple counters = pybind11::tuple();
    /// Of a torch tensor in CPU memory: so that what is read stays there if the tensor is given another one.
    pybind11::object storage = {};
  };
  /// What a Checkpointer remembers of its last save.
  struct LastSave {
    Seen seen;
    State state;
    // If the last save froze some: by which object, and which of its tensors.
    pybind11::object frozen_by = {};
    std::vector<std::pair<std::size_t, Frozen*>> frozen_at = {};
    // By name, also those of earlier saves: a tree may have others in between.
    std::unordered_map<std::string, Frozen> frozen = {};
    std::uint64_t frozen_version = 0;  // The highest.
    std::uint64_t frozen_saves = 0;
    // Where optimizers have written since.
    std::unordered_set<const void*> stepped = {};
  };

  /// `torch` is null if torch is not imported.
  explicit TreeTensors(std::shared_ptr<TorchReader> torch) : torch_(std::move(torch)) {}

  /// (name, address, dtype, shape, strides in elements, cuda index or -1, bytes at the address); (logical name, global
  /// shape, offset) or None; the tensor, or None if the memory is a copy and not the caller's.
  void Add(const pybind11::tuple& view, const pybind11::object& part, const pybind11::object& tensor);
  /// The same for a plain torch tensor, without its description in Python. Returns false, and adds nothing, for what
  /// needs one. The caller keeps the tensor alive.
  bool AddPart(std::string_view name, pybind11::handle tensor, const pybind11::object& part);
  /// Adds a whole dict or list, whose tensors are named by `prefix` and `keys`, a list's by their places. Returns its
  /// text (see cairn/_tree), members with commas between: KEY, `mark` and NODE; without a `mark` only NODE. If it
  /// `nests`, dicts of tensors in it are added too. `node(value, name)` returns the text of what is neither that nor a
  /// plain, dense torch tensor. Returns None, with nothing done, if a key is no plain name, nor an int of 64 bits where
  /// that can be a key: not with ":".
  pybind11::object AddAll(const pybind11::list& keys, const pybind11::list& values, std::string_view prefix,
                          std::string_view mark, bool nests, const pybind11::function& node);
  /// What AddAll added: a prefix, and keys and values below it. The values must stay as they are.
  [[nodiscard]] const pybind11::list& given() const { return all_given_; }
  /// Adds the tensors of a dict to restore into, `like`, whose tensors are named by `prefix` and `keys`. `nodes` are
  /// the checkpoint's, as JSON, in the order of `keys`. Returns a list with like's tensor for each plain, dense torch
  /// tensor that fits what is stored, and NotImplemented for everything else. Returns None, with nothing done, if the
  /// keys of the two differ, if a key is not a plain name, or if none of the nodes is a tensor.
  pybind11::object MatchAll(const pybind11::list& keys, const pybind11::list& nodes, const pybind11::dict& like,
                            std::string_view prefix, const StoredTensors& stored);

  /// Build says of each tensor that it is frozen if `names.match(name)` is not None, but not of a copy that a save has
  /// made. The same object matches the same names.
  ///
  /// A plain torch tensor has a version: torch counts what is written into it. That changes with the count, with its
  /// address and storage, if another count takes over, and after a step of an optimizer that has written it. Others
  /// have none: parts, which are written through what they are parts of; what lies in a larger memory, which others may
  /// write; inference tensors; arrays.
  void Freeze(pybind11::object names) { frozen_by_ = std::move(names); }

  /// Which of these tensors and `more` lie in the same memory, by name: ([(first, tied to it), ...], (a, b) or None).
  /// Those of the list are one tensor, with one dtype and shape; the two others overlap.
  [[nodiscard]] pybind11::tuple SharedMemory(const TreeTensors& more) const;
  [[nodiscard]] std::set<int> cuda_devices() const;
  /// The State: that of `last` if it holds the same tensors in the same order. Stores the result in `last`. Call it
  /// once only. InvalidArgument for views that State::Add refuses.
  [[nodiscard]] Result<State> Build(LastSave& last);
  /// A step of an optimizer has written the parameters that have a gradient, and their state. Torch's fused steps are
  /// not counted.
  static void NoteStep(LastSave& last, const TorchReader& torch, pybind11::handle groups, pybind11::handle state);
  /// By the id of a tensor that is added: a tuple of others, which have its memory and counts of their own, as a
  /// DTensor.
  void CountBy(const pybind11::dict& counters) { counters_ = counters; }
  /// The caller's tensors that a save of the State with this table reads after the call of Save has returned; with
  /// their versions and ends if asked for.
  [[nodiscard]] std::vector<Source> ReadLater(const TensorTable& table, bool versions, bool ends) const;
  /// A tensor's first and last bytes in CPU memory, as one number. A write of all of it changes them, also one that has
  /// no version: by numpy, through .data, by another library.
  [[nodiscard]] static std::uint64_t EndsOf(const StridedLayout& layout);
  [[nodiscard]] const std::shared_ptr<const TorchReader>& torch() const { return torch_; }

 private:
  struct Given {
    pybind11::handle tensor;  // Null if the memory is a copy. Borrowed: all_given_ or kept_ holds it.
    const void* data;
    std::int64_t room;  // As Source has it.
  };

  [[nodiscard]] pybind11::tuple CountersOf(pybind11::handle tensor) const;
  void CountAlias(Source& holder, pybind11::handle alias) const;

  struct Extents {
    std::span<const std::int64_t> shape;
    std::span<const std::int64_t> strides;
  };

  /// What dicts of tensors hold: names below the one of what holds the dicts, and the tensors.
  struct Leaves {
    pybind11::list keys;
    pybind11::list values;
  };
  /// Appends a dict of tensors alone, each below a str, to the leaves. `key` is its own name. False, with nothing done,
  /// for anything else.
  bool TakeDict(pybind11::handle dict, std::string_view key, Leaves& leaves) const;
  /// Adds the leaves from `begin` on, which are those of a dict, and appends the dict's text.
  void AddDict(const Leaves& leaves, std::size_t begin, std::string_view prefix, std::string_view key,
               const pybind11::function& node, std::string& text);
  [[nodiscard]] std::string_view NameOf(std::size_t i) const;
  [[nodiscard]] Extents ExtentsOf(std::size_t i) const;
  void FindFrozen(LastSave& last) const;
  [[nodiscard]] bool HasSameNames(const Seen& other) const;
  void MarkFrozen(LastSave& last);
  [[nodiscard]] bool IsAloneInItsMemory(std::size_t place, const pybind11::object& storage) const;
  [[nodiscard]] std::uint64_t VersionOf(std::size_t place, Frozen& one, LastSave& last) const;
  void Prefetch(std::span<PyObject* const> values, std::size_t at) const;
  /// Adds a tensor that was read, whose shape is appended already.
  void AddRead(std::string_view prefix, std::string_view key, Tensor tensor, pybind11::handle value, std::int64_t room);

  const std::shared_ptr<const TorchReader> torch_;
  Seen seen_;
  std::vector<Given> given_;  // By place in seen_.tensors.
  pybind11::dict counters_;
  std::vector<pybind11::object> kept_;
  pybind11::list all_given_;
  pybind11::object frozen_by_;
};

void BindTreeTensors(pybind11::module_& module);

}  // namespace cairn
