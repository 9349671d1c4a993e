// The top level, and text that no file may contain.
#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

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

// Words of the command line in the strings of some code: options, and how a command is run.
std::vector<std::string> words_of_the_program(const std::string& code) {
  static const std::regex words("--[a-z]|\\bejk [a-z-]+ .*-o\\b");
  std::vector<std::string> found;
  for (const std::string& string : house::parts_of(code).strings)
    if (std::regex_search(string, words)) found.push_back(string);
  return found;
}

TEST_CASE("the library does not speak the words of the command line: its errors have codes") {
  REQUIRE(words_of_the_program("f(\"--axis is one of {}\");  // \"--by hand\"\n--i;").size() == 1);
  REQUIRE(words_of_the_program("hint(\"ejk convert IN -o OUT\")").size() == 1);
  // What the driver of NVIDIA's GPUs is asked with, in the file that runs it.
  const std::set<std::string> of_nvidia_smi{"--query-gpu=name,driver_version,memory.total",
                                            "--format=csv,noheader,nounits"};
  for (const char* folder : {"src", "include"})
    for (const std::string& file : house::files_below(folder)) {
      if (!house::is_code(file)) continue;
      for (const std::string& string : words_of_the_program(house::read_file(house::kRoot / file))) {
        const bool allowed = file == "src/settings/gpu.cpp" && of_nvidia_smi.contains(string);
        CHECK_MESSAGE(allowed, file, ": ", string);
      }
    }
}

TEST_CASE("ejk.hpp includes every public header, at most 35") {
  CHECK(std::ranges::distance(fs::directory_iterator(house::kRoot / "include/ejk")) <=
        35 + 3);  // ejk.hpp, README, program
  const std::string all = house::read_file(house::kRoot / "include/ejk/ejk.hpp");
  for (const std::string& file : house::files_below("include/ejk"))
    if (const std::string header = file.substr(8);
        house::is_code(file) && header != "ejk/ejk.hpp" && !header.starts_with("ejk/program/"))
      CHECK_MESSAGE(all.find("#include \"" + header + "\"") != std::string::npos, header);
}

TEST_CASE("include/ejk/README.md names every public header once, and no other") {
  const std::string text = house::read_file(house::kRoot / "include/ejk/README.md");
  const std::string audiences = text.substr(0, text.find("## Documented functions"));
  std::multiset<std::string> named;
  static const std::regex header("`([a-z0-9_]+\\.hpp)`");
  for (std::sregex_iterator at(audiences.begin(), audiences.end(), header), end; at != end; ++at)
    named.insert((*at)[1]);
  for (const std::string& file : house::files_below("include/ejk"))
    if (const std::string name = fs::path(file).filename(); house::is_code(file) && name != "ejk.hpp") {
      CHECK_MESSAGE(named.count(name) == 1, name);
      named.erase(name);
    }
  for (const std::string& name : named) CHECK_MESSAGE(false, "there is no ", name);
}

TEST_CASE("comments use the terms of the field") {
  // The glossary in CONTRIBUTING has the terms for these.
  const std::regex banned(
      "\\b(told|tells|nobody|whoever|looks? at|looked at|lies|asks for|asked for|at hand|under way|anew|story|"
      "worked out|gone through|let go)\\b");
  REQUIRE(std::regex_search("where it lies", banned));
  for (const char* folder : {"src", "apps", "include"})
    for (const std::string& file : house::files_below(folder)) {
      if (!house::is_code(file)) continue;
      int number = 0;
      for (const std::string& line : house::lines_of(house::read_file(house::kRoot / file))) {
        ++number;
        const auto at = line.find("// ");
        if (at == std::string::npos) continue;
        CHECK_MESSAGE(!std::regex_search(line.substr(at), banned), file, ":", number, ": ", line);
      }
    }
}

TEST_CASE("identifiers use the terms of the field") {
  // The glossary in CONTRIBUTING has the terms for these.
  const std::regex banned(R"(\b(mine|k?told|is_told|asked|say|said|looks?|look_at\w*|held_?|room|team)\b)",
                          std::regex::icase);
  REQUIRE(std::regex_search("Held held = mine;", banned));
  for (const char* folder : {"include", "src", "apps"})
    for (const std::string& file : house::files_below(folder)) {
      if (!house::is_code(file)) continue;
      for (const std::string& line :
           house::lines_of(house::parts_of(house::read_file(house::kRoot / file)).code))
        CHECK_MESSAGE(!std::regex_search(line, banned), file, ": ", line);
    }
}

TEST_CASE("a source begins with what it does") {
  for (const char* folder : {"src", "apps"})
    for (const std::string& file : house::files_below(folder)) {
      if (!file.ends_with(".cpp")) continue;
      const std::string first = house::lines_of(house::read_file(house::kRoot / file)).at(0);
      CHECK_MESSAGE((first.starts_with("// ") && !first.starts_with("// tests:")), file);
    }
}

TEST_CASE("nobody tells errors apart by the words of their messages") {
  // Spelled so that this file passes.
  const std::string compared =
      "message()"
      ".starts_with";
  for (const char* folder : {"src", "apps", "include"})
    for (const std::string& file : house::files_below(folder))
      if (house::is_code(file))
        CHECK_MESSAGE(house::read_file(house::kRoot / file).find(compared) == std::string::npos, file);
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
