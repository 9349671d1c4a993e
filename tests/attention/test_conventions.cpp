// Conventions of attention: sinks, ALiBi's slopes, forms of lse, rows without a key, largest scores.
#include "ejk/attention.hpp"

#include <set>
#include <utility>

#include "attention/row_end.hpp"
#include "ejk/against.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/io.hpp"
#include "ejk/merge_states.hpp"
#include "ejk/paged.hpp"
#include "support/attention_loops.hpp"
#include "support/failure.hpp"
#include "support/golden_attention.hpp"
#include "support/threads.hpp"

using namespace ejk;

TEST_CASE("slopes of ALiBi are powers of two, and of every second head of twice as many") {
  CHECK(alibi_slopes(8) == std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8});
  // As flashinfer's pos_enc.cuh has them.
  CHECK(alibi_slopes(6) == std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
  CHECK(alibi_slopes(1) == std::vector<double>{0x1p-8});
  CHECK(alibi_slopes(0).empty());
  CHECK(alibi_slopes(-3).empty());
}

TEST_CASE("a form of lse and its inverse") {
  for (const LibraryConventions& library : library_conventions()) {
    const attn::LseForm form(library.conventions);
    for (const double sink : {0.5, 40.0, attn::kNoSink})
      for (const double lse : {-3.0, 0.25, 30.0}) {
        const double all = attn::with_sink(lse, sink), given = form.given(form.has_sink ? all : lse);
        CHECK(form.natural(given, sink) == doctest::Approx(all));
      }
    if (form.has_sink && form.empty != 0) CHECK(form.natural(form.given(-plain::kInfinity), 1) < -1e300);
  }
  CHECK(attn::with_sink(-plain::kInfinity, 2) == 2);
  CHECK(attn::with_sink(-plain::kInfinity, attn::kNoSink) == -plain::kInfinity);
  CHECK(std::isnan(attn::with_sink(std::nan(""), 2)));
}

TEST_CASE("results in the conventions of each library are those of loops over all pairs") {
  plain::Random random(77);
  int empty = 0;
  for (int n = 0; n < 360; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    const LibraryConventions& library = library_conventions()[static_cast<std::size_t>(n) % 9];
    CAPTURE(library.name);
    const AttentionConventions drawn = r->options.conventions;
    r->options.conventions = library.conventions;
    r->options.conventions.softcap_order = drawn.softcap_order;
    r->options.conventions.alibi_form = drawn.alibi_form;
    plain::Expected expected = plain::by_loops(*r);
    const std::vector<double> sinks = std::exchange(r->sinks, {});
    plain::Expected of_keys = plain::by_loops(*r);
    r->sinks = sinks;
    plain::Heads v = plain::heads_of(r->v, r->options.layout);
    const std::int64_t group = v.shape[1] == 0 ? 1 : r->heads / v.shape[1];
    const auto& c = library.conventions;
    for (std::int64_t b = 0; b < r->batch; ++b)
      for (std::int64_t h = 0; h < r->heads; ++h)
        for (std::int64_t i = 0; i < r->q_length; ++i) {
          const bool without_key = of_keys.lse.at(b, h, i, 0) == -plain::kInfinity;
          double& lse = expected.lse.at(b, h, i, 0);
          if (c.lse_sink == LseSink::out) lse = of_keys.lse.at(b, h, i, 0);
          const bool is_empty = lse == -plain::kInfinity;
          if (c.lse_base == LseBase::two) lse /= std::log(2.0);
          if (is_empty && c.lse_empty == LseEmpty::infinity) lse = plain::kInfinity;
          if (is_empty && c.lse_empty == LseEmpty::zero) lse = 0;
          if (is_empty && c.lse_empty == LseEmpty::finite) lse = -0.7 * 3.4028234663852886e38;
          const bool has_sink = !sinks.empty() && sinks[static_cast<std::size_t>(h)] != -plain::kInfinity;
          if (!without_key || r->is_padding(i) || has_sink || c.masked_rows == MaskedRows::zero) continue;
          ++empty;
          std::vector<std::int64_t> keys;  // of the query's sequence
          for (std::int64_t j = 0; j < r->kv_length; ++j)
            if (r->is_of_entry(i, j)) keys.push_back(j);
          for (std::int64_t d = 0; d < v.shape[3]; ++d)
            for (const std::int64_t j : keys)
              expected.out.at(b, h, i, d) += v.at(b, h / group, j, d) / static_cast<double>(keys.size());
        }
    const Attention got = attention(r->q.view(), r->k.view(), r->v.view(), r->options);
    CHECK(plain::far_from(plain::heads_of(got.out, r->options.layout).values, expected.out.values,
                          2e-6 * plain::most_of(r->values(r->v)) + 0x1p-25,
                          2e-5 + plain::rounding_of(got.out.dtype())) == "");
    CHECK(plain::far_from(plain::doubles(got.lse.view()), expected.lse.values, 2e-5, 2e-5) == "");
    const AttentionCheck check =
        check_attention(r->q.view(), r->k.view(), r->v.view(), r->options, got.out.view(), got.lse.view());
    CHECK(check.passed());
    const AttentionArrays arrays{r->q.view(), r->k.view(), r->v.view(), r->options.bias};
    const AttentionPlan plan(types_of(arrays), r->options);
    const Array out = plain::array_of(DType::float32, got.out.shape(), expected.out, r->options.layout),
                lse = plain::array_of(DType::float32, got.lse.shape(), expected.lse.values);
    const Against against = compare_results(plan, arrays, {got.out.view(), got.lse.view()},
                                            {out.view(), lse.view()}, Explain::no, {DType::float32});
    CHECK(against.agrees());
  }
  CHECK(empty > 50);
}

