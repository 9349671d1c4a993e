// How an attention kernel with each fault of the catalogue computes. Masks are changed operand by operand of & and |:
// an edge is that of causal, local or chunked. Cost: the masks of the faults, read with their rows.
// tests: tests/verdict/audit/test_attention.cpp
#include "verdict/audit/attention_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>

#include "mask/node.hpp"
#include "verdict/attention/variations.hpp"

namespace ejk::audits {

namespace {

using attn::CheckedArguments;
using attn::Problem;
using attn::Variation;
using mask::Pattern;
using verify::kTf32;

struct Tile {
  std::int64_t q, k;
};
constexpr Tile kLoopTiles[] = {{64, 32}, {128, 64}};
constexpr std::int64_t kKeyTiles[] = {64, 128};

// Query i sees the keys before ends[i].
Mask keys_before(std::vector<std::int64_t> ends, std::int64_t keys) {
  for (std::int64_t& end : ends) end = std::clamp<std::int64_t>(end, 0, keys);
  return positions_mask(causal_mask(keys + 1, keys, -1), IntegerArray(std::move(ends)));
}

template <class F>
Mask keys_before(const MaskNode& of, F&& end) {
  std::vector<std::int64_t> ends;
  for (std::int64_t i = 0; i < of.q_length(); ++i) ends.push_back(end(i));
  return keys_before(std::move(ends), of.kv_length());
}

// Queries and keys of the same chunk, without a causal edge.
Mask same_chunk(const MaskNode& of, const Pattern& p) {
  const auto chunks = [&](std::int64_t length, std::int64_t offset) {
    std::vector<std::int64_t> ids;
    for (std::int64_t n = 0; n < length; ++n) ids.push_back(n + offset < 0 ? 0 : (n + offset) / p.chunk + 1);
    return IntegerArray(std::move(ids));
  };
  return segments_mask(chunks(of.q_length(), p.offset), chunks(of.kv_length(), 0));
}

// The mask of a pattern.
Mask mask_of(const MaskNode& of, const Pattern& p) {
  if (p.chunk == 0) return local_mask(of.q_length(), of.kv_length(), p.left, p.right, p.offset);
  const Mask chunk = same_chunk(of, p);
  return p.right ? chunk & local_mask(of.q_length(), of.kv_length(), std::nullopt, p.right, p.offset) : chunk;
}

std::int64_t ceil_to(std::int64_t value, std::int64_t step) {
  return value <= 0 ? 0 : (value + step - 1) / step * step;
}

// Boundaries of documents of a fault; nothing where these stay.
using Begins = std::vector<std::int64_t>;
using MoveBegins = std::function<std::optional<Begins>(const Begins&)>;

std::optional<Begins> shifted(Begins begins, std::int64_t by) {
  for (std::size_t b = 1; b + 1 < begins.size(); ++b)
    if (const std::int64_t moved = begins[b] + by; moved > 0 && moved < begins.back()) begins[b] = moved;
  return begins;
}

std::optional<Begins> first_only(const Begins& begins) {
  if (begins.size() < 3) return begins;
  return Begins{0, begins[1], begins.back()};
}

std::optional<Begins> without_single(const Begins& begins) {
  Begins joined{begins[0]};
  for (std::size_t b = 1; b < begins.size(); ++b)
    if (b + 1 == begins.size() || begins[b] - begins[b - 1] != 1) joined.push_back(begins[b]);
  return joined;
}

class Forward {
 public:
  Forward(const attn::Plan& plan, const CheckedArguments& setup, bool aligns_bottom_right)
      : plan_(plan),
        setup_(setup),
        blocks_(plan.blocks()),
        one_(attn::masks_of_one_sequence(plan, setup)),
        aligns_bottom_right_(aligns_bottom_right) {}

  AttentionFaults all() {
    of_results();
    of_scale();
    of_terms();
    of_edges();
    of_windows();
    of_documents();
    of_keys();
    of_heads();
    of_caps_and_sinks();
    return std::move(made_);
  }

