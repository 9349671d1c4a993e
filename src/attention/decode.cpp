// Decode path: few query rows, many keys.
// A task processes one contiguous key range of one KV head for up to kMostRows query rows. Keys and values
// are read in place. If the layout interleaves heads, a task takes several heads, chunk by chunk of a step's
// keys, so that reads stay sequential; each step prefetches the next. Partial softmax states of a sequence
// are merged in key order. Keys and values of a source are read in chunks, to this thread's memory: a paged or
// quantised cache is neither gathered nor decoded as a whole.
// Shapes alone determine ranges and steps, so a row's sums depend neither on threads nor on masks nor on the
// other rows or heads of a task.
// Values may be NaN or infinite where the weight is 0. The sums of a range are then not finite; it is
// computed again with those values separated.
// tests: tests/attention/test_decode.cpp
#include "attention/forward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "attention/packing.hpp"
#include "attention/row_products.hpp"
#include "attention/row_sums.hpp"
#include "attention/tile_mask.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "ejk/threads.hpp"

namespace ejk::attn {

namespace {

// Keys of a task (many, as merging costs time for each range; few enough for all threads), and of a step.
constexpr std::int64_t kRun = 1024, kStep = 128;
// Bytes of a chunk: it stays in the second-level cache beside the prefetched one; more where a task has as
// many heads as fit a page for one token, for direct(). More of a source: each read() takes time of its own.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 15, kTogetherBytes = 4096,
                       kBoxBytes = std::int64_t{1} << 17;
constexpr std::int64_t kMostRows = 4 * kMostDecodeRows;  // of a task, of all of its heads
constexpr std::int64_t kTasksOfThread = 4;               // so that all end at about the same time
constexpr std::int64_t kSpare = 64;                      // that whole vectors may read

// Keys of a range: longer where a key head's rows are several tasks, so that the states to merge do not
// exceed the keys.
std::int64_t run_of(const CheckedArguments& setup, std::int64_t entry) {
  return kRun * std::max<std::int64_t>(1, setup.rows_of_key(entry) / kMostRows);
}

std::int64_t runs_of(const CheckedArguments& setup, std::int64_t entry) {
  return std::max<std::int64_t>(1, core::ceil_div(setup.kv_length(entry), run_of(setup, entry)));
}

// Value, largest score and total of a row, of a run.
std::int64_t part_stride(const CheckedArguments& setup) {
  return core::round_up(setup.shape.value_size + 2, kWholeRow);
}

template <class Real>
class Decode {
 public:
  Decode(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries,
         const ForwardResults& results, double work)
      : setup_(setup),
        plan_(plan),
        queries_(queries),
        results_{results.out, static_cast<Real*>(results.lse), static_cast<Real*>(results.most)},
        gemm_(gemm_of<Real>()),
        step_(std::min(kStep, gemm_.kc / kernels::kDotsKeys * kernels::kDotsKeys)),
        weight_stride_(gemm_.a_stride / kSize),
        products_(setup),
        columns_(core::round_up(setup.shape.value_size, kWholeRow)),
        head_bytes_(std::max({std::int64_t{1}, setup.shape.head_size * size_of(setup.k.dtype),
                              setup.shape.value_size * size_of(setup.v.dtype)})) {
    const IndexRange kv_heads = setup.keys_of_queries(queries).heads;
    kv_heads_ = {kv_heads.begin, kv_heads.end};
    std::int64_t parts = 0;
    for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e) {
      first_part_.push_back(parts);
      if (const std::int64_t runs = runs_of(setup, e); few(e) && runs > 1) parts += rows_of(e) * runs;
    }
    parts_.resize(static_cast<std::size_t>(parts * part_stride(setup)));
    together_ = most_together();
    count_tasks();
    const std::int64_t wanted = kTasksOfThread * core::threads_for(tasks() * together_, work);
    while (together_ > 1 && tasks() < wanted) {
      together_ /= 2;
      count_tasks();
    }
  }

  std::int64_t tasks() const { return first_task_.back(); }

