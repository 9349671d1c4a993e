// Texts begin as the causes of the catalogue (audit/catalogue.cpp), where each has its public threads.
// tests: tests/verdict/recurrence/test_linear.cpp
#include "verdict/recurrence/linear_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <utility>

#include "compare/float_type.hpp"
#include "core/elements.hpp"
#include "recurrence/linear_rows.hpp"

namespace ejk::recurrence_verdict {

namespace {

using recurrence::DecayKind;
using recurrence::LinearInputs;
using recurrence::LinearPlan;
using recurrence::Sequence;
using Change = std::function<void(HeadProblem&)>;
using PlacedChange = std::function<void(HeadProblem&, std::int64_t sequence, std::int64_t head)>;
using Reads = std::function<void(LinearPlan&, LinearInputs&)>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

ArrayView head_of(ArrayView array, std::int64_t head) {
  array.data += head * array.strides[1];
  array.shape[1] = 1;
  return array;
}

void multiply(std::vector<double>& numbers, double factor) {
  for (double& x : numbers) x *= factor;
}

// (K, V) read as (V, K), of K = V.
void transpose_state(std::vector<double>& state, std::int64_t size) {
  for (std::int64_t d = 0; d < size; ++d)
    for (std::int64_t c = 0; c < d; ++c)
      std::swap(state[static_cast<std::size_t>(d * size + c)], state[static_cast<std::size_t>(c * size + d)]);
}

// The state before each `size` tokens is 0.
HeadResult solve_with_resets(const HeadProblem& p, std::int64_t size) {
  HeadResult all{std::vector<double>(static_cast<std::size_t>(p.heads * p.tokens * p.values)), p.state};
  for (std::int64_t begin = 0; begin < p.tokens; begin += size) {
    const std::int64_t end = std::min(p.tokens, begin + size);
    const HeadResult one =
        solve(part_of(p, begin, end, begin == 0 ? p.state : std::vector<double>(p.state.size())));
    for (std::int64_t h = 0; h < p.heads; ++h)
      std::copy_n(one.out.begin() + h * (end - begin) * p.values, (end - begin) * p.values,
                  all.out.begin() + (h * p.tokens + begin) * p.values);
    all.state = one.state;
  }
  return all;
}

class Faults {
 public:
  Faults(const LinearPlan& plan, const LinearInputs& inputs, const LinearTruth& truth)
      : plan_(plan),
        in_(inputs),
        truth_(truth),
        right_(std::make_shared<LinearSource>(LinearSource{plan, inputs})) {}

  std::vector<LinearFault> take() { return std::move(all_); }

  // fla-org/flash-linear-attention#1184, pytorch/torchtitan#3892
  void of_boundaries(const std::vector<std::int64_t>& bad) {
    if (plan_.sequences.size() < 2) return;
    if (bad.size() == 1 && bad[0] > 0) add_carried_into(bad[0]);
    add_carried(plan_.settings.layout == LinearAttentionLayout::thd
                    ? "the state of each sequence runs on into the next: cu_seqlens is ignored"
                    : "the state of each entry of the batch runs on into the next");
    if (plan_.settings.layout != LinearAttentionLayout::thd) return;
    for (const std::int64_t step : {1, -1})
      reread("boundary", fmt::format("sequences begin one token {}", step > 0 ? "late" : "early"),
             [step](LinearPlan& plan, LinearInputs&) { shift_boundaries(plan, step); });
  }

  // vllm-project/vllm#23279, fla-org/flash-linear-attention#1142, NVlabs/GatedDeltaNet#13 and #15
  void of_chunks() {
    std::int64_t longest = 0;
    for (const Sequence& sequence : plan_.sequences) longest = std::max(longest, sequence.length);
    for (const std::int64_t size : {64, 128, 256, 32, 16}) {
      if (size < longest)
        solved("chunk", fmt::format("the state is lost at every chunk of {} tokens", size),
               [size](const HeadProblem& p) { return solve_with_resets(p, size); });
      if (size >= 32) add_partial_chunks(size, longest);
    }
    if (in_.gate)
      for (const std::int64_t size : {64, 128, 256})
        if (size == 64 || size < longest) add_steps_of_chunks(size);
    if (!plan_.settings.delta) return;
    stepped("chunk", "the triangular system of a chunk is not solved: its matrix is for the inverse",
            {LinearStep::lower_for_inverse});
    stepped("chunk", "the triangular system of a chunk is not solved: 1 - A is for the inverse of 1 + A",
            {LinearStep::first_order});
  }

