// Position ids: each is one more than the previous one, or begins a sequence. Sequences begin at cu_seqlens,
// or at the zeros of the positions. With a token mask only tokens count: cumsum(mask) - 1.
// tests: tests/check/test_sequences.cpp
#include <fmt/format.h>

#include <utility>

#include "check/integers.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

struct PositionWalk {
  template <class Message>
  void add(std::string_view rule, std::int64_t at, std::int64_t id, Message&& message) {
    found.add(rule, at, [&] { return Finding{"ids", core::index_of(source.shape(), at), id, message()}; });
  }

  const ArraySource& source;
  Findings found;
  std::int64_t sequences = 0, padding = 0;
};

bool follows(std::int64_t position, std::int64_t before) { return position > 0 && position - 1 == before; }

void walk_rows(PositionWalk& walk, std::optional<std::int64_t> padding, const CheckOptions& options) {
  const std::int64_t columns = walk.source.shape().back();
  std::int64_t before = -1, gap = -1, gap_id = 0, column = 0;
  bool has_tokens = false;
  check::scan(walk.source, options, [&](std::span<const std::int64_t> ids, std::int64_t first) {
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::int64_t at = first + static_cast<std::int64_t>(k), id = ids[k];
      if (column == 0) before = -1, gap = -1, has_tokens = false;
      if (++column == columns) column = 0;
      if (id < 0 || (id == padding && id != 0 && !follows(id, before))) {
        ++walk.padding;
        if (has_tokens && gap < 0) gap = at, gap_id = id;
        before = -1;
        continue;
      }
      if (gap >= 0)
        walk.add("padding-inside", std::exchange(gap, -1), gap_id,
                 [&] { return fmt::format("tokens go on at {}", at % columns); });
      walk.sequences += id == 0 || before < 0;
      if (id != 0 && before < 0)
        walk.add("restart", at, id, [] { return "the first position is not 0"; });
      else if (id != 0 && !follows(id, before))
        walk.add("jump", at, id, [&] { return fmt::format("neither 0 nor one more than {}", before); });
      before = id;
      has_tokens = true;
    }
  });
}

void walk_tokens(PositionWalk& walk, const ArraySource& mask, const CheckOptions& options) {
  const std::int64_t columns = walk.source.shape().back();
  std::int64_t before = -1, gap = 0, column = 0;  // padding since the previous token
  bool has_tokens = false;
  check::Buffer buffer;
  check::scan(walk.source, options, [&](std::span<const std::int64_t> ids, std::int64_t first) {
    const auto is_token = check::read_range(mask, first, first + std::ssize(ids), buffer);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::int64_t at = first + static_cast<std::int64_t>(k), id = ids[k];
      if (column == 0) before = -1, gap = 0, has_tokens = false;
      if (++column == columns) column = 0;
      if (is_token[k] == 0) {
        ++walk.padding, ++gap;
        continue;
      }
      if (has_tokens && gap > 0)
        walk.add("padding-inside", at - gap, ids[k],
                 [&] { return fmt::format("tokens go on at {}", at % columns); });
      walk.sequences += id == 0 || !has_tokens;
      if (gap > 0 && follows(id, before + gap))
        walk.add("counts-padding", at, id,
                 [&] { return fmt::format("should be {}: {} of padding before it", before + 1, gap); });
      else if (id != 0 && !follows(id, before))
        walk.add(has_tokens ? "jump" : "restart", at, id, [&] {
          return has_tokens ? fmt::format("neither 0 nor one more than {}", before)
                            : "the first position is not 0";
        });
      before = id, gap = 0;
      has_tokens = true;
    }
  });
}

void walk_sequences(PositionWalk& walk, const std::vector<std::int64_t>& cu, const CheckOptions& options) {
  const auto check = [&](std::int64_t at, std::int64_t id, std::int64_t before, std::size_t s) {
    if (s + 1 == cu.size()) {
      ++walk.padding;
    } else if (at == cu[s]) {
      ++walk.sequences;
      if (id != 0) walk.add("restart", at, id, [&] { return fmt::format("sequence {} begins here", s); });
    } else if (!follows(id, before)) {
      walk.add("jump", at, id, [&] { return fmt::format("after {}, in sequence {}", before, s); });
    }
  };
  check::scan_sequences(walk.source, cu, options, walk.found, "positions", check);
}

}  // namespace

Findings check_position_ids(const IntegerArray& ids, const PositionIdsClaims& claims,
                            const CheckOptions& options) {
  check::require_integers(*ids, "position ids", 1, SIZE_MAX, "(tokens,) or (..., tokens)");
  PositionWalk walk{*ids, Findings(rules_of("position-ids"), options.most_findings)};
  if (claims.mask) {
    if (claims.cu_seqlens || claims.padding)
      throw Error(Error::Kind::usage, "a mask says which positions are padding, and something else as well");
    if (is_float(claims.mask->dtype()))
      throw core::invalid("{}: a mask of tokens must be bool or integers, not {}", claims.mask->name(),
                          name_of(claims.mask->dtype()));
    if (claims.mask->shape() != ids->shape())
      throw core::invalid("{} has the shape {}, the position ids {}", claims.mask->name(),
                          to_string(claims.mask->shape()), to_string(ids->shape()));
    walk_tokens(walk, *claims.mask, options);
  } else if (claims.cu_seqlens) {
    check::require_one_row(*ids, "position ids");
    walk_sequences(walk, core::read_offsets(*claims.cu_seqlens), options);
  } else {
    walk_rows(walk, claims.padding, options);
  }
  walk.found.facts()
      .add("tokens", "tokens", element_count(ids->shape()) - walk.padding, Unit::count)
      .add("padding", "padding", walk.padding, Unit::count)
      .add("sequences", "sequences", walk.sequences, Unit::count);
  return std::move(walk.found);
}

}  // namespace ejk
