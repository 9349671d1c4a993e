// Golden cases of attention through the program, from file to file.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "ejk/io.hpp"
#include "support/golden_attention.hpp"
#include "support/shell.hpp"

using namespace ejk;

namespace {

// A case's inputs in a file whose bfloat16 is bfloat16, and the words that name them.
std::string write_inputs(const golden::Case& c, const std::string& file, bool gradient) {
  std::vector<NamedArray> arrays;
  for (const auto& entry : c.in)
    arrays.push_back({entry.first, make_source(entry.second.view(), entry.first)});
  write_arrays(parse_reference(file), arrays);
  const auto reference = [&](const char* name) { return fmt::format("'{}:{}'", file, name); };
  std::string words = gradient ? "attention-grad" : "attention";
  for (const char* name : {"q", "k", "v"}) words += " " + reference(name);
  if (gradient) words += " " + reference("dout");
  if (c.in.contains("mask")) words += " " + reference("mask");
  const auto two = [&](const char* option, const char* q, const char* kv) {
    if (!c.in.contains(q)) return;
    words += fmt::format(" {} {}", option, reference(q));
    if (c.in.contains(kv)) words += "," + reference(kv);
  };
  two("--cu-seqlens", "cu_seqlens_q", "cu_seqlens_k");
  two("--segment-ids", "q_segment_ids", "kv_segment_ids");
  if (c.in.contains("bias")) words += " --bias " + reference("bias");
  for (const char* number : {"scale", "softcap"})
    if (!c.params.at(number).is_null()) words += fmt::format(" --{} {}", number, c.params.at(number).dump());
  for (const auto& mask : c.params.at("masks"))
    words += fmt::format(" --mask '{}'", golden::expression_of(mask));
  const std::string layout = c.params.at("layout");
  if (layout != "bshd" && layout != "thd") words += " --layout " + layout;
  return words;
}

template <class Check>
void check_family(const std::string& family, bool gradient, std::size_t first, Check&& check) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ejk_attention_{}", getpid());
  std::filesystem::create_directory(folder);
  const auto cases = golden::load(family);
  for (std::size_t i = first; i < cases.size(); i += 3) {
    const golden::Case& c = cases[i];
    CAPTURE(c.name);
    const char* const kind = i % 2 == 0 ? "h5" : "npz";
    const std::string words = write_inputs(c, folder / fmt::format("in{}.{}", i, kind), gradient);
    CAPTURE(words);
    const std::string out = folder / fmt::format("out{}.h5", i);
    const int status = test::status_of_program(fmt::format("{} --check -o '{}'", words, out));
    if (c.is_error) {
      CHECK(status == 3);
      CHECK_FALSE(std::filesystem::exists(out));
      continue;
    }
    REQUIRE(status == 0);
    check(c, out);
  }
  std::filesystem::remove_all(folder);
}

Array read_array(const std::string& file, const char* name) {
  return read_all(*open_array(fmt::format("{}:/{}", file, name)));
}

}  // namespace

TEST_CASE("the program gives the golden results of attention") {
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}})
    check_family("attention", false, first, [](const golden::Case& c, const std::string& out) {
      CHECK(golden::forward_difference(c, read_array(out, "out"), read_array(out, "lse")) == "");
    });
}

TEST_CASE("the program gives the golden gradients of attention") {
  for (const std::size_t first : {std::size_t{1}, std::size_t{2}})
    check_family("attention_grad", true, first, [](const golden::Case& c, const std::string& out) {
      CHECK(golden::gradient_difference(c, read_array(out, "dq"), read_array(out, "dk"),
                                        read_array(out, "dv")) == "");
    });
}
