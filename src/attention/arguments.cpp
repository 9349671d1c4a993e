// Validation of attention's arguments: first ranks, dtypes and lengths, then cu_seqlens, then whether the two
// agree. The forward pass, the backward pass and the comparison with the reference rely on it. Cost:
// cu_seqlens is read whole.
// tests: tests/attention/test_attention.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/operands.hpp"
#include "attention/plan.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

using core::invalid;

}  // namespace

std::string_view name_of(AttentionLayout layout) {
  return layout == AttentionLayout::bshd ? "bshd" : layout == AttentionLayout::bhsd ? "bhsd" : "thd";
}

namespace attn {

namespace {

using Layout = AttentionLayout;

// Fine enough to skip most of what a mask empties, and no smaller than the passes' blocks of keys.
constexpr BlockShape kBlock{128, 256};

const char* axes_of(Layout layout) {
  return layout == Layout::bshd   ? "(batch, sequence, heads, size)"
         : layout == Layout::bhsd ? "(batch, heads, sequence, size)"
                                  : "(tokens, heads, size)";
}

// A type as an array without elements.
ArrayView planned(const ArrayType& type) { return {nullptr, type.dtype, type.shape, type.strides}; }

void require_float(DType dtype, const char* name) {
  if (is_wide_float(dtype)) return;
  throw invalid(fmt::format("{} must be float16, bfloat16, float32 or float64, not {}", name, name_of(dtype)))
      .about(name);
}

ArrayView checked_array(const std::optional<ArrayType>& type, const char* name, Layout layout) {
  if (!type) throw invalid(fmt::format("{} is not given", name)).about(name);
  const ArrayType& array = *type;
  const std::int64_t rank = layout == Layout::thd ? 3 : 4;
  if (array.rank() != rank) {
    Error error = invalid(fmt::format("{} is {} in the layout {}, not of shape {}", name, axes_of(layout),
                                      name_of(layout), to_string(array.shape)));
    if (array.rank() == 3 && rank == 4)
      error.hint("packed tokens are of the layout thd and come with cu_seqlens");
    if (array.rank() == 4 && rank == 3)
      error.hint(
          "of one query for each request, (batch, 1, heads, size), take 'REF[:,0]', of several q.reshape(-1, heads, "
          "size) and cu_seqlens; a padded batch without tables or cu_seqlens is of the layout bshd or bhsd");
    throw std::move(error.about(name));
  }
  require_float(array.dtype, name);
  return in_one_form(planned(array), layout);
}

void check_range(double value, const char* name, DType arithmetic) {
  if (arithmetic == DType::float64 || value == 0) return;
  const double size = std::abs(value);
  if (size >= std::numeric_limits<float>::min() && size <= std::numeric_limits<float>::max()) return;
  throw invalid(
      fmt::format("{} {} is beyond the normal numbers of float32, in which this is computed", name, value))
      .hint("float64 inputs are computed in float64");
}

constexpr std::size_t kBatch = 0, kHeads = 1, kPositions = 2, kElements = 3;

void check_equal(const ArrayView& a, const char* a_name, const ArrayView& b, const char* b_name,
                 std::size_t axis, const char* what) {
  if (a.shape[axis] != b.shape[axis])
    throw invalid(fmt::format("{} has {} {}, {} has {}", b_name, b.shape[axis], what, a_name, a.shape[axis]))
        .about(b_name);
}

// Where the packed sequences of `tokens` tokens of array `name` begin, the tokens at last; and with `padded`
// their lengths.
void read_sequences(const ArraySource& cu_seqlens, const ArraySource* padded, std::int64_t tokens,
                    const char* name, std::vector<std::int64_t>& offsets,
                    std::vector<std::int64_t>& lengths) {
  const auto ends_at = [&](const ArraySource& source, const char* what) {
    return fmt::format("{}: {} ends at {} (index {}), and {} has {} tokens", source.name(), what,
                       offsets.back(), offsets.size() - 1, name, tokens);
  };
  if (padded == nullptr) {
    offsets = core::read_offsets(cu_seqlens);
    if (offsets.back() != tokens)
      throw Error(Error::Kind::input, ends_at(cu_seqlens, "cu_seqlens"),
                  offsets.back() < tokens ? Error::Code::tokens_left : Error::Code::other);
    return;
  }
  core::PaddedSequences sequences = core::read_padded_sequences(cu_seqlens, *padded, core::FirstOffset::any);
  offsets = std::move(sequences.begins);
  lengths = std::move(sequences.lengths);
  if (offsets.back() > tokens) throw invalid(ends_at(*padded, "padded cu_seqlens"));
  if (lengths.empty() && tokens > 0) throw invalid(ends_at(*padded, "padded cu_seqlens"));
  offsets.back() = tokens;  // what follows the last one is padding, too
}

void read_sequences(CheckedArguments& setup, const AttentionSettings& options) {
  const bool any_padded = options.cu_seqlens_q_padded || options.cu_seqlens_kv_padded;
  if (!setup.packed()) {
    if (options.cu_seqlens_q || options.cu_seqlens_kv || any_padded)
      throw invalid(
          fmt::format("cu_seqlens are for packed tokens, and the layout is {}", name_of(setup.layout)))
          .hint("the layout thd takes (tokens, heads, size)");
    return;
  }
  if (!options.cu_seqlens_q)
    throw invalid("packed tokens need cu_seqlens, which say where each sequence ends")
        .hint("one sequence is cu_seqlens [0, tokens]");
  if (options.cu_seqlens_kv_padded && !options.cu_seqlens_q_padded)
    throw invalid("padded cu_seqlens of keys come with those of queries, which are not given");
  const auto first_of = [](const IntegerArray& a, const IntegerArray& b) {
    return a ? &*a : b ? &*b : nullptr;
  };
  read_sequences(*options.cu_seqlens_q, first_of(options.cu_seqlens_q_padded, options.cu_seqlens_q_padded),
                 setup.q.shape[kPositions], "q", setup.q_offsets, setup.q_lengths);
  read_sequences(*first_of(options.cu_seqlens_kv, options.cu_seqlens_q),
                 first_of(options.cu_seqlens_kv_padded, options.cu_seqlens_q_padded),
                 setup.k.shape[kPositions], "k", setup.kv_offsets, setup.kv_lengths);
  if (setup.q_offsets.size() != setup.kv_offsets.size())
    throw invalid(fmt::format("the cu_seqlens of queries have {} sequences, those of keys {}",
                              setup.q_offsets.size() - 1, setup.kv_offsets.size() - 1));
}

// To (batch, heads, queries, keys).
ArrayView broadcast(const ArrayView& array, const char* name, const CheckedArguments& setup) {
  if (setup.packed()) throw invalid("{} needs a padded batch; packed sequences take none", name);
  const Shape whole{setup.shape.entries, setup.shape.heads, setup.q.shape[kPositions],
                    setup.k.shape[kPositions]};
  ArrayView out{array.data, array.dtype, whole, Shape(4, 0)};
  const std::size_t rank = array.shape.size();
  bool fits = rank <= 4;
  for (std::size_t d = 0; fits && d < rank; ++d) {
    const std::size_t axis = 4 - rank + d;
    if (array.shape[d] == whole[axis])
      out.strides[axis] = array.shape[d] == 1 ? 0 : array.strides[d];
    else
      fits = array.shape[d] == 1;
  }
  if (!fits)
    throw invalid(fmt::format("{} {} does not broadcast to (batch, heads, queries, keys) = {}", name,
                              to_string(array.shape), to_string(whole)))
        .about(name);
  return out;
}

void check_dropout(CheckedArguments& s, const AttentionTypes& types, const AttentionSettings& options) {
  const double kept = options.keep_probability;
  if (!(kept > 0 && kept <= 1 && std::isfinite(1 / kept)))
    throw invalid("the probability that dropout keeps a pair is above 0 and at most 1, not {}", kept);
  check_range(1 / kept, "the inverse of the probability that dropout keeps a pair,", s.shape.arithmetic);
  if (!types.dropout) {
    if (kept != 1) throw invalid("a probability that dropout keeps a pair is given, and no dropout");
    return;
  }
  if (types.dropout->dtype != DType::boolean)
    throw invalid("dropout must be bool, True for a pair that is kept, not {}", name_of(types.dropout->dtype))
        .hint("of numbers that have a sign, as flash attention's S_dmask, it is S_dmask >= 0")
        .about("dropout");
  if (s.ends.mean)
    throw invalid("dropout is not defined for queries without a key that get the mean of all values");
  s.dropout = broadcast(planned(*types.dropout), "dropout", s);
  s.kept_factor = 1 / kept;
}

// Elements of a small array of floats, of one of these shapes.
std::vector<double> read_numbers(const ArraySource& source, const char* what,
                                 const std::vector<Shape>& shapes) {
  if (std::find(shapes.begin(), shapes.end(), source.shape()) == shapes.end())
    throw invalid(fmt::format("{}: {} are of the shape {}, not {}", source.name(), what,
                              to_string(shapes.front()), to_string(source.shape())));
  if (!is_wide_float(source.dtype()))
    throw Error(Error::Kind::input,
                fmt::format("{}: {} must be floats of 16 bits or more, not {}", source.name(), what,
                            name_of(source.dtype())),
                Error::Code::not_floats);
  const Array all = read_all(source);
  std::vector<double> numbers(static_cast<std::size_t>(all.size()));
  if (!numbers.empty()) load(all.dtype(), all.data(), size_of(all.dtype()), all.size(), numbers.data());
  return numbers;
}

void read_sinks(CheckedArguments& s, const AttentionSettings& options) {
  if (!options.sinks) return;
  s.ends.sinks = read_numbers(*options.sinks, "sinks", {{s.shape.heads}});
  for (std::size_t h = 0; h < s.ends.sinks.size(); ++h)
    if (!(s.ends.sinks[h] < std::numeric_limits<double>::infinity()))
      throw invalid(fmt::format("{}: the sink of head {} is {}; a sink is finite, or -inf for none",
                                options.sinks->name(), h, s.ends.sinks[h]));
}

void read_slopes(CheckedArguments& s, const AttentionSettings& options) {
  s.alibi_form = options.conventions.alibi_form;
  if (!options.alibi) return;
  s.slopes =
      read_numbers(*options.alibi, "slopes of ALiBi", {{s.shape.heads}, {s.shape.entries, s.shape.heads}});
  for (std::size_t n = 0; n < s.slopes.size(); ++n)
    if (!std::isfinite(s.slopes[n]))
      throw invalid(fmt::format("{}: slope {} is {}; a slope is a finite number", options.alibi->name(), n,
                                s.slopes[n]));
}

void check_segment_ids(const ArraySource* ids, const char* name, const CheckedArguments& setup,
                       std::int64_t length) {
  if (!ids) return;
  const Shape expected = setup.packed() ? Shape{length} : Shape{setup.shape.entries, length};
  if (ids->shape() != expected)
    throw invalid(fmt::format("{}: {} are {}, not of shape {}", ids->name(), name, to_string(expected),
                              to_string(ids->shape())));
  if (!is_integer(ids->dtype()) && ids->dtype() != DType::boolean)
    throw Error(Error::Kind::input,
                fmt::format("{}: {} must be integers, not {}", ids->name(), name, name_of(ids->dtype())),
                Error::Code::needs_integers)
        .hint("they are to be converted to an integer dtype");
}

void check_shape(const ArrayType& array, const char* name, const Shape& shape) {
  if (array.shape != shape)
    throw invalid(fmt::format("{} has the shape {}, not {}", name, to_string(array.shape), to_string(shape)))
        .about(name);
  require_float(array.dtype, name);
}

void check_gradients(const AttentionTypes& types, const Sizes& shape) {
  if (types.out.has_value() != types.lse.has_value())
    throw invalid("out and lse come from one forward pass: both are given or neither");
  if (!types.dout) {
    if (types.out) throw invalid("out and lse are taken for gradients, and dout is not given");
    return;
  }
  check_shape(*types.dout, "dout", shape.out);
  if (!types.out) return;
  check_shape(*types.out, "out", shape.out);
  check_shape(*types.lse, "lse", shape.lse);
}

// Key/value heads that do not divide query heads, and are more than positions, are perhaps positions.
void check_groups(const CheckedArguments& s, AttentionLayout layout) {
  const std::int64_t heads = s.shape.heads, kv_heads = s.shape.kv_heads;
  if (heads == 0 || (kv_heads != 0 && heads % kv_heads == 0)) return;
  Error error =
      invalid(fmt::format("{} query heads are not a multiple of {} key/value heads", heads, kv_heads));
  if (layout == AttentionLayout::bshd && kv_heads > s.k.shape[kPositions])
    error.hint("of (batch, heads, sequence, size) the layout is bhsd");
  throw std::move(error);
}

}  // namespace

ArrayView in_one_form(const ArrayView& array, AttentionLayout layout) {
  ArrayView out = array;
  if (layout == Layout::thd) {
    out.shape.insert(out.shape.begin(), 1);
    out.strides.insert(out.strides.begin(), 0);
  }
  if (layout != Layout::bhsd) {
    std::swap(out.shape[1], out.shape[2]);
    std::swap(out.strides[1], out.strides[2]);
  }
  return out;
}

ArrayView with_four_axes(const ArrayView& array) {
  ArrayView out = array;
  const std::size_t lacking = 4 - array.shape.size();
  out.shape.insert(out.shape.begin(), lacking, 1);
  out.strides.insert(out.strides.begin(), lacking, 0);
  return out;
}

Shape in_layout(const ArrayView& array, AttentionLayout layout) {
  Shape shape = array.shape;
  if (layout != Layout::bhsd) std::swap(shape[1], shape[2]);
  if (layout == Layout::thd) shape.erase(shape.begin());
  return shape;
}

CheckedArguments check_arguments(const AttentionTypes& types, const AttentionSettings& options) {
  CheckedArguments s;
  s.layout = options.layout;
  s.q = checked_array(types.q, "q", options.layout);
  s.k = checked_array(types.k, "k", options.layout);
  s.v = checked_array(types.v, "v", options.layout);
  if (!s.packed()) {
    check_equal(s.q, "q", s.k, "k", kBatch, "batch entries");
    check_equal(s.q, "q", s.v, "v", kBatch, "batch entries");
  }
  check_equal(s.q, "q", s.k, "k", kElements, "elements a head");
  check_equal(s.k, "k", s.v, "v", kHeads, "heads");
  check_equal(s.k, "k", s.v, "v", kPositions, s.packed() ? "tokens" : "positions");
  Sizes& shape = s.shape;
  shape.heads = s.q.shape[kHeads];
  shape.kv_heads = s.k.shape[kHeads];
  shape.head_size = s.q.shape[kElements];
  shape.value_size = s.v.shape[kElements];
  check_groups(s, options.layout);
  if (shape.head_size == 0)
    throw invalid("q and k have heads of size 0: there is nothing to multiply").about("q");
  read_sequences(s, options);
  shape.entries = s.packed() ? std::ssize(s.q_offsets) - 1 : s.q.shape[kBatch];
  for (const auto* type : {&types.q, &types.k, &types.v, &types.dout})
    if (*type && (*type)->dtype == DType::float64) shape.arithmetic = DType::float64;
  shape.out = types.q->shape;
  shape.out.back() = shape.value_size;
  const std::int64_t queries = s.q.shape[kPositions], keys = s.k.shape[kPositions];
  shape.lse = s.packed() ? Shape{shape.heads, queries} : Shape{shape.entries, shape.heads, queries};
  // Per-problem loops are bounded by what the input holds: without elements any axis may be of any length.
  constexpr std::int64_t kMostEmptyProblems = std::int64_t{1} << 20;
  if (const std::int64_t loops =
          element_count(std::array{shape.entries, std::max<std::int64_t>(shape.heads, 1)});
      loops > std::max({kMostEmptyProblems, element_count(s.q.shape), element_count(s.k.shape)}))
    throw invalid("q of shape {} has no elements: {} entries of {} heads have nothing to compute",
                  to_string(types.q->shape), format_count(shape.entries), format_count(shape.heads))
        .about("q");
  // Counts of pairs, positions and results fit 64 bits.
  element_count(std::array{std::max<std::int64_t>(s.q.shape[kBatch], 1), shape.heads, queries, keys});
  byte_count(shape.out, DType::float64);

  s.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_size)));
  if (!std::isfinite(s.scale)) throw invalid(fmt::format("scale must be a finite number, not {}", s.scale));
  s.softcap = options.softcap.value_or(0);
  if (options.softcap && !(s.softcap > 0 && std::isfinite(s.softcap)))
    throw invalid(fmt::format("softcap must be a finite number above 0, not {}", s.softcap));
  check_range(s.scale, "scale", shape.arithmetic);
  if (options.softcap) check_range(s.softcap, "softcap", shape.arithmetic);
  s.softcap_order = options.conventions.softcap_order;
  s.ends.lse = LseForm(options.conventions);
  s.ends.mean = options.conventions.masked_rows == MaskedRows::mean;
  read_sinks(s, options);
  read_slopes(s, options);
  s.block = options.block.value_or(kBlock);
  if (s.block.q < 1 || s.block.kv < 1)
    throw invalid(fmt::format("a block must have positive lengths, not {} x {}", s.block.q, s.block.kv));
  if (std::max(s.block.q, s.block.kv) > kLongestMask)
    throw invalid(
        fmt::format("a block of {} x {} is longer than any mask, {}", s.block.q, s.block.kv, kLongestMask));
  if (types.bias) {
    require_float(types.bias->dtype, "bias");
    s.bias = broadcast(planned(*types.bias), "bias", s);
    s.bias_shape = with_four_axes(planned(*types.bias)).shape;
    s.bias_rank = types.bias->shape.size();
  }
  check_dropout(s, types, options);
  check_segment_ids(options.q_segment_ids.get(), "segment ids of queries", s, queries);
  if (options.kv_segment_ids && !options.q_segment_ids)
    throw invalid("segment ids of keys come with those of queries, which are not given");
  check_segment_ids((options.kv_segment_ids ? options.kv_segment_ids : options.q_segment_ids).get(),
                    "segment ids of keys", s, keys);
  check_gradients(types, shape);
  s.gradients = types.dout.has_value();
  s.hold_rows(s.all_queries());
  return s;
}

