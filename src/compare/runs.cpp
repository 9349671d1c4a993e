// Comparison of repeated runs. Those with the same bytes in a box, usually all of them, are processed as one.
// Equality of whole runs is the intersection of that of their boxes. Cost: reading all runs once; some
// nanoseconds an element and distinct run in boxes that differ.
// tests: tests/compare/test_runs.cpp
#include "ejk/program/runs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "arrays/boxes.hpp"
#include "arrays/cast.hpp"
#include "compare/difference_pass.hpp"
#include "compare/element_comparer.hpp"
#include "compare/error_stats.hpp"
#include "compare/extreme.hpp"
#include "compare/hypothesis.hpp"
#include "compare/report_parts.hpp"
#include "compare/where.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kBlockOfRuns = verify::ElementComparer::kBlock;
constexpr std::int64_t kBytesOfRuns = std::int64_t{8} << 20;  // of all runs' pieces together, about
constexpr std::int64_t kLeastPiece = std::int64_t{64} << 10, kMostPiece = std::int64_t{4} << 20;

using Sources = std::vector<std::shared_ptr<const ArraySource>>;
using verify::Naming;

// For each run the first one that is equal to it.
using Firsts = std::vector<std::int64_t>;

Firsts meet(const Firsts& x, const Firsts& y) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> first;
  Firsts both(x.size());
  for (std::size_t r = 0; r < x.size(); ++r)
    both[r] = first.try_emplace({x[r], y[r]}, static_cast<std::int64_t>(r)).first->second;
  return both;
}

std::vector<std::int64_t> groups_of(const Firsts& firsts) {
  std::map<std::int64_t, std::int64_t> group;
  std::vector<std::int64_t> groups;
  for (const std::int64_t first : firsts)
    groups.push_back(group.try_emplace(first, static_cast<std::int64_t>(group.size())).first->second);
  return groups;
}

std::int64_t distinct_in(const std::vector<std::int64_t>& groups) {
  return groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end()) + 1;
}

std::int64_t elements_of_run(std::size_t runs, DType dtype) {
  const std::int64_t bytes =
      std::clamp(kBytesOfRuns / static_cast<std::int64_t>(runs), kLeastPiece, kMostPiece);
  return bytes / size_of(dtype);
}

struct SpreadFound {
  Extreme least, largest;
  std::int64_t least_run = 0, largest_run = 0;
};

template <class W>
double amount_between(W x, W y) {
  if constexpr (std::is_floating_point_v<W>)
    return std::abs(static_cast<double>(x) - static_cast<double>(y));
  else
    return verify::difference(x, y);
}

struct RunsPart {
  struct OfRun {
    std::int64_t differing = 0, beyond = 0;
    double max_difference = -1;  // below 0: none
  };

  Firsts firsts;
  std::vector<OfRun> runs;
  std::int64_t moving = 0, nonfinite = 0;
  std::int64_t first_moving = INT64_MAX, first_nonfinite = INT64_MAX;
  verify::Largest<std::int64_t, SpreadFound> spread;
  verify::PositionCounts moving_at;

  std::vector<std::vector<std::byte>> buffers;
  std::vector<const std::byte*> data;
  std::vector<std::uint8_t> moves;
  verify::ElementComparer::Workspace workspace;

  RunsPart(std::size_t count, const Shape& shape, const verify::TileGrid& grid)
      : firsts(count, 0), runs(count), moving_at(shape, grid), buffers(count), data(count) {}

  void join(const RunsPart& other) {
    firsts = meet(firsts, other.firsts);
    for (std::size_t r = 0; r < runs.size(); ++r) {
      runs[r].differing += other.runs[r].differing;
      runs[r].beyond += other.runs[r].beyond;
      runs[r].max_difference = std::max(runs[r].max_difference, other.runs[r].max_difference);
    }
    moving += other.moving;
    nonfinite += other.nonfinite;
    first_moving = std::min(first_moving, other.first_moving);
    first_nonfinite = std::min(first_nonfinite, other.first_nonfinite);
    spread.join(other.spread);
    moving_at.join(other.moving_at);
  }
};

