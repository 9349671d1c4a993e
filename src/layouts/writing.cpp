// Masks in the arrays of a layout: one scan of the distinct masks, then the writer of the layout's row.
//
// Cost: the scan (src/blocks/scan.cpp), and the elements of the arrays. Arrays of elements (partial_mask_blocks,
// data, packed_mask) are computed on read. Of several ranks each has the partial blocks that it found, and rank 0
// the other arrays.
// tests: tests/layouts/test_mask_layouts.cpp
#include "layouts/writing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "layouts/layouts.hpp"

namespace ejk {

namespace blocks {

namespace {

// downcast and computable are permissions, which a layout need not use.
void require_taken(const MaskLayoutSettings& set, const StoredMaskLayout& layout) {
  const std::pair<std::string_view, bool> all[] = {{"dkv", set.direction == Direction::dkv},
                                                   {"dynamic", set.dynamic},
                                                   {"head_shards", set.head_shards != 1},
                                                   {"q_seq_shards", set.q_seq_shards != 1},
                                                   {"kv_seq_shards", set.kv_seq_shards != 1},
                                                   {"shrink_grid", !set.shrink_grid},
                                                   {"dq_write_order", set.dq_write_order.has_value()},
                                                   {"cu_seqlens", static_cast<bool>(set.cu_seqlens_q)},
                                                   {"cu_seqlens_k", static_cast<bool>(set.cu_seqlens_k)},
                                                   {"q_sizes", static_cast<bool>(set.q_sizes)},
                                                   {"kv_sizes", static_cast<bool>(set.kv_sizes)}};
  for (const auto& [name, is_set] : all) {
    if (!is_set) continue;
    if (!takes(set.layout, name, set.direction))
      throw core::usage("the layout {} does not take {}", layout.name, name);
    for (const LayoutSetting& taken : layout.takes)
      if (set.dynamic && taken.is_static && taken.name == name)
        throw core::usage("dynamic masks of the layout {} do not take {}", layout.name, name);
  }
  if (set.cu_seqlens_k && !set.cu_seqlens_q)
    throw core::usage("sequences of keys without sequences of queries");
}

AbsentArray why_absent(const StoredMaskLayout& layout, std::string_view name, bool is_computed) {
  for (const auto& [beginning, why] : layout.absent)
    if (name.starts_with(beginning)) return why;
  return is_computed ? AbsentArray::computed : AbsentArray::no_partial_block;
}

// cu_seqlens of keys, and its argument.
std::pair<const char*, IntegerArray> offsets_of_keys(const MaskLayoutSettings& settings) {
  if (settings.cu_seqlens_k) return {"cu_seqlens_k", settings.cu_seqlens_k};
  return {"cu_seqlens_q", settings.cu_seqlens_q};
}

// Sequences and sizes of blocks are those of the mask.
void require_lengths(const MaskLayoutSettings& settings, const Mask& mask, BlockShape block) {
  if (settings.cu_seqlens_q) {
    const SequenceOffsets sequences = sequences_in(settings);
    const auto require_end = [](const IntegerArray& cu, const char* argument, std::int64_t end,
                                std::int64_t length, const char* what) {
      if (end != length)
        throw core::invalid("{} ends at {}, and the mask has {} {}", cu->name(), end, length, what)
            .about(argument);
    };
    require_end(settings.cu_seqlens_q, "cu_seqlens_q", sequences.q.back(), mask.q_length(), "queries");
    const auto [keys, of_keys] = offsets_of_keys(settings);
    require_end(of_keys, keys, sequences.kv.back(), mask.kv_length(), "keys");
  }
  if (settings.q_sizes || settings.kv_sizes) {
    q_block_sizes(settings, mask.q_length(), block);
    kv_block_sizes(settings, mask.kv_length(), block);
  }
}

ArraysPlan plan_of(std::vector<Mask> heads, BlockShape block, const MaskLayoutSettings& settings) {
  const StoredMaskLayout& layout = layout_for(settings.layout);
  require_taken(settings, layout);
  if (!heads.empty()) require_lengths(settings, heads.front(), block);
  MaskInfoSettings how;
  how.head_shards = settings.head_shards, how.q_seq_shards = settings.q_seq_shards;
  how.pad = settings.pad || !has_blocks(settings.layout) || settings.cu_seqlens_q;
  how.downcast = settings.downcast;
  how.computable = settings.computable && takes(settings.layout, "computable", settings.direction);
  how.shrink_grid = settings.shrink_grid && layout.is_divided;
  const bool is_dynamic = settings.dynamic && layout.is_divided;
  InfoPlan plan = checked(std::move(heads), block, settings.direction,
                          is_dynamic ? MaskInfoKind::dynamic : MaskInfoKind::fixed, how);
  if (plan.layout.kv_blocks % settings.kv_seq_shards != 0)
    throw core::invalid("{} columns of blocks do not divide into {} key shards", plan.layout.kv_blocks,
                        settings.kv_seq_shards);
  return {settings, layout, std::move(plan)};
}

// All ranks have the names and types of rank 0's arrays, why others are absent, and how many elements differ.
// Arrays without parts are those of rank 0.
void share_arrays(MaskArrays& made, Communicator& comm) {
  RankMessage message;
  if (comm.is_first()) {
    message.put(made.differing).put(std::ssize(made.arrays)).put(std::ssize(made.absent));
    for (MaskArray& array : made.arrays) {
      const ArrayType type = type_of(*array.elements);
      if (!array.parts) array.parts = {{whole_box(type.shape), array.elements}};
      message.put_text(array.name).put(type.dtype).put_all(type.shape);
    }
    for (const auto& [name, why] : made.absent) message.put_text(name).put(why);
  }
  message = RankMessage(comm.broadcast(message.bytes()));
  if (comm.is_first()) return;
  const std::vector<MaskArray> own = std::exchange(made.arrays, {});
  made.differing = message.take<std::int64_t>();
  const auto present = message.take<std::ptrdiff_t>(), absent = message.take<std::ptrdiff_t>();
  for (std::ptrdiff_t n = 0; n < present; ++n) {
    std::string name = message.take_text();
    const auto dtype = message.take<DType>();
    auto elements = type_alone({dtype, message.take_all<std::int64_t>()}, name);
    made.arrays.push_back({std::move(name), std::move(elements), std::vector<ArrayPart>()});
    for (const MaskArray& array : own)
      if (array.name == made.arrays.back().name) made.arrays.back().parts = array.parts;
  }
  for (std::ptrdiff_t n = 0; n < absent; ++n) {
    std::string name = message.take_text();
    made.absent.emplace_back(std::move(name), message.take<AbsentArray>());
  }
}

// Lines that one block row, or block column, has in common: all in one state, or each on its own.
class OpenRanges {
 public:
  explicit OpenRanges(std::int64_t lines)
      : ranges_(static_cast<std::size_t>(lines)), begins_(ranges_.size(), kNone) {}

