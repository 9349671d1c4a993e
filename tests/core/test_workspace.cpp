#include "core/workspace.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace ejk;

TEST_CASE("a thread's memory grows and stays aligned") {
  auto& workspace = core::Workspace::of_this_thread();
  for (const std::int64_t bytes : {1, 100, 4096, 200'000, 3'000'000}) {
    std::byte* p = workspace.at_least(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
    std::fill_n(p, bytes, std::byte{1});
  }
  CHECK(workspace.at_least(10) == workspace.at_least(20));
}
