// Backward pass by tiles. A task has a block of keys and visits the queries of its heads block by block.
// Scores are recomputed, keys × queries, and P = exp(s − lse) needs no second pass over a row:
//   Sᵀ = k qᵀ, dPᵀ = v doutᵀ,  dv += Pᵀ dout, dk += dSᵀ q,  dqᵀ += kᵀ dSᵀ
// Each product finds its factors in the form in which the previous one left them. dk and dv belong to the
// task. dq, kept transposed, is accumulated by the tasks of a head in the order of their keys, by a turn
// counter for each block of queries. Tasks start in that order, so a task that others wait for is running.
// The gradient of a bias is a pass of its own that computes scores and dP once more. Sums are float64.
// tests: tests/attention/test_attention_grad.cpp
#include "attention/backward.hpp"

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "attention/forward.hpp"
#include "attention/packing.hpp"
#include "attention/row_products.hpp"
#include "attention/tasks.hpp"
#include "attention/tile_mask.hpp"

namespace ejk::attn {

namespace {

class OrderedAccumulation {
 public:
  explicit OrderedAccumulation(std::int64_t blocks) : next_(static_cast<std::size_t>(blocks)) {}

  void begin(std::int64_t block, std::int64_t first) { at(block).store(first, std::memory_order_relaxed); }
  /// False when another task failed, which may be the one that is waited for.
  bool wait(std::int64_t block, std::int64_t own) const {
    while (at(block).load(std::memory_order_acquire) != own) {
      if (failed_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass(std::int64_t block, std::int64_t to) { at(block).store(to, std::memory_order_release); }
  void fail() { failed_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t>& at(std::int64_t block) { return next_[static_cast<std::size_t>(block)]; }
  const std::atomic<std::int64_t>& at(std::int64_t block) const {
    return next_[static_cast<std::size_t>(block)];
  }
  std::vector<std::atomic<std::int64_t>> next_;
  std::atomic<bool> failed_{false};
};

enum class Wanted { all, keys, bias };

// Sum of the head sizes above which blocks of queries are shorter, so that they stay in the caches.
constexpr std::int64_t kLargeSizes = 160;

template <class Real>
BlockShape block_of_passes(const CheckedArguments& setup) {
  const std::int64_t longest = gemm_of<Real>().kc;
  return {std::clamp<std::int64_t>(
              setup.longest_queries(), 1,
              setup.shape.head_size + setup.shape.value_size > kLargeSizes ? longest / 2 : longest),
          std::min(setup.block.kv, longest)};
}

// f(entry, head, queries) for all blocks of a region, with little work for each element.
template <class F>
void for_each_block(const CheckedArguments& setup, const Region& queries, std::int64_t block, F&& f) {
  const auto length = [&](std::int64_t e) { return setup.q_length(e); };
  double rows = 0;
  for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
    rows += static_cast<double>(queries.positions_of(length(e)).count());
  for_each_piece(queries, length, block, Order::first_first,
                 rows * static_cast<double>(queries.heads.count()) *
                     static_cast<double>(setup.shape.head_size + setup.shape.value_size),
                 f);
}

template <class Real>
void find_deltas_as(const CheckedArguments& setup, const Region& region, const ArrayView& douts,
                    const ArrayView& outs, Real* delta) {
  const std::int64_t size = setup.shape.value_size;
  for_each_block(setup, region, block_of_passes<Real>(setup).q,
                 [&](std::int64_t entry, std::int64_t head, Positions queries) {
                   const Problem p = setup.problem(entry, head);
                   const kernels::StridedMatrix dout = setup.rows_of(douts, entry, head, setup.q_offsets),
                                                out = setup.rows_of(outs, entry, head, setup.q_offsets);
                   thread_local std::vector<Real> left, right;
                   left.resize(static_cast<std::size_t>(size));
                   right.resize(left.size());
                   for (std::int64_t i = queries.begin; i < queries.end; ++i) {
                     load_row(dout, i, 0, size, left.data());
                     load_row(out, i, 0, size, right.data());
                     Real sum = 0;
                     for (std::size_t d = 0; d < left.size(); ++d) sum += left[d] * right[d];
                     delta[p.first_row + i] = sum;
                   }
                 });
}

template <class Real>
class Backward {
 public:
  Backward(const CheckedArguments& setup, const MaskPlan& plan, Wanted wanted, const Region& queries,
           const Saved& saved, const RowWriter* dq, const RowWriter* dk, const RowWriter* dv)
      : setup_(setup),
        plan_(plan),
        wanted_(wanted),
        queries_(queries),
        saved_(saved),
        lse_(static_cast<const Real*>(saved.lse)),
        delta_(static_cast<const Real*>(saved.delta)),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        score_gemm_(gemm_of<Real>(setup.k.dtype, setup.q.dtype)),
        value_gemm_(gemm_of<Real>(setup.v.dtype, saved.dout.dtype)),
        gemm_(gemm_of<Real>()),
        softmax_(softmax_of<Real>()),
        few_(setup),
        decode_rows_(most_decode_rows(queries)),
        group_(group_rows(score_gemm_.mr < value_gemm_.mr ? score_gemm_ : value_gemm_, gemm_)),
        key_block_(block_of_passes<Real>(setup).kv),
        query_block_(block_of_passes<Real>(setup).q),
        first_turn_(first_pieces(
            queries, [&](std::int64_t e) { return setup_.q_length(e); }, query_block_)),
        dq_transposed_(wanted == Wanted::all
                           ? static_cast<std::size_t>(setup.rows(queries) * setup.shape.head_size)
                           : 0),
        turns_(wanted == Wanted::all ? first_turn_.back() : 0),
        of_means_(gradients_of_means()) {
    if (wanted == Wanted::all)
      for_each_block(setup_, queries_, query_block_,
                     [&](std::int64_t entry, std::int64_t head, Positions some) {
                       const Problem p = setup_.problem(entry, head);
                       turns_.begin(turn_of(p, some), next_keys(p, some, 0));
                     });
  }

  std::int64_t key_block() const { return key_block_; }
  std::int64_t query_block() const { return query_block_; }

  /// dk and dv of some keys, and their contribution to dq if requested. Returns the number of pairs.
  std::int64_t keys(std::int64_t entry, std::int64_t kv_head, Positions keys) {
    try {
      return add_keys(entry, kv_head, keys);
    } catch (...) {
      turns_.fail();
      throw;
    }
  }

  // Adds dS of key j and query i, counted from the first, to sums[j * by_key + i * by_query]. Returns the
  // number of pairs.
  // NOLINTNEXTLINE(readability-non-const-parameter): a task writes to them
  std::int64_t bias(std::int64_t entry, std::int64_t head, Positions queries, Positions keys, double* sums,
                    std::int64_t by_key, std::int64_t by_query) const {
    const Problem p = setup_.problem(entry, head);
    thread_local TileMask mask;
    thread_local NonFiniteRows<Real> finite_k;
    Task t(*this, std::min(key_block_, p.kv_length));
    t.by_key = by_key;
    t.by_query = by_query;
    const matmul::Tiles tiles(score_gemm_.enter != nullptr ? score_gemm_ : value_gemm_);
    for (std::int64_t j = keys.begin; j < keys.end; j += key_block_) {
      const Positions some_keys{j, std::min(j + key_block_, keys.end)};
      take_keys(p, some_keys, finite_k, t);
      for (std::int64_t i = queries.begin; i < queries.end; i += query_block_) {
        const Positions some{i, std::min(i + query_block_, queries.end)};
        mask.begin(setup_, plan_.of(p), some, TileMask::Rows::keys);
        if (!mask.keys(some_keys)) continue;
        take_queries(p, some, t);
        t.sums = sums + (j - keys.begin) * by_key + (i - queries.begin) * by_query;
        differentiate_block(p, some, some_keys, mask, t);
      }
    }
    return queries.count() * keys.count();
  }

  void finish() const {
    for_each_block(setup_, queries_, query_block_,
                   [&](std::int64_t entry, std::int64_t head, Positions queries) {
                     const Problem p = setup_.problem(entry, head);
                     store_queries(p, queries);
                   });
  }

 private:
  static constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));

  kernels::StridedMatrix dout_of(const Problem& p) const {
    return setup_.rows_of(saved_.dout, p.entry, p.head, setup_.q_offsets);
  }
  // The second factors of gradients: q, k and dout, unless squares are summed.
  kernels::StridedMatrix q_factor(const Problem& p) const {
    return saved_.squared ? setup_.rows_of(saved_.squared->q, p.entry, p.head, setup_.q_offsets) : p.q;
  }
  KeyRows k_factor(const Problem& p) const {
    return saved_.squared ? setup_.rows_of(saved_.squared->k, p.entry, p.kv_head, setup_.kv_offsets) : p.k;
  }
  kernels::StridedMatrix dout_factor(const Problem& p) const {
    return saved_.squared ? setup_.rows_of(saved_.squared->dout, p.entry, p.head, setup_.q_offsets)
                          : dout_of(p);
  }

  std::int64_t of_means_at(std::int64_t entry, std::int64_t kv_head) const {
    const std::int64_t group = setup_.group();
    return ((entry - queries_.entries.begin) * (queries_.heads.count() / group) + kv_head -
            queries_.heads.begin / group) *
           setup_.shape.value_size;
  }
  // What queries without a key add to the gradient of every value of their entry, where their results are the
  // mean of these. Of squared terms: times their number, as all have the same weight and its rounding.
  std::vector<double> gradients_of_means() const {
    if (!setup_.ends.mean || wanted_ == Wanted::bias) return {};
    const std::int64_t size = setup_.shape.value_size, group = setup_.group(),
                       heads = queries_.heads.count() / group;
    std::vector<double> sums(static_cast<std::size_t>(queries_.entries.count() * heads * size));
    const double elements = static_cast<double>(setup_.rows(queries_)) * static_cast<double>(size);
    core::parallel_for(queries_.entries.count() * heads, elements, [&](std::int64_t n) {
      const std::int64_t entry = queries_.entries.begin + n / heads,
                         kv_head = queries_.heads.begin / group + n % heads;
      double* const sum = sums.data() + of_means_at(entry, kv_head);
      std::vector<double> row(static_cast<std::size_t>(size));
      std::int64_t lost = 0;
      for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const Problem p = setup_.problem(entry, h);
        const double keys = static_cast<double>(p.kv_length),
                     weight = 1 / (saved_.squared ? keys * keys : keys);
        for (std::int64_t i = 0; i < p.q_length; ++i) {
          if (lse_[p.first_row + i] != RowEnd<Real>::kEmpty) continue;
          load_row(dout_factor(p), i, 0, size, row.data());
          for (std::int64_t d = 0; d < size; ++d) sum[d] += weight * row[static_cast<std::size_t>(d)];
          ++lost;
        }
      }
      for (std::int64_t d = 0; d < size && saved_.squared; ++d) sum[d] *= static_cast<double>(lost);
    });
    return sums;
  }

  Real* dq_of(const Problem& p) { return dq_transposed_.data() + p.first_row * setup_.shape.head_size; }
  const Real* dq_of(const Problem& p) const {
    return dq_transposed_.data() + p.first_row * setup_.shape.head_size;
  }

  std::int64_t turn_of(const Problem& p, Positions queries) const {
    return first_turn_[static_cast<std::size_t>(p.entry - queries_.entries.begin)] +
           (p.head - queries_.heads.begin) * core::ceil_div(p.q_length, query_block_) +
           queries.begin / query_block_;
  }
  // The first block of keys from `block` on that the mask leaves to some of the queries.
  std::int64_t next_keys(const Problem& p, Positions queries, std::int64_t block) const {
    const MaskTiles* const tiles = plan_.of(p);
    while (block * key_block_ < p.kv_length &&
           TileMask::state_of(tiles, setup_.block, queries, block_of(block, key_block_, p.kv_length)) ==
               mask::BlockState::empty)
      ++block;
    return block;
  }

  struct Task {
    Task(const Backward& b, std::int64_t keys)
        : k(b.score_gemm_, b.group_, b.setup_.shape.head_size),
          v(b.value_gemm_, b.group_, b.setup_.shape.value_size),
          k_transposed(b.gemm_, b.gemm_.mr, keys),
          q_transposed(b.score_gemm_, b.setup_.shape.head_size, b.query_block_),
          dout_transposed(b.value_gemm_, b.setup_.shape.value_size, b.query_block_),
          q(b.gemm_, b.query_block_, b.setup_.shape.head_size),
          dout(b.gemm_, b.query_block_, b.setup_.shape.value_size),
          ds(b.gemm_, keys, b.query_block_),
          dk_stride(core::round_up(b.setup_.shape.head_size, 64 / kSize)),
          dv_stride(core::round_up(b.setup_.shape.value_size, 64 / kSize)) {
      k.reserve(memory, keys);
      v.reserve(memory, keys);
      memory.add(k_transposed_memory, k_transposed.bytes(b.setup_.shape.head_size));
      for (PackedB* factor : {&q_transposed, &dout_transposed, &q, &dout, &ds}) factor->reserve(memory);
      for (Real** of_keys : {&weights, &gradients}) memory.add(*of_keys, b.group_ * b.gemm_.a_stride / kSize);
      for (Real** of_queries : {&lse, &delta, &bias, &slopes}) memory.add(*of_queries, b.query_block_);
      memory.add(dk, keys * dk_stride);
      memory.add(dv, keys * dv_stride);
      memory.add(few, b.decode_rows_ * b.few_.stride());
      const std::int64_t keys_together = b.decode_rows_ == 0 ? 0 : std::min(b.group_, keys);
      memory.add(buffer, keys_together * moved_stride(b.setup_.shape.head_size));
      memory.add(products, b.decode_rows_ * b.products_stride());
      memory.take();
    }

    PackedA k, v, k_transposed;
    PackedB q_transposed, dout_transposed, q, dout, ds;
    std::int64_t dk_stride, dv_stride;
    Real *weights = nullptr, *gradients = nullptr;  // of a group of keys, in the form of a left factor
    Real *lse = nullptr, *delta = nullptr, *bias = nullptr, *slopes = nullptr;  // of a block of queries
    Real *dk = nullptr, *dv = nullptr;
    Real *few = nullptr, *buffer = nullptr,
         *products = nullptr;  // few queries; keys and products of a group of keys with them
    double* sums = nullptr;    // of a block's dS, by key and by query
    std::int64_t by_key = 0, by_query = 0;
    std::byte* k_transposed_memory;
    ScratchLayout memory;
  };

  void take_keys(const Problem& p, Positions keys, NonFiniteRows<Real>& finite_k, Task& t) const {
    t.k.pack(p.k.at(keys), keys.count());
    t.v.pack(p.v.at(keys), keys.count());
    if (wanted_ != Wanted::all) return;
    t.k_transposed = PackedA(gemm_, gemm_.mr, keys.count());
    t.k_transposed.bind(t.k_transposed_memory);
    t.k_transposed.pack(transposed(finite_k.of(k_factor(p).at(keys), keys.count(), setup_.shape.head_size)),
                        setup_.shape.head_size);
  }

  void take_queries(const Problem& p, Positions queries, Task& t) const {
    const kernels::StridedMatrix q = part_of(p.q, queries.begin), dout = part_of(dout_of(p), queries.begin);
    if (is_decode(setup_, p.entry))
      few_.take_queries(p.entry, q, 0, queries.count(), 0, t.few);
    else
      t.q_transposed.pack(transposed(q), setup_.shape.head_size, queries.count());
    t.dout_transposed.pack(transposed(dout), setup_.shape.value_size, queries.count());
    std::copy_n(lse_ + p.first_row + queries.begin, queries.count(), t.lse);
    std::copy_n(delta_ + p.first_row + queries.begin, queries.count(), t.delta);
  }

  std::int64_t add_keys(std::int64_t entry, std::int64_t kv_head, Positions keys) {
    const std::int64_t size = setup_.shape.head_size, value_size = setup_.shape.value_size;
    const std::int64_t heads = setup_.group();
    thread_local NonFiniteRows<Real> finite_k;
    Task t(*this, keys.count());
    std::fill_n(t.dk, keys.count() * t.dk_stride, Real{0});
    std::fill_n(t.dv, keys.count() * t.dv_stride, Real{0});
    const matmul::Tiles tiles(score_gemm_.enter != nullptr ? score_gemm_ : value_gemm_);
    for (std::int64_t h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
      const Problem p = setup_.problem(entry, h);
      if (h == kv_head * heads) take_keys(p, keys, finite_k, t);
      for (std::int64_t b = 0; b * query_block_ < p.q_length; ++b)
        add_block(p, block_of(b, query_block_, p.q_length), keys, finite_k, t);
    }
    if (!of_means_.empty()) {
      const double* const more = of_means_.data() + of_means_at(entry, kv_head);
      for (std::int64_t j = 0; j < keys.count(); ++j)
        for (std::int64_t d = 0; d < value_size; ++d) t.dv[j * t.dv_stride + d] += static_cast<Real>(more[d]);
    }
    for (std::int64_t j = 0; j < keys.count(); ++j) {
      dk_->store(entry, kv_head, setup_.kv_offsets, keys.begin + j, t.dk + j * t.dk_stride, size);
      dv_->store(entry, kv_head, setup_.kv_offsets, keys.begin + j, t.dv + j * t.dv_stride, value_size);
    }
    return keys.count() * setup_.q_length(entry) * heads;
  }

  void add_block(const Problem& p, Positions queries, Positions keys, const NonFiniteRows<Real>& finite_k,
                 Task& t) {
    thread_local TileMask mask;
    mask.begin(setup_, plan_.of(p), queries, TileMask::Rows::keys);
    if (!mask.keys(keys)) return;
    take_queries(p, queries, t);
    differentiate_block(p, queries, keys, mask, t);
    if (wanted_ == Wanted::keys) return;

    const std::int64_t turn = turn_of(p, queries), own = keys.begin / key_block_;
    if (!turns_.wait(turn, own)) return;
    add_to_queries(p, queries, keys, finite_k, mask, t);
    turns_.pass(turn, next_keys(p, queries, own + 1));
  }

  // Whether a pair adds to gradients where a factor of its own is not finite.
  bool attends(const Problem& p, Positions queries, Positions keys, const TileMask& mask, const Task& t,
               std::int64_t key, std::int64_t query) const {
    return mask.allowed(key, query) && t.lse[query] != RowEnd<Real>::kEmpty &&
           !without_weight<Real>(setup_, p, queries.begin + query, keys.begin + key);
  }

  // dS of a block, and its contribution to dk and dv, or to the sums of the bias. Factors are packed before.
  void differentiate_block(const Problem& p, Positions queries, Positions keys, TileMask& mask,
                           Task& t) const {
    thread_local NonFiniteRows<Real> finite_q, finite_dout;
    const std::int64_t size = setup_.shape.head_size, value_size = setup_.shape.value_size;
    const std::int64_t count = queries.count(), stride = gemm_.a_stride / kSize;
    const bool to_keys = wanted_ != Wanted::bias;
    if (to_keys) {
      t.q.pack(finite_q.of(part_of(q_factor(p), queries.begin), count, size), count, size);
      t.dout.pack(finite_dout.of(part_of(dout_factor(p), queries.begin), count, value_size), count,
                  value_size);
    }
    for (std::int64_t first = 0; first < keys.count(); first += group_) {
      const Positions rows{first, std::min(first + group_, keys.count())};
      const Positions pairs = mask.columns(rows);
      const Positions columns{pairs.begin / score_gemm_.nr * score_gemm_.nr, pairs.end};
      if (columns.count() > 0) {
        if (is_decode(setup_, p.entry))
          multiply_few(p.entry, p.k.at({keys.begin + rows.begin, keys.begin + rows.end}), rows.count(), count,
                       stride, t);
        else
          t.q_transposed.times(t.k, first / group_, rows.count(), columns.begin, columns.end, t.weights,
                               stride);
        t.dout_transposed.times(t.v, first / group_, rows.count(), columns.begin, columns.end, t.gradients,
                                stride);
        for (std::int64_t j = rows.begin; j < rows.end; ++j) {
          const std::int64_t at = (j - rows.begin) * stride + columns.begin;
          differentiate(p, queries, keys.begin + j, columns, mask.row(j), t, t.weights + at,
                        t.gradients + at);
        }
        if (to_keys) add_to_keys(p, queries, keys, rows, pairs, finite_q, finite_dout, mask, t);
      }
      if (wanted_ == Wanted::bias && columns.count() > 0)
        for (std::int64_t j = rows.begin; j < rows.end; ++j)
          add_to_sums(t.gradients + (j - rows.begin) * stride, columns, t.sums + j * t.by_key, t.by_query);
      if (wanted_ != Wanted::all) continue;
      for (std::int64_t j = rows.begin; j < rows.end; ++j)
        t.ds.put_row(j, t.gradients + (j - rows.begin) * stride, columns.begin, columns.end, count);
    }
  }

  // dS of a key, by query or in one sum: several partial sums, to avoid a chain of dependent additions.
  static void add_to_sums(const Real* gradients, Positions queries, double* sums, std::int64_t by_query) {
    if (by_query == 1) {
      for (std::int64_t i = queries.begin; i < queries.end; ++i) sums[i] += gradients[i];
      return;
    }
    constexpr std::int64_t kSums = 8;
    double some[kSums] = {};
    for (std::int64_t i = queries.begin; i < queries.end; ++i) some[i % kSums] += gradients[i];
    for (const double sum : some) *sums += sum;
  }

  std::int64_t most_decode_rows(const Region& queries) const {
    std::int64_t most = 0;
    for (std::int64_t e = queries.entries.begin; e < queries.entries.end; ++e)
      if (is_decode(setup_, e)) most = std::max(most, few_.rows_held(e, setup_.q_length(e)));
    return most;
  }

  std::int64_t products_stride() const { return core::round_up(group_, kernels::kDotsKeys); }

  // Products of some keys with few queries, as the forward pass has them, to t.weights.
  void multiply_few(std::int64_t entry, const kernels::StridedMatrix& k, std::int64_t keys,
                    std::int64_t queries, std::int64_t stride, Task& t) const {
    few_.run(entry, t.few, {0, queries}, few_.keys(entry, k, keys, t.buffer), keys, t.products,
             products_stride(), {});
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t i = 0; i < queries; ++i)
        t.weights[j * stride + i] = t.products[i * products_stride() + j];
  }

