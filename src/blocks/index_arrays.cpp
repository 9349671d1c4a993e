// Index arrays of a MaskInfo: look-ahead and shrinking. Each array is written once, in its final type and
// shape, since page faults of new memory dominate the time. Cost: two parallel passes over the stored states.
// tests: tests/blocks/test_mask_info.cpp
#include "blocks/index_arrays.hpp"

#include <algorithm>
#include <optional>

#include "core/parallel.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

using mask::kPartial;

// Look-ahead of a position: the value of the next counting block in walk order, wrapping at the end of a
// slab. Computed backwards: carries of lines (block rows in forward, block columns in dkv), then all lines.
constexpr std::int32_t kNone = -1;

// The carry into line l: the value of the first counting block after it, wrapping; 0 if there is none.
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
  double work;               // nanoseconds of a pass

  std::int64_t lines() const { return layout.rows_per_shard() * layout.q_blocks_per_shard(); }
  std::int64_t row(std::int64_t l) const { return first_row + l / layout.q_blocks_per_shard(); }
  std::int64_t local(std::int64_t l) const { return l % layout.q_blocks_per_shard(); }
  std::int64_t block(std::int64_t l) const { return first_block + local(l); }
  const RowGrid& grid(std::int64_t l) const { return rows[static_cast<std::size_t>(row(l))]; }
  // The columns that may be non-empty, their states, and their pattern ids.
  IndexRange run(std::int64_t l) const { return grid(l).states->run(block(l)); }
  const std::uint8_t* states(std::int64_t l) const { return grid(l).states->states(block(l)).data(); }
  const std::int32_t* patterns(std::int64_t l) const {
    return grid(l).patterns == nullptr ? nullptr : grid(l).patterns + grid(l).states->begin_of(block(l));
  }
  template <class T>
  T* target(Array& array, std::int64_t l) const {
    return reinterpret_cast<T*>(array.data()) + row(l) * layout.grid() + block(l) * layout.kv_blocks;
  }
};

// Shrunk positions of non-empty blocks. The extent of a query shard is the largest number of blocks of any of
// its lines; the widest extent is the new axis.
struct Shrink {
  const Layout& layout;
  const BlockStates& states;
  std::vector<std::int64_t> extents;  // by shard, at least 1
  std::int64_t widest = 1;

  Shrink(const Layout& l, const BlockStates& s) : layout(l), states(s) {
    extents.assign(static_cast<std::size_t>(layout.q_shards), 1);
    std::vector<std::int64_t> kept(static_cast<std::size_t>(layout.kv_blocks));  // of columns, in a shard
    for (std::int64_t i = 0; i < layout.q_blocks; ++i) {
      std::int64_t& extent = extents[static_cast<std::size_t>(i / layout.q_blocks_per_shard())];
      if (i % layout.q_blocks_per_shard() == 0) std::fill(kept.begin(), kept.end(), 0);
      std::int64_t of_row = 0;
      auto j = static_cast<std::size_t>(states.run(i).begin);
      for (const std::uint8_t state : states.states(i)) {
        of_row += state != 0;
        kept[j] += state != 0;
        if (!forward()) extent = std::max(extent, kept[j]);
        ++j;
      }
      if (forward()) extent = std::max(extent, of_row);
    }
    widest = *std::max_element(extents.begin(), extents.end());
  }

  bool forward() const { return layout.direction == Direction::forward; }
  std::int64_t extent(std::int64_t block) const {
    return extents[static_cast<std::size_t>(block / layout.q_blocks_per_shard())];
  }
  Shape shape() const {
    return forward() ? Shape{layout.rows, layout.q_blocks, widest}
                     : Shape{layout.rows, layout.q_shards * widest, layout.kv_blocks};
  }
};

// Extension of a shard to the widest: by zeros, or by its last column (row).
enum class Extend { zeros, last };

