// Masks of a command, from its options: the library combines them (ejk/mask_set.hpp), this adds the names of
// the command line.
// tests: tests/app/test_masks.cpp
#include "masks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "ejk/mask_info.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

std::optional<std::string> as_expression(const std::string& word) {
  try {
    return MaskExpression::parse(word), word;
  } catch (const Error&) {
    return MaskExpression::meant_by(word);
  }
}

bool holds_mask_info(const std::string& file, const OpenArray& open) {
  try {
    return StoredMaskInfo::is_in(open.group()(file, StoredMaskInfo::array_names()));
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<const ArraySource> open_mask_array(const std::string& reference, const OpenArray& open) {
  try {
    return open(reference);
  } catch (Error& error) {
    if (const auto expression = as_expression(reference))
      error.hint(fmt::format("an expression follows --mask: --mask '{}'", *expression));
    else if (error.code() == Error::Code::named_no_array && holds_mask_info(reference, open))
      error.hint(
          fmt::format("the mask that it stores is --mask 'from({0})', its blocks 'visited({0})'; ejk check "
                      "mask-info {0} checks it",
                      printable(reference)));
    throw;
  }
}

// Whether a word has the suffix of a file of arrays, which belongs in file(...).
bool names_file(const std::string& word) {
  const std::string file = word.substr(0, word.find_first_of(":["));
  if (word.find_first_of("&|~(") != std::string::npos || !std::filesystem::path(file).has_extension())
    return false;
  try {
    return parse_output(file), true;
  } catch (const Error&) {  // another suffix
    return false;
  }
}

MaskExpression parsed(const std::string& word) {
  try {
    return MaskExpression::parse(word);
  } catch (Error& error) {
    if (names_file(word)) error.hint(fmt::format("a stored mask is --mask 'file({})'", word));
    throw;
  }
}

void note_masks(const MaskOptions& options, Job& job) {
  std::string rules;
  for (const MaskExpression& expression : options.expressions) {
    job.provenance.input("mask_expression", expression.text());
    rules += (rules.empty() ? "" : "; ") + expression.text(References::hidden);
  }
  if (!rules.empty()) job.provenance.record("mask", rules);
  job.provenance.record("mask_kind", name_of(options.polarity));
}

std::string pairs_of(std::int64_t queries, std::int64_t keys) {
  return fmt::format("{} quer{} x {} key{}", format_count(queries), queries == 1 ? "y" : "ies",
                     format_count(keys), keys == 1 ? "" : "s");
}

// What an expression masks in any of the masks that are made of it, for the entries and heads of a set.
class MaskedByExpression {
 public:
  void add(const Mask& mask) {
    const bool is_first = q_ == 0;
    has_other_lengths_ =
        has_other_lengths_ || (!is_first && (mask.q_length() != q_ || mask.kv_length() != kv_));
    q_ = std::max(q_, mask.q_length()), kv_ = std::max(kv_, mask.kv_length());
    if (is_first) bounds_ = bounds_of(mask);
    if (!is_first && has_idle()) {
      const std::vector<MaskBound> here = bounds_of(mask);
      for (std::size_t n = 0; n < here.size(); ++n)
        bounds_[n].is_idle = bounds_[n].is_idle && here[n].is_idle;
    }
    is_full_ = is_full_ && is_known_full(mask);
  }

  /// One query attends to all keys in every decode step: only bounds are worth a warning.
  void warn(const std::string& option, const std::string& expression, std::vector<std::string>& into) const {
    const std::string where = (has_other_lengths_ ? "up to " : "") + pairs_of(q_, kv_);
    const auto warn = [&](const std::string& what, const char* of) {
      std::string text =
          fmt::format("{} '{}'{} nothing at {}: a check with this mask is inconclusive about {}", option,
                      printable(expression, 60), what, where, of);
      if (std::find(into.begin(), into.end(), text) == into.end()) into.push_back(std::move(text));
    };
    for (const MaskBound& bound : bounds_)
      if (bound.is_idle) warn(": " + bound.text + " changes", "this bound");
    if (is_full_ && q_ > 1 && !has_idle() && expression != "full") warn(" masks", "masking");
  }

 private:
  bool has_idle() const {
    return std::any_of(bounds_.begin(), bounds_.end(), [](const MaskBound& bound) { return bound.is_idle; });
  }

  std::vector<MaskBound> bounds_;
  bool is_full_ = true;
  std::int64_t q_ = 0, kv_ = 0;  // the largest
  bool has_other_lengths_ = false;
};

// Inspects the masks of a part as they are created, until the function that it returns is called, for the
// warnings.
std::function<std::vector<std::string>()> inspect_bounds(const std::string& option,
                                                         const std::vector<MaskExpression>& expressions,
                                                         HeadMasks& part) {
  struct State {
    std::vector<MaskedByExpression> of;  // each expression
    bool is_read = false;
  };
  const auto state = std::make_shared<State>(State{std::vector<MaskedByExpression>(expressions.size())});
  part.mask = [state, make = std::move(part.mask)](std::int64_t entry, std::int64_t head, std::int64_t q,
                                                   std::int64_t kv) {
    Mask mask = make(entry, head, q, kv);
    if (!state->is_read) state->of[state->of.size() == 1 ? 0 : static_cast<std::size_t>(head)].add(mask);
    return mask;
  };
  return [state, option, expressions] {
    state->is_read = true;
    std::vector<std::string> warnings;
    for (std::size_t n = 0; n < expressions.size(); ++n)
      state->of[n].warn(option, expressions[n].text(), warnings);
    return warnings;
  };
}

// The parts of a set of masks: MASK first, then the expressions.
AttentionMasks open_masks(const MaskOptions& options, LeadingAxis leading, const OpenArray& open_array,
                          const OpenArray& open_in_expression, Job& job) {
  AttentionMasks masks;
  if (!options.array.empty()) {
    const auto array = open_mask_array(options.array, open_array);
    masks.parts.push_back(head_masks(array, options.polarity, leading));
    masks.titles.push_back(
        fmt::format("{} of shape {}", printable(options.array), to_string(array->shape())));
  }
  note_masks(options, job);
  if (options.expressions.empty()) return masks;
  const std::size_t count = options.expressions.size();
  const std::string title = fmt::format("--mask '{}'", printable(options.expressions.front().text()));
  HeadMasks part = head_masks(options.expressions, options.polarity, open_in_expression, leading);
  if (leading == LeadingAxis::heads)
    part.name = count == 1 ? title : fmt::format("{} expressions (--mask)", count);
  masks.unaligned = part.unaligned;
  masks.idle = inspect_bounds("--mask", options.expressions, part);
  masks.parts.push_back(std::move(part));
  masks.titles.push_back(title);
  return masks;
}

// A padding mask instead of a mask: segments() accepts ids of 1 for tokens, and True.
constexpr const char* kPaddingWords =
    "a padding mask (batch, tokens) is --segment-ids REF in attention; elsewhere row 0 of it is --mask "
    "'segments(REF[0])'";
constexpr const char* kOtherPaddingWords =
    "a padding mask (batch, tokens) is to be 1 for tokens and 0 for padding: then --segment-ids REF in attention, "
    "elsewhere row 0 as --mask 'segments(REF[0])'";

// Messages for a stored mask (queries, keys) that may be (batch, tokens).
struct PaddingDoubt {
  std::string warning, hint;  // empty: nothing
};
PaddingDoubt doubt_of(const Mask& mask, Polarity polarity, const std::string& name) {
  PaddingGuess guess = PaddingGuess::none;
  try {
    guess = padding_guess(mask);
  } catch (const Error&) {  // reported when the elements are read
  }
  PaddingDoubt doubt;
  const char* const words = polarity == Polarity::keep ? kPaddingWords : kOtherPaddingWords;
  if (guess != PaddingGuess::none) doubt.hint = words;
  if (guess == PaddingGuess::likely)
    doubt.warning =
        fmt::format("{} looks like a padding mask, each row one run of tokens: {}", printable(name), words);
  return doubt;
}

PaddingDoubt doubt_of(const HeadMasks& part, Polarity polarity, const std::string& name) {
  if (!part.is_array || part.has_head_axis || part.q_length == 0 || part.kv_length == 0) return {};
  try {
    return doubt_of(part.mask(0, 0, part.q_length, part.kv_length), polarity, name);
  } catch (const Error&) {
    return {};
  }
}

// Opened arrays of expressions: file(REF) has rank 2 or 3, ids and offsets rank 1.
struct NamedArrays {
  std::map<std::string, std::shared_ptr<const ArraySource>> arrays;
  std::vector<std::string> warnings;  // of segment ids
};

// Opens segment ids by `open`; their warnings are added to `into`. Heads and equal nodes share them.
OpenArray::Ids ids_opener(const OpenArray::Array& open, Job& job, std::vector<std::string>& into) {
  using Sources = std::vector<std::shared_ptr<const ArraySource>>;
  const auto opened = std::make_shared<std::map<std::vector<std::string>, Sources>>();
  return [=, &job, &into](const std::vector<std::string>& references) {
    const auto [at, is_new] = opened->try_emplace(references);
    if (is_new) {
      Sources ids;
      for (const std::string& reference : references) ids.push_back(open(reference));
      at->second = job.phase(Phase::read, [&] { return segment_ids_of(references, ids, job, into); });
      Report positions;
      for (const auto& one : ids)
        if (one->shape().size() == 1) warn_of_positions(*one, positions);
      into.insert(into.end(), positions.warnings.begin(), positions.warnings.end());
    }
    return at->second;
  };
}

OpenArray opener(Job& job, const char* role, NamedArrays& opened) {
  const auto open = [&job, role, &opened](const std::string& reference) {
    return opened.arrays[reference] = job.open(role, reference);
  };
  return {open, group_opener(job), ids_opener(open, job, opened.warnings)};
}

PaddingDoubt doubt_of(const NamedArrays& named, Polarity polarity) {
  PaddingDoubt first;
  for (const auto& [name, array] : named.arrays) {
    const bool is_mask =
        array->shape().size() == 2 && element_count(array->shape()) > 0 && !is_float(array->dtype());
    if (!is_mask || polarity == Polarity::additive) continue;
    PaddingDoubt doubt = doubt_of(array_mask(array, polarity), polarity, name);
    if (first.hint.empty() || (first.warning.empty() && !doubt.warning.empty())) first = std::move(doubt);
  }
  return first;
}

void add_warnings(const NamedArrays& named, std::vector<std::string>& warnings) {
  warnings.insert(warnings.end(), named.warnings.begin(), named.warnings.end());
}

template <class F>
auto hinted(const std::string& hint, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    if (error.hint().empty() && !hint.empty()) error.hint(hint);
    throw;
  }
}

}  // namespace