TEST_CASE("results are those of JAX's splash and ragged paged attention and of torch, in their conventions") {
  int cases = 0, gradients = 0;
  for (const golden::Case& c : golden::load("attention_conventions")) {
    CAPTURE(c.name);
    ++cases;
    AttentionOptions options;
    if (!c.params.at("softcap").is_null()) options.softcap = c.params.at("softcap");
    const auto source = [&](const char* name) {
      return c.in.contains(name) ? make_source(c.in.at(name).view(), name) : nullptr;
    };
    const ArrayView q = c.in.at("q").view();
    if (c.name.starts_with("paged_")) {
      const auto cache = source("kv");
      const auto half = [&](const char* slice) { return slice_array(cache, slice, "kv"); };
      const auto keys = half("[:,:,::2]"), values = half("[:,:,1::2]");
      const auto sequences = std::make_shared<const PagedSequences>(
          read_block_table(*source("block_table"), *source("seq_lens"), cache_size(*keys, CacheLayout::nhd)));
      const Array k = read_all(*paged_tokens(keys, CacheLayout::nhd, sequences)),
                  v = read_all(*paged_tokens(values, CacheLayout::nhd, sequences));
      options.layout = AttentionLayout::thd;
      options.scale = c.params.at("scale");
      options.cu_seqlens_q = source("cu_seqlens");
      options.cu_seqlens_kv = IntegerArray(std::vector(sequences->offsets));
      HeadMasks masks;
      std::optional<std::int64_t> left;  // a window of JAX counts the query's own key
      if (!c.params.at("window").is_null()) left = c.params.at("window").get<std::int64_t>() - 1;
      masks.mask = [left](std::int64_t, std::int64_t, std::int64_t queries, std::int64_t all) {
        return local_mask(queries, all, left, 0, all - queries);
      };
      options.masks.push_back(masks);
      const Attention got = attention(q, k.view(), v.view(), options);
      CHECK(plain::out_far_from(got.out, golden::values_of(c.out, "out"), plain::doubles(v.view()),
                                DType::float32) == "");
      continue;
    }
    const std::string as = c.params.at("as");
    const auto library = std::find_if(library_conventions().begin(), library_conventions().end(),
                                      [&](const LibraryConventions& l) { return l.name == as; });
    REQUIRE(library != library_conventions().end());
    options.conventions = library->conventions;
    if (!library->scales) options.scale = 1;
    options.layout = AttentionLayout::bhsd;
    options.dtype = DType::float32;
    options.sinks = source("sinks");
    options.alibi = source("slopes");
    if (c.params.value("alibi_form", "") == "signed")
      options.conventions.alibi_form = AlibiForm::signed_distance;
    if (c.params.contains("softcap_order") && c.params.at("softcap_order") == "after-bias")
      options.conventions.softcap_order = SoftcapOrder::after_bias;
    const auto batched = [](const ArrayView& array) {  // JAX has no axis of batch entries
      ArrayView view = array;
      if (view.shape.size() == 4) return view;
      view.shape.insert(view.shape.begin(), 1);
      view.strides.insert(view.strides.begin(), 0);
      return view;
    };
    const ArrayView all_q = batched(q), k = batched(c.in.at("k").view()), v = batched(c.in.at("v").view());
    options.masks.push_back(head_masks({causal_mask(all_q.shape[2], k.shape[2], c.params.at("offset"))}));
    const Attention got = attention(all_q, k, v, options);
    CHECK(plain::far_from(plain::doubles(got.lse.view()), golden::values_of(c.out, "lse"), 1e-5, 1e-5) == "");
    CHECK(plain::out_far_from(got.out, golden::values_of(c.out, "out"), golden::values_of(c.in, "v"),
                              DType::float32) == "");
    if (!c.out.contains("dq")) continue;
    ++gradients;
    const ArrayView dout = batched(c.in.at("dout").view());
    const AttentionGradients g = attention_grad(all_q, k, v, dout, options);
    const auto floors =
        plain::floors(1, v.shape[3], golden::values_of(c.in, "q"), golden::values_of(c.in, "k"),
                      golden::values_of(c.in, "v"), golden::values_of(c.in, "dout"));
    const auto check = [&](const char* name, const Array& array, double floor) {
      CAPTURE(name);
      CHECK(plain::gradient_far_from(array, golden::values_of(c.out, name), 4 * floor, DType::float32) == "");
    };
    check("dq", g.dq, floors.dq);
    check("dk", g.dk, floors.dk);
    check("dv", g.dv, floors.dv);
    if (c.out.contains("dsinks")) check("dsinks", *g.dsinks, 20 * floors.dbias);
  }
  CHECK(cases == 23);
  CHECK(gradients == 6);
}

