// Terms that enclose given pairs. Each kind but chunked is closed under intersection, so that its smallest member
// around the pairs serves every expression that has one of the kind: bands by the smallest and largest k - q,
// documents by overlapping ranges of tokens, segments as connected components. Chunk sizes are those that no
// query's keys cross. One pass over ranges of keys each: linear in their number, and K ln K for chunks.
// tests: tests/mask/test_identify.cpp
#include "mask/terms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "core/checked.hpp"
#include "mask/node.hpp"

namespace ejk::mask {

namespace {

using Ids = std::vector<std::int64_t>;

std::span<const Word> words_of(const BitRows& pairs, std::int64_t q) {
  return {pairs.row(q), static_cast<std::size_t>(words_for(pairs.columns))};
}

std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

std::shared_ptr<const ArraySource> array_of(const char* name, const Ids& ids) {
  Array array(DType::int32, {std::ssize(ids)});
  std::transform(ids.begin(), ids.end(), array.elements<std::int32_t>().begin(),
                 [](std::int64_t id) { return static_cast<std::int32_t>(id); });
  return make_source(std::move(array), name);
}

// The argument for an offset; none for 0.
std::string offset_text(std::int64_t offset, std::int64_t bottom_right) {
  if (offset == 0) return "";
  return offset == bottom_right ? "align=bottom-right" : fmt::format("offset={}", offset);
}

// Disjoint sets of numbers from 0 on.
class Sets {
 public:
  explicit Sets(std::int64_t count) : parent_(at(count)) { std::iota(parent_.begin(), parent_.end(), 0); }
  std::int64_t of(std::int64_t n) {
    while (parent_[at(n)] != n) n = parent_[at(n)] = parent_[at(parent_[at(n)])];
    return n;
  }
  void join(std::int64_t a, std::int64_t b) { parent_[at(std::max(of(a), of(b)))] = std::min(of(a), of(b)); }
  /// Makes `to` the parent of `from`, which is a root.
  void move(std::int64_t from, std::int64_t to) { parent_[at(from)] = to; }

 private:
  Ids parent_;
};

void add_documents(const PairCounts& counts, std::vector<Term>& terms) {
  const std::int64_t tokens = std::ssize(counts.first);
  std::vector<std::int64_t> reach(at(tokens));  // the last token of a range that begins here
  std::iota(reach.begin(), reach.end(), 0);
  for (std::int64_t q = 0; q < tokens; ++q)
    if (counts.first[at(q)] >= 0) {
      std::int64_t& end = reach[at(std::min(q, counts.first[at(q)]))];
      end = std::max({end, q, counts.last[at(q)]});
    }
  Ids cu{0};
  for (std::int64_t t = 0, end = 0; t < tokens; ++t) {
    if (t > end) cu.push_back(t);
    end = std::max({t, end, reach[at(t)]});
  }
  cu.push_back(tokens);
  if (cu.size() > 2) terms.push_back({"documents(@cu)", documents_mask(cu), {array_of("cu", cu)}});
}

void add_chunks(const PairCounts& counts, std::int64_t offset, std::vector<Term>& terms) {
  constexpr std::size_t kMostSizes = 3;
  const std::int64_t queries = std::ssize(counts.first), keys = std::ssize(counts.keys);
  const std::int64_t length = std::max<std::int64_t>(queries + offset, 0) + 1;
  Ids crossed(at(length + 1));  // queries whose keys, up to q + offset, are on both sides of a key
  for (std::int64_t q = 0; q < queries; ++q)
    if (const std::int64_t first = counts.first[at(q)]; first >= 0 && first < q + offset)
      ++crossed[at(first + 1)], --crossed[at(q + offset + 1)];
  std::partial_sum(crossed.begin(), crossed.end(), crossed.begin());
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size < length && sizes.size() < kMostSizes; ++size) {
    bool is_free = std::none_of(sizes.begin(), sizes.end(), [&](auto other) { return size % other == 0; });
    for (std::int64_t k = size; is_free && k < length; k += size) is_free = crossed[at(k)] == 0;
    if (!is_free) continue;
    sizes.push_back(size);
    const std::string at_offset = offset_text(offset, keys - queries);
    terms.push_back({fmt::format("chunked({}{}{})", size, at_offset.empty() ? "" : ", ", at_offset),
                     chunked_mask(queries, keys, size, offset)});
  }
}

// Where counts fall most from one to the next; `step` -1: in the other direction.
std::int64_t steepest(const std::vector<std::int64_t>& counts, std::int64_t step) {
  std::int64_t best = 0, most = 0;
  for (std::int64_t n = 0; n < std::ssize(counts); ++n) {
    const std::int64_t next = n + step;
    const std::int64_t fall = counts[at(n)] - (next < 0 || next >= std::ssize(counts) ? 0 : counts[at(next)]);
    if (fall > most) best = n, most = fall;
  }
  return best;
}

}  // namespace