  // sgl-project/sglang#30860 and #31904, flashinfer-ai/flashinfer#2490
  void of_decays() {
    if (!in_.gate) return;
    changed("decay", "decays are missing", [](HeadProblem& p) { p.gates.clear(); });
    changed("decay", "decays are applied twice", [](HeadProblem& p) { multiply(p.gates, 2); });
    changed("decay", "2 to the decay is taken for e to the decay",
            [](HeadProblem& p) { multiply(p.gates, std::numbers::ln2); });
    changed("decay", "logarithms of decays are divided by ln 2",
            [](HeadProblem& p) { multiply(p.gates, 1 / std::numbers::ln2); });
    if (plan_.settings.decay_space == DecaySpace::linear)
      changed("decay", "factors and logarithms are exchanged: factors are taken for logarithms",
              [](HeadProblem& p) {
                for (double& g : p.gates) g = std::exp(g);
              });
    else
      stepped("decay", "factors and logarithms are exchanged: the exponential is missing",
              {LinearStep::factors});
    if (plan_.settings.delta)
      stepped("decay", "the decay comes after the error is computed", {LinearStep::error_before_decay});
    stepped("decay", "the decay comes after the update of the state", {LinearStep::decay_last});
    if (plan_.decay != DecayKind::fixed) {
      add_shifted_decays("each token has the decay of the next one", 1);
      add_shifted_decays("each token has the decay of the one before", -1);
    }
    if (in_.gate->shape[1] > 1)
      placed("decay", "all heads have the decays of head 0",
             [this](HeadProblem& p, std::int64_t n, std::int64_t) {
               p.gates = load_head(plan_, in_, n, 0, p.tokens).gates;
             });
    if (plan_.decay == DecayKind::channel && plan_.key_size == plan_.value_size)
      stepped("decay", "decays are along the values and not the keys", {LinearStep::decay_of_values});
    of_raw_gates();
  }

  // ml-explore/mlx-lm#1153, modular/modular#5748, state-spaces/mamba#845
  void of_raw_gates() {
    if (!plan_.is_raw && !plan_.has_dt) return;
    if (std::any_of(in_.rate.begin(), in_.rate.end(), [](double rate) { return rate != 1; }))
      reread("decay", "A_log is taken for its exponential", [](LinearPlan&, LinearInputs& in) {
        for (double& rate : in.rate) rate = std::log(rate);
      });
    if (std::any_of(in_.bias.begin(), in_.bias.end(), [](double bias) { return bias != 0; })) {
      reread("decay", "dt_bias is missing", [](LinearPlan&, LinearInputs& in) { multiply(in.bias, 0); });
      reread("decay", "dt_bias is added twice", [](LinearPlan&, LinearInputs& in) { multiply(in.bias, 2); });
    }
    if (plan_.has_dt && plan_.settings.dt_softplus)
      reread("decay", "the softplus of dt is missing",
             [](LinearPlan& plan, LinearInputs&) { plan.settings.dt_softplus = false; });
    if (plan_.has_dt && plan_.settings.dt_limit)
      reread("decay", "dt is not clamped",
             [](LinearPlan& plan, LinearInputs&) { plan.settings.dt_limit.reset(); });
    if (plan_.is_raw && !plan_.settings.lower_bound) add_without_softplus();
  }