  // `next`: the task that this thread probably has then. Returns the number of pairs, computed or not.
  std::int64_t run(std::int64_t task, std::int64_t next) {
    const Task now = at(task);
    const std::int64_t length = setup_.kv_length(now.entry), runs = runs_of(setup_, now.entry);
    const Positions keys = block_of(now.run, run_of(setup_, now.entry), length),
                    some = queries_.positions_of(setup_.q_length(now.entry));
    thread_local Heads heads, again;
    take(now, some.count(), heads);
    if (heads.problems.empty()) return 0;
    kernels::Ahead next_keys;
    if (next < tasks()) {
      const Task then = at(next);
      const std::int64_t first = then.run * run_of(setup_, then.entry), last = setup_.kv_length(then.entry);
      next_keys = ahead(setup_.rows_of(setup_.k, then.entry, then.kv_heads.begin, setup_.kv_offsets),
                        {first, std::min(first + piece(then.kv_heads), last)}, setup_.shape.head_size,
                        then.kv_heads.count());
    }
    const auto keep = [&](const Heads& of, const RowSums<Real>& sums, Positions rows) {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const Problem& p = of.of_row(r);
        const std::int64_t query = some.begin + r % some.count();
        if (runs == 1) {
          sums.finish(setup_, r, p, query, results_);
          continue;
        }
        Real* const to = part(now.entry, now.run, p.head, query);
        std::copy_n(sums.row(r), setup_.shape.value_size, to);
        to[setup_.shape.value_size] = sums.most[r];
        to[setup_.shape.value_size + 1] = sums.total[r];
      }
    };
    const RowSums<Real> sums = add_up(heads, some, keys, next_keys, Values::unchecked);
    thread_local std::vector<std::int64_t> not_finite;
    not_finite.clear();
    for (const Positions rows : heads.rows_of_kv)
      if (is_finite(sums.row(rows.begin), rows.count() * sums.stride))
        keep(heads, sums, rows);
      else
        not_finite.push_back(heads.of_row(rows.begin).kv_head);
    for (const std::int64_t kv_head : not_finite) {
      take({now.entry, {kv_head, kv_head + 1}, now.of_group, now.run}, some.count(), again);
      keep(again, add_up(again, some, keys, {}, Values::checked), {0, again.rows()});
    }
    return heads.rows() * keys.count();
  }

  void merge(std::int64_t entry, std::int64_t head) {
    const std::int64_t runs = runs_of(setup_, entry), size = setup_.shape.value_size;
    if (!few(entry) || runs == 1) return;
    const Problem p = setup_.problem(entry, head);
    const Positions some = queries_.positions_of(p.q_length);
    ScratchLayout memory;
    RowSums<Real> sums{};
    sums.stride = size;
    sums.reserve(memory, 1);
    memory.take();
    for (std::int64_t query = some.begin; query < some.end; ++query) {
      sums.clear(1);
      for (std::int64_t run = 0; run < runs; ++run)
        sums.most[0] = larger_of(sums.most[0], part(entry, run, head, query)[size]);
      for (std::int64_t run = 0; run < runs; ++run) {
        const Real* const from = part(entry, run, head, query);
        if (from[size] == RowEnd<Real>::kEmpty) continue;
        const Real factor = std::exp(from[size] - sums.most[0]);
        for (std::int64_t d = 0; d < size; ++d) sums.value[d] += factor * from[d];
        sums.total[0] += factor * from[size + 1];
      }
      sums.finish(setup_, 0, p, query, results_);
    }
  }

