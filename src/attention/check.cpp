// Comparing attention with its plain form, row by row; where that takes too long, a sample of the rows.
//
// tests: tests/attention/test_check.cpp
#include "attention/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/forward.hpp"
#include "attention/numbers.hpp"
#include "attention/reference.hpp"
#include "core/mixed.hpp"
#include "core/parallel.hpp"
#include "matmul/check.hpp"

namespace ejk::attn {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double finer(DType arithmetic) { return arithmetic == DType::float64 ? 0x1p-29 : 1; }

double half_spacing(DType dtype) {
  return dtype == DType::float16    ? 0x1p-11
         : dtype == DType::bfloat16 ? 0x1p-8
         : dtype == DType::float32  ? 0x1p-24
                                    : 0x1p-53;
}

double half_of_least(DType dtype) {
  return dtype == DType::float16 ? 0x1p-25 : dtype == DType::float64 ? 0x1p-1074 : 0x1p-127;
}

// What rounds to an infinity.
double overflow(DType dtype) {
  return dtype == DType::float16    ? 65520
         : dtype == DType::bfloat16 ? 0x1.FFp127
         : dtype == DType::float32  ? 0x1.FFFFFFp127
                                    : std::numeric_limits<double>::infinity();
}

// Of the finite elements of an array of (B, heads, positions, elements): the largest, and the longest row.
struct Extent {
  double most = 0, longest = 0;
};

Extent extent_of(const ArrayView& array) {
  const std::int64_t rows = array.shape[0] * array.shape[1] * array.shape[2], size = array.shape[3];
  std::vector<double> row(static_cast<std::size_t>(size));
  Extent all;
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t b = n / (array.shape[1] * array.shape[2]), h = n / array.shape[2] % array.shape[1],
                       i = n % array.shape[2];
    load(array.dtype, array.data + b * array.strides[0] + h * array.strides[1] + i * array.strides[2],
         array.strides[3], size, row.data());
    double squares = 0;
    for (const double value : row) {
      if (!std::isfinite(value)) continue;
      all.most = std::max(all.most, std::abs(value));
      squares += value * value;
    }
    all.longest = std::max(all.longest, std::sqrt(squares));
  }
  return all;
}

// Rows of an array of (B, heads, positions, ·): all of them, or a sample, in order.
struct Place {
  std::int64_t entry, head, row;  // row: within the entry
};

class Places {
 public:
  enum class Of { queries, keys };

  Places(const Setup& setup, Of of) : setup_(setup), of_(of) {
    for (std::int64_t e = 0; e < setup.shape.entries; ++e)
      first_.push_back(first_.back() + heads() * length(e));
  }
  std::int64_t count() const { return first_.back(); }

  Place at(std::int64_t n) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), n);
    const std::int64_t entry = after - first_.begin() - 1, in_entry = n - after[-1], rows = length(entry);
    return {entry, in_entry / rows, in_entry % rows};
  }

  std::vector<Place> choose(std::int64_t wanted) const {
    std::vector<std::int64_t> chosen;
    if (wanted >= count()) {
      for (std::int64_t n = 0; n < count(); ++n) chosen.push_back(n);
    } else {
      chosen = {0, count() - 1};
      for (std::int64_t n = 2; n < wanted; ++n)
        chosen.push_back(static_cast<std::int64_t>(core::mixed(static_cast<std::uint64_t>(n)) %
                                                   static_cast<std::uint64_t>(count())));
      std::sort(chosen.begin(), chosen.end());
      chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    }
    std::vector<Place> places;
    for (const std::int64_t n : chosen) places.push_back(at(n));
    return places;
  }

 private:
  std::int64_t heads() const { return of_ == Of::queries ? setup_.shape.heads : setup_.shape.kv_heads; }
  std::int64_t length(std::int64_t e) const {
    return of_ == Of::queries ? setup_.q_length(e) : setup_.kv_length(e);
  }

  const Setup& setup_;
  Of of_;
  std::vector<std::int64_t> first_{0};
};

