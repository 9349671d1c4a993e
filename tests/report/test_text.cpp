// Reports as text.
#include "ejk/report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

#include "report/picture.hpp"
#include "report/units.hpp"

using namespace ejk;

namespace {

BlockPicture picture(std::int64_t rows, std::int64_t columns, std::vector<std::uint8_t> states) {
  auto held = std::make_shared<const BlockStates>(columns, std::move(states));
  REQUIRE(held->rows() == rows);
  return {"p", "", std::move(held)};
}

}  // namespace

TEST_CASE("fields that follow each other are aligned, with units in words") {
  Report report;
  report.add("heads", "heads", std::int64_t{1}, Unit::blocks)
      .add("grid", "grid of blocks", Shape{8, 1024, 64}, Unit::blocks)
      .add("size", "size", std::int64_t{1536}, Unit::bytes)
      .add("share", "empty", 0.25, Unit::share)
      .add("yes", "dynamic", true)
      .add("none", "nothing", ReportValue{});
  CHECK(to_text(report) ==
        "heads           1 block\n"
        "grid of blocks  8 x 1,024 x 64 blocks\n"
        "size            1.5 KiB\n"
        "empty           25 %\n"
        "dynamic         yes\n"
        "nothing         -\n");
}

TEST_CASE("a count beyond what a double tells apart stays a double, below zero as above") {
  for (const double whole : {0x1p53, 0x1p63, 0x1p64, 0x1p1000}) {
    CHECK(std::get<double>(whole_number(whole)) == whole);
    CHECK(std::get<double>(whole_number(-whole)) == -whole);
  }
  CHECK(std::get<std::int64_t>(whole_number(0x1p53 - 1)) == (std::int64_t{1} << 53) - 1);
  CHECK(std::get<std::int64_t>(whole_number(1 - 0x1p53)) == 1 - (std::int64_t{1} << 53));
  CHECK(std::get<std::int64_t>(whole_number(-3)) == -3);
}

TEST_CASE("details are behind the items, and left out with a line that says so") {
  auto inner = std::make_shared<Report>();
  inner->add("b", "b", std::int64_t{2});
  inner->move_to_details();
  Report report;
  report.add("x", "x", std::int64_t{3})
      .add(Line{"verdict", "all is right"})
      .add(Section{"s", "a section", inner});
  CHECK(to_text(report) == "x  3\n\nall is right\n\na section\n  b  2\n");
  report.move_to_details([](const Report::Item& item) { return !std::holds_alternative<Field>(item); });
  CHECK(to_text(report) == "all is right\n\na section\n  b  2\n\nx  3\n");
  TextStyle brief;
  brief.details = false;
  CHECK(to_text(report, brief) == "all is right\n");
  brief.left_out = "There is more.";
  CHECK(to_text(report, brief) == "all is right\n\nThere is more.\n");
  CHECK(to_json(report, {"c"}).find(R"("result":{"verdict":"all is right","s":{"b":2},"x":3})") !=
        std::string::npos);
  CHECK(to_html(report, {"c"}).find("all is right") < to_html(report, {"c"}).find(">x<"));
}

TEST_CASE("sections are titled and indented, with an empty line between them") {
  Report report;
  report.add("a", "a", std::int64_t{1});
  auto inner = std::make_shared<Report>();
  inner->add("shape", "shape", Shape{3, 4}).add("one", "axis", Shape{3});
  report.add(Section{"s", "Arrays", inner});
  report.add(Section{"empty", "Nothing here", std::make_shared<Report>()});
  report.add(Remark{"The end."});
  CHECK(to_text(report) ==
        "a  1\n"
        "\n"
        "Arrays\n"
        "  shape  (3, 4)\n"
        "  axis   (3,)\n"
        "\n"
        "The end.\n");
}