 private:
  static constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));

  struct Task {
    std::int64_t entry;
    Positions kv_heads;
    Positions of_group;  // of the query heads that share a key/value head
    std::int64_t run;
  };
  // All heads of a range come before the next range: in most layouts their keys are adjacent.
  Task at(std::int64_t task) const {
    const auto after = std::upper_bound(first_task_.begin(), first_task_.end(), task);
    const std::int64_t entry = queries_.entries.begin + (after - first_task_.begin() - 1),
                       in_entry = task - after[-1], of_group = parts_of_group(entry),
                       parts = parts_of_heads() * of_group;
    const Positions some = block_of(in_entry % parts / of_group, together_, kv_heads_.count());
    return {entry,
            {kv_heads_.begin + some.begin, kv_heads_.begin + some.end},
            block_of(in_entry % of_group, heads_at_once(entry), setup_.group()),
            in_entry / parts};
  }
  std::int64_t heads_at_once(std::int64_t entry) const {
    const std::int64_t of_head = std::max<std::int64_t>(1, setup_.q_length(entry));
    return std::clamp<std::int64_t>(kMostRows / of_head, 1, std::max<std::int64_t>(1, setup_.group()));
  }
  std::int64_t parts_of_group(std::int64_t entry) const {
    return std::max<std::int64_t>(1, core::ceil_div(setup_.group(), heads_at_once(entry)));
  }
  std::int64_t parts_of_heads() const { return core::ceil_div(kv_heads_.count(), together_); }

  void count_tasks() {
    first_task_.assign(1, 0);
    for (std::int64_t e = queries_.entries.begin; e < queries_.entries.end; ++e)
      first_task_.push_back(
          first_task_.back() +
          (few(e) && rows_of(e) > 0 ? parts_of_heads() * parts_of_group(e) * runs_of(setup_, e) : 0));
  }

  std::int64_t most_together() const {
    const auto side_by_side = [&](const ArrayView& a) {
      const std::int64_t bytes = a.shape[3] * size_of(a.dtype);
      return a.strides[3] == size_of(a.dtype) && a.strides[1] == bytes &&
             a.strides[2] >= kv_heads_.count() * bytes;
    };
    if (!side_by_side(setup_.k) || !side_by_side(setup_.v)) return 1;
    std::int64_t rows = 1;
    for (std::int64_t e = queries_.entries.begin; e < queries_.entries.end; ++e)
      if (few(e)) rows = std::max(rows, setup_.rows_of_key(e));
    return std::clamp<std::int64_t>(std::min(kMostRows / rows, kTogetherBytes / head_bytes_), 1,
                                    std::max<std::int64_t>(1, kv_heads_.count()));
  }

  // Keys processed at once, with all heads of a task.
  std::int64_t piece(Positions kv_heads) const {
    const std::int64_t keys = (reads_boxes() ? kBoxBytes : kPieceBytes) / (kv_heads.count() * head_bytes_);
    return std::clamp(keys / gemm_.direct_k * gemm_.direct_k, gemm_.direct_k, step_);
  }

  // The query heads of a task in the order of key/value heads, and the rows of each of these.
  struct Heads {
    std::vector<Problem> problems;
    std::vector<Positions> rows_of_kv;
    Positions kv;
    std::int64_t of_head;

    std::int64_t rows() const { return std::ssize(problems) * of_head; }
    const Problem& of_row(std::int64_t r) const { return problems[static_cast<std::size_t>(r / of_head)]; }
  };
  void take(const Task& task, std::int64_t of_head, Heads& heads) const {
    heads.problems.clear();
    heads.rows_of_kv.clear();
    heads.kv = task.kv_heads;
    heads.of_head = of_head;
    for (std::int64_t kv_head = task.kv_heads.begin; kv_head < task.kv_heads.end; ++kv_head) {
      const std::int64_t first = heads.rows();
      for (std::int64_t n = task.of_group.begin; n < task.of_group.end; ++n) {
        const std::int64_t head = kv_head * setup_.group() + n;
        if (queries_.heads.begin <= head && head < queries_.heads.end)
          heads.problems.push_back(setup_.problem(task.entry, head));
      }
      if (first < heads.rows()) heads.rows_of_kv.push_back({first, heads.rows()});
    }
  }

  bool reads_boxes() const { return setup_.key_sources.k != nullptr; }

  // Rows of some heads that were read from a source.
  struct BoxedRows {
    kernels::StridedMatrix first;  // of the first head
    std::int64_t first_head, head_bytes;

    kernels::StridedMatrix of(std::int64_t kv_head) const {
      kernels::StridedMatrix rows = first;
      rows.data = static_cast<const std::byte*>(rows.data) + (kv_head - first_head) * head_bytes;
      return rows;
    }
  };
  BoxedRows read(const ArraySource& from, std::int64_t entry, Positions kv_heads, Positions some,
                 std::int64_t size, std::byte* to) const {
    const std::int64_t base = setup_.packed() ? setup_.kv_offsets[static_cast<std::size_t>(entry)] : 0;
    const ArrayBox box = box_in_layout(setup_.layout, {{entry, entry + 1}, kv_heads, {}},
                                       {base + some.begin, base + some.end}, size);
    from.read(box.start, box.count, to);
    const std::int64_t element = size_of(from.dtype()), row = size * element;
    const bool by_head = setup_.layout == AttentionLayout::bhsd;
    return {{to, from.dtype(), by_head ? row : kv_heads.count() * row, element},
            kv_heads.begin,
            by_head ? some.count() * row : row};
  }

  // Some rows of a key/value head and of the `heads` − 1 after it, where elements are contiguous, or rows of
  // one head where rows are. Nothing of a source.
  kernels::Ahead ahead(const KeyRows& of, Positions rows, std::int64_t size, std::int64_t heads) const {
    if (reads_boxes()) return {};
    const kernels::StridedMatrix first = of.at(rows);
    if (first.column_stride != size_of(first.dtype)) {
      if (first.row_stride != size_of(first.dtype)) return {};
      return {first.data, size, rows.count() * size_of(first.dtype), first.column_stride};
    }
    return {first.data, rows.count(), heads * size * size_of(first.dtype), first.row_stride};
  }
  // The part of [begin, end) of n.
  static kernels::Ahead share(kernels::Ahead all, std::int64_t begin, std::int64_t end, std::int64_t n) {
    const std::int64_t first = begin * all.rows / n;
    all.data = static_cast<const std::byte*>(all.data) + first * all.row_stride;
    all.rows = end * all.rows / n - first;
    return all;
  }

  bool few(std::int64_t entry) const { return is_decode(setup_, entry); }
  std::int64_t rows_of(std::int64_t entry) const {
    return queries_.heads.count() * queries_.positions_of(setup_.q_length(entry)).count();
  }
  Real* part(std::int64_t entry, std::int64_t run, std::int64_t head, std::int64_t query) {
    const Positions some = queries_.positions_of(setup_.q_length(entry));
    const std::int64_t row = (head - queries_.heads.begin) * some.count() + query - some.begin;
    const std::int64_t first = first_part_[static_cast<std::size_t>(entry - queries_.entries.begin)];
    return parts_.data() + (first + run * rows_of(entry) + row) * part_stride(setup_);
  }

  // f(some) for each contiguous range of `rows` that are in(row).
  template <class In, class F>
  static void each_run(Positions rows, In&& in, F&& f) {
    for (Positions some = rows; some.begin < rows.end; some.begin = some.end + 1) {
      some.end = some.begin;
      while (some.end < rows.end && in(some.end)) ++some.end;
      if (some.count() > 0) f(some);
    }
  }

  static bool any(const bool* of_row, Positions rows) {
    return std::find(of_row + rows.begin, of_row + rows.end, true) != of_row + rows.end;
  }

  // Whether values with a weight of 0 are checked for NaN and infinities.
  enum class Values { unchecked, checked };

  // Softmax states of rows, query by query of head by head, over keys; in this thread's memory. `next_keys`
  // are prefetched at the end.
  RowSums<Real> add_up(const Heads& heads, Positions queries, Positions keys, const kernels::Ahead& next_keys,
                       Values how) const {
    const std::int64_t of_head = queries.count(), rows = heads.rows();
    const std::int64_t head_size = setup_.shape.head_size, size = setup_.shape.value_size;
    const std::int64_t most_keys = std::min(step_, keys.count());
    ScratchLayout memory;
    const std::int64_t entry = heads.problems.front().entry,
                       of_kv_head =
                           products_.rows_held(entry, of_head * heads_at_once(entry)) * products_.stride();
    Real *q = nullptr, *k_copy = nullptr, *v_copy = nullptr, *weights = nullptr, *bias = nullptr;
    memory.add(q, std::ssize(heads.rows_of_kv) * of_kv_head);
    memory.add(k_copy, most_keys * moved_stride(head_size));
    memory.add(v_copy, most_keys * moved_stride(size));
    memory.add(weights, rows * weight_stride_ + kSpare);
    memory.add(bias, step_ + kSpare);
    std::byte* box = nullptr;
    if (reads_boxes()) memory.add(box, std::max(piece(heads.kv) * heads.kv.count(), step_) * head_bytes_);
    RowSums<Real> sums{};
    sums.stride = columns_;
    sums.reserve(memory, rows);
    memory.take();
    sums.clear(rows);
    for (std::int64_t h = 0; h < std::ssize(heads.rows_of_kv); ++h) {
      const Positions of_kv = heads.rows_of_kv[static_cast<std::size_t>(h)];
      for (std::int64_t r = of_kv.begin; r < of_kv.end; r += of_head)
        products_.take_queries(entry, heads.of_row(r).q, queries.begin, of_head, r - of_kv.begin,
                               q + h * of_kv_head);
    }

    // All heads share one mask, or each has its own.
    thread_local std::vector<TileMask> masks;
    const bool shared = plan_.distinct_heads() == 1;
    const std::int64_t distinct = shared ? 1 : std::ssize(heads.problems);
    masks.resize(std::max(masks.size(), static_cast<std::size_t>(distinct)));
    for (std::int64_t m = 0; m < distinct; ++m)
      masks[static_cast<std::size_t>(m)].begin(setup_, plan_.of(heads.problems[static_cast<std::size_t>(m)]),
                                               queries, TileMask::Rows::queries);
    const auto mask_of = [&](std::int64_t r) -> const TileMask& {
      return masks[shared ? 0 : static_cast<std::size_t>(r / of_head)];
    };

    const Problem& first = heads.problems.front();
    const std::int64_t kv_heads = std::ssize(heads.rows_of_kv), piece_keys = piece(heads.kv);
    const auto keys_ahead = [&](Positions some) { return ahead(first.k, some, head_size, heads.kv.count()); };
    const auto values_ahead = [&](Positions some) { return ahead(first.v, some, size, heads.kv.count()); };
    std::optional<BoxedRows> boxed;
    const auto rows_at = [&](const Problem& p, KeyRows Problem::*which, Positions some) {
      return boxed ? boxed->of(p.kv_head) : (p.*which).at(some);
    };
    const auto piece_from = [&](std::int64_t begin, std::int64_t end) {
      return Positions{begin, std::min(begin + piece_keys, end)};
    };
    const auto each_piece = [&](Positions of, auto&& f) {
      for (Positions some = piece_from(of.begin, of.end), after; some.count() > 0; some = after) {
        after = piece_from(some.end, of.end);
        f(some, after);
      }
    };
    bool has_pairs[kMostRows], has_weight[kMostRows];
    for (Positions step{keys.begin, 0}; step.begin < keys.end; step.begin = step.end) {
      step.end = std::min(step.begin + step_, keys.end);
      bool is_empty = true;
      for (std::int64_t m = 0; m < distinct; ++m) {
        TileMask& mask = masks[static_cast<std::size_t>(m)];
        const bool has = mask.keys(step) && mask.columns({0, of_head}).count() > 0;
        const std::int64_t begin = m * of_head, end = shared ? rows : begin + of_head;
        std::fill(has_pairs + begin, has_pairs + end, has);
        is_empty = is_empty && !has;
      }
      if (is_empty) continue;
      each_piece(step, [&](Positions some, Positions after) {
        const kernels::Ahead all =
            after.count() > 0 ? keys_ahead(after) : values_ahead(piece_from(step.begin, step.end));
        if (reads_boxes()) boxed = read(*setup_.key_sources.k, entry, heads.kv, some, head_size, box);
        for (std::int64_t h = 0; h < kv_heads; ++h) {
          const Positions of_kv = heads.rows_of_kv[static_cast<std::size_t>(h)];
          if (!any(has_pairs, of_kv)) continue;
          kernels::Ahead next = share(all, h, h + 1, kv_heads);
          const kernels::StridedMatrix k = products_.keys(
              entry, rows_at(heads.of_row(of_kv.begin), &Problem::k, some), some.count(), k_copy);
          const auto multiply = [&](Positions at) {
            products_.run(entry, q + h * of_kv_head, {at.begin - of_kv.begin, at.end - of_kv.begin}, k,
                          some.count(), weights + of_kv.begin * weight_stride_ + some.begin - step.begin,
                          weight_stride_, next);
            next.rows = 0;
          };
          if (products_.in_panels(entry))
            multiply(of_kv);
          else
            each_run(
                of_kv, [&](std::int64_t r) { return has_pairs[r]; }, multiply);
        }
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        has_weight[r] = false;
        if (!has_pairs[r]) continue;
        const Problem& p = heads.of_row(r);
        const std::int64_t query = r % of_head;
        has_weight[r] = sums.weigh(setup_, r, weights + r * weight_stride_, {0, step.count()},
                                   p.bias.of_query(queries.begin + query, step, bias), mask_of(r).row(query));
        p.dropout.apply_to_query(queries.begin + query, step, weights + r * weight_stride_);
      }
      if (size == 0) continue;
      const auto add_values = [&](Positions of_kv, const kernels::StridedMatrix& values, Positions some,
                                  kernels::Ahead next) {
        if (!any(has_weight, of_kv)) return;
        const kernels::StridedMatrix side = side_by_side(setup_, values, some.count(), size, v_copy);
        each_run(
            of_kv, [&](std::int64_t r) { return has_weight[r]; },
            [&](Positions at) {
              add_weighted(weights + at.begin * weight_stride_ + some.begin - step.begin, at.count(), side,
                           some.count(), sums.row(at.begin), next);
              next.rows = 0;
            });
      };
      if (how == Values::unchecked) {
        each_piece(step, [&](Positions some, Positions after) {
          const kernels::Ahead all = after.count() > 0     ? values_ahead(after)
                                     : step.end < keys.end ? keys_ahead(piece_from(step.end, keys.end))
                                                           : next_keys;
          if (reads_boxes()) boxed = read(*setup_.key_sources.v, entry, heads.kv, some, size, box);
          for (std::int64_t h = 0; h < kv_heads; ++h) {
            const Positions of_kv = heads.rows_of_kv[static_cast<std::size_t>(h)];
            add_values(of_kv, rows_at(heads.of_row(of_kv.begin), &Problem::v, some), some,
                       share(all, h, h + 1, kv_heads));
          }
        });
        continue;
      }
      thread_local NonFiniteRows<Real> values;
      for (const Positions of_kv : heads.rows_of_kv) {
        const Problem& of_rows = heads.of_row(of_kv.begin);
        if (reads_boxes())
          boxed = read(*setup_.key_sources.v, entry, {of_rows.kv_head, of_rows.kv_head + 1}, step, size, box);
        add_values(of_kv, values.of(rows_at(of_rows, &Problem::v, step), step.count(), size), step, {});
        for (const std::int64_t j : values.rows()) {
          const std::int64_t key = step.begin + j;
          if (reads_boxes())  // the values are copied
            boxed = read(*setup_.key_sources.k, entry, {of_rows.kv_head, of_rows.kv_head + 1}, {key, key + 1},
                         head_size, box);
          const kernels::StridedMatrix key_row = rows_at(of_rows, &Problem::k, {key, key + 1});
          for (std::int64_t r = of_kv.begin; r < of_kv.end; ++r) {
            const Problem& p = heads.of_row(r);
            const std::int64_t query = r % of_head;
            if (has_weight[r] && mask_of(r).allowed(query, j) &&
                p.dropout.keeps(queries.begin + query, key) &&
                !without_weight<Real>(setup_, p, queries.begin + query, key, key_row))
              values.add(j, weights[r * weight_stride_ + j], sums.row(r));
          }
        }
      }
    }
    return sums;
  }

  void add_weighted(const Real* weights, std::int64_t rows, const kernels::StridedMatrix& values,
                    std::int64_t keys, Real* out, const kernels::Ahead& next) const {
    for (std::int64_t j = 0; j < keys; j += gemm_.direct_k) {
      const std::int64_t length = std::min(gemm_.direct_k, keys - j);
      gemm_.direct(weights + j, part_of(values, j), length, rows, setup_.shape.value_size, true, out,
                   columns_, share(next, j, j + length, keys));
    }
  }

  // x · 0 is NaN where x is not finite; several partial sums, as one would be a chain of dependent additions.
  static bool is_finite(const Real* values, std::int64_t count) {
    constexpr std::int64_t kSums = 16;
    Real sums[kSums] = {};
    for (std::int64_t i = 0; i + kSums <= count; i += kSums)
      for (std::int64_t s = 0; s < kSums; ++s) sums[s] += values[i + s] * Real{0};
    for (std::int64_t i = count / kSums * kSums; i < count; ++i) sums[0] += values[i] * Real{0};
    return std::all_of(sums, sums + kSums, [](Real sum) { return sum == Real{0}; });
  }

  const CheckedArguments& setup_;
  const MaskPlan& plan_;
  const Region& queries_;
  RowResults<Real> results_;
  const kernels::Gemm& gemm_;  // of weights and values
  std::int64_t step_, weight_stride_;
  RowProducts<Real> products_;
  std::int64_t columns_;                  // elements from row to row of sums
  Positions kv_heads_;                    // those of the queries
  std::int64_t head_bytes_;               // of a key or a value, of the larger
  std::int64_t together_;                 // key/value heads of a task
  std::vector<std::int64_t> first_task_;  // of each entry, and at last all
  std::vector<std::int64_t> first_part_;  // of each entry, in parts_
  std::vector<Real> parts_;               // states of rows, range by range of an entry
};

