// The reference of a layer of experts and the bound of each element: the variance of rounding errors follows the
// products. Cost: the layer in float64, and a float32 product of squares.
// tests: tests/verdict/moe/test_against.cpp
#include <algorithm>
#include <cmath>
#include <cstring>

#include "compare/float_type.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "ejk/grouped_matmul.hpp"
#include "verdict/explain_rows.hpp"
#include "verdict/moe/layer.hpp"

namespace ejk::moe_verdict {

namespace {

constexpr double kFloat32 = 0x1p-24;
constexpr double kDeviations = 4;
constexpr double kMostFloat64 = 0x1p33;  // multiply-adds of 16-bit layers that are evaluated in float64

struct Unit {
  double u, least;
};

Unit unit_of(const MoeOperands& operands, DType given) {
  const verify::FloatType x = verify::float_type(operands.x.dtype), out = verify::float_type(given);
  const verify::FloatType& wider = x.fraction_bits < out.fraction_bits ? x : out;
  return {std::max(wider.epsilon() / 2, wider.fraction_bits > 23 ? 0x1p-53 : kFloat32),
          wider.spacing_at(0) / 2};
}

double squared(double x) { return x * x; }

template <class Real>
double mean_square(const Real* values, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += squared(values[i]);
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

// Squared errors of h as factors of the product with down, in units of u.
template <class Real>
void squared_errors(const ActualLayer& it, const matmul::ExpertRows& rows, const Unit& unit, Array& squares) {
  const std::int64_t n = it.inter();
  const double sums = squared(kFloat32) * static_cast<double>(it.hidden()) / 4,
               down = squared(kFloat32) * static_cast<double>(n) / 4, u2 = squared(unit.u),
               least = squared(unit.least);
  core::parallel_for(rows.h.shape()[0], 100 * static_cast<double>(rows.h.size()), [&](std::int64_t r) {
    const Real* const g = rows.gate.elements<Real>().data() + r * n;
    const Real* const l = rows.up.elements<Real>().data() + r * n;
    const Real* const h = rows.h.elements<Real>().data() + r * n;
    float* const out = squares.elements<float>().data() + r * n;
    const double of_gate = sums * mean_square(g, n) + least, of_up = sums * mean_square(l, n) + least;
    for (std::int64_t i = 0; i < n; ++i) {
      const double g2 = squared(g[i]), l2 = squared(l[i]), h2 = squared(h[i]);
      const double slope = matmul::activation_slope(it.activation, g[i]),
                   value = matmul::activate(it.activation, g[i]);
      const double e2 = squared(slope) * l2 * ((u2 + 2 * sums) * g2 + of_gate) +
                        squared(value) * ((u2 + 2 * sums) * l2 + of_up) + 3 * (u2 * h2 + least) +
                        squared(kFloat32 * (3 + std::abs(g[i]))) * h2;
      out[i] = static_cast<float>((e2 + down * h2) / u2);
    }
  });
}

Array squares_of(const ArrayView& matrices) {
  Array out(DType::float32, matrices.shape);
  const std::int64_t columns = matrices.shape[2], rows = matrices.shape[1];
  core::parallel_for(matrices.shape[0] * rows, static_cast<double>(out.size()), [&](std::int64_t r) {
    float* const row = out.elements<float>().data() + r * columns;
    core::load(matrices.dtype,
               matrices.data + r / rows * matrices.strides[0] + r % rows * matrices.strides[1],
               matrices.strides[2], columns, row);
    for (std::int64_t c = 0; c < columns; ++c) row[c] *= row[c];
  });
  return out;
}

// Of a token, from the rows of its choices and the variances of their elements.
class TokenSum {
 public:
  TokenSum(const ActualLayer& it, const Unit& unit)
      : it_(it),
        unit_(unit),
        type_(verify::float_type(it.given.dtype)),
        row_(static_cast<std::size_t>(it.hidden())) {}

  void add(double weight, const matmul::ExpertRows& rows, const float* variances, std::int64_t row,
           std::span<double> out) {
    const std::int64_t n = it_.hidden();
    if (sums_.empty()) sums_.assign(row_.size(), {});
    core::load(it_.sums, rows.y.data() + row * n * size_of(it_.sums), size_of(it_.sums), n, row_.data());
    const double of_sum = squared(kFloat32) * (static_cast<double>(it_.inter()) / 4 + 64),
                 u2 = squared(unit_.u);
    for (std::size_t c = 0; c < row_.size(); ++c) {
      const double term = weight * row_[c];
      out[c] += term;
      sums_[c].squares += squared(term);
      sums_[c].sizes += std::abs(term);
      sums_[c].variance +=
          squared(weight) * u2 * variances[row * n + static_cast<std::int64_t>(c)] + of_sum * squared(term);
      sums_[c].overflows = sums_[c].overflows || std::abs(row_[c]) > type_.overflow;
    }
  }

  void finish(std::span<const double> out, std::span<double> allowed) {
    const auto k = static_cast<double>(it_.choices());
    for (std::size_t c = 0; c < out.size(); ++c) {
      const Sums& s = sums_.empty() ? none_ : sums_[c];
      const double few = std::min(
          kDeviations * unit_.u * std::sqrt(3 * s.squares + (k - 1) / 2 * (s.squares + squared(out[c]))),
          (k + 2) * unit_.u * s.sizes);
      allowed[c] = s.overflows ? std::numeric_limits<double>::infinity()
                   : s.sizes == 0 && s.variance == 0
                       ? 0
                       : kDeviations * std::sqrt(s.variance) + few + type_.epsilon() * std::abs(out[c]) +
                             2 * k * unit_.least + type_.spacing_at(0) / 2;
    }
    sums_.clear();
  }

 private:
  struct Sums {
    double squares = 0, sizes = 0, variance = 0;
    bool overflows = false;
  };

  const ActualLayer& it_;
  const Unit& unit_;
  verify::FloatType type_;
  std::vector<double> row_;
  std::vector<Sums> sums_;
  Sums none_;
};

DType sums_of(const MoeOperands& operands, DType given) {
  const double work = 3 * static_cast<double>(element_count(operands.topk_ids.shape)) *
                      static_cast<double>(operands.x.shape[1]) * static_cast<double>(operands.gate.shape[2]);
  const bool is_narrow = size_of(operands.x.dtype) == 2 || size_of(given) == 2;
  return is_narrow && work > kMostFloat64 ? DType::float32 : DType::float64;
}

// Buffers of a token: the products, squared errors and their product.
std::int64_t bytes_of_token(const MoeTypes& types) {
  return matmul::bytes_of_token(types, 8) + 4 * types.top_k * (types.x.shape[1] + types.gate.shape[2]);
}

}  // namespace

verify::ResultRows rows_of_tokens(const char* name, const ArrayView& given, const char* column,
                                  const char* columns) {
  verify::ResultRows rows;
  rows.name = name;
  rows.dtype = given.dtype;
  rows.rows = given.shape[0];
  rows.columns = given.shape[1];
  rows.axes = {{"token", "tokens", rows.rows, verify::RowAxis::Kind::position}};
  rows.array_axes = {0};
  rows.column = column;
  rows.columns_name = columns;
  rows.tiles = {"token", "column"};
  rows.place = [](std::int64_t row, std::int64_t* at) { at[0] = row; };
  rows.index = [](std::int64_t row, std::int64_t at) { return Shape{row, at}; };
  rows.given = [given](std::int64_t row, double* values) {
    core::load(given.dtype, given.data + row * given.strides[0], given.strides[1], given.shape[1], values);
  };
  return rows;
}

ActualLayer::ActualLayer(const MoeOperands& of, Activation act, const ArrayView& result)
    : operands(of),
      activation(act),
      given(result),
      sums(sums_of(of, result.dtype)),
      squared_down(squares_of(of.down)) {}

Expected ActualLayer::expected(const matmul::MoeSteps& steps, const MoeProgress& progress) const {
  const auto elements = static_cast<std::size_t>(tokens() * hidden());
  Expected all{std::vector<double>(elements), std::vector<double>(elements)};
  const Unit unit = unit_of(operands, given.dtype);
  std::vector<double> weights = matmul::numbers_of(operands.topk_weights);
  if (!steps.weighs_output) std::fill(weights.begin(), weights.end(), 1.0);
  const std::int64_t step = matmul::tokens_at_once(types_of(operands), bytes_of_token(types_of(operands)));
  const std::int64_t k = choices();
  for (std::int64_t begin = 0; begin < tokens(); begin += step) {
    const IndexRange some{begin, std::min(tokens(), begin + step)};
    const matmul::ExpertRows rows = matmul::expert_rows(operands, some, sums, steps);
    Array squares(DType::float32, rows.h.shape());
    if (sums == DType::float64)
      squared_errors<double>(*this, rows, unit, squares);
    else
      squared_errors<float>(*this, rows, unit, squares);
    const Array variances =
        grouped_matmul(squares.view(), squared_down.view(), make_source(rows.route.group_sizes.view()));
    constexpr std::int64_t kTokens = 16;
    core::parallel_for(core::ceil_div(some.count(), kTokens),
                       20 * static_cast<double>(some.count() * k * hidden()), [&](std::int64_t part) {
                         TokenSum sum(*this, unit);
                         for (std::int64_t t = part * kTokens;
                              t < std::min(some.count(), (part + 1) * kTokens); ++t) {
                           const auto at = static_cast<std::size_t>((begin + t) * hidden()),
                                      n = static_cast<std::size_t>(hidden());
                           const auto out = std::span(all.out).subspan(at, n);
                           for (std::int64_t f = t * k; f < (t + 1) * k; ++f) {
                             const std::int32_t row =
                                 rows.route.inverse.elements<std::int32_t>()[static_cast<std::size_t>(f)];
                             if (row < rows.route.choices)
                               sum.add(weights[static_cast<std::size_t>(begin * k + f)], rows,
                                       variances.elements<float>().data(), row, out);
                           }
                           sum.finish(out, std::span(all.allowed).subspan(at, n));
                         }
                       });
    if (progress) progress(some.end, tokens());
  }
  return all;
}

}  // namespace ejk::moe_verdict

namespace ejk {

Against compare_moe(const MoeOperands& operands, Activation activation, const ArrayView& given,
                    const std::vector<OtherWeights>& others, Explain explain, const MoeProgress& progress) {
  types_of(operands);
  verify::require_given(given, operands.x.shape, "result", "given");
  const moe_verdict::ActualLayer it(operands, activation, given);
  const moe_verdict::Expected right = it.expected({activation}, progress);
  verify::ResultRows rows = moe_verdict::rows_of_tokens("out", given, "column", "columns");
  rows.expected = [&](std::int64_t row, double* values, double* allowed) {
    std::copy_n(right.out.begin() + row * it.hidden(), it.hidden(), values);
    std::copy_n(right.allowed.begin() + row * it.hidden(), it.hidden(), allowed);
  };
  Against against;
  against.method = it.sums == DType::float64 ? Against::Method::float64 : Against::Method::own_result;
  const verify::RowCounts counts = verify::compare_rows(rows, against, 0);
  if (explain == Explain::yes) {
    against.tried = true;
    if (!against.agrees()) moe_verdict::explain(it, right, others, rows, counts, against);
  }
  return against;
}

std::int64_t bytes_to_compare_moe(const MoeTypes& types, Explain explain) {
  const std::int64_t each = moe_verdict::bytes_of_token(types), elements = element_count(types.x.shape);
  const std::int64_t reference = 16 * elements + 4 * element_count(types.down.shape) +
                                 std::min(types.x.shape[0], matmul::tokens_at_once(types, each)) * each;
  if (explain == Explain::no) return reference + verify::bytes_of_rows(types.x.shape[0]);
  return 2 * reference + 8 * types.top_k * elements + verify::bytes_of_rows(types.x.shape[0]) +
         verify::bytes_of_values(elements);
}

}  // namespace ejk
