// Layout of splash attention: writing and reading a MaskInfo, and its attributes. Memory is proportional to the visited
// blocks. Source of the walk: the kernels of JAX's splash attention, whose grid is (row, query block, step)
// in forward and (key block, row, step) in dkv: a step computes where block_mask is not 0, on the block that
// data_next names, and applies block mask_next of partial_mask_blocks where block_mask is 1.
// tests: tests/layouts/test_splash.cpp
#include "layouts/splash.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "layouts/writing.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk::blocks {

namespace {

void require_index(const ArraySource& array, const char* name) {
  if (!is_integer(array.dtype()))
    throw wrong(name, "{} is {}; indices are integers", array.name(), ejk::name_of(array.dtype()));
  if (array.shape().size() != 3)
    throw wrong(name, "{} has the shape {}; index arrays have three axes", array.name(),
                to_string(array.shape()));
  if (element_count(array.shape()) == 0)
    throw wrong(name, "{}: shape {} has no element", array.name(), to_string(array.shape()));
}

}  // namespace

StoredArrays stored_arrays(const ArrayGroup& group, const StoredSettings& given) {
  StoredArrays s;
  s.name = group.name;
  for (auto [array, name] : {std::pair{&s.data_next, "data_next"}, std::pair{&s.block_mask, "block_mask"}}) {
    *array = group.find(name);
    if (!*array) throw wrong(name, "{}: there is no {}, which every MaskInfo has", group.name, name);
  }
  s.mask_next = group.find("mask_next");
  s.partial_mask_blocks = group.find("partial_mask_blocks");
  s.q_sequence = group.find("q_sequence");
  require_index(*s.block_mask, "block_mask");
  for (const auto& [array, name] :
       {std::pair{s.data_next, "data_next"}, std::pair{s.mask_next, "mask_next"}}) {
    if (!array) continue;
    require_index(*array, name);
    if (array->shape() != s.grid())
      throw wrong(name, "{} has the shape {}, block_mask {}", array->name(), to_string(array->shape()),
                  to_string(s.grid()));
  }
  if (s.q_sequence && (!is_integer(s.q_sequence->dtype()) || s.q_sequence->shape().size() != 1))
    throw wrong("q_sequence", "{} is {}; it is one integer a query", s.q_sequence->name(),
                to_string(ArrayType(s.q_sequence->dtype(), s.q_sequence->shape())));

  const StoredSettings set = settings_of(group, given);
  s.direction = set.direction.value_or(Direction::forward);
  s.head_shards = set.head_shards.value_or(1);
  s.q_shards = set.q_seq_shards.value_or(1);
  auto block = set.block;
  if (set.shape)
    s.shape = shape_in(*set.shape);
  else
    s.shape = {s.grid()[0], 0, 0, false, true};

  if (s.partial_mask_blocks) {
    const Shape& shape = s.partial_mask_blocks->shape();
    const std::size_t rank = shape.size();
    const char* const name = "partial_mask_blocks";
    if (s.partial_mask_blocks->dtype() != DType::boolean)
      throw wrong(name, "{} is {}, not bool", s.partial_mask_blocks->name(),
                  ejk::name_of(s.partial_mask_blocks->dtype()));
    if ((rank != 3 && rank != 5) || element_count(shape) == 0)
      throw wrong(name,
                  "{} has the shape {}; it is (patterns, q, kv), or of a dynamic mask (heads, "
                  "q blocks, kv blocks, q, kv)",
                  s.partial_mask_blocks->name(), to_string(shape));
    s.is_dynamic = rank == 5;
    BlockShape stored{shape[rank - 2], shape[rank - 1]};
    if (!s.forward()) std::swap(stored.q, stored.kv);
    if (block && to_string(*block) != to_string(stored))
      throw wrong(name, "{} has blocks of {}, not {}", s.partial_mask_blocks->name(), to_string(stored),
                  to_string(*block));
    block = stored;
  }
  if (const auto is_dynamic = flag_in(group, "is_dynamic_mask")) {
    const auto dynamic = group.find("is_dynamic_mask");
    if (*is_dynamic != s.is_dynamic)
      throw wrong("is_dynamic_mask",
                  s.is_dynamic
                      ? fmt::format("{} is false, and partial_mask_blocks has every block of every "
                                    "head, as that of a dynamic mask",
                                    dynamic->name())
                      : fmt::format("{} is true, and partial_mask_blocks does not have every block of "
                                    "every head",
                                    dynamic->name()));
  }
  s.block = required_block(group, block);
  return s;
}

