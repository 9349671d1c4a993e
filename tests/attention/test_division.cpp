// Attention on any number of ranks: the same bits as on one, and no element of a result computed twice.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "attention/division.hpp"
#include "ejk/program/attention_ranks.hpp"
#include "support/instruction_sets.hpp"
#include "support/random_attention.hpp"
#include "support/thread_communicator.hpp"

using namespace ejk;

namespace {

struct Made {
  std::vector<Array> results;
  AttentionWork work;
};

Made undivided(const AttentionPlan& plan, const AttentionArrays& arrays) {
  Made made;
  std::vector<MutableArrayView> views;
  for (const PlannedArray& result : plan.results()) {
    made.results.emplace_back(result.type.dtype, result.type.shape);
    views.push_back(made.results.back().mutable_view());
  }
  made.work = plan.run(arrays, views);
  return made;
}

// To the places of a box, which must not have been written: `times` counts.
void put(const Array& part, const ArrayBox& box, Array& whole, Array& times) {
  const Shape strides = c_strides(whole.shape(), DType::uint8);
  Shape index(box.count.size(), 0);
  for (std::int64_t n = 0; n < part.size(); ++n) {
    std::int64_t at = 0, rest = n;
    for (std::size_t d = index.size(); d-- > 0; rest /= box.count[d])
      at += (box.start[d] + rest % box.count[d]) * strides[d];
    const std::int64_t size = size_of(whole.dtype());
    std::memcpy(whole.data() + at * size, part.data() + n * size, static_cast<std::size_t>(size));
    ++times.elements<std::uint8_t>()[static_cast<std::size_t>(at)];
  }
}

struct Piece {
  std::size_t result;
  ArrayBox box;
  Array elements;
};

struct RankResult {
  std::vector<Piece> pieces;
  AttentionWork work;
  std::int64_t told = 0, all = 0;  // of progress
};

RankResult of_rank(const AttentionPlan& plan, const AttentionArrays& arrays, Communicator& comm) {
  RankResult made;
  const AttentionDivision division(plan, comm.size());
  AttentionRank ranks(division, comm);
  for (const AttentionPart& part : division.parts(comm.rank())) {
    // Boxes in memory of their own: what is beside them cannot be read.
    AttentionOperands<Array> copies;
    AttentionArrays boxes;
    for_each_operand(
        [](const char*, const auto& array, const auto& box, auto& copy, auto& view) {
          if (box) view = copy.emplace(Array::copy_of(box_of(array.value(), *box))).view();
        },
        arrays, division.needs(part), copies, boxes);
    std::vector<MutableArrayView> results;
    const auto makes = division.makes(part);
    const std::size_t first = made.pieces.size();
    for (std::size_t r = 0; r < makes.size(); ++r)
      if (makes[r])
        made.pieces.push_back({r, *makes[r], Array(plan.results()[r].type.dtype, makes[r]->count)});
    results.resize(makes.size());
    for (std::size_t n = first; n < made.pieces.size(); ++n)
      results[made.pieces[n].result] = made.pieces[n].elements.mutable_view();
    ranks.run(part, boxes, results, [&](std::int64_t done, std::int64_t all) {
      made.told = done;
      made.all = all;
    });
  }
  made.work = ranks.work();
  return made;
}

// Empty, or what differs between the results of one and of a communicator.
std::string difference(const AttentionPlan& plan, const AttentionArrays& arrays, const Made& one,
                       std::int64_t ranks) {
  // One plan for all: masks whose elements come in order are read by one at a time.
  plan.work();
  std::vector<RankResult> all =
      ejk::test::results_of_ranks(ranks, [&](Communicator& comm) { return of_rank(plan, arrays, comm); });
  for (std::size_t r = 0; r < one.results.size(); ++r) {
    const Shape& shape = one.results[r].shape();
    Array whole(one.results[r].dtype(), shape), times(DType::uint8, shape);
    for (const RankResult& rank : all)
      for (const Piece& piece : rank.pieces)
        if (piece.result == r) put(piece.elements, piece.box, whole, times);
    for (const std::uint8_t n : times.elements<std::uint8_t>())
      if (n != 1) return fmt::format("{}: an element is made {} times", plan.results()[r].name, n);
    if (!plain::same_bytes(whole, one.results[r])) return plan.results()[r].name + " differs";
  }
  for (const RankResult& rank : all) {
    if (rank.told != rank.all) return "progress does not reach its end";
    const AttentionWork& w = rank.work;
    if (w.rows_without_key != one.work.rows_without_key ||
        w.first_row_without_key != one.work.first_row_without_key ||
        w.rows_not_finite != one.work.rows_not_finite ||
        w.first_row_not_finite != one.work.first_row_not_finite)
      return "rows are counted otherwise";
    if (w.allowed_pairs != one.work.allowed_pairs || w.computed_pairs != one.work.computed_pairs)
      return "pairs are counted otherwise";
  }
  return "";
}

// NaN and infinities here and there.
void spoil(Array& array, plain::Random& random) {
  std::vector<double> values = plain::doubles(array.view());
  for (double& value : values)
    if (plain::between(random, 0, 60) == 0)
      value = plain::between(random, 0, 1) == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                : std::numeric_limits<double>::infinity();
  array = plain::array_of(array.dtype(), array.shape(), values);
}

constexpr std::int64_t kRankCounts[] = {1, 2, 3, 5, 16};

// Sees whether forward and gradients, with and without what a forward pass has left, are the same.
void check_all(const plain::RandomAttention& r, std::int64_t ranks) {
  AttentionArrays arrays{r.q.view(), r.k.view(), r.v.view(), r.options.bias};
  arrays.dropout = r.options.dropout;
  const AttentionPlan forward(types_of(arrays), r.options);
  CHECK(difference(forward, arrays, undivided(forward, arrays), ranks) == "");

  arrays.dout = r.dout.view();
  const AttentionPlan backward(types_of(arrays), r.options);
  CHECK(difference(backward, arrays, undivided(backward, arrays), ranks) == "");

  AttentionOptions exactly = r.options;
  exactly.dtype = r.arithmetic;
  const Attention left = attention(r.q.view(), r.k.view(), r.v.view(), exactly);
  arrays.out = left.out.view();
  arrays.lse = left.lse.view();
  const AttentionPlan saved(types_of(arrays), r.options);
  CHECK(difference(saved, arrays, undivided(saved, arrays), ranks) == "");
}

}  // namespace

