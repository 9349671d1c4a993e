// Standard streams and their terminals: width, color, characters; and text written to them.
#pragma once

#include <cstdio>
#include <string_view>

#include "ejk/report.hpp"

namespace ejk::app {

/// The largest number of characters of a message; longer ones are truncated.
inline constexpr std::size_t kLongestMessage = 600;

enum class When { automatic, always, never };

bool is_terminal(std::FILE* stream);

/// A terminal that interprets control sequences: TERM is not dumb.
bool takes_control(std::FILE* stream);

/// Columns of the stream's terminal, else COLUMNS, else 80; at most 240.
int terminal_width(std::FILE* stream);

/// By default on a terminal that takes control sequences, unless NO_COLOR is set.
bool wants_color(std::FILE* stream, When when);

TextStyle text_style(std::FILE* stream, When color);

/// Ends the program by SIGPIPE if the reader of a pipe has closed it before reading everything.
void end_if_unread(std::FILE* stream);

/// Flushes and closes stdout, once. Throws if output was lost (a full disk), unless that was `reported`.
void close_stdout(bool reported = false);

/// Writes to stderr. A failure is ignored.
void print_error(std::string_view text) noexcept;

/// Opens /dev/null for each closed standard stream, whose descriptor the first opened file would get.
void secure_standard_streams();

}  // namespace ejk::app
