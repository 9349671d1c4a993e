// Partition of grouped products: the bits of the undivided product from the inputs of a part alone, full and
// disjoint coverage, balance, invalid parts.
#include "matmul/parts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "core/checked.hpp"
#include "kernels/kernels.hpp"
#include "support/failure.hpp"
#include "support/instruction_sets.hpp"
#include "support/matmul.hpp"

using namespace ejk;
using plain::Lengths;
using plain::Sizes;

namespace {

const std::vector<std::int64_t> kRankCounts{1, 2, 3, 5, 16, 70};

// How the boxes of the arguments come: from arrays that are mapped, or read into memory of their own.
enum class Boxes { views, copies };

std::string text_of(const ArrayBox& box) { return to_string(box.start) + " + " + to_string(box.count); }

// Puts a box where it belongs; counts how often each element has been put.
void put(const Array& part, const ArrayBox& box, Array& whole, std::vector<int>& times) {
  const std::int64_t item = size_of(whole.dtype());
  const Shape strides = c_strides(whole.shape(), whole.dtype());
  for (std::int64_t i = 0; i < part.size(); ++i) {
    std::int64_t rest = i, at = 0;
    for (std::size_t d = box.count.size(); d-- > 0; rest /= box.count[d])
      at += (box.start[d] + rest % box.count[d]) * strides[d];
    std::copy_n(part.data() + i * item, item, whole.data() + at);
    ++times[static_cast<std::size_t>(at / item)];
  }
}

// The result as so many ranks make it; empty where it is not there once.
template <class Options>
Array made_by(std::int64_t ranks, const ArrayView& lhs, const ArrayView& rhs, const ArraySource& sizes,
              const Options& options, Boxes boxes) {
  const GroupedMatmulPlan plan = plain::plan_of(lhs, rhs, sizes, options);
  Array whole = plain::filled(options.dtype, plan.out().shape, 77);
  std::vector<int> times(static_cast<std::size_t>(whole.size()));
  const auto box_from = [&](const ArrayView& view, const ArrayBox& box, Array& held) {
    ArrayView part = box_of(view, box);
    if (boxes == Boxes::views) return part;
    held = Array::copy_of(part);
    return held.view();
  };
  const std::vector<std::vector<ArrayBox>> parts = plan.divide(ranks);
  CHECK(std::ssize(parts) == ranks);
  for (const std::vector<ArrayBox>& of_rank : parts)
    for (const ArrayBox& box : of_rank) {
      CAPTURE(text_of(box));
      Array out = plain::filled(options.dtype, box.count, std::numeric_limits<double>::quiet_NaN());
      Array held_lhs, held_rhs, held_existing;
      const GroupedMatmulNeeds needs = plan.needs(box);
      std::optional<ArrayView> existing;
      if (options.existing_out) existing = box_from(*options.existing_out, box, held_existing);
      plan.run(box, box_from(lhs, needs.lhs, held_lhs), box_from(rhs, needs.rhs, held_rhs), existing,
               out.mutable_view());
      put(out, box, whole, times);
    }
  double flop = 0;
  for (const RankWork& work : plan.work(ranks, {})) flop += work.cost;
  CHECK(flop == plan.flop());
  if (std::any_of(times.begin(), times.end(), [](int n) { return n != 1; })) return {};
  return whole;
}

template <class Options>
void check_all(const ArrayView& lhs, const ArrayView& rhs, const Sizes& sizes, const Options& options,
               Boxes boxes) {
  const auto source = plain::source(sizes);
  const GroupedMatmulPlan plan = plain::plan_of(lhs, rhs, *source, options);
  Array expected(options.dtype, plan.out().shape);
  plan.run(lhs, rhs, options.existing_out, expected.mutable_view());
  for (const std::int64_t ranks : kRankCounts) {
    CAPTURE(ranks);
    CHECK(plain::same_bytes(made_by(ranks, lhs, rhs, *source, options, boxes), expected));
  }
}

Tiling random_tiling(std::mt19937_64& engine) {
  const auto length = [&] { return static_cast<std::int64_t>(engine() % 70 + 1); };
  return {length(), length(), length()};
}

// Sizes as random_sizes, or all rows in one group, or groups of one row each.
Sizes sizes_of_some_kind(std::int64_t groups, std::int64_t m, std::mt19937_64& engine) {
  Sizes sizes(static_cast<std::size_t>(groups));
  const auto kind = engine() % 4;
  if (kind == 0) {
    sizes[engine() % sizes.size()] = m;
    return sizes;
  }
  if (kind == 1) {
    for (std::int64_t i = 0; i < std::min(groups, m); ++i) sizes[static_cast<std::size_t>(i)] = 1;
    return sizes;
  }
  return plain::random_sizes(groups, m, kind == 2, engine);
}

void check_random_parts(std::uint64_t seed, const std::vector<Lengths>& all) {
  std::mt19937_64 engine(seed);
  for (const Lengths& lengths : all)
    for (const DType left : plain::kFloats) {
      // The narrow types together, which have an arithmetic of their own, and any two.
      const DType right = engine() % 2 == 0 ? left : plain::kFloats[engine() % 4];
      const std::int64_t m = lengths.m, k = lengths.k, n = lengths.n;
      const auto groups = static_cast<std::int64_t>(engine() % 9 + 1);
      const Sizes sizes = sizes_of_some_kind(groups, m, engine);
      GroupedMatmulOptions options;
      options.dtype = plain::kFloats[engine() % 4];
      if (engine() % 2 == 0)
        options.group_offset = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(groups + 1));
      std::int64_t matrices = groups - options.group_offset;
      if (engine() % 2 == 0)
        matrices = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(matrices + 1));
      options.transpose_rhs = engine() % 2 == 0;
      if (engine() % 2 == 0) options.tiling = random_tiling(engine);
      const Array lhs = plain::random(left, {m, k}, engine);
      const Array rhs = options.transpose_rhs ? plain::random(right, {matrices, n, k}, engine)
                                              : plain::random(right, {matrices, k, n}, engine);
      const bool is_c_order = engine() % 2 == 0;
      const auto order = [&] { return is_c_order ? 0 : static_cast<int>(engine() % 4); };
      const plain::Laid a(lhs, order()), b(rhs, order());
      const Array old = plain::random(options.dtype, {m, n}, engine);
      const plain::Laid there(old, order());
      if (engine() % 2 == 0) options.existing_out = there.view();
      if (engine() % 2 == 0) options.existing = Existing::add;
      CAPTURE(m);
      CAPTURE(k);
      CAPTURE(n);
      CAPTURE(name_of(left));
      CAPTURE(name_of(right));
      CAPTURE(name_of(options.dtype));
      CAPTURE(options.transpose_rhs);
      check_all(a.view(), b.view(), sizes, options,
                is_c_order && engine() % 2 == 0 ? Boxes::copies : Boxes::views);
    }
}

