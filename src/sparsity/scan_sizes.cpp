// Scan of a mask for several block sizes in one pass, by stripes of queries. In each stripe every size
// classifies the block rows that begin there; the elements that any size needs are filled once; every size
// scans its block rows that end there. If all sizes divide the stripe and the mask allows random access,
// stripes are processed in parallel. Otherwise they are processed in order, each by all threads, and block
// rows that extend into the next stripe keep their bits. Masks with known bands are scanned size by size
// without filling.
// tests: tests/sparsity/test_sparsity.cpp
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "blocks/scanner.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

constexpr std::int64_t kStripeWords = std::int64_t{1} << 22;  // of bits, unless a block row has more
constexpr std::int64_t kBandRows = 64;                        // filled together

struct Stripes {
  bool apart = false;        // processed independently
  std::int64_t queries = 1;  // of a stripe
  std::int64_t held = 1;     // most queries whose bits are in memory, for each stripe in flight
};

Stripes stripes_of(std::int64_t q_length, std::int64_t kv_length, const std::vector<BlockShape>& blocks,
                   Reading reading) {
  std::int64_t tallest = 1;
  for (const BlockShape& block : blocks) tallest = std::max(tallest, std::min(block.q, q_length));
  const bool divides = std::all_of(blocks.begin(), blocks.end(),
                                   [&](const BlockShape& block) { return tallest % block.q == 0; });
  Stripes stripes;
  if (reading == Reading::any_order && divides && q_length / tallest >= 2 * threads()) {
    stripes.apart = true;
    stripes.queries = stripes.held = tallest;
    return stripes;
  }
  const std::int64_t rows = std::max(tallest, kStripeWords / words_for(kv_length));
  stripes.queries = std::min(q_length, core::round_up(rows, tallest));
  stripes.held = divides ? stripes.queries : std::min(q_length, stripes.queries + tallest);
  return stripes;
}

std::int64_t ones(const Word* row, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = begin / 64, last = (end - 1) / 64;
  const Word head = ~low_bits(begin % 64), tail = low_bits((end - 1) % 64 + 1);
  if (first == last) return std::popcount(row[first] & head & tail);
  return std::popcount(row[first] & head) + std::popcount(row[last] & tail) +
         kernels::active().count_bits(row + first + 1, last - first - 1);
}

// Adds the keys of ranges of queries in block row `i` of a size; `rows` begin at `first_word`.
void add_row(QueryRuns& runs, std::int64_t weight, const Scanner& size, BlockShape block, std::int64_t i,
             const BitRows& rows, std::int64_t first_word) {
  const std::span<const BlockState> states = size.states(i);
  const auto [q_begin, q_end] = size.queries(i);
  const auto [first, last] = size.run(i);
  auto run = std::lower_bound(runs.bounds.begin(), runs.bounds.end(), q_begin) - runs.bounds.begin();
  for (; runs.bounds[static_cast<std::size_t>(run)] < q_end; ++run) {
    const std::int64_t begin = runs.bounds[static_cast<std::size_t>(run)],
                       end = runs.bounds[static_cast<std::size_t>(run) + 1];
    Word* keys = runs.keys_of(run);
    std::int64_t pairs = 0;
    for (std::int64_t j = first; j < last;) {  // blocks of one state together
      const BlockState state = states[static_cast<std::size_t>(j - first)];
      const std::int64_t k_begin = j * block.kv;
      while (j < last && states[static_cast<std::size_t>(j - first)] == state) ++j;
      const std::int64_t k_end = std::min(j * block.kv, size.kv_length());
      if (state == BlockState::empty) continue;
      if (state == BlockState::full) {
        pairs += (end - begin) * (k_end - k_begin);
        set_bits(keys, k_begin, k_end);
        continue;
      }
      // Words at both ends are whole: their other bits belong to the mask too.
      for (std::int64_t q = begin; q < end; ++q) {
        const Word* row = rows.row(q - q_begin);
        pairs += ones(row, k_begin - 64 * first_word, k_end - 64 * first_word);
        for (std::int64_t w = k_begin / 64; w < words_for(k_end); ++w) keys[w] |= row[w - first_word];
      }
    }
    runs.pairs[static_cast<std::size_t>(run)] += weight * pairs;
  }
}

