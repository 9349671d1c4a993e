// Checks of artefacts: the input selects kind and dtype and has the elements. A check returns findings, the
// same ones when repeated, with a printable report.
#include <algorithm>

#include "ejk/check.hpp"
#include "fuzz.hpp"

using namespace ejk;

namespace {

// kind, dtype, columns, claims (3); then elements of two bytes, the third of them in the place of bits 48 and
// up where it has the highest bit set.
constexpr std::size_t kHead = 6;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : head_(data), at_(data + kHead), left_(size - kHead) {}

  std::uint8_t head(std::size_t i) const { return head_[i]; }
  std::size_t elements_left() const { return left_ / 2; }
  std::optional<std::int64_t> claim(std::size_t i) const {
    if (head_[i] >= 128) return std::nullopt;
    return head_[i];
  }

  // Takes n elements, or those that are left.
  IntegerArray take(std::size_t n, std::int64_t columns = 0, std::uint8_t type = 255) {
    constexpr DType kTypes[] = {DType::int32, DType::int64,  DType::int8,    DType::uint8,
                                DType::int16, DType::uint64, DType::float32, DType::uint32};
    n = std::min(n, elements_left());
    if (columns > 0) n -= n % static_cast<std::size_t>(columns);
    Shape shape{static_cast<std::int64_t>(n)};
    if (columns > 0) shape = {static_cast<std::int64_t>(n) / columns, columns};
    Array array(kTypes[(type == 255 ? head_[1] : type) % std::size(kTypes)], shape);
    const auto width = static_cast<std::size_t>(size_of(array.dtype()));
    for (std::size_t i = 0; i < n; ++i, at_ += 2, left_ -= 2) {
      std::uint64_t value = at_[0];
      if (at_[1] >= 128) value = std::uint64_t{0} - value;                 // a small negative number
      if (at_[1] % 128 >= 64) value ^= std::uint64_t{1} << (at_[1] % 64);  // a large one
      for (std::size_t b = 0; b < width; ++b)
        array.data()[i * width + b] = static_cast<std::byte>(static_cast<std::uint8_t>(value >> (8 * b)));
    }
    return std::shared_ptr<const ArraySource>(make_source(std::move(array)));
  }
  IntegerArray take_some(std::int64_t n, std::int64_t columns = 0) {
    return take(static_cast<std::size_t>(n), columns);
  }
  IntegerArray take_rest(std::int64_t columns = 0) { return take(elements_left(), columns); }

  // A block table, a row of it, ...: a table of small numbers.
  std::shared_ptr<const ArraySource> take_table(Shape shape, DType dtype) {
    Array array(dtype, std::move(shape));
    for (std::int64_t i = 0; i < array.bytes() && left_ > 0; ++i, ++at_, --left_)
      array.data()[i] = static_cast<std::byte>(*at_);
    return make_source(std::move(array));
  }

 private:
  const std::uint8_t* head_;
  const std::uint8_t* at_;
  std::size_t left_;
};

Findings check_info(Input& in, const CheckOptions& options) {
  ArrayGroup group{"the file", {}, {}};
  const std::int64_t rows = 1 + in.head(2) % 2, q = 1 + in.head(2) / 2 % 4, kv = 1 + in.head(2) / 8 % 4,
                     side = 4;
  const bool has_partial = in.head(3) % 2 != 0;
  group.arrays["block_mask"] = in.take_table({rows, q, kv}, DType::int8);
  if (in.head(3) % 8 != 6) group.arrays["data_next"] = in.take_table({rows, q, kv}, DType::int8);
  if (has_partial) {
    group.arrays["mask_next"] = in.take_table({rows, q, kv}, DType::int8);
    Array blocks(DType::boolean, {2, side, side});
    blocks.data()[3] = blocks.data()[21] = std::byte{1};
    group.arrays["partial_mask_blocks"] = make_source(std::move(blocks));
  }
  MaskInfoClaims claims;
  claims.settings.block = BlockShape{side, side};
  if (in.head(4) % 2 == 0) claims.settings.shape = Shape{rows, q * side, kv * side};
  if (in.head(4) % 4 == 0)
    claims.masks = {in.head(4) % 8 == 0 ? causal_mask(q * side, kv * side) : full_mask(q * side, kv * side)};
  claims.pictures = in.head(5) % 3;
  return check_mask_info(group, claims, options);
}

