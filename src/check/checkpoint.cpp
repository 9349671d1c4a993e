// Quantised checkpoints. Each quantised tensor is checked by itself, in parallel: shapes and types first, then
// its scales in one pass; values are read where a scale is 0, and all of them for the rules of codes, which
// need only how often each byte occurs. Rules across tensors follow: experts, fused projections, index, config.
// tests: tests/check/test_checkpoint.cpp
#include "ejk/program/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <regex>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "check/integers.hpp"
#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"
#include "quantize/fp8_scales.hpp"
#include "quantize/scale_grid.hpp"

namespace ejk {

namespace {

using enum CheckpointScheme;

// A finding of one tensor, before those of the same kind are joined.
struct Found {
  std::string_view rule;
  std::string tensor;
  Shape index = {};
  ReportValue value = {};
  std::string message;
};
using FoundList = std::vector<Found>;

// --- the config

const JsonValue* member(const JsonValue* object, std::string_view key) {
  if (object == nullptr) return nullptr;
  const auto* members = std::get_if<JsonValue::Object>(&object->value);
  if (members == nullptr) return nullptr;
  const JsonValue* found = nullptr;
  for (const auto& [name, value] : *members)
    if (name == key) found = &value;
  return found;
}

std::optional<std::int64_t> integer_of(const JsonValue* value) {
  const auto* integer = value == nullptr ? nullptr : std::get_if<JsonValue::Integer>(&value->value);
  constexpr std::size_t kMostDigits = 18;  // of any 64-bit integer
  if (integer == nullptr || integer->digits.size() > kMostDigits) return std::nullopt;
  return std::stoll(integer->digits);
}

std::string text_of(const JsonValue* value) {
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(&value->value);
  return text == nullptr ? "" : *text;
}

// The regular expression of an entry of a list of ignored layers, in the syntax that Python's and ECMAScript's
// have in common, without what names do not need: nothing for other syntax. The matcher is libstdc++'s
// automaton, whose time is bounded by the product of both lengths; the other one tries all ways.
std::optional<std::regex> regex_of(std::string_view text) {
  constexpr std::size_t kLongest = 1000;
  if (text.size() > kLongest) return std::nullopt;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    if (rest[0] == '\\') {
      const char c = rest.size() > 1 ? rest[1] : '\0';
      const bool is_other =
          c <= ' ' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (is_other && c != 'd' && c != 'w') return std::nullopt;
      ++at;
      continue;
    }
    const bool is_repeated = rest.size() > 1 && (rest[1] == '*' || rest[1] == '+');
    if (rest[0] == '{' || rest[0] == '}' || (rest.starts_with("(?") && !rest.starts_with("(?:")) ||
        rest.starts_with("[]") || rest.starts_with("[^]") || rest.starts_with("[[") ||
        (is_repeated && (rest[0] == '*' || rest[0] == '+' || rest[0] == '?')))
      return std::nullopt;
  }
  try {
    return std::regex(text.begin(), text.end(),
                      std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

// The schemes of tensors in a checkpoint whose config has a word as its quant_algo, format or quant_method. Words
// that are not here may mean any scheme.
constexpr std::pair<std::string_view, CheckpointScheme> kMethods[] = {
    {"fp8", fp8},
    {"fp8", fp8_blocks},
    {"fp8", mxfp8},
    {"fbgemm_fp8", fp8},
    {"fp8_per_channel_per_token", fp8},
    {"fp8_pb_wo", fp8_blocks},
    {"float-quantized", fp8},
    {"float-quantized", fp8_blocks},
    {"mxfp8", mxfp8},
    {"nvfp4", nvfp4},
    {"nvfp4_awq", nvfp4},
    {"nvfp4-pack-quantized", nvfp4},
    {"mxfp4", mxfp4},
    {"mxfp4", gptoss},
    {"mxfp4-pack-quantized", mxfp4},
    {"gptq", gptq},
    {"awq", awq},
    {"bitsandbytes", bitsandbytes},
    {"pack-quantized", packed_int},
    {"int-quantized", int8},
};

struct Config {
  bool is_given = false, is_quantized = false, is_ue8m0 = false;
  std::optional<std::int64_t> experts;
  std::optional<ScaleBlock> block;  // weight_block_size
  struct Ignored {
    std::string text;
    std::optional<std::regex> regex;
  };
  std::vector<Ignored> ignored;     // layers that are not quantised
  std::vector<std::string> unread;  // regular expressions that are not understood
  std::string method_key, method;   // "quant_algo", "NVFP4"
  std::set<std::int64_t> group_sizes;

  explicit Config(const std::optional<JsonValue>& json) {
    if (!json) return;
    is_given = true;
    const JsonValue* text_config = member(&*json, "text_config");
    for (const JsonValue* of : {&*json, text_config})
      for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"})
        if (const auto count = integer_of(member(of, key))) experts = count;
    const JsonValue* quantization = nullptr;
    for (const JsonValue* of : {&*json, text_config})
      for (const char* key : {"quantization_config", "quantization"})
        if (const JsonValue* found = member(of, key)) quantization = found;
    is_quantized = quantization != nullptr;
    is_ue8m0 = text_of(member(quantization, "scale_fmt")) == "ue8m0";
    for (const char* key : {"quant_algo", "format", "quant_method"})
      if (method.empty() && !text_of(member(quantization, key)).empty())
        method_key = key, method = text_of(member(quantization, key));
    add_group_size(quantization);
    if (const JsonValue* groups = member(quantization, "config_groups"))
      if (const auto* members = std::get_if<JsonValue::Object>(&groups->value))
        for (const auto& entry : *members) add_group_size(member(&entry.second, "weights"));
    if (const JsonValue* lengths = member(quantization, "weight_block_size"))
      if (const auto* sizes = std::get_if<JsonValue::List>(&lengths->value); sizes && sizes->size() == 2) {
        const auto length = [](const JsonValue& size, std::int64_t otherwise) {
          return std::max<std::int64_t>(1, integer_of(&size).value_or(otherwise));
        };
        block = ScaleBlock{length((*sizes)[0], quantize::kUsualBlock.rows),
                           length((*sizes)[1], quantize::kUsualBlock.columns)};
      }
    for (const char* key : {"ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"})
      if (const JsonValue* list = member(quantization, key))
        if (const auto* names = std::get_if<JsonValue::List>(&list->value))
          for (const JsonValue& name : *names)
            if (const std::string text = text_of(&name); !text.empty()) add_ignored(text);
  }

  void add_group_size(const JsonValue* of) {
    if (const auto size = integer_of(member(of, "group_size")); size && *size > 0) group_sizes.insert(*size);
  }

  // Whether a scheme is one of those that the config's method has.
  bool names(CheckpointScheme scheme) const {
    const std::string word = lower_case(method);
    bool is_known = false;
    for (const auto& [known, of_word] : kMethods) {
      if (known != word) continue;
      if (of_word == scheme) return true;
      is_known = true;
    }
    return !is_known;
  }

  // "re:" begins a regular expression, applied as Python's re.match() does.
  void add_ignored(const std::string& text) {
    constexpr std::string_view kRegex = "re:";
    std::optional<std::regex> regex;
    if (text.starts_with(kRegex)) {
      regex = regex_of(std::string_view(text).substr(kRegex.size()));
      if (!regex) return unread.push_back(text);
    }
    ignored.push_back({text, std::move(regex)});
  }

  // The entry of the list that says that a layer is not quantised; null if none does.
  const std::string* ignores(const std::string& layer) const {
    for (const Ignored& entry : ignored)
      if (entry.regex ? std::regex_search(layer, *entry.regex, std::regex_constants::match_continuous)
                      : matches_wildcards(layer, entry.text) || matches_wildcards(layer, entry.text + ".*"))
        return &entry.text;
    return nullptr;
  }
};

// --- scales

// What one pass over a tensor of scales finds; indices are flat, -1 where there is none.
struct ScaleStatistics {
  std::int64_t count = 0, nonfinite = 0, negative = 0, zeros = 0, tiny = 0, not_pow2 = 0;
  std::int64_t first_nonfinite = -1, first_negative = -1, first_zero = -1, first_tiny = -1,
               first_not_pow2 = -1;
  double nonfinite_value = 0, negative_value = 0, tiny_value = 0, not_pow2_value = 0;
  double first = 0, largest = 0;
  double least = std::numeric_limits<double>::infinity();  // above 0
  bool all_equal = true;
};

bool is_pow2(double x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5;
}

// uint8 scales are E8M0.
DType scale_type(const ArraySource& scales) {
  return scales.dtype() == DType::uint8 ? DType::float8_e8m0fnu : scales.dtype();
}

// f(bytes, elements, flat index of the first), piece by piece. Pages of a mapped file that were read are
// released, many at once.
template <class F>
void for_each_run(const ArraySource& source, F&& f) {
  constexpr std::int64_t kReleased = std::int64_t{4} << 20;
  const std::int64_t size = size_of(source.dtype());
  std::vector<std::byte> bytes(static_cast<std::size_t>(check::kPiece * size));
  const auto& view = source.mapped();
  const bool is_released = view && view->is_c_contiguous();
  std::int64_t at = 0, released = 0;
  const auto release = [&](std::int64_t least) {
    if (!is_released || (at - released) * size < least) return;
    source.release(view->data + released * size, (at - released) * size);
    released = at;
  };
  core::for_each_piece(source.shape(), check::kPiece, [&](const Shape& start, const Shape& count) {
    source.read(start, count, bytes.data());
    const std::int64_t n = element_count(count);
    f(std::as_const(bytes).data(), n, at);
    at += n;
    release(kReleased);
  });
  release(1);
}

ScaleStatistics statistics_of(const ArraySource& source) {
  ScaleStatistics s;
  const DType dtype = scale_type(source);
  const FloatFormat& format = float_format(dtype);
  const double least_normal = format.bits() > 8 ? std::ldexp(1.0, format.least_exponent()) : 0;
  const auto note = [](std::int64_t& count, std::int64_t& first, double& value, std::int64_t at, double x) {
    if (count++ == 0) first = at, value = x;
  };
  std::vector<double> values(static_cast<std::size_t>(check::kPiece));
  for_each_run(source, [&](const std::byte* bytes, std::int64_t n, std::int64_t begin) {
    core::load(dtype, bytes, size_of(dtype), n, values.data());
    if (begin == 0 && n > 0) s.first = values[0];
    for (std::int64_t i = 0; i < n; ++i) {
      const double x = values[static_cast<std::size_t>(i)];
      s.all_equal = s.all_equal && x == s.first;
      if (!std::isfinite(x)) {
        note(s.nonfinite, s.first_nonfinite, s.nonfinite_value, begin + i, x);
        continue;
      }
      s.largest = std::max(s.largest, x);
      if (x > 0) s.least = std::min(s.least, x);
      if (x < 0) note(s.negative, s.first_negative, s.negative_value, begin + i, x);
      if (x == 0 && s.zeros++ == 0) s.first_zero = begin + i;
      if (x > 0 && x < least_normal) note(s.tiny, s.first_tiny, s.tiny_value, begin + i, x);
      if (x > 0 && !is_pow2(x)) note(s.not_pow2, s.first_not_pow2, s.not_pow2_value, begin + i, x);
    }
    s.count += n;
  });
  return s;
}

std::string of_all(std::int64_t count, std::int64_t all) {
  return all == 1 ? "" : fmt::format(" ({} of {})", format_count(count), format_count(all));
}

// Scales of every scheme are finite.
void check_finite(const std::string& name, const ArraySource& scales, const ScaleStatistics& s,
                  FoundList& found) {
  if (s.nonfinite == 0) return;
  Shape at = core::index_of(scales.shape(), s.first_nonfinite);
  if (scale_type(scales) == DType::float8_e8m0fnu)
    found.push_back(
        {"scale-e8m0-nan", name, std::move(at), 255, "the code is NaN" + of_all(s.nonfinite, s.count)});
  else
    found.push_back({"scale-nonfinite", name, std::move(at), s.nonfinite_value,
                     fmt::format("it is {}{}", s.nonfinite_value, of_all(s.nonfinite, s.count))});
}

// How values are packed and scaled.
struct SchemeRow {
  CheckpointScheme scheme;
  std::int64_t values, bytes;    // `values` values are packed in `bytes` bytes
  std::int64_t block = 0;        // values of a scale along the last axis; 0: another rule
  std::string_view scale_types;  // in messages
  bool has_global = false;
};
constexpr SchemeRow kSchemes[] = {
    {fp8, 1, 1, 0, "float32, bfloat16 or float16"},
    {fp8_blocks, 1, 1, 0, "float32, bfloat16, float16 or E8M0"},
    {mxfp8, 1, 1, 32, "E8M0 (float8_e8m0fnu or uint8)"},
    {nvfp4, 2, 1, 16, "float8_e4m3fn", true},
    {mxfp4, 2, 1, 32, "E8M0 (float8_e8m0fnu or uint8)"},
    {mxfp6, 4, 3, 32, "E8M0 (float8_e8m0fnu or uint8)"},
    {gptoss, 2, 1, 32, "E8M0 (float8_e8m0fnu or uint8)"},
    {other, 1, 1, 0, "of a float type"},
};

const SchemeRow& row_of(CheckpointScheme scheme) {
  return is_checked(scheme) ? kSchemes[static_cast<std::size_t>(scheme)] : std::end(kSchemes)[-1];
}

bool is_scale_type(CheckpointScheme scheme, DType dtype) {
  const bool is_e8m0 = dtype == DType::uint8 || dtype == DType::float8_e8m0fnu;
  const bool is_plain = dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
  switch (scheme) {
    case fp8:
      return is_plain;
    case fp8_blocks:
      return is_plain || is_e8m0;
    case nvfp4:
      return dtype == DType::float8_e4m3fn;
    default:
      return is_e8m0 || (!is_checked(scheme) && is_float(dtype));
  }
}

// One quantised tensor.
class TensorCheck {
 public:
  TensorCheck(const Tensors& tensors, const Config& config, const CheckpointClaims& claims,
              const QuantizedTensor& q, FoundList& found)
      : tensors_(tensors), config_(config), claims_(claims), q_(q), found_(found) {}

  void run() {
    const ArraySource& values = *tensors_.at(q_.values);
    check_global();
    if (!q_.input_scale.empty()) check_factor(q_.input_scale);
    if (q_.scales.empty()) {
      if (q_.scheme != int8)
        add("scale-missing", q_.values, {}, {},
            fmt::format("no scales are beside it ({} values)", name_of(values.dtype())));
    } else {
      check_scales(values, *tensors_.at(q_.scales));
    }
    if (claims_.codes && is_checked(q_.scheme)) check_codes(values);
    if (const std::string* pattern = config_.ignores(q_.name))
      add("config-disagrees", q_.values, {}, {},
          fmt::format("it is quantised, and the config's '{}' excludes it", printable(*pattern, 60)));
  }

  /// The global scale, if it is one number.
  std::optional<double> global() const { return global_; }

 private:
  void add(std::string_view rule, const std::string& tensor, Shape index, ReportValue value,
           std::string message) {
    found_.push_back({rule, tensor, std::move(index), std::move(value), std::move(message)});
  }

  // A global or input scale: finite, positive, a normal number.
  ScaleStatistics check_factor(const std::string& name) {
    const ArraySource& factor = *tensors_.at(name);
    if (!is_float(factor.dtype())) {
      add("scale-dtype", name, {}, {}, fmt::format("it is {}, not of a float type", name_of(factor.dtype())));
      return {};
    }
    ScaleStatistics s = statistics_of(factor);
    check_numbers(name, factor, s);
    if (s.zeros > 0)
      add("scale-nonpositive", name, core::index_of(factor.shape(), s.first_zero), 0.0,
          fmt::format("it is 0{}", of_all(s.zeros, s.count)));
    return s;
  }

  void check_numbers(const std::string& name, const ArraySource& scales, const ScaleStatistics& s) {
    const auto at = [&](std::int64_t flat) { return core::index_of(scales.shape(), flat); };
    check_finite(name, scales, s, found_);
    if (s.negative > 0)
      add("scale-nonpositive", name, at(s.first_negative), s.negative_value,
          "it is negative" + of_all(s.negative, s.count));
    if (s.tiny > 0)
      add("scale-uninitialised", name, at(s.first_tiny), s.tiny_value,
          fmt::format("{:.4g} is no normal number: memory that was not written?{}", s.tiny_value,
                      of_all(s.tiny, s.count)));
    // Equal scales: uninitialised memory, one scale repeated for all rows, or weights of one magnitude. Scales of
    // 8 bits are equal in a few blocks by chance.
    const std::int64_t many = size_of(scales.dtype()) == 1 ? 64 : 8;
    if (s.count >= many && s.all_equal && s.first > 0 && !is_pow2(s.first))
      add("scale-constant", name, {}, s.first,
          fmt::format("all {} are {:.6g}", format_count(s.count), s.first));
    if (config_.is_ue8m0 && q_.scheme == fp8_blocks && s.not_pow2 > 0)
      add("scale-not-pow2", name, at(s.first_not_pow2), s.not_pow2_value,
          fmt::format("{:.6g} is no power of two, as scale_fmt \"ue8m0\" has them{}", s.not_pow2_value,
                      of_all(s.not_pow2, s.count)));
  }

  void check_global() {
    if (!row_of(q_.scheme).has_global) return;
    if (q_.global_scale.empty()) {
      if (!q_.scales.empty())
        add("global-missing", q_.values, {}, {},
            fmt::format("{} has a global scale, and none is beside it", name_of(q_.scheme)));
      return;
    }
    const ScaleStatistics s = check_factor(q_.global_scale);
    const Shape &v = tensors_.at(q_.values)->shape(), &g = tensors_.at(q_.global_scale)->shape();
    if (!quantize::is_global_shape(g, v))
      add("scale-shape", q_.global_scale, {}, {},
          fmt::format("it is {}, and nvfp4 values of {} have one global scale{}", to_string(g), to_string(v),
                      v.size() > 2 ? fmt::format(", or one an expert, ({},)", v[0]) : ""));
    if (s.count == 1 && s.nonfinite == 0 && s.first > 0) global_ = s.first;
  }

  // The block of values (rows, columns, in stored elements) of one scale along the last two axes.
  std::pair<std::int64_t, std::int64_t> block() const {
    const SchemeRow& row = row_of(q_.scheme);
    if (q_.scheme == fp8_blocks) {
      const ScaleBlock block = config_.block.value_or(quantize::kUsualBlock);
      return {block.rows, block.columns};
    }
    return {1, row.block * row.bytes / row.values};
  }

  // The shape of scales; those of fp8 have several.
  Shape expected(const Shape& values) const {
    if (q_.scheme == gptoss) return Shape(values.begin(), values.end() - 1);
    const auto [rows, columns] = block();
    Shape shape = values;
    if (q_.scheme == fp8_blocks) shape[shape.size() - 2] = core::ceil_div(shape[shape.size() - 2], rows);
    shape.back() = core::ceil_div(shape.back(), columns);
    return shape;
  }

  bool check_shape(const ArraySource& values, const ArraySource& scales) {
    const Shape &v = values.shape(), &s = scales.shape();
    const auto wrong = [&](const std::string& right) {
      add("scale-shape", q_.scales, {}, {},
          fmt::format("it is {}, and {} values of {} have scales of {}", to_string(s), name_of(q_.scheme),
                      to_string(v), right));
      return false;
    };
    const bool is_gptoss = q_.scheme == gptoss;
    const std::size_t least = q_.scheme == fp8 ? 0 : is_gptoss ? 3 : q_.scheme == fp8_blocks ? 2 : 1;
    if (v.size() < least) return wrong("another rank");
    if (is_gptoss && v.back() != 16) return wrong("(..., 16) values");
    if (q_.scheme == fp8)
      return quantize::block_of_scales(v, s, {.guess = false}) ||
             wrong("one number, one a row or one a column");
    const auto [rows, columns] = block();
    const bool fits = q_.scheme == fp8_blocks
                          ? quantize::block_of_scales(v, s, {.block = ScaleBlock{rows, columns}}).has_value()
                          : s == expected(v);
    return fits || wrong(to_string(expected(v)));
  }

  void check_scales(const ArraySource& values, const ArraySource& scales) {
    if (!is_scale_type(q_.scheme, scales.dtype())) {
      add("scale-dtype", q_.scales, {}, {},
          fmt::format("it is {}, and scales of {} are {}", name_of(scales.dtype()), name_of(q_.scheme),
                      row_of(q_.scheme).scale_types));
      return;
    }
    const bool fits = is_checked(q_.scheme) && check_shape(values, scales);
    statistics_ = statistics_of(scales);
    // Of gptq, awq and bitsandbytes 0 and small numbers are sound.
    if (q_.scheme == gptq || q_.scheme == awq || q_.scheme == bitsandbytes)
      return check_finite(q_.scales, scales, statistics_, found_);
    check_numbers(q_.scales, scales, statistics_);
    if (fits && statistics_.zeros > 0) check_zero_blocks(values, scales);
    check_reciprocal();
  }

  // A scale of 0 is sound where all its values are 0.
  void check_zero_blocks(const ArraySource& values, const ArraySource& scales) {
    std::int64_t wrong = 0, first = -1;
    std::vector<double> numbers(static_cast<std::size_t>(check::kPiece));
    for_each_run(scales, [&](const std::byte* bytes, std::int64_t n, std::int64_t begin) {
      core::load(scales.dtype(), bytes, size_of(scales.dtype()), n, numbers.data());
      for (std::int64_t i = 0; i < n; ++i) {
        if (numbers[static_cast<std::size_t>(i)] != 0) continue;
        const Shape index = core::index_of(scales.shape(), begin + i);
        if (!is_zero(values, values_of(index, scales.shape(), values.shape())) && wrong++ == 0)
          first = begin + i;
      }
    });
    if (wrong > 0)
      add("scale-zero-block", q_.scales, core::index_of(scales.shape(), first), 0.0,
          fmt::format("it is 0 and its values are not{}", of_all(wrong, statistics_.count)));
  }

  // Whether all codes of a box are 0 or -0.
  static bool is_zero(const ArraySource& values, const ArrayBox& box) {
    const auto magnitude = static_cast<std::byte>(values.dtype() == DType::uint8 ? 0x77 : 0x7F);
    std::vector<std::byte> codes;
    bool is_zero = true;
    core::for_each_piece(box.count, check::kPiece, [&](const Shape& offset, const Shape& count) {
      if (!is_zero) return;
      Shape start = box.start;
      for (std::size_t d = 0; d < start.size(); ++d) start[d] += offset[d];
      codes.resize(static_cast<std::size_t>(element_count(count)));
      values.read(start, count, codes.data());
      for (const std::byte code : codes) is_zero = is_zero && (code & magnitude) == std::byte{0};
    });
    return is_zero;
  }

  // The box of values that a scale is for.
  ArrayBox values_of(const Shape& index, const Shape& scales, const Shape& values) const {
    ArrayBox box = whole_box(values);
    if (scales.size() != values.size()) {
      if (q_.scheme != gptoss && scales.size() == 1 && values.size() >= 2 && element_count(scales) > 1) {
        const std::size_t axis = scales[0] == values[values.size() - 2] ? values.size() - 2 : 0;
        box.start[axis] = index[0], box.count[axis] = 1;
      } else if (element_count(scales) > 1) {
        for (std::size_t d = 0; d < scales.size(); ++d)
          if (scales[d] != 1) box.start[d] = index[d], box.count[d] = 1;
      }
      return box;
    }
    const auto [rows, columns] = block();
    for (std::size_t d = 0; d < values.size(); ++d) {
      std::int64_t size = 1;
      if (q_.scheme == fp8)
        size = scales[d] == 1 ? values[d] : 1;
      else if (d + 1 == values.size())
        size = columns;
      else if (d + 2 == values.size())
        size = rows;
      box.start[d] = index[d] * size;
      box.count[d] = std::min(size, values[d] - box.start[d]);
    }
    return box;
  }

  // The largest value of the tensor by its scales, and by the inverse of them: weights are between 1e-5 and
  // 1e4, outliers up to 1e5, and one of the two is far from there. The inverse of amax / 448 makes 448^2 / amax of
  // the largest element, 2e5 and more where a block's amax is at most 1.
  static constexpr double kLeast = 1e-5, kMost = 1e4, kOutliers = 1e5;

  void check_reciprocal() {
    if (statistics_.nonfinite > 0 || statistics_.largest <= 0) return;
    if (row_of(q_.scheme).has_global) return check_global_reciprocal();
    if (!q_.element) return;
    const ArraySource& values = *tensors_.at(q_.values);
    constexpr double kOf4Bits = 6, kOf6Bits = 7.5;
    const double element = is_signed_8_bit_float(values.dtype()) ? float_format(values.dtype()).largest
                           : q_.scheme == mxfp6                  ? kOf6Bits
                                                                 : kOf4Bits;
    const double range = statistics_.largest * element, inverse = element / statistics_.least;
    if (range <= kOutliers) return;
    const bool fits = inverse >= kLeast && inverse <= kMost;
    add("scale-reciprocal", q_.scales, {}, statistics_.largest,
        fmt::format(
            "with scales up to {:.4g} values go up to {:.3g}, which no weights do{}", statistics_.largest,
            range,
            fits ? fmt::format("; with their inverses to {:.3g}: they are the other way round", inverse)
                 : ""));
  }

  void check_global_reciprocal() {
    if (!global_) return;
    constexpr double kLargestCode = 6;
    const double factor = q_.global_divides ? 1 / *global_ : *global_;
    const double range = factor * statistics_.largest * kLargestCode,
                 inverse = statistics_.largest * kLargestCode / factor;
    if ((range >= kLeast && range <= kOutliers) || inverse < kLeast || inverse > kMost) return;
    add("global-reciprocal", q_.global_scale, {}, *global_,
        fmt::format(
            "with {:.4g} values go up to {:.3g}, with its inverse to {:.3g}: {} is the other way round",
            *global_, range, inverse, q_.global_divides ? "this one divides, and it" : "it"));
  }

  // Four codes in three bytes, the first in the lowest bits.
  static void count_6_bit_codes(const ArraySource& values, std::array<std::int64_t, 256>& codes) {
    std::uint32_t word = 0;
    for_each_run(values, [&](const std::byte* run, std::int64_t n, std::int64_t begin) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = (begin + i) % 3;
        word |= std::to_integer<std::uint32_t>(run[i]) << (8 * at);
        if (at < 2) continue;
        for (int code = 0; code < 4; ++code) ++codes[word >> (6 * code) & 63u];
        word = 0;
      }
    });
  }

  // How often each code occurs.
  void check_codes(const ArraySource& values) {
    std::array<std::int64_t, 256> bytes{};  // of 6-bit codes how often each code occurs
    if (q_.scheme == mxfp6)
      count_6_bit_codes(values, bytes);
    else
      for_each_run(values, [&](const std::byte* run, std::int64_t n, std::int64_t) {
        for (std::int64_t i = 0; i < n; ++i) ++bytes[std::to_integer<std::size_t>(run[i])];
      });
    std::int64_t all = 0, largest = 0, nan = 0, zero = 0, negative_zero = 0;
    if (q_.scheme == mxfp6) {  // e2m3 and e3m2 have the same largest code, 0 and -0
      constexpr std::size_t kSign = 32;
      all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
      largest = bytes[kSign - 1] + bytes[2 * kSign - 1];
      zero = bytes[0], negative_zero = bytes[kSign];
    } else if (values.dtype() == DType::uint8) {  // two e2m1 a byte
      for (std::size_t byte = 0; byte < bytes.size(); ++byte)
        for (const std::size_t code : {byte & 15, byte >> 4}) {
          all += bytes[byte];
          if ((code & 7) == 7) largest += bytes[byte];
          if (code == 0) zero += bytes[byte];
          if (code == 8) negative_zero += bytes[byte];
        }
    } else {
      std::vector<double> numbers(bytes.size());
      std::array<std::byte, 256> codes{};
      for (std::size_t code = 0; code < codes.size(); ++code) codes[code] = static_cast<std::byte>(code);
      core::load(values.dtype(), codes.data(), 1, std::ssize(codes), numbers.data());
      for (std::size_t code = 0; code < bytes.size(); ++code) {
        const double x = numbers[code];
        all += bytes[code];
        if (!std::isfinite(x))
          nan += bytes[code];
        else if (std::abs(x) == float_format(values.dtype()).largest)
          largest += bytes[code];
        else if (x == 0)
          (std::signbit(x) ? negative_zero : zero) += bytes[code];
      }
    }
    const auto share = [&](std::int64_t count) {
      return fmt::format("{} of {} values ({:.1f} %)", format_count(count), format_count(all),
                         100 * static_cast<double>(count) / static_cast<double>(all));
    };
    if (nan > 0) add("nan-codes", q_.values, {}, nan, share(nan) + " are NaN or infinite");
    constexpr std::int64_t kQuarter = 4, kMany = 64;
    if (largest * kQuarter >= all && all >= kMany)
      add("codes-saturated", q_.values, {}, largest, share(largest) + " are the largest of their sign");
    if (largest == 0 && statistics_.not_pow2 > 0 && zero + negative_zero < all && all >= kMany)
      add("codes-unused", q_.values, {}, {},
          "no value is the largest of its sign: the scales were computed for another range");
    if (negative_zero >= kMany && zero == 0)
      add("codes-negative-zero", q_.values, {}, negative_zero, "each zero is -0: " + share(negative_zero));
  }

  const Tensors& tensors_;
  const Config& config_;
  const CheckpointClaims& claims_;
  const QuantizedTensor& q_;
  FoundList& found_;
  ScaleStatistics statistics_;
  std::optional<double> global_;
};

// --- rules across tensors

// Whether the last word of a name is that of scales, of any scheme. Those of the cache have a rule of their own.
bool is_any_scale(std::string_view name) {
  for (const std::string_view of_cache : {"k_scale", "v_scale", "output_scale"})
    if (name.ends_with(of_cache)) return false;
  const std::string_view word = name.substr(name.rfind('.') + 1);
  return word.find("scale") != std::string_view::npos || word.ends_with("absmax") || word == "SCB";
}

// Scales that no quantised tensor has. They are finite, too.
void check_orphans(const Tensors& tensors, const std::vector<QuantizedTensor>& quantized, FoundList& found) {
  std::set<std::string_view> used;
  for (const QuantizedTensor& q : quantized)
    for (const std::string* part : {&q.values, &q.scales, &q.global_scale, &q.input_scale})
      if (!part->empty()) used.insert(*part);
  for (const auto& [name, source] : tensors)
    if (!used.contains(name) && is_any_scale(name) &&
        (is_float(source->dtype()) || source->dtype() == DType::float8_e8m0fnu))
      check_finite(name, *source, statistics_of(*source), found);
  constexpr std::string_view kSuffixes[] = {"weight_scale",        "weight_scale_inv", "weight_scale_2",
                                            "weight_global_scale", "input_scale",      "input_global_scale"};
  for (const auto& [name, source] : tensors) {
    const bool is_scale = std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                                      [text = std::string_view(name)](std::string_view suffix) {
                                        return text.ends_with(suffix);
                                      }) ||
                          (name.ends_with("_scales") && source->dtype() == DType::uint8);
    if (is_scale && !used.contains(name))
      found.push_back({"scale-orphan", name, {}, {}, "no quantised values are beside it"});
  }
}

// Scales of the cache of keys and values: both or none, and positive. A name is of the first pair it ends with.
void check_cache_scales(const Tensors& tensors, FoundList& found) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"k_proj.output_scale", "v_proj.output_scale"},
      {"k_proj.k_scale", "v_proj.v_scale"},
      {"k_scale", "v_scale"}};
  for (const auto& [name, source] : tensors) {
    const auto stem_before = [&name = name](std::string_view suffix) -> std::optional<std::string> {
      if (!name.ends_with(suffix)) return std::nullopt;
      std::string stem = name.substr(0, name.size() - suffix.size());
      if (!stem.empty() && stem.back() != '.' && stem.back() != '_') return std::nullopt;
      return stem;
    };
    std::string_view other_end;
    std::string stem;
    for (const auto& [keys, values] : kPairs)
      for (const auto& [own, other] : {std::pair(keys, values), std::pair(values, keys)})
        if (const auto before = stem_before(own); before && other_end.empty())
          stem = *before, other_end = other;
    if (other_end.empty()) continue;
    std::string fault;
    ReportValue value;
    if (is_float(source->dtype())) {
      const ScaleStatistics s = statistics_of(*source);
      if (s.nonfinite + s.negative + s.zeros > 0) {
        const double x = s.nonfinite > 0 ? s.nonfinite_value : s.negative > 0 ? s.negative_value : 0.0;
        value = x, fault = fmt::format("it is {}", x);
      }
    }
    if (!tensors.contains(stem + std::string(other_end)))
      fault += fmt::format("{}there is no {} beside it", fault.empty() ? "" : ", and ", other_end);
    if (!fault.empty()) found.push_back({"kv-scale", name, {}, value, std::move(fault)});
  }
}

