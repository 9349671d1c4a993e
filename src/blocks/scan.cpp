// Scan of a mask by block rows, in parallel and in any order. Results of threads are reduced by sums and
// unions, and partial blocks are numbered afterwards by position.
//
// Undecided and partial blocks of a row are filled in panels: ranges of neighbouring blocks whose bits fit
// the L2 cache. The bits of each block are gathered from the panel and classified. No element of a mask with
// known bands is filled.
// tests: tests/blocks/test_scan.cpp
#include "blocks/scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "blocks/rank_scan.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"

namespace ejk::blocks {

namespace {

constexpr std::int64_t kTaskElements = std::int64_t{1} << 21;  // at least, in the block rows of a task
constexpr std::int64_t kMostCells = 128;  // a side of the grid in which True elements are counted

// Calls f(begin, end) for the maximal ranges of a query within these keys; bands are `stride` apart.
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

// Scanner of one block size. Block rows are classified, then scanned in any order by several threads, each
// with a part of its own; parts are joined, and finish() returns the scan.
class Scanner {
 public:
  // Results of one thread for its block rows, and its workspace.
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

  // Mask and table outlive this. Throws Error{budget} for a block larger than any memory.
  Scanner(const Mask& mask, BlockShape block, PatternTable* table, IndexRange rows);

  std::int64_t kv_blocks() const { return kv_blocks_; }
  BlockShape stored_block() const { return stored_block_; }

  Part make_part() const;
  // Classifies the blocks of row `i` without reading elements.
  void classify(std::int64_t i);
  // Scans the open blocks of a classified row.
  void scan(Part& part, std::int64_t i);

  // Adds the results of a part for `part.rows`.
  void join(Part& part);
  BandScan finish();

 private:
  IndexRange queries(std::int64_t i) const;
  // The block columns of row `i` that may be non-empty; others are not stored.
  IndexRange run(std::int64_t i) const { return scan_.summary.states->run(i - scan_.rows.begin); }
  // Blocks that are only counted have no ids.
  bool keeps_ids() const { return table_ != nullptr && table_->keeps_bits(); }
  // The states of run(i): as classified, or final after scan().
  std::span<BlockState> states(std::int64_t i);
  std::span<const BlockState> states(std::int64_t i) const;
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
  BlockShape stored_block_;
  std::int64_t row_words_, pattern_words_;
  std::int64_t cell_blocks_ = 1, cell_rows_ = 0, cell_columns_ = 0;
  std::unique_ptr<BlockClassifier> classifier_;

