// Comparison of two arrays of one shape within a tolerance: where they differ and by how much.
//
// Elements agree if both are equal (infinities of one sign too), both are NaN (with NanEqual::yes), or both
// are finite and |a - e| <= atol + rtol·|e|, in their common float type: float16, bfloat16, float32 or
// float64; float32 for two different 16-bit types, 8-bit types and integers, whose difference is exact. Source:
// ejkernel's assert_allclose as documented; tolerances of PyTorch's assert_close for 16 bits, of ejkernel for
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"
#include "ejk/array_math.hpp"
#include "ejk/report.hpp"

namespace ejk {

enum class NanEqual { no, yes };

/// Over pairs of finite elements: the cosine; 10 log₁₀(Σ e² / Σ (a − e)²) decibels; Σ (a − e)² / Σ (a² + e²).
enum class Metric { cosine, snr, rel };
struct MetricLimit {
  Metric metric = Metric::cosine;
  double limit = 0;  // the least of a cosine and of decibels, the most of rel
};

/// When a test passes; the measures are in ejk/audit.hpp.
struct PassRule {
  enum class Form : std::uint8_t {
    bound,
    allclose,         // rtol, atol of the expected element
    allclose_actual,  // of the actual one
    max_ulp,
    metric,
    flash_attn,
    fla,
    flashinfer_bench,
    no_worse_than,
  };
  Form form = Form::bound;
  std::string name = "bound";  // in JSON
  double rtol = 0, atol = 0;
  std::int64_t max_ulp = 0;
  MetricLimit metric = {};
  double factor = 2;  // of no_worse_than
  std::int64_t allowed_count = 0;
  double allowed_share = 0;

  bool is_by_element() const {
    return form != Form::metric && form != Form::flash_attn && form != Form::fla &&
           form != Form::no_worse_than;
  }
};

/// Of a library, for results of this type. Sources: pytorch/pytorch:torch/testing/_comparison.py,
/// ScalingIntelligence/KernelBench:src/kernelbench/eval.py, Dao-AILab/flash-attention:hopper/test_flash_attn.py,
/// fla-org/flash-linear-attention:fla/utils/_testing.py,
/// flashinfer-ai/flashinfer-bench:flashinfer_bench/bench/utils.py,
/// huggingface/kernels:kernels/src/kernels/cli/benchmark.py.
PassRule named_rule(std::string_view name, DType dtype);
/// "torch.testing", ...
std::span<const std::string_view> rule_names();
/// "0.01 + 0.01 |actual|"
std::string text_of(const PassRule& rule);

/// The error beside that of another implementation, both from the expected array of a higher precision: within factor
/// (max |reference − e| + ε max |e|), ε of the actual type. The rule of meta-pytorch/attention-gym:
/// attn_gym/testing/kda.py; FlashAttention's is without the second term.
struct NoWorseThan {
  double factor = 2;
  std::optional<double> error;  // none where an element is not finite on one side alone
  double reference_error = 0, allowed = 0;

  bool passes() const { return error && *error <= allowed; }
  /// `epsilon`: of the actual type; `largest`: max |e|.
  static double allowed_by(double factor, double reference_error, double epsilon, double largest) {
    return factor * (reference_error + epsilon * largest);
  }
};

/// When elements agree, and arrays are close.
///
/// rtol, atol: by default those of the dtypes. max_ulp: the largest difference in units in the last place of
/// the common type or of one 8-bit type, of two float types those of the coarser at the expected element, of integers 1; 0 and −0
/// are 0 apart. It replaces the default rtol and atol, and is combined with given ones.
///
/// allowed_count, allowed_share: elements that may be out of tolerance, the larger of both. With hard_atol or
/// hard_rtol these may differ by hard_atol + hard_rtol |e|, without one-sided NaN and infinities.
///
/// metric: within its limit, without one-sided NaN and infinities. It replaces the rules for elements unless
/// rtol, atol or max_ulp is set; a hard limit then applies to all elements.
///
/// library: the rule of that name, of rule_names(), in the place of rtol, atol, max_ulp and metric, for the coarser type;
/// integers agree if they are equal. Measures of elements other than allclose are computed in float64.
struct Tolerance {
  std::optional<double> rtol = std::nullopt;
  std::optional<double> atol = std::nullopt;
  NanEqual nan = NanEqual::yes;
  std::int64_t allowed_count = 0;
  double allowed_share = 0;
  std::optional<MetricLimit> metric = std::nullopt;
  std::optional<std::int64_t> max_ulp = std::nullopt;
  std::optional<double> hard_rtol = std::nullopt, hard_atol = std::nullopt;
  std::string_view library = {};  // as long as the comparison

