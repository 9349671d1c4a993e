// Linear attention of another implementation beside its float64 reference, and the known faults that explain it. Faults
// are tried on the first tokens of a few heads; those that explain some of them are computed whole. Memory: the reference
// in float64, and in float32 that of each fault that is tried whole.
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
#include "verdict/recurrence/linear_faults.hpp"
#include "verdict/recurrence/linear_truth.hpp"

namespace ejk {

namespace {

using recurrence::LinearInputs;
using recurrence::LinearPlan;
using recurrence::Sequence;
using recurrence_verdict::HeadResult;
using recurrence_verdict::kAllTokens;
using recurrence_verdict::LinearFault;
using recurrence_verdict::LinearTruth;
using Columns = std::span<const std::int64_t>;

constexpr std::size_t kMostWhole = 5;  // faults that are computed whole

// The last sequence that begins at a token or before it.
std::int64_t sequence_at(const LinearPlan& plan, std::int64_t entry, std::int64_t token) {
  const auto after =
      std::upper_bound(plan.sequences.begin(), plan.sequences.end(), std::pair(entry, token),
                       [](const auto& at, const Sequence& s) { return at < std::pair(s.entry, s.begin); });
  return after - plan.sequences.begin() - 1;
}

// All results of a kernel with a fault, computed by sequence and head where they are used.
class FaultyResult {
 public:
  FaultyResult(const LinearFault& fault, const LinearTruth& truth)
      : fault_(fault),
        truth_(truth),
        plan_(fault.source->plan),
        shared_(plan_.out_heads / plan_.state_heads),
        cells_(plan_.sequences.size() * static_cast<std::size_t>(plan_.state_heads)) {
    writers_.assign(static_cast<std::size_t>(plan_.final_state.shape[0]), -1);
    for (std::size_t n = 0; n < plan_.slots.size(); ++n)
      if (plan_.slots[n].write >= 0)
        writers_[static_cast<std::size_t>(plan_.slots[n].write)] = static_cast<std::int64_t>(n);
  }

  /// Elements of a row of out, and how much larger than the reference its head is; below 0: nothing is predicted.
  double out(std::int64_t entry, std::int64_t token, std::int64_t head, Columns columns, double* values) {
    const std::int64_t n = sequence_at(plan_, entry, token);
    if (fault_.sequence >= 0 && n != fault_.sequence) return -1;
    if (plan_.slots[static_cast<std::size_t>(n)].is_padding) {
      std::fill_n(values, columns.size(), 0.0);
      return 1;
    }
    const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
    const Cell& cell = cell_of(n, head / shared_);
    const float* const row =
        cell.out.data() + ((head % shared_) * s.length + token - s.begin) * plan_.value_size;
    for (std::size_t c = 0; c < columns.size(); ++c) values[c] = row[columns[c]];
    return cell.growth;
  }

  /// The same for row `row` of a final state.
  double state(std::int64_t slot, std::int64_t head, std::int64_t row, Columns columns, double* values) {
    const std::int64_t n = writers_[static_cast<std::size_t>(slot)];
    if (fault_.sequence >= 0 && n != fault_.sequence) return -1;
    std::vector<double> whole(static_cast<std::size_t>(plan_.value_size));
    if (n < 0) {
      const ArrayView& pool = *fault_.source->inputs.initial_state;
      core::load(pool.dtype,
                 pool.data + slot * pool.strides[0] +
                     head * pool.shape[1] / plan_.state_heads * pool.strides[1] + row * pool.strides[2],
                 pool.strides[3], plan_.value_size, whole.data());
    } else {
      std::copy_n(cell_of(n, head).state.begin() + row * plan_.value_size, plan_.value_size, whole.begin());
    }
    for (std::size_t c = 0; c < columns.size(); ++c) values[c] = whole[static_cast<std::size_t>(columns[c])];
    return n < 0 ? 1 : cell_of(n, head).state_growth;
  }

 private:
  struct Cell {
    std::once_flag computed;
    std::vector<float> out, state;
    double growth = 1, state_growth = 1;
  };

