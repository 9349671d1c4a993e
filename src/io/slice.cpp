// Basic slices of arrays: start, start + step, ... of each axis, by Python's rules. A mapped array gives a
// view with other strides; a box of any other is translated into boxes of the whole. Along a last axis with a
// step, runs are read including their gaps if these are small. Cost: that of reading from the whole array.
// Source: NumPy, "Basic slicing and indexing" (positive steps).
// tests: tests/io/test_slice.cpp
#include "io/slice.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/named.hpp"
#include "core/require.hpp"

namespace ejk::io {

namespace {

// The selection along one axis of the sliced array: start, start + step, ... (count of them).
struct Axis {
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  bool kept = true;  // false: an index, the axis vanishes
};

Axis resolve(const SliceItem& item, std::int64_t length, std::size_t axis) {
  if (item.kind == SliceItem::Kind::index) {
    const std::int64_t index = item.index < 0 ? item.index + length : item.index;
    if (index < 0 || index >= length)
      throw core::invalid("index {} is out of bounds for axis {} with length {}", item.index, axis, length);
    return {index, 1, 1, false};
  }
  if (item.step < 1) throw core::usage("the step {} of a slice is not positive", item.step);
  // As in Python, bounds are clipped.
  const auto bound = [&](const std::optional<std::int64_t>& given, std::int64_t otherwise) {
    if (!given) return otherwise;
    return std::clamp<std::int64_t>(*given < 0 ? *given + length : *given, 0, length);
  };
  const std::int64_t start = bound(item.start, 0), stop = bound(item.stop, length);
  return {start, stop > start ? core::ceil_div(stop - start, item.step) : 0, item.step, true};
}

std::vector<Axis> resolve(std::span<const SliceItem> slice, std::span<const std::int64_t> shape) {
  const auto is_ellipsis = [](const SliceItem& i) { return i.kind == SliceItem::Kind::ellipsis; };
  const auto ellipses = static_cast<std::size_t>(std::count_if(slice.begin(), slice.end(), is_ellipsis));
  const std::size_t entries = slice.size() - ellipses;
  if (ellipses > 1) throw Error(Error::Kind::usage, "a slice has one ... at most");
  if (entries > shape.size())
    throw core::invalid("the slice has {} entries, the array of shape {} has {} axes", entries,
                        to_string(shape), shape.size());
  std::vector<Axis> axes;
  const auto take_whole = [&](std::size_t n) {
    for (; n > 0; --n) axes.push_back({0, shape[axes.size()], 1, true});
  };
  for (const SliceItem& item : slice) {
    if (is_ellipsis(item))
      take_whole(shape.size() - entries);
    else
      axes.push_back(resolve(item, shape[axes.size()], axes.size()));
  }
  take_whole(shape.size() - axes.size());
  return axes;
}

// The elements of a view that the axes select.
ArrayView part_of(const ArrayView& whole, const std::vector<Axis>& axes) {
  const std::byte* data = whole.data;
  Shape shape, strides;
  for (std::size_t d = 0; d < axes.size(); ++d) {
    // Of an empty selection only the shape counts; its start may be past the last element.
    if (axes[d].count > 0) data += axes[d].start * whole.strides[d];
    if (!axes[d].kept) continue;
    shape.push_back(axes[d].count);
    // A step past the end is taken at most 0 times and must not overflow.
    strides.push_back(axes[d].count > 1 ? axes[d].step * whole.strides[d] : whole.strides[d]);
  }
  return {data, whole.dtype, std::move(shape), std::move(strides)};
}

Shape shape_of(const std::vector<Axis>& axes) {
  Shape shape;
  for (const Axis& axis : axes)
    if (axis.kept) shape.push_back(axis.count);
  return shape;
}

ArrayAccess access_to(const ArraySource& whole, const std::vector<Axis>& axes) {
  ArrayAccess access = whole.access();
  access.storage = "slice";
  if (!access.view) return access;
  access.view = part_of(*access.view, axes);
  if (!access.view->is_c_contiguous()) access.prefer = ArrayAccess::Prefer::view;
  return access;
}

class SlicedSource final : public ForwardingSource {
 public:
  SlicedSource(const std::shared_ptr<const ArraySource>& source, std::vector<Axis> axes, std::string name)
      : ForwardingSource(source, {source->dtype(), shape_of(axes)}, access_to(*source, axes),
                         std::move(name)),
        axes_(std::move(axes)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (std::find(count.begin(), count.end(), 0) != count.end()) return;
    // The same box in terms of the whole array; an axis taken once has no step.
    std::vector<Axis> box = axes_;
    Shape from, extent;
    std::size_t stepped = 0;  // axes before this one are walked index by index
    for (std::size_t d = 0, k = 0; d < box.size(); ++d) {
      if (box[d].kept) {
        box[d].start += start[k] * box[d].step;
        box[d].count = count[k++];
      }
      if (box[d].count == 1) box[d].step = 1;
      if (box[d].step > 1) stepped = d + 1;
      from.push_back(box[d].start);
      extent.push_back(box[d].count);
    }
    if (stepped == 0)
      inner().read(from, extent, out);
    else
      read_stepped(box, stepped - 1, 0, from, extent, static_cast<std::byte*>(out));
  }

 private:
  // Axes before `last` one index at a time; along `last` ranges without their gaps, or single indices if
  // gaps are large. Returns the end of the output.
  std::byte* read_stepped(const std::vector<Axis>& box, std::size_t last, std::size_t d, Shape& from,
                          Shape& extent, std::byte* out) const {
    if (d < last) {
      extent[d] = 1;
      for (std::int64_t i = 0; i < box[d].count; ++i) {
        from[d] = box[d].start + i * box[d].step;
        out = read_stepped(box, last, d + 1, from, extent, out);
      }
      return out;
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    std::int64_t inner_bytes = size_of(dtype());
    for (std::size_t e = last + 1; e < box.size(); ++e) inner_bytes *= box[e].count;
    const std::int64_t step = box[last].step;
    const std::int64_t run = std::max<std::int64_t>(1, std::min(box[last].count, kMost / inner_bytes / step));
    Array gapped(DType::uint8, {run > 1 ? run * step * inner_bytes : 0});
    for (std::int64_t i = 0; i < box[last].count; i += run) {
      const std::int64_t n = std::min(run, box[last].count - i);
      from[last] = box[last].start + i * step;
      extent[last] = (n - 1) * step + 1;
      if (n == 1) {
        inner().read(from, extent, out);
      } else {
        inner().read(from, extent, gapped.data());
        copy_elements({gapped.data(), DType::uint8, {n, inner_bytes}, {step * inner_bytes, 1}}, out);
      }
      out += n * inner_bytes;
    }
    return out;
  }

  std::vector<Axis> axes_;
};

}  // namespace

std::shared_ptr<const ArraySource> make_sliced_source(std::shared_ptr<const ArraySource> source,
                                                      std::span<const SliceItem> slice, std::string name) {
  std::vector<Axis> axes = core::named(name, [&] { return resolve(slice, source->shape()); });
  return std::make_shared<SlicedSource>(std::move(source), std::move(axes), std::move(name));
}

}  // namespace ejk::io
