// Compressed rows of blocks: SciPy's bsr_array (indptr, indices, data), and FlashInfer's, whose elements are
// bits. The rules of both: check_listed.cpp.
//
// Row i of blocks has the columns indices[indptr[i] : indptr[i + 1]]. SciPy stores the elements of each block.
// FlashInfer stores those of a row of blocks query by query, over the keys of its blocks in order, as bits in
// little order; every row of blocks begins with a byte, and the last has M mod R queries. Without packed_mask
// all blocks are full.
// Source: scipy.sparse.bsr_array; flashinfer 0.7 sparse.py (convert_bsr_mask_layout), quantization/packbits.py.
// tests: tests/layouts/test_mask_layouts.cpp
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/checked.hpp"
#include "layouts/element_bits.hpp"
#include "layouts/layouts.hpp"
#include "layouts/writing.hpp"

namespace ejk::blocks {

namespace {

static_assert(std::endian::native == std::endian::little, "bits of words are bits of bytes");

// --- reading

// Bits of the elements, a row of blocks after the other.
class PackedElements final : public BlockElements {
 public:
  PackedElements(const ArraySource& packed, std::vector<std::int64_t> begins,
                 std::vector<std::int64_t> row_bytes, std::int64_t q_block, std::int64_t kv_block,
                 std::int64_t q_length)
      : begins_(std::move(begins)),
        row_bytes_(std::move(row_bytes)),
        q_(q_block),
        kv_(kv_block),
        q_length_(q_length) {
    const std::int64_t bytes = element_count(packed.shape());
    words_.resize(static_cast<std::size_t>(words_for(8 * bytes)));
    packed.read(Shape{0}, packed.shape(), words_.data());
  }
  void fill(std::int64_t i, std::int32_t pattern, const Rectangle& part, const BitRows& out) const override {
    const std::int64_t row = row_bytes_[static_cast<std::size_t>(i)];
    const std::int64_t blocks =
        begins_[static_cast<std::size_t>(i) + 1] - begins_[static_cast<std::size_t>(i)];
    const std::int64_t keys = blocks * kv_, first = (pattern - begins_[static_cast<std::size_t>(i)]) * kv_;
    for (std::int64_t r = 0; r < part.rows(); ++r) {
      Word* to = out.row(r);
      std::fill(to, to + words_for(out.columns), Word{0});
      if (i * q_ + part.q_begin + r >= q_length_) continue;  // the last row of blocks is short
      const std::int64_t bit = 8 * row + (part.q_begin + r) * keys + first + part.k_begin;
      for (std::int64_t c = 0; c < part.columns(); c += 64)
        to[c / 64] = get_bits(words_.data(), bit + c, std::min<std::int64_t>(64, part.columns() - c),
                              words_.data() + words_.size());
    }
  }

 private:
  std::vector<std::int64_t> begins_, row_bytes_;
  std::int64_t q_, kv_, q_length_;
  std::vector<Word> words_;
};

class CompressedRows final : public ListedBlocks {
 public:
  CompressedRows(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    const StoredSettings set = settings_of(group, given);
    indptr_ = read_index(group, "indptr", 1);
    columns_ = read_index(group, "indices", 1);
    data_ = group.find("data");
    packed_ = group.find("packed_mask");
    if (indptr_.size() < 2)
      throw wrong("indptr", "{} has {} elements", indptr_.source->name(), indptr_.size());
    std::optional<BlockShape> stored;
    if (data_) {
      const Shape& blocks = data_->shape();
      if (blocks.size() != 3 || size_of(data_->dtype()) != 1 || blocks[0] != columns_.size())
        throw wrong("data", "{} is {}; it is bool ({}, q, kv), a block for each index", data_->name(),
                    to_string(type_of(*data_)), columns_.size());
      stored = BlockShape{blocks[1], blocks[2]};
    } else if (const auto r = size_in(group, "R"), c = size_in(group, "C"); r && c) {
      stored = BlockShape{*r, *c};
    }
    block = required_block(group, agreed_block(group, set.block, stored));
    q_blocks = indptr_.size() - 1;
    if (const auto queries = size_in(group, "M"), keys = size_in(group, "N"); queries && keys) {
      shape = {1, *queries, *keys};
      if (*keys % block.kv != 0)
        throw wrong("N", "{}: N is {}, which blocks of {} keys do not divide", name, *keys, block.kv);
    }
    if (set.shape) {
      if (shape.q_length > 0 && (shape.q_length != (*set.shape)[1] ||
                                 core::ceil_div((*set.shape)[2], block.kv) * block.kv != shape.kv_length))
        throw wrong("shape", "{}: M x N is {} x {}, and the shape {} x {}", name, shape.q_length,
                    shape.kv_length, (*set.shape)[1], (*set.shape)[2]);
      shape = shape_in(*set.shape);
    }
    if (shape.q_length == 0) throw unknown_lengths(group.name);
    kv_blocks = core::ceil_div(shape.kv_length, block.kv);
    if (kv_blocks > INT32_MAX || q_blocks > INT32_MAX)
      throw wrong("shape", "{}: more than 2^31 blocks in a row", name);
    require_lengths(*this, shape.q_length, shape.kv_length);
    if (columns_.size() > INT32_MAX) throw wrong("indices", "{}: more than 2^31 blocks", name);
    indices = {&indptr_, &columns_};
    if (packed_) lay_out_bits();
  }

