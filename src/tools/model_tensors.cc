#include "tools/model_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <variant>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "tools/windows.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

/// In the names of arrays in a value of cairn.dcp.
constexpr std::string_view kInValue = "/~v";
constexpr int kDcpVersion = 4;  // As bindings/cairn/_dcp/items.py has it.

struct Found {
  WholeTensor whole;
  /// Those that a shard holds as a whole.
  std::vector<const StoredTensor*> copies;
};

/// By name.
std::map<std::string, Found> ListFound(const TensorSource& source) {
  std::map<std::string, Found> all;
  for (const StoredTensor& tensor : source.tensors()) {
    const TensorInfo& info = tensor.info;
    const std::string& name = info.part ? info.part->logical_name : info.name;
    Found& found = all[name];
    if (found.whole.name.empty()) found.whole = {name, info.dtype, info.part ? info.part->global_shape : info.shape};
    if (!info.part) found.copies.push_back(&tensor);
  }
  return all;
}

/// What the texts say that cairn.dcp adds to each shard: see bindings/cairn/_dcp/items.py.
struct DcpNotes {
  bool any = false;
  /// The state dict has a key "model", and a dict there.
  bool below_model = false;
  /// What is at the top of the state dict, not in a dict or list below.
  std::set<std::string> at_top;
  /// Parts that are not stored, with the tensor that has the same memory.
  std::map<std::string, std::string> tied;
  std::set<std::string> pickled;
  /// Tensors that are kept as bytes, with their dtypes.
  std::map<std::string, std::string> dtypes;
};

/// Null if it is missing.
const json& Member(const json& object, const char* name) {
  static const json none;
  const auto found = object.find(name);  // The end, if it is no object.
  return found == object.end() ? none : *found;
}

Status AddNotes(const std::string& text, DcpNotes& notes) {
  const json items = IsNestedTooDeeply(text) ? json() : json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json version = items.is_object() ? Member(items, "version") : json();
  if (!version.is_number_integer()) return {StatusCode::kCorrupt, "expected an object with a version"};
  if (version.get<std::int64_t>() > kDcpVersion) {
    return Error(StatusCode::kUnsupported, "version {}, this Cairn reads {}", version.get<std::int64_t>(), kDcpVersion);
  }
  for (const auto& [name, path] : Member(items, "paths").items()) {
    if (path.is_array() && path.size() > 1 && path[0] == "model") notes.below_model = true;
    if (path.is_array() && path.size() == 1) notes.at_top.insert(name);
  }
  for (const json& tie : Member(items, "tied")) {
    if (tie.is_array() && tie.size() == 3 && tie[0].is_string() && tie[2].is_string()) {
      notes.tied.emplace(tie[0].get<std::string>(), tie[2].get<std::string>());
    }
  }
  for (const json& name : Member(items, "pickled")) {
    if (name.is_string()) notes.pickled.insert(name.get<std::string>());
  }
  for (const auto& [name, dtype] : Member(items, "dtypes").items()) {
    if (dtype.is_string()) notes.dtypes.emplace(name, dtype.get<std::string>());
  }
  return Status::Ok();
}

Result<DcpNotes> ReadNotes(const TensorSource& source) {
  DcpNotes notes;
  for (std::uint32_t file = 0; file < source.files(); ++file) {
    const Values& values = source.header(file).values;
    const auto found = values.find("dcp");
    const Json* const text = found == values.end() ? nullptr : std::get_if<Json>(&found->second);
    if (text == nullptr) continue;
    notes.any = true;
    if (const Status status = AddNotes(text->text, notes); !status.ok()) {
      return Error(status.code(), "{}: its DCP items: {}", source.file_name(file), status.message());
    }
  }
  return notes;
}

/// Takes out what is no tensor of a model, and adds what is tied to another.
void Prepare(const DcpNotes& notes, std::map<std::string, Found>& all) {
  for (const auto& [name, holder] : notes.tied) {
    const auto held = all.find(holder);
    if (held != all.end()) all.emplace(name, held->second);
  }
  std::erase_if(all, [&](const auto& one) {
    return notes.any && (notes.pickled.contains(one.first) || one.first.find(kInValue) != std::string::npos);
  });
}