  // fla-org/flash-linear-attention#919, sgl-project/sglang#38975
  void of_strengths() {
    if (plan_.has_dt) {
      changed("operands", "dt is not multiplied into the values",
              [](HeadProblem& p) { std::fill(p.beta.begin(), p.beta.end(), 1.0); });
      changed("operands", "dt is multiplied into the values twice", [](HeadProblem& p) {
        for (double& beta : p.beta) beta *= beta;
      });
    } else if (in_.beta) {
      changed("beta", "beta is missing",
              [](HeadProblem& p) { std::fill(p.beta.begin(), p.beta.end(), 1.0); });
      changed("beta", "beta is applied twice", [](HeadProblem& p) {
        for (double& beta : p.beta) beta *= beta;
      });
      if (plan_.settings.delta)
        stepped("beta", "beta is on the values alone, and not on what is subtracted",
                {LinearStep::beta_on_values});
      if (plan_.settings.beta_sigmoid)
        reread("beta", "the sigmoid of beta is missing",
               [](LinearPlan& plan, LinearInputs&) { plan.settings.beta_sigmoid.reset(); });
      if (plan_.settings.beta_sigmoid)
        reread("beta", "the sigmoid of beta has another factor", [](LinearPlan& plan, LinearInputs&) {
          plan.settings.beta_sigmoid = 3 - *plan.settings.beta_sigmoid;
        });
      changed("beta", "the sigmoid of beta is taken once more", [](HeadProblem& p) {
        for (double& beta : p.beta) beta = sigmoid(beta);
      });
      changed("beta", "beta is rounded to bfloat16", [](HeadProblem& p) {
        const verify::Rounding round = verify::rounding_to(DType::bfloat16);
        for (double& beta : p.beta) beta = round(beta);
      }).is_subtle = true;
    }
    changed("delta",
            plan_.settings.delta ? "the correction of the delta rule is missing"
                                 : "the correction of the delta rule is made, and there should be none",
            [](HeadProblem& p) { p.delta = !p.delta; });
  }

  // fla-org/flash-linear-attention#47, lm-engine#496
  void of_out() {
    const double scale = plan_.scale, of_values = 1 / std::sqrt(static_cast<double>(plan_.value_size)),
                 usual = 1 / std::sqrt(static_cast<double>(plan_.key_size));
    const auto scaled = [&](const char* text, double factor) {
      if (std::isfinite(factor) && std::abs(factor - 1) > 1e-9)
        changed("scale", text, [factor](HeadProblem& p) { multiply(p.q, factor); });
    };
    scaled("the scale of the output is missing", 1 / scale);
    scaled("the scale of the output is applied twice", scale);
    scaled("the scale of the output is 1/sqrt(K), and should not be", usual / scale);
    if (plan_.value_size != plan_.key_size)
      scaled("the scale of the output is that of the values' size", of_values / scale);
    stepped("order", "the output is that of the state before its update", {LinearStep::out_before_update});
    if (in_.gate)
      stepped("order", "the output is that of the state before its decay", {LinearStep::out_before_decay});
    if (!in_.skip.empty()) changed("operands", "the skip is missing", [](HeadProblem& p) { p.skip.clear(); });
    if (in_.q.shape[1] <= in_.k.shape[1])
      reread("operands", "queries and keys are exchanged",
             [](LinearPlan&, LinearInputs& in) { std::swap(in.q, in.k); });
  }

  // flashinfer-ai/flashinfer#5255, huggingface/transformers#40842
  void of_norms() {
    if (!plan_.settings.l2norm) {
      changed("norm", "queries and keys are normalised, and should not be",
              [this](HeadProblem& p) { normalize(p.k, 1, 1e-6), normalize(p.q, plan_.scale, 1e-6); });
      return;
    }
    const auto bare = [](LinearPlan& plan, LinearInputs&) { plan.settings.l2norm = false; };
    reread("norm", "not normalised: queries and keys", bare);
    reread("norm", "not normalised: queries", bare, [this](HeadProblem& p) { normalize(p.k, 1, 1e-6); });
    reread("norm", "not normalised: keys", bare,
           [this](HeadProblem& p) { normalize(p.q, plan_.scale, 1e-6); });
    for (const double epsilon : {0.0, 1e-12, 1e-5, 1e-3})
      reread("norm", fmt::format("the norm has another epsilon, {:g}", epsilon), bare,
             [this, epsilon](HeadProblem& p) {
               normalize(p.k, 1, epsilon), normalize(p.q, plan_.scale, epsilon);
             });
  }

