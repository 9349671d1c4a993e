// ejk attention, attention-grad: reference results for attention kernels, forward and backward.
// tests: tests/cli/attention/, tests/cli/attention-grad/
#include "ejk/attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "against.hpp"
#include "attention_conventions.hpp"
#include "attention_paged.hpp"
#include "commands.hpp"
#include "commands/audit.hpp"
#include "ejk/array_math.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/program/attention_ranks.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "schema.hpp"
#include "sources.hpp"
#include "write_together.hpp"

namespace ejk::app {

extern const Command attention_command;

namespace {

using Source = std::shared_ptr<const ArraySource>;

// One reference for queries and one for keys; the second is optional.
struct TwoReferences {
  std::string q, kv;
};

struct AttentionFlags {
  AttentionOperands<std::string> inputs;  // references: of those that the command takes; may be empty
  MaskOptions masks;
  TwoReferences cu_seqlens, padded, segment_ids;
  ConventionFlags conventions;
  std::string values_of_keys;  // "A:B"; empty: values are an array of their own
  PagedFlags paged;
  std::optional<DType> weights, scores;  // types of the result that is compared
  SoftmaxTypes rounded() const { return {weights, scores.value_or(DType::float32)}; }
  std::vector<MaskExpression> tried;
  std::optional<AttentionLayout> layout;
  std::optional<double> keep_probability;
  Duplicates duplicates = Duplicates::refused;
  AttentionSettings settings;  // without arrays
  bool check = false;
  AgainstOptions against;
};

using BufferedOperands = AttentionOperands<BufferedInput>;

// Whether the plan reads keys and values in chunks: those of a paged or quantised cache, which is then neither
// gathered nor decoded. A comparison takes them whole.
bool boxes_keys(const AttentionFlags& words, const AttentionPlan& plan, const BufferedOperands& in,
                Job& job) {
  return (!in.k->is_mapped() || !in.v->is_mapped()) && in.k->source->random_access() &&
         in.v->source->random_access() && job.comm.is_single() && !words.check && !words.against.given() &&
         plan.boxes_keys();
}

std::vector<BufferedInput*> pointers_to(BufferedOperands& in) {
  std::vector<BufferedInput*> all;
  const auto add = [&](const char*, auto& input) {
    if (input) all.push_back(&*input);
  };
  for_each_operand(add, in);
  return all;
}

Source open_or_null(const char* role, const std::string& reference, Job& job) {
  return reference.empty() ? nullptr : job.open(role, reference);
}

struct Request {
  BufferedOperands inputs;
  AttentionSettings settings;
  AttentionMasks masks;
  Tried page_faults;
  std::vector<std::string> doubts;  // of segment ids
};

void open_segment_ids(const TwoReferences& words, Request& r, Job& job) {
  if (words.q.empty()) return;
  std::vector<std::string> references{words.q};
  std::vector<Source> ids{job.open("q_segment_ids", words.q)};
  if (!words.kv.empty()) {
    references.push_back(words.kv);
    ids.push_back(job.open("kv_segment_ids", words.kv));
  }
  Report positions;
  for (const Source& one : ids) warn_of_positions(*one, positions);
  r.doubts = positions.warnings;
  ids = job.phase(Phase::read, [&] { return segment_ids_of(references, ids, job, r.doubts); });
  r.settings.q_segment_ids = ids.front();
  if (ids.size() > 1) r.settings.kv_segment_ids = ids.back();
}

// Adds the logarithms of how often keys are mentioned, as a bias.
void count_duplicates(Request& r) {
  const Shape& k = r.inputs.k->source->shape();
  const std::size_t axis = r.settings.layout == AttentionLayout::bhsd ? 2 : 1;
  if (k.size() != 4) return;  // the plan says so
  bool is_wide = false;
  for (const auto* input : {&r.inputs.q, &r.inputs.k, &r.inputs.v})
    is_wide = is_wide || (*input)->source->dtype() == DType::float64;
  r.inputs.bias =
      BufferedInput{"bias", log_counts(r.masks.indices, k[axis], is_wide ? DType::float64 : DType::float32)};
}

constexpr char kPagedMask[] = "causal(align=bottom-right)";

// Paged caches without a mask of the command line.
bool has_usual_mask(const AttentionFlags& words) {
  return words.paged.any() && words.masks.array.empty() && words.masks.expressions.empty();
}

Request open_request(const AttentionFlags& words, Job& job) {
  Request r{{}, words.settings, {}, {}, {}};
  AttentionSettings& s = r.settings;
  s.comm = &job.comm;
  s.keep_probability = words.keep_probability.value_or(1);
  const bool packed = !words.cu_seqlens.q.empty() || words.paged.any();
  s.layout = words.layout.value_or(packed ? AttentionLayout::thd : AttentionLayout::bshd);
  if (packed && s.layout != AttentionLayout::thd)
    throw usage("{} for packed tokens, and --layout is {}",
                words.paged.any() ? "the tables of a paged cache are" : "--cu-seqlens is", name_of(s.layout))
        .hint(words.paged.any()
                  ? "without --layout Q is (tokens, heads, size): of one query for each request "
                    "'REF[:,0]', of several q.reshape(-1, heads, size) with --cu-seqlens"
                  : "the layout thd takes (tokens, heads, size)");
  if (!packed && s.layout == AttentionLayout::thd)
    throw usage("--layout thd is for packed tokens and needs --cu-seqlens")
        .hint("one sequence is cu_seqlens [0, tokens]");
  job.provenance.record("layout", std::string(name_of(s.layout)));
  const auto open = [&](const char* name, const auto& reference, auto& input) {
    if (reference && !reference->empty()) input = BufferedInput{name, job.open_operand(name, *reference)};
  };
  for_each_operand(open, words.inputs, r.inputs);
  if (r.inputs.dropout && r.inputs.dropout->source->dtype() == DType::uint8)
    r.inputs.dropout->source = convert_array(r.inputs.dropout->source, DType::boolean);
  if (r.inputs.lse && words.conventions.exchanges_lse())
    r.inputs.lse->source = exchanged(r.inputs.lse->source);
  if (!words.values_of_keys.empty())
    r.inputs.v = BufferedInput{"v", slice_array(r.inputs.k->source, "[...," + words.values_of_keys + "]",
                                                r.inputs.k->source->name())};
  const Shape& q = r.inputs.q->source->shape();
  const std::size_t axis = s.layout == AttentionLayout::bshd ? 2 : 1;
  open_conventions(words.conventions, axis < q.size() ? q[axis] : 0, s, job);
  s.cu_seqlens_q = open_or_null("cu_seqlens_q", words.cu_seqlens.q, job);
  s.cu_seqlens_kv = open_or_null("cu_seqlens_k", words.cu_seqlens.kv, job);
  s.cu_seqlens_q_padded = open_or_null("cu_seqlens_q_padded", words.padded.q, job);
  s.cu_seqlens_kv_padded = open_or_null("cu_seqlens_k_padded", words.padded.kv, job);
  open_segment_ids(words.segment_ids, r, job);
  OpenedPages pages;
  if (words.paged.any()) pages = open_paged(words.paged, *r.inputs.q, *r.inputs.k, r.inputs.v, s, job);
  MaskOptions masks = words.masks;
  if (has_usual_mask(words)) masks.expressions.push_back(MaskExpression::parse(kPagedMask));
  r.masks = open_attention_masks(masks, job, words.duplicates);
  if (r.masks.indices) {
    count_duplicates(r);
    job.provenance.record("duplicates", "count");
  }
  s.masks = r.masks.parts;
  if (words.paged.any() && words.against.explain == Explain::yes)
    r.page_faults = page_faults(pages, s.masks, has_usual_mask(words));
  return r;
}

void add_work(Report& report, const AttentionWork& work, const AttentionMasks& masks) {
  append(report, describe(work));
  if (!work.alignment.empty())
    for (const std::string& text : masks.unaligned) report.warnings.push_back(alignment_warning(text));
  for (std::string& text : masks.idle()) report.warnings.push_back(std::move(text));
}

void add_times(Report& report, const AttentionWork& work, double flop) {
  report.add("masks_time", "masks", work.mask_seconds, Unit::seconds)
      .add("forward_time", "forward pass", work.forward_seconds, Unit::seconds);
  if (work.backward_flop) report.add("backward_time", "backward pass", work.backward_seconds, Unit::seconds);
  const double seconds = work.backward_flop ? work.backward_seconds : work.forward_seconds;
  report
      .add("rate", "computed at", seconds > 0 ? ReportValue(flop / seconds) : ReportValue(),
           Unit::flop_per_second)
      .add("instruction_set", "instruction set", instruction_set());
}

// All elements of the inputs. `keep`: those that were read before are in memory.
AttentionArrays read_whole(BufferedOperands& in, bool keep = false) {
  AttentionArrays arrays;
  const auto read = [&](const char*, auto& input, auto& view) {
    if (!input) return;
    if (!keep) input->elements = Array();
    view = input->elements.size() > 0 ? input->elements.view() : input->view();
  };
  for_each_operand(read, in, arrays);
  return arrays;
}

// The boxes of the inputs that a part takes. Those of the part before are released first.
AttentionArrays read_boxes(BufferedOperands& in, const AttentionOperands<ArrayBox>& boxes) {
  for (BufferedInput* input : pointers_to(in)) input->elements = Array();
  AttentionArrays arrays;
  const auto read = [](const char*, auto& input, const auto& box, auto& view) {
    if (box) view = input->view(*box);
  };
  for_each_operand(read, in, boxes, arrays);
  return arrays;
}

AttentionWork run_whole(const AttentionPlan& plan, BufferedOperands& in, bool boxes_keys,
                        std::vector<Output>& outputs, Job& job) {
  const Source k = in.k->source, v = in.v->source;
  if (boxes_keys) in.k.reset(), in.v.reset();
  const AttentionArrays arrays = job.phase(Phase::read, [&] { return read_whole(in); });
  std::vector<Array> results;
  std::vector<MutableArrayView> views;
  for (const PlannedArray& result : plan.results()) {
    results.emplace_back(result.type.dtype, result.type.shape);
    views.push_back(results.back().mutable_view());
  }
  AttentionWork work = job.phase(Phase::compute, [&] {
    return boxes_keys ? plan.run(arrays, *k, *v, views, job.progress())
                      : plan.run(arrays, views, job.progress());
  });
  for (std::size_t n = 0; n < results.size(); ++n)
    outputs.push_back({plan.results()[n].name, make_source(std::move(results[n])), {}});
  return work;
}

// Computes this rank's parts; all ranks call it.
AttentionWork run_parts(const AttentionPlan& plan, const AttentionDivision& division, BufferedOperands& in,
                        std::vector<Output>& outputs, Job& job) {
  AttentionRank ranks(division, job.comm);
  std::vector<std::vector<ArrayPart>> made(plan.results().size());  // of each result
  const auto progress = job.progress();
  for (const AttentionPart& part : division.parts(job.comm.rank())) {
    const AttentionArrays arrays =
        job.phase(Phase::read, [&] { return read_boxes(in, division.needs(part)); });
    std::vector<Array> elements;
    std::vector<MutableArrayView> into;
    const std::vector<std::optional<ArrayBox>> boxes = division.makes(part);
    for (std::size_t n = 0; n < boxes.size(); ++n) {
      elements.push_back(boxes[n] ? Array(plan.results()[n].type.dtype, boxes[n]->count) : Array());
      into.push_back(elements.back().mutable_view());
    }
    job.phase(Phase::compute, [&] { ranks.run(part, arrays, into, progress); });
    for (std::size_t n = 0; n < boxes.size(); ++n)
      if (boxes[n]) made[n].push_back({*boxes[n], make_source(std::move(elements[n]))});
  }
  for (std::size_t n = 0; n < made.size(); ++n)
    outputs.push_back(output_in_parts(plan.results()[n].name, plan.results()[n].type, std::move(made[n])));
  return job.phase(Phase::compute, [&] { return ranks.work(); });
}

Tried tried_faults(const AttentionFlags& words, const Request& r, Job& job) {
  Tried tried = r.page_faults;
  for (const MaskExpression& expression : words.tried)
    tried.masks.push_back({expression.text(), tried_mask(expression, words.masks.polarity, job)});
  return tried;
}

// Inputs with NaN, before what they account for.
void warn_of_nans(const AttentionArrays& arrays, Report& report) {
  std::vector<std::string> warnings;
  const auto count_nans = [&](const std::string& name, const std::optional<ArrayView>& view) {
    if (!view || !is_float(view->dtype) || name == "out" || name == "lse") return;
    if (const std::int64_t nans = statistics_of(*make_source(*view, name)).nans; nans > 0)
      warnings.push_back(fmt::format("{} has NaN: {} of {} elements", name, format_count(nans),
                                     format_count(element_count(view->shape))));
  };
  for_each_operand(count_nans, arrays);
  report.warnings.insert(report.warnings.begin(), warnings.begin(), warnings.end());
}

// Of a result that is wrong as bshd, the default: the option and the part with which it agrees, sequences and
// heads exchanged. Empty: it does not, or masks, other arrays or cost exclude it. One batch entry is enough.
std::string agreeing_layout(const AttentionFlags& words, const Request& r, AttentionArrays arrays,
                            std::vector<std::optional<ArrayView>> actual, Job& job) {
  constexpr double kMostFlop = 0x1p39;
  AttentionSettings settings = r.settings;
  settings.layout = AttentionLayout::bhsd;
  settings.comm = AttentionSettings().comm;
  settings.max_logits = false;
  const std::int64_t entries = arrays.q->shape[0];
  const bool is_sampled = entries > 1 && !settings.q_segment_ids && !settings.alibi;
  const auto cut = [&](std::optional<ArrayView>& view) {
    if (is_sampled && view && view->shape.size() > 2 && view->shape[0] == entries) view->shape[0] = 1;
  };
  for_each_operand([&](const char*, auto& view) { cut(view); }, arrays);
  for (std::optional<ArrayView>& view : actual) cut(view);
  try {
    const AttentionPlan plan(types_of(arrays), settings);
    std::vector<Array> results;
    std::vector<MutableArrayView> into;
    std::int64_t bytes = bytes_to_compare(plan, Explain::no);
    for (const PlannedArray& result : plan.results()) bytes += result.type.bytes();
    if (plan.flop() > kMostFlop || bytes > job.budget.bytes()) return "";
    for (const PlannedArray& result : plan.results()) {
      results.emplace_back(result.type.dtype, result.type.shape);
      into.push_back(results.back().mutable_view());
    }
    plan.run(arrays, into);
    std::vector<ArrayView> own;
    for (const Array& result : results) own.push_back(result.view());
    const Against found = compare_results(plan, arrays, own, actual, Explain::no, words.rounded());
    if (!found.agrees() || found.proves_little()) return "";
  } catch (const Error&) {
    return "";  // shapes or masks of the other layout do not fit
  }
  return is_sampled ? "--layout bhsd, in batch entry 0" : "--layout bhsd";
}

Against against_actual(const AttentionFlags& words, const AttentionPlan& plan, const Request& r,
                       const AttentionArrays& arrays, const std::vector<ArrayView>& own,
                       const std::vector<std::optional<ArrayView>>& actual, const OtherResults& other,
                       Job& job) {
  constexpr double kLittleFlop = 0x1p30;
  const Tried tried = tried_faults(words, r, job);
  const auto compared = [&](Explain explain) {
    SoftmaxTypes types = words.rounded();
    const auto of = [&](Explain tries) {
      return compare_results(plan, arrays, own, actual, tries, types, tried, words.against.tiles, other);
    };
    Against found = of(explain);
    // Eager attention is right in its way, and often beyond the bound in a few elements, too few for a cause.
    constexpr double kLargest = 4;
    const bool may_have_rounded_scores =
        explain == Explain::yes && !found.agrees() && !words.scores && words.weights != DType::float32 &&
        (arrays.q->dtype == DType::bfloat16 || arrays.q->dtype == DType::float16) &&
        found.largest < kLargest &&
        std::all_of(found.explanations.begin(), found.explanations.end(),
                    [](const auto& cause) { return cause.kind == "scores"; });
    if (!may_have_rounded_scores) return found;
    types.scores = arrays.q->dtype;
    if (of(Explain::no).agrees()) found.agrees_with = fmt::format("--scores {}", name_of(types.scores));
    return found;
  };
  // Sequences are longer than heads are many, unless they are exchanged.
  const Shape& q = arrays.q->shape;
  const bool is_doubtful = !words.layout && r.settings.layout == AttentionLayout::bshd &&
                           (q[1] <= q[2] || plan.flop() <= kLittleFlop);
  if (!is_doubtful) return compared(words.against.explain);
  Against found = compared(Explain::no);
  if (found.agrees()) {
    found.tried = words.against.explain == Explain::yes;
    return found;
  }
  found.agrees_with = agreeing_layout(words, r, arrays, actual, job);
  return found.agrees_with.empty() && words.against.explain == Explain::yes ? compared(Explain::yes) : found;
}

// --check and --against, by rank 0, which gathers the results. True if both pass.
bool check_results(const AttentionFlags& words, const AttentionPlan& plan, Request& r, ActualArrays& given,
                   const std::vector<Output>& outputs, const AttentionWork& work, Report& report, Job& job) {
  if (!words.check && !words.against.given()) return true;
  std::vector<Array> gathered;
  std::vector<ArrayView> views;
  job.phase(Phase::read, [&] {
    for (const Output& output : outputs) {
      if (!job.comm.is_single()) gathered.push_back(gather_parts(job.comm, output));
      views.push_back(job.comm.is_single() ? output.source->mapped().value() : gathered.back().view());
    }
  });
  if (!job.comm.is_first()) return true;
  const AttentionArrays arrays =
      job.phase(Phase::read, [&] { return read_whole(r.inputs, job.comm.is_single()); });
  bool passed = true;
  if (words.check) {
    const AttentionCheck check =
        job.phase(Phase::compute, [&] { return check_results(plan, arrays, views); });
    passed = check.passed();
    report.add(Section{"check", "check", std::make_shared<Report>(describe(check))});
    if (!passed) report.warnings.emplace_back("the result differs from float64 by more than the tolerance");
  }
  if (words.against.given()) {
    job.phase(Phase::compute, [&] { warn_of_nans(arrays, report); });
    std::vector<std::optional<ArrayView>> actual;
    job.phase(Phase::read, [&] {
      for (BufferedInput& input : given.results)
        actual.push_back(input.source ? std::optional(input.view()) : std::nullopt);
    });
    std::optional<ArrayView> max_logits;
    if (r.settings.max_logits) max_logits = actual.back(), actual.pop_back();
    const OtherResults other =
        job.phase(Phase::read, [&] { return read_beside(words.against.other, given.beside, given.results); });
    const Against against = job.phase(Phase::compute, [&] {
      Against found = naming_other(words.against.other, [&] {
        return against_actual(words, plan, r, arrays, views, actual, other, job);
      });
      if (r.settings.max_logits) compare_max_logits(plan, arrays, work.max_logits, max_logits, found);
      return found;
    });
    passed = passed && against.agrees();
    add_against(
        report, words.against, against, given.others,
        "--try 'EXPR' tries a mask, such as 'causal & ~blocks(b.npy, 64x64)'; 'ejk compare MINE RESULT "
        "--explain' looks at the two arrays by themselves.",
        job);
  }
  return passed;
}

void add_doubts(const Request& r, Report& report) {
  const AttentionSettings& s = r.settings;
  report.warnings.insert(report.warnings.end(), r.doubts.begin(), r.doubts.end());
  if (s.cu_seqlens_q_padded) {
    const IntegerArray& key_begins = s.cu_seqlens_kv_padded;
    warn_of_tail(*s.cu_seqlens_q_padded, r.inputs.q->source->shape()[0], report);
    if (key_begins) warn_of_tail(*key_begins, r.inputs.k->source->shape()[0], report);
  }
  for (std::string& text : r.masks.doubts()) report.warnings.push_back(std::move(text));
}

// Counts are those of one term that all others restrict, and are added to scores.
void check_duplicates(const AttentionFlags& words) {
  const auto& masks = words.masks.expressions;
  const std::string text = masks.size() == 1 ? masks.front().text(References::hidden) : "";
  const std::size_t at = text.find("indices(...)");
  if (at == std::string::npos || text.find("...") != at + 8 ||
      text.find("...", at + 11) != std::string::npos || text.find_first_of("~|") != std::string::npos)
    throw usage("--duplicates count is about the keys of one --mask 'indices(REF)', alone or & others")
        .hint("further masks that are arrays go as MASK");
  if (!words.inputs.bias->empty())
    throw usage("--duplicates count adds the logarithms of counts to scores, and --bias is given, too");
  if (words.conventions.all().softcap_order == SoftcapOrder::after_bias && words.settings.softcap)
    throw usage("--duplicates count: a soft cap after the bias would cap the counts, too");
  if (words.settings.max_logits)
    throw usage("--duplicates count: --max-logits would count in the logarithms of counts");
  if (words.layout == AttentionLayout::thd || !words.cu_seqlens.q.empty() || words.paged.any())
    throw usage("--duplicates count is for a padded batch");
}

void check_flags(const AttentionFlags& words) {
  const bool has_values = !words.inputs.v->empty();
  if (has_values && !words.values_of_keys.empty())
    throw usage("--v-from-k: values are columns of K, and V is given, too")
        .hint("Q K MASK: the third array is a mask then, of bools or integers");
  if (words.against.other.given() && words.settings.max_logits)
    throw usage("--no-worse-than excludes --max-logits");
  if (words.paged.any() && !words.cu_seqlens.kv.empty())
    throw usage("--cu-seqlens: the lengths of keys are those of the paged cache; give one reference");
  if (words.paged.any() && !words.padded.q.empty())
    throw usage("--cu-seqlens-padded is not for a paged cache");
  check_paged(words.paged, has_values || !words.values_of_keys.empty());
  if (!has_values && words.values_of_keys.empty() && !words.paged.are_combined())
    throw usage("V is required").hint(fmt::format("for example: {}", attention_command.example));
  check_conventions(words.conventions, !words.inputs.lse || !words.inputs.lse->empty());
  if (words.duplicates == Duplicates::counted) check_duplicates(words);
}

// What a run keeps in memory: inputs that are not mapped, and what --check and --against take.
AttentionMemory memory_of(const AttentionFlags& words, const AttentionPlan& plan, const BufferedOperands& in,
                          const ActualArrays& given) {
  AttentionMemory memory;
  const auto is_read = [](const char*, const auto& input, auto& read) {
    if (input) read = !input->source->mapped();
  };
  for_each_operand(is_read, in, memory.read);
  if (!words.check && !words.against.given()) return memory;
  const std::int64_t check = words.check ? bytes_to_check(plan) : 0;
  const std::int64_t compare = words.against.given() ? bytes_to_compare(plan, words.against.explain) : 0;
  std::int64_t& bytes = memory.verdict_bytes.emplace(std::max(check, compare));
  for (const auto* arrays : {&given.results, &given.beside})
    for (const BufferedInput& input : *arrays) bytes += input.bytes_to_buffer();
  constexpr double kPageFaults = 5;  // whose keys and values are read
  if (words.paged.any() && words.against.explain == Explain::yes) {
    const auto size = [](const auto& input) { return static_cast<double>(type_of(*input->source).bytes()); };
    bytes += static_cast<std::int64_t>(std::min(kPageFaults * (size(in.k) + size(in.v)), 0x1p60));
  }
  return memory;
}

Source max_logits_of(const AttentionPlan& plan, const AttentionWork& work) {
  Array largest(plan.results()[1].type.dtype, {std::ssize(work.max_logits)});
  for (std::int64_t h = 0; h < largest.size(); ++h) {
    const double value = work.max_logits[static_cast<std::size_t>(h)];
    if (largest.dtype() == DType::float64)
      largest.elements<double>()[static_cast<std::size_t>(h)] = value;
    else
      largest.elements<float>()[static_cast<std::size_t>(h)] = static_cast<float>(value);
  }
  return make_source(std::move(largest), "max_logits");
}

// Says that lse is written with heads after queries.
void report_lse_layout(Report& report) {
  for (auto& item : report.items) {
    auto* field = std::get_if<Field>(&item);
    if (field == nullptr || field->key != "lse") continue;
    field->value = exchanged(std::get<Shape>(field->value));
  }
  report.add("lse_layout", "axes of lse", std::string(name_of(LseLayout::nh)));
}

// Results of another program; their lse has heads before queries from here on.
ActualArrays open_given(const AttentionFlags& words, const AttentionPlan& plan, Job& job, Report& report) {
  std::vector<PlannedArray> stored = plan.results();
  if (words.settings.max_logits)
    stored.push_back({"max_logits", ArrayType(stored[1].type.dtype, {stored[1].type.shape.rbegin()[1]})});
  const auto is_exchanged = [&](const std::string& name) {
    return name == "lse" && words.conventions.exchanges_lse();
  };
  for (PlannedArray& result : stored)
    if (is_exchanged(result.name)) result.type = ArrayType(result.type.dtype, exchanged(result.type.shape));
  std::vector<AbsentResult> absent;
  if (stored[0].name == "out") {
    if (!words.settings.max_logits) absent.push_back({"max_logits", "--max-logits, which computes it"});
  } else {
    if (words.inputs.bias->empty()) absent.push_back({"dbias", "--bias REF, as in the forward pass"});
    if (words.conventions.sinks.empty()) absent.push_back({"dsinks", "--sinks REF, as in the forward pass"});
  }
  ActualArrays given = open_actual(words.against, stored, absent, job, report);
  for (std::vector<BufferedInput>* arrays : {&given.results, &given.beside})
    for (BufferedInput& input : *arrays)
      if (input.source && is_exchanged(input.argument)) input.source = exchanged(input.source);
  return given;
}

Outcome run(const AttentionFlags& words, Job& job) {
  check_flags(words);
  Request r = job.phase(Phase::read, [&] { return open_request(words, job); });
  BufferedOperands& in = r.inputs;
  AttentionTypes types;
  for_each_operand(
      [&](const char*, const auto& input, auto& type) {
        if (input) type = type_of(*input->source);
      },
      in, types);
  const AttentionPlan plan = naming(pointers_to(in), [&] { return AttentionPlan(types, r.settings); });
  for (const BufferedInput* input : pointers_to(in))
    for (const auto& [option, type] : {std::pair("--weights", words.weights), {"--scores", words.scores}})
      if (type.value_or(DType::float32) != DType::float32 && input->source->dtype() == DType::float64)
        throw usage(fmt::format("{} is about arithmetic in float32, and an input is float64", option));
  Report report;
  for (std::string& remark : broadcast_remarks(plan.masks(), r.masks)) report.add(Remark{std::move(remark)});
  if (words.paged.any() && !has_usual_mask(words))
    report.add(Remark{fmt::format("The mask replaces '{}', that of paged caches.", kPagedMask)});
  append(report, describe(plan));
  if (words.conventions.exchanges_lse()) report_lse_layout(report);
  add_doubts(r, report);
  for (const std::string& name : plan.masks_of_either())
    report.warnings.push_back(fmt::format(
        "{}: the first of three axes is the batch, and there are as many heads; masks of heads are (1, H, Q, K)",
        printable(name)));
  ActualArrays given = job.phase(Phase::read, [&] { return open_given(words, plan, job, report); });

  const std::int64_t always = 2 * kPieceBytes + r.masks.resident_bytes;
  AttentionMemory memory = memory_of(words, plan, in, given);
  memory.boxes_keys = boxes_keys(words, plan, in, job);
  if (memory.boxes_keys) memory.read.k = memory.read.v = false;
  if (!job.comm.is_single()) job.require_memory(always + plan.mask_bytes());  // the masks decide the division
  const AttentionDivision division =
      job.phase(Phase::compute, [&] { return AttentionDivision(plan, job.comm.size()); });
  std::int64_t peak = 0;
  for (std::int64_t rank = 0; rank < division.ranks(); ++rank)
    peak = std::max(peak, always + division.peak_bytes(rank, memory));
  if (job.is_dry_run()) {
    job.require_memory(peak);
    add_work(report, plan.work(), r.masks);
  }
  const auto divided = [&](std::int64_t ranks) {
    const AttentionDivision among(plan, ranks);
    std::vector<RankWork> shares;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      shares.push_back(among.share(rank));
      shares.back().peak_bytes = always + among.peak_bytes(rank, memory);
    }
    return shares;
  };
  if (job.plan(report, peak, divided)) return Outcome::passed;