TEST_CASE("tables have numbers at the right, text at the left, and count what they leave out") {
  Report report;
  report.add(Table{
      "t",
      "Heads",
      {{"head", "head"}, {"mask", "mask"}, {"blocks", "blocks", Unit::blocks}, {"d", "full", Unit::share}},
      {{std::int64_t{0}, "causal", std::int64_t{12345}, 0.5},
       {std::int64_t{1}, "local(3, 0)", std::int64_t{7}, 0.001},
       {std::int64_t{2}, "full", std::int64_t{7}, 1.0}},
      2});
  CHECK(to_text(report) ==
        "Heads\n"
        "  head  mask         blocks    full\n"
        "     0  causal       12,345    50 %\n"
        "     1  local(3, 0)       7  0.10 %\n"
        "  ... and 1 more\n");
}

TEST_CASE("a table wider than the window cuts names in the middle, not numbers") {
  Report report;
  report.add(
      Table{"t",
            "",
            {{"name", "name"}, {"n", "n"}},
            {{"model.layers.0.mlp.experts.up_proj.weight", std::int64_t{123456}}, {"a", std::int64_t{7}}}});
  CHECK(to_text(report, {40, false, true}) ==
        "name                                   n\n"
        "model.layers.0...up_proj.weight  123,456\n"
        "a                                      7\n");
}

TEST_CASE("text that makes a table too wide is wrapped in its column") {
  Report report;
  report.add(Table{"t",
                   "",
                   {{"n", "mask"}, {"is", "is"}, {"b", "blocks"}},
                   {{std::int64_t{0}, "causal & documents(cu_seqlens.npy)", std::int64_t{123456}},
                    {std::int64_t{1}, std::string(30, 'x') + " and more", std::int64_t{7}}}});
  CHECK(to_text(report, {40, false, true}) ==
        "mask  is                          blocks\n"
        "   0  causal &                   123,456\n"
        "      documents(cu_seqlens.npy)\n"
        "   1  xxxxxxxxxxxxxxxxxxxxxxxxx        7\n"
        "      xxxxx\n"
        "      and more\n");
}

TEST_CASE("values wider than the window are wrapped behind their labels") {
  Report report;
  report.add("means", "causal means", std::string("query i sees keys up to i + offset")).add("n", "n", true);
  CHECK(to_text(report, {40, false, true}) ==
        "causal means  query i sees keys up to i\n"
        "              + offset\n"
        "n             yes\n");
}

TEST_CASE("numbers that are not whole have two decimals, and JSON all") {
  const auto text = [](double value) { return report::with_unit(value, Unit::none); };
  CHECK(text(1048576) == "1,048,576");
  CHECK(text(95232.64) == "95,232.64");
  CHECK(text(2.984375) == "2.98");
  CHECK(text(256.5) == "256.5");
  CHECK(text(-1234.567) == "-1,234.57");
  CHECK(text(0.9999) == "1");
  CHECK(text(0.33333) == "0.333");
  CHECK(text(0) == "0");
  CHECK(text(1e20) == "1e+20");
  Report report;
  report.add("n", "n", 2.984375);
  CHECK(to_json(report, {}).find("2.984375") != std::string::npos);
}

TEST_CASE("columns for JSON alone are left out") {
  Report report;
  report.add(Table{"t",
                   "",
                   {{"a", "a"}, {"b", "b", Unit::none, true}, {"c", "c"}},
                   {{std::int64_t{1}, std::int64_t{2}, std::int64_t{3}}}});
  CHECK(to_text(report) == "a  c\n1  3\n");
  CHECK(to_json(report, {}).find("{\"a\":1,\"b\":2,\"c\":3}") != std::string::npos);
}

TEST_CASE("labels are broken where the window is narrow") {
  Report report;
  const std::int64_t n = 123456789;
  report.add(Table{"t",
                   "",
                   {{"a", "mask"}, {"b", "blocks in all"}, {"c", "elements to see"}, {"d", "more and more"}},
                   {{"causal", n, n, n}}});
  CHECK(to_text(report, {50, false, true}) ==
        "          blocks in  elements to     more and\n"
        "mask            all          see         more\n"
        "causal  123,456,789  123,456,789  123,456,789\n");
}