/// What the model's names begin with. Leaves only what is at the top in `all` if nothing says where the model is.
Result<std::string> ChooseModel(const ExportOptions& options, const DcpNotes& notes,
                                std::map<std::string, Found>& all) {
  if (!options.strip_prefix.empty()) return options.strip_prefix;
  if (notes.below_model) return std::string("model.");
  const std::string key = "model/";
  const auto below = all.lower_bound(key);
  if (!notes.any && below != all.end() && below->first.starts_with(key)) return key;
  if (!options.names.empty()) return std::string();
  std::erase_if(all, [&](const auto& one) {
    const auto tie = notes.tied.find(one.first);
    const std::string& name = tie == notes.tied.end() ? one.first : tie->second;
    return notes.any ? !notes.at_top.contains(name) : name.find('/') != std::string::npos;
  });
  if (!all.empty()) return std::string();
  return Error(StatusCode::kNotFound,
               "{}: has no tensors at the top and no key \"model\": say with --strip-prefix where the model is (`cairn "
               "show` prints the names)",
               options.path);
}

/// Of "0x1f" or "-0x1f", of any length.
std::string Decimal(std::string_view hex) {
  const bool negative = hex.starts_with('-');
  std::string reversed = "0";
  for (const char letter : hex.substr(std::min(hex.size(), hex.find('x') + 1))) {
    int carry = letter <= '9' ? letter - '0' : (letter | 0x20) - 'a' + 10;
    for (char& digit : reversed) {
      carry += (digit - '0') * 16;
      digit = static_cast<char>('0' + carry % 10);
      carry /= 10;
    }
    for (; carry > 0; carry /= 10) reversed += static_cast<char>('0' + carry % 10);
  }
  return (negative ? "-" : "") + std::string(reversed.rbegin(), reversed.rend());
}

/// Whether the text would be read as a key of another type, or as a name that safetensors reserves.
bool ReadsOtherwise(std::string_view text) {
  if (text.empty() || text == "True" || text == "False" || text == "None" || text == "__metadata__") return true;
  const std::string_view digits = text.substr(text.front() == '-' ? 1 : 0);
  return text == "0" ||
         (!digits.empty() && digits.front() != '0' && digits.find_first_not_of("0123456789") == std::string_view::npos);
}

/// A key's part of a tensor's name, as part_of in bindings/cairn/_tree/paths.py has it.
std::string PartOf(const json& key) {
  if (key.is_null()) return "None";
  if (key.is_boolean()) return key.get<bool>() ? "True" : "False";
  if (key.is_array() && key.size() == 2 && key[1].is_string()) return Decimal(key[1].get<std::string>());
  if (!key.is_string()) return key.dump();
  std::string part;
  for (const char letter : key.get<std::string>()) {
    part += letter == '~' ? "~0" : letter == '/' ? "~1" : std::string(1, letter);
  }
  return ReadsOtherwise(part) ? std::string(kTextKey) + part : part;
}

/// The tensors below a node of a tree's text that are kept as bytes, with their dtypes.
void FindKeptAsBytes(const json& node, const std::string& name, std::map<std::string, std::string>& dtypes) {
  // Where a node's children begin: see bindings/cairn/_tree.
  static const std::map<std::string_view, std::size_t> sequences{
      {"list", 1}, {"tuple", 1}, {"deque", 2}, {"namedtuple", 3}};
  static const std::map<std::string_view, std::size_t> mappings{{"dict", 1}, {"counter", 1}, {"odict", 2}};
  const auto below = [&](const json& child, const std::string& part) {
    FindKeptAsBytes(child, name.empty() ? part : name + '/' + part, dtypes);
  };
  if (node.is_object()) {
    for (const auto& [key, child] : node.items()) below(child, PartOf(key));
    return;
  }
  if (!node.is_array() || node.size() < 2 || !node[0].is_string()) return;
  const auto kind = node[0].get<std::string>();
  if (kind == "odict") below(node[1], "~m");
  if ((kind == "t" || kind == "a") && node[1].is_string()) {
    dtypes.emplace(name.empty() ? "~t" : name, node[1].get<std::string>());
  } else if (kind == "state" || kind == "dataclass") {
    FindKeptAsBytes(node.back(), name, dtypes);
  } else if (const auto sequence = sequences.find(kind); sequence != sequences.end()) {
    const std::size_t first = sequence->second;
    for (std::size_t i = first; i < node.size(); ++i) below(node[i], std::to_string(i - first));
  } else if (const auto mapping = mappings.find(kind); mapping != mappings.end()) {
    for (std::size_t i = mapping->second; i + 1 < node.size(); i += 2) below(node[i + 1], PartOf(node[i]));
  }
}

