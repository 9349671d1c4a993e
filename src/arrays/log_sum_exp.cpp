// ln Σ exp(x) in one pass. A sum is its largest term m and Σ exp(x - m); merging scales the smaller one. The
// array is viewed as (outer, n, inner). Boxes of whole sums are finished in parallel; partial sums of larger
// ones are merged in the order of boxes, whatever the threads. Cost: one exp per element.
// tests: tests/arrays/test_log_sum_exp.cpp
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "arrays/boxes.hpp"
#include "arrays/cast.hpp"
#include "arrays/convert.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "ejk/array_math.hpp"

namespace ejk {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct ScaledSum {
  double m = -kInfinity;
  double s = 0;  // NaN once there was one
};

ScaledSum joined(const ScaledSum& a, const ScaledSum& b) {
  if (a.m == b.m) return {a.m, a.s + b.s};
  const ScaledSum &large = a.m > b.m ? a : b, &small = a.m > b.m ? b : a;
  return {large.m, large.s + small.s * std::exp(small.m - large.m)};
}

double value_of(const ScaledSum& sum) {
  if (std::isnan(sum.s)) return sum.s;
  return std::isinf(sum.m) ? sum.m : sum.m + std::log(sum.s);
}

// Of n elements `stride` apart, from element `first` on.
template <class T>
ScaledSum sum_as(const std::byte* data, std::int64_t first, std::int64_t n, std::int64_t stride) {
  const auto* const x = reinterpret_cast<const arrays::Stored<T>*>(data) + first;
  const auto at = [&](std::int64_t i) { return static_cast<double>(arrays::widen<T>(x[i * stride])); };
  ScaledSum sum;
  bool has_nan = false;
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = at(i);
    sum.m = v > sum.m ? v : sum.m;
    has_nan |= v != v;
  }
  if (has_nan) return {sum.m, std::numeric_limits<double>::quiet_NaN()};
  if (std::isinf(sum.m)) return {sum.m, sum.m > 0 ? 1.0 : 0.0};
  for (std::int64_t i = 0; i < n; ++i) sum.s += std::exp(at(i) - sum.m);
  return sum;
}

using SumOf = ScaledSum (*)(const std::byte*, std::int64_t, std::int64_t, std::int64_t);
SumOf sum_of(DType wide) {
  return dispatch_wide(wide, []<class T>(std::type_identity<T>) -> SumOf { return sum_as<T>; });
}

DType result_type(DType dtype) { return is_wide_float(dtype) ? dtype : DType::float32; }

Shape result_shape(const ArraySource& x, std::optional<std::int64_t> axis, Keepdims keepdims) {
  if (!axis) return keepdims == Keepdims::no ? Shape{} : Shape(x.shape().size(), 1);
  Shape shape = x.shape();
  const std::size_t d = core::axis_of(x.name(), shape, *axis);
  shape[d] = 1;
  if (keepdims == Keepdims::no) shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d));
  return shape;
}

void store(Array& out, std::int64_t i, double value) {
  dispatch_wide(out.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, bool>)
      arrays::cast<T>(value, out.elements<T>()[static_cast<std::size_t>(i)]);
  });
}

// The array as (outer, n, inner).
struct Extents {
  std::int64_t outer = 1, n = 1, inner = 1;
  Extents(const ArraySource& x, std::optional<std::int64_t> axis) {
    const Shape& shape = x.shape();
    if (!axis) {
      n = element_count(shape);
      return;
    }
    const std::size_t d = core::axis_of(x.name(), shape, *axis);
    n = shape[d];
    outer = element_count(std::span(shape).first(d));
    inner = element_count(std::span(shape).subspan(d + 1));
  }
};

// Partial sums of one box within one outer index: those of the inner indices first, first + 1, …
struct Partial {
  std::int64_t outer = 0, first = 0;
  std::vector<ScaledSum> sums;
};

Partial partial_of(SumOf sum, const std::byte* x, std::int64_t before, std::int64_t elements,
                   const Extents& e) {
  const std::int64_t in_outer = before % (e.n * e.inner);
  Partial partial{before / (e.n * e.inner), 0, {}};
  if (elements >= e.inner) {  // whole rows of inner indices
    partial.sums.resize(static_cast<std::size_t>(e.inner));
    for (std::int64_t i = 0; i < e.inner; ++i)
      partial.sums[static_cast<std::size_t>(i)] = sum(x, i, elements / e.inner, e.inner);
    return partial;
  }
  partial.first = in_outer % e.inner;
  partial.sums.resize(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) partial.sums[static_cast<std::size_t>(i)] = sum(x, i, 1, 1);
  return partial;
}

}  // namespace