BlockShape read_block(const std::string& word) {
  const Shape lengths = read_lengths(word, 2, 2, "QxK");
  return {lengths[0], lengths[1]};
}

std::optional<Fa4Kernel> KernelOptions::kernel() const {
  if (!arch) return std::nullopt;
  return Fa4Kernel{*arch, *head_dim, head_dim_v.value_or(*head_dim),
                   backward ? Direction::dkv : Direction::forward};
}

void declare_kernel(OptionSet& set, KernelOptions& into) {
  const char* const group = "FlashAttention-4";
  add_choice(set, "--arch", into.arch, named_choices<std::optional<Fa4Arch>>(kFa4Archs), "ARCH",
             "whether its kernel takes the blocks, by their size\n"
             "sm90: Hopper. sm100: Blackwell. Heads are not packed.")
      .needs("--head-dim")
      .group(group);
  const auto head_size = [](const std::string& word) {
    const std::int64_t size = read_integer(word, 1);
    if (size > kLargestFa4Head) throw usage("{} is more than {}", size, kLargestFa4Head);
    return size;
  };
  add_word(set, "--head-dim", into.head_dim, head_size, "D", "elements of a head")
      .needs("--arch")
      .group(group);
  add_word(set, "--head-dim-v", into.head_dim_v, head_size, "D", "of values, --head-dim by default")
      .needs("--head-dim")
      .group(group);
  add_flag(set, "--backward", into.backward, "the kernel of the backward pass").needs("--arch").group(group);
}

