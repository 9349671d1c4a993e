// Encoding in boxes, each by one thread. Of some KiB at once, which stay in the first-level cache, kernels find
// the largest magnitude of each block, then the codes and the elements that these have, and add up the errors. Scales of blocks that
// a box does not hold whole (of several rows or of all elements, and the global one of nvfp4) take a pass
// before, whose maxima do not depend on the order. Sums of errors are added box by box in C order.
// tests: tests/quantize/test_encode.cpp
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
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

// Elements of a box: a multiple of every block of mx and nvfp4.
constexpr std::int64_t kPiece = std::int64_t{1} << 16;
constexpr std::int64_t kStep = 2048;                       // elements at once
constexpr std::int64_t kMostBlocks = kStep / kNvfp4Block;  // whose scales are chosen in a step

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
  s.element = element_of(s);
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

/// Elements as float32, in boxes of their own type.
class Floats {
 public:
  explicit Floats(const ArraySource& x)
      : source_(is_float(x.dtype()) ? arrays::borrowed(x)
                                    : convert_array(arrays::borrowed(x), DType::float32)),
        reader_(*source_) {}

  const Shape& shape() const { return source_->shape(); }
  const arrays::BoxReader& reader() const { return reader_; }

  /// n elements of a box from `i` on: in place, or in `buffer`.
  const float* of(const std::byte* box, std::int64_t i, std::int64_t n, float* buffer) const {
    const DType dtype = source_->dtype();
    const std::byte* const from = box + i * size_of(dtype);
    if (dtype == DType::float32) return reinterpret_cast<const float*>(from);
    arrays::convert_elements(dtype, from, DType::float32, reinterpret_cast<std::byte*>(buffer), n);
    return buffer;
  }

 private:
  std::shared_ptr<const ArraySource> source_;
  arrays::BoxReader reader_;
};

/// What holds whole blocks, so that their scales are found there.
enum class WholeBlocks : std::uint8_t { in_step, in_box, in_all };

WholeBlocks whole_blocks_in(const Grid& grid, const Shape& x) {
  if (grid.is_one || grid.block_rows > 1) return WholeBlocks::in_all;
  if (kStep % grid.block_columns == 0 && grid.block_columns >= kNvfp4Block) return WholeBlocks::in_step;
  const bool are_in_box = kPiece % grid.block_columns == 0 || x.back() <= kPiece;  // a box holds whole rows
  return are_in_box ? WholeBlocks::in_box : WholeBlocks::in_all;
}

/// What one piece adds to the counts.
struct Part {
  std::int64_t zero_blocks = 0;
  kernels::EncodeCounts counts;
  kernels::CodeErrors errors;
};

