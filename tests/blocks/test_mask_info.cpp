// process_mask and its relatives: element by element and in dtype equal to the original packages.
#include "ejk/mask_info.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <tuple>

#include "support/golden.hpp"

using namespace ejk;

namespace {

std::optional<std::int64_t> optional_integer(const nlohmann::json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
}

Mask mask_of(const nlohmann::json& spec, std::int64_t q, std::int64_t kv, const golden::Case& c) {
  const std::string kind = spec.at("kind");
  if (kind == "full") return full_mask(q, kv);
  if (kind == "causal") return causal_mask(q, kv, spec.at("offset"));
  if (kind == "local")
    return local_mask(q, kv, optional_integer(spec.at("left")), optional_integer(spec.at("right")),
                      spec.at("offset"));
  if (kind == "chunked") return chunked_mask(q, kv, spec.at("chunk_size"));
  if (kind == "array") return array_mask(make_source(c.in.at(spec.at("name").get<std::string>()).view()));
  const Mask left = mask_of(spec.at("left"), q, kv, c), right = mask_of(spec.at("right"), q, kv, c);
  if (kind == "and") return left & right;
  REQUIRE(kind == "or");
  return left | right;
}

ProcessMaskOptions options_of(const nlohmann::json& p) {
  ProcessMaskOptions o;
  o.head_shards = p.at("head_shards");
  o.q_seq_shards = p.at("q_seq_shards");
  o.shrink_grid = p.at("shrink_grid");
  o.downcast = p.at("downcast_smem_data");
  return o;
}

void check_equal(const std::string& name, const Array& got, const golden::Case& c) {
  REQUIRE_MESSAGE(c.out.count(name) == 1, name);
  const Array& expected = c.out.at(name);
  CAPTURE(name);
  CHECK(name_of(got.dtype()) == name_of(expected.dtype()));
  REQUIRE(to_string(got.shape()) == to_string(expected.shape()));
  CHECK(std::memcmp(got.data(), expected.data(), static_cast<std::size_t>(got.bytes())) == 0);
}

void check_info(const MaskInfo& info, const golden::Case& c) {
  check_equal("data_next", info.data_next, c);
  check_equal("block_mask", info.block_mask, c);
  CHECK(info.mask_next.has_value() == (c.out.count("mask_next") == 1));
  CHECK((info.partial_mask_blocks != nullptr) == (c.out.count("partial_mask_blocks") == 1));
  CHECK(info.q_sequence.has_value() == (c.out.count("q_sequence") == 1));
  if (info.mask_next) check_equal("mask_next", *info.mask_next, c);
  if (info.partial_mask_blocks) check_equal("partial_mask_blocks", read_all(*info.partial_mask_blocks), c);
  if (info.q_sequence) check_equal("q_sequence", *info.q_sequence, c);
  CHECK(info.is_dynamic_mask == c.out.at("is_dynamic_mask").elements<bool>()[0]);
  CHECK(info.mask_function.has_value() == c.out.at("has_mask_function").elements<bool>()[0]);
}

void check_family(const std::string& family,
                  const std::function<MaskInfo(const golden::Case&, BlockShape)>& f) {
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(c.name);
    const auto& b = c.params.at("block_shape");
    const BlockShape block{b[0], b[1]};
    if (c.is_error) {
      CHECK_THROWS_AS(f(c, block), Error);
      continue;
    }
    check_info(f(c, block), c);
  }
}

std::vector<Mask> heads_of(const golden::Case& c) {
  const auto& shape = c.params.at("shape");
  std::vector<Mask> heads;
  for (const auto& spec : c.params.at("masks")) heads.push_back(mask_of(spec, shape[1], shape[2], c));
  return heads;
}

}  // namespace

TEST_CASE("process_mask: golden cases") {
  check_family("process_mask", [](const golden::Case& c, BlockShape block) {
    return process_mask(heads_of(c), block, options_of(c.params));
  });
}

TEST_CASE("process_mask_dkv: golden cases") {
  check_family("process_mask_dkv", [](const golden::Case& c, BlockShape block) {
    return process_mask_dkv(heads_of(c), block, options_of(c.params));
  });
}

TEST_CASE("process_dynamic_mask: golden cases") {
  check_family("process_dynamic_mask", [](const golden::Case& c, BlockShape block) {
    return process_dynamic_mask(make_source(c.in.at("mask").view()), block, options_of(c.params));
  });
}

TEST_CASE("process_dynamic_mask_dkv: golden cases") {
  check_family("process_dynamic_mask_dkv", [](const golden::Case& c, BlockShape block) {
    return process_dynamic_mask_dkv(make_source(c.in.at("mask").view()), block, options_of(c.params));
  });
}

TEST_CASE("masks that the original packages stop at by accident give arrays") {
  for (const char* family : {"process_mask_ejkernel", "process_mask_dkv_ejkernel"})
    for (const golden::Case& c : golden::load(family)) {
      CAPTURE(c.name);
      const auto& b = c.params.at("block_shape");
      const bool dkv = std::string(family).find("dkv") != std::string::npos;
      const auto process =
          dkv ? static_cast<MaskInfo (*)(const std::vector<Mask>&, BlockShape, const ProcessMaskOptions&)>(
                    process_mask_dkv)
              : process_mask;
      const MaskInfo info = process(heads_of(c), {b[0], b[1]}, options_of(c.params));
      for (const std::int64_t length : info.block_mask.shape()) CHECK(length >= 1);
      CHECK(info.data_next.shape() == info.block_mask.shape());
    }
}

