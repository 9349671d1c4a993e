// Orders of context parallelism: torch's load balancers, TransformerEngine's example, plain loops, and errors.
#include "ejk/cp_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "support/arrays.hpp"
#include "support/equal.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using plain::between;
using plain::failure_and_hint;
using Tokens = std::vector<std::int64_t>;

Tokens tokens_of(const Array& array) {
  Tokens tokens;
  for (const double x : plain::doubles(array.view())) tokens.push_back(static_cast<std::int64_t>(x));
  return tokens;
}

// By definition: the chunk of each token, of each sequence or of all, says the rank.
Tokens plain_order(CpOrder order, std::int64_t ranks, const Tokens& begins) {
  const Tokens all{0, begins.back()};
  const Tokens& cut = is_by_sequence(order) ? begins : all;
  Tokens tokens;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (std::size_t s = 0; s + 1 < cut.size(); ++s)
      for (std::int64_t t = cut[s]; t < cut[s + 1]; ++t) {
        const std::int64_t parts = order == CpOrder::contiguous ? ranks : 2 * ranks;
        const std::int64_t chunk = (t - cut[s]) / ((cut[s + 1] - cut[s]) / parts);
        if (chunk == rank || (order != CpOrder::contiguous && chunk == parts - 1 - rank)) tokens.push_back(t);
      }
  return tokens;
}

// Pair by pair.
CpRank plain_work(const Tokens& own, const Tokens& begins, const Tokens& lengths) {
  CpRank work;
  std::set<std::int64_t> keys;
  for (const std::int64_t t : own) {
    std::size_t s = 0;
    while (begins[s + 1] <= t) ++s;
    if (t - begins[s] >= lengths[s]) continue;
    ++work.tokens;
    for (std::int64_t key = begins[s]; key <= t; ++key) ++work.pairs, keys.insert(key);
  }
  for (const std::int64_t key : keys)
    work.keys_received += std::find(own.begin(), own.end(), key) == own.end();
  return work;
}

}  // namespace

TEST_CASE("cp_order: golden cases") {
  int cases = 0;
  for (const golden::Case& c : golden::load("cp_order")) {
    CAPTURE(c.name);
    const IntegerArray cu = make_source(c.in.at("cu_seqlens").view(), "cu_seqlens");
    for (const CpOrder order : kCpOrders) {
      const std::string name = c.params.at("order");
      if (name != name_of(order) && !(name == "per-document" && order == CpOrder::thd)) continue;
      const CpTokens made = make_cp_order({.order = order, .ranks = c.params.at("ranks"), .cu_seqlens = cu});
      golden::check_equal(made.order, c, "order");
      golden::check_equal(made.inverse, c, "inverse");
      ++cases;
    }
  }
  CHECK(cases == 18);
}

TEST_CASE("cp_order: TransformerEngine's example of thd, whose values are positions") {
  const CpTokens made =
      make_cp_order({.order = CpOrder::thd, .ranks = 4, .cu_seqlens = Tokens{0, 8, 16, 24, 40}});
  CHECK(tokens_of(made.order) == Tokens{0,  7,  8,  15, 16, 23, 24, 25, 38, 39, 1,  6,  9,  14,
                                        17, 22, 26, 27, 36, 37, 2,  5,  10, 13, 18, 21, 28, 29,
                                        34, 35, 3,  4,  11, 12, 19, 20, 30, 31, 32, 33});
  CHECK(tokens_of(made.positions) == Tokens{0, 7, 0, 7, 0, 7, 0, 1, 14, 15, 1, 6, 1, 6, 1, 6, 2, 3, 12, 13,
                                            2, 5, 2, 5, 2, 5, 4, 5, 10, 11, 3, 4, 3, 4, 3, 4, 6, 7, 8,  9});
  CHECK(tokens_of(made.rank_offsets) == Tokens{0, 10, 20, 30, 40});
}

