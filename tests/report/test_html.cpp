// Pages: their content, no markup from outside, and block data of the map.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/report.hpp"
#include "report/block_map.hpp"
#include "report/pictures.hpp"

using namespace ejk;

namespace {

bool holds(const std::string& page, const std::string& text) { return page.find(text) != std::string::npos; }

// The letters of a map, row by row, from its runs.
std::vector<std::string> rows_of(const std::string& runs) {
  std::vector<std::string> rows;
  for (std::size_t at = 0; at <= runs.size();) {
    const std::size_t end = std::min(runs.find('/', at), runs.size());
    const std::string part = runs.substr(at, end - at);
    const auto number = [&](std::size_t& i) {
      std::size_t n = 0, digits = 0;
      while (i < part.size() && part[i] >= '0' && part[i] <= '9')
        n = 10 * n + static_cast<std::size_t>(part[i++] - '0'), ++digits;
      return digits == 0 ? 1 : n;
    };
    if (part[0] == '=') {
      std::size_t i = 1;
      const std::string above = rows.back();
      for (std::size_t n = number(i); n > 0; --n) rows.push_back(above);
    } else {
      std::string row;
      for (std::size_t i = 0; i < part.size();) {
        const char letter = part[i++];
        row.append(number(i), letter);
      }
      rows.push_back(row);
    }
    at = end + 1;
  }
  return rows;
}

}  // namespace

TEST_CASE("a page holds fields, tables, sections, remarks, warnings and the command; it asks for nothing") {
  Report report;
  report.add(Line{"verdict", "ok"}).add("size", "size", std::int64_t{1536}, Unit::bytes);
  report.add(
      Table{"t",
            "lengths",
            {{"range", "tokens"}, {"n", "sequences"}, {"share", "", Unit::bar}, {"j", "", Unit::none, true}},
            {{std::string("1-2"), std::int64_t{1200}, 0.25, std::int64_t{7}},
             {std::string("3-4"), std::int64_t{4800}, 0.5, std::int64_t{8}}}});
  const auto inner = std::make_shared<Report>();
  inner->add("x", "inner field", true);
  report.add(Section{"s", "more", inner}).add(Remark{"A remark."});
  report.warnings = {"careful"};
  const std::string page = to_html(report, {"seq-info", {{"cu_seqlens", "cu.npy"}}, "ejk seq-info cu.npy"});
  for (const char* text :
       {"<!DOCTYPE html>", "default-src 'none'", ">ok<", "1.5 KiB", ">lengths<", ">tokens<",
        "data-v=\"1200\">1,200<", "width:50.00%", "width:100.00%", ">j<", ">more<", "inner field",
        "A remark.", "careful", "ejk seq-info cu.npy", "<script>"})
    CHECK_MESSAGE(holds(page, text), text);
  for (const char* text : {"http:", "https:", "src=", "@import", "url(", "href="})
    CHECK_MESSAGE(!holds(page, text), text);
  CHECK(page == to_html(report, {"seq-info", {{"cu_seqlens", "cu.npy"}}, "ejk seq-info cu.npy"}));
}

TEST_CASE("a page has no times unless they are asked for") {
  Report report;
  report.add("t", "time of it", 1.5, Unit::seconds).add("rate", "rate of it", 2e9, Unit::flop_per_second);
  report.add(Table{"t", "", {{"n", "n"}, {"s", "seconds of it", Unit::seconds}}, {{std::int64_t{1}, 2.5}}});
  ReportEnvelope envelope{"attention"};
  const std::string without = to_html(report, envelope);
  envelope.with_times = true;
  const std::string with = to_html(report, envelope);
  for (const char* text : {"time of it", "rate of it", "seconds of it", "2.5 s"}) {
    CHECK(!holds(without, text));
    CHECK(holds(with, text));
  }
}

