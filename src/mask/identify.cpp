// The expression of a mask. Terms that enclose its pairs are the candidates. Every pair is counted by the set of
// terms that mask it; sums over subsets of these counts are the differing pairs of each choice of terms.
// Where none is equal, two searches enclose the mask without isolated pairs, so that wrong ones move no term. The
// masks behind | come first: a prefix is all true, what segments add is outside of the largest band.
// Cost: about 20 operations on words a term and 64 pairs, for each search.
// tests: tests/mask/test_identify.cpp
#include "ejk/program/identify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "mask/node.hpp"
#include "mask/terms.hpp"

namespace ejk {

namespace {

using namespace mask;

constexpr std::int64_t kRowsAtOnce = 64;

BitRows rows_of(const BitRows& pairs, std::int64_t begin, std::int64_t end) {
  return {pairs.row(begin), pairs.row_words, end - begin, pairs.columns};
}

// f(part, begin, end) for panels of rows, on several threads where `may_thread`.
template <class MakePart, class F, class Join>
void for_panels(const BitRows& pairs, double ns_a_word, bool may_thread, MakePart&& make, F&& f,
                Join&& join) {
  const std::int64_t panels = core::ceil_div(pairs.rows, kRowsAtOnce);
  const double work = ns_a_word * static_cast<double>(pairs.rows * words_for(pairs.columns));
  core::parallel_reduce(
      panels, may_thread ? core::threads_for(panels, work) : 1, make,
      [&](auto& part, std::int64_t panel) {
        f(part, panel * kRowsAtOnce, std::min((panel + 1) * kRowsAtOnce, pairs.rows));
      },
      join);
}

BitRows filled(const Mask& of, BitBuffer& buffer) {
  const BitRows all = buffer.rows(of.q_length(), of.kv_length());
  struct None {};
  for_panels(
      all, 50, of.node().random_access(), [] { return None(); },
      [&](None&, std::int64_t begin, std::int64_t end) {
        of.node().fill({begin, end, 0, all.columns}, rows_of(all, begin, end));
      },
      [](const None&) {});
  return all;
}

// The pairs that are in a square of 2 × 2 pairs, or have a neighbour among the keys and one among the queries;
// and gaps between four neighbours. Squares separate documents that a wrong pair joins, corners keep small ones.
enum class Kept { squares, corners };
BitRows without_isolated(const BitRows& pairs, Kept kept_pairs, BitBuffer& buffer) {
  const BitRows out = buffer.rows(pairs.rows, pairs.columns);
  const std::int64_t words = words_for(pairs.columns);
  const Word last = low_bits(pairs.columns - 64 * (words - 1));
  const std::vector<Word> none(static_cast<std::size_t>(words));
  std::vector<Word> square = none, above_square = none;  // by their first pair
  for (std::int64_t q = 0; q < pairs.rows; ++q) {
    const Word* const row = pairs.row(q);
    const Word* const above = q > 0 ? pairs.row(q - 1) : none.data();
    const Word* const below = q + 1 < pairs.rows ? pairs.row(q + 1) : none.data();
    for (std::int64_t w = 0; w < words; ++w)
      square[static_cast<std::size_t>(w)] =
          row[w] & columns_after(row, w, words) & below[w] & columns_after(below, w, words);
    for (std::int64_t w = 0; w < words; ++w) {
      const Word left = columns_before(row, w), right = columns_after(row, w, words);
      const Word kept = kept_pairs == Kept::corners
                            ? row[w] & (left | right) & (above[w] | below[w])
                            : square[static_cast<std::size_t>(w)] | columns_before(square.data(), w) |
                                  above_square[static_cast<std::size_t>(w)] |
                                  columns_before(above_square.data(), w);
      const Word gap = left & right & above[w] & below[w];
      out.row(q)[w] = (kept | (~row[w] & gap)) & (w + 1 == words ? last : ~Word{0});
    }
    std::swap(square, above_square);
  }
  return out;
}

// The bits of op(word of the pairs, word of the other mask).
template <class Op>
std::int64_t count_bits(const BitRows& pairs, const Mask& other, Op&& op) {
  std::int64_t all = 0;
  struct Part {
    BitBuffer buffer;
    std::int64_t bits = 0;
  };
  for_panels(
      pairs, 5, true, [] { return Part(); },
      [&](Part& part, std::int64_t begin, std::int64_t end) {
        const BitRows rows = part.buffer.rows(end - begin, pairs.columns);
        other.node().fill({begin, end, 0, pairs.columns}, rows);
        for (std::int64_t q = begin; q < end; ++q)
          for (std::int64_t w = 0; w < words_for(pairs.columns); ++w)
            part.bits += std::popcount(op(pairs.row(q)[w], rows.row(q - begin)[w]));
      },
      [&](const Part& part) { all += part.bits; });
  return all;
}

std::int64_t count_differing(const BitRows& pairs, const Mask& other) {
  return count_bits(pairs, other, [](Word a, Word b) { return a ^ b; });
}

// For each set of terms: pairs that these and no others mask, those outside of the mask minus those in it.
using Surplus = std::vector<std::int64_t>;

// Splits the pairs of a word by the terms that mask them.
void count_word(Word outside, Word inside, std::span<const Word> of_terms, Surplus& surplus) {
  std::array<std::pair<Word, std::size_t>, 64> parts;
  std::size_t count = 1;
  parts[0] = {outside | inside, 0};
  for (std::size_t t = 0; t < of_terms.size(); ++t)
    for (std::size_t p = 0, old = count; p < old; ++p) {
      const auto [pairs, set] = parts[p];
      const Word kept = pairs & of_terms[t], masked = pairs & ~of_terms[t];
      if (masked == 0) continue;
      parts[kept == 0 ? p : count++] = {masked, set | std::size_t{1} << t};
      if (kept != 0) parts[p].first = kept;
    }
  for (std::size_t p = 0; p < count; ++p)
    surplus[parts[p].second] +=
        std::popcount(parts[p].first & outside) - std::popcount(parts[p].first & inside);
}

Surplus surplus_of(const BitRows& pairs, std::int64_t first_key, const std::vector<Term>& terms) {
  Surplus all(std::size_t{1} << terms.size());
  struct Part {
    Surplus surplus;
    std::vector<BitBuffer> buffers;
  };
  const std::int64_t words = words_for(pairs.columns);
  for_panels(
      pairs, 20 * static_cast<double>(terms.size() + 1), true,
      [&] {
        return Part{Surplus(all.size()), std::vector<BitBuffer>(terms.size())};
      },
      [&](Part& part, std::int64_t begin, std::int64_t end) {
        std::vector<BitRows> rows;
        for (std::size_t t = 0; t < terms.size(); ++t) {
          rows.push_back(part.buffers[t].rows(end - begin, pairs.columns));
          terms[t].mask.node().fill({begin, end, 0, pairs.columns}, rows.back());
        }
        std::array<Word, kMostTerms> of_terms;
        for (std::int64_t q = begin; q < end; ++q)
          for (std::int64_t w = first_key / 64; w < words; ++w) {
            const Word here = low_bits(std::min<std::int64_t>(64, pairs.columns - 64 * w)) &
                              ~low_bits(std::max<std::int64_t>(0, first_key - 64 * w));
            if (here == 0) continue;
            for (std::size_t t = 0; t < terms.size(); ++t) of_terms[t] = rows[t].row(q - begin)[w];
            const Word inside = pairs.row(q)[w] & here;
            count_word(here & ~inside, inside, {of_terms.data(), terms.size()}, part.surplus);
          }
      },
      [&](const Part& part) {
        for (std::size_t n = 0; n < all.size(); ++n) all[n] += part.surplus[n];
      });
  // Sums over the subsets of each set.
  for (std::size_t bit = 1; bit < all.size(); bit *= 2)
    for (std::size_t set = 0; set < all.size(); ++set)
      if ((set & bit) != 0) all[set] += all[set ^ bit];
  return all;
}

// Appends an operand to an expression.
void join(IdentifiedMask& to, char by, const Term& term, std::int64_t terms = 1) {
  to.mask = by == '&' ? to.mask & term.mask : to.mask | term.mask;
  to.text += fmt::format(" {} {}", by, term.text);
  to.arrays.insert(to.arrays.end(), term.arrays.begin(), term.arrays.end());
  to.terms += terms;
}

// The most and the fewest of some terms whose intersection is nearest to the pairs from a key on.
IdentifiedMask nearest(const BitRows& pairs, std::int64_t first_key, const std::vector<Term>& terms) {
  constexpr int kMostJoined = 4;
  const Surplus surplus = surplus_of(pairs, first_key, terms);
  const std::int64_t inside = (pairs.rows * (pairs.columns - first_key) - surplus.back()) / 2;
  struct Choice {
    std::int64_t differing;
    int terms;
    std::size_t length, set;
    bool operator<(const Choice& o) const {
      return std::tie(differing, terms, length, set) < std::tie(o.differing, o.terms, o.length, o.set);
    }
  };
  std::optional<Choice> best;
  for (std::size_t set = 0; set < surplus.size(); ++set) {
    const int count = std::popcount(set);
    Choice choice{inside + surplus[surplus.size() - 1 - set], std::max(count, 1), 0, set};
    if (count > kMostJoined || (best && choice.differing > best->differing)) continue;
    for (std::size_t t = 0; t < terms.size(); ++t)
      if ((set >> t & 1u) != 0) choice.length += terms[t].text.size() + 3;
    if (!best || choice < *best) best = choice;
  }
  IdentifiedMask found{full_mask(pairs.rows, pairs.columns), "full", {}, 1, 0};
  for (std::size_t t = 0, count = 0; t < terms.size(); ++t) {
    if ((best->set >> t & 1u) == 0) continue;
    if (count++ > 0)
      join(found, '&', terms[t]);
    else
      found = {terms[t].mask, terms[t].text, terms[t].arrays, 1, 0};
  }
  found.pairs_differ = best->differing;
  return found;
}

// The candidates: enclosing terms, and the blocks that are whole within none, one or all of these.
std::vector<Term> candidates(const BitRows& shape, const PairCounts& counts, const BitRows& pairs, Ends ends,
                             const Mask& among) {
  constexpr std::int64_t kFewPairs = 256;  // a term may mask one pair of this number
  std::vector<Term> terms = enclosing_terms(shape, counts, ends);
  terms.resize(std::min(terms.size(), kMostTerms - 1), terms.front());
  std::vector<Mask> within{among};
  Mask all = among;
  for (const Term& term : terms) {
    within.push_back(among & term.mask);
    const auto lost = count_bits(shape, term.mask, [](Word a, Word b) { return a & ~b; });
    if (lost * kFewPairs <= counts.all) all = all & term.mask;
  }
  within.push_back(all);
  std::optional<std::pair<std::int64_t, Term>> blocks;
  for (const Mask& mask : within)
    if (const auto found = blocks_term(shape, mask, pairs, all, ends)) {
      const std::int64_t differing = count_differing(shape, mask & found->mask);
      if (!blocks || differing < blocks->first) blocks.emplace(differing, *found);
      if (differing == 0) break;
    }
  if (blocks) terms.push_back(blocks->second);
  return terms;
}

class Search {
 public:
  explicit Search(const BitRows& pairs) : pairs_(pairs) {}