// The experts that a router beside them has weights for; 0 if there is none. Some store weights transposed; there
// are fewer experts than features.
std::pair<std::int64_t, std::string> routed_experts(const Tensors& tensors, const std::string& prefix) {
  const std::string stem = prefix.substr(0, prefix.rfind('.') + 1);
  for (const char* router : {"gate.weight", "router.weight"})
    if (const auto at = tensors.find(stem + router); at != tensors.end())
      if (const Shape& shape = at->second->shape(); shape.size() == 2)
        return {std::min(shape[0], shape[1]), at->first};
  return {};
}

// Names "PREFIX.experts.N.REST": each REST that one expert has all have.
void check_experts(const Tensors& tensors, const Config& config, FoundList& found) {
  constexpr std::string_view kExperts = "experts.";
  struct Group {
    std::map<std::string, std::set<std::int64_t>> experts_of;  // by REST
    std::int64_t count = 0;
  };
  std::map<std::string, Group> groups;  // by PREFIX
  for (const auto& [name, source] : tensors) {
    const std::size_t at = name.find(kExperts);
    if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) continue;
    const std::size_t begin = at + kExperts.size(), end = name.find('.', begin);
    constexpr std::size_t kMostDigits = 9;
    if (end == std::string::npos || end == begin || end - begin > kMostDigits ||
        name.find_first_not_of("0123456789", begin) != end)
      continue;
    const std::int64_t expert = std::stoll(name.substr(begin, end - begin));
    Group& group = groups[name.substr(0, begin - 1)];
    group.experts_of[name.substr(end + 1)].insert(expert);
    group.count = std::max(group.count, expert + 1);
  }
  for (auto& [prefix, group] : groups) {
    // Counts of a config and a router are of the routed experts, which some names call by another word.
    if (!prefix.ends_with("shared_experts")) {
      const auto [routed, router] = routed_experts(tensors, prefix);
      const auto add = [&found, &prefix = prefix, count = group.count](const std::string& wanted) {
        found.push_back(
            {"experts-incomplete", prefix, {}, count, fmt::format("{} experts, and {}", count, wanted)});
      };
      if (config.experts && *config.experts > group.count)
        add(fmt::format("the config has {}", *config.experts));
      else if (routed > group.count)
        add(fmt::format("{} routes to {}", printable(router, 60), routed));
    }
    for (const auto& [rest, experts] : group.experts_of) {
      const std::int64_t missing = group.count - std::ssize(experts);
      if (missing == 0) continue;
      std::vector<std::int64_t> first;  // a few of the missing ones
      constexpr std::size_t kFew = 3;
      std::int64_t next = 0;
      for (auto it = experts.begin(); first.size() < kFew && next < group.count; ++next)
        if (it != experts.end() && *it == next)
          ++it;
        else
          first.push_back(next);
      found.push_back({"experts-incomplete",
                       fmt::format("{}.{}.{}", prefix, first[0], rest),
                       {},
                       missing,
                       fmt::format("expert{} {}{} of {} lack{} {}", missing == 1 ? "" : "s",
                                   fmt::join(first, ", "), missing > std::ssize(first) ? ", ..." : "",
                                   group.count, missing == 1 ? "s" : "", printable(rest, 60))});
    }
  }
}

