// Rows, gates and states of linear attention as its forms read them: activations, norms and their gradients.
// tests: tests/recurrence/test_linear_attention.cpp
#include "recurrence/linear_rows.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "core/elements.hpp"

namespace ejk::recurrence {

namespace {

// e^-800 is 0, and sums of 64 such keep all digits.
constexpr double kLeastGate = -800;
constexpr double kNormFloor = 1e-6;

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const std::byte* row_of(const ArrayView& array, std::int64_t entry, std::int64_t head, std::int64_t token) {
  return array.data + entry * array.strides[0] + head * array.strides[1] + token * array.strides[2];
}

}  // namespace

template <class Real>
void LinearRows<Real>::state(std::int64_t slot, Real* to, Real* turned) const {
  const std::int64_t keys = plan_.key_size, values = plan_.value_size;
  if (slot < 0) {
    std::fill_n(to, keys * values, Real{0});
    return;
  }
  const ArrayView& from = *in_.initial_state;
  const bool is_turned = plan_.settings.state_layout == StateLayout::vk;
  const std::int64_t rows = is_turned ? values : keys, columns = is_turned ? keys : values;
  const std::byte* at =
      from.data + slot * from.strides[0] + head_ * from.shape[1] / plan_.state_heads * from.strides[1];
  const std::int64_t row = from.strides[is_turned ? 3 : 2], element = from.strides[is_turned ? 2 : 3];
  Real* const loaded = is_turned ? turned : to;
  for (std::int64_t r = 0; r < rows; ++r, at += row)
    core::load(from.dtype, at, element, columns, loaded + r * columns);
  if (is_turned) transpose(turned, values, keys, to);
}

template <class Real>
void LinearRows<Real>::load(const ArrayView& from, std::int64_t head, std::int64_t first, std::int64_t count,
                            const Rows<Real>& to, std::int64_t size) const {
  for (std::int64_t t = 0; t < count; ++t)
    core::load(from.dtype, row_of(from, sequence_.entry, head, sequence_.begin + first + t), from.strides[3],
               size, to[t]);
}

template <class Real>
void LinearRows<Real>::normalize(const Rows<Real>& rows, std::int64_t count, double* factors) const {
  if (!plan_.settings.l2norm) return;
  constexpr std::int64_t kLanes = 4;
  const std::int64_t keys = plan_.key_size;
  for (std::int64_t t = 0; t < count; ++t) {
    Real* const row = rows[t];
    double squares[kLanes] = {kNormFloor};
    for (std::int64_t d = 0; d < keys; ++d) squares[d % kLanes] += static_cast<double>(row[d]) * row[d];
    const double factor = 1 / std::sqrt((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (std::int64_t d = 0; d < keys; ++d) row[d] = static_cast<Real>(row[d] * factor);
    if (factors != nullptr) factors[t] = factor;
  }
}

template <class Real>
void LinearRows<Real>::keys(std::int64_t first, std::int64_t count, const Rows<Real>& to,
                            double* factors) const {
  load(in_.k, head_ * in_.k.shape[1] / plan_.state_heads, first, count, to, plan_.key_size);
  normalize(to, count, factors);
}

template <class Real>
void LinearRows<Real>::values(std::int64_t first, std::int64_t count, const Rows<Real>& to) const {
  load(in_.v, head_ * in_.v.shape[1] / plan_.state_heads, first, count, to, plan_.value_size);
}

template <class Real>
void LinearRows<Real>::queries(std::int64_t out_head, std::int64_t first, std::int64_t count, double scale,
                               const Rows<Real>& to, double* factors) const {
  load(in_.q, out_head * in_.q.shape[1] / plan_.out_heads, first, count, to, plan_.key_size);
  normalize(to, count, factors);
  if (scale == 1) return;
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t d = 0; d < plan_.key_size; ++d)
      to[t][d] = static_cast<Real>(static_cast<double>(to[t][d]) * scale);
}

// A gate that is none, by its index in the array as it is given.
template <class Real>
void LinearRows<Real>::refuse(bool is_beta, std::int64_t token, std::int64_t channel, double value) const {
  const ArrayView& gates = is_beta ? *in_.beta : *in_.gate;
  Shape index{head_ * gates.shape[1] / plan_.state_heads};
  if (is_beta || plan_.decay != DecayKind::fixed) {
    const bool heads_first = plan_.settings.layout == LinearAttentionLayout::bhsd;
    index.insert(heads_first ? index.end() : index.begin(), sequence_.begin + token);
    if (plan_.settings.layout != LinearAttentionLayout::thd || plan_.has_leading_axis)
      index.insert(index.begin(), sequence_.entry);
    if (!is_beta && plan_.decay == DecayKind::channel) index.push_back(channel);
  }
  const std::string at = (is_beta ? "beta" : plan_.has_dt ? "dt" : "decay") + to_string(index);
  throw Error(Error::Kind::input, at + (value != value ? " is NaN" : " is below 0, and factors are not"),
              value != value ? Error::Code::other : Error::Code::negative_factor)
      .about(at.substr(0, at.find('(')));
}

// Gates as given become logarithms of decays; of dt they become beta, too.
template <class Real>
// NOLINTNEXTLINE(readability-non-const-parameter): written by a reference
void LinearRows<Real>::activate(std::int64_t first, std::int64_t count, double* gates, double* beta) {
  const LinearAttentionSettings& s = plan_.settings;
  const std::int64_t width = plan_.decay_width();
  const double rate = in_.rate[static_cast<std::size_t>(head_)];
  const double* const bias = in_.bias.data() + head_ * width;
  for (std::int64_t i = 0; i < count * width; ++i) {
    double& g = gates[i];
    if (g != g || (g < 0 && s.decay_space == DecaySpace::linear))
      refuse(false, first + i / width, i % width, g);
    if (plan_.has_dt) {
      g += bias[0];
      if (s.dt_softplus) g = softplus(g);
      if (s.dt_limit) g = std::clamp(g, s.dt_limit->first, s.dt_limit->second);
      work_.least_dt = std::min(work_.least_dt, g);
      beta[i] = g;
      g *= -rate;
    } else if (plan_.is_raw) {
      g += bias[i % width];
      g = s.lower_bound ? *s.lower_bound * sigmoid(rate * g) : -rate * softplus(g);
    } else {
      if (s.decay_space == DecaySpace::linear) {
        g = std::log(g);
      } else {
        work_.least_decay = std::min(work_.least_decay, g);
        work_.largest_decay = std::max(work_.largest_decay, g);
        if (s.decay_space == DecaySpace::log2) g *= std::numbers::ln2;
      }
    }
    g = std::max(g, kLeastGate);
  }
}

template <class Real>
void LinearRows<Real>::load_beta(std::int64_t first, std::int64_t count, double* beta) const {
  const ArrayView& from = *in_.beta;
  core::load(
      from.dtype,
      row_of(from, sequence_.entry, head_ * from.shape[1] / plan_.state_heads, sequence_.begin + first),
      from.strides[2], count, beta);
}

template <class Real>
void LinearRows<Real>::load_gates(std::int64_t first, std::int64_t count, double* gates) const {
  const ArrayView& from = *in_.gate;
  const std::int64_t width = plan_.decay_width();
  const std::byte* const at =
      row_of(from, sequence_.entry, head_ * from.shape[1] / plan_.state_heads, sequence_.begin + first);
  if (width == 1)
    core::load(from.dtype, at, from.strides[2], count, gates);
  else
    for (std::int64_t t = 0; t < count; ++t)
      core::load(from.dtype, at + t * from.strides[2], from.strides[3], width, gates + t * width);
}

template <class Real>
void LinearRows<Real>::gates(std::int64_t first, std::int64_t count, double* gates, double* beta) {
  if (!plan_.has_dt) std::fill_n(beta, count, 1.0);
  if (in_.beta) {
    load_beta(first, count, beta);
    for (std::int64_t t = 0; t < count; ++t)
      if (beta[t] != beta[t]) refuse(true, first + t, 0, beta[t]);
    if (plan_.settings.beta_sigmoid)
      std::transform(beta, beta + count, beta,
                     [factor = *plan_.settings.beta_sigmoid](double x) { return factor * sigmoid(x); });
  }
  if (!in_.gate) return;
  load_gates(first, count, gates);
  activate(first, count, gates, beta);
}

template <class Real>
// NOLINTNEXTLINE(readability-non-const-parameter): written by a reference
double LinearRows<Real>::through_gates(std::int64_t first, std::int64_t count, double* gates,
                                       double* beta) const {
  const LinearAttentionSettings& s = plan_.settings;
  const std::int64_t width = plan_.decay_width();
  const double rate = in_.rate[static_cast<std::size_t>(head_)];
  const double* const bias = in_.bias.data() + head_ * width;
  std::vector<double> given(static_cast<std::size_t>(count * width));
  double of_rate = 0;
  if (s.beta_sigmoid) {
    load_beta(first, count, given.data());
    for (std::int64_t t = 0; t < count; ++t) {
      const double x = given[static_cast<std::size_t>(t)];
      beta[t] *= *s.beta_sigmoid * sigmoid(x) * sigmoid(-x);
    }
  }
  if (!in_.gate || (!plan_.has_dt && !plan_.is_raw && s.decay_space != DecaySpace::log2)) return 0;
  load_gates(first, count, given.data());
  for (std::int64_t i = 0; i < count * width; ++i) {
    const double x = given[static_cast<std::size_t>(i)] + bias[i % width];
    double& g = gates[i];
    if (plan_.has_dt) {
      const double dt = s.dt_softplus ? softplus(x) : x;
      const bool is_clamped = s.dt_limit && (dt < s.dt_limit->first || dt > s.dt_limit->second);
      const double used = s.dt_limit ? std::clamp(dt, s.dt_limit->first, s.dt_limit->second) : dt;
      if (g != 0) of_rate -= rate * used * g;
      g = is_clamped ? 0 : (beta[i] - rate * g) * (s.dt_softplus ? sigmoid(x) : 1);
    } else if (!plan_.is_raw) {
      g *= std::numbers::ln2;
    } else if (s.lower_bound) {
      const double slope = *s.lower_bound * sigmoid(rate * x) * sigmoid(-rate * x) * rate * g;
      of_rate += slope * x;
      g = slope;
    } else {
      if (g != 0) of_rate -= rate * softplus(x) * g;
      g *= -rate * sigmoid(x);
    }
  }
  return of_rate;
}

template class LinearRows<float>;
template class LinearRows<double>;

}  // namespace ejk::recurrence
