// Parameters as tables of field name and member, which every function iterates over.
// tests: tests/settings/test_params.cpp
#include "ejk/program/params.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <span>

#include "core/require.hpp"
#include "ejk/error.hpp"
#include "ejk/program/machine.hpp"
#include "ejk/program/text.hpp"
#include "settings/digest.hpp"

namespace ejk {

namespace {

using Value = std::optional<std::int64_t>;

template <class Params>
struct FieldOf {
  const char* name;
  Value Params::*member;
};

constexpr FieldOf<FwdParams> kFwdFields[] = {
    {"blocksize_m", &FwdParams::blocksize_m},       {"blocksize_k", &FwdParams::blocksize_k},
    {"blocksize_n", &FwdParams::blocksize_n},       {"q_blocksize", &FwdParams::q_blocksize},
    {"kv_blocksize", &FwdParams::kv_blocksize},     {"blocksize_heads", &FwdParams::blocksize_heads},
    {"blocksize_keys", &FwdParams::blocksize_keys}, {"num_key_splits", &FwdParams::num_key_splits},
    {"num_warps", &FwdParams::num_warps},           {"num_stages", &FwdParams::num_stages},
};

constexpr FieldOf<BwdParams> kBwdFields[] = {
    {"blocksize_m", &BwdParams::blocksize_m},   {"blocksize_k", &BwdParams::blocksize_k},
    {"blocksize_n", &BwdParams::blocksize_n},   {"q_blocksize", &BwdParams::q_blocksize},
    {"kv_blocksize", &BwdParams::kv_blocksize}, {"num_warps", &BwdParams::num_warps},
    {"num_stages", &BwdParams::num_stages},
};

std::span<const FieldOf<FwdParams>> fields(const FwdParams&) { return kFwdFields; }
std::span<const FieldOf<BwdParams>> fields(const BwdParams&) { return kBwdFields; }

template <class Params>
ParamsDict dict_of(const Params& params) {
  ParamsDict dict;
  for (const auto& field : fields(params))
    if (const Value& value = params.*field.member) dict.emplace_back(field.name, *value);
  return dict;
}

template <class Params>
Params merged(const Params& base, const Params& override) {
  Params out = base;
  for (const auto& field : fields(base))
    if (override.*field.member) out.*field.member = override.*field.member;
  return out;
}

template <class Params>
Params params_from(const JsonValue& value, const char* what) {
  const auto* members = std::get_if<JsonValue::Object>(&value.value);
  if (members == nullptr)
    throw core::invalid("{} are a JSON object", what).hint(R"(such as {"q_blocksize": 128, "num_warps": 4})");
  Params params;
  const auto known = fields(params);
  for (const auto& [name, member] : *members) {
    const std::string_view word = name;
    const auto field =
        std::find_if(known.begin(), known.end(), [&](const auto& f) { return f.name == word; });
    if (field == known.end()) {
      std::vector<std::string> names;
      for (const auto& f : known) names.emplace_back(f.name);
      const auto nearest = nearest_name(name, names);
      throw core::invalid("{} have no field '{}'", what, printable(name))
          .hint(nearest ? fmt::format("did you mean '{}'?", *nearest)
                        : fmt::format("the fields are {}", fmt::join(names, ", ")));
    }
    if (std::holds_alternative<std::monostate>(member.value)) {
      params.*field->member = std::nullopt;  // of equal names the last counts
      continue;
    }
    const auto* integer = std::get_if<JsonValue::Integer>(&member.value);
    if (integer == nullptr)
      throw core::invalid("{} is not a whole number", name)
          .hint("a field is a whole number, or null where it is left open");
    const auto number = parse_integer(integer->digits);
    if (!number)
      throw core::invalid("{} is {}, which 64 bits do not hold", name, printable(integer->digits, 40));
    params.*field->member = *number;
  }
  return params;
}

std::int64_t scaled(const Value& forward, double scale) {
  constexpr std::int64_t unset = 128;
  const std::int64_t x = forward.value_or(0) == 0 ? unset : *forward;
  const double product = static_cast<double>(x) * scale;
  if (!(std::abs(product) < 0x1p63)) throw core::usage("{} times {} is not a block size", x, scale);
  return static_cast<std::int64_t>(product);
}

template <class Params>
std::string ejkernel_hash(const Params& params) {
  std::string text;
  for (const auto& [name, value] : dict_of(params)) text += fmt::format("{}", value);
  return settings::md5_hex(text);
}

// The position of a value is hashed, too (the finalizer of SplitMix64 mixes).
template <class Params>
std::size_t hash_of(const Params& params) noexcept {
  std::uint64_t hash = 0;
  const auto mix = [&](std::uint64_t word) {
    hash += word + 0x9e3779b97f4a7c15;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  };
  for (const auto& field : fields(params)) {
    const Value& value = params.*field.member;
    mix(value ? 1 : 0);
    mix(static_cast<std::uint64_t>(value.value_or(0)));
  }
  return hash;
}

constexpr std::int64_t kKiB = 1024;

}  // namespace

BwdParams BwdParams::from_fwd_params(const FwdParams& fwd, double scale) {
  if (!std::isfinite(scale)) throw core::usage("a scale of {} is not finite", scale);
  BwdParams out;
  out.q_blocksize = scaled(fwd.q_blocksize, scale);
  out.kv_blocksize = scaled(fwd.kv_blocksize, scale);
  out.num_warps = fwd.num_warps;
  out.num_stages = fwd.num_stages;
  return out;
}

ParamsDict to_dict(const FwdParams& params) { return dict_of(params); }
ParamsDict to_dict(const BwdParams& params) { return dict_of(params); }

FwdParams merge(const FwdParams& base, const FwdParams& override) { return merged(base, override); }
BwdParams merge(const BwdParams& base, const BwdParams& override) { return merged(base, override); }

FwdParams fwd_params_from(const JsonValue& value) {
  return params_from<FwdParams>(value, "forward parameters");
}
BwdParams bwd_params_from(const JsonValue& value) {
  return params_from<BwdParams>(value, "backward parameters");
}

std::string ejkernel_params_hash(const FwdParams& params) { return ejkernel_hash(params); }
std::string ejkernel_params_hash(const BwdParams& params) { return ejkernel_hash(params); }

std::int64_t select_num_warps(std::int64_t q_block, std::int64_t kv_block, std::int64_t head_dim,
                              DType dtype) {
  if (q_block < 1 || kv_block < 1 || head_dim < 1)
    throw core::usage(
        "blocks of {} queries, {} keys and head dimension {}: all must "
        "be at least 1",
        q_block, kv_block, head_dim);
  // 2·q·kv > I · (q + kv) · itemsize in whole numbers; the head dimension is on both sides.
  using Wide = __uint128_t;
  const Wide pairs = Wide(q_block) * Wide(kv_block);
  const Wide bytes = (Wide(q_block) + Wide(kv_block)) * Wide(size_of(dtype));
  const auto intensity_above = [&](unsigned i) { return 2 * pairs > i * bytes; };
  const std::int64_t warps = intensity_above(10) ? 8 : intensity_above(5) ? 4 : 2;
  if (pairs < 1024) return std::min<std::int64_t>(warps, 4);
  if (pairs > 16384) return std::max<std::int64_t>(warps, 8);
  return warps;
}

std::int64_t select_num_stages(std::int64_t smem_bytes, std::int64_t smem_limit) {
  if (smem_bytes < 0 || smem_limit < 0)
    throw core::usage("{} of {} bytes of shared memory: neither may be negative", smem_bytes, smem_limit);
  const std::int64_t left = smem_limit - smem_bytes;
  if (left / 2 > smem_bytes || (left / 2 == smem_bytes && left % 2 == 1)) return 3;
  return left > smem_bytes ? 2 : 1;
}

std::int64_t smem_limit_of(std::string_view gpu_name) {
  // Whole words: an RTX T400 is no T4.
  const auto has = [&](std::string_view word) {
    for (std::size_t at = gpu_name.find(word); at != std::string_view::npos;
         at = gpu_name.find(word, at + 1)) {
      const auto is_part = [&](std::size_t i) {
        return i < gpu_name.size() && std::isalnum(static_cast<unsigned char>(gpu_name[i])) != 0;
      };
      if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
    }
    return false;
  };
  if (has("A100")) return 164 * kKiB;
  if (has("V100")) return 96 * kKiB;
  if (has("T4")) return 64 * kKiB;
  return 48 * kKiB;
}

std::int64_t smem_limit() {
  constexpr const char* name = "EJKERNEL_TRITON_SMEM_LIMIT";
  if (const char* word = std::getenv(name); word != nullptr && *word != '\0') {
    const auto bytes = parse_integer(word);
    if (!bytes || *bytes < 0) throw core::usage("{}: '{}' is not a number of bytes", name, printable(word));
    return *bytes;
  }
  const GpuQuery query = query_gpus();
  return smem_limit_of(query.gpus.empty() ? std::string_view() : query.gpus.front().name);
}

}  // namespace ejk

std::size_t std::hash<ejk::FwdParams>::operator()(const ejk::FwdParams& params) const noexcept {
  return ejk::hash_of(params);
}
std::size_t std::hash<ejk::BwdParams>::operator()(const ejk::BwdParams& params) const noexcept {
  return ejk::hash_of(params);
}
