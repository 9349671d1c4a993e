// Attention by teams of any size: the same bits as by one, and no element of a result made twice.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "attention/division.hpp"
#include "ejk/attention_team.hpp"
#include "support/instruction_sets.hpp"
#include "support/random_attention.hpp"
#include "support/thread_team.hpp"

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

// A box of an array, in memory of its own: what lies beside it cannot be looked at.
std::optional<Array> copy_of(const std::optional<ArrayView>& array, const std::optional<ArrayBox>& box) {
  return box ? std::optional(Array::copy_of(box_of(array.value(), *box))) : std::nullopt;
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

struct MemberMade {
  std::vector<Piece> pieces;
  AttentionWork work;
  std::int64_t told = 0, all = 0;  // of progress
};

MemberMade of_member(const AttentionPlan& plan, const AttentionArrays& arrays, Team& team) {
  MemberMade made;
  const AttentionDivision division(plan, team.size());
  AttentionTeamwork teamwork(division, team);
  for (std::int64_t round = 0; round < division.rounds(); ++round) {
    for (const AttentionPart& part : division.parts(team.rank(), round)) {
      const AttentionOperands<ArrayBox> needs = division.needs(part);
      const auto q = copy_of(arrays.q, needs.q), k = copy_of(arrays.k, needs.k),
                 v = copy_of(arrays.v, needs.v), bias = copy_of(arrays.bias, needs.bias),
                 dout = copy_of(arrays.dout, needs.dout), out = copy_of(arrays.out, needs.out),
                 lse = copy_of(arrays.lse, needs.lse);
      const auto view = [](const std::optional<Array>& array) {
        return array ? std::optional(array->view()) : std::nullopt;
      };
      const AttentionArrays boxes{q->view(),  k->view(), v->view(), view(bias),
                                  view(dout), view(out), view(lse)};
      std::vector<MutableArrayView> results;
      const auto makes = division.makes(part);
      const std::size_t first = made.pieces.size();
      for (std::size_t r = 0; r < makes.size(); ++r)
        if (makes[r])
          made.pieces.push_back({r, *makes[r], Array(plan.results()[r].type.dtype, makes[r]->count)});
      results.resize(makes.size());
      for (std::size_t n = first; n < made.pieces.size(); ++n)
        results[made.pieces[n].result] = made.pieces[n].elements.mutable_view();
      teamwork.run(part, boxes, results, [&](std::int64_t done, std::int64_t all) {
        made.told = done;
        made.all = all;
      });
    }
    teamwork.end_round();
  }
  made.work = teamwork.work();
  return made;
}

// Empty, or what differs between the results of one and of a team.
std::string difference(const AttentionPlan& plan, const AttentionArrays& arrays, const Made& one,
                       std::int64_t members) {
  // One plan for all: masks whose elements come in order are read by one at a time.
  plan.work();
  std::vector<MemberMade> all =
      ejk::test::results_of_team(members, [&](Team& team) { return of_member(plan, arrays, team); });
  for (std::size_t r = 0; r < one.results.size(); ++r) {
    const Shape& shape = one.results[r].shape();
    Array whole(one.results[r].dtype(), shape), times(DType::uint8, shape);
    for (const MemberMade& member : all)
      for (const Piece& piece : member.pieces)
        if (piece.result == r) put(piece.elements, piece.box, whole, times);
    for (const std::uint8_t n : times.elements<std::uint8_t>())
      if (n != 1) return fmt::format("{}: an element is made {} times", plan.results()[r].name, n);
    if (!plain::same_bytes(whole, one.results[r])) return plan.results()[r].name + " differs";
  }
  for (const MemberMade& member : all) {
    if (member.told != member.all) return "progress does not reach its end";
    const AttentionWork& w = member.work;
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

constexpr std::int64_t kTeams[] = {1, 2, 3, 5, 16};

// Sees whether forward and gradients, with and without what a forward pass has left, are the same. Counts
// divisions along the sequence.
void check_all(const plain::RandomAttention& r, std::int64_t members, int& along) {
  AttentionArrays arrays{r.q.view(), r.k.view(), r.v.view(), r.options.bias, {}, {}, {}};
  const AttentionPlan forward(types_of(arrays), r.options);
  CHECK(difference(forward, arrays, undivided(forward, arrays), members) == "");

  arrays.dout = r.dout.view();
  const AttentionPlan backward(types_of(arrays), r.options);
  along += AttentionDivision(backward, members).rounds() == 2 ? 1 : 0;
  CHECK(difference(backward, arrays, undivided(backward, arrays), members) == "");

  AttentionOptions exactly = r.options;
  exactly.dtype = r.arithmetic;
  const Attention left = attention(r.q.view(), r.k.view(), r.v.view(), exactly);
  arrays.out = left.out.view();
  arrays.lse = left.lse.view();
  const AttentionPlan saved(types_of(arrays), r.options);
  along += AttentionDivision(saved, members).rounds() == 2 ? 1 : 0;
  CHECK(difference(saved, arrays, undivided(saved, arrays), members) == "");
}

}  // namespace

TEST_CASE("any number of members gives the bits of one") {
  plain::Random random(31);
  int along = 0;
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    if (n % 3 == 0) spoil(n % 2 == 0 ? r->q : r->k, random);
    if (n % 4 == 0) spoil(n % 8 == 0 ? r->v : r->dout, random);
    for (const std::int64_t members : kTeams) {
      CAPTURE(members);
      check_all(*r, members, along);
    }
  }
  CHECK(along > 50);
}

TEST_CASE("a head that several members share gives the same bits, for all instruction sets") {
  struct Back {
    ~Back() { kernels::force(nullptr); }
  } back;
  for (const kernels::Kernels* set : ::test::instruction_sets()) {
    kernels::force(set);
    CAPTURE(std::string(set->name));
    plain::Random random(32);
    int along = 0;
    for (const DType dtype : plain::kFloats)
      for (const AttentionLayout layout :
           {AttentionLayout::bshd, AttentionLayout::bhsd, AttentionLayout::thd}) {
        // Long enough for several blocks of queries and keys.
        const std::int64_t queries = plain::between(random, 260, 330),
                           keys = plain::between(random, 260, 330);
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
        for (const std::int64_t members : {2, 5}) {
          CAPTURE(members);
          check_all(r, members, along);
        }
      }
    CHECK(along > 10);
  }
}