// Runs of one dtype and shape, compared with the first.
class RunsPass {
 public:
  RunsPass(const Sources& runs, verify::TileGrid grid, const std::optional<verify::ElementComparer>& judge)
      : dtype_(runs[0]->dtype()), shape_(runs[0]->shape()), grid_(grid), judge_(judge) {
    for (const auto& run : runs) readers_.emplace_back(*run);
  }

  RunsPart run(core::Progress& progress) const {
    const arrays::Boxes boxes(shape_, elements_of_run(readers_.size(), dtype_));
    const double each = static_cast<double>(readers_.size());
    const int threads = threads_of(boxes, each);
    RunsPart all(readers_.size(), shape_, grid_);
    core::parallel_reduce(
        boxes.size(), threads, [&] { return RunsPart(readers_.size(), shape_, grid_); },
        [&](RunsPart& part, std::int64_t box) {
          for (std::size_t r = 0; r < readers_.size(); ++r)
            part.data[r] = readers_[r].acquire(boxes, box, part.buffers[r]);
          compare_box(boxes, box, part);
          for (const arrays::BoxReader& reader : readers_) reader.release(boxes, box);
          progress.add(boxes.elements(box));
        },
        [&](const RunsPart& part) { all.join(part); });
    return all;
  }

 private:
  // One of those whose bytes of a box are the same, and all of them.
  struct Kind {
    const std::byte* data;
    std::vector<std::size_t> runs;
  };

  int threads_of(const arrays::Boxes& boxes, double each) const {
    int threads = readers_[0].threads(boxes, each);
    for (const arrays::BoxReader& reader : readers_) threads = std::min(threads, reader.threads(boxes, each));
    return threads;
  }