  static double growth_of(const std::vector<float>& numbers, double largest) {
    double most = 0;
    for (const float x : numbers)
      if (std::isfinite(x)) most = std::max(most, double{std::abs(x)});
    return largest > 0 ? std::max(1.0, most / largest) : 1;
  }
  const Cell& cell_of(std::int64_t n, std::int64_t head) {
    Cell& cell = cells_[static_cast<std::size_t>(n * plan_.state_heads + head)];
    std::call_once(cell.computed, [&] {
      const HeadResult result = fault_.solve(n, head, kAllTokens);
      cell.out.assign(result.out.begin(), result.out.end());
      cell.state.assign(result.state.begin(), result.state.end());
      cell.growth = growth_of(cell.out, truth_.largest_of_out(n, head, shared_));
      cell.state_growth = growth_of(cell.state, truth_.largest_of_state(n, head));
    });
    return cell;
  }

  const LinearFault& fault_;
  const LinearTruth& truth_;
  const LinearPlan& plan_;
  std::int64_t shared_;
  std::vector<Cell> cells_;
  std::vector<std::int64_t> writers_;
};

// Bounds of a row: what is measured, and the rounding of the result's type.
struct RowBound {
  double absolute = 0, unit = 0, least = 0;

  void operator()(std::span<const double> values, double growth, double* allowed) const {
    for (std::size_t c = 0; c < values.size(); ++c)
      allowed[c] = growth * absolute + unit * (std::isfinite(values[c]) ? std::abs(values[c]) : 0) + least;
  }
};

RowBound rounding_of(DType dtype) {
  const verify::FloatType type = verify::float_type(dtype);
  return {0, type.epsilon() / 2, type.spacing_at(0) / 2};
}

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

class LinearComparison {
 public:
  LinearComparison(const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings,
                   std::optional<FactorType> factors)
      : plan_(types_of(arrays), settings),
        inputs_(plan_, arrays),
        truth_(plan_, inputs_, factors ? factors : usual_factors(arrays)) {}

  LinearAttentionVerdict run(const ActualLinearAttention& given, Explain explain,
                             const std::vector<std::string>& tiles) {
    LinearAttentionVerdict verdict;
    verdict.work = truth_.work;
    verdict.tests_recurrence = truth_.shows_recurrence(plan_, inputs_);
    std::vector<Compared> all;
    const auto add = [&](const char* name, const std::optional<ArrayView>& array, const ArrayType& type,
                         auto rows) {
      if (!array) return verdict.against.not_given.emplace_back(name), void();
      verify::require_given(*array, type.shape, name, name);
      all.push_back(rows(*array));
    };
    add("out", given.out, plan_.out, [&](const ArrayView& array) { return rows_of_out(array); });
    add("final_state", given.final_state, plan_.final_state,
        [&](const ArrayView& array) { return rows_of_final_state(array); });
    if (!tiles.empty() && given.out) all.front().rows.tiles = tiles;
    std::vector<const verify::ResultRows*> results;
    for (const Compared& one : all) results.push_back(&one.rows);
    verify::require_tiles(results, tiles);
    for (Compared& one : all) compare(one, explain, verdict.against);
    return verdict;
  }

 private:
  using Predict = std::function<double(FaultyResult&, std::int64_t row, Columns columns, double* values)>;
  struct Compared {
    verify::ResultRows rows;
    std::function<RowBound(std::int64_t row)> bound_of;
    Predict predict;
    // The sequence and head of the state that a row is of, and its token: the last one for a final state.
    std::function<std::array<std::int64_t, 3>(std::int64_t row)> cell_of;
    // A row of what a fault's solve() returns.
    std::function<const double*(const HeadResult& result, std::int64_t tokens, std::int64_t token,
                                std::int64_t row)>
        row_in;
    bool has_tokens = false;  // rows are of tokens, and not of states
  };

  static std::optional<FactorType> usual_factors(const LinearAttentionArrays& arrays) {
    std::optional<FactorType> type;
    bool is_narrow = true;
    for (const auto& array : {arrays.q, arrays.k, arrays.v}) {
      is_narrow = is_narrow && size_of(array->dtype) == 2;
      if (array->dtype == DType::bfloat16 || !type)
        type = array->dtype == DType::float16 ? FactorType::f16 : FactorType::bf16;
    }
    return is_narrow ? type : std::nullopt;
  }

