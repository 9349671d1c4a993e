// Padded batches as packed tokens, and back. Tokens are contiguous ranges of the flattened batch within rows;
// a range is copied at once, on read.
// tests: tests/sequence/test_pack.cpp
#include "ejk/pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/number.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "sequence/mask_rows.hpp"

namespace ejk {

namespace {

using core::invalid;

// `length` tokens that are contiguous in the flattened batch and in the packed array.
struct Run {
  std::int64_t flat, packed, length;
};

struct Layout {
  std::int64_t batch = 0, seq = 0, tokens = 0;
  std::vector<Run> runs;  // by their place in the batch
};

// The tokens of each row of a mask as runs within it; `flat` is the place in the row, `packed` still 0.
std::vector<std::vector<Run>> runs_of_rows(const ArraySource& mask) {
  sequence::check_row_mask(mask);
  std::vector<std::vector<Run>> rows(static_cast<std::size_t>(mask.shape()[0]));
  sequence::scan_rows(
      mask, MaskIntegers::one_value,
      [&](std::int64_t row, std::int64_t column, const std::uint64_t* bits, std::int64_t width) {
        std::vector<Run>& runs = rows[static_cast<std::size_t>(row)];
        for (std::int64_t c = 0; c < width;) {
          const std::uint64_t left = bits[c / 64] >> (c % 64);
          const std::int64_t in_word = std::min<std::int64_t>(64 - c % 64, width - c);
          if ((left & 1u) == 0) {
            c += std::min<std::int64_t>(in_word, std::countr_zero(left));
            continue;
          }
          const std::int64_t n = std::min<std::int64_t>(in_word, std::countr_one(left));
          if (!runs.empty() && runs.back().flat + runs.back().length == column + c)
            runs.back().length += n;
          else
            runs.push_back({column + c, 0, n});
          c += n;
        }
      });
  return rows;
}

Layout layout_of_rows(const std::vector<std::vector<Run>>& rows, std::int64_t seq) {
  Layout layout{static_cast<std::int64_t>(rows.size()), seq, 0, {}};
  for (std::size_t b = 0; b < rows.size(); ++b)
    for (const Run& run : rows[b]) {
      layout.runs.push_back({static_cast<std::int64_t>(b) * seq + run.flat, layout.tokens, run.length});
      layout.tokens += run.length;
    }
  return layout;
}

Layout layout_of_indices(const ArraySource& source, const std::vector<std::int64_t>& indices,
                         std::int64_t batch, std::int64_t seq) {
  const std::int64_t places = element_count(Shape{batch, seq});
  Layout layout{batch, seq, static_cast<std::int64_t>(indices.size()), {}};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= places)
      throw invalid("{}: indices[{}] is {}, outside of the {} x {} places", source.name(), i, indices[i],
                    batch, seq);
    const bool goes_on = i > 0 && indices[i] == indices[i - 1] + 1 && indices[i] % seq != 0;
    if (goes_on)
      ++layout.runs.back().length;
    else
      layout.runs.push_back({indices[i], static_cast<std::int64_t>(i), 1});
  }
  std::sort(layout.runs.begin(), layout.runs.end(), [](const Run& a, const Run& b) {
    return a.flat != b.flat ? a.flat < b.flat : a.packed < b.packed;
  });
  for (std::size_t r = 1; r < layout.runs.size(); ++r) {
    const Run &a = layout.runs[r - 1], &b = layout.runs[r];
    if (a.flat + a.length <= b.flat) continue;
    const std::int64_t first = a.packed + b.flat - a.flat;
    throw invalid("{}: indices[{}] and indices[{}] are both {}", source.name(), std::min(first, b.packed),
                  std::max(first, b.packed), b.flat);
  }
  return layout;
}

// Sequence i of cu_seqlens at the begin of row i.
Layout layout_of_sequences(const ArraySource& source, const std::vector<std::int64_t>& cu, std::int64_t seq) {
  Layout layout{std::ssize(cu) - 1, seq, cu.back(), {}};
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    const std::int64_t begin = cu[static_cast<std::size_t>(i)], end = cu[static_cast<std::size_t>(i) + 1];
    if (end - begin > seq)
      throw invalid("{}: sequence {} has {} tokens, a row {}", source.name(), i, end - begin, seq);
    if (begin < end) layout.runs.push_back({i * seq, begin, end - begin});
  }
  return layout;
}

bool are_offsets(const std::vector<std::int64_t>& values, std::int64_t tokens) {
  return !values.empty() && values.front() == 0 && values.back() == tokens &&
         std::is_sorted(values.begin(), values.end());
}

