// Attention masks as values: computed from a rule, read from an array, or composed of others; never stored
// whole. Element (q, k) is true if query q may attend to key k. Blocks of queries × keys are classified as
// empty, full, partial or undecided, and only the elements of undecided ones are evaluated.
//
// Definitions, with 64-bit integers:
//   full                        true
//   causal(offset)              q + offset ≥ k
//   local(left, right, offset)  q + offset - left ≤ k ≤ q + offset + right; an omitted side has no bound
//   chunked(c, offset)          (q + offset) / c = k / c, rounded down, and q + offset ≥ k
//   segments(a, b)              a[q] = b[k] and a[q] > 0 and b[k] > 0
//   prefix(n)                   k < n
//   documents(cu)               q and k are tokens of the same sequence of cu_seqlens
//   indices(keys)               k is among keys[q]
//   tree(parents, n)            k < n, or k - n is q or an ancestor of q
//   positions(m, a, b)          m at (a[q], b[k])
//   array                       the element of an array
//   blocks(array)               the element of an array (q blocks, kv blocks) for the block of (q, k)
//   from(info), visited(info)   the masks of stored block metadata: ejk/mask_info.hpp, ejk/mask_layouts.hpp
// Source: the mask kinds of JAX's splash attention; segments and documents as in packed attention.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// Meaning of the elements of a stored mask.
enum class Polarity {
  keep,      // true or non-zero: attends
  drop,      // true or non-zero: masked
  additive,  // a float bias: 0 attends, ≤ -1e4 masks, other values are an error
};

struct BlockShape {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

/// "128x256".
std::string to_string(const BlockShape& block);

/// The pass that a kernel runs over blocks: forward walks the key blocks of a query block, dkv (gradients of
/// keys and values) the query blocks of a key block.
enum class Direction { forward, dkv };

class MaskNode;  // src/mask/node.hpp

class Mask {
 public:
  explicit Mask(std::shared_ptr<const MaskNode> node) : node_(std::move(node)) {}

  std::int64_t q_length() const;
  std::int64_t kv_length() const;

  /// A causal or local mask, or a chunked one without an offset: JAX's kernels evaluate these from indices.
  bool is_computable() const;

  /// The same kind, parameters and operand order; arrays, segments and documents by content. May read arrays.
  bool same_as(const Mask& other) const;

  /// The mask as an expression, "causal & documents(cu.npy)".
  std::string text() const;

  /// Writes the rectangle [q_begin, q_end) × [k_begin, k_end), within the mask, to `out` as bools in C order.
  void read(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end,
            bool* out) const;

  const MaskNode& node() const { return *node_; }
  const std::shared_ptr<const MaskNode>& shared_node() const { return node_; }

 private:
  std::shared_ptr<const MaskNode> node_;
};

/// Lengths of all masks are 1 to 2^48, else Error{input}.
Mask full_mask(std::int64_t q_length, std::int64_t kv_length);
Mask causal_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t offset = 0);
/// Errors: a negative count.
Mask local_mask(std::int64_t q_length, std::int64_t kv_length, std::optional<std::int64_t> left,
                std::optional<std::int64_t> right, std::int64_t offset = 0);
/// Errors: chunk < 1.
Mask chunked_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t chunk, std::int64_t offset = 0);

/// Every query attends to the first `keys` keys. Errors: a negative count.
Mask prefix_mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t keys);

/// The elements of a bool array (q_length, kv_length). Errors: another rank or dtype.
Mask array_mask(std::shared_ptr<const ArraySource> array);
/// The same for a bool or integer array of a polarity, or a float one that is additive. Reading throws
/// Error{input} for integers of several non-zero values (Code::ids_in_mask) and biases between 0 and -1e4.
Mask array_mask(std::shared_ptr<const ArraySource> array, Polarity polarity);

/// Whether a mask is likely a padding mask (batch, tokens). `possible`: fewer rows than columns, each True in
/// one range from its begin or to its end, and no causal edge. `likely`: the rows differ, and of four and
/// more not in one direction. Reads at most 1,024 rows, and none that can only be read in order.
enum class PaddingGuess { none, possible, likely };
PaddingGuess padding_guess(const Mask& mask);

