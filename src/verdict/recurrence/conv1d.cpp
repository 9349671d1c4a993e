// Short convolutions of another implementation: the formula in float64, token by token, and the same with one step
// changed, each a known fault. Cost: a pass over x for each; memory: a row of channels for each thread.
// tests: tests/verdict/recurrence/test_conv1d.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compare/float_type.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "ejk/recurrence_check.hpp"
#include "recurrence/conv1d.hpp"
#include "verdict/against.hpp"
#include "verdict/explain_rows.hpp"
#include "verdict/fault_search.hpp"

namespace ejk {

namespace {

using recurrence::Conv1dProblem;
using recurrence::Sequence;
using Channels = std::vector<double>;

// One step of the computation that a fault changes.
enum class ConvolutionStep : std::uint8_t {
  none,
  activation,      // missing, or there for none
  bias,            // missing
  reversed,        // the weights, or the columns of a final state
  late,            // by one token
  runs_on,         // a sequence into the next one
  state_zero,      // the initial state is 0
  state_reversed,  // the initial state has its oldest token last
  rounded,         // sums, before the activation
};

class ConvolutionReference {
 public:
  explicit ConvolutionReference(const Conv1dProblem& p) : p_(p), bias_(static_cast<std::size_t>(channels())) {
    for (std::int64_t j = 0; j < width(); ++j) {
      Channels& w = weights_.emplace_back(bias_.size());
      load(p.weight.dtype, p.weight.data + j * p.weight.strides[1], p.weight.strides[0], w);
    }
    if (p.bias) load(p.bias->dtype, p.bias->data, p.bias->strides[0], bias_);
    for (std::size_t n = 0; n < p.sequences.size(); ++n) begins_.push_back(begin_of(n));
    writers_.assign(static_cast<std::size_t>(states()), -1);
    for (std::size_t n = 0; n < p.slots.size(); ++n)
      if (p.slots[n].write >= 0)
        writers_[static_cast<std::size_t>(p.slots[n].write)] = static_cast<std::int64_t>(n);
  }

  std::int64_t channels() const { return p_.types.channels; }
  std::int64_t width() const { return p_.types.width; }
  std::int64_t columns() const { return p_.types.state_width; }
  std::int64_t states() const { return p_.types.final_state.shape[0]; }

  /// Of a row of out, (entry, token): its sequence.
  std::int64_t sequence_of(std::int64_t row) const {
    return std::upper_bound(begins_.begin(), begins_.end(), row) - begins_.begin() - 1;
  }

  void out(std::int64_t row, ConvolutionStep step, Channels& values) const {
    const std::int64_t n = sequence_of(row), token = row - begins_[static_cast<std::size_t>(n)];
    values.assign(bias_.size(), 0);
    if (p_.slots[static_cast<std::size_t>(n)].is_padding) return;
    if (step != ConvolutionStep::bias) values = bias_;
    Channels x(bias_.size());
    const std::int64_t delay = step == ConvolutionStep::late ? 1 : 0;
    for (std::int64_t j = 0; j < width(); ++j) {
      const Channels& w =
          weights_[static_cast<std::size_t>(step == ConvolutionStep::reversed ? width() - 1 - j : j)];
      load_token(n, token - (width() - 1) + j - delay, step, x);
      for (std::size_t d = 0; d < x.size(); ++d) values[d] += w[d] * x[d];
    }
    const bool has_silu = p_.activation == Conv1dActivation::silu;
    if (step == ConvolutionStep::rounded)
      for (double& value : values) value = verify::rounding_to(p_.x.dtype)(value);
    if (has_silu != (step == ConvolutionStep::activation))
      for (double& value : values) value = value / (1 + std::exp(-value));
  }

  /// Column `column` of final state `state`.
  void final_state(std::int64_t state, std::int64_t column, ConvolutionStep step, Channels& values) const {
    values.assign(bias_.size(), 0);
    const std::int64_t n = writers_[static_cast<std::size_t>(state)];
    if (n < 0) return p_.has_pool ? load_state(state, column, values) : void();
    if (step == ConvolutionStep::reversed) column = columns() - 1 - column;
    const std::int64_t delay = step == ConvolutionStep::late ? 1 : 0;
    load_token(n, p_.sequences[static_cast<std::size_t>(n)].length - columns() + column - delay, step,
               values);
    if (p_.types.final_state.dtype == p_.x.dtype && (!p_.state || p_.state->dtype == p_.x.dtype)) return;
    const verify::Rounding round = verify::rounding_to(p_.types.final_state.dtype);
    for (double& value : values) value = round(value);
  }

