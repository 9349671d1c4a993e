// The process that calls the HDF5 library, one function per request of `protocol.hpp`. Each link of a path
// is inspected before it is followed, so that no other file is opened. A dataset's claims are compared with
// the file's size. Errors name the object and the reason; the client adds the file.
// tests: tests/io/test_hdf5.cpp
#include "io/hdf5/server.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "io/container.hpp"
#include "io/element_stream.hpp"
#include "io/hdf5/chunks.hpp"
#include "io/hdf5/driver.hpp"
#include "io/hdf5/library.hpp"
#include "io/helpers.hpp"
#include "io/mapped_source.hpp"

namespace ejk::io {

namespace {

using Handle = Hdf5Handle;

// Memory of the library besides chunks: this and an eighth of the file's own blocks.
constexpr std::int64_t kMemory = std::int64_t{512} << 20;
// Size of written chunks; the library caches four, since boxes and chunks end at different positions.
constexpr std::int64_t kWrittenChunkBytes = std::int64_t{1} << 20;

// Larger data is aligned, to be usable where it is mapped.
constexpr hsize_t kAlignFrom = 1024, kAlignment = 64;

// Tags of bfloat16 as two opaque bytes: none in h5py (ml_dtypes; "V2" in .npy files), NumPy's name with
// h5py.opaque_dtype.
constexpr std::array<std::string_view, 4> kBfloat16Tags{"", "NUMPY:<V2", "NUMPY:|V2", "bfloat16"};

herr_t refuse_external_link(const char*, const char*, const char*, const char*, unsigned*, hid_t,
                            void* seen) {
  *static_cast<bool*>(seen) = true;
  return -1;
}

struct Dataset {
  std::string path;
  Handle id, type;
  ArrayLayout layout;
  std::optional<Hdf5Chunks> chunks;
  std::int64_t granted = 0;  // bytes of a row of chunks, where that may be held whole
  std::string everywhere;    // the one element that all are, where nothing was ever written
};

class Server {
 public:
  Server(Hdf5Disk disk, std::int64_t stored_bytes, int threads)
      : threads_(threads), disk_(std::move(disk)), memory_(kMemory + stored_bytes / 8) {
    errors_.name = printable(disk_.name);
  }

  // In the child: threads first, since the memory limit excludes their stacks.
  void start() {
    if (threads_ > 1) mallopt(M_ARENA_MAX, 1);  // each would reserve address space of its own
    helpers_.emplace(threads_ - 1);
    allow_memory(memory_);
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    if (!disk_.allow_others) H5PLset_loading_state(0);
    links_ = Handle(H5Pcreate(H5P_LINK_ACCESS), H5Pclose);
    if (!disk_.allow_others) H5Pset_elink_cb(links_.id(), refuse_external_link, &external_seen_);
  }

  Message serve(Message& request, std::span<std::byte> buffer) {
    try {
      Message reply = answer(request, buffer);
      check_disk("");
      return reply;
    } catch (const Error& e) {
      check_disk(e.subject());  // whatever follows from a failed read or write is not the reason
      throw;
    }
  }

 private:
  Message answer(Message& request, std::span<std::byte> buffer) {
    external_seen_ = false;
    switch (static_cast<Hdf5Call>(request.integer())) {
      case Hdf5Call::names: {
        const Listing& listing = listing_at(request.text());
        return part_of(listing.names, request.integer(),
                       [](Message& reply, const std::string& name) { reply.put(name); });
      }
      case Hdf5Call::links: {
        const Listing& listing = listing_at(request.text());
        return part_of(listing.links, request.integer(), [](Message& reply, const ArrayLink& link) {
          reply.put(link.name).put(link.kind).put(link.target);
        });
      }
      case Hdf5Call::attributes:
        return attributes_of(absolute(request.text()));
      case Hdf5Call::open: {
        open_file(H5F_ACC_RDONLY);
        Dataset set = open_dataset(request.text());
        Message reply;
        reply.put(++last_id_)
            .put(set.path)
            .put(static_cast<std::int64_t>(set.layout.dtype))
            .put(set.layout.byte_order == ByteOrder::native ? 0 : 1)
            .put(set.layout.shape)
            .put(set.layout.offset)
            .put(set.layout.storage)
            .put(set.everywhere)
            .put(set.chunks ? set.chunks->row_bytes() : 0);
        datasets_.emplace(last_id_, std::move(set));
        return reply;
      }
      case Hdf5Call::close:
        datasets_.erase(request.integer());
        return {};
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
        transfer(written_, request, buffer, H5Dwrite);
        return {};
      case Hdf5Call::place:
        return Message().put(place());
      case Hdf5Call::finish:
        finish(request);
        return {};
    }
    throw Error(Error::Kind::internal, "an unknown request");
  }

  void check_disk(const std::string& path) {
    if (disk_.write_error != 0)
      throw error(written_.path, "cannot be written: " + std::generic_category().message(disk_.write_error));
    // Reported once: the rest of the file may be sound. A write that failed spoils the file for good.
    if (const int failed = std::exchange(disk_.read_error, 0); failed != 0)
      throw error(path, "cannot be read: " + std::generic_category().message(failed));
  }

  // --- errors

  Error error(std::string_view path, std::string_view why, Error::Code code = Error::Code::other) const {
    return errors_.error(path, why, code);
  }
  Error library_error(std::string_view path, std::string_view doing) const {
    return errors_.library_error(path, doing);
  }
  Handle checked(hid_t id, herr_t (*close)(hid_t), std::string_view path, std::string_view doing) const {
    return errors_.checked(id, close, path, doing);
  }

