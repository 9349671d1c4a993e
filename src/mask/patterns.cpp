// tests: tests/mask/test_patterns.cpp
#include "mask/patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

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
      pattern_words_(block.q * row_words_),
      per_chunk_(std::max<std::int64_t>(1, (std::int64_t{1} << 17) / pattern_words_)),
      max_bytes_(max_bytes),
      hash_(function) {}

std::int32_t PatternTable::find_or_add(std::uint64_t key, const Word* pattern) {
  const auto bytes = static_cast<std::size_t>(pattern_words_) * sizeof(Word);
  const auto [begin, end] = index_.equal_range(key);
  for (auto it = begin; it != end; ++it)
    if (std::memcmp(bits(it->second), pattern, bytes) == 0) return it->second;
  if (size_ % per_chunk_ == 0) {
    const std::int64_t held = static_cast<std::int64_t>(chunks_.size() + 1) * per_chunk_ * pattern_words_ * 8;
    if (max_bytes_ > 0 && held > max_bytes_ && size_ > 0)
      throw Error(Error::Kind::budget,
                  fmt::format("the partial blocks need more than {} of memory: {} different ones so far",
                              core::format_bytes(max_bytes_), core::format_count(size_)))
          .hint("larger blocks have fewer partial ones; --max-memory sets the limit");
    if (size_ >= INT32_MAX) throw Error(Error::Kind::input, "more than 2^31 different partial blocks");
    chunks_.push_back(
        std::make_unique_for_overwrite<Word[]>(static_cast<std::size_t>(per_chunk_ * pattern_words_)));
  }
  const auto id = static_cast<std::int32_t>(size_++);
  std::memcpy(chunks_.back().get() + id % per_chunk_ * pattern_words_, pattern, bytes);
  index_.emplace(key, id);
  return id;
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
