// ejk linear-attention, linear-attention-grad: reference results for kernels of linear attention and its relatives,
// forward and backward.
// tests: tests/cli/linear-attention/, tests/cli/linear-attention-grad/
#include "ejk/linear_attention.hpp"

#include <algorithm>
#include <optional>

#include "against.hpp"
#include "commands.hpp"
#include "commands/audit.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/recurrence_check.hpp"
#include "job.hpp"
#include "options.hpp"
#include "schema.hpp"
#include "sources.hpp"
#include "state_slots.hpp"

namespace ejk::app {

namespace {

using Space = DecaySpace;
using Layout = LinearAttentionLayout;

constexpr const char *kGatesGroup = "Decays and strengths", *kStatesGroup = "States";

struct LinearFlags {
  LinearAttentionOperands<std::string> inputs;        // references; may be empty
  LinearAttentionCotangents<std::string> cotangents;  // of gradients
  std::optional<DType> grad_dtype;
  std::string cu_seqlens;
  SlotOptions slots;
  std::string library;  // fla, flashinfer, mamba; empty: none
  std::optional<Layout> layout;
  std::optional<Space> space;
  std::optional<StateLayout> state_layout;
  std::optional<std::int64_t> beta_sigmoid;
  LinearAttentionSettings settings;  // without those above
  bool check = false;
  AgainstOptions against;
  std::optional<FactorType> factors;
};

struct LinearBuffers : LinearAttentionOperands<BufferedInput> {
  LinearAttentionCotangents<BufferedInput> cotangents;
};

std::vector<const BufferedInput*> buffers_of(const LinearBuffers& in) {
  std::vector<const BufferedInput*> all;
  const auto add = [&](const char*, auto& input) {
    if (input) all.push_back(&*input);
  };
  for_each_linear_operand(add, in);
  for (const auto* input : {&in.cotangents.dout, &in.cotangents.dfinal_state}) add("", *input);
  return all;
}

// What options that are not given are by a library's conventions.
void set_defaults(const LinearFlags& words, LinearAttentionSettings& s) {
  const bool is_packed = !words.cu_seqlens.empty();
  s.layout = words.layout.value_or(is_packed ? Layout::thd : Layout::bshd);
  if (is_packed && s.layout != Layout::thd)
    throw usage("--cu-seqlens is for packed tokens, and --layout is {}", name_of(s.layout))
        .hint("the layout thd takes (tokens, heads, size)");
  if (!is_packed && s.layout == Layout::thd)
    throw usage("--layout thd is for packed tokens and needs --cu-seqlens")
        .hint("one sequence is cu_seqlens [0, tokens]");
  const bool is_raw = !words.inputs.a_log->empty() || s.lower_bound;
  const bool is_linear = words.library == "flashinfer" && !words.inputs.decay->empty() && !is_raw;
  s.decay_space = words.space.value_or(is_linear ? Space::linear : Space::ln);
  const bool is_kv = words.library.empty() || words.library == "fla";
  s.state_layout = words.state_layout.value_or(is_kv ? StateLayout::kv : StateLayout::vk);
  if (words.library == "mamba" && !s.scale) s.scale = 1;
  if (words.beta_sigmoid) s.beta_sigmoid = static_cast<double>(*words.beta_sigmoid);
}

LinearBuffers open_inputs(const LinearFlags& words, LinearAttentionSettings& s, Job& job) {
  LinearBuffers in;
  const auto open = [&](const char* name, const auto& reference, auto& input) {
    if (reference && !reference->empty()) input = BufferedInput{name, job.open_operand(name, *reference)};
  };
  for_each_linear_operand(open, words.inputs, in);
  open("dout", words.cotangents.dout, in.cotangents.dout);
  open("dfinal_state", words.cotangents.dfinal_state, in.cotangents.dfinal_state);
  if (!words.cu_seqlens.empty()) s.cu_seqlens = job.open_integers("cu_seqlens", words.cu_seqlens);
  s.slots = open_state_slots(words.slots, job);
  return in;
}

// The inputs of a run after its options: settings, files, types.
struct LinearProblem {
  LinearAttentionSettings settings;
  LinearBuffers in;
  LinearAttentionTypes types;

