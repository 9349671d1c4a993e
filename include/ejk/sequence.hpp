// Packed sequences: cu_seqlens and the arrays computed from it.
//
// cu_seqlens is a 1-D integer array (n + 1,) that begins with 0 and never decreases: sequence i has the
// tokens cu[i] … cu[i+1] - 1. Any other array is an Error{input} that names the index. An empty sequence has
// an index like any other; ejkernel's convention does not count it, fla's counts it for chunks but not for
// tokens. Chunk and block sizes are at least 1. Source: ejkernel's xla_utils.utils, fla's ops.utils.index.
//
// Functions named *_ids, *_indices and *_offsets compute elements when they are read; read_all() computes all
// of them, on all threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// ceil(a / b) of every element, exactly, negative ones too; the dtype and shape of a. Errors: not integers,
/// b < 1.
Array cdiv(const ArraySource& a, std::int64_t b);

/// Lengths: (n,) of cu's dtype.
Array prepare_lens(const IntegerArray& cu_seqlens);

/// True (non-zero) elements in each row of a bool or integer mask (batch, seq), padded anywhere: (batch,)
/// int32. Errors: another rank, a float dtype.
Array prepare_lens_from_mask(const ArraySource& mask);

/// Cumulative lengths: (batch + 1,) of any integer or float dtype. Errors: a sum that it cannot hold
/// exactly.
Array prepare_cu_seqlens_from_mask(const ArraySource& mask, DType out_dtype = DType::int32);
/// The same from lengths (n,). Errors: a negative length.
Array prepare_cu_seqlens_from_lens(const IntegerArray& lens, DType out_dtype = DType::int32);
/// The same from segment ids (tokens,) or (rows, tokens): each range of equal ids in a row is a sequence;
/// negative ids are padding.
Array prepare_cu_seqlens_from_segment_ids(const IntegerArray& ids, DType out_dtype = DType::int32);
/// The same from position ids (tokens,) or (rows, tokens): 0, 1, 2, … in each sequence; the first of a row
/// may begin later, as in a later chunk of a text. Negative ids are padding. Errors: any other id, by its
/// index.
Array prepare_cu_seqlens_from_position_ids(const IntegerArray& ids, DType out_dtype = DType::int32);

/// The pattern of an integer array (n,) or (rows, n). Lengths and masks have none.
enum class SequenceForm {
  cu_seqlens,    // begins with 0, never decreases
  segment_ids,   // runs of ids that count up from 0 or 1, at least two tokens a run on average
  position_ids,  // begins with 0, and each element is 0 or one more than the one before
};
struct LikelyForm {
  SequenceForm form;
  /// Flat index of the first position id that restarts after a sequence of three tokens or more.
  std::optional<std::int64_t> restart;
};
/// Nothing where no pattern fits, or too few elements to tell. Errors: another rank, not integers.
std::optional<LikelyForm> likely_form(const ArraySource& integers);

/// Rows of a mask; one can be both left-padded and have holes.
struct RowPadding {
  std::vector<std::int64_t> lens;
  std::int64_t left_padded = 0;  // the first True is not at 0
  std::int64_t with_holes = 0;   // a False between two True
};

/// Integers that a mask may contain: any, or 0 and one other value. Error{input} names the index of another,
/// and whether the row looks like ids (Error::Code::position_ids or segment_ids).
enum class MaskIntegers { any, one_value };
RowPadding inspect_padding(const ArraySource& mask, MaskIntegers integers = MaskIntegers::any);

struct SequenceCounts {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::int64_t empty = 0;  // sequences without a token
  std::int64_t longest = 0;
};
SequenceCounts count_sequences(const IntegerArray& cu_seqlens);

/// Counts, percentiles (interpolated as in NumPy), a histogram in powers of two, and savings against padding
/// to the longest: tokens, and attention work as the sum of squared lengths. `padded`: cu_seqlens with
/// padding.
Report describe_sequences(const IntegerArray& cu_seqlens, const IntegerArray& padded = {});