  bool is_computed(std::int64_t) const override { return false; }

  void walk(std::int64_t, std::int64_t, const ArrayWalk& to) const override {
    if (indptr_[0] != 0) to.fault("range", {indptr_.name, 0}, indptr_[0], "the first row begins at 0");
    for (std::int64_t i = 0; i < q_blocks; ++i) {
      const std::int64_t begin = indptr_[i], end = indptr_[i + 1];
      if (begin < 0 || end < begin || end > columns_.size()) {
        to.fault("range", {indptr_.name, i + 1}, end,
                 end < begin ? fmt::format("row {} begins at {}", i, begin)
                             : fmt::format("there are {} indices", columns_.size()));
        continue;
      }
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t j = columns_[at];
        if (j < 0 || j >= kv_blocks)
          to.fault("range", {columns_.name, at}, j, fmt::format("there are {} key blocks", kv_blocks));
        else
          to.visit(i, j, data_ || packed_ ? static_cast<std::int32_t>(at) : BlockGrid::kFull,
                   {columns_.name, at});
      }
    }
    if (indptr_[q_blocks] != columns_.size())
      to.fault("range", {indptr_.name, q_blocks}, indptr_[q_blocks],
               fmt::format("there are {} indices", columns_.size()));
  }

  std::shared_ptr<const BlockElements> elements(std::int64_t) const override {
    if (data_) return pattern_elements(data_, Direction::forward);
    if (!packed_) return nullptr;
    return std::make_shared<PackedElements>(*packed_, indptr_.values, row_bytes_, block.q, block.kv,
                                            shape.q_length);
  }

  ArrayPlace home(std::int64_t, std::int64_t, std::int64_t i, std::int64_t) const override {
    return {indptr_.name, i + 1};
  }

  std::pair<const char*, Shape> element_place(std::int64_t, std::int64_t i, std::int64_t,
                                              std::int32_t pattern, std::int64_t q,
                                              std::int64_t k) const override {
    if (data_) return {"data", {pattern, q % block.q, k % block.kv}};
    const std::int64_t keys = (indptr_[i + 1] - indptr_[i]) * block.kv;
    const std::int64_t bit = q % block.q * keys + (pattern - indptr_[i]) * block.kv + k % block.kv;
    return {"packed_mask", {row_bytes_[static_cast<std::size_t>(i)] + bit / 8}};
  }

 private:
  // The first byte of each row of blocks. Rows of wrong extents are reported by the walk.
  void lay_out_bits() {
    if (packed_->shape().size() != 1 || packed_->dtype() != DType::uint8)
      throw wrong("packed_mask", "{} is {}; it is uint8 (bytes,)", packed_->name(),
                  to_string(type_of(*packed_)));
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < q_blocks; ++i) {
      row_bytes_.push_back(bytes);
      const std::int64_t count = std::clamp<std::int64_t>(indptr_[i + 1], 0, columns_.size()) -
                                 std::clamp<std::int64_t>(indptr_[i], 0, columns_.size());
      const std::int64_t queries = std::min(block.q, shape.q_length - i * block.q);
      const auto bits = core::checked_mul(std::max<std::int64_t>(count, 0) * block.kv, queries);
      bytes = core::sum_of_bytes({bytes, bits ? core::ceil_div(*bits, std::int64_t{8}) : core::kMostBytes});
    }
    if (bytes != element_count(packed_->shape()))
      throw wrong("packed_mask", "{} has {} bytes; its blocks have {}", packed_->name(),
                  element_count(packed_->shape()), bytes);
  }

  IndexArray indptr_, columns_;
  std::shared_ptr<const ArraySource> data_, packed_;
  std::vector<std::int64_t> row_bytes_;
};

bool is_compressed(const ArrayGroup& group) { return group.find("indptr") || group.find("indices"); }
bool is_bsr(const ArrayGroup& group) { return is_compressed(group) && group.find("data"); }
bool is_flashinfer(const ArrayGroup& group) { return is_compressed(group) && !group.find("data"); }

std::shared_ptr<const ListedBlocks> list_rows(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<CompressedRows>(group, settings);
}

// --- writing

// indptr and indices, and the pattern of each block.
std::vector<std::int32_t> write_rows(const MaskScans& scans, const Scan& scan, ArraysMade& to) {
  const ScanGrid grid(scan);
  const std::int64_t blocks = scan.summary.partial_blocks + scan.summary.full_blocks;
  Array indptr = index_array("indptr", {scans.q_blocks() + 1}, blocks);
  Array columns = index_array("indices", {blocks}, scans.kv_blocks());
  std::vector<std::int32_t> patterns;
  patterns.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < scans.q_blocks(); ++i) {
    grid.for_each(i, [&](std::int64_t j, std::uint8_t state) {
      columns.elements<std::int32_t>()[patterns.size()] = static_cast<std::int32_t>(j);
      patterns.push_back(state == kPartial ? grid.pattern(i, j) : BlockGrid::kFull);
    });
    indptr.elements<std::int32_t>()[static_cast<std::size_t>(i + 1)] =
        static_cast<std::int32_t>(patterns.size());
  }
  to.add("indptr", std::move(indptr));
  to.add("indices", std::move(columns));
  return patterns;
}

