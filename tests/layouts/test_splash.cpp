// MaskInfo read back is the mask that it was built from; arrays that cannot be walked are refused by name.
#include "layouts/splash.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>

#include "ejk/io.hpp"
#include "io/support.hpp"
#include "support/failure.hpp"
#include "support/random_mask.hpp"
#include "support/random_mask_info.hpp"

using namespace ejk;

namespace {

using plain::between;
using plain::elements_of;
using plain::Example;
using plain::info_of;
using plain::Random;
using plain::random_example;

// Every pair in a block of `block` that holds a True.
std::vector<std::uint8_t> in_blocks(const std::vector<std::uint8_t>& elements, std::int64_t q,
                                    std::int64_t kv, BlockShape block) {
  std::set<std::pair<std::int64_t, std::int64_t>> visited;
  for (std::int64_t i = 0; i < q; ++i)
    for (std::int64_t j = 0; j < kv; ++j)
      if (elements[static_cast<std::size_t>(i * kv + j)]) visited.insert({i / block.q, j / block.kv});
  return plain::table(q, kv, [&](auto i, auto j) { return visited.contains({i / block.q, j / block.kv}); });
}

void check_read_back(const Example& e, const StoredMaskInfo& stored) {
  const Shape shape{std::ssize(e.heads), e.q, e.kv};
  for (std::int64_t h = 0; h < shape[0]; ++h) {
    const std::vector<std::uint8_t>& expected = e.heads[static_cast<std::size_t>(h)].elements;
    CAPTURE(e.heads[static_cast<std::size_t>(h)].mask.text());
    REQUIRE(elements_of(stored.mask(shape, h)) == expected);
    REQUIRE(elements_of(stored.visited(shape, h)) == in_blocks(expected, e.q, e.kv, e.block));
  }
}

std::string failure(const ArrayGroup& arrays, const StoredSettings& settings = {},
                    const Shape& shape = {1, 8, 8}, Error::Kind kind = Error::Kind::input) {
  return plain::failure([&] { elements_of(StoredMaskInfo(arrays, settings).mask(shape, 0)); }, kind);
}

// A source that can be read in order only.
class InOrder final : public ForwardingSource {
 public:
  explicit InOrder(const std::shared_ptr<const ArraySource>& source)
      : ForwardingSource(source, {source->dtype(), source->shape()},
                         ArrayAccess(ArrayAccess::Order::sequential)) {}
};

std::shared_ptr<const ArraySource> with(const ArraySource& source, std::int64_t at, std::int64_t value) {
  Array all(DType::int64, source.shape());
  const Array old = read_all(source);
  dispatch(old.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>)
      std::copy(old.elements<T>().begin(), old.elements<T>().end(), all.elements<std::int64_t>().begin());
  });
  all.elements<std::int64_t>()[static_cast<std::size_t>(at)] = value;
  return make_source(std::move(all), source.name());
}

}  // namespace

TEST_CASE("what process_mask stores is read back to the element, in every setting") {
  Random random(17);
  for (int n = 0; n < 1500; ++n) {
    CAPTURE(n);
    const Example e = random_example(random);
    const MaskInfo info = info_of(e);
    ArrayGroup group = stored_arrays(info);
    check_read_back(e, StoredMaskInfo(group));
    // Without attributes the caller says what the arrays do not.
    group.attributes.clear();
    StoredSettings settings;
    settings.block = e.block;
    settings.shape = Shape{std::ssize(e.heads), e.q, e.kv};
    settings.direction = e.setting.direction;
    settings.head_shards = e.setting.how.head_shards;
    settings.q_seq_shards = e.setting.how.q_seq_shards;
    if (auto& blocks = group.arrays["partial_mask_blocks"]; blocks && n % 2 == 0)
      blocks = std::make_shared<InOrder>(blocks);
    else if (!blocks)
      group.arrays.erase("partial_mask_blocks");
    check_read_back(e, StoredMaskInfo(group, settings));
  }
}

TEST_CASE("files of every kind are read back, and only HDF5 ones say what they are") {
  test::Folder folder;
  const MaskInfo info = process_mask_dkv(
      {causal_mask(16, 16) & full_mask(16, 16), local_mask(16, 16, 3, 2) & full_mask(16, 16)}, {4, 8});
  const ArrayGroup group = stored_arrays(info);
  std::vector<NamedArray> arrays;
  for (const auto& [name, array] : group.arrays) arrays.push_back({name, array});
  for (const std::string target : {"a.h5", "b.h5:/deep/er", "c.npz", "d/"}) {
    CAPTURE(target);
    write_arrays(parse_output(folder / target), arrays, {.attributes = group.attributes});
    const ArrayGroup opened = ArrayFile(parse_input(folder / target)).group(StoredMaskInfo::array_names());
    CHECK(opened.arrays.size() == arrays.size());
    const bool says_it = target.find(".h5") != std::string::npos;
    CHECK(opened.attributes.contains("q_seq_shards") == says_it);
    StoredSettings settings;
    if (!says_it) settings.direction = Direction::dkv;
    const StoredMaskInfo stored(opened, settings);
    CHECK(stored.shape().heads == 2);
    CHECK(stored.shape().q_length == (says_it ? 16 : 0));
    for (std::int64_t h = 0; h < 2; ++h)
      CHECK(elements_of(stored.mask({2, 16, 16}, h)) ==
            elements_of(h == 0 ? causal_mask(16, 16) : local_mask(16, 16, 3, 2)));
  }
  CHECK_THROWS_AS(ArrayFile(folder / "c.npz").group({}, "x"), Error);
}

