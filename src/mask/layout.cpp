// The index arrays of a MaskInfo, from the states of its blocks: what to fetch next, shrinking. Each is made in
// the type that it is to have, and in forward without its empty blocks: memory that is touched for the first
// time costs more than all else here. Cost: two passes over the blocks, in parallel.
//
// tests: tests/mask/test_mask_info.cpp
#include "mask/layout.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "core/parallel.hpp"
#include "mask/node.hpp"

namespace ejk::mask {

namespace {

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

// f(T{}) with the type that an array of indices has.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int8:
      return f(std::int8_t{});
    case DType::int16:
      return f(std::int16_t{});
    default:
      return f(std::int32_t{});
  }
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
  template <class T>
  T* target(Array& array, std::int64_t l) const {
    return reinterpret_cast<T*>(array.data()) + row(l) * layout.grid() + at(l);
  }
};

// Where the non-empty blocks of a grid go. A line is a row (forward) or a column (dkv) of blocks of one query
// shard; the most blocks that any line of a shard keeps is the shard's extent, the widest extent the new
// axis.
struct Shrink {
  const Layout& layout;
  const std::uint8_t* states;         // of the first row of the arrays; the others are alike
  std::vector<std::int64_t> kept;     // blocks a line keeps, by shard and line
  std::vector<std::int64_t> extents;  // by shard, at least 1
  std::int64_t widest = 1;

  Shrink(const Layout& l, const std::uint8_t* s) : layout(l), states(s) {
    kept.resize(static_cast<std::size_t>(layout.q_shards * lines()));
    extents.assign(static_cast<std::size_t>(layout.q_shards), 1);
    for (std::int64_t i = 0; i < layout.q_blocks; ++i) {
      const std::uint8_t* line = states + i * layout.kv_blocks;
      std::int64_t& extent = extents[static_cast<std::size_t>(i / layout.q_blocks_per_shard())];
      if (forward()) {
        const std::int64_t some = layout.kv_blocks - std::count(line, line + layout.kv_blocks, 0);
        extent = std::max(extent, kept[line_of(i, 0)] = some);
        continue;
      }
      for (std::int64_t j = 0; j < layout.kv_blocks; ++j)
        if (line[j] != 0) extent = std::max(extent, ++kept[line_of(i, j)]);
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

// A line of an array, left-aligned without its empty blocks, in row of blocks i.
template <class T>
void shrink_line(const Shrink& plan, std::int64_t i, const T* line, Extend extend, T* row) {
  const std::uint8_t* states = plan.states + i * plan.layout.kv_blocks;
  std::int64_t n = 0;
  for (std::int64_t j = 0; j < plan.layout.kv_blocks; ++j)
    if (states[j] != 0) row[n++] = line[j];
  const std::int64_t extent = plan.extents[static_cast<std::size_t>(i / plan.layout.q_blocks_per_shard())];
  if (extend == Extend::last) std::fill(row + extent, row + plan.widest, row[extent - 1]);
}

// With a plan to shrink there is one row of the arrays for each head, all alike.
void fill_forward(const Slab& slab, const Shrink* shrink) {
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
    // make(to) makes the line of an array.
    const auto fill = [&](Array& array, Extend extend, auto&& make) {
      with_type(array.dtype(), [&]<class T>(T) {
        if (shrink == nullptr) return make(slab.template target<T>(array, l));
        std::vector<T> line(static_cast<std::size_t>(width));
        make(line.data());
        const std::int64_t i = slab.first_block + slab.local(l);
        shrink_line(
            *shrink, i, line.data(), extend,
            reinterpret_cast<T*>(array.data()) + (slab.row(l) * slab.layout.q_blocks + i) * shrink->widest);
      });
    };
    fill(slab.out.block_mask, Extend::zeros, [&]<class T>(T* to) {
      for (std::int64_t j = 0; j < width; ++j) to[j] = static_cast<T>(states[j]);
    });
    fill(slab.out.data_next, Extend::last, [&]<class T>(T* to) {
      std::int32_t next = data_carry[static_cast<std::size_t>(l)];
      for (std::int64_t j = width; j-- > 0;) {
        next = states[j] != 0 ? static_cast<std::int32_t>(j) : next;
        to[j] = static_cast<T>(next);
      }
    });
    if (!masks) return;
    fill(slab.out.mask_next, Extend::last, [&]<class T>(T* to) {
      const std::int32_t* patterns = slab.patterns(l);
      std::int32_t next = mask_carry[static_cast<std::size_t>(l)];
      for (std::int64_t j = width; j-- > 0;) {
        next = states[j] == kPartial ? patterns[j] : next;
        to[j] = static_cast<T>(next);
      }
    });
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
      const auto here = static_cast<std::int32_t>(slab.local(l));
      const auto fill = [&](Array& array, auto&& make) {
        with_type(array.dtype(), [&]<class T>(T) { make(slab.template target<T>(array, l)); });
      };
      fill(slab.out.block_mask, [&]<class T>(T* to) {
        for (std::int64_t j = begin; j < end; ++j) to[j] = static_cast<T>(states[j]);
      });
      fill(slab.out.data_next, [&]<class T>(T* to) {
        for (std::int64_t j = begin; j < end; ++j) {
          std::int32_t& next = data_next[static_cast<std::size_t>(j)];
          next = states[j] != 0 ? here : next;
          to[j] = static_cast<T>(next);
        }
      });
      if (!masks) continue;
      const std::int32_t* patterns = slab.patterns(l);
      fill(slab.out.mask_next, [&]<class T>(T* to) {
        for (std::int64_t j = begin; j < end; ++j) {
          std::int32_t& next = mask_next[static_cast<std::size_t>(j)];
          next = states[j] == kPartial ? patterns[j] : next;
          to[j] = static_cast<T>(next);
        }
      });
    }
  });
}