Positions token_range(const Region& region, const std::vector<std::int64_t>& offsets,
                      const std::vector<std::int64_t>& lengths) {
  const IndexRange& entries = region.entries;
  if (entries.begin == entries.end) return {};
  const auto first = static_cast<std::size_t>(entries.begin), after = static_cast<std::size_t>(entries.end);
  const auto begin_of = [&](std::int64_t position) {
    return first == 0 && position == 0 ? 0 : offsets[first] + position;
  };
  if (entries.count() > 1) return {begin_of(0), offsets[after]};
  const std::int64_t length = lengths.empty() ? offsets[after] - offsets[first] : lengths[first];
  const Positions some = region.positions_of(length);
  return {begin_of(some.begin), some.end == length ? offsets[after] : offsets[first] + some.end};
}

ArrayView seen_as_whole(const ArrayView& elements, const ArrayBox& box, const Shape& shape) {
  ArrayView whole = elements;
  whole.shape = shape;
  if (whole.data != nullptr)
    for (std::size_t d = 0; d < shape.size(); ++d) whole.data -= box.start[d] * elements.strides[d];
  return whole;
}

ArrayView checked_part(const char* name, const ArrayType& type, const ArrayBox& box,
                       const std::optional<ArrayView>& elements) {
  if (!elements)
    throw invalid(fmt::format("{} is not given, and the plan was made for it", name)).about(name);
  if (elements->dtype != type.dtype || elements->shape != box.count)
    throw invalid(fmt::format("{} is {}; it was planned as {}", name, to_string(type_of(*elements)),
                              to_string(ArrayType(type.dtype, box.count))))
        .about(name);
  return seen_as_whole(*elements, box, type.shape);
}

