// tests: tests/io/test_hdf5.cpp
#include "io/hdf5_worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "ejk/io.hpp"
#include "io/hdf5_chunks.hpp"
#include "io/hdf5_driver.hpp"
#include "io/hdf5_library.hpp"
#include "io/mapped_source.hpp"
#include "io/pieces.hpp"

namespace ejk::io {

namespace {

using Handle = Hdf5Handle;

constexpr std::int64_t kMemory = std::int64_t{512} << 20;  // for the library, besides chunks
constexpr std::int64_t kWrittenChunkBytes = std::int64_t{1} << 20;

// Data of this many bytes and more begins at multiples of 64, so that it can be used where it is mapped.
constexpr hsize_t kAlignFrom = 1024, kAlignment = 64;

herr_t refuse_external_link(const char*, const char*, const char*, const char*, unsigned*, hid_t,
                            void* seen) {
  *static_cast<bool*>(seen) = true;
  return -1;
}

struct Dataset {
  Handle id, type;
  ArrayLayout layout;
  std::optional<Hdf5Chunks> chunks;
};

class Server {
 public:
  Message serve(Message& request, std::span<std::byte> buffer) {
    try {
      Message reply = answer(request, buffer);
      check_written();
      return reply;
    } catch (const Error&) {
      check_written();  // whatever follows from a failed write is not the reason
      throw;
    }
  }

 private:
  Message answer(Message& request, std::span<std::byte> buffer) {
    switch (static_cast<Hdf5Call>(request.integer())) {
      case Hdf5Call::names: {
        open_file(request);
        Message reply;
        const std::vector<std::string> names = names_at(absolute(request.text()));
        reply.put(static_cast<std::int64_t>(names.size()));
        for (const std::string& name : names) reply.put(name);
        return reply;
      }
      case Hdf5Call::links: {
        open_file(request);
        Message reply;
        const std::vector<ArrayLink> links = links_below(absolute(request.text()));
        reply.put(static_cast<std::int64_t>(links.size()));
        for (const ArrayLink& link : links) reply.put(link.name).put(link.kind).put(link.target);
        return reply;
      }
      case Hdf5Call::open: {
        open_file(request);
        const std::string path = open_dataset(request.text());
        Message reply;
        reply.put(path)
            .put(static_cast<std::int64_t>(dataset_.layout.dtype))
            .put(dataset_.layout.byte_order == ByteOrder::native ? 0 : 1)
            .put(dataset_.layout.shape)
            .put(dataset_.layout.offset)
            .put(dataset_.layout.storage);
        return reply;
      }
      case Hdf5Call::read:
        read(request, buffer);
        return {};
      case Hdf5Call::check:
        check(request);
        return {};
      case Hdf5Call::begin:
        begin(request);
        return {};
      case Hdf5Call::create:
        create(request);
        return {};
      case Hdf5Call::remove:
        remove(request.text());
        return {};
      case Hdf5Call::write:
        transfer(request, buffer,
                 [](hid_t set, hid_t type, hid_t memory, hid_t file, hid_t plist, void* data) {
                   return H5Dwrite(set, type, memory, file, plist, data);
                 });
        return {};
      case Hdf5Call::finish:
        finish(request);
        return {};
    }
    throw Error(Error::Kind::internal, "an unknown request");
  }

  void check_written() const {
    if (disk_.write_error != 0)
      throw error(dataset_path_,
                  "cannot be written: " + std::generic_category().message(disk_.write_error));
  }

  // --- errors

  std::string at(std::string_view path) const { return errors_.at(path); }
  Error error(std::string_view path, std::string_view why,
              Error::Reason reason = Error::Reason::other) const {
    return errors_.error(path, why, reason);
  }
  Error library_error(std::string_view path, std::string_view doing) const {
    return errors_.library_error(path, doing);
  }
  Handle checked(hid_t id, herr_t (*close)(hid_t), std::string_view path, std::string_view doing) const {
    return errors_.checked(id, close, path, doing);
  }

  // --- the file

  void start_library() {
    allow_memory(kMemory);
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    if (!allow_external_) H5PLset_loading_state(0);
    links_ = Handle(H5Pcreate(H5P_LINK_ACCESS), H5Pclose);
    if (!allow_external_) H5Pset_elink_cb(links_.id(), refuse_external_link, &external_seen_);
  }