// Projections that one kernel multiplies at once, and takes one global scale for.
void check_fused(const std::vector<QuantizedTensor>& quantized,
                 const std::vector<std::optional<double>>& globals, bool join, FoundList& found) {
  struct Fused {
    std::string_view rule;
    std::vector<std::string_view> parts;
  };
  static const Fused kFused[] = {{"gate-up-scale", {"gate_proj", "up_proj"}},
                                 {"gate-up-scale", {"w1", "w3"}},
                                 {"qkv-scale", {"q_proj", "k_proj", "v_proj"}}};
  std::map<std::string_view, double> of;
  for (std::size_t i = 0; i < quantized.size(); ++i)
    if (globals[i]) of[quantized[i].name] = *globals[i];
  for (const Fused& fused : kFused) {
    std::map<std::string, std::tuple<std::int64_t, std::int64_t, double, FoundList>> kinds;  // by pattern
    for (const auto& [name, global] : of) {
      if (!name.ends_with(fused.parts[0])) continue;
      const std::string stem(name.substr(0, name.size() - fused.parts[0].size()));
      double least = global, most = global;
      bool is_whole = true;
      for (const std::string_view part : fused.parts) {
        const auto other_part = of.find(stem + std::string(part));
        is_whole = is_whole && other_part != of.end();
        if (!is_whole) break;
        least = std::min(least, other_part->second), most = std::max(most, other_part->second);
      }
      if (!is_whole) continue;
      auto& [differing, all, largest, list] = kinds[name_pattern(stem)];
      ++all;
      if (least == most) continue;
      ++differing;
      largest = std::max(largest, most / least);
      list.push_back({fused.rule,
                      std::string(name),
                      {},
                      most / least,
                      fmt::format("the global scales of {} differ by a factor of {:.4g}",
                                  fmt::join(fused.parts, ", "), most / least)});
    }
    for (auto& [pattern, kind] : kinds) {
      auto& [differing, all, largest, list] = kind;
      if (join && all > 1)
        for (Found& one : list)
          one.message =
              fmt::format("the global scales of {} differ in {} of {}, by a factor of up to {:.4g}",
                          fmt::join(fused.parts, ", "), format_count(differing), format_count(all), largest);
      found.insert(found.end(), std::make_move_iterator(list.begin()), std::make_move_iterator(list.end()));
    }
  }
}