  bool by_size() const { return !max_ulp || rtol || atol; }
  bool has_hard_limit() const { return hard_rtol || hard_atol; }
};

/// That of the coarser dtype: bfloat16 1.6e-2, 1e-5; float16 1e-3, 1e-5; wider floats 1e-5, 1e-8; 8-bit floats the
/// spacing above 1, and the least positive number, but float8_e8m0fnu 0, as all others.
struct DefaultTolerance {
  double rtol = 0, atol = 0;
};
DefaultTolerance default_tolerance(DType actual, DType expected);

struct Difference {
  Shape index;
  Extreme actual, expected;
  double amount = 0;
};

struct Comparison {
  bool close = false;
  double rtol = 0, atol = 0;  // as applied
  std::optional<std::int64_t> max_ulp = {};
  bool by_size = true;                // rtol and atol were applied
  std::optional<PassRule> rule = {};  // of a library
  Shape actual_shape, expected_shape;
  DType actual_dtype = DType::boolean, expected_dtype = DType::boolean;

  // The rest is set for arrays of one shape.
  std::int64_t elements = 0;
  std::int64_t differing = 0;  // elements out of tolerance
  /// Those beyond the hard limit, and the first of them; none without such a limit.
  std::optional<std::int64_t> beyond_hard = {};
  std::optional<Shape> first_beyond_hard = {};
  /// The conditions that failed: "elements", "hard limit", "metric"; and how many were tested.
  std::vector<std::string> failed = {};
  int conditions = 1;
  std::int64_t both_zero = 0;  // elements that are 0 on both sides
  std::int64_t finite = 0;     // elements that are finite on both sides
  std::int64_t actual_nans = 0, actual_infinities = 0;
  std::int64_t expected_nans = 0, expected_infinities = 0;
  /// NaN on one side only; infinities without the same one on the other side, where neither is NaN.
  std::int64_t one_sided_nans = 0, one_sided_infinities = 0;
  std::int64_t opposite_infinities = 0;  // of those, infinite on both sides
  std::optional<Shape> first_one_sided_nan, first_one_sided_infinity;
  /// Out of tolerance with the largest |a - e|, the first of equals in C order; NaN is the largest.
  std::optional<Difference> violation;
  /// The pair of finite elements with the largest |a - e| in the common float type, in or out of tolerance.
  std::optional<Difference> largest_absolute;
  /// The same by |a - e| / |e|, where e is not 0.
  std::optional<Difference> largest_relative;
  /// The same by the distance in floats of the common type. None for integers.
  std::optional<Difference> largest_ulps;
  /// √(Σ(a - e)² / n) and the metrics over pairs of finite elements; none where undefined. snr is infinite
  /// for equal arrays. The last digits depend on the instruction set.
  std::optional<double> rms, cosine, snr, rel;

  /// RMS(a - e) / (RMS(e) + 1e-8), of the rule of fla.
  std::optional<double> rms_ratio;

  /// A number, 0 where it can be, that would pass in the place of each element of close arrays that are not equal; of
  /// rtol and atol, and of an expected array that can be read in any order.
  std::optional<double> constant_that_passes;

  bool same_shape() const { return actual_shape == expected_shape; }
};

/// One parallel pass. `progress(done, all)` counts elements. Memory: a chunk of either for each thread.
/// Throws Error{usage} for a tolerance that is negative, infinite or NaN.
Comparison compare_arrays(const ArraySource& actual, const ArraySource& expected,
                          const Tolerance& tolerance = {},
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Memory of compare_arrays beside the sources' own, at most.
std::int64_t compare_bytes(const ArrayType& actual, const ArrayType& expected);

/// compare_arrays; throws Error{input} where the arrays are not close.
Comparison assert_allclose(const ArraySource& actual, const ArraySource& expected,
                           const Tolerance& tolerance = {});

/// Warns where dtypes differ, and where nearly all elements are 0 on both sides.
Report describe(const Comparison& comparison);

bool proves_little(const Comparison& comparison);

// Explanation of a difference, for two arrays (ejk/program/explain.hpp) and for a result beside its computation
// (ejk/against.hpp).

struct Explanation {
  /// A stable word: "factor", "exchanged", "unwritten", "scale".
  std::string kind;
  /// A clause without a full stop: "head 3 holds what belongs to head 7".
  std::string text;
  double share_explained = 0;
};

/// Table "explanations": kind, share_explained, text; in the given order.
Table table_of(const std::vector<Explanation>& explanations);

}  // namespace ejk