  BandScan scan_;
  Part all_;
};

BlockShape stored_block(BlockShape block, std::int64_t q_length, std::int64_t kv_length, Patterns patterns) {
  if (patterns == Patterns::kept) return block;
  return {std::min(block.q, q_length), std::min(block.kv, kv_length)};
}

// How many rectangles of rows × columns have at most `most` elements, at least 1.
std::int64_t at_most(std::int64_t most, std::int64_t rows, std::int64_t columns) {
  const auto elements = core::checked_mul(rows, columns);
  return elements ? std::max<std::int64_t>(1, most / std::max<std::int64_t>(1, *elements)) : 1;
}

std::vector<IndexRange> runs_of(const Mask& mask, BlockShape block, const IndexRange& rows) {
  const auto classifier = mask.node().classifier(block.q, block.kv);
  std::vector<IndexRange> runs;
  for (std::int64_t i = rows.begin; i < rows.end; ++i)
    runs.push_back(classifier->run(i * block.q, std::min((i + 1) * block.q, mask.q_length())));
  return runs;
}

void fold(Scanner::Part& part, const BitRows& panel, std::int64_t first_word, std::int64_t end_word) {
  const auto words = static_cast<std::size_t>(panel.row_words);
  if (part.any.size() < words) part.any.resize(words), part.all.resize(words);
  std::fill(part.any.begin() + first_word, part.any.begin() + end_word, Word{0});
  std::fill(part.all.begin() + first_word, part.all.begin() + end_word, ~Word{0});
  for (std::int64_t r = 0; r < panel.rows; ++r)
    kernels::active().fold_bits(panel.row(r) + first_word, end_word - first_word,
                                part.any.data() + first_word, part.all.data() + first_word);
}

Scanner::Scanner(const Mask& mask, BlockShape block, PatternTable* table, IndexRange rows)
    : mask_(mask),
      node_(mask.node()),
      block_(block),
      table_(table),
      kv_blocks_(core::ceil_div(mask.kv_length(), block.kv)),
      stored_block_(blocks::stored_block(block, mask.q_length(), mask.kv_length(),
                                         table ? Patterns::kept : Patterns::dropped)),
      row_words_(words_for(stored_block_.kv)),
      pattern_words_(core::checked_mul(stored_block_.q, row_words_).value_or(INT64_MAX)),
      classifier_(node_.classifier(block.q, block.kv)) {
  if (!scan_bytes(mask.q_length(), mask.kv_length(), block, table ? Patterns::kept : Patterns::dropped,
                  Reading::any_order))
    throw Error(Error::Kind::budget,
                fmt::format("a block of {} x {} is larger than any memory", block.q, block.kv));
  scan_ = begun_scan(mask, block, rows, keeps_ids() ? Patterns::kept : Patterns::dropped);
  cell_blocks_ = scan_.summary.cell_blocks;
  cell_rows_ = core::ceil_div(core::ceil_div(mask.q_length(), block.q), cell_blocks_);
  cell_columns_ = core::ceil_div(kv_blocks_, cell_blocks_);
}

Scanner::Part Scanner::make_part() const {
  Part part;
  part.rows_seen.resize(static_cast<std::size_t>(words_for(mask_.q_length()) + 1));
  part.keys_seen.resize(static_cast<std::size_t>(words_for(mask_.kv_length()) + 1));
  part.full_columns.resize(static_cast<std::size_t>(kv_blocks_));
  part.partial_elements.resize(static_cast<std::size_t>(cell_rows_ * cell_columns_));
  part.block.resize(static_cast<std::size_t>(pattern_words_));
  if (table_ != nullptr) part.patterns.emplace(table_->part());
  return part;
}

IndexRange Scanner::queries(std::int64_t i) const {
  return {i * block_.q, std::min((i + 1) * block_.q, mask_.q_length())};
}

std::span<BlockState> Scanner::states(std::int64_t i) {
  const auto states = scan_.summary.states->states(i - scan_.rows.begin);
  return {reinterpret_cast<BlockState*>(states.data()), states.size()};
}

std::span<const BlockState> Scanner::states(std::int64_t i) const {
  const auto states = std::as_const(*scan_.summary.states).states(i - scan_.rows.begin);
  return {reinterpret_cast<const BlockState*>(states.data()), states.size()};
}

void Scanner::classify(std::int64_t i) {
  const auto [q_begin, q_end] = queries(i);
  const std::span<BlockState> found = states(i);
  if (found.empty()) return;
  classifier_->classify(q_begin, q_end, run(i), found.data());
  // A full block that the edge cuts short is partial: its missing elements are False.
  if (q_end - q_begin < block_.q)
    std::replace(found.begin(), found.end(), BlockState::full, BlockState::partial);
  else if (run(i).end * block_.kv > mask_.kv_length() && found.back() == BlockState::full)
    found.back() = BlockState::partial;
}

// Calls f(begin, end) for every range of at most `most_blocks` open blocks of a row.
template <class F>
void Scanner::for_each_open_run(std::int64_t i, std::int64_t most_blocks, F&& f) const {
  const auto [first, last] = run(i);
  const auto open = [states = states(i), first = first](std::int64_t j) {
    return is_open(states[static_cast<std::size_t>(j - first)]);
  };
  for (std::int64_t j = first; j < last;) {
    if (!open(j)) {
      ++j;
      continue;
    }
    std::int64_t end = j + 1;
    while (end < last && end - j < most_blocks && open(end)) ++end;
    f(j, end);
    j = end;
  }
}

void Scanner::scan(Part& part, std::int64_t i) {
  if (node_.bands() > 0) return scan_bands(part, i);
  const IndexRange queries_of_row = queries(i);
  const auto fill = [&](std::int64_t j, std::int64_t end) {
    const Rectangle where{queries_of_row.begin, queries_of_row.end, j * block_.kv,
                          std::min(end * block_.kv, mask_.kv_length())};
    const BitRows panel = part.panel.rows_for_gather(where.rows(), where.columns());
    node_.fill(where, panel);
    return panel;
  };
  if (node_.random_access()) {
    for_each_open_run(i, at_most(64 * kPanelWords, stored_block_.q, stored_block_.kv),
                      [&](std::int64_t j, std::int64_t end) {
                        classify_run(part, fill(j, end), i, {j, end}, j * block_.kv);
                      });
  } else {
    // Across decided blocks, so that a sequential source is read in order.
    std::int64_t first = kv_blocks_, last = 0;
    for_each_open_run(i, kv_blocks_,
                      [&](std::int64_t j, std::int64_t end) { first = std::min(first, j), last = end; });
    if (first < last) classify_run(part, fill(first, last), i, {first, last}, first * block_.kv);
  }
  count(part, i);
}

// Classifies the open ones of a range of blocks of row `i`; the panel's column 0 is `first_key`.
void Scanner::classify_run(Part& part, const BitRows& panel, std::int64_t i, IndexRange blocks,
                           std::int64_t first_key) {
  const std::span<BlockState> found = states(i);
  const std::int64_t first = run(i).begin;
  fold(part, panel, (blocks.begin * block_.kv - first_key) / 64,
       words_for(std::min(blocks.end * block_.kv, mask_.kv_length()) - first_key));
  for (std::int64_t j = blocks.begin; j < blocks.end; ++j) {
    BlockState& state = found[static_cast<std::size_t>(j - first)];
    if (is_open(state)) state = classify(part, panel, i, j, j * block_.kv - first_key);
  }
}

void Scanner::count(Part& part, std::int64_t i) {
  const std::span<const BlockState> found = states(i);
  part.empty_blocks += kv_blocks_ - std::ssize(found);
  std::int64_t full = 0;
  auto column = static_cast<std::size_t>(run(i).begin);
  for (const BlockState state : found) {
    part.empty_blocks += state == BlockState::empty;
    full += state == BlockState::full;
    part.full_columns[column++] |= state == BlockState::full;
  }
  part.full_blocks += full;
  part.true_elements += full * block_.q * block_.kv;
  if (full > 0) set_bits(part.rows_seen.data(), queries(i).begin, queries(i).end);
}

// The state of block (i, j), whose bits begin at `column` of the panel; a partial one is counted and entered.
BlockState Scanner::classify(Part& part, const BitRows& panel, std::int64_t i, std::int64_t j,
                             std::int64_t column) {
  const std::int64_t width = std::min(block_.kv, panel.columns - column);
  Word some = 0;
  bool every = panel.rows == block_.q && width == block_.kv;
  for (std::int64_t c = 0; c < width; c += 64) {
    const std::int64_t count = std::min<std::int64_t>(64, width - c);
    some |= get_bits(part.any.data(), column + c, count, part.any.data() + panel.row_words);
    every = every && get_bits(part.all.data(), column + c, count, part.all.data() + panel.row_words) ==
                         low_bits(count);
  }
  if (some == 0) return BlockState::empty;
  if (every) return BlockState::full;

  Word* bits = part.block.data();
  gather(panel, column, width, row_words_, bits);
  std::fill(bits + panel.rows * row_words_, bits + pattern_words_, Word{0});
  enter_partial(part, i, j, kernels::active().count_bits(bits, panel.rows * row_words_));
  mark_seen(part, bits, panel.rows, i * block_.q);
  const std::int64_t k = j * block_.kv, shift = k % 64;
  for (std::int64_t w = 0; w < row_words_; ++w) {
    const std::int64_t count = std::min<std::int64_t>(64, width - 64 * w);
    if (count <= 0) break;
    const Word keys = get_bits(part.any.data(), column + 64 * w, count, part.any.data() + panel.row_words);
    Word* to = part.keys_seen.data() + k / 64 + w;
    to[0] |= keys << shift;
    if (shift != 0) to[1] |= keys >> (64 - shift);
  }
  if (part.patterns) enter_pattern(i, j, part.patterns->find_or_add(bits));
  return BlockState::partial;
}

void Scanner::enter_partial(Part& part, std::int64_t i, std::int64_t j, std::int64_t elements) const {
  ++part.partial_blocks;
  part.true_elements += elements;
  part.partial_elements[static_cast<std::size_t>(i / cell_blocks_ * cell_columns_ + j / cell_blocks_)] +=
      elements;
}

void Scanner::enter_pattern(std::int64_t i, std::int64_t j, std::int32_t slot) {
  if (!keeps_ids()) return;
  const std::int64_t at = scan_.summary.states->begin_of(i - scan_.rows.begin) + j - run(i).begin;
  pattern_ids()[static_cast<std::size_t>(at)] = slot;
}

void Scanner::scan_bands(Part& part, std::int64_t i) {
  const std::span<BlockState> found = states(i);
  const IndexRange of_row = queries(i);
  const std::int64_t rows = of_row.count(), bands = node_.bands();
  if (std::any_of(found.begin(), found.end(), is_open)) {
    part.runs.resize(static_cast<std::size_t>(bands * rows));
    for (std::int64_t b = 0; b < bands; ++b) node_.band(b, of_row, part.runs.data() + b * rows);
  }
  std::int64_t j = run(i).begin;
  for (BlockState& state : found) {
    if (is_open(state)) state = classify_by_bands(part, i, j);
    ++j;
  }
  count(part, i);
}

// The same as classify(), from the ranges of keys of the queries.
BlockState Scanner::classify_by_bands(Part& part, std::int64_t i, std::int64_t j) {
  const IndexRange keys{j * block_.kv, std::min((j + 1) * block_.kv, mask_.kv_length())};
  const std::int64_t rows = queries(i).end - queries(i).begin, bands = node_.bands();
  std::int64_t first = rows, last = 0;
  for (std::int64_t b = 0; b < bands; ++b) {
    const IndexRange* const begin = part.runs.data() + b * rows;
    const auto enters = [&](const IndexRange& run) { return run.end <= keys.begin; };
    const auto leaves = [&](const IndexRange& run) { return run.begin < keys.end; };
    first = std::min(first, std::partition_point(begin, begin + rows, enters) - begin);
    last = std::max(last, std::partition_point(begin, begin + rows, leaves) - begin);
  }
  const auto for_each_run = [&](auto&& f) {
    for (std::int64_t r = first; r < last; ++r)
      for_each_run_of(part.runs.data() + r, bands, rows, keys, [&](std::int64_t begin, std::int64_t end) {
        f(r, begin - keys.begin, end - keys.begin);
      });
  };
  std::int64_t elements = 0;
  for_each_run([&](std::int64_t, std::int64_t begin, std::int64_t end) { elements += end - begin; });
  if (elements == 0) return BlockState::empty;
  if (core::checked_mul(block_.q, block_.kv) == elements) return BlockState::full;
  enter_partial(part, i, j, elements);

  // Neighbouring queries attend to mostly the same keys, which are recorded once.
  IndexRange rows_seen, keys_seen;
  const auto note = [&] {
    set_bits(part.rows_seen.data(), i * block_.q + rows_seen.begin, i * block_.q + rows_seen.end);
    set_bits(part.keys_seen.data(), keys.begin + keys_seen.begin, keys.begin + keys_seen.end);
  };
  for_each_run([&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    if (r <= rows_seen.end && keys_seen.begin <= begin && begin <= keys_seen.end) {
      rows_seen.end = r + 1, keys_seen.end = std::max(keys_seen.end, end);
      return;
    }
    note();
    rows_seen = {r, r + 1}, keys_seen = {begin, end};
  });
  note();
  if (!part.patterns) return BlockState::partial;

  if (part.patterns->keeps_bits()) {
    Word* const bits = part.block.data();
    std::fill(bits, bits + pattern_words_, Word{0});
    for_each_run([&](std::int64_t r, std::int64_t begin, std::int64_t end) {
      set_bits(bits + r * row_words_, begin, end);
    });
    enter_pattern(i, j, part.patterns->find_or_add(bits));
    return BlockState::partial;
  }
  Digester::Builder digest(part.patterns->digester());
  for_each_run([&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = begin / 64; w < words_for(end); ++w)
      digest.add(r * row_words_ + w,
                 low_bits(end - 64 * w) & ~low_bits(std::max<std::int64_t>(begin - 64 * w, 0)));
  });
  part.patterns->find_or_add(digest.digest());
  return BlockState::partial;
}

// Records which queries of a partial block attend to a key, by words of rows_seen.
void Scanner::mark_seen(Part& part, const Word* bits, std::int64_t rows, std::int64_t q) const {
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t first = (q + r) % 64, end = std::min(rows, r + 64 - first);
    Word& seen = part.rows_seen[static_cast<std::size_t>((q + r) / 64)];
    const Word all = low_bits(end - r) << first;
    if ((seen & all) == all) {  // in earlier blocks
      r = end;
      continue;
    }
    Word found = 0;
    for (std::int64_t bit = first; r < end; ++r, ++bit) {
      Word any = 0;
      for (std::int64_t w = 0; w < row_words_; ++w) any |= bits[r * row_words_ + w];
      found |= static_cast<Word>(any != 0) << bit;
    }
    seen |= found;
  }
}