  // --- the file

  void open_file(unsigned mode) {
    if (file_.valid()) return;
    struct stat status {};
    if (fstat(Worker::kFile, &status) != 0) throw error("", std::generic_category().message(errno));
    file_bytes_ = status.st_size;
    Handle access = hdf5_access(disk_);
    H5Pset_alignment(access.id(), kAlignFrom, kAlignment);
    file_ = checked(H5Fopen(disk_.name.c_str(), mode, access.id()), H5Fclose, "", "cannot be opened");
  }

  // --- names and paths

  static std::string absolute(const std::string& wanted) {
    std::string path =
        fmt::format("/{}", wanted.substr(std::min(wanted.find_first_not_of('/'), wanted.size())));
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return path;
  }

  // Datasets below a group by the first name that leads to them, and the other links.
  struct Listing {
    std::string group;
    std::vector<std::string> names;
    std::vector<ArrayLink> links;
  };

  // Objects found, by the library's file number and address. Files stay open, so that their numbers stay
  // valid.
  struct FoundObjects {
    std::map<std::pair<unsigned long, haddr_t>, std::string> first_names;
    std::map<unsigned long, Handle> files;

    auto add(const Handle& object, const H5O_info_t& info, const std::string& name) {
      Handle& file = files[info.fileno];
      if (!file.valid()) file = Handle(H5Iget_file_id(object.id()), H5Fclose);
      return first_names.try_emplace({info.fileno, info.addr}, name);
    }
  };

  using Outside = std::pair<ArrayLink, int>;  // and the links to other files on its path

  // The group's own objects first, for their names; then targets of external links, breadth first.
  Listing list(const std::string& group) {
    constexpr int kMostOutside = 16;  // on one path: the library follows no more
    Listing listing{group, {}, {}};
    FoundObjects found;
    std::deque<Outside> outside;
    Handle top =
        checked(H5Oopen(file_.id(), group.c_str(), links_.id()), H5Oclose, group, "cannot be opened");
    H5O_info_t info{};
    if (H5Oget_info2(top.id(), &info, H5O_INFO_BASIC) >= 0) found.add(top, info, group);
    walk(std::move(top), info.fileno, group, 0, found, listing, outside);
    const bool follows = !outside.empty();
    for (; !outside.empty(); outside.pop_front()) {
      const auto [link, depth] = outside.front();
      Handle object;
      if (depth <= kMostOutside)
        object = Handle(H5Oopen(file_.id(), link.name.c_str(), links_.id()), H5Oclose);
      info = {};
      if (!object.valid() || H5Oget_info2(object.id(), &info, H5O_INFO_BASIC) < 0 ||
          (info.type != H5O_TYPE_GROUP && info.type != H5O_TYPE_DATASET)) {
        listing.links.push_back(link);
        continue;
      }
      const auto [at, is_first] = found.add(object, info, link.name);
      if (!is_first)
        listing.links.push_back({link.name, "hard", at->second});
      else if (info.type == H5O_TYPE_DATASET)
        listing.names.push_back(link.name);
      else
        walk(std::move(object), info.fileno, link.name, depth, found, listing, outside);
    }
    H5Eclear2(H5E_DEFAULT);
    if (follows) {
      std::sort(listing.names.begin(), listing.names.end());
      std::sort(listing.links.begin(), listing.links.end(),
                [](const ArrayLink& x, const ArrayLink& y) { return x.name < y.name; });
    }
    return listing;
  }

  // A group and all below it in its file, each opened from its parent: the library's own walk resolves from
  // the first group, which takes quadratic time in deep files.
  void walk(Handle top, unsigned long file, const std::string& group, int depth, FoundObjects& found,
            Listing& listing, std::deque<Outside>& outside) {
    struct Entry {
      std::string name;
      H5L_info_t link;
    };
    struct Level {
      Handle group;
      std::string path;  // ends in "/"
      std::vector<Entry> entries;
      std::size_t next = 0;
    };
    const auto failed = [&] {
      return library_error(group == "/" ? "" : group, "its contents cannot be listed");
    };
    std::vector<Level> levels;
    const auto enter = [&](Handle object, const std::string& path) {
      Level& level = levels.emplace_back();
      level.group = std::move(object);
      level.path = path.ends_with('/') ? path : path + "/";
      const auto note = [](hid_t, const char* name, const H5L_info_t* link, void* out) -> herr_t {
        static_cast<std::vector<Entry>*>(out)->push_back({name, *link});
        return 0;
      };
      if (H5Literate(level.group.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &level.entries) < 0)
        throw failed();
      const auto has_order = [](const Entry& entry) { return entry.link.corder_valid != 0; };
      if (std::all_of(level.entries.begin(), level.entries.end(), has_order))  // that of creation
        std::sort(level.entries.begin(), level.entries.end(),
                  [](const Entry& x, const Entry& y) { return x.link.corder < y.link.corder; });
    };
    enter(std::move(top), group);
    while (!levels.empty()) {
      Level& level = levels.back();
      if (level.next == level.entries.size()) {
        levels.pop_back();
        continue;
      }
      const Entry& entry = level.entries[level.next++];
      std::string path = level.path + entry.name;
      if (entry.link.type != H5L_TYPE_HARD) {
        ArrayLink link = link_of(level.group.id(), entry.name, entry.link, std::move(path));
        if (disk_.allow_others && link.kind == "external")
          outside.emplace_back(std::move(link), depth + 1);
        else
          listing.links.push_back(std::move(link));
        continue;
      }
      const auto [at, is_first] = found.first_names.try_emplace({file, entry.link.u.address}, path);
      if (!is_first) {
        listing.links.push_back({std::move(path), "hard", at->second});
        continue;
      }
      H5O_info_t object{};
      const char* name = entry.name.c_str();
      if (H5Oget_info_by_name2(level.group.id(), name, &object, H5O_INFO_BASIC, links_.id()) < 0)
        throw failed();
      if (object.type == H5O_TYPE_GROUP)
        enter(checked(H5Oopen(level.group.id(), name, links_.id()), H5Oclose, path, "cannot be opened"),
              path);
      else if (object.type == H5O_TYPE_DATASET)
        listing.names.push_back(std::move(path));
    }
  }

