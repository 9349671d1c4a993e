// Known faults of attention kernels as variations of the reference, each with one or two changed members, and
// the public threads that have them. Nearby masks are built at first use.
// tests: tests/verdict/attention/test_fault_models.cpp
#include "verdict/attention/variations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "blocks/scan.hpp"
#include "compare/float_type.hpp"

namespace ejk::attn {

namespace {

constexpr std::int64_t kParts[] = {2, 4, 8, 16, 32};  // of split keys

// Queries and keys of tiles of the same number, as `tile` queries and keys meet on a diagonal.
Mask tiles_on_diagonal(std::int64_t q_length, std::int64_t kv_length, std::int64_t tile) {
  const auto ids = [tile](std::int64_t length, std::int64_t offset) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(length));
    for (std::int64_t n = 0; n < length; ++n)
      all[static_cast<std::size_t>(n)] = std::max<std::int64_t>(n + offset, 0) / tile + 1;
    return IntegerArray(std::move(all));
  };
  return segments_mask(ids(q_length, kv_length - q_length), ids(kv_length, 0));
}

// Masks that result from faulty loops over tiles or parts of keys.
void add_tile_masks(const std::optional<Mask>& masked, std::int64_t queries, std::int64_t keys,
                    std::vector<mask::NearbyMask>& all) {
  const Mask of = masked ? *masked : full_mask(queries, keys);
  const auto without = [&](std::string text, std::int64_t first, bool after) {
    if (first <= 0 || first >= keys) return;
    const Mask before = prefix_mask(queries, keys, first);
    all.push_back({std::move(text), of & (after ? before : ~before)});
  };
  for (const std::int64_t tile : kTileSizes) {
    if (tile >= keys) break;
    if (masked) {  // ROCm/rocMLIR#2165
      const Mask diagonal = tiles_on_diagonal(queries, keys, tile);
      all.push_back({fmt::format("the tile of {} keys on the diagonal is left out", tile), of & ~diagonal});
      all.push_back({fmt::format("the tile of {} keys on the diagonal is not masked", tile), of | diagonal});
    }
    if (keys % tile == 0)  // jax-ml/jax#27224, ELS-RD/kernl#73
      without(fmt::format("the last tile of {} keys is left out", tile), keys - tile, true);
  }
  for (const std::int64_t parts : kParts) {
    const std::int64_t part = (keys + parts - 1) / parts;
    if (part < 2) break;
    without(fmt::format("of {} parts of the keys only the first is used", parts), part, true);
    without(fmt::format("of {} parts of the keys only the last is used", parts), part * (parts - 1), false);
    without(fmt::format("of {} parts of the keys the last is left out", parts), part * (parts - 1), true);
  }
  without("the keys before the first query are left out", keys - queries, false);
  without("the keys from the first query on are left out", keys - queries, true);
}

// A tile that a kernel visits, in its row of tiles.
struct VisitedTile {
  bool is_full, is_first, is_last;
  bool is_cut_at_first;  // the first query of the row does not attend to the first key
};

// Tiles that a block-sparse kernel treats wrongly. It is not seen where a mask has no such tile.
struct TileFault {
  const char *subject, *text;
  bool is_whole;  // all pairs of the tile attend; else none
  bool (*has)(const VisitedTile& tile);
};
constexpr TileFault kTileFaults[] = {
    // The mask is not evaluated. ROCm/aiter#5741
    {"partial tiles", "are computed whole", true, [](const VisitedTile& t) { return !t.is_full; }},
    // Lists of full and of partial tiles are apart. pytorch/pytorch#143534
    {"full tiles", "are left out", false, [](const VisitedTile& t) { return t.is_full; }},
    {"partial tiles", "are left out where they are the first of several in a row", false,
     [](const VisitedTile& t) { return !t.is_full && t.is_first && !t.is_last; }},
    // The begin of a loop is rounded up.
    {"tiles", "are left out where the window of the first query begins within them", false,
     [](const VisitedTile& t) { return t.is_first && t.is_cut_at_first; }},
    // ROCm/rocMLIR#2165
    {"tiles", "are left out where they are the last of a row", false,
     [](const VisitedTile& t) { return t.is_last; }},
};

