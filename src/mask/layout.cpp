// The index arrays of a MaskInfo, from the states of its blocks: what to fetch next, shrinking, narrowing. Cost: two
// passes over the blocks, in parallel.
//
// tests: tests/mask/test_mask_info.cpp
#include "mask/layout.hpp"

#include <algorithm>

#include "core/parallel.hpp"

namespace ejk::mask {

namespace {

constexpr std::uint8_t kPartial = 1;

// The look-ahead of a position is the value of the first block that counts at or after it. It is worked out
// backwards, from what follows the end: first all but the wrap-around, by one value a line (a line is a row
// of blocks in forward, a column in dkv), then within the lines, in parallel.
constexpr std::int32_t kNone = -1;

// The value that line l starts with from behind: that of the first counting block after it, of the slab's
// first one past the last line, of none 0.
std::vector<std::int32_t> carries(const std::vector<std::int32_t>& first_of_line) {
  const auto first =
      std::find_if(first_of_line.begin(), first_of_line.end(), [](auto v) { return v != kNone; });
  std::int32_t carry = first == first_of_line.end() ? 0 : *first;
  std::vector<std::int32_t> result(first_of_line.size());
  for (std::size_t l = first_of_line.size(); l-- > 0;) {
    result[l] = carry;
    if (first_of_line[l] != kNone) carry = first_of_line[l];
  }
  return result;
}

struct Slab {
  const Layout& layout;
  const std::vector<RowGrid>& rows;
  IndexArrays& out;
  std::int64_t first_row;
  std::int64_t first_block;  // of the query shard

