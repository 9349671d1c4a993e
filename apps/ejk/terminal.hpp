// What the windows behind stdout and stderr can show, and text on its way there.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "ejk/report.hpp"

namespace ejk::app {

/// Characters of a message, beyond which it is cut.
inline constexpr std::size_t kLongestMessage = 600;

enum class When { automatic, always, never };

bool is_terminal(std::FILE* stream);

/// Colour on this stream: as asked, else on a terminal that is not dumb, unless NO_COLOR is set.
bool wants_color(std::FILE* stream, When when);

/// Width, colour and characters for a report on this stream.
TextStyle text_style(std::FILE* stream, When color);

/// Ends the program as one more write would, by SIGPIPE, when what was written to the stream lies in a pipe
/// that has no reader any more.
void end_if_unread(std::FILE* stream);

/// Closes stdout, to which nothing more is written: all of it has arrived, or this throws, since a full disk may
/// show only now. Where what could not be written has been told already, that is no error. Does nothing when
/// called again.
void close_stdout(bool told = false);

/// Writes to stderr. Nobody is left to be told when that fails, so it is no error.
void say(std::string_view text) noexcept;

/// Gives the three standard streams a file descriptor each if they were closed: else the first file that is
/// opened would be taken for stdout.
void secure_standard_streams();

}  // namespace ejk::app
