// Comparison of two arrays in boxes, and in blocks that fit the L1 cache. A vectorized kernel computes the
// largest differences and sums of a block of floats, and whether all of it is finite and within a slightly
// smaller tolerance; other blocks are compared element by element. Boxes are reduced in order, so that the
// result does not depend on the threads. Cost: reading both arrays.
// tests: tests/compare/test_compare.cpp
#include "ejk/compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "arrays/boxes.hpp"
#include "arrays/cast.hpp"
#include "arrays/convert.hpp"
#include "compare/element_comparer.hpp"
#include "compare/error_stats.hpp"
#include "compare/extreme.hpp"
#include "compare/report_parts.hpp"
#include "compare/sides.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kBlock = verify::ElementComparer::kBlock;

struct Pair {
  Extreme actual, expected;
};
using Worst = verify::Largest<std::int64_t, Pair>;

struct Count {
  std::int64_t count = 0;
  std::int64_t first = -1;

  void see(std::int64_t at) {
    if (count++ == 0) first = at;
  }
  void join(const Count& later) {
    if (count == 0) first = later.first;
    count += later.count;
  }
};

// Sums of squares over the pairs of finite numbers.
struct Squares {
  double difference = 0, actual = 0, expected = 0;

  void see(double a, double e) {
    const double d = a - e;
    difference += d * d, actual += a * a, expected += e * e;
  }
  void join(const Squares& other) {
    difference += other.difference, actual += other.actual, expected += other.expected;
  }
};

struct Part {
  std::int64_t differing = 0, both_zero = 0, finite = 0;
  std::int64_t actual_nans = 0, actual_infinities = 0, expected_nans = 0, expected_infinities = 0;
  std::int64_t opposite_infinities = 0;
  Count one_sided_nans, one_sided_infinities, beyond_hard;
  Worst violation;                 // of those that do not agree; NaN is more than anything
  Worst absolute, relative, ulps;  // of all pairs of finite numbers
  Squares squares;
};

// How a float type is computed in: `Value` holds one, `round` brings a result back into the type.
template <class T>
struct Arithmetic {
  using Value = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr Value kOverflow =
      std::is_same_v<T, float16> ? Value(65504) : std::numeric_limits<float>::max() / 2;
  static Value round(Value x) { return static_cast<Value>(T(x)); }
  // Integers in the order of the floats; neighbours differ by 1.
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
      return signed_magnitude(std::uint32_t{T(x).bits}, std::uint32_t{0x8000});
  }
};

using verify::difference, verify::extreme, verify::value_of;

// Positions of the numbers of an 8-bit type: neighbours differ by 1.
class Steps {
 public:
  explicit Steps(const FloatFormat& format)
      : cut_(23 - format.mantissa_bits),
        before_((format.least_exponent() + 126) * (1 << format.mantissa_bits)),
        least_normal_(std::ldexp(1.0f, format.least_exponent())),
        subnormals_(std::ldexp(1.0f, format.mantissa_bits - format.least_exponent())) {}

  float operator()(float x) const {
    const float size = std::abs(x);
    const auto normal = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(size) >> cut_) - before_;
    return std::copysign(size < least_normal_ ? size * subnormals_ : static_cast<float>(normal), x);
  }

 private:
  std::int32_t cut_, before_;
  float least_normal_, subnormals_;
};

// For two arrays of one 8-bit type, which are compared in float32.
std::optional<Steps> steps_between(DType actual, DType expected) {
  if (actual != expected || !is_8_bit_float(actual)) return std::nullopt;
  return Steps(float_format(actual));
}

template <class T>
class Floats {
 public:
  using V = typename Arithmetic<T>::Value;
  using S = arrays::Stored<T>;

  using Rule = verify::ElementComparer::Rule;

  /// `coarser`: of two float types that are not the same, the one whose units count; else T.
  Floats(const Rule& rule, DType coarser, const std::optional<Steps>& steps)
      : rule_(rule),
        coarser_(verify::float_type(coarser)),
        is_one_type_(steps || coarser == dtype_of<T>()),
        steps_(steps),
        rtol_(rounded(rule.rtol)),
        atol_(rounded(rule.atol)),
        nan_equal_(rule.nan == NanEqual::yes) {
    // A whole block is tested without rounding to T, within a tolerance that is smaller by more than two
    // roundings, so that what agrees there agrees by the definition.
    // Of |a| instead of |e|: |a| ≥ |e| − |a − e|. Of one of both tolerances: their sum is at most twice the larger.
    const V part = rule.form == PassRule::Form::allclose          ? V{1}
                   : rule.form == PassRule::Form::allclose_actual ? 1 / (1 + rtol_)
                                                                  : V{0.5};
    sure_rtol_ = rtol_ * part * (1 - kShare);
    sure_atol_ = std::max(atol_ * part * (1 - kShare) - kLeast, V{0});
  }

  // `known`: smaller quotients are not needed.
  kernels::PairStats<V> stats(const S* a, const S* e, std::int64_t n, V known) const {
    const kernels::Kernels& kernels = kernels::active();
    if constexpr (std::is_same_v<T, double>)
      return kernels.pair_stats_64(a, e, n, sure_rtol_, sure_atol_, known);
    else if constexpr (std::is_same_v<T, float>)
      return kernels.pair_stats_32(a, e, n, sure_rtol_, sure_atol_, known);
    else
      return (std::is_same_v<T, float16> ? kernels.pair_stats_f16 : kernels.pair_stats_bf16)(
          reinterpret_cast<const std::uint16_t*>(a), reinterpret_cast<const std::uint16_t*>(e), n, sure_rtol_,
          sure_atol_, known);
  }

  /// Every element of a block with these statistics surely agrees.
  bool is_close(const kernels::PairStats<V>& stats) const {
    if (rule_.by_size && !stats.close) return false;
    if (!rule_.max_ulp) return true;
    return stats.finite &&
           (is_one_type_ ? static_cast<double>(stats.steps) <= static_cast<double>(*rule_.max_ulp)
                         : stats.difference == 0);
  }

