// Encoding in pieces of whole blocks, each by one thread. Of some KiB at once, which stay in the first-level
// cache, kernels find the largest magnitude of each block, then the codes, decode these, and sum the errors.
// Scales of several pieces (fp8, the global one of nvfp4) take a pass before, whose maxima do not depend on the
// order. Sums of errors are added piece by piece in C order.
// tests: tests/quantize/test_encode.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "arrays/boxes.hpp"
#include "arrays/convert.hpp"
#include "core/axis.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"
#include "ejk/quantize.hpp"
#include "kernels/kernels.hpp"
#include "quantize/encode.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace quantize {

namespace {

constexpr std::int64_t kPiece = std::int64_t{1}
                                << 16;  // elements; a multiple of every block along the last axis
constexpr std::int64_t kStep = kernels::kEncodeStep;

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
    } else {
      if (shape.size() > 1) shape[shape.size() - 2] = core::ceil_div(rows, block_rows);
      shape.back() = core::ceil_div(columns, block_columns);
    }
    const std::int64_t all = std::max<std::int64_t>(element_count(x), 1);
    if (is_one || (block_rows == 1 && columns % block_columns == 0)) rows = 1, columns = all;
    if (is_one) block_columns = all;
  }

  /// The scale of the element at `flat` in C order.
  std::int64_t scale_of(std::int64_t flat) const {
    const std::int64_t row = flat / columns, column = flat % columns;
    return (row / rows * core::ceil_div(rows, block_rows) + row % rows / block_rows) *
               core::ceil_div(columns, block_columns) +
           column / block_columns;
  }
};

/// Calls f(begin, end, scale, first) for the elements begin <= flat < end, those of a row at once, and no more
/// than kStep: from the element `first` of the block of `scale` on.
template <class F>
void for_each_step(const Grid& grid, std::int64_t begin, std::int64_t end, F&& f) {
  while (begin < end) {
    const std::int64_t column = begin % grid.columns;
    const std::int64_t next = std::min({end, begin + kStep, begin - column + grid.columns});
    f(begin, next, grid.scale_of(begin), column % grid.block_columns);
    begin = next;
  }
}

/// What one piece adds to the counts.
struct Part {
  std::int64_t zero_blocks = 0;
  kernels::EncodeTotals totals;
};

