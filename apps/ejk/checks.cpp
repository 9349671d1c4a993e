// The verdict becomes the exit status; what is printed is the library's report.
#include "checks.hpp"

#include <fmt/format.h>

namespace ejk::app {

namespace {

// With --all. More of one rule would be more than anybody reads, and much memory.
constexpr std::int64_t kAllFindings = 100'000;

}  // namespace

CheckOptions CheckFlags::options(Job& job) const {
  return {all ? kAllFindings : Findings::kFew, job.progress(), job.budget.bytes()};
}

void declare_check(OptionSet& set, std::string_view kind, CheckFlags& flags, const std::string& more) {
  add_flag(set, "--all", flags.all,
           "show all findings, not the first 10 of each rule\nAt most 100,000 of each; all are counted.");
  add_flag(set, "--strict", flags.strict, "a warning makes the exit status 1, as an error does");
  std::string rules = "Rules (a finding says which is broken)\n";
  for (const Rule& rule : rules_of(kind))
    rules += fmt::format("  {:14}  {:7}  {}\n", rule.name, name_of(rule.severity), rule.text);
  set_footer(set, fmt::format("{}{}{}\nExit status: 0 without an error, 1 with one.", more,
                              more.empty() ? "" : "\n\n", rules));
}

Outcome deliver(const Findings& findings, const CheckFlags& flags, Job& job) {
  job.deliver(describe(findings, flags.strict ? Severity::warning : Severity::error), {});
  return findings.errors() > 0 || (flags.strict && findings.warnings() > 0) ? Outcome::failed
                                                                            : Outcome::passed;
}

}  // namespace ejk::app