  static double apart(V x, V y) { return static_cast<double>(std::abs(x - y)); }
  static double relative(V x, V y) { return static_cast<double>(std::abs(x - y) / std::abs(y)); }
  double ulps(V x, V y) const {
    if constexpr (std::is_same_v<T, float>)
      if (steps_) return static_cast<double>(std::abs((*steps_)(x) - (*steps_)(y)));
    return difference(Arithmetic<T>::order(x), Arithmetic<T>::order(y));
  }
  // Of finite numbers with these statistics.
  double most_ulps(const kernels::PairStats<V>& stats, const S* a, const S* e, std::int64_t n) const {
    double most = static_cast<double>(stats.steps);
    if constexpr (std::is_same_v<T, float>) {
      if (!steps_) return most;
      float steps = 0;
      if (most > 0)
        for (std::int64_t i = 0; i < n; ++i)
          steps = std::max(steps, std::abs((*steps_)(a[i]) - (*steps_)(e[i])));
      most = static_cast<double>(steps);
    }
    return most;
  }

  // differs[i] = 1 where they do not agree, else 0; how many do not.
  std::int64_t mark(const V* a, const V* e, std::int64_t n, std::uint8_t* differs) const {
    constexpr V kMost = std::numeric_limits<V>::max();
    constexpr bool kRounds = is_small_float<T>;
    std::int64_t count = 0, unsure = 0;
    if (rule_.max_ulp || rule_.form != PassRule::Form::allclose) {
      for (std::int64_t i = 0; i < n; ++i) count += differs[i] = agree(a[i], e[i]) ? 0 : 1;
      return count;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const V x = a[i], y = e[i], apart = std::abs(x - y), size = std::abs(y);
      const bool finite = (std::abs(x) <= kMost) & (size <= kMost);
      const bool same = (x == y) | (nan_equal_ & (x != x) & (y != y));
      // 16-bit floats near the tolerance are compared again, with the rounding of the definition.
      const V allowed = atol_ + rtol_ * size, beyond = kRounds ? allowed * (1 + kShare) + kLeast : allowed;
      const bool near = finite & (apart <= (kRounds ? allowed * (1 - kShare) - kLeast : allowed));
      const bool far = !finite | !kRounds | ((apart > beyond) & (beyond < Arithmetic<T>::kOverflow));
      differs[i] = static_cast<std::uint8_t>((same | near) ? 0 : far ? 1 : 2);
      count += differs[i] & 1;
      unsure += differs[i] >> 1;
    }
    for (std::int64_t i = 0; unsure > 0; ++i) {
      if (differs[i] != 2) continue;
      differs[i] = within(a[i], e[i], rtol_, atol_) ? 0 : 1;
      count += differs[i];
      --unsure;
    }
    return count;
  }

  // Of finite numbers: those that do not agree.
  void find_violations(const V* a, const V* e, std::int64_t n, std::int64_t at, Part& part) const {
    std::uint8_t differs[kBlock];
    const std::int64_t count = mark(a, e, n, differs);
    V most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const V apart = differs[i] != 0 ? std::abs(a[i] - e[i]) : V{0};
      most = apart > most ? apart : most;
    }
    part.differing += count;
    if (rule_.hard)
      for (std::int64_t i = 0; i < n; ++i)
        if (differs[i] != 0 && is_beyond_hard(a[i], e[i])) part.beyond_hard.see(at + i);
    if (count == 0 || (part.violation.found && !(static_cast<double>(most) > part.violation.measure))) return;
    for (std::int64_t i = 0; i < n; ++i)
      if (differs[i] != 0 && std::abs(a[i] - e[i]) == most) {
        part.violation.see(static_cast<double>(most), at + i, {extreme(a[i]), extreme(e[i])});
        return;
      }
  }

  // Everything, of numbers of any kind.
  void compare_range(const V* a, const V* e, std::int64_t n, std::int64_t at, Part& part) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const V x = a[i], y = e[i];
      const bool x_nan = x != x, y_nan = y != y, x_infinite = std::isinf(x), y_infinite = std::isinf(y);
      part.both_zero += (x == 0) & (y == 0);
      part.actual_nans += x_nan;
      part.expected_nans += y_nan;
      part.actual_infinities += x_infinite;
      part.expected_infinities += y_infinite;
      const Pair pair{extreme(x), extreme(y)};
      if (!x_nan && !y_nan && !x_infinite && !y_infinite) {
        ++part.finite;
        part.squares.see(static_cast<double>(x), static_cast<double>(y));
        part.absolute.see(apart(x, y), at + i, pair);
        if (y != 0) part.relative.see(relative(x, y), at + i, pair);
        part.ulps.see(ulps(x, y), at + i, pair);
      } else if (x_nan || y_nan) {
        if (x_nan != y_nan) part.one_sided_nans.see(at + i);
      } else if (x != y) {
        part.one_sided_infinities.see(at + i);
        part.opposite_infinities += x_infinite && y_infinite;
      }
      if (agree(x, y)) continue;
      ++part.differing;
      if (rule_.hard && is_beyond_hard(x, y)) part.beyond_hard.see(at + i);
      part.violation.see(apart(x, y), at + i, pair);
    }
  }

 private:
  // What roundings may change a tolerance by, and more.
  static constexpr V kShare = std::is_same_v<T, double>  ? V(0x1p-40)
                              : std::is_same_v<T, float> ? V(0x1p-18)
                                                         : V(0x1p-6);
  static constexpr V kLeast = std::is_same_v<T, float16> ? V(0x1p-24) : V(0x1p-120);

  static V rounded(double x) {
    arrays::Stored<T> narrow{};
    arrays::cast<T>(x, narrow);
    return arrays::widen<T>(narrow);
  }
  static bool within(V a, V e, V rtol, V atol) {
    using A = Arithmetic<T>;
    return A::round(std::abs(a - e)) <= A::round(atol + A::round(rtol * std::abs(e)));
  }

  // Numbers of any kind.
  bool agree(V x, V y) const {
    if (x != x || y != y) return x != x && y != y && nan_equal_;
    if (std::isinf(x) || std::isinf(y)) return x == y;
    if (rule_.form != PassRule::Form::allclose)
      return within_rule(static_cast<double>(x), static_cast<double>(y));
    if (rule_.by_size && !within(x, y, rtol_, atol_)) return false;
    if (!rule_.max_ulp) return true;
    const auto most = static_cast<double>(*rule_.max_ulp);
    if (is_one_type_) return ulps(x, y) <= most;
    const double off = std::abs(static_cast<double>(x) - static_cast<double>(y));
    return off <= most * coarser_.spacing_at(static_cast<double>(y));
  }
  bool within_rule(double a, double e) const {
    const double off = std::abs(a - e);
    if (rule_.form == PassRule::Form::allclose_actual) return off <= rule_.atol + rule_.rtol * std::abs(a);
    return off <= std::max(rule_.atol, rule_.rtol * (std::abs(e) + 1e-8));  // flashinfer_bench
  }
  bool is_beyond_hard(V x, V y) const {
    if (!std::isfinite(x) || !std::isfinite(y)) return true;
    const double off = std::abs(static_cast<double>(x) - static_cast<double>(y));
    return !(off <= rule_.hard->atol + rule_.hard->rtol * std::abs(static_cast<double>(y)));
  }

  Rule rule_;
  verify::FloatType coarser_;
  bool is_one_type_;
  std::optional<Steps> steps_;
  V rtol_, atol_, sure_rtol_, sure_atol_;
  bool nan_equal_;
};

