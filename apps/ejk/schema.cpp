// Parsing of the texts in which commands state their keys, and the keys that all reports have.
//
// tests: tests/cli/run_cases.cpp, with every case
#include "schema.hpp"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "commands.hpp"

namespace ejk::app {

namespace {

std::vector<ReportKey> parsed_keys(std::string_view text) {
  struct Level {
    std::string prefix;
    bool on_all_machines = true;
  };
  std::vector<ReportKey> keys;
  std::vector<Level> levels{{}};
  for (const std::string& line : split(text, "\n")) {
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos) continue;
    levels.resize(indent / 2 + 1);
    std::vector<std::string> columns = split(std::string_view(line).substr(indent), " | ");
    columns.resize(5);
    const auto& [names, type, meaning, condition] = std::tie(columns[0], columns[1], columns[2], columns[3]);
    const std::string when(condition == "done" ? kDone : condition == "plan" ? kDryRun : condition);
    const bool on_all = levels.back().on_all_machines && columns[4].empty();
    for (const std::string& name : split(names, ", "))
      keys.push_back({levels.back().prefix + name, type, when, meaning, on_all});
    levels.push_back({keys.back().path + (type == "table" ? "[]." : "."), on_all});
  }
  return keys;
}

// The ends of keys that name a unit; the longest first.
constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
    {"_bytes_per_s", "bytes/s"}, {"_flop_per_s", "FLOP/s"}, {"_bytes", "bytes"},
    {"_flop", "FLOP"},           {"_s", "seconds"},
};

}  // namespace

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + separator.size());
  }
  return parts;
}

std::string with_condition(std::string_view keys, std::string_view when) {
  std::string all;
  for (const std::string& line : split(keys, "\n")) {
    const bool has_none = !line.empty() && line[0] != ' ' && split(line, " | ").size() == 3;
    all += has_none ? fmt::format("{} | {}\n", line, when) : line + '\n';
  }
  return all;
}

std::string joined(std::initializer_list<std::string_view> texts) {
  std::string all;
  for (const std::string_view text : texts) all += text;
  return all;
}

std::string count_keys(std::string_view when) {
  return fmt::format(R"(
sequences | integer | sequences, including empty ones | {0}
empty_sequences | integer | sequences without a token | where there are such
tokens | integer | tokens of all sequences | {0}
longest | integer | tokens of the longest sequence | {0}
)",
                     when);
}

std::span<const KeyType> key_types() {
  static constexpr KeyType types[] = {
      {"string", "text; a byte of a name that is not UTF-8 is written as \\xNN"},
      {"boolean", "true or false"},
      {"integer", "a whole number; from 2^53 on perhaps with an exponent"},
      {"number", "a number, not rounded; NaN and infinities are null"},
      {"share", "a number from 0 to 1"},
      {"shape", "a list of integers: lengths of axes, or an index"},
      {"table", "a list of objects, its rows"},
      {"section", "an object"},
      {"picture", "an object; its keys are listed below"},
      {"list", "a list"},
      {"null", "nothing: unknown, or not applicable"},
  };
  return types;
}

const std::vector<ReportKey>& envelope_keys() {
  static const std::vector<ReportKey> keys = parsed_keys(R"(
schema | integer | 1, the version of this format
ejk_version | string | as --version prints it
command | string | the command: mask-info
inputs | table | what was read
  role | string | its role: mask
  value | string | as given: m.npy
result | section | what the command found
warnings | list | the texts that text reports print on stderr
)");
  return keys;
}

const std::vector<ReportKey>& shared_keys() {
  static const std::vector<ReportKey> keys = parsed_keys(R"(
pictures | table | the files of pictures | with --picture, of several
  file | string | its name
  title | string | what it shows: block size, mask and heads
decoded | table | what quantised operands were decoded as | of such operands
  operand | string | the reference, or with --decode the file
  arrays | integer | its arrays that were decoded like this
  scheme | string | fp8, mx, nvfp4 or gptoss
  element | string | the format of its elements: e2m1, float8_e4m3fn
  block | string | the values of a scale: all elements, row, column, matrix, or lengths (128x128, 1x16)
  axis | integer or null | the axis that is packed and scaled in blocks, of mx, nvfp4 and gptoss
  scale_layout | string | the layout of the scales: linear, 128x4, 8x4 or deepgemm
  nibbles | string or null | the half of a byte with the even element, low or high, or split, of 4-bit elements
  global | string or null | multiplies or divides, of the global scale of nvfp4
peak_bytes, max_memory_bytes | integer | estimated peak memory, and the limit | plan
stats | section | time and memory | with --stats
  read_s, compute_s, write_s, elapsed_s | number | time to read inputs, to compute, to write outputs, in all
  input_bytes, output_bytes | integer | bytes read and written
  throughput_bytes_per_s | number or null | (input + output) / (read + compute + write)
  peak_memory_bytes | integer | peak memory
  memory_allocated_bytes, memory_reserved_bytes | integer | memory allocated and reserved at the end
  memory_limit_bytes | integer | memory that this process may use
  threads | integer | threads
  ranks | integer | processes of the run | on several ranks | some machines
  phases | table | phases of the run, over its ranks | on several ranks | some machines
    phase | string | reading, computing or writing
    min_s, mean_s, max_s | number | shortest, mean and longest time of a rank
  balance | share | mean computing time / the longest | on several ranks | some machines
  sent_bytes | integer | bytes sent between ranks | on several ranks | some machines
team | section | how the work is divided | with --dry-run, on several ranks | some machines
  ranks | integer | processes of the run
  division | table | the work of each rank
    rank | integer | the process, from 0
    share | share | its part of the work
    read_bytes, sent_bytes, written_bytes | integer | bytes that it reads, sends and writes
    peak_bytes | integer | its estimated peak memory
  model | table | a model of the time on 1 to 1,024 ranks, as far as it is 10 ms or more
    ranks | integer | processes
    time_s | number | time, from rates measured on one rank
    efficiency | share | time of one rank, divided by ranks times this time
)");
  return keys;
}

const std::vector<ReportKey>& picture_keys() {
  static const std::vector<ReportKey> keys = parsed_keys(R"(
title | string | what the picture shows
blocks, blocks_per_cell | shape | rows and columns of blocks, in all and per cell
legend | section | what the letters mean
  E, P, F, M | string | empty, partial (one block is), full, mixed: full and empty blocks
cells | list | a text for each row of cells, a letter for each cell
)");
  return keys;
}

std::vector<ReportKey> keys_of(std::string_view command) {
  const Command* found = find_command(command.substr(0, command.find(' ')));
  return found == nullptr ? std::vector<ReportKey>() : parsed_keys(found->keys);
}

std::string form_of(const ReportKey& key) {
  for (const auto& [end, unit] : kUnits)
    if (key.path.ends_with(end)) return fmt::format("{}, {}", key.type, unit);
  return key.type;
}

}  // namespace ejk::app
