// The HDF5 library's functions, owners of its identifiers, and errors with its reasons.
// tests: tests/io/test_hdf5.cpp
#pragma once

#define H5_USE_110_API  // later libraries keep the functions of 1.10 under their names
#include <hdf5.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/error.hpp"

// Functions in use; one missing here is a linker error.
// clang-format off
#define EJK_HDF5_FUNCTIONS(F) \
  F(H5Aclose) F(H5Acreate2) F(H5Adelete) F(H5Aexists) F(H5Aget_space) F(H5Aget_type) F(H5Aiterate2) \
  F(H5Aopen) F(H5Aread) F(H5Awrite) F(H5Dclose) F(H5Dcreate2) F(H5Dget_chunk_info) \
  F(H5Dget_chunk_info_by_coord) F(H5Dget_chunk_storage_size) F(H5Dget_create_plist) F(H5Dget_num_chunks) \
  F(H5Dget_offset) F(H5Dget_space) F(H5Dget_storage_size) F(H5Dget_type) F(H5Dopen2) F(H5Dread) \
  F(H5Dread_chunk) F(H5Dwrite) F(H5Eclear2) F(H5Epush2) F(H5Eset_auto2) F(H5Ewalk2) F(H5FDregister) \
  F(H5Fclose) F(H5Fcreate) F(H5Fflush) F(H5Fopen) F(H5Gclose) F(H5Gcreate2) F(H5Iget_file_id) \
  F(H5Iget_type) F(H5Ldelete) F(H5Lexists) F(H5Lget_info) F(H5Lget_val) F(H5Literate) \
  F(H5Lunpack_elink_val) F(H5Oclose) F(H5Oexists_by_name) F(H5Oget_info2) F(H5Oget_info_by_name2) \
  F(H5Oopen) F(H5PLset_loading_state) F(H5Pclose) F(H5Pcreate) F(H5Pfill_value_defined) F(H5Pget_chunk) \
  F(H5Pget_chunk_opts) F(H5Pget_driver_info) F(H5Pget_external_count) F(H5Pget_fill_value) \
  F(H5Pget_filter2) F(H5Pget_layout) F(H5Pget_nfilters) F(H5Pset_alignment) F(H5Pset_chunk) \
  F(H5Pset_chunk_cache) F(H5Pset_deflate) F(H5Pset_driver) F(H5Pset_elink_cb) F(H5Pset_fill_time) \
  F(H5Pset_fill_value) F(H5Pset_layout) F(H5Pset_obj_track_times) F(H5Pset_shuffle) F(H5Sclose) \
  F(H5Screate) F(H5Screate_simple) F(H5Sget_simple_extent_dims) F(H5Sget_simple_extent_npoints) \
  F(H5Sget_simple_extent_type) F(H5Sselect_hyperslab) F(H5Tclose) F(H5Tcopy) F(H5Tenum_create) \
  F(H5Tenum_insert) F(H5Tenum_valueof) F(H5Tget_class) F(H5Tget_ebias) F(H5Tget_fields) F(H5Tget_nmembers) \
  F(H5Tget_norm) F(H5Tget_order) F(H5Tget_precision) F(H5Tget_sign) F(H5Tget_size) F(H5Tget_tag) \
  F(H5Tis_variable_str) F(H5Tset_cset) F(H5Tset_ebias) F(H5Tset_fields) F(H5Tset_size) F(H5Zfilter_avail) \
  F(H5check_version) F(H5free_memory) F(H5get_libversion) F(H5open)
#define EJK_HDF5_IDENTIFIERS(F) \
  F(H5E_ERR_CLS_g) F(H5E_IO_g) F(H5E_READERROR_g) F(H5P_CLS_DATASET_ACCESS_ID_g) \
  F(H5P_CLS_DATASET_CREATE_ID_g) F(H5P_CLS_FILE_ACCESS_ID_g) F(H5P_CLS_FILE_CREATE_ID_g) \
  F(H5P_CLS_GROUP_CREATE_ID_g) F(H5P_CLS_LINK_ACCESS_ID_g) F(H5T_C_S1_g) F(H5T_NATIVE_DOUBLE_g) \
  F(H5T_NATIVE_FLOAT_g) F(H5T_NATIVE_INT16_g) F(H5T_NATIVE_INT32_g) F(H5T_NATIVE_INT64_g) \
  F(H5T_NATIVE_INT8_g) F(H5T_NATIVE_UINT16_g) F(H5T_NATIVE_UINT32_g) F(H5T_NATIVE_UINT64_g) \
  F(H5T_NATIVE_UINT8_g)
// clang-format on

namespace ejk::io {

/// Throws Error{budget} if it cannot be loaded.
void load_hdf5();

// In this namespace pointers to what was loaded hide the functions that <hdf5.h> declares.
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declared name
#define EJK_DECLARE(name) extern decltype(&::name) name;
EJK_HDF5_FUNCTIONS(EJK_DECLARE)
#undef EJK_DECLARE

/// An identifier that the library keeps in a variable, set when it is opened. A program linked with the
/// library may have its own copy, which the library then uses.
struct Hdf5Identifier {
  operator hid_t() const { return *own >= 0 || copy == nullptr ? *own : *copy; }
  const hid_t* own = nullptr;
  const hid_t* copy = nullptr;
};
#define EJK_DECLARE(name) extern Hdf5Identifier name;
EJK_HDF5_IDENTIFIERS(EJK_DECLARE)
#undef EJK_DECLARE

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

/// The innermost entry of the library's error stack, with the system's reason if any. Clears the stack.
std::string hdf5_reason();

struct Hdf5FilterEntry {
  H5Z_filter_t id = 0;
  std::string name;
  std::vector<unsigned> values;
};

std::vector<Hdf5FilterEntry> hdf5_filters(hid_t plist);

/// Errors with reason and object; the client adds the file's name.
class Hdf5Errors {
 public:
  std::string at(std::string_view path) const;
  Error error(std::string_view path, std::string_view why, Error::Code code = Error::Code::other) const;
  /// With the library's reason.
  Error library_error(std::string_view path, std::string_view doing) const;
  Error claims_too_much(std::string_view path, std::int64_t bytes, std::string_view than) const;
  Hdf5Handle checked(hid_t id, herr_t (*close)(hid_t), std::string_view path, std::string_view doing) const;

  std::string name;
  Error::Kind kind = Error::Kind::input;
};

}  // namespace ejk::io
