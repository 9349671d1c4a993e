// A model's folder, written under a temporary name and renamed.
// tests: tests/io/test_write_model.cpp
#include <sys/stat.h>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "io/atomic_file.hpp"
#include "io/directory.hpp"
#include "io/safetensors.hpp"

namespace ejk {

void check_model_target(const std::string& folder) {
  const std::string path = io::folder_path(folder);
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0)
    throw Error(Error::Kind::output,
                printable(path) + ": is there already, and a model is written to a new folder");
  io::check_can_write(path);
}

void write_model(const std::string& folder, const std::vector<ModelFile>& files,
                 const std::vector<FileContent>& others, Sync sync) {
  check_model_target(folder);
  const std::string path = io::folder_path(folder);
  io::TemporaryPath made = io::make_folder(path);
  std::vector<io::AtomicFile> written;
  for (const ModelFile& file : files) {
    io::WriteJob job{path + "/" + file.name, file.arrays, "", {}};
    job.options.sync = sync;
    io::AtomicFile& to = written.emplace_back(job.path, made, sync);
    io::write_safetensors(job, to);
    to.close();
  }
  for (const FileContent& other : others) {
    io::AtomicFile& to = written.emplace_back(path + "/" + other.path, made, sync);
    to.write(other.bytes.data(), std::ssize(other.bytes));
    to.close();
  }
  io::commit_folder(made, path, written);
}

}  // namespace ejk
