// The order of tokens among the ranks of context parallelism, as torch, Megatron and TransformerEngine have it:
// the token at each place, rank after rank.
//
// Of T tokens in sequences (cu_seqlens) and n ranks, "chunks r and 2n - 1 - r" are two of 2n equal ones:
//   contiguous     rank r has the tokens r·T/n … (r + 1)·T/n - 1
//   head-tail      chunks r and 2n - 1 - r of all tokens, whatever the sequences
//   per-document   chunks r and 2n - 1 - r of each sequence in turn
//   thd            the same chunks of each sequence with its padding (TransformerEngine's THD)
//   ptrr, balanced  blocks of tokens by the work of a mask (Sparsity::parallel), those of a rank ascending
// So n divides T, 2n divides T, the length of each sequence, and that of each with its padding; a block
// divides T, and of ptrr n the number of blocks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"

namespace ejk {

enum class CpOrder : std::uint8_t { contiguous, head_tail, per_document, thd, ptrr, balanced };
inline constexpr std::array kCpOrders{CpOrder::contiguous, CpOrder::head_tail, CpOrder::per_document,
                                      CpOrder::thd,        CpOrder::ptrr,      CpOrder::balanced};
/// "contiguous", "head-tail", "per-document", "thd", "ptrr", "balanced".
std::string_view name_of(CpOrder order);
/// Whether ranks share each sequence, which are then needed.
constexpr bool is_by_sequence(CpOrder order) {
  return order == CpOrder::per_document || order == CpOrder::thd;
}

/// Whether ranks share blocks by their work.
constexpr bool is_by_work(CpOrder order) { return order == CpOrder::ptrr || order == CpOrder::balanced; }

struct CpSettings {
  CpOrder order = CpOrder::head_tail;
  std::int64_t ranks = 1;
  /// (sequences + 1,); empty: all tokens are one sequence.
  IntegerArray cu_seqlens = {};
  /// Of thd, where sequences with padding behind them begin, (sequences + 1,). Empty: there is no padding.
  IntegerArray padded = {};
  /// How many there are, without cu_seqlens.
  std::optional<std::int64_t> tokens = {};
  /// Of ptrr and balanced: the tokens of a block, and the rank of each block.
  std::int64_t block = 0;
  std::vector<std::int64_t> block_ranks = {};
};

/// Tokens of a rank without padding, causal pairs of their queries and keys of the same sequence, and keys of
/// these pairs that are on other ranks.
struct CpRank {
  std::int64_t tokens = 0, pairs = 0, keys_received = 0;
};

/// T tokens, with padding. All int32.
struct CpTokens {
  Array order;         // (T,): the token at each place, rank after rank
  Array inverse;       // (T,): the place of each token
  Array rank_offsets;  // (ranks + 1,): where the places of each rank begin
  Array positions;     // (T,): position in its sequence of the token at each place; padding counts on

  std::vector<CpRank> ranks;
};

/// Memory: cp_order_bytes. Throws Error{usage} for missing or needless sequences, tokens or ranks, Error{input}
/// for invalid sequences, a length that the order cannot divide, and more than 2^31 - 1 tokens.
CpTokens make_cp_order(const CpSettings& settings);

/// Memory of make_cp_order, with the result.
std::int64_t cp_order_bytes(std::int64_t tokens, std::int64_t sequences, std::int64_t ranks);

/// The first length that the order cannot divide.
struct CpIndivisible {
  std::optional<std::int64_t> sequence;  // nothing: all tokens
  std::int64_t length = 0;
  std::int64_t parts =
      0;  // ranks, or two of each; of blocks their tokens, of ptrr those of a block of each rank
};
/// Nothing if it can divide all. Errors: as of make_cp_order.
std::optional<CpIndivisible> find_indivisible(const CpSettings& settings);

/// The work of ranks that have equal parts of an order of T tokens, each once. `padded` as in CpSettings; without
/// cu_seqlens all tokens are one sequence. Throws Error{usage} if ranks do not divide T, Error{input} for
/// sequences of more or less than T.
std::vector<CpRank> cp_work(std::span<const std::int32_t> order, std::int64_t ranks,
                            const IntegerArray& cu_seqlens = {}, const IntegerArray& padded = {});

/// The tokens, pairs and keys of each rank, and the pairs of the heaviest against the mean. `pairs`: which
/// they are.
Report describe_cp_work(std::span<const CpRank> ranks,
                        std::string_view pairs = "causal pairs of a query and a key of its sequence");

}  // namespace ejk