  // A soft or external link, not followed; only tests whether its target exists.
  ArrayLink link_of(hid_t parent, const std::string& name, const H5L_info_t& link, std::string path) {
    std::string value(link.u.val_size + 1, '\0');
    if (H5Lget_val(parent, name.c_str(), value.data(), link.u.val_size, H5P_DEFAULT) < 0)
      throw library_error(path, "cannot be read");
    if (link.type == H5L_TYPE_SOFT) {
      const bool leads = H5Oexists_by_name(parent, name.c_str(), links_.id()) > 0;
      const bool outside = std::exchange(external_seen_, false);
      return {std::move(path), leads || outside ? "soft" : "dangling", value.substr(0, value.find('\0'))};
    }
    const char *file = nullptr, *target = nullptr;
    unsigned flags = 0;
    if (link.type == H5L_TYPE_EXTERNAL &&
        H5Lunpack_elink_val(value.data(), link.u.val_size, &flags, &file, &target) >= 0)
      return {std::move(path), "external", fmt::format("{}:{}", file, target)};
    return {std::move(path), "unknown", ""};
  }

  // Cached: requested in parts, and for each missing array.
  const Listing& listing_of(const std::string& group) {
    if (!listing_ || listing_->group != group) listing_ = list(group);
    return *listing_;
  }

  // The same for any name: of what is no group, itself.
  const Listing& listing_at(const std::string& wanted) {
    open_file(H5F_ACC_RDONLY);
    const std::string path = absolute(wanted);
    if (find(path) != Found::group) listing_ = Listing{path, {path}, {}};
    return listing_of(path);
  }

  // The total number, then those from `first` on that fit into a message.
  template <class T, class Put>
  static Message part_of(const std::vector<T>& all, std::int64_t first, Put&& put) {
    constexpr std::size_t kMost = std::size_t{16} << 20;
    Message reply;
    reply.put(static_cast<std::int64_t>(all.size()));
    for (auto i = static_cast<std::size_t>(first); i < all.size(); ++i) {
      put(reply, all[i]);
      if (reply.bytes().size() > kMost) break;
    }
    return reply;
  }

  // How far a path leads: the last object on it, and the length of the path up to there.
  struct Reached {
    Handle object;
    std::size_t length = 1;
  };

  // Each link is inspected before it is followed.
  Reached reach(const std::string& path) {
    Reached reached{checked(H5Oopen(file_.id(), "/", links_.id()), H5Oclose, "", "cannot be opened")};
    Handle& object = reached.object;
    for (std::size_t begin = 1, end = 0; begin < path.size(); begin = end + 1) {
      end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      if (name.empty()) continue;  // "//" is as good as "/"
      const auto so_far = [&] { return path.substr(0, end); };
      if (H5Iget_type(object.id()) != H5I_GROUP) return reached;
      const htri_t exists = H5Lexists(object.id(), name.c_str(), links_.id());
      if (exists < 0) throw library_error(so_far(), "cannot be looked for");
      if (exists == 0) return reached;
      H5L_info_t link{};
      if (H5Lget_info(object.id(), name.c_str(), &link, links_.id()) < 0)
        throw library_error(so_far(), "cannot be read");
      if (link.type == H5L_TYPE_EXTERNAL && !disk_.allow_others)
        throw error(so_far(), "is a link to another file", Error::Code::external);
      const htri_t leads = H5Oexists_by_name(object.id(), name.c_str(), links_.id());
      if (external_seen_) throw error(so_far(), "leads to another file", Error::Code::external);
      if (leads <= 0) {
        H5Eclear2(H5E_DEFAULT);
        if (link.type == H5L_TYPE_HARD) throw error(so_far(), "what it names is damaged or missing");
        const ArrayLink to = link_of(object.id(), name, link, so_far());
        throw error(so_far(), "is a link that leads nowhere" +
                                  (to.target.empty() ? "" : ": to " + printable(to.target, 60)));
      }
      object =
          checked(H5Oopen(object.id(), name.c_str(), links_.id()), H5Oclose, so_far(), "cannot be opened");
      reached.length = end;
    }
    reached.length = path.size();
    return reached;
  }

  enum class Found { nothing, dataset, group, other };

  static Found kind_of(const Handle& object) {
    const H5I_type_t type = H5Iget_type(object.id());
    return type == H5I_DATASET ? Found::dataset : type == H5I_GROUP ? Found::group : Found::other;
  }

  Found find(const std::string& path) {
    const Reached reached = reach(path);
    return reached.length < path.size() ? Found::nothing : kind_of(reached.object);
  }