  // ggml-org/llama.cpp#21732
  void of_heads() {
    const std::int64_t heads = plan_.state_heads;
    const auto add = [&](const char* name, const ArrayView& array, std::int64_t all,
                         const std::function<void(LinearInputs&, std::int64_t head)>& set) {
      if (array.shape[1] == 1 || array.shape[1] == all) return;
      all_.push_back({"heads", fmt::format("heads are taken modulo, and not by blocks: {}", name), right_,
                      [this, set](std::int64_t n, std::int64_t head, std::int64_t tokens) {
                        LinearInputs in = in_;
                        set(in, head);
                        return recurrence_verdict::solve(load_head(plan_, in, n, head, tokens));
                      }});
    };
    const auto keys = [](LinearInputs& in, std::int64_t head) { in.k = head_of(in.k, head % in.k.shape[1]); };
    const auto values = [](LinearInputs& in, std::int64_t head) {
      in.v = head_of(in.v, head % in.v.shape[1]);
    };
    add("keys", in_.k, heads, keys);
    add("values", in_.v, heads, values);
    if (heads == plan_.out_heads && in_.q.shape[1] < heads) {
      const auto queries = [](LinearInputs& in, std::int64_t head) {
        in.q = head_of(in.q, head % in.q.shape[1]);
      };
      add("queries", in_.q, heads, queries);
      if (in_.k.shape[1] == in_.q.shape[1])
        add("queries and keys", in_.k, heads,
            [=](LinearInputs& in, std::int64_t head) { keys(in, head), queries(in, head); });
    }
    const auto gates = [](LinearInputs& in, std::int64_t head) {
      if (in.gate) in.gate = head_of(*in.gate, head % in.gate->shape[1]);
    };
    const auto strengths = [](LinearInputs& in, std::int64_t head) {
      if (in.beta) in.beta = head_of(*in.beta, head % in.beta->shape[1]);
    };
    if (in_.gate) add("decays", *in_.gate, heads, gates);
    if (in_.beta) add("beta", *in_.beta, heads, strengths);
    const ArrayView& fewest = in_.k.shape[1] < in_.v.shape[1] ? in_.k : in_.v;
    add("all arrays", fewest, heads, [=](LinearInputs& in, std::int64_t head) {
      keys(in, head), values(in, head), gates(in, head), strengths(in, head);
    });
    if (heads < plan_.out_heads && heads > 1) add_states_modulo();
  }

  // fla-org/flash-linear-attention#776, sgl-project/sglang#20283, huggingface/transformers#45513
  void of_states() {
    const bool is_square = plan_.key_size == plan_.value_size;
    const std::int64_t keys = plan_.key_size;
    if (in_.initial_state) {
      if (has_empty())
        solved("empty", "the final state of an empty sequence is 0, and not its initial one",
               [](const HeadProblem& p) {
                 HeadResult result = recurrence_verdict::solve(p);
                 if (p.tokens == 0) std::fill(result.state.begin(), result.state.end(), 0.0);
                 return result;
               });
      changed("state", "the initial state is dropped",
              [](HeadProblem& p) { std::fill(p.state.begin(), p.state.end(), 0.0); });
      if (is_square)
        changed("state", "the initial state is read transposed",
                [keys](HeadProblem& p) { transpose_state(p.state, keys); });
      add_other_states();
      solved("state", "the final state is the initial one: it is not written", [](const HeadProblem& p) {
        return HeadResult{recurrence_verdict::solve(p).out, p.state};
      });
    }
    if (is_square)
      solved("state", "the final state is transposed", [keys](const HeadProblem& p) {
        HeadResult result = recurrence_verdict::solve(p);
        transpose_state(result.state, keys);
        return result;
      });
    if (is_square && in_.initial_state) {
      const bool is_kv = plan_.settings.state_layout == StateLayout::kv;
      solved("state",
             fmt::format("the initial state is read transposed, the final one written so: the layout is {}",
                         is_kv ? "vk" : "kv"),
             [keys](HeadProblem p) {
               transpose_state(p.state, keys);
               HeadResult result = recurrence_verdict::solve(p);
               transpose_state(result.state, keys);
               return result;
             });
    }
    solved("state", "the final state lacks the last token", [](const HeadProblem& p) {
      HeadResult result = recurrence_verdict::solve(p);
      if (p.tokens > 0) result.state = recurrence_verdict::solve(part_of(p, 0, p.tokens - 1, p.state)).state;
      return result;
    });
    for (const DType dtype : {DType::bfloat16, DType::float16})
      stepped("state", fmt::format("the state is rounded to {} after each token", name_of(dtype)),
              {LinearStep::rounded_state, 64, dtype})
          .is_subtle = true;
  }

