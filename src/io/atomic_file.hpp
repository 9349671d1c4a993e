// Atomic replacement of files: a file is written under a temporary name beside the target, renamed on commit,
// and removed on failure. remove_temporary_files() knows the names in use, for signal handlers.
// tests: tests/io/test_atomic_file.cpp
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "ejk/io.hpp"
#include "io/file.hpp"

namespace ejk::io {

/// A path that a signal, or leaving the scope without `keep`, removes: a file, or a folder (if empty by
/// then).
class TemporaryPath {
 public:
  enum class Kind { file, folder };
  TemporaryPath() = default;
  TemporaryPath(std::string path, Kind kind);
  TemporaryPath(TemporaryPath&& other) noexcept;
  TemporaryPath& operator=(TemporaryPath&& other) noexcept;
  ~TemporaryPath();

  bool empty() const { return slot_ == nullptr; }
  const std::string& path() const;
  /// It is no longer temporary.
  void keep();

 private:
  struct Slot;
  friend class Registry;
  Slot* slot_ = nullptr;
};

/// The file at `target` while it is written. A symbolic link is followed; the mode of an existing file is
/// kept. What is no regular file (a pipe, a device) is written straight to. All errors are Error{output} and
/// begin with the target's name.
///
/// With Sync::now the file is on the disk when close() returns, and its name when it is committed. Where the
/// name alone cannot be stored, that is an Error too, and the new file is in its place.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& target, Sync sync = Sync::later);
  /// A new file of a folder that is not complete yet, under its name in there: see commit_folder.
  AtomicFile(const std::string& target, const TemporaryPath& folder, Sync sync = Sync::later);
  AtomicFile(AtomicFile&&) noexcept = default;
  AtomicFile& operator=(AtomicFile&&) noexcept = default;

  int fd() const { return file_.fd(); }
  /// Where its bytes are for now.
  const std::string& path() const { return temporary_.empty() ? target_ : temporary_.path(); }
  bool is_temporary() const { return !temporary_.empty(); }
  /// Something was under the final name before.
  bool replaces() const { return replaces_; }
  /// The final name, links followed.
  const std::string& target() const { return target_; }
  /// The target for messages.
  const std::string& name() const { return name_; }

  /// Says that at least `bytes` bytes will be written, so that the file system finds room for them at once,
  /// or says now that it has none. It is then also faster.
  void reserve(std::int64_t bytes);
  /// Says so now where the file system has no room for `bytes` bytes.
  void check_room(std::int64_t bytes) const;
  void write(const void* data, std::int64_t bytes) { write_all(file_.fd(), data, bytes, name_); }
  /// No more will be written. Errors that the system kept until now come out here.
  void close();
  /// Closes, and puts it under its final name in one step.
  void commit();
  /// The same unless something has appeared under that name, which then stays: false.
  bool commit_new();

 private:
  friend void commit_all(std::vector<AtomicFile>& files);
  friend void commit_folder(TemporaryPath& folder, const std::string& target, std::vector<AtomicFile>& files);
  // False where there is something under that name.
  bool make(const std::string& path, mode_t mode);
  // The renames of the commits. (The last returns 0 or an errno.)
  void put_in_place();
  bool put_in_free_place();
  static void put_all_in_place(std::vector<AtomicFile>& files);
  static int put_folder_in_place(TemporaryPath& folder, const std::string& at,
                                 std::vector<AtomicFile>& files);

  std::string name_;
  std::string target_;
  Sync sync_ = Sync::later;
  bool replaces_ = false;
  TemporaryPath temporary_;
  File file_;
};

/// Commits all files or, when one cannot be, none: those that were renamed are undone. (Where the file system
/// cannot exchange two names, a replaced file does not come back.)
void commit_all(std::vector<AtomicFile>& files);

/// Held while a file is read, added to and replaced, by every run of ejk that does so: the next one waits
/// until the file that this one makes has its name. It lasts until the end of its scope, or of the process.
///
/// The lock is on the file itself, so that nothing is left behind: who gets it looks whether the name still
/// leads to that file, and otherwise waits for the next one. It is a lock on one byte far behind the end, not
/// on the whole file: programs that read HDF5 files lock those, for hours. A file that does not exist yet has
/// no lock; see AtomicFile::commit_new. Where the file system has no locks, nobody waits.
class ReplaceLock {
 public:
  explicit ReplaceLock(const std::string& path);
  /// There is a regular file.
  bool found_file() const { return found_; }

 private:
  File file_;
  bool found_ = false;
};

/// Makes the folder that is to be at `target`, which does not exist, under a temporary name beside it. Its
/// parents are not made.
TemporaryPath make_folder(const std::string& target);

/// Puts the folder, with the files that were made in it, under its final name in one step. Where a folder has
/// come there meanwhile, the files go into that one, as commit_all puts them.
void commit_folder(TemporaryPath& folder, const std::string& target, std::vector<AtomicFile>& files);

/// The file, or folder, that `path` names at the end of all symbolic links, whether or not it exists. Throws
/// Error{output} for a link that cannot be read.
std::string follow_links(const std::string& path);

/// Waits until what the descriptor is open on is on the disk; what knows no disk (a pipe) needs no waiting.
/// Throws Error{output}.
void sync_now(int fd, std::string_view name);

/// Folders whose entries are about to change. They are opened first, so that what cannot be opened is told
/// while nothing has changed.
class FolderSync {
 public:
  /// The folder that holds `path`.
  void add_parent_of(const std::string& path);
  /// Waits until their entries are on the disk.
  void run() const;

 private:
  struct Open {
    std::string path;
    File file;
  };
  std::vector<Open> folders_;
};

/// Whether a file could be made or replaced at `path`; Error{output} if not. Nothing is touched.
void check_can_write(const std::string& path);

}  // namespace ejk::io