  /// All lines are True, or False, from `at` on.
  void all(bool value, std::int64_t at) {
    if (all_are_ == (value ? All::seen : All::hidden)) return;
    for (std::size_t line = 0; line < begins_.size(); ++line) set(line, value, at);
    all_are_ = value ? All::seen : All::hidden;
  }
  /// The elements of a line from `at` on.
  void elements(std::size_t line, std::span<const Word> bits, std::int64_t n, std::int64_t at) {
    all_are_ = All::mixed;
    std::int64_t end = 0;
    for_each_run(bits, n, true, [&](std::int64_t run_begin, std::int64_t run_end) {
      if (run_begin > end) set(line, false, at + end);
      set(line, true, at + run_begin);
      end = run_end;
    });
    if (end < n) set(line, false, at + end);
  }
  std::span<const IndexRange> close(std::size_t line, std::int64_t at) {
    set(line, false, at);
    return ranges_[line];
  }

 private:
  enum class All { hidden, seen, mixed };
  static constexpr std::int64_t kNone = -1;
  void set(std::size_t line, bool value, std::int64_t at) {
    if (value == (begins_[line] != kNone)) return;
    if (value) {
      // A range that ended here goes on.
      if (!ranges_[line].empty() && ranges_[line].back().end == at) {
        begins_[line] = ranges_[line].back().begin;
        ranges_[line].pop_back();
      } else {
        begins_[line] = at;
      }
      return;
    }
    if (begins_[line] < at) ranges_[line].push_back({begins_[line], at});
    begins_[line] = kNone;
  }

