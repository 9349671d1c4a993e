// Grouped products: golden cases; random ones against the reference; memory that must not be written.
#include "ejk/grouped_matmul.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <limits>

#include "core/axis.hpp"
#include "ejk/matmul_check.hpp"
#include "kernels/kernels.hpp"
#include "support/failure.hpp"
#include "support/instruction_sets.hpp"
#include "support/matmul.hpp"

using namespace ejk;
using plain::failure;
using plain::kNan;
using plain::Lengths;
using plain::Sizes;

namespace {

// Calls check() with the kernels of each instruction set that this machine has.
template <class F>
void on_every_instruction_set(F&& check) {
  for (const kernels::Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    kernels::force(row);
    check();
  }
  kernels::force(nullptr);
}

// Into memory that holds NaN before.
template <class Options>
Array multiply(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& sizes, const Options& options) {
  const GroupedMatmulPlan plan = plain::plan_of(lhs, rhs, sizes, options);
  Array out = plain::filled(options.dtype, plan.out().shape, kNan);
  plan.run(lhs, rhs, options.existing_out, out.mutable_view(), options.progress);
  return out;
}

Array multiply(const ArrayView& lhs, const ArrayView& rhs, const ArraySource& sizes) {
  return multiply(lhs, rhs, sizes, GroupedMatmulOptions{});
}

// Empty where every element is what the plain evaluation gives, which has a test of its own.
template <class Options = GroupedMatmulOptions>
std::string wrong(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes,
                  const Options& options = {}) {
  const auto source = plain::source(sizes);
  const Array out = multiply(lhs, rhs, *source, options);
  const MatmulCheck check =
      check_results(plain::plan_of(lhs, rhs, *source, options), lhs, rhs, options.existing_out, out.view());
  return check.passed() && check.compared == check.elements ? "" : to_text(describe(check));
}

// --- golden cases

// Whether a sum of `depth` products with Σ |a|·|b| = `magnitude` is right, of factors no wider than float32
// or else float64: the tolerance that stands with the golden files.
bool is_near(double value, double reference, double magnitude, std::int64_t depth, DType result,
             bool wide = false) {
  if (std::isnan(reference)) return std::isnan(value);
  if (std::isinf(reference)) return value == reference;
  const double epsilon = result == DType::float16    ? 0x1p-10
                         : result == DType::bfloat16 ? 0x1p-7
                         : result == DType::float32  ? 0x1p-23
                                                     : 0x1p-52;
  const double least = result == DType::float16 ? 0x1p-25 : result == DType::float64 ? 0 : 0x1p-126;
  const double allowed =
      std::max<double>(64, static_cast<double>(depth)) * (wide ? 0x1p-53 : 0x1p-24) * magnitude +
      epsilon * std::abs(reference) + least;
  if (std::isinf(value) && result == DType::float16)
    return std::abs(reference) + allowed >= 65520 && std::signbit(value) == std::signbit(reference);
  return std::abs(value - reference) <= allowed;
}

// Length of the sum that an element is.
std::int64_t longest_sum(const golden::Case& c, bool transposed) {
  if (!transposed) return c.in.at("lhs").shape()[1];
  const auto sizes = plain::doubles(c.in.at("group_sizes").view());
  return sizes.empty() ? 0 : static_cast<std::int64_t>(*std::max_element(sizes.begin(), sizes.end()));
}

void check_values(const Array& got, const golden::Case& c, bool transposed) {
  const Array& expected = c.out.at("out");
  CHECK(name_of(got.dtype()) == name_of(expected.dtype()));
  REQUIRE(to_string(got.shape()) == to_string(expected.shape()));
  const auto values = plain::doubles(got.view()), original = plain::doubles(expected.view()),
             reference = plain::doubles(c.out.at("out_float64").view()),
             magnitude = plain::doubles(c.out.at("abs_dot").view());
  const std::int64_t depth = longest_sum(c, transposed);
  std::int64_t near = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    near += is_near(values[i], reference[i], magnitude[i], depth, got.dtype());
  CHECK(near == got.size());
  if (c.name.find("integers") != std::string::npos) CHECK(plain::same_bytes(got, expected));
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(original[i]) || original[i] == 0)
      CHECK((std::isnan(original[i]) ? std::isnan(values[i]) : values[i] == original[i]));
}

