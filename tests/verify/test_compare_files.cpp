// Comparison of array sets: pairs by name, by maps and in the order of layers, links, unsupported types.
#include "ejk/compare_files.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "io/support.hpp"
#include "support/arrays.hpp"

using namespace ejk;

namespace {

ArraySet set_of(const std::string& name, const std::vector<std::pair<std::string, Array*>>& arrays) {
  ArraySet set{name, true, {}};
  for (const auto& [array, of] : arrays)
    set.arrays.push_back(
        {array, fmt::format("{}:{}", name, array), [of = of] { return make_source(of->view()); }});
  return set;
}

std::vector<std::string> names_of(const FilesPlan& plan) {
  std::vector<std::string> names;
  for (const ArrayPair& pair : plan.pairs())
    names.push_back(pair.name + (pair.why.empty() ? "" : " " + pair.why));
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("arrays of two sets are paired by name, by a map, in bytes' or in natural order") {
  Array x = plain::filled(DType::float32, {3}, 1), y = plain::filled(DType::float32, {3}, 2),
        z = plain::filled(DType::float32, {4}, 1);
  const ArraySet a = set_of("a", {{"l.2", &x}, {"l.10", &x}, {"w", &x}, {"z", &x}});
  const ArraySet e = set_of("e", {{"l.2", &y}, {"l.10", &x}, {"v", &x}, {"z", &z}});
  CHECK(names_of(FilesPlan(a, e)) == Names{"l.10", "l.2", "v only in e", "w only in a", "z"});
  CHECK(names_of(FilesPlan(a, e, {.maps = {NameMap("w*=v*")}, .in_layers = true})) ==
        Names{"l.2", "l.10", "w", "z"});
  const FilesPlan plan(a, e);
  CHECK(plan.bytes() == 4 * 3 * 4);
  std::int64_t last = 0;
  const FilesComparison files = plan.run({}, 0, [&](std::int64_t done, std::int64_t all) {
    CHECK(all == 6);
    CHECK(done > last);
    last = done;
  });
  CHECK_FALSE(files.close);
  CHECK(files.found[0].comparison.close);
  CHECK(files.found[1].comparison.largest_absolute->amount == 1);
  CHECK_FALSE(files.found[4].comparison.same_shape());
  CHECK(FilesPlan(a, a).run().close);
}

TEST_CASE("names that become one, maps without a match and one array beside several are errors") {
  Array x = plain::filled(DType::float32, {3}, 1);
  const ArraySet a = set_of("a", {{"p", &x}, {"q", &x}});
  ArraySet one = set_of("one", {{"p", &x}});
  one.is_whole = false;
  const auto error = [&](Error::Kind kind, const ArraySet& e, std::vector<NameMap> maps) {
    return test::error_of(kind, [&] { FilesPlan(a, e, {.maps = std::move(maps)}); });
  };
  CHECK(error(Error::Kind::usage, a, {NameMap("p*=q*")}) == "p and q both become q");
  CHECK(error(Error::Kind::usage, a, {NameMap("z*=q*")}) ==
        "no array of a is called z*\nhint: one is called p");
  CHECK(error(Error::Kind::input, one, {}) ==
        "a holds 2 arrays, and one is one\nhint: name one of them, as in a:p");
}

TEST_CASE("links of one name with other targets are a difference, unless broken ones are followed") {
  Array x = plain::filled(DType::float32, {3}, 1);
  ArraySet a = set_of("a", {{"x", &x}}), e = a;
  a.links = {{"soft", {"x", "x"}}, {"out", {"f:/y", "/1/f:/y", true}}, {"here", {"x", "x"}}};
  e.links = {{"soft", {"y", "y"}}, {"out", {"f:/y", "/2/f:/y", true}}, {"there", {"x", "x"}}};
  CHECK(names_of(FilesPlan(a, e)) == Names{"x", "out not followed: a link to /1/f:/y against one to /2/f:/y",
                                           "soft a link to x against one to y"});
  CHECK(FilesPlan(a, e, {.follow_links = true}).pairs().size() == 2);
  CHECK_FALSE(FilesPlan(a, e).run().close);
}

TEST_CASE("an array of a type that is not supported is not compared, and all else that fails is an error") {
  Array x = plain::filled(DType::float32, {3}, 1);
  const auto plan_with = [&](Error::Code code) {
    ArraySet a = set_of("a", {{"x", &x}});
    a.arrays[0].open = [code]() -> std::shared_ptr<const ArraySource> {
      throw Error(Error::Kind::input, "x: why", code);
    };
    return FilesPlan(a, set_of("e", {{"x", &x}}));
  };
  CHECK(names_of(plan_with(Error::Code::unsupported)) == Names{"x not compared: x: why"});
  CHECK_THROWS_AS(plan_with(Error::Code::other), Error);
}
