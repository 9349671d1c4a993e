// The message of a call that must fail.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "ejk/error.hpp"

namespace plain {

/// The message of the error of that kind that the call ends with; "no error" where it does not.
inline std::string failure(const std::function<void()>& call,
                           ejk::Error::Kind kind = ejk::Error::Kind::input) {
  try {
    call();
  } catch (const ejk::Error& error) {
    CHECK(error.kind() == kind);
    return error.message();
  }
  return "no error";
}

/// The same of an error of any kind, and behind " | " its hint.
inline std::string failure_and_hint(const std::function<void()>& call) {
  try {
    call();
  } catch (const ejk::Error& error) {
    return error.message() + (error.hint().empty() ? "" : " | " + error.hint());
  }
  return "no error";
}

}  // namespace plain