TEST_CASE("gradients of queries without a key that get the mean of all values are those of jax.grad") {
  int cases = 0;
  for (const golden::Case& c : golden::load("masked_rows")) {
    CAPTURE(c.name);
    ++cases;
    const auto batched = [](const ArrayView& array) {
      ArrayView view = array;
      view.shape.insert(view.shape.begin(), 1);
      view.strides.insert(view.strides.begin(), 0);
      return view;
    };
    const ArrayView q = batched(c.in.at("q").view()), k = batched(c.in.at("k").view()),
                    v = batched(c.in.at("v").view()), dout = batched(c.in.at("dout").view());
    AttentionOptions options;
    options.layout = AttentionLayout::bhsd;
    options.scale = c.params.at("scale");
    if (!c.params.at("softcap").is_null()) options.softcap = c.params.at("softcap");
    options.conventions.masked_rows = MaskedRows::mean;
    options.masks.push_back(head_masks({causal_mask(q.shape[2], k.shape[2], c.params.at("offset"))}));
    const auto floors =
        plain::floors(*options.scale, v.shape[3], golden::values_of(c.in, "q"), golden::values_of(c.in, "k"),
                      golden::values_of(c.in, "v"), golden::values_of(c.in, "dout"));
    const auto check = [&](const AttentionGradients& g) {
      for (const auto& [name, array, floor] :
           {std::tuple{"dq", &g.dq, floors.dq}, {"dk", &g.dk, floors.dk}, {"dv", &g.dv, floors.dv}}) {
        const char* const which = name;
        const std::string far =
            plain::gradient_far_from(*array, golden::values_of(c.out, which), 4 * floor, DType::float32);
        CHECK_MESSAGE(far == "", which, ": ", far);
      }
      CHECK(check_attention_grad(q, k, v, dout, options, g.dq.view(), g.dk.view(), g.dv.view()).passed());
    };
    for (const auto& block : {std::optional<BlockShape>(), std::optional<BlockShape>({3, 5})}) {
      options.block = block;
      check(attention_grad(q, k, v, dout, options));
    }
    // With what a forward pass has left, in each form of lse; 0 may be that of any row.
    AttentionOptions exactly = options;
    exactly.dtype = DType::float32;
    for (const LseEmpty empty : {LseEmpty::minus_infinity, LseEmpty::zero, LseEmpty::finite}) {
      options.conventions.lse_empty = exactly.conventions.lse_empty = empty;
      const Attention forward = attention(q, k, v, exactly);
      check(attention_grad(q, k, v, dout, options, AttentionSaved{forward.out.view(), forward.lse.view()}));
    }
    // Without the mean they are others.
    const AttentionGradients means = attention_grad(q, k, v, dout, options);
    options.conventions.masked_rows = MaskedRows::zero;
    const AttentionGradients zeros = attention_grad(q, k, v, dout, options);
    CHECK(plain::same_bytes(means.dq, zeros.dq));
    CHECK(plain::same_bytes(means.dk, zeros.dk));
    CHECK_FALSE(plain::same_bytes(means.dv, zeros.dv));
  }
  CHECK(cases == 12);
}

TEST_CASE("the mean of all values and its gradient are those of loops, also of kernels that round weights") {
  plain::Random random(78);
  int lost = 0;
  for (int n = 0; n < 150; ++n) {
    CAPTURE(n);
    const auto r = plain::random_attention(random, plain::kFloats);
    r->options.conventions.masked_rows = MaskedRows::mean;
    r->has_means = true;
    const ArrayView q = r->q.view(), k = r->k.view(), v = r->v.view(), dout = r->dout.view();
    const DType type = r->v.dtype();
    const bool is_narrow = type == DType::bfloat16 || type == DType::float16;
    const auto rounded = [&](double x) { return is_narrow ? plain::rounded(x, type) : x; };
    const plain::Expected e = plain::by_loops(*r, {rounded, rounded, {}});
    for (const double lse : e.lse.values) lost += lse == -plain::kInfinity;
    AttentionArrays arrays{q, k, v, r->options.bias, dout};
    const AttentionPlan plan(types_of(arrays), r->options);
    const AttentionGradients g = attention_grad(q, k, v, dout, r->options);
    const Array dq = plain::array_of(type, r->q.shape(), e.dq, r->options.layout),
                dk = plain::array_of(type, r->k.shape(), e.dk, r->options.layout),
                dv = plain::array_of(type, r->v.shape(), e.dv, r->options.layout);
    std::vector<ArrayView> own{g.dq.view(), g.dk.view(), g.dv.view()};
    std::vector<std::optional<ArrayView>> given{dq.view(), dk.view(), dv.view()};
    if (g.dbias) own.push_back(g.dbias->view()), given.emplace_back();
    if (g.dsinks) own.push_back(g.dsinks->view()), given.emplace_back();
    const Against against = compare_results(plan, arrays, own, given, Explain::no);
    CHECK(against.largest <= 1);
  }
  CHECK(lost > 500);
}

