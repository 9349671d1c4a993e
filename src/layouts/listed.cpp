// Masks from listed blocks and from rules for pairs. Cost: one walk over the lists for each stored mask that is
// used.
// tests: tests/layouts/test_mask_layouts.cpp
#include "layouts/listed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "layouts/element_bits.hpp"
#include "layouts/layouts.hpp"

namespace ejk::blocks {

IndexArray read_index(const ArrayGroup& group, const char* name, std::int64_t rank, bool is_required) {
  IndexArray index{name, group.find(name), {}};
  if (!index.source) {
    if (is_required) throw wrong(name, "{}: there is no {}", group.name, name);
    return index;
  }
  const ArraySource& array = *index.source;
  if (!is_integer(array.dtype()))
    throw wrong(name, "{} is {}; indices are integers", array.name(), name_of(array.dtype()));
  if (std::ssize(array.shape()) != rank)
    throw wrong(name, "{} has the shape {}; it has {} ax{}", array.name(), to_string(array.shape()), rank,
                rank == 1 ? "is" : "es");
  index.values.resize(static_cast<std::size_t>(element_count(array.shape())));
  std::vector<std::byte> raw;
  std::int64_t* to = index.values.data();
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 17;
  for (const ArrayBox& piece : pieces_of(array.shape(), kAtOnce)) {
    core::read_integer_box(array, piece.start, piece.count, raw, to);
    to += element_count(piece.count);
  }
  return index;
}

StoredMaskInfo::Cost cost_of_indices(const ArrayGroup& arrays) {
  // A value, a visit and an entry of the grid for each index; elements are bits if they are read in order.
  constexpr std::int64_t kOfIndex = 8 + 12 + 8, kMost = std::int64_t{1} << 50;
  StoredMaskInfo::Cost cost;
  for (const auto& [name, array] : arrays.arrays) {
    if (!array) continue;
    const std::int64_t elements = std::min(kMost, element_count(array->shape()));
    if (name == "partial_mask_blocks" || name == "data") {
      if (!array->random_access()) cost.buffered += elements / 8;
      continue;
    }
    const bool is_bytes = name == "packed_mask" || name == "block_mask_map" || name == "packed_custom_mask";
    cost.buffered += name == "custom_mask" ? elements / 8 : is_bytes ? elements : kOfIndex * elements;
    cost.read += type_of(*array).bytes();
  }
  return cost;
}

std::shared_ptr<const BlockGrid> grid_of(BlockShape block, std::int64_t q_blocks, std::int64_t kv_blocks,
                                         std::span<const StoredVisit> visits,
                                         const std::function<void(std::int64_t, std::int64_t)>& twice) {
  auto grid = std::make_shared<BlockGrid>();
  grid->block = block;
  grid->q_blocks = q_blocks;
  grid->kv_blocks = kv_blocks;
  std::vector<std::int64_t>& begins = grid->begins;
  begins.assign(static_cast<std::size_t>(grid->q_blocks + 1), 0);
  for (const StoredVisit& visit : visits) ++begins[static_cast<std::size_t>(visit.q_block) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<BlockGrid::Entry>& entries = grid->entries;
  entries.resize(visits.size());
  std::vector<std::int64_t> next = begins;
  for (const StoredVisit& visit : visits)
    entries[static_cast<std::size_t>(next[static_cast<std::size_t>(visit.q_block)]++)] = {visit.column,
                                                                                          visit.pattern};
  const auto before = [](const BlockGrid::Entry& a, const BlockGrid::Entry& b) {
    return a.column < b.column;
  };
  auto kept = entries.begin();
  for (std::int64_t i = 0; i < grid->q_blocks; ++i) {
    const auto begin = entries.begin() + begins[static_cast<std::size_t>(i)],
               end = entries.begin() + begins[static_cast<std::size_t>(i + 1)];
    if (!std::is_sorted(begin, end, before)) std::stable_sort(begin, end, before);
    begins[static_cast<std::size_t>(i)] = kept - entries.begin();
    for (auto entry = begin; entry != end; ++entry) {
      const bool again = entry != begin && (entry - 1)->column == entry->column;
      if (again)
        twice(i, entry->column);
      else
        *kept++ = *entry;
    }
  }
  entries.erase(kept, entries.end());
  begins.back() = std::ssize(entries);
  return grid;
}

std::vector<ListedVisit> visits_of(const ListedBlocks& listed, std::int64_t walk, std::int64_t row,
                                   std::int64_t i, std::int64_t j) {
  std::vector<ListedVisit> found;
  listed.walk(walk, row,
              {[&](std::int64_t at_i, std::int64_t at_j, std::int32_t pattern, ArrayPlace place) {
                 if (at_i == i && at_j == j) found.push_back({place, pattern});
               },
               [](const char*, ArrayPlace, std::int64_t, const std::string&) {}});
  return found;
}

std::int64_t row_of_head(std::int64_t rows, std::int64_t heads, std::int64_t head, const std::string& name) {
  if (heads % rows != 0)
    throw core::invalid("{}: its {} masks do not serve {} heads", name, rows, heads).about("shape");
  return head / (heads / rows);
}

Mask ListedBlocks::mask_of(BlockMask blocks, std::string text) const {
  if (!sequences) return to_mask(std::move(blocks), std::move(text));
  return packed_mask(to_mask(blocks.padded(), std::move(text)), sequences);
}

void require_lengths(const ListedBlocks& listed, std::int64_t q_length, std::int64_t kv_length) {
  if (listed.sequences) {
    const std::int64_t q = listed.sequences->q.packed.back(), kv = listed.sequences->kv.packed.back();
    if (q == q_length && kv == kv_length) return;
    throw core::invalid("{}: its sequences have {} queries and {} keys, not {} and {}", listed.name, q, kv,
                        q_length, kv_length)
        .about("shape");
  }
  if (core::ceil_div(q_length, listed.block.q) != listed.q_blocks ||
      core::ceil_div(kv_length, listed.block.kv) != listed.kv_blocks)
    throw core::invalid("{}: {} x {} blocks of {} do not make {} queries x {} keys", listed.name,
                        listed.q_blocks, listed.kv_blocks, to_string(listed.block), q_length, kv_length)
        .about("shape");
  constexpr std::int64_t kMostRows = std::int64_t{1} << 26;
  if (listed.q_blocks > kMostRows)
    throw core::invalid("{}: {} rows of blocks are more than {}", listed.name, listed.q_blocks, kMostRows)
        .about("shape");
}

namespace {

const IndexArray& array_of(const std::vector<const IndexArray*>& indices, ArrayPlace place) {
  return **std::find_if(indices.begin(), indices.end(), [&](const IndexArray* index) {
    return std::string_view(index->name) == place.array;
  });
}

[[noreturn]] void throw_fault(const std::vector<const IndexArray*>& indices, ArrayPlace place,
                              std::int64_t value, const std::string& why) {
  const ArraySource& array = *array_of(indices, place).source;
  throw core::invalid("{}{} is {}: {}", array.name(), to_string(core::index_of(array.shape(), place.at)),
                      value, why)
      .about(place.array);
}

class ListedMasks final : public StoredMasks {
 public:
  explicit ListedMasks(std::shared_ptr<const ListedBlocks> listed) : listed_(std::move(listed)) {}

  MaskShape shape() const override { return listed_->shape; }
  Mask mask(const Shape& shape, std::int64_t head) const override { return stored(shape, head, false); }
  Mask visited(const Shape& shape, std::int64_t head) const override { return stored(shape, head, true); }

 private:
  Mask stored(const Shape& shape, std::int64_t head, bool whole_blocks) const {
    core::require_head(shape, head);
    const ListedBlocks& of = *listed_;
    require_lengths(of, shape[1], shape[2]);
    const std::int64_t row = row_of_head(of.rows, shape[0], head, of.name);
    return masks_.get({whole_blocks, row, shape[1], shape[2]}, [&] {
      return of.mask_of(
          {grid(row, whole_blocks), whole_blocks ? nullptr : of.elements(row), shape[1], shape[2]},
          fmt::format("{}({})", whole_blocks ? "visited" : "from", of.name));
    });
  }

  std::shared_ptr<const BlockGrid> grid(std::int64_t row, bool whole_blocks) const {
    const ListedBlocks& of = *listed_;
    std::vector<StoredVisit> visits;
    of.walk(0, row,
            {[&](std::int64_t i, std::int64_t j, std::int32_t pattern, ArrayPlace) {
               if (pattern != BlockGrid::kFull && !whole_blocks && of.is_computed(0))
                 throw core::invalid("{}: the elements of its partial blocks are not stored", of.name)
                     .about("partial_mask_blocks")
                     .hint("visited(...) has its blocks; partial_mask_blocks beside them has the elements");
               visits.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(j),
                                 whole_blocks ? BlockGrid::kFull : pattern});
             },
             [&](const char*, ArrayPlace place, std::int64_t value, const std::string& why) {
               throw_fault(of.indices, place, value, why);
             }});
    return grid_of(of.block, of.q_blocks, of.kv_blocks, visits, [&](std::int64_t i, std::int64_t j) {
      const ArrayPlace again = visits_of(of, 0, row, i, j).at(1).place;
      throw_fault(of.indices, again, array_of(of.indices, again)[again.at],
                  fmt::format("block ({}, {}) is listed twice", i, j));
    });
  }

  std::shared_ptr<const ListedBlocks> listed_;
  SharedMasks masks_;
};

class RuleMasks final : public StoredMasks {
 public:
  explicit RuleMasks(std::shared_ptr<const PairRule> rule) : rule_(std::move(rule)) {}

