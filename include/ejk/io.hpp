// Arrays in and out of files: references, opening, writing whole or not at all.
//
// A reference is one word that names one array:
//   a.npy            a NumPy file (headers 1.0 to 3.0, C or Fortran order, either byte order)
//   a.npz:name       a member of an .npz, stored or deflated; ":name" may be omitted if there is only one
//   a.h5:/g/name     an HDF5 dataset (.h5 .hdf5 .hdf .he5); the path may be omitted if there is only one
//   a.nc:/g/name     the same with any other suffix: the first bytes determine the format of an input
//   -                an .npy stream: stdin or stdout
//   REF[0,:,8:64:2]  of inputs, a NumPy basic slice after any of them: integers (negative from the end),
//                    start:stop:step with step ≥ 1, "..."; only the selected elements are read
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// One entry of a slice.
struct SliceItem {
  enum class Kind { index, range, ellipsis };
  Kind kind = Kind::range;
  std::int64_t index = 0;             // index
  std::optional<std::int64_t> start;  // range; negative counts from the end
  std::optional<std::int64_t> stop;
  std::int64_t step = 1;
};

/// A parsed reference; nothing is opened.
struct ArrayReference {
  enum class Container { npy, npz, hdf5, stream, directory };
  Container container = Container::npy;
  std::string path;              // empty for a stream
  std::string member;            // name in the .npz or path in the HDF5 file; empty: the only one there is
  std::vector<SliceItem> slice;  // empty: everything
  std::string text;              // unparsed

  bool is_stream() const { return container == Container::stream; }
  bool holds_several() const;
  /// The name of the array in its file, or that of the .npy file without its suffix; "array" for a stream.
  std::string array_name() const;
};

/// Parses a reference without opening a file. A path that ends in "/" is a directory; any other without the
/// suffix of a container is an .npy file. Throws Error{usage} for a malformed slice or an empty word.
ArrayReference parse_reference(std::string_view text);

/// The same for an input. The first bytes of a regular file determine its format, whatever its suffix (an
/// HDF5 file may begin with a block of other data), and a folder needs no "/" at its end. Missing files and
/// pipes are interpreted by their names. Also throws Error{input}: for a file that cannot be read, and for
/// netCDF-3, HDF4 and MATLAB files before 7.3, with a hint.
ArrayReference parse_input(std::string_view text);

/// The same for a target: an existing folder needs no "/"; any other path has no suffix or that of a
/// container. Throws Error{usage} for other suffixes.
ArrayReference parse_output(std::string_view text);

/// The reference to an array of a container, by one of its array_names(); `text` is its form on a command
/// line.
ArrayReference reference_to(const ArrayReference& container, const std::string& name);

/// Splits "A,B" at commas outside of [], () and double quotes, as in an option that takes two references.
/// Quotes around a reference are removed. Throws Error{usage} for a quote that is not closed.
std::vector<std::string> split_references(std::string_view text);

/// A memory budget shared by open files, which cache decoded rows of HDF5 chunks for reading in C order. A
/// row of more than 64 MiB that does not fit is decoded again for each piece that is read of it.
class ReadMemory {
 public:
  explicit ReadMemory(std::int64_t bytes) : spare_(bytes) {}

  /// Increases or decreases the budget.
  void add(std::int64_t bytes) { spare_ += bytes; }
  /// Takes so many bytes if they are available.
  bool take(std::int64_t bytes);
  /// Records that a file could use so many bytes.
  void want(std::int64_t bytes);
  /// The largest request recorded.
  std::int64_t wanted() const { return wanted_; }

 private:
  std::atomic<std::int64_t> spare_, wanted_ = 0;
};

struct OpenOptions {
  /// Allows HDF5 external links, external storage, virtual datasets and plug-in filters: they read other
  /// files.
  bool allow_external = false;
  /// The largest array that may be buffered in memory (a stream), in bytes; 0: no limit.
  std::int64_t max_memory = 0;
  /// Null: 1 GiB for each file.
  std::shared_ptr<ReadMemory> read_memory = nullptr;
};

/// Opens an input: reads and checks its header only (a stream is read whole, since it cannot be read again).
/// Throws Error{input} that begins with the file's name, perhaps with a hint (the nearest dataset names);
/// Error{budget} for a stream above max_memory.
///
/// Data of .npy files and of contiguous HDF5 datasets is mapped, not copied (if another program truncates the
/// file, access raises SIGBUS, as with any mapping; mapped_file_at() finds the file). Members of an .npz are
/// read forward and their checksums verified. HDF5 is read in a separate process, so that a crash of the HDF5
/// library on a damaged file is an Error here. Bytes of bool arrays are those of the file: any but 0 is True.
std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference,
                                              const OpenOptions& options = {});
