// Group metadata of other libraries: one number of a valid artefact is changed; a plain walk, as the library's
// kernel makes it, determines whether each choice is still computed once, by its expert.
#include <algorithm>
#include <map>

#include "check/artefacts.hpp"
#include "ejk/groups.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;
using namespace artefacts;
using enum GroupLayout;

namespace {

using Stored = std::map<std::string, Numbers>;

Numbers values_of(const Array& array) {
  Numbers values;
  for (const double x : plain::doubles(array.view())) values.push_back(static_cast<std::int64_t>(x));
  return values;
}

ArrayGroup group_of(const Stored& arrays) {
  ArrayGroup group{"g.npz", {}, {}};
  for (const auto& [name, values] : arrays) {
    IntegerArray array = integers(values);
    group.arrays[name] = make_source(read_all(*array), name);
  }
  return group;
}

// What a kernel computes, without what has no effect: entries that are not read, and padding.
Stored meaning_of(GroupLayout layout, Stored arrays, const Numbers& ids, std::int64_t block) {
  if (layout != vllm && layout != sglang) return arrays;
  const auto n = std::ssize(ids);
  const std::int64_t used = arrays[layout == vllm ? "num_tokens_post_padded" : "num_tokens_post_pad"][0];
  if (used % block != 0) return {};  // vLLM's Marlin kernel rounds down
  const Numbers &tokens = arrays["sorted_token_ids"], &experts = arrays["expert_ids"];
  Numbers pairs;
  for (std::int64_t b = 0; b * block < used; ++b) {
    if (b >= std::ssize(experts)) return {};
    for (std::int64_t i = b * block; i < (b + 1) * block && i < std::ssize(tokens); ++i) {
      const std::int64_t f = tokens[static_cast<std::size_t>(i)], e = experts[static_cast<std::size_t>(b)];
      if (f < 0) return {};
      if (f < n && (e != -1 || ids[static_cast<std::size_t>(f)] != -1)) pairs.push_back(1000 * f + e);
    }
    // A block without a choice still reads its expert's weights.
    if (experts[static_cast<std::size_t>(b)] < -1) return {};
    if (experts[static_cast<std::size_t>(b)] >= 12) return {};
  }
  std::sort(pairs.begin(), pairs.end());
  return {{"pairs", pairs}};
}

}  // namespace

TEST_CASE("valid metadata of each layout has no error, and a changed number is one where it has an effect") {
  Random random{21};
  for (const GroupLayout layout : kGroupLayouts)
    for (int round = 0; round < 120; ++round) {
      CAPTURE(name_of(layout));
      CAPTURE(round);
      const std::int64_t experts = 12, block = std::int64_t{1} << between(random, 0, 3);
      Numbers ids(static_cast<std::size_t>(between(random, 1, 40)));
      for (std::int64_t& id : ids) id = between(random, layout == megablocks ? 0 : -1, 7);
      const Route route = make_route(integers(ids), experts);
      GroupLayoutSettings settings{.layout = layout, .align = layout == deepgemm_masked ? 1 : block};
      if (layout == megablocks) settings.ffn_blocks = between(random, 0, 3);
      Stored right;
      for (const auto& [name, array] : make_group_arrays(route, settings).arrays)
        right[name] = values_of(array);
      GroupMetadataClaims claims;
      claims.layout = layout, claims.align = *settings.align;
      claims.topk_ids = integers(ids), claims.experts = experts;
      const Findings sound = check_group_arrays(layout, group_of(right), claims);
      CHECK_MESSAGE(sound.errors() + sound.warnings() == 0, text_of(sound));
      GroupMetadataClaims no_claims;
      no_claims.align = *settings.align;
      const Findings unclaimed = check_group_arrays(layout, group_of(right), no_claims);
      CHECK_MESSAGE(unclaimed.errors() == 0, text_of(unclaimed));
      CHECK(unclaimed.count("unchecked") == 1);

      Stored changed = right;
      auto one = changed.begin();
      std::advance(one, between(random, 0, std::ssize(changed) - 1));
      if (one->second.empty()) continue;
      auto& number = one->second[static_cast<std::size_t>(between(random, 0, std::ssize(one->second) - 1))];
      number = between(random, 0, 2) == 0 ? number + between(random, -2, 2) : between(random, -2, 45);
      CAPTURE(one->first);
      CAPTURE(number);
      const bool is_same = meaning_of(layout, changed, ids, *settings.align) ==
                           meaning_of(layout, right, ids, *settings.align);
      const Findings found = check_group_arrays(layout, group_of(changed), claims);
      CHECK_MESSAGE((found.errors() == 0) == is_same, text_of(found));
    }
}

TEST_CASE("the layout is that of the names of the arrays, or a claim") {
  const Route route = sorted_route(Numbers{3, 2});
  for (const GroupLayout layout : kGroupLayouts) {
    CAPTURE(name_of(layout));
    Stored arrays;
    GroupLayoutSettings settings{.layout = layout};
    if (default_alignment(layout) == 0) settings.align = 4;
    for (const auto& [name, array] : make_group_arrays(route, settings).arrays)
      arrays[name] = values_of(array);
    const ArrayGroup group = group_of(arrays);
    CHECK(group_layout_of(group) == layout);
  }
  const ArrayGroup two = group_of({{"offs", {1}}, {"masked_m", {1}}});
  CHECK(plain::failure_and_hint([&] { group_layout_of(two); }) ==
        "g.npz: its arrays are those of layout offsets and of deepgemm-masked");
  CHECK(group_layout_of(two, {.layout = offsets}) == offsets);
  CHECK_FALSE(group_layout_of(group_of({{"group_offsets", {0, 1}}})));
}