// Indices are as many as tokens, cu_seqlens one more than rows. Where both are equal in number, the elements
// decide.
Layout layout_of_numbers(const ArraySource& where, std::int64_t batch, std::int64_t seq,
                         const ArraySource& packed) {
  if (batch < 0 || seq < 0) throw invalid("{} x {} is no shape of a batch", batch, seq);
  const std::int64_t places = element_count(Shape{batch, seq});
  const std::int64_t tokens = packed.shape()[0], rows_and_one = batch < INT64_MAX ? batch + 1 : batch;
  const std::int64_t count = where.shape().size() == 1 ? where.shape()[0] : -1;
  if (count == rows_and_one && count != tokens)
    return layout_of_sequences(where, core::read_offsets(where), seq);
  const std::vector<std::int64_t> values = core::read_integers(where, "indices");
  const bool offsets = are_offsets(values, tokens);
  if (count != tokens) {
    Error error = invalid(
        "{} has {} elements; indices of the tokens of {} are {}, cu_seqlens of {} "
        "rows {}",
        where.name(), count, packed.name(), tokens, batch, rows_and_one);
    if (offsets) error.hint(fmt::format("it is the cu_seqlens of {} rows", count - 1));
    throw error;
  }
  const bool both = offsets && count == rows_and_one;
  const bool are_indices =
      !both || (values.back() < places && std::adjacent_find(values.begin(), values.end()) == values.end());
  // Libraries have indices as int64 and cu_seqlens as int32.
  if (both && are_indices && where.dtype() != DType::int64)
    throw invalid("{}: its {} numbers can be indices of as many tokens and cu_seqlens of {} rows",
                  where.name(), count, batch)
        .hint("as int64 they are indices");
  return are_indices ? layout_of_indices(where, values, batch, seq) : layout_of_sequences(where, values, seq);
}

// Elements that belong to one token, of a box that takes `count` of an array's trailing axes.
std::int64_t inner_count(std::span<const std::int64_t> count, std::size_t axes) {
  std::int64_t n = 1;
  for (std::size_t d = axes; d < count.size(); ++d) n *= count[d];
  return n;
}

// The shape of an array whose tokens have the axes of x from `axis` on.
Shape shape_of_tokens(Shape leading, const ArraySource& x, std::ptrdiff_t axis) {
  leading.insert(leading.end(), x.shape().begin() + axis, x.shape().end());
  return leading;
}

// The run that a packed token belongs to. (Runs of a mask are in the packed order too.)
std::vector<Run>::const_iterator run_of(std::int64_t token, const std::vector<Run>& runs) {
  return std::prev(std::upper_bound(runs.begin(), runs.end(), token,
                                    [](std::int64_t t, const Run& r) { return t < r.packed; }));
}

// How x has its tokens: (batch, seq, ...), or (tokens, ...), which is a batch of one row.
enum class Axes { batch, tokens };

class PackedSource final : public ForwardingSource {
 public:
  PackedSource(const std::shared_ptr<const ArraySource>& x, std::shared_ptr<const Layout> layout, Axes axes)
      : ForwardingSource(x, {x->dtype(), shape_of_tokens({layout->tokens}, *x, axes == Axes::batch ? 2 : 1)},
                         ArrayAccess(x->access().order)),
        layout_(std::move(layout)),
        axes_(axes) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    const std::int64_t token_bytes = inner_count(count, 1) * size_of(dtype());
    const std::size_t place = axes_ == Axes::batch ? 1 : 0;  // of a token's axis
    Shape from(place + 1, 0), extent(place + 1, 1);
    from.insert(from.end(), start.begin() + 1, start.end());
    extent.insert(extent.end(), count.begin() + 1, count.end());
    auto run = run_of(start[0], layout_->runs);
    auto* to = static_cast<std::byte*>(out);
    for (std::int64_t token = start[0], end = start[0] + count[0]; token < end; ++run) {
      const std::int64_t flat = run->flat + token - run->packed;
      if (axes_ == Axes::batch) from[0] = flat / layout_->seq;
      from[place] = flat % layout_->seq;
      extent[place] = std::min(run->packed + run->length, end) - token;
      inner().read(from, extent, to);
      to += extent[place] * token_bytes;
      token += extent[place];
    }
  }

 private:
  std::shared_ptr<const Layout> layout_;
  Axes axes_;
};

