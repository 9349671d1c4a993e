// Validation of linear attention's arguments: settings, ranks and types, lengths, heads, then the integer arrays,
// which are read whole.
// tests: tests/recurrence/test_linear_attention.cpp
#include "recurrence/linear_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using core::invalid, core::usage;
using Layout = LinearAttentionLayout;

}  // namespace

std::string_view name_of(LinearAttentionLayout layout) {
  return layout == Layout::bshd ? "bshd" : layout == Layout::bhsd ? "bhsd" : "thd";
}
std::string_view name_of(DecaySpace space) {
  return space == DecaySpace::ln ? "ln" : space == DecaySpace::log2 ? "log2" : "linear";
}
std::string_view name_of(StateLayout layout) { return layout == StateLayout::kv ? "kv" : "vk"; }

LinearAttentionTypes types_of(const LinearAttentionArrays& arrays) {
  LinearAttentionTypes types;
  for_each_linear_operand(
      [](const char*, const auto& array, auto& type) {
        if (array) type = type_of(*array);
      },
      arrays, types);
  return types;
}

namespace recurrence {

namespace {

// An array of tokens: where its axes are.
struct TokenAxes {
  std::size_t tokens, heads, rank;  // rank: of arrays with a size
};

TokenAxes axes_of(Layout layout, bool has_leading_axis) {
  if (layout == Layout::bhsd) return {2, 1, 4};
  return layout == Layout::bshd || has_leading_axis ? TokenAxes{1, 2, 4} : TokenAxes{0, 1, 3};
}

const char* text_of(Layout layout) {
  return layout == Layout::bshd   ? "(batch, sequence, heads, size)"
         : layout == Layout::bhsd ? "(batch, heads, sequence, size)"
                                  : "(tokens, heads, size)";
}

void require_settings(const LinearAttentionTypes& t, const LinearAttentionSettings& s) {
  const bool is_raw = (t.a_log && !t.dt) || s.lower_bound;
  if ((s.layout == Layout::thd) != static_cast<bool>(s.cu_seqlens))
    throw usage("packed tokens (thd) and cu_seqlens come together");
  if (s.chunk_size < 1) throw usage("chunks have at least 1 token, not {}", s.chunk_size);
  if (t.dt_bias && !t.a_log && !s.lower_bound && !t.dt)
    throw usage("dt_bias comes with a_log, a lower bound or dt");
  if (t.dt && !t.a_log) throw usage("dt comes with a_log: decays are -exp(a_log) dt");
  if (t.dt && (t.decay || t.beta)) throw usage("dt gives decay and beta: neither is given beside it");
  if (t.dt && s.lower_bound) throw usage("a lower bound is one of raw decays, not of dt");
  if ((s.dt_softplus || s.dt_limit) && !t.dt) throw usage("softplus and limits of dt come with dt");
  if (s.dt_limit && !(s.dt_limit->first <= s.dt_limit->second))
    throw usage("the limits of dt are {} and {}: the first is at most the second", s.dt_limit->first,
                s.dt_limit->second);
  if (is_raw && !t.decay) throw usage("a_log and a lower bound are of raw decays, and decay is missing");
  if (s.lower_bound && !(*s.lower_bound < 0 && std::isfinite(*s.lower_bound)))
    throw usage("the lower bound of decays is below 0, not {}", *s.lower_bound);
  if (is_raw && s.decay_space != DecaySpace::ln)
    throw usage("raw decays, of a_log or a lower bound, are of no space");
  if (s.decay_space != DecaySpace::ln && !t.decay) throw usage("a space of decays comes with decay");
  if (s.beta_sigmoid && !t.beta) throw usage("the sigmoid of beta comes with beta");
}

void require_wide_floats(const LinearAttentionTypes& types, const LinearAttentionSettings& s) {
  for_each_linear_operand(
      [](const char* name, const auto& type) {
        if (type && !is_wide_float(type->dtype))
          throw invalid("{} must be float16, bfloat16, float32 or float64, not {}", name,
                        name_of(type->dtype))
              .about(name);
      },
      types);
  for (const auto& dtype : {s.dtype, s.state_dtype})
    if (dtype && !is_wide_float(*dtype)) throw usage("results are of a float type, not {}", name_of(*dtype));
}

// A number of heads that serves `of`.
void require_heads(const char* name, std::int64_t heads, std::int64_t of) {
  if (heads < 1 || of % heads != 0)
    throw invalid("{} has {} heads, which do not divide the {} of the state", name, heads, of).about(name);
}

// The arguments while they are checked.
struct Checked {
  LinearPlan& plan;
  const LinearAttentionTypes& types;
  TokenAxes axes;

