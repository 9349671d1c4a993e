// cu_seqlens, segment ids and position ids: one number of a valid artefact is changed; a plain loop
// determines whether it is still valid.
#include <algorithm>
#include <limits>

#include "check/artefacts.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// By their definition, with every claim.
bool are_offsets(const Numbers& cu, const CuSeqlensClaims& claims) {
  if (cu.empty() || cu.front() != 0) return false;
  if (claims.tokens && cu.back() != *claims.tokens) return false;
  for (std::size_t i = 0; i + 1 < cu.size(); ++i) {
    const std::int64_t length = cu[i + 1] - cu[i];
    if (length < 0 || (claims.max_seqlen && length > *claims.max_seqlen)) return false;
    if (length > 0 && cu[i] % claims.align != 0) return false;
  }
  return true;
}

// The sequence of each token, -1 past the last.
Numbers sequence_of(const Numbers& cu, std::int64_t tokens) {
  Numbers of(static_cast<std::size_t>(tokens), -1);
  for (std::size_t s = 0; s + 1 < cu.size(); ++s)
    for (std::int64_t t = cu[s]; t < cu[s + 1]; ++t)
      of[static_cast<std::size_t>(t)] = static_cast<std::int64_t>(s);
  return of;
}

// Do both let the same pairs of tokens see each other?
bool same_pairs(const Numbers& ids, std::int64_t padding_below, const Numbers& sequences) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t j = 0; j < ids.size(); ++j)
      if ((ids[i] == ids[j] && ids[i] >= padding_below) !=
          (sequences[i] == sequences[j] && sequences[i] >= 0))
        return false;
  return true;
}

bool are_in_one_piece(const Numbers& ids, std::int64_t padding_below) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t j = i; j < ids.size(); ++j)
      if (ids[i] == ids[j] && ids[i] >= padding_below)
        for (std::size_t k = i; k < j; ++k)
          if (ids[k] != ids[i]) return false;
  return true;
}

bool count_up(const Numbers& positions) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    if (positions[i] > 0 && (i == 0 || positions[i - 1] < 0 || positions[i] != positions[i - 1] + 1))
      return false;
  return true;
}

}  // namespace

TEST_CASE("a changed offset is an error where it breaks what is claimed, and else none") {
  Random random(11);
  Answers right;
  for (int trial = 0; trial < 1500; ++trial) {
    CuSeqlensClaims claims;
    Numbers lens = random_sizes(random, between(random, 0, 8), 12);
    if (between(random, 0, 2) == 0) {
      claims.align = between(random, 1, 4);
      for (std::int64_t& length : lens) length *= claims.align;
    }
    Numbers cu = offsets_of(lens);
    if (between(random, 0, 1)) claims.tokens = cu.back();
    if (between(random, 0, 1))
      claims.max_seqlen = lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
    CHECK(check_cu_seqlens(integers(cu), claims).errors() == 0);
    change_one(random, cu);
    CAPTURE(trial);
    const bool is_right = are_offsets(cu, claims);
    right.add(is_right);
    CHECK((check_cu_seqlens(integers(cu, {std::ssize(cu)}, any_dtype(random)), claims).errors() == 0) ==
          is_right);
  }
  CHECK(right.yes > 40);
  CHECK(right.no > 400);
}

