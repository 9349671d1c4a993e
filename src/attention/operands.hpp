// Tables of operands and results: names, boxes of ranks, views and tolerances follow from their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "attention/problem.hpp"
#include "ejk/program/attention_ranks.hpp"

namespace ejk::attn {

/// The form of an array: rows of queries or keys of the layout with `columns` elements, or a bias's own.
/// Without columns: one element a query, the layout of lse.
struct Form {
  RowsOf rows = RowsOf::queries;
  std::int64_t Sizes::*columns = nullptr;

  bool is_lse() const { return rows == RowsOf::queries && columns == nullptr; }
};
inline constexpr Form kQueryForm{RowsOf::queries, &Sizes::head_size},
    kOutForm{RowsOf::queries, &Sizes::value_size}, kKeyForm{RowsOf::keys, &Sizes::head_size},
    kValueForm{RowsOf::keys, &Sizes::value_size}, kLseForm{RowsOf::queries}, kBiasForm{RowsOf::bias},
    kSinksForm{RowsOf::sinks};

struct OperandRow {
  /// The readers: all that compute scores; all of gradients; those that begin with a forward pass.
  enum class Use { scores, gradients, saved };
  Form form;
  Use use = Use::scores;
};
inline constexpr AttentionOperands<OperandRow> kOperands{
    .q = OperandRow{kQueryForm},
    .k = OperandRow{kKeyForm},
    .v = OperandRow{kValueForm},
    .bias = OperandRow{kBiasForm},
    .dout = OperandRow{kOutForm, OperandRow::Use::gradients},
    .out = OperandRow{kOutForm, OperandRow::Use::saved},
    .lse = OperandRow{kLseForm, OperandRow::Use::saved},
    .dropout = OperandRow{kBiasForm},
};

struct ResultRow {
  const char* name;
  Form form;
  AttentionPart::Makes part;  // of several ranks
  std::optional<ArrayType> AttentionTypes::*gradient =
      nullptr;  // of this operand, whose shape and type it has
};
inline constexpr ResultRow kResults[] = {
    {"out", kOutForm, AttentionPart::Makes::out},
    {"lse", kLseForm, AttentionPart::Makes::out},
    {"dq", kQueryForm, AttentionPart::Makes::gradients, &AttentionTypes::q},
    {"dk", kKeyForm, AttentionPart::Makes::gradients, &AttentionTypes::k},
    {"dv", kValueForm, AttentionPart::Makes::gradients, &AttentionTypes::v},
    {"dbias", kBiasForm, AttentionPart::Makes::dbias, &AttentionTypes::bias},
    {"dsinks", kSinksForm, AttentionPart::Makes::dsinks},
};
inline const ResultRow& row_of(Result result) { return kResults[static_cast<std::size_t>(result)]; }

/// Results of a plan are in the order of this enumeration: out and lse, or gradients, dbias of a bias alone.
inline Result result_at(const CheckedArguments& setup, std::size_t index) {
  const auto result =
      static_cast<Result>(static_cast<std::size_t>(setup.gradients ? Result::dq : Result::out) + index);
  return result == Result::dbias && !setup.bias ? Result::dsinks : result;
}
inline std::size_t index_of(const CheckedArguments& setup, Result result) {
  if (result == Result::dsinks && !setup.bias) result = Result::dbias;
  return static_cast<std::size_t>(result) -
         static_cast<std::size_t>(setup.gradients ? Result::dq : Result::out);
}

/// An array as (B, heads, positions, elements); lse as it is.
inline ArrayView in_one_form(const ArrayView& array, Form form, AttentionLayout layout) {
  return form.is_lse()                ? array
         : form.rows == RowsOf::sinks ? of_sinks_form(array)
         : form.rows == RowsOf::bias  ? with_four_axes(array)
                                      : in_one_form(array, layout);
}

}  // namespace ejk::attn
