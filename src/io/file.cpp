// Files and mapped memory: system calls resumed after signals, short counts and non-blocking descriptors.
// Mapped files are in a lock-free list for SIGBUS handlers.
// tests: tests/io/test_file.cpp
#include "io/file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "ejk/io.hpp"
#include "ejk/program/text.hpp"

namespace ejk::io {

Error system_error(Error::Kind kind, std::string_view name, int code) {
  return std::move(Error(kind, std::generic_category().message(code)).at(name));
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() { close(); }

int File::close() {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 && ::close(fd) != 0 && errno != EINTR ? errno : 0;
}

namespace {

struct stat status_of(int fd, std::string_view name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) throw system_error(Error::Kind::input, name, errno);
  return status;
}

// Whether a failed call is to be retried, at once or when the descriptor (perhaps non-blocking) is ready.
bool call_again(int fd, short event) {
  const int code = errno;
  if (code == EINTR) return true;
  if (code != EAGAIN && code != EWOULDBLOCK) return false;
  pollfd ready{fd, event, 0};
  const bool waited = poll(&ready, 1, -1) >= 0 || errno == EINTR;
  errno = code;
  return waited;
}

// Memory that cannot be read belongs to a mapped file that was truncated.
[[noreturn]] void cannot_write(const std::byte* from, std::string_view name, int code) {
  if (const char* input = code == EFAULT ? Mapping::name_at(from) : nullptr)
    throw std::move(Error(Error::Kind::input, "has become shorter while it was read").at(input));
  throw system_error(Error::Kind::output, name, code);
}

// Writes all bytes by calls of `write(from, bytes)`.
template <class Write>
void write_by(Write&& write, int fd, const void* data, std::int64_t n, std::string_view name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // one call writes at most 2 GiB
  const auto* from = static_cast<const std::byte*>(data);
  while (n > 0) {
    const ssize_t wrote = write(from, static_cast<std::size_t>(std::min(n, kMost)));
    if (wrote > 0)
      from += wrote, n -= wrote;
    else if (wrote == 0)
      cannot_write(from, name, EIO);  // the next attempt would end the same way
    else if (!call_again(fd, POLLOUT))
      cannot_write(from, name, errno);
  }
}

[[noreturn]] void no_memory(std::int64_t bytes) {
  throw Error(Error::Kind::budget, "no memory for " + format_bytes(bytes));
}

File opened(const std::string& path, std::string_view name, int flags) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!file.is_open()) throw system_error(Error::Kind::input, name, errno);
  if (S_ISDIR(status_of(file.fd(), name).st_mode)) throw system_error(Error::Kind::input, name, EISDIR);
  return file;
}

}  // namespace

File open_for_reading(const std::string& path, std::string_view name) { return opened(path, name, 0); }

File open_regular_file(const std::string& path, std::string_view name, std::string_view what) {
  File file = opened(path, name, O_NONBLOCK);
  if (!is_regular(file.fd(), name))
    throw std::move(Error(Error::Kind::input, std::string(what) + " must be a regular file").at(name))
        .hint("copy it to a file first");
  return file;
}

bool is_regular(int fd, std::string_view name) { return S_ISREG(status_of(fd, name).st_mode); }

std::int64_t size_of_file(int fd, std::string_view name) { return status_of(fd, name).st_size; }

std::size_t read_some(int fd, void* to, std::size_t n, std::string_view name) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t got = ::read(fd, static_cast<std::byte*>(to) + done, n - done);
    if (got == 0) break;
    if (got > 0)
      done += static_cast<std::size_t>(got);
    else if (!call_again(fd, POLLIN))
      throw system_error(Error::Kind::input, name, errno);
  }
  return done;
}

void read_all_at(int fd, void* to, std::int64_t n, std::int64_t at, std::string_view name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // one call reads at most 2 GiB
  auto* out = static_cast<std::byte*>(to);
  while (n > 0) {
    const ssize_t got = ::pread(fd, out, static_cast<std::size_t>(std::min(n, kMost)), at);
    if (got == 0) throw std::move(Error(Error::Kind::input, "has become shorter while it was read").at(name));
    if (got > 0)
      out += got, at += got, n -= got;
    else if (errno != EINTR)
      throw system_error(Error::Kind::input, name, errno);
  }
}

void write_all(int fd, const void* data, std::int64_t n, std::string_view name) {
  write_by([&](const std::byte* from, std::size_t some) { return ::write(fd, from, some); }, fd, data, n,
           name);
}

void write_all_at(int fd, const void* data, std::int64_t n, std::int64_t at, std::string_view name) {
  write_by(
      [&](const std::byte* from, std::size_t some) {
        const ssize_t wrote = ::pwrite(fd, from, some, at);
        at += std::max<ssize_t>(wrote, 0);
        return wrote;
      },
      fd, data, n, name);
}

constinit SignalList<Mapping::MappedFile> Mapping::files_;

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      slot_(std::exchange(other.slot_, nullptr)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(slot_, other.slot_);
  return *this;
}

Mapping::~Mapping() {
  if (slot_ != nullptr) files_.remove(slot_);
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

Mapping Mapping::of_file(int fd, std::int64_t bytes, std::string_view name) {
  Mapping m;
  void* p = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw system_error(Error::Kind::input, name, errno);
  madvise(p, static_cast<std::size_t>(bytes), MADV_DONTFORK);  // children have no use for it
  m.data_ = static_cast<std::byte*>(p);
  m.bytes_ = bytes;
  m.slot_ = files_.add({m.data_, m.data_ + bytes, std::string(name)});
  return m;
}

Mapping Mapping::of_memory(std::int64_t bytes, Sharing sharing) {
  Mapping m;
  const int flags = sharing == Sharing::own ? MAP_PRIVATE : MAP_SHARED;
  void* p =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) no_memory(bytes);
  if (sharing == Sharing::own) madvise(p, static_cast<std::size_t>(bytes), MADV_DONTFORK);
  m.data_ = static_cast<std::byte*>(p);
  m.bytes_ = bytes;
  return m;
}

void Mapping::grow(std::int64_t bytes) {
  void* p = mremap(data_, static_cast<std::size_t>(bytes_), static_cast<std::size_t>(bytes), MREMAP_MAYMOVE);
  if (p == MAP_FAILED) no_memory(bytes);
  data_ = static_cast<std::byte*>(p);
  bytes_ = bytes;
}

const char* Mapping::name_at(const void* address) noexcept {
  const auto* at = static_cast<const std::byte*>(address);
  const char* name = nullptr;
  files_.for_each([&](const MappedFile& file) {
    if (at >= file.begin && at < file.end) name = file.name.c_str();
  });
  return name;
}

void Mapping::release(const std::byte* from, std::int64_t bytes) const {
  if (slot_ == nullptr || bytes <= 0) return;
  static const std::int64_t page = sysconf(_SC_PAGESIZE);
  // Offsets from the mapping's start, which is page-aligned.
  const std::int64_t begin = (from - data_ + page - 1) / page * page;
  const std::int64_t end = (from - data_ + bytes) / page * page;
  if (begin >= 0 && begin < end && end <= bytes_)
    madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace ejk::io

namespace ejk {

std::vector<std::string> names_in_folder(const std::string& path) {
  const auto fail = [&] { throw io::system_error(Error::Kind::input, printable(path), errno); };
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (!folder) fail();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr && errno != 0) fail();
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const char* mapped_file_at(const void* address) noexcept { return io::Mapping::name_at(address); }

}  // namespace ejk
