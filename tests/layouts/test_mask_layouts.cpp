// Masks in the arrays of other libraries: equal to their own (golden), computed by plain loops as their kernels
// do, and read back.
#include "ejk/mask_layouts.hpp"

#include <doctest/doctest.h>

#include "layouts/layouts.hpp"
#include "support/equal.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using enum MaskLayout;
using plain::between;
using plain::PlainCase;
using plain::Random;

namespace {

std::vector<Mask> heads_in(const golden::Case& c) {
  const Array& mask = c.in.at("mask");
  const Shape& shape = mask.shape();
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < shape[0]; ++h) {
    if (c.params.contains("expression")) {
      const MaskExpression rule = MaskExpression::parse(c.params.at("expression").get<std::string>());
      heads.push_back(rule.resolve(shape, h, Polarity::keep, OpenArray()));
    } else {
      heads.push_back(array_mask(slice_of(make_source(mask.view(), "mask"), h)));
    }
  }
  return heads;
}

std::vector<std::uint8_t> table_of(const Mask& mask) { return plain::elements_of(mask); }

}  // namespace

TEST_CASE("mask_layouts: golden cases, and read back from them") {
  int cases = 0;
  std::vector<golden::Case> all = golden::load("mask_layouts");
  for (golden::Case& c : golden::load("tokamax_dynamic")) all.push_back(std::move(c));
  for (const golden::Case& c : all) {
    CAPTURE(c.name);
    MaskLayoutSettings settings;
    const std::string name = c.params.at("layout");
    for (const MaskLayout layout : kMaskLayouts)
      if (name == name_of(layout)) settings.layout = layout;
    const std::vector<std::int64_t> block = c.params.at("block");
    settings.pad = true;
    if (settings.layout == tokamax) {
      settings.pad = false;
      settings.direction = c.params.at("dkv").get<bool>() ? Direction::dkv : Direction::forward;
      settings.downcast = c.params.at("downcast");
      settings.dynamic = !c.params.contains("shrink_grid");
      if (!settings.dynamic) {
        settings.q_seq_shards = c.params.at("q_seq_shards"),
        settings.kv_seq_shards = c.params.at("kv_seq_shards");
        settings.shrink_grid = c.params.at("shrink_grid");
      }
    }
    const std::vector<Mask> heads = heads_in(c);
    const MaskArrays made = make_mask_arrays(heads, {block[0], block[1]}, settings);
    std::size_t found = 0;
    for (const auto& named : made.arrays) {
      const std::string& array = named.name;
      const auto& source = named.elements;
      if (!c.out.contains(array)) {
        // Settings, and what their kernels compute.
        CHECK_MESSAGE((std::find(std::begin(blocks::kSettingArrays), std::end(blocks::kSettingArrays),
                                 array) != std::end(blocks::kSettingArrays) ||
                       array == "M" || array == "N" || array == "R" || array == "C" ||
                       (settings.layout == flex && array.starts_with("partial_"))),
                      array);
        continue;
      }
      ++found;
      golden::check_equal(read_all(*source), c, array);
    }
    CHECK(found == c.out.size());
    ++cases;
    if (c.params.contains("expression")) continue;  // a kernel computes it
    const StoredMaskInfo back(plain::group_of(made));
    const Shape shape = c.in.at("mask").shape();
    for (std::int64_t h = 0; h < shape[0]; ++h)
      CHECK(table_of(back.mask(shape, h)) == table_of(heads[static_cast<std::size_t>(h)]));
  }
  CHECK(cases > 100 + 48);
}