  LinearProblem(const LinearFlags& words, Job& job) : settings(words.settings) {
    set_defaults(words, settings);
    job.provenance.record("layout", std::string(name_of(settings.layout)));
    job.provenance.record("decay_space", std::string(name_of(settings.decay_space)));
    job.provenance.record("state_layout", std::string(name_of(settings.state_layout)));
    in = job.phase(Phase::read, [&] { return open_inputs(words, settings, job); });
    for_each_linear_operand(
        [](const char*, const auto& input, auto& type) {
          if (input) type = type_of(*input->source);
        },
        in, types);
  }

  std::int64_t bytes_to_buffer() const {
    std::int64_t all = 0;
    for (const BufferedInput* input : buffers_of(in)) all += input->bytes_to_buffer();
    return all;
  }

  LinearAttentionArrays read(Job& job) {
    LinearAttentionArrays arrays;
    job.phase(Phase::read, [&] {
      for_each_linear_operand(
          [](const char*, auto& input, auto& array) {
            if (input) array = input->view();
          },
          in, arrays);
    });
    return arrays;
  }
};

// `check` compares with float64.
template <class Check>
bool add_check(const Check& check, Report& report, Job& job) {
  const auto result = job.phase(Phase::compute, check);
  report.add(Section{"check", "check", std::make_shared<Report>(describe(result))});
  if (!result.passed())
    report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
  return result.passed();
}

struct Computed {
  std::vector<Output> outputs;
  bool passed = true;  // --check
};

Computed compute(const LinearFlags& words, const LinearAttentionPlan& plan,
                 const LinearAttentionArrays& arrays, const LinearBuffers& in, bool warns, Report& report,
                 Job& job) {
  Timer timer;
  LinearAttention results =
      naming(buffers_of(in), [&] { return job.phase(Phase::compute, [&] { return plan.run(arrays); }); });
  report.add("forward_time", "computed in", timer.seconds(), Unit::seconds)
      .add("instruction_set", "instruction set", instruction_set());
  if (warns) append(report, describe(results.work));
  Computed computed;
  computed.passed = !words.check || add_check([&] { return plan.check(arrays, results); }, report, job);
  computed.outputs = {{"out", make_source(std::move(results.out)), {}},
                      {"final_state", make_source(std::move(results.final_state)), {}}};
  if (results.states) computed.outputs.push_back({"states", make_source(std::move(*results.states)), {}});
  return computed;
}

// The verdict on results of another program; whether they agree.
bool add_verdict(const LinearFlags& words, const LinearAttentionSettings& settings,
                 const LinearAttentionArrays& arrays, const LinearBuffers& in, ActualArrays& actual,
                 Report& report, Job& job) {
  ActualLinearAttention given;
  job.phase(Phase::read, [&] {
    if (actual.results[0].source) given.out = actual.results[0].view();
    if (actual.results[1].source) given.final_state = actual.results[1].view();
  });
  const auto compared = [&](std::optional<FactorType> factors, Explain explain) {
    return job.phase(Phase::compute, [&] {
      return compare_linear_attention(arrays, settings, given, factors, explain, words.against.tiles);
    });
  };
  LinearAttentionVerdict verdict =
      naming(buffers_of(in), [&] { return compared(words.factors, words.against.explain); });
  // What no fault explains may be right for a program that rounds factors, as those on GPUs do.
  Against& against = verdict.against;
  if (against.tried && !against.agrees() && against.explanations.empty() && !words.factors &&
      size_of(arrays.q->dtype) == 4)
    for (const FactorType type : {FactorType::tf32, FactorType::bf16})
      if (against.agrees_with.empty() && compared(type, Explain::no).against.agrees())
        against.agrees_with = fmt::format("--weights {}", name_of(type));
  const bool agrees = verdict.against.agrees();
  add_against(report, words.against, std::move(verdict.against), actual.others,
              "'ejk compare MINE RESULT --explain' compares the two arrays by themselves.", job);
  append(report, describe(verdict.work));
  if (!verdict.tests_recurrence)
    report.warnings.emplace_back(
        "the recurrence is hardly tested: no element shows more than its tolerance of the tokens before it");
  return agrees;
}

Outcome run(const LinearFlags& words, Job& job) {
  LinearProblem problem(words, job);
  const LinearAttentionPlan plan =
      naming(buffers_of(problem.in), [&] { return LinearAttentionPlan(problem.types, problem.settings); });
  Report report = describe(plan);
  ActualArrays actual = job.phase(Phase::read, [&] {
    return open_actual(words.against, {{"out", plan.out()}, {"final_state", plan.final_state()}}, {}, job,
                       report);
  });
  const bool compares = words.against.given(),
             computes = job.outputs.has_target() || !compares || words.check;
  std::int64_t peak = problem.bytes_to_buffer();
  for (const BufferedInput& given : actual.results) peak += given.bytes_to_buffer();
  if (compares) peak += bytes_to_compare_linear_attention(plan, words.against.explain);
  const std::int64_t results =
      plan.out().bytes() + plan.final_state().bytes() + (plan.states() ? plan.states()->bytes() : 0);
  if (computes) peak += results + piece_buffers(2, results);
  if (job.plan(report, peak + plan.work_bytes())) return Outcome::passed;

  const LinearAttentionArrays arrays = problem.read(job);
  Computed computed;
  if (computes) computed = compute(words, plan, arrays, problem.in, !compares, report, job);
  const bool agrees =
      !compares || add_verdict(words, problem.settings, arrays, problem.in, actual, report, job);
  job.deliver(std::move(report), computed.outputs);
  return computed.passed && agrees ? Outcome::passed : Outcome::failed;
}

Computed compute_gradients(const LinearFlags& words, const LinearAttentionGradPlan& plan,
                           const LinearAttentionArrays& arrays,
                           const LinearAttentionCotangents<ArrayView>& cotangents, const LinearBuffers& in,
                           Report& report, Job& job) {
  Timer timer;
  LinearAttentionOperands<Array> gradients = naming(buffers_of(in), [&] {
    return job.phase(Phase::compute, [&] { return plan.run(arrays, cotangents); });
  });
  report.add("backward_time", "computed in", timer.seconds(), Unit::seconds)
      .add("instruction_set", "instruction set", instruction_set());
  Computed computed;
  computed.passed =
      !words.check || add_check([&] { return plan.check(arrays, cotangents, gradients); }, report, job);
  for_each_linear_operand(
      [&](const std::string& name, auto& gradient) {
        if (gradient) computed.outputs.push_back({"d" + name, make_source(std::move(*gradient)), {}});
      },
      gradients);
  return computed;
}

// As add_verdict().
bool add_grad_verdict(const LinearFlags& words, const LinearProblem& problem,
                      const LinearAttentionArrays& arrays,
                      const LinearAttentionCotangents<ArrayView>& cotangents, ActualArrays& actual,
                      Report& report, Job& job) {
  LinearAttentionOperands<ArrayView> given;
  std::size_t next = 0;
  job.phase(Phase::read, [&] {
    for_each_linear_operand(
        [&](const char*, const auto& type, auto& result) {
          if (!type) return;
          BufferedInput& input = actual.results[next++];
          if (input.source) result = input.view();
        },
        problem.types, given);
  });
  Against against = naming(buffers_of(problem.in), [&] {
    return job.phase(Phase::compute, [&] {
      return compare_linear_attention_grad(arrays, cotangents, problem.settings, given, words.factors,
                                           words.against.explain, words.against.tiles);
    });
  });
  const bool agrees = against.agrees();
  add_against(report, words.against, std::move(against), actual.others,
              "'ejk compare MINE RESULT --explain' compares the two arrays by themselves.", job);
  return agrees;
}

std::vector<std::string> gradients_of(const LinearFlags& words) {
  std::vector<std::string> names;
  for_each_linear_operand(
      [&](const std::string& name, const auto& reference) {
        if (!reference->empty()) names.push_back("d" + name);
      },
      words.inputs);
  return names;
}

// --field of a gradient of an array that is not given.
void require_field(const LinearFlags& words, const Job& job) {
  for_each_linear_operand(
      [&](const std::string& name, const auto& reference) {
        if (!reference->empty() || !job.outputs.is_field("d" + name)) return;
        std::string option = "--" + name;
        std::replace(option.begin(), option.end(), '_', '-');
        throw usage("there is no d{}: no {} is given", name, option)
            .hint(fmt::format("{} REF, as in the forward pass", option));
      },
      words.inputs);
}

Outcome run_grad(const LinearFlags& words, Job& job) {
  require_field(words, job);
  LinearProblem problem(words, job);
  LinearAttentionCotangents<ArrayType> types;
  auto& given = problem.in.cotangents;
  types.dout = type_of(*given.dout->source);
  if (given.dfinal_state) types.dfinal_state = type_of(*given.dfinal_state->source);
  const LinearAttentionGradPlan plan = naming(buffers_of(problem.in), [&] {
    return LinearAttentionGradPlan(problem.types, types, problem.settings, words.grad_dtype);
  });
  Report report = describe(plan);
  std::int64_t peak = plan.work_bytes() + problem.bytes_to_buffer();
  std::vector<PlannedArray> planned;
  for_each_linear_operand(
      [&](const std::string& name, const auto& type) {
        if (type) planned.push_back({"d" + name, *type}), peak += type->bytes();
      },
      plan.gradients());
  ActualArrays actual =
      job.phase(Phase::read, [&] { return open_actual(words.against, planned, {}, job, report); });
  const bool compares = words.against.given(),
             computes = job.outputs.has_target() || !compares || words.check;
  for (const BufferedInput& result : actual.results) peak += result.bytes_to_buffer();
  if (compares) peak += bytes_to_compare_linear_attention_grad(plan, words.against.explain);
  if (job.plan(report, peak + piece_buffers(3, peak))) return Outcome::passed;

  const LinearAttentionArrays arrays = problem.read(job);
  LinearAttentionCotangents<ArrayView> cotangents;
  job.phase(Phase::read, [&] {
    cotangents.dout = given.dout->view();
    if (given.dfinal_state) cotangents.dfinal_state = given.dfinal_state->view();
  });
  Computed computed;
  if (computes) computed = compute_gradients(words, plan, arrays, cotangents, problem.in, report, job);
  const bool agrees = !compares || add_grad_verdict(words, problem, arrays, cotangents, actual, report, job);
  job.deliver(std::move(report), computed.outputs);
  return computed.passed && agrees ? Outcome::passed : Outcome::failed;
}

std::pair<double, double> read_limits(const std::string& word) {
  const std::size_t comma = word.find(',');
  if (comma == std::string::npos) throw usage("'{}' is not of the form LO,HI", word);
  const std::pair limits(read_real(word.substr(0, comma)), read_real(word.substr(comma + 1)));
  if (!(limits.first <= limits.second)) throw usage("'{}': LO is above HI", word);
  return limits;
}

double read_lower_bound(const std::string& word) {
  const double value = read_finite(word);
  if (!(value < 0)) throw usage("{} is not below 0", word).hint("safe gates have --lower-bound=-5");
  return value;
}

void add_inputs(OptionSet& set, LinearFlags& words) {
  add_reference(set, "Q", words.inputs.q.emplace(),
                "queries (batch, sequence, heads, K), or --layout\n"
                "Inputs are float16, bfloat16, float32 or float64. Of Mamba-2: C.")
      .required();
  add_reference(set, "K", words.inputs.k.emplace(), "keys, of any number of heads\nOf Mamba-2: B.")
      .required();
  add_reference(set, "V", words.inputs.v.emplace(), "values, of size V\nOf Mamba-2: x.").required();
}

void add_options(OptionSet& set, LinearFlags& words) {
  add_choice(set, "--layout", words.layout,
             named_choices<std::optional<Layout>>({Layout::bshd, Layout::bhsd, Layout::thd}), "LAYOUT",
             "axes of the inputs, bshd by default; thd is packed")
      .recorded_by_command();
  add_reference(set, "--cu-seqlens", words.cu_seqlens,
                "where packed sequences begin; implies --layout thd\n"
                "Inputs are then (tokens, heads, K) or, as fla has them, (1, tokens, heads, K).");
  add_choice(set, "--as", words.library, {{"fla", "fla"}, {"flashinfer", "flashinfer"}, {"mamba", "mamba"}},
             "LIBRARY",
             "the defaults of a library\nfla: ln, kv. flashinfer: linear decays, vk. mamba: scale 1, vk.")
      .recorded();
  add_flag(set, "--delta", words.settings.delta, "the delta rule: u = beta (v - S^T k)").recorded();
  add_word(set, "--scale", words.settings.scale, read_finite, "S", "of the output; by default 1/sqrt(K)")
      .recorded();
  add_flag(set, "--l2norm", words.settings.l2norm, "q and k become x / sqrt(sum x^2 + 1e-6)").recorded();
  add_reference(set, "--skip", words.inputs.skip.emplace(),
                "skip * v is added to out: (heads,) or (heads, V)");
}

void add_gates(OptionSet& set, LinearFlags& words) {
  add_reference(set, "--decay", words.inputs.decay.emplace(),
                "decays g of the state, which becomes e^g S\n"
                "(batch, sequence, heads), with K channels as a last axis, or fixed (heads,).")
      .group(kGatesGroup);
  add_choice(set, "--decay-space", words.space,
             named_choices<std::optional<Space>>({Space::ln, Space::log2, Space::linear}), "SPACE",
             "decays are logarithms (ln, the default; log2) or factors")
      .recorded_by_command()
      .needs("--decay")
      .group(kGatesGroup);
  add_reference(set, "--a-log", words.inputs.a_log.emplace(),
                "A (heads,): decays are raw, g = -e^A softplus(g + bias)")
      .group(kGatesGroup);
  add_reference(set, "--dt-bias", words.inputs.dt_bias.emplace(),
                "the bias of raw decays or of dt: (heads,), or (heads, K)")
      .group(kGatesGroup);
  add_word(set, "--lower-bound", words.settings.lower_bound, read_lower_bound, "L",
           "decays are raw, g = L sigmoid(e^A (g + bias)), L below 0")
      .recorded()
      .excludes("--dt")
      .group(kGatesGroup);
  add_reference(set, "--beta", words.inputs.beta.emplace(),
                "strengths (batch, sequence, heads); by default 1")
      .group(kGatesGroup);
  Option& sigmoid = add_choice(set, "--beta-sigmoid", words.beta_sigmoid, {{"1", 1}, {"2", 2}}, "N",
                               "beta is N sigmoid(BETA), without N of 1")
                        .recorded()
                        .needs("--beta")
                        .group(kGatesGroup);
  sigmoid.when_alone = "1";
  add_reference(set, "--dt", words.inputs.dt.emplace(), "of Mamba-2: g = -e^A dt and beta = dt, with --a-log")
      .needs("--a-log")
      .excludes("--decay, --beta")
      .group(kGatesGroup);
  add_flag(set, "--dt-softplus", words.settings.dt_softplus, "dt is softplus(DT + bias)")
      .recorded()
      .needs("--dt")
      .group(kGatesGroup);
  take_word(
      set, "--dt-limit", [&words](const std::string& word) { words.settings.dt_limit = read_limits(word); },
      "LO,HI", "LO and HI, to which dt is clamped")
      .recorded("",
                [&words]() -> ReportValue {
                  const auto& limit = words.settings.dt_limit;
                  return limit ? ReportValue(fmt::format("{},{}", limit->first, limit->second))
                               : ReportValue();
                })
      .needs("--dt")
      .group(kGatesGroup);
}

void add_states(OptionSet& set, LinearFlags& words, bool of_results) {
  add_reference(set, "--initial-state", words.inputs.initial_state.emplace(),
                of_results ? "states (sequences, heads, K, V), or a pool of slots; by default 0"
                           : "states (sequences, heads, K, V); by default 0")
      .group(kStatesGroup);
  add_choice(set, "--state-layout", words.state_layout,
             named_choices<std::optional<StateLayout>>({StateLayout::kv, StateLayout::vk}), "LAYOUT",
             "the last axes of states, by default kv")
      .recorded_by_command()
      .group(kStatesGroup);
}

void add_chunk_size(OptionSet& set, LinearFlags& words, const char* help) {
  add_word(set, "--chunk-size", words.settings.chunk_size, at_least(1), "C", help)
      .recorded()
      .group(kStatesGroup);
}

void add_forward(OptionSet& set, LinearFlags& words) {
  add_chunk_size(set, words,
                 "tokens of a chunk, 64 by default\nIt changes what --states writes, and rounding.");
  declare_state_slots(set, words.slots);
  add_flag(set, "--states", words.settings.states, "also the state before each chunk: states")
      .recorded()
      .group(kStatesGroup);
  add_dtype(set, "--state-dtype", words.settings.state_dtype,
            "type of states, by default float32; a pool keeps its own\nfloat64 where an input is.",
            float_dtypes())
      .recorded()
      .group(kStatesGroup);
  add_dtype(set, "--dtype", words.settings.dtype,
            "type of out, by default that of Q\nArithmetic is float32, or float64 with a float64 input.",
            float_dtypes())
      .recorded();
}

void add_backward(OptionSet& set, LinearFlags& words) {
  add_chunk_size(set, words, "tokens of a chunk, 64 by default; it changes rounding");
  add_reference(set, "--dfinal-state", words.cotangents.dfinal_state.emplace(),
                "gradient of the final state, shaped as it; by default 0")
      .group(kStatesGroup);
  add_dtype(set, "--grad-dtype", words.grad_dtype,
            "type of all gradients, by default that of each input\n"
            "Arithmetic is float32, or float64 with a float64 input.",
            float_dtypes())
      .recorded();
}

constexpr const char* kProblemKeys = R"(
layout | string | the layout of the inputs
sequences | integer | sequences, of the batch or packed
tokens | integer | tokens of all sequences
state_heads | integer | heads of the state
key_size, value_size | integer | sizes of keys and of values
decay | string | none, fixed, head or channel
decay_space | string | ln, log2 or linear
delta | boolean | whether the delta rule is used
scale | number | the scale of the output
chunk_size, chunks | integer | tokens of a chunk; chunks of all sequences
state_layout | string | kv or vk
arithmetic | string | float32 or float64
)";

constexpr const char* kCheckHelp = "compare with float64, token by token; exit with 1 if it differs too much";

Option& add_weights(OptionSet& set, LinearFlags& words, const std::string& help) {
  return add_choice(set, "--weights", words.factors,
                    named_choices<std::optional<FactorType>>(
                        {FactorType::f32, FactorType::tf32, FactorType::bf16, FactorType::f16}),
                    "TYPE", help);
}

void add_against_options(OptionSet& set, LinearFlags& words) {
  declare_against(set, words.against);
  add_weights(set, words, "type to which MINE's program rounds factors, by default that of 16-bit inputs")
      .needs("--against");
}

// --- ejk audit linear-attention

Outcome run_linear_audit(const LinearFlags& words, const TestFlags& test, Job& job) {
  LinearProblem problem(words, job);
  const LinearAttentionPlan plan =
      naming(buffers_of(problem.in), [&] { return LinearAttentionPlan(problem.types, problem.settings); });
  std::vector<BufferedInput> beside = job.phase(Phase::read, [&] {
    return open_beside(test.words.other, {{"out", plan.out()}, {"final_state", plan.final_state()}}, job);
  });
  std::int64_t peak =
      plan.work_bytes() + problem.bytes_to_buffer() + bytes_to_audit(plan, job.outputs.has_target());
  for (const BufferedInput& input : beside) peak += input.bytes_to_buffer();
  Report head;
  if (job.plan(head, peak)) return Outcome::passed;
  const LinearAttentionArrays arrays = problem.read(job);
  AuditOptions options;
  options.other = job.phase(Phase::read, [&] { return read_beside(test.words.other, beside); });
  return run_audit(test, plan.out().dtype, std::move(options), std::move(head), job,
                   [&](const AuditOptions& how) {
                     return naming(buffers_of(problem.in),
                                   [&] { return audit(arrays, problem.settings, words.factors, how); });
                   });
}

Run declare_linear_audit(OptionSet& set) {
  const auto words = std::make_shared<LinearFlags>();
  const auto test = std::make_shared<TestFlags>();
  add_inputs(set, *words);
  add_options(set, *words);
  add_gates(set, *words);
  add_states(set, *words, false);
  add_dtype(set, "--dtype", words->settings.dtype, "type of the kernel's out, by default that of Q",
            float_dtypes());
  add_weights(set, *words, "type of factors in right kernels");
  declare_test(set, *test);
  return [words, test](Job& job) { return run_linear_audit(*words, *test, job); };
}

Run declare_linear_attention(OptionSet& set) {
  const auto words = std::make_shared<LinearFlags>();
  add_inputs(set, *words);
  add_options(set, *words);
  add_gates(set, *words);
  add_states(set, *words, true);
  add_forward(set, *words);
  add_flag(set, "--check", words->check, kCheckHelp);
  add_against_options(set, *words);
  set_footer(set,
             "For each token S <- e^g S, u = beta v (with --delta beta (v - S^T k)),\n"
             "S <- S + k u^T and out = scale S^T q. n heads serve m by blocks: h uses h n / m.\n"
             "  linear attention  no option           retention, lightning  --decay (heads,)\n"
             "  simple GLA, GLA   --decay             DeltaNet              --delta --beta\n"
             "  Gated DeltaNet    --delta --beta --decay, or raw with --a-log --dt-bias\n"
             "  KDA               the same, decays with channels; safe gates --lower-bound=-5\n"
             "  Mamba-2           C B x --as mamba --dt --a-log --dt-bias --dt-softplus --skip");
  set.set_outputs([words, &set] {
    if (words->against.given() && set.shared().output.empty()) return std::vector<std::string>();
    std::vector<std::string> names{"out", "final_state"};
    if (words->settings.states) names.emplace_back("states");
    return names;
  });
  return [words](Job& job) { return run(*words, job); };
}

Run declare_linear_attention_grad(OptionSet& set) {
  const auto words = std::make_shared<LinearFlags>();
  add_inputs(set, *words);
  add_reference(set, "DOUT", words->cotangents.dout.emplace(), "gradient of the output, shaped as it")
      .required();
  add_options(set, *words);
  add_gates(set, *words);
  add_states(set, *words, false);
  add_backward(set, *words);
  add_flag(set, "--check", words->check, kCheckHelp);
  add_against_options(set, *words);
  set_footer(set,
             "Of the sum of out * DOUT and final_state * DFINAL, with respect to the arrays as\n"
             "they are given: logarithms, factors, raw gates, logits of beta, any keys.");
  set.set_outputs([words, &set] {
    const bool is_compared_alone = words->against.given() && set.shared().output.empty();
    return is_compared_alone ? std::vector<std::string>() : gradients_of(*words);
  });
  return [words](Job& job) { return run_grad(*words, job); };
}

}  // namespace

