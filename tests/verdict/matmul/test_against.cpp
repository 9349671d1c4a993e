// Comparison of an actual product: every element, at any size; the report names the groups and rows that are
// out of tolerance.
#include "verdict/matmul/against.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "ejk/matmul_check.hpp"
#include "support/golden.hpp"
#include "support/matmul.hpp"
#include "support/threads.hpp"

using namespace ejk;
using plain::Sizes;

namespace {

template <class Options>
Against against(const Array& lhs, const Array& rhs, const Sizes& sizes, const Array& given, Options options,
                const matmul::CheckEffort& effort = {}, Explain explain = Explain::no) {
  const auto source = plain::source(sizes);
  const GroupedMatmulPlan plan = plain::plan_of(lhs.view(), rhs.view(), *source, options);
  Array own(plan.out().dtype, plan.out().shape);
  plan.run(lhs.view(), rhs.view(), options.existing_out, own.mutable_view());
  const matmul::Problem problem = plain::problem_of(lhs.view(), rhs.view(), *source, options);
  const ArrayView l = lhs.view(), r = rhs.view();
  return matmul::compare(problem, {l, r, options.existing_out}, own.view(), given.view(), explain, {},
                         effort);
}

// The rows that are told.
std::string rows_of(const Against& against) {
  for (const Against::Indices& w : against.where)
    if (w.axis == "rows") return w.indices;
  return "";
}

// A float32 product of one group by the tolerance of an accumulator.
Against of_one_group(const Array& lhs, const Array& rhs, const Array& given, Accumulator accumulator) {
  const auto source = plain::source(Sizes{lhs.shape()[0]});
  GroupedMatmulOptions options;
  options.dtype = DType::float32;
  const GroupedMatmulPlan plan = plain::plan_of(lhs.view(), rhs.view(), *source, options);
  Array own(plan.out().dtype, plan.out().shape);
  plan.run(lhs.view(), rhs.view(), {}, own.mutable_view());
  return compare_results(plan, lhs.view(), rhs.view(), {}, own.view(), given.view(), Explain::no, {}, {},
                         accumulator);
}

// A dot product as Hopper's FP8 tensor cores add it: 32 products and the sum at a time, each cut to 13 bits below
// the highest bit of the largest; a float32 sum takes the result after every `promoted` products.
float tensor_core_dot(const float* x, const float* y, std::int64_t depth, std::int64_t promoted) {
  constexpr std::int64_t kAtOnce = 32;
  float sum = 0, inner = 0;
  for (std::int64_t k = 0; k < depth; k += kAtOnce) {
    double largest = std::abs(inner);
    for (std::int64_t i = k; i < std::min(k + kAtOnce, depth); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(x[i]) * y[i]));
    if (largest > 0) {
      const int last = std::ilogb(largest) - 13;
      double units = std::trunc(std::ldexp(inner, -last));
      for (std::int64_t i = k; i < std::min(k + kAtOnce, depth); ++i)
        units += std::trunc(std::ldexp(static_cast<double>(x[i]) * y[i], -last));
      inner = static_cast<float>(std::ldexp(units, last));
    }
    if ((k + kAtOnce) % promoted == 0) sum += inner, inner = 0;
  }
  return sum + inner;
}

// Numbers of e4m3, of random signs or none.
Array e4m3_numbers(Shape shape, bool is_signed, std::mt19937_64& engine) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    const auto word = static_cast<unsigned>(engine());
    const double x = std::ldexp(8 + (word & 7u), -6 + static_cast<int>(word >> 3 & 3u));
    values.push_back(is_signed && (word >> 5 & 1u) != 0 ? -x : x);
  }
  return plain::array_of(DType::float32, std::move(shape), values);
}

}  // namespace

