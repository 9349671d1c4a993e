// Experts of tokens and keys of queries: one number of a valid artefact is changed; a plain loop determines
// whether it is still valid.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "check/artefacts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Rows of different numbers from −1 (none, several times) to `most`; -1 stands behind the others.
Numbers random_rows(Random& random, std::int64_t rows, std::int64_t n, std::int64_t most) {
  Numbers all;
  for (std::int64_t r = 0; r < rows; ++r) {
    Numbers row(static_cast<std::size_t>(most + 1));
    std::iota(row.begin(), row.end(), 0);
    std::shuffle(row.begin(), row.end(), random);
    row.resize(static_cast<std::size_t>(n), -1);
    if (between(random, 0, 3) == 0) std::fill(row.begin() + between(random, 0, n), row.end(), -1);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

bool differ(const Numbers& ids, std::int64_t n, std::int64_t least, std::int64_t end) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < least || ids[i] >= end) return false;
    for (std::size_t j = i + 1;
         j < ids.size() && j / static_cast<std::size_t>(n) == i / static_cast<std::size_t>(n); ++j)
      if (ids[i] == ids[j] && ids[i] != -1) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a changed expert is an error where it is none, or a token's other one, and else none") {
  Random random(31);
  Answers right;
  for (int trial = 0; trial < 1500; ++trial) {
    const std::int64_t tokens = between(random, 1, 6), k = between(random, 1, 5),
                       experts = between(random, 1, 9);
    Numbers ids = random_rows(random, tokens, k, experts - 1);
    const auto check = [&] { return check_topk_ids(integers(ids, {tokens, k}, any_dtype(random)), experts); };
    CHECK(check().errors() == 0);
    change_one(random, ids);
    CAPTURE(trial);
    const bool is_right = differ(ids, k, -1, experts);
    right.add(is_right);
    CHECK((check().errors() == 0) == is_right);
  }
  CHECK(std::min(right.yes, right.no) > 150);
}

TEST_CASE(
    "a changed key is an error where it is none, a query's other one, or in its future, and else none") {
  Random random(32);
  Answers right;
  for (int trial = 0; trial < 1500; ++trial) {
    const std::int64_t batch = between(random, 1, 2), queries = between(random, 1, 6),
                       n = between(random, 1, 5);
    const std::int64_t offset = between(random, -2, 6);
    IndicesClaims claims{.keys = 8, .causal = between(random, 0, 1) == 1, .offset = offset};
    Numbers ids = random_rows(random, batch * queries, n, 7);
    const auto last_of = [&](std::size_t i) { return static_cast<std::int64_t>(i) / n % queries + offset; };
    if (claims.causal)
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] > last_of(i)) ids[i] = -1;
    const auto check = [&] {
      return check_indices(integers(ids, {batch, queries, n}, any_dtype(random)), claims);
    };
    CHECK(check().errors() == 0);
    change_one(random, ids);
    CAPTURE(trial);
    bool is_right = differ(ids, n, -1, 8);
    for (std::size_t i = 0; i < ids.size(); ++i)
      is_right = is_right && !(claims.causal && ids[i] >= 0 && ids[i] > last_of(i));
    right.add(is_right);
    CHECK((check().errors() == 0) == is_right);
  }
  CHECK(std::min(right.yes, right.no) > 150);
}

TEST_CASE("rows that are longer than a piece, and arrays without elements") {
  Numbers ids(100'000);
  std::iota(ids.begin(), ids.end(), 0);
  CHECK(check_indices(integers(ids, {1, 100'000})).errors() == 0);
  ids[99'999] = 17;
  const auto found = check_indices(integers(ids, {1, 100'000}));
  REQUIRE(found.kept().size() == 1);
  CHECK(found.kept()[0].finding.index == Shape{0, 99'999});
  CHECK(found.kept()[0].rule.name == "duplicate");
  CHECK(check_indices(integers({}, {0, 4})).warnings() == 0);
  CHECK(check_indices(integers({}, {4, 0})).count("empty") == 4);
  CHECK(check_topk_ids(integers({}, {4, 0}), 3).errors() == 0);
  CHECK(check_topk_ids(integers({}, {0, 2}), 3).errors() == 0);
}

TEST_CASE("the load of experts is counted, over all tokens") {
  const auto facts = nlohmann::json::parse(to_json(
      describe(check_topk_ids(integers({0, 1, 1, 3, -1, -1, 1, 0}, {4, 2}), 4)), {"check", {}}))["result"];
  CHECK(facts["tokens"] == 4);
  CHECK(facts["choices"] == 6);
  CHECK(facts["unrouted_tokens"] == 1);
  CHECK(facts["empty"] == 1);
  CHECK(facts["largest"] == 3);
  CHECK(facts["largest_index"] == 1);
  CHECK(facts["max_over_mean"] == 2.0);
  CHECK(facts["load"].dump() == "[2,3,0,1]");
  // One expert a token, without an axis.
  CHECK(check_topk_ids(integers({0, 1, 1, 0}), 2).errors() == 0);
  CHECK(check_topk_ids(integers({0, 2, 1, 0}), 2).count("range") == 1);
}
