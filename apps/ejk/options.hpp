// How a command declares its options and arguments: once, with how the word is read, what help says of it,
// and what it is called in a file's attributes and in the report. Options that all commands share, and what
// turns a word into a value.
//
// Commands see CLI11 through these functions alone: it takes longer to compile than most of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
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

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ejk::app {

/// What was typed does not fit.
inline Error usage(std::string message) { return {Error::Kind::usage, std::move(message)}; }

/// What was typed; nothing is opened or measured yet.
struct SharedOptions {
  std::string program = "ejk";  // the name in messages
  std::string output;
  std::string field;
  bool has_field = false;  // the command makes several arrays, of which --field picks one
  bool overwrite = false;
  bool sync = false;            // what is written is on the disk before success is said
  int compression = 0;          // of what is written: 0 none, 1 (fast) to 9 (small)
  std::int64_t threads = 0;     // 0: OMP_NUM_THREADS, else the cores there are
  std::int64_t max_memory = 0;  // 0: nine tenths of what there is
  bool dry_run = false;
  bool stats = false;
  bool allow_external = false;
  bool json = false;
  bool quiet = false;
  std::string html;  // files that the report is written to as a page, and its pictures alone
  std::string picture;
  bool has_picture = false;  // the command's report has block pictures
  When progress = When::automatic;
  When color = When::automatic;
};

/// Heading of the shared options in help; those of a command have headings of their own or none.
inline constexpr const char* kSharedGroup = "Common options";

/// Types whose values files and reports can say.
template <class T>
concept Reportable = std::constructible_from<ReportValue, T> || std::integral<T> || std::same_as<T, Number> ||
    requires(const T& value) {
  name_of(value);
} || requires(const T& value) {
  to_string(value);
} || requires(const T& value) {
  value.has_value();
};

/// std::monostate where there is no value: of an optional, or of a text that is empty.
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

/// The options of one command: what was declared, and after parsing their values.
class OptionSet {
 public:
  /// Both outlive this.
  OptionSet(CLI::App& app, SharedOptions& shared) : app_(app), shared_(shared) {}

  CLI::App& app() { return app_; }
  SharedOptions& shared() { return shared_; }
  const SharedOptions& shared() const { return shared_; }

  /// The names of the arrays that are made, where options decide; otherwise they are the command's.
  void set_outputs(std::function<std::vector<std::string>()> names) { outputs_ = std::move(names); }
  /// Only the inputs tell: Run calls job.outputs.declare().
  void name_outputs_later() { outputs_later_ = true; }
  bool names_outputs_later() const { return outputs_later_; }
  std::vector<std::string> outputs(const Command& command) const;

  /// Notes the values of the options that are recorded.
  void record(Provenance& provenance) const;
  /// What these are called, whatever their values.
  std::vector<std::string> recorded() const;
  /// Adds those that are shown, in the order of their declaration.
  void show(Report& report) const;

 private:
  friend class Option;
  struct Declared {
    std::string key;
    std::string label;  // in reports; empty: not shown
    Unit unit = Unit::none;
    bool is_recorded = false;
    std::string otherwise;  // where there is no value; empty: left out
    std::function<ReportValue()> value;
  };

  CLI::App& app_;
  SharedOptions& shared_;
  std::function<std::vector<std::string>()> outputs_;
  bool outputs_later_ = false;
  std::deque<Declared> declared_;
};

void declare_shared(OptionSet& set, const Command& command);

/// --picture, of commands whose reports have block pictures.
inline void declare_picture(OptionSet& set) { set.shared().has_picture = true; }

/// A word that begins with "-[", a slice of stdin, looks like an option to the parser: it goes through with a
/// space in front, which add_reference takes away.
std::string protect(const std::string& word);

/// What was declared, and what more there is to say of it. Without dashes it is a positional argument.
class Option {
 public:
  Option(CLI::Option& option, OptionSet& set) : option_(&option), set_(&set) {}

  Option required();
  Option group(const std::string& heading);

  using Value = std::function<ReportValue()>;

  /// What it is called in files and in JSON; otherwise its name, "--head-shards" as "head_shards".
  Option key(std::string key);
  /// Its value, after parsing: an attribute of the files written. Not for what does not decide the
  /// results.
  Option recorded(std::string key = "");
  /// The same, where the value is not what the word was read into.
  Option recorded(std::string key, Value value);
  /// Its value in the report, where Run calls Job::show_options().
  Option shown(std::string label, Unit unit = Unit::none);
  /// What both say when the option was not given and has no default.
  Option otherwise(std::string text);

  /// Where its value is, for the above; add_word and add_flag say it.
  Option& from(Value value);

 private:
  OptionSet::Declared& declared();

  CLI::Option* option_;
  OptionSet* set_;
  OptionSet::Declared* declared_ = nullptr;
  Value value_;
};

/// The last paragraphs of the command's help.
void set_footer(OptionSet& set, const std::string& text);

/// Sets a bool to `value`, true unless the flag takes something away ("--no-downcast").
Option add_flag(OptionSet& set, const std::string& names, bool& into, const std::string& help,
                bool value = true);
/// Sets any other value.
template <class T>
Option add_flag(OptionSet& set, const std::string& names, T& into, std::type_identity_t<T> value,
                const std::string& help);
Option take_flag(OptionSet& set, const std::string& names, std::function<void()> take,
                 const std::string& help);

using TakeWord = std::function<void(const std::string& word)>;

/// An option with a word, which `take` takes. What that throws gets the option's name in front.
Option take_word(OptionSet& set, const std::string& names, TakeWord take, const std::string& type,
                 const std::string& help);

/// Any number of words: an option may be repeated, an argument is all the words that are left.
Option take_words(OptionSet& set, const std::string& names, TakeWord take, const std::string& type,
                  const std::string& help);

/// An option whose word `read` turns into a value.
template <class T, class Read>
Option add_word(OptionSet& set, const std::string& names, T& into, Read read, const std::string& type,
                const std::string& help) {
  Option option = take_word(
      set, names, [&into, read](const std::string& word) { into = read(word); }, type, help);
  if constexpr (Reportable<T>) option.from([&into] { return report_value(into); });
  return option;
}

/// A reference to an array.
Option add_reference(OptionSet& set, const std::string& names, std::string& into, const std::string& help);

template <class T>
Option add_flag(OptionSet& set, const std::string& names, T& into, std::type_identity_t<T> value,
                const std::string& help) {
  return take_flag(
      set, names, [&into, value] { into = value; }, help);
}

/// Any number of references, as an argument.
Option add_references(OptionSet& set, const std::string& name, std::vector<std::string>& into,
                      const std::string& help);

/// "128x64" → {128, 64}: lengths of at least `least`, as many as one of the two ranks says.
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

/// Bytes: "64k", "4GiB".
std::int64_t read_size(const std::string& word);
std::int64_t read_size_or_zero(const std::string& word);

/// A word that is none of those that it may be.
class NotAChoice : public Error {
 public:
  NotAChoice(const std::string& word, std::vector<std::string> choices);
  const std::vector<std::string>& choices() const noexcept { return choices_; }

 private:
  std::vector<std::string> choices_;
};

/// The place of the word among the choices. Throws NotAChoice, whose hint is the nearest.
std::size_t read_choice(const std::string& word, const std::vector<std::string>& choices);

/// The words that an option of a parser nobody else uses may have; none where it is a number, a file or free
/// text. What reads the option's word says so itself, by what it throws at one that nobody means.
std::vector<std::string> choices_of(CLI::Option& option);

/// An element type by its name: any, one that floats, or one of a few.
DType read_dtype(const std::string& word);
DType read_float_dtype(const std::string& word);
DType read_dtype_among(const std::string& word, const std::vector<DType>& dtypes);

/// --convention document|ejkernel, recorded and shown, with a help that says what for.
void add_convention(OptionSet& set, Convention& into, const std::string& help);

}  // namespace ejk::app
