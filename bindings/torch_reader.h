#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "cairn/tensor.h"

namespace cairn {

/// Reads torch's tensors without linking torch: through DLPack's C exchange API (torch 2.10 and newer, about 100 ns a
/// tensor), otherwise by their attributes. All calls need the GIL.
class TorchReader {
 public:
  struct Dense {
    void* data = nullptr;
    DType dtype = DType::kF32;
    int cuda = -1;  ///< Index of the device; -1: CPU memory.
    std::int32_t dimensions = 0;
    friend bool operator==(const Dense&, const Dense&) = default;
  };

  /// `tensor` and `parameter` are the types that are known; `dtypes` maps torch's dtypes to safetensors' names.
  TorchReader(pybind11::type tensor, pybind11::type parameter, const pybind11::dict& dtypes, bool dlpack);

  /// Whether its type is exactly one of the two. A subclass may use its memory in another way.
  [[nodiscard]] bool Knows(pybind11::handle value) const {
    const pybind11::handle type = pybind11::type::handle_of(value);
    return type.is(tensor_) || type.is(parameter_);
  }
  /// Fills `dense` and appends the extents to `shape`. Returns false, with nothing appended and no exception pending,
  /// for tensors that need more work: not dense, conjugated or negated, of another dtype, on another device, or in a
  /// storage that has become too small.
  /// Returns in `room` what Room does for it, unless that is null or the tensor has no bytes.
  [[nodiscard]] bool Read(pybind11::handle tensor, Dense& dense, std::vector<std::int64_t>& shape,
                          std::int64_t* room = nullptr) const;
  /// Where the memory of a tensor is now; null if it has none any more.
  [[nodiscard]] const void* Address(pybind11::handle tensor) const;
  /// Bytes from the tensor's first element, of `item` bytes, to the end of its storage, which may have been resized:
  /// then less than the tensor has, or negative. 0 if torch does not say.
  [[nodiscard]] std::int64_t Room(pybind11::handle tensor, std::size_t item) const;
  /// The tensor's storage, which keeps its memory while nobody resizes it; null for what is no tensor of torch.
  [[nodiscard]] pybind11::object Storage(pybind11::handle tensor) const;
  /// Which storage it is: the address of torch's own, which may be used again once nobody refers to it, not even
  /// weakly. Null for what is no tensor of torch.
  [[nodiscard]] const void* StorageId(pybind11::handle tensor) const;
  /// How often the tensor's content, or that of a tensor with the same memory, was changed in place: torch's
  /// `_version`. kNoVersion for what does not count (inference tensors).
  [[nodiscard]] std::int64_t Version(pybind11::handle tensor) const;
  static constexpr std::int64_t kNoVersion = -1;
  /// It changes if that of the tensor or of one of the others does.
  [[nodiscard]] std::int64_t Version(pybind11::handle tensor, const pybind11::tuple& counters) const;
  /// Which count `_version` is: two tensors with one count have one address here. It may be used again once no tensor
  /// has the count. Null if torch does not say.
  [[nodiscard]] const void* VersionCounter(pybind11::handle tensor) const;
  /// A tensor without memory that has the same count, and so keeps its address from being used again; null on failure.
  [[nodiscard]] pybind11::object HoldVersionCounter(pybind11::handle tensor) const;
  [[nodiscard]] bool has_dlpack() const { return to_dlpack_ != nullptr; }

 private:
  using ToDlpack = int (*)(void* tensor, void* to);
  using AskTorch = std::int32_t (*)(const void* tensor, std::int64_t* found);  // 0 on success.

  /// A method of torch.Tensor without arguments. Called directly if it is built in, because a save calls it for each
  /// tensor: looking it up takes longer than its work.
  class Method {
   public:
    Method(const pybind11::object& tensor_type, const char* name);
    /// Null with an exception pending.
    [[nodiscard]] pybind11::object operator()(pybind11::handle tensor) const;

   private:
    pybind11::str name_;
    pybind11::object descriptor_;
    PyCFunction call_ = nullptr;
  };

  bool ReadDlpack(pybind11::handle tensor, Dense& dense, std::vector<std::int64_t>& shape) const;
  bool ReadAttributes(pybind11::handle tensor, Dense& dense, std::vector<std::int64_t>& shape) const;
  [[nodiscard]] static bool IsSet(pybind11::handle tensor, const Method& method);
  [[nodiscard]] bool IsDType(pybind11::handle tensor, DType dtype) const;
  /// Whether it is a tensor of torch, of whatever class.
  [[nodiscard]] bool IsTensor(pybind11::handle value) const {
    return Knows(value) || PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(tensor_.ptr())) != 0;
  }
  void FindTorchCalls();
  void FindVersionCounter(void* library);
  void FindStorageOffset();
  [[nodiscard]] const void* Impl(pybind11::handle tensor) const;

  pybind11::object tensor_;
  pybind11::object parameter_;
  std::vector<std::pair<pybind11::object, DType>> dtypes_;
  ToDlpack to_dlpack_ = nullptr;
  // Behind `_version`: called directly, because a save asks for that of each tensor.
  pybind11::object version_;
  const PyGetSetDef* get_version_ = nullptr;
  // Of torch's C interface, which takes the at::Tensor. Null where that is not the first word of the Python object.
  AskTorch storage_bytes_ = nullptr;
  AskTorch storage_offset_ = nullptr;
  // torch::autograd::impl::version_counter(const at::Tensor&): its result begins with the address of the count.
  using AskCounter = const void* const* (*)(const void* tensor);
  AskCounter version_counter_ = nullptr;
  // at::TensorBase::_version() const, which throws for what does not count.
  using AskVersion = std::int64_t (*)(const void* tensor);
  AskVersion torch_version_ = nullptr;
  bool impl_is_first_ = false;
  // Where in torch's own tensor the address of its storage is, in words; 0 if that is not known.
  std::size_t storage_word_ = 0;
  Method is_neg_;
  Method is_conj_;
  Method untyped_storage_;
  Method offset_;
  // Interned once.
  pybind11::str is_contiguous_{"is_contiguous"}, data_ptr_{"data_ptr"};
  pybind11::str dtype_{"dtype"}, shape_{"shape"}, is_cpu_{"is_cpu"}, is_cuda_{"is_cuda"}, get_device_{"get_device"};
  pybind11::str nbytes_{"nbytes"}, cdata_{"_cdata"};
};

}  // namespace cairn
