// HTML page of a report: labels with values and block pictures first, then tables and sections; scripts add
// sorting, themes and a zoomable block map.
// tests: tests/report/test_html.cpp; in a browser: tests/report/browser.sh
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "ejk/program/text.hpp"
#include "ejk/report.hpp"
#include "report/block_map.hpp"
#include "report/drawing.hpp"
#include "report/page/page.hpp"
#include "report/units.hpp"

namespace ejk {

namespace report {

namespace {

constexpr std::size_t kMostRows = 500, kFewestRows = 10;  // of a table
constexpr std::size_t kTableBytes = 120 << 10;            // of all tables together
constexpr std::size_t kMapBytes = 200 << 10;              // of a map
constexpr std::size_t kMapsBytes = 90 << 10;              // of several together
constexpr std::size_t kDrawingBytes = 40 << 10;           // of their drawings
constexpr std::int64_t kDrawnCells = 128;                 // a side, at the most
constexpr std::size_t kLongText = 4000;
constexpr std::size_t kShortCell = 32;  // of a table, which stays on one line

// What a script sorts a cell by: a number, or those of a list; empty where there is none.
std::string sort_key(const ReportValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* whole = std::get_if<std::uint64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
    return fmt::format("{}", fmt::join(*list, ","));
  const auto* real = std::get_if<double>(&value);
  if (real == nullptr || std::isnan(*real)) return "";
  return std::isinf(*real) ? *real > 0 ? "Infinity" : "-Infinity" : fmt::format("{}", *real);
}

bool is_number(const ReportValue& value) {
  return std::holds_alternative<std::int64_t>(value) || std::holds_alternative<std::uint64_t>(value) ||
         std::holds_alternative<double>(value);
}

class PageWriter {
 public:
  PageWriter(const Report& report, bool with_times) : with_times_(with_times) {
    const auto pictures = std::max<std::size_t>(1, pictures_of(report).size());
    map_bytes_ = pictures == 1 ? kMapBytes : kMapsBytes / pictures;
    drawing_bytes_ = kDrawingBytes / pictures;
  }

  void write(const Report& report, int level) {
    // Where there is one picture it comes behind the first table, several of them at the end.
    std::vector<const Report::Item*> items, pictures;
    for (const auto* all : {&report.items, &report.details})
      for (const Report::Item& item : *all) {
        if (const auto* field = std::get_if<Field>(&item); field != nullptr && !is_shown(field->unit))
          continue;
        (std::holds_alternative<BlockPicture>(item) ? pictures : items).push_back(&item);
      }
    if (pictures.size() == 1) {
      auto at = std::find_if(items.begin(), items.end(),
                             [](const auto* item) { return std::holds_alternative<Table>(*item); });
      items.insert(at == items.end() ? at : at + 1, pictures[0]);
      pictures.clear();
    }
    write(items, level);
    if (pictures.empty()) return;
    put("<div class=\"maps\">\n");
    write(pictures, level);
    put("</div>\n");
  }

  void write(const std::vector<const Report::Item*>& first, int level) {
    for (std::size_t i = 0; i < first.size();) {
      if (std::holds_alternative<Field>(*first[i])) {
        put("<dl>");
        for (; i < first.size() && std::holds_alternative<Field>(*first[i]); ++i) {
          const Field& field = std::get<Field>(*first[i]);
          put("<div><dt>{}</dt><dd>{}</dd></div>", escaped(field.label),
              escaped(with_unit(field.value, field.unit), kLongText));
        }
        put("</dl>\n");
      } else {
        std::visit([&](const auto& item) { write_item(item, level); }, *first[i++]);
      }
    }
  }

  std::string take() { return std::move(out_); }

  template <class... T>
  void put(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<T>(values)...);
  }
  void put_text(const std::string& text) { out_ += text; }

 private:
  // Equal work gives an equal page, so it has no times unless requested.
  bool is_shown(Unit unit) const {
    return with_times_ ||
           (unit != Unit::seconds && unit != Unit::bytes_per_second && unit != Unit::flop_per_second);
  }

