// What the kernels of other libraries compute from stored block metadata, by loops over their arrays.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>

#include "ejk/mask_layouts.hpp"
#include "support/random_mask.hpp"

namespace plain {

/// The integers of an array with their shape.
struct Stored {
  ejk::DType dtype = ejk::DType::int32;
  ejk::Shape shape;
  std::vector<std::int64_t> values;

  std::int64_t at(std::initializer_list<std::int64_t> index) const {
    std::int64_t flat = 0;
    std::size_t d = 0;
    for (const std::int64_t i : index) flat = flat * shape[d++] + i;
    return values.at(static_cast<std::size_t>(flat));
  }
};
using StoredArrays = std::map<std::string, Stored>;

/// The layouts with a loop here: all but jax, whose loops are in tests/blocks/test_mask_info.cpp.
inline constexpr auto kLoopedLayouts = std::span(ejk::kMaskLayouts).subspan(1);

inline StoredArrays stored(const ejk::MaskArrays& made) {
  StoredArrays arrays;
  for (const ejk::MaskArray& array : made.arrays) {
    Stored& of = arrays[array.name];
    of.dtype = array.elements->dtype(), of.shape = array.elements->shape();
    const ejk::Array all = read_all(*array.elements);
    ejk::dispatch(of.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T>)
        of.values.assign(all.elements<T>().begin(), all.elements<T>().end());
    });
  }
  return arrays;
}

inline ejk::ArrayGroup group_of(const StoredArrays& arrays) {
  ejk::ArrayGroup group{"m.npz", {}, {}};
  for (const auto& named : arrays) {
    const Stored& of = named.second;
    ejk::Array array(of.dtype, of.shape);
    ejk::dispatch(of.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T>)
        for (std::size_t i = 0; i < of.values.size(); ++i)
          array.elements<T>()[i] = static_cast<T>(of.values[i]);
    });
    group.arrays[named.first] = ejk::make_source(std::move(array), named.first);
  }
  return group;
}
inline ejk::ArrayGroup group_of(const ejk::MaskArrays& made) { return group_of(stored(made)); }

/// How often each pair of the grid of whole blocks is computed, for each head and walk; and the order of the
/// rows where a kernel depends on it. Nothing where an index is out of range.
using Computed = std::optional<std::vector<std::int64_t>>;

struct PlainCase {
  ejk::MaskLayoutSettings settings;
  ejk::BlockShape block;
  std::int64_t q = 0, kv = 0;
  std::vector<Pair> heads;
  std::vector<std::int64_t> q_sizes, kv_sizes;  // of flashinfer_variable
  std::vector<std::int64_t> cu_q, cu_kv;        // of fa4 with packed sequences

  std::int64_t rows() const { return (q + block.q - 1) / block.q; }
  std::int64_t columns() const { return (kv + block.kv - 1) / block.kv; }
  bool wanted(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return i < q && j < kv &&
           heads[static_cast<std::size_t>(head)].elements[static_cast<std::size_t>(i * kv + j)];
  }
};

class PairCounts {
 public:
  PairCounts(const PlainCase& of, std::int64_t masks)
      : of_(of),
        width_(of.columns() * of.block.kv),
        area_(of.rows() * of.block.q * width_),
        counts_(static_cast<std::size_t>(masks * area_)) {}

  template <class Element>
  bool block(std::int64_t mask, std::int64_t i, std::int64_t j, Element&& is_in) {
    if (i < 0 || j < 0 || i >= of_.rows() || j >= of_.columns()) return false;
    twice_ += !visited_.insert({mask, i, j}).second;
    for (std::int64_t r = 0; r < of_.block.q; ++r)
      for (std::int64_t c = 0; c < of_.block.kv; ++c)
        if (is_in(r, c)) pair(mask, i * of_.block.q + r, j * of_.block.kv + c);
    return true;
  }
  /// Of a full block a kernel computes the pairs of the mask's lengths.
  bool full(std::int64_t mask, std::int64_t i, std::int64_t j) {
    return block(mask, i, j, [&](auto r, auto c) {
      return i * of_.block.q + r < of_.q && j * of_.block.kv + c < of_.kv;
    });
  }
  void pair(std::int64_t mask, std::int64_t q, std::int64_t k) {
    ++counts_[static_cast<std::size_t>(mask * area_ + q * width_ + k)];
  }
  void note(std::int64_t value) { counts_.push_back(value); }
  /// Also the number of blocks that are visited again.
  std::vector<std::int64_t> take() && {
    counts_.push_back(twice_);
    return std::move(counts_);
  }

