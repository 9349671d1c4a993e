// Linear attention of another implementation beside its float64 reference, and the known faults that explain it. Faults
// are tried on the first tokens of a few heads; those that explain some of them are computed whole. Memory: the reference
// in float64, and that of each fault that is tried whole.
// tests: tests/verdict/recurrence/test_linear.cpp
#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>

#include "compare/float_type.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "ejk/recurrence_check.hpp"
#include "verdict/against.hpp"
#include "verdict/explain_rows.hpp"
#include "verdict/fault_search.hpp"
#include "verdict/recurrence/linear_comparison.hpp"
#include "verdict/recurrence/linear_faults.hpp"

namespace ejk {

namespace {

using recurrence::LinearPlan;
using recurrence::Sequence;
using recurrence_verdict::Columns;
using recurrence_verdict::FaultyResult;
using recurrence_verdict::HeadResult;
using recurrence_verdict::LinearComparison;
using recurrence_verdict::LinearFault;
using recurrence_verdict::LinearRowsCompared;

constexpr std::size_t kMostWhole = 4;  // faults that are computed whole

// Rows out of tolerance of a sequence's head among its first tokens.
struct SampledHead {
  std::int64_t sequence = 0, head = 0, tokens = 0;
  std::vector<std::int64_t> rows;
};

constexpr double kLeastShare = 0.1;  // of the sampled elements, for a fault to be computed whole
constexpr std::size_t kHeads = 3, kRowsOfHead = 48;
constexpr std::int64_t kTokensAfter = 192;

std::vector<SampledHead> sampled_heads(
    const verify::ResultRows& rows, const verify::RowCounts& counts, const LinearPlan& plan,
    const std::function<std::array<std::int64_t, 3>(std::int64_t row)>& cell_of) {
  std::vector<SampledHead> all(plan.sequences.size() * static_cast<std::size_t>(plan.state_heads));
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (counts.beyond[static_cast<std::size_t>(row)] == 0) continue;
    const auto [n, head, token] = cell_of(row);
    if (n < 0) continue;
    SampledHead& cell = all[static_cast<std::size_t>(n * plan.state_heads + head)];
    cell.sequence = n, cell.head = head;
    if (cell.rows.empty() || token < cell.tokens) cell.tokens = token + 1;
    cell.rows.push_back(row);
  }
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& cell) { return cell.rows.empty(); }),
            all.end());
  // Of the first, the last and the one with most rows.
  std::vector<SampledHead> some;
  const auto most = std::max_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.rows.size() < b.rows.size(); });
  for (const std::size_t i : {static_cast<std::size_t>(most - all.begin()), std::size_t{0}, all.size() - 1})
    if (some.size() < kHeads && i < all.size() && !all[i].rows.empty()) {
      some.push_back(std::move(all[i]));
      all[i].rows.clear();
    }
  for (SampledHead& cell : some) {
    const std::int64_t length = plan.sequences[static_cast<std::size_t>(cell.sequence)].length;
    cell.tokens = std::min(length, cell.tokens + kTokensAfter);
    std::erase_if(cell.rows, [&](std::int64_t row) { return cell_of(row)[2] >= cell.tokens; });
    std::vector<std::int64_t> spread;
    for (std::size_t i = 0; i < std::min(kRowsOfHead, cell.rows.size()); ++i)
      spread.push_back(cell.rows[i * cell.rows.size() / std::min(kRowsOfHead, cell.rows.size())]);
    cell.rows = std::move(spread);
  }
  return some;
}

