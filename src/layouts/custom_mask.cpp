// Layout of FlashInfer's custom masks: for each request of a batch an element for each pair of its queries and
// keys.
//
// Request r has the queries [qo_indptr[r], qo_indptr[r + 1]) and the keys [kv_indptr[r], kv_indptr[r + 1]), and
// attends to no key of another one. custom_mask (pairs,) has the elements query by query, a request after the
// other. packed_custom_mask (bytes,) has them as bits in little order; each request begins with a byte, and
// kernels do not read the bits behind its last pair. mask_indptr (requests + 1,) has the first element or byte
// of each request, and the end; without it these are computed. The layout is read only: a mask of one request
// is an array already.
// Cost: memory of a bit for each pair of a request.
// Source: flashinfer 0.7 prefill.py (BatchPrefillWithRaggedKVCacheWrapper.plan), quantization.py
// (segment_packbits), attention/variants.cuh.
// tests: tests/layouts/test_custom_mask.cpp
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/checked.hpp"
#include "kernels/kernels.hpp"
#include "layouts/layouts.hpp"
#include "mask/node.hpp"

namespace ejk::blocks {

namespace {

static_assert(std::endian::native == std::endian::little, "bits of words are bits of bytes");

// The requests in order: where the queries and keys of each begin, and the ends; and its first bit.
struct RequestBits {
  std::vector<std::int64_t> queries, keys, begins;
  std::vector<Word> words;

  bool operator==(const RequestBits&) const = default;

  /// The request that has a query, among any that have none.
  std::size_t request_of(std::int64_t query) const {
    return static_cast<std::size_t>(std::upper_bound(queries.begin(), queries.end(), query) -
                                    queries.begin() - 1);
  }
  IndexRange keys_of(std::size_t request) const { return {keys[request], keys[request + 1]}; }
  std::int64_t bit_of(std::size_t request, std::int64_t query, std::int64_t key) const {
    return begins[request] + (query - queries[request]) * keys_of(request).count() + key - keys[request];
  }
};

class RequestsMask final : public MaskNode {
 public:
  RequestsMask(std::shared_ptr<const RequestBits> bits, std::string text)
      : MaskNode(bits->queries.back(), bits->keys.back()), bits_(std::move(bits)), text_(std::move(text)) {}

  std::string text() const override { return text_; }
  bool same_as(const MaskNode& other, IndexRange queries) const override {
    return queries.begin >= queries.end || *bits_ == *static_cast<const RequestsMask&>(other).bits_;
  }
  std::unique_ptr<BlockClassifier> classifier(std::int64_t q_block, std::int64_t kv_block) const override;

  void fill(const Rectangle& where, const BitRows& out) const override {
    const Word* words = bits_->words.data();
    const Word* words_end = words + bits_->words.size();
    std::size_t request = bits_->request_of(where.q_begin);
    for (std::int64_t q = where.q_begin; q < where.q_end; ++q) {
      while (bits_->queries[request + 1] <= q) ++request;
      Word* row = out.row(q - where.q_begin);
      std::fill(row, row + words_for(out.columns), Word{0});
      const IndexRange keys = bits_->keys_of(request);
      const std::int64_t end = std::min(keys.end, where.k_end);
      for (std::int64_t k = std::max(keys.begin, where.k_begin); k < end; k += 64) {
        const std::int64_t count = std::min<std::int64_t>(64, end - k);
        const Word some = get_bits(words, bits_->bit_of(request, q, k), count, words_end);
        put_bits(row, k - where.k_begin, &some, count);
      }
    }
  }

  /// The keys of all requests that have one of these queries, and of those between them.
  IndexRange keys_of(std::int64_t q_begin, std::int64_t q_end) const {
    return {bits_->keys_of(bits_->request_of(q_begin)).begin,
            bits_->keys_of(bits_->request_of(q_end - 1)).end};
  }

 private:
  std::shared_ptr<const RequestBits> bits_;
  std::string text_;
};

class RequestsClassifier final : public BlockClassifier {
 public:
  RequestsClassifier(const RequestsMask& mask, std::int64_t kv_block) : mask_(mask), kv_block_(kv_block) {}

  IndexRange run(std::int64_t q_begin, std::int64_t q_end) const override {
    const IndexRange keys = mask_.keys_of(q_begin, q_end);
    return keys.begin < keys.end ? IndexRange{keys.begin / kv_block_, core::ceil_div(keys.end, kv_block_)}
                                 : IndexRange{};
  }
  void classify(std::int64_t q_begin, std::int64_t q_end, IndexRange blocks, BlockState* out) const override {
    const IndexRange some = run(q_begin, q_end);
    for (std::int64_t j = blocks.begin; j < blocks.end; ++j)
      *out++ = j >= some.begin && j < some.end ? BlockState::undecided : BlockState::empty;
  }

