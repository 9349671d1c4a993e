// Mask expressions: parser, translation from other notations, resolution. The parser has a function for each
// line of the grammar in ejk/mask.hpp and returns a tree, whose resolution opens arrays and creates masks.
// The table of kinds has the parameters, construction and shape of each kind of mask.
// tests: tests/mask/test_expression.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/mask_set.hpp"
#include "ejk/program/text.hpp"
#include "mask/node.hpp"
#include "mask/stored_masks.hpp"

namespace ejk {

// Stored masks by their arguments: heads and equal nodes of an expression share them.
struct mask::OpenedMasks {
  std::map<std::map<std::string, std::string>, std::shared_ptr<const StoredMasks>> by_arguments;
};

OpenArray::OpenArray(Array array, Group group, Ids ids, Made)
    : array_(std::move(array)),
      group_(std::move(group)),
      ids_(std::move(ids)),
      opened_(std::make_shared<mask::OpenedMasks>()) {}

std::vector<std::shared_ptr<const ArraySource>> OpenArray::ids(
    const std::vector<std::string>& references) const {
  if (ids_) return ids_(references);
  std::vector<std::shared_ptr<const ArraySource>> all;
  for (const std::string& reference : references) all.push_back(array_(reference));
  return all;
}

namespace {

enum class Value {
  integer,
  align,       // an offset by name: top-left or bottom-right
  neighbours,  // a count, or none: no bound
  size,        // at least 1
  count,       // at least 0
  block,       // QxK
  shape,       // HxQxK or QxK
  walk,        // forward or dkv
  mask,        // another expression
  reference,   // to an array, or a file of several
};

struct Parameter {
  std::string name;
  Value value;
  bool required = false;
  std::string noun = {};  // of a size, in messages
};

struct Kind;

}  // namespace

struct MaskExpression::Node {
  enum class Op { kind, negate, both, either };
  Op op = Op::kind;
  std::shared_ptr<const Node> left, right;

  const Kind* kind = nullptr;  // of op kind
  std::map<std::string, std::string> arguments;

  const std::string* argument(const std::string& name) const {
    const auto found = arguments.find(name);
    return found == arguments.end() ? nullptr : &found->second;
  }
  // An integer argument; nothing if it is "none" or missing.
  std::optional<std::int64_t> integer(const std::string& name) const {
    const std::string* text = argument(name);
    if (text == nullptr || *text == "none") return std::nullopt;
    return parse_integer(*text);
  }
};

namespace {

using Node = MaskExpression::Node;
using NodePtr = std::shared_ptr<const Node>;
using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

struct Wanted {
  const Shape& shape;  // heads, queries, keys
  std::int64_t head;
  Polarity polarity;
  const OpenArray& open;
  std::optional<std::int64_t> entry;  // of the batch, where file() has one
};

// Heads, queries and keys so far; 0: unknown.
struct KnownShape {
  LeadingAxis leading = LeadingAxis::heads;  // of file()
  std::int64_t batch = 1;
  bool may_be_heads = false;  // batch is the first of three axes
  Shape lengths{0, 0, 0};
  Shape upper{0, 0, 0};  // at most: the last block may be cut short
  bool heads_are_rows = false;
};

struct Kind {
  std::string word;
  std::vector<Parameter> parameters;
  std::string usage;  // in hints
  Mask (*make)(const Node&, const Wanted&);
  /// Merges the shapes of its arrays into `known`; null: no arrays.
  void (*find_shape)(const Node&, const OpenArray&, KnownShape& known) = nullptr;
  /// The hint for a missing required argument; null: the usage.
  std::string (*missing)(const Kind&, const Node&) = nullptr;

  bool takes(Value value) const {
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const Parameter& p) { return p.value == value; });
  }
};

const std::vector<Kind>& kinds();

