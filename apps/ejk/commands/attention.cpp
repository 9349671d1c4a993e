// ejk attention, attention-grad: the reference that attention kernels are compared with, forward and
// backward.
//
// tests: tests/cli/attention/, tests/cli/attention-grad/
#include "ejk/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "commands.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/machine.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

// One reference for queries and one for keys; the second may be left out.
struct TwoReferences {
  std::string q, kv;
};

struct AttentionWords {
  std::string q, k, v;
  MaskOptions masks;
  TwoReferences cu_seqlens, segment_ids;
  std::optional<double> scale, softcap;
  std::string bias;
  std::optional<AttentionLayout> layout;
  std::optional<BlockShape> block;
  std::optional<DType> dtype;
  bool check = false;
};

struct GradientWords : AttentionWords {
  std::string dout, out, lse;
  std::optional<DType> grad_dtype;
};

std::int64_t bytes_of(const ArraySource& source) { return byte_count(source.shape(), source.dtype()); }

// An array as its header describes it.
ArrayView header_of(const ArraySource& source) {
  return {nullptr, source.dtype(), source.shape(), c_strides(source.shape(), source.dtype())};
}

// An input, and its elements once they are needed: where they lie, or read.
struct Input {
  std::string role;
  Source source;
  Array held;
  ArrayView view;  // of the header, until read() was called

  std::int64_t bytes_to_hold() const { return !source || source->mapped() ? 0 : bytes_of(*source); }
  void read() {
    if (!source) return;
    if (const auto mapped = source->mapped()) {
      view = *mapped;
      return;
    }
    held = read_all(*source);
    view = held.view();
  }
};

struct Inputs {
  Input q, k, v, bias, dout, out, lse;

  std::vector<Input*> all() { return {&q, &k, &v, &bias, &dout, &out, &lse}; }

  // The library speaks of q, k and v; people know them by their files.
  template <class F>
  auto naming(F&& f) {
    try {
      return f();
    } catch (Error& error) {
      for (const Input* input : all())
        if (input->source && error.message().starts_with(input->role + " ")) {
          error.at(input->source->name());
          break;
        }
      throw;
    }
  }
};

Input open_input(const char* role, const std::string& reference, Job& job) {
  Input input;
  input.role = role;
  if (reference.empty()) return input;
  input.source = job.open(role, reference);
  input.view = header_of(*input.source);
  return input;
}

Source open_or_null(const char* role, const std::string& reference, Job& job) {
  return reference.empty() ? nullptr : job.open(role, reference);
}

// All that headers, cu_seqlens and the words tell.
struct Request {
  Inputs inputs;
  AttentionOptions options;
  AttentionShape shape;
  std::vector<std::string> remarks, alignment_warnings;
  std::int64_t mask_bytes = 0;  // of masks held in memory
};

Request open_request(const AttentionWords& words, Job& job) {
  Request r;
  AttentionOptions& o = r.options;
  const bool packed = !words.cu_seqlens.q.empty();
  o.layout = words.layout.value_or(packed ? AttentionLayout::thd : AttentionLayout::bshd);
  if (packed && o.layout != AttentionLayout::thd)
    throw Error(Error::Kind::usage,
                fmt::format("--cu-seqlens is for packed tokens, and --layout is {}", name_of(o.layout)))
        .hint("the layout thd takes (tokens, heads, size)");
  if (!packed && o.layout == AttentionLayout::thd)
    throw Error(Error::Kind::usage, "--layout thd is for packed tokens and needs --cu-seqlens")
        .hint("one sequence is cu_seqlens [0, tokens]");
  job.provenance.record("layout", std::string(name_of(o.layout)));
  o.scale = words.scale;
  o.softcap = words.softcap;
  o.block = words.block;
  Inputs& in = r.inputs;
  in.q = open_input("q", words.q, job);
  in.k = open_input("k", words.k, job);
  in.v = open_input("v", words.v, job);
  in.bias = open_input("bias", words.bias, job);
  if (in.bias.source) o.bias = in.bias.view;
  o.cu_seqlens_q = open_or_null("cu_seqlens_q", words.cu_seqlens.q, job);
  o.cu_seqlens_kv = open_or_null("cu_seqlens_k", words.cu_seqlens.kv, job);
  o.q_segment_ids = open_or_null("q_segment_ids", words.segment_ids.q, job);
  o.kv_segment_ids = open_or_null("kv_segment_ids", words.segment_ids.kv, job);
  r.shape = in.naming([&] { return attention_shape(in.q.view, in.k.view, in.v.view, o); });
  AttentionMasks masks = resolve_attention_masks(words.masks, r.shape, job);
  o.masks = std::move(masks.masks);
  r.remarks = std::move(masks.remarks);
  r.alignment_warnings = std::move(masks.alignment_warnings);
  r.mask_bytes = masks.held_bytes;
  r.shape = in.naming([&] { return attention_shape(in.q.view, in.k.view, in.v.view, o); });
  return r;
}

