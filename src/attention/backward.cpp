// Backward: scores are made again, tile by tile, and P = exp(s − lse) needs no second look at a row.
//
// dq goes by blocks of queries; dk and dv by blocks of keys, over the query heads that share them, in order.
// So nothing is added up by two threads, and any number of them gives the same bits; the scores are made
// twice for it.
// tests: tests/attention/test_attention_grad.cpp
#include "attention/backward.hpp"

#include "attention/scores.hpp"
#include "attention/tasks.hpp"

namespace ejk::attn {

namespace {

// One tile of P and dS, with the rows that it is made of.
template <class Real>
struct Tile {
  Rows<Real> q, dout, k, v;
  Scores<Real> scores;
  std::vector<Real> lse, delta;  // of the queries
  std::vector<Real> dp;          // of one row
};

template <class Real>
class Backward {
 public:
  Backward(const Setup& setup, const MaskPlan& plan, const Saved& saved, Array& dq, Array& dk, Array& dv)
      : setup_(setup),
        plan_(plan),
        saved_(saved),
        lse_(static_cast<const Real*>(saved.lse)),
        dq_(dq, setup),
        dk_(dk, setup),
        dv_(dv, setup) {}

  /// δ = Σ_d dout · out of every query.
  void find_deltas() {
    const std::int64_t size = setup_.shape.value_size;
    delta_.resize(static_cast<std::size_t>(element_count(setup_.shape.lse)));
    for_each_block(setup_, Along::queries, [&](std::int64_t entry, std::int64_t head, std::int64_t block) {
      const Problem p = setup_.problem(entry, head);
      const Positions queries = block_of(block, setup_.block.q, p.q_length);
      thread_local Rows<Real> dout, out;
      dout.load(setup_.rows_of(saved_.dout, entry, head, setup_.q_offsets), queries, size);
      out.load(setup_.rows_of(saved_.out, entry, head, setup_.q_offsets), queries, size);
      for (std::int64_t r = 0; r < queries.count(); ++r) {
        Real sum = 0;
        for (std::int64_t d = 0; d < size; ++d) sum += dout.row(r)[d] * out.row(r)[d];
        delta_[static_cast<std::size_t>(p.first_row + queries.begin + r)] = sum;
      }
    });
  }

  std::int64_t query_block(std::int64_t entry, std::int64_t head, std::int64_t q_block) const {
    const Problem p = setup_.problem(entry, head);
    const MaskTiles* const tiles = plan_.of(p);
    const Positions queries = block_of(q_block, setup_.block.q, p.q_length);
    const std::int64_t size = setup_.shape.head_size;
    thread_local Tile<Real> t;
    thread_local std::vector<Real> dq;
    dq.assign(static_cast<std::size_t>(queries.count() * size), Real{0});
    load_queries(t, p, queries);
    for (std::int64_t b = 0; b * setup_.block.kv < p.kv_length; ++b) {
      if (is_empty(tiles, q_block, b)) continue;
      const Positions keys = block_of(b, setup_.block.kv, p.kv_length);
      load_keys(t, p, keys);
      t.scores.compute(setup_, p, tiles, queries, keys, t.q, t.k);
      for_each_row(t, queries, keys, [&](std::int64_t r, std::int64_t j, Real, Real ds) {
        const Real factor = ds * static_cast<Real>(setup_.scale);
        Real* const to = dq.data() + r * size;
        for (std::int64_t d = 0; d < size; ++d) to[d] += factor * t.k.row(j)[d];
      });
    }
    dq_.store(entry, head, setup_.q_offsets, queries, dq.data(), size);
    return queries.count() * p.kv_length;
  }

  std::int64_t key_block(std::int64_t entry, std::int64_t kv_head, std::int64_t kv_block) const {
    const std::int64_t size = setup_.shape.head_size, value_size = setup_.shape.value_size;
    const std::int64_t group = setup_.group();
    const Positions keys = block_of(kv_block, setup_.block.kv, setup_.kv_length(entry));
    thread_local Tile<Real> t;
    thread_local std::vector<Real> dk, dv;
    dk.assign(static_cast<std::size_t>(keys.count() * size), Real{0});
    dv.assign(static_cast<std::size_t>(keys.count() * value_size), Real{0});
    for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const Problem p = setup_.problem(entry, h);
      const MaskTiles* const tiles = plan_.of(p);
      if (h == kv_head * group) load_keys(t, p, keys);
      for (std::int64_t b = 0; b * setup_.block.q < p.q_length; ++b) {
        if (is_empty(tiles, b, kv_block)) continue;
        const Positions queries = block_of(b, setup_.block.q, p.q_length);
        load_queries(t, p, queries);
        t.scores.compute(setup_, p, tiles, queries, keys, t.q, t.k);
        for_each_row(t, queries, keys, [&](std::int64_t r, std::int64_t j, Real probability, Real ds) {
          const Real factor = ds * static_cast<Real>(setup_.scale);
          Real* const to_k = dk.data() + j * size;
          for (std::int64_t d = 0; d < size; ++d) to_k[d] += factor * t.q.row(r)[d];
          Real* const to_v = dv.data() + j * value_size;
          for (std::int64_t d = 0; d < value_size; ++d) to_v[d] += probability * t.dout.row(r)[d];
        });
      }
    }
    dk_.store(entry, kv_head, setup_.kv_offsets, keys, dk.data(), size);
    dv_.store(entry, kv_head, setup_.kv_offsets, keys, dv.data(), value_size);
    return keys.count() * setup_.q_length(entry) * group;
  }

