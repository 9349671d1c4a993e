// The definition written out: one query at a time, all its keys in float64, sums in order. Cost: every pair of a
// query and a key.
//
// tests: tests/attention/test_reference.cpp
#include "attention/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "attention/numbers.hpp"
#include "attention/plan.hpp"
#include "core/parallel.hpp"

namespace ejk::attn {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

using Row = std::vector<double>;

Row row_of(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns) {
  Row out(static_cast<std::size_t>(columns));
  load_row(matrix, row, 0, columns, out.data());
  return out;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

void add(Row& to, double factor, const Row& row) {
  for (std::size_t d = 0; d < to.size(); ++d) to[d] += factor * row[d];
}

// Which pairs of a rectangle, one row or one column, attend.
std::unique_ptr<bool[]> allowed(const MaskTiles* tiles, const mask::Rectangle& where) {
  const std::int64_t n = where.rows() * where.columns();
  auto out = std::make_unique<bool[]>(static_cast<std::size_t>(n));
  if (tiles)
    tiles->mask->read(where.q_begin, where.q_end, where.k_begin, where.k_end, out.get());
  else
    std::fill_n(out.get(), n, true);
  return out;
}

struct Score {
  double value, slope;
};

Score score(const CheckedArguments& setup, const Problem& p, const Row& q, const Row& k, std::int64_t i,
            std::int64_t j) {
  Score s{setup.scale * dot(q, k), 1};
  if (setup.softcap > 0) {
    const double t = std::tanh(s.value / setup.softcap);
    s = {setup.softcap * t, 1 - t * t};
  }
  if (p.bias.data) {
    double bias = 0;
    load_row(p.bias, i, j, 1, &bias);
    s.value += bias;
  }
  return s;
}

}  // namespace

ReferenceRow Reference::row(const Problem& p, std::int64_t query) const {
  ReferenceRow r;
  r.scores.assign(static_cast<std::size_t>(p.kv_length), kNothing);
  r.slopes.assign(static_cast<std::size_t>(p.kv_length), 1);
  r.out.assign(static_cast<std::size_t>(setup_.shape.value_size), 0);
  r.lse = kNothing;
  if (p.kv_length == 0) return r;
  const auto attends = allowed(plan_.of(p), {query, query + 1, 0, p.kv_length});
  const Row q = row_of(p.q, query, setup_.shape.head_size);
  double most = kNothing;
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (!attends[at]) continue;
    const Score s = score(setup_, p, q, row_of(p.k, j, setup_.shape.head_size), query, j);
    r.scores[at] = s.value;
    r.slopes[at] = s.slope;
    if (s.value > most || std::isnan(s.value)) most = s.value;  // NaN stays
  }
  if (most == kNothing) return r;
  double sum = 0;
  for (const double s : r.scores)
    if (s != kNothing) sum += std::exp(s - most);
  r.lse = most + std::log(sum);
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const double s = r.scores[static_cast<std::size_t>(j)];
    if (s != kNothing) add(r.out, std::exp(s - most) / sum, row_of(p.v, j, setup_.shape.value_size));
  }
  return r;
}

std::vector<double> Reference::dq(const Problem& p, const ReferenceRow& r, const kernels::StridedMatrix& dout,
                                  std::int64_t query) const {
  Row gradient(static_cast<std::size_t>(setup_.shape.head_size));
  if (r.lse == kNothing) return gradient;
  const Row g = row_of(dout, query, setup_.shape.value_size);
  const double delta = dot(g, r.out);
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (r.scores[at] == kNothing) continue;
    const double dp = dot(g, row_of(p.v, j, setup_.shape.value_size));
    const double ds = std::exp(r.scores[at] - r.lse) * (dp - delta) * r.slopes[at];
    add(gradient, setup_.scale * ds, row_of(p.k, j, setup_.shape.head_size));
  }
  return gradient;
}

double reference_work(const CheckedArguments& setup) {
  double pairs = 0;
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    pairs += static_cast<double>(setup.q_length(e)) * static_cast<double>(setup.kv_length(e));
  pairs *= static_cast<double>(setup.shape.heads);
  return pairs * static_cast<double>(setup.shape.head_size + setup.shape.value_size + 32);
}

Reference::Saved Reference::saved(const ArrayView& dout) const {
  const ArrayView g = in_one_form(dout, setup_.layout);
  Saved saved;
  const auto rows = static_cast<std::size_t>(element_count(setup_.shape.lse));
  saved.lse.resize(rows);
  saved.delta.resize(rows);
  core::parallel_for(setup_.problems(), reference_work(setup_), [&](std::int64_t n) {
    const Problem p = setup_.problem(n / setup_.shape.heads, n % setup_.shape.heads);
    const kernels::StridedMatrix rows_of_dout = setup_.rows_of(g, p.entry, p.head, setup_.q_offsets);
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const ReferenceRow r = row(p, i);
      const auto at = static_cast<std::size_t>(p.first_row + i);
      saved.lse[at] = r.lse;
      saved.delta[at] = dot(row_of(rows_of_dout, i, setup_.shape.value_size), r.out);
    }
  });
  return saved;
}

std::vector<double> Reference::deltas(const ArrayView& dout, const ArrayView& out) const {
  const ArrayView g = in_one_form(dout, setup_.layout), o = in_one_form(out, setup_.layout);
  std::vector<double> delta(static_cast<std::size_t>(element_count(setup_.shape.lse)));
  core::parallel_for(setup_.problems(), static_cast<double>(element_count(dout.shape)), [&](std::int64_t n) {
    const Problem p = setup_.problem(n / setup_.shape.heads, n % setup_.shape.heads);
    const kernels::StridedMatrix a = setup_.rows_of(g, p.entry, p.head, setup_.q_offsets),
                                 b = setup_.rows_of(o, p.entry, p.head, setup_.q_offsets);
    for (std::int64_t i = 0; i < p.q_length; ++i)
      delta[static_cast<std::size_t>(p.first_row + i)] =
          dot(row_of(a, i, setup_.shape.value_size), row_of(b, i, setup_.shape.value_size));
  });
  return delta;
}