const Kind* kind_named(std::string_view word) {
  const auto found =
      std::find_if(kinds().begin(), kinds().end(), [&](const Kind& kind) { return kind.word == word; });
  return found == kinds().end() ? nullptr : &*found;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

// Notations of other libraries and languages, and their equivalents.
struct Foreign {
  std::string_view words;
  std::int64_t values;     // number of arguments
  std::string_view text;   // {}: the value, {less}: one less, {left} and {right}: two, -1 is no bound
  std::string_view usage;  // the hint where its values make no mask
  bool is_beside = false;  // it adds to another mask: after or before "or"
};

constexpr std::string_view kOperators = "& is and, | is or, ~ is not";
constexpr std::string_view kWindowUsage = "a causal window of L + 1 keys is local(left=L, right=0)";
constexpr Foreign kForeign[] = {
    {"and &&", 0, "&", kOperators},
    {"or ||", 0, "|", kOperators},
    {"not !", 0, "~", kOperators},
    {"is_causal causal_mask causal_upper_left tril", 0, "causal", "causal"},
    {"causal_lower_right bottom_right", 0, "causal(align=bottom-right)", "causal(align=bottom-right)"},
    {"window window_size sliding_window swa local_window", 1, "local(left={less}, right=0)", kWindowUsage},
    {"window window_size sliding_window swa local_window", 2, "local(left={left}, right={right})",
     kWindowUsage},
    {"chunk chunked_causal chunked_attention", 1, "chunked({})", "chunked(SIZE)"},
    {"sink sinks attention_sink attention_sinks", 1, "causal & prefix({})",
     "a window of L + 1 keys, and the first N keys beside it: local(left=L, right=0) | causal & prefix(N)",
     true},
    {"prefix_lm", 1, "causal | prefix({})", "causal | prefix(KEYS)"},
    {"document block_diagonal block_diag cu_seqlens varlen", 1, "documents({})", "documents(CU_SEQLENS_REF)"},
    {"segment segment_ids padding padding_mask key_padding_mask attention_mask", 1, "segments({})",
     "segments(REF), of ids for each token: those of padding are 0"},
    {"array dense", 1, "file({})", "file(REF)"},
    {"bidirectional no_mask", 0, "full", "full"},
};

// The row of a word with this number of values; -1: any.
const Foreign* foreign(std::string_view word, std::int64_t values = -1) {
  for (const Foreign& row : kForeign)
    for (std::string_view rest = row.words; !rest.empty() && (values < 0 || values == row.values);) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == word) return &row;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  return nullptr;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  /// Positions in the text of arguments that name arrays.
  Spans references() const { return references_; }

  NodePtr parse() {
    NodePtr tree = parse_union();
    if (at_ == text_.size()) return tree;
    if (text_[at_] == ')') throw fail("')' closes nothing");
    std::size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    const Foreign* row = foreign(lower_case(text_.substr(at_, end - at_)));
    const bool is_join = std::string_view(",+*-^").find(text_[at_]) != std::string_view::npos;
    throw fail("expected '&', '|' or the end")
        .hint(std::string(row != nullptr ? row->usage
                          : is_join      ? kOperators
                                         : ""));
  }

 private:
  // Limits of recursion.
  static constexpr int kDeepest = 200;
  static constexpr int kMostJoins = 1000;

  template <class... Args>
  Error fail(fmt::format_string<Args...> why, Args&&... args) const {
    const std::string where =
        at_ < text_.size() ? fmt::format("at \"{}\"", printable(text_.substr(at_), 30)) : "at its end";
    return {Error::Kind::usage, fmt::format("mask expression '{}': {}: {}", printable(text_), where,
                                            fmt::format(why, std::forward<Args>(args)...))};
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_spaces();
    return true;
  }

  NodePtr parse_union() {
    NodePtr left = parse_inter();
    while (take('|')) left = counted_join(Node::Op::either, left, parse_inter());
    return left;
  }

  NodePtr parse_inter() {
    NodePtr left = parse_unary();
    while (take('&')) left = counted_join(Node::Op::both, left, parse_unary());
    return left;
  }

  NodePtr parse_unary() {
    if (++depth_ > kDeepest) throw fail("nested more than {} deep", kDeepest);
    NodePtr result;
    if (take('~')) {
      result = join(Node::Op::negate, parse_unary(), nullptr);
    } else if (take('(')) {
      result = parse_union();
      if (!take(')')) throw fail("expected ')'");
    } else {
      result = parse_kind();
    }
    --depth_;
    return result;
  }

  NodePtr counted_join(Node::Op op, NodePtr left, NodePtr right) {
    if (++joins_ > kMostJoins) throw fail("more than {} operators", kMostJoins);
    return join(op, std::move(left), std::move(right));
  }

  static NodePtr join(Node::Op op, NodePtr left, NodePtr right) {
    auto node = std::make_shared<Node>();
    node->op = op;
    node->left = std::move(left);
    node->right = std::move(right);
    return node;
  }

  NodePtr parse_kind() {
    skip_spaces();
    const std::size_t begin = at_;
    std::size_t end = begin;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    if (end == begin) throw fail("expected a kind of mask").hint(list_of_kinds());
    const std::string word(text_.substr(begin, end - begin));
    const Kind* kind = kind_named(word);
    if (kind == nullptr) throw unknown(word);
    at_ = end;
    auto node = std::make_shared<Node>();
    node->kind = kind;
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '(') {
      const std::size_t open = at_;
      parse_arguments(*kind, *node);
      if (kind->takes(Value::reference)) references_.emplace_back(open + 1, text_.rfind(')', at_ - 1));
    }
    const std::size_t end_of_kind = std::exchange(at_, begin);  // for messages
    for (const Parameter& p : kind->parameters)
      if (p.required && node->argument(p.name) == nullptr)
        throw fail("{} needs its argument '{}'", word, p.name)
            .hint(kind->missing == nullptr ? kind->usage : kind->missing(*kind, *node));
    for (const Parameter& p : kind->parameters)
      if (const std::string* value = node->argument(p.name)) {
        if (p.value == Value::mask)
          node->left = nested(*value);
        else
          check(*kind, p, *value, *node);
      }
    at_ = end_of_kind;
    return node;
  }

  NodePtr nested(const std::string& text) const {
    if (depth_ + 1 > kDeepest) throw fail("nested more than {} deep", kDeepest);
    Parser parser(text);
    parser.depth_ = depth_ + 1;
    return parser.parse();
  }

  static std::vector<std::string> words() {
    std::vector<std::string> all;
    for (const Kind& kind : kinds()) all.push_back(kind.word);
    return all;
  }
  static std::string list_of_kinds() { return fmt::format("the kinds are {}", fmt::join(words(), ", ")); }

  Error unknown(const std::string& word) const {
    Error error = fail("'{}' is not a kind of mask", printable(word, 40));
    if (const Foreign* row = foreign(lower_case(word))) return error.hint(std::string(row->usage));
    const auto nearest = nearest_name(word, words());
    return error.hint(nearest ? fmt::format("did you mean '{}'?", *nearest) : list_of_kinds());
  }

  // Up to a comma or the closing parenthesis outside of [], () and "".
  std::string parse_value() {
    std::string value;
    if (at_ < text_.size() && text_[at_] == '"') {
      for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) value += text_[at_];
      if (at_ >= text_.size()) throw fail("the quote '\"' is not closed");
      ++at_;
      skip_spaces();
      return value;
    }
    int square = 0, round = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (square == 0 && round == 0 && (c == ',' || c == ')')) break;
      square += (c == '[') - (c == ']' && square > 0);
      round += (c == '(') - (c == ')');
      value += c;
    }
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.pop_back();
    return value;
  }

  void parse_arguments(const Kind& kind, Node& node) {
    const std::size_t open = at_;
    take('(');
    if (take(')')) return;
    std::size_t position = 0;
    for (;;) {
      skip_spaces();
      std::string name;
      for (const Parameter& p : kind.parameters) {
        std::size_t after = at_ + p.name.size();
        if (text_.substr(at_, p.name.size()) != p.name) continue;
        while (after < text_.size() && text_[after] == ' ') ++after;
        if (after >= text_.size() || text_[after] != '=') continue;
        name = p.name;
        at_ = after + 1;
        skip_spaces();
        break;
      }
      const std::size_t value_at = at_;
      const std::string value = parse_value();
      if (value.empty() && at_ >= text_.size()) {
        at_ = open;
        throw fail("'(' is not closed");
      }
      if (value.empty()) throw fail("an argument of {} is empty", kind.word).hint(kind.usage);
      if (name.empty()) {
        // A misspelt name is no value: only references may hold '='.
        const auto equals = value.find('=');
        const bool is_reference =
            position < kind.parameters.size() && (kind.parameters[position].value == Value::reference ||
                                                  kind.parameters[position].value == Value::mask);
        if (!is_reference && equals != std::string::npos) {
          at_ = value_at;
          throw fail("{} has no argument '{}'", kind.word, printable(value.substr(0, equals), 40))
              .hint(kind.usage);
        }
        if (position >= kind.parameters.size()) {
          at_ = value_at;
          throw fail("{} takes no such argument", kind.word).hint(kind.usage);
        }
        name = kind.parameters[position++].name;
      }
      if (!node.arguments.emplace(name, value).second) throw fail("{} is given twice", name).hint(kind.usage);
      if (take(',')) continue;
      if (take(')')) return;
      at_ = open;
      throw fail("'(' is not closed");
    }
  }

  void check(const Kind& kind, const Parameter& parameter, const std::string& value, const Node& node) const {
    const std::string& name = parameter.name;
    const bool side = parameter.value == Value::neighbours;
    if (parameter.value == Value::reference || (side && value == "none")) return;
    if (parameter.value == Value::align) {
      if (value != "top-left" && value != "bottom-right")
        throw fail("align={} is neither top-left nor bottom-right", printable(value, 40))
            .hint("top-left: query 0 is at key 0; bottom-right: the last query is at the last key");
      if (node.argument("offset") != nullptr)
        throw fail("align and offset exclude each other").hint(kind.usage);
      return;
    }
    if (parameter.value == Value::walk) {
      if (value != "forward" && value != "dkv")
        throw fail("{}={} is neither forward nor dkv", name, printable(value, 40));
      return;
    }
    if (parameter.value == Value::block || parameter.value == Value::shape) {
      const std::size_t most = parameter.value == Value::block ? 2 : 3;
      const auto lengths = mask::lengths_in(value);
      if (!lengths || lengths->size() < 2 || lengths->size() > most)
        throw fail("{}={} is not {}", name, printable(value, 40), most == 2 ? "QxK" : "HxQxK")
            .hint(kind.usage);
      return;
    }
    const auto number = parse_integer(value);
    if (!number && is_whole_number(value))
      throw fail("{}={} is beyond 64 bits", name, printable(value, 40)).hint(kind.usage);
    if (!number)
      throw fail("{}={} is not a whole number{}", name, printable(value, 40), side ? " or none" : "")
          .hint(kind.usage);
    if (side && *number < 0)
      throw fail("{}={} is not a count of neighbours", name, *number)
          .hint("a window that does not hold the query itself is moved with offset=K");
    if (parameter.value == Value::size && *number < 1)
      throw fail("the {} {} is not positive", parameter.noun, *number);
    if (parameter.value == Value::count && *number < 0)
      throw fail("{}={} is not a count", name, *number).hint(kind.usage);
  }

  std::string_view text_;
  Spans references_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int joins_ = 0;
};

