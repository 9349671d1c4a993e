// Masks of attention: from masks, expressions and stored arrays to one mask a problem, and their blocks.
//
// A mask that all entries or heads share is made and looked at once. Time: a few operations a block, and
// reading every undecided or partial block once; memory: a byte a block of every distinct mask.
// tests: tests/attention/test_attention.cpp
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "attention/problem.hpp"
#include "core/checked.hpp"
#include "core/parallel.hpp"
#include "mask/scan.hpp"

namespace ejk {

namespace {

Error invalid(std::string message) { return Error(Error::Kind::input, std::move(message)); }

}  // namespace

AttentionMask attention_mask(std::vector<Mask> heads) {
  if (heads.empty()) throw invalid("the list of masks is empty");
  AttentionMask m;
  m.heads = std::ssize(heads);
  m.any_length = false;
  m.name = heads.size() == 1 ? heads.front().text() : "the list of masks";
  m.mask = [heads = std::move(heads)](std::int64_t, std::int64_t head, std::int64_t, std::int64_t) {
    return heads[static_cast<std::size_t>(head)];
  };
  return m;
}

AttentionMask attention_mask(std::vector<MaskExpression> heads, Polarity polarity, OpenArray open) {
  if (heads.empty()) throw invalid("the list of masks is empty");
  AttentionMask m;
  m.heads = std::ssize(heads);
  m.name = heads.size() == 1 ? heads.front().text() : "the list of masks";
  for (const MaskExpression& expression : heads) {
    const auto shape = expression.shape(open);
    if (!shape) continue;
    m.any_length = false;
    if ((*shape)[0] <= 1) continue;
    if (heads.size() == 1)
      m.heads = (*shape)[0];
    else if ((*shape)[0] != m.heads)
      throw invalid(fmt::format("{} has {} heads, and there are {} expressions", expression.text(),
                                (*shape)[0], heads.size()));
  }
  m.mask = [expressions = std::move(heads), polarity, open = std::move(open), count = m.heads](
               std::int64_t, std::int64_t head, std::int64_t q_length, std::int64_t kv_length) {
    const std::size_t which = expressions.size() == 1 ? 0 : static_cast<std::size_t>(head);
    return expressions[which].resolve({count, q_length, kv_length}, head, polarity, open);
  };
  return m;
}

AttentionMask attention_mask(std::shared_ptr<const ArraySource> array, Polarity polarity) {
  const Shape& shape = array->shape();
  const std::size_t rank = shape.size();
  if (rank < 2 || rank > 4)
    throw invalid(
        fmt::format("{}: a mask is (Q, K), (B, Q, K), (B, 1, Q, K) or (B, H, Q, K), not of shape {}",
                    array->name(), to_string(shape)));
  AttentionMask m;
  m.name = array->name();
  m.any_length = false;
  if (rank > 2) m.batch = shape[0];
  if (rank > 3) m.heads = shape[1];
  m.mask = [array = std::move(array), polarity, rank](std::int64_t entry, std::int64_t head, std::int64_t,
                                                      std::int64_t) {
    auto one = array;
    if (rank > 2) one = slice_of(one, entry);
    if (rank > 3) one = slice_of(one, head);
    return array_mask(std::move(one), polarity);
  };
  return m;
}

namespace attn {

namespace {

// The part of 1-D or 2-D segment ids that belongs to one entry.
std::shared_ptr<const ArraySource> ids_of_entry(const std::shared_ptr<const ArraySource>& ids,
                                                std::int64_t entry, std::int64_t begin, std::int64_t length) {
  const auto fill = [=](std::span<const std::int64_t> start, std::span<const std::int64_t> count, void* out) {
    if (ids->shape().size() == 2)
      ids->read(Shape{entry, begin + start[0]}, Shape{1, count[0]}, out);
    else
      ids->read(Shape{begin + start[0]}, Shape{count[0]}, out);
  };
  return generated_source({ids->dtype(), {length}}, ids->name(), fill, ArrayAccess(ids->access().order));
}

// Masks of one AttentionMask, made once each.
struct Made {
  std::int64_t entries = 1, heads = 1;
  std::vector<std::optional<Mask>> masks;

