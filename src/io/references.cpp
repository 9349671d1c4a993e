// Parser of array references. It opens no file; parse_input (container.cpp) reads the first bytes of inputs.
//   reference := ('-' | path suffix [':' name] | folder '/') [slice]    a container's suffix, a name in it
//   slice     := '[' entry {',' entry} [','] ']'
//   entry     := integer | [integer] ':' [integer] [':' [integer]] | '...'
// tests: tests/io/test_references.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/require.hpp"
#include "ejk/io.hpp"
#include "ejk/program/text.hpp"
#include "io/container.hpp"
#include "io/slice.hpp"

namespace ejk {

namespace {

using Item = SliceItem;

// A name as it is written in a reference: brackets at its end would be a slice.
std::string member_in_reference(std::string name) {
  if (name.ends_with(']')) name += "[...]";
  return name;
}

[[noreturn]] void malformed(std::string_view text, std::string_view why) {
  throw core::usage("{}: {}", printable(text), why).hint("a slice is like [0,:,-8:,::2] or [...,0]");
}

Item parse_entry(std::string_view text, std::string_view entry) {
  entry = trimmed(entry);
  Item item;
  if (entry == "...") {
    item.kind = Item::Kind::ellipsis;
    return item;
  }
  const auto integer = [&](std::string_view word) {
    const auto value = parse_integer(trimmed(word));
    if (!value)
      malformed(text, fmt::format("'{}' in the slice is {}", printable(word, 40),
                                  is_whole_number(trimmed(word)) ? "beyond 64 bits" : "not an integer"));
    return *value;
  };
  if (entry.empty()) malformed(text, "the slice has an empty entry");
  const std::size_t first = entry.find(':');
  if (first == std::string_view::npos) {
    item.kind = Item::Kind::index;
    item.index = integer(entry);
    return item;
  }
  const std::size_t second = std::min(entry.find(':', first + 1), entry.size());
  const std::string_view start = trimmed(entry.substr(0, first));
  const std::string_view stop = trimmed(entry.substr(first + 1, second - first - 1));
  const std::string_view step = trimmed(entry.substr(std::min(second + 1, entry.size())));
  if (!start.empty()) item.start = integer(start);
  if (!stop.empty()) item.stop = integer(stop);
  if (!step.empty()) item.step = integer(step);
  if (item.step < 1)
    malformed(text, fmt::format("a slice's step must be 1 or more, this one is {}", item.step));
  return item;
}

// `inside`: the text between the brackets.
std::vector<Item> parse_slice(std::string_view text, std::string_view inside) {
  std::vector<Item> items;
  if (trimmed(inside).empty()) malformed(text, "the slice is empty");
  while (!trimmed(inside).empty() || items.empty()) {
    const std::size_t comma = inside.find(',');
    items.push_back(parse_entry(text, inside.substr(0, comma)));
    inside.remove_prefix(comma == std::string_view::npos ? inside.size() : comma + 1);
  }
  if (std::count_if(items.begin(), items.end(),
                    [](const Item& i) { return i.kind == Item::Kind::ellipsis; }) > 1)
    malformed(text, "the slice has '...' more than once");
  return items;
}

// The end of a container's suffix that is followed by nothing, a name or a slice: the first in the word.
struct Suffix {
  std::size_t end = std::string_view::npos;
  const io::Container* container = nullptr;
};

Suffix find_suffix(std::string_view word) {
  Suffix found;
  for (const io::Container& container : io::containers()) {
    for (const std::string_view suffix : container.suffixes) {
      for (std::size_t at = word.find(suffix); at != std::string_view::npos; at = word.find(suffix, at + 1)) {
        const std::size_t end = at + suffix.size();
        const char next = end < word.size() ? word[end] : '\0';
        const bool ends = next == '\0' || next == '[' || (next == ':' && container.holds_several());
        if (at > 0 && ends && end < found.end) found = {end, &container};
      }
    }
  }
  return found;
}

}  // namespace

ArrayReference parse_reference(std::string_view text) {
  using Kind = ArrayReference::Container;
  if (text.empty()) throw Error(Error::Kind::usage, "an array reference is empty");
  if (text.find('\0') != std::string_view::npos) malformed(text, "a path cannot contain NUL");
  ArrayReference reference;
  reference.text = text;

  const bool stream = text == "-" || text.starts_with("-[");
  const Suffix suffix = find_suffix(text);
  // The slice: right after the container's suffix, or else (any other path, or a name) the last brackets.
  std::size_t bracket = stream ? 1 : suffix.end;
  const bool closed = text.ends_with(']');
  if (bracket >= text.size() || text[bracket] != '[')
    bracket = closed ? text.rfind('[') : std::string_view::npos;
  std::string_view word = text;
  if (bracket < text.size()) {
    if (!closed)
      malformed(text, text.find(']', bracket) == std::string_view::npos ? "the slice is not closed with ']'"
                                                                        : "there is more after the slice");
    const std::string_view inside = text.substr(bracket + 1, text.size() - bracket - 2);
    word = text.substr(0, bracket);
    // The name of a member may end in brackets: x[1][...] is all of x[1].
    const bool all_of_member =
        trimmed(inside) == "..." &&
        (suffix.container == nullptr ? word.find(':') != std::string_view::npos
                                     : suffix.end < word.size() && word[suffix.end] == ':');
    const bool is_subscript = suffix.container != nullptr && suffix.container->has_subscripts &&
                              suffix.end < word.size() && word[suffix.end] == ':';
    if (inside.find(']') != std::string_view::npos ||
        (word.ends_with(']') && !all_of_member && !is_subscript))
      malformed(text, "more than one slice; write a[0,1] for a[0][1]");
    reference.slice = parse_slice(text, inside);
  }

  if (word.empty()) malformed(text, "the slice has no file before it");
  if (stream) {
    reference.container = Kind::stream;
  } else if (suffix.container != nullptr) {
    reference.container = suffix.container->kind;
    reference.path = word.substr(0, suffix.end);
    if (suffix.end < word.size()) reference.member = word.substr(suffix.end + 1);
  } else {
    reference.container = word.ends_with('/') ? Kind::directory : Kind::npy;
    reference.path = word;
  }
  return reference;
}

bool ArrayReference::holds_several() const { return io::container(container).holds_several(); }

bool ArrayReference::names_type(DType dtype) const {
  const io::SmallFloats named = io::container(container).small_floats;
  return !is_8_bit_float(dtype) || named == io::SmallFloats::all ||
         (named == io::SmallFloats::with_mantissa && float_format(dtype).mantissa_bits > 0);
}

std::string ArrayReference::array_name() const {
  const std::string_view name = io::without_slashes(member);
  if (!name.empty()) return std::string(name);
  if (is_stream()) return "array";
  const std::string_view file = std::string_view(path).substr(path.rfind('/') + 1);
  const std::size_t dot = file.rfind('.');
  return std::string(file.substr(0, dot == 0 ? file.size() : dot));
}

ArrayReference reference_to(const ArrayReference& container, const std::string& name) {
  ArrayReference reference = container;
  reference.member = name;
  reference.slice.clear();
  const io::Container& row = io::container(container.container);
  std::string text = name.empty()
                         ? container.path
                         : fmt::format("{}{}{}{}", container.path, row.name_prefix, name, row.name_suffix);
  // Brackets that end a path in a .pt file need no [...] after them.
  const bool is_subscript = row.has_subscripts && text.ends_with(']');
  reference.text = is_subscript ? text : member_in_reference(std::move(text));
  return reference;
}

std::shared_ptr<const ArraySource> slice_array(std::shared_ptr<const ArraySource> array,
                                               std::string_view slice, std::string_view name) {
  if (slice.size() < 2 || slice.front() != '[' || slice.back() != ']')
    malformed(name, "the slice is not in []");
  return io::make_sliced_source(std::move(array), parse_slice(name, slice.substr(1, slice.size() - 2)),
                                printable(name));
}

std::vector<std::string> split_references(std::string_view text) {
  std::vector<std::string> words(1);
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    // Spaces may be around quotes. A quoted word is whole: its end is that of the reference.
    if (c == '"' && trimmed(words.back()).empty()) {
      const std::size_t end = text.find('"', at + 1);
      if (end == std::string_view::npos)
        throw core::usage("{}: the quote '\"' is not closed", printable(text));
      const std::size_t next = std::min(text.find_first_not_of(' ', end + 1), text.size());
      if (next < text.size() && text[next] != ',')
        throw core::usage("{}: a quote '\"' ends within a reference", printable(text));
      words.back() = text.substr(at + 1, end - at - 1);
      at = next - 1;
      continue;
    }
    if (c == ',' && depth == 0) {
      words.emplace_back();
      continue;
    }
    if (c == '[' || c == '(') ++depth;
    if ((c == ']' || c == ')') && depth > 0) --depth;
    words.back() += c;
  }
  return words;
}

}  // namespace ejk

std::string_view ejk::io::without_slashes(std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  while (path.ends_with('/')) path.remove_suffix(1);
  return path;
}

std::string ejk::io::listed(std::vector<std::string> names) {
  constexpr std::size_t kMost = 8;
  const bool cut = names.size() > kMost;
  if (cut) names.resize(kMost);
  for (std::string& name : names) name = member_in_reference(printable(name, 60));
  return fmt::format("{}{}", fmt::join(names, ", "), cut ? ", ..." : "");
}

ejk::Error ejk::io::no_such_array(const std::string& path, const std::string& wanted,
                                  const std::vector<std::string>& names) {
  const std::string file = printable(path);
  if (names.empty()) return core::invalid("{}: holds no array", file);
  if (wanted.empty())
    return Error(Error::Kind::input,
                 fmt::format("{}: holds {} arrays, and none is named", file, names.size()),
                 Error::Code::named_no_array)
        .hint(fmt::format("write {}:NAME with one of {}", file, listed(names)));
  Error error = core::invalid("{}: holds no array '{}'", file, printable(wanted));
  if (const auto nearest = nearest_name(wanted, names))
    return error.hint(fmt::format("did you mean {}:{}?", file, printable(*nearest)));
  return error.hint("it holds " + listed(names));
}