// The tiles of a fault, as an array (rows of tiles, columns) of bool.
Array tiles_with(const TileFault& fault, const Mask& of, BlockShape tile, const BlockStates& states) {
  Array all(DType::boolean, {states.rows(), states.columns()});
  for (std::int64_t i = 0; i < states.rows(); ++i) {
    const auto row = states.states(i);
    const auto is_visited = [](std::uint8_t state) { return state != 0; };
    const auto first = std::find_if(row.begin(), row.end(), is_visited);
    const auto last = std::find_if(row.rbegin(), row.rend(), is_visited).base();  // after it
    for (auto at = first; at < last; ++at) {
      if (!is_visited(*at)) continue;
      const std::int64_t column = states.run(i).begin + (at - row.begin());
      VisitedTile visited{*at == static_cast<std::uint8_t>(mask::BlockState::full), at == first,
                          at + 1 == last, false};
      bool attends = true;
      if (visited.is_first)
        of.read(i * tile.q, i * tile.q + 1, column * tile.kv, column * tile.kv + 1, &attends);
      visited.is_cut_at_first = !attends;
      all.elements<bool>()[static_cast<std::size_t>(i * states.columns() + column)] = fault.has(visited);
    }
  }
  return all;
}

void add_sparse_tile_masks(const Mask& of, BlockShape tile, std::vector<mask::NearbyMask>& all) {
  constexpr double kMostTiles = 0x1p20;
  const std::int64_t queries = of.q_length(), keys = of.kv_length();
  const double tiles = std::ceil(static_cast<double>(queries) / static_cast<double>(tile.q)) *
                       std::ceil(static_cast<double>(keys) / static_cast<double>(tile.kv));
  if (tiles < 2 || tiles > kMostTiles) return;
  const auto states = blocks::scan_mask(of, tile, nullptr).summary.states;
  for (const TileFault& fault : kTileFaults) {
    Array marked = tiles_with(fault, of, tile, *states);
    const auto flags = marked.elements<bool>();
    if (std::none_of(flags.begin(), flags.end(), [](bool flag) { return flag; })) continue;
    const Mask changed = blocks_mask(make_source(std::move(marked), "tiles"), tile, queries, keys);
    all.push_back({fmt::format("{} of {} {}", fault.subject, to_string(tile), fault.text),
                   fault.is_whole ? of | changed : of & ~changed});
  }
}

// Boundaries of the documents of a mask, as cu_seqlens; nothing for other masks, and for more than kMostPairs
// pairs.
struct Documents {
  std::vector<std::int64_t> begins;
  bool is_causal = false;
};
std::optional<Documents> documents_of(const Mask& of) {
  constexpr std::int64_t kMostPairs = std::int64_t{1} << 26;
  const std::int64_t tokens = of.q_length();
  if (tokens != of.kv_length() || tokens < 4 || tokens * tokens > kMostPairs) return std::nullopt;
  std::vector<std::int64_t> begin(static_cast<std::size_t>(tokens)), end(begin);
  const auto row = std::make_unique<bool[]>(static_cast<std::size_t>(tokens));
  Documents documents;
  for (std::int64_t i = 0; i < tokens; ++i) {
    of.read(i, i + 1, 0, tokens, row.get());
    const bool *const first = row.get(), *const last = first + tokens;
    const bool* const from = std::find(first, last, true);
    const bool* const to = std::find(from, last, false);
    if (from == last || std::find(to, last, true) != last) return std::nullopt;
    const auto at = static_cast<std::size_t>(i);
    begin[at] = from - first, end[at] = to - first;
    if (i == 0 || begin[at] != begin[at - 1]) {
      if (begin[at] != i) return std::nullopt;
      documents.begins.push_back(i);
    }
  }
  documents.begins.push_back(tokens);
  documents.is_causal = end[0] == 1;
  for (std::size_t d = 0; d + 1 < documents.begins.size(); ++d)
    for (std::int64_t i = documents.begins[d]; i < documents.begins[d + 1]; ++i)
      if (end[static_cast<std::size_t>(i)] != (documents.is_causal ? i + 1 : documents.begins[d + 1]))
        return std::nullopt;
  return documents;
}