extern const Command linear_attention_command{
    .name = "linear-attention",
    .group = "Recurrences",
    .summary = "linear attention: Gated DeltaNet, KDA, GLA, Mamba-2 and others",
    .example = "ejk linear-attention q.npy k.npy v.npy --decay g.npy --delta -o out.h5",
    .outputs = {{"out", "the layout of Q, of size V", "scale S^T q of each token, with --skip + skip v"},
                {"final_state", "(sequences, heads, K, V), or the pool", "the state after each sequence"},
                {"states", "(chunks, heads, K, V)", "the state before each chunk, with --states"}},
    .use = R"(with h5py.File("out.h5") as f: out, s = f["out"][()], f["final_state"][()])",
    .keys = joined({kProblemKeys, R"(
out, final_state | shape | the shapes of the results
out_dtype, final_state_dtype | string | their element types
states | shape | the shape of the states before chunks | with --states
forward_time_s | number | seconds of the computation | where it is computed: not with --against alone
instruction_set | string | of the kernels | where it is computed
check | section | the comparison with float64, token by token | with --check
  passed | boolean | whether no element is out of tolerance
  differences | table | the largest differences
    array | string | out or final_state
    size, allowed | number or null | the difference without the rounding of the type; its tolerance
    index | shape | sequence, head and token of out; sequence and head of final_state
)",
                    kAgainstKeys, kAgainstPartsKeys, R"(
  not_given | string | results that were not given | where one was not given
  agrees_with | string | the type of factors with which it agrees | with --explain, where it was found
)"}),
    .declare = declare_linear_attention,
};