void check_random_transposed_parts(std::uint64_t seed, const std::vector<Lengths>& all) {
  std::mt19937_64 engine(seed);
  for (const Lengths& lengths : all)
    for (const DType left : plain::kFloats) {
      const DType right = engine() % 2 == 0 ? left : plain::kFloats[engine() % 4];
      const std::int64_t m = lengths.k, k = lengths.m, n = lengths.n;
      const auto groups = static_cast<std::int64_t>(engine() % 9 + 1);
      const Sizes sizes = sizes_of_some_kind(groups, m, engine);
      TransposedGroupedMatmulOptions options;
      options.dtype = plain::kFloats[engine() % 4];
      if (engine() % 2 == 0)
        options.group_offset = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(groups + 1));
      std::int64_t computed = groups - options.group_offset;
      if (engine() % 2 == 0) {
        computed = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(computed + 1));
        options.num_actual_groups = computed;
      }
      if (engine() % 2 == 0) options.tiling = random_tiling(engine);
      const Array lhs = plain::random(left, {k, m}, engine), rhs = plain::random(right, {m, n}, engine);
      const bool is_c_order = engine() % 2 == 0;
      const auto order = [&] { return is_c_order ? 0 : static_cast<int>(engine() % 4); };
      const plain::Laid a(lhs, order()), b(rhs, order());
      const Array old = plain::random(options.dtype, {computed, k, n}, engine);
      const plain::Laid there(old, order());
      if (engine() % 2 == 0) options.existing_out = there.view();
      CAPTURE(m);
      CAPTURE(k);
      CAPTURE(n);
      CAPTURE(name_of(left));
      CAPTURE(name_of(right));
      CAPTURE(name_of(options.dtype));
      check_all(a.view(), b.view(), sizes, options,
                is_c_order && engine() % 2 == 0 ? Boxes::copies : Boxes::views);
    }
}