  void add_to_keys(const Problem& p, Positions queries, Positions keys, Positions rows, Positions pairs,
                   const NonFiniteRows<Real>& finite_q, const NonFiniteRows<Real>& finite_dout,
                   const TileMask& mask, Task& t) const {
    const std::int64_t stride = gemm_.a_stride / kSize;
    for (std::int64_t r = rows.begin; r < rows.end; r += gemm_.mr) {
      const std::int64_t some = std::min(gemm_.mr, rows.end - r), at = (r - rows.begin) * stride;
      t.dout.add_range(t.weights + at, pairs.begin, pairs.end, some, 0, setup_.shape.value_size,
                       t.dv + r * t.dv_stride, t.dv_stride);
      t.q.add_range(t.gradients + at, pairs.begin, pairs.end, some, 0, setup_.shape.head_size,
                    t.dk + r * t.dk_stride, t.dk_stride);
    }
    for (std::int64_t j = rows.begin; j < rows.end; ++j) {
      const std::int64_t at = (j - rows.begin) * stride;
      for (const std::int64_t i : finite_dout.rows())
        if (attends(p, queries, keys, mask, t, j, i) && p.dropout.keeps(queries.begin + i, keys.begin + j))
          finite_dout.add(i, t.weights[at + i], t.dv + j * t.dv_stride);
      for (const std::int64_t i : finite_q.rows())
        if (attends(p, queries, keys, mask, t, j, i))
          finite_q.add(i, t.gradients[at + i], t.dk + j * t.dk_stride);
    }
  }

