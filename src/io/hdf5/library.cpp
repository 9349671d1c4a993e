// Errors of the HDF5 library. It has a stack of them; the innermost entry is the reason, with the system's
// message if there is one.
// tests: tests/io/test_hdf5.cpp
#include "io/hdf5/library.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ejk/program/text.hpp"
#ifndef EJK_STATIC
#include <dlfcn.h>

#include "io/loaded_library.hpp"
#endif

namespace ejk::io {

#ifdef EJK_STATIC  // the library is linked

// NOLINTNEXTLINE(bugprone-macro-parentheses): a declared name
#define EJK_DEFINE(name) decltype(&::name) name = &::name;
EJK_HDF5_FUNCTIONS(EJK_DEFINE)
#undef EJK_DEFINE
#define EJK_DEFINE(name) Hdf5Identifier name{&::name, nullptr};
EJK_HDF5_IDENTIFIERS(EJK_DEFINE)
#undef EJK_DEFINE

void load_hdf5() {}

#else

// NOLINTNEXTLINE(bugprone-macro-parentheses): a declared name
#define EJK_DEFINE(name) decltype(&::name) name = nullptr;
EJK_HDF5_FUNCTIONS(EJK_DEFINE)
#undef EJK_DEFINE
#define EJK_DEFINE(name) Hdf5Identifier name;
EJK_HDF5_IDENTIFIERS(EJK_DEFINE)
#undef EJK_DEFINE

void load_hdf5() {
  [[maybe_unused]] static const bool loaded = [] {
    const LoadedLibrary library(EJK_HDF5_SONAME);
#define EJK_LOAD(name) EJK_FIND(library, name, name);
    EJK_HDF5_FUNCTIONS(EJK_LOAD)
#undef EJK_LOAD
#define EJK_LOAD(name)                 \
  EJK_FIND(library, name, (name).own); \
  (name).copy = static_cast<const hid_t*>(dlsym(RTLD_DEFAULT, #name));
    EJK_HDF5_IDENTIFIERS(EJK_LOAD)
#undef EJK_LOAD
    return true;
  }();
}

#endif

namespace {

// Each part of a file has a version, and a library knows those that there were when it was made.
bool is_of_unknown_version(std::string_view why) { return why.find(" version") != std::string_view::npos; }

}  // namespace

std::string hdf5_reason() {
  std::string why;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* entry, void* out) -> herr_t {
        if (n == 0 && entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &why);
  H5Eclear2(H5E_DEFAULT);
  constexpr std::string_view kSystem = "error message = '";
  if (const auto at = why.find(kSystem); at != std::string::npos) {
    why.erase(0, at + kSystem.size());
    why.resize(std::min(why.find('\''), why.size()));
  }
  return why.empty() ? "the HDF5 library does not say why" : printable(why);
}

std::vector<Hdf5FilterEntry> hdf5_filters(hid_t plist) {
  std::vector<Hdf5FilterEntry> entries;
  for (int i = 0; i < H5Pget_nfilters(plist); ++i) {
    unsigned flags = 0, config = 0;
    std::vector<unsigned> values(32);  // more than the library's own filters have
    std::size_t n = values.size();
    char name[64] = {};
    const H5Z_filter_t id = H5Pget_filter2(plist, static_cast<unsigned>(i), &flags, &n, values.data(),
                                           sizeof name - 1, name, &config);
    values.resize(std::min(n, values.size()));
    entries.push_back({id, name, std::move(values)});
  }
  return entries;
}

std::string Hdf5Errors::at(std::string_view path) const {
  return path.empty() ? name : fmt::format("{}:{}", name, printable(path));
}

Error Hdf5Errors::error(std::string_view path, std::string_view why, Error::Code code) const {
  return Error(kind, std::string(why), code).about(path);
}

Error Hdf5Errors::library_error(std::string_view path, std::string_view doing) const {
  const std::string why = hdf5_reason();
  Error e = error(path, fmt::format("{}: {}", doing, why));
  if (kind == Error::Kind::input && is_of_unknown_version(why)) {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    e.hint(fmt::format(
        "if a later HDF5 library than this {}.{}.{} made it: its `h5repack OLD NEW`, or h5py without "
        "libver='latest', writes what can be read",
        major, minor, release));
  }
  return e;
}

Hdf5Handle Hdf5Errors::checked(hid_t id, herr_t (*close)(hid_t), std::string_view path,
                               std::string_view doing) const {
  if (id < 0) throw library_error(path, doing);
  return {id, close};
}

Error Hdf5Errors::claims_too_much(std::string_view path, std::int64_t bytes, std::string_view than) const {
  return error(path, fmt::format("the dataset claims {} bytes, which {}", bytes, than));
}

}  // namespace ejk::io
