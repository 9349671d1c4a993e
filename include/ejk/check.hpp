// Checks of artefacts that kernels read: cu_seqlens, ids, sizes, labels, tables and masks, from any source.
//
// A check applies the rules of its kind of artefact, in one pass by chunks, and returns Findings: where a
// rule is broken, and by which value. An error makes kernel results wrong; a warning is something that some
// kernels do not expect (an empty sequence).
//
// Arrays are of any integer dtype. Throws Error{input} for a float dtype, another rank, a number beyond 63
// bits or inconsistent shapes, Error{usage} for an invalid claim (an alignment of 0).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/cp_order.hpp"
#include "ejk/groups.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/report.hpp"
#include "ejk/segments.hpp"
#include "ejk/sparsity.hpp"

namespace ejk {

// --- rules and findings

enum class Severity { warning, error };

/// "warning", "error".
const char* name_of(Severity severity);

struct Rule {
  std::string_view name;  // stable: "decreasing"
  Severity severity = Severity::error;
  std::string_view text;  // what holds: "no offset is less than the one before it"
};

struct CheckKind {
  std::string_view name;  // "cu-seqlens"
  std::span<const Rule> rules;
};

/// All kinds with their rules; static.
std::span<const CheckKind> check_kinds();

/// The rules of the kind of this name. Throws Error{usage} where there is none.
std::span<const Rule> rules_of(std::string_view kind);

/// A violation of a rule.
struct Finding {
  std::string array;  // the argument: "cu_seqlens"
  Shape index;        // of an element; empty: of the array as a whole
  ReportValue value;  // the element; null where there is none
  std::string message;
};

/// Findings of a check. All are counted, the first few of each rule are kept.
class Findings {
 public:
  static constexpr std::int64_t kFew = 10;  // kept of each rule, by default

  explicit Findings(std::span<const Rule> rules, std::int64_t most = kFew);

  /// Counts `count` findings of a rule. make() builds the Finding if it is among the first by `place`, such
  /// as a flat index.
  template <class Make>
  void add(std::string_view rule, std::int64_t place, Make&& make, std::int64_t count = 1) {
    OfRule& of = found_[row_of(rule)];
    of.count += count;
    if (keeps(of, place)) keep(of, place, make());
  }

  /// Adds the findings of another thread for a part of the same artefact.
  void merge(Findings&& part);

  std::int64_t count(std::string_view rule) const;
  std::int64_t errors() const { return count(Severity::error); }
  std::int64_t warnings() const { return count(Severity::warning); }

  struct Kept {
    const Rule& rule;
    const Finding& finding;
  };
  /// The kept findings: errors before warnings, rules in table order, then by place.
  std::vector<Kept> kept() const&;
  std::vector<Kept> kept() const&& = delete;

  std::span<const Rule> rules() const { return rules_; }

  /// The text of the report names the array of each finding, even if all are in one.
  void show_arrays() { shows_arrays_ = true; }
  bool shows_arrays() const { return shows_arrays_; }

  /// Facts about the artefact, which the report shows before the findings.
  Report& facts() { return facts_; }
  const Report& facts() const { return facts_; }

 private:
  struct Placed {
    std::int64_t place;
    Finding finding;
  };
  struct OfRule {
    std::int64_t count = 0;
    std::vector<Placed> kept;  // by place
  };

  std::size_t row_of(std::string_view rule) const;
  bool keeps(const OfRule& of, std::int64_t place) const {
    return static_cast<std::int64_t>(of.kept.size()) < most_ || (most_ > 0 && place < of.kept.back().place);
  }
  void keep(OfRule& of, std::int64_t place, Finding finding) const;
  std::int64_t count(Severity severity) const;

  std::span<const Rule> rules_;
  std::int64_t most_;
  std::vector<OfRule> found_;  // of each rule
  Report facts_;
  bool shows_arrays_ = false;
};

/// The verdict ("ok", "2 errors, 1 warning"), the facts, the kept findings, and their number for each broken
/// rule. `fails`: the lowest severity that fails the check; its verdict does not begin with "ok".
Report describe(const Findings& findings, Severity fails = Severity::error);

struct CheckOptions {
  std::int64_t most_findings = Findings::kFew;  // kept of each rule
  /// Counts elements; called by one thread at a time.
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};
  /// Limit for memory that depends on the values of the elements, in bytes; 0: none. Above it Error{budget}.
  std::int64_t max_bytes = 0;
};

// --- sequences

