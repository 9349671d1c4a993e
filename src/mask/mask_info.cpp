// The procedure (Q queries, K keys, H heads; block bq × bk; all of it for static masks):
//
// 1. Equal masks are processed once, in order of first appearance over the heads.
// 2. The state of each block: 0 empty, 1 partial, 2 full.
// 3. The index arrays have one row a head shard if every shard holds a single mask, else one a head.
// 4. Partial blocks are numbered by first appearance over the distinct masks, row by row of blocks; equal ones
//    share a number. There is one table for all heads and shards; without any partial block neither the table
//    nor mask_next exists.
// 5. In each slab (head shard × query shard), in the order of the kernel's walk (forward: row, query block, key
//    block; dkv: key block, row, query block; last fastest), data_next is the coordinate of the first
//    non-empty block at or after a position and mask_next the number of the first partial one; past the last
//    they wrap around to the slab's first; 0 where the slab has none. Coordinates of query blocks count
//    within the shard.
// 6. Shrinking, with one distinct mask only: the empty blocks of each row (forward; the rest moves left) or
//    column (dkv; the rest moves down) are left out, per query shard; shards are then extended to the widest.
// 7. A single computable mask keeps no partial blocks and no mask_next: q_sequence and the mask function do.
// 8. Index arrays are narrowed to what their largest value needs.
//
// Dynamic masks skip 1, 3 and 4 to 7: every block is kept and every index says what is there and nothing
// more.
// tests: tests/mask/test_mask_info.cpp
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "core/checked.hpp"
#include "mask/layout.hpp"
#include "mask/node.hpp"
#include "mask/scan.hpp"

