// Orders of tokens: one number of a valid artefact is changed; plain loops determine whether it is still the order.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "check/artefacts.hpp"
#include "ejk/cp_order.hpp"
#include "ejk/sparsity.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Whether the ranks of an order, by definition, have just these tokens, where its lengths can be divided.
bool is_order(const Numbers& given, const Numbers& cu, std::int64_t ranks, CpOrder order) {
  const Numbers all{0, cu.back()};
  const Numbers& cut = is_by_sequence(order) ? cu : all;
  const std::int64_t parts = order == CpOrder::contiguous ? ranks : 2 * ranks;
  for (std::size_t s = 0; s + 1 < cut.size(); ++s)
    if ((cut[s + 1] - cut[s]) % parts != 0) return false;
  Numbers right;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (std::size_t s = 0; s + 1 < cut.size(); ++s)
      for (std::int64_t t = cut[s]; t < cut[s + 1]; ++t) {
        const std::int64_t chunk = (t - cut[s]) * parts / (cut[s + 1] - cut[s]);
        if (chunk == rank || (parts > ranks && chunk == parts - 1 - rank)) right.push_back(t);
      }
  return given == right;
}

}  // namespace

TEST_CASE("a changed place, sequence or number of ranks is an error where the order is then another one") {
  Random random(31);
  Answers right;
  for (int trial = 0; trial < 2000; ++trial) {
    CAPTURE(trial);
    const CpOrder order = kCpOrders[static_cast<std::size_t>(between(random, 0, 3))];
    std::int64_t ranks = between(random, 1, 4);
    Numbers lens = random_sizes(random, between(random, 0, 5), 4);
    for (std::int64_t& length : lens) length *= 2 * ranks;
    Numbers cu = offsets_of(lens), given;
    for (const double x :
         plain::doubles(make_cp_order({.order = order, .ranks = ranks, .cu_seqlens = cu}).order.view()))
      given.push_back(static_cast<std::int64_t>(x));
    const auto check = [&] {
      PermutationClaims claims;
      claims.cu_seqlens = integers(cu), claims.ranks = ranks, claims.order = order;
      return check_permutation(integers(given), claims);
    };
    CHECK_MESSAGE(check().errors() == 0, text_of(check()));
    switch (between(random, 0, 3)) {
      case 0:
        change_one(random, given);
        break;
      case 1:
        if (given.size() > 1) {
          const auto place = [&] { return given.begin() + between(random, 0, std::ssize(given) - 1); };
          std::iter_swap(place(), place());
        }
        break;
      case 2:
        cu[static_cast<std::size_t>(between(random, 0, std::ssize(cu) - 1))] +=
            2 * ranks * between(random, -1, 1);
        if (cu.front() != 0 || !std::is_sorted(cu.begin(), cu.end())) {
          CHECK_THROWS_AS(check(), Error);
          continue;
        }
        break;
      default:
        ranks = between(random, 1, 4);
    }
    const bool is_right = cu.back() == std::ssize(given) && is_order(given, cu, ranks, order);
    const Findings found = check();
    CHECK_MESSAGE((found.errors() == 0) == is_right, text_of(found));
    right.add(is_right);
  }
  CHECK(right.yes > 100);
  CHECK(right.no > 100);
}

TEST_CASE("an order is told from another one, and findings name the places that differ") {
  PermutationClaims claims;
  claims.cu_seqlens = integers({0, 8, 16}), claims.ranks = 2, claims.order = CpOrder::per_document;
  const IntegerArray head_tail = integers({0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11});
  const Findings found = check_permutation(head_tail, claims);
  const std::vector<std::int64_t> right{0, 1, 6, 7, 8, 9, 14, 15, 2, 3, 4, 5, 10, 11, 12, 13},
      given{0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11};
  std::string wrong;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < right.size(); ++i)
    if (given[i] != right[i] && ++count <= 10)
      wrong += fmt::format("order: order({},): token {} of per-document is here\n", i, right[i]);
  CHECK(text_of(found) == wrong);
  CHECK(found.count("order") == count);
  CHECK(to_json(describe(found), {"check", {}}).find(R"("orders":"head-tail")") != std::string::npos);
  claims.cu_seqlens = integers({0, 4, 16});
  CHECK(text_of(check_permutation(head_tail, claims))
            .starts_with("split: cu_seqlens(0,): rank 0 has 4 of the 4 tokens of sequence 0, not 2\n"
                         "split: cu_seqlens(1,): rank 0 has 4 of the 12 tokens of sequence 1, not 6\n"
                         "order: order(1,): token 3 of per-document is here\n"
                         "order: order(2,): token 4 of per-document is here\n"));
  claims.order = CpOrder::thd, claims.ranks = 4;
  CHECK(text_of(check_permutation(head_tail, claims)) ==
        "divisible: cu_seqlens(0,): sequence 0 has 4 tokens, not a multiple of 8\n");
}

