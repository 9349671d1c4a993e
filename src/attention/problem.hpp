// Checked arguments of attention in one form for all layouts. A problem is one query head of one entry (batch
// entry or packed sequence): pointers, strides, and a mask cut into tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/row_end.hpp"
#include "ejk/attention.hpp"
#include "ejk/communicator.hpp"
#include "kernels/kernels.hpp"
#include "mask/bits.hpp"
#include "mask/node.hpp"

namespace ejk::attn {

using Positions = IndexRange;

/// Keys or values of one head, by position.
class KeyRows {
 public:
  KeyRows() = default;
  KeyRows(const kernels::StridedMatrix& all) : all_(all) {}  // NOLINT(google-explicit-constructor)
  kernels::StridedMatrix at(Positions keys) const {
    kernels::StridedMatrix rows = all_;
    rows.data = static_cast<const std::byte*>(rows.data) + keys.begin * rows.row_stride;
    return rows;
  }

 private:
  kernels::StridedMatrix all_ = {};
};

/// ALiBi of one head: what its slope multiplies, by query and key.
struct AlibiRows {
  double slope = 0;  // 0: none
  AlibiForm form = AlibiForm::absolute;
  std::int64_t shift = 0;  // keys − queries

  double at(std::int64_t query, std::int64_t key) const {
    return slope *
           static_cast<double>(form == AlibiForm::absolute ? -std::abs(query + shift - key) : key - query);
  }
};

/// What is added to the scores of one head, by query and key: a bias and ALiBi.
class BiasRows {
 public:
  BiasRows() = default;
  explicit BiasRows(const kernels::StridedMatrix& all) : all_(all) {}  // (queries, keys)

  AlibiRows alibi;

  /// That of a query and some keys, or of a key and some queries, computed into `out`; null: nothing is added.
  template <class Real>
  const Real* of_query(std::int64_t query, Positions keys, Real* out) const {
    return row(all_, query, keys, out, [&](std::int64_t j) { return alibi.at(query, j); });
  }
  template <class Real>
  const Real* of_key(std::int64_t key, Positions queries, Real* out) const {
    return row({all_.data, all_.dtype, all_.column_stride, all_.row_stride}, key, queries, out,
               [&](std::int64_t i) { return alibi.at(i, key); });
  }
  template <class Real>
  Real at(std::int64_t query, std::int64_t key) const {
    Real value = 0;
    of_query(query, {key, key + 1}, &value);
    return value;
  }
  /// Without ALiBi.
  double of_array(std::int64_t query, std::int64_t key) const {
    double value = 0;
    if (all_.data != nullptr) load_row(all_, query, key, 1, &value);
    return value;
  }

 private:
  template <class Real, class F>
  const Real* row(const kernels::StridedMatrix& from, std::int64_t index, Positions some, Real* out,
                  F&& of_alibi) const {
    if (from.data == nullptr && alibi.slope == 0) return nullptr;
    if (from.data != nullptr)
      load_row(from, index, some.begin, some.count(), out);
    else
      std::fill_n(out, some.count(), Real{0});
    if (alibi.slope != 0)
      for (std::int64_t n = 0; n < some.count(); ++n) out[n] += static_cast<Real>(of_alibi(some.begin + n));
    return out;
  }

  kernels::StridedMatrix all_ = {};
};

/// Dropout of one head, by query and key: weights of kept pairs are multiplied, others are 0.
class Dropout {
 public:
  Dropout() = default;
  Dropout(const kernels::StridedMatrix& kept, double of_kept)  // (queries, keys) of bool
      : factor(of_kept), kept_(kept) {}

  double factor = 1;

  explicit operator bool() const { return kept_.data != nullptr; }
  bool keeps(std::int64_t query, std::int64_t key) const { return !*this || is_kept(at(kept_, query, key)); }
  double factor_at(std::int64_t query, std::int64_t key) const {
    return !*this ? 1 : keeps(query, key) ? factor : 0;
  }
  /// To numbers of a query and some keys, or of a key and some queries.
  template <class Real>
  void apply_to_query(std::int64_t query, Positions keys, Real* x) const {
    apply(at(kept_, query, keys.begin), kept_.column_stride, keys.count(), x);
  }
  template <class Real>
  void apply_to_key(std::int64_t key, Positions queries, Real* x) const {
    apply(at(kept_, queries.begin, key), kept_.row_stride, queries.count(), x);
  }