  std::vector<Output> outputs;
  const AttentionWork work = job.comm.is_single() ? run_whole(plan, in, memory.boxes_keys, outputs, job)
                                                  : run_parts(plan, division, in, outputs, job);
  add_work(report, work, r.masks);
  add_times(report, work, plan.flop());
  const bool passed = check_results(words, plan, r, given, outputs, work, report, job);
  if (in.dout && !in.bias) outputs.push_back({"dbias", nullptr, {}});
  if (in.dout && !r.settings.sinks) outputs.push_back({"dsinks", nullptr, {}});
  if (r.settings.max_logits) outputs.push_back({"max_logits", max_logits_of(plan, work), {}});
  for (Output& output : outputs)
    if (output.name == "lse" && words.conventions.exchanges_lse()) output = exchanged(std::move(output));
  job.deliver(std::move(report), outputs);
  return passed ? Outcome::passed : Outcome::failed;
}

TwoReferences read_two(const std::string& word) {
  const std::vector<std::string> words = split_references(word);
  if (words.size() > 2) throw usage("'{}' is more than two references", printable(word));
  if (std::find(words.begin(), words.end(), "") != words.end())
    throw usage("'{}' is not of the form Q_REF or Q_REF,K_REF", printable(word));
  return {words[0], words.size() > 1 ? words[1] : ""};
}

double read_probability(const std::string& word) {
  const double value = read_finite(word);
  if (!(value > 0 && value <= 1)) throw usage("{} is not above 0 and at most 1", word);
  return value;
}

std::string read_columns(const std::string& word) {
  const std::size_t colon = word.find(':');
  const auto is_column = [](const std::string& text) {
    return text.empty() || text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (colon == std::string::npos || !is_column(word.substr(0, colon)) || !is_column(word.substr(colon + 1)))
    throw usage("'{}' is not of the form A:B, columns of the keys", printable(word));
  return word;
}

Option& add_inputs(OptionSet& set, AttentionFlags& words) {
  add_reference(
      set, "Q", words.inputs.q.emplace(),
      "queries (batch, sequence, heads, size)\n"
      "Or as --layout says. Inputs are float16, bfloat16, float32 or float64; 8-bit floats are read as bfloat16.")
      .required();
  add_reference(set, "K", words.inputs.k.emplace(),
                "keys, of as many heads or fewer\n"
                "With H query heads and G key/value heads, H a multiple of G, query head h uses h / (H/G).")
      .required();
  return add_reference(set, "V", words.inputs.v.emplace(), "values, whose size may be another");
}

// Of the forward pass alone.
void declare_forward_conventions(OptionSet& set, AttentionFlags& words) {
  add_flag(set, "--max-logits", words.settings.max_logits,
           "also the largest score of each head: max_logits\n"
           "Of all pairs that attend, scaled, capped and biased, for QK-clip; sinks do not count.")
      .group(kConventionsGroup);
  add_choice(
      set, "--duplicates", words.duplicates, {{"error", Duplicates::refused}, {"count", Duplicates::counted}},
      "HOW",
      "a key twice among those of a query in --mask 'indices(REF)'\n"
      "An error, or each counts, as in kernels that gather keys: the logarithm of the count is a bias, "
      "and --explain calls it so. lse counts all, too.")
      .recorded_by_command()
      .group(kMaskGroup);
  add_word(
      set, "--v-from-k", words.values_of_keys, read_columns, "A:B",
      "values are the columns A to B of K, and the third array is MASK\nAs of MLA's absorbed decoding: 0:512.");
}

void add_packing(OptionSet& set, AttentionFlags& words) {
  add_word(
      set, "--cu-seqlens", words.cu_seqlens, read_two, "REF[,REF]",
      "where packed sequences begin; implies --layout thd\n"
      "Of queries, and of keys where they are others. Sequence i of the queries attends to sequence i of the keys, whose boundaries are the same unless "
      "a second array gives them.")
      .group(kMaskGroup);
  add_word(
      set, "--cu-seqlens-padded", words.padded, read_two, "REF[,REF]",
      "where they begin with padding between them\n"
      "As TransformerEngine has it. Sequence i begins at token REF[i], the first one perhaps after 0, as in a jagged tensor with holes; "
      "--cu-seqlens then gives lengths alone. Padding is never read, results there are 0 and lse -inf. Of "
      "keys the same unless a second array gives them.")
      .needs("--cu-seqlens")
      .group(kMaskGroup);
  add_word(
      set, "--segment-ids", words.segment_ids, read_two, "REF[,REF]",
      fmt::format(
          "ids (batch, sequence): only equal ones attend\n"
          "Padding is -1. Of keys the same unless a second array gives them. In packed inputs (tokens,). {}",
          kZeroIdRule))
      .group(kMaskGroup);
}

void add_scores(OptionSet& set, AttentionFlags& words) {
  declare_scale(set, words.settings);
  add_reference(
      set, "--bias", words.inputs.bias.emplace(),
      "numbers added to the scores\n"
      "Broadcast to (batch, heads, queries, keys): an axis of 1 serves all. A bias of -inf masks a score that is not NaN; with --softcap-order after-bias "
      "the score becomes -C. Packed inputs (thd) take none. attention-grad makes its gradient, too: dbias.")
      .group(kScoresGroup);
  add_reference(
      set, "--dropout", words.inputs.dropout.emplace(),
      "the pairs that dropout keeps, bool or uint8\n"
      "Broadcast as a bias. After the softmax weights of kept pairs are divided by P and others are 0; lse has no "
      "dropout. Of flash attention's S_dmask it is S_dmask >= 0. Packed inputs (thd) take none.")
      .needs("--keep")
      .group(kScoresGroup);
  add_word(set, "--keep", words.keep_probability, read_probability, "P",
           "the probability of keeping a pair, 1 - p")
      .needs("--dropout")
      .recorded()
      .group(kScoresGroup);
  declare_conventions(set, words.conventions);
}

void add_layout(OptionSet& set, AttentionFlags& words) {
  add_choice(
      set, "--layout", words.layout,
      {{"bshd", AttentionLayout::bshd}, {"bhsd", AttentionLayout::bhsd}, {"thd", AttentionLayout::thd}},
      "LAYOUT",
      "axes of the inputs, bshd by default; thd is packed\n"
      "b batch, s sequence, h heads, d their size, t tokens of all sequences.")
      .recorded_by_command();
}

void add_options(OptionSet& set, AttentionFlags& words) {
  declare_attention_masks(set, words.masks);
  add_packing(set, words);
  add_scores(set, words);
  add_layout(set, words);
  add_word(set, "--block", words.settings.block, read_block, "QxK",
           "tile size: queries and keys of one step\nBlocks that the masks empty are never computed.")
      .recorded();
  add_flag(set, "--check", words.check,
           "compare with float64; exit with 1 where it differs too much\n"
           "Small inputs element by element, of large ones some queries and keys. The result is written "
           "all the same.");
  declare_against(set, words.against);
  declare_no_worse_than(set, words.against);
  add_dtype(
      set, "--weights", words.weights,
      "type to which it rounds P and dS\n"
      "By default the type of V if it has 16 bits, or else that of Q (V may be quantised): flash kernels cast "
      "the weights before they multiply. A result may then differ by u times its size and by 4 u times the "
      "root of the sum of (P v)^2 over its "
      "keys, u = 2^-8 (bfloat16) or 2^-11 (float16), and gradients accordingly. float32 is the bound of "
      "float32 products: u = 2^-24, times the size of the scores.",
      {DType::float32, DType::bfloat16, DType::float16})
      .needs("--against")
      .group(kAgainstGroup);
  add_dtype(
      set, "--scores", words.scores,
      "type to which it rounds scores\n"
      "By default float32, as flash kernels have them. Eager attention in 16 bits rounds them before and after the "
      "scale: a score s may then differ by the root of 2 times u s, and results accordingly.",
      {DType::float32, DType::bfloat16, DType::float16})
      .needs("--against")
      .group(kAgainstGroup);
  add_mask_expressions(
      set, "--try", words.tried,
      "a mask that it may have been computed with\n"
      "Tried before the usual mistakes, in the place of all masks; several are tried in turn.")
      .needs("--explain")
      .group(kAgainstGroup);
}

Run declare_attention(OptionSet& set) {
  const auto words = std::make_shared<AttentionFlags>();
  add_inputs(set, *words);
  add_options(set, *words);
  declare_forward_conventions(set, *words);
  declare_paged(set, words->paged);
  add_dtype(
      set, "--dtype", words->settings.dtype,
      "type of out, by default that of Q\n"
      "Arithmetic is float32, or float64 with a float64 input, and is rounded once. lse has the type of the "
      "arithmetic.",
      float_dtypes())
      .recorded();
  set.set_outputs([words] {
    std::vector<std::string> names{"out", "lse"};
    if (words->settings.max_logits) names.emplace_back("max_logits");
    return names;
  });
  return [words](Job& job) {
    const std::string third = *words->inputs.v;
    if (!words->values_of_keys.empty() && words->masks.array.empty() && !third.empty() &&
        (words->masks.polarity == Polarity::additive || !is_float(job.open("mask", third)->dtype())))
      std::swap(words->masks.array, *words->inputs.v);
    return run(*words, job);
  };
}

Run declare_attention_grad(OptionSet& set) {
  const auto words = std::make_shared<AttentionFlags>();
  add_inputs(set, *words).required();
  add_reference(set, "DOUT", words->inputs.dout.emplace(), "gradient of the output, shaped as it").required();
  add_options(set, *words);
  add_reference(set, "--out", words->inputs.out.emplace(),
                "the output of a forward pass\nWithout both the forward pass is run again.")
      .needs("--lse");
  add_reference(set, "--lse", words->inputs.lse.emplace(),
                "and its lse (batch, heads, queries), packed (heads, tokens)")
      .needs("--out");
  add_dtype(set, "--dtype", words->settings.dtype, "type of the gradients, by default that of each input",
            float_dtypes())
      .recorded();
  add_dtype(set, "--grad-dtype", words->settings.grad_dtype,
            "cast the gradients, as identity_dtype_convert\n"
            "Without --dtype they are rounded once, to this type.",
            float_dtypes())
      .recorded();
  return [words](Job& job) {
    if (words->inputs.bias->empty() && job.outputs.is_field("dbias"))
      throw usage("there is no dbias: no --bias is given").hint("--bias REF, as in the forward pass");
    if (words->conventions.sinks.empty() && job.outputs.is_field("dsinks"))
      throw usage("there is no dsinks: no --sinks are given").hint("--sinks REF, as in the forward pass");
    return run(*words, job);
  };
}

// --- ejk audit attention, attention-grad

Outcome run_audit_of(const AttentionFlags& words, const TestFlags& test, Job& job) {
  check_flags(words);
  Request r = job.phase(Phase::read, [&] { return open_request(words, job); });
  if (r.inputs.dropout) throw usage("--dropout: audits take none");
  AttentionTypes types;
  for_each_operand(
      [&](const char*, const auto& input, auto& type) {
        if (input) type = type_of(*input->source);
      },
      r.inputs, types);
  const AttentionPlan plan = naming(pointers_to(r.inputs), [&] { return AttentionPlan(types, r.settings); });
  Report head;
  add_doubts(r, head);
  AuditOptions options;
  options.types = words.rounded();
  options.aligns_bottom_right = aligns_bottom_right(words.masks);
  if (job.outputs.has_target()) options.mutant = [](const std::string&, Array) {};
  options.rule = test.rule(plan.results()[0].type.dtype);
  std::int64_t peak = 2 * kPieceBytes + r.masks.resident_bytes + bytes_to_audit(plan, options);
  for (const BufferedInput* input : pointers_to(r.inputs)) peak += input->bytes_to_buffer();
  std::vector<PlannedArray> judged = plan.results();
  judged.resize(test.is_forward ? 1 : 3);
  std::vector<BufferedInput> beside =
      job.phase(Phase::read, [&] { return open_beside(test.words.other, judged, job); });
  for (const BufferedInput& input : beside) peak += input.bytes_to_buffer();
  if (job.plan(head, peak)) return Outcome::passed;
  const AttentionArrays arrays = job.phase(Phase::read, [&] { return read_whole(r.inputs); });
  options.other = job.phase(Phase::read, [&] { return read_beside(test.words.other, beside); });
  return run_audit(test, plan.results()[0].type.dtype, std::move(options), std::move(head), job,
                   [&](const AuditOptions& how) { return audit(plan, arrays, how); });
}

Run declare_audit_of(OptionSet& set, bool of_gradients) {
  const auto words = std::make_shared<AttentionFlags>();
  const auto test = std::make_shared<TestFlags>();
  test->is_forward = !of_gradients;
  add_inputs(set, *words).required();
  if (of_gradients)
    add_reference(set, "DOUT", words->inputs.dout.emplace(), "gradient of the output, shaped as it")
        .required();
  declare_attention_masks(set, words->masks);
  add_packing(set, *words);
  add_scores(set, *words);
  add_layout(set, *words);
  add_dtype(set, "--dtype", words->settings.dtype,
            "type of the kernel's result, by default that of its input", float_dtypes());
  const std::vector<DType> narrow{DType::float32, DType::bfloat16, DType::float16};
  add_dtype(set, "--weights", words->weights,
            "type to which right kernels round P and dS, by default that of V", narrow);
  add_dtype(set, "--scores", words->scores, "type to which right kernels round scores, by default float32",
            narrow);
  declare_test(set, *test);
  return [words, test](Job& job) { return run_audit_of(*words, *test, job); };
}

constexpr std::string_view kAttentionInputKeys = R"(
layout | string | bshd, bhsd or thd
q, k, v | shape | the shapes of Q, K and V
dtypes | string | the element types of Q, K and V
arithmetic | string | the element type of the arithmetic
entries | integer | batch entries, or packed sequences
heads, kv_heads | integer | query heads; key and value heads
head_size, value_size | integer | elements of a query or key, and of a value
scale | number | the factor of q k
softcap | number | the limit of scores | with --softcap
softcap_order | string | before-bias or after-bias | with --softcap
alibi | string | the form of ALiBi | with --alibi
sinks | string | whether lse counts the sinks: in lse, or not in lse | with --sinks
masked_rows | string | zero or mean: out of a query without a key
keep_probability | number | that of --keep | with --dropout
lse_layout | string | nh: lse has heads after queries | with --lse-layout nh
padding | shape | tokens of padding of the queries, and of the keys | with --cu-seqlens-padded
)";

constexpr std::string_view kAttentionWorkKeys = R"(
size_bytes | integer | bytes of the results
block | shape | queries and keys of a tile
problems | integer | entries x heads
distinct_masks | integer | distinct masks that were scanned
dense_pairs | integer | pairs of a query and a key
allowed_pairs | integer | of these, allowed pairs
computed_pairs | integer | pairs in the blocks that are computed
computed_share | share or null | computed_pairs / dense_pairs
empty_blocks | integer | blocks that are skipped
partial_blocks | integer | blocks with allowed and masked pairs; with a mask also those cut by an edge
full_blocks | integer | other blocks, whose pairs are all allowed
rows, rows_without_key | integer | queries of all entries and heads; those that attend to no key
alignment | string | how queries and keys are aligned | where queries and keys differ in number
first_row_without_key | shape | its entry, head and query | where there is one
forward_flop | integer | work of the forward pass, exact for the mask
)";

