// Largest inputs of each batch entry and key head, without rows that have no key and keys that no query
// attends to. The scan of a mask has counted these.
// tests: tests/verdict/attention/test_check.cpp
#include "verdict/attention/bounds.hpp"

#include "attention/numbers.hpp"
#include "core/parallel.hpp"

namespace ejk::attn {

namespace {

struct Extent {
  double most = 0, longest = 0;

  void add(const kernels::StridedMatrix& rows, const std::vector<bool>& attend, std::int64_t columns) {
    std::vector<double> row(static_cast<std::size_t>(columns));
    for (std::size_t i = 0; i < attend.size(); ++i) {
      if (!attend[i]) continue;
      load_row(rows, static_cast<std::int64_t>(i), 0, columns, row.data());
      double squares = 0;
      for (const double value : row) {
        if (!std::isfinite(value)) continue;
        most = std::max(most, std::abs(value));
        squares += value * value;
      }
      longest = std::max(longest, std::sqrt(squares));
    }
  }
};

template <class F>
void for_each_part(const CheckedArguments& setup, double elements, F&& f) {
  core::parallel_for(setup.shape.entries * setup.shape.kv_heads, 3 * elements, [&](std::int64_t n) {
    f(static_cast<std::size_t>(n), n / setup.shape.kv_heads, n % setup.shape.kv_heads);
  });
}

}  // namespace

Bounds::Bounds(const CheckedArguments& setup, const MaskPlan& plan, DType arithmetic)
    : setup_(setup),
      plan_(plan),
      unit_(arithmetic == DType::float64 ? 0x1p-29 : 1),
      parts_(
          static_cast<std::size_t>(std::max<std::int64_t>(1, setup.shape.entries) * setup.shape.kv_heads)) {
  const double elements = static_cast<double>(element_count(setup.q.shape)) +
                          static_cast<double>(element_count(setup.k.shape)) +
                          static_cast<double>(element_count(setup.v.shape));
  for_each_part(setup, elements, [&](std::size_t n, std::int64_t entry, std::int64_t kv_head) {
    Extent q, k, v;
    const std::vector<bool> keys = attending_keys(setup, entry, kv_head, plan);
    for (std::int64_t h = kv_head * setup.group(); h < (kv_head + 1) * setup.group(); ++h) {
      const Problem p = setup.problem(entry, h);
      q.add(p.q, attending_queries(p, plan), setup.shape.head_size);
    }
    k.add(setup.rows_of(setup.k, entry, kv_head, setup.kv_offsets), keys, setup.shape.head_size);
    v.add(setup.rows_of(setup.v, entry, kv_head, setup.kv_offsets), keys, setup.shape.value_size);
    Part& part = parts_[n];
    part.unit = unit_;
    part.lse_unit = setup.ends.lse.unit;
    part.q = q.most;
    part.k = k.most;
    part.v = setup.kept_factor * v.most;
    part.kept = setup.kept_factor;
    part.longest_k = k.longest;
    part.longest_v = setup.kept_factor * v.longest;
    part.scores = std::abs(setup.scale) * q.longest * k.longest;
  });
}

void Bounds::set(const ArrayView& dout, const std::vector<double>& lse) {
  const ArrayView g = in_one_form(dout, setup_.layout);
  for_each_part(setup_, static_cast<double>(element_count(dout.shape)),
                [&](std::size_t n, std::int64_t entry, std::int64_t kv_head) {
                  Extent of_dout;
                  double lse_most = 0;
                  for (std::int64_t h = kv_head * setup_.group(); h < (kv_head + 1) * setup_.group(); ++h) {
                    const Problem p = setup_.problem(entry, h);
                    of_dout.add(setup_.rows_of(g, entry, h, setup_.q_offsets), attending_queries(p, plan_),
                                setup_.shape.value_size);
                    for (std::int64_t i = 0; i < p.q_length; ++i) {
                      const double value = lse[static_cast<std::size_t>(p.first_row + i)];
                      if (std::isfinite(value)) lse_most = std::max(lse_most, std::abs(value));
                    }
                  }
                  Part& part = parts_[n];
                  part.dv_floor = 0x1p-22 * (1 + part.scores + lse_most) * of_dout.most;
                  part.ds_floor = part.dv_floor * std::abs(setup_.scale) *
                                  static_cast<double>(setup_.shape.value_size) * part.v;
                });
  for (std::int64_t h = 0; h < setup_.shape.kv_heads && setup_.has_sinks(); ++h) {
    double floor = 0;
    const auto of_entry = [&](std::int64_t e) -> Part& {
      return parts_[static_cast<std::size_t>(e * setup_.shape.kv_heads + h)];
    };
    for (std::int64_t e = 0; e < setup_.shape.entries; ++e)
      floor = std::max(floor,
                       of_entry(e).dv_floor * static_cast<double>(setup_.shape.value_size) * of_entry(e).v);
    for (std::int64_t e = 0; e < setup_.shape.entries; ++e) of_entry(e).dsinks_floor = floor;
  }
  if (!setup_.bias) return;
  bias_parts_.assign(static_cast<std::size_t>(setup_.bias_shape[0] * setup_.bias_shape[1]), {unit_});
  for (std::int64_t e = 0; e < setup_.shape.entries; ++e)
    for (std::int64_t h = 0; h < setup_.shape.heads; ++h) {
      const Part& part = parts_[static_cast<std::size_t>(e * setup_.shape.kv_heads + h / setup_.group())];
      double& floor =
          of_bias(setup_.bias_has(BiasAxis::entries) ? e : 0, setup_.bias_has(BiasAxis::heads) ? h : 0).floor;
      floor = std::max(floor, part.dv_floor * static_cast<double>(setup_.shape.value_size) * part.v);
    }
}

void Bounds::set_most_of_bias(const ArrayView& dbias) {
  const ArrayView all = with_four_axes(dbias);
  const std::vector<bool> rows(static_cast<std::size_t>(all.shape[2]), true);
  core::parallel_for(
      std::ssize(bias_parts_), 3 * static_cast<double>(element_count(dbias.shape)), [&](std::int64_t n) {
        Extent extent;
        extent.add(setup_.rows_of(all, n / all.shape[1], n % all.shape[1], {}), rows, all.shape[3]);
        bias_parts_[static_cast<std::size_t>(n)].most = extent.most;
      });
}

void Bounds::set_most_of_sinks(const ArrayView& dsinks) {
  double most = 0;
  for (std::int64_t h = 0; h < dsinks.shape[0]; ++h) {
    const double size = std::abs(load_lse(dsinks, {h}));
    if (std::isfinite(size)) most = std::max(most, size);
  }
  for (Part& part : parts_) part.dsinks_most = most;
}

void Bounds::set_most(double Part::*most, RowsOf of, const ArrayView& gradient) {
  const ArrayView all = in_one_form(gradient, setup_.layout);
  const bool of_keys = of == RowsOf::keys;
  const std::int64_t heads = of_keys ? 1 : setup_.group();
  for_each_part(setup_, static_cast<double>(element_count(gradient.shape)),
                [&](std::size_t n, std::int64_t entry, std::int64_t kv_head) {
                  const std::int64_t length = of_keys ? setup_.kv_length(entry) : setup_.q_length(entry);
                  Extent extent;
                  for (std::int64_t h = kv_head * heads; h < (kv_head + 1) * heads; ++h)
                    extent.add(setup_.rows_of(all, entry, h, of_keys ? setup_.kv_offsets : setup_.q_offsets),
                               std::vector<bool>(static_cast<std::size_t>(length), true), all.shape[3]);
                  parts_[n].*most = extent.most;
                });
}

}  // namespace ejk::attn