/// Unsupported if the Hugging Face Trainer has left frozen parameters out. Notes what is kept as bytes.
Status CheckTrees(const TensorSource& source, DcpNotes& notes) {
  for (std::uint32_t file = 0; file < source.files(); ++file) {
    const Values& values = source.header(file).values;
    const auto found = values.find("tree");
    const Json* const text = found == values.end() ? nullptr : std::get_if<Json>(&found->second);
    if (text == nullptr || IsNestedTooDeeply(text->text)) continue;
    const json tree = json::parse(text->text, nullptr, /*allow_exceptions=*/false);
    FindKeptAsBytes(Member(tree, "tree"), {}, notes.dtypes);
    if (!Member(Member(Member(tree, "tree"), "trainer"), "frozen").is_null()) {
      return Error(StatusCode::kUnsupported,
                   "{}: holds only what was trained, not the frozen parameters: the Trainer's `export` writes them too",
                   source.checkpoint()->info.path);
    }
  }
  return Status::Ok();
}

bool ArePlacedAlike(const Found& a, const Found& b) {
  for (const StoredTensor* one : a.copies) {
    for (const StoredTensor* other : b.copies) {
      if (one->shard == other->shard && one->begin == other->begin && one->info.bytes == other->info.bytes) return true;
    }
  }
  return false;
}

/// Of two tensors of the same dtype and shape.
Result<bool> HaveSameBytes(const Reading& reading, TensorSource& source, const WholeTensor& a, const WholeTensor& b) {
  constexpr std::uint64_t kCompared = 8U << 20;
  CAIRN_ASSIGN_OR_RETURN(WholeTensors of_a, WholeTensors::Plan(source, {a}, kCompared));
  CAIRN_ASSIGN_OR_RETURN(WholeTensors of_b, WholeTensors::Plan(source, {b}, kCompared));
  const auto memory_a = std::make_unique_for_overwrite<std::byte[]>(kCompared);
  const auto memory_b = std::make_unique_for_overwrite<std::byte[]>(kCompared);
  for (std::size_t window = 0; window < of_a.windows(); ++window) {
    CAIRN_RETURN_IF_ERROR(of_a.Read(reading.parts(), window, memory_a.get()));
    CAIRN_RETURN_IF_ERROR(of_b.Read(reading.parts(), window, memory_b.get()));
    if (std::memcmp(memory_a.get(), memory_b.get(), of_a.bytes(window)) != 0) return false;
  }
  return true;
}

/// The name without what torch.compile adds to it, in whichever module.
std::string Uncompiled(std::string_view name) {
  constexpr std::string_view kCompiled = "_orig_mod.";
  std::string plain;
  while (!name.empty()) {
    const bool begins = plain.empty() || plain.back() == '.' || plain.back() == '/';
    if (begins && name.starts_with(kCompiled)) {
      name.remove_prefix(kCompiled.size());
    } else {
      plain += name.front();
      name.remove_prefix(1);
    }
  }
  return plain;
}

/// Warns if the model was saved within another module, whose names from_pretrained does not know.
void WarnOfWrapper(const std::vector<NamedInFile>& named, std::string_view prefix, ModelTensors& model) {
  static constexpr std::string_view kWrapped = "module.";
  if (!std::ranges::all_of(named, [](const auto& one) { return one.in_file.starts_with(kWrapped); })) {
    return;
  }
  const std::string& name = named.front().name;
  model.warnings.push_back(
      fmt::format("all names begin with \"{0}\", as DistributedDataParallel's do, and from_pretrained would take no "
                  "weight: if they should not, --strip-prefix {1} leaves it out",
                  kWrapped, name.substr(0, name.find(kWrapped, prefix.size()) + kWrapped.size())));
}