  // --- reading

  Dataset open_dataset(const std::string& wanted) {
    const std::string path = wanted.empty() ? only_dataset() : absolute(wanted);
    switch (find(path)) {
      case Found::dataset:
        break;
      case Found::nothing: {
        const std::vector<std::string>& names = listing_of("/").names;
        Error none = error("", fmt::format("holds no dataset {}", printable(path)));
        if (const auto nearest = nearest_name(path, names))
          throw none.hint("did you mean " + errors_.at(*nearest) + "?");
        throw none.hint(names.empty() ? "it holds no dataset at all" : "it holds " + listed(names));
      }
      case Found::group: {
        const std::vector<std::string>& names = listing_of(path).names;
        throw error(path, "is a group, not a dataset")
            .hint(names.empty() ? "it holds no dataset" : "it holds " + listed(names));
      }
      case Found::other:
        throw error(path, "is a type, not a dataset");
    }
    return inspect(path);
  }

  std::string only_dataset() {
    const std::vector<std::string> names = listing_of("/").names;
    if (names.size() == 1) return names[0];
    if (names.empty()) throw error("", "holds no dataset");
    throw error("", fmt::format("holds {} datasets, and none is named", names.size()))
        .hint(fmt::format("write {}:PATH with one of {}", errors_.name, listed(names)));
  }

  // Opens the dataset if it is a supported array that the file can hold.
  Dataset inspect(const std::string& path) {
    const auto open = [&](hid_t access) {
      return checked(H5Dopen2(file_.id(), path.c_str(), access), H5Dclose, path, "cannot be opened");
    };
    Handle id = open(H5P_DEFAULT);
    const Handle plist = checked(H5Dget_create_plist(id.id()), H5Pclose, path, "cannot be read");
    check_stays_inside(path, plist.id());
    Dataset set;
    set.path = path;
    set.type = checked(H5Dget_type(id.id()), H5Tclose, path, "has an unreadable type");
    set.layout = layout_of(path, set.type.id(), id.id());
    const std::int64_t bytes = byte_count(set.layout.shape, set.layout.dtype);
    set.layout.offset = -1;
    const bool elsewhere = H5Pget_external_count(plist.id()) > 0 || is_in_another_file(id.id());
    const std::int64_t file_bytes = elsewhere ? INT64_MAX : file_bytes_;
    const auto stored = static_cast<std::int64_t>(std::min<hsize_t>(H5Dget_storage_size(id.id()), INT64_MAX));
    H5Eclear2(H5E_DEFAULT);
    switch (H5Pget_layout(plist.id())) {
      case H5D_CONTIGUOUS: {
        const haddr_t offset = H5Dget_offset(id.id());
        H5Eclear2(H5E_DEFAULT);
        if (!elsewhere && offset == HADDR_UNDEF) set.everywhere = fill_value(plist.id(), set);
        if (elsewhere || offset == HADDR_UNDEF) break;
        const auto end =
            core::checked_add(static_cast<std::int64_t>(std::min<haddr_t>(offset, INT64_MAX)), bytes);
        if (stored < bytes || !end || *end > file_bytes)
          throw errors_.claims_too_much(
              path, bytes,
              fmt::format("the file of {} bytes cannot hold from byte {} on", file_bytes, offset));
        set.layout.offset = static_cast<std::int64_t>(offset);
        break;
      }
      case H5D_COMPACT:
        if (stored < bytes)
          throw errors_.claims_too_much(path, bytes, fmt::format("its {} stored bytes cannot hold", stored));
        break;
      case H5D_CHUNKED:
        set.chunks.emplace(Hdf5Chunks::Place{errors_, path, file_bytes, stored}, id.id(), plist.id(),
                           set.layout.shape, set.layout.dtype);
        break;
      default:  // virtual, and allowed
        break;
    }
    if (set.chunks) {
      const std::int64_t cache = set.chunks->cache_bytes();
      allow_memory(memory_ + cache + set.chunks->working_bytes(helpers_->count()));
      // The library's cache is for what only it can decode. Otherwise none: through it an unfiltered chunk
      // would take as many bytes as its index entry claims, read past the end.
      const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
      constexpr std::size_t kSlots = 12421;  // a prime, some hundred times what such a row has
      H5Pset_chunk_cache(access.id(), kSlots,
                         set.chunks->decoded_here() ? 0 : static_cast<std::size_t>(cache),
                         H5D_CHUNK_CACHE_W0_DEFAULT);
      id = Handle();
      id = open(access.id());
      set.chunks->use(id.id(), set.type.id(), fill_value(plist.id(), set), *helpers_);
    }
    set.layout.storage = storage_words(plist.id(), set.type.id());
    if (set.chunks) set.layout.storage += set.chunks->written();
    if (set.chunks && set.chunks->is_unwritten()) set.everywhere = fill_value(plist.id(), set);
    set.id = std::move(id);
    return set;
  }

  static std::string fill_value(hid_t plist, const Dataset& set) {
    H5D_fill_value_t status = H5D_FILL_VALUE_UNDEFINED;
    std::string element(static_cast<std::size_t>(size_of(set.layout.dtype)), '\0');
    if (H5Pfill_value_defined(plist, &status) >= 0 && status != H5D_FILL_VALUE_UNDEFINED &&
        H5Pget_fill_value(plist, set.type.id(), element.data()) >= 0)
      return element;
    H5Eclear2(H5E_DEFAULT);
    return "";
  }