// Replaces the words of other libraries in a text, and keeps arguments.
class Translation {
 public:
  explicit Translation(std::string_view text) : text_(text) {}

  /// Nothing if there is no such word, or its arguments make no mask.
  std::optional<std::string> run() {
    while (at_ < text_.size() && !failed_) step();
    // In Python and C "or", "and", || and && bind less than "|", here they would bind alike.
    if (failed_ || !changed_ || (has_words_ && has_signs_)) return std::nullopt;
    return out_;
  }

 private:
  void step() {
    const std::size_t begin = at_;
    if (const auto meant = comparison()) {
      changed_ = true;
      out_ += *meant;
      return;
    }
    if (is_letter(text_[at_])) {
      while (at_ < text_.size() && is_letter(text_[at_])) ++at_;
    } else {
      at_ += text_.substr(at_, 2) == "&&" || text_.substr(at_, 2) == "||" ? 2 : 1;
    }
    const std::string_view token = text_.substr(begin, at_ - begin);
    const std::string word = lower_case(token);
    if (kind_named(word) != nullptr) {
      arguments();
      out_ += word;
      out_ += text_.substr(begin + word.size(), at_ - begin - word.size());
      changed_ = changed_ || word != token;
    } else if (const Foreign* row = foreign(word)) {
      changed_ = true;
      if (row->text.size() > 1) return replace(word);
      has_words_ = true;
      out_ += row->text;
      if (row->text == "~") skip_spaces();
    } else {
      has_signs_ = has_signs_ || token == "&" || token == "|";
      out_ += token;
    }
  }