TEST_CASE("an FP8 product of Hopper's tensor cores agrees with the tolerance of its sums alone") {
  for (const golden::Case& c : golden::load("fp8_tensor_core")) {
    CAPTURE(c.name);
    const Array &lhs = c.in.at("lhs"), &rhs = c.in.at("rhs"), &given = c.out.at("out");
    const auto agrees = [&](const Array& out, Accumulator accumulator) {
      return of_one_group(lhs, rhs, out, accumulator).agrees();
    };
    const bool fast = c.params.at("fast");
    CHECK_FALSE(agrees(given, Accumulator::float32));
    CHECK(agrees(given, fast ? Accumulator::fp8_fast : Accumulator::fp8));
    // A block of K left out is wrong by any of them.
    Array short_lhs = Array::copy_of(lhs.view());
    for (std::int64_t row = 0; row < lhs.shape()[0]; ++row)
      for (std::int64_t k = 128; k < 256; ++k)
        short_lhs.elements<float>()[static_cast<std::size_t>(row * lhs.shape()[1] + k)] = 0;
    const auto source = plain::source(Sizes{lhs.shape()[0]});
    const Array wrong = grouped_matmul(short_lhs.view(), rhs.view(), *source, {});
    CHECK_FALSE(agrees(wrong, Accumulator::fp8_fast));
  }
}

TEST_CASE("sums that FP8 tensor cores cut agree where they lose most: of one sign, and beside an outlier") {
  std::mt19937_64 engine(30);
  const std::int64_t rows = 6, columns = 5;
  for (const std::int64_t depth : {100, 512, 4096})
    for (const Accumulator accumulator : {Accumulator::fp8, Accumulator::fp8_fast})
      for (const bool is_signed : {false, true})
        for (const double outlier : {0.0, 448.0}) {
          CAPTURE(depth);
          CAPTURE(static_cast<int>(accumulator));
          CAPTURE(is_signed);
          CAPTURE(outlier);
          Array lhs = e4m3_numbers({rows, depth}, is_signed, engine);
          const Array rhs_of_columns = e4m3_numbers({columns, depth}, is_signed, engine);
          if (outlier > 0)
            for (std::int64_t row = 0; row < rows; ++row)
              lhs.elements<float>()[static_cast<std::size_t>(row * depth + 7)] = static_cast<float>(outlier);
          std::vector<double> out, transposed;
          for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t column = 0; column < columns; ++column)
              out.push_back(tensor_core_dot(lhs.elements<float>().data() + row * depth,
                                            rhs_of_columns.elements<float>().data() + column * depth, depth,
                                            accumulator == Accumulator::fp8 ? 128 : depth));
          for (std::int64_t k = 0; k < depth; ++k)
            for (std::int64_t column = 0; column < columns; ++column)
              transposed.push_back(
                  rhs_of_columns.elements<float>()[static_cast<std::size_t>(column * depth + k)]);
          const Array rhs = plain::array_of(DType::float32, {1, depth, columns}, transposed);
          const auto compared = [&](const Array& given) {
            return of_one_group(lhs, rhs, given, accumulator);
          };
          const Against right = compared(plain::array_of(DType::float32, {rows, columns}, out));
          CHECK_MESSAGE(right.agrees(), right.largest);
          // Of many products of random signs, a fast sum keeps too few bits to tell.
          if (is_signed && accumulator == Accumulator::fp8_fast && depth > 512) continue;
          for (double& x : out) x *= 0.5;
          CHECK_FALSE(compared(plain::array_of(DType::float32, {rows, columns}, out)).agrees());
        }
}