TEST_CASE("kernels of each layout compute exactly the mask, and from() has it") {
  Random random{5};
  for (const MaskLayout layout : plain::kLoopedLayouts)
    for (int round = 0; round < 300; ++round) {
      const PlainCase c = plain::random_case(random, layout);
      CAPTURE(name_of(layout));
      CAPTURE(round);
      CAPTURE(c.heads.front().mask.text());
      const MaskArrays made = plain::arrays_of(c);
      const plain::StoredArrays arrays = plain::stored(made);
      const plain::Computed computed = plain::computed(c, arrays);
      REQUIRE(computed);
      const std::int64_t masks =
          made.masks.size() == 1 && layout != flashinfer_variable ? 1 : std::ssize(c.heads);
      std::vector<std::int64_t> wanted = plain::pairs_of(c, masks);
      wanted.pop_back();  // no block twice
      REQUIRE(computed->size() >= wanted.size());
      std::int64_t differing = 0;
      for (std::size_t n = 0; n < wanted.size(); ++n) differing += wanted[n] != (*computed)[n];
      if (masks == 1) differing *= std::ssize(c.heads);
      REQUIRE(differing == made.differing);
      if (layout == flex)  // the backward pass
        for (std::size_t n = 0; n < wanted.size(); ++n) REQUIRE((*computed)[wanted.size() + n] == wanted[n]);

      const StoredMaskInfo back(plain::group_of(arrays));
      REQUIRE(back.shape().heads == masks);
      const Shape shape{std::ssize(c.heads), c.q, c.kv};
      for (std::int64_t h = 0; h < shape[0]; ++h) {
        const Mask mask = back.mask(shape, h);
        const std::vector<std::uint8_t>& elements = c.heads[static_cast<std::size_t>(h)].elements;
        if (made.differing == 0) REQUIRE(table_of(mask) == elements);
        if (made.differing > 0) continue;
        // Its blocks are classified as its elements are, at any block size.
        const BlockShape other{between(random, 1, 20), between(random, 1, 80)};
        const MaskArrays again = make_mask_arrays({mask}, other, {.layout = bsr, .pad = true});
        const MaskArrays first = make_mask_arrays({c.heads[static_cast<std::size_t>(h)].mask}, other,
                                                  {.layout = bsr, .pad = true});
        REQUIRE(plain::stored(again)["indices"].values == plain::stored(first)["indices"].values);
        if (!has_blocks(layout) || !c.cu_q.empty()) continue;
        const std::vector<std::uint8_t> visited = table_of(back.visited(shape, h));
        for (std::int64_t q = 0; q < c.q; ++q)
          for (std::int64_t k = 0; k < c.kv; ++k) {
            bool any = false;
            for (std::int64_t i = q / c.block.q * c.block.q;
                 i < std::min(c.q, (q / c.block.q + 1) * c.block.q); ++i)
              for (std::int64_t j = k / c.block.kv * c.block.kv;
                   j < std::min(c.kv, (k / c.block.kv + 1) * c.block.kv); ++j)
                any = any || elements[static_cast<std::size_t>(i * c.kv + j)] != 0;
            REQUIRE((visited[static_cast<std::size_t>(q * c.kv + k)] != 0) == any);
          }
      }
    }
}

TEST_CASE("masks that FlashMask cannot store are counted, and the first element is named") {
  // Key 0 has four hidden ranges of 1, 1, 2 and 3 rows; two stay.
  std::vector<std::uint8_t> seen(14, 1);
  for (const std::size_t q : {1u, 3u, 5u, 6u, 8u, 9u, 10u}) seen[q] = 0;
  const Mask mask = array_mask(make_source(plain::array_of(14, 1, seen)));
  const MaskArrays made = make_mask_arrays({mask, mask}, scan_block(14, 1), {.layout = flashmask});
  CHECK(made.differing == 4);
  CHECK(made.first_difference == Shape{0, 1, 0});
  CHECK(plain::stored(made)["startend_row_indices"].values == std::vector<std::int64_t>{8, 11, 5, 7});
}

