// Text of a report: labels and values in two columns, tables, titled sections, block pictures.
//
// Consecutive fields are aligned; the content of a section is indented by two.
//
// tests: tests/report/test_text.cpp
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/utf8.hpp"
#include "ejk/program/text.hpp"
#include "ejk/report.hpp"
#include "report/picture.hpp"
#include "report/units.hpp"

namespace ejk {

namespace {

using report::CellGrid;
using report::CellState;

constexpr std::int64_t kPictureRows = 32;
constexpr double kBarWidth = 24;
constexpr std::size_t kReadable = 24;   // columns that a column of text keeps, if others can give up theirs
constexpr std::size_t kNarrowest = 12;  // and in any case

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

// Columns that a character takes: two where it is wide, as those of East Asia are, none where it joins the
// one before. These are the main ranges of Unicode.
std::size_t columns_of(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},  {0x3041, 0xA4CF},
                                    {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},  {0xFE30, 0xFE6F},
                                    {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},  {0x1F300, 0x1F64F},
                                    {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
  static constexpr Range kJoined[] = {{0x0300, 0x036F}, {0x200B, 0x200D}, {0xFE00, 0xFE0F}};
  const auto holds = [c](const Range& range) { return range.first <= c && c <= range.last; };
  if (std::any_of(std::begin(kJoined), std::end(kJoined), holds)) return 0;
  return std::any_of(std::begin(kWide), std::end(kWide), holds) ? 2 : 1;
}

struct Extent {
  std::size_t bytes = 0, columns = 0;
};

// Of the longest beginning of a text that takes at most so many columns.
Extent extent_of(std::string_view text, std::size_t most_columns = std::string_view::npos) {
  Extent extent;
  while (extent.bytes < text.size()) {
    std::size_t end = extent.bytes;
    const auto character = core::take_utf8(text, end);
    if (!character) ++end;
    const std::size_t columns = character ? columns_of(*character) : 1;
    if (extent.columns + columns > most_columns) break;
    extent.bytes = end, extent.columns += columns;
  }
  return extent;
}

std::size_t width_of(std::string_view text) { return extent_of(text).columns; }

std::string left(std::string text, std::size_t width) {
  const std::size_t used = width_of(text);
  return used < width ? text.append(width - used, ' ') : text;
}

std::string right(const std::string& text, std::size_t width) {
  const std::size_t used = width_of(text);
  return used < width ? std::string(width - used, ' ') + text : text;
}

// The text in at most `width` columns: its first `head` ones, three dots, its last ones.
std::string cut_within(const std::string& text, std::size_t width, std::size_t head) {
  const std::size_t columns = width_of(text);
  if (columns <= width) return text;
  std::string out = text.substr(0, extent_of(text, head).bytes) + "...";
  std::size_t left_out = columns - (width - 3 - head);
  std::string_view tail;
  do {  // a wide character may not fit
    tail = std::string_view(text).substr(extent_of(text, left_out).bytes);
  } while (width_of(tail) > width - 3 - head && ++left_out);
  return out.append(tail);
}

std::size_t count_distinct(const std::vector<std::string>& texts) {
  return std::unordered_set<std::string_view>(texts.begin(), texts.end()).size();
}

// Names cut at one position for all, at which they stay distinct; as they are where there is none.
std::vector<std::string> cut_apart(const std::vector<std::string>& names, std::size_t width) {
  const std::size_t wanted = count_distinct(names), middle = (width - 3 + 1) / 2;
  std::vector<std::string> tried(names.size());
  for (std::size_t i = 0; i < width - 3; ++i) {  // from the middle outwards
    const std::size_t head = i % 2 == 0 ? middle - i / 2 : middle + i / 2 + 1;
    if (head > width - 3) continue;
    std::transform(names.begin(), names.end(), tried.begin(),
                   [&](const std::string& name) { return cut_within(name, width, head); });
    if (count_distinct(tried) == wanted) return tried;
  }
  return names;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// The words in lines of at most `width` columns; a longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  for (const std::string& word : words_of(text)) {
    if (lines.empty() || width_of(lines.back()) + 1 + width_of(word) > width)
      lines.push_back(word);
    else
      lines.back() += " " + word;
  }
  return lines;
}

// The lines of a cell: as it is where it fits, else wrapped, with long words broken.
std::vector<std::string> cell_lines(const std::string& cell, std::size_t width) {
  if (width_of(cell) <= width) return {cell};
  std::vector<std::string> lines;
  for (std::string_view rest : wrapped(cell, width))
    while (!rest.empty()) {
      const std::size_t bytes = extent_of(rest, width).bytes;
      lines.emplace_back(rest.substr(0, bytes));
      rest.remove_prefix(bytes);
    }
  return lines;
}

// A column of a table as text.
struct Column {
  std::vector<std::string> label;  // lines
  std::vector<std::string> cells;
  std::size_t width = 0;
  bool is_text = false;  // may be narrower than its cells
  bool is_name = false;  // text that is cut rather than wrapped
  bool is_left = false;  // left-aligned: text and bars

