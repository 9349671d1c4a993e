// ejk conv1d: short causal convolutions with their states.
// tests: tests/cli/conv1d/
#include "ejk/conv1d.hpp"

#include <array>

#include "against.hpp"
#include "commands.hpp"
#include "ejk/recurrence_check.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"
#include "state_slots.hpp"

namespace ejk::app {

namespace {

struct ConvolutionOptions {
  std::string x, weight, bias, cu_seqlens, initial_state;
  SlotOptions slots;
  Conv1dSettings settings;
  AgainstOptions against;
};

class ConvolutionInputs {
 public:
  ConvolutionInputs(const ConvolutionOptions& options, Job& job, Report& report) {
    x_.source = job.open_operand("x", options.x);
    weight_.source = job.open_operand("weight", options.weight);
    if (!options.bias.empty()) bias_.source = job.open_operand("bias", options.bias);
    if (!options.initial_state.empty())
      state_.source = job.open_operand("initial_state", options.initial_state);
    slots_ = open_state_slots(options.slots, job);
    if (options.cu_seqlens.empty()) return;
    cu_seqlens_ = in_memory(*job.open_integers("cu_seqlens", options.cu_seqlens));
    warn_of_offsets(*cu_seqlens_, report);
  }

  Conv1dTypes types(const Conv1dSettings& settings) {
    const auto planned = [](const BufferedInput& input) {
      return ArrayView(nullptr, input.source->dtype(), input.source->shape());
    };
    return naming(all(), [&] { return types_of(operands(planned), settings); });
  }
  Conv1dOperands read() {
    return operands([](BufferedInput& input) { return input.view(); });
  }
  std::int64_t bytes() const {
    std::int64_t bytes = 0;
    for (const BufferedInput* input : all()) bytes += input->bytes_to_buffer();
    return bytes;
  }

 private:
  template <class F>
  Conv1dOperands operands(F&& view_of) {
    Conv1dOperands o{view_of(x_), view_of(weight_), {}, {}, cu_seqlens_, slots_};
    if (bias_.source) o.bias = view_of(bias_);
    if (state_.source) o.initial_state = view_of(state_);
    return o;
  }
  std::array<const BufferedInput*, 4> all() const { return {&x_, &weight_, &bias_, &state_}; }

