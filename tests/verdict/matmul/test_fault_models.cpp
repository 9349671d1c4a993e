// Known faults of grouped products, planted in plain loops, are named; noise and rounding have no
// explanation.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "ejk/against.hpp"
#include "ejk/matmul_check.hpp"
#include "support/matmul.hpp"
#include "verdict/matmul/against.hpp"

using namespace ejk;
using plain::Sizes;

namespace {

using Matrix = std::vector<double>;

// A problem, and loops that make its result rightly or otherwise.
struct Made {
  Array lhs, rhs;
  Sizes sizes;
  std::int64_t m, k, n;
  std::vector<double> a, b;

  std::int64_t begin(std::int64_t g) const {
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < g; ++i) at += sizes[static_cast<std::size_t>(i)];
    return at;
  }
  std::int64_t groups() const { return std::ssize(sizes); }
  std::int64_t group(std::int64_t row) const {
    std::int64_t g = 0;
    while (g < groups() && begin(g + 1) <= row) ++g;
    return g;
  }
  double lhs_at(std::int64_t i, std::int64_t p, std::int64_t columns) const {
    return a[static_cast<std::size_t>(i * columns + p)];
  }
  /// Σ_p lhs[row, p] · w(g, p, j)
  double element(std::int64_t row, std::int64_t g, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t p = 0; p < k; ++p)
      sum += a[static_cast<std::size_t>(row * k + p)] * b[static_cast<std::size_t>((g * k + p) * n + j)];
    return sum;
  }
};

Made make(DType type, Sizes sizes, std::int64_t k, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Made it;
  it.sizes = std::move(sizes);
  it.k = k, it.n = n, it.m = it.begin(it.groups());
  it.lhs = plain::random(type, {it.m, k}, engine);
  it.rhs = plain::random(type, {it.groups(), k, n}, engine);
  it.a = plain::doubles(it.lhs.view());
  it.b = plain::doubles(it.rhs.view());
  return it;
}

template <class Options>
Against compared(const Array& lhs, const Array& rhs, const Sizes& sizes, const Array& given,
                 Options options) {
  const auto source = plain::source(sizes);
  const GroupedMatmulPlan plan = plain::plan_of(lhs.view(), rhs.view(), *source, options);
  Array own(plan.out().dtype, plan.out().shape);
  plan.run(lhs.view(), rhs.view(), options.existing_out, own.mutable_view());
  return compare_results(plan, lhs.view(), rhs.view(), options.existing_out, own.view(), given.view(),
                         Explain::yes);
}

// The kinds and texts that are given for a result made by f(row, column).
std::string explanation(const Made& it, DType result,
                        const std::function<double(std::int64_t, std::int64_t)>& f,
                        GroupedMatmulOptions options = {}) {
  Matrix values;
  for (std::int64_t i = 0; i < it.m; ++i)
    for (std::int64_t j = 0; j < it.n; ++j) values.push_back(f(i, j));
  options.dtype = result;
  const Array given = plain::array_of(result, {it.m, it.n}, values);
  const Against against = compared(it.lhs, it.rhs, it.sizes, given, options);
  CHECK_FALSE(against.agrees());
  std::string text;
  for (const Explanation& e : against.explanations) {
    CHECK(e.share_explained > 0);
    CHECK(e.share_explained <= 1.000001);
    text += e.kind + ": " + e.text + "; ";
  }
  return text;
}

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("told: '", text, "', wanted: '", part, "'");
  return found;
}

}  // namespace

