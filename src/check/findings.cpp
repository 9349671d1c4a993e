// Findings, stored by rule and sorted by place, so that the first few do not depend on the order of
// insertion. The text of further findings is never built.
// tests: tests/check/test_findings.cpp
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "check/integers.hpp"
#include "check/rules.hpp"
#include "ejk/check.hpp"
#include "ejk/text.hpp"

namespace ejk {

const char* name_of(Severity severity) { return severity == Severity::error ? "error" : "warning"; }

std::span<const CheckKind> check_kinds() {
  static constexpr CheckKind kinds[] = {
      {"cu-seqlens", check::kCuSeqlens},
      {"segment-ids", check::kSegmentIds},
      {"position-ids", check::kPositionIds},
      {"group-sizes", check::kGroupSizes},
      {"group-metadata", check::kGroupMetadata},
      {"topk-ids", check::kTopkIds},
      {"indices", check::kIndices},
      {"block-table", check::kBlockTable},
      {"mask", check::kMask},
      {"mask-info", check::kMaskInfo},
  };
  return kinds;
}

std::span<const Rule> rules_of(std::string_view kind) {
  for (const CheckKind& one : check_kinds())
    if (one.name == kind) return one.rules;
  throw Error(Error::Kind::usage, fmt::format("'{}' is no kind of artefact", kind));
}

Findings::Findings(std::span<const Rule> rules, std::int64_t most)
    : rules_(rules), most_(most), found_(rules.size()) {}

std::size_t Findings::row_of(std::string_view rule) const {
  for (std::size_t r = 0; r < rules_.size(); ++r)
    if (rules_[r].name == rule) return r;
  throw Error(Error::Kind::internal, fmt::format("no rule is called '{}'", rule));
}

void Findings::keep(OfRule& of, std::int64_t place, Finding finding) const {
  const auto after = std::upper_bound(of.kept.begin(), of.kept.end(), place,
                                      [](std::int64_t p, const Placed& other) { return p < other.place; });
  of.kept.insert(after, {place, std::move(finding)});
  if (static_cast<std::int64_t>(of.kept.size()) > most_) of.kept.pop_back();
}

void Findings::merge(Findings&& part) {
  for (std::size_t r = 0; r < found_.size(); ++r) {
    found_[r].count += part.found_[r].count;
    for (Placed& one : part.found_[r].kept)
      if (keeps(found_[r], one.place)) keep(found_[r], one.place, std::move(one.finding));
  }
}

std::int64_t Findings::count(std::string_view rule) const { return found_[row_of(rule)].count; }

std::int64_t Findings::count(Severity severity) const {
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < rules_.size(); ++r)
    if (rules_[r].severity == severity) sum += found_[r].count;
  return sum;
}

std::vector<Findings::Kept> Findings::kept() const& {
  std::vector<Kept> all;
  for (const Severity severity : {Severity::error, Severity::warning})
    for (std::size_t r = 0; r < rules_.size(); ++r)
      if (rules_[r].severity == severity)
        for (const Placed& one : found_[r].kept) all.push_back({rules_[r], one.finding});
  return all;
}

namespace {

// "1 error, 3 warnings"; "ok" if no finding fails.
std::string verdict_of(const Findings& findings, Severity fails) {
  const auto counted = [](std::int64_t count, const char* what) {
    return count == 0 ? "" : fmt::format("{} {}{}", format_count(count), what, count == 1 ? "" : "s");
  };
  const std::string errors = findings.errors() == 0 ? "ok" : counted(findings.errors(), "error");
  const std::string warnings = counted(findings.warnings(), "warning");
  if (fails == Severity::warning && findings.errors() == 0 && !warnings.empty())
    return warnings + " (strict)";
  return warnings.empty() ? errors : errors + ", " + warnings;
}

}  // namespace

Report describe(const Findings& findings, Severity fails) {
  Report report = findings.facts();
  report.items.insert(report.items.begin(), Line{"verdict", verdict_of(findings, fails)});
  report.add(JsonField{"errors", fmt::format("{}", findings.errors())})
      .add(JsonField{"warnings", fmt::format("{}", findings.warnings())});

  const auto kept = findings.kept();
  const bool in_one = std::all_of(kept.begin(), kept.end(), [&](const Findings::Kept& one) {
    return one.finding.array == kept.front().finding.array;
  });
  Table table{"findings",
              "",
              {{"rule", "rule"},
               {"severity", "severity", Unit::none, true},
               {"array", "array", Unit::none, in_one && !findings.shows_arrays()},
               {"index", "index"},
               {"value", "value"},
               {"message", "what is wrong"}},
              {},
              std::numeric_limits<std::int64_t>::max()};
  for (const auto& [rule, finding] : kept)
    table.rows.push_back({std::string(rule.name), std::string(name_of(rule.severity)), finding.array,
                          finding.index, finding.value, finding.message});
  report.add(std::move(table));

  Table counts{
      "counts", "", {{"rule", "rule"}, {"severity", ""}, {"count", "findings"}, {"text", "what holds"}}, {}};
  for (const Severity severity : {Severity::error, Severity::warning})
    for (const Rule& rule : findings.rules())
      if (const std::int64_t count = findings.count(rule.name); rule.severity == severity && count > 0)
        counts.rows.push_back(
            {std::string(rule.name), std::string(name_of(severity)), count, std::string(rule.text)});
  report.add(std::move(counts));
  return report;
}

}  // namespace ejk
