#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "restore/open.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

// Both print as they are given what they print, files [first, end) of a source, and nothing before.

/// One object: the head's members, a list of the tensors, a line each, and for a checkpoint the values of each rank.
class JsonText {
 public:
  JsonText(nlohmann::json head, bool has_values) : head_(std::move(head)), has_values_(has_values) {}
  void Add(const TensorSource& source, std::uint32_t first, std::uint32_t end) {
    if (!head_.empty()) Begin();
    for (const StoredTensor& tensor : source.tensors()) {
      fmt::print("{}\n    {}", any_ ? "," : "", JsonLine(ToJson(tensor.info)));
      any_ = true;
    }
    for (std::uint32_t file = first; file < end; ++file) values_.push_back(ValuesText(source.header(file).values));
  }
  void End() {
    if (!head_.empty()) Begin();
    fmt::print("\n  ]");
    if (has_values_) fmt::print(",\n  \"values\": [\n    {}\n  ]", fmt::join(values_, ",\n    "));
    fmt::print("\n}}\n");
  }

 private:
  void Begin() {
    fmt::print("{{\n");
    for (const auto& [key, value] : head_.items()) fmt::print("  \"{}\": {},\n", key, JsonLine(value));
    fmt::print("  \"tensors\": [");
    head_.clear();
  }

  nlohmann::json head_;
  const bool has_values_;
  bool any_ = false;
  std::vector<std::string> values_;
};

/// The head, and then values and tensors in the order of the files.
class PlainText {
 public:
  explicit PlainText(std::string head) : head_(std::move(head)) {}
  void Add(const TensorSource& source, std::uint32_t first, std::uint32_t end) {
    fmt::print("{}", std::exchange(head_, ""));
    for (std::uint32_t file = first; file < end; ++file) {
      const ShardHeader& header = source.header(file);
      for (const auto& [name, value] : header.values) {
        fmt::print("rank {}: {} = {}\n", header.shard, Printable(name), ValueText(value));
      }
    }
    std::vector<std::vector<std::string>> rows;
    if (widths_.empty()) rows.push_back({"NAME", "TYPE", "BYTES", "FILE"});
    for (const StoredTensor& tensor : source.tensors()) {
      const TensorInfo& info = tensor.info;
      rows.push_back({Printable(info.name), DescribeType(info), std::to_string(info.bytes),
                      info.alias_of.empty() ? Printable(info.file) : "tied to " + Printable(info.alias_of)});
    }
    PrintTable(rows, widths_);
  }

 private:
  std::string head_;
  std::vector<std::size_t> widths_;
};

void ShowFile(const std::string& path, const TensorSource& source, bool json) {
  if (json) {
    JsonText text({{"path", path}, {"metadata", source.metadata()}}, /*has_values=*/false);
    text.Add(source, 0, 0);
    text.End();
    return;
  }
  std::string head;
  for (const auto& [key, value] : source.metadata()) head += fmt::format("{}: {}\n", Printable(key), Printable(value));
  PlainText(head).Add(source, 0, 0);
}

std::string Describe(const CheckpointInfo& info) {
  std::string text =
      fmt::format("step {}  generation {}  world {}  {}{}\nattempt {}\n", info.step, info.generation, info.world,
                  HumanBytes(info.bytes), info.pinned ? "  pinned" : "", Printable(info.attempt));
  if (info.parent) text += fmt::format("restored from step {}\n", *info.parent);
  return text;
}

// Some shards at a time, so that a checkpoint of any number of them fits into memory.
template <typename Text>
Status Print(const Reading& reading, TensorSource& source, Text& text) {
  for (std::uint32_t first = 0; first < source.files(); first += kHeaderReads) {
    const std::uint32_t end = std::min(first + static_cast<std::uint32_t>(kHeaderReads), source.files());
    CAIRN_RETURN_IF_ERROR(source.SelectRange(reading.parts(), first, end));
    text.Add(source, first, end);
  }
  return Status::Ok();
}

}  // namespace

int Show(const std::string& path, const std::optional<std::uint64_t>& step, bool json) {
  const Result<std::unique_ptr<Reading>> reading = Reading::Make();
  if (!reading.ok()) return Complain(reading.status());
  Result<TensorSource> source = OpenSource(**reading, path, step);
  if (!source.ok()) return Complain(source.status());
  if (source->checkpoint() == nullptr) {
    ShowFile(path, *source, json);
    return kGood;
  }
  const CheckpointInfo& info = source->checkpoint()->info;
  Status status;
  if (json) {
    JsonText text(ToJson(info), /*has_values=*/true);
    status = Print(**reading, *source, text);
    if (status.ok()) text.End();
  } else {
    PlainText text(Describe(info));
    status = Print(**reading, *source, text);
  }
  return status.ok() ? kGood : Complain(status);
}

}  // namespace cairn::tools