PairCounts::PairCounts(const BitRows& pairs)
    : first(at(pairs.rows), -1),
      last(at(pairs.rows), -1),
      diagonals(at(pairs.rows + pairs.columns)),
      keys(at(pairs.columns + 1)),
      low(pairs.columns),
      high(-pairs.rows) {
  for (std::int64_t q = 0; q < pairs.rows; ++q) {
    std::int64_t &from = first[at(q)], &to = last[at(q)];
    for_each_run(words_of(pairs, q), pairs.columns, true, [&](std::int64_t begin, std::int64_t end) {
      if (from < 0) from = begin;
      to = end - 1;
      all += end - begin;
      ++keys[at(begin)], --keys[at(end)];
      const std::int64_t diagonal = pairs.rows - 1 - q;
      ++diagonals[at(begin + diagonal)], --diagonals[at(end + diagonal)];
    });
    if (from >= 0) low = std::min(low, from - q), high = std::max(high, to - q);
  }
  std::partial_sum(keys.begin(), keys.end(), keys.begin());
  std::partial_sum(diagonals.begin(), diagonals.end(), diagonals.begin());
  keys.pop_back(), diagonals.pop_back();
  steep_low = steepest(diagonals, -1) - pairs.rows + 1, steep_high = steepest(diagonals, 1) - pairs.rows + 1;
}

Term band_term(std::int64_t q_length, std::int64_t kv_length, const Diagonals& of) {
  const std::int64_t bottom_right = kv_length - q_length;
  if (!of.low && !of.high) return {"full", full_mask(q_length, kv_length)};
  if (!of.low) {
    const std::string offset = offset_text(*of.high, bottom_right);
    return {offset.empty() ? "causal" : fmt::format("causal({})", offset),
            causal_mask(q_length, kv_length, *of.high)};
  }
  const auto is_within = [&](std::int64_t n) { return *of.low <= n && (!of.high || n <= *of.high); };
  const std::int64_t offset = is_within(0)              ? 0
                              : is_within(bottom_right) ? bottom_right
                                                        : of.high.value_or(*of.low);
  const std::int64_t left = offset - *of.low;
  const auto right = of.high ? std::optional(*of.high - offset) : std::nullopt;
  const std::string at_offset = offset_text(offset, bottom_right);
  return {fmt::format("local({}, {}{}{})", left, right ? fmt::to_string(*right) : "none",
                      at_offset.empty() ? "" : ", ", at_offset),
          local_mask(q_length, kv_length, left, right, offset)};
}

Term prefix_term(std::int64_t q_length, std::int64_t kv_length, std::int64_t keys) {
  return {fmt::format("prefix({})", keys), prefix_mask(q_length, kv_length, keys)};
}