Findings check(Input in) {
  CheckOptions options;
  options.max_bytes = std::int64_t{64} << 20;
  const std::int64_t columns = 1 + in.head(2) % 8;
  switch (in.head(0) % 10) {
    case 0:
      return check_cu_seqlens(in.take_rest(), {in.claim(3), in.claim(4), in.head(5)}, options);
    case 1: {
      SegmentIdsClaims claims;
      if (in.head(3) % 4 == 1) claims.cu_seqlens = in.take_some(columns);
      if (in.head(3) % 8 >= 4) claims.convention = Convention::ejkernel;
      return check_segment_ids(in.take_rest(in.head(3) % 4 == 2 ? columns : 0), claims, options);
    }
    case 2: {
      PositionIdsClaims claims;
      if (in.head(3) % 4 == 1) claims.cu_seqlens = in.take_some(columns);
      claims.padding = in.claim(4);
      return check_position_ids(in.take_rest(in.head(3) % 4 == 2 ? columns : 0), claims, options);
    }
    case 3:
      return check_group_sizes(in.take_rest(), in.claim(3), options);
    case 4:
      return check_topk_ids(in.take_rest(columns), in.claim(3), options);
    case 5:
      return check_indices(in.take_rest(columns), {in.claim(3), in.head(4) % 2 != 0, in.claim(5)}, options);
    case 6: {
      const IntegerArray lengths = in.take_some(1 + in.head(5) % 4);
      return check_block_table(in.take_rest(columns), lengths, {in.head(3), in.claim(4), in.claim(5)},
                               options);
    }
    case 7: {
      GroupMetadataClaims claims;
      claims.tm = in.claim(3);
      claims.m = in.claim(4);
      if (in.head(5) % 2 != 0) claims.group_sizes = in.take_some(columns);
      if (in.head(5) % 16 == 2) claims.topk_ids = in.take_some(columns, 2), claims.experts = columns;
      GroupMetadataArrays arrays;
      arrays.group_offsets = in.take_some(columns + 1);
      arrays.num_tiles = in.take_some(1);
      const std::size_t tiles = in.elements_left() / 2;
      arrays.group_ids = in.take(tiles);
      arrays.m_tile_ids = in.take(tiles);
      return check_group_metadata(arrays, claims, options);
    }
    case 8: {
      MaskClaims claims;
      const std::int64_t rows = 1 + in.head(3) % 16;
      claims.block = {1 + in.head(4) % 8, 1 + in.head(4) / 8 % 8};
      if (in.head(5) % 2 != 0) claims.within = {causal_mask(rows, columns)};
      if (in.head(5) % 4 > 1) claims.covers = {local_mask(rows, columns, 1, std::nullopt)};
      if (in.head(5) % 8 > 3) claims.equals = {full_mask(rows, columns)};
      auto stored = in.take_table({rows, columns}, in.head(1) % 2 != 0 ? DType::boolean : DType::int8);
      const std::vector<Mask> heads{array_mask(stored, in.head(1) % 4 > 1 ? Polarity::drop : Polarity::keep)};
      claims.stored = stored;
      return check_mask(heads, claims, options);
    }
    default:
      return check_info(in, options);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHead) return 0;
  const auto report = [&](std::string& text) {
    return fuzz::survives([&] {
      const Findings findings = check(Input(data, size));
      const Report described = describe(findings);
      text = to_text(described) + to_json(described, {"fuzz"});
      if (size % 8 == 0) (void)to_html(described, {"fuzz"});  // which takes longer than all the rest
    });
  };
  std::string first, second;
  const bool good = report(first);
  fuzz::require(report(second) == good && first == second,
                "the same artefact has other findings when it is asked again");
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return fuzz::mutate(data, size, most, seed, [](fuzz::Bytes& bytes, fuzz::Random& random) {
    bytes.resize(std::max(bytes.size(), kHead));
    const std::size_t elements = (bytes.size() - kHead) / 2;
    if (elements == 0 || random.one_in(4)) {
      bytes[random.below(kHead)] = static_cast<std::uint8_t>(random.below(256));
    } else if (random.one_in(6)) {  // an element more
      const auto at = static_cast<std::ptrdiff_t>(kHead + 2 * random.below(elements + 1));
      const std::uint8_t value[] = {static_cast<std::uint8_t>(random.below(16)), 0};
      bytes.insert(bytes.begin() + at, value, value + 2);
    } else {
      const std::size_t at = kHead + 2 * random.below(elements);
      bytes[at] = static_cast<std::uint8_t>(bytes[at] + random.below(5) - 2);
      if (random.one_in(4))
        bytes[at + 1] = static_cast<std::uint8_t>(random.one_in(2) ? 0 : random.below(256));
    }
  });
}