  // vllm-project/vllm#53142, #55600 and #39064
  void of_slots() {
    if (!plan_.settings.slots.read) return;
    const std::int64_t slots = plan_.final_state.shape[0];
    if (plan_.settings.slots.has_initial_state)
      reread("slots", "a stale slot is read: has-initial-state is ignored",
             [slots](LinearPlan& plan, LinearInputs&) {
               StateSlots given = plan.settings.slots;
               given.has_initial_state = {};
               plan.slots = recurrence::slots_of(given, std::ssize(plan.sequences), slots);
             });
    const auto moved = [&](const std::string& text, const auto& slot_of) {
      reread("slots", text, [slot_of, slots](LinearPlan& plan, LinearInputs&) {
        for (std::size_t n = 0; n < plan.slots.size(); ++n) {
          recurrence::Slot& slot = plan.slots[n];
          for (std::int64_t* index : {&slot.read, &slot.write})
            if (*index >= 0) *index = slot_of(static_cast<std::int64_t>(n), *index) % slots;
        }
      });
    };
    if (slots >= std::ssize(plan_.sequences))
      moved("another slot: the number of the sequence",
            [](std::int64_t sequence, std::int64_t) { return sequence; });
    moved("another slot: the next one", [](std::int64_t, std::int64_t slot) { return slot + 1; });
    moved("another slot: the one before",
          [slots](std::int64_t, std::int64_t slot) { return slot + slots - 1; });
    if (plan_.settings.slots.write)
      reread("slots", "another slot: states are written where they were read",
             [](LinearPlan& plan, LinearInputs&) {
               for (recurrence::Slot& slot : plan.slots)
                 if (slot.read >= 0 && slot.write >= 0) slot.write = slot.read;
             });
    if (std::any_of(plan_.slots.begin(), plan_.slots.end(), [](const auto& slot) { return slot.is_padding; }))
      for (const std::int64_t slot : {std::int64_t{-1}, slots - 1, std::int64_t{0}})
        reread("slots",
               slot < 0 ? "padding is computed"
                        : fmt::format("padding is computed and written, to slot {}", slot),
               [slot](LinearPlan& plan, LinearInputs&) {
                 for (recurrence::Slot& one : plan.slots)
                   if (one.is_padding) one = {slot, slot, false};
               });
  }

 private:
  LinearFault& add(std::string kind, std::string text, std::shared_ptr<const LinearSource> source,
                   const Change& change, LinearSteps steps) {
    const LinearSource& from = *source;
    all_.push_back({std::move(kind), std::move(text), std::move(source),
                    [&from, change, steps](std::int64_t n, std::int64_t head, std::int64_t tokens) {
                      HeadProblem p = load_head(from.plan, from.inputs, n, head, tokens);
                      if (change) change(p);
                      return recurrence_verdict::solve(p, steps);
                    }});
    return all_.back();
  }
  LinearFault& changed(std::string kind, std::string text, const Change& change) {
    return add(std::move(kind), std::move(text), right_, change, {});
  }
  LinearFault& stepped(std::string kind, std::string text, LinearSteps steps) {
    return add(std::move(kind), std::move(text), right_, {}, steps);
  }
  LinearFault& reread(std::string kind, std::string text, const Reads& reads, const Change& change = {}) {
    auto source = std::make_shared<LinearSource>(*right_);
    reads(source->plan, source->inputs);
    return add(std::move(kind), std::move(text), source, change, {});
  }
  LinearFault& solved(std::string kind, std::string text,
                      const std::function<HeadResult(const HeadProblem&)>& solve) {
    all_.push_back({std::move(kind), std::move(text), right_,
                    [this, solve](std::int64_t n, std::int64_t head, std::int64_t tokens) {
                      return solve(load_head(plan_, in_, n, head, tokens));
                    }});
    return all_.back();
  }

  // A change that depends on the sequence and the head.
  LinearFault& placed(std::string kind, std::string text, const PlacedChange& change) {
    all_.push_back({std::move(kind), std::move(text), right_,
                    [this, change](std::int64_t n, std::int64_t head, std::int64_t tokens) {
                      HeadProblem p = load_head(plan_, in_, n, head, tokens);
                      change(p, n, head);
                      return recurrence_verdict::solve(p);
                    }});
    return all_.back();
  }

  std::vector<double> final_state_of(std::int64_t sequence, std::int64_t head) const {
    return recurrence_verdict::solve(load_head(plan_, in_, sequence, head)).state;
  }

  void add_carried_into(std::int64_t sequence) {
    placed("boundary",
           fmt::format("the state of sequence {} runs on into sequence {}", sequence - 1, sequence),
           [this](HeadProblem& p, std::int64_t n, std::int64_t head) {
             if (n > 0) p.state = final_state_of(n - 1, head);
           })
        .sequence = sequence;
  }