  std::vector<std::vector<IndexRange>> ranges_;
  std::vector<std::int64_t> begins_;  // of the range that is open in a line
  All all_are_ = All::hidden;
};

}  // namespace

const Scan& MaskScans::of_all_heads() const {
  if (distinct.masks.size() > 1) {
    const auto other = std::find_if(distinct.of_head.begin(), distinct.of_head.end(),
                                    [](std::int64_t mask) { return mask != 0; });
    throw core::invalid("heads 0 and {} have different masks, and the layout {} has one for all heads",
                        other - distinct.of_head.begin(), name_of(settings.layout))
        .hint("one file for each head");
  }
  return scans.front();
}

void for_each_line(const MaskScans& scans, const Scan& scan, Lines lines,
                   const std::function<void(std::int64_t, std::span<const IndexRange>)>& f) {
  const bool by_queries = lines == Lines::queries;
  const BlockShape block = scans.plan.block;
  const std::int64_t side = by_queries ? block.q : block.kv, along = by_queries ? block.kv : block.q;
  const std::int64_t length = by_queries ? scans.q_length() : scans.kv_length(),
                     across = by_queries ? scans.kv_length() : scans.q_length();
  const std::int64_t bands = core::ceil_div(length, side), steps = core::ceil_div(across, along);
  const ScanGrid grid(scan);
  const std::int64_t row_words = words_for(block.kv);
  BitBuffer columns;
  for (std::int64_t band = 0; band < bands; ++band) {
    const std::int64_t count = std::min(side, length - band * side);
    OpenRanges open(count);
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int64_t i = by_queries ? band : step, j = by_queries ? step : band;
      const std::uint8_t state = grid.state(i, j);
      if (state != kPartial) {
        open.all(state != 0, step * along);
        continue;
      }
      const Word* const pattern = scans.table->bits(grid.pattern(i, j));
      BitRows rows{const_cast<Word*>(pattern), row_words, block.q, block.kv};
      if (!by_queries) {
        const BitRows of_keys = columns.rows(block.kv, block.q);
        transpose(rows, of_keys);
        rows = of_keys;
      }
      const std::int64_t n = std::min(along, across - step * along);
      for (std::int64_t line = 0; line < count; ++line)
        open.elements(static_cast<std::size_t>(line),
                      {rows.row(line), static_cast<std::size_t>(rows.row_words)}, n, step * along);
    }
    for (std::int64_t line = 0; line < count; ++line)
      f(band * side + line, open.close(static_cast<std::size_t>(line), across));
  }
}

void ArraysMade::add(const char* name, std::initializer_list<std::int64_t> values, Shape shape) {
  const bool narrow =
      std::all_of(values.begin(), values.end(), [](std::int64_t v) { return v <= INT32_MAX; });
  Array array(narrow ? DType::int32 : DType::int64, std::move(shape));
  std::int64_t at = 0;
  for (const std::int64_t value : values) {
    if (narrow)
      array.elements<std::int32_t>()[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(value);
    else
      array.elements<std::int64_t>()[static_cast<std::size_t>(at)] = value;
    ++at;
  }
  add(name, std::move(array));
}

void ArraysMade::add(const char* name, bool value) {
  Array array(DType::boolean, {});
  array.elements<bool>()[0] = value;
  add(name, std::move(array));
}

SequenceOffsets sequences_in(const MaskLayoutSettings& how) {
  return read_sequences(*how.cu_seqlens_q, how.cu_seqlens_k ? *how.cu_seqlens_k : *how.cu_seqlens_q);
}

std::shared_ptr<const ArraySource> blocks_source(const char* name, std::vector<std::int32_t> blocks,
                                                 const MaskScans& scans, Direction direction) {
  const BlockShape block = scans.plan.block;
  Shape shape{std::ssize(blocks), block.q, block.kv};
  if (direction == Direction::dkv) std::swap(shape[1], shape[2]);
  const auto fill = [blocks = std::move(blocks), table = scans.table, row_words = words_for(block.kv),
                     direction](std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                                void* out) {
    auto* at = static_cast<std::uint8_t*>(out);
    const Box part{start[1], count[1], start[2], count[2]};
    for (std::int64_t b = start[0]; b < start[0] + count[0]; ++b, at += count[1] * count[2]) {
      const std::int32_t pattern = blocks[static_cast<std::size_t>(b)];
      if (pattern < 0)
        std::fill(at, at + count[1] * count[2], static_cast<std::uint8_t>(pattern == BlockGrid::kFull));
      else
        expand_part(table->bits(pattern), row_words, part, direction, at);
    }
  };
  return generated_source({DType::boolean, std::move(shape)}, name, fill);
}

namespace {

// Sizes that are not negative, and do not exceed what is left of a length.
std::vector<std::int64_t> sizes_within(const ArraySource& given, std::int64_t length) {
  std::vector<std::int64_t> sizes = core::read_integers(given, "sizes of blocks");
  std::int64_t left = length;
  for (std::size_t n = 0; n < sizes.size(); left -= sizes[n++])
    if (sizes[n] < 0 || sizes[n] > left)
      throw core::invalid(
          "{}({}) is {}: {}", given.name(), n, sizes[n],
          sizes[n] < 0 ? "a size is not negative" : fmt::format("{} of {} positions are left", left, length));
  return sizes;
}

std::int64_t sum_of_sizes(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

std::vector<std::int64_t> block_sizes(const IntegerArray& given, std::int64_t length, std::int64_t side,
                                      const char* what) {
  if (!given) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(core::ceil_div(length, side)), side);
    sizes.back() = length - (std::ssize(sizes) - 1) * side;
    return sizes;
  }
  std::vector<std::int64_t> sizes = sizes_within(*given, length);
  if (sum_of_sizes(sizes) != length)
    throw core::invalid("{} adds up to {}, and the mask has {} {}", given->name(), sum_of_sizes(sizes),
                        length, what);
  return sizes;
}

}  // namespace

std::vector<std::int64_t> q_block_sizes(const MaskLayoutSettings& how, std::int64_t length,
                                        BlockShape block) {
  return core::about("q_sizes", [&] { return block_sizes(how.q_sizes, length, block.q, "queries"); });
}

std::vector<std::int64_t> kv_block_sizes(const MaskLayoutSettings& how, std::int64_t length,
                                         BlockShape block) {
  return core::about("kv_sizes", [&] { return block_sizes(how.kv_sizes, length, block.kv, "keys"); });
}

Array index_array(const char* name, Shape shape, std::int64_t largest) {
  if (largest > INT32_MAX) throw core::invalid("{}: {} exceeds int32", name, largest).about(name);
  return {DType::int32, std::move(shape)};
}

}  // namespace blocks

