// Two arrays are cut into the same boxes, and a box into blocks that stay in the nearest cache. A block is
// first tested as a whole, by plain loops that the compiler makes vectors of: all finite and all within the
// tolerance. Only a block that fails is gone through element by element. Boxes are joined in order, so the
// result does not depend on the threads. Cost: reading both arrays.
// tests: tests/verify/test_compare.cpp
#include "ejk/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "arrays/boxes.hpp"
#include "arrays/cast.hpp"
#include "arrays/convert.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"
#include "verify/describe.hpp"
#include "verify/error_stats.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kBlock = 2048;  // elements

// Of the elements that do not agree.
struct Pair {
  Extreme actual, expected;
};
using Worst = verify::Largest<std::int64_t, Pair>;

struct Part {
  std::int64_t differing = 0, both_zero = 0;
  std::int64_t actual_nans = 0, actual_infinities = 0, expected_nans = 0, expected_infinities = 0;
  Worst absolute, relative, ulps;
};

// How a float type is computed in: `Value` holds one, `round` brings a result back into the type.
template <class T>
struct Arithmetic {
  using Value = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static Value round(Value x) {
    if constexpr (arrays::is_half<T>)
      return arrays::widened(arrays::narrowed<T>(x));
    else
      return x;
  }
  // Integers in the order of the floats, one apart where the floats are neighbours.
  static std::int64_t order(Value x) {
    const auto signed_magnitude = [](auto bits, auto sign) {
      const auto magnitude = static_cast<std::int64_t>(bits & ~sign);
      return (bits & sign) != 0 ? -magnitude : magnitude;
    };
    if constexpr (std::is_same_v<T, double>)
      return signed_magnitude(std::bit_cast<std::uint64_t>(x), std::uint64_t{1} << 63);
    else if constexpr (std::is_same_v<T, float>)
      return signed_magnitude(std::bit_cast<std::uint32_t>(x), std::uint32_t{1} << 31);
    else
      return signed_magnitude(std::uint32_t{arrays::narrowed<T>(x).bits}, std::uint32_t{0x8000});
  }
};

template <class I>
double difference(I a, I b) {
  return static_cast<double>(static_cast<std::uint64_t>(a > b ? a : b) -
                             static_cast<std::uint64_t>(a > b ? b : a));
}
double difference(std::int64_t a, std::uint64_t b) {
  return a < 0 ? static_cast<double>(b) - static_cast<double>(a)
               : difference(static_cast<std::uint64_t>(a), b);
}
double difference(std::uint64_t a, std::int64_t b) { return difference(b, a); }

template <class V>
Extreme extreme(V value) {
  if constexpr (std::is_integral_v<V>)
    if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
  return static_cast<double>(value);
}

// --- floats

template <class T>
class Floats {
 public:
  using V = typename Arithmetic<T>::Value;

  explicit Floats(const Tolerance& tolerance)
      : rtol_(rounded(tolerance.rtol)),
        atol_(rounded(tolerance.atol)),
        nan_equal_(tolerance.nan == NanEqual::yes) {
    // A whole block is tested without rounding to T. So that what agrees there agrees by the definition too,
    // the tolerance is a little smaller: by more than two roundings can take away, of normal and subnormal
    // numbers.
    constexpr V share = std::is_same_v<T, double>  ? V(0x1p-40)
                        : std::is_same_v<T, float> ? V(0x1p-18)
                                                   : V(0x1p-6);
    constexpr V least = std::is_same_v<T, float16> ? V(0x1p-24) : V(0x1p-120);
    sure_rtol_ = rtol_ * (1 - share);
    sure_atol_ = std::max(atol_ * (1 - share) - least, V{0});
  }