// One array of results, and what is known of its elements.
struct Compared {
  std::string name;
  ArrayView array;                           // as (B, heads, positions, elements)
  const std::vector<std::int64_t>* offsets;  // of its positions
  double relative = 0;                       // of what is allowed
};

class Judge {
 public:
  Judge(const Setup& setup, AttentionCheck& check) : setup_(setup), check_(check) {}

  void row(const Compared& c, const Place& place, const double* reference, std::int64_t size,
           double absolute) {
    const kernels::Block rows = setup_.rows_of(c.array, place.entry, place.head, *c.offsets);
    std::vector<double> got(static_cast<std::size_t>(size));
    load_row(rows, place.row, 0, size, got.data());
    for (std::int64_t d = 0; d < size; ++d)
      element(c, place, d, got[static_cast<std::size_t>(d)], reference[d], absolute);
  }

  void lse(const ArrayView& array, const Place& place, double reference, double absolute) {
    const Shape index =
        setup_.packed()
            ? Shape{place.head, setup_.q_offsets[static_cast<std::size_t>(place.entry)] + place.row}
            : Shape{place.entry, place.head, place.row};
    const std::byte* at = array.data;
    for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * array.strides[d];
    double value = 0;
    load(array.dtype, at, 0, 1, &value);
    note("lse", index, value, reference, absolute);
  }

 private:
  void element(const Compared& c, const Place& place, std::int64_t d, double value, double reference,
               double absolute) {
    const std::int64_t row =
        place.row + (setup_.packed() ? (*c.offsets)[static_cast<std::size_t>(place.entry)] : 0);
    const double size = std::isfinite(reference) ? std::abs(reference) : 0;
    const double allowed = absolute + c.relative * size + half_of_least(c.array.dtype);
    // Beyond the result's type.
    if (std::isinf(value) && size + allowed >= overflow(c.array.dtype) &&
        std::signbit(value) == std::signbit(reference))
      value = reference;
    Shape index = setup_.packed()                          ? Shape{row, place.head, d}
                  : setup_.layout == AttentionLayout::bshd ? Shape{place.entry, row, place.head, d}
                                                           : Shape{place.entry, place.head, row, d};
    note(c.name, std::move(index), value, reference, allowed);
  }

  void note(const std::string& name, Shape index, double value, double reference, double allowed) {
    ++check_.compared;
    check_.nonzero += value != 0 || reference != 0;
    const bool same = value == reference || (std::isnan(value) && std::isnan(reference));
    double size = same ? 0 : std::abs(value - reference);
    if (std::isnan(size)) size = kInfinity;
    AttentionDifference d{name, std::move(index), value, reference, size, allowed};
    const bool violates = !(size <= allowed);
    check_.violating += violates;
    const auto at = std::find_if(check_.largest.begin(), check_.largest.end(),
                                 [&](const AttentionDifference& l) { return l.array == name; });
    if (violates && (!check_.worst || beyond(d) > beyond(*check_.worst))) check_.worst = d;
    if (at == check_.largest.end())
      check_.largest.push_back(std::move(d));
    else if (size > at->size)
      *at = std::move(d);
  }

  static double beyond(const AttentionDifference& d) { return d.size / std::max(d.allowed, 0x1p-1074); }

  const Setup& setup_;
  AttentionCheck& check_;
};

// How many rows the effort allows, of `count` rows that take so much work in all.
std::int64_t affordable(std::int64_t count, double work, double effort) {
  if (work <= effort || count == 0) return count;
  return std::max<std::int64_t>(16, static_cast<std::int64_t>(effort / (work / static_cast<double>(count))));
}

// What `chosen` of `count` rows take of the work of all.
double share(std::size_t chosen, std::int64_t count, double work) {
  return work * static_cast<double>(chosen) / static_cast<double>(std::max<std::int64_t>(count, 1));
}

void check_shape(const ArrayView& array, const char* name, const Shape& shape) {
  if (array.shape != shape || !is_float(array.dtype))
    throw Error(Error::Kind::input,
                fmt::format("{} to be checked is {} of {}, not of {}", name, name_of(array.dtype),
                            to_string(array.shape), to_string(shape)));
}

