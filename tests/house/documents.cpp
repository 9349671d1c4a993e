// README.md's commands and output are those that the tests run.
#include <doctest/doctest.h>

#include <fstream>
#include <regex>
#include <string>

#include "tree.hpp"

namespace fs = std::filesystem;

namespace {

// What stands between "```language" and "```", block after block.
std::vector<std::string> blocks_of(const std::string& markdown, const std::string& language) {
  std::vector<std::string> blocks;
  const std::string open = "```" + language + "\n";
  for (auto at = markdown.find(open); at != std::string::npos; at = markdown.find(open, at)) {
    at += open.size();
    const auto end = markdown.find("```", at);
    blocks.push_back(markdown.substr(at, end - at));
    at = end + 3;
  }
  return blocks;
}

#ifdef EJK_PROGRAM
// The text of a console block with what its commands ("$ ...") print now. They run in `scratch`.
std::string played(const std::string& block, const fs::path& scratch) {
  const std::string shell = "cd '" + scratch.string() + "' && PATH='" +
                            fs::path(EJK_PROGRAM).parent_path().string() + "':\"$PATH\" COLUMNS=80 " +
                            "LC_ALL=C.UTF-8 sh -c '";
  std::string out;
  for (const std::string& line : house::lines_of(block)) {
    if (!line.starts_with("$ ")) continue;
    std::string command = line.substr(2);
    for (auto at = command.find('\''); at != std::string::npos; at = command.find('\'', at + 4))
      command.replace(at, 1, "'\\''");
    out += line + "\n" + house::output_of(shell + command + "' 2>&1 </dev/null").text;
  }
  return out;
}
#endif

const std::string& readme() {
  static const std::string text = house::read_file(house::kRoot / "README.md");
  return text;
}

}  // namespace

TEST_CASE("README's example of the library is the project that a test builds") {
  const auto blocks = blocks_of(readme(), "cpp");
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0] == house::read_file(house::kRoot / "tests/package/consumer.cpp"));
  const std::string project = house::read_file(house::kRoot / "tests/package/CMakeLists.txt");
  const auto cmake = blocks_of(readme(), "cmake");
  REQUIRE(cmake.size() == 1);
  for (const std::string& line : house::lines_of(cmake[0]))
    CHECK_MESSAGE(project.find(line) != std::string::npos, line);
}

TEST_CASE("README has two commands, and .ci/run calls the second word for word") {
  const auto commands = blocks_of(readme(), "sh");
  REQUIRE(commands.size() == 2);
  for (const std::string& command : commands) CHECK(house::lines_of(command).size() == 1);
  CHECK(house::read_file(house::kRoot / ".ci/run").find("\n  " + commands[1]) != std::string::npos);
}

TEST_CASE("CONTRIBUTING names every package that .ci/install installs for the build and the tests") {
  const std::string guide = house::read_file(house::kRoot / ".github/CONTRIBUTING.md");
  const std::string script = house::read_file(house::kRoot / ".ci/install");
  const auto begin = script.find("packages=\"") + 10;
  std::string packages = script.substr(begin, script.find('"', begin) - begin) + " doctest ";
  for (std::size_t at = 0, end = 0; (end = packages.find(' ', at)) != std::string::npos; at = end + 1)
    CHECK_MESSAGE(guide.find(packages.substr(at, end - at)) != std::string::npos,
                  packages.substr(at, end - at));
}

#ifdef EJK_PROGRAM
TEST_CASE("README's tour shows what the program prints") {
  const fs::path build = fs::path(EJK_BUILD) / "tests/house";
  const fs::path scratch = build / "tour";
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  fs::create_directory_symlink(house::kRoot / "data", scratch / "data");

  const auto blocks = blocks_of(readme(), "console");
  CHECK(blocks.size() >= 3);
  std::string renewed = readme();
  for (const std::string& block : blocks) {
    const std::string now = played(block, scratch);
    CHECK(block == now);
    renewed.replace(renewed.find(block), block.size(), now);
  }
  const bool same_picture =
      house::read_file(scratch / "documents.svg") == house::read_file(house::kRoot / "data/documents.svg");
  CHECK_MESSAGE(same_picture, "README shows another picture: ", (scratch / "documents.svg").string());
  std::ofstream(build / "README.md") << renewed;
  CHECK_MESSAGE(renewed == readme(), "README.md with the new output: ", (build / "README.md").string());
}
#endif

TEST_CASE("types are in the files that src/README.md names") {
  static const std::regex row(R"(^\| .* \| `(\w+)` \| `([^`]+)` \|$)");
  int seen = 0;
  for (const std::string& line : house::lines_of(house::read_file(house::kRoot / "src/README.md"))) {
    std::smatch m;
    if (!std::regex_match(line, m, row)) continue;
    ++seen;
    const std::regex definition("\\b(class|struct) " + m[1].str() + "\\b[^;(]*\\{");
    CHECK_MESSAGE(std::regex_search(house::read_file(house::kRoot / m[2].str()), definition), line);
  }
  CHECK(seen > 20);
}
