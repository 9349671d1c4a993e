// Conventions in which attention kernels differ: the order of what is added to scores, how a row of scores
// ends, and the form of its lse. One value has them all; a table has those of libraries, from their sources.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ejk {

/// Whether bias and ALiBi are added after the soft cap, or are capped with the scores.
enum class SoftcapOrder { before_bias, after_bias };

/// What ALiBi adds to the score of query i of Q and key j of K, times the slope: −|i + K − Q − j|, or j − i.
enum class AlibiForm { absolute, signed_distance };

enum class LseBase { e, two };
/// lse of a query without a key and without a sink; finite: −0.7 times the largest float32, JAX's mask value.
enum class LseEmpty { minus_infinity, infinity, zero, finite };
enum class LseSink { in, out };
/// out of a query without a key and without a sink: 0, or the mean of all values of its entry, with its gradient.
enum class MaskedRows { zero, mean };
/// The axes of lse: heads before positions, (B, H, Q) or (H, T), or after them, (B, Q, H) or (T, H). Attention's
/// is hn; programs exchange the axes.
enum class LseLayout { hn, nh };

std::string_view name_of(SoftcapOrder order);
std::string_view name_of(AlibiForm form);
std::string_view name_of(LseBase base);
std::string_view name_of(LseEmpty empty);
std::string_view name_of(LseSink sink);
std::string_view name_of(MaskedRows rows);
std::string_view name_of(LseLayout layout);

struct AttentionConventions {
  SoftcapOrder softcap_order = SoftcapOrder::before_bias;
  AlibiForm alibi_form = AlibiForm::absolute;
  LseBase lse_base = LseBase::e;
  LseEmpty lse_empty = LseEmpty::minus_infinity;
  LseSink lse_sink = LseSink::in;
  MaskedRows masked_rows = MaskedRows::zero;

  bool operator==(const AttentionConventions&) const = default;
};

struct LibraryConventions {
  std::string_view name;  // "fa3"
  AttentionConventions conventions;
  bool scales = true;  // 1/√D unless given; else the caller scales queries
  LseLayout lse_layout = LseLayout::hn;
};

/// flashinfer, fa2, fa3, fa4, flashmla, torch (flex_attention), torch-sdpa (its CPU kernel), jax-splash, cudnn.
std::span<const LibraryConventions> library_conventions();

/// ALiBi's slopes of `heads` heads: 2^(−8 (h + 1) / n) of the first n, the largest power of two among them,
/// then 2^(−4 (2 (h − n) + 1) / n). Source: ALiBi's paper, for any number of heads as its authors' code.
std::vector<double> alibi_slopes(std::int64_t heads);

}  // namespace ejk
