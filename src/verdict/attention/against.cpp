// Comparison of every result row with its reference; of large problems with the library's own results, within
// the bounds of both. Cost: the reference, or one pass over the arrays; for gradients another backward pass
// for Σ P of each key.
// tests: tests/verdict/attention/test_against.cpp
#include "verdict/attention/against.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/numbers.hpp"
#include "core/elements.hpp"
#include "core/require.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/attention/saved.hpp"
#include "verdict/explain_rows.hpp"

namespace ejk::attn {

namespace {

// What results should be: views in the layout, and what their bounds need.
struct Right {
  std::vector<Array> owned;
  std::vector<ArrayView> results;
  SummedWeights weights;  // of gradients
  Array sink_weights;
  bool is_own = false;  // the library's result, with its own error
  Reference::Saved saved;
};

// Reads a row of a view of some results.
std::function<void(const Place&, double* values)> loader_of(const CheckedArguments& setup, const Rows& rows,
                                                            Result which, const ArrayView& view) {
  const ArrayView form = in_one_form(view, row_of(which).form, setup.layout);
  return [&setup, &rows, which, form](const Place& place, double* values) {
    if (which == Result::lse) {
      *values = load_lse(form, rows.index_in_lse(place));
      return;
    }
    const kernels::StridedMatrix matrix = setup.rows_of(form, place.entry, place.head, rows.offsets());
    load_row(matrix, place.row, 0, form.shape[3], values);
  };
}

// Tolerances of the rows of a result. `own`: bounds of the expected results where they have an error.
class Tolerances {
 public:
  Tolerances(const ActualAttention& it, Result which, DType given, DType expected, const Right& right,
             const Bounds& own)
      : it_(it), which_(which), right_(right), own_(own), rows_(it.rows_of(which)) {
    const auto add = [&](DType type, const Bounds& bounds) {
      const Bounds::Rounding narrow = Bounds::rounding(type, it.plan.rounded_first);
      relative_ += narrow.relative;
      least_ += narrow.least;
      if (which == Result::out) of_out_ += bounds.relative_of_out();
    };
    add(given, it.bounds);
    if (right.is_own) add(expected, own);
    const std::size_t at = index_of(it.setup, which);
    if (at >= it.rounding.terms.size()) return;
    terms_ = loader_of(it.setup, rows_, which, it.rounding.terms[at].view());
    of_rounding_ = it.rounding.relative[at];
  }

  void row(const Place& place, std::int64_t columns, const double* values, double* allowed) const {
    if (terms_)
      terms_(place, allowed);
    else
      std::fill_n(allowed, columns, 0.0);
    const std::vector<double> weights = weights_of(place, columns);
    const double all = which_ == Result::dbias ? 0 : absolute(place, weights[0]);
    // Of float32 results their own errors and those of the expected.
    const double sides = right_.is_own ? 2 : 1;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double size = std::isfinite(values[c]) ? std::abs(values[c]) : 0,
                   narrow = least_ + relative_ * size,
                   worst = (which_ == Result::dbias ? absolute(place, weights[static_cast<std::size_t>(c)])
                                                    : all) +
                           of_out_ * size;
      if (!it_.rounding.is_of_float32())
        allowed[c] += worst + of_rounding_ * size + narrow;
      else if (allowed[c] > 0)
        allowed[c] =
            std::min(worst, sides * (allowed[c] + of_rounding_ * size) + kUnderflow * worst) + narrow;
      else
        allowed[c] = worst + narrow;
    }
  }

 private:
  static constexpr double kUnderflow = 0x1p-40;  // squares of terms smaller than this may be 0

