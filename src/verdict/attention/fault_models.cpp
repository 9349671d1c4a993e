// Fault models of attention: a Variation of the reference (the catalogue: variations.cpp) predicts the rows of
// an array. Arrays are explained
// in turn: out before lse, dq before dk and dv, as a row of dq needs no other row. Accepted models are
// counted by the library's kernels where these have the variation, else row by row.
// tests: tests/verdict/attention/test_fault_models.cpp
#include "verdict/attention/against.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "attention/numbers.hpp"
#include "ejk/attention_check.hpp"
#include "verdict/attention/other_keys.hpp"
#include "verdict/attention/saved.hpp"
#include "verdict/attention/variations.hpp"
#include "verdict/fault_search.hpp"

namespace ejk::attn {

namespace {

using verify::FaultModel;

void load_expected(const verify::ResultRows& rows, std::int64_t n, std::span<const std::int64_t> columns,
                   double* values, double* allowed) {
  std::vector<double> row(static_cast<std::size_t>(rows.columns)), may(row);
  rows.expected(n, row.data(), may.data());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    values[c] = row[static_cast<std::size_t>(columns[c])];
    allowed[c] = may[static_cast<std::size_t>(columns[c])];
  }
}

// The same arguments, their rows as float64: models read them hundreds of times.
struct WideArguments {
  std::vector<Array> owned;
  CheckedArguments setup;
  std::optional<ArrayView> dout;

  WideArguments(const CheckedArguments& of, const std::optional<ArrayView>& gradient)
      : setup(of), dout(gradient) {
    if (bytes(of) > kMost) return;
    const auto widen = [&](ArrayView& view) {
      owned.push_back(identity_dtype_convert_backward(view, DType::float64));
      view = owned.back().view();
    };
    for (ArrayView* view : {&setup.q, &setup.k, &setup.v}) widen(*view);
    if (dout) widen(*dout);
  }
  static constexpr double kMost = 0x1p30;
  static double bytes(const CheckedArguments& of) {
    const auto size = [](const ArrayView& view) { return static_cast<double>(element_count(view.shape)); };
    const auto out = static_cast<double>(element_count(of.shape.out));
    return 8 * (size(of.q) + size(of.k) + size(of.v) + (of.gradients ? out : 0));
  }
};

class FaultModels {
 public:
  FaultModels(const ActualAttention& it, const std::vector<std::unique_ptr<ActualArray>>& arrays,
              const Tried& tried)
      : it_(it),
        arrays_(arrays),
        wide_(it.setup, it.arrays.dout),
        setup_(wide_.setup),
        blocks_(it.plan.blocks()),
        changes_(it.plan, it.setup),
        right_(setup_, blocks_) {
    for (TriedMask mask : tried.masks) {
      settle_first_axis(mask.masks, setup_.shape.entries, setup_.shape.heads);
      tried_.push_back(change_of(mask));
    }
    if (setup_.gradients || !setup_.packed()) return;
    pages_ = tried.pages;
    for (const TriedKeys& keys : tried.keys)
      if (auto change = change_of(keys)) tried_.push_back(std::move(*change));
  }

  void explain(const ActualArray& array, Against& against) {
    constexpr double kLongest = 0x1p28;  // of a row that is too expensive to recompute
    const double nanoseconds = row_nanoseconds(array.which);
    verify::FaultSearch search(array.rows, array.counts, nanoseconds);
    if (nanoseconds > kLongest && !has_own_rows(array.which)) return search.report({}, against);
    if (unit_of(array) > 0 || it_.rounding.is_of_float32()) search.set_most_left(0.5);
    search.report(run(array, search), against);
  }

 private:
  // Location of a fault: in both passes, or in the backward pass alone, with lse and δ of the reference.
  enum class Pass { both, backward };
  using RowValues =
      std::function<bool(std::int64_t row, std::span<const std::int64_t> columns, double*, double*)>;

  static bool is_rounding(const Change& change) {
    return change.kind == "rounding" || change.kind == "scores";
  }
  // Results that the kernels compute row by row of queries or keys.
  static bool has_own_rows(Result which) { return which != Result::dbias && which != Result::dsinks; }
  static bool is_of_forward(const ActualArray& array) {
    return array.which == Result::out || array.which == Result::lse;
  }
  // A row sums over many queries, and needs their lse and δ.
  static bool is_of_key(const ActualArray& array) {
    return attn::row_of(array.which).form.rows != RowsOf::queries;
  }
  static Bounds::Rounding rounding_of(const ActualArray& array) {
    return Bounds::rounding(array.rows.dtype, array.rows.rounded_first);
  }
  // Gradients of keys need lse and δ of all queries, which every model recomputes.
  bool is_cheap() const { return reference_work(setup_) <= 0x1p25; }

  // Unit roundoff of the weights that the kernel rounds; 0: they are not, or have no part in the array.
  double unit_of(const ActualArray& array) const {
    return array.which == Result::lse ? 0 : it_.rounding.unit;
  }

  // A row of a result: elements, terms of their sums (with Variation::sizes), and one tolerance or one each.
  struct RowOf {
    std::vector<double> values;
    Terms terms;
    std::vector<double> absolute;
  };

  // A row under a variation of `made`. lse and δ of gradients: of `saved`, or of the row itself (null).
  RowOf row_of(Result which, const Place& place, const Reference& made, const Variation& v,
               const Reference::Saved* saved) const {
    if (which == Result::dbias) {
      const auto r =
          made.bias(place.entry, place.head, place.row, {0, setup_.bias_shape[3]}, *wide_.dout, *saved);
      std::vector<double> absolute;
      for (const double weight : r.weights)
        absolute.push_back(it_.bounds.of_bias(place.entry, place.head).of_dbias(weight));
      return {r.dbias, r.terms, std::move(absolute)};
    }
    Bounds::Part bound = it_.bounds.of(it_.rows_of(which), place);
    if (which == Result::dsinks) {
      auto r = made.sink(place.head, *saved);
      return {{r.dsink}, std::move(r.terms), {bound.of(which, r.weight)}};
    }
    if (which == Result::dk || which == Result::dv) {
      auto r = made.key(place.entry, place.head, place.row, *wide_.dout, *saved);
      const double absolute = bound.of(which, r.weight);
      if (which == Result::dk) return {std::move(r.dk), std::move(r.dk_terms), {absolute}};
      return {std::move(r.dv), std::move(r.dv_terms), {absolute}};
    }
    const Problem p = setup_.problem(place.entry, place.head);
    ReferenceRow r =
        made.row(p, place.row, which == Result::lse ? Reference::Wanted::lse : Reference::Wanted::out);
    if (which == Result::lse) return {{made.given_lse(r)}, {}, {bound.of(which, r.lse, v.scale)}};
    if (which == Result::out) {
      bound.v *= v.reads_other_values() ? 0 : std::abs(v.value_scale);  // else its own take no part
      // The values that a mask should exclude may be larger than all others.
      const double largest =
          r.terms.sizes.empty() ? 0 : *std::max_element(r.terms.sizes.begin(), r.terms.sizes.end());
      return {std::move(r.out), std::move(r.terms), {bound.of(which, r.lse, v.scale, largest)}};
    }
    const auto g =
        setup_.rows_of(in_one_form(*wide_.dout, setup_.layout), place.entry, place.head, setup_.q_offsets);
    const auto at = static_cast<std::size_t>(p.first_row + place.row);
    const auto statistics =
        saved ? Reference::Statistics{saved->lse[at], saved->delta[at]} : made.statistics(r, g, place.row);
    RowOf row{{}, {}, {bound.of(which, 0)}};
    row.values = made.dq(p, r, statistics, g, place.row, v.sizes ? &row.terms : nullptr);
    return row;
  }

