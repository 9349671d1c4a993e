// Known faults of a layer of experts. Those of weights and rows are sums of the rows that the reference has; those
// inside an expert are the layer again, with one step changed. Comments name the public threads that have them.
// tests: tests/verdict/moe/test_faults.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "core/parallel.hpp"
#include "verdict/fault_search.hpp"
#include "verdict/moe/layer.hpp"
#include "verdict/row_factor.hpp"

namespace ejk::moe_verdict {

namespace {

using verify::FaultModel;

// The operands of some tokens.
struct SomeTokens {
  std::vector<std::int64_t> tokens;
  Array x, ids, weights;
  MoeOperands operands;

  SomeTokens(const MoeOperands& of, const std::vector<std::int64_t>& which)
      : tokens(which),
        x(rows_of(of.x)),
        ids(rows_of(of.topk_ids)),
        weights(rows_of(of.topk_weights)),
        operands(of) {
    operands.x = x.view(), operands.topk_ids = ids.view(), operands.topk_weights = weights.view();
  }

 private:
  Array rows_of(const ArrayView& all) const {
    Array some(all.dtype, {std::ssize(tokens), all.shape[1]});
    const std::int64_t bytes = all.shape[1] * size_of(all.dtype);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      copy_elements(all[tokens[t]], some.data() + static_cast<std::int64_t>(t) * bytes);
    return some;
  }
};

class Faults {
 public:
  Faults(const ActualLayer& it, const Expected& right, const verify::ResultRows& rows,
         const verify::RowCounts& counts)
      : it_(it),
        right_(right),
        rows_(rows),
        counts_(counts),
        k_(it.choices()),
        ids_(matmul::numbers_of(it.operands.topk_ids)),
        weights_(matmul::numbers_of(it.operands.topk_weights)),
        y_(it.sums, {it.tokens() * k_, it.hidden()}),
        first_(ids_.size(), -1),
        inverse_(ids_.size()) {
    const Route route =
        make_route(make_source(Array::copy_of(it.operands.topk_ids)), it.operands.gate.shape[0]);
    choices_ = route.choices;
    for (std::size_t f = 0; f < inverse_.size(); ++f) {
      inverse_[f] = route.inverse.elements<std::int32_t>()[f];
      if (inverse_[f] < choices_)
        first_[static_cast<std::size_t>(inverse_[f])] = static_cast<std::int64_t>(f);
    }
    keep_rows();
  }

  // Of weights: sums of the same rows.
  std::vector<FaultModel> of_weights(const std::vector<OtherWeights>& others) {
    std::vector<FaultModel> all;
    const auto add = [&](std::string text, std::vector<double> weights) {
      if (weights != weights_) all.push_back(with_weights(std::move(text), std::move(weights)));
    };
    for (const OtherWeights& other : others) add(other.text, matmul::numbers_of(other.weights.view()));
    const auto changed = [&](auto weight_of) {
      std::vector<double> weights;
      for (std::size_t f = 0; f < weights_.size(); ++f) weights.push_back(weight_of(f));
      return weights;
    };
    // vllm-project/vllm#43694
    add("the weights are applied twice", changed([&](std::size_t f) { return weights_[f] * weights_[f]; }));
    add("the weights are not applied", changed([&](std::size_t) { return 1.0; }));
    // pytorch/torchtitan#1448
    add("the weights of a token sum to 1, and should not", changed([&](std::size_t f) {
          const auto begin = weights_.begin() + static_cast<std::ptrdiff_t>(f) / k_ * k_;
          const double sum = std::accumulate(begin, begin + k_, 0.0);
          return sum > 0 ? weights_[f] / sum : weights_[f];
        }));
    add_exchanged(add, changed);
    return all;
  }

  bool has_normalised_weights() const {
    for (std::int64_t t = 0; t < it_.tokens(); ++t) {
      const auto begin = weights_.begin() + t * k_;
      if (std::abs(std::accumulate(begin, begin + k_, 0.0) - 1) > 0.02) return false;
    }
    return true;
  }

