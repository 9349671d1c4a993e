// Names of conventions, those of libraries, and ALiBi's slopes.
// tests: tests/attention/test_conventions.cpp
#include "ejk/attention.hpp"

#include <bit>
#include <cmath>

namespace ejk {

std::string_view name_of(SoftcapOrder order) {
  return order == SoftcapOrder::before_bias ? "before-bias" : "after-bias";
}
std::string_view name_of(AlibiForm form) { return form == AlibiForm::absolute ? "absolute" : "signed"; }
std::string_view name_of(LseBase base) { return base == LseBase::e ? "e" : "2"; }
std::string_view name_of(LseEmpty empty) {
  return empty == LseEmpty::minus_infinity ? "-inf"
         : empty == LseEmpty::infinity     ? "inf"
         : empty == LseEmpty::zero         ? "0"
                                           : "finite";
}
std::string_view name_of(LseSink sink) { return sink == LseSink::in ? "in" : "out"; }
std::string_view name_of(MaskedRows rows) { return rows == MaskedRows::zero ? "zero" : "mean"; }
std::string_view name_of(LseLayout layout) { return layout == LseLayout::hn ? "hn" : "nh"; }

std::span<const LibraryConventions> library_conventions() {
  static constexpr LibraryConventions kLibraries[] = {
      {"flashinfer",
       {.softcap_order = SoftcapOrder::after_bias,
        .alibi_form = AlibiForm::signed_distance,
        .lse_base = LseBase::two},
       true,
       LseLayout::nh},
      {"fa2", {.lse_empty = LseEmpty::infinity}},
      {"fa3", {}},
      {"fa4", {}},
      {"flashmla", {.lse_empty = LseEmpty::infinity, .lse_sink = LseSink::out}},
      {"torch", {}},
      {"torch-sdpa", {.lse_empty = LseEmpty::zero}},
      {"jax-splash", {.lse_empty = LseEmpty::finite, .masked_rows = MaskedRows::mean}, false},
      {"cudnn", {}},
  };
  return kLibraries;
}

std::vector<double> alibi_slopes(std::int64_t heads) {
  std::vector<double> slopes;
  if (heads <= 0) return slopes;
  const auto whole = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const auto n = static_cast<double>(whole);
  for (std::int64_t h = 0; h < heads; ++h)
    slopes.push_back(std::exp2(h < whole ? -8 * static_cast<double>(h + 1) / n
                                         : -4 * static_cast<double>(2 * (h - whole) + 1) / n));
  return slopes;
}

}  // namespace ejk
