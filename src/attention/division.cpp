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

// The pairs of each block of queries, and of keys, that masks let be computed.
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
    return between(of(entry, head).queries, setup_.block.q, setup_.q_length(entry), queries);
  }
  double of_keys(std::int64_t entry, std::int64_t head, Positions keys) const {
    if (sums_.empty()) return static_cast<double>(keys.count() * setup_.q_length(entry));
    return between(of(entry, head).keys, setup_.block.kv, setup_.kv_length(entry), keys);
  }

 private:
  // Before each block, and at last of all.
  struct Sums {
    std::vector<double> queries{0}, keys{0};
  };

  void sum(const MaskTiles& tiles, Sums& sums) const {
    if (!tiles.mask) return;
    const std::int64_t q = tiles.summary.q_length, kv = tiles.summary.kv_length;
    const BlockShape block = setup_.block;
    sums.keys.resize(static_cast<std::size_t>(core::ceil_div(kv, block.kv) + 1));
    for (std::int64_t i = 0; i * block.q < q; ++i) {
      const auto rows = static_cast<double>(std::min(block.q, q - i * block.q));
      double of_row = 0;
      for (std::int64_t j = 0; j * block.kv < kv; ++j) {
        if (tiles.state(i, j) == mask::BlockState::empty) continue;
        const double pairs = rows * static_cast<double>(std::min(block.kv, kv - j * block.kv));
        of_row += pairs;
        sums.keys[static_cast<std::size_t>(j + 1)] += pairs;
      }
      sums.queries.push_back(sums.queries.back() + of_row);
    }
    std::partial_sum(sums.keys.begin(), sums.keys.end(), sums.keys.begin());
  }

  // A part of a block has its part of the block's pairs.
  static double before(const std::vector<double>& sums, std::int64_t block, std::int64_t length,
                       std::int64_t position) {
    const std::int64_t b = position / block;
    if (b + 1 >= std::ssize(sums)) return sums.back();
    const double of_block = sums[static_cast<std::size_t>(b + 1)] - sums[static_cast<std::size_t>(b)];
    return sums[static_cast<std::size_t>(b)] + of_block * static_cast<double>(position - b * block) /
                                                   static_cast<double>(std::min(block, length - b * block));
  }
  static double between(const std::vector<double>& sums, std::int64_t block, std::int64_t length,
                        Positions positions) {
    return before(sums, block, length, positions.end) - before(sums, block, length, positions.begin);
  }

  const Sums& of(std::int64_t entry, std::int64_t head) const {
    return sums_[static_cast<std::size_t>(masks_.index_of(entry, head))];
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

bool is_of_keys(Makes makes) { return makes == Makes::gradients || makes == Makes::dk_dv; }

// Operations of a nanosecond of the forward pass, as in MaskPlan::nanoseconds(), softmax included.
constexpr double kOperations = 40;

// Cost of a pair, in forward passes.
double passes_of(const Plan& plan, Makes makes) {
  const auto d = static_cast<double>(plan.setup.shape.head_size),
             dv = static_cast<double>(plan.setup.shape.value_size);
  switch (makes) {
    case Makes::gradients:
      return (3 * d + 2 * dv) / (d + dv) + (plan.types.out ? 0 : 1) + (plan.types.bias ? 1 : 0);
    case Makes::dk_dv:
      return 2;
    case Makes::dq:
      return (2 * d + dv) / (d + dv);
    case Makes::dsinks:
      return 0;
    default:  // dbias: scores and dP
      return 1;
  }
}

void add_costs(const Plan& plan, const ComputedPairs& pairs, const Line& line, std::vector<double>& costs) {
  const CheckedArguments& setup = plan.setup;
  const bool of_keys = is_of_keys(line.makes());
  const std::int64_t heads = of_keys ? setup.group() : 1;  // query heads of a head
  const bool is_delta = line.makes() == Makes::saved && plan.types.out;
  const double passes = kOperations * passes_of(plan, line.makes());
  const auto cost_of_bias = [&](const Region& bias) {
    const Region queries = setup.queries_of_bias(bias), keys = setup.keys_of_bias(bias);
    const bool has_queries = setup.bias_has(BiasAxis::queries);
    double all = 0;
    for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
      for (std::int64_t h = queries.heads.begin; h < queries.heads.end; ++h)
        all += has_queries ? pairs.of_queries(e, h, queries.positions_of(setup.q_length(e)))
                           : pairs.of_keys(e, h, keys.positions_of(setup.kv_length(e)));
    return passes * MaskPlan::nanoseconds(setup, all, 0);
  };
  const auto cost_of_head = [&](std::int64_t entry, std::int64_t head, Positions some) {
    double all = 0;
    if (!is_delta)
      for (std::int64_t h = head * heads; h < (head + 1) * heads; ++h)
        all += of_keys ? pairs.of_keys(entry, h, some) : pairs.of_queries(entry, h, some);
    return passes * MaskPlan::nanoseconds(setup, all, static_cast<double>(some.count() * heads));
  };
  for (std::int64_t unit = 0; unit < line.units(); ++unit) {
    double cost = 0;
    for (const Region& r : line.regions(unit, unit + 1))
      if (line.makes() == Makes::dsinks)
        cost += static_cast<double>(setup.shape.entries * setup.q.shape[2] * r.heads.count());
      else if (line.makes() == Makes::dbias)
        cost += cost_of_bias(r);
      else
        for (std::int64_t e = r.entries.begin; e < r.entries.end; ++e)
          for (std::int64_t h = r.heads.begin; h < r.heads.end; ++h)
            cost += cost_of_head(e, h, r.positions_of(of_keys ? setup.kv_length(e) : setup.q_length(e)));
    costs.push_back(cost);
  }
}

Division::Round round_of(const Plan& plan, const ComputedPairs& pairs, std::vector<Line> lines,
                         std::int64_t ranks) {
  std::vector<double> costs;
  for (const Line& line : lines) add_costs(plan, pairs, line, costs);
  Division::Round round{std::move(lines), {0}, core::even_runs(costs, ranks)};
  for (const double cost : costs) round.costs_before.push_back(round.costs_before.back() + cost);
  return round;
}

double most_of(const Division::Round& round) {
  double most = 0;
  for (std::int64_t m = 0; m + 1 < std::ssize(round.bounds); ++m) most = std::max(most, round.cost(m));
  return most;
}

std::vector<Division::Round> rounds_of(const Plan& plan, std::int64_t ranks) {
  constexpr std::int64_t kFewUnits = 1 << 14, kUnitsOfRank = 256;
  const CheckedArguments& setup = plan.setup;
  const ComputedPairs& pairs = plan.pairs();
  const std::int64_t wanted = std::max(kFewUnits, kUnitsOfRank * ranks);
  const auto line = [&](Makes makes, std::int64_t step) { return Line(setup, makes, step, wanted); };
  const std::int64_t rows = rows_together(setup);
  if (!setup.gradients) return {round_of(plan, pairs, {line(Makes::out, rows)}, ranks)};
  const std::int64_t all = std::max<std::int64_t>(1, setup.longest_keys());
  const BlockShape block = gradient_block(setup);
  auto saved = round_of(plan, pairs, {line(Makes::saved, rows)}, ranks);
  std::vector<Line> lines{line(Makes::dk_dv, block.kv), line(Makes::dq, block.q)};
  if (setup.bias) lines.push_back(line(Makes::dbias, setup.bias_has(BiasAxis::queries) ? block.q : block.kv));
  if (setup.has_sinks()) lines.push_back(line(Makes::dsinks, 1));
  auto along = round_of(plan, pairs, std::move(lines), ranks);
  if (setup.bias || setup.has_sinks()) return {std::move(saved), std::move(along)};
  auto by_heads = round_of(plan, pairs, {line(Makes::gradients, all)}, ranks);
  if (most_of(by_heads) <= most_of(saved) + most_of(along)) return {std::move(by_heads)};
  return {std::move(saved), std::move(along)};
}

}  // namespace