Reference::KeyGradients Reference::key(std::int64_t entry, std::int64_t kv_head, std::int64_t key,
                                       const ArrayView& dout, const Saved& saved) const {
  const ArrayView gradients = in_one_form(dout, setup_.layout);
  KeyGradients sum{Row(static_cast<std::size_t>(setup_.shape.head_size)),
                   Row(static_cast<std::size_t>(setup_.shape.value_size)), 0};
  for (std::int64_t h = kv_head * setup_.group(); h < (kv_head + 1) * setup_.group(); ++h) {
    const Problem p = setup_.problem(entry, h);
    if (p.q_length == 0) continue;
    const kernels::StridedMatrix g = setup_.rows_of(gradients, entry, h, setup_.q_offsets);
    const auto attends = allowed(plan_.of(p), {0, p.q_length, key, key + 1});
    const Row k = row_of(p.k, key, setup_.shape.head_size), v = row_of(p.v, key, setup_.shape.value_size);
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const auto at = static_cast<std::size_t>(p.first_row + i);
      if (!attends[static_cast<std::size_t>(i)] || saved.lse[at] == kNothing) continue;
      const Row q = row_of(p.q, i, setup_.shape.head_size);
      const Score s = score(setup_, p, q, k, i, key);
      if (s.value == kNothing) continue;
      const Row dout_row = row_of(g, i, setup_.shape.value_size);
      const double probability = std::exp(s.value - saved.lse[at]);
      add(sum.dv, probability, dout_row);
      sum.weight += probability;
      const double ds = probability * (dot(dout_row, v) - saved.delta[at]) * s.slope;
      add(sum.dk, setup_.scale * ds, q);
    }
  }
  return sum;
}

Attention reference_attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                              const AttentionOptions& options) {
  const AttentionArrays arrays{q, k, v, options.bias, {}, {}, {}};
  const Plan plan(types_of(arrays), options);
  const CheckedArguments setup = bound(plan.setup, plan.types, arrays);
  const Reference reference(setup, plan.blocks());
  Attention result{Array(DType::float64, setup.shape.out), Array(DType::float64, setup.shape.lse),
                   plan.blocks().work()};
  const ArrayView out = in_one_form(result.out.view(), setup.layout);
  const auto lse = result.lse.elements<double>();
  core::parallel_for(setup.problems(), reference_work(setup), [&](std::int64_t n) {
    const Problem p = setup.problem(n / setup.shape.heads, n % setup.shape.heads);
    const kernels::StridedMatrix rows = setup.rows_of(out, p.entry, p.head, setup.q_offsets);
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const ReferenceRow r = reference.row(p, i);
      lse[static_cast<std::size_t>(p.first_row + i)] = r.lse;
      auto* to = const_cast<std::byte*>(static_cast<const std::byte*>(rows.data)) + i * rows.row_stride;
      std::copy(r.out.begin(), r.out.end(), reinterpret_cast<double*>(to));
    }
  });
  return result;
}

AttentionGradients reference_attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                            const ArrayView& dout, const AttentionOptions& options) {
  const AttentionArrays arrays{q, k, v, options.bias, dout, {}, {}};
  const Plan plan(types_of(arrays), options);
  const CheckedArguments setup = bound(plan.setup, plan.types, arrays);
  const Reference reference(setup, plan.blocks());
  AttentionGradients result{Array(DType::float64, q.shape), Array(DType::float64, k.shape),
                            Array(DType::float64, v.shape), plan.blocks().work()};
  const ArrayView g = in_one_form(dout, setup.layout);
  const auto place = [&](const Array& array, std::int64_t entry, std::int64_t head,
                         const std::vector<std::int64_t>& offsets, std::int64_t row) {
    const kernels::StridedMatrix rows =
        setup.rows_of(in_one_form(array.view(), setup.layout), entry, head, offsets);
    return reinterpret_cast<double*>(const_cast<std::byte*>(static_cast<const std::byte*>(rows.data)) +
                                     row * rows.row_stride);
  };
  core::parallel_for(setup.problems(), reference_work(setup), [&](std::int64_t n) {
    const Problem p = setup.problem(n / setup.shape.heads, n % setup.shape.heads);
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const Row dq =
          reference.dq(p, reference.row(p, i), setup.rows_of(g, p.entry, p.head, setup.q_offsets), i);
      std::copy(dq.begin(), dq.end(), place(result.dq, p.entry, p.head, setup.q_offsets, i));
    }
  });
  const Reference::Saved saved = reference.saved(dout);
  const std::int64_t kv_heads = setup.shape.kv_heads;
  core::parallel_for(setup.shape.entries * kv_heads, reference_work(setup), [&](std::int64_t n) {
    const std::int64_t entry = n / kv_heads, head = n % kv_heads;
    for (std::int64_t j = 0; j < setup.kv_length(entry); ++j) {
      const auto gradients = reference.key(entry, head, j, dout, saved);
      std::copy(gradients.dk.begin(), gradients.dk.end(), place(result.dk, entry, head, setup.kv_offsets, j));
      std::copy(gradients.dv.begin(), gradients.dv.end(), place(result.dv, entry, head, setup.kv_offsets, j));
    }
  });
  return result;
}

}  // namespace ejk::attn