  Compared rows_of_out(const ArrayView& given) const;
  Compared rows_of_final_state(const ArrayView& given) const;
  void compare(Compared& it, Explain explain, Against& against);
  verify::FaultModel model_of(const Compared& it, const LinearFault& fault) const;
  double share_of(const Compared& it, const LinearFault& fault, const SampledHead& cell) const;
  std::vector<std::vector<const LinearFault*>> likely(const Compared& it, const verify::RowCounts& counts,
                                                      const std::vector<LinearFault>& faults) const;

  LinearPlan plan_;
  LinearInputs inputs_;
  LinearTruth truth_;
};

LinearComparison::Compared LinearComparison::rows_of_out(const ArrayView& given) const {
  const std::int64_t heads = plan_.out_heads, tokens = truth_.tokens, shared = heads / plan_.state_heads;
  const auto entry_of = [=](std::int64_t row) { return row / (tokens * heads); };
  const auto token_of = [=](std::int64_t row) { return row / heads % tokens; };
  Compared it;
  verify::ResultRows& rows = it.rows;
  rows.name = "out";
  rows.dtype = given.dtype;
  rows.rows = plan_.tokens * heads;
  rows.columns = plan_.value_size;
  rows.column = "column";
  rows.columns_name = "columns";
  rows.axes = {{"sequence", "sequences", std::ssize(plan_.sequences), verify::RowAxis::Kind::part},
               {"token", "tokens", tokens, verify::RowAxis::Kind::position},
               {"head", "heads", heads, verify::RowAxis::Kind::part}};
  const bool is_packed = plan_.settings.layout == LinearAttentionLayout::thd;
  rows.array_axes = is_packed ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{0, 1, 2};
  rows.tiles = {"token", "head"};
  const auto sequence_of = [this, entry_of, token_of](std::int64_t row) {
    return sequence_at(plan_, entry_of(row), token_of(row));
  };
  rows.place = [=](std::int64_t row, std::int64_t* at) {
    at[0] = sequence_of(row), at[1] = token_of(row), at[2] = row % heads;
  };
  rows.index = [=, this](std::int64_t row, std::int64_t column) {
    Shape index{entry_of(row), token_of(row), row % heads, column};
    if (plan_.settings.layout == LinearAttentionLayout::bhsd) std::swap(index[1], index[2]);
    if (is_packed && !plan_.has_leading_axis) index.erase(index.begin());
    return index;
  };
  rows.given = [=, view = plan_.in_one_form(given, plan_.value_size)](std::int64_t row, double* values) {
    core::load(view.dtype,
               view.data + entry_of(row) * view.strides[0] + row % heads * view.strides[1] +
                   token_of(row) * view.strides[2],
               view.strides[3], view.shape[3], values);
  };
  it.bound_of = [=, this, rounding = rounding_of(given.dtype)](std::int64_t row) {
    RowBound bound = rounding;
    const std::int64_t n = sequence_of(row);
    const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
    bound.absolute = truth_.out_allowed(n, row % heads, token_of(row) - s.begin);
    return bound;
  };
  rows.expected = [=, this, bound_of = it.bound_of](std::int64_t row, double* values, double* allowed) {
    std::copy_n(truth_.out_row(entry_of(row), row % heads, token_of(row)), plan_.value_size, values);
    bound_of(row)({values, static_cast<std::size_t>(plan_.value_size)}, 1, allowed);
  };
  it.predict = [=](FaultyResult& result, std::int64_t row, Columns columns, double* values) {
    return result.out(entry_of(row), token_of(row), row % heads, columns, values);
  };
  it.cell_of = [=, this](std::int64_t row) {
    const std::int64_t n = sequence_of(row);
    return std::array{n, row % heads / shared,
                      token_of(row) - plan_.sequences[static_cast<std::size_t>(n)].begin};
  };
  it.has_tokens = true;
  it.row_in = [=, this](const HeadResult& result, std::int64_t count, std::int64_t token, std::int64_t row) {
    return result.out.data() + (row % heads % shared * count + token) * plan_.value_size;
  };
  return it;
}

LinearComparison::Compared LinearComparison::rows_of_final_state(const ArrayView& given) const {
  const std::int64_t heads = plan_.state_heads, keys = plan_.key_size, values_size = plan_.value_size;
  const bool has_slots = static_cast<bool>(plan_.settings.slots.read);
  const char* const one = has_slots ? "slot" : "sequence";
  const auto slot_of = [=](std::int64_t row) { return row / (heads * keys); };
  const auto head_of = [=](std::int64_t row) { return row / keys % heads; };
  Compared it;
  verify::ResultRows& rows = it.rows;
  rows.name = "final_state";
  rows.dtype = given.dtype;
  rows.rows = plan_.final_state.shape[0] * heads * keys;
  rows.columns = values_size;
  rows.column = "column";
  rows.columns_name = "columns";
  rows.axes = {{one, std::string(one) + "s", plan_.final_state.shape[0], verify::RowAxis::Kind::part},
               {"head", "heads", heads, verify::RowAxis::Kind::part},
               {"key channel", "key channels", keys, verify::RowAxis::Kind::position}};
  rows.array_axes = {0, 1, 2};
  rows.place = [=](std::int64_t row, std::int64_t* at) {
    at[0] = slot_of(row), at[1] = head_of(row), at[2] = row % keys;
  };
  rows.index = [=, this](std::int64_t row, std::int64_t column) {
    Shape index{slot_of(row), head_of(row), row % keys, column};
    if (plan_.settings.state_layout == StateLayout::vk) std::swap(index[2], index[3]);
    return index;
  };
  rows.given = [=, view = plan_.state_form(given)](std::int64_t row, double* values) {
    core::load(view.dtype,
               view.data + slot_of(row) * view.strides[0] + head_of(row) * view.strides[1] +
                   row % keys * view.strides[2],
               view.strides[3], view.shape[3], values);
  };
  it.bound_of = [=, this, rounding = rounding_of(given.dtype)](std::int64_t row) {
    const std::int64_t n = truth_.writers[static_cast<std::size_t>(slot_of(row))];
    if (n < 0) return given.dtype == plan_.final_state.dtype ? RowBound{} : rounding;
    RowBound bound = rounding;
    bound.absolute = truth_.state_allowed(n, head_of(row));
    return bound;
  };
  rows.expected = [=, this, bound_of = it.bound_of](std::int64_t row, double* values, double* allowed) {
    std::copy_n(truth_.state(slot_of(row), head_of(row)) + row % keys * values_size, values_size, values);
    bound_of(row)({values, static_cast<std::size_t>(values_size)}, 1, allowed);
  };
  it.predict = [=](FaultyResult& result, std::int64_t row, Columns columns, double* values) {
    return result.state(slot_of(row), head_of(row), row % keys, columns, values);
  };
  it.cell_of = [=, this](std::int64_t row) {
    const std::int64_t n = truth_.writers[static_cast<std::size_t>(slot_of(row))];
    const std::int64_t length = n < 0 ? 0 : plan_.sequences[static_cast<std::size_t>(n)].length;
    return std::array{n, head_of(row), length - 1};
  };
  it.row_in = [=](const HeadResult& result, std::int64_t, std::int64_t, std::int64_t row) {
    return result.state.data() + row % keys * values_size;
  };
  return it;
}

// The likeliest first: those that account for most of all sampled heads, apart from those for one or some.
std::vector<std::vector<const LinearFault*>> LinearComparison::likely(
    const Compared& it, const verify::RowCounts& counts, const std::vector<LinearFault>& faults) const {
  const std::vector<SampledHead> heads = sampled_heads(it.rows, counts, plan_, it.cell_of);
  struct Score {
    double mean = 0, most = 0;
  };
  std::vector<Score> scores(faults.size());
  const double nanoseconds = 1e6 * static_cast<double>(heads.size() * faults.size());
  core::parallel_for(std::ssize(faults), nanoseconds, [&](std::int64_t f) {
    Score& score = scores[static_cast<std::size_t>(f)];
    for (const SampledHead& cell : heads) {
      const double share = share_of(it, faults[static_cast<std::size_t>(f)], cell);
      score.mean += share / static_cast<double>(heads.size());
      score.most = std::max(score.most, share);
    }
  });
  std::vector<std::size_t> order(faults.size());
  for (std::size_t f = 0; f < order.size(); ++f) order[f] = f;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a].mean > scores[b].mean; });
  std::vector<std::vector<const LinearFault*>> all(2);
  for (const std::size_t f : order) {
    if (scores[f].most < kLeastShare || all[0].size() + all[1].size() == kMostWhole) continue;
    all[scores[f].mean > 0.95 * scores[order[0]].mean ? 0 : 1].push_back(&faults[f]);
  }
  return all;
}