  // True when all elements are finite and surely agree; counts those that are 0.
  bool all_close(const arrays::Stored<T>* a, const arrays::Stored<T>* e, std::int64_t n,
                 std::int64_t& both_zero) const {
    const kernels::Kernels& kernels = kernels::active();
    std::int64_t zeros = 0;
    const auto test = [&](auto* kernel, const auto* x, const auto* y) {
      return kernel(x, y, n, sure_rtol_, sure_atol_, &zeros);
    };
    bool close = false;
    if constexpr (std::is_same_v<T, double>)
      close = test(kernels.all_close_64, a, e);
    else if constexpr (std::is_same_v<T, float>)
      close = test(kernels.all_close_32, a, e);
    else
      close = test(std::is_same_v<T, float16> ? kernels.all_close_f16 : kernels.all_close_bf16,
                   reinterpret_cast<const std::uint16_t*>(a), reinterpret_cast<const std::uint16_t*>(e));
    if (close) both_zero += zeros;
    return close;
  }

  void look(const V* a, const V* e, std::int64_t n, std::int64_t at, Part& part) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const V x = a[i], y = e[i];
      part.both_zero += (x == 0) & (y == 0);
      part.actual_nans += x != x;
      part.expected_nans += y != y;
      part.actual_infinities += std::isinf(x);
      part.expected_infinities += std::isinf(y);
      const bool finite = std::isfinite(x) && std::isfinite(y);
      if (x == y || (finite && within(x, y, rtol_, atol_)) || (nan_equal_ && x != x && y != y)) continue;
      ++part.differing;
      const Pair pair{extreme(x), extreme(y)};
      const double amount = std::abs(static_cast<double>(x) - static_cast<double>(y));
      part.absolute.see(amount, at + i, pair);
      if (finite && y != 0) part.relative.see(amount / std::abs(static_cast<double>(y)), at + i, pair);
      if (x == x && y == y) {
        const double ulps = difference(Arithmetic<T>::order(x), Arithmetic<T>::order(y));
        part.ulps.see(ulps, at + i, pair);
      }
    }
  }

 private:
  static V rounded(double x) {
    arrays::Stored<T> narrow{};
    arrays::cast<T>(x, narrow);
    return arrays::widen<T>(narrow);
  }
  static bool within(V a, V e, V rtol, V atol) {
    using A = Arithmetic<T>;
    return A::round(std::abs(a - e)) <= A::round(atol + A::round(rtol * std::abs(e)));
  }

  V rtol_, atol_, sure_rtol_, sure_atol_;
  bool nan_equal_;
};

// --- integers

struct Integers {
  float rtol, atol;

  template <class A, class E>
  void look(const A* a, const E* e, std::int64_t n, std::int64_t at, Part& part) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const A x = a[i];
      const E y = e[i];
      part.both_zero += (x == 0) & (y == 0);
      if (std::cmp_equal(x, y)) continue;
      const double amount = difference(x, y), size = std::abs(static_cast<double>(y));
      if (static_cast<float>(amount) <= atol + rtol * static_cast<float>(size)) continue;
      ++part.differing;
      const Pair pair{extreme(x), extreme(y)};
      part.absolute.see(amount, at + i, pair);
      if (y != 0) part.relative.see(amount / size, at + i, pair);
    }
  }
};

std::int64_t count_zeros(DType dtype, const std::byte* data, std::int64_t n) {
  return dispatch(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (arrays::is_half<T>) {
      return std::int64_t{0};
    } else {
      const auto* x = reinterpret_cast<const arrays::Stored<T>*>(data);
      std::int32_t zeros = 0;
      for (std::int64_t i = 0; i < n; ++i) zeros += x[i] == 0;
      return std::int64_t{zeros};
    }
  });
}

// --- blocks

bool is_whole(DType dtype) { return dtype == DType::boolean || is_integer(dtype); }

DType common_type(DType a, DType e) {
  const auto as_float = [](DType d) { return is_float(d) ? d : DType::float32; };
  a = as_float(a), e = as_float(e);
  return a == e ? a : std::max({a, e, DType::float32});
}

