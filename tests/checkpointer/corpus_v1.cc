#include "checkpointer/corpus_v1.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

using Shape = std::vector<std::int64_t>;
using Range = std::pair<std::int64_t, std::int64_t>;

void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

std::uint64_t Elements(const Shape& shape) {
  std::uint64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
  return elements;
}

/// The start of the formula: FNV-1a of the name, and the step, which must affect the highest byte.
std::uint32_t Seed(std::string_view name, std::uint64_t step) {
  std::uint32_t hash = 2166136261U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash + static_cast<std::uint32_t>(step) * 2246822519U;
}

/// Byte `place` of the whole tensor. If the name begins with "sparse.", one byte in 4093 is not zero.
std::byte ByteAt(std::string_view name, DType dtype, std::uint32_t seed, std::uint64_t place) {
  if (name.starts_with("sparse.") && place % 4093 != 0) return std::byte{0};
  const std::uint32_t byte = (static_cast<std::uint32_t>(place) * 2654435761U + seed) >> 24U;
  return static_cast<std::byte>(dtype == DType::kBool ? byte & 1U : byte);
}

/// The index in the whole tensor, in elements, of a part's element.
std::uint64_t PlaceInWhole(std::uint64_t element, const Shape& shape, const TensorPart& part) {
  std::uint64_t place = 0;
  std::uint64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(shape[d]);
    place += (element % extent + static_cast<std::uint64_t>(part.offset[d])) * stride;
    stride *= static_cast<std::uint64_t>(part.global_shape[d]);
    element /= extent;
  }
  return place;
}

// The part of [0, size) of rank `rank` of `world`: like torch's chunks, the last ones may be short or empty.
Range Chunk(std::int64_t size, int rank, int world) {
  const std::int64_t each = (size + world - 1) / world;
  return {std::min(size, each * rank), std::min(size, each * (rank + 1))};
}

/// Adds the chunk of `whole` that rank `rank` of `world` has along one dimension.
void AddChunk(CorpusState& state, const std::string& name, const std::string& logical, DType dtype, const Shape& whole,
              std::size_t dimension, int rank, int world) {
  const auto [begin, end] = Chunk(whole[dimension], rank, world);
  Shape shape = whole;
  shape[dimension] = end - begin;
  TensorPart part{.logical_name = logical, .global_shape = whole, .offset = Shape(whole.size(), 0)};
  part.offset[dimension] = begin;
  state.Add(name, dtype, shape, std::move(part));
}

/// [4, 4, 3] in three boxes: the upper half and the lower quarters. Other worlds cut the last dimension.
void AddBox(CorpusState& state, int rank, int world) {
  const std::string name = fmt::format("box {}", rank);
  const Shape whole{4, 4, 3};
  if (world != kCorpusRanks) return AddChunk(state, name, "cut.boxes", DType::kI16, whole, 2, rank, world);
  const Shape shape = rank == 0 ? Shape{2, 4, 3} : Shape{2, 2, 3};
  const Shape offset = rank == 0 ? Shape{0, 0, 0} : Shape{2, rank == 1 ? 0 : 2, 0};
  state.Add(name, DType::kI16, shape, TensorPart{"cut.boxes", whole, offset});
}

}  // namespace

void CorpusState::Add(const std::string& name, DType dtype, const Shape& shape, std::optional<TensorPart> part) {
  Tensor tensor{.name = name,
                .view = {.dtype = dtype, .shape = shape, .part = std::move(part)},
                .memory = std::vector<std::byte>(Elements(shape) * DTypeSize(dtype))};
  tensor.view.data = tensor.memory.data();
  tensor.view.bytes = tensor.memory.size();
  Require(state_.Add(name, tensor.view));
  tensors_.push_back(std::move(tensor));
}

void CorpusState::FreezeIn(State& state) const {
  for (const Tensor& tensor : tensors_) {
    TensorView view = tensor.view;
    view.frozen = true;
    Require(state.Add(tensor.name, view));
  }
}

void CorpusState::Tie(const std::string& name, const std::string& holder) {
  for (const Tensor& tensor : tensors_) {
    if (tensor.name == holder) return Require(state_.Add(name, tensor.view));
  }
  throw std::runtime_error("no tensor " + holder);
}

