// Rows of sequence and chunk: one number of sound ones is changed, and a plain loop over all chunks detects it; known
// faults have a name; offsets.
#include <algorithm>
#include <map>
#include <utility>

#include "check/artefacts.hpp"
#include "ejk/sequence.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

Numbers rows_of(const Numbers& cu, std::int64_t size) {
  Numbers rows;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s)
    for (std::int64_t c = 0; c * size < cu[s + 1] - cu[s]; ++c)
      rows.insert(rows.end(), {static_cast<std::int64_t>(s), c});
  return rows;
}

// Whether the rows before the last ones, which have a -1, are the chunks of the sequences.
bool is_sound(Numbers rows, const Numbers& cu, std::int64_t size) {
  while (!rows.empty() && (rows.back() == -1 || rows[rows.size() - 2] == -1)) rows.resize(rows.size() - 2);
  return rows == rows_of(cu, size);
}

Findings check_rows(const Numbers& rows, const Numbers& cu, std::int64_t size,
                    Convention convention = Convention::document) {
  return check_chunk_indices(integers(rows, {std::ssize(rows) / 2, 2}), {integers(cu), size, convention});
}

}  // namespace

TEST_CASE("a changed row of chunk indices is an error") {
  Random random(1);
  Answers sound;
  for (int n = 0; n < 2000; ++n) {
    const Numbers cu = offsets_of(random_sizes(random, between(random, 0, 4), 9));
    const std::int64_t size = between(random, 1, 5);
    Numbers rows = rows_of(cu, size);
    rows.insert(rows.end(), static_cast<std::size_t>(2 * between(random, 0, 2)), -1);
    CHECK(check_rows(rows, cu, size).errors() == 0);
    if (rows.empty()) continue;
    if (between(random, 0, 3) == 0) {
      const auto row = [&] { return rows.begin() + 2 * between(random, 0, std::ssize(rows) / 2 - 1); };
      const auto a = row(), b = row();
      std::swap_ranges(a, a + (a == b ? 0 : 2), b);
    } else {
      rows[static_cast<std::size_t>(between(random, 0, std::ssize(rows) - 1))] += between(random, -2, 2);
    }
    CAPTURE(to_string(rows));
    const bool is_right = is_sound(rows, cu, size);
    sound.add(is_right);
    CHECK((check_rows(rows, cu, size).errors() == 0) == is_right);
  }
  CHECK(sound.no > 700);
  CHECK(sound.yes > 200);
}

TEST_CASE("a finding has the row and what belongs there") {
  const Numbers cu{0, 12, 80, 80, 128};
  const auto text = [&](const Numbers& rows) { return text_of(check_rows(rows, cu, 64)); };
  CHECK(text({0, 0, 1, 0, 3, 0}) == "missing: chunk_indices(): no row is [1, 1]\n");
  CHECK(text({0, 0, 1, 0, 1, 1, 2, 0}) ==
        "numbering: chunk_indices(3, 0): empty sequences are not counted\n");
  CHECK(text({0, 0, 1, 0, 1, 1, 3, 1}) == "per-row: chunk_indices(3, 1): a chunk of the packed row\n");
  CHECK(text({0, 0, 0, 1}).starts_with("per-row: chunk_indices(1, 1)"));
  CHECK(text({0, 0, 1, 1}).starts_with("per-row: chunk_indices(1, 1)"));
  CHECK(
      text({1, 0, 0, 0, 1, 1, 3, 0}) ==
      "order: chunk_indices(0, 1): [1, 0] belongs in row 1\norder: chunk_indices(1, 1): [0, 0] belongs in row 0\n");
  CHECK(text({0, 0, 1, 0, 1, 1, 4, 0}) ==
        "range: chunk_indices(3, 0): there are 4 sequences\nmissing: chunk_indices(): no row is [3, 0]\n");
  CHECK(text({0, 0, 1, 0, 1, 1, 2, 0, 3, 0}) == "range: chunk_indices(3, 1): sequence 2 has chunks: 0\n");
  // Chunks of the packed row where they cut a sequence once more.
  CHECK(text_of(check_rows({0, 0, 1, 0, 1, 1}, {0, 5, 10}, 8)).starts_with("per-row: chunk_indices(2, 1)"));
}

TEST_CASE("rows by ejkernel's convention do not count empty sequences") {
  const Numbers cu{0, 4, 4, 9};
  const Numbers without{0, 0, 1, 0, 1, 1}, all{0, 0, 2, 0, 2, 1};
  CHECK(check_rows(without, cu, 4, Convention::ejkernel).errors() == 0);
  CHECK(text_of(check_rows(all, cu, 4, Convention::ejkernel)) ==
        "numbering: chunk_indices(1, 0): empty sequences are counted\n");
  CHECK(check_rows(all, cu, 4, Convention::fla).errors() == 0);
  CHECK(check_rows(all, cu, 4).errors() == 0);
}

TEST_CASE("chunk offsets are compared with the numbers of chunks") {
  const auto text = [](const Numbers& offsets) {
    return text_of(check_chunk_indices(integers({0, 0, 0, 1, 2, 0}, {3, 2}),
                                       {integers({0, 5, 5, 9}), 4, Convention::document, integers(offsets)}));
  };
  CHECK(text({0, 2, 2, 3}).empty());
  CHECK(text({0, 1, 2, 3}) == "offsets: chunk_offsets(1,): chunks before sequence 1: 2\n");
  CHECK(text({0, 2, 2}) == "offsets: chunk_offsets(): 3 offsets, and there are 4 with their end\n");
  CHECK(text({}).starts_with("offsets: chunk_offsets(): 0 offsets"));
}