// The same for these queries of a mask with known bands; a range begins with the first.
void add_bands(QueryRuns& runs, std::int64_t weight, const MaskNode& node, IndexRange queries) {
  constexpr std::int64_t kQueriesAtOnce = 4096;
  std::vector<IndexRange> seen(static_cast<std::size_t>(kQueriesAtOnce * node.bands()));
  const IndexRange all_keys{0, node.kv_length()};
  auto run = std::lower_bound(runs.bounds.begin(), runs.bounds.end(), queries.begin) - runs.bounds.begin();
  for (; runs.bounds[static_cast<std::size_t>(run)] < queries.end; ++run) {
    const std::int64_t end = runs.bounds[static_cast<std::size_t>(run) + 1];
    std::int64_t pairs = 0;
    IndexRange keys;  // of neighbouring queries, which overlap
    for (std::int64_t q = runs.bounds[static_cast<std::size_t>(run)]; q < end; q += kQueriesAtOnce) {
      const std::int64_t count = std::min(kQueriesAtOnce, end - q);
      for (std::int64_t b = 0; b < node.bands(); ++b)
        node.band(b, {q, q + count}, seen.data() + b * kQueriesAtOnce);
      for (std::int64_t r = 0; r < count; ++r)
        for_each_run_of(seen.data() + r, node.bands(), kQueriesAtOnce, all_keys,
                        [&](std::int64_t from, std::int64_t to) {
                          pairs += to - from;
                          if (from < keys.begin || from > keys.end) {
                            set_bits(runs.keys_of(run), keys.begin, keys.end);
                            keys = {from, to};
                          }
                          keys.end = std::max(keys.end, to);
                        });
    }
    set_bits(runs.keys_of(run), keys.begin, keys.end);
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
        end_(mask.q_length()),
        row_words_(words_for(mask.kv_length())),
        stripes_(stripes_of(end_, mask.kv_length(), blocks,
                            node_.random_access() ? Reading::any_order : Reading::in_order)) {
    for (std::size_t s = 0; s < blocks.size(); ++s)
      sizes_.push_back(std::make_unique<Scanner>(mask, blocks[s], tables[s],
                                                 IndexRange{0, core::ceil_div(end_, blocks[s].q)}));
  }

  std::vector<BandScan> run() {
    stripes_.apart ? run_apart() : run_in_order();
    std::vector<BandScan> scans;
    for (const auto& size : sizes_) scans.push_back(size->finish());
    return scans;
  }

 private:
  struct Row {
    std::size_t size;
    std::int64_t i;
  };
  using Parts = std::vector<std::unique_ptr<Scanner::Part>>;
  // The bits of a range of queries, limited to the words that are needed.
  struct Held {
    BitBuffer buffer;
    BitRows bits;
    std::int64_t first = 0, first_word = 0;
    std::vector<std::int64_t> next;  // for each size the first block row that is not scanned
    std::vector<std::int64_t> open;  // for each size the elements of open blocks that begin in the stripe
  };
  struct FillPart {
    std::vector<Word> needed;
    BitBuffer panel;
  };

  Held make_held() const {
    Held held;
    held.next.resize(sizes_.size());
    held.open.resize(sizes_.size());
    return held;
  }

  std::int64_t last_before(std::size_t size, std::int64_t query) const {
    return core::ceil_div(query, blocks_[size].q);
  }

  // Nanoseconds for filling or scanning elements.
  static double work(std::int64_t elements) { return static_cast<double>(elements) / 8; }

  void run_apart() {
    struct Part {
      Held held;
      Parts parts;
    };
    const std::int64_t count = core::ceil_div(end_, stripes_.queries);
    const double all = static_cast<double>(end_) * static_cast<double>(node_.kv_length()) / 8;
    core::parallel_reduce(
        count, core::threads_for(count, all),
        [&] {
          return Part{make_held(), Parts(sizes_.size())};
        },
        [&](Part& part, std::int64_t n) {
          const std::int64_t begin = n * stripes_.queries, end = std::min(end_, begin + stripes_.queries);
          part.held.first = begin;
          for (std::size_t s = 0; s < sizes_.size(); ++s) part.held.next[s] = begin / blocks_[s].q;
          classify(part.held, begin, end);
          hold(part.held, needed_words(begin, end));
          fill(part.held, begin, end);
          for (const Row& row : filled_rows(part.held, end)) scan(part.parts, part.held, row);
        },
        [&](Part& part) { join(part.parts); });
  }

  void run_in_order() {
    Held held = make_held();
    hold(held, {0, row_words_});
    for (std::int64_t begin = 0; begin < end_; begin += stripes_.queries) {
      const std::int64_t end = std::min(end_, begin + stripes_.queries);
      drop_before(held, begin);
      classify(held, begin, end);
      fill(held, begin, end);
      std::vector<Row> rows = filled_rows(held, end);
      std::stable_sort(rows.begin(), rows.end(),
                       [&](const Row& a, const Row& b) { return blocks_[a.size].q > blocks_[b.size].q; });
      const std::int64_t open = std::accumulate(held.open.begin(), held.open.end(), std::int64_t{0});
      core::parallel_reduce(
          std::ssize(rows), core::threads_for(std::ssize(rows), work(open)),
          [&] { return Parts(sizes_.size()); },
          [&](Parts& parts, std::int64_t n) { scan(parts, held, rows[static_cast<std::size_t>(n)]); },
          [&](Parts& parts) { join(parts); });
    }
  }

  BitRows rows_of(Held& held, std::int64_t begin, std::int64_t end) const {
    return {held.bits.row(begin - held.first), held.bits.row_words, end - begin, held.bits.columns};
  }

  void hold(Held& held, IndexRange words) const {
    if (words.count() > held.bits.row_words) held.buffer = BitBuffer();  // release before allocating
    held.first_word = words.begin;
    held.bits =
        held.buffer.rows(stripes_.held, std::min(64 * words.end, node_.kv_length()) - 64 * words.begin);
  }

  // The words that any size needs of the block rows that begin in a stripe.
  IndexRange needed_words(std::int64_t begin, std::int64_t end) const {
    IndexRange all{row_words_, 0};
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t i = core::ceil_div(begin, blocks_[s].q), last = last_before(s, end); i < last; ++i) {
        const IndexRange words = sizes_[s]->needed_words(i);
        if (words.begin >= words.end) continue;
        all = {std::min(all.begin, words.begin), std::max(all.end, words.end)};
      }
    return all.begin < all.end ? all : IndexRange{};
  }

  // Moves the bits of block rows that are not scanned yet, up to query `filled`, to the front.
  void drop_before(Held& held, std::int64_t filled) const {
    std::int64_t keep = filled;
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      if (held.next[s] < sizes_[s]->rows().end) keep = std::min(keep, held.next[s] * blocks_[s].q);
    std::memmove(held.bits.words, rows_of(held, keep, filled).words,
                 static_cast<std::size_t>((filled - keep) * row_words_) * sizeof(Word));
    held.first = keep;
  }

  void classify(Held& held, std::int64_t begin, std::int64_t end) {
    std::vector<Row> rows;
    std::int64_t all = 0;
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t i = core::ceil_div(begin, blocks_[s].q), last = last_before(s, end); i < last; ++i) {
        rows.push_back({s, i});
        all += std::ssize(std::as_const(*sizes_[s]).states(i));
      }
    core::parallel_for(std::ssize(rows), 2 * static_cast<double>(all), [&](std::int64_t n) {
      const Row& row = rows[static_cast<std::size_t>(n)];
      sizes_[row.size]->classify(row.i);
    });
    std::fill(held.open.begin(), held.open.end(), 0);
    for (const Row& row : rows) {
      const Scanner& size = *sizes_[row.size];
      const auto states = size.states(row.i);
      const auto blocks = std::count_if(states.begin(), states.end(), is_open);
      held.open[row.size] += blocks * size.held().q * size.held().kv;
    }
  }

  void fill(Held& held, std::int64_t begin, std::int64_t end) const {
    const std::int64_t bands = core::ceil_div(end - begin, kBandRows);
    const std::int64_t most_open = *std::max_element(held.open.begin(), held.open.end());
    const int threads = node_.random_access() ? core::threads_for(bands, work(most_open)) : 1;
    core::parallel_reduce(
        bands, threads, [] { return FillPart{}; },
        [&](FillPart& part, std::int64_t band) {
          const std::int64_t from = begin + band * kBandRows;
          fill_band(part, rows_of(held, from, std::min(end, from + kBandRows)), from, held.first_word);
        },
        [](FillPart&) {});
  }

  // The rows of the band begin at query `begin`, its words at `first_word`.
  void fill_band(FillPart& part, const BitRows& band, std::int64_t begin, std::int64_t first_word) const {
    const std::int64_t end = begin + band.rows;
    part.needed.assign(static_cast<std::size_t>(words_for(band.row_words)), Word{0});
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t i = begin / blocks_[s].q, last = last_before(s, end); i < last; ++i)
        sizes_[s]->add_needed_words(i, first_word, part.needed.data());
    if (!node_.random_access()) {  // across words that are not needed, to read in order
      std::int64_t first = band.row_words, last = 0;
      for_each_run(part.needed, band.row_words, true,
                   [&](std::int64_t from, std::int64_t to) { first = std::min(first, from), last = to; });
      set_bits(part.needed.data(), first, last);
    }
    const std::int64_t most = kPanelWords / kBandRows;
    const std::int64_t first_key = 64 * first_word;
    for_each_run(part.needed, band.row_words, true, [&](std::int64_t from, std::int64_t to) {
      if (to - from == band.row_words)
        return node_.fill({begin, end, first_key, first_key + band.columns}, band);
      for (std::int64_t w = from; w < to; w += most) {
        const std::int64_t last = std::min(to, w + most),
                           columns = std::min(64 * last, band.columns) - 64 * w;
        const BitRows panel = part.panel.rows(band.rows, columns);
        node_.fill({begin, end, first_key + 64 * w, first_key + 64 * w + columns}, panel);
        for (std::int64_t r = 0; r < panel.rows; ++r)
          std::copy_n(panel.row(r), panel.row_words, band.row(r) + w);
      }
    });
  }

  // The block rows that are not scanned and end before query `filled`.
  std::vector<Row> filled_rows(Held& held, std::int64_t filled) const {
    std::vector<Row> rows;
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      for (std::int64_t& i = held.next[s]; i < sizes_[s]->rows().end && sizes_[s]->queries(i).end <= filled;
           ++i)
        rows.push_back({s, i});
    return rows;
  }

  void scan(Parts& parts, Held& held, const Row& row) {
    Scanner& size = *sizes_[row.size];
    std::unique_ptr<Scanner::Part>& part = parts[row.size];
    if (!part) part = std::make_unique<Scanner::Part>(size.make_part());
    const BitRows bits = rows_of(held, size.queries(row.i).begin, size.queries(row.i).end);
    size.scan(*part, row.i, bits, 64 * held.first_word);
    part->rows.push_back({row.i, row.i + 1});
    if (runs_ != nullptr && row.size == 0)
      add_row(*runs_, weight_, size, blocks_[0], row.i, bits, held.first_word);
    if (!done_) return;
    const std::scoped_lock lock(done_mutex_);
    done_(size.kv_blocks());
  }

  void join(Parts& parts) {
    for (std::size_t s = 0; s < sizes_.size(); ++s)
      if (parts[s]) sizes_[s]->join(*parts[s]);
  }

  const MaskNode& node_;
  const std::vector<BlockShape>& blocks_;
  QueryRuns* runs_;
  std::int64_t weight_;
  const std::function<void(std::int64_t)>& done_;
  std::mutex done_mutex_;
  std::int64_t end_, row_words_;
  Stripes stripes_;
  std::vector<std::unique_ptr<Scanner>> sizes_;
};

}  // namespace

