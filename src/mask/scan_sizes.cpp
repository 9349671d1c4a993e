// One pass over a mask for several block sizes.
//
// The walk goes down the queries in stripes. In each, every size tells the states of the rows of blocks that
// begin there; then the elements that any size has to see are filled, once, into the bits that are held; then
// every size looks at its rows of blocks that end there. Rows that reach into the next stripe keep their bits,
// so sizes need not divide one another.
//
// Cost: the elements are filled once, whatever the number of sizes; each size reads the bits of its open blocks.
// tests: tests/mask/test_sparsity.cpp
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"
#include "mask/scanner.hpp"

namespace ejk::mask {

namespace {

constexpr std::int64_t kStripeWords = std::int64_t{1} << 22;  // of bits, unless a row of blocks has more
constexpr std::int64_t kBandRows = 64;                        // that are filled together

// How many queries a stripe has, and how many are held at the most.
struct Heights {
  std::int64_t stripe = 1, held = 1;
};

Heights heights(std::int64_t q_length, std::int64_t kv_length, const std::vector<BlockShape>& blocks) {
  std::int64_t tallest = 1;
  for (const BlockShape& block : blocks) tallest = std::max(tallest, std::min(block.q, q_length));
  const std::int64_t rows = std::max(tallest, kStripeWords / words_for(kv_length));
  Heights h;
  h.stripe = std::min(q_length, core::round_up(rows, tallest));
  h.held = h.stripe;
  for (const BlockShape& block : blocks)
    if (h.stripe < q_length && h.stripe % block.q != 0) h.held = std::min(q_length, h.stripe + tallest);
  return h;
}

// True bits of [begin, end) of a row.
std::int64_t ones(const Word* row, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = begin / 64, last = (end - 1) / 64;
  const Word head = ~low_bits(begin % 64), tail = low_bits((end - 1) % 64 + 1);
  if (first == last) return std::popcount(row[first] & head & tail);
  return std::popcount(row[first] & head) + std::popcount(row[last] & tail) +
         kernels::active().count_bits(row + first + 1, last - first - 1);
}

// What the runs see in row `i` of the blocks of a size, which were looked at.
void add_row(QueryRuns& runs, std::int64_t weight, const Scanner& size, BlockShape block, std::int64_t i,
             const BitRows& rows) {
  const std::span<const BlockState> states = size.states(i);
  const auto [q_begin, q_end] = size.queries(i);
  auto run = std::lower_bound(runs.bounds.begin(), runs.bounds.end(), q_begin) - runs.bounds.begin();
  for (; runs.bounds[static_cast<std::size_t>(run)] < q_end; ++run) {
    const std::int64_t begin = runs.bounds[static_cast<std::size_t>(run)],
                       end = runs.bounds[static_cast<std::size_t>(run) + 1];
    Word* keys = runs.keys.data() + run * runs.row_words;
    std::int64_t pairs = 0;
    for (std::int64_t j = 0; j < size.kv_blocks();) {  // blocks of one state together
      const BlockState state = states[static_cast<std::size_t>(j)];
      const std::int64_t k_begin = j * block.kv;
      while (j < size.kv_blocks() && states[static_cast<std::size_t>(j)] == state) ++j;
      const std::int64_t k_end = std::min(j * block.kv, rows.columns);
      if (state == BlockState::empty) continue;
      if (state == BlockState::full) {
        pairs += (end - begin) * (k_end - k_begin);
        set_bits(keys, k_begin, k_end);
        continue;
      }
      // The words at both ends are whole: what else is in them is the mask's as well.
      for (std::int64_t q = begin; q < end; ++q) {
        const Word* row = rows.row(q - q_begin);
        pairs += ones(row, k_begin, k_end);
        for (std::int64_t w = k_begin / 64; w < words_for(k_end); ++w) keys[w] |= row[w];
      }
    }
    runs.pairs[static_cast<std::size_t>(run)] += weight * pairs;
  }
}

class Walk {
 public:
  Walk(const Mask& mask, const std::vector<BlockShape>& blocks, const std::vector<PatternTable*>& tables,
       QueryRuns* runs, std::int64_t weight, const std::function<void(std::int64_t)>& done)
      : node_(mask.node()),
        blocks_(blocks),
        runs_(runs),
        weight_(weight),
        done_(done),
        heights_(heights(mask.q_length(), mask.kv_length(), blocks)),
        row_words_(words_for(mask.kv_length())),
        bits_(DType::uint64, {heights_.held, row_words_}) {
    for (std::size_t s = 0; s < blocks.size(); ++s)
      sizes_.push_back(std::make_unique<Scanner>(mask, blocks[s], tables[s]));
    next_.resize(sizes_.size());
    open_.resize(sizes_.size());
  }

