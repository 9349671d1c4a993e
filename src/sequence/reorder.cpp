// Reordering of a sequence for ring attention: rank r gets the chunks r and 2·cp - 1 - r, which balances
// causal work.
// tests: tests/sequence/test_reorder.cpp
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/sequence.hpp"

namespace ejk {

namespace {

// The source piece of each of the 2·cp output pieces.
std::vector<std::int64_t> piece_order(std::int64_t cp, Reorder order) {
  std::vector<std::int64_t> from(static_cast<std::size_t>(2 * cp));
  for (std::int64_t r = 0; r < cp; ++r)
    for (const auto& [contiguous, ring] : {std::pair{r, 2 * r}, std::pair{2 * cp - 1 - r, 2 * r + 1}}) {
      const bool to_ring = order == Reorder::to_ring;
      from[static_cast<std::size_t>(to_ring ? ring : contiguous)] = to_ring ? contiguous : ring;
    }
  return from;
}

// Another source with the pieces of one axis in another order.
class ReorderedSource final : public ForwardingSource {
 public:
  ReorderedSource(const std::shared_ptr<const ArraySource>& source, std::size_t axis,
                  std::vector<std::int64_t> from)
      : ForwardingSource(source, {source->dtype(), source->shape()}, ArrayAccess(source->access().order)),
        axis_(axis),
        from_(std::move(from)),
        piece_(source->shape()[axis] / static_cast<std::int64_t>(from_.size())) {}

  // A box is assembled from ranges within chunks. Short ones (20 ns each) are picked from a larger read.
  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    std::int64_t outer = 1, inner_bytes = size_of(dtype());
    for (std::size_t d = 0; d < axis_; ++d) outer *= count[d];
    for (std::size_t d = axis_ + 1; d < count.size(); ++d) inner_bytes *= count[d];
    if (piece_ * inner_bytes <= kShortRun && count[axis_] > piece_)
      return read_picking(start, count, outer, inner_bytes, static_cast<std::byte*>(out));
    std::vector<std::byte> run;
    Shape from(start.begin(), start.end()), extent(count.begin(), count.end());
    for (std::int64_t done = 0; done < count[axis_]; done += extent[axis_]) {
      const std::int64_t at = start[axis_] + done;
      from[axis_] = from_[static_cast<std::size_t>(at / piece_)] * piece_ + at % piece_;
      extent[axis_] = std::min(piece_ - at % piece_, count[axis_] - done);
      auto* to = static_cast<std::byte*>(out) + done * inner_bytes;
      if (outer == 1) {
        inner().read(from, extent, to);
        continue;
      }
      const std::int64_t length = extent[axis_] * inner_bytes;
      run.resize(static_cast<std::size_t>(outer * length));
      inner().read(from, extent, run.data());
      for (std::int64_t o = 0; o < outer; ++o)
        std::memcpy(to + o * count[axis_] * inner_bytes, run.data() + o * length,
                    static_cast<std::size_t>(length));
    }
  }

 private:
  static constexpr std::int64_t kShortRun = 16;  // bytes