namespace ejk {

namespace {

using mask::IndexArrays;
using mask::Layout;
using mask::PatternTable;
using mask::Scan;

Error invalid(std::string why) { return Error(Error::Kind::input, std::move(why)); }

// The documented checks in the documented order; gives the numbers of blocks.
Layout checked_layout(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options,
                      Direction direction) {
  if (heads.empty()) throw invalid("there is no head: at least one mask is needed");
  const std::int64_t q = heads[0].q_length(), kv = heads[0].kv_length();
  for (std::size_t h = 1; h < heads.size(); ++h)
    if (heads[h].q_length() != q || heads[h].kv_length() != kv)
      throw invalid(fmt::format("the mask of head {} is {} x {}, that of head 0 is {} x {}", h,
                                heads[h].q_length(), heads[h].kv_length(), q, kv));
  for (const auto& [name, value] : {std::pair{"query block", block.q}, std::pair{"key block", block.kv},
                                    std::pair{"number of head shards", options.head_shards},
                                    std::pair{"number of query shards", options.q_seq_shards}})
    if (value < 1) throw invalid(fmt::format("the {} is {}; it must be at least 1", name, value));
  const char* pad_hint = "--pad fills the mask up with False";
  if (!options.pad && q % block.q != 0)
    throw invalid(fmt::format("{} query rows do not divide into blocks of {}", q, block.q)).hint(pad_hint);
  if (!options.pad && kv % block.kv != 0)
    throw invalid(fmt::format("{} key columns do not divide into blocks of {}", kv, block.kv)).hint(pad_hint);
  // With padding a block may be longer than the mask, but not longer than any mask.
  if (std::max(block.q, block.kv) > kLongestMask)
    throw invalid(
        fmt::format("a block of {} x {} is longer than any mask, {}", block.q, block.kv, kLongestMask));
  const std::int64_t q_blocks = core::ceil_div(q, block.q), shards = options.q_seq_shards;
  const std::int64_t rows = q_blocks * block.q;
  if (rows % shards != 0)
    throw invalid(fmt::format("{} query rows do not divide into {} query shards", rows, shards));
  if (rows / shards % block.q != 0)
    throw invalid(
        fmt::format("the {} query rows of a shard do not divide into blocks of {}", rows / shards, block.q));
  const auto head_count = static_cast<std::int64_t>(heads.size());
  if (head_count % options.head_shards != 0)
    throw invalid(fmt::format("{} heads do not divide into {} head shards", head_count, options.head_shards));
  const std::int64_t kv_blocks = core::ceil_div(kv, block.kv);
  if (q_blocks > INT32_MAX || kv_blocks > INT32_MAX)
    throw invalid(fmt::format("{} x {} blocks are more than 32-bit indices can name", q_blocks, kv_blocks));
  element_count(Shape{head_count, q_blocks, kv_blocks});
  return {direction, options.head_shards, shards, head_count, q_blocks, kv_blocks};
}

// Progress over several scans, called from one thread at a time.
class Progress {
 public:
  Progress(const ProcessMaskOptions& options, std::int64_t all) : report_(options.progress), all_(all) {}
  std::function<void(std::int64_t)> counter() {
    if (!report_) return {};
    return [this](std::int64_t blocks) { report_(done_ += blocks, all_); };
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>& report_;
  std::int64_t all_;
  std::int64_t done_ = 0;
};

bool needs_padding(const Layout& layout, const Mask& mask, BlockShape block) {
  return layout.q_blocks * block.q != mask.q_length() || layout.kv_blocks * block.kv != mask.kv_length();
}

MaskInfo process(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options,
                 Direction direction) {
  Layout layout = checked_layout(heads, block, options, direction);
  MaskInfo info;
  info.direction = direction;
  info.block = block;
  info.options = options;
  info.options.progress = nullptr;

  // 1. Distinct masks.
  for (const Mask& head : heads) {
    const auto same =
        std::find_if(info.masks.begin(), info.masks.end(), [&](const Mask& m) { return m.same_as(head); });
    info.head_mask.push_back(same - info.masks.begin());
    if (same == info.masks.end()) info.masks.push_back(head);
  }

  // 2. and 4. States and partial blocks.
  const auto table = std::make_shared<PatternTable>(block, options.max_pattern_bytes);
  Progress progress(options, layout.grid() * static_cast<std::int64_t>(info.masks.size()));
  std::vector<Scan> scans;
  for (const Mask& m : info.masks)
    scans.push_back(mask::scan_mask(m, block, table.get(), progress.counter()));

  // 3. Leading rows.
  const std::int64_t per_shard = layout.rows / layout.head_shards;
  bool single = true;
  for (std::size_t h = 0; h < heads.size(); ++h)
    single =
        single &&
        info.head_mask[h] ==
            info.head_mask[h / static_cast<std::size_t>(per_shard) * static_cast<std::size_t>(per_shard)];
  std::vector<mask::RowGrid> rows;
  for (std::size_t h = 0; h < heads.size(); h += single ? static_cast<std::size_t>(per_shard) : 1) {
    const Scan& scan = scans[static_cast<std::size_t>(info.head_mask[h])];
    rows.push_back(
        {reinterpret_cast<const std::uint8_t*>(scan.summary.states.data()),
         table->size() > 0 ? reinterpret_cast<const std::int32_t*>(scan.pattern_ids.data()) : nullptr});
  }
  layout.rows = static_cast<std::int64_t>(rows.size());

  // 5. and 6. Look-ahead and shrinking.
  IndexArrays arrays = index_arrays(layout, rows);
  info.unshrunk_grid = arrays.block_mask.shape();
  if (options.shrink_grid && info.masks.size() == 1) arrays = shrunk(layout, std::move(arrays));

  // 7. Computable masks. One that is padded is not: its function would say True outside.
  info.distinct_partial_blocks = table->size();
  if (options.computable && info.masks.size() == 1 && info.masks[0].is_computable() &&
      !needs_padding(layout, info.masks[0], block)) {
    info.mask_function = info.masks[0];
    info.q_sequence = Array(DType::int32, {info.masks[0].q_length()});
    const auto sequence = info.q_sequence->elements<std::int32_t>();
    std::iota(sequence.begin(), sequence.end(), 0);
  } else if (table->size() > 0) {
    info.partial_mask_blocks = mask::pattern_source(table, direction);
  }

  // 8. Narrowing.
  const auto narrow = [&](Array array) {
    return options.downcast ? mask::downcast(array, mask::largest_value(array)) : std::move(array);
  };
  info.data_next = narrow(std::move(arrays.data_next));
  info.block_mask = narrow(std::move(arrays.block_mask));
  if (info.partial_mask_blocks) info.mask_next = narrow(std::move(arrays.mask_next));
  for (Scan& scan : scans) info.summaries.push_back(std::move(scan.summary));
  return info;
}

// Every block of every mask as bools, made while it is read: (H, q blocks, kv blocks, q, kv), or (…, kv, q).
// The bits of one row of blocks are kept, since a reader asks for its blocks one after the other.
class EveryBlock final : public ArraySource {
 public:
  EveryBlock(std::vector<Mask> masks, const Layout& layout, BlockShape block, Direction direction)
      : masks_(std::move(masks)), block_(block), direction_(direction) {
    shape_ = {layout.rows, layout.q_blocks, layout.kv_blocks, block.q, block.kv};
    if (direction == Direction::dkv) std::swap(shape_[3], shape_[4]);
    element_count(shape_);
  }

