// A member's claimed size is checked against its stored bytes. Cost: reading forward decompresses once;
// reading backwards restarts a deflated member.
// tests: tests/io/test_npz.cpp
#include "io/npz.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "core/named.hpp"
#include "ejk/text.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_order.hpp"
#include "io/loaded_library.hpp"
#include "io/npy.hpp"

namespace ejk::io {

namespace {

// Pointers to what was loaded, which hide the functions that <zip.h> declares.
// clang-format off
#define EJK_ZIP_FUNCTIONS(F) \
  F(zip_close) F(zip_discard) F(zip_error_code_system) F(zip_error_fini) F(zip_error_init) \
  F(zip_error_init_with_code) F(zip_error_strerror) F(zip_error_system_type) F(zip_error_to_data) \
  F(zip_fclose) F(zip_file_add) F(zip_file_get_error) F(zip_file_set_dostime) F(zip_fopen_index) \
  F(zip_fread) F(zip_fseek) F(zip_get_error) F(zip_get_name) F(zip_get_num_entries) F(zip_open) \
  F(zip_open_from_source) F(zip_set_file_compression) F(zip_source_free) F(zip_source_function) \
  F(zip_source_function_create) F(zip_source_make_command_bitmap) F(zip_stat_index) F(zip_stat_init) \
  F(zip_strerror)
// clang-format on
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declared name
#define EJK_DEFINE(name) decltype(&::name) name = nullptr;
EJK_ZIP_FUNCTIONS(EJK_DEFINE)
#undef EJK_DEFINE

void load_zip() {
  [[maybe_unused]] static const bool loaded = [] {
    const LoadedLibrary library(EJK_LIBZIP_SONAME);
#define EJK_LOAD(name) EJK_FIND(library, name, name);
    EJK_ZIP_FUNCTIONS(EJK_LOAD)
#undef EJK_LOAD
    return true;
  }();
}

// Deflate's best: 258 bytes for two bits, so no member can hold more than this many times its stored size.
constexpr std::uint64_t kMaxDeflateRatio = 1032;

constexpr std::string_view kSuffix = ".npy";

struct CloseZip {
  void operator()(zip_t* zip) const { zip_discard(zip); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Zip = std::unique_ptr<zip_t, CloseZip>;
using ZipFile = std::unique_ptr<zip_file_t, CloseZip>;

struct Member {
  std::string name;
  zip_uint64_t index = 0;
};

Error input_error(std::string_view name, std::string_view why) {
  return Error(Error::Kind::input, fmt::format("{}: {}", name, printable(why)));
}

Error invalid(std::string_view why) { return Error(Error::Kind::input, printable(why)); }

bool is_of_the_system(const zip_error_t* error) {
  return zip_error_system_type(error) == ZIP_ET_SYS && zip_error_code_system(error) != 0;
}

std::string reason(zip_error_t* error) {
  if (!is_of_the_system(error)) return zip_error_strerror(error);
  return "cannot be read: " + std::generic_category().message(zip_error_code_system(error));
}

Zip open_zip(const std::string& path) {
  const std::string name = printable(path);
  File file = open_for_reading(path, name);
  if (!is_regular(file.fd(), name))
    throw input_error(name, "an .npz must be a regular file").hint("copy it to a file first");
  if (size_of_file(file.fd(), name) == 0) throw input_error(name, "the file is empty");
  load_zip();
  int code = 0;
  Zip zip(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (zip) return zip;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string why = reason(&error);
  zip_error_fini(&error);
  throw input_error(name,
                    code == ZIP_ER_NOZIP ? "not an .npz (no zip archive, or cut off before its end)" : why);
}

// Unreadable members are no arrays, unless the system failed.
bool begins_as_npy(zip_t* zip, zip_uint64_t index) {
  const ZipFile file(zip_fopen_index(zip, index, 0));
  std::string begin(kNpyMagic.size(), '\0');
  const auto wanted = std::ssize(begin);
  const zip_int64_t got = file ? zip_fread(file.get(), begin.data(), begin.size()) : -1;
  zip_error_t* const error = file ? zip_file_get_error(file.get()) : zip_get_error(zip);
  if (got < 0 && is_of_the_system(error)) throw invalid(reason(error));
  return got == wanted && begin == kNpyMagic;
}

// "x.npy" is x; other names are arrays by their first bytes, as in NumPy. The stored name is kept if x is
// another member's, or empty among several.
std::vector<Member> members_of(zip_t* zip) {
  std::vector<Member> members;
  std::unordered_set<std::string_view> stored;
  const zip_int64_t n = zip_get_num_entries(zip, 0);
  for (zip_int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    const char* name = zip_get_name(zip, index, ZIP_FL_ENC_GUESS);
    if (name == nullptr) continue;
    if (!std::string_view(name).ends_with(kSuffix) && !begins_as_npy(zip, index)) continue;
    members.push_back({name, index});
    stored.insert(name);
  }
  for (Member& member : members) {
    if (!member.name.ends_with(kSuffix)) continue;
    const std::size_t length = member.name.size() - kSuffix.size();
    const bool is_taken = stored.contains(std::string_view(member.name).substr(0, length));
    if (!is_taken && (length > 0 || members.size() == 1)) member.name.resize(length);
  }
  return members;
}

std::vector<std::string> names_of(const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(member.name);
  return names;
}

// Members by their names, of which several may have the same.
using MembersByName = std::unordered_multimap<std::string_view, const Member*>;

const Member& find_member(const std::vector<Member>& members, const MembersByName& by_name,
                          const std::string& path, const std::string& member_name) {
  if (members.empty()) throw input_error(path, "the archive holds no array");
  if (member_name.empty()) {
    if (members.size() == 1) return members[0];
    throw input_error(path, fmt::format("holds {} arrays, and none is named", members.size()))
        .hint(fmt::format("write {}:NAME with one of {}", path, listed(names_of(members))));
  }
  std::string_view wanted = member_name;
  while (true) {
    const auto [first, last] = by_name.equal_range(wanted);
    if (first != last) {
      if (std::next(first) != last)
        throw input_error(path, fmt::format("two members are named '{}'", printable(wanted)));
      return *first->second;
    }
    // "x.npy" may be written for "x".
    if (wanted.size() < member_name.size() || !wanted.ends_with(kSuffix)) break;
    wanted.remove_suffix(kSuffix.size());
  }
  const std::vector<std::string> names = names_of(members);
  Error error = input_error(path, fmt::format("holds no array '{}'", printable(member_name)));
  if (const auto nearest = nearest_name(member_name, names))
    throw error.hint("did you mean " + path + ":" + printable(*nearest) + "?");
  throw error.hint("it holds " + listed(names));
}

class MemberReader;

// An archive that is open. libzip reads all its members through one file: one thread at a time.
struct Archive {
  Zip zip;
  std::vector<Member> members;
  MembersByName by_name;
  std::vector<MemberReader*> open;  // the last few that were begun
  std::mutex mutex;
};

// One member's bytes at any offset. Few are open at a time: an inflater takes 50 KB. Errors do not name the
// member.
class MemberReader {
 public:
  MemberReader(std::shared_ptr<Archive> archive, zip_uint64_t index)
      : archive_(std::move(archive)), index_(index) {
    const std::lock_guard lock(archive_->mutex);
    zip_stat_t status;
    zip_stat_init(&status);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(archive_->zip.get(), index, 0, &status) != 0 || (status.valid & kNeeded) != kNeeded)
      throw invalid("the archive does not say how large the member is");
    if ((status.valid & ZIP_STAT_ENCRYPTION_METHOD) != 0 && status.encryption_method != ZIP_EM_NONE)
      throw invalid("the member is encrypted");
    if (status.comp_method != ZIP_CM_STORE && status.comp_method != ZIP_CM_DEFLATE)
      throw invalid(
          fmt::format("the member is compressed by method {}, not stored or deflated", status.comp_method));
    stored_ = status.comp_method == ZIP_CM_STORE;
    const bool fits =
        stored_ ? status.size == status.comp_size : status.size / kMaxDeflateRatio <= status.comp_size;
    if (!fits || status.size > INT64_MAX)
      throw invalid(fmt::format("the member claims {} bytes, which its {} stored bytes cannot hold",
                                status.size, status.comp_size));
    size_ = static_cast<std::int64_t>(status.size);
    restart();
  }

  ~MemberReader() {
    const std::lock_guard lock(archive_->mutex);
    close();
  }
  MemberReader(const MemberReader&) = delete;
  MemberReader& operator=(const MemberReader&) = delete;

  std::int64_t size() const { return size_; }
  bool is_stored() const { return stored_; }

  // Copies [offset, offset + n), which lies within the member.
  void read(std::int64_t offset, std::int64_t n, std::byte* to) {
    const std::lock_guard lock(archive_->mutex);
    if (!file_) restart();
    if (offset != at_ && stored_) {
      if (zip_fseek(file_.get(), offset, SEEK_SET) != 0) fail();
      at_ = offset;
    } else if (offset < at_) {
      restart();
    }
    std::vector<std::byte> skipped;
    while (at_ < offset) {
      skipped.resize(1 << 16);
      take(skipped.data(), std::min<std::int64_t>(offset - at_, 1 << 16));
    }
    take(to, n);
    // Past the last byte the checksum of what was read in one go is compared, and nothing may follow.
    std::byte extra{};
    if (at_ != size_) return;
    const zip_int64_t more = zip_fread(file_.get(), &extra, 1);
    if (more < 0) fail();
    if (more > 0) throw invalid(fmt::format("the member holds more than the {} bytes it claims", size_));
  }

 private:
  void restart() {
    constexpr std::size_t kMostOpen = 16;
    close();
    if (archive_->open.size() == kMostOpen) archive_->open.front()->close();
    archive_->open.reserve(kMostOpen);
    file_.reset(zip_fopen_index(archive_->zip.get(), index_, 0));
    if (!file_) throw invalid(reason(zip_get_error(archive_->zip.get())));
    archive_->open.push_back(this);
  }
  void close() {
    file_.reset();
    at_ = 0;
    std::erase(archive_->open, this);
  }
  void take(std::byte* to, std::int64_t n) {
    while (n > 0) {
      const zip_int64_t got = zip_fread(file_.get(), to, static_cast<zip_uint64_t>(n));
      if (got < 0) fail();
      if (got == 0) throw invalid(fmt::format("the member claims {} bytes and holds {}", size_, at_));
      to += got, n -= got, at_ += got;
    }
  }
  [[noreturn]] void fail() {
    zip_error_t* error = zip_file_get_error(file_.get());
    const std::string why =
        is_of_the_system(error) ? reason(error) : fmt::format("the member is damaged ({})", reason(error));
    restart();  // the next reader begins anew
    throw invalid(why);
  }

  std::shared_ptr<Archive> archive_;
  zip_uint64_t index_;
  ZipFile file_;  // with the archive's mutex held
  bool stored_ = false;
  std::int64_t size_ = 0;
  std::int64_t at_ = 0;
};

// An .npy member; each contiguous range of a box is one read.
class MemberSource final : public ArraySource {
 public:
  MemberSource(std::unique_ptr<MemberReader> reader, ArrayLayout layout, std::string name)
      : ArraySource({layout.dtype, layout.shape}, std::move(name),
                    ArrayAccess(ArrayAccess::Order::sequential, storage_of(layout))),
        reader_(std::move(reader)),
        layout_(std::move(layout)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    core::named(name(), [&] { read_elements(start, count, out); });
  }

 private:
  void read_elements(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                     void* out) const {
    const std::lock_guard lock(mutex_);
    if (layout_.element_order == ElementOrder::c) {
      read_box(layout_.shape, start, count, static_cast<std::byte*>(out));
    } else {
      // The file holds the transpose in C order.
      const auto reversed = [](std::span<const std::int64_t> s) { return Shape(s.rbegin(), s.rend()); };
      const Shape box = reversed(count);
      Array transposed(dtype(), box);
      read_box(reversed(layout_.shape), reversed(start), box, transposed.data());
      const Shape strides = c_strides(box, dtype());
      copy_elements({transposed.data(), dtype(), Shape(count.begin(), count.end()), reversed(strides)}, out);
    }
    if (layout_.byte_order == ByteOrder::swapped) swap_bytes(out, element_count(count), size_of(dtype()));
  }

  void read_box(std::span<const std::int64_t> shape, std::span<const std::int64_t> start,
                std::span<const std::int64_t> count, std::byte* out) const {
    if (element_count(count) == 0) return;
    const Shape strides = c_strides(shape, dtype());
    // Trailing axes taken whole, and the one before them, make one run.
    std::size_t axis = shape.size();
    std::int64_t run = size_of(dtype());
    while (axis > 0) {
      --axis;
      run *= count[axis];
      if (count[axis] != shape[axis]) break;
    }
    std::int64_t first = layout_.offset;
    for (std::size_t d = 0; d < shape.size(); ++d) first += start[d] * strides[d];
    Shape index(axis, 0);
    while (true) {
      std::int64_t offset = first;
      for (std::size_t d = 0; d < axis; ++d) offset += index[d] * strides[d];
      reader_->read(offset, run, out);
      out += run;
      std::size_t d = axis;
      while (d > 0 && ++index[d - 1] == count[d - 1]) index[--d] = 0;
      if (d == 0) return;
    }
  }

  std::unique_ptr<MemberReader> reader_;
  ArrayLayout layout_;
  mutable std::mutex mutex_;
};

std::shared_ptr<const ArraySource> open_member(const std::shared_ptr<Archive>& archive, const Member& member,
                                               const std::string& name) {
  return core::named(name, [&] {
    auto reader = std::make_unique<MemberReader>(archive, member.index);
    std::int64_t at = 0;
    ArrayLayout layout = read_npy_header([&](void* to, std::size_t n) {
      const std::int64_t got = std::min(static_cast<std::int64_t>(n), reader->size() - at);
      reader->read(at, got, static_cast<std::byte*>(to));
      at += got;
      return static_cast<std::size_t>(got);
    });
    const std::int64_t promised = byte_count(layout.shape, layout.dtype),
                       held = reader->size() - layout.offset;
    if (promised != held)
      throw invalid(fmt::format("header promises {} bytes of data, the member holds {}", promised, held));
    layout.storage = reader->is_stored() ? "stored" : "deflated";
    return std::make_shared<MemberSource>(std::move(reader), std::move(layout), name);
  });
}

class NpzFile final : public OpenContainer {
 public:
  explicit NpzFile(const std::string& path) : path_(path), archive_(std::make_shared<Archive>()) {
    archive_->zip = open_zip(path);
    archive_->members = members_of(archive_->zip.get());
    for (const Member& member : archive_->members) archive_->by_name.emplace(member.name, &member);
  }

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const Member& member = find_member(archive_->members, archive_->by_name, printable(path_), wanted);
    return open_member(archive_, member, printable(path_ + ":" + member.name));
  }
  std::vector<std::string> names(const std::string&) const override { return names_of(archive_->members); }

 private:
  std::string path_;
  std::shared_ptr<Archive> archive_;
};

}  // namespace

std::shared_ptr<const OpenContainer> open_npz(const std::string& path, const OpenOptions&) {
  return std::make_shared<NpzFile>(path);
}

// Writing. libzip reads members through MemberBytes and writes through ArchiveFile. Exceptions cannot pass
// through it: the first is stored, and thrown after libzip has failed.

namespace {

struct FirstException {
  std::exception_ptr thrown;

