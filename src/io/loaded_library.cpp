// Shared libraries loaded at run time. The loader's error names the library that is missing, which may be a
// dependency of the requested one.
// tests: tests/io/test_loaded_library.cpp
#include "io/loaded_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "ejk/error.hpp"

namespace ejk::io {

namespace {

Error cannot_be_loaded(const char* name) {
  return Error(Error::Kind::budget, fmt::format("{} cannot be loaded: {}", name, dlerror()));
}

}  // namespace

LoadedLibrary::LoadedLibrary(const char* name) : name_(name), library_(dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
  if (library_ == nullptr) throw cannot_be_loaded(name);
}

void* LoadedLibrary::address(const char* symbol) const {
  void* const found = dlsym(library_, symbol);
  if (found == nullptr) throw cannot_be_loaded(name_);
  return found;
}

}  // namespace ejk::io
