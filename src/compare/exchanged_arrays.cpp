// Arrays that hold what belongs to others. Of each array 64 elements are compared with those of all arrays of its
// shape, at most until they are too far apart: a row of elements for each array, no second array in memory.
// Gate and up in either order: alibaba/rtp-llm#756.
// tests: tests/compare/test_exchanged_arrays.cpp
#include "compare/exchanged_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include "compare/sides.hpp"
#include "core/parallel.hpp"
#include "core/splitmix64.hpp"
#include "ejk/program/text.hpp"

namespace ejk::verify {

namespace {

constexpr std::int64_t kStrips = 16, kOfStrip = 4, kFewestElements = 4;
using Fingerprint = std::array<float, kStrips * kOfStrip>;

// Strips of the last axis, at the same indices of all arrays of a shape.
Fingerprint fingerprint_of(const ArraySource& source) {
  const Shape& shape = source.shape();
  const Side side(source);
  const std::int64_t n = std::min(kOfStrip, shape.back());
  std::vector<std::byte> raw;
  std::array<double, kOfStrip> strip{};
  Fingerprint print{};
  for (std::int64_t s = 0; s < kStrips; ++s) {
    Shape at(shape.size());
    for (std::size_t d = 0; d < at.size(); ++d) {
      const std::int64_t positions = d + 1 == at.size() ? shape[d] - n + 1 : shape[d];
      at[d] = static_cast<std::int64_t>(core::splitmix64(static_cast<std::uint64_t>(s) * at.size() + d) %
                                        static_cast<std::uint64_t>(positions));
    }
    side.line(at, n, raw, strip.data());
    for (std::int64_t i = 0; i < n; ++i)
      print[static_cast<std::size_t>(s * kOfStrip + i)] =
          static_cast<float>(strip[static_cast<std::size_t>(i)]);
  }
  return print;
}

// Σ (a − e)² / Σ (a² + e²): 0.015 with 4 bits of rounding, 1 of arrays that have nothing in common; infinite where
// the first elements exceed 0.2.
double distance(const Fingerprint& a, const Fingerprint& e) {
  constexpr double kFar = 0.2;
  double apart = 0, sizes = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = e[i];
    apart += (x - y) * (x - y), sizes += x * x + y * y;
    if (i % kStrips == kStrips - 1 && !(apart <= kFar * sizes))
      return std::numeric_limits<double>::infinity();
  }
  return sizes > 0 ? apart / sizes : std::numeric_limits<double>::infinity();
}

// Parts of names: the move is of `from` to `to` under `before`, and `behind` is the same on both sides.
struct NameChange {
  std::string before, to, from, behind;
};

NameChange change_of(const std::string& to, const std::string& from) {
  constexpr std::string_view kBetween = "./";
  std::size_t begin = 0;  // of the first part that differs
  for (std::size_t i = 0; i < std::min(to.size(), from.size()) && to[i] == from[i]; ++i)
    if (kBetween.find(to[i]) != std::string_view::npos) begin = i + 1;
  const auto part = [&](const std::string& name) {
    return name.substr(begin, std::min(name.find_first_of(kBetween, begin), name.size()) - begin);
  };
  NameChange change{to.substr(0, begin), part(to), part(from), ""};
  change.behind = to.substr(begin + change.to.size());
  if (from.substr(begin + change.from.size()) != change.behind) return {"", to, from, ""};
  return change;
}

// Arrays with one change of names below each of several names before it, as experts 3 and 5 of all layers.
struct MovedNames {
  std::set<std::string> before, behind;
  std::size_t arrays = 0;

  std::string name(const std::string& part) const {
    const std::string head = before.size() == 1 ? *before.begin() : name_pattern(*before.begin());
    return head + part + (behind.size() == 1 ? *behind.begin() : behind.begin()->substr(0, 1) + "*");
  }
};

}  // namespace

std::int64_t resemblance_bytes(const std::vector<ArrayPair>& pairs) {
  return 2 * std::ssize(pairs) * static_cast<std::int64_t>(sizeof(Fingerprint));
}

