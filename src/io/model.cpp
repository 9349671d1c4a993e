// Models sharded over several files. The names of all tensors are sorted once; each refers to its
// file. Cost of a listing: the header of each file is read.
// tests: tests/io/test_model.cpp
#include "io/model.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <unordered_map>

#include "core/json_reader.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "io/file.hpp"
#include "io/other_content.hpp"
#include "io/safetensors.hpp"
#include "io/torch_file.hpp"

namespace ejk::io {

namespace {

constexpr std::string_view kFileSuffix = ".safetensors", kTorchFileSuffix = ".bin",
                           kTorchFileName = "pytorch_model";

// Other files of torch.save beside those of a model are of its optimiser, or of no tensors.
bool is_torch_shard(std::string_view name) {
  return name.ends_with(kTorchFileSuffix) && name.find(kTorchFileName) != std::string_view::npos;
}

// The files of a folder whose names end so, sorted.
std::vector<std::string> files_that_end_in(std::string_view suffix, const std::string& folder) {
  std::vector<std::string> names = names_in_folder(folder);
  std::erase_if(names, [&](const std::string& name) {
    return !name.ends_with(suffix) || name.size() == suffix.size();
  });
  return names;
}

class Model final : public OpenContainer {
 public:
  Model(const std::string& path, const OpenOptions& options) : path_(path), options_(options) {
    if (path.ends_with(kIndexSuffix) || path.ends_with(kTorchIndexSuffix))
      read_index(path);
    else
      read_folder(path);
    sort_names();
  }

  std::vector<std::string> names(const std::string&) const override {
    std::vector<std::string> names;
    for (const Place& tensor : tensors_) names.push_back(tensor.name);
    return names;
  }

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const Place* place = find(wanted);
    if (place == nullptr && wanted.empty() && tensors_.size() == 1) place = tensors_.data();
    if (place == nullptr) throw no_such_array(path_, wanted, names(""));
    const auto file = open_file(place->file);
    (void)stored_in(*file, *place);
    return file->open(place->name, printable(path_ + ":" + place->name));
  }

  std::optional<std::vector<StoredArray>> stored_arrays() const override {
    std::vector<std::vector<std::size_t>> by_file(files_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) by_file[tensors_[i].file].push_back(i);
    std::vector<StoredArray> arrays(tensors_.size());
    for (std::size_t n = 0; n < files_.size(); ++n) {
      const auto file = open_shard(files_[n].path);  // closed again: there may be very many
      for (const std::size_t i : by_file[n]) arrays[i] = stored_in(*file, tensors_[i]);
    }
    return arrays;
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> lines;
    for (const ModelFile& file : files_)
      if (!file.path.ends_with(kFileSuffix))
        for (std::string& line : open_shard(file.path)->remarks()) lines.push_back(std::move(line));
    return lines;
  }

 private:
  struct Place {
    std::string name;
    std::size_t file;
  };
  struct ModelFile {
    std::string path;
    std::shared_ptr<const ShardContainer> open;  // null until then
  };

  void read_folder(const std::string& folder) {
    if (const std::string index = index_in_folder(folder); !index.empty()) return read_index(index);
    for (const std::string& path : model_files_in_folder(folder)) {
      const std::size_t file = file_named(path);
      for (std::string& name : open_file(file)->names("")) tensors_.push_back({std::move(name), file});
    }
  }

  // {"metadata": {...}, "weight_map": {NAME: FILE}}
  void read_index(const std::string& index) {
    constexpr std::int64_t kMostIndex = 100'000'000;  // as a file's header
    const std::optional<std::string> text = read_file(index, kMostIndex);
    if (!text) throw core::invalid("{}: has more than the {} bytes allowed", printable(index), kMostIndex);
    index_ = index;
    const std::string folder = index.substr(0, index.rfind('/') + 1);
    try {
      bool has_map = false;
      core::JsonReader reader(*text);
      reader.object([&](const std::string& member) {
        if (member != "weight_map") return reader.skip();
        if (std::exchange(has_map, true)) throw core::invalid("'weight_map' is there twice");
        reader.object([&](const std::string& name) {
          const std::string file = reader.string();
          if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
              file.find('\0') != std::string::npos)
            throw core::invalid("the file '{}' of '{}' is not one of the index's folder", printable(file),
                                printable(name));
          tensors_.push_back({name, file_named(folder + file)});
        });
      });
      reader.end();
      if (!has_map) throw core::invalid("lacks 'weight_map', which names the file of each tensor");
    } catch (Error& error) {
      const bool is_json = text->find_first_of("{[") == text->find_first_not_of(" \t\r\n");
      if (auto other = is_json ? std::nullopt : other_content(*text, "an index of a model"))
        throw std::move(other->at(printable(index)));
      error.at(printable(index));
      throw;
    }
  }