struct CuSeqlensClaims {
  std::optional<std::int64_t> tokens = {};      // of the packed array
  std::optional<std::int64_t> max_seqlen = {};  // no sequence has more tokens
  std::int64_t align = 1;                       // sequences with tokens begin at multiples of it
  /// Where each begins with padding behind the tokens, (n + 1,): TransformerEngine's cu_seqlens_padded, which
  /// may begin after 0. Tokens, alignment and ranks are then of these.
  IntegerArray padded = {};
  std::optional<std::int64_t> ranks = {};  // of context parallelism: 2 · ranks divide each length
};

/// cu_seqlens (n + 1,). Memory: a piece of each array.
Findings check_cu_seqlens(const IntegerArray& cu_seqlens, const CuSeqlensClaims& claims = {},
                          const CheckOptions& options = {});

struct SegmentIdsClaims {
  /// The same sequences, (n + 1,), for ids of one row. Empty: not given. Throws Error{input} for invalid
  /// cu_seqlens.
  IntegerArray cu_seqlens = {};
  /// Which ids are padding: 0 and less (document), or those below 0.
  Convention convention = Convention::document;
  /// Of ids that no convention is known of, instead of `convention`: a document is a finding of "assumed".
  std::optional<ZeroId> zero = {};
};

/// Ids of packed segments, (tokens,) or (..., tokens), each row on its own: the tokens of a segment are
/// contiguous. Memory: a piece, 8 bytes a sequence, and (limited by max_bytes) 64 for each range of ids in a
/// row; ascending ids have one range.
Findings check_segment_ids(const IntegerArray& ids, const SegmentIdsClaims& claims = {},
                           const CheckOptions& options = {});

struct ChunkIndicesClaims {
  IntegerArray cu_seqlens;  // Throws Error{input} for invalid ones
  std::int64_t chunk_size = 0;
  Convention convention = Convention::document;  // how sequences are numbered
  IntegerArray chunk_offsets = {};               // (sequences + 1,), as prepare_chunk_offsets makes them
};

/// Rows [sequence, chunk in it] (chunks, 2), as prepare_chunk_indices makes them; rows with a -1 behind them are
/// padding. Memory: check_chunk_indices_bytes.
Findings check_chunk_indices(const IntegerArray& chunk_indices, const ChunkIndicesClaims& claims,
                             const CheckOptions& options = {});

/// The sequence of each token as kernels of Mamba 2 and causal_conv1d read it, (tokens,) or (1, tokens): any ids
/// that differ and increase. Past the last sequence -1. Memory: a piece, 17 bytes a sequence.
Findings check_seq_idx(const IntegerArray& seq_idx, const IntegerArray& cu_seqlens,
                       const CheckOptions& options = {});

struct StateIndicesClaims {
  std::int64_t slots = 0;      // of the pool of states
  std::int64_t pad_slot = -1;  // that of a sequence which is padding
  bool read = false;           // slots are read, which sequences may share
  /// The pages of each sequence, (sequences, pages), with a state each, after `page_size` tokens or fewer. Needs
  /// `computed`. Empty: not given.
  IntegerArray block_table = {};
  std::int64_t page_size = 0;
  IntegerArray computed = {};           // tokens of each sequence before the new ones, (sequences,)
  IntegerArray has_initial_state = {};  // (sequences,) integers or bools; needs `computed`
};

/// The slot of each sequence's state in a pool, (sequences,). Throws Error{input} for claims of other numbers of
/// sequences, and for negative computed tokens. Memory: check_state_indices_bytes.
Findings check_state_indices(const IntegerArray& state_indices, const StateIndicesClaims& claims,
                             const CheckOptions& options = {});

struct PositionIdsClaims {
  /// As for segment ids: sequences begin there, and positions after the last one are ignored.
  IntegerArray cu_seqlens = {};
  /// The position of padding, besides negative ones, unless it continues the previous position.
  std::optional<std::int64_t> padding = {};
  /// Non-zero for tokens: bools or integers of the shape of the ids. Positions count the tokens of a row;
  /// those of padding are ignored. Excludes the other claims.
  IntegerArray mask = {};
};

/// Positions of packed tokens in their sequences, (tokens,) or (..., tokens): 0, 1, 2, … and again from 0.
/// Below 0 is padding. Memory: a piece, and 8 bytes a sequence.
Findings check_position_ids(const IntegerArray& ids, const PositionIdsClaims& claims = {},
                            const CheckOptions& options = {});

struct PermutationClaims {
  /// Sequences of the tokens, (n + 1,). Throws Error{input} for invalid ones.
  IntegerArray cu_seqlens = {};
  /// Where they begin with padding behind each, (n + 1,): then the order is of tokens and padding. Empty:
  /// there is none.
  IntegerArray padded = {};
  std::optional<std::int64_t> ranks = {};  // of context parallelism, with an equal part of the order each
  std::optional<CpOrder> order = {};       // that it is; needs ranks, ptrr and balanced mask and block
  /// Of all tokens: its pairs are the work of ranks, not causal ones in each sequence.
  std::optional<Mask> mask = {};
  std::optional<BlockShape> block = {};
};

