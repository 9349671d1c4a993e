// File descriptors and mapped memory with an owner, and reads and writes that are complete or throw Error.
// tests: tests/io/test_file.cpp
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ejk/error.hpp"

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
  /// Closes; returns 0 or the errno, since a full disk may be reported only here.
  int close();

 private:
  int fd_ = -1;
};

/// Opens for reading. Throws Error{input} "NAME: why" where it cannot be, or is a directory.
File open_for_reading(const std::string& path, std::string_view name);

/// What the descriptor is open on. They throw Error{input} where the system does not say: an unknown size is
/// not 0.
bool is_regular(int fd, std::string_view name);
std::int64_t size_of_file(int fd, std::string_view name);

/// Reads up to `n` bytes from where the descriptor stands; fewer only at the end. Waits for a descriptor that
/// does not block. Throws Error{input}.
std::size_t read_some(int fd, void* to, std::size_t n, std::string_view name);

/// Reads `n` bytes from byte `at` on, wherever the descriptor stands; any number of threads at once. Throws
/// Error{input}, also when the file holds fewer.
void read_all_at(int fd, void* to, std::int64_t n, std::int64_t at, std::string_view name);

/// Writes all `n` bytes; waits for a descriptor that does not block. Throws Error{output}.
void write_all(int fd, const void* data, std::int64_t n, std::string_view name);

/// The same at byte `at` of a regular file, wherever the descriptor stands; any number of threads at once.
void write_all_at(int fd, const void* data, std::int64_t n, std::int64_t at, std::string_view name);

/// Memory from mmap, unmapped at the end. Movable.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// The first `bytes` bytes of a file, read-only. Touching what another program has cut off meanwhile raises
  /// SIGBUS.
  static Mapping of_file(int fd, std::int64_t bytes, std::string_view name);
  /// The name of the file that is mapped at an address, or nullptr. Safe in a signal handler.
  static const char* name_at(const void* address) noexcept;

  /// Zeroed memory; `shared` with processes forked later. Throws Error{budget}.
  enum class Sharing { own, with_children };
  static Mapping of_memory(std::int64_t bytes, Sharing sharing);

  /// Makes memory of its own larger (it may move). Throws Error{budget}.
  void grow(std::int64_t bytes);

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// Gives back the whole pages within the range when they are a file's, which can be read again.
  void release(const std::byte* from, std::int64_t bytes) const;

 private:
  struct Slot;

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Slot* slot_ = nullptr;  // of a file
};

}  // namespace ejk::io
