// An extension like Python's that links ejk: loaded at run time, called with pointers.
#include <ejk/ejk.hpp>

#define EXPORTED extern "C" [[gnu::visibility("default")]]

// out (m, n) = the product of each group of rows of lhs (m, k) with its matrix of rhs (groups, k, n). Returns
// its floating-point operations.
EXPORTED double grouped_product(const float* lhs, const float* rhs, const std::int32_t* group_sizes,
                                float* out, std::int64_t m, std::int64_t k, std::int64_t n,
                                std::int64_t groups) {
  const ejk::ArrayView left = ejk::view_of(lhs, {m, k});
  const ejk::ArrayView right = ejk::view_of(rhs, {groups, k, n});
  const ejk::GroupedMatmulPlan plan(ejk::type_of(left), ejk::type_of(right),
                                    *ejk::make_source(ejk::view_of(group_sizes, {groups})),
                                    ejk::GroupedMatmulSettings{});
  const ejk::MutableArrayView result{reinterpret_cast<std::byte*>(out), ejk::DType::float32, {m, n}};
  plan.run(left, right, std::nullopt, result);
  return plan.flop();
}

// Blocks of a causal mask of length x length that a kernel has to compute.
EXPORTED std::int64_t causal_blocks(std::int64_t length, std::int64_t block) {
  const ejk::MaskInfo info = ejk::process_mask({ejk::causal_mask(length, length)}, {.q = block, .kv = block});
  return info.summaries.at(0).partial_blocks + info.summaries.at(0).full_blocks;
}