Option& add_mask_kind(OptionSet& set, Polarity& into) {
  return add_choice(
             set, "--mask-kind", into,
             {{"keep", Polarity::keep}, {"drop", Polarity::drop}, {"additive", Polarity::additive}}, "KIND",
             "what elements mean\n"
             "keep: non-zero attends. drop: non-zero is masked. additive: a bias, 0 attends, -1e4 and less or -inf masks, "
             "anything else is an error.")
      .recorded_by_command();
}

const char* name_of(Polarity polarity) {
  return polarity == Polarity::keep ? "keep" : polarity == Polarity::drop ? "drop" : "additive";
}

void declare_masks(OptionSet& set, MaskOptions& into) {
  declare_attention_masks(set, into);
  add_word(
      set, "--shape", into.shape, [](const std::string& w) { return read_lengths(w, 2, 3, "HxQxK or QxK"); },
      "HxQxK", "heads, queries and keys; QxK is one head\nMay be left out where an array fixes it.")
      .recorded_by_command()
      .group(kMaskGroup);
}

std::string alignment_warning(const std::string& expression, const std::string& option) {
  return fmt::format(
      "{} '{}': queries and keys differ in number, and query 0 is aligned with key 0; "
      "align=bottom-right aligns the last ones, align=top-left confirms this",
      option, printable(expression, 60));
}