std::optional<Term> segments_term(const BitRows& pairs, bool is_one, std::int64_t least) {
  const std::int64_t queries = pairs.rows, keys = pairs.columns, first_key = is_one ? 0 : queries;
  const std::int64_t count = first_key + keys;
  Sets sets(count), apart(keys + 1);  // of `apart`: the next key that is not joined with the one before it
  std::vector<bool> has_pair(at(count));
  Ids pairs_of(at(queries));
  const auto join = [&](std::int64_t a, std::int64_t b) {
    sets.join(a, b);
    has_pair[at(a)] = has_pair[at(b)] = true;
  };
  for (std::int64_t q = 0; q < queries; ++q)
    for_each_run(words_of(pairs, q), keys, true, [&](std::int64_t begin, std::int64_t end) {
      join(q, first_key + begin);
      pairs_of[at(q)] += end - begin;
      for (std::int64_t k = apart.of(begin + 1); k < end; k = apart.of(k)) {
        join(first_key + k - 1, first_key + k);
        apart.move(k, k + 1);
      }
    });
  Ids surplus(at(count)), id_of(at(count)), ids(at(count), -1);
  for (std::int64_t n = 0; n < count; ++n)
    if (has_pair[at(n)]) surplus[at(sets.of(n))] -= least;
  for (std::int64_t q = 0; q < queries; ++q) surplus[at(sets.of(q))] += pairs_of[at(q)];
  std::int64_t last = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    if (!has_pair[at(n)] || surplus[at(sets.of(n))] < 0) continue;
    std::int64_t& id = id_of[at(sets.of(n))];
    if (id == 0) id = ++last;
    ids[at(n)] = id;
  }
  if (last == 0) return std::nullopt;
  if (is_one) return Term{"segments(@ids)", segments_mask(ids, ids), {array_of("ids", ids)}};
  const Ids q_ids(ids.begin(), ids.begin() + queries), kv_ids(ids.begin() + queries, ids.end());
  return Term{"segments(@q_ids, @kv_ids)",
              segments_mask(q_ids, kv_ids),
              {array_of("q_ids", q_ids), array_of("kv_ids", kv_ids)}};
}

std::vector<Term> enclosing_terms(const BitRows& pairs, const PairCounts& counts, Ends ends) {
  const std::int64_t queries = pairs.rows, keys = pairs.columns;
  std::vector<Term> terms;
  if (counts.all == 0) return {prefix_term(queries, keys, 0)};
  const auto add_band = [&](std::int64_t low, std::int64_t high) {
    const bool has_left = low > 1 - queries, has_right = high < keys - 1;
    if (has_right) terms.push_back(band_term(queries, keys, {std::nullopt, high}));
    if (has_left) terms.push_back(band_term(queries, keys, {low, std::nullopt}));
    if (has_left && has_right) terms.push_back(band_term(queries, keys, {low, high}));
  };
  add_band(counts.low, counts.high);
  const std::int64_t low = counts.steep_low, high = counts.steep_high;
  std::int64_t kept = 0;
  for (std::int64_t d = low; d <= high; ++d) kept += counts.diagonals[at(d + queries - 1)];
  if (ends == Ends::steep && (low != counts.low || high != counts.high) && kept > counts.all / 16 * 15)
    add_band(low, high);
  const auto has_key = [](std::int64_t n) { return n > 0; };
  const std::int64_t begin =
      std::find_if(counts.keys.begin(), counts.keys.end(), has_key) - counts.keys.begin();
  const std::int64_t after =
      std::find_if(counts.keys.rbegin(), counts.keys.rend(), has_key) - counts.keys.rbegin();
  if (after > 0) terms.push_back(prefix_term(queries, keys, keys - after));
  if (begin > 0) {
    const Term prefix = prefix_term(queries, keys, begin);
    terms.push_back({"~" + prefix.text, ~prefix.mask});
  }
  if (queries == keys) {
    add_documents(counts, terms);
    terms.push_back(*segments_term(pairs, true));
  }
  terms.push_back(*segments_term(pairs, false));
  std::vector<std::int64_t> offsets{ends == Ends::steep ? high : counts.high};
  for (const std::int64_t offset : {std::int64_t{0}, keys - queries})
    if (offset > offsets.front() && offset != offsets.back()) offsets.push_back(offset);
  for (const std::int64_t offset : offsets) add_chunks(counts, offset, terms);
  return terms;
}