  // What the bounds of a row need; of dbias by column.
  std::vector<double> weights_of(const Place& place, std::int64_t columns) const {
    const CheckedArguments& setup = it_.setup;
    if (which_ == Result::out || which_ == Result::lse)
      return {setup.ends.lse.natural(load_lse(right_.results[1], rows_.index_in_lse(place)),
                                     setup.ends.sink(place.head))};
    if (which_ == Result::dsinks) return {load_lse(right_.sink_weights.view(), {place.head})};
    std::vector<double> weights(which_ == Result::dbias ? static_cast<std::size_t>(columns) : 1);
    if (which_ == Result::dbias)
      load_row(setup.rows_of(with_four_axes(right_.weights.bias.view()), place.entry, place.head, {}),
               place.row, 0, columns, weights.data());
    else if (row_of(which_).form.rows == RowsOf::keys)
      load_row(setup.rows_of(in_one_form(right_.weights.keys.view(), setup.layout), place.entry, place.head,
                             rows_.offsets()),
               place.row, 0, 1, weights.data());
    return weights;
  }

  double absolute(const Place& place, double weight) const {
    const auto of = [&](const Bounds& bounds) {
      return which_ == Result::dbias ? bounds.of_bias(place.entry, place.head).of_dbias(weight)
                                     : bounds.of(rows_, place).of(which_, weight);
    };
    return of(it_.bounds) + (right_.is_own ? of(own_) : 0);
  }

