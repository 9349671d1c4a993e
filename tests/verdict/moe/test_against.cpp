// Right layers of experts are within the bound, three times their error is not.
#include <doctest/doctest.h>

#include "ejk/matmul_check.hpp"
#include "support/moe.hpp"

using namespace ejk;

TEST_CASE("layers that round each step to their type are right, three times the largest error is not") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    double most = 0;
    for (std::uint64_t seed = 1; seed < 9; ++seed) {
      CAPTURE(name_of(type));
      CAPTURE(seed);
      const auto k = static_cast<std::int64_t>(1 + seed % 4);
      const plain::MoeLayer layer = plain::moe_layer(type, 21, k, seed, 48, 32);
      const Array out = layer.combined(layer.expert_rows(), layer.weight_values);
      const Against against = compare_moe(layer.operands(), Activation::silu, out.view(), {}, Explain::yes);
      CHECK(against.agrees());
      CHECK(against.arrays.size() == 1);
      most = std::max(most, against.largest);
      const Array own = moe(layer.operands(), Activation::silu, type);
      CHECK(compare_moe(layer.operands(), Activation::silu, own.view(), {}, Explain::no).agrees());
    }
    CHECK(most < 0.7);
    CHECK(3 * most > 0.6);
  }
}

TEST_CASE("noise in a layer gets no explanation") {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  for (const DType type : {DType::float32, DType::bfloat16}) {
    const plain::MoeLayer layer = plain::moe_layer(type, 40, 2, 9);
    for (const double size : {0.1, 1.0}) {
      std::vector<double> values =
          plain::doubles(layer.combined(layer.expert_rows(), layer.weight_values).view());
      for (double& value : values) value += size * normal(engine);
      const Array out = plain::array_of(type, {40, 40}, values);
      const Against against = compare_moe(layer.operands(), Activation::silu, out.view(), {}, Explain::yes);
      CHECK_FALSE(against.agrees());
      CHECK(against.explanations.empty());
    }
  }
}