std::vector<ArrayMove> resembling_arrays(const std::vector<ArrayPair>& pairs,
                                         const std::vector<bool>& differing) {
  struct OfShape {
    std::vector<std::size_t> differing, all;
    std::vector<Fingerprint> actual, expected;  // of these
  };
  std::map<Shape, OfShape> shapes;
  for (std::size_t p = 0; p < pairs.size(); ++p)
    if (differing[p] && element_count(pairs[p].actual.shape) >= kFewestElements)
      shapes[pairs[p].actual.shape].differing.push_back(p);
  for (std::size_t p = 0; p < pairs.size(); ++p)
    if (const auto found = shapes.find(pairs[p].expected.shape);
        pairs[p].why.empty() && found != shapes.end())
      found->second.all.push_back(p);
  std::vector<ArrayMove> moves;
  for (auto& [shape, of] : shapes) {
    for (const std::size_t p : of.differing) of.actual.push_back(fingerprint_of(*pairs[p].open_actual()));
    for (const std::size_t p : of.all) of.expected.push_back(fingerprint_of(*pairs[p].open_expected()));
    std::vector<std::size_t> source(of.differing.size());
    core::parallel_for(std::ssize(source), 20.0 * static_cast<double>(source.size() * of.all.size()),
                       [&, &group = of](std::int64_t i) {
                         const auto d = static_cast<std::size_t>(i);
                         double least = 0.1, next = std::numeric_limits<double>::infinity();
                         source[d] = group.differing[d];
                         for (std::size_t c = 0; c < group.all.size(); ++c) {
                           const double apart = distance(group.actual[d], group.expected[c]);
                           if (apart < least)
                             next = least, least = apart, source[d] = group.all[c];
                           else
                             next = std::min(next, apart);
                         }
                         if (next <= 8 * least)
                           source[d] = group.differing[d];  // equally near: unknown which
                       });
    for (std::size_t d = 0; d < source.size(); ++d)
      if (source[d] != of.differing[d]) moves.push_back({of.differing[d], source[d]});
  }
  std::sort(moves.begin(), moves.end(),
            [](const ArrayMove& x, const ArrayMove& y) { return x.pair < y.pair; });
  return moves;
}

Table table_of(const std::vector<ArrayMove>& moves, const std::vector<ArrayPair>& pairs) {
  using Key = std::array<std::string, 4>;  // pattern of what is before, kind, to, from
  std::map<std::size_t, std::size_t> source;
  for (const ArrayMove& move : moves) source[move.pair] = move.from;
  std::map<Key, MovedNames> rows;
  std::vector<Key> order;
  for (const auto& [pair, from] : source) {
    const auto back = source.find(from);
    const bool is_exchange = back != source.end() && back->second == pair;
    if (is_exchange && from < pair) continue;
    const NameChange change = change_of(pairs[pair].name, pairs[from].name);
    const Key key{name_pattern(change.before),
                  is_exchange            ? "exchanged"
                  : back == source.end() ? "repeated"
                                         : "permuted",
                  change.to, change.from};
    MovedNames& row = rows[key];
    if (row.arrays++ == 0) order.push_back(key);
    row.before.insert(change.before), row.behind.insert(change.behind);
  }
  Table table{"moved_arrays",
              "arrays that hold what belongs to others",
              {{"kind", "kind"}, {"count", "arrays", Unit::count}, {"text", "what it is"}},
              {}};
  std::stable_sort(order.begin(), order.end(), [&](const Key& x, const Key& y) {
    return natural_less(rows.at(x).name(x[2]), rows.at(y).name(y[2]));
  });
  for (const Key& key : order) {
    const auto& [pattern, kind, to, from] = key;
    const MovedNames& row = rows.at(key);
    const std::string x = printable(row.name(to)), y = printable(row.name(from));
    const bool is_exchange = kind == "exchanged";
    table.rows.push_back({kind, static_cast<std::int64_t>(row.arrays * (is_exchange ? 2 : 1)),
                          is_exchange ? fmt::format("{} and {} are exchanged", x, y)
                                      : fmt::format("{} holds what belongs to {}", x, y)});
  }
  return table;
}

}  // namespace ejk::verify