/// 0 … len - 1 for the tokens of each sequence: (tokens,) of cu's dtype.
std::shared_ptr<const ArraySource> prepare_position_ids(const IntegerArray& cu_seqlens);

/// The number of each token's sequence: (tokens,) int32, int64 if cu has 64 bits.
std::shared_ptr<const ArraySource> prepare_sequence_ids(const IntegerArray& cu_seqlens,
                                                        Convention convention = Convention::document);

/// [sequence id, position id] of each token: (tokens, 2) of cu's dtype. Throws Error{input} if that cannot
/// hold a sequence id; so do chunk indices.
std::shared_ptr<const ArraySource> prepare_token_indices(const IntegerArray& cu_seqlens,
                                                         Convention convention = Convention::document);

/// [sequence id, chunk number] of each chunk of at most C tokens: (chunks, 2) of cu's dtype.
std::shared_ptr<const ArraySource> prepare_chunk_indices(const IntegerArray& cu_seqlens,
                                                         std::int64_t chunk_size,
                                                         Convention convention = Convention::document);

/// 0 and the running sum of the numbers of chunks: (n + 1,) of cu's dtype.
Array prepare_chunk_offsets(const IntegerArray& cu_seqlens, std::int64_t chunk_size);

/// Chunks as the kernels of Mamba 2 in SGLang read them: they begin at multiples of C of all tokens, and where a
/// sequence after the first begins, once for each. int32; throws Error{input} for more tokens.
struct PackedRowChunks {
  Array chunk_indices;                         // (chunks,): which C tokens a chunk is in
  Array chunk_offsets;                         // (chunks,): its first token in them
  std::shared_ptr<const ArraySource> seq_idx;  // (tokens,): the sequence of each token
};
PackedRowChunks prepare_packed_row_chunks(const IntegerArray& cu_seqlens, std::int64_t chunk_size);

/// Chunks as those in vLLM read them: they end where the position in the sequence is a multiple of C. `computed`
/// (sequences,): tokens of each before those of cu_seqlens; none by default. A sequence without new tokens has
/// an empty chunk unless C divides its computed ones. int32; throws Error{input} for more tokens, and for
/// computed ones that are negative or of another number of sequences.
struct AlignedChunks {
  Array cu_chunk_seqlens;    // (chunks + 1,): where each begins, and the number of tokens
  Array seq_idx;             // (chunks,): the sequence of each
  Array last_chunk_indices;  // (sequences,): the last chunk up to the end of each; -1: none
};
AlignedChunks prepare_aligned_chunks(const IntegerArray& cu_seqlens, std::int64_t chunk_size,
                                     const IntegerArray& computed = {});

/// Memory of either, with the results.
std::int64_t mamba2_chunks_bytes(const SequenceCounts& counts, std::int64_t chunk_size);

/// Most memory of each function above besides input and result; `input`: cu_seqlens, lengths or a mask.
std::int64_t sequence_work_bytes(const ArrayType& input);

enum class Reorder {
  to_ring,        // pieces r and 2·cp - 1 - r go to rank r: causal work is balanced
  to_contiguous,  // the inverse
};

/// Cuts an axis into 2·cp chunks and orders them for a ring of cp ranks, or back; any dtype, shape of x.
/// Negative axes count from the end. Errors, in order: cp < 2 or odd; no such axis (Error{usage}); not
/// divisible by 2·cp.
std::shared_ptr<const ArraySource> reorder_sequence(std::shared_ptr<const ArraySource> x,
                                                    std::int64_t cp_size, std::int64_t axis = 1,
                                                    Reorder order = Reorder::to_ring);

/// Causal work (query-key pairs) of each rank for `length` tokens, in order and in ring order.
Report describe_reorder(std::int64_t length, std::int64_t cp_size);

}  // namespace ejk