 private:
  using Set = std::function<void(Variation&)>;

  Variant& add(std::string_view name, std::string parameter, const Set& apply, std::string remedy = {}) {
    const Fault* const fault = find_fault(name);
    Variant& made = made_.variants.emplace_back();
    made.fault = fault;
    made.parameter = std::move(parameter);
    made.text = fault->text;
    made.remedy = std::move(remedy);
    if (apply) apply(made.variation);
    return made;
  }
  void leave(std::string_view name, std::string why) {
    made_.not_tried.push_back({find_fault(name), std::move(why)});
  }

  bool has_mask() const { return blocks_.has_masks() || setup_.packed(); }
  std::int64_t queries() const { return setup_.longest_queries(); }
  std::int64_t keys() const { return setup_.longest_keys(); }

  // Distinct masks with changed operands: a setting of Variation, or nothing where no operand changes.
  Set with(const MaskNode::Change& change) const {
    std::vector<std::optional<Mask>> masks;
    bool any = false;
    for (const attn::MaskTiles& tiles : blocks_.distinct()) {
      const std::optional<Mask> changed = tiles.mask ? tiles.mask->node().with(change) : std::nullopt;
      any = any || changed;
      masks.push_back(changed ? changed : tiles.mask);
    }
    if (!any) return nullptr;
    return attn::with_masks(shared(std::move(masks)), [blocks = &blocks_](const Problem& p) {
      return static_cast<std::size_t>(blocks->index_of(p.entry, p.head));
    });
  }
  static attn::ProblemMasks shared(std::vector<std::optional<Mask>> masks) {
    return std::make_shared<const std::vector<std::optional<Mask>>>(std::move(masks));
  }
  Set with_patterns(const std::function<std::optional<Mask>(const MaskNode&, const Pattern&)>& change) const {
    return with([&](const MaskNode& of) -> std::optional<Mask> {
      const std::optional<Pattern> p = of.pattern();
      return p ? change(of, *p) : std::nullopt;
    });
  }

  // The first operand that is a pattern for which `wanted` holds: its text and itself.
  struct Found {
    std::string text;
    Pattern pattern;
  };
  std::optional<Found> find(const std::function<bool(const Pattern&)>& wanted) const {
    std::optional<Found> found;
    for (const attn::MaskTiles& tiles : blocks_.distinct())
      if (tiles.mask)
        tiles.mask->node().with([&](const MaskNode& of) -> std::optional<Mask> {
          const std::optional<Pattern> p = of.pattern();
          if (p && wanted(*p) && !found) found = Found{of.text(), *p};
          return std::nullopt;
        });
    return found;
  }

  void of_results() {
    add("zeros", "", nullptr).zeros = Variant::Zeros::all;
    add(
        "mean-of-values", "", [](Variation& v) { v.scale = 0; }, keys() < 2 ? "two keys or more" : "");
    if (queries() > kWrittenTile)
      add("tail-unwritten", std::to_string(kWrittenTile), nullptr).zeros = Variant::Zeros::tail;
    else
      leave("tail-unwritten", fmt::format("there is one tile of {} queries", kWrittenTile));
    if (setup_.shape.arithmetic == DType::float32 && setup_.q.dtype == DType::float32)
      add(
          "inputs-tf32", "", [](Variation& v) { v.inputs = v.weights = kTf32; },
          "the inputs are TF32 already: random ones");
    else
      leave("inputs-tf32", "the inputs are not float32");
    if (plan_.blocks().work().rows_without_key > 0)
      add("empty-rows-nan", "", [](Variation& v) { v.no_key = Variation::NoKey::nan; });
    else
      leave("empty-rows-nan", "each query has a key");
  }