// Boundaries of documents that are one token off, one or all, and joined documents: add(text, cu_seqlens).
// OpenEvaByte/evabyte#10, Tencent-Hunyuan/HunyuanVideo#310, modelscope/ms-swift#9904
void for_each_moved_boundary(const std::vector<std::int64_t>& all,
                             const std::function<void(std::string, std::vector<std::int64_t>)>& add) {
  constexpr std::size_t kMost = 64;        // boundaries that are moved or removed one at a time
  std::vector<std::int64_t> begins = all;  // empty documents have none of their own
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  if (begins.size() < 3) return;
  const std::size_t boundaries = begins.size() - 2;
  const auto add_sorted = [&](std::string text, std::vector<std::int64_t> cu) {
    if (std::is_sorted(cu.begin(), cu.end())) add(std::move(text), std::move(cu));
  };
  for (const std::int64_t by : {1, -1}) {
    const char* const when = by > 0 ? "late" : "early";
    std::vector<std::int64_t> cu = begins;
    for (std::size_t b = 1; b <= boundaries; ++b) cu[b] += by;
    if (boundaries > 1) add_sorted(fmt::format("documents begin one token {}", when), cu);
    for (std::size_t b = 1; b <= std::min(boundaries, kMost); ++b) {
      cu = begins;
      cu[b] += by;
      add_sorted(fmt::format("the boundary of documents at token {} is one token {}", begins[b], when), cu);
    }
  }
  for (std::size_t b = 1; b <= std::min(boundaries, kMost); ++b) {
    std::vector<std::int64_t> cu = begins;
    cu.erase(cu.begin() + static_cast<std::ptrdiff_t>(b));
    add_sorted(fmt::format("the documents that meet at token {} are one", begins[b]), std::move(cu));
  }
}

void add_document_masks(const Mask& of, std::vector<mask::NearbyMask>& all) {
  const std::optional<Documents> documents = documents_of(of);
  if (!documents) return;
  for_each_moved_boundary(documents->begins, [&](std::string text, std::vector<std::int64_t> cu) {
    const Mask apart = documents_mask(IntegerArray(std::move(cu)));
    all.push_back(
        {std::move(text), documents->is_causal ? apart & causal_mask(of.q_length(), of.kv_length()) : apart});
  });
}

// Masks that may be mistaken for those of a problem, built at first use. A term that is left out:
// huggingface/transformers#41966; edges: kekzl/imp#1304; windows: vllm-project/vllm#31406,
// huggingface/transformers#39408; the other alignment: microsoft/onnxruntime#28958.
class NearbyMasks {
 public:
  explicit NearbyMasks(const MaskPlan& blocks) : blocks_(blocks) {}

  /// The mask of that text, or the problem's own where it has none; null: all pairs attend.
  const Mask* find(const Problem& p, const std::string& text) {
    const MaskTiles* tiles = blocks_.of(p);
    if (p.q_length == 0 || p.kv_length == 0) return nullptr;
    const std::scoped_lock lock(mutex_);
    for (const mask::NearbyMask& other : nearby(p, tiles))
      if (other.text == text) return &other.mask;
    return tiles ? &*tiles->mask : nullptr;
  }

  /// It results from a faulty loop over tiles of keys.
  bool is_of_loop(const std::string& text) const { return of_loops_.contains(text); }

  std::vector<std::string> texts(const CheckedArguments& setup) {
    constexpr std::int64_t kMost = 64;
    std::vector<std::string> all;
    for (std::int64_t n = 0; n < std::min(kMost, setup.problems()); ++n) {
      const std::int64_t at = setup.problems() <= kMost ? n : n * (setup.problems() / kMost);
      const Problem p = setup.problem(at / setup.shape.heads, at % setup.shape.heads);
      if (p.q_length == 0 || p.kv_length == 0) continue;
      for (const mask::NearbyMask& other : nearby(p, blocks_.of(p)))
        if (std::find(all.begin(), all.end(), other.text) == all.end()) all.push_back(other.text);
    }
    return all;
  }

