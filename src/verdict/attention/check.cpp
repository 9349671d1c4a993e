// Check of results against the reference, row by row; of large problems a sample of the rows.
// tests: tests/verdict/attention/test_check.cpp
#include "verdict/attention/against.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "attention/numbers.hpp"
#include "compare/error_stats.hpp"
#include "compare/report_parts.hpp"
#include "compare/sample.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/attention/bounds.hpp"
#include "verdict/attention/reference.hpp"
#include "verdict/attention/rows.hpp"
#include "verdict/attention/saved.hpp"

namespace ejk::attn {

namespace {

std::vector<Place> choose(const Rows& rows, std::int64_t wanted) {
  std::vector<Place> places;
  for (const std::int64_t n : verify::sample_rows(rows.count(), wanted - 2)) places.push_back(rows.at(n));
  return places;
}

struct Position {
  std::int64_t order = 0;
  Place place;
  std::int64_t element = 0;
  bool operator<(const Position& o) const {
    return std::tie(order, place, element) < std::tie(o.order, o.place, o.element);
  }
};

struct Compared {
  std::string name;
  const CheckedArguments& setup;
  const Rows& rows;
  ArrayView array;  // as (B, heads, positions, elements), or lse as it is
  std::optional<DType> rounded_first{};
  Bounds::Rounding rounding = Bounds::rounding(array.dtype, rounded_first);
  verify::ErrorStats<Position> stats{array.dtype, rounded_first};

  void row(std::int64_t order, const Place& place, const std::vector<double>& reference, double absolute) {
    row(order, place, 0, reference, [&](std::size_t) { return absolute; });
  }

  // Elements from `first` on, with their tolerances beside rounding.
  template <class F>
  void row(std::int64_t order, const Place& place, std::int64_t first, const std::vector<double>& reference,
           F&& absolute) {
    const kernels::StridedMatrix matrix = setup.rows_of(array, place.entry, place.head, rows.offsets());
    std::vector<double> got(reference.size());
    load_row(matrix, place.row, first, std::ssize(got), got.data());
    for (std::size_t d = 0; d < got.size(); ++d) {
      const double size = std::isfinite(reference[d]) ? std::abs(reference[d]) : 0;
      stats.see({order, place, first + static_cast<std::int64_t>(d)}, got[d], reference[d],
                absolute(d) + rounding.relative * size + rounding.least);
    }
  }

  void lse(std::int64_t order, const Place& place, double reference, double absolute) {
    stats.see({order, place}, load_lse(array, rows.index_in_lse(place)), reference, absolute);
  }

  AttentionDifference difference(const verify::Largest<Position, verify::Deviation>& found) const {
    const auto& [value, reference, size, allowed] = found.item;
    const Place& place = found.at.place;
    return {name,  array.rank() < 4 ? rows.index_in_lse(place) : rows.index_of(place, found.at.element),
            value, reference,
            size,  allowed};
  }
};

void conclude(AttentionCheck& check, const std::vector<const Compared*>& arrays) {
  const Compared* worst = nullptr;
  for (const Compared* array : arrays) {
    const auto& stats = array->stats;
    check.compared += stats.compared;
    check.nonzero += stats.nonzero;
    check.violating += stats.violating;
    if (stats.largest.found) check.largest.push_back(array->difference(stats.largest));
    if (stats.worst.found && (worst == nullptr || stats.worst.is_above(worst->stats.worst))) worst = array;
  }
  if (worst != nullptr) check.worst = worst->difference(worst->stats.worst);
}

// The number of rows that the effort allows, of `count` rows with so much work in all.
std::int64_t affordable(std::int64_t count, double work, double effort) {
  if (work <= effort || count == 0) return count;
  return std::max<std::int64_t>(16, static_cast<std::int64_t>(effort / (work / static_cast<double>(count))));
}

// The work of `chosen` of `count` rows.
double share(std::size_t chosen, std::int64_t count, double work) {
  return work * static_cast<double>(chosen) / static_cast<double>(std::max<std::int64_t>(count, 1));
}

void check_shape(const ArrayView& array, const char* name, const Shape& shape) {
  if (array.shape != shape || !is_wide_float(array.dtype))
    throw core::invalid("{} to be checked is {} of {}, not of {}", name, name_of(array.dtype),
                        to_string(array.shape), to_string(shape));
}

AttentionCheck check_forward(const CheckedArguments& setup, const MaskPlan& plan, const ArrayView& out,
                             const ArrayView& lse, double effort) {
  const Reference reference(setup, plan);
  const Rows queries(setup, RowsOf::queries);
  AttentionCheck result;
  result.elements = queries.count() * (setup.shape.value_size + 1);
  const double work = reference_work(setup);
  const auto chosen = choose(queries, affordable(queries.count(), work, effort));
  if (std::ssize(chosen) < queries.count()) result.method = AttentionCheck::Method::sampled_rows;

  const Bounds bounds(setup, plan, setup.shape.arithmetic);
  std::vector<ReferenceRow> rows(chosen.size());
  core::parallel_for(std::ssize(chosen), share(chosen.size(), queries.count(), work), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    rows[at] = reference.row(setup.problem(chosen[at].entry, chosen[at].head), chosen[at].row);
    // Release the vectors with an element for each key.
    rows[at].scores = std::vector<double>();
    rows[at].slopes = std::vector<double>();
  });
  Compared outs{"out", setup, queries, in_one_form(out, setup.layout)};
  outs.rounding.relative += bounds.relative_of_out();
  Compared lses{"lse", setup, queries, lse};
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const auto order = 2 * static_cast<std::int64_t>(n);
    const Bounds::Part& bound = bounds.of(queries, chosen[n]);
    outs.row(order, chosen[n], rows[n].out, bound.of_out(rows[n].lse));
    lses.lse(order + 1, chosen[n], reference.given_lse(rows[n]), bound.of_lse(rows[n].lse));
  }
  conclude(result, {&outs, &lses});
  return result;
}

