// Audit of attention: the mutants of the catalogue, row by row beside the reference. The products of a query and its keys
// are computed once for all faults that leave them. Cost: for each mutant a softmax and a product with the values in
// float64, 10 ns or so a pair; of gradients a backward pass of the reference.
// tests: tests/verdict/audit/test_attention.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "attention/numbers.hpp"
#include "attention/operands.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/audit.hpp"
#include "ejk/threads.hpp"
#include "verdict/attention/against.hpp"
#include "verdict/attention/saved.hpp"
#include "verdict/audit/attention_faults.hpp"
#include "verdict/audit/found.hpp"
#include "verdict/audit/judge.hpp"

namespace ejk {

namespace {

using attn::CheckedArguments;
using attn::Problem;
using attn::Reference;
using attn::Variation;
using audits::index_at;
using audits::Judge;
using audits::Measured;
using audits::RuleScale;
using audits::values_of;
using audits::Variant;
using verify::rounding_to;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Rounds values to a type, in place.
class Rounder {
 public:
  Rounder(DType dtype, std::int64_t count) : dtype_(dtype), bytes_(dtype, {count}) {}

  void operator()(std::vector<double>& values) {
    void* const to = bytes_.mutable_view().data;
    attn::store(values.data(), std::ssize(values), dtype_, to);
    attn::load(dtype_, static_cast<const std::byte*>(to), size_of(dtype_), std::ssize(values), values.data());
  }

 private:
  DType dtype_;
  Array bytes_;
};

std::string name_of_mutant(const Variant& variant, std::size_t nth) {
  std::string name(variant.fault->name);
  if (variant.parameter.empty()) return name;
  const bool is_numbered = variant.fault->name == "term-ignored";
  return fmt::format("{}.{}", name, is_numbered ? std::to_string(nth) : variant.parameter);
}

// Names of all mutants; the terms of a mask by their number.
std::vector<std::string> names_of(const std::vector<Variant>& variants) {
  std::vector<std::string> names;
  std::size_t nth = 0;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    nth = v > 0 && variants[v].fault == variants[v - 1].fault ? nth + 1 : 0;
    names.push_back(name_of_mutant(variants[v], nth));
  }
  return names;
}

Measured measured(AuditedFault found, const Variant& variant) {
  found.fault = variant.fault;
  found.parameter = variant.parameter;
  found.text = variant.text;
  return {std::move(found), variant.remedy};
}

// Sums of all problems.
struct Sums {
  std::vector<Judge> mutants;
  Judge right;
  RuleScale scale;
  double spread = 0, size = 0;  // of the scores of a query; of the results

  void join(const Sums& other) {
    for (std::size_t m = 0; m < mutants.size(); ++m) mutants[m].join(other.mutants[m]);
    right.join(other.right);
    scale.low = std::max(scale.low, other.scale.low);
    scale.rounding = std::max(scale.rounding, other.scale.rounding);
    scale.of_other = std::max(scale.of_other, other.scale.of_other);
    scale.most = std::max(scale.most, other.scale.most);
    spread = std::max(spread, other.spread);
    size = std::max(size, other.size);
  }
};

// The same problem with its operands in float64, which references read in place.
class InFloat64 {
 public:
  explicit InFloat64(const CheckedArguments& setup) : setup_(setup) {
    for (ArrayView* view : {&setup_.q, &setup_.k, &setup_.v}) {
      const Array& wide = wide_.emplace_back(converted(*view));
      *view = wide.view();
    }
  }
  InFloat64(const InFloat64&) = delete;
  InFloat64& operator=(const InFloat64&) = delete;

  const CheckedArguments& setup() const { return setup_; }

 private:
  static Array converted(const ArrayView& view) {  // (batch, heads, positions, elements)
    Array wide(DType::float64, view.shape);
    double* to = wide.elements<double>().data();
    for (std::int64_t b = 0; b < view.shape[0]; ++b)
      for (std::int64_t h = 0; h < view.shape[1]; ++h)
        for (std::int64_t i = 0; i < view.shape[2]; ++i, to += view.shape[3])
          attn::load(view.dtype, view.data + b * view.strides[0] + h * view.strides[1] + i * view.strides[2],
                     view.strides[3], view.shape[3], to);
    return wide;
  }

