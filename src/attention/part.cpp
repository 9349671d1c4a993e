// Run of a part. Its boxes are viewed as whole arrays, so that passes use the positions and masks of the
// whole.
// tests: tests/attention/test_division.cpp, tests/attention/test_attention.cpp
#include "attention/part.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/operands.hpp"
#include "attention/tasks.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"

namespace ejk::attn {

namespace {

using Makes = AttentionPart::Makes;

template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool is_of_bias(const AttentionPart& part) { return part.makes == Makes::dbias; }
bool is_of_sinks(const AttentionPart& part) { return part.makes == Makes::dsinks; }

// dq, dk and dv, of key/value heads.
bool is_of_heads(const AttentionPart& part) {
  return part.makes == Makes::gradients || part.makes == Makes::all_gradients;
}

Region own(const AttentionPart& part) { return {part.entries, part.heads, part.positions}; }

// The positions of a region in an array of (B, heads, positions, elements).
Positions positions_in(const CheckedArguments& setup, const Region& region, const ArrayView& array,
                       const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& lengths) {
  return setup.packed() ? token_range(region, offsets, lengths) : region.positions_of(array.shape[2]);
}

struct Boxes {
  const CheckedArguments& setup;
  Region queries, keys;

  ArrayBox of(Form form, const Shape& shape) const {
    return form.is_lse()                  ? of_lse()
           : form.rows == RowsOf::bias    ? of_bias(shape)
           : form.rows == RowsOf::sinks   ? ArrayBox{{queries.heads.begin}, {queries.heads.count()}}
           : form.rows == RowsOf::queries ? of_queries(setup.shape.*form.columns)
                                          : of_keys(setup.shape.*form.columns);
  }
  ArrayBox of_queries(std::int64_t size) const {
    return box_in_layout(setup.layout, queries,
                         positions_in(setup, queries, setup.q, setup.q_offsets, setup.q_lengths), size);
  }
  ArrayBox of_keys(std::int64_t size) const {
    return box_in_layout(setup.layout, keys,
                         positions_in(setup, keys, setup.k, setup.kv_offsets, setup.kv_lengths), size);
  }
  ArrayBox of_lse() const {
    const Positions p = positions_in(setup, queries, setup.q, setup.q_offsets, setup.q_lengths);
    if (setup.packed()) return {{queries.heads.begin, p.begin}, {queries.heads.count(), p.count()}};
    return {{queries.entries.begin, queries.heads.begin, p.begin},
            {queries.entries.count(), queries.heads.count(), p.count()}};
  }
  // Axes of length 1 serve all.
  ArrayBox of_bias(const Shape& shape) const {
    const Positions q = queries.positions_of(setup.q.shape[2]), k = keys.positions_of(setup.k.shape[2]);
    const IndexRange all[] = {queries.entries, queries.heads, q, k};
    ArrayBox box = whole_box(shape);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const IndexRange& range = all[4 - shape.size() + d];
      box.start[d] = range.begin;
      box.count[d] = range.count();
    }
    return box;
  }
};

Boxes boxes_of(const CheckedArguments& setup, const AttentionPart& part) {
  return {setup, queries_of(setup, part), keys_of(setup, part)};
}

Array as(const ArrayView& view, DType dtype) {
  return view.dtype == dtype ? Array::copy_of(view) : identity_dtype_convert_backward(view, dtype);
}

// f(entry, head, first of its rows in lse, its queries).
template <class F>
void for_each_rows(const CheckedArguments& setup, const Region& queries, F&& f) {
  for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
    for (std::int64_t h = queries.heads.begin; h < queries.heads.end; ++h)
      f(e, h, setup.first_row(e, h), queries.positions_of(setup.q_length(e)));
}

// Rows may lose all their keys to a bias of −∞, too. Their largest score is then −∞; so is lse, unless it has
// a sink.
template <class Real>
void count_rows(const CheckedArguments& setup, const Region& queries, const Real* lse, const Real* most,
                AttentionPasses& work) {
  for_each_rows(setup, queries, [&](std::int64_t e, std::int64_t h, std::int64_t first, Positions rows) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const Real value = lse[first + i];
      if ((most != nullptr ? most : lse)[first + i] == RowEnd<Real>::kEmpty) {
        if (++work.rows_without_key == 1) work.first_row_without_key = {e, h, i};
      } else if (!std::isfinite(value) && ++work.rows_not_finite == 1) {
        work.first_row_not_finite = {e, h, i};
      }
    }
  });
}