// A block of one side as another type: where it lies, or converted.
class Block {
 public:
  const std::byte* as(DType wanted, DType dtype, const std::byte* data, std::int64_t n) {
    if (dtype == wanted) return data;
    room_.resize(static_cast<std::size_t>(kBlock * size_of(wanted)));
    arrays::convert_elements(dtype, data, wanted, room_.data(), n);
    return room_.data();
  }

 private:
  std::vector<std::byte> room_;
};

class Comparer {
 public:
  Comparer(DType actual, DType expected, const Tolerance& tolerance)
      : actual_(actual), expected_(expected), common_(common_type(actual, expected)), tolerance_(tolerance) {}

  // n elements of either side, the first of them at index `at`.
  void compare(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at, Part& part) const {
    if (is_whole(actual_) && is_whole(expected_)) {
      compare_integers(a, e, n, at, part);
      return;
    }
    if (common_ == DType::float16) compare_floats<float16>(a, e, n, at, part);
    if (common_ == DType::bfloat16) compare_floats<bfloat16>(a, e, n, at, part);
    if (common_ == DType::float32) compare_floats<float>(a, e, n, at, part);
    if (common_ == DType::float64) compare_floats<double>(a, e, n, at, part);
  }

 private:
  // f(begin, elements, a, e) for each block.
  template <class F>
  void for_each_block(const std::byte* a, const std::byte* e, std::int64_t n, F&& f) const {
    for (std::int64_t begin = 0; begin < n; begin += kBlock)
      f(begin, std::min(kBlock, n - begin), a + begin * size_of(actual_), e + begin * size_of(expected_));
  }

  bool same_bytes(const std::byte* a, const std::byte* e, std::int64_t n) const {
    return actual_ == expected_ && std::memcmp(a, e, static_cast<std::size_t>(n * size_of(actual_))) == 0;
  }

  template <class T>
  void compare_floats(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at,
                      Part& part) const {
    using V = typename Floats<T>::V;
    const Floats<T> floats(tolerance_);
    Block actual, expected, wide_actual, wide_expected;
    for_each_block(a, e, n, [&](std::int64_t begin, std::int64_t m, const std::byte* x, const std::byte* y) {
      const std::byte* p = actual.as(common_, actual_, x, m);
      const std::byte* q = expected.as(common_, expected_, y, m);
      using S = arrays::Stored<T>;
      if (floats.all_close(reinterpret_cast<const S*>(p), reinterpret_cast<const S*>(q), m, part.both_zero))
        return;
      p = wide_actual.as(dtype_of<V>(), common_, p, m);
      q = wide_expected.as(dtype_of<V>(), common_, q, m);
      floats.look(reinterpret_cast<const V*>(p), reinterpret_cast<const V*>(q), m, at + begin, part);
    });
  }

  void compare_integers(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at,
                        Part& part) const {
    const Integers integers{static_cast<float>(tolerance_.rtol), static_cast<float>(tolerance_.atol)};
    Block actual, expected;
    const auto wide = [](DType d) { return d == DType::uint64 ? d : DType::int64; };
    for_each_block(a, e, n, [&](std::int64_t begin, std::int64_t m, const std::byte* x, const std::byte* y) {
      if (same_bytes(x, y, m)) {
        part.both_zero += count_zeros(actual_, x, m);
        return;
      }
      const std::byte* p = actual.as(wide(actual_), actual_, x, m);
      const std::byte* q = expected.as(wide(expected_), expected_, y, m);
      const auto look = [&]<class A>(const A* values) {
        if (expected_ == DType::uint64)
          integers.look(values, reinterpret_cast<const std::uint64_t*>(q), m, at + begin, part);
        else
          integers.look(values, reinterpret_cast<const std::int64_t*>(q), m, at + begin, part);
      };
      if (actual_ == DType::uint64)
        look(reinterpret_cast<const std::uint64_t*>(p));
      else
        look(reinterpret_cast<const std::int64_t*>(p));
    });
  }

  DType actual_, expected_, common_;
  Tolerance tolerance_;
};

