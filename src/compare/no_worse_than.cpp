// The rule of no_worse_than: the error of a result beside that of another implementation.
// tests: tests/cli/compare/no-worse-than.case
#include <algorithm>
#include <cmath>
#include <variant>

#include "compare/float_type.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"
#include "ejk/dtype.hpp"
#include "ejk/program/explain.hpp"

namespace ejk {

namespace {

// The largest error of elements; none where one is finite on one side alone.
std::optional<double> largest_error(const Comparison& c) {
  if (c.one_sided_nans + c.one_sided_infinities > 0) return std::nullopt;
  return c.largest_absolute ? c.largest_absolute->amount : 0;
}

double magnitude_of(const Extreme& value) {
  return std::visit(
      [](auto number) -> double {
        if constexpr (std::is_same_v<decltype(number), std::monostate>)
          return 0;
        else
          return std::abs(static_cast<double>(number));
      },
      value);
}

}  // namespace

NoWorseThan no_worse_than(const Comparison& actual, const ArraySource& expected, const ArraySource& reference,
                          double factor) {
  const Comparison other = compare_arrays(reference, expected);
  if (!other.same_shape())
    throw core::invalid("{}: its shape is {}, and that of {} is {}", reference.name(),
                        to_string(reference.shape()), expected.name(), to_string(expected.shape()));
  NoWorseThan found{factor, largest_error(actual)};
  const std::optional<double> error = largest_error(other);
  if (!error) throw core::invalid("{}: is not finite where {} is", reference.name(), expected.name());
  found.reference_error = *error;
  const Statistics statistics = statistics_of(expected);
  const double largest = std::max(magnitude_of(statistics.minimum), magnitude_of(statistics.maximum));
  const bool has_step = is_float(actual.actual_dtype) && std::isfinite(largest);
  const double epsilon = has_step ? verify::float_type(actual.actual_dtype).epsilon() : 0;
  found.allowed = NoWorseThan::allowed_by(factor, *error, epsilon, has_step ? largest : 0);
  return found;
}

}  // namespace ejk