TEST_CASE("any number of ranks gives the bits of one") {
  plain::Random random(31);
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    if (n % 3 == 0) spoil(n % 2 == 0 ? r->q : r->k, random);
    if (n % 4 == 0) spoil(n % 8 == 0 ? r->v : r->dout, random);
    for (const std::int64_t ranks : kRankCounts) {
      CAPTURE(ranks);
      check_all(*r, ranks);
    }
  }
}

TEST_CASE("ranks read the boxes of dropout that they need, and give the bits of one") {
  plain::Random random(123);
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::float32});
    if (plain::add_dropout(*r, random)) check_all(*r, 3);
  }
}

TEST_CASE("a head that several ranks share gives the same bits, for all instruction sets") {
  struct Back {
    ~Back() { kernels::force(nullptr); }
  } back;
  std::int64_t n = 0;  // every set, type and layout comes up, and not each with each
  for (const kernels::Kernels* set : ::test::instruction_sets()) {
    kernels::force(set);
    CAPTURE(std::string(set->name));
    plain::Random random(32);
    for (const DType dtype : plain::kFloats) {
      const auto layout = static_cast<AttentionLayout>(n++ % 3);
      // Long enough for several blocks of queries and keys.
      const std::int64_t queries = plain::between(random, 260, 330), keys = plain::between(random, 260, 330);
      const bool packed = layout == AttentionLayout::thd;
      const auto make = [&](std::int64_t length, std::int64_t heads, std::int64_t size) {
        return plain::random(dtype,
                             packed                            ? Shape{length, heads, size}
                             : layout == AttentionLayout::bshd ? Shape{1, length, heads, size}
                                                               : Shape{1, heads, length, size},
                             random);
      };
      plain::RandomAttention r;
      r.q = make(queries, 2, 8);
      r.k = make(keys, 1, 8);
      r.v = make(keys, 1, 4);
      r.dout = make(queries, 2, 4);
      r.arithmetic = dtype == DType::float64 ? DType::float64 : DType::float32;
      r.options.layout = layout;
      r.options.block = BlockShape{32, 64};
      if (packed) {
        r.options.cu_seqlens_q = plain::integers({0, 3, 3, queries}, {4}, "cu_q");
        r.options.cu_seqlens_kv = plain::integers({0, 0, 5, keys}, {4}, "cu_k");
      }
      HeadMasks causal;
      causal.mask = [](std::int64_t, std::int64_t, std::int64_t q, std::int64_t kv) {
        return causal_mask(q, kv);
      };
      r.options.masks.push_back(causal);
      if (!packed) {
        // With rows and columns of its own, or one of both, or none.
        r.bias = plain::random(
            DType::float32, {1, n % 2 == 0 ? 2 : 1, n % 3 == 0 ? 1 : queries, n % 5 == 0 ? 1 : keys}, random);
        r.options.bias = r.bias.view();
      }
      check_all(r, n % 2 == 0 ? 2 : 5);
    }
  }
}

