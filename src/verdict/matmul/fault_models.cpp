// Fault models of grouped products: a row is recomputed in float64 from another row, group, matrix, offset or
// rounding. Comments name the public threads that have the fault.
// tests: tests/verdict/matmul/test_fault_models.cpp
#include "verdict/matmul/against.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "compare/float_type.hpp"
#include "verdict/fault_search.hpp"
#include "verdict/row_factor.hpp"

namespace ejk::matmul {

namespace {

using verify::FaultModel;
using verify::Rounding;

// A row as `factor` · a · b + `existing` · existing_out; without a product `existing` alone.
struct Recipe {
  ArrayView a = {};  // (K,)
  ArrayView b = {};  // (K, n)
  bool has_product = false;
  double factor = 1;
  double existing = 0;
  Rounding factors = {};
  bool exchanges_pairs = false;  // of b along the contraction
};

using RecipeOf = std::function<std::optional<Recipe>(std::int64_t row)>;

ArrayView vector_of(const ArrayView& matrix, std::int64_t row) {
  return {matrix.data + row * matrix.strides[0], matrix.dtype, {matrix.shape[1]}, {matrix.strides[1]}};
}

class FaultModels {
 public:
  FaultModels(const ActualProduct& it, verify::FaultSearch& search)
      : it_(it), p_(it.problem), search_(search) {}

  std::vector<FaultModel> all() {
    of_existing();
    if (p_.cut == Problem::Cut::rows)
      of_rows();
    else
      of_contraction();
    of_both();
    return std::move(list_);
  }

 private:
  Recipe kept() const { return {.existing = it_.operands.existing_out ? 1.0 : 0.0}; }

  Recipe right(std::int64_t row) const {
    const GroupProduct* product = it_.product_of(row);
    if (product == nullptr) return kept();
    return made_of(vector_of(product->a, row - product->row), product->b);
  }

  Recipe made_of(ArrayView a, ArrayView b) const {
    return {.a = std::move(a), .b = std::move(b), .has_product = true, .existing = it_.adds() ? 1.0 : 0.0};
  }

  // The weights of group g, as the product takes them; nothing where it has none.
  std::optional<ArrayView> weights(std::int64_t g) const {
    if (g < p_.first_group || g >= p_.first_group + p_.groups) return std::nullopt;
    const ArrayView matrix = it_.operands.rhs[g - p_.first_group];
    return p_.transpose_rhs ? transposed(matrix) : matrix;
  }

  // A row of lhs with the weights of group g; nothing where there are none of either.
  std::optional<Recipe> with_group(std::int64_t row, std::int64_t g) const {
    const auto b = weights(g);
    if (!b || row < 0 || row >= p_.m) return std::nullopt;
    return made_of(vector_of(it_.operands.lhs, row), *b);
  }

  // Rows [begin, end) of the contraction, for a row of a transposed product; nothing where they are none.
  std::optional<Recipe> over(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    if (begin < 0 || end > p_.m || begin > end) return std::nullopt;
    return made_of(vector_of(columns_from(it_.operands.lhs, begin, end), row % p_.k),
                   rows_from(it_.operands.rhs, begin, end));
  }

  // The group with rows before (step −1) or after (1) that of a row; −1: there is none.
  std::int64_t neighbour(std::int64_t row, std::int64_t step) const {
    std::int64_t g = p_.ranges.begun(row);
    if (step < 0 && it_.group_of(row) < 0) ++g;
    for (g += step; g >= 0 && g < p_.groups_in_all(); g += step)
      if (p_.ranges[g].count() > 0) return g;
    return -1;
  }

