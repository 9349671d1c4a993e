// Arrays in memory (Array), views (ArrayView) and sources read on demand (ArraySource).
//
// Sizes, indices and strides (in bytes) are std::int64_t. Elements in memory have native byte order.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ejk/dtype.hpp"
#include "ejk/error.hpp"

namespace ejk {

using Shape = std::vector<std::int64_t>;

/// A number; integers are exact.
using Number = std::variant<std::int64_t, std::uint64_t, double>;

/// Indices [begin, end) of an axis.
struct IndexRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};

/// Product of the lengths; 1 for rank 0. Throws Error{input} where it overflows or a length is negative.
std::int64_t element_count(std::span<const std::int64_t> shape);

/// element_count × size_of, checked.
std::int64_t byte_count(std::span<const std::int64_t> shape, DType dtype);

/// "(3, 4)", "(5,)", "()".
std::string to_string(std::span<const std::int64_t> shape);

/// Strides in bytes of a C-ordered array.
Shape c_strides(std::span<const std::int64_t> shape, DType dtype);

/// A non-owning view of elements. Any strides, 0 and negative included.
struct ArrayView {
  const std::byte* data = nullptr;
  DType dtype = DType::boolean;
  Shape shape;
  Shape strides;  // one for each axis

  ArrayView() = default;
  /// Elements in C order. Throws Error{input} for a shape that no memory can hold.
  ArrayView(const std::byte* elements, DType type, Shape lengths);
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

/// `count` elements along each axis of an array, from `start` on.
struct ArrayBox {
  Shape start, count;
  bool operator==(const ArrayBox&) const = default;
};

/// The box of all elements.
ArrayBox whole_box(const Shape& shape);

/// An array as boxes of at most `most` (≥ 1) elements in C order.
std::vector<ArrayBox> pieces_of(const Shape& shape, std::int64_t most);

/// The box of a view; it must be within the shape.
ArrayView box_of(const ArrayView& view, std::span<const std::int64_t> start,
                 std::span<const std::int64_t> count);
inline ArrayView box_of(const ArrayView& view, const ArrayBox& box) {
  return box_of(view, box.start, box.count);
}

/// A non-owning view of writable elements in C order, such as the memory of a result.
struct MutableArrayView {
  std::byte* data = nullptr;
  DType dtype = DType::boolean;
  Shape shape;
};

/// Dtype, shape and strides of an array without its elements: enough to plan work on it.
struct ArrayType {
  DType dtype = DType::boolean;
  Shape shape;
  Shape strides;  // of the elements in memory, one for each axis

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

/// Elements in C order; T determines the dtype.
template <class T>
ArrayView view_of(const T* elements, Shape shape) {
  return {reinterpret_cast<const std::byte*>(elements), dtype_of<T>(), std::move(shape)};
}

/// Copies the elements of `from` to `out` in C order.
void copy_elements(const ArrayView& from, void* out);

/// Owns C-ordered elements. Zeroed memory costs nothing until touched. A moved-from array is empty.
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
  const Shape& shape() const { return is_new() ? shape_of_none() : shape_; }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * size_of(dtype_); }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  /// T is the C++ type of dtype().
  template <class T>
  std::span<T> elements() {
    return {reinterpret_cast<T*>(data_.get()), static_cast<std::size_t>(size_)};
  }
  template <class T>
  std::span<const T> elements() const {
    return {reinterpret_cast<const T*>(data_.get()), static_cast<std::size_t>(size_)};
  }
  ArrayView view() const { return {data(), dtype_, shape(), c_strides(shape(), dtype_)}; }
  MutableArrayView mutable_view() { return {data(), dtype_, shape()}; }
  /// The same elements with another shape of equal size.
  Array reshaped(Shape shape) &&;

 private:
  struct Release {
    std::int64_t mapped_bytes;  // 0: from calloc
    void operator()(std::byte* p) const;
  };
  // Unlike any real array: a new one allocates no shape, so moving does not either.
  bool is_new() const { return size_ == 0 && shape_.empty(); }
  static const Shape& shape_of_none();

  DType dtype_ = DType::boolean;
  Shape shape_;
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

/// How a source may be read. One thread, box after box in C order, is always valid.
struct ArrayAccess {
  enum class Order {
    any,         // concurrent random reads at no extra cost
    sequential,  // one thread at a time; by far the cheapest in C order (compressed data)
  };
  enum class Prefer {
    view,  // the elements in `view`
    read,  // cache-sized boxes through read(), in C order: cheaper for mapped files, with fewer page faults
  };

  /// read() alone.
  explicit ArrayAccess(Order read_order, std::string stored_as = {});
  /// Elements that are in memory, or in a mapped file.
  explicit ArrayAccess(ArrayView elements, Prefer preferred = Prefer::view, std::string stored_as = {});

  /// All elements, in native byte order; then the order is `any`.
  std::optional<ArrayView> view;
  Order order;
  /// `read` if there is no view.
  Prefer prefer;
  /// The value of all elements if known without reading (never allocated in a file); the order is then
  /// `any`.
  std::vector<std::byte> uniform;
  /// How the elements are stored: "C order", "chunks of 64 x 64, gzip"; empty if they are not.
  std::string storage;
};

/// A source of one array: a file, a stream, an array computed on demand. Immutable but for its elements.
class ArraySource {
 public:
  virtual ~ArraySource() = default;
  ArraySource(const ArraySource&) = delete;
  ArraySource& operator=(const ArraySource&) = delete;