  // f's result, or -1 when it throws (and ever after).
  template <class F>
  zip_int64_t run(F&& f) noexcept {
    if (thrown) return -1;
    try {
      return f();
    } catch (...) {
      thrown = std::current_exception();
      return -1;
    }
  }
};

zip_int64_t report_failure(void* data, zip_uint64_t size, zip_error_t& error) {
  return zip_error_to_data(&error, data, size);
}

// An array as the bytes of its .npy file.
class MemberBytes {
 public:
  MemberBytes(const ArraySource& source, FirstException& first)
      : source_(source), first_(first), header_(npy_header(source.dtype(), source.shape())) {
    zip_error_init_with_code(&error_, ZIP_ER_READ);
  }

  static zip_int64_t callback(void* self, void* data, zip_uint64_t size, zip_source_cmd_t command) {
    return static_cast<MemberBytes*>(self)->serve(data, size, command);
  }

 private:
  zip_int64_t serve(void* data, zip_uint64_t size, zip_source_cmd_t command) {
    switch (command) {
      case ZIP_SOURCE_OPEN:
        return first_.run([&] {
          open();
          return zip_int64_t{0};
        });
      case ZIP_SOURCE_READ:
        return first_.run([&] { return read(static_cast<std::byte*>(data), size); });
      case ZIP_SOURCE_CLOSE:
        piece_ = Array();
        return 0;
      case ZIP_SOURCE_STAT: {
        auto* status = static_cast<zip_stat_t*>(data);
        zip_stat_init(status);
        status->size =
            header_.size() + static_cast<zip_uint64_t>(byte_count(source_.shape(), source_.dtype()));
        status->comp_method = ZIP_CM_STORE;
        status->valid = ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD;
        return sizeof *status;
      }
      case ZIP_SOURCE_ERROR:
        return report_failure(data, size, error_);
      case ZIP_SOURCE_FREE:
        return 0;
      default:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                              ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
    }
  }

