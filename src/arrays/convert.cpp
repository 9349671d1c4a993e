// Conversion of elements by branch-free, vectorised loops over short ranges; one with an invalid value is
// scanned again for it.
// tests: tests/arrays/test_convert.cpp
#include "arrays/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "arrays/cast.hpp"
#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"
#include "kernels/kernels.hpp"
#include "kernels/matmul.hpp"

namespace ejk::arrays {

namespace {

template <class To, class From>
std::optional<std::int64_t> convert_run(const Stored<From>* from, Stored<To>* to, std::int64_t n) {
  constexpr std::int64_t kRun = 2048;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = std::min(n, begin + kRun);
    bool good = true;
    for (std::int64_t i = begin; i < end; ++i) good &= cast<To>(widen<From>(from[i]), to[i]);
    if (good) continue;
    for (std::int64_t i = begin; i < end; ++i)
      if (!cast<To>(widen<From>(from[i]), to[i])) return i;
  }
  return std::nullopt;
}

// Returns the number of elements that overflow.
template <class To>
std::int64_t round_to(const float* from, std::int64_t n, std::uint32_t overflowed, To* to) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto rounded = To::rounded(from[i], overflowed);
    to[i].bits = rounded.bits;
    count += rounded.overflows;
  }
  return count;
}

std::string text_of(DType dtype, const std::byte* element) {
  return dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    return fmt::format("{}", +widen<T>(*reinterpret_cast<const Stored<T>*>(element)));
  });
}

// The one element that all are stays one, if the new type can hold it.
ArrayAccess access_as(DType dtype, const ArraySource& source, const OverflowSettings& overflows) {
  ArrayAccess access(source.access().order);
  const std::vector<std::byte>& uniform = source.access().uniform;
  if (uniform.empty()) return access;
  access.uniform.resize(static_cast<std::size_t>(size_of(dtype)));
  std::atomic<std::int64_t> count = 0;
  if (convert_elements(source.dtype(), uniform.data(), dtype, access.uniform.data(), 1,
                       {overflows.to, &count}))
    access.uniform.clear();
  if (overflows.count != nullptr) *overflows.count += count * element_count(source.shape());
  return access;
}

class ConvertedSource final : public ForwardingSource {
 public:
  ConvertedSource(const std::shared_ptr<const ArraySource>& source, DType dtype,
                  const OverflowSettings& overflows)
      : ForwardingSource(source, {dtype, source->shape()}, access_as(dtype, *source, overflows)),
        overflows_(overflows) {
    if (!access().uniform.empty()) overflows_.count = nullptr;  // counted already
  }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t n = element_count(count);
    if (n == 0) return;
    if (random_access() && inner().access().prefer == ArrayAccess::Prefer::read) {
      read_in_pieces(start, count, static_cast<std::byte*>(out));
      return;
    }
    const std::int64_t size = size_of(inner().dtype());
    std::optional<ArrayView> view = inner().mapped();
    if (view) view = box_of(*view, start, count);
    const bool in_place = view && view->is_c_contiguous();
    Array box;
    if (!in_place) {
      box = Array(inner().dtype(), Shape(count.begin(), count.end()));
      inner().read(start, count, box.data());
    }
    const std::byte* from = in_place ? view->data : box.data();
    constexpr std::int64_t kPiece = std::int64_t{1} << 16;
    core::parallel_for(core::ceil_div(n, kPiece), static_cast<double>(n), [&](std::int64_t piece) {
      const std::int64_t begin = piece * kPiece, length = std::min(kPiece, n - begin);
      const auto bad =
          convert_elements(inner().dtype(), from + begin * size, dtype(),
                           static_cast<std::byte*>(out) + begin * size_of(dtype()), length, overflows_);
      if (bad) refuse(start, count, begin + *bad, from + (begin + *bad) * size);
    });
    if (in_place) inner().release(from, n * size);
  }

 private:
  // Through buffers that stay in a second-level cache.
  void read_in_pieces(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                      std::byte* out) const {
    constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // bytes
    const std::int64_t n = element_count(count), size = size_of(inner().dtype()), piece = kPiece / size;
    core::parallel_for(core::ceil_div(n, piece), static_cast<double>(n), [&](std::int64_t i) {
      const auto buffer =
          std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(std::min(n, piece) * size));
      std::int64_t done = i * piece;
      core::for_each_box(count, done, std::min(n, done + piece), [&](const Shape& first, const Shape& some) {
        Shape from = first;
        for (std::size_t d = 0; d < from.size(); ++d) from[d] += start[d];
        inner().read(from, some, buffer.get());
        const std::int64_t length = element_count(some);
        const auto bad = convert_elements(inner().dtype(), buffer.get(), dtype(),
                                          out + done * size_of(dtype()), length, overflows_);
        if (bad) refuse(start, count, done + *bad, buffer.get() + *bad * size);
        done += length;
      });
    });
  }

  [[noreturn]] void refuse(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                           std::int64_t flat, const std::byte* element) const {
    Shape index = core::index_of(count, flat);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] += start[d];
    throw core::invalid("{}: element {} is {}, which {} cannot hold", name(), to_string(index),
                        text_of(inner().dtype(), element), name_of(dtype()));
  }

  OverflowSettings overflows_;
};

ArrayAccess viewed_access(ArrayAccess access, DType dtype) {
  if (access.view) access.view->dtype = dtype;
  return access;
}