extern const Command audit_linear_attention_command{
    .name = "audit linear-attention",
    .summary = "of a test of linear attention",
    .example = "ejk audit linear-attention q.npy k.npy v.npy --decay g.npy --tolerance fla",
    .outputs = {{"expected.NAME", "the shapes of out and final_state", "the right results"},
                {"FAULT.NAME", "the same", "of a kernel with that fault; FAULT-2 is its second variant"}},
    .declare = declare_linear_audit,
};

extern const Command linear_attention_grad_command{
    .name = "linear-attention-grad",
    .group = "Recurrences",
    .summary = "the gradients of linear attention's inputs",
    .example = "ejk linear-attention-grad q.npy k.npy v.npy dout.npy --decay g.npy -o grads.h5",
    .outputs = {{"dq", "the shape of Q", "the gradient of queries"},
                {"dk, dv", "the shapes of K and V", "of keys and values, summed over heads that share them"},
                {"ddecay, dbeta, ddt", "the shapes of the inputs", "of gates that are given"},
                {"da_log, ddt_bias", "the shapes of the inputs", "of their parameters"},
                {"dskip", "the shape of --skip", "of skip"},
                {"dinitial_state", "the shape of --initial-state", "of the initial states"}},
    .use = R"(with h5py.File("grads.h5") as f: dq = f["dq"][()])",
    .keys = joined({kProblemKeys, R"(
dq, dk, dv | shape | the shapes of the gradients
dq_dtype, dk_dtype, dv_dtype | string | their element types
ddecay, dbeta, ddt, da_log, ddt_bias, dskip, dinitial_state | shape | of inputs that are given | with the input
ddecay_dtype, dbeta_dtype, ddt_dtype, da_log_dtype | string | their element types | with the input
ddt_bias_dtype, dskip_dtype, dinitial_state_dtype | string | their element types | with the input
backward_time_s | number | seconds of the computation | where it is computed: not with --against alone
instruction_set | string | of the kernels | where it is computed: not with --against alone
check | section | the comparison with float64, token by token | with --check
  passed | boolean | whether no element is out of tolerance
  differences | table | the largest difference of each gradient
    array | string | dq, or another gradient
    size, allowed | number or null | the difference without the rounding of the type; its tolerance
    index | shape | its element
)",
                    kAgainstKeys, kAgainstPartsKeys, R"(
  not_given | string | results that were not given | where one was not given
)"}),
    .declare = declare_linear_attention_grad,
};

}  // namespace ejk::app