  // Makes it as narrow as its cells and the words of its label are.
  void break_label() {
    if (label.empty()) return;
    width = 0;
    for (const std::string& word : words_of(label.front())) width = std::max(width, width_of(word));
    for (const std::string& cell : cells) width = std::max(width, width_of(cell));
    label = wrapped(label.front(), width);
  }

  // As narrow as it may become.
  std::size_t least(std::size_t of_text) const {
    if (!is_text) return width;
    for (const std::string& line : label)
      for (const std::string& word : words_of(line)) of_text = std::max(of_text, width_of(word));
    return of_text;
  }
};

// Makes the columns of a table fit into `space`, if their least widths do: labels are broken at spaces, then
// text is wrapped, then names are cut; at first none below a width in which it reads well. What is widest
// becomes narrower first.
void fit(std::vector<Column>& columns, std::size_t space) {
  const auto is_too_wide = [&] {
    std::size_t total = 0;
    for (const Column& column : columns) total += column.width + 2;
    return total > space + 2;
  };
  if (!is_too_wide()) return;
  for (Column& column : columns) column.break_label();
  for (const std::size_t least : {kReadable, kNarrowest})
    for (const bool names : {false, true})
      while (is_too_wide()) {
        Column* widest = nullptr;
        for (Column& column : columns)
          if (column.is_name == names && column.width > column.least(least) &&
              (widest == nullptr || column.width > widest->width))
            widest = &column;
        if (widest == nullptr) break;
        --widest->width;
      }
  for (Column& column : columns) {
    if (column.is_name) column.cells = cut_apart(column.cells, column.width);
    column.label = wrapped(fmt::format("{}", fmt::join(column.label, " ")), column.width);
  }
}

class TextWriter {
 public:
  explicit TextWriter(const TextStyle& style) : style_(style) {}

  void write(const Report& report, std::size_t indent) {
    write(report.items, indent);
    if (style_.details)
      write(report.details, indent);
    else
      has_left_out_ = has_left_out_ || !report.details.empty();
  }

  std::string take() {
    if (has_left_out_ && !style_.left_out.empty()) write_item(Remark{style_.left_out}, 0);
    return std::move(out_);
  }

 private:
  using Items = std::vector<Report::Item>;

  void write(const Items& items, std::size_t indent) {
    for (std::size_t i = 0; i < items.size();) {
      if (std::holds_alternative<Field>(items[i])) {
        std::size_t end = i;
        while (end < items.size() && std::holds_alternative<Field>(items[end])) ++end;
        fields(items, i, end, indent);
        i = end;
      } else {
        std::visit([&](const auto& item) { write_item(item, indent); }, items[i++]);
      }
    }
  }

  void line(std::size_t indent, std::string_view text) {
    while (text.ends_with(' ')) text.remove_suffix(1);
    if (!text.empty()) out_.append(indent, ' ').append(text);
    out_ += '\n';
  }

  std::string styled(const char* code, const std::string& text) const {
    return style_.color ? code + text + kPlain : text;
  }

  // An empty line between parts, but none at the top or under a title.
  void gap() {
    if (!out_.empty() && !fresh_) out_ += '\n';
    fresh_ = false;
  }

  void title(std::size_t indent, std::string_view text) {
    if (text.empty()) return;
    line(indent, styled(kBold, printable(text)));
  }

  std::size_t space(std::size_t indent) const {
    const auto width = static_cast<std::size_t>(std::max(style_.width, 40));
    return width > indent + 20 ? width - indent : 20;
  }