std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options = {});

/// All bytes of a file, or of standard input ("-"), which can be read once. Nothing if there are more than
/// `most`. Throws Error{input} that begins with the path.
std::optional<std::string> read_file(const std::string& path, std::int64_t most);

/// The names of all arrays in a container, in order: members of an .npz, dataset paths ("/g/x") of an HDF5
/// file, the .npy files of a folder ("out/") without that suffix, one empty name for an .npy file. Of a group
/// of an HDF5 file ("a.h5:/g") the paths of all datasets below it; of any other object its own path. With
/// allow_external, targets of links to other files are included. References to single arrays (an .npy file,
/// "a.h5:/x") are not checked: open_array reports missing ones.
std::vector<std::string> array_names(const std::string& path, const OpenOptions& options = {});

/// A name in an HDF5 file that array_names omits: a link to an object with its own name, to another file, or
/// to nothing.
struct ArrayLink {
  std::string name;  // "/g/x"
  std::string kind;  // "hard", "soft", "dangling" (soft, to nothing that can be read), "external", "unknown"
  std::string target;  // as stored: "/y", "y", in another file "b.h5:/y"; of a hard link the other name
};

/// The links of an HDF5 file, or below one of its groups, in order; they are not followed. With
/// allow_external links to other files are followed, and listed only if they cannot be opened. Other
/// containers have no links.
std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options = {});

/// An array that a reference names: the array itself, or one in the file, folder or group that it names.
struct FoundArray {
  std::string name;  // in its file; of a group's arrays the part below the group
  ArrayReference reference;
  bool is_word = false;  // the reference names this array itself
};

namespace io {
class OpenContainer;
}

/// A file of arrays, opened once: lists its contents and opens its arrays. Arrays may outlive it, and are as
/// lazy as those of open_array; thousands may be open at a time. Thread-safe.
class ArrayFile {
 public:
  /// `reference`, without a slice, is parsed by parse_input: a file, or a group or array of one. Throws like
  /// open_array if there is no such file; an .npy file is opened with its array.
  explicit ArrayFile(std::string_view reference, const OpenOptions& options = {});
  explicit ArrayFile(ArrayReference reference, const OpenOptions& options = {});

  const ArrayReference& reference() const { return reference_; }
  /// As array_names and array_links: of another group of the file, or of the reference.
  std::vector<std::string> names(const std::string& group = "") const;
  std::vector<ArrayLink> links(const std::string& group = "") const;
  /// Attributes of a group or an array: those of an HDF5 object that are one text, integer or truth value
  /// ("true", "false"), of at most 64 KiB. Other containers have none.
  std::map<std::string, std::string> attributes(const std::string& object = "") const;
  /// The arrays of `wanted` that are in the file, or directly in the group that the reference names, and its
  /// attributes. Error{input} if there is none of them or the container holds only one array, with a hint to
  /// a group that has some.
  ArrayGroup group(const std::vector<std::string>& wanted, const std::string& group = "") const;
  /// An array by one of these names; "" is the array that the reference names.
  std::shared_ptr<const ArraySource> array(const std::string& name = "") const;
  /// The arrays of this file that a reference to it names: all, those of a group, or one.
  std::vector<FoundArray> arrays(const ArrayReference& named) const;
  /// The array that another reference to this file names, with its slice.
  std::shared_ptr<const ArraySource> array(const ArrayReference& reference) const;

 private:
  Error none_of(const std::vector<std::string>& wanted, const std::string& name) const;

  ArrayReference reference_;
  std::shared_ptr<const io::OpenContainer> container_;
};

/// An array to be written, and its name in a container of several.
struct NamedArray {
  std::string name;
  std::shared_ptr<const ArraySource> source;
};

/// Durability: the system stores the data within seconds to minutes, or it is stored before the function
/// returns. Before that a crash of the machine may lose it, or leave an empty file or zeros.
enum class Sync { later, now };

/// The region of an incomplete file that an array's elements belong to: contiguous from byte `offset` on, in
/// C order and native byte order.
struct ElementRegion {
  std::string path;  // of the temporary file
  std::string name;  // of the file in messages
  std::int64_t offset = 0;
  /// All writers are on one machine and share its page cache.
  bool is_local = false;
};

