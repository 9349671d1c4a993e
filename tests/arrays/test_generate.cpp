// Generated inputs: golden cases of JAX, and moments of the distributions.
#include "ejk/program/generate.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "arrays/random.hpp"
#include "io/support.hpp"
#include "support/golden.hpp"

using namespace ejk;

TEST_CASE("generate_attention_inputs: golden cases") {
  for (const golden::Case& c : golden::load("generate_attention_inputs")) {
    CAPTURE(c.name);
    const AttentionInputs got = generate_attention_inputs(
        {c.params.at("batch_size"), c.params.at("seq_len"), c.params.at("num_heads"), c.params.at("head_dim"),
         *dtype_named(c.params.at("dtype").get<std::string>()), c.params.at("seed")});
    for (const auto& [name, source] :
         {std::pair{"query", got.query}, {"key", got.key}, {"value", got.value}}) {
      const Array all = read_all(*source), &wanted = c.out.at(name);
      CHECK(all.dtype() == wanted.dtype());
      REQUIRE(all.shape() == wanted.shape());
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(all.size()); ++i) {
        if (all.dtype() == DType::float32)
          wrong += std::abs(all.elements<float>()[i] - wanted.elements<float>()[i]) >
                   1e-5f * std::abs(wanted.elements<float>()[i]);
        else
          wrong += std::abs(all.elements<std::int16_t>()[i] - wanted.elements<std::int16_t>()[i]) > 2;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("attention inputs are the same in any box") {
  const auto query = generate_attention_inputs({2, 5, 3, 7, DType::float32, 9}).query;
  const Array all = read_all(*query);
  float box[2 * 2 * 4];
  query->read(Shape{1, 2, 1, 3}, Shape{1, 2, 2, 4}, box);
  for (std::int64_t i = 0; i < 16; ++i)
    CHECK(box[i] == all.elements<float>()[static_cast<std::size_t>(((5 + 2 + i / 8) * 3 + 1 + i / 4 % 2) * 7 +
                                                                   3 + i % 4)]);
  CHECK(generate_attention_inputs({0, 5, 3, 7}).key->shape() == Shape{0, 5, 3, 7});
  CHECK(read_all(*generate_attention_inputs({2, 5, 3, 0}).key).size() == 0);
  for (const AttentionInputsOptions& bad : {AttentionInputsOptions{-1},
                                            {1, 1, 1, 1, DType::int32},
                                            {1, 1, 1, 1, DType::float64},
                                            {1, 1, 1, 1, DType::float32, -1}})
    CHECK_THROWS_AS(generate_attention_inputs(bad), Error);
}

TEST_CASE("the elementary functions are those of the C library") {
  for (double x = 1e-300; x < 1e300; x *= 1.7)
    CHECK(arrays::log_of(x) == doctest::Approx(std::log(x)).epsilon(1e-14));
  for (double x = -690; x < 690; x += 0.37)
    CHECK(arrays::exp_of(x) == doctest::Approx(std::exp(x)).epsilon(1e-13));
  for (double x = -0.999999; x < 1; x += 0.0013)
    CHECK(std::erf(arrays::erfinv(x)) == doctest::Approx(x).epsilon(1e-6));
}

TEST_CASE("Threefry is the published one") {
  // Known answers of the authors' Random123.
  CHECK(arrays::threefry({0, 0}, 0, 0) == arrays::Key{0x6b200159u, 0x99ba4efeu});
  CHECK(arrays::threefry({0xffffffffu, 0xffffffffu}, 0xffffffffu, 0xffffffffu) ==
        arrays::Key{0x1cb996fcu, 0xbb002be7u});
  CHECK(arrays::threefry({0x13198a2eu, 0x03707344u}, 0x243f6a88u, 0x85a308d3u) ==
        arrays::Key{0xc4923a9cu, 0x483df7a0u});
}

TEST_CASE("lengths stay within their limits and follow their distribution") {
  const auto lengths = [](LengthDistribution distribution, std::int64_t shortest, std::int64_t longest) {
    const Array a = generate_lengths({20000, distribution, shortest, longest, 300, 5});
    const auto all = a.elements<std::int32_t>();
    CHECK(*std::min_element(all.begin(), all.end()) >= shortest);
    CHECK(*std::max_element(all.begin(), all.end()) <= longest);
    return std::vector<std::int32_t>(all.begin(), all.end());
  };
  const auto mean = [](const std::vector<std::int32_t>& v) {
    return std::accumulate(v.begin(), v.end(), 0.0) / 20000;
  };
  CHECK(mean(lengths(LengthDistribution::lognormal, 0, 1'000'000)) == doctest::Approx(300).epsilon(0.05));
  CHECK(mean(lengths(LengthDistribution::uniform, 3, 9)) == doctest::Approx(6).epsilon(0.02));
  CHECK(mean(lengths(LengthDistribution::constant, 3, 9)) == 9);
  const auto zipf = lengths(LengthDistribution::zipf, 1, 1000);
  const auto share = [&](int from, int to) {
    return static_cast<double>(
               std::count_if(zipf.begin(), zipf.end(), [&](int n) { return n >= from && n < to; })) /
           20000;
  };
  CHECK(share(10, 100) == doctest::Approx(share(100, 1000)).epsilon(0.1));  // as many in every decade
  CHECK(test::same(generate_lengths({9, LengthDistribution::uniform, 1, 9, 5, 3}),
                   generate_lengths({9, LengthDistribution::uniform, 1, 9, 5, 3})));
  CHECK_FALSE(test::same(generate_lengths({9, LengthDistribution::uniform, 1, 9, 5, 3}),
                         generate_lengths({9, LengthDistribution::uniform, 1, 9, 5, 4})));
  CHECK(generate_lengths({0}).shape() == Shape{0});
  for (const LengthsOptions& bad : {LengthsOptions{-1},
                                    {1, LengthDistribution::zipf, 5, 4},
                                    {1, LengthDistribution::zipf, -1, 4},
                                    {1, LengthDistribution::lognormal, 1, 4, 0},
                                    {1, LengthDistribution::zipf, 1, INT64_MAX}})
    CHECK_THROWS_AS(generate_lengths(bad), Error);
}

TEST_CASE("the same seed gives the same numbers, today and tomorrow") {
  const auto lengths =
      read_all(*make_source(generate_lengths({6, LengthDistribution::lognormal, 1, 4096, 512, 0})));
  const auto sizes = generate_group_sizes({6, 100, GroupDistribution::uniform, 0, 0.5, 0});
  const auto text = [](const Array& a) {
    std::string all;
    for (const std::int32_t x : a.elements<std::int32_t>()) all += std::to_string(x) + " ";
    return all;
  };
  CHECK(text(lengths) == "493 754 1253 140 103 60 ");
  CHECK(text(sizes) == "15 16 14 16 17 22 ");
}

TEST_CASE("padding masks hold the lengths, on either side") {
  const LengthsOptions how{50, LengthDistribution::uniform, 0, 40, 1, 1};
  const Array lengths = generate_lengths(how);
  for (const PaddingSide side : {PaddingSide::right, PaddingSide::left}) {
    const auto mask = generate_padding_mask(how, 30, side);
    const Array all = read_all(*mask);
    CHECK(all.shape() == Shape{50, 30});
    for (std::int64_t i = 0; i < 50; ++i)
      for (std::int64_t j = 0; j < 30; ++j) {
        const std::int64_t length =
            std::min(lengths.elements<std::int32_t>()[static_cast<std::size_t>(i)], 30);
        const bool wanted = side == PaddingSide::right ? j < length : j >= 30 - length;
        CHECK(all.elements<bool>()[static_cast<std::size_t>(i * 30 + j)] == wanted);
      }
    bool box[3 * 4];
    mask->read(Shape{5, 11}, Shape{3, 4}, box);
    for (std::int64_t i = 0; i < 12; ++i)
      CHECK(box[i] == all.elements<bool>()[static_cast<std::size_t>((5 + i / 4) * 30 + 11 + i % 4)]);
  }
}

TEST_CASE("group sizes sum to the tokens, with as many empty groups as asked, one hot or all even") {
  for (const auto distribution : {GroupDistribution::uniform, GroupDistribution::zipf, GroupDistribution::hot,
                                  GroupDistribution::balanced})
    for (const std::int64_t groups : {1, 2, 7, 64})
      for (const std::int64_t empty : {0, 1, 5})
        for (const std::int64_t tokens : {0, 1, 1000, 4097}) {
          if (empty >= groups) continue;
          const Array sizes = generate_group_sizes({groups, tokens, distribution, empty, 0.75, 3});
          const auto all = sizes.elements<std::int32_t>();
          CHECK(std::accumulate(all.begin(), all.end(), std::int64_t{0}) == tokens);
          CHECK(std::count(all.begin(), all.end(), 0) >= empty);
          const auto most = *std::max_element(all.begin(), all.end());
          if (distribution == GroupDistribution::balanced) CHECK(most <= tokens / (groups - empty) + 1);
          if (distribution == GroupDistribution::hot && groups > empty + 1 && tokens == 1000)
            CHECK(most == 750);
          if (distribution == GroupDistribution::zipf && tokens == 4097 && groups == 64)
            CHECK(std::count(all.begin(), all.end(), 0) == empty);
        }
  CHECK(generate_group_sizes({0, 0}).shape() == Shape{0});
  for (const GroupsOptions& bad : {GroupsOptions{0, 1},
                                   {3, 1, GroupDistribution::zipf, 3},
                                   {3, 0, GroupDistribution::zipf, 4},
                                   {3, -1},
                                   {3, 1, GroupDistribution::hot, 0, 1.5},
                                   {3, std::int64_t{1} << 31}})
    CHECK_THROWS_AS(generate_group_sizes(bad), Error);
}
