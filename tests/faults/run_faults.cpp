// Makes every system call of a few commands fail, one a run, and looks at what is left:
//
//   run_faults [--all] [--points N] [--only TEXT] [--jobs N] [--sanitized] [--list] PROGRAM DATA
//
// README.md says what is done and what must hold. Without --all a selection of N points, the same each time,
// that has each call of each command at least once. --only runs the points whose name holds TEXT; a point's
// name is what is printed of it. --sanitized, for a program under sanitizers, leaves out what those need for
// themselves.
//
// Exit status: 0 all is well, 1 something is not, 2 wrong usage, 77 the system lets no process be traced.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "scenarios.hpp"
#include "tracer.hpp"

namespace fs = std::filesystem;
using namespace ejk::faults;
using How = Fault::How;

namespace {

// Files by their names below a folder, with what is in them; folders end in "/".
using Tree = std::map<std::string, std::string>;

std::string contents_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Tree tree_of(const fs::path& folder) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder);
    if (entry.is_symlink())
      tree[name] = "-> " + fs::read_symlink(entry.path()).string();
    else if (entry.is_directory())
      tree[name + "/"] = "";
    else
      tree[name] = contents_of(entry.path());
  }
  return tree;
}

void restore(const Tree& tree, const fs::path& folder) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const auto& [name, contents] : tree) {
    if (name.ends_with('/'))
      fs::create_directory(folder / name);
    else if (contents.starts_with("-> "))
      fs::create_symlink(contents.substr(3), folder / name);
    else
      std::ofstream(folder / name, std::ios::binary) << contents;
  }
}

bool is_temporary(const std::string& name) { return name.find(".ejk-") != std::string::npos; }

// What is said of a call's file: temporary names are not the same twice.
std::string said_of(const std::string& path) {
  const std::size_t at = path.find(".ejk-");
  return at == std::string::npos ? path
                                 : path.substr(0, at + 5) + "*" + path.substr(std::min(path.size(), at + 11));
}

struct Weakness {
  const char* call;
  How how;
  int code;
};

constexpr Weakness kWeaknesses[] = {
    {"write", How::error, ENOSPC},
    {"write", How::error, EIO},
    {"write", How::error, EINTR},
    {"write", How::shorten, 0},
    {"writev", How::error, EIO},
    {"pwrite64", How::error, ENOSPC},
    {"pwrite64", How::error, EIO},
    {"pwrite64", How::error, EINTR},
    {"pwrite64", How::shorten, 0},
    {"read", How::error, EIO},
    {"read", How::error, EINTR},
    {"read", How::shorten, 0},
    {"pread64", How::error, EIO},
    {"pread64", How::error, EINTR},
    {"pread64", How::shorten, 0},
    {"copy_file_range", How::error, EIO},
    {"copy_file_range", How::error, ENOSPC},
    {"copy_file_range", How::error, EXDEV},
    {"copy_file_range", How::error, EINTR},
    {"copy_file_range", How::shorten, 0},
    {"ftruncate", How::error, EIO},
    {"ftruncate", How::error, ENOSPC},
    {"ftruncate", How::error, EINTR},
    {"fallocate", How::error, ENOSPC},
    {"fallocate", How::error, EIO},
    {"fallocate", How::error, EINTR},
    {"fsync", How::error, EIO},
    {"fsync", How::error, ENOSPC},
    {"fsync", How::error, EINTR},
    {"lseek", How::error, EIO},
    {"fstat", How::error, EIO},
    {"fstatfs", How::error, EIO},
    {"newfstatat", How::error, EIO},
    {"fchmod", How::error, EPERM},
    {"fchown", How::error, EPERM},
    {"fcntl", How::error, EINVAL},
    {"fcntl", How::error, ENOLCK},
    {"getdents64", How::error, EIO},
    {"openat", How::error, EIO},
    {"openat", How::error, EMFILE},
    {"openat", How::error, ENOMEM},
    {"openat", How::error, EINTR},
    {"close", How::error_late, EIO},
    {"close", How::error_late, EINTR},
    {"dup", How::error, EMFILE},
    {"dup2", How::error, EMFILE},
    {"access", How::error, EIO},
    {"readlink", How::error, EIO},
    {"mkdir", How::error, ENOSPC},
    {"rename", How::error, EIO},
    {"rename", How::error, ENOSPC},
    {"renameat2", How::error, EINVAL},
    {"renameat2", How::error, EIO},
    {"link", How::error, EPERM},
    {"getrandom", How::error, EAGAIN},
    {"mmap", How::error, ENOMEM},
    {"mremap", How::error, ENOMEM},
    {"clone", How::error, EAGAIN},
    {"clone", How::error, ENOMEM},
    {"clone3", How::error, EAGAIN},
    {"socketpair", How::error, EMFILE},
    {"sendto", How::error, ENOBUFS},
    {"sendto", How::error, EINTR},
    {"sendto", How::shorten, 0},
    {"recvfrom", How::error, ENOMEM},
    {"recvfrom", How::error, EINTR},
    {"recvfrom", How::shorten, 0},
    {"poll", How::error, EINTR},
    {"poll", How::error, ENOMEM},
    {"wait4", How::error, EINTR},
};