TEST_CASE("mistakes of grouped products are named, in several shapes and types") {
  struct Case {
    DType type, result;
    Sizes sizes;
    std::int64_t k, n;
  };
  for (const Case& c : {Case{DType::float32, DType::float32, {20, 31, 0, 14, 9, 26}, 24, 24},
                        Case{DType::bfloat16, DType::bfloat16, {33, 40, 17, 60, 8, 21}, 48, 20},
                        Case{DType::bfloat16, DType::float32, {5, 70, 3, 44, 19, 12}, 100, 36}}) {
    CAPTURE(name_of(c.type));
    CAPTURE(c.k);
    const Made it = make(c.type, c.sizes, c.k, c.n, 51);
    const auto told = [&](auto f) { return explanation(it, c.result, f); };
    const auto with = [&](auto group_of) {
      return told([&](std::int64_t i, std::int64_t j) { return it.element(i, group_of(i), j); });
    };
    const auto right = [&](std::int64_t i, std::int64_t j) { return it.element(i, it.group(i), j); };
    CHECK(has(with([&](std::int64_t i) { return it.group(std::min(i + 1, it.m - 1)); }),
              "boundary: rows take the weights of the row after"));
    CHECK(has(with([&](std::int64_t i) { return it.group(std::max<std::int64_t>(i - 1, 0)); }),
              "boundary: rows take the weights of the row before"));
    // One boundary alone.
    CHECK(has(with([&](std::int64_t i) { return i == it.begin(4) ? std::int64_t{3} : it.group(i); }),
              "one row late in group 4"));
    // Further off: five rows.
    CHECK(has(with([&](std::int64_t i) { return it.group(std::min(i + 5, it.m - 1)); }),
              "weights of the next group"));
    CHECK(has(with([&](std::int64_t i) {
                const std::int64_t g = it.group(i);
                return g == 1 ? std::int64_t{4} : g == 4 ? std::int64_t{1} : g;
              }),
              "exchanged: groups 1 and 4 hold the weights of each other"));
    CHECK(has(with([&](std::int64_t) { return std::int64_t{0}; }), "repeated: groups"));
    CHECK(has(told([&](std::int64_t i, std::int64_t j) {
                double sum = 0;  // the memory of (k, n) read as (n, k)
                for (std::int64_t p = 0; p < it.k; ++p)
                  sum += it.a[static_cast<std::size_t>(i * it.k + p)] *
                         it.b[static_cast<std::size_t>(it.group(i) * it.k * it.n + j * it.k + p)];
                return sum;
              }),
              "transposed"));
    // The halves of bytes exchanged, where the contraction is the last axis of packed weights.
    CHECK(has(told([&](std::int64_t i, std::int64_t j) {
                double sum = 0;
                for (std::int64_t p = 0; p < it.k; ++p)
                  sum += it.a[static_cast<std::size_t>(i * it.k + p)] *
                         it.b[static_cast<std::size_t>((it.group(i) * it.k + (p ^ 1)) * it.n + j)];
                return sum;
              }),
              "nibbles: neighbours along the contraction are exchanged"));
    // A global scale that divides where it multiplies: another factor for each group.
    CHECK(has(told([&](std::int64_t i, std::int64_t j) {
                return right(i, j) * std::pow(1e3 + 37 * static_cast<double>(it.group(i)), 2);
              }),
              "factor: each group has a factor of its own"));
    // The last rows of a group were never written; and a tile of columns.
    const std::string missing = told([&](std::int64_t i, std::int64_t j) {
      return it.group(i) == 1 && i >= it.begin(2) - 3 ? 0 : right(i, j);
    });
    CHECK(has(missing, "unwritten: elements are 0, as if never written in group 1, rows"));
    // Two mistakes at once: groups exchanged, and a tile of another one never written.
    const std::string both = told([&](std::int64_t i, std::int64_t j) {
      const std::int64_t g = it.group(i);
      if (g == 3 && j < 8) return 0.0;
      return it.element(i, g == 1 ? 4 : g == 4 ? 1 : g, j);
    });
    CHECK(has(both, "groups 1 and 4 hold the weights of each other"));
    CHECK(has(both, ", columns 0-7"));
    CHECK(has(told([&](std::int64_t i, std::int64_t j) { return 2 * right(i, j); }),
              "factor: 2 times what it should be"));
    CHECK(has(told([&](std::int64_t i, std::int64_t j) { return -right(i, j); }),
              "factor: -1 times what it should be"));
    CHECK(has(told([&](std::int64_t i, std::int64_t j) {
                return i + 1 < it.m ? it.element(i + 1, it.group(i), j) : right(i, j);
              }),
              "shifted: each row is made of the row after"));
    CHECK(has(told([&](std::int64_t i, std::int64_t j) {
                double sum = 0;
                for (std::int64_t p = 0; p < it.k / 16 * 16; ++p)
                  sum += it.a[static_cast<std::size_t>(i * it.k + p)] *
                         it.b[static_cast<std::size_t>((it.group(i) * it.k + p) * it.n + j)];
                return it.k % 16 == 0 ? 2 * right(i, j) : sum;
              }),
              it.k % 16 == 0 ? "factor" : "cut_short"));
  }
}

