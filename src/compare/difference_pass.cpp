// One pass over the differences of two arrays. Chunks are processed line by line and reduced in order; the
// sample of a chunk depends on the chunk alone.
// tests: tests/compare/test_explain.cpp
#include "compare/difference_pass.hpp"

#include <algorithm>
#include <cmath>

#include "arrays/boxes.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "core/progress.hpp"
#include "core/splitmix64.hpp"

namespace ejk::verify {

namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 18;
constexpr std::int64_t kMostBins = std::int64_t{1} << 20;  // of an axis
constexpr std::int64_t kMostSamples = std::int64_t{1} << 16;

// Samples of a chunk, so that all chunks together have enough and none has none.
std::int64_t samples_of_a_chunk(std::int64_t chunks) {
  return std::clamp<std::int64_t>(kMostSamples / chunks, 16, 8192);
}

// Reservoir sampling of a chunk's differences, at most `capacity` (Li, "Reservoir-sampling algorithms of time
// complexity O(n(1 + log(N/n)))", 1994).
class Reservoir {
 public:
  Reservoir(std::int64_t capacity, std::uint64_t seed) : capacity_(capacity), random_(seed << 32) {}

  /// The ordinal of the next sampled element, and its slot in the sample.
  std::int64_t next() const { return next_; }
  std::size_t take() {
    if (next_ < capacity_) {
      const auto slot = static_cast<std::size_t>(next_++);
      if (next_ == capacity_) skip();
      return slot;
    }
    const auto slot = static_cast<std::size_t>(random() % static_cast<std::uint64_t>(capacity_));
    skip();
    return slot;
  }

 private:
  std::uint64_t random() { return core::splitmix64(random_++); }
  double uniform() { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; }
  void skip() {
    weight_ *= std::exp(std::log(uniform()) / static_cast<double>(capacity_));
    const double passed = std::floor(std::log(uniform()) / std::log1p(-weight_));
    next_ += 1 + static_cast<std::int64_t>(std::min(passed, 1e15));
    if (next_ < capacity_) next_ = capacity_;
  }

  std::int64_t capacity_, next_ = 0;
  double weight_ = 1;
  std::uint64_t random_;
};

std::int64_t count_of(const std::uint8_t* flags, std::int64_t n) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += flags[i];
  return count;
}

struct Counter : PassResult {
  explicit Counter(const PassPlan& plan) {
    const Shape& shape = plan.actual.shape();
    left_at = PositionCounts(shape, plan.grid);
    zeros_at = PositionCounts(shape);
    verdicts.resize(plan.hypotheses.size());
    if (!verdicts.empty()) verdicts.back().explained_at = verdicts.back().failed_at = zeros_at;
  }

  Scratch scratch;
  ElementComparer::Workspace workspace;
  std::vector<std::byte> raw_actual, raw_expected;  // of a chunk
  std::vector<std::uint8_t> differs;                // of a chunk
  std::vector<std::uint8_t> block_differs;          // of blocks of it: whether any of them does
  std::vector<double> actual, expected;             // of a line
  std::vector<std::uint8_t> in_scope, holds;        // of a line
};

class Pass {
 public:
  explicit Pass(const PassPlan& plan) : plan_(plan), shape_(plan.actual.shape()), last_(shape_.size() - 1) {}