StoredLayout stored_layout(const StoredArrays& arrays, const Shape& shape) {
  StoredLayout l;
  l.heads = shape[0], l.q_length = shape[1], l.kv_length = shape[2];
  const Shape& grid = arrays.grid();
  Layout& layout = l.layout;
  layout = {arrays.direction,
            arrays.head_shards,
            arrays.q_shards,
            grid[0],
            core::ceil_div(l.q_length, arrays.block.q),
            core::ceil_div(l.kv_length, arrays.block.kv)};
  const auto fail = [&](const std::string& why) { return wrong("block_mask", arrays.name + ": " + why); };
  if (layout.q_blocks > INT32_MAX || layout.kv_blocks > INT32_MAX)
    throw fail(fmt::format("{} x {} blocks are more than 32-bit indices can name", layout.q_blocks,
                           layout.kv_blocks));
  if (l.heads % layout.head_shards != 0)
    throw fail(fmt::format("{} heads do not divide into {} head shards", l.heads, layout.head_shards));
  if (layout.q_blocks % layout.q_shards != 0)
    throw fail(fmt::format("{} rows of blocks do not divide into {} query shards", layout.q_blocks,
                           layout.q_shards));
  if (layout.rows != l.heads && (arrays.is_dynamic || layout.rows != layout.head_shards))
    throw fail(fmt::format("the index arrays have {} rows for {} heads in {} head shard{}", layout.rows,
                           l.heads, layout.head_shards, layout.head_shards == 1 ? "" : "s"));
  const std::string blocks = fmt::format("{} x {} in blocks of {} ({} x {} of them)", l.q_length, l.kv_length,
                                         to_string(arrays.block), layout.q_blocks, layout.kv_blocks);
  const bool fits = arrays.forward() ? grid[1] == layout.q_blocks && grid[2] <= layout.kv_blocks
                                     : grid[2] == layout.kv_blocks && grid[1] % layout.q_shards == 0 &&
                                           grid[1] / layout.q_shards <= layout.q_blocks_per_shard();
  if (!fits || (arrays.is_dynamic && (grid[1] != layout.q_blocks || grid[2] != layout.kv_blocks))) {
    Error error = fail(fmt::format("a grid of {} is not that of {} queries x keys, {}", to_string(grid),
                                   blocks, arrays.forward() ? "forward" : "dkv"));
    if (arrays.forward()) error.hint("of the backward pass of keys and values: walk=dkv");
    throw error;
  }
  l.is_dynamic = arrays.is_dynamic;
  l.lines_per_shard = grid[1] / layout.q_shards;
  l.data_limit = arrays.forward() ? layout.kv_blocks : layout.q_blocks_per_shard();
  if (arrays.partial_mask_blocks) {
    const Shape& patterns = arrays.partial_mask_blocks->shape();
    if (!arrays.is_dynamic)
      l.mask_limit = patterns[0];
    else if (!std::equal(grid.begin(), grid.end(), patterns.begin()))
      throw wrong("partial_mask_blocks", "{} has the shape {}, and the grid is {}",
                  arrays.partial_mask_blocks->name(), to_string(patterns), to_string(grid));
    else
      l.mask_limit = layout.rows_per_shard() * layout.q_blocks_per_shard() * layout.kv_blocks;
    l.mask_limit = std::min<std::int64_t>(l.mask_limit, INT32_MAX);
  }
  if (arrays.q_sequence && arrays.q_sequence->shape()[0] != l.q_length)
    throw wrong("q_sequence", "{} has {} elements for {} queries", arrays.q_sequence->name(),
                arrays.q_sequence->shape()[0], l.q_length);
  return l;
}

namespace {

void read_integers(const ArraySource& array, const Shape& start, const Shape& count,
                   std::vector<std::byte>& raw, std::vector<std::int64_t>& out) {
  out.resize(static_cast<std::size_t>(element_count(count)));
  core::read_integer_box(array, start, count, raw, out.data());
}

}  // namespace

