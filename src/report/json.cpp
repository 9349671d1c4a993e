// A report for programs: one JSON object on one line, keys in the order in which the report has them.
//
// tests: tests/report/test_json.cpp
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/utf8.hpp"
#include "ejk/report.hpp"
#include "report/picture.hpp"
#include "report/units.hpp"

namespace ejk {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr std::int64_t kPictureCells = 64;

Json value_of(const ReportValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return nullptr;
        else if constexpr (std::is_same_v<T, double>)
          return std::isfinite(v) ? Json(v) : Json(nullptr);
        else
          return v;
      },
      value);
}

std::string key_of(const std::string& key, Unit unit) {
  const std::string_view ending = report::key_ending(unit);
  return key.ends_with(ending) ? key : key + std::string(ending);
}

Json object_of(const Report& report);

void put(Json& object, const Field& field) { object[key_of(field.key, field.unit)] = value_of(field.value); }

void put(Json& object, const Table& table) {
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json cells = Json::object();
    for (std::size_t c = 0; c < table.columns.size() && c < row.size(); ++c)
      cells[key_of(table.columns[c].key, table.columns[c].unit)] = value_of(row[c]);
    rows.push_back(std::move(cells));
  }
  object[table.key] = std::move(rows);
}

void put(Json& object, const BlockPicture& picture) {
  if (picture.page_only) return;
  const report::CellGrid grid = report::shrink(picture, kPictureCells, kPictureCells);
  Json rows = Json::array();
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    std::string row;
    for (std::int64_t c = 0; c < grid.columns; ++c) row += report::letter_of(grid.at(r, c));
    rows.push_back(std::move(row));
  }
  Json legend = Json::object();
  for (const report::CellState state : report::states_of(picture))
    legend[std::string(1, report::letter_of(state))] = report::state_name(picture, state);
  object[picture.key] = {
      {"title", picture.title},
      {"blocks", {picture.rows(), picture.columns()}},
      {"blocks_per_cell", {grid.rows_per_cell, grid.columns_per_cell}},
      {"legend", std::move(legend)},
      {"cells", std::move(rows)},
  };
}

void put(Json& object, const Section& section) {
  object[section.key] = section.content ? object_of(*section.content) : Json::object();
}

void put(Json&, const Remark&) {}

void put(Json& object, const JsonField& field) { object[field.key] = Json::parse(field.json); }

void put(Json& object, const Line& line) { object[line.key] = line.text; }

Json object_of(const Report& report) {
  Json object = Json::object();
  for (const Report::Item& item : report.items)
    std::visit([&](const auto& part) { put(object, part); }, item);
  return object;
}

// Bytes of foreign text that are not of UTF-8 are written out, as in texts.
void make_utf8(Json& value) {
  if (auto* text = value.get_ptr<std::string*>()) *text = core::as_utf8(*text);
  if (value.is_structured())
    for (Json& part : value) make_utf8(part);
}

}  // namespace

std::string to_json(const Report& report, const ReportEnvelope& envelope) {
  Json inputs = Json::array();
  for (const auto& [role, value] : envelope.inputs) inputs.push_back({{"role", role}, {"value", value}});
  Json all = Json::object();
  all["schema"] = kSchema;
  all["ejk_version"] = version();
  all["command"] = envelope.command;
  all["inputs"] = std::move(inputs);
  all["result"] = object_of(report);
  all["warnings"] = report.warnings;
  make_utf8(all);
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

const char* version() { return EJK_VERSION; }

}  // namespace ejk
