// Options and parsers of their values. CLI11 splits a command line; its exceptions are replaced by errors
// that name the option.
//
// tests: tests/app/test_options.cpp
#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <system_error>

#include "ejk/program/text.hpp"
#include "other_words.hpp"
#include "schema.hpp"

namespace ejk::app {

namespace {

// An empty value ("$name" of an unset variable) is more likely a mistake than the default.
std::string read_name(const std::string& word) {
  if (word.empty()) throw usage("the value is empty");
  return word;
}

// A file name with one of these suffixes. Another suffix may be an array's, which would be overwritten.
auto with_suffix(const std::vector<std::string>& suffixes, const std::string& what) {
  return [=](const std::string& word) {
    for (const std::string& suffix : suffixes)
      if (read_name(word).size() > suffix.size() && word.ends_with(suffix)) return word;
    throw usage("'{}' is no name of a {}: it ends in {}", printable(word), what, fmt::join(suffixes, " or "));
  };
}

const Choices<When> kWhen{{"auto", When::automatic}, {"always", When::always}, {"never", When::never}};

// The value of an attribute.
std::string text_of(const ReportValue& value) {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::monostate>)
          return "";
        else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>)
          return fmt::format("{}", fmt::join(v, "x"));
        else
          return fmt::format("{}", v);
      },
      value);
}

bool is_missing(const ReportValue& value) { return std::holds_alternative<std::monostate>(value); }

}  // namespace

// --- declarations

Option& Option::recorded(std::string text, Value recorded_value) {
  if (!recorded_value) throw Error(Error::Kind::internal, name() + " is recorded and has no value");
  records = Records::parsed;
  if (!text.empty()) record_key = std::move(text);
  value = std::move(recorded_value);
  return *this;
}

const Option* OptionSet::find(std::string_view name) const {
  for (const Option& option : options_)
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end()) return &option;
  return nullptr;
}

std::vector<std::string> OptionSet::outputs(const Command& command) const {
  return outputs_ ? outputs_() : command.output_names();
}

void OptionSet::record(Provenance& provenance) const {
  for (const Option& option : options_) {
    if (option.records != Option::Records::parsed) continue;
    const ReportValue value = option.value();
    const std::string text = is_missing(value) ? option.fallback : text_of(value);
    if (!text.empty()) provenance.record(option.record_key, text);
  }
}

std::vector<std::string> OptionSet::recorded() const {
  std::vector<std::string> keys;
  for (const Option& option : options_)
    if (option.records != Option::Records::none) keys.push_back(option.record_key);
  return keys;
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names{"ejk_command", "ejk_version", "what"};  // recorded by Job and by generate
  for (const Command* command : commands())
    for (const Command* one : command->actions.empty() ? std::vector{command} : command->actions)
      for (std::string& name : Parser(*one).set.recorded()) names.push_back(std::move(name));
  std::sort(names.begin() + 1, names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void OptionSet::show(Report& report) const {
  for (const Option& option : options_) {
    if (option.label.empty()) continue;
    ReportValue value = option.value();
    if (is_missing(value) && !option.fallback.empty()) value = option.fallback;
    if (!is_missing(value)) report.add(option.record_key, option.label, std::move(value), option.unit);
  }
}

Option& take_flag(OptionSet& set, const std::string& names, std::function<void()> apply,
                  const std::string& help) {
  return take_word(
      set, names, [apply = std::move(apply)](const std::string&) { apply(); }, "", help);
}

Option& take_word(OptionSet& set, const std::string& names, std::function<void(const std::string&)> parse,
                  const std::string& type, const std::string& help) {
  Option option{split(names, ","), type, help, std::move(parse)};
  option.record_key = option.name().substr(option.name().find_first_not_of('-'));
  std::replace(option.record_key.begin(), option.record_key.end(), '-', '_');
  return set.add(std::move(option));
}

Option& take_words(OptionSet& set, const std::string& names, std::function<void(const std::string&)> parse,
                   const std::string& type, const std::string& help) {
  Option& option = take_word(set, names, std::move(parse), type, help);
  option.repeats = true;
  return option;
}

std::size_t read_choice(const std::string& word, const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), word);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  Error error = usage("'{}' is not one of {}", printable(word), fmt::join(choices, ", "));
  auto meant = meaning_of(word, choices);
  if (!meant) meant = nearest_name(word, choices);
  if (meant) error.hint(fmt::format("did you mean {}?", *meant));
  throw error;
}