  bool is_exact() const { return best_ && best_->pairs_differ == 0; }
  IdentifiedMask take() { return std::move(*best_); }

  /// Expressions whose terms enclose `shape`, the pairs or most of them.
  void add(const BitRows& shape, Ends ends) {
    const PairCounts counts(shape);
    const std::vector<Term> terms =
        candidates(shape, counts, pairs_, ends, full_mask(pairs_.rows, pairs_.columns));
    offer(nearest(pairs_, 0, terms));
    add_prefixes(shape, counts, ends);
    if (is_short()) return;
    const Term everything{"", full_mask(pairs_.rows, pairs_.columns)};
    add_segments(shape, everything);
    for (const Term& term : terms)
      if (term.text.starts_with("documents")) add_segments(shape, term);
  }

 private:
  // Whether no other form is shorter.
  bool is_short() const { return is_exact() && best_->terms <= 2; }

  void offer(IdentifiedMask found) {
    const auto key = [](const IdentifiedMask& of) {
      return std::tuple(of.pairs_differ, of.terms, of.text.size());
    };
    if (!best_ || key(found) < key(*best_)) best_ = std::move(found);
  }

  // The first keys that all queries attend to, or all within the causal edge.
  void add_prefixes(const BitRows& shape, const PairCounts& counts, Ends ends) {
    const std::int64_t edge = ends == Ends::steep ? counts.steep_high : counts.high;
    std::int64_t whole = 0, causal = 0;
    const auto has = [&](std::int64_t key, std::int64_t masked) {
      return key < pairs_.columns && counts.keys[static_cast<std::size_t>(key)] >= pairs_.rows - masked;
    };
    while (has(whole, 0)) ++whole;
    while (has(causal, std::clamp<std::int64_t>(causal - edge, 0, pairs_.rows))) ++causal;
    if (whole > 0 && whole < pairs_.columns && !is_short())
      add_behind(shape, ends, whole, prefix_term(pairs_.rows, pairs_.columns, whole), 1);
    if (causal <= whole || causal >= pairs_.columns || is_short()) return;
    Term both = band_term(pairs_.rows, pairs_.columns, {std::nullopt, edge});
    const Term prefix = prefix_term(pairs_.rows, pairs_.columns, causal);
    both.text += " & " + prefix.text, both.mask = both.mask & prefix.mask;
    add_behind(shape, ends, causal, both, 2);
  }