/// An order of tokens (tokens,): the token at each place, as of ejk/cp_order.hpp. With ranks the facts are the
/// orders that it is, and the work of each rank. Memory: check_permutation_bytes.
Findings check_permutation(const IntegerArray& order, const PermutationClaims& claims = {},
                           const CheckOptions& options = {});

// --- groups

/// Rows of each group, (groups,). `m`: all rows, if each should be in a group. Memory: a piece.
Findings check_group_sizes(const IntegerArray& group_sizes, std::optional<std::int64_t> m = std::nullopt,
                           const CheckOptions& options = {});

/// GroupMetadata (ejk/groups.hpp): (groups + 1,), (L,), (L,), () or (1,).
struct GroupMetadataArrays {
  IntegerArray group_offsets, group_ids, m_tile_ids, num_tiles;
};

struct GroupMetadataClaims {
  /// Of check_group_arrays. Absent: that of attributes that ejk wrote, or by the names of the arrays.
  std::optional<GroupLayout> layout = {};
  std::optional<std::int64_t> tm = {};  // rows of a tile; without it tiles are not compared with rows
  std::optional<std::int64_t> m = {};   // all rows
  /// Rows of each group, (groups,), or the experts of each token, (tokens, k), of `experts` experts: each
  /// choice but −1 is a row. At most one of them.
  IntegerArray group_sizes = {};
  IntegerArray topk_ids = {};
  std::int64_t experts = 0;
  std::int64_t align = 1;  // groups with rows begin at multiples of it, and their sizes are rounded up to it
  std::optional<std::int64_t> start_group = {};         // the first group that is computed; absent: 0
  std::optional<std::int64_t> num_nonzero_groups = {};  // how many are; absent: all of the rest
  std::optional<EmptyGroups> empty_groups = {};         // absent: all of them have a step, or none has
};

/// The arrays by their names in GroupMetadata. Open `claims` are set from attributes that ejk wrote. Throws
/// Error{input} for a missing array or an invalid attribute.
GroupMetadataArrays group_metadata_in(const ArrayGroup& group, GroupMetadataClaims& claims);

/// Whether the first num_tiles steps compute each row of the groups once. Memory: 32 bytes an entry.
Findings check_group_metadata(const GroupMetadataArrays& arrays, const GroupMetadataClaims& claims = {},
                              const CheckOptions& options = {});

/// The layout of another library (ejk/groups.hpp) whose arrays these are; none: those of GroupMetadata,
/// or unknown. Of DeepGEMM's two with one name by the values and `claims.align`. Throws Error{input} for arrays of
/// two layouts.
std::optional<GroupLayout> group_layout_of(const ArrayGroup& group, const GroupMetadataClaims& claims = {});

/// Whether its kernels compute each row of the groups once, in blocks of `claims.align` rows. Of `claims` tm,
/// start_group, num_nonzero_groups and empty_groups are not used. Errors: as of group_metadata_in.
Findings check_group_arrays(GroupLayout layout, const ArrayGroup& group,
                            const GroupMetadataClaims& claims = {}, const CheckOptions& options = {});

/// The experts of each token, (tokens, k) or (..., k); −1 is none. Memory: for each thread a piece, and 8
/// bytes an expert.
Findings check_topk_ids(const IntegerArray& topk_ids, std::optional<std::int64_t> experts = std::nullopt,
                        const CheckOptions& options = {});

// --- what queries read

struct IndicesClaims {
  std::optional<std::int64_t> keys = {};    // how many there are
  bool causal = false;                      // query i attends to key j ≤ i + offset
  std::optional<std::int64_t> offset = {};  // 0, with a warning for unequal numbers of keys and queries
};

/// The keys of each query, (..., queries, n), in any order; −1 is none. Memory: for each thread a piece and
/// 80 n bytes.
Findings check_indices(const IntegerArray& indices, const IndicesClaims& claims = {},
                       const CheckOptions& options = {});

struct BlockTableClaims {
  std::int64_t page_size = 0;              // tokens of a page, at least 1
  std::optional<std::int64_t> pages = {};  // of the cache
  /// Marks pages that a sliding window has left. It may precede the pages of a sequence any number of
  /// times: a warning, since the length of the window is unknown.
  std::optional<std::int64_t> null_page = {};
};

