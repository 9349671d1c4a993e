// Completion scripts and manual pages, run by the shells and formatters that read them. Candidates of
// completion: completion.case.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "io/support.hpp"
#include "support/shell.hpp"

namespace {

// All that it prints.
ejk::test::Printed shell(const std::string& command) {
  return ejk::test::shell(fmt::format("( {} ) 2>&1", command));
}

bool is_installed(const std::string& tool) {
  const bool found = shell("command -v " + tool).status == 0;
  if (!found) MESSAGE("skipped: ", tool, " is not installed (sh .ci/install checks)");
  return found;
}

const std::string kProgram = "'" EJK_PROGRAM "'";

// The command names in `ejk help`.
std::vector<std::string> commands() {
  std::istringstream names(shell(kProgram + R"( help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')").text);
  std::vector<std::string> all;
  for (std::string name; names >> name;) all.push_back(name);
  CHECK(all.size() > 10);
  return all;
}

// What a shell prints that has read its completion script; {0} is the program, {1} the script.
std::string completed(const std::string& shell_name, const std::string& commands) {
  const ejk::test::Folder folder;
  const std::string script = folder / "_ejk", run = folder / "run";
  CHECK(shell(fmt::format("{} help --completion {} > '{}'", kProgram, shell_name, script)).status == 0);
  std::ofstream(run) << fmt::format(fmt::runtime(commands), kProgram, "'" + script + "'");
  return shell(fmt::format("HOME='{}' {} '{}'", folder.path(), shell_name, run)).text;
}

}  // namespace

TEST_CASE("bash completes what the program offers, and files by itself") {
  if (!is_installed("bash")) return;
  CHECK(completed("bash", R"(source {1}
complete -p ejk
offer() {{ COMP_WORDS=({0} "$@") COMP_CWORD=$#; _ejk; echo "${{COMPREPLY[@]}}"; }}
offer mask-
offer attention --layout ''
offer hash --convention = e
offer hash --convention=e
offer hash a
)") == "complete -o default -F _ejk ejk\nmask-info\nbshd bhsd thd\nejkernel\n--convention=ejkernel\n\n");
}

TEST_CASE("zsh completes what the program offers, else files") {
  if (!is_installed("zsh")) return;
  // zsh's own functions print what they are given: there is no terminal to complete in.
  CHECK(
      completed("zsh", R"(compdef() {{ : }}
_describe() {{ print -rl -- ${{(P)@[-1]}} }}
_files() {{ print files }}
source {1}
offer() {{ words=({0} "$@"); CURRENT=$#words; _ejk }}
offer mask-
offer attention --layout ''
offer hash --convention=e
offer hash --conv
offer hash ''
)") ==
      "mask-info:block metadata of attention masks, and how sparse they are\nbshd\nbhsd\nthd\n"
      "--convention=ejkernel\n--convention:how an array is written: document (default) or ejkernel\nfiles\n");
}

TEST_CASE("fish completes what the program offers, else files") {
  if (!is_installed("fish")) return;
  // A file may have the name of a command.
  CHECK(completed("fish", R"(source {1}
function offer
  complete -C "{0} $argv"
end
cd (mktemp -d)
touch attention.npy
offer mask-
offer attention --layout=t
offer hash --conv
offer hash att
)") == "mask-info\tblock metadata of attention masks, and how sparse they are\n--layout=thd\n"
       "--convention\thow an array is written: document (default) or ejkernel\nattention.npy\n");
}

TEST_CASE("manual pages are read without a complaint, and say what the help says") {
  std::vector<std::string> pages = commands();
  pages.emplace_back();
  const bool groff = is_installed("groff"), mandoc = is_installed("mandoc");
  for (const std::string& name : pages) {
    const std::string page = fmt::format("{} help --man {}", kProgram, name);
    CAPTURE(page);
    const ejk::test::Printed printed = shell(page);
    CHECK(printed.status == 0);
    CHECK(printed.text.starts_with(".TH EJK"));
    if (mandoc) CHECK(shell(page + " | mandoc -T lint -W error").status == 0);
    if (!groff) continue;
    CHECK(shell(page + " | groff -man -Tutf8 -ww -z").text.empty());
    const std::string text = shell(page + " | groff -man -Tascii -P-cbou").text;
    // No word is hyphenated, however narrow the lines are.
    const std::string words =
        " | groff -man -Tascii -P-cbou -rLL={}n 2>/dev/null | sed '1d;$d' | tr -s ' \n' '\n\n'";
    const std::string wide = shell(page + fmt::format(fmt::runtime(words), 300)).text;
    CHECK(shell(page + fmt::format(fmt::runtime(words), 60)).text == wide);
    CHECK(text.find("EXIT STATUS") != std::string::npos);
    if (!name.empty()) {
      CHECK(text.find("EXAMPLE") != std::string::npos);
      CHECK(text.find("--max-memory") != std::string::npos);
    } else {
      for (const char* said : {"--max-memory SIZE", "a.h5:/group/name", "documents(REF)", "ejk_version",
                               "NaN rows: queries without a key"})
        CHECK_MESSAGE(text.find(said) != std::string::npos, said);
    }
    for (const std::string& other : pages)
      if (name.empty() && !other.empty()) CHECK(text.find("ejk-" + other + "(1)") != std::string::npos);
  }
}

TEST_CASE("a shell or a command that does not exist is refused") {
  CHECK(shell(kProgram + " help --completion csh").status == 2);
  CHECK(shell(kProgram + " help --completion").status == 2);
  CHECK(shell(kProgram + " help --completion bash extra").status == 2);
  CHECK(shell(kProgram + " help --man mask-inof").text.find("did you mean 'mask-info'") != std::string::npos);
  CHECK(shell(kProgram + " help --man mask extra").status == 2);
}
