// Signal handlers, which call async-signal-safe functions alone: they remove temporary files, clear the
// progress bar, write one line and end the program.
#include "signals.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "ejk/io.hpp"
#include "ejk/threads.hpp"
#include "errors.hpp"
#include "progress.hpp"

namespace ejk::app {

namespace {

char program_name[64];  // with ": ", formatted beforehand: a handler cannot
std::atomic_flag bus_error;

// "ejk COMMAND: " and both, in one write, so that no other output comes between.
void print_in_one_piece(const char* what, const char* rest) {
  iovec parts[3];
  const char* words[] = {program_name, what, rest};
  for (std::size_t i = 0; i < 3; ++i) parts[i] = {const_cast<char*>(words[i]), std::strlen(words[i])};
  (void)!writev(STDERR_FILENO, parts, 3);
}

extern "C" void end_by_signal(int signal) {
  remove_temporary_files();
  clear_progress_from_signal();
  ::signal(signal, SIG_DFL);
  raise(signal);
}

extern "C" void end_by_bus_error(int, siginfo_t* info, void*) {
  // (A signal sent by a process has no address.)
  const char* file = info->si_code > 0 ? mapped_file_at(info->si_addr) : nullptr;
  if (file == nullptr) return end_by_signal(SIGBUS);
  while (bus_error.test_and_set()) pause();  // another thread reports it
  remove_temporary_files();
  clear_progress_from_signal();
  print_in_one_piece(file, ": has become shorter while it was read\n");
  _exit(kExitInput);
}

// OpenMP's library prints a message and calls exit(1) if it cannot start a thread.
extern "C" void end_without_threads() {
  if (!is_starting_threads()) return;
  remove_temporary_files();
  clear_progress_from_signal();
  print_in_one_piece("the system starts no more threads", "\nhint: --threads 1 needs none\n");
  _exit(kExitBudget);
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void handle_signals(const std::string& program) {
  std::snprintf(program_name, sizeof program_name, "%s: ", program.c_str());

  static const int registered = std::atexit(end_without_threads);
  static_cast<void>(registered);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) install(signal, end_by_signal);  // as under nohup
  }
  install(SIGPIPE, end_by_signal);  // even if the parent ignores it: a closed pipe ends the program silently
  struct sigaction action {};
  action.sa_sigaction = end_by_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // the write fails
}

}  // namespace ejk::app
