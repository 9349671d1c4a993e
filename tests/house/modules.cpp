// The modules of src/ and their dependencies: allowed includes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>

#include "tree.hpp"

namespace {

using Names = std::set<std::string>;

// A module and the modules that it may include.
const std::map<std::string, Names> kArrows{
    {"core", {}},
    {"io", {"core"}},
    {"report", {"core"}},
    {"kernels", {}},
    {"sequence", {"core", "kernels"}},
    {"arrays", {"core", "kernels"}},
    {"quantize", {"arrays", "core", "kernels"}},
    {"settings", {"core", "kernels"}},
    {"mask", {"core", "kernels"}},
    {"blocks", {"core", "kernels", "mask"}},
    {"compare", {"arrays", "core", "kernels", "quantize"}},
    {"matmul", {"core", "kernels"}},
    {"attention", {"blocks", "core", "kernels", "mask", "matmul"}},
    {"verdict", {"attention", "blocks", "compare", "core", "kernels", "mask", "matmul", "recurrence"}},
    {"sparsity", {"blocks", "core", "kernels", "mask"}},
    {"check", {"blocks", "core", "mask", "matmul", "quantize", "sequence", "sparsity"}},
    {"recurrence", {"core", "kernels", "matmul"}},
    {"layouts", {"blocks", "check", "core", "kernels", "mask"}},
};

// A public header and the module that implements it: the third column of the table in src/README.md.
std::map<std::string, std::string> public_headers() {
  static const std::regex row(R"(^\| `([a-z]+)` \|.*\|([^|]*)\|$)"), name("`([a-z0-9_/]+)`");
  std::map<std::string, std::string> headers;
  for (const std::string& line : house::lines_of(house::read_file(house::kRoot / "src/README.md"))) {
    std::smatch found;
    if (!std::regex_match(line, found, row) || !kArrows.contains(found[1])) continue;
    const std::string names = found[2];
    for (std::sregex_iterator at(names.begin(), names.end(), name), end; at != end; ++at)
      headers.emplace((*at)[1], found[1]);
  }
  return headers;
}

// Libraries that only some places know: how an #include of them begins, and the places.
const std::map<std::string, Names> kLibraries{
    {"hdf5", {"src/io"}},        {"H5", {"src/io"}}, {"zip.h", {"src/io"}},
    {"png.h", {"src/report"}},   {"CLI/", {"apps"}}, {"nlohmann/", {}},
    {"mpi.h", {"apps/ejk-mpi"}}, {"doctest/", {}},   {"benchmark/", {}},
};

// Kernels are compiled several times over, for wider and wider instruction sets, and the linker takes one
// copy of a function that two of them share. So they include what brings no functions along.
const Names kKernelHeaders{"array",   "bit",           "climits",     "cmath",       "cstddef", "cstdint",
                           "cstdlib", "cstring",       "cpuid.h",     "immintrin.h", "limits",  "optional",
                           "span",    "string_view",   "type_traits", "arm_neon.h",  "utility", "sys/auxv.h",
                           "atomic",  "sys/syscall.h", "unistd.h"};
const std::regex kKernelWords(
    R"(\b(throw|try|catch|new|delete|malloc|calloc|realloc|free)\b|#\s*pragma\s+omp|\bstd::(vector|string|map|function|unique_ptr|shared_ptr)\b)");

// This one is compiled once, for any processor.
const std::string kTableOfKernels = "src/kernels/kernels.cpp";

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

bool begins_with_any(const std::string& path, const Names& places) {
  return std::any_of(places.begin(), places.end(), [&](const auto& p) { return path.starts_with(p + "/"); });
}

// The module of an #include "...", empty for a neighbour in the same folder; nothing for one that no module
// has.
std::optional<std::string> module_of(const std::string& included) {
  if (included.find('/') == std::string::npos) return "";
  if (!included.starts_with("ejk/")) {
    const std::string module = first_part(included);
    return kArrows.contains(module) ? std::optional(module) : std::nullopt;
  }
  const std::string name = included.substr(4, included.rfind(".hpp") - 4);
  static const auto headers = public_headers();
  const auto it = headers.find(name);
  return it == headers.end() ? std::nullopt : std::optional(it->second);
}

// What is wrong with `file` including `included`; empty when nothing is.
std::string fault(const std::string& file, const std::string& included, bool quoted) {
  if (!quoted) {
    for (const auto& [library, places] : kLibraries)
      if (included.starts_with(library) && !begins_with_any(file, places))
        return "this library is not for this place";
    if (file.starts_with("src/kernels/") && file != kTableOfKernels && !kKernelHeaders.contains(included))
      return "kernels include next to nothing";
    if (file.starts_with("include/") &&
        (included.starts_with("fmt/") || included == "omp.h" || included.starts_with("nlohmann/")))
      return "public headers need only the standard library";
    return "";
  }
  if (file.starts_with("apps/")) {
    if (included.starts_with("ejk/") && included != "ejk/ejk.hpp" && !module_of(included))
      return "unknown public header: add it to its module in src/README.md";
    const bool own = std::filesystem::exists(house::kRoot / "apps/ejk" / included) ||
                     std::filesystem::exists((house::kRoot / file).parent_path() / included);
    return included.starts_with("ejk/") || own ? "" : "apps see public headers only";
  }
  if (file == "include/ejk/ejk.hpp") return "";
  const auto theirs = module_of(included);
  if (!theirs) return "no module has this file; src/README.md lists modules and public headers";
  if (theirs->empty()) return file.starts_with("src/") ? "" : "public headers are included as \"ejk/...\"";
  const bool is_public = file.starts_with("include/");
  const std::string mine = is_public ? module_of(file.substr(8)).value_or("") : first_part(file.substr(4));
  if (!kArrows.contains(mine)) return "unknown module or public header: src/README.md lists them";
  if (is_public && !included.starts_with("ejk/")) return "public headers include public headers only";
  if (is_public && included.starts_with("ejk/program/") && !file.starts_with("include/ejk/program/"))
    return "public headers do not include those of the program";
  if (mine == "kernels") {
    const bool once =
        file == kTableOfKernels && (included == "ejk/error.hpp" || included == "ejk/program/text.hpp");
    return once || *theirs == "kernels" || included == "ejk/dtype.hpp"
               ? ""
               : "kernels know dtype.hpp and nothing else";
  }
  if (mine == *theirs || kArrows.at(mine).contains(*theirs)) return "";
  // The type that describe(result) returns.
  if (included == "ejk/report.hpp" && mine != "core" && mine != "io") return "";
  return mine + " must not know " + *theirs;
}

}  // namespace