Report describe_inputs(const Request& r) {
  const AttentionShape& s = r.shape;
  const Inputs& in = r.inputs;
  Report report;
  for (const std::string& remark : r.remarks) report.add(Remark{remark});
  const bool packed = r.options.layout == AttentionLayout::thd;
  report.add("layout", "layout", std::string(name_of(r.options.layout)))
      .add("q", "q", in.q.view.shape)
      .add("k", "k", in.k.view.shape)
      .add("v", "v", in.v.view.shape)
      .add("dtypes", "dtypes",
           fmt::format("{}, {}, {}", name_of(in.q.view.dtype), name_of(in.k.view.dtype),
                       name_of(in.v.view.dtype)))
      .add("arithmetic", "arithmetic", std::string(name_of(s.arithmetic)))
      .add("entries", packed ? "sequences" : "batch entries", s.entries, Unit::count)
      .add("heads", "query heads", s.heads, Unit::count)
      .add("kv_heads", "key/value heads", s.kv_heads, Unit::count)
      .add("head_size", "size of a head", s.head_size, Unit::count)
      .add("value_size", "size of a value", s.value_size, Unit::count)
      .add("scale", "scale", r.options.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_size))));
  if (r.options.softcap) report.add("softcap", "soft cap", *r.options.softcap);
  return report;
}

// A whole number while a double can tell it from its neighbours.
ReportValue whole(double value) {
  return value < 0x1p53 ? ReportValue(static_cast<std::int64_t>(value)) : ReportValue(value);
}

void append(Report& report, Report more) {
  for (Report::Item& item : more.items) report.add(std::move(item));
  for (std::string& warning : more.warnings) report.warnings.push_back(std::move(warning));
}

void add_work(Report& report, const Request& r, const AttentionWork& work) {
  append(report, describe(work));
  if (!work.alignment.empty())
    report.warnings.insert(report.warnings.end(), r.alignment_warnings.begin(), r.alignment_warnings.end());
}

void add_backward(Report& report, const AttentionWork& work) {
  report.add("backward", "backward, the same", whole(work.backward_flop), Unit::flop);
}

ReportValue rate(double work, double seconds) {
  return seconds > 0 ? ReportValue(work / seconds) : ReportValue();
}

struct Result {
  const char* name;
  Shape shape;
  DType dtype;
};

enum class Direction { forward, backward };

// What results are like and what there is to do; true: that is all that was asked for.
bool plan(Request& r, const Report& inputs, const std::vector<Result>& results, std::int64_t extra,
          Direction direction, Job& job) {
  std::int64_t bytes = 0, held = 0;
  for (const Result& result : results) bytes += byte_count(result.shape, result.dtype);
  for (const Input* input : r.inputs.all()) held += input->bytes_to_hold();
  const std::int64_t peak =
      2 * kPieceBytes + r.shape.plan_bytes + r.shape.work_bytes + r.mask_bytes + held + bytes + extra;
  if (!job.is_dry_run()) return job.plan({}, peak);
  job.require_memory(peak);
  Report report = inputs;
  const AttentionWork work = r.inputs.naming(
      [&] { return attention_work(r.inputs.q.view, r.inputs.k.view, r.inputs.v.view, r.options); });
  add_work(report, r, work);
  if (direction == Direction::backward) add_backward(report, work);
  return job.plan(std::move(report), peak);
}