 private:
  const std::vector<mask::NearbyMask>& nearby(const Problem& p, const MaskTiles* tiles) {
    auto& known = tiles ? of_mask_[&tiles->mask->node()] : of_lengths_[{p.q_length, p.kv_length}];
    if (!known.empty()) return known;
    if (tiles) {
      known = mask::nearby_masks(*tiles->mask);
      add_loops(tiles->mask, p, known);
      return known;
    }
    // huggingface/transformers#41966
    known.push_back({"a causal mask is applied, and there is none", causal_mask(p.q_length, p.kv_length)});
    if (p.q_length != p.kv_length)
      known.push_back({"a causal mask is applied at the bottom right, and there is none",
                       causal_mask(p.q_length, p.kv_length, p.kv_length - p.q_length)});
    for (mask::NearbyMask& other : mask::masks_without_keys(full_mask(p.q_length, p.kv_length)))
      known.push_back(std::move(other));
    add_loops(std::nullopt, p, known);
    return known;
  }

  void add_loops(const std::optional<Mask>& mask, const Problem& p, std::vector<mask::NearbyMask>& known) {
    const std::size_t before = known.size();
    add_tile_masks(mask, p.q_length, p.kv_length, known);
    if (mask) {
      add_document_masks(*mask, known);
      for (const std::int64_t tile : kTileSizes) add_sparse_tile_masks(*mask, {tile, tile}, known);
      const BlockShape own = mask->node().stored_block().value_or(blocks_.work().block);
      if (own.q != own.kv) add_sparse_tile_masks(*mask, own, known);
    }
    for (std::size_t n = before; n < known.size(); ++n) of_loops_.insert(known[n].text);
  }

  const MaskPlan& blocks_;
  std::mutex mutex_;
  std::map<const MaskNode*, std::vector<mask::NearbyMask>> of_mask_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<mask::NearbyMask>> of_lengths_;
  std::set<std::string> of_loops_;
};

template <class T>
std::function<void(Variation&)> set(T Variation::*member, T value) {
  return [=](Variation& v) { v.*member = value; };
}

using ChangeList = std::vector<Change>;

// Faults that multiply a number; a factor of 1 is none.
void add_factors(ChangeList& list, const char* kind, double Variation::*member,
                 std::initializer_list<std::pair<double, const char*>> factors) {
  for (const auto& [factor, text] : factors)
    if (std::abs(factor - 1) >= 1e-9 && std::isfinite(factor))
      list.push_back({kind, text, set(member, factor)});
}

void add_scales(const CheckedArguments& setup, ChangeList& list) {
  const double s = setup.scale, d = static_cast<double>(setup.shape.head_size),
               dv = static_cast<double>(setup.shape.value_size);
  add_factors(
      list, "scale", &Variation::scale,
      {{1 / s, "the scale is left out"},   // ROCm/composable_kernel#526, kekzl/imp#1304
       {s, "the scale is applied twice"},  // flagos-ai/FlagGems#424
       {1 / std::sqrt(d) / s, "the scale is 1/sqrt(D)"},
       {1 / d / s, "the scale is 1/D"},
       {std::sqrt(d) / s, "the scale is sqrt(D)"},
       {dv != d ? 1 / std::sqrt(dv) / s : 1, "the scale is 1/sqrt(Dv), of the values"},
       {dv < d ? 1 / std::sqrt(128 + d - dv) / s : 1,  // of latent attention: 128 and the rotated columns
        "the scale is 1/sqrt(128 + D - Dv), that of heads before they are absorbed"},
       {kLn2, "powers of 2 are taken of scores that are meant for powers of e"},  // flagos-ai/FlagGems#424
       {1 / kLn2,
        "scores are multiplied by log2(e), and powers of e are taken"},  // hao-ai-lab/FastVideo#1730
       {-1, "scores have the wrong sign"}});
}

