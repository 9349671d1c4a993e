// Stable JSON and short hashes of settings: the same value gives the same text and the same hash on every
// machine and in every run.
//
// A value is what JSON can say, or an array, of which only dtype and shape count. Source: the document on
// utilities and helpers, stable_json, short_hash and abstractify.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"

namespace ejk {

struct JsonValue {
  /// A whole number of any size, in decimal: "-12". parse_json and the constructors write no needless zeros.
  struct Integer {
    std::string digits;
  };
  /// An array, or after abstractify the description of one.
  struct Leaf {
    enum class Kind : std::uint8_t { array, shape_dtype };
    DType dtype = DType::float32;
    Kind kind = Kind::array;
    Shape shape;
  };
  using List = std::vector<JsonValue>;
  /// Members in any order; of several with one name the last counts. Names and strings are UTF-8, in which
  /// half a surrogate pair, as "\ud83d" makes one, is written like any other code point (ED A0 BD).
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
/// doubles, rounded to nearest and beyond their range infinite; all others are integers, kept exactly.
/// Throws Error{input} with line and column, also for more than 1000 lists and objects inside one another.
/// Takes time and memory proportional to the text, at most kJsonBytesPerByte for each byte of it.
JsonValue parse_json(std::string_view text);
inline constexpr std::int64_t kJsonBytesPerByte = 80;

/// The value with every array replaced by its description: what a compiled function depends on.
JsonValue abstractify(JsonValue value);

/// JSON without white space: members in the order of their names' code points, everything outside ASCII
/// escaped, floats as the shortest decimal that reads back to the same double. An array becomes
/// {"_type":"array","dtype":NAME,"shape":[...]}, after abstractify with "shape_dtype"; in the convention of
/// ejkernel {"dtype":NAME,"shape":[...]} either way. Throws Error{input} for text that is not UTF-8.
std::string stable_json(const JsonValue& value, Convention convention = Convention::document);

/// The first 16 hex digits of the SHA-256 of stable_json.
std::string short_hash(const JsonValue& value, Convention convention = Convention::document);

}  // namespace ejk
