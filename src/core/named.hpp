// Names in errors: the layer that knows the name prefixes the reason with it.
#pragma once

#include <string_view>

#include "ejk/error.hpp"

namespace ejk::core {

/// Returns f(); an Error that it throws is prefixed with the name.
template <class F>
decltype(auto) named(std::string_view name, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    error.at(name);
    throw;
  }
}

/// Returns f(); an Error that it throws is about this argument.
template <class F>
decltype(auto) about(std::string_view argument, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    error.about(argument);
    throw;
  }
}

}  // namespace ejk::core
