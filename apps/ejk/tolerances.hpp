// Options that state when numbers agree, for comparisons and audits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ejk/compare.hpp"
#include "options.hpp"

namespace ejk::app {

/// At least 0, and finite. Throws Error{usage}.
double read_tolerance(const std::string& word);

/// --no-worse-than and --factor.
struct BesideWords {
  std::string reference;
  double factor = 2;

  bool given() const { return !reference.empty(); }
};

/// What comparisons and audits have in common.
struct ToleranceWords {
  std::string library;  // --tolerance; empty: none
  std::optional<std::int64_t> allow_count;
  std::optional<double> allow_fraction;
  std::string metric;  // empty: none
  std::optional<double> at_least, at_most;
  BesideWords other;

  bool allows_some() const { return allow_count || allow_fraction; }
};

/// --tolerance, which excludes the options of `others`; `otherwise` is a sentence about the default.
void declare_library(OptionSet& set, ToleranceWords& into, const char* group, const std::string& others,
                     const std::string& otherwise = {});
/// --allow-fraction and --allow-count.
void declare_allowance(OptionSet& set, ToleranceWords& into, const char* group);
/// --metric, --at-least and --at-most.
void declare_metric(OptionSet& set, ToleranceWords& into, const char* group);
/// --no-worse-than and --factor. Returns the first.
Option& declare_no_worse_than(OptionSet& set, BesideWords& into, const char* group, const char* text);

/// Throws Error{usage} for --allow-fraction and --allow-count beside a tolerance that is not one of elements.
void check_allowance(const ToleranceWords& words, const PassRule& rule);
/// Throws Error{usage} for the tolerance of eager attention, outside of its forward pass.
void refuse_eager(const std::string& library);

/// The limit of --metric cos, snr or rel: that of --at-least, of rel that of --at-most. Throws Error{usage} without it,
/// and for the other one.
MetricLimit metric_limit(const std::string& metric, const std::optional<double>& at_least,
                         const std::optional<double>& at_most);

}  // namespace ejk::app