TEST_CASE("indices out of range, twice and missing") {
  CHECK(text_of(check_permutation(integers({0, 4, 1, 1}))) ==
        "range: order(1,): there are 4 tokens\ntwice: order(3,): also at place 2\n"
        "missing: order(): token 2 has no place\nmissing: order(): token 3 has no place\n");
  CHECK(check_permutation(integers({-1})).count("range") == 1);
  CHECK(check_permutation(integers({})).errors() == 0);
  PermutationClaims claims;
  claims.cu_seqlens = integers({0, 3});
  CHECK(text_of(check_permutation(integers({1, 0}), claims)) ==
        "length: cu_seqlens(1,): the order has 2 places\n");
  claims = {};
  claims.ranks = 2;
  CHECK(text_of(check_permutation(integers({1, 0, 2}), claims)) ==
        "divisible: order(): 3 tokens, not a multiple of 2\n");
  claims.order = CpOrder::thd;
  CHECK(plain::failure([&] { check_permutation(integers({0}), claims); }, Error::Kind::usage) ==
        "order thd needs cu_seqlens");
  claims = {};
  claims.order = CpOrder::contiguous;
  CHECK(plain::failure([&] { check_permutation(integers({0}), claims); }, Error::Kind::usage) ==
        "order contiguous needs ranks");
  CHECK(plain::failure([&] {
          check_permutation(integers({0, 1}, {1, 2}));
        }) == "x.npy: an order must be a 1-D array, not of shape (1, 2)");
}

TEST_CASE("orders of sequences with padding, and of blocks by the work of a mask") {
  Random random(32);
  Answers right;
  for (int trial = 0; trial < 400; ++trial) {
    CAPTURE(trial);
    const std::int64_t ranks = between(random, 1, 4);
    PermutationClaims claims;
    claims.ranks = ranks;
    CpSettings settings{.order = CpOrder::thd, .ranks = ranks};
    if (between(random, 0, 1)) {
      Numbers lens, rooms;
      for (std::int64_t n = between(random, 1, 5); n > 0; --n) {
        rooms.push_back(2 * ranks * between(random, 0, 4));
        lens.push_back(between(random, 0, rooms.back()));
      }
      settings.cu_seqlens = claims.cu_seqlens = integers(offsets_of(lens));
      settings.padded = claims.padded = integers(offsets_of(rooms));
    } else {
      settings.order = between(random, 0, 1) ? CpOrder::ptrr : CpOrder::balanced;
      const std::int64_t block = between(random, 1, 5), blocks = settings.order == CpOrder::ptrr
                                                                     ? ranks * between(random, 1, 5)
                                                                     : between(random, ranks, 20);
      settings.tokens = block * blocks, settings.block = block;
      claims.mask = plain::random_mask(random, *settings.tokens, *settings.tokens, 1).mask;
      claims.block = BlockShape{block, block};
      const Sparsity sparsity = measure_sparsity({*claims.mask}, {*claims.block}, {.ranks = ranks});
      for (const ContextParallel& parallel : sparsity.parallel)
        if (std::string(name_of(parallel.distribution)) == name_of(settings.order))
          settings.block_ranks = parallel.block_ranks;
    }
    claims.order = settings.order;
    const CpTokens made = make_cp_order(settings);
    Numbers given;
    for (const double x : plain::doubles(made.order.view())) given.push_back(static_cast<std::int64_t>(x));
    const Findings found = check_permutation(integers(given), claims);
    CHECK_MESSAGE(found.errors() == 0, text_of(found));
    const Numbers before = given;
    if (given.size() > 1) {
      const auto place = [&] { return given.begin() + between(random, 0, std::ssize(given) - 1); };
      std::iter_swap(place(), place());
    }
    right.add(given == before);
    CHECK((check_permutation(integers(given), claims).errors() == 0) == (given == before));
  }
  CHECK(right.yes > 10);
  CHECK(right.no > 100);
}

TEST_CASE("the work of ranks by a mask, and without padding, is in the report") {
  PermutationClaims claims;
  claims.ranks = 2;
  claims.mask = causal_mask(4, 4);
  const std::string text = to_text(describe(check_permutation(integers({0, 3, 1, 2}), claims)));
  CHECK(text.find("work of ranks (pairs of the mask)") != std::string::npos);
  claims = {};
  claims.ranks = 1, claims.cu_seqlens = integers({0, 3}), claims.padded = integers({0, 4});
  const Findings found = check_permutation(integers({0, 3, 1, 2}), claims);
  CHECK(found.errors() == 0);
  CHECK(to_text(describe(found)).find('6') != std::string::npos);  // causal pairs of 3 tokens
  claims.mask = causal_mask(5, 5);
  CHECK(plain::failure(
            [&] {
              check_permutation(integers({0, 3, 1, 2}), claims);
            },
            Error::Kind::usage) == "the mask has 5 queries and 5 keys, and the order 4 tokens");
}
