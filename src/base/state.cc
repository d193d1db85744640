#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "base/utf8.h"
#include "cairn/group.h"
#include "cairn/tensor.h"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 17> kDTypeNames = {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0",
                                                          "I16",  "U16", "F16", "BF16",    "I32",     "U32",
                                                          "F32",  "C64", "F64", "I64",     "U64"};
constexpr std::array<std::size_t, 17> kDTypeSizes = {1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8};

// The table of every moved-from state. It counts as shared, so that Add replaces it.
const std::shared_ptr<const TensorTable>& NoTensors() {
  static const auto none = [] {
    auto table = std::make_shared<const TensorTable>();
    table->Share();
    return table;
  }();
  return none;
}

}  // namespace

std::size_t DTypeSize(DType dtype) { return kDTypeSizes.at(static_cast<std::size_t>(dtype)); }
std::string_view DTypeName(DType dtype) { return kDTypeNames.at(static_cast<std::size_t>(dtype)); }

std::optional<DType> DTypeFromName(std::string_view name) {
  const auto* const found = std::ranges::find(kDTypeNames, name);
  if (found == kDTypeNames.end()) return std::nullopt;
  return static_cast<DType>(found - kDTypeNames.begin());
}

std::string ToString(DeviceId device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

State::State() : table_(std::make_shared<TensorTable>()) {}
State::~State() = default;
State::State(const State& other) : table_(other.table()), values_(other.values_) {}
State& State::operator=(const State& other) {
  if (this != &other) {
    table_ = other.table();
    values_ = other.values_;
  }
  return *this;
}
State::State(State&& other) noexcept
    : table_(std::exchange(other.table_, NoTensors())), values_(std::exchange(other.values_, {})) {}
State& State::operator=(State&& other) noexcept {
  State taken(std::move(other));
  table_.swap(taken.table_);
  values_.swap(taken.values_);
  return *this;
}

const std::shared_ptr<const TensorTable>& State::table() const {
  table_->Share();
  return table_;
}

Status State::Add(std::string name, TensorView view) {
  // Not use_count: it does not order the last reads of other owners before this write.
  if (table_->shared()) table_ = std::make_shared<TensorTable>(*table_);
  // The cast is safe: this table was never shared, and was created mutable above or in the constructor.
  return const_cast<TensorTable&>(*table_).Add(std::move(name), std::move(view));
}

Status State::Set(std::string name, Value value) {
  if (!IsUtf8(name)) return Error(StatusCode::kInvalidArgument, "a value's name is not valid UTF-8");
  if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) {
    return Error(StatusCode::kInvalidArgument, "value \"{}\": expected a finite number, found {}", name, *number);
  }
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && !IsUtf8(*text)) {
    return Error(StatusCode::kInvalidArgument, "value \"{}\" is not valid UTF-8", name);
  }
  if (const auto* json = std::get_if<Json>(&value); json != nullptr && !json->vouched && !IsJson(json->text)) {
    return Error(StatusCode::kInvalidArgument, "value \"{}\" is not valid JSON", name);
  }
  values_.insert_or_assign(std::move(name), std::move(value));
  return Status::Ok();
}

std::vector<std::string> TensorNames(const State& state) {
  const TensorTable& table = *state.table();
  std::vector<std::string> names;
  names.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) names.push_back(table[i].name);
  return names;
}

std::size_t State::tensor_count() const { return table_->size(); }
std::uint64_t State::bytes() const { return table_->bytes(); }

}  // namespace cairn