  DType dtype() const override { return DType::boolean; }
  const Shape& shape() const override { return shape_; }
  const std::string& name() const override { return name_; }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::scoped_lock lock(mutex_);
    auto* to = static_cast<std::uint8_t*>(out);
    const std::int64_t row_words = mask::words_for(block_.kv);
    std::vector<mask::Word> bits(static_cast<std::size_t>(block_.q * row_words));
    const mask::Box part{start[3], count[3], start[4], count[4]};
    for (std::int64_t h = start[0]; h < start[0] + count[0]; ++h)
      for (std::int64_t i = start[1]; i < start[1] + count[1]; ++i)
        for (std::int64_t j = start[2]; j < start[2] + count[2]; ++j) {
          const mask::BitRows& row = row_of_blocks(h, i);
          const std::int64_t column = j * block_.kv;
          mask::gather(row, column, std::min(block_.kv, row.columns - column), row_words, bits.data());
          std::fill(bits.begin() + row.rows * row_words, bits.end(), mask::Word{0});
          mask::expand_part(bits.data(), row_words, part, direction_, to);
          to += count[3] * count[4];
        }
  }

 private:
  const mask::BitRows& row_of_blocks(std::int64_t h, std::int64_t i) const {
    if (h == held_head_ && i == held_row_) return held_;
    const MaskNode& node = masks_[static_cast<std::size_t>(h)].node();
    const mask::Rectangle where{i * block_.q, std::min((i + 1) * block_.q, node.q_length()), 0,
                                node.kv_length()};
    held_head_ = -1;  // in case filling fails
    held_ = buffer_.rows(where.rows(), where.columns());
    node.fill(where, held_);
    held_head_ = h;
    held_row_ = i;
    return held_;
  }

