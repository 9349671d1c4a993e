// Small integers as an argument: group sizes, cu_seqlens, lengths.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

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