  CheckedArguments setup_;
  std::vector<Array> wide_;
};

// A right kernel of these types.
Variation rounded_weights(const SoftmaxTypes& types) {
  Variation v;
  v.weights = v.ds = rounding_to(*types.weights);
  if (types.scores != DType::float32) v.scores = rounding_to(types.scores);
  return v;
}

class ForwardAudit {
 public:
  ForwardAudit(const attn::Plan& plan, const AttentionArrays& arrays, const CheckedArguments& setup,
               const AuditOptions& options, const SoftmaxTypes& types)
      : plan_(plan),
        wide_(setup),
        setup_(wide_.setup()),
        input_(setup.q.dtype),
        options_(options),
        blocks_(plan_.blocks()),
        rows_(setup_, attn::RowsOf::queries),
        out_(plan_.results[0].type),
        faults_(audits::faults_of_forward(plan_, setup, options.aligns_bottom_right)),
        right_(setup_, blocks_),
        types_(types),
        rounded_(setup_, blocks_, rounded_weights(types)),
        other_(audits::other_values(options, 0, plan_.results[0])) {
    for (const Variant& variant : faults_.variants)
      mutants_.push_back(std::make_unique<Reference>(setup_, blocks_, variant.variation));
    if (options.rule.form == PassRule::Form::bound)
      expected_ = std::make_unique<attn::ExpectedRows>(plan_, arrays, out_.dtype, types_);
    if (options.mutant)
      for (std::size_t m = 0; m <= mutants_.size(); ++m) kept_.emplace_back(out_.dtype, out_.shape);
  }

  Audit run() {
    Sums all = none();
    std::vector<Sums> parts(static_cast<std::size_t>(setup_.problems()), all);
    const double work = attn::reference_work(setup_) * static_cast<double>(mutants_.size() + 2);
    std::int64_t done = 0;
    std::mutex mutex;
    core::parallel_for(setup_.problems(), work, [&](std::int64_t n) {
      const Problem p = setup_.problem(n / setup_.shape.heads, n % setup_.shape.heads);
      judge(p, parts[static_cast<std::size_t>(n)]);
      const std::scoped_lock lock(mutex);
      if (options_.progress) options_.progress(++done, setup_.problems());
    });
    for (const Sums& part : parts) all.join(part);
    all.scale.require_other("out");
    Audit audit;
    audit.kind = "attention";
    audit.dtype = out_.dtype;
    audit.rule = options_.rule;
    audit.right = all.right.largest(all.scale);
    audit.right_weights = name_of(*types_.weights);
    audit.not_tried = std::move(faults_.not_tried);
    std::vector<Measured> found;
    for (std::size_t m = 0; m < mutants_.size(); ++m) {
      AuditedFault one;
      one.largest = all.mutants[m].largest(all.scale);
      one.elements = element_count(out_.shape);
      one.differing = all.mutants[m].differing();
      one.array = "out";
      one.index = index_at(out_.shape, std::max<std::int64_t>(all.mutants[m].position(), 0));
      found.push_back(measured(std::move(one), faults_.variants[m]));
    }
    audits::add_found(audit, options_, std::move(found), all.spread, all.size);
    if (options_.mutant) deliver();
    return audit;
  }

 private:
  Sums none() const {
    const Judge judge(options_.rule, out_.dtype, element_count(out_.shape));
    Sums sums{std::vector<Judge>(mutants_.size(), judge), judge, {}, 0, 0};
    sums.scale.has_softcap = setup_.softcap > 0;
    return sums;
  }

