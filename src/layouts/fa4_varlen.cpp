// FlashAttention-4's lists for packed sequences: the blocks of each sequence begin with its first query and key.
//
// Counts (heads, M) and indices (heads, N) have the rows of blocks of all sequences in turn. Those of sequence s
// begin with count cu_total_m_blocks[s] and index cu_block_idx_offsets[s]; each row has as many indices as the
// sequence has key blocks. Indices count from the sequence's first key block; entries behind the count are 0.
// Without cu_block_idx_offsets sequences have equally many keys. cu_seqlens_q and cu_seqlens_k, which a kernel
// gets beside them, are arrays of the file.
// Source: flash-attn-4 4.0.0b36 compute_block_sparsity.py, block_sparse_utils.py.
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>

#include "core/checked.hpp"
#include "layouts/lists.hpp"

namespace ejk::blocks {

namespace {

constexpr const char* kRows = "cu_total_m_blocks";
constexpr const char* kOffsets = "cu_block_idx_offsets";

// --- reading

SequenceOffsets sequences_of(const ArrayGroup& group) {
  const auto array = [&](const char* name) {
    auto found = group.find(name);
    if (!found) throw wrong(name, "{}: there is no {}", group.name, name);
    return found;
  };
  const auto q = array("cu_seqlens_q"), kv = array("cu_seqlens_k");
  SequenceOffsets read = read_sequences(*q, *kv);
  for (const auto& [offsets, cu, name] :
       {std::tuple{&read.q, &q, "cu_seqlens_q"}, std::tuple{&read.kv, &kv, "cu_seqlens_k"}})
    if (offsets->back() == 0) throw wrong(name, "{}: its sequences are empty", (*cu)->name());
  return read;
}

class SequenceLists final : public ListedBlocks {
 public:
  SequenceLists(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    const StoredSettings set = settings_of(group, given);
    if (set.direction == Direction::dkv)
      throw wrong("dkv", "{}: lists of packed sequences are of the forward pass", name);
    lists_[0] = {read_index(group, kFa4Lists.partial_count, 2), read_index(group, kFa4Lists.partial, 2)};
    lists_[1].count = read_index(group, kFa4Lists.full_count, 2, false);
    lists_[1].entries = read_index(group, kFa4Lists.full, 2, static_cast<bool>(lists_[1].count));
    first_rows_ = read_index(group, kRows, 1);
    offsets_ = read_index(group, kOffsets, 1, false);
    patterns = group.find("partial_mask_blocks");
    ids_ = read_index(group, "partial_block_ids", 2, static_cast<bool>(patterns));
    std::optional<BlockShape> stored;
    if (patterns) stored = block_in(*patterns, "bool");
    block = required_block(group, agreed_block(group, set.block, stored));
    SequenceOffsets offsets = sequences_of(group);
    auto made = std::make_shared<PackedSequences>(
        packed_sequences(std::move(offsets.q), std::move(offsets.kv), block));
    q_blocks = made->q.all_blocks(), kv_blocks = made->kv.all_blocks();
    rows = lists_[0].count.shape()[0];
    shape = {rows, made->q.packed.back(), made->kv.packed.back()};
    if (set.shape) shape = shape_in(*set.shape, rows);
    const std::int64_t count = made->q.count();
    sequences = std::move(made);
    require_lengths(*this, shape.q_length, shape.kv_length);
    for (const IndexArray* cu : {&first_rows_, &offsets_})
      if (*cu && cu->size() != count + 1)
        throw wrong(cu->name, "{} has {} elements for {} sequences", cu->source->name(), cu->size(), count);
    const Shape counts{rows, q_blocks}, entries{rows, lists_[0].entries.shape()[1]};
    for (const auto& [index, wanted] :
         {std::pair{&lists_[0].count, counts}, std::pair{&lists_[1].count, counts},
          std::pair{&lists_[0].entries, entries}, std::pair{&lists_[1].entries, entries},
          std::pair{&ids_, entries}})
      if (*index && index->shape() != wanted)
        throw wrong(index->name, "{} has the shape {}; it is {} for {} masks of {} query blocks",
                    index->source->name(), to_string(index->shape()), to_string(wanted), rows, q_blocks);
    if (rows == 0 || q_blocks > INT32_MAX || kv_blocks > INT32_MAX)
      throw wrong("shape", "{}: no mask, or more than 2^31 blocks in a row", name);
    for (const IndexArray* index : {&lists_[0].count, &lists_[0].entries, &lists_[1].count,
                                    &lists_[1].entries, &first_rows_, &offsets_, &ids_})
      if (*index) indices.push_back(index);
  }

  bool is_computed(std::int64_t) const override { return !patterns; }