// Tensors of schemes that are not checked, by the parts that they have.
void check_unchecked(const std::vector<QuantizedTensor>& quantized, FoundList& found) {
  struct Kind {
    std::int64_t layers = 0, tensors = 0;
    const std::string* first = nullptr;
  };
  std::map<std::string, Kind> kinds;  // by scheme and parts
  for (const QuantizedTensor& q : quantized) {
    if (is_checked(q.scheme) || (q.scheme == other && q.scales.empty())) continue;  // scale-missing
    std::vector<std::string_view> parts{q.values};
    if (!q.scales.empty()) parts.push_back(q.scales);
    parts.insert(parts.end(), q.others.begin(), q.others.end());
    for (std::string_view& part : parts)
      part.remove_prefix(q.name.size() + (part.substr(q.name.size()).starts_with('.') ? 1 : 0));
    Kind& kind = kinds[fmt::format("{}: {}", name_of(q.scheme), fmt::join(parts, ", "))];
    if (kind.layers++ == 0) kind.first = &q.values;
    kind.tensors += 1 + std::ssize(q.others);
  }
  for (const auto& [parts, kind] : kinds)
    found.push_back(
        {"unchecked",
         *kind.first,
         {},
         kind.tensors,
         fmt::format("{}: {} tensor{} of {} layer{} {} not checked, and scales only for being finite", parts,
                     format_count(kind.tensors), kind.tensors == 1 ? "" : "s", format_count(kind.layers),
                     kind.layers == 1 ? "" : "s", kind.tensors == 1 ? "is" : "are")});
}