  // Rows of choices: of others, or none. Which choices are wrong, is found by the values.
  std::vector<FaultModel> of_rows() {
    std::vector<FaultModel> all;
    // deepseek-ai/DeepSeek-MoE#29
    if (auto model = with_other_rows([](std::int64_t) { return kNone; }, "choices are missing", true))
      all.push_back(std::move(*model));
    // tenstorrent/tt-metal#50669
    for (const std::int64_t step : {1, -1})
      if (auto model = with_other_rows(
              [this, step](std::int64_t row) { return neighbour(row, step); },
              fmt::format("choices have the row {} theirs, of another token", step > 0 ? "after" : "before"),
              false))
        all.push_back(std::move(*model));
    return all;
  }

  // The whole layer again, with one step changed, if it is likely by some tokens; `is_open`: whether another one is
  // needed.
  void try_steps(const std::vector<std::int64_t>& tokens,
                 const std::function<bool(const FaultModel& model)>& is_open) const {
    const SomeTokens some(it_.operands, tokens);
    struct Changed {
      std::string text;
      matmul::MoeSteps steps;
    };
    const Activation own = it_.activation;
    std::vector<Changed> all{
        // sgl-project/sglang#25493, flashinfer-ai/flashinfer#4130
        {"the activation is on the other half: gate and up are exchanged",
         {.activation = own, .exchanges_gate_and_up = true}},
        // vllm-project/vllm#43694
        {"the weights are applied twice: to the input and to the output",
         {.activation = own, .weighs_input = true}},
        {"the weights are applied to the input instead of the output",
         {.activation = own, .weighs_input = true, .weighs_output = false}},
        // ikawrakow/ik_llama.cpp#2437, marin-community/marin#8793
        {"rows take the weights of the next expert", {.activation = own, .expert_step = 1}},
        {"rows take the weights of the previous expert", {.activation = own, .expert_step = -1}}};
    for (const Activation other : {Activation::silu, Activation::gelu, Activation::gelu_tanh})
      if (other != own)
        all.push_back({fmt::format("the activation is {}, not {}", name_of(other), name_of(own)), {other}});
    for (Changed& one : all)
      if (is_likely(one.steps, some) && !is_open(with_steps(std::move(one.text), one.steps))) return;
  }

 private:
  static constexpr std::int64_t kNone = -1;

  // Rows of y sorted by expert over all tokens: chunks of tokens have rows of their own.
  void keep_rows() {
    const std::int64_t bytes = it_.hidden() * size_of(it_.sums);
    const MoeTypes types = types_of(it_.operands);
    const std::int64_t step = matmul::tokens_at_once(types, matmul::bytes_of_token(types, 8));
    for (std::int64_t begin = 0; begin < it_.tokens(); begin += step) {
      const IndexRange tokens{begin, std::min(it_.tokens(), begin + step)};
      const matmul::ExpertRows rows = matmul::expert_rows(it_.operands, tokens, it_.sums, {it_.activation});
      for (std::int64_t f = tokens.begin * k_; f < tokens.end * k_; ++f) {
        const std::int32_t from =
            rows.route.inverse.elements<std::int32_t>()[static_cast<std::size_t>(f - tokens.begin * k_)];
        std::copy_n(rows.y.data() + bytes * from, bytes,
                    y_.data() + bytes * inverse_[static_cast<std::size_t>(f)]);
      }
    }
  }

  void load(std::int64_t row, std::vector<double>& out) const {
    out.resize(static_cast<std::size_t>(it_.hidden()));
    core::load(it_.sums, y_.data() + row * it_.hidden() * size_of(it_.sums), size_of(it_.sums), it_.hidden(),
               out.data());
  }

  // The row `step` from that, of the same expert; at its end itself.
  std::int64_t neighbour(std::int64_t row, std::int64_t step) const {
    const auto expert = [&](std::int64_t r) {
      return ids_[static_cast<std::size_t>(first_[static_cast<std::size_t>(r)])];
    };
    const std::int64_t other = row + step;
    return other >= 0 && other < choices_ && expert(other) == expert(row) ? other : row;
  }

