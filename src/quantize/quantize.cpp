// Encoding in pieces of whole blocks, each by one thread: the largest magnitude of a block, its scale, its
// codes, and their errors, while the piece is in the cache. Scales of several pieces (fp8, the global one of
// nvfp4) take a pass before, whose maxima do not depend on the order. Sums of errors are added piece by piece
// in C order.
// tests: tests/quantize/test_encode.cpp
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "arrays/boxes.hpp"
#include "arrays/convert.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"
#include "ejk/quantize.hpp"
#include "quantize/encode.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace quantize {

namespace {

constexpr std::int64_t kPiece = std::int64_t{1}
                                << 16;  // elements; a multiple of every block along the last axis
constexpr std::int64_t kStep = 1024;    // of them encoded at once
constexpr std::uint32_t kInfinity = 0x7F800000u;

using Scheme = QuantizationScheme;

void check(const ArraySource& x, const QuantizeSettings& s) {
  const std::string_view scheme = name_of(s.scheme);
  if (s.scheme == Scheme::gptoss) throw core::usage("gptoss is mx of e2m1, in another shape");
  if (s.block && s.scheme != Scheme::fp8)
    throw core::usage("{} has blocks of its own; block is of fp8", scheme);
  if (s.block && (s.block->rows < 1 || s.block->columns < 1))
    throw core::usage("block {} is empty", to_string(*s.block));
  if (s.power_of_two && s.scheme != Scheme::fp8)
    throw core::usage("scales that are powers of two are a choice of fp8, not of {}", scheme);
  if (s.rule && s.scheme != Scheme::mx && !s.power_of_two)
    throw core::usage("a scale rule is of scales that are powers of two, as of mx");
  if (s.global && s.scheme != Scheme::nvfp4)
    throw core::usage("a global scale is of nvfp4, not of {}", scheme);
  if (s.global && !(*s.global > 0 && std::isfinite(*s.global)))
    throw core::usage("the global scale {} is not a number above 0", *s.global);
  if (s.element) {
    const bool is_8_bit = row_of(*s.element).group_codes == 1;
    if (s.scheme == Scheme::fp8 && !is_8_bit)
      throw core::usage("fp8 has elements e4m3 and e5m2, not {}", name_of(*s.element));
    if (s.scheme == Scheme::nvfp4 && *s.element != ElementFormat::e2m1)
      throw core::usage("nvfp4 has elements e2m1, not {}", name_of(*s.element));
  }
  if (s.layout == ScaleLayout::packed_columns &&
      (s.scheme == Scheme::nvfp4 || (s.scheme == Scheme::fp8 && !s.power_of_two)))
    throw core::usage("layout deepgemm is of scales that are powers of two");
  if (s.scheme == Scheme::fp8 && s.layout != ScaleLayout::linear && s.layout != ScaleLayout::packed_columns)
    throw core::usage("layout {} is of scales of one byte, and those of fp8 are float32", name_of(s.layout));
  if (s.scheme == Scheme::fp8 && s.layout == ScaleLayout::packed_columns && !s.block)
    throw core::usage("layout deepgemm is of blocks of rows and columns");
  if ((s.scheme != Scheme::fp8 && x.shape().empty()) || (s.block && x.shape().size() < 2))
    throw core::invalid("{}: shape {} has no blocks{}", x.name(), to_string(x.shape()),
                        s.block ? " of rows and columns" : "");
}

QuantizeSettings with_defaults(QuantizeSettings s) {
  if (!s.element) s.element = s.scheme == Scheme::nvfp4 ? ElementFormat::e2m1 : ElementFormat::e4m3;
  if (!s.rule && (s.scheme == Scheme::mx || s.power_of_two)) s.rule = ScaleRule::rceil;
  return s;
}

/// Which scale an element has: matrices of rows and columns, in blocks.
struct Grid {
  std::int64_t rows = 1, columns = 1;  // of a matrix
  std::int64_t block_rows = 1, block_columns = 1;
  bool is_one = false;  // one scale for all
  Shape shape;          // of linear scales

  Grid(const Shape& x, const QuantizeSettings& s) : shape(x) {
    columns = x.empty() ? 1 : x.back();
    rows = x.size() < 2 ? 1 : x[x.size() - 2];
    block_columns = s.scheme == Scheme::nvfp4 ? kNvfp4Block : kMxBlock;
    if (s.scheme == Scheme::fp8) {
      is_one = !s.block;
      block_rows = s.block ? s.block->rows : 1;
      block_columns = s.block ? s.block->columns : std::max<std::int64_t>(columns, 1);
    }
    if (is_one) {
      shape.clear();
      return;
    }
    if (shape.size() > 1) shape[shape.size() - 2] = core::ceil_div(rows, block_rows);
    shape.back() = core::ceil_div(columns, block_columns);
  }