/// A bound of a window, chunk or prefix; a causal edge, as right=0, is none. Without an idle one the mask is
/// the same: it masks no pair, or only pairs of two documents in an intersection with documents(...).
struct MaskBound {
  std::string text;  // "left=4096"
  bool is_idle = false;
};

/// The bounds of all parts of a mask, in the order of its text. Reads no elements.
std::vector<MaskBound> bounds_of(const Mask& of);

/// Whether all queries attend to all keys, where that is known without elements: never of a stored array.
bool is_known_full(const Mask& of);

/// Each element of an array (q blocks, kv blocks) of array_mask is a block of elements; the last one of a row
/// or column may be cut short. The array is read now. Errors: lengths of another number of blocks; those of
/// array_mask.
Mask blocks_mask(std::shared_ptr<const ArraySource> blocks, BlockShape block, std::int64_t q_length,
                 std::int64_t kv_length, Polarity polarity = Polarity::keep);

/// One id a query and one a key, 1-D integer arrays; an id ≤ 0 is padding.
Mask segments_mask(const IntegerArray& q_ids, const IntegerArray& kv_ids);

/// Block diagonal over the sequences of cu_seqlens (1-D integers, from 0, never decreasing) and as long.
Mask documents_mask(const IntegerArray& cu_seqlens);

/// The keys of each query, integers (queries, n) in any order; -1 is none. Errors: a key out of range, a key
/// twice.
Mask indices_mask(const IntegerArray& indices, std::int64_t kv_length);

/// Such keys (..., queries, n) with the second and later mentions of a key as -1, and the logarithms of how
/// often each of `kv_length` keys is mentioned, (..., queries, kv_length), of float32 or float64; 0 for those
/// that are not. As a bias of attention these count a key as a kernel that gathers keys does. Rows are read
/// when they are. Errors: as indices_mask, on read those of elements.
std::shared_ptr<const ArraySource> without_duplicates(std::shared_ptr<const ArraySource> indices);
std::shared_ptr<const ArraySource> log_counts(std::shared_ptr<const ArraySource> indices,
                                              std::int64_t kv_length, DType dtype);

/// A tree of drafted tokens behind `prefix` keys: each token's parent (tokens,), -1 for a root. Errors: a
/// parent that does not come before its child.
Mask tree_mask(const IntegerArray& parents, std::int64_t prefix);

/// `of` with its queries and keys gathered: element (i, j) is element (q[i], k[j]) of `of`. Without an array an
/// axis is as it is. Errors: an index out of range.
Mask positions_mask(Mask of, const IntegerArray& q, const IntegerArray& k = {});

/// Errors: unequal shapes.
Mask operator&(const Mask& a, const Mask& b);
Mask operator|(const Mask& a, const Mask& b);
Mask operator~(const Mask& a);

/// The slice `index` of an array's first axis. Throws Error{usage} where there is none.
std::shared_ptr<const ArraySource> slice_of(std::shared_ptr<const ArraySource> array, std::int64_t index);

namespace mask {
class StoredMasks;  // src/mask/stored_masks.hpp
struct OpenedMasks;
}  // namespace mask

/// Opens the references of mask expressions: arrays, as open_array does, and for from(...) and visited(...)
/// the named arrays of a file or group, as ArrayFile::group does. Copies share the masks of such files.
class OpenArray {
 public:
  using Array = std::function<std::shared_ptr<const ArraySource>(const std::string& reference)>;
  using Group =
      std::function<ArrayGroup(const std::string& reference, const std::vector<std::string>& names)>;
  /// The ids of segments(...), of queries and of keys: as many as references. Absent: as arrays.
  using Ids = std::function<std::vector<std::shared_ptr<const ArraySource>>(
      const std::vector<std::string>& references)>;

