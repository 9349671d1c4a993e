// Group sizes and group metadata: one number of a valid artefact is changed; a plain loop over steps and rows
// determines whether each row is still computed once.
#include <algorithm>
#include <numeric>

#include "check/artefacts.hpp"
#include "ejk/groups.hpp"
#include "io/support.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

Numbers numbers(const Array& array) {
  const auto elements = array.elements<std::int32_t>();
  return {elements.begin(), elements.end()};
}

struct Metadata {
  Numbers offsets, groups, tiles, num_tiles;

  explicit Metadata(const GroupMetadata& m)
      : offsets(numbers(m.group_offsets)),
        groups(numbers(m.group_ids)),
        tiles(numbers(m.m_tile_ids)),
        num_tiles(numbers(m.num_tiles)) {}

  Findings check(Random& random, const GroupMetadataClaims& claims) const {
    const auto any = [&](const Numbers& values) {
      return integers(values, {std::ssize(values)}, any_dtype(random));
    };
    return check_group_metadata({any(offsets), any(groups), any(tiles), integers(num_tiles, {})}, claims);
  }
};

// A kernel's walk, step by step: how often is each row computed?
bool computes_each_row_once(const Metadata& a, const Metadata& right, std::int64_t m, std::int64_t tm,
                            std::int64_t first, std::int64_t end, bool offsets_are_known,
                            const GroupMetadataClaims& claims) {
  if (a.offsets.front() != 0 || !std::is_sorted(a.offsets.begin(), a.offsets.end())) return false;
  if (offsets_are_known && a.offsets != right.offsets) return false;
  const std::int64_t tiles = (m + tm - 1) / tm, steps = a.num_tiles[0];
  if (a.offsets.back() > (claims.m ? m : tiles * tm)) return false;
  if (tiles > 0 && (steps < 0 || steps > std::ssize(a.groups))) return false;
  Numbers computed(static_cast<std::size_t>(tiles * tm));
  std::vector<bool> has_step(a.offsets.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(steps); ++i) {
    const std::int64_t g = a.groups[i], t = a.tiles[i];
    if (g < first || g >= end || t < 0 || t >= tiles) return false;
    if (i > 0 && (g < a.groups[i - 1] || t < a.tiles[i - 1])) return false;
    has_step[static_cast<std::size_t>(g)] = true;
    for (std::int64_t row = t * tm; row < (t + 1) * tm; ++row)
      if (row >= a.offsets[static_cast<std::size_t>(g)] && row < a.offsets[static_cast<std::size_t>(g) + 1])
        ++computed[static_cast<std::size_t>(row)];
  }
  bool empty_with = false, empty_without = false;
  for (std::int64_t g = first; g < end; ++g) {
    const auto i = static_cast<std::size_t>(g);
    for (std::int64_t row = a.offsets[i]; row < a.offsets[i + 1]; ++row)
      if (computed[static_cast<std::size_t>(row)] != 1) return false;
    if (a.offsets[i] == a.offsets[i + 1]) (has_step[i] ? empty_with : empty_without) = true;
  }
  const bool visits = claims.empty_groups ? *claims.empty_groups == EmptyGroups::visit : empty_with;
  return !(visits && empty_without);
}

}  // namespace

TEST_CASE("a changed group size is an error where the sum or the sign is wrong, and else none") {
  Random random(21);
  for (int trial = 0; trial < 2000; ++trial) {
    Numbers sizes = random_sizes(random, between(random, 1, 6), 9);
    const std::int64_t m = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    CHECK(check_group_sizes(integers(sizes), m).errors() == 0);
    change_one(random, sizes);
    CHECK(check_group_sizes(integers(sizes, {std::ssize(sizes)}, any_dtype(random)), m).errors() > 0);
    const bool is_right = *std::min_element(sizes.begin(), sizes.end()) >= 0;
    CHECK((check_group_sizes(integers(sizes)).errors() == 0) == is_right);
  }
  CHECK(check_group_sizes(integers({INT64_MAX, INT64_MAX, 2}), 0).count("sum") == 1);  // 2^64, which is no 0
}