  // The index of a query, of a key, or neither, at at_; behind it.
  enum class Index { none, query, key };
  Index take_index() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_letter(text_[at_])) ++at_;
    const std::string word = " " + lower_case(text_.substr(begin, at_ - begin)) + " ";
    const auto is_in = [&](std::string_view words) { return words.find(word) != std::string_view::npos; };
    if (is_in(" q qi i row q_idx q_index q_pos query query_idx ")) return Index::query;
    return is_in(" k ki kv j col k_idx kv_idx kv_index k_pos kv_pos key key_idx ") ? Index::key : Index::none;
  }

  // The longest of `signs`, separated by spaces, at at_; behind it.
  std::string_view take_sign(std::string_view signs) {
    skip_spaces();
    for (std::size_t end = 0; end < signs.size(); signs.remove_prefix(end), end = 0) {
      signs.remove_prefix(std::min(signs.find_first_not_of(' '), signs.size()));
      end = std::min(signs.find(' '), signs.size());
      if (end > 0 && text_.substr(at_, end) == signs.substr(0, end)) return at_ += end, signs.substr(0, end);
    }
    return {};
  }

  // A comparison of indices, as in mask_mod of FlexAttention: "q_idx >= kv_idx", "q - k < 128".
  std::optional<std::string> comparison() {
    const std::size_t begin = at_;
    const bool is_within_word = begin > 0 && is_letter(text_[begin - 1]);
    const Index left = is_within_word ? Index::none : take_index();
    std::string_view sign = left == Index::none ? std::string_view() : take_sign(">= <= > < -");
    std::optional<std::string> meant;
    if (sign == "-" && left == Index::query && take_index() == Index::key) {
      sign = take_sign("<= <");
      skip_spaces();
      const std::size_t number = at_;
      while (at_ < text_.size() && is_letter(text_[at_])) ++at_;
      const auto keys = moved(std::string(text_.substr(number, at_ - number)), sign == "<=" ? 0 : -1, 0);
      if (keys && !sign.empty()) meant = fmt::format("local(left={}, right=none)", *keys);
    } else if (!sign.empty() && sign != "-") {
      const Index right = take_index();
      const bool is_causal = left == Index::query ? right == Index::key && sign[0] == '>'
                                                  : right == Index::query && sign[0] == '<';
      if (is_causal) meant = sign.size() == 2 ? "causal" : "causal(offset=-1)";
    }
    if (!meant) at_ = begin;
    return meant;
  }

  void replace(const std::string& word) {
    std::vector<std::string> values, more;  // those of the word, and those that kinds take as well
    for (const std::string& argument : arguments()) {
      const std::size_t equals = argument.find('=');
      const std::string name = argument.substr(0, equals == std::string::npos ? 0 : equals);
      if (name == "align" || name == "offset")
        more.push_back(argument);
      else
        values.push_back(argument.substr(name.empty() ? 0 : equals + 1));
    }
    const Foreign* row = foreign(word, std::ssize(values));
    if (row == nullptr || (row->is_beside && !is_alternative())) return void(failed_ = true);
    std::string text(row->text);
    const auto put = [&](std::string_view name, const std::optional<std::string>& value) {
      const std::size_t at = text.find(name);
      if (at == std::string::npos) return;
      if (value)
        text.replace(at, name.size(), *value);
      else
        failed_ = true;
    };
    values.resize(2);
    put("{less}", moved(values[0], -1, 0));
    put("{left}", moved(values[0], 0, -1));
    put("{right}", moved(values[1], 0, -1));
    put("{}", values[0]);
    if (!more.empty() && text.ends_with(')'))
      text.insert(text.size() - 1, fmt::format(", {}", fmt::join(more, ", ")));
    else if (!more.empty())
      text += fmt::format("({})", fmt::join(more, ", "));
    const bool is_whole = out_.empty() && at_ == text_.size(),
               is_negated = out_.substr(0, out_.find_last_not_of(' ') + 1).ends_with('~');
    const bool is_joined =
        text.find(" | ") != std::string::npos || (is_negated && text.find(" & ") != std::string::npos);
    out_ += !is_whole && is_joined ? "(" + text + ")" : text;
  }

  // Combined with its neighbours by "or".
  bool is_alternative() const {
    const std::size_t before = out_.find_last_not_of(' '), behind = text_.find_first_not_of(' ', at_);
    return (before != std::string::npos && out_[before] == '|') ||
           (behind != std::string_view::npos &&
            (text_[behind] == '|' || lower_case(text_.substr(behind, 3)) == "or "));
  }

  // A count of at least `least`; -1 is no bound.
  static std::optional<std::string> moved(const std::string& value, std::int64_t by, std::int64_t least) {
    const auto number = parse_integer(value);
    if (!number || *number < least - by) return std::nullopt;
    return *number + by < 0 ? "none" : fmt::format("{}", *number + by);
  }

  // The arguments in parentheses that follow, without the spaces around each.
  std::vector<std::string> arguments() {
    std::vector<std::string> all;
    std::size_t at = text_.find_first_not_of(' ', at_);
    if (at == std::string_view::npos || text_[at] != '(') return all;
    std::size_t begin = at + 1;
    int depth = 0;
    bool is_quoted = false;
    for (; at < text_.size(); ++at) {
      const char c = text_[at];
      is_quoted ^= c == '"';
      if (is_quoted) continue;
      depth += (c == '(' || c == '[') - (c == ')' || c == ']');
      if (depth > 1 || (depth == 1 && c != ',')) continue;
      std::string_view one = text_.substr(begin, at - begin);
      one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
      one = one.substr(0, one.find_last_not_of(' ') + 1);
      if (!one.empty() || !all.empty()) all.emplace_back(one);
      begin = at + 1;
      if (depth == 0) break;
    }
    failed_ = failed_ || at == text_.size();
    at_ = std::min(at + 1, text_.size());
    return all;
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
  bool changed_ = false, failed_ = false;
  bool has_words_ = false, has_signs_ = false;  // and, or, not, &&, ||, !; & or |
};

