// Plan of a MaskInfo. The distinct masks and partial blocks are known only after the scan, so the plan has
// upper bounds: every block of every mask that may differ is partial and distinct, nothing is shrunk.
// tests: tests/blocks/test_plan.cpp
#include "blocks/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk::blocks {

namespace {

using core::invalid;

// The documented checks in the documented order; returns the numbers of blocks.
Layout checked_layout(const std::vector<Mask>& heads, BlockShape block, const MaskInfoSettings& settings,
                      Direction direction) {
  if (heads.empty()) throw invalid("there is no head: at least one mask is needed");
  const std::int64_t q = heads[0].q_length(), kv = heads[0].kv_length();
  for (std::size_t h = 1; h < heads.size(); ++h)
    if (heads[h].q_length() != q || heads[h].kv_length() != kv)
      throw invalid("the mask of head {} is {} x {}, that of head 0 is {} x {}", h, heads[h].q_length(),
                    heads[h].kv_length(), q, kv);
  for (const auto& [name, value] : {std::pair{"query block", block.q}, std::pair{"key block", block.kv},
                                    std::pair{"number of head shards", settings.head_shards},
                                    std::pair{"number of query shards", settings.q_seq_shards}})
    if (value < 1) throw invalid("the {} is {}; it must be at least 1", name, value);
  const auto indivisible = [](std::string why) {
    return Error(Error::Kind::input, std::move(why), Error::Code::indivisible_mask)
        .hint("padding fills the mask up with False");
  };
  if (!settings.pad && q % block.q != 0)
    throw indivisible(fmt::format("{} query rows do not divide into blocks of {}", q, block.q));
  if (!settings.pad && kv % block.kv != 0)
    throw indivisible(fmt::format("{} key columns do not divide into blocks of {}", kv, block.kv));
  if (std::max(block.q, block.kv) > kLongestMask)
    throw invalid("a block of {} x {} is longer than any mask, {}", block.q, block.kv, kLongestMask);
  const std::int64_t q_blocks = core::ceil_div(q, block.q), shards = settings.q_seq_shards;
  const std::int64_t rows = q_blocks * block.q;
  if (rows % shards != 0) throw invalid("{} query rows do not divide into {} query shards", rows, shards);
  if (rows / shards % block.q != 0)
    throw invalid("the {} query rows of a shard do not divide into blocks of {}", rows / shards, block.q);
  const auto head_count = static_cast<std::int64_t>(heads.size());
  if (head_count % settings.head_shards != 0)
    throw invalid("{} heads do not divide into {} head shards", head_count, settings.head_shards);
  const std::int64_t kv_blocks = core::ceil_div(kv, block.kv);
  if (q_blocks > INT32_MAX || kv_blocks > INT32_MAX)
    throw invalid("{} x {} blocks are more than 32-bit indices can name", q_blocks, kv_blocks);
  element_count(Shape{head_count, q_blocks, kv_blocks});
  return {direction, settings.head_shards, shards, head_count, q_blocks, kv_blocks};
}

template <class Key, class Same>
DistinctMasks distinct_by(const std::vector<Mask>& heads, const std::vector<Key>& keys, Same&& same) {
  DistinctMasks distinct;
  std::unordered_map<Key, std::vector<std::int64_t>> with_key;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    std::vector<std::int64_t>& others = with_key[keys[h]];
    const auto found = std::find_if(others.begin(), others.end(), [&](std::int64_t u) {
      return same(distinct.masks[static_cast<std::size_t>(u)], heads[h]);
    });
    if (found != others.end()) {
      distinct.of_head.push_back(*found);
      continue;
    }
    others.push_back(std::ssize(distinct.masks));
    distinct.of_head.push_back(others.back());
    distinct.masks.push_back(heads[h]);
  }
  return distinct;
}

