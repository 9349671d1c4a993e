// Array functions: chunking of an axis, log-sum-exp, guarded division, conversion of element types. Source:
// ejkernel's helpers as documented.
//
// Functions that return a source compute its elements on all threads while they are read, so their memory
// does not grow with the array. Errors name the source: Error{input}, or Error{usage} for an axis, a length
// or a padding that is invalid for the array.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "ejk/array.hpp"

namespace ejk {

/// An axis of length n becomes two, (ceil(n / C), C), padded at the end with `pad`, converted to x's
/// dtype: floats to the nearest, infinite outside their range. Negative axes count from the end. Errors: C <
/// 1; no such axis; a pad that the dtype cannot hold exactly (integers; bool holds 0 and 1).
std::shared_ptr<const ArraySource> chunk_array(std::shared_ptr<const ArraySource> x, std::int64_t chunk_size,
                                               std::int64_t axis = 0, Number pad = std::int64_t{0});

/// The inverse: `axis` and the axis after it are joined and cut to `original_length`, which is at most
/// their product. Negative axes count from the end of the result's shape.
std::shared_ptr<const ArraySource> unchunk_array(const std::shared_ptr<const ArraySource>& x,
                                                 std::int64_t original_length, std::int64_t axis = 0);

enum class Keepdims { no, yes };

/// ln Σ exp(x) along an axis, or over all elements when none is given: in x's dtype, float32 for integers and
/// bool, computed in double precision around the maximum m. m = -inf (and no element) gives -inf, m = +inf
/// gives +inf, any NaN gives NaN. With Keepdims::yes the axes stay, of length 1. One pass over the elements,
/// the same bits for any number of threads.
Array log_sum_exp(const ArraySource& x, std::optional<std::int64_t> axis = std::nullopt,
                  Keepdims keepdims = Keepdims::no);

/// Upper bound of the memory of log_sum_exp, without the source's own.
std::int64_t log_sum_exp_bytes(const ArraySource& x, std::optional<std::int64_t> axis = std::nullopt);

/// a / max(b, min), broadcast as NumPy does: a negative b becomes min too, -0 is below 0, NaN stays NaN. min
/// is converted to b's dtype first (1e-10 is 0 in float16). Integers and bool count as float32, beside
/// float64 as float64; mixed types use the wider one, float16 with bfloat16 float32. 16-bit results are
/// rounded once. Errors: shapes that cannot be broadcast, a min that is NaN.
std::shared_ptr<const ArraySource> safe_divide(std::shared_ptr<const ArraySource> a,
                                               std::shared_ptr<const ArraySource> b,
                                               double min_denominator = 1e-10);

/// x in another dtype; x itself when it has it. To floats: the nearest value, ties to even, rounded once;
/// ±inf outside the range. From float to integer: truncated, as in NumPy. To bool: anything
/// but 0 is True. Errors, while reading: a value out of an integer's range, NaN as integer or bool, with the
/// index.
std::shared_ptr<const ArraySource> convert_array(std::shared_ptr<const ArraySource> x, DType dtype);

}  // namespace ejk
