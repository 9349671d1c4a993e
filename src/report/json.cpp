// JSON of a report: one object on one line, keys in the report's order.
//
// tests: tests/report/test_json.cpp
#include "core/json.hpp"

#include <cmath>
#include <string>

#include "core/utf8.hpp"
#include "ejk/report.hpp"
#include "report/picture.hpp"
#include "report/units.hpp"

namespace ejk {

namespace {

constexpr int kSchema = 1;
constexpr std::int64_t kPictureCells = 64;

std::string key_of(const std::string& key, Unit unit) {
  const std::string_view ending = report::key_ending(unit);
  return key.ends_with(ending) ? key : key + std::string(ending);
}

struct ReportJson {
  core::JsonWriter out{core::JsonStyle::report};

  // Text may come from files: bytes that are not UTF-8 are escaped, as in text reports.
  void put_text(std::string_view text) { out.put(core::as_utf8(text)); }

  void put(const ReportValue& value) {
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::monostate>)
            out.null();
          else if constexpr (std::is_same_v<T, std::string>)
            put_text(v);
          else if constexpr (std::is_same_v<T, double>)
            std::isfinite(v) ? out.put(v) : out.null();
          else
            out.put(v);
        },
        value);
  }

  void add(const Field& field) {
    if (field.key.empty()) return;
    out.key(key_of(field.key, field.unit));
    put(field.value);
  }

  void add(const Table& table) {
    if (table.key.empty()) return;
    out.key(table.key).list([&] {
      for (const auto& row : table.rows)
        out.object([&] {
          for (std::size_t c = 0; c < table.columns.size() && c < row.size(); ++c) {
            out.key(key_of(table.columns[c].key, table.columns[c].unit));
            put(row[c]);
          }
        });
    });
  }

  void add(const BlockPicture& picture) {
    if (picture.page_only) return;
    const report::CellGrid grid = report::shrink(picture, kPictureCells, kPictureCells);
    out.key(picture.key).object([&] {
      out.key("title");
      put_text(picture.title);
      out.key("blocks").put(Shape{picture.rows(), picture.columns()});
      out.key("blocks_per_cell").put(Shape{grid.rows_per_cell, grid.columns_per_cell});
      out.key("legend").object([&] {
        for (const report::CellState state : report::states_of(picture)) {
          out.key(std::string(1, report::letter_of(state)));
          put_text(report::state_name(picture, state));
        }
      });
      out.key("cells").list([&] {
        for (std::int64_t r = 0; r < grid.rows; ++r) {
          std::string row;
          for (std::int64_t c = 0; c < grid.columns; ++c) row += report::letter_of(grid.at(r, c));
          out.put(row);
        }
      });
    });
  }

  void add(const Section& section) {
    out.key(section.key).object([&] {
      if (section.content) add_all(*section.content);
    });
  }

  void add(const Remark&) {}
  void add(const JsonField& field) { out.key(field.key).raw(field.json); }
  void add(const Line& line) {
    out.key(line.key);
    put_text(line.text);
  }

  void add_all(const Report& report) {
    for (const auto* items : {&report.items, &report.details})
      for (const Report::Item& item : *items) std::visit([&](const auto& part) { add(part); }, item);
  }
};

}  // namespace

std::string to_json(const Report& report, const ReportEnvelope& envelope) {
  ReportJson json;
  core::JsonWriter& out = json.out;
  out.object([&] {
    out.key("schema").put(kSchema);
    out.key("ejk_version").put(version());
    out.key("command").put(envelope.command);
    out.key("inputs").list([&] {
      for (const auto& input : envelope.inputs)
        out.object([&] {
          out.key("role").put(input.first);
          out.key("value");
          json.put_text(input.second);
        });
    });
    out.key("result").object([&] { json.add_all(report); });
    out.key("warnings").list([&] {
      for (const std::string& warning : report.warnings) json.put_text(warning);
    });
  });
  return out.take() + "\n";
}

const char* version() { return EJK_VERSION; }

}  // namespace ejk