void require_elements(const ArraySource& array, std::int64_t least) {
  if (element_count(array.shape()) < least)
    throw core::invalid("{}: shape {} has no element", array.name(), to_string(array.shape()));
}

// An array with or without an axis of heads; `axes` names its last two.
std::shared_ptr<const ArraySource> open_dense(const Node& node, const OpenArray& open, const char* axes,
                                              std::int64_t least_elements = 1) {
  auto array = open(*node.argument("array"));
  const std::size_t rank = array->shape().size();
  require_elements(*array, least_elements);
  if (rank == 2 || rank == 3) return array;
  Error error(Error::Kind::input, fmt::format("{}: a mask is ({}) or (heads, {}), not of shape {}",
                                              array->name(), axes, axes, to_string(array->shape())));
  if (rank == 4) error.hint(fmt::format("take one batch entry with a slice: \"{}[0]\"", array->name()));
  throw error;
}

// Merges a shape with that of another array; 0 is unknown.
void agree(KnownShape& shape, const Shape& more, const std::string& name) {
  Shape& known = shape.lengths;
  for (std::size_t d = 0; d < 3; ++d) {
    const bool broadcast = d == 0 && (known[d] == 1 || more[d] == 1);
    if (more[d] == 0) continue;
    if (known[d] == 0 || broadcast)
      known[d] = std::max(known[d], more[d]);
    else if (known[d] != more[d])
      throw core::invalid(
          "{} makes a mask of {} x {} x {} (heads x queries x keys), the arrays before "
          "it one of {} x {} x {}",
          name, more[0], more[1], more[2], known[0], known[1], known[2]);
  }
}

enum class FewerRows { wrong, may_be_padding };

Mask checked_shape(Mask mask, const Shape& shape, const std::string& name,
                   FewerRows fewer_rows = FewerRows::wrong) {
  if (mask.q_length() == shape[1] && mask.kv_length() == shape[2]) return mask;
  const bool padding =
      fewer_rows == FewerRows::may_be_padding && mask.kv_length() == shape[2] && mask.q_length() < shape[1];
  Error error(Error::Kind::input,
              fmt::format("{} is {} x {}, the mask is {} x {} (queries x keys)", name, mask.q_length(),
                          mask.kv_length(), shape[1], shape[2]),
              padding ? Error::Code::padding_mask : Error::Code::other);
  error.about(name);
  if (mask.q_length() == shape[2] && mask.kv_length() == shape[1] && shape[1] != shape[2])
    error.hint("it looks transposed: queries are the first axis");
  throw error;
}

std::int64_t offset_of(const Node& node, const Wanted& wanted) {
  const std::string* align = node.argument("align");
  return align != nullptr && *align == "bottom-right" ? wanted.shape[2] - wanted.shape[1]
                                                      : node.integer("offset").value_or(0);
}

// One side of a window may mean a causal window, or no bound on the other side.
std::string missing_side(const Kind& kind, const Node& node) {
  const std::string* left = node.argument("left");
  const auto keys = left == nullptr ? std::nullopt : parse_integer(*left);
  if (!keys || *keys < 1) return kind.usage;
  return fmt::format("a causal window of {} key{} is local(left={}, right=0); without a bound: right=none",
                     *keys, *keys == 1 ? "" : "s", *keys - 1);
}

std::pair<std::shared_ptr<const ArraySource>, std::shared_ptr<const ArraySource>> open_ids(
    const Node& node, const OpenArray& open) {
  std::vector<std::string> references{*node.argument("q")};
  if (const std::string* kv = node.argument("kv")) references.push_back(*kv);
  const auto ids = open.ids(references);
  return {ids.front(), ids.back()};
}

void find_shape_of_segments(const Node& node, const OpenArray& open, KnownShape& known) {
  const auto [q, kv] = open_ids(node, open);
  for (const auto& ids : {q, kv})
    if (ids->shape().size() == 2)
      throw Error(Error::Kind::input,
                  fmt::format("{}: segment ids of an expression are one row, not of shape {}", ids->name(),
                              to_string(ids->shape())),
                  Error::Code::padding_mask)
          .about(ids->name());
  if (q->shape().size() == 1 && kv->shape().size() == 1)
    agree(known, {1, q->shape()[0], kv->shape()[0]}, q->name());
  else
    segments_mask(*q, *kv);  // throws
}

