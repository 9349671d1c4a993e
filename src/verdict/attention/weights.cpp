// Sums of squared terms by the kernels: softmax(2 s) v² is Σ P² v² up to a factor for each row
// (SquaredFactors). In float32 the error of a weight goes with c of its query: rows of q and dout have it as a
// factor in sums over queries, sums over keys afterwards.
// tests: tests/verdict/attention/test_weights.cpp
#include "verdict/attention/weights.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/numbers.hpp"
#include "core/parallel.hpp"
#include "core/splitmix64.hpp"
#include "verdict/attention/bounds.hpp"
#include "verdict/attention/rows.hpp"

namespace ejk::attn {

namespace {

// u, and half of the smallest number: the error of numbers too small for u.
struct Unit {
  double relative = 0, least = 0;
};

constexpr Unit kFloat32{0x1p-24, 0};
constexpr double kSummedError = 0.75;  // of a sum of n terms: times √n, in u

Unit unit_of(DType weights) {
  if (weights == DType::bfloat16) return {0x1p-8, 0};
  if (weights == DType::float16) return {0x1p-11, 0x1p-25};
  return {};
}

// Entries and heads of keys, or of queries: f(entry, head) in parallel.
template <class F>
void for_each_head(const CheckedArguments& setup, std::int64_t heads, double elements, F&& f) {
  core::parallel_for(setup.shape.entries * heads, 3 * elements,
                     [&](std::int64_t n) { f(n / heads, n % heads); });
}

double elements_of(const ArrayView& array) { return static_cast<double>(element_count(array.shape)); }

// Elements of (B, heads, positions, elements) as float32, scaled by a power of two so that squares fit;
// masked rows and numbers that are not finite are 0.
class Scaled {
 public:
  Scaled(const CheckedArguments& setup, const MaskPlan& blocks, const ArrayView& array, RowsOf of)
      : setup_(setup),
        offsets_(of == RowsOf::keys ? setup.kv_offsets : setup.q_offsets),
        heads_(array.shape[1]),
        columns_(array.shape[3]),
        elements_(DType::float32, array.shape) {
    std::fill_n(elements_.elements<float>().data(), elements_.size(), 0.0F);
    std::vector<float> most(static_cast<std::size_t>(setup.shape.entries * heads_));
    for_each_head(setup, heads_, elements_of(array), [&](std::int64_t entry, std::int64_t head) {
      const kernels::StridedMatrix from = setup.rows_of(array, entry, head, offsets_);
      const bool all_count = of == RowsOf::queries && setup.ends.mean;  // those without a key, too
      const std::vector<bool> attends =
          all_count               ? std::vector<bool>(static_cast<std::size_t>(setup.q_length(entry)), true)
          : of == RowsOf::queries ? attending_queries(setup.problem(entry, head), blocks)
                                  : attending_keys(setup, entry, head, blocks);
      float& largest = most[static_cast<std::size_t>(entry * heads_ + head)];
      for (std::size_t r = 0; r < attends.size(); ++r) {
        if (!attends[r]) continue;
        float* const to = row(entry, head, static_cast<std::int64_t>(r));
        load_row(from, static_cast<std::int64_t>(r), 0, columns_, to);
        for (std::int64_t c = 0; c < columns_; ++c) {
          if (!std::isfinite(to[c])) to[c] = 0;
          largest = std::max(largest, std::abs(to[c]));
        }
      }
    });
    const float all = most.empty() ? 0 : *std::max_element(most.begin(), most.end());
    if (all == 0) return;
    factor_ = std::ldexp(1.0, std::ilogb(all));
    const auto inverse = std::ldexp(1.0, -std::ilogb(all));
    for (float& x : elements_.elements<float>()) x = static_cast<float>(static_cast<double>(x) * inverse);
  }

  ArrayView view() const { return elements_.view(); }
  double factor() const { return factor_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t heads() const { return heads_; }
  float* row(std::int64_t entry, std::int64_t head, std::int64_t position) {
    const kernels::StridedMatrix rows = setup_.rows_of(elements_.view(), entry, head, offsets_);
    return reinterpret_cast<float*>(const_cast<std::byte*>(static_cast<const std::byte*>(rows.data)) +
                                    position * rows.row_stride);
  }
  void square() {
    for (float& x : elements_.elements<float>()) x *= x;
  }

 private:
  const CheckedArguments& setup_;
  const std::vector<std::int64_t>& offsets_;
  std::int64_t heads_, columns_;
  double factor_ = 1;
  Array elements_;
};

class Squares : public Scaled {
 public:
  Squares(const CheckedArguments& setup, const MaskPlan& blocks, const ArrayView& array, RowsOf of)
      : Scaled(setup, blocks, array, of),
        sums_(static_cast<std::size_t>(setup.shape.entries * heads() * columns())) {
    square();
    for_each_head(setup, heads(), elements_of(array), [&](std::int64_t entry, std::int64_t head) {
      double* const sums = sums_.data() + (entry * heads() + head) * columns();
      const std::int64_t rows = of == RowsOf::keys ? setup.kv_length(entry) : setup.q_length(entry);
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* const squares = row(entry, head, r);
        for (std::int64_t c = 0; c < columns(); ++c) sums[c] += static_cast<double>(squares[c]);
      }
    });
  }
  double sum(std::int64_t entry, std::int64_t head, std::int64_t column) const {
    return sums_[static_cast<std::size_t>((entry * heads() + head) * columns() + column)];
  }