  DType dtype() const { return type_.dtype; }
  const Shape& shape() const { return type_.shape; }
  /// Its name in messages: the reference by which it was opened.
  const std::string& name() const { return name_; }
  const ArrayAccess& access() const { return access_; }
  /// Shorthands for access().
  const std::optional<ArrayView>& mapped() const { return access_.view; }
  bool random_access() const { return access_.order == ArrayAccess::Order::any; }

  /// Copies a box within the shape to `out`: C order, native byte order. Throws Error{input}.
  virtual void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                    void* out) const = 0;

  /// The bytes in memory that read() of a box reads, to prefetch them; none if that is not known.
  virtual std::optional<ArrayView> bytes_of(std::span<const std::int64_t> start,
                                            std::span<const std::int64_t> count) const {
    (void)start, (void)count;
    return std::nullopt;
  }

  /// Releases part of the view: its pages of a mapped file no longer count as memory of this process.
  virtual void release(const std::byte* data, std::int64_t bytes) const { (void)data, (void)bytes; }

 protected:
  /// Throws Error{internal} for an access that contradicts the type or itself.
  ArraySource(ArrayType type, std::string name,
              ArrayAccess access = ArrayAccess(ArrayAccess::Order::sequential));

 private:
  ArrayType type_;
  std::string name_;
  ArrayAccess access_;
};

/// A base for sources derived from another, which they own; forwards what a subclass does not override, except
/// bytes_of(), as elements may be others.
class ForwardingSource : public ArraySource {
 public:
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    inner_->read(start, count, out);
  }
  void release(const std::byte* data, std::int64_t bytes) const override { inner_->release(data, bytes); }

 protected:
  /// The same elements, accessed in the same ways.
  explicit ForwardingSource(std::shared_ptr<const ArraySource> inner);
  /// Other elements, or another order. Without a name: that of the inner source.
  ForwardingSource(std::shared_ptr<const ArraySource> inner, ArrayType type, ArrayAccess access,
                   std::optional<std::string> name = std::nullopt);

  const ArraySource& inner() const { return *inner_; }

 private:
  std::shared_ptr<const ArraySource> inner_;
};

/// A source whose elements are computed when they are read: `fill` is its read().
using FillBox =
    std::function<void(std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out)>;
std::shared_ptr<const ArraySource> generated_source(
    ArrayType type, std::string name, FillBox fill,
    ArrayAccess access = ArrayAccess(ArrayAccess::Order::any));

/// A source that has a type alone, as its elements are on other ranks: reading throws Error{internal}.
std::shared_ptr<const ArraySource> type_alone(ArrayType type, const std::string& name);

/// A box of an array, and its elements: a source of the shape box.count.
struct ArrayPart {
  ArrayBox box;
  std::shared_ptr<const ArraySource> elements;
};

/// An array in memory as a source.
std::shared_ptr<const ArraySource> make_source(Array array, std::string name = "array");

/// A view as a source; the elements must outlive it.
std::shared_ptr<const ArraySource> make_source(const ArrayView& view, std::string name = "array");

/// Arrays that belong together, as those of a MaskInfo in one file.
struct ArrayGroup {
  std::string name;  // in messages
  std::map<std::string, std::shared_ptr<const ArraySource>> arrays;
  std::map<std::string, std::string> attributes;  // of their file or group

  /// An array by its name; null where there is none.
  std::shared_ptr<const ArraySource> find(const std::string& array) const {
    const auto found = arrays.find(array);
    return found == arrays.end() ? nullptr : found->second;
  }
};

/// With the strides of its view, otherwise in C order.
ArrayType type_of(const ArraySource& source);

/// All elements of a source, in memory.
Array read_all(const ArraySource& source);

// Small integers as an argument: group sizes, cu_seqlens, lengths.

/// From a std::vector or std::span of int32 or int64, or an ArraySource of any integer dtype. Elements of
/// spans, lvalue vectors and unshared sources must outlive it. Dereferencing an empty one throws
/// Error{usage}.
class IntegerArray {
 public:
  IntegerArray() = default;
  IntegerArray(std::shared_ptr<const ArraySource> source) : source_(std::move(source)) {}
  IntegerArray(const ArraySource& source) : source_(std::shared_ptr<const ArraySource>(), &source) {}

  template <class T, std::size_t N>
  requires(std::same_as<std::remove_const_t<T>, std::int32_t> ||
           std::same_as<std::remove_const_t<T>, std::int64_t>) IntegerArray(std::span<T, N> values)
      : source_(make_source(view_of<std::remove_const_t<T>>(values.data(), {std::ssize(values)}))) {}
  template <class T>
  requires(std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>)
      IntegerArray(const std::vector<T>& values)
      : IntegerArray(std::span(values)) {}
  template <class T>
  requires(std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>)
      IntegerArray(std::vector<T>&& values)
      : source_(make_source(Array::from<T>({std::ssize(values)}, values))) {}

  explicit operator bool() const { return source_ != nullptr; }
  operator const ArraySource&() const { return **this; }
  const ArraySource& operator*() const {
    if (!source_) throw Error(Error::Kind::usage, "an array of integers is missing");
    return *source_;
  }
  const ArraySource* operator->() const { return &**this; }

 private:
  std::shared_ptr<const ArraySource> source_;
};

}  // namespace ejk