constexpr std::string_view kAttentionCheckKeys = R"(
instruction_set | string | the instruction set that is used | done
check | section | the comparison with float64 | with --check
  passed | boolean | whether no element is out of tolerance
  method | string | every element or sampled rows
  elements, compared, violating | integer | elements of the results; compared ones; those out of tolerance
  differences | table | the largest difference of each array, and the worst
    array | string | the array, after worst: the element furthest out of tolerance
    difference, allowed | number or null | the difference, and the tolerance there
    index | shape | where it is
    value, reference | number or null | the result there, and the float64 value
)";

constexpr std::string_view kScoreKeys = R"(
  not_given | string | results that were not given | where one was not given
  agrees_with | string | the option with which it agrees, of a sample where one is named | where it was found
  score_range | number | largest difference between two scores of a query | where there are scores
)";

}  // namespace

extern const Command attention_command{
    .name = "attention",
    .group = "Attention",
    .summary = "softmax(q k) v under masks, for batches and packed tokens",
    .example = "ejk attention q.npy k.npy v.npy --mask causal -o attention.h5",
    .outputs =
        {{"out", "the shape of Q with V's size, of --dtype",
          "softmax(scale q k) v; 0 for a query without a key"},
         {"lse", "(batch, heads, Q), packed (heads, tokens); or --lse-layout nh",
          "ln of the sum of exponentials of each query's scores; -inf without a key. float32, or float64"},
         {"max_logits", "(heads,)", "the largest score of each head, with --max-logits"}},
    .use = R"(with h5py.File("attention.h5") as f: out, lse = f["out"][()], f["lse"][()]
weights = np.exp(scores - lse[..., None])  # out is weights @ v)",
    .keys = joined({kAttentionInputKeys, R"(
lse_base, lse_empty | string | the base of lse; its value for a query without a key
max_logit | number | the largest score of all heads | with --max-logits
out | shape | the shape of out
out_dtype | string | its element type
lse | shape | the shape of lse
lse_dtype | string | its element type
)",
                    kAttentionWorkKeys, R"(
masks_time_s, forward_time_s | number | time to read and classify the masks, and of the forward pass | done
rate_flop_per_s | number or null | forward_flop / forward_time_s | done
)",
                    kAttentionCheckKeys, kAgainstKeys, kAgainstPartsKeys, kNoWorseThanKeys, kScoreKeys}),
    .declare = declare_attention,
    .is_divided = true,
};

