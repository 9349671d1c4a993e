// A process of its own for work that may crash, recurse or eat memory on a damaged file: what happens to it
// is an Error here. Requests and answers go over a socket, array data through memory that both sides see.
//
// The child has nothing of the parent's but that memory and its socket: other descriptors are closed, signals
// are as by default, core dumps are off, memory and processor time are limited. It ends when the socket does.
// tests: tests/io/test_worker.cpp
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ejk/array.hpp"
#include "io/file.hpp"

namespace ejk::io {

/// Integers, texts and shapes in a row. Taking out what was not put in is Error{input}: the other side may
/// have gone mad.
class Message {
 public:
  Message() = default;
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}

  Message& put(std::int64_t value);
  Message& put(std::string_view text);
  Message& put(const Shape& shape);
  std::int64_t integer();
  std::string text();
  Shape shape();
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

class Worker {
 public:
  /// What the child does with a request. `buffer` is the shared memory. Errors it throws come out of `call`.
  using Serve = std::function<Message(Message& request, std::span<std::byte> buffer)>;

  /// The size of the shared memory.
  static constexpr std::int64_t kBufferBytes = std::int64_t{16} << 20;
  /// Processor time that one request may take.
  static constexpr int kRequestSeconds = 60;

  /// Starts the child. `library` is what to blame when it dies ("the HDF5 library").
  Worker(const Serve& serve, std::string library);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Sends a request and waits for the answer. Throws what `serve` threw, or Error{input} when the child
  /// died. One thread at a time.
  Message call(const Message& request);

  std::byte* buffer() const { return buffer_.data(); }

 private:
  void stop();
  [[noreturn]] void throw_death();

  std::string library_;
  Mapping buffer_;
  File socket_;
  pid_t child_ = -1;
};

/// For the child: from now on it may take `bytes` more memory than it has.
void allow_memory(std::int64_t bytes);

}  // namespace ejk::io
