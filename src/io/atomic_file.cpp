// Replacement of files by rename(2), which is atomic within a folder. Several files are renamed in turn; if
// names can be exchanged, they are restored when a later one fails. Cost: a few system calls a file; with
// Sync::now also the disk, twice.
// tests: tests/io/test_atomic_file.cpp
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"

namespace ejk::io {

namespace fs = std::filesystem;

constinit SignalList<TemporaryPath::Entry> TemporaryPath::all_;

void TemporaryPath::Entry::remove() const noexcept {
  if (kind == Kind::file)
    unlink(path.c_str());
  else
    rmdir(path.c_str());
}

TemporaryPath::TemporaryPath(std::string path, Kind kind) : slot_(all_.add({std::move(path), kind})) {}

TemporaryPath::TemporaryPath(TemporaryPath&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}

TemporaryPath& TemporaryPath::operator=(TemporaryPath&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

TemporaryPath::~TemporaryPath() {
  if (slot_ != nullptr) slot_->value.remove();
  keep();
}

void TemporaryPath::keep() {
  if (slot_ != nullptr) all_.remove(std::exchange(slot_, nullptr));
}

namespace {

std::atomic<int> holds_under_way = 0;

// Defers terminating signals between two steps that belong together (create and register, rename and
// unregister): blocked in this thread; a handler on another thread waits in remove_temporary_files.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
    ++holds_under_way;
  }
  ~SignalsHeld() {
    --holds_under_way;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_{};
};

// Temporary names that are tried.
constexpr int kAttempts = 100;

Error output_error(const std::string& name, int code) {
  return system_error(Error::Kind::output, name, code);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

std::string temporary_name(const std::string& target) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  static std::atomic<unsigned long> names = 0;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  auto number =
      static_cast<unsigned long>(now.tv_nsec) * 1009 + static_cast<unsigned long>(getpid()) + 7919 * names++;
  std::string name = fs::path(target).filename();
  name.resize(std::min<std::size_t>(name.size(), NAME_MAX - 16));
  name = "." + name + ".ejk-";
  for (int i = 0; i < 6; ++i, number /= kLetters.size()) name += kLetters[number % kLetters.size()];
  return folder_of(target) + "/" + name;
}

// What already exists, links followed.
std::optional<struct stat> existing_at(const std::string& path, const std::string& name) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw output_error(name, errno);
  }
  if (S_ISDIR(status.st_mode)) throw output_error(name, EISDIR);
  // A file that may not be written is not replaced either, though its folder would allow it.
  if (access(path.c_str(), W_OK) != 0) throw output_error(name, errno);
  return status;
}

// Waits for the lock on one byte of the file, where the file system has locks.
void lock_for_replacing(int fd) {
  constexpr off_t kByte = off_t{1} << 62;
  const auto a_lock = [] {
    struct flock lock {};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = kByte, lock.l_len = 1;
    return lock;
  };
  struct flock wanted = a_lock(), other = a_lock();
  if (fcntl(fd, F_OFD_SETLK, &wanted) == 0 || (errno != EAGAIN && errno != EACCES)) return;
  // On network file systems another program's lock of the whole file is in the way; that is not waited for.
  if (fcntl(fd, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK &&
      (other.l_start != kByte || other.l_len != 1))
    return;
  wanted = a_lock();
  while (fcntl(fd, F_OFD_SETLKW, &wanted) != 0 && errno == EINTR) {
  }
}

}  // namespace