  // dqᵀ += kᵀ dSᵀ of a block.
  void add_to_queries(const Problem& p, Positions queries, Positions keys,
                      const NonFiniteRows<Real>& finite_k, const TileMask& mask, const Task& t) {
    const std::int64_t size = setup_.shape.head_size, dq_stride = p.q_length;
    Real* const dq = dq_of(p) + queries.begin;
    for (std::int64_t d = 0; d < size; d += gemm_.mr)
      t.ds.add_range(t.k_transposed.group(d / gemm_.mr), 0, keys.count(), std::min(gemm_.mr, size - d), 0,
                     queries.count(), dq + d * dq_stride, dq_stride);
    for (const std::int64_t j : finite_k.rows())
      for (std::int64_t i = 0; i < queries.count(); ++i)
        if (attends(p, queries, keys, mask, t, j, i))
          finite_k.add(j, t.ds.template element<Real>(j, i), dq + i, dq_stride);
  }

  void store_queries(const Problem& p, Positions queries) const {
    const std::int64_t size = setup_.shape.head_size, dq_stride = p.q_length;
    const Real* const dq = dq_of(p) + queries.begin;
    thread_local std::vector<Real> row;
    row.resize(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < queries.count(); ++i) {
      for (std::int64_t d = 0; d < size; ++d) row[static_cast<std::size_t>(d)] = dq[d * dq_stride + i];
      dq_->store(p.entry, p.head, setup_.q_offsets, queries.begin + i, row.data(), size);
    }
  }

