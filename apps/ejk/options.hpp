// How a command declares its options and arguments, those that many share, and what turns a word into a
// value.
//
// Commands see CLI11 through these functions alone: it takes longer to compile than most of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "ejk/array.hpp"
#include "ejk/array_math.hpp"
#include "ejk/convention.hpp"
#include "ejk/error.hpp"
#include "terminal.hpp"

namespace CLI {
class Option;
}

namespace ejk::app {

/// What was typed; nothing is opened or measured yet.
struct SharedOptions {
  std::string output;
  std::string field;
  bool overwrite = false;
  std::int64_t threads = 0;     // 0: OMP_NUM_THREADS, else the cores there are
  std::int64_t max_memory = 0;  // 0: nine tenths of what there is
  bool dry_run = false;
  bool stats = false;
  bool allow_external = false;
  bool json = false;
  bool quiet = false;
  When progress = When::automatic;
  When color = When::automatic;
};

/// Heading of the shared options in help; those of a command have headings of their own or none.
inline constexpr const char* kSharedGroup = "Common options";

void declare_shared(CLI::App& app, const Command& command, SharedOptions& into);

/// A word that begins with "-[", a slice of stdin, looks like an option to the parser: it goes through with a
/// space in front, which add_reference takes away.
std::string protect(const std::string& word);

/// What was declared, and what more there is to say of it. Without dashes it is a positional argument.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option required();
  Option group(const std::string& heading);

  bool was_given() const;
  std::string name() const;  // "--block", "MASK"

 private:
  CLI::Option* option_;
};

/// Whether the words of the command line hold an option of this name.
bool was_given(const CLI::App& app, const std::string& name);

/// The last paragraphs of the command's help.
void set_footer(CLI::App& app, const std::string& text);

Option add_flag(CLI::App& app, const std::string& names, bool& into, const std::string& help);
Option add_flag(CLI::App& app, const std::string& names, std::function<void()> take, const std::string& help);

using TakeWord = std::function<void(const std::string& word)>;

/// An option with a word, which `take` takes. What that throws gets the option's name in front.
Option take_word(CLI::App& app, const std::string& names, TakeWord take, const std::string& type,
                 const std::string& help);

/// Any number of words: an option may be repeated, an argument is all the words that are left.
Option take_words(CLI::App& app, const std::string& names, TakeWord take, const std::string& type,
                  const std::string& help);

/// An option whose word `read` turns into a value.
template <class T, class Read>
Option add_word(CLI::App& app, const std::string& names, T& into, Read read, const std::string& type,
                const std::string& help) {
  return take_word(
      app, names, [&into, read](const std::string& word) { into = read(word); }, type, help);
}

/// A reference to an array.
Option add_reference(CLI::App& app, const std::string& names, std::string& into, const std::string& help);

/// Any number of references, as an argument.
Option add_references(CLI::App& app, const std::string& name, std::vector<std::string>& into,
                      const std::string& help);

/// "128x64" → {128, 64}: positive lengths, as many as one of the two ranks says.
Shape read_lengths(const std::string& word, std::size_t least_rank, std::size_t most_rank,
                   const std::string& form);

/// A whole number of at least `least`.
std::int64_t read_integer(const std::string& word, std::int64_t least);

/// A whole number exactly, any other as a double ("0.5", "1e-3", "-inf", "nan").
Number read_number(const std::string& word);
double read_real(const std::string& word);

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

/// --convention document|ejkernel, with a help that says what for.
void add_convention(CLI::App& app, Convention& into, const std::string& help);

/// What the report and written files say of it.
std::string name_of(Convention convention);

}  // namespace ejk::app