  std::int64_t heads(const ArrayType& type) const {
    return type.rank() == 1 ? type.shape[0] : type.shape[axes.heads];
  }

  // q, k or v: its rank, batch and tokens.
  void require_tokens(const char* name, const std::optional<ArrayType>& type) const {
    if (!type) throw usage("{} is missing", name);
    if (type->rank() != static_cast<std::int64_t>(axes.rank)) {
      Error error = invalid("{} is {} in the layout {}, not of shape {}", name, text_of(plan.settings.layout),
                            name_of(plan.settings.layout), to_string(type->shape))
                        .about(name);
      if (type->rank() == 3 && axes.rank == 4) error.hint("packed tokens come with cu_seqlens");
      throw std::move(error);
    }
    require_lengths(name, *type);
  }

  void require_lengths(const char* name, const ArrayType& type) const {
    const ArrayType& q = *types.q;
    if (axes.rank == 4 && type.shape[0] != q.shape[0])
      throw invalid("{} has {} batch entries, and q {}", name, type.shape[0], q.shape[0]).about(name);
    if (type.shape[axes.tokens] != q.shape[axes.tokens])
      throw invalid("{} has {} tokens, and q {}", name, type.shape[axes.tokens], q.shape[axes.tokens])
          .about(name);
  }

  // Gates: without the last axis; decays also with K channels, or one a head.
  void require_gates(const char* name, const std::optional<ArrayType>& type) const {
    if (!type) return;
    const auto rank = static_cast<std::size_t>(type->rank());
    const bool is_decay = name == std::string_view("decay");
    if (rank == 1 && is_decay) return;
    if (rank + 1 != axes.rank && !(rank == axes.rank && is_decay))
      throw invalid("{} has the shape of q without its last axis{}, not {}", name,
                    is_decay ? ", or with channels, or one number a head" : "", to_string(type->shape))
          .about(name);
    require_lengths(name, *type);
    if (rank == axes.rank && type->shape.back() != plan.key_size)
      throw invalid("decay has {} channels, and keys have {}", type->shape.back(), plan.key_size)
          .about(name)
          .hint("a decay by channel has one number for each element of a key");
  }

  void set_decay() const {
    if (types.dt) plan.decay = DecayKind::head;
    if (!types.decay) return;
    const auto rank = static_cast<std::size_t>(types.decay->rank());
    plan.decay = rank == 1 ? DecayKind::fixed : rank == axes.rank ? DecayKind::channel : DecayKind::head;
  }

  void set_heads() const {
    std::int64_t& most = plan.state_heads;
    for (const auto* type : {&types.k, &types.v, &types.decay, &types.beta, &types.dt})
      if (*type) most = std::max(most, heads(**type));
    if (types.initial_state && types.initial_state->rank() == 4)
      most = std::max(most, types.initial_state->shape[1]);
    const auto require = [&](const char* name, const std::optional<ArrayType>& type) {
      if (type) require_heads(name, heads(*type), most);
    };
    require("k", types.k), require("v", types.v), require("decay", types.decay);
    require("beta", types.beta), require("dt", types.dt);
    if (types.initial_state && types.initial_state->rank() == 4)
      require_heads("initial_state", types.initial_state->shape[1], most);
    const std::int64_t of_q = heads(*types.q);
    plan.out_heads = std::max(of_q, most);
    if (of_q < 1 || plan.out_heads % of_q != 0 || plan.out_heads % most != 0)
      throw invalid("q has {} heads and the state {}: neither divides the other", of_q, most).about("q");
  }

  void require_parameters() const {
    const auto require = [&](const char* name, const std::optional<ArrayType>& type, std::int64_t of,
                             bool is_allowed, const char* form) {
      if (!type) return;
      if (type->rank() != 1 && !is_allowed)
        throw invalid("{} is {}, not of shape {}", name, form, to_string(type->shape)).about(name);
      require_heads(name, type->shape[0], of);
    };
    require("a_log", types.a_log, plan.state_heads, false, "(heads,)");
    require("skip", types.skip, plan.out_heads,
            types.skip && types.skip->rank() == 2 && types.skip->shape[1] == plan.value_size,
            "(heads,) or (heads, V)");
    if (!types.dt_bias) return;
    if (plan.decay == DecayKind::channel && types.dt_bias->rank() == 1 &&
        types.dt_bias->shape[0] == heads(*types.decay) * plan.key_size) {
      plan.bias_heads = heads(*types.decay);
      return;
    }
    require("dt_bias", types.dt_bias, plan.state_heads,
            plan.decay == DecayKind::channel && types.dt_bias->rank() == 2 &&
                types.dt_bias->shape[1] == plan.key_size,
            "(heads,), or of decays by channel (heads, K)");
    plan.bias_heads = types.dt_bias->shape[0];
  }