/// n codes of less than a byte to whole bytes.
void pack(const ElementRow& row, const std::uint8_t* codes, std::int64_t n, std::byte* __restrict out) {
  if (row.group_codes == 2)
    for (std::int64_t i = 0; i < n / 2; ++i)
      out[i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
  else
    for (std::int64_t i = 0; i < n / 4; ++i) {
      const std::uint8_t* c = codes + 4 * i;
      const int word = c[0] | c[1] << 6 | c[2] << 12 | c[3] << 18;
      for (int b = 0; b < 3; ++b) out[3 * i + b] = static_cast<std::byte>(word >> (8 * b) & 255);
    }
}

/// The codes that a thread has found.
class UsedCodes {
 public:
  explicit UsedCodes(const FloatFormat& format)
      : used_(std::size_t{1} << format.bits()), missing_(used_.size()) {
    std::iota(missing_.begin(), missing_.end(), 0);
  }

  /// Codes of a byte each. Among many codes, searching for a few missing ones takes less time than marking all.
  void add(const std::uint8_t* codes, std::int64_t n) {
    constexpr std::int64_t kCodesPerMissing = 128;  // from which on missing ones are searched for
    if (n >= kCodesPerMissing * std::ssize(missing_))
      for (const int code : missing_)
        used_[static_cast<std::size_t>(code)] |=
            std::uint8_t{std::memchr(codes, code, static_cast<std::size_t>(n)) != nullptr};
    else
      for (std::int64_t i = 0; i < n; ++i) used_[codes[i]] = 1;
    if (n >= std::ssize(missing_))
      std::erase_if(missing_, [&](int code) { return used_[static_cast<std::size_t>(code)] != 0; });
  }

  void merge(const UsedCodes& other) {
    for (std::size_t i = 0; i < used_.size(); ++i) used_[i] |= other.used_[i];
  }

  std::int64_t count() const { return std::count(used_.begin(), used_.end(), 1); }

 private:
  std::vector<std::uint8_t> used_;  // 1 or 0
  std::vector<int> missing_;        // codes that are not used, and some that few codes before have marked
};

/// Scales and codes of blocks.
class BlockEncoder {
 public:
  /// `encode_scale` is 1 / global without its rounding.
  BlockEncoder(const QuantizeSettings& settings, std::int64_t block, float global, float encode_scale)
      : settings_(settings),
        row_(row_of(*settings.element)),
        kernels_(kernels::active().codes),
        rule_(settings.rule ? e8m0_rule(*settings.rule, row_) : E8M0Rule{}),
        block_(block),
        global_(global),
        encode_scale_(encode_scale) {}

  /// The float32 scale of fp8 for a largest magnitude.
  float scale_of_fp8(std::uint32_t amax) const {
    if (amax == 0) return 1;
    if (settings_.power_of_two) return kE8M0[rule_.code(amax)];
    return std::max(std::bit_cast<float>(amax) / static_cast<float>(row_.format->largest), 0x1p-126f);
  }

  /// Encodes at most kStep elements, from the element `first` of a block on. Scales are stored: of whole
  /// blocks, unless they `are_given`. `at`: the position of x[0] in C order.
  void encode(const float* x, std::int64_t n, std::int64_t first, bool are_given, std::byte* scales,
              std::uint8_t* codes, std::int64_t at, Part& part) const {
    float scale_numbers[kMostBlocks], encode_scales[kMostBlocks], decoded[kStep];
    if (!are_given) choose_scales(x, n, scales, scale_numbers, encode_scales, part);
    const bool is_fp8 = settings_.scheme == Scheme::fp8;
    const auto* const stored = reinterpret_cast<const float*>(scales);
    kernels_.encode(
        *row_.format, static_cast<kernels::Ties>(settings_.rounding), x, n,
        {is_fp8 ? stored : encode_scales, is_fp8 ? stored : scale_numbers, global_,
         settings_.scheme == Scheme::mx ? kernels::ScaleUse::multiplies : kernels::ScaleUse::divides, block_,
         first},
        codes, decoded, part.counts);
    kernels_.errors(x, decoded, n, at, part.errors);
  }

 private:
  // Stores the scales of whole blocks. Of mx and nvfp4 also their numbers, and the factors or divisors of
  // their elements.
  void choose_scales(const float* x, std::int64_t n, std::byte* scales, float* numbers, float* factors,
                     Part& part) const {
    const std::int64_t blocks = core::ceil_div(n, block_);
    const bool is_mx = settings_.scheme == Scheme::mx;
    std::uint32_t largest[kMostBlocks];
    kernels_.largest(x, n, block_, 0, !is_mx, largest);
    const std::int64_t zero_blocks = std::count(largest, largest + blocks, 0u);
    part.zero_blocks += zero_blocks;
    if (settings_.scheme == Scheme::fp8) {
      for (std::int64_t b = 0; b < blocks; ++b)
        reinterpret_cast<float*>(scales)[b] = scale_of_fp8(largest[b]);
      return;
    }
    auto* const codes = reinterpret_cast<std::uint8_t*>(scales);
    if (is_mx) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        codes[b] = rule_.code(largest[b]);
        numbers[b] = kE8M0[codes[b]];
        factors[b] = kE8M0[codes[b] == 255 ? 255 : 254 - codes[b]];
      }
      return;
    }
    if (zero_blocks > 0) {  // blocks of zeros, infinities and NaN
      std::uint32_t any[kMostBlocks];
      kernels_.largest(x, n, block_, 0, false, any);
      for (std::int64_t b = 0; b < blocks; ++b) part.zero_blocks -= largest[b] == 0 && any[b] != 0;
    }
    const auto most = static_cast<float>(row_.format->largest);
    for (std::int64_t b = 0; b < blocks; ++b)
      codes[b] = float8_e4m3fn(std::bit_cast<float>(largest[b]) * encode_scale_ / most).bits;
    // Elements of a block whose scale is 0 are at most 6 · 2⁻¹⁰ · global: they become 0, infinities aside.
    for (std::int64_t b = 0; b < blocks; ++b) {
      numbers[b] = float8_e4m3fn::values()[codes[b]];
      const float factor = numbers[b] * global_, least = factor > 0x1p-149f ? factor : 0x1p-149f;
      factors[b] = numbers[b] > 0 ? least : global_;
    }
  }

  const QuantizeSettings& settings_;
  const ElementRow& row_;
  const kernels::Codes& kernels_;
  E8M0Rule rule_;  // of scales that are powers of two
  std::int64_t block_;
  float global_, encode_scale_;
};

