// Orders of tokens: the place of each token by its value, and then the orders of context parallelism, made and
// compared. O(tokens) for each order.
// tests: tests/check/test_permutation.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <optional>

#include "check/integers.hpp"
#include "ejk/sparsity.hpp"

namespace ejk {

namespace {

// Findings for sequences whose tokens are not divided equally among the ranks. `places`: of each token.
void check_shares(Findings& found, std::span<const std::int32_t> places, const std::vector<std::int64_t>& cu,
                  std::int64_t ranks, const char* array) {
  const std::int64_t part = std::ssize(places) / ranks;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const std::int64_t length = cu[s + 1] - cu[s], share = length / ranks;
    if (length == 0) continue;
    std::fill(counts.begin(), counts.end(), 0);
    for (std::int64_t token = cu[s]; token < cu[s + 1]; ++token)
      ++counts[static_cast<std::size_t>(places[static_cast<std::size_t>(token)] / part)];
    for (std::size_t rank = 0; rank < counts.size(); ++rank)
      if (counts[rank] != share) {
        const auto index = static_cast<std::int64_t>(s);
        check::add(found, "split", index, array, {index}, cu[s], [&] {
          return fmt::format("rank {} has {} of the {} tokens of sequence {}, not {}", rank, counts[rank],
                             length, s, share);
        });
        break;
      }
  }
}

// Of tokens in all of a mask; padding is as it has it.
std::vector<CpRank> work_by_mask(const Mask& mask, std::span<const std::int32_t> order,
                                 std::span<const std::int64_t> rank_offsets) {
  std::vector<CpRank> work;
  for (const RankLoad& load : loads_of_order(mask, order, rank_offsets))
    work.push_back({load.queries, load.pairs_allowed, load.keys_received});
  return work;
}

void require_claims(const PermutationClaims& claims, std::int64_t tokens) {
  if (claims.ranks) core::require_ranks(*claims.ranks);
  if (claims.order && !claims.ranks) throw core::usage("order {} needs ranks", name_of(*claims.order));
  if (claims.order && is_by_sequence(*claims.order) && !claims.cu_seqlens)
    throw core::usage("order {} needs cu_seqlens", name_of(*claims.order));
  if (claims.order && is_by_work(*claims.order) && !(claims.mask && claims.block))
    throw core::usage("order {} needs a mask and a block", name_of(*claims.order));
  if (claims.order == CpOrder::ptrr && claims.block->q != claims.block->kv)
    throw core::usage("order ptrr has square blocks, not {}x{}", claims.block->q, claims.block->kv);
  if (claims.padded && !claims.cu_seqlens) throw core::usage("padded cu_seqlens need cu_seqlens");
  if (claims.mask && (claims.mask->q_length() != tokens || claims.mask->kv_length() != tokens))
    throw core::usage("the mask has {} queries and {} keys, and the order {} tokens", claims.mask->q_length(),
                      claims.mask->kv_length(), tokens);
}

}  // namespace

