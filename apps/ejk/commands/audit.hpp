// What the kinds of `ejk audit` share: when a test passes, and the report.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ejk/audit.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "options.hpp"
#include "tolerances.hpp"

namespace ejk::app {

/// When a test passes, as the command line states it.
struct TestFlags {
  ToleranceWords words;
  std::optional<double> rtol, atol;
  std::optional<std::int64_t> max_ulp;
  bool is_forward = false;  // of attention
  std::vector<std::string> ignored;

  /// `otherwise`: the name of a tolerance where none is given; empty: the bound. Throws Error{usage} for two
  /// tolerances, and for incomplete ones.
  PassRule rule(DType dtype, std::string_view otherwise = {}) const;
};

/// The tolerances alone; `otherwise` is the sentence about the default.
void declare_tolerance(OptionSet& set, TestFlags& into, const std::string& otherwise);
void declare_test(OptionSet& set, TestFlags& into);

/// Whether a mask states that alignment.
bool aligns_bottom_right(const MaskOptions& masks);

/// Runs an audit with the options of the command line, delivers its report and, with -o, its mutants.
Outcome run_audit(const TestFlags& test, DType dtype, AuditOptions options, Report head, Job& job,
                  const std::function<Audit(const AuditOptions&)>& audit);

/// Keys of the JSON report of every kind, but for dtype.
extern const std::string_view kAuditKeys;

}  // namespace ejk::app