std::string help_of_choices(const std::string& help, const std::vector<std::string>& choices,
                            const std::string& default_choice) {
  constexpr std::size_t kMost = 6;
  std::string list;
  for (std::size_t i = 0; i < choices.size() && choices.size() <= kMost; ++i)
    list += fmt::format("{}{}{}",
                        i == 0                   ? ""
                        : i + 1 < choices.size() ? ", "
                                                 : " or ",
                        choices[i], choices[i] == default_choice ? " (default)" : "");
  if (list.empty() && !default_choice.empty()) list = default_choice + " by default";
  const std::size_t end = std::min(help.find('\n'), help.size());
  const char* const between = list.empty() || end == 0 ? "" : choices.size() <= kMost ? ": " : ", ";
  return help.substr(0, end) + between + list + help.substr(end);
}

Option& add_format(OptionSet& set) {
  return add_choice(
             set, "--format", set.shared().format,
             {{"text", std::nullopt},
              {"github", LogFormat::github},
              {"junit", LogFormat::junit},
              {"md", LogFormat::md}},
             "FORMAT",
             "for a build's log\ngithub: workflow commands of GitHub Actions, at most 10 errors and 10 warnings. junit: "
             "XML as pytest writes it. md: a table, for $GITHUB_STEP_SUMMARY. stdout has that alone.")
      .excludes("--json, --dry-run")
      .group(kSharedGroup);
}

Option& add_convention(OptionSet& set, Convention& into, const std::string& help,
                       std::initializer_list<Convention> values) {
  return add_choice(set, "--convention", into, named_choices<Convention>(values), "WHICH", help)
      .recorded()
      .shown("convention");
}

Option& add_reference(OptionSet& set, const std::string& names, std::string& into, const std::string& help) {
  return add_word(set, names, into, read_name, "REF", help);
}

Option& add_references(OptionSet& set, const std::string& name, std::vector<std::string>& into,
                       const std::string& help) {
  return take_words(
      set, name, [&into](const std::string& word) { into.push_back(word); }, name, help);
}

// --- the shared options