 private:
  std::vector<double> sums_;
};

// The number of equal rows of each row of some matrices. Equal hashes count as equal rows.
class Equals {
 public:
  void add(const kernels::StridedMatrix& matrix, std::int64_t rows, std::int64_t columns) {
    std::vector<float> values(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      load_row(matrix, r, 0, columns, values.data());
      std::uint64_t hash = 0;
      for (const float value : values)
        hash = core::splitmix64(hash ^ std::bit_cast<std::uint32_t>(value + 0.0F));
      hashes_.push_back(hash);
      ++counts_[hash];
    }
  }
  float count(std::int64_t row) const {
    return static_cast<float>(counts_.at(hashes_[static_cast<std::size_t>(row)]));
  }

 private:
  std::vector<std::uint64_t> hashes_;
  std::unordered_map<std::uint64_t, std::int64_t> counts_;
};

void multiply(float* row, std::int64_t columns, float factor) {
  if (factor > 1)
    for (std::int64_t c = 0; c < columns; ++c) row[c] *= factor;
}

// f(entry, head, row, number of equal rows) of keys, or of queries among all heads that share a key.
template <class F>
void for_each_equal_key(const CheckedArguments& setup, F&& f) {
  for_each_head(setup, setup.shape.kv_heads, elements_of(setup.k),
                [&](std::int64_t entry, std::int64_t head) {
                  Equals equals;
                  equals.add(setup.rows_of(setup.k, entry, head, setup.kv_offsets), setup.kv_length(entry),
                             setup.shape.head_size);
                  for (std::int64_t j = 0; j < setup.kv_length(entry); ++j)
                    f(entry, head, j, equals.count(j));
                });
}

template <class F>
void for_each_equal_query(const CheckedArguments& setup, const ArrayView& array, F&& f) {
  const std::int64_t group = setup.group();
  for_each_head(setup, setup.shape.kv_heads, elements_of(array), [&](std::int64_t entry, std::int64_t head) {
    const std::int64_t rows = setup.q_length(entry);
    Equals equals;
    for (std::int64_t h = head * group; h < (head + 1) * group; ++h)
      equals.add(setup.rows_of(array, entry, h, setup.q_offsets), rows, array.shape[3]);
    for (std::int64_t n = 0; n < rows * group; ++n)
      f(entry, head * group + n / rows, n % rows, equals.count(n));
  });
}

// Those of equal keys are off together.
void count_equal_keys(const CheckedArguments& setup, Squares& of_keys) {
  for_each_equal_key(setup, [&](std::int64_t entry, std::int64_t head, std::int64_t j, float count) {
    multiply(of_keys.row(entry, head, j), of_keys.columns(), count);
  });
}

void count_equal_queries(const CheckedArguments& setup, std::initializer_list<Squares*> of_queries) {
  for_each_equal_query(setup, setup.q,
                       [&](std::int64_t entry, std::int64_t head, std::int64_t i, float count) {
                         for (Squares* const squares : of_queries)
                           multiply(squares->row(entry, head, i), squares->columns(), count);
                       });
}

// The scores times a factor. Of 2 the weights are P² but for a factor of each row; dropout's are squared, too.
CheckedArguments with_scores_times(float factor, const CheckedArguments& setup, Array& bias) {
  CheckedArguments times = setup;
  times.scale *= factor;
  times.softcap *= factor;
  times.kept_factor *= times.kept_factor;
  for (std::vector<double>* numbers : {&times.slopes, &times.ends.sinks})
    for (double& number : *numbers) number *= factor;
  if (!setup.bias) return times;
  bias = Array(DType::float32, setup.bias_shape);
  ArrayView own = *setup.bias;
  own.shape = setup.bias_shape;
  auto* to = bias.elements<float>().data();
  if (bias.size() == 0) return times;
  for (std::int64_t n = 0; n < bias.size() / own.shape[3]; ++n, to += own.shape[3]) {
    const std::int64_t at = n / own.shape[2] / own.shape[1] * own.strides[0] +
                            n / own.shape[2] % own.shape[1] * own.strides[1] +
                            n % own.shape[2] * own.strides[2];
    load(own.dtype, own.data + at, own.strides[3], own.shape[3], to);
    for (std::int64_t c = 0; c < own.shape[3]; ++c) to[c] *= factor;
  }
  times.bias = bias.view();
  times.bias->shape = setup.bias->shape;
  for (std::size_t a = 0; a < 4; ++a)
    if (setup.bias->strides[a] == 0) times.bias->strides[a] = 0;
  return times;
}

struct ForwardPass {
  Array out, lse;
};
ForwardPass forward_of(CheckedArguments setup, const MaskPlan& blocks, const ArrayView& values) {
  setup.v = values;
  setup.shape.value_size = setup.shape.out.back() = values.shape[3];
  ForwardPass made{Array(DType::float32, setup.shape.out), Array(DType::float32, setup.shape.lse)};
  const RowWriter out(setup, made.out.mutable_view());
  forward(setup, blocks, {out, made.lse.data()}, {});
  return made;
}

void for_each_row(const CheckedArguments& setup, const Rows& rows, const Array& array,
                  const std::function<void(const Place& place, float* elements)>& f) {
  const ArrayView form = in_one_form(array.view(), setup.layout);
  core::parallel_for(rows.count(), 4 * static_cast<double>(array.size()), [&](std::int64_t n) {
    const Place place = rows.at(n);
    const kernels::StridedMatrix of = setup.rows_of(form, place.entry, place.head, rows.offsets());
    f(place, reinterpret_cast<float*>(const_cast<std::byte*>(static_cast<const std::byte*>(of.data)) +
                                      place.row * of.row_stride));
  });
}

// λ √squares · factor + more; 0 if not finite.
void set_bound(float& element, double lambda, double squares, double factor, double more = 0) {
  const double bound = lambda * std::sqrt(squares) * factor + more;
  element = std::isfinite(bound) ? static_cast<float>(std::min(bound, 1e38)) : 0.0F;
}

double length_of(const kernels::StridedMatrix& rows, std::int64_t row, std::int64_t columns) {
  std::vector<double> values(static_cast<std::size_t>(columns));
  load_row(rows, row, 0, columns, values.data());
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// The largest score that a query may have.
double largest_score(const CheckedArguments& setup, const Bounds::Part& bound, const Place& place) {
  return std::abs(setup.scale) * bound.longest_k *
         length_of(setup.problem(place.entry, place.head).q, place.row, setup.shape.head_size);
}

// c of each query, in the order of lse: the error of its weights exp(score − lse) in u.
std::vector<double> errors_of_weights(const CheckedArguments& setup, const Bounds& bounds,
                                      const Array& lses) {
  const auto lse = lses.elements<float>();
  const Rows queries(setup, RowsOf::queries);
  const double of_lse = std::max(1.0, std::sqrt(static_cast<double>(setup.shape.head_size)) / 4),
               of_sum = kSummedError * std::sqrt(static_cast<double>(setup.longest_keys()));
  std::vector<double> errors(static_cast<std::size_t>(element_count(setup.shape.lse)));
  core::parallel_for(queries.count(), 3 * elements_of(setup.q), [&](std::int64_t n) {
    const Place place = queries.at(n);
    const auto at = static_cast<std::size_t>(setup.problem(place.entry, place.head).first_row + place.row);
    errors[at] = 2 + of_sum;
    if (std::isfinite(lse[at]))
      errors[at] += largest_score(setup, bounds.of(queries, place), place) +
                    of_lse * std::abs(static_cast<double>(lse[at]));
  });
  return errors;
}

Array zeros(const Shape& shape) {
  Array array(DType::float32, shape);
  std::fill_n(array.elements<float>().data(), array.size(), 0.0F);
  return array;
}

// lse alone: a forward pass over one column of values, all 0.
Array lse_of(const CheckedArguments& setup, const MaskPlan& blocks) {
  static constexpr float kZero = 0;
  Shape one = setup.v.shape;
  one.back() = 1;
  return forward_of(setup, blocks,
                    {reinterpret_cast<const std::byte*>(&kZero), DType::float32, one, Shape(one.size(), 0)})
      .lse;
}

// Σ P² of a query.
double squared_weights(const Array& twice, const Array& lse, std::size_t at) {
  return std::exp(static_cast<double>(twice.elements<float>()[at]) -
                  2 * static_cast<double>(lse.elements<float>()[at]));
}

// Rounded weights and scores: u is the larger of their units.
struct Roundings {
  Unit unit;
  double weights = 0, scores = 0;  // units

  Roundings(const CheckedArguments& setup, const SoftmaxTypes& types) {
    if (setup.shape.arithmetic == DType::float64) return;
    const Unit of_weights = unit_of(types.weights.value_or(DType::float32)),
               of_scores = unit_of(types.scores);
    weights = of_weights.relative, scores = of_scores.relative;
    unit = {std::max(weights, scores), std::max(of_weights.least, of_scores.least)};
  }
};

// c of each query, in the order of lse: the error of its weights in u. A score s that is rounded r times is off by
// √r u s. The mean of s² by P² follows from lse of k s at k = 2: its first derivative is the mean of s by P^k, its
// second the variance.
std::vector<double> errors_of_rounding(const CheckedArguments& setup, const MaskPlan& blocks,
                                       const Roundings& roundings) {
  std::vector<double> errors(static_cast<std::size_t>(element_count(setup.shape.lse)), 1);
  if (roundings.scores == 0) return errors;
  constexpr double kStep = 0.5;
  const auto lse_times = [&](double factor) {
    Array bias;
    return lse_of(with_scores_times(static_cast<float>(factor), setup, bias), blocks);
  };
  const Array less = lse_times(2 - kStep), lse = lse_times(2), more = lse_times(2 + kStep);
  // Before and after the scale; around the tanh of a soft cap; with a bias added.
  const double times = 2 + (setup.softcap > 0 ? 3 : 0) + (setup.bias || !setup.slopes.empty() ? 1 : 0),
               of_scores = times * std::pow(roundings.scores / roundings.unit.relative, 2),
               of_weights = std::pow(roundings.weights / roundings.unit.relative, 2);
  for (std::size_t n = 0; n < errors.size(); ++n) {
    const auto a = static_cast<double>(less.elements<float>()[n]),
               b = static_cast<double>(lse.elements<float>()[n]),
               c = static_cast<double>(more.elements<float>()[n]);
    if (!std::isfinite(a + b + c)) continue;
    const double mean = (c - a) / (2 * kStep), variance = std::max(0.0, (a - 2 * b + c) / (kStep * kStep));
    errors[n] = std::sqrt(of_weights + of_scores * (mean * mean + variance));
  }
  return errors;
}

// `errors`: c of each query. Terms of lse follow if it is rounded, too.
std::vector<Array> terms_of_out(const CheckedArguments& setup, const MaskPlan& blocks, Unit unit,
                                const Array& lse, const std::vector<double>& errors, bool is_of_lse) {
  Squares v(setup, blocks, setup.v, RowsOf::keys);
  count_equal_keys(setup, v);
  Array bias;
  ForwardPass squares = forward_of(with_scores_times(2, setup, bias), blocks, v.view());
  for_each_row(setup, Rows(setup, RowsOf::queries), squares.out, [&](const Place& place, float* elements) {
    const auto at = static_cast<std::size_t>(setup.problem(place.entry, place.head).first_row + place.row);
    const double u = unit.relative * errors[at], factor = squared_weights(squares.lse, lse, at);
    for (std::int64_t c = 0; c < setup.shape.value_size; ++c)
      set_bound(
          elements[c], kOffOfOut,
          u * u * factor * static_cast<double>(elements[c]) +
              std::pow(setup.kept_factor * unit.least, 2) * v.sum(place.entry, place.head / setup.group(), c),
          v.factor());
  });
  std::vector<Array> terms;
  terms.push_back(std::move(squares.out));
  if (!is_of_lse) return terms;
  Array& of_lse = terms.emplace_back(DType::float32, setup.shape.lse);
  for (std::size_t n = 0; n < errors.size(); ++n)
    set_bound(of_lse.elements<float>()[n], kOffOfOut, std::pow(unit.relative * errors[n], 2),
              setup.ends.lse.unit);
  return terms;
}

// Factors of the squared terms of gradients, and what errors of δ are computed from.
struct GradientParts {
  Scaled v, dout;
  CheckedArguments setup;  // of these values
  Squares q, k, of_dout;
  ForwardPass made, keys;  // keys: Σ P k of each query
  Array delta, products;   // δ, and Σ dout² out²
  double of_ds;            // dS and δ are divided by it

  GradientParts(const CheckedArguments& arguments, const MaskPlan& blocks, const ArrayView& given_dout,
                const Reference::Saved* given)
      : v(arguments, blocks, arguments.v, RowsOf::keys),
        dout(arguments, blocks, in_one_form(given_dout, arguments.layout), RowsOf::queries),
        setup(with_values(arguments, v.view())),
        q(setup, blocks, setup.q, RowsOf::queries),
        k(setup, blocks, setup.k, RowsOf::keys),
        of_dout(setup, blocks, dout.view(), RowsOf::queries),
        made(forward_of(setup, blocks, setup.v)),
        keys(forward_of(undropped(setup), blocks, setup.k)),
        delta(zeros(setup.shape.lse)),
        products(zeros(setup.shape.lse)),
        of_ds(v.factor() * dout.factor()) {
    count_equal_keys(setup, k);
    count_equal_queries(setup, {&q, &of_dout});
    const ArrayView out = in_one_form(made.out.view(), setup.layout), g = dout.view();
    find_deltas(setup, setup.all_queries(), g, out, delta.data());
    for (std::size_t n = 0; given && n < given->lse.size(); ++n) {
      made.lse.elements<float>()[n] = static_cast<float>(given->lse[n]);
      delta.elements<float>()[n] = static_cast<float>(given->delta[n] / of_ds);
    }
    const Rows queries(setup, RowsOf::queries);
    core::parallel_for(queries.count(), 8 * elements_of(g), [&](std::int64_t n) {
      const Place place = queries.at(n);
      const std::int64_t size = setup.shape.value_size;
      std::vector<float> a(static_cast<std::size_t>(size)), b(a.size());
      load_row(setup.rows_of(g, place.entry, place.head, setup.q_offsets), place.row, 0, size, a.data());
      load_row(setup.rows_of(out, place.entry, place.head, setup.q_offsets), place.row, 0, size, b.data());
      float& sum = products.elements<float>()[at(place)];
      for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * a[c] * b[c] * b[c];
    });
  }

  std::size_t at(const Place& place) const {
    return static_cast<std::size_t>(setup.problem(place.entry, place.head).first_row + place.row);
  }
  // Over the query heads of a key.
  double sum_of_key(const Squares& squares, const Place& place, std::int64_t column) const {
    double sum = 0;
    for (std::int64_t h = place.head * setup.group(); h < (place.head + 1) * setup.group(); ++h)
      sum += squares.sum(place.entry, h, column);
    return sum;
  }
  SquaredFactors factors(const Array& rows) const {
    return {q.view(), k.view(), of_dout.view(), rows.data()};
  }
  Saved saved(const SquaredFactors& squared) const {
    return {dout.view(), made.lse.data(), delta.data(), &squared};
  }
  // f(place, elements, Σ P k) of the gradient of each query.
  template <class F>
  void each_query(const Array& dq, F&& f) const {
    const ArrayView means = in_one_form(keys.out.view(), setup.layout);
    for_each_row(setup, Rows(setup, RowsOf::queries), dq, [&](const Place& place, float* elements) {
      std::vector<double> mean(static_cast<std::size_t>(setup.shape.head_size));
      load_row(setup.rows_of(means, place.entry, place.head, setup.q_offsets), place.row, 0,
               setup.shape.head_size, mean.data());
      f(place, elements, mean.data());
    });
  }

 private:
  static CheckedArguments with_values(CheckedArguments setup, const ArrayView& values) {
    setup.v = values;
    return setup;
  }
  static CheckedArguments undropped(CheckedArguments setup) {
    setup.dropout.reset();
    return setup;
  }
};

Array terms_of_bias(const GradientParts& parts, const MaskPlan& blocks, Unit unit, const Array& rows) {
  const CheckedArguments& setup = parts.setup;
  const double least = unit.least / parts.of_ds;
  const Shape& all = setup.bias_shape;
  Array bias(DType::float32, {all.end() - static_cast<std::ptrdiff_t>(setup.bias_rank), all.end()});
  const SquaredFactors squared = parts.factors(rows);
  backward_of_bias(setup, blocks, setup.whole_bias(), 1, parts.saved(squared),
                   RowWriter(setup, bias.mutable_view(), whole_box(bias.shape()), bias.shape(), std::nullopt,
                             RowsOf::bias),
                   {});
  const double summed = static_cast<double>(setup.problems()) * static_cast<double>(setup.q.shape[2]) *
                        static_cast<double>(setup.k.shape[2]) / static_cast<double>(bias.size());
  const double off = off_of_gradients(static_cast<std::int64_t>(summed));
  for (float& element : bias.elements<float>())
    set_bound(element, off,
              unit.relative * unit.relative * static_cast<double>(element) + least * least * summed,
              parts.of_ds, off * unit.least);
  return bias;
}

Array terms_of_sinks(const GradientParts& parts, Unit unit, const std::vector<double>& errors) {
  const CheckedArguments& setup = parts.setup;
  Array sinks(DType::float32, {setup.shape.heads});
  for (std::int64_t h = 0; h < setup.shape.heads; ++h) {
    double squares = 0;
    for (std::int64_t e = 0; e < setup.shape.entries && setup.ends.sink(h) != kNoSink; ++e)
      for (std::int64_t i = 0; i < setup.q_length(e); ++i) {
        const auto at = static_cast<std::size_t>(setup.first_row(e, h) + i);
        const double weight = std::exp(setup.ends.sink(h) -
                                       static_cast<double>(parts.made.lse.elements<float>()[at])),
                     term = std::pow(weight * errors[at], 2) *
                            static_cast<double>(parts.products.elements<float>()[at]);
        squares += std::isfinite(term) ? term : 0;
      }
    set_bound(sinks.elements<float>()[static_cast<std::size_t>(h)], off_of_gradients(setup.longest_queries()),
              unit.relative * unit.relative * squares, parts.of_ds);
  }
  return sinks;
}

// dq, dk and dv of squared factors; `rows`: as in SquaredFactors.
std::vector<Array> squared_gradients(const GradientParts& parts, const MaskPlan& blocks, const Array& rows) {
  const CheckedArguments& setup = parts.setup;
  Shape of_q = setup.shape.out;
  of_q.back() = setup.shape.head_size;
  std::vector<Array> terms;
  for (const Shape& shape : {of_q, in_layout(setup.k, setup.layout), in_layout(setup.v, setup.layout)})
    terms.push_back(zeros(shape));
  const SquaredFactors squared = parts.factors(rows);
  backward(setup, blocks, setup.all_keys(), 1, parts.saved(squared),
           RowWriter(setup, terms[0].mutable_view()), RowWriter(setup, terms[1].mutable_view()),
           RowWriter(setup, terms[2].mutable_view()), {});
  return terms;
}

// `errors`: c of each query.
std::vector<Array> terms_of_gradients(const CheckedArguments& arguments, const MaskPlan& blocks, Unit unit,
                                      const std::vector<double>& errors, const ArrayView& dout,
                                      const Reference::Saved* given) {
  const double u = unit.relative, least = unit.least, scale = std::abs(arguments.scale);
  const double of_keys_off = off_of_gradients(arguments.longest_keys()),
               of_queries_off = off_of_gradients(arguments.longest_queries() * arguments.group());
  GradientParts parts(arguments, blocks, dout, given);
  const CheckedArguments& setup = parts.setup;
  for_each_head(setup, setup.shape.heads, elements_of(setup.q), [&](std::int64_t entry, std::int64_t head) {
    for (std::int64_t i = 0; i < setup.q_length(entry); ++i)
      for (Squares* const squares : {&parts.q, &parts.of_dout})
        multiply(squares->row(entry, head, i), squares->columns(),
                 static_cast<float>(std::pow(errors[parts.at({entry, head, i})], 2)));
  });
  const auto deltas = parts.delta.elements<float>(), products = parts.products.elements<float>();
  Array rows(DType::float32, setup.shape.lse);  // 2 δ² and the squared error of δ, in u
  for (std::size_t n = 0; n < deltas.size(); ++n)
    rows.elements<float>()[n] = 2 * deltas[n] * deltas[n] + products[n];
  const double of_ds = parts.of_ds, ds_least = least / of_ds * scale;
  std::vector<Array> terms = squared_gradients(parts, blocks, rows);
  parts.each_query(terms[0], [&](const Place& place, float* elements, const double* mean) {
    const double of_query = u * errors[parts.at(place)],
                 off = of_keys_off * of_query * scale * of_ds *
                       std::sqrt(static_cast<double>(products[parts.at(place)]));
    for (std::int64_t c = 0; c < setup.shape.head_size; ++c)
      set_bound(elements[c], of_keys_off,
                of_query * of_query * static_cast<double>(elements[c]) +
                    ds_least * ds_least * parts.k.sum(place.entry, place.head / setup.group(), c),
                of_ds * parts.k.factor(), off * std::abs(mean[c]) + of_keys_off * least);
  });
  const auto bound_keys = [&](Array& result, const Squares& of, double of_least, double factor) {
    for_each_row(setup, Rows(setup, RowsOf::keys), result, [&](const Place& place, float* elements) {
      for (std::int64_t c = 0; c < of.columns(); ++c)
        set_bound(elements[c], of_queries_off,
                  u * u * static_cast<double>(elements[c]) +
                      (of_least > 0 ? of_least * of_least * parts.sum_of_key(of, place, c) : 0),
                  factor, of_queries_off * least);
    });
  };
  bound_keys(terms[1], parts.q, ds_least, of_ds * parts.q.factor());
  bound_keys(terms[2], parts.of_dout, setup.kept_factor * least, parts.dout.factor());
  if (setup.bias) {
    const double most = errors.empty() ? 1 : *std::max_element(errors.begin(), errors.end());
    terms.push_back(terms_of_bias(parts, blocks, {most * u, least}, rows));
  }
  if (setup.has_sinks()) terms.push_back(terms_of_sinks(parts, unit, errors));
  return terms;
}

// Errors of one query in float32, in u: of its weights, of dS beside that of dP − δ, and of dP and δ.
struct QueryErrors {
  double weights, ds, dp, delta;
};

std::vector<QueryErrors> errors_of_queries(const GradientParts& parts, const MaskPlan& blocks,
                                           const Bounds& bounds) {
  const CheckedArguments& setup = parts.setup;
  const Rows queries(setup, RowsOf::queries);
  const std::vector<double> of_weights = errors_of_weights(setup, bounds, parts.made.lse);
  Array bias;
  const Array twice = lse_of(with_scores_times(2, setup, bias), blocks);
  const auto keys = static_cast<double>(setup.longest_keys()),
             size = static_cast<double>(setup.shape.value_size);
  std::vector<QueryErrors> errors(of_weights.size());
  core::parallel_for(queries.count(), 3 * elements_of(parts.dout.view()), [&](std::int64_t n) {
    const Place place = queries.at(n);
    const Bounds::Part& bound = bounds.of(queries, place);
    const std::size_t at = parts.at(place);
    QueryErrors& e = errors[at];
    e.weights = e.ds = of_weights[at];
    // The derivative of a soft cap is off by u, however small it is.
    if (setup.softcap > 0)
      e.ds += 2 * std::pow(std::cosh(largest_score(setup, bound, place) / setup.softcap), 2);
    const auto lse = static_cast<double>(parts.made.lse.elements<float>()[at]);
    if (!std::isfinite(lse)) return;
    const double longest =
        length_of(setup.rows_of(parts.dout.view(), place.entry, place.head, setup.q_offsets), place.row,
                  setup.shape.value_size) *
        bound.longest_v / parts.v.factor();
    e.dp = std::max(1.0, std::sqrt(size) / 8) * longest;
    // δ changes with P by Σ P (dP − δ): about ‖dout‖ ‖v‖ 4 / √Dv, and less where one key has all the weight.
    const auto delta = static_cast<double>(parts.delta.elements<float>()[at]),
               products = static_cast<double>(parts.products.elements<float>()[at]),
               squares = squared_weights(twice, parts.made.lse, at),
               spread = longest * std::min(1.0, 4 / std::sqrt(size));
    e.delta = std::sqrt((size / 8 + keys / 4) * products + (keys + lse * lse) / 4 * delta * delta +
                        squares * std::pow((1 - squares) * e.ds * spread, 2));
  });
  return errors;
}

// By entry and key head: the largest error of dP that rows have in common as their dout is equal, by their share
// of all.
std::vector<double> common_errors(const GradientParts& parts, const std::vector<QueryErrors>& errors) {
  const CheckedArguments& setup = parts.setup;
  std::vector<double> largest(static_cast<std::size_t>(setup.shape.entries * setup.shape.kv_heads));
  for_each_equal_query(
      setup, parts.dout.view(), [&](std::int64_t entry, std::int64_t head, std::int64_t i, float count) {
        if (count < 2) return;
        double& error =
            largest[static_cast<std::size_t>(entry * setup.shape.kv_heads + head / setup.group())];
        error = std::max(error, errors[parts.at({entry, head, i})].dp * static_cast<double>(count) /
                                    static_cast<double>(setup.rows_of_key(entry)));
      });
  return largest;
}

std::vector<Array> float32_terms_of_gradients(const CheckedArguments& arguments, const MaskPlan& blocks,
                                              const Bounds& bounds, const ArrayView& dout,
                                              const Array& weights_of_keys, double& largest_error) {
  GradientParts parts(arguments, blocks, dout, nullptr);
  const CheckedArguments& setup = parts.setup;
  const double off = kOffOfOut * kFloat32.relative, of_ds = parts.of_ds, scale = std::abs(setup.scale),
               of_sum =
                   kSummedError * std::sqrt(static_cast<double>(setup.longest_queries() * setup.group()));
  const std::vector<QueryErrors> errors = errors_of_queries(parts, blocks, bounds);
  const std::vector<double> common = common_errors(parts, errors);
  Array rows = zeros(setup.shape.lse);
  const Rows queries(setup, RowsOf::queries), keys(setup, RowsOf::keys);
  core::parallel_for(queries.count(), 3 * elements_of(setup.q), [&](std::int64_t n) {
    const Place place = queries.at(n);
    const QueryErrors& e = errors[parts.at(place)];
    rows.elements<float>()[parts.at(place)] =
        static_cast<float>(4 * (e.dp * e.dp + e.delta * e.delta) / (e.ds * e.ds));
    multiply(parts.q.row(place.entry, place.head, place.row), parts.q.columns(),
             static_cast<float>(std::pow(e.ds + of_sum, 2)));
    multiply(parts.of_dout.row(place.entry, place.head, place.row), parts.of_dout.columns(),
             static_cast<float>(std::pow(e.weights + of_sum, 2)));
  });
  for (const QueryErrors& e : errors) largest_error = std::max(largest_error, e.weights);
  std::vector<Array> terms = squared_gradients(parts, blocks, rows);
  parts.each_query(terms[0], [&](const Place& place, float* elements, const double* mean) {
    const QueryErrors& e = errors[parts.at(place)];
    for (std::int64_t c = 0; c < setup.shape.head_size; ++c)
      set_bound(elements[c], off, e.ds * e.ds / 4 * static_cast<double>(elements[c]),
                of_ds * parts.k.factor(), off * e.delta * scale * of_ds * std::abs(mean[c]));
  });
  const ArrayView weights = in_one_form(weights_of_keys.view(), setup.layout);
  for_each_row(setup, keys, terms[1], [&](const Place& place, float* elements) {
    double weight = 0;  // Σ P
    load_row(setup.rows_of(weights, place.entry, place.head, setup.kv_offsets), place.row, 0, 1, &weight);
    const double together = off / 4 * common[keys.part_of(place)] * scale * of_ds * parts.q.factor() * weight;
    for (std::int64_t c = 0; c < setup.shape.head_size; ++c)
      set_bound(elements[c], off, static_cast<double>(elements[c]) / 4, of_ds * parts.q.factor(),
                together > 0 ? together * std::sqrt(parts.sum_of_key(parts.q, place, c) /
                                                    static_cast<double>(setup.rows_of_key(place.entry)))
                             : 0);
  });
  for (float& element : terms[2].elements<float>())
    set_bound(element, off, static_cast<double>(element), parts.dout.factor());
  return terms;
}

}  // namespace

WeightRounding rounding_of_weights(const CheckedArguments& setup, const MaskPlan& blocks,
                                   const SoftmaxTypes& types, const std::optional<ArrayView>& dout,
                                   const Reference::Saved* saved) {
  const Roundings roundings(setup, types);
  const Unit unit = roundings.unit;
  if (unit.relative == 0) return {};
  const std::vector<double> errors = errors_of_rounding(setup, blocks, roundings);
  if (dout) {
    WeightRounding rounding{unit.relative, {}, terms_of_gradients(setup, blocks, unit, errors, *dout, saved)};
    rounding.relative.assign(rounding.terms.size(), unit.relative);
    return rounding;
  }
  return {unit.relative,
          {unit.relative, 0},
          terms_of_out(setup, blocks, unit, lse_of(setup, blocks), errors, roundings.scores > 0)};
}

WeightRounding rounding_of_float32(const CheckedArguments& setup, const MaskPlan& blocks,
                                   const Bounds& bounds, const std::optional<ArrayView>& dout,
                                   const Array& weights_of_keys) {
  if (setup.shape.arithmetic == DType::float64) return {};
  const double u = kFloat32.relative, of_keys = 2 * std::sqrt(static_cast<double>(setup.longest_keys())),
               of_queries = 2 * std::sqrt(static_cast<double>(setup.longest_queries() * setup.group()));
  if (!dout) {
    const Array lse = lse_of(setup, blocks);
    return {0,
            {u * (3 + of_keys), 0},
            terms_of_out(setup, blocks, kFloat32, lse, errors_of_weights(setup, bounds, lse), true)};
  }
  double largest = 0;
  std::vector<Array> terms =
      float32_terms_of_gradients(setup, blocks, bounds, *dout, weights_of_keys, largest);
  const double of_key = u * (largest + of_queries);
  return {0, {u * (largest + of_keys), of_key, of_key}, std::move(terms)};
}

double bytes_of_weight_rounding(const CheckedArguments& setup) {
  const double q = elements_of(setup.q), k = elements_of(setup.k), v = elements_of(setup.v),
               out = static_cast<double>(element_count(setup.shape.out)),
               rows = static_cast<double>(element_count(setup.shape.lse)),
               bias = setup.bias ? static_cast<double>(element_count(setup.bias_shape)) : 0;
  return 4 *
         (setup.gradients ? 3 * q + 2 * k + 2 * v + 4 * out + 16 * rows + bias : v + out + 6 * rows + bias);
}

}  // namespace ejk::attn
