#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
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

using Files = std::span<const std::uint32_t>;

// Both print as they are given what they print, and nothing before.

/// One object: the head's members, a list of the tensors, a line each, and for a checkpoint the values of each rank.
class JsonText {
 public:
  JsonText(nlohmann::json head, bool has_values) : head_(std::move(head)), has_values_(has_values) {}
  void Add(const TensorSource& source, Files files) {
    if (!head_.empty()) Begin();
    for (const StoredTensor& tensor : source.tensors()) {
      fmt::print("{}\n    {}", any_ ? "," : "", JsonLine(ToJson(tensor.info)));
      any_ = true;
    }
    for (const std::uint32_t file : files) values_.push_back(ValuesText(source.header(file).values));
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
  void Add(const TensorSource& source, Files files) {
    fmt::print("{}", std::exchange(head_, ""));
    for (const std::uint32_t file : files) {
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
    text.Add(source, {});
    text.End();
    return;
  }
  std::string head;
  for (const auto& [key, value] : source.metadata()) head += fmt::format("{}: {}\n", Printable(key), Printable(value));
  PlainText(head).Add(source, {});
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
  for (std::uint32_t done = 0; done < source.files();) {
    std::vector<std::uint32_t> files(std::min<std::uint32_t>(kHeaderReads, source.files() - done));
    std::iota(files.begin(), files.end(), done);
    CAIRN_RETURN_IF_ERROR(source.Select(reading.parts(), files));
    text.Add(source, files);
    done += static_cast<std::uint32_t>(files.size());
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
