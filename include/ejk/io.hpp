// Arrays in and out of files: references, opening, writing whole or not at all.
//
// A reference is one word that names one array:
//   a.npy            a NumPy file (headers 1.0 to 3.0, C or Fortran order, either byte order)
//   a.npz:name       a member of an .npz, stored or deflated; ":name" may be omitted if there is only one
//   a.h5:/g/name     an HDF5 dataset (.h5 .hdf5 .hdf .he5); the path may be omitted if there is only one
//   a.nc:/g/name     the same with any other suffix: the first bytes determine the format of an input
//   m.safetensors:name   a tensor of a safetensors file
//   model/:name      of inputs, a tensor of a folder of safetensors files, by its index if it has one; also
//                    model.safetensors.index.json:name; of PyTorch's pytorch_model*.bin likewise
//   x.pt:key.sub[0]  of inputs, a tensor in a file of torch.save (.pt .pth), by its path in dicts and lists,
//                    or all in one of those
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
  enum class Container { npy, npz, hdf5, stream, directory, safetensors, model, torch };
  Container container = Container::npy;
  std::string path;              // empty for a stream
  std::string member;            // name in the .npz or path in the HDF5 file; empty: the only one there is
  std::vector<SliceItem> slice;  // empty: everything
  std::string text;              // unparsed

  bool is_stream() const { return container == Container::stream; }
  bool holds_several() const;
  /// Whether files of the container name the type of such elements. Others have 8-bit floats as bytes.
  bool names_type(DType dtype) const;
  /// The name of the array in its file, or that of the .npy file without its suffix; "array" for a stream.
  std::string array_name() const;
};

/// Opens no file. A path that ends in "/" is a directory; one without a container's suffix is an .npy file.
/// Throws Error{usage} for a malformed slice or an empty word.
ArrayReference parse_reference(std::string_view text);

/// The same for an input. The first bytes of a regular file determine its format, and a folder needs no "/".
/// Missing files and pipes are interpreted by name. Also throws Error{input}: unreadable files, and
/// netCDF-3, HDF4 and MATLAB files before 7.3, with a hint.
ArrayReference parse_input(std::string_view text);

/// The same for a target: an existing folder needs no "/". Throws Error{usage} for suffixes of no container.
ArrayReference parse_output(std::string_view text);

/// The reference to an array of a container by one of its array_names(); `text` is its command-line form.
ArrayReference reference_to(const ArrayReference& container, const std::string& name);

/// Splits "A,B" at commas outside of [], () and double quotes, which are removed, with spaces around them. Throws Error{usage} for an
/// unclosed quote.
std::vector<std::string> split_references(std::string_view text);

/// The part of an array that a slice such as "[0,:,8:64:2]" selects, read on demand. `name`: the reference, for
/// messages. Throws Error{usage} for a malformed slice, Error{input} for one that the shape does not have.
std::shared_ptr<const ArraySource> slice_array(std::shared_ptr<const ArraySource> array,
                                               std::string_view slice, std::string_view name);

/// A memory budget shared by open files, for decoded rows of HDF5 chunks. A row of more than 64 MiB that
/// does not fit is decoded again for each box read.
class ReadMemory {
 public:
  explicit ReadMemory(std::int64_t bytes) : spare_(bytes) {}

  void add(std::int64_t bytes) { spare_ += bytes; }
  /// False, and nothing is taken, if they are not available.
  bool take(std::int64_t bytes);
  /// Records that a file could use so many bytes.
  void want(std::int64_t bytes);
  /// The largest request recorded.
  std::int64_t wanted() const { return wanted_; }

 private:
  std::atomic<std::int64_t> spare_, wanted_ = 0;
};

/// Bytes that are elements of no type of ejk: 8-bit floats of ml_dtypes, which have no type in .npy and HDF5
/// files, and packed floats of 4 and 6 bits in safetensors files.
enum class UntypedBytes {
  refuse,
  read,  // as uint8, for view_array; the last axis of packed floats counts bytes
};

struct OpenOptions {
  /// Allows what reads other files: HDF5 external links and storage, virtual datasets, plug-in filters.
  bool allow_external = false;
  /// The largest array that may be buffered in memory (a stream), in bytes; 0: no limit.
  std::int64_t max_memory = 0;
  /// Null: 1 GiB for each file.
  std::shared_ptr<ReadMemory> read_memory = nullptr;
  UntypedBytes untyped = UntypedBytes::refuse;
};

/// Reads and checks the header only (a stream is read whole). Throws Error{input} that begins with the
/// file's name, perhaps with a hint (the nearest dataset names); Error{budget} for a stream above
/// max_memory.
///
/// Data of .npy, safetensors and torch.save files and contiguous HDF5 datasets is mapped (truncation by
/// another program raises SIGBUS; see mapped_file_at). Members of an .npz are read forward, checksums
/// verified. HDF5 is read in a child process, so that a crash of its library is an Error here. Bytes of bool
/// arrays are those of the file: any but 0 is True.
std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference,
                                              const OpenOptions& options = {});