  // The final states of a head's sequences as they are carried on, computed in order and kept.
  struct Carried {
    std::mutex adding;
    std::map<std::int64_t, std::vector<std::vector<double>>> states;  // by head, of sequences 0 to n
  };

  void add_carried(std::string text) {
    placed("boundary", std::move(text),
           [this, carried = std::make_shared<Carried>()](HeadProblem& p, std::int64_t n, std::int64_t head) {
             if (n == 0) return;
             const std::scoped_lock lock(carried->adding);
             std::vector<std::vector<double>>& states = carried->states[head];
             for (auto before = std::ssize(states); before < n; ++before) {
               HeadProblem one = load_head(plan_, in_, before, head);
               if (before > 0) one.state = states.back();
               states.push_back(recurrence_verdict::solve(one).state);
             }
             p.state = states[static_cast<std::size_t>(n - 1)];
           });
  }

  // Logarithms of decays of tokens of a row, of whatever sequences.
  std::vector<double> gates_of_row(std::int64_t entry, std::int64_t begin, std::int64_t end,
                                   std::int64_t head) const {
    const std::int64_t count = std::max<std::int64_t>(0, end - begin);
    std::vector<double> gates(static_cast<std::size_t>(count * plan_.decay_width())),
        beta(static_cast<std::size_t>(count));
    recurrence::LinearRows<double> rows(plan_, in_);
    rows.select({entry, begin, count}, head);
    rows.gates(0, count, gates.data(), beta.data());
    return gates;
  }
  std::vector<double> decays_between(std::int64_t entry, std::int64_t begin, std::int64_t end,
                                     std::int64_t head) const {
    const std::vector<double> gates = gates_of_row(entry, begin, end, head);
    std::vector<double> sums(static_cast<std::size_t>(plan_.decay_width()));
    for (std::size_t i = 0; i < gates.size(); ++i) sums[i % sums.size()] += gates[i];
    return sums;
  }

  // Of the row: the last token of a sequence has the decay of the next one. Outside of the row there is none.
  void add_shifted_decays(const char* text, std::int64_t step) {
    placed("decay", text, [this, step](HeadProblem& p, std::int64_t n, std::int64_t head) {
      const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
      const std::int64_t begin = s.begin + step;
      const std::vector<double> gates = gates_of_row(s.entry, std::max<std::int64_t>(begin, 0),
                                                     std::min(begin + p.tokens, truth_.tokens), head);
      std::fill(p.gates.begin(), p.gates.end(), 0.0);
      std::copy(gates.begin(), gates.end(), p.gates.begin() + (begin < 0 ? p.width : 0));
    });
  }

  static void shift_boundaries(LinearPlan& plan, std::int64_t step) {
    for (std::size_t n = 1; n < plan.sequences.size(); ++n)
      plan.sequences[n].begin = std::clamp<std::int64_t>(plan.sequences[n].begin + step, 0, plan.tokens);
    for (std::size_t n = 0; n < plan.sequences.size(); ++n) {
      const std::int64_t end = n + 1 < plan.sequences.size() ? plan.sequences[n + 1].begin : plan.tokens;
      plan.sequences[n].length = end - plan.sequences[n].begin;
    }
  }

  bool has_empty() const {
    return std::any_of(plan_.sequences.begin(), plan_.sequences.end(),
                       [](const Sequence& s) { return s.length == 0; });
  }
  bool has_tail(std::int64_t size) const {
    return std::any_of(plan_.sequences.begin(), plan_.sequences.end(),
                       [size](const Sequence& s) { return s.length % size > 0; });
  }
  // Whether the last chunk of a sequence is followed by tokens of its row.
  bool has_tokens_behind(std::int64_t size) const {
    return std::any_of(plan_.sequences.begin(), plan_.sequences.end(), [&](const Sequence& s) {
      return s.length % size > 0 && s.begin + s.length < truth_.tokens;
    });
  }

