// Members of .npz: names as NumPy has them, boxes of elements from a member's bytes, and the writer.
// tests: tests/io/test_npz.cpp
#include "io/npz.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "core/named.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_order.hpp"
#include "io/npy.hpp"
#include "io/zip.hpp"

namespace ejk::io {

namespace {

constexpr std::string_view kSuffix = ".npy";

struct Member {
  std::string name;
  const ZipEntry* entry = nullptr;
};

Error input_error(std::string_view name, std::string_view why) {
  return Error(Error::Kind::input, fmt::format("{}: {}", name, printable(why)));
}

std::shared_ptr<const ZipFile> open_zip(const std::string& path) {
  const std::string name = printable(path);
  return std::make_shared<ZipFile>(open_regular_file(path, name, "an .npz"), name, "an .npz");
}

// What is damaged is no array.
bool begins_as_npy(const std::shared_ptr<const ZipFile>& zip, const ZipEntry& entry) {
  try {
    ZipReader reader(zip, entry);
    std::string begin(kNpyMagic.size(), '\0');
    if (reader.bytes() < std::ssize(begin)) return false;
    reader.read(0, std::ssize(begin), reinterpret_cast<std::byte*>(begin.data()));
    return begin == kNpyMagic;
  } catch (const DamagedMember&) {
    return false;
  }
}

// "x.npy" is x, and what has another name is an array if it begins as one, as in NumPy. Where x is another
// member's own name, or the empty name would be one of several, the name stays as it is stored.
std::vector<Member> members_of(const std::shared_ptr<const ZipFile>& zip) {
  std::vector<Member> members;
  std::unordered_set<std::string_view> stored;
  for (const ZipEntry& entry : zip->entries) {
    if (!entry.name.ends_with(kSuffix) && !begins_as_npy(zip, entry)) continue;
    members.push_back({entry.name, &entry});
    stored.insert(entry.name);
  }
  for (Member& member : members) {
    if (!member.name.ends_with(kSuffix)) continue;
    const std::size_t length = member.name.size() - kSuffix.size();
    const bool is_taken = stored.contains(std::string_view(member.name).substr(0, length));
    if (!is_taken && (length > 0 || members.size() == 1)) member.name.resize(length);
  }
  return members;
}

// TorchScript's archives begin with other members than those of torch.save.
bool has_pickle(const ZipFile& zip) {
  return std::any_of(zip.entries.begin(), zip.entries.end(),
                     [](const ZipEntry& entry) { return entry.name.ends_with("/data.pkl"); });
}

std::vector<std::string> names_of(const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(member.name);
  return names;
}

// Members by their names; null for a name that several have.
using MembersByName = std::unordered_map<std::string_view, const Member*>;

const Member& find_member(const std::vector<Member>& members, const MembersByName& by_name,
                          const std::string& path, const std::string& member_name) {
  if (members.empty()) throw input_error(printable(path), "the archive holds no array");
  if (member_name.empty()) {
    if (members.size() == 1) return members[0];
    throw no_such_array(path, member_name, names_of(members));
  }
  std::string_view wanted = member_name;
  while (true) {
    if (const auto found = by_name.find(wanted); found != by_name.end()) {
      if (found->second == nullptr)
        throw input_error(printable(path), fmt::format("two members are named '{}'", printable(wanted)));
      return *found->second;
    }
    // "x.npy" may be written for "x".
    if (wanted.size() < member_name.size() || !wanted.ends_with(kSuffix)) break;
    wanted.remove_suffix(kSuffix.size());
  }
  throw no_such_array(path, member_name, names_of(members));
}

// An open archive. There may be thousands of members, and only the few that were read last keep their
// inflater.
struct Archive {
  std::shared_ptr<const ZipFile> zip;
  std::vector<Member> members;
  MembersByName by_name;
  std::mutex mutex;
  std::deque<ZipReader*> recent;

