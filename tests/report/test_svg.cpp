// Pictures as SVG: one rectangle per contiguous range of blocks; names cannot close their element.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "ejk/error.hpp"
#include "report/drawing.hpp"
#include "report/pictures.hpp"

using namespace ejk;

namespace {

// The cells that the path of a state covers: of "M x y h w v h h -w z" each rectangle, one after the other.
std::vector<int> covered(const std::string& svg, char letter, std::int64_t rows, std::int64_t columns) {
  std::vector<int> cells(static_cast<std::size_t>(rows * columns));
  std::smatch path;
  if (!std::regex_search(
          svg, path, std::regex(R"(<path class="cell-)" + std::string(1, letter) + R"svg(" d="([^"]*)")svg")))
    return cells;
  const std::string data = path[1];
  const std::regex rectangle(R"(M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z)");
  std::size_t used = 0;
  for (std::sregex_iterator at(data.begin(), data.end(), rectangle), end; at != end; ++at) {
    used += static_cast<std::size_t>(at->length());
    const auto number = [&](std::size_t n) { return std::stoll((*at)[n]); };
    REQUIRE(number(3) == number(5));
    for (std::int64_t r = number(2); r < number(2) + number(4); ++r)
      for (std::int64_t c = number(1); c < number(1) + number(3); ++c)
        ++cells.at(static_cast<std::size_t>(r * columns + c));
  }
  REQUIRE(used == data.size());
  return cells;
}

}  // namespace

TEST_CASE("every block is drawn once, in its state's path") {
  std::mt19937 random(7);
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 13}, {40, 3}}) {
    std::vector<std::uint8_t> states(static_cast<std::size_t>(rows * columns));
    for (auto& state : states) state = static_cast<std::uint8_t>(random() % 3);
    const std::string svg = to_svg(picture_of(rows, columns, states), "");
    const auto partial = covered(svg, 'P', rows, columns), full = covered(svg, 'F', rows, columns);
    for (std::size_t n = 0; n < states.size(); ++n) {
      CHECK(partial[n] == (states[n] == 1));
      CHECK(full[n] == (states[n] == 2));
    }
  }
}

TEST_CASE("equal blocks are one rectangle, however many they are") {
  const std::string svg = to_svg(picture_of(512, 512, std::vector<std::uint8_t>(512 * 512, 2)), "");
  CHECK(svg.find(R"(d="M0 0h512v512h-512z")") != std::string::npos);
  CHECK(svg.size() < 6000);
}

TEST_CASE("axes count elements, the legend blocks of the states that there are") {
  BlockPicture picture = picture_of(2, 2, {1, 0, 2, 1});
  picture.subject = "causal & documents(cu.npy)";
  picture.row_axis = {"queries", 128, 250, "tokens"};
  picture.column_axis = {"keys", 256, 512};
  const std::string svg = to_svg(picture, "ejk mask-info m.npy");
  for (const char* text :
       {">queries, in tokens<", ">keys<", ">128<", ">250<", ">512<", ">empty 1<", ">partial 2<", ">full 1<",
        "<desc>ejk mask-info m.npy</desc>", ">causal &amp; documents(cu.npy)<",
        ">2 x 2 blocks of 128 x 256, 25 % skipped<", R"(<path class="line" d="M0 1h2M1 0v2"/>)"})
    CHECK_MESSAGE(svg.find(text) != std::string::npos, text);
  const std::string of_full = to_svg(picture_of(2, 2, {2, 2, 2, 2}), "");
  CHECK(of_full.find(">full 4<") != std::string::npos);
  for (const char* text : {">empty 0", ">partial 0"}) CHECK(of_full.find(text) == std::string::npos);
}

TEST_CASE("a long expression is cut in the middle, where many blocks are no line is between them") {
  BlockPicture picture = picture_of(100, 100, std::vector<std::uint8_t>(10'000, 2));
  picture.subject = "causal & documents(" + std::string(200, 'a') + ") & local(64, 0)";
  const std::string svg = to_svg(picture, "");
  CHECK(svg.find(">causal &amp; documents(aaaaa") != std::string::npos);
  CHECK(svg.find("aa ... aa") != std::string::npos);
  CHECK(svg.find("aaa) &amp; local(64, 0)<") != std::string::npos);
  CHECK(svg.find(R"(class="line")") == std::string::npos);
}

TEST_CASE("a picture of few tiles across is no sliver") {
  std::vector<std::uint8_t> states(64 * 2);
  states[3] = 1;
  BlockPicture picture = picture_of(64, 2, states);
  picture.row_axis = {"queries", 64, 4096, "tokens"};
  picture.column_axis = {"heads", 1, 2};
  CHECK(report::plot_size(picture, 640) == std::pair(160.0, 640.0));
}

TEST_CASE("blocks with missing and extra pairs have colours and marks of their own") {
  BlockPicture picture = picture_of(2, 2, {3, 4, 2, 2});
  picture.marked_names = {"missing", "extra"};
  const std::string svg = to_svg(picture, "");
  for (const char* text : {">missing 1<", ">extra 1<", R"(id="X")", R"(id="O")", "M2 2L8 8", "M5 1.5L5 8.5"})
    CHECK_MESSAGE(svg.find(text) != std::string::npos, text);
  CHECK(covered(svg, 'X', 2, 2) == std::vector{1, 0, 0, 0});
  CHECK(covered(svg, 'O', 2, 2) == std::vector{0, 1, 0, 0});
}

TEST_CASE("a long label of the last column's tick lies within the picture") {
  BlockPicture picture = picture_of(1, 1, {2});
  picture.row_axis = {"queries", 1'000'000'000, 1'000'000'000};
  picture.column_axis = {"keys", 1 << 30, 1 << 30};
  const std::string svg = to_svg(picture, "");
  std::smatch label, width;
  REQUIRE(std::regex_search(
      svg, label, std::regex(R"re(x="([0-9.]+)" y="[0-9.]+" text-anchor="middle">1,073,741,824<)re")));
  REQUIRE(std::regex_search(svg, width, std::regex(R"re(width="([0-9.]+)")re")));
  CHECK(std::stod(label[1]) + 7 * 13 / 2.0 <= std::stod(width[1]));
}

TEST_CASE("more than a million shapes are refused") {
  std::vector<std::uint8_t> states(2048 * 2048);
  for (std::size_t n = 0; n < states.size(); ++n) states[n] = (n + n / 2048) % 2 == 0 ? 0 : 2;
  CHECK_THROWS_WITH_AS(to_svg(picture_of(2048, 2048, states), ""),
                       "the picture has more than 1,000,000 shapes: a PNG holds it", Error);
}

TEST_CASE("names are escaped, control characters and marks of direction written out") {
  CHECK(report::escaped(R"(a<b>&"')") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(report::escaped("x\x01\n") == "x\\x01\\x0a");
  CHECK(report::escaped("a\u202eb") == "a\\xe2\\x80\\xaeb");
  CHECK(report::escaped("\u00e4\u4e2d") == "\u00e4\u4e2d");
  CHECK(report::escaped("abcdef", 3) == "abc...");
  BlockPicture picture = picture_of(1, 1, {1});
  picture.title = "</title></svg><script>alert(1)</script>";
  picture.row_axis = {"<b>", 1, 1};
  const std::string svg = to_svg(picture, "--><script>");
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find("<b>") == std::string::npos);
}
