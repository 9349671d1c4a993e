// Messages for a library that is not installed.
#include "io/loaded_library.hpp"

#include <doctest/doctest.h>

#include <string>

#include "ejk/error.hpp"

using ejk::io::LoadedLibrary;

TEST_CASE("a library that is not there is named, and so is a function that it has not") {
  const auto message = [](auto&& load) -> std::string {
    try {
      load();
    } catch (const ejk::Error& error) {
      CHECK(error.kind() == ejk::Error::Kind::budget);
      return error.message();
    }
    return "";
  };
  CHECK(
      message([] { LoadedLibrary("libejk_none.so.1"); }).starts_with("libejk_none.so.1 cannot be loaded: "));
  void (*function)() = nullptr;
  const std::string without = message([&] { LoadedLibrary("libc.so.6").find("ejk_none", function); });
  CHECK(without.starts_with("libc.so.6 cannot be loaded: "));
  CHECK(without.find("ejk_none") != std::string::npos);
}

TEST_CASE("what is found can be called") {
  int (*absolute)(int) = nullptr;
  LoadedLibrary("libc.so.6").find("abs", absolute);
  CHECK(absolute(-3) == 3);
}
