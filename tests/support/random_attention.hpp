// Random attention problems: inputs of odd lengths under random masks, for the library and by definition.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "ejk/attention.hpp"
#include "support/attention_tolerance.hpp"
#include "support/random_mask.hpp"

namespace plain {

struct RandomAttention {
  Array q, k, v, dout, bias, kept;
  ejk::AttentionOptions options;
  DType arithmetic = DType::float32;
  std::int64_t batch = 1, heads = 1, q_length = 0, kv_length = 0;  // packed tokens are one batch entry
  double scale = 1, softcap = 0;
  std::int64_t padding = 0;  // queries of no sequence
  /// Whether query i sees key j, and the bias there: batch entry, query head, positions in the array.
  std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> allowed;
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> bias_at;
  /// What ALiBi adds, likewise; and the sink of each head. Empty: there is none.
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> alibi_at;
  std::vector<double> sinks;
  /// The factor that dropout gives a weight, likewise. Empty: there is no dropout.
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> kept_at;
  std::function<bool(std::int64_t i)> is_padding;                   // of queries
  std::function<bool(std::int64_t i, std::int64_t j)> is_of_entry;  // a key of the query's entry
  bool cap_is_last = false;                                         // bias and ALiBi are capped, too
  bool has_means = false;  // out of a query without a key and a sink is the mean of its entry's values

