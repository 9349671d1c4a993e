// Parsing of the texts in which commands state their keys, and the keys that all reports have.
//
// tests: tests/cli/run_cases.cpp, with every case
#include "schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "commands.hpp"

namespace ejk::app {

namespace {

std::vector<std::string> columns_of(std::string_view line) {
  constexpr std::string_view kBetween = " | ";
  std::vector<std::string> columns;
  for (std::size_t end = 0; end != std::string_view::npos; line.remove_prefix(end + kBetween.size())) {
    end = line.find(kBetween);
    columns.emplace_back(line.substr(0, end));
    if (end == std::string_view::npos) break;
  }
  columns.resize(std::max<std::size_t>(columns.size(), 5));
  return columns;
}

std::vector<ReportKey> parsed_keys(std::string_view text) {
  struct Level {
    std::string prefix;
    bool on_all_machines = true;
  };
  std::vector<ReportKey> keys;
  std::vector<Level> levels{{}};
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string_view::npos) continue;
    levels.resize(indent / 2 + 1);
    const std::vector<std::string> columns = columns_of(line.substr(indent));
    const std::string_view when = columns[3];
    const bool on_all = levels.back().on_all_machines && columns[4].empty();
    keys.push_back({levels.back().prefix + columns[0], columns[1],
                    std::string(when == "done"   ? kDone
                                : when == "plan" ? kDryRun
                                                 : when),
                    columns[2], on_all});
    levels.push_back({keys.back().path + (columns[1] == "table" ? "[]." : "."), on_all});
  }
  return keys;
}

// The ends of keys that name a unit; the longest first.
constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
    {"_bytes_per_s", "bytes/s"}, {"_flop_per_s", "FLOP/s"}, {"_bytes", "bytes"},
    {"_flop", "FLOP"},           {"_s", "seconds"},
};

}  // namespace

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
peak_bytes | integer | estimated peak memory | plan
max_memory_bytes | integer | the memory limit | plan
stats | section | time and memory | with --stats
  read_s | number | time to read inputs
  compute_s | number | time to compute
  write_s | number | time to write outputs
  elapsed_s | number | time in all
  input_bytes | integer | bytes that were read
  output_bytes | integer | bytes that were written
  throughput_bytes_per_s | number or null | (input + output) / (read + compute + write)
  peak_memory_bytes | integer | peak memory
  memory_allocated_bytes | integer | memory allocated at the end
  memory_reserved_bytes | integer | memory reserved at the end
  memory_limit_bytes | integer | memory that this process may use
  threads | integer | threads
  ranks | integer | processes of the run | on several ranks | some machines
  phases | table | phases of the run, over its ranks | on several ranks | some machines
    phase | string | reading, computing or writing
    min_s | number | shortest time of a rank
    mean_s | number | mean time
    max_s | number | longest time of a rank
  balance | share | mean computing time / the longest | on several ranks | some machines
  sent_bytes | integer | bytes sent between ranks | on several ranks | some machines
team | section | how the work is divided | with --dry-run, on several ranks | some machines
  ranks | integer | processes of the run
  division | table | the work of each rank
    rank | integer | the process, from 0
    share | share | its part of the work
    read_bytes | integer | bytes of inputs that it reads
    sent_bytes | integer | bytes that it sends
    written_bytes | integer | bytes of results that it writes
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
blocks | shape | rows and columns of blocks
blocks_per_cell | shape | rows and columns of blocks per cell
legend | section | what the letters mean
  E | string | empty
  P | string | partial
  F | string | full
  M | string | mixed: blocks of several states
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
