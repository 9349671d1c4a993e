// Runs the cases of tests/cli: text files that hold command lines and what they must answer.
//
//   run_cases [--update] [--keep] [--no-memory-limit] PROGRAM CASE_FILE_OR_FOLDER...
//
// A file holds any number of cases. A case begins with "# " and a sentence, its name, and goes on with
//
//   setup: COMMAND        prepares files; any number of them; must succeed
//   memory: SIZE          address space that `run` may take (200M, 2GiB); --no-memory-limit leaves such cases out
//   run: COMMAND          what is tested, by /bin/sh in a scratch folder of its own, ejk in the PATH
//   exit: STATUS          required
//   stdout: LINE          required, unless there is a json line; nothing behind it: no output; several lines
//                         follow indented by two
//   stderr: LINE          required, the same
//   json: POINTER = JSON  stdout is JSON with this value there ("*": any)
//   exists: NAME          a file that is there afterwards; any number
//   absent: NAME          and one that is not ("*.tmp" may stand for many)
//
// In expected lines {*} stands for any text, {N} for a number, and a line {...} for any lines. A case without
// one of the required expectations fails. --update writes what was answered into the file, to be reviewed;
// --keep leaves the scratch folders. $GOLDEN and $DATA name the folders of files that come with the project.
//
// Every JSON report that a case prints is compared with the table of keys (apps/ejk/schema.hpp). For this a
// `run` of a single ejk command is run once more with --json. Of a whole folder, each row of its command's
// table must have been seen in the end.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ejk/program/text.hpp"
#include "report_keys.hpp"

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(120);

struct Entry {
  std::string key;
  Lines lines;
};

struct Case {
  std::string name;
  std::vector<Entry> entries;

  const Entry* find(const std::string& key) const {
    const auto at =
        std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
    return at == entries.end() ? nullptr : &*at;
  }
  void set(const std::string& key, Lines lines) {
    for (Entry& entry : entries)
      if (entry.key == key) return void(entry.lines = std::move(lines));
    entries.push_back({key, std::move(lines)});
  }
};

struct Options {
  bool update = false;
  bool keep = false;
  bool limit_memory = true;
  std::string program;
};

Lines split_lines(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// ---- The file format

std::vector<Case> parse(const fs::path& path) {
  static const Lines keys{"setup", "memory", "run", "exit", "stdout", "stderr", "json", "exists", "absent"};
  std::vector<Case> cases;
  const Lines lines = split_lines(content_of(path));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const auto fail = [&](const std::string& why) {
      throw std::runtime_error(fmt::format("{}:{}: {}", path.string(), i + 1, why));
    };
    if (line.empty()) continue;
    if (line.starts_with("# ")) {
      cases.push_back({line.substr(2), {}});
      continue;
    }
    const auto colon = line.find(':');
    const std::string key = line.substr(0, colon);
    if (colon == std::string::npos || std::find(keys.begin(), keys.end(), key) == keys.end())
      fail("neither a name nor one of " + fmt::format("{}", fmt::join(keys, ", ")));
    if (cases.empty()) fail("a case begins with '# ' and its name");
    Entry entry{key, {}};
    if (const auto begin = line.find_first_not_of(' ', colon + 1); begin != std::string::npos)
      entry.lines.push_back(line.substr(begin));
    // Indented lines belong to it, and empty ones between them.
    for (std::size_t next = i + 1; next < lines.size(); ++next) {
      if (lines[next].empty()) continue;
      if (!lines[next].starts_with("  ")) break;
      for (++i; i < next; ++i) entry.lines.emplace_back();
      entry.lines.push_back(lines[next].substr(2));
    }
    cases.back().entries.push_back(std::move(entry));
  }
  return cases;
}

std::string to_text(const std::vector<Case>& cases) {
  std::string out;
  for (const Case& c : cases) {
    out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", c.name);
    for (const Entry& entry : c.entries) {
      out += entry.key + ":";
      if (entry.lines.size() == 1 && !entry.lines[0].starts_with(' ') && !entry.lines[0].empty()) {
        out += " " + entry.lines[0] + "\n";
        continue;
      }
      out += "\n";
      for (const std::string& line : entry.lines) out += (line.empty() ? "" : "  ") + line + "\n";
    }
  }
  return out;
}

// ---- Comparing

std::regex pattern_of(const std::string& line) {
  std::string pattern;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line.compare(i, 3, "{*}") == 0) {
      pattern += ".*";
      i += 2;
    } else if (line.compare(i, 3, "{N}") == 0) {
      pattern += "[-+0-9.,e]+";
      i += 2;
    } else {
      if (std::string_view("\\^$.|?*+()[]{}").find(line[i]) != std::string_view::npos) pattern += '\\';
      pattern += line[i];
    }
  }
  return std::regex(pattern);
}