  void evaluate(const Recipe& r, std::int64_t row, std::span<const std::int64_t> columns, double* values,
                double* allowed) const {
    const std::int64_t depth = r.has_product ? r.a.shape[0] : 0;
    std::vector<double> a(static_cast<std::size_t>(depth)), b(a.size());
    if (r.has_product) load(r.a.dtype, r.a.data, r.a.strides[0], depth, a.data());
    if (r.factors)
      for (double& value : a) value = r.factors(value);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      double sum = 0, magnitude = 0;
      if (r.has_product) {
        load(r.b.dtype, r.b.data + columns[c] * r.b.strides[1], r.b.strides[0], depth, b.data());
        if (r.factors)
          for (double& value : b) value = r.factors(value);
        if (r.exchanges_pairs)
          for (std::size_t p = 1; p < b.size(); p += 2) std::swap(b[p - 1], b[p]);
        for (std::size_t p = 0; p < a.size(); ++p) {
          sum += a[p] * b[p];
          magnitude += std::abs(a[p] * b[p]);
        }
      }
      double there = 0;
      if (r.existing != 0) {
        Matrix{*it_.operands.existing_out}.load_row(row, columns[c], 1, &there);
        there *= r.existing;
      }
      values[c] = r.factor * sum + there;
      allowed[c] =
          it_.tolerance.of_element(depth, std::abs(r.factor) * magnitude + std::abs(there), values[c]);
      if (!r.has_product && it_.given.dtype != p_.out.dtype)
        allowed[c] = it_.tolerance.result.epsilon() * std::abs(values[c]);
    }
  }

  FaultModel model(std::string kind, std::string text, RecipeOf recipe) const {
    FaultModel made;
    made.by_columns = true;
    made.is_subtle = kind == "rounding";
    made.needs_numbers = kind != "existing";
    made.kind = std::move(kind);
    made.text = std::move(text);
    made.values = [this, recipe = std::move(recipe)](std::int64_t row, std::span<const std::int64_t> columns,
                                                     double* values, double* allowed) {
      const std::optional<Recipe> r = recipe(row);
      if (!r) return false;
      evaluate(*r, row, columns, values, allowed);
      return true;
    };
    return made;
  }

  void add(std::string kind, std::string text, RecipeOf recipe) {
    list_.push_back(model(std::move(kind), std::move(text), std::move(recipe)));
  }

  // Each group holds what belongs to another one: which, is found group by group.
  void add_exchanged(const char* what,
                     const std::function<std::optional<Recipe>(std::int64_t row, std::int64_t g)>& of) {
    const auto candidate = [&](std::int64_t g) {
      return model("", "", [&of, g](std::int64_t row) { return of(row, g); });
    };
    for (const auto& from : verify::apart(search_.partners(0, p_.groups_in_all(), candidate))) {
      const std::string text = verify::text_of_partners(from, "group", "groups", what);
      FaultModel h =
          model(verify::is_exchange(from) ? "exchanged" : "repeated", text, [=, this](std::int64_t row) {
            const std::int64_t g = it_.group_of(row);
            const std::int64_t other = g < 0 ? -1 : from[static_cast<std::size_t>(g)];
            return other < 0 ? std::optional<Recipe>() : of(row, other);
          });
      h.names_axis = 0;
      list_.push_back(std::move(h));
    }
  }

