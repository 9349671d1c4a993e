// Stored masks: the elements of an array, in a file or in memory.
//
// Elements become bits as they are read: mapped, row-contiguous arrays at memory bandwidth, others after a
// copy of a few rows. Integers are first tested for a second non-zero value, while they are in the cache.
// tests: tests/mask/test_array_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/checked.hpp"
#include "core/id_values.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"
#include "mask/node.hpp"
#include "mask/patterns.hpp"

namespace ejk {

namespace {

using namespace mask;

constexpr std::int64_t kAtOnce = std::int64_t{1} << 11;  // elements; a multiple of 64

template <class T>
void require_additive(const T* in, std::int64_t n, std::int64_t q, std::int64_t k, const std::string& name) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto hides = static_cast<Wide>(T(kMaskedBias));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<Wide>(in[i]);
    if (v != 0 && !(v <= hides))
      throw Error(
          Error::Kind::input,
          fmt::format("{}: element [{}, {}] is {}: an additive mask holds 0 (attend) and -1e4 or less (hide)",
                      name, q, k + i, v),
          v == 1  ? Error::Code::ones_in_mask
          : v < 0 ? Error::Code::bias_in_mask
                  : Error::Code::other)
          .hint(v == 1 ? "a mask of numbers 0 and 1 is to be converted to bool" : "");
  }
}

// Truth of an additive bias, without branches, which random masks would mispredict: as unsigned integers, the
// bits of negative numbers increase up to -infinity.
template <class T>
void additive_bits(const T* in, std::int64_t n, Word* out, std::int64_t q, std::int64_t k,
                   const std::string& name) {
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  const auto bits_of = [](double x) {
    return std::bit_cast<Bits>(T(static_cast<std::conditional_t<sizeof(T) == 8, double, float>>(x)));
  };
  const Bits hides = bits_of(kMaskedBias), lowest = bits_of(-HUGE_VAL);
  for (std::int64_t done = 0; done < n; done += kAtOnce, out += kAtOnce / 64) {
    const std::int64_t count = std::min(kAtOnce, n - done);
    std::uint8_t attends[kAtOnce];
    Bits wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<Bits>(in[done + i]);
      const bool is_zero = static_cast<Bits>(bits << 1) == 0;
      attends[i] = is_zero;
      wrong |= static_cast<Bits>(static_cast<int>(!is_zero) &
                                 (static_cast<int>(bits < hides) | static_cast<int>(bits > lowest)));
    }
    if (wrong != 0) require_additive(in + done, count, q, k + done, name);
    kernels::active().nonzero_bits_8(attends, count, out);
  }
}

class ArrayMask final : public MaskNode {
 public:
  ArrayMask(std::shared_ptr<const ArraySource> source, Polarity polarity)
      : MaskNode(source->shape()[0], source->shape()[1]),
        source_(std::move(source)),
        polarity_(polarity),
        dtype_(source_->dtype()),
        view_(source_->mapped()) {}

  bool random_access() const override { return source_->random_access(); }
  std::string text() const override {
    const char* kind = polarity_ == Polarity::drop       ? ", drop"
                       : polarity_ == Polarity::additive ? ", additive"
                                                         : "";
    return fmt::format("file({}{})", source_->name(), kind);
  }

  bool same_as(const MaskNode& other, IndexRange queries) const override;
  std::uint64_t stored_hash(IndexRange queries) const override;
  std::int64_t stored_bytes() const override { return size_of(dtype_); }

