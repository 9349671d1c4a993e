// Errors: the one exception type of the library.
//
// The layer that detects a fault states the reason, the layer that knows the name prefixes it with `at`, and
// only the program maps the kind to an exit status.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace ejk {

class Error : public std::exception {
 public:
  enum class Kind {
    usage,     // invalid arguments: unknown, or contradictory
    input,     // an input is unreadable or invalid
    output,    // an output cannot be written
    budget,    // the work would need more memory than allowed
    internal,  // a violated invariant of ejk itself
  };

  /// Errors that callers distinguish: to continue without that input, or to add a hint in their own terms.
  enum class Code {
    other,
    no_such_axis,       // the hint says which there are: "axis is one of -2 to 1"
    not_integers,       // numbers of a float type where integers are needed
    needs_integers,     // of another dtype that holds whole numbers
    not_floats,         // numbers of another dtype where floats are needed
    not_offsets,        // cu_seqlens that do not begin with 0: perhaps they are lengths
    position_ids,       // position ids where offsets, lengths or a mask are needed
    segment_ids,        // segment ids where a mask is needed
    group_ends,         // cumulative ends of groups where their sizes are needed
    tokens_left,        // cu_seqlens that end before the tokens do: perhaps padding follows sequences
    exceeds_dtype,      // a value that the requested dtype cannot represent
    exceeds_row,        // a sequence that is longer than the rows it is to be packed into
    exists,             // what is to be written exists, and WriteOptions::overwrite is not set
    external,           // it is in another file, which OpenOptions::allow_external would read
    plugin_filter,      // its filter is a plug-in, which OpenOptions::allow_external would load
    unchecked_filter,   // only the HDF5 library has its filter, without checks; allow_external would use it
    transposed_rhs,     // matrices (groups, n, k) where (groups, k, n) are needed
    plain_rhs,          // the reverse
    transposed_lhs,     // rows (m, k) where (k, m) are needed
    masks_of_heads,     // a list of masks is not as long as there are heads
    padding_mask,       // (batch, keys) where queries × keys belong; the subject is the mask
    float_mask,         // numbers of a mask that is not said to be additive
    integer_mask,       // whole numbers of a mask that is said to be additive
    ids_in_mask,        // whole numbers of several values in a mask: ids or positions
    ones_in_mask,       // a 1 in an additive mask: zeros and ones were meant as bools
    bias_in_mask,       // a number between -1e4 and 0 in an additive mask: a bias such as -100
    named_no_array,     // a reference to a file of several arrays without a name; the hint lists them
    indivisible_mask,   // blocks do not divide its lengths; padding would do
    too_many_blocks,    // in a shard of a mask
    too_many_patterns,  // different partial blocks of a mask
    too_many_slices,    // rectangles of queries and keys that a mask is stored as
    computable_mask,    // a stored MaskInfo leaves its elements to the kernel
    unknown_lengths,    // nothing says how many queries and keys a stored MaskInfo is for
    not_of_fa4,         // arrays of another layout than those that FlashAttention-4 takes
    unknown_block,      // nothing says how large the blocks of a stored MaskInfo are
    repeated_key,       // a query has a key twice, which kernels that gather keys count twice
    heads_of_mask,      // that segment ids would have to merge
    state_layout,  // states (.., V, K) where (.., K, V) are needed, or the reverse; the hint is their layout
    negative_factor,  // a decay that is no factor: perhaps a logarithm
    untyped_bytes,    // elements of one byte that are no type of ejk; the hint is one that they may be
    unsupported,      // sound data of a type that ejk has no arrays of; a reader of whole files may leave it
                      // out. The last one: other processes' codes are compared with it
  };

  Error(Kind kind, std::string message, Code code = Code::other)
      : kind_(kind), code_(code), message_(std::move(message)) {}

  /// The parameter at fault ("lhs", "q", "group_sizes"), for callers who know it by the name of a file.
  Error&& about(std::string_view argument) && {
    subject_ = argument;
    return std::move(*this);
  }
  Error& about(std::string_view argument) & {
    subject_ = argument;
    return *this;
  }

  /// Adds a suggestion, printed on a line of its own. A later hint replaces an earlier one.
  Error&& hint(std::string text) && {
    hint_ = std::move(text);
    return std::move(*this);
  }
  Error& hint(std::string text) & {
    hint_ = std::move(text);
    return *this;
  }

  /// Prefixes the message with "name: ".
  Error& at(std::string_view name) {
    message_.insert(0, std::string(name) + ": ");
    names_length_ += name.size() + 2;
    return *this;
  }

  Kind kind() const noexcept { return kind_; }
  Code code() const noexcept { return code_; }
  /// Of a sound array whose type ejk does not have: a reader of whole files may skip it.
  bool is_of_unsupported_type() const noexcept {
    return code_ == Code::unsupported || code_ == Code::untyped_bytes;
  }
  const std::string& subject() const noexcept { return subject_; }
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept { return message_; }
  /// The message without the names that `at` prefixed.
  std::string_view why() const noexcept {
    return std::string_view(message_).substr(std::min(names_length_, message_.size()));
  }
  const std::string& hint() const noexcept { return hint_; }

 private:
  Kind kind_;
  Code code_;
  std::string subject_;
  std::string message_;
  std::size_t names_length_ = 0;
  std::string hint_;
};

}  // namespace ejk
