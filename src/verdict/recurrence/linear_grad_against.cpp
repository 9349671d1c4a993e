// Gradients of linear attention of another implementation beside those in float64, and the known faults that explain
// them: the same gradients of other arrays or settings. Cost: four float64 gradients, and one for each fault; memory:
// inputs and gradients in float64.
// tests: tests/verdict/recurrence/test_linear_grad.cpp
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <random>
#include <utility>

#include "core/elements.hpp"
#include "ejk/recurrence_check.hpp"
#include "recurrence/linear_plan.hpp"
#include "verdict/against.hpp"
#include "verdict/explain_rows.hpp"
#include "verdict/fault_search.hpp"
#include "verdict/recurrence/linear_comparison.hpp"

namespace ejk {

namespace {

using recurrence::DecayKind;
using recurrence::LinearPlan;
using recurrence::Sequence;
using recurrence_verdict::RowBound;
using Gradients = LinearAttentionOperands<Array>;
using Columns = std::span<const std::int64_t>;
using Axes = std::vector<std::size_t>;

constexpr std::int64_t kBlock = 64;
Array in_float64(const ArrayView& view) {
  const Array copy = Array::copy_of(view);
  Array wide(DType::float64, view.shape);
  core::load(view.dtype, copy.data(), size_of(view.dtype), copy.size(), wide.elements<double>().data());
  return wide;
}

void multiply(Array& array, double factor) {
  for (double& x : array.elements<double>()) x *= factor;
}

// What gradients are computed from, in float64.
struct WideProblem {
  LinearAttentionOperands<Array> operands;
  LinearAttentionCotangents<Array> cotangents;
  LinearAttentionSettings settings;

  WideProblem(const LinearAttentionArrays& arrays, const LinearAttentionCotangents<ArrayView>& given,
              const LinearAttentionSettings& how)
      : settings(how) {
    for_each_linear_operand(
        [](const char*, const auto& from, auto& to) {
          if (from) to = in_float64(*from);
        },
        arrays, operands);
    cotangents.dout = in_float64(*given.dout);
    if (given.dfinal_state) cotangents.dfinal_state = in_float64(*given.dfinal_state);
  }
  WideProblem(const WideProblem& other) : settings(other.settings) {
    for_each_linear_operand(
        [](const char*, const auto& from, auto& to) {
          if (from) to = Array::copy_of(from->view());
        },
        other.operands, operands);
    cotangents.dout = Array::copy_of(other.cotangents.dout->view());
    if (other.cotangents.dfinal_state)
      cotangents.dfinal_state = Array::copy_of(other.cotangents.dfinal_state->view());
  }

  Gradients gradients() const {
    LinearAttentionArrays arrays;
    for_each_linear_operand(
        [](const char*, const auto& from, auto& to) {
          if (from) to = from->view();
        },
        operands, arrays);
    LinearAttentionCotangents<ArrayView> given;
    given.dout = cotangents.dout->view();
    if (cotangents.dfinal_state) given.dfinal_state = cotangents.dfinal_state->view();
    return linear_attention_grad(arrays, given, settings);
  }