struct Integers {
  verify::ElementComparer::Rule rule;

  bool agree(bool equal, double amount, double size) const {
    if (equal) return true;
    const auto rtol = static_cast<float>(rule.rtol), atol = static_cast<float>(rule.atol);
    if (rule.by_size && !(static_cast<float>(amount) <= atol + rtol * static_cast<float>(size))) return false;
    return !rule.max_ulp || amount <= static_cast<double>(*rule.max_ulp);
  }

  template <class A, class E>
  std::int64_t mark(const A* a, const E* e, std::int64_t n, std::uint8_t* differs) const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool equal = std::cmp_equal(a[i], e[i]);
      differs[i] = !equal && !agree(equal, difference(a[i], e[i]), std::abs(static_cast<double>(e[i])));
      count += differs[i];
    }
    return count;
  }

  template <class A, class E>
  void compare_range(const A* a, const E* e, std::int64_t n, std::int64_t at, Part& part) const {
    part.finite += n;
    for (std::int64_t i = 0; i < n; ++i) {
      const A x = a[i];
      const E y = e[i];
      part.both_zero += (x == 0) & (y == 0);
      const bool equal = std::cmp_equal(x, y);
      const double amount = equal ? 0 : difference(x, y), size = std::abs(static_cast<double>(y));
      part.squares.actual += static_cast<double>(x) * static_cast<double>(x);
      part.squares.expected += size * size;
      part.squares.difference += amount * amount;
      if (equal && part.relative.found) continue;  // so is a larger absolute one
      const Pair pair{extreme(x), extreme(y)};
      part.absolute.see(amount, at + i, pair);
      if (y != 0) part.relative.see(amount / size, at + i, pair);
      if (agree(equal, amount, size)) continue;
      ++part.differing;
      if (rule.hard && !(amount <= rule.hard->atol + rule.hard->rtol * size)) part.beyond_hard.see(at + i);
      part.violation.see(amount, at + i, pair);
    }
  }
};

// A block that is the same on both sides. Sums are in lanes, which are vectorized.
template <class W>
void scan_equals(const W* x, std::int64_t n, std::int64_t at, Part& part) {
  using Few = std::make_unsigned_t<W>;
  using Square = std::conditional_t<sizeof(W) == 1, std::int32_t, double>;
  constexpr std::int64_t kRun = 128, kLanes = 8;
  std::int64_t zeros = 0;
  Square lanes[kLanes] = {};
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = std::min(n, begin + kRun), whole = begin + (end - begin) / kLanes * kLanes;
    Few in_run = 0;
    for (std::int64_t i = begin; i < end; ++i) in_run = static_cast<Few>(in_run + (x[i] == 0));
    zeros += static_cast<std::int64_t>(in_run);
    const auto add = [&](std::int64_t i, std::int64_t lane) {
      const auto value = static_cast<Square>(x[i]);
      lanes[lane] += value * value;
    };
    for (std::int64_t i = begin; i < whole; i += kLanes)
      for (std::int64_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
    for (std::int64_t i = whole; i < end; ++i) add(i, 0);
  }
  double squares = 0;
  for (const Square lane : lanes) squares += static_cast<double>(lane);
  part.finite += n;
  part.both_zero += zeros;
  part.squares.actual += squares;
  part.squares.expected += squares;
  if (part.relative.found) return;
  for (std::int64_t i = 0; i < n && !part.relative.found; ++i) {
    const Pair pair{extreme(x[i]), extreme(x[i])};
    if (i == 0) part.absolute.see(0, at, pair);
    if (x[i] != 0) part.relative.see(0, at + i, pair);
  }
}

bool is_whole(DType dtype) { return dtype == DType::boolean || is_integer(dtype); }

DType common_type(DType a, DType e) {
  const auto as_float = [](DType d) { return is_wide_float(d) ? d : DType::float32; };
  a = as_float(a), e = as_float(e);
  return a == e ? a : std::max({a, e, DType::float32});
}

