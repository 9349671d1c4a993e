// Known faults of kernels, each with public threads that have it. Audits try them, explanations name them, help lists
// them. How a kernel with a fault computes: attention.cpp and products.cpp of this folder.
// tests: tests/verdict/audit/test_catalogue.cpp
#include <algorithm>

#include "ejk/audit.hpp"

namespace ejk {

namespace {

constexpr std::string_view kAll = "attention attention-grad grouped-matmul", kForward = "attention",
                           kBackward = "attention-grad", kProduct = "grouped-matmul", kConvolution = "conv1d";

constexpr Fault kFaults[] = {
    {"zeros", kAll, "every element is 0",
     "ScalingIntelligence/KernelBench#165, AI-Hypercomputer/accelerator-agents#50, NVIDIA/TransformerEngine#3528"},
    {"inputs-tf32", kAll, "factors are rounded to TF32",
     "triton-lang/triton#1671, evintunador/triton_docs_tutorials#6",
     "the inputs and the weights are rounded to float16 or TF32"},
    {"mean-of-values", kForward, "all visible keys weigh the same",
     "SKaiNET-developers/SKaiNET#860, huggingface/transformers#48818", "all weights are equal"},
    {"tail-unwritten", kForward, "queries after whole tiles are not written",
     "Avarok-Cybersecurity/atlas#474, Dao-AILab/flash-attention#1778"},
    {"scale-missing", kForward, "the scale is left out", "ROCm/composable_kernel#526, kekzl/imp#1304",
     "the scale is left out"},
    {"scale-twice", kForward, "the scale is applied twice", "flagos-ai/FlagGems#424",
     "the scale is applied twice"},
    {"scale-log2e", kForward, "powers of 2 are taken for powers of e",
     "flagos-ai/FlagGems#424, hao-ai-lab/FastVideo#1730", "powers of 2 are taken of scores"},
    {"mask-ignored", kForward, "every query sees every key",
     "keras-team/keras#23038, facebookresearch/xformers#103", "the mask is ignored"},
    {"term-ignored", kForward, "a term of the mask is left out",
     "huggingface/transformers#41966, pytorch/executorch#21384, fla-org/flash-linear-attention#842",
     "packed sequences attend to each other"},
    {"causal-late", kForward, "the right edge is one key late", "kekzl/imp#1304",
     "the causal edge is one key too far"},
    {"causal-loop-short", kForward, "the loop over keys ends at the first query of a tile",
     "ROCm/rocMLIR#2165"},
    {"causal-tile-unmasked", kForward, "the right edge is applied in the last tile of keys alone",
     "ROCm/rocMLIR#2165"},
    {"align-top-left", kForward, "queries and keys are aligned at the top left",
     "microsoft/onnxruntime#28958, pytorch/pytorch#103082", "queries and keys are aligned at the top left"},
    {"window-longer", kForward, "the window is one key longer at the left",
     "huggingface/transformers#39408, NVIDIA-NeMo/Megatron-Bridge#2656",
     "the window is one key longer at the left"},
    {"window-shorter", kForward, "the window is one key shorter at the left",
     "lightseekorg/tokenspeed#578, microsoft/onnxruntime#25927", "the window is one key shorter at the left"},
    {"window-one-sided", kForward, "one side of the window is 0",
     "vllm-project/vllm#31406, ModelTC/LightLLM#1311"},
    {"documents-shifted", kForward, "documents begin one token late or early", "OpenEvaByte/evabyte#10",
     "documents begin one token"},
    {"documents-first-only", kForward, "only the first boundary of documents counts",
     "Tencent-Hunyuan/HunyuanVideo#310"},
    {"documents-single", kForward, "a document of one token and the next one are one",
     "modelscope/ms-swift#9904", "the documents that meet at token"},
    {"padding-keys", kForward, "keys of zeros fill up the last tile, and count",
     "flashinfer-ai/flashinfer#5090, pytorch/pytorch#159247"},
    {"tail-keys-dropped", kForward, "keys after whole tiles are not visited",
     "jax-ml/jax#27224, ELS-RD/kernl#73", "the keys after whole tiles"},
    {"no-rescale", kForward, "sums are not rescaled at a new maximum, in tiles of 64 keys",
     "paiml/aprender#2753", "without rescaling at a new maximum"},
    {"splits-lse-base", kForward, "halves of the keys are joined with an lse of the wrong base",
     "sgl-project/sglang#40903, vllm-project/vllm#52796",
     "2 parts of the keys are joined with an lse to base 2"},
    {"head-mapping", kForward, "query head h reads key head h mod G",
     "onnx/onnx#7274, HazyResearch/HipKittens#22, apple/axlearn#842",
     "query head h uses key/value head h mod G"},
    {"kv-head-0", kForward, "all heads read key head 0", "BobMcDear/attorch#14",
     "all query heads use key/value head 0"},
    {"kv-batch-0", kForward, "every entry reads the keys and values of entry 0",
     "flashinfer-ai/flashinfer#3800, vllm-project/flash-attention#176"},
    {"softcap-ignored", kForward, "the soft cap is left out",
     "sgl-project/sglang#33915, sgl-project/sgl-kernel-xpu#491", "the soft cap is left out"},
    {"softcap-after-mask", kForward, "masked pairs have a score of minus the soft cap",
     "Dao-AILab/flash-attention#1025"},
    {"sinks-ignored", kForward, "the sinks are left out", "sgl-project/sglang-jax#905",
     "the sinks are left out"},
    {"sinks-twice", kForward, "the sinks are counted twice", "ROCm/rocm-libraries#12227",
     "the sinks are counted twice"},
    {"sinks-next-head", kForward, "each head has the sink of the next one", "NovaSky-AI/SkyRL#558"},
    {"empty-rows-nan", kForward, "queries without a key are NaN", "pytorch/pytorch#109517",
     "queries without a key are NaN"},
    {"dkv-one-head", kBackward, "dk and dv are those of the last query head of a group",
     "marin-community/levanter#449, XunhaoLai/native-sparse-attention-triton#27",
     "only the last query head of each key head is counted"},
    {"delta-batch-0", kBackward, "delta is that of batch entry 0",
     "NVIDIA/TransformerEngine#3216, Dao-AILab/flash-attention#2552", "delta is that of batch entry 0"},
    {"k-prescaled", kBackward, "keys are multiplied by the scale and rounded before the product",
     "hao-ai-lab/FastVideo#1730"},
    {"tail-rows", kProduct, "rows of no group take the weights of the last group",
     "pytorch/pytorch#154557, pytorch/torchtitan#1237"},
    {"weights-transposed", kProduct, "the weights are read as their transpose",
     "unslothai/unsloth-zoo#849, huggingface/transformers#47031", "the weights are read as their transpose"},
    {"tile-label", kProduct, "the rows of a tile of 128 take the group of the first",
     "deepseek-ai/DeepGEMM#450"},
    {"k-tail", kProduct, "the contraction ends after whole tiles", "AI-Hypercomputer/maxtext#1183",
     "what is left of the contraction after whole tiles"},
    {"expert-next", kProduct, "each group takes the weights of the next one",
     "ikawrakow/ik_llama.cpp#2437, marin-community/marin#8793", "rows take the weights of the next group"},
    {"conv-runs-on", kConvolution, "a sequence reads the last tokens of the one before",
     "huggingface/transformers#46588, pytorch/torchtitan#3892",
     "the last tokens of a sequence run on into the next one"},
    {"conv-activation", kConvolution, "silu is left out, or applied where there is none",
     "sgl-project/sgl-kernel-npu#449", "the activation of sums"},
    {"conv-bias", kConvolution, "the bias of the channels is left out",
     "sgl-project/sgl-kernel-npu#736, tile-ai/tilelang-ascend#926", "the bias of the channels is left out"},
    {"conv-state-order", kConvolution, "the oldest token of a state is read as the newest",
     "vllm-project/vllm-ascend#8544", "the initial state is read with its newest token first"},
    {"conv-rounded", kConvolution, "sums are rounded before the activation", "sgl-project/sgl-kernel-npu#736",
     "sums are rounded to"},
};

}  // namespace

std::span<const Fault> fault_catalogue() { return kFaults; }

const Fault* find_fault(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFaults), std::end(kFaults), [&](const Fault& f) { return f.name == name; });
  return found == std::end(kFaults) ? nullptr : found;
}

const Fault* fault_named_by(std::string_view explanation) {
  if (explanation.starts_with('\'') && explanation.find("' is left out") != std::string_view::npos)
    return find_fault("term-ignored");
  const auto found = std::find_if(std::begin(kFaults), std::end(kFaults), [&](const Fault& f) {
    return !f.cause.empty() && explanation.starts_with(f.cause);
  });
  return found == std::end(kFaults) ? nullptr : found;
}

}  // namespace ejk
