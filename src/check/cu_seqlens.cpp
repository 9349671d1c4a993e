// cu_seqlens: each offset is compared with the previous one, in one pass.
// tests: tests/check/test_sequences.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "check/integers.hpp"

namespace ejk {

Findings check_cu_seqlens(const IntegerArray& cu_seqlens, const CuSeqlensClaims& claims,
                          const CheckOptions& options) {
  check::require_integers(*cu_seqlens, "cu_seqlens", 1, 1, "a 1-D array");
  check::require_claim("tokens", claims.tokens.value_or(0), 0);
  check::require_claim("max_seqlen", claims.max_seqlen.value_or(0), 0);
  check::require_claim("align", claims.align, 1);

  constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();
  Findings found(rules_of("cu-seqlens"), options.most_findings);
  const auto add = [&](std::string_view rule, std::int64_t index, std::int64_t value, auto&& message) {
    check::add(found, rule, index, "cu_seqlens", {index}, value, message);
  };
  const std::int64_t n = cu_seqlens->shape()[0];
  std::int64_t last = 0, empty = 0;
  std::uint64_t longest = 0;
  check::scan(*cu_seqlens, options, [&](std::span<const std::int64_t> values, std::int64_t first) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t i = first + static_cast<std::int64_t>(k), value = values[k];
      const std::int64_t before = std::exchange(last, value);
      if (value > kMostInt32 && (i == 0 || before <= kMostInt32))
        add("int32", i, value, [&] { return fmt::format("beyond {}", kMostInt32); });
      if (i == 0) {
        if (value != 0)
          add("begin", i, value, [&] { return value > 0 ? "not 0; are these lengths, or ends?" : "not 0"; });
        continue;
      }
      if (value < before) {
        add("decreasing", i, value, [&] { return check::less_than(before, value); });
        continue;
      }
      // Sequence i − 1, at its first token.
      const auto length = static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(before);
      longest = std::max(longest, length);
      if (length == 0) {
        ++empty;
        add("empty", i - 1, before, [&] { return fmt::format("sequence {} has no token", i - 1); });
      } else if (before % claims.align != 0) {
        add("misaligned", i - 1, before, [&] {
          return fmt::format("sequence {} is off the alignment by {}", i - 1, before % claims.align);
        });
      }
      if (claims.max_seqlen && length > static_cast<std::uint64_t>(*claims.max_seqlen))
        add("too-long", i - 1, before, [&] {
          return fmt::format("sequence {} has {} tokens, over {}", i - 1, length, *claims.max_seqlen);
        });
    }
  });
  if (n == 0)
    check::add(found, "length", 0, "cu_seqlens", {}, {}, "it has no element, not even a 0");
  else if (claims.tokens && last != *claims.tokens)
    add("tokens", n - 1, last, [&] { return check::there_are(*claims.tokens, "token"); });

  found.facts()
      .add("sequences", "sequences", std::max<std::int64_t>(n - 1, 0), Unit::count)
      .add("tokens", "tokens", last, Unit::count)
      .add("empty_sequences", "empty sequences", empty, Unit::count)
      .add("longest", "longest", static_cast<std::int64_t>(std::min<std::uint64_t>(longest, INT64_MAX)),
           Unit::tokens);
  return found;
}

}  // namespace ejk