std::string name_of(How how, int code) {
  switch (how) {
    case How::error:
      return strerrorname_np(code);
    case How::error_late:
      return fmt::format("{}-late", strerrorname_np(code));
    case How::shorten:
      return "short";
    case How::kill:
      return "KILL";
    case How::terminate:
      return "TERM";
  }
  return "";
}

// What the program does when nothing fails.
struct Usual {
  Tree before, after;
  std::string output, said;
  bool always_same_output = true;
  Outcome outcome;
};

struct Point {
  std::size_t scenario = 0;
  Fault fault;
  std::string path;  // what the call is usually about
  std::string name() const {
    return fmt::format("{} {} {} {} of task {}", scenarios()[scenario].name, fault.call,
                       name_of(fault.how, fault.code), fault.n, fault.task);
  }
};

struct Settings {
  bool all = false, sanitized = false, list = false;
  std::size_t points = 1500;
  std::string only;
  int jobs = 2;
  std::string program, data;
};

// A scratch folder, with one in it for each scenario.
class Bench {
 public:
  Bench(const Settings& settings, fs::path folder) : settings_(settings), folder_(std::move(folder)) {}

  fs::path place(std::size_t scenario) const { return folder_ / scenarios()[scenario].name; }

  // Makes in/ and out/; gives what is in out/.
  Tree prepare(std::size_t scenario) const {
    const fs::path at = place(scenario);
    fs::create_directories(at / "in");
    fs::create_directories(at / "out");
    const std::string command = fmt::format(
        "cd '{}' && mkdir -p bin && ln -sf '{}' bin/ejk && PATH=\"$PWD/bin:$PATH\" DATA='{}' && "
        "export DATA && set -e && {{ {}\n}} >/dev/null",
        at.string(), settings_.program, settings_.data, scenarios()[scenario].prepare);
    if (std::system(command.c_str()) != 0)
      throw std::runtime_error(fmt::format("{} cannot be prepared", scenarios()[scenario].name));
    return tree_of(at / "out");
  }

  Run run_of(std::size_t scenario) const {
    const Scenario& s = scenarios()[scenario];
    Run run{{settings_.program}, place(scenario), s.input, "stdout", "stderr"};
    for (std::string word : s.words) {
      if (const std::size_t at = word.find("$DATA"); at != std::string::npos)
        word.replace(at, 5, settings_.data);
      run.words.push_back(std::move(word));
    }
    return run;
  }

  Usual usual(std::size_t scenario) const {
    Usual usual;
    usual.before = prepare(scenario);
    const fs::path at = place(scenario);
    usual.outcome = run_traced(run_of(scenario), std::nullopt);
    usual.after = tree_of(at / "out");
    usual.output = contents_of(at / "stdout");
    usual.said = contents_of(at / "stderr");
    const int status = usual.outcome.status;
    if (status != 0 && status != 1)
      throw std::runtime_error(fmt::format("{} fails by itself: {}", scenarios()[scenario].name, usual.said));
    restore(usual.before, at / "out");
    const Outcome again = run_traced(run_of(scenario), std::nullopt);
    if (again.status != status || tree_of(at / "out") != usual.after)
      throw std::runtime_error(fmt::format("{} does not give the same twice: status {} and {} {}",
                                           scenarios()[scenario].name, status, again.status,
                                           contents_of(at / "stderr")));
    usual.always_same_output =
        usual.output == contents_of(at / "stdout") && usual.said == contents_of(at / "stderr");
    return usual;
  }