 private:
  const PlainCase& of_;
  std::int64_t width_, area_;
  std::vector<std::int64_t> counts_;
  std::set<std::array<std::int64_t, 3>> visited_;
  std::int64_t twice_ = 0;
};

// Lists of FlexAttention and FlashAttention-4. `ids`: the patterns of partial blocks; without, of the mask.
inline bool count_lists(const PlainCase& of, const StoredArrays& a, const std::string& count,
                        const std::string& list, bool is_full, bool by_columns, std::int64_t first_mask,
                        bool has_ids, PairCounts& into) {
  const Stored &n = a.at(count), &entries = a.at(list);
  for (std::int64_t h = 0; h < n.shape[1]; ++h)
    for (std::int64_t line = 0; line < n.shape[2]; ++line) {
      const std::int64_t most = n.at({0, h, line});
      if (most < 0 || most > entries.shape[3]) return false;
      for (std::int64_t t = 0; t < most; ++t) {
        const std::int64_t e = entries.at({0, h, line, t}), i = by_columns ? e : line,
                           j = by_columns ? line : e;
        if (is_full) {
          if (!into.full(first_mask + h, i, j)) return false;
          continue;
        }
        if (!has_ids) {
          const auto in_mask = [&](std::int64_t r, std::int64_t c) {
            return of.wanted(h, i * of.block.q + r, j * of.block.kv + c);
          };
          if (!into.block(first_mask + h, i, j, in_mask)) return false;
          continue;
        }
        const std::int64_t id = a.at("partial_block_ids").at({0, h, line, t});
        const Stored& patterns = a.at("partial_mask_blocks");
        if (id < 0 || id >= patterns.shape[0]) return false;
        if (!into.block(first_mask + h, i, j, [&](auto r, auto c) { return patterns.at({id, r, c}) != 0; }))
          return false;
      }
    }
  return true;
}

/// Head, whether it is full, query block and key block of each entry of a BlockMask below the counts.
inline std::set<std::array<std::int64_t, 4>> listed_blocks(const StoredArrays& a, bool by_columns) {
  std::set<std::array<std::int64_t, 4>> blocks;
  for (const bool full : {false, true}) {
    const std::string name = std::string(full ? "full_" : "") + (by_columns ? "q" : "kv");
    if (!a.contains(name + "_indices")) continue;
    const Stored &n = a.at(name + "_num_blocks"), &entries = a.at(name + "_indices");
    for (std::int64_t h = 0; h < n.shape[1]; ++h)
      for (std::int64_t line = 0; line < n.shape[2]; ++line)
        for (std::int64_t t = 0; t < std::min(n.at({0, h, line}), entries.shape[3]); ++t) {
          const std::int64_t e = entries.at({0, h, line, t});
          blocks.insert({h, full, by_columns ? e : line, by_columns ? line : e});
        }
  }
  return blocks;
}

inline Computed computed_flex(const PlainCase& of, const StoredArrays& a) {
  const std::int64_t heads = a.at("kv_num_blocks").shape[1];
  PairCounts counts(of, 2 * heads);
  const bool ids = a.contains("partial_block_ids");
  counts.note(listed_blocks(a, false) == listed_blocks(a, true));
  if (!count_lists(of, a, "kv_num_blocks", "kv_indices", false, false, 0, ids, counts) ||
      !count_lists(of, a, "full_kv_num_blocks", "full_kv_indices", true, false, 0, ids, counts) ||
      !count_lists(of, a, "q_num_blocks", "q_indices", false, true, heads, false, counts) ||
      !count_lists(of, a, "full_q_num_blocks", "full_q_indices", true, true, heads, false, counts))
    return std::nullopt;
  return std::move(counts).take();
}

inline Computed computed_fa4(const PlainCase& of, const StoredArrays& a) {
  const bool dkv = a.at("dkv").values[0] != 0, ids = a.contains("partial_block_ids");
  PairCounts counts(of, a.at("mask_block_cnt").shape[1]);
  if (!count_lists(of, a, "mask_block_cnt", "mask_block_idx", false, dkv, 0, ids, counts) ||
      !count_lists(of, a, "full_block_cnt", "full_block_idx", true, dkv, 0, ids, counts))
    return std::nullopt;
  return std::move(counts).take();
}