TEST_CASE("a percentage shows how far it is from 0 and from 100") {
  CHECK(report::percent(0) == "0 %");
  CHECK(report::percent(1) == "100 %");
  CHECK(report::percent(0.123456) == "12.3 %");
  CHECK(report::percent(0.00123456) == "0.12 %");
  CHECK(report::percent(0.000012) == "0.0012 %");
  CHECK(report::percent(0.99999) == "99.9990 %");
  CHECK(report::percent(1 - 1.0 / (1 << 24)) == "99.999994 %");
  CHECK(report::percent(1e-12) == "< 0.000001 %");
  CHECK(report::percent(1 - 1e-12) == "> 99.999999 %");
}

TEST_CASE("measures get the unit that keeps them short") {
  CHECK(report::with_unit(0.00123, Unit::seconds) == "1.23 ms");
  CHECK(report::with_unit(12.345, Unit::seconds) == "12.3 s");
  CHECK(report::with_unit(125.0, Unit::seconds) == "2 min 05 s");
  CHECK(report::with_unit(7260.0, Unit::seconds) == "2 h 01 min");
  CHECK(report::with_unit(2.5e12, Unit::flop) == "2.5 TFLOP");
  CHECK(report::with_unit(std::int64_t{12}, Unit::flop) == "12 FLOP");
  CHECK(report::with_unit(1.26e11, Unit::flop_per_second) == "126.0 GFLOP/s");
  CHECK(report::with_unit(3.0 * (1 << 30), Unit::bytes_per_second) == "3.0 GiB/s");
  CHECK(report::with_unit(1048575.0, Unit::bytes_per_second) == "1.0 MiB/s");
  CHECK(report::with_unit(999960.0, Unit::flop) == "1.0 MFLOP");
  CHECK(report::with_unit(std::int64_t{1000000}, Unit::tokens) == "1,000,000 tokens");
  CHECK(report::with_unit(std::nan(""), Unit::share) == "nan");
}

TEST_CASE("NaN has no sign") {
  const double nan = std::copysign(std::nan(""), -1.0);
  CHECK(report::with_unit(nan, Unit::share) == "nan");
  CHECK(report::with_unit(nan, Unit::none) == "nan");
  CHECK(report::with_unit(nan, Unit::seconds) == "nan");
  Report report;
  report.add(Table{"t", "", {{"a", "a", Unit::value}, {"b", "b", Unit::value}}, {{nan, 1.0}}});
  CHECK(to_text(report) == "  a  b\nnan  1\n");
}

TEST_CASE("a small picture shows every block, two characters wide") {
  Report report;
  report.add(picture(3, 3, {1, 0, 0, 2, 1, 0, 2, 2, 1}));
  CHECK(to_text(report) ==
        "▒▒····\n"
        "██▒▒··\n"
        "████▒▒\n"
        "· empty  ▒ partial  █ full; 1 cell = 1 x 1 block\n");
  CHECK(to_text(report, {80, false, false}) ==
        "pp....\n"
        "FFpp..\n"
        "FFFFpp\n"
        ". empty  p partial  F full; 1 cell = 1 x 1 block\n");
}

TEST_CASE(
    "a cell of unlike blocks is mixed, partial if one of them is, and what is left over at the edges is drawn") {
  const BlockPicture p = picture(3, 5,
                                 {0, 0, 2, 2, 1,  //
                                  0, 1, 2, 2, 1,  //
                                  0, 0, 1, 1, 0});
  const report::CellGrid grid = report::shrink(p, 2, 3);
  using enum report::CellState;
  CHECK(grid.rows_per_cell == 2);
  CHECK(grid.columns_per_cell == 2);
  CHECK(grid.cells == std::vector{partial, full, partial, empty, partial, empty});
}

TEST_CASE("one partial block in a great many full ones makes its cell partial") {
  std::vector<std::uint8_t> states(1000 * 1000, 2);
  states[999 * 1000 + 999] = 1;
  Report report;
  report.add(picture(1000, 1000, std::move(states)));
  const std::string text = to_text(report);
  CHECK(text.find("▒") != std::string::npos);
  CHECK(text.find("1 cell = 32 x 13 blocks") != std::string::npos);
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    std::size_t columns = 0;
    for (std::size_t i = begin; i < end; ++i) columns += (text[i] & 0xC0) != 0x80;
    CHECK(columns <= 80);
  }
}

