// Errors that many functions have in common.
#pragma once

#include <string>
#include <utility>

#include "ejk/error.hpp"

namespace ejk::core {

/// An argument that cannot be what it is said to be.
inline Error invalid(std::string why) { return {Error::Kind::input, std::move(why)}; }

}  // namespace ejk::core
