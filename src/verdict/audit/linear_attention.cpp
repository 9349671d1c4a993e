// Audit of linear attention: mutants are the computation of each head with one change, those that explanations try. Cost:
// a float64 computation for each, token by token ten of them; memory: the reference, and the results of one mutant.
// tests: tests/verdict/audit/test_linear_attention.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "ejk/audit.hpp"
#include "matmul/packed.hpp"
#include "verdict/audit/found.hpp"
#include "verdict/recurrence/linear_comparison.hpp"
#include "verdict/recurrence/rounded_chunks.hpp"

namespace ejk {

namespace {

using audits::Judge;
using audits::Measured;
using recurrence_verdict::FaultyResult;
using recurrence_verdict::LinearComparison;
using recurrence_verdict::LinearFault;
using recurrence_verdict::LinearRowsCompared;
using recurrence_verdict::RoundedChunks;

// Why a fault of the catalogue is not tried, by the beginning of its name.
constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
    {"inputs-tf32", "the inputs are not float32"},
    {"linear-runs-on", "there is one sequence"},
    {"linear-boundary", "there are no packed sequences"},
    {"linear-chunk-lost", "no sequence is longer than a chunk"},
    {"linear-row-chunks", "there are no packed sequences with decays and initial states"},
    {"linear-tail-decay", "no chunk is followed by tokens of its row, or there is no decay by token"},
    {"linear-tail", "all sequences are whole chunks, or shorter than one"},
    {"linear-score", "there is no decay"},
    {"linear-key", "there is no decay, or no delta rule"},
    {"linear-w-", "there is no decay, or no delta rule"},
    {"linear-inverse", "there is no delta rule"},
    {"linear-decay-head", "there is no decay, or one of one head"},
    {"linear-decay-axis", "decays are not by channel, or K and V differ"},
    {"linear-decay", "there is no decay"},
    {"linear-a-log", "decays are not raw"},
    {"linear-dt-bias", "there is no dt_bias"},
    {"linear-softplus", "decays have no softplus"},
    {"linear-beta-sigmoid", "beta is no argument of a sigmoid"},
    {"linear-beta", "there is no beta, or no delta rule"},
    {"linear-scale", "the scale is 1"},
    {"linear-heads", "all arrays have as many heads"},
    {"linear-state-transposed", "there is no initial state, or K and V differ"},
    {"linear-final-transposed", "K and V differ"},
    {"linear-slot-padding", "no sequence is padding"},
    {"linear-slot", "there are no slots"},
    {"linear-norm", "q and k are not normalised"},
    {"linear-empty", "no sequence is empty, or there is no initial state"},
    {"linear-", "there is no initial state"},
};

// Rows of a result and its elements: of the reference, rounded to the type, and their tolerances.
struct AuditedRows {
  LinearRowsCompared it;
  ArrayType type;
  std::vector<double> truth, allowed, rounded;
  audits::RuleScale scale;

  std::int64_t columns() const { return it.rows.columns; }
};

using Elements = std::array<std::vector<double>, 2>;  // of out and final_state, in the order of rows

class LinearAudit {
 public:
  LinearAudit(const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings,
              std::optional<FactorType> factors, const AuditOptions& options)
      : options_(options), of_(arrays, settings, factors) {
    are_float32_ = true;
    for (const auto& array : {arrays.q, arrays.k, arrays.v})
      are_float32_ = are_float32_ && array->dtype == DType::float32;
    const ArrayType types[] = {of_.plan.out, of_.plan.final_state};
    for (std::size_t r = 0; r < 2; ++r) {
      empty_[r] = Array(types[r].dtype, types[r].shape);
      results_[r].type = types[r];
      results_[r].it = r == 0 ? of_.rows_of_out(empty_[r].view()) : of_.rows_of_final_state(empty_[r].view());
    }
  }