std::int64_t elements_of(const std::vector<Result>& results) {
  std::int64_t all = 0;
  for (const Result& result : results) all += element_count(result.shape);
  return all;
}

void add_results(Report& report, const std::vector<Result>& results) {
  std::int64_t bytes = 0;
  for (const Result& result : results) {
    report.add(result.name, result.name, result.shape)
        .add(std::string(result.name) + "_dtype", "of dtype", std::string(name_of(result.dtype)));
    bytes += byte_count(result.shape, result.dtype);
  }
  report.add("size", "size", bytes, Unit::bytes);
}

void add_check(Report& report, const AttentionCheck& check) {
  report.add(Section{"check", "check", std::make_shared<Report>(describe(check))});
  if (!check.passed())
    report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
}

void read_inputs(Request& r, Job& job) {
  job.phase(Phase::read, [&] {
    for (Input* input : r.inputs.all()) input->read();
    if (r.inputs.bias.source) r.options.bias = r.inputs.bias.view;
  });
}

Answer run_forward(const AttentionWords& words, Job& job) {
  Request r = job.phase(Phase::read, [&] { return open_request(words, job); });
  const std::vector<Result> results{{"out", r.shape.out, words.dtype.value_or(r.inputs.q.view.dtype)},
                                    {"lse", r.shape.lse, r.shape.arithmetic}};
  Report report = describe_inputs(r);
  add_results(report, results);
  if (plan(r, report, results, words.check ? 8 * elements_of(results) : 0, Direction::forward, job))
    return Answer::yes;
  read_inputs(r, job);
  const Inputs& in = r.inputs;
  r.options.progress = job.progress();
  const Attention done = job.phase(Phase::compute, [&] {
    return r.inputs.naming(
        [&] { return attention(in.q.view, in.k.view, in.v.view, r.options, results[0].dtype); });
  });
  add_work(report, r, done.work);
  report.add("masks_time", "masks", done.work.mask_seconds, Unit::seconds)
      .add("forward_time", "forward pass", done.work.forward_seconds, Unit::seconds)
      .add("rate", "computed at", rate(done.work.forward_flop, done.work.forward_seconds),
           Unit::flop_per_second)
      .add("instruction_set", "instruction set", instruction_set());
  bool passed = true;
  if (words.check) {
    r.options.progress = nullptr;
    const AttentionCheck check = job.phase(Phase::compute, [&] {
      return check_attention(in.q.view, in.k.view, in.v.view, r.options, done.out.view(), done.lse.view());
    });
    passed = check.passed();
    add_check(report, check);
  }
  job.deliver(std::move(report),
              {{"out", make_source(done.out.view()), {}}, {"lse", make_source(done.lse.view()), {}}});
  return passed ? Answer::yes : Answer::no;
}

