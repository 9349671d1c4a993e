// Problems of linear attention: those of golden cases, and random ones of all architectures.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ejk/linear_attention.hpp"
#include "support/arrays.hpp"
#include "support/golden.hpp"

namespace plain {

using namespace ejk;
using Doubles = std::vector<double>;
using Layout = LinearAttentionLayout;

/// Operands by name, and their arrays.
struct NamedOperands {
  std::map<std::string, Array> arrays;
  LinearAttentionArrays operands;

  void add(const std::string& name, Array array) {
    arrays[name] = std::move(array);
    for_each_linear_operand(
        [&](const std::string& one, auto& operand) {
          if (one == name) operand = arrays[name].view();
        },
        operands);
  }
};

inline LinearAttentionSettings settings_of(const golden::Case& c) {
  LinearAttentionSettings s;
  const auto& p = c.params;
  const std::string layout = p.at("layout"), space = p.at("decay_space");
  s.layout = layout == "bshd" ? Layout::bshd : layout == "bhsd" ? Layout::bhsd : Layout::thd;
  s.decay_space = space == "ln" ? DecaySpace::ln : space == "log2" ? DecaySpace::log2 : DecaySpace::linear;
  s.state_layout = p.at("state_layout") == "kv" ? StateLayout::kv : StateLayout::vk;
  s.delta = p.at("delta");
  s.l2norm = p.at("l2norm");
  const auto number = [&](const char* name) -> std::optional<double> {
    if (!p.contains(name) || p.at(name).is_null()) return std::nullopt;
    return p.at(name).get<double>();
  };
  s.scale = number("scale");
  s.lower_bound = number("lower_bound");
  s.beta_sigmoid = number("beta_sigmoid");
  s.dt_softplus = p.value("dt_softplus", false);
  if (p.contains("dt_limit") && !p.at("dt_limit").is_null())
    s.dt_limit = std::pair(p.at("dt_limit")[0].get<double>(), p.at("dt_limit")[1].get<double>());
  if (const auto size = number("chunk_size")) s.chunk_size = static_cast<std::int64_t>(*size);
  if (c.in.contains("cu_seqlens")) s.cu_seqlens = make_source(c.in.at("cu_seqlens").view());
  s.states = c.out.contains("states");
  return s;
}

enum class Architecture { linear, retention, simple_gla, gla, mamba2, deltanet, gdn, kda };

struct Problem {
  LinearAttentionSettings settings;
  LinearAttentionOperands<Array> in;
  std::int64_t q_heads, k_heads, v_heads, heads, out_heads, keys, values;
  std::vector<std::int64_t> cu;
  bool by_channel = false;

  LinearAttentionArrays arrays() const {
    LinearAttentionArrays views;
    for_each_linear_operand(
        [](const char*, const auto& array, auto& view) {
          if (array) view = array->view();
        },
        in, views);
    return views;
  }
};

// Packed tokens of sequences of these lengths.
inline Problem random_problem(Architecture kind, DType dtype, const std::vector<std::int64_t>& lengths,
                              std::mt19937_64& engine) {
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(engine);
  };
  Problem p;
  p.cu = {0};
  for (const std::int64_t length : lengths) p.cu.push_back(p.cu.back() + length);
  const std::int64_t t = p.cu.back();
  p.keys = pick(1, 40), p.values = pick(1, 40);
  p.k_heads = pick(1, 2), p.heads = p.v_heads = p.k_heads * pick(1, 2);
  p.q_heads = pick(0, 1) == 0 ? p.k_heads : p.heads * pick(1, 2);
  p.out_heads = std::max(p.q_heads, p.heads);
  const auto normal = [&](DType type, Shape shape, double factor, double shift = 0) {
    Doubles values = doubles(plain::random(DType::float64, shape, engine).view());
    for (double& x : values) x = factor * x + shift;
    return plain::array_of(type, std::move(shape), values);
  };
  const auto decays = [&](Shape shape) {  // mostly weak, some strong, a few that empty the state
    Doubles values = doubles(plain::random(DType::float64, shape, engine).view());
    for (double& x : values) {
      const std::int64_t how = pick(0, 19);
      x = -std::abs(x) * (how == 0 ? 1e4 : how < 3 ? 20 : how < 8 ? 1 : 0.05);
    }
    return plain::array_of(DType::float32, std::move(shape), values);
  };
  p.in.q = normal(dtype, {t, p.q_heads, p.keys}, 1);
  p.in.k = normal(dtype, {t, p.k_heads, p.keys}, 1 / std::sqrt(static_cast<double>(p.keys)));
  p.in.v = normal(dtype, {t, p.v_heads, p.values}, 1);
  p.settings.layout = Layout::thd;
  p.settings.cu_seqlens = p.cu;
  p.settings.delta = kind >= Architecture::deltanet;
  p.settings.l2norm = p.settings.delta;
  p.settings.chunk_size =
      std::vector<std::int64_t>{1, 7, 16, 33, 64, 100}[static_cast<std::size_t>(pick(0, 5))];
  if (p.settings.delta) {
    Doubles beta(static_cast<std::size_t>(t * p.heads));
    for (double& x : beta) x = std::uniform_real_distribution<double>(0, 1)(engine);
    p.in.beta = plain::array_of(DType::float32, {t, p.heads}, beta);
  }
  using A = Architecture;
  if (kind == A::retention) p.in.decay = normal(DType::float32, {p.heads}, 0.01, -0.05);
  if (kind == A::simple_gla || kind == A::gdn) p.in.decay = decays({t, p.heads});
  p.by_channel = kind == A::gla || kind == A::kda;
  if (p.by_channel) p.in.decay = decays({t, p.heads, p.keys});
  if (kind == A::mamba2) {
    p.in.dt = normal(dtype, {t, p.heads}, 1);
    p.in.a_log = normal(DType::float32, {p.heads}, 1);
    p.in.dt_bias = normal(DType::float32, {p.heads}, 1);
    p.in.skip = normal(DType::float32, {p.heads}, 1);
    p.settings.dt_softplus = true;
    p.settings.scale = 1;
  }
  p.in.initial_state = normal(DType::float32, {std::ssize(lengths), p.heads, p.keys, p.values}, 1);
  return p;
}

inline constexpr Architecture kAll[] = {
    Architecture::linear, Architecture::retention, Architecture::simple_gla, Architecture::gla,
    Architecture::mamba2, Architecture::deltanet,  Architecture::gdn,        Architecture::kda};

}  // namespace plain
