// The cases of a report as workflow commands, XML and a table: escapes, and what is left out.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "ejk/report.hpp"

using namespace ejk;

namespace {

Report report_of_cases() {
  using Outcome = ReportCase::Outcome;
  Report report;
  report.add(Line{"verdict", "1 of  3"});
  report.cases = {{"a", Outcome::passed},
                  {"b<|", Outcome::failed, "100 %: 'x' < \"y\" &\n\x01_", 1},
                  {"c", Outcome::ignored, "known", 0},
                  {"d", Outcome::skipped, "not compared"},
                  {"e", Outcome::failed, "2 errors", 5, {{true, "first"}, {false, "second"}}}};
  report.warnings = {"careful"};
  return report;
}

}  // namespace

TEST_CASE("workflow commands are escaped, the worst first, errors before warnings") {
  CHECK(to_log(report_of_cases(), LogFormat::github, "compare", "a,b:c%.npy") ==
        "::error file=a%2Cb%3Ac%25.npy,title=ejk compare e::first\n"
        "::error file=a%2Cb%3Ac%25.npy,title=ejk compare b<|::100 %25: 'x' < \"y\" &%0A\\x01_\n"
        "::warning file=a%2Cb%3Ac%25.npy,title=ejk compare e::second\n"
        "::warning file=a%2Cb%3Ac%25.npy,title=ejk compare c::known\n"
        "::warning file=a%2Cb%3Ac%25.npy,title=ejk compare::careful\n");
}

TEST_CASE("there are ten workflow commands of a kind, and no file where none is known") {
  Report report;
  for (int n = 0; n < 12; ++n)
    report.cases.push_back({std::to_string(n), ReportCase::Outcome::failed, "x", static_cast<double>(n)});
  const std::string log = to_log(report, LogFormat::github, "check mask", "");
  CHECK(log.starts_with("::error title=ejk check mask 11::x\n"));
  CHECK(std::count(log.begin(), log.end(), '\n') == 10);
  report.cases = {{"mask", ReportCase::Outcome::passed}};
  CHECK(to_log(report, LogFormat::github, "check mask", "").empty());
}

TEST_CASE("JUnit's XML counts cases, and has no character that XML does not have") {
  CHECK(
      to_log(report_of_cases(), LogFormat::junit, "audit attention", "f") ==
      "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n"
      "<testsuites><testsuite name=\"ejk\" tests=\"5\" failures=\"2\" errors=\"0\" skipped=\"2\">\n"
      "<testcase classname=\"ejk.audit.attention\" name=\"a\"/>\n"
      "<testcase classname=\"ejk.audit.attention\" name=\"b&lt;|\"><failure message=\"100 %: 'x' &lt; "
      "&quot;y&quot; &amp;&#10;\\x01_\">100 %: 'x' &lt; &quot;y&quot; &amp;&#10;\\x01_</failure></testcase>\n"
      "<testcase classname=\"ejk.audit.attention\" name=\"c\"><skipped message=\"known\"/></testcase>\n"
      "<testcase classname=\"ejk.audit.attention\" name=\"d\"><skipped message=\"not compared\"/></testcase>\n"
      "<testcase classname=\"ejk.audit.attention\" name=\"e\"><failure message=\"2 errors\">first&#10;second"
      "</failure></testcase>\n"
      "</testsuite></testsuites>\n");
}

TEST_CASE("a table of Markdown has a row for each finding") {
  CHECK(to_log(report_of_cases(), LogFormat::md, "compare", "f") ==
        "### ejk compare: 1 of 3\n\n| case | result | |\n| --- | --- | --- |\n"
        "| a | passed | |\n"
        "| b&lt;\\| | failed | 100 %: 'x' &lt; \"y\" &amp; \\\\x01\\_ |\n"
        "| c | ignored | known |\n"
        "| d | skipped | not compared |\n"
        "| e | error | first |\n"
        "| e | warning | second |\n"
        "| | warning | careful |\n");
}
