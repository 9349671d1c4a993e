// A filter in the program's system calls (seccomp) stops it at those that are looked for, and at no others;
// what is stopped is changed through ptrace. Unlike strace's injection it counts for each process from the
// program's own begin, so that the first calls of a forked process can be reached; those have the numbers of
// calls of the loader in the process that forked it.
#include "tracer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>

namespace ejk::faults {

#ifdef __x86_64__

namespace {

struct Known {
  const char* name;
  long number;
  int file;       // the argument that is a descriptor, or -1
  int path;       // a path, or -1
  int size;       // a count of bytes that may be made less, or -1
  int from = -1;  // the path that a rename begins with
};

constexpr Known kKnown[] = {
    {"write", SYS_write, 0, -1, 2},
    {"writev", SYS_writev, 0, -1, -1},
    {"pwrite64", SYS_pwrite64, 0, -1, 2},
    {"read", SYS_read, 0, -1, 2},
    {"pread64", SYS_pread64, 0, -1, 2},
    {"copy_file_range", SYS_copy_file_range, 2, -1, 4},
    {"ftruncate", SYS_ftruncate, 0, -1, -1},
    {"fallocate", SYS_fallocate, 0, -1, -1},
    {"fsync", SYS_fsync, 0, -1, -1},
    {"lseek", SYS_lseek, 0, -1, -1},
    {"fstat", SYS_fstat, 0, -1, -1},
    {"fstatfs", SYS_fstatfs, 0, -1, -1},
    {"newfstatat", SYS_newfstatat, -1, 1, -1},
    {"fchmod", SYS_fchmod, 0, -1, -1},
    {"fchown", SYS_fchown, 0, -1, -1},
    {"fcntl", SYS_fcntl, 0, -1, -1},
    {"getdents64", SYS_getdents64, 0, -1, -1},
    {"openat", SYS_openat, -1, 1, -1},
    {"close", SYS_close, 0, -1, -1},
    {"dup", SYS_dup, 0, -1, -1},
    {"dup2", SYS_dup2, 0, -1, -1},
    {"access", SYS_access, -1, 0, -1},
    {"readlink", SYS_readlink, -1, 0, -1},
    {"mkdir", SYS_mkdir, -1, 0, -1},
    {"rename", SYS_rename, -1, 1, -1, 0},
    {"renameat2", SYS_renameat2, -1, 3, -1, 1},
    {"link", SYS_link, -1, 1, -1, 0},
    {"getrandom", SYS_getrandom, -1, -1, -1},
    {"mmap", SYS_mmap, -1, -1, -1},
    {"mremap", SYS_mremap, -1, -1, -1},
    {"clone", SYS_clone, -1, -1, -1},
    {"clone3", SYS_clone3, -1, -1, -1},
    {"socketpair", SYS_socketpair, -1, -1, -1},
    {"sendto", SYS_sendto, -1, -1, 2},
    {"recvfrom", SYS_recvfrom, -1, -1, 2},
    {"poll", SYS_poll, -1, -1, -1},
    {"wait4", SYS_wait4, -1, -1, -1},
};

// The program's first call of its own: signals are its first work.
constexpr long kBegin = SYS_rt_sigaction;

// Stops at the known calls. Does not return where the system has no filters.
void install_filter() {
  std::array<sock_filter, 2 * (std::size(kKnown) + 1) + 5> code{};
  std::size_t n = 0;
  const auto add = [&](std::uint16_t what, std::uint8_t yes, std::uint8_t no, std::uint32_t k) {
    code[n++] = {what, yes, no, k};
  };
  add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, arch));
  add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
  add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
  add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr));
  const auto stop_at = [&](long number) {
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(number));
    add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRACE);
  };
  stop_at(kBegin);
  for (const Known& call : kKnown) stop_at(call.number);
  add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
  const sock_fprog program{static_cast<unsigned short>(n), code.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(126);
}

