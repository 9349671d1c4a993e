// Measures of the rules of ejk/audit.hpp.
// tests: tests/verdict/audit/test_judge.cpp
#include "verdict/audit/judge.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace ejk {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The place of a number among those of its type: neighbours are 1 apart.
std::int64_t place_of(double value, const verify::FloatType& type) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), type.least_exponent);
  const auto place = (std::int64_t{exponent - type.least_exponent} << type.fraction_bits) +
                     static_cast<std::int64_t>(std::ldexp(std::abs(value), type.fraction_bits - exponent));
  return value < 0 ? -place : place;
}

}  // namespace

namespace audits {

Judge::Judge(const PassRule& rule, DType dtype, std::int64_t elements)
    : rule_(rule),
      type_(verify::float_type(dtype)),
      kept_(1 + static_cast<std::size_t>(std::max(
                    rule.allowed_count,
                    static_cast<std::int64_t>(rule.allowed_share * static_cast<double>(elements))))) {}

double Judge::measure(double a, double e, double allowed) const {
  const double d = std::abs(a - e);
  if (d == 0) return 0;
  switch (rule_.form) {
    case PassRule::Form::bound:
      return allowed > 0 ? d / allowed : kInfinity;
    case PassRule::Form::allclose:
      return d / (rule_.atol + rule_.rtol * std::abs(e));
    case PassRule::Form::allclose_actual:
      return d / (rule_.atol + rule_.rtol * std::abs(a));
    case PassRule::Form::max_ulp:
      return std::abs(static_cast<double>(place_of(a, type_)) - static_cast<double>(place_of(e, type_))) /
             static_cast<double>(rule_.max_ulp);
    case PassRule::Form::flashinfer_bench:
      return std::min(d / rule_.atol, d / (std::abs(e) + 1e-8) / rule_.rtol);
    default:
      return d;
  }
}

void Judge::keep(double measure) {
  if (kept_ == 1) {
    if (top_.empty()) top_.push_back(0);
    top_[0] = std::max(top_[0], measure);
    return;
  }
  top_.push_back(measure);
  if (top_.size() < 2 * kept_ + 1024) return;
  std::nth_element(top_.begin(), top_.begin() + static_cast<std::ptrdiff_t>(kept_ - 1), top_.end(),
                   std::greater<>());
  top_.resize(kept_);
}

void Judge::see(std::int64_t position, std::int64_t count, const double* actual, const double* expected,
                const double* allowed, const double* rounded) {
  count_ += count;
  if (rounded == nullptr) rounded = expected;
  for (std::int64_t c = 0; c < count; ++c) {
    const double a = actual[c], e = expected[c];
    double size = 0;
    if (std::isfinite(a) && std::isfinite(e)) {
      differing_ += a != rounded[c];
      const double d = a - e;
      dd_ += d * d, ee_ += e * e, aa_ += a * a;
      difference_ = std::max(difference_, std::abs(d));
      size = measure(a, e, allowed == nullptr ? 1 : allowed[c]);
    } else if (!(a == e || (std::isnan(a) && std::isnan(e)))) {
      ++differing_;
      size = kInfinity;
      is_broken_ = true;
    }
    if (size > worst_) worst_ = size, at_ = position + c;
    if (rule_.is_by_element() && (size > 0 || kept_ == 1)) keep(size);
  }
}

void Judge::join(const Judge& other) {
  differing_ += other.differing_;
  count_ += other.count_;
  dd_ += other.dd_, ee_ += other.ee_, aa_ += other.aa_;
  difference_ = std::max(difference_, other.difference_);
  is_broken_ = is_broken_ || other.is_broken_;
  if (other.worst_ > worst_) worst_ = other.worst_, at_ = other.at_;
  for (const double size : other.top_) keep(size);
}

double Judge::largest(const RuleScale& scale) const {
  if (rule_.is_by_element()) {
    if (top_.size() < kept_) return 0;
    std::vector<double> sorted = top_;
    const auto rank = sorted.begin() + static_cast<std::ptrdiff_t>(kept_ - 1);
    std::nth_element(sorted.begin(), rank, sorted.end(), std::greater<>());
    return *rank;
  }
  if (is_broken_) return kInfinity;
  const double n = static_cast<double>(std::max<std::int64_t>(count_, 1));
  if (rule_.form == PassRule::Form::fla)
    return difference_ <= rule_.atol ? 0 : std::sqrt(dd_ / n) / (std::sqrt(ee_ / n) + 1e-8) / rule_.rtol;
  if (dd_ == 0) return 0;
  if (rule_.form == PassRule::Form::no_worse_than)
    return difference_ / NoWorseThan::allowed_by(rule_.factor, scale.of_other, type_.epsilon(), scale.most);
  if (rule_.form == PassRule::Form::flash_attn)
    return difference_ / ((scale.has_softcap ? 3 : 2) * scale.low + 2 * scale.rounding);
  const double limit = rule_.metric.limit;
  if (rule_.metric.metric == Metric::rel) return dd_ / (aa_ + ee_) / limit;
  if (rule_.metric.metric == Metric::snr) return std::pow(10, (limit - 10 * std::log10(ee_ / dd_)) / 20);
  const double sizes = std::sqrt(aa_) * std::sqrt(ee_), rest = std::sqrt(aa_) - std::sqrt(ee_);
  return sizes > 0 ? (dd_ - rest * rest) / (2 * sizes) / (1 - limit) : kInfinity;  // as compare_arrays
}

}  // namespace audits

}  // namespace ejk