  // The source is read twice: the pieces of its first half, and those of its second half. A run of pieces of
  // the result takes neighbouring ones of each half, or every other one of either, so at most twice as many
  // are read.
  void read_picking(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                    std::int64_t outer, std::int64_t inner_bytes, std::byte* out) const {
    struct Half {
      std::int64_t first = INT64_MAX, last = -1, line = 0;  // pieces, and bytes of one of `outer`
      std::vector<std::byte> read;
    };
    const std::int64_t begin = start[axis_], end = begin + count[axis_], middle = std::ssize(from_) / 2;
    const auto pieces =
        std::span(from_).subspan(static_cast<std::size_t>(begin / piece_),
                                 static_cast<std::size_t>(core::ceil_div(end, piece_) - begin / piece_));
    std::array<Half, 2> halves;
    for (const std::int64_t piece : pieces) {
      Half& half = halves[piece >= middle];
      half.first = std::min(half.first, piece), half.last = std::max(half.last, piece);
    }
    for (Half& half : halves) {
      if (half.last < 0) continue;
      Shape from(start.begin(), start.end()), extent(count.begin(), count.end());
      from[axis_] = half.first * piece_;
      extent[axis_] = (half.last + 1 - half.first) * piece_;
      half.line = extent[axis_] * inner_bytes;
      half.read.resize(static_cast<std::size_t>(outer * half.line));
      inner().read(from, extent, half.read.data());
    }
    // Lengths that the compiler knows are copied several times faster.
    const auto pick = [&](auto piece_bytes) {
      for (std::int64_t o = 0; o < outer; ++o) {
        std::int64_t at = begin / piece_ * piece_;  // where a piece begins in the result
        for (const std::int64_t piece : pieces) {
          const Half& half = halves[piece >= middle];
          const std::byte* from = half.read.data() + o * half.line + (piece - half.first) * piece_bytes;
          const std::int64_t cut = std::max<std::int64_t>(begin - at, 0),
                             length = std::min(piece_, end - at) - cut;
          if (length == piece_)
            std::memcpy(out, from, static_cast<std::size_t>(std::int64_t{piece_bytes}));
          else
            std::memcpy(out, from + cut * inner_bytes, static_cast<std::size_t>(length * inner_bytes));
          out += length * inner_bytes;
          at += piece_;
        }
      }
    };
    switch (const std::int64_t bytes = piece_ * inner_bytes) {
      case 1:
        return pick(std::integral_constant<std::int64_t, 1>());
      case 2:
        return pick(std::integral_constant<std::int64_t, 2>());
      case 4:
        return pick(std::integral_constant<std::int64_t, 4>());
      case 8:
        return pick(std::integral_constant<std::int64_t, 8>());
      case 16:
        return pick(std::integral_constant<std::int64_t, 16>());
      default:
        return pick(bytes);
    }
  }

  std::size_t axis_;
  std::vector<std::int64_t> from_;
  std::int64_t piece_;
};

void check_cp(std::int64_t cp) {
  if (cp < 2 || cp % 2 != 0)
    throw core::invalid("the number of ranks is {}; it must be even and at least 2", cp);
}

// Pairs (query, key ≤ query) of the queries [begin, end).
double causal_pairs(std::int64_t begin, std::int64_t end) {
  const auto b = static_cast<double>(begin), e = static_cast<double>(end);
  return (e * (e + 1) - b * (b + 1)) / 2;
}

}  // namespace

std::shared_ptr<const ArraySource> reorder_sequence(std::shared_ptr<const ArraySource> x,
                                                    std::int64_t cp_size, std::int64_t axis, Reorder order) {
  check_cp(cp_size);
  const std::size_t d = core::axis_of(core::required(x).name(), core::required(x).shape(), axis);
  const auto pieces = core::checked_mul(2, cp_size);
  if (!pieces || x->shape()[d] % *pieces != 0)
    throw core::invalid("{}: axis {} has length {}, not a multiple of 2 x {} ranks", x->name(), axis,
                        x->shape()[d], cp_size);
  if (x->shape()[d] == 0) return x;
  return std::make_shared<ReorderedSource>(x, d, piece_order(cp_size, order));
}

Report describe_reorder(std::int64_t length, std::int64_t cp_size) {
  check_cp(cp_size);
  if (length < 0) throw core::invalid("a sequence does not have {} tokens", length);
  const std::int64_t piece = length / (2 * cp_size);
  Table table{"ranks",
              "causal work (pairs of a query and a key it sees)",
              {{"rank", "rank"}, {"contiguous_pairs", "in order"}, {"ring_pairs", "in ring order"}},
              {},
              16};
  double most_contiguous = 0, most_ring = 0;
  for (std::int64_t r = 0; r < cp_size; ++r) {
    const double contiguous = causal_pairs(2 * r * piece, 2 * (r + 1) * piece);
    const double ring = causal_pairs(r * piece, (r + 1) * piece) +
                        causal_pairs((2 * cp_size - 1 - r) * piece, (2 * cp_size - r) * piece);
    most_contiguous = std::max(most_contiguous, contiguous);
    most_ring = std::max(most_ring, ring);
    table.rows.push_back({r, whole_number(contiguous), whole_number(ring)});
  }
  const double mean = causal_pairs(0, length) / static_cast<double>(cp_size);
  Report report;
  report.add("length", "tokens", length, Unit::count)
      .add("ranks_count", "ranks", cp_size, Unit::count)
      .add("imbalance_contiguous", "heaviest rank to mean, in order", ratio(most_contiguous, mean))
      .add("imbalance_ring", "heaviest rank to mean, in ring order", ratio(most_ring, mean))
      .add(std::move(table));
  return report;
}

}  // namespace ejk