  void of_scale() {
    const double s = setup_.scale;
    const auto times = [](double factor) { return [factor](Variation& v) { v.scale = factor; }; };
    if (s != 1) {
      add("scale-missing", "", times(1 / s));
      add("scale-twice", "", times(s));
    } else {
      leave("scale-missing", "the scale is 1");
      leave("scale-twice", "the scale is 1");
    }
    add("scale-log2e", "1.4427", times(std::numbers::log2e)).text =
        "scores are multiplied by log2(e), and powers of e are taken";
    add("scale-log2e", "0.6931", times(std::numbers::ln2)).text = "powers of 2 are taken for powers of e";
  }

  // The masks without a term, by entry and head.
  Set without_part(std::size_t part, std::optional<std::size_t> factor) const {
    AttentionSettings settings = plan_.settings;
    if (!factor) {
      settings.masks.erase(settings.masks.begin() + static_cast<std::ptrdiff_t>(part));
    } else {
      settings.masks[part].mask = [of = settings.masks[part].mask, n = *factor](auto... place) {
        std::vector<Mask> factors = of(place...).node().factors();
        factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(n));
        Mask all = factors[0];
        for (std::size_t f = 1; f < factors.size(); ++f) all = all & factors[f];
        return all;
      };
    }
    return with_set(settings);
  }
  Set with_set(const AttentionSettings& settings) const {
    const MaskSet set = attn::masks_of(setup_, settings);
    if (set.empty()) return [](Variation& v) { v.mask = [](const Problem&) { return nullptr; }; };
    const auto joined = std::make_shared<JoinedMasks>(set.join());
    const attn::ProblemMasks masks(joined, &joined->masks);
    return attn::with_masks(masks, [joined](const Problem& p) { return joined->index_of(p.entry, p.head); });
  }

  struct Term {
    std::string text;
    Set without;
    std::optional<Pattern> pattern = {};
    bool is_documents = false;
  };
  std::vector<Term> terms() const {
    std::vector<Term> all;
    Problem sample;
    for (std::int64_t e = 0; e < setup_.shape.entries && sample.q_length * sample.kv_length == 0; ++e)
      sample = setup_.problem(e, 0);
    if (sample.q_length * sample.kv_length == 0) return all;
    for (std::size_t part = 0; part < plan_.settings.masks.size(); ++part) {
      const HeadMasks& masks = plan_.settings.masks[part];
      const Mask of = masks.mask(masks.batch == 1 ? 0 : sample.entry, 0, sample.q_length, sample.kv_length);
      const std::vector<Mask> factors = of.node().factors();
      for (std::size_t f = 0; f < std::max<std::size_t>(factors.size(), 1); ++f) {
        const Mask& term = factors.empty() ? of : factors[f];
        all.push_back({masks.is_array ? "MASK" : term.text(),
                       without_part(part, factors.empty() ? std::nullopt : std::optional(f)),
                       term.node().pattern(), !term.node().documents().empty()});
      }
    }
    if (one_) all.push_back({"cu-seqlens", attn::in_one_sequence(one_), {}, true});
    if (plan_.settings.q_segment_ids) {
      AttentionSettings settings = plan_.settings;
      settings.q_segment_ids = settings.kv_segment_ids = nullptr;
      all.push_back({"segment-ids", with_set(settings)});
    }
    return all;
  }

  // The sizes at which a left side, or a chunk, excludes `beyond` − 1 keys of the last query.
  std::string size_for_left(const Pattern& p, std::int64_t beyond) const {
    const std::int64_t side = p.chunk > 0 ? p.chunk - 1 : *p.left;
    if (p.offset == keys() - queries()) return fmt::format("{} keys or more", side + beyond);
    return fmt::format("{} queries or more", side + beyond - p.offset);
  }
  // Those at which a right side excludes a key of the first query.
  std::string size_for_right(const Pattern& p) const {
    if (p.offset != 0 && p.offset == keys() - queries())
      return fmt::format("{} queries or more", *p.right + 2);
    return fmt::format("{} keys or more", *p.right + p.offset + 2);
  }
  std::string remedy_of(const Term& term) const {
    constexpr std::string_view kPrefix = "prefix(";
    const std::string idle = fmt::format("'{}' excludes nothing at {} keys: ", term.text, keys());
    if (term.is_documents) return idle + "two documents or more";
    if (term.text == "segment-ids") return idle + "two ids or more";
    if (term.pattern && (term.pattern->chunk > 0 || term.pattern->left))
      return idle + size_for_left(*term.pattern, 2);
    if (term.pattern && term.pattern->right) return idle + size_for_right(*term.pattern);
    if (term.text.starts_with(kPrefix))
      return fmt::format("{}{} keys or more", idle, std::stoll(term.text.substr(kPrefix.size())) + 1);
    return idle + "another mask";
  }

