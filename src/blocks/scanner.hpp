// Scanner of one block size. Block rows are classified, then scanned in any order by several threads, each
// with a part of its own; parts are joined, and finish() returns the scan.
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

/// Whether a block that is not scanned needs its elements.
inline bool is_open(BlockState state) {
  return state == BlockState::partial || state == BlockState::undecided;
}

/// Calls f(begin, end) for the maximal ranges of a query within these keys; bands are `stride` apart.
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
  IndexRange here[kMostBands];  // by begin
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
  /// Results of one thread for its block rows, and its workspace.
  struct Part {
    std::int64_t empty_blocks = 0, partial_blocks = 0, full_blocks = 0;
    std::int64_t true_elements = 0;
    std::vector<Word> rows_seen;     // a bit for each query that attends to a key
    std::vector<Word> keys_seen;     // a bit for each key of partial blocks that a query attends to
    std::vector<char> full_columns;  // block columns with a full block
    std::vector<std::int64_t> partial_elements;  // as in MaskSummary
    std::optional<PatternTable> patterns;
    std::vector<IndexRange> rows;  // scanned block rows

    BitBuffer panel;
    std::vector<Word> any, all;    // or and and of the panel's rows
    std::vector<IndexRange> runs;  // of the queries of a block row, band by band
    std::vector<Word> block;
  };

  /// Mask and table outlive this. Throws Error{budget} for a block larger than any memory.
  Scanner(const Mask& mask, BlockShape block, PatternTable* table, IndexRange rows);

  const IndexRange& rows() const { return scan_.rows; }
  std::int64_t kv_blocks() const { return kv_blocks_; }
  std::int64_t kv_length() const { return mask_.kv_length(); }
  /// The block columns of row `i` that may be non-empty; others are not stored.
  IndexRange run(std::int64_t i) const { return scan_.summary.states->run(i - scan_.rows.begin); }
  BlockShape held() const { return held_; }
  IndexRange queries(std::int64_t i) const;

  Part make_part() const;
  /// Classifies the blocks of row `i` without reading elements.
  void classify(std::int64_t i);
  /// The states of run(i): as classified, or final after scan().
  std::span<const BlockState> states(std::int64_t i) const;
  /// For a classified row: a range of the words of a row of bits that scan() reads.
  IndexRange needed_words(std::int64_t i) const;
  /// Sets a bit for each of these words, bit 0 for `first_word`.
  void add_needed_words(std::int64_t i, std::int64_t first_word, Word* words) const;
  /// Scans the open blocks of a classified row. `rows`: the needed words of its queries from key `first_key`
  /// on, a multiple of 64.
  void scan(Part& part, std::int64_t i, const BitRows& rows, std::int64_t first_key);
  void scan(Part& part, std::int64_t i);

  /// Adds the results of a part for `part.rows`.
  void join(Part& part);
  BandScan finish();

 private:
  /// Blocks that are only counted have no ids.
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