  void compare_box(const arrays::Boxes& boxes, std::int64_t box, RunsPart& part) const {
    const auto b = static_cast<std::size_t>(box);
    const std::int64_t n = boxes.elements(box), size = size_of(dtype_);
    if (n == 0) return;
    std::vector<Kind> kinds;
    Firsts firsts;
    for (std::size_t r = 0; r < readers_.size(); ++r) {
      const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
        return std::memcmp(kind.data, part.data[r], static_cast<std::size_t>(n * size)) == 0;
      });
      firsts.push_back(static_cast<std::int64_t>(same == kinds.end() ? r : same->runs[0]));
      if (same == kinds.end())
        kinds.push_back({part.data[r], {r}});
      else
        same->runs.push_back(r);
    }
    if (kinds.size() == 1) return;
    part.firsts = meet(part.firsts, firsts);
    part.moves.assign(static_cast<std::size_t>(n), 0);
    for (std::int64_t begin = 0; begin < n; begin += kBlockOfRuns)
      compare_block(kinds, begin, std::min(kBlockOfRuns, n - begin), boxes.before[b], part);
    count_by_index(boxes.starts[b], boxes.counts[b], part);
  }

  void compare_block(const std::vector<Kind>& kinds, std::int64_t begin, std::int64_t n, std::int64_t before,
                     RunsPart& part) const {
    const std::int64_t size = size_of(dtype_);
    std::uint8_t* moves = part.moves.data() + begin;
    const std::byte* first = kinds[0].data + begin * size;
    bool any = false;
    for (std::size_t k = 1; k < kinds.size(); ++k) {
      const std::byte* other = kinds[k].data + begin * size;
      if (std::memcmp(first, other, static_cast<std::size_t>(n * size)) == 0) continue;
      any = true;
      std::int64_t differing = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const bool differs =
            std::memcmp(first + i * size, other + i * size, static_cast<std::size_t>(size)) != 0;
        differing += differs;
        moves[i] |= static_cast<std::uint8_t>(differs);
      }
      std::int64_t beyond = 0;
      if (judge_) {
        std::uint8_t flags[kBlockOfRuns];
        beyond = judge_->mark(other, first, n, part.workspace, flags);
      }
      for (const std::size_t r : kinds[k].runs) {
        part.runs[r].differing += differing;
        part.runs[r].beyond += beyond;
      }
    }
    if (!any) return;
    dispatch(dtype_, [&]<class T>(std::type_identity<T>) {
      for (std::int64_t i = 0; i < n; ++i)
        if (moves[i] != 0) compare_element<T>(kinds, begin + i, before + begin + i, part);
    });
  }

  // Element i of a box, which is element `at` of the array.
  template <class T>
  void compare_element(const std::vector<Kind>& kinds, std::int64_t i, std::int64_t at,
                       RunsPart& part) const {
    using W = arrays::Wide<T>;
    const auto value_in = [i](const Kind& kind) {
      arrays::Stored<T> stored;
      std::memcpy(&stored, kind.data + i * static_cast<std::int64_t>(sizeof stored), sizeof stored);
      return arrays::widen<T>(stored);
    };
    const auto is_finite = [](W value) {
      if constexpr (std::is_floating_point_v<W>) return std::isfinite(value);
      return true;
    };
    ++part.moving;
    part.first_moving = std::min(part.first_moving, at);
    const W first = value_in(kinds[0]);
    std::size_t finite = 0, finite_runs = 0;
    W least{}, largest{};
    const Kind *of_least = nullptr, *of_largest = nullptr;
    for (const Kind& kind : kinds) {
      const W value = value_in(kind);
      if (!is_finite(value)) continue;
      finite_runs += kind.runs.size();
      if (finite++ == 0 || value < least) least = value, of_least = &kind;
      if (finite == 1 || value > largest) largest = value, of_largest = &kind;
      if (&kind == kinds.data() || !is_finite(first)) continue;
      const double difference = amount_between(value, first);
      for (const std::size_t r : kind.runs)
        part.runs[r].max_difference = std::max(part.runs[r].max_difference, difference);
    }
    if (finite < kinds.size()) {
      ++part.nonfinite;
      part.first_nonfinite = std::min(part.first_nonfinite, at);
    }
    if (finite_runs < 2) return;
    part.spread.see(
        amount_between(largest, least), at,
        {verify::extreme(least), verify::extreme(largest), static_cast<std::int64_t>(of_least->runs[0]),
         static_cast<std::int64_t>(of_largest->runs[0])});
  }

  void count_by_index(const Shape& start, const Shape& count, RunsPart& part) const {
    if (shape_.empty()) return;
    Shape at = start;
    const std::uint8_t* moves = part.moves.data();
    do {
      const std::int64_t n = count.back(), moving = std::accumulate(moves, moves + n, std::int64_t{0});
      if (moving > 0) part.moving_at.add_line(at, n, moves, moving);
      moves += n;
    } while (verify::next_line(at, start, count));
  }

  DType dtype_;
  Shape shape_;
  verify::TileGrid grid_;
  std::optional<verify::ElementComparer> judge_;
  std::vector<arrays::BoxReader> readers_;
};

// The part of the array with all moving elements; empty: they follow no axis.
std::string followed(const Naming& naming, const std::vector<AxisDifferences>& axes, std::int64_t moving) {
  verify::Scope scope(axes.size());
  for (std::size_t d = 0; d < axes.size(); ++d) {
    const auto length = static_cast<double>(axes[d].length);
    const auto indices = static_cast<double>(axes[d].indices), elements = static_cast<double>(moving);
    const double expected = length * -std::expm1(elements * std::log1p(-1 / length));
    // Likelihood of m random elements on k of n indices: (k / n)^m for each choice of these.
    const double log_chance = std::lgamma(length + 1) - std::lgamma(indices + 1) -
                              std::lgamma(length - indices + 1) + elements * std::log(indices / length);
    if (axes[d].length > 1 && indices <= 0.75 * expected && log_chance < std::log(0.01))
      scope.axes[d] = axes[d].ranges;
  }
  return naming.part(scope);
}

