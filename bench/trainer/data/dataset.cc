#include "data/dataset.h"

#include <filesystem>
#include <stdexcept>

namespace cairn::trainer {

Dataset OpenDataset(const std::string& what) {
  if (what == "digits") return DigitsDataset();
  if (std::filesystem::is_directory(what)) return ImageFolderDataset(what);
  throw std::runtime_error("--data " + what +
                           ": expected \"digits\" or a folder of pictures, and there is no such folder");
}

}  // namespace cairn::trainer
