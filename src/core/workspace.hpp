// Memory to compute in.
// tests: tests/core/test_workspace.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace ejk::core {

/// From now on, memory whose contents nobody may rely on is filled with 0xFF, NaN of every float type, before it is
/// handed out or read into: what is never written shows in tests. Off at first.
void poison_memory(bool on);

/// Fills it, where that is on.
void poison(std::byte* memory, std::int64_t bytes);

/// Memory of one thread, kept from one use to the next: fresh pages would cost more than filling them.
/// Larger ones lie on huge pages, where the caches' sets are filled evenly.
class Workspace {
 public:
  /// The calling thread's own.
  static Workspace& of_this_thread();

  /// `bytes` bytes at a cache line; what was there before is lost.
  std::byte* at_least(std::int64_t bytes);

  /// What it takes for that many.
  static std::int64_t rounded(std::int64_t bytes);

 private:
  struct Release {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Release> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace ejk::core
