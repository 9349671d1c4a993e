// The provenance of results: the inputs, for the report, and the settings, for attributes of written files.
#pragma once

#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ejk::app {

/// The names of all settings, of any command: attributes that a file may have from an earlier run.
inline const std::vector<std::string>& setting_names() {
  static const std::vector<std::string> names = [] {
    std::istringstream words(
        "alibi alibi_form align axis block by capacity chunk_size compression computable convention cp_size distribution dq_write_order dkv downcast dtype duplicates dynamic ejk_command "
        "ejk_version element existing_out experts fill from global grad_dtype grid group_offset head_shards keep keepdims kv_seq_shards layout length long lse_base "
        "lse_empty lse_layout lse_sink m mask mask_kind masked_rows min_denominator names num_actual_groups num_nonzero_groups order overflow pad pad_value per_head "
        "q_seq_shards ranks rounding row_groups scale scale_layout scale_pow2 scale_rule scheme seed shape shrink_grid softcap softcap_order start_group std strict tiling "
        "tm top_k transpose_lhs "
        "transpose_rhs view visit_empty_groups what");
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  }();
  return names;
}

class Provenance {
 public:
  /// An input as given, and its role: ("mask", "m.npy"), ("mask_expression", "causal").
  void input(std::string role, std::string value) { inputs_.emplace_back(std::move(role), std::move(value)); }

  /// A setting that determines the results; never a time, a host, a path or a number of threads. Options are
  /// recorded where they are declared (options.hpp).
  void record(const std::string& name, std::string value) { settings_[name] = std::move(value); }

  void command_line(std::string text) { command_line_ = std::move(text); }
  const std::string& command_line() const { return command_line_; }

  const std::vector<std::pair<std::string, std::string>>& inputs() const { return inputs_; }
  const std::map<std::string, std::string>& settings() const { return settings_; }

 private:
  std::vector<std::pair<std::string, std::string>> inputs_;
  std::map<std::string, std::string> settings_;
  std::string command_line_;
};

}  // namespace ejk::app
