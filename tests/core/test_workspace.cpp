#include "core/workspace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "ejk/array.hpp"

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

TEST_CASE(
    "poisoned memory is NaN each time that it is handed out, and what a source leaves out of what it reads") {
  auto& workspace = core::Workspace::of_this_thread();
  const auto is_filled = [](const std::byte* p, std::int64_t n, std::byte with) {
    return std::all_of(p, p + n, [&](std::byte b) { return b == with; });
  };
  for (const std::int64_t bytes : {500'000, 70, 4'000'000}) {
    std::byte* p = workspace.at_least(bytes);
    CHECK(is_filled(p, bytes, std::byte{0xFF}));
    std::fill_n(p, bytes, std::byte{1});
  }
  const auto forgetful = generated_source({DType::float32, {5}}, "x", [](auto, auto, void* out) {
    std::fill_n(static_cast<float*>(out), 4, 0.0f);
  });
  const Array read = read_all(*forgetful);
  CHECK(read.elements<float>()[3] == 0);
  CHECK(std::isnan(read.elements<float>()[4]));

  core::poison_memory(false);
  std::byte* p = workspace.at_least(100);
  std::fill_n(p, 100, std::byte{1});
  CHECK(is_filled(workspace.at_least(100), 100, std::byte{1}));
  core::poison_memory(true);
}