template <class How>
void check_family(const std::string& family, Existing existing = Existing::keep) {
  constexpr bool transposed = std::is_same_v<How, TransposedGroupedMatmulOptions>;
  for (const golden::Case& c : golden::load(family)) {
    CAPTURE(family);
    CAPTURE(c.name);
    How how = golden::options_of<How>(c);
    if constexpr (!transposed) how.existing = existing;
    const ArrayView lhs = c.in.at("lhs").view(), rhs = c.in.at("rhs").view();
    const auto sizes = make_source(c.in.at("group_sizes").view(), "group_sizes");
    if (c.is_error) {
      CHECK_THROWS_AS(multiply(lhs, rhs, *sizes, how), Error);
      continue;
    }
    check_values(multiply(lhs, rhs, *sizes, how), c, transposed);
    how.tiling.reset();
    check_values(multiply(lhs, rhs, *sizes, how), c, transposed);
  }
}

void check_golden() {
  check_family<GroupedMatmulOptions>("grouped_matmul");
  check_family<GroupedMatmulOptions>("grouped_matmul_ejkernel_xla", Existing::add);
  check_family<TransposedGroupedMatmulOptions>("transposed_grouped_matmul");
}

// --- random products

// All types, mixed; shards, both uses of existing_out, transposed matrices, strides, tilings.
void check_random_grouped(std::uint64_t seed, const std::vector<Lengths>& all) {
  std::mt19937_64 engine(seed);
  for (const Lengths& lengths : all)
    for (const DType left : plain::kFloats)
      for (const DType right : plain::kFloats) {
        const std::int64_t m = lengths.m, k = lengths.k, n = lengths.n;
        const auto groups = static_cast<std::int64_t>(engine() % 6 + 1);
        const Sizes sizes = plain::random_sizes(groups, m, engine() % 2 == 0, engine);
        GroupedMatmulOptions options;
        options.dtype = plain::kFloats[engine() % 4];
        options.group_offset = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(groups + 1));
        const auto matrices = static_cast<std::int64_t>(
            engine() % static_cast<std::uint64_t>(groups - options.group_offset + 1));
        options.transpose_rhs = engine() % 2 == 0;
        if (engine() % 2 == 0)
          options.tiling = Tiling{static_cast<std::int64_t>(engine() % 70 + 1),
                                  static_cast<std::int64_t>(engine() % 70 + 1),
                                  static_cast<std::int64_t>(engine() % 70 + 1)};
        const Array lhs = plain::random(left, {m, k}, engine);
        const Array rhs = options.transpose_rhs ? plain::random(right, {matrices, n, k}, engine)
                                                : plain::random(right, {matrices, k, n}, engine);
        const plain::Laid a(lhs, static_cast<int>(engine() % 4)), b(rhs, static_cast<int>(engine() % 4));
        const Array old = plain::random(options.dtype, {m, n}, engine);
        const plain::Laid there(old, static_cast<int>(engine() % 4));
        if (engine() % 2 == 0) options.existing_out = there.view();
        if (engine() % 2 == 0) options.existing = Existing::add;
        CAPTURE(m);
        CAPTURE(k);
        CAPTURE(n);
        CAPTURE(name_of(left));
        CAPTURE(name_of(right));
        CAPTURE(name_of(options.dtype));
        CHECK(wrong(a.view(), b.view(), sizes, options) == "");
      }
}

void check_random_transposed(std::uint64_t seed, const std::vector<Lengths>& all) {
  std::mt19937_64 engine(seed);
  for (const Lengths& lengths : all)
    for (const DType left : plain::kFloats)
      for (const DType right : plain::kFloats) {
        const std::int64_t m = lengths.m, k = lengths.k, n = lengths.n;
        const auto groups = static_cast<std::int64_t>(engine() % 6 + 1);
        const Sizes sizes = plain::random_sizes(groups, m, engine() % 2 == 0, engine);
        TransposedGroupedMatmulOptions options;
        options.dtype = plain::kFloats[engine() % 4];
        options.group_offset = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(groups + 1));
        std::int64_t computed = groups - options.group_offset;
        if (engine() % 2 == 0) {
          computed = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(computed + 1));
          options.num_actual_groups = computed;
        }
        if (engine() % 2 == 0)
          options.tiling = Tiling{static_cast<std::int64_t>(engine() % 70 + 1),
                                  static_cast<std::int64_t>(engine() % 70 + 1),
                                  static_cast<std::int64_t>(engine() % 70 + 1)};
        const Array lhs = plain::random(left, {k, m}, engine), rhs = plain::random(right, {m, n}, engine);
        const plain::Laid a(lhs, static_cast<int>(engine() % 4)), b(rhs, static_cast<int>(engine() % 4));
        const Array old = plain::random(options.dtype, {computed, k, n}, engine);
        const plain::Laid there(old, static_cast<int>(engine() % 4));
        if (engine() % 2 == 0) options.existing_out = there.view();
        CAPTURE(m);
        CAPTURE(k);
        CAPTURE(n);
        CAPTURE(name_of(left));
        CAPTURE(name_of(right));
        CAPTURE(name_of(options.dtype));
        CHECK(wrong(a.view(), b.view(), sizes, options) == "");
      }
}