  Audit run() {
    audit_.kind = "linear-attention";
    audit_.dtype = of_.plan.out.dtype;
    audit_.rule = options_.rule;
    set_expected();
    audit_.right = measured(rounded(in_chunks(of_.truth.factors))).largest;
    audit_.right_weights = name_of(of_.truth.factors);
    add("zeros", "every element is 0", zeros());
    if (are_float32_) add("inputs-tf32", "factors are rounded to TF32", rounded(in_chunks(FactorType::tf32)));
    for (const LinearFault& fault : recurrence_verdict::linear_faults(of_.plan, of_.inputs, of_.truth, {}))
      if (const Fault* const row = fault_named_by(fault.text))
        add(row->name, fault.text, rounded(with(fault)));
    for (const Fault& fault : fault_catalogue()) leave(fault);
    double size = 0;
    for (const AuditedRows& rows : results_)
      for (const double x : rows.truth)
        if (std::isfinite(x)) size = std::max(size, std::abs(x));
    audits::add_found(audit_, options_, std::move(found_), std::numeric_limits<double>::infinity(), size);
    return std::move(audit_);
  }

 private:
  // f(result, row) for all rows of both.
  template <class F>
  void for_each_row(F&& f) {
    for (std::size_t r = 0; r < 2; ++r) {
      const std::int64_t rows = results_[r].it.rows.rows;
      core::parallel_for(rows, static_cast<double>(rows * results_[r].columns()),
                         [&](std::int64_t row) { f(r, row); });
    }
  }
  Elements zeros() const {
    Elements all;
    for (std::size_t r = 0; r < 2; ++r)
      all[r].resize(static_cast<std::size_t>(results_[r].it.rows.rows * results_[r].columns()));
    return all;
  }

  void set_expected() {
    for (std::size_t r = 0; r < 2; ++r)
      results_[r].truth.resize(zeros()[r].size()), results_[r].allowed.resize(results_[r].truth.size());
    for_each_row([&](std::size_t r, std::int64_t row) {
      AuditedRows& rows = results_[r];
      const std::int64_t at = row * rows.columns();
      rows.it.rows.expected(row, rows.truth.data() + at, rows.allowed.data() + at);
    });
    Elements all = rounded({results_[0].truth, results_[1].truth});
    for (std::size_t r = 0; r < 2; ++r) {
      results_[r].rounded = std::move(all[r]);
      const Array array = array_of(r, results_[r].rounded);
      const std::string name = results_[r].it.rows.name;
      results_[r].scale = audits::scale_of(options_, r, {name, results_[r].type}, audits::values_of(array));
      if (options_.mutant) options_.mutant("expected." + name, audits::copy_of(array));
    }
  }

  // Elements rounded once to the types of the results.
  Elements rounded(Elements all) const {
    for (std::size_t r = 0; r < 2; ++r) {
      const DType dtype = results_[r].type.dtype;
      Array narrow(dtype, {std::ssize(all[r])});
      matmul::store(all[r].data(), std::ssize(all[r]), dtype, narrow.data());
      all[r] = audits::values_of(narrow);
    }
    return all;
  }

  Elements with(const LinearFault& fault) {
    Elements all = zeros();
    FaultyResult result(fault);
    std::vector<std::int64_t> columns(static_cast<std::size_t>(of_.plan.value_size));
    std::iota(columns.begin(), columns.end(), 0);
    for_each_row([&](std::size_t r, std::int64_t row) {
      results_[r].it.predict(result, row, columns, all[r].data() + row * results_[r].columns());
    });
    return all;
  }

  // As a right kernel computes it.
  Elements in_chunks(FactorType factors) const {
    Elements all{results_[0].truth, results_[1].truth};
    const recurrence::LinearPlan& plan = of_.plan;
    const std::int64_t values = plan.value_size, heads = plan.state_heads, tokens = of_.truth.tokens;
    recurrence_verdict::for_each_head(plan, [&](std::int64_t n, std::int64_t head) {
      const recurrence::Sequence& s = plan.sequences[static_cast<std::size_t>(n)];
      recurrence::LinearSink<float> sink;
      sink.out = [&](std::int64_t h, std::int64_t token, std::int64_t count, const float* rows) {
        for (std::int64_t t = 0; t < count; ++t, rows += values)
          std::copy_n(
              rows, values,
              all[0].data() + ((s.entry * tokens + s.begin + token + t) * plan.out_heads + h) * values);
      };
      sink.final_state = [&](std::int64_t slot, const float* state) {
        const std::int64_t size = plan.key_size * values;
        std::copy_n(state, size, all[1].data() + (slot * heads + head) * size);
      };
      RoundedChunks(plan, of_.inputs, factors, 64).run(n, head, sink);
    });
    return all;
  }