  // Adds weight · y[row] to sums; the sum of squares of what was added.
  double add_row(std::int64_t row, double weight, std::vector<double>& sums) const {
    if (row < 0 || row >= choices_ || weight == 0) return 0;
    std::vector<double> y;
    load(row, y);
    double squares = 0;
    for (std::size_t c = 0; c < y.size(); ++c)
      sums[c] += weight * y[c], squares += weight * weight * y[c] * y[c];
    return squares;
  }

  // A token as the sum of rows with weights; the tolerance grows with the size of its terms.
  bool predict(std::int64_t token,
               const std::function<std::pair<std::int64_t, double>(std::size_t choice)>& term,
               std::span<const std::int64_t> columns, double* values, double* allowed) const {
    std::vector<double> sums(static_cast<std::size_t>(it_.hidden())), right(sums);
    double terms = 0, right_terms = 0;
    for (auto f = static_cast<std::size_t>(token * k_); f < static_cast<std::size_t>((token + 1) * k_); ++f) {
      const auto [row, weight] = term(f);
      terms += add_row(row, weight, sums);
      right_terms += add_row(inverse_[f], weights_[f], right);
    }
    const double larger = right_terms > 0 ? std::sqrt(terms / right_terms) : 1;
    const double epsilon = verify::float_type(it_.given.dtype).epsilon();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto at = static_cast<std::size_t>(columns[c]);
      values[c] = sums[at];
      allowed[c] = larger * right_.allowed[static_cast<std::size_t>(token * it_.hidden()) + at] +
                   epsilon * std::abs(sums[at]) + verify::float_type(it_.given.dtype).spacing_at(0) / 2;
    }
    return true;
  }

  double nanoseconds() const { return 4 * static_cast<double>(k_ * it_.hidden()); }

  FaultModel with_weights(std::string text, std::vector<double> weights) const {
    FaultModel model{"weights", std::move(text),
                     [this, weights = std::move(weights)](std::int64_t token, auto columns, double* values,
                                                          double* allowed) {
                       return predict(
                           token, [&](std::size_t f) { return std::pair(inverse_[f], weights[f]); }, columns,
                           values, allowed);
                     }};
    model.nanoseconds = nanoseconds();
    model.is_subtle = true;
    return model;
  }

  template <class Add, class Changed>
  void add_exchanged(const Add& add, const Changed& changed) const {
    const auto from = [&](std::size_t f, std::int64_t choice) {
      return weights_[static_cast<std::size_t>(static_cast<std::int64_t>(f) / k_ * k_ + choice)];
    };
    const auto choice = [&](std::size_t f) { return static_cast<std::int64_t>(f) % k_; };
    // sgl-project/sglang#8125: choices in another order than their weights
    if (k_ > 1) {
      add("the weights of a token are exchanged: those of its choices in reverse order",
          changed([&](std::size_t f) { return from(f, k_ - 1 - choice(f)); }));
      for (const std::int64_t step : {std::int64_t{1}, k_ - 1})
        add(fmt::format("the weights of a token are exchanged: each is that of the {} choice",
                        step == 1 ? "next" : "previous"),
            changed([&](std::size_t f) { return from(f, (choice(f) + step) % k_); }));
      add("the weights of a token are exchanged: its experts are sorted, its weights are not",
          changed([&](std::size_t f) {
            const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(f) / k_ * k_;
            return from(f, std::count_if(begin, begin + k_, [&](double id) { return id < ids_[f]; }));
          }));
    }
    add("the weights of choices are taken in the order of the rows, sorted by expert",
        changed([&](std::size_t f) { return weights_[static_cast<std::size_t>(inverse_[f])]; }));
    for (const std::int64_t step : {1, -1})
      add(fmt::format("each token has the weights of the token {} it", step > 0 ? "after" : "before"),
          changed([&](std::size_t f) {
            const std::int64_t other = static_cast<std::int64_t>(f) + step * k_;
            return other >= 0 && other < std::ssize(weights_) ? weights_[static_cast<std::size_t>(other)]
                                                              : weights_[f];
          }));
  }

