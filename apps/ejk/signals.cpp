#include "signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "ejk/io.hpp"
#include "exit_status.hpp"
#include "progress.hpp"

namespace ejk::app {

namespace {

char bus_message[200];  // made ready beforehand: a handler may not format
std::size_t bus_message_size = 0;
std::atomic_flag bus_error;

extern "C" void end_by_signal(int signal) {
  remove_temporary_files();
  clear_progress_from_signal();
  ::signal(signal, SIG_DFL);
  raise(signal);
}

extern "C" void end_by_bus_error(int) {
  while (bus_error.test_and_set()) pause();  // another thread is at it
  remove_temporary_files();
  clear_progress_from_signal();
  (void)!write(STDERR_FILENO, bus_message, bus_message_size);
  _exit(kExitInput);
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void handle_signals(const std::string& program) {
  const int size = std::snprintf(bus_message, sizeof bus_message,
                                 "%s: an input file became shorter while it was read\n", program.c_str());
  bus_message_size = size > 0 ? std::min(static_cast<std::size_t>(size), sizeof bus_message - 1) : 0;

  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) install(signal, end_by_signal);  // nohup stays in force
  }
  install(SIGPIPE, end_by_signal);  // even if a parent ignores it: a closed pipe ends us quietly
  install(SIGBUS, end_by_bus_error);
  ::signal(SIGXFSZ, SIG_IGN);  // a file above the limit of its size is then a failed write
}

}  // namespace ejk::app
