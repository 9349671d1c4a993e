// Short convolutions: golden cases, a plain loop in float64 over random problems, parts of a sequence that are the
// whole, values that are not finite, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejk/conv1d.hpp"
#include "support/arrays.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using plain::between;
using Integers = std::vector<std::int64_t>;

Conv1dLayout layout_named(const std::string& name) {
  for (const auto layout : {Conv1dLayout::bsd, Conv1dLayout::bds, Conv1dLayout::td})
    if (name_of(layout) == name) return layout;
  return Conv1dLayout::dt;
}

struct ShortConvolution {
  Array x, weight, bias, state;  // bias and state perhaps without elements: none
  bool has_bias = false, has_state = false;
  Integers cu_seqlens, read, write, has;
  Conv1dSettings settings;

  Conv1dOperands operands(int layout = 0) {
    Conv1dOperands o;
    laid_ = std::make_unique<plain::Laid>(x, layout);
    o.x = laid_->view();
    o.weight = weight.view();
    if (has_bias) o.bias = bias.view();
    if (has_state) o.initial_state = state.view();
    if (!cu_seqlens.empty()) o.cu_seqlens = cu_seqlens;
    if (!read.empty()) o.slots.read = read;
    if (!write.empty()) o.slots.write = write;
    if (!has.empty()) o.slots.has_initial_state = has;
    return o;
  }

 private:
  std::unique_ptr<plain::Laid> laid_;
};

// Element (a, b, c) of three axes, in whichever order they are.
struct Three {
  Shape shape;
  std::vector<double> values;
  bool last_two_swapped = false;

  double& at(std::int64_t a, std::int64_t b, std::int64_t c) {
    if (last_two_swapped) std::swap(b, c);
    return values[static_cast<std::size_t>((a * shape[1] + b) * shape[2] + c)];
  }
};

struct ConvolvedByDefinition {
  std::vector<double> out, final_state;
};

// By definition, without a thought for speed.
ConvolvedByDefinition convolution_by_definition(const ShortConvolution& c) {
  const Conv1dLayout layout = *c.settings.layout;
  Shape shape = c.x.shape();
  if (shape.size() == 2) shape.insert(shape.begin(), 1);
  Three x{shape, plain::doubles(c.x.view()), layout == Conv1dLayout::bds || layout == Conv1dLayout::dt};
  Three out = x;
  const std::int64_t channels = x.last_two_swapped ? shape[1] : shape[2], w = c.weight.shape().back();
  const std::vector<double> weight = plain::doubles(c.weight.view()), bias = plain::doubles(c.bias.view());
  const bool wd = c.settings.state_layout == Conv1dStateLayout::wd;
  Three old{c.state.shape(), plain::doubles(c.state.view()), wd};
  const std::int64_t columns =
      c.has_state ? c.state.shape()[wd ? 1 : 2] : c.settings.state_width.value_or(w - 1);
  const std::int64_t sequences = c.cu_seqlens.empty() ? shape[0] : std::ssize(c.cu_seqlens) - 1;
  Three state = old;
  if (c.read.empty()) {
    state.shape = {sequences, wd ? columns : channels, wd ? channels : columns};
    state.values.assign(static_cast<std::size_t>(sequences * channels * columns), 0);
  }
  for (std::int64_t n = 0; n < sequences; ++n) {
    const auto i = static_cast<std::size_t>(n);
    const std::int64_t entry = c.cu_seqlens.empty() ? n : 0,
                       begin = c.cu_seqlens.empty() ? 0 : c.cu_seqlens[i],
                       end =
                           c.cu_seqlens.empty() ? out.shape[x.last_two_swapped ? 2 : 1] : c.cu_seqlens[i + 1];
    std::int64_t from = c.has_state ? n : -1, to = n;
    if (!c.read.empty()) from = c.read[i], to = c.write.empty() ? from : c.write[i];
    const bool padding = from < 0 && to < 0;
    if (!c.has.empty() && c.has[i] == 0) from = -1;
    const auto token = [&](std::int64_t t, std::int64_t d) {
      if (t >= 0) return x.at(entry, begin + t, d);
      return from < 0 ? 0 : old.at(from, d, columns + t);
    };
    for (std::int64_t d = 0; d < channels; ++d) {
      for (std::int64_t t = 0; t < end - begin; ++t) {
        double sum = c.has_bias ? bias[static_cast<std::size_t>(d)] : 0;
        for (std::int64_t j = 0; j < w; ++j)
          sum += weight[static_cast<std::size_t>(d * w + j)] * token(t - (w - 1) + j, d);
        if (c.settings.activation == Conv1dActivation::silu) sum = sum / (1 + std::exp(-sum));
        out.at(entry, begin + t, d) = padding ? 0 : sum;
      }
      for (std::int64_t l = 0; l < columns && to >= 0; ++l)
        state.at(to, d, l) = token(end - begin - columns + l, d);
    }
  }
  return {out.values, state.values};
}

