// Reports as JSON: keys, units, and numbers that JSON cannot represent.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ejk/report.hpp"

using namespace ejk;

TEST_CASE("the envelope holds six keys, the result under result, on one line") {
  Report report;
  report.add("size", "size", std::int64_t{1536}, Unit::bytes)
      .add("elapsed", "time", 0.1, Unit::seconds)
      .add("work_flop", "work", std::int64_t{5}, Unit::flop)
      .add("rate", "rate", 2.5, Unit::flop_per_second)
      .add("empty", "empty", 1.0 / 3, Unit::share)
      .add("grid", "grid", std::vector<std::int64_t>{2, 3}, Unit::blocks)
      .add("none", "none", ReportValue{});
  report.add(Remark{"not in the JSON"});
  report.warnings = {"careful"};
  CHECK(
      to_json(report, {"mask-info", {{"mask", "m.npy"}}}) ==
      std::string(R"({"schema":1,"ejk_version":")") + version() +
          R"(","command":"mask-info","inputs":[{"role":"mask","value":"m.npy"}],)"
          R"("result":{"size_bytes":1536,"elapsed_s":0.1,"work_flop":5,"rate_flop_per_s":2.5,"empty":0.3333333333333333,)"
          R"("grid":[2,3],"none":null},"warnings":["careful"]})"
          "\n");
}

TEST_CASE("NaN and infinities are null, bytes that are no UTF-8 are written as in texts") {
  Report report;
  report.add("a", "a", std::nan(""))
      .add("b", "b", std::numeric_limits<double>::infinity())
      .add("c", "c", std::string("x\xff"));
  const auto json = nlohmann::json::parse(to_json(report, {"x", {{"in", "\xff.npy"}}}));
  CHECK(json["result"]["a"].is_null());
  CHECK(json["result"]["b"].is_null());
  CHECK(json["result"]["c"] == "x\\xff");
  CHECK(json["inputs"][0]["value"] == "\\xff.npy");
}

TEST_CASE("tables are lists of objects with all rows, sections are objects, pictures rows of letters") {
  Report report;
  report.add(Table{"heads",
                   "Heads",
                   {{"head", "head"}, {"size", "size", Unit::bytes}},
                   {{std::int64_t{0}, std::int64_t{1}}, {std::int64_t{1}, std::int64_t{2}}},
                   1});
  auto inner = std::make_shared<Report>();
  inner->add("x", "x", true);
  report.add(Section{"inner", "Inner", inner});
  report.add(BlockPicture{"picture", "P",
                          std::make_shared<const BlockStates>(2, std::vector<std::uint8_t>{1, 0, 2, 1})});
  const auto result = nlohmann::json::parse(to_json(report, {}))["result"];
  CHECK(result["heads"] == nlohmann::json::parse(R"([{"head":0,"size_bytes":1},{"head":1,"size_bytes":2}])"));
  CHECK(result["inner"]["x"] == true);
  CHECK(result["picture"]["cells"] == nlohmann::json::parse(R"(["PE","FP"])"));
  CHECK(result["picture"]["legend"]["M"] == "mixed");
  CHECK(result["picture"]["blocks_per_cell"] == nlohmann::json::parse("[1,1]"));
}

TEST_CASE("what is empty has its key all the same, and no place in the text") {
  Report report;
  report.add(Table{"table", "A table", {{"a", "a"}}, {}})
      .add(Section{"section", "A section", std::make_shared<Report>()})
      .add(Section{"nothing", "Nothing", nullptr});
  const auto result = nlohmann::json::parse(to_json(report, {}))["result"];
  CHECK(result == nlohmann::json::parse(R"({"table":[],"section":{},"nothing":{}})"));
  CHECK(to_text(report).empty());
}

TEST_CASE("a large picture has at most 64 cells a side in JSON") {
  Report report;
  report.add(BlockPicture{"p", "",
                          std::make_shared<const BlockStates>(65, std::vector<std::uint8_t>(1000 * 65, 2))});
  const auto picture = nlohmann::json::parse(to_json(report, {}))["result"]["p"];
  CHECK(picture["cells"].size() == 63);
  CHECK(picture["cells"][0] == std::string(33, 'F'));
  CHECK(picture["blocks_per_cell"] == nlohmann::json::parse("[16,2]"));
}

TEST_CASE("values that only JSON can say stand under their keys, and lines of the text too") {
  ejk::Report report;
  report.add(ejk::Line{"fingerprint", "cpu|"}).add(ejk::JsonField{"spec", R"(["dp",null,["mp","tp"]])"});
  const auto result = nlohmann::json::parse(ejk::to_json(report, {})).at("result");
  CHECK(result.at("fingerprint") == "cpu|");
  CHECK(result.at("spec").dump() == R"(["dp",null,["mp","tp"]])");
}
