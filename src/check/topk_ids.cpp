// Expert ids of tokens, token by token on several threads, with the load of each expert.
// tests: tests/check/test_choices.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "check/groups.hpp"
#include "check/integers.hpp"

namespace ejk {

namespace {

// Most experts whose loads are reported one by one.
constexpr std::size_t kMostListed = 65'536;

struct ChoicesPart {
  Findings found;
  check::IndexSet seen;
  std::vector<std::int64_t> load;
  std::int64_t choices = 0, unrouted = 0;
};

}  // namespace

Findings check_topk_ids(const IntegerArray& topk_ids, std::optional<std::int64_t> experts,
                        const CheckOptions& options) {
  const ArraySource& source = *topk_ids;
  check::require_integers(source, "topk_ids", 1, SIZE_MAX, "(tokens, k)");
  check::require_claim("experts", experts.value_or(0), 0);
  // With one expert a token its axis may be missing.
  const bool has_axis = source.shape().size() > 1;
  const std::int64_t k = has_axis ? source.shape().back() : 1;
  const std::int64_t tokens =
      element_count(std::span(source.shape()).first(source.shape().size() - (has_axis ? 1 : 0)));
  ChoicesPart all{Findings(rules_of("topk-ids"), options.most_findings), check::IndexSet(k),
                  std::vector<std::int64_t>(static_cast<std::size_t>(experts.value_or(0)))};

  const auto check = [&](ChoicesPart& part, std::int64_t token, std::span<const std::int64_t> ids) {
    const auto add = [&](std::string_view rule, std::size_t column, auto&& message) {
      check::add_at(part.found, rule, "topk_ids", source.shape(),
                    token * k + static_cast<std::int64_t>(column), ids[column], message);
    };
    std::size_t none = 0, first_none = 0;
    part.seen.begin();
    for (std::size_t c = 0; c < ids.size(); ++c) {
      const std::int64_t id = ids[c];
      if (id == -1) {
        if (none++ == 0) first_none = c;
        continue;
      }
      if (id < 0 || (experts && id >= *experts)) {
        add("range", c,
            [&] { return id < 0 ? std::string("below -1") : check::there_are(*experts, "expert"); });
      } else {
        ++part.choices;
        if (experts) ++part.load[static_cast<std::size_t>(id)];
      }
      if (!part.seen.insert(id))
        add("duplicate", c, [&] { return fmt::format("again for token {}", token); });
    }
    part.unrouted += none == ids.size();
    if (none > 0 && none < ids.size())
      add("partial", first_none, [&] { return fmt::format("{} of {} entries", none, ids.size()); });
  };
  check::scan_rows(
      source, k, options, 4,
      [&] {
        return ChoicesPart{Findings(all.found.rules(), options.most_findings), all.seen, all.load};
      },
      check,
      [&](ChoicesPart& part) {
        all.found.merge(std::move(part.found));
        all.choices += part.choices;
        all.unrouted += part.unrouted;
        for (std::size_t e = 0; e < all.load.size(); ++e) all.load[e] += part.load[e];
      });

  if (k == 0) all.unrouted = tokens;
  Report& facts = all.found.facts();
  facts.add("tokens", "tokens", tokens, Unit::count)
      .add("experts_per_token", "experts of a token", k, Unit::count)
      .add("choices", "choices", all.choices, Unit::count)
      .add("unrouted_tokens", "tokens without one", all.unrouted, Unit::count);
  if (experts) {
    check::Load load;
    for (std::size_t e = 0; e < all.load.size(); ++e) load.add(static_cast<std::int64_t>(e), all.load[e]);
    load.describe(facts, "expert");
    if (all.load.size() <= kMostListed)
      facts.add(JsonField{"load", fmt::format("[{}]", fmt::join(all.load, ","))});
  }
  return std::move(all.found);
}

}  // namespace ejk