namespace {

// The common divisors of the boundaries of blocks, 0 for none; nothing where blocks would be small.
std::optional<BlockShape> shape_of_blocks(const BitRows& pairs, const Mask& within, std::int64_t least) {
  constexpr std::int64_t kRows = 64, kLeastPairs = 64;
  const std::int64_t queries = pairs.rows, keys = pairs.columns, words = words_for(keys);
  BlockShape block;
  std::vector<Word> found(at(words));
  Ids changes(at(keys));
  BitBuffer buffer;
  for (std::int64_t begin = 0; begin < queries; begin += kRows) {
    const std::int64_t from = std::max<std::int64_t>(begin - 1, 0), to = std::min(begin + kRows, queries);
    const BitRows allowed = buffer.rows(to - from, keys);
    within.node().fill({from, to, 0, keys}, allowed);
    for (std::int64_t q = begin; q < to; ++q) {
      const Word *row = pairs.row(q), *here = allowed.row(q - from);
      std::int64_t differing = 0;
      for (std::int64_t w = 0; w < words; ++w) {
        if (q > 0)
          differing += std::popcount((row[w] ^ pairs.row(q - 1)[w]) & here[w] & allowed.row(q - 1 - from)[w]);
        Word edges = (row[w] ^ columns_after(row, w, words)) & here[w] & columns_after(here, w, words);
        for (edges &= ~found[at(w)]; edges != 0; edges &= edges - 1) {
          const std::int64_t key = 64 * w + std::countr_zero(edges);
          if (++changes[at(key)] < least) continue;
          found[at(w)] |= edges & -edges;
          block.kv = std::gcd(block.kv, key + 1);
        }
      }
      if (differing >= least) block.q = std::gcd(block.q, q);
      if (block.q > 0 && block.kv > 0 && block.q * block.kv < kLeastPairs) return std::nullopt;
    }
  }
  if (block.q == 0 && block.kv == 0) return std::nullopt;
  if (block.q == 0) block.q = queries;
  if (block.kv == 0) block.kv = keys;
  return block.q * block.kv < kLeastPairs ? std::nullopt : std::optional(block);
}

}  // namespace

std::optional<Term> blocks_term(const BitRows& shape, const Mask& within, const BitRows& pairs,
                                const Mask& all, Ends ends) {
  const auto block = shape_of_blocks(shape, within, ends == Ends::steep ? 3 : 1);
  if (!block) return std::nullopt;
  const std::int64_t queries = pairs.rows, keys = pairs.columns;
  const std::int64_t columns = core::ceil_div(keys, block->kv);
  Array cells(DType::boolean, {core::ceil_div(queries, block->q), columns});
  bool* cell = cells.elements<bool>().data();
  Ids changes(
      at(keys + 1));  // from key to key, of the pairs of `all` that are pairs, minus those that are none
  BitBuffer buffer;
  const BitRows row = buffer.rows(1, keys);
  for (std::int64_t q = 0; q < queries; ++q) {
    const auto add = [&](std::int64_t weight) {
      for_each_run(words_of(row, 0), keys, true, [&](std::int64_t begin, std::int64_t end) {
        changes[at(begin)] += weight, changes[at(end)] -= weight;
      });
    };
    all.node().fill({q, q + 1, 0, keys}, row);
    add(-1);
    for (std::int64_t w = 0; w < row.row_words; ++w) row.words[w] &= pairs.row(q)[w];
    add(2);
    if ((q + 1) % block->q != 0 && q + 1 < queries) continue;
    for (std::int64_t column = 0, k = 0, more = 0; column < columns; ++column) {
      std::int64_t surplus = 0;
      for (; k < std::min(keys, (column + 1) * block->kv); ++k)
        surplus += more += std::exchange(changes[at(k)], 0);
      *cell++ = surplus > 0;
    }
    changes.back() = 0;
  }
  const auto array = make_source(std::move(cells), "blocks");
  return Term{fmt::format("blocks(@blocks, {}x{})", block->q, block->kv),
              blocks_mask(array, *block, queries, keys),
              {array}};
}

}  // namespace ejk::mask
