// The definition of attention: one query at a time, all its keys in float64. Cost: every pair.
// tests: tests/verdict/attention/test_reference.cpp
#include "verdict/attention/reference.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>

#include "attention/numbers.hpp"
#include "core/parallel.hpp"
#include "ejk/threads.hpp"
#include "verdict/attention/other_keys.hpp"

namespace ejk::attn {

namespace {

constexpr double kNothing = RowEnd<double>::kEmpty;

using Row = std::vector<double>;

Row row_of(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns) {
  Row out(static_cast<std::size_t>(columns));
  load_row(matrix, row, 0, columns, out.data());
  return out;
}

double dot(const double* a, const double* b, std::size_t n) {
  return kernels::active().dot_64(a, b, static_cast<std::int64_t>(n));
}
double dot(const Row& a, const Row& b) { return dot(a.data(), b.data(), a.size()); }

void add(Row& to, double factor, const double* row) {
  kernels::active().add_64(to.data(), factor, row, std::ssize(to));
}

std::uint64_t new_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

struct KeptHead {
  std::uint64_t id = 0;  // of the reference; 0: none
  bool of_queries = false, is_kept = false;
  std::int64_t entry = 0, head = 0;
  std::vector<double> first, second;
};

// The heads that a thread used last. Null: not used before, as a single row is not worth caching.
constexpr std::size_t kKept = 4;
constexpr double kMostKept = 0x1p24;  // bytes of one
KeptHead* kept_head(std::uint64_t id, bool of_queries, std::int64_t entry, std::int64_t head, double bytes) {
  thread_local std::array<KeptHead, kKept> heads;
  thread_local std::size_t next = 0;
  for (KeptHead& kept : heads)
    if (kept.id == id && kept.of_queries == of_queries && kept.entry == entry && kept.head == head)
      return bytes <= kMostKept ? &kept : nullptr;
  KeptHead& kept = heads[next++ % kKept];
  kept.id = id, kept.of_queries = of_queries, kept.entry = entry, kept.head = head;
  kept.is_kept = false;
  return nullptr;
}

}  // namespace

// Rows of two matrices of one head, with the rounding of inputs: cached, or one at a time.
class Reference::HeadRows {
 public:
  HeadRows(const Reference& reference, KeptHead* kept, const kernels::StridedMatrix& first,
           std::int64_t columns, const kernels::StridedMatrix& second, std::int64_t more_columns,
           std::int64_t rows)
      : reference_(reference),
        first_(first),
        second_(second),
        columns_(columns),
        more_columns_(more_columns),
        kept_(kept) {
    if (kept_ == nullptr || kept->is_kept) return;
    kept->first.resize(static_cast<std::size_t>(rows * columns));
    kept->second.resize(static_cast<std::size_t>(rows * more_columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      load(first, r, columns, kept->first.data() + r * columns);
      load(second, r, more_columns, kept->second.data() + r * more_columns);
    }
    kept->is_kept = true;
  }

  const double* first(std::int64_t row) {
    return row_of(first_, row, columns_, kept_ ? &kept_->first : nullptr, one_);
  }
  const double* second(std::int64_t row) {
    return row_of(second_, row, more_columns_, kept_ ? &kept_->second : nullptr, other_);
  }

 private:
  void load(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns,
            double* values) const {
    load_row(matrix, row, 0, columns, values);
    if (reference_.variation_.inputs)
      for (std::int64_t c = 0; c < columns; ++c) values[c] = reference_.variation_.inputs(values[c]);
  }
  const double* row_of(const kernels::StridedMatrix& matrix, std::int64_t row, std::int64_t columns,
                       const std::vector<double>* kept, Row& one) const {
    if (kept) return kept->data() + row * columns;
    if (reference_.is_plain(matrix))
      return reinterpret_cast<const double*>(matrix.data) + row * (matrix.row_stride / 8);
    one.resize(static_cast<std::size_t>(columns));
    load(matrix, row, columns, one.data());
    return one.data();
  }

  const Reference& reference_;
  kernels::StridedMatrix first_, second_;
  std::int64_t columns_, more_columns_;
  KeptHead* kept_;
  Row one_, other_;
};

Reference::Reference(const CheckedArguments& setup, const MaskPlan& plan, Variation variation)
    : setup_(setup), plan_(plan), variation_(std::move(variation)), id_(new_id()) {}

// Rows that are read in place.
bool Reference::is_plain(const kernels::StridedMatrix& matrix) const {
  return matrix.dtype == DType::float64 && matrix.column_stride == 8 && matrix.row_stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % alignof(double) == 0 && !variation_.inputs;
}

Reference::HeadRows Reference::keys_of(const Problem& p) const {
  const kernels::StridedMatrix keys = p.k.at({0, p.kv_length}), values = p.v.at({0, p.kv_length});
  const std::int64_t size = setup_.shape.head_size, value_size = setup_.shape.value_size;
  const double bytes = 8 * static_cast<double>(p.kv_length) * static_cast<double>(size + value_size);
  KeptHead* const kept = is_plain(keys) && is_plain(values)
                             ? nullptr
                             : kept_head(id_, false, p.entry, kv_head_of(p.head), bytes);
  return {*this, kept, keys, size, values, value_size, p.kv_length};
}

Reference::HeadRows Reference::queries_of(const Problem& p, const kernels::StridedMatrix& dout) const {
  const std::int64_t size = setup_.shape.head_size, value_size = setup_.shape.value_size;
  const double bytes = 8 * static_cast<double>(p.q_length) * static_cast<double>(size + value_size);
  KeptHead* const kept =
      is_plain(p.q) && is_plain(dout) ? nullptr : kept_head(id_, true, p.entry, p.head, bytes);
  return {*this, kept, p.q, size, dout, value_size, p.q_length};
}

std::int64_t Reference::kv_head_of(std::int64_t head) const {
  return variation_.interleaved ? head % setup_.shape.kv_heads : head / setup_.group();
}

Problem Reference::varied(const Problem& problem) const {
  Problem p = problem;
  if (variation_.interleaved || variation_.one_sequence) {
    const std::int64_t head = kv_head_of(p.head);
    const std::int64_t entry = variation_.one_sequence ? 0 : p.entry;
    p.k = setup_.rows_of(setup_.k, entry, head, setup_.kv_offsets);
    p.v = setup_.rows_of(setup_.v, entry, head, setup_.kv_offsets);
    if (variation_.one_sequence) p.kv_length = setup_.kv_offsets.back();
  }
  const auto read_from = [&](const ArrayView& array, std::int64_t head, std::int64_t entry, KeyRows& rows) {
    if (head < 0 && entry < 0) return;
    const std::int64_t e = entry < 0 ? p.entry : entry;
    if (setup_.kv_length(e) >= p.kv_length)
      rows = setup_.rows_of(array, e, kv_head_of(head < 0 ? p.head : head), setup_.kv_offsets);
  };
  const std::int64_t entries = setup_.shape.entries,
                     later = variation_.entry_step == 0
                                 ? -1
                                 : (p.entry + entries + variation_.entry_step) % entries;
  read_from(setup_.k, variation_.key_head, later < 0 ? variation_.key_entry : later, p.k);
  read_from(setup_.v, variation_.value_head, later < 0 ? variation_.value_entry : later, p.v);
  if (variation_.other) p = variation_.other->taken_by(p, kv_head_of(p.head));
  if (variation_.alibi_head >= 0)
    p.bias.alibi.slope = setup_.problem(p.entry, variation_.alibi_head).bias.alibi.slope;
  p.bias.alibi.slope *= variation_.alibi;
  p.bias.alibi.form = variation_.alibi_form.value_or(p.bias.alibi.form);
  if (!variation_.alibi_is_shifted) p.bias.alibi.shift = 0;
  if (setup_.bias && (variation_.bias_head >= 0 || variation_.bias_entry >= 0))
    p.bias = setup_
                 .problem(variation_.bias_entry >= 0 ? variation_.bias_entry : p.entry,
                          variation_.bias_head >= 0 ? variation_.bias_head : p.head)
                 .bias;
  return p;
}

double Reference::sink_of(std::int64_t head) const {
  if (!variation_.other_sinks.empty()) return variation_.other_sinks[static_cast<std::size_t>(head)];
  const double sink = setup_.ends.sink(variation_.sink_head >= 0 ? variation_.sink_head : head);
  if (sink == kNoSink || variation_.sinks == 0) return kNoSink;
  return sink * variation_.sink_scale + std::log(variation_.sinks);
}

bool Reference::is_mean_without_key(std::int64_t head) const {
  using NoKey = Variation::NoKey;
  return variation_.no_key == NoKey::mean ||
         (variation_.no_key == NoKey::own && setup_.ends.mean && sink_of(head) == kNoSink);
}

Variation::Cap Reference::cap_order() const {
  using Cap = Variation::Cap;
  if (variation_.cap != Cap::own) return variation_.cap;
  return setup_.softcap_order == SoftcapOrder::before_bias ? Cap::before_bias : Cap::after_bias;
}

// Which pairs of a rectangle, one row or one column, attend.
std::unique_ptr<bool[]> Reference::allowed(const Problem& problem, const mask::Rectangle& where) const {
  const std::int64_t n = where.rows() * where.columns();
  auto out = std::make_unique<bool[]>(static_cast<std::size_t>(n));
  const Mask* mask = nullptr;
  if (variation_.mask) {
    mask = variation_.mask(problem);
  } else if (const MaskTiles* tiles = plan_.of(problem)) {
    mask = &*tiles->mask;
  }
  const std::int64_t first =
      variation_.one_sequence ? setup_.q_offsets[static_cast<std::size_t>(problem.entry)] : 0;
  if (mask)
    mask->read(first + where.q_begin, first + where.q_end, where.k_begin, where.k_end, out.get());
  else
    std::fill_n(out.get(), n, true);
  return out;
}

std::vector<double> Reference::loaded(const kernels::StridedMatrix& matrix, std::int64_t row,
                                      std::int64_t columns) const {
  Row values = row_of(matrix, row, columns);
  if (variation_.inputs)
    for (double& value : values) value = variation_.inputs(value);
  return values;
}

Reference::Score Reference::score(const Problem& p, double product, std::int64_t i, std::int64_t j) const {
  using Cap = Variation::Cap;
  const double c = setup_.softcap;
  const Cap order = c > 0 ? cap_order() : Cap::none;
  const double bias =
      (variation_.bias == 0 ? 0 : variation_.bias * p.bias.of_array(i, j)) + p.bias.alibi.at(i, j);
  const double s = variation_.scores(setup_.scale * variation_.scale * variation_.scores(product));
  const auto capped = [&](double x) {
    const double t = std::tanh(x / c);
    return Score{variation_.capped * c * t, variation_.capped * (1 - t * t)};
  };
  Score result{s + bias, 1};
  if (order == Cap::before_bias) {
    result = capped(s);
    result.value += bias;
  } else if (order == Cap::after_bias) {
    result = capped(s + bias);
  }
  if (!variation_.slope) result.slope = 1;
  return result;
}

double Reference::product(const double* q, const double* k) const {
  const auto size = static_cast<std::size_t>(setup_.shape.head_size);
  if (!variation_.scaled_keys) return dot(q, k, size);
  const double factor = setup_.scale * std::numbers::log2e;
  double sum = 0;
  for (std::size_t d = 0; d < size; ++d) sum += q[d] * variation_.scaled_keys(factor * k[d]);
  return sum / factor;
}

void Reference::products(const Problem& problem, std::int64_t query, double* out) const {
  const Row q = loaded(problem.q, query, setup_.shape.head_size);
  HeadRows keys = keys_of(problem);
  for (std::int64_t j = 0; j < problem.kv_length; ++j) out[j] = dot(q.data(), keys.first(j), q.size());
}

// The query of a token of all entries; 0 after the last.
std::vector<double> Reference::query_of_token(std::int64_t head, std::int64_t token) const {
  const std::int64_t length = setup_.q.shape[2], entry = setup_.packed() ? 0 : token / length;
  if (token >= length && setup_.packed()) return Row(static_cast<std::size_t>(setup_.shape.head_size));
  return loaded(setup_.rows_of(setup_.q, entry, head, {0}), token - entry * length, setup_.shape.head_size);
}

// Rounds weights as a loop over tiles does: over the largest score so far.
void Reference::round(const ReferenceRow& r, std::vector<double>& weights) const {
  const std::size_t n = weights.size(),
                    length = variation_.tile > 0 ? static_cast<std::size_t>(variation_.tile) : n;
  double most = kNothing;
  for (std::size_t begin = 0; begin < n; begin += length) {
    const std::size_t end = std::min(n, begin + length);
    for (std::size_t j = begin; j < end; ++j) most = std::max(most, r.scores[j]);
    const double scale = std::exp(most - r.most);
    for (std::size_t j = begin; j < end && scale > 0; ++j)
      weights[j] = scale * variation_.weights(weights[j] / scale);
  }
}

// Joins parts of the keys, each with a softmax of its own, and sets the lse.
void Reference::join_parts(ReferenceRow& r, std::vector<double>& weights, std::int64_t first_query) const {
  const bool is_mean = variation_.loop == Variation::Loop::parts_by_mean;
  const auto parts = static_cast<std::size_t>(variation_.parts);
  const std::size_t length =
      parts > 0 ? (weights.size() + parts - 1) / parts : static_cast<std::size_t>(variation_.tile);
  const std::int64_t split = variation_.is_split_at_query ? first_query : variation_.split;
  const bool is_split = variation_.is_split_at_query || split > 0;
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (std::size_t begin = 0, end = 0; begin < weights.size(); begin = end) {
    end = !is_split                 ? begin + length
          : begin == 0 && split > 0 ? static_cast<std::size_t>(split)
                                    : weights.size();
    const auto part = std::span(weights).subspan(begin, std::min(end, weights.size()) - begin);
    const double own = std::accumulate(part.begin(), part.end(), 0.0);
    if (own == 0) continue;
    const double joined = is_mean ? all : std::exp(std::log2(own));
    for (double& weight : part) weight *= joined / own;
    sum += joined;
  }
  r.lse_of_keys = is_mean ? r.most + std::log(all) : r.most / std::log(2) + std::log(sum);
  for (double& weight : weights) weight *= std::exp(r.lse_of_keys - r.most) / sum;
}

// Applies a faulty loop over tiles to the weights exp(s − most) of a row, and sets its lse.
void Reference::weigh(ReferenceRow& r, std::vector<double>& weights, std::int64_t first_query) const {
  using Loop = Variation::Loop;
  if (variation_.loop == Loop::parts_by_lse_base_2 || variation_.loop == Loop::parts_by_mean)
    return join_parts(r, weights, first_query);
  const std::size_t n = weights.size(),
                    length = variation_.tile > 0 ? static_cast<std::size_t>(variation_.tile) : n;
  const double sum =
      variation_.zero_keys > 0 ? static_cast<double>(variation_.zero_keys) * std::exp(-r.most) : 0;
  // Without rescaling, the sums before a tile keep the factor that the new maximum should remove.
  const bool of_sum = variation_.loop == Loop::no_rescaling || variation_.loop == Loop::no_rescaling_of_sum,
             of_out = variation_.loop == Loop::no_rescaling || variation_.loop == Loop::no_rescaling_of_out;
  double most = kNothing;
  double before = 0;  // the sum so far, over exp(r.most)
  for (std::size_t begin = 0; begin < n && (of_sum || of_out); begin += length) {
    const std::size_t end = std::min(n, begin + length);
    double next = most, own = 0;
    for (std::size_t j = begin; j < end; ++j) next = std::max(next, r.scores[j]), own += weights[j];
    if (most != kNothing && next > most) {
      const double kept = std::exp(next - most);
      if (of_sum) before *= kept;
      for (std::size_t j = 0; j < begin && of_out; ++j) weights[j] *= kept;
    }
    most = next;
    before += own;
  }
  if (!of_sum) before = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (of_out && !of_sum) {
    before = 0;
    for (const double s : r.scores) before += s == kNothing ? 0 : std::exp(s - r.most);
  }
  r.lse_of_keys = RowEnd<double>{r.most, sum + before}.lse();
}

ReferenceRow Reference::row(const Problem& problem, std::int64_t query, Wanted wanted,
                            const double* products) const {
  const Problem p = varied(problem);
  ReferenceRow r;
  r.scores.assign(static_cast<std::size_t>(p.kv_length), kNothing);
  r.slopes.assign(static_cast<std::size_t>(p.kv_length), 1);
  r.out.assign(static_cast<std::size_t>(setup_.shape.value_size), 0);
  if (variation_.sizes) r.terms.resize(r.out.size());
  const double sink = sink_of(p.head);
  r.lse_of_keys = r.most = kNothing;
  r.lse = with_sink(kNothing, sink);
  if (p.kv_length == 0) return r;
  const auto attends = allowed(p, {query, query + 1, 0, p.kv_length});
  Row q = variation_.is_token_step ? query_of_token(p.head, p.entry + query)
                                   : loaded(p.q, query, setup_.shape.head_size);
  HeadRows keys = keys_of(p);
  double most = kNothing;
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (!attends[at] && !variation_.masked_score && !variation_.masks_weights) continue;
    const Score s = !attends[at] && variation_.masked_score
                        ? Score{*variation_.masked_score, 0}
                        : score(p, products ? products[j] : product(q.data(), keys.first(j)), query, j);
    r.scores[at] = s.value;
    r.slopes[at] = s.slope;
    if (s.value > most || std::isnan(s.value)) most = s.value;  // NaN stays
  }
  r.most = most;
  if (most == kNothing) {
    using NoKey = Variation::NoKey;
    if (variation_.no_key == NoKey::nan) r.out.assign(r.out.size(), std::nan(""));
    if (is_mean_without_key(p.head))
      for (std::int64_t j = 0; j < p.kv_length; ++j)
        add(r.out, 1 / static_cast<double>(p.kv_length), keys.second(j));
    return r;
  }
  std::vector<double> weights(r.scores.size());
  for (std::size_t j = 0; j < weights.size(); ++j)
    if (r.scores[j] != kNothing) weights[j] = std::exp(r.scores[j] - most);
  weigh(r, weights, p.kv_length - p.q_length);
  if (variation_.weights) round(r, weights);
  for (std::size_t j = 0; j < weights.size() && variation_.masks_weights; ++j)
    if (!attends[j]) weights[j] = 0;
  r.lse = with_sink(r.lse_of_keys, sink);
  if (wanted == Wanted::lse) return r;
  const double sum = std::exp(r.lse - most);
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const auto at = static_cast<std::size_t>(j);
    const double kept = p.dropout.factor_at(query, j);
    if (r.scores[at] == kNothing || kept == 0) continue;
    const double* const v = keys.second(j);
    const double weight = sum == 0 ? 0 : variation_.value_scale * kept * weights[at] / sum;
    add(r.out, weight, v);
    if (variation_.sizes) r.terms.add(weight, v);
  }
  return r;
}