void Scanner::join(Part& part) {
  MaskSummary& s = scan_.summary;
  s.empty_blocks += part.empty_blocks;
  s.partial_blocks += part.partial_blocks;
  s.full_blocks += part.full_blocks;
  s.true_elements += part.true_elements;
  if (all_.rows_seen.empty()) all_ = make_part();
  for (std::size_t c = 0; c < part.partial_elements.size(); ++c)
    all_.partial_elements[c] += part.partial_elements[c];
  for (std::size_t w = 0; w < all_.rows_seen.size(); ++w) all_.rows_seen[w] |= part.rows_seen[w];
  for (std::size_t w = 0; w < all_.keys_seen.size(); ++w) all_.keys_seen[w] |= part.keys_seen[w];
  for (std::size_t j = 0; j < all_.full_columns.size(); ++j) all_.full_columns[j] |= part.full_columns[j];
  if (table_ == nullptr) return;
  const std::vector<std::int32_t> slots = table_->join(std::move(*part.patterns));
  if (!keeps_ids()) return;
  const BlockStates& states = *scan_.summary.states;
  for (const IndexRange& rows : part.rows) {
    const std::int64_t first = states.begin_of(rows.begin - scan_.rows.begin),
                       last = states.begin_of(rows.end - scan_.rows.begin);
    for (auto at = static_cast<std::size_t>(first); at < static_cast<std::size_t>(last); ++at) {
      std::int32_t& slot = pattern_ids()[at];
      if (states.stored()[at] == kPartial) slot = slot < 0 ? ~slot : slots[static_cast<std::size_t>(slot)];
    }
  }
}

