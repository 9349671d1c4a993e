// Values of the options that state when numbers agree.
// tests: tests/cli/compare/, tests/cli/audit/
#include "tolerances.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "ejk/program/text.hpp"

namespace ejk::app {

double read_tolerance(const std::string& word) {
  const double value = read_real(word);
  if (!(value >= 0)) throw usage("{} is not at least 0", value);
  if (value > std::numeric_limits<double>::max()) throw usage("it must be finite");
  return value;
}

namespace {

std::string read_library(const std::string& word) {
  const std::vector<std::string> names(rule_names().begin(), rule_names().end());
  if (std::find(names.begin(), names.end(), word) != names.end()) return word;
  const auto nearest = nearest_name(word, names);
  throw usage("'{}' is not one of {}", printable(word), fmt::join(names, ", "))
      .hint(nearest ? fmt::format("did you mean '{}'?", *nearest) : "");
}

}  // namespace

void declare_library(OptionSet& set, ToleranceWords& into, const char* group, const std::string& others,
                     const std::string& otherwise) {
  add_word(
      set, "--tolerance", into.library, read_library, "NAME",
      fmt::format(
          "of a library: {}\n"
          "torch.testing: the defaults of torch.testing.assert_close. kernelbench: allclose with 1e-2, of float32 "
          "and wider 1e-4, relative to the actual element. flash-attn: twice the error of eager attention in the type "
          "of the inputs, in audits of attention alone. fla: RMS of the error within 0.005 of that of the result. "
          "flashinfer-bench: 1e-2, absolute or relative. hf-kernels: 1e-2 + 1e-5 |expected|.{}",
          fmt::join(rule_names(), ", "), otherwise))
      .excludes(others)
      .group(group);
}

void declare_allowance(OptionSet& set, ToleranceWords& into, const char* group) {
  add_word(set, "--allow-fraction", into.allow_fraction, read_share, "P",
           "share of all elements that may be out of tolerance\nFrom 0 to 1; of --allow-count the larger.")
      .group(group);
  add_word(set, "--allow-count", into.allow_count, at_least(0), "N",
           "number of elements that may be out of tolerance")
      .group(group);
}

void declare_metric(OptionSet& set, ToleranceWords& into, const char* group) {
  add_choice(
      set, "--metric", into.metric, {{"cos", "cos"}, {"snr", "snr"}, {"rel", "rel"}}, "NAME",
      "one number decides, with a limit\n"
      "cos is the cosine between both, snr 10 log10(sum E^2 / sum (A - E)^2) in decibels, rel sum (A - E)^2 / "
      "sum (A^2 + E^2), as DeepGEMM has it. Elements count, too, only where --rtol or --atol is given; NaN on "
      "one side is never close.")
      .group(group);
  add_word(set, "--at-least", into.at_least, read_finite, "X", "the limit of --metric cos or snr")
      .needs("--metric")
      .group(group);
  add_word(set, "--at-most", into.at_most, read_finite, "X", "the limit of --metric rel")
      .needs("--metric")
      .group(group);
}

Option& declare_no_worse_than(OptionSet& set, BesideWords& into, const char* group, const char* text) {
  Option& option = add_reference(set, "--no-worse-than", into.reference, text).group(group);
  add_word(
      set, "--factor", into.factor,
      [](const std::string& word) {
        const double factor = read_finite(word);
        if (factor <= 0) throw usage("{} is not above 0", word);
        return factor;
      },
      "F", "how many times that error, 2 by default")
      .needs("--no-worse-than")
      .group(group);
  return option;
}

void check_allowance(const ToleranceWords& words, const PassRule& rule) {
  if (words.allows_some() && !rule.is_by_element())
    throw usage("--allow-fraction and --allow-count are of tolerances of elements");
}

void refuse_eager(const std::string& library) {
  if (library == "flash-attn")
    throw usage("the tolerance flash-attn is that of attention's forward pass")
        .hint("--no-worse-than REF measures by the error of another implementation, as of eager attention");
}

MetricLimit metric_limit(const std::string& metric, const std::optional<double>& at_least,
                         const std::optional<double>& at_most) {
  const bool most = metric == "rel";
  const std::optional<double>& limit = most ? at_most : at_least;
  if (!limit || (most ? at_least : at_most))
    throw usage(most ? "--metric rel requires --at-most" : "--metric cos and snr require --at-least")
        .hint(most ? "for example --at-most 1e-3" : "for example --metric cos --at-least 0.999");
  return {most ? Metric::rel : metric == "snr" ? Metric::snr : Metric::cosine, *limit};
}

}  // namespace ejk::app
