// Order of layers, and errors from layer to layer. Natural order compares names part by part: a run of
// digits, or one other byte. Cost: their lengths.
// tests: tests/compare/test_layers.cpp
#include "ejk/program/compare_files.hpp"

#include <algorithm>

#include "ejk/program/text.hpp"

namespace ejk {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view take_digits(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

}  // namespace

bool natural_less(std::string_view x, std::string_view y) {
  std::string_view a = x, b = y;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view m = take_digits(a), n = take_digits(b);
      if (m.size() != n.size()) return m.size() < n.size();
      if (m != n) return m < n;
      continue;
    }
    if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
    a.remove_prefix(1), b.remove_prefix(1);
  }
  return a.empty() == b.empty() ? x < y : a.empty();
}

NameMap::NameMap(std::string_view text) {
  const auto stars = [](std::string_view side) { return std::count(side.begin(), side.end(), '*'); };
  const std::size_t equals = text.find('=');
  const std::string_view left = text.substr(0, equals),
                         right = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  if (stars(left) != 1 || stars(right) != 1)
    throw Error(Error::Kind::usage,
                "'" + printable(text) + "' is not of the form A*B=C*D, with one * on either side")
        .hint("for example 'model.layers.*=layers.*'");
  before_ = left.substr(0, left.find('*')), behind_ = left.substr(left.find('*') + 1);
  new_before_ = right.substr(0, right.find('*')), new_behind_ = right.substr(right.find('*') + 1);
}

std::optional<std::string> NameMap::operator()(std::string_view name) const {
  if (name.size() < before_.size() + behind_.size() || !name.starts_with(before_) || !name.ends_with(behind_))
    return std::nullopt;
  name.remove_prefix(before_.size());
  name.remove_suffix(behind_.size());
  return new_before_ + std::string(name) + new_behind_;
}

LayerErrors layer_errors(std::span<const Comparison> in_order) {
  LayerErrors errors;
  double before = 0, most = 0;
  for (const Comparison& c : in_order) {
    const std::size_t i = errors.layers.size();
    LayerErrors::Layer& layer = errors.layers.emplace_back();
    if (!c.close && !errors.first) errors.first = i;
    if (!c.same_shape() || c.finite == 0) continue;
    layer.rel = c.rel.value_or(0);
    layer.added = *layer.rel - before;
    before = *layer.rel;
    if (*layer.added > most) most = *layer.added, errors.most_added = i;
  }
  return errors;
}

}  // namespace ejk