// Lengths of 0 and 1, around the blocks that kernels like, and some that no block divides.
std::vector<Lengths> lengths_of_all_kinds() {
  std::vector<Lengths> all;
  for (const std::int64_t m : {0, 1, 7})
    for (const std::int64_t k : {0, 1, 33})
      for (const std::int64_t n : {0, 1, 50}) all.push_back({m, k, n});
  for (const Lengths& lengths : std::initializer_list<Lengths>{{64, 64, 64},
                                                               {65, 31, 17},
                                                               {128, 100, 48},
                                                               {47, 257, 95},
                                                               {96, 32, 130},
                                                               {200, 5, 3},
                                                               {3, 700, 70}})
    all.push_back(lengths);
  return all;
}

// The factors by which kernels differ, for every length of the contraction; what is expected grows with it.
void check_every_depth() {
  constexpr std::int64_t kMost = 300, m = 37, n = 29, before = 5;
  std::mt19937_64 engine(3);
  for (const auto& factors : std::vector<std::pair<DType, DType>>{{DType::float32, DType::float32},
                                                                  {DType::bfloat16, DType::bfloat16},
                                                                  {DType::float64, DType::float64},
                                                                  {DType::float16, DType::bfloat16}}) {
    const DType left = factors.first, right = factors.second;
    // The same numbers for both products: lhs · rhs, and as the second group of rows behind another one.
    const Array lhs = plain::random(left, {m, before + kMost}, engine);
    const Array rhs = plain::random(right, {1, before + kMost, n}, engine);
    const auto a = plain::doubles(lhs.view()), b = plain::doubles(rhs.view());
    std::vector<long double> sums(m * n);
    std::vector<double> magnitudes(m * n);
    for (std::int64_t k = 1; k <= kMost; ++k) {
      CAPTURE(k);
      CAPTURE(name_of(left));
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<std::size_t>(i * n + j);
          const double x = a[static_cast<std::size_t>(i * (before + kMost) + before + k - 1)],
                       y = b[static_cast<std::size_t>((before + k - 1) * n + j)];
          sums[at] += static_cast<long double>(x) * y;
          magnitudes[at] += std::abs(x * y);
        }
      ArrayView whole = lhs.view(), rows = rhs.view()[0];
      whole.shape[1] = rows.shape[0] = before + k;
      ArrayView part = whole, matrix = rhs.view();
      part.data += before * size_of(left), matrix.data += before * n * size_of(right);
      part.shape[1] = matrix.shape[1] = k;
      const auto all_near = [&](const Array& out) {
        const auto values = plain::doubles(out.view());
        for (std::size_t i = 0; i < values.size(); ++i)
          if (!is_near(values[i], static_cast<double>(sums[i]), magnitudes[i], k, out.dtype(),
                       left == DType::float64))
            return false;
        return values.size() == sums.size();
      };
      CHECK(all_near(multiply(part, matrix, *plain::source({m}))));
      TransposedGroupedMatmulOptions second;
      second.group_offset = 1;
      CHECK(all_near(multiply(whole, rows, *plain::source({before, k}), second)));
    }
  }
}