  double row_nanoseconds(Result which) const {
    const auto size = static_cast<double>(setup_.shape.head_size + setup_.shape.value_size);
    if (which == Result::dsinks)
      return 20 * static_cast<double>(setup_.q.shape[2]) * static_cast<double>(setup_.shape.entries);
    if (which == Result::dbias) {
      const double pairs = static_cast<double>(setup_.problems()) * static_cast<double>(setup_.q.shape[2]) *
                           static_cast<double>(setup_.k.shape[2]);
      return pairs / std::max(1.0, static_cast<double>(it_.bias.count())) * (2 * size + 100);
    }
    if (which == Result::dk || which == Result::dv)
      return static_cast<double>(setup_.longest_queries() * setup_.group()) * (2 * size + 100) / 8;
    return static_cast<double>(setup_.longest_keys()) * (size + 100) / 8;
  }

  // Models to try, and the changes that they are made of.
  struct Candidates {
    std::vector<FaultModel> models;
    std::vector<std::optional<Change>> origins;

    void add(FaultModel model, const std::optional<Change>& origin = std::nullopt) {
      models.push_back(std::move(model));
      origins.push_back(origin);
    }
  };

  std::vector<verify::Found> run(const ActualArray& array, verify::FaultSearch& search) {
    Candidates list = candidates_of(array, search);
    std::vector<verify::Found> all = search.run(list.models);
    remember(all, list);
    if (!search.is_open() || !is_of_forward(array) || !search.is_enough_to_fit()) return all;
    list = {};
    add_splits(array, search, list);
    add_operands_of_others(array, search, list);
    add_operand_scales(array, search, list);
    add_last_pages(array, search, list);
    std::vector<verify::Found> more = search.run(list.models);
    remember(more, list);
    std::move(more.begin(), more.end(), std::back_inserter(all));
    return all;
  }

  // All but those that need a search for partners among operands.
  Candidates candidates_of(const ActualArray& array, const verify::FaultSearch& search) const {
    Candidates list;
    const bool of_key = is_of_key(array), is_enough = search.is_enough_to_fit();
    const auto is_tried = [&](const Change& change) {
      return (!change.is_of_out || array.which == Result::out) && (!change.of_loop || is_enough) &&
             (change.kind != "rounding" || change.is_coarse || unit_of(array) == 0) &&
             (!is_rounding(change) || is_enough);
    };
    const auto add = [&](const Change& change) {
      if (is_tried(change)) list.add(model(array, change, Pass::both), change);
    };
    const auto is_listed = [&](const Change& change) {
      return std::any_of(list.origins.begin(), list.origins.end(),
                         [&](const auto& c) { return c->text == change.text; });
    };
    for (const Change& change : tried_) add(change);
    if (!of_key || is_cheap())
      for (const Change& change : changes_.of_scores)
        if (!of_key || !change.of_loop) add(change);
    for (const Change& change : found_)
      if (!is_listed(change)) add(change);
    if (is_of_forward(array)) {
      if (is_enough)
        for (const Change& change : changes_.of_forward) add(change);
    } else {
      add_backward(array, is_enough, list);
    }
    if (array.which == Result::lse) add_lse(array, list);
    add_other_arrays(array, list);
    if (is_of_forward(array) && is_enough) add_zero_keys(array, search, list);
    if (array.which == Result::out && is_enough && rounding_of(array).relative <= 0x1p-23)
      add_sums_of_16_bits(array, list);
    if (array.which == Result::out) add_keys_of_unwritten(array, list);
    if (!of_key) add_masks_and_biases_of_others(array, search, list);
    if (is_of_forward(array) && is_enough) add_sinks(array, search, list);
    return list;
  }

  // Faults of the backward pass: its own, and those of scores that the forward pass does not have.
  void add_backward(const ActualArray& array, bool is_enough, Candidates& list) const {
    for (const Change& change : changes_.of_gradients)
      if (change.kind != "delta" || array.which != Result::dv) list.add(model(array, change, Pass::backward));
    for (Change change : changes_.of_scores) {
      if (change.is_of_out || (change.of_loop && !(is_enough && has_own_rows(array.which)))) continue;
      change.text += ", in the backward pass alone";
      list.add(model(array, change, Pass::backward));
    }
  }

  static Change change_of(const TriedMask& tried) {
    struct Masks {
      HeadMasks of;
      std::mutex mutex;
      std::map<std::array<std::int64_t, 4>, Mask> made;  // by entry, head and lengths
    };
    const auto masks = std::make_shared<Masks>();
    masks->of = tried.masks;
    return {"tried", fmt::format("the mask is {}", tried.text), [masks](Variation& v) {
              v.mask = [masks](const Problem& p) -> const Mask* {
                if (p.q_length == 0 || p.kv_length == 0) return nullptr;
                const std::int64_t entry = masks->of.batch == 1 ? 0 : p.entry,
                                   head = masks->of.heads == 1 ? 0 : p.head;
                const std::scoped_lock lock(masks->mutex);
                auto& made = masks->made;
                const std::array<std::int64_t, 4> key{entry, head, p.q_length, p.kv_length};
                auto at = made.find(key);
                if (at == made.end())
                  at = made.emplace(key, masks->of.mask(entry, head, p.q_length, p.kv_length)).first;
                return &at->second;
              };
            }};
  }