  /// q, k, v and dout times 1 ± `unit`, of random signs.
  WideProblem rounded(double unit, std::uint64_t seed) const {
    WideProblem other(*this);
    std::mt19937_64 random(seed);
    for (Array* array : {&*other.operands.q, &*other.operands.k, &*other.operands.v, &*other.cotangents.dout})
      for (double& x : array->elements<double>()) x *= 1 + ((random() & 1) != 0 ? unit : -unit);
    return other;
  }
};

struct GradientFault {
  std::string kind, text;
  std::function<Gradients(WideProblem problem)> gradients;
};

void add_faults_of_decays(const LinearPlan& plan, std::vector<GradientFault>& all) {
  const DecaySpace space = plan.settings.decay_space;
  if (plan.decay == DecayKind::none || plan.has_dt || plan.is_raw) return;
  // A factor of the gradient of decays alone.
  const auto scaled_decay = [&](std::string text, double factor) {
    all.push_back({"decay", std::move(text), [factor](const WideProblem& problem) {
                     Gradients gradients = problem.gradients();
                     multiply(*gradients.decay, factor);
                     return gradients;
                   }});
  };
  if (space == DecaySpace::ln) {
    all.push_back({"decay", "2 to the decay is taken for e to the decay", [](WideProblem problem) {
                     multiply(*problem.operands.decay, std::numbers::ln2);
                     Gradients gradients = problem.gradients();
                     multiply(*gradients.decay, std::numbers::ln2);
                     return gradients;
                   }});
    scaled_decay("logarithms of decays are divided by ln 2 in their gradient", 1 / std::numbers::ln2);
    scaled_decay("the gradient of decays has a factor ln 2 too much", std::numbers::ln2);
  }
  if (space == DecaySpace::log2)
    scaled_decay("the gradient of decays lacks the factor ln 2", 1 / std::numbers::ln2);
  if (space != DecaySpace::linear)
    all.push_back({"decay", "decays are missing", [](WideProblem problem) {
                     std::ranges::fill(problem.operands.decay->elements<double>(), 0.0);
                     return problem.gradients();
                   }});
}

std::vector<GradientFault> faults_of(const LinearPlan& plan) {
  std::vector<GradientFault> all;
  const LinearAttentionSettings& s = plan.settings;
  const auto changed = [&](std::string kind, std::string text, std::function<void(WideProblem&)> change) {
    all.push_back({std::move(kind), std::move(text), [change = std::move(change)](WideProblem problem) {
                     change(problem);
                     return problem.gradients();
                   }});
  };
  if (plan.sequences.size() > 1 && s.layout == LinearAttentionLayout::thd)
    changed("boundary", "the state of each sequence runs on into the next: cu_seqlens is ignored",
            [tokens = plan.tokens](WideProblem& p) {
              const auto keep = [](std::optional<Array>& states, std::int64_t index) {
                if (!states) return;
                ArrayView one = states->view()[index];
                one.shape.insert(one.shape.begin(), 1);
                one.strides.insert(one.strides.begin(), 0);
                states = Array::copy_of(one);
              };
              keep(p.operands.initial_state, 0);
              if (p.cotangents.dfinal_state)
                keep(p.cotangents.dfinal_state, p.cotangents.dfinal_state->shape()[0] - 1);
              p.settings.cu_seqlens = std::vector<std::int64_t>{0, tokens};
            });
  add_faults_of_decays(plan, all);
  changed("delta",
          s.delta ? "the correction of the delta rule is missing"
                  : "the correction of the delta rule is made, and there should be none",
          [](WideProblem& p) { p.settings.delta = !p.settings.delta; });
  const double scale = plan.scale;
  if (scale != 1) {
    changed("scale", "the scale of the output is missing", [](WideProblem& p) { p.settings.scale = 1; });
    changed("scale", "the scale of the output is applied twice",
            [scale](WideProblem& p) { p.settings.scale = scale * scale; });
  }
  if (s.l2norm)
    changed("norm", "not normalised: queries and keys", [](WideProblem& p) { p.settings.l2norm = false; });
  changed("state", "the initial state is dropped", [](WideProblem& p) {
    if (p.operands.initial_state) multiply(*p.operands.initial_state, 0);
  });
  changed("state", "the gradient of the final state is left out",
          [](WideProblem& p) { p.cotangents.dfinal_state.reset(); });
  if (s.beta_sigmoid)
    all.push_back({"beta", "the sigmoid of beta is not differentiated", [](WideProblem problem) {
                     const double factor = *problem.settings.beta_sigmoid;
                     for (double& x : problem.operands.beta->elements<double>())
                       x = factor / (1 + std::exp(-x));
                     problem.settings.beta_sigmoid.reset();
                     return problem.gradients();
                   }});
  return all;
}

// The rows of a gradient: of tokens and heads, of tokens, of states, or of heads alone.
struct GradientForm {
  enum class Of { heads, tokens, states, numbers } of = Of::numbers;
  std::string name;
  std::function<ArrayView(ArrayView array)>
      view;  // (entries, heads, tokens, size), (N, heads, K, V), (1, 1, n, size)
  std::int64_t parts = 0, heads = 0, length = 0, rows = 0,
               columns = 0;  // of the view; of Of::tokens heads are the columns
};

// Rows are (entry, token, head), (entry, token), (state, head, channel) or (n).
struct RowPlace {
  std::int64_t part = 0, head = 0, row = 0;
};

RowPlace place_of(const GradientForm& form, std::int64_t row) {
  const std::int64_t heads = form.of == GradientForm::Of::tokens ? 1 : form.heads,
                     each = form.rows / form.parts;
  if (form.of == GradientForm::Of::states)
    return {row / each, row % each / (each / heads), row % (each / heads)};
  return {row / each, row % heads, row % each / heads};
}

void load_row(const GradientForm& form, const ArrayView& view, std::int64_t row, double* values) {
  const RowPlace at = place_of(form, row);
  const bool is_of_tokens = form.of == GradientForm::Of::tokens;
  core::load(view.dtype,
             view.data + at.part * view.strides[0] + at.head * view.strides[1] + at.row * view.strides[2],
             view.strides[is_of_tokens ? 1 : 3], form.columns, values);
}

// Elements that share a bound: a head's block of 64 tokens of a sequence, such a block, a state's matrix, all.
std::int64_t group_of(const LinearPlan& plan, const GradientForm& form, std::int64_t row) {
  const RowPlace at = place_of(form, row);
  if (form.of == GradientForm::Of::numbers) return 0;
  if (form.of == GradientForm::Of::states) return at.part * form.heads + at.head;
  const std::int64_t n = recurrence_verdict::sequence_at(plan, at.part, at.row);
  const Sequence& s = plan.sequences[static_cast<std::size_t>(n)];
  // Blocks of all sequences, with one between two that no row has.
  return at.head * (plan.tokens / kBlock + 2 * std::ssize(plan.sequences) + 1) +
         (s.entry * (plan.tokens / plan.entries) + s.begin) / kBlock + 2 * n + (at.row - s.begin) / kBlock;
}

// One gradient beside its reference.
class ComparedGradient {
 public:
  /// The plan outlives it; `errors`: D times F by group_of(), or empty.
  ComparedGradient(const LinearPlan& plan, GradientForm form, const ArrayView& given, const Array& expected,
                   double floor, std::vector<double> errors)
      : plan_(plan),
        form_(std::move(form)),
        shape_(given.shape),
        start_(expected.data()),
        given_(form_.view(given)),
        truth_(form_.view(expected.view())),
        errors_(std::move(errors)),
        bound_(recurrence_verdict::rounding_of(given.dtype)) {
    bound_.absolute = floor * recurrence_verdict::largest_of(expected.elements<double>());
    set_rows();
  }
  ComparedGradient(const ComparedGradient&) = delete;

