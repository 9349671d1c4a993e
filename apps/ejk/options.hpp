// Declarations of options: how values are parsed, which options one requires or excludes, help, and names in
// reports and attributes of files. The parser, help, manual pages and completion read them. CLI11, slow to
// compile, is in options.cpp alone.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "commands.hpp"
#include "ejk/array.hpp"
#include "ejk/array_math.hpp"
#include "ejk/convention.hpp"
#include "ejk/error.hpp"
#include "ejk/report.hpp"
#include "provenance.hpp"
#include "terminal.hpp"

namespace ejk::app {

inline Error usage(std::string message) { return {Error::Kind::usage, std::move(message)}; }
template <class First, class... Rest>
Error usage(fmt::format_string<First, Rest...> message, First&& first, Rest&&... rest) {
  return usage(fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...));
}

struct ReplayFile;

struct SharedOptions {
  std::string program = "ejk";  // its name in messages
  std::string output;
  std::string field;
  bool has_field = false;  // the command writes several arrays
  bool overwrite = false;
  bool sync = false;            // flush written files to disk before reporting success
  int compression = 0;          // of written files: 0 none, 1 (fast) to 9 (small)
  std::int64_t threads = 0;     // 0: OMP_NUM_THREADS, else the usable cores
  std::int64_t max_memory = 0;  // 0: nine tenths of the available memory
  bool dry_run = false;
  bool stats = false;
  bool allow_external = false;
  bool json = false;
  std::optional<LogFormat> format;  // of --format; none: text
  bool quiet = false;
  bool verbose = false;  // details of the report, too
  std::string html;      // the report as a page
  std::string picture;
  bool has_picture = false;                  // the command's report has block pictures
  std::shared_ptr<const ReplayFile> replay;  // the inputs of a replayed command
  When progress = When::automatic;
  When color = When::automatic;
};

// Headings of options that a topic of help describes (help.hpp).
inline constexpr const char *kSharedGroup = "Common options", *kMaskGroup = "Masks", *kScoresGroup = "Scores",
                            *kConventionsGroup = "Conventions", *kPagedGroup = "Paged caches",
                            *kAgainstGroup = "Comparison", *kTolerancesGroup = "Tolerances";

/// Types whose values can be written to files and reports.
template <class T>
concept Reportable = std::constructible_from<ReportValue, T> || std::integral<T> || std::same_as<T, Number> ||
    requires(const T& value) {
  name_of(value);
} || requires(const T& value) {
  to_string(value);
} || requires(const T& value) {
  value.has_value();
};

