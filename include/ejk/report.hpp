// Reports and their renderers. Text and page may change; JSON keys stay, its numbers are unrounded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// Determines the text ("1.5 GiB", "12.3 %") and the end of the JSON key ("_bytes", "_s", "_flop",
/// "_bytes_per_s", "_flop_per_s", or none).
enum class Unit {
  none,
  count,
  blocks,
  rows,
  keys,
  elements,
  tokens,
  bytes,
  share,
  seconds,
  flop,
  bytes_per_second,
  flop_per_second,
  value,  // a table's cell, an element: those of a row are written in as many digits as tell them apart
  bar     // a table's cell, drawn as a bar: the largest number of the column fills it
};

/// std::uint64_t is for values above the range of std::int64_t; a list is a shape.
using ReportValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                                 std::vector<std::int64_t>>;

/// part / whole; null where the whole is 0.
inline ReportValue share_of(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? ReportValue(static_cast<double>(part) / static_cast<double>(whole)) : ReportValue();
}

struct Field {
  std::string key;    // in JSON: lower_case; empty: not there
  std::string label;  // in text
  ReportValue value;
  Unit unit = Unit::none;
};

struct TableColumn {
  std::string key;
  std::string label;
  Unit unit = Unit::none;
  bool json_only = false;  // text leaves it out: a window is 80 columns wide
};

/// In text at most `text_rows` rows and a line that counts the others; in JSON a list of objects, all rows. Without a
/// key it is not in the JSON.
struct Table {
  std::string key;
  std::string title;
  std::vector<TableColumn> columns;
  std::vector<std::vector<ReportValue>> rows;
  std::int64_t text_rows = 32;
};

/// A count computed as a double: a whole number while a double can tell it from its neighbours.
ReportValue whole_number(double count);

/// part / whole; null where `whole` is 0.
ReportValue ratio(double part, double whole);

/// One axis of a block picture.
struct PictureAxis {
  std::string name;         // in the plural, "queries"; empty: blocks are named by index
  std::int64_t block = 1;   // elements of a block
  std::int64_t length = 0;  // elements in all: the last block may be cut short
  std::string unit = {};    // what its ticks count: "tokens"
};

/// Details of blocks, shown only by a page.
struct BlockDetails {
  /// Fraction of True elements in cells of `blocks_per_cell` (a power of two) squared blocks, by rows;
  /// empty: unknown.
  std::int64_t blocks_per_cell = 1;
  std::vector<double> density;
};

/// States of blocks: 0 empty, 1 partial, 2 full, 3 and 4 marked. Each row stores one range of columns; other
/// blocks are empty.
class BlockStates {
 public:
  BlockStates() = default;
  /// All empty; `runs` are the stored columns of each row.
  BlockStates(std::int64_t columns, const std::vector<IndexRange>& runs);
  /// All are stored, `columns` a row.
  BlockStates(std::int64_t columns, std::vector<std::uint8_t> states);

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t columns() const { return columns_; }
  std::int64_t blocks() const { return rows() * columns_; }

  /// The stored columns of a row.
  IndexRange run(std::int64_t row) const {
    const Row& r = rows_[static_cast<std::size_t>(row)];
    return {r.column, r.column + r.end - begin_of(row)};
  }
  std::span<std::uint8_t> states(std::int64_t row) {
    return stored().subspan(static_cast<std::size_t>(begin_of(row)), length_of(row));
  }
  std::span<const std::uint8_t> states(std::int64_t row) const {
    return stored().subspan(static_cast<std::size_t>(begin_of(row)), length_of(row));
  }
  std::uint8_t at(std::int64_t row, std::int64_t column) const {
    const IndexRange columns = run(row);
    if (column < columns.begin || column >= columns.end) return 0;
    return states(row)[static_cast<std::size_t>(column - columns.begin)];
  }

  /// All stored states, row by row, and the offset of a row.
  std::span<std::uint8_t> stored() { return stored_; }
  std::span<const std::uint8_t> stored() const { return stored_; }
  std::int64_t begin_of(std::int64_t row) const {
    return row == 0 ? 0 : rows_[static_cast<std::size_t>(row - 1)].end;
  }

 private:
  struct Row {
    std::int64_t column;  // the first that is stored
    std::int64_t end;     // in stored_
  };
  std::size_t length_of(std::int64_t row) const {
    return static_cast<std::size_t>(rows_[static_cast<std::size_t>(row)].end - begin_of(row));
  }

  std::int64_t columns_ = 0;
  std::vector<Row> rows_;
  std::vector<std::uint8_t> stored_;
};

/// A grid of block states. In text scaled to the width: a cell of several blocks is marked if one of them is,
/// else partial if one is; empty or full if all are, else mixed. In JSON: rows of letters of at most 64.
struct BlockPicture {
  std::string key;
  std::string title;
  std::shared_ptr<const BlockStates> states;  // null: no block
  /// What the states and the grid's cells are called, in the text and in the legend of the JSON.
  std::array<std::string, 3> state_names = {"empty", "partial", "full"};
  std::string block_name = "block";
  /// What states 3 and 4 are called; empty where no block is in them.
  std::array<std::string, 2> marked_names = {};
  PictureAxis row_axis = {}, column_axis = {};
  std::string subject = {};                    // a mask's expression: drawings have it below the title
  std::function<BlockDetails()> details = {};  // null where no more is known
  /// Text and JSON leave it out: the report's arrays or numbers say the same.
  bool page_only = false;

