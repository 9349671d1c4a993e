#include "division.hpp"

#include <doctest/doctest.h>

#include <string>
#include <variant>
#include <vector>

#include "support/thread_communicator.hpp"

using namespace ejk;

namespace {

const Table& table(const Report& report, const std::string& key) {
  for (const Report::Item& item : report.items)
    if (const auto* found = std::get_if<Table>(&item); found != nullptr && found->key == key) return *found;
  FAIL("no such table");
  throw 0;
}

}  // namespace

TEST_CASE("a dry run tells who does what, and models more ranks from the busiest") {
  const auto division = [](std::int64_t ranks) {
    std::vector<RankWork> shares(static_cast<std::size_t>(ranks));
    for (std::size_t r = 0; r < shares.size(); ++r)
      shares[r] = {r == 0 ? 3e9 : 1e9, static_cast<std::int64_t>(r), 0, 7, 9};
    return shares;
  };
  test::run_ranks(2, [&](Communicator& comm) {
    const Report report = app::describe_division(comm, division, app::CostUnit::bytes);
    const Table& ranks = table(report, "division");
    REQUIRE(ranks.rows.size() == 2);
    CHECK(std::get<double>(ranks.rows[0][1]) == 0.75);
    CHECK(std::get<std::int64_t>(ranks.rows[1][2]) == 1);
    if (!comm.is_first()) return;
    const Table& model = table(report, "model");
    REQUIRE(model.rows.size() == 11);
    CHECK(std::get<std::int64_t>(model.rows.back()[0]) == 1024);
    // Rank 0 does as much however many there are.
    const double one = std::get<double>(model.rows[0][1]), most = std::get<double>(model.rows.back()[1]);
    CHECK(one > 0);
    CHECK(most == doctest::Approx(one));
    CHECK(std::get<double>(model.rows[1][2]) == doctest::Approx(0.5));
  });
}

TEST_CASE("the model of more ranks has no times that starting them would exceed") {
  for (const double cost : {0.0, 1e4}) {
    const auto division = [&](std::int64_t ranks) {
      return std::vector<RankWork>(static_cast<std::size_t>(ranks),
                                   RankWork{cost / static_cast<double>(ranks), 0, 0, 7, 9});
    };
    const Report report = app::describe_division(single_process(), division, app::CostUnit::bytes);
    CHECK(table(report, "model").rows.empty());
  }
}