std::string follow_links(const std::string& path) {
  std::error_code failed;
  if (const fs::path real = fs::canonical(path, failed); !failed) return real;
  fs::path at = path;  // it does not exist: only the last part can still be a link
  for (int links = 0; links < 40; ++links) {
    const fs::path to = fs::read_symlink(at, failed);
    if (failed == std::errc::invalid_argument || failed == std::errc::no_such_file_or_directory) break;
    // A link that cannot be read is not to be replaced by a file.
    if (failed) throw output_error(printable(path), failed.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  return at;
}

void check_can_write(const std::string& path) {
  const std::string name = printable(path);
  if (const auto existing = existing_at(path, name); existing && !S_ISREG(existing->st_mode)) return;
  const std::string folder = folder_of(follow_links(path));
  struct stat status {};
  const bool found = stat(folder.c_str(), &status) == 0;
  if (!found && errno != ENOENT && errno != ENOTDIR) throw output_error(name, errno);
  if (!found || !S_ISDIR(status.st_mode))
    throw Error(Error::Kind::output, name + ": the folder " + printable(folder) + " does not exist");
  if (access(folder.c_str(), W_OK | X_OK) != 0) throw output_error(name, errno);
}

void sync_now(int fd, std::string_view name) {
  while (fsync(fd) != 0) {
    if (errno == EINTR) continue;
    // Pipes and terminals, and folders of file systems that store their entries at once.
    if (errno == EINVAL || errno == ENOTSUP || errno == EROFS) return;
    throw system_error(Error::Kind::output, fmt::format("{}: it cannot be stored on the disk", name), errno);
  }
}

void FolderSync::add_parent_of(const std::string& path) {
  const std::string folder = folder_of(path);
  if (folders_.contains(folder)) return;
  File file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open())
    throw output_error(
        fmt::format("{}: its folder cannot be opened, to store it on the disk", printable(path)), errno);
  folders_.emplace(folder, std::move(file));
}

void FolderSync::run() const {
  for (const auto& [path, file] : folders_) sync_now(file.fd(), printable(path));
}

AtomicFile::AtomicFile(const std::string& target, Sync sync)
    : name_(printable(target)), target_(target), sync_(sync) {
  const auto existing = existing_at(target, name_);
  if (existing && !S_ISREG(existing->st_mode)) {
    file_ = File(open(target.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!file_.is_open()) throw output_error(name_, errno);
    return;
  }
  check_can_write(target);
  target_ = follow_links(target);
  replaces_ = existing.has_value();
  // Never open to more readers than the file it replaces; the umask applies to a new one only.
  const mode_t mode = existing ? existing->st_mode & 0777u : 0666u;
  for (int attempt = 0; !make(temporary_name(target_), mode); ++attempt)
    if (attempt == kAttempts) throw output_error(name_, EEXIST);
  if (!existing) return;
  // Only root can give a file away; for others it is theirs already, or becomes so.
  if (fchown(file_.fd(), existing->st_uid, existing->st_gid) != 0) errno = 0;
  if (fchmod(file_.fd(), existing->st_mode & 07777u) != 0) throw output_error(name_, errno);
}

AtomicFile::AtomicFile(const std::string& target, const TemporaryPath& folder, Sync sync)
    : name_(printable(target)), target_(target), sync_(sync) {
  const std::string file = fs::path(target).filename();
  if (!make(folder.path() + "/" + file, 0666)) throw output_error(name_, EEXIST);
}

bool AtomicFile::make(const std::string& path, mode_t mode) {
  const SignalsHeld together;
  TemporaryPath made(path, TemporaryPath::Kind::file);  // first, since it may find no memory
  file_ = File(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode | S_IWUSR | S_IRUSR));
  if (file_.is_open()) {
    temporary_ = std::move(made);
    return true;
  }
  const int code = errno;
  made.keep();  // what is there is another's
  if (code != EEXIST) throw output_error(name_, code);
  return false;
}

void AtomicFile::reserve(std::int64_t bytes) {
  // A small file that is removed soon is perhaps never written to the disk.
  constexpr std::int64_t kWorthwhile = std::int64_t{1} << 20;
  if (temporary_.empty() || bytes < kWorthwhile) return;
  if (fallocate(file_.fd(), 0, 0, bytes) == 0) return;
  // Whatever else is wrong with it, writing may still do.
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw output_error(name_, errno);
}

void AtomicFile::check_room(std::int64_t bytes) const {
  struct statvfs system {};
  if (temporary_.empty() || fstatvfs(file_.fd(), &system) != 0) return;
  if (system.f_blocks == 0) return;  // it does not say how large it is
  // Compared in blocks: bytes of all of them may be more than a number holds.
  const auto needed = static_cast<std::uint64_t>(bytes) / std::max<std::uint64_t>(1, system.f_frsize);
  if (needed > system.f_bavail) throw output_error(name_, ENOSPC);
}

void AtomicFile::close() {
  if (sync_ == Sync::now && file_.is_open()) sync_now(file_.fd(), name_);
  if (const int code = file_.close(); code != 0) throw output_error(name_, code);
}

void AtomicFile::commit() { commit_all({this, 1}); }

bool AtomicFile::commit_new() {
  close();
  FolderSync folder;
  if (sync_ == Sync::now) folder.add_parent_of(target_);
  const bool is_done = put_in_free_place();
  if (is_done) folder.run();
  return is_done;
}

bool AtomicFile::put_in_free_place() {
  const SignalsHeld whole;
  const char* from = temporary_.path().c_str();
  const char* to = target_.c_str();
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
    temporary_.keep();
    return true;
  }
  // A file system without it gives a second name, which is then the only one; one without those renames.
  if (errno != EEXIST && link(from, to) == 0) return true;  // (`temporary_` removes the first name)
  if (errno == EEXIST) return false;
  if (rename(from, to) != 0) throw output_error(name_, errno);
  temporary_.keep();
  return true;
}

