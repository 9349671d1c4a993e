// Arguments of a short convolution: types, then shapes, each against x, then sequences and slots.
// tests: tests/recurrence/test_conv1d.cpp
#include "core/require.hpp"
#include "recurrence/conv1d.hpp"

namespace ejk {

namespace {

using core::invalid;
using recurrence::is_packed;

Conv1dLayout channels_elsewhere(Conv1dLayout layout) {
  switch (layout) {
    case Conv1dLayout::bsd:
      return Conv1dLayout::bds;
    case Conv1dLayout::bds:
      return Conv1dLayout::bsd;
    case Conv1dLayout::td:
      return Conv1dLayout::dt;
    case Conv1dLayout::dt:
      break;
  }
  return Conv1dLayout::td;
}

Conv1dLayout layout_of(const Conv1dOperands& operands, const Conv1dSettings& settings) {
  const bool packed = static_cast<bool>(operands.cu_seqlens);
  const Conv1dLayout layout = settings.layout.value_or(packed ? Conv1dLayout::td : Conv1dLayout::bsd);
  if (packed && !is_packed(layout))
    throw core::usage("cu_seqlens are for packed tokens, and the layout is {}", name_of(layout))
        .hint("the layouts td and dt take (tokens, channels) and (channels, tokens)");
  if (!packed && is_packed(layout))
    throw core::usage("packed tokens, the layout {}, need cu_seqlens", name_of(layout))
        .hint("one sequence is cu_seqlens [0, tokens]");
  const std::int64_t rank = packed ? 2 : 3;
  if (operands.x.rank() != rank)
    throw invalid("x has the shape {}, and the layout {} has {} axes", to_string(operands.x.shape),
                  name_of(layout), rank)
        .about("x")
        .hint(!packed ? "packed tokens, (tokens, channels), come with cu_seqlens"
              : !operands.x.shape.empty() && operands.x.shape[0] == 1
                  ? "packed tokens of a batch of one are its slice [0]"
                  : "the entries of a batch are sequences without cu_seqlens");
  return layout;
}

void require_float_operand(const ArrayView& array, const char* name) {
  if (is_wide_float(array.dtype)) return;
  throw Error(Error::Kind::input,
              fmt::format("{} is {}, not of a float type of 16 bits or more", name, name_of(array.dtype)),
              Error::Code::not_floats)
      .about(name);
}

// (channels, W).
ArrayView weight_of(ArrayView weight, const ArrayView& x, Conv1dLayout layout) {
  if (weight.rank() == 3 && weight.shape[1] == 1) {
    weight.shape.erase(weight.shape.begin() + 1);
    weight.strides.erase(weight.strides.begin() + 1);
  }
  if (weight.rank() != 2 || weight.shape[1] < 1)
    throw invalid("weight has the shape {}, not (channels, W) or (channels, 1, W) with W >= 1",
                  to_string(weight.shape))
        .about("weight");
  const std::int64_t channels = x.shape[2], given = weight.shape[0];
  if (given == channels) return weight;
  Error error = invalid("weight has {} channels, x has {}", given, channels).about("weight");
  if (given == x.shape[1])
    error.hint(fmt::format("that is x in the layout {}", name_of(channels_elsewhere(layout))));
  else if (weight.shape[1] == channels)
    error.hint("weight is (channels, W)");
  throw std::move(error);
}

void check_state(const ArrayView& state, std::int64_t channels, std::int64_t width,
                 Conv1dStateLayout layout) {
  const bool dw = layout == Conv1dStateLayout::dw;
  if (state.rank() != 3)
    throw invalid("initial_state has the shape {}, not (sequences, {})", to_string(state.shape),
                  dw ? "channels, width" : "width, channels")
        .about("initial_state");
  const std::size_t at = dw ? 1 : 2;
  if (state.shape[at] != channels) {
    Error error = invalid("initial_state has {} channels in the shape {}, x has {}", state.shape[at],
                          to_string(state.shape), channels)
                      .about("initial_state");
    if (state.shape[3 - at] == channels)
      error.hint(dw ? "the state layout wd takes (sequences, width, channels)"
                    : "the state layout dw takes (sequences, channels, width)");
    throw std::move(error);
  }
  if (state.shape[3 - at] < width - 1)
    throw invalid("initial_state has {} columns, and {} weights reach back over {} tokens",
                  state.shape[3 - at], width, width - 1)
        .about("initial_state");
}

std::int64_t state_width_of(const std::optional<ArrayView>& state, const Conv1dSettings& settings,
                            std::int64_t width) {
  const std::int64_t columns =
      state ? state->shape[settings.state_layout == Conv1dStateLayout::dw ? 2 : 1] : width - 1;
  const std::int64_t wanted = settings.state_width.value_or(columns);
  if (wanted < width - 1)
    throw invalid("a state of {} columns is narrower than the {} tokens that {} weights reach back over",
                  wanted, width - 1, width);
  if (state && wanted != columns)
    throw invalid("initial_state has {} columns, and the final state is to have {}", columns, wanted)
        .about("initial_state");
  return wanted;
}

}  // namespace

std::string_view name_of(Conv1dLayout layout) {
  constexpr std::string_view kNames[] = {"bsd", "bds", "td", "dt"};
  return kNames[static_cast<std::size_t>(layout)];
}
std::string_view name_of(Conv1dActivation activation) {
  return activation == Conv1dActivation::none ? "none" : "silu";
}
std::string_view name_of(Conv1dStateLayout layout) { return layout == Conv1dStateLayout::dw ? "dw" : "wd"; }

namespace recurrence {

bool is_packed(Conv1dLayout layout) { return layout == Conv1dLayout::td || layout == Conv1dLayout::dt; }
bool has_tokens_last(Conv1dLayout layout) {
  return layout == Conv1dLayout::bds || layout == Conv1dLayout::dt;
}

ArrayView in_one_form(ArrayView x, Conv1dLayout layout) {
  if (is_packed(layout)) {
    x.shape.insert(x.shape.begin(), 1);
    x.strides.insert(x.strides.begin(), 0);
  }
  if (has_tokens_last(layout)) {
    std::swap(x.shape[1], x.shape[2]);
    std::swap(x.strides[1], x.strides[2]);
  }
  return x;
}

ArrayView in_one_form(ArrayView state, Conv1dStateLayout layout) {
  if (layout == Conv1dStateLayout::wd) {
    std::swap(state.shape[1], state.shape[2]);
    std::swap(state.strides[1], state.strides[2]);
  }
  return state;
}

Conv1dProblem conv1d_problem(const Conv1dOperands& operands, const Conv1dSettings& settings) {
  Conv1dProblem p;
  Conv1dTypes& types = p.types;
  types.layout = layout_of(operands, settings);
  require_float_operand(operands.x, "x");
  require_float_operand(operands.weight, "weight");
  if (operands.bias) require_float_operand(*operands.bias, "bias");
  if (operands.initial_state) require_float_operand(*operands.initial_state, "initial_state");
  const DType out = settings.dtype.value_or(operands.x.dtype);
  if (!is_wide_float(out)) throw core::usage("a result must be of a float type, not {}", name_of(out));

  p.activation = settings.activation;
  p.x = in_one_form(operands.x, types.layout);
  p.weight = weight_of(operands.weight, p.x, types.layout);
  types.channels = p.x.shape[2];
  types.width = p.weight.shape[1];
  types.tokens = p.x.shape[0] * p.x.shape[1];
  p.bias = operands.bias;
  if (p.bias && p.bias->shape != Shape{types.channels})
    throw invalid("bias has the shape {}, and there are {} channels", to_string(p.bias->shape),
                  types.channels)
        .about("bias");
  if (operands.initial_state)
    check_state(*operands.initial_state, types.channels, types.width, settings.state_layout);
  types.state_width = state_width_of(operands.initial_state, settings, types.width);
  if (operands.initial_state) p.state = in_one_form(*operands.initial_state, settings.state_layout);

  p.sequences = operands.cu_seqlens ? packed_sequences(*operands.cu_seqlens, types.tokens, "x")
                                    : sequences_of_batch(p.x.shape[0], p.x.shape[1]);
  types.sequences = std::ssize(p.sequences);
  p.slots =
      slots_of(operands.slots, types.sequences, p.state ? std::optional(p.state->shape[0]) : std::nullopt);
  p.has_pool = static_cast<bool>(operands.slots.read);
  const auto is_double = [](const ArrayView& array) { return array.dtype == DType::float64; };
  p.is_double = is_double(p.x) || is_double(p.weight) || (p.bias && is_double(*p.bias)) ||
                (p.state && is_double(*p.state));

  Shape state{p.has_pool ? p.state->shape[0] : types.sequences, types.channels, types.state_width};
  if (settings.state_layout == Conv1dStateLayout::wd) std::swap(state[1], state[2]);
  types.out = {out, operands.x.shape};
  types.final_state = {p.has_pool ? p.state->dtype : operands.x.dtype, std::move(state)};
  return p;
}

}  // namespace recurrence

Conv1dTypes types_of(const Conv1dOperands& operands, const Conv1dSettings& settings) {
  return recurrence::conv1d_problem(operands, settings).types;
}

Report describe(const Conv1dTypes& types) {
  Report report;
  report.add("layout", "layout", std::string(name_of(types.layout)))
      .add("sequences", "sequences", types.sequences, Unit::count)
      .add("tokens", "tokens", types.tokens, Unit::count)
      .add("channels", "channels", types.channels, Unit::count)
      .add("width", "weights of each", types.width, Unit::count)
      .add("state_width", "columns of a state", types.state_width, Unit::count)
      .add("out", "out", types.out.shape)
      .add("final_state", "final state", types.final_state.shape);
  return report;
}

}  // namespace ejk
