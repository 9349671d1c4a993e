// Layouts of groups against the algorithms of their libraries, written as loops over choices and blocks.
#include "ejk/groups.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;
using enum GroupLayout;

namespace {

using Numbers = std::vector<std::int64_t>;

Numbers numbers(const Array& array) {
  Numbers all;
  for (const double x : plain::doubles(array.view())) all.push_back(static_cast<std::int64_t>(x));
  return all;
}

std::map<std::string, Numbers> arrays_of(const Route& route, const GroupLayoutSettings& settings) {
  std::map<std::string, Numbers> all;
  for (const auto& [name, array] : make_group_arrays(route, settings).arrays) all[name] = numbers(array);
  return all;
}

std::int64_t up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// moe_align_block_size: buckets in order, each padded to blocks, `first_bucket` -1 (SGLang) or 0 (vLLM).
std::map<std::string, Numbers> aligned(const Numbers& ids, std::int64_t experts, std::int64_t block,
                                       std::int64_t first_bucket) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t buckets = experts - first_bucket;
  std::int64_t length = n + buckets * (block - 1);
  if (n < buckets) length = std::min(n * block, length);
  if (first_bucket < 0) length = up(length, 4);
  Numbers sorted(static_cast<std::size_t>(length), n),
      of_block(static_cast<std::size_t>(up(length, block) / block), -1);
  std::int64_t end = 0;
  for (std::int64_t e = first_bucket; e < experts; ++e) {
    std::int64_t count = 0;
    for (std::int64_t f = 0; f < n; ++f)
      if (ids[static_cast<std::size_t>(f)] == e) sorted[static_cast<std::size_t>(end + count++)] = f;
    for (std::int64_t b = 0; b < up(count, block) / block; ++b)
      of_block[static_cast<std::size_t>(end / block + b)] = e;
    end += up(count, block);
  }
  return {{"sorted_token_ids", sorted},
          {"expert_ids", of_block},
          {first_bucket < 0 ? "num_tokens_post_pad" : "num_tokens_post_padded", {end}}};
}

}  // namespace

TEST_CASE("vllm and megablocks: the arrays of their own code") {
  int arrays = 0;
  for (const golden::Case& c : golden::load("group_layouts")) {
    CAPTURE(c.name);
    const Route route = make_route(make_source(c.in.at("topk_ids").view()), c.params.at("experts"));
    GroupLayoutSettings settings{.align = c.params.at("align")};
    settings.layout = c.params.at("layout") == "vllm" ? vllm : megablocks;
    if (settings.layout == megablocks) settings.ffn_blocks = c.params.at("ffn_blocks");
    for (const auto& [name, array] : make_group_arrays(route, settings).arrays) {
      const std::string title(name);  // clang captures no structured bindings
      CAPTURE(title);
      const Array& expected = c.out.at(title);
      CHECK(array.dtype() == expected.dtype());
      // Of vLLM the entries in blocks with rows: what is behind them depends on its version.
      Numbers got = numbers(array);
      const Numbers wanted = numbers(expected);
      if (settings.layout == vllm && got.size() > wanted.size()) got.resize(wanted.size());
      CHECK(got == wanted);
      ++arrays;
    }
  }
  CHECK(arrays == 6 * (3 + 11));
}

TEST_CASE("vllm and sglang: blocks of each expert's choices, those of no expert first or left out") {
  std::mt19937_64 engine(6);
  for (int round = 0; round < 200; ++round) {
    const auto tokens = static_cast<std::int64_t>(engine() % 20),
               k = static_cast<std::int64_t>(1 + engine() % 4),
               experts = static_cast<std::int64_t>(1 + engine() % 12),
               block = std::int64_t{1} << engine() % 6;
    std::vector<double> ids(static_cast<std::size_t>(tokens * k));
    for (double& id : ids)
      id = static_cast<double>(engine() % static_cast<std::uint64_t>(experts + round % 2)) - round % 2;
    const Numbers integers(ids.begin(), ids.end());
    const Array array = plain::array_of(DType::int32, {tokens, k}, ids);
    const Route route = make_route(make_source(array.view()), experts);
    CHECK(arrays_of(route, {.layout = vllm, .align = block}) == aligned(integers, experts, block, 0));
    CHECK(arrays_of(route, {.layout = sglang, .align = block}) == aligned(integers, experts, block, -1));
  }
}

TEST_CASE("offsets, DeepGEMM: ends and labels of groups with padding") {
  const Route route = sorted_route(Numbers{3, 0, 5, 4});
  CHECK(arrays_of(route, {.layout = offsets})["offs"] == Numbers{3, 3, 8, 12});
  CHECK(arrays_of(route, {.layout = offsets, .align = 4})["offs"] == Numbers{4, 4, 12, 16});
  CHECK(arrays_of(route, {.layout = offsets, .align = 4, .last_is_total = true, .rows = 20})["offs"] ==
        Numbers{4, 4, 12, 20});
  CHECK(arrays_of(route, {.layout = offsets, .last_is_total = true})["offs"] == Numbers{3, 3, 8, 12});
  CHECK(arrays_of(route, {.layout = deepgemm, .align = 4})["grouped_layout"] ==
        Numbers{0, 0, 0, -1, 2, 2, 2, 2, 2, -1, -1, -1, 3, 3, 3, 3});
  CHECK(arrays_of(route, {.layout = deepgemm_psum, .align = 4})["grouped_layout"] == Numbers{3, 4, 9, 16});
  CHECK(arrays_of(route, {.layout = deepgemm_masked})["masked_m"] == Numbers{3, 0, 5, 4});
  CHECK(make_group_arrays(route, {.layout = deepgemm}).settings.align == 128);
}

