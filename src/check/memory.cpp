// Memory estimates for `check`: how much of each array a check keeps, and the buffers in which its threads
// read.
// tests: tests/cli/check/
#include <algorithm>

#include "blocks/scan.hpp"
#include "check/integers.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "ejk/sparsity.hpp"
#include "ejk/threads.hpp"

namespace ejk {

namespace {

constexpr double kNumber = 8;

double elements_of(const IntegerArray& array) {
  return array ? static_cast<double>(element_count(array->shape())) : 0;
}

std::int64_t with_pieces(double bytes) {
  return core::sum_of_bytes({check_bytes(), core::bytes_of_estimate(bytes)});
}

// Checks that read whole rows keep, on each thread, a row as read and as integers, and a table of its values.
double row_bytes(const IntegerArray& array) {
  if (array->shape().size() < 2) return 0;
  return static_cast<double>(check_bytes()) +
         static_cast<double>(array->shape().back()) * (16 + 64) * static_cast<double>(threads());
}

}  // namespace

std::int64_t check_bytes() { return 16 * check::kPiece * threads(); }

std::int64_t check_segment_ids_bytes(const SegmentIdsClaims& claims) {
  return with_pieces(2 * kNumber * elements_of(claims.cu_seqlens));
}

std::int64_t check_chunk_indices_bytes(const IntegerArray& chunk_indices, const ChunkIndicesClaims& claims) {
  constexpr double kOfChunk =
      2 * 2 * 2 + 1;  // rows of two forms, which may grow to twice their size, and an index
  const double tokens = static_cast<double>(core::read_last_offset(*claims.cu_seqlens)),
               sequences = elements_of(claims.cu_seqlens),
               chunks = sequences + std::max(tokens, 0.0) /
                                        static_cast<double>(std::max<std::int64_t>(claims.chunk_size, 1));
  return with_pieces(kNumber * (elements_of(chunk_indices) + 2 * sequences +
                                2 * elements_of(claims.chunk_offsets) + kOfChunk * chunks));
}

std::int64_t check_seq_idx_bytes(const IntegerArray& cu_seqlens) {
  return with_pieces((2 * kNumber + 1) * elements_of(cu_seqlens));
}

std::int64_t check_state_indices_bytes(const IntegerArray& state_indices, const StateIndicesClaims& claims) {
  constexpr double kOfSlot = 64;  // in a map
  return with_pieces((kOfSlot + kNumber) * elements_of(state_indices) +
                     2 * kNumber *
                         (elements_of(claims.block_table) + elements_of(claims.computed) +
                          elements_of(claims.has_initial_state)));
}

std::int64_t check_position_ids_bytes(const PositionIdsClaims& claims) {
  return with_pieces(2 * kNumber * elements_of(claims.cu_seqlens));
}

std::int64_t check_permutation_bytes(const IntegerArray& order, const PermutationClaims& claims) {
  // The order and its inverse, and those of the order that it is compared with.
  double of_mask = 0;
  if (claims.mask && claims.ranks) {
    of_mask = static_cast<double>(loads_of_order_bytes(claims.mask->q_length(), *claims.ranks));
    if (claims.block)
      of_mask += static_cast<double>(
          SparsityPlan({*claims.mask}, {*claims.block}, {.ranks = *claims.ranks}).work_bytes());
  }
  return with_pieces(of_mask + 5 * kNumber / 2 * elements_of(order) +
                     5 * kNumber * elements_of(claims.cu_seqlens) +
                     4 * kNumber * static_cast<double>(claims.ranks.value_or(0)));
}

std::int64_t check_group_metadata_bytes(const GroupMetadataArrays& arrays,
                                        const GroupMetadataClaims& claims) {
  double bytes = kNumber * (2 * elements_of(claims.group_sizes) + static_cast<double>(claims.experts));
  for (const IntegerArray* array :
       {&arrays.group_offsets, &arrays.group_ids, &arrays.m_tile_ids, &arrays.num_tiles})
    bytes += 4 * kNumber * elements_of(*array);
  return with_pieces(bytes);
}

std::int64_t check_topk_ids_bytes(const IntegerArray& topk_ids, std::optional<std::int64_t> experts) {
  return with_pieces(row_bytes(topk_ids) +
                     kNumber * static_cast<double>(experts.value_or(0)) * (1 + threads()));
}

std::int64_t check_indices_bytes(const IntegerArray& indices) { return with_pieces(row_bytes(indices)); }

std::int64_t check_block_table_bytes(const IntegerArray& block_table, const IntegerArray& seq_lens,
                                     const BlockTableClaims& claims) {
  constexpr double kOfEntry = 64;  // in a map of the pages
  double pages = kOfEntry * elements_of(block_table);
  if (claims.pages) pages = std::min(pages, kNumber * static_cast<double>(*claims.pages));
  return with_pieces(kNumber * elements_of(seq_lens) + pages);
}

std::int64_t check_slot_mapping_bytes(const IntegerArray& slots, const IntegerArray& block_table,
                                      const SlotMappingClaims& claims) {
  constexpr double kOfEntry = 64;  // in a map of the pages, or of the slots
  return with_pieces(kOfEntry * (elements_of(slots) + elements_of(block_table)) +
                     kNumber * (2 * elements_of(claims.seq_lens) + 2 * elements_of(claims.positions) +
                                2 * elements_of(claims.cu_seqlens)));
}

std::int64_t check_mask_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block) {
  const auto scan =
      blocks::scan_bytes(q_length, kv_length, block, blocks::Patterns::dropped, blocks::Reading::in_order);
  const auto blocks =
      core::checked_mul(core::ceil_div(q_length, block.q), core::ceil_div(kv_length, block.kv));
  // The state of each block, and the panels of both masks.
  return core::sum_of_bytes(
      {blocks.value_or(core::kMostBytes), scan.value_or(core::kMostBytes), scan.value_or(core::kMostBytes)});
}