  void open() {
    pieces_.emplace(source_.shape(), kPieceBytes / size_of(source_.dtype()));
    const std::int64_t total = byte_count(source_.shape(), source_.dtype());
    piece_ = Array(DType::uint8, {std::min(total, kPieceBytes)});
    next_ = reinterpret_cast<const std::byte*>(header_.data());
    left_ = header_.size();
  }

  zip_int64_t read(std::byte* to, zip_uint64_t most) {
    zip_uint64_t done = 0;
    while (done < most) {
      if (left_ == 0) {
        if (!pieces_->next()) break;
        source_.read(pieces_->start(), pieces_->count(), piece_.data());
        next_ = piece_.data();
        left_ = static_cast<zip_uint64_t>(byte_count(pieces_->count(), source_.dtype()));
      }
      const zip_uint64_t n = std::min(most - done, left_);
      std::memcpy(to + done, next_, n);
      next_ += n, left_ -= n, done += n;
    }
    return static_cast<zip_int64_t>(done);
  }

  const ArraySource& source_;
  FirstException& first_;
  std::string header_;
  zip_error_t error_;
  std::optional<core::Pieces> pieces_;
  Array piece_;
  const std::byte* next_ = nullptr;  // of the header, then of the piece
  zip_uint64_t left_ = 0;
};

// The file that libzip writes the archive to.
class ArchiveFile {
 public:
  ArchiveFile(AtomicFile& file, FirstException& first) : file_(file), first_(first) {
    zip_error_init_with_code(&error_, ZIP_ER_WRITE);
  }

