// Rows of blocks are worked on in parallel and merged in order, so ids and bytes do not depend on threads.
//
// A row's undecided and partial blocks are filled in panels: runs of neighbouring blocks whose bits fit the
// second-level cache, wide enough that a stored mask is read in long pieces. From the panel each block's bits
// are gathered into one piece and judged. tests: tests/mask/test_scan.cpp
#include "mask/scan.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk::mask {

namespace {

constexpr std::int64_t kPanelBits = std::int64_t{1} << 23;        // 1 MiB of bits
constexpr std::int64_t kReleaseElements = std::int64_t{1} << 22;  // of a stored mask, given back at a time

// Copies block columns [column, column + width) of the panel to `out`, row_words words a row.
void gather(const BitRows& panel, std::int64_t column, std::int64_t width, std::int64_t row_words,
            Word* out) {
  if (column % 64 == 0 && (width % 64 == 0 || column + width == panel.columns)) {
    const Word* from = panel.words + column / 64;
    if (row_words == 2) {  // blocks of 128, the most common ones
      for (std::int64_t r = 0; r < panel.rows; ++r, from += panel.row_words)
        out[2 * r] = from[0], out[2 * r + 1] = from[1];
      return;
    }
    const std::int64_t words = words_for(width);
    for (std::int64_t r = 0; r < panel.rows; ++r, from += panel.row_words, out += row_words) {
      std::copy(from, from + words, out);
      std::fill(out + words, out + row_words, Word{0});
    }
    return;
  }
  for (std::int64_t r = 0; r < panel.rows; ++r, out += row_words) {
    const Word* row = panel.row(r);
    for (std::int64_t w = 0; w < row_words; ++w) {
      const std::int64_t begin = 64 * w, count = std::min<std::int64_t>(64, width - begin);
      out[w] = count > 0 ? get_bits(row, column + begin, count, row + panel.row_words) : 0;
    }
  }
}

struct PartialBlock {
  std::int64_t column;  // of the block in its row
  std::uint64_t hash;
  std::size_t words_at;  // where its bits begin in RowResult::words
};

// What one row of blocks gives, and the memory it is worked out in.
struct RowResult {
  std::vector<BlockState> states;
  std::vector<PartialBlock> partial;
  std::vector<Word> words;      // bits of the row's distinct partial blocks
  std::vector<Word> seen_keys;  // of partial blocks: row_words words each, the keys that some query sees
  std::vector<Word> rows_seen;  // the queries that see a key
  std::int64_t true_elements = 0;
  std::unordered_multimap<std::uint64_t, std::size_t> known;  // hash to words_at
  BitBuffer panel;
  std::vector<Word> block;
};

class Scanner {
 public:
  Scanner(const Mask& mask, BlockShape block, PatternTable* table)
      : mask_(mask),
        node_(mask.node()),
        block_(block),
        table_(table),
        q_blocks_(core::ceil_div(mask.q_length(), block.q)),
        kv_blocks_(core::ceil_div(mask.kv_length(), block.kv)),
        row_words_(words_for(block.kv)),
        pattern_words_(block.q * row_words_),
        classifier_(node_.classifier(block.q, block.kv)) {
    MaskSummary& s = scan_.summary;
    s.q_length = mask.q_length();
    s.kv_length = mask.kv_length();
    s.states = Array(DType::uint8, {q_blocks_, kv_blocks_});
    if (table_ != nullptr) scan_.pattern_ids = Array(DType::int32, {q_blocks_, kv_blocks_});
    seen_keys_.resize(static_cast<std::size_t>(words_for(kv_blocks_ * block.kv) + 1));
    full_columns_.resize(static_cast<std::size_t>(kv_blocks_));
  }

  Scan run(const std::function<void(std::int64_t)>& done) {
    const int threads = node_.random_access() ? omp_get_max_threads() : 1;
    core::parallel_ordered(
        q_blocks_, threads, [] { return RowResult{}; }, [&](RowResult& row, std::int64_t i) { work(row, i); },
        [&](RowResult& row, std::int64_t i) {
          merge(row, i);
          if (done) done(kv_blocks_);
        });
    finish();
    return std::move(scan_);
  }