double largest_magnitude(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values) most = std::max(most, std::abs(v));
  return most;
}

void check_convolution(ShortConvolution& c, const ConvolvedByDefinition& expected, int layout = 0) {
  const Conv1dOperands operands = c.operands(layout);
  const Conv1dResult got = conv1d(operands, c.settings);
  const Conv1dTypes types = types_of(operands, c.settings);
  CHECK(got.out.dtype() == types.out.dtype);
  CHECK(got.out.shape() == c.x.shape());
  CHECK(got.final_state.dtype() == types.final_state.dtype);
  CHECK(got.final_state.shape() == types.final_state.shape);
  const std::int64_t w = c.weight.shape().back();
  const std::vector<double> weight = plain::doubles(c.weight.view());
  double rows = 0;
  for (std::size_t d = 0; d < weight.size(); d += static_cast<std::size_t>(w)) {
    double sum = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(w); ++j) sum += std::abs(weight[d + j]);
    rows = std::max(rows, sum);
  }
  const double most = std::max(largest_magnitude(plain::doubles(c.x.view())),
                               largest_magnitude(plain::doubles(c.state.view())));
  const bool is_double = c.x.dtype() == DType::float64 || c.weight.dtype() == DType::float64 ||
                         c.bias.dtype() == DType::float64 || c.state.dtype() == DType::float64;
  const double bound = (is_double ? 0x1p-48 : 0x1p-21) * (most * rows + 1);
  const int bits = float_format(got.out.dtype()).mantissa_bits;
  const std::vector<double> out = plain::doubles(got.out.view()),
                            state = plain::doubles(got.final_state.view());
  REQUIRE(out.size() == expected.out.size());
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double allowed = bound + (std::abs(expected.out[i]) + bound) * std::ldexp(1, -bits - 1) + 0x1p-25;
    wrong += std::abs(out[i] - expected.out[i]) <= allowed ? 0 : 1;
  }
  CHECK(wrong == 0);
  REQUIRE(state.size() == expected.final_state.size());
  for (std::size_t i = 0; i < state.size(); ++i)
    wrong += state[i] == plain::rounded(expected.final_state[i], got.final_state.dtype()) ? 0 : 1;
  CHECK(wrong == 0);
}