std::string_view name_of(MaskLayout layout) { return blocks::layout_for(layout).name; }
std::vector<std::string> mask_array_names(MaskLayout layout) {
  const auto arrays = blocks::layout_for(layout).arrays;
  return {arrays.begin(), arrays.end()};
}
bool has_blocks(MaskLayout layout) { return blocks::layout_for(layout).rule == nullptr; }

std::span<const LayoutSetting> layout_settings(MaskLayout layout) { return blocks::layout_for(layout).takes; }
bool takes(MaskLayout layout, std::string_view setting, Direction direction) {
  const auto all = layout_settings(layout);
  return std::any_of(all.begin(), all.end(), [&](const LayoutSetting& taken) {
    return taken.name == setting && taken.direction.value_or(direction) == direction;
  });
}

BlockShape scan_block(std::int64_t q_length, std::int64_t kv_length) {
  constexpr std::int64_t kMost = 2048, kLeast = 64;
  const auto longest = static_cast<std::uint64_t>(std::max(q_length, kv_length));
  const auto side = static_cast<std::int64_t>(std::bit_ceil((longest + kMost - 1) / kMost));
  return {std::max(side, kLeast), std::max(side, kLeast)};
}

std::string_view name_of(WriteOrder order) {
  return order == WriteOrder::ascending ? "ascending" : "descending";
}

MaskArraysPlan::MaskArraysPlan(std::vector<Mask> heads, BlockShape block, const MaskLayoutSettings& settings)
    : plan_(std::make_shared<const blocks::ArraysPlan>(blocks::plan_of(std::move(heads), block, settings))) {}

bool MaskArraysPlan::is_divided() const { return plan_->layout.is_divided; }

std::int64_t MaskArraysPlan::work_bytes() const { return plan_->work_bytes(); }

std::vector<RankWork> MaskArraysPlan::shares(std::int64_t ranks) const {
  core::require_ranks(ranks);
  if (is_divided()) return plan_->info.shares(ranks);
  std::vector<RankWork> work(static_cast<std::size_t>(ranks));
  work.front().peak_bytes = work_bytes();
  return work;
}