  // Nothing for contiguous data, "chunks of 64 x 64, shuffle, gzip".
  static std::string storage_words(hid_t plist, hid_t type) {
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
      words += ", " + (filter.id == H5Z_FILTER_DEFLATE ? "gzip" : printable(filter.name, 20));
    if (H5Tget_class(type) == H5T_OPAQUE) words += words.empty() ? "opaque" : ", opaque";
    return words;
  }

  // Behind an external link that was followed.
  bool is_in_another_file(hid_t set) const {
    H5O_info_t object{}, root{};
    return H5Oget_info2(set, &object, H5O_INFO_BASIC) < 0 ||
           H5Oget_info2(file_.id(), &root, H5O_INFO_BASIC) < 0 || object.fileno != root.fileno;
  }

  // Rejects datasets for which the library would read other files, run foreign code or recurse.
  void check_stays_inside(const std::string& path, hid_t plist) {
    if (H5Pget_layout(plist) == H5D_VIRTUAL && !disk_.allow_others)
      throw error(path, "is a virtual dataset, made of parts of other datasets", Error::Code::external);
    if (H5Pget_external_count(plist) > 0 && !disk_.allow_others)
      throw error(path, "keeps its data in other files", Error::Code::external);
    bool compressed = false;
    for (const Hdf5FilterEntry& filter : hdf5_filters(plist)) {
      const auto ours = filter_kind(filter.id);
      const bool again = ours && is_compression(*ours) && std::exchange(compressed, true);
      if (ours && !again) continue;
      const std::string what =
          fmt::format("is compressed by filter {} ({})", filter.id, printable(filter.name, 60));
      if (filter.id < H5Z_FILTER_DEFLATE || filter.id > H5Z_FILTER_SCALEOFFSET ||
          H5Zfilter_avail(filter.id) <= 0) {
        if (!disk_.allow_others) throw error(path, what + ", a plug-in", Error::Code::plugin_filter);
        if (H5Zfilter_avail(filter.id) <= 0) throw error(path, what + ", and there is no plug-in for it");
      }
      if (!disk_.allow_others)
        throw error(path,
                    fmt::format("{}{}, and only the HDF5 library, which reads past the end of a damaged "
                                "chunk, decompresses that",
                                what, again ? " twice" : ""),
                    Error::Code::unchecked_filter);
    }
  }

  ArrayLayout layout_of(const std::string& path, hid_t type, hid_t set) const {
    ArrayLayout layout;
    if (H5Tget_class(type) == H5T_NO_CLASS) throw library_error(path, "has an unreadable type");
    const std::string why = read_type(type, layout);
    if (!why.empty())
      throw error(path, fmt::format("the elements are {}, which is not supported", why),
                  Error::Code::unsupported);
    const Handle space = checked(H5Dget_space(set), H5Sclose, path, "has an unreadable shape");
    if (H5Sget_simple_extent_type(space.id()) == H5S_NULL)
      throw error(path, "the dataset is empty (a null dataspace)", Error::Code::unsupported);
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

  // Sets dtype and byte order, or returns a description of an unsupported type.
  static std::string read_type(hid_t type, ArrayLayout& layout) {
    const std::size_t size = H5Tget_size(type);
    const auto order = [&](hid_t t) {
      constexpr bool kLittle = std::endian::native == std::endian::little;
      const bool swapped = H5Tget_order(t) == (kLittle ? H5T_ORDER_BE : H5T_ORDER_LE);
      layout.byte_order = swapped && size > 1 ? ByteOrder::swapped : ByteOrder::native;
    };
    const H5T_class_t kind = H5Tget_class(type);
    switch (kind) {
      case H5T_INTEGER:
      case H5T_BITFIELD: {  // an unsigned integer, as in h5py
        order(type);
        const bool is_signed = kind == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_2;
        const auto dtype = dtype_named(fmt::format("{}int{}", is_signed ? "" : "u", 8 * size));
        if (!dtype || H5Tget_precision(type) != 8 * size) break;
        layout.dtype = *dtype;
        return "";
      }
      case H5T_FLOAT: {
        order(type);
        std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
        if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) break;
        for (const DType dtype : kDTypes) {
          const FloatFormat& f = float_format(dtype);
          const auto fraction = static_cast<std::size_t>(f.mantissa_bits),
                     bits = static_cast<std::size_t>(f.exponent_bits);
          if (!is_float(dtype) || 8 * size != 1 + bits + fraction || exponent_bits != bits ||
              mantissa_bits != fraction || mantissa != 0 || exponent != fraction || sign != bits + fraction ||
              H5Tget_ebias(type) != static_cast<std::size_t>(f.bias) || H5Tget_norm(type) != H5T_NORM_IMPLIED)
            continue;
          layout.dtype = dtype;
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
      case H5T_OPAQUE: {
        const std::unique_ptr<char, herr_t (*)(void*)> tag(H5Tget_tag(type), H5free_memory);
        const std::string_view name = tag ? tag.get() : "";
        if (size != 2 || std::find(kBfloat16Tags.begin(), kBfloat16Tags.end(), name) == kBfloat16Tags.end())
          return fmt::format("{} opaque bytes{}", size,
                             name.empty() ? "" : fmt::format(" (tag '{}')", printable(name, 40)));
        layout.dtype = DType::bfloat16;
        return "";
      }
      case H5T_ARRAY:
        return "small arrays";
      case H5T_TIME:
        return "times";
      default:
        return "of an unknown type";
    }
    return fmt::format("{}-byte {} of {} bits", size, kind == H5T_INTEGER ? "integers" : "bit fields",
                       H5Tget_precision(type));
  }

  void read(Message& request, std::span<std::byte> buffer) {
    const auto at = datasets_.find(request.integer());
    if (at == datasets_.end()) throw Error(Error::Kind::internal, "a dataset that is not open");
    Dataset& set = at->second;
    if (const std::int64_t granted = request.integer(); granted > std::exchange(set.granted, granted)) {
      allow_memory(memory_ + granted + set.chunks->working_bytes(helpers_->count()));
      set.chunks->hold_row();
    }
    if (!set.chunks || !set.chunks->decoded_here()) {
      transfer(set, request, buffer, H5Dread);
      return;
    }
    const auto [start, count] = box_of(set, request, buffer);
    set.chunks->read(start, count, buffer.data());
  }

  // The requested box, checked against the dataset and the buffer.
  static std::pair<Shape, Shape> box_of(const Dataset& set, Message& request, std::span<std::byte> buffer) {
    Shape start = request.shape(), count = request.shape();
    const Shape& shape = set.layout.shape;
    bool fits = set.id.valid() && start.size() == shape.size() && count.size() == shape.size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d)
      fits = start[d] >= 0 && count[d] >= 0 && start[d] <= shape[d] && count[d] <= shape[d] - start[d];
    if (!fits || byte_count(count, set.layout.dtype) > static_cast<std::int64_t>(buffer.size()))
      throw Error(Error::Kind::internal, "a box outside of the dataset");
    return {std::move(start), std::move(count)};
  }

  // The memory type is the file's own, so nothing is converted.
  template <class Transfer>
  void transfer(const Dataset& set, Message& request, std::span<std::byte> buffer, Transfer&& move) {
    const auto [start, count] = box_of(set, request, buffer);
    const Shape& shape = set.layout.shape;
    const std::vector<hsize_t> from(start.begin(), start.end()), extent(count.begin(), count.end());
    Handle file_space(H5S_ALL, [](hid_t) -> herr_t { return 0; }), memory_space;
    if (!shape.empty()) {
      file_space = checked(H5Dget_space(set.id.id()), H5Sclose, set.path, "has an unreadable shape");
      memory_space =
          Handle(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), H5Sclose);
      if (H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, from.data(), nullptr, extent.data(), nullptr) <
          0)
        throw library_error(set.path, "has an unreadable shape");
    }
    const hid_t memory = shape.empty() ? H5S_ALL : memory_space.id();
    if (move(set.id.id(), set.type.id(), memory, file_space.id(), H5P_DEFAULT, buffer.data()) < 0)
      throw library_error(set.path,
                          errors_.kind == Error::Kind::output ? "cannot be written" : "cannot be read");
  }

