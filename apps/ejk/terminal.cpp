// What is asked of the system once for each stream: is it a terminal, does it show colour and UTF-8.
#include "terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "ejk/error.hpp"
#include "ejk/io.hpp"
#include "window.hpp"

namespace ejk::app {

namespace {

// Letters when the locale or the terminal says that there is nothing else.
bool shows_unicode() {
  if (is_dumb()) return false;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = environment(name);
    if (locale.empty()) continue;
    for (const char* name_of_utf8 : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (locale.find(name_of_utf8) != std::string_view::npos) return true;
    return false;
  }
  return true;
}

}  // namespace

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

bool wants_color(std::FILE* stream, When when) {
  if (when != When::automatic) return when == When::always;
  return takes_control(stream) && environment("NO_COLOR").empty();
}

TextStyle text_style(std::FILE* stream, When color) {
  constexpr int least = 40;  // what a report needs
  return {std::max(window_width(stream), least), wants_color(stream, color), shows_unicode()};
}

void end_if_unread(std::FILE* stream) {
  const int fd = fileno(stream);
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  // A reader such as `head -1` that has what it wants is gone a moment after it was given it.
  constexpr int kPatience = 20;  // milliseconds
  for (int waited = 0, unread = 0; waited < kPatience; ++waited) {
    if (ioctl(fd, FIONREAD, &unread) != 0 || unread == 0) return;
    pollfd pipe{fd, 0, 0};
    if (poll(&pipe, 1, 1) == 1 && (pipe.revents & POLLERR) != 0) raise(SIGPIPE);
  }
}

void close_stdout(bool told) {
  static bool is_closed = false;
  if (is_closed) return;
  is_closed = true;
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && (told || std::ferror(stdout) == 0);
  // (The descriptor is closed and all has been written where a signal has come between.)
  if ((std::fclose(stdout) != 0 && errno != EINTR) || !written)
    throw Error(Error::Kind::output, errno == 0
                                         ? "cannot write to stdout"
                                         : fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

void say(std::string_view text) noexcept {
  try {
    write_text(stderr, text);
  } catch (...) {  // nobody is left to be told
  }
}

void secure_standard_streams() {
  // Opened the wrong way round, so that using one fails as it would have.
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace ejk::app