struct BiasElements {
  Place place;
  Positions keys;
  Reference::BiasGradients right;
};

// Σ dS over all keys of the queries that a place serves; nothing where one of them is not finite.
Reference::BiasGradients zero_of_bias(const CheckedArguments& setup, const Place& place,
                                      const Reference::Saved& saved) {
  Reference::BiasGradients right{{0}, {0}, {}};
  const Region served = setup.queries_of_bias(
      {{place.entry, place.entry + 1}, {place.head, place.head + 1}, {place.row, place.row + 1}});
  const Positions queries = served.positions_of(setup.q.shape[2]);
  for (std::int64_t e = served.entries.begin; e < served.entries.end; ++e)
    for (std::int64_t h = served.heads.begin; h < served.heads.end; ++h)
      for (std::int64_t i = queries.begin; i < queries.end; ++i) {
        const auto at = static_cast<std::size_t>(setup.first_row(e, h) + i);
        if (saved.lse[at] == RowEnd<double>::kEmpty) continue;
        if (!std::isfinite(saved.lse[at]) || !std::isfinite(saved.delta[at])) return {};
        right.weights[0] += 1;
      }
  return right;
}

// Rows are cut into elements where each is a sum over all queries. A sum over all keys is 0, since Σ P = 1, and
// computed only if that is cheap, or with a sink, whose weight the sum lacks, or where the bias is capped.
std::vector<BiasElements> elements_of_bias(const CheckedArguments& setup, const Reference& reference,
                                           const ArrayView& dout, const Reference::Saved& saved,
                                           double effort) {
  const Rows rows(setup, RowsOf::bias);
  const std::int64_t columns = setup.bias_shape[3],
                     each = setup.bias_has(BiasAxis::queries) ? std::max<std::int64_t>(columns, 1) : 1;
  const std::int64_t in_row = columns / each, count = rows.count() * in_row;
  const double work = reference_work(setup);
  const bool is_capped = setup.softcap > 0 && setup.softcap_order == SoftcapOrder::after_bias;
  const bool is_zero = work > effort && !setup.bias_has(BiasAxis::keys) && !setup.has_sinks() && !is_capped;
  constexpr std::int64_t kZeros = 4096;
  std::vector<BiasElements> elements;
  for (const std::int64_t n :
       verify::sample_rows(count, (is_zero ? kZeros : affordable(count, work, effort)) - 2)) {
    const std::int64_t first = n % in_row * each;
    elements.push_back({rows.at(n / in_row), {first, first + each}, {}});
  }
  const double part = is_zero ? 0 : share(elements.size(), count, work);
  core::parallel_for(std::ssize(elements), part, [&](std::int64_t n) {
    BiasElements& it = elements[static_cast<std::size_t>(n)];
    it.right = is_zero ? zero_of_bias(setup, it.place, saved)
                       : reference.bias(it.place.entry, it.place.head, it.place.row, it.keys, dout, saved);
  });
  return elements;
}