// Nothing at all, less than a tile, and what is cut between rows, between columns, and both ways. The sixth
// has several blocks of the contraction.
const std::vector<Lengths> kLengths{{0, 3, 5},    {7, 0, 50},    {1, 1, 1},     {9, 33, 0},   {3, 20, 300},
                                    {1, 700, 70}, {70, 40, 130}, {200, 33, 17}, {45, 90, 200}};

// By how much the largest part exceeds an equal part.
double worst(const GroupedMatmulPlan& plan, std::int64_t ranks) {
  double most = 0;
  for (const RankWork& work : plan.work(ranks, {})) most = std::max(most, work.cost);
  return most * static_cast<double>(ranks) / plan.flop();
}

// The most bytes of factors that a rank reads.
std::int64_t most_bytes(const GroupedMatmulPlan& plan, std::int64_t ranks) {
  std::int64_t most = 0;
  for (const RankWork& work : plan.work(ranks, {})) most = std::max(most, work.read_bytes);
  return most;
}

GroupedMatmulPlan plain_plan(const Sizes& sizes, std::int64_t m, std::int64_t k, std::int64_t n) {
  return {ArrayType(DType::float32, {m, k}), ArrayType(DType::float32, {std::ssize(sizes), k, n}),
          *plain::source(sizes), GroupedMatmulSettings{}};
}

GroupedMatmulPlan transposed_plan(const Sizes& sizes, std::int64_t m, std::int64_t k, std::int64_t n) {
  return {ArrayType(DType::float32, {k, m}), ArrayType(DType::float32, {m, n}), *plain::source(sizes),
          TransposedGroupedMatmulSettings{}};
}

}  // namespace

TEST_CASE("a grouped product in parts has the bits of the whole, for any number of ranks") {
  for (const kernels::Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    kernels::force(row);
    check_random_parts(11, kLengths);
  }
  kernels::force(nullptr);
}

TEST_CASE("a transposed grouped product in parts has the bits of the whole, for any number of ranks") {
  for (const kernels::Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    kernels::force(row);
    check_random_transposed_parts(12, kLengths);
  }
  kernels::force(nullptr);
}

TEST_CASE("a part of a group of many rows adds as the group does, however few rows the part has") {
  std::mt19937_64 engine(13);
  for (const kernels::Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    kernels::force(row);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Array lhs = plain::random(dtype, {200, 300}, engine);
      const Array rhs = plain::random(dtype, {1, 300, 192}, engine);
      const GroupedMatmulPlan plan =
          plain::plan_of(lhs.view(), rhs.view(), *plain::source({200}), GroupedMatmulOptions{});
      Array whole(DType::float32, {200, 192}), one(DType::float32, {1, 192});
      plan.run(lhs.view(), rhs.view(), {}, whole.mutable_view());
      const ArrayBox box{{150, 0}, {1, 192}};
      plan.run(box, box_of(lhs.view(), plan.needs(box).lhs), rhs.view(), {}, one.mutable_view());
      CHECK(std::equal(one.data(), one.data() + one.bytes(), whole.data() + 150 * one.bytes()));
    }
  }
  kernels::force(nullptr);
}

TEST_CASE("columns of few rows add as they do in the whole, at its right edge too") {
  std::mt19937_64 engine(14);
  for (const kernels::Kernels* row : test::instruction_sets()) {
    CAPTURE(row->name);
    kernels::force(row);
    for (const DType dtype : plain::kFloats) {
      CAPTURE(name_of(dtype));
      const Array lhs = plain::random(dtype, {5, 350}, engine);
      const Array rhs = plain::random(dtype, {2, 350, 455}, engine);
      const GroupedMatmulPlan plan =
          plain::plan_of(lhs.view(), rhs.view(), *plain::source({3, 2}), GroupedMatmulOptions{});
      const auto parts = plan.divide(7);
      CHECK(std::any_of(parts.begin(), parts.end(), [](const std::vector<ArrayBox>& boxes) {
        return !boxes.empty() && boxes[0].start[1] > 0;
      }));
      check_all(lhs.view(), rhs.view(), {3, 2}, GroupedMatmulOptions{}, Boxes::copies);
    }
  }
  kernels::force(nullptr);
}