Reference::Statistics Reference::statistics(const ReferenceRow& r, const kernels::StridedMatrix& dout,
                                            std::int64_t query) const {
  return {r.lse, dot(row_of(dout, query, setup_.shape.value_size), r.out)};
}

std::vector<double> Reference::dq(const Problem& problem, const ReferenceRow& r, const Statistics& statistics,
                                  const kernels::StridedMatrix& dout, std::int64_t query,
                                  Terms* terms) const {
  const Problem p = varied(problem);
  Row gradient(static_cast<std::size_t>(setup_.shape.head_size));
  if (terms) terms->resize(gradient.size());
  if (statistics.lse == kNothing) {
    if (variation_.no_key == Variation::NoKey::nan) gradient.assign(gradient.size(), std::nan(""));
    return gradient;
  }
  const Row g = loaded(dout, query, setup_.shape.value_size);
  const double scale = setup_.scale * variation_.scale * variation_.scale_of_gradient;
  HeadRows keys = keys_of(p);
  for (std::int64_t j = 0; j < p.kv_length; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (r.scores[at] == kNothing) continue;
    const double kept = p.dropout.factor_at(query, j),
                 dp = kept == 0 ? 0 : kept * dot(g.data(), keys.second(j), g.size());
    const double ds = variation_.ds(std::exp(r.scores[at] - variation_.lse * statistics.lse) *
                                    (dp - variation_.delta * statistics.delta) * r.slopes[at]);
    const double* const k = keys.first(j);
    add(gradient, scale * ds, k);
    if (terms) terms->add(scale * ds, k);
  }
  return gradient;
}