  // The first and the last chunk of a sequence: tokens of others that share them, and tokens that are lost.
  void add_partial_chunks(std::int64_t size, std::int64_t longest) {
    const auto decay = [](std::vector<double>& state, const std::vector<double>& sums) {
      const std::size_t row = state.size() / (sums.size() == 1 ? 1 : sums.size());
      for (std::size_t i = 0; i < state.size(); ++i) state[i] *= std::exp(sums[i / row]);
    };
    const bool has_row = in_.gate && plan_.decay != DecayKind::fixed;
    if (has_row && in_.initial_state && plan_.sequences.size() > 1)
      placed(
          "chunk",
          fmt::format("chunks of {} tokens are those of the packed row: decays count from their begin", size),
          [=, this](HeadProblem& p, std::int64_t n, std::int64_t head) {
            const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
            decay(p.state, decays_between(s.entry, s.begin / size * size, s.begin, head));
          });
    if (size <= longest && has_tail(size))
      solved("chunk", fmt::format("the tokens after whole chunks of {} are lost", size),
             [size](const HeadProblem& p) {
               HeadResult result = recurrence_verdict::solve(p);
               result.state = recurrence_verdict::solve(part_of(p, 0, p.tokens / size * size, p.state)).state;
               return result;
             });
    if (!has_row || !has_tokens_behind(size) || (size > 2 * longest && size > 64)) return;
    all_.push_back(
        {"chunk", fmt::format("decays behind the last token of a chunk of {} are applied to the state", size),
         right_, [=, this](std::int64_t n, std::int64_t head, std::int64_t tokens) {
           const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
           HeadResult result = recurrence_verdict::solve(load_head(plan_, in_, n, head, tokens));
           const std::int64_t end = s.begin + (s.length + size - 1) / size * size;
           decay(result.state,
                 decays_between(s.entry, s.begin + s.length, std::min(truth_.tokens, end), head));
           return result;
         }});
  }

  void add_steps_of_chunks(std::int64_t size) {
    const auto add_step = [&](const char* text, LinearStep step) {
      stepped("chunk", fmt::format("{} in a chunk of {}", text, size), {step, size});
    };
    add_step("scores have no decay between tokens", LinearStep::mask_for_scores);
    if (!plan_.settings.delta) return;
    add_step("scores of keys have no decay between tokens", LinearStep::mask_for_keys);
    add_step("scores of keys and of queries have no decay between tokens", LinearStep::mask_for_both);
    add_step("what is subtracted of the state has no decay from the first token", LinearStep::plain_w);
  }

  // −e^A (G + bias) in the place of −e^A softplus(G + bias).
  void add_without_softplus() {
    placed("decay", "the softplus of decays is missing",
           [this](HeadProblem& p, std::int64_t, std::int64_t head) {
             const double rate = in_.rate[static_cast<std::size_t>(head)];
             for (double& g : p.gates) g = -rate * std::log(std::expm1(-g / rate));
           });
  }

  void normalize(std::vector<double>& rows, double scale, double epsilon) const {
    const std::int64_t size = plan_.key_size;
    for (auto row = rows.begin(); row != rows.end(); row += size) {
      double squares = 0;
      for (auto x = row; x != row + size; ++x) squares += *x / scale * (*x / scale);
      const double factor = 1 / std::sqrt(squares + epsilon);
      for (auto x = row; x != row + size; ++x) *x *= squares > 0 ? factor : 1;
    }
  }

  // Grouped queries: output head h reads state h mod HS.
  void add_states_modulo() {
    all_.push_back(
        {"heads", "heads are taken modulo, and not by blocks: states", right_,
         [this](std::int64_t n, std::int64_t head, std::int64_t tokens) {
           const HeadProblem own = load_head(plan_, in_, n, head, tokens);
           HeadResult result = recurrence_verdict::solve(own);
           for (std::int64_t h = 0; h < own.heads; ++h) {
             HeadProblem p = load_head(plan_, in_, n, (head * own.heads + h) % plan_.state_heads, tokens);
             p.q = own.q, p.skip = own.skip;
             const HeadResult other = recurrence_verdict::solve(p);
             const auto rows = h * own.tokens * own.values;
             std::copy_n(other.out.begin() + rows, own.tokens * own.values, result.out.begin() + rows);
           }
           return result;
         }});
  }

  // Initial states of other sequences or heads.
  void add_other_states() {
    const std::int64_t sequences = std::ssize(plan_.sequences), heads = in_.initial_state->shape[1];
    const auto from = [&](const char* text, const std::function<std::int64_t(std::int64_t)>& slot) {
      reread("state", text, [slot](LinearPlan& plan, LinearInputs&) {
        for (recurrence::Slot& one : plan.slots)
          if (one.read >= 0) one.read = slot(one.read);
      });
    };
    if (sequences > 1 && !plan_.settings.slots.read) {
      from("initial states are in the reverse order", [=](std::int64_t n) { return sequences - 1 - n; });
      from("every sequence begins with the initial state of sequence 0", [](std::int64_t) { return 0; });
      from("every sequence begins with the initial state of the next",
           [=](std::int64_t n) { return (n + 1) % sequences; });
    }
    if (heads > 1)
      reread("state", "all heads begin with the initial state of head 0",
             [](LinearPlan&, LinearInputs& in) { in.initial_state = head_of(*in.initial_state, 0); });
  }

