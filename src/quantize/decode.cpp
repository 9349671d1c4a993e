// Decoding of block-scaled arrays: the packed codes of a row are unpacked to one byte each, and a kernel
// multiplies the value of each code by the scale of its block. Both passes work on a few KiB at a time, which
// stay in L1. Products of elements and block scales are exact where the scale has at most 20 significant
// bits, so that each value is rounded only once, even with a global scale.
// tests: tests/quantize/test_decode.cpp
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"
#include "ejk/quantize.hpp"
#include "kernels/kernels.hpp"
#include "quantize/elements.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace quantize {

namespace {

constexpr std::int64_t kRun = 2048;             // elements decoded at once
constexpr std::int64_t kMostPrefetched = 1024;  // bytes of a row
constexpr std::int64_t kRowsAhead = 16;         // prefetched, a multiple of what is packed together

/// How numbers are coded and packed.
struct Packing {
  const FloatFormat* format = nullptr;
  std::int64_t group_codes = 1, group_bytes = 1;
  NibbleOrder nibbles = NibbleOrder::low;

  std::int64_t byte_of(std::int64_t element) const { return element / group_codes * group_bytes; }
  std::int64_t bytes_to(std::int64_t element) const {
    return core::ceil_div(element, group_codes) * group_bytes;
  }
  /// Whether the code of this element, of 4 bits, is the low half of its byte.
  bool is_low(std::int64_t element) const { return (element % 2 == 0) == (nibbles == NibbleOrder::low); }
};

/// The codes of `groups` groups of bytes that are packed along them, a byte each.
void unpack_along(const Packing& packing, const std::byte* bytes, std::int64_t groups,
                  std::uint8_t* __restrict codes) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(bytes);
  if (packing.group_codes == 2)
    return kernels::active().codes.unpack(from, groups, packing.nibbles == NibbleOrder::low, codes);
  for (std::int64_t i = 0; i < groups; ++i, from += 3, codes += 4) {
    const std::uint32_t word = from[0] | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16;
    for (int c = 0; c < 4; ++c) codes[c] = static_cast<std::uint8_t>(word >> (6 * c) & 63u);
  }
}

/// The codes of rows of bytes, `stride` apart, that are packed across the rows: n of the row `within` of a
/// group.
void unpack_across(const Packing& packing, const std::byte* bytes, std::int64_t stride, std::int64_t within,
                   std::int64_t n, std::uint8_t* __restrict codes) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(bytes);
  if (packing.group_codes == 2) {
    if (packing.is_low(within))
      for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(from[i] & 15);
    else
      for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(from[i] >> 4);
    return;
  }
  const auto shift = static_cast<int>(6 * within);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t word =
        from[i] | std::uint32_t{from[i + stride]} << 8 | std::uint32_t{from[i + 2 * stride]} << 16;
    codes[i] = static_cast<std::uint8_t>(word >> shift & 63u);
  }
}

/// What is decoded, after its arguments were checked.
struct Parts {
  std::shared_ptr<const ArraySource> values, scales;
  Packing packing;
  Shape shape;           // decoded
  std::size_t axis = 0;  // packed
  Shape block;           // of one scale, along each axis
  ScaleLayout layout = ScaleLayout::linear;
  const float* scale_numbers = nullptr;
  std::vector<float> global;  // none, one, or one for each index of the leading axis
  GlobalScale global_use = GlobalScale::multiplies;

  Shape grid() const {
    Shape grid(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) grid[d] = core::ceil_div(shape[d], block[d]);
    return grid;
  }
};