Mask make_segments(const Node& node, const Wanted& wanted) {
  const auto [q, kv] = open_ids(node, wanted.open);
  return checked_shape(segments_mask(*q, *kv), wanted.shape, q->name());
}

void find_shape_of_documents(const Node& node, const OpenArray& open, KnownShape& known) {
  const auto cu = open(*node.argument("cu_seqlens"));
  const std::int64_t tokens = core::read_last_offset(*cu);
  if (tokens < 1) documents_mask(*cu);  // throws
  agree(known, {1, tokens, tokens}, cu->name());
}

Mask make_documents(const Node& node, const Wanted& wanted) {
  const auto cu = wanted.open(*node.argument("cu_seqlens"));
  Mask mask = documents_mask(*cu);
  if (mask.q_length() != wanted.shape[1] || mask.kv_length() != wanted.shape[2])
    throw core::invalid("{}: cu_seqlens ends at {} tokens, the mask is {} x {} (queries x keys)", cu->name(),
                        mask.q_length(), wanted.shape[1], wanted.shape[2]);
  return mask;
}

constexpr const char* kElementAxes = "queries, keys";
constexpr const char* kBlockAxes = "query blocks, key blocks";

void find_shape_of_file(const Node& node, const OpenArray& open, KnownShape& known) {
  if (known.leading == LeadingAxis::batch) {
    const HeadMasks part = head_masks(open(*node.argument("array")));
    mask::agree_on_entries(known.batch, known.may_be_heads, part.batch, part.may_be_heads, part.name);
    return agree(known, {part.heads, part.q_length, part.kv_length}, part.name);
  }
  // Without queries or keys no mask is created: 0 fixes no length.
  const auto array = open_dense(node, open, kElementAxes, 0);
  Shape shape = array->shape();
  if (shape.size() == 2) shape.insert(shape.begin(), 1);
  agree(known, shape, array->name());
}

std::shared_ptr<const ArraySource> head_slice(std::shared_ptr<const ArraySource> array,
                                              const Wanted& wanted) {
  if (array->shape().size() == 2) return array;
  const std::int64_t heads = array->shape()[0];
  if (heads != 1 && heads != wanted.shape[0])
    throw core::invalid("{} has {} heads, the mask has {}", array->name(), heads, wanted.shape[0]);
  return slice_of(std::move(array), heads == 1 ? 0 : wanted.head);
}

// A stored mask of an entry, as find_shape_of_file() has accepted it: (queries, keys) or (heads, queries, keys).
std::shared_ptr<const ArraySource> open_entry(const Node& node, const OpenArray& open, std::int64_t entry) {
  auto array = open(*node.argument("array"));
  require_elements(*array, 1);
  if (array->shape().size() == 2) return array;
  return slice_of(array, array->shape().front() == 1 ? 0 : entry);
}

Mask make_file(const Node& node, const Wanted& wanted) {
  auto array = head_slice(wanted.entry ? open_entry(node, wanted.open, *wanted.entry)
                                       : open_dense(node, wanted.open, kElementAxes),
                          wanted);
  const std::string name = array->name();
  return checked_shape(array_mask(std::move(array), wanted.polarity), wanted.shape, name,
                       FewerRows::may_be_padding);
}

void find_shape_of_indices(const Node& node, const OpenArray& open, KnownShape& known) {
  const auto array = open(*node.argument("keys"));
  const Shape& shape = array->shape();
  if (shape.size() != 2 && shape.size() != 3)
    throw core::invalid("{} has the shape {}; the keys of each query are (queries, n) or (heads, queries, n)",
                        array->name(), to_string(shape));
  agree(known, {shape.size() == 3 ? shape[0] : 1, shape[shape.size() - 2], 0}, array->name());
}

Mask make_indices(const Node& node, const Wanted& wanted) {
  const auto array = head_slice(wanted.open(*node.argument("keys")), wanted);
  return checked_shape(indices_mask(*array, wanted.shape[2]), wanted.shape, array->name());
}

void find_shape_of_tree(const Node& node, const OpenArray& open, KnownShape& known) {
  const auto parents = open(*node.argument("parents"));
  const std::int64_t tokens = element_count(parents->shape());
  agree(known, {1, tokens, tokens + node.integer("prefix").value_or(0)}, parents->name());
}

Mask make_tree(const Node& node, const Wanted& wanted) {
  const auto parents = wanted.open(*node.argument("parents"));
  return checked_shape(tree_mask(*parents, node.integer("prefix").value_or(0)), wanted.shape,
                       parents->name());
}

std::shared_ptr<const ArraySource> open_positions(const Node& node, const char* name, const OpenArray& open) {
  return node.argument(name) == nullptr ? nullptr : open(*node.argument(name));
}

KnownShape shape_of(const Node& tree, const OpenArray& open, LeadingAxis leading);

void find_shape_of_positions(const Node& node, const OpenArray& open, KnownShape& known) {
  const KnownShape of = shape_of(*node.left, open, known.leading);
  mask::agree_on_entries(known.batch, known.may_be_heads, of.batch, of.may_be_heads, "positions");
  Shape shape = of.lengths;
  for (const auto& [name, axis] : {std::pair{"q", 1}, std::pair{"k", 2}})
    if (const auto array = open_positions(node, name, open))
      shape[static_cast<std::size_t>(axis)] = element_count(array->shape());
  agree(known, shape, "positions");
}