double reference_work(const CheckedArguments& setup) {
  double pairs = 0;
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    pairs += static_cast<double>(setup.q_length(e)) * static_cast<double>(setup.kv_length(e));
  pairs *= static_cast<double>(setup.shape.heads);
  return pairs * static_cast<double>(setup.shape.head_size + setup.shape.value_size + 32);
}

double reference_bytes(const CheckedArguments& setup) {
  const double rows = static_cast<double>(std::max(setup.longest_queries(), setup.longest_keys())),
               head = 8 * rows * static_cast<double>(setup.shape.head_size + setup.shape.value_size);
  return head > kMostKept ? 0 : static_cast<double>(static_cast<std::size_t>(threads()) * kKept) * head;
}

template <class F>
void Reference::each_query(double work, F&& f) const {
  core::parallel_for(setup_.problems(), work, [&](std::int64_t n) {
    const Problem p = setup_.problem(n / setup_.shape.heads, n % setup_.shape.heads);
    for (std::int64_t i = 0; i < p.q_length; ++i) f(p, i);
  });
}

Reference::Saved Reference::saved(const ArrayView& dout) const {
  const ArrayView g = in_one_form(dout, setup_.layout);
  Saved saved;
  const auto rows = static_cast<std::size_t>(element_count(setup_.shape.lse));
  saved.lse.resize(rows);
  saved.delta.resize(rows);
  each_query(reference_work(setup_), [&](const Problem& p, std::int64_t i) {
    const auto at = static_cast<std::size_t>(p.first_row + i);
    const Statistics of_row = statistics(row(p, i), setup_.rows_of(g, p.entry, p.head, setup_.q_offsets), i);
    saved.lse[at] = of_row.lse;
    saved.delta[at] = of_row.delta;
  });
  return saved;
}