  void require_state() const {
    if (!types.initial_state) return;
    const ArrayType& state = *types.initial_state;
    const std::int64_t hs = plan.state_heads, k = plan.key_size, v = plan.value_size;
    const auto has = [&](std::int64_t rows, std::int64_t columns) {
      return state.rank() == 4 && state.shape[1] == hs && state.shape[2] == rows && state.shape[3] == columns;
    };
    const bool is_kv = plan.settings.state_layout == StateLayout::kv;
    if (is_kv ? has(k, v) : has(v, k)) return;
    const bool is_other = is_kv ? has(v, k) : has(k, v);
    Error error(Error::Kind::input,
                fmt::format("initial_state is ({}, {}, {}, {}) in the layout {}, not of shape {}",
                            plan.settings.slots.read ? "slots" : std::to_string(plan.sequences.size()), hs,
                            is_kv ? k : v, is_kv ? v : k, name_of(plan.settings.state_layout),
                            to_string(state.shape)),
                is_other ? Error::Code::state_layout : Error::Code::other);
    if (is_other) error.hint(is_kv ? "vk" : "kv");
    throw std::move(error.about("initial_state"));
  }
};

void set_results(LinearPlan& plan, const LinearAttentionTypes& types, const TokenAxes& axes) {
  const LinearAttentionSettings& s = plan.settings;
  Shape out = types.q->shape;
  out[axes.heads] = plan.out_heads;
  out.back() = plan.value_size;
  plan.out = ArrayType(s.dtype.value_or(types.q->dtype), std::move(out));
  const auto states_of = [&](Shape leading, DType dtype) {
    const bool is_kv = s.state_layout == StateLayout::kv;
    for (const std::int64_t length :
         {plan.state_heads, is_kv ? plan.key_size : plan.value_size, is_kv ? plan.value_size : plan.key_size})
      leading.push_back(length);
    return ArrayType(dtype, std::move(leading));
  };
  const DType dtype = s.state_dtype.value_or(plan.arithmetic);
  plan.final_state = s.slots.read ? states_of({types.initial_state->shape[0]}, types.initial_state->dtype)
                                  : states_of({std::ssize(plan.sequences)}, dtype);
  if (!s.states) return;
  Shape leading{plan.first_chunks.back()};
  if (s.layout != Layout::thd)
    leading = {plan.entries, core::ceil_div(types.q->shape[axes.tokens], s.chunk_size)};
  if (plan.has_leading_axis) leading.insert(leading.begin(), 1);
  plan.states = states_of(std::move(leading), dtype);
}

}  // namespace

LinearPlan::LinearPlan(const LinearAttentionTypes& types, const LinearAttentionSettings& given)
    : settings(given) {
  require_settings(types, settings);
  require_wide_floats(types, settings);
  if (!types.q) throw usage("q is missing");
  has_leading_axis = settings.layout == Layout::thd && types.q->rank() == 4 && types.q->shape[0] == 1;
  const Checked checked{*this, types, axes_of(settings.layout, has_leading_axis)};
  checked.require_tokens("q", types.q);
  checked.require_tokens("k", types.k);
  checked.require_tokens("v", types.v);
  key_size = types.q->shape.back();
  value_size = types.v->shape.back();
  if (types.k->shape.back() != key_size)
    throw invalid("keys have the size {}, and queries {}", types.k->shape.back(), key_size).about("k");
  if (key_size < 1 || value_size < 1)
    throw invalid("keys have the size {} and values {}; both are at least 1", key_size, value_size)
        .about("v");
  checked.require_gates("decay", types.decay);
  checked.require_gates("beta", types.beta);
  checked.require_gates("dt", types.dt);
  checked.set_decay();
  checked.set_heads();
  checked.require_parameters();
  is_raw = !types.dt && (types.a_log || settings.lower_bound);
  has_dt = types.dt.has_value();
  scale = settings.scale.value_or(1 / std::sqrt(static_cast<double>(key_size)));
  for_each_linear_operand(
      [&](const char*, const auto& type) {
        if (type && type->dtype == DType::float64) arithmetic = DType::float64;
      },
      types);
  const std::int64_t length = types.q->shape[checked.axes.tokens];
  entries = settings.layout == Layout::thd ? 1 : types.q->shape[0];
  tokens = entries * length;
  sequences = settings.layout == Layout::thd ? packed_sequences(*settings.cu_seqlens, length, "q")
                                             : sequences_of_batch(entries, length);
  checked.require_state();
  slots = slots_of(settings.slots, std::ssize(sequences),
                   types.initial_state ? std::optional(types.initial_state->shape[0]) : std::nullopt);
  first_chunks = {0};
  for (const Sequence& sequence : sequences)
    first_chunks.push_back(first_chunks.back() + core::ceil_div(sequence.length, settings.chunk_size));
  set_results(*this, types, checked.axes);
}

ArrayView LinearPlan::in_one_form(ArrayView array, std::int64_t size) const {
  if (size == 0) {
    array.shape.push_back(1);
    array.strides.push_back(size_of(array.dtype));
  }
  if (settings.layout == Layout::thd && !has_leading_axis) {
    array.shape.insert(array.shape.begin(), 1);
    array.strides.insert(array.strides.begin(), 0);
  }
  if (settings.layout != Layout::bhsd) {
    std::swap(array.shape[1], array.shape[2]);
    std::swap(array.strides[1], array.strides[2]);
  }
  return array;
}

ArrayView LinearPlan::state_form(ArrayView array) const {
  const std::size_t last = array.shape.size() - 1;
  if (settings.state_layout == StateLayout::vk) {
    std::swap(array.shape[last], array.shape[last - 1]);
    std::swap(array.strides[last], array.strides[last - 1]);
  }
  return array;
}

namespace {

// n rows of `width` numbers as `heads` of them, by blocks; rows of one number are repeated.
std::vector<double> of_heads(const ArrayView& array, std::int64_t rows, std::int64_t heads,
                             std::int64_t width) {
  std::vector<double> given(static_cast<std::size_t>(element_count(array.shape)));
  const Array copy = Array::copy_of(array);
  core::load(array.dtype, copy.data(), size_of(array.dtype), std::ssize(given), given.data());
  const std::int64_t each = std::ssize(given) / rows;
  std::vector<double> all;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t d = 0; d < width; ++d)
      all.push_back(given[static_cast<std::size_t>(h * rows / heads * each + (each == 1 ? 0 : d))]);
  return all;
}

void require_numbers(const std::vector<double>& numbers, const char* name) {
  if (std::any_of(numbers.begin(), numbers.end(), [](double x) { return x != x; }))
    throw invalid("{} holds NaN", name).about(name);
}

}  // namespace