  // Products of a key with queries to P and dS, in place.
  void differentiate(const Problem& p, Positions queries, std::int64_t key, Positions columns,
                     const mask::Word* bits, Task& t, Real* products, Real* dp) const {
    const kernels::Scoring<Real> how = scoring_of<Real>(setup_);
    const Positions some{queries.begin + columns.begin, queries.begin + columns.end};
    const bool of_bias = wanted_ == Wanted::bias;
    Real* const slopes = how.cap > 0 && (!of_bias || how.bias_is_capped) ? t.slopes : nullptr;
    softmax_.scores(how, products, columns.count(), p.bias.of_key(key, some, t.bias), bits, columns.begin,
                    slopes);
    const Real scale = of_bias ? Real{1} : how.scale;
    p.dropout.apply_to_key(key, some, dp);
    softmax_.gradients(products, dp, columns.count(), t.lse + columns.begin, t.delta + columns.begin, slopes,
                       scale, products, dp);
    if (saved_.squared)
      square(products, dp, columns.count(), slopes, scale,
             static_cast<const Real*>(saved_.squared->rows) + p.first_row + queries.begin + columns.begin);
    p.dropout.apply_to_key(key, some, products);
    if (saved_.squared)
      std::transform(products, products + columns.count(), products,
                     [](Real weight) { return weight * weight; });
  }

