#include "support/power_cut.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

struct Node;
using Names = std::map<std::string, std::shared_ptr<Node>>;
// Shared between a file and its durable state until one of them changes.
using Content = std::shared_ptr<std::string>;

// A file or directory: as programs see it, and as the disk would return it after a power cut.
struct Node {
  bool directory = false;
  Content data = std::make_shared<std::string>();
  Content durable_data = std::make_shared<std::string>();
  Names names;
  Names durable_names;
  std::size_t durable_since = 0;  // `begun` of the fsync that made it so.

  std::string& MutableData() {
    if (data.use_count() > 1) data = std::make_shared<std::string>(*data);
    return *data;
  }
};

class Model {
 public:
  explicit Model(const Recording& recording) : base_(recording.base()) {
    for (const Recording::Entry& entry : recording.before()) {
      if (entry.path.empty()) continue;
      const Place place = Find((base_ / entry.path).string());
      auto node = std::make_shared<Node>();
      node->directory = entry.directory;
      *node->data = entry.data;
      node->durable_data = node->data;
      place.parent->names[place.name] = node;
      place.parent->durable_names[place.name] = node;
    }
  }

  void Run(const std::vector<RecordedOperation>& operations, std::size_t upto) {
    std::multimap<std::size_t, std::size_t> fsyncs;  // By the moment of their submission.
    for (std::size_t i = 0; i < upto; ++i) {
      if (operations[i].op == IoOp::kFsync && operations[i].result >= 0) fsyncs.emplace(operations[i].begun, i);
    }
    for (std::size_t i = 0; i < upto; ++i) {
      const auto [first, last] = fsyncs.equal_range(i);
      for (auto it = first; it != last; ++it) Capture(it->second, operations[it->second].file);
      // A mkdir that was too late has seen the folder; the queue that made it may record that later.
      const bool there = operations[i].op == IoOp::kMkdir && operations[i].result == -EEXIST;
      if (operations[i].result >= 0 || there) Apply(operations[i], i);
    }
  }

  void Write(const std::string& target, PowerCut cut) const {
    std::map<const Node*, std::string> written;
    Write(*root_, target, cut, written);
  }

 private:
  struct Place {
    Node* parent = nullptr;  // Null if the path is not below the base.
    std::string name;
  };
  struct Captured {
    Content data;
    Names names;
  };

  // The parent and name of a path, in the tree as programs see it. The base itself has no name.
  [[nodiscard]] Place Find(const std::string& path) const {
    const std::filesystem::path below = std::filesystem::path(path).lexically_normal().lexically_relative(base_);
    if (below.empty() || *below.begin() == "..") return {};
    Place place{root_.get(), ""};
    for (const std::filesystem::path& part : below) {
      if (part.empty() || part == ".") continue;
      if (!place.name.empty()) {
        const auto it = place.parent->names.find(place.name);
        if (it == place.parent->names.end()) return {};
        place.parent = it->second.get();
      }
      place.name = part.string();
    }
    return place;
  }

  [[nodiscard]] std::shared_ptr<Node> Lookup(const std::string& path) const {
    const Place place = Find(path);
    if (place.parent == nullptr) return nullptr;
    if (place.name.empty()) return root_;
    const auto it = place.parent->names.find(place.name);
    return it == place.parent->names.end() ? nullptr : it->second;
  }

  [[nodiscard]] Node* File(std::uint64_t file) const {
    const auto it = files_.find(file);
    return it == files_.end() ? nullptr : it->second.get();
  }

  void Capture(std::size_t fsync, std::uint64_t file) {
    if (const Node* node = File(file); node != nullptr) captured_[fsync] = {node->data, node->names};
  }

  void Apply(const RecordedOperation& operation, std::size_t index) {
    switch (operation.op) {
      case IoOp::kOpen:
        return Open(operation);
      case IoOp::kClose:
        files_.erase(operation.file);
        return;
      case IoOp::kWrite:
      case IoOp::kFallocate:
      case IoOp::kFtruncate:
        return Change(operation);
      case IoOp::kFsync:
        return Fsync(operation, index);
      case IoOp::kRename:
        return Rename(operation);
      case IoOp::kLink:
        return Link(operation);
      case IoOp::kUnlink:
      case IoOp::kRmdir:
        if (const Place place = Find(operation.path); place.parent != nullptr) place.parent->names.erase(place.name);
        return;
      case IoOp::kCall:
        return;
      case IoOp::kMkdir:
        if (const Place place = Find(operation.path); place.parent != nullptr) {
          auto& node = place.parent->names[place.name];
          if (node == nullptr) node = std::make_shared<Node>();
          node->directory = true;
        }
        return;
      case IoOp::kRead:
      case IoOp::kSyncRange:
        return;
    }
  }