namespace {

void shared(Option& option) { option.group(kSharedGroup); }

// What is printed, and where the report goes.
void declare_report(OptionSet& set, SharedOptions& into) {
  shared(add_flag(
      set, "--json", into.json,
      "print the report as one JSON object\nOn stdout, with -o - on stderr; no array is printed. 'ejk help "
      "json COMMAND' lists its keys."));
  shared(add_word(set, "--html", into.html, with_suffix({".html", ".htm"}, "page"), "FILE",
                  "write the report as one page, FILE.html\nIt is self-contained, with block pictures."));
  if (into.has_picture)
    shared(add_word(
        set, "--picture", into.picture, with_suffix({".png", ".svg"}, "picture"), "FILE",
        "draw the blocks into FILE.png or FILE.svg\nWith the mask, the size of blocks, their counts, and axes. "
        "Above 4096 blocks a side one cell for several: partial where one is, mixed where full and empty ones "
        "meet. Several masks, at most 16, go to FILE-0.png, FILE-1.png, ..."));
  shared(add_flag(
      set, "--sync", into.sync,
      "flush written files to disk\nSuccess is reported after files and their names are stored: see 'ejk "
      "help arrays'."));
  shared(add_flag(set, "-q,--quiet", into.quiet, "no report and no progress bar"));
  shared(add_flag(
      set, "-v,--verbose", into.verbose,
      "the whole report, where it is short by default\nVerdicts are: --json and --html have all of it "
      "in any case."));
  shared(add_choice(
      set, "--progress", into.progress, kWhen, "WHEN",
      "progress bar\nauto draws it on stderr after two seconds if that is a terminal, unless TERM is dumb."));
  shared(add_choice(set, "--color", into.color, kWhen, "WHEN",
                    "color\nauto uses it on terminals, unless NO_COLOR is set or TERM is dumb."));
}

void declare_shared(OptionSet& set, const Command& command) {
  SharedOptions& into = set.shared();
  const std::vector<std::string> names = command.output_names();
  into.has_field = names.size() > 1;
  if (!names.empty())
    shared(add_word(
        set, "-o,--output", into.output, read_name, "OUTPUT",
        into.has_field
            ? "where to write the arrays: out.h5, out.h5:/group, out.npz or out/\n"
              "Or out.safetensors. A folder gets one NAME.npy for each. With --field also an .npy file, or - for "
              "stdout. Without -o only the report is printed. See 'ejk help arrays'."
            : "where to write the array: x.npy, x.npz, x.h5:/name, or - for stdout\n"
              "Without -o it is printed as text that numpy.loadtxt reads, with --json not."));
  if (into.has_field) {
    const auto read = [names](const std::string& word) { return names[read_choice(read_name(word), names)]; };
    Option& field =
        add_word(set, "--field", into.field, read, "NAME",
                 "write only this one of the arrays\nWithout -o as text that numpy.loadtxt reads.");
    field.choices = names;
    shared(field);
  }
  if (!names.empty())
    shared(
        add_flag(set, "--overwrite", into.overwrite,
                 "replace existing HDF5 objects\nOther files are always replaced. Each run that adds to an "
                 "HDF5 file copies the whole file."));
  shared(add_flag(
      set, "--dry-run", into.dry_run,
      "check the inputs, print the plan, write nothing\nReads headers, and small inputs such as lengths. "
      "Prints shapes, bytes and peak memory."));
  shared(
      add_word(set, "--max-memory", into.max_memory, read_size, "SIZE",
               "memory limit, such as 4GiB; a run that needs more stops before it begins\n"
               "Default: nine tenths of the available memory, within a container's limit. k M G are powers "
               "of 1000, Ki Mi Gi of 1024."));
  shared(
      add_word(set, "--threads", into.threads, at_least(1), "N",
               "number of threads\nDefault: OMP_NUM_THREADS, else the available cores. Results do not depend "
               "on it."));
  shared(add_flag(set, "--stats", into.stats,
                  "add times, bytes and peak memory to the report\nWall seconds of reading, computing and "
                  "writing. Mapped inputs are read while computing."));
  declare_report(set, into);
  shared(add_flag(
      set, "--allow-external", into.allow_external,
      "let HDF5 files refer to other files\nOtherwise external storage, virtual datasets, plug-in filters and "
      "named external links are refused; other external links are skipped."));
}

}  // namespace

Parser::Parser(const Command& command) : run(command.declare(set)) { declare_shared(set, command); }

// --- parsing

namespace {

// CLI11 would take a slice of stdin, "-[0]", for an option, and a printed array, "[0, 3]", for several words;
// a space is put before them.
bool is_slice_of_stdin(const std::string& word) { return word.starts_with("-["); }

std::string with_type(const Option& option) {
  return option.type.empty() || option.is_positional() ? option.name() : option.name() + " " + option.type;
}

// "--quiet=yes" and "--mask=", which CLI11 would accept.
void check_value(const OptionSet& set, const std::string& word) {
  const std::size_t equals = word.find('=');
  const Option* option = word.starts_with("-") ? set.find(word.substr(0, equals)) : nullptr;
  if (option == nullptr || equals == std::string::npos) return;
  if (option->type.empty()) throw usage("{} takes no value", word.substr(0, equals));
  if (equals + 1 == word.size()) throw usage("a value is missing: {}", with_type(*option));
}

// Removes the opposites of flags, as --no-brief and --equal-nan are: they are the default.
void remove_defaults(const OptionSet& set, std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  const auto is_default = [&](const std::string& word) {
    if (!word.starts_with("--") || set.find(word) != nullptr) return false;
    const std::string flag = word.starts_with("--no-") ? "--" + word.substr(5) : "--no-" + word.substr(2);
    const Option* option = set.find(flag);
    if (option == nullptr || !option->type.empty()) return false;
    if (std::find(arguments.begin(), end, flag) != end)
      throw usage("{} and {} exclude each other", flag, word);
    return true;
  };
  arguments.erase(std::remove_if(arguments.begin(), end, is_default), end);
}

// An option without its value, where that may be omitted, gets it.
void add_value(const OptionSet& set, std::vector<std::string>& arguments, std::size_t at) {
  const Option* option = arguments[at].starts_with("--") ? set.find(arguments[at]) : nullptr;
  if (option == nullptr || option->when_alone.empty()) return;
  const auto& choices = option->choices;
  const bool has_value = at + 1 < arguments.size() &&
                         std::find(choices.begin(), choices.end(), arguments[at + 1]) != choices.end();
  if (!has_value) arguments[at] += "=" + option->when_alone;
}

}  // namespace

