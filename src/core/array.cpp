// Shapes, strides, copies, sources in memory. Arrays are zeroed memory from calloc, or from mmap with huge
// pages from 4 MiB on: untouched zeros cost nothing.
// tests: tests/core/test_array.cpp
#include "ejk/array.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "core/workspace.hpp"

namespace ejk {

namespace {

// unit × the product of the lengths, at least 1 each so that strides of empty arrays exist; nothing on
// overflow.
std::optional<std::int64_t> span_of(std::span<const std::int64_t> shape, std::int64_t unit) {
  std::optional<std::int64_t> n = unit;
  for (const std::int64_t length : shape) {
    if (length < 0) throw core::invalid("the shape {} has a negative length", to_string(shape));
    if (n) n = core::checked_mul(*n, std::max<std::int64_t>(length, 1));
  }
  return n;
}

Shape checked_strides(Shape strides, const Shape& shape) {
  if (strides.size() == shape.size()) return strides;
  throw core::invalid("a view of shape {} has {} strides", to_string(shape), strides.size());
}

// Those of an array in C order whose bytes can be counted.
Shape checked_c_strides(const Shape& shape, DType dtype) {
  byte_count(shape, dtype);
  return c_strides(shape, dtype);
}

bool is_empty(std::span<const std::int64_t> shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

// f with an integer of an element's size.
template <class F>
void by_size(std::int64_t size, F&& f) {
  if (size == 1)
    f(std::uint8_t{});
  else if (size == 2)
    f(std::uint16_t{});
  else if (size == 4)
    f(std::uint32_t{});
  else
    f(std::uint64_t{});
}

// The last axis runs fastest in `to`. Axes from `axis` on; returns the end of what was written.
std::byte* copy_axes(const ArrayView& v, std::size_t axis, const std::byte* from, std::byte* to) {
  const std::int64_t size = size_of(v.dtype);
  if (axis == v.shape.size()) {
    std::memcpy(to, from, static_cast<std::size_t>(size));
    return to + size;
  }
  const std::int64_t n = v.shape[axis], stride = v.strides[axis];
  if (axis + 1 < v.shape.size()) {
    for (std::int64_t i = 0; i < n; ++i) to = copy_axes(v, axis + 1, from + i * stride, to);
    return to;
  }
  if (stride == size)
    std::memcpy(to, from, static_cast<std::size_t>(n * size));
  else
    by_size(size, [&](auto element) {
      constexpr std::int64_t kSize = sizeof element;
      for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * kSize, from + i * stride, kSize);
    });
  return to + n * size;
}

// Of each 16 bytes of two vectors of elements the lower or the upper half, by turns.
template <bool Upper, class V, std::size_t... I>
V zipped(V a, V b, std::index_sequence<I...>) {
  constexpr int kElements = sizeof...(I);
  return __builtin_shufflevector(
      a, b, (static_cast<int>(I) / 2 + (Upper ? kElements / 2 : 0) + (I % 2 != 0 ? kElements : 0))...);
}

// Transposes rows × columns of contiguous columns to contiguous rows, in squares of 16-byte vectors.
template <class T>
void copy_turned(const std::byte* from, std::int64_t column_stride, std::int64_t rows, std::int64_t columns,
                 std::byte* to, std::int64_t row_stride) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  constexpr int kSquare = 16 / sizeof(T);
  using Elements __attribute__((vector_size(16))) = T;
  constexpr std::make_index_sequence<kSquare> kAll;
  const std::int64_t whole_rows = rows / kSquare * kSquare, whole_columns = columns / kSquare * kSquare;
  const auto one_by_one = [&](std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
    for (std::int64_t c = c0; c < c1; ++c)
      for (std::int64_t r = r0; r < r1; ++r)
        std::memcpy(to + r * row_stride + c * kSize, from + r * kSize + c * column_stride, sizeof(T));
  };
  for (std::int64_t c = 0; c < whole_columns; c += kSquare)
    for (std::int64_t r = 0; r < whole_rows; r += kSquare) {
      Elements square[kSquare], zips[kSquare];
      for (int i = 0; i < kSquare; ++i)
        std::memcpy(&square[i], from + r * kSize + (c + i) * column_stride, sizeof square[i]);
      for (int step = 1; step < kSquare; step *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kSquare / 2; ++i) {
          zips[2 * i] = zipped<false>(square[i], square[i + kSquare / 2], kAll);
          zips[2 * i + 1] = zipped<true>(square[i], square[i + kSquare / 2], kAll);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kSquare; ++i) square[i] = zips[i];
      }
      for (int i = 0; i < kSquare; ++i)
        std::memcpy(to + (r + i) * row_stride + c * kSize, &square[i], sizeof square[i]);
    }
  one_by_one(whole_rows, rows, 0, whole_columns);
  one_by_one(0, rows, whole_columns, columns);
}

