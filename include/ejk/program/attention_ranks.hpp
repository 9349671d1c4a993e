// Attention on several ranks: a plan's work in parts, each of which reads boxes of the inputs and computes
// boxes of the results, with the bits of the plan's own run().
//
// A rank has a contiguous range in the order (entry, head, queries) or, for gradients, (entry, key/value head),
// and needs no data of other ranks. Ranks beyond the number of key/value heads of all entries compute no
// gradients of q, k and v. Gradients of a bias and of sinks, which are sums over entries or heads, are parts of
// their own: they begin with lse and δ of their queries, as others do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/attention.hpp"
#include "ejk/communicator.hpp"

namespace ejk {

namespace attn {
struct Division;
}

/// Some positions of some heads of some entries: all positions, unless there is one entry and one head. Those
/// of a bias are its own: its queries, or its keys where one row serves all queries; of sinks heads alone.
struct AttentionPart {
  enum class Makes {
    out,            // out and lse of queries
    all_gradients,  // of the whole
    gradients,      // dq, dk and dv of key/value heads
    dbias,          // of a bias
    dsinks,         // of sinks
  };
  Makes makes = Makes::out;
  IndexRange entries;
  IndexRange heads;      // query heads; of gradients: key/value heads; of dbias: the bias's own
  IndexRange positions;  // within each entry; clipped to its end
  double share = 1;      // the rank's, of all work
};

/// Memory that a program needs beside the workspace of a plan.
struct AttentionMemory {
  AttentionOperands<bool> read = {};  // operands that are read into memory, box by box; the others are mapped
  bool boxes_keys = false;            // keys and values are sources of run()
  /// Memory of a verdict, before which rank 0 collects all operands and results; absent: there is none.
  std::optional<std::int64_t> verdict_bytes = {};
};

/// Partition of a plan's work among ranks: the same on all ranks, and known before there are elements.
class AttentionDivision {
 public:
  /// Of a plan's work among `ranks`. For more than one the masks are read, as by work().
  AttentionDivision(const AttentionPlan& plan, std::int64_t ranks);

  std::int64_t ranks() const;
  /// A rank's parts, in order; in rank order they follow entries and heads.
  std::vector<AttentionPart> parts(std::int64_t rank) const;

  /// The boxes of the arrays that a part reads; none of others.
  AttentionOperands<ArrayBox> needs(const AttentionPart& part) const;
  /// The boxes of the plan's results that it computes, in their order; none of others.
  std::vector<std::optional<ArrayBox>> makes(const AttentionPart& part) const;

  /// Cost in operations, about 80 of them for the softmax of a pair; the peak is run()'s. Reads the masks.
  RankWork share(std::int64_t rank) const;
  /// Workspace, results, operands that are read, and on rank 0 the verdict. Reads no masks.
  std::int64_t peak_bytes(std::int64_t rank, const AttentionMemory& memory) const;

 private:
  friend class AttentionRank;
  std::shared_ptr<const attn::Division> division_;
};

/// Work of a rank: run() of its parts, then work().
class AttentionRank {
 public:
  /// `comm` outlives this, and has as many ranks as the division.
  AttentionRank(AttentionDivision division, Communicator& comm);

  /// `arrays`, `results`: the boxes of the part, others empty. Throws Error{input} for other types.
  void run(const AttentionPart& part, const AttentionArrays& arrays,
           const std::vector<MutableArrayView>& results, const PairProgress& progress = {});

  /// What was done by all ranks, which call it together; the times are those of the rank that took longest.
  AttentionWork work();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ejk
