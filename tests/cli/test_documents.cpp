// Completion scripts and manual pages: tools that read such things accept them, and what they offer is there.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
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

class Script {
 public:
  explicit Script(const std::string& shell_name) {
    CHECK(shell(fmt::format("{} help --completion {} > {}", kProgram, shell_name, path())).status == 0);
  }
  std::string path() const { return fmt::format("'{}'", folder_ / "_ejk"); }
  std::string folder() const { return fmt::format("'{}'", folder_.path()); }

 private:
  ejk::test::Folder folder_;
};

// What bash offers for these words, the last of which is being typed.
std::string offered(const Script& script, const std::vector<std::string>& words) {
  std::string quoted;
  for (const std::string& word : words) quoted += " '" + word + "'";
  const char* command =
      R"(bash -c "source {}; COMP_WORDS=({} ); COMP_CWORD={}; _ejk; echo \${{COMPREPLY[@]}}")";
  return shell(fmt::format(fmt::runtime(command), script.path(), quoted, words.size() - 1)).text;
}

}  // namespace

TEST_CASE("bash completes commands, options and their words") {
  if (!is_installed("bash")) return;
  const Script script("bash");
  CHECK(shell("bash -n " + script.path()).text.empty());
  CHECK(offered(script, {"ejk", "mask-"}) == "mask-info\n");
  CHECK(offered(script, {"ejk", "he"}) == "help\n");
  CHECK(offered(script, {"ejk", "--v"}) == "--version\n");
  CHECK(offered(script, {"ejk", "help", "seq-"}) == "seq-info\n");
  CHECK(offered(script, {"ejk", "help", "la"}) == "layouts\n");
  CHECK(offered(script, {"ejk", "help", "--man", "la"}) == "\n");
  CHECK(offered(script, {"ejk", "help", "--com"}) == "--completion\n");
  CHECK(offered(script, {"ejk", "help", "--completion", ""}) == "bash zsh fish\n");
  CHECK(offered(script, {"ejk", "help", "--man", "mask-"}) == "mask-info\n");
  CHECK(offered(script, {"ejk", "attention", "--layout", ""}) == "bshd bhsd thd\n");
  CHECK(offered(script, {"ejk", "attention", "--field", ""}) == "out lse\n");
  CHECK(offered(script, {"ejk", "attention-grad", "--grad-dtype", ""}) ==
        "float16 bfloat16 float32 float64\n");
  CHECK(offered(script, {"ejk", "mask-info", "m.npy", "--head"}) == "--head-shards\n");
  CHECK(offered(script, {"ejk", "hash", "--conv"}) == "--convention\n");
  CHECK(offered(script, {"ejk", "hash", "--convention", "e"}) == "ejkernel\n");
  CHECK(offered(script, {"ejk", "sharding", "--dtype", "bf"}) == "bfloat16\n");
  CHECK(offered(script, {"ejk", "hash", "--color", ""}) == "auto always never\n");
  // bash takes --option=value for three words, unless it is told that = ends none.
  CHECK(offered(script, {"ejk", "hash", "--convention", "="}) == "document ejkernel\n");
  CHECK(offered(script, {"ejk", "hash", "--convention", "=", "e"}) == "ejkernel\n");
  CHECK(offered(script, {"ejk", "hash", "--convention=e"}) == "--convention=ejkernel\n");
  CHECK(offered(script, {"ejk", "hash", "--convention=d", "--convention", "=", "e"}) == "ejkernel\n");
  CHECK(offered(script, {"ejk", "params", ""}) == "to-dict merge backward warps stages\n");
  CHECK(offered(script, {"ejk", "params", "w"}) == "warps\n");
  CHECK(offered(script, {"ejk", "generate", ""}) == "attention-inputs masks group-sizes lens\n");
  CHECK(offered(script, {"ejk", "params", "--scale", "="}) == "\n");
  CHECK(offered(script, {"ejk", "params", "to-dict", ""}) == "\n");
  CHECK(offered(script, {"ejk", "params", "--ki"}) == "--kind\n");
  // Of a known action only its own options and their words.
  CHECK(offered(script, {"ejk", "generate", "--tok"}) == "--tokens\n");
  CHECK(offered(script, {"ejk", "generate", "group-sizes", "--tok"}) == "--tokens\n");
  CHECK(offered(script, {"ejk", "generate", "lens", "--gro"}) == "\n");
  CHECK(offered(script, {"ejk", "generate", "lens", "--dtype", ""}) == "\n");
  CHECK(offered(script, {"ejk", "generate", "attention-inputs", "--field", "k"}) == "key\n");
  // Files are bash's own business.
  CHECK(offered(script, {"ejk", "hash", "a"}) == "\n");
  CHECK(offered(script, {"ejk", "nothing", "--a"}) == "\n");
  for (const std::string& name : commands()) {
    CHECK((" " + offered(script, {"ejk", name})).find(" " + name) != std::string::npos);
    CHECK(offered(script, {"ejk", name, "--hel"}) == "--help\n");
    CHECK(offered(script, {"ejk", name, "--js"}) == "--json\n");
  }
}

