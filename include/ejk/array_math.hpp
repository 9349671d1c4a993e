// Array functions: chunking of an axis, log-sum-exp, guarded division, rows by index, conversion of element
// types. Source: ejkernel's helpers as documented.
//
// Sources compute on read, on all threads. Errors name the source: Error{input}, or Error{usage} for an
// invalid axis, length or padding.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// An axis of length n becomes (ceil(n / C), C), padded at the end with `pad` in x's dtype. Negative axes
/// count from the end. Errors: C < 1; no such axis; a pad that the dtype cannot hold exactly (integers; bool
/// holds 0 and 1).
std::shared_ptr<const ArraySource> chunk_array(std::shared_ptr<const ArraySource> x, std::int64_t chunk_size,
                                               std::int64_t axis = 0, Number pad = std::int64_t{0});

/// The inverse: joins `axis` and the next, cut to `original_length`. Negative axes count from the result's
/// end.
std::shared_ptr<const ArraySource> unchunk_array(const std::shared_ptr<const ArraySource>& x,
                                                 std::int64_t original_length, std::int64_t axis = 0);

enum class Keepdims { no, yes };

/// ln Σ exp(x) along an axis or over all elements: in x's dtype (float32 for integers, bool and 8-bit floats), computed in
/// double around the maximum m. m = -inf (or no element) gives -inf, m = +inf gives +inf, NaN gives NaN. One
/// pass, the same bits for any number of threads.
Array log_sum_exp(const ArraySource& x, std::optional<std::int64_t> axis = std::nullopt,
                  Keepdims keepdims = Keepdims::no);

/// Upper bound of the memory of log_sum_exp, without the source's own.
std::int64_t log_sum_exp_bytes(const ArraySource& x, std::optional<std::int64_t> axis = std::nullopt);

/// a / max(b, min), broadcast as in NumPy: a negative b becomes min, NaN stays NaN. min is converted to b's
/// dtype first (1e-10 is 0 in float16). Integers, bool and 8-bit floats count as float32 (float64 beside float64);
/// mixed types use the wider, float16 with bfloat16 float32. Errors: shapes, a min that is NaN.
std::shared_ptr<const ArraySource> safe_divide(std::shared_ptr<const ArraySource> a,
                                               std::shared_ptr<const ArraySource> b,
                                               double min_denominator = 1e-10);

/// x[rows] along the first axis: row i of the result is row rows[i] of x. `rows` is read now; an x without
/// random access is read whole at the first read, and kept. `name`: of the result, x's by default. Errors: an x
/// without axes; with the index, an element that is no row of x.
std::shared_ptr<const ArraySource> take_rows(const std::shared_ptr<const ArraySource>& x,
                                             const IntegerArray& rows,
                                             std::optional<std::string> name = std::nullopt);

/// Of conversions to 8-bit floats.
struct OverflowSettings {
  /// By default the type's own (SmallFloat::default_overflow).
  std::optional<Overflow> to = std::nullopt;
  /// Counts, as elements are read, those that overflow; it outlives the source.
  std::atomic<std::int64_t>* count = nullptr;
};

/// x in another dtype. To floats: nearest even, rounded once, ±inf out of range, of 8-bit floats as `overflows`
/// requests, which also holds for infinities of x in its own dtype. Float to integer: truncated. To bool: nonzero
/// is True. Errors: Error{usage} for infinities of an 8-bit type without; on read, with the index: out of an
/// integer's range, NaN as integer or bool.
std::shared_ptr<const ArraySource> convert_array(std::shared_ptr<const ArraySource> x, DType dtype,
                                                 const OverflowSettings& overflows = {});

/// The bits of x as another dtype. Errors: Error{usage} for a dtype of another size.
std::shared_ptr<const ArraySource> view_array(std::shared_ptr<const ArraySource> x, DType dtype);

// Statistics of an array: minimum, maximum, mean, counts of NaN and infinities, and histograms.

/// Exact integers, std::uint64_t if std::int64_t does not hold them; nothing if there is no number.
using Extreme = std::variant<std::monostate, std::int64_t, std::uint64_t, double>;

struct Statistics {
  std::int64_t elements = 0;
  Extreme minimum;  // of those that are not NaN; infinities count
  Extreme maximum;
  std::optional<double> mean;  // of the same
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
};

/// One parallel pass; bool counts as 0 and 1. Sums are double, in an order independent of the threads.
/// Memory: a chunk for each thread. `progress(done, all)` counts elements, one call at a time.
Statistics statistics_of(const ArraySource& source,
                         const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Elements in [from, to) or, for integers and in the last bin, [from, to].
struct Bin {
  double from = 0, to = 0;
  std::int64_t elements = 0;
};

/// Bins of equal width over the finite range, or one for each of few integers; one more pass. NaN is in none.
std::vector<Bin> histogram_of(const ArraySource& source, const Statistics& statistics,
                              std::int64_t most_bins = 16,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

std::int64_t statistics_bytes(const ArraySource& source);

}  // namespace ejk
