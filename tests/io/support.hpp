// Helpers of file tests: a temporary folder, bytes in and out, errors.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/io.hpp"

namespace ejk::test {

namespace fs = std::filesystem;

/// An empty folder, removed at the end with all that is in it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ejk-test-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  /// Names of all that lies in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  fs::path path_;
};

/// Writes a file. (Loops remove it first: truncating one that was just written makes some file systems
/// flush.)
inline void put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string get(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Runs f, which must throw an Error of that kind; returns its message.
template <class F>
std::string error_of(Error::Kind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK_MESSAGE(e.kind() == kind, e.what());
    return e.message() + (e.hint().empty() ? "" : "\nhint: " + e.hint());
  }
  FAIL_CHECK("no error was thrown");
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  const bool found = text.find(part) != std::string_view::npos;
  if (!found) MESSAGE("'" << std::string(part) << "' is not in '" << std::string(text) << "'");
  return found;
}

inline constexpr DType kAllTypes[] = {DType::boolean, DType::int8,    DType::int16,    DType::int32,
                                      DType::int64,   DType::uint8,   DType::uint16,   DType::uint32,
                                      DType::uint64,  DType::float16, DType::bfloat16, DType::float32,
                                      DType::float64};

/// Elements that differ from their neighbours in every byte they can: valid bools, all bit patterns
/// otherwise.
inline Array example(DType dtype, Shape shape) {
  Array a(dtype, std::move(shape));
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < a.bytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    const unsigned byte = state >> 24;
    a.data()[i] = static_cast<std::byte>(dtype == DType::boolean ? byte & 1u : byte);
  }
  return a;
}

inline bool same(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0);
}

/// 0, 1, 2, ... as int32.
inline Array counting(Shape shape) {
  Array a(DType::int32, std::move(shape));
  std::iota(a.elements<std::int32_t>().begin(), a.elements<std::int32_t>().end(), 0);
  return a;
}

/// A source that is not in memory as far as others can see: everything goes through read().
class Unmapped final : public ForwardingSource {
 public:
  explicit Unmapped(Array array) : Unmapped(make_source(std::move(array))) {}
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    largest = std::max(largest, element_count(count) * size_of(dtype()));
    inner().read(start, count, out);
  }
  mutable std::int64_t largest = 0;  // bytes of the largest box asked for

 private:
  explicit Unmapped(const std::shared_ptr<const ArraySource>& source)
      : ForwardingSource(source, type_of(*source), ArrayAccess(ArrayAccess::Order::sequential)) {}
};

}  // namespace ejk::test