  // The choices of a token for which the other row comes nearer to the result, one after the other.
  void find_choices(std::int64_t token, const std::function<std::int64_t(std::int64_t row)>& other,
                    std::vector<char>& flags) const {
    const auto n = static_cast<std::size_t>(it_.hidden());
    std::vector<double> rest(n), next;
    rows_.given(token, rest.data());
    double size = 0;
    for (std::size_t c = 0; c < n; ++c) {
      rest[c] -= right_.out[static_cast<std::size_t>(token * it_.hidden()) + c];
      size += rest[c] * rest[c];
    }
    if (!std::isfinite(size)) return;
    for (bool is_better = true; is_better;) {
      is_better = false;
      for (auto f = static_cast<std::size_t>(token * k_); f < static_cast<std::size_t>((token + 1) * k_);
           ++f) {
        const std::int64_t row = inverse_[f], from = row < choices_ ? other(row) : row;
        if (flags[f] != 0 || from == row) continue;
        next = rest;
        add_row(row, weights_[f], next);
        add_row(from, -weights_[f], next);
        const double now = std::inner_product(next.begin(), next.end(), next.begin(), 0.0);
        if (!(now < 0.9 * size)) continue;
        flags[f] = 1, size = now, rest = next, is_better = true;
      }
    }
  }

  // Experts of flagged choices; of missing ones the capacity, if they are the last rows of all of them.
  std::string experts_of(const std::vector<char>& flags, bool are_missing) const {
    std::map<std::int64_t, std::int64_t> begin, first, count, last;
    for (std::int64_t row = 0; row < choices_; ++row) {
      const auto f = static_cast<std::size_t>(first_[static_cast<std::size_t>(row)]);
      const auto e = static_cast<std::int64_t>(ids_[f]);
      begin.emplace(e, row);
      last[e] = row - begin[e] + 1;
      if (flags[f] == 0) continue;
      first.emplace(e, row - begin[e]);
      ++count[e];
    }
    std::vector<bool> experts(static_cast<std::size_t>(it_.operands.gate.shape[0]));
    std::set<std::int64_t> capacities;
    bool are_last = are_missing;
    for (const auto& [e, n] : count) {
      experts[static_cast<std::size_t>(e)] = true;
      capacities.insert(first[e]);
      are_last = are_last && n == last[e] - first[e];
    }
    std::string text =
        fmt::format(" in {} {}", count.size() == 1 ? "expert" : "experts", verify::ranges_of(experts, 6));
    if (!are_last || capacities.size() != 1) return text;
    const std::int64_t capacity = *capacities.begin();
    if (capacity == 0) return text + ", all of them";
    const bool is_of_all = std::all_of(last.begin(), last.end(), [&](const auto& e) {
      return e.second <= capacity || count.contains(e.first);
    });
    return text + fmt::format(", after {} rows{}", capacity, is_of_all ? ": its capacity" : "");
  }

  std::optional<FaultModel> with_other_rows(std::function<std::int64_t(std::int64_t row)> other,
                                            const std::string& text, bool are_missing) const {
    auto flags = std::make_shared<std::vector<char>>(ids_.size());
    core::parallel_for(it_.tokens(), nanoseconds() * static_cast<double>(k_ * it_.tokens()),
                       [&](std::int64_t token) {
                         if (counts_.beyond[static_cast<std::size_t>(token)] > 0)
                           find_choices(token, other, *flags);
                       });
    if (std::find(flags->begin(), flags->end(), 1) == flags->end()) return std::nullopt;
    FaultModel model{are_missing ? "dropped" : "shifted", text + experts_of(*flags, are_missing),
                     [this, flags, other = std::move(other)](std::int64_t token, auto columns, double* values,
                                                             double* allowed) {
                       return predict(
                           token,
                           [&](std::size_t f) {
                             return std::pair((*flags)[f] != 0 ? other(inverse_[f]) : inverse_[f],
                                              weights_[f]);
                           },
                           columns, values, allowed);
                     }};
    model.nanoseconds = nanoseconds();
    model.is_subtle = true;
    return model;
  }

