// Arrays in and out of files: references, opening, writing whole or not at all.
//
// A reference is one word that names one array:
//   a.npy            a NumPy file (headers 1.0 to 3.0, C or Fortran order, either byte order)
//   a.npz:name       a member of an .npz, stored or deflated; ":name" may be left out where there is only one
//   a.h5:/g/name     an HDF5 dataset (.h5 .hdf5 .hdf .he5); the path may be left out where there is only one
//   a.nc:/g/name     the same under any other suffix: what an input is, its first bytes say
//   -                an .npy stream: stdin or stdout
//   REF[0,:,8:64:2]  for inputs, a NumPy basic slice behind any of them: integers (negative from the end),
//                    start:stop:step with step ≥ 1, "..."; only what it selects is read
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

/// A reference taken apart; nothing is opened.
struct ArrayReference {
  enum class Container { npy, npz, hdf5, stream, directory };
  Container container = Container::npy;
  std::string path;              // empty for a stream
  std::string member;            // name in the .npz or path in the HDF5 file; empty: the only one there is
  std::vector<SliceItem> slice;  // empty: everything
  std::string text;              // as it was given

  bool is_stream() const { return container == Container::stream; }
  bool holds_several() const;
  /// The name of the array in its file, or that of the .npy file without its suffix; "array" for a stream.
  std::string array_name() const;
};

/// Takes a reference apart by its words alone. A path that ends in "/" is a directory; any other that does
/// not look like .npz or HDF5 is an .npy file. Throws Error{usage} for a malformed slice or an empty word.
ArrayReference parse_reference(std::string_view text);

/// The same for an input, which is looked at: what a regular file is, its first bytes say, whatever its
/// suffix (an HDF5 file may begin with a block of other data), and a folder to be read whole needs no "/" at
/// its end. What is not there, or a pipe, is taken by its words. Throws also Error{input}: for a file that
/// cannot be read, and for netCDF-3, HDF4 and MATLAB's files before 7.3, with a hint.
ArrayReference parse_input(std::string_view text);

/// The same for a target: a folder that is there needs no "/", and of all other paths only those without a
/// suffix, or with that of a container, can be written to. Throws Error{usage} for a suffix that none has.
ArrayReference parse_output(std::string_view text);

/// The reference to an array in a container, by one of its array_names(); `text` names it in a command.
ArrayReference reference_to(const ArrayReference& container, const std::string& name);

/// Splits "A,B" at commas that are outside of [], () and quotes, as in an option that takes two references. A
/// reference in double quotes is what stands between them. Throws Error{usage} for a quote that is not
/// closed.
std::vector<std::string> split_references(std::string_view text);

/// Memory that open files share, in which they hold what reading in C order comes back to: rows of HDF5's
/// chunks, decoded. Where there is too little for a row that is larger than 64 MiB, it is decoded anew for
/// each piece that is read of it.
class ReadMemory {
 public:
  explicit ReadMemory(std::int64_t bytes) : spare_(bytes) {}

  /// There is so much more of it, or less.
  void add(std::int64_t bytes) { spare_ += bytes; }
  /// Whether there were so many bytes, which are then taken.
  bool take(std::int64_t bytes);
  /// Notes that a file could use so many.
  void want(std::int64_t bytes);
  /// The most that was noted.
  std::int64_t wanted() const { return wanted_; }

 private:
  std::atomic<std::int64_t> spare_, wanted_ = 0;
};

struct OpenOptions {
  /// HDF5 external links, external storage, virtual datasets and plug-in filters read other files, or loop.
  bool allow_external = false;
  /// Bytes that an array which must be held in memory (a stream) may have; 0: no limit.
  std::int64_t max_memory = 0;
  /// Null: 1 GiB for each file.
  std::shared_ptr<ReadMemory> read_memory = nullptr;
};

/// Opens an input: reads and checks its header, nothing else (a stream, which has no second chance, is read
/// whole). Throws Error{input} whose message begins with the file's name, with a hint where one helps (the
/// nearest dataset names); Error{budget} for a stream above max_memory.
///
/// Data of .npy files and of contiguous HDF5 datasets is mapped, not copied (a file that another program cuts
/// short meanwhile then ends this one with SIGBUS, as any mapping does; mapped_file_at() says which it was).
/// Members of an .npz are read forward and their checksums verified. HDF5 is read in a process of its own, so
/// that a damaged file which upsets the HDF5 library is an Error here. Bytes of bool arrays are as in the
/// file: any but 0 is True.
std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference,
                                              const OpenOptions& options = {});
