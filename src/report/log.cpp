// The cases of a report for readers of a build's log. Definitions: actions/toolkit:packages/core/src/command.ts,
// pytest-dev/pytest:src/_pytest/junitxml.py, GitHub Flavored Markdown.
// tests: tests/report/test_log.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/utf8.hpp"
#include "ejk/report.hpp"

namespace ejk {

namespace {

using Outcome = ReportCase::Outcome;
using Replacements = std::vector<std::pair<char, std::string_view>>;

// The text with some characters replaced; those that neither XML nor a log has are written as \xNN.
std::string replaced(std::string_view text, const Replacements& by) {
  const auto is_out = [](char32_t c) {
    const bool is_control = c < 0x20 && c != '\t' && c != '\n' && c != '\r';
    return is_control || c == 0x7F || c == 0xFFFE || c == 0xFFFF || core::is_surrogate(c);
  };
  std::string out;
  for (const char c : core::written_out(text, std::numeric_limits<std::size_t>::max(), is_out)) {
    const auto found = std::find_if(by.begin(), by.end(), [&](const auto& one) { return one.first == c; });
    if (found == by.end())
      out += c;
    else
      out += found->second;
  }
  return out;
}

std::string data_of_command(std::string_view text) {
  return replaced(text, {{'%', "%25"}, {'\r', "%0D"}, {'\n', "%0A"}});
}
std::string property_of_command(std::string_view text) {
  return replaced(text, {{'%', "%25"}, {'\r', "%0D"}, {'\n', "%0A"}, {':', "%3A"}, {',', "%2C"}});
}
std::string xml(std::string_view text) {
  return replaced(
      text,
      {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\n', "&#10;"}, {'\r', "&#13;"}});
}
std::string cell(std::string_view text) {
  return replaced(text, {{'&', "&amp;"},
                         {'<', "&lt;"},
                         {'>', "&gt;"},
                         {'|', "\\|"},
                         {'\\', "\\\\"},
                         {'*', "\\*"},
                         {'`', "\\`"},
                         {'[', "\\["},
                         {'_', "\\_"},
                         {'\n', " "},
                         {'\r', " "}});
}

// What a case found, a line each: its findings, or its text.
std::vector<ReportCase::Finding> findings_of(const ReportCase& one) {
  if (!one.findings.empty()) return one.findings;
  if (one.text.empty()) return {};
  return {{one.outcome == Outcome::failed, one.text}};
}

std::string to_github(const Report& report, const std::string& command, const std::string& file) {
  constexpr std::size_t kMost = 10;
  std::vector<const ReportCase*> worst_first;
  for (const ReportCase& one : report.cases) worst_first.push_back(&one);
  std::stable_sort(worst_first.begin(), worst_first.end(),
                   [](const ReportCase* a, const ReportCase* b) { return a->size > b->size; });
  std::vector<std::string> lines[2];  // errors, warnings
  const auto add = [&](bool is_error, const std::string& title, const std::string& text) {
    lines[is_error ? 0 : 1].push_back(
        fmt::format("::{} {}title={}::{}\n", is_error ? "error" : "warning",
                    file.empty() ? "" : fmt::format("file={},", property_of_command(file)),
                    property_of_command(title), data_of_command(text)));
  };
  for (const ReportCase* one : worst_first) {
    if (one->outcome == Outcome::skipped) continue;
    for (const auto& [is_error, text] : findings_of(*one))
      add(is_error,
          command.ends_with(" " + one->name) ? "ejk " + command
                                             : fmt::format("ejk {} {}", command, one->name),
          text);
  }
  for (const std::string& warning : report.warnings) add(false, "ejk " + command, warning);
  std::string out;
  for (std::vector<std::string>& of_kind : lines) {
    of_kind.resize(std::min(of_kind.size(), kMost));
    for (const std::string& line : of_kind) out += line;
  }
  return out;
}

std::string to_junit(const Report& report, const std::string& command) {
  const auto count = [&](auto... outcome) {
    return std::count_if(report.cases.begin(), report.cases.end(),
                         [&](const ReportCase& one) { return ((one.outcome == outcome) || ...); });
  };
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<testsuites><testsuite name=\"ejk\" tests=\"{}\" "
      "failures=\"{}\" errors=\"0\" skipped=\"{}\">\n",
      report.cases.size(), count(Outcome::failed), count(Outcome::ignored, Outcome::skipped));
  std::string of = command;
  std::replace(of.begin(), of.end(), ' ', '.');  // "check.mask"
  for (const ReportCase& one : report.cases) {
    out += fmt::format(R"(<testcase classname="ejk.{}" name="{}")", xml(of), xml(one.name));
    std::string text;
    for (const auto& finding : findings_of(one)) text += (text.empty() ? "" : "\n") + finding.text;
    if (one.outcome == Outcome::passed)
      out += "/>\n";
    else if (one.outcome == Outcome::failed)
      out += fmt::format("><failure message=\"{}\">{}</failure></testcase>\n", xml(one.text), xml(text));
    else
      out += fmt::format("><skipped message=\"{}\"/></testcase>\n", xml(one.text));
  }
  return out + "</testsuite></testsuites>\n";
}

std::string to_markdown(const Report& report, const std::string& command) {
  std::string verdict;
  for (const Report::Item& item : report.items)
    if (const Line* line = std::get_if<Line>(&item); line != nullptr && line->key == "verdict")
      for (const char c : line->text)  // columns are aligned by spaces
        if (c != ' ' || !verdict.ends_with(' ')) verdict += c;
  std::string out = fmt::format("### ejk {}{}{}\n\n| case | result | |\n| --- | --- | --- |\n", command,
                                verdict.empty() ? "" : ": ", cell(verdict));
  constexpr std::string_view kResults[] = {"passed", "failed", "ignored", "skipped"};
  for (const ReportCase& one : report.cases) {
    const std::string_view result = kResults[static_cast<std::size_t>(one.outcome)];
    const auto findings = findings_of(one);
    if (findings.empty()) out += fmt::format("| {} | {} | |\n", cell(one.name), result);
    for (const auto& [is_error, text] : findings)
      out += fmt::format("| {} | {} | {} |\n", cell(one.name),
                         one.findings.empty() ? result
                         : is_error           ? "error"
                                              : "warning",
                         cell(text));
  }
  for (const std::string& warning : report.warnings)
    out += fmt::format("| | warning | {} |\n", cell(warning));
  return out;
}

}  // namespace

const char* name_of(LogFormat format) {
  constexpr const char* kNames[] = {"github", "junit", "md"};
  return kNames[static_cast<std::size_t>(format)];
}

std::string to_log(const Report& report, LogFormat format, const std::string& command,
                   const std::string& file) {
  switch (format) {
    case LogFormat::github:
      return to_github(report, command, file);
    case LogFormat::junit:
      return to_junit(report, command);
    case LogFormat::md:
      break;
  }
  return to_markdown(report, command);
}

}  // namespace ejk
