// One product in blocks: every length of contraction on every instruction set, both paths through B, into
// poisoned memory and accumulating.
#include "matmul/product.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ejk/array.hpp"
#include "kernels/kernels.hpp"
#include "support/instruction_sets.hpp"

using namespace ejk;
using matmul::Product;

namespace {

// Whole numbers small enough that every sum is exact in float32 and every factor in bfloat16.
template <class T>
std::vector<T> numbers(std::int64_t n, std::mt19937& random) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) v = T(static_cast<float>(static_cast<int>(random() % 9) - 4));
  return values;
}

enum class Layout { rows, columns };

kernels::StridedMatrix block(const void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                             Layout layout) {
  const std::int64_t size = size_of(dtype);
  return layout == Layout::rows ? kernels::StridedMatrix{data, dtype, columns * size, size}
                                : kernels::StridedMatrix{data, dtype, size, rows * size};
}

// rows × columns of float32 in C order.
template <class T>
std::vector<float> as_rows(const std::vector<T>& m, std::int64_t rows, std::int64_t columns, Layout layout) {
  std::vector<float> all;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      all.push_back(static_cast<float>(
          m[static_cast<std::size_t>(layout == Layout::rows ? r * columns + c : c * rows + r)]));
  return all;
}

// T factors, Out results, on every instruction set; `adds`: the result begins with something.
template <class T, class Out>
void check(std::int64_t rows, std::int64_t k, std::int64_t columns, Layout layout, bool adds, std::int64_t kc,
           bool stream, std::mt19937& random) {
  const auto a = numbers<T>(rows * k, random), b = numbers<T>(k * columns, random);
  const auto added = numbers<Out>(rows * columns, random);
  const std::vector<float> left = as_rows(a, rows, k, layout), right = as_rows(b, k, columns, layout);
  std::vector<float> expected(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < expected.size() && adds; ++i) expected[i] = static_cast<float>(added[i]);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const to = expected.data() + r * columns;
    for (std::int64_t q = 0; q < k; ++q) {
      const float factor = left[static_cast<std::size_t>(r * k + q)];
      const float* const with = right.data() + q * columns;
      for (std::int64_t c = 0; c < columns; ++c) to[c] += factor * with[c];
    }
  }
  constexpr DType kIn = dtype_of<T>(), kOut = dtype_of<Out>();
  // An emulated instruction takes a thousand times as long: small products of each kind are enough.
  constexpr std::int64_t kMostEmulated = 1'500'000;
  for (const kernels::Kernels* row : test::instruction_sets()) {
    const bool is_emulated = (row->needs & kernels::kAmxBf16) != 0 && !kernels::supported(*row);
    if (is_emulated && kIn == DType::bfloat16 && rows * k * columns > kMostEmulated) continue;
    std::vector<Out> out(static_cast<std::size_t>(rows * columns + 1),
                         Out(std::numeric_limits<float>::quiet_NaN()));
    Product p;
    p.a = block(a.data(), kIn, rows, k, layout);
    p.b = block(b.data(), kIn, k, columns, layout);
    p.rows = rows, p.k = k, p.columns = columns;
    p.dtype = kOut;
    p.out = out.data();
    p.out_stride = p.added_stride = columns * size_of(kOut);
    p.added = adds ? added.data() : nullptr;
    p.stream = stream;
    const auto arithmetic = matmul::arithmetic_of(kIn, kIn, *row);
    p.direct_k = matmul::direct_k(arithmetic, rows);
    p.few_columns = matmul::has_few_columns(columns);
    core::Workspace workspace;  // of its own: what is read behind it shows under a sanitizer
    multiply(arithmetic, p, kc, workspace);
    row->stream_fence();
    bool equal = std::isnan(static_cast<float>(out.back()));
    for (std::size_t i = 0; i < expected.size(); ++i)
      equal = equal && static_cast<float>(out[i]) == static_cast<float>(Out(expected[i]));
    CHECK_MESSAGE(equal, row->name, ", ", name_of(kIn), " to ", name_of(kOut), ": ", rows, " x ", k, " x ",
                  columns, ", layout ", static_cast<int>(layout), ", adds ", adds, ", kc ", kc, ", stream ",
                  stream);
  }
}

}  // namespace

TEST_CASE("products are right for every contraction length in 1..300") {
  std::mt19937 random(11);
  for (std::int64_t k = 0; k <= 300; ++k) {
    const Layout layout = k % 3 == 0 ? Layout::columns : Layout::rows;
    check<float, float>(17, k, 37, layout, k % 2 == 0, 0, false, random);
    check<bfloat16, bfloat16>(5, k, 41, layout, k % 2 == 1, 0, false, random);
    check<double, double>(7, k, 9, layout, false, 0, false, random);
    check<float16, float>(3, k, 33, layout, false, 0, false, random);
  }
}

TEST_CASE("few and many rows, several blocks of the contraction and ragged columns give the same") {
  std::mt19937 random(12);
  for (const std::int64_t rows : {1, 13, 14, 15, 28, 41, 43, 60, 96, 97, 130})
    for (const std::int64_t columns : {1, 3, 4, 5, 31, 32, 64, 77})
      for (const Layout layout : {Layout::rows, Layout::columns})
        for (const bool adds : {false, true}) {
          const std::int64_t k = 500 + rows + columns;
          check<float, float>(rows, k, columns, layout, adds, 0, false, random);
          check<bfloat16, float>(rows, 2 * k, columns, layout, adds, 0, false, random);
          check<bfloat16, bfloat16>(rows, k, columns, layout, adds, 33, true, random);
          check<bfloat16, bfloat16>(rows, 9, columns, layout, adds, 0, false, random);
          check<float, float16>(rows, 3, columns, layout, adds, 0, true, random);
          check<float, float>(rows, 40, columns, layout, adds, 7, true, random);
        }
}

