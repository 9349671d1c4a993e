// Partition of a grouped product: the result as a matrix is bisected, between two rows or, if better
// balanced, two columns. Cost: some dozen look-ups of group offsets for each rank.
// tests: tests/matmul/test_parts.cpp
#include "matmul/parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "core/checked.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"
#include "kernels/kernels.hpp"

namespace ejk::matmul {

namespace {

// Steps of cuts: rows from a group's first on, columns of whole tiles.
constexpr std::int64_t kRowStep = 32, kColumnStep = 64;

// Multiply-adds in the time of a byte from or to a file, for the balance between ranks.
constexpr double kWorkOfByte = 4;

// How much worse than columns rows may be cut: a part that is wide is read and written in longer runs.
constexpr double kForRows = 1.05;

IndexRange both(const IndexRange& a, const IndexRange& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

bool by_rows(const Problem& p) { return p.cut == Problem::Cut::rows; }

std::int64_t column_step(const Problem& p) { return core::round_up(kColumnStep, arithmetic_of(p).gemm->nr); }

// From the first to the last row of computed groups.
IndexRange covered_rows(const Problem& p, const Part& part) {
  return both(part.rows, p.around({0, p.groups}));
}

// Rows and columns of the result as a matrix; of transposed products the groups' rows in turn.
struct Piece {
  IndexRange rows, columns;
};

// The parts of a piece: one, or in transposed products the rests of the first and last group, and the groups
// between.
struct Parts {
  std::array<Part, 3> part;
  std::size_t count = 0;

  void add(const Part& p) { part[count++] = p; }
  std::span<const Part> all() const& { return {part.data(), count}; }
  std::span<const Part> all() && = delete;  // of parts that are gone
};
Parts parts_of(const Problem& p, const Piece& piece) {
  Parts parts;
  const auto [begin, end] = piece.rows;
  if (by_rows(p)) {
    parts.add({{}, piece.rows, piece.columns});
    return parts;
  }
  if (p.k == 0 || begin == end) {
    parts.add({{0, p.k == 0 ? p.groups : 0}, {0, 0}, piece.columns});
    return parts;
  }
  const std::int64_t first = begin / p.k, last = end / p.k;
  if (first == last) {
    parts.add({{first, first + 1}, {begin % p.k, end % p.k}, piece.columns});
    return parts;
  }
  const std::int64_t whole = begin % p.k == 0 ? first : first + 1;
  if (whole > first) parts.add({{first, first + 1}, {begin % p.k, p.k}, piece.columns});
  if (last > whole) parts.add({{whole, last}, {0, p.k}, piece.columns});
  if (end % p.k > 0) parts.add({{last, last + 1}, {0, end % p.k}, piece.columns});
  return parts;
}

double cost_of(const Problem& p, const Part& part) {
  const auto rows = static_cast<double>(part.rows.count()),
             columns = static_cast<double>(part.columns.count());
  const auto lhs = static_cast<double>(size_of(p.lhs.dtype)), rhs = static_cast<double>(size_of(p.rhs.dtype));
  const double out = static_cast<double>(size_of(p.out.dtype)) * (p.has_existing ? 2 : 1);
  const IndexRange groups = groups_of(p, part);
  double bytes = 0;
  if (by_rows(p)) {
    const auto covered = static_cast<double>(p.rows_in(covered_rows(p, part))), k = static_cast<double>(p.k);
    bytes =
        covered * k * lhs + static_cast<double>(groups.count()) * k * columns * rhs + rows * columns * out;
  } else {
    const auto depth = static_cast<double>(p.rows_in(p.around(groups)));
    bytes = depth * (rows * lhs + columns * rhs) + static_cast<double>(groups.count()) * rows * columns * out;
  }
  return flop_of(p, part) / 2 + kWorkOfByte * bytes;
}

double cost_of(const Problem& p, const Piece& piece) {
  if (piece.rows.count() == 0 || piece.columns.count() == 0) return 0;
  double cost = 0;
  const Parts parts = parts_of(p, piece);
  for (const Part& part : parts.all()) cost += cost_of(p, part);
  return cost;
}

struct Halves {
  Piece first, second;
  double cost = std::numeric_limits<double>::infinity();  // of a rank, in the half where it is more
};

class Halving {
 public:
  Halving(const Problem& problem, std::vector<Piece>& pieces)
      : p_(problem), step_(column_step(problem)), pieces_(pieces) {}

  void divide(const Piece& piece, std::int64_t ranks) {
    if (ranks == 1) return pieces_.push_back(piece);
    const std::int64_t first = ranks / 2;
    const Halves rows = between_rows(piece, first, ranks - first),
                 columns = between_columns(piece, first, ranks - first);
    const Halves& best = rows.cost <= kForRows * columns.cost ? rows : columns;
    divide(best.first, first);
    divide(best.second, ranks - first);
  }

 private:
  // The piece cut at one of these places, where it is best; the first of the best.
  template <class Cut>
  Halves best_of(const Piece& piece, std::span<const std::int64_t> places, IndexRange Piece::*axis,
                 std::int64_t first, std::int64_t second, const Cut& cut) const {
    Halves best;
    for (const std::int64_t place : places) {
      const std::int64_t at = std::clamp(place, (piece.*axis).begin, (piece.*axis).end);
      Halves halves = cut(at);
      halves.cost = std::max(cost_of(p_, halves.first) / static_cast<double>(first),
                             cost_of(p_, halves.second) / static_cast<double>(second));
      if (halves.cost < best.cost) best = halves;
    }
    return best;
  }

  Halves between_rows(const Piece& piece, std::int64_t first, std::int64_t second) const {
    const auto cut = [&](std::int64_t row) {
      return Halves{{{piece.rows.begin, row}, piece.columns}, {{row, piece.rows.end}, piece.columns}};
    };
    std::int64_t low = piece.rows.begin, high = piece.rows.end;  // the even split is in [low, high]
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      const Halves halves = cut(middle);
      if (cost_of(p_, halves.first) * static_cast<double>(second) <
          cost_of(p_, halves.second) * static_cast<double>(first))
        low = middle + 1;
      else
        high = middle;
    }
    const IndexRange group = rows_around(low);
    const std::int64_t before = group.begin + (low - group.begin) / kRowStep * kRowStep;
    const std::array places{group.begin, group.end, before, std::min(before + kRowStep, group.end)};
    return best_of(piece, places, &Piece::rows, first, second, cut);
  }

  Halves between_columns(const Piece& piece, std::int64_t first, std::int64_t second) const {
    const auto cut = [&](std::int64_t column) {
      return Halves{{piece.rows, {piece.columns.begin, column}}, {piece.rows, {column, piece.columns.end}}};
    };
    if (piece.columns.count() <= step_) return {};
    const double share = static_cast<double>(first) / static_cast<double>(first + second);
    const auto wanted = static_cast<std::int64_t>(share * static_cast<double>(piece.columns.count()));
    const std::int64_t before = piece.columns.begin + wanted / step_ * step_;
    return best_of(piece, std::array{before, before + step_}, &Piece::columns, first, second, cut);
  }

  // The rows of the computed group that has this one; the row itself where none has it.
  IndexRange rows_around(std::int64_t row) const {
    if (!by_rows(p_)) {
      if (p_.k == 0) return {row, row};
      return {row / p_.k * p_.k, (row / p_.k + 1) * p_.k};
    }
    const std::int64_t group = p_.ranges.group_of(row);
    if (group < p_.first_group || group >= p_.first_group + p_.groups) return {row, row};
    return p_.ranges[group];
  }

  const Problem& p_;
  const std::int64_t step_;
  std::vector<Piece>& pieces_;
};

}  // namespace

Arithmetic arithmetic_of(const Problem& p) {
  const bool narrow = p.lhs.dtype == DType::bfloat16 && p.rhs.dtype == DType::bfloat16;
  return arithmetic_of(p.lhs.dtype, p.rhs.dtype, narrow ? kernels::active_for_bf16() : kernels::active());
}

Part whole_part(const Problem& p) { return {{0, p.groups}, {0, by_rows(p) ? p.m : p.k}, {0, p.n}}; }

Part part_of(const Problem& p, const ArrayBox& box) {
  const Shape& shape = p.out.shape;
  bool is_part = box.start.size() == shape.size() && box.count.size() == shape.size();
  for (std::size_t d = 0; is_part && d < shape.size(); ++d)
    is_part = box.start[d] >= 0 && box.count[d] >= 0 && box.start[d] <= shape[d] &&
              box.count[d] <= shape[d] - box.start[d];
  if (is_part) {
    const std::int64_t begin = box.start.back(), end = begin + box.count.back(), step = column_step(p);
    is_part = begin % step == 0 && (end % step == 0 || end == p.n);
  }
  if (!is_part)
    throw core::invalid("{} elements from {} on are no part of the result {}", to_string(box.count),
                        to_string(box.start), to_string(shape));
  const auto range = [&](std::size_t axis) {
    return IndexRange{box.start[axis], box.start[axis] + box.count[axis]};
  };
  if (by_rows(p)) return {{}, range(0), range(1)};
  return {range(0), range(1), range(2)};
}

ArrayBox box_of(const Problem& p, const Part& part) {
  ArrayBox box{{part.rows.begin, part.columns.begin}, {part.rows.count(), part.columns.count()}};
  if (!by_rows(p)) {
    box.start.insert(box.start.begin(), part.groups.begin);
    box.count.insert(box.count.begin(), part.groups.count());
  }
  return box;
}

IndexRange groups_of(const Problem& p, const Part& part) {
  if (!by_rows(p)) return part.groups;
  const IndexRange rows = covered_rows(p, part);
  if (rows.count() == 0 || part.columns.count() == 0) return {0, 0};
  return {p.ranges.begun(rows.begin) - p.first_group, p.ranges.begun(rows.end - 1) + 1 - p.first_group};
}

GroupedMatmulNeeds needs_of(const Problem& p, const Part& part) {
  const IndexRange groups = groups_of(p, part);
  if (by_rows(p)) {
    const IndexRange rows = covered_rows(p, part);
    ArrayBox rhs{{groups.begin, 0, part.columns.begin}, {groups.count(), p.k, part.columns.count()}};
    if (p.transpose_rhs) {
      std::swap(rhs.start[1], rhs.start[2]);
      std::swap(rhs.count[1], rhs.count[2]);
    }
    return {{{rows.begin, 0}, {rows.count(), p.k}}, rhs};
  }
  const IndexRange rows = p.around(groups);
  return {{{part.rows.begin, rows.begin}, {part.rows.count(), rows.count()}},
          {{rows.begin, part.columns.begin}, {rows.count(), part.columns.count()}}};
}

double flop_of(const Problem& p, const Part& part) {
  const auto columns = static_cast<double>(part.columns.count());
  if (by_rows(p))
    return 2.0 * static_cast<double>(p.rows_in(covered_rows(p, part))) * static_cast<double>(p.k) * columns;
  return 2.0 * static_cast<double>(p.rows_in(p.around(part.groups))) *
         static_cast<double>(part.rows.count()) * columns;
}

std::vector<std::vector<Part>> divide(const Problem& p, std::int64_t ranks) {
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(ranks));
  if (ranks == 1 || p.out.bytes() == 0) {
    parts.front().push_back(whole_part(p));
    return parts;
  }
  std::vector<Piece> pieces;
  const std::int64_t rows = by_rows(p) ? p.m : p.groups * p.k;
  Halving(p, pieces).divide({{0, rows}, {0, p.n}}, ranks);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].rows.count() == 0 || pieces[i].columns.count() == 0) continue;
    const Parts made = parts_of(p, pieces[i]);
    parts[i].assign(made.all().begin(), made.all().end());
  }
  return parts;
}

}  // namespace ejk::matmul