  /// The scale of the element at `flat` in C order.
  std::int64_t scale_of(std::int64_t flat) const {
    if (is_one) return 0;
    const std::int64_t row = flat / columns, column = flat % columns;
    return (row / rows * core::ceil_div(rows, block_rows) + row % rows / block_rows) *
               core::ceil_div(columns, block_columns) +
           column / block_columns;
  }
};

/// Calls f(begin, end, scale) for the runs of elements begin <= flat < end that share a scale and a row.
template <class F>
void for_each_run(const Grid& grid, std::int64_t begin, std::int64_t end, F&& f) {
  while (begin < end) {
    const std::int64_t column = begin % grid.columns;
    const std::int64_t block_end = (column / grid.block_columns + 1) * grid.block_columns;
    const std::int64_t next = std::min(end, begin - column + std::min(block_end, grid.columns));
    f(begin, next, grid.scale_of(begin));
    begin = next;
  }
}

/// The bits of the largest magnitude, of NaN as well; or of finite elements.
std::uint32_t largest_of(const float* x, std::int64_t n, bool finite) {
  std::int32_t most = 0;
  const std::int32_t limit = finite ? static_cast<std::int32_t>(kInfinity) : INT32_MAX;
  for (std::int64_t i = 0; i < n; ++i) {
    auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu);
    magnitude &= -static_cast<std::int32_t>(magnitude < limit);
    most = magnitude > most ? magnitude : most;
  }
  return static_cast<std::uint32_t>(most);
}

/// What one piece adds to the counts.
struct Part {
  std::int64_t zero_blocks = 0, saturated = 0, flushed = 0, nans = 0;
  std::array<bool, 256> codes = {};
  double signal = 0, noise = 0, largest_error = -1;
  std::int64_t largest_at = 0;
};

void add_errors(const float* x, const std::uint8_t* codes, std::int64_t n, const float* numbers, float scale,
                float global, std::int64_t at, Part& part) {
  double signal = 0, noise = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    part.codes[codes[i]] = true;
    const double value = x[i], error = value - static_cast<double>(numbers[codes[i]] * scale * global);
    if (!(std::abs(x[i]) < INFINITY)) {
      part.nans += std::isnan(x[i]);
      continue;
    }
    signal += value * value;
    noise += error * error;
    if (std::abs(error) > part.largest_error) {
      part.largest_error = std::abs(error);
      part.largest_at = at + i;
    }
  }
  part.signal += signal;
  part.noise += noise;
}

