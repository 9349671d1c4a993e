// Stable JSON and short hashes of settings: equal on every machine and in every run.
//
// Arrays count by dtype and shape. Source: the document on utilities and helpers, stable_json, short_hash,
// abstractify.
#pragma once

#include <string>

#include "ejk/convention.hpp"
#include "ejk/program/json.hpp"

namespace ejk {

/// The value with every array replaced by its description: what a compiled function depends on.
JsonValue abstractify(JsonValue value);

/// JSON without white space: members sorted by code points, non-ASCII escaped, shortest round-trip floats.
/// An array is {"_type":"array","dtype":NAME,"shape":[...]}, after abstractify "shape_dtype"; by ejkernel's
/// convention {"dtype":NAME,"shape":[...]}. Throws Error{input} for invalid UTF-8.
std::string stable_json(const JsonValue& value, Convention convention = Convention::document);

/// The first 16 hex digits of the SHA-256 of stable_json.
std::string short_hash(const JsonValue& value, Convention convention = Convention::document);

}  // namespace ejk
