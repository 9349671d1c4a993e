// Search for explanations by values. A hypothesis is accepted if it holds in its scope, or in the scope
// without the indices at which it fails.
// tests: tests/compare/test_value_search.cpp
#include "compare/value_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/checked.hpp"
#include "core/parallel.hpp"

namespace ejk::verify {

namespace {

constexpr std::int64_t kFewestExplained = 8;
constexpr double kLeastFraction = 0.05;  // of what is left: less is not the explanation
constexpr std::size_t kMostExplanations = 6;
constexpr int kMostPasses = 32;

bool holds(const Verdict& verdict) {
  const auto explained = static_cast<double>(verdict.explained);
  return verdict.explained >= kFewestExplained &&
         explained >= 0.95 * static_cast<double>(verdict.explained + verdict.unexplained) &&
         explained >= 0.95 * static_cast<double>(verdict.explained + verdict.contradicted);
}

// Removes indices without an explained element from the scope, or those of the axis that separates best.
// Returns the axis with the most ranges; none if nothing was removed.
std::optional<std::size_t> tighten(Hypothesis& hypothesis, const Verdict& verdict) {
  struct Kept {
    std::vector<IndexRange> ranges;
    std::int64_t explained = 0;
    bool is_less = false;
  };
  const auto kept = [&](std::size_t d, auto&& keep) {
    Kept result;
    const IndexCounts &explained = verdict.explained_at.axes[d], &failed = verdict.failed_at.axes[d];
    std::size_t i = 0;
    result.ranges = explained.ranges([&](std::int64_t n, std::int64_t) {
      const std::int64_t failures = failed.counts[i++];
      const bool stays = n > 0 && keep(n, failures);
      if (stays) result.explained += n;
      result.is_less = result.is_less || (!stays && failures > 0);
      return stays;
    });
    return result;
  };
  std::optional<std::size_t> ragged;
  for (std::size_t d = 0; d < hypothesis.scope.axes.size(); ++d) {
    const std::vector<std::int64_t>& counts = verdict.explained_at.axes[d].counts;
    const std::int64_t most = *std::max_element(counts.begin(), counts.end());
    Kept support = kept(d, [&](std::int64_t n, std::int64_t) { return n >= most / 20; });
    if (!support.is_less) continue;
    hypothesis.scope.axes[d] = std::move(support.ranges);
    if (!ragged || hypothesis.scope.axes[d].size() > hypothesis.scope.axes[*ragged].size()) ragged = d;
  }
  if (ragged) return ragged;
  Kept best;
  for (std::size_t d = 0; d < hypothesis.scope.axes.size(); ++d) {
    Kept clean = kept(d, [](std::int64_t n, std::int64_t failures) { return n >= 19 * failures; });
    if (clean.is_less && clean.explained > best.explained) best = std::move(clean), ragged = d;
  }
  if (best.explained < kFewestExplained) return std::nullopt;
  hypothesis.scope.axes[*ragged] = std::move(best.ranges);
  return ragged;
}

// Single indices here and there, for which it holds by chance.
bool is_scattered(const std::vector<IndexRange>* ranges) {
  return ranges != nullptr && ranges->size() > 4 && indices_in(*ranges) < 4 * std::ssize(*ranges);
}

// Indices here and there with few elements each, which differ alike by chance.
bool is_sparse(const Scope& scope, std::int64_t explained) {
  return std::any_of(scope.axes.begin(), scope.axes.end(), [&](const std::vector<IndexRange>& ranges) {
    return ranges.size() > 4 && explained < 4 * std::ssize(ranges);
  });
}

PassPlan plan_of(const ValueSearch::Subject& subject, std::vector<HypothesisPtr> hypotheses, TileGrid grid,
                 std::vector<bool> chunks) {
  return {subject.actual, subject.expected,  subject.comparer, std::move(hypotheses),
          grid,           std::move(chunks), subject.differing};
}

}  // namespace

ValueSearch::ValueSearch(const Subject& subject, core::Progress::Report progress)
    : subject_(subject), progress_(std::move(progress)) {
  rest_ = run_pass(plan_of(subject_, {}, subject_.grid, {}), progress_);
  all_ = rest_.left;
}

std::vector<HypothesisPtr> ValueSearch::accepted() const {
  std::vector<HypothesisPtr> all;
  for (const auto& [hypothesis, explained] : accepted_) all.push_back(hypothesis);
  return all;
}

// The first hypothesis that holds of those that are possible; none: the search is at its end.
bool ValueSearch::explain_more(std::string& not_tried) {
  const Naming& naming = subject_.naming;
  const bool in_memory = subject_.actual.is_in_memory() && subject_.expected.is_in_memory();
  const auto holds = [&](const HypothesisPtr& hypothesis, const HypothesisKind& kind) {
    if (!hypothesis || passes_ >= kMostPasses) return false;
    if (hypothesis->kind.empty()) hypothesis->kind = kind.name;
    return test(hypothesis);
  };
  for (const HypothesisKind& kind : hypothesis_kinds()) {
    const Evidence evidence{subject_.actual, subject_.expected, subject_.agree, naming, rest_.samples};
    if (kind.reads_elements && !in_memory) {
      not_tried =
          "exchanges, shifts, transpositions, unwritten boxes and scales of blocks, which need both arrays in "
          "memory or in files that are not compressed";
      continue;
    }
    if (kind.find && holds(kind.find(evidence), kind)) return true;
    for (std::size_t axis = 0; kind.find_along && axis < naming.shape.size(); ++axis) {
      if (naming.shape[axis] > kind.longest_axis)
        not_tried = fmt::format("which indices of {} are exchanged: they are more than {}", naming.axes[axis],
                                kind.longest_axis);
      else if (holds(kind.find_along(evidence, axis), kind))
        return true;
    }
  }
  return false;
}

ValueExplanations ValueSearch::run() {
  ValueExplanations found;
  const Naming& naming = subject_.naming;
  while (rest_.left >= kFewestExplained && accepted_.size() < kMostExplanations)
    if (!explain_more(found.not_tried)) break;
  for (const auto& [hypothesis, explained] : accepted_) {
    const std::string part = naming.part(hypothesis->scope, hypothesis->named_axes);
    std::string text = hypothesis->text(hypothesis->scope);
    if (!part.empty()) text.insert(0, part + ": ");
    found.explanations.push_back({hypothesis->kind, std::move(text), explained});
  }
  found.left = rest_.left;
  return found;
}

void ValueSearch::mark_left(std::uint8_t* left) const {
  PassPlan plan = plan_of(subject_, accepted(), {}, {});
  plan.left = left;
  std::fill_n(left, element_count(subject_.naming.shape), std::uint8_t{0});
  run_pass(plan, {});
}

bool ValueSearch::test(const HypothesisPtr& hypothesis) {
  // Where nothing differs it has nothing to explain.
  for (std::size_t d = 0; d < subject_.naming.shape.size(); ++d) {
    if (!hypothesis->scope.axes[d].empty()) continue;
    std::vector<IndexRange> support =
        rest_.left_at.axes[d].ranges([](std::int64_t n, std::int64_t) { return n > 0; });
    if (static_cast<double>(indices_in(support)) < 0.95 * static_cast<double>(subject_.naming.shape[d]))
      hypothesis->scope.axes[d] = std::move(support);
  }
  const std::vector<IndexRange>* narrowed = nullptr;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<HypothesisPtr> all = accepted();
    all.push_back(hypothesis);
    std::vector<bool> chunks = chunks_in(hypothesis->scope, subject_.naming.shape);
    for (std::size_t p = 0; p < chunks.size(); ++p) chunks[p] = chunks[p] || rest_.chunks[p];
    PassResult pass = run_pass(plan_of(subject_, all, {}, chunks), progress_);
    ++passes_;
    const Verdict& verdict = pass.verdicts.back();
    if (holds(verdict) && !is_scattered(narrowed) && !is_sparse(hypothesis->scope, verdict.explained) &&
        static_cast<double>(verdict.explained) >= kLeastFraction * static_cast<double>(rest_.left)) {
      accepted_.emplace_back(hypothesis, verdict.explained);
      rest_ = std::move(pass);
      return true;
    }
    if (verdict.explained < kFewestExplained) return false;
    const auto axis = tighten(*hypothesis, verdict);
    if (!axis) return false;
    narrowed = &hypothesis->scope.axes[*axis];
  }
  return false;
}

}  // namespace ejk::verify