  void count_chunk(Counter& c, const Shape& start, const Shape& count, std::uint64_t seed,
                   std::int64_t capacity, std::vector<Sample>& samples) const {
    const std::int64_t n = count[last_], elements = element_count(count), left_before = c.left;
    const auto size = static_cast<std::size_t>(n);
    c.differs.resize(static_cast<std::size_t>(elements));
    c.block_differs.resize(static_cast<std::size_t>(core::ceil_div(elements, ElementComparer::kBlock)));
    c.actual.resize(size);
    c.expected.resize(size);
    c.in_scope.resize(size);
    c.holds.resize(size);
    const std::byte* a = plan_.actual.bytes(start, count, c.raw_actual);
    const std::byte* e = plan_.expected.bytes(start, count, c.raw_expected);
    const DType a_type = plan_.actual.source().dtype(), e_type = plan_.expected.source().dtype();
    Reservoir reservoir(capacity, seed);
    Shape at = start;
    const std::int64_t first = flat_index(shape_, start);  // element of the chunk, of all
    const std::uint8_t* known = plan_.differing ? plan_.differing + first : nullptr;
    std::int64_t compared = 0;  // elements
    for (std::int64_t line = 0; line < elements; line += n) {
      // Block after block, while it is in the nearest cache.
      for (; compared < line + n; compared = std::min(elements, compared + ElementComparer::kBlock))
        c.block_differs[static_cast<std::size_t>(compared / ElementComparer::kBlock)] =
            (known ? copy_flags(known + compared, std::min(ElementComparer::kBlock, elements - compared),
                                c.differs.data() + compared)
                   : plan_.comparer.mark(a + compared * size_of(a_type), e + compared * size_of(e_type),
                                         std::min(ElementComparer::kBlock, elements - compared), c.workspace,
                                         c.differs.data() + compared)) > 0;
      const auto blocks = c.block_differs.begin();
      const bool may_differ = std::any_of(blocks + line / ElementComparer::kBlock,
                                          blocks + core::ceil_div(line + n, ElementComparer::kBlock),
                                          [](std::uint8_t differs) { return differs != 0; });
      std::uint8_t* differs = c.differs.data() + line;
      const std::int64_t left = may_differ ? count_of(differs, n) : 0;
      if (left > 0 || !plan_.hypotheses.empty()) {
        as_doubles(a_type, a + line * size_of(a_type), n, c.actual);
        as_doubles(e_type, e + line * size_of(e_type), n, c.expected);
        count_line(c, at, n, differs, left, left_before, first + line, reservoir, samples);
      }
      next_line(at, start, count);
    }
  }

 private:
  static std::int64_t copy_flags(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
    std::copy_n(from, n, to);
    return count_of(to, n);
  }
  static void as_doubles(DType dtype, const std::byte* from, std::int64_t n, std::vector<double>& to) {
    arrays::convert_elements(dtype, from, DType::float64, reinterpret_cast<std::byte*>(to.data()), n);
  }

  // `left` of n elements differ; the line begins with element `first` of all.
  void count_line(Counter& c, const Shape& at, std::int64_t n, std::uint8_t* differs, std::int64_t left,
                  std::int64_t left_before, std::int64_t first, Reservoir& reservoir,
                  std::vector<Sample>& samples) const {
    const double *a = c.actual.data(), *e = c.expected.data();
    c.differing += left;
    for (std::size_t h = 0; h < plan_.hypotheses.size(); ++h) {
      std::fill_n(c.in_scope.begin(), n, std::uint8_t{0});
      const Hypothesis& hypothesis = *plan_.hypotheses[h];
      const ComparedLine line{at, n, a, e, c.in_scope.data(), c.holds.data()};
      if (!hypothesis.evaluate(hypothesis.scope, line, c.scratch)) continue;
      Verdict& verdict = c.verdicts[h];
      // Flags of what it explains, of what it fails at, and of differences that are left.
      std::uint8_t* __restrict explains = c.holds.data();
      std::uint8_t* __restrict fails = c.in_scope.data();
      std::uint8_t* __restrict open = differs;
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint8_t holds = explains[i] & fails[i], was = open[i];
        explains[i] = was & holds;
        fails[i] = fails[i] & (holds ^ 1);
        open[i] = was & (holds ^ 1);
      }
      const std::int64_t explained = count_of(c.holds.data(), n), failed = count_of(c.in_scope.data(), n);
      std::int64_t unexplained = 0;
      if (failed > 0)
        for (std::int64_t i = 0; i < n; ++i)
          unexplained += c.in_scope[static_cast<std::size_t>(i)] & differs[i];
      const std::int64_t contradicted = failed - unexplained;
      verdict.explained += explained;
      verdict.unexplained += unexplained;
      verdict.contradicted += contradicted;
      const bool is_last = h + 1 == plan_.hypotheses.size();
      if (is_last && explained > 0) verdict.explained_at.add_line(at, n, c.holds.data(), explained);
      if (is_last && failed > 0) verdict.failed_at.add_line(at, n, c.in_scope.data(), failed);
      left -= explained;
    }
    if (plan_.left) std::copy_n(differs, n, plan_.left + first);
    if (left == 0) return;
    c.left_at.add_line(at, n, differs, left);
    sample_line(c, at, n, differs, left, c.left - left_before, reservoir, samples);
    c.left += left;
    std::uint8_t* __restrict flags = differs;
    const double* __restrict values = a;
    for (std::int64_t i = 0; i < n; ++i) flags[i] = flags[i] & static_cast<std::uint8_t>(values[i] == 0);
    const std::int64_t zeros = count_of(differs, n);
    if (zeros > 0) c.zeros_at.add_line(at, n, differs, zeros);
  }

  // Samples `left` differences of a line, after `before` of the chunk.
  void sample_line(const Counter& c, const Shape& at, std::int64_t n, const std::uint8_t* differs,
                   std::int64_t left, std::int64_t before, Reservoir& reservoir,
                   std::vector<Sample>& samples) const {
    std::int64_t ordinal = before;
    for (std::int64_t i = 0; i < n && reservoir.next() < before + left; ++i) {
      if (differs[i] == 0 || ordinal++ != reservoir.next()) continue;
      const auto index = static_cast<std::size_t>(i);
      Sample sample{at, c.actual[index], c.expected[index]};
      sample.at[last_] += i;
      const std::size_t slot = reservoir.take();
      if (slot == samples.size())
        samples.push_back(std::move(sample));
      else
        samples[slot] = std::move(sample);
    }
  }

  const PassPlan& plan_;
  const Shape& shape_;
  std::size_t last_;
};