TEST_CASE("a factor of each row is named in every type, not one of a group") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16})
    for (std::uint64_t seed = 71; seed < 76; ++seed) {
      CAPTURE(name_of(type));
      CAPTURE(seed);
      const Made it = make(type, {33, 40, 0, 60, 8, 21}, 48, 40, seed);
      std::mt19937_64 engine(seed);
      std::uniform_real_distribution<double> uniform(0, 1);
      std::vector<double> factors, scales;
      for (std::int64_t i = 0; i < it.m; ++i) {
        factors.push_back(2 * uniform(engine));
        scales.push_back(0.006 + 0.002 * uniform(engine));
      }
      const auto right = [&](std::int64_t i, std::int64_t j) { return it.element(i, it.group(i), j); };
      for (const auto& of : {factors, scales}) {
        const std::string told = explanation(
            it, type, [&](auto i, auto j) { return right(i, j) * of[static_cast<std::size_t>(i)]; });
        CHECK(has(told, "factor: each row has a factor of its own, of some rows from "));
        CHECK(told.find("; ") == told.size() - 2);
      }
      CHECK(
          has(explanation(it, type,
                          [&](auto i, auto j) { return right(i, j) * static_cast<double>(2 + it.group(i)); }),
              "factor: each group has a factor of its own"));
    }
}

TEST_CASE("mistakes in a few of 256 groups are found, each in its groups") {
  for (const DType type : {DType::float32, DType::bfloat16}) {
    CAPTURE(name_of(type));
    std::mt19937_64 engine(61);
    Sizes sizes;
    for (int g = 0; g < 256; ++g) sizes.push_back(1 + static_cast<std::int64_t>(engine() % 6));
    const Made it = make(type, sizes, 12, 16, 62);
    std::vector<std::int64_t> group_of;
    for (std::size_t g = 0; g < sizes.size(); ++g)
      group_of.insert(group_of.end(), static_cast<std::size_t>(sizes[g]), static_cast<std::int64_t>(g));
    const auto told = [&](const std::function<double(std::int64_t i, std::int64_t g, std::int64_t j)>& f) {
      return explanation(it, type, [&](std::int64_t i, std::int64_t j) {
        return f(i, group_of[static_cast<std::size_t>(i)], j);
      });
    };
    const auto exchanged = [](std::int64_t g) { return g == 3 ? 201 : g == 201 ? 3 : g; };
    CHECK(told([&](auto i, auto g, auto j) { return it.element(i, exchanged(g), j); }) ==
          "exchanged: groups 3 and 201 hold the weights of each other; ");
    CHECK(has(told([&](auto i, auto g, auto j) { return it.element(i, i == it.begin(77) ? 76 : g, j); }),
              "one row late in group 77; "));
    CHECK(has(
        told([&](auto i, auto g, auto j) { return it.element(i, std::min<std::int64_t>(g + 1, 255), j); }),
        "boundary: rows take the weights of the next group; "));
    // All of these, and one group that was never written.
    const std::string all = told([&](auto i, auto g, auto j) {
      return g == 140 ? 0 : it.element(i, i == it.begin(77) ? 76 : exchanged(g), j);
    });
    CHECK(has(all, "exchanged: groups 3 and 201 hold the weights of each other; "));
    CHECK(has(all, "one row late in group 77; "));
    CHECK(has(all, "unwritten: elements are 0, as if never written in group 140, rows "));
    // The same in noise everywhere else.
    std::normal_distribution<double> normal;
    CHECK(told([&](auto i, auto g, auto j) {
            return exchanged(g) != g ? it.element(i, exchanged(g), j) : normal(engine);
          }) == "exchanged: groups 3 and 201 hold the weights of each other; ");
  }
}

