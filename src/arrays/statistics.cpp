// Statistics by chunks that do not depend on the threads, each in kLanes vectorised lanes: comparisons
// exclude NaN from minimum and maximum, and x != x counts it.
// tests: tests/arrays/test_statistics.cpp
#include "ejk/array_math.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "arrays/boxes.hpp"
#include "arrays/cast.hpp"
#include "arrays/convert.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"

namespace ejk {

namespace {

constexpr std::int64_t kLanes = 16;

template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T> || sizeof(T) == 8, double, std::int64_t>;

// Sums of so many finite numbers cannot overflow once these are multiplied by it.
constexpr double kScale = 0x1p-64;

// What one piece comes to. A piece without a number has minimum > maximum.
template <class S>
struct Part {
  S minimum, maximum;
  double sum = 0;
  std::int64_t nans = 0, infinities = 0;
  bool is_scaled = false;  // the sum, by kScale: it may be one of finite numbers that overflows
};

// Recomputes a sum that was infinite or NaN.
double scaled_sum(const double* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::isnan(x[i]) ? 0 : x[i] * kScale;
  return sum;
}

// The mean of all numbers in the parts, between these two.
template <class S>
double mean_of(const std::vector<Part<S>>& parts, std::int64_t numbers, double least, double most) {
  double sum = 0, scaled = 0;
  for (const Part<S>& part : parts) {
    sum += part.is_scaled ? part.sum / kScale : part.sum;
    scaled += part.is_scaled ? part.sum : part.sum * kScale;
  }
  const auto count = static_cast<double>(numbers);
  return std::isfinite(sum) ? sum / count : std::clamp(scaled / count / kScale, least, most);
}

template <class T>
Part<arrays::Wide<T>> part_of_large(const std::byte* data, std::int64_t n) {
  using S = arrays::Wide<T>;
  using Limits = std::numeric_limits<S>;
  constexpr bool is_real = std::is_floating_point_v<S>;
  constexpr S highest = is_real ? Limits::infinity() : Limits::max();
  constexpr S lowest = is_real ? -Limits::infinity() : Limits::lowest();
  S low[kLanes], high[kLanes];
  Sum<S> sum[kLanes] = {};
  // Counted in the element's own size, which vectors like, and so not for long at a time.
  std::int32_t nans[kLanes] = {}, infinities[kLanes] = {};
  std::fill_n(low, kLanes, highest);
  std::fill_n(high, kLanes, lowest);
  const auto element = [&](std::int64_t i) { return static_cast<S>(reinterpret_cast<const T*>(data)[i]); };
  const auto take = [&](std::int64_t lane, S x) {
    low[lane] = x < low[lane] ? x : low[lane];
    high[lane] = x > high[lane] ? x : high[lane];
    if constexpr (is_real) {
      const bool is_nan = x != x;
      sum[lane] += is_nan ? 0.0 : static_cast<double>(x);
      nans[lane] += is_nan;
      infinities[lane] += (x == highest) | (x == lowest);
    } else {
      sum[lane] += static_cast<Sum<S>>(x);
    }
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) take(lane, element(i + lane));
  for (std::int64_t lane = 0; i < n; ++i, ++lane) take(lane, element(i));

  Part<S> part{highest, lowest};
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    part.minimum = std::min(part.minimum, low[lane]);
    part.maximum = std::max(part.maximum, high[lane]);
    part.sum += static_cast<double>(sum[lane]);
    part.nans += nans[lane];
    part.infinities += infinities[lane];
  }
  if constexpr (std::is_same_v<T, double>) {
    // One infinity is its own sum, whatever else overflows: NaN where that has the other sign.
    if (std::isnan(part.sum) || (std::isinf(part.sum) && part.infinities == 0)) {
      part.sum = scaled_sum(reinterpret_cast<const double*>(data), n);
      part.is_scaled = true;
    }
  }
  return part;
}

// Integers of one or two bytes: sums of a run stay in twice their size, so that vectors hold as many as they
// can.
template <class T>
Part<arrays::Wide<T>> scan_small(const std::byte* data, std::int64_t n) {
  using S = arrays::Wide<T>;
  using Limits = std::numeric_limits<S>;
  using Narrow = std::conditional_t<sizeof(S) == 1, std::int16_t, std::int32_t>;
  using RunSum = std::conditional_t<std::is_signed_v<S>, Narrow, std::make_unsigned_t<Narrow>>;
  constexpr std::int64_t kSmallLanes = 32 / sizeof(S);
  constexpr std::int64_t kRun = sizeof(S) == 1 ? 256 : 32768;  // more might not fit
  S low[kSmallLanes], high[kSmallLanes];
  std::fill_n(low, kSmallLanes, Limits::max());
  std::fill_n(high, kSmallLanes, Limits::lowest());
  const auto element = [&](std::int64_t i) -> S {
    if constexpr (std::is_same_v<T, bool>)
      return data[i] != std::byte{0};  // a file may contain any byte
    else
      return reinterpret_cast<const T*>(data)[i];
  };
  std::int64_t sum = 0, i = 0;
  while (i + kSmallLanes <= n) {
    RunSum run[kSmallLanes] = {};
    const std::int64_t end = i + std::min(kRun, (n - i) / kSmallLanes) * kSmallLanes;
    for (; i < end; i += kSmallLanes)
      for (std::int64_t lane = 0; lane < kSmallLanes; ++lane) {
        const S x = element(i + lane);
        low[lane] = x < low[lane] ? x : low[lane];
        high[lane] = x > high[lane] ? x : high[lane];
        run[lane] = static_cast<RunSum>(run[lane] + x);
      }
    for (const RunSum s : run) sum += s;
  }
  Part<S> part{Limits::max(), Limits::lowest()};
  for (; i < n; ++i) {
    const S x = element(i);
    part.minimum = std::min(part.minimum, x);
    part.maximum = std::max(part.maximum, x);
    sum += x;
  }
  part.minimum = std::min(part.minimum, *std::min_element(low, low + kSmallLanes));
  part.maximum = std::max(part.maximum, *std::max_element(high, high + kSmallLanes));
  part.sum = static_cast<double>(sum);
  return part;
}

// The type in which parts are reduced: one of three.
template <class T>
using Widest =
    std::conditional_t<std::is_floating_point_v<arrays::Wide<T>>, double,
                       std::conditional_t<std::is_signed_v<arrays::Wide<T>>, std::int64_t, std::uint64_t>>;

template <class T>
Part<Widest<T>> part_of(const std::byte* data, std::int64_t n) {
  const auto part = [&] {
    if constexpr (std::is_integral_v<T> && sizeof(T) <= 2)
      return scan_small<T>(data, n);
    else
      return part_of_large<T>(data, n);
  }();
  return {part.minimum, part.maximum, part.sum, part.nans, part.infinities, part.is_scaled};
}

template <class S>
Extreme extreme(S value) {
  if constexpr (std::is_same_v<S, std::uint64_t>) {
    if (!std::in_range<std::int64_t>(value)) return value;
  }
  if constexpr (std::is_integral_v<S>)
    return static_cast<std::int64_t>(value);
  else
    return static_cast<double>(value);
}

template <class S>
Statistics statistics_as(const ArraySource& source, Part<S> (*part_of_box)(const std::byte*, std::int64_t),
                         const std::function<void(std::int64_t, std::int64_t)>& progress) {
  Statistics all;
  all.elements = element_count(source.shape());
  const std::vector<std::byte>& uniform = source.access().uniform;
  if (!uniform.empty() && all.elements > 0) {
    const Part<S> one = part_of_box(uniform.data(), 1);
    all.nans = one.nans * all.elements;
    all.infinities = one.infinities * all.elements;
    if (one.nans == 0) {
      all.minimum = all.maximum = extreme(one.minimum);
      all.mean = one.sum;
    }
    if (progress) progress(all.elements, all.elements);
    return all;
  }
  const arrays::Boxes boxes(source.shape(), arrays::kBoxBytes / size_of(source.dtype()));
  const arrays::BoxReader reader(source);
  std::vector<Part<S>> parts(boxes.starts.size());
  core::Progress done(progress, all.elements);
  core::parallel_reduce(
      boxes.size(), reader.threads(boxes, 1), [] { return std::vector<std::byte>{}; },
      [&](std::vector<std::byte>& buffer, std::int64_t box) {
        const std::int64_t n = boxes.elements(box);
        parts[static_cast<std::size_t>(box)] = part_of_box(reader.acquire(boxes, box, buffer), n);
        reader.release(boxes, box);
        done.add(n);
      },
      [](const std::vector<std::byte>&) {});

  if (parts.empty()) return all;
  auto least = parts[0].minimum, most = parts[0].maximum;
  for (const auto& part : parts) {
    least = std::min(least, part.minimum);
    most = std::max(most, part.maximum);
    all.nans += part.nans;
    all.infinities += part.infinities;
  }
  if (const std::int64_t numbers = all.elements - all.nans; numbers > 0) {
    all.minimum = extreme(least);
    all.maximum = extreme(most);
    all.mean = mean_of(parts, numbers, static_cast<double>(least), static_cast<double>(most));
  }
  return all;
}

// Adds elements to the counts of bins that begin at `low`, `scale` of them to one.
template <class T>
void count_bins(const std::byte* data, std::int64_t n, double low, double scale,
                std::vector<std::int64_t>& counts) {
  const auto* const x = reinterpret_cast<const arrays::Stored<T>*>(data);
  const double last = static_cast<double>(std::ssize(counts) - 1);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(arrays::widen<T>(x[i]));
    if (!std::isfinite(value)) continue;
    ++counts[static_cast<std::size_t>(std::clamp((value - low) * scale, 0.0, last))];
  }
}