class DecodedSource final : public ForwardingSource {
 public:
  DecodedSource(Parts parts, std::string name)
      : ForwardingSource(parts.values, {DType::float32, parts.shape},
                         ArrayAccess(parts.values->access().order), std::move(name)),
        parts_(std::move(parts)),
        scales_(parts_.scales, parts_.layout, parts_.grid(), parts_.axis, parts_.scale_numbers),
        has_one_scale_(element_count(parts_.grid()) == 1) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t n = element_count(count);
    if (n == 0) return;
    const ArrayBox box{Shape(start.begin(), start.end()), Shape(count.begin(), count.end())};
    // Read at once what only one thread may read, else by each thread for its pieces.
    std::vector<std::byte> held;
    std::optional<ArrayView> all;
    if (!random_access()) all = bytes_in(bytes_of(box), held);
    const auto decode_part = [&](const ArrayBox& part, std::vector<std::byte>& buffer, float* to) {
      const ArrayBox bytes = bytes_of(part);
      ArrayView view;
      if (all) {
        ArrayBox within = bytes;
        const ArrayBox outer = bytes_of(box);
        for (std::size_t d = 0; d < within.start.size(); ++d) within.start[d] -= outer.start[d];
        view = box_of(*all, within);
      } else {
        view = bytes_in(bytes, buffer);
      }
      decode(part, view, to);
      if (!all && view.data != buffer.data() && view.is_c_contiguous())
        parts_.values->release(view.data, element_count(view.shape));
    };
    constexpr std::int64_t kPiece = std::int64_t{1} << 16;
    if (n <= kPiece) {
      std::vector<std::byte> buffer;
      return decode_part(box, buffer, static_cast<float*>(out));
    }
    core::parallel_for(core::ceil_div(n, kPiece), static_cast<double>(n), [&](std::int64_t piece) {
      std::vector<std::byte> buffer;
      std::int64_t done = piece * kPiece;
      core::for_each_box(count, done, std::min(n, done + kPiece), [&](const Shape& first, const Shape& some) {
        ArrayBox part{first, some};
        for (std::size_t d = 0; d < first.size(); ++d) part.start[d] += start[d];
        decode_part(part, buffer, static_cast<float*>(out) + done);
        done += element_count(some);
      });
    });
  }

 private:
  // The box of the values' bytes that has these elements.
  ArrayBox bytes_of(const ArrayBox& elements) const {
    ArrayBox bytes = elements;
    if (parts_.packing.group_codes == 1) return bytes;
    const std::size_t a = parts_.axis;
    bytes.start[a] = parts_.packing.byte_of(elements.start[a]);
    bytes.count[a] = parts_.packing.bytes_to(elements.start[a] + elements.count[a]) - bytes.start[a];
    return bytes;
  }

  // A box of the values: in place, or read to `buffer`.
  ArrayView bytes_in(const ArrayBox& box, std::vector<std::byte>& buffer) const {
    const ArraySource& values = *parts_.values;
    if (values.access().prefer == ArrayAccess::Prefer::view) {
      ArrayView view = box_of(*values.mapped(), box);
      if (view.strides.empty() || view.shape.back() == 1 || view.strides.back() == 1) return view;
    }
    buffer.resize(static_cast<std::size_t>(element_count(box.count)));
    values.read(box.start, box.count, buffer.data());
    return {buffer.data(), values.dtype(), box.count};
  }

  // Whether whole rows are contiguous, and their scales as well: they are decoded as one row.
  bool joins_rows(const ArrayBox& box, const ArrayView& bytes) const {
    const std::size_t rank = box.count.size();
    if (rank < 2 || box.count[rank - 2] == 1 || box.count.back() != parts_.shape.back()) return false;
    const Packing& packing = parts_.packing;
    const std::int64_t length = parts_.shape.back();
    const bool are_whole = length % packing.group_codes == 0 &&
                           (packing.group_codes == 1 || parts_.axis + 1 == rank) &&
                           bytes.strides[rank - 2] == packing.byte_of(length);
    return are_whole && (rank > 2 || parts_.global.size() < 2) &&
           (has_one_scale_ ||
            (parts_.block[rank - 2] == 1 && length % parts_.block.back() == 0 && scales_.rows_follow()));
  }

  void decode(const ArrayBox& box, const ArrayView& bytes, float* out) const {
    const std::size_t rank = box.count.size();
    const std::int64_t joined = joins_rows(box, bytes) ? box.count[rank - 2] : 1;
    const std::int64_t length = rank > 0 ? box.count.back() * joined : 1;
    const std::int64_t rows = element_count(box.count) / length;
    const std::int64_t first = rank > 0 ? box.start.back() : 0;
    const std::int64_t block = rank > 0 ? parts_.block.back() * (has_one_scale_ ? joined : 1) : 1;
    const Packing& packing = parts_.packing;
    const kernels::Codes& kernel = kernels::active().codes;
    const bool is_packed = packing.group_codes > 1, along = !is_packed || parts_.axis + 1 == rank;
    const bool divides = !parts_.global.empty() && parts_.global_use == GlobalScale::divides;
    // Products read boxes of many short rows from top to bottom, which the hardware does not prefetch.
    const std::int64_t row_bytes = along ? packing.bytes_to(length) : length;
    const bool prefetches = rank > 1 && row_bytes <= kMostPrefetched;
    const bool packs_rows = is_packed && parts_.axis + 2 == rank;
    const std::int64_t bytes_ahead =
        prefetches ? (packs_rows ? packing.byte_of(kRowsAhead) : kRowsAhead) * bytes.strides[rank - 2] : 0;
    const std::int64_t blocks_ahead = prefetches ? kRowsAhead / parts_.block[rank - 2] : 0;
    float scales[kRun + 1];
    std::uint8_t unpacked[kRun + 8];
    Shape index = box.start, grid(rank);
    bool has_scales = false;
    const auto enter = [&](std::size_t d) {
      const std::int64_t at = index[d] / parts_.block[d];
      has_scales = has_scales && at == grid[d];
      grid[d] = at;
    };
    for (std::size_t d = 0; d + 1 < rank; ++d) enter(d);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (row > 0)
        for (std::size_t d = rank - 1; d-- > 0;) {
          const std::int64_t count = d + 2 == rank ? box.count[d] / joined : box.count[d];
          const bool carries = ++index[d] == box.start[d] + count;
          if (carries) index[d] = box.start[d];
          enter(d);
          if (!carries) break;
        }
      const std::byte* from = bytes.data;
      for (std::size_t d = 0; d + 1 < rank; ++d) {
        const bool packed_here = is_packed && d == parts_.axis;
        from += (packed_here ? packing.byte_of(index[d]) - packing.byte_of(box.start[d])
                             : index[d] - box.start[d]) *
                bytes.strides[d];
      }
      for (std::int64_t byte = 0; prefetches && byte < row_bytes; byte += 64)
        __builtin_prefetch(from + bytes_ahead + byte);
      // Element `first` is in the first byte, or byte group, of the row.
      const std::int64_t skipped = along ? first % packing.group_codes : 0;
      for (std::int64_t begin = 0; begin < length; begin += kRun) {
        const std::int64_t n = std::min(kRun, length - begin), at = first + begin;
        const auto* codes = reinterpret_cast<const std::uint8_t*>(from + begin);
        // Chunks of a KV cache follow one another in memory.
        for (std::int64_t byte = 0; along && !prefetches && byte < packing.bytes_to(n); byte += 64)
          __builtin_prefetch(from + packing.byte_of(begin + kRun) + byte);
        if (is_packed && along) {
          unpack_along(packing, from + packing.byte_of(begin),
                       core::ceil_div(skipped + n, packing.group_codes), unpacked);
          codes = unpacked + skipped;
        } else if (is_packed) {
          unpack_across(packing, from + begin, bytes.strides[parts_.axis],
                        index[parts_.axis] % packing.group_codes, n, unpacked);
          codes = unpacked;
        }
        if (rank > 0) grid[rank - 1] = at / block;
        // Rows of a block share their scales.
        if (!has_scales || length > kRun)
          scales_.read(grid, core::ceil_div(at + n, block) - at / block, blocks_ahead, scales);
        has_scales = true;
        kernel.decode(*packing.format, codes, n, scales, block, at % block, divides ? 1 : global_of(index),
                      out + row * length + begin);
        if (divides) divide(out + row * length + begin, n, global_of(index));
      }
    }
  }

  float global_of(const Shape& index) const {
    if (parts_.global.empty()) return 1;
    return parts_.global[parts_.global.size() == 1 ? 0 : static_cast<std::size_t>(index[0])];
  }

  static void divide(float* x, std::int64_t n, float divisor) {
    for (std::int64_t i = 0; i < n; ++i) x[i] /= divisor;
  }

  Parts parts_;
  ScaleReader scales_;
  bool has_one_scale_;
};

