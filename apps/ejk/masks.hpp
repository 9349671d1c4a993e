// Mask options of commands (MASK, --mask, --shape, --mask-kind), and the masks they describe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "ejk/mask_set.hpp"
#include "ejk/report.hpp"
#include "ejk/sparsity.hpp"
#include "job.hpp"

namespace ejk::app {

struct MaskOptions {
  std::string array;  // MASK; empty: none
  std::vector<MaskExpression> expressions;
  Shape shape;  // (Q, K), (H, Q, K), or empty
  std::string shape_option = "--shape";
  Polarity polarity = Polarity::keep;
};

/// --mask-kind: meaning of the elements of a stored mask.
Option& add_mask_kind(OptionSet& set, Polarity& into);

const char* name_of(Polarity polarity);

void declare_masks(OptionSet& set, MaskOptions& into);

/// For a mask expression without an explicit alignment, if there are not as many queries as keys.
std::string alignment_warning(const std::string& expression, const std::string& option = "--mask");

/// The requested masks, ANDed.
struct Masks {
  std::vector<Mask> heads;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  bool has_head_axis = false;          // the shape has an axis of heads
  std::string name;                    // in messages
  std::vector<std::string> remarks;    // broadcasts
  std::vector<std::string> alignment;  // warnings: likely not the intended one
  std::vector<std::string> padding;    // warning: likely a padding mask
  std::vector<std::string> doubts;     // warnings: arrays that are likely something else
  std::vector<std::string> idle;       // warnings: bounds that mask nothing
  std::string padding_hint;            // for indivisible blocks of a likely padding mask; or empty

  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
  /// Warnings of what the masks likely mean.
  std::vector<std::string> assumptions() const {
    std::vector<std::string> all = alignment;
    all.insert(all.end(), padding.begin(), padding.end());
    all.insert(all.end(), doubts.begin(), doubts.end());
    return all;
  }
  std::vector<std::string> warnings() const {
    std::vector<std::string> all = assumptions();
    all.insert(all.end(), idle.begin(), idle.end());
    return all;
  }
};

/// Reads elements of documents, segments, and a MASK of few queries, which may be padding. `lengths`: queries
/// and keys of masks that have none, with their name; or empty. Throws Error{usage} for incomplete options,
/// Error{input} if they or the arrays disagree.
Masks resolve_masks(const MaskOptions& options, Job& job, const MaskSet::Given& lengths = {});

BlockShape read_block(const std::string& word);

/// --arch, --head-dim, --head-dim-v and --backward: a kernel of FlashAttention-4.
struct KernelOptions {
  std::optional<Fa4Arch> arch;
  std::optional<std::int64_t> head_dim, head_dim_v;
  bool backward = false;

  /// None without --arch. Throws Error{usage} where one of them lacks another.
  std::optional<Fa4Kernel> kernel() const;
};
void declare_kernel(OptionSet& set, KernelOptions& into);

/// Options by the argument of the library that they give.
using ArgumentOptions = std::map<std::string, std::string>;

/// Returns f(). An error about one of the arguments is prefixed with its option.
template <class F>
auto naming_options(const ArgumentOptions& options, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    if (const auto option = options.find(error.subject()); option != options.end()) error.at(option->second);
    throw;
  }
}

/// Calls f(), which plans work on the masks. Its errors get the name of the masks, and are usage errors if
/// the lengths are from the command line; indivisible blocks of a likely padding mask get its hint. Errors
/// about `others` get the name of their option instead.
template <class F>
auto plan_of_masks(const MaskOptions& options, const Masks& masks, F&& f,
                   const ArgumentOptions& others = {}) {
  try {
    return naming_options(others, f);
  } catch (Error& error) {
    if (others.contains(error.subject())) throw;
    error.at(masks.name);
    const bool is_padding = error.code() == Error::Code::indivisible_mask && !masks.padding_hint.empty();
    if (options.shape.empty() && !is_padding) throw;
    throw Error(options.shape.empty() ? error.kind() : Error::Kind::usage, error.message(),
                is_padding ? Error::Code::other : error.code())
        .hint(is_padding ? masks.padding_hint + "; --pad fills a mask up with False" : error.hint());
  }
}

/// The masks of an option of expressions, one a head of the masks `of`, which gets their warnings.
std::vector<Mask> resolve_expressions(const std::string& option,
                                      const std::vector<MaskExpression>& expressions, Polarity polarity,
                                      Masks& of, Job& job);

/// Adds an option --name EXPR, given once, or once for each head.
Option& add_mask_expressions(OptionSet& set, const std::string& name, std::vector<MaskExpression>& into,
                             const std::string& help);

/// The same options for attention, whose inputs determine the lengths: MASK may have axes of batch and heads.
void declare_attention_masks(OptionSet& set, MaskOptions& into);

struct AttentionMasks {
  std::vector<HeadMasks> parts;     // ANDed
  std::vector<std::string> titles;  // names of the parts in remarks
  std::vector<std::string> unaligned;
  std::int64_t resident_bytes = 0;             // of arrays in memory
  std::shared_ptr<const ArraySource> indices;  // with duplicates, where these are counted
  /// After masks are created: warnings of ids in expressions that are likely positions.
  std::function<std::vector<std::string>()> doubts;
  /// The same: bounds in expressions that mask nothing in any entry. Masks created later are not inspected.
  std::function<std::vector<std::string>()> idle = [] { return std::vector<std::string>(); };
};

HeadMasks tried_mask(const MaskExpression& expression, Polarity polarity, Job& job);

/// Opens the arrays of the options. Sequential arrays are kept in memory. Counted: the only array of the
/// expression is that of indices(), which may have keys several times.
enum class Duplicates { refused, counted };
AttentionMasks open_attention_masks(const MaskOptions& options, Job& job,
                                    Duplicates duplicates = Duplicates::refused);

/// Opens the MaskInfo files of expressions. Throws Error{budget} if one is too large.
OpenArray::Group group_opener(Job& job);

std::vector<std::string> broadcast_remarks(const MaskSet& set, const AttentionMasks& masks);

extern const char* const kMaskHelp;

}  // namespace ejk::app
