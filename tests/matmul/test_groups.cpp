// Offsets of groups of rows and their tiles: golden cases, a plain loop over tiles and groups, and errors
// that name the index.
#include "ejk/groups.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <numeric>
#include <random>

#include "support/equal.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

using plain::failure;

using Sizes = std::vector<std::int64_t>;

std::shared_ptr<const ArraySource> source_of(const Sizes& sizes, DType dtype = DType::int64) {
  Array a(dtype, {static_cast<std::int64_t>(sizes.size())});
  dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (std::size_t i = 0; i < sizes.size(); ++i) a.elements<T>()[i] = static_cast<T>(sizes[i]);
  });
  return make_source(std::move(a), "sizes.npy");
}

Sizes values_of(const Array& a) {
  REQUIRE(a.dtype() == DType::int32);
  const auto elements = a.elements<std::int32_t>();
  return {elements.begin(), elements.end()};
}

// The lists by their definition: every tile is asked about every group.
struct Plain {
  Sizes offsets{0}, group_ids, m_tile_ids;
  std::int64_t num_tiles = 0;

  Plain(const Sizes& sizes, std::int64_t m, std::int64_t tm, const GroupMetadataOptions& how) {
    const bool visit = how.empty_groups == EmptyGroups::visit;
    const auto groups = static_cast<std::int64_t>(sizes.size());
    for (const std::int64_t n : sizes) offsets.push_back(offsets.back() + n);
    const std::int64_t tiles = (m + tm - 1) / tm;
    const auto length = static_cast<std::size_t>(tiles + groups - 1);
    const std::int64_t wanted = how.num_nonzero_groups.value_or(groups);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t begin = offsets[static_cast<std::size_t>(g)], n = sizes[static_cast<std::size_t>(g)];
      std::int64_t own = n == 0 && visit ? 1 : 0;
      for (std::int64_t t = 0; t < tiles; ++t)
        own += std::max(begin, t * tm) < std::min(begin + n, (t + 1) * tm);
      group_ids.insert(group_ids.end(), static_cast<std::size_t>(own), g);
      if (how.start_group <= g && g < how.start_group + wanted) num_tiles += own;
    }
    for (std::int64_t t = 0; t < tiles; ++t) {
      m_tile_ids.push_back(t);
      for (std::size_t g = 0; g < sizes.size(); ++g) {
        const std::int64_t begin = offsets[g];
        const bool within = t * tm <= begin && begin < (t + 1) * tm;
        if (within && (sizes[g] == 0 ? visit : begin != t * tm)) m_tile_ids.push_back(t);
      }
    }
    group_ids.resize(length, groups - 1);
    m_tile_ids.resize(tiles == 0 ? 0 : length, tiles - 1);
    const auto before = std::count_if(group_ids.begin(), group_ids.end(),
                                      [&](std::int64_t g) { return g < how.start_group; });
    for (Sizes* ids : {&group_ids, &m_tile_ids})
      if (!ids->empty()) std::rotate(ids->begin(), ids->begin() + before % std::ssize(*ids), ids->end());
  }
};

void check_plain(const Sizes& sizes, std::int64_t m, std::int64_t tm, const GroupMetadataOptions& how) {
  CAPTURE(m);
  CAPTURE(tm);
  CAPTURE(how.start_group);
  const Plain plain(sizes, m, tm, how);
  const GroupMetadata made = make_group_metadata(*source_of(sizes), m, tm, how);
  CHECK(values_of(made.group_offsets) == plain.offsets);
  CHECK(values_of(made.group_ids) == plain.group_ids);
  CHECK(values_of(made.m_tile_ids) == plain.m_tile_ids);
  CHECK(made.num_tiles.shape().empty());
  CHECK(values_of(made.num_tiles) == Sizes{plain.num_tiles});
  CHECK(group_metadata_length(*source_of(sizes), m, tm, how) == made.group_ids.size());
}

}  // namespace