  std::vector<Scan> run() {
    for (std::int64_t begin = 0; begin < node_.q_length(); begin += heights_.stripe) {
      const std::int64_t end = std::min(node_.q_length(), begin + heights_.stripe);
      drop_before(begin);
      classify(begin, end);
      fill(begin, end);
      look(end);
    }
    std::vector<Scan> scans;
    for (const auto& size : sizes_) scans.push_back(size->finish());
    return scans;
  }

 private:
  struct Row {
    std::size_t size;
    std::int64_t i;
  };
  // One for each size, made when it is needed, and what filling takes.
  struct Part {
    std::vector<std::unique_ptr<Scanner::Part>> sizes;
  };
  struct FillPart {
    std::vector<Word> needed;
    BitBuffer panel;
  };

  // Nanoseconds that filling or looking at so many elements takes.
  static double work(std::int64_t elements) { return static_cast<double>(elements) / 8; }

  BitRows rows_of(std::int64_t begin, std::int64_t end) {
    Word* first = bits_.elements<Word>().data();
    return {first + (begin - first_held_) * row_words_, row_words_, end - begin, node_.kv_length()};
  }

  // Moves the bits of rows of blocks that are not looked at yet to the front; `filled` queries are there.
  void drop_before(std::int64_t filled) {
    std::int64_t keep = filled;
    for (std::size_t s = 0; s < sizes_.size(); ++s) keep = std::min(keep, next_[s] * blocks_[s].q);
    std::memmove(bits_.data(), rows_of(keep, filled).words,
                 static_cast<std::size_t>((filled - keep) * row_words_) * sizeof(Word));
    first_held_ = keep;
  }

  void classify(std::int64_t begin, std::int64_t end) {
    std::vector<Row> rows;
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t i = core::ceil_div(begin, blocks_[s].q); i * blocks_[s].q < end; ++i)
        rows.push_back({s, i});
    std::int64_t all = 0;
    for (const Row& row : rows) all += sizes_[row.size]->kv_blocks();
    core::parallel_for(static_cast<std::int64_t>(rows.size()), 2 * static_cast<double>(all),
                       [&](std::int64_t n) {
                         const Row& row = rows[static_cast<std::size_t>(n)];
                         sizes_[row.size]->classify(row.i);
                       });
    std::fill(open_.begin(), open_.end(), 0);
    for (const Row& row : rows) {
      const Scanner& size = *sizes_[row.size];
      const auto states = size.states(row.i);
      const auto blocks = std::count_if(states.begin(), states.end(), is_open);
      open_[row.size] += blocks * size.held().q * size.held().kv;
    }
  }

  void fill(std::int64_t begin, std::int64_t end) {
    const std::int64_t bands = core::ceil_div(end - begin, kBandRows);
    const std::int64_t most_open = *std::max_element(open_.begin(), open_.end());
    const int threads = node_.random_access() ? core::threads_for(bands, work(most_open)) : 1;
    core::parallel_reduce(
        bands, threads, [] { return FillPart{}; },
        [&](FillPart& part, std::int64_t band) {
          const std::int64_t from = begin + band * kBandRows;
          fill_band(part, from, std::min(end, from + kBandRows));
        },
        [](FillPart&) {});
  }

