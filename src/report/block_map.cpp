// Runs of equal cells, row by row. Masks have long runs, so that the blocks of a million tokens take some
// hundred KiB; what does not fit is tried again with cells of four times as many blocks.
//
// Cost: a pass over the blocks for each scale that is tried; one that does not fit is given up on the way.
// tests: tests/report/test_html.cpp
#include "report/block_map.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/checked.hpp"
#include "report/picture.hpp"

namespace ejk::report {

namespace {

constexpr std::uint8_t kStates = 5;
constexpr std::size_t kMostCauses = 26;  // letters

// What is known of a cell: its state, or kStates + the cause that emptied it.
using Symbol = std::uint8_t;

CellState state_of_symbol(Symbol symbol) {
  return symbol < kStates ? static_cast<CellState>(symbol) : CellState::empty;
}

Symbol joined(Symbol a, Symbol b) {
  return a == b ? a : static_cast<Symbol>(joined(state_of_symbol(a), state_of_symbol(b)));
}

char letter_of(Symbol symbol) {
  return symbol < kStates ? letter_of(static_cast<CellState>(symbol))
                          : static_cast<char>('a' + (symbol - kStates));
}

class Rows {
 public:
  Rows(const BlockPicture& picture, const BlockDetails& details)
      : picture_(picture),
        details_(details),
        causes_(std::min(kMostCauses, details.causes.size())),
        of_row_(static_cast<std::size_t>(picture.columns)) {}

  void read(std::int64_t row, std::vector<Symbol>& symbols) {
    const std::uint8_t* states = picture_.states->data() + row * picture_.columns;
    const bool has_causes = causes_ > 0 && details_.causes_of;
    if (has_causes) details_.causes_of(row, of_row_.data());
    for (std::size_t c = 0; c < of_row_.size(); ++c) {
      symbols[c] = static_cast<Symbol>(state_of(states[c]));
      if (has_causes && states[c] == 0 && of_row_[c] < causes_)
        symbols[c] = static_cast<Symbol>(kStates + of_row_[c]);
    }
  }

 private:
  const BlockPicture& picture_;
  const BlockDetails& details_;
  std::size_t causes_;
  std::vector<std::uint8_t> of_row_;
};

std::string runs_of(const std::vector<Symbol>& symbols, std::size_t columns) {
  std::string text;
  for (std::size_t c = 0; c < columns;) {
    std::size_t end = c + 1;
    while (end < columns && symbols[end] == symbols[c]) ++end;
    text += letter_of(symbols[c]);
    if (end - c > 1) text += std::to_string(end - c);
    c = end;
  }
  return text;
}

// All rows at a scale; nothing where they take more bytes.
std::optional<std::string> runs_at(const BlockPicture& picture, const BlockDetails& details,
                                   std::int64_t scale, std::size_t most_bytes) {
  const auto columns = static_cast<std::size_t>(picture.columns);
  const auto cells = static_cast<std::size_t>(core::ceil_div(picture.columns, scale));
  Rows rows(picture, details);
  std::vector<Symbol> cell(columns), other(columns);
  std::string all, above;
  std::int64_t repeats = 0;
  const auto end_repeats = [&] {
    if (repeats > 0) all += repeats > 1 ? "/=" + std::to_string(repeats) : "/=";
    repeats = 0;
  };
  for (std::int64_t r = 0; r < picture.rows; r += scale) {
    rows.read(r, cell);
    for (std::int64_t more = r + 1; more < std::min(picture.rows, r + scale); ++more) {
      rows.read(more, other);
      for (std::size_t c = 0; c < columns; ++c) cell[c] = joined(cell[c], other[c]);
    }
    for (std::size_t c = 0; scale > 1 && c < cells; ++c) {
      const std::size_t begin = c * static_cast<std::size_t>(scale);
      Symbol symbol = cell[begin];
      for (std::size_t k = begin + 1; k < std::min(columns, begin + static_cast<std::size_t>(scale)); ++k)
        symbol = joined(symbol, cell[k]);
      cell[c] = symbol;
    }
    std::string row = runs_of(cell, cells);
    if (r > 0 && row == above) {
      ++repeats;
      continue;
    }
    end_repeats();
    if (r > 0) all += '/';
    all += row;
    if (all.size() > most_bytes) return std::nullopt;
    above = std::move(row);
  }
  end_repeats();
  return all;
}

std::string base64(const std::vector<double>& shares) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  for (const double share : shares) {
    // 0 and 4095 are none and all.
    auto value = static_cast<int>(std::lround(4095 * std::clamp(share, 0.0, 1.0)));
    if (share > 0) value = std::max(value, 1);
    if (share < 1) value = std::min(value, 4094);
    text += kDigits[value / 64];
    text += kDigits[value % 64];
  }
  return text;
}

nlohmann::ordered_json axis_of(const PictureAxis& axis, std::int64_t blocks) {
  return {{"name", axis.name},
          {"block", axis.block},
          {"length", axis.length > 0 ? axis.length : blocks * axis.block}};
}

}  // namespace

std::string block_map(const BlockPicture& picture, std::size_t most_bytes) {
  const BlockDetails details = picture.details ? picture.details() : BlockDetails();
  std::int64_t scale = 1;
  std::optional<std::string> runs;
  while (!(runs = runs_at(picture, details, scale, std::max<std::size_t>(most_bytes, 64)))) scale *= 2;

  nlohmann::ordered_json map;
  map["rows"] = core::ceil_div(picture.rows, scale);
  map["columns"] = core::ceil_div(picture.columns, scale);
  map["blocks"] = {picture.rows, picture.columns};
  map["scale"] = scale;
  map["axes"] = {axis_of(picture.row_axis, picture.rows), axis_of(picture.column_axis, picture.columns)};
  map["block"] = picture.block_name;
  map["names"] = nlohmann::json::array();
  for (const CellState state : states_of(picture)) map["names"].push_back(state_name(picture, state));
  map["causes"] = details.causes;
  map["runs"] = *runs;
  map["density"] = nullptr;
  if (!details.density.empty()) {
    const std::int64_t blocks = details.blocks_per_cell;
    map["density"] = {{"blocks", blocks},
                      {"rows", core::ceil_div(picture.rows, blocks)},
                      {"columns", core::ceil_div(picture.columns, blocks)},
                      {"values", base64(details.density)}};
  }
  std::string text = map.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace ejk::report