/// n codes to whole bytes.
void pack(const ElementRow& row, const std::uint8_t* codes, std::int64_t n, std::byte* out) {
  if (row.group_codes == 1) {
    std::copy_n(reinterpret_cast<const std::byte*>(codes), n, out);
  } else if (row.group_codes == 2) {
    for (std::int64_t i = 0; i < n / 2; ++i)
      out[i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
  } else {
    for (std::int64_t i = 0; i < n / 4; ++i) {
      const std::uint8_t* c = codes + 4 * i;
      const int word = c[0] | c[1] << 6 | c[2] << 12 | c[3] << 18;
      for (int b = 0; b < 3; ++b) out[3 * i + b] = static_cast<std::byte>(word >> (8 * b) & 255);
    }
  }
}

/// Scales and codes of blocks.
class BlockEncoder {
 public:
  /// `encode_scale` is 1 / global without its rounding.
  BlockEncoder(const QuantizeSettings& settings, float global, float encode_scale)
      : settings_(settings),
        row_(row_of(*settings.element)),
        elements_(*row_.format, settings.rounding),
        scales_(kFloat8E4M3Fn, ElementRounding::even),
        global_(global),
        encode_scale_(encode_scale) {}

  /// The float32 scale of fp8 for a largest magnitude.
  float scale_of_fp8(std::uint32_t amax) const {
    if (amax == 0) return 1;
    if (settings_.power_of_two) return kE8M0[e8m0_code(*settings_.rule, row_, amax)];
    return std::max(std::bit_cast<float>(amax) / static_cast<float>(row_.format->largest), 0x1p-126f);
  }

  /// Encodes elements of one block; `scale` is stored, or given (fp8). `at`: their position in C order.
  void encode(const float* x, std::int64_t n, std::byte* scale, std::uint8_t* codes, std::int64_t at,
              Part& part) const {
    float divisor = 0, decoded = 0;
    if (settings_.scheme == Scheme::fp8) {
      std::memcpy(&divisor, scale, sizeof divisor);
      decoded = divisor;
    } else {
      const std::uint32_t amax = largest_of(x, n, settings_.scheme == Scheme::nvfp4);
      part.zero_blocks += amax == 0 && largest_of(x, n, false) == 0;
      std::uint8_t code = 0;
      if (settings_.scheme == Scheme::mx) {
        code = e8m0_code(*settings_.rule, row_, amax);
        decoded = kE8M0[code];
      } else {
        const float number =
            std::bit_cast<float>(amax) * encode_scale_ / static_cast<float>(row_.format->largest);
        Encoder::Counts ignored;
        scales_.encode(&number, 1, &code, ignored);
        decoded = row_of(ElementFormat::e4m3).values[code];
      }
      *scale = static_cast<std::byte>(code);
      divisor = decoded;
    }
    Encoder::Counts counts;
    float scaled[kStep];
    for (std::int64_t begin = 0; begin < n; begin += kStep) {
      const std::int64_t some = std::min(kStep, n - begin);
      divide(x + begin, some, divisor, scaled);
      elements_.encode(scaled, some, codes + begin, counts);
    }
    part.saturated += counts.saturated;
    part.flushed += counts.flushed;
    if (divisor == 0) part.flushed += count_nonzero(x, n);
    add_errors(x, codes, n, row_.values, decoded, global_, at, part);
  }

 private:
  void divide(const float* x, std::int64_t n, float divisor, float* out) const {
    if (settings_.scheme == Scheme::mx) {
      // The inverse of a power of two is one, of the largest and the least one as well.
      const float factor = std::isnan(divisor) ? divisor : 1 / divisor;
      for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
    } else if (settings_.scheme == Scheme::fp8) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] / divisor;
    } else if (divisor > 0) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * encode_scale_ / divisor;
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[i] = std::isfinite(x[i]) ? std::copysign(0.0f, x[i]) : x[i];
    }
  }

  static std::int64_t count_nonzero(const float* x, std::int64_t n) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i) count += x[i] != 0 && std::isfinite(x[i]);
    return count;
  }

  const QuantizeSettings& settings_;
  const ElementRow& row_;
  Encoder elements_, scales_;
  float global_, encode_scale_;
};

ArrayType scales_type(const QuantizeSettings& s, const Shape& grid) {
  const DType dtype = s.scheme == Scheme::fp8  ? DType::float32
                      : s.scheme == Scheme::mx ? DType::float8_e8m0fnu
                                               : DType::float8_e4m3fn;
  return {s.layout == ScaleLayout::packed_columns ? DType::int32 : dtype, stored_shape(s.layout, grid)};
}

}  // namespace

}  // namespace quantize

QuantizedTypes quantized_types(const ArraySource& x, const QuantizeSettings& settings) {
  using namespace quantize;
  check(x, settings);
  const QuantizeSettings s = with_defaults(settings);
  const ElementRow& row = row_of(*s.element);
  Shape shape = x.shape();
  if (row.group_codes > 1) {
    if (shape.back() % row.group_codes != 0)
      throw core::invalid("{}: the last axis has {} elements, and {} of {} make whole bytes", x.name(),
                          shape.back(), row.group_codes, row.name);
    shape.back() = shape.back() / row.group_codes * row.group_bytes;
  }
  return {{row.dtype, shape}, scales_type(s, Grid(x.shape(), s).shape)};
}

