// Parameters of kernels: block sizes, warps and stages, and how the documents choose the latter two.
// Source: the document on utilities and helpers (FwdParams, BwdParams, select_num_warps, select_num_stages).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejk/dtype.hpp"
#include "ejk/program/json.hpp"

namespace ejk {

/// Of a forward kernel; 0 is a value, not unset.
struct FwdParams {
  std::optional<std::int64_t> blocksize_m;
  std::optional<std::int64_t> blocksize_k;
  std::optional<std::int64_t> blocksize_n;
  std::optional<std::int64_t> q_blocksize;
  std::optional<std::int64_t> kv_blocksize;
  std::optional<std::int64_t> blocksize_heads;
  std::optional<std::int64_t> blocksize_keys;
  std::optional<std::int64_t> num_key_splits;
  std::optional<std::int64_t> num_warps;
  std::optional<std::int64_t> num_stages;

  bool operator==(const FwdParams&) const = default;
};

/// Of a backward kernel.
struct BwdParams {
  std::optional<std::int64_t> blocksize_m;
  std::optional<std::int64_t> blocksize_k;
  std::optional<std::int64_t> blocksize_n;
  std::optional<std::int64_t> q_blocksize;
  std::optional<std::int64_t> kv_blocksize;
  std::optional<std::int64_t> num_warps;
  std::optional<std::int64_t> num_stages;

  bool operator==(const BwdParams&) const = default;

  /// q_blocksize and kv_blocksize are trunc(x · scale), x the forward value, or 128 if unset or 0; num_warps
  /// and num_stages are copied; nothing else is set. Throws Error{usage} for a non-finite scale or overflow.
  static BwdParams from_fwd_params(const FwdParams& fwd, double scale = 0.5);
};

/// The fields that are set, in the order of their declaration.
using ParamsDict = std::vector<std::pair<std::string, std::int64_t>>;
ParamsDict to_dict(const FwdParams& params);
ParamsDict to_dict(const BwdParams& params);

/// What `override` sets, else what `base` sets.
FwdParams merge(const FwdParams& base, const FwdParams& override);
BwdParams merge(const BwdParams& base, const BwdParams& override);

/// From a JSON object of integers and nulls. Throws Error{input}; an unknown field has the nearest as hint.
FwdParams fwd_params_from(const JsonValue& value);
BwdParams bwd_params_from(const JsonValue& value);

/// ejkernel's hash: MD5, in hex, of the concatenated decimal values of the set fields; (12, 3) and (1, 23)
/// collide, unlike in std::hash and short_hash.
std::string ejkernel_params_hash(const FwdParams& params);
std::string ejkernel_params_hash(const BwdParams& params);

/// Warps by arithmetic intensity I = 2·q·kv·d / ((q+kv)·d·itemsize): 8 above 10, 4 above 5, else 2; then at
/// most 4 for q·kv below 1024, at least 8 above 16384. Throws Error{usage} unless all lengths are at least
/// 1.
std::int64_t select_num_warps(std::int64_t q_block, std::int64_t kv_block, std::int64_t head_dim,
                              DType dtype = DType::float16);

/// Pipeline stages 3, 2 or 1: the remaining shared memory is more than twice smem_bytes, more than once, or
/// less. Throws Error{usage} for negative sizes.
std::int64_t select_num_stages(std::int64_t smem_bytes, std::int64_t smem_limit);

/// Shared memory of a block on a GPU of this name: A100 164 KiB, V100 96, T4 64, any other 48.
std::int64_t smem_limit_of(std::string_view gpu_name);

/// EJKERNEL_TRITON_SMEM_LIMIT in bytes, else that of the first GPU, else 48 KiB. Throws Error{usage} if it
/// is no number.
std::int64_t smem_limit();

}  // namespace ejk

/// Equal settings have equal hashes; which field holds a value counts, not only the value.
template <>
struct std::hash<ejk::FwdParams> {
  std::size_t operator()(const ejk::FwdParams& params) const noexcept;
};
template <>
struct std::hash<ejk::BwdParams> {
  std::size_t operator()(const ejk::BwdParams& params) const noexcept;
};