  static zip_int64_t callback(void* self, void* data, zip_uint64_t size, zip_source_cmd_t command) {
    return static_cast<ArchiveFile*>(self)->serve(data, size, command);
  }

 private:
  zip_int64_t serve(void* data, zip_uint64_t size, zip_source_cmd_t command) {
    switch (command) {
      case ZIP_SOURCE_STAT: {
        auto* status = static_cast<zip_stat_t*>(data);
        zip_stat_init(status);
        status->size = 0;
        status->valid = ZIP_STAT_SIZE;
        return sizeof *status;
      }
      case ZIP_SOURCE_WRITE:
        return first_.run([&] {
          file_.write(data, static_cast<std::int64_t>(size));
          return static_cast<zip_int64_t>(size);
        });
      case ZIP_SOURCE_SEEK_WRITE: {
        const auto* seek = static_cast<const zip_source_args_seek_t*>(data);
        return first_.run([&] { return position(seek->offset, seek->whence) < 0 ? -1 : 0; });
      }
      case ZIP_SOURCE_TELL_WRITE:
        return first_.run([&] { return position(0, SEEK_CUR); });
      case ZIP_SOURCE_ERROR:
        return report_failure(data, size, error_);
      case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, ZIP_SOURCE_BEGIN_WRITE,
            ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE, ZIP_SOURCE_WRITE, ZIP_SOURCE_SEEK_WRITE,
            ZIP_SOURCE_TELL_WRITE, ZIP_SOURCE_REMOVE, -1);
      default:  // opening, closing, the begin and end of writing: nothing to do, the file is open
        return 0;
    }
  }