LinearInputs::LinearInputs(const LinearPlan& plan, const LinearAttentionArrays& arrays)
    : q(plan.in_one_form(*arrays.q, plan.key_size)),
      k(plan.in_one_form(*arrays.k, plan.key_size)),
      v(plan.in_one_form(*arrays.v, plan.value_size)) {
  if (plan.decay == DecayKind::fixed)
    gate = ArrayView(arrays.decay->data, arrays.decay->dtype,
                     {plan.entries, arrays.decay->shape[0], plan.tokens, 1},
                     {0, arrays.decay->strides[0], 0, 0});
  else if (plan.decay != DecayKind::none)
    gate = plan.in_one_form(plan.has_dt ? *arrays.dt : *arrays.decay,
                            plan.decay == DecayKind::channel ? plan.key_size : 0);
  if (arrays.beta) beta = plan.in_one_form(*arrays.beta, 0);
  if (arrays.initial_state) initial_state = plan.state_form(*arrays.initial_state);
  const std::int64_t heads = plan.state_heads, width = plan.decay_width();
  rate.assign(static_cast<std::size_t>(heads), 1);
  if (arrays.a_log) {
    rate = of_heads(*arrays.a_log, arrays.a_log->shape[0], heads, 1);
    require_numbers(rate, "a_log");
    std::transform(rate.begin(), rate.end(), rate.begin(), [](double a) { return std::exp(a); });
  }
  bias.assign(static_cast<std::size_t>(heads * width), 0);
  if (arrays.dt_bias) bias = of_heads(*arrays.dt_bias, plan.bias_heads, heads, width);
  require_numbers(bias, "dt_bias");
  if (arrays.skip) skip = of_heads(*arrays.skip, arrays.skip->shape[0], plan.out_heads, plan.value_size);
}

}  // namespace recurrence

}  // namespace ejk