CheckedArguments bound_to_part(const CheckedArguments& planned, const AttentionTypes& types,
                               const AttentionOperands<ArrayBox>& boxes, const AttentionArrays& arrays) {
  CheckedArguments s = planned;
  if (boxes.q) s.q = in_one_form(checked_part("q", *types.q, *boxes.q, arrays.q), s.layout);
  if (boxes.k) s.k = in_one_form(checked_part("k", *types.k, *boxes.k, arrays.k), s.layout);
  if (boxes.v) s.v = in_one_form(checked_part("v", *types.v, *boxes.v, arrays.v), s.layout);
  if (boxes.bias) s.bias = broadcast(checked_part("bias", *types.bias, *boxes.bias, arrays.bias), "bias", s);
  if (boxes.dropout)
    s.dropout =
        broadcast(checked_part("dropout", *types.dropout, *boxes.dropout, arrays.dropout), "dropout", s);
  return s;
}

CheckedArguments bound(const CheckedArguments& planned, const AttentionTypes& types,
                       const AttentionArrays& arrays, SavedResults saved) {
  AttentionOperands<ArrayBox> boxes;
  for_each_operand(
      [&](const char* name, const auto& row, const auto& type, const auto& array, auto& box) {
        if (row->use == OperandRow::Use::saved && saved == SavedResults::ignored) return;
        if (!type && array)
          throw invalid(fmt::format("{} is given, and the plan was made without it", name)).about(name);
        if (!type) return;
        box = whole_box(type->shape);
        checked_part(name, *type, *box, array);
      },
      kOperands, types, arrays, boxes);
  return bound_to_part(planned, types, boxes, arrays);
}