  BufferedInput x_{"x", nullptr}, weight_{"weight", nullptr}, bias_{"bias", nullptr},
      state_{"initial_state", nullptr};
  IntegerArray cu_seqlens_;
  StateSlots slots_;
};

Outcome run(const ConvolutionOptions& options, Job& job) {
  Report report;
  ConvolutionInputs inputs(options, job, report);
  const Conv1dTypes types = inputs.types(options.settings);
  append(report, describe(types));
  ActualArrays actual = job.phase(Phase::read, [&] {
    return open_actual(options.against, {{"out", types.out}, {"final_state", types.final_state}}, {}, job,
                       report);
  });
  const bool compares = options.against.given(), writes = job.outputs.has_target() || !compares;
  const std::int64_t results = types.out.bytes() + types.final_state.bytes();
  std::int64_t peak = inputs.bytes() + (writes ? results + piece_buffers(2, results) : 0);
  for (const BufferedInput& given : actual.results) peak += given.bytes_to_buffer();
  if (compares) peak += bytes_to_compare_conv1d(types, options.against.explain);
  if (job.plan(report, peak)) return Outcome::passed;
  const Conv1dOperands operands = job.phase(Phase::read, [&] { return inputs.read(); });
  Output out{"out", nullptr, "it is compared alone"}, final_state{"final_state", nullptr, out.absent_because};
  if (writes) {
    Conv1dResult result = job.phase(Phase::compute, [&] { return conv1d(operands, options.settings); });
    out.source = make_source(std::move(result.out));
    final_state.source = make_source(std::move(result.final_state));
  }
  bool passed = true;
  if (compares) {
    ActualConv1d given;
    job.phase(Phase::read, [&] {
      if (actual.results[0].source) given.out = actual.results[0].view();
      if (actual.results[1].source) given.final_state = actual.results[1].view();
    });
    const Against against = job.phase(Phase::compute, [&] {
      return compare_conv1d(operands, options.settings, given, options.against.explain,
                            options.against.tiles);
    });
    passed = against.agrees();
    add_against(report, options.against, against, actual.others,
                "'ejk compare MINE RESULT --explain' compares the two arrays by themselves.", job);
  }
  job.deliver(std::move(report), {std::move(out), std::move(final_state)});
  return passed ? Outcome::passed : Outcome::failed;
}

Run declare_conv1d(OptionSet& set) {
  const auto options = std::make_shared<ConvolutionOptions>();
  Conv1dSettings& settings = options->settings;
  add_reference(set, "X", options->x, "tokens, in the layout").required();
  add_reference(set, "WEIGHT", options->weight,
                "(channels, W) or (channels, 1, W), the last one on the token itself")
      .required();
  add_reference(set, "--bias", options->bias, "(channels,), added to the sum");
  add_choice(set, "--activation", settings.activation,
             named_choices<Conv1dActivation>({Conv1dActivation::none, Conv1dActivation::silu}), "F",
             "of the sum")
      .recorded();
  add_choice(set, "--layout", settings.layout,
             named_choices<std::optional<Conv1dLayout>>(
                 {Conv1dLayout::bsd, Conv1dLayout::bds, Conv1dLayout::td, Conv1dLayout::dt}),
             "LAYOUT",
             "axes of X and out: b batch, s sequence, d channels, t packed tokens\n"
             "By default bsd, with --cu-seqlens td.")
      .recorded();
  add_reference(set, "--cu-seqlens", options->cu_seqlens, "where packed sequences begin (sequences + 1,)");
  add_reference(set, "--initial-state", options->initial_state,
                "the tokens before each sequence, the newest last (sequences, channels, L)\n"
                "L is at least W - 1. By default 0.");
  add_choice(set, "--state-layout", settings.state_layout,
             named_choices<Conv1dStateLayout>({Conv1dStateLayout::dw, Conv1dStateLayout::wd}), "LAYOUT",
             "axes of states: channels, then L, or the reverse")
      .recorded();
  add_word(set, "--state-width", settings.state_width, at_least(0), "L",
           "columns of the final state, by default those of the initial one, else W - 1\n"
           "fla and transformers have W.")
      .recorded();
  declare_state_slots(set, options->slots);
  add_dtype(set, "--dtype", settings.dtype, "type of out, by default that of X", float_dtypes()).recorded();
  declare_against(set, options->against);
  set.set_outputs([&set, options] {
    const bool is_compared_alone = options->against.given() && set.shared().output.empty();
    return is_compared_alone ? std::vector<std::string>() : std::vector<std::string>{"out", "final_state"};
  });
  set_footer(set,
             "Token t is act(bias + sum over j of weight[j] * x[t - (W - 1) + j]), channel by\n"
             "channel; a sequence reads none of another. Arithmetic is float32, float64 of\n"
             "float64 inputs.\n"
             "A prompt in two parts is the whole prompt, as are its tokens one by one:\n"
             "  ejk conv1d \"x.npy[:,:100]\" w.npy -o a.h5\n"
             "  ejk conv1d \"x.npy[:,100:]\" w.npy --initial-state a.h5:/final_state -o b.h5\n"
             "causal-conv1d and transformers have --layout bds, and transformers and fla\n"
             "--state-width W.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command conv1d_command{
    .name = "conv1d",
    .group = "Recurrences",
    .summary = "short causal convolutions with their states",
    .example = "ejk conv1d x.npy weight.npy --activation silu -o out.h5",
    .outputs = {{"out", "the shape of X, of --dtype", "act(bias + sum of weights times tokens)"},
                {"final_state", "(sequences, channels, L), or the pool of --state-indices",
                 "the last L tokens of each sequence, and of its initial state before them"}},
    .use = R"(with h5py.File("out.h5") as f: out, s = f["out"][()], f["final_state"][()])",
    .keys = joined({R"(
layout | string | axes of X and out
sequences, tokens, channels | integer | sequences; tokens of all; channels
width, state_width | integer | W; L
out, final_state | shape | their shapes
)",
                    kAgainstKeys, kAgainstPartsKeys, R"(
  not_given | string | results that were not given | where one was not given
)"}),
    .declare = declare_conv1d,
};

}  // namespace ejk::app
