// Audit of a numeric test: which known faults of a kernel would a comparison with these inputs and this tolerance
// let pass?
//
// Each fault of the catalogue that applies to the problem is computed, a mutant, and compared with the right result
// as the test compares: in float64 (grouped products: in the arithmetic of their factors), with weights that are not
// rounded, and rounded once to the type of the result. All elements count. With d = mutant − expected, both rounded,
// `largest` is the test's measure over its limit; a fault is caught if it is above 1, NaN included, for each of
// its variants. With e the expected element, a the mutant's:
//   bound             d in bounds of attention_check.hpp, matmul_check.hpp and recurrence_check.hpp
//   rtol-atol         max |d| / (atol + rtol |e|); torch.testing and hf-kernels alike
//   kernelbench       max |d| / (t + t |a|), t = 1e-4, of 16-bit types 1e-2
//   max-ulp           units in the last place of the result's type, over the limit
//   rel, cos, snr     rel / X, (1 − cos) / (1 − X), 10^((X − snr) / 20)
//   flash-attn        max |d| / (2 max |low − e| + 2 max |((e + 0.3) − 0.3) − e|), 3 for the first 2 with a soft cap;
//                     low: eager attention that rounds every step to the type of the inputs
//   fla               RMS(d) / (RMS(e) + 1e-8) / 0.005; 0 where max |d| ≤ 1e-6
//   flashinfer-bench  max of min(|d|, |d| / (|e| + 1e-8)) / 1e-2
//   no-worse-than     max |d| / (F (max |other − e| + ε max |e|)), by array, ε of the result's type
// With an allowance of n elements the largest of element-wise measures is the one of rank n + 1. Sources of the named ones:
// ejk/compare.hpp.
//
// The catalogue, with the public threads that have each fault: `ejk help faults`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/compare.hpp"
#include "ejk/grouped_matmul.hpp"
#include "ejk/recurrence_check.hpp"
#include "ejk/report.hpp"

namespace ejk {

/// A fault of the catalogue.
struct Fault {
  std::string_view name;      // "window-longer"
  std::string_view kinds;     // "attention attention-grad grouped-matmul": that it is a fault of
  std::string_view text;      // what the kernel does, a clause
  std::string_view evidence;  // public threads, "owner/repository#1, ..."
  /// The beginning of an explanation that is about it; empty: none is.
  std::string_view cause = {};
};

/// All, in the order of reports.
std::span<const Fault> fault_catalogue();
const Fault* find_fault(std::string_view name);
/// The fault that an explanation is about: "the scale is applied twice"; null for others.
const Fault* fault_named_by(std::string_view explanation);

struct AuditedFault {
  const Fault* fault = nullptr;
  std::string parameter;  // of the variant that is hardest to see; or empty
  std::string text;       // what that kernel does
  bool caught = false;
  double largest = 0;  // the measure over its limit, of that variant
  std::int64_t elements = 0, differing = 0;
  std::string array;
  Shape index;  // where it is largest
  enum class Why : std::uint8_t { caught, inert, tolerance } why = Why::caught;
  std::string remedy;  // what would show it; empty where it is caught
  bool ignored = false;

  double changed() const {
    return elements == 0 ? 0 : static_cast<double>(differing) / static_cast<double>(elements);
  }
};

struct Audit {
  std::string kind;  // "attention"
  DType dtype = DType::float32;
  PassRule rule;
  std::optional<double> right;  // `largest` of a right kernel; none of products
  std::string right_weights;    // the type to which it rounds its weights, or factors of products
  std::vector<AuditedFault> faults;
  struct NotTried {
    const Fault* fault = nullptr;
    std::string why;
  };
  std::vector<NotTried> not_tried;

  std::int64_t caught() const;
  /// Neither caught nor ignored.
  std::vector<std::string> missed() const;
  bool passed() const { return missed().empty(); }
};

/// Called with each mutant, "expected" first: "window-longer", "scale-log2e.1.4427", of gradients
/// "zeros.dq".
using MutantTaken = std::function<void(const std::string& name, Array mutant)>;

struct AuditOptions {
  PassRule rule;
  OtherResults other = {};           // of no_worse_than
  SoftmaxTypes types = {};           // of the bound, and of the right kernel
  std::vector<std::string> ignored;  // names of faults
  bool aligns_bottom_right = false;  // a mask states that alignment
  MutantTaken mutant = {};
  PairProgress progress = {};
};

/// Of the forward pass, `out` alone, or where the plan has a dout of dq, dk and dv. Throws Error{usage} for dropout, and
/// for a rule of another kind.
Audit audit(const AttentionPlan& plan, const AttentionArrays& arrays, const AuditOptions& options);
std::int64_t bytes_to_audit(const AttentionPlan& plan, const AuditOptions& options);

/// Of a product that is not transposed.
Audit audit(const ArrayView& lhs, const ArrayView& rhs, const IntegerArray& group_sizes,
            const GroupedMatmulSettings& settings, const AuditOptions& options);

/// Of out and final_state. `factors` of a right kernel as in recurrence_check.hpp, whose bound is the rule `bound`.
Audit audit(const LinearAttentionArrays& arrays, const LinearAttentionSettings& settings,
            std::optional<FactorType> factors, const AuditOptions& options);
std::int64_t bytes_to_audit(const LinearAttentionPlan& plan, bool keeps_mutants);

/// Inputs (batch, sequence, heads, size) on which every fault that applies is out of tolerance, as far as the sizes admit
/// it, and a right kernel is not, where the tolerance admits one; their audit says which are not.
struct RevealingInputs {
  Array query, key;
  Audit audit;
};

/// `key`, `value`: normal numbers of deviation 1, of the plan's types; the key's are moved. The plan is of the forward
/// pass, its layout bshd, else Error{usage}. Cost: an audit, of float32 and loose tolerances up to four.
RevealingInputs revealing_inputs(const AttentionPlan& plan, const ArrayView& key, const ArrayView& value,
                                 const AuditOptions& options);

/// What is not caught first. Of inputs, whose shapes and dtype are reported before: what they do not reveal alone.
enum class AuditOf : std::uint8_t { test, inputs };
Report describe(const Audit& audit, AuditOf of = AuditOf::test);

}  // namespace ejk
