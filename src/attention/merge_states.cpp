// Merge of attention states, row by row. Rows are divided over threads; the parts of a row are summed in
// order.
// tests: tests/attention/test_merge_states.cpp
#include "ejk/merge_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using core::invalid;

// The arrays of a part as (B, heads, positions, elements), lse of one element.
struct State {
  ArrayView out, lse;
};

void require_float_state(const ArrayView& array, const char* what, std::size_t part) {
  if (!is_wide_float(array.dtype))
    throw invalid("{} of part {} is {}, not of a float type of 16 bits or more", what, part + 1,
                  name_of(array.dtype));
}

// Heads before positions, or after them.
Shape lse_shape(const ArrayView& out, AttentionLayout layout, LseLayout of) {
  Shape shape(out.shape.begin(), out.shape.end() - 1);
  const bool heads_last = layout != AttentionLayout::bhsd;
  if (heads_last == (of == LseLayout::hn)) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

AttentionLayout layout_of(const ArrayView& out, const std::optional<AttentionLayout>& given) {
  const AttentionLayout layout =
      given.value_or(out.rank() == 3 ? AttentionLayout::thd : AttentionLayout::bshd);
  const std::int64_t rank = layout == AttentionLayout::thd ? 3 : 4;
  if (out.rank() != rank)
    throw invalid("out of part 1 has the shape {}, and the layout {} has {} axes", to_string(out.shape),
                  name_of(layout), rank)
        .about("out 1");
  return layout;
}

LseLayout lse_layout_of(const AttentionState& first, AttentionLayout layout,
                        const std::optional<LseLayout>& given) {
  for (const LseLayout of : {LseLayout::hn, LseLayout::nh})
    if (of == given.value_or(of) && first.lse.shape == lse_shape(first.out, layout, of)) return of;
  const Shape wanted = lse_shape(first.out, layout, given.value_or(LseLayout::hn));
  throw invalid("lse of part 1 has the shape {}; that of out {} has {}", to_string(first.lse.shape),
                to_string(first.out.shape), to_string(wanted))
      .about("lse 1");
}

State in_one_form(const AttentionState& part, AttentionLayout layout, LseLayout lse_layout) {
  ArrayView lse = part.lse;
  if (layout == AttentionLayout::thd) {
    lse.shape.insert(lse.shape.begin(), 1);
    lse.strides.insert(lse.strides.begin(), 0);
  }
  if (lse_layout == LseLayout::nh) {
    std::swap(lse.shape[1], lse.shape[2]);
    std::swap(lse.strides[1], lse.strides[2]);
  }
  return {attn::in_one_form(part.out, layout), std::move(lse)};
}

struct Row {
  std::int64_t entry, head, position;

  const std::byte* in(const ArrayView& array) const {
    return array.data + entry * array.strides[0] + head * array.strides[1] + position * array.strides[2];
  }
};

double loaded(const ArrayView& lse, const Row& row) {
  double value = 0;
  attn::load(lse.dtype, row.in(lse), 0, 1, &value);
  return value;
}

std::byte* writable(const std::byte* of, const MutableArrayView& array, const ArrayView& view) {
  return array.data + (of - view.data);
}

}  // namespace

std::vector<AttentionState> unstacked(const AttentionState& stacked, std::int64_t axis) {
  const auto part_of = [axis](ArrayView array, std::int64_t part) {
    const auto at = static_cast<std::ptrdiff_t>(axis);
    if (array.data != nullptr) array.data += part * array.strides[static_cast<std::size_t>(axis)];
    array.shape.erase(array.shape.begin() + at);
    array.strides.erase(array.strides.begin() + at);
    return array;
  };
  if (axis < 0 || axis >= stacked.lse.rank() || axis >= stacked.out.rank())
    throw invalid("there is no axis {} in the shapes {} and {}", axis, to_string(stacked.out.shape),
                  to_string(stacked.lse.shape));
  const auto a = static_cast<std::size_t>(axis);
  if (stacked.out.shape[a] != stacked.lse.shape[a])
    throw invalid("axis {} has {} parts of out and {} of lse", axis, stacked.out.shape[a],
                  stacked.lse.shape[a]);
  std::vector<AttentionState> parts;
  for (std::int64_t n = 0; n < stacked.out.shape[a]; ++n)
    parts.push_back({part_of(stacked.out, n), part_of(stacked.lse, n)});
  return parts;
}