TEST_CASE("group offsets are the running sum, for every integer dtype") {
  for (const DType dtype : {DType::int8, DType::uint8, DType::int16, DType::uint16, DType::int32,
                            DType::uint32, DType::int64, DType::uint64}) {
    CHECK(group_offsets(*source_of({100, 0, 127, 50}, dtype), 300) == Sizes{0, 100, 100, 227, 277});
    CHECK(group_offsets(*source_of({100, 0, 127, 50}, dtype), 277, true) == Sizes{0, 100, 100, 227, 277});
  }
  CHECK(group_offsets(*source_of({}), 0, true) == Sizes{0});
  CHECK(group_offsets(*source_of({}), 5) == Sizes{0});
  CHECK(group_offsets(*source_of({0, 0}), 0, true) == Sizes{0, 0, 0});
}

TEST_CASE("group offsets do not wrap where int32 sizes sum to more than int32 holds") {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  CHECK(group_offsets(*source_of({most, most, 5}, DType::int32), 3 * most) ==
        Sizes{0, most, 2 * most, 2 * most + 5});
}

TEST_CASE("group sizes at fault are named with their index and the numbers") {
  CHECK(failure([] {
          group_offsets(*source_of({3, -1}), 10);
        }) == "sizes.npy: group_sizes[1] is -1; a size is at least 0");
  CHECK(failure([] {
          group_offsets(*source_of({3, 4, 6, 1}), 12);
        }) == "sizes.npy: group_sizes[2] is 6: the sum up to it is 13, more than m = 12");
  CHECK(failure([] {
          group_offsets(*source_of({3, 4}), 12, true);
        }) == "sizes.npy: group_sizes of 2 groups sum to 7, less than m = 12");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(failure([&] {
          group_offsets(*source_of({most, 1}), most);
        }) == "sizes.npy: group_sizes[1] is 1: the sum up to it passes 63 bits");
  CHECK(failure([] { group_offsets(*source_of({}), -1); }) == "m is -1; it must be at least 0");
  CHECK(failure([] { group_offsets(*make_source(Array(DType::float32, {2}), "sizes.npy"), 1); }) ==
        "sizes.npy: group_sizes must be integers, not float32");
  CHECK(failure([] {
          group_offsets(*make_source(Array(DType::int32, {2, 2}), "sizes.npy"), 1);
        }) == "sizes.npy: group_sizes must be a 1-D array, not of shape (2, 2)");
  Array beyond(DType::uint64, {2});
  beyond.elements<std::uint64_t>()[1] = std::uint64_t{1} << 63;
  CHECK(failure([&] { group_offsets(*make_source(beyond.view(), "sizes.npy"), 1); }) ==
        "sizes.npy: group_sizes[1] is 9223372036854775808, beyond 63 bits");
}

TEST_CASE("golden cases of make_group_metadata") {
  for (const golden::Case& c : golden::load("make_group_metadata")) {
    CAPTURE(c.name);
    const nlohmann::json& p = c.params;
    GroupMetadataOptions how;
    how.start_group = p.at("start_group");
    how.num_nonzero_groups = p.at("num_nonzero_groups").get<std::int64_t>();
    how.empty_groups = p.at("visit_empty_groups").get<bool>() ? EmptyGroups::visit : EmptyGroups::skip;
    how.strict = p.at("strict");
    const auto sizes = make_source(c.in.at("group_sizes").view(), "group_sizes");
    if (c.is_error) {
      CHECK_THROWS_AS(make_group_metadata(*sizes, p.at("m"), p.at("tm"), how), Error);
      continue;
    }
    const GroupMetadata made = make_group_metadata(*sizes, p.at("m"), p.at("tm"), how);
    golden::check_equal(made.group_offsets, c, "group_offsets");
    golden::check_equal(made.group_ids, c, "group_ids");
    golden::check_equal(made.m_tile_ids, c, "m_tile_ids");
    golden::check_equal(made.num_tiles, c, "num_tiles");
  }
}