using BinCounter = void (*)(const std::byte*, std::int64_t, double, double, std::vector<std::int64_t>&);
BinCounter counter_of(DType wide) {
  return dispatch_wide(wide, []<class T>(std::type_identity<T>) -> BinCounter { return count_bins<T>; });
}

}  // namespace

Statistics statistics_of(const ArraySource& source,
                         const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto wide = arrays::with_wide_floats(source);
  return dispatch_wide(wide->dtype(), [&]<class T>(std::type_identity<T>) {
    return statistics_as<Widest<T>>(*wide, part_of<T>, progress);
  });
}

std::vector<Bin> histogram_of(const ArraySource& source, const Statistics& statistics, std::int64_t most_bins,
                              const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto number = [](const Extreme& e) -> std::optional<double> {
    if (const auto* whole = std::get_if<std::int64_t>(&e)) return static_cast<double>(*whole);
    if (const auto* large = std::get_if<std::uint64_t>(&e)) return static_cast<double>(*large);
    if (const auto* real = std::get_if<double>(&e); real != nullptr && std::isfinite(*real)) return *real;
    return std::nullopt;
  };
  const auto low = number(statistics.minimum), high = number(statistics.maximum);
  if (!low || !high || most_bins < 1) return {};
  const bool whole = !is_float(source.dtype());
  const double values = *high - *low + (whole ? 1 : 0);  // that the bins share
  if (!std::isfinite(values)) return {};
  double width = values / static_cast<double>(most_bins);
  const bool one =
      values <= 0 || !std::isfinite(1 / width);  // nothing is between the bins that a double can tell
  if (whole) width = std::ceil(width);           // bins of whole numbers begin at whole numbers
  const std::int64_t bins = one     ? 1
                            : whole ? static_cast<std::int64_t>(std::ceil(values / width))
                                    : most_bins;
  std::vector<Bin> histogram;
  for (std::int64_t b = 0; b < bins; ++b) {
    const double from = *low + width * static_cast<double>(b);
    histogram.push_back({from,
                         whole           ? std::min(from + width - 1, *high)
                         : b + 1 == bins ? *high
                                         : from + width,
                         0});
  }
  if (!source.access().uniform.empty()) {  // the least is the largest: one bin
    histogram[0].elements = statistics.elements;
    if (progress) progress(statistics.elements, statistics.elements);
    return histogram;
  }
  const double scale = one ? 0 : 1 / width;
  const auto wide = arrays::with_wide_floats(source);
  const arrays::Boxes boxes(source.shape(), arrays::kBoxBytes / size_of(wide->dtype()));
  const arrays::BoxReader reader(*wide);
  struct Part {
    std::vector<std::byte> buffer;
    std::vector<std::int64_t> counts;
  };
  core::Progress done(progress, statistics.elements);
  const auto count = counter_of(wide->dtype());
  core::parallel_reduce(
      boxes.size(), reader.threads(boxes, 1),
      [&] {
        return Part{{}, std::vector<std::int64_t>(static_cast<std::size_t>(bins))};
      },
      [&](Part& part, std::int64_t box) {
        const std::int64_t n = boxes.elements(box);
        count(reader.acquire(boxes, box, part.buffer), n, *low, scale, part.counts);
        reader.release(boxes, box);
        done.add(n);
      },
      [&](const Part& part) {
        for (std::size_t b = 0; b < part.counts.size(); ++b) histogram[b].elements += part.counts[b];
      });
  return histogram;
}

std::int64_t statistics_bytes(const ArraySource& source) {
  if (!source.access().uniform.empty()) return 0;
  const std::int64_t bytes = byte_count(source.shape(), arrays::wide_type(source.dtype()));
  const std::int64_t most = source.random_access() ? threads() : 1;
  const std::int64_t pieces = bytes / arrays::kBoxBytes + 1;
  const std::int64_t per_piece = arrays::bytes_of_a_box(source.shape().size()) + 2 * 32;
  return std::min(bytes, most * arrays::kBoxBytes) + pieces * per_piece;
}

}  // namespace ejk
