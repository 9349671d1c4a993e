// Synthetic inputs: attention inputs as JAX draws them, and realistic batches: lengths, padding masks, group
// sizes. All are computed from Threefry words with arithmetic whose rounding is the same everywhere, so a
// seed gives the same bytes on any machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "ejk/array.hpp"

namespace ejk {

struct AttentionInputsOptions {
  std::int64_t batch = 2, seq = 128, heads = 8, head_dim = 64;
  DType dtype = DType::float32;                            // or float16, bfloat16
  std::int64_t seed = 0;                                   // 0 … 2^32 - 1
  double std = 0.02;                                       // deviation of the numbers, above 0
  std::optional<std::int64_t> kv_seq = {}, kv_heads = {};  // of key and value; absent: those of the query
};

/// query (batch, seq, heads, head_dim), key and value (batch, kv_seq, kv_heads, head_dim), computed while
/// they are read.
struct AttentionInputs {
  std::shared_ptr<const ArraySource> query, key, value;
};

/// Normal numbers times `std`: what jax.random.normal draws from the three keys that jax.random.split makes
/// of PRNGKey(seed), with jax_threefry_partitionable as since JAX 0.5. Errors: Error{usage} for a negative
/// size, a seed out of range, another dtype, heads that are no multiple of kv_heads.
AttentionInputs generate_attention_inputs(const AttentionInputsOptions& options = {});

enum class LengthDistribution {
  lognormal,  // as documents are: exp of a normal number with deviation 1
  zipf,       // short ones most often: P(n) falls as 1 / n
  uniform,
  constant,  // all of them the longest
};

struct LengthsOptions {
  std::int64_t count = 64;
  LengthDistribution distribution = LengthDistribution::lognormal;
  std::int64_t shortest = 1, longest = 4096;
  double mean = 512;  // of lognormal, before lengths are kept within shortest and longest
  std::int64_t seed = 0;
};

/// (count,) int32. Errors: Error{usage} for a negative count or shortest, shortest above longest, a longest
/// beyond int32, a mean that is not positive, a seed out of range.
Array generate_lengths(const LengthsOptions& options = {});

enum class PaddingSide { right, left };

/// (rows, seq) bool: row i has as many True as the i-th of such lengths, cut to seq, at the beginning, or
/// with PaddingSide::left at the end. Made while it is read. Errors: those of
/// generate_lengths, and Error{usage} for a negative seq.
std::shared_ptr<const ArraySource> generate_padding_mask(const LengthsOptions& lengths, std::int64_t seq,
                                                         PaddingSide side = PaddingSide::right);

enum class GroupDistribution {
  uniform,   // each token to any group
  zipf,      // group of rank r gets tokens as 1 / r, ranks shuffled
  hot,       // one group gets `hot_share` of all tokens, the others the rest evenly
  balanced,  // sizes differ by at most one
};

struct GroupsOptions {
  std::int64_t groups = 64, tokens = 8192;
  GroupDistribution distribution = GroupDistribution::zipf;
  std::int64_t empty = 0;  // so many groups, picked at random, get no token
  double hot_share = 0.5;
  std::int64_t seed = 0;
};

/// (groups,) int32 that sum to `tokens`. Errors: Error{usage} for negative numbers, no group for the tokens,
/// tokens beyond int32, a share outside 0 … 1, a seed out of range.
Array generate_group_sizes(const GroupsOptions& options = {});

/// Memory that lengths or group sizes take while they are made, so many of them.
std::int64_t generate_bytes(std::int64_t count);

}  // namespace ejk
