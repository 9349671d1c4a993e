// What the table of element types has of one: its name, size and float format.
// tests: tests/core/test_dtype.cpp
#include "ejk/dtype.hpp"

#include "core/element_types.hpp"

namespace ejk {

std::string_view name_of(Overflow overflow) {
  constexpr std::string_view kNames[] = {"saturate", "nan", "inf"};
  return kNames[static_cast<std::size_t>(overflow)];
}

std::int64_t size_of(DType dtype) { return core::element_type(dtype).size; }

std::string_view name_of(DType dtype) { return core::element_type(dtype).name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const core::ElementType& type : core::kElementTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

const FloatFormat& float_format(DType dtype) { return *core::element_type(dtype).format; }

}  // namespace ejk
