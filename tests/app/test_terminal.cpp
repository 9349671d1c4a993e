// Properties of a terminal, tested on a pseudo-terminal.
#include "terminal.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

using namespace ejk::app;

namespace {

// Sets a variable of the environment for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = getenv(name);
    was_set_ = before != nullptr;
    if (was_set_) before_ = before;
    setenv(name, value, 1);
  }
  ~Variable() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool was_set_ = false;
  std::string before_;
};

}  // namespace

TEST_CASE("a dumb terminal has no colour and no progress bar, a narrow one its true width but for reports") {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  std::FILE* stream = std::fopen(ptsname(terminal), "r+");
  REQUIRE(stream != nullptr);
  winsize size{};
  size.ws_col = 20;
  REQUIRE(ioctl(terminal, TIOCSWINSZ, &size) == 0);

  CHECK(terminal_width(stream) == 20);
  CHECK(text_style(stream, When::automatic).width == 40);
  {
    const Variable term("TERM", "xterm"), no_color("NO_COLOR", "");
    CHECK(takes_control(stream));
    CHECK(wants_color(stream, When::automatic));
  }
  const Variable term("TERM", "dumb");
  CHECK(is_terminal(stream));
  CHECK_FALSE(takes_control(stream));
  CHECK_FALSE(wants_color(stream, When::automatic));
  CHECK(wants_color(stream, When::always));
  std::fclose(stream);
  close(terminal);
}