void add_where(const RunsPart& part, const Naming& naming, RunsComparison& result) {
  if (part.moving == 0) return;
  const auto at = [&](std::int64_t flat) { return core::index_of(result.shape, flat); };
  result.first_moving = at(part.first_moving);
  if (part.nonfinite > 0) result.first_nonfinite = at(part.first_nonfinite);
  if (part.spread.found) {
    const SpreadFound& found = part.spread.item;
    result.max_spread = Spread{at(part.spread.at), part.spread.measure, found.least,
                               found.largest,      found.least_run,     found.largest_run};
  }
  if (result.shape.empty()) return;
  result.axes = verify::axes_of(naming, part.moving_at);
  result.parts = verify::runs_of(naming, part.moving_at);
  if (part.moving_at.grid.rows > 0) result.tiles = verify::tiles_of(result.shape, part.moving_at);
  result.follows = followed(naming, result.axes, part.moving);
}

Naming naming_of_runs(const Shape& shape, const RunsOptions& options) {
  return verify::naming_of(shape, {{}, options.axes, options.group_sizes, options.cu_seqlens, options.tile});
}

// Why a run was not compared with the first by element; empty: it was.
std::string why_apart(const RunResult& run, bool is_of_files) {
  if (!run.has_array) return is_of_files ? "lacks an array" : "lacks the array";
  if (run.has_type) return "";
  return is_of_files ? "has an array of another dtype or shape" : "another dtype or shape";
}

}  // namespace

RunsComparison compare_runs(std::span<const std::shared_ptr<const ArraySource>> runs,
                            const RunsOptions& options,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) {
  verify::require_tolerances({options.rtol, options.atol});
  // Those of one type, and the first of all that have the array.
  std::vector<std::vector<std::size_t>> alike;
  Firsts firsts;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto same = std::find_if(alike.begin(), alike.end(), [&](const auto& others) {
      const auto& other = runs[others[0]];
      if (!runs[r] || !other) return !runs[r] && !other;
      return runs[r]->dtype() == other->dtype() && runs[r]->shape() == other->shape();
    });
    firsts.push_back(static_cast<std::int64_t>(same == alike.end() ? r : (*same)[0]));
    if (same == alike.end())
      alike.push_back({r});
    else
      same->push_back(r);
  }
  const auto first = std::find_if(alike.begin(), alike.end(),
                                  [&](const auto& others) { return runs[others[0]] != nullptr; });
  if (first == alike.end()) throw Error(Error::Kind::usage, "there is no run to look at");

  RunsComparison result;
  result.runs.resize(runs.size());
  const ArraySource& reference = *runs[(*first)[0]];
  result.dtype = reference.dtype();
  result.shape = reference.shape();
  result.elements = element_count(result.shape);
  const Naming naming = naming_of_runs(result.shape, options);
  const verify::TileGrid grid =
      verify::grid_of(result.shape, options.tile, verify::tile_axes_of(naming, options.tile_axes));
  std::optional<verify::ElementComparer> judge;
  if (options.rtol || options.atol) {
    const DefaultTolerance usual = default_tolerance(result.dtype, result.dtype);
    result.rtol = options.rtol.value_or(usual.rtol);
    result.atol = options.atol.value_or(usual.atol);
    judge.emplace(result.dtype, result.dtype, verify::ElementComparer::Rule{*result.rtol, *result.atol});
  }

  std::int64_t all = 0;
  for (const auto& others : alike)
    if (runs[others[0]]) all += element_count(runs[others[0]]->shape());
  core::Progress done(progress, all);
  for (const auto& others : alike) {
    if (!runs[others[0]]) continue;
    const bool is_first = &others == &*first;
    Sources sources;
    for (const std::size_t r : others) sources.push_back(runs[r]);
    const RunsPart part =
        RunsPass(sources, is_first ? grid : verify::TileGrid{}, is_first ? judge : std::nullopt).run(done);
    for (std::size_t i = 0; i < others.size(); ++i) {
      const RunsPart::OfRun& of = part.runs[i];
      firsts[others[i]] = static_cast<std::int64_t>(others[static_cast<std::size_t>(part.firsts[i])]);
      if (!is_first) continue;
      RunResult& run = result.runs[others[i]];
      run.has_type = true;
      run.differing = of.differing, run.beyond = of.beyond;
      if (of.max_difference >= 0) run.max_difference = of.max_difference;
    }
    if (!is_first) continue;
    result.moving = part.moving;
    result.nonfinite = part.nonfinite;
    add_where(part, naming, result);
  }
  const std::vector<std::int64_t> groups = groups_of(firsts);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    result.runs[r].group = groups[r];
    result.runs[r].has_array = runs[r] != nullptr;
  }
  result.distinct = distinct_in(groups);
  result.equal = result.distinct == 1;
  result.close = result.equal;
  if (judge)
    result.close = std::all_of(result.runs.begin(), result.runs.end(),
                               [](const RunResult& run) { return run.has_type && run.beyond == 0; });
  return result;
}