 private:
  static const std::byte* at(const kernels::StridedMatrix& kept, std::int64_t query, std::int64_t key) {
    return static_cast<const std::byte*>(kept.data) + query * kept.row_stride + key * kept.column_stride;
  }
  bool is_kept(const std::byte* from) const { return *from != std::byte{0}; }
  template <class Real>
  void apply(const std::byte* from, std::int64_t stride, std::int64_t count, Real* x) const {
    if (!*this) return;
    const auto of_kept = static_cast<Real>(factor);
    for (std::int64_t n = 0; n < count; ++n) x[n] = is_kept(from + n * stride) ? x[n] * of_kept : Real{0};
  }

  kernels::StridedMatrix kept_ = {};
};

struct Problem {
  std::int64_t entry = 0, head = 0, kv_head = 0;
  std::int64_t q_length = 0, kv_length = 0;
  kernels::StridedMatrix q;  // (positions, elements)
  KeyRows k, v;
  BiasRows bias;
  Dropout dropout;
  std::int64_t first_row = 0;  // of its queries in lse, which has them one after the other
};

/// Some positions of some heads of some entries; all positions unless there is one entry and one head.
struct Region {
  IndexRange entries, heads, positions;

  Positions positions_of(std::int64_t length) const {
    return {std::min(positions.begin, length), std::min(positions.end, length)};
  }
};

/// Index of the rows of an entry and head in lse, or in a part of it.
struct RowSteps {
  std::int64_t first = 0, entry = 0, head = 0;
};

/// Keys and values that are read in boxes, by the decode path alone; null: they are in memory.
struct KeySources {
  const ArraySource* k = nullptr;
  const ArraySource* v = nullptr;
};

enum class BiasAxis { entries, heads, queries, keys };

enum class RowsOf { queries, keys, bias, sinks };

enum class Result { out, lse, dq, dk, dv, dbias, dsinks };

/// What shapes and dtypes decide.
struct Sizes {
  Shape out, lse;
  DType arithmetic = DType::float32;  // or float64
  std::int64_t entries = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, value_size = 0;
};

struct CheckedArguments {
  AttentionLayout layout = AttentionLayout::bshd;
  ArrayView q, k, v;                                // (B, heads, positions, elements); packed: B = 1
  KeySources key_sources;                           // else k and v have elements
  std::vector<std::int64_t> q_offsets, kv_offsets;  // of packed sequences: first tokens, then all
  std::vector<std::int64_t> q_lengths, kv_lengths;  // where padding follows them; else empty
  std::optional<ArrayView> bias;                    // (B, H, Q, K), stride 0 where it is broadcast
  Shape bias_shape{1, 1, 1, 1};                     // of its own: 1 where one element serves all
  std::size_t bias_rank = 0;                        // leading axes that it lacks
  std::optional<ArrayView> dropout;                 // likewise
  double kept_factor = 1;                           // of the weights that dropout keeps
  double scale = 1;
  double softcap = 0;  // 0: none
  SoftcapOrder softcap_order = SoftcapOrder::before_bias;
  std::vector<double> slopes;  // of ALiBi: of each query head, or of each entry and head; empty: none
  AlibiForm alibi_form = AlibiForm::absolute;
  RowEnds ends;
  BlockShape block;
  Sizes shape;
  bool gradients = false;  // else out and lse
  RowSteps row_steps;      // of lse, or of a part of it

  bool packed() const { return layout == AttentionLayout::thd; }
  bool has_padding() const { return !q_lengths.empty(); }
  bool has_sinks() const { return !ends.sinks.empty(); }
  std::int64_t q_length(std::int64_t entry) const { return length(q, q_offsets, q_lengths, entry); }
  std::int64_t kv_length(std::int64_t entry) const { return length(k, kv_offsets, kv_lengths, entry); }
  std::int64_t longest_queries() const { return longest(shape.entries, &CheckedArguments::q_length); }
  std::int64_t longest_keys() const { return longest(shape.entries, &CheckedArguments::kv_length); }
  std::int64_t group() const { return shape.kv_heads == 0 ? 1 : shape.heads / shape.kv_heads; }
  /// Queries of an entry of all heads that share a key.
  std::int64_t rows_of_key(std::int64_t entry) const { return q_length(entry) * group(); }
  std::int64_t problems() const { return shape.entries * shape.heads; }
  Region all_queries() const { return {{0, shape.entries}, {0, shape.heads}, {0, q.shape[2]}}; }
  Region all_keys() const { return {{0, shape.entries}, {0, shape.kv_heads}, {0, k.shape[2]}}; }
  /// The query heads of key/value heads, and all of their positions.
  Region queries_of_keys(const Region& keys) const {
    return {keys.entries, {keys.heads.begin * group(), keys.heads.end * group()}, {0, q.shape[2]}};
  }
  /// The key/value heads of query heads, and all of their positions; all heads where there are none.
  Region keys_of_queries(const Region& queries) const {
    const IndexRange heads =
        group() == 0 ? IndexRange{0, shape.kv_heads}
                     : IndexRange{queries.heads.begin / group(), (queries.heads.end + group() - 1) / group()};
    return {queries.entries, heads, {0, k.shape[2]}};
  }