// --- arguments

std::string both(const ArraySource& values, const ElementRow* row) {
  return fmt::format("values {} of {}", to_string(values.shape()),
                     row != nullptr ? row->name : name_of(values.dtype()));
}

// The values' codes; of the packed ones the row, else null.
const ElementRow* read_codes(const QuantizedArrays& arrays, const DecodeSettings& settings, Parts& parts) {
  const ArraySource& values = *parts.values;
  const DType dtype = values.dtype();
  const bool is_float8 = is_signed_8_bit_float(dtype);
  const bool takes_float8 =
      arrays.scheme == QuantizationScheme::fp8 || arrays.scheme == QuantizationScheme::mx;
  std::optional<ElementFormat> element = settings.element;
  if (takes_float8 && is_float8) {
    if (element && row_of(*element).dtype != dtype)
      throw core::invalid("{}: the values are {}, not codes of {}", values.name(), name_of(dtype),
                          name_of(*element));
    parts.packing.format = &float_format(dtype);
    return nullptr;
  }
  if (arrays.scheme == QuantizationScheme::fp8) {
    if (element && row_of(*element).group_codes > 1)
      throw core::usage("fp8 has elements e4m3 and e5m2, not {}", name_of(*element));
    if (!element && dtype == DType::uint8)
      throw core::invalid("{}: the values are uint8, and which 8-bit float they are is unknown",
                          values.name())
          .hint("element=e4m3 or element=e5m2 says it");
  }
  const bool is_fp4 =
      arrays.scheme == QuantizationScheme::nvfp4 || arrays.scheme == QuantizationScheme::gptoss;
  if (is_fp4 && element && *element != ElementFormat::e2m1)
    throw core::usage("{} has elements e2m1, not {}", name_of(arrays.scheme), name_of(*element));
  if (dtype != DType::uint8)
    throw core::invalid("{}: the values are {}, and {} has {}", values.name(), name_of(dtype),
                        name_of(arrays.scheme),
                        takes_float8 ? "8-bit floats, or codes as uint8" : "codes as uint8, two in a byte");
  const ElementRow& row = row_of(element.value_or(ElementFormat::e2m1));
  parts.packing.format = row.format;
  parts.packing.group_codes = row.group_codes;
  parts.packing.group_bytes = row.group_bytes;
  return &row;
}