  std::size_t file_named(const std::string& path) {
    const auto [found, is_new] = file_numbers_.emplace(path, files_.size());
    if (is_new) files_.push_back({path, nullptr});
    return found->second;
  }

  void sort_names() {
    by_name_.resize(tensors_.size());
    for (std::size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = static_cast<std::uint32_t>(i);
    std::sort(by_name_.begin(), by_name_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
    for (std::size_t i = 1; i < by_name_.size(); ++i) {
      const Place &a = tensors_[by_name_[i - 1]], &b = tensors_[by_name_[i]];
      if (a.name != b.name) continue;
      throw core::invalid("{}: two tensors are named '{}', in {} and {}",
                          printable(index_.empty() ? path_ : index_), printable(a.name),
                          printable(files_[std::min(a.file, b.file)].path),
                          printable(files_[std::max(a.file, b.file)].path));
    }
  }

  const Place* find(std::string_view name) const {
    const auto found =
        std::lower_bound(by_name_.begin(), by_name_.end(), name,
                         [&](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
    return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
  }

  StoredArray stored_in(const ShardContainer& file, const Place& place) const {
    if (auto stored = file.stored_array(place.name)) return std::move(*stored);
    throw core::invalid("{}: holds no array '{}', which {} says it holds", printable(files_[place.file].path),
                        printable(place.name), printable(index_));
  }

  std::shared_ptr<const ShardContainer> open_shard(const std::string& path) const {
    return path.ends_with(kTorchFileSuffix) ? open_torch_shard(path, options_)
                                            : open_safetensors_shard(path, options_);
  }

  std::shared_ptr<const ShardContainer> open_file(std::size_t number) const {
    const std::lock_guard lock(mutex_);
    ModelFile& file = files_[number];
    if (!file.open) file.open = open_shard(file.path);
    return file.open;
  }

  std::string path_, index_;
  OpenOptions options_;
  std::vector<Place> tensors_;
  std::vector<std::uint32_t> by_name_;
  std::unordered_map<std::string, std::size_t> file_numbers_;
  mutable std::mutex mutex_;
  mutable std::vector<ModelFile> files_;
};

}  // namespace

bool is_model_folder(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw system_error(Error::Kind::input, printable(path), errno);
  }
  bool has_tensors = false;
  for (const std::string& name : names_in_folder(path)) {
    if (name.ends_with(".npy")) return false;
    has_tensors = has_tensors || name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix) ||
                  name.ends_with(kTorchIndexSuffix) || is_torch_shard(name);
  }
  return has_tensors;
}

std::shared_ptr<const OpenContainer> open_model(const std::string& path, const OpenOptions& options) {
  return std::make_shared<Model>(path, options);
}

}  // namespace ejk::io

std::vector<std::string> ejk::model_files_in_folder(const std::string& folder) {
  const std::string below = folder.ends_with('/') ? folder : folder + '/';
  std::vector<std::string> files = io::files_that_end_in(io::kFileSuffix, below);
  if (files.empty()) {
    files = io::files_that_end_in(io::kTorchFileSuffix, below);
    std::erase_if(files, [](const std::string& name) { return !io::is_torch_shard(name); });
  }
  for (std::string& name : files) name.insert(0, below);
  return files;
}

std::string ejk::index_in_folder(const std::string& folder) {
  const std::string below = folder.ends_with('/') ? folder : folder + '/';
  std::vector<std::string> indices = io::files_that_end_in(io::kIndexSuffix, below);
  if (indices.empty() && io::files_that_end_in(io::kFileSuffix, below).empty())
    indices = io::files_that_end_in(io::kTorchIndexSuffix, below);
  if (indices.size() > 1)
    throw core::invalid("{}: has {} indices of a model: {}", printable(below), indices.size(),
                        io::listed(indices))
        .hint(fmt::format("name one of them: {}", printable(below + indices[0])));
  if (indices.empty()) return "";
  std::string path = below + indices[0];
  (void)io::open_regular_file(path, printable(path), "an index in a folder");
  return path;
}