Masks resolve_masks(const MaskOptions& options, Job& job, const MaskSet::Given& lengths) {
  if (options.array.empty() && options.expressions.empty())
    throw usage("there is no mask").hint("give an array, or --mask EXPR with --shape HxQxK");
  NamedArrays arrays, named;
  const AttentionMasks masks = open_masks(options, LeadingAxis::heads, opener(job, "mask", arrays),
                                          opener(job, "mask_array", named), job);
  std::optional<MaskSet::Given> given;
  if (!options.shape.empty()) given = {options.shape, options.shape_option};
  const auto has_lengths = [](const HeadMasks& part) { return part.q_length > 0; };
  const bool has_none = !given && std::none_of(masks.parts.begin(), masks.parts.end(), has_lengths);
  if (has_none && !lengths.shape.empty())
    given = lengths;
  else if (has_none)
    throw usage("{} is required: no array says how many queries and keys there are", options.shape_option)
        .hint(options.shape_option == "--shape" ? "for example --shape 8x4096x4096 for 8 heads" : "");
  Masks result;
  PaddingDoubt doubt = doubt_of(masks.parts.front(), options.polarity, options.array);
  if (doubt.hint.empty()) doubt = doubt_of(named, options.polarity);
  const MaskSet set = hinted(doubt.hint, [&] { return MaskSet(masks.parts, given); });
  job.require_memory(set.bytes());
  const JoinedMasks joined = set.join();

  result.q_length = set.lengths().q;
  result.kv_length = set.lengths().kv;
  result.has_head_axis = set.has_head_axis();
  result.name = masks.parts.front().name;
  result.remarks = broadcast_remarks(set, masks);
  if (result.q_length != result.kv_length)
    for (const std::string& text : set.unaligned()) result.alignment.push_back(alignment_warning(text));
  if (!doubt.warning.empty()) result.padding.push_back(doubt.warning);
  result.padding_hint = doubt.hint;
  add_warnings(named, result.doubts);
  result.idle = masks.idle();
  for (std::int64_t head = 0; head < set.heads(); ++head) result.heads.push_back(*joined.of(0, head));
  return result;
}

std::vector<Mask> resolve_expressions(const std::string& option,
                                      const std::vector<MaskExpression>& expressions, Polarity polarity,
                                      Masks& of, Job& job) {
  if (expressions.empty()) return {};
  NamedArrays named;
  HeadMasks part = head_masks(expressions, polarity, opener(job, "mask_array", named));
  const auto idle = inspect_bounds(option, expressions, part);
  const MaskSet set({std::move(part)}, MaskSet::Given{{of.head_count(), of.q_length, of.kv_length}, of.name});
  const JoinedMasks joined = set.join();
  if (of.q_length != of.kv_length)
    for (const std::string& text : set.unaligned()) of.alignment.push_back(alignment_warning(text, option));
  if (const PaddingDoubt doubt = doubt_of(named, polarity); !doubt.warning.empty())
    of.doubts.push_back(option + ": " + doubt.warning);
  add_warnings(named, of.doubts);
  for (std::string& text : idle()) of.idle.push_back(std::move(text));
  std::vector<Mask> heads;
  for (std::int64_t head = 0; head < of.head_count(); ++head) heads.push_back(*joined.of(0, head));
  return heads;
}

Option& add_mask_expressions(OptionSet& set, const std::string& name, std::vector<MaskExpression>& into,
                             const std::string& help) {
  return take_words(
      set, name, [&into](const std::string& word) { into.push_back(parsed(word)); }, "EXPR", help);
}

void declare_attention_masks(OptionSet& set, MaskOptions& into) {
  add_reference(
      set, "MASK", into.array,
      "an array (Q, K), (H, Q, K) or of attention (B, Q, K)\n"
      "bool, or integers of 0 and one other value: ids and positions are no mask. Non-zero: query q may attend to key "
      "k (see --mask-kind). Attention takes (Q, K), (B, Q, K), (B, 1, Q, K) and (B, H, Q, K), and three axes as "
      "(H, Q, K) where they have as many masks as heads, and not as entries. Elsewhere a mask of a batch needs a "
      "slice: mask.npy[0].")
      .group(kMaskGroup);
  add_mask_expressions(
      set, "--mask", into.expressions,
      "a rule, such as 'causal & documents(cu.npy)'\n"
      "One --mask serves all heads; as many as there are heads, one each. MASK and --mask are "
      "ANDed. In packed inputs positions are those within the sequence.")
      .recorded_by_command()
      .group(kMaskGroup);
  add_mask_kind(set, into.polarity).group(kMaskGroup);
}

