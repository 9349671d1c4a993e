// Scratch memory of threads: one growing block per thread, with huge pages from 128 KiB on. Cost: up to 2 MiB
// a thread.
// tests: tests/core/test_workspace.cpp
#include "core/workspace.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "core/checked.hpp"
#include "ejk/error.hpp"

namespace ejk::core {

namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20, kWorthHugePage = kHugePage / 16;

std::atomic<bool> poisoning{false};

}  // namespace

void poison_memory(bool on) { poisoning.store(on, std::memory_order_relaxed); }

void poison(std::byte* memory, std::int64_t bytes) {
  if (bytes > 0 && poisoning.load(std::memory_order_relaxed))
    std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
}

Workspace& Workspace::of_this_thread() {
  thread_local Workspace workspace;
  return workspace;
}

std::int64_t Workspace::rounded(std::int64_t bytes) {
  return round_up(bytes, bytes >= kWorthHugePage ? kHugePage : kLine);
}

std::byte* Workspace::at_least(std::int64_t bytes) {
  if (bytes <= bytes_) {
    poison(memory_.get(), bytes);
    return memory_.get();
  }
  const bool huge = bytes >= kWorthHugePage;
  bytes = rounded(bytes);
  memory_.reset();
  bytes_ = 0;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(huge ? kHugePage : kLine),
                                                           static_cast<std::size_t>(bytes))));
  if (memory_ == nullptr)
    throw Error(Error::Kind::budget, fmt::format("no memory to compute in ({} bytes)", bytes));
  if (huge) madvise(memory_.get(), static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  bytes_ = bytes;
  poison(memory_.get(), bytes);
  return memory_.get();
}

}  // namespace ejk::core