/// Writes a box of an array of this shape; `elements` are those of the box. Processes may write disjoint
/// boxes concurrently. Uses all threads if the source may be read in any order. Throws Error{output}. With
/// Sync::now the bytes written by this process are stored; the file's name is not.
void write_elements(const ElementRegion& region, const Shape& shape, const ArrayBox& box,
                    const ArraySource& elements, Sync sync = Sync::later);

/// A temporary file of another process: remove_temporary_files() of this process removes it as well, in case
/// a signal ends the other one first.
class ForeignTemporary {
 public:
  explicit ForeignTemporary(const std::string& path);
  ~ForeignTemporary();
  ForeignTemporary(const ForeignTemporary&) = delete;
  ForeignTemporary& operator=(const ForeignTemporary&) = delete;

 private:
  struct Slot;
  std::unique_ptr<Slot> slot_;
};

struct WriteOptions {
  /// Replace existing HDF5 objects (an .npy or .npz file is always replaced).
  bool overwrite = false;
  /// String attributes of the HDF5 group (or file, or dataset) that is written.
  std::map<std::string, std::string> attributes;
  /// For write_arrays: names of arrays of the set that are absent this time. Arrays of an earlier write with
  /// these names are removed (from HDF5 only with `overwrite`), so that they are not mistaken for part of
  /// this set.
  std::vector<std::string> absent = {};
  /// 1 (fast) to 9 (small): HDF5 datasets in chunks of up to 1 MiB, shuffled and gzip-compressed, .npz
  /// members deflated. 0: none. For other containers it is Error{usage}.
  int compression = 0;
  /// Names of attributes that an earlier write of the same program may have left on the group (or file): if
  /// the first of them is present, those that are not in `attributes` are removed. Other attributes stay.
  std::vector<std::string> outdated = {};
  /// If the container can lay out an array before its elements are written (.npy in a file or folder, HDF5
  /// without compression), this is called to write all of them, and the source is not read. `array` is an
  /// index of the given arrays. The bytes of the file are the same.
  std::function<void(std::size_t array, const ElementRegion& region)> fill = {};
  /// `now`: the files are stored before they are renamed, then their folders. (Pipes are exempt.)
  Sync sync = Sync::later;
};

/// Writes all arrays to an .h5 file or group in one ("out.h5:/g"), an .npz, or a directory ("out/", made if
/// missing, one NAME.npy each). Files are written atomically; an existing HDF5 file keeps its other objects;
/// a symbolic link is followed. Throws Error{output}, and Error{usage} for what no container could hold: no
/// array, two of one name, one without a name, several in an .npy file, compression that there is not.
void write_arrays(const ArrayReference& target, const std::vector<NamedArray>& arrays,
                  const WriteOptions& options = {});

/// Writes one array to exactly the reference given: an .npy file, stdout ("-"), a dataset ("x.h5:/p"; without
/// a path under its own name), a member of a new .npz. Throws as write_arrays does.
void write_array(const ArrayReference& target, const NamedArray& array, const WriteOptions& options = {});

/// Checks before any work: the folder exists and is writable, the HDF5 file is valid, no object exists
/// already. `names`: those that write_arrays (or, with one, write_array) will get.
void check_target(const ArrayReference& target, const std::vector<std::string>& names, bool several,
                  const WriteOptions& options = {});

/// A file and its new contents.
struct FileContent {
  std::string path;
  std::string bytes;
};

/// Replaces files atomically, all or none; links are followed. Throws Error{output}.
void write_files(const std::vector<FileContent>& files, Sync sync = Sync::later);

/// Checks before any work that the folder exists and the file can be created or replaced.
void check_file(const std::string& path);

/// Prints the array as text for numpy.loadtxt: the last axis on a line, a blank line between 2-D slices, bool
/// as 0 and 1, floats with as many digits as read back exactly. Throws Error{output} if `out` fails.
void print_array(std::FILE* out, const ArraySource& array);

/// Writes all of the text, bypassing the stream's buffer: unlike fwrite it also waits for a non-blocking
/// stream (a pipe or terminal that another program has set so). Throws Error{output} that begins with `name`.
void write_text(std::FILE* out, std::string_view text, std::string_view name = "standard output");

/// The name of the mapped file or dataset that contains `address`, the si_addr of a SIGBUS, or nullptr.
/// Async-signal-safe.
const char* mapped_file_at(const void* address) noexcept;

/// Removes the temporary files of writes in progress. Async-signal-safe.
void remove_temporary_files() noexcept;

}  // namespace ejk
