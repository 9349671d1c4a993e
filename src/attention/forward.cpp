// Forward: for each block of queries, its tiles of scores one after the other, with an online softmax.
//
// A row keeps its largest score so far m, the sum l of exp(s − m) and the sum of exp(s − m) · v; a tile with
// a larger score scales both down by exp(m_old − m_new). Blocks that the mask empties are not visited.
// tests: tests/attention/test_attention.cpp
#include "attention/forward.hpp"

#include "attention/scores.hpp"
#include "attention/tasks.hpp"

namespace ejk::attn {

namespace {

template <class Real>
class Forward {
 public:
  Forward(const Setup& setup, const MaskPlan& plan, Array& out, Array& lse)
      : setup_(setup),
        plan_(plan),
        out_(in_one_form(out.view(), setup.layout)),
        out_data_(out.data()),
        lse_(reinterpret_cast<Real*>(lse.data())) {}

  /// Returns the number of pairs of the block, computed or not.
  std::int64_t block(std::int64_t entry, std::int64_t head, std::int64_t q_block) const {
    const Problem p = setup_.problem(entry, head);
    const MaskTiles* const tiles = plan_.of(p);
    const Positions queries = block_of(q_block, setup_.block.q, p.q_length);
    const std::int64_t size = setup_.shape.value_size;
    thread_local Rows<Real> q, k, v;
    thread_local Scores<Real> scores;
    thread_local std::vector<Real> sums;  // of exp(s − most) · v
    std::vector<Real> most(static_cast<std::size_t>(queries.count()), kHidden<Real>), total(most.size());
    sums.assign(most.size() * static_cast<std::size_t>(size), Real{0});
    q.load(p.q, queries, setup_.shape.head_size);
    for (std::int64_t b = 0; b * setup_.block.kv < p.kv_length; ++b) {
      if (is_empty(tiles, q_block, b)) continue;
      const Positions keys = block_of(b, setup_.block.kv, p.kv_length);
      k.load(p.k, keys, setup_.shape.head_size);
      k.transpose();
      v.load(p.v, keys, size);
      scores.compute(setup_, p, tiles, queries, keys, q, k);
      for (std::int64_t r = 0; r < queries.count(); ++r) {
        const auto at = static_cast<std::size_t>(r);
        add_row(scores.row(r), keys.count(), v, most[at], total[at], sums.data() + r * size);
      }
    }
    for (std::int64_t r = 0; r < queries.count(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      Real* const row = sums.data() + r * size;
      const bool none = most[at] == kHidden<Real>;
      if (!none)
        for (std::int64_t d = 0; d < size; ++d) row[d] /= total[at];
      lse_[p.first_row + queries.begin + r] = none ? kHidden<Real> : most[at] + std::log(total[at]);
      const kernels::Block rows = setup_.rows_of(out_, entry, head, setup_.q_offsets);
      const std::ptrdiff_t place =
          static_cast<const std::byte*>(rows.data) - out_.data + (queries.begin + r) * rows.row_stride;
      store(row, size, rows.dtype, out_data_ + place);
    }
    return queries.count() * p.kv_length;
  }

 private:
  void add_row(const Real* scores, std::int64_t count, const Rows<Real>& v, Real& most, Real& total,
               Real* sums) const {
    const std::int64_t size = setup_.shape.value_size;
    Real next = most;
    for (std::int64_t j = 0; j < count; ++j)
      if (scores[j] > next || std::isnan(scores[j])) next = scores[j];  // NaN stays
    if (next == kHidden<Real>) return;
    if (next != most) {
      const Real factor = most == kHidden<Real> ? Real{0} : std::exp(most - next);
      total *= factor;
      for (std::int64_t d = 0; d < size; ++d) sums[d] *= factor;
      most = next;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      if (scores[j] == kHidden<Real>) continue;
      const Real weight = std::exp(scores[j] - most);
      total += weight;
      const Real* const row = v.row(j);
      for (std::int64_t d = 0; d < size; ++d) sums[d] += weight * row[d];
    }
  }

  const Setup& setup_;
  const MaskPlan& plan_;
  ArrayView out_;
  std::byte* out_data_;
  Real* lse_;
};

template <class Real>
void run(const Setup& setup, const MaskPlan& plan, Array& out, Array& lse,
         const std::function<void(std::int64_t, std::int64_t)>& tell) {
  const Forward<Real> pass(setup, plan, out, lse);
  Progress progress(tell, plan.work().dense_pairs);
  for_each_block(setup, Along::queries, [&](std::int64_t entry, std::int64_t head, std::int64_t block) {
    progress.add(pass.block(entry, head, block));
  });
}

}  // namespace

void forward(const Setup& setup, const MaskPlan& plan, Array& out, Array& lse,
             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (setup.shape.arithmetic == DType::float64)
    run<double>(setup, plan, out, lse, progress);
  else
    run<float>(setup, plan, out, lse, progress);
}

}  // namespace ejk::attn