  /// max|x| · max Σ|weight| + max|bias| + 1, of finite elements.
  double magnitude() const {
    double most = 0, sums = 0, bias = 0;
    const auto see = [](const Channels& values, double& largest) {
      for (const double value : values)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    };
    core::parallel_reduce(
        p_.types.tokens,
        core::threads_for(p_.types.tokens, static_cast<double>(p_.types.tokens * channels())),
        [] { return 0.0; },
        [&](double& part, std::int64_t row) {
          Channels x(bias_.size());
          const std::int64_t n = sequence_of(row);
          load_token(n, row - begins_[static_cast<std::size_t>(n)], ConvolutionStep::none, x);
          see(x, part);
        },
        [&](double part) { most = std::max(most, part); });
    Channels column(bias_.size());
    for (std::int64_t s = 0; p_.state && s < p_.state->shape[0]; ++s)
      for (std::int64_t l = 0; l < columns(); ++l) load_state(s, l, column), see(column, most);
    for (std::size_t d = 0; d < bias_.size(); ++d) {
      double sum = 0;
      for (const Channels& w : weights_) sum += std::abs(w[d]);
      if (std::isfinite(sum)) sums = std::max(sums, sum);
    }
    see(bias_, bias);
    return most * sums + bias + 1;
  }

 private:
  static void load(DType dtype, const std::byte* from, std::int64_t stride, Channels& values) {
    core::load(dtype, from, stride, std::ssize(values), values.data());
  }
  std::int64_t begin_of(std::size_t n) const {
    return p_.sequences[n].entry * p_.x.shape[1] + p_.sequences[n].begin;
  }
  void load_state(std::int64_t state, std::int64_t column, Channels& values) const {
    load(p_.state->dtype, p_.state_at(state, 0, column), p_.state->strides[1], values);
  }
  // Token t of a sequence, before its first one that of its state.
  void load_token(std::int64_t n, std::int64_t t, ConvolutionStep step, Channels& values) const {
    const auto i = static_cast<std::size_t>(n);
    if (t < 0 && step == ConvolutionStep::runs_on && begins_[i] + t >= 0) {
      const std::int64_t row = begins_[i] + t, length = p_.x.shape[1];
      return load(p_.x.dtype, p_.x_at({row / length, 0, length}, row % length, 0), p_.x.strides[2], values);
    }
    if (t >= 0) return load(p_.x.dtype, p_.x_at(p_.sequences[i], t, 0), p_.x.strides[2], values);
    const std::int64_t state = p_.slots[i].read, column = columns() + t;
    if (state < 0 || column < 0 || step == ConvolutionStep::state_zero)
      return std::fill(values.begin(), values.end(), 0.0);
    load_state(state, step == ConvolutionStep::state_reversed ? columns() - 1 - column : column, values);
  }

  const Conv1dProblem& p_;
  std::vector<Channels> weights_;  // (W, channels)
  Channels bias_;
  std::vector<std::int64_t> begins_;   // of sequences, in rows of out
  std::vector<std::int64_t> writers_;  // of final states: the sequence, −1: none
};

struct NamedStep {
  ConvolutionStep step;
  std::string text;
};

std::vector<NamedStep> faults_of_out(const Conv1dProblem& p) {
  using Step = ConvolutionStep;
  const bool has_silu = p.activation == Conv1dActivation::silu;
  std::vector<NamedStep> all{
      {Step::activation, has_silu ? "the activation of sums is left out"
                                  : "the activation of sums is silu, and there should be none"},
      {Step::reversed, "the weights are reversed"},
      {Step::late, "every token is one token late"}};
  if (p.bias) all.push_back({Step::bias, "the bias of the channels is left out"});
  if (p.types.sequences > 1)
    all.push_back({Step::runs_on, "the last tokens of a sequence run on into the next one"});
  if (p.state) {
    all.push_back({Step::state_zero, "the initial state is ignored"});
    all.push_back({Step::state_reversed, "the initial state is read with its newest token first"});
  }
  if (has_silu && size_of(p.x.dtype) == 2)
    all.push_back(
        {Step::rounded, fmt::format("sums are rounded to {} before the activation", name_of(p.x.dtype))});
  return all;
}

std::vector<NamedStep> faults_of_final_state(const Conv1dProblem& p) {
  using Step = ConvolutionStep;
  std::vector<NamedStep> all{{Step::reversed, "the final state has its newest token first"},
                             {Step::late, "the final state lacks the last token"}};
  if (p.types.sequences > 1)
    all.push_back({Step::runs_on, "the final state of a short sequence has tokens of the one before"});
  if (p.state) {
    all.push_back({Step::state_zero, "the final state of a short sequence is filled up with 0"});
    all.push_back({Step::state_reversed, "the initial state is read with its newest token first"});
  }
  return all;
}

// What an element may be off by.
struct ElementBound {
  double absolute = 0, relative = 0;