const std::byte* as_type(DType wanted, DType dtype, const std::byte* data, std::int64_t n,
                         std::vector<std::byte>& workspace) {
  if (dtype == wanted) return data;
  workspace.resize(static_cast<std::size_t>(kBlock * size_of(wanted)));
  arrays::convert_elements(dtype, data, wanted, workspace.data(), n);
  return workspace.data();
}

// f(a, e) with both sides of a block as whole numbers of 64 bits.
template <class F>
void as_integers(DType actual, DType expected, const std::byte* a, const std::byte* e, std::int64_t n,
                 verify::ElementComparer::Workspace& workspace, F&& f) {
  const auto wide = [](DType d) { return d == DType::uint64 ? d : DType::int64; };
  const std::byte* p = as_type(wide(actual), actual, a, n, workspace.actual);
  const std::byte* q = as_type(wide(expected), expected, e, n, workspace.expected);
  const auto with = [&]<class A>(const A* values) {
    if (expected == DType::uint64)
      f(values, reinterpret_cast<const std::uint64_t*>(q));
    else
      f(values, reinterpret_cast<const std::int64_t*>(q));
  };
  if (actual == DType::uint64)
    with(reinterpret_cast<const std::uint64_t*>(p));
  else
    with(reinterpret_cast<const std::int64_t*>(p));
}

template <class F>
void with_float(DType common, F&& f) {
  if (common == DType::float16) f(std::type_identity<float16>());
  if (common == DType::bfloat16) f(std::type_identity<bfloat16>());
  if (common == DType::float32) f(std::type_identity<float>());
  if (common == DType::float64) f(std::type_identity<double>());
}

// The type whose units in the last place count.
DType coarser_type(DType a, DType e) {
  const DType common = common_type(a, e);
  if (a == e) return is_8_bit_float(a) ? a : common;
  DType coarser = common;
  for (const DType dtype : {a, e})
    if (is_float(dtype) &&
        verify::float_type(dtype).fraction_bits < verify::float_type(coarser).fraction_bits)
      coarser = dtype;
  return coarser;
}

class Comparer {
 public:
  Comparer(DType actual, DType expected, const verify::ElementComparer::Rule& rule)
      : actual_(actual), expected_(expected), common_(common_type(actual, expected)), rule_(rule) {}

  void compare(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at, Part& part) const {
    if (is_whole(actual_) && is_whole(expected_)) {
      compare_integers(a, e, n, at, part);
      return;
    }
    with_float(common_, [&]<class T>(std::type_identity<T>) { compare_floats<T>(a, e, n, at, part); });
  }

 private:
  // f(begin, elements, a, e) for each block.
  template <class F>
  void for_each_block(const std::byte* a, const std::byte* e, std::int64_t n, F&& f) const {
    for (std::int64_t begin = 0; begin < n; begin += kBlock)
      f(begin, std::min(kBlock, n - begin), a + begin * size_of(actual_), e + begin * size_of(expected_));
  }

  template <class T>
  void compare_floats(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at,
                      Part& part) const {
    using V = typename Floats<T>::V;
    using S = arrays::Stored<T>;
    const Floats<T> floats(rule_, coarser_type(actual_, expected_), steps_between(actual_, expected_));
    verify::ElementComparer::Workspace workspace;
    struct Found {
      double measure = -1;
      std::int64_t begin = 0;
      void see(double other, std::int64_t block) {
        if (other > measure) *this = {other, block};
      }
    };
    Found absolute, relative, ulps;
    const auto as_wide = [&](std::int64_t begin, std::int64_t m, auto&& f) {
      const std::byte* x = as_type(common_, actual_, a + begin * size_of(actual_), m, workspace.actual);
      const std::byte* y = as_type(common_, expected_, e + begin * size_of(expected_), m, workspace.expected);
      f(reinterpret_cast<const V*>(as_type(dtype_of<V>(), common_, x, m, workspace.wide_actual)),
        reinterpret_cast<const V*>(as_type(dtype_of<V>(), common_, y, m, workspace.wide_expected)));
    };
    for_each_block(a, e, n, [&](std::int64_t begin, std::int64_t m, const std::byte* x, const std::byte* y) {
      const std::byte* p = as_type(common_, actual_, x, m, workspace.actual);
      const std::byte* q = as_type(common_, expected_, y, m, workspace.expected);
      const auto stats = floats.stats(reinterpret_cast<const S*>(p), reinterpret_cast<const S*>(q), m,
                                      static_cast<V>(std::max(relative.measure, 0.0)));
      if (!stats.finite) {
        as_wide(begin, m, [&](const V* v, const V* w) { floats.compare_range(v, w, m, at + begin, part); });
        return;
      }
      part.finite += m;
      part.both_zero += stats.zeros;
      absolute.see(static_cast<double>(stats.difference), begin);
      if (stats.expected_squares > 0 || stats.relative > 0)
        relative.see(static_cast<double>(stats.relative), begin);
      ulps.see(floats.most_ulps(stats, reinterpret_cast<const S*>(p), reinterpret_cast<const S*>(q), m),
               begin);
      if (floats.is_close(stats) && !is_lossy(stats, m)) {
        part.squares.join({static_cast<double>(stats.difference_squares),
                           static_cast<double>(stats.actual_squares),
                           static_cast<double>(stats.expected_squares)});
        return;
      }
      as_wide(begin, m, [&](const V* v, const V* w) {
        Squares squares;
        for (std::int64_t i = 0; i < m; ++i)
          squares.see(static_cast<double>(v[i]), static_cast<double>(w[i]));
        part.squares.join(squares);
        if (!floats.is_close(stats)) floats.find_violations(v, w, m, at + begin, part);
      });
    });
    const auto locate = [&](const Found& found, Worst& worst, auto&& measure) {
      if (found.measure < 0) return;
      const std::int64_t m = std::min(kBlock, n - found.begin);
      as_wide(found.begin, m, [&](const V* v, const V* w) {
        for (std::int64_t i = 0; i < m; ++i)
          if (measure(v[i], w[i]) == found.measure) {
            worst.see(found.measure, at + found.begin + i, {extreme(v[i]), extreme(w[i])});
            return;
          }
      });
    };
    locate(absolute, part.absolute, floats.apart);
    locate(relative, part.relative, floats.relative);
    locate(ulps, part.ulps, [&](V x, V y) { return floats.ulps(x, y); });
  }