TEST_CASE("a right product of any type agrees, by float64 and by the own result") {
  std::mt19937_64 engine(31);
  const Sizes sizes{20, 0, 1, 60, 20};
  for (const DType type : plain::kFloats)
    for (const DType result : plain::kFloats)
      for (const bool adds : {false, true}) {
        const Array lhs = plain::random(type, {110, 21}, engine),
                    rhs = plain::random(type, {4, 21, 40}, engine);
        const Array old = plain::random(result, {110, 40}, engine);
        GroupedMatmulOptions options;
        options.dtype = result;
        if (adds) options.existing_out = old.view(), options.existing = Existing::add;
        const Array out = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes), options);
        for (const auto& effort : {matmul::CheckEffort{}, matmul::CheckEffort{0, 0}}) {
          const Against a = against(lhs, rhs, sizes, out, options, effort, Explain::yes);
          CHECK(a.agrees());
          CHECK(a.elements == 110 * 40);
          CHECK(a.largest <= 1);
          CHECK(a.explanations.empty());
          CHECK((a.method == Against::Method::float64) == (effort.every_element > 0));
        }
      }
}

TEST_CASE(
    "a given product is judged by its own type: bfloat16 for a float32 result, float32 for a float64 one") {
  std::mt19937_64 engine(32);
  for (const auto& [type, computed, narrower] :
       {std::tuple{DType::float32, DType::float32, DType::bfloat16},
        std::tuple{DType::float64, DType::float64, DType::float32}}) {
    const Array lhs = plain::random(type, {30, 21}, engine), rhs = plain::random(type, {2, 21, 10}, engine);
    GroupedMatmulOptions options;
    options.dtype = computed;
    const auto values =
        plain::doubles(grouped_matmul(lhs.view(), rhs.view(), *plain::source({10, 20}), options).view());
    const Array given = plain::array_of(narrower, {30, 10}, values);
    CHECK(against(lhs, rhs, {10, 20}, given, options).agrees());
    CHECK_FALSE(against(lhs, rhs, {10, 20}, plain::array_of(computed, {30, 10}, plain::doubles(given.view())),
                        options)
                    .agrees());
  }
}

TEST_CASE("one wrong element anywhere is found, whatever the size, with its group and row") {
  std::mt19937_64 engine(33);
  const Sizes sizes{3, 40, 0, 50};
  const Array lhs = plain::random(DType::float32, {100, 20}, engine),
              rhs = plain::random(DType::float32, {4, 20, 30}, engine);
  const Array right = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes));
  for (const std::int64_t place : {0, 29, 1311, 92 * 30 + 7, 95 * 30 + 1})
    for (const auto& effort : {matmul::CheckEffort{}, matmul::CheckEffort{0, 0}}) {
      CAPTURE(place);
      Array given = Array::copy_of(right.view());
      given.elements<float>()[static_cast<std::size_t>(place)] += 0.01f;
      const Against a = against(lhs, rhs, sizes, given, GroupedMatmulOptions{}, effort);
      CHECK(a.beyond == 1);
      REQUIRE(a.worst.size() == 1);
      CHECK(a.worst[0].index == Shape{place / 30, place % 30});
      CHECK(a.worst[0].size == doctest::Approx(0.01).epsilon(0.01));
      REQUIRE(a.parts.size() == 1);
      const std::int64_t row = place / 30;
      CHECK(a.parts[0].index == (row < 3 ? 0 : row < 43 ? 1 : row < 93 ? 3 : -1));
      CHECK(rows_of(a) == std::to_string(row));
      CHECK(a.where.back().axis == "columns");
      CHECK(a.where.back().indices == std::to_string(place % 30));
      CHECK(a.largest > 1);
    }
}

TEST_CASE("NaN, infinities and zeros that do not belong there are counted apart") {
  std::mt19937_64 engine(34);
  const Array lhs = plain::random(DType::float32, {20, 8}, engine),
              rhs = plain::random(DType::float32, {1, 8, 5}, engine);
  Array given = grouped_matmul(lhs.view(), rhs.view(), *plain::source({20}));
  given.elements<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  given.elements<float>()[7] = std::numeric_limits<float>::infinity();
  given.elements<float>()[50] = 0;
  const Against a = against(lhs, rhs, {20}, given, GroupedMatmulOptions{});
  CHECK(a.beyond == 3);
  CHECK(a.arrays[0].not_numbers == 2);
  CHECK(a.arrays[0].zeros == 1);
  CHECK(rows_of(a) == "0-1, 10");
}

