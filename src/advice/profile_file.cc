#include "advice/profile_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "advice/input_file.h"
#include "advice/json_field.h"
#include "advice/output_file.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
/// Of a profile.
constexpr std::size_t kMostProfileBytes = 16U << 20;

json SampleToJson(const Profile& profile, const ProfileSample& sample) {
  json out = {{"cores", sample.budget.cores},
              {"memory_bytes", sample.budget.memory_bytes},
              {"throughput", sample.throughput},
              {"predicted", PredictThroughput(profile, sample.budget)}};
  if (!sample.failure.empty()) out["failure"] = sample.failure;
  return out;
}

Result<ProfileSample> ReadSample(const JsonField& field) {
  CAIRN_RETURN_IF_ERROR(field.CheckObject());
  ProfileSample sample;
  CAIRN_ASSIGN_OR_RETURN(sample.budget.cores, field.At("cores").Number());
  CAIRN_ASSIGN_OR_RETURN(sample.budget.memory_bytes, field.At("memory_bytes").Whole(0));
  CAIRN_ASSIGN_OR_RETURN(sample.throughput, field.At("throughput").Number());
  if (!field.Has("failure")) return sample;
  CAIRN_ASSIGN_OR_RETURN(sample.failure, field.At("failure").Text());
  return sample;
}

Result<std::vector<ProfileSample>> ReadSamples(const JsonField& list) {
  CAIRN_RETURN_IF_ERROR(list.CheckArray(0, kMostProfileBytes, "samples"));
  std::vector<ProfileSample> samples;
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(ProfileSample sample, ReadSample(list.At(i)));
    samples.push_back(std::move(sample));
  }
  return samples;
}

Result<ProfileFile> ReadRoot(const JsonField& root) {
  CAIRN_RETURN_IF_ERROR(root.CheckObject());
  CAIRN_RETURN_IF_ERROR(root.At("version").Whole(kVersion, kVersion).status());
  ProfileFile file;
  Profile& profile = file.profile;
  const JsonField full = root.At("full");
  CAIRN_RETURN_IF_ERROR(full.CheckObject());
  CAIRN_ASSIGN_OR_RETURN(profile.full.cores, full.At("cores").Number());
  CAIRN_ASSIGN_OR_RETURN(profile.full.memory_bytes, full.At("memory_bytes").Whole(0));
  CAIRN_ASSIGN_OR_RETURN(profile.peak_bytes, full.At("peak_bytes").Whole(0));
  CAIRN_ASSIGN_OR_RETURN(profile.tolerance, root.At("tolerance").Number());
  CAIRN_ASSIGN_OR_RETURN(profile.samples, ReadSamples(root.At("samples")));
  CAIRN_ASSIGN_OR_RETURN(file.checks, ReadSamples(root.At("checks")));
  CAIRN_ASSIGN_OR_RETURN(file.memory_note, root.At("memory_note").Text());
  const JsonField command = root.At("command");
  CAIRN_RETURN_IF_ERROR(command.CheckArray(0, kMostProfileBytes, "texts"));
  for (std::size_t i = 0; i < command.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(std::string word, command.At(i).Text());
    file.command.push_back(std::move(word));
  }
  if (!root.Has("job")) return file;
  CAIRN_ASSIGN_OR_RETURN(file.job, root.At("job").Text());
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
          {"job", file.job},
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
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "a profile", kMostProfileBytes));
  CAIRN_ASSIGN_OR_RETURN(const json document, ParseJson(text, path));
  CAIRN_ASSIGN_OR_RETURN(ProfileFile file, ReadRoot(JsonField(document, path)));
  const Status checked = CheckProfile(file.profile);
  if (!checked.ok()) return Error(checked.code(), "{}: {}", path, checked.message());
  return file;
}

}  // namespace cairn