AttentionCheck check_gradients(const CheckedArguments& setup, const MaskPlan& plan, const ArrayView& dout,
                               const std::vector<ArrayView>& results, std::optional<DType> rounded_first,
                               double effort) {
  const ArrayView &dq = results[0], &dk = results[1], &dv = results[2];
  const Reference reference(setup, plan);
  const Rows queries(setup, RowsOf::queries), keys(setup, RowsOf::keys);
  AttentionCheck result;
  result.elements = queries.count() * setup.shape.head_size +
                    keys.count() * (setup.shape.head_size + setup.shape.value_size);
  if (setup.bias) result.elements += element_count(setup.bias_shape);
  result.elements += std::ssize(setup.ends.sinks);
  const double work = reference_work(setup);
  const auto some_queries = choose(queries, affordable(queries.count(), work, effort / 2));
  const auto some_keys = choose(keys, affordable(keys.count(), work, effort / 2));
  const bool whole = std::ssize(some_queries) == queries.count() && std::ssize(some_keys) == keys.count();
  if (!whole) result.method = AttentionCheck::Method::sampled_rows;

  const ArrayView g = in_one_form(dout, setup.layout);
  const Reference::Saved saved = whole ? reference.saved(dout) : *saved_by_kernels(setup, plan, {}, dout);

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

  std::vector<BiasElements> of_bias;
  if (setup.bias) of_bias = elements_of_bias(setup, reference, dout, saved, effort / 2);

  Bounds bounds(setup, plan, setup.shape.arithmetic);
  bounds.set(dout, saved.lse);
  for (std::size_t n = 0; n < some_queries.size(); ++n) {
    double& most = bounds.of(queries, some_queries[n]).dq_most;
    most = std::max(most, most_finite(dq_rows[n]));
  }
  for (std::size_t n = 0; n < some_keys.size(); ++n) {
    Bounds::Part& bound = bounds.of(keys, some_keys[n]);
    bound.dk_most = std::max(bound.dk_most, most_finite(key_rows[n].dk));
    bound.dv_most = std::max(bound.dv_most, most_finite(key_rows[n].dv));
  }
  for (const BiasElements& it : of_bias) {
    double& most = bounds.of_bias(it.place.entry, it.place.head).most;
    most = std::max(most, most_finite(it.right.dbias));
  }
  const Rows rows_of_sinks(setup, RowsOf::sinks);
  std::vector<Reference::SinkGradient> of_sinks;
  for (std::int64_t h = 0; h < rows_of_sinks.count(); ++h) of_sinks.push_back(reference.sink(h, saved));
  double sinks_most = 0;
  for (const Reference::SinkGradient& it : of_sinks)
    sinks_most = std::max(sinks_most, most_finite({it.dsink}));
  const auto compared = [&](const char* name, const ArrayView& array, const Rows& rows) {
    return Compared{name, setup, rows, in_one_form(array, setup.layout), rounded_first};
  };
  Compared dqs = compared("dq", dq, queries), dks = compared("dk", dk, keys), dvs = compared("dv", dv, keys);
  std::int64_t order = 0;
  for (std::size_t n = 0; n < some_queries.size(); ++n)
    dqs.row(order++, some_queries[n], dq_rows[n], bounds.of(queries, some_queries[n]).of_dq());
  for (std::size_t n = 0; n < some_keys.size(); ++n) {
    const Bounds::Part& bound = bounds.of(keys, some_keys[n]);
    dks.row(order++, some_keys[n], key_rows[n].dk, bound.of_dk(key_rows[n].weight));
    dvs.row(order++, some_keys[n], key_rows[n].dv, bound.of_dv(key_rows[n].weight));
  }
  std::vector<const Compared*> arrays{&dqs, &dks, &dvs};
  const Rows rows_of_bias(setup, RowsOf::bias);
  std::optional<Compared> dbias;
  if (setup.bias) {
    dbias.emplace(Compared{"dbias", setup, rows_of_bias, with_four_axes(results[3]), rounded_first});
    for (const BiasElements& it : of_bias) {
      const Bounds::BiasPart& bound = bounds.of_bias(it.place.entry, it.place.head);
      dbias->row(order++, it.place, it.keys.begin, it.right.dbias,
                 [&](std::size_t d) { return bound.of_dbias(it.right.weights[d]); });
    }
    arrays.push_back(&*dbias);
  }
  std::optional<Compared> dsinks;
  if (setup.has_sinks()) {
    dsinks.emplace(Compared{"dsinks", setup, rows_of_sinks, of_sinks_form(results.back()), rounded_first});
    for (std::size_t h = 0; h < of_sinks.size(); ++h) {
      const Place place = rows_of_sinks.at(static_cast<std::int64_t>(h));
      Bounds::Part bound = bounds.of(rows_of_sinks, place);
      bound.dsinks_most = sinks_most;
      dsinks->row(order++, place, {of_sinks[h].dsink}, bound.of_dsinks(of_sinks[h].weight));
    }
    arrays.push_back(&*dsinks);
  }
  conclude(result, arrays);
  return result;
}

}  // namespace

