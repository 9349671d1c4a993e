#include "masks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "ejk/text.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

Error usage(std::string message) { return Error(Error::Kind::usage, std::move(message)); }

Polarity read_polarity(const std::string& word) {
  constexpr Polarity values[] = {Polarity::keep, Polarity::drop, Polarity::additive};
  return values[read_choice(word, {"keep", "drop", "additive"})];
}

// "causal & file(a/b.npy)" → "causal & file(...)": what a written file may say of an expression.
std::string without_references(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    out += text[i++];
    const bool opens = out.ends_with("file(") || out.ends_with("segments(") || out.ends_with("documents(");
    if (!opens) continue;
    bool quoted = false;
    for (int depth = 1; i < text.size(); ++i) {
      if (text[i] == '"') quoted = !quoted;
      if (quoted) continue;
      if (text[i] == '(') ++depth;
      if (text[i] == ')' && --depth == 0) break;
    }
    out += "...";
  }
  return out;
}

// One source of lengths: --shape, MASK or an expression. Heads 0: it says nothing of them.
struct Claim {
  std::string who;
  std::int64_t heads;
  std::int64_t q;
  std::int64_t kv;
  bool is_broadcast;  // one head may serve all
};

std::string text_of(const Claim& claim) {
  const std::string lengths = fmt::format("{} x {}", claim.q, claim.kv);
  return claim.heads > 0 ? fmt::format("{} head{} of {}", claim.heads, claim.heads == 1 ? "" : "s", lengths)
                         : lengths;
}

