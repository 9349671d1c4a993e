// HDF5 files of the calling process. One child process per file serves all its datasets, one request at a
// time; it starts in one or two milliseconds. After any failure it is replaced, since a damaged dataset may
// have corrupted its memory.
// tests: tests/io/test_hdf5.cpp
#include "io/hdf5/client.hpp"

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "ejk/program/text.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_order.hpp"
#include "io/element_stream.hpp"
#include "io/hdf5/server.hpp"
#include "io/mapped_source.hpp"
#include "io/other_content.hpp"
#include "io/parallel_write.hpp"

namespace ejk::io {

namespace {

Message request(Hdf5Call call) {
  Message message;
  message.put(static_cast<std::int64_t>(call));
  return message;
}

// The bytes that a file has on its disk: one with holes claims as many as it likes.
std::int64_t stored_bytes(int fd) {
  constexpr std::int64_t kBlock = 512;
  struct stat status {};
  return fstat(fd, &status) != 0 ? 0 : std::min<std::int64_t>(status.st_size, status.st_blocks * kBlock);
}

enum class Use { read, write };

// To inflate what is stored takes some ten nanoseconds a byte.
std::unique_ptr<Worker> start_process(const std::string& path, int fd, bool allow_others, Use use) {
  const std::int64_t stored = stored_bytes(fd);
  const int threads = use == Use::read ? core::threads_for(stored, 10 * static_cast<double>(stored)) : 1;
  return start_hdf5({.name = path, .fd = fd, .allow_others = allow_others}, stored, threads);
}

// Adds the names of the file and the object to an Error of the child.
template <class F>
decltype(auto) named_in(const std::string& file, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    const std::string object = printable(error.subject());
    error.about("").at(object.empty() ? file : file + ":" + object);
    throw;
  }
}

// A dataset that is open in a process, as that calls it.
struct OpenedDataset {
  std::string path;
  ArrayLayout layout;
  std::string everywhere;            // the one element that all are
  std::int64_t id = 0, process = 0;  // 0: in none
  // Bytes of a row of chunks, and what was taken to hold it.
  std::int64_t row = 0, granted = 0;
};

Error invalid_answer(const OpenedDataset& set) {
  return Error(Error::Kind::input, "the HDF5 library gave an invalid answer").about(set.path);
}

// Checks that the file can be opened and has the signature.
File open_checked(const std::string& path, const std::string& name) {
  constexpr std::string_view kWanted = "an HDF5 file";
  File file = open_regular_file(path, name, kWanted);
  if (size_of_file(file.fd(), name) == 0) throw Error(Error::Kind::input, name + ": the file is empty");
  if (!has_hdf5_signature(file.fd(), name)) {
    refuse_other_content(file.fd(), name, kWanted);
    throw Error(Error::Kind::input, name + ": not an HDF5 file (no HDF5 signature in it)");
  }
  return file;
}

class Hdf5File final : public OpenContainer, public std::enable_shared_from_this<Hdf5File> {
 public:
  Hdf5File(const std::string& path, const OpenOptions& options)
      : path_(path),
        name_(printable(path)),
        allow_external_(options.allow_external),
        memory_(options.read_memory ? options.read_memory
                                    : std::make_shared<ReadMemory>(std::int64_t{1} << 30)),
        file_(open_checked(path, name_)) {}

  std::shared_ptr<const ArraySource> array(const std::string& member) const override;
  std::vector<std::string> names(const std::string& group) const override;
  std::vector<ArrayLink> links(const std::string& group) const override;
  std::map<std::string, std::string> attributes(const std::string& object) const override;

  // A dataset that stays open to be read, until others need its place.
  void keep_open(OpenedDataset& set) const;
  // A box of it, at most as large as the buffer, to `out`. It may have to be reopened.
  void read(OpenedDataset& set, const Shape& start, const Shape& count, std::byte* out) const;
  void forget(OpenedDataset& set) const noexcept;

