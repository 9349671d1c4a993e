// What lies at the top level, and what must not be found in any file.
#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>

#include "tree.hpp"

namespace fs = std::filesystem;

TEST_CASE("the top level holds what it should and no more") {
  const std::set<std::string> agreed{"apps",           "src",       "include", "tests", "data",
                                     "CMakeLists.txt", "README.md", "LICENSE"};
  for (const auto& entry : fs::directory_iterator(house::kRoot)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".") || name.starts_with("build"))
      continue;  // hidden, and .gitignore's build folders
    CHECK_MESSAGE(agreed.contains(name), name);
  }
}

TEST_CASE("no file names a place on somebody's machine or leaves work for later") {
  // Spelled so that this file passes.
  const std::regex place(
      "/(ho"
      "me|ro"
      "ot|wo"
      "rk|Us"
      "ers)/");
  const std::regex later(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X|HA"
      "CK)\\b");
  for (const char* folder : {"apps", "src", "include", "tests", "data", ".ci", ".github"})
    for (const std::string& file : house::files_below(folder)) {
      const std::string text = house::read_file(house::kRoot / file);
      if (text.find('\0') != std::string::npos) continue;  // data
      int number = 0;
      for (const std::string& line : house::lines_of(text)) {
        ++number;
        CHECK_MESSAGE(!std::regex_search(line, place), file, ":", number, ": ", line);
        CHECK_MESSAGE(!std::regex_search(line, later), file, ":", number, ": ", line);
      }
    }
}

TEST_CASE("ejk.hpp includes every public header") {
  const std::string all = house::read_file(house::kRoot / "include/ejk/ejk.hpp");
  for (const std::string& file : house::files_below("include/ejk"))
    if (const std::string header = file.substr(8); house::is_code(file) && header != "ejk/ejk.hpp")
      CHECK_MESSAGE(all.find("#include \"" + header + "\"") != std::string::npos, header);
}

TEST_CASE("include/ejk/README.md names every public header once, and no other") {
  const std::string text = house::read_file(house::kRoot / "include/ejk/README.md");
  const std::string audiences = text.substr(0, text.find("## Documented functions"));
  std::multiset<std::string> named;
  static const std::regex header("`([a-z_]+\\.hpp)`");
  for (std::sregex_iterator at(audiences.begin(), audiences.end(), header), end; at != end; ++at)
    named.insert((*at)[1]);
  for (const std::string& file : house::files_below("include/ejk"))
    if (const std::string name = fs::path(file).filename(); house::is_code(file) && name != "ejk.hpp") {
      CHECK_MESSAGE(named.count(name) == 1, name);
      named.erase(name);
    }
  for (const std::string& name : named) CHECK_MESSAGE(false, "there is no ", name);
}

TEST_CASE("the tests that a source names exist") {
  int seen = 0;
  for (const std::string& file : house::files_below("src")) {
    if (!house::is_code(file)) continue;
    static const std::regex mark("^// tests: ([^,; ]+)");
    for (const std::string& line : house::lines_of(house::read_file(house::kRoot / file))) {
      std::smatch m;
      if (!std::regex_search(line, m, mark)) continue;
      ++seen;
      CHECK_MESSAGE(fs::exists(house::kRoot / m[1].str()), file, " names ", m[1].str());
    }
  }
  CHECK(seen > 20);
}

TEST_CASE("the checked-in data stays small") {
  std::uintmax_t bytes = 0;
  for (const std::string& file : house::files_below("data")) bytes += fs::file_size(house::kRoot / file);
  CHECK(bytes < 300 * 1024);
}
