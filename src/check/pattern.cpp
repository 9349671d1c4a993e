// Regular expressions as automata: a name is read once with the set of all states that are possible, so that no
// expression takes long. The automaton is built from its end, each part with the state that follows it.
// tests: tests/check/test_pattern.cpp
#include "check/pattern.hpp"

#include <utility>

namespace ejk::check {

class PatternParser {
 public:
  PatternParser(std::string_view text, Pattern& into) : text_(text), into_(into) {}

  bool parse() {
    into_.states_ = {{Pattern::Kind::match}};
    const auto tree = alternatives();
    if (!tree || at_ != text_.size()) return false;
    into_.start_ = build(*tree, 0);
    return true;
  }

 private:
  using Kind = Pattern::Kind;
  enum class Shape : std::uint8_t { state, sequence, alternatives, repeated };

  // `repeated` has one child.
  struct Tree {
    Shape shape = Shape::sequence;
    Pattern::State state = {};
    bool may_be_absent = false, may_repeat = false;
    std::vector<Tree> children = {};
  };

  std::optional<Tree> alternatives() {
    constexpr int kDeepest = 50;
    if (++depth_ > kDeepest) return std::nullopt;
    Tree tree{Shape::alternatives};
    do {
      auto one = sequence();
      if (!one) return std::nullopt;
      tree.children.push_back(std::move(*one));
    } while (take("|"));
    --depth_;
    return tree;
  }

  std::optional<Tree> sequence() {
    Tree tree;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      auto one = element();
      if (!one) return std::nullopt;
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      if (c == '*' || c == '+' || c == '?') {
        if (one->state.kind == Kind::begin || one->state.kind == Kind::end) return std::nullopt;
        ++at_;
        take("?");  // the shortest match: whether there is one is the same
        Tree repeated{Shape::repeated};
        repeated.may_be_absent = c != '+', repeated.may_repeat = c != '?';
        repeated.children.push_back(std::move(*one));
        one = std::move(repeated);
      }
      tree.children.push_back(std::move(*one));
    }
    return tree;
  }

  std::optional<Tree> element() {
    if (take("(")) {
      if (!take("?:") && take("?")) return std::nullopt;
      auto inside = alternatives();
      if (!inside || !take(")")) return std::nullopt;
      return inside;
    }
    Tree tree{Shape::state, {Kind::characters}};
    std::bitset<256>& characters = tree.state.characters;
    const char c = text_[at_++];
    switch (c) {
      case '^':
        tree.state.kind = Kind::begin;
        return tree;
      case '$':
        tree.state.kind = Kind::end;
        return tree;
      case '.':
        characters.set().reset(static_cast<unsigned char>('\n'));
        return tree;
      case '[':
        if (!read_class(characters)) return std::nullopt;
        return tree;
      case '\\':
        if (!read_escape(characters)) return std::nullopt;
        return tree;
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
        return std::nullopt;
      default:
        characters.set(static_cast<unsigned char>(c));
        return tree;
    }
  }

  bool read_escape(std::bitset<256>& characters) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    const auto add = [&](char first, char last) {
      for (int i = first; i <= last; ++i) characters.set(static_cast<std::size_t>(i));
    };
    const bool is_word = c == 'w';
    if (c == 'd' || is_word) add('0', '9');
    if (is_word) add('a', 'z'), add('A', 'Z'), add('_', '_');
    if (c == 'd' || is_word) return true;
    const bool is_punctuation =
        c > ' ' && c < 127 && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z');
    if (is_punctuation) characters.set(static_cast<unsigned char>(c));
    return is_punctuation;
  }

  // After '['.
  bool read_class(std::bitset<256>& characters) {
    const bool is_complement = take("^");
    for (bool is_first = true; at_ < text_.size(); is_first = false) {
      const auto c = static_cast<unsigned char>(text_[at_++]);
      if (c == ']' && !is_first) {
        if (is_complement) characters.flip();
        return true;
      }
      if (c == '\\') {
        if (!read_escape(characters)) return false;
        continue;
      }
      unsigned char last = c;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        last = static_cast<unsigned char>(text_[at_ + 1]);
        at_ += 2;
        if (last < c || last == '\\') return false;
      }
      for (std::size_t i = c; i <= last; ++i) characters.set(i);
    }
    return false;
  }

  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  // The first state of a part that is followed by the state `next`.
  std::uint32_t build(const Tree& tree, std::uint32_t next) {
    switch (tree.shape) {
      case Shape::state: {
        Pattern::State state = tree.state;
        state.next = next;
        return add(state);
      }
      case Shape::sequence:
        for (std::size_t i = tree.children.size(); i-- > 0;) next = build(tree.children[i], next);
        return next;
      case Shape::alternatives: {
        std::uint32_t first = build(tree.children[0], next);
        for (std::size_t i = 1; i < tree.children.size(); ++i)
          first = add({Kind::split, first, build(tree.children[i], next)});
        return first;
      }
      case Shape::repeated:
        break;
    }
    if (!tree.may_repeat) return add({Kind::split, build(tree.children[0], next), next});
    const std::uint32_t loop = add({Kind::split, 0, next}), first = build(tree.children[0], loop);
    into_.states_[loop].next = first;
    return tree.may_be_absent ? loop : first;
  }

  std::uint32_t add(const Pattern::State& state) {
    into_.states_.push_back(state);
    return static_cast<std::uint32_t>(into_.states_.size() - 1);
  }

  std::string_view text_;
  Pattern& into_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

std::optional<Pattern> Pattern::parse(std::string_view text) {
  constexpr std::size_t kLongest = 1000;
  Pattern pattern;
  if (text.size() > kLongest || !PatternParser(text, pattern).parse()) return std::nullopt;
  return pattern;
}

// Adds a state, and what it leads to without a character.
void Pattern::follow(std::uint32_t state, std::size_t at, std::size_t end, std::vector<bool>& seen,
                     std::vector<std::uint32_t>& states) const {
  std::vector<std::uint32_t> waiting{state};
  while (!waiting.empty()) {
    const std::uint32_t i = waiting.back();
    waiting.pop_back();
    if (seen[i]) continue;
    seen[i] = true;
    const State& s = states_[i];
    if (s.kind == Kind::split) waiting.push_back(s.other);
    if (s.kind == Kind::split || (s.kind == Kind::begin && at == 0) || (s.kind == Kind::end && at == end))
      waiting.push_back(s.next);
    if (s.kind == Kind::characters || s.kind == Kind::match) states.push_back(i);
  }
}

bool Pattern::matches(std::string_view name) const {
  std::vector<std::uint32_t> states, next;
  std::vector<bool> seen(states_.size());
  follow(start_, 0, name.size(), seen, states);
  for (std::size_t at = 0;; ++at) {
    for (const std::uint32_t state : states)
      if (states_[state].kind == Kind::match) return true;
    if (at == name.size() || states.empty()) return false;
    next.clear();
    seen.assign(states_.size(), false);
    for (const std::uint32_t state : states)
      if (states_[state].characters[static_cast<unsigned char>(name[at])])
        follow(states_[state].next, at + 1, name.size(), seen, next);
    states.swap(next);
  }
}

}  // namespace ejk::check
