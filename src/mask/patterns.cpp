// Pattern table: open addressing over the hashes of patterns. Memory: an eighth of the patterns as bools.
// Time: one hash a lookup, and one comparison for a pattern that is already stored.
// tests: tests/mask/test_patterns.cpp
#include "mask/patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk::mask {

namespace {

std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

// Four independent chains of multiply and rotate, so that the multiplications overlap.
std::uint64_t hash_words(const Word* words, std::int64_t n) {
  constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  std::uint64_t lane[4] = {1, 2, 3, 4};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int l = 0; l < 4; ++l) lane[l] = std::rotl((lane[l] ^ words[i + l]) * kPrime, 29);
  for (; i < n; ++i) lane[0] = std::rotl((lane[0] ^ words[i]) * kPrime, 29);
  std::uint64_t h = static_cast<std::uint64_t>(n);
  for (const std::uint64_t l : lane) {
    h = (h ^ l) * kPrime;
    h ^= h >> 32;
  }
  return h;
}

PatternTable::PatternTable(BlockShape block, std::int64_t max_bytes, Hash function)
    : block_(block),
      row_words_(words_for(block.kv)),
      max_bytes_(max_bytes),
      hash_(function),
      used_bytes_(std::make_shared<std::atomic<std::int64_t>>(0)) {}

PatternTable PatternTable::of_digests(BlockShape block, std::int64_t max_bytes, const Digester::Seed& seed) {
  PatternTable table(block, max_bytes);
  table.digester_ = std::make_shared<const Digester>(block.q * table.row_words_, seed);
  return table;
}

PatternTable PatternTable::part() const {
  PatternTable table(block_, max_bytes_, hash_);
  table.digester_ = digester_;
  table.used_bytes_ = used_bytes_;
  table.whole_ = this;
  return table;
}

PatternTable PatternTable::beside(BlockShape block) const {
  PatternTable table(block, max_bytes_, hash_);
  table.used_bytes_ = used_bytes_;
  return table;
}

void PatternTable::count_bytes(std::int64_t bytes, Error::Code what) const {
  const std::int64_t used = used_bytes_->fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (max_bytes_ == 0 || used <= max_bytes_) return;
  const bool is_slices = what == Error::Code::too_many_slices;
  throw Error(
      Error::Kind::budget,
      fmt::format("{} need more than {} of memory", is_slices ? "the slices" : "the different partial blocks",
                  format_bytes(max_bytes_)),
      what)
      .hint(is_slices ? "a mask of many short ranges of keys is smaller in blocks"
                      : "larger blocks have fewer partial ones");
}

// Chunks grow: many patterns are on huge pages.
Word* PatternTable::next_pattern_slot() {
  constexpr std::int64_t kFirstChunk = std::int64_t{1} << 13, kLargestChunk = std::int64_t{1} << 22;  // words
  constexpr std::int64_t kBookkeeping = 96;  // bytes of an entry and its index
  count_bytes(pattern_words() * static_cast<std::int64_t>(sizeof(Word)) + kBookkeeping);
  if (free_words_ < pattern_words()) {
    const std::int64_t next =
        chunks_.empty() ? kFirstChunk : std::min(kLargestChunk, 8 * chunks_.back().size());
    chunks_.emplace_back(DType::uint64, Shape{std::max(next, pattern_words())});
    free_ = chunks_.back().elements<Word>().data();
    free_words_ = chunks_.back().size();
  }
  free_words_ -= pattern_words();
  return std::exchange(free_, free_ + pattern_words());
}

std::optional<std::int32_t> PatternTable::find(std::uint64_t hash, const Word* pattern) const {
  if (index_.empty()) return std::nullopt;
  const auto bytes = static_cast<std::size_t>(pattern_words()) * sizeof(Word);
  const std::size_t mask = index_.size() - 1;
  for (std::size_t at = hash & mask; index_[at].slot != kNoSlot; at = (at + 1) & mask) {
    if (index_[at].tag != tag_of(hash)) continue;
    const Entry& e = entries_[static_cast<std::size_t>(index_[at].slot)];
    if (e.hash == hash && std::memcmp(e.bits, pattern, bytes) == 0) return index_[at].slot;
  }
  return std::nullopt;
}

void PatternTable::place(std::uint64_t hash, std::int32_t slot) {
  const std::size_t mask = index_.size() - 1;
  std::size_t at = hash & mask;
  while (index_[at].slot != kNoSlot) at = (at + 1) & mask;
  index_[at] = {tag_of(hash), slot};
}

std::int32_t PatternTable::enter(std::uint64_t hash, const Word* kept) {
  constexpr std::size_t kFirstPlaces = 64;
  if (size() >= INT32_MAX) throw core::invalid("more than 2^31 different partial blocks");
  const auto slot = static_cast<std::int32_t>(size());
  entries_.push_back({kept, hash, kNoId});
  if (2 * entries_.size() <= index_.size()) {
    place(hash, slot);
    return slot;
  }
  // At most half full, for short probes of absent patterns.
  index_.assign(std::max(kFirstPlaces, 2 * index_.size()), Place{});
  for (std::int32_t s = 0; s <= slot; ++s) place(entries_[static_cast<std::size_t>(s)].hash, s);
  return slot;
}

