// The door: what attention's arguments must be, once for forward, backward, their checks and plans.
// tests: tests/attention/test_attention.cpp
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "ejk/threads.hpp"
#include "mask/scan.hpp"

namespace ejk {

namespace {

Error invalid(std::string message) { return Error(Error::Kind::input, std::move(message)); }

}  // namespace

std::string_view name_of(AttentionLayout layout) {
  return layout == AttentionLayout::bshd ? "bshd" : layout == AttentionLayout::bhsd ? "bhsd" : "thd";
}

namespace attn {

namespace {

using Layout = AttentionLayout;

// Fine enough to leave out most of what a mask empties, and no smaller than the blocks of keys that passes go
// by.
constexpr BlockShape kBlock{128, 256};

const char* axes_of(Layout layout) {
  return layout == Layout::bshd   ? "(batch, sequence, heads, size)"
         : layout == Layout::bhsd ? "(batch, heads, sequence, size)"
                                  : "(tokens, heads, size)";
}

void check_array(const ArrayView& array, const char* name, Layout layout) {
  const std::int64_t rank = layout == Layout::thd ? 3 : 4;
  if (array.rank() != rank) {
    Error error = invalid(fmt::format("{} is {} in the layout {}, not of shape {}", name, axes_of(layout),
                                      name_of(layout), to_string(array.shape)));
    if (array.rank() == 3 && rank == 4)
      error.hint("packed tokens are of the layout thd and come with cu_seqlens");
    if (array.rank() == 4 && rank == 3) error.hint("a padded batch is of the layout bshd or bhsd");
    throw std::move(error);
  }
  if (!is_float(array.dtype))
    throw invalid(
        fmt::format("{} must be float16, bfloat16, float32 or float64, not {}", name, name_of(array.dtype)));
}

// Factors of scores are of the arithmetic's dtype.
void check_range(double value, const char* name, DType arithmetic) {
  if (arithmetic == DType::float64 || value == 0) return;
  const double size = std::abs(value);
  if (size >= std::numeric_limits<float>::min() && size <= std::numeric_limits<float>::max()) return;
  throw invalid(
      fmt::format("{} {} is beyond the normal numbers of float32, in which this is computed", name, value))
      .hint("float64 inputs are computed in float64");
}

// What a thread works in: some queries and keys in the forms of both passes' products, and a tile between
// them.
std::int64_t work_bytes(const Setup& s) {
  constexpr std::int64_t kQueries = 512, kKeys = 256, kChunk = 256;
  const std::int64_t queries = std::min(s.longest_queries(), kQueries);
  const std::int64_t keys = std::min(s.longest_keys(), kKeys);
  const auto in_chunks = [](std::int64_t size) {
    return static_cast<double>(core::ceil_div(size, kChunk)) *
           static_cast<double>(kChunk + 16);  // its stride
  };
  const double elements = (in_chunks(s.shape.head_size) + in_chunks(s.shape.value_size)) *
                              static_cast<double>(2 * queries + 4 * keys) +
                          static_cast<double>(keys * kQueries);
  return static_cast<std::int64_t>(
      std::min(elements * static_cast<double>(size_of(s.shape.arithmetic) * threads()), 0x1p60));
}

// Axes of (B, heads, positions, elements).
constexpr std::size_t kBatch = 0, kHeads = 1, kPositions = 2, kElements = 3;

void check_equal(const ArrayView& a, const char* a_name, const ArrayView& b, const char* b_name,
                 std::size_t axis, const char* what) {
  if (a.shape[axis] != b.shape[axis])
    throw invalid(fmt::format("{} has {} {}, {} has {}", b_name, b.shape[axis], what, a_name, a.shape[axis]));
}

std::vector<std::int64_t> sequences(const ArraySource& cu_seqlens, std::int64_t tokens, const char* name) {
  auto offsets = core::read_offsets(cu_seqlens);
  if (offsets.back() != tokens)
    throw invalid(fmt::format("{}: cu_seqlens ends at {} (index {}), and {} has {} tokens", cu_seqlens.name(),
                              offsets.back(), offsets.size() - 1, name, tokens));
  return offsets;
}

void read_sequences(Setup& setup, const AttentionOptions& options) {
  if (!setup.packed()) {
    if (options.cu_seqlens_q || options.cu_seqlens_kv)
      throw invalid(
          fmt::format("cu_seqlens are for packed tokens, and the layout is {}", name_of(setup.layout)))
          .hint("the layout thd takes (tokens, heads, size)");
    return;
  }
  if (!options.cu_seqlens_q)
    throw invalid("packed tokens need cu_seqlens, which say where each sequence ends")
        .hint("one sequence is cu_seqlens [0, tokens]");
  setup.q_offsets = sequences(*options.cu_seqlens_q, setup.q.shape[kPositions], "q");
  setup.kv_offsets = sequences(options.cu_seqlens_kv ? *options.cu_seqlens_kv : *options.cu_seqlens_q,
                               setup.k.shape[kPositions], "k");
  if (setup.q_offsets.size() != setup.kv_offsets.size())
    throw invalid(fmt::format("the cu_seqlens of queries have {} sequences, those of keys {}",
                              setup.q_offsets.size() - 1, setup.kv_offsets.size() - 1));
}

// A bias as (B, H, Q, K): axes that it lacks, or has with length 1, have stride 0.
ArrayView broadcast_bias(const ArrayView& bias, const Setup& setup) {
  if (setup.packed()) throw invalid("a bias needs a padded batch; packed sequences take none");
  if (!is_float(bias.dtype))
    throw invalid(
        fmt::format("bias must be float16, bfloat16, float32 or float64, not {}", name_of(bias.dtype)));
  const Shape whole{setup.shape.entries, setup.shape.heads, setup.q.shape[kPositions],
                    setup.k.shape[kPositions]};
  ArrayView out{bias.data, bias.dtype, whole, Shape(4, 0)};
  const std::size_t rank = bias.shape.size();
  bool fits = rank <= 4;
  for (std::size_t d = 0; fits && d < rank; ++d) {
    const std::size_t axis = 4 - rank + d;
    if (bias.shape[d] == whole[axis])
      out.strides[axis] = bias.shape[d] == 1 ? 0 : bias.strides[d];
    else
      fits = bias.shape[d] == 1;
  }
  if (!fits)
    throw invalid(fmt::format("bias {} does not broadcast to (batch, heads, queries, keys) = {}",
                              to_string(bias.shape), to_string(whole)));
  return out;
}

void check_segment_ids(const ArraySource* ids, const char* name, const Setup& setup, std::int64_t length) {
  if (!ids) return;
  const Shape expected = setup.packed() ? Shape{length} : Shape{setup.shape.entries, length};
  if (ids->shape() != expected)
    throw invalid(fmt::format("{}: {} are {}, not of shape {}", ids->name(), name, to_string(expected),
                              to_string(ids->shape())));
  if (!is_integer(ids->dtype()))
    throw invalid(fmt::format("{}: {} must be integers, not {}", ids->name(), name, name_of(ids->dtype())))
        .hint("ejk convert IN -o OUT --dtype int32");
}

void check_masks(const Setup& setup, const AttentionOptions& options) {
  for (const AttentionMask& m : options.masks) {
    if (setup.packed() && !m.any_length)
      throw invalid(fmt::format("{} has one length; packed sequences differ in length", m.name))
          .hint("masks of positions fit every length: causal, local, chunked");
    if (m.batch != 1 && m.batch != setup.shape.entries)
      throw invalid(fmt::format("{} has {} batch entries, q has {}", m.name, m.batch, setup.shape.entries));
    if (m.heads != 1 && m.heads != setup.shape.heads)
      throw invalid(fmt::format("{} has {} heads, q has {}", m.name, m.heads, setup.shape.heads))
          .hint("one mask serves all heads, else each query head has its own");
  }
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

Setup check_arguments(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                      const AttentionOptions& options) {
  check_array(q, "q", options.layout);
  check_array(k, "k", options.layout);
  check_array(v, "v", options.layout);
  Setup s{options.layout,
          in_one_form(q, options.layout),
          in_one_form(k, options.layout),
          in_one_form(v, options.layout),
          {},
          {},
          {},
          1,
          0,
          {},
          {}};
  if (!s.packed()) {
    check_equal(s.q, "q", s.k, "k", kBatch, "batch entries");
    check_equal(s.q, "q", s.v, "v", kBatch, "batch entries");
  }
  check_equal(s.q, "q", s.k, "k", kElements, "elements a head");
  check_equal(s.k, "k", s.v, "v", kHeads, "heads");
  check_equal(s.k, "k", s.v, "v", kPositions, s.packed() ? "tokens" : "positions");
  AttentionShape& shape = s.shape;
  shape.heads = s.q.shape[kHeads];
  shape.kv_heads = s.k.shape[kHeads];
  shape.head_size = s.q.shape[kElements];
  shape.value_size = s.v.shape[kElements];
  if (shape.heads > 0 && (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0))
    throw invalid(
        fmt::format("{} query heads are not a multiple of {} key/value heads", shape.heads, shape.kv_heads));
  if (shape.head_size == 0) throw invalid("q and k have heads of size 0: there is nothing to multiply");
  read_sequences(s, options);
  shape.entries = s.packed() ? std::ssize(s.q_offsets) - 1 : s.q.shape[kBatch];
  const auto wide = [](const ArrayView& a) { return a.dtype == DType::float64; };
  shape.arithmetic = wide(q) || wide(k) || wide(v) ? DType::float64 : DType::float32;
  shape.out = q.shape;
  shape.out.back() = shape.value_size;
  const std::int64_t queries = s.q.shape[kPositions], keys = s.k.shape[kPositions];
  shape.lse = s.packed() ? Shape{shape.heads, queries} : Shape{shape.entries, shape.heads, queries};
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
  s.block = options.block.value_or(kBlock);
  if (s.block.q < 1 || s.block.kv < 1)
    throw invalid(fmt::format("a block must have positive lengths, not {} x {}", s.block.q, s.block.kv));
  if (std::max(s.block.q, s.block.kv) > kLongestMask)
    throw invalid(
        fmt::format("a block of {} x {} is longer than any mask, {}", s.block.q, s.block.kv, kLongestMask));
  if (options.bias) s.bias = broadcast_bias(*options.bias, s);
  check_segment_ids(options.q_segment_ids.get(), "segment ids of queries", s, queries);
  if (options.kv_segment_ids && !options.q_segment_ids)
    throw invalid("segment ids of keys come with those of queries, which are not given");
  check_segment_ids((options.kv_segment_ids ? options.kv_segment_ids : options.q_segment_ids).get(),
                    "segment ids of keys", s, keys);
  check_masks(s, options);

  // A byte a block of every mask that is kept apart.
  bool by_entry = s.packed() || (options.q_segment_ids && shape.entries > 1), by_head = false;
  for (const AttentionMask& m : options.masks) by_entry |= m.batch > 1, by_head |= m.heads > 1;
  const bool masked = !options.masks.empty() || options.q_segment_ids;
  double bytes = 0;
  for (std::int64_t e = 0;
       masked && e < (by_entry ? shape.entries : std::min<std::int64_t>(1, shape.entries)); ++e)
    bytes += static_cast<double>(core::ceil_div(s.q_length(e), s.block.q)) *
                 static_cast<double>(core::ceil_div(s.kv_length(e), s.block.kv)) +
             static_cast<double>(sizeof(MaskTiles));
  shape.plan_bytes =
      static_cast<std::int64_t>(std::min(bytes * static_cast<double>(by_head ? shape.heads : 1), 0x1p60));
  shape.work_bytes = work_bytes(s);
  if (masked) {
    const auto scan = mask::scan_bytes(s.longest_queries(), s.longest_keys(), s.block,
                                       mask::Patterns::dropped, mask::Reading::in_order);
    shape.work_bytes += scan.value_or(std::int64_t{1} << 60);
  }
  return s;
}

void check_gradient(const Setup& setup, const ArrayView& dout, const std::optional<AttentionSaved>& saved) {
  const auto check = [](const ArrayView& array, const char* name, const Shape& shape) {
    if (array.shape != shape)
      throw invalid(
          fmt::format("{} has the shape {}, not {}", name, to_string(array.shape), to_string(shape)));
    if (!is_float(array.dtype))
      throw invalid(fmt::format("{} must be float16, bfloat16, float32 or float64, not {}", name,
                                name_of(array.dtype)));
  };
  check(dout, "dout", setup.shape.out);
  if (!saved) return;
  check(saved->out, "out", setup.shape.out);
  check(saved->lse, "lse", setup.shape.lse);
}

kernels::Block Setup::rows_of(const ArrayView& array, std::int64_t entry, std::int64_t head,
                              const std::vector<std::int64_t>& offsets) const {
  const std::int64_t at = packed() ? offsets[static_cast<std::size_t>(entry)] * array.strides[kPositions]
                                   : entry * array.strides[kBatch];
  return {array.data + at + head * array.strides[kHeads], array.dtype, array.strides[kPositions],
          array.strides[kElements]};
}

Problem Setup::problem(std::int64_t entry, std::int64_t head) const {
  Problem p;
  p.entry = entry;
  p.head = head;
  p.kv_head = head / group();
  p.q_length = q_length(entry);
  p.kv_length = kv_length(entry);
  p.q = rows_of(q, entry, head, q_offsets);
  p.k = rows_of(k, entry, p.kv_head, kv_offsets);
  p.v = rows_of(v, entry, p.kv_head, kv_offsets);
  if (bias)
    p.bias = {bias->data + entry * bias->strides[kBatch] + head * bias->strides[kHeads], bias->dtype,
              bias->strides[kPositions], bias->strides[kElements]};
  p.first_row = packed() ? head * q.shape[kPositions] + q_offsets[static_cast<std::size_t>(entry)]
                         : (entry * shape.heads + head) * q.shape[kPositions];
  return p;
}

}  // namespace attn

AttentionShape attention_shape(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const AttentionOptions& options) {
  return attn::check_arguments(q, k, v, options).shape;
}

void check_attention_arguments(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                               const ArrayView& dout, const AttentionOptions& options,
                               const std::optional<AttentionSaved>& saved) {
  attn::check_gradient(attn::check_arguments(q, k, v, options), dout, saved);
}

}  // namespace ejk