TEST_CASE("fa4_varlen: lists of packed sequences are those of FlashAttention-4") {
  int without_offsets = 0;
  for (const golden::Case& c : golden::load("fa4_varlen")) {
    CAPTURE(c.name);
    const std::vector<std::int64_t> block = c.params.at("block");
    MaskLayoutSettings settings{.layout = fa4};
    settings.cu_seqlens_q = make_source(c.in.at("cu_seqlens_q").view());
    settings.cu_seqlens_k = make_source(c.in.at("cu_seqlens_k").view());
    const std::vector<Mask> heads = heads_in(c);
    const MaskArrays made = make_mask_arrays(heads, {block[0], block[1]}, settings);
    CHECK(made.differing == 0);
    const plain::StoredArrays arrays = plain::stored(made);
    const bool is_shared = made.masks.size() == 1;  // of all heads, which have a row each in FlashAttention-4
    for (const auto& [name, array] : c.out) {
      const std::span wanted = array.elements<std::int32_t>();
      const std::vector<std::int64_t>& values = arrays.at(name).values;
      CHECK(arrays.at(name).dtype == DType::int32);
      CHECK(values.size() * (is_shared && array.shape().size() == 2 ? heads.size() : 1) == wanted.size());
      for (std::size_t at = 0; at < wanted.size(); ++at) REQUIRE(values[at % values.size()] == wanted[at]);
    }
    // Its own arrays have no elements of partial blocks.
    ArrayGroup group{"m.npz", {}, {}};
    for (const auto* of : {&c.in, &c.out})
      for (const auto& [name, array] : *of)
        if (name != "mask") group.arrays[name] = make_source(array.view(), name);
    without_offsets += !c.out.contains("cu_block_idx_offsets");
    StoredSettings stored;
    stored.block = BlockShape{block[0], block[1]};
    const StoredMaskInfo theirs(group, stored), ours(plain::group_of(arrays));
    const Shape shape = c.in.at("mask").shape();
    for (std::int64_t h = 0; h < shape[0]; ++h) {
      CHECK(table_of(ours.mask(shape, h)) == table_of(heads[static_cast<std::size_t>(h)]));
      CHECK(table_of(ours.visited(shape, h)) == table_of(theirs.visited(shape, h)));
    }
    CHECK(plain::failure([&] {
            theirs.mask({1, shape[1] + 1, shape[2]}, 0);
          }).find("its sequences have") != std::string::npos);
  }
  CHECK(without_offsets == 5);
}

TEST_CASE("packed sequences: pairs of two of them cannot be stored, and are counted") {
  const std::vector<std::int32_t> cu{0, 3, 3, 6};
  MaskLayoutSettings settings{.layout = fa4};
  settings.cu_seqlens_q = cu;
  const MaskArrays made = make_mask_arrays({causal_mask(6, 6), full_mask(6, 6)}, {2, 2}, settings);
  CHECK(made.differing == 9 + 18);
  CHECK(made.first_difference == Shape{0, 3, 0});
  const StoredMaskInfo back(plain::group_of(made));
  // A block is visited in the positions of its sequence.
  CHECK(table_of(back.visited({2, 6, 6}, 1))[0 * 6 + 2] == 1);
  CHECK(table_of(back.visited({2, 6, 6}, 1))[2 * 6 + 3] == 0);
  const auto failure = [&] {
    return plain::failure([&] { make_mask_arrays({causal_mask(6, 6)}, {2, 2}, settings); });
  };
  const std::vector<std::int32_t> shorter{0, 5}, other{0, 6};
  settings.cu_seqlens_q = shorter;
  CHECK(failure() == "array ends at 5, and the mask has 6 queries");
  settings.cu_seqlens_q = cu, settings.cu_seqlens_k = other;
  CHECK(failure() == "array has 2 elements, and array has 4: as many sequences of keys as of queries");
}

TEST_CASE("variable_blocks: FlashInfer's blocks of any sizes are read, and written from the mask") {
  int written = 0;
  for (const golden::Case& c : golden::load("variable_blocks")) {
    CAPTURE(c.name);
    const Array& mask = c.out.at("mask");
    const auto source = make_source(mask.view(), "mask");
    ArrayGroup group{"m.npz", {}, {}};
    for (const auto& [name, array] : c.in) group.arrays[name] = make_source(array.view(), name);
    const StoredMaskInfo back(group);
    std::vector<Mask> heads;
    for (std::int64_t h = 0; h < mask.shape()[0]; ++h) {
      heads.push_back(array_mask(slice_of(source, h)));
      CHECK(table_of(back.mask(mask.shape(), h)) == table_of(heads.back()));
    }
    if (!c.params.at("heads_alike").get<bool>()) continue;
    const auto sizes = [&](const char* name) {
      const std::span all = c.in.at(name).elements<std::int32_t>();
      return std::vector<std::int32_t>(all.begin(), all.begin() + c.in.at(name).shape()[1]);
    };
    const std::vector<std::int32_t> q_sizes = sizes("block_row_sz"), kv_sizes = sizes("block_col_sz");
    const MaskArrays made = make_mask_arrays(
        heads, {16, 16}, {.layout = flashinfer_variable, .q_sizes = q_sizes, .kv_sizes = kv_sizes});
    CHECK(made.differing == 0);
    plain::StoredArrays arrays = plain::stored(made);
    const std::span wanted = c.in.at("block_mask_map").elements<bool>();
    for (std::size_t at = 0; at < wanted.size(); ++at) {
      const std::int64_t pairs =
          std::int64_t{q_sizes[at / kv_sizes.size() % q_sizes.size()]} * kv_sizes[at % kv_sizes.size()];
      CHECK((arrays["block_mask_map"].values[at] != 0) == (wanted[at] && pairs > 0));
    }
    CHECK(arrays["block_row_sz"].shape == c.in.at("block_row_sz").shape());
    ++written;
  }
  CHECK(written == 13);
}