  const ActualAttention& it_;
  Result which_;
  const Right& right_;
  const Bounds& own_;
  const Rows& rows_;
  double relative_ = 0, least_ = 0, of_out_ = 0, of_rounding_ = 0;
  std::function<void(const Place&, double* values)> terms_;
};

verify::ResultRows rows_of(const ActualAttention& it, ActualArray& array, const ArrayView& given,
                           const Right& right, const ArrayView& expected, const Bounds& own) {
  const CheckedArguments& setup = it.setup;
  const Rows& rows = it.rows_of(array.which);
  const Result which = array.which;
  const bool of_keys = &rows == &it.keys, of_bias = which == Result::dbias,
             of_sinks = which == Result::dsinks, packed = setup.packed();
  verify::ResultRows r;
  r.name = row_of(which).name;
  r.dtype = given.dtype;
  r.rows = rows.count();
  if (which != Result::lse && !of_bias && !of_sinks) r.column = "column", r.columns_name = "columns";
  r.columns = which == Result::lse || of_sinks ? 1 : of_bias ? setup.bias_shape[3] : given.shape.back();
  using Kind = verify::RowAxis::Kind;
  const std::int64_t positions = of_sinks  ? 1
                                 : of_bias ? setup.bias_shape[2]
                                           : (of_keys ? setup.k : setup.q).shape[2];
  r.axes = {of_keys ? verify::RowAxis{"key head", "key heads", rows.heads(), Kind::part}
                    : verify::RowAxis{"head", "heads", rows.heads(), Kind::part},
            packed ? verify::RowAxis{"sequence", "sequences", rows.entries(), Kind::part}
                   : verify::RowAxis{"batch entry", "batch entries", rows.entries(), Kind::part},
            of_keys ? verify::RowAxis{"key", "keys", positions, Kind::position}
                    : verify::RowAxis{"query", "queries", positions, Kind::position}};
  const bool heads_first = which == Result::lse || of_bias || setup.layout == AttentionLayout::bhsd;
  r.array_axes = heads_first ? std::vector<std::size_t>{0, 2} : std::vector<std::size_t>{2, 0};
  if (!packed) r.array_axes.insert(r.array_axes.begin(), 1);
  if (of_sinks) r.array_axes = {0};
  r.place = [&rows](std::int64_t row, std::int64_t* at) {
    const Place place = rows.at(row);
    at[0] = place.head;
    at[1] = place.entry;
    at[2] = rows.position(place);
  };
  r.index = [&rows, which](std::int64_t row, std::int64_t column) {
    return which == Result::lse ? rows.index_in_lse(rows.at(row)) : rows.index_of(rows.at(row), column);
  };
  r.given = [&rows, load = loader_of(setup, rows, which, given)](std::int64_t row, double* values) {
    load(rows.at(row), values);
  };
  r.rounded_first = it.plan.rounded_first;
  r.expected = [&rows, columns = r.columns, load = loader_of(setup, rows, which, expected),
                tolerances = Tolerances(it, which, given.dtype, expected.dtype, right, own)](
                   std::int64_t row, double* values, double* allowed) {
    const Place place = rows.at(row);
    load(place, values);
    tolerances.row(place, columns, values, allowed);
  };
  return r;
}

Right right_of(const CheckedArguments& setup, const MaskPlan& blocks, const AttentionArrays& arrays,
               const std::vector<ArrayView>& own, double effort) {
  const Reference reference(setup, blocks);
  Right right;
  right.is_own = reference_work(setup) > effort;
  if (right.is_own) {
    right.results = own;
    if (setup.gradients) {
      right.saved = *saved_by_kernels(setup, blocks, {}, *arrays.dout);
      right.weights = summed_weights(setup, blocks, right.saved.lse, setup.bias.has_value());
      right.sink_weights = Array(DType::float64, {std::ssize(setup.ends.sinks)});
      for (std::int64_t h = 0; h < right.sink_weights.size(); ++h)
        right.sink_weights.elements<double>()[static_cast<std::size_t>(h)] =
            reference.sink(h, right.saved).weight;
    }
  } else if (setup.gradients) {
    Reference::Backward made = reference.backward(*arrays.dout);
    right.owned.push_back(std::move(made.dq));
    right.owned.push_back(std::move(made.dk));
    right.owned.push_back(std::move(made.dv));
    if (setup.bias) right.owned.push_back(std::move(made.dbias));
    if (setup.has_sinks()) right.owned.push_back(std::move(made.dsinks));
    right.sink_weights = std::move(made.sink_weights);
    right.weights = {std::move(made.weights), std::move(made.bias_weights)};
    right.saved = std::move(made.saved);
  } else {
    Reference::Forward made = reference.forward();
    right.owned.push_back(std::move(made.out));
    right.owned.push_back(std::move(made.lse));
  }
  for (const Array& array : right.owned) right.results.push_back(array.view());
  return right;
}

bool has_nan(const ArrayView& view) {
  if (view.shape.size() > 1) {
    for (std::int64_t i = 0; i < view.shape[0]; ++i)
      if (has_nan(view[i])) return true;
    return false;
  }
  const std::int64_t count = element_count(view.shape);
  std::vector<float> values(static_cast<std::size_t>(count));
  core::load(view.dtype, view.data, view.shape.empty() ? 0 : view.strides[0], count, values.data());
  return std::any_of(values.begin(), values.end(), [](float value) { return value != value; });
}

// NaN of inputs, where all elements out of tolerance are NaN or infinite and should be numbers: masked pairs had
// an influence. No fault is searched for then, as many make NaN of NaN.
bool explain_by_nans(const AttentionArrays& arrays, Against& against) {
  for (const Against::Compared& compared : against.arrays)
    if (compared.not_numbers != compared.beyond) return false;
  std::vector<std::string> names;
  const auto add_if_nan = [&](const char* name, const std::optional<ArrayView>& view) {
    if (view && is_float(view->dtype) && has_nan(*view)) names.emplace_back(name);
  };
  add_if_nan("q", arrays.q), add_if_nan("k", arrays.k), add_if_nan("v", arrays.v);
  add_if_nan("bias", arrays.bias), add_if_nan("dout", arrays.dout);
  if (names.empty()) return false;
  for (const Against::Compared& compared : against.arrays) {
    if (compared.beyond == 0) continue;
    Against::Explained& cause = against.explanations.emplace_back();
    cause.array = compared.name;
    cause.kind = "not_numbers";
    cause.text = fmt::format("NaN of {} reaches results that it is masked from", fmt::join(names, " and "));
    cause.share_explained = 1;
  }
  return true;
}

// What results should be, with the bounds of results that were computed in `arithmetic`.
struct Expected {
  Expected(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& own,
           DType arithmetic, const SoftmaxTypes& types, double effort)
      : setup(bound(plan.setup, plan.types, arrays, SavedResults::ignored)),
        right(right_of(setup, plan.blocks(), arrays, own, effort)),
        it{plan,
           setup,
           arrays,
           Rows(setup, RowsOf::queries),
           Rows(setup, RowsOf::keys),
           Rows(setup, RowsOf::bias),
           Rows(setup, RowsOf::sinks),
           Bounds(setup, plan.blocks(), arithmetic),
           types,
           rounding_of_weights(setup, plan.blocks(), types, setup.gradients ? arrays.dout : std::nullopt)},
        of_own(setup, plan.blocks(), setup.shape.arithmetic) {
    if (it.rounding.terms.empty())
      it.rounding = rounding_of_float32(setup, plan.blocks(), it.bounds,
                                        setup.gradients ? arrays.dout : std::nullopt, right.weights.keys);
    it.saved = &right.saved;
    if (!setup.gradients) return;
    for (Bounds* bounds : {&it.bounds, &of_own}) {
      bounds->set(*arrays.dout, right.saved.lse);
      bounds->set_most(&Bounds::Part::dq_most, RowsOf::queries, right.results[0]);
      bounds->set_most(&Bounds::Part::dk_most, RowsOf::keys, right.results[1]);
      bounds->set_most(&Bounds::Part::dv_most, RowsOf::keys, right.results[2]);
      if (setup.bias) bounds->set_most_of_bias(right.results[3]);
      if (setup.has_sinks()) bounds->set_most_of_sinks(right.results.back());
    }
  }
  Expected(const Expected&) = delete;
  Expected& operator=(const Expected&) = delete;