BandScan Scanner::finish() {
  if (all_.rows_seen.empty()) all_ = make_part();
  scan_.summary.partial_elements = std::move(all_.partial_elements);
  for (std::int64_t j = 0; j < kv_blocks_; ++j)
    if (all_.full_columns[static_cast<std::size_t>(j)])
      set_bits(all_.keys_seen.data(), j * block_.kv, std::min((j + 1) * block_.kv, mask_.kv_length()));
  scan_.rows_seen = std::move(all_.rows_seen);
  scan_.keys_seen = std::move(all_.keys_seen);
  if (table_ != nullptr && !keeps_ids()) table_->number_all();
  if (keeps_ids()) table_->number(scan_.summary.states->stored(), pattern_ids());
  return std::move(scan_);
}

}  // namespace

BandScan begun_scan(const Mask& mask, BlockShape block, IndexRange rows, Patterns patterns) {
  const std::int64_t q_blocks = core::ceil_div(mask.q_length(), block.q),
                     kv_blocks = core::ceil_div(mask.kv_length(), block.kv);
  BandScan scan;
  scan.rows = rows;
  MaskSummary& s = scan.summary;
  s.q_length = mask.q_length();
  s.kv_length = mask.kv_length();
  s.states = std::make_shared<BlockStates>(kv_blocks, runs_of(mask, block, rows));
  while (core::ceil_div(std::max(q_blocks, kv_blocks), s.cell_blocks) > kMostCells) s.cell_blocks *= 2;
  if (patterns == Patterns::kept) scan.pattern_ids = Array(DType::int32, {std::ssize(s.states->stored())});
  return scan;
}