  void fill(const Rectangle& where, const BitRows& out) const override {
    const std::int64_t size = size_of(dtype_);
    if (view_ && (view_->strides[1] == size || where.columns() == 1)) {
      for (std::int64_t r = 0; r < out.rows; ++r)
        row_bits(view_->data + (where.q_begin + r) * view_->strides[0] + where.k_begin * view_->strides[1],
                 out.columns, out.row(r), where.q_begin + r, where.k_begin);
      return;
    }
    if (view_ && view_->strides[0] == size && polarity_ != Polarity::additive)
      return fill_by_columns(where, out);
    constexpr std::int64_t kBytesAtOnce = std::int64_t{4} << 20;
    const std::int64_t rows_at_once = std::max<std::int64_t>(1, kBytesAtOnce / (out.columns * size));
    thread_local std::vector<std::byte> raw;
    for (std::int64_t r = 0; r < out.rows; r += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, out.rows - r);
      raw.resize(static_cast<std::size_t>(rows * out.columns * size));
      copy_rows(where.q_begin + r, rows, where.k_begin, out.columns, raw.data());
      for (std::int64_t i = 0; i < rows; ++i)
        row_bits(raw.data() + i * out.columns * size, out.columns, out.row(r + i), where.q_begin + r + i,
                 where.k_begin);
    }
  }

 private:
  // The elements of a column are side by side: squares of 64 x 64 bits are transposed. Columns may be a page apart,
  // which processors do not prefetch by themselves.
  void fill_by_columns(const Rectangle& where, const BitRows& out) const {
    const auto at = [&](std::int64_t q, std::int64_t k) {
      return view_->data + (where.q_begin + q) * view_->strides[0] + (where.k_begin + k) * view_->strides[1];
    };
    for (std::int64_t k = 0; k < out.columns; k += 64)
      for (std::int64_t q = 0; q < out.rows; q += 64) {
        const std::int64_t rows = std::min<std::int64_t>(64, out.rows - q);
        Word square[64] = {};
        for (std::int64_t i = 0; i < std::min<std::int64_t>(64, out.columns - k); ++i) {
          if (k + i + 64 < out.columns) __builtin_prefetch(at(q, k + i + 64));
          row_bits(at(q, k + i), rows, square + i, where.q_begin + q, where.k_begin + k + i);
        }
        transpose_64(square);
        for (std::int64_t i = 0; i < rows; ++i) out.row(q + i)[k / 64] = square[i];
      }
  }

  // Calls f(where) for chunks of rows, `in_order` or on several threads, until it returns false. Sequential
  // sources are read in chunks of 64 MiB of bits, since going back is slow.
  template <class F>
  void for_each_stripe(IndexRange queries, bool in_order, F&& f) const {
    const std::int64_t bits_at_once = std::int64_t{1} << (in_order ? 29 : 21);
    const std::int64_t rows_at_once = std::max<std::int64_t>(1, bits_at_once / kv_length());
    const std::int64_t stripes = core::ceil_div(queries.count(), rows_at_once);
    std::atomic<bool> goes_on{true};
    const auto stripe = [&](std::int64_t s) {
      const std::int64_t q = queries.begin + s * rows_at_once;
      if (goes_on.load(std::memory_order_relaxed) &&
          !f(Rectangle{q, std::min(queries.end, q + rows_at_once), 0, kv_length()}))
        goes_on.store(false, std::memory_order_relaxed);
    };
    if (!in_order) {
      const double elements = static_cast<double>(queries.count()) * static_cast<double>(kv_length());
      core::parallel_for(stripes, elements / 4, stripe);
    } else {
      for (std::int64_t s = 0; s < stripes; ++s) stripe(s);
    }
  }

  void row_bits(const std::byte* in, std::int64_t n, Word* out, std::int64_t q, std::int64_t k) const {
    const kernels::Kernels& kernel = kernels::active();
    if (polarity_ == Polarity::additive) {
      dispatch(dtype_, [&](auto type) {
        using T = typename decltype(type)::type;
        if constexpr (is_wide_float(dtype_of<T>()))
          additive_bits(reinterpret_cast<const T*>(in), n, out, q, k, source_->name());
      });
      return;
    }
    if (dtype_ == DType::boolean) kernel.nonzero_bits_8(in, n, out);
    for (std::int64_t i = 0; i < n && dtype_ != DType::boolean; i += kAtOnce) {
      const std::byte* from = in + i * size_of(dtype_);
      const std::int64_t count = std::min(kAtOnce, n - i);
      const auto convert = [&](auto unsigned_of_size, auto to_bits) {
        using T = decltype(unsigned_of_size);
        const auto* elements = reinterpret_cast<const T*>(from);
        if (!value_.holds(elements, count)) throw several_values(elements, count, q, k + i);
        to_bits(from, count, out + i / 64);
      };
      switch (size_of(dtype_)) {
        case 1:
          convert(std::uint8_t{}, kernel.nonzero_bits_8);
          break;
        case 2:
          convert(std::uint16_t{}, kernel.nonzero_bits_16);
          break;
        case 4:
          convert(std::uint32_t{}, kernel.nonzero_bits_32);
          break;
        default:
          convert(std::uint64_t{}, kernel.nonzero_bits_64);
      }
    }
    if (polarity_ == Polarity::drop) {
      for (std::int64_t w = 0; w < words_for(n); ++w) out[w] = ~out[w];
      if (n % 64 != 0) out[n / 64] &= low_bits(n % 64);
    }
  }

  // With random access the first position in the array is named, for any number of threads.
  template <class T>
  Error several_values(const T* elements, std::int64_t n, std::int64_t q, std::int64_t k) const {
    T first = random_access() ? T{0} : static_cast<T>(value_.value()), second = 0;
    const auto find_second = [&](const T* in, std::int64_t columns) {
      for (std::int64_t i = 0; i < columns; ++i) {
        if (first == 0) first = in[i];
        if (in[i] == 0 || in[i] == first) continue;
        second = in[i], k += i;
        return true;
      }
      return false;
    };
    if (!random_access()) {
      find_second(elements, n);
    } else {
      std::vector<T> row(static_cast<std::size_t>(kv_length()));
      q = -1, k = 0;
      do {
        copy_rows(++q, 1, 0, kv_length(), reinterpret_cast<std::byte*>(row.data()));
      } while (!find_second(row.data(), kv_length()) && q + 1 < q_length());
    }
    const auto text = [&](T v) {
      return dtype_ < DType::uint8 ? fmt::format("{}", static_cast<std::make_signed_t<T>>(v))
                                   : fmt::format("{}", v);
    };
    return Error(
               Error::Kind::input,
               fmt::format(
                   "{}: element [{}, {}] is {} and another is {}: a mask of integers holds 0 and one other value",
                   source_->name(), q, k, text(second), text(first)),
               Error::Code::ids_in_mask)
        .hint(
            "ids of segments make segments_mask, positions that count from 0 documents_mask of their cu_seqlens");
  }

  void copy_rows(std::int64_t q, std::int64_t rows, std::int64_t k, std::int64_t columns,
                 std::byte* out) const {
    if (!view_) {
      source_->read(Shape{q, k}, Shape{rows, columns}, out);
      return;
    }
    ArrayView part = *view_;
    part.data += q * part.strides[0] + k * part.strides[1];
    part.shape = {rows, columns};
    copy_elements(part, out);
  }

  std::shared_ptr<const ArraySource> source_;
  Polarity polarity_;
  DType dtype_;
  std::optional<ArrayView> view_;
  mutable core::OnlyValue value_;
};