std::vector<double> Reference::deltas(const ArrayView& dout, const ArrayView& out) const {
  const ArrayView g = in_one_form(dout, setup_.layout), o = in_one_form(out, setup_.layout);
  std::vector<double> delta(static_cast<std::size_t>(element_count(setup_.shape.lse)));
  each_query(static_cast<double>(element_count(dout.shape)), [&](const Problem& p, std::int64_t i) {
    const auto values = [&](const ArrayView& of) {
      return row_of(setup_.rows_of(of, p.entry, p.head, setup_.q_offsets), i, setup_.shape.value_size);
    };
    delta[static_cast<std::size_t>(p.first_row + i)] = dot(values(g), values(o));
  });
  return delta;
}

Reference::KeyGradients Reference::key(std::int64_t entry, std::int64_t kv_head, std::int64_t key,
                                       const ArrayView& dout, const Saved& saved) const {
  const ArrayView gradients = in_one_form(dout, setup_.layout);
  KeyGradients sum{Row(static_cast<std::size_t>(setup_.shape.head_size)),
                   Row(static_cast<std::size_t>(setup_.shape.value_size)),
                   0,
                   {},
                   {}};
  if (variation_.sizes) sum.dk_terms.resize(sum.dk.size()), sum.dv_terms.resize(sum.dv.size());
  using Heads = Variation::Heads;
  std::vector<std::int64_t> heads;
  for (std::int64_t h = 0; h < setup_.shape.heads; ++h)
    if ((variation_.heads == Heads::interleaved ? h % setup_.shape.kv_heads : kv_head_of(h)) == kv_head)
      heads.push_back(h);
  if (variation_.heads == Heads::first) heads.resize(1);
  if (variation_.heads == Heads::last) heads.erase(heads.begin(), heads.end() - 1);
  const double part = variation_.heads == Heads::mean ? 1 / static_cast<double>(heads.size()) : 1;
  const double scale = setup_.scale * variation_.scale * variation_.scale_of_gradient;
  const bool one = variation_.one_sequence;
  const std::int64_t first = one ? 0 : entry, last = one ? setup_.shape.entries : entry + 1;
  if (one) key += setup_.kv_offsets[static_cast<std::size_t>(entry)];
  for (std::int64_t n = first * std::ssize(heads); n < last * std::ssize(heads); ++n) {
    const std::int64_t e = n / std::ssize(heads), h = heads[static_cast<std::size_t>(n % std::ssize(heads))];
    const Problem p = varied(setup_.problem(e, h));
    if (p.q_length == 0) continue;
    const kernels::StridedMatrix g = setup_.rows_of(gradients, e, h, setup_.q_offsets);
    const auto attends = allowed(p, {0, p.q_length, key, key + 1});
    const Positions own{key, key + 1};
    const Row k = loaded(p.k.at(own), 0, setup_.shape.head_size),
              v = loaded(p.v.at(own), 0, setup_.shape.value_size);
    HeadRows queries = queries_of(p, g);
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      const auto at = static_cast<std::size_t>(p.first_row + i);
      const bool is_nan = variation_.no_key == Variation::NoKey::nan;
      if (saved.lse[at] == kNothing && (is_nan || is_mean_without_key(h))) {
        const double weight = is_nan ? std::nan("") : part / static_cast<double>(p.kv_length);
        add(sum.dv, weight, queries.second(i));
        sum.weight += weight;
        if (variation_.sizes) sum.dv_terms.add(weight, queries.second(i));
      }
      if (!attends[static_cast<std::size_t>(i)] || saved.lse[at] == kNothing) continue;
      const double* const q = queries.first(i);
      const Score s = score(p, product(q, k.data()), i, key);
      if (s.value == kNothing) continue;
      const double* const dout_row = queries.second(i);
      const double probability = std::exp(s.value - variation_.lse * saved.lse[at]);
      const double kept = p.dropout.factor_at(i, key),
                   dp = kept == 0 ? 0 : kept * dot(dout_row, v.data(), v.size());
      const double weight = part * kept * variation_.weights(probability);
      if (kept != 0) add(sum.dv, weight, dout_row);
      sum.weight += probability;
      const double ds =
          variation_.ds(part * probability * (dp - variation_.delta * saved.delta[at]) * s.slope);
      add(sum.dk, scale * ds, q);
      if (!variation_.sizes) continue;
      if (kept != 0) sum.dv_terms.add(weight, dout_row);
      sum.dk_terms.add(scale * ds, q);
    }
  }
  return sum;
}