TEST_CASE("nothing that a file or a person named becomes markup") {
  const std::string evil =
      "</script></title><script>alert('x')</script><img src=x onerror=alert(1)>\"'&\x01\u202e";
  Report report;
  report.add("f", evil, evil).add(Line{"l", evil}).add(Remark{evil});
  report.add(Table{"t", evil, {{"a", evil}, {evil, ""}}, {{evil, std::int64_t{1}}}});
  const auto inner = std::make_shared<Report>();
  inner->add("x", "x", evil);
  report.add(Section{"s", evil, inner});
  BlockPicture picture = picture_of(1, 2, {0, 1});
  picture.title = picture.block_name = picture.state_names[1] = picture.marked_names[0] = picture.subject =
      evil;
  picture.row_axis.name = picture.column_axis.name = evil;
  report.add(picture);
  report.warnings = {evil};
  const std::string page = to_html(report, {evil, {{evil, evil}}, evil});

  // The elements of a page of the same report with harmless names are all that there are.
  const auto elements = [](const std::string& text, const std::string& begin) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  CHECK(elements(page, "<script") == 2);  // the map's data and the page's own
  CHECK(elements(page, "</script") == 2);
  CHECK(elements(page, "<img") == 0);
  CHECK(elements(page, "</title") == elements(page, "<title"));
  CHECK(page.find('\x01') == std::string::npos);
  CHECK(!holds(page, "\u202e"));
}

TEST_CASE("a long table is cut, with a line that counts the rest") {
  Table table{"t", "", {{"n", "n"}}, {}};
  for (std::int64_t n = 0; n < 1234; ++n) table.rows.push_back({n});
  Report report;
  report.add(table);
  const std::string page = to_html(report, {"x"});
  CHECK(holds(page, "and 734 more"));
}

TEST_CASE("the map's runs are the blocks") {
  std::mt19937 random(3);
  constexpr std::int64_t rows = 17, columns = 9;
  std::vector<std::uint8_t> states(rows * columns);
  for (auto& state : states) state = static_cast<std::uint8_t>(random() % 5);
  for (std::size_t c = 0; c < columns; ++c) states[5 * columns + c] = states[4 * columns + c];  // a row twice
  BlockPicture picture = picture_of(rows, columns, states);
  picture.marked_names = {"missing", "extra"};
  picture.details = [] {
    BlockDetails details;
    details.density.assign(static_cast<std::size_t>(rows * columns), 0.5);
    return details;
  };
  const auto map = nlohmann::json::parse(report::block_map(picture, report::counts_of(picture), 1 << 20));
  CHECK(map["scale"] == 1);
  CHECK(map["density"]["values"].get<std::string>().size() == 3 * rows * columns);
  CHECK(map["counts"][1] == std::count(states.begin(), states.end(), 1));
  CHECK(map["counts"][5] == std::count(states.begin(), states.end(), 4));
  const auto got = rows_of(map["runs"]);
  REQUIRE(got.size() == rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::string want;
    for (std::int64_t c = 0; c < columns; ++c) {
      want += "EPFXO"[states[static_cast<std::size_t>(r * columns + c)]];
    }
    CHECK(got[static_cast<std::size_t>(r)] == want);
  }
}

TEST_CASE("a map that would be too long is sent at a scale that fits, exactly") {
  std::mt19937 random(5);
  constexpr std::int64_t rows = 301, columns = 500;
  std::vector<std::uint8_t> states(rows * columns);
  for (auto& state : states) state = random() % 5 == 0 ? 2 : 0;
  const BlockPicture picture = picture_of(rows, columns, states);
  const auto map = nlohmann::json::parse(report::block_map(picture, report::counts_of(picture), 12000));
  const std::int64_t scale = map["scale"];
  CHECK(scale == 4);
  CHECK(map["runs"].get<std::string>().size() <= 6000);
  const auto got = rows_of(map["runs"]);
  REQUIRE(std::ssize(got) == (rows + scale - 1) / scale);
  for (std::int64_t r = 0; r < std::ssize(got); ++r)
    for (std::int64_t c = 0; c < (columns + scale - 1) / scale; ++c) {
      bool seen[3] = {};
      for (std::int64_t i = r * scale; i < std::min(rows, (r + 1) * scale); ++i)
        for (std::int64_t j = c * scale; j < std::min(columns, (c + 1) * scale); ++j)
          seen[states[static_cast<std::size_t>(i * columns + j)]] = true;
      const char want = seen[0] && seen[2] ? 'M' : seen[2] ? 'F' : 'E';
      if (got[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)] != want)
        FAIL("cell (", r, ", ", c, ")");
    }
}