TEST_CASE("arrays that are no MaskInfo are refused by what is wrong") {
  const MaskInfo info = process_mask({causal_mask(8, 8) & full_mask(8, 8)}, {4, 4});
  const ArrayGroup good = stored_arrays(info);
  CHECK(failure(good) == "no error");
  const auto without = [&](const char* name) {
    ArrayGroup group = good;
    group.arrays.erase(name);
    return failure(group);
  };
  CHECK(without("data_next") == "the MaskInfo: there is no data_next, which every MaskInfo has");
  CHECK(without("block_mask") == "the MaskInfo: there is no block_mask, which every MaskInfo has");
  CHECK(without("mask_next") ==
        "block_mask[0, 0, 0] is 1: partial, and there is no mask_next with its elements");
  CHECK(without("is_dynamic_mask") == "no error");
  ArrayGroup group = good;
  group.arrays.erase("partial_mask_blocks");
  CHECK(failure(group) ==
        "block_mask[0, 0, 0] is 1: partial, and there is no partial_mask_blocks with its elements");
  group.attributes.clear();
  CHECK(failure(group, {}, {1, 8, 8}, Error::Kind::usage) ==
        "the MaskInfo: nothing says how large its blocks are");
  const auto instead = [&](const char* name, Array array) {
    ArrayGroup changed = good;
    changed.arrays[name] = make_source(std::move(array), name);
    return failure(changed);
  };
  CHECK(instead("data_next", Array(DType::float32, {1, 2, 2})) ==
        "data_next is float32; indices are integers");
  CHECK(instead("data_next", Array(DType::int8, {1, 2, 1})) ==
        "data_next has the shape (1, 2, 1), block_mask (1, 2, 2)");
  CHECK(instead("block_mask", Array(DType::int8, {2, 2})) ==
        "block_mask has the shape (2, 2); index arrays have three axes");
  CHECK(instead("block_mask", Array(DType::int8, {0, 2, 2})) == "block_mask: shape (0, 2, 2) has no element");
  CHECK(instead("partial_mask_blocks", Array(DType::uint8, {1, 4, 4})) ==
        "partial_mask_blocks is uint8, not bool");
  CHECK(instead("partial_mask_blocks", Array(DType::boolean, {1, 4, 2})) ==
        "partial_mask_blocks has blocks of 4x2, not 4x4");
  CHECK(instead("partial_mask_blocks", Array(DType::boolean, {0, 4, 4})).find("has the shape (0, 4, 4)") !=
        std::string::npos);
  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = true;
  CHECK(instead("is_dynamic_mask", std::move(dynamic)) ==
        "is_dynamic_mask is true, and partial_mask_blocks does not have every block of every head");
  CHECK(instead("is_dynamic_mask", Array(DType::int8, {})) ==
        "is_dynamic_mask is int8 (); it is a bool without axes");

  // Indices that no kernel can follow. Blocks: 1 0 / 2 1.
  const auto changed = [&](const char* name, std::int64_t at, std::int64_t value) {
    ArrayGroup other = good;
    other.arrays[name] = with(*good.arrays.at(name), at, value);
    return failure(other);
  };
  CHECK(changed("block_mask", 2, 3) ==
        "block_mask[0, 1, 0] is 3: a block is 0 (empty), 1 (partial) or 2 (full)");
  CHECK(changed("data_next", 2, 2) == "data_next[0, 1, 0] is 2: there are 2 key blocks");
  CHECK(changed("data_next", 2, -1) == "data_next[0, 1, 0] is -1: there are 2 key blocks");
  CHECK(changed("data_next", 3, 0) == "data_next[0, 1, 1] is 0: block (1, 0) is visited a second time");
  CHECK(changed("mask_next", 0, 1) == "mask_next[0, 0, 0] is 1: partial_mask_blocks has 1");
  CHECK(changed("data_next", 1, 77) == "no error");  // no kernel computes there
  CHECK(changed("mask_next", 2, 77) == "no error");  // nor looks there

  // Lengths and settings of another mask.
  CHECK(failure(good, {}, {1, 9, 8}).find("a grid of (1, 2, 2) is not that of") != std::string::npos);
  CHECK(failure(good, {}, {1, 8, 3}).find("a grid of (1, 2, 2) is not that of") != std::string::npos);
  CHECK(failure(good, {}, {3, 8, 8}) == "no error");
  group = good;
  group.attributes["q_seq_shards"] = "3";
  CHECK(failure(group) == "the MaskInfo: 2 rows of blocks do not divide into 3 query shards");
  group.attributes["q_seq_shards"] = "0";
  CHECK(failure(group) == "the MaskInfo: the attribute q_seq_shards is '0', not a number of devices");
  group.attributes["ejk_command"] = "convert";
  CHECK(failure(group) == "no error");  // the options of another command
}

TEST_CASE("a computable mask's elements are not guessed") {
  const MaskInfo info = process_mask({causal_mask(8, 8)}, {4, 4});
  const StoredMaskInfo stored(stored_arrays(info));
  CHECK(elements_of(stored.visited({1, 8, 8}, 0)) ==
        plain::table(8, 8, [](auto i, auto j) { return j / 4 <= i / 4; }));
  try {
    stored.mask({1, 8, 8}, 0);
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.code() == Error::Code::computable_mask);
  }
  // Blocks that are full or empty need no function.
  const MaskInfo blocks = process_mask({chunked_mask(8, 8, 1)}, {1, 1});
  REQUIRE(blocks.q_sequence);
  CHECK(elements_of(StoredMaskInfo(stored_arrays(blocks)).mask({1, 8, 8}, 0)) ==
        elements_of(chunked_mask(8, 8, 1)));
}