namespace {

void add_sentence(std::string& help, const std::string& text) {
  help += (help.find('\n') == std::string::npos ? "\n" : " ") + text;
}

}  // namespace

Option& Option::needs(std::string other) {
  add_sentence(help, "Requires " + other + ".");
  relations.push_back({std::move(other), true});
  return *this;
}

Option& Option::excludes(const std::string& others) {
  add_sentence(help, "Excludes " + others + ".");
  for (std::string& name : split(others, ", ")) relations.push_back({std::move(name), false});
  return *this;
}

std::optional<Error> OptionSet::broken_relation() const {
  for (const Option& option : options_) {
    if (!option.is_given) continue;
    for (const Option::Relation& relation : option.relations) {
      const Option& other = *find(relation.other);
      if (other.is_given == relation.is_needed) continue;
      if (!relation.is_needed) return usage("{} excludes {}", option.name(), other.name());
      Error error = usage("{} requires {}", option.name(), with_type(other));
      if (!other.choices.empty())
        error.hint(fmt::format("{} {}", other.name(), fmt::join(other.choices, ", ")));
      return error;
    }
  }
  return std::nullopt;
}

Parsed OptionSet::parse(std::vector<std::string> arguments, std::string_view example) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  int stdin_readers = 0;
  std::vector<const CLI::Option*> parsers;  // of options_
  for (Option& option : options_) {
    const auto parse_value = [&option, &stdin_readers](const std::string& word) {
      option.is_given = true;
      option.given = word.starts_with(" -[") || word.starts_with(" [") ? word.substr(1) : word;
      if (option.name() != "--output" && (option.given == "-" || is_slice_of_stdin(option.given)))
        ++stdin_readers;
      try {
        option.parse(option.given);
      } catch (Error& error) {
        if (!option.repeats) error.at(option.name());
        throw;
      }
    };
    const auto parse_each = [parse_value](const std::vector<std::string>& words) {
      for (const std::string& word : words) parse_value(word);
    };
    const std::string names = fmt::format("{}", fmt::join(option.names, ","));
    CLI::Option* parser =
        option.type.empty() ? app.add_flag_callback(names, [parse_value] { parse_value(""); })
        : option.repeats    ? app.add_option_function<std::vector<std::string>>(names, parse_each)
                            : app.add_option_function<std::string>(names, parse_value);
    if (option.repeats && !option.is_positional()) parser->allow_extra_args(false);
    parsers.push_back(parser->required(option.is_required));
  }
  remove_defaults(*this, arguments);
  const std::string last = arguments.empty() ? "" : arguments.back();
  for (auto word = arguments.begin(); word != arguments.end() && *word != "--"; ++word) {
    add_value(*this, arguments, static_cast<std::size_t>(word - arguments.begin()));
    check_value(*this, *word);
    if (is_slice_of_stdin(*word) || word->starts_with('[')) word->insert(0, 1, ' ');
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last one first

  Parsed parsed;
  const auto first_where = [&](auto&& holds) -> const Option* {
    for (std::size_t i = 0; i < parsers.size(); ++i)
      if (holds(options_[i], parsers[i]->count())) return &options_[i];
    return nullptr;
  };
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::RequiredError&) {
    const Option* missing =
        first_where([](const Option& o, std::size_t n) { return o.is_required && n == 0; });
    parsed.error = usage(missing->name() + " is required").hint(fmt::format("for example: {}", example));
  } catch (const CLI::ArgumentMismatch& error) {
    // Given twice; or the last argument is an option without its value.
    if (const Option* twice = first_where([](const Option& o, std::size_t n) { return !o.repeats && n > 1; }))
      parsed.error = usage("{} is given more than once", twice->name());
    else if (const Option* option = find(last.starts_with("--") ? last : fmt::format("-{}", last.back())))
      parsed.error = usage("a value is missing: {}", with_type(*option));
    else
      parsed.error = usage(error.what());
  } catch (const CLI::ParseError& error) {
    parsed.error = usage(error.what());
  }
  parsed.extras = app.remaining();
  if (!parsed.error && stdin_readers > 1) parsed.error = usage("-: standard input can be read only once");
  return parsed;
}

// --- values

