// Rows of a mask as bits, read in boxes of 2^19 elements, in parallel if random access is cheap.
// tests: tests/sequence/test_sequence.cpp
#include "sequence/mask_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/checked.hpp"
#include "core/id_values.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"

namespace ejk::sequence {

namespace {

// The error of integers that hold several values beside 0. The first place is named, of what can be read
// again; else that in the current piece, of rows × columns elements from [row, column] on, where `known` was
// seen before.
template <class T>
Error several_values(const ArraySource& mask, T known, std::int64_t row, std::int64_t column,
                     std::int64_t rows, std::int64_t columns, const std::byte* elements) {
  std::vector<T> row_values;
  if (mask.random_access()) known = 0, row = column = 0, rows = mask.shape()[0], columns = mask.shape()[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    row_values.resize(static_cast<std::size_t>(columns));
    if (mask.random_access())
      mask.read(Shape{r, 0}, Shape{1, columns}, row_values.data());
    else
      std::copy_n(reinterpret_cast<const T*>(elements) + r * columns, columns, row_values.data());
    for (std::int64_t c = 0; c < columns; ++c) {
      const T value = row_values[static_cast<std::size_t>(c)];
      if (known == 0) known = value;
      if (value == 0 || value == known) continue;
      std::span<const T> left(row_values);
      while (!left.empty() && left[0] == T{1}) left = left.subspan(1);  // left padding of position ids
      return {Error::Kind::input,
              fmt::format(
                  "{}: element [{}, {}] is {} and another is {}: a mask (batch, seq) of integers holds 0 and "
                  "one other value",
                  mask.name(), row + r, column + c, value, known),
              core::are_positions<T>(left) || core::are_later_positions<T>(row_values)
                  ? Error::Code::position_ids
                  : Error::Code::segment_ids};
    }
  }
  return {Error::Kind::internal, mask.name() + ": its elements have changed"};
}

// Throws where the integers are no mask's.
void require_mask(const ArraySource& mask, core::OnlyValue& only, std::int64_t row, std::int64_t column,
                  std::int64_t rows, std::int64_t columns, const std::byte* elements) {
  dispatch(mask.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      using Bits = std::make_unsigned_t<T>;
      if (!only.holds(reinterpret_cast<const Bits*>(elements), rows * columns))
        throw several_values<T>(mask, static_cast<T>(only.value()), row, column, rows, columns, elements);
    }
  });
}

}  // namespace

void check_row_mask(const ArraySource& mask) {
  const auto fail = [&](const std::string& why) {
    return Error(Error::Kind::input, mask.name() + ": " + why);
  };
  if (mask.shape().size() != 2)
    throw fail(fmt::format("a mask is (batch, seq), not of shape {}", to_string(mask.shape())));
  if (is_float(mask.dtype()))
    throw fail(fmt::format("a mask must be bool or integer, not {}", name_of(mask.dtype())));
}

void scan_rows(const ArraySource& mask, MaskIntegers integers, const RowBits& f) {
  check_row_mask(mask);
  const Shape& shape = mask.shape();
  if (element_count(shape) == 0) return;
  const kernels::Kernels& kernel = kernels::active();
  const std::int64_t size = size_of(mask.dtype());
  const auto bits_of = size == 1   ? kernel.nonzero_bits_8
                       : size == 2 ? kernel.nonzero_bits_16
                       : size == 4 ? kernel.nonzero_bits_32
                                   : kernel.nonzero_bits_64;
  // A row in pieces, so that memory does not grow with its length; several rows at once where they are short.
  constexpr std::int64_t kElements = std::int64_t{1} << 19;
  const std::int64_t columns = std::min(shape[1], kElements),
                     rows = std::max<std::int64_t>(1, kElements / columns);
  const std::int64_t tasks = core::ceil_div(shape[0], rows);
  const bool checked = integers == MaskIntegers::one_value && mask.dtype() != DType::boolean;
  core::OnlyValue only;
  struct Part {
    std::vector<std::byte> elements;
    std::vector<std::uint64_t> bits;
  };
  const double work = static_cast<double>(shape[0]) * static_cast<double>(shape[1] * size) / 4;
  const int threads = mask.random_access() ? core::threads_for(tasks, work) : 1;
  core::parallel_reduce(
      tasks, threads, [] { return Part{}; },
      [&](Part& part, std::int64_t task) {
        part.elements.resize(static_cast<std::size_t>(rows * columns * size));
        part.bits.resize(static_cast<std::size_t>(core::ceil_div(columns, 64)));
        const std::int64_t first = task * rows, n = std::min(rows, shape[0] - first);
        for (std::int64_t c = 0; c < shape[1]; c += columns) {
          const std::int64_t width = std::min(columns, shape[1] - c);
          mask.read(Shape{first, c}, Shape{n, width}, part.elements.data());
          if (checked) require_mask(mask, only, first, c, n, width, part.elements.data());
          for (std::int64_t r = 0; r < n; ++r) {
            bits_of(part.elements.data() + r * width * size, width, part.bits.data());
            f(first + r, c, part.bits.data(), width);
          }
        }
      },
      [](const Part&) {});
}

}  // namespace ejk::sequence
