// A layer of experts against plain loops, in any strides and with choices of no expert.
#include "ejk/route.hpp"

#include <doctest/doctest.h>

#include "support/failure.hpp"
#include "support/moe.hpp"

using namespace ejk;

TEST_CASE("a layer of experts is that of plain loops") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float64}) {
    CAPTURE(name_of(type));
    const plain::MoeLayer layer = plain::moe_layer(type, 37, 3, 5);
    const std::vector<double> expected =
        plain::doubles(layer.combined(layer.expert_rows(), layer.weight_values).view());
    const auto near = [&](const Array& out) {
      const std::vector<double> values = plain::doubles(out.view());
      double most = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        most = std::max(most, std::abs(values[i] - expected[i]));
      return most < (type == DType::bfloat16 ? 0.05 : 1e-5);
    };
    CHECK(near(moe(layer.operands(), Activation::silu, DType::float32)));
    MoeOperands turned = layer.operands();
    const ArrayView down = turned.down;
    Array copy(down.dtype, {5, 40, 24});  // (experts, hidden, inter)
    ArrayView other = down;
    std::swap(other.shape[1], other.shape[2]), std::swap(other.strides[1], other.strides[2]);
    copy_elements(other, copy.data());
    turned.down = copy.view();
    std::swap(turned.down.shape[1], turned.down.shape[2]);
    std::swap(turned.down.strides[1], turned.down.strides[2]);
    CHECK(near(moe(turned, Activation::silu, DType::float32)));
  }
}

TEST_CASE("choices of no expert add nothing, and none is a row of zeros") {
  plain::MoeLayer layer = plain::moe_layer(DType::float32, 6, 2, 6);
  const auto ids = layer.ids.elements<std::int32_t>();
  ids[0] = ids[1] = ids[5] = -1;
  const Array out = moe(layer.operands(), Activation::gelu, DType::float32);
  layer.weight_values[0] = layer.weight_values[1] = layer.weight_values[5] = 0;
  const auto rows = layer.expert_rows([](auto, auto) {
    return plain::MoeLayer::Expert{[](double g) { return g * 0.5 * std::erfc(-g / std::sqrt(2.0)); }, false,
                                   1};
  });
  const auto expected = plain::doubles(layer.combined(rows, layer.weight_values).view());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(out.elements<float>()[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  CHECK(out.elements<float>()[0] == 0);
}

TEST_CASE("operands that do not fit are named") {
  const plain::MoeLayer layer = plain::moe_layer(DType::float32, 6, 2, 6);
  const auto run = [](const MoeOperands& operands) { moe(operands, Activation::silu, DType::float32); };
  MoeOperands wrong = layer.operands();
  wrong.down = wrong.gate;
  CHECK(plain::failure([&] { run(wrong); }).find("(5, 24, 40)") != std::string::npos);
  wrong = layer.operands();
  wrong.topk_weights = wrong.x;
  CHECK(plain::failure([&] { run(wrong); }).find("(6, 2)") != std::string::npos);
  const Array odd(DType::float32, {2, 4, 3});
  CHECK(plain::failure([&] { split_gate_and_up(odd.view()); }).find("2 inter") != std::string::npos);
}