  // --- attributes

  // Limits: a file may have any number of any size.
  static constexpr std::size_t kMostText = std::size_t{64} << 10, kMostTexts = 16 * kMostText;

  Message attributes_of(const std::string& path) {
    open_file(H5F_ACC_RDONLY);
    const Reached reached = reach(path);
    if (reached.length < path.size())
      throw error("", fmt::format("holds no group or dataset {}", printable(path)));
    struct Visit {
      const Server* server;
      std::vector<std::pair<std::string, std::string>> found;
      std::size_t bytes = 0;
    } visit{this, {}, 0};
    const auto note = [](hid_t object, const char* name, const H5A_info_t*, void* out) -> herr_t {
      auto& v = *static_cast<Visit*>(out);
      if (auto text = v.server->text_of_attribute(object, name)) {
        v.found.emplace_back(name, std::move(*text));
        v.bytes += v.found.back().first.size() + v.found.back().second.size();
      }
      return v.bytes < kMostTexts ? 0 : 1;
    };
    if (H5Aiterate2(reached.object.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &visit) < 0)
      throw library_error(path == "/" ? "" : path, "its attributes cannot be read");
    H5Eclear2(H5E_DEFAULT);
    Message reply;
    reply.put(static_cast<std::int64_t>(visit.found.size()));
    for (const auto& [name, text] : visit.found) reply.put(name).put(text);
    return reply;
  }

  std::optional<std::string> text_of_attribute(hid_t object, const char* name) const {
    const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
    if (!attribute.valid()) return std::nullopt;
    const Handle type(H5Aget_type(attribute.id()), H5Tclose), space(H5Aget_space(attribute.id()), H5Sclose);
    if (!type.valid() || !space.valid() || H5Sget_simple_extent_npoints(space.id()) != 1) return std::nullopt;
    const std::size_t size = H5Tget_size(type.id());
    if (size == 0 || size > kMostText) return std::nullopt;
    switch (H5Tget_class(type.id())) {
      case H5T_STRING: {
        if (H5Tis_variable_str(type.id()) > 0) {
          char* text = nullptr;
          if (H5Aread(attribute.id(), type.id(), static_cast<void*>(&text)) < 0) return std::nullopt;
          const std::unique_ptr<char, void (*)(char*)> owner(text, [](char* p) { H5free_memory(p); });
          const std::size_t length = text == nullptr ? 0 : strnlen(text, kMostText + 1);
          if (length > kMostText) return std::nullopt;
          return std::string(text == nullptr ? "" : text, length);
        }
        std::string text(size, '\0');
        if (H5Aread(attribute.id(), type.id(), text.data()) < 0) return std::nullopt;
        return text.substr(0, text.find('\0'));
      }
      case H5T_ENUM:
      case H5T_INTEGER: {
        ArrayLayout layout;
        if (!read_type(type.id(), layout).empty()) return std::nullopt;
        if (layout.dtype == DType::boolean) {
          std::int8_t value = 0;
          if (H5Aread(attribute.id(), type.id(), &value) < 0) return std::nullopt;
          return value != 0 ? "true" : "false";
        }
        const bool is_unsigned = H5Tget_sign(type.id()) == H5T_SGN_NONE;
        std::int64_t value = 0;
        if (H5Aread(attribute.id(), is_unsigned ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, &value) < 0)
          return std::nullopt;
        return is_unsigned ? fmt::format("{}", static_cast<std::uint64_t>(value)) : fmt::format("{}", value);
      }
      default:
        return std::nullopt;
    }
  }