TEST_CASE("blocks that are neither all True nor all False are computed whole, and counted") {
  const std::vector<std::int64_t> q_sizes{1, 0, 2, 3}, kv_sizes{3, 1, 2};
  const MaskArrays made =
      make_mask_arrays({causal_mask(6, 6), full_mask(6, 6)}, {4, 4},
                       {.layout = flashinfer_variable, .q_sizes = q_sizes, .kv_sizes = kv_sizes});
  const plain::StoredArrays arrays = plain::stored(made);
  CHECK(arrays.at("block_mask_map").shape == Shape{2, 4, 3});
  CHECK(arrays.at("block_mask_map").values ==
        std::vector<std::int64_t>{1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1});
  CHECK(made.differing == 2 + 1 + 3);
  CHECK(made.first_difference == Shape{0, 0, 1});
  const auto failure = [](const std::vector<std::int64_t>& q) {
    return plain::failure([&] {
      make_mask_arrays({causal_mask(6, 6)}, {4, 4}, {.layout = flashinfer_variable, .q_sizes = q});
    });
  };
  CHECK(failure({4, 1}).find(" adds up to 5, and the mask has 6 queries") != std::string::npos);
  CHECK(failure({4, 3}).find("(1) is 3: 2 of 6 positions are left") != std::string::npos);
  CHECK(failure({INT64_MAX, INT64_MAX}).find(": 6 of 6 positions are left") != std::string::npos);
  CHECK(failure({-1, 7}).find("(0) is -1: a size is not negative") != std::string::npos);
  CHECK(plain::failure(
            [&] {
              make_mask_arrays({causal_mask(6, 6)}, {4, 4}, {.layout = bsr, .q_sizes = q_sizes});
            },
            Error::Kind::usage) == "the layout bsr does not take q_sizes");
}

TEST_CASE("slices of magi, which may be as many as elements, stay within the memory for blocks") {
  Random random{31};
  Array elements(DType::boolean, {256, 256});
  for (bool& element : elements.elements<bool>()) element = between(random, 0, 1) == 1;
  const Mask mask = array_mask(make_source(elements.view(), "m.npy"));
  MaskLayoutSettings settings{.layout = magi};
  const MaskArrays made = make_mask_arrays({mask}, {64, 64}, settings);
  std::int64_t bytes = 0;
  for (const MaskArray& array : made.arrays) bytes += type_of(*array.elements).bytes();
  const MaskArraysPlan plan({mask}, {64, 64}, settings);
  CHECK(plan.run(single_process(), {}, 16 * bytes).arrays.size() == made.arrays.size());
  CHECK(plain::failure([&] { plan.run(single_process(), {}, bytes); }, Error::Kind::budget)
            .starts_with("the slices need more than "));
}