// Elements of no computed group are NaN; each group's own are not seen by the others.
void check_nothing_else_is_read() {
  std::mt19937_64 engine(4);
  const Sizes sizes{10, 0, 33, 7, 40};  // and 10 rows of none
  for (const DType dtype : plain::kFloats) {
    CAPTURE(name_of(dtype));
    Array lhs = plain::filled(dtype, {100, 35}, kNan), rhs = plain::random(dtype, {2, 35, 19}, engine);
    const Array middle = plain::random(dtype, {40, 35}, engine);
    std::copy_n(middle.data(), middle.bytes(), lhs.data() + 10 * 35 * size_of(dtype));
    GroupedMatmulOptions options;
    options.group_offset = 2;  // rows 10 to 49
    CHECK(wrong(lhs.view(), rhs.view(), sizes, options) == "");
    const auto values =
        plain::doubles(multiply(lhs.view(), rhs.view(), *plain::source(sizes), options).view());
    CHECK(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }));

    TransposedGroupedMatmulOptions how;
    how.group_offset = 2;
    how.num_actual_groups = 2;
    Array a = plain::filled(dtype, {35, 100}, kNan), b = plain::filled(dtype, {100, 19}, kNan);
    const auto inner = plain::random(dtype, {35, 40}, engine), rows = plain::random(dtype, {40, 19}, engine);
    for (std::int64_t p = 0; p < 35; ++p)
      std::copy_n(inner.data() + p * 40 * size_of(dtype), 40 * size_of(dtype),
                  a.data() + (p * 100 + 10) * size_of(dtype));
    std::copy_n(rows.data(), rows.bytes(), b.data() + 10 * 19 * size_of(dtype));
    CHECK(wrong(a.view(), b.view(), sizes, how) == "");
    const auto gradient = plain::doubles(multiply(a.view(), b.view(), *plain::source(sizes), how).view());
    CHECK(std::all_of(gradient.begin(), gradient.end(), [](double v) { return std::isfinite(v); }));

    // A matrix of NaN or infinities is its group's alone.
    for (const double bad : {kNan, std::numeric_limits<double>::infinity()}) {
      const Array left = plain::random(dtype, {90, 35}, engine);
      Array right = plain::random(dtype, {5, 35, 19}, engine);
      const Array poison = plain::filled(dtype, {35, 19}, bad);
      std::copy_n(poison.data(), poison.bytes(), right.data() + 2 * poison.bytes());
      const Array out = multiply(left.view(), right.view(), *plain::source(sizes));
      const auto v = plain::doubles(out.view());
      bool right_place = true;
      for (std::size_t i = 0; i < v.size(); ++i)
        right_place = right_place && std::isfinite(v[i]) == (i / 19 < 10 || i / 19 >= 43);
      CHECK(right_place);
    }
  }
}

void check_boxes() {
  std::mt19937_64 engine(8);
  const Sizes sizes{5, 0, 120, 7, 30};
  const auto sizes_source = plain::source(sizes);
  struct Types {
    DType left, right;
  };
  struct Lengths {
    std::int64_t k, n;
  };
  for (const Types& types : {Types{DType::float32, DType::float32}, Types{DType::bfloat16, DType::bfloat16},
                             Types{DType::float16, DType::float64}})
    for (const bool transposed : {false, true})
      for (const Lengths& lengths : {Lengths{700, 75}, Lengths{65, 1100}, Lengths{33, 3}, Lengths{1, 40},
                                     Lengths{40, 1}, Lengths{0, 20}}) {
        const DType left = types.left, right = types.right;
        const std::int64_t k = lengths.k, n = lengths.n;
        CAPTURE(name_of(right));
        CAPTURE(transposed);
        CAPTURE(k);
        CAPTURE(n);
        const Array lhs = plain::random(left, {170, k}, engine);
        const Array rhs = plain::random(right, transposed ? Shape{5, n, k} : Shape{5, k, n}, engine);
        GroupedMatmulOptions options;
        options.transpose_rhs = transposed;
        const Array whole = multiply(lhs.view(), rhs.view(), *sizes_source, options);
        std::array<std::atomic<bool>, 5> is_read{};
        const ArrayView elements = rhs.view();
        const auto boxes = generated_source({right, rhs.shape()}, "rhs",
                                            [&](const auto& start, const auto& count, void* out) {
                                              for (std::int64_t i = 0; i < count[0]; ++i)
                                                is_read[static_cast<std::size_t>(start[0] + i)] = true;
                                              copy_elements(box_of(elements, start, count), out);
                                            });
        const GroupedMatmulPlan plan = plain::plan_of(lhs.view(), elements, *sizes_source, options);
        std::vector<std::vector<ArrayBox>> cuts = plan.divide(3);
        cuts.push_back({whole_box(plan.out().shape)});
        for (const std::vector<ArrayBox>& of_rank : cuts)
          for (const ArrayBox& box : of_rank) {
            Array part = plain::filled(options.dtype, box.count, kNan);
            plan.run(box, box_of(lhs.view(), plan.needs(box).lhs), *boxes, std::nullopt, part.mutable_view());
            CHECK(plain::same_bytes(part, Array::copy_of(box_of(whole.view(), box))));
          }
        CHECK(is_read[0] == (k > 0));
        CHECK(!is_read[1]);
      }
}

// The group of each row, among them rows of none; of few rows some groups have none.
Sizes random_labels(std::int64_t groups, std::int64_t most, std::mt19937_64& engine) {
  Sizes labels;
  for (std::int64_t g = 0; g < groups; ++g) {
    if (engine() % 2 == 0) labels.insert(labels.end(), engine() % 5, -1);
    if (engine() % 4 != 0) labels.insert(labels.end(), engine() % static_cast<std::uint64_t>(most), g);
  }
  labels.insert(labels.end(), engine() % 3, -1);
  return labels;
}

template <class F>
void each_index(const Shape& shape, F&& f) {
  for (std::int64_t i = 0; i < element_count(shape); ++i) f(core::index_of(shape, i));
}