TEST_CASE("orders, positions and work are those of plain loops") {
  plain::Random random{5};
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    CpSettings settings{.order = kCpOrders[static_cast<std::size_t>(between(random, 0, 3))],
                        .ranks = between(random, 1, 5)};
    const std::int64_t unit = 2 * settings.ranks;
    Tokens begins{0}, cu{0}, lengths;
    const bool is_padded = settings.order == CpOrder::thd && between(random, 0, 1);
    for (std::int64_t s = between(random, 0, 5); s > 0; --s) {
      begins.push_back(begins.back() + unit * between(random, 0, 4));
      const std::int64_t room = begins.end()[-1] - begins.end()[-2];
      lengths.push_back(is_padded ? between(random, 0, room) : room);
      cu.push_back(cu.back() + lengths.back());
    }
    settings.cu_seqlens = cu;
    if (is_padded) settings.padded = begins;
    if (!is_by_sequence(settings.order) && between(random, 0, 1)) {
      settings.cu_seqlens = {}, settings.tokens = begins.back();
      begins = {0, begins.back()}, lengths = {begins.back()};
    }
    const CpTokens made = make_cp_order(settings);
    const Tokens order = plain_order(settings.order, settings.ranks, begins), got = tokens_of(made.order);
    CHECK(got == order);
    const Tokens inverse = tokens_of(made.inverse), positions = tokens_of(made.positions),
                 offsets = tokens_of(made.rank_offsets);
    for (std::size_t place = 0; place < order.size(); ++place) {
      const auto token = static_cast<std::size_t>(order[place]);
      CHECK(inverse[token] == static_cast<std::int64_t>(place));
      CHECK(positions[place] ==
            order[place] - *(std::upper_bound(begins.begin(), begins.end(), order[place]) - 1));
    }
    REQUIRE(std::ssize(offsets) == settings.ranks + 1);
    REQUIRE(std::ssize(made.ranks) == settings.ranks);
    auto mixed = read_all(*make_source(made.order.view()));
    const auto again = mixed.elements<std::int32_t>();
    for (std::size_t r = 0; r < made.ranks.size(); ++r) {
      const Tokens own(order.begin() + offsets[r], order.begin() + offsets[r + 1]);
      const CpRank work = plain_work(own, begins, lengths);
      CHECK(made.ranks[r].tokens == work.tokens);
      CHECK(made.ranks[r].pairs == work.pairs);
      CHECK(made.ranks[r].keys_received == work.keys_received);
      std::reverse(again.begin() + offsets[r], again.begin() + offsets[r + 1]);
    }
    // The work is that of the set of a rank's tokens.
    const auto of_set = cp_work(again, settings.ranks, settings.cu_seqlens, settings.padded);
    for (std::size_t r = 0; r < made.ranks.size(); ++r)
      CHECK(std::pair(of_set[r].pairs, of_set[r].keys_received) ==
            std::pair(made.ranks[r].pairs, made.ranks[r].keys_received));
  }
}

