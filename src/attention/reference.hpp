// The plain form of attention in float64: what it means, and what results are checked against.
//
// Row by row in two passes: the scores of one query, their maximum and sum, then the results. Gradients of
// keys and values go key by key. Time: a few nanoseconds a pair and element of a head and thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/problem.hpp"

namespace ejk::attn {

/// The scores of one query with all keys of its problem; −∞ where a pair does not attend.
struct ReferenceRow {
  std::vector<double> scores;
  std::vector<double> slopes;  // ds/ds₀: 1 without a soft cap
  double lse = 0;
  std::vector<double> out;  // (Dv)
};

class Reference {
 public:
  Reference(const CheckedArguments& setup, const MaskPlan& plan) : setup_(setup), plan_(plan) {}

  ReferenceRow row(const Problem& problem, std::int64_t query) const;

  /// The gradient of one query; `dout` is that of its problem. `row` is its row.
  std::vector<double> dq(const Problem& problem, const ReferenceRow& row, const kernels::StridedMatrix& dout,
                         std::int64_t query) const;

  /// lse and δ of every query, in the order of lse; what dk and dv are made of.
  struct Saved {
    std::vector<double> lse, delta;
  };
  Saved saved(const ArrayView& dout) const;
  /// δ alone, of results that are there.
  std::vector<double> deltas(const ArrayView& dout, const ArrayView& out) const;

  /// The gradients of one key and its value, over all query heads that share them.
  struct KeyGradients {
    std::vector<double> dk, dv;
    double weight = 0;  // Σ P
  };
  KeyGradients key(std::int64_t entry, std::int64_t kv_head, std::int64_t key, const ArrayView& dout,
                   const Saved& saved) const;

 private:
  const CheckedArguments& setup_;
  const MaskPlan& plan_;
};

/// What all rows, or all keys, take one thread: about so many nanoseconds.
double reference_work(const CheckedArguments& setup);

/// All of it; the results are float64.
Attention reference_attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                              const AttentionOptions& options);
AttentionGradients reference_attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                            const ArrayView& dout, const AttentionOptions& options);

}  // namespace ejk::attn