Mask make(const Node& node, const Wanted& wanted);

Mask make_positions(const Node& node, const Wanted& wanted) {
  const LeadingAxis leading = wanted.entry ? LeadingAxis::batch : LeadingAxis::heads;
  Shape lengths = shape_of(*node.left, wanted.open, leading).lengths;
  lengths[0] = wanted.shape[0];
  std::shared_ptr<const ArraySource> arrays[2];
  // A mask without arrays reaches as far as the positions.
  for (const std::size_t d : {1u, 2u}) {
    auto& array = arrays[d - 1] = open_positions(node, d == 1 ? "q" : "k", wanted.open);
    if (lengths[d] == 0 && array) {
      const std::vector<std::int64_t> positions = core::read_integers(*array, "positions");
      if (!positions.empty())
        lengths[d] = std::min(*std::max_element(positions.begin(), positions.end()), kLongestMask - 1) + 1;
    }
    if (lengths[d] == 0 || !array) lengths[d] = std::max(lengths[d], wanted.shape[d]);
    lengths[d] = std::max<std::int64_t>(lengths[d], 1);
  }
  const auto positions = [](const std::shared_ptr<const ArraySource>& array) {
    return array ? IntegerArray(array) : IntegerArray();
  };
  Mask of = make(*node.left, {lengths, wanted.head, wanted.polarity, wanted.open, wanted.entry});
  return checked_shape(positions_mask(std::move(of), positions(arrays[0]), positions(arrays[1])),
                       wanted.shape, "positions");
}

std::optional<BlockShape> block_of(const Node& node) {
  const std::string* text = node.argument("block");
  if (text == nullptr) return std::nullopt;
  const Shape lengths = *mask::lengths_in(*text);
  return BlockShape{lengths[0], lengths[1]};
}

void find_shape_of_blocks(const Node& node, const OpenArray& open, KnownShape& known) {
  const auto array = open_dense(node, open, kBlockAxes);
  const Shape& shape = array->shape();
  agree(known, {shape.size() == 3 ? shape[0] : 1, 0, 0}, array->name());
  const BlockShape block = *block_of(node);
  for (const auto& [axis, length] : {std::pair{1, block.q}, std::pair{2, block.kv}}) {
    const auto d = static_cast<std::size_t>(axis);
    const auto whole = core::checked_mul(shape[shape.size() - 3 + d], length);
    const std::int64_t most = std::min(whole.value_or(kLongestMask), kLongestMask);
    known.upper[d] = known.upper[d] == 0 ? most : std::min(known.upper[d], most);
  }
}

Mask make_blocks(const Node& node, const Wanted& wanted) {
  return blocks_mask(head_slice(open_dense(node, wanted.open, kBlockAxes), wanted), *block_of(node),
                     wanted.shape[1], wanted.shape[2], wanted.polarity);
}

const mask::StoredMasks& stored_masks(const Node& node, const OpenArray& open) {
  if (!open.group())
    throw core::usage("{}(...) names a file of several arrays, which cannot be opened here", node.kind->word);
  auto& masks = open.opened().by_arguments[node.arguments];
  if (!masks) masks = mask::open_stored_masks(open.group(), node.arguments);
  return *masks;
}

void find_shape_of_stored(const Node& node, const OpenArray& open, KnownShape& known) {
  const MaskShape shape = stored_masks(node, open).shape();
  known.heads_are_rows = known.heads_are_rows || shape.heads_are_rows;
  agree(known, {shape.heads, shape.q_length, shape.kv_length}, *node.argument("info"));
}