  void of_terms() {
    if (!has_mask()) {
      leave("mask-ignored", "there is no mask");
      leave("term-ignored", "there is no mask");
      return;
    }
    const std::vector<Term> all = terms();
    add(
        "mask-ignored", "",
        [joins = setup_.packed()](Variation& v) {
          v.one_sequence = joins;
          v.mask = [](const Problem&) { return nullptr; };
        },
        all.empty() ? "" : remedy_of(all[0]));
    const auto is_narrowed = [&](const Term& term) {  // a causal edge that another term has anyway
      const auto& p = term.pattern;
      if (!p || p->left || p->chunk > 0 || p->right != 0) return false;
      return std::any_of(all.begin(), all.end(), [&](const Term& other) {
        const auto& o = other.pattern;
        return &other != &term && o && (o->left || o->chunk > 0) && o->right == 0 && o->offset == p->offset;
      });
    };
    bool any = false;
    for (const Term& term : all) {
      if (all.size() < 2 || is_narrowed(term)) continue;
      add("term-ignored", term.text, term.without, remedy_of(term)).text =
          term.text == "MASK"          ? "MASK is left out"
          : term.text == "segment-ids" ? "the segment ids are left out"
          : term.text == "cu-seqlens"  ? "packed sequences attend to each other"
                                       : fmt::format("'{}' is left out", term.text);
      any = true;
    }
    if (!any) leave("term-ignored", "the mask has one term");
  }

  void of_edges() {
    const auto is_edge = [](const Pattern& p) { return p.right.has_value(); };
    const auto is_causal = [](const Pattern& p) { return p.right == 0; };
    if (const auto edge = find(is_edge); !edge) {
      leave("causal-late", "the mask has no right edge");
    } else {
      add("causal-late", "", with_patterns([](const MaskNode& of, Pattern p) -> std::optional<Mask> {
            if (!p.right) return std::nullopt;
            ++*p.right;
            return mask_of(of, p);
          }),
          fmt::format("no key is past the edge of '{}': {}", edge->text, size_for_right(edge->pattern)));
    }
    for (const Tile tile : kLoopTiles) {
      if (!find(is_causal)) break;
      const std::string parameter = fmt::format("{}x{}", tile.q, tile.k);
      const std::string remedy = fmt::format(
          "no tile of {} keys is after the first query of a tile: more than "
          "{} queries",
          tile.k, tile.k);
      add("causal-loop-short", parameter,
          with_patterns([tile](const MaskNode& of, const Pattern& p) -> std::optional<Mask> {
            if (p.right != 0) return std::nullopt;
            return mask_of(of, p) & keys_before(of, [&](std::int64_t i) {
                     return ceil_to(i / tile.q * tile.q + p.offset + 1, tile.k);
                   });
          }),
          remedy)
          .text += fmt::format(", in tiles of {}", parameter);
      add("causal-tile-unmasked", parameter,
          with_patterns([tile](const MaskNode& of, Pattern p) -> std::optional<Mask> {
            if (p.right != 0) return std::nullopt;
            const Mask own = mask_of(of, p);
            p.right.reset();
            const Mask unmasked = keys_before(of, [&](std::int64_t i) {
              const std::int64_t last = std::min(i / tile.q * tile.q + tile.q, of.q_length()) - 1 + p.offset;
              return std::clamp<std::int64_t>(last, 0, of.kv_length() - 1) / tile.k * tile.k;
            });
            return own | (mask_of(of, p) & unmasked);
          }),
          remedy)
          .text += fmt::format(", in tiles of {}", parameter);
    }
    if (!find(is_causal))
      for (const char* const name : {"causal-loop-short", "causal-tile-unmasked"})
        leave(name, "the mask has no causal edge");
    const auto is_bottom_right = [this](const Pattern& p) {
      return aligns_bottom_right_ || (p.offset != 0 && p.offset == keys() - queries());
    };
    if (!find(is_bottom_right)) {
      leave("align-top-left", "no term is aligned at the bottom right");
    } else {
      add("align-top-left", "", with_patterns([](const MaskNode& of, Pattern p) -> std::optional<Mask> {
            if (p.offset != of.kv_length() - of.q_length()) return std::nullopt;
            p.offset = 0;
            return mask_of(of, p);
          }),
          "as many queries as keys: fewer queries than keys");
    }
  }