// The share of sampled elements out of tolerance that a fault accounts for; of a rounding, of their differences.
double share_of(const LinearPlan& plan, const LinearRowsCompared& it, const LinearFault& fault,
                const SampledHead& cell) {
  const LinearPlan& source = fault.source->plan;
  const Sequence &own = plan.sequences[static_cast<std::size_t>(cell.sequence)],
                 &other = source.sequences[static_cast<std::size_t>(cell.sequence)];
  const std::int64_t late = other.begin - own.begin, tokens = std::min(other.length, cell.tokens);
  if (fault.sequence >= 0 && fault.sequence != cell.sequence) return 0;
  if (source.slots[static_cast<std::size_t>(cell.sequence)].is_padding) return 0;
  const HeadResult result = fault.solve(cell.sequence, cell.head, tokens);
  const double most = recurrence_verdict::largest_of(it.has_tokens ? result.out : result.state);
  double agreeing = 0, elements = 0, left = 0, all = 0;
  verify::Row row(it.rows.columns);
  std::vector<double> allowed(row.value.size());
  const verify::FloatType type = verify::float_type(it.rows.dtype);
  for (const std::int64_t r : cell.rows) {
    row.load(it.rows, r);
    const std::int64_t token = it.cell_of(r)[2] - late;
    if (it.has_tokens && (token < 0 || token >= tokens)) continue;
    const double* const values = it.row_in(result, tokens, token, r);
    it.bound_of(r)({values, row.value.size()}, most, allowed.data());
    for (std::size_t c = 0; c < row.value.size(); ++c) {
      if (!(verify::in_bounds(row.result_of(type, c), row.allowed[c]) > 1)) continue;
      elements += 1;
      const double difference = std::abs(row.value[c] - values[c]);
      if (difference <= allowed[c]) agreeing += 1;
      left += difference * difference;
      all += (row.value[c] - row.expected[c]) * (row.value[c] - row.expected[c]);
    }
  }
  if (elements == 0) return 0;
  if (fault.is_subtle) return all > 0 && left < 0.36 * all ? 1 - left / all : 0;
  return agreeing / elements;
}

// The likeliest first: those that account for most of all sampled heads, apart from those for one or some.
std::vector<std::vector<const LinearFault*>> likely(const LinearComparison& of, const LinearRowsCompared& it,
                                                    const verify::RowCounts& counts,
                                                    const std::vector<LinearFault>& faults) {
  const std::vector<SampledHead> heads = sampled_heads(it.rows, counts, of.plan, it.cell_of);
  // A slot that another sequence writes, or none, does not hold the result of its own.
  std::vector<const LinearFault*> of_slots;
  for (const LinearFault& fault : faults)
    if (!it.has_tokens && fault.kind == "slots") of_slots.push_back(&fault);
  if (heads.empty()) return {of_slots};
  struct Score {
    double mean = 0, most = 0;
  };
  std::vector<Score> scores(faults.size());
  const double nanoseconds = 1e6 * static_cast<double>(heads.size() * faults.size());
  core::parallel_for(std::ssize(faults), nanoseconds, [&](std::int64_t f) {
    Score& score = scores[static_cast<std::size_t>(f)];
    for (const SampledHead& cell : heads) {
      const double share = share_of(of.plan, it, faults[static_cast<std::size_t>(f)], cell);
      score.mean += share / static_cast<double>(heads.size());
      score.most = std::max(score.most, share);
    }
  });
  std::vector<std::size_t> order(faults.size());
  for (std::size_t f = 0; f < order.size(); ++f) order[f] = f;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a].mean > scores[b].mean; });
  std::vector<std::vector<const LinearFault*>> all(3);
  all[0] = std::move(of_slots);
  for (const std::size_t f : order) {
    if (scores[f].most < kLeastShare || all[1].size() + all[2].size() == kMostWhole) continue;
    all[scores[f].mean > 0.95 * scores[order[0]].mean ? 1 : 2].push_back(&faults[f]);
  }
  return all;
}

verify::FaultModel model_of(const LinearRowsCompared& it, const LinearFault& fault) {
  verify::FaultModel model{fault.kind, fault.text,
                           [&it, result = std::make_shared<FaultyResult>(fault)](
                               std::int64_t r, Columns columns, double* values, double* allowed) {
                             const double most = it.predict(*result, r, columns, values);
                             if (most < 0) return false;
                             it.bound_of(r)({values, columns.size()}, most, allowed);
                             return true;
                           }};
  model.is_subtle = fault.is_subtle;
  model.needs_numbers = fault.kind != "state" && fault.kind != "empty";
  if (fault.sequence >= 0 && it.rows.axes[0].name == "sequence") model.names_axis = 0;
  return model;
}

