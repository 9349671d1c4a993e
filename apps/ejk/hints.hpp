// Ways out in the words of the command line, for errors of the library, which knows none of them.
#pragma once

#include "ejk/error.hpp"

namespace ejk::app {

/// Replaces the error's hint by the one for its code, where there is one.
void add_hint(Error& error);

}  // namespace ejk::app
