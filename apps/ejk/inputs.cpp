// Inputs. A few files stay open at a time: each may take a process, and a command may name thousands.
//
// tests: tests/app/test_inputs.cpp
#include "inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <variant>

#include "computed_reference.hpp"
#include "ejk/array_math.hpp"
#include "ejk/program/text.hpp"
#include "options.hpp"
#include "printed_array.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

std::shared_ptr<const ArraySource> shared_array(Communicator& comm,
                                                const std::shared_ptr<const ArraySource>& source) {
  RankMessage sent;
  if (source) {
    const Array array = read_all(*source);
    sent.put(array.dtype()).put_all(array.shape());
    sent.put_all(std::span(array.data(), static_cast<std::size_t>(array.bytes())));
  }
  RankMessage received(comm.broadcast(sent.bytes()));
  if (source) return source;
  const auto dtype = received.take<DType>();
  Array array(dtype, received.take_all<std::int64_t>());
  const std::vector<std::byte> elements = received.take_all<std::byte>();
  std::copy(elements.begin(), elements.end(), array.data());
  return make_source(std::move(array), "-");
}

// A tensor of a replayed command by its name, without the path of the file.
class NamedSource final : public ForwardingSource {
 public:
  NamedSource(const std::shared_ptr<const ArraySource>& source, std::string name)
      : ForwardingSource(source, type_of(*source), source->access(), std::move(name)) {}
};

std::optional<std::string> shared_text(Communicator& comm, const std::optional<std::string>& text) {
  RankMessage sent;
  sent.put(text.has_value()).put_text(text.value_or(""));
  RankMessage received(comm.broadcast(sent.bytes()));
  if (!received.take<bool>()) return std::nullopt;
  return received.take_text();
}

// Standard input, or a pipe under a file's name: `ejk info <(COMMAND)`.
bool is_read_once(const ArrayReference& reference) {
  std::error_code unknown;
  return reference.is_stream() || std::filesystem::is_fifo(reference.path, unknown);
}

}  // namespace

std::shared_ptr<const ArraySource> Inputs::open(const std::string& role, const std::string& reference) {
  Opened& opened = opened_[reference];
  if (!opened.source) {
    std::int64_t bytes = 0;
    opened = {role, open(reference, untyped_, bytes)};
    provenance_.input(role, reference);
    count_read(bytes);
  } else if (role != opened.role && !is_without_file(reference) && parsed(reference).is_stream()) {
    throw usage("-: standard input can be read only once");
  }
  return opened.source;
}

ArrayGroup Inputs::open_group(const std::string& role, const std::string& reference,
                              const std::vector<std::string>& names) {
  const ArrayReference named = parsed(reference);
  if (!named.slice.empty())
    throw usage(printable(reference) + ": a slice picks a part of one array, not of several");
  ArrayGroup group = replay_ && replay_->is_group(reference) ? replayed_group(reference, names)
                                                             : file(named).group(names, named.member);
  provenance_.input(role, reference);
  return group;
}

ArrayGroup Inputs::replayed_group(const std::string& word, const std::vector<std::string>& names) {
  ArrayGroup group{word, {}, {}};
  for (const std::string& name : names)
    if (const std::string one = fmt::format("{}:{}", word, name); replay_->tensors.contains(one))
      group.arrays[name] = open(one);
  if (group.arrays.empty() && !names.empty())
    throw Error(Error::Kind::input, fmt::format("{}: holds none of {}", word, fmt::join(names, ", ")));
  return group;
}

const ArrayFile& Inputs::file(const ArrayReference& reference, UntypedBytes untyped) {
  constexpr std::size_t kMostOpen = 2;  // for compare
  for (const OpenFile& open : files_) {
    const ArrayReference& other = open.file.reference();
    if (other.container == reference.container && other.path == reference.path && open.untyped == untyped)
      return open.file;
  }
  if (files_.size() == kMostOpen) files_.erase(files_.begin());
  ArrayReference whole = reference;
  whole.member.clear(), whole.slice.clear();
  try {
    ArrayFile opened(std::move(whole), OpenOptions{allow_external_, budget_.bytes(), read_memory_, untyped});
    return files_.emplace_back(OpenFile{std::move(opened), untyped}).file;
  } catch (Error& error) {
    std::error_code unknown;
    if (const auto nearest = nearest_function(reference.text);
        nearest && !std::filesystem::exists(reference.path, unknown))
      error.hint(fmt::format("did you mean {}(...)?", *nearest));
    throw;
  }
}

