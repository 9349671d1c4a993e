// Hints in the words of the command line, for errors that the library tells by a code.
#pragma once

#include "ejk/error.hpp"

namespace ejk::app {

/// Adds the hint of the error's code, if that has one.
void add_hint(Error& error);

}  // namespace ejk::app
