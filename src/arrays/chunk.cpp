// Chunks of an axis and their inverse; without padding a view with another shape.
// tests: tests/arrays/test_chunk.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/named.hpp"
#include "core/number.hpp"
#include "core/require.hpp"
#include "ejk/array_math.hpp"

namespace ejk {

namespace {

// The part of a box on both sides of the axis in question.
struct Around {
  std::int64_t outer = 1, inner = 1;  // elements
  Around(std::span<const std::int64_t> count, std::size_t axis, std::size_t axes) {
    for (std::size_t d = 0; d < axis; ++d) outer *= count[d];
    for (std::size_t d = axis + axes; d < count.size(); ++d) inner *= count[d];
  }
};

// Reads a box of `source`: rows of `row` bytes, one per index of the axes before `axis`, to every `stride`
// bytes.
void read_rows(const ArraySource& source, std::span<const std::int64_t> start,
               std::span<const std::int64_t> count, std::int64_t outer, std::int64_t stride, std::byte* to) {
  const std::int64_t row = byte_count(count, source.dtype()) / outer;
  if (outer == 1 || row == stride) {
    source.read(start, count, to);
    return;
  }
  std::vector<std::byte> rows(static_cast<std::size_t>(outer * row));
  source.read(start, count, rows.data());
  for (std::int64_t o = 0; o < outer; ++o)
    std::memcpy(to + o * stride, rows.data() + o * row, static_cast<std::size_t>(row));
}

// A view under `shape`, in which its `axis` is cut into chunks; nothing where the last one has to be filled.
std::optional<ArrayView> chunked(std::optional<ArrayView> view, std::size_t axis, const Shape& shape) {
  if (!view || view->shape[axis] % shape[axis + 1] != 0) return std::nullopt;
  view->shape = shape;
  const auto at = view->strides.begin() + static_cast<std::ptrdiff_t>(axis);
  view->strides.insert(at, *at * shape[axis + 1]);
  return view;
}

// A view under `shape`, in which `axis` and the next are one; nothing where chunks are apart.
std::optional<ArrayView> joined(std::optional<ArrayView> view, std::size_t axis, const Shape& shape) {
  if (!view ||
      (view->shape[axis] > 1 && view->strides[axis] != view->strides[axis + 1] * view->shape[axis + 1]))
    return std::nullopt;
  view->shape = shape;
  view->strides.erase(view->strides.begin() + static_cast<std::ptrdiff_t>(axis));
  return view;
}

// Of a source made from another one: that view, or reading in the same order.
ArrayAccess access_by(std::optional<ArrayView> view, const ArraySource& source) {
  return view ? ArrayAccess(*std::move(view)) : ArrayAccess(source.access().order);
}

class ChunkedSource final : public ForwardingSource {
 public:
  ChunkedSource(const std::shared_ptr<const ArraySource>& source, std::size_t axis, const ArrayType& type,
                std::vector<std::byte> pad)
      : ForwardingSource(source, type, access_by(chunked(source->mapped(), axis, type.shape), *source)),
        axis_(axis),
        length_(source->shape()[axis]),
        chunk_(type.shape[axis + 1]),
        pad_(std::move(pad)) {}

  // Whole chunks are contiguous in the source: one range; otherwise one for each chunk.
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    const Around around(count, axis_, 2);
    const std::int64_t chunks = count[axis_], within = count[axis_ + 1],
                       inner_bytes = around.inner * size_of(dtype());
    const bool whole = within == chunk_;
    const std::int64_t runs = whole ? 1 : chunks, length = whole ? chunks * chunk_ : within;
    const std::int64_t stride = chunks * within * inner_bytes;
    Shape from(start.begin(), start.end()), extent(count.begin(), count.end());
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(axis_));
    extent.erase(extent.begin() + static_cast<std::ptrdiff_t>(axis_));
    for (std::int64_t run = 0; run < runs; ++run) {
      from[axis_] = (start[axis_] + run) * chunk_ + start[axis_ + 1];
      extent[axis_] = std::clamp<std::int64_t>(length_ - from[axis_], 0, length);
      std::byte* to = static_cast<std::byte*>(out) + run * length * inner_bytes;
      if (extent[axis_] > 0) read_rows(inner(), from, extent, around.outer, stride, to);
      if (extent[axis_] < length)
        for (std::int64_t o = 0; o < around.outer; ++o)
          core::repeat_element(pad_, (length - extent[axis_]) * around.inner,
                               to + o * stride + extent[axis_] * inner_bytes);
    }
  }

