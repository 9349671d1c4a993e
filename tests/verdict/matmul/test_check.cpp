// Check of grouped products: correct ones pass, wrong ones fail, whole and in samples.
#include "verdict/matmul/against.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/matmul.hpp"
#include "support/threads.hpp"

using namespace ejk;
using plain::kNan;
using plain::Sizes;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr matmul::CheckEffort kSamples{0, 5000};  // never every element

template <class Options>
MatmulCheck check_views(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                        const Options& options, const ArrayView& out,
                        const matmul::CheckEffort& effort = {}) {
  return matmul::check(plain::problem_of(lhs, rhs, *plain::source(sizes), options),
                       {lhs, rhs, options.existing_out}, out, options.progress, effort);
}

MatmulCheck check(const Array& lhs, const Array& rhs, const Sizes& sizes, const Array& out,
                  const matmul::CheckEffort& effort = {}, GroupedMatmulOptions options = {}) {
  options.dtype = out.dtype();
  return check_views(lhs.view(), rhs.view(), sizes, options, out.view(), effort);
}

void set(Array& array, std::int64_t index, double value) {
  const Array one = plain::array_of(array.dtype(), {1}, {value});
  std::copy_n(one.data(), one.bytes(), array.data() + index * one.bytes());
}

nlohmann::json json_of(const MatmulCheck& result) {
  return nlohmann::json::parse(to_json(describe(result), {"c", {}})).at("result");
}

}  // namespace

TEST_CASE("a right result passes in all types, element by element and by samples") {
  std::mt19937_64 engine(1);
  for (const DType left : plain::kFloats)
    for (const DType right : plain::kFloats)
      for (const DType result : plain::kFloats) {
        CAPTURE(name_of(left));
        CAPTURE(name_of(right));
        CAPTURE(name_of(result));
        const Sizes sizes{20, 0, 1, 60, 20};
        const Array lhs = plain::random(left, {110, 21}, engine),
                    rhs = plain::random(right, {4, 21, 40}, engine);
        const Array old = plain::random(result, {110, 40}, engine);
        GroupedMatmulOptions options;
        options.dtype = result;
        for (const int use : {0, 1, 2}) {
          if (use > 0) options.existing_out = old.view();
          options.existing = use == 2 ? Existing::add : Existing::keep;
          const Array out = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes), options);
          const MatmulCheck whole = check(lhs, rhs, sizes, out, {}, options);
          CHECK(whole.passed());
          CHECK(whole.method == MatmulCheck::Method::every_element);
          CHECK(whole.elements == 110 * 40);
          CHECK(whole.compared == whole.elements);
          CHECK(whole.compared_other == 29 * 40);
          CHECK(whole.largest_ulps.has_value());
          CHECK_FALSE(whole.worst.has_value());
          const MatmulCheck part = check(lhs, rhs, sizes, out, kSamples, options);
          CHECK(part.passed());
          CHECK(part.method == MatmulCheck::Method::sampled_rows);
          CHECK(part.rows_by_vector == 81);
          CHECK(part.compared >= (29 + 5) * 40);
          CHECK(part.compared < part.elements);
        }
        const Array a = plain::random(left, {11, 110}, engine), b = plain::random(right, {110, 40}, engine);
        TransposedGroupedMatmulOptions how;
        how.dtype = result;
        how.group_offset = 1;
        const Array before = plain::random(result, {4, 11, 40}, engine);
        for (const bool existing : {false, true}) {
          if (existing) how.existing_out = before.view();
          const Array out = transposed_grouped_matmul(a.view(), b.view(), *plain::source(sizes), how);
          for (const auto& effort : {matmul::CheckEffort{}, kSamples}) {
            const auto c = check_views(a.view(), b.view(), sizes, how, out.view(), effort);
            CHECK(c.passed());
            CHECK(c.compared > 0);
          }
        }
      }
}

TEST_CASE("one wrong element is found, with its index and both values") {
  std::mt19937_64 engine(2);
  const Sizes sizes{30, 50};
  const Array lhs = plain::random(DType::float32, {90, 20}, engine);
  const Array rhs = plain::random(DType::float32, {2, 20, 40}, engine);
  const Array right = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes));
  for (const std::int64_t place : {0, 39, 1200, 57 * 40 + 13, 80 * 40 - 1, 85 * 40 + 3})
    for (const auto& effort : {matmul::CheckEffort{}, kSamples}) {
      CAPTURE(place);
      Array out = Array::copy_of(right.view());
      const double was = out.elements<float>()[static_cast<std::size_t>(place)];
      set(out, place, was + 3);
      set(out, 40 * 40 + 1, out.elements<float>()[40 * 40 + 1] + 1);
      const MatmulCheck c = check(lhs, rhs, sizes, out, effort);
      CHECK_FALSE(c.passed());
      CHECK(c.violating == 2);
      REQUIRE(c.largest_absolute.has_value());
      CHECK(c.largest_absolute->index == Shape{place / 40, place % 40});
      CHECK(c.largest_absolute->size == doctest::Approx(3));
      CHECK(c.largest_absolute->value == doctest::Approx(was + 3));
      CHECK(c.largest_absolute->reference == doctest::Approx(was));
      REQUIRE(c.worst.has_value());
      const auto json = json_of(c);
      CHECK(json.at("passed") == false);
      CHECK(json.at("violating") == 2);
      CHECK(json.at("differences")[3].at("kind") == "worst");
    }
}