std::int64_t runs_bytes(std::span<const std::shared_ptr<const ArraySource>> runs,
                        const RunsOptions& options) {
  std::int64_t copied = 0, counted = 0, planned = 0;
  bool in_order = false;
  const ArraySource* first = nullptr;
  for (const auto& run : runs) {
    if (!run) continue;
    const Shape& shape = run->shape();
    const std::int64_t elements = element_count(shape);
    const std::int64_t piece = std::min(elements, elements_of_run(runs.size(), run->dtype()));
    const bool is_at_hand = run->mapped() && run->mapped()->is_c_contiguous();
    copied += is_at_hand ? 0 : piece * size_of(run->dtype());
    in_order = in_order || !run->random_access();
    std::int64_t counts = piece;
    for (const std::int64_t length : shape) counts += 8 * verify::IndexCounts::bins_of(length);
    if (first == nullptr) {
      first = run.get();
      const verify::TileGrid grid = verify::grid_of(
          shape, options.tile, verify::tile_axes_of(naming_of_runs(shape, options), options.tile_axes));
      counts += 8 * grid.rows * grid.columns;
    }
    counted = std::max(counted, counts);
    const std::int64_t pieces = elements / std::max<std::int64_t>(piece, 1) + 1;
    planned = std::max(planned, pieces * arrays::bytes_of_a_box(shape.size()));
  }
  return (in_order ? 1 : threads()) * (copied + counted) + counted + planned;
}