TEST_CASE("a block length beyond everything is the longest there is") {
  std::mt19937 random(13);
  check<bfloat16, float>(50, 700, 40, Layout::rows, true, INT64_MAX, false, random);
  check<float, float>(50, 700, 40, Layout::rows, true, INT64_MAX, false, random);
}

TEST_CASE("memory around factors of bfloat16 is not taken for zeros") {
  // NaN behind the last row of B, behind each row of A and behind the last one.
  for (const kernels::Kernels* row : test::instruction_sets())
    for (const std::int64_t rows : {5, 60, 110})
      for (const std::int64_t k : {1, 7, 33, 65}) {
        constexpr std::int64_t kColumns = 45;
        const bfloat16 nan(std::numeric_limits<float>::quiet_NaN()), one(1.0f);
        std::vector<bfloat16> a(static_cast<std::size_t>((rows + 1) * (k + 1)), nan);
        std::vector<bfloat16> b(static_cast<std::size_t>((k + 1) * kColumns), nan);
        for (std::int64_t r = 0; r < rows; ++r) std::fill_n(a.begin() + r * (k + 1), k, one);
        std::fill_n(b.begin(), k * kColumns, one);
        std::vector<float> out(static_cast<std::size_t>(rows * kColumns));
        Product p;
        p.a = {a.data(), DType::bfloat16, (k + 1) * 2, 2};
        p.b = {b.data(), DType::bfloat16, kColumns * 2, 2};
        p.rows = rows, p.k = k, p.columns = kColumns;
        p.out = out.data();
        p.out_stride = kColumns * 4;
        const auto arithmetic = matmul::arithmetic_of(DType::bfloat16, DType::bfloat16, *row);
        p.direct_k = matmul::direct_k(arithmetic, rows);
        multiply(arithmetic, p, 0, core::Workspace::of_this_thread());
        CHECK_MESSAGE(out == std::vector<float>(out.size(), static_cast<float>(k)), row->name, ", ", rows,
                      " x ", k);
      }
}

TEST_CASE("a NaN or an infinity stays in its row of A and its column of B") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (const kernels::Kernels* row : test::instruction_sets())
    for (const float value : bad)
      for (const std::int64_t rows : {5, 60, 110}) {
        constexpr std::int64_t kLength = 70, kColumns = 45;
        std::vector<float> a(static_cast<std::size_t>(rows * kLength), 1), b(kLength * kColumns, 1),
            out(static_cast<std::size_t>(rows * kColumns));
        a[3 * kLength + 69] = value;
        b[69 * kColumns + 44] = value;
        Product p;
        p.a = block(a.data(), DType::float32, rows, kLength, Layout::rows);
        p.b = block(b.data(), DType::float32, kLength, kColumns, Layout::rows);
        p.rows = rows, p.k = kLength, p.columns = kColumns;
        p.out = out.data();
        p.out_stride = kColumns * 4;
        const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, *row);
        p.direct_k = matmul::direct_k(arithmetic, rows);
        multiply(arithmetic, p, 0, core::Workspace::of_this_thread());
        bool right = true;
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < kColumns; ++c) {
            const float got = out[static_cast<std::size_t>(r * kColumns + c)];
            right = right && (r == 3 || c == 44 ? !std::isfinite(got) : got == kLength);
          }
        CHECK_MESSAGE(right, row->name, ", ", rows, " rows of ", value);
      }
}

TEST_CASE("few columns have the same bits wherever rows are cut and however A lies") {
  std::mt19937 random(14);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kRows = 290, kLength = 700;
  std::vector<float> a(kRows * kLength), turned(a.size());
  for (float& x : a) x = normal(random);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t q = 0; q < kLength; ++q)
      turned[static_cast<std::size_t>(q * kRows + r)] = a[static_cast<std::size_t>(r * kLength + q)];
  for (const kernels::Kernels* row : test::instruction_sets())
    for (const std::int64_t columns : {1, 2, 4}) {
      std::vector<float> b(static_cast<std::size_t>(kLength * columns));
      for (float& x : b) x = normal(random);
      const auto arithmetic = matmul::arithmetic_of(DType::float32, DType::float32, *row);
      const auto made = [&](Layout layout, std::int64_t part) {
        std::vector<float> out(static_cast<std::size_t>(kRows * columns));
        for (std::int64_t first = 0; first < kRows; first += part) {
          Product p;
          p.a = block(layout == Layout::rows ? a.data() + first * kLength : turned.data() + first,
                      DType::float32, kRows, kLength, layout);
          p.b = block(b.data(), DType::float32, kLength, columns, Layout::rows);
          p.rows = std::min(part, kRows - first), p.k = kLength, p.columns = columns;
          p.out = out.data() + first * columns;
          p.out_stride = columns * 4;
          p.few_columns = true;
          multiply(arithmetic, p, 0, core::Workspace::of_this_thread());
        }
        return out;
      };
      const std::vector<float> whole = made(Layout::rows, kRows);
      CHECK_MESSAGE(made(Layout::rows, 7) == whole, row->name);
      CHECK_MESSAGE(made(Layout::columns, kRows) == whole, row->name);
      CHECK_MESSAGE(made(Layout::columns, 33) == whole, row->name);
    }
}