std::shared_ptr<const ArraySource> Inputs::open(const ArrayReference& reference, UntypedBytes untyped) {
  if (replay_ && reference.path == replay_->path)
    return std::make_shared<NamedSource>(file(reference, untyped).array(reference), reference.text);
  if (!reference.is_stream() || comm_.is_single()) return file(reference, untyped).array(reference);
  return shared_array(comm_, comm_.is_first() ? file(reference, untyped).array(reference) : nullptr);
}

std::shared_ptr<const ArraySource> Inputs::open(const std::string& reference, UntypedBytes untyped,
                                                std::int64_t& bytes) {
  if (auto printed = printed_array(reference)) {
    auto source = make_source(std::move(printed->array), reference);
    bytes += type_of(*source).bytes();
    return printed->slice.empty() ? source : slice_array(std::move(source), printed->slice, reference);
  }
  const auto computed = computed_reference(reference);
  if (!computed) {
    auto source = open(parsed(reference), untyped);
    bytes += type_of(*source).bytes();
    return source;
  }
  // Codes in .npy files have no type.
  const UntypedBytes untyped_parts = computed->scheme ? UntypedBytes::read : untyped;
  std::vector<std::shared_ptr<const ArraySource>> arrays;
  for (const std::string& word : computed->arrays)
    arrays.push_back(computed->number && arrays.size() + 1 == computed->arrays.size()
                         ? make_source(Array::from<float>({}, std::span(&*computed->number, 1)), word)
                         : open(word, untyped_parts, bytes));
  if (!computed->scheme) {
    const auto require = [&](std::size_t n, std::int64_t bytes_needed) {
      budget_.require(bytes_needed, printable(computed->arrays[n]) + ": ");
    };
    require(1, byte_count(arrays[1]->shape(), DType::int64));
    if (!arrays[0]->random_access()) require(0, type_of(*arrays[0]).bytes());
  }
  try {
    DecodedAs taken;
    auto numbers = computed->scheme ? decoded_array({*computed->scheme, arrays[0], arrays[1],
                                                     arrays.size() > 2 ? arrays[2] : nullptr},
                                                    computed->settings, printable(reference), &taken)
                                    : take_rows(arrays[0], arrays[1], printable(reference));
    if (computed->scheme) note_decoded(reference, "", taken);
    return computed->slice.empty() ? numbers : slice_array(std::move(numbers), computed->slice, reference);
  } catch (Error& error) {
    if (error.kind() == Error::Kind::usage) error.at(printable(reference));
    throw;
  }
}

std::shared_ptr<const ArraySource> Inputs::open(const std::string& reference) {
  std::int64_t bytes = 0;
  return open(reference, untyped_, bytes);
}

std::shared_ptr<const ArraySource> Inputs::open_whole(const std::string& reference) {
  if (is_without_file(reference)) return nullptr;
  ArrayReference whole = parsed(reference);
  if (whole.slice.empty() || is_read_once(whole)) return nullptr;
  whole.slice.clear();
  return open(whole, untyped_);
}

std::shared_ptr<const ArraySource> Inputs::open(NamedInput& input) {
  if (input.stream) return input.stream;
  const bool is_computed = input.is_word && is_without_file(input.reference.text);
  input.bytes = 0;
  auto source =
      is_computed ? open(input.reference.text, untyped_, input.bytes) : open(input.reference, untyped_);
  if (!is_computed) input.bytes = type_of(*source).bytes();
  if (is_computed || is_read_once(input.reference)) input.stream = source;
  return source;
}

std::shared_ptr<const ArraySource> Inputs::open_supported(NamedInput& input, std::optional<Error>& why) {
  try {
    return open(input);
  } catch (const Error& error) {
    if (input.is_word || !error.is_of_unsupported_type()) throw;
    why = error;
    return nullptr;
  }
}