  static void square(const Real* p, Real* ds, std::int64_t count, const Real* slopes, Real scale,
                     const Real* rows) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Real factor = p[i] * scale * (slopes ? slopes[i] : Real{1});
      ds[i] = 4 * ds[i] * ds[i] + factor * factor * rows[i];
    }
  }

  const CheckedArguments& setup_;
  const MaskPlan& plan_;
  Wanted wanted_;
  Region queries_;
  const Saved& saved_;
  const Real *lse_, *delta_;
  const RowWriter *dq_, *dk_, *dv_;
  const kernels::Gemm &score_gemm_, &value_gemm_, &gemm_;
  const kernels::Softmax<Real>& softmax_;
  RowProducts<Real> few_;
  std::int64_t decode_rows_;  // the most of any entry on the decode path
  std::int64_t group_, key_block_, query_block_;
  std::vector<std::int64_t> first_turn_;  // of each entry: a block of queries of a head has one
  std::vector<Real> dq_transposed_;
  OrderedAccumulation turns_;
  std::vector<double> of_means_;  // gradients_of_means(), of entries and key/value heads; empty: none
};

template <class Real>
void run_keys(const CheckedArguments& setup, const MaskPlan& plan, Wanted wanted, const Region& keys,
              double share, const Saved& saved, const RowWriter* dq, const RowWriter& dk, const RowWriter& dv,
              const PairProgress& tell) {
  Backward<Real> pass(setup, plan, wanted, setup.queries_of_keys(keys), saved, dq, &dk, &dv);
  Progress progress(tell, 2 * pairs_of_keys(setup, keys));
  for_each_piece(
      keys, [&](std::int64_t e) { return setup.kv_length(e); }, pass.key_block(), Order::first_first,
      3 * share * plan.nanoseconds(setup),
      [&](std::int64_t entry, std::int64_t kv_head, Positions some) {
        progress.add(2 * pass.keys(entry, kv_head, some));
      });
  if (wanted == Wanted::all) pass.finish();
}

