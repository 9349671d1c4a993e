// The table of commands. Adding one takes a file in commands/, which declares its options and returns what to
// do, and a row in commands.cpp.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::app {

class Job;
class OptionSet;

/// What a command that was done answers; "no" is an exit status of its own.
enum class Outcome { passed, failed };

/// What is left to do when the words are known.
using Run = std::function<Outcome(Job&)>;

/// A command, or one of the actions of a command that has several ("generate masks").
struct Command {
  std::string name;
  std::string group;    // its heading in `ejk help`; of an action the command
  std::string summary;  // one line
  std::string example;
  /// The arrays that it makes, under the names they have in a file of several.
  std::vector<std::string> outputs;
  /// Declares the options. Each option's help is one line, and what follows a line break is for --help
  /// alone; the footer too.
  Run (*declare)(OptionSet& set) = nullptr;
  /// The words that may follow the name, each a command of its own; declare is null then.
  std::vector<Command> actions = {};
  /// The ranks do it together; else rank 0 does it alone.
  bool is_divided = false;

  /// "generate" of "generate masks": what reports and files call it.
  std::string word() const { return name.substr(0, name.find(' ')); }
};

/// The action that a second word names; nullptr where there is none.
const Command* action_of(const Command& command, std::string_view word);

std::span<const Command> commands();

/// The one of this name, which must be one.
const Command& command_of(std::string_view name);

// commands/*.cpp
Run attention(OptionSet& set);
Run attention_grad(OptionSet& set);
Run bin_pack(OptionSet& set);
Run cdiv(OptionSet& set);
Run check_block_table(OptionSet& set);
Run check_cu_seqlens(OptionSet& set);
Run check_group_metadata(OptionSet& set);
Run check_group_sizes(OptionSet& set);
Run check_indices(OptionSet& set);
Run check_mask(OptionSet& set);
Run check_mask_info(OptionSet& set);
Run check_position_ids(OptionSet& set);
Run check_segment_ids(OptionSet& set);
Run check_topk_ids(OptionSet& set);
Run chunk(OptionSet& set);
Run chunk_indices(OptionSet& set);
Run chunk_offsets(OptionSet& set);
Run compare(OptionSet& set);
Run convert(OptionSet& set);
Run cu_seqlens(OptionSet& set);
Run group_metadata(OptionSet& set);
Run generate_attention(OptionSet& set);
Run generate_groups(OptionSet& set);
Run generate_lens(OptionSet& set);
Run generate_masks(OptionSet& set);
Run grouped_matmul(OptionSet& set);
Run fingerprint(OptionSet& set);
Run hash(OptionSet& set);
Run info(OptionSet& set);
Run lens(OptionSet& set);
Run log_sum_exp(OptionSet& set);
Run mask(OptionSet& set);
Run mask_info(OptionSet& set);
Run pack(OptionSet& set);
Run params_backward(OptionSet& set);
Run params_merge(OptionSet& set);
Run params_stages(OptionSet& set);
Run params_to_dict(OptionSet& set);
Run params_warps(OptionSet& set);
Run position_ids(OptionSet& set);
Run reorder_sequence(OptionSet& set);
Run safe_divide(OptionSet& set);
Run segment_ids(OptionSet& set);
Run segment_mask(OptionSet& set);
Run seq_info(OptionSet& set);
Run sequence_ids(OptionSet& set);
Run sharding(OptionSet& set);
Run sparsity(OptionSet& set);
Run token_indices(OptionSet& set);
Run transposed_grouped_matmul(OptionSet& set);
Run unchunk(OptionSet& set);
Run unpack(OptionSet& set);

}  // namespace ejk::app