Scan completed(BandScan all, std::int64_t patterns) {
  MaskSummary& s = all.summary;
  for_each_run(all.rows_seen, s.q_length, false, [&](std::int64_t begin, std::int64_t end) {
    s.rows_without_key.push_back({begin, end});
  });
  for_each_run(all.keys_seen, s.kv_length, false, [&](std::int64_t begin, std::int64_t end) {
    s.keys_without_row.push_back({begin, end});
  });
  const auto states = s.states->stored();
  const auto ids = all.pattern_ids.elements<std::int32_t>();
  std::vector<bool> own(static_cast<std::size_t>(patterns));
  for (std::size_t b = 0; b < ids.size(); ++b) {
    if (states[b] != kPartial) continue;
    s.distinct_partial_blocks += !own[static_cast<std::size_t>(ids[b])];
    own[static_cast<std::size_t>(ids[b])] = true;
  }
  return {std::move(s), std::move(all.pattern_ids)};
}

BandScan scan_band(const Mask& mask, BlockShape block, IndexRange rows, PatternTable* table,
                   const std::function<void(std::int64_t)>& done) {
  kernels::active();  // an unsupported instruction set is an error for masks without elements too
  Scanner scanner(mask, block, table, rows);
  const std::int64_t rows_at_once = at_most(kTaskElements, scanner.stored_block().q, mask.kv_length());
  const std::int64_t tasks = core::ceil_div(rows.count(), rows_at_once);
  const std::int64_t queries = std::min(rows.end * block.q, mask.q_length()) - rows.begin * block.q;
  const double work = static_cast<double>(queries) * static_cast<double>(mask.kv_length()) / 8;
  const int threads = mask.node().random_access() ? core::threads_for(tasks, work) : 1;
  std::mutex done_mutex;
  core::parallel_reduce(
      tasks, threads, [&] { return scanner.make_part(); },
      [&](Scanner::Part& part, std::int64_t task) {
        const std::int64_t begin = rows.begin + task * rows_at_once,
                           end = std::min(rows.end, begin + rows_at_once);
        for (std::int64_t i = begin; i < end; ++i) {
          scanner.classify(i);
          scanner.scan(part, i);
        }
        part.rows.push_back({begin, end});
        if (done) {
          const std::scoped_lock lock(done_mutex);
          done((end - begin) * scanner.kv_blocks());
        }
      },
      [&](Scanner::Part& part) { scanner.join(part); });
  return scanner.finish();
}

Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t)>& done, Communicator& comm) {
  if (comm.is_single()) {
    BandScan all = scan_band(mask, block, {0, core::ceil_div(mask.q_length(), block.q)}, table, done);
    return completed(std::move(all), table != nullptr ? table->size() : 0);
  }
  if (table != nullptr)
    throw Error(Error::Kind::internal, "scan_mask: patterns of several ranks are not joined here");
  const IndexRange rows = RowPartition(comm.size(), {RowCosts(mask, block)}).rows(comm.rank(), 0);
  std::optional<BandScan> own;
  if (rows.begin < rows.end) own = scan_band(mask, block, rows, nullptr, done);
  return joined_by_all(mask, block, std::move(own), comm);
}