TEST_CASE("the comparison is the same for any number of threads") {
  std::mt19937_64 engine(35);
  const Array lhs = plain::random(DType::float32, {400, 20}, engine),
              rhs = plain::random(DType::float32, {2, 20, 300}, engine);
  const Array noise = plain::random(DType::float32, {400, 300}, engine);
  std::optional<std::string> text;
  for (const int threads : {1, 2, 7}) {
    const Threads set(threads);
    const std::string now = to_json(
        describe(against(lhs, rhs, {150, 200}, noise, GroupedMatmulOptions{}, {}, Explain::yes)), {"c", {}});
    if (!text) text = now;
    CHECK(now == *text);
  }
}

TEST_CASE("mistakes are named beside own results, too, where nothing is evaluated in full") {
  std::mt19937_64 engine(36);
  const Array lhs = plain::random(DType::bfloat16, {90, 40}, engine),
              rhs = plain::random(DType::bfloat16, {2, 40, 24}, engine);
  Array swapped(DType::bfloat16, rhs.shape());
  const std::int64_t half = rhs.bytes() / 2;
  std::copy_n(rhs.data(), half, swapped.data() + half);
  std::copy_n(rhs.data() + half, half, swapped.data());
  const Array given = grouped_matmul(lhs.view(), swapped.view(), *plain::source({50, 40}));
  const Against a = against(lhs, rhs, {50, 40}, given, GroupedMatmulOptions{}, {0, 0}, Explain::yes);
  CHECK(a.method == Against::Method::own_result);
  REQUIRE(a.explanations.size() == 1);
  CHECK(a.explanations[0].text == "groups 0 and 1 hold the weights of each other");
}

TEST_CASE("a given product of another shape is an error about it") {
  const Array lhs(DType::float32, {2, 3}), rhs(DType::float32, {1, 3, 4}), given(DType::float32, {2, 5});
  try {
    against(lhs, rhs, {2}, given, GroupedMatmulOptions{});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == Error::Kind::input);
    CHECK(error.subject() == "given");
  }
}

TEST_CASE("wrong rows of no group are counted apart from those of groups") {
  std::mt19937_64 engine(37);
  const Sizes sizes{3, 40, 0, 50};  // and 7 rows of none
  const Array lhs = plain::random(DType::float32, {100, 20}, engine),
              rhs = plain::random(DType::float32, {4, 20, 30}, engine);
  const Array right = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes));
  for (const auto& effort : {matmul::CheckEffort{}, matmul::CheckEffort{0, 0}}) {
    Array given = Array::copy_of(right.view());
    const auto values = given.elements<float>();
    values[95 * 30 + 4] = std::numeric_limits<float>::quiet_NaN();
    values[99 * 30 + 1] = 1e30f;
    values[99 * 30 + 2] = std::numeric_limits<float>::infinity();
    const Against garbage = against(lhs, rhs, sizes, given, GroupedMatmulOptions{}, effort);
    REQUIRE(garbage.no_group);
    CHECK(garbage.no_group->rows == 7);
    CHECK(garbage.no_group->elements == 7 * 30);
    CHECK(garbage.no_group->beyond == 3);
    CHECK(garbage.no_group->not_numbers == 2);
    CHECK(garbage.groups_agree());
    CHECK_FALSE(garbage.agrees());
    values[92 * 30] += 1;
    CHECK_FALSE(against(lhs, rhs, sizes, given, GroupedMatmulOptions{}, effort).groups_agree());
    given = Array::copy_of(right.view());
    given.elements<float>()[92 * 30] += 1;
    const Against wrong = against(lhs, rhs, sizes, given, GroupedMatmulOptions{}, effort);
    CHECK_FALSE(wrong.no_group);
    CHECK_FALSE(wrong.groups_agree());
  }
}
