// Forward pass by tiles with an online softmax. For each block of keys a task packs keys and values once and
// visits its query rows in groups, the rows of a micro-kernel's tile. Scores become weights in place, as the
// left factor of the next product (row_sums.hpp). Empty blocks are skipped; in a partial block a group
// computes the columns from its first to its last pair. The sums of a row depend on the blocks of keys only.
// Entries with few queries use the decode path (decode.cpp).
// tests: tests/attention/test_attention.cpp
#include "attention/forward.hpp"

#include "attention/packing.hpp"
#include "attention/row_sums.hpp"
#include "attention/row_writer.hpp"
#include "attention/tasks.hpp"
#include "attention/tile_mask.hpp"

namespace ejk::attn {

namespace {

template <class Real>
class Forward {
 public:
  Forward(const CheckedArguments& setup, const MaskPlan& plan, const ForwardResults& results)
      : setup_(setup),
        plan_(plan),
        results_{results.out, static_cast<Real*>(results.lse), static_cast<Real*>(results.most)},
        score_gemm_(gemm_of<Real>(setup.q.dtype, setup.k.dtype)),
        split_(weights_in_parts(setup)),
        gemm_(weights_gemm(setup)),
        softmax_(softmax_of<Real>()),
        group_(group_of(setup)),
        key_block_(std::min(setup.block.kv, gemm_of<Real>().kc)),
        stride_(gemm_of<Real>().a_stride / kSize) {}

  std::int64_t group() const { return group_; }
  static std::int64_t group_of(const CheckedArguments& setup) {
    return group_rows(gemm_of<Real>(setup.q.dtype, setup.k.dtype), weights_gemm(setup));
  }

  /// Returns the number of pairs of the rows, computed or not.
  std::int64_t rows(std::int64_t entry, std::int64_t head, Positions queries) const {
    const Problem p = setup_.problem(entry, head);
    const std::int64_t count = queries.count(), size = setup_.shape.value_size;
    const std::int64_t most_keys = std::min(key_block_, p.kv_length);
    thread_local TileMask mask;
    thread_local NonFiniteRows<Real> values;
    PackedA q(score_gemm_, group_, setup_.shape.head_size);
    PackedB k(score_gemm_, setup_.shape.head_size, most_keys), v(gemm_, most_keys, size);
    RowSums<Real> sums{};
    ScratchLayout memory;
    Real *weights = nullptr, *bias_row = nullptr;
    std::byte* parts = nullptr;
    q.reserve(memory, count);
    k.reserve(memory);
    v.reserve(memory);
    memory.add(weights, group_ * stride_);
    memory.add(parts, split_ ? (kParts * group_ + gemm_.mr) * gemm_.a_stride : 0);
    memory.add(bias_row, key_block_ + kSpare);
    sums.stride = core::round_up(size, 64 / kSize);
    sums.reserve(memory, count);
    memory.take();
    sums.clear(count);

    const matmul::Tiles tiles(score_gemm_.enter != nullptr ? score_gemm_ : gemm_);
    q.pack(part_of(p.q, queries.begin), count);
    mask.begin(setup_, plan_.of(p), queries, TileMask::Rows::queries);
    for (std::int64_t b = 0; b * key_block_ < p.kv_length; ++b) {
      const Positions keys = block_of(b, key_block_, p.kv_length);
      if (!mask.keys(keys)) continue;
      k.pack(transposed(p.k.at(keys)), setup_.shape.head_size, keys.count());
      v.pack(values.of(p.v.at(keys), keys.count(), size), keys.count(), size);
      for (std::int64_t first = 0; first < count; first += group_) {
        const Positions rows{first, std::min(first + group_, count)};
        const Positions pairs = mask.columns(rows);
        const Positions columns{pairs.begin / score_gemm_.nr * score_gemm_.nr, pairs.end};
        if (columns.count() == 0) continue;
        k.times(q, first / group_, rows.count(), columns.begin, columns.end, weights, stride_);
        for (std::int64_t r = rows.begin; r < rows.end; ++r) {
          const Positions some{keys.begin + columns.begin, keys.begin + columns.end};
          const Real* const bias = p.bias.of_query(queries.begin + r, some, bias_row);
          sums.weigh(setup_, r, weights + (r - rows.begin) * stride_ + columns.begin, columns, bias,
                     mask.row(r));
          p.dropout.apply_to_query(queries.begin + r, some,
                                   weights + (r - rows.begin) * stride_ + columns.begin);
        }
        if (split_)
          add_values(v, sums, rows, split(rows, columns, weights, parts), parts);
        else
          add_values(v, sums, rows, pairs, weights);
        for (const std::int64_t j : values.rows())
          for (std::int64_t r = rows.begin; r < rows.end; ++r)
            if (pairs.begin <= j && j < pairs.end && mask.allowed(r, j) &&
                p.dropout.keeps(queries.begin + r, keys.begin + j) &&
                !without_weight<Real>(setup_, p, queries.begin + r, keys.begin + j))
              values.add(j, weights[(r - rows.begin) * stride_ + j], sums.value + r * sums.stride);
      }
    }
    for (std::int64_t r = 0; r < count; ++r) sums.finish(setup_, r, p, queries.begin + r, results_);
    return count * p.kv_length;
  }