TEST_CASE("rows of no group, and groups without rows, that were never written are recognized") {
  Made longer = make(DType::float32, {12, 20, 8}, 16, 12, 63);
  std::mt19937_64 engine(64);
  std::normal_distribution<double> normal;
  longer.lhs = plain::random(DType::float32, {50, 16}, engine);
  longer.a = plain::doubles(longer.lhs.view());
  longer.m = 50;
  const auto right = [&](std::int64_t i, std::int64_t j) {
    return i < 40 ? longer.element(i, longer.group(i), j) : 0;
  };
  CHECK(explanation(longer, DType::float32, [&](auto i, auto j) {
          return i < 40 ? right(i, j) : normal(engine);
        }) == "unwritten: rows of no group hold what was there before, as if never written; ");
  CHECK(explanation(longer, DType::float32, [&](auto i, auto j) {
          return i < 43 ? right(i, j) : std::nan("");
        }) == "unwritten: rows of no group hold what was there before, as if never written; ");
  const std::string both = explanation(
      longer, DType::float32, [&](auto i, auto j) { return i < 40 ? 2 * right(i, j) : normal(engine); });
  CHECK(has(both, "factor: row 0 to 39: 2 times what it should be; "));
  CHECK(has(both, "unwritten: rows of no group hold what was there before"));

  const Array lhs = plain::random(DType::float32, {10, 30}, engine),
              rhs = plain::random(DType::float32, {30, 9}, engine);
  Array given = transposed_grouped_matmul(lhs.view(), rhs.view(), *plain::source({12, 0, 18}));
  for (std::size_t n = 90; n < 180; ++n) given.elements<float>()[n] = static_cast<float>(normal(engine));
  const Against against = compared(lhs, rhs, {12, 0, 18}, given, TransposedGroupedMatmulOptions{});
  REQUIRE(against.explanations.size() == 1);
  CHECK(against.explanations[0].text ==
        "groups without rows hold what was there before, as if never written");
}

TEST_CASE("rounding of the factors and of the result is recognized") {
  const Made it = make(DType::float32, {30, 50}, 70, 16, 52);
  const auto product = [&](auto round_factor, auto round_sum) {
    return explanation(it, DType::float32, [&](std::int64_t i, std::int64_t j) {
      double sum = 0;
      for (std::int64_t p = 0; p < it.k; ++p)
        sum += round_factor(it.a[static_cast<std::size_t>(i * it.k + p)]) *
               round_factor(it.b[static_cast<std::size_t>((it.group(i) * it.k + p) * it.n + j)]);
      return round_sum(sum);
    });
  };
  const auto exact = [](double x) { return x; };
  const auto bf16 = [](double x) {
    return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(x))));
  };
  const auto f16 = [](double x) {
    return static_cast<double>(static_cast<float>(float16(static_cast<float>(x))));
  };
  CHECK(has(product(bf16, exact), "rounding: lhs and rhs are rounded to bfloat16"));
  CHECK(has(product(f16, exact), "rounding: lhs and rhs are rounded to float16 or TF32"));
  CHECK(has(product(exact, bf16), "rounding: rounded to bfloat16"));
}

TEST_CASE("what becomes of existing_out, and the group offset") {
  const Made it = make(DType::float32, {12, 20, 8, 30}, 16, 12, 53);
  std::mt19937_64 engine(7);
  const Array old = plain::random(DType::float32, {it.m, it.n}, engine);
  const auto there = plain::doubles(old.view());
  const auto was = [&](std::int64_t i, std::int64_t j) {
    return there[static_cast<std::size_t>(i * it.n + j)];
  };
  const auto right = [&](std::int64_t i, std::int64_t j) { return it.element(i, it.group(i), j); };
  GroupedMatmulOptions add;
  add.existing_out = old.view();
  add.existing = Existing::add;
  CHECK(has(explanation(it, DType::float32, right, add), "existing: existing_out is not added"));
  CHECK(has(explanation(
                it, DType::float32, [&](auto i, auto j) { return right(i, j) + 2 * was(i, j); }, add),
            "existing: existing_out is added twice"));
  GroupedMatmulOptions keep = add;
  keep.existing = Existing::keep;
  CHECK(has(explanation(
                it, DType::float32, [&](auto i, auto j) { return right(i, j) + was(i, j); }, keep),
            "existing: existing_out is added where"));

  // rhs of groups 1 and 2 alone; rows of the others keep what was there.
  Made part = make(DType::float32, {12, 20, 8, 30}, 16, 12, 53);
  part.rhs = Array::copy_of({it.rhs.data() + 16 * 12 * 4, DType::float32, {2, 16, 12}});
  keep.group_offset = 1;
  CHECK(has(explanation(
                part, DType::float32,
                [&](auto i, auto j) { return it.group(i) == 1 || it.group(i) == 2 ? right(i, j) : 0; }, keep),
            "existing: existing_out is not kept"));
  CHECK(
      has(explanation(
              part, DType::float32,
              [&](auto i, auto j) { return it.group(i) < 2 ? it.element(i, it.group(i) + 1, j) : was(i, j); },
              keep),
          "group_offset"));
}