inline Computed computed_varlen(const PlainCase& of, const StoredArrays& a) {
  const Stored& n = a.at("mask_block_cnt");
  const std::int64_t heads = n.shape[0], rows = n.shape[1], all = a.at("mask_block_idx").shape[1];
  PairCounts counts(of, heads);
  std::set<std::array<std::int64_t, 4>> visited;
  std::int64_t twice = 0;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::size_t s = 0; s + 1 < of.cu_q.size(); ++s) {
      const std::int64_t queries = of.cu_q[s + 1] - of.cu_q[s], keys = of.cu_kv[s + 1] - of.cu_kv[s],
                         n_blocks = (keys + of.block.kv - 1) / of.block.kv;
      for (std::int64_t m = 0; m * of.block.q < queries; ++m)
        for (const bool is_full : {false, true}) {
          const std::int64_t first = a.at("cu_total_m_blocks").values[s];
          if (first < 0 || first > rows || first + m >= rows) return std::nullopt;
          const Stored& entries = a.at(is_full ? "full_block_idx" : "mask_block_idx");
          const std::int64_t count = a.at(is_full ? "full_block_cnt" : "mask_block_cnt").at({h, first + m});
          if (count < 0 || count > n_blocks) return std::nullopt;
          const std::int64_t offset = a.at("cu_block_idx_offsets").values[s];
          for (std::int64_t t = 0; t < count; ++t) {
            if (offset < 0 || offset > all || offset + m * n_blocks + t >= all) return std::nullopt;
            const std::int64_t at = offset + m * n_blocks + t, j = entries.at({h, at});
            if (j < 0 || j >= n_blocks) return std::nullopt;
            const bool has_ids = a.contains("partial_block_ids");  // else a kernel computes the elements
            const std::int64_t id = is_full || !has_ids ? 0 : a.at("partial_block_ids").at({h, at});
            if (!is_full && has_ids && (id < 0 || id >= a.at("partial_mask_blocks").shape[0]))
              return std::nullopt;
            twice += !visited.insert({h, static_cast<std::int64_t>(s), m, j}).second;
            for (std::int64_t r = 0; r < of.block.q && m * of.block.q + r < queries; ++r)
              for (std::int64_t c = 0; c < of.block.kv && j * of.block.kv + c < keys; ++c) {
                const std::int64_t q = of.cu_q[s] + m * of.block.q + r, k = of.cu_kv[s] + j * of.block.kv + c;
                if (is_full ||
                    (has_ids ? a.at("partial_mask_blocks").at({id, r, c}) != 0 : of.wanted(h, q, k)))
                  counts.pair(h, q, k);
              }
          }
        }
    }
  counts.note(twice);
  return std::move(counts).take();
}