Quantized quantize_array(const ArraySource& x, const QuantizeSettings& settings,
                         const std::function<void(std::int64_t, std::int64_t)>& progress) {
  using namespace quantize;
  const QuantizedTypes types = quantized_types(x, settings);
  Quantized made;
  made.settings = with_defaults(settings);
  const QuantizeSettings& s = made.settings;
  const Grid grid(x.shape(), s);
  const ElementRow& row = row_of(*s.element);
  made.elements = element_count(x.shape());
  made.blocks = element_count(grid.shape);
  made.values = Array(types.values.dtype, types.values.shape);
  Array scales(s.scheme == Scheme::fp8 ? DType::float32 : scales_type({.scheme = s.scheme}, {}).dtype,
               grid.shape);

  const auto floats = convert_array(arrays::borrowed(x), DType::float32);
  const arrays::Boxes boxes(x.shape(), kPiece);
  const arrays::BoxReader reader(*floats);
  using Buffer = std::vector<std::byte>;
  const bool has_pass = s.scheme == Scheme::fp8 || (s.scheme == Scheme::nvfp4 && !s.global);
  core::Progress done(progress, made.elements * (has_pass ? 2 : 1));

  std::vector<std::uint32_t> largest(s.scheme == Scheme::fp8 ? static_cast<std::size_t>(made.blocks) : 1);
  if (has_pass)
    core::parallel_reduce(
        boxes.size(), reader.threads(boxes, 0.5), [] { return Buffer{}; },
        [&](Buffer& buffer, std::int64_t box) {
          const auto* from = reinterpret_cast<const float*>(reader.acquire(boxes, box, buffer));
          const std::int64_t first = boxes.before[static_cast<std::size_t>(box)], n = boxes.elements(box);
          const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t scale) {
            const std::uint32_t most = largest_of(from + (begin - first), end - begin, true);
            std::atomic_ref<std::uint32_t> cell(largest[static_cast<std::size_t>(scale)]);
            std::uint32_t before = cell.load(std::memory_order_relaxed);
            while (before < most && !cell.compare_exchange_weak(before, most, std::memory_order_relaxed)) {
            }
          };
          if (s.scheme == Scheme::fp8 && !grid.is_one)
            for_each_run(grid, first, first + n, add);
          else
            add(first, first + n, 0);
          done.add(n);
        },
        [](const Buffer&) {});

  constexpr float kMost = 448 * 6;  // of an e4m3 scale times an e2m1 element
  float encode_scale = 1;
  if (s.scheme == Scheme::nvfp4) {
    const auto amax = std::bit_cast<float>(largest[0]);
    made.global_scale = s.global ? *s.global : amax > 0 ? std::max(amax / kMost, 0x1p-126f) : 1;
    encode_scale = s.global || amax / kMost < 0x1p-126f ? 1 / *made.global_scale : kMost / amax;
  }
  const BlockEncoder encoder(s, made.global_scale.value_or(1), encode_scale);
  if (s.scheme == Scheme::fp8)
    for (std::size_t i = 0; i < largest.size(); ++i) {
      scales.elements<float>()[i] = encoder.scale_of_fp8(largest[i]);
      made.zero_blocks += largest[i] == 0;
    }

  std::vector<Part> parts(static_cast<std::size_t>(boxes.size()));
  struct Buffers {
    Buffer elements;
    std::vector<std::uint8_t> codes;
  };
  core::parallel_reduce(
      boxes.size(), reader.threads(boxes, 2), [] { return Buffers{}; },
      [&](Buffers& buffers, std::int64_t box) {
        const auto* from = reinterpret_cast<const float*>(reader.acquire(boxes, box, buffers.elements));
        const std::int64_t first = boxes.before[static_cast<std::size_t>(box)], n = boxes.elements(box);
        buffers.codes.resize(static_cast<std::size_t>(n));
        Part& part = parts[static_cast<std::size_t>(box)];
        for_each_run(grid, first, first + n, [&](std::int64_t begin, std::int64_t end, std::int64_t scale) {
          encoder.encode(from + (begin - first), end - begin, scales.data() + scale * size_of(scales.dtype()),
                         buffers.codes.data() + (begin - first), begin, part);
        });
        pack(row, buffers.codes.data(), n, made.values.data() + first / row.group_codes * row.group_bytes);
        reader.release(boxes, box);
        done.add(n);
      },
      [](const Buffers&) {});

  std::array<bool, 256> codes{};
  std::int64_t worst_at = -1;
  double worst = -1;
  for (const Part& part : parts) {
    made.zero_blocks += part.zero_blocks;
    made.saturated += part.saturated;
    made.flushed += part.flushed;
    made.nans += part.nans;
    made.signal += part.signal;
    made.noise += part.noise;
    for (std::size_t c = 0; c < codes.size(); ++c) codes[c] = codes[c] || part.codes[c];
    if (part.largest_error > worst) worst = part.largest_error, worst_at = part.largest_at;
  }
  made.codes_used = std::count(codes.begin(), codes.end(), true);
  if (worst_at >= 0) {
    made.largest_error = worst;
    made.largest_error_index = core::index_of(x.shape(), worst_at);
  }
  if (s.layout == ScaleLayout::linear) {
    made.scales = std::move(scales);
  } else {
    ArrayView linear = scales.view();
    if (linear.rank() == 1)
      linear.shape = {1, linear.shape[0]}, linear.strides = {linear.strides[0], linear.strides[0]};
    made.scales = convert_scale_layout(*make_source(linear, "scales"), ScaleLayout::linear, s.layout);
  }
  return made;
}

}  // namespace ejk