 private:
  // What f does with `mutex_` held; its errors get names.
  template <class F>
  decltype(auto) in_turn(F&& f) const {
    const std::lock_guard lock(mutex_);
    return named_in(name_, f);
  }
  // With `mutex_` held. Errors without names.
  Message call(const Message& message) const;
  OpenedDataset open(const std::string& member) const;
  void close(OpenedDataset& set) const noexcept;
  void take_memory(OpenedDataset& set) const;
  // What comes in parts: f takes each item out of its message.
  template <class F>
  void for_each_in_parts(Hdf5Call what, const std::string& group, F&& take) const;

  std::string path_, name_;
  bool allow_external_;
  std::shared_ptr<ReadMemory> memory_;
  File file_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Worker> process_;
  mutable std::weak_ptr<const Mapping>
      mapping_;                         // one for all datasets: the system brings in whole runs of pages
  mutable std::int64_t processes_ = 0;  // so far
  mutable std::vector<OpenedDataset*> kept_open_;  // the last few: there may be thousands
};

// A dataset that cannot be mapped: chunked, filtered, compact.
class DatasetSource final : public ArraySource {
 public:
  DatasetSource(std::shared_ptr<const Hdf5File> file, OpenedDataset set, std::string name)
      : ArraySource({set.layout.dtype, set.layout.shape}, std::move(name),
                    ArrayAccess(ArrayAccess::Order::sequential, storage_of(set.layout))),
        file_(std::move(file)),
        byte_order_(set.layout.byte_order),
        set_(std::move(set)) {
    file_->keep_open(set_);
  }
  ~DatasetSource() override { file_->forget(set_); }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t size = size_of(dtype());
    auto* to = static_cast<std::byte*>(out);
    core::for_each_piece(count, Worker::kBufferBytes / size, [&](Shape from, const Shape& extent) {
      for (std::size_t d = 0; d < from.size(); ++d) from[d] += start[d];
      file_->read(set_, from, extent, to);
      const std::int64_t n = element_count(extent);
      if (byte_order_ == ByteOrder::swapped) swap_bytes(to, n, size);
      to += n * size;
    });
  }

 private:
  std::shared_ptr<const Hdf5File> file_;
  ByteOrder byte_order_;
  mutable OpenedDataset set_;  // the file's mutex guards it
};

// A dataset of which nothing was ever written.
std::shared_ptr<const ArraySource> unwritten(const OpenedDataset& set, std::string name) {
  const ArrayLayout& layout = set.layout;
  std::string element = set.everywhere;
  if (layout.byte_order == ByteOrder::swapped) swap_bytes(element.data(), 1, size_of(layout.dtype));
  ArrayAccess access(ArrayAccess::Order::any, storage_of(layout));
  const auto* bytes = reinterpret_cast<const std::byte*>(element.data());
  access.uniform.assign(bytes, bytes + element.size());
  return generated_source(
      {layout.dtype, layout.shape}, std::move(name),
      [element](std::span<const std::int64_t>, std::span<const std::int64_t> count, void* out) {
        core::repeat_element(std::as_bytes(std::span(element)), element_count(count),
                             static_cast<std::byte*>(out));
      },
      std::move(access));
}

Message Hdf5File::call(const Message& message) const {
  if (!process_) {
    process_ = start_process(path_, file_.fd(), allow_external_, Use::read);
    ++processes_;
  }
  try {
    return process_->call(message);
  } catch (...) {
    process_.reset();
    throw;
  }
}

OpenedDataset Hdf5File::open(const std::string& member) const {
  constexpr std::size_t kMostOpen = 64;
  if (kept_open_.size() >= kMostOpen) close(*kept_open_.front());
  Message reply = call(request(Hdf5Call::open).put(member));
  OpenedDataset set;
  set.process = processes_;
  set.id = reply.integer();
  set.path = reply.text();
  const std::int64_t dtype = reply.integer();
  ArrayLayout& layout = set.layout;
  if (dtype < 0 || dtype > static_cast<std::int64_t>(DType::float64)) throw invalid_answer(set);
  layout.dtype = static_cast<DType>(dtype);
  layout.byte_order = reply.integer() == 0 ? ByteOrder::native : ByteOrder::swapped;
  layout.shape = reply.shape();
  layout.offset = reply.integer();
  layout.storage = reply.text();
  set.everywhere = reply.text();
  if (!set.everywhere.empty() && std::ssize(set.everywhere) != size_of(layout.dtype))
    throw invalid_answer(set);
  set.row = std::max<std::int64_t>(reply.integer(), 0);
  memory_->want(set.row);
  byte_count(layout.shape, layout.dtype);  // which it can have
  return set;
}