  // Squares so small that they are not all there, in V.
  template <class V>
  static bool is_lossy(const kernels::PairStats<V>& stats, std::int64_t n) {
    constexpr V least = std::is_same_v<V, double> ? V(0x1p-900) : V(0x1p-90);
    const bool small = stats.actual_squares < least || stats.expected_squares < least;
    return (small && stats.zeros < n) || (stats.difference > 0 && stats.difference_squares < least);
  }

  void compare_integers(const std::byte* a, const std::byte* e, std::int64_t n, std::int64_t at,
                        Part& part) const {
    const Integers integers{rule_};
    verify::ElementComparer::Workspace workspace;
    const bool one_type = actual_ == expected_;
    for_each_block(a, e, n, [&](std::int64_t begin, std::int64_t m, const std::byte* x, const std::byte* y) {
      if (one_type && kernels::active().same_bytes(x, y, m * size_of(actual_))) {
        dispatch_wide(actual_, [&]<class T>(std::type_identity<T>) {
          if constexpr (std::is_same_v<T, bool>) {  // any byte but 0 is 1
            const std::byte* p = as_type(DType::int8, actual_, x, m, workspace.actual);
            scan_equals(reinterpret_cast<const std::int8_t*>(p), m, at + begin, part);
          } else if constexpr (std::is_integral_v<T>) {
            scan_equals(reinterpret_cast<const T*>(x), m, at + begin, part);
          }
        });
        return;
      }
      as_integers(actual_, expected_, x, y, m, workspace,
                  [&](const auto* p, const auto* q) { integers.compare_range(p, q, m, at + begin, part); });
    });
  }

  DType actual_, expected_, common_;
  verify::ElementComparer::Rule rule_;
};

void join(Part& sum, const Part& part) {
  for (const auto count :
       {&Part::differing, &Part::both_zero, &Part::finite, &Part::actual_nans, &Part::actual_infinities,
        &Part::expected_nans, &Part::expected_infinities, &Part::opposite_infinities})
    sum.*count += part.*count;
  for (const auto count : {&Part::one_sided_nans, &Part::one_sided_infinities, &Part::beyond_hard})
    (sum.*count).join(part.*count);
  for (const auto worst : {&Part::violation, &Part::absolute, &Part::relative, &Part::ulps})
    (sum.*worst).join(part.*worst);
  sum.squares.join(part.squares);
}

std::int64_t elements_of_a_piece(const ArrayType& actual, const ArrayType& expected) {
  return kPieceBytes / std::max(size_of(actual.dtype), size_of(expected.dtype));
}

// Σae = (Σa² + Σe² - Σ(a - e)²) / 2, which loses less where the arrays are nearly the same.
std::optional<double> cosine_of(const Squares& squares) {
  const double sizes = std::sqrt(squares.actual) * std::sqrt(squares.expected);
  if (!(sizes > 0) || !std::isfinite(sizes)) return std::nullopt;
  const double rest = std::sqrt(squares.actual) - std::sqrt(squares.expected);
  return std::clamp(1 - (squares.difference - rest * rest) / (2 * sizes), -1.0, 1.0);
}

}  // namespace

std::int64_t verify::ElementComparer::mark(const std::byte* a, const std::byte* e, std::int64_t n,
                                           Workspace& workspace, std::uint8_t* differs) const {
  const bool one_type = actual_ == expected_;
  if (is_whole(actual_) && is_whole(expected_)) {
    if (one_type && kernels::active().same_bytes(a, e, n * size_of(actual_))) {
      std::fill_n(differs, n, std::uint8_t{0});
      return 0;
    }
    const Integers integers{rule_};
    std::int64_t count = 0;
    as_integers(actual_, expected_, a, e, n, workspace,
                [&](const auto* p, const auto* q) { count = integers.mark(p, q, n, differs); });
    return count;
  }
  std::int64_t count = 0;
  const DType common = common_type(actual_, expected_);
  with_float(common, [&]<class T>(std::type_identity<T>) {
    using V = typename Floats<T>::V;
    using S = arrays::Stored<T>;
    const Floats<T> floats(rule_, coarser_type(actual_, expected_), steps_between(actual_, expected_));
    const std::byte* p = as_type(common, actual_, a, n, workspace.actual);
    const std::byte* q = as_type(common, expected_, e, n, workspace.expected);
    // Quotients are not needed.
    if (floats.is_close(floats.stats(reinterpret_cast<const S*>(p), reinterpret_cast<const S*>(q), n,
                                     std::numeric_limits<V>::max()))) {
      std::fill_n(differs, n, std::uint8_t{0});
      return;
    }
    count =
        floats.mark(reinterpret_cast<const V*>(as_type(dtype_of<V>(), common, p, n, workspace.wide_actual)),
                    reinterpret_cast<const V*>(as_type(dtype_of<V>(), common, q, n, workspace.wide_expected)),
                    n, differs);
  });
  return count;
}

void verify::require_tolerances(std::initializer_list<std::optional<double>> tolerances) {
  for (const std::optional<double>& t : tolerances)
    if (t && (!(*t >= 0) || std::isinf(*t)))
      throw core::usage("the tolerance is {}; it must be at least 0 and finite", *t);
}

verify::ElementComparer::Rule verify::rule_of(const Comparison& c, const Tolerance& tolerance) {
  ElementComparer::Rule rule{c.rtol, c.atol, tolerance.nan, c.by_size, c.max_ulp, {}};
  if (tolerance.has_hard_limit())
    rule.hard = ElementComparer::Rule::Hard{tolerance.hard_rtol.value_or(0), tolerance.hard_atol.value_or(0)};
  if (c.rule && c.rule->is_by_element()) rule.form = c.rule->form;
  return rule;
}