 private:
  const RequestsMask& mask_;
  std::int64_t kv_block_;
};

std::unique_ptr<BlockClassifier> RequestsMask::classifier(std::int64_t, std::int64_t kv_block) const {
  return std::make_unique<RequestsClassifier>(*this, kv_block);
}

class CustomMaskRule final : public PairRule {
 public:
  static constexpr const char *kPacked = "packed_custom_mask", *kElements = "custom_mask";

  CustomMaskRule(const ArrayGroup& group, const StoredSettings& given) {
    name = group.name;
    const StoredSettings set = settings_of(group, given);
    open_elements(group);
    queries_ = read_index(group, "qo_indptr", 1);
    keys_ = read_index(group, "kv_indptr", 1);
    begins_ = read_index(group, "mask_indptr", 1, false);
    indices = {&queries_, &keys_};
    if (begins_) indices.push_back(&begins_);
    for (const IndexArray* offsets : indices)
      if (offsets->size() < 2 || offsets->size() != queries_.size())
        throw wrong(offsets->name, "{} has {} elements; it has one for each request, and the end{}",
                    offsets->source->name(), offsets->size(),
                    offsets == &queries_ ? "" : fmt::format(": qo_indptr has {}", queries_.size()));
    shape = {1, last_of(queries_, "queries"), last_of(keys_, "keys")};
    if (set.shape) {
      if ((*set.shape)[1] != shape.q_length || (*set.shape)[2] != shape.kv_length)
        throw wrong(queries_.name, "{}: its requests have {} queries and {} keys, and the shape {} x {}",
                    name, shape.q_length, shape.kv_length, (*set.shape)[1], (*set.shape)[2]);
      shape = shape_in(*set.shape);
    }
    is_sound_ = are_offsets(queries_) && are_offsets(keys_);
    if (is_sound_)
      read_requests();
    else  // check() has the faults
      bits_ = std::make_shared<RequestBits>(
          RequestBits{{0, shape.q_length, shape.q_length}, {0, 0, shape.kv_length}, {0, 0, 0}, {}});
  }

  void check(std::int64_t, std::int64_t, const ArrayWalk& to) const override {
    for (const IndexArray* offsets : {&queries_, &keys_}) {
      if ((*offsets)[0] != 0) to.fault("order", {offsets->name, 0}, (*offsets)[0], "request 0 begins at 0");
      for (std::int64_t n = 1; n < offsets->size(); ++n)
        if ((*offsets)[n] < (*offsets)[n - 1])
          to.fault("order", {offsets->name, n}, (*offsets)[n],
                   fmt::format("less than {} before it", (*offsets)[n - 1]));
    }
    if (begins_ && is_sound_) check_begins(to);
  }

  void check_unread(const ArrayWalk& to) const override {
    if (!is_packed_ || !is_sound_) return;
    for (std::int64_t r = 0; r + 1 < queries_.size(); ++r) {
      const std::int64_t pairs = pairs_of(r),
                         byte = bits_->begins[static_cast<std::size_t>(r)] / 8 + pairs / 8, read = pairs % 8;
      if (read == 0) continue;
      const Word value =
          get_bits(bits_->words.data(), 8 * byte, 8, bits_->words.data() + bits_->words.size());
      if (value >> read == 0) continue;
      to.fault(
          "unread", {kPacked, byte}, static_cast<std::int64_t>(value),
          fmt::format("bits {} to 7 are behind the {} pairs of request {}: each request begins with a byte",
                      read, pairs, r));
    }
  }

  Mask mask(std::int64_t q_length, std::int64_t kv_length, std::int64_t) const override {
    if (q_length != shape.q_length || kv_length != shape.kv_length)
      throw core::invalid("{}: its requests have {} queries and {} keys, not {} and {}", name, shape.q_length,
                          shape.kv_length, q_length, kv_length)
          .about(queries_.name);
    return Mask(std::make_shared<RequestsMask>(bits_, fmt::format("from({})", name)));
  }

  std::pair<const char*, Shape> place(std::int64_t, std::int64_t q, std::int64_t k) const override {
    const std::size_t request = bits_->request_of(q);
    const IndexRange keys = bits_->keys_of(request);
    const auto r = static_cast<std::int64_t>(request);
    if (k < keys.begin || k >= keys.end) return {keys_.name, {k < keys.begin ? r : r + 1}};
    return {name_of_elements(), {bits_->bit_of(request, q, k) / unit()}};
  }

 private:
  void open_elements(const ArrayGroup& group) {
    elements_ = group.find(kPacked);
    is_packed_ = elements_ != nullptr;
    if (is_packed_ && group.find(kElements))
      throw wrong(kElements, "{}: it has {} and {}: FlashInfer reads the packed one alone", name, kElements,
                  kPacked);
    if (!is_packed_) elements_ = group.find(kElements);
    const DType dtype = elements_->dtype();
    const bool is_type = dtype == DType::uint8 || (!is_packed_ && dtype == DType::boolean);
    if (elements_->shape().size() != 1 || !is_type)
      throw wrong(name_of_elements(), "{} is {}; it is {}", elements_->name(), to_string(type_of(*elements_)),
                  is_packed_ ? "uint8 (bytes,)" : "bool (pairs,)");
  }