 private:
  static constexpr auto kSize = static_cast<std::int64_t>(sizeof(Real));
  static constexpr std::int64_t kSpare = 64;  // that whole vectors may read

  // Where bfloat16 products are more than three times as fast as float32, weights go as three bfloat16 each.
  static constexpr std::int64_t kParts = 3;
  static bool weights_in_parts(const CheckedArguments& setup) {
    return sizeof(Real) == 4 && setup.v.dtype == DType::bfloat16 &&
           kernels::active_for_bf16().products.bf16_rate > 2 * kParts;
  }

  static const kernels::Gemm& weights_gemm(const CheckedArguments& setup) {
    return weights_in_parts(setup) ? *kernels::active_for_bf16().products.bf16 : gemm_of<Real>();
  }

  // Splits weights [columns.begin, columns.end), padded to whole steps, into their parts. Returns the steps.
  Positions split(Positions rows, Positions columns, Real* weights, std::byte* parts) const {
    const Positions steps{columns.begin, core::round_up(columns.end, gemm_.k_step)};
    if constexpr (sizeof(Real) == 4)
      for (std::int64_t r = 0; r < rows.count(); ++r) {
        std::fill(weights + r * stride_ + columns.end, weights + r * stride_ + steps.end, Real{0});
        std::uint16_t* to[kParts];
        for (std::int64_t p = 0; p < kParts; ++p)
          to[p] = reinterpret_cast<std::uint16_t*>(parts + (p * group_ + r) * gemm_.a_stride) + steps.begin;
        softmax_.split(weights + r * stride_ + steps.begin, steps.count(), to);
      }
    return {steps.begin, columns.end};
  }

  // sums += left · v; split: left is the first of the parts.
  void add_values(const PackedB& v, const RowSums<Real>& sums, Positions rows, Positions pairs,
                  const void* left) const {
    for (std::int64_t part = 0; part < (split_ ? kParts : 1); ++part)
      for (std::int64_t r = rows.begin; r < rows.end; r += gemm_.mr)
        v.add_range(static_cast<const std::byte*>(left) + (part * group_ + r - rows.begin) * gemm_.a_stride,
                    pairs.begin, pairs.end, std::min(gemm_.mr, rows.end - r), 0, setup_.shape.value_size,
                    sums.value + r * sums.stride, sums.stride);
  }

  const CheckedArguments& setup_;
  const MaskPlan& plan_;
  RowResults<Real> results_;
  const kernels::Gemm& score_gemm_;
  bool split_;
  const kernels::Gemm& gemm_;  // of weights and values
  const kernels::Softmax<Real>& softmax_;
  std::int64_t group_, key_block_;
  std::int64_t stride_;  // of a row of weights, in elements: as a left factor of Real has it
};

template <class Real>
void run(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double share,
         const ForwardResults& results, const PairProgress& tell) {
  const Forward<Real> pass(setup, plan, results);
  Progress progress(tell, pairs_of_queries(setup, queries));
  const double work = share * plan.nanoseconds(setup);
  decode_forward(setup, plan, queries, work, results, progress);
  for_each_piece(
      queries, [&](std::int64_t e) { return is_decode(setup, e) ? 0 : setup.q_length(e); },
      rows_of_task(setup, queries, pass.group()), Order::last_first, work,
      [&](std::int64_t entry, std::int64_t head, Positions some) {
        progress.add(pass.rows(entry, head, some));
      });
}

}  // namespace

void forward(const CheckedArguments& setup, const MaskPlan& plan, const Region& queries, double share,
             const ForwardResults& results, const PairProgress& progress) {
  in_arithmetic(setup, [&]<class Real>(Real) { run<Real>(setup, plan, queries, share, results, progress); });
}

void forward(const CheckedArguments& setup, const MaskPlan& plan, const ForwardResults& results,
             const PairProgress& progress) {
  forward(setup, plan, setup.all_queries(), 1, results, progress);
}

std::int64_t rows_together(const CheckedArguments& setup) {
  return in_arithmetic(setup, [&]<class Real>(Real) { return Forward<Real>::group_of(setup); });
}

}  // namespace ejk::attn