TEST_CASE("the worst element is one that violates, even where another differs by more") {
  // Row 0 sums large numbers, of which 0.01 is within the rounding; row 1 small ones.
  const Array lhs = plain::array_of(DType::float32, {2, 1}, {1e6, 1}),
              rhs = plain::filled(DType::float32, {1, 1, 1}, 1);
  const Array out = plain::array_of(DType::float32, {2, 1}, {1e6 + 1, 1.001});
  const MatmulCheck c = check(lhs, rhs, {2}, out);
  CHECK(c.violating == 1);
  REQUIRE(c.worst.has_value());
  CHECK(c.worst->index == Shape{1, 0});
  CHECK(c.worst->size == doctest::Approx(0.001).epsilon(1e-3));
  CHECK(c.largest_absolute->index == Shape{0, 0});
  CHECK(c.largest_absolute->size == 1);
  CHECK(c.largest_relative->index == Shape{1, 0});
  CHECK(c.largest_ulps->size == doctest::Approx(0.001 * 0x1p23).epsilon(1e-3));
}

TEST_CASE("NaN and infinities are compared by kind") {
  const Array lhs = plain::array_of(DType::float32, {4, 1}, {kNan, kInfinity, -kInfinity, 1});
  const Array rhs = plain::filled(DType::float32, {1, 1, 1}, 1);
  const auto violating = [&](const std::vector<double>& values) {
    std::int64_t count = -1;
    for (const auto& effort : {matmul::CheckEffort{}, kSamples}) {
      const MatmulCheck c = check(lhs, rhs, {4}, plain::array_of(DType::float32, {4, 1}, values), effort);
      CHECK(c.passed() == (c.violating == 0));
      if (count >= 0) CHECK(c.violating == count);
      count = c.violating;
      if (count > 0) CHECK(c.worst->size == kInfinity);
    }
    return count;
  };
  CHECK(violating({kNan, kInfinity, -kInfinity, 1}) == 0);
  CHECK(violating({0, kInfinity, -kInfinity, 1}) == 1);
  CHECK(violating({kNan, -kInfinity, kInfinity, 1}) == 2);
  CHECK(violating({kNan, kInfinity, -kInfinity, kNan}) == 1);
  CHECK(violating({kNan, 1e30, kNan, kInfinity}) == 3);
}

TEST_CASE("results beyond their type are infinite, and sums may overflow on the way") {
  const Array lhs = plain::array_of(DType::float32, {4, 1}, {65519, 65520, -70000, 60000});
  const Array one = plain::filled(DType::float32, {1, 1, 1}, 1);
  const auto half = [&](const std::vector<double>& v) {
    return check(lhs, one, {4}, plain::array_of(DType::float16, {4, 1}, v)).violating;
  };
  CHECK(half({65504, kInfinity, -kInfinity, 60000}) == 0);
  CHECK(half({65504, kInfinity, kInfinity, 60000}) == 1);
  CHECK(half({65504, 65504, -65504, kInfinity}) == 2);
  // 1e30 · 1e30 is infinite in float32; the sum of it and its negative may be anything but a wrong number.
  const Array a = plain::array_of(DType::float32, {1, 3}, {1e30, -1e30, 1}),
              b = plain::array_of(DType::float32, {1, 3, 1}, {1e30, 1e30, 1});
  for (const double value : {kNan, kInfinity, -kInfinity, 1.0})
    CHECK(check(a, b, {1}, plain::filled(DType::float32, {1, 1}, value)).passed());
}

TEST_CASE("rows in which nothing is computed are 0 or existing_out's exactly") {
  std::mt19937_64 engine(3);
  const Sizes sizes{2, 3, 2};
  const Array lhs = plain::random(DType::float32, {10, 4}, engine),
              rhs = plain::random(DType::float32, {1, 4, 5}, engine);
  GroupedMatmulOptions options;
  options.group_offset = 1;
  const auto violating = [&](const Array& out, const matmul::CheckEffort& effort) {
    return check(lhs, rhs, sizes, out, effort, options).violating;
  };
  Array out = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes), options);
  for (const auto& effort : {matmul::CheckEffort{}, kSamples}) CHECK(violating(out, effort) == 0);
  set(out, 0, 1e-30);
  set(out, 6 * 5, 1e-30);
  set(out, 49, 1e-30);
  for (const auto& effort : {matmul::CheckEffort{}, kSamples}) CHECK(violating(out, effort) == 3);
  const Array old = plain::filled(DType::float32, {10, 5}, 1e-30);
  options.existing_out = old.view();
  for (const auto& effort : {matmul::CheckEffort{}, kSamples}) CHECK(violating(out, effort) == 7 * 5 - 3);
}