double most_finite(const std::vector<double>& values) {
  double all = 0;
  for (const double value : values)
    if (std::isfinite(value)) all = std::max(all, std::abs(value));
  return all;
}

AttentionCheck check_forward(const Setup& setup, const MaskPlan& plan, const ArrayView& out,
                             const ArrayView& lse, double effort) {
  const Reference reference(setup, plan);
  const Places places(setup, Places::Of::queries);
  AttentionCheck result;
  result.elements = element_count(out.shape) + element_count(lse.shape);
  const double work = reference_work(setup);
  const auto chosen = places.choose(affordable(places.count(), work, effort));
  if (std::ssize(chosen) < places.count()) result.method = AttentionCheck::Method::sampled_rows;

  const double u = finer(setup.shape.arithmetic);
  const double scores = std::abs(setup.scale) * extent_of(setup.q).longest * extent_of(setup.k).longest;
  const double v_most = extent_of(setup.v).most;
  const Compared c{"out", in_one_form(out, setup.layout), &setup.q_offsets,
                   2e-5 * u + half_spacing(out.dtype)};
  std::vector<ReferenceRow> rows(chosen.size());
  core::parallel_for(std::ssize(chosen), share(chosen.size(), places.count(), work), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    rows[at] = reference.row(setup.problem(chosen[at].entry, chosen[at].head), chosen[at].row);
    // Let go of what is as long as there are keys.
    rows[at].scores = std::vector<double>();
    rows[at].slopes = std::vector<double>();
  });
  Judge judge(setup, result);
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const double size = std::isfinite(rows[n].lse) ? std::abs(rows[n].lse) : 0;
    const double inexact = u * 0x1p-21 * (scores + size);
    judge.row(c, chosen[n], rows[n].out.data(), setup.shape.value_size, (2e-6 * u + inexact) * v_most);
    judge.lse(lse, chosen[n], rows[n].lse, 1e-5 * u * std::max(1.0, size) + inexact);
  }
  return result;
}