  double operator()(double value) const {
    return absolute + relative * (std::isfinite(value) ? std::abs(value) : 0);
  }
};

// A result and its known faults. `row_of`: a row as it is with one step changed.
struct ComparedRows {
  verify::ResultRows rows;
  std::function<void(std::int64_t row, ConvolutionStep step, Channels& values)> row_of;
  ElementBound allowed;
  std::vector<NamedStep> faults;
  double nanoseconds = 0;  // of a row
};

void compare_and_explain(ComparedRows& it, Explain explain, Against& against) {
  verify::ResultRows& rows = it.rows;
  rows.column = "channel";
  rows.columns_name = "channels";
  rows.expected = [&it](std::int64_t row, double* values, double* allowed) {
    Channels all;
    it.row_of(row, ConvolutionStep::none, all);
    std::copy(all.begin(), all.end(), values);
    std::transform(all.begin(), all.end(), allowed, it.allowed);
  };
  const verify::RowCounts counts =
      verify::compare_rows(rows, against, it.nanoseconds * static_cast<double>(rows.rows));
  against.tried = against.tried || explain == Explain::yes;
  if (explain == Explain::no || counts.bad_rows() == 0) return;
  std::vector<verify::FaultModel> models;
  for (const NamedStep& fault : it.faults) {
    models.push_back({"conv", fault.text,
                      [&it, step = fault.step](std::int64_t row, std::span<const std::int64_t> columns,
                                               double* values, double* allowed) {
                        Channels all;
                        it.row_of(row, step, all);
                        for (std::size_t c = 0; c < columns.size(); ++c) {
                          values[c] = all[static_cast<std::size_t>(columns[c])];
                          allowed[c] = it.allowed(values[c]);
                        }
                        return true;
                      }});
    models.back().nanoseconds = it.nanoseconds;
    if (fault.step == ConvolutionStep::rounded) {
      // The rounding of the result is as large: in a row of few channels the differences may even grow.
      models.back().is_subtle = true;
      models.back().most_left = 2;
    }
    models.back().needs_numbers = fault.step != ConvolutionStep::state_zero;
  }
  verify::FaultSearch search(rows, counts, it.nanoseconds);
  search.report(search.run(models), against);
}

ComparedRows rows_of_out(const Conv1dProblem& p, const ConvolutionReference& reference,
                         const ArrayView& given) {
  const Conv1dLayout layout = p.types.layout;
  const bool packed = recurrence::is_packed(layout);
  const std::int64_t tokens = p.x.shape[1];
  ComparedRows it;
  verify::ResultRows& rows = it.rows;
  rows.name = "out";
  rows.dtype = given.dtype;
  rows.rows = p.types.tokens;
  rows.columns = p.types.channels;
  rows.axes = {{"sequence", "sequences", p.types.sequences, verify::RowAxis::Kind::part},
               {"token", "tokens", tokens, verify::RowAxis::Kind::position}};
  rows.array_axes = packed ? std::vector<std::size_t>{1} : std::vector<std::size_t>{0, 1};
  rows.tiles = {"token", "column"};
  rows.place = [&reference, tokens](std::int64_t row, std::int64_t* at) {
    at[0] = reference.sequence_of(row);
    at[1] = row % tokens;
  };
  rows.index = [=](std::int64_t row, std::int64_t channel) {
    Shape index{row / tokens, row % tokens, channel};
    if (recurrence::has_tokens_last(layout)) std::swap(index[1], index[2]);
    if (packed) index.erase(index.begin());
    return index;
  };
  rows.given = [view = recurrence::in_one_form(given, layout), tokens](std::int64_t row, double* values) {
    core::load(view.dtype, view.data + row / tokens * view.strides[0] + row % tokens * view.strides[1],
               view.strides[2], view.shape[2], values);
  };
  it.row_of = [&reference](std::int64_t row, ConvolutionStep step, Channels& values) {
    reference.out(row, step, values);
  };
  const verify::FloatType type = verify::float_type(given.dtype);
  const double magnitude = reference.magnitude(),
               bound = magnitude * (given.dtype == DType::float64 && p.is_double ? 0x1p-50 : 0x1p-21),
               most = p.is_double ? std::numeric_limits<double>::max()
                                  : double{std::numeric_limits<float>::max()};
  const double unit = type.epsilon() / 2;
  it.allowed = {bound + unit * bound + type.spacing_at(0) / 2, unit};
  if (magnitude > most) it.allowed.absolute = std::numeric_limits<double>::infinity();
  it.faults = faults_of_out(p);
  it.nanoseconds = static_cast<double>(p.types.channels) * (20 + 2 * static_cast<double>(p.types.width));
  return it;
}

ComparedRows rows_of_final_state(const Conv1dProblem& p, const ConvolutionReference& reference,
                                 const ArrayView& given, Conv1dStateLayout layout) {
  ComparedRows it;
  verify::ResultRows& rows = it.rows;
  const std::int64_t columns = p.types.state_width;
  const char* const one = p.has_pool ? "slot" : "sequence";
  rows.name = "final_state";
  rows.dtype = given.dtype;
  rows.rows = reference.states() * columns;
  rows.columns = p.types.channels;
  rows.axes = {{one, fmt::format("{}s", one), reference.states(), verify::RowAxis::Kind::part},
               {"state column", "state columns", columns, verify::RowAxis::Kind::position}};
  rows.array_axes = {0, 1};
  rows.place = [columns](std::int64_t row, std::int64_t* at) {
    at[0] = row / columns, at[1] = row % columns;
  };
  rows.index = [=](std::int64_t row, std::int64_t channel) {
    return layout == Conv1dStateLayout::dw ? Shape{row / columns, channel, row % columns}
                                           : Shape{row / columns, row % columns, channel};
  };
  rows.given = [view = recurrence::in_one_form(given, layout), columns](std::int64_t row, double* values) {
    core::load(view.dtype, view.data + row / columns * view.strides[0] + row % columns * view.strides[2],
               view.strides[1], view.shape[1], values);
  };
  it.row_of = [&reference, columns](std::int64_t row, ConvolutionStep step, Channels& values) {
    reference.final_state(row / columns, row % columns, step, values);
  };
  const verify::FloatType type = verify::float_type(given.dtype);
  if (given.dtype != p.types.final_state.dtype) it.allowed = {type.spacing_at(0) / 2, type.epsilon() / 2};
  it.faults = faults_of_final_state(p);
  it.nanoseconds = 5 * static_cast<double>(p.types.channels);
  return it;
}

}  // namespace

Against compare_conv1d(const Conv1dOperands& operands, const Conv1dSettings& settings,
                       const ActualConv1d& given, Explain explain, const std::vector<std::string>& tiles) {
  const Conv1dProblem p = recurrence::conv1d_problem(operands, settings);
  const ConvolutionReference reference(p);
  std::vector<ComparedRows> all;
  Against against;
  if (given.out) {
    verify::require_given(*given.out, p.types.out.shape, "out", "out");
    all.push_back(rows_of_out(p, reference, *given.out));
    if (!tiles.empty()) all.back().rows.tiles = tiles;
  } else {
    against.not_given.emplace_back("out");
  }
  if (given.final_state) {
    verify::require_given(*given.final_state, p.types.final_state.shape, "final_state", "final_state");
    all.push_back(rows_of_final_state(p, reference, *given.final_state, settings.state_layout));
  } else {
    against.not_given.emplace_back("final_state");
  }
  std::vector<const verify::ResultRows*> results;
  for (const ComparedRows& one : all) results.push_back(&one.rows);
  verify::require_tiles(results, tiles);
  for (ComparedRows& one : all) compare_and_explain(one, explain, against);
  return against;
}

std::int64_t bytes_to_compare_conv1d(const Conv1dTypes& types, Explain explain) {
  const std::int64_t rows = types.tokens + types.final_state.shape[0] * types.state_width;
  return verify::bytes_of_rows(rows) +
         (explain == Explain::yes ? verify::bytes_of_values(rows * types.channels) : 0);
}

}  // namespace ejk
