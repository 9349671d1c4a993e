// Names of tolerances, their numbers and their texts.
// tests: tests/compare/test_pass_rule.cpp, tests/verdict/audit/test_judge.cpp
#include <fmt/format.h>

#include "core/require.hpp"
#include "ejk/compare.hpp"

namespace ejk {

std::span<const std::string_view> rule_names() {
  static constexpr std::string_view all[] = {"torch.testing", "kernelbench",      "flash-attn",
                                             "fla",           "flashinfer-bench", "hf-kernels"};
  return all;
}

PassRule named_rule(std::string_view name, DType dtype) {
  using Form = PassRule::Form;
  PassRule rule;
  rule.name = name;
  const auto of = [&](Form form, double rtol, double atol) {
    rule.form = form, rule.rtol = rtol, rule.atol = atol;
    return rule;
  };
  if (name == "torch.testing") {
    if (dtype == DType::float64) return of(Form::allclose, 1e-7, 1e-7);
    if (is_8_bit_float(dtype)) return of(Form::allclose, 0, 0);
    return of(Form::allclose,
              dtype == DType::float16    ? 1e-3
              : dtype == DType::bfloat16 ? 1.6e-2
                                         : 1.3e-6,
              1e-5);
  }
  if (name == "hf-kernels") return of(Form::allclose, 1e-5, 1e-2);
  if (name == "kernelbench") {
    const double t = size_of(dtype) <= 2 ? 1e-2 : 1e-4;
    return of(Form::allclose_actual, t, t);
  }
  if (name == "flash-attn") return of(Form::flash_attn, 0, 0);
  if (name == "fla") return of(Form::fla, 0.005, 1e-6);
  if (name == "flashinfer-bench") return of(Form::flashinfer_bench, 1e-2, 1e-2);
  throw Error(Error::Kind::usage, fmt::format("'{}' is no tolerance", name));
}

std::string text_of(const PassRule& rule) {
  using Form = PassRule::Form;
  std::string text;
  switch (rule.form) {
    case Form::bound:
      text = "the error bound of each element";
      break;
    case Form::allclose:
      text = fmt::format("{} + {} |expected|", rule.atol, rule.rtol);
      break;
    case Form::allclose_actual:
      text = fmt::format("{} + {} |actual|", rule.atol, rule.rtol);
      break;
    case Form::max_ulp:
      text = fmt::format("{} units in the last place", rule.max_ulp);
      break;
    case Form::metric:
      text = rule.metric.metric == Metric::cosine ? fmt::format("a cosine of {} at least", rule.metric.limit)
             : rule.metric.metric == Metric::snr  ? fmt::format("{} dB at least", rule.metric.limit)
                                                  : fmt::format("rel of {} at most", rule.metric.limit);
      break;
    case Form::flash_attn:
      text = "twice the largest error of eager attention in the type of the inputs";
      break;
    case Form::fla:
      text = fmt::format("RMS of the error within {} of that of the result", rule.rtol);
      break;
    case Form::flashinfer_bench:
      text = fmt::format("{} absolute or {} relative", rule.atol, rule.rtol);
      break;
    case Form::no_worse_than:
      text = fmt::format("{} times the largest error of another implementation", rule.factor);
      break;
  }
  if (rule.allowed_share > 0) text += fmt::format(", but in {} of the elements", rule.allowed_share);
  if (rule.allowed_count > 0) text += fmt::format(", but in {} elements", rule.allowed_count);
  return text;
}

}  // namespace ejk