TEST_CASE("what an order cannot divide is an error with the sequence and its length") {
  const auto error = [](const CpSettings& settings) {
    return failure_and_hint([&] { make_cp_order(settings); });
  };
  const IntegerArray cu =
      make_source(Array::from<std::int32_t>({4}, std::vector<std::int32_t>{0, 8, 21, 24}), "cu.npy");
  CHECK(
      error({.order = CpOrder::per_document, .ranks = 2, .cu_seqlens = cu}) ==
      "cu.npy: sequence 1 has 13 tokens, not a multiple of 2 x 2 ranks | order per-document needs padding to 16");
  CHECK(error({.order = CpOrder::head_tail, .ranks = 5, .cu_seqlens = cu}) ==
        "cu.npy: 24 tokens are not a multiple of 2 x 5 ranks | order head-tail needs padding to 30");
  CHECK(error({.order = CpOrder::contiguous, .ranks = 5, .tokens = 24}) ==
        "24 tokens are not a multiple of 5 ranks | order contiguous needs padding to 25");
  const IntegerArray padded =
      make_source(Array::from<std::int32_t>({4}, std::vector<std::int32_t>{0, 8, 24, 30}), "to.npy");
  CHECK(
      error({.order = CpOrder::thd, .ranks = 2, .cu_seqlens = cu, .padded = padded}) ==
      "to.npy: sequence 2 has 6 tokens with its padding, not a multiple of 2 x 2 ranks | order thd needs padding "
      "to 8");
  CHECK(error({.order = CpOrder::head_tail, .ranks = 1, .tokens = std::int64_t{1} << 31}) ==
        "2147483648 tokens are more than 2147483647, which int32 can count");
  CHECK(error({.order = CpOrder::thd, .ranks = 1, .tokens = 8}) == "order thd needs cu_seqlens");
  CHECK(error({.order = CpOrder::per_document, .ranks = 2, .cu_seqlens = cu, .padded = padded}) ==
        "padded cu_seqlens are of order thd, not per-document");
  CHECK(error({.ranks = 0, .tokens = 8}) == "work is not divided among 0 ranks");
  CHECK(error({.ranks = 2}) == "neither cu_seqlens nor a number of tokens is given");
  CHECK(error({.ranks = 2, .cu_seqlens = cu, .tokens = 24}) ==
        "cu_seqlens and a number of tokens are both given");
  const std::int32_t order[] = {0, 1, 2};
  CHECK(failure_and_hint([&] { cp_work(order, 2); }) == "3 tokens are not a multiple of 2 ranks");
  CHECK(failure_and_hint([&] { cp_work(order, 1, cu); }) ==
        "there are 3 tokens in the order and 24 in the sequences");
}

TEST_CASE("orders of blocks are those of loops over blocks, and blocks that do not fit are errors") {
  plain::Random random{6};
  for (int round = 0; round < 100; ++round) {
    const std::int64_t ranks = between(random, 1, 4), block = between(random, 1, 5),
                       blocks = between(random, 0, 9);
    CpSettings settings{.order = CpOrder::balanced, .ranks = ranks, .tokens = block * blocks, .block = block};
    for (std::int64_t b = 0; b < blocks; ++b) settings.block_ranks.push_back(between(random, 0, ranks - 1));
    Tokens order, offsets{0};
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t token = 0; token < block * blocks; ++token)
        if (settings.block_ranks[static_cast<std::size_t>(token / block)] == rank) order.push_back(token);
      offsets.push_back(std::ssize(order));
    }
    const CpTokens made = make_cp_order(settings);
    CHECK(tokens_of(made.order) == order);
    CHECK(tokens_of(made.rank_offsets) == offsets);
  }
  const auto error = [](const CpSettings& settings) {
    return failure_and_hint([&] { make_cp_order(settings); });
  };
  CHECK(error({.order = CpOrder::balanced, .ranks = 2, .tokens = 10, .block = 4}) ==
        "10 tokens are not a multiple of blocks of 4 | order balanced needs padding to 12");
  CHECK(error({.order = CpOrder::ptrr, .ranks = 2, .tokens = 12, .block = 4}) ==
        "12 tokens are not a multiple of 2 ranks' blocks of 4 | order ptrr needs padding to 16");
  CHECK(error({.order = CpOrder::ptrr, .ranks = 2, .tokens = 16}) ==
        "order ptrr needs the tokens of a block");
  CHECK(error({.order = CpOrder::ptrr, .ranks = 2, .tokens = 16, .block = 8}) ==
        "0 blocks of 8 tokens have ranks, and there are 16 tokens");
  CHECK(error({.order = CpOrder::ptrr, .ranks = 2, .tokens = 16, .block = 8, .block_ranks = {0, 2}}) ==
        "block 1 is of rank 2, and there are 2 ranks");
}