TEST_CASE("lengths that cu_seqlens and sizes of blocks fix, and the argument that is none") {
  const auto named = [](const std::vector<std::int64_t>& values, const char* name) {
    return make_source(Array::from<std::int64_t>({std::ssize(values)}, values), name);
  };
  MaskLayoutSettings packed{.layout = fa4}, cells{.layout = flashinfer_variable};
  CHECK(lengths_of(packed).empty());
  packed.cu_seqlens_q = named({0, 3, 6}, "q.npy");
  CHECK(lengths_of(packed) == Shape{6, 6});
  packed.cu_seqlens_k = named({0, 5, 5}, "k.npy");
  CHECK(lengths_of(packed) == Shape{6, 5});
  cells.q_sizes = named({2, 0, 3}, "q.npy");
  CHECK(lengths_of(cells).empty());
  cells.kv_sizes = named({7}, "k.npy");
  CHECK(lengths_of(cells) == Shape{5, 7});
  for (const auto& [empty, error] :
       {std::pair<MaskLayoutSettings, const char*>{
            {.layout = flashinfer_variable, .q_sizes = named({2}, "q.npy"), .kv_sizes = named({0}, "k.npy")},
            "k.npy has no keys"},
        {{.layout = fa4, .cu_seqlens_q = named({0, 2}, "q.npy"), .cu_seqlens_k = named({0, 0}, "k.npy")},
         "k.npy has no keys"},
        {{.layout = fa4, .cu_seqlens_q = named({0, 0}, "q.npy")}, "q.npy has no queries"}})
    CHECK(plain::failure([&settings = empty] { lengths_of(settings); }, Error::Kind::input) == error);

  // Errors of the same arrays, of their lengths and of the mask's are about the argument.
  const auto subject = [](const MaskLayoutSettings& settings, const Mask& mask) {
    std::string about = "no error";
    try {
      MaskArraysPlan({mask}, {2, 2}, settings);
    } catch (const Error& error) {
      CHECK(error.kind() == Error::Kind::input);
      about = error.subject();
    }
    try {
      lengths_of(settings);
    } catch (const Error& error) {
      CHECK(error.subject() == about);
    }
    return about;
  };
  CHECK(subject(packed, full_mask(6, 5)) == "no error");
  CHECK(subject(packed, full_mask(7, 5)) == "cu_seqlens_q");
  CHECK(subject(packed, full_mask(6, 6)) == "cu_seqlens_k");
  cells.kv_sizes = named({7}, "k.npy");
  CHECK(subject(cells, full_mask(5, 7)) == "no error");
  CHECK(subject(cells, full_mask(6, 7)) == "q_sizes");
  CHECK(subject(cells, full_mask(5, 8)) == "kv_sizes");
  using Wrong = std::vector<std::vector<std::int64_t>>;
  for (const auto& wrong : Wrong{{1, 6}, {0, 4, 3}, {0, 6}, {}, {0, INT64_MAX, INT64_MIN}}) {
    packed.cu_seqlens_k = named(wrong, "k.npy");
    CHECK(subject(packed, full_mask(6, 5)) == "cu_seqlens_k");
  }
  packed.cu_seqlens_k = {}, packed.cu_seqlens_q = named({1, 6}, "q.npy");
  CHECK(subject(packed, full_mask(6, 6)) == "cu_seqlens_q");
  for (const auto& wrong : Wrong{{-1, 6}, {INT64_MAX, INT64_MAX}, {INT64_MIN}}) {
    cells.q_sizes = named(wrong, "q.npy");
    CHECK(subject(cells, full_mask(5, 7)) == "q_sizes");
  }
}

TEST_CASE("sizes of blocks in a file: their sums are the lengths, and no memory follows from them") {
  plain::StoredArrays arrays{{"block_mask_map", {DType::boolean, {2, 1, 2}, {1, 0, 0, 1}}},
                             {"block_row_sz", {DType::int64, {2, 1}, {4, 4}}},
                             {"block_col_sz", {DType::int64, {2, 2}, {3, 1, 2, 2}}}};
  const auto failure = [&](const Shape& shape) {
    return plain::failure([&] { StoredMaskInfo(plain::group_of(arrays)).mask(shape, 1); });
  };
  CHECK(table_of(StoredMaskInfo(plain::group_of(arrays)).mask({4, 4, 4}, 3))[0] == 0);
  CHECK(table_of(StoredMaskInfo(plain::group_of(arrays)).mask({4, 4, 4}, 3))[2] == 1);
  arrays["block_row_sz"].values = {4, 3};
  CHECK(failure({2, 4, 4}) ==
        "block_row_sz(1, 0) is 3: the blocks of head 1 end 1 queries before the last of 4");
  const std::int64_t most = std::int64_t{1} << 47;
  arrays["block_row_sz"].values = {most, most};
  CHECK(StoredMaskInfo(plain::group_of(arrays)).mask({2, most, 4}, 1).q_length() == most);
  arrays["block_row_sz"].values = {INT64_MAX, INT64_MAX};
  CHECK(failure({2, most, 4}).find("block_row_sz(0, 0) is 9223372036854775807: ") == 0);
  arrays["block_row_sz"].shape = {1, 2};
  CHECK(failure({2, 4, 4}) == "block_row_sz has the shape (1, 2), block_mask_map (2, 1, 2)");
}

