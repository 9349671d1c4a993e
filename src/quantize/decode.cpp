// Decoding of block-scaled arrays, row by row: the scales of a row are read, packed codes become bytes, and a kernel
// multiplies the number of each by the scale of its block. Products of elements and
// block scales are exact where the scale has at most 20 significant bits, so that each value is rounded only
// once, even with a global scale.
// tests: tests/quantize/test_decode.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

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
#include "quantize/fp8_scales.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace quantize {

namespace {

constexpr std::int64_t kRun = 2048;  // elements of a row at once

/// How numbers are coded and packed.
struct Packing {
  const FloatFormat* format = nullptr;
  std::int64_t group_codes = 1, group_bytes = 1;
  NibbleOrder nibbles = NibbleOrder::low;

  std::int64_t byte_of(std::int64_t element) const { return element / group_codes * group_bytes; }
  std::int64_t bytes_to(std::int64_t element) const {
    return core::ceil_div(element, group_codes) * group_bytes;
  }

  /// n codes of a packed row from code `within` of its group at `bytes` on. Bits above a code are undefined.
  const std::uint8_t* along(const std::uint8_t* bytes, std::int64_t within, std::int64_t n,
                            std::uint8_t* __restrict codes) const {
    const std::int64_t groups = core::ceil_div(within + n, group_codes);
    const bool low_first = nibbles == NibbleOrder::low;  // a copy: stores of codes may alias anything
    if (nibbles == NibbleOrder::split)
      for (std::int64_t i = 0; i < groups; ++i)
        for (std::int64_t j = 0; j < group_bytes; ++j) {
          const std::uint8_t byte = bytes[group_bytes * i + j];
          codes[group_codes * i + j] = byte;
          codes[group_codes * i + group_bytes + j] = static_cast<std::uint8_t>(byte >> 4);
        }
    else if (group_codes == 2)
      for (std::int64_t i = 0; i < groups; ++i) {
        const auto low = bytes[i], high = static_cast<std::uint8_t>(bytes[i] >> 4);
        codes[2 * i] = low_first ? low : high;
        codes[2 * i + 1] = low_first ? high : low;
      }
    else
      for (std::int64_t i = 0; i < groups; ++i) {
        const std::uint32_t word =
            bytes[3 * i] | std::uint32_t{bytes[3 * i + 1]} << 8 | std::uint32_t{bytes[3 * i + 2]} << 16;
        for (int c = 0; c < 4; ++c) codes[4 * i + c] = static_cast<std::uint8_t>(word >> (6 * c));
      }
    return codes + within;
  }

