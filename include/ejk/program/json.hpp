// JSON values and their reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

struct JsonValue {
  /// An integer of any size, in decimal: "-12". parse_json and the constructors write no leading zeros.
  struct Integer {
    std::string digits;
  };
  /// An array, hashed by dtype and shape (hash.hpp), or after abstractify its description.
  struct Leaf {
    enum class Kind : std::uint8_t { array, shape_dtype };
    DType dtype = DType::float32;
    Kind kind = Kind::array;
    Shape shape;
  };
  using List = std::vector<JsonValue>;
  /// Members in any order; the last of equal names counts. UTF-8; half a surrogate pair is encoded like any
  /// code point.
  using Object = std::vector<std::pair<std::string, JsonValue>>;

  std::variant<std::monostate, bool, Integer, double, std::string, List, Object, Leaf> value;

  JsonValue() = default;
  explicit JsonValue(bool v) : value(v) {}
  explicit JsonValue(std::int64_t v) : value(Integer{std::to_string(v)}) {}
  explicit JsonValue(double v) : value(v) {}
  explicit JsonValue(std::string v) : value(std::move(v)) {}
  explicit JsonValue(List v) : value(std::move(v)) {}
  explicit JsonValue(Object v) : value(std::move(v)) {}
  explicit JsonValue(Integer v) : value(std::move(v)) {}
  explicit JsonValue(Leaf v) : value(std::move(v)) {}
};

/// RFC 8259 in UTF-8, and NaN, Infinity, -Infinity. Numbers with '.', 'e' or 'E' are doubles, rounded to
/// nearest, infinite out of range; other integers are exact. Throws Error{input} with line and column, also
/// above 1000 nested levels. Memory: at most kJsonBytesPerByte for each byte of text.
JsonValue parse_json(std::string_view text);
inline constexpr std::int64_t kJsonBytesPerByte = 80;

}  // namespace ejk