namespace {

// All arrays together: counts summed, runs equal that are equal in each array.
struct RunsSum {
  RunsComparison all;
  std::vector<std::int64_t> groups;     // of equal runs
  bool is_one = false;                  // array, without a name
  const RunsOfArray* widest = nullptr;  // with the largest spread
};

RunsSum sum_of(std::span<const RunsOfArray> arrays, std::size_t runs) {
  RunsSum sum;
  RunsComparison& all = sum.all;
  sum.is_one = arrays.size() == 1 && arrays[0].array.empty();
  all.close = true;
  all.runs.resize(runs);
  for (RunResult& run : all.runs) run.has_array = run.has_type = true;
  Firsts firsts(runs, 0);
  for (const RunsOfArray& one : arrays) {
    const RunsComparison& found = one.found;
    all.close = all.close && one.why.empty() && found.close;
    if (!one.why.empty()) continue;
    if (found.rtol) all.rtol = found.rtol, all.atol = found.atol;
    all.elements += found.elements, all.moving += found.moving, all.nonfinite += found.nonfinite;
    if (found.max_spread && (!sum.widest || found.max_spread->amount > sum.widest->found.max_spread->amount))
      sum.widest = &one;
    Firsts groups;
    for (std::size_t r = 0; r < runs; ++r) {
      const RunResult& run = found.runs[r];
      RunResult& total = all.runs[r];
      groups.push_back(run.group);
      total.differing += run.differing, total.beyond += run.beyond;
      total.has_array = total.has_array && run.has_array;
      total.has_type = total.has_type && run.has_type;
      if (run.max_difference)
        total.max_difference = std::max(total.max_difference.value_or(0), *run.max_difference);
    }
    firsts = meet(firsts, groups);
  }
  sum.groups = groups_of(firsts);
  all.distinct = distinct_in(sum.groups);
  return sum;
}

void add_counts(const RunsSum& sum, std::span<const std::string> names, Report& report) {
  const RunsComparison& all = sum.all;
  const Spread* spread = sum.widest == nullptr ? nullptr : &*sum.widest->found.max_spread;
  report.add("count", "runs", std::ssize(names), Unit::count)
      .add("distinct", "distinct", all.distinct, Unit::count)
      .add("elements", "elements of a run", all.elements, Unit::count)
      .add("moving", "that move", all.moving, Unit::count)
      .add("moving_share", "share of those", share_of(all.moving, all.elements), Unit::share)
      .add("nonfinite", "NaN or infinite in some runs", all.nonfinite, Unit::count)
      .add("max_spread", "largest spread",
           spread != nullptr ? ReportValue(spread->amount)
           : all.moving == 0 ? ReportValue(0.0)
                             : ReportValue())
      .add("max_spread_index", "at", spread != nullptr ? ReportValue(spread->index) : ReportValue());
  if (!sum.is_one)
    report.add("max_spread_array", "in", spread != nullptr ? ReportValue(sum.widest->array) : ReportValue());
  if (spread == nullptr) return;
  const auto run_name = [&](std::int64_t run) { return names[static_cast<std::size_t>(run)]; };
  report.add(Table{"ends",
                   "the largest spread",
                   {{"least", "from", Unit::value},
                    {"largest", "to", Unit::value},
                    {"least_run", "in"},
                    {"largest_run", "and in"}},
                   {{verify::value_of(spread->least), verify::value_of(spread->largest),
                     run_name(spread->least_run), run_name(spread->largest_run)}}});
}

Table table_of_equal_runs(const RunsSum& sum, std::span<const std::string> names, bool all_compared) {
  constexpr std::size_t kNamed = 6;
  Table equal{"groups",
              all_compared ? "runs that are equal bit for bit"
                           : "runs that are equal bit for bit in the arrays that could be compared",
              {{"group", "group"}, {"count", "runs"}, {"which", "which"}},
              {}};
  for (std::int64_t group = 0; group < sum.all.distinct; ++group) {
    std::vector<std::string> which;
    std::int64_t count = 0;
    for (std::size_t r = 0; r < names.size(); ++r)
      if (sum.groups[r] == group && ++count <= static_cast<std::int64_t>(kNamed)) which.push_back(names[r]);
    const std::int64_t more = count - std::ssize(which);
    equal.rows.push_back(
        {group, count,
         fmt::format("{}{}", fmt::join(which, ", "), more > 0 ? fmt::format(" and {} more", more) : "")});
  }
  return equal;
}

Table table_of_runs(const RunsSum& sum, std::span<const std::string> names) {
  const std::vector<RunResult>& results = sum.all.runs;
  const auto is_beyond = [](const RunResult& run) { return run.beyond > 0; };
  const auto has_type = [](const RunResult& run) { return run.has_type; };
  Table each{"results",
             sum.all.distinct > 1 ? "each beside the first" : "",
             {{"run", "run"},
              {"group", "group"},
              {"differing", "differ"},
              {"max_difference", "by up to"},
              {"beyond", "beyond the tolerance", Unit::none,
               std::none_of(results.begin(), results.end(), is_beyond)},
              {"why", "why", Unit::none, std::all_of(results.begin(), results.end(), has_type)}},
             {}};
  if (sum.all.distinct == 1) each.text_rows = 0;
  for (std::size_t r = 0; r < names.size(); ++r) {
    const RunResult& run = results[r];
    const auto counted = [&](std::int64_t n) {
      return run.has_type || !sum.is_one ? ReportValue(n) : ReportValue();
    };
    each.rows.push_back({names[r], sum.groups[r], counted(run.differing),
                         verify::value_or_null(run.max_difference), counted(run.beyond),
                         verify::text_or_null(why_apart(run, !sum.is_one))});
  }
  return each;
}

Table table_of_arrays(std::span<const RunsOfArray> arrays, std::span<const std::string> names) {
  Table table{"arrays",
              "arrays",
              {{"array", "array"},
               {"close", "close"},
               {"distinct", "distinct"},
               {"elements", "elements", Unit::none, true},
               {"moving", "move"},
               {"max_spread", "spread"},
               {"max_spread_index", "at"},
               {"follows", "follows"},
               {"why", "why", Unit::none, true}},
              {},
              64};
  for (const RunsOfArray& one : arrays) {
    const RunsComparison& found = one.found;
    const bool compared = one.why.empty();
    std::string why = one.why;
    for (std::size_t r = 0; r < names.size() && compared && why.empty(); ++r)
      if (!found.runs[r].has_type)
        why = (found.runs[r].has_array ? "another dtype or shape in " : "not in ") + names[r];
    const auto where = [&](auto value) { return compared ? ReportValue(value) : ReportValue(); };
    table.rows.push_back({one.array, compared && found.close, where(found.distinct), where(found.elements),
                          where(found.moving),
                          found.max_spread ? ReportValue(found.max_spread->amount) : ReportValue(),
                          found.max_spread ? ReportValue(found.max_spread->index) : ReportValue(),
                          verify::text_or_null(found.follows), verify::text_or_null(why)});
    if (!why.empty()) table.columns.back().json_only = false;
  }
  return table;
}

}  // namespace