  /// Code `within` of each of n groups, whose bytes are `stride` apart.
  const std::uint8_t* across(const std::uint8_t* bytes, std::int64_t stride, std::int64_t within,
                             std::int64_t n, std::uint8_t* __restrict codes) const {
    if (nibbles == NibbleOrder::split) {
      const int shift = within < group_bytes ? 0 : 4;
      bytes += within % group_bytes * stride;
      for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(bytes[i] >> shift);
      return codes;
    }
    if (group_codes == 2) {
      const int shift = (within == 0) == (nibbles == NibbleOrder::low) ? 0 : 4;
      for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(bytes[i] >> shift);
      return codes;
    }
    const auto shift = static_cast<int>(6 * within);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t word =
          bytes[i] | std::uint32_t{bytes[i + stride]} << 8 | std::uint32_t{bytes[i + 2 * stride]} << 16;
      codes[i] = static_cast<std::uint8_t>(word >> shift);
    }
    return codes;
  }
};

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
        has_one_scale_(element_count(parts_.grid()) == 1) {
    // Rows that are whole blocks can follow one another.
    for (std::size_t d = 0; d < parts_.block.size(); ++d)
      parts_.block[d] = std::min(parts_.block[d], std::max<std::int64_t>(parts_.shape[d], 1));
  }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t n = element_count(count);
    if (n == 0) return;
    const ArrayBox box{Shape(start.begin(), start.end()), Shape(count.begin(), count.end())};
    // Read at once what only one thread may read, else by each thread for its pieces.
    std::vector<std::byte> resident;
    std::optional<ArrayView> all;
    if (!random_access()) all = bytes_in(box_of_bytes(box), resident);
    const auto decode_part = [&](const ArrayBox& part, std::vector<std::byte>& buffer, float* to) {
      const ArrayBox bytes = box_of_bytes(part);
      ArrayView view;
      if (all) {
        ArrayBox within = bytes;
        const ArrayBox outer = box_of_bytes(box);
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

  std::optional<ArrayView> bytes_of(std::span<const std::int64_t> start,
                                    std::span<const std::int64_t> count) const override {
    return in_place(box_of_bytes({Shape(start.begin(), start.end()), Shape(count.begin(), count.end())}));
  }

 private:
  // The box of the values' bytes that has these elements.
  ArrayBox box_of_bytes(const ArrayBox& elements) const {
    ArrayBox bytes = elements;
    if (parts_.packing.group_codes == 1) return bytes;
    const std::size_t a = parts_.axis;
    bytes.start[a] = parts_.packing.byte_of(elements.start[a]);
    bytes.count[a] = parts_.packing.bytes_to(elements.start[a] + elements.count[a]) - bytes.start[a];
    return bytes;
  }

  // A box of the values in memory, if it has contiguous rows.
  std::optional<ArrayView> in_place(const ArrayBox& box) const {
    if (parts_.values->access().prefer != ArrayAccess::Prefer::view) return std::nullopt;
    ArrayView view = box_of(*parts_.values->mapped(), box);
    if (view.strides.empty() || view.shape.back() == 1 || view.strides.back() == 1) return view;
    return std::nullopt;
  }

  // The same, or read to `buffer`.
  ArrayView bytes_in(const ArrayBox& box, std::vector<std::byte>& buffer) const {
    if (auto view = in_place(box)) return *view;
    buffer.resize(static_cast<std::size_t>(element_count(box.count)));
    parts_.values->read(box.start, box.count, buffer.data());
    return {buffer.data(), parts_.values->dtype(), box.count};
  }

  // Whether the rows along an axis follow one another in memory, as do their scales, so that they are one.
  bool follow(std::size_t axis, const ArrayBox& box, const ArrayView& bytes) const {
    const std::size_t next = axis + 1;
    const bool is_packed_here = parts_.packing.group_codes > 1 && parts_.axis == axis;
    const bool have_scales =
        has_one_scale_ || (parts_.block[axis] == 1 && parts_.shape[next] % parts_.block[next] == 0 &&
                           (next + 1 == box.count.size() || parts_.block[next] == 1) && scales_.follow(axis));
    return !is_packed_here && have_scales && (axis > 0 || parts_.global.size() < 2) &&
           box.count[next] == parts_.shape[next] &&
           bytes.strides[axis] == bytes.shape[next] * bytes.strides[next];
  }

  void decode(const ArrayBox& box, const ArrayView& bytes, float* out) const {
    const std::size_t rank = box.count.size();
    std::size_t up = rank == 0 ? 0 : rank - 1;  // first axis of a row
    std::int64_t length = rank == 0 ? 1 : box.count[up];
    while (up > 0 && follow(up - 1, box, bytes)) length *= box.count[--up];
    Shape index = box.start, grid(rank);
    for (std::int64_t left = element_count(box.count); left > 0; left -= length, out += length) {
      decode_row(box, bytes, index, length, grid, out);
      for (std::size_t d = up; d-- > 0;) {
        if (++index[d] < box.start[d] + box.count[d]) break;
        index[d] = box.start[d];
      }
    }
  }

  // The row from an index on. `grid`: room for that of its scales.
  void decode_row(const ArrayBox& box, const ArrayView& bytes, const Shape& index, std::int64_t length,
                  Shape& grid, float* out) const {
    const Packing& packing = parts_.packing;
    const std::size_t rank = index.size(), axis = parts_.axis;
    const bool is_packed = packing.group_codes > 1, along = axis + 1 == rank;
    const std::byte* from = bytes.data;
    for (std::size_t d = 0; d < rank; ++d) {
      const bool in_groups = is_packed && d == axis;
      from +=
          (in_groups ? packing.byte_of(index[d]) - packing.byte_of(box.start[d]) : index[d] - box.start[d]) *
          bytes.strides[d];
      grid[d] = has_one_scale_ ? 0 : index[d] / parts_.block[d];
    }
    // Products with few rows wait for boxes of short rows, which the hardware does not prefetch: they take a quarter
    // longer without this, and up to twice as long with packed codes.
    constexpr std::int64_t kRowsAhead = 8, kMostPrefetched = 4096;
    const std::int64_t row_bytes = along ? packing.bytes_to(length) : length;
    if (rank > 1 && row_bytes <= kMostPrefetched)
      for (std::int64_t byte = 0; byte < row_bytes; byte += 64)
        __builtin_prefetch(from + kRowsAhead * bytes.strides[rank - 2] + byte);
    const std::int64_t start = rank == 0 || has_one_scale_ ? 0 : index.back();
    const std::int64_t block = rank == 0 || has_one_scale_ ? length : parts_.block.back();
    const float global = global_of(index);
    const bool divides = !parts_.global.empty() && parts_.global_use == GlobalScale::divides;
    float scales[kRun + 1];
    std::uint8_t unpacked[kRun + 2 * kMxBlock];
    for (std::int64_t begin = 0; begin < length; begin += kRun) {
      const std::int64_t n = std::min(kRun, length - begin), first = (start + begin) % block;
      if (rank > 0) grid.back() = (start + begin) / block;
      scales_.read(grid, core::ceil_div(first + n, block), scales);
      const auto* codes =
          reinterpret_cast<const std::uint8_t*>(from) + (along ? packing.byte_of(begin) : begin);
      if (is_packed)
        codes = along ? packing.along(codes, index[axis] % packing.group_codes, n, unpacked)
                      : packing.across(codes, bytes.strides[axis], index[axis] % packing.group_codes, n,
                                       unpacked);
      float* const to = out + begin;
      kernels::active().codes.decode(*packing.format, codes, n, {scales, block, first}, divides ? 1 : global,
                                     to);
      if (divides) divide(to, n, global);
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
  const Shape& shape = parts.shape;
  if (settings.block) {  // compared with the scales by check_scales()
    if (shape.size() < 2)
      throw core::invalid("{}: shape {} has no blocks of rows and columns", parts.values->name(),
                          to_string(shape));
    return along_axes(*settings.block, shape.size());
  }
  if (parts.layout != ScaleLayout::linear)
    throw core::usage("block=RxC is needed: layout {} does not tell the number of blocks",
                      name_of(parts.layout));
  auto block =
      block_of_scales(shape, parts.scales->shape(), {.is_usual = is_usual_block_name(parts.scales->name())});
  if (!block) throw refused_scales(*parts.scales, shape);
  return *std::move(block);
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

void read_global(const QuantizedArrays& arrays, std::optional<GlobalScale> use, Parts& parts) {
  if (arrays.scheme != QuantizationScheme::nvfp4) return;
  const ArraySource& global = core::required(arrays.global_scale);
  if (!is_float(global.dtype()))
    throw core::invalid("{}: the global scale is {}, not a float type", global.name(),
                        name_of(global.dtype()));
  const Shape& shape = global.shape();
  if (!quantize::is_global_shape(shape, parts.shape))
    throw core::invalid("{}: global scales of shape {}, and values of shape {} have one{}", global.name(),
                        to_string(shape), to_string(parts.shape),
                        parts.shape.size() > 1 ? fmt::format(", or ({},)", parts.shape[0]) : "");
  parts.global_use = use.value_or(quantize::global_use(global.name()));
  const std::int64_t n = element_count(shape);
  const Array resident = read_all(global);
  parts.global.resize(static_cast<std::size_t>(n));
  core::load(resident.dtype(), resident.data(), size_of(resident.dtype()), n, parts.global.data());
}

// "row", "128x128": the values of a scale.
std::string block_text(const Parts& parts, bool is_fp8) {
  const Shape &shape = parts.shape, &block = parts.block;
  const std::size_t rank = shape.size();
  if (is_fp8 && element_count(parts.grid()) <= 1) return "all elements";
  std::size_t first = 0;  // axis that is not 1, of the last two at most
  while (first + 2 < rank && block[first] == 1) ++first;
  if (is_fp8 && first + 2 == rank) {
    const bool all_rows = block[first] == shape[first], all_columns = block[first + 1] == shape[first + 1];
    if (all_rows && all_columns) return "matrix";
    if (all_columns && block[first] == 1) return "row";
    if (all_rows && block[first + 1] == 1) return "column";
  }
  return fmt::format("{}", fmt::join(block.begin() + static_cast<std::ptrdiff_t>(first), block.end(), "x"));
}

DecodedAs decoded_as(QuantizationScheme scheme, const ElementRow* row, const Parts& parts) {
  const bool is_fp8 = scheme == QuantizationScheme::fp8;
  DecodedAs taken{scheme, row != nullptr ? row->name : name_of(parts.values->dtype()),
                  block_text(parts, is_fp8)};
  if (!is_fp8) taken.axis = static_cast<std::int64_t>(parts.axis);
  taken.layout = parts.layout;
  if (row != nullptr && row->group_codes == 2) taken.nibbles = parts.packing.nibbles;
  if (scheme == QuantizationScheme::nvfp4) taken.global = parts.global_use;
  return taken;
}

}  // namespace

}  // namespace quantize

std::shared_ptr<const ArraySource> decoded_array(const QuantizedArrays& arrays,
                                                 const DecodeSettings& settings, std::string name,
                                                 DecodedAs* taken) {
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
  if (settings.global && arrays.scheme != Scheme::nvfp4)
    throw core::usage("a global scale is of nvfp4, not of {}", name_of(arrays.scheme));

  Parts parts;
  parts.values = arrays.values;
  parts.scales = arrays.scales;
  parts.layout = settings.layout;
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
  if (settings.nibbles == NibbleOrder::split) {
    if (arrays.scheme == Scheme::nvfp4)
      throw core::usage("nibbles=split is of blocks of {}: mx and gptoss", kMxBlock);
    parts.packing.group_codes = kMxBlock, parts.packing.group_bytes = kMxBlock / 2;
  }
  if (!is_fp8 && parts.values->shape().empty())
    throw core::invalid("{}: a scalar has no blocks", parts.values->name());
  read_shape(row, settings, parts);
  read_scale_type(arrays.scheme, parts);
  if (is_fp8) {
    parts.block = blocks_of_fp8(settings, parts);
    if (parts.layout == ScaleLayout::linear) parts.scales = spread_scales(parts.scales, parts.shape);
  } else {
    parts.block.assign(parts.shape.size(), 1);
    parts.block[parts.axis] = arrays.scheme == Scheme::nvfp4 ? kNvfp4Block : kMxBlock;
  }
  check_scales(arrays, settings, row, parts);
  read_global(arrays, settings.global, parts);
  if (taken != nullptr) *taken = decoded_as(arrays.scheme, row, parts);
  return std::make_shared<DecodedSource>(std::move(parts), std::move(name));
}

}  // namespace ejk
