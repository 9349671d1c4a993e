// The float64 reference of grouped products: golden cases, plain loops, partial sums.
#include "verdict/matmul/reference.hpp"

#include <doctest/doctest.h>

#include "support/matmul.hpp"
#include "verdict/matmul/against.hpp"

using namespace ejk;
using plain::Sizes;

namespace {

// A result as loops over all elements give it, in C order.
std::vector<double> by_loops(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                             const GroupedMatmulOptions& options) {
  const auto a = plain::doubles(lhs), b = plain::doubles(rhs);
  const std::int64_t m = lhs.shape[0], k = lhs.shape[1], n = rhs.shape[options.transpose_rhs ? 1 : 2];
  std::vector<double> out(static_cast<std::size_t>(m * n));
  if (options.existing_out) out = plain::doubles(*options.existing_out);
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < std::ssize(sizes); ++g)
    for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(g)]; ++i, ++row) {
      const std::int64_t r = g - options.group_offset;
      if (r < 0 || r >= rhs.shape[0]) continue;
      for (std::int64_t j = 0; j < n; ++j) {
        double& element = out[static_cast<std::size_t>(row * n + j)];
        long double sum = options.existing_out && options.existing == Existing::add ? element : 0;
        for (std::int64_t p = 0; p < k; ++p) {
          const std::int64_t at = options.transpose_rhs ? (r * n + j) * k + p : (r * k + p) * n + j;
          sum += static_cast<long double>(a[static_cast<std::size_t>(row * k + p)]) *
                 b[static_cast<std::size_t>(at)];
        }
        element = static_cast<double>(sum);
      }
    }
  return out;
}

std::vector<double> by_loops(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                             const TransposedGroupedMatmulOptions& options) {
  const auto a = plain::doubles(lhs), b = plain::doubles(rhs);
  const std::int64_t k = lhs.shape[0], m = lhs.shape[1], n = rhs.shape[1];
  const std::int64_t groups = options.num_actual_groups.value_or(std::ssize(sizes) - options.group_offset);
  std::vector<double> out(static_cast<std::size_t>(groups * k * n));
  if (options.existing_out) out = plain::doubles(*options.existing_out);
  std::int64_t begin = 0;
  for (std::int64_t g = 0; g < options.group_offset + groups; ++g) {
    const std::int64_t end = begin + sizes[static_cast<std::size_t>(g)];
    for (std::int64_t p = 0; g >= options.group_offset && p < k; ++p)
      for (std::int64_t j = 0; j < n; ++j) {
        double& element = out[static_cast<std::size_t>(((g - options.group_offset) * k + p) * n + j)];
        long double sum = element;
        for (std::int64_t i = begin; i < end; ++i)
          sum += static_cast<long double>(a[static_cast<std::size_t>(p * m + i)]) *
                 b[static_cast<std::size_t>(i * n + j)];
        element = static_cast<double>(sum);
      }
    begin = end;
  }
  return out;
}

// Compares every element of `out` with the plain evaluation.
template <class Options>
MatmulCheck compare(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& sizes,
                    const Options& options, const ArrayView& out) {
  MatmulCheck c =
      matmul::check(plain::problem_of(lhs, rhs, sizes, options), {lhs, rhs, options.existing_out}, out, {});
  CHECK(c.method == MatmulCheck::Method::every_element);
  CHECK(c.compared == element_count(out.shape));
  CHECK(c.violating == 0);
  return c;
}

// That the plain evaluation has the same numbers as loops, but for the rounding of the result.
template <class Options>
void check_loops(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes, const Options& options,
                 const Shape& shape) {
  const Array out = plain::array_of(options.dtype, shape, by_loops(lhs, rhs, sizes, options));
  const MatmulCheck c = compare(lhs, rhs, *plain::source(sizes), options, out.view());
  if (options.dtype == DType::float64)
    CHECK(c.largest_absolute->size < 1e-12);
  else
    CHECK(c.largest_ulps->size < 0.51);
}

template <class Options>
int check_golden(const char* family, Existing existing = Existing::keep) {
  int cases = 0;
  for (const golden::Case& c : golden::load(family)) {
    if (c.is_error) continue;
    CAPTURE(c.name);
    auto options = golden::options_of<Options>(c);
    if constexpr (std::is_same_v<Options, GroupedMatmulOptions>) options.existing = existing;
    const Array& expected = c.out.at("out_float64");
    Array old;
    if (options.existing_out)
      old = plain::array_of(DType::float64, expected.shape(), plain::doubles(*options.existing_out));
    if (options.existing_out) options.existing_out = old.view();
    options.dtype = DType::float64;
    const auto sizes = make_source(c.in.at("group_sizes").view(), "group_sizes");
    const MatmulCheck check =
        compare(c.in.at("lhs").view(), c.in.at("rhs").view(), *sizes, options, expected.view());
    const auto magnitudes = plain::doubles(c.out.at("abs_dot").view());
    double most = 1;
    for (const double magnitude : magnitudes)
      if (std::isfinite(magnitude)) most = std::max(most, magnitude);
    if (check.largest_absolute) CHECK(check.largest_absolute->size <= 1e-14 * most);
    ++cases;
  }
  return cases;
}

}  // namespace