  // X | prefix: X is compared from the key on that the prefix ends at.
  void add_behind(const BitRows& shape, Ends ends, std::int64_t first_key, const Term& prefix,
                  std::int64_t terms) {
    BitBuffer buffer;
    const BitRows rest = buffer.rows(shape.rows, shape.columns);
    std::copy_n(shape.words, shape.rows * shape.row_words, rest.words);
    for (std::int64_t q = 0; q < rest.rows; ++q) {
      std::fill_n(rest.row(q), first_key / 64, Word{0});
      rest.row(q)[first_key / 64] &= ~low_bits(first_key % 64);
    }
    const Mask among = ~prefix_mask(shape.rows, shape.columns, first_key);
    IdentifiedMask found =
        nearest(pairs_, first_key, candidates(rest, PairCounts(rest), pairs_, ends, among));
    join(found, '|', prefix, terms);
    offer_counted(std::move(found));
  }

  void offer_counted(IdentifiedMask found) {
    found.pairs_differ = count_differing(pairs_, found.mask);
    offer(std::move(found));
  }

  // X | segments: X is the largest band that has no pair outside of the mask, within documents or not.
  void add_segments(const BitRows& shape, const Term& within) {
    BitBuffer buffer;
    const BitRows rest = buffer.rows(shape.rows, shape.columns);
    const auto fill = [&](const Mask& mask, bool is_missing) {
      mask.node().fill({0, shape.rows, 0, shape.columns}, rest);
      for (std::int64_t n = 0; n < rest.rows * rest.row_words; ++n)
        rest.words[n] = is_missing ? rest.words[n] & ~shape.words[n] : ~rest.words[n] & shape.words[n];
      return PairCounts(rest);
    };
    within.mask.node().fill({0, shape.rows, 0, shape.columns}, rest);
    const std::vector<std::int64_t> of = PairCounts(rest).diagonals,
                                    missing = fill(within.mask, true).diagonals;
    const std::int64_t count = std::ssize(of);
    std::int64_t best_begin = 0, best_end = 0, most = 0;
    for (std::int64_t begin = 0, end = 0; begin < count; begin = end + 1) {
      std::int64_t pairs = 0;
      for (end = begin; end < count && missing[static_cast<std::size_t>(end)] == 0; ++end)
        pairs += of[static_cast<std::size_t>(end)];
      if (pairs > most) best_begin = begin, best_end = end, most = pairs;
    }
    if (most == 0 || (best_begin == 0 && best_end == count)) return;
    Diagonals band;
    if (best_begin > 0) band.low = best_begin - (shape.rows - 1);
    if (best_end < count) band.high = best_end - shape.rows;
    const Term base = band_term(shape.rows, shape.columns, band);
    IdentifiedMask found{base.mask, base.text, {}, 1, 0};
    if (!within.text.empty()) join(found, '&', within);
    fill(found.mask, false);
    for (const bool is_one : {true, false}) {
      if (is_one && shape.rows != shape.columns) continue;
      const auto segments = segments_term(rest, is_one, 1);
      if (!segments) continue;
      IdentifiedMask with = found;
      join(with, '|', *segments);
      offer_counted(std::move(with));
    }
  }

