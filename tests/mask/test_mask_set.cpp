// Sets of masks: common properties, broadcasting, sharing of equal masks.
#include "ejk/mask_set.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

using namespace ejk;

namespace {

HeadMasks stored(Shape shape, LeadingAxis leading = LeadingAxis::heads, const char* name = "m.npy") {
  return head_masks(make_source(Array(DType::boolean, std::move(shape)), name), Polarity::keep, leading);
}

HeadMasks rules(const std::vector<std::string>& texts) {
  std::vector<MaskExpression> expressions;
  for (const std::string& text : texts) expressions.push_back(MaskExpression::parse(text));
  return head_masks(std::move(expressions), Polarity::keep, [](const std::string& reference) {
    return make_source(Array(DType::boolean, reference == "heads" ? Shape{3, 4, 6} : Shape{4, 6}), reference);
  });
}

std::string said(std::vector<HeadMasks> parts, const std::optional<MaskSet::Given>& given = std::nullopt) {
  try {
    const MaskSet set(std::move(parts), given);
    return to_string(Shape{set.heads(), set.lengths().q, set.lengths().kv});
  } catch (const Error& e) {
    return (e.kind() == Error::Kind::usage ? "usage: " : "") + e.message();
  }
}

}  // namespace

TEST_CASE("parts of a set agree on heads and lengths") {
  const MaskSet::Given three{{3, 4, 6}, "the shape"}, one{{4, 6}, "the shape"};
  CHECK(said({rules({"causal"})}, three) == "(3, 4, 6)");
  CHECK(said({rules({"causal"})}, one) == "(1, 4, 6)");
  CHECK(said({rules({"causal"})}) == "nothing says how many queries and keys the masks have");
  CHECK(said({stored({4, 6}), rules({"causal"})}) == "(1, 4, 6)");
  CHECK(said({stored({1, 4, 6}), rules({"file(heads)"})}) == "(3, 4, 6)");
  CHECK(said({stored({4, 6}), rules({"causal", "full", "file(heads)"})}) == "(3, 4, 6)");
  CHECK(said({stored({4, 5})}, one) == "m.npy has 4 queries x 5 keys, the shape has 4 x 6");
  CHECK(said({stored({3, 4, 6})}, one) == "m.npy has 3 heads of 4 x 6, the shape has 1 head of 4 x 6");
  CHECK(said({stored({2, 4, 6}), rules({"file(heads)"})}) ==
        "file(heads) has 3 heads of 4 x 6, m.npy has 2 heads of 4 x 6");
  CHECK(said({rules({"causal", "full"})}, three) == "usage: the list of masks for 3 heads (the shape)");
  CHECK(said({stored({3, 4, 6}), rules({"causal", "full"})}) == "the list of masks for 3 heads (m.npy)");
  CHECK_THROWS_AS(rules({"causal", "file(heads)"}), Error);
  CHECK_THROWS_AS(stored({1, 2, 4, 6}), Error);
  CHECK_THROWS_AS(stored({0, 4, 6}), Error);
}

TEST_CASE("what all heads share is made once, and the set says what is broadcast") {
  int made = 0;
  HeadMasks counted;
  counted.mask = [&](std::int64_t, std::int64_t, std::int64_t q, std::int64_t kv) {
    ++made;
    return full_mask(q, kv);
  };
  const MaskSet shared({counted}, MaskSet::Given{{1000, 4, 6}, "the shape"});
  CHECK(shared.join().masks.size() == 1);
  CHECK(made == 1);
  const MaskSet set({stored({1, 4, 6}), counted, rules({"file(heads)"})});
  const JoinedMasks joined = set.join();
  CHECK(joined.masks.size() == 3);
  CHECK(made == 2);
  CHECK(joined.of(0, 2)->text().find("heads") != std::string::npos);
  CHECK(set.has_head_axis());
  CHECK(set.bytes() > 0);
  REQUIRE(set.broadcasts().size() == 2);
  CHECK(set.broadcasts()[1].part == 1);
  CHECK(set.broadcasts()[1].axis == MaskBroadcast::Axis::heads);
  CHECK(set.broadcasts()[1].count == 3);
}

