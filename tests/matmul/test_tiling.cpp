// Tiling tables: lookups, and errors with their line number.
#include "ejk/grouped_matmul.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace ejk;

namespace {

std::string failure(const std::string& text) {
  try {
    TilingTable::parse(text);
  } catch (const Error& error) {
    CHECK(error.kind() == Error::Kind::input);
    CHECK(error.hint().find("m k n tm tk tn") != std::string::npos);
    return error.message();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the first line of a tiling table that fits is taken, and * fits anything") {
  const TilingTable table = TilingTable::parse(
      "# measured\n"
      "\n"
      "  4096 1024 512  128 256 64   # this shape\r\n"
      "4096\t1024 *  64 256 64\n"
      "0 * * 1 1 1\n"
      "* 1024 512 32 32 32\n"
      "4096 1024 512 9 9 9");
  CHECK(table.rows().size() == 5);
  const auto check = [&](std::int64_t m, std::int64_t k, std::int64_t n, std::int64_t line, std::int64_t tm,
                         std::int64_t tk, std::int64_t tn) {
    const TilingTable::Row* row = table.find(m, k, n);
    REQUIRE(row != nullptr);
    CHECK(row->line == line);
    CHECK(row->tiling.tm == tm);
    CHECK(row->tiling.tk == tk);
    CHECK(row->tiling.tn == tn);
  };
  check(4096, 1024, 512, 3, 128, 256, 64);
  check(4096, 1024, 513, 4, 64, 256, 64);
  check(0, 7, 8, 5, 1, 1, 1);
  check(1, 1024, 512, 6, 32, 32, 32);
  CHECK(table.find(1, 1024, 513) == nullptr);
}

TEST_CASE("a tiling table may be empty") {
  CHECK(TilingTable::parse("").rows().empty());
  CHECK(TilingTable::parse("# nothing\n\n \t\r\n").find(1, 1, 1) == nullptr);
}

TEST_CASE("a bad line of a tiling table is refused with its number and the word at fault") {
  CHECK(failure("* * * 1 1\n") == "line 1: 5 words, not six");
  CHECK(failure("\n# x\n7") == "line 3: 1 word, not six");
  CHECK(failure("1 1 1 1 1 1 1") == "line 1: 7 words, not six");
  CHECK(failure("1 1 1 1 1 1\n1 1 1 1 0 1\n") == "line 2: tk is '0', not a whole number of at least 1");
  CHECK(failure("1 -1 1 1 1 1") == "line 1: k is '-1', not a whole number of at least 0 or *");
  CHECK(failure("1 1 1.5 1 1 1") == "line 1: n is '1.5', not a whole number of at least 0 or *");
  CHECK(failure("1 1 1 * 1 1") == "line 1: tm is '*', not a whole number of at least 1");
  CHECK(failure("1 1 1 1 1 99999999999999999999") ==
        "line 1: tn is 99999999999999999999, which is beyond 64 bits");
  CHECK(failure(std::string("1 1 1 1 1 \x01\0", 12)).find("\\x01\\x00") != std::string::npos);
}