TEST_CASE("gradients without the mean of all values, and with it, are told of each other") {
  plain::Random random(79);
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(name_of(type));
    const auto made = [&] { return plain::random(type, {1, 40, 2, 8}, random); };
    const Array q = made(), k = made(), v = made(), dout = made();
    AttentionArrays arrays{q.view(), k.view(), v.view(), {}, dout.view()};
    const auto grad = [&](MaskedRows rows) {
      AttentionOptions options;
      options.masks.push_back(head_masks({causal_mask(40, 40, -9)}));
      options.conventions.masked_rows = rows;
      return std::pair(options, attention_grad(q.view(), k.view(), v.view(), dout.view(), options));
    };
    const auto zero = grad(MaskedRows::zero), mean = grad(MaskedRows::mean);
    const auto text = [&](const auto& right, const auto& wrong) {
      const AttentionPlan plan(types_of(arrays), right.first);
      const AttentionGradients &own = right.second, &g = wrong.second;
      const Against against = compare_results(plan, arrays, {own.dq.view(), own.dk.view(), own.dv.view()},
                                              {g.dq.view(), g.dk.view(), g.dv.view()}, Explain::yes);
      CHECK_FALSE(against.agrees());
      return against.explanations.empty() ? "" : against.explanations[0].text;
    };
    CHECK(text(mean, zero) == "queries without a key are 0");
    CHECK(text(zero, mean) == "queries without a key get the mean of all values");
  }
}

namespace {

// The keys that a query of a trace definition sees: its blocks of 128, its listed keys, a window.
Mask mask_of_trace(const golden::Case& c, std::int64_t entry, std::int64_t head, std::int64_t queries,
                   std::int64_t keys) {
  std::optional<std::int64_t> left, right;
  if (c.params.at("causal").get<bool>()) right = 0;
  if (c.params.contains("window") && !c.params.at("window").is_null()) left = c.params.at("window");
  Mask mask = local_mask(queries, keys, left, right, keys - queries);
  if (c.in.contains("keys")) mask = mask & indices_mask(make_source(c.in.at("keys").view()), keys);
  if (!c.in.contains("blocks")) return mask;
  const Array& blocks = c.in.at("blocks");  // (key heads, queries of all entries, n); -1: none
  const std::vector<double> chosen = plain::doubles(blocks.view()),
                            first = golden::values_of(c.in, "qo_indptr");
  const std::int64_t group = c.in.at("q").shape()[1] / blocks.shape()[0], n = blocks.shape()[2];
  std::vector<double> seen(static_cast<std::size_t>(queries * keys));
  for (std::int64_t i = 0; i < queries; ++i)
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t e = 0; e < n; ++e) {
        const std::int64_t row = static_cast<std::int64_t>(first[static_cast<std::size_t>(entry)]) + i,
                           block = j / 128;
        if (chosen[static_cast<std::size_t>((head / group * blocks.shape()[1] + row) * n + e)] ==
            static_cast<double>(block))
          seen[static_cast<std::size_t>(i * keys + j)] = 1;
      }
  return mask & array_mask(make_source(plain::array_of(DType::int32, {queries, keys}, seen)), Polarity::keep);
}

MergedStates merged_of_trace(const golden::Case& c) {
  MergeSettings settings;
  settings.lse_base = LseBase::two;
  settings.lse_layout = LseLayout::nh;
  settings.dtype = DType::float32;
  const auto part = [&](const char* out, const char* lse) {
    return AttentionState{c.in.at(out).view(), c.in.at(lse).view()};
  };
  return merge_states(c.in.contains("out") ? unstacked(part("out", "lse"), 1)
                                           : std::vector{part("out0", "lse0"), part("out1", "lse1")},
                      settings);
}

struct Traced {
  Array out, lse;
  double most = 0;  // of the values
};