QueryRuns::QueryRuns(std::vector<std::int64_t> run_bounds, std::int64_t kv_length)
    : bounds(std::move(run_bounds)),
      row_words(words_for(kv_length)),
      pairs(bounds.size() - 1),
      keys(pairs.size() * static_cast<std::size_t>(row_words)) {}

std::vector<Scan> scan_sizes(const Mask& mask, const std::vector<BlockShape>& blocks,
                             const std::vector<PatternTable*>& tables, QueryRuns* runs, std::int64_t weight,
                             const std::function<void(std::int64_t)>& done) {
  std::vector<BandScan> found;
  if (mask.node().bands() == 0) {
    found = Walk(mask, blocks, tables, runs, weight, done).run();
  } else {
    for (std::size_t s = 0; s < blocks.size(); ++s)
      found.push_back(
          scan_band(mask, blocks[s], {0, core::ceil_div(mask.q_length(), blocks[s].q)}, tables[s], done));
    if (runs != nullptr) add_bands(*runs, weight, mask.node(), {0, mask.q_length()});
  }
  std::vector<Scan> scans;
  for (std::size_t s = 0; s < found.size(); ++s)
    scans.push_back(completed(std::move(found[s]), tables[s] != nullptr ? tables[s]->size() : 0));
  return scans;
}