Report describe_runs(std::span<const RunsOfArray> arrays, std::span<const std::string> names) {
  const RunsSum sum = sum_of(arrays, names.size());
  const RunsComparison* const one = sum.is_one ? &arrays[0].found : nullptr;
  Report runs;
  add_counts(sum, names, runs);
  if (one != nullptr) {
    runs.add("first_moving_index", "first that moves", verify::value_or_null(one->first_moving));
    if (one->nonfinite > 0)
      runs.add("first_nonfinite_index", "first that is NaN or infinite",
               verify::value_or_null(one->first_nonfinite));
    if (one->moving > 0) runs.add("follows", "what moves follows", verify::text_or_null(one->follows));
  }
  runs.add(table_of_equal_runs(
      sum, names,
      std::all_of(arrays.begin(), arrays.end(), [](const RunsOfArray& array) { return array.why.empty(); })));
  runs.add(table_of_runs(sum, names));
  if (one == nullptr) runs.add(table_of_arrays(arrays, names));
  if (one != nullptr && one->moving > 0 && !one->axes.empty()) {
    runs.add(verify::table_of(one->axes, "where they move", "move wholly"));
    if (!one->parts.empty())
      runs.add(verify::table_of(one->parts, "parts", "groups and sequences that move", "moving", "move"));
    if (one->tiles)
      if (auto picture = verify::picture_of(*one->tiles, one->axes,
                                            {"nothing moves", "something moves", "everything moves"}))
        runs.add(*std::move(picture));
  }
  Report report;
  report.add("close", sum.all.rtol ? "close" : "equal", sum.all.close);
  if (one != nullptr && one->rtol)
    report.add("rtol", "rtol, of the first run", *one->rtol).add("atol", "atol", *one->atol);
  report.add(Section{"runs", "runs", std::make_shared<Report>(std::move(runs))});
  return report;
}

}  // namespace ejk
