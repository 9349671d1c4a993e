// cu_seqlens: each offset is compared with the previous one, and where there are offsets with padding, each
// length with that of its padding, in one pass.
// tests: tests/check/test_sequences.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "check/integers.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();

// Findings of one array of offsets, which are seen in turn.
class Offsets {
 public:
  // Tokens, alignment and parts are of the packed array: of offsets with padding where there are such.
  Offsets(Findings& found, const char* array, const CuSeqlensClaims& claims, bool of_tokens, bool of_packed)
      : found_(found), array_(array), claims_(claims), of_tokens_(of_tokens), of_packed_(of_packed) {}

  std::int64_t last() const { return last_; }
  std::int64_t empty() const { return empty_; }
  std::int64_t longest() const {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(longest_, INT64_MAX));
  }

  // The length of sequence i - 1; nothing where there is none.
  std::optional<std::uint64_t> see(std::int64_t i, std::int64_t value) {
    const std::int64_t before = std::exchange(last_, value);
    if (value > kMostInt32 && (i == 0 || before <= kMostInt32))
      add("int32", i, value, [&] { return fmt::format("beyond {}", kMostInt32); });
    if (i == 0) {
      // With padding, tokens before the first sequence belong to none.
      if (value < 0 || (value > 0 && of_tokens_))
        add("begin", i, value, [&] { return value > 0 ? "not 0; are these lengths, or ends?" : "not 0"; });
      return std::nullopt;
    }
    if (value < before) {
      add("decreasing", i, value, [&] { return check::less_than(before, value); });
      return std::nullopt;
    }
    // Sequence i − 1, at its first token.
    const auto length = static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(before);
    longest_ = std::max(longest_, length);
    if (length == 0) ++empty_;
    if (length == 0 && of_tokens_)
      add("empty", i - 1, before, [&] { return fmt::format("sequence {} has no token", i - 1); });
    if (length > 0 && of_packed_ && before % claims_.align != 0)
      add("misaligned", i - 1, before, [&] {
        return fmt::format("sequence {} is off the alignment by {}", i - 1, before % claims_.align);
      });
    if (of_tokens_ && claims_.max_seqlen && length > static_cast<std::uint64_t>(*claims_.max_seqlen))
      add("too-long", i - 1, before, [&] {
        return fmt::format("sequence {} has {} tokens, over {}", i - 1, length, *claims_.max_seqlen);
      });
    if (const auto parts = 2 * static_cast<std::uint64_t>(claims_.ranks.value_or(0));
        of_packed_ && parts > 0 && length % parts != 0)
      add("divisible", i - 1, before, [&] {
        return fmt::format("sequence {} has {} tokens{}, not a multiple of 2 x {} ranks", i - 1, length,
                           of_tokens_ ? "" : " with its padding", *claims_.ranks);
      });
    return length;
  }

  void end(std::int64_t count) {
    if (count == 0)
      check::add(found_, "length", 0, array_, {}, {}, "it has no element, not even a 0");
    else if (of_packed_ && claims_.tokens && last_ != *claims_.tokens)
      add("tokens", count - 1, last_, [&] { return check::there_are(*claims_.tokens, "token"); });
  }

 private:
  template <class Message>
  void add(std::string_view rule, std::int64_t index, std::int64_t value, Message&& message) {
    check::add(found_, rule, index, array_, {index}, value, message);
  }

  Findings& found_;
  const char* array_;
  const CuSeqlensClaims& claims_;
  bool of_tokens_, of_packed_;
  std::int64_t last_ = 0, empty_ = 0;
  std::uint64_t longest_ = 0;
};

// The number of offsets without those at the end that fill the array up, which are one finding.
std::int64_t count_offsets(const ArraySource& offsets, const char* array, Findings& found) {
  const std::int64_t n = offsets.shape()[0];
  check::Buffer buffer;
  std::int64_t filler = 0, before = 0, count = n;
  for (std::int64_t end = n; end > 0 && count == end; end = std::max<std::int64_t>(0, end - check::kPiece)) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - check::kPiece);
    const auto values = check::read_range(offsets, begin, end, buffer);
    if (end == n) filler = values.back();
    while (count > begin && (before = values[static_cast<std::size_t>(count - begin) - 1]) == filler) --count;
  }
  if (count == 0 || count == n || before < filler || (filler != -1 && filler != 0)) return n;
  check::add(found, "decreasing", count, array, {count}, filler, [&] {
    return fmt::format("filled up with {} from here on: the offsets are \"{}[:{}]\"", filler, offsets.name(),
                       count);
  });
  return count;
}

}  // namespace

Findings check_cu_seqlens(const IntegerArray& cu_seqlens, const CuSeqlensClaims& claims,
                          const CheckOptions& options) {
  check::require_integers(*cu_seqlens, "cu_seqlens", 1, 1, "a 1-D array");
  check::require_claim("tokens", claims.tokens.value_or(0), 0);
  check::require_claim("max_seqlen", claims.max_seqlen.value_or(0), 0);
  check::require_claim("align", claims.align, 1);
  if (claims.ranks) core::require_ranks(*claims.ranks);
  const bool has_padding = static_cast<bool>(claims.padded);
  if (has_padding) check::require_integers(*claims.padded, "padded cu_seqlens", 1, 1, "a 1-D array");

  Findings found(rules_of("cu-seqlens"), options.most_findings);
  Offsets real(found, "cu_seqlens", claims, true, !has_padding), padded(found, "padded", claims, false, true);
  const std::int64_t n = count_offsets(*cu_seqlens, "cu_seqlens", found);
  const std::int64_t others = has_padding ? count_offsets(*claims.padded, "padded", found) : n;
  check::Buffer buffer;
  check::scan(*cu_seqlens, options, [&](std::span<const std::int64_t> values, std::int64_t first) {
    values =
        values.first(static_cast<std::size_t>(std::clamp<std::int64_t>(n - first, 0, std::ssize(values))));
    std::span<const std::int64_t> beside;
    if (has_padding)
      beside = check::read_range(*claims.padded, std::min(first, others),
                                 std::min(first + std::ssize(values), others), buffer);
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t i = first + static_cast<std::int64_t>(k);
      const auto length = real.see(i, values[k]);
      if (k >= beside.size()) continue;
      const auto capacity = padded.see(i, beside[k]);
      if (length && capacity && *length > *capacity)
        check::add(found, "longer", i - 1, "cu_seqlens", {i - 1}, static_cast<std::int64_t>(*length), [&] {
          return fmt::format("sequence {} has {} tokens, and {} with its padding", i - 1, *length, *capacity);
        });
    }
  });
  if (others != n)
    check::add(found, "count", 0, "padded", {}, others,
               [&] { return fmt::format("there are {} offsets, and {} of cu_seqlens", others, n); });
  real.end(n);
  if (has_padding && others == n) padded.end(n);

  found.facts()
      .add("sequences", "sequences", std::max<std::int64_t>(n - 1, 0), Unit::count)
      .add("tokens", "tokens", real.last(), Unit::count)
      .add("empty_sequences", "empty sequences", real.empty(), Unit::count)
      .add("longest", "longest", real.longest(), Unit::tokens);
  if (has_padding && others == n && padded.last() >= real.last())
    found.facts().add("padding", "of padding", padded.last() - std::max<std::int64_t>(real.last(), 0),
                      Unit::tokens);
  return found;
}

}  // namespace ejk