std::int64_t check_mask_info_bytes(const ArrayGroup& arrays, const MaskInfoClaims& claims) {
  constexpr double kOfEntry = 40, kOfPattern = 32;
  double bytes = 0;
  if (const auto array = arrays.find("data_next"))
    bytes += kOfEntry * static_cast<double>(element_count(array->shape()));
  else
    bytes += 2 * static_cast<double>(StoredMaskInfo::cost(arrays).buffered);
  BlockShape block{128, 128};
  if (const auto array = arrays.find("partial_mask_blocks"); array && array->shape().size() > 1) {
    const Shape& shape = array->shape();
    block = {std::max<std::int64_t>(shape.end()[-2], 1), std::max<std::int64_t>(shape.end()[-1], 1)};
    const double one = static_cast<double>(block.q) * static_cast<double>(block.kv);
    bytes += kOfPattern * static_cast<double>(shape[0]) + one * 9 / 8;  // one as bytes and as bits
    if (!array->random_access()) bytes += static_cast<double>(element_count(shape)) / 8;  // all as bits
  }
  if (!claims.masks.empty()) {
    const Mask& mask = claims.masks.front();
    bytes += static_cast<double>(check_mask_bytes(mask.q_length(), mask.kv_length(), block));
    // Of blocks of any sizes, those that differ in one head.
    constexpr double kOfBlock = 160;
    if (const auto array = arrays.find("block_mask_map"); array && array->shape().size() == 3)
      bytes += kOfBlock * static_cast<double>(array->shape()[1]) * static_cast<double>(array->shape()[2]);
  }
  if (const std::optional<Shape>& shape = claims.settings.shape; shape && shape->size() == 3) {
    const std::int64_t rows = (*shape)[1] / block.q + 1, columns = (*shape)[2] / block.kv + 1;
    bytes += static_cast<double>(std::min(claims.pictures, (*shape)[0])) * static_cast<double>(rows) *
             static_cast<double>(columns);
  }
  return core::bytes_of_estimate(bytes);
}

}  // namespace ejk