std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options = {});

/// All bytes of a file or of standard input ("-"); nothing if more than `most`. Throws Error{input}.
std::optional<std::string> read_file(const std::string& path, std::int64_t most);

/// Names of all that is in a folder, sorted. (std::filesystem's iterator ends the process without memory.)
/// Throws Error{input}.
std::vector<std::string> names_in_folder(const std::string& path);

/// The path of the only index of a model's folder, "" if it has none: of its safetensors files, or of
/// PyTorch's .bin files where there are none. Throws Error{input} for several, with a hint, and for one that
/// is no regular file.
std::string index_in_folder(const std::string& folder);

/// The paths of a model's files in its folder, sorted: *.safetensors, or else pytorch_model*.bin.
std::vector<std::string> model_files_in_folder(const std::string& folder);

/// All arrays of a container, in order: members of an .npz, tensors of a safetensors file by position and of
/// a model by its index, dataset paths ("/g/x") of an HDF5 file or group ("a.h5:/g") by creation where a group
/// tracks it, the .npy files of a folder without suffix, one empty name for an .npy file. allow_external includes targets of links to other
/// files. References to single arrays are not checked: open_array reports missing ones.
std::vector<std::string> array_names(const std::string& path, const OpenOptions& options = {});

/// A name in an HDF5 file that array_names omits: a link to an object with its own name, to another file, or
/// to nothing.
struct ArrayLink {
  std::string name;  // "/g/x"
  std::string kind;  // "hard", "soft", "dangling" (soft, to nothing that can be read), "external", "unknown"
  std::string target;  // as stored: "/y", "y", in another file "b.h5:/y"; of a hard link the other name
};

/// The links of an HDF5 file or group, in order, not followed. With allow_external external links are
/// followed, and listed only if they cannot be opened. Other containers have none.
std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options = {});

/// An array as its container's header describes it.
struct StoredArray {
  std::string name;
  std::string dtype;  // name_of, or the container's name of a type that ejk does not have: "F4"
  Shape shape;        // counts elements, of packed floats as well
  std::int64_t bytes = 0;
};

/// An array that a reference names: the array itself, or one in the file, folder or group that it names.
struct FoundArray {
  std::string name;  // in its file; of a group's arrays the part below the group
  ArrayReference reference;
  bool is_word = false;  // the reference names this array itself
};

namespace io {
class OpenContainer;
}

/// A file of arrays, opened once. Arrays may outlive it, as lazy as those of open_array. Thread-safe.
class ArrayFile {
 public:
  /// `reference`, without a slice, is parsed by parse_input: a file, or a group or array of one. Throws like
  /// open_array; an .npy file is opened with its array.
  explicit ArrayFile(std::string_view reference, const OpenOptions& options = {});
  explicit ArrayFile(ArrayReference reference, const OpenOptions& options = {});

  const ArrayReference& reference() const { return reference_; }
  /// As array_names and array_links: of another group of the file, or of the reference.
  std::vector<std::string> names(const std::string& group = "") const;
  std::vector<ArrayLink> links(const std::string& group = "") const;
  /// HDF5 attributes that are one text, integer or truth value ("true", "false"), of at most 64 KiB; a
  /// safetensors file's metadata.
  std::map<std::string, std::string> attributes(const std::string& object = "") const;
  /// All arrays, for containers whose headers list them (safetensors, models, torch.save): no array is
  /// opened, and those of unsupported types are included. Nothing for others.
  std::optional<std::vector<StoredArray>> stored_arrays() const;
  /// What the file contains beside its arrays, for warnings: a line each, which names the file. Of
  /// torch.save objects that are not tensors, by class, and tensors that are too large to be read.
  std::vector<std::string> remarks() const;
  /// The arrays of `wanted` directly in the group, and its attributes; those of the array where there is only
  /// one, which has some. Error{input} if there is none, with a hint to a group that has some.
  ArrayGroup group(const std::vector<std::string>& wanted, const std::string& group = "") const;
  /// An array by one of these names; "" is the array that the reference names.
  std::shared_ptr<const ArraySource> array(const std::string& name = "") const;
  /// The arrays of this file that a reference to it names: all, those of a group, or one.
  std::vector<FoundArray> arrays(const ArrayReference& named) const;
  /// The array that another reference to this file names, with its slice.
  std::shared_ptr<const ArraySource> array(const ArrayReference& reference) const;

 private:
  Error none_of(const std::vector<std::string>& wanted, const std::string& name) const;
  ArrayReference resolved(const ArrayReference& named) const;

  ArrayReference reference_;
  std::shared_ptr<const io::OpenContainer> container_;
};