[[noreturn]] void become_the_program(const Run& run) {
  std::vector<char*> words;
  for (const std::string& word : run.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const auto opened = [](const std::string& path, int flags, int as) {
    const int fd = open(path.c_str(), flags, 0644);
    if (fd < 0 || dup2(fd, as) < 0) _exit(126);
    if (fd != as) close(fd);
  };
  if (chdir(run.folder.c_str()) != 0) _exit(126);
  opened(run.stdin_path, O_RDONLY, STDIN_FILENO);
  opened(run.stdout_path, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  opened(run.stderr_path, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(126);
  raise(SIGSTOP);
  install_filter();
  execv(words[0], words.data());
  _exit(126);
}

volatile sig_atomic_t time_is_up = 0;

extern "C" void note_time(int) { time_is_up = 1; }

struct Task {
  int number = 0;
  pid_t process = 0;
  bool begins = true;  // its first stop is still to come
  bool result_to_change = false;
  bool writes_counts = false;  // of coverage, its last work: what it calls from there on is not the program's
  std::map<std::string, int> made;
};

std::string file_of(pid_t task, std::uint64_t fd) {
  char name[4096];
  const std::string link = fmt::format("/proc/{}/fd/{}", task, static_cast<int>(fd));
  const ssize_t n = readlink(link.c_str(), name, sizeof name);
  return n > 0 ? std::string(name, static_cast<std::size_t>(n)) : "";
}

bool is_writable(pid_t task, std::uint64_t fd) {
  std::ifstream info(fmt::format("/proc/{}/fdinfo/{}", task, static_cast<int>(fd)));
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("flags:")) return (std::stol(line.substr(6), nullptr, 8) & O_ACCMODE) != O_RDONLY;
  return false;
}

std::string text_at(pid_t task, std::uint64_t address) {
  std::string text;
  while (text.size() < 4096) {
    errno = 0;
    const long word = ptrace(PTRACE_PEEKDATA, task, address + text.size(), nullptr);
    if (word == -1 && errno != 0) break;
    char bytes[sizeof word];
    std::memcpy(bytes, &word, sizeof word);
    const void* end = std::memchr(bytes, 0, sizeof bytes);
    text.append(bytes, end == nullptr ? sizeof bytes
                                      : static_cast<std::size_t>(static_cast<const char*>(end) - bytes));
    if (end != nullptr) break;
  }
  return text;
}

class Tracer {
 public:
  Tracer(const Run& run, const std::optional<Fault>& fault) : run_(run), fault_(fault) {}

  Outcome go() {
    start();
    struct sigaction action {};
    action.sa_handler = note_time;
    sigaction(SIGALRM, &action, nullptr);
    time_is_up = 0;
    alarm(static_cast<unsigned>(run_.seconds));
    while (true) {
      int status = 0;
      const pid_t task = waitpid(-1, &status, __WALL);
      if (task < 0 && errno == EINTR) {
        if (time_is_up != 0) end_all();
        continue;
      }
      if (task < 0) break;  // none is left
      if (WIFEXITED(status) || WIFSIGNALED(status))
        ended(task, status);
      else if (WIFSTOPPED(status))
        stopped(task, status);
    }
    alarm(0);
    if (!begun_ && outcome_.status == 126)
      throw std::runtime_error("the system has no filters of system calls");
    return std::move(outcome_);
  }

 private:
  void start() {
    program_ = fork();
    if (program_ < 0) throw std::runtime_error("there is no process");
    if (program_ == 0) become_the_program(run_);
    int status = 0;
    waitpid(program_, &status, 0);
    constexpr long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                              PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACESECCOMP |
                              PTRACE_O_EXITKILL;
    if (!WIFSTOPPED(status) || ptrace(PTRACE_SETOPTIONS, program_, nullptr, kOptions) != 0) {
      kill(program_, SIGKILL);
      waitpid(program_, &status, 0);
      throw std::runtime_error("the system does not let a process be traced");
    }
    task(program_).begins = false;
    go_on(program_, 0);
  }

  Task& task(pid_t id) {
    const auto [at, is_new] = tasks_.try_emplace(id);
    if (is_new) {
      at->second.number = static_cast<int>(tasks_seen_++);
      at->second.process = id;
      std::ifstream status(fmt::format("/proc/{}/status", id));
      for (std::string line; std::getline(status, line);)
        if (line.starts_with("Tgid:")) at->second.process = static_cast<pid_t>(std::stol(line.substr(5)));
    }
    return at->second;
  }

  static void go_on(pid_t task, int signal) { ptrace(PTRACE_CONT, task, nullptr, signal); }

  void ended(pid_t id, int status) {
    tasks_.erase(id);
    if (id != program_) return;
    if (WIFEXITED(status)) outcome_.status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome_.signal = WTERMSIG(status);
    constexpr unsigned kMoment = 5;
    if (time_is_up == 0) alarm(kMoment);  // for the processes that it has started
  }

  void end_all() {
    (tasks_.contains(program_) ? outcome_.hung : outcome_.left_some) = true;
    for (const auto& [id, task] : tasks_) kill(task.process, SIGKILL);
  }

  void stopped(pid_t id, int status) {
    Task& self = task(id);
    const int signal = WSTOPSIG(status);
    const int event = status >> 16;
    if (self.begins) {  // with a SIGSTOP, which nobody has sent
      self.begins = false;
      return go_on(id, 0);
    }
    if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
      unsigned long created = 0;
      ptrace(PTRACE_GETEVENTMSG, id, nullptr, &created);
      task(static_cast<pid_t>(created));
      return go_on(id, 0);
    }
    if (event == PTRACE_EVENT_SECCOMP) return at_call(id, self);
    if (signal == (SIGTRAP | 0x80)) {  // the end of a call
      if (self.result_to_change) set_result(id);
      self.result_to_change = false;
      return go_on(id, 0);
    }
    go_on(id, event == 0 ? signal : 0);
  }

  void at_call(pid_t id, Task& self) {
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, id, nullptr, &registers);
    const auto number = static_cast<long>(registers.orig_rax);
    const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                     [&](const Known& call) { return call.number == number; });
    begun_ = begun_ || number == kBegin;
    if (!begun_ || known == std::end(kKnown)) return go_on(id, 0);
    const std::uint64_t arguments[] = {registers.rdi, registers.rsi, registers.rdx,
                                       registers.r10, registers.r8,  registers.r9};
    if (number == SYS_openat && text_at(id, registers.rsi).ends_with(".gcda")) self.writes_counts = true;
    if (self.writes_counts) return go_on(id, 0);
    const int n = ++self.made[known->name];
    const auto path = [&]() -> std::string {
      if (known->file >= 0) return file_of(id, arguments[known->file]);
      if (known->path >= 0) return text_at(id, arguments[known->path]);
      return "";
    };
    if (!fault_) {
      const auto size = known->size < 0 ? 0 : static_cast<std::int64_t>(arguments[known->size]);
      const std::string from = known->from < 0 ? "" : text_at(id, arguments[known->from]);
      outcome_.calls.push_back({self.number, known->name, n, size, path(), from});
      return go_on(id, 0);
    }
    if (fault_->task != self.number || fault_->n != n || fault_->call != known->name) return go_on(id, 0);
    outcome_.met = true;
    outcome_.path = path();
    outcome_.writable = known->file == 0 && is_writable(id, arguments[0]);
    switch (fault_->how) {
      case Fault::How::error:
        registers.orig_rax = ~0ull;  // no call
        registers.rax = static_cast<unsigned long long>(-fault_->code);
        ptrace(PTRACE_SETREGS, id, nullptr, &registers);
        return go_on(id, 0);
      case Fault::How::error_late:
        self.result_to_change = true;
        ptrace(PTRACE_SYSCALL, id, nullptr, nullptr);
        return;
      case Fault::How::shorten: {
        unsigned long long& size = known->size == 2 ? registers.rdx : registers.r8;
        size = (size + 1) / 2;
        ptrace(PTRACE_SETREGS, id, nullptr, &registers);
        return go_on(id, 0);
      }
      case Fault::How::kill:
        kill(self.process, SIGKILL);
        return;
      case Fault::How::terminate:
        kill(program_, SIGTERM);
        return go_on(id, 0);
    }
  }

  void set_result(pid_t id) const {
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, id, nullptr, &registers);
    registers.rax = static_cast<unsigned long long>(-fault_->code);
    ptrace(PTRACE_SETREGS, id, nullptr, &registers);
  }

  const Run& run_;
  const std::optional<Fault>& fault_;
  pid_t program_ = 0;
  bool begun_ = false;
  std::size_t tasks_seen_ = 0;
  std::map<pid_t, Task> tasks_;
  Outcome outcome_;
};

}  // namespace

const std::vector<std::string>& known_calls() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Known& call : kKnown) all.emplace_back(call.name);
    return all;
  }();
  return names;
}

Outcome run_traced(const Run& run, const std::optional<Fault>& fault) { return Tracer(run, fault).go(); }

#else

const std::vector<std::string>& known_calls() {
  static const std::vector<std::string> none;
  return none;
}

Outcome run_traced(const Run&, const std::optional<Fault>&) {
  throw std::runtime_error("registers of this kind of processor are not known here");
}

#endif

}  // namespace ejk::faults