  void of_rows() {
    for (const std::int64_t step : {1, -1})
      add("boundary",
          step > 0 ? "rows take the weights of the row after them: the end of a group is one row early"
                   : "rows take the weights of the row before them: the end of a group is one row late",
          [=, this](std::int64_t row) -> std::optional<Recipe> {
            if (row + step < 0 || row + step >= p_.m) return std::nullopt;
            const std::int64_t other = it_.group_of(row + step);
            if (other == it_.group_of(row)) return std::nullopt;
            return other < 0 ? std::optional(kept()) : with_group(row, other);
          });
    // ikawrakow/ik_llama.cpp#2437, marin-community/marin#8793; the last rows: pytorch/torchtitan#1237
    for (const std::int64_t step : {1, -1})
      add("boundary", fmt::format("rows take the weights of the {} group", step > 0 ? "next" : "previous"),
          [=, this](std::int64_t row) -> std::optional<Recipe> {
            const std::int64_t other = neighbour(row, step);
            return other < 0 ? std::nullopt : with_group(row, other);
          });
    add_exchanged("the weights", [this](std::int64_t row, std::int64_t g) { return with_group(row, g); });
    // The memory of (k, n) read as (n, k), or the reverse; of a square matrix its transpose.
    // unslothai/unsloth-zoo#849, huggingface/transformers#47031
    add("transposed", "the weights are read as their transpose",
        [this](std::int64_t row) -> std::optional<Recipe> {
          const auto b = weights(it_.group_of(row));
          if (!b) return std::nullopt;
          const std::int64_t size = size_of(b->dtype);
          const ArrayView other{b->data, b->dtype, b->shape,
                                p_.transpose_rhs ? Shape{p_.n * size, size} : Shape{size, p_.k * size}};
          if (!it_.operands.rhs[0].is_c_contiguous()) {
            if (p_.k != p_.n) return std::nullopt;
            return made_of(vector_of(it_.operands.lhs, row), transposed(*b));
          }
          return made_of(vector_of(it_.operands.lhs, row), other);
        });
    if (p_.first_group > 0)  // jax-ml/jax#34168
      add("group_offset", "the group offset is ignored", [this](std::int64_t row) -> std::optional<Recipe> {
        const std::int64_t g = it_.group_of(row);
        if (g < 0 || g >= p_.groups) return kept();
        return with_group(row, g + p_.first_group);
      });
    for (const std::int64_t step : {1, -1})
      add("shifted", fmt::format("each row is made of the row {} it", step > 0 ? "after" : "before"),
          [=, this](std::int64_t row) { return with_group(row + step, it_.group_of(row)); });
  }