TEST_CASE("what make_group_metadata makes has no error, whatever is left out") {
  Random random(22);
  for (int trial = 0; trial < 2000; ++trial) {
    const Numbers sizes = random_sizes(random, between(random, 0, 7), 20);
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::int64_t m = rows + (between(random, 0, 2) == 0 ? between(random, 0, 30) : 0);
    const std::int64_t tm = between(random, 1, 9);
    GroupMetadataOptions how;
    how.start_group = between(random, 0, 2) == 0 ? between(random, 0, std::ssize(sizes)) : 0;
    if (between(random, 0, 2) == 0) how.num_nonzero_groups = between(random, 0, std::ssize(sizes) + 1);
    how.empty_groups = between(random, 0, 1) ? EmptyGroups::visit : EmptyGroups::skip;
    const Metadata made(make_group_metadata(integers(sizes), m, tm, how));
    GroupMetadataClaims claims{.start_group = how.start_group, .num_nonzero_groups = how.num_nonzero_groups};
    if (between(random, 0, 1)) claims.tm = tm;
    if (between(random, 0, 1)) claims.group_sizes = integers(sizes);
    if (between(random, 0, 1)) claims.m = m;
    if (between(random, 0, 1)) claims.empty_groups = how.empty_groups;
    CAPTURE(trial);
    const Findings found = made.check(random, claims);
    CHECK(found.errors() == 0);
    CHECK(found.count("unchecked") == (claims.tm ? 0 : 1));
    CHECK(found.warnings() == found.count("unchecked"));
  }
}

TEST_CASE("a changed number of group metadata is an error where a row is not computed once, and else none") {
  Random random(23);
  Answers right;
  for (int trial = 0; trial < 6000; ++trial) {
    const Numbers sizes = random_sizes(random, between(random, 1, 6), 20);
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::int64_t m =
        std::max<std::int64_t>(1, rows + (between(random, 0, 2) == 0 ? between(random, 0, 12) : 0));
    const std::int64_t tm = between(random, 1, 9);
    GroupMetadataOptions how;
    how.start_group = between(random, 0, 3) == 0 ? between(random, 0, std::ssize(sizes)) : 0;
    if (between(random, 0, 3) == 0) how.num_nonzero_groups = between(random, 0, std::ssize(sizes));
    how.empty_groups = between(random, 0, 1) ? EmptyGroups::visit : EmptyGroups::skip;
    const Metadata made(make_group_metadata(integers(sizes), m, tm, how));
    Metadata other = made;
    Numbers* const arrays[] = {&other.offsets, &other.groups, &other.tiles, &other.num_tiles};
    change_one(random, *arrays[between(random, 0, 3)]);
    const bool known = between(random, 0, 1) == 1;
    GroupMetadataClaims claims{
        .tm = tm, .start_group = how.start_group, .num_nonzero_groups = how.num_nonzero_groups};
    if (known) claims.group_sizes = integers(sizes);
    if (between(random, 0, 1)) claims.m = m;
    if (between(random, 0, 1)) claims.empty_groups = how.empty_groups;
    const std::int64_t groups = std::ssize(sizes);
    const std::int64_t end =
        how.start_group + std::min(groups - how.start_group, how.num_nonzero_groups.value_or(groups));
    CAPTURE(trial);
    const bool is_right = computes_each_row_once(other, made, m, tm, how.start_group, end, known, claims);
    right.add(is_right);
    CHECK((other.check(random, claims).errors() == 0) == is_right);
  }
  CHECK(right.yes > 600);
  CHECK(right.no > 2000);
}

TEST_CASE("without tiles each empty group has a step, or none has") {
  Random random(27);
  for (const std::int64_t first : {0, 1}) {
    const std::int64_t computed = 3 - first;
    GroupMetadataOptions how;
    how.start_group = first;
    Metadata m(make_group_metadata(integers({0, 0, 0}), 0, 4, how));
    CHECK(m.num_tiles == Numbers{computed});
    for (std::int64_t steps = 0; steps <= computed; ++steps) {
      m.num_tiles = {steps};
      CAPTURE(steps);
      GroupMetadataClaims claims;
      claims.start_group = first;
      CHECK(m.check(random, claims).errors() == (steps > 0 && steps < computed));
      claims.empty_groups = EmptyGroups::visit;
      CHECK(m.check(random, claims).errors() == (steps < computed));
      claims.empty_groups = EmptyGroups::skip;
      CHECK(m.check(random, claims).errors() == 0);
    }
  }
}

