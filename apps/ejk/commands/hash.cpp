// ejk hash: a short name for settings, and for the types of arrays.
//
// tests: tests/cli/hash/
#include "ejk/hash.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "ejk/text.hpp"
#include "job.hpp"
#include "unreadable.hpp"

namespace ejk::app {

namespace {

struct HashOptions {
  std::vector<std::string> inputs;
  bool canonical = false;
  Convention convention = Convention::document;
};

// An array by its name; every other file is JSON.
bool is_array(const std::string& word) {
  if (word == "-" || word.ends_with(".json")) return false;
  const ArrayReference reference = parse_input(word);
  return reference.is_stream() || reference.holds_several() || !reference.slice.empty() ||
         reference.path.ends_with(".npy");
}

JsonValue value_of(const std::string& word, Job& job) {
  if (!is_array(word))
    return job.inputs.read_json(
        "input", word,
        word == "-" ? "this is an .npy stream, which '-[...]' names" : "this is an .npy file: name it .npy");
  job.provenance.input("input", word);
  const auto source = job.inputs.open(parse_input(word));
  JsonValue::Leaf leaf;
  leaf.dtype = source->dtype();
  leaf.shape = source->shape();
  return JsonValue(leaf);
}

// As sha256sum does: a line begins with a backslash when the name in it is escaped.
std::string line_of(const std::string& hash, const std::string& name) {
  std::string escaped;
  for (const char c : name) {
    if (c == '\\')
      escaped += "\\\\";
    else if (c == '\n')
      escaped += "\\n";
    else if (c == '\r')
      escaped += "\\r";
    else
      escaped += c;
  }
  return fmt::format("{}{}  {}\n", escaped == name ? "" : "\\", hash, escaped);
}

Outcome run(const HashOptions& options, Job& job) {
  // As sha256sum does: what cannot be read does not keep the hashes of the others back, and is an error in the end.
  std::string text;
  Unreadable unreadable;
  Table table{"hashes", "", {{"input", "input"}, {"hash", "hash"}}, {}, INT64_MAX};
  if (options.canonical) table.columns.push_back({"canonical", "stable JSON"});
  for (const std::string& word : options.inputs) {
    std::optional<JsonValue> value;
    if (!unreadable.unless_failing(
            word, [&] { value = job.phase(Phase::read, [&] { return value_of(word, job); }); }))
      continue;
    job.phase(Phase::compute, [&] {
      std::string hash = short_hash(*value, options.convention);
      std::string canonical = options.canonical ? stable_json(*value, options.convention) : "";
      text += options.canonical ? canonical + "\n" : line_of(hash, word);
      table.rows.push_back({word, std::move(hash)});
      if (options.canonical) table.rows.back().emplace_back(std::move(canonical));
    });
  }
  if (table.rows.empty() && !job.json()) unreadable.throw_if_any();
  Report report;
  job.show_options(report);
  if (job.plan(Report(report).add("inputs_count", "inputs", static_cast<std::int64_t>(options.inputs.size())),
               static_cast<std::int64_t>(text.size()))) {
    unreadable.throw_if_any();
    return Outcome::passed;
  }
  report.add(std::move(table));
  unreadable.add_to(report);
  job.deliver_text(text, std::move(report));
  unreadable.throw_if_any();
  return Outcome::passed;
}

}  // namespace

Run hash(OptionSet& set) {
  const auto options = std::make_shared<HashOptions>();
  add_references(
      set, "INPUT", options->inputs,
      "JSON files, - for JSON on stdin, or arrays\n"
      "Of an array only dtype and shape count, never its values. A .json file is JSON whatever its "
      "name looks like.")
      .required();
  add_flag(set, "--canonical", options->canonical,
           "print the stable JSON that is hashed\nNo white space, members sorted, floats as short as they "
           "read back, everything outside ASCII escaped.");
  add_convention(set, options->convention,
                 "how an array is written: document or ejkernel\n"
                 "document (default): with \"_type\":\"array\". ejkernel: dtype and shape alone. JSON gives "
                 "the same in both.");
  set_footer(set,
             "A line is HASH, two spaces, INPUT, as sha256sum prints: the first 16 hex digits\n"
             "of the SHA-256 of the stable JSON. Spaces and the order of members do not count.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
