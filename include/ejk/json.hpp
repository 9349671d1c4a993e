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
  /// An array, which hashes include by dtype and shape (hash.hpp), or after abstractify the description of one.
  struct Leaf {
    enum class Kind : std::uint8_t { array, shape_dtype };
    DType dtype = DType::float32;
    Kind kind = Kind::array;
    Shape shape;
  };
  using List = std::vector<JsonValue>;
  /// Members in any order; if several have one name, the last one counts. Names and strings are UTF-8, in which
  /// half a surrogate pair, as "\ud83d" gives one, is encoded like any other code point (ED A0 BD).
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

/// Reads JSON (RFC 8259, UTF-8) and the words NaN, Infinity and -Infinity. Numbers with '.', 'e' or 'E' are
/// doubles, rounded to nearest and infinite outside their range; all others are integers, kept exactly.
/// Throws Error{input} with line and column, also for more than 1000 nested lists and objects.
/// Time and memory are proportional to the text: at most kJsonBytesPerByte for each byte of it.
JsonValue parse_json(std::string_view text);
inline constexpr std::int64_t kJsonBytesPerByte = 80;

}  // namespace ejk
