// One block size of a pass over a mask. Its rows of blocks are classified, then looked at in any order and by
// several threads, each with a part of its own; what the parts found is joined, and finish() gives the scan.
// Who drives it decides where the elements come from: scan.cpp fills them row by row, scan_sizes.cpp shares
// them between block sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blocks/scan.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

/// Before a block was looked at: its elements are needed, to tell its state or to count and keep them.
inline bool is_open(BlockState state) {
  return state == BlockState::partial || state == BlockState::undecided;
}

/// Calls f(begin, end) for the runs of a query within these keys, in order and none touching the next. Its runs
/// in `bands` bands lie `stride` apart.
template <class F>
void for_each_run_of(const IndexRange* runs, std::int64_t bands, std::int64_t stride, const IndexRange& keys,
                     F&& f) {
  const auto cut = [&](const IndexRange& run) {
    return IndexRange{std::max(run.begin, keys.begin), std::min(run.end, keys.end)};
  };
  if (bands == 1) {
    const IndexRange run = cut(*runs);
    if (run.begin < run.end) f(run.begin, run.end);
    return;
  }
  IndexRange here[kMostBands];  // by where they begin
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < bands; ++b) {
    const IndexRange run = cut(runs[b * stride]);
    if (run.begin >= run.end) continue;
    std::int64_t at = count++;
    for (; at > 0 && here[at - 1].begin > run.begin; --at) here[at] = here[at - 1];
    here[at] = run;
  }
  for (std::int64_t n = 0; n < count; ++n) {
    IndexRange run = here[n];
    for (; n + 1 < count && here[n + 1].begin <= run.end; ++n) run.end = std::max(run.end, here[n + 1].end);
    f(run.begin, run.end);
  }
}

class Scanner {
 public:
  /// What one thread has found in the rows of blocks it worked on, and the memory it works in.
  struct Part {
    std::int64_t empty_blocks = 0;
    std::int64_t partial_blocks = 0;
    std::int64_t full_blocks = 0;
    std::int64_t true_elements = 0;
    std::vector<Word> rows_seen;                 // all queries: those that see a key
    std::vector<Word> keys_seen;                 // all keys: those of partial blocks that some query sees
    std::vector<char> full_columns;              // columns of blocks that hold a full block
    std::vector<std::int64_t> partial_elements;  // as in MaskSummary
    std::optional<PatternTable> patterns;
    std::vector<IndexRange> rows;  // of blocks, that were worked on

    BitBuffer panel;
    std::vector<Word> any, all;    // the columns of the panel, over its rows
    std::vector<IndexRange> runs;  // of the queries of a row of blocks, in one band behind the other
    std::vector<Word> block;
  };

  /// Of some rows of blocks. The mask and the table outlive this. Throws Error{budget} for a block that no
  /// memory can hold.
  Scanner(const Mask& mask, BlockShape block, PatternTable* table, IndexRange rows);

  const IndexRange& rows() const { return scan_.rows; }
  std::int64_t kv_blocks() const { return kv_blocks_; }
  std::int64_t kv_length() const { return mask_.kv_length(); }
  /// The columns of row `i` that are not known to be empty: no other block is looked at, or held.
  IndexRange run(std::int64_t i) const { return scan_.summary.states->run(i - scan_.rows.begin); }
  /// As much of a block as is held in memory.
  BlockShape held() const { return held_; }
  /// The queries of row `i` of blocks.
  IndexRange queries(std::int64_t i) const;

  Part make_part() const;
  /// Tells the states of row `i` as far as that goes without its elements.
  void classify(std::int64_t i);
  /// The states of run(i): what classify() knows, or after look() what is.
  std::span<const BlockState> states(std::int64_t i) const;
  /// Of a row that was classified: the words of a row of the mask's bits that look() will read lie in these.
  IndexRange needed_words(std::int64_t i) const;
  /// Sets a bit for each of them, the first one for `first_word`.
  void add_needed_words(std::int64_t i, std::int64_t first_word, Word* words) const;
  /// Looks into what is open of a row that was classified. `rows`: its queries, and the keys from `first_key` on, a
  /// multiple of 64; words that are not needed may hold anything.
  void look(Part& part, std::int64_t i, const BitRows& rows, std::int64_t first_key);
  /// The same, filling what it needs.
  void look(Part& part, std::int64_t i);

  /// Takes over what a part found in `part.rows`.
  void join(Part& part);
  BandScan finish();

 private:
  /// Where blocks are only counted they have no ids.
  bool keeps_ids() const { return table_ != nullptr && table_->keeps_bits(); }
  std::span<BlockState> states(std::int64_t i);
  template <class F>
  void for_each_open_run(std::int64_t i, std::int64_t most_blocks, F&& f) const;
  void classify_run(Part& part, const BitRows& panel, std::int64_t i, IndexRange blocks,
                    std::int64_t first_key);
  BlockState classify(Part& part, const BitRows& panel, std::int64_t i, std::int64_t j, std::int64_t column);
  void scan_bands(Part& part, std::int64_t i);
  BlockState classify_by_bands(Part& part, std::int64_t i, std::int64_t j);
  void enter_partial(Part& part, std::int64_t i, std::int64_t j, std::int64_t elements) const;
  void enter_pattern(std::int64_t i, std::int64_t j, std::int32_t slot);
  void count(Part& part, std::int64_t i);
  void mark_seen(Part& part, const Word* bits, std::int64_t rows, std::int64_t q) const;
  std::span<std::int32_t> pattern_ids() { return scan_.pattern_ids.elements<std::int32_t>(); }

  const Mask& mask_;
  const MaskNode& node_;
  BlockShape block_;
  PatternTable* table_;
  std::int64_t kv_blocks_;
  BlockShape held_;
  std::int64_t row_words_, pattern_words_;
  std::int64_t cell_blocks_ = 1, cell_rows_ = 0, cell_columns_ = 0;
  std::unique_ptr<BlockClassifier> classifier_;

  BandScan scan_;
  Part all_;
};

}  // namespace ejk::blocks
