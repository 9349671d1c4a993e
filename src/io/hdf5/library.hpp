// What the files that use the HDF5 library share: its identifiers, and errors that say why it failed.
// tests: tests/io/test_hdf5.cpp
#pragma once

#define H5_USE_110_API  // later libraries keep the functions of 1.10 under their names
#include <hdf5.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/error.hpp"

namespace ejk::io {

/// The identifier of something that is open in the library.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), close_(closer) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() { close(); }
  bool close() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }
  hid_t id() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  herr_t (*close_)(hid_t) = nullptr;
};

/// Why the library failed: the innermost entry of its error stack, and of that what the system said, if it
/// did. Clears the stack.
std::string hdf5_reason();

/// What a dataset's creation properties say of one filter.
struct Hdf5FilterEntry {
  H5Z_filter_t id = 0;
  std::string name;
  std::vector<unsigned> values;
};

std::vector<Hdf5FilterEntry> hdf5_filters(hid_t plist);

/// Errors that say why, and which object of the file they are about; the client adds the names.
class Hdf5Errors {
 public:
  /// What to call an object, in a hint.
  std::string at(std::string_view path) const;
  Error error(std::string_view path, std::string_view why, Error::Code code = Error::Code::other) const;
  /// With the library's reason.
  Error library_error(std::string_view path, std::string_view doing) const;
  Error claims_too_much(std::string_view path, std::int64_t bytes, std::string_view than) const;
  /// What the library returned, unless it failed.
  Hdf5Handle checked(hid_t id, herr_t (*close)(hid_t), std::string_view path, std::string_view doing) const;

  std::string name;
  Error::Kind kind = Error::Kind::input;
};

}  // namespace ejk::io