Reference::BiasGradients Reference::bias(std::int64_t entry, std::int64_t head, std::int64_t row,
                                         Positions keys, const ArrayView& dout, const Saved& saved) const {
  const ArrayView gradients = in_one_form(dout, setup_.layout);
  const Region served = setup_.queries_of_bias({{entry, entry + 1}, {head, head + 1}, {row, row + 1}});
  const Positions queries = served.positions_of(setup_.q.shape[2]);
  const bool has_keys = setup_.bias_has(BiasAxis::keys);
  const Positions columns = has_keys ? keys : Positions{0, setup_.k.shape[2]};
  BiasGradients sum{
      Row(static_cast<std::size_t>(keys.count())), Row(static_cast<std::size_t>(keys.count())), {}};
  if (variation_.sizes) sum.terms.resize(sum.dbias.size());
  if (columns.count() == 0) return sum;
  for (std::int64_t e = served.entries.begin; e < served.entries.end; ++e)
    for (std::int64_t h = served.heads.begin; h < served.heads.end; ++h) {
      const Problem p = varied(setup_.problem(e, h));
      const kernels::StridedMatrix g = setup_.rows_of(gradients, e, h, setup_.q_offsets);
      HeadRows keys_and_values = keys_of(p);
      for (std::int64_t i = queries.begin; i < queries.end; ++i) {
        const auto of_query = static_cast<std::size_t>(p.first_row + i);
        if (saved.lse[of_query] == kNothing) continue;
        const auto attends = allowed(p, {i, i + 1, columns.begin, columns.end});
        const Row q = loaded(p.q, i, setup_.shape.head_size),
                  dout_row = loaded(g, i, setup_.shape.value_size);
        for (std::int64_t j = columns.begin; j < columns.end; ++j) {
          if (!attends[static_cast<std::size_t>(j - columns.begin)]) continue;
          const Score s = score(p, dot(q.data(), keys_and_values.first(j), q.size()), i, j);
          if (s.value == kNothing) continue;
          const double probability = std::exp(s.value - saved.lse[of_query]);
          const double kept = p.dropout.factor_at(i, j);
          const double dp =
              kept == 0 ? 0 : kept * dot(dout_row.data(), keys_and_values.second(j), dout_row.size());
          // Added after the soft cap, whose derivative then does not apply.
          const double slope = cap_order() == Variation::Cap::after_bias ? s.slope : 1;
          const double ds = probability * (dp - variation_.delta * saved.delta[of_query]) * slope;
          const auto at = static_cast<std::size_t>(has_keys ? j - columns.begin : 0);
          sum.dbias[at] += ds;
          sum.weights[at] += probability;
          if (!variation_.sizes) continue;
          sum.terms.sizes[at] += std::abs(ds);
          sum.terms.squares[at] += ds * ds;
        }
      }
    }
  return sum;
}