bool is_expression(const std::string& text) {
  try {
    return MaskExpression::parse(text), true;
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<const ArraySource> open_mask_array(const std::string& reference, Job& job) {
  std::shared_ptr<const ArraySource> array;
  try {
    array = job.open("mask", reference);
  } catch (Error& error) {
    if (is_expression(reference))
      error.hint(fmt::format("an expression follows --mask: --mask '{}'", reference));
    throw;
  }
  const Shape& shape = array->shape();
  const auto rank = shape.size();
  if (rank == 2 || rank == 3) {
    const char* const axes[] = {"heads", "queries", "keys"};
    for (std::size_t d = 0; d < rank; ++d)
      if (shape[d] == 0)
        throw Error(Error::Kind::input, fmt::format("{}: shape {} has no {}", printable(reference),
                                                    to_string(shape), axes[d + 3 - rank]));
    return array;
  }
  Error error(Error::Kind::input, fmt::format("{}: shape {} is neither (Q, K) nor (H, Q, K)",
                                              printable(reference), to_string(shape)));
  if (rank == 4) error.hint(fmt::format("a slice picks one batch entry: '{}[0]'", printable(reference)));
  throw error;
}

// Files are named inside of file(...): a word that names one is not an expression.
bool names_file(const std::string& word) {
  const std::string path = word.substr(0, word.find_first_of(":["));
  for (const char* suffix : {".npy", ".npz", ".h5", ".hdf5", ".hdf", ".he5"})
    if (path.ends_with(suffix) && path.find_first_of("&|~(") == std::string::npos) return true;
  return false;
}

MaskExpression parsed(const std::string& word) {
  try {
    return MaskExpression::parse(word);
  } catch (Error& error) {
    if (names_file(word)) error.hint(fmt::format("a stored mask is --mask 'file({})'", word));
    throw;
  }
}

void add_expressions(OptionSet& set, MaskOptions& into, const std::string& help) {
  take_words(
      set, "--mask", [&into](const std::string& word) { into.expressions.push_back(parsed(word)); }, "EXPR",
      "a rule, such as 'causal & documents(cu.npy)'\n" + help)
      .group("Masks");
}

// What written files say of the masks.
void note_masks(const MaskOptions& options, Job& job) {
  std::string rules;
  for (const MaskExpression& expression : options.expressions)
    rules += (rules.empty() ? "" : "; ") + without_references(expression.text());
  if (!rules.empty()) job.provenance.record("mask", rules);
  job.provenance.record("mask_kind", name_of(options.polarity));
}

}  // namespace

Option add_mask_kind(OptionSet& set, Polarity& into) {
  return add_word(
      set, "--mask-kind", into, read_polarity, "KIND",
      "what stored elements mean: keep, drop or additive\n"
      "keep (default): non-zero attends. drop: non-zero is hidden. additive: a bias, 0 attends, -1e4 and "
      "less or -inf hides, anything else is an error.");
}

const char* name_of(Polarity polarity) {
  return polarity == Polarity::keep ? "keep" : polarity == Polarity::drop ? "drop" : "additive";
}

void declare_masks(OptionSet& set, MaskOptions& into) {
  add_reference(
      set, "MASK", into.array,
      "an array (Q, K) or (H, Q, K), bool or integer\n"
      "Non-zero means that query q may attend to key k, unless --mask-kind says otherwise. A mask of a "
      "batch needs a slice: mask.npy[0].")
      .group("Masks");
  add_expressions(
      set, into,
      "One --mask serves all heads; as many as there are heads, one each. MASK and --mask are ANDed.");
  add_word(
      set, "--shape", into.shape, [](const std::string& w) { return read_lengths(w, 2, 3, "HxQxK or QxK"); },
      "HxQxK", "heads, queries and keys; QxK is one head\nMay be left out where an array fixes it.")
      .group("Masks");
  add_mask_kind(set, into.polarity).group("Masks");
}

std::vector<std::string> alignment_warnings(const MaskOptions& options) {
  std::vector<std::string> warnings;
  for (const MaskExpression& expression : options.expressions) {
    if (!expression.leaves_alignment_open()) continue;
    warnings.push_back(
        fmt::format("--mask '{}': queries and keys differ in number, and query 0 is aligned with key 0; "
                    "align=bottom-right aligns the last ones, align=top-left confirms this",
                    printable(expression.text(), 60)));
  }
  return warnings;
}

Masks resolve_masks(const MaskOptions& options, Job& job) {
  if (options.array.empty() && options.expressions.empty())
    throw usage("there is no mask").hint("give an array, or --mask EXPR with --shape HxQxK");

  const OpenArray open = [&job](const std::string& reference) { return job.open("mask_array", reference); };
  Masks masks;
  std::vector<Claim> claims;

  if (!options.shape.empty()) {
    const bool three = options.shape.size() == 3;
    claims.push_back({"--shape", three ? options.shape[0] : 1, options.shape[three ? 1 : 0],
                      options.shape[three ? 2 : 1], false});
    masks.has_head_axis = three;
  }
  std::shared_ptr<const ArraySource> array;
  if (!options.array.empty()) {
    array = open_mask_array(options.array, job);
    const Shape& shape = array->shape();
    const bool three = shape.size() == 3;
    claims.push_back({printable(options.array), three ? shape[0] : 0, shape[three ? 1 : 0],
                      shape[three ? 2 : 1], three && shape[0] == 1});
    if (options.shape.empty()) masks.has_head_axis = three;
  }
  bool heads_in_expressions = false;  // a file() in one has a mask for each head
  for (const MaskExpression& expression : options.expressions) {
    job.provenance.input("mask_expression", expression.text());
    const auto shape = expression.shape(open);
    if (!shape) continue;
    claims.push_back({fmt::format("--mask '{}'", printable(expression.text())),
                      (*shape)[0] == 1 ? 0 : (*shape)[0], (*shape)[1], (*shape)[2], false});
    heads_in_expressions = heads_in_expressions || (*shape)[0] > 1;
  }
  if (claims.empty())
    throw usage("--shape is required: no array says how many queries and keys there are")
        .hint("for example --shape 8x4096x4096 for 8 heads");

  // All must agree; a count of 1 that is not --shape's serves all heads.
  const auto expressions = static_cast<std::int64_t>(options.expressions.size());
  const Claim* heads_by = nullptr;
  for (const Claim& claim : claims) {
    const Claim& first = claims.front();
    if (claim.q != first.q || claim.kv != first.kv)
      throw Error(Error::Kind::input, fmt::format("{} has {} queries x {} keys, {} has {} x {}", claim.who,
                                                  claim.q, claim.kv, first.who, first.q, first.kv));
    if (claim.heads == 0 || claim.is_broadcast) continue;
    if (heads_by && heads_by->heads != claim.heads)
      throw Error(Error::Kind::input, fmt::format("{} has {}, {} has {}", claim.who, text_of(claim),
                                                  heads_by->who, text_of(*heads_by)));
    if (!heads_by) heads_by = &claim;
  }
  masks.q_length = claims.front().q;
  masks.kv_length = claims.front().kv;
  if (masks.q_length != masks.kv_length) masks.warnings = alignment_warnings(options);
  const std::int64_t heads = heads_by ? heads_by->heads : std::max<std::int64_t>(expressions, 1);
  if (expressions > 1 && expressions != heads)
    throw Error(heads_by && heads_by->who == "--shape" ? Error::Kind::usage : Error::Kind::input,
                fmt::format("{} expressions (--mask) for {} head{} ({})", expressions, heads,
                            heads == 1 ? "" : "s", heads_by ? heads_by->who : "no array has more"))
        .hint("one --mask serves all heads, else each head has its own");
  if (heads > 1) masks.has_head_axis = true;

  const std::int64_t array_heads = array && array->shape().size() == 3 ? array->shape()[0] : 1;
  if (array && heads > 1 && array_heads == 1)
    masks.remarks.push_back(fmt::format("{} of shape {} serves all {} heads.", printable(options.array),
                                        to_string(array->shape()), heads));
  if (expressions == 1 && heads > 1)
    masks.remarks.push_back(fmt::format("--mask '{}' serves all {} heads.",
                                        printable(options.expressions.front().text()), heads));
  masks.name = array ? printable(options.array)
                     : fmt::format("--mask '{}'", printable(options.expressions.front().text()));

  const Shape shape{heads, masks.q_length, masks.kv_length};
  const auto mask_of = [&](std::int64_t head) {
    std::optional<Mask> mask;
    if (array)
      mask = array_mask(array->shape().size() == 2 ? array : slice_of(array, array_heads == 1 ? 0 : head),
                        options.polarity);
    if (expressions > 0) {
      const auto which = static_cast<std::size_t>(expressions == 1 ? 0 : head);
      const Mask rule = options.expressions[which].resolve(shape, head, options.polarity, open);
      mask = mask ? *mask & rule : rule;
    }
    return *mask;
  };
  const bool one_for_all = array_heads == 1 && expressions <= 1 && !heads_in_expressions;
  constexpr std::int64_t bytes_of_a_head = 64, bytes_of_a_mask = 512;  // about; ids and files come on top
  job.require_memory(heads * (one_for_all ? bytes_of_a_head : bytes_of_a_mask));
  masks.heads.reserve(static_cast<std::size_t>(heads));
  for (std::int64_t head = 0; head < heads; ++head)
    masks.heads.push_back(head > 0 && one_for_all ? masks.heads.front() : mask_of(head));

  note_masks(options, job);
  return masks;
}

void declare_attention_masks(OptionSet& set, MaskOptions& into) {
  add_reference(set, "MASK", into.array,
                "an array (Q, K), (B, Q, K), (B, 1, Q, K) or (B, H, Q, K)\n"
                "bool or integer: non-zero means that query q may attend to key k, unless --mask-kind says "
                "otherwise.")
      .group("Masks");
  add_expressions(
      set, into,
      "One --mask serves all heads; as many as there are heads, one each. All masks that are given "
      "are ANDed. In packed inputs positions are those within the sequence.");
  add_mask_kind(set, into.polarity).group("Masks");
}

AttentionMasks resolve_attention_masks(const MaskOptions& options, const AttentionShape& shape, Job& job) {
  AttentionMasks masks;
  using Source = std::shared_ptr<const ArraySource>;
  const auto held = std::make_shared<std::map<std::string, Source>>();
  const auto held_bytes = std::make_shared<std::int64_t>(0);
  const OpenArray open = [&job, held, held_bytes](const std::string& reference) {
    Source& source = (*held)[reference];
    if (source) return source;
    Source opened = job.open("mask_array", reference);
    if (!opened->random_access()) {
      *held_bytes += byte_count(opened->shape(), opened->dtype());
      job.require_memory(*held_bytes);
      opened = in_memory(*opened);
    }
    return source = opened;
  };
  if (!options.array.empty()) {
    Source array;
    try {
      array = open(options.array);
    } catch (Error& error) {
      if (is_expression(options.array))
        error.hint(fmt::format("an expression follows --mask: --mask '{}'", options.array));
      throw;
    }
    masks.masks.push_back(attention_mask(array, options.polarity));
    const AttentionMask& mask = masks.masks.back();
    const std::string what =
        fmt::format("{} of shape {}", printable(options.array), to_string(array->shape()));
    if (mask.batch == 1 && shape.entries > 1)
      masks.remarks.push_back(fmt::format("{} serves all {} batch entries.", what, shape.entries));
    if (mask.heads == 1 && shape.heads > 1)
      masks.remarks.push_back(fmt::format("{} serves all {} heads.", what, shape.heads));
  }
  for (const MaskExpression& expression : options.expressions)
    job.provenance.input("mask_expression", expression.text());
  if (!options.expressions.empty()) {
    masks.masks.push_back(attention_mask(options.expressions, options.polarity, open));
    if (options.expressions.size() == 1 && masks.masks.back().heads == 1 && shape.heads > 1)
      masks.remarks.push_back(fmt::format("--mask '{}' serves all {} heads.",
                                          printable(options.expressions.front().text()), shape.heads));
  }
  masks.alignment_warnings = alignment_warnings(options);
  masks.held_bytes = *held_bytes;
  note_masks(options, job);
  return masks;
}

const char* const kMaskHelp = R"(Mask expressions (--mask)
  full, causal, causal(offset=K), causal(align=bottom-right)
                            query i sees key j where j <= i + K
  local(left=L, right=R), with offset=K or align=bottom-right
                            the query's own key, L before and R after; or none
  chunked(C)                causal within chunks of C
  segments(REF[, REF])      equal ids above 0 of queries and keys
  documents(REF)            the same sequence of packed ones, by cu_seqlens
  file(REF)                 a stored mask, as MASK
  ~ & | ( )                 not, and, or; ~ binds tightest, | loosest)";

}  // namespace ejk::app