// Of small integers, so that all sums are exact: the whole product, and boxes of any partition among ranks.
template <class Options, class Expected>
void check_labels(const Array& lhs, const Array& rhs, const Sizes& labels, Options options,
                  const Expected& expected) {
  options.groups = GroupsGiven::row_groups;
  const auto source = plain::source(labels);
  const GroupedMatmulPlan plan = plain::plan_of(lhs.view(), rhs.view(), *source, options);
  const auto values = plain::doubles(multiply(lhs.view(), rhs.view(), *source, options).view());
  std::size_t at = 0;
  bool all_equal = true;
  each_index(plan.out().shape,
             [&](const Shape& index) { all_equal = all_equal && values[at++] == expected(index); });
  CHECK(all_equal);
  for (const std::int64_t ranks : {1, 2, 5})
    for (const std::vector<ArrayBox>& of_rank : plan.divide(ranks))
      for (const ArrayBox& box : of_rank) {
        const GroupedMatmulNeeds needs = plan.needs(box);
        Array part = plain::filled(options.dtype, box.count, kNan);
        std::optional<ArrayView> old;
        if (options.existing_out) old = box_of(*options.existing_out, box);
        plan.run(box, box_of(lhs.view(), needs.lhs), box_of(rhs.view(), needs.rhs), old, part.mutable_view());
        bool same = true;
        std::size_t i = 0;
        const auto of_part = plain::doubles(part.view());
        each_index(box.count, [&](Shape index) {
          for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.start[d];
          same = same && of_part[i++] == expected(index);
        });
        CHECK(same);
      }
}

Array small_integers(Shape shape, std::mt19937_64& engine) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = static_cast<double>(engine() % 7) - 3;
  return plain::array_of(DType::float32, std::move(shape), values);
}

void check_row_groups() {
  std::mt19937_64 engine(9);
  for (int i = 0; i < 60; ++i) {
    const auto groups = static_cast<std::int64_t>(engine() % 5);
    const Sizes labels = random_labels(groups, i % 3 == 0 ? 90 : 8, engine);
    const auto m = std::ssize(labels), k = static_cast<std::int64_t>(engine() % 40),
               n = static_cast<std::int64_t>(engine() % 90);
    const auto label = [&](std::int64_t row) { return labels[static_cast<std::size_t>(row)]; };
    const auto of = [](const std::vector<double>& values, std::int64_t at) {
      return values[static_cast<std::size_t>(at)];
    };
    CAPTURE(i);

    GroupedMatmulOptions plain_options;
    const auto first = static_cast<std::int64_t>(engine() % 3),
               matrices = static_cast<std::int64_t>(engine() % 6);
    plain_options.group_offset = first;
    const Array lhs = small_integers({m, k}, engine), rhs = small_integers({matrices, k, n}, engine),
                old = small_integers({m, n}, engine);
    if (engine() % 2 == 0) plain_options.existing_out = old.view();
    const auto a = plain::doubles(lhs.view()), b = plain::doubles(rhs.view()), c = plain::doubles(old.view());
    check_labels(lhs, rhs, labels, plain_options, [&](const Shape& at) {
      const std::int64_t g = label(at[0]) - first;
      if (label(at[0]) < 0 || g < 0 || g >= matrices)
        return plain_options.existing_out ? of(c, at[0] * n + at[1]) : 0.0;
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += of(a, at[0] * k + p) * of(b, (g * k + p) * n + at[1]);
      return sum;
    });

    TransposedGroupedMatmulOptions options;
    const std::int64_t largest = m == 0 ? -1 : *std::max_element(labels.begin(), labels.end());
    options.group_offset = std::min(first, largest + 1);
    if (engine() % 2 == 0) options.num_actual_groups = matrices;
    const Array left = small_integers({k, m}, engine), right = small_integers({m, n}, engine);
    const auto x = plain::doubles(left.view()), y = plain::doubles(right.view());
    check_labels(left, right, labels, options, [&](const Shape& at) {
      double sum = 0;
      for (std::int64_t row = 0; row < m; ++row)
        if (label(row) == at[0] + options.group_offset)
          sum += of(x, at[1] * m + row) * of(y, row * n + at[2]);
      return sum;
    });
    const GroupedMatmulPlan plan = [&] {
      options.groups = GroupsGiven::row_groups;
      return plain::plan_of(left.view(), right.view(), *plain::source(labels), options);
    }();
    CHECK(plan.out().shape[0] == (options.num_actual_groups ? matrices : largest + 1 - options.group_offset));
  }
}

}  // namespace

TEST_CASE("golden cases of grouped products") { on_every_instruction_set(check_golden); }