ArrayBox box_in_layout(AttentionLayout layout, const Region& r, Positions p, std::int64_t size) {
  switch (layout) {
    case AttentionLayout::thd:
      return {{p.begin, r.heads.begin, 0}, {p.count(), r.heads.count(), size}};
    case AttentionLayout::bshd:
      return {{r.entries.begin, p.begin, r.heads.begin, 0},
              {r.entries.count(), p.count(), r.heads.count(), size}};
    case AttentionLayout::bhsd:
      break;
  }
  return {{r.entries.begin, r.heads.begin, p.begin, 0},
          {r.entries.count(), r.heads.count(), p.count(), size}};
}

namespace {

// A plan has types and no elements yet.
const std::byte* from(const ArrayView& array, std::int64_t offset) {
  return array.data == nullptr ? nullptr : array.data + offset;
}

}  // namespace

kernels::StridedMatrix CheckedArguments::rows_of(const ArrayView& array, std::int64_t entry,
                                                 std::int64_t head,
                                                 const std::vector<std::int64_t>& offsets) const {
  const std::int64_t at = packed() ? offsets[static_cast<std::size_t>(entry)] * array.strides[kPositions]
                                   : entry * array.strides[kBatch];
  return {from(array, at + head * array.strides[kHeads]), array.dtype, array.strides[kPositions],
          array.strides[kElements]};
}