  void of_contraction() {
    const auto range = [this](std::int64_t row, std::int64_t from, std::int64_t to) {
      const IndexRange& rows = p_.ranges[it_.group_of(row)];
      return over(row, rows.begin + from, rows.end + to);
    };
    const auto shifted = [](std::int64_t by) {
      return by == 0 ? "where it should" : by > 0 ? "one row late" : "one row early";
    };
    for (const auto& [from, to] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 1}, {0, -1}, {1, 0}, {-1, 0}, {1, 1}, {-1, -1}})
      add("boundary", fmt::format("a group begins {} and ends {}", shifted(from), shifted(to)),
          [=, from = from, to = to](std::int64_t row) { return range(row, from, to); });
    add_exchanged("the product", [this](std::int64_t row, std::int64_t g) {
      const auto [begin, end] = p_.ranges[g];
      return begin == end ? std::nullopt : over(row, begin, end);
    });
    add("accumulated", "sums go on from group to group: each holds those before it",
        [this](std::int64_t row) {
          return over(row, p_.ranges[p_.first_group].begin, p_.ranges[it_.group_of(row)].end);
        });
    add("accumulated", "each group holds the sum over all rows",
        [this](std::int64_t row) { return over(row, 0, p_.m); });
    if (p_.first_group > 0)
      add("group_offset", "the group offset is ignored", [=, this](std::int64_t row) {
        const auto [begin, end] = p_.ranges[it_.group_of(row) - p_.first_group];
        return over(row, begin, end);
      });
  }

  // The contraction without what is left at its end after whole tiles: AI-Hypercomputer/maxtext#1183.
  void add_cut_short() {
    for (std::int64_t tile = 8; tile <= 512; tile *= 2)
      add("cut_short",
          fmt::format("what is left of the contraction after whole tiles of {} is missing", tile),
          [=, this](std::int64_t row) -> std::optional<Recipe> {
            Recipe r = right(row);
            if (!r.has_product || r.a.shape[0] <= tile || r.a.shape[0] % tile == 0) return std::nullopt;
            r.a.shape[0] -= r.a.shape[0] % tile;
            r.b.shape[0] = r.a.shape[0];
            return r;
          });
  }

  template <class F>
  RecipeOf varied(F change) const {
    return [this, change](std::int64_t row) -> std::optional<Recipe> {
      Recipe r = right(row);
      if (!r.has_product) return std::nullopt;
      change(r);
      return r;
    };
  }

  void of_existing() {
    if (it_.operands.existing_out)
      add("existing",
          it_.adds() ? "existing_out is not added" : "existing_out is not kept where nothing is computed",
          [this](std::int64_t row) {
            Recipe r = right(row);
            r.existing = 0;
            return std::optional(r);
          });
    if (it_.operands.existing_out && !it_.adds())
      add("existing", "existing_out is added where it is to be written over", [this](std::int64_t row) {
        Recipe r = right(row);
        r.existing = 1;
        return std::optional(r);
      });
    if (it_.adds()) {
      add("existing", "existing_out is added twice", varied([](Recipe& r) { r.existing = 2; }));
      add("existing", "the product is lost: existing_out stands there",
          varied([](Recipe& r) { r.factor = 0; }));
    }
  }

  // Rows in which nothing is computed hold what was given, whatever that is: pytorch/pytorch#154557, #172439.
  void of_nothing() {
    const bool by_rows = p_.cut == Problem::Cut::rows;
    const auto is_nothing = [this, by_rows](std::int64_t row) {
      const std::int64_t g = it_.group_of(row);
      return by_rows ? g < 0 : p_.ranges[g].count() == 0;
    };
    const char* const what = by_rows ? "rows of no group" : "groups without rows";
    FaultModel there{
        "unwritten", fmt::format("{} hold what was there before, as if never written", what),
        [=, this](std::int64_t row, std::span<const std::int64_t> columns, double* values, double* allowed) {
          if (!is_nothing(row)) return false;
          for (std::size_t c = 0; c < columns.size(); ++c) {
            Matrix{it_.given}.load_row(row, columns[c], 1, &values[c]);
            allowed[c] = 0;
          }
          return true;
        }};
    there.needs_numbers = false;
    list_.push_back(std::move(there));
  }

  void of_both() {
    if (it_.adds()) {
      add("factor", "the product is added twice", varied([](Recipe& r) { r.factor = 2; }));
      add("factor", "the product is subtracted", varied([](Recipe& r) { r.factor = -1; }));
    }
    add_cut_short();
    // kekzl/imp#567
    add("nibbles",
        "neighbours along the contraction are exchanged, as the elements in the two halves of a byte are",
        varied([](Recipe& r) { r.exchanges_pairs = true; }));
    of_nothing();
    if (!search_.is_enough_to_fit()) return;
    const auto wide = [](const ArrayView& array, const Rounding& to) {
      return verify::float_type(array.dtype).fraction_bits > to.bits;
    };
    // triton-lang/triton#1671
    for (const Rounding& to : verify::kRoundings)
      if (wide(it_.operands.lhs, to) || wide(it_.operands.rhs, to))
        add("rounding", fmt::format("lhs and rhs are rounded to {}", to.name),
            varied([to](Recipe& r) { r.factors = to; }));
  }

  const ActualProduct& it_;
  const Problem& p_;
  verify::FaultSearch& search_;
  std::vector<FaultModel> list_;
};

}  // namespace

void explain(const ActualProduct& given, const verify::ResultRows& rows, const verify::RowCounts& counts,
             Against& against) {
  const Problem& p = given.problem;
  const double depth =
      p.cut == Problem::Cut::rows
          ? static_cast<double>(p.k)
          : static_cast<double>(p.m) / static_cast<double>(std::max<std::int64_t>(p.groups, 1));
  verify::FaultSearch search(rows, counts, 300 + 150 * depth);
  FaultModels models(given, search);
  std::vector<verify::Found> found = search.run(models.all());
  // Weights of tokens that are applied here, too: vllm-project/vllm#43694
  if (const auto factors = verify::factor_of_each_row(rows, search, "row", depth * static_cast<double>(p.n)))
    for (verify::Found& one : search.run({*factors})) found.push_back(std::move(one));
  search.report(std::move(found), against);
}

}  // namespace ejk::matmul