void commit_all(std::span<AtomicFile> files) {
  for (AtomicFile& file : files) file.close();
  FolderSync folders;
  for (const AtomicFile& file : files)
    if (file.sync_ == Sync::now && file.is_temporary()) folders.add_parent_of(file.target());
  AtomicFile::put_in_place(files);
  folders.run();
}

void AtomicFile::put_in_place(std::span<AtomicFile> files) {
  const SignalsHeld whole;
  std::size_t done = 0;
  std::vector<bool> exchanged(files.size());
  for (; done < files.size(); ++done) {
    const AtomicFile& file = files[done];
    if (!file.is_temporary()) continue;
    const char* from = file.path().c_str();
    const char* to = file.target().c_str();
    // Exchanged, the old file waits under the temporary name until all are in place.
    exchanged[done] =
        files.size() > 1 && file.replaces() && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
    if (!exchanged[done] && rename(from, to) != 0) break;
  }
  if (done == files.size()) {
    for (std::size_t i = 0; i < files.size(); ++i)
      if (!exchanged[i]) files[i].temporary_.keep();  // the others' temporary names hold what was replaced
    return;
  }
  const Error error = output_error(files[done].name(), errno);
  while (done-- > 0) {
    if (exchanged[done])
      rename(files[done].path().c_str(), files[done].target().c_str());
    else if (files[done].is_temporary() && !files[done].replaces())
      unlink(files[done].target().c_str());
  }
  throw error;
}

ReplaceLock::ReplaceLock(const std::string& path) {
  while (true) {
    struct stat locked {
    }, there{};
    found_ = stat(path.c_str(), &there) == 0 && S_ISREG(there.st_mode);
    if (!found_) return;
    file_ = File(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (!file_.is_open() && errno == ENOENT) continue;
    if (!file_.is_open()) return;  // replacing it will say why, if that is not possible either
    lock_for_replacing(file_.fd());
    if (fstat(file_.fd(), &locked) != 0) throw output_error(printable(path), errno);
    if (stat(path.c_str(), &there) == 0 && locked.st_dev == there.st_dev && locked.st_ino == there.st_ino)
      return;
  }
}

TemporaryPath make_folder(const std::string& target) {
  const std::string at = follow_links(target);
  for (int attempt = 0;; ++attempt) {
    const std::string path = temporary_name(at);
    const SignalsHeld together;
    TemporaryPath made(path, TemporaryPath::Kind::folder);  // first, since it may find no memory
    if (mkdir(path.c_str(), 0777) == 0) return made;
    const int code = errno;
    made.keep();  // what is there is another's
    if (code != EEXIST || attempt == kAttempts) throw output_error(printable(target), code);
  }
}

void commit_folder(TemporaryPath& folder, const std::string& target, std::vector<AtomicFile>& files) {
  for (AtomicFile& file : files) file.close();
  const std::string at = follow_links(target);
  FolderSync around;
  if (!files.empty() && files.front().sync_ == Sync::now) {
    FolderSync inside;
    inside.add_parent_of(files.front().path());
    inside.run();
    around.add_parent_of(at);
  }
  const int failed = [&] {
    const SignalsHeld whole;
    // Only an empty folder can be replaced by one.
    if (rename(folder.path().c_str(), at.c_str()) != 0) return errno;
    for (AtomicFile& file : files) file.temporary_.keep();
    folder.keep();
    return 0;
  }();
  if (failed == EEXIST || failed == ENOTEMPTY) return commit_all(files);
  if (failed != 0) throw output_error(printable(target), failed);
  around.run();
}

}  // namespace ejk::io

namespace ejk {

void remove_temporary_files() noexcept {
  // They last microseconds; if one never ends, the signal is handled all the same.
  for (int i = 0; i < 5000 && io::holds_under_way > 0; ++i) {
    const timespec millisecond{0, 1000000};
    nanosleep(&millisecond, nullptr);
  }
  for (const auto kind : {io::TemporaryPath::Kind::file, io::TemporaryPath::Kind::folder})
    io::TemporaryPath::all_.for_each([&](const auto& entry) {
      if (entry.kind == kind) entry.remove();
    });
}

void write_files(const std::vector<FileContent>& files, Sync sync) {
  std::vector<io::AtomicFile> open;
  for (const FileContent& file : files) {
    open.emplace_back(file.path, sync).write(file.bytes.data(), std::ssize(file.bytes));
    open.back().close();
  }
  io::commit_all(open);
}

void check_file(const std::string& path) { io::check_can_write(path); }

}  // namespace ejk