TEST_CASE("packed entries of equal lengths share what is the same for all entries") {
  const std::vector<MaskSet::Lengths> lengths{{4, 4}, {2, 4}, {0, 3}, {4, 4}, {2, 4}, {4, 2}};
  std::vector<std::int64_t> made;
  HeadMasks part;
  part.mask = [&](std::int64_t entry, std::int64_t, std::int64_t q, std::int64_t kv) {
    made.push_back(entry);
    return causal_mask(q, kv);
  };
  const auto set_of = [&](std::vector<HeadMasks> parts) {
    return MaskSet(
        std::move(parts), 6, 2, [&](std::int64_t e) { return lengths[static_cast<std::size_t>(e)]; },
        MaskSet::Entries::packed);
  };
  const MaskSet set = set_of({part});
  CHECK(set.distinct_entries() == 4);
  const JoinedMasks joined = set.join();
  CHECK(made == std::vector<std::int64_t>{0, 1, 5});
  for (std::int64_t e = 0; e < 6; ++e) {
    const MaskSet::Lengths l = lengths[static_cast<std::size_t>(e)];
    const auto& mask = joined.of(e, 1);
    REQUIRE(mask.has_value() == (l.q > 0));
    if (mask) CHECK((mask->q_length() == l.q && mask->kv_length() == l.kv));
    CHECK(lengths[static_cast<std::size_t>(set.entry_of_row(joined.row(e)))].q == l.q);
  }
  // A part with masks of its own for each entry keeps them apart.
  HeadMasks own = part;
  own.batch = 6;
  const MaskSet apart = set_of({part, own});
  CHECK(apart.distinct_entries() == 6);
  CHECK(apart.join().masks.size() == 6);
}

TEST_CASE("a set for attention's inputs is of their entries, heads and lengths") {
  const auto attends = [](std::vector<HeadMasks> parts, MaskSet::Entries kind = MaskSet::Entries::padded) {
    const auto lengths = [](std::int64_t) { return MaskSet::Lengths{4, 6}; };
    return MaskSet(std::move(parts), 2, 3, lengths, kind);
  };
  const MaskSet set =
      attends({stored({1, 1, 4, 6}, LeadingAxis::batch), stored({2, 4, 6}, LeadingAxis::batch),
               rules({"causal(align=bottom-right)", "local(1,0)", "full"})});
  CHECK(set.distinct_entries() == 2);
  CHECK(set.distinct_heads() == 3);
  CHECK(set.join().masks.size() == 6);
  CHECK(set.unaligned() == std::vector<std::string>{"local(1,0)"});
  REQUIRE(set.broadcasts().size() == 3);
  CHECK(set.broadcasts()[0].axis == MaskBroadcast::Axis::batch);
  CHECK(set.broadcasts()[2].part == 1);
  CHECK_THROWS_AS(attends({stored({3, 4, 6}, LeadingAxis::batch)}), Error);
  CHECK_THROWS_AS(attends({stored({1, 2, 4, 6}, LeadingAxis::batch)}), Error);
  CHECK_THROWS_AS(attends({stored({6, 4}, LeadingAxis::batch)}).join(), Error);
  CHECK_THROWS_AS(attends({stored({4, 6}, LeadingAxis::batch)}, MaskSet::Entries::packed), Error);
  try {
    attends({stored({2, 6}, LeadingAxis::batch)}).join();
    FAIL("a padding mask was taken");
  } catch (const Error& e) {
    CHECK(e.code() == Error::Code::padding_mask);
    CHECK(e.subject() == "m.npy");
  }
}

TEST_CASE("a stored mask of three axes is of entries, or of heads where their number alone fits") {
  struct Case {
    Shape shape;
    std::int64_t entries, heads;
    bool by_entry, of_either;
  };
  for (const Case& c : {Case{{2, 4, 6}, 2, 3, true, false}, Case{{3, 4, 6}, 2, 3, false, false},
                        Case{{3, 4, 6}, 3, 3, true, true}}) {
    CAPTURE(to_string(c.shape));
    CAPTURE(c.entries);
    Array elements(DType::boolean, c.shape);
    const std::span<bool> bits = elements.elements<bool>();
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = i % 7 < 3 || i % 5 == 1;
    auto source = make_source(std::move(elements), "m.npy");
    const OpenArray open([&](const std::string&) { return source; });
    for (HeadMasks part : {head_masks(source), head_masks({MaskExpression::parse("file(m) & full")},
                                                          Polarity::keep, open, LeadingAxis::batch)}) {
      CHECK(settle_first_axis(part, c.entries, c.heads) == c.of_either);
      const auto lengths = [](std::int64_t) { return MaskSet::Lengths{4, 6}; };
      const MaskSet set({std::move(part)}, c.entries, c.heads, lengths, MaskSet::Entries::padded);
      const JoinedMasks joined = set.join();
      for (std::int64_t e = 0; e < c.entries; ++e)
        for (std::int64_t h = 0; h < c.heads; ++h) {
          std::array<bool, 24> is{};
          joined.of(e, h)->read(0, 4, 0, 6, is.data());
          const auto wanted = bits.subspan(static_cast<std::size_t>((c.by_entry ? e : h) * 24), 24);
          CHECK(std::equal(is.begin(), is.end(), wanted.begin()));
        }
    }
  }
}
