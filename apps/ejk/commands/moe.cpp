// ejk moe: a layer of experts, and the verdict on another implementation's result.
// tests: tests/cli/moe/
#include "ejk/route.hpp"

#include <array>

#include "against.hpp"
#include "commands.hpp"
#include "ejk/matmul_check.hpp"
#include "job.hpp"
#include "router.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct MoeOptions {
  std::string x, gate, down, up, topk_ids, weights;
  RouterOptions router;
  bool transpose_weights = false;
  Activation activation = Activation::silu;
  std::optional<DType> dtype;
  AgainstOptions against;
};

ArrayView planned(const ArraySource& source) { return {nullptr, source.dtype(), source.shape()}; }

ArrayView transposed(ArrayView matrices) {
  if (matrices.rank() != 3) return matrices;
  std::swap(matrices.shape[1], matrices.shape[2]);
  std::swap(matrices.strides[1], matrices.strides[2]);
  return matrices;
}

void split(const ArrayView& both, MoeOperands& into) {
  GateAndUp halves = split_gate_and_up(both);
  into.gate = std::move(halves.gate);
  into.up = std::move(halves.up);
}

class MoeInputs {
 public:
  MoeInputs(const MoeOptions& options, Job& job) : options_(options) {
    x_.source = job.open_operand("x", options.x);
    gate_.source = job.open_operand("gate", options.gate);
    if (!options.up.empty()) up_.source = job.open_operand("up", options.up);
    down_.source = job.open_operand("down", options.down);
    if (options.router.given()) {
      logits_ = job.open("logits", options.router.logits);
      settings_ = options.router.settings(job);
      return;
    }
    ids_.source = job.open("topk_ids", options.topk_ids);
    weights_.source = job.open("topk_weights", options.weights);
  }

  /// The operands, of `view_of` each input.
  template <class F>
  MoeOperands operands(F&& view_of) {
    const auto matrices = [&](BufferedInput& input) {
      const ArrayView view = view_of(input);
      return options_.transpose_weights ? transposed(view) : view;
    };
    MoeOperands o;
    o.x = view_of(x_);
    const ArrayView first = matrices(gate_);
    if (up_.source)
      o.gate = first, o.up = matrices(up_);
    else
      split(first, o);
    o.down = matrices(down_);
    if (logits_) {
      const Shape choices{logits_->shape().empty() ? 0 : logits_->shape()[0], settings_.top_k};
      o.topk_ids = {routed_.topk_ids.data(), DType::int32, choices};
      o.topk_weights = {routed_.topk_weights.data(), DType::float32, choices};
    } else {
      o.topk_ids = view_of(ids_);
      o.topk_weights = view_of(weights_);
    }
    return o;
  }
  MoeTypes types() {
    return naming(all(), [&] {
      return types_of(operands([](BufferedInput& input) { return planned(*input.source); }));
    });
  }
  MoeOperands read(Job& job) {
    if (logits_)
      routed_ =
          job.phase(Phase::compute, [&] { return choose_experts(*logits_, settings_, job.progress()); });
    return job.phase(Phase::read,
                     [&] { return operands([](BufferedInput& input) { return input.view(); }); });
  }
  std::int64_t ties() const { return routed_.ties; }
  bool has_logits() const { return logits_ != nullptr; }
  std::vector<OtherWeights> other_weights() const {
    if (!logits_) return {};
    return wrong_weights_of_choices(*logits_, settings_, *make_source(routed_.topk_ids.view(), "topk_ids"));
  }
  std::int64_t bytes() const {
    std::int64_t bytes =
        logits_ ? 2 * type_of(*logits_).bytes() + 40 * logits_->shape()[0] * settings_.top_k : 0;
    for (const BufferedInput* input : all()) bytes += input->bytes_to_buffer();
    return bytes;
  }
  std::array<const BufferedInput*, 6> all() const { return {&x_, &gate_, &up_, &down_, &ids_, &weights_}; }

 private:
  const MoeOptions& options_;
  BufferedInput x_{"x", nullptr}, gate_{"gate", nullptr}, up_{"up", nullptr}, down_{"down", nullptr},
      ids_{"topk_ids", nullptr}, weights_{"topk_weights", nullptr};
  std::shared_ptr<const ArraySource> logits_;
  RouterSettings settings_;
  RoutedTokens routed_;
};