TEST_CASE("indices are narrowed by value in static masks and by bound in dynamic ones") {
  // data_next reaches KB - 1 in a full mask; a dynamic mask is narrowed by KB itself.
  for (const auto& [blocks, fixed, dynamic] :
       {std::tuple{127, DType::int8, DType::int8}, std::tuple{128, DType::int8, DType::int16},
        std::tuple{129, DType::int16, DType::int16}, std::tuple{32767, DType::int16, DType::int16},
        std::tuple{32768, DType::int16, DType::int32}, std::tuple{32769, DType::int32, DType::int32}}) {
    const std::int64_t key_blocks = blocks;
    CAPTURE(key_blocks);
    const std::vector<Mask> heads{full_mask(1, key_blocks)};
    CHECK(process_mask(heads, {1, 1}).data_next.dtype() == fixed);
    CHECK(process_mask(heads, {1, 1}).block_mask.dtype() == DType::int8);
    CHECK(process_dynamic_mask(heads, {1, 1}).data_next.dtype() == dynamic);
    CHECK(process_dynamic_mask(heads, {1, 1}).mask_next->dtype() == dynamic);
    CHECK(process_dynamic_mask(heads, {1, 1}).block_mask.dtype() == DType::int8);
    CHECK(process_dynamic_mask_dkv(heads, {1, 1}).data_next.dtype() == DType::int8);
    ProcessMaskOptions wide;
    wide.downcast = false;
    CHECK(process_mask(heads, {1, 1}, wide).data_next.dtype() == DType::int32);
    CHECK(process_dynamic_mask(heads, {1, 1}, wide).block_mask.dtype() == DType::int32);
  }
}

TEST_CASE("one hole in sixteen million elements makes a block partial") {
  Array dense(DType::boolean, {4096, 4096});
  std::fill(dense.elements<bool>().begin(), dense.elements<bool>().end(), true);
  dense.elements<bool>()[12345678] = false;
  const MaskInfo info = process_mask({array_mask(make_source(dense.view()))}, {4096, 4096});
  CHECK(info.summaries[0].partial_blocks == 1);
  CHECK(info.summaries[0].true_elements == 4096 * 4096 - 1);
}

TEST_CASE("full and block-diagonal masks go with any number of query shards") {
  const std::vector<std::int32_t> cu{0, 16, 32, 48, 64};
  const auto source = make_source(Array::from<std::int32_t>({5}, cu));
  for (const std::int64_t shards : {1, 2, 4})
    for (const Mask& m : {full_mask(64, 64), documents_mask(*source)}) {
      ProcessMaskOptions options;
      options.q_seq_shards = shards;
      CHECK_FALSE(process_mask({m}, {16, 16}, options).mask_next);
      CHECK_FALSE(process_mask_dkv({m}, {16, 16}, options).mask_next);
      CHECK(process_mask({m}, {16, 16}, options).summaries[0].partial_blocks == 0);
    }
}

TEST_CASE("a computable mask's blocks are made when they are asked for") {
  const Mask window = local_mask(64, 64, 5, 0);
  ProcessMaskOptions options;
  options.computable = false;
  const MaskInfo made = process_mask({window}, {16, 16}, options);
  // A mask of the same elements that is not computable as it stands.
  const MaskInfo same = process_mask({window & full_mask(64, 64)}, {16, 16});
  CHECK_FALSE(made.mask_function);
  CHECK_FALSE(made.q_sequence);
  REQUIRE(made.mask_next);
  REQUIRE(made.partial_mask_blocks);
  const auto bytes = [](const Array& a) {
    return std::vector<std::byte>(a.data(), a.data() + byte_count(a.shape(), a.dtype()));
  };
  CHECK(bytes(*made.mask_next) == bytes(*same.mask_next));
  CHECK(bytes(read_all(*made.partial_mask_blocks)) == bytes(read_all(*same.partial_mask_blocks)));
}

TEST_CASE("a computable mask that is padded is no longer computable") {
  ProcessMaskOptions options;
  options.pad = true;
  const MaskInfo info = process_mask({causal_mask(10, 10)}, {4, 4}, options);
  CHECK_FALSE(info.mask_function);
  CHECK_FALSE(info.q_sequence);
  CHECK(info.partial_mask_blocks);
  CHECK_THROWS_AS(process_mask({causal_mask(10, 10)}, {4, 4}), Error);
  try {
    process_mask({causal_mask(10, 10)}, {4, 5});
  } catch (const Error& e) {
    CHECK(e.message() == "10 query rows do not divide into blocks of 4");
    CHECK(e.code() == Error::Code::indivisible_mask);
  }
}

TEST_CASE("lengths and blocks beyond reason are refused, not computed with") {
  CHECK_THROWS_AS(full_mask(INT64_MAX, 1), Error);
  CHECK_THROWS_AS(full_mask(std::int64_t{1} << 40, std::int64_t{1} << 40), Error);
  ProcessMaskOptions options;
  options.pad = true;
  CHECK_THROWS_AS(process_mask({full_mask(8, 8)}, {INT64_MAX, 1}, options), Error);
  CHECK_THROWS_AS(process_mask({full_mask(8, 8)}, {0, 1}), Error);
}
