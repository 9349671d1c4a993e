// Inputs that reveal: each mutant differs from the right result by more than the tolerance, element by element, and a
// kernel of the library does not.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>

#include "ejk/audit.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kQueries = 150, kHeadSize = 32;

Array normal(DType dtype, const Shape& shape, std::mt19937_64& engine) {
  std::normal_distribution<double> number;
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = number(engine);
  return plain::array_of(dtype, shape, values);
}

struct Revealed {
  RevealingInputs inputs;
  Array right;  // the library's result
  std::map<std::string, Array> mutants;

  // The largest |d| / (atol + rtol |e|); NaN is infinite.
  double largest(const Array& actual, double rtol, double atol) const {
    const std::vector<double> a = plain::doubles(actual.view()),
                              e = plain::doubles(mutants.at("expected").view());
    double most = 0;
    for (std::size_t n = 0; n < a.size(); ++n) {
      const double size = std::abs(a[n] - e[n]) / (atol + rtol * std::abs(e[n]));
      most = std::isnan(size) ? INFINITY : std::max(most, size);
    }
    return most;
  }
};

Revealed revealed(DType dtype, const std::optional<Mask>& mask, const std::string& rule,
                  std::int64_t batch = 2, std::optional<double> softcap = std::nullopt) {
  std::mt19937_64 engine(7);
  const std::int64_t keys = mask ? mask->kv_length() : kQueries;
  const Shape shape{batch, keys, 2, kHeadSize};
  const Array key = normal(dtype, shape, engine), value = normal(dtype, shape, engine);
  AttentionSettings settings;
  settings.softcap = softcap;
  if (mask) settings.masks.push_back(head_masks({*mask}));
  AttentionTypes types;
  types.q = ArrayType(dtype, {batch, kQueries, 4, kHeadSize});
  types.k = types.v = ArrayType(dtype, shape);
  AuditOptions options;
  options.rule = named_rule(rule, dtype);
  Revealed made;
  options.mutant = [&](const std::string& name, Array array) { made.mutants[name] = std::move(array); };
  made.inputs = revealing_inputs(AttentionPlan(types, settings), key.view(), value.view(), options);
  AttentionOptions how;
  static_cast<AttentionSettings&>(how) = settings;
  made.right = attention(made.inputs.query.view(), made.inputs.key.view(), value.view(), how).out;
  return made;
}

}  // namespace

TEST_CASE("inputs that reveal: no mutant is within the tolerance, a right kernel is") {
  const Mask causal = causal_mask(kQueries, kQueries);
  const std::vector<std::optional<Mask>> masks{std::nullopt, causal & local_mask(kQueries, kQueries, 31, 0),
                                               chunked_mask(kQueries, kQueries, 48),
                                               causal_mask(kQueries, 203, 53)};
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const std::optional<Mask>& mask : masks)
      for (const std::optional<double> softcap : {std::optional<double>(), std::optional<double>(20)}) {
        CAPTURE(name_of(dtype));
        CAPTURE((mask ? mask->text() : "none"));
        CAPTURE(softcap.has_value());
        const Revealed made = revealed(dtype, mask, "kernelbench", 2, softcap);
        const double t = dtype == DType::float32 ? 1e-4 : 1e-2;
        CHECK(made.inputs.audit.passed());
        CHECK(made.mutants.size() > 12);
        for (const auto& mutant : made.mutants) {
          CAPTURE(mutant.first);
          CHECK((made.largest(mutant.second, 2 * t, t) > 1) == (mutant.first != "expected"));
        }
        CHECK(made.largest(made.right, t, t) < 1);
      }
}

TEST_CASE("inputs that reveal: TF32 shows in a loose tolerance, where products are large") {
  const Mask causal = causal_mask(kQueries, kQueries);
  const Revealed loose = revealed(DType::float32, causal, "hf-kernels"),
                 strict = revealed(DType::float32, causal, "torch.testing");
  CHECK(loose.inputs.audit.passed());
  CHECK(strict.inputs.audit.passed());
  CHECK(strict.largest(strict.right, 1.3e-6, 1e-5) < 0.5);
  CHECK(loose.largest(loose.mutants.at("inputs-tf32"), 1e-5, 1e-2) > 1);
  CHECK(strict.largest(strict.mutants.at("inputs-tf32"), 1e-5, 1e-2) < 1);
}

TEST_CASE("inputs that reveal: what the sizes cannot show is missed") {
  const Revealed made = revealed(DType::bfloat16, local_mask(kQueries, kQueries, 200, 0), "kernelbench", 1);
  CHECK(made.inputs.audit.missed() ==
        std::vector<std::string>{"window-longer", "window-shorter", "kv-batch-0"});
  const Revealed empty = revealed(DType::bfloat16, causal_mask(kQueries, 100, -50), "kernelbench");
  CHECK(empty.inputs.audit.passed());  // queries without a key
}

TEST_CASE("inputs that reveal: of a padded forward pass") {
  AttentionSettings settings;
  settings.layout = AttentionLayout::bhsd;
  const ArrayType type(DType::float32, {1, 2, 3, 4});
  AttentionTypes types;
  types.q = types.k = types.v = type;
  const Array array(DType::float32, type.shape);
  CHECK(plain::failure(
            [&] {
              revealing_inputs(AttentionPlan(types, settings), array.view(), array.view(), AuditOptions());
            },
            Error::Kind::usage) == "inputs that reveal faults are those of a padded forward pass");
}
