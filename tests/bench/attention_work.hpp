// Benchmark problems of attention: one batch entry, 8 heads, and a mask by name.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/work.hpp"
#include "ejk/attention.hpp"
#include "ejk/mask.hpp"

namespace work {

struct AttentionCase {
  std::int64_t batch = 1, heads = 8, length = 0, size = 0;
  std::string mask;  // none, causal, window (256, causal), docs (causal inside documents), dense (at random)
  ejk::DType dtype = ejk::DType::float32;
  std::shared_ptr<const ejk::ArraySource> documents;  // cu_seqlens of "docs"; null: drawn
};

/// Of normal numbers, in the layout bhsd.
struct AttentionInputs {
  ejk::Array q, k, v, dout;
  ejk::AttentionOptions options;

  explicit AttentionInputs(const AttentionCase& c) {
    const ejk::Shape shape{c.batch, c.heads, c.length, c.size};
    for (ejk::Array* array : {&q, &k, &v, &dout}) *array = normal(c.dtype, shape);
    options.layout = ejk::AttentionLayout::bhsd;
    if (c.mask != "none") options.masks.push_back(ejk::head_masks({mask_of(c)}));
  }

 private:
  static ejk::Mask mask_of(const AttentionCase& c) {
    const std::int64_t n = c.length;
    if (c.mask == "causal") return ejk::causal_mask(n, n);
    if (c.mask == "window") return ejk::local_mask(n, n, 255, 0);
    if (c.mask == "docs") {
      const auto drawn = ejk::make_source(document_offsets(n));
      return ejk::causal_mask(n, n) & ejk::documents_mask(c.documents ? *c.documents : *drawn);
    }
    if (c.mask != "dense") throw ejk::Error(ejk::Error::Kind::input, "no mask " + c.mask);
    ejk::Array mask(ejk::DType::boolean, {n, n});
    std::mt19937_64 random(11);
    std::uint64_t bits = 0;
    for (std::int64_t i = 0; i < n * n; ++i, bits >>= 1) {
      if (i % 64 == 0) bits = random();
      mask.elements<bool>()[static_cast<std::size_t>(i)] = (bits & 1) != 0;
    }
    return ejk::array_mask(ejk::make_source(std::move(mask), "mask"));
  }
};

/// Memory for what a plan makes.
struct AttentionResults {
  std::vector<ejk::Array> arrays;
  std::vector<ejk::MutableArrayView> views;

  explicit AttentionResults(const ejk::AttentionPlan& plan) {
    for (const ejk::PlannedArray& result : plan.results()) {
      arrays.emplace_back(result.type.dtype, result.type.shape);
      views.push_back(arrays.back().mutable_view());
    }
  }
};

}  // namespace work
