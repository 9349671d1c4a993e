// ejk audit: which known faults would a test with these inputs and this tolerance let pass? Its kinds are declared with
// the commands whose inputs they take.
// tests: tests/cli/audit/
#include "commands/audit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "against.hpp"
#include "ejk/program/text.hpp"
#include "schema.hpp"
#include "tolerances.hpp"

namespace ejk::app {

extern const Command audit_attention_command, audit_attention_grad_command, audit_grouped_matmul_command,
    audit_linear_attention_command;

namespace {

constexpr const char* kGroup = "When the test passes";

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const Fault& fault : fault_catalogue()) names.emplace_back(fault.name);
  return names;
}

std::string read_fault(const std::string& word) {
  if (find_fault(word) != nullptr) return word;
  const auto nearest = nearest_name(word, fault_names());
  throw usage("--ignore: '{}' is no fault", printable(word))
      .hint(nearest ? fmt::format("did you mean '{}'? 'ejk help faults' lists them", *nearest)
                    : "'ejk help faults' lists them");
}

}  // namespace

PassRule TestFlags::rule(DType dtype, std::string_view otherwise) const {
  PassRule rule;
  if (!words.library.empty()) {
    if (!is_forward) refuse_eager(words.library);
    rule = named_rule(words.library, dtype);
  } else if (max_ulp) {
    rule.form = PassRule::Form::max_ulp, rule.name = "max-ulp", rule.max_ulp = *max_ulp;
  } else if (!words.metric.empty()) {
    rule.form = PassRule::Form::metric, rule.name = words.metric;
    rule.metric = metric_limit(words.metric, words.at_least, words.at_most);
  } else if (rtol || atol) {
    const DefaultTolerance usual = default_tolerance(dtype, dtype);
    rule.form = PassRule::Form::allclose, rule.name = "rtol-atol";
    rule.rtol = rtol.value_or(usual.rtol), rule.atol = atol.value_or(usual.atol);
  } else if (words.other.given()) {
    rule.form = PassRule::Form::no_worse_than, rule.name = "no-worse-than";
    rule.factor = words.other.factor;
  } else if (!otherwise.empty()) {
    rule = named_rule(otherwise, dtype);
  }
  rule.allowed_count = words.allow_count.value_or(0);
  rule.allowed_share = words.allow_fraction.value_or(0);
  check_allowance(words, rule);
  return rule;
}

void declare_tolerance(OptionSet& set, TestFlags& into, const std::string& otherwise) {
  declare_library(set, into.words, kGroup, "--rtol, --atol, --max-ulp, --metric", otherwise);
  add_word(set, "--rtol", into.rtol, read_tolerance, "R", "relative tolerance: |d| <= A + R |expected|")
      .excludes("--max-ulp, --metric")
      .group(kGroup);
  add_word(set, "--atol", into.atol, read_tolerance, "A",
           "absolute tolerance; of both the other is the type's")
      .excludes("--max-ulp, --metric")
      .group(kGroup);
  add_word(set, "--max-ulp", into.max_ulp, at_least(1), "N", "units in the last place of the result's type")
      .excludes("--metric")
      .group(kGroup);
  declare_metric(set, into.words, kGroup);
  declare_allowance(set, into.words, kGroup);
}

void declare_test(OptionSet& set, TestFlags& into) {
  declare_tolerance(set, into, " Without a tolerance the bound of --against.");
  declare_no_worse_than(
      set, into.words.other, kGroup,
      "another implementation's result, whose error is the measure\n"
      "Passes where max |A - E| <= F (max |REF - E| + e max |E|), of each array, e the spacing of the result's type "
      "above 1. REF holds arrays by name, or is one.")
      .excludes("--tolerance, --rtol, --atol, --max-ulp, --metric, --allow-fraction, --allow-count");
  take_words(
      set, "--ignore", [&into](const std::string& word) { into.ignored.push_back(read_fault(word)); },
      "FAULT", "a fault that may be missed, by its name; may be repeated")
      .group(kGroup);
  add_format(set);
  set.name_outputs_later();
}

bool aligns_bottom_right(const MaskOptions& masks) {
  return std::any_of(masks.expressions.begin(), masks.expressions.end(),
                     [](const MaskExpression& expression) {
                       return expression.text().find("bottom-right") != std::string::npos;
                     });
}

Outcome run_audit(const TestFlags& test, DType dtype, AuditOptions options, Report head, Job& job,
                  const std::function<Audit(const AuditOptions&)>& audit) {
  options.rule = test.rule(dtype);
  options.ignored = test.ignored;
  std::vector<Output> mutants;
  if (job.outputs.has_target())
    options.mutant = [&](const std::string& name, Array mutant) {
      mutants.push_back({name, make_source(std::move(mutant)), {}});
    };
  options.progress = job.progress();
  const Audit found = job.phase(
      Phase::compute, [&] { return naming_other(test.words.other, [&] { return audit(options); }); });
  Report report = describe(found);
  report.warnings.insert(report.warnings.begin(), head.warnings.begin(), head.warnings.end());
  if (job.outputs.has_target()) {
    std::vector<std::string> names;
    for (const Output& mutant : mutants) names.push_back(mutant.name);
    job.outputs.declare(std::move(names));
  }
  job.deliver(std::move(report), mutants);
  return found.passed() ? Outcome::passed : Outcome::failed;
}

const std::string_view kAuditKeys = R"(
verdict | string | how many faults are caught
kind | string | attention, attention-grad, grouped-matmul or linear-attention
tolerance | section | when the test passes
  name | string | bound, rtol-atol, max-ulp, cos, snr, rel, no-worse-than, or the name of a library's
  text | string | what it is
right | section | a right kernel, with weights rounded as --weights says | not of grouped-matmul
  largest | number or null | its largest error, in units of the tolerance
  passes | boolean | whether it passes
  weights | string | the type of its weights
tried, caught | integer | faults that apply; of these, those that the test would catch
missed | list | names of the others, but for those of --ignore
faults | table | each fault, what is not caught first
  fault | string | its name
  parameter | string or null | of its variant that is hardest to see
  text | string | what that kernel does
  caught | boolean | whether the test fails for each of its variants
  largest | number or null | its largest error in units of the tolerance; null where it is not finite
  changed | share | elements that differ
  array | string | where the error is largest
  index | shape | the element
  why | string or null | inert: no element differs; tolerance: they are within it; null: it is caught
  remedy | string or null | what would show it
  ignored | boolean | whether it is one of --ignore
  evidence | list | public threads that have it
not_tried | table | faults that do not apply
  fault | string | its name
  why | string | what is not there
)";

extern const Command audit_command{
    .name = "audit",
    .group = "Arrays",
    .summary = "which known faults a test would let pass",
    .example = "ejk audit attention q.npy k.npy v.npy --mask causal --tolerance kernelbench",
    .use = R"(mutants = np.load("mutants.npz")  # of -o: wrong results to feed to a test
late = mutants["causal-late"])",
    .keys = joined({kAuditKeys, "dtype | string | the type of the result\n"}),
    .actions = {&audit_attention_command, &audit_attention_grad_command, &audit_grouped_matmul_command,
                &audit_linear_attention_command},
};

}  // namespace ejk::app