Problem CheckedArguments::problem(std::int64_t entry, std::int64_t head) const {
  Problem p;
  p.entry = entry;
  p.head = head;
  p.kv_head = head / group();
  p.q_length = q_length(entry);
  p.kv_length = kv_length(entry);
  p.q = rows_of(q, entry, head, q_offsets);
  p.k = rows_of(k, entry, p.kv_head, kv_offsets);
  p.v = rows_of(v, entry, p.kv_head, kv_offsets);
  const auto of_pairs = [&](const ArrayView& all) {
    return kernels::StridedMatrix{from(all, entry * all.strides[kBatch] + head * all.strides[kHeads]),
                                  all.dtype, all.strides[kPositions], all.strides[kElements]};
  };
  if (bias) p.bias = BiasRows(of_pairs(*bias));
  if (dropout) p.dropout = {of_pairs(*dropout), kept_factor};
  if (!slopes.empty()) {
    const std::int64_t at = std::ssize(slopes) == shape.heads ? head : entry * shape.heads + head;
    p.bias.alibi = {slopes[static_cast<std::size_t>(at)], alibi_form, p.kv_length - p.q_length};
  }
  p.first_row = first_row(entry, head);
  return p;
}

void CheckedArguments::hold_rows(const Region& queries) {
  if (packed()) {
    const Positions tokens = token_range(queries, q_offsets, q_lengths);
    row_steps = {-(queries.heads.begin * tokens.count() + tokens.begin), 0, tokens.count()};
    return;
  }
  const Positions some = queries.positions_of(q.shape[kPositions]);
  const std::int64_t of_entry = queries.heads.count() * some.count();
  row_steps = {-(queries.entries.begin * of_entry + queries.heads.begin * some.count() + some.begin),
               of_entry, some.count()};
}

std::int64_t CheckedArguments::rows(const Region& queries) const {
  const std::int64_t of_head =
      packed() ? token_range(queries, q_offsets, q_lengths).count()
               : queries.positions_of(q.shape[kPositions]).count() * queries.entries.count();
  return of_head * queries.heads.count();
}

}  // namespace attn

}  // namespace ejk