void join(Part& sum, const Part& part) {
  sum.differing += part.differing;
  sum.both_zero += part.both_zero;
  sum.actual_nans += part.actual_nans;
  sum.actual_infinities += part.actual_infinities;
  sum.expected_nans += part.expected_nans;
  sum.expected_infinities += part.expected_infinities;
  sum.absolute.join(part.absolute);
  sum.relative.join(part.relative);
  sum.ulps.join(part.ulps);
}

std::int64_t elements_of_a_piece(const ArraySource& actual, const ArraySource& expected) {
  return kPieceBytes / std::max(size_of(actual.dtype()), size_of(expected.dtype()));
}

ReportValue value_of(const Extreme& extreme) {
  if (const auto* whole = std::get_if<std::int64_t>(&extreme)) return *whole;
  if (const auto* real = std::get_if<double>(&extreme)) return *real;
  return {};
}

}  // namespace

std::int64_t compare_bytes(const ArraySource& actual, const ArraySource& expected) {
  const std::int64_t bytes = byte_count(actual.shape(), actual.dtype());
  const std::int64_t pieces = element_count(actual.shape()) / elements_of_a_piece(actual, expected) + 1;
  return 2 * std::min(bytes + 1, threads() * kPieceBytes) +
         pieces * (arrays::bytes_of_a_box(actual.shape().size()) + static_cast<std::int64_t>(sizeof(Part)));
}

Comparison compare_arrays(const ArraySource& actual, const ArraySource& expected, const Tolerance& tolerance,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  for (const double t : {tolerance.rtol, tolerance.atol})
    if (!(t >= 0))
      throw Error(Error::Kind::usage, fmt::format("the tolerance is {}; it must be at least 0", t));
  Comparison result;
  result.actual_shape = actual.shape();
  result.expected_shape = expected.shape();
  result.actual_dtype = actual.dtype();
  result.expected_dtype = expected.dtype();
  if (!result.same_shape()) return result;
  result.elements = element_count(actual.shape());

  const arrays::Boxes boxes(actual.shape(), elements_of_a_piece(actual, expected));
  const arrays::BoxReader a(actual), e(expected);
  const Comparer comparer(actual.dtype(), expected.dtype(), tolerance);
  std::vector<Part> parts(boxes.starts.size());
  struct Buffers {
    std::vector<std::byte> actual, expected;
  };
  std::int64_t done = 0;
  std::mutex mutex;
  core::parallel_reduce(
      boxes.size(), std::min(a.threads(boxes, 1), e.threads(boxes, 1)), [] { return Buffers{}; },
      [&](Buffers& buffers, std::int64_t box) {
        const auto b = static_cast<std::size_t>(box);
        const std::int64_t n = boxes.elements(box);
        comparer.compare(a.acquire(boxes, box, buffers.actual), e.acquire(boxes, box, buffers.expected), n,
                         boxes.before[b], parts[b]);
        a.release(boxes, box);
        e.release(boxes, box);
        if (!progress) return;
        const std::lock_guard lock(mutex);
        progress(done += n, result.elements);
      },
      [](const Buffers&) {});

  Part sum;
  for (const Part& part : parts) join(sum, part);
  const auto found = [&](const Worst& worst) -> std::optional<Difference> {
    if (!worst.found) return std::nullopt;
    return Difference{core::index_of(actual.shape(), worst.at), worst.item.actual, worst.item.expected,
                      worst.measure};
  };
  result.close = sum.differing == 0;
  result.differing = sum.differing;
  result.both_zero = sum.both_zero;
  result.actual_nans = sum.actual_nans;
  result.actual_infinities = sum.actual_infinities;
  result.expected_nans = sum.expected_nans;
  result.expected_infinities = sum.expected_infinities;
  result.largest_absolute = found(sum.absolute);
  result.largest_relative = found(sum.relative);
  result.largest_ulps = found(sum.ulps);
  return result;
}