// Whether there are quantised tensors, and their schemes.
void check_config(const Config& config, const std::vector<QuantizedTensor>& quantized, FoundList& found) {
  if (!config.is_given) return;
  const auto add = [&found](const std::string& tensor, std::string message) {
    found.push_back({"config-disagrees", tensor, {}, {}, std::move(message)});
  };
  if (config.is_quantized && quantized.empty())
    add("quantization_config", "no tensor is recognised as quantised");
  if (!config.is_quantized && !quantized.empty())
    add(quantized.front().values,
        fmt::format("{} tensors are quantised, and the config has no quantization_config",
                    format_count(std::ssize(quantized))));
  std::map<CheckpointScheme, std::pair<std::int64_t, const std::string*>> schemes;  // the count and the first
  for (const QuantizedTensor& q : quantized)
    if (auto& [count, first] = schemes[q.scheme]; count++ == 0) first = &q.values;
  // Some models have a few tensors of another scheme than the one that is named.
  const bool is_named = std::any_of(schemes.begin(), schemes.end(),
                                    [&](const auto& entry) { return config.names(entry.first); });
  for (const auto& entry : schemes) {
    const auto [count, first] = entry.second;
    const std::string are =
        fmt::format("{} of {} quantised tensors {} {}", format_count(count),
                    format_count(std::ssize(quantized)), count == 1 ? "is" : "are", name_of(entry.first));
    const std::int64_t block = is_checked(entry.first) ? row_of(entry.first).block : 0;
    if (!is_named)
      add(*first,
          fmt::format("the config's {} is {}, and {}", config.method_key, printable(config.method, 60), are));
    else if (block > 0 && !config.group_sizes.empty() && !config.group_sizes.contains(block))
      add(*first, fmt::format("the config's group_size is {}, and {}, with {} values a scale",
                              fmt::join(config.group_sizes, ", "), are, block));
  }
}

