// Each rule of each kind has an artefact that violates it, and one that just does not.
#include <algorithm>
#include <functional>
#include <map>
#include <span>

#include "check/artefacts.hpp"
#include "ejk/mask_layouts.hpp"
#include "support/plain_layouts.hpp"

using namespace ejk;
using namespace artefacts;

namespace {

// Whole artefacts, by which a rule is broken or not.
struct Pair {
  std::function<Findings()> broken, sound;
};

std::function<Findings()> cu(const Numbers& values, const CuSeqlensClaims& claims = {}) {
  return [=] { return check_cu_seqlens(integers(values), claims); };
}

std::function<Findings()> padded(const Numbers& values, const Numbers& with_padding,
                                 std::optional<std::int64_t> ranks = {}) {
  return [=] {
    CuSeqlensClaims claims;
    claims.padded = integers(with_padding), claims.ranks = ranks;
    return check_cu_seqlens(integers(values), claims);
  };
}

std::function<Findings()> segments(const Numbers& ids, const Numbers& cu_seqlens = {},
                                   Convention convention = Convention::document) {
  return [=] {
    SegmentIdsClaims claims{{}, convention};
    if (!cu_seqlens.empty()) claims.cu_seqlens = integers(cu_seqlens);
    return check_segment_ids(integers(ids), claims);
  };
}

// Of ids from 0 or from 1, without a convention.
std::function<Findings()> segments_from(ZeroId::Meaning zero) {
  return [=] {
    SegmentIdsClaims claims;
    claims.zero = ZeroId{zero, "every row begins with it"};
    return check_segment_ids(integers({0, 0, 1}), claims);
  };
}

std::function<Findings()> positions(const Numbers& ids, const Numbers& cu_seqlens = {}) {
  return [=] {
    return check_position_ids(integers(ids), {cu_seqlens.empty() ? IntegerArray() : integers(cu_seqlens)});
  };
}

// Positions of tokens beside a mask of them.
std::function<Findings()> masked(const Numbers& ids, const Numbers& tokens) {
  return [=] {
    PositionIdsClaims claims;
    claims.mask = integers(tokens);
    return check_position_ids(integers(ids), claims);
  };
}

// Of two ranks where an order is claimed.
std::function<Findings()> permutation(const Numbers& order, const Numbers& cu_seqlens = {},
                                      std::optional<CpOrder> claimed = {}) {
  return [=] {
    PermutationClaims claims;
    if (!cu_seqlens.empty()) claims.cu_seqlens = integers(cu_seqlens);
    if (claimed) claims.order = claimed, claims.ranks = 2;
    return check_permutation(integers(order), claims);
  };
}

// Of sequences of 12, 68, 0 and 48 tokens in chunks of 64.
std::function<Findings()> chunks(const Numbers& rows, const Numbers& offsets = {0, 1, 3, 3, 4}) {
  return [=] {
    return check_chunk_indices(integers(rows, {std::ssize(rows) / 2, 2}),
                               {integers({0, 12, 80, 80, 128}), 64, Convention::document, integers(offsets)});
  };
}

const Numbers kChunkRows{0, 0, 1, 0, 1, 1, 3, 0};

// Of sequences of 2, 1 and 3 tokens.
std::function<Findings()> seq_idx(const Numbers& ids, DType dtype = DType::int32) {
  return [=] { return check_seq_idx(integers(ids, {std::ssize(ids)}, dtype), integers({0, 2, 3, 6})); };
}

// Of a pool of 8 slots.
std::function<Findings()> states(const Numbers& slots, bool read = false) {
  return [=] {
    StateIndicesClaims claims;
    claims.slots = 8, claims.read = read;
    return check_state_indices(integers(slots), claims);
  };
}

// Of sequences with 16, 17 and 0 computed tokens on pages of 16.
std::function<Findings()> computed_states(const Numbers& slots, const Numbers& initial = {1, 1, 0}) {
  return [=] {
    StateIndicesClaims claims;
    claims.slots = 8;
    claims.block_table = integers({4, 5, 2, 3, 6, 7}, {3, 2}), claims.page_size = 16;
    claims.computed = integers({16, 17, 0}), claims.has_initial_state = integers(initial);
    return check_state_indices(integers(slots), claims);
  };
}

// Of two sequences of 8 and 6 tokens on pages of 4.
std::function<Findings()> slots(const Numbers& values, const Numbers& table = {10, 11, 3, 6}) {
  return [=] {
    SlotMappingClaims claims{4, integers({8, 6})};
    return check_slot_mapping(integers(values), integers(table, {2, std::ssize(table) / 2}), claims);
  };
}

std::function<Findings()> sizes(const Numbers& values, std::optional<std::int64_t> m = {}) {
  return [=] { return check_group_sizes(integers(values), m); };
}

// Three groups of 5, 0 and 11 rows in tiles of 4: group 0 in tiles 0 and 1, group 2 in 1 to 3.
struct MetadataNumbers {
  Numbers offsets{0, 5, 5, 16}, groups{0, 0, 2, 2, 2, 2}, tiles{0, 1, 1, 2, 3, 3}, num_tiles{5};
};

std::function<Findings()> metadata(const MetadataNumbers& m = {}, std::int64_t align = 1,
                                   const Numbers& group_sizes = {}, std::optional<std::int64_t> tm = 4,
                                   std::optional<std::int64_t> rows = {}) {
  return [=] {
    GroupMetadataClaims claims{.tm = tm, .m = rows, .align = align};
    if (!group_sizes.empty()) claims.group_sizes = integers(group_sizes);
    return check_group_metadata(
        {integers(m.offsets), integers(m.groups), integers(m.tiles), integers(m.num_tiles)}, claims);
  };
}

template <class Change>
MetadataNumbers changed(Change change) {
  MetadataNumbers m;
  change(m);
  return m;
}

// Four choices of two experts in rows of 2 with a topology, whose first column is off by `off`.
std::function<Findings()> mega_blocks(const Numbers& choices, std::int16_t off = 0) {
  return [=] {
    const Route route = sorted_route(Numbers{2, 2});
    ArrayGroup group{"g.npz", {}, {}};
    for (auto& [name, array] :
         make_group_arrays(route, {.layout = GroupLayout::megablocks, .align = 2, .ffn_blocks = 3}).arrays) {
      if (name == "column_indices") array.elements<std::int16_t>()[0] = off;
      group.arrays[name] = make_source(std::move(array), name);
    }
    GroupMetadataClaims claims;
    claims.align = 2, claims.topk_ids = integers(choices), claims.experts = 2;
    return check_group_arrays(GroupLayout::megablocks, group, claims);
  };
}

// vLLM's arrays of two groups of two rows in blocks of 2, with `more` rows.
std::function<Findings()> vllm_rows(std::int32_t more) {
  return [=] {
    ArrayGroup group{"g.npz", {}, {}};
    for (auto& [name, array] :
         make_group_arrays(sorted_route(Numbers{2, 2}), {.layout = GroupLayout::vllm, .align = 2}).arrays) {
      if (name == "num_tokens_post_padded") array.elements<std::int32_t>()[0] += more;
      group.arrays[name] = make_source(std::move(array), name);
    }
    GroupMetadataClaims claims;
    claims.align = 2;
    return check_group_arrays(GroupLayout::vllm, group, claims);
  };
}

// An array that DeepGEMM's labels and its ends may be.
std::function<Findings()> deepgemm_zeros(std::optional<GroupLayout> stated) {
  return [=] {
    ArrayGroup group{"g.npz", {}, {}};
    group.arrays["grouped_layout"] = make_source(Array(DType::int32, {2}), "grouped_layout");
    GroupMetadataClaims claims;
    claims.align = 2, claims.layout = stated;
    return check_group_arrays(GroupLayout::deepgemm, group, claims);
  };
}

std::function<Findings()> experts(const Numbers& ids, const Shape& shape,
                                  std::optional<std::int64_t> count = {}) {
  return [=] { return check_topk_ids(integers(ids, shape), count); };
}

std::function<Findings()> keys(const Numbers& ids, const Shape& shape, IndicesClaims claims = {}) {
  return [=] { return check_indices(integers(ids, shape), claims); };
}

std::function<Findings()> null_pages(const Numbers& table, std::int64_t length) {
  return [=] {
    return check_block_table(integers(table, {1, std::ssize(table)}), integers({length}),
                             {.page_size = 4, .null_page = 0});
  };
}

std::function<Findings()> pages(const Numbers& table, const Shape& shape, const Numbers& lengths,
                                std::optional<std::int64_t> count = {}) {
  return [=] {
    return check_block_table(integers(table, shape), integers(lengths), {.page_size = 4, .pages = count});
  };
}

std::function<Findings()> mask(const Mask& one, const MaskClaims& claims = {}) {
  return [=] { return check_mask({one}, claims); };
}

std::function<Findings()> stored_mask(const std::vector<float>& values, Polarity polarity,
                                      std::int64_t rows = 1) {
  return [=] {
    Array array = Array::from<float>({rows, std::ssize(values) / rows}, std::span<const float>(values));
    MaskClaims claims{.stored = nullptr, .polarity = polarity};
    if (polarity != Polarity::additive) {
      Array bytes(DType::uint8, array.shape());
      for (std::size_t i = 0; i < values.size(); ++i)
        bytes.elements<std::uint8_t>()[i] = static_cast<std::uint8_t>(values[i]);
      array = std::move(bytes);
    }
    claims.stored = make_source(std::move(array), "m.npy");
    return check_mask({array_mask(claims.stored, polarity)}, claims);
  };
}

Findings assumed() {
  Findings found(rules_of("mask"));
  found.add("assumed", 0, [] { return Finding{"mask", {}, {}, "causal"}; });
  return found;
}

// A MaskInfo of 8 x 8 in blocks of 4 x 4, of which one number, or what else, is changed. As stored:
// block_mask 1 0 / 2 1, data_next 0 0 / 0 1, mask_next 0 0 / 0 0, one partial block.
std::function<Findings()> info(const std::function<void(ArrayGroup&)>& change, bool computable = false,
                               bool with_mask = true) {
  return [=] {
    ProcessMaskOptions options;
    options.computable = computable;
    options.shrink_grid = false;
    const MaskInfo made = process_mask({causal_mask(8, 8)}, {4, 4}, options);
    ArrayGroup group = stored_arrays(made);
    change(group);
    MaskInfoClaims claims;
    if (with_mask) claims.masks = {causal_mask(8, 8)};
    return check_mask_info(group, claims);
  };
}

// Causal, of FlashAttention-4's backward pass, where a number of the order of writes is off by this.
std::function<Findings()> backward(std::int32_t off) {
  return [=] {
    MaskLayoutSettings settings{.layout = MaskLayout::fa4};
    settings.direction = Direction::dkv, settings.dq_write_order = WriteOrder::ascending;
    ArrayGroup group{"m.npz", {}, {}};
    for (const auto& [name, source, parts] : make_mask_arrays({causal_mask(8, 8)}, {4, 4}, settings).arrays) {
      Array array = read_all(*source);
      if (name == "dq_write_order") array.elements<std::int32_t>()[0] += off;
      group.arrays[name] = make_source(std::move(array), name);
    }
    return check_mask_info(group);
  };
}

// A BlockMask of 8 x 8 whose first key block has one query block less, without a mask to compare with.
std::function<Findings()> gradient_lists(std::int32_t less) {
  return [=] {
    ArrayGroup group{"m.npz", {}, {}};
    for (const auto& [name, source, parts] :
         make_mask_arrays({causal_mask(8, 8)}, {4, 4}, {.layout = MaskLayout::flex}).arrays) {
      Array array = read_all(*source);
      if (name == "full_q_num_blocks") array.elements<std::int32_t>()[0] -= less;
      group.arrays[name] = make_source(std::move(array), name);
    }
    return check_mask_info(group);
  };
}

std::function<Findings()> on_hopper(BlockShape block) {
  return [=] {
    MaskInfoClaims claims;
    claims.kernel = Fa4Kernel{};
    return check_mask_info(
        plain::group_of(make_mask_arrays({causal_mask(256, 256)}, block, {.layout = MaskLayout::fa4})),
        claims);
  };
}

std::function<void(ArrayGroup&)> number(const std::string& name, std::size_t at, std::int8_t value) {
  return [=](ArrayGroup& group) {
    Array array = read_all(*group.arrays.at(name));
    array.data()[at] = static_cast<std::byte>(value);
    group.arrays[name] = make_source(std::move(array), name);
  };
}

// Steps of Tokamax with these rows, each over columns 0 and 1.
std::function<Findings()> tokamax_rows(const std::vector<std::int32_t>& rows) {
  return [rows] {
    ArrayGroup group{"m.npz", {}, {}};
    const auto add = [&](const char* name, const std::vector<std::int32_t>& values) {
      group.arrays[name] = make_source(Array::from<std::int32_t>({std::ssize(values)}, values), name);
    };
    add("active_rows", rows), add("active_cols", {0, 0, 1}), add("block_mask", {2, 2, 2});
    add("num_active_blocks", {3}), add("block", {2, 2}), add("shape", {4, 4});
    return check_mask_info(group);
  };
}

// A custom mask of FlashInfer with 3 queries and 4 keys, whose second byte is this.
std::function<Findings()> last_byte(std::int64_t byte) {
  return [=] {
    return check_mask_info(plain::group_of({{"packed_custom_mask", {DType::uint8, {2}, {0xff, byte}}},
                                            {"qo_indptr", {DType::int32, {2}, {0, 3}}},
                                            {"kv_indptr", {DType::int32, {2}, {0, 4}}}}));
  };
}

void no_change(ArrayGroup&) {}

// The partial blocks again, and one more, all of `value`; block (1, 0) has it where that is all True.
std::function<void(ArrayGroup&)> one_more(std::int8_t value, bool used) {
  return [=](ArrayGroup& group) {
    Array array(DType::boolean, {2, 4, 4});
    const Array old = read_all(*group.arrays.at("partial_mask_blocks"));
    std::fill_n(array.data(), 32, static_cast<std::byte>(value));
    std::copy_n(old.data(), 16, array.data());
    if (value == 2) std::fill_n(array.data() + 17, 15, std::byte{0}), array.data()[16] = std::byte{1};
    group.arrays["partial_mask_blocks"] = make_source(std::move(array), "partial_mask_blocks");
    if (used)
      number("block_mask", 2, 1)(group), number("mask_next", 2, 1)(group), number("mask_next", 1, 1)(group);
  };
}

// A mask of 6 x 6 in the same blocks: the last ones are padded.
std::function<Findings()> padded(std::size_t element) {
  return [=] {
    ProcessMaskOptions options;
    options.pad = true;
    const MaskInfo made = process_mask({full_mask(6, 6)}, {4, 4}, options);
    ArrayGroup group = stored_arrays(made);
    number("partial_mask_blocks", element, 1)(group);
    return check_mask_info(group);
  };
}

const std::int64_t kInt32 = 2147483647;

const std::map<std::string, std::map<std::string, Pair>> kPairs{
    {"cu-seqlens",
     {{"length", {cu({}), cu({0})}},
      {"begin", {cu({3, 5}), cu({0, 5})}},
      {"decreasing", {cu({0, 5, 4}), cu({0, 5, 5})}},
      {"tokens", {cu({0, 5}, {.tokens = 6}), cu({0, 5}, {.tokens = 5})}},
      {"too-long", {cu({0, 5}, {.max_seqlen = 4}), cu({0, 5}, {.max_seqlen = 5})}},
      // An empty sequence is at no multiple, and has nothing to be misaligned.
      {"misaligned", {cu({0, 5, 6}, {.align = 4}), cu({0, 8, 9, 9}, {.align = 4})}},
      {"count", {padded({0, 2}, {0, 4, 8}), padded({0, 2, 3}, {0, 4, 8})}},
      {"longer", {padded({0, 5, 7}, {0, 4, 8}), padded({0, 4, 8}, {0, 4, 8})}},
      {"divisible", {padded({0, 2, 3}, {0, 4, 10}, 2), padded({0, 2, 3}, {0, 4, 12}, 2)}},
      {"int32", {cu({0, kInt32 + 1}), cu({0, kInt32})}},
      {"empty", {cu({0, 2, 2}), cu({0, 2, 3})}}}},
    {"segment-ids",
     {{"split", {segments({1, 1, 2, 1}), segments({2, 2, 1, 0})}},
      {"boundary", {segments({1, 1, 2}, {0, 3}), segments({1, 1, 1}, {0, 3})}},
      {"repeated", {segments({1, 1, 2, 1}, {0, 2, 3, 4}), segments({7, 7, 2, 1}, {0, 2, 3, 4})}},
      {"past-end", {segments({1, 1, 2}, {0, 2}), segments({1, 1, 0}, {0, 2})}},
      {"length", {segments({1, 1}, {0, 2, 3}), segments({1, 1}, {0, 2, 2})}},
      {"padding-inside", {segments({1, 0, 2}), segments({0, 1, 2, 0, -1})}},
      {"assumed", {segments_from(ZeroId::Meaning::document), segments_from(ZeroId::Meaning::padding)}}}},
    {"chunk-indices",
     {{"shape",
       {[] {
          return check_chunk_indices(integers({0, 1}), {integers({0, 2}), 1});
        },
        [] {
          return check_chunk_indices(integers({0, 0, 0, 1}, {2, 2}), {integers({0, 2}), 1});
        }}},
      {"range", {chunks({0, 0, 1, 0, 1, 2, 3, 0}), chunks(kChunkRows)}},
      {"duplicate", {chunks({0, 0, 1, 0, 1, 0, 1, 1, 3, 0}), chunks(kChunkRows)}},
      {"missing", {chunks({0, 0, 3, 0}), chunks(kChunkRows)}},
      {"order", {chunks({0, 0, 1, 1, 1, 0, 3, 0}), chunks(kChunkRows)}},
      {"per-row", {chunks({0, 0, 1, 0, 1, 1, 3, 1}), chunks(kChunkRows)}},
      {"numbering", {chunks({0, 0, 1, 0, 1, 1, 2, 0}), chunks(kChunkRows)}},
      {"tail", {chunks({0, 0, 1, 0, -1, -1, 1, 1, 3, 0}), chunks({0, 0, 1, 0, 1, 1, 3, 0, -1, -1, -1, -1})}},
      {"offsets", {chunks(kChunkRows, {0, 1, 3, 4, 5}), chunks(kChunkRows)}}}},
    {"seq-idx",
     {{"length", {seq_idx({0, 0, 1, 2, 2}), seq_idx({0, 0, 1, 2, 2, 2})}},
      {"range", {seq_idx({1, 1, 2, 3, 3, 3}), seq_idx({0, 0, 1, 2, 2, 2})}},
      {"boundary", {seq_idx({0, 1, 1, 2, 2, 2}), seq_idx({0, 0, 1, 2, 2, 2})}},
      {"order", {seq_idx({0, 0, 2, 1, 1, 1}), seq_idx({0, 0, 1, 2, 2, 2})}},
      {"repeated", {seq_idx({0, 0, 1, 0, 0, 0}), seq_idx({0, 0, 1, 2, 2, 2})}},
      {"padding", {seq_idx({0, 0, 1, 2, 2, 2, 0}), seq_idx({0, 0, 1, 2, 2, 2, -1})}},
      {"type", {seq_idx({0, 0, 1, 2, 2, 2}, DType::int64), seq_idx({0, 0, 1, 2, 2, 2})}}}},
    {"state-indices",
     {{"range", {states({0, 8}), states({0, 7})}},
      {"duplicate", {states({3, 3, -1, -1}), states({3, 3, -1, -1}, true)}},
      {"padding", {states({3, -2}), states({3, -1})}},
      {"column", {computed_states({4, 2, 6}), computed_states({4, 3, 1})}},
      {"fresh", {computed_states({4, 3, 6}, {1, 1, 1}), computed_states({4, 3, -1}, {1, 1, 1})}},
      {"null", {computed_states({4, 3, 0}), computed_states({4, 3, 6})}}}},
    {"slot-mapping",
     {{"length", {slots({47}), slots({47, 25})}},
      {"range", {slots({47, 25}, {11, 6}), slots({47, 25})}},
      {"slot", {slots({46, 25}), slots({47, 25})}},
      {"foreign", {slots({25, 47}), slots({47, 25})}},
      {"twice", {slots({47, 47}), slots({47, 25})}},
      {"past-end", {slots({47, 25, 0}), slots({47, 25, -1})}},
      {"unwritten", {slots({-1, 25}), slots({47, 25, -1})}}}},
    {"position-ids",
     {{"restart", {positions({0, 1, 2}, {0, 2, 3}), positions({0, 1, 0}, {0, 2, 3})}},
      {"jump", {positions({0, 2}), positions({0, 1, 0, 0, 1})}},
      {"counts-padding", {masked({0, 1, 2, 3}, {0, 0, 1, 1}), masked({1, 1, 0, 1}, {0, 0, 1, 1})}},
      {"length", {positions({0, 1}, {0, 3}), positions({0, 1, 7}, {0, 2})}},
      {"padding-inside", {positions({0, -1, 0}), positions({-1, 0, 1, -1, -1})}}}},
    {"permutation",
     {{"length", {permutation({0, 1}, {0, 3}), permutation({0, 1}, {0, 2})}},
      {"range", {permutation({0, 2}), permutation({1, 0})}},
      {"twice", {permutation({0, 0}), permutation({1, 0})}},
      {"missing", {permutation({0, 0}), permutation({1, 0})}},
      {"divisible",
       {permutation({0, 1, 2}, {}, CpOrder::contiguous), permutation({0, 1}, {}, CpOrder::contiguous)}},
      {"split",
       {permutation({0, 1, 2, 3, 4, 5, 6, 7}, {0, 4, 8}, CpOrder::thd),
        permutation({0, 3, 4, 7, 1, 2, 5, 6}, {0, 4, 8}, CpOrder::thd)}},
      {"order",
       {permutation({0, 1, 2, 3}, {}, CpOrder::head_tail),
        permutation({0, 3, 1, 2}, {}, CpOrder::head_tail)}}}},
    {"group-sizes",
     {{"negative", {sizes({1, -1, 2}, 2), sizes({1, 0, 1}, 2)}},
      {"sum", {sizes({1, 2}, 4), sizes({1, 3}, 4)}},
      {"int32", {sizes({kInt32, 1}), sizes({kInt32 - 1, 1})}},
      {"ends", {sizes({1, 1, 3, 4}), sizes({1, 1, 3, 4}, 9)}}}},
    {"group-metadata",
     {{"shape", {metadata(changed([](MetadataNumbers& m) { m.tiles.pop_back(); })), metadata()}},
      {"begin", {metadata(changed([](MetadataNumbers& m) { m.offsets[0] = 1; })), metadata()}},
      {"decreasing", {metadata(changed([](MetadataNumbers& m) { m.offsets[2] = 4; })), metadata()}},
      {"sizes", {metadata({}, 1, {5, 1, 10}), metadata({}, 1, {5, 0, 11})}},
      {"rows", {metadata({}, 1, {}, 4, 15), metadata({}, 1, {}, 4, 16)}},
      {"misaligned", {metadata({}, 2), metadata({}, 5)}},
      {"num-tiles", {metadata(changed([](MetadataNumbers& m) { m.num_tiles[0] = 7; })), metadata()}},
      {"range", {metadata(changed([](MetadataNumbers& m) { m.groups[4] = 3; })), metadata()}},
      {"order",
       {metadata(changed([](MetadataNumbers& m) { std::swap(m.groups[1], m.groups[2]); })), metadata()}},
      {"dropped", {metadata(changed([](MetadataNumbers& m) { m.num_tiles[0] = 4; })), metadata()}},
      {"twice", {metadata(changed([](MetadataNumbers& m) { m.num_tiles[0] = 6; })), metadata()}},
      {"experts", {mega_blocks({0, 1, 0, 1}), mega_blocks({0, 0, 1, 1})}},
      {"blocks", {mega_blocks({0, 0, 1, 1}, 1), mega_blocks({0, 0, 1, 1})}},
      {"whole-blocks", {vllm_rows(-1), vllm_rows(0)}},
      {"empty-groups",
       {metadata({{0, 4, 4, 8, 8}, {0, 1, 2, 3, 3}, {0, 1, 1, 1, 1}, {3}}),
        metadata({{0, 4, 4, 8, 8}, {0, 1, 2, 3, 3}, {0, 1, 1, 1, 1}, {4}})}},
      {"int32",
       {metadata({{0, kInt32 + 1}, {0}, {0}, {1}}, 1, {}, kInt32 + 1),
        metadata({{0, kInt32}, {0}, {0}, {1}}, 1, {}, kInt32 + 1)}},
      {"idle", {metadata({{0, 4}, {0, 0}, {0, 1}, {2}}), metadata({{0, 5}, {0, 0}, {0, 1}, {2}})}},
      {"unchecked", {metadata({}, 1, {}, std::nullopt), metadata()}},
      {"assumed", {deepgemm_zeros({}), deepgemm_zeros(GroupLayout::deepgemm)}}}},
    {"topk-ids",
     {{"range", {experts({0, 4}, {1, 2}, 4), experts({0, 3}, {1, 2}, 4)}},
      {"duplicate", {experts({0, 1, 2, 2}, {2, 2}), experts({0, 1, 1, 2, -1, -1}, {3, 2})}},
      {"partial", {experts({0, -1}, {1, 2}), experts({0, 1, -1, -1}, {2, 2})}}}},
    {"indices",
     {{"range", {keys({0, 8}, {1, 2}, {.keys = 8}), keys({0, 7}, {1, 2}, {.keys = 8})}},
      {"duplicate", {keys({3, 1, 3}, {1, 3}), keys({3, 1, 3, 1}, {2, 2})}},
      {"future", {keys({0, 2}, {2, 1}, {.causal = true}), keys({0, 1}, {2, 1}, {.causal = true})}},
      {"gap", {keys({1, -1, 0}, {1, 3}), keys({1, 0, -1}, {1, 3})}},
      {"empty", {keys({0, -1}, {2, 1}), keys({0, 0}, {2, 1})}},
      {"assumed",
       {keys({0, 1}, {2, 1}, {.keys = 3, .causal = true}),
        keys({0, 1}, {2, 1}, {.keys = 3, .causal = true, .offset = 1})}}}},
    {"block-table",
     {{"length", {pages({0}, {1, 1}, {-1}), pages({0}, {1, 1}, {0})}},
      {"beyond", {pages({0, 1}, {1, 2}, {9}), pages({0, 1}, {1, 2}, {8})}},
      {"missing", {pages({0, -1}, {1, 2}, {5}), pages({0, -1}, {1, 2}, {4})}},
      {"range", {pages({0, 9}, {1, 2}, {8}, 9), pages({0, 8, 9}, {1, 3}, {8}, 9)}},
      {"twice", {pages({3, 3}, {1, 2}, {8}), pages({3, 3}, {1, 2}, {4})}},
      {"null", {null_pages({0, 3, 0}, 9), null_pages({0, 3, 0}, 8)}},
      {"window", {null_pages({0, 3}, 8), null_pages({2, 3}, 8)}},
      {"shared", {pages({3, 3}, {2, 1}, {4, 4}), pages({3, 3}, {2, 1}, {4, 0})}}}},
    {"mask",
     {{"outside",
       {mask(causal_mask(8, 8, 1), {.within = {causal_mask(8, 8)}}),
        mask(causal_mask(8, 8), {.within = {causal_mask(8, 8)}})}},
      {"missing",
       {mask(causal_mask(8, 8), {.covers = {causal_mask(8, 8, 1)}}),
        mask(causal_mask(8, 8), {.covers = {causal_mask(8, 8)}})}},
      {"between",
       {stored_mask({0, -9999}, Polarity::additive), stored_mask({0, -10000}, Polarity::additive)}},
      {"ids", {stored_mask({0, 1, 2}, Polarity::keep), stored_mask({0, 2, 2}, Polarity::keep)}},
      {"values", {stored_mask({0, 2}, Polarity::keep), stored_mask({0, 1}, Polarity::keep)}},
      {"inverted", {mask(~causal_mask(8, 8)), mask(causal_mask(8, 8, 1))}},
      {"no-keys", {mask(causal_mask(8, 8, -1)), mask(causal_mask(8, 8))}},
      {"unseen", {mask(prefix_mask(8, 8, 7)), mask(prefix_mask(8, 8, 8))}},
      {"padding-mask",
       {stored_mask({1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1}, Polarity::keep, 2),
        stored_mask({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1}, Polarity::keep, 2)}},
      // The program says which expression it is of.
      {"assumed", {assumed, mask(causal_mask(8, 8))}}}},
    {"mask-info",
     {{"shape", {info([](ArrayGroup& g) { g.arrays.erase("data_next"); }), info(no_change)}},
      {"state", {info(number("block_mask", 2, 3)), info(no_change)}},
      {"range", {info(number("data_next", 1, 2)), info(number("data_next", 1, 1))}},
      {"elements",
       {info([](ArrayGroup& g) { g.arrays.erase("mask_next"); }),
        info([](ArrayGroup& g) { g.arrays.erase("mask_next"); }, true)}},
      {"twice", {info(number("data_next", 3, 0)), info(no_change)}},
      {"order", {tokamax_rows({0, 1, 0}), tokamax_rows({0, 1, 1})}},
      {"positions", {info(number("q_sequence", 4, 2), true), info(no_change, true)}},
      // Query 0 with key 6, which there is none, and with key 5, which it sees anyway.
      {"padding", {padded(2), padded(1)}},
      {"missing", {info(number("block_mask", 0, 0)), info(no_change)}},
      {"outside", {info(number("block_mask", 0, 2)), info(no_change)}},
      {"directions", {gradient_lists(1), gradient_lists(0)}},
      {"write-order", {backward(1), backward(0)}},
      {"runs-on", {on_hopper({64, 256}), on_hopper({64, 128})}},
      {"look-ahead", {info(number("data_next", 1, 1)), info(number("data_next", 1, 0))}},
      {"unused", {info(one_more(2, false)), info(no_change)}},
      {"unread", {last_byte(0x1f), last_byte(0x0f)}},
      {"decided", {info(one_more(1, true)), info(no_change)}},
      {"dtype",
       {info([](ArrayGroup& g) {
          Array wide(DType::int64, {1, 2, 2});
          const Array old = read_all(*g.arrays.at("data_next"));
          for (std::size_t i = 0; i < 4; ++i)
            wide.elements<std::int64_t>()[i] = old.elements<std::int8_t>()[i];
          g.arrays["data_next"] = make_source(std::move(wide), "data_next");
        }),
        info(no_change)}},
      {"assumed", {info(no_change, true), info(no_change)}}}},
};

}  // namespace