Reference::SinkGradient Reference::sink(std::int64_t head, const Saved& saved) const {
  SinkGradient sum;
  if (variation_.sizes) sum.terms.resize(1);
  const double sink = sink_of(head);
  for (std::int64_t e = 0; e < setup_.shape.entries && sink != kNoSink; ++e) {
    const std::int64_t first = setup_.first_row(e, head);
    for (std::int64_t i = 0; i < setup_.q_length(e); ++i) {
      const auto at = static_cast<std::size_t>(first + i);
      const double weight = std::exp(sink - variation_.lse * saved.lse[at]),
                   delta = variation_.delta * saved.delta[at];
      sum.dsink -= weight * delta;
      sum.weight += weight;
      if (variation_.sizes) sum.terms.add(weight, &delta);
    }
  }
  return sum;
}

namespace {

// One row of a float64 array of the arguments' layout.
double* row_in(const CheckedArguments& setup, const Array& array, const Problem& p, std::int64_t head,
               const std::vector<std::int64_t>& offsets, std::int64_t row) {
  const kernels::StridedMatrix rows =
      setup.rows_of(in_one_form(array.view(), setup.layout), p.entry, head, offsets);
  return reinterpret_cast<double*>(const_cast<std::byte*>(static_cast<const std::byte*>(rows.data)) +
                                   row * rows.row_stride);
}

Shape with_last(Shape shape, std::int64_t length) {
  shape.back() = length;
  return shape;
}

}  // namespace