  std::int64_t rows() const { return states ? states->rows() : 0; }
  std::int64_t columns() const { return states ? states->columns() : 0; }
};

struct Report;

/// Omitted from the text if empty; an object in JSON.
struct Section {
  std::string key;
  std::string title;
  std::shared_ptr<Report> content;
};

/// A sentence for people; not in the JSON.
struct Remark {
  std::string text;
};

/// JSON text (such as a list of names); not in the text.
struct JsonField {
  std::string key;
  std::string json;
};

/// A verbatim line of the text (for `head -1`); in JSON a string.
struct Line {
  std::string key;
  std::string text;
};

/// Most block pictures of a report; pictures_left_out counts the others.
inline constexpr std::int64_t kMostPictures = 16;

/// What a command judged, for readers of a build's log: an array, a fault, a kind of artefact.
struct ReportCase {
  enum class Outcome : std::uint8_t { passed, failed, ignored, skipped };
  struct Finding {
    bool is_error = true;
    std::string text;
  };

  std::string name;  // "out"
  Outcome outcome = Outcome::passed;
  std::string text = {};               // why it failed, was ignored or skipped
  double size = 0;                     // of what is wrong: the largest are the worst
  std::vector<Finding> findings = {};  // where it has several
};

struct Report {
  using Item = std::variant<Field, Table, BlockPicture, Section, Remark, JsonField, Line>;

  std::vector<Item> items;
  std::vector<Item> details = {};      // behind the items; text may leave them out
  std::vector<std::string> warnings;   // in text on stderr, in JSON under "warnings"
  std::vector<ReportCase> cases = {};  // in to_log alone
  bool without_text = false;           // the text is empty: the exit status says it all
  std::int64_t pictures_left_out = 0;  // block pictures that it would have, were they not so many or large

  Report& add(std::string key, std::string label, ReportValue value, Unit unit = Unit::none) {
    items.emplace_back(Field{std::move(key), std::move(label), std::move(value), unit});
    return *this;
  }
  Report& add(Item item) { return items.push_back(std::move(item)), *this; }
  /// Moves the items for which `is_brief` returns false, by default all, to the front of `details`.
  void move_to_details(const std::function<bool(const Item&)>& is_brief = [](const Item&) { return false; });
};

struct TextStyle {
  int width = 80;  // of which 40 are taken at least
  bool color = false;
  bool unicode = true;  // block characters in pictures, else letters
  bool details = true;
  std::string left_out = {};  // the last line where details were left out
};

std::string to_text(const Report& report, const TextStyle& style = {});
/// "1.5 GiB", "97.3 %"
std::string to_text(const ReportValue& value, Unit unit);

/// What surrounds a report in JSON and on a page.
struct ReportEnvelope {
  std::string command;
  std::vector<std::pair<std::string, std::string>> inputs = {};  // role ("mask") and reference or value
  std::string command_line = {};  // as it was typed, on one line; in pages alone
  bool with_times = false;        // pages show seconds and what is counted by them
};

/// {"schema": 1, "ejk_version", "command", "inputs": [{"role", "value"}], "result", "warnings"} on one line.
/// NaN and infinities are null, invalid UTF-8 is replaced.
std::string to_json(const Report& report, const ReportEnvelope& envelope);

/// The cases and warnings of a report as others read them:
/// github  workflow commands of GitHub Actions, a line for each failure ("::error file=F,title=T::TEXT") and each warning,
///         at most 10 of either, the worst: more are not shown
/// junit   XML as pytest writes it, without times and hosts
/// md      a heading with the verdict and one table, for $GITHUB_STEP_SUMMARY
enum class LogFormat : std::uint8_t { github, junit, md };
const char* name_of(LogFormat format);
std::string to_log(const Report& report, LogFormat format, const std::string& command,
                   const std::string& file);

/// A self-contained HTML page (Content-Security-Policy), readable without scripts; with them tables sort and
/// block pictures zoom. Deterministic. About 30 KiB, plus at most 240 KiB for pictures and 120 KiB for
/// tables, which show at most 500 rows and count the others.
std::string to_html(const Report& report, const ReportEnvelope& envelope);

/// In order, sections included; valid as long as the report.
std::vector<const BlockPicture*> pictures_of(const Report& report);

/// image/png, as to_svg: each block has a rectangle of the same whole number of pixels; above 4096 a side
/// several blocks share a pixel (state: see BlockPicture). Contains the command line.
std::string to_png(const BlockPicture& picture, const std::string& command_line);

/// image/svg+xml with the subject, axes in elements and a legend. Error{output} above a million shapes.
std::string to_svg(const BlockPicture& picture, const std::string& command_line);

/// "0.1.0".
const char* version();

}  // namespace ejk
