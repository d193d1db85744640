#include "bench/micro/tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace cairn::bench {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 1024;

}  // namespace

std::string TensorName(std::size_t i) {
  constexpr std::array<const char*, 4> kModules{"self_attn.q_proj", "self_attn.out_proj", "mlp.up_proj",
                                                "mlp.down_proj"};
  constexpr std::array<const char*, kKinds> kSuffixes{"", ".exp_avg", ".exp_avg_sq"};
  const std::size_t module = i / kKinds;
  return "model.layers." + std::to_string(module / kModules.size()) + "." + kModules[module % kModules.size()] +
         ".weight" + kSuffixes[i % kKinds];
}

ShardHeader HeaderOf(std::size_t tensors) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tensors; ++i) names.push_back(TensorName(i));
  std::sort(names.begin(), names.end());
  ShardHeader header;
  header.step = 1000;
  header.attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  header.values = {{"epoch", std::int64_t{7}}, {"lr", 0.1}};
  for (std::string& name : names) {
    const std::uint64_t begin = header.data_bytes();
    header.tensors.push_back({.name = std::move(name),
                              .dtype = DType::kF32,
                              .shape = {kRows, kColumns},
                              .begin = begin,
                              .end = begin + kRows * kColumns * sizeof(float)});
  }
  for (std::uint64_t i = 0; i < DivideUp(header.data_bytes(), kChecksumBlock); ++i) {
    header.sums.push_back(static_cast<std::uint32_t>(i * 2654435761U));
  }
  return header;
}

}  // namespace cairn::bench