void Hdf5File::read(OpenedDataset& set, const Shape& start, const Shape& count, std::byte* out) const {
  in_turn([&] {
    if (!process_ || set.process != processes_) {
      OpenedDataset again = open(set.path);
      if (again.layout.dtype != set.layout.dtype || again.layout.shape != set.layout.shape)
        throw Error(Error::Kind::input, "has changed while it was read").about(set.path);
      close(set);
      set = std::move(again);
      kept_open_.push_back(&set);
    }
    if (set.row > set.granted) take_memory(set);
    call(request(Hdf5Call::read).put(set.id).put(set.granted).put(start).put(count));
    std::memcpy(out, process_->buffer(), static_cast<std::size_t>(byte_count(count, set.layout.dtype)));
  });
}

// For its row of chunks, from spare memory or datasets of this file read before; none if that is too little,
// since a partial row is never reused.
void Hdf5File::take_memory(OpenedDataset& set) const {
  const auto holds = [&](const OpenedDataset* other) { return other != &set && other->granted > 0; };
  while (!memory_->take(set.row)) {
    const auto other = std::find_if(kept_open_.begin(), kept_open_.end(), holds);
    if (other == kept_open_.end()) return;
    close(**other);
  }
  set.granted = set.row;
}

void Hdf5File::keep_open(OpenedDataset& set) const {
  const std::lock_guard lock(mutex_);
  kept_open_.push_back(&set);
}

void Hdf5File::forget(OpenedDataset& set) const noexcept {
  const std::lock_guard lock(mutex_);
  close(set);
}

void Hdf5File::close(OpenedDataset& set) const noexcept {
  std::erase(kept_open_, &set);
  memory_->add(std::exchange(set.granted, 0));
  if (!process_ || std::exchange(set.process, 0) != processes_) return;
  try {
    call(request(Hdf5Call::close).put(set.id));
  } catch (...) {  // then the process is gone, and the dataset with it
    process_.reset();
  }
}

template <class F>
void Hdf5File::for_each_in_parts(Hdf5Call what, const std::string& group, F&& take) const {
  in_turn([&] {
    std::int64_t done = 0, all = 0;
    do {
      Message reply = call(request(what).put(group).put(done));
      all = reply.integer();
      const std::int64_t before = done;
      for (; done < all && !reply.at_end(); ++done) take(reply);
      if (done == before && done < all) throw malformed_answer();
    } while (done < all);
  });
}

std::vector<std::string> Hdf5File::names(const std::string& group) const {
  std::vector<std::string> names;
  for_each_in_parts(Hdf5Call::names, group, [&](Message& reply) { names.push_back(reply.text()); });
  return names;
}

std::vector<ArrayLink> Hdf5File::links(const std::string& group) const {
  std::vector<ArrayLink> links;
  for_each_in_parts(Hdf5Call::links, group, [&](Message& reply) {
    std::string name = reply.text(), kind = reply.text();
    links.push_back({std::move(name), std::move(kind), reply.text()});
  });
  return links;
}

std::map<std::string, std::string> Hdf5File::attributes(const std::string& object) const {
  return in_turn([&] {
    std::map<std::string, std::string> attributes;
    Message reply = call(request(Hdf5Call::attributes).put(object));
    for (std::int64_t n = reply.integer(); n > 0; --n) {
      std::string name = reply.text();
      attributes.insert_or_assign(std::move(name), reply.text());
    }
    return attributes;
  });
}

