// Results of linear attention as rows beside their reference.
// tests: tests/verdict/recurrence/test_linear.cpp
#include "verdict/recurrence/linear_comparison.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/elements.hpp"

namespace ejk::recurrence_verdict {

using recurrence::Sequence;

std::optional<FactorType> usual_factors(const LinearAttentionArrays& arrays) {
  std::optional<FactorType> type;
  bool is_narrow = true;
  for (const auto& array : {arrays.q, arrays.k, arrays.v}) {
    is_narrow = is_narrow && size_of(array->dtype) == 2;
    if (array->dtype == DType::bfloat16 || !type)
      type = array->dtype == DType::float16 ? FactorType::f16 : FactorType::bf16;
  }
  return is_narrow ? type : std::nullopt;
}

LinearComparison::LinearComparison(const LinearAttentionArrays& arrays,
                                   const LinearAttentionSettings& settings, std::optional<FactorType> factors)
    : plan(types_of(arrays), settings),
      inputs(plan, arrays),
      truth(plan, inputs, factors ? factors : usual_factors(arrays)) {}

LinearRowsCompared LinearComparison::rows_of_out(const ArrayView& given) const {
  const std::int64_t heads = plan.out_heads, tokens = truth.tokens, shared = heads / plan.state_heads;
  const auto entry_of = [=](std::int64_t row) { return row / (tokens * heads); };
  const auto token_of = [=](std::int64_t row) { return row / heads % tokens; };
  LinearRowsCompared it;
  verify::ResultRows& rows = it.rows;
  rows.name = "out";
  rows.dtype = given.dtype;
  rows.rows = plan.tokens * heads;
  rows.columns = plan.value_size;
  rows.column = "column";
  rows.columns_name = "columns";
  rows.axes = {{"sequence", "sequences", std::ssize(plan.sequences), verify::RowAxis::Kind::part},
               {"token", "tokens", tokens, verify::RowAxis::Kind::position},
               {"head", "heads", heads, verify::RowAxis::Kind::part}};
  const bool is_packed = plan.settings.layout == LinearAttentionLayout::thd;
  rows.array_axes = is_packed ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{0, 1, 2};
  rows.tiles = {"token", "head"};
  const auto sequence_of = [this, entry_of, token_of](std::int64_t row) {
    return sequence_at(plan, entry_of(row), token_of(row));
  };
  rows.place = [=](std::int64_t row, std::int64_t* at) {
    at[0] = sequence_of(row), at[1] = token_of(row), at[2] = row % heads;
  };
  rows.index = [=, this](std::int64_t row, std::int64_t column) {
    Shape index{entry_of(row), token_of(row), row % heads, column};
    if (plan.settings.layout == LinearAttentionLayout::bhsd) std::swap(index[1], index[2]);
    if (is_packed && !plan.has_leading_axis) index.erase(index.begin());
    return index;
  };
  rows.given = [=, view = plan.in_one_form(given, plan.value_size)](std::int64_t row, double* values) {
    core::load(view.dtype,
               view.data + entry_of(row) * view.strides[0] + row % heads * view.strides[1] +
                   token_of(row) * view.strides[2],
               view.strides[3], view.shape[3], values);
  };
  it.bound_of = [=, this,
                 rounding = rounding_of(given.dtype, truth.unit, truth.usual_of_out)](std::int64_t row) {
    RowBound bound = rounding;
    const std::int64_t n = sequence_of(row);
    const Sequence& s = plan.sequences[static_cast<std::size_t>(n)];
    bound.absolute = truth.out_allowed(n, row % heads, token_of(row) - s.begin);
    bound.largest = truth.largest_of_out(n, row % heads / shared, shared);
    return bound;
  };
  rows.expected = [=, this, bound_of = it.bound_of](std::int64_t row, double* values, double* allowed) {
    std::copy_n(truth.out_row(entry_of(row), row % heads, token_of(row)), plan.value_size, values);
    bound_of(row)({values, static_cast<std::size_t>(plan.value_size)}, 0, allowed);
  };
  it.predict = [=](FaultyResult& result, std::int64_t row, Columns columns, double* values) {
    return result.out(entry_of(row), token_of(row), row % heads, columns, values);
  };
  it.cell_of = [=, this](std::int64_t row) {
    const std::int64_t n = sequence_of(row);
    return std::array{n, row % heads / shared,
                      token_of(row) - plan.sequences[static_cast<std::size_t>(n)].begin};
  };
  it.has_tokens = true;
  it.row_in = [=, this](const HeadResult& result, std::int64_t count, std::int64_t token, std::int64_t row) {
    return result.out.data() + (row % heads % shared * count + token) * plan.value_size;
  };
  return it;
}

LinearRowsCompared LinearComparison::rows_of_final_state(const ArrayView& given) const {
  const std::int64_t heads = plan.state_heads, keys = plan.key_size, values_size = plan.value_size;
  const bool has_slots = static_cast<bool>(plan.settings.slots.read);
  const char* const one = has_slots ? "slot" : "sequence";
  const auto slot_of = [=](std::int64_t row) { return row / (heads * keys); };
  const auto head_of = [=](std::int64_t row) { return row / keys % heads; };
  LinearRowsCompared it;
  verify::ResultRows& rows = it.rows;
  rows.name = "final_state";
  rows.dtype = given.dtype;
  rows.rows = plan.final_state.shape[0] * heads * keys;
  rows.columns = values_size;
  rows.column = "column";
  rows.columns_name = "columns";
  rows.axes = {{one, std::string(one) + "s", plan.final_state.shape[0], verify::RowAxis::Kind::part},
               {"head", "heads", heads, verify::RowAxis::Kind::part},
               {"key channel", "key channels", keys, verify::RowAxis::Kind::position}};
  rows.array_axes = {0, 1, 2};
  rows.place = [=](std::int64_t row, std::int64_t* at) {
    at[0] = slot_of(row), at[1] = head_of(row), at[2] = row % keys;
  };
  rows.index = [=, this](std::int64_t row, std::int64_t column) {
    Shape index{slot_of(row), head_of(row), row % keys, column};
    if (plan.settings.state_layout == StateLayout::vk) std::swap(index[2], index[3]);
    return index;
  };
  rows.given = [=, view = plan.state_form(given)](std::int64_t row, double* values) {
    core::load(view.dtype,
               view.data + slot_of(row) * view.strides[0] + head_of(row) * view.strides[1] +
                   row % keys * view.strides[2],
               view.strides[3], view.shape[3], values);
  };
  it.bound_of = [=, this,
                 rounding = rounding_of(given.dtype, truth.unit, truth.usual_of_state)](std::int64_t row) {
    RowBound bound = rounding;
    const std::int64_t n = truth.writers[static_cast<std::size_t>(slot_of(row))];
    bound.is_copy = n < 0 && given.dtype == plan.final_state.dtype;
    if (n < 0) return bound;
    bound.absolute = truth.state_allowed(n, head_of(row));
    bound.largest = truth.largest_of_state(n, head_of(row));
    return bound;
  };
  rows.expected = [=, this, bound_of = it.bound_of](std::int64_t row, double* values, double* allowed) {
    std::copy_n(truth.state(slot_of(row), head_of(row)) + row % keys * values_size, values_size, values);
    bound_of(row)({values, static_cast<std::size_t>(values_size)}, 0, allowed);
  };
  it.predict = [=](FaultyResult& result, std::int64_t row, Columns columns, double* values) {
    return result.state(slot_of(row), head_of(row), row % keys, columns, values);
  };
  it.cell_of = [=, this](std::int64_t row) {
    const std::int64_t n = truth.writers[static_cast<std::size_t>(slot_of(row))];
    const std::int64_t length = n < 0 ? 0 : plan.sequences[static_cast<std::size_t>(n)].length;
    return std::array{n, head_of(row), length - 1};
  };
  it.row_in = [=](const HeadResult& result, std::int64_t, std::int64_t, std::int64_t row) {
    return result.state.data() + row % keys * values_size;
  };
  return it;
}

}  // namespace ejk::recurrence_verdict