HeldBlocks held_blocks(const Mask& mask, BlockShape block) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 24;  // classified in a fraction of a second
  const std::int64_t rows = core::ceil_div(mask.q_length(), block.q),
                     columns = core::ceil_div(mask.kv_length(), block.kv);
  if (rows > kMostRows || columns > kMostRows)
    return {core::checked_mul(rows, columns).value_or(core::kMostBytes), columns, rows};
  HeldBlocks stored;
  std::vector<std::int64_t> steps(
      static_cast<std::size_t>(columns + 1));  // changes of the rows that store a column
  for (const IndexRange& run : runs_of(mask, block, {0, rows})) {
    stored.all += run.count();
    stored.widest = std::max(stored.widest, run.count());
    ++steps[static_cast<std::size_t>(run.begin)];
    --steps[static_cast<std::size_t>(run.end)];
  }
  std::int64_t here = 0;
  for (const std::int64_t step : steps) stored.tallest = std::max(stored.tallest, here += step);
  return stored;
}

std::optional<std::int64_t> scan_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block,
                                       Patterns patterns, Reading reading) {
  if (std::max(q_length, kv_length) > kLongestMask) return std::nullopt;
  const auto row = core::checked_mul(std::min(block.q, q_length), words_for(kv_length));
  const BlockShape whole = stored_block(block, q_length, kv_length, patterns);
  const auto one = core::checked_mul(whole.q, words_for(whole.kv));
  if (!row || !one || *row > std::int64_t{1} << 52) return std::nullopt;
  const std::int64_t cells = 8 * std::min(core::ceil_div(q_length, block.q), kMostCells) *
                             std::min(core::ceil_div(kv_length, block.kv), kMostCells);
  // Of a thread: a panel of bits, and another for an operand of a composed mask; one block, a bit for each query and
  // each key, a byte for each block column, the counts.
  const auto part = [&](std::int64_t panel) -> std::optional<std::int64_t> {
    const std::int64_t words = 2 * panel + 16 * std::min(block.q, q_length);
    if (std::max(*one, words) > std::int64_t{1} << 52) return std::nullopt;
    return 8 * (words + *one + words_for(q_length) + words_for(kv_length) + 2) +
           core::ceil_div(kv_length, block.kv) + cells;
  };
  const auto of_panel = part(std::min(*row, std::max(kPanelWords, *one))), of_row = part(*row);
  const auto any_order = of_panel ? core::checked_mul(*of_panel, threads()) : std::nullopt;
  if (!any_order || !of_row || *any_order > std::int64_t{1} << 60) return std::nullopt;
  return reading == Reading::in_order ? std::max(*any_order, *of_row) : *any_order;
}

}  // namespace ejk::blocks
