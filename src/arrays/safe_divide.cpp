// Division of arrays with a default where the divisor is 0. Both operands of a box are converted to float or
// double and divided; 16-bit results are exact roundings.
// tests: tests/arrays/test_safe_divide.cpp
#include <algorithm>
#include <cmath>
#include <utility>

#include "arrays/cast.hpp"
#include "arrays/convert.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"

namespace ejk {

namespace {

DType float_of(DType dtype) { return is_wide_float(dtype) ? dtype : DType::float32; }

DType meet(DType a, DType b) {
  if (a == b) return a;
  return std::max({a, b, DType::float32});  // the enumeration ends with float32, float64
}

Shape broadcast(const ArraySource& a, const ArraySource& b) {
  const Shape &x = a.shape(), &y = b.shape();
  Shape shape(std::max(x.size(), y.size()), 1);
  for (std::size_t d = 1; d <= shape.size(); ++d) {
    const std::int64_t m = d <= x.size() ? x[x.size() - d] : 1, n = d <= y.size() ? y[y.size() - d] : 1;
    if (m != n && m != 1 && n != 1)
      throw core::invalid("{} of shape {} and {} of shape {} cannot be broadcast together", a.name(),
                          to_string(x), b.name(), to_string(y))
          .hint("from the last axis on, lengths are equal or one of them is 1");
    shape[shape.size() - d] = m == 1 ? n : m;
  }
  return shape;
}

class QuotientSource final : public ArraySource {
 public:
  QuotientSource(std::shared_ptr<const ArraySource> a, std::shared_ptr<const ArraySource> b, double least)
      : ArraySource({meet(float_of(a->dtype()), float_of(b->dtype())), broadcast(*a, *b)}, a->name(),
                    ArrayAccess(a->random_access() ? b->access().order : a->access().order)),
        a_(std::move(a)),
        b_(std::move(b)),
        least_(rounded_to(float_of(b_->dtype()), least)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    if (dtype() == DType::float64)
      divide<double>(start, count, static_cast<std::byte*>(out));
    else
      divide<float>(start, count, static_cast<std::byte*>(out));
  }

 private:
  static double rounded_to(DType dtype, double value) {
    return dispatch_wide(dtype, [&]<class T>(std::type_identity<T>) {
      arrays::Stored<T> rounded{};
      arrays::cast<T>(value, rounded);
      return static_cast<double>(arrays::widen<T>(rounded));
    });
  }

  // The part of an operand that a box needs, as F, and the operand's strides along the box's axes in
  // elements: 0 where it is the same all along.
  template <class F>
  struct Operand {
    Array elements;
    Shape strides;

    Operand(const ArraySource& source, std::span<const std::int64_t> start,
            std::span<const std::int64_t> count) {
      const Shape& shape = source.shape();
      const std::size_t ahead = count.size() - shape.size();
      Shape from(shape.size(), 0), extent(shape.size(), 1);
      for (std::size_t d = 0; d < shape.size(); ++d)
        if (shape[d] != 1) from[d] = start[ahead + d], extent[d] = count[ahead + d];
      Array box(source.dtype(), extent);
      source.read(from, extent, box.data());
      strides.assign(count.size(), 0);
      std::int64_t stride = 1;
      for (std::size_t d = shape.size(); d-- > 0; stride *= extent[d])
        if (extent[d] != 1) strides[ahead + d] = stride;
      if (box.dtype() == dtype_of<F>()) {
        elements = std::move(box);
        return;
      }
      elements = Array(dtype_of<F>(), extent);
      constexpr std::int64_t kPiece = std::int64_t{1} << 16;
      core::parallel_for(
          core::ceil_div(box.size(), kPiece), static_cast<double>(box.size()), [&](std::int64_t piece) {
            const std::int64_t begin = piece * kPiece;
            arrays::convert_elements(box.dtype(), box.data() + begin * size_of(box.dtype()), dtype_of<F>(),
                                     elements.data() + begin * static_cast<std::int64_t>(sizeof(F)),
                                     std::min(kPiece, box.size() - begin));
          });
    }
  };

  template <class F>
  void divide(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
              std::byte* out) const {
    const Operand<F> a(*a_, start, count), b(*b_, start, count);
    const auto least = static_cast<F>(least_);
    const bool raises_zero = least == F{0} && !std::signbit(least);
    const std::int64_t n = count.empty() ? 1 : count.back(), rows = element_count(count) / n;
    const std::int64_t a_step = count.empty() ? 0 : a.strides.back(),
                       b_step = count.empty() ? 0 : b.strides.back();
    const std::int64_t size = size_of(dtype());
    // Rows by the thousand, long ones cut.
    constexpr std::int64_t kPiece = std::int64_t{1} << 16;
    const std::int64_t parts = core::ceil_div(n, kPiece), together = std::max<std::int64_t>(kPiece / n, 1);
    core::parallel_for(core::ceil_div(rows, together) * parts, static_cast<double>(rows * n),
                       [&](std::int64_t job) {
                         std::vector<F> quotients(static_cast<std::size_t>(std::min(kPiece, n)));
                         const std::int64_t first = job / parts * together, begin = job % parts * kPiece;
                         const std::int64_t length = std::min(kPiece, n - begin);
                         for (std::int64_t row = first; row < std::min(rows, first + together); ++row) {
                           std::int64_t a_at = begin * a_step, b_at = begin * b_step, rest = row;
                           for (std::size_t d = count.size(); d-- > 1; rest /= count[d - 1]) {
                             a_at += rest % count[d - 1] * a.strides[d - 1];
                             b_at += rest % count[d - 1] * b.strides[d - 1];
                           }
                           const F* x = reinterpret_cast<const F*>(a.elements.data()) + a_at;
                           const F* y = reinterpret_cast<const F*>(b.elements.data()) + b_at;
                           F* to = quotients.data();
                           // Of two zeros the larger is that without a sign, as in IEEE 754's maximum.
                           const auto quotient = [least, raises_zero](F p, F q) {
                             return p / (q < least || (raises_zero && q == F{0}) ? least : q);
                           };
                           if (a_step == 1 && b_step == 1)
                             for (std::int64_t i = 0; i < length; ++i) to[i] = quotient(x[i], y[i]);
                           else
                             for (std::int64_t i = 0; i < length; ++i)
                               to[i] = quotient(x[i * a_step], y[i * b_step]);
                           arrays::convert_elements(dtype_of<F>(), reinterpret_cast<const std::byte*>(to),
                                                    dtype(), out + (row * n + begin) * size, length);
                         }
                       });
  }

  std::shared_ptr<const ArraySource> a_, b_;
  double least_;
};

}  // namespace

std::shared_ptr<const ArraySource> safe_divide(std::shared_ptr<const ArraySource> a,
                                               std::shared_ptr<const ArraySource> b, double min_denominator) {
  (void)core::required(a);
  (void)core::required(b);
  if (std::isnan(min_denominator))
    throw Error(Error::Kind::usage, "the least denominator is NaN, and no number is the larger of the two");
  return std::make_shared<QuotientSource>(std::move(a), std::move(b), min_denominator);
}

}  // namespace ejk
