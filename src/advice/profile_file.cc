#include "advice/profile_file.h"

#include <nlohmann/json.hpp>

#include "advice/input_file.h"
#include "advice/output_file.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

json SampleToJson(const Profile& profile, const ProfileSample& sample) {
  json out = {{"cores", sample.budget.cores},
              {"memory_bytes", sample.budget.memory_bytes},
              {"throughput", sample.throughput},
              {"predicted", PredictThroughput(profile, sample.budget)}};
  if (!sample.failure.empty()) out["failure"] = sample.failure;
  return out;
}

/// Reads members of objects; the first problem stays.
class Fields {
 public:
  [[nodiscard]] const Status& status() const { return status_; }
  const json& Get(const json& object, const std::string& at, const char* name) {
    static const json kNone;
    if (!object.is_object()) return Refuse(at, "an object", object), kNone;
    const auto found = object.find(name);
    if (found == object.end()) return Refuse(Path(at, name), "a value", "none"), kNone;
    return *found;
  }
  double Number(const json& object, const std::string& at, const char* name) {
    const json& value = Get(object, at, name);
    if (value.is_number()) return value.get<double>();
    Refuse(Path(at, name), "a number", value);
    return 0;
  }
  std::uint64_t Bytes(const json& object, const std::string& at, const char* name) {
    const json& value = Get(object, at, name);
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    Refuse(Path(at, name), "a whole number of bytes", value);
    return 0;
  }
  std::string Text(const json& object, const std::string& at, const char* name) {
    const json& value = Get(object, at, name);
    if (value.is_string()) return value.get<std::string>();
    Refuse(Path(at, name), "a text", value);
    return {};
  }
  const json& List(const json& object, const std::string& at, const char* name) {
    static const json kEmpty = json::array();
    const json& value = Get(object, at, name);
    if (value.is_array()) return value;
    Refuse(Path(at, name), "a list", value);
    return kEmpty;
  }
  void Refuse(const std::string& at, const std::string& expected, const json& found) {
    constexpr std::size_t kShown = 60;
    if (!status_.ok()) return;
    status_ =
        Error(StatusCode::kInvalidArgument, "{}: expected {}, found {}", at.empty() ? "the file" : at, expected,
              found == "none" ? "none" : found.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kShown));
  }

 private:
  static std::string Path(const std::string& at, const char* name) { return at.empty() ? name : at + "." + name; }
  Status status_;
};

std::vector<ProfileSample> ReadSamples(Fields& fields, const json& root, const char* name) {
  std::vector<ProfileSample> samples;
  const json& list = fields.List(root, "", name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    ProfileSample sample{.budget = {.cores = fields.Number(list[i], at, "cores"),
                                    .memory_bytes = fields.Bytes(list[i], at, "memory_bytes")},
                         .throughput = fields.Number(list[i], at, "throughput"),
                         .failure = {}};
    if (list[i].is_object() && list[i].contains("failure")) sample.failure = fields.Text(list[i], at, "failure");
    samples.push_back(std::move(sample));
  }
  return samples;
}

Result<ProfileFile> Parse(const json& root) {
  Fields fields;
  ProfileFile file;
  const double version = fields.Number(root, "", "version");
  if (fields.status().ok() && version != kVersion) fields.Refuse("version", fmt::to_string(kVersion), root["version"]);
  const json& full = fields.Get(root, "", "full");
  Profile& profile = file.profile;
  profile.full.cores = fields.Number(full, "full", "cores");
  profile.full.memory_bytes = fields.Bytes(full, "full", "memory_bytes");
  profile.peak_bytes = fields.Bytes(full, "full", "peak_bytes");
  profile.tolerance = fields.Number(root, "", "tolerance");
  profile.samples = ReadSamples(fields, root, "samples");
  file.checks = ReadSamples(fields, root, "checks");
  file.memory_note = fields.Text(root, "", "memory_note");
  const json& command = fields.List(root, "", "command");
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (!command[i].is_string()) fields.Refuse(fmt::format("command[{}]", i), "a text", command[i]);
    if (fields.status().ok()) file.command.push_back(command[i].get<std::string>());
  }
  CAIRN_RETURN_IF_ERROR(fields.status());
  CAIRN_RETURN_IF_ERROR(CheckProfile(profile));
  return file;
}

}  // namespace

json ToJson(const ProfileFile& file) {
  const Profile& profile = file.profile;
  const Budget knee = FindKnee(profile);
  const ProfileAdvice advice = Advise(profile);
  json samples = json::array();
  json checks = json::array();
  for (const ProfileSample& sample : profile.samples) samples.push_back(SampleToJson(profile, sample));
  for (const ProfileSample& sample : file.checks) checks.push_back(SampleToJson(profile, sample));
  return {{"version", kVersion},
          {"command", file.command},
          {"full",
           {{"cores", profile.full.cores},
            {"memory_bytes", profile.full.memory_bytes},
            {"peak_bytes", profile.peak_bytes}}},
          {"memory_note", file.memory_note},
          {"tolerance", profile.tolerance},
          {"samples", samples},
          {"checks", checks},
          {"knee", {{"cores", knee.cores}, {"memory_bytes", knee.memory_bytes}}},
          {"advice",
           {{"spare_cores", advice.spare_cores},
            {"worker_threads", advice.worker_threads},
            {"host_memory_bytes", advice.host_memory_bytes ? json(*advice.host_memory_bytes) : json(nullptr)},
            {"training_cores", advice.training_cores},
            {"checksums", "host"},
            {"why", advice.why}}}};
}

Status WriteProfile(const std::string& path, const ProfileFile& file) {
  return WriteOutputFile(path, ToJson(file).dump(2, ' ', false, json::error_handler_t::replace) + '\n');
}

Result<ProfileFile> ReadProfile(const std::string& path) {
  constexpr std::size_t kMostBytes = 16U << 20;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "a profile", kMostBytes));
  if (IsNestedTooDeeply(text)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected at most {} levels of lists and objects, found more", path,
                 kMostJsonLevels);
  }
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return Error(StatusCode::kInvalidArgument, "{}: expected JSON, found something else", path);
  Result<ProfileFile> file = Parse(root);
  if (!file.ok()) return Status(file.status().code(), fmt::format("{}: {}", path, file.status().message()));
  return file;
}

}  // namespace cairn