  void judge(const Problem& p, Sums& sums) {
    const std::int64_t columns = setup_.shape.value_size;
    const auto count = static_cast<std::size_t>(columns);
    Rounder round(out_.dtype, columns);
    std::vector<double> products(static_cast<std::size_t>(p.kv_length)), expected(count), allowed(count), e;
    const std::int64_t whole = (p.q_length - 1) / audits::kWrittenTile * audits::kWrittenTile,
                       written = whole > 0 ? whole : p.q_length;  // a sequence of one tile is written
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const attn::Place place{p.entry, p.head, i};
      const std::int64_t at = position_of(place);
      right_.products(p, i, products.data());
      const attn::ReferenceRow row = right_.row(p, i, Reference::Wanted::out, products.data());
      expected = e = row.out;
      round(e);
      if (expected_)
        expected_->row(rows_.row_of(place), expected.data(), allowed.data());
      else
        expected = e;
      const auto see = [&](Judge& judge, const std::vector<double>& actual) {
        judge.see(at, columns, actual.data(), expected.data(), expected_ ? allowed.data() : nullptr,
                  e.data());
      };
      add_scales(p, i, row, e, sums);
      for (std::size_t c = 0; c < count && !other_.empty(); ++c)
        sums.scale.see_other(other_[static_cast<std::size_t>(at) + c], e[c]);
      keep(0, at, e);
      std::vector<double> a = rounded_.row(p, i, Reference::Wanted::out, products.data()).out;
      round(a);
      see(sums.right, a);
      for (std::size_t m = 0; m < mutants_.size(); ++m) {
        const Variant& variant = faults_.variants[m];
        if (variant.zeros == Variant::Zeros::all || (variant.zeros == Variant::Zeros::tail && i >= written)) {
          a.assign(count, 0);
        } else if (variant.zeros == Variant::Zeros::tail) {
          a = e;
        } else {
          const double* const own = variant.variation.has_own_products() ? products.data() : nullptr;
          a = mutants_[m]->row(p, i, Reference::Wanted::out, own).out;
          round(a);
        }
        keep(m + 1, at, a);
        see(sums.mutants[m], a);
      }
    }
  }

  std::int64_t position_of(const attn::Place& place) const {
    const Shape index = rows_.index_of(place, 0);
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) at = at * out_.shape[axis] + index[axis];
    return at;
  }

  void keep(std::size_t mutant, std::int64_t at, const std::vector<double>& values) {
    if (kept_.empty()) return;
    auto* const to = static_cast<std::byte*>(kept_[mutant].mutable_view().data);
    attn::store(values.data(), std::ssize(values), out_.dtype, to + at * size_of(out_.dtype));
  }

  void add_scales(const Problem& p, std::int64_t i, const attn::ReferenceRow& row,
                  const std::vector<double>& e, Sums& sums) const {
    double least = std::numeric_limits<double>::infinity(), most = kNothing;
    for (const double s : row.scores)
      if (std::isfinite(s)) least = std::min(least, s), most = std::max(most, s);
    if (most > least) sums.spread = std::max(sums.spread, most - least);
    for (const double value : e)
      if (std::isfinite(value)) sums.size = std::max(sums.size, std::abs(value));
    if (options_.rule.form != PassRule::Form::flash_attn) return;
    const verify::Rounding to = rounding_to(out_.dtype);
    const std::vector<double> low = eager(p, i, row);
    for (std::size_t c = 0; c < e.size(); ++c) {
      sums.scale.low = std::max(sums.scale.low, std::abs(to(low[c]) - e[c]));
      sums.scale.rounding = std::max(sums.scale.rounding, std::abs(to(to(e[c] + 0.3) - 0.3) - e[c]));
    }
  }

  // A row of eager attention that rounds every step to the type of the inputs.
  std::vector<double> eager(const Problem& p, std::int64_t query, const attn::ReferenceRow& right) const {
    const verify::Rounding to = rounding_to(input_);
    const std::int64_t size = setup_.shape.head_size, columns = setup_.shape.value_size;
    std::vector<double> q(static_cast<std::size_t>(size)), k(q.size()), v(static_cast<std::size_t>(columns)),
        out(v.size()), scores(right.scores.size(), kNothing);
    attn::load_row(p.q, query, 0, size, q.data());
    double most = kNothing;
    for (std::int64_t j = 0; j < p.kv_length; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (right.scores[at] == kNothing) continue;
      attn::load_row(p.k.at({j, j + 1}), 0, 0, size, k.data());
      double sum = 0;
      for (std::size_t d = 0; d < q.size(); ++d) sum += q[d] * to(setup_.scale * k[d]);
      double s = to(sum);
      if (setup_.softcap > 0) s = to(setup_.softcap * to(std::tanh(to(s / setup_.softcap))));
      scores[at] = to(s + p.bias.of_array(query, j) + p.bias.alibi.at(query, j));
      most = std::max(most, scores[at]);
    }
    if (most == kNothing) return out;
    const double sink = setup_.ends.sink(p.head);
    double sum = std::isfinite(sink) ? std::exp(sink - most) : 0;
    for (const double s : scores) sum += s == kNothing ? 0 : std::exp(s - most);
    for (std::int64_t j = 0; j < p.kv_length; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (scores[at] == kNothing) continue;
      attn::load_row(p.v.at({j, j + 1}), 0, 0, columns, v.data());
      const double weight = to(std::exp(scores[at] - most) / sum);
      for (std::size_t c = 0; c < v.size(); ++c) out[c] += weight * v[c];
    }
    for (double& value : out) value = to(value);
    return out;
  }

  void deliver() {
    const std::vector<std::string> names = names_of(faults_.variants);
    for (std::size_t m = 0; m < kept_.size(); ++m)
      options_.mutant(m == 0 ? "expected" : names[m - 1], std::move(kept_[m]));
  }

  const attn::Plan& plan_;
  InFloat64 wide_;
  const CheckedArguments& setup_;
  DType input_;  // type of the queries
  const AuditOptions& options_;
  const attn::MaskPlan& blocks_;
  attn::Rows rows_;
  ArrayType out_;
  audits::AttentionFaults faults_;
  Reference right_;
  SoftmaxTypes types_;
  Reference rounded_;
  std::vector<double> other_;
  std::vector<std::unique_ptr<Reference>> mutants_;
  std::unique_ptr<attn::ExpectedRows> expected_;
  std::vector<Array> kept_;  // the expected result and the mutants, if they are wanted
};