  MaskShape shape() const override { return rule_->shape; }
  Mask mask(const Shape& shape, std::int64_t head) const override {
    core::require_head(shape, head);
    const std::int64_t row = row_of_head(rule_->rows, shape[0], head, rule_->name);
    return masks_.get({false, row, shape[1], shape[2]}, [&] {
      rule_->check(shape[1], shape[2],
                   {{}, [&](const char*, ArrayPlace place, std::int64_t value, const std::string& why) {
                      throw_fault(rule_->indices, place, value, why);
                    }});
      return rule_->mask(shape[1], shape[2], row);
    });
  }
  Mask visited(const Shape& shape, std::int64_t head) const override {
    if (rule_->has_whole_blocks) return mask(shape, head);
    throw core::invalid("{}: its layout has no blocks; from(...) has its pairs", rule_->name).about("layout");
  }

 private:
  std::shared_ptr<const PairRule> rule_;
  SharedMasks masks_;
};

class PatternElements final : public BlockElements {
 public:
  PatternElements(std::shared_ptr<const ArraySource> patterns, bool forward)
      : bits_(std::move(patterns), forward) {}
  void fill(std::int64_t, std::int32_t pattern, const Rectangle& part, const BitRows& out) const override {
    bits_.fill({pattern}, part, out);
  }

 private:
  ElementBits bits_;
};

}  // namespace

std::shared_ptr<const StoredMasks> read_listed(std::shared_ptr<const ListedBlocks> listed) {
  return std::make_shared<ListedMasks>(std::move(listed));
}

std::shared_ptr<const StoredMasks> read_rule(std::shared_ptr<const PairRule> rule) {
  return std::make_shared<RuleMasks>(std::move(rule));
}

std::shared_ptr<const BlockElements> pattern_elements(std::shared_ptr<const ArraySource> patterns,
                                                      Direction direction) {
  return std::make_shared<PatternElements>(std::move(patterns), direction == Direction::forward);
}

}  // namespace ejk::blocks