TEST_CASE("each rule is broken by an artefact, and not by one beside it") {
  for (const CheckKind& kind : check_kinds()) {
    const std::string of_kind(kind.name);
    if (of_kind == "checkpoint") continue;  // test_checkpoint.cpp
    CAPTURE(of_kind);
    REQUIRE(kPairs.contains(of_kind));
    CHECK(kPairs.at(of_kind).size() == kind.rules.size());
    for (const Rule& rule : kind.rules) {
      const std::string name(rule.name);
      CAPTURE(name);
      REQUIRE(kPairs.at(of_kind).contains(name));
      const Pair& pair = kPairs.at(of_kind).at(name);
      CHECK(pair.broken().count(name) > 0);
      CHECK((rule.severity == Severity::error ? pair.broken().errors() : pair.broken().warnings()) > 0);
      const Findings sound = pair.sound();
      CHECK(sound.count(name) == 0);
      CHECK(sound.errors() == 0);
    }
  }
}

TEST_CASE("rules fit a line of help and of a report, and the names of a kind differ") {
  for (const CheckKind& kind : check_kinds()) {
    std::size_t longest = 0;
    for (const Rule& rule : kind.rules) longest = std::max(longest, rule.name.size());
    for (const Rule& rule : kind.rules) {
      CAPTURE(rule.name);
      CHECK(longest + rule.text.size() <= 60);
      CHECK_FALSE(rule.text.ends_with('.'));
      CHECK(std::count_if(kind.rules.begin(), kind.rules.end(),
                          [&](const Rule& other) { return other.name == rule.name; }) == 1);
    }
  }
  CHECK_THROWS_AS(rules_of("cu-seqlen"), Error);
}