TEST_CASE("a page of a mask of a million tokens has at most 300 KiB") {
  // Packed documents of random lengths, causal within: 7,813 x 7,813 blocks of 128.
  std::mt19937 random(11);
  constexpr std::int64_t n = 7813;
  std::vector<std::uint8_t> states(n * n);
  for (std::int64_t begin = 0; begin < n;) {
    const std::int64_t end = std::min<std::int64_t>(n, begin + 1 + static_cast<std::int64_t>(random() % 60));
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = begin; c <= r; ++c)
        states[static_cast<std::size_t>(r * n + c)] = c == r || c == begin ? 1 : 2;
    begin = end;
  }
  BlockPicture picture = picture_of(n, n, std::move(states));
  picture.row_axis = {"queries", 128, 1'000'000};
  picture.column_axis = {"keys", 128, 1'000'000};
  picture.details = [] {
    BlockDetails details;
    details.blocks_per_cell = 64;
    details.density.assign(123 * 123, 0.1234);
    return details;
  };
  Report report;
  report.add(picture);
  CHECK(to_html(report, {"mask-info"}).size() < 300 << 10);
}

TEST_CASE("many pictures and long tables stay within their bytes") {
  std::mt19937 random(13);
  Report report;
  for (int n = 0; n < 16; ++n) {
    std::vector<std::uint8_t> states(512 * 512);
    for (auto& state : states) state = static_cast<std::uint8_t>(random() % 3);
    BlockPicture picture = picture_of(512, 512, std::move(states));
    picture.details = [] {
      BlockDetails details;
      details.blocks_per_cell = 4;
      details.density.assign(128 * 128, 0.3);
      return details;
    };
    report.add(std::move(picture));
  }
  for (int t = 0; t < 2; ++t) {
    Table table{"t", "", {{"name", "name"}, {"n", "n"}}, {}};
    for (std::int64_t n = 0; n < 1000; ++n) table.rows.push_back({std::string(300, 'n'), n});
    report.add(std::move(table));
  }
  const std::string page = to_html(report, {"x"});
  CHECK(page.size() < 400 << 10);
  CHECK(holds(page, "and 990 more"));  // ten rows are always there
}

TEST_CASE("one picture comes behind the first table, several at the end") {
  Report report;
  const auto table = [](const char* title) { return Table{"t", title, {{"n", "n"}}, {{std::int64_t{1}}}}; };
  report.add(table("first")).add(table("second")).add(picture_of(1, 1, {1}));
  std::string page = to_html(report, {"x"});
  CHECK(page.find(">first<") < page.find("<figure"));
  CHECK(page.find("<figure") < page.find(">second<"));
  report.add(picture_of(1, 1, {1}));
  page = to_html(report, {"x"});
  CHECK(page.find(">second<") < page.find("<figure"));
}

TEST_CASE("cells say what they are sorted by: numbers, lists, and nothing where there is none") {
  Report report;
  report.add(Table{"t",
                   "",
                   {{"a", "a"}, {"b", "b"}},
                   {{Shape{16, 4}, std::numeric_limits<double>::infinity()},
                    {Shape{}, std::numeric_limits<double>::quiet_NaN()},
                    {std::string("0x10"), ReportValue()}}});
  const std::string page = to_html(report, {"x"});
  CHECK(holds(page, R"(<td data-v="16,4">(16, 4)</td>)"));
  CHECK(holds(page, R"(data-v="Infinity">)"));
  CHECK(holds(page, R"(<td class="number" data-v="">nan</td>)"));
  CHECK(holds(page, "<td>0x10</td>"));
}

TEST_CASE("long cells wrap, the names of tensors between their parts") {
  Report report;
  report.add(Table{"t",
                   "",
                   {{"a", "a"}},
                   {{std::string("layers.0.mlp.experts.12.down_proj.weight")}, {std::string("a.b")}}});
  const std::string page = to_html(report, {"x"});
  CHECK(holds(page, R"(<td class="long">layers.0.<wbr>mlp.<wbr>experts.12.<wbr>down_proj.<wbr>weight</td>)"));
  CHECK(holds(page, "<td>a.b</td>"));
}