/// An array to be written, and its name in a container of several.
struct NamedArray {
  std::string name;
  std::shared_ptr<const ArraySource> source;
};

/// Stored by the system within seconds to minutes (a crash of the machine may lose the data), or on return.
enum class Sync { later, now };

/// An array's region of an incomplete file: contiguous from `offset` on, C order, native byte order.
struct ElementRegion {
  std::string path;  // of the temporary file
  std::string name;  // of the file in messages
  std::int64_t offset = 0;
  /// All writers are on one machine and share its page cache.
  bool is_local = false;
};

/// Writes a box of an array of this shape from its `elements`. Processes may write disjoint boxes
/// concurrently. Throws Error{output}. Sync::now stores the bytes, not the file's name.
void write_elements(const ElementRegion& region, const Shape& shape, const ArrayBox& box,
                    const ArraySource& elements, Sync sync = Sync::later);

/// Until the result is destroyed, remove_temporary_files() also removes this file of another process.
std::shared_ptr<void> share_temporary(const std::string& path);

struct WriteOptions {
  /// Replace existing HDF5 objects (other files are always replaced).
  bool overwrite = false;
  /// String attributes of the HDF5 group (or file, or dataset) that is written.
  std::map<std::string, std::string> attributes;
  /// For write_arrays: arrays of the set that are absent this time. Those of an earlier write are removed
  /// (from HDF5 only with `overwrite`).
  std::vector<std::string> absent = {};
  /// 1 (fast) to 9 (small): HDF5 chunks of up to 1 MiB, shuffled and gzip-compressed; .npz members deflated.
  /// 0: none. Error{usage} for other containers.
  int compression = 0;
  /// Attributes of an earlier write of the same program: if the first is present on the group (or file),
  /// those that are not in `attributes` are removed.
  std::vector<std::string> outdated = {};
  /// If the container can lay out an array first (.npy, safetensors, HDF5 without compression), this is
  /// called to write all elements of array number `array`, and its source is not read. The file's bytes are
  /// the same.
  std::function<void(std::size_t array, const ElementRegion& region)> fill = {};
  Sync sync = Sync::later;
};

/// Writes all arrays to an .h5 file or group ("out.h5:/g"), an .npz, a .safetensors, or a directory ("out/",
/// created if missing). Files are written atomically; an HDF5 file keeps its other objects; symbolic links
/// are followed. Throws Error{output}; Error{usage} for no array, equal or empty names, several in an .npy
/// file, unsupported compression.
void write_arrays(const ArrayReference& target, const std::vector<NamedArray>& arrays,
                  const WriteOptions& options = {});

/// Writes one array to the reference: an .npy file, stdout ("-"), a dataset ("x.h5:/p"; without a path under
/// its own name), a member of a new .npz or .safetensors. Throws as write_arrays does.
void write_array(const ArrayReference& target, const NamedArray& array, const WriteOptions& options = {});

/// Checks before any work: folder writable, HDF5 file valid, no object exists. `names`: those that
/// write_arrays (or, with one, write_array) will get.
void check_target(const ArrayReference& target, const std::vector<std::string>& names, bool several,
                  const WriteOptions& options = {});

struct FileContent {
  std::string path;
  std::string bytes;
};

/// Replaces files atomically, all or none; links are followed. Throws Error{output}.
void write_files(const std::vector<FileContent>& files, Sync sync = Sync::later);

/// Checks before any work that the folder exists and the file can be created or replaced.
void check_file(const std::string& path);

/// A safetensors file of a model's folder.
struct ModelFile {
  std::string name;  // "model-00001-of-00002.safetensors"
  std::vector<NamedArray> arrays;
};

/// Writes a new folder of these files, and of others whose `path` is a name in it, whole or not at all. Memory: a
/// piece of one array. Throws Error{output}, also where something is at `folder`.
void write_model(const std::string& folder, const std::vector<ModelFile>& files,
                 const std::vector<FileContent>& others, Sync sync = Sync::later);

/// Checks before any work that write_model can create the folder.
void check_model_target(const std::string& folder);

/// Text for numpy.loadtxt: the last axis on a line, a blank line between 2-D slices, bool as 0 and 1, floats
/// that read back exactly. Throws Error{output}.
void print_array(std::FILE* out, const ArraySource& array);

/// Writes all of the text unbuffered; waits for a non-blocking stream. Throws Error{output}.
void write_text(std::FILE* out, std::string_view text, std::string_view name = "standard output");

/// The mapped file or dataset that contains `address` (si_addr of a SIGBUS), or nullptr. Async-signal-safe.
const char* mapped_file_at(const void* address) noexcept;

/// Removes the temporary files of writes in progress. Async-signal-safe.
void remove_temporary_files() noexcept;

}  // namespace ejk