// The shape of the decoded array.
void read_shape(const ElementRow* row, const DecodeSettings& settings, Parts& parts) {
  const ArraySource& values = *parts.values;
  parts.shape = values.shape();
  parts.axis = parts.shape.empty() ? 0 : parts.shape.size() - 1;
  if (settings.axis) {
    const auto rank = static_cast<std::int64_t>(parts.shape.size());
    if (*settings.axis < -rank || *settings.axis >= rank)
      throw core::usage("{} of shape {} has no axis {}", values.name(), to_string(parts.shape),
                        *settings.axis)
          .hint(core::axes_of(rank));
    parts.axis = static_cast<std::size_t>(*settings.axis < 0 ? *settings.axis + rank : *settings.axis);
  }
  if (parts.packing.group_codes == 1) return;
  std::int64_t& length = parts.shape[parts.axis];
  if (length % parts.packing.group_bytes != 0)
    throw core::invalid("{}: axis {} has {} bytes, and {} codes of {} take {}", values.name(), parts.axis,
                        length, parts.packing.group_codes, row->name, parts.packing.group_bytes);
  length = length / parts.packing.group_bytes;
  const auto elements = core::checked_mul(length, parts.packing.group_codes);
  if (!elements) throw core::invalid("{}: more elements than 64 bits can count", values.name());
  length = *elements;
  byte_count(parts.shape, DType::float32);
}