// dq, dk and dv of the reference, rounded to their types.
std::vector<Array> rounded_gradients(const attn::Plan& plan, Reference::Backward made) {
  std::vector<Array> all;
  Array* const from[] = {&made.dq, &made.dk, &made.dv};
  for (std::size_t r = 0; r < 3; ++r) {
    const ArrayType& type = plan.results[r].type;
    Array& rounded = all.emplace_back(type.dtype, type.shape);
    attn::store(from[r]->elements<double>().data(), element_count(type.shape), type.dtype,
                rounded.mutable_view().data);
  }
  return all;
}

class GradientAudit {
 public:
  GradientAudit(const attn::Plan& plan, const AttentionArrays& arrays, const CheckedArguments& setup,
                const AuditOptions& options, const SoftmaxTypes& types)
      : plan_(plan), arrays_(arrays), setup_(setup), options_(options), types_(types) {}

  Audit run() {
    const Reference right(setup_, plan_.blocks());
    const Reference::Saved saved = right.saved(*arrays_.dout);
    expected_ = rounded_gradients(plan_, right.backward(*arrays_.dout, saved));
    audits::AttentionFaults faults = audits::faults_of_gradients(setup_);
    Audit audit;
    audit.kind = "attention-grad";
    audit.dtype = plan_.results[0].type.dtype;
    audit.rule = options_.rule;
    audit.not_tried = std::move(faults.not_tried);
    std::vector<Array> copies;
    for (std::size_t r = 0; r < expected_.size(); ++r) {
      copies.push_back(audits::copy_of(expected_[r]));
      scales_.push_back(audits::scale_of(options_, r, plan_.results[r], values_of(expected_[r])));
    }
    deliver("expected", std::move(copies));
    audit.right = compared(rounded_gradients(plan_, Reference(setup_, plan_.blocks(), rounded_weights(types_))
                                                        .backward(*arrays_.dout, saved)))
                      .largest;
    audit.right_weights = name_of(*types_.weights);
    std::vector<Measured> found;
    for (const Variant& variant : faults.variants) {
      const std::int64_t delta = variant.variation.delta_entry;
      std::vector<Array> mutant;
      if (variant.zeros == Variant::Zeros::all)
        for (const Array& array : expected_) mutant.emplace_back(array.dtype(), array.shape());
      else
        mutant = rounded_gradients(
            plan_,
            Reference(setup_, plan_.blocks(), variant.variation)
                .backward(*arrays_.dout, delta < 0 ? saved : attn::with_delta_of(delta, setup_, saved)));
      found.push_back(measured(compared(mutant), variant));
      deliver(std::string(variant.fault->name), std::move(mutant));
    }
    double size = 0;
    for (const Array& array : expected_) size = std::max(size, attn::most_finite(values_of(array)));
    audits::add_found(audit, options_, std::move(found), std::numeric_limits<double>::infinity(), size);
    return audit;
  }