DistinctMasks known_distinct(const std::vector<Mask>& heads) {
  std::vector<std::string> keys;  // text of a computable mask, identity of others
  for (const Mask& head : heads)
    keys.push_back(head.is_computable() ? head.text()
                                        : fmt::format("{}", static_cast<const void*>(&head.node())));
  return distinct_by(heads, keys, known_same);
}

}  // namespace

bool known_same(const Mask& a, const Mask& b) {
  return &a.node() == &b.node() || (a.is_computable() && b.is_computable() && a.same_as(b));
}

std::int64_t InfoPlan::rows(const DistinctMasks& distinct) const {
  const auto per_shard = static_cast<std::size_t>(head_count() / settings.head_shards);
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (distinct.of_head[h] != distinct.of_head[h / per_shard * per_shard]) return head_count();
  return settings.head_shards;
}

bool InfoPlan::is_left_to_kernel(const DistinctMasks& distinct) const {
  return !is_dynamic() && settings.computable && distinct.masks.size() == 1 &&
         distinct.masks[0].is_computable() && !is_padded();
}

IndexBounds InfoPlan::bounds(const DistinctMasks& distinct) const {
  constexpr std::int64_t kFull = 2;
  const std::int64_t next = direction == Direction::forward ? layout.kv_blocks : layout.q_blocks_per_shard();
  // Dynamic masks: the number of blocks, as in the original packages. Fixed masks: the last index.
  if (is_dynamic())
    return {next, head_count() / settings.head_shards * layout.q_blocks_per_shard() * layout.kv_blocks,
            kFull};
  return {next - 1, static_cast<std::int64_t>(distinct.masks.size()) * layout.grid() - 1, kFull};
}

std::int64_t InfoPlan::work_bytes() const {
  const auto scan = scan_bytes(q_length(), kv_length(), block, Patterns::kept, Reading::any_order);
  // State and id of each stored block, some numbers for each block row and column, and three arrays.
  constexpr std::int64_t kOfBlock = 1 + 4, kOfLine = 64;
  const auto times = [](std::int64_t a, std::int64_t b) {
    return core::checked_mul(a, b).value_or(core::kMostBytes);
  };
  std::int64_t bytes = core::sum_of_bytes({4 * q_length(), scan.value_or(core::kMostBytes)});
  HeldBlocks stored;
  for (const Mask& mask : known.masks) {
    stored = held_blocks(mask, block);
    bytes = core::sum_of_bytes(
        {bytes, times(kOfBlock, stored.all), kOfLine * (layout.q_blocks + layout.kv_blocks)});
  }
  std::int64_t places = layout.grid();
  if (!is_dynamic() && settings.shrink_grid && known.masks.size() == 1)
    places = direction == Direction::forward
                 ? layout.q_blocks * std::max<std::int64_t>(1, stored.widest)
                 : times(layout.q_shards *
                             std::clamp<std::int64_t>(stored.tallest, 1, layout.q_blocks_per_shard()),
                         layout.kv_blocks);
  const IndexBounds most = bounds(known);
  // Arrays of dynamic masks are computed in 32 bits, and narrowed one at a time.
  const std::int64_t of_place = is_dynamic() ? 4 * 4
                                             : size_of(index_dtype(most.data_next)) +
                                                   size_of(index_dtype(most.mask_next)) +
                                                   size_of(index_dtype(most.block_mask));
  bytes = core::sum_of_bytes({bytes, times(times(of_place, layout.rows), places)});
  return bytes < core::kMostBytes ? bytes : INT64_MAX;
}

ArrayType InfoPlan::blocks_type(std::int64_t patterns) const {
  Shape shape = is_dynamic() ? Shape{layout.rows, layout.q_blocks, layout.kv_blocks} : Shape{patterns};
  const Shape pattern = pattern_shape(block, direction);
  shape.insert(shape.end(), pattern.begin(), pattern.end());
  return {DType::boolean, std::move(shape)};
}