void for_each_line(const StoredArrays& arrays, std::int64_t row,
                   const std::function<void(const StoredLine&)>& f) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 17;
  const std::int64_t height = arrays.grid()[1], width = arrays.grid()[2];
  const std::int64_t lines = std::max<std::int64_t>(1, kAtOnce / width);
  std::vector<std::byte> raw;
  std::vector<std::int64_t> states, data, masks;
  for (std::int64_t first = 0; first < height; first += lines) {
    const std::int64_t n = std::min(lines, height - first);
    const Shape start{row, first, 0}, count{1, n, width};
    read_integers(*arrays.block_mask, start, count, raw, states);
    read_integers(*arrays.data_next, start, count, raw, data);
    if (arrays.mask_next) read_integers(*arrays.mask_next, start, count, raw, masks);
    for (std::int64_t l = 0; l < n; ++l) {
      const auto of = [&](const std::vector<std::int64_t>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(l * width), static_cast<std::size_t>(width));
      };
      f({first + l, of(states), of(data), arrays.mask_next ? of(masks) : std::span<const std::int64_t>()});
    }
  }
}

std::optional<StoredFault> fault_of(const StoredArrays& arrays, const StoredLayout& layout,
                                    const StoredLine& line, std::size_t p, Take take) {
  const std::int64_t state = line.states[p];
  if (state == 0) return std::nullopt;
  if (state != 1 && state != 2)
    return StoredFault{"state", "block_mask", state, "a block is 0 (empty), 1 (partial) or 2 (full)"};
  if (line.data[p] < 0 || line.data[p] >= layout.data_limit)
    return StoredFault{"range", "data_next", line.data[p], layout.data_range()};
  if (take == Take::visits || state == 2) return std::nullopt;
  if (!arrays.mask_next || !arrays.partial_mask_blocks)
    return StoredFault{"elements", "block_mask", state,
                       fmt::format("partial, and there is no {} with its elements",
                                   arrays.mask_next ? "partial_mask_blocks" : "mask_next")};
  if (line.masks[p] < 0 || line.masks[p] >= layout.mask_limit)
    return StoredFault{"range", "mask_next", line.masks[p], layout.mask_range()};
  return std::nullopt;
}

std::string StoredLayout::data_range() const {
  return fmt::format("there {} {} {} block{}{}", data_limit == 1 ? "is" : "are", data_limit,
                     layout.direction == Direction::forward ? "key" : "query", data_limit == 1 ? "" : "s",
                     layout.direction == Direction::forward || layout.q_shards == 1 ? "" : " in a shard");
}

std::string StoredLayout::mask_range() const {
  return fmt::format("partial_mask_blocks has {}{}", mask_limit, is_dynamic ? " of a shard" : "");
}

StoredSteps steps_to(const StoredArrays& arrays, const StoredLayout& layout, std::int64_t row, std::int64_t i,
                     std::int64_t j) {
  StoredSteps steps;
  const std::int64_t shard = i / layout.layout.q_blocks_per_shard();
  Shape count;
  if (arrays.forward()) {
    steps.first = {row, i, 0};
    count = {1, 1, arrays.grid()[2]};
    steps.axis = 2;
    steps.wanted = j;
  } else {
    steps.first = {row, shard * layout.lines_per_shard, j};
    count = {1, layout.lines_per_shard, 1};
    steps.axis = 1;
    steps.wanted = i - shard * layout.layout.q_blocks_per_shard();
  }
  std::vector<std::byte> raw;
  read_integers(*arrays.block_mask, steps.first, count, raw, steps.states);
  read_integers(*arrays.data_next, steps.first, count, raw, steps.data);
  if (arrays.mask_next) read_integers(*arrays.mask_next, steps.first, count, raw, steps.masks);
  return steps;
}

namespace {

Error error_at(const ArraySource& array, const Shape& index, std::int64_t value, const std::string& why) {
  return core::invalid("{}[{}] is {}: {}", array.name(), fmt::join(index, ", "), value, why);
}

}  // namespace

