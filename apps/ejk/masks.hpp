// The masks of a command: MASK, --mask, --shape and --mask-kind, and what they come to.
#pragma once

#include <string>
#include <vector>

#include "ejk/attention.hpp"
#include "ejk/mask.hpp"
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
Option add_mask_kind(OptionSet& set, Polarity& into);

/// "keep", "drop", "additive".
const char* name_of(Polarity polarity);

void declare_masks(OptionSet& set, MaskOptions& into);

/// A warning for each expression that aligns query 0 with key 0 without having been told to; for masks whose
/// queries and keys differ in number.
std::vector<std::string> alignment_warnings(const MaskOptions& options);

/// The masks that were asked for, ANDed; headers are read, elements are not (but for documents and segments).
struct Masks {
  std::vector<Mask> heads;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  bool has_head_axis = false;         // the shape was given or found with an axis of heads
  std::string name;                   // what to call them in a message
  std::vector<std::string> remarks;   // broadcasts
  std::vector<std::string> warnings;  // an alignment that is likely not meant

  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
};

/// Opens what the options name. Throws Error{usage} when they do not say enough, Error{input} when they or
/// the arrays disagree.
Masks resolve_masks(const MaskOptions& options, Job& job);

/// The same options for attention, whose inputs have the lengths: MASK may have axes of batch and heads.
void declare_attention_masks(OptionSet& set, MaskOptions& into);

struct AttentionMasks {
  std::vector<AttentionMask> masks;  // ANDed
  std::vector<std::string> remarks;  // broadcasts
  /// Warnings that hold where queries and keys of a sequence differ in number.
  std::vector<std::string> alignment_warnings;
  std::int64_t held_bytes = 0;  // of arrays in memory
};

/// Opens what the options name, for inputs of this shape. Arrays that can only be read in order are held in
/// memory.
AttentionMasks resolve_attention_masks(const MaskOptions& options, const AttentionShape& shape, Job& job);

/// The last paragraphs of the help of a command that takes masks.
extern const char* const kMaskHelp;

}  // namespace ejk::app
