// The topic of symptoms: a row of the table is what is seen, its usual cause, and a command that shows it.
//
// tests: tests/cli/test_symptoms.cpp

#include <fmt/format.h>

#include "help.hpp"

namespace ejk::app {

namespace {

struct Symptom {
  std::string_view family, seen, cause, command;
};

constexpr std::string_view kIntroduction = R"(Symptoms: from what is seen to the command that shows its cause

Each row is a symptom, its usual cause, and a command to paste. Other files take
the places of q.npy, k.npy and v.npy (inputs), out.npy (the kernel's result),
cu.npy (where documents begin) and model/: .npz, HDF5, safetensors, .pt.
--explain names the cause on the first line; --verbose adds where and how much.
)";

constexpr std::string_view kMaskSymptoms = "Masks and packed documents";
constexpr std::string_view kAttentionSymptoms = "Results of attention";
constexpr std::string_view kGradientSymptoms = "Gradients";
constexpr std::string_view kPageSymptoms = "Decoding and paged caches";
constexpr std::string_view kExpertSymptoms = "Mixture of experts";
constexpr std::string_view kModelSymptoms = "Checkpoints and low precision";
constexpr std::string_view kRunSymptoms = "Runs, layers and ranks";
constexpr std::string_view kTestSymptoms = "Tests";

constexpr Symptom kSymptoms[] = {
    {kMaskSymptoms, "loss falls and evaluation is wrong", "queries attend to later keys",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain"},
    {kMaskSymptoms, "documents influence each other", "their boundaries are ignored, or one token off",
     "ejk attention q.npy k.npy v.npy --mask 'causal & documents(cu.npy)' --against out.npy --explain"},
    {kMaskSymptoms, "packed training is worse than padded", "positions do not restart with documents",
     "ejk check position-ids position_ids.npy --cu-seqlens cu.npy"},
    {kMaskSymptoms, "a packed batch fails, or is one document", "lengths where offsets are expected",
     "ejk check cu-seqlens cu.npy --tokens 16384"},
    {kMaskSymptoms, "padding on the left changes a result", "padding is not masked",
     "ejk attention q.npy k.npy v.npy --segment-ids ids.npy --mask causal --against out.npy --explain"},
    {kMaskSymptoms, "a mask does the opposite", "True means masked, not kept", "ejk check mask mask.npy"},
    {kMaskSymptoms, "long text degrades a window model", "the window is off by one",
     "ejk attention q.npy k.npy v.npy --mask 'local(127, 0)' --against out.npy --explain"},
    {kMaskSymptoms, "right at 512 tokens, wrong at 1,024", "a window, a loop or a cache ends at 512",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain --try 'local(511, 0)'"},
    {kMaskSymptoms, "a block-sparse kernel misses keys", "its block lists are of another mask",
     "ejk check mask-info info.h5 --mask 'causal & documents(cu.npy)'"},
    {kMaskSymptoms, "which keys does a block list visit?", "each pair of the blocks that it lists",
     "ejk mask-info --mask 'visited(info.h5)' --block 50x50 --picture visited.svg"},
    {kMaskSymptoms, "a sparse kernel is as slow as dense", "at its block size few blocks are empty",
     "ejk sparsity --mask 'causal & documents(cu.npy)' --blocks 64x64,128x128"},

    {kAttentionSymptoms, "weights are flat, or one key takes all", "the scale is missing, or applied twice",
     "ejk attention q.npy k.npy v.npy --against out.npy --explain"},
    {kAttentionSymptoms, "NaN rows", "queries without a key",
     "ejk attention q.npy k.npy v.npy mask.npy --against out.npy --explain"},
    {kAttentionSymptoms, "garbage or zeros after N tokens", "the last tile is not written",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain"},
    {kAttentionSymptoms, "a bfloat16 kernel is off by 2e-2", "rounding, or a fault",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain"},
    {kAttentionSymptoms, "only some heads are right (GQA)", "query heads read another key/value head",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain"},
    {kAttentionSymptoms, "batch entry 0 alone is right", "a batch stride is missing",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npy --explain"},
    {kAttentionSymptoms, "lse is 1.4427 times as large", "it is to base 2",
     "ejk attention q.npy k.npy v.npy --mask causal --against out.npz --explain"},
    {kAttentionSymptoms, "split-K or ring attention is off", "parts are joined with lse to another base",
     "ejk attention q.npy k.npy v.npy --against out.npy --explain"},
    {kAttentionSymptoms, "large scores alone are wrong", "the soft cap is left out, or follows the mask",
     "ejk attention q.npy k.npy v.npy --softcap 5 --against out.npy --explain"},
    {kAttentionSymptoms, "the first rows are off most", "sinks are left out, or those of other heads",
     "ejk attention q.npy k.npy v.npy --sinks sinks.npy --against out.npy --explain"},

    {kGradientSymptoms, "gradients are off by a factor", "the scale is missing or applied twice",
     "ejk attention-grad q.npy k.npy v.npy dout.npy --mask causal --against grads/ --explain"},
    {kGradientSymptoms, "dk and dv are too small with GQA", "one query head counts, not their sum",
     "ejk attention-grad q.npy k.npy v.npy dout.npy --against dk.npy --explain"},

    {kPageSymptoms, "decoding is wrong, prefill right", "the mask is aligned at the first query",
     "ejk attention q.npy k.npy v.npy --mask 'causal(align=bottom-right)' --against out.npy --explain"},
    {kPageSymptoms, "another request's text appears", "a page is used twice, or missing",
     "ejk check block-table block_table.npy seq_lens.npy --page-size 16"},
    {kPageSymptoms, "text degrades at a page's end", "a stale page, or a length rounded up",
     "ejk attention q.npy kc.npy vc.npy --block-table block_table.npy --seq-lens seq_lens.npy "
     "--against out.npy --explain"},
    {kPageSymptoms, "new tokens are forgotten", "their slots are of other pages",
     "ejk check slot-mapping slots.npy block_table.npy seq_lens.npy --page-size 16"},

    {kExpertSymptoms, "tokens get another expert's output", "weights are exchanged or transposed",
     "ejk grouped-matmul x.npy w.npy group_sizes.npy --against y.npy --explain"},
    {kExpertSymptoms, "the first or last row of experts is wrong", "a group's end is one row off",
     "ejk grouped-matmul x.npy w.npy group_sizes.npy --against y.npy --explain"},
    {kExpertSymptoms, "a layer is wrong, its products right", "router weights, or gate and up exchanged",
     "ejk moe x.npy w13.npy w2.npy --logits logits.npy --top-k 2 --renormalize --against y.npy --explain"},
    {kExpertSymptoms, "rows are multiplied several times", "ends of groups are given as sizes",
     "ejk check group-sizes group_sizes.npy --m 16384"},
    {kExpertSymptoms, "prefill and decoding disagree", "the router chooses other experts",
     "ejk compare topk_ids.npy expected_ids.npy --routing"},
    {kExpertSymptoms, "one expert-parallel rank is slower", "its experts have most of the rows",
     "ejk route topk_ids.npy --experts 8 --ranks 4"},

    {kModelSymptoms, "a checkpoint talks nonsense", "scales are missing, NaN or inverted",
     "ejk check checkpoint model/"},
    {kModelSymptoms, "nonsense, although scales are valid", "they are in another layout or order",
     "ejk compare model/ original/ --decode --explain"},
    {kModelSymptoms, "fp8 is off by a factor", "a scale is left out, applied twice or inverted",
     "ejk compare out.npy expected.npy --explain"},

    {kRunSymptoms, "results change from run to run", "sums in the order of atomics, or a race",
     "ejk compare --runs run1.npy run2.npy run3.npy"},
    {kRunSymptoms, "logits differ from the reference", "one layer is the first to diverge",
     "ejk compare actual/ expected/ --first"},
    {kRunSymptoms, "one context-parallel rank is slower", "causal work is uneven",
     "ejk sparsity --mask 'causal & documents(cu.npy)' --blocks 128x128 --cp 4"},
    {kRunSymptoms, "context parallelism changes the loss", "tokens are in another order",
     "ejk check permutation order.npy --cp 4 --order head-tail"},
    {kRunSymptoms, "rows have the values of their neighbours", "rows are shifted or permuted",
     "ejk compare out.npy expected.npy --explain"},

    {kTestSymptoms, "the test passes, the kernel is wrong", "tolerance or inputs hide the fault",
     "ejk audit attention q.npy k.npy v.npy --mask 'local(255, 0)' --tolerance kernelbench"},
    {kTestSymptoms, "a test of experts passes for zeros", "results are smaller than the tolerance",
     "ejk audit grouped-matmul x.npy w.npy group_sizes.npy --atol 10"},
    {kTestSymptoms, "inputs that show each fault are wanted", "random ones miss edges of the mask",
     "ejk generate attention-inputs --revealing --mask causal -o qkv.npz"},
};

// A command in lines of at most 80 columns, which a shell joins.
std::string command_lines(std::string_view command) {
  constexpr std::size_t most = 76;
  if (command.size() <= most) return fmt::format("    {}\n", command);
  const std::size_t end = command.rfind(" --", most - 2);
  return fmt::format("    {} \\\n     {}\n", command.substr(0, end), command.substr(end));
}

}  // namespace

std::string symptoms_help() {
  std::string out(kIntroduction);
  std::string_view family;
  for (const Symptom& symptom : kSymptoms) {
    if (symptom.family != family) out += fmt::format("\n{}\n", family = symptom.family);
    out += fmt::format("  {}: {}\n", symptom.seen, symptom.cause) + command_lines(symptom.command);
  }
  return out;
}

}  // namespace ejk::app