  Problem problem(std::int64_t entry, std::int64_t head) const;

  /// Regions of a bias are of its own axes; positions are queries, keys where one row serves all queries, or
  /// none.
  bool bias_has(BiasAxis axis) const { return bias_shape[static_cast<std::size_t>(axis)] != 1; }
  std::int64_t bias_positions() const { return bias_has(BiasAxis::queries) ? bias_shape[2] : bias_shape[3]; }
  Region whole_bias() const { return {{0, bias_shape[0]}, {0, bias_shape[1]}, {0, bias_positions()}}; }
  /// The queries that a region serves; without queries of its own a bias serves all.
  Region queries_of_bias(const Region& own) const {
    return {bias_has(BiasAxis::entries) ? own.entries : IndexRange{0, shape.entries},
            bias_has(BiasAxis::heads) ? own.heads : IndexRange{0, shape.heads},
            bias_has(BiasAxis::queries) ? own.positions : IndexRange{0, q.shape[2]}};
  }

  /// From here on lse, and arrays with its rows, have only these queries.
  void hold_rows(const Region& queries);
  std::int64_t first_row(std::int64_t entry, std::int64_t head) const {
    return row_steps.first + head * row_steps.head +
           (packed() ? q_offsets[static_cast<std::size_t>(entry)] : entry * row_steps.entry);
  }
  std::int64_t rows(const Region& queries) const;

  /// The rows of one entry and head in an array of (B, heads, positions, elements).
  kernels::StridedMatrix rows_of(const ArrayView& array, std::int64_t entry, std::int64_t head,
                                 const std::vector<std::int64_t>& offsets) const;

 private:
  std::int64_t longest(std::int64_t entries,
                       std::int64_t (CheckedArguments::*length_of)(std::int64_t) const) const {
    std::int64_t most = 0;
    for (std::int64_t e = 0; e < entries; ++e) most = std::max(most, (this->*length_of)(e));
    return most;
  }
  std::int64_t length(const ArrayView& array, const std::vector<std::int64_t>& offsets,
                      const std::vector<std::int64_t>& lengths, std::int64_t entry) const {
    const auto e = static_cast<std::size_t>(entry);
    return !packed() ? array.shape[2] : lengths.empty() ? offsets[e + 1] - offsets[e] : lengths[e];
  }
};

template <class F>
decltype(auto) in_arithmetic(const CheckedArguments& setup, F&& f) {
  return setup.shape.arithmetic == DType::float64 ? f(double{}) : f(float{});
}

/// All checks but those of masks; reads cu_seqlens. Throws Error{input}.
CheckedArguments check_arguments(const AttentionTypes& types, const AttentionSettings& options);

/// The same arguments with the elements of `arrays`. Throws Error{input} for arrays of other types.
enum class SavedResults { taken, ignored };
CheckedArguments bound(const CheckedArguments& planned, const AttentionTypes& types,
                       const AttentionArrays& arrays, SavedResults saved = SavedResults::taken);

/// A box of an array, viewed as the whole array: only elements of the box may be accessed.
ArrayView seen_as_whole(const ArrayView& elements, const ArrayBox& box, const Shape& shape);

/// The same; throws Error{input} about `name` where there are none, or of another type.
ArrayView checked_part(const char* name, const ArrayType& type, const ArrayBox& box,
                       const std::optional<ArrayView>& elements);

CheckedArguments bound_to_part(const CheckedArguments& planned, const AttentionTypes& types,
                               const AttentionOperands<ArrayBox>& boxes, const AttentionArrays& arrays);

/// The tokens of a region, of packed sequences: with the last position of one comes its padding, with the
/// first of the first one the padding before it.
Positions token_range(const Region& region, const std::vector<std::int64_t>& offsets,
                      const std::vector<std::int64_t>& lengths);

ArrayView in_one_form(const ArrayView& array, AttentionLayout layout);

/// A box of an array in the layout, of `size` elements a row; packed: `positions` are tokens.
ArrayBox box_in_layout(AttentionLayout layout, const Region& region, Positions positions, std::int64_t size);

ArrayView with_four_axes(const ArrayView& array);

/// (heads,) as (1, heads, 1, 1).
inline ArrayView of_sinks_form(const ArrayView& array) {
  return {array.data, array.dtype, {1, array.shape[0], 1, 1}, {0, array.strides[0], 0, 0}};
}

Shape in_layout(const ArrayView& array, AttentionLayout layout);

struct MaskTiles {
  std::optional<Mask> mask;  // none: an entry without queries or keys
  MaskSummary summary;       // the states of its blocks, and what the report counts
  std::int64_t computed_pairs = 0;