TEST_CASE("a picture without blocks says so") {
  Report report;
  report.add(picture(0, 0, {}));
  CHECK(to_text(report) == "(no blocks)\n");
}

TEST_CASE("foreign text cannot steer the terminal") {
  Report report;
  report.add("n", "name", std::string("a\x1b[31m"));
  CHECK(to_text(report) == "name  a\\x1b[31m\n");
}

TEST_CASE("wide characters take two columns, and marks that join another one none") {
  Report report;
  report.add(Table{"t", "", {{"file", "file"}, {"n", "n", Unit::count}}, {}});
  auto& table = std::get<Table>(report.items.front());
  for (const char* name :
       {"模型.npy", "\u1112\uac00\uff21.npy", "e\u0301\u200d\ufe0f.npy", "\U0001f600.npy", "ab.npy"})
    table.rows.push_back({std::string(name), std::int64_t{1}});
  CHECK(to_text(report) ==
        "file        n\n"
        "模型.npy    1\n"
        "\u1112\uac00\uff21.npy  1\n"
        "e\u0301\u200d\ufe0f.npy       1\n"
        "\U0001f600.npy      1\n"
        "ab.npy      1\n");
}

TEST_CASE("names are cut where they stay different, and wrapped where they would not") {
  const auto shown = [](const std::vector<std::string>& names) {
    Table table{"t", "", {{"name", "name"}, {"n", "n"}}, {}};
    for (const std::string& name : names) table.rows.push_back({name, 1e300});
    Report report;
    report.add(table);
    return to_text(report, {40, false, true});
  };
  const std::string xs(40, 'x');
  const auto x = [&](std::size_t n) { return xs.substr(0, n); };
  const std::string header = "name" + std::string(35, ' ') + "n\n";
  CHECK(shown({xs + "ab", xs + "cb"}) ==
        header + x(15) + "..." + x(12) + "ab  1e+300\n" + x(15) + "..." + x(12) + "cb  1e+300\n");
  CHECK(shown({xs + "yyyy" + xs, xs + "zzzz" + xs}) ==
        header + x(32) + "  1e+300\n" + x(8) + "yyyy" + x(20) + "\n" + x(20) + "\n" +  //
            x(32) + "  1e+300\n" + x(8) + "zzzz" + x(20) + "\n" + x(20) + "\n");
  // Equal names are equal wherever they are cut.
  CHECK(shown({xs, xs}) ==
        header + x(15) + "..." + x(14) + "  1e+300\n" + x(15) + "..." + x(14) + "  1e+300\n");
}

TEST_CASE("a table of which no row is to be shown is not in the text") {
  Report report;
  report.add(Table{"t", "title", {{"name", "what"}}, {{std::string("a")}}, 0});
  CHECK(to_text(report).empty());
}

TEST_CASE("a name of wide characters is cut to its column") {
  Report report;
  std::string name;
  for (int i = 0; i < 40; ++i) name += "模";
  report.add(Table{"t", "", {{"file", "file"}, {"n", "n", Unit::count}}, {{name, std::int64_t{1}}}});
  std::string shown;
  for (int i = 0; i < 8; ++i) shown += "模";
  // 40 columns: 37 of the name, of which three dots and 17 on both sides, two spaces, the number.
  CHECK(to_text(report, {40, false, true}).find("\n" + shown + "..." + shown + "    1\n") !=
        std::string::npos);
}

namespace {

std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((c & 0xC0) == 0x80)
      characters.back() += c;
    else
      characters.emplace_back(1, c);
  }
  return characters;
}

// A line by columns: behind a wide character an empty one.
std::vector<std::string> columns_of(std::string_view line) {
  std::vector<std::string> columns;
  for (const std::string& character : characters_of(line)) {
    columns.push_back(character);
    if (character == "模") columns.emplace_back();
  }
  return columns;
}