Outcome run(const MoeOptions& options, Job& job) {
  if (options.topk_ids.empty() != options.router.given() ||
      (!options.router.given() && options.weights.empty()))
    throw usage(options.router.given()
                    ? "TOPK_IDS and --logits both give the experts"
                    : "the experts of tokens are missing: TOPK_IDS with --weights, or --logits")
        .hint("for example: ejk moe x.npy w13.npy w2.npy r.h5:/topk_ids --weights r.h5:/topk_weights");
  if (!options.against.tiles.empty()) throw usage("--tiles: the picture is of tokens and columns");
  MoeInputs inputs(options, job);
  const MoeTypes types = inputs.types();
  const ArrayType out{options.dtype.value_or(types.x.dtype), types.x.shape};
  const std::int64_t tokens = types.x.shape[0], hidden = types.x.shape[1], inter = types.gate.shape[2];
  Report report;
  report.add("tokens", "tokens", tokens, Unit::count)
      .add("top_k", "experts of each", types.top_k, Unit::count)
      .add("experts", "experts", types.gate.shape[0], Unit::count)
      .add("hidden", "hidden", hidden)
      .add("inter", "inter", inter)
      .add("work", "work",
           6 * static_cast<double>(tokens * types.top_k) * static_cast<double>(hidden) *
               static_cast<double>(inter),
           Unit::flop);
  ActualArrays actual = job.phase(Phase::read, [&] {
    return open_actual(options.against, {{"out", out}}, {}, job, report);
  });
  BufferedInput& given = actual.results[0];
  const std::int64_t compared =
      given.source ? given.bytes_to_buffer() + bytes_to_compare_moe(types, options.against.explain) : 0;
  const bool writes = job.outputs.has_target() || !given.source;
  if (job.plan(report, inputs.bytes() + std::max(writes ? moe_bytes(types, out.dtype) : 0, compared)))
    return Outcome::passed;
  const MoeOperands operands = naming(inputs.all(), [&] { return inputs.read(job); });
  if (inputs.has_logits()) report.add("ties", "tokens decided by a tie", inputs.ties(), Unit::count);
  Output made{"out", nullptr, "it is compared alone"};
  if (writes)
    made.source = make_source(naming(inputs.all(), [&] {
      return job.phase(Phase::compute,
                       [&] { return moe(operands, options.activation, out.dtype, job.progress()); });
    }));
  bool passed = true;
  if (given.source) {
    const ArrayView view = job.phase(Phase::read, [&] { return given.view(); });
    const Against against = job.phase(Phase::compute, [&] {
      const Explain explain = options.against.explain;
      return compare_moe(operands, options.activation, view,
                         explain == Explain::yes ? inputs.other_weights() : std::vector<OtherWeights>(),
                         explain, job.progress());
    });
    passed = against.agrees();
    add_against(report, options.against, against, actual.others,
                "'ejk compare MINE RESULT --explain' looks at the two arrays by themselves.", job);
  }
  job.deliver(std::move(report), {std::move(made)});
  return passed ? Outcome::passed : Outcome::failed;
}

Run declare_moe(OptionSet& set) {
  const auto options = std::make_shared<MoeOptions>();
  add_reference(set, "X", options->x, "hidden states (tokens, hidden)").required();
  add_reference(
      set, "GATE", options->gate,
      "gate and up, halves of the last axis (experts, hidden, 2 * inter)\nWith --up the gate alone.")
      .required();
  add_reference(set, "DOWN", options->down, "matrices of the second product (experts, inter, hidden)")
      .required();
  add_reference(set, "TOPK_IDS", options->topk_ids,
                "the experts of each token (tokens, k)\nIntegers; -1 is no expert.")
      .needs("--weights");
  add_reference(set, "--weights", options->weights, "their weights (tokens, k)").needs("TOPK_IDS");
  add_reference(set, "--up", options->up, "the matrices of up, where GATE has the gate alone");
  add_flag(
      set, "--transpose-weights", options->transpose_weights,
      "matrices are (experts, out, in): GATE (experts, 2 * inter, hidden), DOWN (experts, hidden, inter)")
      .recorded();
  add_choice(set, "--activation", options->activation,
             named_choices<Activation>({Activation::silu, Activation::gelu, Activation::gelu_tanh}), "F",
             "of the gate, silu by default")
      .recorded();
  declare_router(set, options->router, "Instead of TOPK_IDS");
  add_dtype(set, "--dtype", options->dtype, "type of the result, by default that of X", float_dtypes())
      .recorded();
  declare_against(set, options->against);
  set.set_outputs([&set, options] {
    const bool printed = set.shared().output.empty();
    return options->against.given() && printed ? std::vector<std::string>() : std::vector<std::string>{"out"};
  });
  set_footer(set,
             "Products and the activation are float32, a token is summed in float64 and\nrounded once. "
             "A right kernel may round each step\nto the type of X, and sum in any order.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command moe_command{
    .name = "moe",
    .group = "Groups",
    .summary = "a layer of experts, from tokens to tokens",
    .example = "ejk moe x.npy w13.npy w2.npy --logits scores.npy --top-k 2 -o out.npy",
    .outputs = {{"out", "(tokens, hidden) of --dtype",
                 "sum of weights[t, j] * ((act(x @ gate) * (x @ up)) @ down) over the experts of token t"}},
    .use = R"(out = np.load("out.npy"))",
    .keys = joined({R"(
tokens, top_k, experts | integer | tokens; experts of each; experts
hidden, inter | integer | columns of X; of the gate
work_flop | number | multiplications and additions of the three products
ties | integer | tokens decided by a tie | with --logits
)",
                    kAgainstKeys}),
    .declare = declare_moe,
};

}  // namespace ejk::app