  mask::BlockState state(std::int64_t q_block, std::int64_t kv_block) const {
    return static_cast<mask::BlockState>(summary.states->at(q_block, kv_block));
  }
};

/// Those of the settings, then of segment ids. Throws Error{input} for other entries or heads.
MaskSet masks_of(const CheckedArguments& setup, const AttentionSettings& settings);

class MaskPlan {
 public:
  /// Reads masks and sorts their blocks; all ranks of `comm` call it. Throws Error{input} for another shape.
  MaskPlan(const CheckedArguments& setup, const MaskSet& masks, Communicator& comm = single_process());
  MaskPlan(const CheckedArguments& setup, JoinedMasks masks);

  /// Null: all pairs attend.
  const MaskTiles* of(const Problem& problem) const {
    return tiles_.empty() ? nullptr
                          : &tiles_[static_cast<std::size_t>(index_of(problem.entry, problem.head))];
  }
  /// Among the distinct ones.
  std::int64_t index_of(std::int64_t entry, std::int64_t head) const {
    const std::int64_t row = !of_entry_.empty() ? of_entry_[static_cast<std::size_t>(entry)]
                             : entries_ == 1    ? 0
                                                : entry;
    return row * heads_ + (heads_ == 1 ? 0 : head);
  }
  const std::vector<MaskTiles>& distinct() const { return tiles_; }

  /// The bits of a rectangle of a mask. Masks that are read in order are used by one thread at a time.
  static void fill(const MaskTiles& tiles, const mask::Rectangle& where, const mask::BitRows& out);

  bool has_masks() const { return !tiles_.empty(); }
  /// Entries and heads that have masks of their own; 1: all share.
  std::int64_t distinct_entries() const { return entries_; }
  std::int64_t distinct_heads() const { return heads_; }

  const AttentionWork& work() const { return work_; }

  /// Estimated time of one thread for the forward pass of some pairs and queries; and of all.
  static double nanoseconds(const CheckedArguments& setup, double computed_pairs, double rows) {
    return computed_pairs * (2 + static_cast<double>(setup.shape.head_size + setup.shape.value_size) / 20) +
           rows * static_cast<double>(setup.shape.value_size);
  }
  double nanoseconds(const CheckedArguments& setup) const {
    return nanoseconds(setup, static_cast<double>(work_.computed_pairs), static_cast<double>(work_.rows));
  }

 private:
  void scan(const CheckedArguments& setup, JoinedMasks joined, Communicator& comm);
  void count(const CheckedArguments& setup);

  std::int64_t entries_ = 1, heads_ = 1;  // 1: all share
  std::vector<MaskTiles> tiles_;          // (entries, heads); empty: there is no mask
  std::vector<std::int64_t> of_entry_;    // as JoinedMasks has it
  AttentionWork work_;
};

/// The queries of a problem with a key, and the keys with a query.
std::vector<bool> attending_queries(const Problem& p, const MaskPlan& plan);
std::vector<bool> attending_keys(const Problem& p, const MaskPlan& plan);
/// The keys of a key head with a query of any head that shares it.
std::vector<bool> attending_keys(const CheckedArguments& setup, std::int64_t entry, std::int64_t kv_head,
                                 const MaskPlan& plan);

}  // namespace ejk::attn