ShortConvolution random_convolution(plain::Random& random) {
  ShortConvolution c;
  const auto dtype = [&] { return plain::kFloats[static_cast<std::size_t>(between(random, 0, 3))]; };
  const DType common = dtype();
  const auto some = [&] { return between(random, 1, 4) == 1 ? dtype() : common; };
  const std::int64_t channels =
                         between(random, 0, 9) == 0 ? between(random, 500, 1100) : between(random, 1, 40),
                     w = between(random, 1, 9);
  const bool packed = between(random, 0, 1) == 1, by_tokens = between(random, 0, 1) == 1;
  std::int64_t sequences = between(random, 1, 4);
  const auto length = [&] {
    return between(random, 0, 9) == 0 && channels < 20 ? between(random, 2000, 4200) : between(random, 0, 40);
  };
  Shape shape{sequences, length(), channels};
  if (packed) {
    c.cu_seqlens = {0};
    for (std::int64_t n = 0; n < sequences; ++n) c.cu_seqlens.push_back(c.cu_seqlens.back() + length());
    shape = {c.cu_seqlens.back(), channels};
  }
  if (by_tokens) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  c.settings.layout = packed ? (by_tokens ? Conv1dLayout::dt : Conv1dLayout::td)
                             : (by_tokens ? Conv1dLayout::bds : Conv1dLayout::bsd);
  c.x = plain::random(common, shape, random);
  c.weight =
      plain::random(some(), between(random, 0, 1) == 1 ? Shape{channels, w} : Shape{channels, 1, w}, random);
  c.has_bias = between(random, 0, 1) == 1;
  if (c.has_bias) c.bias = plain::random(some(), {channels}, random);
  c.settings.activation = between(random, 0, 1) == 1 ? Conv1dActivation::silu : Conv1dActivation::none;
  c.settings.state_layout = between(random, 0, 1) == 1 ? Conv1dStateLayout::dw : Conv1dStateLayout::wd;
  const std::int64_t columns = w - 1 + between(random, 0, 4);
  c.has_state = between(random, 0, 2) > 0;
  if (!c.has_state) {
    if (between(random, 0, 1) == 1) c.settings.state_width = columns;
  } else {
    const bool pool = between(random, 0, 1) == 1;
    const std::int64_t states = pool ? sequences + between(random, 0, 3) : sequences;
    Shape state{states, channels, columns};
    if (c.settings.state_layout == Conv1dStateLayout::wd) std::swap(state[1], state[2]);
    c.state = plain::random(some(), state, random);
    const auto slots = [&] {
      Integers all(static_cast<std::size_t>(states));
      for (std::int64_t n = 0; n < states; ++n) all[static_cast<std::size_t>(n)] = n;
      std::shuffle(all.begin(), all.end(), random);
      all.resize(static_cast<std::size_t>(sequences));
      for (std::int64_t& slot : all)
        if (between(random, 0, 3) == 0) slot = -1;
      return all;
    };
    if (pool) c.read = slots();
    if (pool && between(random, 0, 1) == 1) c.write = slots();
    if (between(random, 0, 2) == 0)
      for (std::int64_t n = 0; n < sequences; ++n) c.has.push_back(between(random, 0, 1));
  }
  if (between(random, 0, 2) == 0) c.settings.dtype = dtype();
  return c;
}

}  // namespace

TEST_CASE("conv1d: golden cases") {
  int seen = 0;
  for (golden::Case& g : golden::load("conv1d")) {
    CAPTURE(g.name);
    ShortConvolution c;
    c.x = std::move(g.in.at("x"));
    c.weight = std::move(g.in.at("weight"));
    if ((c.has_bias = g.in.count("bias") == 1)) c.bias = std::move(g.in.at("bias"));
    if ((c.has_state = g.in.count("initial_state") == 1)) c.state = std::move(g.in.at("initial_state"));
    if (g.in.count("cu_seqlens") == 1)
      for (const double offset : plain::doubles(g.in.at("cu_seqlens").view()))
        c.cu_seqlens.push_back(static_cast<std::int64_t>(offset));
    c.settings.layout = layout_named(g.params.at("layout"));
    if (g.params.at("activation") == "silu") c.settings.activation = Conv1dActivation::silu;
    if (g.params.at("state_layout") == "wd") c.settings.state_layout = Conv1dStateLayout::wd;
    check_convolution(
        c, {plain::doubles(g.out.at("out").view()), plain::doubles(g.out.at("final_state").view())});
    ++seen;
  }
  CHECK(seen == 9);
}