// The type of the scales of a scheme; `numbers` is null for numbers of a float type.
void read_scale_type(QuantizationScheme scheme, Parts& parts) {
  const ArraySource& scales = *parts.scales;
  const DType dtype = scales.dtype();
  const auto refuse = [&](std::string_view expected) {
    return core::invalid("{}: the scales are {}, and {} has {}", scales.name(), name_of(dtype),
                         name_of(scheme), expected);
  };
  if (parts.layout == ScaleLayout::packed_columns) {
    if (scheme == QuantizationScheme::nvfp4)
      throw core::usage("layout deepgemm is of E8M0 scales, and nvfp4 has e4m3");
    parts.scale_numbers = kE8M0;
    if (dtype != DType::int32 && dtype != DType::uint32)
      throw core::invalid("{}: the scales are {}, and layout deepgemm is int32, four codes in each",
                          scales.name(), name_of(dtype));
    return;
  }
  const bool is_e8m0 = dtype == DType::uint8 || dtype == DType::float8_e8m0fnu;
  if (scheme == QuantizationScheme::fp8) {
    if (is_e8m0)
      parts.scale_numbers = kE8M0;
    else if (!is_float(dtype))
      throw refuse("a float type, or E8M0 as uint8 or float8_e8m0fnu");
    else if (parts.layout != ScaleLayout::linear)
      throw core::invalid("{}: the scales are {}, and layout {} is of one byte each", scales.name(),
                          name_of(dtype), name_of(parts.layout));
  } else if (scheme == QuantizationScheme::nvfp4) {
    if (dtype != DType::uint8 && dtype != DType::float8_e4m3fn)
      throw refuse("float8_e4m3fn, or its codes as uint8");
    parts.scale_numbers = row_of(ElementFormat::e4m3).values;
  } else {
    if (!is_e8m0) {
      Error error = refuse("E8M0 as uint8 or float8_e8m0fnu");
      if (dtype == DType::float8_e4m3fn)
        error.hint("blocks of 16 with e4m3 scales are nvfp4(VALUES, SCALES, GLOBAL)");
      throw error;
    }
    parts.scale_numbers = kE8M0;
  }
}

// Elements of a block along each axis, of fp8.
Shape blocks_of_fp8(const DecodeSettings& settings, const Parts& parts) {
  const Shape &shape = parts.shape, &scales = parts.scales->shape();
  const std::size_t rank = shape.size();
  Shape block(rank, 1);
  if (settings.block) {
    if (rank < 2)
      throw core::invalid("{}: shape {} has no blocks of rows and columns", parts.values->name(),
                          to_string(shape));
    block[rank - 2] = settings.block->rows;
    block[rank - 1] = settings.block->columns;
    return block;
  }
  if (parts.layout != ScaleLayout::linear)
    throw core::usage("block=RxC is needed: layout {} does not tell the number of blocks",
                      name_of(parts.layout));
  if (element_count(scales) == 1) {
    for (std::size_t d = 0; d < rank; ++d) block[d] = std::max<std::int64_t>(shape[d], 1);
    return block;
  }
  bool fits = scales.size() == rank;
  for (std::size_t d = 0; fits && d < rank; ++d) {
    fits = scales[d] == shape[d] || (scales[d] > 0 && shape[d] % scales[d] == 0);
    if (fits && scales[d] > 0) block[d] = std::max<std::int64_t>(shape[d] / scales[d], 1);
  }
  if (fits) return block;
  Error error = core::invalid("{}: scales of shape {} do not divide values of shape {}", parts.scales->name(),
                              to_string(scales), to_string(shape));
  if (rank >= 2 && scales.size() == rank && scales[rank - 2] == core::ceil_div(shape[rank - 2], 128) &&
      scales[rank - 1] == core::ceil_div(shape[rank - 1], 128))
    error.hint("block=128x128 fits");
  else
    error.hint("block=RxC says which rows and columns share a scale");
  throw error;
}

// The shape that the grid's scales have in their layout, with the axis of the columns last unless linear.
Shape expected_scales(const Parts& parts) {
  Shape grid = parts.grid();
  if (parts.layout != ScaleLayout::linear && !grid.empty())
    std::rotate(grid.begin() + static_cast<std::ptrdiff_t>(parts.axis),
                grid.begin() + static_cast<std::ptrdiff_t>(parts.axis) + 1, grid.end());
  return stored_shape(parts.layout, grid);
}

void check_scales(const QuantizedArrays& arrays, const DecodeSettings& settings, const ElementRow* row,
                  const Parts& parts) {
  const Shape expected = expected_scales(parts), &scales = parts.scales->shape();
  const bool is_tiled = parts.layout == ScaleLayout::tiles_128x4 || parts.layout == ScaleLayout::tiles_8x4;
  const bool is_one =
      arrays.scheme == QuantizationScheme::fp8 && element_count(scales) == 1 && element_count(expected) <= 1;
  // A writer may have flattened tiles, or split them into axes.
  if (scales == expected || is_one || (is_tiled && element_count(scales) == element_count(expected))) return;
  Error error = core::invalid(
      "{}: scales of shape {}, and {} need {}{}", parts.scales->name(), to_string(scales),
      both(*parts.values, row), to_string(expected),
      parts.layout == ScaleLayout::linear ? "" : fmt::format(" in layout {}", name_of(parts.layout)));
  // What else it may be.
  Parts other = parts;
  if (parts.layout == ScaleLayout::linear)
    for (const ScaleLayout layout : {ScaleLayout::tiles_128x4, ScaleLayout::tiles_8x4}) {
      other.layout = layout;
      if (expected_scales(other) == scales) error.hint(fmt::format("layout={} fits", name_of(layout)));
    }
  other = parts;
  if (arrays.scheme == QuantizationScheme::mx && !settings.element && parts.packing.group_codes == 2) {
    other.shape = parts.values->shape();
    if (expected_scales(other) == scales) error.hint("element=e4m3 or e5m2 takes one code in a byte");
  }
  throw error;
}

