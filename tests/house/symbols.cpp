// Symbols of objects for wider instruction sets: they export no inline function or template, since the linker
// may select such a weak symbol for all callers, and a lesser CPU would fail. Libraries for some file formats
// only are not linked.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tree.hpp"

namespace {

// By its flags, or by its name: a pragma inside can do what flags do.
const std::regex kWideName(R"(src/kernels/(.*_)?(sse|avx|amx|f16c|neon|sve)[a-z0-9_]*\.cpp)");
const std::regex kWideFlag(R"( -m(avx|fma|f16c|bmi|sse4|amx|arch=)[^ ]*)");

// Symbols in `nm -P` form that another object's definition could stand in for.
std::vector<std::string> weak_symbols(const std::string& printed) {
  std::vector<std::string> weak;
  for (const std::string& line : house::lines_of(printed)) {
    const auto space = line.find(' ');
    if (space == std::string::npos || space + 1 >= line.size()) continue;
    if (std::string("WwVvu").find(line[space + 1]) != std::string::npos)
      weak.push_back(line.substr(0, space));
  }
  return weak;
}

}  // namespace

TEST_CASE("weak symbols are told from others") {
  CHECK(weak_symbols("_Zone T 0 0\n_Ztwo W 0 0\n_Zthree t 0\n_Zfour u 0 0\n") ==
        std::vector<std::string>{"_Ztwo", "_Zfour"});
}

TEST_CASE("only kernels are compiled for wider instruction sets, and they export no weak symbols") {
  const auto commands =
      nlohmann::json::parse(house::read_file(std::filesystem::path(EJK_BUILD) / "compile_commands.json"));
  for (const auto& entry : commands) {
    const std::string command = entry.at("command"), file = entry.at("file");
    const auto name = std::filesystem::path(file).lexically_relative(house::kRoot).generic_string();
    if (!std::regex_search(command, kWideFlag) && !std::regex_match(name, kWideName)) continue;
    CHECK_MESSAGE(name.starts_with("src/kernels/"), name, " is compiled for a wider instruction set");
#ifdef EJK_CHECK_SYMBOLS
    std::smatch output;
    REQUIRE(std::regex_search(command, output, std::regex(R"( -o ([^ ]+) )")));
    const auto object = std::filesystem::path(entry.at("directory").get<std::string>()) / output[1].str();
    if (!std::filesystem::exists(object)) continue;  // of a target that is not built here
    const auto printed = house::output_of(EJK_NM " -P --defined-only '" + object.string() + "'");
    REQUIRE_MESSAGE(printed.status == 0, object.string());
    for (const std::string& symbol : weak_symbols(printed.text))
      CHECK_MESSAGE(false, name, " exports the weak symbol ", symbol);
#endif
  }
}

TEST_CASE("nobody but kernels changes the instruction set inside a file") {
  static const std::regex change(
      R"(#\s*pragma\s+GCC\s+target|__attribute__\s*\(\(\s*target|\[\[gnu::target)");
  for (const char* folder : {"apps", "src", "include"})
    for (const std::string& file : house::files_below(folder))
      if (house::is_code(file) && !file.starts_with("src/kernels/"))
        CHECK_MESSAGE(!std::regex_search(house::read_file(house::kRoot / file), change), file);
}

#if defined(EJK_PROGRAM) && !defined(EJK_STATIC)
TEST_CASE("the program starts without the libraries that are loaded when a file needs them") {
  const auto needed = house::output_of("LD_TRACE_LOADED_OBJECTS=1 " EJK_PROGRAM);  // as ldd does
  CHECK(needed.text.find("libc.so") != std::string::npos);
  CHECK(needed.text.find("libhdf5") == std::string::npos);
}
#endif