// f(entry, head) of all that share an entry and head of a bias, in order.
template <class F>
void each_sharing(const CheckedArguments& setup, const Region& served, std::int64_t entry, std::int64_t head,
                  F&& f) {
  const auto those = [&](BiasAxis axis, std::int64_t own, const IndexRange& all) {
    return setup.bias_has(axis) ? IndexRange{own, own + 1} : all;
  };
  const IndexRange entries = those(BiasAxis::entries, entry, served.entries),
                   heads = those(BiasAxis::heads, head, served.heads);
  for (std::int64_t e = entries.begin; e < entries.end; ++e)
    for (std::int64_t h = heads.begin; h < heads.end; ++h) f(e, h);
}

// Of a bias with queries and keys: a task has a block of its elements, and goes through all that share them.
template <class Real>
void run_elements(const CheckedArguments& setup, const Backward<Real>& pass, const Region& bias, double work,
                  const RowWriter& out, Progress& progress) {
  const Region served = setup.queries_of_bias(bias);
  const Positions queries = served.positions_of(setup.q.shape[2]);
  const std::int64_t keys = setup.k.shape[2], heads = bias.heads.count();
  constexpr std::int64_t kLine = 8;  // doubles of a cache line
  const std::int64_t q_blocks = core::ceil_div(queries.count(), pass.query_block()),
                     kv_blocks = core::ceil_div(keys, pass.key_block());
  core::parallel_for(bias.entries.count() * heads * q_blocks * kv_blocks, work, [&](std::int64_t n) {
    const std::int64_t place = n / kv_blocks / q_blocks, entry = bias.entries.begin + place / heads,
                       head = bias.heads.begin + place % heads;
    const Positions of_queries = block_of(n / kv_blocks % q_blocks, pass.query_block(), queries.count()),
                    of_keys = block_of(n % kv_blocks, pass.key_block(), keys);
    const Positions some{queries.begin + of_queries.begin, queries.begin + of_queries.end};
    thread_local std::vector<double> sums, rows;
    sums.assign(static_cast<std::size_t>(some.count() * of_keys.count()), 0);
    rows.resize(static_cast<std::size_t>(kLine * (of_keys.count() + kLine)));
    each_sharing(setup, served, entry, head, [&](std::int64_t e, std::int64_t h) {
      progress.add(2 * pass.bias(e, h, some, of_keys, sums.data(), some.count(), 1));
    });
    // A line of queries at a time, which is read once.
    for (std::int64_t first = 0; first < some.count(); first += kLine) {
      const std::int64_t line = std::min(kLine, some.count() - first), stride = of_keys.count() + kLine;
      for (std::int64_t j = 0; j < of_keys.count(); ++j) {
        const double* const from = sums.data() + j * some.count() + first;
        for (std::int64_t i = 0; i < line; ++i) rows[static_cast<std::size_t>(i * stride + j)] = from[i];
      }
      for (std::int64_t i = 0; i < line; ++i)
        out.store(entry, head, {}, some.begin + first + i, rows.data() + i * stride, of_keys.count(),
                  of_keys.begin);
    }
  });
}

