// Findings: which are kept, their order, and their report.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "check/artefacts.hpp"
#include "support/threads.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

constexpr Rule kRules[] = {{"odd", Severity::warning, "no number is odd"},
                           {"large", Severity::error, "no number is large"}};

void add(Findings& found, const char* rule, std::int64_t place) {
  found.add(rule, place, [&] { return Finding{"x", {place}, place, "wrong"}; });
}

nlohmann::json json_of(const Findings& found) {
  return nlohmann::json::parse(to_json(describe(found), {"check", {}})).at("result");
}

}  // namespace

TEST_CASE("the first findings of each rule are kept, whatever order and parts they come in") {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t most = between(random, 0, 6), n = between(random, 0, 30);
    Numbers places(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) places[static_cast<std::size_t>(i)] = 3 * i;
    Findings in_order(kRules, most), all(kRules, most);
    for (const std::int64_t place : places) add(in_order, place % 2 == 0 ? "odd" : "large", place);
    std::shuffle(places.begin(), places.end(), random);
    std::vector<Findings> parts(3, Findings(kRules, most));
    for (const std::int64_t place : places)
      add(parts[static_cast<std::size_t>(between(random, 0, 2))], place % 2 == 0 ? "odd" : "large", place);
    for (Findings& part : parts) all.merge(std::move(part));
    CHECK(json_of(all) == json_of(in_order));
    CHECK(all.errors() + all.warnings() == n);
    const auto kept = all.kept();
    for (const char* rule : {"odd", "large"})
      CHECK(std::count_if(kept.begin(), kept.end(), [&](const auto& one) { return one.rule.name == rule; }) <=
            most);
  }
}

TEST_CASE("a finding that is not kept is never put into words") {
  Findings found(kRules, 2);
  int made = 0;
  for (std::int64_t i = 0; i < 100; ++i)
    found.add("large", i, [&] {
      ++made;
      return Finding{};
    });
  CHECK(made == 2);
  CHECK(found.count("large") == 100);
  CHECK_THROWS_AS(found.count("small"), Error);
}

TEST_CASE("the report has the verdict first, errors before warnings, and counts") {
  Findings found(kRules, 1);
  CHECK(json_of(found).at("verdict") == "ok");
  CHECK(json_of(found).at("findings").empty());
  add(found, "odd", 1);
  CHECK(json_of(found).at("verdict") == "ok, 1 warning");
  add(found, "large", 7);
  add(found, "large", 5);
  found.facts().add("numbers", "numbers", std::int64_t{9});
  const auto r = json_of(found);
  CHECK(r.at("verdict") == "2 errors, 1 warning");
  CHECK(r.at("numbers") == 9);
  CHECK(r.at("errors") == 2);
  CHECK(r.at("warnings") == 1);
  CHECK(r.at("findings").dump() ==
        R"([{"array":"x","index":[5],"message":"wrong","rule":"large","severity":"error","value":5},)"
        R"({"array":"x","index":[1],"message":"wrong","rule":"odd","severity":"warning","value":1}])");
  CHECK(r.at("counts")[0].at("count") == 2);
  CHECK(to_text(describe(found)).starts_with("2 errors, 1 warning\n\nnumbers  9\n"));
}

TEST_CASE("findings are the same for any number of threads") {
  Random random(2);
  Numbers ids(200 * 700);
  for (std::int64_t& id : ids) id = between(random, -3, 900);
  const auto indices = integers(ids, {200, 700});
  const auto one = [&] {
    const Threads threads(1);
    return json_of(check_indices(indices, {.keys = 800, .causal = true}));
  }();
  const Threads threads(5);
  CHECK(json_of(check_indices(indices, {.keys = 800, .causal = true})) == one);
  CHECK(one.at("errors") > 1000);
}
