// Every command has an example that a case runs, and documents the keys of its JSON report.
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

// The line below "Example:" of a command's help.
std::string example_of(const std::string& name) {
  const auto lines = house::lines_of(house::output_of(EJK_PROGRAM " help " + name).text);
  return lines.size() < 2 || lines[0] != "Example:" ? "" : lines[1].substr(lines[1].find_first_not_of(' '));
}

}  // namespace

TEST_CASE("every element type is in the help of arrays and in the Python package, under its names") {
  const std::string help = house::output_of(EJK_PROGRAM " help arrays").text,
                    package = house::read_file(house::kRoot / "apps/python/ejk/__init__.py"),
                    table = house::read_file(house::kRoot / "src/core/element_types.hpp");
  static const std::regex row(R"re(element_type<[\w:]+>\("(\w+)", [^,]+, "(\w+)")re");
  int types = 0;
  for (std::sregex_iterator at(table.begin(), table.end(), row), end; at != end; ++at, ++types) {
    const std::string name = (*at)[1], in_safetensors = (*at)[2];
    CHECK_MESSAGE((name.find("int") != std::string::npos || help.find(name) != std::string::npos), name);
    std::string entry("\"");
    entry.append(name).append(R"(": ")").append(in_safetensors).append("\"");
    CHECK_MESSAGE(package.find(entry) != std::string::npos, name);
  }
  CHECK(types >= 18);
}

TEST_CASE("the example of every command's help is run as it stands by a case") {
  CHECK(commands().contains("mask-info"));
  for (const std::string& name : commands()) {
    const std::string example = example_of(name);
    REQUIRE_MESSAGE(example.starts_with("ejk " + name), "ejk help ", name, " does not begin with an example");
    bool found = false;
    for (const std::string& file : house::files_below("tests/cli/" + name)) {
      if (!file.ends_with(".case")) continue;
      for (const std::string& line : house::lines_of(house::read_file(house::kRoot / file)))
        found = found || (line.starts_with("run: ") && line.find(example) != std::string::npos);
    }
    CHECK_MESSAGE(found, "no case in tests/cli/", name, " runs its example: ", example);
  }
}

TEST_CASE("the keys of every command's JSON report are written down") {
  for (const std::string& name : commands()) {
    const auto page = house::output_of(EJK_PROGRAM " help json " + name);
    bool has_key = false;
    for (const std::string& line : house::lines_of(page.text))
      has_key = has_key || (line.starts_with("  ") && line[2] != ' ');
    CHECK_MESSAGE((page.status == 0 && has_key), "no keys are declared of ", name);
  }
}

TEST_CASE("the help of every command and action has at most 120 lines, that of topics at most 80 columns") {
  const auto check = [](const std::string& what, std::size_t most) {
    auto lines = house::lines_of(house::output_of(EJK_PROGRAM " help " + what).text);
    CHECK_MESSAGE((lines.size() > 3 && lines.size() <= most), "ejk help ", what, " has ", lines.size(),
                  " lines");
    for (const std::string& line : lines)
      CHECK_MESSAGE(line.size() <= 80, "ejk help ", what, " is too wide: ", line);
    return lines;
  };
  for (const std::string& name : commands()) {
    bool is_action = false;
    for (const std::string& line : check(name, 120)) {
      is_action = line == "Actions" || (is_action && !line.empty());
      if (is_action && line.starts_with("  ") && line[2] != ' ')
        check(name + " " + line.substr(2, line.find(' ', 2) - 2), 120);
    }
  }
  for (const std::string topic : {"arrays", "symptoms", "masks", "conventions", "paged", "against",
                                  "tolerances", "layouts", "json", "mpi", "options"})
    check(topic, 200);
  check("layouts", 60);
}

#else

TEST_CASE("the example of every command's help is run as it stands by a case") {
  MESSAGE("skipped: the program ejk is not part of this build");
}

#endif