// Of a bias whose rows or columns are one: a task sums along these for an entry, head and block of positions;
// sums of sharing entries and heads are then added in order.
template <class Real>
void run_sums(const CheckedArguments& setup, const Backward<Real>& pass, const Region& bias, double work,
              const RowWriter& out, Progress& progress) {
  const Region served = setup.queries_of_bias(bias);
  const Positions queries = served.positions_of(setup.q.shape[2]), keys{0, setup.k.shape[2]};
  const bool has_keys = setup.bias_has(BiasAxis::keys), has_queries = setup.bias_has(BiasAxis::queries);
  const Positions own = has_keys ? keys : queries;
  const std::int64_t block = has_keys ? pass.key_block() : pass.query_block(),
                     blocks = core::ceil_div(own.count(), block), heads = served.heads.count();
  std::vector<double> sums(static_cast<std::size_t>(served.entries.count() * heads * own.count()));
  const auto sums_of = [&](std::int64_t entry, std::int64_t head) {
    return sums.data() + ((entry - served.entries.begin) * heads + head - served.heads.begin) * own.count();
  };
  core::parallel_for(served.entries.count() * heads * blocks, work, [&](std::int64_t n) {
    const std::int64_t entry = served.entries.begin + n / blocks / heads,
                       head = served.heads.begin + n / blocks % heads;
    const Positions at = block_of(n % blocks, block, own.count()),
                    some{own.begin + at.begin, own.begin + at.end};
    progress.add(2 * pass.bias(entry, head, has_keys ? queries : some, has_keys ? some : keys,
                               sums_of(entry, head) + at.begin, has_keys ? 1 : 0, has_keys ? 0 : 1));
  });
  std::vector<double> all(static_cast<std::size_t>(own.count()));
  for (std::int64_t entry = bias.entries.begin; entry < bias.entries.end; ++entry)
    for (std::int64_t head = bias.heads.begin; head < bias.heads.end; ++head) {
      std::fill(all.begin(), all.end(), 0);
      each_sharing(setup, served, entry, head, [&](std::int64_t e, std::int64_t h) {
        std::transform(all.begin(), all.end(), sums_of(e, h), all.begin(), std::plus<>());
      });
      if (has_keys) {
        out.store(entry, head, {}, 0, all.data(), own.count(), own.begin);
      } else if (has_queries) {
        for (std::int64_t i = 0; i < own.count(); ++i)
          out.store(entry, head, {}, own.begin + i, all.data() + i, 1);
      } else {
        const double sum = std::accumulate(all.begin(), all.end(), 0.0);
        out.store(entry, head, {}, 0, &sum, 1);
      }
    }
}