MergedStates merge_states(const std::vector<AttentionState>& parts, const MergeSettings& settings) {
  if (parts.empty()) throw invalid("there is no part to merge");
  if (settings.lse_empty != LseEmpty::minus_infinity && settings.lse_empty != LseEmpty::infinity)
    throw core::usage("a part without keys has an lse of -inf or inf, not {}", name_of(settings.lse_empty));
  const AttentionState& first = parts.front();
  const AttentionLayout layout = layout_of(first.out, settings.layout);
  const LseLayout lse_layout = lse_layout_of(first, layout, settings.lse_layout);
  DType lse_dtype = DType::float32;
  std::vector<State> states;
  for (std::size_t n = 0; n < parts.size(); ++n) {
    for (const auto& [array, of_first, what] :
         {std::tuple{&parts[n].out, &first.out, "out"}, {&parts[n].lse, &first.lse, "lse"}}) {
      require_float_state(*array, what, n);
      if (array->shape != of_first->shape)
        throw invalid("{} of part {} has the shape {}, and that of part 1 {}", what, n + 1,
                      to_string(array->shape), to_string(of_first->shape))
            .about(fmt::format("{} {}", what, n + 1));
    }
    if (parts[n].lse.dtype == DType::float64) lse_dtype = DType::float64;
    states.push_back(in_one_form(parts[n], layout, lse_layout));
  }
  const DType out_dtype = settings.dtype.value_or(first.out.dtype);
  if (!is_wide_float(out_dtype)) throw invalid("a result must be a float type, not {}", name_of(out_dtype));

  MergedStates merged;
  merged.out = Array(out_dtype, first.out.shape);
  merged.lse = Array(lse_dtype, first.lse.shape);
  const MutableArrayView to_out = merged.out.mutable_view(), to_lse = merged.lse.mutable_view();
  const State to = in_one_form({merged.out.view(), merged.lse.view()}, layout, lse_layout);
  AttentionConventions conventions;
  conventions.lse_base = settings.lse_base;
  conventions.lse_empty = settings.lse_empty;
  const attn::LseForm form(conventions);
  const Shape& shape = to.out.shape;
  const std::int64_t heads = shape[1], positions = shape[2], size = shape[3];
  merged.parts = std::ssize(parts);
  merged.rows = shape[0] * heads * positions;
  std::atomic<std::int64_t> empty{0}, not_finite{0},
      first_not_finite{std::numeric_limits<std::int64_t>::max()};

  constexpr std::int64_t kAtOnce = 64;
  const double work = static_cast<double>(merged.rows) * static_cast<double>(merged.parts) *
                      (20 + 2 * static_cast<double>(size));
  core::parallel_for(core::ceil_div(merged.rows, kAtOnce), work, [&](std::int64_t chunk) {
    std::vector<double> weights(states.size()), sum(static_cast<std::size_t>(size)), row(sum.size());
    for (std::int64_t n = chunk * kAtOnce; n < std::min(merged.rows, (chunk + 1) * kAtOnce); ++n) {
      const Row at{n / heads / positions, n % heads, n / heads % positions};
      double most = attn::RowEnd<double>::kEmpty, total = 0;
      bool is_finite = true;
      for (std::size_t p = 0; p < states.size(); ++p) {
        weights[p] = form.natural(loaded(states[p].lse, at), attn::kNoSink);
        is_finite = is_finite && weights[p] < std::numeric_limits<double>::infinity();
        most = attn::larger_of(most, weights[p]);
      }
      std::fill(sum.begin(), sum.end(), 0);
      const bool is_empty = most == attn::RowEnd<double>::kEmpty;
      for (std::size_t p = 0; p < states.size() && !is_empty; ++p) {
        const double weight = std::exp(weights[p] - most);
        if (weight == 0) continue;
        total += weight;
        attn::load(states[p].out.dtype, at.in(states[p].out), states[p].out.strides[3], size, row.data());
        for (std::size_t d = 0; d < row.size(); ++d) sum[d] += weight * row[d];
      }
      if (!is_empty)
        for (double& value : sum) value /= total;
      const double lse = form.given(attn::RowEnd<double>{most, total}.lse());
      attn::store(sum.data(), size, out_dtype, writable(at.in(to.out), to_out, to.out));
      attn::store(&lse, 1, lse_dtype, writable(at.in(to.lse), to_lse, to.lse));
      if (is_empty) ++empty;
      if (is_finite) continue;
      ++not_finite;
      std::int64_t before = first_not_finite;
      while (n < before && !first_not_finite.compare_exchange_weak(before, n)) {
      }
    }
  });
  merged.rows_without_key = empty;
  merged.rows_not_finite = not_finite;
  if (const std::int64_t n = first_not_finite; not_finite > 0) {
    merged.first_row_not_finite = {n / heads / positions, n % heads, n / heads % positions};
    if (lse_layout == LseLayout::nh)
      std::swap(merged.first_row_not_finite[1], merged.first_row_not_finite[2]);
    if (layout == AttentionLayout::thd)
      merged.first_row_not_finite.erase(merged.first_row_not_finite.begin());
  }
  return merged;
}

Report describe(const MergedStates& merged) {
  Report report;
  report.add("parts", "parts", merged.parts, Unit::count)
      .add("out", "out", merged.out.shape())
      .add("out_dtype", "of dtype", std::string(name_of(merged.out.dtype())))
      .add("lse", "lse", merged.lse.shape())
      .add("lse_dtype", "of dtype", std::string(name_of(merged.lse.dtype())))
      .add("rows", "queries", merged.rows, Unit::rows)
      .add("rows_without_key", "without a key in any part", merged.rows_without_key, Unit::rows);
  if (merged.rows_not_finite > 0)
    report.warnings.push_back(
        fmt::format("{} of {} queries have an lse of NaN or +inf in a part, and so are their results: the "
                    "first is lse{}",
                    merged.rows_not_finite, merged.rows, to_string(merged.first_row_not_finite)));
  return report;
}

}  // namespace ejk