std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options = {});

/// All bytes of a file, or with "-" of standard input, which has one reader: array or text. Nothing when it
/// has more than `most`. Throws Error{input} whose message begins with the path.
std::optional<std::string> read_file(const std::string& path, std::int64_t most);

/// The names of all arrays in a container, in order: members of an .npz, dataset paths ("/g/x") of an HDF5
/// file, the .npy files of a folder ("out/") without that suffix, one empty name for an .npy file. Of a group
/// in an HDF5 file ("a.h5:/g") the paths of all datasets below it; of anything else in there its own path. With
/// allow_external, what links to other files lead to is among them. Arrays that are named by a reference alone (an
/// .npy file, "a.h5:/x") are not looked for: open_array says where there is none.
std::vector<std::string> array_names(const std::string& path, const OpenOptions& options = {});

/// A name in an HDF5 file that array_names leaves out, because it leads to something that has its own name,
/// somewhere else, or nowhere.
struct ArrayLink {
  std::string name;  // "/g/x"
  std::string kind;  // "hard", "soft", "dangling" (soft, to nothing that can be read), "external", "unknown"
  std::string
      target;  // as the link has it: "/y", "y", in another file "b.h5:/y"; of a hard link the other name
};

/// The links in an HDF5 file, or below a group in one, in order; none of them is followed. With allow_external those
/// to other files are followed, and are among these only where they lead to nothing that can be opened. Other
/// containers have none.
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

/// A file of arrays, opened once: what is in it is listed, and arrays are taken out of it, without opening it
/// anew each time. Arrays may outlive it, and are as lazy as those of open_array; thousands of them may be
/// held. Any number of threads may use it.
class ArrayFile {
 public:
  /// What a reference without a slice names, as parse_input takes it: a file, or a group or an array in one.
  /// Throws as open_array does where there is no such container; an .npy file is opened when its array is
  /// taken.
  explicit ArrayFile(std::string_view reference, const OpenOptions& options = {});
  explicit ArrayFile(ArrayReference reference, const OpenOptions& options = {});