/// n codes of less than a byte to whole bytes.
void pack(const ElementRow& row, const std::uint8_t* codes, std::int64_t n, std::byte* out) {
  if (row.group_codes == 2) {
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

/// The codes that a thread has found.
class UsedCodes {
 public:
  explicit UsedCodes(const ElementRow& row)
      : is_packed_(row.group_codes == 2), magnitudes_(1 << (row.format->bits() - 1)) {}

  /// Codes of a piece, or bytes of two codes of 4 bits. Most magnitudes are within the run of those that are
  /// known already, which is faster to see than to mark them.
  void add(const std::uint8_t* bytes, std::int64_t n) {
    if (is_packed_ && count() == 2 * magnitudes_) return;
    constexpr std::int64_t kGroup = 128;
    const auto mask = static_cast<std::uint8_t>(magnitudes_ - 1);
    for (std::int64_t i = 0; i < n; i += kGroup) {
      const std::int64_t end = std::min(n, i + kGroup);
      std::uint8_t most = known_ == 0 ? 255 : 0;
      if (!is_packed_)
        for (std::int64_t j = i; j < end; ++j)
          most = std::max(most, static_cast<std::uint8_t>((bytes[j] & mask) - first_known_));
      if (is_packed_ || most >= known_)
        for (std::int64_t j = i; j < end; ++j) used_[bytes[j]] = true;
    }
    if (is_packed_) return;
    known_ = 0;
    const auto all = static_cast<std::size_t>(magnitudes_);
    for (std::size_t begin = 0, i = 0; i <= all; ++i) {
      if (i < all && used_[i] && used_[i + all]) continue;
      if (i - begin > known_) known_ = i - begin, first_known_ = static_cast<std::uint8_t>(begin);
      begin = i + 1;
    }
  }

  void merge(const UsedCodes& other) {
    for (std::size_t code = 0; code < used_.size(); ++code) used_[code] = used_[code] || other.used_[code];
  }

  std::int64_t count() const {
    std::array<bool, 256> codes = used_;
    if (is_packed_) {
      codes = {};
      for (std::size_t pair = 0; pair < used_.size(); ++pair)
        if (used_[pair]) codes[pair & 15] = codes[pair >> 4] = true;
    }
    return std::count(codes.begin(), codes.end(), true);
  }

 private:
  bool is_packed_;
  int magnitudes_;
  std::array<bool, 256> used_ = {};
  // The longest run of magnitudes that are used with both signs.
  std::uint8_t first_known_ = 0;
  std::size_t known_ = 0;
};

/// Scales and codes of blocks.
class BlockEncoder {
 public:
  /// `encode_scale` is 1 / global without its rounding.
  BlockEncoder(const QuantizeSettings& settings, std::int64_t block, float global, float encode_scale)
      : settings_(settings),
        row_(row_of(*settings.element)),
        kernels_(kernels::active().codes),
        block_(block),
        global_(global),
        encode_scale_(encode_scale) {}

  /// The float32 scale of fp8 for a largest magnitude.
  float scale_of_fp8(std::uint32_t amax) const {
    if (amax == 0) return 1;
    if (settings_.power_of_two) return kE8M0[E8M0Codes(*settings_.rule, row_)(amax)];
    return std::max(std::bit_cast<float>(amax) / static_cast<float>(row_.format->largest), 0x1p-126f);
  }

  /// Encodes at most kStep elements, from the element `first` of a block on; `scales` are stored, or given
  /// (fp8). `at`: their position in C order.
  void encode(const float* x, std::int64_t n, std::int64_t first, std::byte* scales, std::uint8_t* codes,
              std::int64_t at, Part& part) const {
    float scale_numbers[kStep / kNvfp4Block], factors[kStep / kNvfp4Block];
    const bool is_fp8 = settings_.scheme == Scheme::fp8;
    const float* const given = reinterpret_cast<const float*>(scales);
    const float *const numbers = is_fp8 ? given : scale_numbers, *const used = is_fp8 ? given : factors;
    if (!is_fp8) choose_scales(x, n, reinterpret_cast<std::uint8_t*>(scales), scale_numbers, factors, part);
    kernels_.encode(
        *row_.format, static_cast<kernels::Ties>(settings_.rounding), x, n,
        {used, numbers, global_,
         settings_.scheme == Scheme::mx ? kernels::ScaleUse::multiplies : kernels::ScaleUse::divides},
        block_, first, at, codes, part.totals);
  }

 private:
  // The codes and numbers of the scales of whole blocks, and the factor or divisor of their elements.
  void choose_scales(const float* x, std::int64_t n, std::uint8_t* codes, float* numbers, float* factors,
                     Part& part) const {
    const std::int64_t blocks = core::ceil_div(n, block_);
    const bool is_mx = settings_.scheme == Scheme::mx;
    std::uint32_t largest[kStep / kNvfp4Block];
    kernels_.largest(x, n, block_, 0, !is_mx, largest);
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (largest[b] != 0) continue;
      const float* const end = x + std::min(n, (b + 1) * block_);
      part.zero_blocks += std::all_of(x + b * block_, end, [](float element) { return element == 0; });
    }
    if (is_mx) {
      const E8M0Codes code(*settings_.rule, row_);
      for (std::int64_t b = 0; b < blocks; ++b) codes[b] = code(largest[b]);
      for (std::int64_t b = 0; b < blocks; ++b) {
        numbers[b] = kE8M0[codes[b]];
        factors[b] = kE8M0[codes[b] == 255 ? 255 : 254 - codes[b]];  // the inverse
      }
      return;
    }
    const auto most = static_cast<float>(row_.format->largest);
    for (std::int64_t b = 0; b < blocks; ++b)
      numbers[b] = std::bit_cast<float>(largest[b]) * encode_scale_ / most;
    kernels::EncodeTotals ignored{.known = std::numeric_limits<float>::infinity()};
    const float one = 1;
    kernels_.encode(kFloat8E4M3Fn, kernels::Ties::even, numbers, blocks,
                    {&one, &one, 1, kernels::ScaleUse::multiplies}, blocks, 0, 0, codes, ignored);
    // Elements of a block whose scale is 0 become 0, infinities aside.
    for (std::int64_t b = 0; b < blocks; ++b) {
      numbers[b] = row_of(ElementFormat::e4m3).values[codes[b]];
      factors[b] = numbers[b] > 0 ? std::max(numbers[b] * global_, 0x1p-149f) : 0x1.FFFFFEp127f;
    }
  }

  const QuantizeSettings& settings_;
  const ElementRow& row_;
  const kernels::Codes& kernels_;
  std::int64_t block_;
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

  const kernels::Codes& codes = kernels::active().codes;
  std::vector<std::uint32_t> largest(s.scheme == Scheme::fp8 ? static_cast<std::size_t>(made.blocks) : 1);
  if (has_pass)
    core::parallel_reduce(
        boxes.size(), reader.threads(boxes, 0.5), [] { return Buffer{}; },
        [&](Buffer& buffer, std::int64_t box) {
          const auto* from = reinterpret_cast<const float*>(reader.acquire(boxes, box, buffer));
          const std::int64_t first = boxes.before[static_cast<std::size_t>(box)], n = boxes.elements(box);
          const auto add = [&](std::uint32_t most, std::int64_t scale) {
            std::atomic_ref<std::uint32_t> cell(largest[static_cast<std::size_t>(scale)]);
            std::uint32_t before = cell.load(std::memory_order_relaxed);
            while (before < most && !cell.compare_exchange_weak(before, most, std::memory_order_relaxed)) {
            }
          };
          std::uint32_t most[kStep + 1];
          if (s.scheme == Scheme::fp8 && !grid.is_one) {
            for_each_step(
                grid, first, first + n,
                [&](std::int64_t begin, std::int64_t end, std::int64_t scale, std::int64_t within) {
                  codes.largest(from + (begin - first), end - begin, grid.block_columns, within, true, most);
                  const std::int64_t blocks = core::ceil_div(within + end - begin, grid.block_columns);
                  for (std::int64_t b = 0; b < blocks; ++b) add(most[b], scale + b);
                });
          } else {
            codes.largest(from, n, n, 0, true, most);
            add(most[0], 0);
          }
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
  const BlockEncoder encoder(s, grid.block_columns, made.global_scale.value_or(1), encode_scale);
  if (s.scheme == Scheme::fp8)
    for (std::size_t i = 0; i < largest.size(); ++i) {
      scales.elements<float>()[i] = encoder.scale_of_fp8(largest[i]);
      made.zero_blocks += largest[i] == 0;
    }

  std::vector<Part> parts(static_cast<std::size_t>(boxes.size()));
  struct Buffers {
    UsedCodes used;
    Buffer elements;
    std::vector<std::uint8_t> codes;
    float largest_error = 0;
  };
  UsedCodes used(row);
  core::parallel_reduce(
      boxes.size(), reader.threads(boxes, 2),
      [&] {
        return Buffers{UsedCodes(row), {}, {}, 0};
      },
      [&](Buffers& buffers, std::int64_t box) {
        const auto* from = reinterpret_cast<const float*>(reader.acquire(boxes, box, buffers.elements));
        const std::int64_t first = boxes.before[static_cast<std::size_t>(box)], n = boxes.elements(box);
        std::byte* const out = made.values.data() + first / row.group_codes * row.group_bytes;
        auto* codes_out = reinterpret_cast<std::uint8_t*>(out);
        if (row.group_codes > 1) {
          buffers.codes.resize(static_cast<std::size_t>(n));
          codes_out = buffers.codes.data();
        }
        Part& part = parts[static_cast<std::size_t>(box)];
        part.totals.known = buffers.largest_error;
        for_each_step(grid, first, first + n,
                      [&](std::int64_t begin, std::int64_t end, std::int64_t scale, std::int64_t within) {
                        encoder.encode(from + (begin - first), end - begin, within,
                                       scales.data() + scale * size_of(scales.dtype()),
                                       codes_out + (begin - first), begin, part);
                      });
        buffers.largest_error = std::max(buffers.largest_error, static_cast<float>(part.totals.largest));
        if (row.group_codes > 1) pack(row, codes_out, n, out);
        buffers.used.add(row.group_codes == 2 ? reinterpret_cast<const std::uint8_t*>(out) : codes_out,
                         n / (row.group_codes == 2 ? 2 : 1));
        reader.release(boxes, box);
        done.add(n);
      },
      [&](const Buffers& buffers) { used.merge(buffers.used); });

  std::int64_t worst_at = -1;
  double worst = -1;
  for (const Part& part : parts) {
    made.zero_blocks += part.zero_blocks;
    made.saturated += part.totals.overflows;
    made.flushed += part.totals.flushed;
    made.nans += part.totals.nans;
    made.lost += part.totals.lost;
    made.signal += part.totals.signal;
    made.noise += part.totals.noise;
    if (part.totals.largest > worst) worst = part.totals.largest, worst_at = part.totals.largest_at;
  }
  made.codes_used = used.count();
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