Traced attention_of_trace(const golden::Case& c) {
  const auto source = [&](const char* name) { return make_source(c.in.at(name).view(), name); };
  const auto& library = library_conventions().front();
  REQUIRE(library.name == "flashinfer");
  AttentionOptions options;
  options.conventions = library.conventions;
  options.layout = AttentionLayout::thd;
  options.dtype = DType::float32;
  if (c.params.contains("scale")) options.scale = c.params.at("scale");
  if (c.in.contains("sinks")) options.sinks = source("sinks");
  const Array& q = c.in.at("q");
  Array k, v;
  std::vector<std::int64_t> one_each;
  if (c.in.contains("k_cache")) {
    const CacheLayout layout = c.params.value("cache", "nhd") == "hnd" ? CacheLayout::hnd : CacheLayout::nhd;
    const CacheSize size = cache_size(*source("k_cache"), layout);
    const auto sequences = std::make_shared<const PagedSequences>(
        c.in.contains("block_table")
            ? read_block_table(*source("block_table"), *source("seq_lens"), size)
            : read_page_indices(*source("kv_indptr"), *source("kv_indices"), *source("last_page_len"), size));
    k = read_all(*paged_tokens(source("k_cache"), layout, sequences));
    if (c.in.contains("v_cache")) v = read_all(*paged_tokens(source("v_cache"), layout, sequences));
    options.cu_seqlens_kv = IntegerArray(std::vector(sequences->offsets));
    for (std::int64_t n = 0; n <= sequences->count(); ++n) one_each.push_back(n);
  } else {
    k = read_all(*source("k"));
    v = read_all(*source("v"));
    one_each = {0, q.shape()[0]};
    options.cu_seqlens_kv = c.in.contains("kv_indptr")
                                ? IntegerArray(source("kv_indptr"))
                                : IntegerArray(std::vector{std::int64_t{0}, k.shape()[0]});
  }
  if (c.params.contains("v_columns"))  // of latent attention
    v = read_all(*slice_array(make_source(k.view(), "k"),
                              fmt::format("[:,:,:{}]", c.params.at("v_columns").get<int>()), "k"));
  options.cu_seqlens_q =
      c.in.contains("qo_indptr") ? IntegerArray(source("qo_indptr")) : IntegerArray(one_each);
  HeadMasks masks;
  masks.heads = q.shape()[1];
  masks.batch = options.cu_seqlens_q->shape()[0] - 1;
  masks.mask = [&c](std::int64_t entry, std::int64_t head, std::int64_t queries, std::int64_t keys) {
    return mask_of_trace(c, entry, head, queries, keys);
  };
  options.masks.push_back(masks);
  Attention got = attention(q.view(), k.view(), v.view(), options);
  return {std::move(got.out), std::move(got.lse), plain::most_of(plain::doubles(v.view()))};
}

}  // namespace

TEST_CASE("results are those of flashinfer's trace definitions") {
  std::set<std::string> definitions;
  int with_lse = 0;
  for (const golden::Case& c : golden::load("flashinfer_traces")) {
    CAPTURE(c.name);
    definitions.insert(c.params.at("definition"));
    const bool is_merge = !c.in.contains("q");
    Traced got;
    if (is_merge) {
      MergedStates merged = merged_of_trace(c);
      got = {std::move(merged.out), std::move(merged.lse), 4};
    } else {
      got = attention_of_trace(c);
    }
    const double rounding = c.params.at("rounding"), least = c.params.at("least");
    CHECK(got.out.shape() == c.out.at("out").shape());
    CHECK(plain::far_from(plain::doubles(got.out.view()), golden::values_of(c.out, "out"),
                          2e-6 * got.most + least, 2e-5 + rounding) == "");
    if (!c.out.contains("lse")) continue;
    ++with_lse;
    ArrayView lse = got.lse.view();
    if (!is_merge) {  // (heads, queries); flashinfer's has queries first
      std::swap(lse.shape[0], lse.shape[1]);
      std::swap(lse.strides[0], lse.strides[1]);
    }
    CHECK(plain::far_from(plain::doubles(lse), golden::values_of(c.out, "lse"), 1e-5, 1e-5) == "");
  }
  CHECK(definitions.size() == 34);
  CHECK(with_lse == 17);
}

TEST_CASE("FlashAttention-2 of a GPU agrees in its conventions alone, and its parts merge to the whole") {
  for (const golden::Case& c : golden::load("gpu_attention")) {
    CAPTURE(c.name);
    const Array &q = c.in.at("q"), &k = c.in.at("k"), &v = c.in.at("v");
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    AttentionOptions options;
    options.layout = AttentionLayout::bhsd;
    const auto agrees = [&](const ArrayView& out, const ArrayView& lse) {
      const AttentionPlan plan(types_of(arrays), options);
      const Attention own = attention(q.view(), k.view(), v.view(), options);
      return compare_results(plan, arrays, {own.out.view(), own.lse.view()}, {out, lse}, Explain::no)
          .agrees();
    };
    MergeSettings of_parts;
    of_parts.layout = AttentionLayout::bhsd;
    const MergedStates merged = merge_states({{c.out.at("part0").view(), c.out.at("part0_lse").view()},
                                              {c.out.at("part1").view(), c.out.at("part1_lse").view()}},
                                             of_parts);
    CHECK(agrees(merged.out.view(), merged.lse.view()));
    CHECK_FALSE(agrees(c.out.at("part1").view(), c.out.at("part1_lse").view()));

    // 16 queries have no key.
    options.masks.push_back(head_masks({causal_mask(64, 128, c.params.at("offset").get<std::int64_t>())}));
    for (const LibraryConventions& library : library_conventions()) {
      if (library.name != "fa2" && library.name != "fa3") continue;
      options.conventions = library.conventions;
      CHECK(agrees(c.out.at("fa2").view(), c.out.at("fa2_lse").view()) == (library.name == "fa2"));
    }
  }
}

