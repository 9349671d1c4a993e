// A head of linear attention in float64: the chunk form of the library, and by the letter token by token or in chunks.
// tests: tests/verdict/recurrence/test_linear.cpp
#include "verdict/recurrence/linear_head_problem.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compare/float_type.hpp"
#include "recurrence/linear_head.hpp"
#include "recurrence/linear_rows.hpp"

namespace ejk::recurrence_verdict {

namespace {

using recurrence::add_row;
using recurrence::dot_of;
using recurrence::LinearInputs;
using recurrence::LinearPlan;

std::vector<double> zeros(std::int64_t count) { return std::vector<double>(static_cast<std::size_t>(count)); }

void add_skip(const HeadProblem& p, HeadResult& result) {
  if (p.skip.empty()) return;
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t t = 0; t < p.tokens; ++t)
      for (std::int64_t c = 0; c < p.values; ++c)
        result.out[static_cast<std::size_t>((h * p.tokens + t) * p.values + c)] +=
            p.skip[static_cast<std::size_t>(h * p.values + c)] *
            p.v[static_cast<std::size_t>(t * p.values + c)];
}

// The library's chunk form in float64 of these numbers.
void solve_as_defined(const HeadProblem& p, HeadResult& result) {
  const auto view = [](const std::vector<double>& data, Shape shape) {
    return ArrayView(reinterpret_cast<const std::byte*>(data.data()), DType::float64, std::move(shape));
  };
  LinearAttentionArrays arrays;
  arrays.q = view(p.q, {1, p.heads, p.tokens, p.keys});
  arrays.k = view(p.k, {1, 1, p.tokens, p.keys});
  arrays.v = view(p.v, {1, 1, p.tokens, p.values});
  if (!p.gates.empty())
    arrays.decay = view(p.gates, p.width == 1 ? Shape{1, 1, p.tokens} : Shape{1, 1, p.tokens, p.width});
  arrays.beta = view(p.beta, {1, 1, p.tokens});
  arrays.initial_state = view(p.state, {1, 1, p.keys, p.values});
  LinearAttentionSettings settings;
  settings.layout = LinearAttentionLayout::bhsd;
  settings.delta = p.delta;
  settings.scale = 1;
  const LinearPlan plan(types_of(arrays), settings);
  const LinearInputs inputs(plan, arrays);
  recurrence::LinearHead<double> head(plan, inputs, recurrence::LinearForm::chunks);
  recurrence::LinearSink<double> sink;
  sink.out = [&](std::int64_t h, std::int64_t token, std::int64_t count, const double* rows) {
    std::copy_n(rows, count * p.values, result.out.data() + (h * p.tokens + token) * p.values);
  };
  sink.final_state = [&](std::int64_t, const double* state) {
    std::copy_n(state, p.keys * p.values, result.state.data());
  };
  head.run(0, 0, sink);
}

class Tokens {
 public:
  Tokens(const HeadProblem& p, const LinearSteps& steps, HeadResult& result)
      : p_(p), steps_(steps), result_(result), s_(result.state.data()) {
    if (steps.step == LinearStep::rounded_state) rounding_ = verify::rounding_to(steps.state);
  }

  void run() {
    for (std::int64_t t = 0; t < p_.tokens; ++t) {
      const double* const k = p_.k.data() + t * p_.keys;
      std::vector<double> error = zeros(p_.values);
      if (is(LinearStep::out_before_decay)) write_out(t);
      if (is(LinearStep::error_before_decay)) product(k, error.data());
      if (!is(LinearStep::decay_last)) decay(t);
      if (is(LinearStep::out_before_update)) write_out(t);
      if (!is(LinearStep::error_before_decay)) product(k, error.data());
      update(t, k, error.data());
      if (is(LinearStep::decay_last)) decay(t);
      if (rounding_)
        for (double& x : result_.state) x = rounding_(x);
      if (!is(LinearStep::out_before_decay) && !is(LinearStep::out_before_update)) write_out(t);
    }
  }

 private:
  bool is(LinearStep step) const { return steps_.step == step; }