  const std::optional<Mask>& of(std::int64_t entry, std::int64_t head) const {
    return masks[static_cast<std::size_t>((entries == 1 ? 0 : entry) * heads + (heads == 1 ? 0 : head))];
  }
};

Mask checked(Mask mask, const AttentionMask& from, std::int64_t entries, std::int64_t q_length,
             std::int64_t kv_length) {
  if (mask.q_length() == q_length && mask.kv_length() == kv_length) return mask;
  Error error = invalid(fmt::format("{} is {} x {}, and there are {} queries x {} keys", from.name,
                                    mask.q_length(), mask.kv_length(), q_length, kv_length));
  if (mask.q_length() == kv_length && mask.kv_length() == q_length)
    error.hint("it looks transposed: queries are the axis before keys");
  else if (mask.q_length() == 1 && mask.kv_length() == kv_length)
    error.hint("a mask of keys alone goes as segment ids: ones for the queries, the mask for the keys");
  else if (mask.q_length() == entries && mask.kv_length() == kv_length && from.batch == 1)
    error.hint(
        fmt::format("a padding mask (B, K) goes as segment ids, 1 for tokens and 0 for padding: "
                    "--segment-ids {}",
                    from.name));
  throw std::move(error);
}

Made make(const Setup& setup, const AttentionMask& from) {
  Made made;
  made.entries = setup.packed() ? setup.shape.entries : from.batch;
  made.heads = from.heads;
  for (std::int64_t e = 0; e < made.entries; ++e)
    for (std::int64_t h = 0; h < made.heads; ++h) {
      const std::int64_t q = setup.q_length(e), kv = setup.kv_length(e);
      if (q > 0 && kv > 0)
        made.masks.emplace_back(checked(from.mask(e, h, q, kv), from, setup.shape.entries, q, kv));
      else
        made.masks.emplace_back();
    }
  return made;
}

AttentionMask segments_of(const Setup& setup, const AttentionOptions& options) {
  const auto q_ids = options.q_segment_ids;
  const auto kv_ids = options.kv_segment_ids ? options.kv_segment_ids : q_ids;
  AttentionMask m;
  m.batch = setup.packed() ? 1 : setup.shape.entries;
  m.name = q_ids->name();
  m.mask = [&setup, q_ids, kv_ids](std::int64_t entry, std::int64_t, std::int64_t q, std::int64_t kv) {
    const auto e = static_cast<std::size_t>(entry);
    const bool packed = setup.packed();
    return segments_mask(*ids_of_entry(q_ids, entry, packed ? setup.q_offsets[e] : 0, q),
                         *ids_of_entry(kv_ids, entry, packed ? setup.kv_offsets[e] : 0, kv));
  };
  return m;
}

std::int64_t computed_pairs(const MaskSummary& summary, BlockShape block) {
  const auto states = summary.states.elements<std::uint8_t>();
  const std::int64_t columns = summary.states.shape()[1];
  std::int64_t pairs = 0;
  for (std::size_t b = 0; b < states.size(); ++b) {
    if (states[b] == 0) continue;
    const std::int64_t i = static_cast<std::int64_t>(b) / columns, j = static_cast<std::int64_t>(b) % columns;
    pairs += std::min(block.q, summary.q_length - i * block.q) *
             std::min(block.kv, summary.kv_length - j * block.kv);
  }
  return pairs;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

MaskPlan::MaskPlan(const Setup& setup, const AttentionOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Made> made;
  for (const AttentionMask& m : options.masks) made.push_back(make(setup, m));
  if (options.q_segment_ids) made.push_back(make(setup, segments_of(setup, options)));
  for (const Made& m : made) {
    if (setup.packed() || m.entries != 1) entries_ = setup.shape.entries;
    if (m.heads != 1) heads_ = setup.shape.heads;
  }
  if (!made.empty() && setup.problems() > 0) {
    tiles_.resize(static_cast<std::size_t>(entries_ * heads_));
    bool random_access = true;
    double elements = 0;  // of all masks
    for (std::int64_t e = 0; e < entries_; ++e)
      for (std::int64_t h = 0; h < heads_; ++h) {
        MaskTiles& tiles = tiles_[static_cast<std::size_t>(e * heads_ + h)];
        for (const Made& m : made) {
          const auto& one = m.of(e, h);
          if (one) tiles.mask = tiles.mask ? *tiles.mask & *one : *one;
        }
        if (tiles.mask)
          elements +=
              static_cast<double>(tiles.mask->q_length()) * static_cast<double>(tiles.mask->kv_length());
        random_access = random_access && (!tiles.mask || tiles.mask->node().random_access());
      }
    const auto scan = [&](std::int64_t t) {
      MaskTiles& tiles = tiles_[static_cast<std::size_t>(t)];
      if (!tiles.mask) return;
      tiles.summary = mask::scan_mask(*tiles.mask, setup.block, nullptr).summary;
      tiles.computed_pairs = computed_pairs(tiles.summary, setup.block);
    };
    // One mask is read by all threads, many are dealt out to them.
    const std::int64_t count = std::ssize(tiles_);
    if (random_access && count > 1)
      core::parallel_for(count, elements / 8, scan);
    else
      for (std::int64_t t = 0; t < count; ++t) scan(t);
  }
  count(setup);
  work_.mask_seconds = seconds_since(begin);
}

void MaskPlan::count(const Setup& setup) {
  AttentionWork& w = work_;
  w.problems = setup.problems();
  w.distinct_masks = std::ssize(tiles_);
  w.block = setup.block;
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    for (std::int64_t h = 0; h < setup.shape.heads; ++h) {
      const Problem p = setup.problem(e, h);
      const std::int64_t pairs = p.q_length * p.kv_length;
      w.rows += p.q_length;
      w.dense_pairs += pairs;
      const MaskTiles* tiles = of(p);
      std::int64_t first = -1;
      if (pairs == 0) {
        w.rows_without_key += p.q_length;
        if (p.q_length > 0) first = 0;
      } else if (!tiles) {
        w.allowed_pairs += pairs;
        w.computed_pairs += pairs;
        w.full_blocks +=
            core::ceil_div(p.q_length, setup.block.q) * core::ceil_div(p.kv_length, setup.block.kv);
      } else {
        const MaskSummary& s = tiles->summary;
        if (p.q_length != p.kv_length) mask::add_alignment(tiles->mask->node(), w.alignment);
        w.allowed_pairs += s.true_elements;
        w.computed_pairs += tiles->computed_pairs;
        w.empty_blocks += s.empty_blocks;
        w.partial_blocks += s.partial_blocks;
        w.full_blocks += s.full_blocks;
        for (const IndexRange& range : s.rows_without_key) w.rows_without_key += range.end - range.begin;
        if (!s.rows_without_key.empty()) first = s.rows_without_key.front().begin;
      }
      if (first >= 0 && w.first_row_without_key.empty()) w.first_row_without_key = {e, h, first};
    }
  const auto pairs = static_cast<double>(w.allowed_pairs);
  const auto d = static_cast<double>(setup.shape.head_size), dv = static_cast<double>(setup.shape.value_size);
  w.forward_flop = 2 * (d + dv) * pairs;
  w.backward_flop = 2 * (3 * d + 2 * dv) * pairs;
}

void MaskPlan::fill(const MaskTiles& tiles, const mask::Rectangle& where, const mask::BitRows& out) {
  const MaskNode& node = tiles.mask->node();
  if (node.random_access()) return node.fill(where, out);
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  node.fill(where, out);
}

}  // namespace attn

AttentionWork attention_work(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                             const AttentionOptions& options) {
  return attn::MaskPlan(attn::check_arguments(q, k, v, options), options).work();
}

}  // namespace ejk