MaskArrays MaskArraysPlan::run(Communicator& comm, const BlockProgress& progress,
                               std::int64_t max_pattern_bytes) const {
  const auto& [settings, layout, info] = *plan_;
  MaskArrays made;
  made.settings = settings;
  if (is_divided() || comm.is_first()) {
    Communicator& those_that_scan = is_divided() ? comm : single_process();
    blocks::MaskScans scans{scan_masks(info, those_that_scan, progress, max_pattern_bytes), info, settings};
    blocks::ArraysMade to{made};
    layout.write(scans, to);
    const bool is_computed = info.is_left_to_kernel(scans.distinct);
    static_cast<ScannedMasks&>(made) = scanned_masks(info.block, std::move(scans));
    for (const std::string_view name : layout.arrays)
      if (comm.is_first() && std::none_of(made.arrays.begin(), made.arrays.end(),
                                          [&](const MaskArray& array) { return array.name == name; }))
        made.absent.emplace_back(name, blocks::why_absent(layout, name, is_computed));
  }
  if (!comm.is_single()) blocks::share_arrays(made, comm);
  return made;
}

MaskArrays make_mask_arrays(const std::vector<Mask>& heads, BlockShape block,
                            const MaskLayoutSettings& settings) {
  return MaskArraysPlan(heads, block, settings).run();
}

Shape lengths_of(const MaskLayoutSettings& settings) {
  const auto not_empty = [](std::int64_t length, const char* argument, const IntegerArray& given,
                            const char* what) {
    if (length == 0) throw core::invalid("{} has no {}", given->name(), what).about(argument);
    return length;
  };
  if (settings.cu_seqlens_q) {
    const blocks::SequenceOffsets sequences = blocks::sequences_in(settings);
    const auto [keys, of_keys] = blocks::offsets_of_keys(settings);
    return {not_empty(sequences.q.back(), "cu_seqlens_q", settings.cu_seqlens_q, "queries"),
            not_empty(sequences.kv.back(), keys, of_keys, "keys")};
  }
  if (!settings.q_sizes || !settings.kv_sizes) return {};
  const auto sum = [&](const char* argument, const IntegerArray& sizes, const char* what) {
    const std::int64_t length = core::about(
        argument, [&] { return blocks::sum_of_sizes(blocks::sizes_within(*sizes, kLongestMask)); });
    return not_empty(length, argument, sizes, what);
  };
  return {sum("q_sizes", settings.q_sizes, "queries"), sum("kv_sizes", settings.kv_sizes, "keys")};
}

std::int64_t blocks::ArraysPlan::work_bytes() const {
  const InfoPlan& plan = info;
  const BlockShape block = plan.block;
  if (layout.is_divided) return plan.work_bytes();
  const std::int64_t grid = plan.layout.grid(), rows = plan.head_count(), q = plan.q_length(),
                     kv = plan.kv_length();
  // Of flex five tables and a copy of the states; of the others at most that. Of pairs the ranges of a line.
  const std::int64_t of_grid = (has_blocks(settings.layout) ? 32 : 4) + (settings.dq_write_order ? 16 : 0),
                     of_line = 128;
  const auto times = [](std::int64_t a, std::int64_t b) {
    return core::checked_mul(a, b).value_or(core::kMostBytes);
  };
  std::int64_t cells = 0;  // of flashinfer_variable, which blocks of any size may make as many as elements
  if (settings.layout == MaskLayout::flashinfer_variable) {
    const auto count = [](const IntegerArray& given, std::int64_t length, std::int64_t side) {
      return given ? element_count(given->shape()) : core::ceil_div(length, side);
    };
    cells = times(times(count(settings.q_sizes, q, block.q), count(settings.kv_sizes, kv, block.kv)), rows);
  }
  std::int64_t of_sequences = 0;
  if (settings.cu_seqlens_q) {  // states, ids and lists of the blocks of each sequence
    SequenceOffsets offsets = sequences_in(settings);
    const PackedSequences sequences = packed_sequences(std::move(offsets.q), std::move(offsets.kv), block);
    std::int64_t entries = 0;
    for (std::int64_t s = 0; s < sequences.q.count(); ++s)
      entries = core::sum_of_bytes({entries, times(sequences.q.blocks(s), sequences.kv.blocks(s))});
    of_sequences =
        core::sum_of_bytes({times(64, sequences.q.count()), times(times(64, sequences.q.all_blocks()), rows),
                            times(times(24, entries), rows)});
  }
  const std::int64_t bytes =
      core::sum_of_bytes({plan.work_bytes(), of_sequences, times(times(of_grid, grid), rows),
                          times(times(of_line, q + kv), rows), times(3, cells)});
  return bytes < core::kMostBytes ? bytes : INT64_MAX;
}

}  // namespace ejk