  void walk(std::int64_t, std::int64_t row, const ArrayWalk& to) const override {
    for (std::int64_t s = 0; s < sequences->q.count(); ++s) {
      const std::int64_t m_blocks = sequences->q.blocks(s), first = first_rows_[s];
      if (first >= 0 && first <= q_blocks - m_blocks)
        for (std::int64_t m = 0; m < m_blocks; ++m)
          for (const List& list : lists_) walk_list(list, row, s, m, to);
      else if (m_blocks > 0)
        to.fault("range", {first_rows_.name, s}, first,
                 fmt::format("{} rows of {} begin there", m_blocks, q_blocks));
    }
  }

  // Rows within the arrays that are those of another sequence. walk() reports others.
  void check(const ArrayWalk& to) const override {
    const PackedAxis& q = sequences->q;
    for (std::int64_t s = 0; s < q.count(); ++s) {
      const std::int64_t first = first_rows_[s], before = q.first_block(s), own = q.blocks(s);
      if (own > 0 && first != before && first >= 0 && first <= q_blocks - own)
        to.fault("order", {first_rows_.name, s}, first,
                 fmt::format("the sequences before have {} query blocks", before));
    }
  }

  std::shared_ptr<const BlockElements> elements(std::int64_t) const override {
    return patterns ? pattern_elements(patterns, Direction::forward) : nullptr;
  }

  ArrayPlace home(std::int64_t, std::int64_t row, std::int64_t i, std::int64_t) const override {
    return {lists_[0].count.name, row * q_blocks + i};
  }

  std::pair<const char*, Shape> element_place(std::int64_t, std::int64_t, std::int64_t, std::int32_t pattern,
                                              std::int64_t q, std::int64_t k) const override {
    return {"partial_mask_blocks", {pattern, q % block.q, k % block.kv}};
  }

 private:
  struct List {
    IndexArray count, entries;
  };

  void walk_list(const List& list, std::int64_t row, std::int64_t s, std::int64_t m,
                 const ArrayWalk& to) const {
    if (!list.count) return;
    const std::int64_t n_blocks = sequences->kv.blocks(s), at_count = row * q_blocks + first_rows_[s] + m,
                       count = list.count[at_count], all = list.entries.shape()[1];
    if (count < 0 || count > n_blocks) {
      to.fault("range", {list.count.name, at_count}, count,
               fmt::format("sequence {} has {} key blocks", s, n_blocks));
      return;
    }
    if (count == 0) return;
    const IndexArray& offsets = offsets_ ? offsets_ : first_rows_;
    const std::int64_t begin = offsets_ ? offsets_[s] : first_rows_[s] * n_blocks,
                       first = begin < 0 || begin > all ? -1 : begin + m * n_blocks;
    if (first < 0 || first > all - count) {
      to.fault("range", {offsets.name, s}, offsets[s],
               fmt::format("{} has {} entries", list.entries.name, all));
      return;
    }
    for (std::int64_t at = row * all + first; at < row * all + first + count; ++at) {
      const std::int64_t entry = list.entries[at];
      if (entry < 0 || entry >= n_blocks) {
        to.fault("range", {list.entries.name, at}, entry,
                 fmt::format("sequence {} has {} key blocks", s, n_blocks));
        continue;
      }
      const std::int64_t j = sequences->kv.first_block(s) + entry;
      std::int64_t pattern = BlockGrid::kFull;
      if (&list == &lists_[0] && patterns) {
        pattern = ids_[at];
        if (pattern < 0 || pattern >= patterns->shape()[0]) {
          to.fault("range", {ids_.name, at}, pattern,
                   fmt::format("partial_mask_blocks has {}", patterns->shape()[0]));
          continue;
        }
      } else if (&list == &lists_[0]) {
        pattern = j;  // its elements are computed
      }
      to.visit(sequences->q.first_block(s) + m, j, static_cast<std::int32_t>(pattern),
               {list.entries.name, at});
    }
  }