  std::unique_ptr<ActualArray> array(std::size_t result, const ArrayView& given) const {
    auto made = std::make_unique<ActualArray>();
    made->which = result_at(setup, result);
    made->rows = rows_of(it, *made, given, right, right.results[result], of_own);
    return made;
  }

  void judge_beside(ActualArray& array, const ArrayView& other, double factor, Against& against) const {
    const Rows& rows = it.rows_of(array.which);
    const auto load = loader_of(setup, rows, array.which, other);
    verify::judge_beside(
        array.rows, [&](std::int64_t row, double* values) { load(rows.at(row), values); }, factor, against,
        0);
  }

  CheckedArguments setup;
  Right right;
  ActualAttention it;
  Bounds of_own;
};

}  // namespace

Against compare(const Plan& plan, const AttentionArrays& arrays, const std::vector<ArrayView>& own,
                const std::vector<std::optional<ArrayView>>& given, const SoftmaxTypes& types,
                Explain explain, double effort, const Tried& tried, const std::vector<std::string>& tiles,
                const OtherResults& other) {
  if (given.size() != plan.results.size() || own.size() != plan.results.size())
    throw core::invalid("{} results are to be compared with {}, not {}", given.size(), own.size(),
                        plan.results.size());
  // A result that is not float64 may have been computed in float32, whatever the arguments are.
  DType arithmetic = plan.setup.shape.arithmetic;
  for (std::size_t r = 0; r < given.size(); ++r) {
    if (!given[r]) continue;
    const PlannedArray& planned = plan.results[r];
    verify::require_given(*given[r], planned.type.shape, planned.name, planned.name);
    if (!other.results.empty())
      verify::require_given(other.results.at(r).value(), planned.type.shape, planned.name, "other");
    if (given[r]->dtype != DType::float64) arithmetic = DType::float32;
  }
  const Expected expected(plan, arrays, own, arithmetic, types, effort);
  Against against;
  against.score_range = expected.it.bounds.score_range();
  against.method = expected.right.is_own ? Against::Method::own_result : Against::Method::float64;
  std::vector<std::unique_ptr<ActualArray>> compared;
  std::vector<const verify::ResultRows*> compared_rows;
  for (std::size_t r = 0; r < given.size(); ++r) {
    if (!given[r]) {
      against.not_given.push_back(plan.results[r].name);
      continue;
    }
    auto array = expected.array(r, *given[r]);
    array->rows.tiles = tiles;
    if (!other.results.empty()) expected.judge_beside(*array, *other.results[r], other.factor, against);
    compared_rows.push_back(&array->rows);
    if (tiles.empty()) array->rows.tiles = {array->rows.axes[2].name, array->rows.axes[0].name};
    compared.push_back(std::move(array));
  }
  verify::require_tiles(compared_rows, tiles);
  for (const auto& array : compared) array->counts = verify::compare_rows(array->rows, against, 0);
  if (explain == Explain::yes) {
    against.tried = true;
    if (!against.agrees() && !explain_by_nans(arrays, against))
      attn::explain(expected.it, compared, tried, against);
  }
  return against;
}