Line::Line(const CheckedArguments& setup, Makes makes, std::int64_t step, std::int64_t wanted)
    : makes_(makes), heads_(is_of_keys(makes) ? setup.shape.kv_heads : setup.shape.heads), step_(step) {
  const bool of_bias = makes == Makes::dbias, of_sinks = makes == Makes::dsinks;
  if (of_bias) heads_ = setup.bias_shape[1];
  for (std::int64_t e = 0; e < (of_sinks ? 1 : of_bias ? setup.bias_shape[0] : setup.shape.entries); ++e) {
    lengths_.push_back(of_sinks            ? 1
                       : of_bias           ? setup.bias_positions()
                       : is_of_keys(makes) ? setup.kv_length(e)
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

Region common(const Region& a, const Region& b) {
  const auto both = [](const IndexRange& x, const IndexRange& y) {
    const std::int64_t begin = std::max(x.begin, y.begin);
    return IndexRange{begin, std::max(begin, std::min(x.end, y.end))};
  };
  return {both(a.entries, b.entries), both(a.heads, b.heads), both(a.positions, b.positions)};
}

namespace {

std::vector<AttentionPart> parts_of(const Division& division, std::int64_t rank, std::size_t round) {
  if (division.rounds.empty()) return {whole_part(*division.plan)};
  const Division::Round& r = division.rounds.at(round);
  const std::int64_t begin = r.bounds.at(static_cast<std::size_t>(rank)),
                     end = r.bounds.at(static_cast<std::size_t>(rank + 1));
  const double all = r.costs_before.back(), share = all > 0 ? r.cost(rank) / all : 0;
  std::vector<AttentionPart> parts;
  std::int64_t first = 0;
  for (const Line& line : r.lines) {
    const auto within = [&](std::int64_t unit) {
      return std::clamp<std::int64_t>(unit - first, 0, line.units());
    };
    for (const Region& region : line.regions(within(begin), within(end)))
      parts.push_back({line.makes(), region.entries, region.heads, region.positions, share});
    first += line.units();
  }
  return parts;
}

}  // namespace

}  // namespace attn

AttentionDivision::AttentionDivision(const AttentionPlan& plan, std::int64_t ranks) {
  core::require_ranks(ranks);
  attn::Division made;
  made.plan = plan.plan_;
  made.ranks = ranks;
  if (ranks > 1) made.rounds = attn::rounds_of(*made.plan, ranks);
  if (made.rounds.size() == 2)
    for (std::size_t round = 0; round < 2; ++round)
      for (std::int64_t m = 0; m < ranks; ++m) {
        std::vector<attn::Region>& regions = made.queries[round].emplace_back();
        for (const AttentionPart& part : attn::parts_of(made, m, round))
          regions.push_back(attn::queries_of(made.plan->setup, part));
      }
  division_ = std::make_shared<const attn::Division>(std::move(made));
}

std::int64_t AttentionDivision::ranks() const { return division_->ranks; }

std::int64_t AttentionDivision::rounds() const {
  return std::max<std::int64_t>(1, std::ssize(division_->rounds));
}

namespace {

void require_rank(const attn::Division& division, std::int64_t rank) {
  if (rank < 0 || rank >= division.ranks)
    throw core::usage("there is no rank {} of {}", rank, division.ranks);
}

}  // namespace

std::vector<AttentionPart> AttentionDivision::parts(std::int64_t rank, std::int64_t round) const {
  require_rank(*division_, rank);
  if (round < 0 || round >= rounds()) throw core::usage("there is no round {} of {}", round, rounds());
  return attn::parts_of(*division_, rank, static_cast<std::size_t>(round));
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
  for (std::int64_t round = 0; round < division.rounds(); ++round)
    for (const AttentionPart& part : division.parts(rank, round)) {
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
  // In two rounds, lse and δ of the parts of both; for a while all of them are there.
  std::int64_t saved = 0, most = 0;
  for (std::int64_t round = 0; round < division.rounds(); ++round)
    for (const AttentionPart& part : division.parts(rank, round)) {
      most = std::max(most, attn::part_bytes(plan, part));
      if (division.rounds() == 2) saved = core::sum_of_bytes({saved, attn::saved_bytes(plan, part)});
    }
  return core::sum_of_bytes({attn::thread_bytes(plan.setup), plan.mask_bytes(), most, saved});
}

}  // namespace

RankWork AttentionDivision::share(std::int64_t rank) const {
  require_rank(*division_, rank);
  const attn::Plan& plan = *division_->plan;
  const attn::CheckedArguments& setup = plan.setup;
  RankWork share;
  if (division_->rounds.empty())
    share.cost = attn::kOperations * plan.blocks().nanoseconds(setup) *
                 attn::passes_of(plan, attn::whole_part(plan).makes);
  for (const attn::Division::Round& round : division_->rounds) share.cost += round.cost(rank);
  const BoxBytes bytes = bytes_of_boxes(*this, plan, rank);
  for_each_operand([&](const char*, const auto& all) { share.read_bytes += all.value_or(0); }, bytes.all);
  share.written_bytes = bytes.written;
  if (rounds() == 2) {
    std::int64_t rows = 0;
    for (std::int64_t to = 0; to < ranks(); ++to) {
      if (to == rank) continue;
      for (const attn::Region& theirs : division_->queries[1][static_cast<std::size_t>(to)])
        for (const attn::Region& own : division_->queries[0][static_cast<std::size_t>(rank)])
          rows += setup.rows(attn::common(own, theirs));
    }
    share.sent_bytes = 2 * rows * size_of(setup.shape.arithmetic);
  }
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
