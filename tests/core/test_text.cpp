// Nearest names, sizes and foreign text in messages.
#include "ejk/program/text.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

using namespace ejk;

TEST_CASE("the nearest name is offered while two thirds of the word are right") {
  const std::vector<std::string> names{"causal", "chunked", "documents", "local"};
  CHECK(nearest_name("casual", names) == "causal");
  CHECK(nearest_name("document", names) == "documents");
  CHECK(nearest_name("lcoal", names) == "local");
  CHECK_FALSE(nearest_name("segments", names));
  CHECK_FALSE(nearest_name("x", names));
  CHECK_FALSE(nearest_name("", names));
  const std::vector<std::string> cases{"/y", "/X", "LONGEST"};
  CHECK(nearest_name("/x", cases) == "/X");
  CHECK(nearest_name("longest", cases) == "LONGEST");
  const std::vector<std::string> commands{"cdiv", "cu-seqlens", "convert", "chunk-indices", "chunk-offsets",
                                          "info", "mask-info",  "lens",    "compare",       "hash"};
  const auto offered = [&](std::string_view word) { return nearest_name(word, commands).value_or(""); };
  CHECK(offered("cu_seqlens") == "cu-seqlens");
  CHECK(offered("seqlens") == "cu-seqlens");
  CHECK(offered("covnert") == "convert");
  CHECK(offered("maskinfo") == "mask-info");
  CHECK(offered("inof") == "info");
  for (const char* word : {"diff", "help", "show", "bench", "list", "cat", "len-of"})
    CHECK_MESSAGE(offered(word).empty(), word);
}

TEST_CASE("the beginning of a single name is near it, dashes of options are not") {
  const std::vector<std::string> names{"--block", "--mask", "--mask-kind", "--dkv", "documents", "segments"};
  CHECK(nearest_name("doc", names) == "documents");
  CHECK(nearest_name("seg", names) == "segments");
  CHECK(nearest_name("--blo", names) == "--block");
  CHECK(nearest_name("--blokc", names) == "--block");
  CHECK(nearest_name("--mask-knid", names) == "--mask-kind");
  CHECK(nearest_name("--kv", names) == "--dkv");
  CHECK_FALSE(nearest_name("--k", names));
  CHECK_FALSE(nearest_name("--keep", names));
  CHECK_FALSE(nearest_name("do", names));
  CHECK_FALSE(nearest_name("sink", std::vector<std::string>{"full", "causal", "local", "chunked", "file"}));
}

TEST_CASE("a whole number may be too large for 64 bits") {
  for (const char* good : {"0", "-1", "+7", "99999999999999999999"})
    CHECK_MESSAGE(is_whole_number(good), good);
  for (const char* bad : {"", "-", "+", "1.5", " 1", "1x", "--1"}) CHECK_MESSAGE(!is_whole_number(bad), bad);
}

TEST_CASE("a whole number without a sign has all of 64 bits") {
  CHECK(ejk::parse_unsigned("18446744073709551615") == ~std::uint64_t{0});
  for (const char* bad : {"18446744073709551616", "-1", "1.5", "", " 1"})
    CHECK_MESSAGE(!ejk::parse_unsigned(bad), bad);
}

TEST_CASE("sizes are read with decimal and binary units, and never wrap around") {
  CHECK(parse_size("123") == 123);
  CHECK(parse_size("64k") == 64000);
  CHECK(parse_size("4GiB") == std::int64_t{4} << 30);
  CHECK(parse_size("4Gi") == std::int64_t{4} << 30);
  CHECK(parse_size("2MB") == 2'000'000);
  CHECK(parse_size("1.5KiB") == 1536);
  CHECK(parse_size("9223372036854775807") == INT64_MAX);
  for (const char* bad :
       {"", "x", "-1", "4 GiB", "4iB", "4GX", "9223372036854775808", "99999999TiB", "nan", "inf"})
    CHECK_MESSAGE(!parse_size(bad), bad);
}

TEST_CASE("counts and sizes are written for people") {
  CHECK(format_bytes(17) == "17 B");
  CHECK(format_bytes(1024) == "1.0 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1.0 MiB");
  CHECK(format_bytes(INT64_MAX) == "8.0 EiB");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(-123456) == "-123,456");
  CHECK(format_count(-1234567) == "-1,234,567");
}

TEST_CASE("marks of direction and ends of lines are written out") {
  for (const int c :
       {0x200E, 0x200F, 0x2028, 0x2029, 0x202A, 0x202E, 0x2066, 0x2069, 0xFEFF, 0xFFFE, 0xFFFF}) {
    const std::array<int, 3> bytes{0xE0 | c >> 12, 0x80 | (c >> 6 & 0x3F), 0x80 | (c & 0x3F)};
    std::string text, shown;
    for (const int byte : bytes) text += static_cast<char>(byte), shown += fmt::format("\\x{:02x}", byte);
    CHECK(printable("a" + text + "b") == "a" + shown + "b");
  }
  for (const char* kept : {"\u200d", "\u2010", "\u2027", "\u202f", "\u2065", "\u206a", "\ufefe", "\ufffd"})
    CHECK(printable(kept) == kept);
  CHECK(printable("\u202ea", 1) == "\\xe2\\x80\\xae...");
}

TEST_CASE("control characters and broken UTF-8 cannot reach the terminal") {
  CHECK(printable("a\x1b[31m\n") == "a\\x1b[31m\\x0a");
  CHECK(printable("\xc3\xa9") == "\xc3\xa9");
  CHECK(printable("\xc3") == "\\xc3");
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");
  CHECK(printable("\u0100\u0800\U00010000\u00e4\u4e2d") == "\u0100\u0800\U00010000\u00e4\u4e2d");
  CHECK(printable(std::string(300, 'x')) == std::string(200, 'x') + "...");
}

TEST_CASE("numbers that are whole components of a name are one in its pattern") {
  CHECK(name_pattern("layers.12.experts.3.w1") == "layers.#.experts.#.w1");
  CHECK(name_pattern("0/x[10]:7-8") == "#/x[#]:#-#");
  CHECK(name_pattern("w1.fp8_2") == "w1.fp8_2");
  CHECK(name_pattern("") == "");
}