  void read(ZipReader& reader, std::int64_t offset, std::int64_t n, std::byte* to) {
    constexpr std::size_t kMostOpen = 16;
    const std::lock_guard lock(mutex);
    if (recent.empty() || recent.back() != &reader) {
      std::erase(recent, &reader);
      recent.push_back(&reader);
    }
    if (recent.size() > kMostOpen) {
      recent.front()->close();
      recent.pop_front();
    }
    reader.read(offset, n, to);
  }
  void forget(ZipReader& reader) {
    const std::lock_guard lock(mutex);
    std::erase(recent, &reader);
  }
};

// An .npy member, read box by box: each contiguous run of elements is one read of the member.
class MemberSource final : public ArraySource {
 public:
  MemberSource(std::shared_ptr<Archive> archive, std::unique_ptr<ZipReader> reader, ArrayLayout layout,
               std::string name)
      : ArraySource({layout.dtype, layout.shape}, std::move(name),
                    ArrayAccess(ArrayAccess::Order::sequential, storage_of(layout))),
        archive_(std::move(archive)),
        reader_(std::move(reader)),
        layout_(std::move(layout)) {}
  ~MemberSource() override { archive_->forget(*reader_); }
  MemberSource(const MemberSource&) = delete;
  MemberSource& operator=(const MemberSource&) = delete;

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    core::named(name(), [&] { read_elements(start, count, out); });
  }

 private:
  void read_elements(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                     void* out) const {
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
      archive_->read(*reader_, offset, run, out);
      out += run;
      std::size_t d = axis;
      while (d > 0 && ++index[d - 1] == count[d - 1]) index[--d] = 0;
      if (d == 0) return;
    }
  }

  std::shared_ptr<Archive> archive_;
  std::unique_ptr<ZipReader> reader_;
  ArrayLayout layout_;
};

std::shared_ptr<const ArraySource> open_member(const std::shared_ptr<Archive>& archive, const Member& member,
                                               const std::string& name, UntypedBytes untyped) {
  return core::named(name, [&] {
    auto reader = std::make_unique<ZipReader>(archive->zip, *member.entry);
    std::int64_t at = 0;
    ArrayLayout layout = read_npy_header(
        [&](void* to, std::size_t n) {
          const std::int64_t got = std::min(static_cast<std::int64_t>(n), reader->bytes() - at);
          reader->read(at, got, static_cast<std::byte*>(to));
          at += got;
          return static_cast<std::size_t>(got);
        },
        untyped);
    reader->close();
    const std::int64_t promised = byte_count(layout.shape, layout.dtype),
                       stored = reader->bytes() - layout.offset;
    if (promised != stored)
      throw Error(Error::Kind::input,
                  fmt::format("header promises {} bytes of data, the member holds {}", promised, stored));
    layout.storage = reader->is_stored() ? "stored" : "deflated";
    return std::make_shared<MemberSource>(archive, std::move(reader), std::move(layout), name);
  });
}

class NpzFile final : public OpenContainer {
 public:
  NpzFile(const std::string& path, UntypedBytes untyped)
      : path_(path), untyped_(untyped), archive_(std::make_shared<Archive>()) {
    archive_->zip = open_zip(path);
    archive_->members = members_of(archive_->zip);
    if (archive_->members.empty() && has_pickle(*archive_->zip))
      throw core::invalid("{}: is an archive of torch with code or objects, not with arrays alone",
                          printable(path))
          .hint("torch.save(model.state_dict(), \"x.pt\") saves tensors alone");
    for (const Member& member : archive_->members)
      if (const auto [entry, is_new] = archive_->by_name.emplace(member.name, &member); !is_new)
        entry->second = nullptr;
  }

  std::shared_ptr<const ArraySource> array(const std::string& wanted) const override {
    const Member& member = find_member(archive_->members, archive_->by_name, path_, wanted);
    return open_member(archive_, member, printable(path_ + ":" + member.name), untyped_);
  }
  std::vector<std::string> names(const std::string&) const override { return names_of(archive_->members); }

 private:
  std::string path_;
  UntypedBytes untyped_;
  std::shared_ptr<Archive> archive_;
};

}  // namespace

std::shared_ptr<const OpenContainer> open_npz(const std::string& path, const OpenOptions& options) {
  return std::make_shared<NpzFile>(path, options.untyped);
}

void write_npz(const WriteJob& job) {
  AtomicFile file(job.path, job.options.sync);
  file.check_room(job.bytes());
  ZipWriter zip(file, job.options.compression);
  for (const NamedArray& array : job.arrays) {
    const std::string header = npy_header(array.source->dtype(), array.source->shape());
    zip.begin(array.name + std::string(kSuffix),
              std::ssize(header) + byte_count(array.source->shape(), array.source->dtype()));
    write_npy(*array.source, [&](const void* data, std::int64_t n) { zip.write(data, n); });
    zip.end();
  }
  zip.finish();
  file.commit();
}

void check_npz(const WriteJob& job) { check_can_write(job.path); }

}  // namespace ejk::io