  void product(const double* k, double* error) const {
    for (std::int64_t d = 0; p_.delta && d < p_.keys; ++d)
      add_row(error, k[d], s_ + d * p_.values, p_.values);
  }
  void update(std::int64_t t, const double* k, double* u) {
    const double beta = p_.beta[static_cast<std::size_t>(t)],
                 of_error = is(LinearStep::beta_on_values) ? 1 : beta;
    const double* const v = p_.v.data() + t * p_.values;
    for (std::int64_t c = 0; c < p_.values; ++c) u[c] = beta * v[c] - of_error * u[c];
    for (std::int64_t d = 0; d < p_.keys; ++d) add_row(s_ + d * p_.values, k[d], u, p_.values);
  }
  void decay(std::int64_t t) {
    if (p_.gates.empty()) return;
    const double* const g = p_.gates_at(t);
    factors_.resize(static_cast<std::size_t>(p_.width));
    for (std::int64_t d = 0; d < p_.width; ++d)
      factors_[static_cast<std::size_t>(d)] = is(LinearStep::factors) ? g[d] : std::exp(g[d]);
    const bool by_values = is(LinearStep::decay_of_values);
    for (std::int64_t d = 0; d < p_.keys; ++d)
      for (std::int64_t c = 0; c < p_.values; ++c)
        s_[d * p_.values + c] *= factors_[static_cast<std::size_t>(p_.width == 1 ? 0 : by_values ? c : d)];
  }
  void write_out(std::int64_t t) {
    for (std::int64_t h = 0; h < p_.heads; ++h)
      for (std::int64_t d = 0; d < p_.keys; ++d)
        add_row(result_.out.data() + (h * p_.tokens + t) * p_.values,
                p_.q[static_cast<std::size_t>((h * p_.tokens + t) * p_.keys + d)], s_ + d * p_.values,
                p_.values);
  }

  const HeadProblem& p_;
  const LinearSteps& steps_;
  HeadResult& result_;
  double* s_;
  std::vector<double> factors_;
  verify::Rounding rounding_;
};

// The chunk form, by the letter: its steps are those of kernels.
class Chunk {
 public:
  Chunk(const HeadProblem& p, LinearStep step, std::int64_t begin, std::int64_t end, HeadResult& result)
      : p_(p),
        step_(step),
        begin_(begin),
        count_(end - begin),
        result_(result),
        sums_(zeros(count_ * p.width)) {
    for (std::int64_t i = 0; i < count_ && !p.gates.empty(); ++i)
      for (std::int64_t d = 0; d < p.width; ++d)
        sums_[index(i, d)] = p.gates_at(begin + i)[d] + (i > 0 ? sums_[index(i - 1, d)] : 0);
  }

  void run() {
    const std::vector<double> u = strengths();
    write_out(u);
    update(u);
  }

 private:
  std::size_t index(std::int64_t i, std::int64_t d) const {
    return static_cast<std::size_t>(i * p_.width + (p_.width == 1 ? 0 : d));
  }
  const double* key(std::int64_t i) const { return p_.k.data() + (begin_ + i) * p_.keys; }
  double beta(std::int64_t i) const { return p_.beta[static_cast<std::size_t>(begin_ + i)]; }
  // Σ_d x_d k_jd e^(G_id − G_jd), or without decays.
  double score(const double* x, std::int64_t i, std::int64_t j, bool is_plain) const {
    if (is_plain) return dot_of(x, key(j), p_.keys);
    if (p_.width == 1) return std::exp(sums_[index(i, 0)] - sums_[index(j, 0)]) * dot_of(x, key(j), p_.keys);
    double sum = 0;
    for (std::int64_t d = 0; d < p_.keys; ++d)
      sum += x[d] * key(j)[d] * std::exp(sums_[index(i, d)] - sums_[index(j, d)]);
    return sum;
  }
  void times_state(const double* x, std::int64_t i, bool is_plain, double* to) const {
    for (std::int64_t d = 0; d < p_.keys; ++d)
      add_row(to, x[d] * (is_plain ? 1 : std::exp(sums_[index(i, d)])), result_.state.data() + d * p_.values,
              p_.values);
  }

  // u of each token, (count, V).
  std::vector<double> strengths() const {
    std::vector<double> right = zeros(count_ * p_.values);
    const bool is_plain = step_ == LinearStep::mask_for_keys || step_ == LinearStep::mask_for_both;
    for (std::int64_t i = 0; i < count_; ++i) {
      double* const row = right.data() + i * p_.values;
      if (p_.delta) times_state(key(i), i, step_ == LinearStep::plain_w, row);
      for (std::int64_t c = 0; c < p_.values; ++c)
        row[c] = beta(i) * (p_.v[static_cast<std::size_t>((begin_ + i) * p_.values + c)] - row[c]);
    }
    if (!p_.delta) return right;
    std::vector<double> u = right;
    const bool solves = step_ != LinearStep::lower_for_inverse && step_ != LinearStep::first_order;
    const double sign = step_ == LinearStep::lower_for_inverse ? 1 : -1;
    for (std::int64_t i = 0; i < count_; ++i) {
      double* const row = u.data() + i * p_.values;
      if (step_ == LinearStep::lower_for_inverse) std::fill_n(row, p_.values, 0.0);
      for (std::int64_t j = 0; j < i; ++j)
        add_row(row, sign * beta(i) * score(key(i), i, j, is_plain),
                (solves ? u : right).data() + j * p_.values, p_.values);
    }
    return u;
  }
  void write_out(const std::vector<double>& u) {
    const bool is_plain = step_ == LinearStep::mask_for_scores || step_ == LinearStep::mask_for_both;
    for (std::int64_t h = 0; h < p_.heads; ++h)
      for (std::int64_t i = 0; i < count_; ++i) {
        const std::int64_t row = h * p_.tokens + begin_ + i;
        const double* const q = p_.q.data() + row * p_.keys;
        double* const out = result_.out.data() + row * p_.values;
        times_state(q, i, false, out);
        for (std::int64_t j = 0; j <= i; ++j)
          add_row(out, score(q, i, j, is_plain), u.data() + j * p_.values, p_.values);
      }
  }
  void update(const std::vector<double>& u) {
    double* const s = result_.state.data();
    for (std::int64_t d = 0; d < p_.keys; ++d) {
      const double last = sums_[index(count_ - 1, d)], factor = std::exp(last);
      for (std::int64_t c = 0; c < p_.values; ++c) s[d * p_.values + c] *= factor;
      for (std::int64_t j = 0; j < count_; ++j)
        add_row(s + d * p_.values, key(j)[d] * std::exp(last - sums_[index(j, d)]), u.data() + j * p_.values,
                p_.values);
    }
  }