template <class Real>
void run(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double work,
         const ForwardResults& results, Progress& progress) {
  Decode<Real> few(setup, plan, queries, results, work);
  if (few.tasks() == 0) return;
  const int threads = core::threads_for(few.tasks(), work);
  core::parallel_for(few.tasks(), work, [&](std::int64_t n) { progress.add(few.run(n, n + threads)); });
  const std::int64_t heads = queries.heads.count();
  const double merged = static_cast<double>(decode_bytes(setup, queries)) / static_cast<double>(sizeof(Real));
  if (merged > 0)
    core::parallel_for(queries.entries.count() * heads, merged, [&](std::int64_t n) {
      few.merge(queries.entries.begin + n / heads, queries.heads.begin + n % heads);
    });
}

}  // namespace

// The decode path is used up to this many queries. The limit is lower for 16-bit keys, which are converted
// again for every few rows, and for few keys, which are packed quickly. (Xeon with AMX, head size 64, one or
// four query heads a key head, 8 to 2,048 keys: AMX overtakes at 9 queries.)
bool is_decode(const CheckedArguments& setup, std::int64_t entry) {
  const bool narrow = size_of(setup.k.dtype) == 2;
  std::int64_t most = narrow ? kMostDecodeRows / 2 : kMostDecodeRows;
  const std::int64_t keys = setup.kv_length(entry), few_keys = narrow ? 128 : 64;
  if (keys <= few_keys) most /= keys <= few_keys / 2 ? 4 : 2;
  const kernels::Products& products = kernels::active().products;
  const bool has_tiles = setup.q.dtype == DType::bfloat16 && setup.k.dtype == DType::bfloat16 &&
                         setup.shape.arithmetic == DType::float32 && products.bf16 != nullptr &&
                         products.bf16_rate > 2;
  if (has_tiles) most = kMostDecodeRows / 4;
  return setup.q_length(entry) <= most;
}