namespace {

Error too_large(const std::string& word) {
  return usage("{} is too large: at most {}", printable(word), INT64_MAX);
}

Error not_a_size(const std::string& word) {
  return usage("'{}' is not a size, such as 64k or 4GiB", printable(word));
}

// "128", "HxQxK or QxK" → "128x128"
std::string square_of(const std::string& length, const std::string& form) {
  std::string out = length;
  const std::string shortest = form.substr(form.rfind(' ') + 1);
  for (auto more = std::count(shortest.begin(), shortest.end(), 'x'); more > 0; --more) out += "x" + length;
  return out;
}

// "1024,1024" or "(1024, 1024)" → "1024x1024"; a word without such separators as it is.
std::string with_crosses(std::string word) {
  if (word.find_first_of(",*X([") == std::string::npos) return word;
  std::erase_if(word, [](char c) { return std::string_view("()[] ").find(c) != std::string_view::npos; });
  const auto is_separator = [](char c) { return std::string_view(",*X").find(c) != std::string_view::npos; };
  std::replace_if(word.begin(), word.end(), is_separator, 'x');
  return word;
}

}  // namespace

Shape read_lengths(const std::string& word, std::size_t least_rank, std::size_t most_rank,
                   const std::string& form, std::int64_t least) {
  Shape lengths;
  bool good = true;
  std::string_view rest = word;
  for (bool more = true; more && good;) {
    const std::size_t end = rest.find('x');
    const auto length = parse_integer(rest.substr(0, end));
    if (!length && !rest.starts_with('-') && is_whole_number(rest.substr(0, end)))
      throw too_large(std::string(rest.substr(0, end)));
    good = length && *length >= least;
    if (good) lengths.push_back(*length);
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + 1);
  }
  if (good && lengths.size() >= least_rank && lengths.size() <= most_rank) return lengths;
  Error error = usage("'{}' is not of the form {} with lengths of at least {}", printable(word), form, least);
  if (good && lengths.size() == 1) error.hint(fmt::format("for example {}", square_of(word, form)));
  if (const std::string crosses = with_crosses(word); !good && crosses != word) try {
      read_lengths(crosses, least_rank, most_rank, form, least);
      error.hint(fmt::format("did you mean {}?", crosses));
    } catch (const Error&) {  // nor is that one
    }
  throw error;
}

std::int64_t read_integer(const std::string& word, std::int64_t least) {
  const auto value = parse_integer(word);
  if (!value && is_whole_number(word) && word.starts_with('-'))
    throw usage("{} is less than {}", printable(word), least);
  if (!value && is_whole_number(word)) throw too_large(word);
  if (!value) throw usage("'{}' is not a whole number", printable(word));
  if (*value < least) throw usage("{} is less than {}", *value, least);
  return *value;
}

double read_real(const std::string& word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const char* begin = word.data() + (word.starts_with('+') ? 1 : 0);
  const auto [stop, failed] = std::from_chars(begin, end, value);
  if (stop != end || failed == std::errc::invalid_argument)
    throw usage("'{}' is not a number", printable(word));
  if (failed == std::errc::result_out_of_range)
    throw usage("'{}' is beyond double precision", printable(word));
  return value;
}

double read_finite(const std::string& word) {
  const double value = read_real(word);
  if (!std::isfinite(value)) throw usage("'{}' is not a finite number", printable(word));
  return value;
}

double read_share(const std::string& word) {
  const double share = read_real(word);
  if (!(share >= 0 && share <= 1)) throw usage("{} is not from 0 to 1", word);
  return share;
}

Number read_number(const std::string& word) {
  // -0 has its sign as a float alone.
  if (const auto whole = parse_integer(word); whole && (*whole != 0 || !word.starts_with('-'))) return *whole;
  if (const auto whole = parse_unsigned(word)) return *whole;
  return read_real(word);
}

std::int64_t read_size_or_zero(const std::string& word) {
  const auto size = parse_size(word);
  // With another number the same unit gives a size.
  const std::size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
  if (!size && digits > 0 && parse_size("1" + word.substr(digits))) throw too_large(word);
  if (!size) throw not_a_size(word);
  return *size;
}

std::int64_t read_size(const std::string& word) {
  const std::int64_t size = read_size_or_zero(word);
  if (size < 1) throw not_a_size(word);
  return size;
}

}  // namespace ejk::app