  verify::ResultRows rows;

  void allow(std::int64_t row, std::span<const double> values, double* allowed) const {
    RowBound bound = bound_;
    if (!errors_.empty()) bound.absolute += errors_[static_cast<std::size_t>(group_of(plan_, form_, row))];
    bound(values, 0, allowed);
  }

  verify::FaultModel model_of(const GradientFault& fault, const Array& gradient) const {
    return {fault.kind, fault.text,
            [this, view = form_.view(gradient.view())](std::int64_t row, Columns columns, double* values,
                                                       double* allowed) {
              std::vector<double> all(static_cast<std::size_t>(form_.columns));
              load_row(form_, view, row, all.data());
              for (std::size_t c = 0; c < columns.size(); ++c)
                values[c] = all[static_cast<std::size_t>(columns[c])];
              allow(row, {values, columns.size()}, allowed);
              return true;
            }};
  }

 private:
  void set_rows() {
    using Kind = verify::RowAxis::Kind;
    using Of = GradientForm::Of;
    rows.name = form_.name;
    rows.dtype = given_.dtype;
    rows.rows = form_.rows, rows.columns = form_.columns;
    rows.column = form_.of == Of::tokens ? "head" : "column";
    rows.columns_name = form_.of == Of::tokens ? "heads" : "columns";
    const verify::RowAxis sequences{"sequence", "sequences", std::ssize(plan_.sequences), Kind::part},
        heads{"head", "heads", form_.of == Of::numbers ? form_.rows : form_.heads, Kind::part},
        tokens{"token", "tokens", form_.length, Kind::position},
        channels{"key channel", "key channels", form_.length, Kind::position};
    const bool is_packed = plan_.settings.layout == LinearAttentionLayout::thd;
    if (form_.of == Of::heads) rows.array_axes = is_packed ? Axes{1, 2} : Axes{0, 1, 2};
    if (form_.of == Of::states) rows.array_axes = {0, 1, 2};
    rows.axes = form_.of == Of::heads    ? std::vector{sequences, tokens, heads}
                : form_.of == Of::tokens ? std::vector{sequences, tokens}
                : form_.of == Of::states ? std::vector{sequences, heads, channels}
                                         : std::vector{heads};
    rows.place = [this](std::int64_t row, std::int64_t* at) {
      const RowPlace place = place_of(form_, row);
      if (form_.of == Of::numbers) return at[0] = row, void();
      if (form_.of == Of::states) return at[0] = place.part, at[1] = place.head, at[2] = place.row, void();
      at[0] = recurrence_verdict::sequence_at(plan_, place.part, place.row), at[1] = place.row;
      if (form_.of == Of::heads) at[2] = place.head;
    };
    rows.index = [this](std::int64_t row, std::int64_t column) { return index_of(row, column); };
    rows.given = [this](std::int64_t row, double* values) { load_row(form_, given_, row, values); };
    rows.expected = [this](std::int64_t row, double* values, double* allowed) {
      load_row(form_, truth_, row, values);
      allow(row, {values, static_cast<std::size_t>(form_.columns)}, allowed);
    };
  }