  void write_item(const Field&, int) {}
  void write_item(const JsonField&, int) {}

  void write_item(const Line& line, int) { put("<p class=\"line\">{}</p>\n", escaped(line.text, kLongText)); }
  void write_item(const Remark& remark, int) {
    put("<p class=\"remark\">{}</p>\n", escaped(remark.text, kLongText));
  }

  void heading(const std::string& title, int level) {
    if (!title.empty()) put("<h{0}>{1}</h{0}>\n", std::min(level, 6), escaped(title));
  }

  void write_item(const Section& section, int level) {
    if (!section.content || (section.content->items.empty() && section.content->details.empty())) return;
    put("<section>\n");
    heading(section.title, level);
    write(*section.content, level + 1);
    put("</section>\n");
  }

  void write_item(const Table& table, int level) {
    if (table.rows.empty()) return;
    const std::size_t columns = table.columns.size();
    const auto shows = [&](std::size_t c) { return is_shown(table.columns[c].unit); };
    // Numbers and their heads are right-aligned.
    std::vector<bool> numeric(columns);
    std::vector<double> largest(columns);
    for (std::size_t c = 0; c < columns; ++c)
      for (const auto& row : table.rows) {
        numeric[c] = numeric[c] || is_number(row.at(c));
        if (const double* value = std::get_if<double>(&row.at(c))) largest[c] = std::max(largest[c], *value);
      }
    put("<section>\n");
    heading(table.title, level);
    put(R"(<div class="wide"><table class="data"><thead><tr>)");
    for (std::size_t c = 0; c < columns; ++c) {
      if (!shows(c)) continue;
      const TableColumn& column = table.columns[c];
      const bool is_bar = column.unit == Unit::bar;
      put(R"(<th scope="col"{}>{}</th>)",
          is_bar       ? R"( class="bar")"
          : numeric[c] ? R"( class="number")"
                       : "",
          escaped(column.label.empty() && !is_bar ? column.key : column.label));
    }
    put("</tr></thead><tbody>\n");
    std::size_t shown = 0;
    for (; shown < std::min(table.rows.size(), kMostRows); ++shown) {
      if (shown >= kFewestRows && table_bytes_ > kTableBytes) break;
      const std::size_t before = out_.size(), r = shown;
      put("<tr>");
      for (std::size_t c = 0; c < columns; ++c)
        if (shows(c)) cell(table, r, c, largest[c]);
      put("</tr>\n");
      table_bytes_ += out_.size() - before;
    }
    put("</tbody></table></div>\n");
    if (table.rows.size() > shown)
      put("<p class=\"more\">and {} more, which are not on this page</p>\n",
          format_count(static_cast<std::int64_t>(table.rows.size() - shown)));
    put("</section>\n");
  }

  void cell(const Table& table, std::size_t r, std::size_t c, double largest) {
    const ReportValue& value = table.rows[r][c];
    const Unit unit = table.columns[c].unit;
    const std::string key = sort_key(value);
    const std::string data = fmt::format(R"( data-v="{}")", key);
    if (unit == Unit::bar) {
      const double* share = std::get_if<double>(&value);
      const double width = share != nullptr && largest > 0 ? 100 * *share / largest : 0;
      put(R"(<td class="bar" data-v="{}"><span style="width:{:.2f}%"></span></td>)", key,
          std::isfinite(width) ? width : 0);
      return;
    }
    const std::string text = report::cell(table, r, c);
    if (is_number(value))
      put(R"(<td class="number"{}>{}</td>)", key == text ? "" : data, escaped(text));
    else
      put_text_cell(text, key.empty() ? "" : data);
  }