void add_masks(const Plan& plan, const CheckedArguments& setup, ChangeList& list) {
  const auto nearby = std::make_shared<NearbyMasks>(plan.blocks());
  for (const std::string& text : nearby->texts(setup))
    list.push_back({"mask", text,
                    [nearby, text](Variation& v) {
                      v.mask = [nearby, text](const Problem& p) { return nearby->find(p, text); };
                    },
                    false, nearby->is_of_loop(text)});
  // Packed sequences are documents of one.
  const ProblemMasks one = setup.shape.entries > 1 ? masks_of_one_sequence(plan, setup) : nullptr;
  if (one && setup.q_offsets == setup.kv_offsets)
    for_each_moved_boundary(setup.q_offsets, [&](std::string text, const std::vector<std::int64_t>& cu) {
      std::vector<std::optional<Mask>> moved;
      for (const std::optional<Mask>& mask : *one) {
        const Mask documents = documents_mask(IntegerArray(std::vector(cu)));
        moved.emplace_back(mask ? *mask & documents : documents);
      }
      list.push_back(
          {"mask", std::move(text),
           in_one_sequence(std::make_shared<const std::vector<std::optional<Mask>>>(std::move(moved))), false,
           true});
    });
  // keras-team/keras#23038, facebookresearch/xformers#103
  if (one) list.push_back({"sequences", "packed sequences attend to each other", in_one_sequence(one)});
  // onnx/onnx#7274, HazyResearch/HipKittens#22, apple/axlearn#842
  if (setup.group() > 1 && setup.shape.kv_heads > 1)
    list.push_back({"heads", "query head h uses key/value head h mod G, not h / (H/G)",
                    set(&Variation::interleaved, true)});
}

void add_alibi(const CheckedArguments& setup, ChangeList& list) {
  if (setup.slopes.empty()) return;
  add_factors(list, "alibi", &Variation::alibi,
              {{0, "ALiBi is left out"},
               {-1, "ALiBi has the wrong sign"},
               {setup.scale, "ALiBi is multiplied by the scale"},
               {1 / setup.scale, "ALiBi is divided by the scale"},
               {1 / kLn2, "ALiBi is multiplied by log2(e)"},
               {kLn2, "ALiBi is not multiplied by log2(e), as the scores are"}});
  const bool is_signed = setup.alibi_form == AlibiForm::signed_distance;
  const auto other = is_signed ? AlibiForm::absolute : AlibiForm::signed_distance;
  list.push_back({"alibi",
                  is_signed ? "ALiBi is -|i + K - Q - j|, not j - i" : "ALiBi is j - i, not -|i + K - Q - j|",
                  set(&Variation::alibi_form, std::optional(other))});
  if (!is_signed)
    list.push_back({"alibi", "ALiBi is -|i - j|: queries are aligned at the top left",
                    set(&Variation::alibi_is_shifted, false)});
}

void add_caps_and_biases(const CheckedArguments& setup, ChangeList& list) {
  using Cap = Variation::Cap;
  const auto cap = [&](Cap how, const char* text) {
    list.push_back({"softcap", text, set(&Variation::cap, how)});
  };
  if (setup.softcap > 0) {
    cap(Cap::none, "the soft cap is left out");  // sgl-project/sglang#33915, sgl-project/sgl-kernel-xpu#491
    list.push_back({"softcap", "the soft cap is applied to scores that are multiplied by log2(e)",
                    [](Variation& v) { v.scale = 1 / kLn2, v.capped = kLn2; }});
    list.push_back({"softcap", "powers of 2 are taken of capped scores that are meant for powers of e",
                    set(&Variation::capped, kLn2)});
    const bool is_after = setup.softcap_order == SoftcapOrder::after_bias, has_bias = setup.bias.has_value();
    if (has_bias || !setup.slopes.empty())
      cap(is_after ? Cap::before_bias : Cap::after_bias,
          is_after ? (has_bias ? "the soft cap comes before the bias" : "the soft cap comes before ALiBi")
                   : (has_bias ? "the soft cap comes after the bias" : "the soft cap comes after ALiBi"));
  }
  if (setup.bias)
    add_factors(list, "bias", &Variation::bias,
                {{0, "the bias is left out"},
                 {-1, "the bias is subtracted"},
                 {2, "the bias is added twice"},
                 {setup.scale, "the bias is multiplied by the scale"},
                 {1 / setup.scale, "the bias is divided by the scale"},
                 {1 / kLn2, "the bias is multiplied by log2(e)"},
                 {kLn2, "the bias is not multiplied by log2(e), as the scores are"}});
  add_alibi(setup, list);
  if (setup.has_sinks()) {  // sgl-project/sglang-jax#905, ROCm/rocm-libraries#12227
    add_factors(list, "sinks", &Variation::sinks,
                {{0, "the sinks are left out"},
                 {2, "the sinks are counted twice"},
                 {4, "the sinks are counted 4 times, as in 4 parts of the keys"},
                 {8, "the sinks are counted 8 times, as in 8 parts of the keys"},
                 {16, "the sinks are counted 16 times, as in 16 parts of the keys"},
                 {32, "the sinks are counted 32 times, as in 32 parts of the keys"}});
    add_factors(list, "sinks", &Variation::sink_scale,
                {{setup.scale, "the sinks are multiplied by the scale"},
                 {kLn2, "powers of 2 are taken of sinks that are meant for powers of e"},
                 {1 / kLn2, "sinks are multiplied by log2(e), and powers of e are taken"}});
  }
  using NoKey = Variation::NoKey;  // pytorch/pytorch#109517
  list.push_back({"no_key", "queries without a key are NaN", set(&Variation::no_key, NoKey::nan)});
  list.push_back(setup.ends.mean
                     ? Change{"no_key", "queries without a key are 0", set(&Variation::no_key, NoKey::zero)}
                     : Change{"no_key", "queries without a key get the mean of all values",
                              set(&Variation::no_key, NoKey::mean)});
}

