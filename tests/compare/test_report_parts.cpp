// The common part of the reports of checks.
#include "compare/report_parts.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "ejk/compare.hpp"

using namespace ejk;

TEST_CASE("a check that proves little says so") {
  const auto text = [](bool computed, std::int64_t compared, std::int64_t nonzero) {
    Report report;
    verify::warn_if_vacuous(report, computed, compared, nonzero);
    return to_text(report);
  };
  CHECK(text(false, 100, 0).find("Nothing was computed") != std::string::npos);
  CHECK(text(true, 1000, 9).find("proves little: of 1,000 elements compared, 9 are not 0") !=
        std::string::npos);
  CHECK(text(true, 1000, 10).empty());
}

TEST_CASE("a check's report and table have the same keys whatever was checked") {
  Report report = verify::describe_check(false, true, 12, 10, 3);
  Table table = verify::table_of_differences("array", true);
  table.rows.push_back({std::string("out"), 0.5, 0.25, std::vector<std::int64_t>{1, 2}, 1.5, 1.0});
  report.add(std::move(table));
  const std::string json = to_json(report, {"c", {}});
  for (const char* part : {R"("passed":false)", R"("method":"every element")", R"("elements":12)",
                           R"("compared":10)", R"("violating":3)", R"("array":"out")", R"("difference":0.5)",
                           R"("allowed":0.25)", R"("index")", R"("value":1.5)", R"("reference":1.0)"})
    CHECK_MESSAGE(json.find(part) != std::string::npos, part, " in ", json);
  CHECK(verify::table_of_differences("kind", false).columns.size() == 5);
  CHECK(std::get<double>(share_of(1, 4)) == 0.25);
  CHECK(std::holds_alternative<std::monostate>(share_of(0, 0)));
}

TEST_CASE("the largest differences show a result and its reference in digits that tell them apart") {
  Table table = verify::table_of_differences("kind", false);
  table.rows.push_back(
      {std::string("absolute"), 4.8e-7, std::vector<std::int64_t>{56, 0}, -6.9123457, -6.9123453});
  Report report;
  report.add(std::move(table));
  const std::string text = to_text(report);
  CHECK(text.find("-6.912346  -6.912345\n") != std::string::npos);
}

TEST_CASE("explanations are a table, in the order in which they were found") {
  Report report;
  report.add(table_of({{"factor", "0.5 times", 0.75}, {"unwritten", "tile 3", 0.25}}));
  const std::string json = to_json(report, {"c", {}});
  for (const char* part : {R"("explanations":[{"kind":"factor","share_explained":0.75,"text":"0.5 times"},)",
                           R"({"kind":"unwritten","share_explained":0.25,"text":"tile 3"}])"})
    CHECK(json.find(part) != std::string::npos);
}