Findings check_permutation(const IntegerArray& order, const PermutationClaims& claims,
                           const CheckOptions& options) {
  check::require_integers(*order, "an order", 1, 1, "a 1-D array");
  const std::int64_t tokens = order->shape()[0];
  require_claims(claims, tokens);
  if (tokens > std::numeric_limits<std::int32_t>::max())
    throw std::move(core::invalid("{} tokens are more than int32 can count", tokens).at(order->name()));
  const char* const of_sequences = claims.padded ? "padded" : "cu_seqlens";
  const std::vector<std::int64_t> cu =
      claims.padded
          ? core::read_padded_sequences(*claims.cu_seqlens, *claims.padded, core::FirstOffset::zero).begins
      : claims.cu_seqlens ? core::read_offsets(*claims.cu_seqlens)
                          : std::vector<std::int64_t>{0, tokens};

  Findings found(rules_of("permutation"), options.most_findings);
  Array order_array(DType::int32, {tokens}), place_array(DType::int32, {tokens});
  const auto given = order_array.elements<std::int32_t>(), places = place_array.elements<std::int32_t>();
  std::fill(places.begin(), places.end(), -1);
  check::scan(*order, options, [&](std::span<const std::int64_t> values, std::int64_t first) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t place = first + static_cast<std::int64_t>(k), token = values[k];
      if (token < 0 || token >= tokens) {
        check::add(found, "range", place, "order", {place}, token,
                   [&] { return check::there_are(tokens, "token"); });
        continue;
      }
      given[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(token);
      std::int32_t& at = places[static_cast<std::size_t>(token)];
      if (at >= 0)
        check::add(found, "twice", place, "order", {place}, token,
                   [&] { return fmt::format("also at place {}", at); });
      else
        at = static_cast<std::int32_t>(place);
    }
  });
  for (std::int64_t token = 0; token < tokens; ++token)
    if (places[static_cast<std::size_t>(token)] < 0)
      check::add(found, "missing", token, "order", {}, token,
                 [&] { return fmt::format("token {} has no place", token); });
  const bool is_permutation = found.errors() == 0;
  if (cu.back() != tokens)
    check::add(found, "length", 0, of_sequences, {std::ssize(cu) - 1}, cu.back(),
               [&] { return fmt::format("the order has {} places", tokens); });
  Report& facts = found.facts();
  facts.add("tokens", "tokens", tokens, Unit::count);
  if (!claims.ranks || cu.back() != tokens) return found;

  // Those with padding where there is some: of it alone the orders are made.
  const IntegerArray sequences = claims.cu_seqlens ? IntegerArray(cu) : IntegerArray();
  const auto settings_of = [&](CpOrder one) {
    CpSettings settings{.order = one, .ranks = *claims.ranks, .cu_seqlens = sequences};
    if (!claims.cu_seqlens) settings.tokens = tokens;
    if (is_by_work(one)) settings.block = claims.block->q;
    return settings;
  };
  const auto is_possible = [&](CpOrder one) {
    if (is_by_sequence(one) && !claims.cu_seqlens) return false;
    if (is_by_work(one) && !(claims.mask && claims.block)) return false;
    if (one == CpOrder::ptrr && claims.block->q != claims.block->kv) return false;
    return !(one == CpOrder::per_document && claims.padded) && !find_indivisible(settings_of(one));
  };
  // Without a claim ranks have equal parts, as in order.
  const CpOrder claimed = claims.order.value_or(CpOrder::contiguous);
  if (const auto indivisible = find_indivisible(settings_of(claimed))) {
    const std::int64_t at = indivisible->sequence.value_or(0);
    check::add(found, "divisible", at, indivisible->sequence ? of_sequences : "order",
               indivisible->sequence ? Shape{at} : Shape{}, indivisible->length, [&] {
                 const std::string parts = fmt::format("not a multiple of {}", indivisible->parts);
                 return indivisible->sequence
                            ? fmt::format("sequence {} has {} tokens, {}", at, indivisible->length, parts)
                            : fmt::format("{} tokens, {}", indivisible->length, parts);
               });
  }
  const bool has_parts = tokens % *claims.ranks == 0;  // balanced may have others
  if (!is_permutation || (!has_parts && claimed != CpOrder::balanced)) return found;

  std::optional<Sparsity> sparsity;  // by which ranks share blocks
  std::vector<std::string_view> orders;
  std::vector<std::int64_t> rank_offsets;
  for (std::int64_t rank = 0; rank <= *claims.ranks; ++rank)
    rank_offsets.push_back(tokens / *claims.ranks * rank);
  for (const CpOrder one : kCpOrders) {
    if (!is_possible(one)) continue;
    CpSettings settings = settings_of(one);
    if (is_by_work(one)) {
      if (!sparsity)
        sparsity = measure_sparsity({*claims.mask}, {*claims.block}, {.ranks = *claims.ranks}, {},
                                    options.max_bytes);
      const auto* const by_work =
          sparsity->find(one == CpOrder::ptrr ? Distribution::ptrr : Distribution::balanced);
      if (by_work != nullptr) settings.block_ranks = by_work->block_ranks;
    }
    const CpTokens made = make_cp_order(settings);
    if (claims.order == one) {
      const auto begins = made.rank_offsets.elements<std::int32_t>();
      rank_offsets.assign(begins.begin(), begins.end());
    }
    const auto right = made.order.elements<std::int32_t>();
    if (std::equal(given.begin(), given.end(), right.begin())) orders.push_back(name_of(one));
    if (claims.order != one) continue;
    for (std::size_t place = 0; place < given.size(); ++place)
      if (given[place] != right[place])
        found.add("order", static_cast<std::int64_t>(place), [&] {
          return Finding{"order",
                         {static_cast<std::int64_t>(place)},
                         std::int64_t{given[place]},
                         fmt::format("token {} of {} is here", right[place], name_of(one))};
        });
  }
  if (claims.order && is_by_sequence(*claims.order) && found.count("divisible") == 0)
    check_shares(found, places, cu, *claims.ranks, of_sequences);
  if (rank_offsets.back() != tokens) return found;
  facts.add("orders", "order",
            orders.empty() ? "none that is known" : fmt::format("{}", fmt::join(orders, ", ")));
  Report work;
  if (claims.mask)
    work = describe_cp_work(work_by_mask(*claims.mask, given, rank_offsets), "pairs of the mask");
  else
    work = describe_cp_work(claims.padded ? cp_work(given, *claims.ranks, claims.cu_seqlens, claims.padded)
                                          : cp_work(given, *claims.ranks, sequences));
  for (Report::Item& item : work.items) facts.add(std::move(item));
  return found;
}

}  // namespace ejk