 private:
  void work(RowResult& row, std::int64_t i) const {
    row.states.resize(static_cast<std::size_t>(kv_blocks_));
    row.partial.clear();
    row.words.clear();
    row.seen_keys.clear();
    row.known.clear();
    row.true_elements = 0;
    row.rows_seen.assign(static_cast<std::size_t>(words_for(block_.q)), 0);
    row.block.resize(static_cast<std::size_t>(pattern_words_));

    const std::int64_t q_begin = i * block_.q, q_end = std::min(q_begin + block_.q, mask_.q_length());
    BlockState* states = row.states.data();
    classifier_->classify(q_begin, q_end, states);
    // A full block that the edge cuts short is partial: what is missing of it is False.
    if (q_end - q_begin < block_.q)
      std::replace(states, states + kv_blocks_, BlockState::full, BlockState::partial);
    else if (kv_blocks_ * block_.kv > mask_.kv_length() && states[kv_blocks_ - 1] == BlockState::full)
      states[kv_blocks_ - 1] = BlockState::partial;

    const auto open = [&](std::int64_t j) {
      return states[j] == BlockState::partial || states[j] == BlockState::undecided;
    };
    std::int64_t panel_blocks = std::max<std::int64_t>(1, kPanelBits / (block_.q * block_.kv));
    bool bridge = false;  // across decided blocks, so that a source that wants order is read in order
    if (!node_.random_access()) panel_blocks = kv_blocks_, bridge = true;
    for (std::int64_t j = 0; j < kv_blocks_;) {
      if (!open(j)) {
        ++j;
        continue;
      }
      std::int64_t end = j + 1, last = std::min(kv_blocks_, j + panel_blocks);
      if (bridge) {
        for (end = last; !open(end - 1);) --end;
      } else {
        while (end < last && open(end)) ++end;
      }
      const Rectangle where{q_begin, q_end, j * block_.kv, std::min(end * block_.kv, mask_.kv_length())};
      const BitRows panel = row.panel.rows(where.rows(), where.columns());
      node_.fill(where, panel);
      for (std::int64_t b = j; b < end; ++b)
        if (open(b)) judge(row, panel, b, b * block_.kv - where.k_begin);
      j = end;
    }
    const std::int64_t columns_cut = kv_blocks_ * block_.kv - mask_.kv_length();
    for (std::int64_t j = 0; j < kv_blocks_; ++j)
      if (states[j] == BlockState::full)
        row.true_elements += (q_end - q_begin) * (block_.kv - (j + 1 == kv_blocks_ ? columns_cut : 0));
    if (std::find(states, states + kv_blocks_, BlockState::full) != states + kv_blocks_)
      set_bits(row.rows_seen.data(), 0, q_end - q_begin);
  }

  // Settles the state of block `j`, whose bits begin at `column` of the panel.
  void judge(RowResult& row, const BitRows& panel, std::int64_t j, std::int64_t column) const {
    const std::int64_t width = std::min(block_.kv, panel.columns - column);
    Word* bits = row.block.data();
    gather(panel, column, width, row_words_, bits);
    const std::int64_t words = panel.rows * row_words_;
    Word some = 0;
    for (std::int64_t w = 0; w < words; ++w) some |= bits[w];
    BlockState& state = row.states[static_cast<std::size_t>(j)];
    if (some == 0) {
      state = BlockState::empty;
      return;
    }
    const bool whole = panel.rows == block_.q && width == block_.kv;
    if (whole && block_.kv % 64 == 0) {
      Word every = ~Word{0};
      for (std::int64_t w = 0; w < words; ++w) every &= bits[w];
      if (every == ~Word{0}) {
        state = BlockState::full;
        return;
      }
    }
    const std::int64_t count = kernels::active().count_bits(bits, words);
    if (whole && count == block_.q * block_.kv) {
      state = BlockState::full;
      return;
    }
    state = BlockState::partial;
    row.true_elements += count;
    if (panel.rows < block_.q) std::fill(bits + words, bits + pattern_words_, Word{0});

    const std::size_t keys_at = row.seen_keys.size();
    row.seen_keys.resize(keys_at + static_cast<std::size_t>(row_words_));
    Word* keys = row.seen_keys.data() + keys_at;
    for (std::int64_t r = 0; r < panel.rows; ++r) {
      Word any = 0;
      for (std::int64_t w = 0; w < row_words_; ++w)
        any |= bits[r * row_words_ + w], keys[w] |= bits[r * row_words_ + w];
      row.rows_seen[static_cast<std::size_t>(r / 64)] |= static_cast<Word>(any != 0) << (r % 64);
    }
    keep(row, j, bits);
  }