TEST_CASE("grouped products of all types, shapes and options are those of the plain evaluation") {
  on_every_instruction_set([] { check_random_grouped(1, lengths_of_all_kinds()); });
}

TEST_CASE("transposed grouped products of all types, shapes and options are those of the plain evaluation") {
  on_every_instruction_set([] { check_random_transposed(2, lengths_of_all_kinds()); });
}

TEST_CASE("products by the group of each row, whole and in boxes, are those of loops over rows") {
  on_every_instruction_set(check_row_groups);
}

TEST_CASE("every length of the contraction is right") { on_every_instruction_set(check_every_depth); }

TEST_CASE("what belongs to no group that is computed is never read, and NaN stays in its group") {
  on_every_instruction_set(check_nothing_else_is_read);
}

TEST_CASE("rhs read in boxes makes the bits of rhs in memory, and groups without rows are not read") {
  on_every_instruction_set(check_boxes);
}

TEST_CASE("shards fill one result, in any order, within its own memory") {
  std::mt19937_64 engine(6);
  const Sizes sizes{30, 0, 20, 41};
  const Array lhs = plain::random(DType::bfloat16, {100, 64}, engine);
  const Array rhs = plain::random(DType::bfloat16, {4, 64, 40}, engine);
  const Array whole = multiply(lhs.view(), rhs.view(), *plain::source(sizes));
  Array out(DType::float32, {100, 40});
  for (const std::int64_t group : {2, 0, 3, 1}) {
    ArrayView one = rhs.view();
    one.data += group * one.strides[0];
    one.shape[0] = 1;
    GroupedMatmulOptions options;
    options.group_offset = group;
    options.existing_out = out.view();
    plain::plan_of(lhs.view(), one, *plain::source(sizes), options)
        .run(lhs.view(), one, out.view(), out.mutable_view());
  }
  CHECK(plain::same_bytes(out, whole));

  // Added to its own memory: twice the product.
  GroupedMatmulOptions add;
  add.existing_out = out.view();
  add.existing = Existing::add;
  plain::plan_of(lhs.view(), rhs.view(), *plain::source(sizes), add)
      .run(lhs.view(), rhs.view(), out.view(), out.mutable_view());
  const auto once = plain::doubles(whole.view()), twice = plain::doubles(out.view());
  bool doubled = true;
  for (std::size_t i = 0; i < once.size(); ++i)
    doubled = doubled && std::abs(twice[i] - 2 * once[i]) <= 1e-4 * std::abs(once[i]) + 1e-5;
  CHECK(doubled);
}

TEST_CASE("no group, empty groups and a contraction of length 0 give zeros, or what was there") {
  const Array lhs = plain::filled(DType::float32, {3, 0}, 1),
              rhs = plain::filled(DType::float32, {2, 0, 4}, 1);
  const Array old = plain::filled(DType::float32, {3, 4}, 5);
  CHECK(plain::same_bytes(multiply(lhs.view(), rhs.view(), *plain::source({1, 2})),
                          Array(DType::float32, {3, 4})));
  GroupedMatmulOptions options;
  options.existing_out = old.view();
  const auto kept = plain::doubles(multiply(lhs.view(), rhs.view(), *plain::source({1, 1}), options).view());
  CHECK(kept[0] == 0);
  CHECK(kept[8] == 5);
  options.existing = Existing::add;
  CHECK(plain::same_bytes(multiply(lhs.view(), rhs.view(), *plain::source({1, 1}), options), old));

  const Array none(DType::float32, {0, 3, 4}), rows = plain::filled(DType::float32, {3, 3}, 1);
  CHECK(plain::same_bytes(multiply(rows.view(), none.view(), *plain::source({})),
                          Array(DType::float32, {3, 4})));
  const TransposedGroupedMatmulOptions all;
  CHECK(multiply(rows.view(), rows.view(), *plain::source({}), all).shape() == Shape{0, 3, 3});
  CHECK(plain::same_bytes(multiply(rows.view(), rows.view(), *plain::source({0, 0}), all),
                          Array(DType::float32, {2, 3, 3})));
}