void count_lost_rows(const CheckedArguments& setup, const Region& queries, const void* lse, const void* most,
                     AttentionPasses& work) {
  in_arithmetic(setup, [&]<class Real>(Real) {
    count_rows(setup, queries, static_cast<const Real*>(lse), static_cast<const Real*>(most), work);
  });
}

// Of an lse that is given with its sink: whether the masks leave a key, as the largest score.
template <class Real>
void find_keys(const CheckedArguments& setup, const MaskPlan& masks, const Region& queries, Real* most) {
  for_each_rows(setup, queries, [&](std::int64_t e, std::int64_t h, std::int64_t first, Positions rows) {
    const std::vector<bool> attends = attending_queries(setup.problem(e, h), masks);
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      most[first + i] = attends[static_cast<std::size_t>(i)] ? Real{0} : RowEnd<Real>::kEmpty;
  });
}

// Of an lse that is given: −∞ for rows without a key and a sink, whatever the form has for them.
template <class Real>
void mark_empty(const CheckedArguments& setup, const Region& queries, const Real* most, Real* lse) {
  for_each_rows(setup, queries, [&](std::int64_t, std::int64_t h, std::int64_t first, Positions rows) {
    if (setup.ends.sink(h) != kNoSink) return;
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      if (most[first + i] == RowEnd<Real>::kEmpty) lse[first + i] = RowEnd<Real>::kEmpty;
  });
}

// From another implementation's form of lse to that of the passes.
template <class Real>
void make_natural(const CheckedArguments& setup, const Region& queries, Real* lse) {
  for_each_rows(setup, queries, [&](std::int64_t, std::int64_t h, std::int64_t first, Positions rows) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      lse[first + i] =
          static_cast<Real>(setup.ends.lse.natural(static_cast<double>(lse[first + i]), setup.ends.sink(h)));
  });
}

// From the form of the passes to that of results.
template <class Real>
void make_given(const CheckedArguments& setup, const Region& queries, Real* lse) {
  for_each_rows(setup, queries, [&](std::int64_t, std::int64_t, std::int64_t first, Positions rows) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      lse[first + i] = static_cast<Real>(setup.ends.lse.given(static_cast<double>(lse[first + i])));
  });
}

template <class Real>
void find_largest(const CheckedArguments& setup, const Region& queries, const Real* most,
                  std::vector<double>& of_heads) {
  of_heads.assign(static_cast<std::size_t>(setup.shape.heads), RowEnd<double>::kEmpty);
  for_each_rows(setup, queries, [&](std::int64_t, std::int64_t h, std::int64_t first, Positions rows) {
    double& largest = of_heads[static_cast<std::size_t>(h)];
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      largest = larger_of(largest, static_cast<double>(most[first + i]));
  });
}