std::vector<PlannedArray> InfoPlan::arrays() const {
  const IndexBounds most = bounds(known);
  const Shape grid{layout.rows, layout.q_blocks, layout.kv_blocks};
  const auto index = [&](std::int64_t bound) { return ArrayType(index_dtype(bound), grid); };

  std::vector<PlannedArray> arrays{{"data_next", index(most.data_next)}};
  if (is_left_to_kernel(known)) {
    arrays.push_back({"block_mask", index(most.block_mask)});
    arrays.push_back({"q_sequence", {DType::int32, {q_length()}}});
  } else {
    arrays.push_back({"mask_next", index(most.mask_next)});
    arrays.push_back({"block_mask", index(most.block_mask)});
    arrays.push_back({"partial_mask_blocks", blocks_type(most.mask_next + 1)});
  }
  arrays.push_back({"is_dynamic_mask", {DType::boolean, {}}});
  return arrays;
}

// Masks are compared only if the hashes of their stored elements are equal. Rows are hashed in growing steps
// until hashes are distinct: mostly the first rows are enough. Each rank hashes some of the rows.
DistinctMasks distinct_masks(const std::vector<Mask>& heads, Communicator& comm) {
  constexpr std::int64_t kFirstStep = std::int64_t{1} << 21,
                         kFirstInOrder = std::int64_t{1} << 29;  // elements
  DistinctMasks known = known_distinct(heads);
  const std::vector<Mask>& masks = known.masks;
  const std::int64_t length = masks[0].q_length(), longest = core::ceil_div(length, comm.size());
  const std::int64_t first = std::min(length, comm.rank() * longest),
                     last = std::min(length, first + longest);
  const auto agreed = [&](std::span<const std::uint64_t> own) {
    std::vector<std::vector<std::uint64_t>> all;
    for (Bytes& bytes : comm.all_gather(RankMessage().put_all(own).bytes()))
      all.push_back(RankMessage(std::move(bytes)).take_all<std::uint64_t>());
    return all;
  };

  std::vector<std::uint64_t> hashes(masks.size());
  const bool in_order =
      std::any_of(masks.begin(), masks.end(), [](const Mask& mask) { return !mask.node().random_access(); });
  std::int64_t step =
      std::max<std::int64_t>(1, (in_order ? kFirstInOrder : kFirstStep) / masks[0].kv_length());
  for (std::int64_t at = 0; at < longest; at += step, step *= 2) {
    std::unordered_map<std::uint64_t, std::int64_t> with_hash;
    for (const std::uint64_t hash : hashes) ++with_hash[hash];
    std::vector<std::size_t> open;  // more than two: a pair is compared directly
    for (std::size_t u = 0; u < masks.size(); ++u)
      if (with_hash[hashes[u]] > 2) open.push_back(u);
    if (open.empty()) break;
    const IndexRange rows{std::min(last, first + at), std::min(last, first + at + step)};
    std::vector<std::uint64_t> own;
    for (const std::size_t u : open) own.push_back(masks[u].node().stored_hash(rows));
    for (const auto& of_rank : agreed(own))
      for (std::size_t n = 0; n < open.size(); ++n) {
        const Word both[] = {hashes[open[n]], of_rank[n]};
        hashes[open[n]] = hash_words(both, std::ssize(both));
      }
  }

  DistinctMasks distinct = distinct_by(masks, hashes, [&](const Mask& a, const Mask& b) {
    if (!same_as(a, b, {0, 0})) return false;  // the same on all ranks
    const std::uint64_t same = first == last || same_as(a, b, {first, last});
    const auto answers = agreed(std::span(&same, 1));
    return std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer[0] != 0; });
  });
  for (std::int64_t& u : known.of_head) u = distinct.of_head[static_cast<std::size_t>(u)];
  return {std::move(distinct.masks), std::move(known.of_head)};
}

