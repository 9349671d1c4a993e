// Opening a reference: its container's row opens the file, the file gives the array, a slice is laid over it.
// And files as they are.
// tests: tests/io/test_npy.cpp, test_npz.cpp, test_hdf5.cpp
#include <sys/stat.h>

#include <algorithm>
#include <mutex>

#include "core/text.hpp"
#include "ejk/io.hpp"
#include "io/container.hpp"
#include "io/npy.hpp"
#include "io/slice.hpp"

namespace ejk {

namespace {

using Kind = ArrayReference::Container;
using Opened = std::shared_ptr<const io::OpenContainer>;

// The free functions are often asked for one array of a file after another. The last file that was asked for
// stays open for the next question, as long as it is the same file; ArrayFile is the way to decide that
// oneself.
class LastFile {
 public:
  static Opened get(const ArrayReference& reference, const OpenOptions& options) {
    const io::Container& row = io::container(reference.container);
    if (row.kind != Kind::npz && row.kind != Kind::hdf5) return row.open(reference.path, options);
    const std::lock_guard lock(mutex);
    struct stat now {};
    const bool found = stat(reference.path.c_str(), &now) == 0;
    if (found && last && path == reference.path && allow_external == options.allow_external &&
        is_same(now, status))
      return last;
    last.reset();  // before the next one: descriptors may be few
    Opened opened = row.open(reference.path, options);
    if (!found) return opened;
    path = reference.path, allow_external = options.allow_external, status = now;
    return last = std::move(opened);
  }

 private:
  static bool is_same(const struct stat& a, const struct stat& b) {
    const auto same = [](const timespec& x, const timespec& y) {
      return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
    };
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
           same(a.st_mtim, b.st_mtim) && same(a.st_ctim, b.st_ctim);
  }

  static std::mutex mutex;
  static std::string path;
  static bool allow_external;
  static struct stat status;
  static Opened last;
};

std::mutex LastFile::mutex;
std::string LastFile::path;
bool LastFile::allow_external = false;
struct stat LastFile::status {};
Opened LastFile::last;

}  // namespace

std::shared_ptr<const ArraySource> open_array(const ArrayReference& reference, const OpenOptions& options) {
  auto source = LastFile::get(reference, options)->array(reference.member);
  if (reference.slice.empty()) return source;
  return io::make_sliced_source(std::move(source), reference.slice, core::printable(reference.text));
}

std::shared_ptr<const ArraySource> open_array(std::string_view reference, const OpenOptions& options) {
  return open_array(parse_reference(reference), options);
}

std::optional<std::string> read_file(const std::string& path, std::int64_t most) {
  const std::string name = core::printable(path);
  const io::File file = path == "-" ? io::File() : io::open_for_reading(path, name);
  const int fd = file.is_open() ? file.fd() : io::take_stdin();
  std::string text;
  for (std::size_t held = 0;;) {
    constexpr std::size_t kFirst = std::size_t{1} << 16;
    text.resize(std::max(kFirst, 2 * held));  // twice as much room whenever it is full
    held += io::read_some(fd, text.data() + held, text.size() - held, name);
    if (static_cast<std::int64_t>(held) > most) return std::nullopt;
    if (held == text.size()) continue;
    text.resize(held);
    return text;
  }
}

std::vector<std::string> array_names(const std::string& path, const OpenOptions& options) {
  const ArrayReference reference = parse_reference(path);
  return LastFile::get(reference, options)->names(reference.member);
}

std::vector<ArrayLink> array_links(const std::string& path, const OpenOptions& options) {
  const ArrayReference reference = parse_reference(path);
  if (reference.container != Kind::hdf5) return {};
  return LastFile::get(reference, options)->links(reference.member);
}

ArrayFile::ArrayFile(std::string_view reference, const OpenOptions& options)
    : reference_(parse_reference(reference)) {
  if (!reference_.slice.empty())
    throw Error(Error::Kind::usage, core::printable(reference_.text) + ": a file is opened without a slice");
  container_ = io::container(reference_.container).open(reference_.path, options);
}

std::vector<std::string> ArrayFile::names() const { return container_->names(reference_.member); }

std::vector<ArrayLink> ArrayFile::links() const { return container_->links(reference_.member); }

std::shared_ptr<const ArraySource> ArrayFile::array(const std::string& name) const {
  return container_->array(name.empty() ? reference_.member : name);
}

}  // namespace ejk
