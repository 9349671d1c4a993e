// Sequences from the ids of their tokens, and recognition of the form of an integer array.
//
// One pass over rows of 64-bit integers. Cost: 16 bytes an element.
//
// tests: tests/sequence/test_forms.cpp
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/id_values.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/sequence.hpp"

namespace ejk {

namespace {

struct IdRows {
  std::vector<std::int64_t> values;
  std::int64_t rows = 0, columns = 0;

  std::span<const std::int64_t> row(std::int64_t r) const {
    return std::span(values).subspan(static_cast<std::size_t>(r * columns),
                                     static_cast<std::size_t>(columns));
  }
};

IdRows read_rows(const ArraySource& ids, const char* what) {
  const Shape& shape = ids.shape();
  if (!is_integer(ids.dtype()) && ids.dtype() != DType::boolean)
    throw std::move(Error(Error::Kind::input,
                          fmt::format("{} must be integers, not {}", what, name_of(ids.dtype())),
                          is_float(ids.dtype()) ? Error::Code::not_integers : Error::Code::other)
                        .at(ids.name()));
  if (shape.size() != 1 && shape.size() != 2) {
    Error error(Error::Kind::input,
                fmt::format("{} are (tokens,) or (rows, tokens), not of shape {}", what, to_string(shape)));
    if (shape.size() == 3)
      error.hint(fmt::format("take one of the first axis with a slice: \"{}[0]\"", ids.name()));
    throw std::move(error.at(ids.name()));
  }
  IdRows rows;
  rows.values.resize(static_cast<std::size_t>(element_count(shape)));
  if (!rows.values.empty()) rows.rows = shape.size() == 2 ? shape[0] : 1;  // empty rows may be any number
  rows.columns = shape.back();
  std::vector<std::byte> raw;
  core::read_integer_box(ids, Shape(shape.size(), 0), shape, raw, rows.values.data());
  return rows;
}

// "position ids[3]" of one row, "position ids[1, 3]" of several.
std::string element_of(const char* what, const ArraySource& ids, std::int64_t row, std::size_t column) {
  return ids.shape().size() == 1 ? fmt::format("{}[{}]", what, column)
                                 : fmt::format("{}[{}, {}]", what, row, column);
}

}  // namespace

Array prepare_cu_seqlens_from_segment_ids(const IntegerArray& ids, DType out_dtype) {
  const IdRows rows = read_rows(*ids, "segment ids");
  std::vector<std::int64_t> cu{0};
  std::int64_t tokens = 0;
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const auto row = rows.row(r);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i] < 0) continue;
      ++tokens;
      if (i + 1 == row.size() || row[i + 1] != row[i]) cu.push_back(tokens);
    }
  }
  return core::to_array(cu, out_dtype, "cu_seqlens");
}

Array prepare_cu_seqlens_from_position_ids(const IntegerArray& ids, DType out_dtype) {
  const IdRows rows = read_rows(*ids, "position ids");
  std::vector<std::int64_t> cu{0};
  std::int64_t tokens = 0;
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const auto row = rows.row(r);
    const auto padding = static_cast<std::size_t>(
        std::find_if(row.begin(), row.end(), [](std::int64_t id) { return id >= 0; }) - row.begin());
    // Positions that go on from the row before are of a sequence in two rows.
    const bool goes_on = r > 0 && padding < row.size() && row[padding] - 1 == rows.row(r - 1).back();
    const bool begins_within = !goes_on && core::are_later_positions(row.subspan(padding));
    std::int64_t before = -1;
    for (std::size_t i = 0; i < row.size(); before = row[i++]) {
      if (row[i] < 0) continue;
      if (row[i] == 0 || (begins_within && i == padding)) {
        if (tokens > 0) cu.push_back(tokens);
      } else if (before < 0 || row[i] - 1 != before) {
        throw std::move(
            core::invalid(
                "{} is {}; a position is 0, where a sequence begins, or one more than the one before it",
                element_of("position ids", *ids, r, i), row[i])
                .at(ids->name())
                .hint(i == 0 && row[i] == 1
                          ? "rows that are padded at the left begin with 1 where nothing is: take "
                            "cu_seqlens of their mask"
                          : ""));
      }
      ++tokens;
    }
  }
  if (tokens > 0) cu.push_back(tokens);
  return core::to_array(cu, out_dtype, "cu_seqlens");
}

std::optional<LikelyForm> likely_form(const ArraySource& integers) {
  const IdRows rows = read_rows(integers, "integers of sequences");
  if (rows.values.empty()) return std::nullopt;
  const auto every_row = [&](auto&& f) {
    for (std::int64_t r = 0; r < rows.rows; ++r)
      if (!f(rows.row(r))) return false;
    return true;
  };
  const auto& values = rows.values;
  const std::int64_t largest = *std::max_element(values.begin(), values.end());
  if (largest >= 2 && every_row(core::are_positions<std::int64_t>)) {
    LikelyForm form{SequenceForm::position_ids, std::nullopt};
    for (std::size_t i = 1; i < values.size() && !form.restart; ++i)
      if (values[i] == 0 && values[i - 1] >= 2) form.restart = static_cast<std::int64_t>(i);
    return form;
  }
  if (every_row(core::are_labels)) return LikelyForm{SequenceForm::segment_ids, std::nullopt};
  const bool offsets = rows.rows == 1 && values.size() >= 2 && values.front() == 0 && values.back() > 0 &&
                       std::is_sorted(values.begin(), values.end());
  if (offsets) return LikelyForm{SequenceForm::cu_seqlens, std::nullopt};
  return std::nullopt;
}

}  // namespace ejk
