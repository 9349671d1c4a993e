// How the process of the HDF5 library ends where coverage is measured: it leaves its counts behind. Elsewhere
// it is killed without notice, which would lose them. src/io/worker.cpp alone is compiled to call these
// functions in place of kill, poll and _exit (EJK_COVERAGE in CMakeLists.txt).
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>

extern "C" void __gcov_dump();  // NOLINT(clang-diagnostic-reserved-identifier): GCC's

namespace {

// Which processes are asked to end: shared with all children of the first process.
using Asked = std::array<std::atomic<pid_t>, 4096>;

Asked& asked() {
  static auto* const shared = static_cast<Asked*>(
      mmap(nullptr, sizeof(Asked), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *shared;
}

// Counts are added to files that all processes share: one that may write no large files would damage them.
bool may_write_counts() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY &&
         access(EJK_COVERAGE_FOLDER, W_OK) == 0;
}

// Who may not write the counts has none: what is written once, here to nowhere, is not written again at the
// end. The complaints that this gives are not the program's.
void forget_counts() {
  const int error = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (error >= 0) dup2(null, STDERR_FILENO);
  setenv("GCOV_PREFIX", "/dev/null", 1);
  __gcov_dump();
  unsetenv("GCOV_PREFIX");
  if (error >= 0) dup2(error, STDERR_FILENO), close(error);
  close(null);
}

// Before main(), and before any fork.
const bool ready = [] {
  if (!may_write_counts()) forget_counts();
  return asked().data() != nullptr;
}();

// A file that was opened and then finds no memory would be left without its beginning: HDF5's process has a
// limit.
void write_counts() {
  if (!may_write_counts()) return;
  rlimit memory{};
  if (getrlimit(RLIMIT_AS, &memory) != 0) return;
  memory.rlim_cur = memory.rlim_max;
  if (setrlimit(RLIMIT_AS, &memory) == 0) __gcov_dump();
}

std::atomic<pid_t>& place_of(pid_t process) { return asked().at(static_cast<std::size_t>(process) % 4096); }

bool has_ended(pid_t process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT | WNOHANG) != 0 ||
         info.si_pid == process;
}

}  // namespace

// Asks the process to end by itself, waits ten seconds at most, and kills it then.
extern "C" int ejk_coverage_kill(pid_t process, int signal) {
  if (ready && signal == SIGKILL && !has_ended(process)) {
    place_of(process) = process;
    kill(process, SIGIO);  // whose handler looks at its socket
    for (int waited = 0; waited < 10'000 && !has_ended(process); ++waited) usleep(1000);
    place_of(process) = 0;
  }
  return kill(process, signal);
}

extern "C" int ejk_coverage_poll(pollfd* of, nfds_t n, int milliseconds) {
  if (place_of(getpid()) == getpid()) {
    write_counts();
    raise(SIGKILL);
  }
  return poll(of, n, milliseconds);
}

extern "C" void ejk_coverage_exit(int status) {
  write_counts();
  _exit(status);
}