TEST_CASE("the largest score of a head is that of its pairs that attend") {
  std::mt19937_64 engine(5);
  const Array q = plain::random(DType::float32, {2, 50, 4, 8}, engine),
              k = plain::random(DType::float32, {2, 300, 2, 8}, engine),
              v = plain::random(DType::float32, {2, 300, 2, 8}, engine);
  AttentionOptions options;
  options.max_logits = true;
  options.scale = 1;
  options.masks.push_back(head_masks({causal_mask(50, 300)}));
  const std::vector<double> got = attention(q.view(), k.view(), v.view(), options).work.max_logits;
  plain::Heads qs = plain::heads_of(q, AttentionLayout::bshd), ks = plain::heads_of(k, AttentionLayout::bshd);
  REQUIRE(got.size() == 4);
  for (std::int64_t h = 0; h < 4; ++h) {
    double most = -plain::kInfinity;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 50; ++i)
        for (std::int64_t j = 0; j <= i; ++j) {
          double s = 0;
          for (std::int64_t d = 0; d < 8; ++d) s += qs.at(b, h, i, d) * ks.at(b, h / 2, j, d);
          most = std::max(most, s);
        }
    CHECK(got[static_cast<std::size_t>(h)] == doctest::Approx(most).epsilon(1e-5));
  }
}

TEST_CASE("sinks and ALiBi over several blocks and ranges of keys, in any number of threads") {
  std::mt19937_64 engine(6);
  for (const std::int64_t queries : {1, 3, 130})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      CAPTURE(queries);
      const std::int64_t keys = 2300;
      const Array q = plain::random(dtype, {1, queries, 4, 16}, engine),
                  k = plain::random(dtype, {1, keys, 2, 16}, engine),
                  v = plain::random(dtype, {1, keys, 2, 24}, engine),
                  dout = plain::random(dtype, {1, queries, 4, 24}, engine);
      AttentionOptions options;
      // One of little effect, one that leaves the keys no weight, one between, and none.
      options.sinks = make_source(
          plain::array_of(DType::float32, {4}, std::vector<double>{-20, 200, 7, -plain::kInfinity}));
      options.alibi = make_source(plain::array_of(DType::float32, {4}, alibi_slopes(4)));
      const auto run = [&](int threads) {
        const Threads of(threads);
        return attention(q.view(), k.view(), v.view(), options);
      };
      const Attention one = run(1), four = run(4);
      CHECK(plain::same_bytes(one.out, four.out));
      CHECK(plain::same_bytes(one.lse, four.lse));
      CHECK(check_attention(q.view(), k.view(), v.view(), options, one.out.view(), one.lse.view()).passed());
      const AttentionGradients g = attention_grad(q.view(), k.view(), v.view(), dout.view(), options);
      REQUIRE(g.dsinks);
      CHECK(check_attention_grad(q.view(), k.view(), v.view(), dout.view(), options, g.dq.view(), g.dk.view(),
                                 g.dv.view(), std::nullopt, g.dsinks->view())
                .passed());
      CHECK(plain::doubles(g.dsinks->view())[3] == 0);
    }
}

namespace {

struct Planted {
  Array q, k, v, dout, sinks, slopes, bias;
  AttentionOptions options;

  Planted(DType type, std::int64_t queries, std::int64_t keys) {
    std::mt19937_64 engine(31);
    q = plain::random(type, {2, queries, 4, 16}, engine);
    k = plain::random(type, {2, keys, 2, 16}, engine);
    v = plain::random(type, {2, keys, 2, 16}, engine);
    dout = plain::random(type, {2, queries, 4, 16}, engine);
    sinks = plain::array_of(DType::float32, {4}, std::vector<double>{1, 3, 2, 4});
    slopes = plain::array_of(DType::float32, {4}, alibi_slopes(4));
    options.sinks = make_source(sinks.view());
    options.alibi = make_source(slopes.view());
    options.scale = 0.75;
  }
  AttentionArrays forward() const { return {q.view(), k.view(), v.view(), options.bias}; }
  // What is said of results with other options, as if they were those of a kernel.
  std::string told(const AttentionOptions& of_kernel) const {
    const AttentionPlan plan(types_of(forward()), options);
    const Attention own = attention(q.view(), k.view(), v.view(), options),
                    given = attention(q.view(), k.view(), v.view(), of_kernel);
    return texts(compare_results(plan, forward(), {own.out.view(), own.lse.view()},
                                 {given.out.view(), given.lse.view()}, Explain::yes));
  }
  std::string told_of_gradients(const AttentionOptions& of_kernel) const {
    AttentionArrays arrays = forward();
    arrays.dout = dout.view();
    const AttentionPlan plan(types_of(arrays), options);
    const AttentionGradients own = attention_grad(q.view(), k.view(), v.view(), dout.view(), options),
                             given = attention_grad(q.view(), k.view(), v.view(), dout.view(), of_kernel);
    return texts(compare_results(
        plan, arrays, {own.dq.view(), own.dk.view(), own.dv.view(), own.dsinks->view()},
        {given.dq.view(), given.dk.view(), given.dv.view(), given.dsinks->view()}, Explain::yes));
  }
  static std::string texts(const Against& against) {
    std::string all;
    for (const auto& e : against.explanations) all += e.array + ": " + e.text + "\n";
    return all;
  }
};

AttentionOptions with_sinks(AttentionOptions options, const Array& sinks, double factor, double more) {
  std::vector<double> values = plain::doubles(sinks.view());
  for (double& value : values) value = factor * value + more;
  options.sinks = make_source(plain::array_of(DType::float32, sinks.shape(), values));
  return options;
}

}  // namespace

