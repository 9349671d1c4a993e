// Packed sequences: cu_seqlens and everything made from it.
//
// cu_seqlens is a 1-D integer array of n + 1 elements that begins with 0 and never decreases: sequence i
// holds the tokens cu[i] … cu[i+1] - 1 of a packed array. Anything else is Error{input} that names the index
// at fault. An empty sequence uses up its number; by ejkernel's convention it is skipped when sequences are
// counted. Source: ejkernel's xla_utils.utils. C and b are at least 1.
//
// Functions named *_ids, *_indices and *_offsets give an array that is made while it is read, so none of them
// needs memory that grows with the tokens; read_all() puts one in memory, on all threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/integer_array.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// ceil(a / b) of every element, exactly, negative ones too; the dtype and shape of a. Errors: not integers,
/// b < 1.
Array cdiv(const ArraySource& a, std::int64_t b);

/// Lengths: (n,) of cu's dtype.
Array prepare_lens(const IntegerArray& cu_seqlens);

/// The number of True (non-zero) in each row of a bool or integer mask (batch, seq), holes and padding on
/// either side allowed: (batch,) int32. Errors: another rank, a float dtype.
Array prepare_lens_from_mask(const ArraySource& mask);

/// 0 and the running sum of those lengths: (batch + 1,) of any integer or float dtype. Errors: a sum that it
/// cannot hold exactly.
Array prepare_cu_seqlens_from_mask(const ArraySource& mask, DType out_dtype = DType::int32);
/// The same from lengths (n,). Errors: a negative length.
Array prepare_cu_seqlens_from_lens(const IntegerArray& lens, DType out_dtype = DType::int32);
/// The same from segment ids (tokens,) or (rows, tokens), rows one after the other: every run of equal ids in a
/// row is a sequence. Negative ids are padding, which is left out.
Array prepare_cu_seqlens_from_segment_ids(const IntegerArray& ids, DType out_dtype = DType::int32);
/// The same from position ids (tokens,) or (rows, tokens): every 0 begins a sequence, and each id after it is one
/// more than the one before. Negative ids are padding, which is left out. Errors: any other id, by its index.
Array prepare_cu_seqlens_from_position_ids(const IntegerArray& ids, DType out_dtype = DType::int32);

/// What the elements of an array of integers (n,) or (rows, n) suggest. Lengths and masks have no pattern.
enum class SequenceForm {
  cu_seqlens,    // begins with 0, never decreases
  segment_ids,   // runs of ids that count up from 0 or 1, at least two tokens a run on average
  position_ids,  // begins with 0, and each element is 0 or one more than the one before
};
struct LikelyForm {
  SequenceForm form;
  /// The flat index of the first position id that begins another sequence after one of three tokens or more: lengths
  /// and offsets do not look like that.
  std::optional<std::int64_t> restart;
};
/// Nothing where no pattern fits, or too few elements to tell. Errors: another rank, not integers.
std::optional<LikelyForm> likely_form(const ArraySource& integers);

/// The rows of such a mask: how many True each has, and how many rows are not simply padded on the right. A
/// row can be both left-padded and have holes.
struct RowPadding {
  std::vector<std::int64_t> lens;
  std::int64_t left_padded = 0;  // the first True is not at 0
  std::int64_t with_holes = 0;   // a False between two True
};

/// Which integers a mask may hold: any, and what is not 0 is True; or 0 and one other value. Others are then
/// Error{input} that names the index, and whether the row looks like ids (Error::Code::position_ids or segment_ids).
enum class MaskIntegers { any, one_value };
RowPadding inspect_padding(const ArraySource& mask, MaskIntegers integers = MaskIntegers::any);

/// What cu_seqlens come to.
struct SequenceCounts {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::int64_t empty = 0;  // sequences without a token
  std::int64_t longest = 0;
};
SequenceCounts count_sequences(const IntegerArray& cu_seqlens);

/// All about the lengths: counts, percentiles (interpolated as NumPy does), a histogram in powers of two, and
/// what packing saves against padding to the longest: tokens, and attention work as the sum of squared
/// lengths. `padded`: cu_seqlens with the padding behind each sequence, which is told, too.
Report describe_sequences(const IntegerArray& cu_seqlens, const IntegerArray& padded = {});

/// 0 … len - 1 for the tokens of each sequence: (tokens,) of cu's dtype.
std::shared_ptr<const ArraySource> prepare_position_ids(const IntegerArray& cu_seqlens);

/// The number of each token's sequence: (tokens,) int32, int64 if cu has 64 bits.
std::shared_ptr<const ArraySource> prepare_sequence_ids(const IntegerArray& cu_seqlens,
                                                        Convention convention = Convention::document);

/// [sequence id, position id] of each token: (tokens, 2) of cu's dtype. Throws Error{input} where that does not
/// hold the number of a sequence; so do chunk indices.
std::shared_ptr<const ArraySource> prepare_token_indices(const IntegerArray& cu_seqlens,
                                                         Convention convention = Convention::document);

/// [sequence id, chunk number] of each chunk of C tokens, the last of a sequence cut short: (chunks, 2) of
/// cu's dtype.
std::shared_ptr<const ArraySource> prepare_chunk_indices(const IntegerArray& cu_seqlens,
                                                         std::int64_t chunk_size,
                                                         Convention convention = Convention::document);

/// 0 and the running sum of the numbers of chunks: (n + 1,) of cu's dtype.
Array prepare_chunk_offsets(const IntegerArray& cu_seqlens, std::int64_t chunk_size);

/// Memory that each function above takes beside its input and its result, at most: `input` is cu_seqlens,
/// lengths or a mask (batch, seq).
std::int64_t sequence_work_bytes(const ArrayType& input);

enum class Reorder {
  to_ring,        // pieces r and 2·cp - 1 - r go to rank r: causal work is balanced
  to_contiguous,  // the inverse
};

/// Cuts an axis into 2·cp pieces and orders them for a ring of cp ranks, or back; any dtype, bits unchanged,
/// shape of x. Negative axes count from the end. Errors, in this order: cp < 2 or odd; no such axis
/// (Error{usage}); 2·cp does not divide it.
std::shared_ptr<const ArraySource> reorder_sequence(std::shared_ptr<const ArraySource> x,
                                                    std::int64_t cp_size, std::int64_t axis = 1,
                                                    Reorder order = Reorder::to_ring);

/// The causal work (pairs of a query and a key it sees) of each rank when `length` tokens are cut evenly over
/// cp_size ranks, in order and in ring order.
Report describe_reorder(std::int64_t length, std::int64_t cp_size);

}  // namespace ejk