  // Remembers the bits of a partial block, once for all equal ones of the row.
  void keep(RowResult& row, std::int64_t j, const Word* bits) const {
    if (table_ == nullptr) {
      row.partial.push_back({j, 0, 0});
      return;
    }
    const std::uint64_t hash = table_->hash(bits);
    const auto [begin, end] = row.known.equal_range(hash);
    const auto found = std::find_if(begin, end, [&](const auto& entry) {
      return std::equal(bits, bits + pattern_words_, row.words.data() + entry.second);
    });
    std::size_t at = row.words.size();
    if (found != end) {
      at = found->second;
    } else {
      row.words.insert(row.words.end(), bits, bits + pattern_words_);
      row.known.emplace(hash, at);
    }
    row.partial.push_back({j, hash, at});
  }

  void merge(const RowResult& row, std::int64_t i) {
    MaskSummary& s = scan_.summary;
    static_assert(sizeof(BlockState) == 1);
    std::memcpy(s.states.data() + i * kv_blocks_, row.states.data(), row.states.size());
    for (std::size_t j = 0; j < row.states.size(); ++j) {
      s.empty_blocks += row.states[j] == BlockState::empty;
      s.full_blocks += row.states[j] == BlockState::full;
      full_columns_[j] |= row.states[j] == BlockState::full;
    }
    s.partial_blocks += static_cast<std::int64_t>(row.partial.size());
    s.true_elements += row.true_elements;

    for (std::size_t p = 0; p < row.partial.size(); ++p) {
      const PartialBlock& block = row.partial[p];
      const Word* keys = row.seen_keys.data() + p * static_cast<std::size_t>(row_words_);
      const std::int64_t at = block.column * block_.kv, shift = at % 64;
      Word* to = seen_keys_.data() + at / 64;
      for (std::int64_t w = 0; w < row_words_; ++w) {
        to[w] |= keys[w] << shift;
        if (shift != 0 && keys[w] >> (64 - shift) != 0) to[w + 1] |= keys[w] >> (64 - shift);
      }
      if (table_ == nullptr) continue;
      const std::int32_t id = table_->find_or_add(block.hash, row.words.data() + block.words_at);
      reinterpret_cast<std::int32_t*>(scan_.pattern_ids.data())[i * kv_blocks_ + block.column] = id;
      if (static_cast<std::size_t>(id) >= own_patterns_.size())
        own_patterns_.resize(static_cast<std::size_t>(id) + 1);
      s.distinct_partial_blocks += !own_patterns_[static_cast<std::size_t>(id)];
      own_patterns_[static_cast<std::size_t>(id)] = true;
    }

    const std::int64_t q_begin = i * block_.q, q_end = std::min(q_begin + block_.q, mask_.q_length());
    for_each_run(row.rows_seen, q_end - q_begin, false, [&](std::int64_t begin, std::int64_t end) {
      auto& ranges = s.rows_without_key;
      if (!ranges.empty() && ranges.back().end == q_begin + begin)
        ranges.back().end = q_begin + end;
      else
        ranges.push_back({q_begin + begin, q_begin + end});
    });
    if ((q_end - released_) * mask_.kv_length() >= kReleaseElements || q_end == mask_.q_length()) {
      node_.release(released_, q_end);
      released_ = q_end;
    }
  }

  void finish() {
    for (std::int64_t j = 0; j < kv_blocks_; ++j)
      if (full_columns_[static_cast<std::size_t>(j)])
        set_bits(seen_keys_.data(), j * block_.kv, (j + 1) * block_.kv);
    for_each_run(seen_keys_, mask_.kv_length(), false, [&](std::int64_t begin, std::int64_t end) {
      scan_.summary.keys_without_row.push_back({begin, end});
    });
  }

  const Mask& mask_;
  const MaskNode& node_;
  BlockShape block_;
  PatternTable* table_;
  std::int64_t q_blocks_, kv_blocks_;
  std::int64_t row_words_, pattern_words_;
  std::unique_ptr<BlockClassifier> classifier_;

  Scan scan_;
  std::vector<Word> seen_keys_;     // of partial blocks, all keys
  std::vector<char> full_columns_;  // columns of blocks that hold a full block
  std::vector<bool> own_patterns_;  // patterns of the table that this mask has
  std::int64_t released_ = 0;
};

}  // namespace

Scan scan_mask(const Mask& mask, BlockShape block, PatternTable* table,
               const std::function<void(std::int64_t)>& done) {
  return Scanner(mask, block, table).run(done);
}

}  // namespace ejk::mask
