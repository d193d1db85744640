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

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend auto operator<=>(const DeviceId&, const DeviceId&) = default;
};
/// "cpu", "cuda:0".
[[nodiscard]] std::string ToString(DeviceId device);

/// A queue of the caller's on one device: a CUstream / cudaStream_t for kCuda (0 is the legacy default stream).
struct Stream {
  DeviceId device;
  std::uintptr_t handle = 0;
};

/// Where a tensor sits in a larger one of which every rank holds a part. Left out for whole tensors. A restore fills it
/// from the saved parts of that logical tensor, however that was cut.
struct TensorPart {
  std::string logical_name;                ///< The name of the whole; several parts share it.
  std::vector<std::int64_t> global_shape;  ///< Shape of the whole, in elements.
  std::vector<std::int64_t> offset;        ///< This part's first element in each dimension.
  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

/// Memory that holds a tensor; not owned.
struct TensorView {
  void* data = nullptr;  ///< First element. May be null only where the tensor has no elements.
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;         ///< In elements; empty for a scalar.
  std::vector<std::int64_t> strides = {};  ///< In elements, none negative; empty means contiguous, row-major.
  DeviceId device;
  std::uint64_t bytes =
      0;  ///< Size of the memory at `data`; 0 means unknown. Where known, views beyond it are refused.
  std::optional<TensorPart> part = std::nullopt;
};

/// JSON text, kept as given (it is parsed once, to refuse what is no JSON).
struct Json {
  std::string text;
  /// The caller vouches that it is JSON in UTF-8, and spares the parse. Where that is wrong, no reader gets the values.
  bool vouched = false;
  friend bool operator==(const Json& a, const Json& b) { return a.text == b.text; }
};

/// A typed value beside the tensors: learning rate, epoch, data position. Doubles are finite; use Json for the rest.
using Value = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Json>;
using Values = std::map<std::string, Value>;

class TensorTable;

/// What a checkpoint holds: names -> tensor views, plus typed values. Build it once, save it many times.
///
/// Copies are cheap and independent: the tensor table is shared until one of them is changed. A State may be changed or
/// destroyed while a save of it is in flight; the tensors' memory may not be freed before that save is captured.
/// Not safe for concurrent use.
class State {
 public:
  State();
  ~State();
  State(const State&);
  State& operator=(const State&);
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;

  /// Adds a tensor. InvalidArgument, and no change, for a name that is empty, not UTF-8, "__metadata__" or taken, and
  /// for a view that is inconsistent (ranks of shape and strides, negative extents, overlapping elements, null data).
  Status Add(std::string name, TensorView view);
  /// Sets or replaces a value. InvalidArgument for names that are not UTF-8, non-finite doubles and text that is no
  /// JSON.
  Status Set(std::string name, Value value);

  [[nodiscard]] std::size_t tensor_count() const;
  /// Sum of the tensors' sizes, in bytes; tied tensors count once.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] const Values& values() const { return values_; }

  /// For the library's own layers. What was handed out never changes: the next Add makes a new table.
  [[nodiscard]] const std::shared_ptr<const TensorTable>& table() const;

 private:
  std::shared_ptr<const TensorTable> table_;
  Values values_;
};

}  // namespace cairn
