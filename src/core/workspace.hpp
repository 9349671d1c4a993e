// Reusable scratch memory of threads.
// tests: tests/core/test_workspace.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace ejk::core {

/// Test hook: fills scratch memory and read buffers with 0xFF (NaN) before use, so that reads of
/// uninitialised data are detected. Off by default.
void poison_memory(bool on);

/// Fills the memory if poisoning is on.
void poison(std::byte* memory, std::int64_t bytes);

/// Scratch memory of one thread, reused because fresh pages cost more than filling them. Large ones use huge
/// pages, which fill the sets of caches evenly.
class Workspace {
 public:
  /// The calling thread's own.
  static Workspace& of_this_thread();

  /// `bytes` bytes, aligned to a cache line; previous contents are lost.
  std::byte* at_least(std::int64_t bytes);

  /// The memory allocated for that many.
  static std::int64_t rounded(std::int64_t bytes);

 private:
  struct Release {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Release> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace ejk::core