bool ArrayMask::same_as(const MaskNode& other, IndexRange queries) const {
  const auto& o = static_cast<const ArrayMask&>(other);
  if (source_ == o.source_ && polarity_ == o.polarity_) return true;
  if (view_ && o.view_ && view_->data == o.view_->data && view_->strides == o.view_->strides &&
      dtype_ == o.dtype_ && polarity_ == o.polarity_)
    return true;
  std::atomic<bool> same{true};
  for_each_stripe(queries, !random_access() || !o.random_access(), [&](const Rectangle& where) {
    BitBuffer own_bits, other_bits;
    const BitRows a = own_bits.rows(where.rows(), where.columns()),
                  b = other_bits.rows(where.rows(), where.columns());
    fill(where, a);
    o.fill(where, b);
    if (!std::equal(a.words, a.words + a.rows * a.row_words, b.words)) same = false;
    return same.load();
  });
  return same;
}

std::uint64_t ArrayMask::stored_hash(IndexRange queries) const {
  std::atomic<std::uint64_t> sum{0};
  for_each_stripe(queries, !random_access(), [&](const Rectangle& where) {
    BitBuffer buffer;
    const BitRows rows = buffer.rows(where.rows(), where.columns());
    fill(where, rows);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const Word row[] = {static_cast<Word>(where.q_begin + r), hash_words(rows.row(r), rows.row_words)};
      sum += hash_words(row, std::ssize(row));
    }
    return true;
  });
  return sum;
}

class SliceSource final : public ForwardingSource {
 public:
  SliceSource(std::shared_ptr<const ArraySource> source, ArrayType type, ArrayAccess access, std::string name,
              std::int64_t index)
      : ForwardingSource(std::move(source), std::move(type), std::move(access), std::move(name)),
        index_(index) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    Shape from{index_}, length{1};
    from.insert(from.end(), start.begin(), start.end());
    length.insert(length.end(), count.begin(), count.end());
    inner().read(from, length, out);
  }

 private:
  std::int64_t index_;
};

}  // namespace