std::shared_ptr<const BlockGrid> visited_blocks(const StoredArrays& arrays, const StoredLayout& layout,
                                                std::int64_t row, Take take) {
  std::vector<StoredVisit> visits;
  for_each_line(arrays, row, [&](const StoredLine& line) {
    for (std::size_t p = 0; p < line.states.size(); ++p) {
      if (line.states[p] == 0) continue;
      if (take == Take::elements && line.states[p] == 1 && arrays.is_computable())
        throw Error(
            Error::Kind::input,
            fmt::format("{}: the elements of its partial blocks are not stored: a kernel computes them "
                        "from positions",
                        arrays.name),
            Error::Code::computable_mask)
            .hint("MaskInfoSettings::computable = false stores them");
      if (const auto fault = fault_of(arrays, layout, line, p, take))
        throw error_at(*arrays.find(fault->array), {row, line.i, static_cast<std::int64_t>(p)}, fault->value,
                       fault->why);
      visits.push_back(layout.visit(line, p, take));
    }
  });
  return grid_of(arrays.block, layout.layout.q_blocks, layout.layout.kv_blocks, visits,
                 [&](std::int64_t i, std::int64_t j) {
                   const StoredSteps steps = steps_to(arrays, layout, row, i, j);
                   const std::size_t again = *steps.find(steps.find(0).value() + 1);
                   throw error_at(*arrays.data_next, steps.index(again), steps.data[again],
                                  fmt::format("block ({}, {}) is visited a second time", i, j));
                 });
}

namespace {

class SplashElements final : public BlockElements {
 public:
  SplashElements(std::shared_ptr<const ElementBits> bits, const StoredLayout& layout, std::int64_t row)
      : bits_(std::move(bits)), layout_(layout), row_(row) {}
  void fill(std::int64_t i, std::int32_t pattern, const Rectangle& part, const BitRows& out) const override {
    bits_->fill(layout_.pattern_index(row_, i, pattern), part, out);
  }

 private:
  std::shared_ptr<const ElementBits> bits_;
  StoredLayout layout_;
  std::int64_t row_;
};

}  // namespace

StoredPatterns::StoredPatterns(const StoredArrays& arrays) {
  if (!arrays.partial_mask_blocks) return;
  bits_ = std::make_shared<ElementBits>(arrays.partial_mask_blocks, arrays.forward());
  if (!arrays.is_dynamic) of_all_rows_ = std::make_shared<SplashElements>(bits_, StoredLayout(), 0);
}

std::shared_ptr<const BlockElements> StoredPatterns::of_row(const StoredLayout& layout,
                                                            std::int64_t row) const {
  if (!bits_ || of_all_rows_) return of_all_rows_;
  return std::make_shared<SplashElements>(bits_, layout, row);
}

namespace {

class SplashMasks final : public StoredMasks {
 public:
  SplashMasks(const ArrayGroup& group, const StoredSettings& settings)
      : arrays_(stored_arrays(group, settings)), patterns_(arrays_) {}

  MaskShape shape() const override { return arrays_.shape; }
  Mask mask(const Shape& shape, std::int64_t head) const override {
    return stored(shape, head, Take::elements);
  }
  Mask visited(const Shape& shape, std::int64_t head) const override {
    return stored(shape, head, Take::visits);
  }

 private:
  Mask stored(const Shape& shape, std::int64_t head, Take take) const {
    core::require_head(shape, head);
    const StoredLayout layout = stored_layout(arrays_, shape);
    const std::int64_t row = layout.row_of(head);
    return masks_.get({take == Take::visits, row, shape[1], shape[2]}, [&] {
      return to_mask({visited_blocks(arrays_, layout, row, take),
                      take == Take::elements ? patterns_.of_row(layout, row) : nullptr, layout.q_length,
                      layout.kv_length},
                     fmt::format("{}({})", take == Take::elements ? "from" : "visited", arrays_.name));
    });
  }