  OpenArray() = default;
  template <std::convertible_to<Array> F>
  OpenArray(F array, Group group = nullptr, Ids ids = nullptr)
      : OpenArray(Array(std::move(array)), std::move(group), std::move(ids), {}) {}

  std::shared_ptr<const ArraySource> operator()(const std::string& reference) const {
    return array_(reference);
  }
  const Group& group() const { return group_; }
  std::vector<std::shared_ptr<const ArraySource>> ids(const std::vector<std::string>& references) const;
  mask::OpenedMasks& opened() const { return *opened_; }

 private:
  struct Made {};
  OpenArray(Array array, Group group, Ids ids, Made);

  Array array_;
  Group group_;
  Ids ids_;
  std::shared_ptr<mask::OpenedMasks> opened_;
};

/// What the first of three axes of a stored mask is. With batch, four axes are (B, H, Q, K).
enum class LeadingAxis { batch, heads };

/// The shape of a mask as far as arrays fix it; 0: unknown.
struct MaskShape {
  std::int64_t heads = 0;  // 1: the same for any number
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  bool at_most = false;         // lengths of whole blocks; the last may be partial
  bool heads_are_rows = false;  // rows of the arrays of a MaskInfo, which may serve several heads each
  std::int64_t batch = 1;       // 1: the same for any number of entries
  bool may_be_heads = false;    // batch is the first of three axes
};

/// Whether a text names the arrays that it refers to.
enum class References { shown, hidden };

/// A parsed mask expression:
///
///   union  := inter ('|' inter)*
///   inter  := unary ('&' unary)*
///   unary  := '~' unary | '(' union ')' | kind [ '(' arguments ')' ]
///   kind   := full | causal(offset=0, align=top-left) | local(left=, right=, offset=0, align=top-left)
///           | chunked(size=, offset=0, align=top-left) | prefix(keys=) | segments(q=REF[, kv=REF])
///           | documents(cu_seqlens=REF) | file(array=REF) | blocks(array=REF, block=QxK)
///           | from(info=REF, ...) | visited(info=REF, ...) | indices(keys=REF)
///           | tree(parents=REF, prefix=0) | positions(mask=EXPR, q=REF, k=REF)
///
/// Names of arguments in this order are optional. left and right are counts or "none". align=bottom-right is
/// offset = keys - queries. References with special characters are in double quotes. from and visited take
/// block=QxK, shape=HxQxK, walk=forward or dkv, head_shards= and q_seq_shards= for settings that are not in
/// the file.
class MaskExpression {
 public:
  /// Throws Error{usage} with the position of the first error; the hint is the likely expression or kind.
  static MaskExpression parse(std::string_view text);

  /// The expression for a text in the notation of other libraries and languages: "sliding_window(256) and
  /// causal" is "local(left=255, right=0) & causal". Nothing for an expression, or without a translation.
  static std::optional<std::string> meant_by(std::string_view text);

  /// Heads, queries and keys as far as arrays fix them, and with LeadingAxis::batch entries, of file().
  /// Throws Error{input} when these disagree.
  MaskShape shape(const OpenArray& open, LeadingAxis leading = LeadingAxis::heads) const;

  /// The mask of one head of `shape`, (heads, queries, keys): of an array with heads slice `head`, or its
  /// only one. With `entry` the leading axis of file() is the batch.
  Mask resolve(const Shape& shape, std::int64_t head, Polarity polarity, const OpenArray& open,
               std::optional<std::int64_t> entry = std::nullopt) const;

  const std::string& text() const { return text_; }

  /// The same, with "..." for arguments that name arrays: "causal & file(...)".
  std::string text(References references) const;

  /// Whether it has a causal, local or chunked mask without align and offset: query 0 is aligned with key 0,
  /// which is seldom intended for unequal numbers of queries and keys.
  bool leaves_alignment_open() const;

  struct Node;

 private:
  std::string text_;
  std::vector<std::pair<std::size_t, std::size_t>> references_;  // begin and end of arguments in text_
  std::shared_ptr<const Node> root_;
};

}  // namespace ejk
