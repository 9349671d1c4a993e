// Masks evaluated element by element from their definitions, the reference of lazy evaluation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ejk/mask.hpp"

namespace plain {

/// A mask of the library and the same mask as a table.
struct Pair {
  ejk::Mask mask;
  std::vector<std::uint8_t> elements;  // (q, kv)
};

using Random = std::mt19937_64;

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

template <class F>
std::vector<std::uint8_t> table(std::int64_t q, std::int64_t kv, F&& f) {
  std::vector<std::uint8_t> elements;
  for (std::int64_t i = 0; i < q; ++i)
    for (std::int64_t j = 0; j < kv; ++j) elements.push_back(f(i, j) ? 1 : 0);
  return elements;
}

/// The elements of a mask as it reads them.
inline std::vector<std::uint8_t> elements_of(const ejk::Mask& mask) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(mask.q_length() * mask.kv_length()));
  mask.read(0, mask.q_length(), 0, mask.kv_length(), reinterpret_cast<bool*>(out.data()));
  return out;
}

inline bool same_ranges(const std::vector<ejk::IndexRange>& a, const std::vector<ejk::IndexRange>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.begin == y.begin && x.end == y.end; });
}

inline ejk::Array array_of(std::int64_t q, std::int64_t kv, const std::vector<std::uint8_t>& elements) {
  ejk::Array a(ejk::DType::boolean, {q, kv});
  std::copy(elements.begin(), elements.end(), reinterpret_cast<std::uint8_t*>(a.data()));
  return a;
}

inline std::vector<std::int64_t> random_ids(Random& random, std::int64_t n) {
  std::vector<std::int64_t> ids;
  const std::int64_t kinds = between(random, 1, 5);
  const bool sorted = between(random, 0, 1) == 1;
  while (static_cast<std::int64_t>(ids.size()) < n) {
    const std::int64_t id = sorted ? (ids.empty() ? 1 : ids.back() + 1) : between(random, -1, kinds);
    for (std::int64_t run = between(random, 1, 20); run > 0 && static_cast<std::int64_t>(ids.size()) < n;
         --run)
      ids.push_back(id);
  }
  return ids;
}

inline Pair random_mask(Random& random, std::int64_t q, std::int64_t kv, int depth);

/// Keys of queries, a tree, or another mask at other positions.
inline Pair random_sparse_mask(Random& random, std::int64_t q, std::int64_t kv, int depth) {
  using namespace ejk;
  const std::int64_t kind = between(random, kv < q ? 1 : 0, 2);
  if (kind == 0) {
    std::vector<std::int64_t> parents;
    for (std::int64_t node = 0; node < q; ++node) parents.push_back(between(random, -1, node - 1));
    return {tree_mask(parents, kv - q), table(q, kv, [&](auto i, auto j) {
              bool is_seen = j < kv - q;
              for (std::int64_t node = i; node >= 0; node = parents[static_cast<std::size_t>(node)])
                is_seen = is_seen || j == kv - q + node;
              return is_seen;
            })};
  }
  if (kind == 1) {
    const std::int64_t n = between(random, 1, kv);
    std::vector<std::int64_t> all;
    std::vector<std::uint8_t> elements(static_cast<std::size_t>(q * kv));
    for (std::int64_t i = 0; i < q; ++i) {
      std::vector<std::int64_t> keys(static_cast<std::size_t>(kv));
      for (std::int64_t j = 0; j < kv; ++j) keys[static_cast<std::size_t>(j)] = j;
      std::shuffle(keys.begin(), keys.end(), random);
      for (std::int64_t j = 0; j < n; ++j) {
        const bool is_key = between(random, 0, 5) != 0;
        const std::int64_t key = keys[static_cast<std::size_t>(j)];
        all.push_back(is_key ? key : -1);
        if (is_key) elements[static_cast<std::size_t>(i * kv + key)] = 1;
      }
    }
    return {indices_mask(make_source(Array::from<std::int64_t>({q, n}, all), "keys"), kv),
            std::move(elements)};
  }
  const std::int64_t of_q = between(random, 1, 2 * q), of_kv = between(random, 1, 2 * kv);
  Pair of = random_mask(random, of_q, of_kv, depth - 1);
  std::vector<std::int64_t> at_q, at_k;
  while (std::ssize(at_q) < q)
    for (std::int64_t p = between(random, 0, of_q - 1), run = between(random, 1, 9);
         run > 0 && p < of_q && std::ssize(at_q) < q; --run)
      at_q.push_back(p++);
  while (std::ssize(at_k) < kv)
    for (std::int64_t p = between(random, 0, of_kv - 1), run = between(random, 1, 40);
         run > 0 && p < of_kv && std::ssize(at_k) < kv; --run)
      at_k.push_back(p++);
  return {positions_mask(of.mask, at_q, at_k), table(q, kv, [&](auto i, auto j) {
            return of.elements[static_cast<std::size_t>(at_q[static_cast<std::size_t>(i)] * of_kv +
                                                        at_k[static_cast<std::size_t>(j)])] != 0;
          })};
}

