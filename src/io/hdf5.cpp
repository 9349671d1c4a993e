// tests: tests/io/test_hdf5.cpp
#include "io/hdf5.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_order.hpp"
#include "io/hdf5_worker.hpp"
#include "io/mapped_source.hpp"
#include "io/pieces.hpp"

namespace ejk::io {

namespace {

Message request(Hdf5Call call) {
  Message message;
  message.put(static_cast<std::int64_t>(call));
  return message;
}

// The HDF5 side of a file, in its own process.
class Session {
 public:
  explicit Session(std::string name)
      : name_(std::move(name)), worker_(make_hdf5_server(), {.library = "the HDF5 library"}) {}

  Message call(const Message& message) {
    try {
      return worker_.call(message);
    } catch (Error& e) {
      // What the server throws begins with the name; what is thrown when it dies does not.
      if (!e.message().starts_with(name_)) e.at(name_);
      throw;
    }
  }
  std::byte* buffer() const { return worker_.buffer(); }

 private:
  std::string name_;
  Worker worker_;
};

// Starting a process takes milliseconds, and a file is often asked for one array after another: the last
// reader that is done waits for the next question about the same file (which it opens anew). It answers for
// no other file, so that what a damaged one may do to the library's memory stays with it.
class Reader {
 public:
  Reader(const std::string& path, const std::string& name, const OpenOptions& options)
      : key_(path + (options.allow_external ? "+" : "-")) {
    const std::lock_guard lock(mutex_);
    if (idle_ && idle_key_ == key_)
      session_ = std::move(idle_);
    else
      session_ = std::make_unique<Session>(name);
  }
  Reader(Reader&&) = default;
  Reader& operator=(Reader&&) = delete;
  ~Reader() {
    if (!session_ || failed_) return;
    const std::lock_guard lock(mutex_);
    idle_ = std::move(session_);
    idle_key_ = key_;
  }

  Message call(const Message& message) {
    failed_ = true;  // until it is known better
    Message reply = session_->call(message);
    failed_ = false;
    return reply;
  }
  std::byte* buffer() const { return session_->buffer(); }

 private:
  static std::mutex mutex_;
  static std::unique_ptr<Session> idle_;
  static std::string idle_key_;

  std::string key_;
  std::unique_ptr<Session> session_;
  bool failed_ = false;
};

std::mutex Reader::mutex_;
std::unique_ptr<Session> Reader::idle_;
std::string Reader::idle_key_;

// A dataset that cannot be mapped: chunked, filtered, never written.
class DatasetSource final : public ArraySource {
 public:
  DatasetSource(Reader reader, ArrayLayout layout, std::string name)
      : reader_(std::move(reader)), layout_(std::move(layout)), name_(std::move(name)) {}

  DType dtype() const override { return layout_.dtype; }
  const Shape& shape() const override { return layout_.shape; }
  const std::string& name() const override { return name_; }
  std::string storage() const override { return storage_of(layout_); }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::lock_guard lock(mutex_);
    const std::int64_t size = size_of(dtype());
    auto* to = static_cast<std::byte*>(out);
    for_each_piece(count, Worker::kBufferBytes / size, [&](Shape from, const Shape& extent) {
      for (std::size_t d = 0; d < from.size(); ++d) from[d] += start[d];
      reader_.call(request(Hdf5Call::read).put(from).put(extent));
      const std::int64_t n = element_count(extent);
      std::memcpy(to, reader_.buffer(), static_cast<std::size_t>(n * size));
      if (layout_.byte_order == ByteOrder::swapped) swap_bytes(to, n, size);
      to += n * size;
    });
  }

 private:
  mutable Reader reader_;
  ArrayLayout layout_;
  std::string name_;
  mutable std::mutex mutex_;
};

// Opens the file just to see that the system lets us, and that there is something in it.
File open_checked(const std::string& path, const std::string& name) {
  File file = open_for_reading(path, name);
  if (!is_regular(file.fd(), name))
    throw Error(Error::Kind::input, name + ": an HDF5 file must be a regular file")
        .hint("copy it to a file first");
  if (size_of_file(file.fd(), name) == 0) throw Error(Error::Kind::input, name + ": the file is empty");
  return file;
}

// Asks what there is at the reference, without keeping it open.
Message ask(Hdf5Call call, const ArrayReference& reference, const OpenOptions& options) {
  const std::string name = core::printable(reference.path);
  open_checked(reference.path, name);
  Reader reader(reference.path, name, options);
  return reader.call(
      request(call).put(reference.path).put(name).put(options.allow_external).put(reference.member));
}

}  // namespace

std::vector<ArrayLink> hdf5_links(const ArrayReference& reference, const OpenOptions& options) {
  Message reply = ask(Hdf5Call::links, reference, options);
  std::vector<ArrayLink> links;
  for (std::int64_t n = reply.integer(); n > 0; --n) {
    std::string name = reply.text(), kind = reply.text();
    links.push_back({std::move(name), std::move(kind), reply.text()});
  }
  return links;
}

