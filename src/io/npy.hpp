// NumPy's .npy format: a magic, a header that is a Python dictionary in text, then the raw elements.
// Definition: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// Reading maps the file and parses the header only; writing is one pass.
// tests: tests/io/test_npy.cpp
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "io/atomic_file.hpp"
#include "io/container.hpp"
#include "io/element_stream.hpp"
#include "io/mapped_source.hpp"

namespace ejk::io {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

/// Longer headers are refused, as NumPy does, before anything is allocated for them.
inline constexpr std::size_t kMaxNpyHeader = 10000;

/// NumPy's limit on the number of axes.
inline constexpr std::size_t kMaxRank = 64;

/// Copies the next n bytes to `to`; returns how many there were.
using ReadBytes = std::function<std::size_t(void* to, std::size_t n)>;

/// Reads magic, version and header; `layout.offset` is where the elements begin. Errors say why, not where.
ArrayLayout read_npy_header(const ReadBytes& read, UntypedBytes untyped = UntypedBytes::refuse);

/// What NumPy (1.23 and later) writes before a C-ordered array.
std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

/// The bytes of a whole file: header and elements.
void write_npy(const ArraySource& source, const Sink& sink);
/// The same, on all threads where the source may be read in any order; or by `fill`, where it is given.
using FillElements = std::function<void(const ElementRegion& place)>;
void write_npy(const ArraySource& source, AtomicFile& file, const FillElements& fill = {});

/// The one array of the job, to a file or to standard output.
void write_npy_file(const WriteJob& job);
void check_npy_file(const WriteJob& job);
void write_stdout(const WriteJob& job);
void check_stdout(const WriteJob& job);

/// An .npy file (a pipe under a file's name is read whole).
std::shared_ptr<const ArraySource> open_npy(const std::string& path, const OpenOptions& options);
/// The same of a file that was found in a folder: it must be a regular file.
std::shared_ptr<const ArraySource> open_npy_in_folder(const std::string& path, const OpenOptions& options);

/// What a descriptor that cannot be mapped still has to give, read whole; nothing may follow the array.
std::shared_ptr<const ArraySource> read_npy_stream(int fd, const std::string& name, std::int64_t max_memory,
                                                   UntypedBytes untyped = UntypedBytes::refuse);

/// The descriptor of standard input. Throws Error{usage} from the second call on: it can be read only once.
int take_stdin();

/// The array that comes from standard input.
std::shared_ptr<const ArraySource> open_stdin(const std::string& path, const OpenOptions& options);

}  // namespace ejk::io
