// The table of commands. Adding one takes a file in commands/, which declares its options and returns what to
// do, and a row in commands.cpp.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ejk::app {

class Job;

/// What a command that was done answers; "no" is an exit status of its own.
enum class Answer { yes, no };

/// What is left to do when the words are known.
using Run = std::function<Answer(Job&)>;

struct Command {
  std::string name;
  std::string group;    // its heading in `ejk help`
  std::string summary;  // one line
  std::string example;
  /// The arrays that it makes, under the names they have in a file of several.
  std::vector<std::string> outputs;
  /// Declares the options. Each option's help is one line, and what follows a line break is for --help
  /// alone; the app's footer too.
  Run (*declare)(CLI::App& app);
};

std::span<const Command> commands();

/// The one of this name, which must be one.
const Command& command_of(std::string_view name);

// commands/*.cpp
Run attention(CLI::App& app);
Run attention_grad(CLI::App& app);
Run bin_pack(CLI::App& app);
Run cdiv(CLI::App& app);
Run chunk(CLI::App& app);
Run chunk_indices(CLI::App& app);
Run chunk_offsets(CLI::App& app);
Run compare(CLI::App& app);
Run convert(CLI::App& app);
Run cu_seqlens(CLI::App& app);
Run group_metadata(CLI::App& app);
Run generate(CLI::App& app);
Run grouped_matmul(CLI::App& app);
Run fingerprint(CLI::App& app);
Run hash(CLI::App& app);
Run info(CLI::App& app);
Run lens(CLI::App& app);
Run log_sum_exp(CLI::App& app);
Run mask(CLI::App& app);
Run mask_info(CLI::App& app);
Run pack(CLI::App& app);
Run params(CLI::App& app);
Run position_ids(CLI::App& app);
Run reorder_sequence(CLI::App& app);
Run safe_divide(CLI::App& app);
Run segment_ids(CLI::App& app);
Run segment_mask(CLI::App& app);
Run seq_info(CLI::App& app);
Run sequence_ids(CLI::App& app);
Run sharding(CLI::App& app);
Run token_indices(CLI::App& app);
Run transposed_grouped_matmul(CLI::App& app);
Run unchunk(CLI::App& app);
Run unpack(CLI::App& app);

}  // namespace ejk::app