  // The lengths of a mask, of offsets that may be none.
  static std::int64_t last_of(const IndexArray& offsets, const char* what) {
    const std::int64_t last = offsets.values.back();
    if (last < 1 || last > kLongestMask)
      throw wrong(offsets.name, "{} ends at {}: a mask has 1 to 2^48 {}", offsets.source->name(), last, what);
    return last;
  }

  static bool are_offsets(const IndexArray& offsets) {
    return offsets[0] == 0 && std::is_sorted(offsets.values.begin(), offsets.values.end());
  }

  void read_requests() {
    const std::int64_t size = elements_->shape()[0];
    auto bits = std::make_shared<RequestBits>(RequestBits{queries_.values, keys_.values, {0}, {}});
    std::int64_t end = 0;  // in elements or bytes
    for (std::int64_t r = 0; r + 1 < queries_.size(); ++r) {
      const std::int64_t queries = queries_[r + 1] - queries_[r], keys = keys_[r + 1] - keys_[r];
      const auto pairs = core::checked_mul(queries, keys);
      const std::int64_t left = size - end;
      if (!pairs || core::ceil_div(*pairs, unit()) > left)
        throw wrong(name_of_elements(),
                    "{} has {} {}: {} are left for the {} queries x {} keys of request {}", elements_->name(),
                    size, is_packed_ ? "bytes" : "elements", left, queries, keys, r);
      end += core::ceil_div(*pairs, unit());
      bits->begins.push_back(end * unit());
    }
    if (end != size)
      throw wrong(name_of_elements(), "{} has {} {}; its requests have {}", elements_->name(), size,
                  is_packed_ ? "bytes" : "elements", end);
    bits->words.resize(static_cast<std::size_t>(words_for(size * (is_packed_ ? 8 : 1))));
    if (is_packed_)
      elements_->read(Shape{0}, Shape{size}, bits->words.data());
    else
      pack(*elements_, bits->words.data());
    bits_ = std::move(bits);
  }

  static void pack(const ArraySource& elements, Word* to) {
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;  // whole words
    std::vector<std::byte> raw(static_cast<std::size_t>(std::min(kAtOnce, elements.shape()[0])));
    for (const ArrayBox& part : pieces_of(elements.shape(), kAtOnce)) {
      elements.read(part.start, part.count, raw.data());
      kernels::active().nonzero_bits_8(raw.data(), part.count[0], to + part.start[0] / 64);
    }
  }

  void check_begins(const ArrayWalk& to) const {
    std::int64_t pairs = 0, bytes = 0;  // of the requests before
    for (std::int64_t r = 0; r < begins_.size(); ++r) {
      const std::int64_t expected = is_packed_ ? bytes : pairs, other = is_packed_ ? pairs : bytes;
      if (begins_[r] != expected)
        to.fault(
            "order", {begins_.name, r}, begins_[r],
            fmt::format("request {} {} at {} {}{}", r + 1 < begins_.size() ? r : r - 1,
                        r + 1 < begins_.size() ? "begins" : "ends", is_packed_ ? "byte" : "element", expected,
                        begins_[r] != other ? ""
                        : is_packed_        ? " (an offset in bits, not in bytes)"
                                            : " (an offset in bytes, not in elements)"));
      if (r + 1 == begins_.size()) break;
      pairs += pairs_of(r);
      bytes += core::ceil_div(pairs_of(r), std::int64_t{8});
    }
  }

  const char* name_of_elements() const { return is_packed_ ? kPacked : kElements; }
  std::int64_t unit() const { return is_packed_ ? 8 : 1; }  // pairs of an element of the array
  std::int64_t pairs_of(std::int64_t request) const {
    return (queries_[request + 1] - queries_[request]) * (keys_[request + 1] - keys_[request]);
  }

  std::shared_ptr<const ArraySource> elements_;
  bool is_packed_ = false, is_sound_ = false;  // sound: offsets of the data
  IndexArray queries_, keys_, begins_;
  std::shared_ptr<const RequestBits> bits_;
};

bool is_custom_mask(const ArrayGroup& group) {
  return group.find(CustomMaskRule::kPacked) || group.find(CustomMaskRule::kElements);
}

std::shared_ptr<const PairRule> rule_of_requests(const ArrayGroup& group, const StoredSettings& settings) {
  return std::make_shared<CustomMaskRule>(group, settings);
}

constexpr const char* kCustomMaskArrays[] = {
    CustomMaskRule::kPacked, CustomMaskRule::kElements, "qo_indptr", "kv_indptr", "mask_indptr", "shape"};

}  // namespace

extern const StoredMaskLayout kCustomMask;
const StoredMaskLayout kCustomMask{.name = "flashinfer-custom",
                                   .arrays = kCustomMaskArrays,
                                   .is_of = is_custom_mask,
                                   .rule = rule_of_requests};

}  // namespace ejk::blocks