// triton-lang/triton#1671, evintunador/triton_docs_tutorials#6
void add_roundings(const CheckedArguments& setup, ChangeList& list) {
  const auto is_wider = [&](const verify::Rounding& to) {
    for (const DType type : {setup.q.dtype, setup.k.dtype, setup.v.dtype})
      if (verify::float_type(type).fraction_bits > to.bits) return true;
    return false;
  };
  const auto add = [&](const char* what, const verify::Rounding& to, std::function<void(Variation&)> apply) {
    list.push_back({"rounding", fmt::format("{} are rounded to {}", what, to.name), std::move(apply)});
  };
  // lucidrains/memory-efficient-attention-pytorch#9, meta-pytorch/attention-gym#131
  if (setup.q.dtype == DType::bfloat16 || setup.q.dtype == DType::float16) {
    const bool is_bfloat16 = setup.q.dtype == DType::bfloat16;
    const verify::Rounding to{is_bfloat16 ? 7 : 10, false, is_bfloat16 ? "bfloat16" : "float16"};
    add("the scores", to, set(&Variation::scores, to));
    list.back().kind = "scores";
  }
  for (const verify::Rounding& to : verify::kRoundings)
    if (is_wider(to)) add("the inputs", to, set(&Variation::inputs, to));
  for (const verify::Rounding& to : verify::kRoundings) {
    add("the weights", to, set(&Variation::weights, to));
    if (is_wider(to))
      add("the inputs and the weights", to, [to](Variation& v) { v.inputs = v.weights = to; });
  }
}

// Kernels that sum unrounded weights, and round them for the product: in e4m3's range, or times 256.
// flashinfer-ai/flashinfer#5020, ROCm/aiter#5642
void add_float8_weights(const CheckedArguments& setup, ChangeList& list) {
  for (const verify::Rounding& to : verify::kFloat8Roundings) {
    const std::string text = fmt::format("the weights are rounded to {}", to.name);
    const auto add = [&](std::string what, std::int64_t tile) {
      Change change{"rounding", std::move(what), [to, tile](Variation& v) { v.weights = to, v.tile = tile; }};
      change.is_of_out = change.is_coarse = true;
      list.push_back(std::move(change));
    };
    add(text, 0);
    for (const std::int64_t tile : kTileSizes)
      if (tile < setup.longest_keys()) add(fmt::format("{} in tiles of {} keys", text, tile), tile);
  }
}