TEST_CASE("conv1d is the plain loop, of every layout, type, state and slot") {
  plain::Random random(7);
  for (int n = 0; n < 400; ++n) {
    CAPTURE(n);
    ShortConvolution c = random_convolution(random);
    check_convolution(c, convolution_by_definition(c), static_cast<int>(between(random, 0, 3)));
  }
}

TEST_CASE("a prompt in parts, and token by token, is the whole prompt to the bit") {
  plain::Random random(8);
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    const std::int64_t tokens = 13, channels = 5;
    ShortConvolution whole;
    whole.x = plain::random(dtype, {1, tokens, channels}, random);
    whole.weight = plain::random(dtype, {channels, 4}, random);
    whole.settings.activation = Conv1dActivation::silu;
    const Conv1dResult all = conv1d(whole.operands(), whole.settings);
    for (const std::int64_t part : {1, 2, 5}) {
      Array state(dtype, {1, channels, 3});
      for (std::int64_t t = 0; t < tokens; t += part) {
        const std::int64_t count = std::min(part, tokens - t);
        Conv1dOperands o = whole.operands();
        o.x = box_of(o.x, Shape{0, t, 0}, Shape{1, count, channels});
        o.initial_state = state.view();
        Conv1dResult one = conv1d(o, whole.settings);
        CHECK(plain::same_bytes(
            one.out, Array::copy_of(box_of(all.out.view(), Shape{0, t, 0}, Shape{1, count, channels}))));
        state = std::move(one.final_state);
      }
      CHECK(plain::same_bytes(state, all.final_state));
    }
  }
}

TEST_CASE("NaN and infinities stay in their sequence and channel, and silu of them is by the formula") {
  for (const Conv1dLayout layout : {Conv1dLayout::td, Conv1dLayout::dt}) {
    ShortConvolution c;
    const bool td = layout == Conv1dLayout::td;
    std::vector<double> values(6 * 3, 1);
    const auto at = [&](std::size_t t, std::size_t d) -> double& {
      return values[td ? t * 3 + d : d * 6 + t];
    };
    at(2, 0) = INFINITY;
    at(2, 1) = -INFINITY;
    at(2, 2) = NAN;
    c.x = plain::array_of(DType::float32, td ? Shape{6, 3} : Shape{3, 6}, values);
    c.weight = plain::array_of(DType::float32, {3, 2}, {1, 1, 1, 1, 1, 1});
    c.cu_seqlens = {0, 3, 6};
    c.settings.layout = layout;
    c.settings.activation = Conv1dActivation::silu;
    values = plain::doubles(conv1d(c.operands(), c.settings).out.view());
    CHECK(at(2, 0) == INFINITY);
    CHECK(std::isnan(at(2, 1)));  // -inf · 0
    CHECK(std::isnan(at(2, 2)));
    for (std::size_t d = 0; d < 3; ++d)
      for (const std::size_t t : {0u, 1u, 3u, 4u, 5u}) CHECK(std::isfinite(at(t, d)));
  }
  ShortConvolution large;
  large.x = plain::array_of(DType::float32, {1, 4, 1}, {3e38, -3e38, -100, 100});
  large.weight = plain::filled(DType::float32, {1, 1}, 1);
  large.settings.activation = Conv1dActivation::silu;
  const std::vector<double> out = plain::doubles(conv1d(large.operands(), large.settings).out.view());
  CHECK(out[0] == static_cast<double>(3e38F));
  CHECK(out[1] == 0);
  CHECK(std::abs(out[2]) < 1e-30);
  CHECK(out[3] == 100);
}

TEST_CASE("conv1d of nothing: no tokens, channels or sequences") {
  ShortConvolution c;
  c.x = Array(DType::float32, {0, 5, 3});
  c.weight = Array(DType::float32, {3, 4});
  CHECK(conv1d(c.operands(), c.settings).final_state.shape() == Shape{0, 3, 3});
  c.x = Array(DType::float32, {2, 5, 0});
  c.weight = Array(DType::float32, {0, 4});
  CHECK(conv1d(c.operands(), c.settings).out.shape() == Shape{2, 5, 0});
  c.x = Array(DType::float32, {2, 0, 3});
  c.weight = Array(DType::float32, {3, 4});
  c.state = plain::filled(DType::float32, {2, 3, 3}, 5);
  c.has_state = true;
  CHECK(plain::same_bytes(conv1d(c.operands(), c.settings).final_state, c.state));
}