std::vector<RowCosts> InfoPlan::row_costs(const std::vector<Mask>& masks) const {
  const auto elements = static_cast<double>(block.q) * static_cast<double>(kv_length());
  std::vector<RowCosts> costs;
  for (const Mask& mask : masks) {
    RowCosts& of_mask = costs.emplace_back(mask, block);
    // All blocks of a dynamic mask are read again when they are written.
    if (is_dynamic())
      for (double& row : of_mask.bytes) row += elements * (of_mask.stored_bytes + 1);
  }
  return costs;
}

// A rank has the states and ids of its block rows, once more as a message; rank 0 has those of all masks, the
// index arrays, and the messages for one mask.
std::vector<RankWork> InfoPlan::shares(std::int64_t ranks) const {
  constexpr std::int64_t kBytesPerBlock = 1 + 4;
  const std::vector<RowCosts> costs = row_costs(known.masks);
  const RowPartition of_ranks(ranks, costs);
  const auto elements_of_row = static_cast<double>(block.q) * static_cast<double>(kv_length());
  const auto scan = scan_bytes(q_length(), kv_length(), block, Patterns::kept, Reading::any_order);
  const auto block_bytes = static_cast<double>(block.q) * static_cast<double>(block.kv);
  std::int64_t index_bytes = 0;
  for (const PlannedArray& array : arrays())
    if (array.name != "partial_mask_blocks") index_bytes += array.type.bytes();

  std::vector<RankWork> all(static_cast<std::size_t>(ranks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RankWork& share = all[static_cast<std::size_t>(rank)];
    double read = 0, written = 0;
    std::int64_t blocks = 0;
    for (std::size_t u = 0; u < costs.size(); ++u) {
      const IndexRange rows = of_ranks.rows(rank, static_cast<std::int64_t>(u));
      blocks += rows.count() * layout.kv_blocks;
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const auto at = static_cast<std::size_t>(row);
        share.cost += costs[u].bytes[at];
        read += (costs[u].open[at] + (is_dynamic() ? elements_of_row : 0)) * costs[u].stored_bytes;
        written += is_dynamic() ? static_cast<double>(layout.kv_blocks) * block_bytes : costs[u].open[at];
      }
    }
    share.read_bytes = core::bytes_of_estimate(read);
    share.written_bytes = is_left_to_kernel(known) ? 0 : core::bytes_of_estimate(written);
    const std::int64_t found = kBytesPerBlock * blocks;
    if (rank == 0) {
      share.cost += kBytesOfIndices * static_cast<double>(layout.rows) * static_cast<double>(layout.grid());
      share.written_bytes += index_bytes;
      share.peak_bytes = work_bytes();
      if (ranks > 1)
        share.peak_bytes = core::sum_of_bytes({share.peak_bytes, kBytesPerBlock * layout.grid()});
    } else {
      share.sent_bytes = blocks == 0 ? 0 : found + q_length() / 8 + kv_length() / 8;
      share.peak_bytes = core::sum_of_bytes({2 * found, scan.value_or(core::kMostBytes)});
    }
  }
  return all;
}

InfoPlan checked(std::vector<Mask> heads, BlockShape block, Direction direction, MaskInfoKind kind,
                 const MaskInfoSettings& settings) {
  InfoPlan plan{{}, block, direction, kind, settings, checked_layout(heads, block, settings, direction), {}};
  plan.heads = std::move(heads);
  if (plan.is_dynamic()) {
    if (plan.bounds(plan.known).mask_next > INT32_MAX)
      throw Error(Error::Kind::input, "a shard has more blocks than 32-bit indices can name",
                  Error::Code::too_many_blocks)
          .hint("use more shards of heads or queries");
    element_count(Shape{plan.head_count(), plan.layout.q_blocks, plan.layout.kv_blocks, block.q, block.kv});
    plan.known.masks = plan.heads;
    plan.known.of_head.resize(plan.heads.size());
    std::iota(plan.known.of_head.begin(), plan.known.of_head.end(), 0);
  } else {
    plan.known = known_distinct(plan.heads);
  }
  plan.layout.rows = plan.rows(plan.known);
  return plan;
}

}  // namespace ejk::blocks
