// Values of the options that state when numbers agree.
// tests: tests/cli/compare/, tests/cli/audit/
#include "tolerances.hpp"

#include <limits>

#include "options.hpp"

namespace ejk::app {

double read_tolerance(const std::string& word) {
  const double value = read_real(word);
  if (!(value >= 0)) throw usage("{} is not at least 0", value);
  if (value > std::numeric_limits<double>::max()) throw usage("it must be finite");
  return value;
}

MetricLimit metric_limit(const std::string& metric, const std::optional<double>& at_least,
                         const std::optional<double>& at_most) {
  const bool most = metric == "rel";
  const std::optional<double>& limit = most ? at_most : at_least;
  if (!limit || (most ? at_least : at_most))
    throw usage(most ? "--metric rel requires --at-most" : "--metric cos and snr require --at-least")
        .hint(most ? "for example --at-most 1e-3" : "for example --metric cos --at-least 0.999");
  return {most ? Metric::rel : metric == "snr" ? Metric::snr : Metric::cosine, *limit};
}

}  // namespace ejk::app