std::string part_of(const std::vector<std::string>& columns, std::size_t begin, std::size_t end) {
  std::string out;
  for (std::size_t c = begin; c < std::min(end, columns.size()); ++c) out += columns[c];
  return out;
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

TEST_CASE("random tables fit 80 columns, with all text in the columns of its heading") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto word = [&](std::size_t longest) {
    static const std::vector<std::string> letters = characters_of("abcdefgh,_é模");
    std::string out;
    for (std::size_t n = 1 + below(longest); n > 0; --n) out += letters[below(letters.size())];
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    // Headings have one letter: a column begins there.
    const std::size_t columns = 2 + below(4);
    Table table{"t", "", {}, {}};
    for (std::size_t c = 0; c < columns; ++c)
      table.columns.push_back({"k", std::string(1, static_cast<char>('A' + c))});
    for (std::size_t r = 0; r < 3; ++r) {
      table.rows.emplace_back();
      for (std::size_t c = 0; c < columns; ++c) {
        std::string cell = word(50);
        for (std::size_t n = c == 0 ? 0 : below(8); n > 0; --n) cell += " " + word(20);
        table.rows.back().emplace_back(cell);
      }
    }
    Report report;
    report.add(table);
    const std::string text = to_text(report);
    CAPTURE(text);
    std::vector<std::vector<std::string>> lines;
    for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      lines.push_back(columns_of(std::string_view(text).substr(begin, end - begin)));
      REQUIRE(lines.back().size() <= 80);
    }
    std::vector<std::size_t> begins;
    for (std::size_t at = 0; at < lines[0].size(); ++at)
      if (lines[0][at] != " ") begins.push_back(at);
    REQUIRE(begins.size() == columns);
    begins.push_back(82);
    for (std::size_t c = 0; c < columns; ++c) {
      std::vector<std::string> parts;  // of the cells' lines, without spaces
      for (std::size_t l = 1; l < lines.size(); ++l) {
        REQUIRE(part_of(lines[l], begins[c + 1] - 2, begins[c + 1]).find_first_not_of(' ') ==
                std::string::npos);
        const std::string part = without_spaces(part_of(lines[l], begins[c], begins[c + 1] - 2));
        if (!part.empty()) parts.push_back(part);
      }
      std::size_t next = 0;
      for (const auto& row : table.rows) {
        const std::string cell = without_spaces(std::get<std::string>(row[c]));
        REQUIRE(next < parts.size());
        std::string shown = parts[next++];
        if (const std::size_t dots = shown.find("..."); dots != std::string::npos) {
          REQUIRE(c == 0);  // a name
          REQUIRE(cell.starts_with(shown.substr(0, dots)));
          REQUIRE(cell.ends_with(shown.substr(dots + 3)));
        } else {
          while (shown.size() < cell.size() && next < parts.size()) shown += parts[next++];
          REQUIRE(shown == cell);
        }
      }
      REQUIRE(next == parts.size());
    }
  }
}

TEST_CASE("remarks are wrapped") {
  Report report;
  report.add(Remark{"one two three four five six seven eight nine ten"});
  CHECK(to_text(report, {40, false, true}) == "one two three four five six seven eight\nnine ten\n");
}

TEST_CASE("a column of bars is drawn against its largest number, and nothing above 0 vanishes") {
  Report report;
  report.add(Table{"t", "", {{"n", "n"}, {"share", "", Unit::bar}}, {}});
  auto& table = std::get<Table>(report.items.front());
  for (const double share : {0.5, 0.25, 1e-9, 0.0}) table.rows.push_back({std::int64_t{1}, share});
  CHECK(to_text(report, {80, false, false}) == "n\n1  ########################\n1  ############\n1  .\n1\n");
  CHECK(to_text(report).find("▏") != std::string::npos);
  CHECK(to_json(report, {"c", {}}).find("\"share\":0.25") != std::string::npos);
}

TEST_CASE("a line stands as it is, and values that only JSON can say are left out") {
  ejk::Report report;
  report.add(ejk::Line{"fingerprint", "cpu|  x"}).add(ejk::JsonField{"spec", "[]"}).add("cores", "cores", 2);
  CHECK(ejk::to_text(report) == "cpu|  x\n\ncores  2\n");
}
