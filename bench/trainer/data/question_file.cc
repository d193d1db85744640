#include "data/question_file.h"

#include <limits>
#include <stdexcept>

namespace cairn::trainer {
namespace {

static_assert(sizeof(Feature) == 16, "features are used in place");

}  // namespace

QuestionFile::QuestionFile(const std::string& folder) : QuestionFile(JsonFile(folder + "/data.json"), folder) {}

QuestionFile::QuestionFile(const JsonFile& about, const std::string& folder)
    : tokens_(folder, "questions"),
      file_(folder + "/features.bin"),
      sequence_(about.Count("sequence")),
      checksum_(about.Text("features_checksum")) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (sequence_ > kMax) about.Reject("sequence", "at most " + std::to_string(kMax));
  const std::string path = folder + "/features.bin";
  const std::uint64_t size = about.Count("features");
  if (size == 0) about.Reject("features", "at least 1");
  const auto bytes = file_.bytes();
  if (bytes.size() % sizeof(Feature) != 0 || bytes.size() / sizeof(Feature) != size) {
    throw std::runtime_error(path + ": expected " + std::to_string(size) +
                             " features of 16 bytes, according to data.json, found " + std::to_string(bytes.size()) +
                             " bytes");
  }
  if (checksum_ != file_.Checksum()) {
    about.Reject("features_checksum", file_.Checksum() + ", as of features.bin");
  }
  features_ = {reinterpret_cast<const Feature*>(bytes.data()), size};
  CheckFeatures(path);
}

void QuestionFile::CheckFeatures(const std::string& path) {
  std::uint64_t begin = 0;
  begins_.reserve(size());
  for (const Feature& feature : features_) {
    const auto check = [&](bool right, const char* field, const std::string& expected, std::uint32_t found) {
      if (right) return;
      throw std::runtime_error(path + ": feature " + std::to_string(begins_.size()) + ": " + field + ": expected " +
                               expected + ", found " + std::to_string(found));
    };
    const auto below = [](std::uint32_t limit) { return "less than " + std::to_string(limit); };
    check(feature.length >= 1 && feature.length <= sequence_, "length", "1 to " + std::to_string(sequence_),
          feature.length);
    check(feature.context < feature.length, "context", below(feature.length), feature.context);
    check(feature.end < feature.length, "end", below(feature.length), feature.end);
    check(feature.start == 0 || feature.start >= feature.context, "start",
          "0, or at least the context's " + std::to_string(feature.context), feature.start);
    check(feature.start <= feature.end, "start", "at most its end, " + std::to_string(feature.end), feature.start);
    begins_.push_back(begin);
    begin += feature.length;
  }
  if (begin == tokens_.size()) return;
  throw std::runtime_error(path + ": expected features of " + std::to_string(tokens_.size()) +
                           " tokens in total, as in tokens.bin, found " + std::to_string(begin));
}

}  // namespace cairn::trainer