AttentionCheck check(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& results,
                     double effort) {
  const CheckedArguments setup = bound(plan.setup, plan.types, arrays, SavedResults::ignored);
  if (results.size() != plan.results.size())
    throw core::invalid("{} results are to be checked, not {}", plan.results.size(), results.size());
  for (std::size_t r = 0; r < results.size(); ++r)
    check_shape(results[r], plan.results[r].name.c_str(), plan.results[r].type.shape);
  if (!setup.gradients) return check_forward(setup, plan.blocks(), results[0], results[1], effort);
  return check_gradients(setup, plan.blocks(), *arrays.dout, results, plan.rounded_first, effort);
}

std::int64_t check_bytes(const Plan& plan) {
  const Sizes& s = plan.setup.shape;
  std::int64_t all = core::bytes_of_estimate(reference_bytes(plan.setup));
  for (const PlannedArray& result : plan.results)
    all = core::sum_of_bytes({all, byte_count(result.type.shape, DType::float64)});
  if (!plan.setup.gradients) return all;
  return core::sum_of_bytes({all, byte_count(s.lse, DType::float64), byte_count(s.lse, DType::float64),
                             byte_count(s.out, s.arithmetic), byte_count(s.lse, s.arithmetic)});
}

}  // namespace ejk::attn

namespace ejk {

AttentionCheck check_results(const AttentionPlan& plan, const AttentionArrays& arrays,
                             const std::vector<ArrayView>& results) {
  return attn::check(plan.internal(), arrays, results, attn::kCheckEffort);
}

std::int64_t bytes_to_check(const AttentionPlan& plan) { return attn::check_bytes(plan.internal()); }

AttentionCheck check_attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const AttentionOptions& options, const ArrayView& out, const ArrayView& lse) {
  const AttentionArrays arrays = operands_of(q, k, v, options);
  return check_results(AttentionPlan(types_of(arrays), options), arrays, {out, lse});
}

AttentionCheck check_attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                    const ArrayView& dout, const AttentionOptions& options,
                                    const ArrayView& dq, const ArrayView& dk, const ArrayView& dv,
                                    const std::optional<ArrayView>& dbias,
                                    const std::optional<ArrayView>& dsinks) {
  AttentionArrays arrays = operands_of(q, k, v, options);
  arrays.dout = dout;
  std::vector<ArrayView> results{dq, dk, dv};
  if (dbias) results.push_back(*dbias);
  if (dsinks) results.push_back(*dsinks);
  return check_results(AttentionPlan(types_of(arrays), options), arrays, results);
}

Report describe(const AttentionCheck& check) {
  const bool every = check.method == AttentionCheck::Method::every_element;
  Report report =
      verify::describe_check(check.passed(), every, check.elements, check.compared, check.violating);
  Table table = verify::table_of_differences("array", true);
  const auto row = [&](const std::string& name, const AttentionDifference& d) {
    table.rows.push_back({name, d.size, d.allowed, d.index, d.value, d.reference});
  };
  for (const AttentionDifference& d : check.largest) row(d.array, d);
  if (check.worst) row("worst: " + check.worst->array, *check.worst);
  report.add(std::move(table));
  verify::warn_if_vacuous(report, check.compared > 0, check.compared, check.nonzero);
  return report;
}

}  // namespace ejk