class ViewedSource final : public ForwardingSource {
 public:
  ViewedSource(const std::shared_ptr<const ArraySource>& source, DType dtype)
      : ForwardingSource(source, {dtype, source->shape()}, viewed_access(source->access(), dtype)) {}
};

constexpr std::int64_t kBlock = 2048;  // floats on the stack

// Whether elements have at most 16 bits.
bool is_small(DType dtype) { return size_of(dtype) <= 2; }

// Elements of a small type, whose numbers float32 has.
void widen_small(DType from_type, const std::byte* from, std::int64_t n, float* to) {
  const kernels::Codes& codes = kernels::active().codes;
  if (!is_float(from_type))
    return dispatch_wide(from_type, [&]<class From>(std::type_identity<From>) {
      convert_run<float, From>(reinterpret_cast<const Stored<From>*>(from), to, n);
    });
  if (!is_8_bit_float(from_type)) return codes.widen(from_type, from, n, to);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(from);
  if (from_type == DType::float8_e8m0fnu) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = float8_e8m0fnu::values()[bytes[i]];
    return;
  }
  const float one = 1;
  codes.decode(float_format(from_type), bytes, n, {&one, n}, 1, to);
}

// Float32 has all numbers of `from_type`, so each is rounded once.
std::optional<std::int64_t> convert_small(DType from_type, const std::byte* from, DType to_type,
                                          std::byte* to, std::int64_t n, const OverflowSettings& overflows) {
  if (to_type == DType::float32) {
    widen_small(from_type, from, n, reinterpret_cast<float*>(to));
    return std::nullopt;
  }
  float block[kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t some = std::min(kBlock, n - begin);
    widen_small(from_type, from + begin * size_of(from_type), some, block);
    const auto bad = convert_elements(DType::float32, reinterpret_cast<const std::byte*>(block), to_type,
                                      to + begin * size_of(to_type), some, overflows);
    if (bad) return begin + *bad;
  }
  return std::nullopt;
}

void round_to_8_bit(DType from_type, const std::byte* from, DType to_type, std::byte* to, std::int64_t n,
                    const OverflowSettings& overflows) {
  float block[kBlock];
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t m = std::min(kBlock, n - begin);
    const float* floats = block;
    dispatch_wide(from_type, [&]<class From>(std::type_identity<From>) {
      const auto* x = reinterpret_cast<const Stored<From>*>(from) + begin;
      if constexpr (std::is_same_v<From, float>)
        floats = x;
      else
        for (std::int64_t i = 0; i < m; ++i) block[i] = to_be_rounded(widen<From>(x[i]));
    });
    dispatch(to_type, [&]<class To>(std::type_identity<To>) {
      if constexpr (is_8_bit_float(dtype_of<To>()))
        count += round_to(floats, m, To::kCodes.overflowed(overflows.to.value_or(To::default_overflow)),
                          reinterpret_cast<To*>(to) + begin);
    });
  }
  if (overflows.count != nullptr && count > 0) *overflows.count += count;
}

}  // namespace

std::optional<std::int64_t> convert_elements(DType from_type, const std::byte* from, DType to_type,
                                             std::byte* to, std::int64_t n,
                                             const OverflowSettings& overflows) {
  if (is_small(from_type) && (is_float(from_type) || (is_float(to_type) && is_small(to_type))))
    return convert_small(from_type, from, to_type, to, n, overflows);
  if (is_8_bit_float(to_type)) {
    round_to_8_bit(from_type, from, to_type, to, n, overflows);
    return std::nullopt;
  }
  if ((from_type == DType::float32 || from_type == DType::float64) && is_float(to_type)) {
    const kernels::Products& kernels = kernels::active().products;
    (from_type == DType::float32 ? kernels.convert_f32 : kernels.convert_f64)(from, n, to_type, false, to);
    return std::nullopt;
  }
  return dispatch_wide(from_type, [&]<class From>(std::type_identity<From>) {
    return dispatch_wide(to_type, [&]<class To>(std::type_identity<To>) {
      if constexpr (is_small_float<From>)
        return std::optional<std::int64_t>();  // by convert_small()
      else
        return convert_run<To, From>(reinterpret_cast<const Stored<From>*>(from),
                                     reinterpret_cast<Stored<To>*>(to), n);
    });
  });
}

}  // namespace ejk::arrays

namespace ejk {

std::shared_ptr<const ArraySource> convert_array(std::shared_ptr<const ArraySource> x, DType dtype,
                                                 const OverflowSettings& overflows) {
  const bool turns_infinities = overflows.to && is_8_bit_float(dtype) && float_format(dtype).has_infinity();
  if (core::required(x).dtype() == dtype && !turns_infinities) return x;
  if (is_8_bit_float(dtype) && overflows.to == Overflow::infinity && !float_format(dtype).has_infinity())
    throw core::usage("{} has no infinity", name_of(dtype));
  return std::make_shared<arrays::ConvertedSource>(x, dtype, overflows);
}

std::shared_ptr<const ArraySource> view_array(std::shared_ptr<const ArraySource> x, DType dtype) {
  if (core::required(x).dtype() == dtype) return x;
  const std::int64_t size = size_of(x->dtype());
  if (size != size_of(dtype))
    throw core::usage("{}: {} has {} byte{}, {} has {}", x->name(), name_of(x->dtype()), size,
                      size == 1 ? "" : "s", name_of(dtype), size_of(dtype));
  return std::make_shared<arrays::ViewedSource>(x, dtype);
}

}  // namespace ejk