TEST_CASE("bfloat16 products may take subnormal factors for 0, others may not") {
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    const Array lhs = plain::filled(dtype, {1, 1}, 0x1p-130), rhs = plain::filled(dtype, {1, 1, 1}, 0x1p100);
    const Array out(DType::float32, {1, 1});
    CHECK(check(lhs, rhs, {1}, out).passed() == (dtype == DType::bfloat16));
  }
}

TEST_CASE("the random vector refutes what samples do not meet, and the report counts what is left") {
  std::mt19937_64 engine(4);
  const Sizes sizes{4000};
  const Array lhs = plain::random(DType::float32, {4000, 8}, engine),
              rhs = plain::random(DType::float32, {1, 8, 16}, engine);
  const Array right = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes));
  Array out = Array::copy_of(right.view());
  for (std::int64_t row = 1000; row < 3000; ++row) set(out, row * 16 + row % 16, 50);
  const MatmulCheck c = check(lhs, rhs, sizes, out, {0, 1000});
  CHECK_FALSE(c.passed());
  CHECK(c.violating >= 16);
  CHECK(c.rows_refuted + c.violating >= 2000);
  CHECK(json_of(c).at("rows_refuted") == c.rows_refuted);

  // Rows with NaN, as they should be, are compared as far as there is time, and counted where there is not.
  Array nan = Array::copy_of(lhs.view());
  for (std::int64_t row = 0; row < 2000; ++row) set(nan, row * 8, kNan);
  const Array out_of_nan = grouped_matmul(nan.view(), rhs.view(), *plain::source(sizes));
  const MatmulCheck open = check(nan, rhs, sizes, out_of_nan, {0, 1000});
  CHECK(open.passed());
  CHECK(open.rows_open > 1900);
}

TEST_CASE("first and last rows of every group are among the samples, some between, always the same") {
  std::mt19937_64 engine(5);
  const Sizes sizes{1, 2, 3, 500, 0, 77};
  const Array lhs = plain::random(DType::float32, {583, 3}, engine),
              rhs = plain::random(DType::float32, {6, 3, 2}, engine);
  const Array out = grouped_matmul(lhs.view(), rhs.view(), *plain::source(sizes));
  // With nothing to spare: 1 + 2 + 2 + 2 + 2 rows.
  CHECK(check(lhs, rhs, sizes, out, {0, 0}).compared == 9 * 2);
  const MatmulCheck some = check(lhs, rhs, sizes, out, {0, 583 * 6 / 10});
  CHECK(some.compared > 50 * 2);
  CHECK(some.compared < 70 * 2);
  for (const int threads : {1, 2, 7}) {
    const Threads set(threads);
    const MatmulCheck again = check(lhs, rhs, sizes, out, {0, 583 * 6 / 10});
    CHECK(again.compared == some.compared);
    CHECK(again.largest_ulps->index == some.largest_ulps->index);
    CHECK(again.largest_absolute->index == some.largest_absolute->index);
  }
}

TEST_CASE("a comparison of zeros says that it proves little") {
  const Array lhs(DType::float32, {30, 4}), rhs = plain::filled(DType::float32, {1, 4, 10}, 1);
  const Array zeros(DType::float32, {30, 10});
  CHECK(to_text(describe(check(lhs, rhs, {30}, zeros))).find("proves little: of 300 elements compared, 0") !=
        std::string::npos);
  CHECK(to_text(describe(check(lhs, rhs, {0}, zeros))).find("Nothing was computed") != std::string::npos);
  const Array ones = plain::filled(DType::float32, {30, 4}, 1);
  const Array fours = plain::filled(DType::float32, {30, 10}, 4);
  CHECK(to_text(describe(check(ones, rhs, {30}, fours))).find("little") == std::string::npos);
}

TEST_CASE("products without an element pass, and a result of another kind is an error") {
  for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{{0, 3, 4}, {3, 0, 4}, {3, 4, 0}}) {
    const Array lhs(DType::float32, {m, k}), rhs(DType::float32, {1, k, n}), out(DType::float32, {m, n});
    for (const auto& effort : {matmul::CheckEffort{}, kSamples})
      CHECK(check(lhs, rhs, {m}, out, effort).passed());
  }
  const Array lhs(DType::float32, {2, 3}), rhs(DType::float32, {1, 3, 4}), out(DType::float32, {2, 5});
  CHECK_THROWS_WITH_AS(
      check_results(plain::plan_of(lhs.view(), rhs.view(), *plain::source({2}), GroupedMatmulOptions{}),
                    lhs.view(), rhs.view(), {}, out.view()),
      "out is float32 (2, 5); it was planned as float32 (2, 4)", Error);
}
