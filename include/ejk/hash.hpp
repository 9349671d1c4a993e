// Stable JSON and short hashes of settings: the same value gives the same text and the same hash on every
// machine and in every run.
//
// A value is a JSON value or an array, of which only dtype and shape count. Source: the document on utilities
// and helpers, stable_json, short_hash and abstractify.
#pragma once

#include <string>

#include "ejk/convention.hpp"
#include "ejk/json.hpp"

namespace ejk {

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
