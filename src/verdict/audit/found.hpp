// From measured mutants to the faults of an audit.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ejk/audit.hpp"
#include "verdict/audit/judge.hpp"

namespace ejk::audits {

/// A mutant with its measure; without a remedy where a generic one is to be made.
struct Measured {
  AuditedFault fault;  // measure, array and index
  std::string remedy;  // where nothing changes
};

/// Adds the hardest variant of each fault. `spread`: the largest difference of two scores of a query; `size`: of the
/// results.
void add_found(Audit& audit, const AuditOptions& options, std::vector<Measured> all, double spread,
               double size);

/// The measure of an array beside the rounded numbers expected; of the bound the largest difference, until take().
AuditedFault of_array(const PassRule& rule, const std::string& name, const Array& mutant,
                      const std::vector<double>& expected, const RuleScale& scale);
/// Of another implementation's result number `result`, beside the rounded numbers expected.
RuleScale scale_of(const AuditOptions& options, std::size_t result, const PlannedArray& planned,
                   const std::vector<double>& expected);
/// Elements of another implementation's result of that type; empty for other rules.
std::vector<double> other_values(const AuditOptions& options, std::size_t result,
                                 const PlannedArray& planned);
/// The measure of a comparison by error bounds.
void take(const Against& against, AuditedFault& into);

Shape index_at(const Shape& shape, std::int64_t position);

/// All elements of a contiguous array.
std::vector<double> values_of(const Array& array);
Array copy_of(const Array& array);

}  // namespace ejk::audits
