// Ids of tokens beside cu_seqlens: one of sound ones is changed, and a plain loop detects it; findings have the token
// and the sequence.
#include <set>

#include "check/artefacts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Whether ids are one in each sequence, increase from one to the next, and are -1 behind them.
bool is_sound(const Numbers& ids, const Numbers& cu) {
  std::int64_t last = -1;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    for (std::int64_t t = cu[s]; t < cu[s + 1]; ++t) {
      const std::int64_t id = ids[static_cast<std::size_t>(t)];
      if (t == cu[s] ? id <= last : id != last) return false;
      last = id;
    }
  }
  for (std::size_t t = static_cast<std::size_t>(cu.back()); t < ids.size(); ++t)
    if (ids[t] != -1) return false;
  return last < std::ssize(cu) - 1;
}

std::string text(const Numbers& ids, const Numbers& cu) {
  return text_of(check_seq_idx(integers(ids, {1, std::ssize(ids)}, DType::int32), integers(cu)));
}

}  // namespace

TEST_CASE("a changed id is an error where ids no longer tell sequences apart") {
  Random random(3);
  Answers sound;
  for (int n = 0; n < 2000; ++n) {
    const Numbers cu = offsets_of(random_sizes(random, between(random, 0, 5), 5));
    Numbers ids;
    for (std::size_t s = 0; s + 1 < cu.size(); ++s)
      ids.insert(ids.end(), static_cast<std::size_t>(cu[s + 1] - cu[s]), static_cast<std::int64_t>(s));
    ids.insert(ids.end(), static_cast<std::size_t>(between(random, 0, 2)), -1);
    CHECK(text(ids, cu).empty());
    for (std::int64_t changes = ids.empty() ? 0 : between(random, 1, 2); changes > 0; --changes)
      ids[static_cast<std::size_t>(between(random, 0, std::ssize(ids) - 1))] = between(random, -1, 5);
    CAPTURE(to_string(cu));
    CAPTURE(to_string(ids));
    sound.add(is_sound(ids, cu));
    CHECK(text(ids, cu).empty() == is_sound(ids, cu));
  }
  CHECK(sound.yes > 100);
  CHECK(sound.no > 1000);
}

TEST_CASE("ids of empty sequences may be left out") {
  CHECK(text({0, 0, 0, 2, 2}, {0, 3, 3, 5}).empty());
  CHECK(text({0, 0, 0, 1, 1}, {0, 3, 3, 5}).empty());
}

TEST_CASE("a boundary that ids miss is named, with its token and sequence") {
  const Numbers cu{0, 3, 6};
  CHECK(text({0, 0, 1, 1, 1, 1}, cu) ==
        "boundary: seq_idx(0, 2): sequence 1 begins at token 3, and the id changes before it\n");
  CHECK(text({0, 0, 0, 0, 1, 1}, cu) ==
        "boundary: seq_idx(0, 4): sequence 1 begins at token 3, and the id changes after it\n");
  CHECK(text({0, 0, 0, 0, 0, 0}, cu) ==
        "boundary: seq_idx(0, 3): sequence 1 begins here, and the id does not change\n");
  CHECK(text({0, 0, 0, 1, 1, 2}, {0, 3, 6, 6}) ==
        "boundary: seq_idx(0, 5): the id changes inside sequence 1, which is tokens 3 to 5\n");
  CHECK(text({0, 0, 0, -1, 1, 1}, cu) == "padding: seq_idx(0, 3): token 0 of sequence 1\n");
  CHECK(text({0, 0, 0, 1, 1, 1, 1}, cu) == "padding: seq_idx(0, 6): the sequences end at token 6\n");
  CHECK(text({1, 1, 1, 0, 0, 0}, cu) == "order: seq_idx(0, 3): 1 before it; sequence 1\n");
  CHECK(text({0, 1, 0}, {0, 1, 2, 3}) == "repeated: seq_idx(0, 2): in sequence 2, after other ids\n");
  CHECK(text({1, 1, 1, 2, 2, 2}, cu) == "range: seq_idx(0, 3): there are 2 sequences\n");
  CHECK(text({0, 0, 0}, cu) == "length: cu_seqlens(2,): there are 3 ids\n");
}

TEST_CASE("ids of another type than int32 are a warning") {
  const Findings found = check_seq_idx(integers({0, 0, 1}), integers({0, 2, 3}));
  CHECK(found.errors() == 0);
  CHECK(found.count("type") == 1);
}
