// Synthetic inputs: attention inputs as JAX draws them, lengths, padding masks, group sizes. Computed from
// Threefry words with exact arithmetic: a seed gives the same bytes on any machine.
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

/// query (batch, seq, heads, head_dim), key and value (batch, kv_seq, kv_heads, head_dim), computed on read.
struct AttentionInputs {
  std::shared_ptr<const ArraySource> query, key, value;
};

/// `std` times jax.random.normal of the three keys that jax.random.split derives from PRNGKey(seed), with
/// jax_threefry_partitionable (JAX 0.5). Error{usage}: negative size, seed out of range, other dtype, heads
/// not a multiple of kv_heads.
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

/// (count,) int32. Error{usage}: negative count or shortest, shortest > longest, longest > int32, mean ≤ 0,
/// seed.
Array generate_lengths(const LengthsOptions& options = {});

enum class PaddingSide { right, left };

/// (rows, seq) bool: row i has min(length i, seq) True at the given side, computed on read. Errors: those of
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

/// (groups,) int32 that sum to `tokens`. Error{usage}: negative numbers, no group for the tokens, tokens >
/// int32, a fraction outside 0 … 1, seed.
Array generate_group_sizes(const GroupsOptions& options = {});

/// Memory for `count` lengths or group sizes during generation.
std::int64_t generate_bytes(std::int64_t count);

}  // namespace ejk