  void fields(const Items& items, std::size_t begin, std::size_t end, std::size_t indent) {
    gap();
    std::size_t label_width = 0;
    for (std::size_t i = begin; i < end; ++i)
      label_width = std::max(label_width, width_of(std::get<Field>(items[i]).label));
    for (std::size_t i = begin; i < end; ++i) {
      const Field& field = std::get<Field>(items[i]);
      const std::string label = left(field.label, label_width);
      const std::string value = report::with_unit(field.value, field.unit);
      const std::size_t behind = indent + label_width + 2;
      std::vector<std::string> rows = wrapped(value, space(behind));
      if (width_of(value) <= space(behind) || rows.empty()) rows = {value};  // with the spaces that it has
      line(indent, styled(kDim, label) + "  " + rows.front());
      for (std::size_t r = 1; r < rows.size(); ++r) line(behind, rows[r]);
    }
  }

  void write_item(const Field&, std::size_t) {}  // fields come in runs, see above

  void write_item(const Section& section, std::size_t indent) {
    if (!section.content) return;
    const Report& content = *section.content;
    has_left_out_ = has_left_out_ || (!style_.details && !content.details.empty());
    if (content.items.empty() && (!style_.details || content.details.empty())) return;
    gap();
    title(indent, section.title);
    fresh_ = !section.title.empty();
    write(content, indent + 2);
    fresh_ = false;
  }

  void write_item(const Remark& remark, std::size_t indent) {
    gap();
    for (const std::string& row : wrapped(printable(remark.text, remark.text.size()), space(indent)))
      line(indent, row);
  }

  void write_item(const JsonField&, std::size_t) {}

  void write_item(const Line& one, std::size_t indent) {
    gap();
    line(indent, printable(one.text, one.text.size()));
  }

  Column column_of(const Table& table, std::size_t c, std::size_t rows) const {
    const TableColumn& about = table.columns[c];
    // A bar is as long as its number, the column's largest being kBarWidth.
    const bool is_bar = about.unit == Unit::bar;
    double largest = 0;
    for (const auto& row : table.rows)
      if (const double* value = is_bar ? std::get_if<double>(&row.at(c)) : nullptr)
        largest = std::max(largest, *value);
    Column column;
    if (!about.label.empty()) column.label = {about.label};
    column.width = width_of(about.label);
    column.is_left = is_bar;
    for (std::size_t r = 0; r < rows; ++r) {
      const ReportValue& value = table.rows[r].at(c);
      column.cells.push_back(is_bar ? bar(value, largest) : report::cell(table, r, c));
      column.width = std::max(column.width, width_of(column.cells.back()));
      column.is_text = column.is_text || std::holds_alternative<std::string>(value) ||
                       std::holds_alternative<std::vector<std::int64_t>>(value);
    }
    column.is_left = column.is_left || column.is_text;
    column.is_name = c == 0 && column.is_text &&
                     std::none_of(column.cells.begin(), column.cells.end(), [](const std::string& cell) {
                       return cell.find(' ') != std::string::npos;
                     });
    return column;
  }