  // --- writing

  enum class Prepare { check, make };

  // Checks that an array can go to `path`; with Prepare::make creates its groups and removes what is
  // replaced.
  void prepare_path(const std::string& path, bool overwrite, Prepare how) {
    Reached reached = reach(path);
    const Found found = kind_of(reached.object);
    if (reached.length < path.size()) {
      if (found != Found::group)
        throw error(path.substr(0, reached.length), "already exists, and is not a group");
      if (how == Prepare::make) make_groups(std::move(reached), path.substr(0, path.rfind('/')));
      return;
    }
    if (found == Found::group) throw error(path, "a group of that name already exists");
    if (!overwrite) throw error(path, "already exists", Error::Code::exists);
    reached.object.close();
    if (how == Prepare::make && H5Ldelete(file_.id(), path.c_str(), links_.id()) < 0)
      throw library_error(path, "cannot be replaced");
  }

  void remove(const std::string& path) {
    if (find(path) == Found::dataset && H5Ldelete(file_.id(), path.c_str(), links_.id()) < 0)
      throw library_error(path, "cannot be removed");
  }

  void make_groups(Reached reached, const std::string& path) {
    const Handle plist(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.id(), false);
    while (true) {
      const std::size_t begin = path.find_first_not_of('/', reached.length);
      if (begin == std::string::npos) return close_written(reached.object, path);
      reached.length = std::min(path.find('/', begin), path.size());
      const std::string so_far = path.substr(0, reached.length);
      Handle group = checked(
          H5Gcreate2(reached.object.id(), so_far.c_str() + begin, H5P_DEFAULT, plist.id(), H5P_DEFAULT),
          H5Gclose, so_far, "cannot be made");
      close_written(reached.object, so_far);
      reached.object = std::move(group);
    }
  }

  void check(Message& request) {
    errors_.kind = Error::Kind::output;
    open_file(H5F_ACC_RDONLY);
    const bool overwrite = request.integer() != 0;
    for (std::int64_t n = request.integer(); n > 0; --n)
      prepare_path(request.text(), overwrite, Prepare::check);
  }

  void begin(Message& request) {
    errors_.kind = Error::Kind::output;
    const bool is_new = request.integer() != 0;
    overwrite_ = request.integer() != 0;
    if (is_new) {
      const Handle access = hdf5_access(disk_), plist(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
      H5Pset_alignment(access.id(), kAlignFrom, kAlignment);
      H5Pset_obj_track_times(plist.id(), false);  // the same work gives the same bytes
      file_ = checked(H5Fcreate(disk_.name.c_str(), H5F_ACC_TRUNC, plist.id(), access.id()), H5Fclose, "",
                      "cannot be made");
    } else {
      open_file(H5F_ACC_RDWR);
    }
  }

  // Flushes what the library writes only on close.
  void close_written(Handle& handle, std::string_view path) const {
    if (!handle.close()) throw library_error(path, "cannot be written");
  }

  void close_dataset() {
    close_written(written_.id, written_.path);
    written_ = Dataset();
  }

  void create(Message& request) {
    close_dataset();
    written_.path = request.text();
    const std::string& path = written_.path;
    written_.layout.dtype = static_cast<DType>(request.integer());
    written_.layout.shape = request.shape();
    const Shape& shape = written_.layout.shape;
    if (shape.size() > H5S_MAX_RANK)
      throw error(path, fmt::format("the array has {} axes, HDF5 allows {}", shape.size(), H5S_MAX_RANK));
    prepare_path(path, overwrite_, Prepare::make);
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
      // Chunks in C order, as the elements come; one shared by two boxes stays in the cache.
      core::Pieces chunks(shape, kWrittenChunkBytes / size_of(written_.layout.dtype));
      chunks.next();
      const std::vector<hsize_t> chunk(chunks.count().begin(), chunks.count().end());
      H5Pset_chunk(plist.id(), static_cast<int>(chunk.size()), chunk.data());
      H5Pset_shuffle(plist.id());
      H5Pset_deflate(plist.id(), level);
      constexpr std::size_t kSlots = 521;  // the library's default; a few chunks are held
      H5Pset_chunk_cache(access.id(), kSlots, 4 * kWrittenChunkBytes, H5D_CHUNK_CACHE_W0_DEFAULT);
    }
    H5Pset_obj_track_times(plist.id(), false);
    written_.type = make_type(written_.layout.dtype);
    const std::string everywhere = request.text();
    if (everywhere.empty())
      H5Pset_fill_time(plist.id(), H5D_FILL_TIME_NEVER);  // every element is written
    else if (H5Pset_fill_value(plist.id(), written_.type.id(), everywhere.data()) < 0)
      throw library_error(path, "cannot be made");
    written_.id = checked(H5Dcreate2(file_.id(), path.c_str(), written_.type.id(), space.id(), H5P_DEFAULT,
                                     plist.id(), access.id()),
                          H5Dclose, path, "cannot be made");
  }