void write_bsr(const MaskScans& scans, ArraysMade& to) {
  to.add("data",
         blocks_source("data", write_rows(scans, scans.of_all_heads(), to), scans, Direction::forward));
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
}

void write_flashinfer(const MaskScans& scans, ArraysMade& to) {
  const Scan& scan = scans.of_all_heads();
  const BlockShape block = scans.plan.block;
  const std::vector<std::int32_t> patterns = write_rows(scans, scan, to);
  const ScanGrid grid(scan);
  const std::int64_t row_words = words_for(block.kv);
  if (scan.summary.partial_blocks > 0) {
    // Rows of blocks are packed when they are read: their first bytes, and first blocks.
    auto begins = std::make_shared<std::vector<std::int64_t>>(1, 0);
    auto bytes = std::make_shared<std::vector<std::int64_t>>(1, 0);
    for (std::int64_t i = 0; i < scans.q_blocks(); ++i) {
      std::int64_t blocks = 0;
      grid.for_each(i, [&](std::int64_t, std::uint8_t) { ++blocks; });
      const std::int64_t queries = std::min(block.q, scans.q_length() - i * block.q);
      begins->push_back(begins->back() + blocks);
      bytes->push_back(bytes->back() + core::ceil_div(blocks * block.kv * queries, std::int64_t{8}));
    }
    const auto fill = [begins, bytes, patterns, table = scans.table, block, row_words,
                       q_length = scans.q_length()](std::span<const std::int64_t> start,
                                                    std::span<const std::int64_t> count, void* out) {
      std::vector<Word> bits(static_cast<std::size_t>(words_for(8 * count[0])));
      const std::int64_t from = 8 * start[0], until = from + 8 * count[0];
      auto i = std::upper_bound(bytes->begin(), bytes->end(), start[0]) - bytes->begin() - 1;
      for (; i + 1 < std::ssize(*bytes) && 8 * (*bytes)[static_cast<std::size_t>(i)] < until; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t keys = ((*begins)[at + 1] - (*begins)[at]) * block.kv;
        const std::int64_t queries = std::min(block.q, q_length - i * block.q);
        for (std::int64_t q = 0; q < queries; ++q) {
          std::int64_t bit = 8 * (*bytes)[at] + q * keys;
          if (bit + keys <= from || bit >= until) continue;
          for (std::int64_t b = (*begins)[at]; b < (*begins)[at + 1]; ++b, bit += block.kv) {
            const std::int64_t begin = std::max(bit, from), end = std::min(bit + block.kv, until);
            const std::int32_t pattern = patterns[static_cast<std::size_t>(b)];
            if (pattern < 0) {
              set_bits(bits.data(), begin - from, end - from);
              continue;
            }
            const Word* row = table->bits(pattern) + q * row_words;
            for (std::int64_t c = begin; c < end; c += 64) {
              const std::int64_t n = std::min<std::int64_t>(64, end - c);
              const Word word = get_bits(row, c - bit, n, row + row_words);
              put_bits(bits.data(), c - from, &word, n);
            }
          }
        }
      }
      std::memcpy(out, bits.data(), static_cast<std::size_t>(count[0]));
    };
    to.add("packed_mask", generated_source({DType::uint8, {bytes->back()}}, "packed_mask", fill));
  }
  to.add("M", {scans.q_length()}, {});
  to.add("N", {scans.kv_blocks() * block.kv}, {});
  to.add("R", {block.q}, {});
  to.add("C", {block.kv}, {});
  to.add("shape", {scans.q_length(), scans.kv_length()}, {2});
}

constexpr const char* kBsrArrays[] = {"indptr", "indices", "data", "shape"};
constexpr const char* kFlashinferArrays[] = {"indptr", "indices", "packed_mask", "M", "N", "R", "C", "shape"};
constexpr LayoutSetting kRowSettings[] = {{"block"}};

}  // namespace

extern const StoredMaskLayout kBsr, kFlashinfer;
const StoredMaskLayout kBsr{.name = "bsr",
                            .arrays = kBsrArrays,
                            .is_of = is_bsr,
                            .list = list_rows,
                            .written_as = MaskLayout::bsr,
                            .write = write_bsr,
                            .takes = kRowSettings};
const StoredMaskLayout kFlashinfer{.name = "flashinfer",
                                   .arrays = kFlashinferArrays,
                                   .is_of = is_flashinfer,
                                   .list = list_rows,
                                   .written_as = MaskLayout::flashinfer,
                                   .write = write_flashinfer,
                                   .takes = kRowSettings};

}  // namespace ejk::blocks