  // By the place of the element in the contiguous reference.
  Shape index_of(std::int64_t row, std::int64_t column) const {
    const RowPlace at = place_of(form_, row);
    const bool of_tokens = form_.of == GradientForm::Of::tokens;
    std::int64_t place = (truth_.data - start_) + at.part * truth_.strides[0] +
                         (of_tokens ? column : at.head) * truth_.strides[1] + at.row * truth_.strides[2] +
                         (of_tokens ? 0 : column * truth_.strides[3]);
    place /= size_of(DType::float64);
    Shape index(shape_.size());
    for (std::size_t axis = index.size(); axis-- > 0; place /= shape_[axis])
      index[axis] = place % shape_[axis];
    return index;
  }

  const LinearPlan& plan_;
  GradientForm form_;
  Shape shape_;
  const std::byte* start_;
  ArrayView given_, truth_;
  std::vector<double> errors_;
  RowBound bound_;
};

class GradientComparison {
 public:
  GradientComparison(const LinearAttentionArrays& arrays, const LinearAttentionCotangents<ArrayView>& given,
                     const LinearAttentionSettings& settings, std::optional<FactorType> factors)
      : plan_(types_of(arrays), settings), wide_(arrays, given, settings), truth_(wide_.gradients()) {
    const std::optional<FactorType> type = factors ? factors : recurrence_verdict::usual_factors(arrays);
    is_wide_ = !type && (plan_.arithmetic == DType::float64 || given.dout->dtype == DType::float64);
    const FactorType of = type.value_or(FactorType::f32);
    factor_ = is_wide_ ? 0 : of == FactorType::f32 ? 16 : 4;
    for (std::uint64_t seed = 1; seed <= 3 && !is_wide_; ++seed)
      others_.push_back(wide_.rounded(recurrence_verdict::unit_of(of), seed).gradients());
  }

  Against run(const LinearAttentionOperands<ArrayView>& given, Explain explain,
              const std::vector<std::string>& tiles);

 private:
  static const Array& of_name(const Gradients& gradients, const std::string& name) {
    const Array* found = nullptr;
    for_each_linear_operand(
        [&](const std::string& one, const auto& array) {
          if (one == name && array) found = &*array;
        },
        gradients);
    return *found;
  }

  GradientForm form_of(const std::string& name) const;
  std::vector<double> errors_of(const GradientForm& form) const;
  void compare(const ComparedGradient& it, Explain explain, Against& against);
  const Gradients& of_fault(const GradientFault& fault);