  // Nothing where the masks have no such lengths.
  std::optional<Change> change_of(const TriedKeys& tried) const {
    const auto other = std::make_shared<const OtherKeys>(tried);
    Change change{"pages", tried.text, [other](Variation& v) { v.other = other; }};
    const AttentionSettings& s = it_.plan.settings;
    const HeadMasks all = conjunction_of(s.masks);
    bool differs = false;
    try {
      for (std::int64_t e = 0; e < setup_.shape.entries; ++e) {
        const std::int64_t q = setup_.q_length(e), kv = other->length(e);
        differs = differs || kv != setup_.kv_length(e);
        for (std::int64_t h = 0; h < all.heads && q > 0 && kv > 0; ++h) all.mask(e, h, q, kv);
      }
    } catch (const Error&) {
      return std::nullopt;
    }
    if (!differs) return change;
    if (s.q_segment_ids) return std::nullopt;
    change.apply = [other, mask = change_of(TriedMask{"", all}).apply](Variation& v) {
      mask(v);
      v.other = other;
    };
    return change;
  }

  // Sequences whose last page is another one of the cache.
  void add_last_pages(const ActualArray& array, const verify::FaultSearch& search, Candidates& list) const {
    if (!pages_) return;
    const std::int64_t entries = setup_.shape.entries;
    const auto made = [&](const std::vector<std::int64_t>& last) { return change_of(pages_->keys(last)); };
    // The first candidates, as many as sequences, are none: a part is no candidate for itself.
    const auto candidate = [&](std::int64_t n) {
      const auto change =
          n < entries ? std::nullopt : made(std::vector(static_cast<std::size_t>(entries), n - entries));
      if (change) return model(array, *change, Pass::both);
      return FaultModel{"", "", [](std::int64_t, auto, double*, double*) { return false; }};
    };
    std::vector<std::int64_t> last = search.partners(1, entries + pages_->pages, candidate);
    for (std::int64_t& page : last) page = std::max<std::int64_t>(page - entries, -1);
    if (std::all_of(last.begin(), last.end(), [](std::int64_t page) { return page < 0; })) return;
    if (const auto change = made(last)) list.add(model(array, *change, Pass::both), change);
  }

  // Faults of one array are tried on the next.
  void remember(const std::vector<verify::Found>& all, const Candidates& tried) {
    for (const verify::Found& f : all)
      if (f.model && tried.origins[*f.model]) found_.push_back(*tried.origins[*f.model]);
  }

  // lse and δ of all queries under a change: computed at first use; null where the kernels lack the change.
  struct SavedOf {
    std::function<std::optional<Reference::Saved>()> compute;
    std::once_flag once;
    std::optional<Reference::Saved> saved;

    const Reference::Saved* get() {
      std::call_once(once, [&] { saved = compute(); });
      return saved ? &*saved : nullptr;
    }
  };

  std::shared_ptr<SavedOf> saved_of(const std::string& text, const Variation& v,
                                    const std::shared_ptr<const Reference>& made) const {
    std::shared_ptr<SavedOf>& known = saved_[text];
    if (known) return known;
    known = std::make_shared<SavedOf>();
    known->compute = [=, this]() -> std::optional<Reference::Saved> {
      if (is_cheap()) return made->saved(*wide_.dout);
      auto saved = saved_by_kernels(it_.setup, blocks_, v, *it_.arrays.dout);
      if (!saved && reference_work(setup_) < 0x1p32) saved = made->saved(*wide_.dout);
      return saved;
    };
    if (!is_cheap()) known->get();  // now, on all threads
    return known;
  }

  // lse and δ of the reference, δ of one entry where a variation has it.
  const Reference::Saved* right_saved(const Variation& v) const {
    if (v.delta_entry < 0) return it_.saved;
    if (!of_entry_)
      of_entry_ = std::make_unique<Reference::Saved>(with_delta_of(v.delta_entry, setup_, *it_.saved));
    return of_entry_.get();
  }

  // What rounded weights may change an element by, of this size and these terms; of gradients those of dS.
  double off_by(const ActualArray& array, double unit, double size, const Terms& terms,
                std::size_t at) const {
    if (array.which == Result::out) return unit * (size + kOffOfOut * std::sqrt(terms.squares[at]));
    const std::int64_t summed =
        array.which == Result::dq ? setup_.longest_keys() : setup_.longest_queries() * setup_.group();
    return unit * (size + off_of_gradients(summed) * 2 * std::sqrt(terms.squares[at]));
  }

  FaultModel model(const ActualArray& array, const Change& change, Pass pass) const {
    Variation v;
    if (change.apply) change.apply(v);
    // A loop over tiles rounds weights over another maximum: the errors of those remain, but not those of inputs.
    const double unit = array.which == Result::lse ? 0 : std::max(unit_of(array), v.weights.unit());
    v.sizes = unit > 0 || array.which == Result::out;
    const auto made = std::make_shared<const Reference>(setup_, blocks_, v);
    const double relative =
        rounding_of(array).relative + (array.which == Result::out ? it_.bounds.relative_of_out() : 0);
    const Reference::Saved* const saved = pass == Pass::backward ? right_saved(v) : nullptr;
    const auto own = saved || !is_of_key(array) ? nullptr : saved_of(change.text, v, made);
    FaultModel h{change.kind, change.text, {}};
    h.is_subtle = is_rounding(change);
    if (h.is_subtle) h.most_left = 0.9;  // more remains where a difference is not of this rounding
    h.needs_numbers = change.kind != "no_key";
    if (has_own_rows(array.which))
      h.of_all = [=, this, &array, text = change.text] { return by_kernels(array, text, v, made, saved); };
    h.values = [=, this, &array, least = rounding_of(array).least](
                   std::int64_t n, std::span<const std::int64_t> columns, double* values, double* allowed) {
      const Reference::Saved* const statistics = own ? own->get() : saved;
      if (is_of_key(array) && statistics == nullptr) return false;
      const RowOf row = row_of(array.which, it_.rows_of(array.which).at(n), *made, v, statistics);
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const auto at = static_cast<std::size_t>(columns[c]);
        values[c] = row.values[at];
        const double size = std::isfinite(values[c]) ? std::abs(values[c]) : 0;
        allowed[c] = row.absolute[row.absolute.size() > 1 ? at : 0] + least + relative * size +
                     (unit > 0 ? off_by(array, unit, size, row.terms, at) : 0);
      }
      return true;
    };
    return h;
  }

