// Masks made of the terms of the expression language are found again, evaluated back to the bit, and with two wrong
// pairs as the nearest expression.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ejk/mask.hpp"
#include "ejk/program/identify.hpp"
#include "support/random_mask.hpp"

using namespace ejk;
using plain::between;
using plain::Random;

namespace {

struct MadeMask {
  Mask mask;
  std::int64_t terms;
};

std::vector<std::int64_t> random_cu(Random& random, std::int64_t tokens) {
  std::vector<std::int64_t> cu{0};
  while (cu.back() < tokens) cu.push_back(std::min(tokens, cu.back() + between(random, 1, tokens / 3)));
  return cu;
}

std::vector<std::int64_t> ids_of_spans(Random& random, std::int64_t tokens) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens));
  std::int64_t id = 0;
  for (std::int64_t at = between(random, 1, 12); at + 8 < tokens; at += between(random, 20, 40)) {
    ++id;
    for (std::int64_t n = between(random, 5, 8); n > 0; --n) ids[static_cast<std::size_t>(at++)] = id;
  }
  return ids;
}

Mask enclosing_term(Random& random, std::int64_t q, std::int64_t kv) {
  const std::int64_t offset = between(random, 0, 1) * (kv - q);
  switch (between(random, 0, q == kv ? 7 : 6)) {
    case 0:
      return causal_mask(q, kv, offset);
    case 1:
      return local_mask(q, kv, between(random, 1, kv / 2), between(random, 0, kv / 3), offset);
    case 2:
      return local_mask(q, kv, between(random, 1, kv / 2), std::nullopt, between(random, -5, 5));
    case 3:
      return chunked_mask(q, kv, between(random, 7, kv / 2), std::max<std::int64_t>(offset, 0));
    case 4:
      return prefix_mask(q, kv, between(random, kv / 2, kv - 1));
    case 5:
      return ~prefix_mask(q, kv, between(random, 1, kv / 3));
    case 6: {
      const BlockShape block{16, 8};
      const std::int64_t rows = (q + 15) / 16, columns = (kv + 7) / 8;
      return blocks_mask(
          make_source(plain::array_of(
              rows, columns,
              plain::table(rows, columns,
                           [&](auto i, auto j) { return j <= i || between(random, 0, 2) > 0; }))),
          block, q, kv);
    }
    default:
      return documents_mask(random_cu(random, q));
  }
}

MadeMask random_made(Random& random) {
  const std::int64_t q = between(random, 40, 150),
                     kv = between(random, 0, 2) > 0 ? q : between(random, 40, 150);
  const std::int64_t terms = between(random, 1, 3);
  Mask mask = enclosing_term(random, q, kv);
  for (std::int64_t n = 1; n < terms; ++n) mask = mask & enclosing_term(random, q, kv);
  return {mask, terms};
}

Mask stored(const Mask& of, const std::vector<std::uint8_t>& elements) {
  return array_mask(make_source(plain::array_of(of.q_length(), of.kv_length(), elements)));
}

// The found expression, parsed and evaluated from its arrays.
std::vector<std::uint8_t> evaluated(const IdentifiedMask& found) {
  const std::string text = found.expression([](const std::string& name) { return name; });
  const OpenArray open([&](const std::string& name) {
    const auto is_named = [&](const auto& array) { return array->name() == name; };
    return *std::find_if(found.arrays.begin(), found.arrays.end(), is_named);
  });
  return plain::elements_of(MaskExpression::parse(text).resolve(
      {1, found.mask.q_length(), found.mask.kv_length()}, 0, Polarity::keep, open));
}

std::string text_of(const Mask& mask) {
  return identify_mask(stored(mask, plain::elements_of(mask))).expression([](const std::string& name) {
    return name;
  });
}

void check_found(const MadeMask& made) {
  const auto elements = plain::elements_of(made.mask);
  const IdentifiedMask found = identify_mask(stored(made.mask, elements));
  CAPTURE(made.mask.text());
  CAPTURE(found.text);
  CHECK(found.pairs_differ == 0);
  CHECK(found.terms <= made.terms);
  CHECK(evaluated(found) == elements);
}

}  // namespace

TEST_CASE("64 masks are found again, with no more terms than they were made of") {
  Random random(5);
  for (int n = 0; n < 64; ++n) {
    CAPTURE(n);
    check_found(random_made(random));
  }
}

