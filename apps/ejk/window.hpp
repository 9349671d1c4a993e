// The window behind a stream: how wide it is, and whether it takes control sequences.
#pragma once

#include <cstdio>
#include <string_view>

namespace ejk::app {

/// A variable of the environment; empty where it is not set.
std::string_view environment(const char* name);

/// TERM says that the terminal knows no control sequences.
bool is_dumb();

/// A terminal that is not dumb.
bool takes_control(std::FILE* stream);

/// Columns of the terminal behind this stream, else COLUMNS, else 80; at most 240.
int window_width(std::FILE* stream);

}  // namespace ejk::app
