// The meaning of segment id 0, against a plain loop over the rows, and ids that count from 1.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "ejk/mask.hpp"
#include "ejk/segments.hpp"
#include "ejk/sequence.hpp"
#include "support/arrays.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using Rows = std::vector<std::vector<std::int32_t>>;
using Meaning = ZeroId::Meaning;

std::shared_ptr<const ArraySource> ids_of(const Rows& rows) {
  std::vector<std::int32_t> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  const auto columns = rows.empty() ? 0 : std::ssize(rows.front());
  return make_source(Array::from<std::int32_t>({std::ssize(rows), columns}, values), "ids.npy");
}

Meaning meaning_of(const std::vector<Rows>& arrays) {
  std::vector<std::shared_ptr<const ArraySource>> ids;
  for (const Rows& rows : arrays) ids.push_back(ids_of(rows));
  return zero_id_of(ids).meaning;
}

// The rule, word by word.
Meaning expected(const std::vector<Rows>& arrays) {
  bool zero = false, negative = false, from_0 = true;
  for (const Rows& rows : arrays)
    for (const auto& row : rows) {
      for (const std::int32_t id : row) zero = zero || id == 0, negative = negative || id < 0;
      const auto behind = std::find_if(row.begin(), row.end(), [](std::int32_t id) { return id != 0; });
      from_0 = from_0 && behind != row.begin() && std::find(behind, row.end(), 0) == row.end();
    }
  if (!zero) return Meaning::none;
  return negative || from_0 ? Meaning::document : Meaning::padding;
}

}  // namespace

TEST_CASE("segment id 0 is a document where ids count from 0") {
  CHECK(meaning_of({{{0, 0, 0, 1, 1, 2, 2, 2}}}) == Meaning::document);
  CHECK(meaning_of({{{0, 0}, {0, 1}}}) == Meaning::document);
  CHECK(meaning_of({{{1, 0, 0, -1}}}) == Meaning::document);  // -1 is the padding
  CHECK(meaning_of({{{0, 1, 1, 0}}}) == Meaning::padding);
  CHECK(meaning_of({{{0, 0, 1, 1}, {1, 1, 1, 1}}}) == Meaning::padding);  // a padding mask
  CHECK(meaning_of({{{0, 0, 1}}, {{0, 1, 0}}}) == Meaning::padding);      // of keys, too
  CHECK(meaning_of({{{1, 2}}}) == Meaning::none);
  CHECK(meaning_of({{}}) == Meaning::none);
  const Array bools(DType::boolean, {3});
  CHECK(zero_id_of({make_source(bools.view(), "pad.npy")}).meaning == Meaning::padding);
}

TEST_CASE("the meaning of id 0 is that of the rule, row by row") {
  plain::Random random(56);
  int of_each[3] = {};
  for (int n = 0; n < 3000; ++n) {
    std::vector<Rows> arrays(static_cast<std::size_t>(plain::between(random, 1, 2)));
    for (Rows& rows : arrays) {
      rows.resize(static_cast<std::size_t>(plain::between(random, 1, 3)));
      const auto columns = static_cast<std::size_t>(plain::between(random, 1, 5));
      const bool ascends = plain::between(random, 0, 2) > 0;
      for (auto& row : rows) {
        for (std::size_t i = 0; i < columns; ++i)
          row.push_back(static_cast<std::int32_t>(
              plain::between(random, plain::between(random, 0, 9) == 0 ? -1 : 0, 2)));
        if (ascends) std::sort(row.begin(), row.end());
      }
    }
    const Meaning meaning = meaning_of(arrays);
    ++of_each[static_cast<std::size_t>(meaning)];
    CHECK(meaning == expected(arrays));
  }
  CHECK(std::all_of(of_each, of_each + 3, [](int count) { return count > 100; }));
}

TEST_CASE("doubt about padding has its reason") {
  CHECK(zero_id_of({ids_of({{0, 0, 1, 1}, {2, 2, 3, 3}})}).why ==
        "it begins some rows, and others have none");
  CHECK(zero_id_of({ids_of({{0, 0, 1, 1}, {1, 1, 1, 1}})}).why.empty());
}

TEST_CASE("ids of sequence_ids are their documents, the first included") {
  const std::vector<std::int64_t> cu{0, 3, 5, 8};
  const auto ids = prepare_sequence_ids(cu);
  REQUIRE(zero_id_of({ids}).meaning == Meaning::document);
  const auto from_1 = ids_from_1(*ids);
  const Mask segments = segments_mask(from_1, from_1), documents = documents_mask(cu);
  CHECK(plain::elements_of(segments) == plain::elements_of(documents));
}