// Rows without a score and without a sink become the mean of all values of their entry.
template <class Real>
void write_means(const CheckedArguments& setup, const Region& queries, const Real* most,
                 const RowWriter& out) {
  const std::int64_t heads = queries.heads.count(), size = setup.shape.value_size;
  const double elements = static_cast<double>(element_count(setup.v.shape));
  core::parallel_for(queries.entries.count() * heads, elements, [&](std::int64_t n) {
    const std::int64_t head = queries.heads.begin + n % heads;
    if (setup.ends.sink(head) != kNoSink) return;
    const Problem p = setup.problem(queries.entries.begin + n / heads, head);
    std::vector<double> sum, row(static_cast<std::size_t>(size));
    const Positions rows = queries.positions_of(p.q_length);
    for (std::int64_t i = rows.begin; i < rows.end && p.kv_length > 0; ++i) {
      if (most[p.first_row + i] != RowEnd<Real>::kEmpty) continue;
      if (sum.empty()) {
        sum.assign(row.size(), 0);
        for (std::int64_t j = 0; j < p.kv_length; ++j) {
          load_row(p.v.at({j, j + 1}), 0, 0, size, row.data());
          for (std::size_t d = 0; d < row.size(); ++d) sum[d] += row[d] / static_cast<double>(p.kv_length);
        }
      }
      out.store(p.entry, p.head, setup.q_offsets, i, sum.data(), size);
    }
  });
}

class Run {
 public:
  Run(const Plan& plan, const AttentionPart& part, const AttentionArrays& arrays,
      const std::vector<MutableArrayView>& results, const PairProgress& progress,
      const KeySources& key_sources)
      : plan_(plan),
        part_(part),
        arrays_(arrays),
        results_(results),
        progress_(progress),
        needs_(needs_of(plan, part)),
        made_(made_by(plan, part)),
        setup_(bound_to_part(plan.setup, plan.types, needs_, arrays)),
        boxes_(boxes_of(plan.setup, part)) {
    check_results();
    setup_.key_sources = key_sources;
    setup_.hold_rows(boxes_.queries);
    if (needs_.dout)
      dout_ = in_one_form(checked_part("dout", *plan.types.dout, *needs_.dout, arrays.dout), setup_.layout);
    plan.blocks();
  }

  AttentionPasses run() {
    if (setup_.has_padding()) write_padding();
    part_.makes == Makes::out ? run_out() : run_gradients();
    return work_;
  }

 private:
  void check_results() const {
    if (results_.size() != made_.size())
      throw core::invalid(
          fmt::format("{} results are given; {} were planned", results_.size(), made_.size()));
    for (std::size_t r = 0; r < made_.size(); ++r) {
      const PlannedArray& planned = plan_.results[r];
      if (!made_[r] || (results_[r].dtype == planned.type.dtype && results_[r].shape == made_[r]->count))
        continue;
      throw core::invalid(fmt::format("{} is {} {}; it was planned as {}", planned.name,
                                      name_of(results_[r].dtype), to_string(results_[r].shape),
                                      to_string(ArrayType(planned.type.dtype, made_[r]->count))))
          .about(planned.name);
    }
  }

  RowWriter writer(std::size_t result) const {
    return {setup_,
            results_[result],
            *made_[result],
            plan_.results[result].type.shape,
            setup_.gradients ? plan_.rounded_first : std::nullopt,
            row_of(result_at(setup_, result)).form.rows};
  }