  void of_windows() {
    const auto sides = [&](std::string_view name, const std::string& parameter, auto&& change,
                           const std::string& remedy) {
      add(name, parameter, with_patterns([change](const MaskNode& of, Pattern p) -> std::optional<Mask> {
            if (!change(p)) return std::nullopt;
            return mask_of(of, p);
          }),
          remedy);
    };
    const auto window = find([](const Pattern& p) { return p.left.has_value(); });
    const auto remedy = [&](std::int64_t more) {
      return fmt::format("'{}' excludes nothing at {} keys: {}", window->text, keys(),
                         size_for_left(window->pattern, more));
    };
    if (window)
      sides(
          "window-longer", "", [](Pattern& p) { return p.left && ++*p.left > 0; }, remedy(2));
    else
      leave("window-longer", "the mask has no window");
    if (window && *window->pattern.left > 0)
      sides(
          "window-shorter", "", [](Pattern& p) { return p.left && *p.left > 0 && --*p.left >= 0; },
          remedy(1));
    else
      leave("window-shorter", window ? "the window is its query" : "the mask has no window");
    const auto has_both = [](const Pattern& p) { return p.left.value_or(0) > 0 && p.right.value_or(0) > 0; };
    if (!find(has_both)) {
      leave("window-one-sided", "the mask has no window of two sides");
      return;
    }
    for (const bool left : {true, false}) {
      sides(
          "window-one-sided", left ? "left" : "right",
          [has_both, left](Pattern& p) {
            const bool both = has_both(p);
            if (both) (left ? p.right : p.left) = 0;
            return both;
          },
          "two keys or more");
      made_.variants.back().text =
          left ? "the window has its left side alone" : "the window has its right side alone";
    }
  }

  // A setting with moved boundaries; nothing without documents.
  Set moved(const MoveBegins& move) const {
    if (one_ && setup_.q_offsets == setup_.kv_offsets) {
      Begins begins = setup_.q_offsets;
      begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
      const Mask documents = documents_mask(IntegerArray(*move(begins)));
      std::vector<std::optional<Mask>> masks;
      for (const std::optional<Mask>& mask : *one_) masks.emplace_back(mask ? *mask & documents : documents);
      return attn::in_one_sequence(shared(std::move(masks)));
    }
    return with([&](const MaskNode& of) -> std::optional<Mask> {
      const Begins begins = of.documents();
      if (begins.empty()) return std::nullopt;
      return documents_mask(IntegerArray(*move(begins)));
    });
  }

