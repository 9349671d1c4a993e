// Faults of an audit, and what would show those that are missed.
// tests: tests/verdict/audit/test_attention.cpp
#include "verdict/audit/found.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/elements.hpp"
#include "verdict/against.hpp"
#include "verdict/audit/judge.hpp"

namespace ejk::audits {

namespace {

// Mutants are hard to see where their scores are nearly equal.
bool is_of_scores(const Fault& fault) {
  constexpr std::string_view kSome[] = {"mean-of-values", "scale-missing",   "scale-twice",    "scale-log2e",
                                        "no-rescale",     "splits-lse-base", "softcap-ignored"};
  return std::find(std::begin(kSome), std::end(kSome), fault.name) != std::end(kSome);
}

std::string remedy_of(const Measured& measured, const PassRule& rule, double spread, double size) {
  const AuditedFault& found = measured.fault;
  if (found.differing == 0 && !measured.remedy.empty()) return measured.remedy;
  if (rule.allowed_count > 0 || rule.allowed_share > 0)
    return fmt::format("{:.3g} % of the elements differ: fewer that may", 100 * found.changed());
  if (is_of_scores(*found.fault) && spread < 2)
    return fmt::format("two scores of a query differ by {:.2g} at most: inputs of std 1", spread);
  if (found.fault->name == "softcap-ignored")
    return fmt::format(
        "two scores of a query differ by {:.2g} at most: a smaller soft cap, or inputs of std 2", spread);
  if (found.differing == 0)
    return size == 0 ? "all results are 0: other inputs" : "no element changes: other inputs";
  std::string larger = fmt::format("results are up to {:.2g}: larger values", size);
  if (rule.form == PassRule::Form::bound || found.largest == 0) return larger;
  const double step = std::pow(10, std::floor(std::log10(found.largest)) - 1);
  return fmt::format("{}, or {:.2g} of this tolerance", larger, std::floor(found.largest / step) * step);
}

}  // namespace

void add_found(Audit& audit, const AuditOptions& options, std::vector<Measured> all, double spread,
               double size) {
  for (Measured& one : all) {
    AuditedFault& found = one.fault;
    found.caught = !(found.largest <= 1);
    found.ignored =
        std::find(options.ignored.begin(), options.ignored.end(), found.fault->name) != options.ignored.end();
    if (!found.caught) {
      found.why = found.differing == 0 ? AuditedFault::Why::inert : AuditedFault::Why::tolerance;
      found.remedy = remedy_of(one, options.rule, spread, size);
    }
    const auto same = std::find_if(audit.faults.begin(), audit.faults.end(),
                                   [&](const AuditedFault& other) { return other.fault == found.fault; });
    if (same == audit.faults.end())
      audit.faults.push_back(std::move(found));
    else if (found.largest <= same->largest)  // of equal ones the last, whose tiles are larger
      *same = std::move(found);
  }
}

AuditedFault of_array(const PassRule& rule, const std::string& name, const Array& mutant,
                      const std::vector<double>& expected, const RuleScale& scale) {
  Judge judge(rule, mutant.dtype(), mutant.size());
  judge.see(0, mutant.size(), values_of(mutant).data(), expected.data());
  AuditedFault one;
  one.array = name;
  one.elements = mutant.size();
  one.differing = judge.differing();
  one.largest = rule.form == PassRule::Form::bound ? 0 : judge.largest(scale);
  one.index = index_at(mutant.shape(), std::max<std::int64_t>(judge.position(), 0));
  return one;
}

std::vector<double> other_values(const AuditOptions& options, std::size_t result,
                                 const PlannedArray& planned) {
  if (options.rule.form != PassRule::Form::no_worse_than) return {};
  if (result >= options.other.results.size() || !options.other.results[result])
    throw core::usage("no-worse-than: there is no {} of another implementation", planned.name);
  const ArrayView& other = *options.other.results[result];
  verify::require_given(other, planned.type.shape, planned.name, "other");
  return values_of(Array::copy_of(other));
}

RuleScale scale_of(const AuditOptions& options, std::size_t result, const PlannedArray& planned,
                   const std::vector<double>& expected) {
  RuleScale scale;
  const std::vector<double> other = other_values(options, result, planned);
  for (std::size_t i = 0; i < other.size(); ++i) scale.see_other(other[i], expected[i]);
  scale.require_other(planned.name);
  return scale;
}

void take(const Against& against, AuditedFault& into) {
  into.largest = against.largest;
  if (!against.worst.empty()) into.array = against.worst[0].array, into.index = against.worst[0].index;
}

Shape index_at(const Shape& shape, std::int64_t position) {
  Shape index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; position /= shape[axis])
    index[axis] = position % shape[axis];
  return index;
}

std::vector<double> values_of(const Array& array) {
  std::vector<double> values(static_cast<std::size_t>(array.size()));
  core::load(array.dtype(), array.view().data, size_of(array.dtype()), array.size(), values.data());
  return values;
}

Array copy_of(const Array& array) {
  Array copy(array.dtype(), array.shape());
  std::copy_n(array.view().data, array.size() * size_of(array.dtype()),
              static_cast<std::byte*>(copy.mutable_view().data));
  return copy;
}

}  // namespace ejk::audits
