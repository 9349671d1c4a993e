// What CLI11 is asked for, and the readers of words: each throws Error{usage} that says what was expected.
//
// tests: tests/app/test_options.cpp
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <system_error>

#include "ejk/text.hpp"

namespace ejk::app {

namespace {

// Whoever leaves the word empty ("$name" in a script that never set it) means something else than its
// absence.
std::string read_name(const std::string& word) {
  if (word.empty()) throw usage("the value is empty");
  return word;
}

// The name of a file of a kind that its suffix says: another one is perhaps an array's, which would be lost.
auto with_suffix(const std::vector<std::string>& suffixes, const std::string& what) {
  return [=](const std::string& word) {
    for (const std::string& suffix : suffixes)
      if (read_name(word).size() > suffix.size() && word.ends_with(suffix)) return word;
    throw usage(fmt::format("'{}' is no name of a {}: it ends in {}", printable(word), what,
                            fmt::join(suffixes, " or ")));
  };
}

When read_when(const std::string& word) {
  constexpr When values[] = {When::automatic, When::always, When::never};
  return values[read_choice(word, {"auto", "always", "never"})];
}

// A reference as it was typed.
std::string unprotected(const std::string& word) { return word.starts_with(" -[") ? word.substr(1) : word; }

}  // namespace

// --- the set of options

namespace {

// What an attribute of a file says.
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

std::vector<std::string> OptionSet::outputs(const Command& command) const {
  return outputs_ ? outputs_() : command.outputs;
}

void OptionSet::record(Provenance& provenance) const {
  for (const Declared& option : declared_) {
    if (!option.is_recorded) continue;
    const ReportValue value = option.value();
    const std::string text = is_missing(value) ? option.otherwise : text_of(value);
    if (!text.empty()) provenance.record(option.key, text);
  }
}

std::vector<std::string> OptionSet::recorded() const {
  std::vector<std::string> keys;
  for (const Declared& option : declared_)
    if (option.is_recorded) keys.push_back(option.key);
  return keys;
}

void OptionSet::show(Report& report) const {
  for (const Declared& option : declared_) {
    if (option.label.empty()) continue;
    ReportValue value = option.value();
    if (is_missing(value) && !option.otherwise.empty()) value = option.otherwise;
    if (!is_missing(value)) report.add(option.key, option.label, std::move(value), option.unit);
  }
}

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Option& Option::from(Value value) {
  value_ = std::move(value);
  return *this;
}

OptionSet::Declared& Option::declared() {
  if (declared_ == nullptr) {
    declared_ = &set_->declared_.emplace_back();
    declared_->key = option_->get_name();
    declared_->key.erase(0, declared_->key.find_first_not_of('-'));
    std::replace(declared_->key.begin(), declared_->key.end(), '-', '_');
    declared_->value = value_;
  }
  return *declared_;
}

Option Option::key(std::string key) {
  declared().key = std::move(key);
  return *this;
}

Option Option::recorded(std::string key) { return recorded(std::move(key), value_); }

Option Option::recorded(std::string key, Value value) {
  if (!value) throw Error(Error::Kind::internal, option_->get_name() + " is recorded and has no value");
  declared().is_recorded = true;
  if (!key.empty()) declared().key = std::move(key);
  declared().value = std::move(value);
  return *this;
}

Option Option::shown(std::string label, Unit unit) {
  declared().label = std::move(label);
  declared().unit = unit;
  return *this;
}

Option Option::otherwise(std::string text) {
  declared().otherwise = std::move(text);
  return *this;
}

void set_footer(OptionSet& set, const std::string& text) { set.app().footer(text); }

Option add_flag(OptionSet& set, const std::string& names, bool& into, const std::string& help, bool value) {
  return take_flag(
             set, names, [&into, value] { into = value; }, help)
      .from([&into] { return into; });
}

Option take_flag(OptionSet& set, const std::string& names, std::function<void()> take,
                 const std::string& help) {
  return {*set.app().add_flag_callback(names, std::move(take), help), set};
}

Option take_word(OptionSet& set, const std::string& names, TakeWord take, const std::string& type,
                 const std::string& help) {
  const auto named = [take = std::move(take),
                      name = names.substr(names.rfind(',') + 1)](const std::string& word) {
    try {
      take(word);
    } catch (Error& error) {
      error.at(name);
      throw;
    }
  };
  return {*set.app().add_option_function<std::string>(names, named, help)->type_name(type), set};
}

Option take_words(OptionSet& set, const std::string& names, TakeWord take, const std::string& type,
                  const std::string& help) {
  const auto each = [take = std::move(take)](const std::vector<std::string>& words) {
    for (const std::string& word : words) take(word);
  };
  CLI::Option* option = set.app().add_option_function<std::vector<std::string>>(names, each, help);
  if (names.starts_with('-')) option->allow_extra_args(false);
  return {*option->type_name(type), set};
}

void declare_shared(OptionSet& set, const Command& command) {
  SharedOptions& into = set.shared();
  const auto shared = [](Option option) { option.group(kSharedGroup); };
  const bool several = command.outputs.size() > 1;
  into.has_field = several;
  if (!command.outputs.empty()) {
    shared(add_word(set, "-o,--output", into.output, read_name, "OUTPUT",
                    several ? "where to write the arrays: out.h5, out.h5:/group, out.npz or out/\n"
                              "A folder is made if missing and gets one NAME.npy for each. With --field "
                              "also an .npy file, or - for stdout. Another suffix is an error. Without -o "
                              "only the report is printed. 'ejk help arrays' says more."
                            : "where to write the array: x.npy, x.npz, x.h5:/name, or - for stdout\n"
                              "Another suffix is an error. Without -o it is printed as text that "
                              "numpy.loadtxt reads, with --json not at all."));
    if (several)
      shared(add_word(
          set, "--field", into.field,
          [names = command.outputs](const std::string& word) {
            return names[read_choice(read_name(word), names)];
          },
          "NAME",
          "write only this one of the arrays\nThe command's page names them. Without -o it is printed as text "
          "that numpy.loadtxt reads."));
    shared(add_flag(
        set, "--overwrite", into.overwrite,
        "replace HDF5 objects that exist\n.npy and .npz files are always replaced. Each run that adds "
        "to an HDF5 file copies the whole file; runs that add to the same file wait for each other."));
  }
  shared(add_flag(set, "--dry-run", into.dry_run,
                  "check the inputs, say what would be done, write nothing\nReads headers, and the values of "
                  "small inputs such as lengths and group sizes. Says shapes, bytes and peak memory."));
  shared(
      add_word(set, "--max-memory", into.max_memory, read_size, "SIZE",
               "stop before needing more, such as 4GiB\nDefault: nine tenths of what this process may use, a "
               "container's limit included. k M G are powers of 1000, Ki Mi Gi of 1024."));
  shared(add_word(
      set, "--threads", into.threads, [](const std::string& w) { return read_integer(w, 1); }, "N",
      "threads to use\nDefault: OMP_NUM_THREADS, else the cores this process may use. The results are the "
      "same "
      "for every number."));
  shared(add_flag(set, "--stats", into.stats,
                  "add times, bytes and peak memory to the report\nWall seconds of reading, computing and "
                  "writing. An input that is mapped is read while computing."));
  shared(add_flag(set, "--json", into.json,
                  "the report as one JSON object, alone on stdout\nNo array is printed. With -o - it goes to "
                  "stderr. 'ejk help json COMMAND' lists its keys."));
  shared(add_word(set, "--html", into.html, with_suffix({".html", ".htm"}, "page"), "FILE",
                  "write the report as one page, FILE.html\nIt holds all that it shows, block pictures "
                  "included, and requests nothing: it can be mailed, and opens anywhere. An existing file is "
                  "replaced."));
  if (into.has_picture)
    shared(
        add_word(set, "--picture", into.picture, with_suffix({".png", ".svg"}, "picture"), "FILE",
                 "draw the blocks into FILE.png or FILE.svg\nOne pixel or cell a block; past 4096 a side one "
                 "for several, drawn as mixed where these differ. Of several masks each has a file, at "
                 "most 16: FILE-0.png, FILE-1.png, ... An SVG has axes and a legend. An existing file is "
                 "replaced."));
  shared(add_flag(
      set, "--sync", into.sync,
      "wait until what is written is on the disk\nSuccess is said when the files of -o, --html and "
      "--picture and their names are stored, so that a power loss does not take them. 'ejk help arrays' "
      "says what may happen otherwise."));
  shared(add_flag(set, "-q,--quiet", into.quiet, "no report and no progress"));
  shared(add_word(set, "--progress", into.progress, read_when, "WHEN",
                  "auto, always or never\nBy default a bar on stderr after two seconds when that is a "
                  "terminal, unless TERM is dumb."));
  shared(add_word(set, "--color", into.color, read_when, "WHEN",
                  "auto, always or never\nBy default on terminals, unless NO_COLOR is set or TERM is dumb."));
  shared(
      add_flag(set, "--allow-external", into.allow_external,
               "let HDF5 files refer to other files\nExternal storage, virtual datasets and plug-in filters "
               "are refused otherwise, as are external links that are named; of whole files they are left "
               "out with a warning."));
}

std::string protect(const std::string& word) { return word.starts_with("-[") ? " " + word : word; }

Option add_reference(OptionSet& set, const std::string& names, std::string& into, const std::string& help) {
  return add_word(
      set, names, into, [](const std::string& word) { return read_name(unprotected(word)); }, "REF", help);
}

Option add_references(OptionSet& set, const std::string& name, std::vector<std::string>& into,
                      const std::string& help) {
  return take_words(
      set, name, [&into](const std::string& word) { into.push_back(unprotected(word)); }, name, help);
}

namespace {

Error too_large(const std::string& word) {
  return usage(fmt::format("{} is too large: at most {}", printable(word), INT64_MAX));
}

Error not_a_size(const std::string& word) {
  return usage(fmt::format("'{}' is not a size, such as 64k or 4GiB", printable(word)));
}

// "128", "HxQxK or QxK" → "128x128"
std::string square_of(const std::string& length, const std::string& form) {
  std::string out = length;
  const std::string shortest = form.substr(form.rfind(' ') + 1);
  for (auto more = std::count(shortest.begin(), shortest.end(), 'x'); more > 0; --more) out += "x" + length;
  return out;
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
  if (!good || lengths.size() < least_rank || lengths.size() > most_rank)
    throw usage(
        fmt::format("'{}' is not of the form {} with lengths of at least {}", printable(word), form, least))
        .hint(good && lengths.size() == 1 ? fmt::format("for example {}", square_of(word, form)) : "");
  return lengths;
}

std::int64_t read_integer(const std::string& word, std::int64_t least) {
  const auto value = parse_integer(word);
  if (!value && is_whole_number(word) && word.starts_with('-'))
    throw usage(fmt::format("{} is less than {}", printable(word), least));
  if (!value && is_whole_number(word)) throw too_large(word);
  if (!value) throw usage(fmt::format("'{}' is not a whole number", printable(word)));
  if (*value < least) throw usage(fmt::format("{} is less than {}", *value, least));
  return *value;
}

double read_real(const std::string& word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const char* begin = word.data() + (word.starts_with('+') ? 1 : 0);
  const auto [stop, failed] = std::from_chars(begin, end, value);
  if (stop != end || failed == std::errc::invalid_argument)
    throw usage(fmt::format("'{}' is not a number", printable(word)));
  if (failed == std::errc::result_out_of_range)
    throw usage(fmt::format("'{}' is beyond double precision", printable(word)));
  return value;
}

double read_finite(const std::string& word) {
  const double value = read_real(word);
  if (!std::isfinite(value)) throw usage(fmt::format("'{}' is not a finite number", printable(word)));
  return value;
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

NotAChoice::NotAChoice(const std::string& word, std::vector<std::string> choices)
    : Error(usage(fmt::format("'{}' is not one of {}", printable(word), fmt::join(choices, ", ")))),
      choices_(std::move(choices)) {
  if (const auto nearest = nearest_name(word, choices_)) hint(fmt::format("did you mean {}?", *nearest));
}

std::size_t read_choice(const std::string& word, const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), word);
  if (found == choices.end()) throw NotAChoice(word, choices);
  return static_cast<std::size_t>(found - choices.begin());
}

std::vector<std::string> choices_of(CLI::Option& option) {
  try {
    option.add_result("?");
    option.run_callback();
  } catch (const NotAChoice& refused) {
    return refused.choices();
  } catch (const Error&) {
    return {};
  } catch (const CLI::Error&) {
    return {};
  }
  return {};
}

DType read_dtype_among(const std::string& word, const std::vector<DType>& dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(ejk::name_of(dtype));
  return dtypes[read_choice(word, names)];
}

DType read_dtype(const std::string& word) {
  std::vector<DType> all;
  for (auto d = DType::boolean; d <= DType::float64; d = static_cast<DType>(static_cast<int>(d) + 1))
    all.push_back(d);
  return read_dtype_among(word, all);
}

DType read_float_dtype(const std::string& word) {
  return read_dtype_among(word, {DType::float16, DType::bfloat16, DType::float32, DType::float64});
}

void add_convention(OptionSet& set, Convention& into, const std::string& help) {
  add_word(
      set, "--convention", into,
      [](const std::string& word) {
        return read_choice(word, {"document", "ejkernel"}) == 0 ? Convention::document : Convention::ejkernel;
      },
      "WHICH", help)
      .recorded()
      .shown("convention");
}

}  // namespace ejk::app