void fill_forward(const Slab& slab, const Shrink* shrink) {
  const std::int64_t width = slab.layout.kv_blocks;
  const bool masks = slab.out.mask_next.size() > 0;
  const auto lines = static_cast<std::size_t>(slab.lines());
  std::vector<std::int32_t> first_data(lines, kNone), first_mask(lines, kNone);
  core::parallel_for(slab.lines(), slab.work, [&](std::int64_t l) {
    const auto [begin, last] = slab.run(l);
    const std::uint8_t* states = slab.states(l);
    const std::uint8_t* end = states + (last - begin);
    const auto* some = std::find_if(states, end, [](auto s) { return s != 0; });
    if (some != end)
      first_data[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(begin + (some - states));
    const auto* partial = masks ? std::find(some, end, kPartial) : end;
    if (partial != end) first_mask[static_cast<std::size_t>(l)] = slab.patterns(l)[partial - states];
  });
  const auto data_carry = carries(first_data), mask_carry = carries(first_mask);
  core::parallel_for(slab.lines(), slab.work, [&](std::int64_t l) {
    const IndexRange run = slab.run(l);
    const std::int64_t length = run.count();
    const std::uint8_t* states = slab.states(l);
    // make(to) writes the range of a line, which `after` follows, and returns the value before it.
    const auto fill = [&](Array& array, std::int32_t after, Extend extend, auto&& make) {
      with_type(array.dtype(), [&]<class T>(T) {
        if (shrink == nullptr) {
          T* to = slab.template target<T>(array, l);
          std::fill(to, to + run.begin, static_cast<T>(make(to + run.begin)));
          std::fill(to + run.end, to + width, static_cast<T>(after));
          return;
        }
        std::vector<T> line(static_cast<std::size_t>(length));
        make(line.data());
        const std::int64_t i = slab.block(l), extent = shrink->extent(i);
        T* to =
            reinterpret_cast<T*>(array.data()) + (slab.row(l) * slab.layout.q_blocks + i) * shrink->widest;
        std::int64_t n = 0;
        for (std::int64_t k = 0; k < length; ++k)
          if (states[k] != 0) to[n++] = line[static_cast<std::size_t>(k)];
        if (extend == Extend::last) std::fill(to + extent, to + shrink->widest, to[extent - 1]);
      });
    };
    fill(slab.out.block_mask, 0, Extend::zeros, [&]<class T>(T* to) {
      for (std::int64_t k = 0; k < length; ++k) to[k] = static_cast<T>(states[k]);
      return 0;
    });
    const std::int32_t data_after = data_carry[static_cast<std::size_t>(l)];
    fill(slab.out.data_next, data_after, Extend::last, [&]<class T>(T* to) {
      std::int32_t next = data_after;
      for (std::int64_t k = length; k-- > 0;) {
        next = states[k] != 0 ? static_cast<std::int32_t>(run.begin + k) : next;
        to[k] = static_cast<T>(next);
      }
      return next;
    });
    if (!masks) return;
    const std::int32_t mask_after = mask_carry[static_cast<std::size_t>(l)];
    fill(slab.out.mask_next, mask_after, Extend::last, [&]<class T>(T* to) {
      const std::int32_t* patterns = slab.patterns(l);
      std::int32_t next = mask_after;
      for (std::int64_t k = length; k-- > 0;) {
        next = states[k] == kPartial ? patterns[k] : next;
        to[k] = static_cast<T>(next);
      }
      return next;
    });
  });
}

// Lines are columns, and memory is row-major: columns are processed side by side, a tile at a time. Shrunk
// columns are at the bottom of the shard's extent.
void fill_dkv(const Slab& slab, const Shrink* shrink) {
  constexpr std::int64_t kTile = 256;
  const std::int64_t width = slab.layout.kv_blocks, lines = slab.lines();
  const std::int64_t tiles = (width + kTile - 1) / kTile;
  const bool masks = slab.out.mask_next.size() > 0;
  std::vector<std::int32_t> first_data(static_cast<std::size_t>(width), kNone), first_mask = first_data;
  // Calls f for the blocks of the tile that may be non-empty, bottom up.
  const auto for_each_line = [&](std::int64_t tile, auto&& f) {
    const std::int64_t begin = tile * kTile, end = std::min(width, begin + kTile);
    for (std::int64_t l = lines; l-- > 0;) {
      const IndexRange run = slab.run(l);
      f(l, begin, end, std::max(begin, run.begin), std::min(end, run.end), run.begin);
    }
  };
  core::parallel_for(tiles, slab.work, [&](std::int64_t tile) {
    for_each_line(tile, [&](std::int64_t l, std::int64_t, std::int64_t, std::int64_t from, std::int64_t to,
                            std::int64_t first) {
      const std::uint8_t* states = slab.states(l);
      const std::int32_t* patterns = slab.patterns(l);
      for (std::int64_t j = from; j < to; ++j) {
        const std::uint8_t state = states[j - first];
        if (state != 0) first_data[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(slab.local(l));
        if (masks && state == kPartial) first_mask[static_cast<std::size_t>(j)] = patterns[j - first];
      }
    });
  });
  std::vector<std::int32_t> data_next = carries(first_data), mask_next = carries(first_mask);
  const std::int64_t extent = shrink != nullptr ? shrink->extent(slab.first_block) : 0;
  std::vector<std::int64_t> place(static_cast<std::size_t>(shrink != nullptr ? width : 0), extent);
  const std::int64_t shard = slab.first_block / slab.layout.q_blocks_per_shard();
  const auto top_of = [&]<class T>(Array& array, T) {
    return reinterpret_cast<T*>(array.data()) +
           (slab.first_row * slab.layout.q_shards + shard) * shrink->widest * width;
  };
  core::parallel_for(tiles, slab.work, [&](std::int64_t tile) {
    for_each_line(tile, [&](std::int64_t l, std::int64_t begin, std::int64_t end, std::int64_t from,
                            std::int64_t to, std::int64_t first) {
      const std::uint8_t* states = slab.states(l);
      const std::int32_t* patterns = slab.patterns(l);
      for (std::int64_t j = from; j < to; ++j) {
        const std::uint8_t state = states[j - first];
        if (state != 0) data_next[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(slab.local(l));
        if (masks && state == kPartial) mask_next[static_cast<std::size_t>(j)] = patterns[j - first];
        if (shrink != nullptr && state != 0) --place[static_cast<std::size_t>(j)];
      }
      const auto fill = [&](Array& array, IndexRange columns, auto&& value) {
        with_type(array.dtype(), [&]<class T>(T type) {
          if (shrink == nullptr) {
            T* line = slab.template target<T>(array, l);
            for (std::int64_t j = columns.begin; j < columns.end; ++j) line[j] = static_cast<T>(value(j));
            return;
          }
          T* top = top_of(array, type);
          for (std::int64_t j = from; j < to; ++j)
            if (states[j - first] != 0)
              top[place[static_cast<std::size_t>(j)] * width + j] = static_cast<T>(value(j));
        });
      };
      fill(slab.out.block_mask, {from, to}, [&](std::int64_t j) { return states[j - first]; });
      fill(slab.out.data_next, {begin, end},
           [&](std::int64_t j) { return data_next[static_cast<std::size_t>(j)]; });
      if (masks)
        fill(slab.out.mask_next, {begin, end},
             [&](std::int64_t j) { return mask_next[static_cast<std::size_t>(j)]; });
    });
  });
  if (shrink == nullptr) return;
  for (Array* array : {&slab.out.data_next, &slab.out.mask_next})
    if (array->size() > 0)
      with_type(array->dtype(), [&]<class T>(T type) {
        T* top = top_of(*array, type);
        for (std::int64_t n = extent; n < shrink->widest; ++n)
          std::copy_n(top + (extent - 1) * width, width, top + n * width);
      });
}

// The largest value of data_next: the last coordinate of a non-empty block.
std::int64_t largest_coordinate(const Layout& layout, const std::vector<const BlockStates*>& grids) {
  std::int64_t largest = 0;
  for (const BlockStates* grid : grids)
    for (std::int64_t i = 0; i < layout.q_blocks; ++i) {
      const auto states = grid->states(i);
      const auto last = std::find_if(states.rbegin(), states.rend(), [](auto s) { return s != 0; });
      if (last == states.rend()) continue;
      largest = std::max(largest, layout.direction == Direction::dkv
                                      ? i % layout.q_blocks_per_shard()
                                      : grid->run(i).begin + (states.rend() - last) - 1);
    }
  return largest;
}

std::uint8_t largest_state(const std::vector<const BlockStates*>& grids) {
  std::uint8_t largest = 0;
  for (const BlockStates* grid : grids)
    for (const std::uint8_t state : grid->stored()) largest = std::max(largest, state);
  return largest;
}

// The distinct grids: rows may share one.
std::vector<const BlockStates*> distinct_grids(const std::vector<RowGrid>& rows) {
  std::vector<const BlockStates*> grids;
  for (const RowGrid& row : rows) grids.push_back(row.states);
  std::sort(grids.begin(), grids.end(), std::less<>());
  grids.erase(std::unique(grids.begin(), grids.end()), grids.end());
  return grids;
}

}  // namespace

IndexTypes index_types(const Layout& layout, const std::vector<RowGrid>& rows, std::int64_t patterns,
                       Empty empty, const std::function<DType(std::int64_t)>& dtype_of) {
  const std::vector<const BlockStates*> grids = distinct_grids(rows);
  return {empty == Empty::omitted ? Shrink(layout, *rows.front().states).shape()
                                  : Shape{layout.rows, layout.q_blocks, layout.kv_blocks},
          dtype_of(largest_coordinate(layout, grids)), dtype_of(std::max<std::int64_t>(patterns - 1, 0)),
          dtype_of(largest_state(grids))};
}

IndexArrays index_arrays(const Layout& layout, const std::vector<RowGrid>& rows, std::int64_t patterns,
                         Empty empty, const std::function<DType(std::int64_t)>& dtype_of) {
  std::optional<Shrink> shrink;
  if (empty == Empty::omitted) shrink.emplace(layout, *rows.front().states);
  const IndexTypes types = index_types(layout, rows, patterns, empty, dtype_of);
  IndexArrays arrays;
  arrays.data_next = Array(types.data_next, types.shape);
  arrays.block_mask = Array(types.block_mask, types.shape);
  if (patterns > 0) arrays.mask_next = Array(types.mask_next, types.shape);
  const std::int64_t blocks =
      shrink ? std::ssize(rows.front().states->stored()) : layout.rows_per_shard() * layout.grid();
  const double work = 2 * static_cast<double>(blocks) / static_cast<double>(layout.q_shards);
  for (std::int64_t s = 0; s < layout.head_shards; ++s)
    for (std::int64_t t = 0; t < layout.q_shards; ++t) {
      const Slab slab{layout, rows, arrays, s * layout.rows_per_shard(), t * layout.q_blocks_per_shard(),
                      work};
      if (layout.direction == Direction::forward)
        fill_forward(slab, shrink ? &*shrink : nullptr);
      else
        fill_dkv(slab, shrink ? &*shrink : nullptr);
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

}  // namespace ejk::blocks