TEST_CASE("group metadata is that of a plain loop, for all small m and tm and every shard") {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (std::int64_t m = 0; m <= 60; ++m)
    for (std::int64_t tm = 1; tm <= 20; ++tm) {
      Sizes sizes(static_cast<std::size_t>(1 + below(7)));
      std::int64_t rest = m;
      for (std::int64_t& n : sizes) {
        n = below(3) == 0 ? 0 : below(3) == 0 ? std::min(rest, tm) : below(rest + 1);
        rest -= n;
      }
      if (below(2) == 0) sizes.back() += rest;
      const auto groups = static_cast<std::int64_t>(sizes.size());
      for (const EmptyGroups empty : {EmptyGroups::visit, EmptyGroups::skip}) {
        check_plain(sizes, m, tm, {0, std::nullopt, empty, false});
        check_plain(sizes, m, tm, {below(groups + 1), below(groups + 2), empty, false});
        check_plain(sizes, m, tm, {below(groups + 1), std::nullopt, empty, false});
      }
    }
}

TEST_CASE("each step of the walk is a group and a tile that it has rows in") {
  const Sizes sizes{100, 0, 150, 0, 0, 6, 50};
  for (std::int64_t first = 0; first < 7; ++first) {
    const GroupMetadata made =
        make_group_metadata(*source_of(sizes), 320, 32, {first, std::nullopt, EmptyGroups::skip, false});
    const Sizes offsets = values_of(made.group_offsets), group_ids = values_of(made.group_ids),
                tile_ids = values_of(made.m_tile_ids);
    std::vector<std::pair<std::int64_t, std::int64_t>> steps, expected;
    for (std::size_t i = 0; i < static_cast<std::size_t>(values_of(made.num_tiles)[0]); ++i)
      steps.emplace_back(group_ids[i], tile_ids[i]);
    for (std::int64_t g = first; g < 7; ++g)
      for (std::int64_t t = 0; t < 10; ++t)
        if (std::max(offsets[static_cast<std::size_t>(g)], t * 32) <
            std::min(offsets[static_cast<std::size_t>(g) + 1], (t + 1) * 32))
          expected.emplace_back(g, t);
    CHECK(steps == expected);
  }
}

TEST_CASE("tiles are counted exactly where a histogram of float32 goes wrong") {
  // Groups that begin within the last tiles but one, and everywhere, of more than 4096 tiles.
  for (const std::int64_t tiles : {4095, 4097, 5000, 16'385, 70'001}) {
    check_plain({(tiles - 2) * 8 + 3, 13}, tiles * 8, 8, {});
    check_plain({(tiles - 2) * 8 + 3, 5}, tiles * 8, 8, {1, 1, EmptyGroups::skip, false});
    check_plain({5, (tiles / 2) * 8, 0, (tiles / 3) * 8 + 1, 0, 1}, tiles * 8 - 3, 8, {});
  }
}

TEST_CASE("without groups there is nothing to walk, and without rows no tile") {
  const GroupMetadata none = make_group_metadata(*source_of({}), 300, 128);
  CHECK(values_of(none.group_offsets) == Sizes{0});
  CHECK(none.group_ids.shape() == Shape{0});
  CHECK(none.m_tile_ids.shape() == Shape{0});
  CHECK(values_of(none.num_tiles) == Sizes{0});
  const GroupMetadata empty = make_group_metadata(*source_of({0, 0, 0}), 0, 128);
  CHECK(values_of(empty.group_ids) == Sizes{0, 1});
  CHECK(empty.m_tile_ids.shape() == Shape{0});
  CHECK(values_of(empty.num_tiles) == Sizes{3});
}

