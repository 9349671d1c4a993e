// File descriptors and mapped memory with an owner, and reads and writes that are complete or throw Error.
// tests: tests/io/test_file.cpp
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/error.hpp"
#include "io/signal_list.hpp"

namespace ejk::io {

/// "NAME: No such file or directory", for an errno value.
Error system_error(Error::Kind kind, std::string_view name, int code);

/// An open file descriptor, closed at the end. Movable.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  /// Returns 0 or the errno: a full disk may be reported only here.
  int close();

 private:
  int fd_ = -1;
};

/// Opens for reading. Throws Error{input} "NAME: why" where it cannot be, or is a directory.
File open_for_reading(const std::string& path, std::string_view name);

/// The same of a regular file alone, `what` in messages; opening a pipe would wait for its writer.
File open_regular_file(const std::string& path, std::string_view name, std::string_view what);

/// Throw Error{input} if the system reports nothing: an unknown size is not 0.
bool is_regular(int fd, std::string_view name);
std::int64_t size_of_file(int fd, std::string_view name);

/// Reads up to `n` bytes, fewer only at the end; waits for a non-blocking descriptor. Throws Error{input}.
std::size_t read_some(int fd, void* to, std::size_t n, std::string_view name);

/// Reads `n` bytes at offset `at`; thread-safe. Throws Error{input}, also at the end of the file.
void read_all_at(int fd, void* to, std::int64_t n, std::int64_t at, std::string_view name);

/// Writes all `n` bytes; waits for a descriptor that does not block. Throws Error{output}.
void write_all(int fd, const void* data, std::int64_t n, std::string_view name);

/// The same at offset `at` of a regular file; thread-safe.
void write_all_at(int fd, const void* data, std::int64_t n, std::int64_t at, std::string_view name);

/// Memory from mmap, unmapped at the end. Movable.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// The first `bytes` bytes of a file, read-only. Access after truncation raises SIGBUS.
  static Mapping of_file(int fd, std::int64_t bytes, std::string_view name);
  /// The mapped file's name, or nullptr. Async-signal-safe.
  static const char* name_at(const void* address) noexcept;

  /// Zeroed memory; `shared` with processes forked later. Throws Error{budget}.
  enum class Sharing { own, with_children };
  static Mapping of_memory(std::int64_t bytes, Sharing sharing);

  /// Makes memory of its own larger (it may move). Throws Error{budget}.
  void grow(std::int64_t bytes);

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// Releases whole pages of a mapped file within the range.
  void release(const std::byte* from, std::int64_t bytes) const;

 private:
  struct MappedFile {
    const std::byte *begin = nullptr, *end = nullptr;
    std::string name;
  };
  static SignalList<MappedFile> files_;

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  SignalList<MappedFile>::Slot* slot_ = nullptr;  // of a file
};

}  // namespace ejk::io