  // Padding that comes with the part's positions (token_range): 0, and the lse of a query without a key.
  void write_padding() const {
    constexpr double kRow = 30;  // nanoseconds
    const double empty = setup_.ends.lse.empty;
    const DType type = setup_.shape.arithmetic;
    for (std::size_t r = 0; r < made_.size(); ++r) {
      if (!made_[r]) continue;
      const Form form = row_of(result_at(setup_, r)).form;
      if (form.rows == RowsOf::sinks) continue;
      const bool of_keys = form.rows == RowsOf::keys;
      const Region& region = of_keys ? boxes_.keys : boxes_.queries;
      const auto &offsets = of_keys ? setup_.kv_offsets : setup_.q_offsets,
                 &lengths = of_keys ? setup_.kv_lengths : setup_.q_lengths;
      const std::vector<float> zeros(form.is_lse() ? 0
                                                   : static_cast<std::size_t>(setup_.shape.*form.columns));
      std::optional<RowWriter> to;
      if (!form.is_lse()) to.emplace(writer(r));
      const std::int64_t tokens = token_range(region, offsets, lengths).count();
      const auto write = [&](std::int64_t n) {
        const std::int64_t e = region.entries.begin + n;
        const auto at = static_cast<std::size_t>(e);
        const auto write_rows = [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t h = region.heads.begin; h < region.heads.end; ++h)
            for (std::int64_t row = begin; row < end; ++row)
              if (to)
                to->store(e, h, offsets, row, zeros.data(), std::ssize(zeros));
              else
                store(&empty, 1, type, results_[r].data + (setup_.first_row(e, h) + row) * size_of(type));
        };
        if (e == 0 && region.positions.begin == 0) write_rows(-offsets[0], 0);
        if (region.positions.end >= lengths[at]) write_rows(lengths[at], offsets[at + 1] - offsets[at]);
      };
      core::parallel_for(region.entries.count(), kRow * static_cast<double>(tokens * region.heads.count()),
                         write);
    }
  }

  // Progress of the next pass.
  PairProgress part() {
    if (!progress_) return {};
    return [this, from = reported_, all = reported_pairs(plan_, part_)](std::int64_t done, std::int64_t) {
      progress_(from + done, all);
    };
  }

  // Rows without a key; of gradients the parts of heads count them.
  void count_lost(const void* lse, const void* most) {
    if (part_.makes == Makes::out || is_of_heads(part_))
      count_lost_rows(setup_, boxes_.queries, lse, most, work_);
  }

  void run_forward(const PairProgress& progress, const ForwardResults& results) {
    work_.forward_seconds =
        timed([&] { forward(setup_, plan_.blocks(), boxes_.queries, part_.share, results, progress); });
    count_lost(results.lse, results.most);
  }

  void run_out() {
    const RowEnds& ends = setup_.ends;
    const bool is_empty_by_most = setup_.has_sinks() || ends.mean;
    Array most;
    if (is_empty_by_most || plan_.settings.max_logits)
      most = Array(setup_.shape.arithmetic, boxes_.of_lse().count);
    setup_.ends.lse_of_keys = !ends.lse.has_sink;
    const RowWriter out = writer(0);
    void* const lse = results_[1].data;
    run_forward(part(), {out, lse, most.size() > 0 ? most.data() : nullptr});
    in_arithmetic(setup_, [&]<class Real>(Real) {
      const auto* const largest = reinterpret_cast<const Real*>(most.data());
      if (plan_.settings.max_logits) find_largest(setup_, boxes_.queries, largest, work_.max_logits);
      if (ends.mean && most.size() > 0) write_means(setup_, boxes_.queries, largest, out);
      if (!ends.lse.is_plain()) make_given(setup_, boxes_.queries, static_cast<Real*>(lse));
    });
  }

  // lse and δ of queries, in the order in which lse has their rows; of the arithmetic's dtype.
  struct SavedRows {
    Array lse, delta;
  };
  SavedRows saved_rows() {
    SavedRows rows;
    const DType type = setup_.shape.arithmetic;
    Array out, most;
    if (setup_.has_sinks() || (setup_.ends.mean && plan_.types.out))
      most = Array(type, boxes_.of_lse().count);
    ArrayView outs;
    if (plan_.types.out) {
      checked_part("lse", *plan_.types.lse, *needs_.lse, arrays_.lse);
      rows.lse = as(*arrays_.lse, type);
      if (!setup_.ends.lse.is_plain())
        in_arithmetic(setup_, [&]<class Real>(Real) {
          make_natural(setup_, boxes_.queries, reinterpret_cast<Real*>(rows.lse.data()));
        });
      outs = checked_part("out", *plan_.types.out, *needs_.out, arrays_.out);
      if (most.size() > 0)
        in_arithmetic(setup_, [&]<class Real>(Real) {
          auto* const largest = reinterpret_cast<Real*>(most.data());
          find_keys(setup_, plan_.blocks(), boxes_.queries, largest);
          if (setup_.ends.mean)
            mark_empty(setup_, boxes_.queries, largest, reinterpret_cast<Real*>(rows.lse.data()));
        });
      count_lost(rows.lse.data(), most.size() > 0 ? most.data() : nullptr);
    } else {
      const ArrayBox box = boxes_.of_queries(setup_.shape.value_size);
      out = Array(type, box.count);
      rows.lse = Array(type, boxes_.of_lse().count);
      const RowWriter target(setup_, out.mutable_view(), box, setup_.shape.out);
      run_forward(part(), {target, rows.lse.data(), most.size() > 0 ? most.data() : nullptr});
      reported_ += pairs_of_queries(setup_, boxes_.queries);
      outs = seen_as_whole(out.view(), box, setup_.shape.out);
    }
    rows.delta = Array(type, rows.lse.shape());
    work_.backward_seconds += timed([&] {
      find_deltas(setup_, boxes_.queries, dout_, in_one_form(outs, setup_.layout), rows.delta.data());
    });
    return rows;
  }

  void run_gradients() {
    const SavedRows rows = saved_rows();
    const Saved saved{dout_, rows.lse.data(), rows.delta.data()};
    const bool is_whole = part_.makes == Makes::all_gradients;
    work_.backward_seconds += timed([&] {
      if (is_of_sinks(part_) || (is_whole && setup_.has_sinks()))
        gradient_of_sinks(setup_, boxes_.queries, saved.lse, saved.delta, writer(results_.size() - 1));
      if (is_of_heads(part_)) {
        backward(setup_, plan_.blocks(), boxes_.keys, part_.share, saved, writer(0), writer(1), writer(2),
                 part());
        reported_ += 2 * pairs_of_keys(setup_, boxes_.keys);
      }
      if (is_of_bias(part_) || (is_whole && plan_.types.bias))
        backward_of_bias(setup_, plan_.blocks(), is_whole ? plan_.setup.whole_bias() : own(part_),
                         part_.share, saved, writer(3), part());
    });
  }

  const Plan& plan_;
  const AttentionPart& part_;
  const AttentionArrays& arrays_;
  const std::vector<MutableArrayView>& results_;
  const PairProgress& progress_;
  AttentionOperands<ArrayBox> needs_;
  std::vector<std::optional<ArrayBox>> made_;
  CheckedArguments setup_;
  Boxes boxes_;
  ArrayView dout_;
  std::int64_t reported_ = 0;  // pairs, by passes that are done
  AttentionPasses work_;
};

}  // namespace