void check_index(const Checkpoint& checkpoint, FoundList& found) {
  std::map<std::string_view, std::string_view> file_of;
  std::set<std::string_view> in_several;
  for (const Checkpoint::File& file : checkpoint.files)
    for (const std::string& tensor : file.tensors) {
      const auto [at, is_new] = file_of.emplace(tensor, file.name);
      if (!is_new && in_several.insert(tensor).second)
        found.push_back({"index-disagrees",
                         tensor,
                         {},
                         {},
                         fmt::format("it is in {} and in {}", printable(at->second), printable(file.name))});
    }
  if (!checkpoint.index) return;
  const JsonValue* map = member(&*checkpoint.index, "weight_map");
  const auto* entries = map == nullptr ? nullptr : std::get_if<JsonValue::Object>(&map->value);
  if (entries == nullptr) {
    found.push_back({"index-disagrees", "weight_map", {}, {}, "the index has no weight_map of names"});
    return;
  }
  std::set<std::string_view> listed;
  for (const auto& [name, value] : *entries) {
    const std::string wanted = text_of(&value);
    if (!listed.insert(name).second)
      found.push_back({"index-disagrees", name, {}, {}, "the index has it twice"});
    const auto is = file_of.find(name);
    if (is == file_of.end())
      found.push_back({"index-disagrees",
                       name,
                       {},
                       {},
                       fmt::format("the index has it in {}, which lacks it", printable(wanted, 60))});
    else if (is->second != wanted && !in_several.contains(name))
      found.push_back({"index-disagrees",
                       name,
                       {},
                       {},
                       fmt::format("the index has it in {}, and it is in {}", printable(wanted, 60),
                                   printable(is->second, 60))});
  }
  for (const auto& [name, file] : file_of)
    if (!listed.contains(name))
      found.push_back({"index-disagrees",
                       std::string(name),
                       {},
                       {},
                       fmt::format("{} has it, and the index lacks it", printable(file, 60))});
  double bytes = 0;
  for (const auto& [name, source] : checkpoint.tensors)
    bytes += static_cast<double>(type_of(*source).bytes());
  const auto total = integer_of(member(member(&*checkpoint.index, "metadata"), "total_size"));
  if (total && static_cast<double>(*total) != bytes)
    found.push_back({"index-disagrees",
                     "total_size",
                     {},
                     *total,
                     fmt::format("the index says {}, and the tensors have {} bytes", *total,
                                 static_cast<std::int64_t>(bytes))});
}