  std::int64_t position(std::int64_t offset, int whence) {
    const off_t at = lseek(file_.fd(), offset, whence);
    if (at < 0) throw system_error(Error::Kind::output, file_.name(), errno);
    return at;
  }

  AtomicFile& file_;
  FirstException& first_;
  zip_error_t error_;
};

}  // namespace

void write_npz(const WriteJob& job) {
  load_zip();
  AtomicFile file(job.path, job.options.sync);
  file.check_room(job.bytes());
  FirstException first;
  ArchiveFile archive(file, first);
  std::vector<std::unique_ptr<MemberBytes>> members;
  const auto check = [&](bool good, const char* why) {
    if (first.thrown) std::rethrow_exception(first.thrown);
    if (!good) throw Error(Error::Kind::output, fmt::format("{}: {}", file.name(), why));
  };
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* target = zip_source_function_create(ArchiveFile::callback, &archive, &error);
  Zip zip(target == nullptr ? nullptr : zip_open_from_source(target, ZIP_CREATE | ZIP_TRUNCATE, &error));
  if (!zip) zip_source_free(target);
  check(zip != nullptr, zip_error_strerror(&error));
  for (const NamedArray& array : job.arrays) {
    members.push_back(std::make_unique<MemberBytes>(*array.source, first));
    const std::string name = array.name + std::string(kSuffix);
    // Nothing between these two may throw: the source is the archive's only once it is added.
    zip_source_t* source = zip_source_function(zip.get(), MemberBytes::callback, members.back().get());
    const zip_int64_t index = zip_file_add(zip.get(), name.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) zip_source_free(source);
    check(index >= 0, zip_strerror(zip.get()));
    const auto at = static_cast<zip_uint64_t>(index);
    // Stored by default, for reading without cost; dated 1980, for reproducible bytes.
    constexpr zip_uint16_t kMidnight = 0, kFirstOfJanuary1980 = 1 << 5 | 1;
    const auto level = static_cast<zip_uint32_t>(job.options.compression);
    check(zip_set_file_compression(zip.get(), at, level > 0 ? ZIP_CM_DEFLATE : ZIP_CM_STORE, level) == 0 &&
              zip_file_set_dostime(zip.get(), at, kMidnight, kFirstOfJanuary1980, 0) == 0,
          zip_strerror(zip.get()));
  }
  if (zip_close(zip.get()) != 0) check(false, zip_strerror(zip.get()));
  (void)zip.release();  // zip_close has freed it
  file.commit();
}

void check_npz(const WriteJob& job) {
  check_can_write(job.path);
  load_zip();
}

}  // namespace ejk::io