// Copies an array in which an axis other than the last is contiguous by cache-sized transposes; false if
// there is none.
bool copy_by_squares(const ArrayView& v, std::byte* out) {
  const std::int64_t size = size_of(v.dtype);
  const std::size_t last = v.shape.size() - 1;
  std::size_t axis = 0;
  while (axis < last && (v.strides[axis] != size || v.shape[axis] < 4)) ++axis;
  if (axis == last || v.strides[last] == size || v.shape[last] < 4) return false;
  const Shape to_strides = c_strides(v.shape, v.dtype);
  const auto copy = [&](const std::byte* from, std::byte* to) {
    constexpr std::int64_t kRows = 64, kColumns = 64;
    for (std::int64_t c = 0; c < v.shape[last]; c += kColumns)
      for (std::int64_t r = 0; r < v.shape[axis]; r += kRows) {
        by_size(size, [&](auto element) {
          copy_turned<decltype(element)>(
              from + r * size + c * v.strides[last], v.strides[last], std::min(kRows, v.shape[axis] - r),
              std::min(kColumns, v.shape[last] - c), to + r * to_strides[axis] + c * size, to_strides[axis]);
        });
      }
  };
  Shape index(v.shape.size(), 0);
  for (std::size_t d = 0; d < v.shape.size();) {
    const std::byte* from = v.data;
    std::byte* to = out;
    for (std::size_t i = 0; i < index.size(); ++i)
      from += index[i] * v.strides[i], to += index[i] * to_strides[i];
    copy(from, to);
    for (d = 0; d < index.size(); ++d) {
      if (d == axis || d == last) continue;
      if (++index[d] < v.shape[d]) break;
      index[d] = 0;
    }
  }
  return true;
}

// Elements in memory; `owner_` is empty when something else owns them.
class MemorySource final : public ArraySource {
 public:
  MemorySource(Array owner, std::string name) : MemorySource(owner.view(), std::move(name)) {
    owner_ = std::move(owner);
  }
  MemorySource(const ArrayView& view, std::string name)
      : ArraySource(type_of(view), std::move(name), ArrayAccess(view)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    copy_elements(box_of(*mapped(), start, count), out);
  }

 private:
  Array owner_;
};

class GeneratedSource final : public ArraySource {
 public:
  GeneratedSource(ArrayType type, std::string name, FillBox fill, ArrayAccess access)
      : ArraySource(std::move(type), std::move(name), std::move(access)), fill_(std::move(fill)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    fill_(start, count, out);
  }

 private:
  FillBox fill_;
};

}  // namespace

std::int64_t element_count(std::span<const std::int64_t> shape) {
  if (const auto count = span_of(shape, 1)) return is_empty(shape) ? 0 : *count;
  throw core::invalid("the shape {} has more elements than 64 bits can count", to_string(shape));
}