// --- the report

// Adds what was found; `join`: of one kind as one finding.
void add_all(FoundList&& list, bool join, const CheckpointClaims& claims, Findings& found) {
  struct Kind {
    std::int64_t count = 0, place = 0;
    std::vector<std::string> first;
    Found one;
  };
  const auto is_wanted = [&](std::string_view rule) {
    return claims.rules.empty() ||
           std::find(claims.rules.begin(), claims.rules.end(), rule) != claims.rules.end();
  };
  std::map<std::pair<std::string_view, std::string>, Kind> kinds;
  std::int64_t place = 0;
  for (Found& one : list) {
    if (!is_wanted(one.rule)) continue;
    constexpr std::size_t kNamed = 3;
    Kind& kind = kinds[{one.rule, join ? name_pattern(one.tensor) : std::to_string(place)}];
    if (kind.count++ == 0) kind.place = place;
    if (kind.first.size() < kNamed) kind.first.push_back(one.tensor);
    if (kind.count == 1) kind.one = std::move(one);
    ++place;
  }
  for (auto& entry : kinds) {
    Kind& kind = entry.second;
    found.add(
        entry.first.first, kind.place,
        [&] {
          Found& one = kind.one;
          std::string message = one.message;
          if (kind.count > 1)
            message +=
                fmt::format("; {} of these: {}{}", format_count(kind.count), fmt::join(kind.first, ", "),
                            kind.count > std::ssize(kind.first) ? ", ..." : "");
          return Finding{kind.count > 1 ? entry.first.second : one.tensor,
                         kind.count > 1 ? Shape() : one.index, kind.count > 1 ? ReportValue() : one.value,
                         std::move(message)};
        },
        kind.count);
  }
}