std::optional<std::int64_t> sizes_bytes(const std::vector<Mask>& masks, const std::vector<BlockShape>& blocks,
                                        Reading reading) {
  const std::int64_t q_length = masks[0].q_length(), kv_length = masks[0].kv_length();
  const std::int64_t words = words_for(kv_length);
  // The words of a row of bits that a row of the tallest blocks needs, rounded to whole blocks of any size.
  std::int64_t tallest = 1, longest = 1, widest = 0;
  for (const BlockShape& block : blocks)
    tallest = std::max(tallest, std::min(block.q, q_length)), longest = std::max(longest, block.kv);
  for (const Mask& mask : masks) widest = std::max(widest, held_blocks(mask, {tallest, 64}).widest);
  const std::int64_t needed = std::min(words, widest + 2 * words_for(std::min(longest, kv_length)));
  std::int64_t most = 0, most_words = 0;
  for (const Reading in : {Reading::any_order, reading}) {
    const Stripes stripes = stripes_of(q_length, kv_length, blocks, in);
    const std::int64_t width = stripes.apart ? needed : words;
    most_words = std::max(most_words, width);
    // The bits, and on each thread a panel and an operand of a composed mask for one band.
    const auto bits = core::checked_mul(8 * width * (stripes.apart ? threads() : 1), stripes.held);
    const auto bands = core::checked_mul(2 * 8 * kBandRows * width, threads());
    if (!bits || !bands || std::max(*bits, *bands) > core::kMostBytes) return std::nullopt;
    most = std::max(most, *bits + *bands);
  }
  for (const BlockShape& block : blocks) {  // of each thread, and reduced
    const auto part = part_bytes(q_length, kv_length, block, Patterns::kept, 2 * most_words);
    const auto parts = part ? core::checked_mul(*part, threads() + 1) : std::nullopt;
    if (!parts || *parts > core::kMostBytes) return std::nullopt;
    most = core::sum_of_bytes({most, *parts});
  }
  return most;
}

}  // namespace ejk::blocks
