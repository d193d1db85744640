#pragma once

#include <pybind11/pybind11.h>

#include <string_view>
#include <vector>

#include "cairn/checkpointer.h"

namespace cairn {

/// The tensors of a checkpoint, as its files describe them. Python objects are made only of what is asked for: with
/// 100,000 tensors they cost more than reading the headers.
class StoredTensors {
 public:
  /// `tensors` are in the order of their names.
  explicit StoredTensors(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {}

  /// Null if there is none of this name.
  [[nodiscard]] const TensorInfo* Find(std::string_view name) const;
  /// (dtype by safetensors' name, shape), or None.
  [[nodiscard]] pybind11::object Get(std::string_view name) const;
  [[nodiscard]] pybind11::list Names() const;
  /// For each tied tensor the name of the one that holds its bytes.
  [[nodiscard]] pybind11::dict Tied() const;
  /// (name, dtype, shape, bytes, shard's file name, name of the tensor that holds the bytes or "", part) of all.
  [[nodiscard]] pybind11::list Rows() const;
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }

 private:
  std::vector<TensorInfo> tensors_;
};

void BindStoredTensors(pybind11::module_& module);

}  // namespace cairn