TEST_CASE("the plain evaluation of grouped products gives the golden results") {
  CHECK(check_golden<GroupedMatmulOptions>("grouped_matmul") > 20);
  CHECK(check_golden<GroupedMatmulOptions>("grouped_matmul_ejkernel_xla", Existing::add) > 0);
  CHECK(check_golden<TransposedGroupedMatmulOptions>("transposed_grouped_matmul") > 20);
}

TEST_CASE("the plain evaluation of both products is that of loops over all elements") {
  std::mt19937_64 engine(1);
  for (const DType left : plain::kFloats)
    for (const DType right : plain::kFloats)
      for (const DType result : plain::kFloats) {
        CAPTURE(name_of(left));
        CAPTURE(name_of(right));
        CAPTURE(name_of(result));
        const Sizes sizes = plain::random_sizes(4, 50, engine() % 2 == 0, engine);
        const Array lhs = plain::random(left, {50, 70}, engine),
                    rhs = plain::random(right, {3, 70, 9}, engine);
        const Array old = plain::random(result, {50, 9}, engine);
        GroupedMatmulOptions options;
        options.dtype = result;
        options.group_offset = 1;
        for (const bool existing : {false, true})
          for (const Existing use : {Existing::keep, Existing::add}) {
            if (existing) options.existing_out = old.view();
            options.existing = use;
            check_loops(lhs.view(), rhs.view(), sizes, options, {50, 9});
          }
        const Array a = plain::random(left, {9, 50}, engine), b = plain::random(right, {50, 300}, engine);
        TransposedGroupedMatmulOptions how;
        how.dtype = result;
        how.group_offset = 1;
        how.num_actual_groups = 2;
        const Array before = plain::random(result, {2, 9, 300}, engine);
        for (const bool existing : {false, true}) {
          if (existing) how.existing_out = before.view();
          check_loops(a.view(), b.view(), sizes, how, {2, 9, 300});
        }
      }
}

TEST_CASE("the plain evaluation takes any strides") {
  std::mt19937_64 engine(2);
  const Sizes sizes{3, 0, 4};
  const Array lhs = plain::random(DType::float32, {8, 5}, engine);
  const Array rhs = plain::random(DType::bfloat16, {3, 6, 5}, engine);
  const Array old = plain::random(DType::float32, {8, 6}, engine);
  for (int how = 0; how < 4; ++how) {
    const plain::Laid a(lhs, how), b(rhs, how), there(old, how);
    GroupedMatmulOptions options;
    options.transpose_rhs = true;
    options.existing = Existing::add;
    options.existing_out = there.view();
    check_loops(a.view(), b.view(), sizes, options, {8, 6});
  }
}

TEST_CASE("a row of a product has its sums and the sums of its magnitudes") {
  const Array a = plain::array_of(DType::float32, {3, 2}, {1, -2, 3, 4, 0x1p-130, 1});
  const Array b = plain::array_of(DType::float32, {2, 3}, {1, 2, 3, -4, 5, 6});
  const std::vector<std::int64_t> rows{2, 0};
  double sums[4], magnitudes[4];
  matmul::multiply_rows({a.view(), b.view(), 0}, rows, 1, 2, sums, magnitudes, 0x1p18);
  CHECK(sums[0] == 0x1p-129 + 5);
  CHECK(sums[1] == 3 * 0x1p-130 + 6);
  CHECK(sums[2] == 2 - 10);
  CHECK(sums[3] == 3 - 12);
  CHECK(magnitudes[0] == 0x1p-111 + 5);  // a subnormal factor counts many times
  CHECK(magnitudes[2] == 12);
  CHECK(magnitudes[3] == 15);
}

TEST_CASE("float64 factors are summed in more than float64") {
  const Array a = plain::array_of(DType::float64, {1, 3}, {1, 0x1p60, -0x1p60});
  const Array b = plain::array_of(DType::float64, {3, 1}, {1, 1, 1});
  const std::vector<std::int64_t> rows{0};
  double sum = 0;
  matmul::multiply_rows({a.view(), b.view(), 0}, rows, 0, 1, &sum);
  if (std::numeric_limits<long double>::digits >= 64) CHECK(sum == 1);
  CHECK(matmul::precision_for(a.view(), b.view()) == matmul::Precision::extended);
}

TEST_CASE("the products of a result are its groups, in order") {
  const auto sizes = plain::source({3, 0, 4});
  const Array lhs(DType::float32, {8, 2}), rhs(DType::float32, {2, 2, 5});
  GroupedMatmulOptions options;
  options.group_offset = 1;
  const auto grouped =
      matmul::products_of(plain::problem_of(lhs.view(), rhs.view(), *sizes, options), lhs.view(), rhs.view());
  REQUIRE(grouped.size() == 1);  // group 1 is empty
  CHECK(grouped[0].row == 3);
  CHECK(grouped[0].a.shape == Shape{4, 2});
  CHECK(grouped[0].b.data == rhs.view()[1].data);

  const Array a(DType::float32, {2, 8}), b(DType::float32, {8, 5});
  const auto transposed = matmul::products_of(
      plain::problem_of(a.view(), b.view(), *sizes, TransposedGroupedMatmulOptions{}), a.view(), b.view());
  REQUIRE(transposed.size() == 3);
  CHECK(transposed[1].a.shape == Shape{2, 0});
  CHECK(transposed[2].row == 4);
  CHECK(transposed[2].b.shape == Shape{4, 5});
}
