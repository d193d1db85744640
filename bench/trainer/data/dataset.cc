#include "data/dataset.h"

#include <filesystem>
#include <stdexcept>

namespace cairn::trainer {

Dataset OpenDataset(const std::string& what, std::int64_t sequence) {
  if (what == "digits") return DigitsDataset();
  if (std::filesystem::exists(what + "/data.json")) return TextDataset(what, sequence);
  if (std::filesystem::is_directory(what)) return ImageFolderDataset(what);
  throw std::runtime_error(
      "--data " + what +
      ": expected \"digits\", or a folder of pictures or prepared text, and there is no such folder");
}

}  // namespace cairn::trainer
