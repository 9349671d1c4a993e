// Totals of stored arrays by dtype and by pattern of names, for `ejk info`. Sums in maps; the cost is that of
// the names.
//
// tests: tests/cli/info/safetensors.case
#include "stored_summary.hpp"

#include "ejk/text.hpp"

namespace ejk::app {

namespace {

std::int64_t saturated_sum(std::int64_t a, std::int64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

}  // namespace

void StoredSummary::Sum::add(const StoredArray& array) {
  ++arrays;
  parameters = saturated_sum(parameters, element_count(array.shape));
  bytes = saturated_sum(bytes, array.bytes);
}

void StoredSummary::add(const ArrayReference& file, const StoredArray& array) {
  all_.add(array);
  types_[array.dtype].add(array);
  const ArrayReference reference = reference_to(file, array.name);
  const std::string name = array.name.empty() ? reference.array_name() : array.name;
  Pattern& pattern = patterns_[{name_pattern(name), array.dtype}];
  if (pattern.sum.arrays == 0) pattern.name = name, pattern.shape = array.shape;
  pattern.has_one_shape = pattern.has_one_shape && pattern.shape == array.shape;
  pattern.sum.add(array);
  tensors_.rows.push_back({printable(reference.text), array.dtype, array.shape, array.bytes});
}

void StoredSummary::add_to(Report& report) const {
  Table patterns{"patterns",
                 "",
                 {{"pattern", "array"},
                  {"dtype", "dtype"},
                  {"shape", "shape"},
                  {"arrays", "arrays", Unit::count},
                  {"parameters", "parameters", Unit::count},
                  {"size", "size", Unit::bytes}},
                 {},
                 INT64_MAX};
  for (const auto& [names, pattern] : patterns_)
    patterns.rows.push_back({printable(pattern.sum.arrays == 1 ? pattern.name : names.first), names.second,
                             pattern.has_one_shape ? ReportValue(pattern.shape) : ReportValue(),
                             pattern.sum.arrays, pattern.sum.parameters, pattern.sum.bytes});
  Table types{"dtypes",
              "",
              {{"dtype", "dtype"},
               {"arrays", "arrays", Unit::count},
               {"parameters", "parameters", Unit::count},
               {"size", "size", Unit::bytes}},
              {},
              INT64_MAX};
  for (const auto& [dtype, sum] : types_)
    types.rows.push_back({dtype, sum.arrays, sum.parameters, sum.bytes});
  report.add(std::move(patterns));
  report.add(std::move(types));
  report.add(tensors_);
  report.add("parameters", "parameters", all_.parameters, Unit::count);
}

}  // namespace ejk::app