TEST_CASE("a changed offset with or without padding is an error where it breaks what is claimed") {
  Random random(21);
  Answers right;
  for (int trial = 0; trial < 2000; ++trial) {
    CAPTURE(trial);
    CuSeqlensClaims claims;
    claims.ranks = between(random, 1, 3);
    const std::int64_t unit = 2 * *claims.ranks;
    Numbers lens, rooms;
    for (std::int64_t n = between(random, 0, 6); n > 0; --n) {
      rooms.push_back(unit * between(random, 0, 4));
      lens.push_back(between(random, 0, rooms.back()));
    }
    Numbers cu = offsets_of(lens), padded = offsets_of(rooms);
    if (between(random, 0, 1)) claims.tokens = padded.back();
    const auto errors = [&] {
      claims.padded = integers(padded, {std::ssize(padded)}, any_dtype(random));
      return check_cu_seqlens(integers(cu), claims).errors();
    };
    CHECK(errors() == 0);
    switch (between(random, 0, 3)) {
      case 0:
        change_one(random, cu);
        break;
      case 1:
        change_one(random, padded);
        break;
      case 2:
        (between(random, 0, 1) ? cu : padded).push_back(1000);
        break;
      default:
        claims.ranks = between(random, 1, 4);
    }
    CuSeqlensClaims of_cu;
    bool is_right = are_offsets(cu, of_cu) && cu.size() == padded.size();
    is_right = is_right && padded.front() >= 0 && std::is_sorted(padded.begin(), padded.end());
    if (claims.tokens) is_right = is_right && padded.back() == *claims.tokens;
    for (std::size_t s = 0; is_right && s + 1 < cu.size(); ++s) {
      const std::int64_t room = padded[s + 1] - padded[s];
      is_right = cu[s + 1] - cu[s] <= room && room % (2 * *claims.ranks) == 0;
    }
    right.add(is_right);
    CHECK((errors() == 0) == is_right);
  }
  CHECK(right.yes > 200);
  CHECK(right.no > 400);
}

TEST_CASE("without padding the lengths themselves divide among the ranks") {
  CHECK(check_cu_seqlens(integers({0, 4, 12}), {.ranks = 2}).errors() == 0);
  const Findings found = check_cu_seqlens(integers({0, 4, 10}), {.ranks = 2});
  CHECK(found.count("divisible") == 1);
  CHECK(text_of(found) ==
        "divisible: cu_seqlens(1,): sequence 1 has 6 tokens, not a multiple of 2 x 2 ranks\n");
}

TEST_CASE("a changed segment id is an error where other tokens see each other, and else none") {
  Random random(12);
  Answers right, right_alone;
  for (int trial = 0; trial < 1500; ++trial) {
    const Numbers cu = offsets_of(random_sizes(random, between(random, 1, 5), 5));
    const std::int64_t tokens = cu.back() + between(random, 0, 3);
    const Convention convention = between(random, 0, 1) ? Convention::document : Convention::ejkernel;
    const std::int64_t first = convention == Convention::document ? 1 : 0;
    const Numbers sequences = sequence_of(cu, tokens);
    // Any numbers for the sequences; mostly they count up.
    Numbers names;
    for (std::size_t s = 0; s + 1 < cu.size(); ++s) names.push_back(first + static_cast<std::int64_t>(s));
    if (between(random, 0, 2) == 0) std::shuffle(names.begin(), names.end(), random);
    Numbers ids;
    for (const std::int64_t s : sequences)
      ids.push_back(s < 0 ? first - 1 : names[static_cast<std::size_t>(s)]);
    const auto check = [&](bool with_cu) {
      SegmentIdsClaims claims{{}, convention};
      if (with_cu) claims.cu_seqlens = integers(cu);
      return check_segment_ids(integers(ids, {std::ssize(ids)}, any_dtype(random)), claims);
    };
    CAPTURE(trial);
    CHECK(check(true).errors() + check(false).errors() == 0);
    change_one(random, ids);
    const bool is_right = same_pairs(ids, first, sequences), is_right_alone = are_in_one_piece(ids, first);
    right.add(is_right), right_alone.add(is_right_alone);
    CHECK((check(true).errors() == 0) == is_right);
    CHECK((check(false).errors() == 0) == is_right_alone);
  }
  CHECK(std::min({right.yes, right.no, right_alone.yes, right_alone.no}) > 100);
}

