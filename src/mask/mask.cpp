// Mask: the value around a node.
// tests: tests/mask/test_mask.cpp
#include "ejk/mask.hpp"

#include <fmt/format.h>

#include <typeinfo>

#include "kernels/kernels.hpp"
#include "mask/node.hpp"

namespace ejk {

MaskNode::MaskNode(std::int64_t q_length, std::int64_t kv_length)
    : q_length_(q_length), kv_length_(kv_length) {
  if (q_length < 1 || kv_length < 1)
    throw Error(Error::Kind::input,
                fmt::format("a mask of {} queries and {} keys has no element", q_length, kv_length));
  if (q_length > kLongestMask || kv_length > kLongestMask)
    throw Error(Error::Kind::input, fmt::format("a mask of {} queries and {} keys is longer than {}",
                                                q_length, kv_length, kLongestMask));
  element_count(Shape{q_length, kv_length});  // counts of elements fit 64 bits
}

void mask::add_alignment(const MaskNode& node, std::set<std::string>& into) {
  const std::int64_t bottom_right = node.kv_length() - node.q_length();
  if (bottom_right == 0) return;
  std::set<std::int64_t> offsets;
  node.add_offsets(offsets);
  for (const std::int64_t offset : offsets)
    into.insert(offset == 0              ? "top left: query 0 at key 0"
                : offset == bottom_right ? "bottom right: the last query at the last key"
                                         : fmt::format("offset {}: query 0 at key {}", offset, offset));
}

std::string to_string(const BlockShape& block) { return fmt::format("{}x{}", block.q, block.kv); }

std::int64_t Mask::q_length() const { return node_->q_length(); }
std::int64_t Mask::kv_length() const { return node_->kv_length(); }
bool Mask::is_computable() const { return node_->is_computable(); }
std::string Mask::text() const { return node_->text(); }

bool Mask::same_as(const Mask& other) const {
  const MaskNode &a = *node_, &b = *other.node_;
  if (&a == &b) return true;
  return typeid(a) == typeid(b) && a.q_length() == b.q_length() && a.kv_length() == b.kv_length() &&
         a.same_as(b);
}

void Mask::read(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end,
                bool* out) const {
  const std::int64_t columns = k_end - k_begin;
  if (columns <= 0) return;
  constexpr std::int64_t kBitsAtOnce = std::int64_t{1} << 22;
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kBitsAtOnce / columns);
  mask::BitBuffer buffer;
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  for (std::int64_t q = q_begin; q < q_end; q += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, q_end - q);
    const mask::BitRows bits = buffer.rows(rows, columns);
    node_->fill({q, q + rows, k_begin, k_end}, bits);
    for (std::int64_t r = 0; r < rows; ++r, bytes += columns)
      kernels::active().expand_bits(bits.row(r), columns, bytes);
  }
}

}  // namespace ejk