std::vector<std::byte> CorpusState::Contents(const Tensor& tensor, std::uint64_t step) {
  const TensorView& view = tensor.view;
  const std::string& name = view.part ? view.part->logical_name : tensor.name;
  const std::uint32_t seed = Seed(name, step);
  const std::size_t size = DTypeSize(view.dtype);
  std::vector<std::byte> contents(tensor.memory.size());
  for (std::uint64_t element = 0; element < contents.size() / size; ++element) {
    const std::uint64_t place = view.part ? PlaceInWhole(element, view.shape, *view.part) : element;
    for (std::size_t i = 0; i < size; ++i)
      contents[element * size + i] = ByteAt(name, view.dtype, seed, place * size + i);
  }
  return contents;
}

void CorpusState::Fill(std::uint64_t step) {
  for (Tensor& tensor : tensors_) {
    const std::vector<std::byte> contents = Contents(tensor, step);
    std::copy(contents.begin(), contents.end(), tensor.memory.begin());  // The views point there.
  }
}

std::vector<std::string> CorpusState::Wrong(std::uint64_t step) const {
  std::vector<std::string> wrong;
  for (const Tensor& tensor : tensors_) {
    if (tensor.memory != Contents(tensor, step)) wrong.push_back(tensor.name);
  }
  return wrong;
}

CorpusState CorpusSingle() {
  CorpusState state;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    state.Add(fmt::format("{}.scalar", DTypeName(dtype)), dtype, {});
    state.Add(fmt::format("{}.empty", DTypeName(dtype)), dtype, {0, 4});
    state.Add(fmt::format("{}.matrix", DTypeName(dtype)), dtype, {3, 5});
  }
  state.Add("\xc3\xa9/\xe9\x87\x8d\xe3\x81\xbf \xf0\x9f\x90\xa7 \"quoted\" back\\slash\n\x01", DType::kF32, {2});
  state.Tie("head.weight", "BF16.matrix");
  state.Tie("tied \xf0\x9f\x90\xa7", "F32.matrix");
  return state;
}

Values CorpusSingleValues(std::uint64_t step) {
  return {{"", std::string("the empty name")},
          {"false", false},
          {"huge", std::numeric_limits<double>::max()},
          {"integral double", 1.0},
          {"json", Json{R"({"nested": {"list": [1, 2.50, [null, true, "é\u00e9"]]}, "deep": [[[[]]]]})"}},
          {"large double", 1e22},
          {"largest", std::numeric_limits<std::int64_t>::max()},
          {"least", std::numeric_limits<std::int64_t>::min()},
          {"minus zero", -0.0},
          {"null", nullptr},
          {"step", static_cast<std::int64_t>(step)},
          {"tenth", 0.1},
          {"text", std::string("quote \" back \\ line \n \x01\x7f \xc3\xa9 \xe9\x87\x8d \xf0\x9f\x90\xa7")},
          {"tiny", std::numeric_limits<double>::denorm_min()},
          {"true", true},
          {"\xe9\x87\x8d\xe3\x81\xbf \xf0\x9f\x90\xa7", std::int64_t{-7}}};
}

CorpusState CorpusRank(int rank, int world) {
  CorpusState state;
  AddChunk(state, "cut.rows", "cut.rows", DType::kF32, {7, 6}, 0, rank, world);
  AddChunk(state, "cut.columns", "cut.columns", DType::kBF16, {4, 9}, 1, rank, world);
  AddChunk(state, "cut.short", "cut.short", DType::kU8, {2, 5}, 0, rank, world);
  AddBox(state, rank, world);
  state.Tie("tied.rows", "cut.rows");
  state.Add("replicated.bias", DType::kF64, {5});
  state.Add("replicated.counts", DType::kI64, {3});
  state.Add("replicated.step", DType::kF32, {});
  for (int of = rank; of < kCorpusRanks; of += world) state.Add(fmt::format("own.{}", of), DType::kU8, {of + 5});
  return state;
}

Replicated CorpusReplicated() {
  return {.tensors = {"replicated.bias", "replicated.counts"},
          .rank0_tensors = {"replicated.step"},
          .identical_values = {}};
}

Values CorpusRankValues(int rank) { return {{"rank", std::int64_t{rank}}, {"world", std::int64_t{kCorpusRanks}}}; }

CorpusState CorpusLarge() {
  CorpusState state;
  state.Add("counts", DType::kI64, {3});  // Its dtype puts it first.
  state.Add("sparse.weight", DType::kF32, {401, 661});
  state.Add("sparse.tail", DType::kU8, {5});
  return state;
}

CorpusState CorpusFrozen() {
  CorpusState state;
  state.Add("sparse.base", DType::kF32, {401, 661});
  return state;
}

CorpusState CorpusUnchecked() {
  CorpusState state;
  state.Add("weight", DType::kF32, {6, 7});
  state.Add("step", DType::kI64, {});
  return state;
}

}  // namespace cairn