TEST_CASE("work is divided by what the masks leave, where no result sees it") {
  const ArrayType q(DType::float32, {1, 4096, 2, 16}), k(DType::float32, {1, 4096, 1, 16});
  AttentionSettings settings;
  HeadMasks causal;
  causal.mask = [](std::int64_t, std::int64_t, std::int64_t n, std::int64_t m) { return causal_mask(n, m); };
  settings.masks.push_back(causal);
  settings.block = BlockShape{64, 64};
  const AttentionPlan forward({q, k, k}, settings);
  const AttentionPlan backward({q, k, k, {}, q}, settings);
  for (const AttentionPlan* plan : {&forward, &backward})
    for (const std::int64_t ranks : {1, 2, 4, 7}) {
      CAPTURE(ranks);
      const AttentionDivision division(*plan, ranks);
      double all = 0, most = 0;
      std::int64_t written = 0, busy = 0;
      for (std::int64_t m = 0; m < ranks; ++m) {
        const RankWork share = division.share(m);
        all += share.cost;
        most = std::max(most, share.cost);
        written += share.written_bytes;
        busy += division.parts(m).empty() ? 0 : 1;
        CHECK(share.peak_bytes <= plan->work_bytes());
      }
      CHECK(written == plan->result_bytes());
      // One key/value head: the gradients are those of one rank.
      CHECK(busy == (plan == &backward ? 1 : ranks));
      if (plan == &forward) CHECK(most <= 1.1 * all / static_cast<double>(ranks));
    }
  // Causal: the queries of the second half have three quarters of the pairs.
  const auto first = AttentionDivision(forward, 4).parts(0);
  REQUIRE(first.size() == 1);
  CHECK(first[0].heads.end == 1);
  CHECK(std::abs(static_cast<double>(first[0].positions.end) - 4096 * std::sqrt(0.5)) < 100);
}

TEST_CASE("a rank makes some elements of a bias's gradient, with all entries and heads that share them") {
  const ArrayType q(DType::float32, {3, 700, 4, 8}), k(DType::float32, {3, 600, 2, 8});
  AttentionTypes types{q, k, k, {}, q};
  for (const Shape& shape : {Shape{4, 700, 600}, Shape{3, 1, 1, 600}, Shape{700, 1}, Shape{}}) {
    types.bias = ArrayType(DType::float32, shape);
    const AttentionPlan plan(types, {});
    const AttentionDivision division(plan, 3);
    std::int64_t made = 0;
    for (std::int64_t m = 0; m < 3; ++m)
      for (const AttentionPart& part : division.parts(m)) {
        const auto boxes = division.makes(part);
        REQUIRE(boxes.size() == 4);
        CHECK(boxes[3].has_value() == (part.makes == AttentionPart::Makes::dbias));
        if (!boxes[3]) continue;
        made += element_count(boxes[3]->count);
        const AttentionOperands<ArrayBox> needs = division.needs(part);
        CHECK(needs.bias == boxes[3]);
        CHECK(needs.q->count[0] == (shape.size() == 4 ? boxes[3]->count[0] : 3));
        CHECK(needs.q->count[2] == (shape.size() == 3 ? boxes[3]->count[0] : 4));
      }
    CHECK(made == element_count(shape));
  }
}