/// The pages of each sequence of a paged cache, (batch, pages), of which the first ceil(length / page_size)
/// are used, and the lengths (batch,). Memory: a piece, 8 bytes a sequence, and at most 64 bytes for each
/// used entry, or 8 for each page up to the largest where that is less.
Findings check_block_table(const IntegerArray& block_table, const IntegerArray& seq_lens,
                           const BlockTableClaims& claims, const CheckOptions& options = {});

struct SlotMappingClaims {
  std::int64_t page_size = 0;  // tokens of a page, at least 1
  /// Tokens of each sequence, (batch,): the new tokens are its last ones.
  IntegerArray seq_lens = {};
  /// Instead the position of each new token in its sequence, (tokens,). One of the two is given.
  IntegerArray positions = {};
  /// Where the new tokens of each sequence begin, (batch + 1,). Empty: each sequence has one.
  IntegerArray cu_seqlens = {};
};

/// The slots (tokens,) of a paged cache that new tokens are written to: page · page_size + offset, by the
/// pages (batch, pages) of their sequences; −1 is not written, as are entries behind the tokens. Throws
/// Error{input} for other numbers of sequences or positions, a length of fewer than the new tokens. Memory: 8
/// bytes a sequence, and 64 for each slot and entry.
Findings check_slot_mapping(const IntegerArray& slots, const IntegerArray& block_table,
                            const SlotMappingClaims& claims, const CheckOptions& options = {});

// --- masks

struct MaskClaims {
  /// One mask a head, or one for all. Empty: not claimed.
  std::vector<Mask> within = {}, covers = {}, equals = {};
  BlockShape block{128, 128};  // findings against them are one a block
  /// The array (Q, K) or (H, Q, K) of a stored mask, and the meaning of its elements. Null: none.
  std::shared_ptr<const ArraySource> stored = nullptr;
  Polarity polarity = Polarity::keep;
};

/// A mask, one a head. An additive mask with elements that neither attend nor mask is not checked further.
/// Memory: check_mask_bytes. Throws Error{input} for claimed masks of other lengths or numbers of heads.
Findings check_mask(const std::vector<Mask>& heads, const MaskClaims& claims = {},
                    const CheckOptions& options = {});

struct MaskInfoClaims {
  std::vector<Mask> masks = {};  // that it should store: one a head, or one for all. Empty: not claimed
  StoredSettings settings = {};  // not in the arrays
  std::int64_t pictures = 0;     // most block pictures in the facts: a byte a block each
  std::optional<Fa4Kernel> kernel = {};  // of FlashAttention-4; of dkv arrays its backward pass
};

/// The arrays of a MaskInfo (ejk/mask_info.hpp). With masks this is a proof: the mask that a kernel computes
/// from the arrays is compared with them, and a finding names the wrong index and its expected value. Missing
/// or inconsistent arrays are a finding. Throws Error{usage} for an unknown block size (Code::unknown_block)
/// or lengths (Code::unknown_lengths), and for settings that contradict the file.
Findings check_mask_info(const ArrayGroup& arrays, const MaskInfoClaims& claims = {},
                         const CheckOptions& options = {});

// --- memory

// Bytes that each check needs at most, beside its arrays; the first are the pieces that every check reads,
// and all that cu_seqlens and group sizes need.
std::int64_t check_bytes();
std::int64_t check_segment_ids_bytes(const SegmentIdsClaims& claims);
std::int64_t check_chunk_indices_bytes(const IntegerArray& chunk_indices, const ChunkIndicesClaims& claims);
std::int64_t check_seq_idx_bytes(const IntegerArray& cu_seqlens);
std::int64_t check_state_indices_bytes(const IntegerArray& state_indices, const StateIndicesClaims& claims);
std::int64_t check_position_ids_bytes(const PositionIdsClaims& claims);
std::int64_t check_permutation_bytes(const IntegerArray& order, const PermutationClaims& claims);
std::int64_t check_group_metadata_bytes(const GroupMetadataArrays& arrays, const GroupMetadataClaims& claims);
std::int64_t check_group_arrays_bytes(const ArrayGroup& group, const GroupMetadataClaims& claims);
std::int64_t check_topk_ids_bytes(const IntegerArray& topk_ids, std::optional<std::int64_t> experts);
std::int64_t check_indices_bytes(const IntegerArray& indices);
std::int64_t check_block_table_bytes(const IntegerArray& block_table, const IntegerArray& seq_lens,
                                     const BlockTableClaims& claims);
std::int64_t check_slot_mapping_bytes(const IntegerArray& slots, const IntegerArray& block_table,
                                      const SlotMappingClaims& claims);
std::int64_t check_mask_bytes(std::int64_t q_length, std::int64_t kv_length, BlockShape block);
std::int64_t check_mask_info_bytes(const ArrayGroup& arrays, const MaskInfoClaims& claims);

}  // namespace ejk