AttentionPart whole_part(const Plan& plan) {
  const bool gradients = plan.setup.gradients;
  const Region all = gradients ? plan.setup.all_keys() : plan.setup.all_queries();
  return {gradients ? Makes::all_gradients : Makes::out, all.entries, all.heads, all.positions, 1};
}

Region queries_of(const CheckedArguments& setup, const AttentionPart& part) {
  return is_of_sinks(part)   ? Region{{0, setup.shape.entries}, part.heads, {0, setup.q.shape[2]}}
         : is_of_bias(part)  ? setup.queries_of_bias(own(part))
         : is_of_heads(part) ? setup.queries_of_keys(own(part))
                             : own(part);
}

Region keys_of(const CheckedArguments& setup, const AttentionPart& part) {
  return is_of_heads(part) ? own(part) : setup.keys_of_queries(queries_of(setup, part));
}

AttentionOperands<ArrayBox> needs_of(const Plan& plan, const AttentionPart& part) {
  using Use = OperandRow::Use;
  const Boxes boxes = boxes_of(plan.setup, part);
  const bool takes_saved = plan.types.out.has_value(), computes_scores = !takes_saved || !is_of_sinks(part);
  AttentionOperands<ArrayBox> needs;
  for_each_operand(
      [&](const char*, const auto& row, const auto& type, auto& box) {
        const bool is_used =
            row->use == Use::gradients || (row->use == Use::saved ? takes_saved : computes_scores);
        if (type && is_used) box = boxes.of(row->form, type->shape);
      },
      kOperands, plan.types, needs);
  return needs;
}

