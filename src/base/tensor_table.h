#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/strided.h"
#include "cairn/tensor.h"

namespace cairn {

/// CPU tensors up to this size are copied within the call of Save, up to kSmallTensorsTotal in total.
inline constexpr std::uint64_t kSmallTensorBytes = 64U << 10;
inline constexpr std::uint64_t kSmallTensorsTotal = 4U << 20;

struct TensorEntry {
  static constexpr std::uint32_t kNoAlias = std::numeric_limits<std::uint32_t>::max();

  std::string name;
  DType dtype = DType::kF32;
  DeviceId device;
  /// Index of the entry with the same memory, dtype and shape.
  std::uint32_t alias_of = kNoAlias;
  std::vector<std::int64_t> shape;
  StridedLayout layout;
  std::optional<TensorPart> part;
  /// CPU memory that a GPU's streams may still write when Save is called: pinned or managed. It is read once they have
  /// come to the call, however small it is.
  bool written_by_streams = false;
  /// See TensorView.
  bool frozen = false;
  std::optional<std::uint64_t> version;
  /// Its elements share memory, as those of an expanded tensor, or run backwards: it cannot be restored into.
  bool save_only = false;

  [[nodiscard]] bool is_alias() const { return alias_of != kNoAlias; }
  [[nodiscard]] std::uint64_t bytes() const { return layout.bytes; }
};

/// The tensors of a State, checked as they are added. Immutable, and safe from any thread, once shared.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable& other);
  TensorTable& operator=(const TensorTable&) = delete;

  Status Add(std::string name, TensorView view);
  /// From now on others may read the table at any time, so it never changes again.
  void Share() const { shared_.store(true, std::memory_order_relaxed); }
  /// Only its State asks, which calls Share before it hands the table out: no memory order is needed.
  [[nodiscard]] bool shared() const { return shared_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const TensorEntry& operator[](std::size_t i) const { return entries_[i]; }
  [[nodiscard]] std::optional<std::uint32_t> Find(std::string_view name) const;
  /// Sum over entries that are not aliases.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Entries that are copied in the call of Save, and their total size.
  [[nodiscard]] const std::vector<std::uint32_t>& small() const { return small_; }
  [[nodiscard]] std::uint64_t small_bytes() const { return small_bytes_; }
  /// Sum over entries in CPU memory, the small ones included.
  [[nodiscard]] std::uint64_t cpu_bytes() const { return cpu_bytes_; }
  /// Some entry is written_by_streams.
  [[nodiscard]] bool waits_for_streams() const { return waits_for_streams_; }
  /// Some entry is frozen.
  [[nodiscard]] bool has_frozen() const { return has_frozen_; }
  /// Each device that holds a non-empty entry, once.
  [[nodiscard]] const std::vector<DeviceId>& devices() const { return devices_; }
  /// Entries that are not aliases, in the order of a shard's bytes (base/store_order.h). Computed on the
  /// first use after an Add.
  [[nodiscard]] const std::vector<std::uint32_t>& StoreOrder() const;
  /// A copy in which the entries are written_by_streams for which `written` is true.
  [[nodiscard]] std::shared_ptr<const TensorTable> WithWritten(const std::vector<bool>& written) const;
  /// A copy without the entries for which `dropped` is true. Tied names must be dropped together.
  [[nodiscard]] std::shared_ptr<const TensorTable> Without(const std::vector<bool>& dropped) const;

 private:
  void Append(TensorEntry entry);

  // Addresses must be stable: the index's keys point into it.
  std::deque<TensorEntry> entries_;
  std::unordered_map<std::string_view, std::uint32_t> index_;
  std::unordered_multimap<const void*, std::uint32_t> by_address_;
  std::vector<std::uint32_t> small_;
  std::vector<DeviceId> devices_;
  std::uint64_t bytes_ = 0;
  std::uint64_t small_bytes_ = 0;
  std::uint64_t cpu_bytes_ = 0;
  bool waits_for_streams_ = false;
  bool has_frozen_ = false;
  // Not copied: nobody else has the copy yet.
  mutable std::atomic<bool> shared_ = false;
  mutable Mutex order_mutex_;
  // How many entries order_ was computed from.
  mutable std::size_t ordered_ CAIRN_GUARDED_BY(order_mutex_) = 0;
  // Written under the mutex, then read without it.
  mutable std::vector<std::uint32_t> order_;
};

}  // namespace cairn