  const BitRows& pairs_;
  std::optional<IdentifiedMask> best_;
};

}  // namespace

std::string IdentifiedMask::expression(
    const std::function<std::string(const std::string& name)>& reference) const {
  std::string out = text;
  for (const auto& array : arrays) {
    const std::string name = "@" + array->name();
    out.replace(out.find(name), name.size(), reference(array->name()));
  }
  return out;
}

IdentifiedMask identify_mask(const Mask& of) {
  BitBuffer own, other;
  const BitRows pairs = filled(of, own);
  Search search(pairs);
  search.add(pairs, Ends::all_pairs);
  for (const Kept kept : {Kept::squares, Kept::corners})
    if (!search.is_exact()) search.add(without_isolated(pairs, kept, other), Ends::steep);
  return search.take();
}

std::int64_t identify_mask_bytes(std::int64_t q_length, std::int64_t kv_length) {
  constexpr std::int64_t kBitMatrices = 3, kBytesAToken = 400;
  return kBitMatrices * q_length * words_for(kv_length) * 8 + kBytesAToken * (q_length + kv_length) +
         (std::int64_t{16} << 20);
}

std::vector<DifferingPair> differing_pairs(const Mask& first, const Mask& second, std::int64_t most) {
  std::vector<DifferingPair> all;
  BitBuffer a, b;
  const std::int64_t queries = first.q_length(), keys = first.kv_length();
  for (std::int64_t q = 0; q < queries && std::ssize(all) < most; ++q) {
    const BitRows one = a.rows(1, keys), two = b.rows(1, keys);
    first.node().fill({q, q + 1, 0, keys}, one);
    second.node().fill({q, q + 1, 0, keys}, two);
    for (std::int64_t w = 0; w < words_for(keys); ++w)
      for (Word differs = one.words[w] ^ two.words[w]; differs != 0 && std::ssize(all) < most;
           differs &= differs - 1) {
        const int bit = std::countr_zero(differs);
        all.push_back({q, 64 * w + bit, (one.words[w] >> bit & 1u) != 0});
      }
  }
  return all;
}

}  // namespace ejk