  const ArrayReference& reference() const { return reference_; }
  /// As array_names and array_links say: of another group of the file, or of the reference.
  std::vector<std::string> names(const std::string& group = "") const;
  std::vector<ArrayLink> links(const std::string& group = "") const;
  /// What a file says of a group or an array in it: the attributes of an HDF5 object that are one text, whole
  /// number or truth value ("true", "false"), of at most 64 KiB. Other containers have none.
  std::map<std::string, std::string> attributes(const std::string& object = "") const;
  /// Those of the arrays `wanted` that are in the file, or directly in the group that the reference names,
  /// with the attributes of that. Error{input} where it holds none of them or is no container of several, with
  /// a hint that names a group which does.
  ArrayGroup group(const std::vector<std::string>& wanted, const std::string& group = "") const;
  /// An array by one of these names; what the reference names by "".
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

/// An array to be written, and the name it has in a container of several.
struct NamedArray {
  std::string name;
  std::shared_ptr<const ArraySource> source;
};

/// When what was written has to be on its disk: when the system stores it, in seconds to minutes, or before the
/// function returns. Until then a crash of the machine may lose it, or leave the file empty or with zeros in it.
enum class Sync { later, now };

/// Where the elements of an array belong in a file that is laid out and not complete: C order, the machine's
/// byte order, one after the other from byte `offset` on.
struct ElementRegion {
  std::string path;  // the temporary one
  std::string name;  // what messages call the file
  std::int64_t offset = 0;
  /// All who write there are on one machine, which keeps one copy of the file in memory.
  bool is_local = false;
};

/// Writes a box of an array of this shape to its place; `elements` are the box's. Any number of processes may
/// do so at once, each with boxes of its own, which lie within the shape. On all threads where the source may
/// be read in any order. Throws Error{output}. With Sync::now what this process, perhaps on a machine of its own, has written is stored; the
/// file's name is not.
void write_elements(const ElementRegion& place, const Shape& shape, const ArrayBox& box,
                    const ArraySource& elements, Sync sync = Sync::later);

/// A file that another process has made and removes: while this lives, remove_temporary_files() of this one
/// does as well, since a signal may end the other before it can.
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
  /// Replace HDF5 objects that are there already (an .npy or .npz file is always replaced).
  bool overwrite = false;
  /// Written into HDF5 files, as string attributes of the group (or file, or dataset) written into.
  std::map<std::string, std::string> attributes;
  /// For write_arrays: names of arrays that belong to the set but are absent this time. What an earlier write
  /// left under them goes (in HDF5 with `overwrite` only), so that nobody takes it for a part of this set.
  std::vector<std::string> absent = {};
  /// 1 (fast) to 9 (small): HDF5 datasets in chunks of up to 1 MiB, shuffled and gzip-compressed, .npz
  /// members deflated. 0: as they are. Other containers have no compression; asking for it is Error{usage}.
  int compression = 0;
  /// Names of attributes that an earlier write of the same program may have left on the group (or file): where there is
  /// one of the first name, those that `attributes` does not have go. Attributes of other names stay.
  std::vector<std::string> outdated = {};
  /// Where a container can say where the elements of an array will stand before they are there (.npy in a file
  /// or folder, HDF5 without compression), it calls this for that array, which then writes all of them; nothing
  /// is read of its source. `array` counts those that are given. The bytes of the file are the same.
  std::function<void(std::size_t array, const ElementRegion& place)> fill = {};
  /// With `now` the files are stored before they get their names, then the folders that hold the names. (What
  /// cannot be stored, as a pipe, is written as ever.)
  Sync sync = Sync::later;
};

/// Writes all arrays to an .h5 file or group in one ("out.h5:/g"), an .npz, or a directory ("out/", made if
/// missing, one NAME.npy each). Files appear whole or not at all; an existing HDF5 file keeps its other
/// objects; a symbolic link is followed. Throws Error{output}, and Error{usage} for what no container could hold:
/// no array, two of one name, one without a name, several in an .npy file, compression that there is not.
void write_arrays(const ArrayReference& target, const std::vector<NamedArray>& arrays,
                  const WriteOptions& options = {});

/// Writes one array to exactly the reference given: an .npy file, stdout ("-"), a dataset ("x.h5:/p"; without
/// a path under its own name), a member of a new .npz. Throws as write_arrays does.
void write_array(const ArrayReference& target, const NamedArray& array, const WriteOptions& options = {});

/// What can be known before any work is done: the folder exists and can be written, the HDF5 file can be read
/// as such, no object is in the way. `names`: those that write_arrays (or, with one, write_array) will get.
void check_target(const ArrayReference& target, const std::vector<std::string>& names, bool several,
                  const WriteOptions& options = {});

/// A file and all that is to be in it.
struct FileContent {
  std::string path;
  std::string bytes;
};

/// Writes files whole or not at all, all or none, in place of those that are there; links are followed. Throws
/// Error{output}.
void write_files(const std::vector<FileContent>& files, Sync sync = Sync::later);

/// What can be known of that before: the folder exists, the file could be made or replaced.
void check_file(const std::string& path);

/// Writes the array as text that numpy.loadtxt reads: the last axis on a line, a blank line between 2-D
/// slices, bool as 0 and 1, floats so that they read back exactly. Throws Error{output} when `out` fails.
void print_array(std::FILE* out, const ArraySource& array);

/// Writes all of the text, past the stream's own buffer: unlike fwrite it also waits where the stream does
/// not block (a pipe or terminal that another program has set so). Throws Error{output} that begins with
/// `name`.
void write_text(std::FILE* out, std::string_view text, std::string_view name = "standard output");

/// The name of the file or dataset that open_array mapped where `address` is, the si_addr of a SIGBUS;
/// nullptr where none is. Safe in a signal handler.
const char* mapped_file_at(const void* address) noexcept;

/// Removes temporary files that are being written at this moment. Safe in a signal handler.
void remove_temporary_files() noexcept;

}  // namespace ejk
