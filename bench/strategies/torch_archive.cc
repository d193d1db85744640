#include "bench/strategies/torch_archive.h"

#include <ATen/ops/from_blob.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <exception>

namespace cairn::bench {
namespace {

constexpr const char* kStep = "step";

std::string NameOf(std::size_t tensor) { return "tensor" + std::to_string(tensor); }

// Without torch's stack of calls.
Status Failed(StatusCode code, const std::string& path, const std::exception& error) {
  const std::string text = error.what();
  return {code, path + ": " + text.substr(0, text.find('\n'))};
}

}  // namespace

Status WriteTorchArchive(const std::string& path, std::uint64_t step, const std::vector<MutableBytes>& tensors) {
  try {
    torch::serialize::OutputArchive archive;
    archive.write(kStep, c10::IValue(static_cast<std::int64_t>(step)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t size = static_cast<std::int64_t>(tensors[i].size());
      archive.write(NameOf(i), at::from_blob(tensors[i].data(), {size}, at::kByte), /*is_buffer=*/true);
    }
    archive.save_to(path);
    return {};
  } catch (const std::exception& error) {
    return Failed(StatusCode::kIoError, path, error);
  }
}

Result<std::uint64_t> ReadTorchArchive(const std::string& path, const std::vector<MutableBytes>& tensors) {
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    c10::IValue step;
    archive.read(kStep, step);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor found;
      archive.read(NameOf(i), found, /*is_buffer=*/true);
      if (found.nbytes() != tensors[i].size()) {
        return Status(StatusCode::kCorrupt, path + ": " + NameOf(i) + ": expected " +
                                                std::to_string(tensors[i].size()) + " bytes, found " +
                                                std::to_string(found.nbytes()));
      }
      std::memcpy(tensors[i].data(), found.data_ptr(), found.nbytes());
    }
    return static_cast<std::uint64_t>(step.toInt());
  } catch (const std::exception& error) {
    return Failed(StatusCode::kCorrupt, path, error);
  }
}

}  // namespace cairn::bench
