// A child process for work that may crash, recurse or exhaust memory on a damaged file; each of these becomes
// an Error. Requests and replies use a socket, array data shared memory.
//
// The child keeps only that memory, its socket and the file: other descriptors are closed, signals have
// default actions, core dumps are off, memory and CPU time are limited. It ends when the socket closes, even
// during a request.
//
// Created by fork alone: a helper program would have to be located wherever the library is linked. The
// price: locks that other threads hold during the fork stay locked in the child (except malloc's and
// stdio's), so `start` takes those of other libraries, within a time limit, and the child does not change
// the environment.
//
// tests: tests/io/test_worker.cpp
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ejk/array.hpp"
#include "io/file.hpp"

namespace ejk::io {

/// Thrown for a reply that does not match the request: the child's memory is damaged.
Error malformed_answer();

/// Integers, texts and shapes in a row. Taking out what was not put in throws malformed_answer().
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
  bool at_end() const { return at_ == bytes_.size(); }

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
  /// The descriptor under which the child has the file it was given.
  static constexpr int kFile = 0;

  struct Setup {
    std::string library;               // what to blame when the child dies: "the HDF5 library"
    std::function<void()> start = {};  // the child's first work
    int file = -1;                     // a descriptor for the child
    int request_seconds = 60;          // processor time that one request may take
    int start_seconds = 60;            // time, on the clock, until `start` is done
  };

  /// Starts the child. Throws Error{budget} where the system has no process, socket or memory for it.
  Worker(const Serve& serve, Setup setup);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Sends a request and waits. Throws what `serve` threw; Error{input} if the child died, from then on;
  /// Error{budget} if the system failed, or in a forked process. One thread at a time.
  Message call(const Message& request);

  std::byte* buffer() const { return buffer_.data(); }

 private:
  Message receive();
  int stop();
  [[noreturn]] void end(const Error& why);
  Error death();

  Setup setup_;
  pid_t owner_;
  std::optional<Error> ended_;  // why there is no child any more
  Mapping buffer_;
  File socket_;
  pid_t child_ = -1;
  bool started_ = false;
};

/// For the child: from now on it may take `bytes` more memory than it has.
void allow_memory(std::int64_t bytes);

}  // namespace ejk::io