  // In eighths of a character; anything above 0 shows.
  std::string bar(const ReportValue& value, double largest) const {
    const double* number = std::get_if<double>(&value);
    if (number == nullptr || !(*number > 0) || !(largest > 0)) return "";
    static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const auto eighths =
        std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(8 * kBarWidth * *number / largest)));
    std::string out;
    for (std::size_t i = 0; i < eighths / 8; ++i) out += style_.unicode ? "█" : "#";
    if (style_.unicode) out += kEighths[eighths % 8];
    return out.empty() ? "." : out;
  }

  void write_item(const Table& table, std::size_t indent) {
    if (table.rows.empty() || table.text_rows == 0) return;
    gap();
    title(indent, table.title);
    if (!table.title.empty()) indent += 2;
    const std::size_t shown =
        std::min(table.rows.size(), static_cast<std::size_t>(std::max<std::int64_t>(table.text_rows, 0)));
    std::vector<Column> columns;
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      if (!table.columns[c].json_only) columns.push_back(column_of(table, c, shown));

    fit(columns, space(indent));
    std::vector<std::vector<std::string>> header;
    std::size_t height = 0;
    for (const Column& column : columns) height = std::max(height, column.label.size());
    for (const Column& column : columns) {  // labels are aligned at the bottom
      header.emplace_back(height - column.label.size());
      header.back().insert(header.back().end(), column.label.begin(), column.label.end());
    }
    write_row(columns, header, indent, kDim);
    for (std::size_t r = 0; r < shown; ++r) {
      std::vector<std::vector<std::string>> cells;
      for (const Column& column : columns) cells.push_back(cell_lines(column.cells[r], column.width));
      write_row(columns, cells, indent, "");
    }
    if (table.rows.size() > shown)
      line(indent, fmt::format("... and {} more",
                               format_count(static_cast<std::int64_t>(table.rows.size() - shown))));
  }

  // A row whose cells have any number of lines.
  void write_row(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& cells,
                 std::size_t indent, const char* style) {
    std::size_t height = 0;
    for (const auto& lines : cells) height = std::max(height, lines.size());
    for (std::size_t h = 0; h < height; ++h) {
      std::string out;
      for (std::size_t c = 0; c < columns.size(); ++c) {
        const std::string text = h < cells[c].size() ? cells[c][h] : "";
        out += (c == 0 ? "" : "  ") +
               (columns[c].is_left ? left(text, columns[c].width) : right(text, columns[c].width));
      }
      while (out.ends_with(' ')) out.pop_back();
      line(indent, *style == 0 ? out : styled(style, out));
    }
  }

  struct Glyph {
    const char* unicode;
    const char* ascii;
    const char* color;
  };
  static const Glyph& glyph(CellState state) {
    static constexpr Glyph glyphs[] = {{"·", ".", "\x1b[2m"},  {"▒", "p", "\x1b[33m"},
                                       {"█", "F", "\x1b[32m"}, {"░", "m", "\x1b[36m"},
                                       {"×", "X", "\x1b[31m"}, {"+", "O", "\x1b[35m"}};
    return glyphs[static_cast<std::size_t>(state)];
  }
  const char* character(CellState state) const {
    return style_.unicode ? glyph(state).unicode : glyph(state).ascii;
  }

  void write_item(const BlockPicture& picture, std::size_t indent) {
    if (picture.page_only) return;
    gap();
    title(indent, picture.title);
    if (!picture.title.empty()) indent += 2;
    const auto columns = static_cast<std::int64_t>(space(indent));
    const CellGrid grid = report::shrink(picture, kPictureRows, columns);
    if (grid.cells.empty()) return line(indent, "(no blocks)");

    // A character is about twice as high as wide: cells are two wide where there is room.
    const int repeat = 2 * grid.columns <= columns ? 2 : 1;
    bool seen[report::kCellStates] = {};
    for (std::int64_t r = 0; r < grid.rows; ++r) {
      std::string row;
      const char* color = "";
      for (std::int64_t c = 0; c < grid.columns; ++c) {
        const CellState state = grid.at(r, c);
        seen[static_cast<std::size_t>(state)] = true;
        if (style_.color && color != glyph(state).color) {
          row += fmt::format("{}{}", kPlain, glyph(state).color);
          color = glyph(state).color;
        }
        for (int k = 0; k < repeat; ++k) row += character(state);
      }
      if (style_.color) row += kPlain;
      line(indent, row);
    }

    std::string legend;
    for (const CellState s : report::states_of(picture)) {
      if (!seen[static_cast<std::size_t>(s)]) continue;
      legend += legend.empty() ? "" : "  ";
      legend += styled(glyph(s).color, character(s));
      legend += " " + report::state_name(picture, s);
    }
    line(indent, fmt::format("{}; 1 cell = {} x {} {}{}", legend, format_count(grid.rows_per_cell),
                             format_count(grid.columns_per_cell), picture.block_name,
                             grid.rows_per_cell * grid.columns_per_cell == 1 ? "" : "s"));
  }

  const TextStyle& style_;
  std::string out_;
  bool fresh_ = false, has_left_out_ = false;
};

}  // namespace

void Report::move_to_details(const std::function<bool(const Item&)>& is_brief) {
  const auto rest = std::stable_partition(items.begin(), items.end(), is_brief);
  details.insert(details.begin(), std::make_move_iterator(rest), std::make_move_iterator(items.end()));
  items.erase(rest, items.end());
}

std::string to_text(const ReportValue& value, Unit unit) { return report::with_unit(value, unit); }

std::string to_text(const Report& report, const TextStyle& style) {
  TextWriter writer(style);
  if (!report.without_text) writer.write(report, 0);
  return writer.take();
}

}  // namespace ejk