  StoredArrays arrays_;
  StoredPatterns patterns_;
  SharedMasks masks_;
};

StoredMaskInfo::Cost cost_of(const ArrayGroup& arrays) {
  constexpr std::int64_t kBytesPerEntry = 32, kMost = std::int64_t{1} << 50;
  StoredMaskInfo::Cost cost;
  for (const auto& [name, array] : arrays.arrays) {
    const std::int64_t bytes = type_of(*array).bytes();
    if (name == "block_mask") cost.buffered += kBytesPerEntry * std::min(kMost, bytes);
    if (name != "partial_mask_blocks")
      cost.read += bytes;
    else if (!array->random_access())
      cost.buffered += bytes / 8;
  }
  return cost;
}

// Index arrays are on rank 0, a partial block is on the first rank that found it.
void write_splash(const MaskScans& scans, ArraysMade& to) {
  const InfoPlan& plan = scans.plan;
  const bool is_divided = !scans.own_rows.empty();
  const char* const name = "partial_mask_blocks";
  auto partial =
      is_divided ? type_alone(plan.blocks_type(scans.pattern_count()), name) : partial_blocks(plan, scans);
  const auto add_partial = [&] {
    to.add(name, std::move(partial));
    if (is_divided) to.into.arrays.back().parts = partial_parts(plan, scans);
  };
  if (scans.scans.empty()) return add_partial();
  MaskInfo info = info_of(plan, scans, partial);
  to.into.unshrunk_grid = std::move(info.unshrunk_grid);
  to.add("data_next", std::move(info.data_next));
  if (info.mask_next) to.add("mask_next", std::move(*info.mask_next));
  to.add("block_mask", std::move(info.block_mask));
  if (info.partial_mask_blocks) add_partial();
  if (info.q_sequence) to.add("q_sequence", std::move(*info.q_sequence));
  to.add("is_dynamic_mask", info.is_dynamic_mask);
}

constexpr const char* kSplashArrays[] = {"data_next",           "mask_next",  "block_mask",
                                         "partial_mask_blocks", "q_sequence", "is_dynamic_mask"};
constexpr LayoutSetting kSplashSettings[] = {{"block"},        {"dkv"},         {"dynamic"},  {"head_shards"},
                                             {"q_seq_shards"}, {"shrink_grid"}, {"downcast"}, {"computable"}};
constexpr std::pair<std::string_view, AbsentArray> kSplashAbsent[] = {
    {"q_sequence", AbsentArray::not_computable}};

bool is_splash(const ArrayGroup& group) {
  const auto states = group.find("block_mask");
  return group.find("data_next") || group.find("is_dynamic_mask") || (states && states->shape().size() == 3);
}

std::shared_ptr<const StoredMasks> read_splash(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<SplashMasks>(group, settings);
}

}  // namespace

extern const StoredMaskLayout kSplash;
const StoredMaskLayout kSplash{.name = "jax",
                               .arrays = kSplashArrays,
                               .is_of = is_splash,
                               .cost = cost_of,
                               .read = read_splash,
                               .written_as = MaskLayout::jax,
                               .write = write_splash,
                               .takes = kSplashSettings,
                               .absent = kSplashAbsent,
                               .is_divided = true};

}  // namespace ejk::blocks

namespace ejk {

ArrayGroup stored_arrays(const MaskInfo& info) {
  ArrayGroup group;
  group.name = "the MaskInfo";
  const auto add = [&](const char* name, const Array& array) {
    group.arrays.emplace(name, make_source(array.view(), name));
  };
  add("data_next", info.data_next);
  add("block_mask", info.block_mask);
  if (info.mask_next) add("mask_next", *info.mask_next);
  if (info.partial_mask_blocks) group.arrays.emplace("partial_mask_blocks", info.partial_mask_blocks);
  if (info.q_sequence) add("q_sequence", *info.q_sequence);
  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = info.is_dynamic_mask;
  group.arrays.emplace("is_dynamic_mask", make_source(std::move(dynamic), "is_dynamic_mask"));
  const auto word = [](bool value) { return value ? "true" : "false"; };
  const MaskSummary& summary = info.summaries.front();
  group.attributes = {
      {"block", to_string(info.block)},
      {"computable", word(info.settings.computable)},
      {"dkv", word(info.direction == Direction::dkv)},
      {"downcast", word(info.settings.downcast)},
      {"dynamic", word(info.is_dynamic_mask)},
      {"head_shards", fmt::format("{}", info.settings.head_shards)},
      {"pad", word(info.settings.pad)},
      {"q_seq_shards", fmt::format("{}", info.settings.q_seq_shards)},
      {"shape", fmt::format("{}x{}x{}", info.head_mask.size(), summary.q_length, summary.kv_length)},
      {"shrink_grid", word(info.settings.shrink_grid)},
  };
  return group;
}

}  // namespace ejk