Reference::Forward Reference::forward() const {
  Forward result{Array(DType::float64, setup_.shape.out), Array(DType::float64, setup_.shape.lse)};
  const auto lse = result.lse.elements<double>();
  std::fill(lse.begin(), lse.end(), setup_.ends.lse.empty);  // of padding, which no problem has
  each_query(reference_work(setup_), [&](const Problem& p, std::int64_t i) {
    const ReferenceRow r = row(p, i);
    lse[static_cast<std::size_t>(p.first_row + i)] = given_lse(r);
    std::copy(r.out.begin(), r.out.end(), row_in(setup_, result.out, p, p.head, setup_.q_offsets, i));
  });
  return result;
}

Reference::Backward Reference::backward(const ArrayView& dout, Saved saved) const {
  const Shape q = with_last(setup_.shape.out, setup_.shape.head_size), k = in_layout(setup_.k, setup_.layout);
  Backward result{Array(DType::float64, q),
                  Array(DType::float64, k),
                  Array(DType::float64, with_last(k, setup_.shape.value_size)),
                  Array(DType::float64, with_last(k, 1)),
                  {},
                  {},
                  {},
                  {},
                  std::move(saved)};
  const ArrayView g = in_one_form(dout, setup_.layout);
  each_query(reference_work(setup_), [&](const Problem& p, std::int64_t i) {
    const auto at = static_cast<std::size_t>(p.first_row + i);
    const Row of_query = dq(p, row(p, i), {result.saved.lse[at], result.saved.delta[at]},
                            setup_.rows_of(g, p.entry, p.head, setup_.q_offsets), i);
    std::copy(of_query.begin(), of_query.end(), row_in(setup_, result.dq, p, p.head, setup_.q_offsets, i));
  });
  const std::int64_t kv_heads = setup_.shape.kv_heads;
  core::parallel_for(setup_.shape.entries * kv_heads, reference_work(setup_), [&](std::int64_t n) {
    Problem p;
    p.entry = n / kv_heads;
    const std::int64_t head = n % kv_heads;
    for (std::int64_t j = 0; j < setup_.kv_length(p.entry); ++j) {
      const KeyGradients of_key = key(p.entry, head, j, dout, result.saved);
      std::copy(of_key.dk.begin(), of_key.dk.end(), row_in(setup_, result.dk, p, head, setup_.kv_offsets, j));
      std::copy(of_key.dv.begin(), of_key.dv.end(), row_in(setup_, result.dv, p, head, setup_.kv_offsets, j));
      *row_in(setup_, result.weights, p, head, setup_.kv_offsets, j) = of_key.weight;
    }
  });
  if (setup_.has_sinks()) {
    result.dsinks = Array(DType::float64, {setup_.shape.heads});
    result.sink_weights = Array(DType::float64, {setup_.shape.heads});
    for (std::int64_t h = 0; h < setup_.shape.heads; ++h) {
      const SinkGradient of_head = sink(h, result.saved);
      result.dsinks.elements<double>()[static_cast<std::size_t>(h)] = of_head.dsink;
      result.sink_weights.elements<double>()[static_cast<std::size_t>(h)] = of_head.weight;
    }
  }
  if (!setup_.bias) return result;
  const Shape all = setup_.bias_shape,
              own(all.end() - static_cast<std::ptrdiff_t>(setup_.bias_rank), all.end());
  result.dbias = Array(DType::float64, own);
  result.bias_weights = Array(DType::float64, own);
  core::parallel_for(all[0] * all[1] * all[2], reference_work(setup_), [&](std::int64_t n) {
    const BiasGradients of_row =
        bias(n / all[2] / all[1], n / all[2] % all[1], n % all[2], {0, all[3]}, dout, result.saved);
    std::copy(of_row.dbias.begin(), of_row.dbias.end(), result.dbias.elements<double>().data() + n * all[3]);
    std::copy(of_row.weights.begin(), of_row.weights.end(),
              result.bias_weights.elements<double>().data() + n * all[3]);
  });
  return result;
}

}  // namespace ejk::attn