 private:
  AuditedFault compared(const std::vector<Array>& mutant) const {
    AuditedFault worst;
    std::int64_t elements = 0, differing = 0;
    for (std::size_t r = 0; r < mutant.size(); ++r) {
      AuditedFault one = audits::of_array(options_.rule, plan_.results[r].name, mutant[r],
                                          values_of(expected_[r]), scales_[r]);
      elements += one.elements, differing += one.differing;
      if (worst.array.empty() || !(one.largest <= worst.largest)) worst = std::move(one);
    }
    worst.elements = elements, worst.differing = differing;
    if (options_.rule.form == PassRule::Form::bound && differing > 0) {
      std::vector<std::optional<ArrayView>> given(plan_.results.size());
      std::vector<ArrayView> own;
      for (const PlannedArray& result : plan_.results) own.push_back({nullptr, result.type.dtype, {}, {}});
      for (std::size_t r = 0; r < mutant.size(); ++r) given[r] = mutant[r].view();
      audits::take(attn::compare(plan_, arrays_, own, given, types_, Explain::no,
                                 std::numeric_limits<double>::infinity()),
                   worst);
    }
    return worst;
  }

  void deliver(const std::string& name, std::vector<Array> arrays) const {
    for (std::size_t r = 0; r < arrays.size() && options_.mutant; ++r)
      options_.mutant(fmt::format("{}.{}", name, plan_.results[r].name), std::move(arrays[r]));
  }

  const attn::Plan& plan_;
  const AttentionArrays& arrays_;
  const CheckedArguments& setup_;
  const AuditOptions& options_;
  SoftmaxTypes types_;
  std::vector<Array> expected_;
  std::vector<RuleScale> scales_;  // of dq, dk and dv
};

}  // namespace

Audit audit(const AttentionPlan& plan, const AttentionArrays& arrays, const AuditOptions& options) {
  const attn::Plan& internal = plan.internal();
  if (internal.types.dropout) throw Error(Error::Kind::usage, "audits take no dropout");
  const CheckedArguments setup =
      attn::bound(internal.setup, internal.types, arrays, attn::SavedResults::ignored);
  SoftmaxTypes types = options.types;
  types.weights = options.types.weights.value_or(weights_dtype(plan));
  if (!setup.gradients) return ForwardAudit(internal, arrays, setup, options, types).run();
  if (options.rule.form == PassRule::Form::flash_attn)
    throw Error(Error::Kind::usage, "the tolerance flash-attn is that of the forward pass");
  return GradientAudit(internal, arrays, setup, options, types).run();
}

std::int64_t bytes_to_audit(const AttentionPlan& plan, const AuditOptions& options) {
  const attn::Plan& p = plan.internal();
  const double row = 8 * static_cast<double>(p.setup.longest_keys());
  double bytes = static_cast<double>(bytes_to_compare(plan, Explain::no)) +
                 static_cast<double>(threads()) * 16 * row + attn::reference_bytes(p.setup);
  for (const auto& operand : {p.types.q, p.types.k, p.types.v})
    bytes += static_cast<double>(byte_count(operand->shape, DType::float64));
  constexpr double kMutants = 48;
  // With an allowance the largest errors of each mutant are kept.
  if (options.rule.allowed_count > 0 || options.rule.allowed_share > 0)
    bytes += kMutants * 8 * static_cast<double>(element_count(p.results[0].type.shape));
  if (options.rule.form == PassRule::Form::no_worse_than)
    bytes += 16 * static_cast<double>(element_count(p.results[0].type.shape));
  if (options.mutant) bytes += kMutants * static_cast<double>(plan.result_bytes());
  if (p.setup.gradients) bytes += 16 * static_cast<double>(plan.result_bytes());
  return static_cast<std::int64_t>(std::min(bytes, 0x1p60));
}

}  // namespace ejk