void describe(const Checkpoint& checkpoint, const std::vector<QuantizedTensor>& quantized, Report& facts) {
  struct Sum {
    std::int64_t tensors = 0, bytes = 0, scale_bytes = 0;
    std::optional<std::int64_t> parameters = 0;  // of all tensors; none where one's packing is not known
  };
  std::map<CheckpointScheme, Sum> sums;
  Sum plain;
  std::set<std::string_view> parts;
  const auto bytes_of = [&](const std::string& name) {
    if (name.empty()) return std::int64_t{0};
    parts.insert(name);
    return type_of(*checkpoint.tensors.at(name)).bytes();
  };
  for (const QuantizedTensor& q : quantized) {
    Sum& sum = sums[q.scheme];
    ++sum.tensors;
    const std::optional<std::int64_t> count = parameter_count(q, checkpoint.tensors);
    sum.parameters = sum.parameters && count ? core::checked_add(*sum.parameters, *count) : std::nullopt;
    sum.bytes += bytes_of(q.values);
    sum.scale_bytes += bytes_of(q.scales) + bytes_of(q.global_scale) + bytes_of(q.input_scale);
    for (const std::string& part : q.others) sum.scale_bytes += bytes_of(part);
  }
  for (const auto& [name, source] : checkpoint.tensors)
    if (!parts.contains(name)) {
      ++plain.tensors;
      *plain.parameters += element_count(source->shape());
      plain.bytes += type_of(*source).bytes();
    }
  Table table{"schemes",
              "",
              {{"scheme", "scheme"},
               {"tensors", "tensors"},
               {"parameters", "parameters", Unit::count},
               {"values", "values", Unit::bytes},
               {"scales", "scales", Unit::bytes}},
              {}};
  for (const auto& [scheme, sum] : sums)
    table.rows.push_back({std::string(name_of(scheme)), sum.tensors,
                          sum.parameters ? ReportValue(*sum.parameters) : ReportValue(), sum.bytes,
                          sum.scale_bytes});
  table.rows.push_back(
      {std::string("not quantised"), plain.tensors, *plain.parameters, plain.bytes, std::int64_t{0}});
  facts.add("tensors", "tensors", std::ssize(checkpoint.tensors), Unit::count);
  if (!checkpoint.files.empty()) facts.add("files", "files", std::ssize(checkpoint.files), Unit::count);
  facts.add(std::move(table));
}

}  // namespace

std::optional<ScaleBlock> weight_block(const JsonValue& config) { return Config(config).block; }

Findings check_checkpoint(const Checkpoint& checkpoint, const CheckpointClaims& claims,
                          const CheckOptions& options) {
  const std::span<const Rule> rules = rules_of("checkpoint");
  for (const std::string& wanted : claims.rules)
    if (std::none_of(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.name == wanted; }))
      throw core::usage("'{}' is no rule of checkpoints", printable(wanted, 60));
  const Config config(checkpoint.config);
  const std::vector<QuantizedTensor> quantized = quantized_tensors(checkpoint.tensors);
  const bool join = options.most_findings <= Findings::kFew;

  std::vector<FoundList> found_in(quantized.size());
  std::vector<std::optional<double>> globals(quantized.size());
  core::Progress progress(options.progress, std::ssize(quantized));
  core::parallel_for(std::ssize(quantized), 1e6 * static_cast<double>(quantized.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    TensorCheck check(checkpoint.tensors, config, claims, quantized[at], found_in[at]);
    check.run();
    globals[at] = check.global();
    progress.add(1);
  });

  FoundList all;
  for (FoundList& list : found_in)
    all.insert(all.end(), std::make_move_iterator(list.begin()), std::make_move_iterator(list.end()));
  check_orphans(checkpoint.tensors, quantized, all);
  check_cache_scales(checkpoint.tensors, all);
  check_experts(checkpoint.tensors, config, all);
  check_fused(quantized, globals, join, all);
  check_index(checkpoint, all);
  check_config(config, quantized, all);
  check_unchecked(quantized, all);
  Findings found(rules, options.most_findings);
  add_all(std::move(all), join, claims, found);
  found.show_arrays();
  describe(checkpoint, quantized, found.facts());
  if (!config.unread.empty())
    found.facts().warnings.push_back(
        fmt::format("{} of the config's list of ignored layers {} not understood and not applied: '{}'",
                    config.unread.size() == 1 ? "an entry" : fmt::format("{} entries", config.unread.size()),
                    config.unread.size() == 1 ? "is" : "are", printable(config.unread.front(), 60)));
  return found;
}

std::int64_t check_checkpoint_bytes(const Checkpoint& checkpoint) {
  constexpr std::int64_t kOfTensor = 1024;  // names, and what is known of each
  return core::sum_of_bytes({2 * check_bytes(), kOfTensor * std::ssize(checkpoint.tensors)});
}

}  // namespace ejk
