#include "terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "ejk/text.hpp"

namespace ejk::app {

namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int window_width(std::FILE* stream) {
  constexpr std::int64_t least = 40, most = 240;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return static_cast<int>(std::clamp<std::int64_t>(size.ws_col, least, most));
  if (const auto columns = parse_integer(environment("COLUMNS")); columns && *columns > 0)
    return static_cast<int>(std::clamp(*columns, least, most));
  return 80;
}

// Letters when the locale or the terminal says that there is nothing else.
bool shows_unicode() {
  if (environment("TERM") == "dumb") return false;
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
  return is_terminal(stream) && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

TextStyle text_style(std::FILE* stream, When color) {
  return {window_width(stream), wants_color(stream, color), shows_unicode()};
}

void say(const std::string& text) noexcept { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

void secure_standard_streams() {
  // Opened the wrong way round, so that using one fails as it would have.
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace ejk::app