std::vector<std::string> hdf5_names(const ArrayReference& reference, const OpenOptions& options) {
  Message reply = ask(Hdf5Call::names, reference, options);
  std::vector<std::string> names;
  for (std::int64_t n = reply.integer(); n > 0; --n) names.push_back(reply.text());
  return names;
}

std::shared_ptr<const ArraySource> open_hdf5(const ArrayReference& reference, const OpenOptions& options) {
  const std::string file_name = core::printable(reference.path);
  const File file = open_checked(reference.path, file_name);
  Reader reader(reference.path, file_name, options);
  Message reply = reader.call(request(Hdf5Call::open)
                                  .put(reference.path)
                                  .put(file_name)
                                  .put(options.allow_external)
                                  .put(reference.member));
  std::string name = file_name + ":" + core::printable(reply.text());
  const auto malformed = [&] {
    return Error(Error::Kind::input, name + ": the HDF5 library gave an invalid answer");
  };
  ArrayLayout layout;
  const std::int64_t dtype = reply.integer();
  if (dtype < 0 || dtype > static_cast<std::int64_t>(DType::float64)) throw malformed();
  layout.dtype = static_cast<DType>(dtype);
  layout.byte_order = reply.integer() == 0 ? ByteOrder::native : ByteOrder::swapped;
  layout.shape = reply.shape();
  layout.offset = reply.integer();
  layout.storage = reply.text();
  const std::int64_t bytes = byte_count(layout.shape, layout.dtype);
  if (layout.offset < 0)
    return std::make_shared<DatasetSource>(std::move(reader), std::move(layout), std::move(name));
  const auto end = core::checked_add(layout.offset, bytes);
  if (!end || *end > size_of_file(file.fd(), name)) throw malformed();
  Mapping mapping = Mapping::of_file(file.fd(), *end, name);
  return make_mapped_source(std::move(mapping), layout, std::move(name));
}

namespace {

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
  while (left > 0) {  // where the system cannot: both files stand where it stopped
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
    throw Error(Error::Kind::output, e.message()).hint(e.hint());
  }
}

Message with_names(Message message, const WriteJob& job) {
  message.put(static_cast<std::int64_t>(job.arrays.size()));
  for (const NamedArray& array : job.arrays) message.put(array.name);
  return message;
}

// An empty file is as good as none: `mktemp` makes such.
bool has_contents(const std::string& path) {
  const std::string name = core::printable(path);
  const File file(open_for_reading(path, name));
  return size_of_file(file.fd(), name) > 0;
}

// Adds the arrays to a copy of the file, which then takes its place. False where a file came or went
// meanwhile.
bool try_to_write(const WriteJob& job) {
  const ReplaceLock lock(job.path);
  AtomicFile file(job.path);
  if (!file.is_temporary())
    throw Error(Error::Kind::output, file.name() + ": HDF5 can be written to a regular file only");
  if (file.replaces() != lock.found_file()) return false;
  Session session(file.name());
  const auto call = [&](const Message& message) { as_output_error([&] { session.call(message); }); };
  bool is_new = true;
  as_output_error([&] { is_new = !file.replaces() || !has_contents(file.target()); });
  if (is_new)
    file.check_room(job.bytes());
  else
    as_output_error([&] { copy_contents(file.target(), file, job.bytes()); });
  call(request(Hdf5Call::begin).put(file.path()).put(file.name()).put(is_new).put(job.options.overwrite));
  for (const NamedArray& array : job.arrays) {
    const ArraySource& source = *array.source;
    const std::int64_t size = size_of(source.dtype());
    call(request(Hdf5Call::create)
             .put(array.name)
             .put(static_cast<std::int64_t>(source.dtype()))
             .put(source.shape())
             .put(static_cast<std::int64_t>(job.options.compression)));
    for_each_piece(source.shape(), kPieceBytes / size, [&](const Shape& start, const Shape& count) {
      source.read(start, count, session.buffer());
      call(request(Hdf5Call::write).put(start).put(count));
    });
  }
  if (job.options.overwrite)
    for (const std::string& path : job.options.absent) call(request(Hdf5Call::remove).put(path));
  Message finish = request(Hdf5Call::finish);
  finish.put(job.attributes_at).put(static_cast<std::int64_t>(job.options.attributes.size()));
  for (const auto& [key, value] : job.options.attributes) finish.put(key).put(value);
  call(finish);
  if (!file.replaces()) return file.commit_new();
  file.commit();
  return true;
}

}  // namespace

void write_hdf5(const WriteJob& job) {
  // Where another run has made the file that was to be made here, the arrays are added to that one.
  while (!try_to_write(job)) {
  }
}

void check_hdf5(const WriteJob& job) {
  check_can_write(job.path);
  if (access(job.path.c_str(), F_OK) != 0) {
    if (errno == ENOENT) return;
    throw system_error(Error::Kind::output, core::printable(job.path), errno);
  }
  const std::string name = core::printable(job.path);
  as_output_error([&] {
    if (!has_contents(job.path)) return;
    open_checked(job.path, name);
    Session session(name);
    session.call(
        with_names(request(Hdf5Call::check).put(job.path).put(name), job).put(job.options.overwrite));
  });
}

}  // namespace ejk::io
