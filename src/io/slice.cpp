// tests: tests/io/test_slice.cpp
#include "io/slice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/checked.hpp"

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
      throw Error(Error::Kind::input, fmt::format("index {} is out of bounds for axis {} with length {}",
                                                  item.index, axis, length));
    return {index, 1, 1, false};
  }
  // As in Python: what lies outside is cut off, not an error.
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
  if (entries > shape.size())
    throw Error(Error::Kind::input, fmt::format("the slice has {} entries, the array of shape {} has {} axes",
                                                entries, to_string(shape), shape.size()));
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

class SlicedSource final : public ArraySource {
 public:
  SlicedSource(std::shared_ptr<const ArraySource> source, std::vector<Axis> axes, std::string name)
      : source_(std::move(source)), axes_(std::move(axes)), name_(std::move(name)) {
    for (const Axis& axis : axes_)
      if (axis.kept) shape_.push_back(axis.count);
  }

  DType dtype() const override { return source_->dtype(); }
  const Shape& shape() const override { return shape_; }
  const std::string& name() const override { return name_; }
  bool random_access() const override { return source_->random_access(); }
  std::string storage() const override { return "slice"; }
  const std::byte* uniform() const override { return source_->uniform(); }
  bool prefers_read() const override {
    if (!source_->prefers_read()) return false;
    const auto view = mapped();  // none where the file has the other byte order: read() is all there is
    return !view || view->is_c_contiguous();
  }
  void release(const std::byte* data, std::int64_t bytes) const override { source_->release(data, bytes); }

  std::optional<ArrayView> mapped() const override {
    const auto whole = source_->mapped();
    if (!whole) return std::nullopt;
    const std::byte* data = whole->data;
    Shape strides;
    for (std::size_t d = 0; d < axes_.size(); ++d) {
      // Of an empty selection only the shape counts; its start may lie behind the last element.
      if (axes_[d].count > 0) data += axes_[d].start * whole->strides[d];
      // A step past the end is taken at most 0 times and must not overflow.
      if (axes_[d].kept)
        strides.push_back(axes_[d].count > 1 ? axes_[d].step * whole->strides[d] : whole->strides[d]);
    }
    return ArrayView{data, whole->dtype, shape_, std::move(strides)};
  }

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
      source_->read(from, extent, out);
    else
      read_stepped(box, stepped - 1, 0, from, extent, static_cast<std::byte*>(out));
  }

 private:
  // Axes up to `last` (the last with a step) one index at a time; along `last` runs with their gaps, of which
  // the gaps are dropped, or single indices where a gap would be large. Returns the end of what was written.
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
    std::int64_t inner = size_of(dtype());
    for (std::size_t e = last + 1; e < box.size(); ++e) inner *= box[e].count;
    const std::int64_t step = box[last].step;
    const std::int64_t run = std::max<std::int64_t>(1, std::min(box[last].count, kMost / inner / step));
    Array gapped(DType::uint8, {run > 1 ? run * step * inner : 0});
    for (std::int64_t i = 0; i < box[last].count; i += run) {
      const std::int64_t n = std::min(run, box[last].count - i);
      from[last] = box[last].start + i * step;
      extent[last] = (n - 1) * step + 1;
      if (n == 1) {
        source_->read(from, extent, out);
      } else {
        source_->read(from, extent, gapped.data());
        copy_elements({gapped.data(), DType::uint8, {n, inner}, {step * inner, 1}}, out);
      }
      out += n * inner;
    }
    return out;
  }

  std::shared_ptr<const ArraySource> source_;
  std::vector<Axis> axes_;
  std::string name_;
  Shape shape_;
};

}  // namespace

std::shared_ptr<const ArraySource> make_sliced_source(std::shared_ptr<const ArraySource> source,
                                                      std::span<const SliceItem> slice, std::string name) {
  std::vector<Axis> axes;
  try {
    axes = resolve(slice, source->shape());
  } catch (Error& e) {
    e.at(name);
    throw;
  }
  return std::make_shared<SlicedSource>(std::move(source), std::move(axes), std::move(name));
}

}  // namespace ejk::io