  // A long text wraps, the name of a tensor between its parts.
  void put_text_cell(const std::string& text, const std::string& data) {
    std::string shown = escaped(text, kLongText);
    const bool is_long = text.size() > kShortCell;
    for (std::size_t at = 0; is_long && (at = shown.find('.', at)) != std::string::npos; ++at)
      if (at + 1 < shown.size() && shown[at + 1] >= 'a' && shown[at + 1] <= 'z')
        shown.insert(at + 1, "<wbr>");
    put("<td{}{}>{}</td>", is_long ? R"( class="long")" : "", data, shown);
  }

  void write_item(const BlockPicture& picture, int) {
    if (picture.rows() < 1 || picture.columns() < 1) return;
    SvgStyle style;
    style.most_cells = kDrawnCells;
    style.longest_side = 480;
    style.id = fmt::format("-{}", pictures_++);
    style.profiles = true;
    const BlockCounts counts = counts_of(picture);
    std::string drawing = draw_svg(picture, counts, style);
    while (drawing.size() > drawing_bytes_ && style.most_cells > 8) {
      style.most_cells /= 2;
      drawing = draw_svg(picture, counts, style);
    }
    put("<figure class=\"map\">\n<div class=\"drawing\">");
    put_text(drawing);
    put("</div>\n<script type=\"application/json\">");
    put_text(block_map(picture, counts, map_bytes_));
    put("</script>\n</figure>\n");
  }

  std::string out_;
  bool with_times_;
  std::size_t table_bytes_ = 0, map_bytes_ = 0;
  std::size_t drawing_bytes_ = 0;
  int pictures_ = 0;
};

std::string style_sheet() {
  return fmt::format("{}@media(prefers-color-scheme:dark){{{}}}{}@media print{{{}}}\n{}", cell_rules(kColors),
                     cell_rules(kDarkColors, ":root:not([data-theme=light]) "),
                     cell_rules(kDarkColors, ":root[data-theme=dark] "),
                     cell_rules(kColors, ":root:root:root "), kPageStyle);
}

}  // namespace

}  // namespace report

std::vector<const BlockPicture*> pictures_of(const Report& report) {
  std::vector<const BlockPicture*> pictures;
  for (const auto* items : {&report.items, &report.details})
    for (const Report::Item& item : *items) {
      if (const auto* picture = std::get_if<BlockPicture>(&item)) pictures.push_back(picture);
      if (const auto* section = std::get_if<Section>(&item); section != nullptr && section->content)
        for (const BlockPicture* inner : pictures_of(*section->content)) pictures.push_back(inner);
    }
  return pictures;
}

std::string to_html(const Report& report, const ReportEnvelope& envelope) {
  using report::escaped;
  report::PageWriter page(report, envelope.with_times);
  std::string title = "ejk " + envelope.command;
  for (const auto& [role, value] : envelope.inputs)
    if (title.size() < 100) title += " " + value;
  page.put(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      R"(<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; )"
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n",
      escaped(title, 120));
  page.put_text(report::style_sheet());
  page.put("</style>\n</head>\n<body>\n<header>\n<h1>ejk {}</h1>\n", escaped(envelope.command));
  if (!envelope.command_line.empty())
    page.put("<pre class=\"command\">{}</pre>\n", escaped(envelope.command_line, report::kLongText));
  if (!envelope.inputs.empty()) {
    page.put(R"(<dl class="inputs">)");
    for (const auto& [role, value] : envelope.inputs)
      page.put("<div><dt>{}</dt><dd>{}</dd></div>", escaped(role), escaped(value, report::kLongText));
    page.put("</dl>\n");
  }
  page.put("</header>\n<main>\n");
  if (!report.warnings.empty()) {
    page.put(R"(<ul class="warnings">)");
    for (const std::string& warning : report.warnings)
      page.put("<li>{}</li>", escaped(warning, report::kLongText));
    page.put("</ul>\n");
  }
  page.write(report, 2);
  page.put(
      "</main>\n<footer>ejk {}. This page holds all that it shows and requests nothing.</footer>\n<script>\n",
      version());
  page.put_text(report::kPageScript);
  page.put("</script>\n</body>\n</html>\n");
  return page.take();
}

}  // namespace ejk