  void Open(const RecordedOperation& operation) {
    std::shared_ptr<Node> node = Lookup(operation.path);
    if (node == nullptr && (operation.flags & O_CREAT) != 0) {
      const Place place = Find(operation.path);
      if (place.parent == nullptr) return;
      node = place.parent->names[place.name] = std::make_shared<Node>();
    }
    if (node == nullptr) return;
    if ((operation.flags & O_TRUNC) != 0) node->MutableData().clear();
    files_[operation.file] = std::move(node);
  }

  void Change(const RecordedOperation& operation) {
    Node* node = File(operation.file);
    if (node == nullptr) return;
    std::string& data = node->MutableData();
    const auto end = static_cast<std::size_t>(
        operation.offset + (operation.op == IoOp::kWrite ? operation.data.size() : operation.length));
    if (operation.op == IoOp::kFtruncate) return data.resize(operation.length);
    if (data.size() < end) data.resize(end);
    if (operation.op == IoOp::kWrite) std::copy(operation.data.begin(), operation.data.end(), &data[operation.offset]);
  }

  void Fsync(const RecordedOperation& operation, std::size_t index) {
    Node* node = File(operation.file);
    const auto captured = captured_.find(index);
    // Of two at the same time, the one that was submitted later covers more.
    if (node == nullptr || captured == captured_.end() || operation.begun < node->durable_since) return;
    node->durable_since = operation.begun;
    node->durable_data = captured->second.data;
    node->durable_names = captured->second.names;
  }

  void Rename(const RecordedOperation& operation) {
    const Place from = Find(operation.path);
    const Place to = Find(operation.path2);
    if (from.parent == nullptr || to.parent == nullptr) return;
    const auto it = from.parent->names.find(from.name);
    if (it == from.parent->names.end()) return;
    if (operation.rename == RenameMode::kExchange) {
      it->second.swap(to.parent->names[to.name]);
      return;
    }
    const std::shared_ptr<Node> node = it->second;
    from.parent->names.erase(it);
    to.parent->names[to.name] = node;
  }

  void Link(const RecordedOperation& operation) {
    const auto linked = files_.find(operation.file);
    const Place to = Find(operation.path2);
    if (linked != files_.end() && to.parent != nullptr) to.parent->names[to.name] = linked->second;
  }

  // `written`: the files that already have a name, and which.
  static void Write(const Node& node, const std::string& path, PowerCut cut,
                    std::map<const Node*, std::string>& written) {
    if (!node.directory) {
      if (const auto [first, fresh] = written.emplace(&node, path); !fresh) {
        return std::filesystem::create_hard_link(first->second, path);
      }
      const std::string& data = cut.data ? *node.data : *node.durable_data;
      std::ofstream file(path, std::ios::binary);
      file.exceptions(std::ios::failbit | std::ios::badbit);
      file.write(data.data(), static_cast<std::streamsize>(data.size()));
      file.close();
      return;
    }
    std::filesystem::create_directory(path);
    for (const auto& [name, child] : cut.entries ? node.names : node.durable_names) {
      Write(*child, (std::filesystem::path(path) / name).string(), cut, written);
    }
  }

  static std::shared_ptr<Node> MakeRoot() {
    auto root = std::make_shared<Node>();
    root->directory = true;
    return root;
  }

  const std::filesystem::path base_;
  const std::shared_ptr<Node> root_ = MakeRoot();
  std::map<std::uint64_t, std::shared_ptr<Node>> files_;  // Open ones.
  std::map<std::size_t, Captured> captured_;              // What each fsync covers.
};

}  // namespace

Status MaterializeAfterPowerCut(const Recording& recording, std::size_t upto, const std::string& target, PowerCut cut) {
  const std::vector<RecordedOperation> operations = recording.operations();
  if (upto > operations.size()) {
    return Error(StatusCode::kInvalidArgument, "power cut after {} operations: only {} were recorded", upto,
                 operations.size());
  }
  Model model(recording);
  model.Run(operations, upto);
  try {
    model.Write(target, cut);
  } catch (const std::system_error& error) {
    return Error(StatusCode::kIoError, "writing what a power cut leaves: {}", error.what());
  }
  return {};
}

}  // namespace cairn