  void fill_band(FillPart& part, std::int64_t begin, std::int64_t end) {
    part.needed.assign(static_cast<std::size_t>(words_for(row_words_)), Word{0});
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t i = begin / blocks_[s].q; i * blocks_[s].q < end; ++i)
        sizes_[s]->add_needed_words(i, part.needed.data());
    if (!node_.random_access()) {  // across what is not needed, so that a source is read in order
      std::int64_t first = row_words_, last = 0;
      for_each_run(part.needed, row_words_, true,
                   [&](std::int64_t from, std::int64_t to) { first = std::min(first, from), last = to; });
      set_bits(part.needed.data(), first, last);
    }
    const BitRows band = rows_of(begin, end);
    const std::int64_t most = kPanelWords / kBandRows;
    for_each_run(part.needed, row_words_, true, [&](std::int64_t from, std::int64_t to) {
      if (to - from == row_words_) return node_.fill({begin, end, 0, node_.kv_length()}, band);
      for (std::int64_t w = from; w < to; w += most) {
        const std::int64_t last = std::min(to, w + most), k_end = std::min(64 * last, node_.kv_length());
        const BitRows panel = part.panel.rows(end - begin, k_end - 64 * w);
        node_.fill({begin, end, 64 * w, k_end}, panel);
        for (std::int64_t r = 0; r < panel.rows; ++r)
          std::copy_n(panel.row(r), panel.row_words, band.row(r) + w);
      }
    });
  }

  // Rows of blocks all of whose queries are filled.
  void look(std::int64_t filled) {
    std::vector<Row> rows;
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (; next_[s] < sizes_[s]->q_blocks() && sizes_[s]->queries(next_[s]).end <= filled; ++next_[s])
        rows.push_back({s, next_[s]});
    // The tallest first: they take the longest.
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const Row& a, const Row& b) { return blocks_[a.size].q > blocks_[b.size].q; });
    const auto count = static_cast<std::int64_t>(rows.size());
    const int threads =
        core::threads_for(count, work(std::accumulate(open_.begin(), open_.end(), std::int64_t{0})));
    std::mutex done_mutex;
    core::parallel_reduce(
        count, threads, [&] { return Part{std::vector<std::unique_ptr<Scanner::Part>>(sizes_.size())}; },
        [&](Part& part, std::int64_t n) {
          const auto [s, i] = rows[static_cast<std::size_t>(n)];
          Scanner& size = *sizes_[s];
          if (!part.sizes[s]) part.sizes[s] = std::make_unique<Scanner::Part>(size.make_part());
          const BitRows bits = rows_of(size.queries(i).begin, size.queries(i).end);
          size.look(*part.sizes[s], i, bits);
          part.sizes[s]->rows.push_back({i, i + 1});
          if (runs_ != nullptr && s == 0) add_row(*runs_, weight_, size, blocks_[s], i, bits);
          if (done_) {
            const std::scoped_lock lock(done_mutex);
            done_(size.kv_blocks());
          }
        },
        [&](Part& part) {
          for (std::size_t s = 0; s < sizes_.size(); ++s)
            if (part.sizes[s]) sizes_[s]->join(*part.sizes[s]);
        });
  }

  const MaskNode& node_;
  const std::vector<BlockShape>& blocks_;
  QueryRuns* runs_;
  std::int64_t weight_;
  const std::function<void(std::int64_t)>& done_;
  Heights heights_;
  std::int64_t row_words_;
  Array bits_;  // (queries from first_held_ on, row_words_)
  std::int64_t first_held_ = 0;
  std::vector<std::unique_ptr<Scanner>> sizes_;
  std::vector<std::int64_t> open_;  // of each size the elements of open blocks that begin in the stripe
  std::vector<std::int64_t> next_;  // of each size the first row of blocks that is not looked at
};

}  // namespace

QueryRuns::QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length)
    : bounds(std::move(run_bounds)),
      row_words(words_for(kv_length)),
      pairs(bounds.size() - 1),
      keys((bounds.size() - 1) * static_cast<std::size_t>(row_words)) {}

std::vector<Scan> scan_sizes(const Mask& mask, const std::vector<BlockShape>& blocks,
                             const std::vector<PatternTable*>& tables, QueryRuns* runs, std::int64_t weight,
                             const std::function<void(std::int64_t)>& done) {
  return Walk(mask, blocks, tables, runs, weight, done).run();
}

std::optional<std::int64_t> sizes_bytes(std::int64_t q_length, std::int64_t kv_length,
                                        const std::vector<BlockShape>& blocks) {
  // The bits, and as much of a band on each thread: a panel and an operand of a composed mask.
  const auto bits = core::checked_mul(8 * words_for(kv_length), heights(q_length, kv_length, blocks).held);
  const auto bands = core::checked_mul(2 * 8 * kBandRows * words_for(kv_length), threads());
  if (!bits || !bands || std::max(*bits, *bands) > core::kMostBytes) return std::nullopt;
  return *bits + *bands;
}

}  // namespace ejk::mask