  std::int64_t lines() const { return layout.rows_per_shard() * layout.q_blocks_per_shard(); }
  double work() const { return 2 * static_cast<double>(lines()) * static_cast<double>(layout.kv_blocks); }
  // Line l: row of the arrays, row of blocks within the shard.
  std::int64_t row(std::int64_t l) const { return first_row + l / layout.q_blocks_per_shard(); }
  std::int64_t local(std::int64_t l) const { return l % layout.q_blocks_per_shard(); }
  std::int64_t at(std::int64_t l) const { return (first_block + local(l)) * layout.kv_blocks; }
  const std::uint8_t* states(std::int64_t l) const {
    return rows[static_cast<std::size_t>(row(l))].states + at(l);
  }
  const std::int32_t* patterns(std::int64_t l) const {
    const std::int32_t* p = rows[static_cast<std::size_t>(row(l))].patterns;
    return p == nullptr ? nullptr : p + at(l);
  }
  std::int32_t* target(Array& array, std::int64_t l) const {
    return reinterpret_cast<std::int32_t*>(array.data()) + row(l) * layout.grid() + at(l);
  }
};

void fill_forward(const Slab& slab) {
  const std::int64_t width = slab.layout.kv_blocks;
  const bool masks = slab.out.mask_next.size() > 0;
  const auto lines = static_cast<std::size_t>(slab.lines());
  std::vector<std::int32_t> first_data(lines, kNone), first_mask(lines, kNone);
  core::parallel_for(slab.lines(), slab.work(), [&](std::int64_t l) {
    const std::uint8_t* states = slab.states(l);
    const std::uint8_t* end = states + width;
    const auto* some = std::find_if(states, end, [](auto s) { return s != 0; });
    if (some != end) first_data[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(some - states);
    const auto* partial = masks ? std::find(some, end, kPartial) : end;
    if (partial != end) first_mask[static_cast<std::size_t>(l)] = slab.patterns(l)[partial - states];
  });
  const auto data_carry = carries(first_data), mask_carry = carries(first_mask);
  core::parallel_for(slab.lines(), slab.work(), [&](std::int64_t l) {
    const std::uint8_t* states = slab.states(l);
    std::int32_t* block = slab.target(slab.out.block_mask, l);
    std::int32_t* data = slab.target(slab.out.data_next, l);
    std::int32_t next = data_carry[static_cast<std::size_t>(l)];
    for (std::int64_t j = width; j-- > 0;) {
      block[j] = states[j];
      next = states[j] != 0 ? static_cast<std::int32_t>(j) : next;
      data[j] = next;
    }
    if (!masks) return;
    const std::int32_t* patterns = slab.patterns(l);
    std::int32_t* mask = slab.target(slab.out.mask_next, l);
    next = mask_carry[static_cast<std::size_t>(l)];
    for (std::int64_t j = width; j-- > 0;) {
      next = states[j] == kPartial ? patterns[j] : next;
      mask[j] = next;
    }
  });
}

// The lines are columns here, but memory runs along rows: columns are done side by side, a tile at a time.
void fill_dkv(const Slab& slab) {
  constexpr std::int64_t kTile = 256;
  const std::int64_t width = slab.layout.kv_blocks, lines = slab.lines();
  const std::int64_t tiles = (width + kTile - 1) / kTile;
  const bool masks = slab.out.mask_next.size() > 0;
  std::vector<std::int32_t> first_data(static_cast<std::size_t>(width), kNone), first_mask = first_data;
  core::parallel_for(tiles, slab.work(), [&](std::int64_t tile) {
    const std::int64_t begin = tile * kTile, end = std::min(width, begin + kTile);
    for (std::int64_t l = lines; l-- > 0;) {
      const std::uint8_t* states = slab.states(l);
      const std::int32_t* patterns = slab.patterns(l);
      for (std::int64_t j = begin; j < end; ++j) {
        if (states[j] != 0)
          first_data[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(slab.local(l));
        if (masks && states[j] == kPartial) first_mask[static_cast<std::size_t>(j)] = patterns[j];
      }
    }
  });
  std::vector<std::int32_t> data_next = carries(first_data), mask_next = carries(first_mask);
  core::parallel_for(tiles, slab.work(), [&](std::int64_t tile) {
    const std::int64_t begin = tile * kTile, end = std::min(width, begin + kTile);
    for (std::int64_t l = lines; l-- > 0;) {
      const std::uint8_t* states = slab.states(l);
      std::int32_t* block = slab.target(slab.out.block_mask, l);
      std::int32_t* data = slab.target(slab.out.data_next, l);
      const auto here = static_cast<std::int32_t>(slab.local(l));
      for (std::int64_t j = begin; j < end; ++j) {
        std::int32_t& next = data_next[static_cast<std::size_t>(j)];
        block[j] = states[j];
        next = states[j] != 0 ? here : next;
        data[j] = next;
      }
      if (!masks) continue;
      const std::int32_t* patterns = slab.patterns(l);
      std::int32_t* mask = slab.target(slab.out.mask_next, l);
      for (std::int64_t j = begin; j < end; ++j) {
        std::int32_t& next = mask_next[static_cast<std::size_t>(j)];
        next = states[j] == kPartial ? patterns[j] : next;
        mask[j] = next;
      }
    }
  });
}

std::int32_t* ints(Array& a) { return reinterpret_cast<std::int32_t*>(a.data()); }

// Where the non-empty blocks of a grid go. A line is a row (forward) or a column (dkv) of blocks of one query
// shard; the most blocks that any line of a shard keeps is the shard's extent, the widest extent the new
// axis.
struct Shrink {
  const Layout& layout;
  const std::int32_t* states;         // of the first row of the arrays; the others are alike
  std::vector<std::int64_t> kept;     // blocks a line keeps, by shard and line
  std::vector<std::int64_t> extents;  // by shard, at least 1
  std::int64_t widest = 1;

  Shrink(const Layout& l, const std::int32_t* s) : layout(l), states(s) {
    kept.resize(static_cast<std::size_t>(layout.q_shards * lines()));
    extents.assign(static_cast<std::size_t>(layout.q_shards), 1);
    for (std::int64_t i = 0; i < layout.q_blocks; ++i)
      for (std::int64_t j = 0; j < layout.kv_blocks; ++j)
        if (states[i * layout.kv_blocks + j] != 0) {
          std::int64_t& extent = extents[static_cast<std::size_t>(i / layout.q_blocks_per_shard())];
          extent = std::max(extent, ++kept[line_of(i, j)]);
        }
    widest = *std::max_element(extents.begin(), extents.end());
  }

  bool forward() const { return layout.direction == Direction::forward; }
  double work() const { return 2 * static_cast<double>(layout.grid()); }
  std::int64_t lines() const { return forward() ? layout.q_blocks_per_shard() : layout.kv_blocks; }
  std::size_t line_of(std::int64_t i, std::int64_t j) const {
    const std::int64_t per_shard = layout.q_blocks_per_shard();
    return static_cast<std::size_t>(i / per_shard * lines() + (forward() ? i % per_shard : j));
  }
  Shape shape() const {
    return forward() ? Shape{layout.rows, layout.q_blocks, widest}
                     : Shape{layout.rows, layout.q_shards * widest, layout.kv_blocks};
  }
};

// What fills a shard up to the widest: zeros, or its own last column (row).
enum class Extend { zeros, last };

// Left-aligned in each row of blocks.
void shrink_forward(const Shrink& plan, const std::int32_t* from, Extend extend, std::int32_t* to) {
  const std::int64_t width = plan.layout.kv_blocks;
  core::parallel_for(plan.layout.q_blocks, plan.work(), [&](std::int64_t i) {
    const std::int64_t extent = plan.extents[static_cast<std::size_t>(i / plan.layout.q_blocks_per_shard())];
    std::int32_t* row = to + i * plan.widest;
    for (std::int64_t j = 0, n = 0; j < width; ++j)
      if (plan.states[i * width + j] != 0) row[n++] = from[i * width + j];
    if (extend == Extend::last) std::fill(row + extent, row + plan.widest, row[extent - 1]);
  });
}

// Bottom-aligned in each column of blocks, within the extent of the shard.
void shrink_dkv(const Shrink& plan, const std::int32_t* from, Extend extend, std::int32_t* to) {
  const std::int64_t width = plan.layout.kv_blocks, per_shard = plan.layout.q_blocks_per_shard();
  core::parallel_for(plan.layout.q_shards, plan.work(), [&](std::int64_t shard) {
    const std::int64_t extent = plan.extents[static_cast<std::size_t>(shard)];
    std::int32_t* top = to + shard * plan.widest * width;
    std::vector<std::int64_t> place(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j < width; ++j)
      place[static_cast<std::size_t>(j)] = extent - plan.kept[plan.line_of(shard * per_shard, j)];
    for (std::int64_t i = shard * per_shard; i < (shard + 1) * per_shard; ++i)
      for (std::int64_t j = 0; j < width; ++j)
        if (plan.states[i * width + j] != 0)
          top[place[static_cast<std::size_t>(j)]++ * width + j] = from[i * width + j];
    if (extend == Extend::last)
      for (std::int64_t n = extent; n < plan.widest; ++n)
        std::copy_n(top + (extent - 1) * width, width, top + n * width);
  });
}

}  // namespace

IndexArrays index_arrays(const Layout& layout, const std::vector<RowGrid>& rows) {
  const Shape shape{layout.rows, layout.q_blocks, layout.kv_blocks};
  IndexArrays arrays;
  arrays.data_next = Array(DType::int32, shape);
  arrays.block_mask = Array(DType::int32, shape);
  if (rows.front().patterns != nullptr) arrays.mask_next = Array(DType::int32, shape);
  for (std::int64_t s = 0; s < layout.head_shards; ++s)
    for (std::int64_t t = 0; t < layout.q_shards; ++t) {
      const Slab slab{layout, rows, arrays, s * layout.rows_per_shard(), t * layout.q_blocks_per_shard()};
      layout.direction == Direction::forward ? fill_forward(slab) : fill_dkv(slab);
    }
  return arrays;
}

IndexArrays shrunk(const Layout& layout, IndexArrays arrays) {
  const Shrink plan(layout, ints(arrays.block_mask));
  const auto apply = [&](Array& array, Extend extend) {
    if (array.size() == 0) return;
    Array fresh(DType::int32, plan.shape());
    for (std::int64_t r = 0; r < layout.rows; ++r) {
      const std::int32_t* from = ints(array) + r * layout.grid();
      std::int32_t* to = ints(fresh) + r * (fresh.size() / layout.rows);
      plan.forward() ? shrink_forward(plan, from, extend, to) : shrink_dkv(plan, from, extend, to);
    }
    array = std::move(fresh);
  };
  apply(arrays.data_next, Extend::last);
  apply(arrays.mask_next, Extend::last);
  apply(arrays.block_mask, Extend::zeros);  // last: the plan looks at it
  return arrays;
}

std::int64_t largest_value(const Array& array) {
  std::int32_t largest = 0;
  for (const std::int32_t v : array.elements<std::int32_t>()) largest = std::max(largest, v);
  return largest;
}

DType narrowest(std::int64_t largest) {
  return largest <= INT8_MAX ? DType::int8 : largest <= INT16_MAX ? DType::int16 : DType::int32;
}

Array narrowed(Array array, DType dtype) {
  const auto as = [&]<class T>(std::type_identity<T>) {
    Array narrow(dtype, array.shape());
    const std::int32_t* from = ints(array);
    T* to = reinterpret_cast<T*>(narrow.data());
    for (std::int64_t i = 0; i < array.size(); ++i) to[i] = static_cast<T>(from[i]);
    return narrow;
  };
  if (dtype == DType::int8) return as(std::type_identity<std::int8_t>{});
  if (dtype == DType::int16) return as(std::type_identity<std::int16_t>{});
  return array;
}

}  // namespace ejk::mask
