// Pairs of sequence and chunk: one number of sound ones is changed, and a plain loop over all chunks detects
// it.
#include <map>
#include <utility>

#include "check/artefacts.hpp"
#include "ejk/sequence.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Whether each chunk of the sequences is there once.
bool is_sound(const Numbers& pairs, const Numbers& cu, std::int64_t size) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> count;
  for (std::size_t k = 0; k < pairs.size(); k += 2) ++count[{pairs[k], pairs[k + 1]}];
  std::size_t chunks = 0;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s)
    for (std::int64_t c = 0; c * size < cu[s + 1] - cu[s]; ++c, ++chunks)
      if (count[{static_cast<std::int64_t>(s), c}] != 1) return false;
  return 2 * chunks == pairs.size();
}

}  // namespace

TEST_CASE("a changed pair of chunk indices is an error") {
  Random random(1);
  int broken = 0;
  for (int n = 0; n < 500; ++n) {
    Numbers cu{0};
    for (std::int64_t s = between(random, 0, 4); s > 0; --s) cu.push_back(cu.back() + between(random, 0, 9));
    const std::int64_t size = between(random, 1, 5);
    Numbers pairs;
    for (std::size_t s = 0; s + 1 < cu.size(); ++s)
      for (std::int64_t c = 0; c * size < cu[s + 1] - cu[s]; ++c)
        pairs.insert(pairs.end(), {static_cast<std::int64_t>(s), c});
    const auto check = [&](const Numbers& values) {
      return check_chunk_indices(integers(values, {std::ssize(values) / 2, 2}), integers(cu), size);
    };
    CHECK(check(pairs).errors() + check(pairs).warnings() == 0);
    if (pairs.empty()) continue;
    Numbers changed = pairs;
    changed[static_cast<std::size_t>(between(random, 0, std::ssize(changed) - 1))] += between(random, -2, 2);
    const bool sound = is_sound(changed, cu, size);
    broken += !sound;
    CHECK((check(changed).errors() == 0) == sound);
  }
  CHECK(broken > 100);
}

TEST_CASE("chunk indices of other metadata lack chunks") {
  const Findings found = check_chunk_indices(integers({0, 0, 2, 0}, {2, 2}), integers({0, 12, 80, 128}), 64);
  CHECK(found.count("missing") == 2);  // [1, 0] and [1, 1]
  CHECK(found.errors() == 2);
}

TEST_CASE("pairs by ejkernel's convention do not count empty sequences") {
  const Numbers cu{0, 4, 4, 9};
  const auto pairs = read_all(*prepare_chunk_indices(cu, 4, Convention::ejkernel));
  const auto source = make_source(pairs.view(), "x.npy");
  CHECK(check_chunk_indices(source, cu, 4, Convention::ejkernel).errors() == 0);
  CHECK(check_chunk_indices(source, cu, 4).count("beyond") == 2);
}
