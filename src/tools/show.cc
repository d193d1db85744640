#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/output.h"
#include "tools/reading.h"

namespace cairn::tools {
namespace {

void PrintTensors(const std::vector<TensorInfo>& tensors) {
  std::vector<std::vector<std::string>> rows{{"NAME", "TYPE", "BYTES", "FILE"}};
  for (const TensorInfo& tensor : tensors) {
    rows.push_back({Printable(tensor.name), DescribeType(tensor), std::to_string(tensor.bytes),
                    tensor.alias_of.empty() ? Printable(tensor.file) : "tied to " + Printable(tensor.alias_of)});
  }
  PrintTable(rows);
}

nlohmann::json TensorsToJson(const std::vector<TensorInfo>& tensors) {
  nlohmann::json out = nlohmann::json::array();
  for (const TensorInfo& tensor : tensors) out.push_back(ToJson(tensor));
  return out;
}

int ShowFile(const std::string& path, bool json) {
  const Result<std::unique_ptr<Reading>> reading = Reading::Make();
  if (!reading.ok()) return Complain(reading.status());
  const Result<TensorSource> source = TensorSource::OpenFile((*reading)->parts(), path);
  if (!source.ok()) return Complain(source.status());
  std::vector<TensorInfo> tensors;
  for (const StoredTensor& tensor : source->tensors()) tensors.push_back(tensor.info);
  if (json) {
    PrintJson({{"path", path}, {"metadata", source->metadata()}, {"tensors", TensorsToJson(tensors)}});
    return kGood;
  }
  for (const auto& [key, value] : source->metadata()) fmt::print("{}: {}\n", Printable(key), Printable(value));
  PrintTensors(tensors);
  return kGood;
}

}  // namespace

int Show(const std::string& path, const std::optional<std::uint64_t>& step, bool json) {
  const Result<PathKind> kind = KindOf(path);
  if (!kind.ok()) return Complain(kind.status());
  if (*kind == PathKind::kTensorFile && !step) return ShowFile(path, json);
  const Result<StoredCheckpoint> checkpoint = FindCheckpoint(path, step);
  if (!checkpoint.ok()) return Complain(checkpoint.status());
  const Result<CheckpointDetails> details = InspectCheckpoint(*checkpoint);
  if (!details.ok()) return Complain(details.status());

  if (json) {
    nlohmann::json out = ToJson(details->info);
    out["tensors"] = TensorsToJson(details->tensors);
    out["values"] = nlohmann::json::array();
    for (const Values& values : details->values) out["values"].push_back(ToJson(values));
    PrintJson(out);
    return kGood;
  }
  const CheckpointInfo& info = details->info;
  fmt::print("step {}  generation {}  world {}  {}{}\nattempt {}\n", info.step, info.generation, info.world,
             HumanBytes(info.bytes), info.pinned ? "  pinned" : "", Printable(info.attempt));
  if (info.parent) fmt::print("restored from step {}\n", *info.parent);
  for (std::size_t rank = 0; rank < details->values.size(); ++rank) {
    const nlohmann::json values = ToJson(details->values[rank]);
    for (const auto& [name, value] : values.items()) {
      fmt::print("rank {}: {} = {}\n", rank, Printable(name),
                 value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  PrintTensors(details->tensors);
  return kGood;
}

}  // namespace cairn::tools