// The share of sampled elements out of tolerance that a fault accounts for; of a rounding, of their differences.
double LinearComparison::share_of(const Compared& it, const LinearFault& fault,
                                  const SampledHead& cell) const {
  const LinearPlan& source = fault.source->plan;
  const Sequence &own = plan_.sequences[static_cast<std::size_t>(cell.sequence)],
                 &other = source.sequences[static_cast<std::size_t>(cell.sequence)];
  const std::int64_t late = other.begin - own.begin, tokens = std::min(other.length, cell.tokens);
  if (fault.sequence >= 0 && fault.sequence != cell.sequence) return 0;
  const HeadResult result = fault.solve(cell.sequence, cell.head, tokens);
  double agreeing = 0, elements = 0, left = 0, all = 0;
  verify::Row row(it.rows.columns);
  std::vector<double> allowed(row.value.size());
  const verify::FloatType type = verify::float_type(it.rows.dtype);
  for (const std::int64_t r : cell.rows) {
    row.load(it.rows, r);
    const std::int64_t token = it.cell_of(r)[2] - late;
    if (it.has_tokens && (token < 0 || token >= tokens)) continue;
    const double* const values = it.row_in(result, tokens, token, r);
    double growth = 1, size = 0, most = 0;
    for (std::size_t c = 0; c < row.value.size(); ++c) {
      size = std::max(size, std::abs(values[c]));
      most = std::max(most, std::abs(row.expected[c]));
    }
    if (most > 0) growth = std::max(1.0, size / most);
    it.bound_of(r)({values, row.value.size()}, growth, allowed.data());
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

void LinearComparison::compare(Compared& it, Explain explain, Against& against) {
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
  const std::vector<LinearFault> faults = recurrence_verdict::linear_faults(plan_, inputs_, truth_, bad);
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
    for (const auto& some : likely(it, counts, faults)) run(some);
  if (found.empty()) found = search.run({});
  search.report(std::move(found), against);
}

verify::FaultModel LinearComparison::model_of(const Compared& it, const LinearFault& fault) const {
  verify::FaultModel model{fault.kind, fault.text,
                           [&it, result = std::make_shared<FaultyResult>(fault, truth_)](
                               std::int64_t r, Columns columns, double* values, double* allowed) {
                             const double growth = it.predict(*result, r, columns, values);
                             if (growth < 0) return false;
                             it.bound_of(r)({values, columns.size()}, growth, allowed);
                             return true;
                           }};
  model.is_subtle = fault.is_subtle;
  model.needs_numbers = fault.kind != "state" && fault.kind != "empty";
  if (fault.sequence >= 0 && it.rows.axes[0].name == "sequence") model.names_axis = 0;
  return model;
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
  return LinearComparison(arrays, settings, factors).run(given, explain, tiles);
}

std::int64_t bytes_to_compare_linear_attention(const LinearAttentionPlan& plan, Explain explain) {
  const std::int64_t out = element_count(plan.out().shape), states = element_count(plan.final_state().shape),
                     rows = out / plan.internal().value_size + states / plan.internal().value_size;
  constexpr auto kWhole = static_cast<std::int64_t>(kMostWhole * sizeof(float));
  return (out + states) * static_cast<std::int64_t>(sizeof(double)) + verify::bytes_of_rows(rows) +
         (explain == Explain::yes ? (out + states) * kWhole + verify::bytes_of_values(out + states) : 0);
}

}  // namespace ejk