TEST_CASE("a changed position is an error, but where it means nothing, or begins a sequence that may be") {
  Random random(13);
  Answers right, right_alone;
  for (int trial = 0; trial < 1500; ++trial) {
    const Numbers cu = offsets_of(random_sizes(random, between(random, 1, 5), 5));
    const std::int64_t tokens = cu.back() + between(random, 0, 3);
    const Numbers sequences = sequence_of(cu, tokens);
    Numbers wanted;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t s = sequences[static_cast<std::size_t>(t)];
      wanted.push_back(s < 0 ? -1 : t - cu[static_cast<std::size_t>(s)]);
    }
    Numbers ids = wanted;
    const auto check = [&](bool with_cu) {
      return check_position_ids(integers(ids, {std::ssize(ids)}, any_dtype(random)),
                                {with_cu ? integers(cu) : IntegerArray()});
    };
    CAPTURE(trial);
    CHECK(check(true).errors() + check(false).errors() == 0);
    change_one(random, ids);
    const bool is_right = std::equal(ids.begin(), ids.begin() + cu.back(), wanted.begin());
    right.add(is_right), right_alone.add(count_up(ids));
    CHECK((check(true).errors() == 0) == is_right);
    CHECK((check(false).errors() == 0) == count_up(ids));
  }
  CHECK(std::min({right.yes, right.no, right_alone.yes, right_alone.no}) > 100);
}

TEST_CASE("with a mask of tokens positions count tokens, in each row and for any type of mask") {
  Random random(17);
  Answers right;
  for (int trial = 0; trial < 1000; ++trial) {
    const std::int64_t rows = between(random, 1, 3), columns = between(random, 1, 12);
    const bool left = between(random, 0, 1) == 1;
    Numbers mask, wanted, places;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t padding = between(random, 0, columns);
      for (std::int64_t c = 0, seen = 0; c < columns; ++c) {
        const bool is_token = left ? c >= padding : c < columns - padding;
        mask.push_back(is_token);
        wanted.push_back(is_token ? seen++ : between(random, -1, 5));
        places.push_back(c);
      }
    }
    const auto check = [&](const Numbers& ids) {
      PositionIdsClaims claims;
      claims.mask = integers(mask, {rows, columns}, any_dtype(random));
      return check_position_ids(integers(ids, {rows, columns}), claims);
    };
    CHECK(check(wanted).errors() == 0);
    // Places in the row are right where no token follows padding.
    bool is_right = true;
    std::int64_t counting = 0;  // rows whose first token is not at place 0
    for (std::size_t i = 0; i < mask.size(); ++i) {
      is_right = is_right && (mask[i] == 0 || places[i] == wanted[i]);
      counting += places[i] > 0 && mask[i] == 1 && mask[i - 1] == 0;
    }
    right.add(is_right);
    CHECK((check(places).errors() == 0) == is_right);
    CHECK(check(places).count("counts-padding") == counting);
  }
  CHECK(std::min(right.yes, right.no) > 100);
  Array bools(DType::boolean, {1, 4});
  bools.elements<bool>()[3] = bools.elements<bool>()[2] = true;
  const IntegerArray mask(make_source(std::move(bools), "mask"));
  PositionIdsClaims claims;
  claims.mask = mask;
  CHECK(check_position_ids(integers({1, 1, 0, 1}, {1, 4}), claims).errors() == 0);
  CHECK_THROWS_AS(check_position_ids(integers({1, 1, 0, 1}), claims), Error);
  const std::vector<std::int64_t> gap{1, 0, 0, 1};
  claims.mask = integers(gap, {1, 4});
  const auto inside = check_position_ids(integers({0, 7, 8, 1}, {1, 4}), claims);
  REQUIRE(inside.kept().size() == 1);
  CHECK(inside.kept()[0].finding.index == Shape{0, 1});
  CHECK(inside.kept()[0].finding.value == ReportValue(std::int64_t{7}));  // the element at the index
  claims.padding = 1;
  CHECK_THROWS_AS(check_position_ids(integers({1, 1, 0, 1}, {1, 4}), claims), Error);
}

TEST_CASE("rows of a batch are looked at one by one") {
  CHECK(check_segment_ids(integers({1, 1, 2, 2, 1, 0}, {2, 3})).errors() == 0);
  const auto split = check_segment_ids(integers({1, 2, 1, 1, 2, 2}, {2, 3}));
  REQUIRE(split.kept().size() == 1);
  CHECK(split.kept()[0].finding.index == Shape{0, 2});
  CHECK(check_position_ids(integers({0, 1, 0, 1, 0, 1}, {3, 2})).errors() == 0);
  CHECK(check_position_ids(integers({0, 1, 2, 3}, {2, 2})).count("restart") == 1);
  CHECK_THROWS_AS(check_segment_ids(integers({1, 1, 1, 1}, {2, 2}), {integers({0, 2})}), Error);
  CHECK(check_segment_ids(integers({1, 1}, {1, 2}), {integers({0, 2})}).errors() == 0);
}

