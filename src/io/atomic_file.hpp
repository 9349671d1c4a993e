// Atomic replacement of files: a file is written under a temporary name beside the target, renamed on commit,
// and removed on failure. remove_temporary_files() knows the names in use, for signal handlers.
// tests: tests/io/test_atomic_file.cpp
#pragma once

#include <sys/types.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "io/file.hpp"
#include "io/signal_list.hpp"

namespace ejk::io {

/// A file or (empty) folder, removed by a signal or on leaving the scope without `keep`.
class TemporaryPath {
 public:
  enum class Kind { file, folder };
  TemporaryPath() = default;
  TemporaryPath(std::string path, Kind kind);
  TemporaryPath(TemporaryPath&& other) noexcept;
  TemporaryPath& operator=(TemporaryPath&& other) noexcept;
  ~TemporaryPath();

  bool empty() const { return slot_ == nullptr; }
  const std::string& path() const { return slot_->value.path; }
  void keep();

 private:
  struct Entry {
    std::string path;
    Kind kind = Kind::file;
    void remove() const noexcept;
  };
  friend void ejk::remove_temporary_files() noexcept;
  static SignalList<Entry> all_;
  SignalList<Entry>::Slot* slot_ = nullptr;
};

/// The file at `target` while it is written. Symbolic links are followed, an existing file's mode is kept,
/// pipes and devices are written directly. Errors are Error{output} and begin with the target's name.
///
/// With Sync::now, close() stores the data and commit the name; if that alone fails, the file is in place.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& target, Sync sync = Sync::later);
  /// A new file of an incomplete folder: see commit_folder.
  AtomicFile(const std::string& target, const TemporaryPath& folder, Sync sync = Sync::later);

  int fd() const { return file_.fd(); }
  const std::string& path() const { return temporary_.empty() ? target_ : temporary_.path(); }
  bool is_temporary() const { return !temporary_.empty(); }
  /// Something was under the final name before.
  bool replaces() const { return replaces_; }
  /// The final name, links followed.
  const std::string& target() const { return target_; }
  /// The target for messages.
  const std::string& name() const { return name_; }

  /// Allocates space for at least `bytes` bytes, or throws if there is none. Writing is then faster.
  void reserve(std::int64_t bytes);
  /// Throws if the file system has less space.
  void check_room(std::int64_t bytes) const;
  void write(const void* data, std::int64_t bytes) { write_all(file_.fd(), data, bytes, name_); }
  /// Reports write errors that the system deferred.
  void close();
  /// Closes and renames.
  void commit();
  /// The same unless the name exists by then: false.
  bool commit_new();

 private:
  friend void commit_all(std::span<AtomicFile> files);
  friend void commit_folder(TemporaryPath& folder, const std::string& target, std::vector<AtomicFile>& files);
  // False where there is something under that name.
  bool make(const std::string& path, mode_t mode);
  bool put_in_free_place();
  static void put_in_place(std::span<AtomicFile> files);

  std::string name_;
  std::string target_;
  Sync sync_ = Sync::later;
  bool replaces_ = false;
  TemporaryPath temporary_;
  File file_;
};

/// Commits all files or none: on failure renames are undone. (A file system that cannot exchange names does
/// not restore replaced files.)
void commit_all(std::span<AtomicFile> files);

/// Serialises processes of ejk that read, extend and replace a file, until the end of the scope or process.
///
/// It locks one byte far past the end of the file itself (programs that read HDF5 files lock the whole
/// file), and is retried if the name was replaced concurrently. New files have no lock
/// (AtomicFile::commit_new), nor have file systems without locks.
class ReplaceLock {
 public:
  explicit ReplaceLock(const std::string& path);
  bool found_file() const { return found_; }

 private:
  File file_;
  bool found_ = false;
};

/// Creates a temporary folder beside `target`, which does not exist but whose parent does.
TemporaryPath make_folder(const std::string& target);

/// Renames the folder with its files to `target`; if a folder exists by then, the files go into it as by
/// commit_all.
void commit_folder(TemporaryPath& folder, const std::string& target, std::vector<AtomicFile>& files);

/// The target of all symbolic links, existing or not. Throws Error{output} for an unreadable link.
std::string follow_links(const std::string& path);

/// Stores the file on disk; no effect on pipes. Throws Error{output}.
void sync_now(int fd, std::string_view name);

/// Folders whose entries will change, opened first, so that errors appear before any change.
class FolderSync {
 public:
  void add_parent_of(const std::string& path);
  void run() const;

 private:
  std::map<std::string, File> folders_;
};

/// Throws Error{output} if no file could be created or replaced at `path`. Modifies nothing.
void check_can_write(const std::string& path);

}  // namespace ejk::io