std::vector<NamedInput> Inputs::arrays_in(const std::string& word) {
  const auto alone = [&](std::string name) {
    ArrayReference reference;
    reference.text = word;
    return std::vector{NamedInput{{std::move(name), std::move(reference), true}, nullptr}};
  };
  if (is_printed_array(word)) return alone("array");
  if (const auto computed = computed_reference(word)) {
    // Named after its first array.
    const std::string& first = computed->arrays.front();
    return alone(computed_reference(first) ? word.substr(0, word.find('(')) : parsed(first).array_name());
  }
  const ArrayReference named = parsed(word);
  std::vector<NamedInput> inputs;
  if (replay_ && replay_->is_group(word) && named.member.empty()) {
    const std::string before = word + ":";
    for (auto at = replay_->tensors.lower_bound(before);
         at != replay_->tensors.end() && at->starts_with(before); ++at) {
      ArrayReference member = named;
      member.member = member.text = *at;
      inputs.push_back({{at->substr(before.size()), std::move(member)}, nullptr});
    }
    return inputs;
  }
  for (FoundArray& array : file(named).arrays(named)) inputs.push_back({std::move(array), nullptr});
  return inputs;
}

std::optional<std::vector<StoredArray>> Inputs::stored_in(const std::string& word) {
  if (is_without_file(word)) return std::nullopt;
  const ArrayReference named = parsed(word);
  if (!named.member.empty() || !named.slice.empty()) return std::nullopt;
  return file(named).stored_arrays();
}

std::map<std::string, std::string> Inputs::attributes_in(const std::string& word, const std::string& array) {
  if (is_without_file(word)) return {};
  return file(parsed(word)).attributes(array);
}

std::vector<ArrayLink> Inputs::links_in(const std::string& word) {
  if (is_without_file(word)) return {};
  const ArrayReference named = parsed(word);
  return named.slice.empty() ? file(named).links(named.member) : std::vector<ArrayLink>();
}

std::vector<std::string> Inputs::remarks_in(const std::string& word) {
  if (is_without_file(word)) return {};
  const ArrayReference named = parsed(word);
  return named.member.empty() && named.slice.empty() ? file(named).remarks() : std::vector<std::string>();
}

std::vector<std::string> Inputs::left_out(const std::string& word) {
  std::vector<std::string> lines = remarks_in(word);
  if (std::string links = links_left_out(word); !links.empty()) lines.push_back(std::move(links));
  return lines;
}

std::string Inputs::links_left_out(const std::string& word) {
  constexpr std::size_t kMost = 4;
  const std::vector<ArrayLink> links = links_in(word);
  if (links.empty()) return "";
  std::vector<std::string> words;
  for (const ArrayLink& link : links) {
    if (words.size() == kMost) break;
    words.push_back(fmt::format("{} ({}{}{})", printable(link.name, 60), link.kind,
                                link.target.empty() ? "" : ", to ", printable(link.target, 60)));
  }
  const bool leads_outside =
      std::any_of(links.begin(), links.end(), [](const ArrayLink& link) { return link.kind == "external"; });
  return fmt::format(
      "{}: {} left out: {}{}{}", printable(word),
      links.size() == 1 ? "a link is" : fmt::format("{} links are", links.size()), fmt::join(words, ", "),
      links.size() > kMost ? ", ..." : "",
      leads_outside && !allow_external_ ? "; --allow-external follows those to other files" : "");
}

JsonValue Inputs::read_json(const std::string& role, const std::string& path,
                            const std::string& hint_for_npy) {
  if (replay_) replay_->require_added(path);
  provenance_.input(role, path);
  const std::int64_t most = budget_.bytes() / kJsonBytesPerByte;
  const bool by_first = path == "-" && !comm_.is_single();
  std::optional<std::string> text;
  if (!by_first || comm_.is_first()) text = read_file(path, most);
  if (by_first) text = shared_text(comm_, text);
  if (!text)
    throw Error(
        Error::Kind::budget,
        fmt::format("{}: more than {}, and JSON takes up to {} times its length of memory: {} allowed",
                    printable(path), format_bytes(most), kJsonBytesPerByte, format_bytes(budget_.bytes())))
        .hint("--max-memory sets the limit");
  count_read(static_cast<std::int64_t>(text->size()));
  try {
    return parse_json(*text);
  } catch (Error& error) {
    error.at(printable(path));
    if (text->starts_with("\x93NUMPY")) error.hint(hint_for_npy);
    throw;
  }
}

