// A layer of experts as two grouped products of the rows of choices. Tokens are processed some at a time, so that
// memory is that of the weights. Cost: 6 hidden inter floating-point operations a choice.
// tests: tests/matmul/test_moe.cpp
#include "matmul/moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/grouped_matmul.hpp"

namespace ejk {

namespace matmul {

namespace {

ArrayView rows_of(const ArrayView& array, IndexRange rows) {
  ArrayView part = array;
  part.data += rows.begin * array.strides[0];
  part.shape[0] = rows.count();
  return part;
}

// x of each row's token in `dtype`, times the weight of the choice where `weights` is not null.
Array gathered(const ArrayView& x, const Route& route, DType dtype, const double* weights) {
  const auto token = route.token.elements<std::int32_t>(), order = route.order.elements<std::int32_t>();
  const std::int64_t hidden = x.shape[1];
  Array rows(dtype, {std::ssize(token), hidden});
  core::parallel_for(std::ssize(token), 2 * static_cast<double>(rows.size()), [&](std::int64_t r) {
    const auto at = static_cast<std::size_t>(r);
    std::vector<double> row(static_cast<std::size_t>(hidden));
    core::load(x.dtype, x.data + token[at] * x.strides[0], x.strides[1], hidden, row.data());
    if (weights != nullptr)
      for (double& value : row) value *= weights[order[at]];
    core::store(dtype, row.data(), hidden, rows.data() + r * hidden * size_of(dtype));
  });
  return rows;
}

// The group sizes with the matrices of expert e + step: rows of e keep their place.
Array product(const ArrayView& rows, const ArrayView& matrices, const Route& route, DType sums,
              std::int64_t step) {
  GroupedMatmulOptions options;
  options.dtype = sums;
  if (step == 0) return grouped_matmul(rows, matrices, make_source(route.group_sizes.view()), options);
  // Groups one at a time.
  Array out(sums, {rows.shape[0], matrices.shape[2]});
  const std::int64_t experts = matrices.shape[0];
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int32_t count = route.group_sizes.elements<std::int32_t>()[static_cast<std::size_t>(e)];
    if (count == 0) continue;
    const std::int64_t other = (e + step + experts) % experts;
    const Array size = Array::from<std::int32_t>({1}, std::span(&count, 1));
    const Array part =
        grouped_matmul(rows_of(rows, {begin, begin + count}), rows_of(matrices, {other, other + 1}),
                       make_source(size.view()), options);
    std::memcpy(out.data() + begin * matrices.shape[2] * size_of(sums), part.data(),
                static_cast<std::size_t>(part.bytes()));
    begin += count;
  }
  const std::int64_t used = begin * matrices.shape[2] * size_of(sums);
  std::memset(out.data() + used, 0, static_cast<std::size_t>(out.bytes() - used));
  return out;
}

template <class Real>
void activate_rows(const MoeSteps& steps, const Array& gate, const Array& up, Array& h) {
  const auto g = gate.elements<Real>(), u = up.elements<Real>();
  const auto out = h.elements<Real>();
  constexpr std::int64_t kAtOnce = 4096;
  core::parallel_for(core::ceil_div(h.size(), kAtOnce), 10 * static_cast<double>(h.size()),
                     [&](std::int64_t part) {
                       const auto end = static_cast<std::size_t>(std::min(h.size(), (part + 1) * kAtOnce));
                       for (auto i = static_cast<std::size_t>(part * kAtOnce); i < end; ++i)
                         out[i] = static_cast<Real>(activate(steps.activation, g[i]) * u[i]);
                     });
}

}  // namespace

std::vector<double> numbers_of(const ArrayView& array) {
  const Array all = Array::copy_of(array);
  std::vector<double> numbers(static_cast<std::size_t>(all.size()));
  core::load(all.dtype(), all.data(), size_of(all.dtype()), all.size(), numbers.data());
  return numbers;
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      break;
  }
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

double activation_slope(Activation activation, double x) {
  // Central difference: it is needed to a few digits.
  const double step = 1e-4 * std::max(1.0, std::abs(x));
  return (activate(activation, x + step) - activate(activation, x - step)) / (2 * step);
}

std::int64_t bytes_of_token(const MoeTypes& types, std::int64_t element) {
  return types.top_k * (2 * types.x.shape[1] + 3 * types.gate.shape[2]) * element + 64 * types.top_k;
}

std::int64_t tokens_at_once(const MoeTypes& types, std::int64_t bytes_of_token) {
  constexpr std::int64_t kLeastBytes = std::int64_t{64} << 20, kMostTokens = 16384;
  const std::int64_t bytes = std::max(kLeastBytes, types.gate.bytes() + types.down.bytes());
  return std::clamp<std::int64_t>(bytes / std::max<std::int64_t>(bytes_of_token, 1), 1, kMostTokens);
}

ExpertRows expert_rows(const MoeOperands& o, IndexRange tokens, DType sums, const MoeSteps& steps) {
  ExpertRows rows;
  const Array ids = Array::copy_of(rows_of(o.topk_ids, tokens));
  rows.route = make_route(make_source(ids.view(), "topk_ids"), o.gate.shape[0]);
  std::vector<double> weights;
  if (steps.weighs_input) weights = numbers_of(rows_of(o.topk_weights, tokens));
  const DType type = sums == DType::float64 || steps.weighs_input ? sums : o.x.dtype;
  {
    const Array x =
        gathered(rows_of(o.x, tokens), rows.route, type, weights.empty() ? nullptr : weights.data());
    const bool swap = steps.exchanges_gate_and_up;
    rows.gate = product(x.view(), swap ? o.up : o.gate, rows.route, sums, steps.expert_step);
    rows.up = product(x.view(), swap ? o.gate : o.up, rows.route, sums, steps.expert_step);
  }
  rows.h = Array(sums, rows.gate.shape());
  if (sums == DType::float64)
    activate_rows<double>(steps, rows.gate, rows.up, rows.h);
  else
    activate_rows<float>(steps, rows.gate, rows.up, rows.h);
  rows.y = product(rows.h.view(), o.down, rows.route, sums, steps.expert_step);
  return rows;
}

}  // namespace matmul