std::shared_ptr<const ArraySource> Hdf5File::array(const std::string& member) const {
  OpenedDataset set = in_turn([&] { return open(member); });
  std::string name = name_ + ":" + printable(set.path);
  if (set.layout.offset < 0 && set.everywhere.empty())
    return std::make_shared<DatasetSource>(shared_from_this(), std::move(set), std::move(name));
  forget(set);
  if (!set.everywhere.empty()) return unwritten(set, std::move(name));
  const auto end = core::checked_add(set.layout.offset, byte_count(set.layout.shape, set.layout.dtype));
  const std::int64_t all = size_of_file(file_.fd(), name);
  if (!end || *end > all) throw std::move(invalid_answer(set).about("").at(name));
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Mapping> mapping = mapping_.lock();
  if (!mapping || *end > mapping->bytes())
    mapping_ = mapping = std::make_shared<const Mapping>(Mapping::of_file(file_.fd(), all, name_));
  return make_mapped_source(std::move(mapping), set.layout, std::move(name));
}

// The bytes of the file that is there now, to the new one, where the file system has room for them and for
// `more` bytes; it may share the blocks of the two.
void copy_contents(const std::string& path, const AtomicFile& to, std::int64_t more) {
  const File from(open_for_reading(path, to.name()));
  std::int64_t left = size_of_file(from.fd(), to.name());
  if (ioctl(to.fd(), FICLONE, from.fd()) == 0) {
    to.check_room(more);
    return;
  }
  to.check_room(core::checked_add(left, more).value_or(INT64_MAX));
  while (left > 0) {
    const ssize_t n =
        copy_file_range(from.fd(), nullptr, to.fd(), nullptr, static_cast<std::size_t>(left), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    left -= n;
  }
  Array piece(DType::uint8, {left > 0 ? kPieceBytes : 0});
  while (left > 0) {  // fallback: both file offsets are where it stopped
    const auto n = static_cast<std::int64_t>(
        read_some(from.fd(), piece.data(), static_cast<std::size_t>(kPieceBytes), to.name()));
    if (n == 0) throw Error(Error::Kind::input, to.name() + ": has become shorter while it was copied");
    write_all(to.fd(), piece.data(), n, to.name());
    left -= n;
  }
}

// Whatever goes wrong with a file that is written to is an Error{output}.
template <class F>
void as_output_error(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::input) throw;
    throw Error(Error::Kind::output, e.message(), e.code()).hint(e.hint());
  }
}

// An empty file is as good as none: `mktemp` makes such.
bool has_contents(const std::string& path) {
  const std::string name = printable(path);
  const File file(open_for_reading(path, name));
  return size_of_file(file.fd(), name) > 0;
}

// The least that the arrays take on the disk.
std::int64_t written_bytes(const WriteJob& job) {
  WriteJob stored = job;
  std::erase_if(stored.arrays,
                [](const NamedArray& array) { return !array.source->access().uniform.empty(); });
  return stored.bytes();
}

