// Arguments of linear attention after validation, and its operands in one form for all layouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ejk/linear_attention.hpp"
#include "recurrence/sequences.hpp"

namespace ejk::recurrence {

enum class DecayKind { none, fixed, head, channel };

struct LinearPlan {
  LinearPlan(const LinearAttentionTypes& types, const LinearAttentionSettings& given);

  LinearAttentionSettings settings;
  bool has_leading_axis = false;  // of packed tokens (1, T, n, K)
  std::int64_t entries = 0;       // of the batch
  std::int64_t tokens = 0;        // of all entries
  std::int64_t state_heads = 0, out_heads = 0, key_size = 0, value_size = 0;
  std::int64_t bias_heads = 0;  // of dt_bias
  DecayKind decay = DecayKind::none;
  bool is_raw = false;  // decays are those of a_log or lower_bound
  bool has_dt = false;
  double scale = 1;
  DType arithmetic = DType::float32;
  std::vector<Sequence> sequences;
  std::vector<Slot> slots;
  std::vector<std::int64_t> first_chunks;  // of each sequence, and the number of all
  ArrayType out, final_state;
  std::optional<ArrayType> states;

  std::int64_t decay_width() const { return decay == DecayKind::channel ? key_size : 1; }
  /// Tokens of a block of the chunk form.
  std::int64_t most_tokens() const { return std::min<std::int64_t>(settings.chunk_size, 64); }
  /// An array of tokens as (entries, heads, tokens, size); `size` 0: gates, which become of size 1.
  ArrayView in_one_form(ArrayView array, std::int64_t size) const;
  /// States as (n, HS, K, V).
  ArrayView state_form(ArrayView array) const;
};

/// The problem, without its results.
Report description_of(const LinearPlan& plan);

/// Operands in one form; parameters of heads as numbers of each.
struct LinearInputs {
  LinearInputs(const LinearPlan& plan, const LinearAttentionArrays& arrays);

  ArrayView q, k, v;              // (entries, heads, tokens, size)
  std::optional<ArrayView> gate;  // decay or dt, of size 1 or K
  std::optional<ArrayView> beta;
  std::optional<ArrayView> initial_state;  // (n, HS, K, V)
  std::vector<double> rate;                // e^A of each state head
  std::vector<double> bias;                // (HS, decay_width())
  std::vector<double> skip;                // (HO, V); empty: none
};

}  // namespace ejk::recurrence