bool matches(const Lines& expected, std::size_t e, const Lines& actual, std::size_t a) {
  for (; e < expected.size(); ++e, ++a) {
    if (expected[e] == "{...}") {
      for (std::size_t next = a; next <= actual.size(); ++next)
        if (matches(expected, e + 1, actual, next)) return true;
      return false;
    }
    if (a >= actual.size()) return false;
    if (expected[e] != actual[a] && !std::regex_match(actual[a], pattern_of(expected[e]))) return false;
  }
  return a == actual.size();
}

// ---- Running

struct Outcome {
  int status = 0;  // as a shell says it: 128 + signal
  Lines out, err;
  std::string out_text;
};

Outcome run_shell(const std::string& command, const fs::path& scratch, const fs::path& outputs,
                  std::int64_t memory) {
  const fs::path out = outputs / "stdout", err = outputs / "stderr";
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    if (chdir(scratch.c_str()) != 0) _exit(126);
    const auto redirect = [](const char* path, int flags, int to) {
      const int fd = open(path, flags, 0644);
      if (fd < 0 || dup2(fd, to) < 0) _exit(126);
      close(fd);
    };
    redirect("/dev/null", O_RDONLY, 0);
    redirect(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 1);
    redirect(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 2);
    if (memory > 0) {
      const rlimit limit{static_cast<rlim_t>(memory), static_cast<rlim_t>(memory)};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(126);
    }
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int state = 0;
  for (const auto begin = std::chrono::steady_clock::now(); waitpid(child, &state, WNOHANG) == 0;) {
    if (std::chrono::steady_clock::now() - begin > kPatience) {
      kill(-child, SIGKILL);
      waitpid(child, &state, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Outcome outcome;
  outcome.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  outcome.out_text = content_of(out);
  outcome.out = split_lines(outcome.out_text);
  outcome.err = split_lines(content_of(err));
  return outcome;
}

std::string side(const char* title, const Lines& lines) {
  std::string out = fmt::format("    {}:\n", title);
  for (const std::string& line : lines) out += "      " + line + "\n";
  return lines.empty() ? out + "      (nothing)\n" : out;
}

// "*.tmp" is there when any file matches.
bool is_there(const fs::path& scratch, const std::string& name) {
  if (name.find('*') == std::string::npos) return fs::exists(fs::symlink_status(scratch / name));
  for (const auto& file : fs::recursive_directory_iterator(scratch))
    if (fnmatch(name.c_str(), fs::relative(file.path(), scratch).c_str(), 0) == 0) return true;
  return false;
}

// Whether "/result/heads = 8" holds; otherwise what is there.
std::optional<std::string> json_fault(const nlohmann::json& json, const std::string& line) {
  const auto equal = line.find(" = ");
  if (equal == std::string::npos) return "'" + line + "' is not of the form POINTER = JSON";
  const nlohmann::json::json_pointer pointer(line.substr(0, equal));
  if (!json.contains(pointer)) return "nothing at " + line.substr(0, equal);
  const std::string wanted = line.substr(equal + 3);
  if (wanted == "*" || json.at(pointer) == nlohmann::json::parse(wanted)) return std::nullopt;
  return fmt::format("{} is {}, not {}", line.substr(0, equal), json.at(pointer).dump(), wanted);
}

// ---- Reports

// "ejk COMMAND ..." and nothing else that a shell acts on.
bool is_one_command(const std::string& line) {
  char quote = 0;
  for (const char c : line) {
    if (quote != 0)
      quote = c == quote ? 0 : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else if (std::string_view("|&;<>()`").find(c) != std::string_view::npos)
      return false;
  }
  return line.starts_with("ejk ");
}

// A report is a line.
std::string faults_of_reports(const Outcome& outcome, ReportKeys& keys) {
  std::string faults;
  for (const Lines* lines : {&outcome.out, &outcome.err})
    for (const std::string& line : *lines) {
      if (!line.starts_with("{\"schema\":")) continue;
      const auto report = nlohmann::json::parse(line, nullptr, false);
      if (report.is_discarded()) faults += "    --json: not JSON: " + line + "\n";
      if (!report.is_object()) continue;
      for (const std::string& fault : keys.faults_of(report))
        faults += fmt::format("    --json: {}\n", fault);
    }
  return faults;
}

// Runs a case and says what is wrong; with --update the expectations are changed instead where they can be.
std::string run_case(Case& c, const Options& options, ReportKeys& keys, const fs::path& scratch,
                     const fs::path& outputs) {
  std::string faults;
  const Entry* run = c.find("run");
  if (!run || run->lines.size() != 1) return "    there is no run: line\n";
  std::int64_t memory = 0;
  if (const Entry* limit = c.find("memory")) memory = ejk::parse_size(limit->lines.at(0)).value();
  for (const Entry& entry : c.entries) {
    if (entry.key != "setup") continue;
    const Outcome setup = run_shell(entry.lines.at(0), scratch, outputs, 0);
    if (setup.status != 0)
      return fmt::format("    setup failed with {}: {}\n{}", setup.status, entry.lines.at(0),
                         side("stderr", setup.err));
  }
  const std::string line = run->lines[0];  // entries move when one is added
  const Outcome outcome = run_shell(line, scratch, outputs, memory);

  const auto expect = [&](const std::string& key, const Lines& actual) {
    const Entry* expected = c.find(key);
    if (expected && matches(expected->lines, 0, actual, 0)) return;
    if (options.update) return c.set(key, actual);
    faults += expected ? side(("expected " + key).c_str(), expected->lines) + side("actual", actual)
                       : fmt::format("    there is no {}: line\n", key) + side("actual", actual);
  };
  expect("exit", {fmt::format("{}", outcome.status)});
  const bool has_json = c.find("json") != nullptr;
  if (!has_json || c.find("stdout")) expect("stdout", outcome.out);
  expect("stderr", outcome.err);
  if (has_json) {
    const auto json = nlohmann::json::parse(outcome.out_text, nullptr, false);
    if (json.is_discarded()) return faults + side("stdout is not JSON", outcome.out);
    for (const Entry& entry : c.entries)
      if (entry.key == "json")
        if (const auto fault = json_fault(json, entry.lines.at(0))) faults += "    " + *fault + "\n";
  }
  for (const Entry& entry : c.entries) {
    const bool wanted = entry.key == "exists";
    if ((wanted || entry.key == "absent") && is_there(scratch, entry.lines.at(0)) != wanted)
      faults += fmt::format("    {} {}\n", entry.lines.at(0), wanted ? "is missing" : "is there");
  }
  const bool again = is_one_command(line) && line.find(" --json") == std::string::npos;
  return faults +
         faults_of_reports(again ? run_shell(line + " --json", scratch, outputs, memory) : outcome, keys);
}

// Runs all cases of a file; the number of those that failed.
int run_file(const fs::path& path, const Options& options, ReportKeys& keys, int& count) {
  std::vector<Case> cases = parse(path);
  if (cases.empty()) throw std::runtime_error(path.string() + ": no cases");
  int failed = 0;
  for (Case& c : cases) {
    if (c.find("memory") && !options.limit_memory) continue;
    std::string name = (fs::temp_directory_path() / "ejk_case_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make a scratch folder");
    const fs::path root = name;
    fs::create_directories(root / "work");
    setenv("HOME", (root / "work").c_str(), 1);
    const std::string faults = run_case(c, options, keys, root / "work", root);
    ++count;
    if (!faults.empty()) {
      ++failed;
      std::cout << fmt::format("FAILED {}: {}\n    {}\n{}", path.string(), c.name,
                               c.find("run") ? c.find("run")->lines.at(0) : "", faults);
    }
    if (options.keep)
      std::cout << fmt::format("{}: {}\n", c.name, (root / "work").string());
    else
      fs::remove_all(root);
  }
  if (options.update) std::ofstream(path) << to_text(cases);
  return failed;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  std::vector<fs::path> places;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--update")
      options.update = true;
    else if (word == "--keep")
      options.keep = true;
    else if (word == "--no-memory-limit")
      options.limit_memory = false;
    else if (options.program.empty())
      options.program = fs::absolute(word);
    else
      places.emplace_back(word);
  }
  if (places.empty()) {
    std::cerr << "usage: run_cases [--update] [--keep] [--no-memory-limit] PROGRAM CASE_FILE_OR_FOLDER...\n";
    return 2;
  }

  // The same surroundings on every machine.
  const std::string path = fs::path(options.program).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
  const std::string temporary = fs::temp_directory_path();
  clearenv();
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"PATH", path},
                                    {"TMPDIR", temporary},
                                    {"LC_ALL", "C.UTF-8"},
                                    {"TERM", "xterm"},
                                    {"MALLOC_PERTURB_", "1"},  // memory that nobody wrote is no zeros
                                    {"GOLDEN", EJK_TEST_DIR "/golden"},
                                    {"DATA", EJK_TEST_DIR "/../data"}})
    setenv(name.c_str(), value.c_str(), 1);

  std::vector<fs::path> files;
  std::set<std::string> folders;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    for (const auto& file : fs::recursive_directory_iterator(place))
      if (file.path().extension() == ".case") {
        files.push_back(file.path());
        folders.insert(file.path().parent_path().filename());
      }
  }
  std::sort(files.begin(), files.end());
  int count = 0, failed = 0;
  ReportKeys keys;
  for (const fs::path& file : files) failed += run_file(file, options, keys, count);
  for (const std::string& folder : folders)
    for (const std::string& key : keys.unseen(folder)) {
      ++failed;
      std::cout << fmt::format("FAILED {}: no case saw the key {} of apps/ejk/schema.cpp\n", folder, key);
    }
  std::cout << fmt::format("{} cases, {} failed\n", count, failed);
  return count > 0 && failed == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "run_cases: " << error.what() << "\n";
  return 2;
}
