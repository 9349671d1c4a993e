// tests: tests/mask/test_patterns.cpp
#include "mask/patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "core/text.hpp"
#include "kernels/kernels.hpp"

namespace ejk::mask {

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

PatternTable PatternTable::part() const {
  PatternTable table(block_, max_bytes_, hash_);
  table.used_bytes_ = used_bytes_;
  return table;
}

// Chunks grow, so that few patterns cost little and many lie on huge pages.
Word* PatternTable::room_for_pattern() {
  constexpr std::int64_t kFirstChunk = std::int64_t{1} << 13, kLargestChunk = std::int64_t{1} << 22;  // words
  const std::int64_t bytes = pattern_words() * static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t used = used_bytes_->fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (max_bytes_ > 0 && used > max_bytes_)
    throw Error(Error::Kind::budget, fmt::format("the different partial blocks need more than {} of memory",
                                                 core::format_bytes(max_bytes_)))
        .hint("larger blocks have fewer partial ones; --max-memory sets the limit");
  if (chunks_.empty() || chunks_.back().size() - chunk_used_ < pattern_words()) {
    const std::int64_t next =
        chunks_.empty() ? kFirstChunk : std::min(kLargestChunk, 8 * chunks_.back().size());
    chunks_.emplace_back(DType::uint64, Shape{std::max(next, pattern_words())});
    chunk_used_ = 0;
  }
  Word* room = chunks_.back().elements<Word>().data() + chunk_used_;
  chunk_used_ += pattern_words();
  return room;
}

std::optional<std::int32_t> PatternTable::find(std::uint64_t hash, const Word* pattern) const {
  const auto bytes = static_cast<std::size_t>(pattern_words()) * sizeof(Word);
  const auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (std::memcmp(entries_[static_cast<std::size_t>(it->second)].bits, pattern, bytes) == 0)
      return it->second;
  return std::nullopt;
}

std::int32_t PatternTable::enter(std::uint64_t hash, const Word* kept) {
  if (size() >= INT32_MAX) throw Error(Error::Kind::input, "more than 2^31 different partial blocks");
  const auto slot = static_cast<std::int32_t>(size());
  entries_.push_back({kept, hash, kNoId});
  index_.emplace(hash, slot);
  return slot;
}

std::int32_t PatternTable::find_or_add(const Word* pattern) {
  const std::uint64_t hash = hash_(pattern, pattern_words());
  if (const auto slot = find(hash, pattern)) return *slot;
  Word* kept = room_for_pattern();
  std::copy_n(pattern, pattern_words(), kept);
  return enter(hash, kept);
}

std::vector<std::int32_t> PatternTable::join(PatternTable part) {
  std::vector<std::int32_t> slots;
  slots.reserve(part.entries_.size());
  for (const Entry& e : part.entries_) {
    const auto slot = find(e.hash, e.bits);
    slots.push_back(slot ? *slot : enter(e.hash, e.bits));
  }
  // The part's chunks go before the one that is being filled.
  std::move(part.chunks_.begin(), part.chunks_.end(), std::inserter(chunks_, chunks_.begin()));
  return slots;
}

void PatternTable::number(std::span<const std::uint8_t> states, std::span<std::int32_t> blocks) {
  constexpr std::uint8_t kPartial = 1;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (states[b] != kPartial) continue;
    std::int32_t& id = entries_[static_cast<std::size_t>(blocks[b])].id;
    if (id == kNoId) {
      id = static_cast<std::int32_t>(slot_of_.size());
      slot_of_.push_back(blocks[b]);
    }
    blocks[b] = id;
  }
}

void expand_block(const Word* bits, std::int64_t row_words, BlockShape block, Direction direction,
                  std::uint8_t* out) {
  if (direction == Direction::forward) {
    for (std::int64_t r = 0; r < block.q; ++r)
      kernels::active().expand_bits(bits + r * row_words, block.kv, out + r * block.kv);
    return;
  }
  for (std::int64_t c = 0; c < block.kv; ++c)
    for (std::int64_t r = 0; r < block.q; ++r)
      *out++ = static_cast<std::uint8_t>(bits[r * row_words + c / 64] >> (c % 64) & 1u);
}

namespace {

class PatternSource final : public ArraySource {
 public:
  PatternSource(std::shared_ptr<const PatternTable> table, Direction direction)
      : table_(std::move(table)), direction_(direction) {
    const BlockShape b = table_->block();
    shape_ =
        direction == Direction::forward ? Shape{table_->size(), b.q, b.kv} : Shape{table_->size(), b.kv, b.q};
  }

  DType dtype() const override { return DType::boolean; }
  const Shape& shape() const override { return shape_; }
  const std::string& name() const override { return name_; }
  bool random_access() const override { return true; }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const bool whole = count[1] == shape_[1] && count[2] == shape_[2];
    auto* to = static_cast<std::uint8_t*>(out);
    std::vector<std::uint8_t> block(whole ? 0 : static_cast<std::size_t>(shape_[1] * shape_[2]));
    for (std::int64_t p = 0; p < count[0]; ++p) {
      expand_block(table_->bits(start[0] + p), table_->row_words(), table_->block(), direction_,
                   whole ? to : block.data());
      if (whole) {
        to += shape_[1] * shape_[2];
        continue;
      }
      for (std::int64_t r = 0; r < count[1]; ++r, to += count[2])
        std::memcpy(to, block.data() + (start[1] + r) * shape_[2] + start[2],
                    static_cast<std::size_t>(count[2]));
    }
  }

 private:
  std::shared_ptr<const PatternTable> table_;
  Direction direction_;
  Shape shape_;
  std::string name_ = "partial_mask_blocks";
};

}  // namespace

std::shared_ptr<const ArraySource> pattern_source(std::shared_ptr<const PatternTable> table,
                                                  Direction direction) {
  return std::make_shared<PatternSource>(std::move(table), direction);
}

}  // namespace ejk::mask