TEST_CASE("mistakes of transposed grouped products are named") {
  for (const DType type : {DType::float32, DType::bfloat16}) {
    std::mt19937_64 engine(54);
    const Sizes sizes{9, 14, 0, 21, 6};
    const std::int64_t m = 50, k = 18, n = 18;
    const Array lhs = plain::random(type, {k, m}, engine), rhs = plain::random(type, {m, n}, engine);
    const auto a = plain::doubles(lhs.view()), b = plain::doubles(rhs.view());
    const std::vector<std::int64_t> begin{0, 9, 23, 23, 44, 50};
    const auto sum = [&](std::int64_t from, std::int64_t to, std::int64_t i, std::int64_t j) {
      double all = 0;
      for (std::int64_t r = from; r < to; ++r)
        all += a[static_cast<std::size_t>(i * m + r)] * b[static_cast<std::size_t>(r * n + j)];
      return all;
    };
    const auto told = [&](const std::function<double(std::size_t, std::int64_t, std::int64_t)>& f) {
      Matrix values;
      for (std::size_t g = 0; g < sizes.size(); ++g)
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t j = 0; j < n; ++j) values.push_back(f(g, i, j));
      TransposedGroupedMatmulOptions options;
      const Against against =
          compared(lhs, rhs, sizes, plain::array_of(DType::float32, {5, k, n}, values), options);
      std::string text;
      for (const Explanation& e : against.explanations) text += e.kind + ": " + e.text + "; ";
      return text;
    };
    CHECK(has(told([&](auto g, auto i, auto j) { return sum(begin[g] + (g == 3), begin[g + 1], i, j); }),
              "boundary: a group begins one row late and ends where it should in group 3"));
    CHECK(has(told([&](auto g, auto i, auto j) {
                const std::size_t other = g == 0 ? 3 : g == 3 ? 0 : g;
                return sum(begin[other], begin[other + 1], i, j);
              }),
              "exchanged: groups 0 and 3 hold the product of each other"));
    CHECK(has(told([&](auto g, auto i, auto j) { return sum(0, begin[g + 1], i, j); }),
              "accumulated: sums go on"));
    CHECK(has(told([&](auto, auto i, auto j) { return sum(0, 50, i, j); }),
              "accumulated: each group holds the sum over all rows"));
    CHECK(has(told([&](auto g, auto i, auto j) {
                return sum(begin[g], begin[g] + (begin[g + 1] - begin[g]) / 8 * 8, i, j);
              }),
              "cut_short"));
  }
}

TEST_CASE("noise gets no explanation") {
  std::mt19937_64 engine(55);
  std::normal_distribution<double> normal;
  for (int n = 0; n < 120; ++n) {
    CAPTURE(n);
    const DType type = n % 2 == 0 ? DType::float32 : DType::bfloat16;
    const DType result = n % 4 < 2 ? type : DType::float32;
    const Made it =
        make(type, {20, 31, 14, 9}, n % 3 == 0 ? 24 : 17, 24, 100 + static_cast<std::uint64_t>(n));
    // Of bfloat16 results small noise is what rounding does.
    const double size = std::pow(10, result == DType::bfloat16 ? -(n % 2) : -(n % 4));
    const bool relative = n % 5 < 2, alone = n % 7 == 0;
    CHECK(explanation(it, result, [&](std::int64_t i, std::int64_t j) {
            const double right = it.element(i, it.group(i), j), noise = size * normal(engine);
            return alone ? normal(engine) : relative ? right * (1 + noise) : right + noise;
          }) == "");
  }
}
