// The masks of a command: MASK, --mask, --shape and --mask-kind, and what they come to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ejk/mask.hpp"
#include "ejk/mask_set.hpp"
#include "ejk/report.hpp"
#include "job.hpp"

namespace ejk::app {

struct MaskOptions {
  std::string array;  // MASK; empty: none
  std::vector<MaskExpression> expressions;
  Shape shape;  // --shape: (Q, K), (H, Q, K), or empty
  Polarity polarity = Polarity::keep;
};

/// --mask-kind: what the elements of a stored mask mean.
Option& add_mask_kind(OptionSet& set, Polarity& into);

/// "keep", "drop", "additive".
const char* name_of(Polarity polarity);

void declare_masks(OptionSet& set, MaskOptions& into);

/// Of a mask expression that aligns query 0 with key 0 without having been told to, where queries and keys
/// differ in number.
std::string alignment_warning(const std::string& expression, const std::string& option = "--mask");

/// The masks that were asked for, ANDed; headers are read, elements are not (but for documents and segments, and a
/// MASK of few queries, which may be padding).
struct Masks {
  std::vector<Mask> heads;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  bool has_head_axis = false;          // the shape was given or found with an axis of heads
  std::string name;                    // what to call them in a message
  std::vector<std::string> remarks;    // broadcasts
  std::vector<std::string> alignment;  // warnings of one that is likely not meant
  std::vector<std::string> padding;    // a warning of an array that is likely a padding mask
  std::vector<std::string> doubts;     // warnings of other arrays that are likely something else
  std::string padding_hint;  // of blocks that do not divide one that may be a padding mask; or empty

  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
  std::vector<std::string> warnings() const {
    std::vector<std::string> all = alignment;
    all.insert(all.end(), padding.begin(), padding.end());
    all.insert(all.end(), doubts.begin(), doubts.end());
    return all;
  }
};

/// Opens what the options name. Throws Error{usage} when they do not say enough, Error{input} when they or
/// the arrays disagree.
Masks resolve_masks(const MaskOptions& options, Job& job);

/// "128x256".
BlockShape read_block(const std::string& word);

/// Calls f(), which plans work on the masks: its errors get the masks' name, and are usage errors where the
/// lengths were typed and are no input's. Blocks that do not divide what may be a padding mask get its hint.
template <class F>
auto plan_of_masks(const MaskOptions& options, const Masks& masks, F&& f) {
  try {
    return f();
  } catch (Error& error) {
    error.at(masks.name);
    const bool is_padding = error.code() == Error::Code::indivisible_mask && !masks.padding_hint.empty();
    if (options.shape.empty() && !is_padding) throw;
    throw Error(options.shape.empty() ? error.kind() : Error::Kind::usage, error.message(),
                is_padding ? Error::Code::other : error.code())
        .hint(is_padding ? masks.padding_hint + "; --pad fills a mask up with False" : error.hint());
  }
}

/// The masks of an option that takes expressions, for masks that are there: one a head. Warnings of their
/// alignment are added to those.
std::vector<Mask> resolve_expressions(const std::string& option,
                                      const std::vector<MaskExpression>& expressions, Polarity polarity,
                                      Masks& of, Job& job);

/// Adds an option --name EXPR, which may be given once, or once for each head.
Option& add_mask_expressions(OptionSet& set, const std::string& name, std::vector<MaskExpression>& into,
                             const std::string& help);

/// The same options for attention, whose inputs have the lengths: MASK may have axes of batch and heads.
void declare_attention_masks(OptionSet& set, MaskOptions& into);

struct AttentionMasks {
  std::vector<HeadMasks> parts;     // ANDed
  std::vector<std::string> titles;  // what remarks call each part
  std::vector<std::string> unaligned;
  std::int64_t held_bytes = 0;  // of arrays in memory
  /// Once masks were made: warnings of ids in expressions that are likely positions.
  std::function<std::vector<std::string>()> doubts;
};

/// A mask that is tried in the place of those of attention.
HeadMasks tried_mask(const MaskExpression& expression, Polarity polarity, Job& job);

/// Opens what the options name. Arrays that can only be read in order are held in memory.
AttentionMasks open_attention_masks(const MaskOptions& options, Job& job);

/// Opens the MaskInfo files that expressions name. Throws Error{budget} where one is too large.
OpenArray::Group group_opener(Job& job);

/// What serves several entries or heads, in words.
std::vector<std::string> broadcast_remarks(const MaskSet& set, const AttentionMasks& masks);

/// The last paragraphs of the help of a command that takes masks.
extern const char* const kMaskHelp;

}  // namespace ejk::app