extern const Command attention_grad_command{
    .name = "attention-grad",
    .group = "Attention",
    .summary = "the gradients of attention's inputs",
    .example = "ejk attention-grad q.npy k.npy v.npy dout.npy --mask causal -o gradients.h5",
    .outputs = {{"dq", "the shape of Q", "the gradient of queries"},
                {"dk", "the shape of K", "of keys, summed over the query heads that share them"},
                {"dv", "the shape of V", "of values, likewise"},
                {"dbias", "the shape of --bias", "of a bias, summed over the axes that it is broadcast over"},
                {"dsinks", "(heads,)", "of the sinks"}},
    .use = R"(with h5py.File("gradients.h5") as f: dq = f["dq"][()])",
    .keys = joined({kAttentionInputKeys, R"(
saved | string | given or computed: out and lse of the forward pass
dq | shape | the shape of dq
dq_dtype | string | its element type
dk | shape | the shape of dk
dk_dtype | string | its element type
dv | shape | the shape of dv
dv_dtype | string | its element type
dbias | shape | the shape of dbias | with --bias
dbias_dtype | string | its element type | with --bias
dsinks | shape | the shape of dsinks | with --sinks
dsinks_dtype | string | its element type | with --sinks
)",
                    kAttentionWorkKeys, R"(
backward_flop | integer | work of the backward pass, exact for the mask
masks_time_s, forward_time_s | number | time to read and classify the masks, and of the forward pass | done
backward_time_s | number | time of the backward pass | done
rate_flop_per_s | number or null | backward_flop / backward_time_s | done
)",
                    kAttentionCheckKeys, kAgainstKeys, kAgainstPartsKeys, kNoWorseThanKeys, kScoreKeys}),
    .declare = declare_attention_grad,
    .is_divided = true,
};

extern const Command audit_attention_command{
    .name = "audit attention",
    .summary = "of a test of attention's forward pass",
    .example = "ejk audit attention q.npy k.npy v.npy --mask causal --tolerance kernelbench",
    .outputs = {{"expected", "the shape of Q with V's size", "the right result, rounded once"},
                {"FAULT, FAULT.PARAMETER", "the same", "the result of a kernel with that fault"}},
    .declare = [](OptionSet& set) { return declare_audit_of(set, false); },
};

extern const Command audit_attention_grad_command{
    .name = "audit attention-grad",
    .summary = "of a test of its gradients",
    .example = "ejk audit attention-grad q.npy k.npy v.npy dout.npy --mask causal",
    .outputs = {{"expected.dq, .dk, .dv", "the shapes of Q, K and V", "the right gradients"},
                {"FAULT.dq, .dk, .dv", "the same", "those of a kernel with that fault"}},
    .declare = [](OptionSet& set) { return declare_audit_of(set, true); },
};

}  // namespace ejk::app