std::int64_t log_sum_exp_bytes(const ArraySource& x, std::optional<std::int64_t> axis) {
  const Extents e(x, axis);
  const DType dtype = arrays::wide_type(x.dtype());
  const std::int64_t bytes = byte_count(x.shape(), dtype), size = size_of(dtype);
  const std::int64_t most = x.random_access() ? threads() : 1;
  const bool whole = e.n * e.inner * size <= arrays::kBoxBytes;
  const auto sum_bytes = static_cast<std::int64_t>(sizeof(ScaledSum));
  return e.outer * e.inner * size_of(result_type(x.dtype())) + std::min(bytes, most * arrays::kBoxBytes) +
         (bytes / arrays::kBoxBytes + 1) * arrays::bytes_of_a_box(x.shape().size()) +
         (whole ? 0 : (e.inner + most * std::min(e.inner, arrays::kBoxBytes / size)) * sum_bytes);
}

Array log_sum_exp(const ArraySource& x, std::optional<std::int64_t> axis, Keepdims keepdims) {
  const Extents e(x, axis);
  Array out(result_type(x.dtype()), result_shape(x, axis, keepdims));
  const std::int64_t slab = e.n * e.inner;
  if (slab == 0 || out.size() == 0) {  // a sum of nothing
    for (std::int64_t i = 0; i < out.size(); ++i) store(out, i, -kInfinity);
    return out;
  }
  const auto wide = arrays::with_wide_floats(x);
  const arrays::Boxes boxes(x.shape(), arrays::kBoxBytes / size_of(wide->dtype()));
  const arrays::BoxReader reader(*wide);
  const int threads = reader.threads(boxes, 4);
  std::vector<std::vector<std::byte>> spare;  // buffers, from one wave of boxes to the next
  std::mutex sparing;
  const auto buffer = [&] {
    const std::scoped_lock lock(sparing);
    std::vector<std::byte> taken;
    if (!spare.empty()) taken.swap(spare.back()), spare.pop_back();
    return taken;
  };
  // f(elements, how many, how many before them) for the boxes from `begin` on.
  const auto visit = [&](std::int64_t begin, std::int64_t end, auto&& f) {
    core::parallel_reduce(
        end - begin, threads, buffer,
        [&](std::vector<std::byte>& elements, std::int64_t i) {
          const std::int64_t box = begin + i;
          f(reader.acquire(boxes, box, elements), i, boxes.elements(box),
            boxes.before[static_cast<std::size_t>(box)]);
          reader.release(boxes, box);
        },
        [&](std::vector<std::byte>& elements) { spare.push_back(std::move(elements)); });
  };
  const SumOf sum = sum_of(wide->dtype());
  if (boxes.elements(0) >= slab) {
    visit(0, boxes.size(), [&](const std::byte* data, std::int64_t, std::int64_t n, std::int64_t before) {
      for (std::int64_t i = 0; i < n / e.n; ++i)
        store(out, before / e.n + i, value_of(sum(data, i / e.inner * slab + i % e.inner, e.n, e.inner)));
    });
    return out;
  }
  std::vector<ScaledSum> open(static_cast<std::size_t>(e.inner));
  const std::int64_t wave = threads;
  std::vector<Partial> partials;
  for (std::int64_t begin = 0; begin < boxes.size(); begin += wave) {
    const std::int64_t end = std::min(boxes.size(), begin + wave);
    partials.assign(static_cast<std::size_t>(end - begin), {});
    visit(begin, end, [&](const std::byte* data, std::int64_t i, std::int64_t n, std::int64_t before) {
      partials[static_cast<std::size_t>(i)] = partial_of(sum, data, before, n, e);
    });
    for (std::int64_t box = begin; box < end; ++box) {
      const Partial& partial = partials[static_cast<std::size_t>(box - begin)];
      const auto joins = static_cast<std::int64_t>(partial.sums.size());
      for (std::int64_t i = 0; i < joins; ++i) {
        ScaledSum& all = open[static_cast<std::size_t>(partial.first + i)];
        all = joined(all, partial.sums[static_cast<std::size_t>(i)]);
      }
      if (boxes.before[static_cast<std::size_t>(box) + 1] % slab != 0) continue;
      for (std::int64_t i = 0; i < e.inner; ++i) {
        store(out, partial.outer * e.inner + i, value_of(open[static_cast<std::size_t>(i)]));
        open[static_cast<std::size_t>(i)] = ScaledSum{};
      }
    }
  }
  return out;
}

}  // namespace ejk
