// Arrays: memory with a dtype and a shape (Array), a look at somebody else's (ArrayView), and a place that
// array elements can be read from without being in memory (ArraySource).
//
// Sizes, indices and strides are std::int64_t. Strides are in bytes. Elements in memory have the machine's
// byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ejk/dtype.hpp"
#include "ejk/error.hpp"

namespace ejk {

using Shape = std::vector<std::int64_t>;

/// Product of the lengths; 1 for rank 0. Throws Error{input} when it (or a length) does not fit or is
/// negative.
std::int64_t element_count(std::span<const std::int64_t> shape);

/// element_count × size_of, checked.
std::int64_t byte_count(std::span<const std::int64_t> shape, DType dtype);

/// "(3, 4)", "(5,)", "()".
std::string to_string(std::span<const std::int64_t> shape);

/// Strides in bytes of a C-ordered array.
Shape c_strides(std::span<const std::int64_t> shape, DType dtype);

/// A look at elements that live elsewhere; valid as long as they do. Any strides, 0 and negative included.
struct ArrayView {
  const std::byte* data = nullptr;
  DType dtype = DType::boolean;
  Shape shape;
  Shape strides;  // as many as lengths

  ArrayView() = default;
  /// Elements in C order. Throws Error{input} for a shape that no memory can hold.
  ArrayView(const std::byte* elements, DType type, Shape lengths);
  /// Throws Error{input} when there is not one stride for each length.
  ArrayView(const std::byte* elements, DType type, Shape lengths, Shape steps);

  std::int64_t rank() const { return static_cast<std::int64_t>(shape.size()); }
  bool is_c_contiguous() const;
  /// First element as T, for C-contiguous views of dtype T.
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
  /// The slice `index` of the first axis (rank ≥ 1, index within it).
  ArrayView operator[](std::int64_t index) const;
};

/// Elements in C order that may be written, such as the memory of a result; valid as long as it is.
struct MutableArrayView {
  std::byte* data = nullptr;
  DType dtype = DType::boolean;
  Shape shape;
};

/// What is known of an array before its elements are: enough to plan work on it.
struct ArrayType {
  DType dtype = DType::boolean;
  Shape shape;
  Shape strides;  // of the elements once they are in memory; as many as lengths

  ArrayType() = default;
  /// C order. Throws Error{input} for a shape that no memory can hold.
  ArrayType(DType type, Shape lengths);
  /// Throws Error{input} when there is not one stride for each length.
  ArrayType(DType type, Shape lengths, Shape steps);

  std::int64_t rank() const { return static_cast<std::int64_t>(shape.size()); }
  std::int64_t bytes() const { return byte_count(shape, dtype); }
};

/// "float32 (3, 4)".
std::string to_string(const ArrayType& type);

ArrayType type_of(const ArrayView& view);

/// The elements in C order that begin at `elements`; T tells the dtype.
template <class T>
ArrayView view_of(const T* elements, Shape shape) {
  return {reinterpret_cast<const std::byte*>(elements), dtype_of<T>(), std::move(shape)};
}

/// Copies the elements of `from` to `out` in C order.
void copy_elements(const ArrayView& from, void* out);

/// Owns C-ordered elements. Large ones lie on huge pages where the system grants them; zeroed memory that is
/// never touched costs nothing. One that was moved from is empty, as if new.
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept;
  Array& operator=(Array&& other) noexcept;
  /// All zero.
  Array(DType dtype, Shape shape);
  /// A copy of a view.
  static Array copy_of(const ArrayView& view);
  template <class T>
  static Array from(Shape shape, std::span<const T> values);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * size_of(dtype_); }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  template <class T>
  std::span<T> elements() {
    return {reinterpret_cast<T*>(data_.get()), static_cast<std::size_t>(size_)};
  }
  template <class T>
  std::span<const T> elements() const {
    return {reinterpret_cast<const T*>(data_.get()), static_cast<std::size_t>(size_)};
  }
  ArrayView view() const { return {data(), dtype_, shape_, c_strides(shape_, dtype_)}; }
  MutableArrayView mutable_view() { return {data(), dtype_, shape_}; }
  /// The same elements under another shape with as many of them.
  Array reshaped(Shape shape) &&;

 private:
  struct Release {
    std::int64_t mapped_bytes;  // 0: from calloc
    void operator()(std::byte* p) const;
  };
  DType dtype_ = DType::boolean;
  Shape shape_{0};
  std::int64_t size_ = 0;
  std::unique_ptr<std::byte[], Release> data_{nullptr, Release{0}};
};

template <class T>
Array Array::from(Shape shape, std::span<const T> values) {
  Array a(dtype_of<T>(), std::move(shape));
  if (a.size() != static_cast<std::int64_t>(values.size()))
    throw Error(Error::Kind::internal, "Array::from: the number of values does not fit the shape");
  std::copy(values.begin(), values.end(), a.template elements<T>().begin());
  return a;
}

/// Where the elements of one array can be read: a file, a stream held in memory, an array made on demand.
class ArraySource {
 public:
  virtual ~ArraySource() = default;

  virtual DType dtype() const = 0;
  virtual const Shape& shape() const = 0;

  /// What to call it in a message: the reference it was opened by.
  virtual const std::string& name() const = 0;

  /// Copies the box that begins at `start` and has `count` elements along each axis to `out`: C order, the
  /// machine's byte order. The box lies within the shape. Throws Error{input}.
  virtual void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                    void* out) const = 0;

  /// All elements where they lie, when they lie in memory (a mapped file) in the machine's byte order.
  virtual std::optional<ArrayView> mapped() const { return std::nullopt; }

  /// Says that `bytes` bytes from `data` on, a part of mapped(), will not be looked at again soon: a mapped
  /// file's pages then stop counting as this process's memory.
  virtual void release(const std::byte* data, std::int64_t bytes) const { (void)data, (void)bytes; }

  /// Boxes that follow one another in C order and fit a processor's cache cost less through read() than to
  /// look at in mapped(): they come from a file, and looking costs a page fault for every few pages.
  virtual bool prefers_read() const { return false; }

  /// The one element that all others equal, in the machine's byte order, where that is known without reading
  /// them: a file never allocated room for them. nullptr: it is not known.
  virtual const std::byte* uniform() const { return nullptr; }

  /// How the elements are stored, in words: "C order", "chunks of 64 x 64, gzip"; empty when they are not.
  virtual std::string storage() const { return {}; }

  /// read() may be called by several threads at once and in any order at no extra cost. When false, one
  /// thread at a time, and reading in C order is by far the cheapest (compressed members, filtered datasets).
  virtual bool random_access() const { return mapped().has_value(); }
};

/// An array in memory as a source.
std::shared_ptr<const ArraySource> make_source(Array array, std::string name = "array");

/// A view as a source; the elements must outlive it.
std::shared_ptr<const ArraySource> make_source(const ArrayView& view, std::string name = "array");

/// The type of what a source holds: as it lies where it is mapped, else in C order, as read_all() gives it.
ArrayType type_of(const ArraySource& source);

/// Everything a source holds, in memory.
Array read_all(const ArraySource& source);

}  // namespace ejk