void Inputs::note_decoded(const std::string& operand, const std::string& array, const DecodedAs& taken) {
  const auto known = std::find_if(decoded_.begin(), decoded_.end(), [&](const Decoded& one) {
    return one.operand == operand && one.taken == taken;
  });
  Decoded& one = known != decoded_.end() ? *known : decoded_.emplace_back(Decoded{operand, taken, {}});
  one.arrays.insert(array);
}

std::optional<ElementFormat> Inputs::decoded_element() const {
  constexpr std::string_view kOfType = "float8_";
  if (decoded_.size() != 1) return std::nullopt;
  std::string_view name = decoded_[0].taken.element;
  if (name.starts_with(kOfType)) name.remove_prefix(kOfType.size());
  for (const ElementFormat format : kElementFormats)
    if (name.starts_with(name_of(format))) return format;
  return std::nullopt;
}

void Inputs::add_decoded(Report& report) const {
  if (decoded_.empty()) return;
  Table table{"decoded",
              "decoded",
              {{"operand", "operand"},
               {"arrays", "arrays", Unit::count},
               {"scheme", "scheme"},
               {"element", "elements"},
               {"block", "of a scale"},
               {"axis", "axis"},
               {"scale_layout", "layout of scales"},
               {"nibbles", "first nibble"},
               {"global", "global scale"}},
              {},
              0};
  std::vector<Report::Item> items;
  for (const auto& [operand, taken, arrays] : decoded_) {
    const auto count = std::ssize(arrays);
    items.emplace_back(
        Remark{fmt::format("{}{}: {}", printable(operand),
                           count == 1 ? "" : fmt::format(" ({} arrays)", count), to_string(taken))});
    const auto word = [](const auto& value) {
      return value ? ReportValue(std::string(name_of(*value))) : ReportValue();
    };
    table.rows.push_back({printable(operand), count, std::string(name_of(taken.scheme)),
                          std::string(taken.element), taken.block,
                          taken.axis ? ReportValue(*taken.axis) : ReportValue(),
                          std::string(name_of(taken.layout)), word(taken.nibbles), word(taken.global)});
  }
  items.emplace_back(std::move(table));
  const auto below = std::find_if(report.items.begin(), report.items.end(), [](const Report::Item& item) {
    return !std::holds_alternative<Line>(item);
  });
  report.items.insert(below, std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
}

std::int64_t Inputs::allow_buffered(std::int64_t bytes) {
  read_memory_->add(bytes - std::exchange(spare_, bytes));
  const std::int64_t counted = read_memory_->wanted() - kHeldBeside;
  return counted > 0 && counted <= bytes ? counted : 0;
}

std::string Inputs::too_large() const {
  for (const auto& [reference, opened] : opened_)
    if (opened.source && type_of(*opened.source).bytes() > budget_.bytes())
      return fmt::format("{} holds {}: ", printable(opened.source->name()),
                         format_bytes(type_of(*opened.source).bytes()));
  return "";
}

std::string model_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) return path;
  const ArrayReference reference = parse_reference(path);
  if (reference.container != ArrayReference::Container::model || !reference.member.empty()) return "";
  const std::string folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

bool is_without_file(const std::string& word) {
  return is_printed_array(word) || computed_reference(word).has_value();
}

std::string config_in_folder(const std::string& folder) {
  std::error_code unknown;
  for (const char* name : {"config.json", "hf_quant_config.json"})
    if (const auto path = std::filesystem::path(folder) / name; std::filesystem::exists(path, unknown)) {
      // A pipe would be waited for.
      if (!std::filesystem::is_regular_file(path, unknown))
        throw Error(Error::Kind::input,
                    printable(path.string()) + ": a config in a folder must be a regular file");
      return path;
    }
  return "";
}

}  // namespace ejk::app