inline Computed computed_tokamax(const PlainCase& of, const StoredArrays& a) {
  PairCounts counts(of, 1);
  const ejk::MaskLayoutSettings& how = of.settings;
  const bool dkv = how.direction == ejk::Direction::dkv;
  if (!a.contains("block_mask")) {
    for (std::int64_t i = 0; i < of.rows(); ++i)
      for (std::int64_t j = 0; j < of.columns(); ++j) counts.full(0, i, j);
    return std::move(counts).take();
  }
  const Stored& states = a.at("block_mask");
  const std::int64_t shards = how.q_seq_shards * how.kv_seq_shards,
                     length = std::ssize(states.values) / shards;
  const std::int64_t q_here = of.rows() / how.q_seq_shards, kv_here = of.columns() / how.kv_seq_shards;
  const std::int64_t rows = dkv ? kv_here : q_here, columns = dkv ? q_here : kv_here;
  for (std::int64_t s = 0; s < shards; ++s) {
    const std::int64_t n = a.contains("num_active_blocks") ? a.at("num_active_blocks").at({s}) : length;
    if (n < 0 || n > length) return std::nullopt;
    bool has_partial = false;
    for (std::int64_t t = 0; t < n; ++t) has_partial = has_partial || states.at({s * length + t}) == 1;
    std::set<std::int64_t> begun;
    std::int64_t last = -1;
    bool in_order = true;
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t at = s * length + t;
      std::int64_t row = t / columns, column = t % columns;
      if (a.contains("active_rows"))
        row = a.at("active_rows").at({at}), column = a.at("active_cols").at({at});
      if (row < 0 || row >= rows || column < 0 || column >= columns) return std::nullopt;
      if (row != last && !begun.insert(row).second) in_order = false;
      last = row;
      const std::int64_t state = states.at({at});
      if (state < 0 || state > 2) return std::nullopt;
      std::int64_t pattern = 0;
      if (a.contains("mask_next")) {
        pattern = a.at("mask_next").at({at});
        const std::int64_t most = a.at("partial_mask_blocks").shape[0];
        if (pattern >= most || pattern < -1 || (pattern == -1 && has_partial)) return std::nullopt;
      } else if (state == 1) {
        return std::nullopt;
      }
      const std::int64_t i = s / how.kv_seq_shards * q_here + (dkv ? column : row),
                         j = s % how.kv_seq_shards * kv_here + (dkv ? row : column);
      // Only the kernel of dK and dV skips a listed block of state 0.
      if (state == 2 || (state == 0 && !dkv && a.contains("active_rows")))
        counts.block(0, i, j, [](auto, auto) { return true; });
      if (state == 1)
        counts.block(0, i, j, [&](auto r, auto c) {
          const Stored& patterns = a.at("partial_mask_blocks");
          return (dkv ? patterns.at({pattern, c, r}) : patterns.at({pattern, r, c})) != 0;
        });
    }
    counts.note(in_order);
    if (dkv && a.contains("active_rows")) counts.note(std::ssize(begun));
  }
  return std::move(counts).take();
}

inline Computed computed_rows(const PlainCase& of, const StoredArrays& a) {
  PairCounts counts(of, 1);
  const std::vector<std::int64_t>&indptr = a.at("indptr").values, &indices = a.at("indices").values;
  if (indptr.front() != 0 || indptr.back() != std::ssize(indices)) return std::nullopt;
  std::int64_t byte = 0;
  for (std::int64_t i = 0; i < of.rows(); ++i) {
    const std::int64_t begin = indptr[static_cast<std::size_t>(i)],
                       end = indptr[static_cast<std::size_t>(i) + 1];
    if (begin < 0 || begin > end || end > std::ssize(indices)) return std::nullopt;
    const std::int64_t keys = (end - begin) * of.block.kv,
                       queries = std::min(of.block.q, of.q - i * of.block.q);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t j = indices[static_cast<std::size_t>(t)];
      bool is_inside = true;
      if (a.contains("data")) {
        is_inside = counts.block(0, i, j, [&](auto r, auto c) { return a.at("data").at({t, r, c}) != 0; });
      } else if (a.contains("packed_mask")) {
        const std::vector<std::int64_t>& packed = a.at("packed_mask").values;
        is_inside = counts.block(0, i, j, [&](auto r, auto c) {
          const std::int64_t bit = r * keys + (t - begin) * of.block.kv + c;
          const auto at = static_cast<std::size_t>(byte + bit / 8);
          return r < queries && at < packed.size() && (packed[at] >> (bit % 8) & 1) != 0;
        });
      } else {
        is_inside = counts.full(0, i, j);
      }
      if (!is_inside) return std::nullopt;
    }
    byte += (queries * keys + 7) / 8;
  }
  if (a.contains("packed_mask") && byte != std::ssize(a.at("packed_mask").values)) return std::nullopt;
  return std::move(counts).take();
}

inline Computed computed_variable(const PlainCase& of, const StoredArrays& a) {
  const Stored &map = a.at("block_mask_map"), &rows = a.at("block_row_sz"), &columns = a.at("block_col_sz");
  PairCounts counts(of, map.shape[0]);
  // The tokens of all heads are one sequence, in which every head has as many.
  for (std::int64_t h = 0; h < map.shape[0]; ++h) {
    std::int64_t q = 0, k = 0;
    for (std::int64_t i = 0; i < map.shape[1]; ++i) {
      const std::int64_t queries = rows.at({h, i});
      if (queries < 0 || queries > of.q - q) return std::nullopt;
      k = 0;
      for (std::int64_t j = 0; j < map.shape[2]; ++j) {
        const std::int64_t keys = columns.at({h, j});
        if (keys < 0 || keys > of.kv - k) return std::nullopt;
        for (std::int64_t n = 0; map.at({h, i, j}) != 0 && n < queries * keys; ++n)
          counts.pair(h, q + n / keys, k + n % keys);
        k += keys;
      }
      q += queries;
    }
    if (q != of.q || k != of.kv) return std::nullopt;
  }
  return std::move(counts).take();
}

