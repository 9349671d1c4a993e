// The length of functions: at most 70 lines, but for a list that only shrinks.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tree.hpp"

namespace {

constexpr int kMost = 70;

// Functions that are longer, and how long they are. None is added, none grows.
const std::map<std::string, int> kLonger{
    {"apps/ejk/commands/quantize.cpp: declare_quantize", 80},
    {"src/attention/arguments.cpp: check_arguments", 76},
    {"src/attention/decode.cpp: add_up", 154},
    {"src/attention/merge_states.cpp: merge_states", 87},
    {"src/blocks/index_arrays.cpp: fill_dkv", 75},
    {"src/check/block_table.cpp: check_block_table", 87},
    {"src/check/group_arrays.cpp: check_blocks", 72},
    {"src/check/permutation.cpp: check_permutation", 123},
    {"src/compare/runs.cpp: compare_runs", 78},
    {"src/io/hdf5/server.cpp: read_type", 73},
    {"src/io/pickle.cpp: step", 144},
    {"src/layouts/fa4_varlen.cpp: write_varlen", 72},
    {"src/mask/expression.cpp: kinds", 75},
    {"src/settings/sharding.cpp: describe", 73},
    {"src/sparsity/sparsity.cpp: add_sizes", 72},
    {"src/verdict/against.cpp: compare_rows", 95},
    {"src/verdict/attention/check.cpp: check_gradients", 97},
    {"src/verdict/matmul/check.cpp: check_problem", 71},
};

struct Function {
  std::string name;
  int lines;
};

bool ends_with(const std::string& line, char c) {
  const auto last = line.find_last_not_of(' ');
  return last != std::string::npos && line[last] == c;
}

// The functions of a file as clang-format leaves them: from the line of the name to a brace at the same column,
// that of a namespace or of members of a class.
std::vector<Function> functions_of(const std::vector<std::string>& lines) {
  static const std::regex begins(
      R"(^( {0,2})(?!(if|for|while|switch|return|else|case|do|try|namespace|using)\b)[A-Za-z_~][^=;#"]*?([\w:~]+|operator\S+)\()");
  std::vector<Function> all;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch m;
    if (!std::regex_search(lines[i], m, begins) || m[1].length() == 1) continue;
    const std::string column = m[1];
    std::size_t body = i;  // the line with the opening brace
    while (body < lines.size() && !ends_with(lines[body], '{') && !ends_with(lines[body], ';') &&
           !ends_with(lines[body], '}') && !lines[body].empty())
      ++body;
    if (body == lines.size() || !ends_with(lines[body], '{')) continue;
    std::size_t end = body + 1;
    while (end < lines.size() && !lines[end].starts_with(column + "}")) ++end;
    if (end == lines.size() || lines[end] != column + "}") continue;
    all.push_back({m[3], static_cast<int>(end - i) + 1});
    i = end;
  }
  return all;
}

}  // namespace

TEST_CASE("functions have 70 lines at most") {
  std::map<std::string, int> longest;
  int seen = 0;
  for (const char* folder : {"src", "apps", "include"})
    for (const std::string& file : house::files_below(folder)) {
      if (!house::is_code(file)) continue;
      for (const Function& function : functions_of(house::lines_of(house::read_file(house::kRoot / file)))) {
        ++seen;
        if (function.lines <= kMost) continue;
        int& lines = longest[file + ": " + function.name];
        lines = std::max(lines, function.lines);
      }
    }
  CHECK(seen > 3000);
  for (const auto& is : longest) {
    const auto listed = kLonger.find(is.first);
    const int most = listed == kLonger.end() ? kMost : listed->second;
    CHECK_MESSAGE(is.second <= most, is.first, " has ", is.second, " lines, at most ", most);
  }
  for (const auto& listed : kLonger) {
    const auto is = longest.find(listed.first);
    const bool same = is != longest.end() && is->second == listed.second;
    CHECK_MESSAGE(same, listed.first, " is shorter now: update the list");
  }
}

TEST_CASE("the length of a function is from its name to its brace") {
  const auto found =
      functions_of({"int f(int a,", "      int b) {", "  if (a) {", "    g();", "  }", "  return b;", "}",
                    "class A {", "  void g() const {", "  }", "  int h();", "};"});
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "f");
  CHECK(found[0].lines == 7);
  CHECK(found[1].name == "g");
  CHECK(found[1].lines == 2);
}
