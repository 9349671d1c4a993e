// The report of group metadata against a plain loop over every row of every visited tile.
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "ejk/groups.hpp"

using namespace ejk;

namespace {

using Sizes = std::vector<std::int64_t>;

GroupMetadata metadata(const Sizes& sizes, std::int64_t m, std::int64_t tm,
                       const GroupMetadataOptions& how = {}) {
  const auto source =
      make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(sizes.size())}, sizes), "sizes");
  return make_group_metadata(*source, m, tm, how);
}

nlohmann::json described(const GroupMetadata& made) {
  return nlohmann::json::parse(to_json(describe(made), {"group-metadata", {}})).at("result");
}

// Of the rows in the tiles visited: all, those of other groups, those of none.
struct Rows {
  std::int64_t computed = 0, others = 0, none = 0;
  explicit Rows(const GroupMetadata& made) {
    const auto offsets = made.group_offsets.elements<std::int32_t>();
    for (std::size_t i = 0; i < static_cast<std::size_t>(made.num_tiles.elements<std::int32_t>()[0]); ++i) {
      if (made.m == 0) break;
      const auto g = static_cast<std::size_t>(made.group_ids.elements<std::int32_t>()[i]);
      const std::int64_t t = made.m_tile_ids.elements<std::int32_t>()[i];
      for (std::int64_t row = t * made.tm; row < (t + 1) * made.tm; ++row) {
        ++computed;
        if (row >= offsets.back())
          ++none;
        else if (row < offsets[g] || row >= offsets[g + 1])
          ++others;
      }
    }
  }
};

}  // namespace

TEST_CASE("rows computed and thrown away are those of a plain loop, for neighbouring tiles too") {
  std::mt19937_64 random(3);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int n = 0; n < 150; ++n) {
    Sizes sizes(static_cast<std::size_t>(1 + below(8)));
    std::int64_t m = below(3) == 0 ? below(40) : 0;
    for (std::int64_t& size : sizes) m += size = below(3) == 0 ? 0 : below(30);
    GroupMetadataOptions how;
    how.empty_groups = below(2) == 0 ? EmptyGroups::visit : EmptyGroups::skip;
    if (below(2) == 0) how.start_group = below(static_cast<std::int64_t>(sizes.size()));
    const GroupMetadata made = metadata(sizes, m, 1 + below(20), how);
    const auto r = described(made);
    const Rows rows(made);
    const auto& tiles = r.at("tiles");
    CHECK(tiles.at("tiles_visited") == r.at("num_tiles"));
    CHECK(tiles.at("rows_computed") == rows.computed);
    CHECK(tiles.at("rows_of_other_groups") == rows.others);
    CHECK(tiles.at("rows_of_no_group") == rows.none);
    CHECK(tiles.at("rows_thrown_away") == rows.others + rows.none);
    CHECK(tiles.at("tiles_of_rows") == (m + made.tm - 1) / made.tm);
    std::int64_t aligned = 0;
    for (auto g = static_cast<std::size_t>(how.start_group); g < sizes.size(); ++g)
      aligned += (sizes[g] + made.tm - 1) / made.tm;
    CHECK(tiles.at("tiles_aligned") == aligned);
    for (const auto& row : r.at("tile_sizes")) {
      const GroupMetadata other = metadata(sizes, m, row.at("tm"), how);
      const Rows theirs(other);
      CHECK(row.at("tiles_visited") == other.num_tiles.elements<std::int32_t>()[0]);
      CHECK(row.at("rows_computed") == theirs.computed);
      CHECK(row.at("rows_thrown_away") == theirs.others + theirs.none);
    }
  }
}

TEST_CASE("how evenly groups are filled is said of the groups that are computed") {
  const Sizes sizes{100, 0, 8, 4, 4, 0};
  const auto all = described(metadata(sizes, 116, 8)).at("load");
  CHECK(all.at("empty_groups") == 2);
  CHECK(all.at("largest") == 100);
  CHECK(all.at("largest_group") == 0);
  CHECK(all.at("max_over_mean").get<double>() == doctest::Approx(100 * 6 / 116.0));
  CHECK(all.at("percentiles")[0].at("p50") == 4);
  const auto shard = described(metadata(sizes, 116, 8, {1, 4, EmptyGroups::visit, false}));
  CHECK(shard.at("groups") == 6);
  CHECK(shard.at("groups_wanted") == 4);
  CHECK(shard.at("load").at("empty_groups") == 1);
  CHECK(shard.at("load").at("largest_group") == 2);
  CHECK(shard.at("load").at("mean") == 4);
  std::int64_t groups = 0;
  for (const auto& bin : shard.at("load").at("histogram")) groups += bin.at("groups").get<std::int64_t>();
  CHECK(groups == 4);
}

TEST_CASE("tile sizes are told from a quarter to four times tm, each once, as far as they exist") {
  const auto sizes_at = [](std::int64_t tm) {
    Sizes sizes;
    const auto report = described(metadata({5}, 5, tm));
    for (const auto& row : report.at("tile_sizes")) sizes.push_back(row.at("tm"));
    return sizes;
  };
  CHECK(sizes_at(128) == Sizes{32, 64, 128, 256, 512});
  CHECK(sizes_at(1) == Sizes{1, 2, 4});
  CHECK(sizes_at(3) == Sizes{1, 3, 6, 12});
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(sizes_at(huge) == Sizes{huge / 4, huge / 2, huge});
}

TEST_CASE("rows past the last group are counted and warned of") {
  const Report report = describe(metadata({3, 4}, 12, 4));
  REQUIRE(report.warnings.size() == 1);
  CHECK(report.warnings[0] == "5 of 12 rows are past the last group and belong to none");
  CHECK(described(metadata({3, 4}, 12, 4)).at("rows_past_last_group") == 5);
  CHECK(describe(metadata({3, 4}, 7, 4)).warnings.empty());
}

TEST_CASE("no group, no group computed, only empty ones, and no rows are reports too") {
  CHECK(described(metadata({}, 0, 4)).at("groups") == 0);
  CHECK(described(metadata({3}, 3, 4, {1, std::nullopt, EmptyGroups::visit, false})).at("groups_wanted") ==
        0);
  const auto empty = described(metadata({0, 0}, 0, 4));
  CHECK(empty.at("tiles").at("rows_computed") == 0);
  CHECK(empty.at("tiles").at("thrown_away_share").is_null());
  CHECK(empty.at("load").at("max_over_mean").is_null());
}
