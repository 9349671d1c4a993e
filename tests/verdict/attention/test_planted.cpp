// Faults of kernels that process keys in tiles, planted in plain loops: each is out of tolerance in float32,
// bfloat16 and float16, and named with its place and its fraction of the wrong elements.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "ejk/against.hpp"
#include "ejk/attention.hpp"
#include "support/planted_attention.hpp"

using namespace ejk;

namespace planted_mistakes {

namespace {

using plain::Index;
using plain::Row;
using Kernel = plain::PlantedAttention;

constexpr Index kHeads = 2, kTokens = 128, kSize = 16, kTile = 32;
const double kScale = 0.25;

void set_mask(Kernel& kernel, std::function<bool(Index i, Index j)> allowed) {
  kernel.allowed = [f = std::move(allowed)](Index, Index, Index i, Index j) { return f(i, j); };
}

// A problem, and results of kernels that round their weights to its type.
struct Problem {
  Kernel right;

  explicit Problem(DType type, std::uint64_t seed, const Mask& mask = causal_mask(kTokens, kTokens)) {
    right.batch = 1;
    right.heads = right.kv_heads = kHeads;
    right.queries = right.keys = kTokens;
    right.size = right.value_size = kSize;
    right.type = type;
    right.options.masks.push_back(head_masks({mask}));
    right.make(seed);
    right.weight = [type](double p) { return plain::rounded(p, type); };
    set_mask(right, [](Index i, Index j) { return j <= i; });
  }
  Row made(const std::function<void(Kernel&)>& change = [](Kernel&) {}) const {
    Kernel kernel = right;
    change(kernel);
    return kernel.forward().out;
  }
  Against against(const Row& out) const {
    std::vector<std::optional<Array>> actual(2);
    actual[0] = plain::array_of(right.type, right.q->shape(), out);
    return right.compare(actual);
  }
};

// Rows of `one`, or of `other` where that is chosen.
Row mixed(Row one, const Row& other, const std::function<bool(Index h, Index i)>& choose) {
  for (Index i = 0; i < kTokens; ++i)
    for (Index h = 0; h < kHeads; ++h)
      if (choose(h, i))
        std::copy_n(other.begin() + (i * kHeads + h) * kSize, kSize, one.begin() + (i * kHeads + h) * kSize);
  return one;
}

// The online softmax keeps the old maximum for what is chosen.
std::function<void(const Row&, Row&, Row&)> no_rescaling(bool of_out, bool of_sum) {
  return [=](const Row& scores, Row& out, Row& sum) {
    double most = -HUGE_VAL;
    for (Index begin = 0; begin < kTokens; begin += kTile) {
      const auto tile = std::span(scores).subspan(static_cast<std::size_t>(begin), kTile);
      const double next = std::max(most, *std::max_element(tile.begin(), tile.end()));
      if (most != -HUGE_VAL && next > most)
        for (std::size_t j = 0; j < static_cast<std::size_t>(begin); ++j) {
          if (of_out) out[j] *= std::exp(next - most);
          if (of_sum) sum[j] *= std::exp(next - most);
        }
      most = next;
    }
  };
}

// Parts of the keys, divided by their own sums, and joined with weights e^lse, lse to base 2.
std::function<void(const Row&, Row&, Row&)> joined_by_lse_base_2(Index parts) {
  return [=](const Row& scores, Row& out, Row&) {
    const double most = *std::max_element(scores.begin(), scores.end());
    const auto length = static_cast<std::size_t>(kTokens / parts);
    Row of_part, weights;
    double sum = 0, all = 0;
    for (std::size_t begin = 0; begin < kTokens; begin += length) {
      double own = 0;
      for (std::size_t j = begin; j < begin + length; ++j) own += std::exp(scores[j] - most);
      of_part.push_back(own);
      weights.push_back(own > 0 ? std::exp(std::log2(own)) : 0);
      sum += own, all += weights.back();
    }
    for (std::size_t j = 0; j < kTokens; ++j)
      if (of_part[j / length] > 0) out[j] = sum * weights[j / length] / all / of_part[j / length];
  };
}

struct Planted {
  std::string wanted;
  std::function<void(Kernel&)> change;
};

std::vector<Planted> planted() {
  std::vector<Planted> all;
  const auto add = [&](const char* wanted, std::function<void(Kernel&)> change) {
    all.push_back({wanted, std::move(change)});
  };
  const auto mask = [&](const char* wanted, std::function<bool(Index i, Index j)> allowed) {
    add(wanted, [f = std::move(allowed)](Kernel& k) { set_mask(k, f); });
  };
  mask("the mask is ignored", [](Index, Index) { return true; });
  mask("the causal edge is one key short", [](Index i, Index j) { return j < i; });
  mask("the tile of 32 keys on the diagonal is left out",
       [](Index i, Index j) { return j / kTile < i / kTile; });
  mask("the tile of 32 keys on the diagonal is not masked",
       [](Index i, Index j) { return j <= i || j / kTile == i / kTile; });
  mask("the last tile of 32 keys is left out",
       [](Index i, Index j) { return j <= i && j < kTokens - kTile; });
  mask("of 4 parts of the keys only the first is used",
       [](Index i, Index j) { return j <= i && j < kTokens / 4; });
  mask("of 4 parts of the keys only the last is used",
       [](Index i, Index j) { return j <= i && j >= kTokens / 4 * 3; });
  add("4 parts of the keys are joined with an lse to base 2 that is taken for base e",
      [](Kernel& k) { k.loop = joined_by_lse_base_2(4); });
  add("without rescaling at a new maximum, in tiles of 32 keys",
      [](Kernel& k) { k.loop = no_rescaling(true, true); });
  add("the sum is not rescaled at a new maximum, in tiles of 32 keys",
      [](Kernel& k) { k.loop = no_rescaling(false, true); });
  add("the accumulator is not rescaled at a new maximum, in tiles of 32 keys",
      [](Kernel& k) { k.loop = no_rescaling(true, false); });
  add("24 keys of zeros behind the last are counted", [](Kernel& k) { k.more = [](Index) { return 24.0; }; });
  add("heads 0 and 1 hold the values of each other",
      [](Kernel& k) { k.value_head = [](Index h) { return 1 - h; }; });
  add("all weights are equal", [](Kernel& k) { k.score = [](double, double) { return 0.0; }; });
  add("the scale is left out", [](Kernel& k) { k.score = [](double dot, double) { return dot; }; });
  add("the scale is applied twice",
      [](Kernel& k) { k.score = [](double dot, double) { return kScale * kScale * dot; }; });
  return all;
}

const std::vector<DType> kTypes{DType::float32, DType::bfloat16, DType::float16};

}  // namespace

TEST_CASE("a right kernel agrees, and planted mistakes are refused and named in every type") {
  for (const DType type : kTypes) {
    CAPTURE(name_of(type));
    const Problem problem(type, 7);
    CHECK(problem.against(problem.made()).agrees());
    for (const Planted& p : planted()) {
      CAPTURE(p.wanted);
      const Against found = problem.against(problem.made(p.change));
      CHECK_FALSE(found.agrees());
      REQUIRE(found.explanations.size() >= 1);
      CHECK(found.explanations[0].text == p.wanted);
      double share = found.explanations[0].share_explained;
      CHECK(share > 0.98);
      for (const auto& u : found.unexplained) share += u.share;
      CHECK(share == doctest::Approx(1));
    }
  }
}

TEST_CASE("two mistakes in different heads are both named, each with the share of its elements") {
  const std::vector<Planted> all = planted();
  for (const DType type : kTypes) {
    CAPTURE(name_of(type));
    const Problem problem(type, 8);
    for (const auto& [one, other] : {std::pair{0, 14}, {3, 9}, {2, 13}, {6, 1}, {10, 3}}) {
      const Planted &a = all[static_cast<std::size_t>(one)], &b = all[static_cast<std::size_t>(other)];
      CAPTURE(a.wanted);
      CAPTURE(b.wanted);
      const Against found = problem.against(
          mixed(problem.made(a.change), problem.made(b.change), [](Index h, Index) { return h == 1; }));
      const auto share_of = [&](const std::string& text) {
        for (const auto& e : found.explanations)
          if (e.text.starts_with(text)) return e.share_explained;
        return 0.0;
      };
      for (const auto& part : found.parts) {
        if (part.axis != "head") continue;
        const double share = static_cast<double>(part.beyond) / static_cast<double>(found.beyond);
        CHECK(share_of(part.index == 0 ? a.wanted : b.wanted) == doctest::Approx(share).epsilon(0.02));
      }
    }
  }
}

TEST_CASE("a mistake in some queries of one head is named with them, and a lone element is left") {
  for (const DType type : kTypes) {
    CAPTURE(name_of(type));
    const Problem problem(type, 9);
    Row out = mixed(problem.made(), problem.made(planted()[0].change),
                    [](Index h, Index i) { return h == 1 && i >= 32 && i < 64; });
    const auto lone = static_cast<std::size_t>((80 * kHeads + 0) * kSize + 5);
    out[lone] = 5;
    const Against found = problem.against(out);
    REQUIRE(found.explanations.size() == 1);
    CHECK(found.explanations[0].text == "the mask is ignored in head 1, queries 32-63");
    REQUIRE(found.unexplained.size() == 1);
    CHECK(found.unexplained[0].elements == 1);
    CHECK(found.unexplained[0].worst.index == Shape{0, 80, 0, 5});
    CHECK(found.explanations[0].share_explained ==
          doctest::Approx(1 - 1 / static_cast<double>(found.beyond)));
  }
}

TEST_CASE("boundaries of documents that are off, and documents that are one, are named") {
  const std::vector<Index> cu{0, 20, 47, 90, kTokens};
  const auto of = [](const std::vector<Index>& begins, bool causal) {
    return [=](Kernel& kernel) {
      set_mask(kernel, [=](Index i, Index j) {
        const auto document = [&](Index t) {
          return std::upper_bound(begins.begin(), begins.end(), t) - begins.begin();
        };
        return document(i) == document(j) && (!causal || j <= i);
      });
    };
  };
  for (const DType type : kTypes)
    for (const bool causal : {false, true}) {
      CAPTURE(name_of(type));
      Mask mask = documents_mask(IntegerArray(cu));
      if (causal) mask = mask & causal_mask(kTokens, kTokens);
      const Problem problem(type, 11, mask);
      const auto told = [&](const std::vector<Index>& begins) {
        const Against found = problem.against(problem.made(of(begins, causal)));
        return found.explanations.empty() ? std::string() : found.explanations[0].text;
      };
      CHECK(problem.against(problem.made(of(cu, causal))).agrees());
      CHECK(told({0, 20, 48, 90, kTokens}) == "the boundary of documents at token 47 is one token late");
      CHECK(told({0, 20, 47, 89, kTokens}) == "the boundary of documents at token 90 is one token early");
      CHECK(told({0, 20, 90, kTokens}) == "the documents that meet at token 47 are one");
      CHECK(told({0, 21, 48, 91, kTokens}) == "documents begin one token late");
    }
}

namespace {

// Faults of kernels that visit the tiles of a mask: which pairs attend, for a tile and its row of tiles.
using Pairs = std::vector<std::vector<bool>>;

Pairs pairs_of(const Mask& mask) {
  const auto bits = std::make_unique<bool[]>(kTokens * kTokens);
  mask.read(0, kTokens, 0, kTokens, bits.get());
  Pairs pairs(kTokens, std::vector<bool>(kTokens));
  for (Index i = 0; i < kTokens; ++i)
    for (Index j = 0; j < kTokens; ++j)
      pairs[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] =
          bits[static_cast<std::size_t>(i * kTokens + j)];
  return pairs;
}

enum class TileFault { partial_whole, full_left_out, first_left_out, last_left_out };

Pairs with_fault(const Pairs& right, BlockShape tile, TileFault fault) {
  Pairs wrong = right;
  const auto at = [&wrong](Index i, Index j) -> std::vector<bool>::reference {
    return wrong[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  };
  const Index all = tile.q * tile.kv;
  for (Index i = 0; i < kTokens; i += tile.q) {
    std::vector<Index> visited, attending;  // tiles, and their pairs
    for (Index j = 0; j < kTokens; j += tile.kv) {
      Index count = 0;
      for (Index n = 0; n < all; ++n) count += at(i + n / tile.kv, j + n % tile.kv) ? 1 : 0;
      if (count > 0) visited.push_back(j), attending.push_back(count);
    }
    for (std::size_t n = 0; n < visited.size(); ++n) {
      const bool is_full = attending[n] == all, is_first = n == 0, is_last = n + 1 == visited.size();
      const bool is_wrong = fault == TileFault::partial_whole    ? !is_full
                            : fault == TileFault::full_left_out  ? is_full
                            : fault == TileFault::first_left_out ? !is_full && is_first && !is_last
                                                                 : is_last;
      for (Index m = 0; m < all && is_wrong; ++m)
        at(i + m / tile.kv, visited[n] + m % tile.kv) = fault == TileFault::partial_whole;
    }
  }
  return wrong;
}

// Tiles of 32 that are empty, full or partial; those that are partial are of such tiles of 16.
Mask stored_tiles(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Array bits(DType::boolean, {kTokens, kTokens});
  const std::function<void(Index, Index, Index)> fill = [&](Index i, Index j, Index tile) {
    const auto state = engine() % 3;
    if (state == 2 && tile > 16)
      for (Index part = 0; part < 4; ++part) fill(i + part / 2 * tile / 2, j + part % 2 * tile / 2, tile / 2);
    else
      for (Index n = 0; n < tile * tile; ++n)
        bits.elements<bool>()[static_cast<std::size_t>((i + n / tile) * kTokens + j + n % tile)] =
            state == 1 || (state == 2 && engine() % 2 == 0);
  };
  for (Index i = 0; i < kTokens; i += 32)
    for (Index j = 0; j < kTokens; j += 32) fill(i, j, 32);
  return array_mask(make_source(std::move(bits)));
}

}  // namespace

TEST_CASE("tiles of block-sparse kernels that are computed whole or left out are named") {
  const Mask documents = documents_mask(IntegerArray(std::vector<Index>{0, 20, 47, 90, kTokens})) &
                         causal_mask(kTokens, kTokens);
  const std::vector<TileFault> all{TileFault::partial_whole, TileFault::full_left_out,
                                   TileFault::first_left_out, TileFault::last_left_out};
  const std::vector<BlockShape> squares{{16, 16}, {32, 32}};
  std::array<bool, 32> visited;
  visited.fill(true);
  for (const std::size_t block : {9U, 12U, 26U}) visited[block] = false;
  const Mask blocks =
      blocks_mask(make_source(Array::from<bool>({8, 4}, visited)), {16, 32}, kTokens, kTokens);
  struct Case {
    Mask mask;
    std::vector<TileFault> faults;
    std::vector<BlockShape> tiles;
  };
  const std::vector<Case> cases{{local_mask(kTokens, kTokens, 70, 10), all, squares},
                                {stored_tiles(3), all, squares},
                                {causal_mask(kTokens, kTokens), {TileFault::full_left_out}, squares},
                                {documents, {TileFault::partial_whole}, squares},
                                {blocks & causal_mask(kTokens, kTokens),
                                 {TileFault::partial_whole, TileFault::full_left_out},
                                 {{16, 32}}}};
  const auto check = [&](DType type, const Case& masked, std::uint64_t seed) {
    CAPTURE(name_of(type));
    CAPTURE(masked.mask.text());
    const Problem problem(type, seed, masked.mask);
    const Pairs right = pairs_of(masked.mask);
    const auto made = [&](const Pairs& pairs) {
      return problem.made([&](Kernel& kernel) {
        set_mask(kernel, [&](Index i, Index j) {
          return pairs[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
        });
      });
    };
    CHECK(problem.against(made(right)).agrees());
    for (const BlockShape tile : masked.tiles)
      for (const TileFault fault : masked.faults) {
        const std::string of = " of " + to_string(tile) + " are ";
        const std::string wanted =
            fault == TileFault::partial_whole   ? "partial tiles" + of + "computed whole"
            : fault == TileFault::full_left_out ? "full tiles" + of + "left out"
            : fault == TileFault::first_left_out
                ? "partial tiles" + of + "left out where they are the first of several in a row"
                : "tiles" + of + "left out where they are the last of a row";
        CAPTURE(wanted);
        const Against found = problem.against(made(with_fault(right, tile, fault)));
        REQUIRE(found.explanations.size() >= 1);
        CHECK(found.explanations[0].text == wanted);
        CHECK(found.explanations[0].share_explained > 0.98);
      }
    Row noise = made(right);
    std::mt19937_64 engine(16);
    std::normal_distribution<double> normal;
    for (double& x : noise) x += 0.2 * normal(engine);
    CHECK(problem.against(noise).explanations.empty());
  };
  for (const DType type : kTypes)
    for (const Case& masked : cases)
      for (const std::uint64_t seed : {15U, 20U}) check(type, masked, seed);
}

TEST_CASE("a loop that begins one tile late in a window, and chunks in the place of a window, are named") {
  const auto check = [](DType type, std::uint64_t seed) {
    CAPTURE(name_of(type));
    const Problem problem(type, seed, local_mask(kTokens, kTokens, 31, 0));
    const auto told = [&](const std::function<bool(Index i, Index j)>& allowed) {
      const Against found = problem.against(problem.made([&](Kernel& k) { set_mask(k, allowed); }));
      return found.explanations.empty() ? std::string() : found.explanations[0].text;
    };
    const auto window = [](Index i, Index j) { return j <= i && j >= i - 31; };
    CHECK(told([&](Index i, Index j) {
            const Index first = std::max<Index>(i / 16 * 16 - 31, 0);
            return window(i, j) && j >= (first + 15) / 16 * 16;
          }) == "partial tiles of 16x16 are left out where they are the first of several in a row");
    CHECK(told([&](Index i, Index j) { return j <= i && i / 32 == j / 32; }) ==
          "the window is chunks, which do not move with the query");
  };
  for (const DType type : kTypes)
    for (const std::uint64_t seed : {17U, 21U}) check(type, seed);
}

TEST_CASE("rows that hold those of others, and other factors in each head, are named") {
  for (const DType type : kTypes) {
    CAPTURE(name_of(type));
    const Problem problem(type, 10);
    const Row right = problem.made();
    Row out = right;
    const auto row = [](Index i, Index h) { return (i * kHeads + h) * kSize; };
    for (Index i = 40; i < 48; ++i)
      std::copy_n(right.begin() + row(i + 30, 1), kSize, out.begin() + row(i, 1));
    const Against moved = problem.against(out);
    REQUIRE(moved.explanations.size() == 1);
    CHECK(moved.explanations[0].text == "head 1: query 40 to 47 hold what belongs to query 70 to 77");
    CHECK(moved.explanations[0].share_explained > 0.98);

    out = right;
    for (Index i = 0; i < kTokens; ++i)
      for (Index h = 0; h < kHeads; ++h)
        for (Index d = 0; d < kSize; ++d) out[static_cast<std::size_t>(row(i, h) + d)] *= h == 0 ? 1.5 : 3;
    const Against factors = problem.against(out);
    REQUIRE(factors.explanations.size() == 2);
    for (const auto& e : factors.explanations)
      CHECK(
          (e.text == "head 0: 1.5 times what it should be" || e.text == "head 1: 3 times what it should be"));
  }
}

TEST_CASE("scales that differ by head, and a scale beside rows that are moved or never written, are named") {
  const auto row = [](Index i, Index h) { return (i * kHeads + h) * kSize; };
  const auto scaled = [](double scale) {
    return [=](Kernel& k) { k.score = [=](double dot, double) { return scale * dot; }; };
  };
  const auto first = [](Index h, Index) { return h == 0; };
  for (const DType type : kTypes) {
    CAPTURE(name_of(type));
    const Problem problem(type, 14);
    const auto texts = [&](const Row& out) {
      std::vector<std::string> all;
      for (const auto& e : problem.against(out).explanations) all.push_back(e.text);
      std::sort(all.begin(), all.end());
      return all;
    };
    CHECK(
        texts(mixed(problem.made(scaled(1)), problem.made(scaled(kScale * kScale)), first)) ==
        std::vector<std::string>{"the scale is applied twice in head 0", "the scale is left out in head 1"});
    const Row of_one = mixed(problem.made(), problem.made(scaled(1)), first);
    Row out = of_one;
    for (Index i = 32; i < 64; ++i)
      std::copy_n(of_one.begin() + row(i + 32, 1), kSize, out.begin() + row(i, 1));
    CHECK(texts(out) == std::vector<std::string>{"head 1: query 32 to 63 hold what belongs to query 64 to 95",
                                                 "the scale is left out in head 0"});
    out = of_one;
    for (Index i = 32; i < 64; ++i) std::fill_n(out.begin() + row(i, 1), kSize, 0);
    CHECK(texts(out) ==
          std::vector<std::string>{"elements are 0, as if never written in head 1, queries 32-63",
                                   "the scale is left out in head 0"});
  }
}

TEST_CASE("a factor that fits a minority within wide bounds is no explanation of it") {
  for (const std::uint64_t seed : {18U, 19U})
    for (const DType type : {DType::float32, DType::bfloat16}) {
      CAPTURE(name_of(type));
      const bool is_named = type == DType::float32;
      const Problem problem(type, seed);
      Row out = problem.made();
      std::mt19937_64 engine(seed);
      std::normal_distribution<double> normal;
      for (std::size_t e = 0; e < out.size(); ++e) {
        const Index query = static_cast<Index>(e) / kSize / kHeads;
        out[e] = query >= 64 && query < 96 ? 1.03 * out[e] : out[e] + 0.3 * normal(engine);
      }
      const Against found = problem.against(out);
      REQUIRE(found.explanations.empty() != is_named);
      if (is_named) CHECK(found.explanations[0].text == "query 64 to 95: 1.03 times what it should be");
      // Of numbers that are small and have little to do with the reference.
      out = problem.made();
      for (double& x : out) x *= 0.03 * (1 + 0.3 * normal(engine));
      CHECK(problem.against(out).explanations.empty());
    }
}

TEST_CASE("noise gets no explanation") {
  for (unsigned n = 0; n < 140; ++n) {
    CAPTURE(n);
    const Problem problem(kTypes[n % kTypes.size()], 100 + n);
    Row out = problem.made();
    std::mt19937_64 engine(n);
    std::normal_distribution<double> normal;
    // Of several sizes; in proportion to values, or not; in all rows, in one head, in some rows, in single
    // elements.
    const double size = 0.4 * std::pow(2.0, -static_cast<double>(n % 4));
    for (std::size_t e = 0; e < out.size(); ++e) {
      const Index row = static_cast<Index>(e) / kSize, head = row % kHeads;
      if (n % 5 == 1 && head != 1) continue;
      if (n % 5 == 2 && row / kHeads % 7 != 3) continue;
      if (n % 5 == 3 && e % 61 != 0) continue;
      out[e] += size * normal(engine) * (n % 2 == 0 ? 1 : std::abs(out[e]));
    }
    const Against found = problem.against(out);
    CHECK_FALSE(found.agrees());
    CHECK(found.explanations.empty());
    REQUIRE(found.unexplained.size() == 1);
    CHECK(found.unexplained[0].elements == found.beyond);
  }
}

}  // namespace planted_mistakes