 private:
  std::size_t axis_;
  std::int64_t length_, chunk_;
  std::vector<std::byte> pad_;
};

class JoinedSource final : public ForwardingSource {
 public:
  JoinedSource(const std::shared_ptr<const ArraySource>& source, std::size_t axis, const ArrayType& type)
      : ForwardingSource(source, type, access_by(joined(source->mapped(), axis, type.shape), *source)),
        axis_(axis),
        chunk_(source->shape()[axis + 1]) {}

  // The end of a chunk, whole chunks, the beginning of one.
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    const Around around(count, axis_, 1);
    const std::int64_t inner_bytes = around.inner * size_of(dtype()), stride = count[axis_] * inner_bytes;
    if (around.outer > 1 && !random_access()) {  // one row after the other, so that nothing is read twice
      const auto d = static_cast<std::size_t>(
          std::find_if(count.begin(), count.end(), [](std::int64_t n) { return n > 1; }) - count.begin());
      Shape at(start.begin(), start.end()), one(count.begin(), count.end());
      one[d] = 1;
      const std::int64_t bytes = byte_count(one, dtype());
      for (std::int64_t i = 0; i < count[d]; ++i, ++at[d])
        read(at, one, static_cast<std::byte*>(out) + i * bytes);
      return;
    }
    const auto at_axis = static_cast<std::ptrdiff_t>(axis_);
    Shape from(start.begin(), start.end()), extent(count.begin(), count.end());
    from.insert(from.begin() + at_axis, 0);
    extent.insert(extent.begin() + at_axis, 1);
    for (std::int64_t done = 0, n = 0; done < count[axis_]; done += n) {
      const std::int64_t at = start[axis_] + done, left = count[axis_] - done;
      const bool whole = at % chunk_ == 0 && left >= chunk_;
      from[axis_] = at / chunk_;
      from[axis_ + 1] = at % chunk_;
      extent[axis_] = whole ? left / chunk_ : 1;
      extent[axis_ + 1] = whole ? chunk_ : std::min(chunk_ - at % chunk_, left);
      n = extent[axis_] * extent[axis_ + 1];
      read_rows(inner(), from, extent, around.outer, stride,
                static_cast<std::byte*>(out) + done * inner_bytes);
    }
  }

 private:
  std::size_t axis_;
  std::int64_t chunk_;
};

}  // namespace

std::shared_ptr<const ArraySource> chunk_array(std::shared_ptr<const ArraySource> x, std::int64_t chunk_size,
                                               std::int64_t axis, Number pad) {
  if (chunk_size < 1) throw core::invalid("the chunk size is {}; it must be at least 1", chunk_size);
  const std::size_t d = core::axis_of(core::required(x).name(), core::required(x).shape(), axis);
  const Array element = core::named(x->name(), [&] { return core::element_of(x->dtype(), pad); });
  Shape shape = x->shape();
  shape[d] = core::ceil_div(shape[d], chunk_size);
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1, chunk_size);
  return std::make_shared<ChunkedSource>(
      x, d, ArrayType(x->dtype(), std::move(shape)),
      std::vector<std::byte>(element.data(), element.data() + size_of(element.dtype())));
}

std::shared_ptr<const ArraySource> unchunk_array(const std::shared_ptr<const ArraySource>& x,
                                                 std::int64_t original_length, std::int64_t axis) {
  Shape shape = core::required(x).shape();
  const auto rank = static_cast<std::int64_t>(shape.size()) - 1;  // of the result
  if (rank < 1)
    throw core::invalid("{} of shape {} holds no chunks, which take two axes", x->name(), to_string(shape));
  if (axis < -rank || axis >= rank)
    throw Error(
        Error::Kind::usage,
        fmt::format("{} of shape {} has no axis {} with chunks to join", x->name(), to_string(shape), axis),
        Error::Code::no_such_axis)
        .hint(core::axes_of(rank));
  const auto d = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  const std::int64_t places = core::checked_mul(shape[d], shape[d + 1]).value_or(INT64_MAX);
  if (original_length < 0 || original_length > places)
    throw core::usage("{}: length {} is not from 0 to {}, what {} chunks of {} hold", x->name(),
                      original_length, places, shape[d], shape[d + 1]);
  shape[d] = original_length;
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1);
  return std::make_shared<JoinedSource>(x, d, ArrayType(x->dtype(), std::move(shape)));
}

}  // namespace ejk