TEST_CASE("what int32 cannot hold is refused before anything is made, and the rest is not") {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(failure([&] {
          make_group_metadata(*source_of({most, 0, 1}), most + 1, 1 << 20);
        }) ==
        "sizes.npy: group_sizes sum to 2147483648 at index 2, which int32 offsets cannot hold (at most "
        "2147483647)");
  CHECK(values_of(make_group_metadata(*source_of({most - 1, 0, 1}), most, 1 << 20).group_offsets) ==
        Sizes{0, most - 1, most - 1, most});
  CHECK(failure([] {
          make_group_metadata(*source_of({1, 2}), 1'000'000'000'000'000, 128);
        }) ==
        "sizes.npy: 7812500000000 tiles (m = 1000000000000000, tm = 128) and 2 groups make more entries than "
        "int32 counts (at most 2147483647)");
  CHECK(failure([&] {
          make_group_metadata(*source_of({1, 2}), huge, 1);
        }).find("more entries") != std::string::npos);
  CHECK(group_metadata_length(*source_of({1, 2}), most - 1, 1) == most);
  CHECK(failure([&] {
          group_metadata_length(*source_of({1, 2}), most, 1);
        }).find("more entries") != std::string::npos);
  // m itself is in no array.
  CHECK(values_of(make_group_metadata(*source_of({5, 6}), huge, huge).group_ids) == Sizes{0, 1});
  CHECK(values_of(make_group_metadata(*source_of({5, 6}), 11, huge, {1, huge, {}, false}).num_tiles) ==
        Sizes{1});
}

TEST_CASE("numbers that group metadata cannot be made of are named") {
  const auto sizes = source_of({4, 7});
  CHECK(failure([&] { make_group_metadata(*sizes, 11, 0); }) == "tm is 0; it must be at least 1");
  CHECK(failure([&] { make_group_metadata(*sizes, -1, 4); }) == "m is -1; it must be at least 0");
  CHECK(failure([&] {
          make_group_metadata(*sizes, 11, 4, {-1, std::nullopt, {}, false});
        }) == "start_group is -1; it must be at least 0");
  CHECK(failure(
            [&] {
              make_group_metadata(*sizes, 11, 4, {3, std::nullopt, {}, false});
            },
            Error::Kind::usage) == "sizes.npy: start_group is 3, but there are only 2 groups");
  CHECK(failure([&] {
          make_group_metadata(*sizes, 11, 4, {0, -2, {}, false});
        }) == "num_nonzero_groups is -2; it must be at least 0");
  CHECK(failure([&] {
          make_group_metadata(*sizes, 11, 4, {0, std::nullopt, {}, true});
        }) == "tm = 4 does not divide m = 11");
  CHECK(failure([&] {
          make_group_metadata(*sizes, 12, 4, {0, std::nullopt, {}, true});
        }) == "sizes.npy: group_sizes of 2 groups sum to 11, less than m = 12");
}

TEST_CASE("ends of groups become their sizes, and are told from sizes by their elements") {
  const auto from_ends = [](const Sizes& ends) {
    const Array sizes = group_sizes_from_ends(*source_of(ends));
    const auto elements = sizes.elements<std::int64_t>();
    return Sizes(elements.begin(), elements.end());
  };
  CHECK(from_ends({5, 5, 14, 20}) == Sizes{5, 0, 9, 6});
  CHECK(from_ends({}) == Sizes{});
  CHECK(failure([] {
          group_sizes_from_ends(*source_of({5, 3, 8}));
        }) == "sizes.npy: ends of groups[1] is 3, less than 5 before it");
  CHECK(failure([] {
          group_sizes_from_ends(*source_of({-1, 3}));
        }) == "sizes.npy: ends of groups[0] is -1; it is at least 0");

  CHECK(likely_group_ends(*source_of({5, 5, 14, 20}), 64));
  CHECK(likely_group_ends(*source_of({0, 5, 14, 20}), 20));
  CHECK(likely_group_ends(*source_of({5, 14}), 64));  // few, but they leave rows over
  for (const Sizes& sizes : {Sizes{5, 0, 9, 6}, Sizes{4, 4, 4, 4}, Sizes{64}, Sizes{}, Sizes{1, 2, 3, 65}})
    CHECK_FALSE(likely_group_ends(*source_of(sizes), 64));
  CHECK_FALSE(likely_group_ends(*source_of({5, 14, 20}), 39));  // or they do not
  CHECK_FALSE(likely_group_ends(*source_of({5, 14, 20}), INT64_MAX));

  // Of sizes that sum to more than there are rows the error says that they may be ends.
  const auto code_of = [](const Sizes& sizes) {
    try {
      group_offsets(*source_of(sizes), 20);
    } catch (const Error& error) {
      return error.code();
    }
    return Error::Code::exists;
  };
  CHECK(code_of({5, 5, 14, 20}) == Error::Code::group_ends);
  CHECK(code_of({5, 20, 14}) == Error::Code::other);
  CHECK(code_of({5, 5, 14, 21}) == Error::Code::other);
  Sizes labels;  // as many as rows
  for (std::int64_t row = 0; row < 20; ++row) labels.push_back(row / 5);
  CHECK(code_of(labels) == Error::Code::other);
}