  std::vector<Mask> masks_;
  BlockShape block_;
  Direction direction_;
  Shape shape_;
  std::string name_ = "partial_mask_blocks";
  mutable std::mutex mutex_;
  mutable mask::BitBuffer buffer_;
  mutable mask::BitRows held_;
  mutable std::int64_t held_head_ = -1, held_row_ = -1;
};

MaskInfo process_dynamic(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options,
                         Direction direction) {
  const Layout layout = checked_layout(heads, block, options, direction);
  MaskInfo info;
  info.direction = direction;
  info.block = block;
  info.options = options;
  info.options.progress = nullptr;
  info.is_dynamic_mask = true;
  info.masks = heads;
  Progress progress(options, layout.grid() * layout.rows);

  const Shape shape{layout.rows, layout.q_blocks, layout.kv_blocks};
  Array data_next(DType::int32, shape), mask_next(DType::int32, shape), block_mask(DType::int32, shape);
  auto* data = reinterpret_cast<std::int32_t*>(data_next.data());
  auto* next = reinterpret_cast<std::int32_t*>(mask_next.data());
  auto* states = reinterpret_cast<std::int32_t*>(block_mask.data());
  const std::int64_t heads_per_shard = layout.rows / layout.head_shards,
                     per_shard = layout.q_blocks_per_shard();
  const std::optional<std::int64_t> slab = core::checked_mul(heads_per_shard, per_shard * layout.kv_blocks);
  if (!slab || *slab > INT32_MAX)
    throw invalid("a shard has more blocks than 32-bit indices can name")
        .hint("use more --head-shards or --q-seq-shards");
  for (std::int64_t h = 0; h < layout.rows; ++h) {
    Scan scan = mask::scan_mask(heads[static_cast<std::size_t>(h)], block, nullptr, progress.counter());
    const auto* found = reinterpret_cast<const std::uint8_t*>(scan.summary.states.data());
    for (std::int64_t i = 0; i < layout.q_blocks; ++i)
      for (std::int64_t j = 0; j < layout.kv_blocks; ++j, ++found, ++data, ++next, ++states) {
        *states = *found;
        if (*found != 0)
          *data = static_cast<std::int32_t>(direction == Direction::forward ? j : i % per_shard);
        if (*found == 1)
          *next = static_cast<std::int32_t>(
              ((h % heads_per_shard) * per_shard + i % per_shard) * layout.kv_blocks + j);
      }
    info.head_mask.push_back(h);
    info.summaries.push_back(std::move(scan.summary));
  }
  // Narrowed by what the indices could be, not by what they are: the arrays of all masks of a shape are
  // alike.
  const auto narrow = [&](Array array, std::int64_t bound) {
    return options.downcast ? mask::downcast(array, bound) : std::move(array);
  };
  info.data_next =
      narrow(std::move(data_next), direction == Direction::forward ? layout.kv_blocks : per_shard);
  info.mask_next = narrow(std::move(mask_next), *slab);
  info.block_mask = narrow(std::move(block_mask), 0);
  info.unshrunk_grid = shape;
  info.partial_mask_blocks = std::make_shared<EveryBlock>(heads, layout, block, direction);
  return info;
}

std::vector<Mask> heads_of(const std::shared_ptr<const ArraySource>& mask) {
  if (mask->shape().size() != 3)
    throw invalid(fmt::format("a dynamic mask has three axes (heads, queries, keys), not the shape {}",
                              to_string(mask->shape())));
  if (mask->dtype() != DType::boolean)
    throw invalid(fmt::format("a dynamic mask must be bool, not {}", name_of(mask->dtype())));
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < mask->shape()[0]; ++h) heads.push_back(array_mask(slice_of(mask, h)));
  return heads;
}

}  // namespace

void check_mask_blocks(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options) {
  checked_layout(heads, block, options, Direction::forward);
}

MaskInfo process_mask(const std::vector<Mask>& heads, BlockShape block, const ProcessMaskOptions& options) {
  return process(heads, block, options, Direction::forward);
}

MaskInfo process_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                          const ProcessMaskOptions& options) {
  return process(heads, block, options, Direction::dkv);
}

MaskInfo process_dynamic_mask(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                              const ProcessMaskOptions& options) {
  return process_dynamic(heads_of(mask), block, options, Direction::forward);
}

MaskInfo process_dynamic_mask_dkv(const std::shared_ptr<const ArraySource>& mask, BlockShape block,
                                  const ProcessMaskOptions& options) {
  return process_dynamic(heads_of(mask), block, options, Direction::dkv);
}

MaskInfo process_dynamic_mask(const std::vector<Mask>& heads, BlockShape block,
                              const ProcessMaskOptions& options) {
  return process_dynamic(heads, block, options, Direction::forward);
}

MaskInfo process_dynamic_mask_dkv(const std::vector<Mask>& heads, BlockShape block,
                                  const ProcessMaskOptions& options) {
  return process_dynamic(heads, block, options, Direction::dkv);
}

std::int64_t mask_info_bytes(std::int64_t heads, std::int64_t q_length, std::int64_t kv_length,
                             BlockShape block) {
  // States and ids of each mask, three arrays in 32 bits, one of them twice while it shrinks, and the states
  // once more in the report.
  constexpr std::int64_t kBytesPerBlock = 1 + 4 + 3 * 4 + 4 + 1;
  const std::int64_t q_blocks = core::ceil_div(q_length, block.q),
                     kv_blocks = core::ceil_div(kv_length, block.kv);
  const auto blocks = core::checked_mul(q_blocks * kBytesPerBlock, kv_blocks);
  const auto all = blocks ? core::checked_mul(*blocks, heads) : std::nullopt;
  const auto scan =
      mask::scan_bytes(q_length, kv_length, block, mask::Patterns::kept, mask::Reading::any_order);
  constexpr std::int64_t kMost = std::int64_t{1} << 60;  // no memory holds as much
  if (!all || !scan || *all > kMost) return INT64_MAX;
  return *all + 4 * q_length + *scan;
}

}  // namespace ejk
