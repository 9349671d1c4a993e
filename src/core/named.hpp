// Names in errors: what goes wrong below says why, the layer that knows the name puts it in front.
#pragma once

#include <string_view>

#include "ejk/error.hpp"

namespace ejk::core {

/// What f returns. An Error that it throws begins with the name.
template <class F>
decltype(auto) named(std::string_view name, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    error.at(name);
    throw;
  }
}

}  // namespace ejk::core
