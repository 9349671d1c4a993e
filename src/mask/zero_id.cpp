// The meaning of segment id 0: a document, or padding. One pass over the ids, in pieces: 2 MiB.
// tests: tests/mask/test_zero_id.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/offsets.hpp"
#include "core/pieces.hpp"
#include "ejk/segments.hpp"

namespace ejk {

namespace {

using Source = std::shared_ptr<const ArraySource>;

bool has_ids(const ArraySource& ids) {
  return is_integer(ids.dtype()) && !ids.shape().empty() && element_count(ids.shape()) > 0;
}

// The rows of ids, element by element.
class ZeroScan {
 public:
  void add_rows(const ArraySource& ids) {
    constexpr std::int64_t kPiece = std::int64_t{1} << 17;
    const std::int64_t columns = ids.shape().back();
    std::vector<std::byte> raw;
    std::vector<std::int64_t> values;
    std::int64_t column = 0;
    core::for_each_piece(ids.shape(), kPiece, [&](const Shape& start, const Shape& count) {
      values.resize(static_cast<std::size_t>(element_count(count)));
      core::read_integer_box(ids, start, count, raw, values.data());
      for (const std::int64_t id : values) {
        add(id, column == 0);
        if (++column == columns) column = 0;
      }
    });
  }

  ZeroId result() const {
    if (!has_zero_) return {};
    if (has_negative_) return {ZeroId::Meaning::document, "negative ids are the padding"};
    if (all_begin_ && !is_elsewhere_)
      return {ZeroId::Meaning::document, "every row begins with it and has it nowhere else"};
    // Rows of ids 0 and 1 alone are a padding mask.
    if (any_begins_ && !is_elsewhere_ && largest_ > 1)
      return {ZeroId::Meaning::padding, "it begins some rows, and others have none"};
    return {ZeroId::Meaning::padding, ""};
  }

 private:
  void add(std::int64_t id, bool begins_row) {
    const bool is_zero = id == 0;
    is_leading_ = is_zero && (begins_row || is_leading_);
    has_zero_ = has_zero_ || is_zero;
    has_negative_ = has_negative_ || id < 0;
    largest_ = std::max(largest_, id);
    any_begins_ = any_begins_ || (begins_row && is_zero);
    all_begin_ = all_begin_ && (!begins_row || is_zero);
    is_elsewhere_ = is_elsewhere_ || (is_zero && !is_leading_);
  }

  bool is_leading_ = true;  // all ids of the row so far are 0
  bool has_zero_ = false, has_negative_ = false, any_begins_ = false, all_begin_ = true,
       is_elsewhere_ = false;
  std::int64_t largest_ = 0;
};

}  // namespace

ZeroId zero_id_of(const std::vector<Source>& ids) {
  ZeroScan scan;
  for (const Source& one : ids)
    if (one->dtype() == DType::boolean) return {ZeroId::Meaning::padding, ""};
  for (const Source& one : ids)
    if (has_ids(*one)) scan.add_rows(*one);
  return scan.result();
}

Source ids_from_1(const ArraySource& ids) {
  Array from_1(DType::int64, ids.shape());
  const auto values = from_1.elements<std::int64_t>();
  std::vector<std::byte> raw;
  core::read_integer_box(ids, Shape(ids.shape().size(), 0), ids.shape(), raw, values.data());
  for (std::int64_t& id : values)
    if (id >= 0 && id < std::numeric_limits<std::int64_t>::max()) ++id;
  return make_source(std::move(from_1), ids.name());
}

}  // namespace ejk
