// Audit of grouped products: a mutant is made of spans of rows with the matrix that each is multiplied by. Cost: a
// product for each mutant, by the library's kernels; with the error bound a reference, too.
// tests: tests/verdict/audit/test_products.cpp
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "compare/float_type.hpp"
#include "core/elements.hpp"
#include "core/require.hpp"
#include "ejk/audit.hpp"
#include "ejk/matmul_check.hpp"
#include "matmul/packed.hpp"
#include "verdict/audit/found.hpp"
#include "verdict/matmul/reference.hpp"

namespace ejk {

namespace {

using audits::Measured;

constexpr std::int64_t kLabelTile = 128;
constexpr std::int64_t kDepthTiles[] = {64, 128};

struct Span {
  std::int64_t begin = 0, end = 0, group = 0;
};

Array rounded_to_tf32(const ArrayView& view) {
  Array copy(DType::float32, view.shape);
  const std::int64_t columns = view.shape.back(),
                     rows = element_count(view.shape) / std::max<std::int64_t>(columns, 1);
  std::vector<double> row(static_cast<std::size_t>(columns));
  const bool has_matrices = view.shape.size() == 3;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t of = view.shape[view.shape.size() - 2];
    const std::byte* const from = view.data + (has_matrices ? r / of * view.strides[0] : 0) +
                                  r % of * view.strides[view.strides.size() - 2];
    core::load(view.dtype, from, view.strides.back(), columns, row.data());
    for (std::int64_t c = 0; c < columns; ++c)
      copy.elements<float>()[static_cast<std::size_t>(r * columns + c)] =
          static_cast<float>(verify::kTf32(row[static_cast<std::size_t>(c)]));
  }
  return copy;
}

class ProductAudit {
 public:
  ProductAudit(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
               const GroupedMatmulSettings& settings, const AuditOptions& options)
      : lhs_(lhs),
        rhs_(rhs),
        settings_(settings),
        options_(options),
        plan_({lhs.dtype, lhs.shape}, {rhs.dtype, rhs.shape}, group_sizes, settings),
        p_(plan_.internal()) {
    for (std::int64_t g = 0; g < p_.groups_in_all(); ++g) {
      const IndexRange rows = p_.ranges[g];
      if (rows.count() > 0) spans_.push_back({rows.begin, rows.end, g});
    }
  }

  Audit run() {
    audit_.kind = "grouped-matmul";
    audit_.dtype = plan_.out().dtype;
    audit_.rule = options_.rule;
    expected_ = product(spans_, lhs_, rhs_, settings_.transpose_rhs);
    values_ = audits::values_of(expected_);
    scale_ = audits::scale_of(options_, 0, {"out", plan_.out()}, values_);
    if (options_.mutant) options_.mutant("expected", audits::copy_of(expected_));
    of_values();
    of_groups();
    of_depth();
    double size = 0;
    for (const double value : values_)
      if (std::abs(value) < std::numeric_limits<double>::infinity()) size = std::max(size, std::abs(value));
    audits::add_found(audit_, options_, std::move(found_), std::numeric_limits<double>::infinity(), size);
    return std::move(audit_);
  }

 private:
  bool has_weights(std::int64_t group) const {
    return group >= p_.first_group && group < p_.first_group + p_.groups;
  }

  // The rows of spans times their matrices, rounded once to the type of the result.
  Array product(const std::vector<Span>& spans, const ArrayView& lhs, const ArrayView& rhs,
                bool transposes) const {
    Array out(plan_.out().dtype, plan_.out().shape);
    GroupedMatmulOptions how;
    how.transpose_rhs = transposes;
    const bool is_wide = lhs.dtype == DType::float64 || rhs.dtype == DType::float64;
    how.dtype = is_wide ? DType::float64 : out.dtype() == DType::float64 ? DType::float32 : out.dtype();
    for (const Span& span : spans) {
      if (!has_weights(span.group) || lhs.shape[1] == 0 || p_.n == 0) continue;
      const ArrayView rows = matmul::rows_from(lhs, span.begin, span.end),
                      matrix{rhs.data + (span.group - p_.first_group) * rhs.strides[0],
                             rhs.dtype,
                             {1, rhs.shape[1], rhs.shape[2]},
                             rhs.strides};
      const Array part =
          grouped_matmul(rows, matrix, IntegerArray(std::vector<std::int64_t>{span.end - span.begin}), how);
      auto* const to =
          static_cast<std::byte*>(out.mutable_view().data) + span.begin * p_.n * size_of(out.dtype());
      convert(part, out.dtype(), to);
    }
    return out;
  }

  static void convert(const Array& part, DType dtype, std::byte* to) {
    if (part.dtype() == dtype) {
      std::copy_n(part.view().data, part.size() * size_of(dtype), to);
      return;
    }
    const std::vector<double> values = audits::values_of(part);
    matmul::store(values.data(), std::ssize(values), dtype, to);
  }

