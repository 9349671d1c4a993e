// describe_sequences against a plain loop.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "ejk/sequence.hpp"

using namespace ejk;

namespace {

nlohmann::json describe(const std::vector<std::int64_t>& lens) {
  std::vector<std::int64_t> cu{0};
  for (const std::int64_t length : lens) cu.push_back(cu.back() + length);
  const auto source =
      make_source(Array::from<std::int64_t>({static_cast<std::int64_t>(cu.size())}, cu), "cu_seqlens");
  return nlohmann::json::parse(to_json(describe_sequences(*source), {"seq-info", {}})).at("result");
}

}  // namespace

TEST_CASE("lengths, percentiles, histogram and work are those of the sequences") {
  const auto r = describe({5, 0, 1, 2, 8, 4, 0});
  CHECK(r.at("sequences") == 7);
  CHECK(r.at("tokens") == 20);
  CHECK(r.at("empty_sequences") == 2);
  CHECK(r.at("shortest") == 0);
  CHECK(r.at("longest") == 8);
  CHECK(r.at("mean").get<double>() == doctest::Approx(20.0 / 7));
  // numpy.percentile([0, 0, 1, 2, 4, 5, 8], [50, 75, 95])
  CHECK(r.at("percentiles")[0].at("p50") == 2.0);
  CHECK(r.at("percentiles")[0].at("p75") == 4.5);
  CHECK(r.at("percentiles")[0].at("p95").get<double>() == doctest::Approx(7.1));
  CHECK(r.at("packing").at("attention_pairs_packed") == 25.0 + 1 + 4 + 64 + 16);
  CHECK(r.at("packing").at("attention_pairs_padded") == 7.0 * 64);
  CHECK(r.at("packing").at("padding_share").get<double>() == doctest::Approx(1 - 20.0 / 56));
  std::int64_t sequences = 0;
  double tokens = 0;
  for (const auto& bin : r.at("histogram")) {
    sequences += bin.at("sequences").get<std::int64_t>();
    tokens += bin.at("token_share").get<double>();
  }
  CHECK(sequences == 7);
  CHECK(tokens == doctest::Approx(1));
  CHECK(r.at("histogram")[0].at("range") == "0");
  CHECK(r.at("histogram")[2].at("range") == "2-3");
}

TEST_CASE("no sequences, only empty ones, and one of 2^62 tokens") {
  CHECK(describe({}).at("sequences") == 0);
  const auto empty = describe({0, 0});
  CHECK(empty.at("longest") == 0);
  CHECK(empty.at("packing").at("padding_share").is_null());
  CHECK(describe({std::int64_t{1} << 62}).at("histogram").size() == 1);
}