void compare(const LinearComparison& of, LinearRowsCompared& it, Explain explain, Against& against) {
  const double row = 2 * static_cast<double>(it.rows.columns);
  const verify::RowCounts counts =
      verify::compare_rows(it.rows, against, row * static_cast<double>(it.rows.rows));
  against.tried = against.tried || explain == Explain::yes;
  if (explain == Explain::no || counts.bad_rows() == 0) return;
  std::vector<std::int64_t> bad;
  for (std::int64_t r = 0; r < it.rows.rows; ++r)
    if (counts.beyond[static_cast<std::size_t>(r)] > 0)
      if (const std::int64_t n = it.cell_of(r)[0]; bad.empty() || bad.back() != n) bad.push_back(n);
  std::sort(bad.begin(), bad.end());
  bad.erase(std::unique(bad.begin(), bad.end()), bad.end());
  const std::vector<LinearFault> faults =
      recurrence_verdict::linear_faults(of.plan, of.inputs, of.truth, bad);
  verify::FaultSearch search(it.rows, counts, row);
  std::vector<verify::Found> found;
  const auto run = [&](const std::vector<const LinearFault*>& some) {
    std::vector<verify::FaultModel> models;
    for (const LinearFault* fault : some) models.push_back(model_of(it, *fault));
    if (!models.empty() && search.is_open())
      for (verify::Found& one : search.run(models)) found.push_back(std::move(one));
  };
  // One fault is likelier than two: what accounts for another array comes first.
  std::vector<const LinearFault*> known;
  for (const LinearFault& fault : faults)
    if (std::any_of(against.explanations.begin(), against.explanations.end(),
                    [&](const auto& other) { return other.text.starts_with(fault.text); }))
      known.push_back(&fault);
  run(known);
  if (search.is_open())
    for (const auto& some : likely(of, it, counts, faults)) run(some);
  if (found.empty()) found = search.run({});
  search.report(std::move(found), against);
}

}  // namespace

std::string_view name_of(FactorType type) {
  constexpr std::string_view kNames[] = {"float32", "tf32", "bfloat16", "float16"};
  return kNames[static_cast<std::size_t>(type)];
}

LinearAttentionVerdict compare_linear_attention(const LinearAttentionArrays& arrays,
                                                const LinearAttentionSettings& settings,
                                                const ActualLinearAttention& given,
                                                std::optional<FactorType> factors, Explain explain,
                                                const std::vector<std::string>& tiles) {
  const LinearComparison of(arrays, settings, factors);
  LinearAttentionVerdict verdict;
  verdict.work = of.truth.work;
  verdict.tests_recurrence = of.truth.shows_recurrence(of.plan, of.inputs);
  std::vector<LinearRowsCompared> all;
  const auto is_given = [&](const char* name, const std::optional<ArrayView>& array, const ArrayType& type) {
    if (array)
      verify::require_given(*array, type.shape, name, name);
    else
      verdict.against.not_given.emplace_back(name);
    return array.has_value();
  };
  if (is_given("out", given.out, of.plan.out)) {
    all.push_back(of.rows_of_out(*given.out));
    if (!tiles.empty()) all.back().rows.tiles = tiles;
  }
  if (is_given("final_state", given.final_state, of.plan.final_state))
    all.push_back(of.rows_of_final_state(*given.final_state));
  std::vector<const verify::ResultRows*> results;
  for (const LinearRowsCompared& one : all) results.push_back(&one.rows);
  verify::require_tiles(results, tiles);
  for (LinearRowsCompared& one : all) compare(of, one, explain, verdict.against);
  return verdict;
}

std::int64_t bytes_to_compare_linear_attention(const LinearAttentionPlan& plan, Explain explain) {
  const std::int64_t out = element_count(plan.out().shape), states = element_count(plan.final_state().shape),
                     rows = out / plan.internal().value_size + states / plan.internal().value_size;
  constexpr auto kWhole = static_cast<std::int64_t>(kMostWhole * sizeof(double));
  return (out + states) * static_cast<std::int64_t>(sizeof(double)) + verify::bytes_of_rows(rows) +
         (explain == Explain::yes ? (out + states) * kWhole + verify::bytes_of_values(out + states) : 0);
}

}  // namespace ejk
