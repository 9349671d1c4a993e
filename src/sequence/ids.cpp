// tests: tests/sequence/test_sequence.cpp
#include "sequence/ids.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "kernels/kernels.hpp"

namespace ejk::sequence {

namespace {

// Writes n values first, first + step, … of any integer type.
template <class T>
void progression(std::int64_t first, std::int64_t step, std::int64_t n, bool stream, T* out) {
  const kernels::Kernels& kernel = kernels::active();
  if constexpr (sizeof(T) == 4) {
    kernel.progression_32(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(step), n, stream,
                          reinterpret_cast<std::uint32_t*>(out));
  } else if constexpr (sizeof(T) == 8) {
    kernel.progression_64(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(step), n, stream,
                          reinterpret_cast<std::uint64_t*>(out));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(first + i * step);
  }
}

// Writes n pairs (label, position), (label, position + 1), …
template <class T>
void pairs(std::int64_t label, std::int64_t position, std::int64_t n, bool stream, T* out) {
  if constexpr (sizeof(T) == 4 && std::endian::native == std::endian::little) {
    // A pair of 32 bits is one number of 64, and the next pair that number and 2^32.
    const auto first = static_cast<std::uint64_t>(label) | static_cast<std::uint64_t>(position) << 32;
    std::uint64_t* to = reinterpret_cast<std::uint64_t*>(out);
    kernels::active().progression_64(first, std::uint64_t{1} << 32, n, stream, to);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      out[2 * i] = static_cast<T>(label);
      out[2 * i + 1] = static_cast<T>(position + i);
    }
  }
}

class IdSource final : public ArraySource {
 public:
  IdSource(std::vector<std::int64_t> offsets, std::vector<std::int64_t> labels, IdKind kind, DType dtype,
           std::string name)
      : offsets_(std::move(offsets)),
        labels_(std::move(labels)),
        kind_(kind),
        dtype_(dtype),
        name_(std::move(name)) {
    shape_ = {offsets_.back()};
    if (kind == IdKind::both) shape_.push_back(2);
    byte_count(shape_, dtype_);
  }

  DType dtype() const override { return dtype_; }
  const Shape& shape() const override { return shape_; }
  const std::string& name() const override { return name_; }
  bool random_access() const override { return true; }

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    dispatch(dtype_, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        if (kind_ == IdKind::both && count[1] != 2)
          read_column<T>(start, count[0], static_cast<T*>(out));
        else
          read_elements<T>(start[0], count[0], static_cast<T*>(out));
      }
    });
  }

 private:
  // Elements are handed out to threads in pieces that are the same for any number of them.
  template <class T>
  void read_elements(std::int64_t begin, std::int64_t count, T* out) const {
    constexpr std::int64_t kPiece = std::int64_t{1} << 17;
    constexpr std::int64_t kBeyondCaches = std::int64_t{64} << 20;  // bytes
    const std::int64_t width = kind_ == IdKind::both ? 2 : 1;
    const bool stream = count * width * static_cast<std::int64_t>(sizeof(T)) >= kBeyondCaches;
    core::parallel_for(core::ceil_div(count, kPiece), [&](std::int64_t piece) {
      const std::int64_t first = piece * kPiece, n = std::min(kPiece, count - first);
      for_each_run(begin + first, begin + first + n,
                   [&](std::size_t run, std::int64_t from, std::int64_t to) {
                     T* at = out + (from - begin) * width;
                     const std::int64_t position = from - offsets_[run], length = to - from;
                     if (kind_ == IdKind::position) progression(position, 1, length, stream, at);
                     if (kind_ == IdKind::label) progression(labels_[run], 0, length, stream, at);
                     if (kind_ == IdKind::both) pairs(labels_[run], position, length, stream, at);
                   });
      if (stream) kernels::active().stream_fence();
    });
  }

  // One of the two columns of pairs.
  template <class T>
  void read_column(std::span<const std::int64_t> start, std::int64_t count, T* out) const {
    for_each_run(start[0], start[0] + count, [&](std::size_t run, std::int64_t from, std::int64_t to) {
      const bool label = start[1] == 0;
      progression(label ? labels_[run] : from - offsets_[run], label ? 0 : 1, to - from, false,
                  out + (from - start[0]));
    });
  }

  // f(run, begin, end) for the part of every run within [begin, end).
  template <class F>
  void for_each_run(std::int64_t begin, std::int64_t end, F&& f) const {
    auto run = static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) -
                                        offsets_.begin() - 1);
    for (; begin < end; ++run) {
      const std::int64_t stop = std::min(end, offsets_[run + 1]);
      if (stop > begin) f(run, begin, stop);
      begin = std::max(begin, stop);
    }
  }

  std::vector<std::int64_t> offsets_, labels_;
  IdKind kind_;
  DType dtype_;
  Shape shape_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const ArraySource> make_ids(std::vector<std::int64_t> offsets,
                                            std::vector<std::int64_t> labels, IdKind kind, DType dtype,
                                            std::string name) {
  const std::int64_t most = dispatch(dtype, []<class T>(std::type_identity<T>) -> std::int64_t {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 8)
      return static_cast<std::int64_t>(std::numeric_limits<T>::max());
    else
      return INT64_MAX;
  });
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t length = offsets[i + 1] - offsets[i];
    if (length == 0) continue;
    if (kind != IdKind::position && labels[i] > most)
      throw Error(Error::Kind::input,
                  fmt::format("sequence number {} is more than {} holds", labels[i], name_of(dtype)));
    if (kind != IdKind::label && length - 1 > most)
      throw Error(Error::Kind::input, fmt::format("sequence {} has positions up to {}, more than {} holds", i,
                                                  length - 1, name_of(dtype)));
  }
  return std::make_shared<IdSource>(std::move(offsets), std::move(labels), kind, dtype, std::move(name));
}

}  // namespace ejk::sequence
