// Attention and its gradient: arguments are checked, masks cut into blocks, and the passes run.
// tests: tests/attention/test_attention.cpp
#include "ejk/attention.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "attention/backward.hpp"
#include "attention/forward.hpp"
#include "attention/problem.hpp"

namespace ejk {

namespace {

void check_result(std::optional<DType> dtype) {
  if (dtype && !is_float(*dtype))
    throw Error(
        Error::Kind::input,
        fmt::format("a result must be float16, bfloat16, float32 or float64, not {}", name_of(*dtype)));
}

template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Rows may lose all their keys to a bias of −∞, too; lse knows.
template <class Real>
void count_rows(const attn::Setup& setup, const Real* lse, AttentionWork& work) {
  work.rows_without_key = 0;
  work.first_row_without_key.clear();
  work.rows_not_finite = 0;
  work.first_row_not_finite.clear();
  for (std::int64_t e = 0; e < setup.shape.entries; ++e)
    for (std::int64_t h = 0; h < setup.shape.heads; ++h) {
      const attn::Problem p = setup.problem(e, h);
      for (std::int64_t i = 0; i < p.q_length; ++i) {
        const Real value = lse[p.first_row + i];
        if (std::isfinite(value)) continue;
        if (value == -std::numeric_limits<Real>::infinity()) {
          if (++work.rows_without_key == 1) work.first_row_without_key = {e, h, i};
        } else if (++work.rows_not_finite == 1) {
          work.first_row_not_finite = {e, h, i};
        }
      }
    }
}

void count_rows_without_key(const attn::Setup& setup, const void* lse, AttentionWork& work) {
  if (setup.shape.arithmetic == DType::float64)
    count_rows(setup, static_cast<const double*>(lse), work);
  else
    count_rows(setup, static_cast<const float*>(lse), work);
}

// A view's elements in another float dtype, C order.
Array as(const ArrayView& view, DType dtype) {
  return view.dtype == dtype ? Array::copy_of(view) : identity_dtype_convert_backward(view, dtype);
}

AttentionWork compute(const attn::Setup& setup, const AttentionOptions& options, DType dtype, void* out,
                      void* lse) {
  const attn::MaskPlan plan(setup, options);
  AttentionWork work = plan.work();
  const attn::Target target(setup, dtype, setup.shape.out, out);
  work.forward_seconds = timed([&] { attn::forward(setup, plan, target, lse, options.progress); });
  count_rows_without_key(setup, lse, work);
  return work;
}

}  // namespace

Attention attention(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                    const AttentionOptions& options, std::optional<DType> dtype) {
  check_result(dtype);
  const attn::Setup setup = attn::check_arguments(q, k, v, options);
  Attention result{
      Array(dtype.value_or(q.dtype), setup.shape.out), Array(setup.shape.arithmetic, setup.shape.lse), {}};
  result.work = compute(setup, options, result.out.dtype(), result.out.data(), result.lse.data());
  return result;
}

AttentionWork attention_into(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                             const AttentionOptions& options, std::optional<DType> dtype, void* out,
                             void* lse) {
  check_result(dtype);
  return compute(attn::check_arguments(q, k, v, options), options, dtype.value_or(q.dtype), out, lse);
}

AttentionGradients attention_grad(const ArrayView& q, const ArrayView& k, const ArrayView& v,
                                  const ArrayView& dout, const AttentionOptions& options,
                                  std::optional<DType> dtype, const std::optional<AttentionSaved>& saved) {
  check_result(dtype);
  attn::Setup setup = attn::check_arguments(q, k, v, options);
  attn::check_gradient(setup, dout, saved);
  if (dout.dtype == DType::float64) setup.shape.arithmetic = DType::float64;
  const attn::MaskPlan plan(setup, options);
  AttentionGradients result{Array(dtype.value_or(q.dtype), q.shape), Array(dtype.value_or(k.dtype), k.shape),
                            Array(dtype.value_or(v.dtype), v.shape), plan.work()};
  // Three parts of a whole, as far as there are three: scores, and both ways through them.
  const std::int64_t pairs = plan.work().dense_pairs, before = saved ? 0 : pairs;
  const auto part = [&](std::int64_t from) -> std::function<void(std::int64_t, std::int64_t)> {
    if (!options.progress) return {};
    return [&options, from, all = before + 2 * pairs](std::int64_t done, std::int64_t) {
      options.progress(from + done, all);
    };
  };
  Array out, lse;
  if (saved) {
    lse = as(saved->lse, setup.shape.arithmetic);
  } else {
    out = Array(setup.shape.arithmetic, setup.shape.out);
    lse = Array(setup.shape.arithmetic, setup.shape.lse);
    const attn::Target target(setup, out.dtype(), out.shape(), out.data());
    result.work.forward_seconds = timed([&] { attn::forward(setup, plan, target, lse.data(), part(0)); });
  }
  count_rows_without_key(setup, lse.data(), result.work);
  const attn::Saved begin{attn::in_one_form(dout, options.layout),
                          attn::in_one_form(saved ? saved->out : out.view(), options.layout), lse.data()};
  result.work.backward_seconds =
      timed([&] { attn::backward(setup, plan, begin, result.dq, result.dk, result.dv, part(before)); });
  return result;
}

}  // namespace ejk