  void open_file(Message& request) {
    const std::string path = request.text();
    errors_.name = request.text();
    allow_external_ = request.integer() != 0;
    dataset_ = Dataset();
    file_ = Handle();
    start_library();
    open_existing(path, H5F_ACC_RDONLY);
  }

  void open_existing(const std::string& path, unsigned mode) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) throw error("", std::generic_category().message(errno));
    file_bytes_ = status.st_size;
    if (H5Fis_hdf5(path.c_str()) == 0) throw error("", "not an HDF5 file (no HDF5 signature in it)");
    file_ = checked(H5Fopen(path.c_str(), mode, hdf5_access(disk_).id()), H5Fclose, "", "cannot be opened");
  }

  // --- names and paths

  static std::string absolute(const std::string& wanted) {
    std::string path =
        fmt::format("/{}", wanted.substr(std::min(wanted.find_first_not_of('/'), wanted.size())));
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return path;
  }

  // The datasets below a group.
  std::vector<std::string> dataset_names(const std::string& group = "/") {
    std::vector<std::string> names;
    const auto visit = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
      if (info->type == H5O_TYPE_DATASET)
        static_cast<std::vector<std::string>*>(out)->push_back(fmt::format("/{}", name));
      return 0;
    };
    const Handle object =
        checked(H5Oopen(file_.id(), group.c_str(), links_.id()), H5Oclose, group, "cannot be opened");
    if (H5Ovisit2(object.id(), H5_INDEX_NAME, H5_ITER_INC, visit, &names, H5O_INFO_BASIC) < 0)
      throw library_error(group == "/" ? "" : group, "its contents cannot be listed");
    if (group != "/")
      for (std::string& name : names) name.insert(0, group);
    return names;
  }

  std::vector<std::string> names_at(const std::string& path) {
    return find(path) == Found::group ? dataset_names(path) : std::vector{path};
  }

  // What names_at() does not name: links that are no object's first name.
  std::vector<ArrayLink> links_below(const std::string& group) {
    struct Visit {
      std::string group;  // ends in "/"
      std::unordered_map<haddr_t, std::string> first_names;
      std::vector<ArrayLink> links;
    } visit{group == "/" ? group : group + "/", {}, {}};
    if (find(group) != Found::group) return {};
    const Handle object =
        checked(H5Oopen(file_.id(), group.c_str(), links_.id()), H5Oclose, group, "cannot be opened");
    H5O_info_t info{};
    if (H5Oget_info2(object.id(), &info, H5O_INFO_BASIC) >= 0) visit.first_names[info.addr] = group;
    const auto note = [](hid_t parent, const char* name, const H5L_info_t* link, void* out) -> herr_t {
      Visit& seen = *static_cast<Visit*>(out);
      std::string path = seen.group + name;
      if (link->type == H5L_TYPE_HARD) {
        const auto [at, is_first] = seen.first_names.try_emplace(link->u.address, path);
        if (!is_first) seen.links.push_back({std::move(path), "hard", at->second});
        return 0;
      }
      std::string value(link->u.val_size + 1, '\0');
      if (H5Lget_val(parent, name, value.data(), link->u.val_size, H5P_DEFAULT) < 0) return -1;
      const char *file = nullptr, *target = nullptr;
      unsigned flags = 0;
      if (link->type == H5L_TYPE_SOFT)
        seen.links.push_back({std::move(path), "soft", value.substr(0, value.find('\0'))});
      else if (link->type == H5L_TYPE_EXTERNAL &&
               H5Lunpack_elink_val(value.data(), link->u.val_size, &flags, &file, &target) >= 0)
        seen.links.push_back({std::move(path), "external", fmt::format("{}:{}", file, target)});
      else
        seen.links.push_back({std::move(path), "unknown", ""});
      return 0;
    };
    if (H5Lvisit(object.id(), H5_INDEX_NAME, H5_ITER_INC, note, &visit) < 0)
      throw library_error(group == "/" ? "" : group, "its links cannot be listed");
    for (ArrayLink& link : visit.links)
      if (link.kind == "soft" && H5Oexists_by_name(file_.id(), link.name.c_str(), links_.id()) <= 0)
        link.kind = std::exchange(external_seen_, false) ? "soft" : "dangling";
    H5Eclear2(H5E_DEFAULT);
    return visit.links;
  }

  // The first few names, for a hint.
  std::string listed(std::vector<std::string> names) const {
    constexpr std::size_t kMost = 8;
    const bool cut = names.size() > kMost;
    if (cut) names.resize(kMost);
    for (std::string& name : names) name = core::printable(name, 60);
    return fmt::format("{}{}", fmt::join(names, ", "), cut ? ", ..." : "");
  }

  enum class Found { nothing, dataset, group, other };

  // What is at `path`, each link on the way looked at before it is followed.
  Found find(const std::string& path) {
    if (path == "/") return Found::group;
    for (std::size_t end = 0; end != std::string::npos;) {
      end = path.find('/', end + 1);
      const std::string prefix = path.substr(0, end);
      if (prefix.ends_with('/')) continue;  // "//" is as good as "/"
      if (H5Lexists(file_.id(), prefix.c_str(), links_.id()) <= 0) {
        H5Eclear2(H5E_DEFAULT);
        return Found::nothing;
      }
      H5L_info_t link{};
      if (H5Lget_info(file_.id(), prefix.c_str(), &link, links_.id()) < 0)
        throw library_error(prefix, "cannot be read");
      if (link.type == H5L_TYPE_EXTERNAL && !allow_external_)
        throw external(prefix, "is a link to another file");
      const htri_t leads = H5Oexists_by_name(file_.id(), prefix.c_str(), links_.id());
      if (external_seen_) throw external(prefix, "leads to another file");
      if (leads <= 0) {
        H5Eclear2(H5E_DEFAULT);
        if (link.type == H5L_TYPE_HARD) throw error(prefix, "what it names is damaged or missing");
        throw error(prefix, "is a link that leads nowhere");
      }
    }
    const Handle object =
        checked(H5Oopen(file_.id(), path.c_str(), links_.id()), H5Oclose, path, "cannot be opened");
    const H5I_type_t type = H5Iget_type(object.id());
    return type == H5I_DATASET ? Found::dataset : type == H5I_GROUP ? Found::group : Found::other;
  }

  Error external(std::string_view path, std::string_view what) const {
    return error(path, what).hint("--allow-external follows it, and reads what it names");
  }

  // --- reading

  std::string open_dataset(const std::string& wanted) {
    std::string path = wanted.empty() ? only_dataset() : absolute(wanted);
    switch (find(path)) {
      case Found::dataset:
        break;
      case Found::nothing: {
        const std::vector<std::string> names = dataset_names();
        Error none = error("", fmt::format("holds no dataset {}", core::printable(path)));
        if (const auto nearest = core::nearest_name(path, names))
          throw none.hint("did you mean " + at(*nearest) + "?");
        throw none.hint(names.empty() ? "it holds no dataset at all" : "it holds " + listed(names));
      }
      case Found::group: {
        const std::vector<std::string> names = dataset_names(path);
        throw error(path, "is a group, not a dataset")
            .hint(names.empty() ? "it holds no dataset" : "it holds " + listed(names));
      }
      case Found::other:
        throw error(path, "is a type, not a dataset");
    }
    inspect(path);
    return path;
  }

  std::string only_dataset() {
    const std::vector<std::string> names = dataset_names();
    if (names.size() == 1) return names[0];
    if (names.empty()) throw error("", "holds no dataset");
    throw error("", fmt::format("holds {} datasets, and none is named", names.size()))
        .hint(fmt::format("write {}:PATH with one of {}", errors_.name, listed(names)));
  }

  // Opens the dataset, and refuses it before anything is read when it is not an array that the file can hold.
  void inspect(const std::string& path) {
    const auto open = [&](hid_t access) {
      return checked(H5Dopen2(file_.id(), path.c_str(), access), H5Dclose, path, "cannot be opened");
    };
    Handle id = open(H5P_DEFAULT);
    const Handle plist = checked(H5Dget_create_plist(id.id()), H5Pclose, path, "cannot be read");
    check_stays_inside(path, plist.id());
    Dataset set;
    set.type = checked(H5Dget_type(id.id()), H5Tclose, path, "has an unreadable type");
    set.layout = layout_of(path, set.type.id(), id.id());
    const std::int64_t bytes = byte_count(set.layout.shape, set.layout.dtype);
    set.layout.offset = -1;
    const bool elsewhere = H5Pget_external_count(plist.id()) > 0 || is_in_another_file(id.id());
    if (elsewhere) file_bytes_ = INT64_MAX;  // which file it is, and its size, stays unknown here
    const auto stored = static_cast<std::int64_t>(std::min<hsize_t>(H5Dget_storage_size(id.id()), INT64_MAX));
    H5Eclear2(H5E_DEFAULT);
    switch (H5Pget_layout(plist.id())) {
      case H5D_CONTIGUOUS: {
        const haddr_t offset = H5Dget_offset(id.id());
        H5Eclear2(H5E_DEFAULT);
        if (elsewhere || offset == HADDR_UNDEF) break;  // never written: all fill values
        const auto end =
            core::checked_add(static_cast<std::int64_t>(std::min<haddr_t>(offset, INT64_MAX)), bytes);
        if (stored < bytes || !end || *end > file_bytes_)
          throw errors_.claims_too_much(
              path, bytes,
              fmt::format("the file of {} bytes cannot hold from byte {} on", file_bytes_, offset));
        set.layout.offset = static_cast<std::int64_t>(offset);
        break;
      }
      case H5D_COMPACT:
        if (stored < bytes)
          throw errors_.claims_too_much(path, bytes, fmt::format("its {} stored bytes cannot hold", stored));
        break;
      case H5D_CHUNKED:
        set.chunks.emplace(Hdf5Chunks::Place{errors_, path, file_bytes_, stored}, id.id(), plist.id(),
                           set.layout.shape, set.layout.dtype);
        break;
      default:  // virtual, and allowed
        break;
    }
    if (set.chunks) {
      const std::int64_t cache = set.chunks->cache_bytes();
      allow_memory(kMemory + cache + 4 * set.chunks->chunk_bytes());
      // The library's own cache is for what only it can decode. Without one it copies unfiltered chunks
      // straight from the file; through it, it would take as many bytes as a chunk's entry claims, and read
      // on past them.
      const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
      constexpr std::size_t kSlots = 12421;  // a prime, some hundred times what such a row has
      H5Pset_chunk_cache(access.id(), kSlots,
                         set.chunks->decoded_here() ? 0 : static_cast<std::size_t>(cache),
                         H5D_CHUNK_CACHE_W0_DEFAULT);
      id = Handle();
      id = open(access.id());
      set.chunks->use(id.id(), set.type.id());
    }
    set.layout.storage = storage_words(plist.id());
    if (set.chunks) set.layout.storage += set.chunks->written();
    set.id = std::move(id);
    dataset_ = std::move(set);
    dataset_path_ = path;
  }

  // Nothing for contiguous data, "chunks of 64 x 64, shuffle, gzip".
  static std::string storage_words(hid_t plist) {
    std::string words;
    if (H5Pget_layout(plist) == H5D_COMPACT) words = "compact";
    if (H5Pget_layout(plist) == H5D_VIRTUAL) words = "virtual";
    if (H5Pget_layout(plist) == H5D_CHUNKED) {
      std::vector<hsize_t> lengths(H5S_MAX_RANK);
      const int rank = H5Pget_chunk(plist, static_cast<int>(lengths.size()), lengths.data());
      lengths.resize(static_cast<std::size_t>(std::max(rank, 0)));
      words = fmt::format("chunks of {}", fmt::join(lengths, " x "));
    }
    for (const Hdf5FilterEntry& filter : hdf5_filters(plist))
      words += ", " + (filter.id == H5Z_FILTER_DEFLATE ? "gzip" : core::printable(filter.name, 20));
    return words;
  }

  // Behind an external link that was followed.
  bool is_in_another_file(hid_t set) const {
    H5O_info_t object{}, root{};
    return H5Oget_info2(set, &object, H5O_INFO_BASIC) < 0 ||
           H5Oget_info2(file_.id(), &root, H5O_INFO_BASIC) < 0 || object.fileno != root.fileno;
  }

  // Refuses what would make the library read other files, run foreign code, or go round in circles.
  void check_stays_inside(const std::string& path, hid_t plist) {
    if (H5Pget_layout(plist) == H5D_VIRTUAL && !allow_external_)
      throw external(path, "is a virtual dataset, made of parts of other datasets");
    if (H5Pget_external_count(plist) > 0 && !allow_external_)
      throw external(path, "keeps its data in other files");
    bool deflated = false;
    for (const Hdf5FilterEntry& filter : hdf5_filters(plist)) {
      const std::string what =
          fmt::format("is compressed by filter {} ({})", filter.id, core::printable(filter.name, 60));
      if (filter.id < H5Z_FILTER_DEFLATE || filter.id > H5Z_FILTER_SCALEOFFSET ||
          H5Zfilter_avail(filter.id) <= 0) {
        if (!allow_external_)
          throw error(path, what + ", a plug-in").hint("--allow-external loads the HDF5 library's plug-ins");
        if (H5Zfilter_avail(filter.id) <= 0) throw error(path, what + ", and there is no plug-in for it");
      }
      const bool again = filter.id == H5Z_FILTER_DEFLATE && std::exchange(deflated, true);
      if ((again || filter.id > H5Z_FILTER_FLETCHER32) && !allow_external_)
        throw error(path,
                    fmt::format("{}{}, and only the HDF5 library, which reads past the end of a damaged "
                                "chunk, decompresses that",
                                what, again ? " twice" : ""))
            .hint("`h5repack -f GZIP=4 OLD NEW` stores it with gzip; for a file you trust, --allow-external");
    }
  }

  ArrayLayout layout_of(const std::string& path, hid_t type, hid_t set) const {
    ArrayLayout layout;
    if (H5Tget_class(type) == H5T_NO_CLASS) throw library_error(path, "has an unreadable type");
    const std::string why = read_type(type, layout);
    if (!why.empty())
      throw error(path, fmt::format("the elements are {}, which is not supported", why),
                  Error::Reason::unsupported);
    const Handle space = checked(H5Dget_space(set), H5Sclose, path, "has an unreadable shape");
    if (H5Sget_simple_extent_type(space.id()) == H5S_NULL)
      throw error(path, "the dataset is empty (a null dataspace)", Error::Reason::unsupported);
    std::vector<hsize_t> lengths(H5S_MAX_RANK), most(H5S_MAX_RANK);
    const int rank = H5Sget_simple_extent_dims(space.id(), lengths.data(), most.data());
    if (rank < 0) throw library_error(path, "has an unreadable shape");
    for (int d = 0; d < rank; ++d) {
      const hsize_t length = lengths[static_cast<std::size_t>(d)];
      if (length > INT64_MAX) throw error(path, fmt::format("axis {} claims a length of {}", d, length));
      // (What has no limit has the largest number for one.)
      if (const hsize_t limit = most[static_cast<std::size_t>(d)]; length > limit)
        throw error(path,
                    fmt::format("axis {} claims a length of {}, above its limit of {}", d, length, limit));
      layout.shape.push_back(static_cast<std::int64_t>(length));
    }
    try {
      byte_count(layout.shape, layout.dtype);
    } catch (const Error& e) {
      throw error(path, e.message());
    }
    return layout;
  }

  // Fills in dtype and byte order; returns what the type is when it is none of ours.
  static std::string read_type(hid_t type, ArrayLayout& layout) {
    const std::size_t size = H5Tget_size(type);
    const auto order = [&](hid_t t) {
      constexpr bool kLittle = std::endian::native == std::endian::little;
      const bool swapped = H5Tget_order(t) == (kLittle ? H5T_ORDER_BE : H5T_ORDER_LE);
      layout.byte_order = swapped && size > 1 ? ByteOrder::swapped : ByteOrder::native;
    };
    switch (H5Tget_class(type)) {
      case H5T_INTEGER: {
        order(type);
        const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
        const auto dtype = dtype_named(fmt::format("{}int{}", is_signed ? "" : "u", 8 * size));
        if (!dtype || H5Tget_precision(type) != 8 * size) break;
        layout.dtype = *dtype;
        return "";
      }
      case H5T_FLOAT: {
        order(type);
        std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
        if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) break;
        struct Format {
          DType dtype;
          std::size_t bytes, exponent_bits, bias;
        };
        for (const Format& f : {Format{DType::float16, 2, 5, 15}, Format{DType::bfloat16, 2, 8, 127},
                                Format{DType::float32, 4, 8, 127}, Format{DType::float64, 8, 11, 1023}}) {
          const std::size_t fraction = 8 * f.bytes - 1 - f.exponent_bits;
          if (size != f.bytes || exponent_bits != f.exponent_bits || mantissa_bits != fraction ||
              mantissa != 0 || exponent != fraction || sign != 8 * f.bytes - 1 ||
              H5Tget_ebias(type) != f.bias || H5Tget_norm(type) != H5T_NORM_IMPLIED)
            continue;
          layout.dtype = f.dtype;
          return "";
        }
        return fmt::format("{}-byte floats with {} exponent bits", size, exponent_bits);
      }
      case H5T_ENUM:
        if (size == 1 && H5Tget_nmembers(type) == 2) {
          std::int8_t no = -1, yes = -1;
          if (H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 &&
              no == 0 && yes == 1) {
            layout.dtype = DType::boolean;
            return "";
          }
          H5Eclear2(H5E_DEFAULT);
        }
        return "an enumeration";
      case H5T_STRING:
        return "strings";
      case H5T_COMPOUND:
        return "compounds (complex numbers or records)";
      case H5T_VLEN:
        return "sequences of varying length";
      case H5T_REFERENCE:
        return "references";
      case H5T_OPAQUE:
        return "opaque bytes";
      case H5T_BITFIELD:
        return "bit fields";
      case H5T_ARRAY:
        return "small arrays";
      case H5T_TIME:
        return "times";
      default:
        return "of an unknown type";
    }
    return fmt::format("{}-byte integers of {} bits", size, H5Tget_precision(type));
  }

  void read(Message& request, std::span<std::byte> buffer) {
    if (!dataset_.chunks || !dataset_.chunks->decoded_here()) {
      transfer(request, buffer, H5Dread);
      return;
    }
    const auto [start, count] = box_of(request, buffer);
    dataset_.chunks->read(start, count, buffer.data());
  }

  // The box that is asked for, which lies within the open dataset and fits into the buffer.
  std::pair<Shape, Shape> box_of(Message& request, std::span<std::byte> buffer) const {
    Shape start = request.shape(), count = request.shape();
    const Shape& shape = dataset_.layout.shape;
    bool fits = dataset_.id.valid() && start.size() == shape.size() && count.size() == shape.size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d)
      fits = start[d] >= 0 && count[d] >= 0 && start[d] <= shape[d] && count[d] <= shape[d] - start[d];
    if (!fits || byte_count(count, dataset_.layout.dtype) > static_cast<std::int64_t>(buffer.size()))
      throw Error(Error::Kind::internal, "a box outside of the dataset");
    return {std::move(start), std::move(count)};
  }

  // One box between the open dataset and the buffer; the type is the file's own, so nothing is converted.
  template <class Transfer>
  void transfer(Message& request, std::span<std::byte> buffer, Transfer&& move) {
    const auto [start, count] = box_of(request, buffer);
    const Shape& shape = dataset_.layout.shape;
    const std::vector<hsize_t> from(start.begin(), start.end()), extent(count.begin(), count.end());
    Handle file_space(H5S_ALL, [](hid_t) -> herr_t { return 0; }), memory_space;
    if (!shape.empty()) {
      file_space =
          checked(H5Dget_space(dataset_.id.id()), H5Sclose, dataset_path_, "has an unreadable shape");
      memory_space =
          Handle(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), H5Sclose);
      if (H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, from.data(), nullptr, extent.data(), nullptr) <
          0)
        throw library_error(dataset_path_, "has an unreadable shape");
    }
    const hid_t memory = shape.empty() ? H5S_ALL : memory_space.id();
    if (move(dataset_.id.id(), dataset_.type.id(), memory, file_space.id(), H5P_DEFAULT, buffer.data()) < 0)
      throw library_error(dataset_path_,
                          errors_.kind == Error::Kind::output ? "cannot be written" : "cannot be read");
  }

  // --- writing

  // Makes sure that an array can go to `path`; with a file open for writing also makes its groups and, where
  // allowed, takes away what is there.
  void clear_the_way(const std::string& path, bool overwrite, bool really) {
    for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
      const std::string group = path.substr(0, end);
      if (group.ends_with('/')) continue;
      const Found found = find(group);
      if (found == Found::nothing) {
        if (!really) return;
        make_group(group);
      } else if (found != Found::group) {
        throw error(group, "already exists, and is not a group");
      }
    }
    const Found found = find(path);
    if (found == Found::nothing) return;
    if (found == Found::group) throw error(path, "a group of that name already exists");
    if (!overwrite) throw error(path, "already exists").hint("--overwrite replaces it");
    if (really && H5Ldelete(file_.id(), path.c_str(), links_.id()) < 0)
      throw library_error(path, "cannot be replaced");
  }

  void remove(const std::string& path) {
    if (find(path) == Found::dataset && H5Ldelete(file_.id(), path.c_str(), links_.id()) < 0)
      throw library_error(path, "cannot be removed");
  }

  void make_group(const std::string& path) {
    const Handle plist(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    Handle group = checked(H5Gcreate2(file_.id(), path.c_str(), H5P_DEFAULT, plist.id(), H5P_DEFAULT),
                           H5Gclose, path, "cannot be made");
    close_written(group, path);
  }

  void check(Message& request) {
    errors_.kind = Error::Kind::output;
    const std::string path = request.text();
    errors_.name = request.text();
    start_library();
    open_existing(path, H5F_ACC_RDONLY);
    std::vector<std::string> targets;
    for (std::int64_t n = request.integer(); n > 0; --n) targets.push_back(request.text());
    const bool overwrite = request.integer() != 0;
    for (const std::string& target : targets) clear_the_way(target, overwrite, false);
  }

  void begin(Message& request) {
    errors_.kind = Error::Kind::output;
    const std::string path = request.text();
    errors_.name = request.text();
    const bool is_new = request.integer() != 0;
    overwrite_ = request.integer() != 0;
    start_library();
    const Handle access = hdf5_access(disk_), plist(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_alignment(access.id(), kAlignFrom, kAlignment);
    H5Pset_obj_track_times(plist.id(), false);  // the same work gives the same bytes
    if (is_new) {
      file_ = checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, plist.id(), access.id()), H5Fclose, "",
                      "cannot be made");
    } else {
      if (H5Fis_hdf5(path.c_str()) == 0) throw error("", "already exists, and is not an HDF5 file");
      file_ = checked(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), H5Fclose, "", "cannot be opened");
    }
  }

  // What the library writes only when something is closed is on its way when this returns.
  void close_written(Handle& handle, std::string_view path) const {
    if (!handle.close()) throw library_error(path, "cannot be written");
  }

  void close_dataset() {
    close_written(dataset_.id, dataset_path_);
    dataset_ = Dataset();
    dataset_path_.clear();
  }

  void create(Message& request) {
    close_dataset();
    dataset_path_ = request.text();
    const std::string& path = dataset_path_;
    dataset_.layout.dtype = static_cast<DType>(request.integer());
    dataset_.layout.shape = request.shape();
    const Shape& shape = dataset_.layout.shape;
    if (shape.size() > H5S_MAX_RANK)
      throw error(path, fmt::format("the array has {} axes, HDF5 allows {}", shape.size(), H5S_MAX_RANK));
    clear_the_way(path, overwrite_, true);
    const std::vector<hsize_t> lengths(shape.begin(), shape.end());
    const Handle space =
        checked(shape.empty() ? H5Screate(H5S_SCALAR)
                              : H5Screate_simple(static_cast<int>(lengths.size()), lengths.data(), nullptr),
                H5Sclose, path, "cannot be made");
    const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_layout(plist.id(), H5D_CONTIGUOUS);
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    const auto level = static_cast<unsigned>(request.integer());
    if (level > 0 && !shape.empty() && element_count(shape) > 0) {
      // Chunks that follow one another in C order, as the elements come. A chunk that two pieces share waits
      // in the cache.
      Pieces chunks(shape, kWrittenChunkBytes / size_of(dataset_.layout.dtype));
      chunks.next();
      const std::vector<hsize_t> chunk(chunks.count().begin(), chunks.count().end());
      H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
      H5Pset_shuffle(plist.id());
      H5Pset_deflate(plist.id(), level);
      constexpr std::size_t kSlots = 521;
      H5Pset_chunk_cache(access.id(), kSlots, 4 * kWrittenChunkBytes, H5D_CHUNK_CACHE_W0_DEFAULT);
    }
    H5Pset_fill_time(plist.id(), H5D_FILL_TIME_NEVER);  // every element is written
    H5Pset_obj_track_times(plist.id(), false);
    dataset_.type = make_type(dataset_.layout.dtype);
    dataset_.id = checked(H5Dcreate2(file_.id(), path.c_str(), dataset_.type.id(), space.id(), H5P_DEFAULT,
                                     plist.id(), access.id()),
                          H5Dclose, path, "cannot be made");
  }

  static Handle make_type(DType dtype) {
    if (dtype == DType::boolean) {  // as h5py does
      Handle type(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
      const std::int8_t no = 0, yes = 1;
      H5Tenum_insert(type.id(), "FALSE", &no);
      H5Tenum_insert(type.id(), "TRUE", &yes);
      return type;
    }
    if (dtype == DType::float16 || dtype == DType::bfloat16) {
      const std::size_t exponent_bits = dtype == DType::float16 ? 5 : 8, fraction = 15 - exponent_bits;
      Handle type(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
      H5Tset_fields(type.id(), 15, fraction, exponent_bits, 0, fraction);
      H5Tset_size(type.id(), 2);
      H5Tset_ebias(type.id(), dtype == DType::float16 ? 15 : 127);
      return type;
    }
    // In the order of the enumeration.
    const hid_t standard[] = {H5T_NATIVE_INT8,
                              H5T_NATIVE_INT8,
                              H5T_NATIVE_INT16,
                              H5T_NATIVE_INT32,
                              H5T_NATIVE_INT64,
                              H5T_NATIVE_UINT8,
                              H5T_NATIVE_UINT16,
                              H5T_NATIVE_UINT32,
                              H5T_NATIVE_UINT64,
                              -1,
                              -1,
                              H5T_NATIVE_FLOAT,
                              H5T_NATIVE_DOUBLE};
    return {H5Tcopy(standard[static_cast<std::size_t>(dtype)]), H5Tclose};
  }

  void finish(Message& request) {
    close_dataset();
    const std::string path = request.text();
    if (find(path) == Found::nothing) {  // a group without arrays
      make_group(path);
    }
    Handle object =
        checked(H5Oopen(file_.id(), path.c_str(), links_.id()), H5Oclose, path, "cannot be opened");
    for (std::int64_t n = request.integer(); n > 0; --n) {
      const std::string key = request.text();
      put_attribute(path, object.id(), key, request.text());
    }
    close_written(object, path);
    if (H5Fflush(file_.id(), H5F_SCOPE_GLOBAL) < 0 || !file_.close())
      throw library_error("", "cannot be written");
  }

  void put_attribute(const std::string& path, hid_t object, const std::string& key,
                     const std::string& value) {
    const auto fail = [&] { return library_error(path, fmt::format("attribute {}", core::printable(key))); };
    if (H5Aexists(object, key.c_str()) > 0 && H5Adelete(object, key.c_str()) < 0) throw fail();
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
    H5Tset_size(type.id(), H5T_VARIABLE);
    H5Tset_cset(type.id(), H5T_CSET_UTF8);
    Handle attribute(H5Acreate2(object, key.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
                     H5Aclose);
    const char* text = value.c_str();
    if (!attribute.valid() || H5Awrite(attribute.id(), type.id(), &text) < 0 || !attribute.close())
      throw fail();
  }

  // The order matters: what is closed last stands first.
  Hdf5Disk disk_;
  Handle links_, file_;
  Dataset dataset_;
  std::string dataset_path_;
  Hdf5Errors errors_;
  bool allow_external_ = false, external_seen_ = false, overwrite_ = false;
  std::int64_t file_bytes_ = 0;
};

}  // namespace

Worker::Serve make_hdf5_server() {
  return [server = std::make_shared<Server>()](Message& request, std::span<std::byte> buffer) {
    return server->serve(request, buffer);
  };
}

}  // namespace ejk::io
