// Index arrays of packed tokens: the sequence, position and chunk of each. The first sequence of a box is
// found by binary search; kernels fill arithmetic progressions. Cost: linear in the elements written.
// tests: tests/sequence/test_sequence.cpp
#include "sequence/ids.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "kernels/kernels.hpp"

namespace ejk::sequence {

namespace {

// What `kernels` calls runs of progressions, for any integer type.
template <class T>
void progressions(const std::int64_t* offsets, const std::int64_t* firsts, std::int64_t step,
                  std::int64_t begin, std::int64_t end, bool stream, T* out) {
  const kernels::Kernels& kernel = kernels::active();
  if constexpr (sizeof(T) == 4) {
    kernel.progressions_32(offsets, firsts, static_cast<std::uint32_t>(step), begin, end, stream,
                           reinterpret_cast<std::uint32_t*>(out));
  } else if constexpr (sizeof(T) == 8) {
    kernel.progressions_64(offsets, firsts, static_cast<std::uint64_t>(step), begin, end, stream,
                           reinterpret_cast<std::uint64_t*>(out));
  } else {
    for (std::int64_t at = begin, run = 0; at < end; ++run)
      for (const std::int64_t stop = std::min(end, offsets[run + 1]); at < stop; ++at)
        *out++ = static_cast<T>((firsts == nullptr ? 0 : firsts[run]) + (at - offsets[run]) * step);
  }
}

// Pairs (label, position).
template <class T>
void pairs(const std::int64_t* offsets, const std::int64_t* labels, std::int64_t begin, std::int64_t end,
           bool stream, T* out) {
  if constexpr (sizeof(T) == 4 && std::endian::native == std::endian::little) {
    // A pair of 32 bits is one number of 64, and the next pair that number and 2^32.
    kernels::active().progressions_64(offsets, labels, std::uint64_t{1} << 32, begin, end, stream,
                                      reinterpret_cast<std::uint64_t*>(out));
  } else {
    for (std::int64_t at = begin, run = 0; at < end; ++run)
      for (const std::int64_t stop = std::min(end, offsets[run + 1]); at < stop; ++at) {
        *out++ = static_cast<T>(labels[run]);
        *out++ = static_cast<T>(at - offsets[run]);
      }
  }
}

class IdSource final : public ArraySource {
 public:
  IdSource(std::vector<std::int64_t> offsets, std::vector<std::int64_t> labels, IdKind kind, DType dtype,
           std::string name)
      : ArraySource({dtype, kind == IdKind::both ? Shape{offsets.back(), 2} : Shape{offsets.back()}},
                    std::move(name), ArrayAccess(ArrayAccess::Order::any)),
        offsets_(std::move(offsets)),
        labels_(std::move(labels)),
        kind_(kind) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    dispatch(dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        if (kind_ == IdKind::both && count[1] != 2)  // one of the two columns
          column(run_of(start[0]), start[0], start[0] + count[0], start[1] == 0, false, static_cast<T*>(out));
        else
          read_elements<T>(start[0], count[0], static_cast<T*>(out));
      }
    });
  }

 private:
  // Elements are handed out to threads in pieces that are the same for any number of them.
  template <class T>
  void read_elements(std::int64_t begin, std::int64_t count, T* out) const {
    constexpr std::int64_t kOneThread = std::int64_t{1} << 20;  // bytes, made before others have begun
    const std::int64_t width = kind_ == IdKind::both ? 2 : 1;
    const std::int64_t bytes = count * width * static_cast<std::int64_t>(sizeof(T));
    const bool stream = bytes >= kernels::kLargerThanCaches;
    const std::int64_t most = bytes <= kOneThread ? count : std::int64_t{1} << 17;
    core::parallel_for(core::ceil_div(count, most), static_cast<double>(bytes) / 4, [&](std::int64_t piece) {
      const std::int64_t first = begin + piece * most, end = std::min(begin + count, first + most);
      const std::int64_t run = run_of(first);
      T* at = out + (first - begin) * width;
      if (kind_ == IdKind::both)
        pairs(offsets_.data() + run, labels_.data() + run, first, end, stream, at);
      else
        column(run, first, end, kind_ == IdKind::label, stream, at);
      if (stream) kernels::active().stream_fence();
    });
  }

  // The labels, or the positions, of elements [begin, end), the first of which belongs to `run`.
  template <class T>
  void column(std::int64_t run, std::int64_t begin, std::int64_t end, bool labels, bool stream,
              T* out) const {
    progressions(offsets_.data() + run, labels ? labels_.data() + run : nullptr, labels ? 0 : 1, begin, end,
                 stream, out);
  }

  std::int64_t run_of(std::int64_t element) const {
    return std::upper_bound(offsets_.begin(), offsets_.end(), element) - offsets_.begin() - 1;
  }

  std::vector<std::int64_t> offsets_, labels_;
  IdKind kind_;
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
      throw core::invalid("sequence number {} is more than {} holds", labels[i], name_of(dtype));
    if (kind != IdKind::label && length - 1 > most)
      throw core::invalid("sequence {} has positions up to {}, more than {} holds", i, length - 1,
                          name_of(dtype));
  }
  return std::make_shared<IdSource>(std::move(offsets), std::move(labels), kind, dtype, std::move(name));
}

}  // namespace ejk::sequence