  List lists_[2];  // partial, full
  IndexArray first_rows_, offsets_, ids_;
};

// --- writing

// The True elements of a mask that are pairs of two sequences: how many, and the first.
void count_outside(const MaskScans& scans, const PackedSequences& sequences, std::int64_t outside,
                   std::int64_t head, MaskArrays& made) {
  if (outside == 0) return;
  if (made.differing == 0) {
    const Scan& scan = scans.of_row(scans.rows() == 1 ? 0 : head);
    for_each_line(scans, scan, Lines::queries, [&](std::int64_t q, std::span<const IndexRange> ranges) {
      if (!made.first_difference.empty()) return;
      const auto s = static_cast<std::size_t>(sequences.q.sequence_of(q));
      const std::int64_t begin = sequences.kv.packed[s], end = sequences.kv.packed[s + 1];
      for (const IndexRange& range : ranges)
        if (made.first_difference.empty() && (range.begin < begin || range.end > end))
          made.first_difference = {head, q, range.begin < begin ? range.begin : std::max(range.begin, end)};
    });
  }
  made.differing += outside;
}

}  // namespace

bool is_varlen(const ArrayGroup& group) {
  const auto counts = group.find(kFa4Lists.partial_count);
  return group.find(kRows) || (counts && counts->shape().size() == 2);
}

std::shared_ptr<const ListedBlocks> list_varlen(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<SequenceLists>(group, settings);
}

void write_varlen(const MaskScans& scans, ArraysMade& to) {
  const BlockShape block = scans.plan.block;
  SequenceOffsets cu = sequences_in(scans.settings);
  const auto sequences =
      std::make_shared<const PackedSequences>(packed_sequences(std::move(cu.q), std::move(cu.kv), block));
  const PackedAxis &q = sequences->q, &kv = sequences->kv;

  // The same masks in padded positions, whose blocks are those of the sequences.
  const auto table = std::make_shared<PatternTable>(scans.table->beside(block));
  std::vector<Scan> padded;
  for (const Mask& mask : scans.distinct.masks)
    padded.push_back(scan_mask(padded_mask(mask, sequences), block, table.get()));
  const MaskScans of_blocks{{scans.distinct, std::move(padded), table}, scans.plan, scans.settings};

  const std::int64_t rows = scans.rows(), count = q.count();
  std::vector<std::int64_t> first_entry{0};
  for (std::int64_t s = 0; s < count; ++s) {
    const auto more = core::checked_mul(q.blocks(s), kv.blocks(s));
    if (!more || *more > INT32_MAX - first_entry.back())
      throw core::invalid("{}: more than 2^31 entries", kOffsets).about(kOffsets);
    first_entry.push_back(first_entry.back() + *more);
  }
  const std::int64_t all = first_entry.back();
  Array counts[2], lists[2];
  for (const int list : {0, 1}) {
    counts[list] = index_array(kFa4Lists.partial_count, {rows, q.all_blocks()}, q.all_blocks());
    lists[list] = index_array(kFa4Lists.partial, {rows, all}, all);
  }
  Array ids = index_array("partial_block_ids", {rows, all}, table->size());
  UsedPatterns used(table);
  for (std::int64_t row = 0; row < rows; ++row) {
    const ScanGrid grid(of_blocks.of_row(row));
    for (std::int64_t s = 0; s < count; ++s)
      for (std::int64_t m = 0; m < q.blocks(s); ++m) {
        const std::int64_t i = q.first_block(s) + m, queries = std::min(block.q, q.length(s) - m * block.q);
        const std::int64_t first = row * all + first_entry[static_cast<std::size_t>(s)] + m * kv.blocks(s);
        grid.for_each(i, [&](std::int64_t j, std::uint8_t state) {
          const std::int64_t n = j - kv.first_block(s),
                             keys = std::min(block.kv, kv.length(s) - n * block.kv);
          const bool full = state != kPartial || is_all_true(of_blocks, grid.pattern(i, j), queries, keys);
          std::int32_t& listed =
              counts[full].elements<std::int32_t>()[static_cast<std::size_t>(row * q.all_blocks() + i)];
          const auto at = static_cast<std::size_t>(first + listed++);
          lists[full].elements<std::int32_t>()[at] = static_cast<std::int32_t>(n);
          if (!full) ids.elements<std::int32_t>()[at] = used.number_of(grid.pattern(i, j));
        });
      }
  }
  for (std::int64_t head = 0; head < scans.plan.head_count(); ++head) {
    const auto mask = static_cast<std::size_t>(scans.distinct.of_head[static_cast<std::size_t>(head)]);
    count_outside(scans, *sequences,
                  scans.scans[mask].summary.true_elements - of_blocks.scans[mask].summary.true_elements, head,
                  to.into);
  }
  to.add(kFa4Lists.partial_count, std::move(counts[0]));
  to.add(kFa4Lists.partial, std::move(lists[0]));
  to.add(kFa4Lists.full_count, std::move(counts[1]));
  to.add(kFa4Lists.full, std::move(lists[1]));
  const auto add_offsets = [&](const char* name, auto&& value_of) {
    Array offsets = index_array(name, {count + 1}, value_of(count));
    for (std::int64_t s = 0; s <= count; ++s)
      offsets.elements<std::int32_t>()[static_cast<std::size_t>(s)] = static_cast<std::int32_t>(value_of(s));
    to.add(name, std::move(offsets));
  };
  add_offsets(kRows, [&](std::int64_t s) { return q.first_block(s); });
  add_offsets(kOffsets, [&](std::int64_t s) { return first_entry[static_cast<std::size_t>(s)]; });
  add_offsets("cu_seqlens_q", [&](std::int64_t s) { return q.packed[static_cast<std::size_t>(s)]; });
  add_offsets("cu_seqlens_k", [&](std::int64_t s) { return kv.packed[static_cast<std::size_t>(s)]; });
  to.add("block_size", {block.q, block.kv}, {2});
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
  used.write(std::move(ids), to);
}

}  // namespace ejk::blocks
