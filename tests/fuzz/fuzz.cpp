// In-memory files, operations on arrays, and mutations that several targets share.
#include "fuzz.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace ejk::fuzz {

void fail(const std::string& why) {
  fmt::print(stderr, "fuzz: {}\n", why);
  std::abort();
}

bool survives(const std::function<void()>& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::internal) fail("Error{internal}: " + error.message());
    if (error.message().empty()) fail("an Error says nothing");
  } catch (const std::bad_alloc&) {
    fail("it asked for more memory than there is");
  } catch (const std::exception& error) {
    fail(std::string("an exception that is no Error: ") + error.what());
  }
  return false;
}

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

MemoryFile::MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  require(fd_ >= 0, "no file in memory could be made");
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = write(fd_, data + done, size - done);
    require(n > 0, "a file in memory could not be written");
    done += static_cast<std::size_t>(n);
  }
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return fmt::format("/proc/self/fd/{}", fd_); }

ArrayReference MemoryFile::reference(ArrayReference::Container container) const {
  ArrayReference reference;
  reference.container = container;
  reference.text = reference.path = path();
  return reference;
}

void read_consistently(const ArraySource& source) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (byte_count(source.shape(), source.dtype()) > kMost) return;
  const auto same = [](const Array& a, const Array& b) {
    return a.bytes() == b.bytes() &&
           (a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0);
  };
  const Array first = read_all(source), second = read_all(source);
  require(first.shape() == source.shape() && first.dtype() == source.dtype(),
          "an array has another type once it is read");
  require(same(first, second), "an array that is read twice has two values");
  ArrayBox box{source.shape(), source.shape()};
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    box.start[d] /= 3;
    box.count[d] = (box.count[d] - box.start[d] + 1) / 2;
  }
  Array part(source.dtype(), box.count);
  source.read(box.start, box.count, part.data());
  require(same(part, Array::copy_of(box_of(first.view(), box))),
          "a box that is read alone has other elements");
  if (const auto& uniform = source.access().uniform; !uniform.empty())
    for (std::int64_t i = 0; i < first.size(); ++i)
      require(std::memcmp(first.data() + i * size_of(first.dtype()), uniform.data(), uniform.size()) == 0,
              "an element differs from the one that all are");
}

void read_container(const ArrayReference& reference) {
  std::vector<std::string> names;
  std::shared_ptr<const ArrayFile> file;
  survives([&] {
    file = std::make_shared<ArrayFile>(reference);
    names = file->names();
  });
  if (!file) return;
  survives([&] { (void)file->links(); });
  survives([&] { (void)file->attributes(); });
  survives([&] { (void)file->stored_arrays(); });
  survives([&] { read_consistently(*file->array()); });  // the only one, if it is
  constexpr std::size_t kMost = 16;
  names.resize(std::min(names.size(), kMost));
  for (const std::string& name : names)
    survives([&] {
      (void)file->attributes(name);
      read_consistently(*file->array(name));
    });
}

// --- mutation

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::uint64_t awkward_number(Random& random) {
  const std::uint64_t power = std::uint64_t{1} << random.below(64);
  switch (random.below(5)) {
    case 0:
      return random.below(17);
    case 1:
      return power + random.below(3) - 1;
    case 2:
      return std::uint64_t{0} - 1 - random.below(16);
    case 3:
      return random.next() & (power - 1);
    default:
      return power;
  }
}