Kind stored_kind(const char* word, Mask (*make)(const Node&, const Wanted&)) {
  constexpr Value kForms[] = {Value::block, Value::shape, Value::walk, Value::size};
  Kind kind{word, {{"info", Value::reference, true}}, "", make, find_shape_of_stored};
  for (const mask::StoredSetting& setting : mask::stored_settings())
    kind.parameters.push_back(
        {setting.parameter, kForms[static_cast<std::size_t>(setting.form)], false, setting.noun});
  kind.usage = fmt::format(
      "{}(REF) of a MaskInfo, with block=QxK, shape=HxQxK, walk=dkv, head_shards=N or q_seq_shards=N where the file "
      "does not say it",
      word);
  return kind;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> table{
      {"full", {}, "full", [](const Node&, const Wanted& w) { return full_mask(w.shape[1], w.shape[2]); }},
      {"causal",
       {{"offset", Value::integer}, {"align", Value::align}},
       "causal, causal(offset=K) or causal(align=bottom-right)",
       [](const Node& node, const Wanted& wanted) {
         return causal_mask(wanted.shape[1], wanted.shape[2], offset_of(node, wanted));
       }},
      {"local",
       {{"left", Value::neighbours, true},
        {"right", Value::neighbours, true},
        {"offset", Value::integer},
        {"align", Value::align}},
       "local(left=L, right=R) with offset=K or align=bottom-right; L and R are counts or none",
       [](const Node& node, const Wanted& wanted) {
         return local_mask(wanted.shape[1], wanted.shape[2], node.integer("left"), node.integer("right"),
                           offset_of(node, wanted));
       },
       nullptr,
       missing_side},
      {"chunked",
       {{"size", Value::size, true, "chunk size"}, {"offset", Value::integer}, {"align", Value::align}},
       "chunked(SIZE) with offset=K or align=bottom-right",
       [](const Node& node, const Wanted& w) {
         return chunked_mask(w.shape[1], w.shape[2], *node.integer("size"), offset_of(node, w));
       }},
      {"prefix",
       {{"keys", Value::count, true}},
       "prefix(KEYS)",
       [](const Node& node, const Wanted& wanted) {
         return prefix_mask(wanted.shape[1], wanted.shape[2], *node.integer("keys"));
       }},
      {"segments",
       {{"q", Value::reference, true}, {"kv", Value::reference}},
       "segments(REF) or segments(Q_REF,KV_REF)",
       make_segments,
       find_shape_of_segments},
      {"documents",
       {{"cu_seqlens", Value::reference, true}},
       "documents(CU_SEQLENS_REF)",
       make_documents,
       find_shape_of_documents},
      {"file", {{"array", Value::reference, true}}, "file(REF)", make_file, find_shape_of_file},
      {"blocks",
       {{"array", Value::reference, true}, {"block", Value::block, true}},
       "blocks(REF, QxK)",
       make_blocks,
       find_shape_of_blocks},
      {"indices",
       {{"keys", Value::reference, true}},
       "indices(REF), of the keys of each query",
       make_indices,
       find_shape_of_indices},
      {"tree",
       {{"parents", Value::reference, true}, {"prefix", Value::count}},
       "tree(PARENTS_REF, prefix=N)",
       make_tree,
       find_shape_of_tree},
      {"positions",
       {{"mask", Value::mask, true}, {"q", Value::reference}, {"k", Value::reference}},
       "positions(EXPR, q=REF, k=REF)",
       make_positions,
       find_shape_of_positions},
      stored_kind("from",
                  [](const Node& node, const Wanted& wanted) {
                    return stored_masks(node, wanted.open).mask(wanted.shape, wanted.head);
                  }),
      stored_kind("visited",
                  [](const Node& node, const Wanted& wanted) {
                    return stored_masks(node, wanted.open).visited(wanted.shape, wanted.head);
                  }),
  };
  return table;
}

// Calls f(node) for the kinds of an expression, from left to right.
template <class F>
void for_each_kind(const Node& node, F&& f) {
  if (node.op == Node::Op::kind) return f(node);
  for_each_kind(*node.left, f);
  if (node.right) for_each_kind(*node.right, f);
}

KnownShape shape_of(const Node& tree, const OpenArray& open, LeadingAxis leading) {
  KnownShape known;
  known.leading = leading;
  for_each_kind(tree, [&](const Node& node) {
    if (node.kind->find_shape != nullptr) node.kind->find_shape(node, open, known);
  });
  return known;
}

// A window without bounds on either side is aligned in any way.
bool is_unaligned(const Node& node) {
  if (!node.kind->takes(Value::align)) return false;
  if (node.argument("align") != nullptr || node.argument("offset") != nullptr) return false;
  const std::vector<Parameter>& parameters = node.kind->parameters;
  return !node.kind->takes(Value::neighbours) ||
         std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) {
           return p.value == Value::neighbours && node.integer(p.name);
         });
}

Mask make(const Node& node, const Wanted& wanted) {
  switch (node.op) {
    case Node::Op::negate:
      return ~make(*node.left, wanted);
    case Node::Op::both:
      return make(*node.left, wanted) & make(*node.right, wanted);
    case Node::Op::either:
      return make(*node.left, wanted) | make(*node.right, wanted);
    case Node::Op::kind:
      break;
  }
  return node.kind->make(node, wanted);
}

}  // namespace

MaskExpression MaskExpression::parse(std::string_view text) {
  MaskExpression expression;
  expression.text_ = text;
  Parser parser(text);
  try {
    expression.root_ = parser.parse();
  } catch (Error& error) {
    if (const auto meant = meant_by(text)) error.hint(fmt::format("'{}'", *meant));
    throw;
  }
  expression.references_ = parser.references();
  return expression;
}

std::optional<std::string> MaskExpression::meant_by(std::string_view text) {
  std::optional<std::string> meant = Translation(text).run();
  if (!meant) return std::nullopt;
  try {
    Parser(*meant).parse();
    return meant;
  } catch (const Error&) {
    return std::nullopt;
  }
}

MaskShape MaskExpression::shape(const OpenArray& open, LeadingAxis leading) const {
  const KnownShape known = shape_of(*root_, open, leading);
  const bool at_most = known.lengths[1] == 0 || known.lengths[2] == 0;
  const Shape& lengths = at_most ? known.upper : known.lengths;
  return {known.lengths[0],     lengths[1],  lengths[2],        at_most,
          known.heads_are_rows, known.batch, known.may_be_heads};
}

std::string MaskExpression::text(References references) const {
  if (references == References::shown) return text_;
  std::string text;
  std::size_t at = 0;
  for (const auto& [begin, end] : references_) {
    text.append(text_, at, begin - at).append("...");
    at = end;
  }
  return text.append(text_, at);
}

bool MaskExpression::leaves_alignment_open() const {
  bool any = false;
  for_each_kind(*root_, [&](const Node& node) { any = any || is_unaligned(node); });
  return any;
}

Mask MaskExpression::resolve(const Shape& shape, std::int64_t head, Polarity polarity, const OpenArray& open,
                             std::optional<std::int64_t> entry) const {
  core::require_head(shape, head);
  return make(*root_, {shape, head, polarity, open, entry});
}

}  // namespace ejk