TEST_CASE("heads of different masks need a layout with heads") {
  const std::vector<Mask> heads{causal_mask(8, 8), causal_mask(8, 8), full_mask(8, 8)};
  for (const MaskLayout layout : {tokamax, bsr, flashinfer, magi})
    CHECK(plain::failure([&] {
            make_mask_arrays(heads, {4, 4}, {.layout = layout});
          }).find("heads 0 and 2 have different masks") != std::string::npos);
  CHECK(plain::stored(make_mask_arrays(heads, {4, 4}, {.layout = flex}))["kv_num_blocks"].shape ==
        Shape{1, 3, 2});
}

TEST_CASE("arrays of no layout, of two, and of wrong shapes are refused by name") {
  const auto failure = [](plain::StoredArrays arrays) {
    return plain::failure([&] { StoredMaskInfo(plain::group_of(arrays)).mask({1, 8, 8}, 0); });
  };
  const plain::StoredArrays flex_arrays =
      plain::stored(make_mask_arrays({causal_mask(8, 8)}, {4, 4}, {.layout = flex}));
  plain::StoredArrays arrays = flex_arrays;
  arrays["indptr"] = {DType::int32, {3}, {0, 1, 2}};
  CHECK(failure(arrays) == "m.npz: it has arrays of two layouts, flex and flashinfer");
  arrays = flex_arrays;
  arrays.erase("kv_indices");
  CHECK(failure(arrays) == "m.npz: there is no kv_indices");
  arrays = flex_arrays;
  arrays["kv_indices"].shape = {1, 1, 1, 4};
  CHECK(failure(arrays) == "kv_indices has the shape (1, 1, 1, 4), kv_num_blocks (1, 1, 2)");
  arrays = flex_arrays;
  arrays["kv_indices"].values[2] = 7;
  CHECK(failure(arrays) == "kv_indices(0, 0, 1, 0) is 7: there are 2 key blocks");
  arrays = flex_arrays;
  arrays.erase("partial_mask_blocks"), arrays.erase("partial_block_ids");
  CHECK(failure(arrays).find("the elements of its partial blocks are not stored") != std::string::npos);
  arrays["kv_num_blocks"].shape = {2, 1, 1};
  CHECK(failure(arrays).find("batch entries") != std::string::npos);
}

TEST_CASE("lengths in arrays are of any number of heads, a shape in an attribute is not") {
  ArrayGroup group = plain::group_of(make_mask_arrays({causal_mask(8, 8)}, {4, 4}, {.layout = flex}));
  StoredSettings two;
  two.shape = Shape{2, 8, 8};
  CHECK(StoredMaskInfo(group, two).shape().heads == 2);
  group.attributes["shape"] = "1x8x8";
  CHECK(plain::failure([&] { StoredMaskInfo(group, two); }, Error::Kind::usage) ==
        "m.npz: its shape is (1, 8, 8), and (2, 8, 8) is given");
  const auto with = [&](const char* attribute, const char* text) {
    ArrayGroup damaged = group;
    damaged.attributes[attribute] = text;
    return plain::failure([&] { (void)StoredMaskInfo(damaged); });
  };
  CHECK(with("shape", "1x8x8") == "no error");
  CHECK(with("shape", "1x8x9") == "m.npz: by an attribute its shape is (1, 8, 9), by its arrays (1, 8, 8)");
  CHECK(with("block", "2x4") == "m.npz: by an attribute its block is 2x4, by its arrays 4x4");
  for (const char* text : {"", "8", "8x", "0x4", "-4x4", "4x4x4x4", "99999999999999999999x4", "4x4\n"}) {
    CHECK(with("shape", text).find("m.npz: the attribute shape is '") == 0);
    CHECK(with("shape", text).find("', not HxQxK") != std::string::npos);
    CHECK(with("block", text).find("', not QxK") != std::string::npos);
  }
  group.arrays.erase("BLOCK_SIZE");
  CHECK(with("block", "2x4") == "m.npz: its blocks are of 4x4, not 2x4");
}