ArrayType scales_type(const QuantizeSettings& s, const Shape& grid) {
  const DType dtype = s.scheme == Scheme::fp8  ? DType::float32
                      : s.scheme == Scheme::mx ? DType::float8_e8m0fnu
                                               : DType::float8_e4m3fn;
  return {s.layout == ScaleLayout::packed_columns ? DType::int32 : dtype, stored_shape(s.layout, grid)};
}

/// The encoding of one array, whose codes and linear scales are given.
class ArrayEncoder {
 public:
  /// `made` has its settings and values; `scales` are linear.
  ArrayEncoder(const ArraySource& x, const Grid& grid, Quantized& made, Array& scales)
      : settings_(made.settings),
        row_(row_of(*settings_.element)),
        grid_(grid),
        whole_(whole_blocks_in(grid, x.shape())),
        floats_(x),
        boxes_(x.shape(), kPiece),
        made_(made),
        scales_(scales),
        largest_(whole_ == WholeBlocks::in_step ? 1 : static_cast<std::size_t>(made.blocks)),
        parts_(static_cast<std::size_t>(boxes_.size())) {}

  bool has_pass() const {
    return whole_ == WholeBlocks::in_all || (settings_.scheme == Scheme::nvfp4 && !settings_.global);
  }

  /// The pass before.
  void find_scales(core::Progress& done) {
    core::parallel_reduce(
        boxes_.size(), floats_.reader().threads(boxes_, 0.5), [] { return Buffer{}; },
        [&](Buffer& buffer, std::int64_t box) {
          find_largest(floats_.reader().acquire(boxes_, box, buffer), first_of(box), boxes_.elements(box));
          done.add(boxes_.elements(box));
        },
        [](const Buffer&) {});
  }

  /// Codes, counts and errors, and the scales that are not found before.
  void encode(core::Progress& done) {
    float encode_scale = 1;
    if (settings_.scheme == Scheme::nvfp4) encode_scale = choose_global();
    const BlockEncoder blocks(settings_, grid_.block_columns, made_.global_scale.value_or(1), encode_scale);
    if (whole_ == WholeBlocks::in_all) made_.zero_blocks = set_scales(blocks, 0, made_.blocks);
    UsedCodes used(*row_.format);
    core::parallel_reduce(
        boxes_.size(), floats_.reader().threads(boxes_, 2),
        [&] {
          return Found{UsedCodes(*row_.format), {}};
        },
        [&](Found& found, std::int64_t box) {
          encode_box(blocks, box, found);
          done.add(boxes_.elements(box));
        },
        [&](const Found& found) { used.merge(found.used); });
    made_.codes_used = used.count();
    for (const Part& part : parts_) add(part);
  }

 private:
  using Buffer = std::vector<std::byte>;
  /// What a thread has found, and its buffer.
  struct Found {
    UsedCodes used;
    Buffer buffer;
  };

  std::int64_t first_of(std::int64_t box) const { return boxes_.before[static_cast<std::size_t>(box)]; }

  // Of n elements of a box, from element `first` of all on: the largest magnitudes of blocks, or of all.
  void find_largest(const std::byte* box, std::int64_t first, std::int64_t n) {
    const kernels::Codes& codes = kernels::active().codes;
    float buffer[kStep];
    if (settings_.scheme == Scheme::nvfp4 || grid_.is_one) {
      std::uint32_t all = 0;
      for (std::int64_t i = 0; i < n; i += kStep) {
        const std::int64_t some = std::min(kStep, n - i);
        std::uint32_t most = 0;
        codes.largest(floats_.of(box, i, some, buffer), some, some, 0, true, &most);
        all = std::max(all, most);
      }
      return raise(largest_[0], all);
    }
    std::uint32_t most[kStep + 1];
    for_each_step(grid_, first, first + n,
                  [&](std::int64_t begin, std::int64_t end, std::int64_t scale, std::int64_t within) {
                    codes.largest(floats_.of(box, begin - first, end - begin, buffer), end - begin,
                                  grid_.block_columns, within, true, most);
                    const std::int64_t blocks = core::ceil_div(within + end - begin, grid_.block_columns);
                    for (std::int64_t i = 0; i < blocks; ++i)
                      raise(largest_[static_cast<std::size_t>(scale + i)], most[i]);
                  });
  }

  static void raise(std::uint32_t& largest, std::uint32_t to) {
    const std::atomic_ref<std::uint32_t> cell(largest);
    std::uint32_t before = cell.load(std::memory_order_relaxed);
    while (before < to && !cell.compare_exchange_weak(before, to, std::memory_order_relaxed)) {
    }
  }

