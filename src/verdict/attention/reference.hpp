// Reference of attention in float64: the definition, with variations that model faults. Two passes a row:
// scores, then results; gradients of keys key by key. Time: half a nanosecond for each pair and element.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention/problem.hpp"
#include "compare/float_type.hpp"

namespace ejk::attn {

class OtherKeys;

/// How a computation differs from the definition of attention; by default not at all. Models of faults.
struct Variation {
  enum class Cap { own, before_bias, after_bias, none };
  enum class NoKey { own, zero, nan, mean };  // out of a query without a key: mean of all values
  /// Query heads that a gradient of keys sums; interleaved: those with h mod G.
  enum class Heads { all, first, last, mean, interleaved };

  double scale = 1;                              // times the scale
  double bias = 1;                               // times the bias
  std::int64_t bias_head = -1, bias_entry = -1;  // whose bias; −1: its own
  Cap cap = Cap::own;
  double capped = 1;                    // times scores after the cap
  double alibi = 1;                     // times the slopes
  std::optional<AlibiForm> alibi_form;  // another one
  bool alibi_is_shifted = true;         // by keys − queries
  std::int64_t alibi_head = -1;         // whose slope; −1: its own
  double sinks = 1;                     // how often a sink is counted
  double sink_scale = 1;                // times the sinks
  std::int64_t sink_head = -1;          // whose sink; −1: its own
  std::vector<double> other_sinks;      // in place of those; empty: none
  bool interleaved = false;             // query head h uses key/value head h mod G
  /// The mask of a problem; empty: its own. Null: all pairs attend.
  std::function<const Mask*(const Problem& problem)> mask;
  bool one_sequence = false;  // packed: all keys belong to all queries
  NoKey no_key = NoKey::own;
  verify::Rounding inputs, weights, scores;  // scores: before and after the scale
  verify::Rounding ds;                       // of gradients
  /// Keys are multiplied by the scale and log₂ e, rounded, and powers of 2 are taken.
  verify::Rounding scaled_keys;

  // Of the forward pass alone:
  std::int64_t key_head = -1, key_entry = -1;      // of a query head, whose keys; −1: its own
  std::int64_t value_head = -1, value_entry = -1;  // and values
  std::int64_t entry_step = 0;                     // of a later entry, whose keys and values
  bool is_token_step = false;                      // queries of entry e begin at token e of all
  std::shared_ptr<const OtherKeys> other;          // keys and values in place of the arguments'
  bool reads_other_values() const { return other || value_head >= 0 || value_entry >= 0 || entry_step != 0; }
  std::int64_t zero_keys = 0;  // keys and values of zeros after the others, with a score of 0
  double value_scale = 1;      // times the values
  /// What masked pairs have: a score, or their own one and a weight of 0 after the softmax.
  std::optional<double> masked_score;
  bool masks_weights = false;
  /// A loop over tiles of keys, and what goes wrong in it.
  enum class Loop {
    right,
    no_rescaling,  // sum and accumulator keep the old maximum where a tile has a new one
    no_rescaling_of_sum,
    no_rescaling_of_out,
    // Parts are divided by their own sums, and joined:
    parts_by_lse_base_2,  // by e^lse, lse to base 2
    parts_by_mean,
  };
  Loop loop = Loop::right;
  std::int64_t tile = 0;           // keys of a tile, or of a part; of weights that are rounded in tiles
  std::int64_t parts = 0;          // of the keys of a sequence, in place of `tile`; 0: none
  std::int64_t split = 0;          // parts: keys before this one, and the others; 0: none
  bool is_split_at_query = false;  // parts: keys before the first query, and the others

  double delta = 1;               // times δ
  std::int64_t delta_entry = -1;  // whose δ; −1: its own
  double lse = 1;                 // times lse
  double scale_of_gradient = 1;   // times the scale of dq and dk
  bool slope = true;              // the derivative of the soft cap
  Heads heads = Heads::all;       // of the query heads that share a key, those that dk and dv are summed over
  bool sizes = false;             // compute the terms of sums, too

  /// Products of queries and keys are those of the definition.
  bool has_own_products() const {
    return !inputs && !scaled_keys && !interleaved && !one_sequence && !other && key_head < 0 &&
           key_entry < 0 && entry_step == 0 && !is_token_step;
  }
};

/// Of the terms of the sum of each element: the sum of their absolute values, and of their squares.
struct Terms {
  std::vector<double> sizes, squares;

  void resize(std::size_t n) {
    sizes.assign(n, 0);
    squares.assign(n, 0);
  }
  void add(double factor, const double* row) {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const double term = std::abs(factor * row[d]);
      sizes[d] += term;
      squares[d] += term * term;
    }
  }
};

/// The scores of one query with all keys of its problem; −∞ where a pair does not attend.
struct ReferenceRow {
  std::vector<double> scores;
  std::vector<double> slopes;       // ds/ds₀: 1 without a soft cap
  double most = 0;                  // of the scores
  double lse = 0, lse_of_keys = 0;  // with and without the sink, to base e
  std::vector<double> out;          // (Dv)
  Terms terms;                      // P · v, with sizes
};