TEST_CASE("work is balanced among ranks, and each reads only the operands of its part") {
  // Experts of equal size: cut between them, and nothing is read twice.
  const Sizes equal(8, 512);
  const GroupedMatmulPlan experts = plain_plan(equal, 4096, 1024, 2048);
  const std::int64_t all = most_bytes(experts, 1);
  for (const std::int64_t ranks : {2, 4, 8}) {
    CHECK(worst(experts, ranks) == 1);
    CHECK(most_bytes(experts, ranks) == all / ranks);
  }
  CHECK(worst(experts, 3) < 1.1);
  CHECK(worst(experts, 64) < 1.1);
  CHECK(most_bytes(experts, 64) < all / 8);

  // Uneven ones, with empty ones between them and rows of none.
  const GroupedMatmulPlan uneven = plain_plan({0, 3000, 0, 1, 17, 0, 640, 90, 0}, 6000, 512, 1024);
  for (const std::int64_t ranks : {2, 3, 5, 16}) CHECK(worst(uneven, ranks) < 1.25);

  // One group of few rows and many columns has no rows to cut between. The most ranks have one step of
  // columns each: 64, or what comes next in whole tiles.
  const std::int64_t step = core::round_up(64, kernels::active().products.f32->nr);
  const GroupedMatmulPlan wide = plain_plan({4}, 4, 4096, 256 * step);
  for (const std::int64_t ranks : {2, 16, 256}) {
    CHECK(worst(wide, ranks) < 1.1);
    CHECK(most_bytes(wide, ranks) < 2 * most_bytes(wide, 1) / ranks);
  }

  // Gradients: groups, and rows and columns of one.
  const GroupedMatmulPlan gradients = transposed_plan(equal, 4096, 1024, 2048);
  const std::int64_t both = most_bytes(gradients, 1);
  for (const std::int64_t ranks : {2, 4, 8}) {
    CHECK(worst(gradients, ranks) == 1);
    CHECK(most_bytes(gradients, ranks) == both / ranks);
  }
  CHECK(worst(gradients, 3) < 1.1);
  const GroupedMatmulPlan large = transposed_plan({2, 5000, 0, 60}, 6000, 512, 1024);
  for (const std::int64_t ranks : {2, 3, 5, 16}) CHECK(worst(large, ranks) < 1.25);
}

TEST_CASE("ranks beyond the work get nothing, and a result without elements is the first one's") {
  const GroupedMatmulPlan small = plain_plan({1, 1}, 2, 3, 4);
  std::int64_t boxes = 0;
  for (const std::vector<ArrayBox>& of_rank : small.divide(16)) boxes += std::ssize(of_rank);
  CHECK(boxes <= 2);
  const GroupedMatmulPlan empty = plain_plan({0}, 0, 3, 4);
  const auto parts = empty.divide(3);
  REQUIRE(parts[0].size() == 1);
  CHECK(parts[0][0] == whole_box(Shape{0, 4}));
  CHECK(parts[1].empty());
}

TEST_CASE("what is no part of a result is refused, and so are arrays that are not the part's") {
  const GroupedMatmulPlan plan = plain_plan({4, 4}, 8, 5, 200);
  for (const ArrayBox& box :
       {ArrayBox{{0}, {8}}, ArrayBox{{0, 0}, {9, 200}}, ArrayBox{{-1, 0}, {2, 200}},
        ArrayBox{{0, 1}, {8, 199}}, ArrayBox{{0, 0}, {8, 7}}, ArrayBox{{8, 0}, {INT64_MAX, 200}}}) {
    CHECK(plain::failure([&] { plan.needs(box); }).ends_with("are no part of the result (8, 200)"));
  }
  const ArrayBox box{{2, 0}, {3, 200}};
  const GroupedMatmulNeeds needs = plan.needs(box);
  CHECK(needs.lhs == ArrayBox{{2, 0}, {3, 5}});
  CHECK(needs.rhs == ArrayBox{{0, 0, 0}, {2, 5, 200}});
  const Array lhs(DType::float32, {3, 5}), rhs(DType::float32, {2, 5, 200}), whole(DType::float32, {8, 5});
  Array out(DType::float32, {3, 200});
  CHECK(plain::failure([&] { plan.run(box, lhs.view(), rhs.view(), {}, out.mutable_view()); }) == "no error");
  CHECK(plain::failure([&] { plan.run(box, whole.view(), rhs.view(), {}, out.mutable_view()); }) ==
        "lhs is float32 (8, 5); it was planned as float32 (3, 5)");
}