  void of_documents() {
    const std::string one = "there is one document: two or more";
    if (!moved([](const Begins& b) { return b; })) {
      for (const char* const name : {"documents-shifted", "documents-first-only", "documents-single"})
        leave(name, setup_.packed() ? "the sequences have padding, other keys, or masks of their own"
                                    : "the mask has no documents");
      return;
    }
    for (const std::int64_t by : {1, -1})
      add("documents-shifted", by > 0 ? "+1" : "-1", moved([by](const Begins& b) { return shifted(b, by); }),
          one)
          .text = fmt::format("documents begin one token {}", by > 0 ? "late" : "early");
    add("documents-first-only", "", moved(first_only), "there are fewer than three documents: three or more");
    add("documents-single", "", moved(without_single),
        "no document has one token: cu_seqlens with a step of 1 before another document");
  }

  void of_keys() {
    for (const std::int64_t tile : kKeyTiles) {
      const std::string remedy = fmt::format("tiles of {} keys divide {}: {} keys", tile, keys(), keys() + 1);
      if (!has_mask() && setup_.shape.entries * keys() > 0)
        add(
            "padding-keys", std::to_string(tile),
            [zeros = (tile - keys() % tile) % tile](Variation& v) { v.zero_keys = zeros; }, remedy)
            .text += fmt::format(", in tiles of {}", tile);
      const std::int64_t whole = keys() / tile * tile;
      if (keys() >= tile)
        add_dropped_tail(tile, whole == keys()
                                   ? remedy
                                   : fmt::format("no query attends to keys from {} on: another mask", whole));
    }
    if (has_mask()) leave("padding-keys", "there is a mask");
    if (keys() < kKeyTiles[0])
      leave("tail-keys-dropped", fmt::format("there are fewer than {} keys", kKeyTiles[0]));
    if (setup_.has_sinks()) {
      leave("no-rescale", "there are sinks");
      leave("splits-lse-base", "there are sinks");
      return;
    }
    constexpr std::int64_t kTile = 64;
    add(
        "no-rescale", std::to_string(kTile),
        [](Variation& v) { v.loop = Variation::Loop::no_rescaling, v.tile = kTile; },
        keys() <= kTile ? fmt::format("there is one tile of {} keys: {} keys or more", kTile, kTile + 1)
                        : "");
    if (keys() > 1)
      add("splits-lse-base", "2",
          [](Variation& v) { v.loop = Variation::Loop::parts_by_lse_base_2, v.parts = 2; });
    else
      leave("splits-lse-base", "there is one key");
  }

  void add_dropped_tail(std::int64_t tile, std::string remedy) {
    std::vector<std::optional<Mask>> masks;
    for (std::int64_t e = 0; e < setup_.shape.entries; ++e)
      for (std::int64_t h = 0; h < setup_.shape.heads; ++h) {
        const Problem p = setup_.problem(e, h);
        const attn::MaskTiles* const tiles = blocks_.of(p);
        std::optional<Mask>& mask = masks.emplace_back();
        if (p.q_length == 0 || p.kv_length == 0) continue;
        const Mask own = tiles ? *tiles->mask : full_mask(p.q_length, p.kv_length);
        mask = p.kv_length < tile
                   ? own
                   : own & prefix_mask(p.q_length, p.kv_length, p.kv_length - p.kv_length % tile);
      }
    add("tail-keys-dropped", std::to_string(tile),
        attn::with_masks(shared(std::move(masks)),
                         [heads = setup_.shape.heads](const Problem& p) {
                           return static_cast<std::size_t>(p.entry * heads + p.head);
                         }),
        std::move(remedy))
        .text += fmt::format(", in tiles of {}", tile);
  }

  void of_heads() {
    const std::int64_t heads = setup_.shape.heads, kv_heads = setup_.shape.kv_heads;
    const std::string equal = "key heads are equal: different ones";
    if (kv_heads > 1 && kv_heads < heads)
      add(
          "head-mapping", "", [](Variation& v) { v.interleaved = true; }, equal);
    else
      leave("head-mapping", kv_heads > 1 ? "each query head has its own key head" : "there is one key head");
    if (kv_heads > 1)
      add(
          "kv-head-0", "", [](Variation& v) { v.key_head = v.value_head = 0; }, equal);
    else
      leave("kv-head-0", "there is one key head");
    if (!setup_.packed())
      add(
          "kv-batch-0", "", [](Variation& v) { v.key_entry = v.value_entry = 0; },
          setup_.shape.entries == 1 ? "the batch is 1: two entries" : "entries are equal: other ones");
    else
      leave("kv-batch-0", "the inputs are packed");
  }