std::int64_t bin_of(std::int64_t axis_length) {
  return std::max<std::int64_t>(1, core::ceil_div(axis_length, kMostBins));
}

}  // namespace

IndexCounts::IndexCounts(std::int64_t axis_length)
    : length(axis_length), bin(bin_of(axis_length)), counts(static_cast<std::size_t>(bins_of(axis_length))) {}

std::int64_t IndexCounts::bins_of(std::int64_t axis_length) {
  return core::ceil_div(axis_length, bin_of(axis_length));
}

void IndexCounts::join(const IndexCounts& other) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
}

std::vector<IndexRange> IndexCounts::ranges(
    const std::function<bool(std::int64_t, std::int64_t)>& wanted) const {
  std::vector<IndexRange> ranges;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto begin = static_cast<std::int64_t>(i) * bin, end = std::min(length, begin + bin);
    if (!wanted(counts[i], end - begin)) continue;
    if (!ranges.empty() && ranges.back().end == begin)
      ranges.back().end = end;
    else
      ranges.push_back({begin, end});
  }
  return ranges;
}

PositionCounts::PositionCounts(const Shape& shape, const TileGrid& tile_grid)
    : axes(shape.begin(), shape.end()),
      grid(tile_grid),
      tiles(static_cast<std::size_t>(grid.rows * grid.columns)) {}

void PositionCounts::add_line(const Shape& at, std::int64_t n, const std::uint8_t* flags, std::int64_t sum) {
  const std::size_t last = axes.size() - 1;
  for (std::size_t d = 0; d < last; ++d) axes[d].add(at[d], sum);
  IndexCounts& along = axes[last];
  if (along.bin == 1) {
    std::int64_t* __restrict to = along.counts.data() + at[last];
    const std::uint8_t* __restrict from = flags;
    for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i)
      if (flags[i] != 0) along.add(at[last] + i, 1);
  }
  if (grid.rows == 0) return;
  std::int64_t tile = 0, size = n + at[last], step = 0;
  const auto add_axis = [&](std::size_t axis, std::int64_t length, std::int64_t tiles_of_index) {
    if (axis == last)
      size = length, step = tiles_of_index;
    else
      tile += at[axis] / length * tiles_of_index;
  };
  add_axis(grid.row_axis, grid.tile_rows, grid.columns);
  add_axis(grid.column_axis, grid.tile_columns, 1);
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t column = (at[last] + i) / size, end = std::min(n, (column + 1) * size - at[last]);
    std::int64_t in_tile = 0;
    for (; i < end; ++i) in_tile += flags[i];
    tiles[static_cast<std::size_t>(tile + column * step)] += in_tile;
  }
}

