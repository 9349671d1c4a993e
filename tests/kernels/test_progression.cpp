// Every instruction set this machine has writes the progression of a plain loop, at every length and
// alignment, and nothing around it.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/kernels.hpp"

using namespace ejk::kernels;

namespace {

template <class T, class F>
void check_progression(F* kernel, T step) {
  for (std::int64_t n = 0; n <= 150; ++n)
    for (std::int64_t at = 1; at <= 20; ++at)
      for (const bool stream : {false, true}) {
        std::vector<T> out(static_cast<std::size_t>(n + at + 1), 77);
        const T first = static_cast<T>(-5) + static_cast<T>(n);
        kernel(first, step, n, stream, out.data() + at);
        bool right = out[static_cast<std::size_t>(at - 1)] == 77 && out.back() == 77;
        for (std::int64_t i = 0; i < n; ++i)
          right = right && out[static_cast<std::size_t>(at + i)] == first + static_cast<T>(i) * step;
        CHECK_MESSAGE(right, n);
      }
}

}  // namespace

TEST_CASE("progressions equal a plain loop on every instruction set at hand") {
  int count = 0;
  const Kernels* const* rows = all(&count);
  for (int r = 0; r < count; ++r) {
    if (!supported(*rows[r])) continue;
    CAPTURE(rows[r]->name);
    for (const std::uint32_t step : {0u, 1u}) check_progression<std::uint32_t>(rows[r]->progression_32, step);
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
      check_progression<std::uint64_t>(rows[r]->progression_64, step);
    rows[r]->stream_fence();
  }
}