template <class Real>
void run_bias(const CheckedArguments& setup, const MaskPlan& plan, const Region& bias, double share,
              const Saved& saved, const RowWriter& out, const PairProgress& tell) {
  const Region served = setup.queries_of_bias(bias);
  const Backward<Real> pass(setup, plan, Wanted::bias, served, saved, nullptr, nullptr, nullptr);
  Progress progress(tell, 2 * pairs_of_bias(setup, bias));
  const double work = share * plan.nanoseconds(setup);
  if (setup.bias_has(BiasAxis::queries) && setup.bias_has(BiasAxis::keys))
    run_elements(setup, pass, bias, work, out, progress);
  else
    run_sums(setup, pass, bias, work, out, progress);
}

}  // namespace

void find_deltas(const CheckedArguments& setup, const Region& queries, const ArrayView& dout,
                 const ArrayView& out, void* delta) {
  in_arithmetic(
      setup, [&]<class Real>(Real) { find_deltas_as(setup, queries, dout, out, static_cast<Real*>(delta)); });
}

void gradient_of_sinks(const CheckedArguments& setup, const Region& queries, const void* lse,
                       const void* delta, const RowWriter& dsinks) {
  constexpr double kRow = 20;  // nanoseconds
  in_arithmetic(setup, [&]<class Real>(Real) {
    const auto* const lses = static_cast<const Real*>(lse);
    const auto* const deltas = static_cast<const Real*>(delta);
    core::parallel_for(
        queries.heads.count(), kRow * static_cast<double>(setup.rows(queries)), [&](std::int64_t n) {
          const std::int64_t head = queries.heads.begin + n;
          const double sink = setup.ends.sink(head);
          double sum = 0;
          for (std::int64_t e = queries.entries.begin; e < queries.entries.end && sink != kNoSink; ++e) {
            const std::int64_t first = setup.first_row(e, head);
            for (std::int64_t i = 0; i < setup.q_length(e); ++i)
              sum -= std::exp(sink - static_cast<double>(lses[first + i])) *
                     static_cast<double>(deltas[first + i]);
          }
          dsinks.store(0, head, setup.q_offsets, 0, &sum, 1);
        });
  });
}

void backward(const CheckedArguments& setup, const MaskPlan& plan, const Region& keys, double share,
              const Saved& saved, const RowWriter& dq, const RowWriter& dk, const RowWriter& dv,
              const PairProgress& progress) {
  in_arithmetic(setup, [&]<class Real>(Real) {
    run_keys<Real>(setup, plan, Wanted::all, keys, share, saved, &dq, dk, dv, progress);
  });
}

void backward_of_keys(const CheckedArguments& setup, const MaskPlan& plan, const Region& keys, double share,
                      const Saved& saved, const RowWriter& dk, const RowWriter& dv,
                      const PairProgress& progress) {
  in_arithmetic(setup, [&]<class Real>(Real) {
    run_keys<Real>(setup, plan, Wanted::keys, keys, share, saved, nullptr, dk, dv, progress);
  });
}

void backward_of_bias(const CheckedArguments& setup, const MaskPlan& plan, const Region& bias, double share,
                      const Saved& saved, const RowWriter& dbias, const PairProgress& progress) {
  in_arithmetic(setup,
                [&]<class Real>(Real) { run_bias<Real>(setup, plan, bias, share, saved, dbias, progress); });
}

std::int64_t bytes_of_means(const CheckedArguments& setup, const Region& keys) {
  if (!setup.ends.mean) return 0;
  return core::bytes_of_estimate(8.0 * static_cast<double>(keys.entries.count()) *
                                 static_cast<double>(keys.heads.count()) *
                                 static_cast<double>(setup.shape.value_size));
}

std::int64_t bias_thread_bytes(const CheckedArguments& setup) {
  const BlockShape block = gradient_block(setup);
  return core::bytes_of_estimate(8.0 * static_cast<double>(block.q + 16) * static_cast<double>(block.kv));
}

std::int64_t bias_bytes(const CheckedArguments& setup, const Region& bias) {
  const bool has_keys = setup.bias_has(BiasAxis::keys), has_queries = setup.bias_has(BiasAxis::queries);
  if (has_keys && has_queries) return 0;
  const Region served = setup.queries_of_bias(bias);
  const Positions own = has_keys ? Positions{0, setup.k.shape[2]} : served.positions_of(setup.q.shape[2]);
  return core::bytes_of_estimate(8.0 * static_cast<double>(own.count()) *
                                 static_cast<double>(served.entries.count()) *
                                 static_cast<double>(served.heads.count()));
}

BlockShape gradient_block(const CheckedArguments& setup) {
  return in_arithmetic(setup, [&]<class Real>(Real) { return block_of_passes<Real>(setup); });
}

}  // namespace ejk::attn
