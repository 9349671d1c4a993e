// Data of a page's zoomable block map: run-length codes of rows, some hundred KiB for a million tokens; if
// larger, cells of four times the blocks.
//
// Cost: a pass over the blocks, and over a quarter as many for each further scale. Memory: a byte a block.
//
// tests: tests/report/test_html.cpp
#include "report/block_map.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/checked.hpp"
#include "core/json.hpp"
#include "ejk/program/text.hpp"
#include "report/picture.hpp"

namespace ejk::report {

namespace {

// page.js has the same number.
constexpr std::uint32_t kMostShare = (1 << 18) - 1;

struct Cells {
  std::int64_t rows = 0, columns = 0;
  std::vector<CellState> states;

  CellState* row(std::int64_t r) { return states.data() + r * columns; }
  const CellState* row(std::int64_t r) const { return states.data() + r * columns; }
};

Cells cells_of(const BlockPicture& picture) {
  Cells cells{picture.rows(), picture.columns(), {}};
  cells.states.resize(static_cast<std::size_t>(picture.states->blocks()), CellState::empty);
  for (std::int64_t r = 0; r < picture.rows(); ++r) {
    const auto states = picture.states->states(r);
    std::transform(states.begin(), states.end(), cells.row(r) + picture.states->run(r).begin, state_of);
  }
  return cells;
}

Cells halved(const Cells& fine) {
  Cells coarse{core::ceil_div(fine.rows, 2), core::ceil_div(fine.columns, 2), {}};
  coarse.states.reserve(static_cast<std::size_t>(coarse.rows * coarse.columns));
  for (std::int64_t r = 0; r < fine.rows; r += 2) {
    const CellState* top = fine.row(r);
    const CellState* bottom = r + 1 < fine.rows ? fine.row(r + 1) : top;
    for (std::int64_t c = 0; c < fine.columns; c += 2) {
      const std::int64_t next = c + 1 < fine.columns ? c + 1 : c;
      coarse.states.push_back(joined(joined(top[c], top[next]), joined(bottom[c], bottom[next])));
    }
  }
  return coarse;
}

std::string runs_of(const CellState* states, std::int64_t columns) {
  std::string text;
  for (std::int64_t c = 0; c < columns;) {
    std::int64_t end = c + 1;
    while (end < columns && states[end] == states[c]) ++end;
    text += letter_of(states[c]);
    if (end - c > 1) text += std::to_string(end - c);
    c = end;
  }
  return text;
}

// All rows; nothing where they take more bytes.
std::optional<std::string> runs_of(const Cells& cells, std::size_t most_bytes) {
  std::string all, above;
  std::int64_t repeats = 0;
  const auto end_repeats = [&] {
    if (repeats > 0) all += repeats > 1 ? "/=" + std::to_string(repeats) : "/=";
    repeats = 0;
  };
  for (std::int64_t r = 0; r < cells.rows; ++r) {
    std::string row = runs_of(cells.row(r), cells.columns);
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
    // 0 and the most are none and all.
    auto value = static_cast<std::uint32_t>(std::lround(kMostShare * std::clamp(share, 0.0, 1.0)));
    if (share > 0) value = std::max<std::uint32_t>(value, 1);
    if (share < 1) value = std::min(value, kMostShare - 1);
    for (const int shift : {12, 6, 0}) text += kDigits[value >> shift & 63];
  }
  return text;
}

// The densities of a picture, in cells large enough that they take at most so many bytes.
void put_density(core::JsonWriter& json, const BlockPicture& picture, const BlockDetails& details,
                 std::size_t most_bytes) {
  if (details.density.empty()) return json.null();
  const auto elements = [](const PictureAxis& axis, std::int64_t blocks, std::int64_t begin,
                           std::int64_t end) {
    return static_cast<double>(std::min(end * axis.block, elements_along(axis, blocks)) - begin * axis.block);
  };
  std::int64_t cell = details.blocks_per_cell;
  std::vector<double> shares = details.density;
  while (3 * shares.size() > most_bytes && shares.size() > 1) {
    const std::int64_t fine_rows = core::ceil_div(picture.rows(), cell),
                       fine_columns = core::ceil_div(picture.columns(), cell);
    std::vector<double> coarse;
    for (std::int64_t r = 0; r < fine_rows; r += 2)
      for (std::int64_t c = 0; c < fine_columns; c += 2) {
        double sum = 0, area = 0;
        for (std::int64_t i = r; i < std::min(r + 2, fine_rows); ++i)
          for (std::int64_t j = c; j < std::min(c + 2, fine_columns); ++j) {
            const double weight = elements(picture.row_axis, picture.rows(), i * cell, (i + 1) * cell) *
                                  elements(picture.column_axis, picture.columns(), j * cell, (j + 1) * cell);
            sum += weight * shares[static_cast<std::size_t>(i * fine_columns + j)];
            area += weight;
          }
        coarse.push_back(sum / area);
      }
    shares = std::move(coarse);
    cell *= 2;
  }
  json.object([&] {
    json.key("blocks").put(cell);
    json.key("columns").put(core::ceil_div(picture.columns(), cell));
    json.key("values").put(base64(shares));
  });
}

void put_axis(core::JsonWriter& json, const PictureAxis& axis, std::int64_t blocks,
              const std::string& block_name) {
  json.object([&] {
    json.key("name").put(printable(axis.name, kLongestName));
    json.key("block").put(axis.block);
    json.key("length").put(elements_along(axis, blocks));
    json.key("label").put(printable(label_of(axis, block_name), kLongestName));
  });
}

}  // namespace

std::string block_map(const BlockPicture& picture, const BlockCounts& counts, std::size_t most_bytes) {
  const BlockDetails details = picture.details ? picture.details() : BlockDetails();
  const std::size_t for_runs = std::max<std::size_t>(most_bytes / 2, 64), for_density = most_bytes / 4;
  Cells cells = cells_of(picture);
  std::int64_t scale = 1;
  std::optional<std::string> runs;
  while (!(runs = runs_of(cells, for_runs))) cells = halved(cells), scale *= 2;

  std::vector<std::string> names;
  std::vector<std::int64_t> counts_of_states;
  for (const CellState state : states_of(picture)) {
    names.push_back(printable(state_name(picture, state), kLongestName));
    counts_of_states.push_back(counts.by_state[static_cast<std::size_t>(state)]);
  }

  core::JsonWriter json(core::JsonStyle::stable);
  json.object([&] {
    json.key("rows").put(cells.rows);
    json.key("columns").put(cells.columns);
    json.key("blocks").put(Shape{picture.rows(), picture.columns()});
    json.key("scale").put(scale);
    json.key("axes").list([&] {
      put_axis(json, picture.row_axis, picture.rows(), picture.block_name);
      put_axis(json, picture.column_axis, picture.columns(), picture.block_name);
    });
    json.key("block").put(printable(picture.block_name, kLongestName));
    json.key("names").put(names);
    json.key("counts").put(counts_of_states);
    json.key("runs").put(*runs);
    json.key("density");
    put_density(json, picture, details, for_density);
  });
  std::string text = json.take();
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace ejk::report
