// The list of commands, in the order of `ejk help`. A new command is a file in commands/ that defines
// NAME_command, and an entry here.
#include "commands.hpp"

#include <algorithm>
#include <utility>

#include "schema.hpp"

namespace ejk::app {

// clang-format off
#define EJK_COMMANDS(COMMAND) \
  COMMAND(cu_seqlens) COMMAND(lens) COMMAND(position_ids) COMMAND(sequence_ids) \
  COMMAND(token_indices) COMMAND(chunk_indices) COMMAND(chunk_offsets) COMMAND(cdiv) \
  COMMAND(reorder_sequence) COMMAND(cp_order) COMMAND(pack) COMMAND(unpack) COMMAND(bin_pack) COMMAND(seq_info) \
  COMMAND(segment_ids) COMMAND(segment_mask) COMMAND(mask_info) COMMAND(sparsity) COMMAND(mask) \
  COMMAND(route) COMMAND(group_metadata) COMMAND(grouped_matmul) COMMAND(transposed_grouped_matmul) \
  COMMAND(combine) COMMAND(moe) COMMAND(attention) COMMAND(attention_grad) COMMAND(merge_states) \
  COMMAND(linear_attention) COMMAND(linear_attention_grad) COMMAND(conv1d) COMMAND(info) COMMAND(convert) \
  COMMAND(quantize) COMMAND(compare) \
  COMMAND(check) COMMAND(audit) COMMAND(replay) COMMAND(generate) COMMAND(chunk) COMMAND(unchunk) COMMAND(log_sum_exp) \
  COMMAND(safe_divide) COMMAND(params) COMMAND(hash) COMMAND(sharding) COMMAND(fingerprint)
// clang-format on

#define EJK_DECLARED(NAME) extern const Command NAME##_command;
#define EJK_LISTED(NAME) &NAME##_command,

EJK_COMMANDS(EJK_DECLARED)

std::span<const Command* const> commands() {
  static constexpr const Command* all[] = {EJK_COMMANDS(EJK_LISTED)};
  return all;
}

const Command* find_command(std::string_view name) {
  const auto all = commands();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Command* c) { return c->name == name; });
  return found == all.end() ? nullptr : *found;
}

const Command* find_action(const Command& command, std::string_view action) {
  for (const Command* one : command.actions)
    if (one->action() == action) return one;
  return nullptr;
}

std::vector<WrittenArray> Command::all_outputs() const {
  std::vector<WrittenArray> all = outputs;
  for (const Command* one : actions) all.insert(all.end(), one->outputs.begin(), one->outputs.end());
  return all;
}

std::vector<std::string> Command::output_names() const {
  std::vector<std::string> names;
  for (const WrittenArray& array : outputs)
    for (std::string& one : split(array.name, ", ")) names.push_back(std::move(one));
  return names;
}

}  // namespace ejk::app