// Where each packed token is in the flattened batch.
std::shared_ptr<const ArraySource> indices_of(std::shared_ptr<const Layout> layout) {
  const ArrayType type(DType::int64, {layout->tokens});
  const auto fill = [layout = std::move(layout)](std::span<const std::int64_t> start,
                                                 std::span<const std::int64_t> count, void* out) {
    if (count[0] == 0) return;
    auto run = run_of(start[0], layout->runs);
    auto* to = static_cast<std::int64_t*>(out);
    for (std::int64_t token = start[0], end = start[0] + count[0]; token < end; ++run)
      for (; token < std::min(end, run->packed + run->length); ++token)
        *to++ = run->flat + token - run->packed;
  };
  return generated_source(type, "indices", fill);
}

class UnpackedSource final : public ForwardingSource {
 public:
  UnpackedSource(const std::shared_ptr<const ArraySource>& packed, Layout layout, Array fill, Axes axes)
      : ForwardingSource(
            packed,
            {packed->dtype(),
             shape_of_tokens(axes == Axes::batch ? Shape{layout.batch, layout.seq} : Shape{layout.seq},
                             *packed, 1)},
            ArrayAccess(packed->access().order)),
        layout_(std::move(layout)),
        fill_(std::move(fill)),
        axes_(axes) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t elements = element_count(count);
    if (elements == 0) return;
    auto* to = static_cast<std::byte*>(out);
    core::repeat_element({fill_.data(), static_cast<std::size_t>(fill_.bytes())}, elements, to);
    const bool batch = axes_ == Axes::batch;
    const std::size_t place = batch ? 1 : 0;  // of a token's axis
    const std::int64_t token_bytes = inner_count(count, place + 1) * size_of(dtype());
    Shape from(start.begin() + static_cast<std::ptrdiff_t>(place), start.end()),
        extent(count.begin() + static_cast<std::ptrdiff_t>(place), count.end());
    for (std::int64_t b = 0; b < (batch ? count[0] : 1); ++b, to += count[place] * token_bytes) {
      const std::int64_t begin = (batch ? (start[0] + b) * layout_.seq : 0) + start[place],
                         end = begin + count[place];
      // The first run that reaches beyond `begin`.
      auto run = std::partition_point(layout_.runs.begin(), layout_.runs.end(),
                                      [&](const Run& r) { return r.flat + r.length <= begin; });
      for (; run != layout_.runs.end() && run->flat < end; ++run) {
        const std::int64_t first = std::max(run->flat, begin);
        from[0] = run->packed + first - run->flat;
        extent[0] = std::min(run->flat + run->length, end) - first;
        inner().read(from, extent, to + (first - begin) * token_bytes);
      }
    }
  }

 private:
  Layout layout_;
  Array fill_;
  Axes axes_;
};

// Sequences with padding behind each, along one axis of tokens.
Layout layout_of_padded(const core::PaddedSequences& sequences, std::int64_t tokens) {
  Layout layout{1, tokens, 0, {}};
  for (std::size_t i = 0; i < sequences.lengths.size(); ++i) {
    const std::int64_t length = sequences.lengths[i];
    if (length > 0) layout.runs.push_back({sequences.begins[i], layout.tokens, length});
    layout.tokens += length;
  }
  return layout;
}

void require_places(const IntegerArray& padded, const core::PaddedSequences& sequences, std::int64_t tokens,
                    const std::string& of) {
  if (sequences.begins.back() > tokens)
    throw invalid("{}: padded cu_seqlens ends at {} (index {}), and {} has {} tokens", padded->name(),
                  sequences.begins.back(), sequences.begins.size() - 1, of, tokens);
}

Packed packed_by(const std::shared_ptr<const ArraySource>& x, Layout runs,
                 const std::vector<std::int64_t>& lengths, Axes axes) {
  Packed result;
  std::vector<std::int64_t> cu{0};
  for (const std::int64_t length : lengths) {
    cu.push_back(cu.back() + length);
    result.max_seqlen = std::max(result.max_seqlen, length);
  }
  result.cu_seqlens = core::to_array(cu, DType::int32, "cu_seqlens");
  const auto layout = std::make_shared<const Layout>(std::move(runs));
  result.packed = std::make_shared<PackedSource>(x, layout, axes);
  result.indices = indices_of(layout);
  return result;
}

void require_axis_of_tokens(const std::shared_ptr<const ArraySource>& packed) {
  if (core::required(packed).shape().empty())
    throw invalid("{}: a packed array is (tokens, ...), not a scalar", packed->name());
}

