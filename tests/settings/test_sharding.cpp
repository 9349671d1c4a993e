// Corrected shardings: golden cases, reasons, and per-device shapes against a plain count.
#include "ejk/program/sharding.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

PartitionSpec spec_of(const nlohmann::json& json) {
  PartitionSpec spec;
  for (const auto& entry : json) {
    SpecEntry one;
    if (entry.is_object())
      one.kind = SpecEntry::Kind::unconstrained;
    else if (entry.is_string())
      one.axes = {entry.get<std::string>()};
    else if (entry.is_array())
      one.axes = entry.get<std::vector<std::string>>();
    spec.push_back(one);
  }
  return spec;
}

nlohmann::json json_of(const Sharding& sharding) {
  return nlohmann::json::parse(to_json(describe(sharding), {})).at("result").at("spec");
}

Sharding corrected(const Shape& shape, const std::string& spec, const std::string& mesh) {
  return get_corrected_named_sharding(shape, parse_partition_spec(spec), parse_mesh(mesh));
}

std::string failure(const Shape& shape, const std::string& spec, const std::string& mesh) {
  return plain::failure([&] { corrected(shape, spec, mesh); }, Error::Kind::usage);
}

}  // namespace

TEST_CASE("golden cases of corrected shardings") {
  const auto cases = golden::load("get_corrected_named_sharding");
  CHECK(cases.size() == 23);
  for (const golden::Case& c : cases) {
    CAPTURE(c.name);
    Mesh mesh;
    for (const auto& [name, size] : c.params.at("mesh").items()) mesh.push_back({name, size});
    const auto call = [&] {
      return get_corrected_named_sharding(c.params.at("shape").get<Shape>(), spec_of(c.params.at("spec")),
                                          mesh);
    };
    if (c.is_error)
      CHECK_THROWS_AS(call(), Error);
    else
      CHECK(json_of(call()) == nlohmann::json::parse(c.texts.at("spec")));
  }
}

TEST_CASE("each correction says what was dropped and why") {
  const Shape shape{8, 1022, 512};
  const Sharding s = corrected(shape, "(dp,tp), mp, UNCONSTRAINED, dp", "dp=2,mp=4");
  CHECK(s.spec.empty());
  REQUIRE(s.corrections.size() == 4);
  CHECK(to_string(s.corrections[0], s) == "the mesh has no axis tp");
  CHECK(to_string(s.corrections[1], s) == "1022 is not a multiple of mp = 4");
  CHECK(to_string(s.corrections[2], s) == "neither an axis nor a tuple of axes");
  CHECK(to_string(s.corrections[3], s) == "the array has 3 dimensions");
  CHECK(s.local_shape == shape);
  CHECK(s.copies == 8);
}

TEST_CASE("an axis used twice in what remains is named with its dimensions") {
  CHECK(failure({8, 8}, "dp,dp", "dp=2") == "axis dp is used twice: in dimensions 0 and 1");
  CHECK(failure({8, 8}, "(dp,dp)", "dp=2") == "dimension 0: axis dp is used twice in (dp,dp)");
  CHECK(failure({8, 8}, "(dp,mp),(tp,mp)", "dp=2,mp=2,tp=2") ==
        "axis mp is used twice: in dimensions 0 and 1");
  CHECK(failure({7, 8}, "dp,dp", "dp=2") == "no error");
  CHECK(failure({8, 8}, "dp,dp", "mp=2") == "no error");
}

TEST_CASE("specs are read as people and Python write them") {
  const auto text = [](const std::string& word) { return to_string(parse_partition_spec(word)); };
  CHECK(text("dp,None,(mp,tp)") == "dp,None,(mp,tp)");
  CHECK(text(" P( 'dp' , None, (\"mp\", 'tp') ) ") == "dp,None,(mp,tp)");
  CHECK(text("PartitionSpec('dp',)") == "dp");
  CHECK(text("P()") == "P()");
  CHECK(text("") == "P()");
  CHECK(text("(dp),(dp,),()") == "dp,dp,None");
  CHECK(text("P,PartitionSpec") == "P,PartitionSpec");
  CHECK(text("null,none,P.UNCONSTRAINED") == "None,None,UNCONSTRAINED");
  for (const char* word :
       {",", "dp,,mp", "(dp", "dp)", "P(dp", "P(dp)x", "'dp", "(dp,(mp))", "(None)", "''", "dp mp"})
    CHECK_THROWS_AS_MESSAGE(parse_partition_spec(word), Error, word);
}