TEST_CASE("an option that refuses a word for others completes these, and its help has them") {
  if (!is_installed("bash")) return;
#ifdef __SANITIZE_ADDRESS__
  return;  // A thousand starts of the program, ten times as slow, in which nothing new would be seen.
#endif
  const Script script("bash");
  // Of all commands all options (those that all share once), and the first argument as "": the words that the
  // program says there are, and what is offered.
  const char* loop = R"(
source {script}
shared=
for command in {commands}; do
  COMP_WORDS=(ejk $command -) COMP_CWORD=2
  _ejk
  names=("${{COMPREPLY[@]}}")
  for name in '' "${{names[@]}}"; do
    case $name in -?|--help) continue ;; esac
    if [ -n "$name" ] && [ "${{shared#* $name }}" != "$shared" ]; then continue; fi
    [ -n "$name" ] || actions=
    said=
    for action in ${{actions:-none}}; do  # what any of a command's actions takes
      [ "$action" != none ] || action=
      answer=$({program} $command $action $name '?' 2>&1)
      case $answer in
        "ejk $command${{action:+ $action}}: "*"'?' is not one of "*) ;;
        *) continue ;;
      esac
      words=${{answer#* is not one of }} words=${{words%%$'\n'*}}
      case $answer in "ejk $command: '?'"*) actions=${{words//,/}} ;; esac
      for word in ${{words//,/}}; do
        case " $said " in *" $word "*) ;; *) said="${{said:+$said }}$word" ;; esac
      done
    done
    COMP_WORDS=(ejk $command $name '') COMP_CWORD=3
    [ -n "$name" ] || COMP_WORDS=(ejk $command '') COMP_CWORD=2
    _ejk
    echo "$command ${{name:-first}}: $said: ${{COMPREPLY[*]}}"
  done
  shared=' --output --overwrite --dry-run --max-memory --threads --stats --json --quiet --progress --color --allow-external '
done
)";
  const std::vector<std::string> names = commands();
  const ejk::test::Folder folder;
  {
    std::ofstream(folder / "loop") << fmt::format(fmt::runtime(loop), fmt::arg("script", script.path()),
                                                  fmt::arg("program", kProgram),
                                                  fmt::arg("commands", fmt::join(names, " ")));
  }
  std::istringstream lines(shell(fmt::format("cd '{}' && bash ./loop", folder.path())).text);
  int choices = 0, all = 0;
  for (std::string line; std::getline(lines, line); ++all) {
    CAPTURE(line);
    const std::size_t first = line.find(": "), second = line.find(": ", first + 1);
    REQUIRE(second != std::string::npos);
    const std::string said = line.substr(first + 2, second - first - 2);
    CHECK(said == line.substr(second + 2));
    if (said.empty()) continue;
    ++choices;
    std::istringstream words(said);
    const std::vector<std::string> list{std::istream_iterator<std::string>(words), {}};
    if (list.size() > 6) continue;  // all element types are named nowhere
    const std::string command = line.substr(0, line.find(' '));
    const std::string help =
        shell(fmt::format(
                  "{0} help {1}; {0} help options; for a in $({0} help {1} | sed -n '/^Actions/,/^$/s/^  "
                  "\\([a-z][a-z-]*\\) .*/\\1/p'); do {0} help {1} $a; done",
                  kProgram, command))
            .text;
    for (const std::string& word : list) CHECK(help.find(word) != std::string::npos);
  }
  CHECK(all > 150);
  CHECK(choices > 40);
}

TEST_CASE("zsh completes commands, options and their words") {
  if (!is_installed("zsh")) return;
  const Script script("zsh");
  CHECK(shell("zsh -n " + script.path()).text.empty());
  // What the script hands to zsh's own functions, without a terminal to complete in.
  const auto described = [&](const std::string& words) {
    return shell(fmt::format("zsh -f -c 'compdef() {{ : }}; compadd() {{ case $1 in (-a) print -rl -- "
                             "${{(P)2}} ;; (*) print -rl -- ${{@:2}} ;; esac }}; "
                             "_describe() {{ print -rl -- ${{(P)@[-1]}} }}; _files() {{ print files }}; "
                             "compset() {{ : }}; source {}; "
                             "words=({}); CURRENT=$#words; _ejk'",
                             script.path().substr(1, script.path().size() - 2), words))
        .text;
  };
  CHECK(described("ejk mask-").find("mask-info:block metadata") != std::string::npos);
  CHECK(described("ejk hash --c").find("--convention:how an array is written") != std::string::npos);
  CHECK(described("ejk hash --convention e") == "document\nejkernel\n");
  CHECK(described("ejk hash --convention=e") == "document\nejkernel\n");
  CHECK(described("ejk params w") == "to-dict\nmerge\nbackward\nwarps\nstages\n");
  CHECK(described("ejk generate --g").find("--groups:") != std::string::npos);
  CHECK(described("ejk generate group-sizes --g").find("--groups:") != std::string::npos);
  CHECK(described("ejk generate lens --g").find("--groups:") == std::string::npos);
  CHECK(described("ejk generate lens --g").find("--count:") != std::string::npos);
  CHECK(described("ejk help m").find("mask-info\n") != std::string::npos);
  CHECK(described("ejk help --completion z") == "bash\nzsh\nfish\n");
  CHECK(described("ejk attention --mask-kind=") == "keep\ndrop\nadditive\n");
  CHECK(described("ejk --v") == "--help\n--version\n");
  CHECK(described("ejk hash a") == "files\n");
}

TEST_CASE("fish completes commands, options and their words") {
  if (!is_installed("fish")) return;
  const Script script("fish");
  CHECK(shell("fish --no-execute " + script.path()).text.empty());
  const auto offered_by_fish = [&](const std::string& line) {
    return shell(fmt::format("HOME={} fish -c \"source {}; complete -C '{}'\"", script.folder(),
                             script.path(), line))
        .text;
  };
  CHECK(offered_by_fish("ejk mask-").starts_with("mask-info\t"));
  CHECK(offered_by_fish("ejk hash --conv").starts_with("--convention\t"));
  CHECK(offered_by_fish("ejk hash --convention e").starts_with("ejkernel"));
  CHECK(offered_by_fish("ejk hash --convention=e").starts_with("--convention=ejkernel"));
  CHECK(offered_by_fish("ejk params w").starts_with("warps"));
  CHECK(offered_by_fish("ejk attention --layout=t").starts_with("--layout=thd"));
  CHECK(offered_by_fish("ejk generate --grou").starts_with("--groups\t"));
  CHECK(offered_by_fish("ejk generate group-sizes --grou").starts_with("--groups\t"));
  CHECK(offered_by_fish("ejk generate lens --grou").empty());
  CHECK(offered_by_fish("ejk generate l").starts_with("lens"));
  CHECK(offered_by_fish("ejk help --completion z").starts_with("zsh"));
  CHECK(offered_by_fish("ejk --v").starts_with("--version\t"));
  // A file may have the name of a command.
  CHECK(offered_by_fish("ejk hash attention --lay").empty());
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
      for (const char* said : {"--max-memory SIZE", "a.h5:/group/name", "documents(REF)", "ejk_version"})
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