  // What is wrong after a run with a fault, or "".
  std::string judge(const Point& point, const Usual& usual, bool& met) const {
    const fs::path at = place(point.scenario);
    restore(usual.before, at / "out");
    const Outcome outcome = run_traced(run_of(point.scenario), point.fault);
    met = outcome.met;
    if (outcome.hung) return "it did not end";
    if (outcome.left_some) return "a process that it had started did not end";
    Tree left = tree_of(at / "out");
    const bool was_killed = outcome.signal == SIGKILL && point.fault.how == How::kill;
    const bool was_terminated = outcome.signal == SIGTERM && point.fault.how == How::terminate;
    if (outcome.signal != 0 && !was_killed && !was_terminated)
      return fmt::format("it ended by signal {}", outcome.signal);
    for (auto file = left.begin(); file != left.end();) {
      if (!is_temporary(file->first)) {
        ++file;
        continue;
      }
      if (!was_killed) return fmt::format("it left {}", file->first);
      file = left.erase(file);
    }
    if (std::string wrong = look_at_files(point, usual, left); !wrong.empty()) return wrong;
    if (was_killed || was_terminated) return "";

    const std::string said = contents_of(at / "stderr"), output = contents_of(at / "stdout");
    if (outcome.status == usual.outcome.status) {
      if (left != usual.after) return "it says that all went well, and its files are not written";
      if (usual.always_same_output && output != usual.output)
        return "it says that all went well, and its output is another";
      if (must_be_noticed(point.fault, outcome)) return "it did not notice";
      return "";
    }
    if (outcome.status < 2 || outcome.status > 5)
      return fmt::format("its status is {}; it says: {}", outcome.status, said);
    if (need_not_be_noticed(point.fault, outcome)) return fmt::format("it gave up: {}", said);
    const bool cannot_speak = outcome.path.ends_with("/stderr");
    return cannot_speak ? "" : look_at_message(point, said);
  }

 private:
  // Every file is the old or the new one.
  static std::string look_at_files(const Point& point, const Usual& usual, const Tree& left) {
    if (left == usual.before || left == usual.after) return "";
    std::set<std::string> names;
    for (const Tree* tree : {&left, &usual.before, &usual.after})
      for (const auto& file : *tree) names.insert(file.first);
    const auto in = [](const Tree& tree, const std::string& name) -> std::optional<std::string> {
      const auto found = tree.find(name);
      return found == tree.end() ? std::nullopt : std::optional(found->second);
    };
    for (const std::string& name : names)
      if (in(left, name) != in(usual.before, name) && in(left, name) != in(usual.after, name))
        return fmt::format("{} is neither the old nor the new one", name);
    // Between the names of several files a sudden end may come.
    const bool sudden = point.fault.how == How::kill || point.fault.how == How::terminate;
    if (sudden || scenarios()[point.scenario].one_by_one) return "";
    return "some files are old and some are new";
  }

  static bool must_be_noticed(const Fault& fault, const Outcome& outcome) {
    if (fault.how != How::error && fault.how != How::error_late) return false;
    if (fault.code == EINTR) return false;
    if (fault.call == "fsync") return true;
    return fault.call == "close" && fault.code == EIO && outcome.writable && is_temporary(outcome.path);
  }

  // What a signal that is handled elsewhere, or a slow pipe, may do at any time.
  static bool need_not_be_noticed(const Fault& fault, const Outcome& outcome) {
    // The dynamic loader, while it opens HDF5, repeats no call.
    if (outcome.path.find(".so") != std::string::npos) return false;
    return fault.how == How::shorten || (fault.code == EINTR && fault.call != "openat");
  }

  static std::string look_at_message(const Point& point, const std::string& said) {
    const std::vector<std::string>& words = scenarios()[point.scenario].words;
    int errors = 0;
    std::size_t begin = 0;
    while (begin < said.size()) {
      const std::size_t end = std::min(said.find('\n', begin), said.size());
      const std::string line = said.substr(begin, end - begin);
      begin = end + 1;
      if (line.starts_with("hint: ")) continue;
      if (line.empty() || line.starts_with("libgomp: ")) continue;  // OpenMP's library says it as well
      if (!line.starts_with("ejk " + words[0])) return fmt::format("it also says: {}", line);
      if (line.find(": warning: ") == std::string::npos) ++errors;
    }
    return errors == 1 ? "" : fmt::format("it has {} lines that say why: {}", errors, said);
  }

  const Settings& settings_;
  fs::path folder_;
};