  std::vector<double> values(const Array& array) const { return doubles(array.view()); }
};

inline std::shared_ptr<const ejk::ArraySource> integers(const std::vector<std::int64_t>& values, Shape shape,
                                                        const char* name) {
  return ejk::make_source(Array::from<std::int64_t>(std::move(shape), values), name);
}

/// Sequence of every token, and its position in it; −1: it is padding. Sequence s begins at begins[s].
struct Token {
  std::int64_t sequence = -1, position = 0;
};
inline std::vector<Token> tokens_of(const std::vector<std::int64_t>& cu,
                                    const std::vector<std::int64_t>& begins, std::int64_t length) {
  std::vector<Token> tokens(static_cast<std::size_t>(length));
  for (std::size_t s = 0; s + 1 < cu.size(); ++s)
    for (std::int64_t p = 0; p < cu[s + 1] - cu[s]; ++p)
      tokens[static_cast<std::size_t>(begins[s] + p)] = {static_cast<std::int64_t>(s), p};
  return tokens;
}

inline std::unique_ptr<RandomAttention> random_attention(Random& random, std::vector<DType> dtypes) {
  using ejk::AttentionLayout;
  auto r = std::make_unique<RandomAttention>();
  const auto layout = static_cast<AttentionLayout>(between(random, 0, 2));
  const bool packed = layout == AttentionLayout::thd;
  const std::int64_t group = between(random, 1, 3), kv_heads = between(random, 1, 2),
                     heads = group * kv_heads;
  const std::int64_t size = between(random, 1, 9), value_size = between(random, 0, 9);
  const std::int64_t batch = packed ? 1 : between(random, 1, 3);
  std::int64_t q_length = between(random, 0, 40), kv_length = between(random, 0, 40);
  std::vector<std::int64_t> q_cu{0}, kv_cu{0};
  if (packed) {
    for (std::int64_t n = between(random, 0, 5); n > 0; --n) {
      q_cu.push_back(q_cu.back() + between(random, 0, 17));
      kv_cu.push_back(kv_cu.back() + between(random, 0, 17));
    }
    q_length = q_cu.back();
    kv_length = kv_cu.back();
  }
  // Padding before the first sequence, behind each, and behind all of them.
  std::vector<std::int64_t> q_begins = q_cu, kv_begins = kv_cu;
  const bool padded = packed && q_cu.size() > 1 && between(random, 0, 1) == 0;
  const auto pad = [&](const std::vector<std::int64_t>& cu, std::vector<std::int64_t>& begins) {
    begins[0] = between(random, 0, 2);
    for (std::size_t s = 0; s + 1 < cu.size(); ++s)
      begins[s + 1] = begins[s] + cu[s + 1] - cu[s] + between(random, 0, 3);
    return begins.back() + between(random, 0, 2);
  };
  if (padded) q_length = pad(q_cu, q_begins), kv_length = pad(kv_cu, kv_begins);
  r->padding = packed ? q_length - q_cu.back() : 0;
  const std::int64_t entries = packed ? std::ssize(q_cu) - 1 : batch;
  const auto dtype = [&] {
    return dtypes[static_cast<std::size_t>(between(random, 0, std::ssize(dtypes) - 1))];
  };
  const DType type = dtype();
  const auto make = [&](std::int64_t length, std::int64_t n_heads, std::int64_t d) {
    Shape shape = layout == AttentionLayout::bshd   ? Shape{batch, length, n_heads, d}
                  : layout == AttentionLayout::bhsd ? Shape{batch, n_heads, length, d}
                                                    : Shape{length, n_heads, d};
    return plain::random(type, std::move(shape), random);
  };
  r->q = make(q_length, heads, size);
  r->k = make(kv_length, kv_heads, size);
  r->v = make(kv_length, kv_heads, value_size);
  r->dout = make(q_length, heads, value_size);
  r->arithmetic = type == DType::float64 ? DType::float64 : DType::float32;

  r->batch = batch;
  r->heads = heads;
  r->q_length = q_length;
  r->kv_length = kv_length;
  ejk::AttentionOptions& o = r->options;
  o.layout = layout;
  r->scale = 1 / std::sqrt(static_cast<double>(size));
  if (between(random, 0, 2) == 0) o.scale = r->scale = static_cast<double>(between(random, -4, 4)) / 4;
  if (between(random, 0, 2) == 0) o.softcap = r->softcap = 1.5;
  if (between(random, 0, 3) > 0) o.block = ejk::BlockShape{between(random, 1, 20), between(random, 1, 70)};

  std::vector<std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>> rules;
  const auto q_tokens = tokens_of(q_cu, q_begins, q_length),
             kv_tokens = tokens_of(kv_cu, kv_begins, kv_length);
  if (packed) {
    o.cu_seqlens_q = integers(q_cu, {std::ssize(q_cu)}, "cu_q");
    o.cu_seqlens_kv = integers(kv_cu, {std::ssize(kv_cu)}, "cu_k");
    if (padded) {
      o.cu_seqlens_q_padded = integers(q_begins, {std::ssize(q_begins)}, "padded_q");
      o.cu_seqlens_kv_padded = integers(kv_begins, {std::ssize(kv_begins)}, "padded_k");
    }
    rules.emplace_back([=](auto, auto, std::int64_t i, std::int64_t j) {
      const std::int64_t of_query = q_tokens[static_cast<std::size_t>(i)].sequence;
      return of_query >= 0 && of_query == kv_tokens[static_cast<std::size_t>(j)].sequence;
    });
  }
  // Masks of entries and heads, each shared or not.
  for (std::int64_t n = between(random, 0, 2); n > 0; --n) {
    ejk::HeadMasks m;
    m.batch = between(random, 0, 1) == 0 ? 1 : entries;
    m.heads = between(random, 0, 1) == 0 ? 1 : heads;
    if (packed) m.batch = entries;
    auto pairs = std::make_shared<std::vector<std::optional<Pair>>>();
    const std::int64_t made = packed ? entries : m.batch;
    for (std::int64_t e = 0; e < made; ++e)
      for (std::int64_t h = 0; h < m.heads; ++h) {
        const auto at = static_cast<std::size_t>(e);
        const std::int64_t q = packed ? q_cu[at + 1] - q_cu[at] : q_length;
        const std::int64_t kv = packed ? kv_cu[at + 1] - kv_cu[at] : kv_length;
        if (q > 0 && kv > 0)
          pairs->emplace_back(random_mask(random, q, kv, 2));
        else
          pairs->emplace_back();
      }
    m.mask = [pairs, count = m.heads](std::int64_t e, std::int64_t h, std::int64_t, std::int64_t) {
      return (*pairs)[static_cast<std::size_t>(e * count + h)]->mask;
    };
    rules.emplace_back([=, count = m.heads, all = m.batch](std::int64_t b, std::int64_t h, std::int64_t i,
                                                           std::int64_t j) {
      std::int64_t e = all == 1 ? 0 : b;
      if (packed) {
        const Token q = q_tokens[static_cast<std::size_t>(i)], kv = kv_tokens[static_cast<std::size_t>(j)];
        if (q.sequence < 0 || q.sequence != kv.sequence) return false;
        e = q.sequence, i = q.position, j = kv.position;
      }
      const Pair& pair = *(*pairs)[static_cast<std::size_t>(e * count + (count == 1 ? 0 : h))];
      return pair.elements[static_cast<std::size_t>(i * pair.mask.kv_length() + j)] != 0;
    });
    o.masks.push_back(std::move(m));
  }
  if (between(random, 0, 2) == 0) {
    std::vector<std::int64_t> q_ids, kv_ids;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (const std::int64_t id : random_ids(random, q_length)) q_ids.push_back(id);
      for (const std::int64_t id : random_ids(random, kv_length)) kv_ids.push_back(id);
    }
    o.q_segment_ids = integers(q_ids, packed ? Shape{q_length} : Shape{batch, q_length}, "q_ids");
    o.kv_segment_ids = integers(kv_ids, packed ? Shape{kv_length} : Shape{batch, kv_length}, "kv_ids");
    rules.emplace_back([=](std::int64_t b, auto, std::int64_t i, std::int64_t j) {
      const std::int64_t a = q_ids[static_cast<std::size_t>(b * q_length + i)];
      return a > 0 && a == kv_ids[static_cast<std::size_t>(b * kv_length + j)];
    });
  }
  if (!packed && between(random, 0, 2) == 0) {
    // Broadcast along some axes, and -inf here and there.
    Shape shape{batch, heads, q_length, kv_length};
    for (auto& length : shape)
      if (between(random, 0, 2) == 0) length = 1;
    r->bias = plain::random(dtype(), shape, random);
    std::vector<double> values = doubles(r->bias.view());
    for (double& value : values)
      if (between(random, 0, 5) == 0) value = -kInfinity;
    r->bias = array_of(r->bias.dtype(), shape, values);
    o.bias = r->bias.view();
    r->bias_at = [=](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::int64_t index[] = {b, h, i, j};
      std::int64_t at = 0;
      for (std::size_t d = 0; d < 4; ++d) at = at * shape[d] + (shape[d] == 1 ? 0 : index[d]);
      return values[static_cast<std::size_t>(at)];
    };
  }
  if (between(random, 0, 2) == 0) {
    for (std::int64_t h = 0; h < heads; ++h)
      r->sinks.push_back(between(random, 0, 4) == 0 ? -kInfinity
                                                    : static_cast<double>(between(random, -8, 16)) / 4);
    o.sinks = ejk::make_source(array_of(dtype(), {heads}, r->sinks), "sinks");
  }
  if (between(random, 0, 2) == 0) {
    const bool each = between(random, 0, 1) == 0, is_signed = between(random, 0, 1) == 0;
    std::vector<double> slopes;
    for (std::int64_t n = 0; n < (each ? entries : 1) * heads; ++n)
      slopes.push_back(static_cast<double>(between(random, 0, 8)) / 16);
    o.alibi =
        ejk::make_source(array_of(dtype(), each ? Shape{entries, heads} : Shape{heads}, slopes), "slopes");
    if (is_signed) o.conventions.alibi_form = ejk::AlibiForm::signed_distance;
    r->alibi_at = [=](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      std::int64_t entry = b, shift = kv_length - q_length;
      if (packed) {
        const Token q = q_tokens[static_cast<std::size_t>(i)], kv = kv_tokens[static_cast<std::size_t>(j)];
        const auto s = static_cast<std::size_t>(q.sequence);
        shift = kv_cu[s + 1] - kv_cu[s] - q_cu[s + 1] + q_cu[s];
        entry = q.sequence, i = q.position, j = kv.position;
      }
      const double slope = slopes[static_cast<std::size_t>((each ? entry * heads : 0) + h)];
      return is_signed ? slope * static_cast<double>(j - i)
                       : -slope * static_cast<double>(std::abs(i + shift - j));
    };
  }
  if (r->softcap > 0 && between(random, 0, 1) == 0) {
    o.conventions.softcap_order = ejk::SoftcapOrder::after_bias;
    r->cap_is_last = true;
  }
  r->is_of_entry = [=](std::int64_t i, std::int64_t j) {
    return !packed ||
           q_tokens[static_cast<std::size_t>(i)].sequence == kv_tokens[static_cast<std::size_t>(j)].sequence;
  };
  r->is_padding = [=](std::int64_t i) {
    return packed && q_tokens[static_cast<std::size_t>(i)].sequence < 0;
  };
  r->allowed = [=](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return std::all_of(rules.begin(), rules.end(), [&](const auto& rule) { return rule(b, h, i, j); });
  };
  return r;
}

/// Adds dropout, broadcast along some axes, to a padded batch; false for packed tokens.
inline bool add_dropout(RandomAttention& r, Random& random) {
  if (r.options.layout == ejk::AttentionLayout::thd) return false;
  Shape shape{r.batch, r.heads, r.q_length, r.kv_length};
  for (auto& length : shape)
    if (between(random, 0, 3) == 0) length = 1;
  if (shape[0] == 1 && between(random, 0, 1) == 0) shape.erase(shape.begin());
  const double kept = static_cast<double>(between(random, 1, 8)) / 8;
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(ejk::element_count(shape)));
  for (auto& bit : bits) bit = static_cast<double>(between(random, 1, 8)) / 8 <= kept;
  r.kept = array_of(DType::boolean, shape, std::vector<double>(bits.begin(), bits.end()));
  r.options.dropout = r.kept.view();
  r.options.keep_probability = kept;
  r.kept_at = [=](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const std::int64_t index[] = {b, h, i, j};
    std::int64_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d)
      at = at * shape[d] + (shape[d] == 1 ? 0 : index[4 - shape.size() + d]);
    return bits[static_cast<std::size_t>(at)] != 0 ? 1 / kept : 0;
  };
  return true;
}

}  // namespace plain