TEST_CASE("prefixes and segments behind | are found") {
  Random random(6);
  for (int n = 0; n < 24; ++n) {
    const std::int64_t q = between(random, 60, 150);
    const auto ids = ids_of_spans(random, q);
    auto cu = random_cu(random, q);  // no span is in two documents
    std::erase_if(cu, [&](std::int64_t at) { return at < q && ids[static_cast<std::size_t>(at)] > 0; });
    const Mask causal = causal_mask(q, q), window = local_mask(q, q, between(random, 3, 20), 0);
    const Mask documents = documents_mask(cu), prefix = prefix_mask(q, q, between(random, 2, 20));
    const Mask spans = segments_mask(ids, ids);
    const MadeMask all[] = {{causal | prefix, 2},
                            {window | prefix, 2},
                            {(documents & causal) | prefix, 3},
                            {causal | spans, 2},
                            {window | spans, 2},
                            {(causal & documents) | (spans & documents), 4},
                            {causal & (window | prefix), 3}};
    CAPTURE(n);
    for (const MadeMask& made : all) check_found(made);
  }
}

TEST_CASE("two flipped pairs are the differences from the nearest expression") {
  Random random(7);
  int listed = 0, fewer = 0;
  for (int n = 0; n < 64; ++n) {
    const MadeMask made = random_made(random);
    auto elements = plain::elements_of(made.mask);
    std::set<std::pair<std::int64_t, std::int64_t>> flipped;
    while (flipped.size() < 2) {
      const std::int64_t q = between(random, 0, made.mask.q_length() - 1),
                         k = between(random, 0, made.mask.kv_length() - 1);
      if (flipped.emplace(q, k).second)
        elements[static_cast<std::size_t>(q * made.mask.kv_length() + k)] ^= 1;
    }
    const Mask wrong = stored(made.mask, elements);
    const IdentifiedMask found = identify_mask(wrong);
    CAPTURE(n);
    CAPTURE(made.mask.text());
    CAPTURE(found.text);
    CHECK(found.pairs_differ <= 2);
    const auto differing = differing_pairs(wrong, found.mask, 10);
    CHECK(std::ssize(differing) == std::min<std::int64_t>(found.pairs_differ, 10));
    for (const DifferingPair& pair : differing)
      CHECK(pair.is_in_first ==
            (elements[static_cast<std::size_t>(pair.query * made.mask.kv_length() + pair.key)] != 0));
    if (found.pairs_differ < 2) ++fewer;
    if (std::all_of(differing.begin(), differing.end(), [&](const DifferingPair& pair) {
          return flipped.contains({pair.query, pair.key});
        }))
      ++listed;
  }
  CHECK(listed >= 62);
  CHECK(fewer <= 4);
}

TEST_CASE("expressions are the shortest spellings") {
  CHECK(text_of(full_mask(5, 9)) == "full");
  CHECK(text_of(prefix_mask(5, 9, 0)) == "prefix(0)");
  CHECK(text_of(causal_mask(64, 64)) == "causal");
  CHECK(text_of(causal_mask(32, 64, 32)) == "causal(align=bottom-right)");
  CHECK(text_of(causal_mask(32, 64, 5)) == "causal(offset=5)");
  CHECK(text_of(local_mask(64, 64, 7, 0)) == "local(7, 0)");
  CHECK(text_of(local_mask(32, 64, 7, 3, 32)) == "local(7, 3, align=bottom-right)");
  CHECK(text_of(local_mask(64, 64, 7, std::nullopt)) == "local(7, none)");
  CHECK(text_of(~causal_mask(64, 64)) == "local(0, none, offset=1)");
  CHECK(text_of(chunked_mask(64, 64, 16)) == "chunked(16)");
  CHECK(text_of(~prefix_mask(64, 64, 3)) == "~prefix(3)");
  const std::vector<std::int64_t> cu{0, 20, 41, 64}, ids{0, 1, 1, 2, 2, 1};
  CHECK(text_of(documents_mask(cu)) == "documents(cu)");
  CHECK(text_of(causal_mask(64, 64) & documents_mask(cu)) == "causal & documents(cu)");
  CHECK(text_of(segments_mask(ids, ids)) == "segments(ids)");
}
