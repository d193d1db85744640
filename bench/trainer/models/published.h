#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cairn::trainer {

/// A model of src/advice/models.json, which all programs share.
struct PublishedModel {
  std::string name;
  /// Which of the models' files has its layers.
  std::string family;
  std::map<std::string, std::int64_t> sizes;
  /// Other names that it goes by.
  std::vector<std::string> also;
};
/// In the order of the file.
const std::vector<PublishedModel>& PublishedModels();
/// The model of this name, or one that also goes by it. Null: unknown.
const PublishedModel* FindPublishedModel(const std::string& name);
/// The sizes of a known model.
const std::map<std::string, std::int64_t>& PublishedSizes(const std::string& name);

}  // namespace cairn::trainer