// `where`: the name of the array that the layout is of.
std::shared_ptr<const ArraySource> unpacked_by(const std::shared_ptr<const ArraySource>& packed,
                                               Layout layout, const std::string& where, Number fill,
                                               Axes axes) {
  const Shape& shape = packed->shape();
  if (layout.tokens != shape[0]) {
    Error error = invalid("{} has {} tokens, {} places {}", packed->name(), shape[0], where, layout.tokens);
    if (axes == Axes::batch && shape.size() >= 2 && shape[0] == layout.batch && shape[1] == layout.seq)
      error.hint(fmt::format("it has the shape of the batch: only packed tokens ({}, ...) have places",
                             layout.tokens));
    throw error;
  }
  return std::make_shared<UnpackedSource>(packed, std::move(layout), core::element_of(packed->dtype(), fill),
                                          axes);
}

}  // namespace

Packed pack(const std::shared_ptr<const ArraySource>& x, const ArraySource& mask) {
  if (core::required(x).shape().size() < 2)
    throw invalid("{}: a padded array is (batch, seq, ...), not of shape {}", x->name(),
                  to_string(x->shape()));
  sequence::check_row_mask(mask);
  if (x->shape()[0] != mask.shape()[0] || x->shape()[1] != mask.shape()[1])
    throw invalid("{}: a mask of shape {} does not fit {} of shape {}", mask.name(), to_string(mask.shape()),
                  x->name(), to_string(x->shape()));
  const auto rows = runs_of_rows(mask);
  std::vector<std::int64_t> lengths(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (const Run& run : rows[r]) lengths[r] += run.length;
  Packed result = packed_by(x, layout_of_rows(rows, mask.shape()[1]), lengths, Axes::batch);
  for (const auto& row : rows) {
    result.left_padded += !row.empty() && row.front().flat > 0;
    result.with_holes += row.size() > 1;
  }
  return result;
}

std::shared_ptr<const ArraySource> unpack(const std::shared_ptr<const ArraySource>& packed,
                                          const ArraySource& where, std::optional<std::int64_t> batch,
                                          std::optional<std::int64_t> seq, Number fill) {
  require_axis_of_tokens(packed);
  Layout layout;
  if (where.shape().size() == 2) {
    layout = layout_of_rows(runs_of_rows(where), where.shape()[1]);
    if (batch.value_or(layout.batch) != layout.batch || seq.value_or(layout.seq) != layout.seq)
      throw invalid("{}: a mask of shape {} is not of {} x {}", where.name(), to_string(where.shape()),
                    batch.value_or(layout.batch), seq.value_or(layout.seq));
  } else {
    if (!batch || !seq) throw invalid(where.name() + ": it alone does not say how long rows are");
    layout = layout_of_numbers(where, *batch, *seq, *packed);
  }
  return unpacked_by(packed, std::move(layout), where.name(), fill, Axes::batch);
}

Packed pack_sequences(const std::shared_ptr<const ArraySource>& x, const IntegerArray& cu_seqlens,
                      const IntegerArray& padded) {
  if (core::required(x).shape().empty())
    throw invalid("{}: padded tokens are (tokens, ...), not a scalar", x->name());
  const core::PaddedSequences sequences =
      core::read_padded_sequences(cu_seqlens, padded, core::FirstOffset::any);
  require_places(padded, sequences, x->shape()[0], x->name());
  return packed_by(x, layout_of_padded(sequences, x->shape()[0]), sequences.lengths, Axes::tokens);
}

std::shared_ptr<const ArraySource> unpack_sequences(const std::shared_ptr<const ArraySource>& packed,
                                                    const IntegerArray& cu_seqlens,
                                                    const IntegerArray& padded,
                                                    std::optional<std::int64_t> tokens, Number fill) {
  require_axis_of_tokens(packed);
  const core::PaddedSequences sequences =
      core::read_padded_sequences(cu_seqlens, padded, core::FirstOffset::any);
  const std::int64_t all = tokens.value_or(sequences.begins.back());
  require_places(padded, sequences, all, "the result");
  return unpacked_by(packed, layout_of_padded(sequences, all), cu_seqlens->name(), fill, Axes::tokens);
}

// Of a mask a run and its sums for each row; of indices their order and the places where they are, of
// cu_seqlens less.
std::int64_t pack_bytes(const ArrayType& where) {
  if (where.shape.empty()) return 0;
  return core::bytes_of_estimate((where.rank() == 1 ? 40 : 96) * static_cast<double>(where.shape[0]));
}

}  // namespace ejk