TEST_CASE("heads that are as many as ranks are never cut") {
  const ArrayType q(DType::float32, {2, 96, 8, 16}), k(DType::float32, {2, 96, 4, 16});
  const AttentionPlan plan({q, k, k, {}, q}, {});
  for (const std::int64_t ranks : {2, 4, 8}) {
    const AttentionDivision division(plan, ranks);
    std::int64_t read = 0;
    for (std::int64_t m = 0; m < ranks; ++m) {
      read += division.share(m).read_bytes;
    }
    CHECK(read == 2 * q.bytes() + 2 * k.bytes());  // each element once
  }
}

TEST_CASE("one rank takes and makes whole arrays, and masks are not read for it") {
  plain::Random random(33);
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, {DType::float32});
    AttentionArrays arrays{r->q.view(), r->k.view(), r->v.view(), r->options.bias};
    if (n % 2 == 0) arrays.dout = r->dout.view();
    for (HeadMasks& mask : r->options.masks)
      mask.mask = [](auto...) -> Mask { throw Error(Error::Kind::internal, "read"); };
    const AttentionPlan plan(types_of(arrays), r->options);
    const AttentionDivision one(plan, 1);
    const auto parts = one.parts(0);
    REQUIRE(parts.size() == 1);
    const AttentionOperands<ArrayBox> needs = one.needs(parts[0]);
    CHECK(needs.q == whole_box(r->q.shape()));
    CHECK(needs.k == whole_box(r->k.shape()));
    CHECK(needs.v == whole_box(r->v.shape()));
    if (arrays.bias) CHECK(needs.bias == whole_box(arrays.bias->shape));
    if (arrays.dout) CHECK(needs.dout == whole_box(r->dout.shape()));
    const auto makes = one.makes(parts[0]);
    for (std::size_t m = 0; m < makes.size(); ++m) CHECK(makes[m] == whole_box(plan.results()[m].type.shape));
  }
}

TEST_CASE("a part refuses arrays of other shapes") {
  const ArrayType q(DType::float32, {1, 64, 1, 4});
  const AttentionPlan plan({q, q, q}, {});
  const Array whole(DType::float32, {1, 64, 1, 4});
  CHECK_THROWS_AS(ejk::test::results_of_ranks(2,
                                              [&](Communicator& comm) {
                                                const AttentionDivision division(plan, comm.size());
                                                AttentionRank work(division, comm);
                                                const AttentionPart part = division.parts(comm.rank()).at(0);
                                                const ArrayView view = whole.view();
                                                work.run(part, {view, view, view}, {{}, {}});
                                                return 0;
                                              }),
                  Error);
  const AttentionDivision division(plan, 2);
  CHECK_THROWS_AS(AttentionRank(division, single_process()), Error);
}

TEST_CASE("lines fall into regions that hold all units, each once") {
  plain::Random random(34);
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    std::vector<std::int64_t> cu{0};
    for (std::int64_t e = plain::between(random, 0, 4); e > 0; --e)
      cu.push_back(cu.back() + plain::between(random, 0, 9));
    const ArrayType q(DType::float32, {cu.back(), 3, 1});
    AttentionSettings settings;
    settings.layout = AttentionLayout::thd;
    settings.cu_seqlens_q = plain::integers(cu, {std::ssize(cu)}, "cu");
    const attn::Plan plan({q, q, q}, settings);
    const std::int64_t wanted = n % 4 == 0 ? 0 : 1 << 14;  // 0: whole entries
    const attn::Line line(plan.setup, AttentionPart::Makes::out, plain::between(random, 1, 4), wanted);
    std::int64_t cut = 0;
    std::vector<int> seen(static_cast<std::size_t>(3 * cu.back()));
    while (cut < line.units()) {
      const std::int64_t next = std::min(line.units(), cut + plain::between(random, 1, 8));
      const auto regions = line.regions(cut, next);
      CHECK(std::ssize(regions) <= 5);
      for (const attn::Region& r : regions)
        for (std::int64_t e = r.entries.begin; e < r.entries.end; ++e)
          for (std::int64_t h = r.heads.begin; h < r.heads.end; ++h) {
            const attn::Positions some = r.positions_of(plan.setup.q_length(e));
            for (std::int64_t p = some.begin; p < some.end; ++p)
              ++seen[static_cast<std::size_t>(3 * (cu[static_cast<std::size_t>(e)] + p) + h)];
          }
      cut = next;
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}