  std::vector<double> row_at(const Array& of, const Rows& rows, const Place& place) const {
    std::vector<double> row(static_cast<std::size_t>(of.shape().back()));
    load_row(setup_.rows_of(in_one_form(of.view(), setup_.layout), place.entry, place.head, rows.offsets()),
             place.row, 0, std::ssize(row), row.data());
    return row;
  }

  // All rows by the kernels, with bounds twice as wide. Empty where they have no such variation.
  RowValues by_kernels(const ActualArray& array, const std::string& text, const Variation& v,
                       const std::shared_ptr<const Reference>& reference,
                       const Reference::Saved* right_saved) const {
    const double unit = unit_of(array);
    const bool of_forward = is_of_forward(array);
    if (const auto key = std::pair(text, right_saved != nullptr); !by_kernels_ || by_kernels_->first != key) {
      const auto saved = [&] { return right_saved ? right_saved : saved_of(text, v, reference)->get(); };
      auto results = of_forward
                         ? forward_by_kernels(it_.setup, blocks_, v, it_.types)
                         : gradients_by_kernels(it_.setup, blocks_, v, saved, *it_.arrays.dout, it_.types);
      by_kernels_.emplace(key, results ? std::make_shared<const ByKernels>(std::move(*results)) : nullptr);
    }
    const std::shared_ptr<const ByKernels> made = by_kernels_->second;
    if (!made || (unit > 0 && made->rounding.terms.empty())) return {};
    const std::size_t which = index_of(setup_, array.which);
    const double relative = rounding_of(array).relative + 0x1p-23 + unit +
                            (array.which == Result::out ? 2 * it_.bounds.relative_of_out() : 0);
    return [=, this, &rows = it_.rows_of(array.which), result = array.which, least = rounding_of(array).least,
            scale = v.scale, largest = v.mask ? largest_value() : 0](
               std::int64_t n, std::span<const std::int64_t> columns, double* values, double* allowed) {
      const Place place = rows.at(n);
      const double given = of_forward ? load_lse(made->results[1].view(), rows.index_in_lse(place)) : 0,
                   lse = setup_.ends.lse.natural(given, setup_.ends.sink(place.head));
      const std::vector<double> row =
          result == Result::lse ? std::vector{given} : row_at(made->results[which], rows, place);
      std::vector<double> terms;
      if (unit > 0) terms = row_at(made->rounding.terms[which], rows, place);
      const bool of_key = result == Result::dk || result == Result::dv;
      const double weight = of_key ? row_at(made->weights, rows, place)[0] : 0,
                   factor = result == Result::dv ? 1 : made->factor,
                   absolute = it_.bounds.of(rows, place).of(result, of_key ? weight : lse, scale, largest);
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const auto at = static_cast<std::size_t>(columns[c]);
        values[c] = factor * row[at];
        allowed[c] = 2 * absolute + least + relative * (std::isfinite(row[at]) ? std::abs(values[c]) : 0) +
                     (unit > 0 ? std::abs(factor) * terms[at] : 0);
      }
      return true;
    };
  }

  // The largest value: another mask may let in any.
  double largest_value() const {
    double largest = 0;
    std::vector<double> row(static_cast<std::size_t>(setup_.shape.value_size));
    for (std::int64_t e = 0; e < setup_.shape.entries; ++e)
      for (std::int64_t h = 0; h < setup_.shape.kv_heads; ++h)
        for (std::int64_t j = 0; j < setup_.kv_length(e); ++j) {
          load_row(setup_.rows_of(setup_.v, e, h, setup_.kv_offsets), j, 0, std::ssize(row), row.data());
          largest = std::max(largest, most_finite(row));
        }
    return setup_.kept_factor * largest;
  }

  // A loop over tiles keeps Σ e^(s − most) v in 16 bits: results times Σ e^(s − most) are numbers of that type,
  // whatever the tiles are. ikawrakow/ik_llama.cpp#2151
  void add_sums_of_16_bits(const ActualArray& array, Candidates& list) const {
    constexpr double kNear = 0x1p-19;  // beside a spacing of 2^-11 or more
    for (const verify::Rounding& to : verify::kRoundings) {
      if (to.truncates) continue;
      FaultModel made{
          "rounding",
          fmt::format("the sums of a loop over keys are kept in {}", to.bits == 7 ? "bfloat16" : "float16"),
          {}};
      made.is_subtle = true;
      made.values = [=, this, &array](std::int64_t n, std::span<const std::int64_t> columns, double* values,
                                      double* allowed) {
        const Place place = it_.queries.at(n);
        const ReferenceRow right =
            right_.row(setup_.problem(place.entry, place.head), place.row, Reference::Wanted::lse);
        std::vector<double> given(static_cast<std::size_t>(array.rows.columns));
        array.rows.given(n, given.data());
        const double sum = std::exp(right.lse - right.most);
        for (std::size_t c = 0; c < columns.size(); ++c) {
          values[c] = to(given[static_cast<std::size_t>(columns[c])] * sum) / sum;
          allowed[c] = kNear * std::abs(values[c]);
        }
        return std::isfinite(sum);
      };
      list.add(std::move(made));
    }
  }

  // What a larger sum of weights multiplies a row of out by, or takes from lse.
  double ratio_of(const ActualArray& array, const Place& place, const ReferenceRow& right,
                  const std::vector<double>& given) const {
    if (array.which == Result::lse)
      return std::exp(right.lse - setup_.ends.lse.natural(given[0], setup_.ends.sink(place.head)));
    double product = 0, square = 0;
    for (std::size_t c = 0; c < given.size(); ++c)
      product += given[c] * right.out[c], square += right.out[c] * right.out[c];
    return product / square;
  }

  // Keys of zeros that count with a score of 0: their number follows from the factor of a row.
  // flashinfer-ai/flashinfer#5090, pytorch/pytorch#159247
  void add_zero_keys(const ActualArray& array, const verify::FaultSearch& search, Candidates& list) const {
    constexpr double kMost = 65536;
    std::vector<std::int64_t> counts;
    for (const std::int64_t row : search.some_rows(16)) {
      const Place place = it_.queries.at(row);
      const ReferenceRow right = right_.row(setup_.problem(place.entry, place.head), place.row);
      std::vector<double> given(static_cast<std::size_t>(array.rows.columns));
      array.rows.given(row, given.data());
      const double count = (1 / ratio_of(array, place, right, given) - 1) * std::exp(right.lse);
      if (count > 0.5 && count < kMost) counts.push_back(std::llround(count));
    }
    if (counts.empty()) return;
    const auto middle = counts.begin() + std::ssize(counts) / 2;
    std::nth_element(counts.begin(), middle, counts.end());
    // A whole tile first, as kernels pad to one.
    std::vector<std::int64_t> tried;
    for (const std::int64_t tile : kTileSizes)
      if (const std::int64_t rest = setup_.longest_keys() % tile;
          rest != 0 &&
          std::abs(static_cast<double>(tile - rest - *middle)) < 0.1 * static_cast<double>(*middle) + 1)
        tried.push_back(tile - rest);
    tried.push_back(*middle);
    for (const std::int64_t count : tried) {
      Change change{"padding", fmt::format("{} keys of zeros behind the last are counted", count),
                    [count](Variation& v) { v.zero_keys = count; }};
      FaultModel fitted = model(array, change, Pass::both);
      fitted.is_subtle = true;
      list.add(std::move(fitted), change);
    }
  }

  // e^sink of each head whose rows are as if it had one: the mean over some rows, by the accuracy that they
  // determine it with.
  std::map<std::int64_t, double> fitted_sinks(const ActualArray& array,
                                              const verify::FaultSearch& search) const {
    constexpr int kRows = 5;  // of a head
    struct Sum {
      int rows = 0;
      double weights = 0, products = 0;
    };
    std::map<std::int64_t, Sum> sums;
    std::vector<double> given(static_cast<std::size_t>(array.rows.columns));
    for (const std::int64_t n : search.some_rows(1024)) {
      const Place place = it_.queries.at(n);
      Sum& sum = sums[place.head];
      if (sum.rows == kRows) continue;
      const ReferenceRow right = right_.row(setup_.problem(place.entry, place.head), place.row);
      array.rows.given(n, given.data());
      const auto ratio = ratio_of(array, place, right, given);
      if (!(ratio > 0) || !std::isfinite(ratio)) continue;
      const double weight = std::pow(ratio / std::exp(right.lse), 2);
      ++sum.rows;
      sum.weights += weight;
      sum.products += weight * (std::exp(right.lse) / ratio - std::exp(right.lse_of_keys));
    }
    std::map<std::int64_t, double> sinks;
    for (const auto& [head, sum] : sums)
      if (sum.rows > 1 && sum.products > 0) sinks[head] = sum.products / sum.weights;
    return sinks;
  }

  // Sinks that are none of the arguments'. verl-project/verl#4551, ROCm/rocm-libraries#12227
  void add_sinks(const ActualArray& array, const verify::FaultSearch& search, Candidates& list) const {
    const std::map<std::int64_t, double> fitted = fitted_sinks(array, search);
    if (fitted.empty()) return;
    constexpr std::int64_t kMostNamed = 8;
    std::vector<double> sinks;
    std::vector<std::string> numbers;
    for (std::int64_t h = 0; h < setup_.shape.heads; ++h) {
      const auto at = fitted.find(h);
      sinks.push_back(at == fitted.end() ? setup_.ends.sink(h) : std::log(at->second));
      if (h < kMostNamed)
        numbers.push_back(sinks.back() == kNoSink ? "none" : fmt::format("{:.3g}", sinks.back()));
    }
    Change change{"sinks",
                  fmt::format("it is as if sinks were {}{}", fmt::join(numbers, ", "),
                              setup_.shape.heads > kMostNamed ? ", ..." : ""),
                  [sinks](Variation& v) { v.other_sinks = sinks; }};
    FaultModel fitted_model = model(array, change, Pass::both);
    fitted_model.is_subtle = true;
    list.add(std::move(fitted_model), change);
  }

  // Sums over the first keys of a row: of its weights, and of its weighted values.
  struct PrefixSums {
    std::size_t columns = 0;
    double sink = 0;
    std::vector<double> weights{0}, values = {};  // (keys + 1), (keys + 1, columns)
  };
  PrefixSums prefix_sums(const Place& place) const {
    const Problem p = setup_.problem(place.entry, place.head);
    const ReferenceRow r = right_.row(p, place.row);
    PrefixSums sums{.columns = r.out.size()};
    sums.sink = std::exp(r.lse - r.most) - std::exp(r.lse_of_keys - r.most);
    sums.values.resize(sums.columns);
    std::vector<double> value(sums.columns);
    for (std::int64_t j = 0; j < p.kv_length; ++j) {
      const double weight = std::exp(r.scores[static_cast<std::size_t>(j)] - r.most),
                   kept = p.dropout.factor_at(place.row, j);
      load_row(p.v.at({j, j + 1}), 0, 0, std::ssize(value), value.data());
      sums.weights.push_back(sums.weights.back() + weight);
      for (const double v : value)
        sums.values.push_back(sums.values[sums.values.size() - sums.columns] + weight * kept * v);
    }
    return sums;
  }

  // What becomes of parts of the keys: all of one length, or those before a key and the others.
  struct KeySplit {
    enum class Join { first_alone, lse_base_2, mean } how;
    bool is_in_two;
    const char* text;
  };
  static constexpr KeySplit kSplits[] = {
      {KeySplit::Join::first_alone, true, "keys from {} on are not read"},
      // Shared prefixes, and parts of whole blocks. sgl-project/sglang#40903, vllm-project/vllm#52796
      {KeySplit::Join::lse_base_2, true,
       "keys before {} and the others are joined with an lse to base 2 that is taken for base e"},
      {KeySplit::Join::mean, true, "of the keys before {} and the others the mean is taken"},
      {KeySplit::Join::lse_base_2, false,
       "parts of {} keys are joined with an lse to base 2 that is taken for base e"},
      {KeySplit::Join::mean, false, "of parts of {} keys the mean is taken"}};

  // The square of the difference between a row and that of split keys, over the square of the row.
  static double left_by(const KeySplit& split, std::size_t length, const PrefixSums& sums,
                        const std::vector<double>& given) {
    using Join = KeySplit::Join;
    const std::size_t keys = sums.weights.size() - 1;
    double all = split.how == Join::first_alone ? sums.sink : 0;
    std::vector<double> out(sums.columns);
    for (std::size_t begin = 0, end = 0; begin < keys; begin = end) {
      end = begin > 0 && split.is_in_two ? keys : std::min(keys, begin + length);
      const double own = sums.weights[end] - sums.weights[begin];
      if (!(own > 0) || (begin > 0 && split.how == Join::first_alone)) continue;
      const double joined = split.how == Join::mean         ? 1
                            : split.how == Join::lse_base_2 ? std::exp(std::log2(own))
                                                            : own;
      all += joined;
      for (std::size_t c = 0; c < out.size(); ++c)
        out[c] += joined / own * (sums.values[end * out.size() + c] - sums.values[begin * out.size() + c]);
    }
    double left = 0, square = 0;
    for (std::size_t c = 0; c < out.size(); ++c) {
      left += std::pow(given[c] - (all > 0 ? out[c] / all : 0), 2);
      square += given[c] * given[c];
    }
    return left < square ? left / square : 1;
  }

  // Keys that end, or are split, where some rows are nearest.
  void add_splits(const ActualArray& array, const verify::FaultSearch& search, Candidates& list) const {
    constexpr std::int64_t kMostKeys = 1 << 16, kMostWork = 1 << 17;
    constexpr double kMostLeft = 0.01;
    const std::int64_t keys = setup_.longest_keys();
    if (array.which != Result::out || keys < 3 || keys > kMostKeys) return;
    std::vector<std::pair<PrefixSums, std::vector<double>>> rows;
    for (const std::int64_t n :
         search.some_rows(static_cast<std::size_t>(std::clamp<std::int64_t>(kMostWork / keys, 2, 16)))) {
      rows.emplace_back(prefix_sums(it_.queries.at(n)),
                        std::vector<double>(static_cast<std::size_t>(array.rows.columns)));
      array.rows.given(n, rows.back().second.data());
      if (std::isnan(rows.back().first.weights.back())) rows.pop_back();  // no key attends
    }
    for (const KeySplit& split : kSplits) {
      double least = kMostLeft * static_cast<double>(rows.size());
      std::int64_t best = 0;
      for (std::int64_t length = 1; length < (split.is_in_two ? keys : (keys + 1) / 2); ++length) {
        double left = 0;
        for (const auto& [sums, given] : rows)
          if (left < least) left += left_by(split, static_cast<std::size_t>(length), sums, given);
        if (left < least) least = left, best = length;
      }
      if (best > 0) add_split(array, split, best, list);
    }
  }

  void add_split(const ActualArray& array, const KeySplit& split, std::int64_t length,
                 Candidates& list) const {
    using Join = KeySplit::Join;
    std::string text = fmt::format(fmt::runtime(split.text), length);
    Change change{"tile", text,
                  [split, length](Variation& v) {
                    v.loop = split.how == Join::mean ? Variation::Loop::parts_by_mean
                                                     : Variation::Loop::parts_by_lse_base_2;
                    (split.is_in_two ? v.split : v.tile) = length;
                  },
                  split.how == Join::mean};
    if (split.how == Join::first_alone)
      change = with_more_masked(std::move(text), [length](const Problem& p) {
        return prefix_mask(p.q_length, p.kv_length, std::min(length, p.kv_length));
      });
    FaultModel fitted = model(array, change, Pass::both);
    fitted.is_subtle = true;
    list.add(std::move(fitted), change);
  }

  // Numbers by entry and key.
  using SomeKeys = std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>;

  // All keys of a problem but some.
  static Mask mask_without(const Problem& p, const SomeKeys& some) {
    std::vector<std::int64_t> queries(static_cast<std::size_t>(p.q_length), 1),
        keys(static_cast<std::size_t>(p.kv_length), 1);
    for (const auto& [key, count] : some)
      if (key.first == p.entry) keys[static_cast<std::size_t>(key.second)] = 2;
    return segments_mask(IntegerArray(std::move(queries)), IntegerArray(std::move(keys)));
  }

  // Pairs attend where the problem's mask and another one have them.
  Change with_more_masked(std::string text, std::function<Mask(const Problem&)> other) const {
    struct Masks {
      std::map<std::pair<std::int64_t, std::int64_t>, Mask> made;  // by entry and distinct mask
      std::mutex mutex;
    };
    return {"mask", std::move(text),
            [this, other = std::move(other), masks = std::make_shared<Masks>()](Variation& v) {
              v.mask = [=, this](const Problem& p) -> const Mask* {
                if (p.q_length == 0 || p.kv_length == 0) return nullptr;
                const std::scoped_lock lock(masks->mutex);
                const auto [at, is_new] = masks->made.try_emplace(
                    {p.entry, blocks_.index_of(p.entry, p.head)}, full_mask(p.q_length, p.kv_length));
                const MaskTiles* const tiles = is_new ? blocks_.of(p) : nullptr;
                if (is_new) at->second = tiles ? *tiles->mask & other(p) : other(p);
                return &at->second;
              };
            }};
  }

  // Padding of a rank that begins too early: queries are not written, and none attends to their keys.
  // NVIDIA/TransformerEngine#1929, NVIDIA/TransformerEngine#1930
  void add_keys_of_unwritten(const ActualArray& array, Candidates& list) const {
    SomeKeys heads;  // without a row
    for (std::int64_t n = 0; n < array.rows.rows; ++n) {
      const auto at = static_cast<std::size_t>(n);
      if (array.counts.beyond[at] == 0 || array.counts.zeros[at] != array.counts.beyond[at]) continue;
      const Place place = it_.queries.at(n);
      const std::int64_t key = place.row + setup_.kv_length(place.entry) - setup_.q_length(place.entry);
      ++heads[{place.entry, key}];
    }
    std::erase_if(heads,
                  [&](const auto& key) { return key.second < setup_.shape.heads || key.first.second < 0; });
    if (heads.empty()) return;
    const Change change = with_more_masked("the keys of the queries that were never written are left out",
                                           [heads](const Problem& p) { return mask_without(p, heads); });
    list.add(model(array, change, Pass::both), change);
  }

  struct RowsOfResult {
    Result which = Result::out;
    std::vector<std::pair<Place, std::vector<double>>> rows = {};
  };
  struct ScaleFit {
    double factor = 1;  // of values
    double left = 0;    // of the squares
  };
  // What is left of rows of out or lse with this scale of scores, and out a factor.
  ScaleFit fit_of_scale(const RowsOfResult& given, double scale) const {
    const bool is_out = given.which == Result::out;
    Variation v;
    v.scale = scale;
    const Reference made(setup_, blocks_, v);
    double products = 0, squares = 0, all = 0;
    for (const auto& [place, values] : given.rows) {
      ReferenceRow r = made.row(setup_.problem(place.entry, place.head), place.row,
                                is_out ? Reference::Wanted::out : Reference::Wanted::lse);
      if (!is_out) r.out = {made.given_lse(r)};
      for (std::size_t c = 0; c < values.size(); ++c) {
        products += values[c] * r.out[c];
        squares += r.out[c] * r.out[c];
        all += values[c] * values[c];
      }
    }
    const double factor = is_out ? products / squares : 1;
    return {factor, 1 + factor * (factor * squares - 2 * products) / all};
  }

  // The scale of scores with which some rows are nearest, out but for a factor: what scales of a cache leave
  // where they are not applied. flashinfer-ai/flashinfer#4979
  void add_operand_scales(const ActualArray& array, const verify::FaultSearch& search,
                          Candidates& list) const {
    constexpr double kRange = 10, kStep = 0.5, kFinest = 1e-9, kCoarse = 0.01;  // of log2
    constexpr double kMostLeft = 0.05;                                          // with a scale nearly right
    constexpr double kNearOne = 0.005;
    RowsOfResult given{array.which};
    for (const std::int64_t n : search.some_rows(6)) {
      given.rows.emplace_back(it_.queries.at(n),
                              std::vector<double>(static_cast<std::size_t>(array.rows.columns)));
      array.rows.given(n, given.rows.back().second.data());
    }
    double best = 0, least = std::numeric_limits<double>::infinity();
    const auto try_scale = [&](double power) {
      if (const double left = fit_of_scale(given, std::exp2(power)).left; left < least)
        least = left, best = power;
    };
    for (double power = -kRange; power <= kRange; power += kStep) try_scale(power);
    for (double step = kStep / 2; step > kFinest; step /= 2) {
      if (step < kCoarse && !(least < kMostLeft)) return;
      for (const double power : {best - step, best + step}) try_scale(power);
    }
    const double scale = std::exp2(best), factor = fit_of_scale(given, scale).factor;
    if (!std::isfinite(factor) || std::abs(scale - 1) < kNearOne) return;
    Change change{"scale", fmt::format("scores are {:.3g} times what they should be", scale),
                  [=](Variation& v) { v.scale = scale, v.value_scale = factor; }};
    if (std::abs(factor - 1) >= kNearOne)
      change.text = fmt::format(
          "scores are {:.3g} times and values {:.3g} times what they should be, as where scales of {:.3g} and "
          "{:.3g} are left out",
          scale, factor, 1 / scale, 1 / factor);
    FaultModel fitted = model(array, change, Pass::both);
    fitted.is_subtle = true;
    list.add(std::move(fitted), change);
  }

  // The number in place of the expected one: some kernels write 0, or the number with which they mask scores.
  std::optional<double> number_without_key(const ActualArray& array) const {
    for (std::int64_t n = 0; n < array.rows.rows; ++n) {
      if (array.counts.beyond[static_cast<std::size_t>(n)] == 0) continue;
      double given = 0, expected = 0, allowed = 0;
      array.rows.given(n, &given);
      array.rows.expected(n, &expected, &allowed);
      if (expected == setup_.ends.lse.empty && std::isfinite(given)) return given + 0.0;  // -0 is 0
    }
    return std::nullopt;
  }

  struct LseFault {
    const char* kind;
    std::string text;
    std::function<double(const ReferenceRow& r)> value;
  };

  std::vector<LseFault> lse_faults(const ActualArray& array) const {
    const LseForm& own = setup_.ends.lse;
    const double unit = own.unit;
    const bool is_base_2 = unit != 1;
    const auto lse_of = [&own](const ReferenceRow& r) { return own.has_sink ? r.lse : r.lse_of_keys; };
    const auto scaled = [lse_of](double factor) {
      return [=](const ReferenceRow& r) { return factor * lse_of(r); };
    };
    std::vector<LseFault> all = {
        // sgl-project/sglang#40903, vllm-project/vllm#52796
        {"lse_base", is_base_2 ? "lse is multiplied by log2(e) twice" : "lse is a logarithm to base 2",
         scaled(unit / kLn2)},
        {"lse_base", is_base_2 ? "lse is a logarithm to base e" : "lse is multiplied by ln 2",
         scaled(unit * kLn2)},
        {"lse_sign", "lse has the wrong sign", scaled(-unit)},
        {"lse_max", "lse lacks the largest score",
         [=](const ReferenceRow& r) { return unit * (lse_of(r) - r.most); }},
    };
    const auto add_empty = [&](const std::string& text, double value) {
      all.push_back(
          {"lse_empty", "lse of a query without a key is " + text, [=, &own](const ReferenceRow& r) {
             const double lse = lse_of(r);
             return lse == RowEnd<double>::kEmpty ? value : own.given(lse);
           }});
    };
    add_empty("NaN", std::nan(""));  // pytorch/pytorch#109517, flashinfer-ai/flashinfer#1654
    for (const double value : {RowEnd<double>::kEmpty, -RowEnd<double>::kEmpty})
      if (value != own.empty) add_empty(value > 0 ? "+inf" : "-inf", value);
    if (const auto number = number_without_key(array)) add_empty(fmt::format("{:.6g}", *number), *number);
    if (setup_.has_sinks() && !own.has_sink)
      all.push_back(
          {"sinks", "lse counts the sinks", [&own](const ReferenceRow& r) { return own.given(r.lse); }});
    return all;
  }

  // Faults of lse, alone and beside those found in out.
  void add_lse(const ActualArray& array, Candidates& list) const {
    std::vector<Change> bases{{}};
    bases.insert(bases.end(), found_.begin(), found_.end());
    const double relative = rounding_of(array).relative;
    const std::vector<LseFault> faults = lse_faults(array);
    for (const Change& base : bases) {
      Variation v;
      if (base.apply) base.apply(v);
      const auto made = std::make_shared<const Reference>(setup_, blocks_, v);
      for (const LseFault& fault : faults) {
        if (base.apply && fault.kind == std::string_view("lse_empty")) continue;  // it changes nothing else
        FaultModel h{fault.kind, fault.text,
                     [=, this, scale = v.scale, value = fault.value](
                         std::int64_t n, std::span<const std::int64_t>, double* values, double* allowed) {
                       const Place place = it_.queries.at(n);
                       const ReferenceRow r = made->row(setup_.problem(place.entry, place.head), place.row,
                                                        Reference::Wanted::lse);
                       values[0] = value(r);
                       const double size = std::isfinite(values[0]) ? std::abs(values[0]) : 0;
                       allowed[0] =
                           it_.bounds.of(it_.queries, place).of_lse(std::max(size, std::abs(r.most)), scale) +
                           relative * size;
                       return true;
                     }};
        h.needs_numbers = h.kind != "lse_empty";
        list.add(std::move(h));
      }
    }
  }

  void add_other_arrays(const ActualArray& array, Candidates& list) const {
    for (const auto& other : arrays_) {
      const auto lengths = [](const ActualArray& a) {
        std::vector<std::int64_t> all{a.rows.rows, a.rows.columns};
        for (const verify::RowAxis& axis : a.rows.axes) all.push_back(axis.length);
        return all;
      };
      if (other->which == array.which || lengths(*other) != lengths(array)) continue;
      list.add({"exchanged", fmt::format("{} holds what belongs to {}", array.rows.name, other->rows.name),
                [&array = *other](std::int64_t n, std::span<const std::int64_t> columns, double* values,
                                  double* allowed) {
                  load_expected(array.rows, n, columns, values, allowed);
                  return true;
                }});
    }
  }

  // Heads or entries that take something of another one. `change(axis, other)` makes all take that of
  // `other`; `applies(axis)`: it differs along that axis.
  template <class Applies, class Apply>
  void add_parts_of_others(const ActualArray& array, const verify::FaultSearch& search, const char* what,
                           Applies&& applies, Apply&& change, Candidates& list) const {
    for (const std::size_t axis : {std::size_t{0}, std::size_t{1}}) {
      const verify::RowAxis& of = array.rows.axes[axis];
      if (of.length < 2 || (axis == 1 && setup_.packed()) || !applies(axis)) continue;
      const auto candidate = [&](std::int64_t other) {
        return model(array, {"", "", change(axis, other)}, Pass::both);
      };
      for (const auto& from : verify::apart(search.partners(axis, of.length, candidate))) {
        const auto models = std::make_shared<std::map<std::int64_t, FaultModel>>();
        for (const std::int64_t other : from)
          if (other >= 0) models->try_emplace(other, candidate(other));
        list.add({verify::is_exchange(from) ? "exchanged" : "repeated",
                  verify::text_of_partners(from, of.name, of.plural, what),
                  [=, &rows = it_.rows_of(array.which)](std::int64_t n, std::span<const std::int64_t> columns,
                                                        double* values, double* allowed) {
                    const Place place = rows.at(n);
                    const std::int64_t other =
                        from[static_cast<std::size_t>(axis == 0 ? place.head : place.entry)];
                    return other >= 0 && models->at(other).values(n, columns, values, allowed);
                  },
                  axis});
      }
    }
  }

  static auto take(std::int64_t Variation::*head, std::int64_t Variation::*entry) {
    return [=](std::size_t axis, std::int64_t other) {
      return [=](Variation& v) { v.*(axis == 0 ? head : entry) = other; };
    };
  }

  void add_masks_and_biases_of_others(const ActualArray& array, const verify::FaultSearch& search,
                                      Candidates& list) const {
    const auto differs = [&](std::size_t axis) {
      return blocks_.of(setup_.problem(0, 0)) != blocks_.of(setup_.problem(axis == 1, axis == 0));
    };
    const auto take_mask = [this](std::size_t axis, std::int64_t other) {
      return [this, axis, other](Variation& v) {
        v.mask = [this, axis, other](const Problem& p) -> const Mask* {
          const MaskTiles* tiles =
              blocks_.of(axis == 0 ? setup_.problem(p.entry, other) : setup_.problem(other, p.head));
          return tiles ? &*tiles->mask : nullptr;
        };
      };
    };
    add_parts_of_others(array, search, "the mask", differs, take_mask, list);
    const auto of_heads = [](bool has) { return [has](std::size_t axis) { return has && axis == 0; }; };
    // bigscience-workshop/Megatron-DeepSpeed#227, flashinfer-ai/flashinfer#1606
    add_parts_of_others(array, search, "the ALiBi slope", of_heads(!setup_.slopes.empty()),
                        take(&Variation::alibi_head, &Variation::alibi_head), list);
    // ROCm/rocm-libraries#12227, NovaSky-AI/SkyRL#558
    add_parts_of_others(array, search, "the sink", of_heads(setup_.has_sinks()),
                        take(&Variation::sink_head, &Variation::sink_head), list);
    if (!setup_.bias) return;
    add_parts_of_others(
        array, search, "the bias",
        [&](std::size_t axis) { return setup_.bias->strides[axis == 0 ? 1 : 0] != 0; },
        take(&Variation::bias_head, &Variation::bias_entry), list);
  }

  // BobMcDear/attorch#14, flashinfer-ai/flashinfer#3800
  void add_operands_of_others(const ActualArray& array, const verify::FaultSearch& search,
                              Candidates& list) const {
    add_parts_of_others(
        array, search, "the values", [&](std::size_t) { return array.which == Result::out; },
        take(&Variation::value_head, &Variation::value_entry), list);
    add_parts_of_others(
        array, search, "the keys", [](std::size_t) { return true; },
        take(&Variation::key_head, &Variation::key_entry), list);
    add_parts_of_others(
        array, search, "the keys and values", [&](std::size_t) { return array.which == Result::out; },
        [](std::size_t axis, std::int64_t other) {
          return [=](Variation& v) {
            (axis == 0 ? v.key_head : v.key_entry) = (axis == 0 ? v.value_head : v.value_entry) = other;
          };
        },
        list);
  }

  const ActualAttention& it_;
  const std::vector<std::unique_ptr<ActualArray>>& arrays_;
  WideArguments wide_;
  const CheckedArguments& setup_;
  const MaskPlan& blocks_;
  Changes changes_;
  Reference right_;
  std::vector<Change> tried_, found_;  // masks and keys of the caller; faults of the arrays before
  std::optional<TriedPages> pages_;
  mutable std::map<std::string, std::shared_ptr<SavedOf>> saved_;
  mutable std::unique_ptr<Reference::Saved> of_entry_;  // with δ of one entry
  mutable std::optional<std::pair<std::pair<std::string, bool>, std::shared_ptr<const ByKernels>>>
      by_kernels_;  // the latest
};

}  // namespace

double explain_bytes(const CheckedArguments& setup) {
  constexpr double kHeld = 4;
  const double bytes = WideArguments::bytes(setup);
  std::int64_t results = element_count(setup.shape.out) + element_count(setup.shape.lse);
  if (setup.gradients)
    for (const ArrayView* view : {&setup.q, &setup.k, &setup.v}) results += element_count(view->shape);
  return (bytes > WideArguments::kMost ? 0 : bytes) + kHeld * 8 * static_cast<double>(results);
}

void explain(const ActualAttention& given, const std::vector<std::unique_ptr<ActualArray>>& arrays,
             const Tried& tried, Against& against) {
  FaultModels models(given, arrays, tried);
  for (const auto& array : arrays)
    if (array->counts.bad_rows() > 0) models.explain(*array, against);
}

}  // namespace ejk::attn
