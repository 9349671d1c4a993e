// Totals of stored arrays by dtype and by pattern of names, for `ejk info`. Sums in maps; the cost is that of
// the names.
//
// tests: tests/cli/info/safetensors.case
#include "stored_summary.hpp"

#include "ejk/program/text.hpp"

namespace ejk::app {

namespace {

std::int64_t saturated_sum(std::int64_t a, std::int64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

}  // namespace

void StoredSummary::Sum::add(const StoredArray& array) {
  ++arrays;
  parameters = saturated_sum(parameters, element_count(array.shape));
  bytes = saturated_sum(bytes, array.bytes);
}

void StoredSummary::Pattern::join(const Pattern& other) {
  has_one_shape = has_one_shape && other.has_one_shape && shape == other.shape;
  sum.arrays += other.sum.arrays;
  sum.parameters = saturated_sum(sum.parameters, other.sum.parameters);
  sum.bytes = saturated_sum(sum.bytes, other.sum.bytes);
}

void StoredSummary::add(const ArrayReference& file, const StoredArray& array) {
  all_.add(array);
  types_[array.dtype].add(array);
  const ArrayReference reference = reference_to(file, array.name);
  const std::string name = array.name.empty() ? reference.array_name() : array.name;
  const auto [named, is_new] = files_.emplace(name, file.path);
  has_equal_names_ = has_equal_names_ || (!is_new && named->second != file.path);
  Pattern& pattern = patterns_[{name_pattern(name), array.dtype, file.path}];
  if (pattern.sum.arrays == 0) pattern.name = name, pattern.file = file, pattern.shape = array.shape;
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
  for (auto at = patterns_.begin(); at != patterns_.end();) {
    const auto& [names, dtype, path] = at->first;
    Pattern pattern = at->second;
    for (++at; at != patterns_.end() && !has_equal_names_ && std::get<0>(at->first) == names &&
               std::get<1>(at->first) == dtype;
         ++at)
      pattern.join(at->second);
    const std::string name = pattern.sum.arrays == 1 ? pattern.name : names;
    patterns.rows.push_back({printable(has_equal_names_ ? reference_to(pattern.file, name).text : name),
                             dtype, pattern.has_one_shape ? ReportValue(pattern.shape) : ReportValue(),
                             pattern.sum.arrays, pattern.sum.parameters, pattern.sum.bytes});
  }
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