struct ExpectedRows::State {
  State(const Plan& plan, const AttentionArrays& arrays, DType dtype, const SoftmaxTypes& types)
      : expected(plan, arrays, {}, dtype == DType::float64 ? plan.setup.shape.arithmetic : DType::float32,
                 types, std::numeric_limits<double>::infinity()),
        given(dtype, expected.right.results[0].shape),
        out(expected.array(0, given.view())) {}

  Expected expected;
  Array given;  // of that type alone
  std::unique_ptr<ActualArray> out;
};

ExpectedRows::ExpectedRows(const Plan& plan, const AttentionArrays& arrays, DType dtype,
                           const SoftmaxTypes& types)
    : state_(std::make_unique<State>(plan, arrays, dtype, types)) {}
ExpectedRows::~ExpectedRows() = default;

void ExpectedRows::row(std::int64_t row, double* values, double* allowed) const {
  state_->out->rows.expected(row, values, allowed);
}

std::int64_t compare_bytes(const Plan& plan, Explain explain, double effort) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const CheckedArguments& s = plan.setup;
  const Rows queries(s, RowsOf::queries), keys(s, RowsOf::keys);
  double bytes = static_cast<double>(verify::bytes_of_rows(queries.count() + 2 * keys.count()));
  if (explain == Explain::yes) {
    std::int64_t most = 0;  // of one array at a time
    for (const PlannedArray& result : plan.results)
      most = std::max(most, verify::bytes_of_values(element_count(result.type.shape)));
    bytes += static_cast<double>(most) + explain_bytes(s);
  }
  const bool is_own = reference_work(s) > effort;
  if (!is_own)
    for (const PlannedArray& result : plan.results)
      bytes += static_cast<double>(byte_count(result.type.shape, DType::float64));
  bytes += bytes_of_weight_rounding(s) + reference_bytes(s);
  if (s.gradients) {
    const auto of = [&](const Shape& shape) {
      return static_cast<double>(byte_count(shape, s.shape.arithmetic));
    };
    bytes += 8 * static_cast<double>(keys.count());
    if (s.bias) {
      const Rows rows(s, RowsOf::bias);
      bytes += static_cast<double>(verify::bytes_of_rows(rows.count())) +
               8 * static_cast<double>(rows.count()) * static_cast<double>(s.bias_shape[3]) +
               static_cast<double>(bias_bytes(s, s.whole_bias()));
    }
    if (is_own) bytes += of(plan.types.q->shape) + of(plan.types.k->shape) + 2 * of(s.shape.lse);
    bytes += of(s.shape.out) + 5 * static_cast<double>(byte_count(s.shape.lse, DType::float64));
  }
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(kMost)));
}

}  // namespace ejk::attn

namespace ejk {

Against compare_results(const AttentionPlan& plan, const AttentionArrays& arrays,
                        const std::vector<ArrayView>& own, const std::vector<std::optional<ArrayView>>& given,
                        Explain explain, const SoftmaxTypes& types, const Tried& tried,
                        const std::vector<std::string>& tiles, const OtherResults& other) {
  return attn::compare(plan.internal(), arrays, own, given,
                       {types.weights.value_or(weights_dtype(plan)), types.scores}, explain,
                       attn::kCheckEffort, tried, tiles, other);
}

std::int64_t bytes_to_compare(const AttentionPlan& plan, Explain explain) {
  return attn::compare_bytes(plan.internal(), explain, attn::kCheckEffort);
}

DType weights_dtype(const AttentionPlan& plan) {
  const attn::CheckedArguments& setup = plan.internal().setup;
  if (setup.shape.arithmetic != DType::float32) return DType::float32;
  for (const DType dtype : {setup.v.dtype, setup.q.dtype})
    if (dtype == DType::bfloat16 || dtype == DType::float16) return dtype;
  return DType::float32;
}

}  // namespace ejk
