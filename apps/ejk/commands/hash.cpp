// ejk hash: a short name for settings, and for the types of arrays.
//
// tests: tests/cli/hash/
#include "ejk/program/hash.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "computed_reference.hpp"
#include "ejk/program/text.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "unreadable.hpp"

namespace ejk::app {

namespace {

struct HashOptions {
  std::vector<std::string> inputs;
  bool canonical = false;
  Convention convention = Convention::document;
};

// Whether an input is an array, by its name; other files are JSON.
bool is_array(const std::string& word) {
  if (word == "-" || word.ends_with(".json")) return false;
  if (is_without_file(word)) return true;
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
  const auto source = job.inputs.open(word);
  JsonValue::Leaf leaf;
  leaf.dtype = source->dtype();
  leaf.shape = source->shape();
  return JsonValue(leaf);
}

// Like sha256sum: a line begins with a backslash when the name in it is escaped.
std::string line_of(const std::string& hash, const std::string& name) {
  constexpr std::string_view kSpecial = "\\\n\r", kLetters = "\\nr";
  std::string escaped;
  for (const char c : name)
    if (const std::size_t special = kSpecial.find(c); special != std::string_view::npos)
      (escaped += '\\') += kLetters[special];
    else
      escaped += c;
  return fmt::format("{}{}  {}\n", escaped == name ? "" : "\\", hash, escaped);
}

Outcome run(const HashOptions& options, Job& job) {
  // Like sha256sum: inputs that cannot be read are an error after the hashes of the others.
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

Run declare_hash(OptionSet& set) {
  const auto options = std::make_shared<HashOptions>();
  add_references(
      set, "INPUT", options->inputs,
      "JSON files, - for JSON on stdin, or arrays\nOf an array only dtype and shape count, never its values. "
      "A .json file is JSON whatever its name looks like.")
      .required();
  add_flag(set, "--canonical", options->canonical,
           "print the stable JSON that is hashed\nNo white space, members sorted, floats as short as they "
           "read back, everything outside ASCII escaped.");
  add_convention(set, options->convention,
                 "how an array is written\ndocument: with \"_type\":\"array\". ejkernel: dtype and shape "
                 "alone. JSON gives the same in both.");
  set_footer(set,
             "A line is HASH, two spaces, INPUT, as sha256sum prints: the first 16 hex digits\n"
             "of the SHA-256 of the stable JSON. Spaces and the order of members do not count.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command hash_command{
    .name = "hash",
    .group = "Settings",
    .summary = "short hashes of settings and of array types",
    .example = "ejk hash config.json q.npy",
    .keys = joined({kConventionKey, R"(
inputs_count | integer | inputs | plan
hashes | table | a row for each input | done
  input | string | the input as given
  hash | string | 16 hex digits
  canonical | string | the stable JSON that is hashed | with --canonical
)",
                    kUnreadableKeys}),
    .declare = declare_hash,
};

}  // namespace ejk::app