Comparison assert_allclose(const ArraySource& actual, const ArraySource& expected,
                           const Tolerance& tolerance) {
  Comparison result = compare_arrays(actual, expected, tolerance);
  if (result.close) return result;
  if (!result.same_shape())
    throw Error(Error::Kind::input,
                fmt::format("{} has the shape {}, {} has {}", actual.name(), to_string(result.actual_shape),
                            expected.name(), to_string(result.expected_shape)));
  const Difference& worst = *result.largest_absolute;
  throw Error(
      Error::Kind::input,
      fmt::format("{} is not close to {}: {} of {} elements differ, by up to {} at {}", actual.name(),
                  expected.name(), result.differing, result.elements, worst.amount, to_string(worst.index)));
}

bool proves_little(const Comparison& comparison) {
  const bool is_bool =
      comparison.actual_dtype == DType::boolean && comparison.expected_dtype == DType::boolean;
  return !is_bool && comparison.elements > 0 &&
         comparison.both_zero / 9 >= comparison.elements - comparison.both_zero;
}

Report describe(const Comparison& comparison) {
  Report report;
  const Comparison& c = comparison;
  report.add("close", "close", c.close);
  if (c.same_shape()) {
    report.add("shape", "shape", c.actual_shape);
  } else {
    report.add("actual_shape", "shape, actual", c.actual_shape);
    report.add("expected_shape", "shape, expected", c.expected_shape);
  }
  report.add("actual_dtype", "dtype, actual", std::string(name_of(c.actual_dtype)));
  report.add("expected_dtype", "dtype, expected", std::string(name_of(c.expected_dtype)));
  if (c.actual_dtype != c.expected_dtype)
    report.warnings.push_back(fmt::format("the dtypes differ: {} against {}, compared as {}",
                                          name_of(c.actual_dtype), name_of(c.expected_dtype),
                                          is_whole(c.actual_dtype) && is_whole(c.expected_dtype)
                                              ? "integers"
                                              : name_of(common_type(c.actual_dtype, c.expected_dtype))));
  if (!c.same_shape()) {
    report.add("max_difference", "largest difference", {}).add("max_index", "at", {});
    return report;
  }
  report.add("elements", "elements", c.elements, Unit::count)
      .add("differing", "that differ", c.differing, Unit::count)
      .add("differing_share", "share of those", verify::share_of(c.differing, c.elements), Unit::share)
      .add("both_zero", "0 on both sides", c.both_zero, Unit::count);
  report
      .add("max_difference", "largest difference",
           c.largest_absolute ? ReportValue(c.largest_absolute->amount) : ReportValue())
      .add("max_index", "at", c.largest_absolute ? ReportValue(c.largest_absolute->index) : ReportValue());
  report.add("actual_nans", "NaN, actual", c.actual_nans, Unit::count)
      .add("expected_nans", "NaN, expected", c.expected_nans, Unit::count)
      .add("actual_infinities", "infinite, actual", c.actual_infinities, Unit::count)
      .add("expected_infinities", "infinite, expected", c.expected_infinities, Unit::count);
  Table worst{"worst",
              "the worst of those that differ",
              {{"by", "by"},
               {"difference", "difference"},
               {"index", "index"},
               {"actual", "actual"},
               {"expected", "expected"}},
              {}};
  const auto row = [&](const char* by, const std::optional<Difference>& d) {
    if (d)
      worst.rows.push_back(
          {std::string(by), d->amount, d->index, value_of(d->actual), value_of(d->expected)});
  };
  row("absolute", c.largest_absolute);
  row("relative", c.largest_relative);
  row("ulps", c.largest_ulps);
  report.add(std::move(worst));
  if (proves_little(c))
    report.warnings.push_back(
        fmt::format("{:.3g} % of the elements are 0 on both sides: the comparison proves little",
                    100.0 * static_cast<double>(c.both_zero) / static_cast<double>(c.elements)));
  return report;
}

}  // namespace ejk