void read_global(const QuantizedArrays& arrays, Parts& parts) {
  if (arrays.scheme != QuantizationScheme::nvfp4) return;
  const ArraySource& global = core::required(arrays.global_scale);
  if (!is_float(global.dtype()))
    throw core::invalid("{}: the global scale is {}, not a float type", global.name(),
                        name_of(global.dtype()));
  const Shape& shape = global.shape();
  if (!quantize::is_global_shape(shape, parts.shape))
    throw core::invalid("{}: global scales of shape {}, and values of shape {} have one, or ({},)",
                        global.name(), to_string(shape), to_string(parts.shape), parts.shape[0]);
  const std::int64_t n = element_count(shape);
  const Array held = read_all(global);
  parts.global.resize(static_cast<std::size_t>(n));
  core::load(held.dtype(), held.data(), size_of(held.dtype()), n, parts.global.data());
}

}  // namespace

}  // namespace quantize

std::shared_ptr<const ArraySource> decoded_array(const QuantizedArrays& arrays,
                                                 const DecodeSettings& settings, std::string name) {
  using namespace quantize;
  using Scheme = QuantizationScheme;
  const bool is_fp8 = arrays.scheme == Scheme::fp8;
  (void)core::required(arrays.values), (void)core::required(arrays.scales);
  if (settings.block && !is_fp8)
    throw core::usage("{} has blocks of its own; block is of fp8", name_of(arrays.scheme));
  if (settings.block && (settings.block->rows < 1 || settings.block->columns < 1))
    throw core::usage("block {} is empty", to_string(*settings.block));
  if (settings.axis && (is_fp8 || arrays.scheme == Scheme::gptoss))
    throw core::usage("axis is of mx and nvfp4, not of {}", name_of(arrays.scheme));
  if (settings.global != GlobalScale::multiplies && arrays.scheme != Scheme::nvfp4)
    throw core::usage("a global scale is of nvfp4, not of {}", name_of(arrays.scheme));

  Parts parts;
  parts.values = arrays.values;
  parts.scales = arrays.scales;
  parts.layout = settings.layout;
  parts.global_use = settings.global;
  if (arrays.scheme == Scheme::gptoss) {
    const Shape& shape = arrays.values->shape();
    if (shape.size() < 2 || shape.back() != kMxBlock / 2)
      throw core::invalid("{}: blocks of shape {}, and gptoss has (..., n, {})", arrays.values->name(),
                          to_string(shape), kMxBlock / 2);
    parts.values = unchunk_array(arrays.values, shape[shape.size() - 2] * shape.back(), -1);
  }
  const ElementRow* row = read_codes(arrays, settings, parts);
  parts.packing.nibbles = settings.nibbles;
  if (settings.nibbles != NibbleOrder::low && parts.packing.group_codes != 2)
    throw core::usage("nibbles is of 4-bit elements");
  if (!is_fp8 && parts.values->shape().empty())
    throw core::invalid("{}: a scalar has no blocks", parts.values->name());
  read_shape(row, settings, parts);
  read_scale_type(arrays.scheme, parts);
  if (is_fp8) {
    parts.block = blocks_of_fp8(settings, parts);
  } else {
    parts.block.assign(parts.shape.size(), 1);
    parts.block[parts.axis] = arrays.scheme == Scheme::nvfp4 ? kNvfp4Block : kMxBlock;
  }
  check_scales(arrays, settings, row, parts);
  read_global(arrays, parts);
  return std::make_shared<DecodedSource>(std::move(parts), std::move(name));
}

}  // namespace ejk
