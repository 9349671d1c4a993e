// The documented functions of cu_seqlens.
// tests: tests/sequence/test_sequence.cpp
#include "ejk/sequence.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"
#include "sequence/ids.hpp"
#include "sequence/mask_rows.hpp"

namespace ejk {

namespace {

using sequence::IdKind;

std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& cu) {
  std::vector<std::int64_t> lens(cu.size() - 1);
  for (std::size_t i = 0; i < lens.size(); ++i) lens[i] = cu[i + 1] - cu[i];
  return lens;
}

std::vector<std::int64_t> running_sum(const std::vector<std::int64_t>& lens) {
  std::vector<std::int64_t> cu{0};
  cu.reserve(lens.size() + 1);
  for (const std::int64_t length : lens) {
    const auto sum = core::checked_add(cu.back(), length);
    if (!sum) throw core::invalid("the sum of the lengths passes 63 bits at index {}", cu.size() - 1);
    cu.push_back(*sum);
  }
  return cu;
}

// The number of each run: its index, or how many non-empty ones came before it.
std::vector<std::int64_t> numbers_of(const std::vector<std::int64_t>& offsets, bool without_empty) {
  std::vector<std::int64_t> numbers(offsets.size() - 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (without_empty)
    for (std::size_t i = 0, seen = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<std::int64_t>(seen);
      seen += offsets[i + 1] > offsets[i];
    }
  return numbers;
}

std::vector<std::int64_t> chunk_offsets_of(const ArraySource& cu_seqlens, std::int64_t chunk_size) {
  if (chunk_size < 1) throw core::invalid("the chunk size is {}; it must be at least 1", chunk_size);
  std::vector<std::int64_t> counts = lengths_of(core::read_offsets(cu_seqlens));
  for (std::int64_t& n : counts) n = core::ceil_div(n, chunk_size);
  return running_sum(counts);
}

// Where the True elements of a mask's rows are.
struct Extent {
  std::int64_t count = 0, first = 0, end = 0;
};

std::vector<Extent> extents_of(const ArraySource& mask, MaskIntegers integers) {
  sequence::check_row_mask(mask);
  std::vector<Extent> extents(static_cast<std::size_t>(mask.shape()[0]));
  sequence::scan_rows(
      mask, integers,
      [&](std::int64_t row, std::int64_t column, const std::uint64_t* bits, std::int64_t width) {
        Extent& extent = extents[static_cast<std::size_t>(row)];
        const std::int64_t words = core::ceil_div(width, 64);
        const std::int64_t count = kernels::active().count_bits(bits, words);
        if (count == 0) return;
        std::int64_t low = 0, high = words - 1;
        while (bits[low] == 0) ++low;
        while (bits[high] == 0) --high;
        if (extent.count == 0) extent.first = column + 64 * low + std::countr_zero(bits[low]);
        extent.end = column + 64 * high + 64 - std::countl_zero(bits[high]);
        extent.count += count;
      });
  return extents;
}

}  // namespace

Array cdiv(const ArraySource& a, std::int64_t b) {
  if (!is_integer(a.dtype()))
    throw core::invalid("{}: cdiv takes integers, not {}", a.name(), name_of(a.dtype()));
  if (b < 1) throw core::invalid("the divisor is {}; it must be at least 1", b);
  Array quotients = read_all(a);
  dispatch(quotients.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      // A divisor beyond the type gives 0 for a ≤ 0 and 1 above; without a + b - 1 nothing can overflow.
      const bool beyond = std::cmp_greater(b, std::numeric_limits<T>::max());
      for (T& x : quotients.elements<T>()) {
        if (beyond) {
          const bool minus_one = std::cmp_less_equal(x, -b);
          x = static_cast<T>(x > 0 ? 1 : minus_one ? -1 : 0);
        } else {
          const T divisor = static_cast<T>(b);
          x = static_cast<T>(x / divisor + (x % divisor > 0 ? 1 : 0));
        }
      }
    }
  });
  return quotients;
}