TEST_CASE("the convention that a wrong result follows is named") {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    CAPTURE(static_cast<int>(type));
    Planted p(type, 40, 72);
    const auto is_told = [&](const AttentionOptions& of_kernel, const std::string& text) {
      const std::string told = p.told(of_kernel);
      CAPTURE(text);
      CAPTURE(told);
      CHECK(told.find(text) != std::string::npos);
    };
    AttentionOptions other = p.options;
    other.sinks = nullptr;
    is_told(other, "out: the sinks are left out");
    is_told(with_sinks(p.options, p.sinks, 1, std::log(2)), "out: the sinks are counted twice");
    is_told(with_sinks(p.options, p.sinks, 1, std::log(8)), "out: the sinks are counted 8 times");
    is_told(with_sinks(p.options, p.sinks, 0.75, 0), "out: the sinks are multiplied by the scale");
    other = p.options;
    other.conventions.lse_sink = LseSink::out;
    is_told(other, "lse: the sinks are left out");
    std::swap(other, p.options);
    is_told(other, "lse: lse counts the sinks");
    std::swap(other, p.options);
    other = p.options;
    other.conventions.lse_base = LseBase::two;
    is_told(other, "lse: lse is a logarithm to base 2");
    std::swap(other, p.options);
    is_told(other, "lse: lse is a logarithm to base e");
    std::swap(other, p.options);
    other = p.options;
    other.alibi = nullptr;
    is_told(other, "out: ALiBi is left out");
    other = p.options;
    other.conventions.alibi_form = AlibiForm::signed_distance;
    is_told(other, "out: ALiBi is j - i, not -|i + K - Q - j|");
    std::vector<double> negative = plain::doubles(p.slopes.view()), at_top;
    for (double& slope : negative) slope = -slope;
    other = p.options;
    other.alibi = make_source(plain::array_of(DType::float32, {4}, negative));
    is_told(other, "out: ALiBi has the wrong sign");
    for (const double slope : alibi_slopes(4))
      for (std::int64_t i = 0; i < 40; ++i)
        for (std::int64_t j = 0; j < 72; ++j) at_top.push_back(-slope * static_cast<double>(std::abs(i - j)));
    const Array bias = plain::array_of(DType::float32, {4, 40, 72}, at_top);
    const Attention unshifted = [&] {
      AttentionOptions of_kernel = p.options;
      of_kernel.alibi = nullptr;
      of_kernel.bias = bias.view();
      return attention(p.q.view(), p.k.view(), p.v.view(), of_kernel);
    }();
    const Attention own = attention(p.q.view(), p.k.view(), p.v.view(), p.options);
    CHECK(Planted::texts(compare_results(AttentionPlan(types_of(p.forward()), p.options), p.forward(),
                                         {own.out.view(), own.lse.view()},
                                         {unshifted.out.view(), unshifted.lse.view()}, Explain::yes))
              .find("out: ALiBi is -|i - j|: queries are aligned at the top left") != std::string::npos);
    p.options.softcap = 2;
    other = p.options;
    other.conventions.softcap_order = SoftcapOrder::after_bias;
    is_told(other, "out: the soft cap comes after ALiBi");
    std::swap(other, p.options);
    is_told(other, "out: the soft cap comes before ALiBi");
  }
}

TEST_CASE("the convention that wrong rows without a key follow is named") {
  Planted p(DType::float32, 12, 12);
  p.options.sinks = nullptr;
  p.options.masks.push_back(head_masks({causal_mask(12, 12, -4)}));
  AttentionOptions other = p.options;
  other.conventions = library_conventions()[7].conventions;  // jax-splash
  CHECK(p.told(other).find("out: queries without a key get the mean of all values") != std::string::npos);
  CHECK(p.told(other).find("lse: lse of a query without a key is -2.38198e+38") != std::string::npos);
  std::swap(other, p.options);
  CHECK(p.told(other).find("out: queries without a key are 0") != std::string::npos);
  CHECK(p.told(other).find("lse: lse of a query without a key is -inf") != std::string::npos);
}