DefaultTolerance default_tolerance(DType actual, DType expected) {
  if (is_whole(actual) && is_whole(expected)) return {0, 0};
  DefaultTolerance coarser{0, 0};
  for (const DType dtype : {actual, expected}) {
    const verify::FloatType type = verify::float_type(dtype);
    const DefaultTolerance own = dtype == DType::float8_e8m0fnu ? DefaultTolerance{0, 0}
                                 : is_8_bit_float(dtype)
                                     ? DefaultTolerance{type.epsilon(), type.spacing_at(0)}
                                 : dtype == DType::bfloat16 ? DefaultTolerance{1.6e-2, 1e-5}
                                 : dtype == DType::float16  ? DefaultTolerance{1e-3, 1e-5}
                                 : is_whole(dtype)          ? DefaultTolerance{0, 0}
                                                            : DefaultTolerance{1e-5, 1e-8};
    if (own.rtol > coarser.rtol) coarser = own;
  }
  return coarser;
}

namespace {

std::vector<Part> parts_of(const ArraySource& actual, const ArraySource& expected, const Comparer& comparer,
                           core::Progress& progress) {
  const arrays::Boxes boxes(actual.shape(), elements_of_a_piece(type_of(actual), type_of(expected)));
  const arrays::BoxReader a(actual), e(expected);
  const std::int64_t count = boxes.size();
  std::vector<Part> parts(static_cast<std::size_t>(count));
  struct Buffers {
    std::vector<std::byte> actual, expected;
  };
  core::parallel_reduce(
      count, std::min(a.threads(boxes, 0, count, 1), e.threads(boxes, 0, count, 1)), [] { return Buffers{}; },
      [&](Buffers& buffers, std::int64_t box) {
        const std::int64_t n = boxes.elements(box);
        comparer.compare(a.acquire(boxes, box, buffers.actual), e.acquire(boxes, box, buffers.expected), n,
                         boxes.before[static_cast<std::size_t>(box)], parts[static_cast<std::size_t>(box)]);
        a.release(boxes, box);
        e.release(boxes, box);
        progress.add(n);
      },
      [](const Buffers&) {});
  return parts;
}

// With a metric elements count only where a rule for them is given.
bool elements_count(const Comparison& c, const Tolerance& tolerance) {
  if (c.rule) return c.rule->is_by_element();
  return !tolerance.metric || tolerance.rtol || tolerance.atol || tolerance.max_ulp;
}

// Of the coarser type; integers are compared exactly.
PassRule rule_of_library(std::string_view name, DType actual, DType expected) {
  PassRule rule = named_rule(name, coarser_type(actual, expected));
  if (rule.form == PassRule::Form::flash_attn)
    throw Error(Error::Kind::usage, "the tolerance flash-attn is that of attention's forward pass");
  if (is_whole(actual) && is_whole(expected))
    rule.form = PassRule::Form::allclose, rule.rtol = 0, rule.atol = 0;
  return rule;
}

Comparison headers_of(const ArraySource& actual, const ArraySource& expected, const Tolerance& tolerance) {
  Comparison result;
  const auto [rtol, atol] = default_tolerance(actual.dtype(), expected.dtype());
  if (!tolerance.library.empty())
    result.rule = rule_of_library(tolerance.library, actual.dtype(), expected.dtype());
  const bool is_by_rule = result.rule && result.rule->is_by_element();
  result.rtol = is_by_rule ? result.rule->rtol : tolerance.rtol.value_or(rtol);
  result.atol = is_by_rule ? result.rule->atol : tolerance.atol.value_or(atol);
  result.max_ulp = tolerance.max_ulp;
  result.by_size = tolerance.by_size();
  if (tolerance.has_hard_limit()) result.beyond_hard = 0;
  if (tolerance.has_hard_limit() && !elements_count(result, tolerance)) {
    result.rtol = tolerance.hard_rtol.value_or(0);
    result.atol = tolerance.hard_atol.value_or(0);
  }
  const bool is_metric = tolerance.metric || (result.rule && !is_by_rule);
  result.conditions = (elements_count(result, tolerance) ? 1 : 0) + (tolerance.has_hard_limit() ? 1 : 0) +
                      (is_metric ? 1 : 0);
  result.actual_shape = actual.shape();
  result.expected_shape = expected.shape();
  result.actual_dtype = actual.dtype();
  result.expected_dtype = expected.dtype();
  if (result.same_shape()) result.elements = element_count(result.actual_shape);
  return result;
}

void add_found(const Part& sum, Comparison& result) {
  const Shape& shape = result.actual_shape;
  const auto found = [&](const Worst& worst) -> std::optional<Difference> {
    if (!worst.found) return std::nullopt;
    return Difference{core::index_of(shape, worst.at), worst.item.actual, worst.item.expected, worst.measure};
  };
  const auto first = [&](const Count& count) -> std::optional<Shape> {
    if (count.count == 0) return std::nullopt;
    return core::index_of(shape, count.first);
  };
  result.differing = sum.differing;
  result.both_zero = sum.both_zero;
  result.finite = sum.finite;
  result.actual_nans = sum.actual_nans;
  result.actual_infinities = sum.actual_infinities;
  result.expected_nans = sum.expected_nans;
  result.expected_infinities = sum.expected_infinities;
  result.one_sided_nans = sum.one_sided_nans.count;
  result.first_one_sided_nan = first(sum.one_sided_nans);
  result.one_sided_infinities = sum.one_sided_infinities.count;
  result.first_one_sided_infinity = first(sum.one_sided_infinities);
  result.opposite_infinities = sum.opposite_infinities;
  if (result.beyond_hard) {
    result.beyond_hard = sum.beyond_hard.count;
    result.first_beyond_hard = first(sum.beyond_hard);
  }
  result.violation = found(sum.violation);
  result.largest_absolute = found(sum.absolute);
  result.largest_relative = found(sum.relative);
  result.largest_ulps = found(sum.ulps);
  if (sum.finite > 0) result.rms = std::sqrt(sum.squares.difference / static_cast<double>(sum.finite));
  result.cosine = cosine_of(sum.squares);
  if (sum.squares.expected > 0)
    result.snr = sum.squares.difference > 0 ? 10 * std::log10(sum.squares.expected / sum.squares.difference)
                                            : std::numeric_limits<double>::infinity();
  if (const double both = sum.squares.actual + sum.squares.expected; both > 0)
    result.rel = sum.squares.difference / both;
  if (result.rms && result.rule && result.rule->form == PassRule::Form::fla)
    result.rms_ratio =
        *result.rms / (std::sqrt(sum.squares.expected / static_cast<double>(sum.finite)) + 1e-8);
}

bool is_within(const PassRule& fla, const Comparison& c) {
  if (c.one_sided_nans + c.one_sided_infinities > 0) return false;
  const bool is_small = !c.largest_absolute || c.largest_absolute->amount <= fla.atol;
  return is_small || c.rms_ratio.value_or(0) <= fla.rtol;
}

// Arrays without a metric, as both are 0, are close by it where no element differs.
bool is_within(const MetricLimit& limit, const Comparison& c) {
  if (c.one_sided_nans + c.one_sided_infinities > 0) return false;
  const std::optional<double> value = limit.metric == Metric::cosine ? c.cosine
                                      : limit.metric == Metric::snr  ? c.snr
                                                                     : c.rel;
  if (!value) return c.differing == 0;
  return limit.metric == Metric::rel ? *value <= limit.limit : *value >= limit.limit;
}

std::vector<std::string> failures_of(const Comparison& c, const Tolerance& tolerance) {
  std::vector<std::string> failed;
  if (elements_count(c, tolerance) && c.differing > tolerance.allowed_count &&
      static_cast<double>(c.differing) > tolerance.allowed_share * static_cast<double>(c.elements))
    failed.emplace_back("elements");
  if (c.beyond_hard.value_or(0) > 0) failed.emplace_back("hard limit");
  const bool is_fla = c.rule && c.rule->form == PassRule::Form::fla;
  if ((tolerance.metric && !is_within(*tolerance.metric, c)) || (is_fla && !is_within(*c.rule, c)))
    failed.emplace_back("metric");
  return failed;
}

// A constant within the tolerance of all elements: max (e − t) ≤ c ≤ min (e + t), t of the element, or of the constant.
// Stops at the first elements that leave none, so it costs a pass only where a constant passes.
std::optional<double> constant_within(const ArraySource& expected, const Comparison& c) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 12;
  const verify::Side side(expected);
  if (!side.is_in_memory()) return std::nullopt;
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const bool is_of_constant = c.rule && c.rule->form == PassRule::Form::allclose_actual;
  const double of_element = is_of_constant ? 0 : c.rtol, of_constant = is_of_constant ? c.rtol : 0;
  double low = -kFar, high = kFar, least = kFar, most = -kFar;
  std::vector<double> values(kChunk);
  std::vector<std::byte> raw;
  for (std::int64_t begin = 0; begin < c.elements; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, c.elements - begin);
    side.strided(begin, 1, count, raw, values.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const double e = values[static_cast<std::size_t>(i)], t = c.atol + of_element * std::abs(e);
      if (!std::isfinite(e)) return std::nullopt;
      const double from = e - t, to = e + t;
      low = std::max(low, from / (from > 0 ? 1 + of_constant : 1 - of_constant));
      high = std::min(high, to / (to > 0 ? 1 - of_constant : 1 + of_constant));
      least = std::min(least, e), most = std::max(most, e);
    }
    if (low > high) return std::nullopt;
  }
  if (least == most) return std::nullopt;
  return low <= 0 && high >= 0 ? 0 : (low + high) / 2;
}

}  // namespace