TEST_CASE("sizes are counted from the experts of tokens, and rounded up to an alignment") {
  // Experts 0, 0, 2, 2, 2 and no choice: 2, 0 and 3 rows.
  const auto ids = integers({0, 2, 2, 0, 2, -1}, {3, 2});
  const auto metadata_of = [](const Numbers& sizes, std::int64_t m) {
    return Metadata(make_group_metadata(integers(sizes), m, 4));
  };
  Random random(24);
  GroupMetadataClaims claims{.tm = 4, .topk_ids = ids, .experts = 3};
  CHECK(metadata_of({2, 0, 3}, 5).check(random, claims).errors() == 0);
  CHECK(metadata_of({2, 1, 2}, 5).check(random, claims).count("sizes") == 2);
  CHECK(metadata_of({2, 3}, 5).check(random, claims).count("shape") == 1);
  claims.align = 4;
  CHECK(metadata_of({4, 0, 4}, 8).check(random, claims).errors() == 0);
  CHECK(metadata_of({2, 0, 3}, 5).check(random, claims).count("misaligned") == 1);
  claims.experts = 2;
  CHECK_THROWS_AS(metadata_of({4, 0, 4}, 8).check(random, claims), Error);
}

TEST_CASE("what a file of ejk says of itself is a claim, unless another is made") {
  const GroupMetadata made = make_group_metadata(integers({3, 0, 5}), 8, 4);
  ArrayGroup group{"g.h5",
                   {{"group_offsets", make_source(made.group_offsets.view())},
                    {"group_ids", make_source(made.group_ids.view())},
                    {"m_tile_ids", make_source(made.m_tile_ids.view())}},
                   {{"tm", "4"}, {"m", "8"}, {"start_group", "0"}, {"visit_empty_groups", "true"}}};
  GroupMetadataClaims claims;
  CHECK_THROWS_WITH_AS(group_metadata_in(group, claims), "g.h5: holds no array 'num_tiles'", Error);
  group.arrays["num_tiles"] = make_source(made.num_tiles.view());
  group_metadata_in(group, claims);
  CHECK_FALSE(claims.tm);  // of another program, these may mean anything
  group.attributes["ejk_command"] = "group-metadata";
  claims.m = 9;
  const GroupMetadataArrays arrays = group_metadata_in(group, claims);
  CHECK(claims.tm == 4);
  CHECK(claims.m == 9);
  CHECK(claims.start_group == 0);
  CHECK_FALSE(claims.num_nonzero_groups);
  CHECK(claims.empty_groups == EmptyGroups::visit);
  CHECK(check_group_metadata(arrays, claims).count("shape") == 1);  // 9 rows make 3 tiles
  claims.m = 8;
  CHECK(check_group_metadata(arrays, claims).errors() == 0);
}

TEST_CASE("what a file of ejk says that cannot be is an error of the file") {
  const GroupMetadata made = make_group_metadata(integers({3, 0, 5}), 8, 4);
  ArrayGroup group{"g.h5",
                   {{"group_offsets", make_source(made.group_offsets.view())},
                    {"group_ids", make_source(made.group_ids.view())},
                    {"m_tile_ids", make_source(made.m_tile_ids.view())},
                    {"num_tiles", make_source(made.num_tiles.view())}},
                   {{"ejk_command", "group-metadata"}, {"tm", "4"}, {"num_nonzero_groups", "all"}}};
  GroupMetadataClaims fine;
  group_metadata_in(group, fine);
  CHECK_FALSE(fine.num_nonzero_groups);
  for (const auto& attribute :
       {std::pair("start_group", "4"), {"start_group", "-1"}, {"tm", "0"}, {"m", "x"}}) {
    const char* name = attribute.first;
    const char* value = attribute.second;
    CAPTURE(name);
    ArrayGroup wrong = group;
    wrong.attributes[name] = value;
    GroupMetadataClaims claims;
    CHECK(test::contains(test::error_of(Error::Kind::input, [&] { group_metadata_in(wrong, claims); }),
                         std::string("the attribute ") + name + " is '" + value + "'"));
  }
}

TEST_CASE("the message says which rows are left out") {
  Random random(25);
  Metadata m(make_group_metadata(integers({10, 6}), 16, 4));
  m.tiles[1] = 0;  // tile 1 of group 0
  const Findings found = m.check(random, {.tm = 4});
  REQUIRE(found.kept().size() == 2);
  CHECK(found.kept()[0].rule.name == "dropped");
  CHECK(found.kept()[0].finding.message == "rows 4 to 7 have no step");
  CHECK(found.kept()[1].rule.name == "twice");
  CHECK(found.kept()[1].finding.index == Shape{1});
}