HeadMasks tried_mask(const MaskExpression& expression, Polarity polarity, Job& job) {
  const auto open_resident = [&job](const std::string& reference) {
    return in_memory(*job.open("mask_array", reference));
  };
  const auto warnings = std::make_shared<std::vector<std::string>>();  // those of the mask are reported
  const OpenArray::Ids ids = [=, &job](const std::vector<std::string>& references) {
    return ids_opener(open_resident, job, *warnings)(references);
  };
  return head_masks({expression}, polarity, OpenArray(open_resident, group_opener(job), ids),
                    LeadingAxis::batch);
}

AttentionMasks open_attention_masks(const MaskOptions& options, Job& job, Duplicates duplicates) {
  using Source = std::shared_ptr<const ArraySource>;
  const auto arrays = std::make_shared<NamedArrays>();
  const auto resident_bytes = std::make_shared<std::int64_t>(0);
  const auto open_resident = [&job, arrays, resident_bytes](const std::string& reference) {
    Source& source = arrays->arrays[reference];
    if (source) return source;
    Source opened = job.open("mask_array", reference);
    if (!opened->random_access()) {
      *resident_bytes += byte_count(opened->shape(), opened->dtype());
      job.require_memory(*resident_bytes);
      opened = in_memory(*opened);
    }
    return source = opened;
  };
  const auto indices = std::make_shared<Source>();
  const auto open_once = [open_resident, indices](const std::string& reference) {
    return without_duplicates(*indices = open_resident(reference));
  };
  const OpenArray::Ids ids = ids_opener(open_resident, job, arrays->warnings);
  const OpenArray open(open_resident, group_opener(job), ids),
      open_counted(open_once, group_opener(job), ids);
  AttentionMasks masks = open_masks(options, LeadingAxis::batch, open,
                                    duplicates == Duplicates::counted ? open_counted : open, job);
  masks.indices = *indices;
  masks.resident_bytes = *resident_bytes;
  masks.doubts = [arrays] {
    std::vector<std::string> warnings;
    add_warnings(*arrays, warnings);
    return warnings;
  };
  return masks;
}

OpenArray::Group group_opener(Job& job) {
  return [&job](const std::string& reference, const std::vector<std::string>& names) {
    ArrayGroup group =
        job.phase(Phase::read, [&] { return job.inputs.open_group("mask_info", reference, names); });
    const StoredMaskInfo::Cost cost = StoredMaskInfo::cost(group);
    job.inputs.count_read(cost.read);
    job.require_memory(cost.buffered);
    return group;
  };
}

std::vector<std::string> broadcast_remarks(const MaskSet& set, const AttentionMasks& masks) {
  std::vector<std::string> remarks;
  for (const MaskBroadcast& b : set.broadcasts())
    remarks.push_back(fmt::format("{} serves all {} {}.", masks.titles[b.part], b.count,
                                  b.axis == MaskBroadcast::Axis::batch ? "batch entries" : "heads"));
  return remarks;
}

const char* const kMaskHelp = R"(Mask expressions (--mask)
  full, causal, causal(offset=K), causal(align=bottom-right)
                            query i sees key j where j <= i + K
  local(left=L, right=R), with offset=K or align=bottom-right
                            the query's own key, L before and R after; or none
  chunked(C), with offset=K or align=bottom-right
                            causal within chunks of C keys
  prefix(N)                 the first N keys
  segments(REF[, REF])      equal ids above 0 of queries and keys; from 0 if
                            every row begins with 0 and has it nowhere else
  documents(REF)            the same sequence of packed ones, by cu_seqlens
  file(REF)                 a stored mask, as MASK
  blocks(REF, QxK)          a stored mask of blocks, each QxK elements
  indices(REF)              the keys of each query, (queries, n); -1 is none
  tree(REF, prefix=N)       drafted tokens behind N keys, by their parents: a
                            query sees the N keys, itself and its ancestors
  positions(EXPR, q=REF, k=REF)
                            EXPR with query i at q[i], key j at k[j]
  from(REF)                 the mask that a file of mask-info stores, in any
                            layout, or FlashInfer's custom mask
  visited(REF)              all of the blocks that it makes a kernel visit
  ~ & | ( )                 not, and, or; ~ binds tightest, | loosest)";

}  // namespace ejk::app