bool IsHead(std::string_view name) { return name == "lm_head.weight" || name.ends_with(".lm_head.weight"); }

Status LeaveOutTied(const Reading& reading, TensorSource& source, const std::map<std::string, Found>& all,
                    ModelTensors& model) {
  std::vector<FileTensor>& tensors = model.tensors;
  const auto head = std::ranges::find_if(tensors, [](const FileTensor& one) { return IsHead(one.name); });
  if (head == tensors.end()) return Status::Ok();
  const FileTensor* unlike = nullptr;
  bool tied = false;
  for (const FileTensor& other : tensors) {
    if (&other == &*head || other.whole.dtype != head->whole.dtype || other.whole.shape != head->whole.shape) continue;
    const WholeTensor& a = head->whole;
    const WholeTensor& b = other.whole;
    bool same = a.name == b.name || ArePlacedAlike(all.at(a.name), all.at(b.name));
    if (!same) {
      CAIRN_ASSIGN_OR_RETURN(same, HaveSameBytes(reading, source, a, b));
    }
    tied = tied || same;
    if (!same) unlike = &other;
  }
  // Which of several from_pretrained ties it to is for the model's code to know.
  if (tied && unlike == nullptr) {
    tensors.erase(head);
    return Status::Ok();
  }
  if (unlike != nullptr) {
    model.warnings.push_back(fmt::format(
        "{} and {} are tied by the model's config, but differ: both are written as they are. from_pretrained may tie "
        "them: set tie_word_embeddings to false in config.json",
        head->name, unlike->name));
  }
  return Status::Ok();
}

}  // namespace

Result<ModelTensors> FindModelTensors(const Reading& reading, TensorSource& source, const ExportOptions& options,
                                      bool config_ties) {
  CAIRN_RETURN_IF_ERROR(source.SelectRange(reading.parts(), 0, source.files()));
  std::map<std::string, Found> all = ListFound(source);
  CAIRN_ASSIGN_OR_RETURN(DcpNotes notes, ReadNotes(source));
  CAIRN_RETURN_IF_ERROR(CheckTrees(source, notes));
  Prepare(notes, all);
  CAIRN_ASSIGN_OR_RETURN(const std::string prefix, ChooseModel(options, notes, all));

  NameFilter filter(prefix, options.names);
  ModelTensors model;
  std::vector<NamedInFile> named;
  std::vector<const StoredTensor*> copies;
  for (const auto& [name, found] : all) {
    std::optional<std::string> in_file = filter.Take(name);
    if (!in_file) continue;
    in_file = Uncompiled(*in_file);
    if (const auto kept = notes.dtypes.find(name); kept != notes.dtypes.end()) {
      return Error(StatusCode::kUnsupported,
                   "tensor \"{}\" has the dtype {}, which safetensors files do not have: leave it out with --names",
                   name, kept->second);
    }
    const std::uint64_t bytes = BoxOf(found.whole.shape, std::nullopt).elements() * DTypeSize(found.whole.dtype);
    model.tensors.push_back({.name = *in_file, .whole = found.whole, .bytes = bytes});
    named.push_back({name, *in_file});
    copies.insert(copies.end(), found.copies.begin(), found.copies.end());
  }
  CAIRN_RETURN_IF_ERROR(filter.CheckUsed(options.path));
  if (model.tensors.empty()) return Error(StatusCode::kNotFound, "{}: holds no tensors", options.path);
  CAIRN_RETURN_IF_ERROR(CheckNamesInFile(named));
  CAIRN_RETURN_IF_ERROR(KeepOneOfEach(reading, source, copies));
  WarnOfWrapper(named, prefix, model);
  if (config_ties) CAIRN_RETURN_IF_ERROR(LeaveOutTied(reading, source, all, model));
  std::ranges::sort(model.tensors, [](const FileTensor& a, const FileTensor& b) { return a.name < b.name; });
  return model;
}

}  // namespace cairn::tools