class Reference {
 public:
  Reference(const CheckedArguments& setup, const MaskPlan& plan, Variation variation = {});

  enum class Wanted { out, lse };
  /// `products` of the query and all keys, for a variation that has its own; null: they are computed.
  ReferenceRow row(const Problem& problem, std::int64_t query, Wanted wanted = Wanted::out,
                   const double* products = nullptr) const;
  /// q · k of a query and all keys.
  void products(const Problem& problem, std::int64_t query, double* out) const;

  struct Statistics {
    double lse = 0, delta = 0;
  };
  Statistics statistics(const ReferenceRow& row, const kernels::StridedMatrix& dout,
                        std::int64_t query) const;

  /// The gradient of one query; `dout` of its problem, `row` its row. `terms`: those of its sums, or null.
  std::vector<double> dq(const Problem& problem, const ReferenceRow& row, const kernels::StridedMatrix& dout,
                         std::int64_t query) const {
    return dq(problem, row, statistics(row, dout, query), dout, query);
  }
  std::vector<double> dq(const Problem& problem, const ReferenceRow& row, const Statistics& statistics,
                         const kernels::StridedMatrix& dout, std::int64_t query,
                         Terms* terms = nullptr) const;

  /// lse and δ of every query, in the order of lse: the input of dk and dv.
  struct Saved {
    std::vector<double> lse, delta;
  };
  Saved saved(const ArrayView& dout) const;
  /// δ alone, of results that are there.
  std::vector<double> deltas(const ArrayView& dout, const ArrayView& out) const;

  /// The gradients of one key and its value, over all query heads that share them.
  struct KeyGradients {
    std::vector<double> dk, dv;
    double weight = 0;         // Σ P
    Terms dk_terms, dv_terms;  // with sizes
  };
  KeyGradients key(std::int64_t entry, std::int64_t kv_head, std::int64_t key, const ArrayView& dout,
                   const Saved& saved) const;

  /// The gradient of a bias for some keys of one of its rows, over all that these serve.
  struct BiasGradients {
    std::vector<double> dbias;
    std::vector<double> weights;  // Σ P
    Terms terms;                  // with sizes
  };
  BiasGradients bias(std::int64_t entry, std::int64_t head, std::int64_t row, Positions keys,
                     const ArrayView& dout, const Saved& saved) const;

  /// The gradient of a head's sink.
  struct SinkGradient {
    double dsink = 0, weight = 0;  // Σ P
    Terms terms;                   // with sizes
  };
  SinkGradient sink(std::int64_t head, const Saved& saved) const;

  /// lse of a row in the form of results.
  double given_lse(const ReferenceRow& row) const {
    const LseForm& form = setup_.ends.lse;
    return form.given(form.has_sink ? row.lse : row.lse_of_keys);
  }

  struct Forward {
    Array out, lse;  // in the form of results
  };
  Forward forward() const;
  struct Backward {
    Array dq, dk, dv;
    Array weights;              // Σ P of each key: shaped as dk, but for a last axis of 1
    Array dbias, bias_weights;  // of a bias, in its shape
    Array dsinks, sink_weights;
    Saved saved;
  };
  Backward backward(const ArrayView& dout) const { return backward(dout, saved(dout)); }
  Backward backward(const ArrayView& dout, Saved saved) const;

 private:
  Problem varied(const Problem& problem) const;
  double sink_of(std::int64_t head) const;
  bool is_mean_without_key(std::int64_t head) const;
  Variation::Cap cap_order() const;
  std::int64_t kv_head_of(std::int64_t head) const;
  std::unique_ptr<bool[]> allowed(const Problem& problem, const mask::Rectangle& where) const;
  std::vector<double> loaded(const kernels::StridedMatrix& matrix, std::int64_t row,
                             std::int64_t columns) const;
  std::vector<double> query_of_token(std::int64_t head, std::int64_t token) const;
  struct Score {
    double value, slope;
  };
  void weigh(ReferenceRow& r, std::vector<double>& weights, std::int64_t first_query) const;
  void round(const ReferenceRow& r, std::vector<double>& weights) const;
  void join_parts(ReferenceRow& r, std::vector<double>& weights, std::int64_t first_query) const;
  Score score(const Problem& p, double product, std::int64_t i, std::int64_t j) const;
  double product(const double* q, const double* k) const;
  template <class F>
  void each_query(double work, F&& f) const;
  bool is_plain(const kernels::StridedMatrix& matrix) const;
  class HeadRows;
  HeadRows keys_of(const Problem& p) const;
  HeadRows queries_of(const Problem& p, const kernels::StridedMatrix& dout) const;

  const CheckedArguments& setup_;
  const MaskPlan& plan_;
  Variation variation_;
  std::uint64_t id_;  // of rows that threads keep
};

/// Estimated nanoseconds of one thread for all rows, or all keys.
double reference_work(const CheckedArguments& setup);
/// What threads keep of heads.
double reference_bytes(const CheckedArguments& setup);

}  // namespace ejk::attn