TEST_CASE("the text of a spec is read back as the same spec, whatever its axes are called") {
  for (const std::string axis : {"dp", "d,p", "o'k", "None", "null", "x.UNCONSTRAINED", "a b", "(", "P("}) {
    CAPTURE(axis);
    const PartitionSpec spec{{{axis}}, {}, {{"mp", axis}}, {{}, SpecEntry::Kind::unconstrained}};
    CHECK(parse_partition_spec(to_string(spec)) == spec);
  }
  CHECK(to_string(parse_partition_spec("'dp', ('d,p', 'mp')")) == "dp,('d,p',mp)");
}

TEST_CASE("a mesh has names and sizes, each once") {
  CHECK(parse_mesh("dp=2, mp = 4").size() == 2);
  CHECK(parse_mesh("").empty());
  for (const char* word :
       {"dp", "dp=", "=2", "dp=0", "dp=-1", "dp=2,dp=2", "dp=2;mp=4", "dp=x", "a=4294967296,b=4294967296"})
    CHECK_THROWS_AS_MESSAGE(parse_mesh(word), Error, word);
}

TEST_CASE("sizes near the end of 64 bits neither wrap around nor divide by accident") {
  // (dp,dp) asks for 2^64 shards, which no product of 64 bits holds.
  CHECK(failure({8, 8}, "(dp,dp),None", "dp=4294967296") == "no error");
  CHECK(failure({0, 8}, "(dp,dp),None", "dp=4294967296") != "no error");
  const Sharding s = corrected({INT64_MAX}, "dp", "dp=7");
  CHECK(s.local_shape == Shape{INT64_MAX / 7});
}

TEST_CASE("the parts that the devices hold cover the array, each as often as there are copies") {
  std::mt19937_64 random(5);
  const std::vector<std::string> names{"a", "b", "c", "missing"};
  for (int n = 0; n < 300; ++n) {
    Mesh mesh;
    for (std::size_t i = 0; i < 3; ++i)
      mesh.push_back({names[i], 1 + static_cast<std::int64_t>(random() % 4)});
    Shape shape;
    PartitionSpec spec;
    for (std::uint64_t d = random() % 4; d-- > 0;) shape.push_back(static_cast<std::int64_t>(random() % 13));
    for (std::uint64_t d = random() % 4; d-- > 0;) {
      SpecEntry entry;
      for (std::uint64_t k = random() % 3; k-- > 0;) entry.axes.push_back(names[random() % names.size()]);
      spec.push_back(entry);
    }
    Sharding s;
    try {
      s = get_corrected_named_sharding(shape, spec, mesh);
    } catch (const Error&) {
      continue;
    }
    const nlohmann::json result =
        nlohmann::json::parse(to_json(describe(s, DType::bfloat16), {})).at("result");
    REQUIRE(result.at("parts").size() == static_cast<std::size_t>(s.devices));
    std::map<std::string, std::int64_t> held;
    for (const auto& row : result.at("parts")) ++held[row.at("part").get<std::string>()];
    std::int64_t parts = 1;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (s.local_shape[d] > 0) parts *= shape[d] / s.local_shape[d];
    if (element_count(shape) > 0) CHECK(static_cast<std::int64_t>(held.size()) == parts);
    if (element_count(shape) > 0)
      for (const auto& part : held) CHECK(part.second == s.copies);
    CHECK(result.at("local_bytes") == 2 * element_count(s.local_shape));
    CHECK(result.at("asked_bytes").get<std::int64_t>() <= result.at("local_bytes").get<std::int64_t>());
    CHECK(result.at("corrections") == s.corrections.size());
  }
}
