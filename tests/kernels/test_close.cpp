// Every instruction set this machine has counts the close pairs and the zeros of a plain loop, at every
// length.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk::kernels;

namespace {

template <class V, class F>
void check_close(F* kernel) {
  const V inf = std::numeric_limits<V>::infinity(), nan = std::numeric_limits<V>::quiet_NaN();
  // What is close to what, with room for rounding: rtol 1/4, atol 1.
  const V values[] = {0, -V{0}, 1, -1, 3, 100, 124, 127, -124, inf, -inf, nan};
  const auto is_close = [&](V x, V y) { return std::isfinite(y) && std::abs(x - y) <= 1 + std::abs(y) / 4; };
  for (std::int64_t n = 0; n < 200; ++n) {
    std::vector<V> a, e;
    std::int64_t wanted = 0, wanted_zeros = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      a.push_back(values[(i * 5 + n) % 12]);
      e.push_back(values[(i * 7 + n / 3) % 12]);
      wanted += is_close(a.back(), e.back());
      wanted_zeros += a.back() == 0 && e.back() == 0;
    }
    std::int64_t zeros = -1;
    CHECK(kernel(a.data(), e.data(), n, V(0.25), V{1}, &zeros) == wanted);
    CHECK(zeros == wanted_zeros);
  }
  const std::vector<V> many(3'000'001, V{0});
  std::int64_t zeros = 0;
  CHECK(kernel(many.data(), many.data(), 3'000'001, V{0}, V{0}, &zeros) == 3'000'001);
  CHECK(zeros == 3'000'001);
}

}  // namespace

TEST_CASE("close pairs are counted as a plain loop does on every instruction set at hand") {
  for (const Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    check_close<float>(row->count_close_32);
    check_close<double>(row->count_close_64);
  }
}