Answer run_backward(const GradientWords& words, Job& job) {
  if (words.out.empty() != words.lse.empty())
    throw Error(Error::Kind::usage,
                "--out and --lse must be given together: both come from one forward pass");
  Request r = job.phase(Phase::read, [&] { return open_request(words, job); });
  Inputs& in = r.inputs;
  in.dout = open_input("dout", words.dout, job);
  in.out = open_input("out", words.out, job);
  in.lse = open_input("lse", words.lse, job);
  const auto saved = [&]() -> std::optional<AttentionSaved> {
    return in.out.source ? std::optional(AttentionSaved{in.out.view, in.lse.view}) : std::nullopt;
  };
  in.naming(
      [&] { check_attention_arguments(in.q.view, in.k.view, in.v.view, in.dout.view, r.options, saved()); });
  if (in.dout.view.dtype == DType::float64) r.shape.arithmetic = DType::float64;
  // With both, gradients are of --dtype first and are then cast; with one of them they are rounded once.
  const std::optional<DType> computed = words.dtype ? words.dtype : words.grad_dtype;
  const std::optional<DType> written = words.grad_dtype ? words.grad_dtype : words.dtype;
  const std::vector<Result> results{{"dq", in.q.view.shape, written.value_or(in.q.view.dtype)},
                                    {"dk", in.k.view.shape, written.value_or(in.k.view.dtype)},
                                    {"dv", in.v.view.shape, written.value_or(in.v.view.dtype)}};
  Report report = describe_inputs(r);
  report.add("saved", "out and lse", std::string(in.out.source ? "given" : "computed"));
  add_results(report, results);
  // out, lse, what goes with lse, and dq's sums, in the arithmetic's dtype.
  std::int64_t extra = byte_count(r.shape.out, DType::float64) + 2 * byte_count(r.shape.lse, DType::float64) +
                       byte_count(in.q.view.shape, r.shape.arithmetic);
  if (words.check) extra += 8 * elements_of(results) + 16 * element_count(r.shape.lse);
  if (plan(r, report, results, extra, Direction::backward, job)) return Answer::yes;
  read_inputs(r, job);
  r.options.progress = job.progress();
  AttentionGradients done = job.phase(Phase::compute, [&] {
    return in.naming([&] {
      return attention_grad(in.q.view, in.k.view, in.v.view, in.dout.view, r.options, computed, saved());
    });
  });
  if (words.dtype && words.grad_dtype)
    for (Array* gradient : {&done.dq, &done.dk, &done.dv})
      *gradient = identity_dtype_convert_backward(gradient->view(), *words.grad_dtype);
  add_work(report, r, done.work);
  add_backward(report, done.work);
  report.add("masks_time", "masks", done.work.mask_seconds, Unit::seconds)
      .add("forward_time", "forward pass", done.work.forward_seconds, Unit::seconds)
      .add("backward_time", "backward pass", done.work.backward_seconds, Unit::seconds)
      .add("rate", "computed at", rate(done.work.backward_flop, done.work.backward_seconds),
           Unit::flop_per_second)
      .add("instruction_set", "instruction set", instruction_set());
  bool passed = true;
  if (words.check) {
    r.options.progress = nullptr;
    const AttentionCheck check = job.phase(Phase::compute, [&] {
      return check_attention_grad(in.q.view, in.k.view, in.v.view, in.dout.view, r.options, done.dq.view(),
                                  done.dk.view(), done.dv.view());
    });
    passed = check.passed();
    add_check(report, check);
  }
  job.deliver(std::move(report), {{"dq", make_source(done.dq.view()), {}},
                                  {"dk", make_source(done.dk.view()), {}},
                                  {"dv", make_source(done.dv.view()), {}}});
  return passed ? Answer::yes : Answer::no;
}

// "a.npy" or "a.npy,b.npy".
TwoReferences read_two(const std::string& word) {
  const std::vector<std::string> words = split_references(word);
  if (words.size() > 2)
    throw Error(Error::Kind::usage, fmt::format("'{}' is more than two references", printable(word)));
  if (std::find(words.begin(), words.end(), "") != words.end())
    throw Error(Error::Kind::usage,
                fmt::format("'{}' is not of the form Q_REF or Q_REF,K_REF", printable(word)));
  return {words[0], words.size() > 1 ? words[1] : ""};
}

double read_number(const std::string& word) {
  const double value = read_real(word);
  if (!std::isfinite(value))
    throw Error(Error::Kind::usage, fmt::format("'{}' is not a number", printable(word)));
  return value;
}

double read_cap(const std::string& word) {
  const double value = read_number(word);
  if (value <= 0) throw Error(Error::Kind::usage, fmt::format("{} is not above 0", word));
  return value;
}

AttentionLayout read_layout(const std::string& word) {
  constexpr AttentionLayout values[] = {AttentionLayout::bshd, AttentionLayout::bhsd, AttentionLayout::thd};
  return values[read_choice(word, {"bshd", "bhsd", "thd"})];
}

