// The cases of attention.h5 and attention_grad.h5 as options of the library.
#pragma once

#include "ejk/attention.hpp"
#include "support/attention_tolerance.hpp"
#include "support/golden.hpp"

namespace golden {

inline ejk::Mask mask_of(const nlohmann::json& m, std::int64_t q, std::int64_t kv) {
  const std::string kind = m.at("kind");
  const auto side = [&](const char* name) -> std::optional<std::int64_t> {
    if (m.at(name).is_null()) return std::nullopt;
    return m.at(name).get<std::int64_t>();
  };
  if (kind == "causal") return ejk::causal_mask(q, kv, m.at("offset"));
  if (kind == "local") return ejk::local_mask(q, kv, side("left"), side("right"), m.at("offset"));
  if (kind == "chunked") return ejk::chunked_mask(q, kv, m.at("chunk_size"));
  REQUIRE(kind == "and");
  return mask_of(m.at("left"), q, kv) & mask_of(m.at("right"), q, kv);
}

inline ejk::AttentionLayout layout_of(const Case& c) {
  using Layout = ejk::AttentionLayout;
  const std::string name = c.params.at("layout");
  return name == "bshd" ? Layout::bshd : name == "bhsd" ? Layout::bhsd : Layout::thd;
}

inline ejk::AttentionOptions attention_options(const Case& c) {
  ejk::AttentionOptions o;
  o.layout = layout_of(c);
  if (!c.params.at("scale").is_null()) o.scale = c.params.at("scale");
  if (!c.params.at("softcap").is_null()) o.softcap = c.params.at("softcap");
  const auto source = [&](const char* name) -> std::shared_ptr<const ejk::ArraySource> {
    return c.in.contains(name) ? ejk::make_source(c.in.at(name).view(), name) : nullptr;
  };
  o.cu_seqlens_q = source("cu_seqlens_q");
  o.cu_seqlens_kv = source("cu_seqlens_k");
  o.q_segment_ids = source("q_segment_ids");
  o.kv_segment_ids = source("kv_segment_ids");
  if (c.in.contains("bias")) o.bias = c.in.at("bias").view();
  if (c.in.contains("mask")) o.masks.push_back(ejk::head_masks(source("mask")));
  const auto& masks = c.params.at("masks");
  if (!masks.empty()) {
    ejk::HeadMasks m;
    m.heads = static_cast<std::int64_t>(masks.size());
    m.mask = [masks](std::int64_t, std::int64_t head, std::int64_t q, std::int64_t kv) {
      return mask_of(masks[static_cast<std::size_t>(head)], q, kv);
    };
    o.masks.push_back(std::move(m));
  }
  return o;
}

inline ejk::DType arithmetic_of(const Case& c) {
  return c.params.at("dtype") == "float64" ? ejk::DType::float64 : ejk::DType::float32;
}

inline std::vector<double> values_of(const std::map<std::string, ejk::Array>& arrays, const char* name) {
  return plain::doubles(arrays.at(name).view());
}

/// Empty when results of a case are within the tolerances of spec.md.
inline std::string forward_difference(const Case& c, const ejk::Array& out, const ejk::Array& lse) {
  if (out.shape() != c.out.at("out").shape() || lse.shape() != c.out.at("lse").shape()) return "shapes";
  const std::string far =
      plain::out_far_from(out, values_of(c.out, "out"), values_of(c.in, "v"), arithmetic_of(c));
  if (!far.empty()) return "out: " + far;
  const std::string lse_far = plain::lse_far_from(lse, values_of(c.out, "lse"), arithmetic_of(c));
  return lse_far.empty() ? "" : "lse: " + lse_far;
}

inline std::string gradient_difference(const Case& c, const ejk::Array& dq, const ejk::Array& dk,
                                       const ejk::Array& dv) {
  const ejk::Shape& q = c.in.at("q").shape();
  const double scale = c.params.at("scale").is_null() ? 1 / std::sqrt(static_cast<double>(q.back()))
                                                      : c.params.at("scale").get<double>();
  const auto floors = plain::floors(scale, c.in.at("v").shape().back(), values_of(c.in, "q"),
                                    values_of(c.in, "k"), values_of(c.in, "v"), values_of(c.in, "dout"));
  const auto check = [&](const char* name, const ejk::Array& got, double floor) -> std::string {
    if (got.shape() != c.out.at(name).shape()) return std::string(name) + ": shape";
    const std::string far = plain::gradient_far_from(got, values_of(c.out, name), floor, arithmetic_of(c));
    return far.empty() ? "" : fmt::format("{}: {}", name, far);
  };
  return check("dq", dq, floors.dq) + check("dk", dk, floors.dk) + check("dv", dv, floors.dv);
}

}  // namespace golden