  void add(std::string_view name, const std::string& parameter, Array mutant, std::string remedy) {
    const Fault* const fault = find_fault(name);
    Measured one{audits::of_array(options_.rule, "out", mutant, values_, scale_), std::move(remedy)};
    one.fault.fault = fault;
    one.fault.parameter = parameter;
    one.fault.text = fault->text;
    if (!parameter.empty()) one.fault.text += fmt::format(", in tiles of {}", parameter);
    if (options_.rule.form == PassRule::Form::bound && one.fault.differing > 0)
      audits::take(
          compare_results(plan_, lhs_, rhs_, std::nullopt, expected_.view(), mutant.view(), Explain::no),
          one.fault);
    found_.push_back(std::move(one));
    if (options_.mutant)
      options_.mutant(parameter.empty() ? std::string(name) : fmt::format("{}.{}", name, parameter),
                      std::move(mutant));
  }
  void leave(std::string_view name, std::string why) {
    audit_.not_tried.push_back({find_fault(name), std::move(why)});
  }

  void of_values() {
    add("zeros", "", Array(plan_.out().dtype, plan_.out().shape), "");
    if (lhs_.dtype != DType::float32 || rhs_.dtype != DType::float32) {
      leave("inputs-tf32", "the factors are not float32");
      return;
    }
    const Array lhs = rounded_to_tf32(lhs_), rhs = rounded_to_tf32(rhs_);
    add("inputs-tf32", "", product(spans_, lhs.view(), rhs.view(), settings_.transpose_rhs),
        "the factors are TF32 already: random ones");
  }

  void of_groups() {
    const auto changed = [&](std::string_view name, const std::string& parameter,
                             const std::vector<Span>& spans, std::string remedy) {
      add(name, parameter, product(spans, lhs_, rhs_, settings_.transpose_rhs), std::move(remedy));
    };
    const std::int64_t rows = spans_.empty() ? 0 : spans_.back().end;
    if (spans_.empty() || rows == p_.m) {
      leave("tail-rows", "no row is past the last group");
    } else {
      std::vector<Span> spans = spans_;
      spans.back().end = p_.m;
      changed("tail-rows", "", spans, "the last group has no weights here");
    }
    if (p_.k == p_.n)
      add("weights-transposed", "", product(spans_, lhs_, rhs_, !settings_.transpose_rhs),
          "the weights are symmetric: other ones");
    else
      leave("weights-transposed", "k and n differ");
    changed("tile-label", std::to_string(kLabelTile), of_first_rows(),
            fmt::format("all groups begin at multiples of {}: other sizes", kLabelTile));
    if (p_.groups > 1) {
      std::vector<Span> spans = spans_;
      for (Span& span : spans)
        if (has_weights(span.group))
          span.group = p_.first_group + (span.group - p_.first_group + 1) % p_.groups;
      changed("expert-next", "", spans, "all groups have the same weights: different ones");
    } else {
      leave("expert-next", "there is one group");
    }
  }

  // The rows of each tile with the group of the first.
  std::vector<Span> of_first_rows() const {
    std::vector<Span> spans;
    std::size_t at = 0;
    for (std::int64_t begin = 0; begin < p_.m; begin += kLabelTile) {
      while (at < spans_.size() && spans_[at].end <= begin) ++at;
      if (at < spans_.size() && spans_[at].begin <= begin)
        spans.push_back({begin, std::min(begin + kLabelTile, p_.m), spans_[at].group});
    }
    return spans;
  }

  void of_depth() {
    if (p_.k < kDepthTiles[0])
      leave("k-tail", fmt::format("the contraction is shorter than {}", kDepthTiles[0]));
    for (const std::int64_t tile : kDepthTiles) {
      if (p_.k < tile) break;
      const std::int64_t depth = p_.k / tile * tile;
      ArrayView lhs = lhs_, rhs = rhs_;
      lhs.shape[1] = rhs.shape[settings_.transpose_rhs ? 2 : 1] = depth;
      add("k-tail", std::to_string(tile), product(spans_, lhs, rhs, settings_.transpose_rhs),
          fmt::format("tiles of {} divide the contraction of {}: {}", tile, p_.k, p_.k + 1));
    }
  }

  const ArrayView &lhs_, &rhs_;
  const GroupedMatmulSettings& settings_;
  const AuditOptions& options_;
  GroupedMatmulPlan plan_;
  const matmul::Problem& p_;
  std::vector<Span> spans_;  // rows of groups
  Array expected_;
  std::vector<double> values_;
  audits::RuleScale scale_;
  std::vector<Measured> found_;
  Audit audit_;
};

}  // namespace

Audit audit(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
            const GroupedMatmulSettings& settings, const AuditOptions& options) {
  if (options.rule.form == PassRule::Form::flash_attn)
    throw Error(Error::Kind::usage, "the tolerance flash-attn is that of attention");
  return ProductAudit(lhs, rhs, group_sizes, settings, options).run();
}

}  // namespace ejk