TEST_CASE("a BlockMask whose lists are compact, or whose patterns have no numbers, is read") {
  plain::StoredArrays arrays =
      plain::stored(make_mask_arrays({causal_mask(12, 12)}, {4, 4}, {.layout = flex}));
  for (const char* name : {"kv_indices", "partial_block_ids"}) {  // one entry of three
    plain::Stored& list = arrays[name];
    list.shape[3] = 1;
    list.values = {list.values[0], list.values[3], list.values[6]};
  }
  const auto back = [&] { return table_of(StoredMaskInfo(plain::group_of(arrays)).mask({1, 12, 12}, 0)); };
  CHECK(back() == table_of(causal_mask(12, 12)));
  arrays.erase("partial_block_ids");
  plain::Stored& patterns = arrays["partial_mask_blocks"];
  const std::vector<std::int64_t> one = patterns.values;
  patterns.shape[0] = 3;
  for (int n = 0; n < 2; ++n) patterns.values.insert(patterns.values.end(), one.begin(), one.end());
  CHECK(back() == table_of(causal_mask(12, 12)));
}

TEST_CASE("a few numbers make no mask of any size") {
  const std::int64_t most = std::int64_t{1} << 31, many = std::int64_t{1} << 40;
  const auto lengths = [](std::int64_t q, std::int64_t kv) {
    return plain::Stored{DType::int64, {2}, {q, kv}};
  };
  const auto one = [](std::int64_t value) { return plain::Stored{DType::int64, {1}, {value}}; };
  // All blocks are full: no block is stored.
  const plain::StoredArrays full{{"block", lengths(1, 1)}, {"shape", lengths(most, most)}};
  const Mask mask = StoredMaskInfo(plain::group_of(full)).visited({1, most, most}, 0);
  CHECK(mask.text() == "full");
  plain::StoredArrays arrays{{"block", lengths(1, 1)}, {"shape", lengths(many, 1)},
                             {"active_rows", one(0)},  {"active_cols", one(0)},
                             {"block_mask", one(2)},   {"num_active_blocks", one(1)}};
  const auto failure = [&](const Shape& shape) {
    return plain::failure([&] { StoredMaskInfo(plain::group_of(arrays)).mask(shape, 0); });
  };
  CHECK(failure({1, many, 1}).find("more than 2^31 blocks") != std::string::npos);
  arrays["shape"] = lengths(std::int64_t{1} << 30, 1);
  CHECK(failure({1, std::int64_t{1} << 30, 1}).find("rows of blocks are more than") != std::string::npos);
  for (const std::int64_t hostile : {INT64_MIN, INT64_MAX, std::int64_t{-1}}) {
    arrays["shape"] = lengths(4, hostile);
    CHECK(failure({1, 4, 4}).find("has a length of") != std::string::npos);
  }
}

TEST_CASE("orders of writes to dQ are those of torch and FlashAttention-4") {
  int arrays = 0;
  for (const golden::Case& c : golden::load("dq_write_order")) {
    CAPTURE(c.name);
    MaskLayoutSettings settings{.layout = c.params.at("layout") == "flex" ? flex : fa4};
    if (settings.layout == fa4) settings.direction = Direction::dkv;
    const bool descending = c.params.at("descending");
    settings.dq_write_order = descending ? WriteOrder::descending : WriteOrder::ascending;
    const Mask mask = array_mask(make_source(c.in.at("mask").view(), "mask"));
    for (const auto& [name, array, parts] : make_mask_arrays({mask}, {16, 16}, settings).arrays) {
      if (c.out.contains(name)) {
        golden::check_equal(read_all(*array), c, name);
        ++arrays;
      }
      if (name == "spt" || name == "dq_kv_order_spt")
        CHECK(read_all(*array).elements<bool>()[0] == descending);
    }
  }
  CHECK(arrays == 2 * 16);
  CHECK(plain::failure(
            [] {
              make_mask_arrays({causal_mask(4, 4)}, {2, 2},
                               {.layout = fa4, .dq_write_order = WriteOrder::ascending});
            },
            Error::Kind::usage) == "the layout fa4 does not take dq_write_order");
}
