// tests: tests/io/test_references.cpp, test_write.cpp
#include "io/container.hpp"

#include <array>

#include "io/directory.hpp"
#include "io/hdf5.hpp"
#include "io/npy.hpp"
#include "io/npz.hpp"

namespace ejk::io {

namespace {

using Kind = ArrayReference::Container;

constexpr std::array<std::string_view, 1> kNpySuffixes{".npy"};
constexpr std::array<std::string_view, 1> kNpzSuffixes{".npz"};
constexpr std::array<std::string_view, 4> kHdf5Suffixes{".h5", ".hdf5", ".hdf", ".he5"};

std::vector<std::string> one_without_name(const ArrayReference&, const OpenOptions&) { return {""}; }
std::vector<ArrayLink> no_links(const ArrayReference&, const OpenOptions&) { return {}; }

// In the order of the enumeration.
constexpr std::array<Container, 5> kContainers{{
    {Kind::npy, "an .npy file", kNpySuffixes, false, open_npy, one_without_name, no_links, write_npy_file,
     check_npy_file},
    {Kind::npz, "an .npz file", kNpzSuffixes, true, open_npz, npz_names, no_links, write_npz, check_npz},
    {Kind::hdf5, "an HDF5 file", kHdf5Suffixes, true, open_hdf5, hdf5_names, hdf5_links, write_hdf5,
     check_hdf5},
    {Kind::stream, "a stream", {}, false, open_stdin, one_without_name, no_links, write_stdout, check_stdout},
    {Kind::directory,
     "a folder",
     {},
     true,
     open_directory,
     directory_names,
     no_links,
     write_directory,
     check_directory},
}};

}  // namespace

std::span<const Container> containers() { return kContainers; }

const Container& container(Kind kind) { return kContainers[static_cast<std::size_t>(kind)]; }

}  // namespace ejk::io