std::int32_t PatternTable::find_or_add_words(const Word* pattern) {
  const std::uint64_t hash = hash_(pattern, pattern_words());
  if (whole_ != nullptr)
    if (const auto slot = whole_->find(hash, pattern)) return ~*slot;
  if (const auto slot = find(hash, pattern)) return *slot;
  Word* kept = next_pattern_slot();
  std::copy_n(pattern, pattern_words(), kept);
  return enter(hash, kept);
}

std::vector<std::int32_t> PatternTable::join(PatternTable part) {
  std::vector<std::int32_t> slots(part.entries_.size());
  std::move(part.chunks_.begin(), part.chunks_.end(), std::back_inserter(chunks_));
  if (entries_.empty()) {
    entries_ = std::move(part.entries_);
    index_ = std::move(part.index_);
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Entry& e = part.entries_[i];
    const auto slot = find(e.hash, e.bits);
    slots[i] = slot ? *slot : enter(e.hash, e.bits);
  }
  return slots;
}

std::int32_t PatternTable::id_of(std::int32_t slot) {
  std::int32_t& id = entries_[static_cast<std::size_t>(slot)].id;
  if (id == kNoId) {
    id = static_cast<std::int32_t>(slot_of_.size());
    slot_of_.push_back(slot);
  }
  return id;
}

void PatternTable::number(std::span<const std::uint8_t> states, std::span<std::int32_t> blocks) {
  for (std::size_t b = 0; b < blocks.size(); ++b)
    if (states[b] == kPartial) blocks[b] = id_of(blocks[b]);
}

void PatternTable::number_all() {
  for (std::int32_t slot = 0; slot < size(); ++slot) id_of(slot);
}

void expand_part(const Word* bits, std::int64_t row_words, const Box& part, Direction direction,
                 std::uint8_t* out) {
  if (direction == Direction::forward) {
    for (std::int64_t r = part.row; r < part.row + part.rows; ++r, out += part.columns) {
      const Word* row = bits + r * row_words;
      const std::int64_t begin = part.column, end = begin + part.columns;
      const std::int64_t aligned = std::min((begin + 63) / 64 * 64, end);  // up to here bit by bit
      for (std::int64_t c = begin; c < aligned; ++c)
        out[c - begin] = static_cast<std::uint8_t>(row[c / 64] >> (c % 64) & 1u);
      if (aligned < end)
        kernels::active().expand_bits(row + aligned / 64, end - aligned, out + (aligned - begin));
    }
    return;
  }
  // Rows of the result are columns of the block: 64 × 64 bits at a time are transposed.
  for (std::int64_t c = part.row / 64 * 64; c < part.row + part.rows; c += 64)
    for (std::int64_t r = part.column / 64 * 64; r < part.column + part.columns; r += 64) {
      Word square[64] = {};
      for (std::int64_t k = std::max(r, part.column); k < std::min(r + 64, part.column + part.columns); ++k)
        square[k - r] = bits[k * row_words + c / 64];
      transpose_64(square);
      const std::int64_t first = std::max(r, part.column),
                         n = std::min(r + 64, part.column + part.columns) - first;
      for (std::int64_t k = std::max(c, part.row); k < std::min(c + 64, part.row + part.rows); ++k) {
        const Word run = square[k - c] >> (first - r);
        kernels::active().expand_bits(&run, n, out + (k - part.row) * part.columns + (first - part.column));
      }
    }
}

Shape pattern_shape(BlockShape block, Direction direction) {
  return direction == Direction::forward ? Shape{block.q, block.kv} : Shape{block.kv, block.q};
}

namespace {

template <class IdOf>
std::shared_ptr<const ArraySource> source_of(std::shared_ptr<const PatternTable> table, std::int64_t count,
                                             Direction direction, IdOf&& id_of) {
  const Shape pattern = pattern_shape(table->block(), direction);
  const ArrayType type(DType::boolean, {count, pattern[0], pattern[1]});
  const auto fill = [table = std::move(table), direction, id_of = std::forward<IdOf>(id_of)](
                        std::span<const std::int64_t> start, std::span<const std::int64_t> box, void* out) {
    auto* to = static_cast<std::uint8_t*>(out);
    const Box part{start[1], box[1], start[2], box[2]};
    for (std::int64_t p = start[0]; p < start[0] + box[0]; ++p, to += box[1] * box[2])
      expand_part(table->bits(id_of(p)), table->row_words(), part, direction, to);
  };
  return generated_source(type, "partial_mask_blocks", fill);
}

}  // namespace

std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction) {
  const std::int64_t count = table->size();
  return source_of(std::move(table), count, direction, [](std::int64_t p) { return p; });
}

std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  std::vector<std::int32_t> ids, Direction direction) {
  const std::int64_t count = std::ssize(ids);
  return source_of(std::move(table), count, direction, [ids = std::move(ids)](std::int64_t p) {
    return std::int64_t{ids[static_cast<std::size_t>(p)]};
  });
}

}  // namespace ejk::mask