TEST_CASE("where nothing is added existing_out stays to the bit, though sums are narrower") {
  const Sizes sizes{2, 0, 1};
  const double third = 1.0 / 3;
  const Array old = plain::filled(DType::float64, {3, 2, 4}, third),
              flat = plain::filled(DType::float64, {3, 4}, third);
  const Array lhs = plain::filled(DType::float32, {2, 3}, 1), rhs = plain::filled(DType::float32, {3, 4}, 1);
  TransposedGroupedMatmulOptions how;
  how.dtype = DType::float64;
  how.existing_out = old.view();
  CHECK(plain::doubles(multiply(lhs.view(), rhs.view(), *plain::source(sizes), how).view())[8] == third);
  GroupedMatmulOptions options;
  options.dtype = DType::float64;
  options.existing_out = flat.view();
  options.existing = Existing::add;
  const Array none(DType::float32, {3, 0}), nothing(DType::float32, {3, 0, 4});
  CHECK(plain::same_bytes(multiply(none.view(), nothing.view(), *plain::source(sizes), options), flat));
}

TEST_CASE("the order of sums is the tiling's, the sums are not") {
  std::mt19937_64 engine(7);
  const Array lhs = plain::random(DType::float32, {50, 200}, engine);
  const Array rhs = plain::random(DType::float32, {2, 200, 60}, engine);
  for (const Tiling& tiling : {Tiling{1, 1, 1}, Tiling{7, 13, 5}, Tiling{50, 200, 60},
                               Tiling{1000, 1000, 1000}, Tiling{INT64_MAX, INT64_MAX, INT64_MAX}}) {
    GroupedMatmulOptions options;
    options.tiling = tiling;
    CHECK(wrong(lhs.view(), rhs.view(), {25, 20}, options) == "");
  }
}

TEST_CASE("what cannot be multiplied is refused with the numbers at fault") {
  const Array lhs(DType::float32, {8, 5}), rhs(DType::float32, {2, 5, 3});
  const auto refused = [&](const Array& a, const Array& b, const Sizes& sizes, GroupedMatmulOptions options,
                           const std::vector<std::string>& words, Error::Kind kind = Error::Kind::input) {
    const std::string message =
        failure([&] { grouped_matmul(a.view(), b.view(), *plain::source(sizes), options); }, kind);
    CAPTURE(message);
    CHECK(message != "no error");
    for (const std::string& word : words) CHECK(message.find(word) != std::string::npos);
    CHECK(failure([&] { plain::plan_of(a.view(), b.view(), *plain::source(sizes), options); }, kind) ==
          message);
  };
  const auto with = [](auto&& change) {
    GroupedMatmulOptions options;
    change(options);
    return options;
  };
  const GroupedMatmulOptions plain_options;
  refused(Array(DType::float32, {8, 6}), rhs, {4, 4}, plain_options, {"6", "5"});
  refused(Array(DType::float32, {1, 8, 5}), rhs, {4, 4}, plain_options, {"lhs"});
  refused(lhs, Array(DType::float32, {5, 3}), {4, 4}, plain_options, {"rhs"});
  refused(Array(DType::int32, {8, 5}), rhs, {4, 4}, plain_options, {"lhs", "int32"});
  refused(lhs, Array(DType::boolean, {2, 5, 3}), {4, 4}, plain_options, {"rhs", "bool"});
  refused(lhs, rhs, {4, 5}, plain_options, {"9", "8"});
  refused(lhs, rhs, {4, -1}, plain_options, {"[1]", "-1"});
  refused(lhs, rhs, {INT64_MAX, INT64_MAX}, plain_options, {"group_sizes"});
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.group_offset = 1; }), {"2", "1"});
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.group_offset = 3; }), {"3", "2"}, Error::Kind::usage);
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.group_offset = -1; }), {"-1"}, Error::Kind::usage);
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.group_offset = INT64_MAX; }), {"2"}, Error::Kind::usage);
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.dtype = DType::int32; }), {"int32"});
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.tiling = Tiling{0, 1, 1}; }), {"1"});
  refused(lhs, rhs, {4, 3}, with([](auto& o) { o.strict = true; }), {"7", "8"});
  refused(lhs, rhs, {4, 4}, with([](auto& o) { o.strict = true, o.tiling = Tiling{3, 1, 1}; }), {"3", "8"});
  const Array narrow(DType::float32, {8, 2}), wide(DType::float64, {8, 3});
  refused(lhs, rhs, {4, 4}, with([&](auto& o) { o.existing_out = narrow.view(); }), {"(8, 2)", "(8, 3)"});
  refused(lhs, rhs, {4, 4}, with([&](auto& o) { o.existing_out = wide.view(); }), {"float64", "float32"});
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  refused(Array(DType::float32, {kBig, 0}), Array(DType::float32, {1, 0, kBig}), {0}, plain_options,
          {"1099511627776"});
}