TEST_CASE("MegaBlocks: bins, and a topology whose transpose is a stable sort of its columns") {
  std::mt19937_64 engine(8);
  for (int round = 0; round < 60; ++round) {
    const auto experts = static_cast<std::int64_t>(1 + engine() % 5),
               ffn = static_cast<std::int64_t>(1 + engine() % 4);
    std::vector<double> ids(engine() % 60);
    for (double& id : ids) id = static_cast<double>(engine() % static_cast<std::uint64_t>(experts));
    const Array array = plain::array_of(DType::int64, {std::ssize(ids)}, ids);
    const Route route = make_route(make_source(array.view()), experts);
    auto made = arrays_of(route, {.layout = megablocks, .align = 8, .ffn_blocks = ffn});
    Numbers bins, padded, order(ids.size()), columns, rows;
    std::int64_t end = 0, padded_end = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t n = std::count(ids.begin(), ids.end(), static_cast<double>(e));
      bins.push_back(end += n);
      for (std::int64_t r = 0; r < up(n, 8) / 8; ++r)
        for (std::int64_t c = 0; c < ffn; ++c)
          columns.push_back(e * ffn + c), rows.push_back(padded_end / 8 + r);
      padded.push_back(padded_end += up(n, 8));
    }
    CHECK(made["bins"] == bins);
    CHECK(made["padded_bins"] == padded);
    CHECK(made["column_indices"] == columns);
    CHECK(made["row_indices"] == rows);
    Numbers starts;
    for (std::int64_t r = 0; r <= padded_end / 8; ++r) starts.push_back(r * ffn);
    CHECK(made["offsets"] == starts);
    Numbers by_column(columns.size()), rows_t, offsets_t{0};
    for (std::size_t i = 0; i < by_column.size(); ++i) by_column[i] = static_cast<std::int64_t>(i);
    std::stable_sort(by_column.begin(), by_column.end(), [&](auto x, auto y) {
      return columns[static_cast<std::size_t>(x)] < columns[static_cast<std::size_t>(y)];
    });
    for (const std::int64_t b : by_column) rows_t.push_back(rows[static_cast<std::size_t>(b)]);
    for (std::int64_t c = 0; c < experts * ffn; ++c)
      offsets_t.push_back(offsets_t.back() + std::count(columns.begin(), columns.end(), c));
    CHECK(made["block_offsets_t"] == by_column);
    CHECK(made["column_indices_t"] == rows_t);
    CHECK(made["offsets_t"] == offsets_t);
  }
}

TEST_CASE("settings that a layout lacks, and counts beyond its types, are errors") {
  const auto why = [](const Route& route, const GroupLayoutSettings& settings) {
    return plain::failure_and_hint([&] { make_group_arrays(route, settings); });
  };
  const Route route = sorted_route(Numbers{3, 5});
  CHECK(why(route, {.layout = vllm}) == "layout vllm has blocks of rows, whose size is not given");
  CHECK(why(route, {.layout = vllm, .align = 8, .last_is_total = true}) ==
        "layout vllm has no end of the buffer");
  CHECK(why(route, {.layout = deepgemm_masked, .align = 8}) ==
        "layout deepgemm-masked pads no group: each is in a matrix of its own");
  CHECK(why(route, {.layout = offsets, .align = 8, .rows = 12}) ==
        "the groups have 16 rows with padding, more than m = 12");
  CHECK(why(route, {.layout = offsets, .align = std::int64_t{1} << 31}) ==
        "the groups have more rows with padding than int32 counts (at most 2147483647)");
  CHECK(
      why(route, {.layout = megablocks, .ffn_blocks = 20000}) ==
      "2 experts with 20000 blocks of columns each need column indices beyond int16 | MegaBlocks does not check this: "
      "its indices wrap to negative ones");
  const Array none = plain::array_of(DType::int32, {2}, {0, -1});
  CHECK(why(make_route(make_source(none.view()), 1), {.layout = megablocks}) ==
        "1 choices are of no expert, and MegaBlocks has an expert for each");
}

TEST_CASE("the planned memory is at least that of the arrays") {
  for (const GroupLayout layout : kGroupLayouts)
    for (const Numbers& sizes : {Numbers{}, Numbers{0}, Numbers{1000, 0, 3, 129}, Numbers(70, 1)})
      for (const std::int64_t align : {1, 8, 128}) {
        if (layout == deepgemm_masked && align > 1) continue;
        CAPTURE(name_of(layout));
        CAPTURE(align);
        GroupLayoutSettings settings{.layout = layout, .align = align};
        if (layout == megablocks) settings.ffn_blocks = 3;
        const Route route = sorted_route(sizes);
        std::int64_t bytes = 0;
        for (const auto& [name, array] : make_group_arrays(route, settings).arrays) bytes += array.bytes();
        CHECK(bytes <= group_arrays_bytes(route, settings));
        CHECK(3 * route.order.bytes() == sorted_route_bytes(route.order.size()));
      }
}