// Bottom-aligned in each column of blocks, within the extent of the shard.
template <class T>
void shrink_dkv(const Shrink& plan, const T* from, Extend extend, T* to) {
  const std::int64_t width = plan.layout.kv_blocks, per_shard = plan.layout.q_blocks_per_shard();
  core::parallel_for(plan.layout.q_shards, plan.work(), [&](std::int64_t shard) {
    const std::int64_t extent = plan.extents[static_cast<std::size_t>(shard)];
    T* top = to + shard * plan.widest * width;
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

// The other rows are like the first one.
void shrink_dkv(const Shrink& plan, Extend extend, Array& array) {
  if (array.size() == 0) return;
  Array fresh(array.dtype(), plan.shape());
  with_type(array.dtype(), [&]<class T>(T) {
    for (std::int64_t r = 0; r < plan.layout.rows; ++r)
      shrink_dkv(plan, reinterpret_cast<const T*>(array.data()) + r * plan.layout.grid(), extend,
                 reinterpret_cast<T*>(fresh.data()) + r * (fresh.size() / plan.layout.rows));
  });
  array = std::move(fresh);
}

// What data_next holds at the most: the last coordinate of a block that is not empty. Else it holds zeros.
std::int64_t largest_coordinate(const Layout& layout, const std::vector<const std::uint8_t*>& grids) {
  const std::int64_t width = layout.kv_blocks;
  std::int64_t largest = 0;
  for (const std::uint8_t* grid : grids)
    for (std::int64_t i = 0; i < layout.q_blocks; ++i) {
      const std::uint8_t* states = grid + i * width;
      const std::int64_t here = i % layout.q_blocks_per_shard();
      if (layout.direction == Direction::dkv) {
        if (here > largest && std::any_of(states, states + width, [](auto s) { return s != 0; }))
          largest = here;
        continue;
      }
      for (std::int64_t j = width; j-- > largest + 1;)
        if (states[j] != 0) largest = j;
    }
  return largest;
}

std::uint8_t largest_state(const Layout& layout, const std::vector<const std::uint8_t*>& grids) {
  std::uint8_t largest = 0;
  for (const std::uint8_t* grid : grids)
    largest = std::max(largest, *std::max_element(grid, grid + layout.grid()));
  return largest;
}

// The states that there are: many rows may have the same.
std::vector<const std::uint8_t*> distinct_grids(const std::vector<RowGrid>& rows) {
  std::vector<const std::uint8_t*> grids;
  for (const RowGrid& row : rows) grids.push_back(row.states);
  std::sort(grids.begin(), grids.end(), std::less<>());
  grids.erase(std::unique(grids.begin(), grids.end()), grids.end());
  return grids;
}

}  // namespace

IndexArrays index_arrays(const Layout& layout, const std::vector<RowGrid>& rows, std::int64_t patterns,
                         Empty empty, const std::function<DType(std::int64_t)>& dtype_of) {
  std::optional<Shrink> shrink;
  if (empty == Empty::left_out) shrink.emplace(layout, rows.front().states);
  const bool in_place = shrink && shrink->forward();
  const Shape shape = in_place ? shrink->shape() : Shape{layout.rows, layout.q_blocks, layout.kv_blocks};
  const std::vector<const std::uint8_t*> grids = distinct_grids(rows);
  IndexArrays arrays;
  arrays.data_next = Array(dtype_of(largest_coordinate(layout, grids)), shape);
  arrays.block_mask = Array(dtype_of(largest_state(layout, grids)), shape);
  if (patterns > 0) arrays.mask_next = Array(dtype_of(patterns - 1), shape);
  for (std::int64_t s = 0; s < layout.head_shards; ++s)
    for (std::int64_t t = 0; t < layout.q_shards; ++t) {
      const Slab slab{layout, rows, arrays, s * layout.rows_per_shard(), t * layout.q_blocks_per_shard()};
      if (layout.direction == Direction::forward)
        fill_forward(slab, in_place ? &*shrink : nullptr);
      else
        fill_dkv(slab);
    }
  if (shrink && !in_place) {
    shrink_dkv(*shrink, Extend::last, arrays.data_next);
    shrink_dkv(*shrink, Extend::last, arrays.mask_next);
    shrink_dkv(*shrink, Extend::zeros, arrays.block_mask);
  }
  return arrays;
}

DType narrowest(std::int64_t largest) {
  return largest <= INT8_MAX ? DType::int8 : largest <= INT16_MAX ? DType::int16 : DType::int32;
}

Array narrowed(Array array, DType dtype) {
  const auto as = [&]<class T>(std::type_identity<T>) {
    Array narrow(dtype, array.shape());
    const auto* from = reinterpret_cast<const std::int32_t*>(array.data());
    T* to = reinterpret_cast<T*>(narrow.data());
    for (std::int64_t i = 0; i < array.size(); ++i) to[i] = static_cast<T>(from[i]);
    return narrow;
  };
  if (dtype == DType::int8) return as(std::type_identity<std::int8_t>{});
  if (dtype == DType::int16) return as(std::type_identity<std::int16_t>{});
  return array;
}

}  // namespace ejk::mask