void PositionCounts::join(const PositionCounts& other) {
  for (std::size_t d = 0; d < axes.size(); ++d) axes[d].join(other.axes[d]);
  for (std::size_t t = 0; t < tiles.size(); ++t) tiles[t] += other.tiles[t];
}

void Verdict::join(const Verdict& other) {
  explained += other.explained;
  unexplained += other.unexplained;
  contradicted += other.contradicted;
  explained_at.join(other.explained_at);
  failed_at.join(other.failed_at);
}

PassResult run_pass(const PassPlan& plan, const core::Progress::Report& report) {
  const Shape& shape = plan.actual.shape();
  const arrays::Boxes boxes(shape, kChunkElements);
  const arrays::BoxReader a(plan.actual.source()), e(plan.expected.source());
  const Pass pass(plan);
  const std::int64_t capacity = samples_of_a_chunk(boxes.size());
  std::vector<std::vector<Sample>> samples(static_cast<std::size_t>(boxes.size()));
  std::vector<std::uint8_t> has_left(static_cast<std::size_t>(boxes.size()));

  Counter sum(plan);
  core::Progress progress(report, element_count(shape));
  core::parallel_reduce(
      boxes.size(), std::min(a.threads(boxes, 2), e.threads(boxes, 2)), [&] { return Counter(plan); },
      [&](Counter& c, std::int64_t box) {
        const auto b = static_cast<std::size_t>(box);
        if (plan.chunks.empty() || plan.chunks[b]) {
          const std::int64_t left = c.left;
          pass.count_chunk(c, boxes.starts[b], boxes.counts[b], static_cast<std::uint64_t>(box), capacity,
                           samples[b]);
          has_left[b] = c.left > left;
          a.release(boxes, box);
          e.release(boxes, box);
        }
        progress.add(boxes.elements(box));
      },
      [&](const Counter& c) {
        sum.differing += c.differing;
        sum.left += c.left;
        sum.left_at.join(c.left_at);
        sum.zeros_at.join(c.zeros_at);
        for (std::size_t h = 0; h < sum.verdicts.size(); ++h) sum.verdicts[h].join(c.verdicts[h]);
      });
  PassResult result = std::move(sum);
  for (std::vector<Sample>& part : samples) {
    std::sort(part.begin(), part.end(), [](const Sample& x, const Sample& y) { return x.at < y.at; });
    std::move(part.begin(), part.end(), std::back_inserter(result.samples));
  }
  result.chunks.assign(has_left.begin(), has_left.end());
  return result;
}

std::vector<bool> chunks_in(const Scope& scope, const Shape& shape) {
  const arrays::Boxes boxes(shape, kChunkElements);
  std::vector<bool> chunks;
  for (std::size_t b = 0; b < boxes.starts.size(); ++b) {
    bool in = true;
    for (std::size_t d = 0; d < shape.size() && in; ++d)
      in = scope.meets(d, boxes.starts[b][d], boxes.starts[b][d] + boxes.counts[b][d]);
    chunks.push_back(in);
  }
  return chunks;
}

std::int64_t pass_bytes(const Side& actual, const Side& expected) {
  const Shape& shape = actual.shape();
  std::int64_t bins = 0;
  for (const std::int64_t length : shape) bins += IndexCounts::bins_of(length);
  const std::int64_t elements = std::min(element_count(shape), kChunkElements);
  const std::int64_t line = std::min(shape.back(), elements);
  const std::int64_t chunks = arrays::Boxes(shape, kChunkElements).size();
  const std::int64_t counts = bins * 8 * 4;  // of differences and zeros, and of the last hypothesis
  std::int64_t per_thread = counts + elements + line * 2 * 8 + line * (2 + 4 * 8);
  for (const Side* side : {&actual, &expected})
    if (!side->is_in_memory()) per_thread += elements * size_of(side->source().dtype());
  const auto sample = static_cast<std::int64_t>(sizeof(Sample) + shape.size() * 8 + 16);
  return std::min<std::int64_t>(threads(), chunks) * per_thread + counts +
         samples_of_a_chunk(chunks) * chunks * sample + chunks * (arrays::bytes_of_a_box(shape.size()) + 32);
}

}  // namespace ejk::verify
