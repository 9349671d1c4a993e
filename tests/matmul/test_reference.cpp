// The plain evaluation against loops of the test's own, and its pieces.
#include "matmul/reference.hpp"

#include <doctest/doctest.h>

#include "support/plain_matmul.hpp"

using namespace ejk;
using plain::Sizes;

namespace {

template <class Options>
void evaluate(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes, const Options& options,
              Array& out) {
  matmul::reference_product(plain::problem_of(lhs, rhs, *plain::source(sizes), options),
                            {lhs, rhs, options.existing_out}, out.data());
}

}  // namespace

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
            Array out = plain::filled(result, {50, 9}, std::nan(""));
            evaluate(lhs.view(), rhs.view(), sizes, options, out);
            CHECK(plain::difference(out, plain::grouped(lhs.view(), rhs.view(), sizes, options)) == "");
          }
        const Array a = plain::random(left, {9, 50}, engine), b = plain::random(right, {50, 300}, engine);
        TransposedGroupedMatmulOptions how;
        how.dtype = result;
        how.group_offset = 1;
        how.num_actual_groups = 2;
        const Array before = plain::random(result, {2, 9, 300}, engine);
        for (const bool existing : {false, true}) {
          if (existing) how.existing_out = before.view();
          Array out = plain::filled(result, {2, 9, 300}, std::nan(""));
          evaluate(a.view(), b.view(), sizes, how, out);
          CHECK(plain::difference(out, plain::transposed(a.view(), b.view(), sizes, how)) == "");
        }
      }
}

TEST_CASE("the plain evaluation rounds a float64 sum to 16 bits once") {
  // Just above and below the middle between 1 and the next number: float32 would make it the middle.
  for (const double sign : {1.0, -1.0}) {
    for (const auto& type : {std::pair{DType::float16, 0x1p-11}, {DType::bfloat16, 0x1p-8}}) {
      const DType dtype = type.first;
      const double half = type.second;
      for (const double beside : {0x1p-40, 0.0, -0x1p-40}) {
        CAPTURE(name_of(dtype));
        CAPTURE(beside);
        Array lhs(DType::float64, {1, 2}), rhs(DType::float64, {1, 2, 1});
        lhs.elements<double>()[0] = lhs.elements<double>()[1] = sign;
        rhs.elements<double>()[0] = 1 + half, rhs.elements<double>()[1] = beside;
        GroupedMatmulOptions options;
        options.dtype = dtype;
        Array out(dtype, {1, 1});
        evaluate(lhs.view(), rhs.view(), {1}, options, out);
        double value = 0;
        core::load(dtype, out.data(), 2, 1, &value);
        CHECK(value == sign * (beside > 0 ? 1 + 2 * half : 1));
      }
    }
  }
}

TEST_CASE("the plain evaluation takes any strides and a result that is existing_out's own memory") {
  std::mt19937_64 engine(2);
  const Sizes sizes{3, 0, 4};
  const Array lhs = plain::random(DType::float32, {8, 5}, engine);
  const Array rhs = plain::random(DType::bfloat16, {3, 6, 5}, engine);
  for (int how = 0; how < 4; ++how) {
    const plain::Laid a(lhs, how), b(rhs, how);
    GroupedMatmulOptions options;
    options.transpose_rhs = true;
    options.existing = Existing::add;
    Array out = plain::random(DType::float32, {8, 6}, engine);
    const Array old = Array::copy_of(out.view());
    options.existing_out = old.view();
    const auto expected = plain::grouped(lhs.view(), rhs.view(), sizes, options);
    options.existing_out = out.view();
    evaluate(a.view(), b.view(), sizes, options, out);
    CHECK(plain::difference(out, expected) == "");
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
