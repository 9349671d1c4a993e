// Partition of attention among ranks. Work is laid out in one order, in units whose cost is the number of
// unmasked pairs, and cut into contiguous ranges of about equal cost. Units start at multiples of what is
// computed together, so results do not depend on the cuts. Cost: reading the state of every block.
// tests: tests/attention/test_division.cpp
#include "attention/division.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/require.hpp"

namespace ejk {

namespace attn {

// The pairs of each block of queries that masks let be computed.
class ComputedPairs {
 public:
  explicit ComputedPairs(const Plan& plan) : setup_(plan.setup), masks_(plan.blocks()) {
    if (!masks_.has_masks()) return;
    const std::vector<MaskTiles>& masks = masks_.distinct();
    sums_.resize(masks.size());
    double blocks = 0;
    for (const MaskTiles& tiles : masks)
      if (tiles.mask) blocks += static_cast<double>(tiles.summary.states->blocks());
    core::parallel_for(std::ssize(sums_), blocks, [&](std::int64_t n) {
      sum(masks[static_cast<std::size_t>(n)], sums_[static_cast<std::size_t>(n)]);
    });
  }

  double of_queries(std::int64_t entry, std::int64_t head, Positions queries) const {
    if (sums_.empty()) return static_cast<double>(queries.count() * setup_.kv_length(entry));
    const Sums& sums = sums_[static_cast<std::size_t>(masks_.index_of(entry, head))];
    const std::int64_t length = setup_.q_length(entry);
    return before(sums, length, queries.end) - before(sums, length, queries.begin);
  }

 private:
  using Sums = std::vector<double>;  // before each block of queries, and at last of all

  void sum(const MaskTiles& tiles, Sums& sums) const {
    sums.assign(1, 0);
    if (!tiles.mask) return;
    const std::int64_t q = tiles.summary.q_length, kv = tiles.summary.kv_length;
    const BlockShape block = setup_.block;
    for (std::int64_t i = 0; i * block.q < q; ++i) {
      std::int64_t keys = 0;
      for (std::int64_t j = 0; j * block.kv < kv; ++j)
        if (tiles.state(i, j) != mask::BlockState::empty) keys += std::min(block.kv, kv - j * block.kv);
      sums.push_back(sums.back() + static_cast<double>(std::min(block.q, q - i * block.q) * keys));
    }
  }

  // A part of a block has its part of the block's pairs.
  double before(const Sums& sums, std::int64_t length, std::int64_t position) const {
    const std::int64_t block = setup_.block.q, b = position / block;
    if (b + 1 >= std::ssize(sums)) return sums.back();
    const double of_block = sums[static_cast<std::size_t>(b + 1)] - sums[static_cast<std::size_t>(b)];
    return sums[static_cast<std::size_t>(b)] + of_block * static_cast<double>(position - b * block) /
                                                   static_cast<double>(std::min(block, length - b * block));
  }