TEST_CASE("every #include follows the arrows between the modules") {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  int seen = 0;
  for (const char* folder : {"include", "src", "apps"})
    for (const std::string& file : house::files_below(folder)) {
      if (!house::is_code(file)) continue;
      int number = 0;
      for (const std::string& line : house::lines_of(house::read_file(house::kRoot / file))) {
        ++number;
        std::smatch m;
        if (!std::regex_search(line, m, include)) continue;
        ++seen;
        const std::string why = fault(file, m[2], m[1] == "\"");
        CHECK_MESSAGE(why.empty(), file, ":", number, ": ", line, ": ", why);
      }
    }
  CHECK(seen > 20);
}

TEST_CASE("the arrows say no where they should") {
  CHECK(fault("src/mask/mask.cpp", "ejk/io.hpp", true) == "mask must not know io");
  CHECK(fault("src/mask/mask.cpp", "io/npy.hpp", true) == "mask must not know io");
  CHECK(fault("src/matmul/plan.cpp", "attention/plan.hpp", true) == "matmul must not know attention");
  CHECK(fault("src/report/text.cpp", "ejk/mask_info.hpp", true) == "report must not know blocks");
  CHECK(fault("src/core/text.cpp", "ejk/report.hpp", true) == "core must not know report");
  CHECK_FALSE(fault("src/mask/mask.cpp", "zip.h", false).empty());
  CHECK_FALSE(fault("apps/ejk/main.cpp", "core/pieces.hpp", true).empty());
  CHECK_FALSE(fault("src/kernels/scan.inl", "vector", false).empty());
  CHECK_FALSE(fault("src/kernels/scan.inl", "core/pieces.hpp", true).empty());
  CHECK_FALSE(fault("include/ejk/mask.hpp", "core/pieces.hpp", true).empty());
  CHECK_FALSE(fault("include/ejk/mask.hpp", "ejk/nothing.hpp", true).empty());
  CHECK_FALSE(fault("include/ejk/mask.hpp", "ejk/program/text.hpp", true).empty());
  CHECK(fault("src/mask/mask.cpp", "kernels/kernels.hpp", true).empty());
  CHECK(fault("src/mask/mask.cpp", "ejk/mask_info.hpp", true) == "mask must not know blocks");
  CHECK(fault("src/blocks/describe.cpp", "ejk/report.hpp", true).empty());
  CHECK(fault("apps/ejk/main.cpp", "ejk/mask_info.hpp", true).empty());
}

TEST_CASE("kernels neither throw nor allocate nor start threads") {
  for (const std::string& file : house::files_below("src/kernels")) {
    if (!house::is_code(file) || file == kTableOfKernels) continue;
    int number = 0;
    const std::string code = house::parts_of(house::read_file(house::kRoot / file)).code;
    for (const std::string& line : house::lines_of(code)) {
      ++number;
      CHECK_MESSAGE(!std::regex_search(line, kKernelWords), file, ": ", line);
    }
  }
  CHECK(std::regex_search("#pragma omp parallel", kKernelWords));
  CHECK(std::regex_search("auto* p = new int;", kKernelWords));
  CHECK_FALSE(std::regex_search("int renewed = retry;", kKernelWords));
}

TEST_CASE("each folder of src is a module of the map, and each module of the map is in src/README.md") {
  for (const auto& entry : std::filesystem::directory_iterator(house::kRoot / "src"))
    if (entry.is_directory()) {
      const std::string module = entry.path().filename();
      CHECK_MESSAGE(kArrows.contains(module), "src/", module, " has no row in tests/house/modules.cpp");
    }
  const std::string map = house::read_file(house::kRoot / "src/README.md");
  for (const auto& row : kArrows)
    CHECK_MESSAGE(map.find("`" + row.first + "`") != std::string::npos, "src/README.md does not name ",
                  row.first);
}