inline Computed computed_flashmask(const PlainCase& of, const StoredArrays& a) {
  const Stored& rows = a.at("startend_row_indices");
  const bool causal = a.at("causal").values[0] != 0;
  PairCounts counts(of, rows.shape[1]);
  for (std::int64_t h = 0; h < rows.shape[1]; ++h)
    for (std::int64_t k = 0; k < of.kv; ++k)
      for (std::int64_t q = 0; q < of.q; ++q) {
        const auto s = [&](std::int64_t n) { return rows.at({0, h, k, n}); };
        const std::int64_t n = rows.shape[3];
        bool hidden = causal && q < k;
        if (n == 1) hidden = hidden || q >= s(0);
        if (n == 2 && causal) hidden = hidden || (q >= s(0) && q < s(1));
        if (n == 2 && !causal) hidden = q >= s(0) || q < s(1);
        if (n == 4) hidden = (q >= s(0) && q < s(1)) || (q >= s(2) && q < s(3));
        if (!hidden) counts.pair(h, q, k);
      }
  return std::move(counts).take();
}

inline Computed computed_magi(const PlainCase& of, const StoredArrays& a) {
  PairCounts counts(of, 1);
  const Stored &qs = a.at("q_ranges"), &ks = a.at("k_ranges"), &types = a.at("attn_type_map");
  for (std::int64_t n = 0; n < qs.shape[0]; ++n) {
    const std::int64_t q0 = qs.at({n, 0}), q1 = qs.at({n, 1}), k0 = ks.at({n, 0}), k1 = ks.at({n, 1}),
                       type = types.at({n});
    if (q0 < 0 || q1 < q0 || q1 > of.q || k0 < 0 || k1 < k0 || k1 > of.kv || type < 0 || type > 3)
      return std::nullopt;
    for (std::int64_t q = q0; q < q1; ++q)
      for (std::int64_t k = k0; k < k1; ++k) {
        const bool causal = k - k0 <= q - q0 + (k1 - k0) - (q1 - q0), inverse = k - k0 >= q - q0;
        if ((type != 1 && type != 3 ? true : causal) && (type < 2 || inverse)) counts.pair(0, q, k);
      }
  }
  return std::move(counts).take();
}

inline Computed computed(const PlainCase& of, const StoredArrays& arrays) {
  using enum ejk::MaskLayout;
  switch (of.settings.layout) {
    case jax:
      break;
    case tokamax:
      return computed_tokamax(of, arrays);
    case flex:
      return computed_flex(of, arrays);
    case fa4:
      return of.cu_q.empty() ? computed_fa4(of, arrays) : computed_varlen(of, arrays);
    case bsr:
    case flashinfer:
      return computed_rows(of, arrays);
    case flashinfer_variable:
      return computed_variable(of, arrays);
    case flashmask:
      return computed_flashmask(of, arrays);
    case magi:
      return computed_magi(of, arrays);
  }
  return std::nullopt;
}

inline std::vector<std::int64_t> random_sizes(Random& random, std::int64_t length) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = length; left > 0; left -= sizes.back())
    sizes.push_back(between(random, 0, std::min<std::int64_t>(left, 40)));
  return sizes;
}

/// All True or all False in blocks of the case's sizes.
inline Pair random_cells(Random& random, const PlainCase& c) {
  std::vector<std::uint8_t> elements(static_cast<std::size_t>(c.q * c.kv));
  std::int64_t q = 0;
  for (const std::int64_t queries : c.q_sizes) {
    std::int64_t k = 0;
    for (const std::int64_t keys : c.kv_sizes) {
      const bool seen = between(random, 0, 1) == 1;
      for (std::int64_t i = q; i < q + queries; ++i) std::fill_n(elements.begin() + i * c.kv + k, keys, seen);
      k += keys;
    }
    q += queries;
  }
  return {array_mask(ejk::make_source(array_of(c.q, c.kv, elements))), elements};
}