 private:
  // Where rows of a result go.
  class Target {
   public:
    Target(Array& array, const Setup& setup)
        : setup_(setup), view_(in_one_form(array.view(), setup.layout)), data_(array.data()) {}
    void store(std::int64_t entry, std::int64_t head, const std::vector<std::int64_t>& offsets,
               Positions rows, const Real* values, std::int64_t size) const {
      const kernels::Block to = setup_.rows_of(view_, entry, head, offsets);
      std::byte* const first = data_ + (static_cast<const std::byte*>(to.data) - view_.data);
      for (std::int64_t r = 0; r < rows.count(); ++r)
        attn::store(values + r * size, size, to.dtype, first + (rows.begin + r) * to.row_stride);
    }

   private:
    const Setup& setup_;
    ArrayView view_;
    std::byte* data_;
  };

  void load_queries(Tile<Real>& t, const Problem& p, Positions queries) const {
    t.q.load(p.q, queries, setup_.shape.head_size);
    t.dout.load(setup_.rows_of(saved_.dout, p.entry, p.head, setup_.q_offsets), queries,
                setup_.shape.value_size);
    const std::int64_t first = p.first_row + queries.begin;
    t.lse.assign(lse_ + first, lse_ + first + queries.count());
    t.delta.assign(delta_.data() + first, delta_.data() + first + queries.count());
  }

  void load_keys(Tile<Real>& t, const Problem& p, Positions keys) const {
    t.k.load(p.k, keys, setup_.shape.head_size);
    t.v.load(p.v, keys, setup_.shape.value_size);
    t.k.transpose();
    t.v.transpose();
  }

  // f(query, key, P, dS) for the pairs of a tile that attend.
  template <class F>
  void for_each_row(Tile<Real>& t, Positions queries, Positions keys, F&& f) const {
    t.dp.resize(static_cast<std::size_t>(keys.count()));
    for (std::int64_t r = 0; r < queries.count(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (t.lse[at] == kHidden<Real>) continue;
      const Real* const scores = t.scores.row(r);
      const Real* const slopes = t.scores.slopes(r);
      Real* const dp = t.dp.data();
      products(t.dout.row(r), t.v, setup_.shape.value_size, keys.count(), dp);
      for (std::int64_t j = 0; j < keys.count(); ++j) {
        if (scores[j] == kHidden<Real>) continue;
        const Real probability = std::exp(scores[j] - t.lse[at]);
        Real ds = probability * (dp[j] - t.delta[at]);
        if (slopes) ds *= slopes[j];
        f(r, j, probability, ds);
      }
    }
  }

  const Setup& setup_;
  const MaskPlan& plan_;
  const Saved& saved_;
  const Real* lse_;
  Target dq_, dk_, dv_;
  std::vector<Real> delta_;
};

template <class Real>
void run(const Setup& setup, const MaskPlan& plan, const Saved& saved, Array& dq, Array& dk, Array& dv,
         const std::function<void(std::int64_t, std::int64_t)>& tell) {
  Backward<Real> pass(setup, plan, saved, dq, dk, dv);
  Progress progress(tell, 2 * plan.work().dense_pairs);
  pass.find_deltas();
  for_each_block(setup, Along::queries, [&](std::int64_t entry, std::int64_t head, std::int64_t block) {
    progress.add(pass.query_block(entry, head, block));
  });
  for_each_block(setup, Along::keys, [&](std::int64_t entry, std::int64_t kv_head, std::int64_t block) {
    progress.add(pass.key_block(entry, kv_head, block));
  });
}

}  // namespace

void backward(const Setup& setup, const MaskPlan& plan, const Saved& saved, Array& dq, Array& dk, Array& dv,
              const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (setup.shape.arithmetic == DType::float64)
    run<double>(setup, plan, saved, dq, dk, dv, progress);
  else
    run<float>(setup, plan, saved, dq, dk, dv, progress);
}

}  // namespace ejk::attn
