// Standard streams and their terminals. Properties come from the system first, then from the environment.
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
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "ejk/error.hpp"
#include "ejk/io.hpp"
#include "ejk/program/text.hpp"

namespace ejk::app {

namespace {

// "" if the variable is not set.
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_dumb() { return environment("TERM") == "dumb"; }

// False if the locale or the terminal excludes it.
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

bool takes_control(std::FILE* stream) { return is_terminal(stream) && !is_dumb(); }

int terminal_width(std::FILE* stream) {
  constexpr std::int64_t most = 240;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return static_cast<int>(std::min<std::int64_t>(size.ws_col, most));
  if (const auto columns = parse_integer(environment("COLUMNS")); columns && *columns > 0)
    return static_cast<int>(std::min(*columns, most));
  return 80;
}

bool wants_color(std::FILE* stream, When when) {
  if (when != When::automatic) return when == When::always;
  return takes_control(stream) && environment("NO_COLOR").empty();
}

TextStyle text_style(std::FILE* stream, When color) {
  constexpr int least = 40;  // for a report
  return {std::max(terminal_width(stream), least), wants_color(stream, color), shows_unicode()};
}

void end_if_unread(std::FILE* stream) {
  const int fd = fileno(stream);
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  // A reader such as `head -1` exits shortly after it has read enough.
  constexpr int kPatience = 20;  // milliseconds
  for (int waited = 0, unread = 0; waited < kPatience; ++waited) {
    if (ioctl(fd, FIONREAD, &unread) != 0 || unread == 0) return;
    pollfd pipe{fd, 0, 0};
    if (poll(&pipe, 1, 1) == 1 && (pipe.revents & POLLERR) != 0) raise(SIGPIPE);
  }
}

void close_stdout(bool reported) {
  static bool is_closed = false;
  if (is_closed) return;
  is_closed = true;
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && (reported || std::ferror(stdout) == 0);
  // (EINTR: all has been written and the descriptor is closed.)
  if ((std::fclose(stdout) != 0 && errno != EINTR) || !written)
    throw Error(Error::Kind::output, errno == 0
                                         ? "cannot write to stdout"
                                         : fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

void print_error(std::string_view text) noexcept {
  try {
    write_text(stderr, text);
  } catch (...) {  // no way to report it
  }
}

void secure_standard_streams() {
  // Opened in the wrong direction, so that using one fails as on a closed stream.
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace ejk::app