TEST_CASE("the scale of latent attention is named: of absorbed heads, or of those before") {
  for (const DType type : {DType::float32, DType::bfloat16}) {
    CAPTURE(static_cast<int>(type));
    std::mt19937_64 engine(19);
    Planted p(type, 4, 60);
    p.q = plain::random(type, {2, 4, 4, 40}, engine);
    p.k = plain::random(type, {2, 60, 1, 40}, engine);
    p.v = read_all(*slice_array(make_source(p.k.view(), "k"), "[...,:32]", "k"));
    p.options.sinks = p.options.alibi = nullptr;
    p.options.scale = 1 / std::sqrt(40.0);
    AttentionOptions other = p.options;
    other.scale = 1 / std::sqrt(136.0);
    CHECK(p.told(other).find("out: the scale is 1/sqrt(128 + D - Dv)") != std::string::npos);
    std::swap(other, p.options);
    CHECK(p.told(other).find("out: the scale is 1/sqrt(D)") != std::string::npos);
  }
}

TEST_CASE("keys and values of another packed sequence are named") {
  for (const DType type : {DType::float32, DType::bfloat16}) {
    CAPTURE(static_cast<int>(type));
    std::mt19937_64 engine(23);
    const std::vector<std::int64_t> queries{0, 2, 4, 6}, keys{0, 20, 40, 60};
    const Array q = plain::random(type, {6, 4, 16}, engine), k = plain::random(type, {60, 2, 16}, engine),
                v = plain::random(type, {60, 2, 16}, engine);
    AttentionOptions options;
    options.layout = AttentionLayout::thd;
    options.cu_seqlens_q = IntegerArray(queries);
    options.cu_seqlens_kv = IntegerArray(keys);
    const AttentionArrays arrays{q.view(), k.view(), v.view()};
    const AttentionPlan plan(types_of(arrays), options);
    const Attention own = attention(q.view(), k.view(), v.view(), options);
    const auto told = [&](const std::vector<std::int64_t>& sequences) {  // whose keys and values are read
      const auto moved = [&](const Array& of) {
        const std::vector<double> all = plain::doubles(of.view());
        std::vector<double> values;
        for (const std::int64_t n : sequences)
          values.insert(values.end(), all.begin() + n * 640, all.begin() + (n + 1) * 640);
        return plain::array_of(type, of.shape(), values);
      };
      const Array other_k = moved(k), other_v = moved(v);
      const Attention given = attention(q.view(), other_k.view(), other_v.view(), options);
      return Planted::texts(compare_results(plan, arrays, {own.out.view(), own.lse.view()},
                                            {given.out.view(), given.lse.view()}, Explain::yes));
    };
    const auto says = [&](const std::string& all, const std::string& text) {
      CAPTURE(all);
      CHECK(all.find("out: keys and values are those of the " + text) != std::string::npos);
    };
    says(told({1, 2, 0}), "sequence after");
    says(told({2, 0, 1}), "sequence before");
    says(told({0, 0, 0}), "first sequence");
  }
}

TEST_CASE("a bias that is left out beside ALiBi is named") {
  Planted p(DType::float32, 24, 40);
  std::mt19937_64 engine(4);
  const Array bias = plain::random(DType::float32, {24, 40}, engine);
  const AttentionOptions without = p.options;
  p.options.bias = bias.view();
  CHECK(p.told(without).find("out: the bias is left out") != std::string::npos);
  AttentionOptions other = p.options;
  other.alibi = nullptr;
  CHECK(p.told(other).find("out: ALiBi is left out") != std::string::npos);
}

TEST_CASE("gradients of other sinks and of another ALiBi are named") {
  Planted p(DType::float32, 24, 24);
  CHECK(p.told_of_gradients(with_sinks(p.options, p.sinks, 1, std::log(4)))
            .find("dsinks: the sinks are counted 4 times") != std::string::npos);
  CHECK(p.told_of_gradients(with_sinks(p.options, p.sinks, 1, std::log(4)))
            .find("dq: the sinks are counted 4 times") != std::string::npos);
  AttentionOptions other = p.options;
  other.conventions.alibi_form = AlibiForm::signed_distance;
  CHECK(p.told_of_gradients(other).find("dk: ALiBi is j - i, not -|i + K - Q - j|") != std::string::npos);
}

TEST_CASE("sinks and slopes that are no numbers of heads are refused") {
  const Array q(DType::float32, {1, 2, 4, 3}), k(DType::float32, {1, 2, 4, 3});
  const auto refused = [&](const AttentionOptions& options) {
    return plain::failure([&] { attention(q.view(), k.view(), k.view(), options); });
  };
  for (const auto& [values, what] : {std::pair{std::vector<double>{0, 0, std::nan(""), 0}, "head 2 is nan"},
                                     {std::vector<double>{0, plain::kInfinity, 0, 0}, "head 1 is inf"},
                                     {std::vector<double>{0, 0, 0}, "shape (4,), not (3,)"}}) {
    AttentionOptions options;
    options.sinks = make_source(plain::array_of(DType::float32, {std::ssize(values)}, values), "s.npy");
    CHECK(refused(options).find(what) != std::string::npos);
    options = {};
    if (values.size() != 4) continue;
    options.alibi = make_source(plain::array_of(DType::float32, {4}, values), "a.npy");
    CHECK(refused(options).find("slope") != std::string::npos);
  }
}