TEST_CASE("operands of conv1d that do not fit are refused, with the layout that fits") {
  ShortConvolution c;
  c.x = Array(DType::float32, {2, 7, 5});
  c.weight = Array(DType::float32, {5, 4});
  const auto why = [&] { return plain::failure_and_hint([&] { conv1d(c.operands(), c.settings); }); };
  CHECK(why() == "no error");
  c.weight = Array(DType::float32, {7, 4});
  CHECK(why() == "weight has 7 channels, x has 5 | that is x in the layout bds");
  c.weight = Array(DType::float32, {4, 5});
  CHECK(why() == "weight has 4 channels, x has 5 | weight is (channels, W)");
  c.weight = Array(DType::float32, {5, 2, 4});
  CHECK(why() == "weight has the shape (5, 2, 4), not (channels, W) or (channels, 1, W) with W >= 1");
  c.weight = Array(DType::int32, {5, 4});
  CHECK(why() == "weight is int32, not of a float type of 16 bits or more");
  c.weight = Array(DType::float32, {5, 4});
  c.has_bias = true;
  c.bias = Array(DType::float32, {4});
  CHECK(why() == "bias has the shape (4,), and there are 5 channels");
  c.has_bias = false;
  c.has_state = true;
  c.state = Array(DType::float32, {2, 3, 5});
  CHECK(why() ==
        "initial_state has 3 channels in the shape (2, 3, 5), x has 5 | the state layout wd takes "
        "(sequences, width, channels)");
  c.state = Array(DType::float32, {2, 5, 2});
  CHECK(why() == "initial_state has 2 columns, and 4 weights reach back over 3 tokens");
  c.state = Array(DType::float32, {3, 5, 3});
  CHECK(why() ==
        "initial_state has 3 states, and there are 2 sequences | of a pool of slots, state indices say which "
        "are those of the sequences");
  c.state = Array(DType::float32, {2, 5});
  CHECK(why() == "initial_state has the shape (2, 5), not (sequences, channels, width)");
  c.state = Array(DType::float32, {2, 5, 4});
  c.settings.state_width = 5;
  CHECK(why() == "initial_state has 4 columns, and the final state is to have 5");
  c.has_state = false;
  c.settings.state_width = 2;
  CHECK(why() == "a state of 2 columns is narrower than the 3 tokens that 4 weights reach back over");
  c.settings.state_width.reset();
  c.cu_seqlens = {0, 7};
  CHECK(why() ==
        "x has the shape (2, 7, 5), and the layout td has 2 axes | the entries of a batch are sequences "
        "without cu_seqlens");
  c.x = Array(DType::float32, {1, 7, 5});
  CHECK(why() ==
        "x has the shape (1, 7, 5), and the layout td has 2 axes | packed tokens of a batch of one are its "
        "slice [0]");
  c.settings.layout = Conv1dLayout::bds;
  CHECK(why() ==
        "cu_seqlens are for packed tokens, and the layout is bds | the layouts td and dt take (tokens, "
        "channels) and (channels, tokens)");
  c.cu_seqlens.clear();
  c.settings.layout = Conv1dLayout::dt;
  CHECK(why() == "packed tokens, the layout dt, need cu_seqlens | one sequence is cu_seqlens [0, tokens]");
  c.settings.layout.reset();
  c.x = Array(DType::float32, {7, 5});
  CHECK(
      why() ==
      "x has the shape (7, 5), and the layout bsd has 3 axes | packed tokens, (tokens, channels), come with "
      "cu_seqlens");
}
