// Every command explains itself with an example and has cases under tests/cli.
#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>

#include "tree.hpp"

#ifdef EJK_PROGRAM

namespace {

std::set<std::string> commands() {
  const auto help = house::output_of(EJK_PROGRAM " help");
  REQUIRE(help.status == 0);
  // "  mask-info   what a block-sparse kernel needs to know of a mask"
  static const std::regex row(R"(^  ([a-z][a-z-]*)  +\S.*)");
  std::set<std::string> names;
  for (const std::string& line : house::lines_of(help.text)) {
    std::smatch m;
    if (std::regex_match(line, m, row)) names.insert(m[1]);
  }
  return names;
}

}  // namespace

TEST_CASE("every command has an example in its help and a case") {
  const auto names = commands();
  CHECK(names.contains("mask-info"));
  for (const std::string& name : names) {
    const auto help = house::output_of(EJK_PROGRAM " " + name + " --help");
    CHECK_MESSAGE(help.status == 0, "ejk ", name, " --help");
    const auto example = help.text.find("xample");
    CHECK_MESSAGE(
        (example != std::string::npos && help.text.find("ejk " + name + " ", example) != std::string::npos),
        "ejk ", name, " --help has no example");
    bool found = false;
    for (const std::string& file : house::files_below("tests/cli/" + name))
      found = found || file.ends_with(".case");
    CHECK_MESSAGE(found, "tests/cli/", name, " has no .case");
  }
}

#else

TEST_CASE("every command has an example in its help and a case") {
  MESSAGE("left out: the program ejk is not part of this build");
}

#endif
