// The system is asked first, then the environment.
#include "window.hpp"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "ejk/text.hpp"
#include "terminal.hpp"

namespace ejk::app {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_dumb() { return environment("TERM") == "dumb"; }

bool takes_control(std::FILE* stream) { return is_terminal(stream) && !is_dumb(); }

int window_width(std::FILE* stream) {
  constexpr std::int64_t most = 240;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return static_cast<int>(std::min<std::int64_t>(size.ws_col, most));
  if (const auto columns = parse_integer(environment("COLUMNS")); columns && *columns > 0)
    return static_cast<int>(std::min(*columns, most));
  return 80;
}

}  // namespace ejk::app