  // The global scale of nvfp4. Returns 1 / that without its rounding.
  float choose_global() {
    constexpr float kMost = 448 * 6;  // of an e4m3 scale times an e2m1 element
    const auto amax = std::bit_cast<float>(largest_[0]);
    const std::optional<float>& given = settings_.global;
    made_.global_scale = given ? *given : amax > 0 ? std::max(amax / kMost, 0x1p-126f) : 1;
    return given || amax / kMost < 0x1p-126f ? 1 / *made_.global_scale : kMost / amax;
  }

  // Scales of fp8 for largest magnitudes. Returns how many of these are 0.
  std::int64_t set_scales(const BlockEncoder& blocks, std::int64_t begin, std::int64_t end) {
    std::int64_t zero_blocks = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint32_t most = largest_[static_cast<std::size_t>(i)];
      scales_.elements<float>()[static_cast<std::size_t>(i)] = blocks.scale_of_fp8(most);
      zero_blocks += most == 0;
    }
    return zero_blocks;
  }

  void encode_box(const BlockEncoder& blocks, std::int64_t box, Found& found) {
    const std::byte* const elements = floats_.reader().acquire(boxes_, box, found.buffer);
    const std::int64_t first = first_of(box), n = boxes_.elements(box);
    Part& part = parts_[static_cast<std::size_t>(box)];
    if (whole_ == WholeBlocks::in_box && n > 0) {
      find_largest(elements, first, n);
      part.zero_blocks = set_scales(blocks, grid_.scale_of(first), grid_.scale_of(first + n - 1) + 1);
    }
    for_each_step(grid_, first, first + n,
                  [&](std::int64_t begin, std::int64_t end, std::int64_t scale, std::int64_t within) {
                    float buffer[kStep];
                    std::uint8_t unpacked[kStep];
                    std::byte* const out = made_.values.data() + begin / row_.group_codes * row_.group_bytes;
                    const bool is_packed = row_.group_codes > 1;
                    auto* const codes = is_packed ? unpacked : reinterpret_cast<std::uint8_t*>(out);
                    blocks.encode(floats_.of(elements, begin - first, end - begin, buffer), end - begin,
                                  within, whole_ != WholeBlocks::in_step,
                                  scales_.data() + scale * size_of(scales_.dtype()), codes, begin, part);
                    found.used.add(codes, end - begin);
                    if (is_packed) pack(row_, codes, end - begin, out);
                  });
    floats_.reader().release(boxes_, box);
  }

  void add(const Part& part) {
    made_.zero_blocks += part.zero_blocks;
    made_.saturated += part.counts.overflows;
    made_.flushed += part.counts.flushed;
    made_.nans += part.counts.nans;
    made_.lost += part.errors.lost;
    made_.signal += part.errors.signal;
    made_.noise += part.errors.noise;
    if (part.errors.largest <= largest_error_) return;
    largest_error_ = made_.largest_error = part.errors.largest;
    made_.largest_error_index = core::index_of(floats_.shape(), part.errors.largest_at);
  }

  const QuantizeSettings& settings_;
  const ElementRow& row_;
  const Grid& grid_;
  WholeBlocks whole_;
  Floats floats_;
  arrays::Boxes boxes_;
  Quantized& made_;
  Array& scales_;
  std::vector<std::uint32_t> largest_;  // magnitudes, of blocks or of all
  std::vector<Part> parts_;
  double largest_error_ = -1;
};

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
                         const std::function<void(std::int64_t, std::int64_t)>& progress, Quantized reused) {
  using namespace quantize;
  const QuantizedTypes types = quantized_types(x, settings);
  Quantized made;
  made.settings = with_defaults(settings);
  const Grid grid(x.shape(), made.settings);
  made.elements = element_count(x.shape());
  made.blocks = element_count(grid.shape);
  const auto array_of = [](const ArrayType& type, Array& before) {
    if (before.dtype() == type.dtype && before.shape() == type.shape) return std::move(before);
    return Array(type.dtype, type.shape);
  };
  made.values = array_of(types.values, reused.values);
  Array scales = array_of({scales_type({.scheme = settings.scheme}, {}).dtype, grid.shape}, reused.scales);
  ArrayEncoder encoder(x, grid, made, scales);
  core::Progress done(progress, made.elements * (encoder.has_pass() ? 2 : 1));
  if (encoder.has_pass()) encoder.find_scales(done);
  encoder.encode(done);
  if (settings.layout == ScaleLayout::linear) {
    made.scales = std::move(scales);
  } else {
    ArrayView linear = scales.view();
    if (linear.rank() == 1)
      linear.shape = {1, linear.shape[0]}, linear.strides = {linear.strides[0], linear.strides[0]};
    made.scales = convert_scale_layout(*make_source(linear, "scales"), ScaleLayout::linear, settings.layout);
  }
  return made;
}

}  // namespace ejk
