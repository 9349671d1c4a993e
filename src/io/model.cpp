// Models sharded over several safetensors files. The names of all tensors are sorted once; each refers to its
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
#include "ejk/text.hpp"
#include "io/file.hpp"
#include "io/safetensors.hpp"

namespace ejk::io {

namespace {

constexpr std::string_view kFileSuffix = ".safetensors";

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
  Model(const std::string& path, const OpenOptions& options) : path_(path), untyped_(options.untyped) {
    if (path.ends_with(kIndexSuffix))
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
    return file->open(tensor_of(*file, *place), printable(path_ + ":" + place->name));
  }

  std::optional<std::vector<StoredArray>> stored_arrays() const override {
    std::vector<std::vector<std::size_t>> of_file(files_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) of_file[tensors_[i].file].push_back(i);
    std::vector<StoredArray> arrays(tensors_.size());
    for (std::size_t n = 0; n < files_.size(); ++n) {
      const SafetensorsFile file(files_[n].path, untyped_);  // closed again: there may be very many
      for (const std::size_t i : of_file[n]) arrays[i] = stored_array(tensor_of(file, tensors_[i]));
    }
    return arrays;
  }

 private:
  struct Place {
    std::string name;
    std::size_t file;
  };
  struct ModelFile {
    std::string path;
    std::shared_ptr<const SafetensorsFile> open;  // null until then
  };

  void read_folder(const std::string& folder) {
    if (const std::string index = index_in_folder(folder); !index.empty()) return read_index(index);
    for (const std::string& name : files_that_end_in(kFileSuffix, folder)) {
      const std::size_t file = file_named(folder + name);
      for (const Tensor& tensor : open_file(file)->tensors()) tensors_.push_back({tensor.name, file});
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

  const Tensor& tensor_of(const SafetensorsFile& file, const Place& place) const {
    if (const Tensor* tensor = file.find(place.name)) return *tensor;
    throw core::invalid("{}: holds no array '{}', which {} says it holds", printable(file.path()),
                        printable(place.name), printable(index_));
  }

  std::shared_ptr<const SafetensorsFile> open_file(std::size_t number) const {
    const std::lock_guard lock(mutex_);
    ModelFile& file = files_[number];
    if (!file.open) file.open = std::make_shared<const SafetensorsFile>(file.path, untyped_);
    return file.open;
  }

  std::string path_, index_;
  UntypedBytes untyped_;
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
    has_tensors = has_tensors || name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix);
  }
  return has_tensors;
}

std::shared_ptr<const OpenContainer> open_model(const std::string& path, const OpenOptions& options) {
  return std::make_shared<Model>(path, options);
}

}  // namespace ejk::io

std::string ejk::index_in_folder(const std::string& folder) {
  const std::string below = folder.ends_with('/') ? folder : folder + '/';
  const std::vector<std::string> indices = io::files_that_end_in(io::kIndexSuffix, below);
  if (indices.size() > 1)
    throw core::invalid("{}: has {} indices of a model: {}", printable(below), indices.size(),
                        io::listed(indices))
        .hint(fmt::format("name one of them: {}", printable(below + indices[0])));
  return indices.empty() ? "" : below + indices[0];
}
