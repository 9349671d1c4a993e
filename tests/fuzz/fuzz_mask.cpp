// Mask expressions: parsed, and resolved over small arrays. The state of a rectangle must agree with those of
// its parts, and the text of a mask must parse again.
#include <algorithm>

#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "fuzz.hpp"

using namespace ejk;

namespace {

constexpr std::int64_t kQueries = 8, kKeys = 12;

// An array by the first letter of its reference.
std::shared_ptr<const ArraySource> open_small(const std::string& reference) {
  const std::vector<std::int32_t> cu{0, 3, 3, 8}, ids{1, 1, 2, 2, 0, 3, 3, -1};
  switch (reference.empty() ? '\0' : reference[0]) {
    case 'c':
      return make_source(Array::from<std::int32_t>({4}, cu));
    case 'i':
      return make_source(Array::from<std::int32_t>({8}, ids));
    case 'b': {
      Array blocks(DType::boolean, {2, 3});
      blocks.data()[1] = std::byte{1};
      return make_source(std::move(blocks));
    }
    case 'f':
      return make_source(Array(DType::float32, {kQueries, kKeys}));
    case 'h':
      return make_source(Array(DType::boolean, {2, kQueries, kKeys}));
    case 'e':
      return make_source(Array(DType::int64, {0}));
    case 's':
      return make_source(Array(DType::float64, {}));
    default:
      throw Error(Error::Kind::input, reference + ": no such file");
  }
}

// What one of the smallest MaskInfos has, by the names of its arrays.
ArrayGroup group_of(const std::string& reference, const std::vector<std::string>& names) {
  ArrayGroup group{reference, {}, {}};
  for (const std::string& name : names) {
    if (name == "partial_mask_blocks") {
      Array blocks(DType::boolean, {1, 4, 4});
      blocks.data()[5] = std::byte{1};
      group.arrays[name] = make_source(std::move(blocks), name);
    } else if (name == "block_mask" || name == "data_next" || name == "mask_next") {
      Array table(DType::int8, {1, 2, 3});
      if (name == "block_mask")
        table.data()[0] = table.data()[4] = std::byte{1}, table.data()[1] = std::byte{2};
      if (name == "data_next") table.data()[1] = table.data()[4] = std::byte{1};
      group.arrays[name] = make_source(std::move(table), name);
    }
  }
  return group;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  fuzz::survives([&] {
    const MaskExpression expression = MaskExpression::parse(text);
    fuzz::require(expression.text() == text, "an expression forgets its text");
    (void)expression.text(References::hidden);
    (void)expression.leaves_alignment_open();
    const OpenArray open(open_small, group_of);
    fuzz::survives([&] { (void)expression.shape(open); });
    for (const Shape& shape : {Shape{1, kQueries, kKeys}, Shape{2, kQueries, kQueries}})
      for (const Polarity polarity : {Polarity::keep, Polarity::additive})
        fuzz::survives([&] {
          const Mask mask = expression.resolve(shape, shape[0] - 1, polarity, open);
          const std::int64_t rows = mask.q_length(), columns = mask.kv_length();
          fuzz::require(rows == shape[1] && columns == shape[2],
                        "a mask has another shape than was asked for");
          std::unique_ptr<bool[]> whole(new bool[static_cast<std::size_t>(rows * columns)]);
          mask.read(0, rows, 0, columns, whole.get());
          for (std::int64_t q = 0; q < rows; ++q)
            for (std::int64_t begin = 0; begin < columns; begin += 5) {
              bool part[5]{};
              const std::int64_t end = std::min(begin + 5, columns);
              mask.read(q, q + 1, begin, end, part);
              fuzz::require(std::equal(part, part + (end - begin), whole.get() + q * columns + begin),
                            "a part of a mask is not what the whole says");
            }
          (void)mask.text();
          (void)mask.is_computable();
        });
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string_view> words{"full",
                                                   "causal",
                                                   "local",
                                                   "chunked",
                                                   "prefix",
                                                   "segments",
                                                   "documents",
                                                   "file",
                                                   "blocks",
                                                   "from",
                                                   "visited",
                                                   "offset=",
                                                   "align=",
                                                   "top-left",
                                                   "bottom-right",
                                                   "left=",
                                                   "right=",
                                                   "none",
                                                   "size=",
                                                   "keys=",
                                                   "q=",
                                                   "kv=",
                                                   "cu_seqlens=",
                                                   "array=",
                                                   "block=",
                                                   "4x4",
                                                   "info=",
                                                   "shape=8x12",
                                                   "walk=dkv",
                                                   "walk=forward",
                                                   "head_shards=1",
                                                   "q_seq_shards=1",
                                                   "cu.npy",
                                                   "ids.npy",
                                                   "bits.npy",
                                                   "heads.npy",
                                                   "&",
                                                   "|",
                                                   "~",
                                                   "(",
                                                   ")",
                                                   ",",
                                                   "=",
                                                   "\"",
                                                   " "};
  return fuzz::mutate_text(data, size, most, seed, words);
}