// Adds the arrays to a copy of the file, then renames it; false if a file appeared or vanished concurrently.
bool try_to_write(const WriteJob& job) {
  const ReplaceLock lock(job.path);
  AtomicFile file(job.path, job.options.sync);
  if (!file.is_temporary())
    throw Error(Error::Kind::output, file.name() + ": HDF5 can be written to a regular file only");
  if (file.replaces() != lock.found_file()) return false;
  bool is_new = true;
  as_output_error([&] { is_new = !file.replaces() || !has_contents(file.target()); });
  if (is_new)
    file.check_room(written_bytes(job));
  else
    as_output_error([&] { copy_contents(file.target(), file, written_bytes(job)); });
  const std::string name = printable(job.path);
  if (!is_new && !has_hdf5_signature(file.fd(), name))
    throw Error(Error::Kind::output, name + ": already exists, and is not an HDF5 file");
  const auto process = named_in(name, [&] { return start_process(job.path, file.fd(), false, Use::write); });
  const auto call = [&](const Message& message) {
    Message reply;
    as_output_error([&] { named_in(name, [&] { reply = process->call(message); }); });
    return reply;
  };
  call(request(Hdf5Call::begin).put(is_new).put(job.options.overwrite));
  for (std::size_t n = 0; n < job.arrays.size(); ++n) {
    const NamedArray& array = job.arrays[n];
    const ArraySource& source = *array.source;
    const std::int64_t size = size_of(source.dtype());
    const std::vector<std::byte>& everywhere = source.access().uniform;
    call(request(Hdf5Call::create)
             .put(array.name)
             .put(static_cast<std::int64_t>(source.dtype()))
             .put(source.shape())
             .put(static_cast<std::int64_t>(job.options.compression))
             .put(std::string_view(reinterpret_cast<const char*>(everywhere.data()), everywhere.size())));
    if (!everywhere.empty()) continue;  // the file says it once
    const auto fill = job.options.compression == 0 ? job.fill_of(n) : nullptr;
    if (fill && element_count(source.shape()) > 0) {
      fill({file.path(), name, call(request(Hdf5Call::place)).integer(), false});
      continue;
    }
    // Past the process, which would copy each element once more.
    if (job.options.compression == 0 && is_written_in_parallel(source)) {
      const std::int64_t place = call(request(Hdf5Call::place)).integer();
      write_in_parallel(source, "", file.fd(), place, fmt::format("{}:{}", name, printable(array.name)));
      continue;
    }
    core::for_each_piece(source.shape(), kPieceBytes / size, [&](const Shape& start, const Shape& count) {
      source.read(start, count, process->buffer());
      call(request(Hdf5Call::write).put(start).put(count));
    });
  }
  if (job.options.overwrite)
    for (const std::string& path : job.options.absent) call(request(Hdf5Call::remove).put(path));
  Message finish = request(Hdf5Call::finish);
  finish.put(job.attributes_at).put(static_cast<std::int64_t>(job.options.outdated.size()));
  for (const std::string& key : job.options.outdated) finish.put(key);
  finish.put(static_cast<std::int64_t>(job.options.attributes.size()));
  for (const auto& [key, value] : job.options.attributes) finish.put(key).put(value);
  call(finish);
  if (!file.replaces()) return file.commit_new();
  file.commit();
  return true;
}

}  // namespace

// At the beginning, or behind a block of other data whose length is a power of two.
bool has_hdf5_signature(int fd, std::string_view name) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  const std::int64_t last = size_of_file(fd, name) - std::ssize(kSignature);
  for (std::int64_t at = 0; at <= last; at = std::max<std::int64_t>(512, 2 * at)) {
    char bytes[kSignature.size()];
    read_all_at(fd, bytes, sizeof bytes, at, name);
    if (std::string_view(bytes, sizeof bytes) == kSignature) return true;
    if (at > last / 2) break;  // twice that may exceed the type
  }
  return false;
}

std::shared_ptr<const OpenContainer> open_hdf5(const std::string& path, const OpenOptions& options) {
  return std::make_shared<Hdf5File>(path, options);
}

void write_hdf5(const WriteJob& job) {
  // Where another run has made the file that was to be made here, the arrays are added to that one.
  while (!try_to_write(job)) {
  }
}

void check_hdf5(const WriteJob& job) {
  check_can_write(job.path);
  if (access(job.path.c_str(), F_OK) != 0) {
    if (errno == ENOENT) return;
    throw system_error(Error::Kind::output, printable(job.path), errno);
  }
  const std::string name = printable(job.path);
  as_output_error([&] {
    if (!has_contents(job.path)) return;
    const File file = open_checked(job.path, name);
    Message check = request(Hdf5Call::check);
    check.put(job.options.overwrite).put(static_cast<std::int64_t>(job.arrays.size()));
    for (const NamedArray& array : job.arrays) check.put(array.name);
    named_in(name, [&] { start_process(job.path, file.fd(), false, Use::write)->call(check); });
  });
}

}  // namespace ejk::io