  LinearPlan plan_;
  WideProblem wide_;
  Gradients truth_;
  std::vector<Gradients> others_;
  std::map<std::string, Gradients> faulty_;  // by text
  double factor_ = 0;
  bool is_wide_ = false;
};

GradientForm GradientComparison::form_of(const std::string& name) const {
  using Of = GradientForm::Of;
  const LinearPlan& plan = plan_;
  GradientForm form;
  form.name = "d" + name;
  const bool is_row = name == "q" || name == "k" || name == "v",
             is_gate = name == "decay" || name == "beta" || name == "dt";
  if (is_row || (is_gate && !(name == "decay" && plan.decay == DecayKind::fixed))) {
    const bool by_channel = name == "decay" && plan.decay == DecayKind::channel;
    const std::int64_t size = name == "v" ? plan.value_size : is_row || by_channel ? plan.key_size : 0;
    form.of = size == 0 ? Of::tokens : Of::heads;
    form.view = [&plan, size](ArrayView array) { return plan.in_one_form(std::move(array), size); };
  } else if (name == "initial_state") {
    form.of = Of::states;
    form.view = [&plan](ArrayView array) { return plan.state_form(std::move(array)); };
  } else {
    form.view = [](ArrayView array) {
      const std::int64_t first = array.shape[0], step = array.strides[0];
      const bool has_columns = array.rank() == 2;
      return ArrayView(array.data, array.dtype, {1, 1, first, has_columns ? array.shape[1] : 1},
                       {0, 0, step, has_columns ? array.strides[1] : size_of(array.dtype)});
    };
  }
  const ArrayView view = form.view(of_name(truth_, name).view());
  form.parts = view.shape[0], form.heads = view.shape[1], form.length = view.shape[2];
  if (form.of == Of::tokens) {
    form.columns = form.heads;
    form.rows = form.parts * view.shape[2];
  } else {
    form.columns = view.shape[3];
    form.rows = form.parts * form.heads * view.shape[2];
  }
  return form;
}

std::vector<double> GradientComparison::errors_of(const GradientForm& form) const {
  const std::string name = form.name.substr(1);
  const ArrayView truth = form.view(of_name(truth_, name).view());
  std::vector<double> errors, expected(static_cast<std::size_t>(form.columns)), actual(expected.size());
  for (const Gradients& other : others_) {
    const ArrayView view = form.view(of_name(other, name).view());
    for (std::int64_t row = 0; row < form.rows; ++row) {
      load_row(form, truth, row, expected.data());
      load_row(form, view, row, actual.data());
      const auto group = static_cast<std::size_t>(group_of(plan_, form, row));
      if (group >= errors.size()) errors.resize(group + 1);
      for (std::size_t c = 0; c < actual.size(); ++c) {
        const double error = std::abs(actual[c] - expected[c]);
        if (std::isfinite(expected[c])) errors[group] = std::max(errors[group], error);
      }
    }
  }
  if (form.of != GradientForm::Of::heads && form.of != GradientForm::Of::tokens) return errors;
  std::vector<double> wider = errors;
  for (std::size_t g = 0; g < errors.size(); ++g) {
    if (g > 0) wider[g] = std::max(wider[g], errors[g - 1]);
    if (g + 1 < errors.size()) wider[g] = std::max(wider[g], errors[g + 1]);
  }
  return wider;
}

const Gradients& GradientComparison::of_fault(const GradientFault& fault) {
  const auto found = faulty_.find(fault.text);
  if (found != faulty_.end()) return found->second;
  return faulty_.emplace(fault.text, fault.gradients(wide_)).first->second;
}

Against GradientComparison::run(const LinearAttentionOperands<ArrayView>& given, Explain explain,
                                const std::vector<std::string>& tiles) {
  Against against;
  std::vector<std::unique_ptr<ComparedGradient>> all;
  std::vector<const verify::ResultRows*> results;
  for_each_linear_operand(
      [&](const std::string& name, const auto& actual, const auto& truth) {
        if (!truth) return;
        const std::string array = "d" + name;
        if (!actual) return against.not_given.push_back(array);
        verify::require_given(*actual, truth->shape(), array, array);
        GradientForm form = form_of(name);
        std::vector<double> errors = errors_of(form);
        for (double& error : errors) error *= factor_;
        all.push_back(std::make_unique<ComparedGradient>(plan_, std::move(form), *actual, *truth,
                                                         is_wide_ ? 0x1p-32 : 0x1p-20, std::move(errors)));
        all.back()->rows.tiles = tiles;
        results.push_back(&all.back()->rows);
      },
      given, truth_);
  verify::require_tiles(results, tiles);
  for (const auto& one : all) compare(*one, explain, against);
  return against;
}

void GradientComparison::compare(const ComparedGradient& it, Explain explain, Against& against) {
  const double nanoseconds = 4 * static_cast<double>(it.rows.columns);
  const verify::RowCounts counts =
      verify::compare_rows(it.rows, against, nanoseconds * static_cast<double>(it.rows.rows));
  against.tried = against.tried || explain == Explain::yes;
  if (explain == Explain::no || counts.bad_rows() == 0) return;
  const std::string name = it.rows.name.substr(1);
  std::vector<verify::FaultModel> models;
  for (const GradientFault& fault : faults_of(plan_)) {
    const Array& other = of_name(of_fault(fault), name);
    if (other.shape() == of_name(truth_, name).shape()) models.push_back(it.model_of(fault, other));
  }
  verify::FaultSearch search(it.rows, counts, nanoseconds);
  search.report(search.run(models), against);
}

}  // namespace

Against compare_linear_attention_grad(const LinearAttentionArrays& arrays,
                                      const LinearAttentionCotangents<ArrayView>& cotangents,
                                      const LinearAttentionSettings& settings,
                                      const LinearAttentionOperands<ArrayView>& given,
                                      std::optional<FactorType> factors, Explain explain,
                                      const std::vector<std::string>& tiles) {
  return GradientComparison(arrays, cotangents, settings, factors).run(given, explain, tiles);
}

std::int64_t bytes_to_compare_linear_attention_grad(const LinearAttentionGradPlan& plan, Explain explain) {
  std::int64_t elements = 0;
  for_each_linear_operand(
      [&](const char*, const auto& type) {
        if (type) elements += element_count(type->shape);
      },
      plan.gradients());
  constexpr std::int64_t kCopies = 10, kOfFaults = 12;  // inputs twice, gradients of four; of each fault
  return 8 * elements * (explain == Explain::yes ? kCopies + kOfFaults : kCopies);
}

}  // namespace ejk