TEST_CASE("labels of a tile are those of its first row, and messages name the wrong row") {
  const auto found = [](const Numbers& labels, const Numbers& sizes) {
    GroupMetadataClaims claims;
    claims.align = 4, claims.group_sizes = integers(sizes);
    return text_of(check_group_arrays(deepgemm, group_of({{"grouped_layout", labels}}), claims));
  };
  CHECK(found({0, 0, 0, -1, 1, 1, -1, -1}, {3, 2}).empty());
  CHECK(found({0, 0, 0, 1, 1, -1, -1, -1}, {3, 2}) ==
        "dropped: grouped_layout(3,): the tile of this row begins with group 0, for which it is computed\n");
  CHECK(
      found({-1, 0, 0, 0, 1, 1, -1, -1}, {3, 2})
          .starts_with(
              "dropped: grouped_layout(1,): the tile of this row begins with padding, for which it is computed\n"));
  GroupMetadataClaims claims;
  claims.m = 8;
  CHECK(text_of(check_group_arrays(offsets, group_of({{"offs", {5, 3, 8}}}), claims)) ==
        "decreasing: offs(1,): less than 5, where the group begins\n"
        "unchecked: offs(): rows are not compared with the sizes of groups: none are given\n");
}

TEST_CASE("numbers as large as there are have findings, and make nothing large") {
  Random random{5};
  for (const GroupLayout layout : kGroupLayouts) {
    CAPTURE(name_of(layout));
    std::int64_t errors = 0;
    for (int round = 0; round < 40; ++round) {
      Stored arrays;
      for (const std::string& name : group_array_names(layout, round % 2 == 0))
        for (int i = 0; i < 4; ++i)
          arrays[name].push_back(between(random, 0, 3) == 0 ? between(random, -2, 4)
                                 : round % 4 < 2            ? INT64_MAX - between(random, 0, 2)
                                                            : INT64_MIN + between(random, 0, 2));
      GroupMetadataClaims claims;
      claims.align = round % 3 == 0 ? INT64_MAX : 128;
      claims.m = 64;
      if (round % 5 == 0) claims.group_sizes = integers({INT64_MAX, 1, 2, INT64_MAX});
      errors += check_group_arrays(layout, group_of(arrays), claims).errors() > 0;
    }
    CHECK(errors > 20);  // of blocks none may be in use
  }
}

TEST_CASE("rows with padding are whole blocks, and a block of padding alone is idle") {
  for (const GroupLayout layout : {vllm, sglang}) {
    CAPTURE(name_of(layout));
    Stored arrays;
    for (const auto& [name, array] :
         make_group_arrays(sorted_route(Numbers{3, 2}), {.layout = layout, .align = 4}).arrays)
      arrays[name] = values_of(array);
    std::int64_t& used = arrays[layout == vllm ? "num_tokens_post_padded" : "num_tokens_post_pad"][0];
    REQUIRE(used == 8);
    GroupMetadataClaims claims;
    claims.align = 4;
    CHECK(check_group_arrays(layout, group_of(arrays), claims).errors() == 0);
    used = 9;
    CHECK(check_group_arrays(layout, group_of(arrays), claims).count("num-tiles") +
              check_group_arrays(layout, group_of(arrays), claims).count("whole-blocks") >
          0);
    used = 7;
    CHECK(check_group_arrays(layout, group_of(arrays), claims).count("whole-blocks") == 1);
    used = 12;
    arrays["sorted_token_ids"].insert(arrays["sorted_token_ids"].end(), 4, 5);
    arrays["sorted_token_ids"].resize(12, 5);
    arrays["expert_ids"].resize(3, 1);
    CHECK(check_group_arrays(layout, group_of(arrays), claims).count("idle") == 1);
  }
}

TEST_CASE("DeepGEMM's labels and ends have one name, and what both fit is an assumption") {
  const auto layout_and_assumptions = [](const Numbers& numbers, const GroupMetadataClaims& claims) {
    const ArrayGroup group = group_of({{"grouped_layout", numbers}});
    const GroupLayout layout = *group_layout_of(group, claims);
    return std::pair(layout, check_group_arrays(layout, group, claims).count("assumed"));
  };
  GroupMetadataClaims claims;
  claims.align = 4;
  CHECK(layout_and_assumptions({0, 0, 0, 0, 1, 1, 1, 1}, claims) == std::pair(deepgemm, std::int64_t{0}));
  CHECK(layout_and_assumptions({3, 6}, claims) == std::pair(deepgemm_psum, std::int64_t{0}));
  CHECK(layout_and_assumptions({0, 0, 0, 0}, claims) == std::pair(deepgemm, std::int64_t{1}));
  claims.layout = deepgemm_psum;
  CHECK(layout_and_assumptions({0, 0, 0, 0}, claims) == std::pair(deepgemm_psum, std::int64_t{0}));
}
