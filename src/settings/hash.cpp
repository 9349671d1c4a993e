// Stable JSON: members are sorted by the bytes of their UTF-8 names, whose order is that of the code points.
//
// tests: tests/settings/test_hash.cpp
#include "ejk/program/hash.hpp"

#include <algorithm>
#include <numeric>

#include "core/json.hpp"
#include "settings/digest.hpp"

namespace ejk {

namespace {

using Object = JsonValue::Object;
using List = JsonValue::List;

struct StableJson {
  Convention convention;
  core::JsonWriter out{core::JsonStyle::stable};

  void write(const JsonValue& value) {
    std::visit([&](const auto& v) { put(v); }, value.value);
  }

  void put(std::monostate) { out.null(); }
  void put(const JsonValue::Integer& v) { out.raw(v.digits); }
  template <class T>
  void put(const T& v) {
    out.put(v);
  }

  void put(const List& items) {
    out.list([&] {
      for (const JsonValue& item : items) write(item);
    });
  }

  void put(const Object& members) {
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return members[a].first < members[b].first; });
    out.object([&] {
      for (std::size_t i = 0; i < order.size(); ++i) {
        const auto& [name, value] = members[order[i]];
        if (i + 1 < order.size() && members[order[i + 1]].first == name) continue;
        out.key(name);
        write(value);
      }
    });
  }

  void put(const JsonValue::Leaf& leaf) {
    out.object([&] {
      if (convention == Convention::document)
        out.key("_type").put(leaf.kind == JsonValue::Leaf::Kind::array ? "array" : "shape_dtype");
      out.key("dtype").put(name_of(leaf.dtype));
      out.key("shape").put(leaf.shape);
    });
  }
};

}  // namespace

JsonValue abstractify(JsonValue value) {
  if (auto* leaf = std::get_if<JsonValue::Leaf>(&value.value))
    leaf->kind = JsonValue::Leaf::Kind::shape_dtype;
  if (auto* items = std::get_if<List>(&value.value))
    for (JsonValue& item : *items) item = abstractify(std::move(item));
  if (auto* members = std::get_if<Object>(&value.value))
    for (auto& member : *members) member.second = abstractify(std::move(member.second));
  return value;
}

std::string stable_json(const JsonValue& value, Convention convention) {
  StableJson json{convention};
  json.write(value);
  return json.out.take();
}

std::string short_hash(const JsonValue& value, Convention convention) {
  return settings::sha256_hex(stable_json(value, convention)).substr(0, 16);
}

}  // namespace ejk