std::int64_t byte_count(std::span<const std::int64_t> shape, DType dtype) {
  if (const auto bytes = span_of(shape, size_of(dtype))) return is_empty(shape) ? 0 : *bytes;
  throw core::invalid("the shape {} of {} has more bytes than 64 bits can count", to_string(shape),
                      name_of(dtype));
}

std::string to_string(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Shape c_strides(std::span<const std::int64_t> shape, DType dtype) {
  Shape strides(shape.size());
  std::int64_t step = size_of(dtype);
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

std::string to_string(const ArrayType& type) {
  return fmt::format("{} {}", name_of(type.dtype), to_string(type.shape));
}

ArrayType::ArrayType(DType type, Shape lengths)
    : dtype(type), shape(std::move(lengths)), strides(checked_c_strides(shape, dtype)) {}

ArrayType::ArrayType(DType type, Shape lengths, Shape steps)
    : dtype(type), shape(std::move(lengths)), strides(checked_strides(std::move(steps), shape)) {}

ArrayType type_of(const ArrayView& view) { return {view.dtype, view.shape, view.strides}; }

ArrayType type_of(const ArraySource& source) {
  if (const auto& mapped = source.mapped()) return type_of(*mapped);
  return {source.dtype(), source.shape()};
}

ArrayView::ArrayView(const std::byte* elements, DType type, Shape lengths)
    : data(elements), dtype(type), shape(std::move(lengths)), strides(checked_c_strides(shape, dtype)) {}

ArrayView::ArrayView(const std::byte* elements, DType type, Shape lengths, Shape steps)
    : data(elements),
      dtype(type),
      shape(std::move(lengths)),
      strides(checked_strides(std::move(steps), shape)) {}

bool ArrayView::is_c_contiguous() const {
  std::int64_t step = size_of(dtype);
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

ArrayBox whole_box(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

ArrayView box_of(const ArrayView& view, std::span<const std::int64_t> start,
                 std::span<const std::int64_t> count) {
  ArrayView part = view;
  part.shape.assign(count.begin(), count.end());
  for (std::size_t d = 0; d < start.size(); ++d) part.data += start[d] * view.strides[d];
  return part;
}

ArrayView ArrayView::operator[](std::int64_t index) const {
  return {data + index * strides[0], dtype, Shape(shape.begin() + 1, shape.end()),
          Shape(strides.begin() + 1, strides.end())};
}

void copy_elements(const ArrayView& from, void* out) {
  const std::int64_t bytes = byte_count(from.shape, from.dtype);
  if (bytes == 0) return;
  if (from.is_c_contiguous())
    std::memcpy(out, from.data, static_cast<std::size_t>(bytes));
  else if (!copy_by_squares(from, static_cast<std::byte*>(out)))
    copy_axes(from, 0, from.data, static_cast<std::byte*>(out));
}

void Array::Release::operator()(std::byte* p) const {
  if (mapped_bytes > 0)
    munmap(p, static_cast<std::size_t>(mapped_bytes));
  else
    std::free(p);  // NOLINT(cppcoreguidelines-no-malloc): zeroed memory from calloc is lazy
}

Array::Array(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(element_count(shape_)) {
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const std::int64_t bytes = byte_count(shape_, dtype_);
  const auto refuse = [&] {
    throw Error(Error::Kind::budget, fmt::format("no memory for an array of shape {} and dtype {} ({} bytes)",
                                                 to_string(shape_), name_of(dtype_), bytes));
  };
  if (bytes < 2 * kHugePage) {
    void* p = std::calloc(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), 1);
    if (p == nullptr) refuse();
    data_ = {static_cast<std::byte*>(p), Release{0}};
    return;
  }
  if (bytes > INT64_MAX - kHugePage) refuse();
  void* p = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) refuse();
  madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  madvise(p, static_cast<std::size_t>(bytes), MADV_DONTFORK);  // io's child processes have no use for it
  data_ = {static_cast<std::byte*>(p), Release{bytes}};
}

Array::Array(Array&& other) noexcept
    : dtype_(other.dtype_),
      shape_(std::exchange(other.shape_, {})),
      size_(std::exchange(other.size_, 0)),
      data_(std::move(other.data_)) {}

Array& Array::operator=(Array&& other) noexcept {
  dtype_ = other.dtype_;
  shape_ = std::exchange(other.shape_, {});
  size_ = std::exchange(other.size_, 0);
  data_ = std::move(other.data_);
  return *this;
}

const Shape& Array::shape_of_none() {
  static const Shape none{0};
  return none;
}

Array Array::copy_of(const ArrayView& view) {
  Array a(view.dtype, view.shape);
  copy_elements(view, a.data());
  return a;
}

Array Array::reshaped(Shape shape) && {
  if (element_count(shape) != size_)
    throw Error(Error::Kind::internal,
                fmt::format("{} elements cannot take the shape {}", size_, to_string(shape)));
  shape_ = std::move(shape);
  return std::move(*this);
}

ArrayAccess::ArrayAccess(Order read_order, std::string stored_as)
    : order(read_order), prefer(Prefer::read), storage(std::move(stored_as)) {}

ArrayAccess::ArrayAccess(ArrayView elements, Prefer preferred, std::string stored_as)
    : view(std::move(elements)), order(Order::any), prefer(preferred), storage(std::move(stored_as)) {}

ArraySource::ArraySource(ArrayType type, std::string name, ArrayAccess access)
    : type_(std::move(type)), name_(std::move(name)), access_(std::move(access)) {
  const std::optional<ArrayView>& view = access_.view;
  const bool sound = (!view || (view->dtype == type_.dtype && view->shape == type_.shape)) &&
                     (view || access_.prefer == ArrayAccess::Prefer::read) &&
                     (access_.uniform.empty() || std::ssize(access_.uniform) == size_of(type_.dtype)) &&
                     (access_.order == ArrayAccess::Order::any || (!view && access_.uniform.empty()));
  if (!sound)
    throw Error(Error::Kind::internal, name_ + ": the description of its access contradicts itself");
}

ForwardingSource::ForwardingSource(std::shared_ptr<const ArraySource> inner)
    : ArraySource(type_of(core::required(inner)), core::required(inner).name(),
                  core::required(inner).access()),
      inner_(std::move(inner)) {}

ForwardingSource::ForwardingSource(std::shared_ptr<const ArraySource> inner, ArrayType type,
                                   ArrayAccess access, std::optional<std::string> name)
    : ArraySource(std::move(type), std::move(name).value_or(core::required(inner).name()), std::move(access)),
      inner_(std::move(inner)) {}

std::shared_ptr<const ArraySource> make_source(Array array, std::string name) {
  return std::make_shared<MemorySource>(std::move(array), std::move(name));
}

std::shared_ptr<const ArraySource> make_source(const ArrayView& view, std::string name) {
  return std::make_shared<MemorySource>(view, std::move(name));
}

std::shared_ptr<const ArraySource> generated_source(ArrayType type, std::string name, FillBox fill,
                                                    ArrayAccess access) {
  return std::make_shared<GeneratedSource>(std::move(type), std::move(name), std::move(fill),
                                           std::move(access));
}

std::shared_ptr<const ArraySource> type_alone(ArrayType type, const std::string& name) {
  const auto nothing = [name](std::span<const std::int64_t>, std::span<const std::int64_t>, void*) {
    throw Error(Error::Kind::internal, name + ": its elements are on other ranks");
  };
  return generated_source(std::move(type), name, nothing);
}

Array read_all(const ArraySource& source) {
  Array all(source.dtype(), source.shape());
  core::poison(all.data(), all.bytes());
  if (all.size() > 0) source.read(Shape(source.shape().size(), 0), source.shape(), all.data());
  return all;
}

}  // namespace ejk