std::shared_ptr<const ArraySource> slice_of(std::shared_ptr<const ArraySource> array, std::int64_t index) {
  const Shape& whole = core::required(array).shape();
  if (whole.empty() || index < 0 || index >= whole[0])
    throw core::usage("{}: there is no slice {} of an array of shape {}", array->name(), index,
                      to_string(whole));
  ArrayType type(array->dtype(), Shape(whole.begin() + 1, whole.end()));
  ArrayAccess access = array->access();
  if (access.view) access.view = (*access.view)[index];
  std::string name = fmt::format("{}[{}]", array->name(), index);
  return std::make_shared<SliceSource>(std::move(array), std::move(type), std::move(access), std::move(name),
                                       index);
}

Mask array_mask(std::shared_ptr<const ArraySource> array) {
  if (core::required(array).shape().size() == 2 && array->dtype() != DType::boolean)
    throw core::invalid("{}: a mask must be bool, not {}", array->name(), name_of(array->dtype()));
  return array_mask(std::move(array), Polarity::keep);
}

Mask array_mask(std::shared_ptr<const ArraySource> array, Polarity polarity) {
  const auto fail = [&](const std::string& why, Error::Code code = Error::Code::other) {
    return Error(Error::Kind::input, array->name() + ": " + why, code);
  };
  if (core::required(array).shape().size() != 2)
    throw fail(
        fmt::format("a mask has two axes, queries and keys, not the shape {}", to_string(array->shape())));
  const DType dtype = array->dtype();
  if (is_float(dtype) && polarity != Polarity::additive)
    throw fail(fmt::format("a mask of dtype {} does not say what its numbers mean", name_of(dtype)),
               Error::Code::float_mask)
        .hint(
            "numbers 0 and 1 are to be converted to bool; numbers that are added to scores are "
            "Polarity::additive (0 attends, -1e4 and less hides)");
  if (is_8_bit_float(dtype))
    throw fail(fmt::format("{} has no numbers that hide, of -1e4 and less", name_of(dtype)));
  if (!is_float(dtype) && polarity == Polarity::additive)
    throw fail(fmt::format("an additive mask must have a float dtype, not {}", name_of(dtype)),
               Error::Code::integer_mask)
        .hint("Polarity::keep: non-zero attends; Polarity::drop: non-zero hides");
  return Mask(std::make_shared<ArrayMask>(std::move(array), polarity));
}

PaddingGuess padding_guess(const Mask& mask) {
  constexpr std::int64_t kMost = 1024, kFew = 64, kTimes = 4;  // rows, and the ratio of columns to few rows
  const std::int64_t rows = mask.q_length(), columns = mask.kv_length();
  if (rows < 1 || rows > kMost || columns <= rows || !mask.node().random_access()) return PaddingGuess::none;
  BitBuffer buffer;
  std::int64_t steps = 0, changes = 0, up = 0, down = 0;
  IndexRange before{0, 0};
  for (std::int64_t q = 0; q < rows; ++q) {
    const BitRows row = buffer.rows(1, columns);
    mask.node().fill({q, q + 1, 0, columns}, row);
    std::int64_t runs = 0;
    IndexRange run{0, 0};
    for_each_run(std::span(row.words, static_cast<std::size_t>(row.row_words)), columns, true,
                 [&](std::int64_t begin, std::int64_t end) {
                   ++runs, run = {begin, end};
                 });
    if (runs > 1 || (run.begin > 0 && run.end < columns)) return PaddingGuess::none;
    changes += q > 0 && (run.begin != before.begin || run.end != before.end);
    up += q > 0 && (run.begin > before.begin || run.end > before.end);
    down += q > 0 && (run.begin < before.begin || run.end < before.end);
    // One key more or less than the previous query: the edge of a causal mask or window.
    steps += q > 0 && (run.end == before.end + 1 || run.begin == before.begin + 1);
    before = run;
  }
  if (rows > 1 && steps >= rows - 1) return PaddingGuess::none;
  // Monotone edges of several rows are rather those of blocks or a window.
  constexpr std::int64_t kSeveral = 4;
  if (changes > 0 && (rows < kSeveral || (up > 0 && down > 0))) return PaddingGuess::likely;
  return rows <= kFew && columns >= kTimes * rows ? PaddingGuess::possible : PaddingGuess::none;
}

}  // namespace ejk
