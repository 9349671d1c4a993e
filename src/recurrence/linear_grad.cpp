// Gradients of linear attention: validation, results that several heads add to, sequences and groups of heads over
// threads. A thread computes all heads of a part of a group, in order; parts are added last. Both are of the heads
// alone, so that sums do not depend on threads. Cost: about 3 forward passes.
// tests: tests/recurrence/test_linear_grad.cpp
#include "recurrence/linear_grad.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/require.hpp"
#include "ejk/threads.hpp"
#include "recurrence/differences.hpp"

namespace ejk {

namespace recurrence {

namespace {

constexpr std::int64_t kParts = 8;  // of all groups, about: more use more threads and memory

// `other_layout`: of states, the name of the layout that the shape may be of.
void require_cotangent(const char* name, const ArrayType& type, const ArrayType& of, const char* result,
                       const char* other_layout = nullptr) {
  if (!is_wide_float(type.dtype))
    throw core::invalid("{} must be float16, bfloat16, float32 or float64, not {}", name, name_of(type.dtype))
        .about(name);
  if (type.shape == of.shape) return;
  Error error = core::invalid("{} has the shape of {}, {}, not {}", name, result, to_string(of.shape),
                              to_string(type.shape));
  if (other_layout != nullptr) {
    Shape turned = of.shape;
    std::swap(turned[2], turned[3]);
    if (type.shape == turned) error = Error(Error::Kind::input, error.what(), Error::Code::state_layout);
    if (type.shape == turned) error.hint(other_layout);
  }
  throw std::move(error.about(name));
}

// Of an array of tokens.
std::int64_t heads_of(const LinearPlan& plan, const ArrayType& type, std::int64_t size) {
  return plan.in_one_form(ArrayView(nullptr, type.dtype, type.shape), size).shape[1];
}

}  // namespace

LinearGradPlan::LinearGradPlan(const LinearAttentionTypes& types,
                               const LinearAttentionCotangents<ArrayType>& cotangents,
                               const LinearAttentionSettings& settings, std::optional<DType> grad_dtype)
    : forward(types, settings), gradients(types) {
  if (settings.slots.read) throw core::usage("gradients are not of states in slots");
  if (!cotangents.dout) throw core::usage("dout is missing");
  require_cotangent("dout", *cotangents.dout, forward.out, "out");
  if (cotangents.dfinal_state)
    require_cotangent("dfinal_state", *cotangents.dfinal_state, forward.final_state, "final_state",
                      settings.state_layout == StateLayout::kv ? "vk" : "kv");
  if (grad_dtype && !is_wide_float(*grad_dtype))
    throw core::usage("gradients are of a float type, not {}", name_of(*grad_dtype));
  for (const auto* type : {&cotangents.dout, &cotangents.dfinal_state})
    if (*type && (*type)->dtype == DType::float64) forward.arithmetic = DType::float64;
  for_each_linear_operand(
      [&](const char*, auto& type) {
        if (type) type = ArrayType(grad_dtype.value_or(type->dtype), type->shape);
      },
      gradients);
  groups = forward.state_heads;
  const auto share = [&](const std::optional<ArrayType>& type, std::int64_t size) {
    if (type) groups = std::gcd(groups, heads_of(forward, *type, size));
  };
  share(types.q, forward.key_size), share(types.k, forward.key_size), share(types.v, forward.value_size);
  share(types.beta, 0), share(types.dt, 0);
  if (forward.decay != DecayKind::fixed)
    share(types.decay, forward.decay == DecayKind::channel ? forward.key_size : 0);
  const std::int64_t heads = forward.state_heads / groups;
  for (std::int64_t n = 1; n <= heads && (n - 1) * groups < kParts; ++n)
    if (heads % n == 0) parts = n;
}

LinearCotangents::LinearCotangents(const LinearPlan& plan, const LinearAttentionCotangents<ArrayView>& arrays)
    : dout(plan.in_one_form(*arrays.dout, plan.value_size)) {
  if (arrays.dfinal_state) dfinal_state = plan.state_form(*arrays.dfinal_state);
}

// --- Results

template <class Real>
template <class From>
void GradientRows<Real>::add(std::int64_t part, std::int64_t entry, std::int64_t head, std::int64_t first,
                             std::int64_t count, const From* rows, std::int64_t stride, std::int64_t size) {
  std::byte* to = sums_ ? sums_->data() + part * (sums_->bytes() / sums_->shape()[0]) : result_.data();
  to += entry * view_.strides[0] + head * view_.strides[1] + first * view_.strides[2];
  for (std::int64_t t = 0; t < count; ++t, to += view_.strides[2], rows += stride) {
    if (!sums_) {
      matmul::store(rows, size, view_.dtype, to);
      continue;
    }
    for (std::int64_t i = 0; i < size; ++i) {
      auto& sum = *reinterpret_cast<Real*>(to + i * view_.strides[3]);
      sum += static_cast<Real>(rows[i]);
    }
  }
}

template <class Real>
Array GradientRows<Real>::finish() {
  if (!sums_) return std::move(result_);
  const std::int64_t parts = sums_->shape()[0], count = result_.size(), block = 1 << 14;
  Real* const sums = sums_->template elements<Real>().data();
  core::parallel_for(core::ceil_div(count, block), static_cast<double>(count * parts), [&](std::int64_t b) {
    const std::int64_t begin = b * block, some = std::min(block, count - begin);
    for (std::int64_t p = 1; p < parts; ++p)
      for (std::int64_t i = begin; i < begin + some; ++i) sums[i] += sums[p * count + i];
    matmul::store(sums + begin, some, result_.dtype(), result_.data() + begin * size_of(result_.dtype()));
  });
  return std::move(result_);
}

namespace {

template <class Real>
GradientRows<Real> rows_of(const LinearGradPlan& plan, const ArrayType& type, std::int64_t size,
                           std::int64_t heads) {
  const bool is_shared = heads_of(plan.forward, type, size) < heads;
  return {type, plan.parts, is_shared,
          [&](const ArrayView& view) { return plan.forward.in_one_form(view, size); }};
}

// Sums of heads, (sequences, heads, width), as an array of n of them, by blocks, with one number or `width` for each.
std::optional<Array> of_heads(const std::optional<ArrayType>& type, const std::vector<double>& sums,
                              std::int64_t heads, std::int64_t width, std::int64_t n) {
  if (!type) return std::nullopt;
  Array result(type->dtype, type->shape);
  std::vector<double> all(static_cast<std::size_t>(result.size()), 0);
  const std::int64_t each = std::ssize(all) / n;
  for (std::int64_t i = 0; i < std::ssize(sums); ++i) {
    const std::int64_t head = i / width % heads;
    all[static_cast<std::size_t>(head * n / heads * each + (each == 1 ? 0 : i % width))] +=
        sums[static_cast<std::size_t>(i)];
  }
  matmul::store(all.data(), std::ssize(all), result.dtype(), result.data());
  return result;
}

}  // namespace

template <class Real>
LinearGradients<Real>::LinearGradients(const LinearGradPlan& all)
    : plan(all),
      q(rows_of<Real>(all, *all.gradients.q, all.forward.key_size, all.forward.out_heads)),
      k(rows_of<Real>(all, *all.gradients.k, all.forward.key_size, all.forward.state_heads)),
      v(rows_of<Real>(all, *all.gradients.v, all.forward.value_size, all.forward.state_heads)) {
  const LinearPlan& p = all.forward;
  const auto sums = [&](std::int64_t heads, std::int64_t width) {
    return std::vector<double>(static_cast<std::size_t>(std::ssize(p.sequences) * heads * width), 0);
  };
  const auto& gate_type = p.has_dt ? all.gradients.dt : all.gradients.decay;
  if (gate_type && p.decay != DecayKind::fixed)
    gate.emplace(
        rows_of<Real>(all, *gate_type, p.decay == DecayKind::channel ? p.key_size : 0, p.state_heads));
  if (all.gradients.beta) beta.emplace(rows_of<Real>(all, *all.gradients.beta, 0, p.state_heads));
  if (all.gradients.initial_state)
    initial_state.emplace(*all.gradients.initial_state, 1, true,
                          [&](const ArrayView& view) { return p.state_form(view); });
  if (all.gradients.dt_bias || p.decay == DecayKind::fixed) bias = sums(p.state_heads, p.decay_width());
  if (all.gradients.a_log) rate = sums(p.state_heads, 1);
  if (all.gradients.skip) skip = sums(p.out_heads, p.value_size);
}

template <class Real>
LinearAttentionOperands<Array> LinearGradients<Real>::finish() {
  const LinearPlan& p = plan.forward;
  const LinearAttentionTypes& types = plan.gradients;
  LinearAttentionOperands<Array> to;
  to.q = q.finish(), to.k = k.finish(), to.v = v.finish();
  if (gate) (p.has_dt ? to.dt : to.decay) = gate->finish();
  if (beta) to.beta = beta->finish();
  if (initial_state) to.initial_state = initial_state->finish();
  const auto first = [](const auto& type) { return type ? type->shape[0] : 0; };
  const std::int64_t width = p.decay_width();
  if (p.decay == DecayKind::fixed)
    to.decay = of_heads(types.decay, bias, p.state_heads, width, first(types.decay));
  to.a_log = of_heads(types.a_log, rate, p.state_heads, 1, first(types.a_log));
  to.dt_bias = of_heads(types.dt_bias, bias, p.state_heads, width, p.bias_heads);
  to.skip = of_heads(types.skip, skip, p.out_heads, p.value_size, first(types.skip));
  return to;
}

namespace {

template <class Real>
LinearAttentionOperands<Array> gradients_of(const LinearGradPlan& plan, const LinearInputs& in,
                                            const LinearCotangents& from, LinearForm form) {
  const LinearPlan& p = plan.forward;
  const std::int64_t of_sequence = plan.groups * plan.parts, all = std::ssize(p.sequences) * of_sequence;
  const double nanoseconds = (form == LinearForm::tokens ? 6 : 0.6) *
                             static_cast<double>(p.tokens * p.state_heads) *
                             static_cast<double>(p.key_size * p.value_size);
  LinearGradients<Real> to(plan);
  core::parallel_reduce(
      all, core::threads_for(all, nanoseconds), [&] { return LinearGradHead<Real>(plan, in, from, form); },
      [&](LinearGradHead<Real>& head, std::int64_t n) {
        const std::int64_t begin = n % of_sequence * plan.heads_of_part();
        for (std::int64_t h = 0; h < plan.heads_of_part(); ++h) head.run(n / of_sequence, begin + h, to);
      },
      [](const LinearGradHead<Real>&) {});
  return to.finish();
}

}  // namespace

}  // namespace recurrence

LinearAttentionGradPlan::LinearAttentionGradPlan(const LinearAttentionTypes& types,
                                                 const LinearAttentionCotangents<ArrayType>& cotangents,
                                                 const LinearAttentionSettings& settings,
                                                 std::optional<DType> grad_dtype)
    : plan_(std::make_shared<const recurrence::LinearGradPlan>(types, cotangents, settings, grad_dtype)) {}

const LinearAttentionTypes& LinearAttentionGradPlan::gradients() const { return plan_->gradients; }

std::int64_t LinearAttentionGradPlan::work_bytes() const {
  const recurrence::LinearPlan& p = plan_->forward;
  const auto size = static_cast<double>(size_of(p.arithmetic)), keys = static_cast<double>(p.key_size + 64),
             values = static_cast<double>(p.value_size + 64);
  const double of_thread = size * (12.0 * keys * values + 64 * 16 * (keys + values)) + (24 << 20);
  double sums = 0;
  for_each_linear_operand(
      [&](const char*, const auto& type) {
        if (type) sums += size * static_cast<double>(element_count(type->shape) * plan_->parts);
      },
      plan_->gradients);
  return core::bytes_of_estimate(of_thread * threads() + sums);
}

LinearAttentionOperands<Array> LinearAttentionGradPlan::run(
    const LinearAttentionArrays& arrays, const LinearAttentionCotangents<ArrayView>& cotangents) const {
  using recurrence::LinearForm;
  const recurrence::LinearInputs in(plan_->forward, arrays);
  const recurrence::LinearCotangents from(plan_->forward, cotangents);
  return plan_->forward.arithmetic == DType::float64
             ? recurrence::gradients_of<double>(*plan_, in, from, LinearForm::chunks)
             : recurrence::gradients_of<float>(*plan_, in, from, LinearForm::chunks);
}

LinearAttentionGradCheck LinearAttentionGradPlan::check(
    const LinearAttentionArrays& arrays, const LinearAttentionCotangents<ArrayView>& cotangents,
    const LinearAttentionOperands<Array>& gradients) const {
  recurrence::LinearGradPlan plan = *plan_;
  for_each_linear_operand(
      [](const char*, auto& type) {
        if (type) type = ArrayType(DType::float64, type->shape);
      },
      plan.gradients);
  const recurrence::LinearInputs in(plan.forward, arrays);
  const recurrence::LinearCotangents from(plan.forward, cotangents);
  const auto expected = recurrence::gradients_of<double>(plan, in, from, recurrence::LinearForm::tokens);
  const double relative = plan_->forward.arithmetic == DType::float64 ? 1e-10 : 0x1p-15;
  LinearAttentionGradCheck check;
  for_each_linear_operand(
      [&](const char* name, const auto& right, const auto& given) {
        if (!right) return;
        recurrence::Errors errors;
        std::vector<double> actual(static_cast<std::size_t>(given->size()));
        core::load(given->dtype(), given->data(), size_of(given->dtype()), given->size(), actual.data());
        const auto truth = right->template elements<double>();
        for (std::size_t i = 0; i < actual.size(); ++i)
          errors.add(actual[i], truth[i], given->dtype(), {static_cast<std::int64_t>(i)});
        Shape index;
        for (std::size_t axis = given->shape().size(),
                         rest = errors.index.empty() ? 0 : static_cast<std::size_t>(errors.index[0]);
             axis-- > 0;) {
          const auto length = static_cast<std::size_t>(std::max<std::int64_t>(1, given->shape()[axis]));
          index.insert(index.begin(), static_cast<std::int64_t>(rest % length));
          rest /= length;
        }
        check.differences.push_back(
            {std::string("d") + name, {errors.size, relative * errors.largest, index}});
      },
      expected, gradients);
  return check;
}

LinearAttentionOperands<Array> linear_attention_grad(const LinearAttentionArrays& arrays,
                                                     const LinearAttentionCotangents<ArrayView>& cotangents,
                                                     const LinearAttentionSettings& settings,
                                                     std::optional<DType> grad_dtype) {
  return LinearAttentionGradPlan(types_of(arrays), types_of(cotangents), settings, grad_dtype)
      .run(arrays, cotangents);
}

LinearAttentionCotangents<ArrayType> types_of(const LinearAttentionCotangents<ArrayView>& arrays) {
  LinearAttentionCotangents<ArrayType> types;
  if (arrays.dout) types.dout = type_of(*arrays.dout);
  if (arrays.dfinal_state) types.dfinal_state = type_of(*arrays.dfinal_state);
  return types;
}

Report describe(const LinearAttentionGradPlan& plan) {
  Report report = description_of(plan.internal().forward);
  for_each_linear_operand(
      [&](const std::string& name, const auto& type) {
        if (type)
          report.add("d" + name, "d" + name, type->shape)
              .add("d" + name + "_dtype", "of dtype", std::string(name_of(type->dtype)));
      },
      plan.gradients());
  return report;
}

Report describe(const LinearAttentionGradCheck& check) {
  return recurrence::report_of(check.passed(), check.differences, "index");
}

}  // namespace ejk
