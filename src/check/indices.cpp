// Indices of selected keys, query by query on several threads. A hash table of the row length finds
// duplicates in any order and for any number of keys.
// tests: tests/check/test_choices.cpp
#include <fmt/format.h>

#include <utility>

#include "check/integers.hpp"

namespace ejk {

namespace {

struct IndicesPart {
  Findings found;
  check::IndexSet seen;
  std::int64_t used = 0;
};

}  // namespace

Findings check_indices(const IntegerArray& indices, const IndicesClaims& claims,
                       const CheckOptions& options) {
  const ArraySource& source = *indices;
  check::require_integers(source, "indices", 2, SIZE_MAX, "(..., queries, n)");
  check::require_claim("keys", claims.keys.value_or(0), 0);
  const std::int64_t n = source.shape().back(), queries = source.shape()[source.shape().size() - 2];
  const std::int64_t rows = element_count(std::span(source.shape()).first(source.shape().size() - 1));
  IndicesPart all{Findings(rules_of("indices"), options.most_findings), check::IndexSet(n)};

  check::scan_rows(
      source, n, options, 6,
      [&] {
        return IndicesPart{Findings(all.found.rules(), options.most_findings), all.seen};
      },
      [&](IndicesPart& part, std::int64_t row, std::span<const std::int64_t> keys) {
        const auto add = [&](std::string_view rule, std::size_t column, auto&& message) {
          const std::int64_t at = row * n + static_cast<std::int64_t>(column);
          part.found.add(rule, at, [&] {
            return Finding{"indices", core::index_of(source.shape(), at), keys[column], message()};
          });
        };
        const std::int64_t query = row % queries;
        // The last key that the query may attend to; saturated.
        const std::int64_t last = core::checked_add(query, claims.offset.value_or(0)).value_or(INT64_MAX);
        bool in_gap = false;
        std::int64_t used = 0;
        std::size_t gap = 0;
        part.seen.begin();
        for (std::size_t c = 0; c < keys.size(); ++c) {
          const std::int64_t key = keys[c];
          if (key == -1) {
            if (!std::exchange(in_gap, true)) gap = c;
            continue;
          }
          if (std::exchange(in_gap, false))
            add("gap", gap, [&] { return fmt::format("keys go on at {}", c); });
          ++used;
          if (key < 0)
            add("range", c, [] { return "below -1"; });
          else if (claims.keys && key >= *claims.keys)
            add("range", c, [&] { return check::there_are(*claims.keys, "key"); });
          else if (claims.causal && key > last)
            add("future", c, [&] { return fmt::format("query {} sees keys up to {}", query, last); });
          if (!part.seen.insert(key))
            add("duplicate", c, [&] { return fmt::format("again for query {}", query); });
        }
        part.used += used;
        if (used == 0) add("empty", 0, [&] { return fmt::format("query {} has no key", query); });
      },
      [&](IndicesPart& part) {
        all.found.merge(std::move(part.found));
        all.used += part.used;
      });

  if (n == 0 && rows > 0)
    all.found.add(
        "empty", 0,
        [] {
          return Finding{"indices", {}, {}, "no query has an entry"};
        },
        rows);
  if (claims.causal && claims.keys && !claims.offset && *claims.keys != queries)
    check::add(
        all.found, "assumed", 0, "indices", {}, {},
        fmt::format("{} queries and {} keys: query 0 is taken to stand at key 0", queries, *claims.keys));
  all.found.facts()
      .add("queries", "queries", rows, Unit::count)
      .add("keys_per_query", "entries of a query", n, Unit::count)
      .add("keys_used", "keys in all", all.used, Unit::count);
  return std::move(all.found);
}

}  // namespace ejk