AttentionCheck check_gradients(const Setup& setup, const MaskPlan& plan, const ArrayView& dout,
                               const ArrayView& dq, const ArrayView& dk, const ArrayView& dv, double effort) {
  const Reference reference(setup, plan);
  const Places queries(setup, Places::Of::queries), keys(setup, Places::Of::keys);
  AttentionCheck result;
  result.elements = element_count(dq.shape) + element_count(dk.shape) + element_count(dv.shape);
  const double work = reference_work(setup);
  const auto some_queries = queries.choose(affordable(queries.count(), work, effort / 2));
  const auto some_keys = keys.choose(affordable(keys.count(), work, effort / 2));
  const bool whole = std::ssize(some_queries) == queries.count() && std::ssize(some_keys) == keys.count();
  if (!whole) result.method = AttentionCheck::Method::sampled_rows;

  Reference::Saved saved;
  const ArrayView g = in_one_form(dout, setup.layout);
  if (whole) {
    saved = reference.saved(dout);
  } else {
    Array out(setup.shape.arithmetic, setup.shape.out), lse(setup.shape.arithmetic, setup.shape.lse);
    forward(setup, plan, Target(setup, out.mutable_view()), lse.data(), {});
    saved.lse.resize(static_cast<std::size_t>(lse.size()));
    load(lse.dtype(), lse.data(), size_of(lse.dtype()), lse.size(), saved.lse.data());
    saved.delta = reference.deltas(dout, out.view());
  }

  std::vector<std::vector<double>> dq_rows(some_queries.size());
  core::parallel_for(
      std::ssize(some_queries), share(some_queries.size(), queries.count(), work), [&](std::int64_t n) {
        const auto at = static_cast<std::size_t>(n);
        const Place& place = some_queries[at];
        const Problem p = setup.problem(place.entry, place.head);
        dq_rows[at] = reference.dq(p, reference.row(p, place.row),
                                   setup.rows_of(g, place.entry, place.head, setup.q_offsets), place.row);
      });
  std::vector<Reference::KeyGradients> key_rows(some_keys.size());
  core::parallel_for(std::ssize(some_keys), share(some_keys.size(), keys.count(), work), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    key_rows[at] = reference.key(some_keys[at].entry, some_keys[at].head, some_keys[at].row, dout, saved);
  });

  const double u = finer(setup.shape.arithmetic);
  const Extent of_q = extent_of(setup.q), of_k = extent_of(setup.k);
  const double v_most = extent_of(setup.v).most, g_most = extent_of(g).most;
  const double scores = std::abs(setup.scale) * of_q.longest * of_k.longest + most_finite(saved.lse);
  const double dv_floor = 0x1p-22 * (1 + scores) * g_most;
  const double ds_floor =
      dv_floor * std::abs(setup.scale) * static_cast<double>(setup.shape.value_size) * v_most;
  double dq_most = 0, dk_most = 0, dv_most = 0;
  for (const auto& row : dq_rows) dq_most = std::max(dq_most, most_finite(row));
  for (const auto& row : key_rows)
    dk_most = std::max(dk_most, most_finite(row.dk)), dv_most = std::max(dv_most, most_finite(row.dv));
  const Compared dq_array{"dq", in_one_form(dq, setup.layout), &setup.q_offsets, half_spacing(dq.dtype)};
  const Compared dk_array{"dk", in_one_form(dk, setup.layout), &setup.kv_offsets, half_spacing(dk.dtype)};
  const Compared dv_array{"dv", in_one_form(dv, setup.layout), &setup.kv_offsets, half_spacing(dv.dtype)};
  Judge judge(setup, result);
  for (std::size_t n = 0; n < some_queries.size(); ++n)
    judge.row(dq_array, some_queries[n], dq_rows[n].data(), setup.shape.head_size,
              u * (1e-4 * dq_most + ds_floor * of_k.most));
  for (std::size_t n = 0; n < some_keys.size(); ++n) {
    const double weight = std::max(1.0, key_rows[n].weight);
    judge.row(dk_array, some_keys[n], key_rows[n].dk.data(), setup.shape.head_size,
              u * (1e-4 * dk_most + ds_floor * weight * of_q.most));
    judge.row(dv_array, some_keys[n], key_rows[n].dv.data(), setup.shape.value_size,
              u * (1e-4 * dv_most + dv_floor * weight));
  }
  return result;
}

}  // namespace

AttentionCheck check(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& results,
                     double effort) {
  const Setup setup = bound(plan.setup, plan.types, arrays, SavedResults::ignored);
  if (results.size() != plan.results.size())
    throw Error(Error::Kind::input,
                fmt::format("{} results are to be checked, not {}", plan.results.size(), results.size()));
  for (std::size_t r = 0; r < results.size(); ++r)
    check_shape(results[r], plan.results[r].name.c_str(), plan.results[r].type.shape);
  if (!setup.gradients) return check_forward(setup, plan.blocks(), results[0], results[1], effort);
  return check_gradients(setup, plan.blocks(), *arrays.dout, results[0], results[1], results[2], effort);
}

}  // namespace ejk::attn

namespace ejk {

Report describe(const AttentionCheck& check) {
  const bool every = check.method == AttentionCheck::Method::every_element;
  Report report;
  report.add("passed", "within the tolerance", check.passed())
      .add("method", "compared with float64", std::string(every ? "every element" : "sampled rows"))
      .add("elements", "elements", check.elements, Unit::count)
      .add("compared", "compared", check.compared, Unit::count)
      .add("violating", "beyond the tolerance", check.violating, Unit::count);
  Table table{"differences",
              "largest differences from float64",
              {{"array", ""},
               {"difference", "difference"},
               {"allowed", "allowed"},
               {"index", "index"},
               {"value", "result"},
               {"reference", "float64"}},
              {}};
  const auto row = [&](const std::string& name, const AttentionDifference& d) {
    table.rows.push_back({name, d.size, d.allowed, d.index, d.value, d.reference});
  };
  for (const AttentionDifference& d : check.largest) row(d.array, d);
  if (check.worst) row("worst: " + check.worst->array, *check.worst);
  report.add(std::move(table));
  matmul::add_doubt(report, check.compared > 0, check.compared, check.nonzero);
  return report;
}

}  // namespace ejk
