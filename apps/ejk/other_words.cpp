// A table of words, in which a row counts where its name is one of a command: the first one decides, so that
// --block-m is --tm where there is one, and else --block.
// tests: tests/app/test_other_words.cpp
#include "other_words.hpp"

#include <algorithm>

#include "ejk/program/text.hpp"
#include "schema.hpp"

namespace ejk::app {

namespace {

constexpr OtherWords kOtherWords[] = {
    // Commands.
    {"diff cmp allclose isclose assert-close assert-allclose equal testing", "compare"},
    {"attn sdpa mha flash-attn flash-attention flex-attention flashattention flashattn paged-attention "
     "scaled-dot-product-attention",
     "attention"},
    {"attention-backward attention-bwd flash-attention-backward grad backward", "attention-grad"},
    {"block-mask create-block-mask blockmask splash splash-attention", "mask-info"},
    {"gmm matmul gemm grouped-gemm group-gemm grouped-mm ragged-dot moe-gemm", "grouped-matmul"},
    {"tgmm", "transposed-grouped-matmul"},
    {"moe-align-block-size make-group-metadata", "group-metadata"},
    {"topk top-k router gate gating moe", "route"},
    {"logsumexp lse softmax", "log-sum-exp"},
    {"gated-delta-rule gated-deltanet gdn deltanet delta-rule kda gla simple-gla retention lightning-attn mamba2 ssd",
     "linear-attention"},
    {"gated-delta-rule-backward gated-delta-rule-bwd linear-attention-backward linear-attention-bwd",
     "linear-attention-grad"},
    {"causal-conv1d causal-conv1d-fn causal-conv1d-update short-convolution short-conv conv", "conv1d"},
    {"merge-state merge-attn-states merge-attention-states", "merge-states"},
    {"show ls list cat head stats describe inspect dump print open view", "info"},
    {"cast astype to export save dequantize dequant decode", "convert"},
    {"quant", "quantize"},
    {"validate verify lint test", "check"},
    {"random rand randn make create", "generate"},
    {"positions pos-ids", "position-ids"},
    {"unpad unpad-input", "pack"},
    {"pad-input", "unpack"},
    {"tril causal-mask", "mask"},
    {"shard", "sharding"},
    {"density cost", "sparsity"},
    {"checksum sha256 md5", "hash"},
    {"man usage", "help"},
    // Options.
    {"--softmax-scale --sm-scale --attn-scale --qk-scale --scaling", "--scale"},
    {"--logit-cap --soft-cap --logits-soft-cap --attn-logit-softcapping", "--softcap"},
    {"--sink --s-aux --learnable-sink --attention-sinks", "--sinks"},
    {"--alibi-slopes", "--alibi"},
    {"--return-max-logit --return-max-logits", "--max-logits"},
    {"--attn-bias --attention-bias", "--bias"},
    {"--dropout-p --p-dropout --dropout-rate", "--dropout REF --keep P"},
    {"--block-mask", "--mask 'from(REF)'"},
    {"--mask-mod --mask-fn --mask-expr", "--mask"},
    {"--cu-seqlens-q --cu-seqlens-k --cu-seqlens-kv", "--cu-seqlens Q_REF,K_REF"},
    {"--qo-indptr --query-start-loc --offsets", "--cu-seqlens"},
    {"--page-table --page-tables --block-tables --kv-page-indices", "--block-table"},
    {"--cache-seqlens --seqused-k --kv-lens --context-lens --cache-lens", "--seq-lens"},
    {"--paged-kv-indptr", "--kv-indptr"},
    {"--paged-kv-indices", "--kv-indices"},
    {"--kv-last-page-len --paged-kv-last-page-len", "--last-page-len"},
    {"--initial-states --conv-state --conv-states", "--initial-state"},
    {"--conv-state-indices --cache-indices --ssm-state-indices", "--state-indices"},
    {"--g --gk --gate --gates --alpha", "--decay"},
    {"--use-qk-l2norm-in-kernel --use-qk-l2norm --qk-l2norm", "--l2norm"},
    {"--state-v-first --transpose-state-layout", "--state-layout"},
    {"--kv-layout", "--cache-layout"},
    {"--expected --reference --ref --golden --target --actual --other", "--against"},
    {"--format --qkv-format --qkv-layout --input-layout --tensor-layout", "--layout"},
    {"--block-m --block-size-m --tile-m --bm --block-size --tile-size", "--tm"},
    {"--block-m --block-n --block-q --block-k --block-kv --block-size --bq --bk --bkv --q-block --kv-block --tile "
     "--tile-size --group-size",
     "--block"},
    {"--block-size --chunk", "--chunk-size"},
    {"--seqlen --seq-len --seq-length --sequence-length --max-seqlen --max-seq-len --tokens", "--seq"},
    {"--seqlen --seq-len --seq-length --sequence-length --seq --size --sizes", "--shape"},
    {"--num-heads --n-heads --nheads --num-q-heads --num-attention-heads", "--heads"},
    {"--num-kv-heads --n-kv-heads --num-key-value-heads", "--kv-heads"},
    {"--head-size --headdim --d-head --dim", "--head-dim"},
    {"--batch-size --bs", "--batch"},
    {"--num-experts --n-experts --n-routed-experts", "--experts"},
    {"--num-experts-per-tok --experts-per-token -k", "--top-k"},
    {"--num-groups --n-groups", "--groups"},
    {"--trans-b --transb --transpose-b --trans-rhs --transpose-w", "--transpose-rhs"},
    {"--trans-a --transa --transpose-a --trans-lhs", "--transpose-lhs"},
    {"--format --fmt --mode --qtype --quant-type", "--scheme"},
    {"--norm-topk-prob --normalize --norm", "--renormalize"},
    {"--scoring-func --score-func --score-function", "--score"},
    {"--key-padding-mask --padding-mask --attention-mask-2d", "--segment-ids"},
    {"--score-mod --position-bias --rel-pos-bias", "--bias"},
    {"--to --astype --as-type --out-dtype --output-dtype --preferred-element-type", "--dtype"},
    {"--tol --rel-tol", "--rtol"},
    {"--abs-tol", "--atol"},
    {"--num-threads --jobs -j", "--threads"},
    {"--force --yes -f -y", "--overwrite"},
    {"--silent -s", "--quiet"},
    {"--memory-limit --mem-limit", "--max-memory"},
    // Element types.
    {"bf16 bfloat", "bfloat16"},
    {"fp16 f16 half", "float16"},
    {"fp32 f32 float single tf32", "float32"},
    {"fp64 f64 double", "float64"},
    {"fp8 f8 float8 e4m3 e4m3fn f8e4m3 f8e4m3fn fp8-e4m3 fp8-e4m3fn float8-e4m3", "float8_e4m3fn"},
    {"e5m2 bf8 f8e5m2 fp8-e5m2 float8e5m2", "float8_e5m2"},
    {"e8m0 ue8m0 e8m0fnu", "float8_e8m0fnu"},
    {"i8 s8 char", "int8"},
    {"u8 byte", "uint8"},
    {"i16 short", "int16"},
    {"i32 s32 int integer", "int32"},
    {"i64 s64 long", "int64"},
    {"boolean i1", "bool"},
    // Quantised elements and schemes.
    {"mxfp4 mxfp4-e2m1", "mx --element e2m1"},
    {"mxfp8 mxfp8-e4m3 microscaling ocp", "mx --element e4m3"},
    {"mxfp8-e5m2", "mx --element e5m2"},
    {"mxfp6 mxfp6-e3m2", "mx --element e3m2"},
    {"mxfp6-e2m3", "mx --element e2m3"},
    {"fp4 nvfp", "nvfp4"},
    {"fp8-e4m3 float8 float8-e4m3fn e4m3", "fp8"},
    {"fp8 fp8-e4m3 e4m3fn float8-e4m3fn", "e4m3"},
    {"fp8-e5m2 float8-e5m2", "e5m2"},
    {"fp4 float4 fp4-e2m1 float4-e2m1fn float4-e2m1fn-x2", "e2m1"},
    {"fp6 fp6-e3m2", "e3m2"},
    {"fp6-e2m3", "e2m3"},
    {"swizzled swizzle blackwell cutlass", "128x4"},
    {"plain none row-major", "linear"},
    // Layouts of attention and of masks.
    {"varlen packed ragged unpadded flat", "thd"},
    {"bthd bnhd blhd btnh bsnd bsh", "bshd"},
    {"bhtd bhnd bhld bnsd hsd", "bhsd"},
    {"flex-attention flexattention block-mask blockmask torch", "flex"},
    {"splash splash-attention jax-splash pallas", "jax"},
    {"flash-attention-4 flashattention4 flash-attn-4 flash-attn fa cute", "fa4"},
    {"flash-mask flashmask-attention paddle", "flashmask"},
    {"magi-attention magiattention ffa", "magi"},
    {"scipy csr sparse block-sparse", "bsr"},
    {"megablox gmm", "jax"},
    {"grouped-mm ends offs", "offsets"},
    {"deep-gemm", "deepgemm"},
    // Other values.
    {"qkv inputs attention attn", "attention-inputs"},
    {"lengths seqlens seq-lens", "lens"},
    {"positions", "position-ids"},
    {"segments", "segment-ids"},
    {"offsets indptr", "cu-seqlens"},
    {"offsets offs cumsum", "ends"},
    {"group-sizes counts lengths", "sizes"},
    {"flash-attn flash-attention flash-attention-2", "fa2"},
    {"flash-attention-3 flash-attn-3", "fa3"},
    {"flash-attention-4 flash-attn-4", "fa4"},
    {"sdpa pytorch", "torch-sdpa"},
    {"cosine cos-sim cosine-similarity", "cos"},
    {"psnr sqnr", "snr"},
    {"relative l2 rel-l2 frobenius", "rel"},
    {"zigzag ring striped", "head-tail"},
};

constexpr NeedlessOptions kNeedless[] = {
    {"--return-lse --return-softmax-lse --return-attn-probs --output-lse --need-weights", "--max-logits",
     "lse is always a result: -o OUT.npz has out and lse, --field lse is lse alone"},
    {"--output-final-state --return-final-states", "--state-indices", "final_state is always a result"},
    {"--enable-gqa --gqa --mqa --num-kv-groups", "--sinks",
     "query heads are grouped by the counts of heads of Q and K, which may differ: no option is needed"},
    {"--num-heads --num-kv-heads --head-dim --head-size --seqlen --seq-len --batch-size --max-seqlen-q "
     "--max-seqlen-k",
     "--sinks", "the arrays have these sizes: no option is needed"},
    {"--rtol --atol --tol --tolerance", "--against",
     "--against computes an error bound for each element and needs no tolerance; of two arrays: ejk compare ACTUAL "
     "EXPECTED --rtol R"},
    {"--expected --reference --ref --golden --target", "--no-equal-nan",
     "the second argument is that: ejk compare ACTUAL EXPECTED"},
    {"--deterministic", "", "results are the same in every run: no option is needed"},
    {"--device --cuda --gpu --use-gpu", "", "ejk runs on the CPU: no option is needed"},
};

std::string normalised(std::string_view word) {
  std::string out = lower_case(word);
  for (const std::string_view module : {"torch.", "jnp.", "np.", "numpy.", "jax.numpy.", "tl.", "dt."})
    if (out.starts_with(module)) out.erase(0, module.size());
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

bool has_word(std::string_view row, std::string_view word) {
  const std::vector<std::string> words = words_in(row);
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_among(std::string_view name, std::span<const std::string> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::span<const OtherWords> other_words() { return kOtherWords; }
std::span<const NeedlessOptions> needless_options() { return kNeedless; }

std::vector<std::string> words_in(std::string_view row) { return split(row, " "); }

std::optional<std::string> meaning_of(std::string_view word, std::span<const std::string> names) {
  const std::string other = normalised(word);
  for (const std::string& name : names)  // torch.float32
    if (normalised(name) == other) return name;
  for (const OtherWords& row : kOtherWords)
    if (has_word(row.words, other) && is_among(row.name(), names)) return std::string(row.ours);
  return std::nullopt;
}

std::optional<std::string> needless(std::string_view option, std::span<const std::string> names) {
  const std::string other = normalised(option);
  for (const NeedlessOptions& row : kNeedless)
    if (has_word(row.words, other) && (row.option.empty() || is_among(row.option, names)))
      return std::string(row.hint);
  return std::nullopt;
}

}  // namespace ejk::app
