// The sparsity report against plain counts.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "ejk/mask_info.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

nlohmann::json result_of(const Report& report) {
  return nlohmann::json::parse(to_json(report, {"mask-info", {}})).at("result");
}

}  // namespace

TEST_CASE("a report counts blocks, blind rows, unseen keys and work over all heads") {
  // Head 0: rows 4 to 7 blind. Heads 1 and 2: causal. Blocks of 4 x 4 in 8 x 8.
  const auto elements = plain::table(8, 8, [](auto i, auto j) { return i < 4 && j != 5; });
  const Mask stored = array_mask(make_source(plain::array_of(8, 8, elements), "m.npy"));
  const MaskInfo info = process_mask({stored, causal_mask(8, 8), causal_mask(8, 8)}, {4, 4});
  const Report report = describe(info);
  const nlohmann::json r = result_of(report);
  const auto& total = r.at("total");
  CHECK(total.at("blocks") == 12);
  CHECK(total.at("empty_blocks") == 2 + 2);
  CHECK(total.at("partial_blocks") == 1 + 4);
  CHECK(total.at("full_blocks") == 1 + 2);
  CHECK(total.at("work_left") == doctest::Approx(8.0 / 12));
  CHECK(total.at("true_elements") == 28 + 36 + 36);
  CHECK(total.at("element_sparsity") == doctest::Approx(1 - 100.0 / 192));
  CHECK(total.at("rows_without_key") == 4);
  CHECK(total.at("keys_without_row") == 1);
  CHECK(total.at("distinct_partial_blocks") == 2);
  const auto& masks = r.at("masks");
  REQUIRE(masks.size() == 2);
  CHECK(masks[0].at("heads") == "0");
  CHECK(masks[1].at("heads") == "1-2");
  CHECK(masks[1].at("expression") == "causal");
  CHECK(masks[1].at("mean_keys_per_query") == 4.5);
  CHECK(masks[1].at("keys_of_middle_query") == 5);
  CHECK(r.at("rows_without_key").dump().find("\"begin\":4") != std::string::npos);
  REQUIRE(report.warnings.size() == 1);
  CHECK(report.warnings[0] == "4 of 24 queries have no key: a softmax over them is undefined");
}

TEST_CASE("densities count the true area alone when a mask is padded") {
  ProcessMaskOptions options;
  options.pad = true;
  const nlohmann::json r = result_of(describe(process_mask({full_mask(5, 7)}, {4, 4}, options)));
  CHECK(r.at("total").at("element_sparsity") == 0.0);
  CHECK(r.at("total").at("true_elements") == 35);
  CHECK(r.at("total").at("partial_blocks") == 3);
  CHECK(r.at("total").at("rows_without_key") == 0);
  CHECK(r.at("padded_shape") == nlohmann::json::array({1, 8, 8}));
}

TEST_CASE("alignment is stated when queries and keys differ in number") {
  const auto alignment = [](const Mask& m) {
    return result_of(describe(process_mask({m}, {4, 4}))).value("alignment", "");
  };
  CHECK(alignment(causal_mask(8, 16)) == "top left: query 0 at key 0");
  CHECK(alignment(causal_mask(8, 16, 8)) == "bottom right: the last query at the last key");
  CHECK(alignment(local_mask(8, 16, 3, 0, 5)) == "offset 5: query 0 at key 5");
  CHECK(alignment(chunked_mask(8, 16, 4)) == "top left: query 0 at key 0");
  CHECK(alignment(~causal_mask(8, 16) & local_mask(8, 16, 3, 0, 8)) ==
        "bottom right: the last query at the last key; top left: query 0 at key 0");
  CHECK(alignment(causal_mask(8, 8)).empty());
  CHECK(alignment(full_mask(8, 16)).empty());
}

TEST_CASE("the walk over key blocks is judged by columns of blocks") {
  // 3 rows and 8 columns of blocks: column j is computed by the rows from j on, the last five by none.
  const nlohmann::json r = result_of(describe(process_mask_dkv({causal_mask(24, 64)}, {8, 8})));
  CHECK_FALSE(r.contains("rows_of_blocks"));
  const nlohmann::json& columns = r.at("columns_of_blocks");
  REQUIRE(columns.size() == 6);
  CHECK(columns[0] == nlohmann::json({{"mask", 0},
                                      {"rank", "heaviest"},
                                      {"column", 0},
                                      {"kv_begin", 0},
                                      {"blocks", 3},
                                      {"share", 1.0}}));
  CHECK(columns[2].at("blocks") == 1);
  CHECK(columns[5].at("column") == 7);
  CHECK(columns[5].at("kv_begin") == 56);
  CHECK(columns[5].at("blocks") == 0);
}

TEST_CASE("the heaviest and lightest rows of blocks are named") {
  const nlohmann::json rows =
      result_of(describe(process_mask({causal_mask(64, 64)}, {8, 8}))).at("rows_of_blocks");
  CHECK(rows.front().at("row") == 7);
  CHECK(rows.front().dump().find('8') != std::string::npos);
  CHECK(rows.back().at("row") == 0);
}