std::int64_t compare_bytes(const ArrayType& actual, const ArrayType& expected) {
  const std::int64_t pieces = element_count(actual.shape) / elements_of_a_piece(actual, expected) + 1;
  return 2 * std::min(actual.bytes() + 1, threads() * kPieceBytes) +
         pieces * (arrays::bytes_of_a_box(actual.shape.size()) + static_cast<std::int64_t>(sizeof(Part)));
}

Comparison compare_arrays(const ArraySource& actual, const ArraySource& expected, const Tolerance& tolerance,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const bool is_named = !tolerance.library.empty();
  if (is_named && (tolerance.rtol || tolerance.atol || tolerance.max_ulp || tolerance.metric))
    throw core::usage("the tolerance {} is in the place of others", tolerance.library);
  if (tolerance.allowed_count < 0 || !(tolerance.allowed_share >= 0 && tolerance.allowed_share <= 1))
    throw Error(Error::Kind::usage, "what may be beyond the tolerance is a count, or a share from 0 to 1");
  if (tolerance.max_ulp.value_or(0) < 0)
    throw core::usage("{} units in the last place are less than 0", *tolerance.max_ulp);
  verify::require_tolerances({tolerance.rtol, tolerance.atol, tolerance.hard_rtol, tolerance.hard_atol});
  Comparison result = headers_of(actual, expected, tolerance);
  if (!result.same_shape()) return result;
  core::Progress done(progress, result.elements);
  const Comparer comparer(result.actual_dtype, result.expected_dtype, verify::rule_of(result, tolerance));
  Part sum;
  if (result.elements > 0)
    for (const Part& part : parts_of(actual, expected, comparer, done)) join(sum, part);
  add_found(sum, result);
  result.failed = failures_of(result, tolerance);
  result.close = result.failed.empty();
  const bool is_by_size = result.rule ? result.rule->form == PassRule::Form::allclose ||
                                            result.rule->form == PassRule::Form::allclose_actual
                                      : result.by_size && !result.max_ulp && !tolerance.metric;
  const bool has_differences = result.largest_absolute && result.largest_absolute->amount > 0;
  if (result.close && is_by_size && has_differences && is_float(result.expected_dtype))
    result.constant_that_passes = constant_within(expected, result);
  return result;
}