/// std::monostate where there is no value: an empty optional or text.
template <Reportable T>
ReportValue report_value(const T& value) {
  if constexpr (std::same_as<T, std::string>) {
    return value.empty() ? ReportValue() : ReportValue(value);
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::constructible_from<ReportValue, T>) {
    return value;
  } else if constexpr (std::same_as<T, Number>) {
    return std::visit([](auto number) { return ReportValue(number); }, value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? report_value(*value) : ReportValue();
  } else if constexpr (requires { name_of(value); }) {
    return std::string(name_of(value));
  } else {
    return to_string(value);
  }
}

/// An option, a flag (no type), or a positional argument (a name without dashes).
struct Option {
  using Value = std::function<ReportValue()>;

  std::vector<std::string> names;  // "-o", "--output"; "MASK"
  std::string type;                // of its value in help: "QxK"
  std::string help;                // the first line is the summary; --help alone prints the rest
  std::function<void(const std::string& value)> parse = {};  // throws Error{usage}
  bool repeats = false;  // may be given several times; a positional argument takes all remaining ones
  bool is_required = false;
  std::string heading = "Options";        // in help
  std::vector<std::string> choices = {};  // the allowed values; empty: any text
  std::string when_alone = {};  // the value of an option whose value may be omitted, one of its choices
  bool is_given = false;        // in the command line
  std::string given = {};       // its last value

  bool is_positional() const { return !names.back().starts_with('-'); }
  /// The long name: "--output".
  const std::string& name() const { return names.back(); }

  Option& required() { return is_required = true, *this; }
  /// Relations to other options of the command: for OptionSet::broken_relation(), and in its help.
  Option& needs(std::string other);
  /// One or several: "--explain, --map".
  Option& excludes(const std::string& others);
  Option& group(std::string title) { return heading = std::move(title), *this; }
  /// Its name in files and in JSON; by default its long name, "--head-shards" as "head_shards".
  Option& key(std::string text) { return record_key = std::move(text), *this; }
  /// Records the value as an attribute of written files. Only for options that determine the results.
  Option& recorded(std::string text = "") { return recorded(std::move(text), value); }
  /// The same, for a value other than the parsed one.
  Option& recorded(std::string text, Value recorded_value);
  /// The command records it, by Provenance::record().
  Option& recorded_by_command() { return records = Records::command, *this; }
  /// Adds the value to the report, where the command calls Job::show_options().
  Option& shown(std::string text, Unit of = Unit::none) { return label = std::move(text), unit = of, *this; }
  /// The text recorded and shown where there is no value.
  Option& otherwise(std::string text) { return fallback = std::move(text), *this; }
  Option& from(Value read) { return value = std::move(read), *this; }

  struct Relation {
    std::string other;
    bool is_needed;
  };

  // Set by the functions above.
  std::vector<Relation> relations = {};
  std::string record_key = {}, label = {}, fallback = {};
  Unit unit = Unit::none;
  enum class Records : std::uint8_t { none, parsed, command } records = Records::none;
  Value value = {};
};

struct Parsed {
  std::vector<std::string> extras;  // unknown options and superfluous arguments, in order
  std::optional<Error> error;       // to be reported if there are no extras
};

/// The options of one command: the declarations, and after parse() their values.
class OptionSet {
 public:
  OptionSet() = default;
  OptionSet(const OptionSet&) = delete;  // the declarations refer to shared()
  OptionSet& operator=(const OptionSet&) = delete;

  SharedOptions& shared() { return shared_; }
  const SharedOptions& shared() const { return shared_; }

  Option& add(Option option) { return options_.emplace_back(std::move(option)); }
  /// Options after the first `n` need another one, and have a heading that says so.
  void all_need(const std::string& other, std::size_t n) {
    for (; n < options_.size(); ++n) options_[n].group("With " + other).needs(other);
  }
  /// In the order of their declaration.
  const std::deque<Option>& options() const { return options_; }
  /// By any of its names ("-o", "--output"); nullptr if there is none.
  const Option* find(std::string_view name) const;

  /// After parse(): the first relation of a given option that does not hold. Apart from it, because words may be
  /// parsed that are no whole command line.
  std::optional<Error> broken_relation() const;

  /// The last paragraphs of the command's help.
  void set_footer(std::string text) { footer_ = std::move(text); }
  const std::string& footer() const { return footer_; }

  /// Throws Error{usage} for an invalid value; `example` is the hint for a missing one. The opposite of a flag,
  /// --no-brief or --equal-nan, is accepted: it is the default.
  Parsed parse(std::vector<std::string> arguments, std::string_view example = "");

  /// The names of the arrays that are written, where options determine them; by default the command's.
  void set_outputs(std::function<std::vector<std::string>()> names) { outputs_ = std::move(names); }
  /// The inputs determine them: the command calls job.outputs.declare().
  void name_outputs_later() { outputs_later_ = true; }
  bool names_outputs_later() const { return outputs_later_; }
  std::vector<std::string> outputs(const Command& command) const;

  void record(Provenance& provenance) const;
  /// The names of the recorded options.
  std::vector<std::string> recorded() const;
  /// Adds the shown options to a report, in the order of their declaration.
  void show(Report& report) const;

 private:
  SharedOptions shared_;
  std::deque<Option> options_;  // commands keep references
  std::string footer_;
  std::function<std::vector<std::string>()> outputs_;
  bool outputs_later_ = false;
};

struct Parser {
  explicit Parser(const Command& command);

  OptionSet set;
  Run run;
};

/// The names of all settings, of any command: attributes that a file may have from an earlier run, first the one
/// that each has.
std::vector<std::string> setting_names();

/// The error for an option that `command`, whose options are `set`, does not have: it may be one of another
/// program or command, or misspelt. `arguments` are all that were given.
Error unknown_option(const Command& command, const OptionSet& set, const std::string& option,
                     const std::vector<std::string>& arguments);

/// --picture, for commands whose reports have block pictures.
inline void declare_picture(OptionSet& set) { set.shared().has_picture = true; }

/// The last paragraphs of the command's help.
inline void set_footer(OptionSet& set, std::string text) { set.set_footer(std::move(text)); }

/// A flag that runs `apply`. `names` are separated by commas: "-q,--quiet".
Option& take_flag(OptionSet& set, const std::string& names, std::function<void()> apply,
                  const std::string& help);

template <class T>
Option& add_flag(OptionSet& set, const std::string& names, T& into, std::type_identity_t<T> value,
                 const std::string& help) {
  return take_flag(
      set, names, [&into, value] { into = value; }, help);
}

/// A flag that sets a bool to true; or to `value` ("--no-downcast").
inline Option& add_flag(OptionSet& set, const std::string& names, bool& into, const std::string& help,
                        bool value = true) {
  return add_flag(set, names, into, value, help).from([&into] { return into; });
}

/// An option whose value is passed to `parse`. Errors are prefixed with the option's name.
Option& take_word(OptionSet& set, const std::string& names, std::function<void(const std::string&)> parse,
                  const std::string& type, const std::string& help);

/// The same, which may be given several times; a positional argument takes all remaining ones.
Option& take_words(OptionSet& set, const std::string& names, std::function<void(const std::string&)> parse,
                   const std::string& type, const std::string& help);

/// An option whose value is parsed by `read` and assigned.
template <class T, class Read>
Option& add_word(OptionSet& set, const std::string& names, T& into, Read read, const std::string& type,
                 const std::string& help) {
  Option& option = take_word(
      set, names, [&into, read](const std::string& word) { into = read(word); }, type, help);
  if constexpr (Reportable<T>) option.from([&into] { return report_value(into); });
  return option;
}

/// The index of `word` among the choices. Throws Error{usage} with the nearest as its hint.
std::size_t read_choice(const std::string& word, const std::vector<std::string>& choices);

/// The help with a short list of choices appended to its first line: "help: a (default), b or c".
std::string help_of_choices(const std::string& help, const std::vector<std::string>& choices,
                            const std::string& default_choice);

template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

/// Values by their names. T is the type of the values, or an optional of it.
template <class T, class Values>
Choices<T> named_choices(const Values& values) {
  Choices<T> choices;
  for (const auto value : values) choices.emplace_back(name_of(value), value);
  return choices;
}
template <class T, class Value>
Choices<T> named_choices(std::initializer_list<Value> values) {
  return named_choices<T, std::initializer_list<Value>>(values);
}

/// An option with a few allowed values. Its help lists them; the value of `into` is the default.
template <class T>
Option& add_choice(OptionSet& set, const std::string& names, T& into,
                   std::type_identity_t<Choices<T>> choices, const std::string& type,
                   const std::string& help) {
  std::vector<std::string> words;
  std::string by_default;
  for (const auto& [word, value] : choices) {
    words.push_back(word);
    if (value == into) by_default = word;
  }
  const auto read = [choices = std::move(choices), words](const std::string& word) {
    return choices[read_choice(word, words)].second;
  };
  Option& option = add_word(set, names, into, read, type, help_of_choices(help, words, by_default));
  option.choices = std::move(words);
  return option;
}

inline std::vector<DType> all_dtypes() { return {kDTypes.begin(), kDTypes.end()}; }
inline std::vector<DType> float_dtypes() {
  return {DType::float16, DType::bfloat16, DType::float32, DType::float64};
}

/// An element type, any unless `among` restricts it. T is DType or an optional of it.
template <class T>
Option& add_dtype(OptionSet& set, const std::string& names, T& into, const std::string& help,
                  const std::vector<DType>& among = all_dtypes()) {
  return add_choice(set, names, into, named_choices<T>(among), "TYPE", help);
}

/// --format, of commands whose reports have cases.
Option& add_format(OptionSet& set);

/// --convention with these values, recorded and shown.
Option& add_convention(OptionSet& set, Convention& into, const std::string& help,
                       std::initializer_list<Convention> values = {Convention::document,
                                                                   Convention::ejkernel});

Option& add_reference(OptionSet& set, const std::string& names, std::string& into, const std::string& help);

Option& add_references(OptionSet& set, const std::string& name, std::vector<std::string>& into,
                       const std::string& help);

// Parsers of values; they throw Error{usage} stating what is expected.

/// "128x64" → {128, 64}: least_rank to most_rank lengths of at least `least`.
Shape read_lengths(const std::string& word, std::size_t least_rank, std::size_t most_rank,
                   const std::string& form, std::int64_t least = 1);

/// A whole number of at least `least`.
std::int64_t read_integer(const std::string& word, std::int64_t least);
inline auto at_least(std::int64_t least) {
  return [least](const std::string& word) { return read_integer(word, least); };
}

/// A whole number exactly, any other as a double ("0.5", "1e-3", "-inf", "nan").
Number read_number(const std::string& word);
double read_real(const std::string& word);
/// Neither NaN nor infinite.
double read_finite(const std::string& word);
/// From 0 to 1.
double read_share(const std::string& word);

/// Bytes: "64k", "4GiB".
std::int64_t read_size(const std::string& word);
std::int64_t read_size_or_zero(const std::string& word);

}  // namespace ejk::app
