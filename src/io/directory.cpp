// Folders of .npy files. A new folder is written under a temporary name and renamed; in an existing one all
// files are.
// tests: tests/io/test_write.cpp
#include "io/directory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "ejk/program/text.hpp"
#include "io/atomic_file.hpp"
#include "io/npy.hpp"

namespace ejk::io {

namespace fs = std::filesystem;

namespace {

// False where there is nothing; anything else that is there is in the way.
bool folder_exists(const WriteJob& job) {
  struct stat status {};
  if (stat(folder_path(job.path).c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return true;
    errno = ENOTDIR;
  }
  if (errno == ENOENT) return false;
  throw system_error(Error::Kind::output, printable(job.path), errno);
}

// A name must be one file in this very folder.
std::string file_of(const WriteJob& job, const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
    throw Error(Error::Kind::output, fmt::format("{}: the array name '{}' cannot be a file's name",
                                                 printable(job.path), printable(name)))
        .hint("an .npz or HDF5 file can hold it");
  return job.path + (job.path.ends_with('/') ? "" : "/") + name + ".npy";
}

class OpenFolder final : public OpenContainer {
 public:
  OpenFolder(std::string path, const OpenOptions& options) : path_(std::move(path)), options_(options) {}

  std::shared_ptr<const ArraySource> array(const std::string& name) const override {
    if (!name.empty()) return open_npy_in_folder(path_ + name + ".npy", options_);
    Error error(Error::Kind::input, printable(path_) + ": is a folder, not an array");
    if (const auto all = names(""); !all.empty())
      error.hint("name a file in it, such as " + printable(path_ + all[0]) + ".npy");
    throw error;
  }

  // Sorted, without their suffix.
  std::vector<std::string> names(const std::string&) const override {
    constexpr std::string_view kSuffixOfNpy = ".npy";
    std::vector<std::string> all;
    for (const std::string& name : names_in_folder(path_))
      if (name.ends_with(kSuffixOfNpy) && name.size() > kSuffixOfNpy.size())
        all.push_back(name.substr(0, name.size() - kSuffixOfNpy.size()));
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::string path_;
  OpenOptions options_;
};

}  // namespace

std::string folder_path(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::shared_ptr<const OpenContainer> open_directory(const std::string& path, const OpenOptions& options) {
  return std::make_shared<OpenFolder>(path, options);
}

void write_directory(const WriteJob& job) {
  for (const NamedArray& array : job.arrays) file_of(job, array.name);
  const std::string folder = folder_path(job.path);
  const bool is_new = !folder_exists(job);
  TemporaryPath made = is_new ? make_folder(folder) : TemporaryPath();
  std::vector<AtomicFile> files;
  for (std::size_t n = 0; n < job.arrays.size(); ++n) {
    const std::string path = file_of(job, job.arrays[n].name);
    const Sync sync = job.options.sync;
    AtomicFile& file = is_new ? files.emplace_back(path, made, sync) : files.emplace_back(path, sync);
    write_npy(*job.arrays[n].source, file, job.fill_of(n));
    file.close();
  }
  if (is_new)
    commit_folder(made, folder, files);
  else
    commit_all(files);
  FolderSync removals;
  for (const std::string& name : job.options.absent) {
    std::error_code failed;
    const bool removed = fs::remove(file_of(job, name), failed);
    if (failed) throw system_error(Error::Kind::output, printable(file_of(job, name)), failed.value());
    if (removed && job.options.sync == Sync::now) removals.add_parent_of(file_of(job, name));
  }
  removals.run();
}

void check_directory(const WriteJob& job) {
  const std::string folder = folder_path(job.path);
  const bool exists = folder_exists(job);
  if (!exists) check_can_write(folder);
  for (const NamedArray& array : job.arrays) {
    const std::string file = file_of(job, array.name);
    if (exists) check_can_write(file);
  }
}

}  // namespace ejk::io