namespace {

void require_operand(bool holds, const char* name, const ArrayView& array, const std::string& wanted) {
  if (!holds)
    throw core::invalid("it is {} {}; it must be {}", name_of(array.dtype), to_string(array.shape), wanted)
        .about(name);
}

}  // namespace

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      break;
  }
  return "gelu-tanh";
}

GateAndUp split_gate_and_up(const ArrayView& both) {
  if (both.rank() != 3 || both.shape[2] % 2 != 0)
    throw core::invalid("it is {} {}; gate and up together are (experts, hidden, 2 inter)",
                        name_of(both.dtype), to_string(both.shape))
        .about("gate");
  GateAndUp halves{both, both};
  halves.gate.shape[2] = halves.up.shape[2] = both.shape[2] / 2;
  halves.up.data += both.shape[2] / 2 * both.strides[2];
  return halves;
}

MoeTypes types_of(const MoeOperands& o) {
  const auto is_matrix = [](const ArrayView& array, std::int64_t rank) {
    return array.rank() == rank && is_float(array.dtype);
  };
  require_operand(is_matrix(o.x, 2), "x", o.x, "(tokens, hidden) of a float type");
  require_operand(is_matrix(o.gate, 3) && o.gate.shape[1] == o.x.shape[1], "gate", o.gate,
                  fmt::format("(experts, {}, inter) of a float type", o.x.shape[1]));
  require_operand(is_matrix(o.up, 3) && o.up.shape == o.gate.shape, "up", o.up,
                  fmt::format("{} of a float type", to_string(o.gate.shape)));
  const Shape down{o.gate.shape[0], o.gate.shape[2], o.x.shape[1]};
  require_operand(is_matrix(o.down, 3) && o.down.shape == down, "down", o.down,
                  fmt::format("{} of a float type", to_string(down)));
  require_operand(
      o.topk_ids.rank() == 2 && o.topk_ids.shape[0] == o.x.shape[0] && is_integer(o.topk_ids.dtype),
      "topk_ids", o.topk_ids, fmt::format("({}, k) of an integer type", o.x.shape[0]));
  require_operand(is_float(o.topk_weights.dtype) && o.topk_weights.shape == o.topk_ids.shape, "topk_weights",
                  o.topk_weights, fmt::format("{} of a float type", to_string(o.topk_ids.shape)));
  return {type_of(o.x), type_of(o.gate), type_of(o.down), o.topk_ids.shape[1]};
}

Array moe(const MoeOperands& operands, Activation activation, DType dtype, const MoeProgress& progress) {
  const MoeTypes types = types_of(operands);
  const std::int64_t tokens = operands.x.shape[0], hidden = operands.x.shape[1];
  const DType sums = operands.x.dtype == DType::float64 ? DType::float64 : DType::float32;
  const std::int64_t step = matmul::tokens_at_once(types, matmul::bytes_of_token(types, size_of(sums)));
  Array out(dtype, {tokens, hidden});
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const IndexRange some{begin, std::min(tokens, begin + step)};
    const matmul::ExpertRows rows = matmul::expert_rows(operands, some, sums, {activation});
    const Array weights = Array::copy_of(matmul::rows_of(operands.topk_weights, some));
    CombineSettings settings;
    settings.weights = make_source(weights.view(), "topk_weights");
    settings.rows = rows.route.choices;
    settings.dtype = dtype;
    const Array part = combine_experts(rows.y.view(), make_source(rows.route.inverse.view()), settings);
    std::memcpy(out.data() + begin * hidden * size_of(dtype), part.data(),
                static_cast<std::size_t>(part.bytes()));
    if (progress) progress(some.end, tokens);
  }
  return out;
}

std::int64_t moe_bytes(const MoeTypes& types, DType dtype) {
  const std::int64_t element = types.x.dtype == DType::float64 ? 8 : 4;
  const std::int64_t each = matmul::bytes_of_token(types, element);
  return std::min(types.x.shape[0], matmul::tokens_at_once(types, each)) * each +
         byte_count(types.x.shape, dtype);
}

}  // namespace ejk