Array prepare_lens(const IntegerArray& cu) {
  return core::to_array(lengths_of(core::read_offsets(cu)), cu->dtype(), "lens");
}

Array prepare_lens_from_mask(const ArraySource& mask) {
  return core::to_array(inspect_padding(mask, MaskIntegers::any).lens, DType::int32, "lens");
}

RowPadding inspect_padding(const ArraySource& mask, MaskIntegers integers) {
  RowPadding padding;
  for (const Extent& row : extents_of(mask, integers)) {
    padding.lens.push_back(row.count);
    if (row.count == 0) continue;
    padding.left_padded += row.first > 0;
    padding.with_holes += row.end - row.first > row.count;
  }
  return padding;
}

SequenceCounts count_sequences(const IntegerArray& cu) {
  const std::vector<std::int64_t> offsets = core::read_offsets(cu);
  SequenceCounts counts{static_cast<std::int64_t>(offsets.size()) - 1, offsets.back(), 0, 0};
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t length = offsets[i + 1] - offsets[i];
    counts.empty += length == 0;
    counts.longest = std::max(counts.longest, length);
  }
  return counts;
}

Array prepare_cu_seqlens_from_mask(const ArraySource& mask, DType out_dtype) {
  return core::to_array(running_sum(inspect_padding(mask, MaskIntegers::any).lens), out_dtype, "cu_seqlens");
}

Array prepare_cu_seqlens_from_lens(const IntegerArray& lens, DType out_dtype) {
  const std::vector<std::int64_t> lengths = core::read_integers(lens, "lens");
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 0) throw core::invalid("{}: lens[{}] is {}, negative", lens->name(), i, lengths[i]);
  return core::to_array(running_sum(lengths), out_dtype, "cu_seqlens");
}

std::shared_ptr<const ArraySource> prepare_position_ids(const IntegerArray& cu) {
  std::vector<std::int64_t> offsets = core::read_offsets(cu);
  return sequence::make_ids(std::move(offsets), {}, IdKind::position, cu->dtype(), "position_ids");
}

std::shared_ptr<const ArraySource> prepare_sequence_ids(const IntegerArray& cu, Convention convention) {
  std::vector<std::int64_t> offsets = core::read_offsets(cu),
                            numbers = numbers_of(offsets, convention != Convention::document);
  const DType dtype = size_of(cu->dtype()) == 8 ? DType::int64 : DType::int32;
  return sequence::make_ids(std::move(offsets), std::move(numbers), IdKind::label, dtype, "sequence_ids");
}

std::shared_ptr<const ArraySource> prepare_token_indices(const IntegerArray& cu, Convention convention) {
  std::vector<std::int64_t> offsets = core::read_offsets(cu),
                            numbers = numbers_of(offsets, convention != Convention::document);
  return sequence::make_ids(std::move(offsets), std::move(numbers), IdKind::both, cu->dtype(),
                            "token_indices");
}

std::shared_ptr<const ArraySource> prepare_chunk_indices(const IntegerArray& cu, std::int64_t chunk_size,
                                                         Convention convention) {
  std::vector<std::int64_t> offsets = chunk_offsets_of(cu, chunk_size),
                            numbers = numbers_of(offsets, convention == Convention::ejkernel);
  return sequence::make_ids(std::move(offsets), std::move(numbers), IdKind::both, cu->dtype(),
                            "chunk_indices");
}

Array prepare_chunk_offsets(const IntegerArray& cu, std::int64_t chunk_size) {
  return core::to_array(chunk_offsets_of(cu, chunk_size), cu->dtype(), "chunk_offsets");
}

// Offsets, lengths, their sums and labels: up to eight numbers of 64 bits a sequence.
std::int64_t sequence_work_bytes(const ArrayType& input) {
  return input.shape.empty() ? 0 : core::bytes_of_estimate(8 * 8 * static_cast<double>(input.shape[0]));
}

}  // namespace ejk