TEST_CASE("padding may have a position that tokens have too") {
  const auto left_and_right = integers({1, 1, 0, 1, 2, 0, 1, 2, 1, 1}, {2, 5});
  CHECK(check_position_ids(left_and_right).errors() > 0);
  const auto found = check_position_ids(left_and_right, {{}, 1});
  CHECK(found.errors() + found.warnings() == 0);
  CHECK(check_position_ids(integers({0, 1, 1, 2}), {{}, 1}).count("restart") == 1);
  CHECK(check_position_ids(integers({0, 0, 1}), {{}, 0}).warnings() == 0);
}

TEST_CASE("runs and rows go on from piece to piece") {
  // Longer than a piece, so that a run, and a row, lies in two.
  const std::int64_t n = 100'000;
  Numbers positions(static_cast<std::size_t>(n)), ids(static_cast<std::size_t>(n), 1);
  for (std::int64_t t = 0; t < n; ++t) positions[static_cast<std::size_t>(t)] = t;
  CHECK(check_position_ids(integers(positions)).errors() == 0);
  CHECK(check_position_ids(integers(positions), {integers({0, n})}).errors() == 0);
  CHECK(check_segment_ids(integers(ids)).errors() == 0);
  CHECK(check_segment_ids(integers(ids), {integers({0, n})}).errors() == 0);
  ids[70'000] = 2;
  CHECK(check_segment_ids(integers(ids)).count("split") == 1);
  CHECK(check_segment_ids(integers(ids), {integers({0, n})}).count("boundary") == 2);
  positions[65'536] = 65'535;
  CHECK(check_position_ids(integers(positions)).errors() == 2);
}

TEST_CASE("numbers at the ends of their types are compared, not computed with") {
  const std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                     most = std::numeric_limits<std::int64_t>::max();
  CHECK(check_cu_seqlens(integers({least, most})).count("begin") == 1);
  CHECK(check_cu_seqlens(integers({0, most, least})).count("decreasing") == 1);
  CHECK(check_segment_ids(integers({most, most, least, most - 1})).errors() == 0);
  CHECK(check_position_ids(integers({most, least, 0})).errors() == 1);
  Array large(DType::uint64, {2});
  large.elements<std::uint64_t>()[1] = ~std::uint64_t{0};
  CHECK_THROWS_WITH_AS(check_cu_seqlens(IntegerArray(make_source(std::move(large), "cu.npy"))),
                       "cu.npy: element (1,) is 18446744073709551615, beyond 63 bits", Error);
}

TEST_CASE("ids that are all over the place take memory, which has a limit") {
  Numbers ids;
  for (std::int64_t i = 0; i < 100; ++i) ids.push_back(1 + i * 7919 % 100 * 2);
  CHECK(check_segment_ids(integers(ids), {}, {.max_bytes = 100 * 64}).errors() == 0);
  CHECK_THROWS_AS(check_segment_ids(integers(ids), {}, {.max_bytes = 99 * 64}), Error);
  CHECK_THROWS_AS(check_segment_ids(integers(ids), {}, {.max_bytes = 1}), Error);  // 0 alone is no limit
}

TEST_CASE("what cannot be looked at is an error that names the array") {
  CHECK(plain::failure([] {
          check_cu_seqlens(integers({0, 1}, {1, 2}));
        }) == "x.npy: cu_seqlens must be a 1-D array, not of shape (1, 2)");
  CHECK(plain::failure([] {
          check_cu_seqlens(IntegerArray(make_source(Array(DType::float32, {2}), "x.npy")));
        }) == "x.npy: cu_seqlens must be integers, not float32");
  CHECK(plain::failure([] { check_cu_seqlens(integers({0}), {.align = 0}); }, Error::Kind::usage) ==
        "align is 0; it must be at least 1");
  CHECK(plain::failure([] {
          check_segment_ids(integers({1}), {integers({1, 0})});
        }) == "x.npy: cu_seqlens[0] is 1, not 0");
}