  const HeadProblem& p_;
  LinearStep step_;
  std::int64_t begin_, count_;
  HeadResult& result_;
  std::vector<double> sums_;
};

}  // namespace

HeadProblem load_head(const LinearPlan& plan, const LinearInputs& inputs, std::int64_t sequence,
                      std::int64_t head, std::int64_t tokens) {
  recurrence::LinearRows<double> rows(plan, inputs);
  rows.select(sequence, head);
  HeadProblem p;
  p.tokens = std::min(tokens, rows.sequence().length);
  p.keys = plan.key_size;
  p.values = plan.value_size;
  p.heads = plan.out_heads / plan.state_heads;
  p.width = plan.decay_width();
  p.delta = plan.settings.delta;
  p.k = zeros(p.tokens * p.keys), p.v = zeros(p.tokens * p.values), p.q = zeros(p.heads * p.tokens * p.keys);
  p.state = zeros(p.keys * p.values), p.beta = zeros(p.tokens);
  if (inputs.gate) p.gates = zeros(p.tokens * p.width);
  rows.keys(0, p.tokens, {p.k.data(), p.keys});
  rows.values(0, p.tokens, {p.v.data(), p.values});
  for (std::int64_t h = 0; h < p.heads; ++h)
    rows.queries(head * p.heads + h, 0, p.tokens, plan.scale, {p.q.data() + h * p.tokens * p.keys, p.keys});
  rows.gates(0, p.tokens, p.gates.data(), p.beta.data());
  std::vector<double> turned = zeros(p.keys * p.values);
  rows.state(plan.slots[static_cast<std::size_t>(sequence)].read, p.state.data(), turned.data());
  if (!inputs.skip.empty()) {
    const auto from = inputs.skip.begin() + head * p.heads * p.values;
    p.skip.assign(from, from + p.heads * p.values);
  }
  return p;
}

HeadProblem part_of(const HeadProblem& problem, std::int64_t begin, std::int64_t end,
                    std::vector<double> state) {
  HeadProblem part;
  part.tokens = end - begin;
  part.keys = problem.keys, part.values = problem.values, part.heads = problem.heads;
  part.width = problem.width, part.delta = problem.delta, part.skip = problem.skip;
  part.state = std::move(state);
  const auto add = [&](const std::vector<double>& from, std::int64_t first, std::int64_t size,
                       std::vector<double>& to) {
    if (from.empty()) return;
    const auto rows = from.begin() + (first + begin) * size;
    to.insert(to.end(), rows, rows + part.tokens * size);
  };
  add(problem.k, 0, part.keys, part.k), add(problem.v, 0, part.values, part.v);
  add(problem.gates, 0, part.width, part.gates), add(problem.beta, 0, 1, part.beta);
  for (std::int64_t h = 0; h < problem.heads; ++h) add(problem.q, h * problem.tokens, part.keys, part.q);
  return part;
}

HeadResult solve(const HeadProblem& problem, const LinearSteps& steps) {
  HeadResult result{zeros(problem.heads * problem.tokens * problem.values), problem.state};
  if (problem.tokens > 0) {
    if (steps.step == LinearStep::none) {
      solve_as_defined(problem, result);
    } else if (steps.step < LinearStep::mask_for_scores) {
      Tokens(problem, steps, result).run();
    } else {
      for (std::int64_t begin = 0; begin < problem.tokens; begin += steps.chunk)
        Chunk(problem, steps.step, begin, std::min(problem.tokens, begin + steps.chunk), result).run();
    }
  }
  add_skip(problem, result);
  return result;
}

}  // namespace ejk::recurrence_verdict