std::int64_t decode_thread_bytes(const CheckedArguments& setup) {
  constexpr std::int64_t kMostStride = 272;  // of weights
  const std::int64_t rows = std::min(kMostRows, setup.longest_queries() * setup.shape.heads);
  const std::int64_t keys = std::min(kStep, setup.longest_keys());
  const std::int64_t head_size = core::round_up(setup.shape.head_size, kWholeRow),
                     size = core::round_up(setup.shape.value_size, kWholeRow);
  const double head_in_panels = 8.0 / 7.0 * static_cast<double>(head_size);
  const double elements =
      static_cast<double>(rows) * (head_in_panels + static_cast<double>(size + kMostStride + 2)) +
      static_cast<double>(keys) * static_cast<double>(head_size + size) +
      static_cast<double>(kStep + 4 * kSpare);
  return core::bytes_of_estimate(elements * static_cast<double>(size_of(setup.shape.arithmetic)));
}

std::int64_t decode_box_bytes(const CheckedArguments& setup) {
  const std::int64_t head = std::max(setup.shape.head_size * size_of(setup.k.dtype),
                                     setup.shape.value_size * size_of(setup.v.dtype));
  const double together = static_cast<double>(std::max(kTogetherBytes, head));
  return core::bytes_of_estimate((static_cast<double>(kBoxBytes) + static_cast<double>(kStep) * together) *
                                 static_cast<double>(threads()));
}

bool reads_keys_once(const CheckedArguments& setup) {
  bool all = !setup.gradients && !setup.ends.mean;
  for (std::int64_t e = 0; all && e < setup.shape.entries; ++e) all = is_decode(setup, e);
  return all;
}

std::int64_t decode_bytes(const CheckedArguments& setup, const Region& queries) {
  double parts = 0;
  for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e) {
    const std::int64_t runs = runs_of(setup, e);
    if (runs > 1 && is_decode(setup, e))
      parts +=
          static_cast<double>(runs) * static_cast<double>(queries.positions_of(setup.q_length(e)).count());
  }
  return core::bytes_of_estimate(parts * static_cast<double>(queries.heads.count()) *
                                 static_cast<double>(part_stride(setup) * size_of(setup.shape.arithmetic)));
}

void decode_forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double work,
                    const ForwardResults& results, Progress& progress) {
  in_arithmetic(setup, [&]<class Real>(Real) { run<Real>(setup, plan, queries, work, results, progress); });
}

}  // namespace ejk::attn