Comparison assert_allclose(const ArraySource& actual, const ArraySource& expected,
                           const Tolerance& tolerance) {
  Comparison result = compare_arrays(actual, expected, tolerance);
  if (result.close) return result;
  if (!result.same_shape())
    throw core::invalid("{} has the shape {}, {} has {}", actual.name(), to_string(result.actual_shape),
                        expected.name(), to_string(result.expected_shape));
  if (!result.violation)
    throw core::invalid("{} is not close to {}: the metric is beyond its limit", actual.name(),
                        expected.name());
  const Difference& worst = *result.violation;
  throw core::invalid("{} is not close to {}: {} of {} elements differ, by up to {} at {}", actual.name(),
                      expected.name(), result.differing, result.elements, worst.amount,
                      to_string(worst.index));
}

bool proves_little(const Comparison& comparison) {
  const bool is_bool =
      comparison.actual_dtype == DType::boolean && comparison.expected_dtype == DType::boolean;
  return !is_bool && comparison.elements > 0 &&
         comparison.both_zero / 9 >= comparison.elements - comparison.both_zero;
}

namespace {

Table table_of_special(const Comparison& c) {
  Table special{"special",
                "NaN and infinities",
                {{"kind", ""},
                 {"actual", "actual"},
                 {"expected", "expected"},
                 {"one_sided", "on one side"},
                 {"first_index", "first there"}},
                {}};
  const auto kind = [&](const char* name, std::int64_t actual, std::int64_t expected, std::int64_t one_sided,
                        const std::optional<Shape>& first) {
    if (actual > 0 || expected > 0)
      special.rows.push_back({std::string(name), actual, expected, one_sided, verify::value_or_null(first)});
  };
  kind("NaN", c.actual_nans, c.expected_nans, c.one_sided_nans, c.first_one_sided_nan);
  kind("infinite", c.actual_infinities, c.expected_infinities, c.one_sided_infinities,
       c.first_one_sided_infinity);
  return special;
}

Table table_of_worst(const Comparison& c) {
  Table worst{"worst",
              "the largest differences",
              {{"by", "by"},
               {"difference", "difference"},
               {"index", "index"},
               {"actual", "actual", Unit::value},
               {"expected", "expected", Unit::value}},
              {}};
  const auto row = [&](const char* by, const std::optional<Difference>& d) {
    if (d)
      worst.rows.push_back(
          {std::string(by), d->amount, d->index, value_of(d->actual), value_of(d->expected)});
  };
  row("absolute", c.largest_absolute);
  row("relative", c.largest_relative);
  row("ulps", c.largest_ulps);
  // Of all differences the largest may be one that the tolerance allows.
  if (c.violation && !(c.largest_absolute && c.violation->index == c.largest_absolute->index))
    row("beyond the tolerance", c.violation);
  return worst;
}

}  // namespace

Report describe(const Comparison& comparison) {
  Report report;
  const Comparison& c = comparison;
  report.add("close", "close", c.close);
  const bool is_plain = c.failed.size() == 1 && c.failed[0] == "elements" && c.conditions == 1;
  if (!c.failed.empty() && !is_plain)
    report.add("failed", "what failed", fmt::format("{}", fmt::join(c.failed, ", ")));
  if (c.rule) report.add(verify::section_of({*c.rule}));
  if (c.by_size)
    report.add("rtol", c.rule ? "rtol" : "rtol, of the reference", c.rtol).add("atol", "atol", c.atol);
  if (c.max_ulp) report.add("max_ulp", "units in the last place", *c.max_ulp);
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
      .add("differing_share", "share of those", share_of(c.differing, c.elements), Unit::share);
  if (c.beyond_hard)
    report.add("beyond_hard", "of them beyond the hard limit", *c.beyond_hard, Unit::count)
        .add("first_beyond_hard", "the first at", verify::value_or_null(c.first_beyond_hard));
  report.add("both_zero", "0 on both sides", c.both_zero, Unit::count)
      .add("max_difference", "largest difference",
           c.largest_absolute ? ReportValue(c.largest_absolute->amount) : ReportValue())
      .add("max_index", "at", c.largest_absolute ? ReportValue(c.largest_absolute->index) : ReportValue())
      .add("rms", "root mean square", verify::value_or_null(c.rms))
      .add("cosine", "cosine", verify::value_or_null(c.cosine))
      .add("snr", "signal to noise, dB", verify::value_or_null(c.snr))
      .add("rel", "rel", verify::value_or_null(c.rel));
  if (is_float(c.actual_dtype) || is_float(c.expected_dtype)) report.add(table_of_special(c));
  report.add(table_of_worst(c));
  if (proves_little(c))
    report.warnings.push_back(
        fmt::format("{:.3g} % of the elements are 0 on both sides: the comparison proves little",
                    100.0 * static_cast<double>(c.both_zero) / static_cast<double>(c.elements)));
  if (c.constant_that_passes) {
    const std::string tolerance =
        c.rule ? text_of(*c.rule) : fmt::format("{:.3g} + {:.3g} |expected|", c.atol, c.rtol);
    report.warnings.push_back(
        *c.constant_that_passes == 0
            ? fmt::format("zeros would pass: the tolerance, {}, is above each element", tolerance)
            : fmt::format("a constant, {:.3g}, would pass: elements differ by less than the tolerance, {}",
                          *c.constant_that_passes, tolerance));
  }
  return report;
}

}  // namespace ejk