// What is written, and then its name, must be stored in this order: the file, before it gets its name; the
// folder, afterwards. Without --sync nothing is waited for.
std::string look_at_storing(const Scenario& scenario, const std::vector<Call>& calls) {
  const auto is_sync = [](const Call& call, const std::string& path) {
    return call.name == "fsync" && (call.path == path || call.path.ends_with("/" + path));
  };
  const auto synced = [&](std::size_t from, std::size_t to, const std::string& path) {
    return std::any_of(calls.begin() + static_cast<std::ptrdiff_t>(from),
                       calls.begin() + static_cast<std::ptrdiff_t>(to),
                       [&](const Call& call) { return is_sync(call, path); });
  };
  if (std::find(scenario.words.begin(), scenario.words.end(), "--sync") == scenario.words.end()) {
    for (const Call& call : calls)
      if (call.name == "fsync") return fmt::format("nobody asked for fsync of {}", call.path);
    return "";
  }
  static const std::set<std::string> writing{"write", "pwrite64", "ftruncate", "fallocate",
                                             "copy_file_range"};
  std::size_t renames = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string& from = calls[i].from;
    if (from.empty()) continue;
    ++renames;
    if (!synced(0, i, from)) return fmt::format("{} gets its name before it is stored", from);
    for (std::size_t before = 0; before < i; ++before) {
      const std::string& path = calls[before].path;
      const bool is_part = ("/" + path + "/").find("/" + from + "/") != std::string::npos;
      if (writing.contains(calls[before].name) && is_part && !synced(before, i, path))
        return fmt::format("{} is written and not stored before {} gets its name", path, from);
    }
    const std::string folder = fs::path(calls[i].path).parent_path();
    if (!synced(i, calls.size(), folder)) return fmt::format("{}: the folder is not stored", calls[i].path);
  }
  return renames > 0 ? "" : "nothing got its name";
}

// The numbers of calls that are tried, of so many.
std::vector<int> numbers_of(int count) {
  constexpr int kAll = 40, kEnds = 12;
  std::vector<int> numbers;
  for (int n = 1; n <= count; ++n)
    if (count <= kAll || n <= kEnds || n > count - kEnds || n % (count / kEnds) == 0) numbers.push_back(n);
  return numbers;
}

std::vector<Point> points_of(std::size_t scenario, const Usual& usual, const Settings& settings) {
  struct Made {
    int count = 0;
    std::map<int, const Call*> by_number;
  };
  std::map<std::pair<int, std::string>, Made> made;
  for (const Call& call : usual.outcome.calls) {
    Made& of = made[{call.task, call.name}];
    ++of.count;
    of.by_number[call.n] = &call;
  }
  static const std::set<std::string> memory{"mmap", "mremap"};
  std::vector<Point> points;
  for (const auto& one : made) {
    const int task = one.first.first;
    const std::string& call = one.first.second;
    const Made& calls = one.second;
    for (const int n : numbers_of(calls.count)) {
      const auto add = [&](How how, int code) {
        points.push_back({scenario, {task, call, n, how, code}, said_of(calls.by_number.at(n)->path)});
      };
      const bool is_of_sanitizer =
          settings.sanitized && (memory.contains(call) || calls.by_number.at(n)->path.starts_with("pipe:"));
      if (!is_of_sanitizer)
        for (const Weakness& weakness : kWeaknesses)
          if (call == weakness.call && (weakness.how != How::shorten || calls.by_number.at(n)->size > 1))
            add(weakness.how, weakness.code);
      add(How::kill, 0);
      add(How::terminate, 0);
    }
  }
  return points;
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash ^ hash >> 29;
}

// One of each call of each scenario, what is said only when stdout is closed, and of the others those with
// the smallest hashes.
std::vector<Point> selected(const std::vector<Point>& all, std::size_t most) {
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < all.size(); ++i) order.emplace_back(hash_of(all[i].name()), i);
  std::sort(order.begin(), order.end());
  std::set<std::pair<std::size_t, std::string>> seen;
  std::set<std::size_t> chosen;
  const auto is_full = [&] { return chosen.size() >= most; };
  for (const auto& [hash, i] : order) {
    const Fault& fault = all[i].fault;
    if (fault.how == How::kill || fault.how == How::terminate) continue;
    const bool is_end_of_stdout =
        fault.how == How::error_late && fs::path(all[i].path).filename() == "stdout";
    if (is_end_of_stdout || (!is_full() && seen.emplace(all[i].scenario, fault.call).second))
      chosen.insert(i);
  }
  for (const auto& [hash, i] : order) {
    if (is_full()) break;
    chosen.insert(i);
  }
  std::vector<Point> points;
  for (const std::size_t i : chosen) points.push_back(all[i]);
  return points;
}

