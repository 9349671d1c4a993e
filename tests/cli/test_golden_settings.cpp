// Golden cases of the settings through the program: from files and words to text and JSON.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "io/support.hpp"
#include "support/golden.hpp"
#include "support/shell.hpp"

namespace {

ejk::test::Printed answer_to(const std::string& arguments) {
  return ejk::test::shell(fmt::format("'{}' {} 2>/dev/null", EJK_PROGRAM, arguments));
}

// A file of that text, as a word of the shell.
std::string written(const ejk::test::Folder& folder, const std::string& name, const std::string& text) {
  ejk::test::put(folder / name, text);
  return fmt::format("'{}'", folder / name);
}

// A spec as the program takes it.
std::string words_of(const nlohmann::json& spec) {
  std::string words;
  for (const auto& entry : spec) {
    std::string word;
    if (entry.is_array()) {
      for (const auto& axis : entry) word += (word.empty() ? "(" : ",") + axis.get<std::string>();
      word += entry.empty() ? "()" : ")";
    } else {
      word = entry.is_string() ? entry.get<std::string>() : entry.is_null() ? "None" : "UNCONSTRAINED";
    }
    words += (words.empty() ? "" : ",") + word;
  }
  return words;
}

}  // namespace

TEST_CASE("golden cases of parameters through the program") {
  const ejk::test::Folder folder;
  for (const golden::Case& c : golden::load("params")) {
    CAPTURE(c.name);
    const nlohmann::json& p = c.params;
    const std::string a = written(folder, "a.json", p.at("a").dump());
    std::string words = "params to-dict " + a;
    if (p.at("op") == "merge")
      words = "params merge " + a + " " + written(folder, "b.json", p.at("b").dump());
    if (p.at("op") == "bwd_from_fwd")
      words = fmt::format("params backward {} --scale {}", a, p.at("scale").dump());
    else
      words += " --kind " + p.at("kind").get<std::string>();
    const ejk::test::Printed printed = answer_to(words);
    CHECK(printed.status == (c.is_error ? 3 : 0));
    CHECK(printed.text == (c.is_error ? "" : c.texts.at("json") + "\n"));
  }
  for (const golden::Case& c : golden::load("select_num_warps")) {
    CAPTURE(c.name);
    const ejk::test::Printed printed =
        answer_to(fmt::format("params warps --q-block {} --kv-block {} --head-dim {} --dtype {}",
                              c.params.at("q_block").dump(), c.params.at("kv_block").dump(),
                              c.params.at("head_dim").dump(), c.params.at("dtype").get<std::string>()));
    CHECK(printed.status == (c.is_error ? 2 : 0));
    if (!c.is_error)
      CHECK(printed.text == fmt::format("{}\n", c.out.at("num_warps").elements<std::int64_t>()[0]));
  }
  for (const golden::Case& c : golden::load("select_num_stages")) {
    CAPTURE(c.name);
    const ejk::test::Printed printed =
        answer_to(fmt::format("params stages --smem-bytes {} --smem-limit {}",
                              c.params.at("smem_bytes").dump(), c.params.at("smem_limit").dump()));
    CHECK(printed.text == fmt::format("{}\n", c.out.at("num_stages").elements<std::int64_t>()[0]));
  }
}

TEST_CASE("golden cases of hashes through the program") {
  const ejk::test::Folder folder;
  const auto texts = golden::load("stable_json"), hashes = golden::load("short_hash");
  for (std::size_t n = 0; n < texts.size(); ++n) {
    const golden::Case& c = texts[n];
    CAPTURE(c.name);
    REQUIRE(c.name == hashes[n].name);
    if (!c.in.empty()) continue;  // no file says "this member is an array"
    const std::string file = written(folder, "value.json", c.params.at("json_text"));
    const ejk::test::Printed text = answer_to("hash --canonical " + file), hash = answer_to("hash " + file);
    CHECK(text.status == (c.is_error ? 3 : 0));
    CHECK(text.text == (c.is_error ? "" : c.texts.at("stable_json") + "\n"));
    CHECK(hash.text.substr(0, 16) == (c.is_error ? "" : hashes[n].texts.at("short_hash")));
  }
}

TEST_CASE("golden cases of corrected shardings through the program") {
  for (const golden::Case& c : golden::load("get_corrected_named_sharding")) {
    CAPTURE(c.name);
    std::string shape, mesh;
    for (const auto& length : c.params.at("shape")) shape += (shape.empty() ? "" : ",") + length.dump();
    for (const auto& [name, size] : c.params.at("mesh").items())
      mesh += (mesh.empty() ? "" : ",") + name + "=" + size.dump();
    const ejk::test::Printed printed = answer_to(fmt::format(
        "sharding --json --shape '{}' --spec '{}' --mesh '{}'", shape, words_of(c.params.at("spec")), mesh));
    CHECK(printed.status == (c.is_error ? 2 : 0));
    if (!c.is_error)
      CHECK(nlohmann::json::parse(printed.text).at("result").at("spec") ==
            nlohmann::json::parse(c.texts.at("spec")));
  }
}
