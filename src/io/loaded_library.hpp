// Shared libraries loaded on first use: relocating HDF5 and its dependencies takes three quarters of the
// program's start. Cost: one look-up per name.
// tests: tests/io/test_loaded_library.cpp
#pragma once

namespace ejk::io {

class LoadedLibrary {
 public:
  /// By the name that the loader looks for, "libhdf5_serial.so.103". It stays loaded. Throws Error{budget},
  /// which names it.
  explicit LoadedLibrary(const char* name);

  /// Points `out` to a function or a variable of the library. Throws Error{budget} where it has none of that
  /// name.
  template <class T>
  void find(const char* symbol, T*& out) const {
    out = reinterpret_cast<T*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  const char* name_;
  void* library_;
};

/// For use within another macro, which expands a name that is itself a macro before it is quoted here.
#define EJK_FIND(library, name, pointer) (library).find(#name, pointer)

}  // namespace ejk::io
