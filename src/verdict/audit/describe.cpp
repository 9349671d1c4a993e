// The report of an audit: what is not caught, what would show it, and what is caught.
// tests: tests/cli/audit/
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/json.hpp"
#include "ejk/audit.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

std::vector<const AuditedFault*> sorted(const Audit& audit) {
  std::vector<const AuditedFault*> all;
  for (const AuditedFault& one : audit.faults) all.push_back(&one);
  std::stable_sort(all.begin(), all.end(), [](const AuditedFault* a, const AuditedFault* b) {
    if (a->caught != b->caught) return !a->caught;
    return a->largest < b->largest;  // NaN does not occur
  });
  return all;
}

std::string why_of(const AuditedFault& one) {
  return one.why == AuditedFault::Why::inert ? "inert" : "tolerance";
}

std::string json_of(const Audit& audit) {
  core::JsonWriter out{core::JsonStyle::report};
  const auto text_or_null = [&](const std::string& text) { text.empty() ? out.null() : out.put(text); };
  out.list([&] {
    for (const AuditedFault* one : sorted(audit))
      out.object([&] {
        out.key("fault").put(std::string(one->fault->name));
        out.key("parameter"), text_or_null(one->parameter);
        out.key("text").put(one->text);
        out.key("caught").put(one->caught);
        out.key("largest"), std::isfinite(one->largest) ? out.put(one->largest) : out.null();
        out.key("changed").put(one->changed());
        out.key("array").put(one->array);
        out.key("index").put(one->index);
        out.key("why"), text_or_null(one->caught ? "" : why_of(*one));
        out.key("remedy"), text_or_null(one->remedy);
        out.key("ignored").put(one->ignored);
        out.key("evidence").list([&] {
          for (std::string_view rest = one->fault->evidence; !rest.empty();) {
            const std::size_t end = std::min(rest.find(", "), rest.size());
            out.put(rest.substr(0, end));
            rest.remove_prefix(std::min(end + 2, rest.size()));
          }
        });
      });
  });
  return out.take();
}

std::string json_of_not_tried(const Audit& audit) {
  core::JsonWriter out{core::JsonStyle::report};
  out.list([&] {
    for (const Audit::NotTried& one : audit.not_tried)
      out.object([&] {
        out.key("fault").put(std::string(one.fault->name));
        out.key("why").put(one.why);
      });
  });
  return out.take();
}

std::string json_of_names(const std::vector<std::string>& names) {
  core::JsonWriter out{core::JsonStyle::report};
  out.list([&] {
    for (const std::string& name : names) out.put(name);
  });
  return out.take();
}

std::vector<ReportCase> cases_of(const Audit& audit) {
  using Outcome = ReportCase::Outcome;
  std::vector<ReportCase> cases;
  for (const AuditedFault& one : audit.faults)
    cases.push_back({std::string(one.fault->name),
                     one.caught    ? Outcome::passed
                     : one.ignored ? Outcome::ignored
                                   : Outcome::failed,
                     one.caught ? "" : fmt::format("not caught: {}; {}", one.text, one.remedy),
                     -one.largest});
  for (const Audit::NotTried& one : audit.not_tried)
    cases.push_back({std::string(one.fault->name), Outcome::skipped, one.why});
  return cases;
}

Table table_of(const Audit& audit, bool caught, AuditOf of) {
  Table table{"",
              caught                  ? "caught"
              : of == AuditOf::inputs ? "not revealed"
                                      : "not caught",
              {{"fault", "fault"}, {"largest", "largest"}, {"text", "what the kernel does"}},
              {},
              64};
  if (!caught) table.columns[2].label += ", and what would show it";
  for (const AuditedFault* one : sorted(audit)) {
    if (one->caught != caught) continue;
    const std::string size = std::isnan(one->largest)   ? "NaN"
                             : std::isinf(one->largest) ? "not finite"
                                                        : fmt::format("{:.3g}", one->largest);
    table.rows.push_back({std::string(one->fault->name) + (one->ignored ? " (ignored)" : ""), size,
                          caught ? one->text : fmt::format("{}; {}", one->text, one->remedy)});
  }
  return table;
}

}  // namespace

std::int64_t Audit::caught() const {
  return std::count_if(faults.begin(), faults.end(), [](const AuditedFault& one) { return one.caught; });
}

std::vector<std::string> Audit::missed() const {
  std::vector<std::string> names;
  for (const AuditedFault* one : sorted(*this))
    if (!one->caught && !one->ignored) names.emplace_back(one->fault->name);
  return names;
}

namespace {

void add_json(const Audit& audit, AuditOf of, Report& report) {
  const auto text = [](const std::string& value) {
    core::JsonWriter out{core::JsonStyle::report};
    out.put(value);
    return out.take();
  };
  const auto section = [](auto&& members) {
    core::JsonWriter out{core::JsonStyle::report};
    out.object([&] { members(out); });
    return out.take();
  };
  report.add(JsonField{"kind", text(audit.kind)});
  if (of == AuditOf::test) report.add(JsonField{"dtype", text(std::string(name_of(audit.dtype)))});
  report.add(JsonField{"tolerance", section([&](core::JsonWriter& out) {
                         out.key("name").put(audit.rule.name);
                         out.key("text").put(text_of(audit.rule));
                       })});
  if (audit.right)
    report.add(JsonField{"right", section([&](core::JsonWriter& out) {
                           out.key("largest");
                           std::isfinite(*audit.right) ? out.put(*audit.right) : out.null();
                           out.key("passes").put(*audit.right <= 1);
                           out.key("weights").put(audit.right_weights);
                         })});
  report.add(JsonField{"tried", std::to_string(audit.faults.size())})
      .add(JsonField{"caught", std::to_string(audit.caught())})
      .add(JsonField{"missed", json_of_names(audit.missed())})
      .add(JsonField{"faults", json_of(audit)})
      .add(JsonField{"not_tried", json_of_not_tried(audit)});
}

}  // namespace

Report describe(const Audit& audit, AuditOf of) {
  Report report;
  report.cases = cases_of(audit);
  report
      .add("verdict", of == AuditOf::inputs ? "reveals" : "caught",
           fmt::format("{} of {} faults", audit.caught(), audit.faults.size()))
      .add("", "tolerance",
           fmt::format("{}: {}, {}", audit.rule.name, text_of(audit.rule), name_of(audit.dtype)));
  if (audit.right) {
    const bool passes = *audit.right <= 1;
    report.add("", "right kernel",
               fmt::format("{:.2g}, {}: weights rounded to {}", *audit.right, passes ? "passes" : "fails",
                           audit.right_weights));
    if (!passes)
      report.warnings.push_back(fmt::format(
          "a right kernel, whose weights are rounded to {}, would fail: {:.3g} times the tolerance",
          audit.right_weights, *audit.right));
  }
  add_json(audit, of, report);
  if (audit.caught() < std::ssize(audit.faults)) report.add(table_of(audit, false, of));
  if (audit.caught() > 0 && of == AuditOf::test) report.add(table_of(audit, true, of));
  Table rest{"", "not tried", {{"fault", "fault"}, {"why", "why"}}, {}, 64};
  for (const Audit::NotTried& one : audit.not_tried)
    rest.rows.push_back({std::string(one.fault->name), one.why});
  if (!rest.rows.empty() && of == AuditOf::test) report.details.emplace_back(std::move(rest));
  return report;
}

}  // namespace ejk