// Masked pairs that take part: by a score, which a product with the mask makes 0
// (georg-wolflein/good-features#1), a fill of -1e-9 nearly (awslabs/gluonts#1401), and a soft cap after the mask
// -cap (Dao-AILab/flash-attention#1025), or in the sum of a softmax before the mask
// (huggingface/pytorch-image-models#2236, lucidrains/memory-compressed-attention#2).
void add_masked_pairs(const Plan& plan, const CheckedArguments& setup, ChangeList& list) {
  if (!plan.blocks().has_masks()) return;
  std::vector<double> scores{0, -10};
  if (setup.softcap > 0) scores.push_back(-setup.softcap);
  for (const double score : scores)
    list.push_back({"mask", fmt::format("masked pairs have a score of {}, not -inf", score),
                    set(&Variation::masked_score, std::optional(score))});
  list.push_back({"mask", "the mask comes after the softmax", set(&Variation::masks_weights, true)});
}

void add_forward(const CheckedArguments& setup, ChangeList& list) {
  const auto add = [&](const char* kind, std::string text, std::function<void(Variation&)> apply,
                       bool of_out = false) {
    list.push_back({kind, std::move(text), std::move(apply), of_out});
  };
  // SKaiNET-developers/SKaiNET#860, huggingface/transformers#48818
  add("uniform", "all weights are equal", set(&Variation::scale, 0.0));
  // flashinfer-ai/flashinfer#3800
  if (setup.shape.entries > 1 && setup.layout != AttentionLayout::bhsd)
    add("operands", "queries of entry b begin at token b of all, not after those of the entries before it",
        set(&Variation::is_token_step, true));
  // vllm-project/flash-attention#176
  if (setup.packed() && setup.shape.entries > 1) {
    for (const std::int64_t by : {1, -1})
      add("operands",
          fmt::format("keys and values are those of the sequence {}", by < 0 ? "before" : "after"),
          set(&Variation::entry_step, by));
    add("operands", "keys and values are those of the first sequence",
        [](Variation& v) { v.key_entry = v.value_entry = 0; });
  }
  if (setup.shape.kv_heads > 1)  // BobMcDear/attorch#14
    add("heads", "all query heads use key/value head 0", [](Variation& v) { v.key_head = v.value_head = 0; });
  using Loop = Variation::Loop;
  const auto loop = [&](Loop how, std::int64_t tile, std::string text, bool of_out) {
    add(
        "tile", std::move(text), [how, tile](Variation& v) { v.loop = how, v.tile = tile; }, of_out);
  };
  const std::int64_t keys = setup.longest_keys();
  for (const std::int64_t parts : kParts) {
    const std::int64_t part = (keys + parts - 1) / parts;
    if (part < 2) break;
    // sgl-project/sglang#40903, vllm-project/vllm#52796
    loop(Loop::parts_by_lse_base_2, part,
         fmt::format("{} parts of the keys are joined with an lse to base 2 that is taken for base e", parts),
         false);
    loop(Loop::parts_by_mean, part, fmt::format("of {} parts of the keys the mean is taken", parts), true);
  }
  if (setup.longest_keys() > setup.longest_queries()) {
    const auto split = [&](Loop how, const char* text, bool of_out) {
      add(
          "tile", text, [how](Variation& v) { v.loop = how, v.is_split_at_query = true; }, of_out);
    };
    split(
        Loop::parts_by_lse_base_2,
        "keys before the first query and the others are joined with an lse to base 2 that is taken for base e",
        false);
    split(Loop::parts_by_mean, "of the keys before the first query and the others the mean is taken", true);
  }
  for (const std::int64_t tile : kTileSizes) {
    if (tile >= keys) break;
    const std::string of = fmt::format("tiles of {} keys", tile);  // paiml/aprender#2753
    loop(Loop::no_rescaling, tile, "without rescaling at a new maximum, in " + of, false);
    loop(Loop::no_rescaling_of_sum, tile, "the sum is not rescaled at a new maximum, in " + of, false);
    loop(Loop::no_rescaling_of_out, tile, "the accumulator is not rescaled at a new maximum, in " + of, true);
  }
}