std::vector<std::optional<ArrayBox>> made_by(const Plan& plan, const AttentionPart& part) {
  const Boxes boxes = boxes_of(plan.setup, part);
  std::vector<std::optional<ArrayBox>> made;
  for (const PlannedArray& result : plan.results) {
    const ResultRow& row = row_of(result_at(plan.setup, made.size()));
    made.emplace_back();
    if (part.makes == Makes::all_gradients || part.makes == row.part)
      made.back() = boxes.of(row.form, result.type.shape);
  }
  return made;
}

std::int64_t part_bytes(const Plan& plan, const AttentionPart& part) {
  const Sizes& s = plan.setup.shape;
  const Boxes boxes = boxes_of(plan.setup, part);
  const std::int64_t forward = plan.types.out ? 0 : decode_bytes(plan.setup, boxes.queries);
  const std::int64_t rows = byte_count(boxes.of_lse().count, s.arithmetic);
  const bool keeps_most = plan.setup.has_sinks() || plan.setup.ends.mean || plan.settings.max_logits;
  const std::int64_t most = keeps_most ? rows : 0;
  if (part.makes == Makes::out) return core::sum_of_bytes({forward, most});
  std::int64_t bytes = core::sum_of_bytes(
      {forward, most, rows, rows,
       plan.types.out ? 0 : byte_count(boxes.of_queries(s.value_size).count, s.arithmetic)});
  if (is_of_heads(part))
    bytes = core::sum_of_bytes({bytes, bytes_of_means(plan.setup, boxes.keys),
                                byte_count(boxes.of_queries(s.head_size).count, s.arithmetic)});
  if (is_of_bias(part)) bytes = core::sum_of_bytes({bytes, bias_bytes(plan.setup, own(part))});
  if (part.makes == Makes::all_gradients && plan.types.bias)
    bytes = core::sum_of_bytes({bytes, bias_bytes(plan.setup, plan.setup.whole_bias())});
  return bytes;
}

std::int64_t reported_pairs(const Plan& plan, const AttentionPart& part) {
  const std::int64_t forward =
      plan.types.out ? 0 : pairs_of_queries(plan.setup, queries_of(plan.setup, part));
  std::int64_t pairs = 0;
  if (is_of_heads(part)) pairs += pairs_of_keys(plan.setup, keys_of(plan.setup, part));
  if (is_of_bias(part)) pairs += pairs_of_bias(plan.setup, own(part));
  if (part.makes == Makes::all_gradients && plan.types.bias)
    pairs += pairs_of_bias(plan.setup, plan.setup.whole_bias());
  return forward + 2 * pairs;
}

void add(AttentionPasses& sum, const AttentionPasses& next) {
  sum.rows_without_key += next.rows_without_key;
  sum.rows_not_finite += next.rows_not_finite;
  if (sum.first_row_without_key.empty()) sum.first_row_without_key = next.first_row_without_key;
  if (sum.first_row_not_finite.empty()) sum.first_row_not_finite = next.first_row_not_finite;
  sum.max_logits.resize(std::max(sum.max_logits.size(), next.max_logits.size()), RowEnd<double>::kEmpty);
  for (std::size_t h = 0; h < next.max_logits.size(); ++h)
    sum.max_logits[h] = larger_of(sum.max_logits[h], next.max_logits[h]);
  sum.forward_seconds += next.forward_seconds;
  sum.backward_seconds += next.backward_seconds;
}

AttentionPasses run_part(const Plan& plan, const AttentionPart& part, const AttentionArrays& arrays,
                         const std::vector<MutableArrayView>& results, const PairProgress& progress,
                         const KeySources& key_sources) {
  return Run(plan, part, arrays, results, progress, key_sources).run();
}

}  // namespace ejk::attn