/// Without pairs of two sequences.
inline Pair random_in_sequences(Random& random, const PlainCase& c) {
  Pair of = random_mask(random, c.q, c.kv, 2);
  std::vector<std::uint8_t> elements(of.elements.size());
  for (std::size_t s = 0; s + 1 < c.cu_q.size(); ++s)
    for (std::int64_t q = c.cu_q[s]; q < c.cu_q[s + 1]; ++q)
      for (std::int64_t k = c.cu_kv[s]; k < c.cu_kv[s + 1]; ++k)
        elements[static_cast<std::size_t>(q * c.kv + k)] =
            of.elements[static_cast<std::size_t>(q * c.kv + k)];
  return {array_mask(ejk::make_source(array_of(c.q, c.kv, elements))), elements};
}

/// Heads of one mask or several where the layout has heads, lengths that blocks may not divide.
inline PlainCase random_case(Random& random, ejk::MaskLayout layout) {
  using enum ejk::MaskLayout;
  PlainCase c;
  ejk::MaskLayoutSettings& how = c.settings;
  how.layout = layout;
  if (layout == tokamax || layout == fa4)
    how.direction = between(random, 0, 1) ? ejk::Direction::dkv : ejk::Direction::forward;
  how.computable = false;
  how.pad = layout != tokamax || between(random, 0, 1) == 1;
  how.downcast = between(random, 0, 1) == 1;
  c.block = {between(random, 1, 12), between(random, 1, 70)};
  if (layout == tokamax) {
    how.q_seq_shards = between(random, 1, 2), how.kv_seq_shards = between(random, 1, 2);
    how.shrink_grid = between(random, 0, 2) != 0;
    how.dynamic = between(random, 0, 2) == 0;
    if (how.dynamic) how.q_seq_shards = how.kv_seq_shards = 1, how.shrink_grid = true;
  }
  c.q = how.q_seq_shards * between(random, 1, 3) * c.block.q;
  c.kv = how.kv_seq_shards * between(random, 1, 3) * c.block.kv;
  if (how.pad) c.q -= between(random, 0, c.block.q - 1), c.kv -= between(random, 0, c.block.kv - 1);
  const bool has_heads =
      layout == flex || layout == fa4 || layout == flashmask || layout == flashinfer_variable;
  if (layout == fa4 && how.direction == ejk::Direction::forward && between(random, 0, 1)) {
    c.cu_q = c.cu_kv = {0};
    const std::int64_t sequences = between(random, 1, 4);
    for (std::int64_t s = 1; s <= sequences; ++s) {
      c.cu_q.push_back(s < sequences ? between(random, c.cu_q.back(), c.q) : c.q);
      c.cu_kv.push_back(s < sequences ? between(random, c.cu_kv.back(), c.kv) : c.kv);
    }
  }
  if (layout == flashinfer_variable)
    c.q_sizes = random_sizes(random, c.q), c.kv_sizes = random_sizes(random, c.kv);
  const auto head = [&] {
    if (!c.cu_q.empty() && between(random, 0, 3) != 0) return random_in_sequences(random, c);
    return layout == flashinfer_variable && between(random, 0, 3) != 0 ? random_cells(random, c)
                                                                       : random_mask(random, c.q, c.kv, 2);
  };
  c.heads.push_back(head());
  for (std::int64_t h = between(random, 0, 2); h > 0; --h)
    c.heads.push_back(has_heads && between(random, 0, 1) ? head() : c.heads.front());
  return c;
}

inline ejk::MaskArrays arrays_of(const PlainCase& c) {
  std::vector<ejk::Mask> heads;
  for (const Pair& head : c.heads) heads.push_back(head.mask);
  ejk::MaskLayoutSettings how = c.settings;
  if (!c.cu_q.empty()) how.cu_seqlens_q = c.cu_q, how.cu_seqlens_k = c.cu_kv;
  if (!c.q_sizes.empty()) how.q_sizes = c.q_sizes, how.kv_sizes = c.kv_sizes;
  return make_mask_arrays(heads, c.block, how);
}

/// What the mask has: each pair of the first `masks` heads once.
inline std::vector<std::int64_t> pairs_of(const PlainCase& c, std::int64_t masks) {
  PairCounts counts(c, masks);
  for (std::int64_t h = 0; h < masks; ++h)
    for (std::int64_t q = 0; q < c.q; ++q)
      for (std::int64_t k = 0; k < c.kv; ++k)
        if (c.wanted(h, q, k)) counts.pair(h, q, k);
  return std::move(counts).take();
}

}  // namespace plain