/// A random expression of at most `depth` operators.
inline Pair random_mask(Random& random, std::int64_t q, std::int64_t kv, int depth) {
  using namespace ejk;
  if (depth > 0 && between(random, 0, 7) == 0) return random_sparse_mask(random, q, kv, depth);
  switch (between(random, 0, depth > 0 ? 12 : 9)) {
    case 0:
      return {full_mask(q, kv), table(q, kv, [](auto, auto) { return true; })};
    case 1: {
      const std::int64_t offset = between(random, -kv - 2, kv + 2);
      return {causal_mask(q, kv, offset), table(q, kv, [&](auto i, auto j) { return i + offset >= j; })};
    }
    case 2: {
      const std::int64_t left = between(random, 0, 20), right = between(random, 0, 20),
                         offset = between(random, -30, 30);
      const bool no_left = between(random, 0, 3) == 0, no_right = between(random, 0, 3) == 0;
      return {local_mask(q, kv, no_left ? std::nullopt : std::optional(left),
                         no_right ? std::nullopt : std::optional(right), offset),
              table(q, kv, [&](auto i, auto j) {
                return (no_left || i + offset - left <= j) && (no_right || j <= i + offset + right);
              })};
    }
    case 3: {
      const std::int64_t chunk = between(random, 1, 40),
                         offset = between(random, -1, 1) * between(random, 0, kv + 2);
      return {chunked_mask(q, kv, chunk, offset), table(q, kv, [&](auto i, auto j) {
                return i + offset >= j && (i + offset) / chunk == j / chunk;  // j >= 0: i + offset is, too
              })};
    }
    case 4: {
      const auto a = random_ids(random, q), b = random_ids(random, kv);
      const auto qs = make_source(Array::from<std::int64_t>({q}, a), "q"),
                 ks = make_source(Array::from<std::int64_t>({kv}, b), "k");
      return {segments_mask(*qs, *ks), table(q, kv, [&](auto i, auto j) {
                const auto x = a[static_cast<std::size_t>(i)], y = b[static_cast<std::size_t>(j)];
                return x == y && x > 0;
              })};
    }
    case 5:
    case 6: {
      // Blocky elements, so that empty and full blocks occur.
      const std::int64_t cell = between(random, 1, 30);
      std::vector<std::uint8_t> cells(static_cast<std::size_t>(80 * 80));
      for (auto& c : cells) c = static_cast<std::uint8_t>(between(random, 0, 1));
      auto elements = table(q, kv, [&](auto i, auto j) {
        return cells[static_cast<std::size_t>(i / cell % 80 * 80 + j / cell % 80)] != 0;
      });
      return {array_mask(make_source(array_of(q, kv, elements))), elements};
    }
    case 7: {
      // Documents have as many queries as keys.
      std::vector<std::int64_t> cu{0}, document;
      const std::int64_t tokens = std::max(q, kv);
      while (cu.back() < tokens) cu.push_back(std::min(tokens, cu.back() + between(random, 0, 30)));
      for (std::size_t d = 1; d < cu.size(); ++d)
        document.resize(static_cast<std::size_t>(cu[d]), static_cast<std::int64_t>(d));
      if (q != kv) return random_mask(random, q, kv, 0);
      const auto source =
          make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(cu.size())}, cu), "cu");
      return {documents_mask(*source), table(q, kv, [&](auto i, auto j) {
                return document[static_cast<std::size_t>(i)] == document[static_cast<std::size_t>(j)];
              })};
    }
    case 8: {
      const std::int64_t keys = between(random, 0, kv + 2);
      return {prefix_mask(q, kv, keys), table(q, kv, [&](auto, auto j) { return j < keys; })};
    }
    case 9: {
      const BlockShape block{between(random, 1, 40), between(random, 1, 40)};
      const std::int64_t rows = (q + block.q - 1) / block.q, columns = (kv + block.kv - 1) / block.kv;
      const auto blocks = table(rows, columns, [&](auto, auto) { return between(random, 0, 2) != 0; });
      return {blocks_mask(make_source(array_of(rows, columns, blocks)), block, q, kv),
              table(q, kv, [&](auto i, auto j) {
                return blocks[static_cast<std::size_t>(i / block.q * columns + j / block.kv)] != 0;
              })};
    }
    case 10: {
      Pair a = random_mask(random, q, kv, depth - 1);
      for (auto& e : a.elements) e ^= 1;
      return {~a.mask, a.elements};
    }
    default: {
      Pair a = random_mask(random, q, kv, depth - 1);
      const Pair b = random_mask(random, q, kv, depth - 1);
      const bool both = between(random, 0, 1) == 1;
      for (std::size_t i = 0; i < a.elements.size(); ++i)
        a.elements[i] = both ? a.elements[i] & b.elements[i] : a.elements[i] | b.elements[i];
      return {both ? a.mask & b.mask : a.mask | b.mask, a.elements};
    }
  }
}

/// A mask so wide that a stripe that is scanned at once is a few blocks: segments in a band.
inline ejk::Mask wide_mask(Random& random) {
  constexpr std::int64_t kQueries = 300, kKeys = std::int64_t{1} << 21;
  std::vector<std::int64_t> q_ids(kQueries), kv_ids(kKeys);
  for (std::int64_t& id : q_ids) id = between(random, 1, 4);
  for (std::size_t k = 0; k < kv_ids.size(); ++k) kv_ids[k] = static_cast<std::int64_t>(k >> 14) % 5;
  const auto source = [](const std::vector<std::int64_t>& ids, const char* name) {
    return ejk::make_source(ejk::Array::from<std::int64_t>({std::ssize(ids)}, ids), name);
  };
  return ejk::segments_mask(*source(q_ids, "q"), *source(kv_ids, "k")) &
         ejk::local_mask(kQueries, kKeys, 60'000, 60'000, 200'000);
}

}  // namespace plain