void put_number(Bytes& bytes, std::size_t at, std::size_t width, std::uint64_t value) {
  if (at > bytes.size() || bytes.size() - at < width) return;
  for (std::size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t get_number(const Bytes& bytes, std::size_t at, std::size_t width) {
  if (at > bytes.size() || bytes.size() - at < width) return 0;
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | bytes[at + i];
  return value;
}

void change_number(Bytes& bytes, std::size_t at, std::size_t width, Random& random) {
  const std::uint64_t old = get_number(bytes, at, width);
  std::uint64_t value = awkward_number(random);
  if (random.one_in(3)) value = old + random.below(9) - 4;
  if (random.one_in(6)) value = old * 2;
  put_number(bytes, at, width, value);
}

void change_text(std::string& text, const std::vector<std::string_view>& words, Random& random) {
  const std::size_t at = random.below(text.size() + 1);
  const auto some = [&] { return random.below(std::min<std::size_t>(text.size() - at, 24) + 1); };
  const auto number = [&] {
    const std::uint64_t value = awkward_number(random);
    return random.one_in(2) ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value);
  };
  switch (random.below(7)) {
    case 0:  // a word more
      if (!words.empty()) text.insert(at, words[random.below(words.size())]);
      break;
    case 1:  // for what stands there
      if (!words.empty()) text.replace(at, some(), words[random.below(words.size())]);
      break;
    case 2: {  // another number for the next one
      const std::size_t begin = text.find_first_of("0123456789", at);
      if (begin == std::string::npos) break;
      const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
      text.replace(begin, end - begin, number());
      break;
    }
    case 3:
      text.erase(at, some());
      break;
    case 4: {  // a part again, once or so often that what it opens is deep
      const std::string part = text.substr(at, some());
      for (std::size_t n = random.one_in(8) ? random.below(400) : 1; n > 0; --n) text.insert(at, part);
      break;
    }
    case 5:  // a part elsewhere
      text.insert(random.below(text.size() + 1), text.substr(at, some()));
      break;
    default:
      if (at < text.size()) text[at] = static_cast<char>(random.below(256));
      break;
  }
}

void change_npy(Bytes& bytes, std::size_t at, Random& random) {
  if (bytes.size() < at + 12) return;
  const std::size_t width = bytes[at + 6] == 1 ? 2 : 4, begin = at + 8 + width;
  if (random.one_in(8)) change_number(bytes, at + 6, 1, random);
  if (random.one_in(8)) change_number(bytes, at + 8, width, random);
  const std::size_t length = get_number(bytes, at + 8, width);
  if (begin > bytes.size() || length > bytes.size() - begin) return;
  static const std::vector<std::string_view> words{"'descr'",   "'fortran_order'",
                                                   "'shape'",   "True",
                                                   "False",     "()",
                                                   "(3,)",      "(2, 3)",
                                                   "(0,)",      "(0, 4611686018427387904)",
                                                   "1_0",       "5L",
                                                   "-1",        "'<f4'",
                                                   "'>f4'",     "'|b1'",
                                                   "'<i8'",     "'>u2'",
                                                   "'|V2'",     "'<f2'",
                                                   "'|O'",      "'<c8'",
                                                   "'<M8[ns]'", "[('a', '<i4')]",
                                                   "{",         "}",
                                                   "(",         ")",
                                                   ",",         ":",
                                                   "\"",        "'",
                                                   "\\",        "\n",
                                                   " "};
  std::string text(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                   bytes.begin() + static_cast<std::ptrdiff_t>(begin + length));
  change_text(text, words, random);
  if (!random.one_in(8)) {
    // As long as before where it fits, so that the elements stay where they are.
    if (const auto end = text.find_last_not_of(" \n"); text.size() > length && end != std::string::npos)
      text.resize(std::max(end + 1, length));
    text.resize(std::max(text.size(), length), ' ');
    put_number(bytes, at + 8, width, text.size());
  }
  bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
              bytes.begin() + static_cast<std::ptrdiff_t>(begin + length));
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(begin), text.begin(), text.end());
}

std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                   const std::function<void(Bytes&, Random&)>& change) {
  Random random(seed);
  if (size == 0 || random.one_in(4)) return LLVMFuzzerMutate(data, size, most);
  Bytes bytes(data, data + size);
  for (std::size_t n = 1 + random.below(3); n > 0; --n) change(bytes, random);
  const std::size_t held = std::min(bytes.size(), most);
  std::copy_n(bytes.begin(), held, data);
  return held;
}

std::size_t mutate_text(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                        const std::vector<std::string_view>& words) {
  return mutate(data, size, most, seed, [&](Bytes& bytes, Random& random) {
    std::string text(bytes.begin(), bytes.end());
    change_text(text, words, random);
    bytes.assign(text.begin(), text.end());
  });
}

}  // namespace ejk::fuzz