TEST_CASE("a transposed product that cannot be is refused with the numbers at fault") {
  const Array lhs(DType::float32, {5, 8}), rhs(DType::float32, {8, 3});
  const auto refused = [&](const Array& a, const Array& b, const Sizes& sizes,
                           const std::function<void(TransposedGroupedMatmulOptions&)>& change,
                           const std::vector<std::string>& words, Error::Kind kind = Error::Kind::input) {
    TransposedGroupedMatmulOptions options;
    change(options);
    const std::string message =
        failure([&] { transposed_grouped_matmul(a.view(), b.view(), *plain::source(sizes), options); }, kind);
    CAPTURE(message);
    CHECK(message != "no error");
    for (const std::string& word : words) CHECK(message.find(word) != std::string::npos);
  };
  const auto nothing = [](auto&) {};
  refused(lhs, Array(DType::float32, {7, 3}), {4, 4}, nothing, {"8", "7"});
  refused(lhs, Array(DType::float32, {1, 8, 3}), {4, 4}, nothing, {"rhs"});
  refused(Array(DType::int8, {5, 8}), rhs, {4, 4}, nothing, {"lhs", "int8"});
  refused(lhs, rhs, {4, 5}, nothing, {"9", "8"});
  refused(
      lhs, rhs, {4, 4}, [](auto& o) { o.group_offset = 3; }, {"3", "2"}, Error::Kind::usage);
  refused(
      lhs, rhs, {4, 4}, [](auto& o) { o.group_offset = 1, o.num_actual_groups = 2; }, {"2", "1"},
      Error::Kind::usage);
  refused(
      lhs, rhs, {4, 4}, [](auto& o) { o.num_actual_groups = -1; }, {"-1"}, Error::Kind::usage);
  refused(
      lhs, rhs, {4, 4}, [](auto& o) { o.num_actual_groups = INT64_MAX; }, {"2"}, Error::Kind::usage);
  const Array old(DType::float32, {3, 5, 3});
  refused(lhs, rhs, {4, 4}, [&](auto& o) { o.existing_out = old.view(); }, {"(3, 5, 3)", "(2, 5, 3)"});
  refused(lhs, rhs, {4, 4}, [](auto& o) { o.strict = true, o.tiling = Tiling{3, 1, 1}; }, {"3", "8"});
}

TEST_CASE("progress of a grouped product comes one at a time and ends with all") {
  std::mt19937_64 engine(8);
  const Array lhs = plain::random(DType::float32, {300, 40}, engine);
  const Array rhs = plain::random(DType::float32, {3, 40, 50}, engine);
  std::int64_t last = 0, total = -1, calls = 0;
  GroupedMatmulOptions options;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    CHECK(done > last);
    last = done, total = all, ++calls;
  };
  grouped_matmul(lhs.view(), rhs.view(), *plain::source({100, 100, 100}), options);
  CHECK(calls > 0);
  CHECK(last == total);
}

TEST_CASE("a plan runs on what it was made for and on nothing else") {
  const Array lhs(DType::float32, {8, 5}), rhs(DType::float32, {2, 5, 3}), old(DType::float32, {8, 3});
  const auto sizes = plain::source({4, 4});
  const GroupedMatmulPlan plan(type_of(lhs.view()), type_of(rhs.view()), *sizes, GroupedMatmulSettings{});
  CHECK(plan.out().shape == Shape{8, 3});
  CHECK(plan.out().dtype == DType::float32);
  CHECK(plan.flop() == 2.0 * 8 * 5 * 3);
  Array out(DType::float32, {8, 3}), narrow(DType::float16, {8, 3}), flat(DType::float32, {24});
  const auto refused = [&](const Array& l, const Array& r, const std::optional<ArrayView>& existing,
                           Array& o) {
    return failure([&] { plan.run(l.view(), r.view(), existing, o.mutable_view()); });
  };
  CHECK(refused(lhs, rhs, {}, out) == "no error");
  CHECK(refused(Array(DType::float32, {9, 5}), rhs, {}, out) ==
        "lhs is float32 (9, 5); it was planned as float32 (8, 5)");
  CHECK(refused(lhs, Array(DType::float64, {2, 5, 3}), {}, out) ==
        "rhs is float64 (2, 5, 3); it was planned as float32 (2, 5, 3)");
  CHECK(refused(lhs, rhs, {}, narrow) == "out is float16 (8, 3); it was planned as float32 (8, 3)");
  CHECK(refused(lhs, rhs, {}, flat) == "out is float32 (24,); it was planned as float32 (8, 3)");
  CHECK(refused(lhs, rhs, old.view(), out) == "existing_out is given, and the plan was made without it");
  CHECK(failure([&] { check_results(plan, lhs.view(), rhs.view(), {}, flat.view()); }) ==
        "out is float32 (24,); it was planned as float32 (8, 3)");
  CHECK(check_results(plan, lhs.view(), rhs.view(), {}, out.view()).passed());
}