  void of_caps_and_sinks() {
    using Cap = Variation::Cap;
    if (setup_.softcap > 0)
      add("softcap-ignored", "", [](Variation& v) { v.cap = Cap::none; });
    else
      leave("softcap-ignored", "there is no soft cap");
    if (setup_.softcap > 0 && has_mask() && blocks_.has_masks())
      add(
          "softcap-after-mask", "", [cap = setup_.softcap](Variation& v) { v.masked_score = -cap; },
          fmt::format("the mask excludes nothing at {} keys, or e^-{} is 0: a smaller soft cap", keys(),
                      setup_.softcap));
    else
      leave("softcap-after-mask", setup_.softcap > 0 ? "there is no mask" : "there is no soft cap");
    if (!setup_.has_sinks()) {
      for (const char* const name : {"sinks-ignored", "sinks-twice", "sinks-next-head"})
        leave(name, "there are no sinks");
      return;
    }
    const std::string small = "sinks are far below the scores: larger ones";
    add(
        "sinks-ignored", "", [](Variation& v) { v.sinks = 0; }, small);
    add(
        "sinks-twice", "", [](Variation& v) { v.sinks = 2; }, small);
    std::vector<double> next = setup_.ends.sinks;
    std::rotate(next.begin(), next.begin() + 1, next.end());
    add(
        "sinks-next-head", "", [next](Variation& v) { v.other_sinks = next; },
        "all heads have the same sink: different ones");
  }

  const attn::Plan& plan_;
  const CheckedArguments& setup_;
  const attn::MaskPlan& blocks_;
  const attn::ProblemMasks one_;
  const bool aligns_bottom_right_;
  AttentionFaults made_;
};

}  // namespace

AttentionFaults faults_of_forward(const attn::Plan& plan, const CheckedArguments& setup,
                                  bool aligns_bottom_right) {
  return Forward(plan, setup, aligns_bottom_right).all();
}

AttentionFaults faults_of_gradients(const CheckedArguments& setup) {
  AttentionFaults made;
  const auto add = [&](std::string_view name, std::string why, auto&& apply, std::string remedy) {
    const Fault* const fault = find_fault(name);
    if (!why.empty()) {
      made.not_tried.push_back({fault, std::move(why)});
      return;
    }
    Variant& variant = made.variants.emplace_back();
    variant.fault = fault, variant.text = fault->text, variant.remedy = std::move(remedy);
    apply(variant);
  };
  const bool is_narrow = size_of(setup.q.dtype) == 2;
  add(
      "zeros", "", [](Variant& v) { v.zeros = Variant::Zeros::all; }, "");
  add(
      "inputs-tf32", setup.q.dtype == DType::float32 ? "" : "the inputs are not float32",
      [](Variant& v) { v.variation.inputs = v.variation.weights = v.variation.ds = kTf32; }, "");
  add(
      "dkv-one-head", setup.group() > 1 ? "" : "each query head has its own key head",
      [](Variant& v) { v.variation.heads = Variation::Heads::last; }, "");
  add(
      "delta-batch-0", setup.packed() ? "the inputs are packed" : "",
      [](Variant& v) { v.variation.delta_entry = 0; }, "the batch is 1: two entries");
  add(
      "k-prescaled", is_narrow ? "" : "the inputs do not have 16 bits",
      [&](Variant& v) { v.variation.scaled_keys = verify::rounding_to(setup.q.dtype); }, "");
  return made;
}

}  // namespace ejk::audits