// Every jobs-th point, from the job's own on; the number of those that went wrong, 255 at most.
int work(const Settings& settings, const std::vector<Point>& points,
         const std::map<std::size_t, Usual>& usual, int job, const fs::path& folder) {
  const Bench bench(settings, folder);
  std::set<std::size_t> prepared;
  std::size_t wrong = 0, unmet = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i % static_cast<std::size_t>(settings.jobs) != static_cast<std::size_t>(job)) continue;
    const Point& point = points[i];
    if (prepared.insert(point.scenario).second) bench.prepare(point.scenario);
    bool met = false;
    const std::string why = bench.judge(point, usual.at(point.scenario), met);
    if (!met) ++unmet;
    if (why.empty()) continue;
    ++wrong;
    const std::string line = fmt::format("{} ({}): {}\n", point.name(), point.path, why);
    (void)!::write(STDOUT_FILENO, line.data(), line.size());
  }
  if (unmet > 0) fmt::print("{} points of job {} were not met\n", unmet, job);
  std::fflush(stdout);
  return static_cast<int>(std::min<std::size_t>(wrong, 255));
}

int run(const Settings& settings) {
  std::string name = (fs::temp_directory_path() / "ejk-faults-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("there is no scratch folder");
  const fs::path folder = name;
  struct Removed {
    fs::path path;
    ~Removed() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } const removed{folder};

  const Bench bench(settings, folder / "usual");
  std::map<std::size_t, Usual> usual;
  std::vector<Point> points;
  std::vector<std::string> complaints;
  for (std::size_t i = 0; i < scenarios().size(); ++i) {
    // (--only names a scenario, or a point of one)
    if (!settings.only.starts_with(scenarios()[i].name) && settings.only.find(' ') != std::string::npos)
      continue;
    usual[i] = bench.usual(i);
    if (const std::string why = look_at_storing(scenarios()[i], usual[i].outcome.calls); !why.empty())
      complaints.push_back(fmt::format("{}: {}", scenarios()[i].name, why));
    for (Point& point : points_of(i, usual[i], settings))
      if (point.name().find(settings.only) != std::string::npos) points.push_back(std::move(point));
  }
  const std::size_t possible = points.size();
  if (!settings.all && settings.only.empty()) points = selected(points, settings.points);
  if (settings.list) {
    for (const Point& point : points) fmt::print("{} ({})\n", point.name(), point.path);
    return 0;
  }
  fmt::print("{} of {} points, {} commands\n", points.size(), possible, usual.size());
  std::fflush(stdout);

  std::vector<pid_t> workers;
  for (int job = 0; job < settings.jobs; ++job) {
    const pid_t worker = fork();
    if (worker == 0) {
      try {
        _exit(work(settings, points, usual, job, folder / fmt::format("job{}", job)));
      } catch (const std::exception& error) {
        fmt::print(stderr, "run_faults: {}\n", error.what());
        _exit(255);
      }
    }
    if (worker < 0) throw std::runtime_error("there is no process");
    workers.push_back(worker);
  }
  for (const std::string& complaint : complaints) fmt::print("{}\n", complaint);
  int wrong = static_cast<int>(complaints.size());
  for (const pid_t worker : workers) {
    int status = 0;
    waitpid(worker, &status, 0);
    wrong += WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }
  fmt::print("{}\n", wrong == 0 ? "all is well" : "something is wrong");
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> words(argv + 1, argv + argc), places;
  const auto usage = [] {
    fmt::print(stderr,
               "usage: run_faults [--all] [--points N] [--only TEXT] [--jobs N] [--sanitized] [--list] "
               "PROGRAM DATA\n");
    return 2;
  };
  for (auto word = words.begin(); word != words.end(); ++word) {
    const bool has_value = *word == "--points" || *word == "--only" || *word == "--jobs";
    if (has_value && word + 1 == words.end()) return usage();
    if (*word == "--all")
      settings.all = true;
    else if (*word == "--sanitized")
      settings.sanitized = true;
    else if (*word == "--list")
      settings.list = true;
    else if (*word == "--points")
      settings.points = std::stoul(*++word);
    else if (*word == "--jobs")
      settings.jobs = std::max(1, std::stoi(*++word));
    else if (*word == "--only")
      settings.only = *++word;
    else
      places.push_back(*word);
  }
  if (places.size() != 2) return usage();
  settings.program = fs::absolute(places[0]);
  settings.data = fs::canonical(places[1]);
  // The same in each place where tests run. (Leaks cannot be looked for in a process that is traced.)
  setenv("LC_ALL", "C", 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  unsetenv("OMP_NUM_THREADS");
  unsetenv("NO_COLOR");
  try {
    try {
      const Run nothing{{"/bin/true"}, "/", "/dev/null", "/dev/null", "/dev/null"};
      run_traced(nothing, std::nullopt);
    } catch (const std::exception& error) {
      fmt::print("skipped: {}\n", error.what());
      return 77;
    }
    return run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "run_faults: {}\n", error.what());
    return 1;
  }
}
