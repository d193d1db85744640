#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cairn/status.h"

namespace cairn {

/// Element types, in the order in which safetensors ranks them (its files list higher ranks first).
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Bytes of one element.
[[nodiscard]] std::size_t DTypeSize(DType dtype);
/// The name that safetensors uses: "F32", "BF16", "F8_E4M3".
[[nodiscard]] std::string_view DTypeName(DType dtype);
[[nodiscard]] std::optional<DType> DTypeFromName(std::string_view name);

/// Whether tensors hold values that are not finite. Greater is worse.
enum class NonFinite : std::uint8_t {
  kNone,
  kInfinity,  ///< Infinities and no NaN.
  kNaN,
};
/// "inf" or "nan", as manifests have it; empty for kNone.
[[nodiscard]] std::string_view NonFiniteName(NonFinite nonfinite);

/// Who has written the frozen tensors of a checkpoint.
enum class Frozen : std::uint8_t {
  kNone,     ///< It has none in a file of their own.
  kWritten,  ///< All were written with it.
  kLinked,   ///< An earlier save has written them, or a part of them.
};

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend auto operator<=>(const DeviceId&, const DeviceId&) = default;
};
/// "cpu", "cuda:0".
[[nodiscard]] std::string ToString(DeviceId device);

/// A stream of the caller on one device. For kCuda `handle` is a CUstream or cudaStream_t, cast with
/// reinterpret_cast<std::uintptr_t>; 0 is the legacy default stream.
struct Stream {
  DeviceId device = {};
  std::uintptr_t handle = 0;
};

/// The place of a tensor that is one rank's part of a larger, logical tensor. Not set for whole tensors. A restore
/// fills the part from the saved parts of the logical tensor, however it was cut when it was saved.
struct TensorPart {
  std::string logical_name = {};                ///< Name of the logical tensor; its parts share it.
  std::vector<std::int64_t> global_shape = {};  ///< Shape of the logical tensor, in elements.
  std::vector<std::int64_t> offset = {};        ///< This part's first element in each dimension.
  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

/// Memory that holds a tensor; not owned.
struct TensorView {
  void* data = nullptr;  ///< The first element. Null only if the tensor has no elements.
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape = {};  ///< In elements; empty for a scalar.
  /// In elements; empty means contiguous, row-major. In CPU memory elements may share memory, as those of an expanded
  /// tensor, or run backwards: such a view can be saved, not restored into.
  std::vector<std::int64_t> strides = {};
  DeviceId device = {};
  /// Size of the memory from `data` on; 0 means unknown. If it is known, a view that reaches beyond it is refused.
  std::uint64_t bytes = 0;
  std::optional<TensorPart> part = std::nullopt;
  /// Training does not change it. A save takes it from the last checkpoint of this process and writes it only where
  /// there is none, or where it has changed: what is frozen costs no space. How a save knows is told by `version`. Each
  /// 50th call of Save writes it anew.
  bool frozen = false;
  /// Of a frozen tensor. If it is set, nobody changes its bytes but a Restore of the Checkpointer that saves it, as
  /// long as name, memory and version stay the same: the save does not even read it. Another number says that the bytes
  /// may have changed after all, as torch's version counter does, and the tensor is written again. If it is not set,
  /// each save copies the tensor as any other, and compares its checksums with those of the checkpoint before: that
  /// needs Options::checksums.
  std::optional<std::uint64_t> version = std::nullopt;
};

/// JSON text, kept as given. It is parsed once, to refuse invalid JSON.
struct Json {
  std::string text = {};
  /// The caller guarantees that it is JSON in UTF-8, so it is not parsed. If it is not, the values cannot be read back.
  bool vouched = false;
  friend bool operator==(const Json& a, const Json& b) { return a.text == b.text; }
};

/// A typed value next to the tensors: learning rate, epoch, data position. Doubles must be finite; for the rest use
/// Json.
using Value = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Json>;
using Values = std::map<std::string, Value>;

class TensorTable;

/// What a checkpoint holds: names -> tensor views, plus typed values. Build it once, save it many times.
///
/// Copies are cheap and independent: they share the tensor table until one of them is changed. A State may be changed
/// or destroyed while a save of it is in flight, but the tensors' memory must not be freed before that save is
/// captured. Not safe for concurrent use.
class State {
 public:
  State();
  ~State();
  State(const State&);
  State& operator=(const State&);
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;

  /// Adds a tensor. InvalidArgument, and no change, if the name is empty, not UTF-8, "__metadata__" or already used, or
  /// if the view is inconsistent: shape and strides of different lengths, negative extents, null data, elements of a
  /// GPU that share memory or run backwards.
  Status Add(std::string name, TensorView view);
  /// Sets or replaces a value. InvalidArgument if the name is not UTF-8, a double is not finite, or a text is not JSON.
  Status Set(std::string name, Value value);

  [[nodiscard]] std::size_t tensor_count() const;
  /// Sum of the tensors' sizes, in bytes; tied tensors count once.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] const Values& values() const { return values_; }

  /// For the library itself. A table never changes after this returned it: the next Add makes a new one.
  [[nodiscard]] const std::shared_ptr<const TensorTable>& table() const;

 private:
  std::shared_ptr<const TensorTable> table_;
  Values values_;
};

}  // namespace cairn