  const LinearPlan& plan_;
  const LinearInputs& in_;
  const LinearTruth& truth_;
  std::shared_ptr<const LinearSource> right_;
  std::vector<LinearFault> all_;
};

}  // namespace

std::vector<LinearFault> linear_faults(const LinearPlan& plan, const LinearInputs& inputs,
                                       const LinearTruth& truth, const std::vector<std::int64_t>& bad) {
  const auto faults = std::make_shared<Faults>(plan, inputs, truth);
  faults->of_boundaries(bad);
  faults->of_decays();
  faults->of_strengths();
  faults->of_out();
  faults->of_norms();
  faults->of_heads();
  faults->of_states();
  faults->of_slots();
  faults->of_chunks();
  std::vector<LinearFault> all = faults->take();
  for (LinearFault& fault : all) fault.owner = faults;
  return all;
}

std::int64_t sequence_at(const LinearPlan& plan, std::int64_t entry, std::int64_t token) {
  const auto after =
      std::upper_bound(plan.sequences.begin(), plan.sequences.end(), std::pair(entry, token),
                       [](const auto& at, const Sequence& s) { return at < std::pair(s.entry, s.begin); });
  return after - plan.sequences.begin() - 1;
}

FaultyResult::FaultyResult(const LinearFault& fault)
    : fault_(fault),
      plan_(fault.source->plan),
      shared_(plan_.out_heads / plan_.state_heads),
      cells_(plan_.sequences.size() * static_cast<std::size_t>(plan_.state_heads)),
      writers_(writers_of(plan_)) {}

double FaultyResult::out(std::int64_t entry, std::int64_t token, std::int64_t head, Columns columns,
                         double* values) {
  const std::int64_t n = sequence_at(plan_, entry, token);
  if (fault_.sequence >= 0 && n != fault_.sequence) return -1;
  if (plan_.slots[static_cast<std::size_t>(n)].is_padding) {
    std::fill_n(values, columns.size(), 0.0);
    return 0;
  }
  const Sequence& s = plan_.sequences[static_cast<std::size_t>(n)];
  const Cell& cell = cell_of(n, head / shared_);
  const double* const row =
      cell.result.out.data() + ((head % shared_) * s.length + token - s.begin) * plan_.value_size;
  for (std::size_t c = 0; c < columns.size(); ++c) values[c] = row[columns[c]];
  return cell.largest;
}

double FaultyResult::state(std::int64_t slot, std::int64_t head, std::int64_t row, Columns columns,
                           double* values) {
  const std::int64_t n = writers_[static_cast<std::size_t>(slot)];
  if (fault_.sequence >= 0 && n != fault_.sequence) return -1;
  std::vector<double> whole(static_cast<std::size_t>(plan_.value_size));
  if (n < 0) {
    const ArrayView& pool = *fault_.source->inputs.initial_state;
    core::load(pool.dtype,
               pool.data + slot * pool.strides[0] +
                   head * pool.shape[1] / plan_.state_heads * pool.strides[1] + row * pool.strides[2],
               pool.strides[3], plan_.value_size, whole.data());
  } else {
    std::copy_n(cell_of(n, head).result.state.begin() + row * plan_.value_size, plan_.value_size,
                whole.begin());
  }
  for (std::size_t c = 0; c < columns.size(); ++c) values[c] = whole[static_cast<std::size_t>(columns[c])];
  return n < 0 ? 0 : cell_of(n, head).largest_state;
}

const FaultyResult::Cell& FaultyResult::cell_of(std::int64_t sequence, std::int64_t head) {
  Cell& cell = cells_[static_cast<std::size_t>(sequence * plan_.state_heads + head)];
  std::call_once(cell.computed, [&] {
    cell.result = fault_.solve(sequence, head, kAllTokens);
    cell.largest = largest_of(cell.result.out);
    cell.largest_state = largest_of(cell.result.state);
  });
  return cell;
}

}  // namespace ejk::recurrence_verdict