  Array array_of(std::size_t r, const std::vector<double>& elements) const {
    const AuditedRows& rows = results_[r];
    std::vector<double> ordered(elements.size());
    for (std::int64_t row = 0; row < rows.it.rows.rows; ++row)
      for (std::int64_t c = 0; c < rows.columns(); ++c) {
        std::int64_t at = 0;
        const Shape index = rows.it.rows.index(row, c);
        for (std::size_t axis = 0; axis < index.size(); ++axis) at = at * rows.type.shape[axis] + index[axis];
        ordered[static_cast<std::size_t>(at)] = elements[static_cast<std::size_t>(row * rows.columns() + c)];
      }
    Array array(rows.type.dtype, rows.type.shape);
    matmul::store(ordered.data(), std::ssize(ordered), rows.type.dtype, array.data());
    return array;
  }

  // The worse of both results.
  AuditedFault measured(const Elements& mutant) const {
    AuditedFault all;
    bool is_first = true;
    for (std::size_t r = 0; r < 2; ++r) {
      const AuditedRows& rows = results_[r];
      const std::int64_t count = std::ssize(mutant[r]);
      Judge judge(options_.rule, rows.type.dtype, count);
      const bool of_bound = options_.rule.form == PassRule::Form::bound;
      judge.see(0, count, mutant[r].data(), of_bound ? rows.truth.data() : rows.rounded.data(),
                of_bound ? rows.allowed.data() : nullptr, rows.rounded.data());
      const double largest = judge.differing() == 0 ? 0 : judge.largest(rows.scale);
      all.elements += count, all.differing += judge.differing();
      if (!is_first && !(largest > all.largest)) continue;
      is_first = false;
      const std::int64_t at = std::max<std::int64_t>(judge.position(), 0);
      all.largest = largest;
      all.array = rows.it.rows.name;
      if (count > 0) all.index = rows.it.rows.index(at / rows.columns(), at % rows.columns());
    }
    return all;
  }

  void add(std::string_view name, const std::string& text, Elements mutant) {
    Measured one{measured(mutant), ""};
    one.fault.fault = find_fault(name);
    one.fault.text = text;
    found_.push_back(std::move(one));
    if (!options_.mutant) return;
    const int variant = ++variants_[std::string(name)];
    const std::string number = variant == 1 ? "" : fmt::format("-{}", variant);
    for (std::size_t r = 0; r < 2; ++r)
      options_.mutant(fmt::format("{}{}.{}", name, number, results_[r].it.rows.name), array_of(r, mutant[r]));
  }

  void leave(const Fault& fault) {
    if (fault.kinds.find("linear-attention") == std::string_view::npos) return;
    if (std::any_of(found_.begin(), found_.end(), [&](const auto& one) { return one.fault.fault == &fault; }))
      return;
    for (const auto& [name, reason] : kReasons)
      if (fault.name.starts_with(name)) return audit_.not_tried.push_back({&fault, std::string(reason)});
  }

  const AuditOptions& options_;
  LinearComparison of_;
  bool are_float32_ = false;
  Array empty_[2];
  AuditedRows results_[2];
  std::map<std::string, int> variants_;
  std::vector<Measured> found_;
  Audit audit_;
};

}  // namespace

Audit audit(const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings,
            std::optional<FactorType> factors, const AuditOptions& options) {
  if (options.rule.form == PassRule::Form::flash_attn)
    throw Error(Error::Kind::usage, "the tolerance flash-attn is that of attention");
  return LinearAudit(arrays, settings, factors, options).run();
}

std::int64_t bytes_to_audit(const LinearAttentionPlan& plan, bool keeps_mutants) {
  constexpr std::int64_t kCopies =
      8;  // the reference twice, rounded, tolerances, a mutant twice, rounded, of a fault
  constexpr std::int64_t kMutants = 80;
  return kCopies * 8 * (element_count(plan.out().shape) + element_count(plan.final_state().shape)) +
         (keeps_mutants ? kMutants * (plan.out().bytes() + plan.final_state().bytes()) : 0);
}

}  // namespace ejk