BlockShape read_block(const std::string& word) {
  const Shape lengths = read_lengths(word, 2, 2, "QxK");
  return {lengths[0], lengths[1]};
}

void add_inputs(OptionSet& set, AttentionWords& words) {
  add_reference(set, "Q", words.q,
                "queries (batch, sequence, heads, size)\n"
                "Or as --layout says. Inputs are float16, bfloat16, float32 or float64.")
      .required();
  add_reference(set, "K", words.k,
                "keys, of as many heads or fewer\n"
                "With H query heads and G key/value heads, H a multiple of G, query head h uses h / (H/G).")
      .required();
  add_reference(set, "V", words.v, "values, whose size may be another").required();
}

void add_options(OptionSet& set, AttentionWords& words) {
  declare_attention_masks(set, words.masks);
  add_word(
      set, "--cu-seqlens", words.cu_seqlens, read_two, "Q_REF[,K_REF]",
      "where packed sequences begin; the layout is then thd\n"
      "Sequence i of the queries attends to sequence i of the keys, whose boundaries are the same unless "
      "a second array gives them.")
      .group("Masks");
  add_word(set, "--segment-ids", words.segment_ids, read_two, "Q_REF[,K_REF]",
           "ids (batch, sequence): only equal ones above 0 attend\n"
           "Of keys the same unless a second array gives them. In packed inputs (tokens,).")
      .group("Masks");
  add_word(set, "--scale", words.scale, read_number, "S", "factor of q k; 1/sqrt(size) by default")
      .recorded()
      .otherwise("1/sqrt(D)");
  add_word(set, "--softcap", words.softcap, read_cap, "C",
           "scores s become C tanh(s / C)\nBefore the bias is added.")
      .recorded();
  add_reference(set, "--bias", words.bias,
                "added to the scores; broadcast to (batch, heads, queries, keys)\n"
                "An axis of 1 serves all. A bias of -inf hides a score, unless it is NaN.");
  add_word(set, "--layout", words.layout, read_layout, "LAYOUT",
           "bshd (default), bhsd, or thd for packed tokens\n"
           "b batch, s sequence, h heads, d their size, t tokens of all sequences.");
  add_word(set, "--block", words.block, read_block, "QxK",
           "tile size: queries and keys of one step\nBlocks that the masks empty are never computed.")
      .recorded();
  add_flag(set, "--check", words.check,
           "compare with float64; exit with 1 where it differs too much\n"
           "Small inputs element by element, of large ones some queries and keys. The result is written "
           "all the same.");
}

}  // namespace

Run attention(OptionSet& set) {
  const auto words = std::make_shared<AttentionWords>();
  add_inputs(set, *words);
  add_options(set, *words);
  add_word(set, "--dtype", words->dtype, read_float_dtype, "TYPE",
           "of out: float16, bfloat16, float32, float64; that of Q by default\n"
           "Arithmetic is float32, float64 with a float64 input, and is rounded once. lse is of its type.")
      .recorded();
  set_footer(set, kMaskHelp);
  return [words](Job& job) { return run_forward(*words, job); };
}

Run attention_grad(OptionSet& set) {
  const auto words = std::make_shared<GradientWords>();
  add_inputs(set, *words);
  add_reference(set, "DOUT", words->dout, "gradient of the output, shaped as it").required();
  add_options(set, *words);
  add_reference(set, "--out", words->out,
                "the output of a forward pass, with --lse\nWithout both the forward pass is run again.");
  add_reference(set, "--lse", words->lse, "and its lse (batch, heads, queries), packed (heads, tokens)");
  add_word(set, "--dtype", words->dtype, read_float_dtype, "TYPE",
           "of the gradients; each that of its input by default")
      .recorded();
  add_word(set, "--grad-dtype", words->grad_dtype, read_float_dtype, "TYPE",
           "cast the gradients, as identity_dtype_convert does\n"
           "Without --dtype they are rounded once, to this type.")
      .recorded();
  set_footer(set, kMaskHelp);
  return [words](Job& job) { return run_backward(*words, job); };
}

}  // namespace ejk::app