  const CheckedArguments& setup_;
  const MaskPlan& masks_;
  std::vector<Sums> sums_;  // (distinct entries, heads); empty: all pairs
};

const ComputedPairs& Plan::pairs() const {
  std::call_once(counted_, [&] { pairs_ = std::make_shared<const ComputedPairs>(*this); });
  return *pairs_;
}

namespace {

using Makes = AttentionPart::Makes;

// Operations of a nanosecond of the forward pass, as in MaskPlan::nanoseconds(), softmax included.
constexpr double kOperations = 40;

// Cost of a pair, in forward passes.
double passes_of(const Plan& plan, Makes makes) {
  const auto d = static_cast<double>(plan.setup.shape.head_size),
             dv = static_cast<double>(plan.setup.shape.value_size);
  const double forward = plan.types.out ? 0 : 1;
  switch (makes) {
    case Makes::out:
      return 1;
    case Makes::dsinks:
      return forward;
    case Makes::dbias:
      return forward + 1;  // scores and dP
    default:
      return forward + (3 * d + 2 * dv) / (d + dv) +
             (makes == Makes::all_gradients && plan.types.bias ? 1 : 0);
  }
}

void add_costs(const Plan& plan, const ComputedPairs& pairs, const Line& line, std::vector<double>& costs) {
  const CheckedArguments& setup = plan.setup;
  const double passes = kOperations * passes_of(plan, line.makes());
  for (std::int64_t unit = 0; unit < line.units(); ++unit) {
    double all = 0, rows = 0;
    for (const Region& r : line.regions(unit, unit + 1)) {
      const Region queries = queries_of(setup, {line.makes(), r.entries, r.heads, r.positions});
      for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
        for (std::int64_t h = queries.heads.begin; h < queries.heads.end; ++h) {
          const Positions some = queries.positions_of(setup.q_length(e));
          all += pairs.of_queries(e, h, some);
          rows += static_cast<double>(some.count());
        }
    }
    costs.push_back(passes * MaskPlan::nanoseconds(setup, all, rows));
  }
}

void divide(Division& division) {
  constexpr std::int64_t kFewUnits = 1 << 14, kUnitsOfRank = 256;
  const Plan& plan = *division.plan;
  const CheckedArguments& setup = plan.setup;
  const std::int64_t wanted = std::max(kFewUnits, kUnitsOfRank * division.ranks);
  const auto add = [&](Makes makes, std::int64_t step) {
    division.lines.emplace_back(setup, makes, std::max<std::int64_t>(1, step), wanted);
  };
  if (!setup.gradients) {
    add(Makes::out, rows_together(setup));
  } else {
    add(Makes::gradients, setup.longest_keys());
    // Without queries of its own a bias needs all queries for any of its keys.
    if (setup.bias)
      add(Makes::dbias, setup.bias_has(BiasAxis::queries)
                            ? std::lcm(rows_together(setup), gradient_block(setup).q)
                            : setup.bias_positions());
    if (setup.has_sinks()) add(Makes::dsinks, 1);
  }
  std::vector<double> costs;
  for (const Line& line : division.lines) add_costs(plan, plan.pairs(), line, costs);
  division.bounds = core::even_runs(costs, division.ranks);
  division.costs_before = {0};
  for (const double cost : costs) division.costs_before.push_back(division.costs_before.back() + cost);
}

}  // namespace

Line::Line(const CheckedArguments& setup, Makes makes, std::int64_t step, std::int64_t wanted)
    : makes_(makes),
      heads_(makes == Makes::gradients ? setup.shape.kv_heads : setup.shape.heads),
      step_(step) {
  const bool of_bias = makes == Makes::dbias, of_sinks = makes == Makes::dsinks;
  if (of_bias) heads_ = setup.bias_shape[1];
  for (std::int64_t e = 0; e < (of_sinks ? 1 : of_bias ? setup.bias_shape[0] : setup.shape.entries); ++e) {
    lengths_.push_back(of_sinks                    ? 1
                       : of_bias                   ? setup.bias_positions()
                       : makes == Makes::gradients ? setup.kv_length(e)
                                                   : setup.q_length(e));
    // dq comes with the keys, even without any; padding with the last position, even without one.
    if (makes == Makes::gradients || (setup.has_padding() && !of_sinks))
      lengths_.back() = std::max<std::int64_t>(1, lengths_.back());
    longest_ = std::max(longest_, lengths_.back());
  }
  const auto lay_out = [&] {
    first_.assign(1, 0);
    for (const std::int64_t positions : lengths_)
      first_.push_back(first_.back() + (whole_entries_ ? 1 : heads_ * core::ceil_div(positions, step_)));
  };
  lay_out();
  while (units() > wanted && step_ < longest_) {
    step_ *= 2;
    lay_out();
  }
  if (units() <= 16 * wanted) return;
  whole_entries_ = true;
  lay_out();
}

Line::Place Line::place(std::int64_t unit) const {
  if (unit == units()) return {std::ssize(lengths_), 0, 0};
  if (whole_entries_) return {unit, 0, 0};
  const auto after = std::upper_bound(first_.begin(), first_.end(), unit);
  const std::int64_t entry = after - first_.begin() - 1, in_entry = unit - after[-1];
  const std::int64_t of_head = core::ceil_div(length(entry), step_);
  return {entry, in_entry / of_head, in_entry % of_head * step_};
}

std::vector<Region> Line::regions(std::int64_t begin, std::int64_t end) const {
  std::vector<Region> regions;
  if (begin >= end) return regions;
  Place at = place(begin);
  const Place to = place(end);
  const IndexRange all{0, longest_};
  if (at.position > 0) {  // the rest of a head
    const bool ends_here = at.entry == to.entry && at.head == to.head;
    const std::int64_t last = ends_here ? to.position : length(at.entry);
    regions.push_back({{at.entry, at.entry + 1}, {at.head, at.head + 1}, {at.position, last}});
    if (ends_here) return regions;
    at = at.head + 1 < heads_ ? Place{at.entry, at.head + 1, 0} : Place{at.entry + 1, 0, 0};
  }
  if (at.head > 0 && at.entry < to.entry) {  // the rest of an entry
    regions.push_back({{at.entry, at.entry + 1}, {at.head, heads_}, all});
    at = {at.entry + 1, 0, 0};
  }
  if (at.entry < to.entry) {
    regions.push_back({{at.entry, to.entry}, {0, heads_}, all});
    at = {to.entry, 0, 0};
  }
  if (at.head < to.head) {
    regions.push_back({{at.entry, at.entry + 1}, {at.head, to.head}, all});
    at.head = to.head;
  }
  if (to.position > 0)
    regions.push_back({{at.entry, at.entry + 1}, {at.head, at.head + 1}, {0, to.position}});
  return regions;
}

}  // namespace attn

AttentionDivision::AttentionDivision(const AttentionPlan& plan, std::int64_t ranks) {
  core::require_ranks(ranks);
  attn::Division made;
  made.plan = plan.plan_;
  made.ranks = ranks;
  if (ranks > 1) attn::divide(made);
  division_ = std::make_shared<const attn::Division>(std::move(made));
}

std::int64_t AttentionDivision::ranks() const { return division_->ranks; }

namespace {

void require_rank(const attn::Division& division, std::int64_t rank) {
  if (rank < 0 || rank >= division.ranks)
    throw core::usage("there is no rank {} of {}", rank, division.ranks);
}

}  // namespace

std::vector<AttentionPart> AttentionDivision::parts(std::int64_t rank) const {
  const attn::Division& d = *division_;
  require_rank(d, rank);
  if (d.lines.empty()) return {attn::whole_part(*d.plan)};
  const std::int64_t begin = d.bounds.at(static_cast<std::size_t>(rank)),
                     end = d.bounds.at(static_cast<std::size_t>(rank + 1));
  const double all = d.costs_before.back(), share = all > 0 ? d.cost(rank) / all : 0;
  std::vector<AttentionPart> parts;
  std::int64_t first = 0;
  for (const attn::Line& line : d.lines) {
    const auto within = [&](std::int64_t unit) {
      return std::clamp<std::int64_t>(unit - first, 0, line.units());
    };
    for (const attn::Region& region : line.regions(within(begin), within(end)))
      parts.push_back({line.makes(), region.entries, region.heads, region.positions, share});
    first += line.units();
  }
  return parts;
}

AttentionOperands<ArrayBox> AttentionDivision::needs(const AttentionPart& part) const {
  return attn::needs_of(*division_->plan, part);
}

std::vector<std::optional<ArrayBox>> AttentionDivision::makes(const AttentionPart& part) const {
  return attn::made_by(*division_->plan, part);
}

namespace {

struct BoxBytes {
  AttentionOperands<std::int64_t> all, most;
  std::int64_t written = 0;
};
BoxBytes bytes_of_boxes(const AttentionDivision& division, const attn::Plan& plan, std::int64_t rank) {
  BoxBytes bytes;
  for (const AttentionPart& part : division.parts(rank)) {
    for_each_operand(
        [](const char*, const auto& box, const auto& type, auto& all, auto& most) {
          if (!box) return;
          const std::int64_t own = byte_count(box->count, type->dtype);
          all = core::sum_of_bytes({all.value_or(0), own});
          most = std::max(most.value_or(0), own);
        },
        division.needs(part), plan.types, bytes.all, bytes.most);
    const auto made = division.makes(part);
    for (std::size_t r = 0; r < made.size(); ++r)
      if (made[r])
        bytes.written =
            core::sum_of_bytes({bytes.written, byte_count(made[r]->count, plan.results[r].type.dtype)});
  }
  return bytes;
}

std::int64_t work_bytes(const AttentionDivision& division, const attn::Plan& plan, std::int64_t rank) {
  std::int64_t most = 0;
  for (const AttentionPart& part : division.parts(rank)) most = std::max(most, attn::part_bytes(plan, part));
  return core::sum_of_bytes({attn::thread_bytes(plan.setup), plan.mask_bytes(), most});
}

}  // namespace

RankWork AttentionDivision::share(std::int64_t rank) const {
  require_rank(*division_, rank);
  const attn::Plan& plan = *division_->plan;
  const attn::CheckedArguments& setup = plan.setup;
  RankWork share;
  share.cost = division_->lines.empty() ? attn::kOperations * plan.blocks().nanoseconds(setup) *
                                              attn::passes_of(plan, attn::whole_part(plan).makes)
                                        : division_->cost(rank);
  const BoxBytes bytes = bytes_of_boxes(*this, plan, rank);
  for_each_operand([&](const char*, const auto& all) { share.read_bytes += all.value_or(0); }, bytes.all);
  share.written_bytes = bytes.written;
  share.peak_bytes = work_bytes(*this, plan, rank);
  return share;
}

std::int64_t AttentionDivision::peak_bytes(std::int64_t rank, const AttentionMemory& memory) const {
  const attn::Plan& plan = *division_->plan;
  const BoxBytes bytes = bytes_of_boxes(*this, plan, rank);
  std::int64_t peak = core::sum_of_bytes({work_bytes(*this, plan, rank), bytes.written});
  const auto add = [&](std::int64_t more) { peak = core::sum_of_bytes({peak, more}); };
  for_each_operand(
      [&](const char*, const auto& most, const auto& is_read) {
        if (is_read.value_or(false)) add(most.value_or(0));
      },
      bytes.most, memory.read);
  if (memory.boxes_keys) add(attn::decode_box_bytes(plan.setup));
  if (rank > 0 || !memory.verdict_bytes) return peak;
  if (ranks() > 1) {  // all operands and results beside its own parts
    add(plan.result_bytes());
    for_each_operand(
        [&](const char*, const auto& type, const auto& is_read) {
          if (type && is_read.value_or(false)) add(type->bytes());
        },
        plan.types, memory.read);
  }
  add(*memory.verdict_bytes);
  return peak;
}

}  // namespace ejk