  // Whether the step halves the differences of some of the tokens.
  bool is_likely(const matmul::MoeSteps& steps, const SomeTokens& some) const {
    const matmul::ExpertRows rows =
        matmul::expert_rows(some.operands, {0, std::ssize(some.tokens)}, it_.sums, steps);
    std::vector<double> given(static_cast<std::size_t>(it_.hidden())), sums(given), y(given);
    std::int64_t better = 0;
    for (std::int64_t t = 0; t < std::ssize(some.tokens); ++t) {
      const std::int64_t token = some.tokens[static_cast<std::size_t>(t)];
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t j = 0; j < k_; ++j) {
        const std::int64_t row =
            rows.route.inverse.elements<std::int32_t>()[static_cast<std::size_t>(t * k_ + j)];
        if (row >= rows.route.choices) continue;
        core::load(it_.sums, rows.y.data() + row * it_.hidden() * size_of(it_.sums), size_of(it_.sums),
                   it_.hidden(), y.data());
        const double weight = steps.weighs_output ? weights_[static_cast<std::size_t>(token * k_ + j)] : 1;
        for (std::size_t c = 0; c < y.size(); ++c) sums[c] += weight * y[c];
      }
      rows_.given(token, given.data());
      double before = 0, after = 0;
      for (std::size_t c = 0; c < given.size(); ++c) {
        const double right = right_.out[static_cast<std::size_t>(token * it_.hidden()) + c];
        before += (given[c] - right) * (given[c] - right);
        after += (given[c] - sums[c]) * (given[c] - sums[c]);
      }
      better += 4 * after < before;
    }
    return better >= std::clamp<std::int64_t>(std::ssize(some.tokens), 1, 3);
  }

  FaultModel with_steps(std::string text, const matmul::MoeSteps& steps) const {
    auto values = std::make_shared<const Expected>(it_.expected(steps));
    FaultModel model{"layer", std::move(text),
                     [this, values](std::int64_t token, std::span<const std::int64_t> columns, double* out,
                                    double* allowed) {
                       for (std::size_t c = 0; c < columns.size(); ++c) {
                         const auto at = static_cast<std::size_t>(token * it_.hidden() + columns[c]);
                         out[c] = values->out[at];
                         allowed[c] = values->allowed[at];
                       }
                       return true;
                     }};
    model.nanoseconds = 10 * static_cast<double>(it_.hidden());
    model.is_subtle = true;
    return model;
  }

  const ActualLayer& it_;
  const Expected& right_;
  const verify::ResultRows& rows_;
  const verify::RowCounts& counts_;
  std::int64_t k_, choices_ = 0;
  std::vector<double> ids_, weights_;  // by choice
  Array y_;                            // rows of choices, sorted by expert
  std::vector<std::int64_t> first_;    // the choice of each row
  std::vector<std::int64_t> inverse_;  // the row of each choice
};

}  // namespace

void explain(const ActualLayer& it, const Expected& right, const std::vector<OtherWeights>& others,
             const verify::ResultRows& rows, const verify::RowCounts& counts, Against& against) {
  const double row = 4 * static_cast<double>(it.choices() * it.hidden());
  verify::FaultSearch search(rows, counts, row);
  Faults faults(it, right, rows, counts);
  std::vector<verify::Found> found;
  const auto run = [&](const std::vector<FaultModel>& models) {
    if (models.empty() || !search.is_open()) return;
    for (verify::Found& one : search.run(models)) found.push_back(std::move(one));
  };
  run(faults.of_weights(others));
  if (search.is_open())
    faults.try_steps(search.some_rows(64), [&](const FaultModel& model) {
      run({model});
      return search.is_open();
    });
  if (search.is_open()) run(faults.of_rows());
  if (search.is_open())
    if (auto factors = verify::factor_of_each_row(rows, search, "token", row)) {
      if (faults.has_normalised_weights()) factors->text += ", as of weights that are not renormalised";
      run({*factors});
    }
  search.report(std::move(found), against);
}

}  // namespace ejk::moe_verdict