void add_gradients(const CheckedArguments& setup, ChangeList& list) {
  add_factors(list, "scale", &Variation::scale_of_gradient,
              {{1 / setup.scale, "the gradient is not multiplied by the scale"},
               {setup.scale, "the gradient is multiplied by the scale twice"},
               {kLn2, "the gradient is multiplied by ln 2"},
               {1 / kLn2, "the gradient is divided by ln 2"}});
  add_factors(list, "delta", &Variation::delta,
              {{0, "delta = rowsum(dout out) is left out"},
               {-1, "delta is added, not subtracted"},
               {2, "delta is subtracted twice"}});
  // NVIDIA/TransformerEngine#3216, Dao-AILab/flash-attention#2552
  if (!setup.packed() && setup.shape.entries > 1)
    list.push_back(
        {"delta", "delta is that of batch entry 0", set(&Variation::delta_entry, std::int64_t{0})});
  add_factors(list, "lse_base", &Variation::lse,
              {{kLn2, "lse is a logarithm to base e, and is taken for one to base 2"},
               {1 / kLn2, "lse is a logarithm to base 2, and is taken for one to base e"}});
  if (setup.softcap > 0)
    list.push_back({"softcap", "the derivative of the soft cap is left out", set(&Variation::slope, false)});
  using Heads =
      Variation::Heads;  // marin-community/levanter#449, XunhaoLai/native-sparse-attention-triton#27
  if (setup.group() > 1)
    for (const auto& [how, text] :
         {std::pair{Heads::first, "only the first query head of each key head is counted, not their sum"},
          std::pair{Heads::last, "only the last query head of each key head is counted, not their sum"},
          std::pair{Heads::mean, "it is the mean over the query heads of a key head, not their sum"},
          std::pair{Heads::interleaved, "query head h is added to key head h mod G, not h / (H/G)"}})
      list.push_back({"heads", text, set(&Variation::heads, how)});
}

}  // namespace

std::function<void(Variation&)> with_masks(ProblemMasks masks,
                                           std::function<std::size_t(const Problem&)> index) {
  return [masks = std::move(masks), index = std::move(index)](Variation& v) {
    v.mask = [masks, index](const Problem& p) -> const Mask* {
      const std::optional<Mask>& mask = (*masks)[index(p)];
      return mask ? &*mask : nullptr;
    };
  };
}

std::function<void(Variation&)> in_one_sequence(ProblemMasks of_heads) {
  return [set = with_masks(std::move(of_heads),
                           [](const Problem& p) { return static_cast<std::size_t>(p.head); })](Variation& v) {
    v.one_sequence = true;
    set(v);
  };
}

ProblemMasks masks_of_one_sequence(const Plan& plan, const CheckedArguments& s) {
  if (!s.packed() || s.shape.entries == 0 || s.has_padding()) return nullptr;
  const AttentionSettings& settings = plan.settings;
  const std::int64_t q = s.q_offsets.back(), kv = s.kv_offsets.back();
  std::vector<std::optional<Mask>> masks(static_cast<std::size_t>(s.shape.heads));
  const auto join = [&](std::size_t head, const Mask& more) {
    masks[head] = masks[head] ? *masks[head] & more : more;
  };
  try {
    for (const HeadMasks& part : settings.masks) {
      if (part.batch != 1) return nullptr;
      for (std::size_t head = 0; head < masks.size(); ++head)
        join(head, part.mask(0, part.heads == 1 ? 0 : static_cast<std::int64_t>(head), q, kv));
    }
    if (settings.q_segment_ids) {
      const Mask segments =
          segments_mask(*settings.q_segment_ids,
                        *(settings.kv_segment_ids ? settings.kv_segment_ids : settings.q_segment_ids));
      for (std::size_t head = 0; head < masks.size(); ++head) join(head, segments);
    }
  } catch (const Error&) {  // of other lengths
    return nullptr;
  }
  return std::make_shared<const std::vector<std::optional<Mask>>>(std::move(masks));
}

Changes::Changes(const Plan& plan, const CheckedArguments& setup) {
  add_scales(setup, of_scores);
  add_masks(plan, setup, of_scores);
  add_caps_and_biases(setup, of_scores);
  add_roundings(setup, of_scores);
  add_forward(setup, of_forward);
  add_masked_pairs(plan, setup, of_forward);
  add_float8_weights(setup, of_forward);
  add_gradients(setup, of_gradients);
}

}  // namespace ejk::attn