  // The first write allocates all elements; closing the dataset flushes the library's buffers. (Flushing the
  // file would give up reserved space.)
  std::int64_t place() {
    const std::string& path = written_.path;
    const Handle space(H5Dget_space(written_.id.id()), H5Sclose), one(H5Screate(H5S_SCALAR), H5Sclose);
    const Shape first(written_.layout.shape.size(), 0);
    const std::vector<hsize_t> start(first.begin(), first.end()), count(first.size(), 1);
    const std::byte nothing[sizeof(double)]{};
    const bool selected = start.empty() || H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(),
                                                               nullptr, count.data(), nullptr) >= 0;
    if (!selected ||
        H5Dwrite(written_.id.id(), written_.type.id(), one.id(), space.id(), H5P_DEFAULT, nothing) < 0)
      throw library_error(path, "cannot be written");
    const haddr_t offset = H5Dget_offset(written_.id.id());
    if (offset == HADDR_UNDEF) throw error(path, "has no place in the file");
    close_dataset();
    return static_cast<std::int64_t>(offset);
  }

  static Handle make_type(DType dtype) {
    if (dtype == DType::boolean) {  // as h5py does
      Handle type(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
      const std::int8_t no = 0, yes = 1;
      H5Tenum_insert(type.id(), "FALSE", &no);
      H5Tenum_insert(type.id(), "TRUE", &yes);
      return type;
    }
    if (is_float(dtype) && float_format(dtype).mantissa_bits == 0)  // HDF5 requires some
      return make_type(DType::uint8);
    if (is_float(dtype) && size_of(dtype) < 4) {
      const FloatFormat& f = float_format(dtype);
      const auto fraction = static_cast<std::size_t>(f.mantissa_bits),
                 exponent_bits = static_cast<std::size_t>(f.exponent_bits);
      Handle type(H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose);
      H5Tset_fields(type.id(), exponent_bits + fraction, fraction, exponent_bits, 0, fraction);
      H5Tset_size(type.id(), static_cast<std::size_t>(size_of(dtype)));
      H5Tset_ebias(type.id(), static_cast<std::size_t>(f.bias));
      return type;
    }
    if (is_float(dtype))
      return {H5Tcopy(dtype == DType::float32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE), H5Tclose};
    // In the order of the enumeration.
    const hid_t integers[2][4] = {
        {H5T_NATIVE_INT8, H5T_NATIVE_INT16, H5T_NATIVE_INT32, H5T_NATIVE_INT64},
        {H5T_NATIVE_UINT8, H5T_NATIVE_UINT16, H5T_NATIVE_UINT32, H5T_NATIVE_UINT64}};
    const auto n = static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::int8);
    return {H5Tcopy(integers[n / 4][n % 4]), H5Tclose};
  }

  void finish(Message& request) {
    close_dataset();
    const std::string path = request.text();
    // A group without arrays is made here.
    if (Reached reached = reach(path); reached.length < path.size()) make_groups(std::move(reached), path);
    Handle object =
        checked(H5Oopen(file_.id(), path.c_str(), links_.id()), H5Oclose, path, "cannot be opened");
    const std::int64_t outdated = request.integer();
    bool go = true;
    for (std::int64_t n = outdated; n > 0; --n) {
      const std::string key = request.text();
      const bool is_there = go && H5Aexists(object.id(), key.c_str()) > 0;
      if (is_there && H5Adelete(object.id(), key.c_str()) < 0)
        throw library_error(path, fmt::format("attribute {}", printable(key)));
      if (n == outdated) go = is_there;
    }
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
    const auto fail = [&] { return library_error(path, fmt::format("attribute {}", printable(key))); };
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

  const int threads_;
  // The order matters: the last to be closed comes first.
  std::optional<HelperThreads> helpers_;
  Hdf5Disk disk_;
  Handle links_, file_;
  std::unordered_map<std::int64_t, Dataset> datasets_;  // for reading
  std::int64_t last_id_ = 0;
  Dataset written_;
  Hdf5Errors errors_;
  std::optional<Listing> listing_;
  bool external_seen_ = false, overwrite_ = false;
  std::int64_t memory_ = 0, file_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Worker> start_hdf5(Hdf5Disk disk, std::int64_t stored_bytes, int threads) {
  load_hdf5();  // before the fork: all processes share what the loader did
  // CPU time for a request that reads the whole file several times, at most a day.
  constexpr std::int64_t kBytesPerSecond = std::int64_t{16} << 20, kDay = 86400;
  const int file = disk.fd;
  disk.fd = Worker::kFile;
  const auto server = std::make_shared<Server>(std::move(disk), stored_bytes, threads);
  return std::make_unique<Worker>(
      [server](Message& request, std::span<std::byte> buffer) { return server->serve(request, buffer); },
      Worker::Setup{
          .library = "the HDF5 library",
          .start = [server] { server->start(); },
          .file = file,
          .request_seconds = static_cast<int>(60 + std::min(stored_bytes / kBytesPerSecond, kDay))});
}

}  // namespace ejk::io
