// ejk mask-info: the MaskInfo arrays of masks, and a sparsity report.
// tests: tests/cli/mask-info/
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "commands.hpp"
#include "ejk/mask_layouts.hpp"
#include "masks.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct MaskInfoOptions {
  MaskOptions masks;
  std::optional<BlockShape> block;
  MaskLayoutSettings settings;
  bool require_exact = false;
  std::string q_sizes, kv_sizes, cu_seqlens, cu_seqlens_k;  // references
};

// "a, b and c".
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t n = 0; n < words.size(); ++n)
    text += (n == 0 ? "" : n + 1 < words.size() ? ", " : " and ") + words[n];
  return text;
}

// The layouts that take a setting: "jax, tokamax and fa4"; "flex, or fa4 and --dkv".
std::string layouts_with(std::string_view setting) {
  std::vector<std::string> names, of_direction;
  for (const MaskLayout layout : kMaskLayouts)
    for (const LayoutSetting& taken : layout_settings(layout))
      if (const std::string name(name_of(layout)); taken.name == setting && !taken.direction)
        names.push_back(name);
      else if (taken.name == setting)
        of_direction.push_back(name + (taken.direction == Direction::dkv ? " and --dkv" : ", without --dkv"));
  if (setting == "block") return names.front() + " and others that have blocks";
  std::string text = listed(names);
  for (const std::string& name : of_direction) text += (text.empty() ? "" : ", or ") + name;
  return text;
}

// Options are the settings of layouts by the same names.
void check_options(const MaskInfoOptions& options, const OptionSet& set) {
  const MaskLayoutSettings& how = options.settings;
  const auto takes = [&](std::string_view name) { return ejk::takes(how.layout, name, how.direction); };
  const bool has_sizes = !options.q_sizes.empty() && !options.kv_sizes.empty();
  if (takes("block") && !options.block && !(takes("q_sizes") && has_sizes))
    throw usage("--block QxK is missing: the queries and keys of a block")
        .hint(takes("q_sizes") ? "or --q-sizes and --kv-sizes" : "for example --block 128x128");
  for (const Option& option : set.options())
    if (option.is_given && !takes(option.record_key))
      if (const std::string layouts = layouts_with(option.record_key); !layouts.empty())
        throw usage("{} requires --layout {}", option.name(), layouts);
  if (has_sizes && options.block) throw usage("--block and sizes of blocks: one of them");
  std::vector<std::string> excluded;
  bool is_given = false;
  for (const Option& option : set.options())
    for (const LayoutSetting& setting : layout_settings(how.layout))
      if (setting.is_static && setting.name == option.record_key) {
        excluded.push_back(option.name());
        is_given = is_given || option.is_given;
      }
  if (how.dynamic && is_given)
    throw usage("--dynamic excludes {} in --layout {}", listed(excluded), name_of(how.layout));
}

const char* reason_of(AbsentArray why) {
  switch (why) {
    case AbsentArray::no_partial_block:
      return "no block is partial";
    case AbsentArray::every_block:
      return "the kernel walks every block";
    case AbsentArray::computed:
      return "a kernel computes a single causal, local or chunked mask; --no-computable writes it";
    case AbsentArray::not_computable:
      return "only a single causal, local or chunked mask has one";
    case AbsentArray::forward:
      return "it is for the forward pass";
    case AbsentArray::one_shard:
      return "it is written for several shards";
    case AbsentArray::no_sequences:
      return "--cu-seqlens writes it";
    case AbsentArray::no_write_order:
      return "--dq-write-order writes it";
  }
  return "";
}

std::vector<Output> outputs_of(const MaskArrays& made) {
  std::vector<Output> outputs;
  for (const MaskArray& array : made.arrays) outputs.push_back({array.name, array.elements, {}, array.parts});
  for (const auto& [name, why] : made.absent) outputs.push_back({name, nullptr, reason_of(why)});
  return outputs;
}

const ArgumentOptions kArgumentOptions{{"q_sizes", "--q-sizes"},
                                       {"kv_sizes", "--kv-sizes"},
                                       {"cu_seqlens_q", "--cu-seqlens"},
                                       {"cu_seqlens_k", "--cu-seqlens-k"}};

void open_integers(const MaskInfoOptions& options, MaskLayoutSettings& settings, Job& job) {
  for (auto [role, word, array] : {std::tuple{"q_sizes", &options.q_sizes, &settings.q_sizes},
                                   std::tuple{"kv_sizes", &options.kv_sizes, &settings.kv_sizes},
                                   std::tuple{"cu_seqlens", &options.cu_seqlens, &settings.cu_seqlens_q},
                                   std::tuple{"cu_seqlens_k", &options.cu_seqlens_k, &settings.cu_seqlens_k}})
    if (!word->empty()) {
      const auto source = job.open_integers(role, *word);
      *array = job.phase(Phase::read, [&] { return in_memory(*source); });
    }
}

Outcome deliver(const MaskInfoOptions& options, const Masks& masks, const MaskArrays& made, Job& job) {
  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  std::vector<std::string> computed;
  for (const auto& [name, why] : made.absent)
    if (why == AbsentArray::computed) computed.push_back(name);
  if (!computed.empty())
    report.add(
        Remark{fmt::format("{} are left out: a kernel computes a single causal, local or chunked mask from "
                           "positions. --no-computable writes them.",
                           listed(computed))});
  report.warnings = masks.warnings();
  if (job.comm.is_first()) append(report, describe(made));
  const bool fails = options.require_exact && made.differing > 0;
  if (made.differing > 0)
    report.warnings.push_back(
        fmt::format("{} of {} elements differ from the mask: the layout {} cannot store it{}", made.differing,
                    masks.head_count() * masks.q_length * masks.kv_length, name_of(options.settings.layout),
                    fails ? ", and nothing is written" : ""));
  job.deliver(std::move(report), fails ? std::vector<Output>() : outputs_of(made));
  return fails ? Outcome::failed : Outcome::passed;
}

Outcome run(const MaskInfoOptions& options, const OptionSet& set, Job& job) {
  check_options(options, set);
  MaskLayoutSettings settings = options.settings;
  open_integers(options, settings, job);
  const MaskSet::Given lengths{naming_options(kArgumentOptions, [&] { return lengths_of(settings); }),
                               settings.cu_seqlens_q ? "--cu-seqlens" : "--q-sizes"};
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options.masks, job, lengths); });
  job.provenance.record("shape",
                        fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  const BlockShape block = options.block ? *options.block : scan_block(masks.q_length, masks.kv_length);
  const auto plan = plan_of_masks(
      options.masks, masks, [&] { return MaskArraysPlan(masks.heads, block, settings); }, kArgumentOptions);
  Report description = describe(plan);
  description.warnings = masks.warnings();
  std::vector<RankWork> work{{.peak_bytes = plan.work_bytes()}};
  if (!job.comm.is_single()) work = plan.shares(job.comm.size());
  Division division;
  if (plan.is_divided()) division = [&](std::int64_t ranks) { return plan.shares(ranks); };
  if (job.plan(std::move(description), peak_of(work), division, CostUnit::bytes)) return Outcome::passed;
  // What is left for the partial blocks of this rank.
  const std::int64_t max_pattern_bytes = std::max<std::int64_t>(
      job.budget.bytes() - work[static_cast<std::size_t>(job.comm.rank())].peak_bytes, 1);
  const auto progress = job.progress();
  return deliver(options, masks,
                 job.phase(Phase::compute, [&] { return plan.run(job.comm, progress, max_pattern_bytes); }),
                 job);
}

Run declare_mask_info(OptionSet& set) {
  const auto options = std::make_shared<MaskInfoOptions>();
  declare_masks(set, options->masks);
  add_word(set, "--block", options->block, read_block, "QxK",
           "queries and keys of a block, such as 128x128\nflashmask and magi have none.")
      .recorded();
  add_reference(set, "--q-sizes", options->q_sizes,
                "of flashinfer-variable: the queries of each block (blocks,)\n"
                "With --kv-sizes in place of --block. A block that is partial is computed whole.");
  add_reference(set, "--kv-sizes", options->kv_sizes, "the same of keys");
  MaskLayoutSettings& how = options->settings;
  add_choice(set, "--layout", how.layout, named_choices<MaskLayout>(kMaskLayouts), "LAYOUT",
             "the arrays of a library, under its names\njax: splash attention and ejkernel. tokamax. flex: "
             "PyTorch's BlockMask. fa4: FlashAttention-4. bsr: SciPy. flashinfer; flashinfer-variable: its "
             "blocks of any sizes. flashmask: Paddle. magi: MagiAttention.")
      .recorded("layout", [&how] {
        return how.layout == MaskLayoutSettings().layout ? ReportValue() : report_value(how.layout);
      });
  add_flag(set, "--dkv", how.direction, Direction::dkv,
           "for the backward pass of keys and values\n"
           "data_next then names query blocks, and partial blocks are transposed.")
      .recorded("dkv", [&how] { return how.direction == Direction::dkv; });
  add_flag(set, "--dynamic", how.dynamic,
           "keep every block of every head\nNothing is merged or shrunk: for masks that change at run time.")
      .recorded();
  add_reference(set, "--cu-seqlens", options->cu_seqlens,
                "of fa4: where packed sequences begin, and the end (sequences + 1,)\n"
                "The blocks of each sequence begin with it; pairs of two sequences cannot be stored.");
  add_reference(set, "--cu-seqlens-k", options->cu_seqlens_k, "the same of keys, where they are others")
      .needs("--cu-seqlens");
  add_choice(set, "--dq-write-order", how.dq_write_order,
             named_choices<std::optional<WriteOrder>>({WriteOrder::ascending, WriteOrder::descending}),
             "ORDER",
             "of flex, and of fa4 with --dkv: the order of key blocks in dQ\n"
             "For a deterministic backward pass: how many key blocks add to a tile of dQ before each.")
      .recorded();
  add_word(set, "--head-shards", how.head_shards, at_least(1), "N", "devices that share the heads")
      .recorded();
  add_word(set, "--q-seq-shards", how.q_seq_shards, at_least(1), "N", "devices that share the queries")
      .recorded();
  add_word(set, "--kv-seq-shards", how.kv_seq_shards, at_least(1), "N",
           "devices that share the keys, with --layout tokamax")
      .recorded();
  add_flag(
      set, "--require-exact", options->require_exact,
      "write nothing where the layout cannot store the mask\nThe exit code is 1 then; otherwise a warning "
      "counts the elements.");
  add_flag(set, "--no-shrink-grid", how.shrink_grid,
           "keep empty blocks in the grid\nOtherwise they go where all heads have the same mask.", false)
      .recorded("shrink_grid");
  add_flag(set, "--no-downcast", how.downcast,
           "index arrays in int32\nOtherwise each in the narrowest of int8, int16 and int32.", false)
      .recorded("downcast");
  add_flag(set, "--pad", how.pad,
           "fill up lengths that blocks do not divide with False\nDensities count the true area alone.")
      .recorded();
  add_flag(
      set, "--no-computable", how.computable,
      "write a computable mask's blocks as well\nOtherwise a single causal or local mask, or a chunked one "
      "without an offset, has no mask_next and partial_mask_blocks: a kernel computes it from positions.",
      false)
      .recorded("computable");
  declare_picture(set);
  set.set_outputs([&how] { return mask_array_names(how.layout); });
  return [options, &set](Job& job) { return run(*options, set, job); };
}

}  // namespace

extern const Command mask_info_command{
    .name = "mask-info",
    .group = "Masks",
    .summary = "block metadata of attention masks, and how sparse they are",
    .example = "ejk mask-info --mask 'causal & documents(cu.npy)' --block 128x128 -o info.h5",
    .outputs =
        {{"data_next", "(rows, q blocks, kv blocks) int8, int16 or int32",
          "the key block (with --dkv: the query block of the shard) to load: that of this position where it is not empty, else of the next one in the kernel's walk. rows are heads, or head shards where each has one mask alone. Where all heads have one mask, empty blocks are left out and the last axis (--dkv: the one before) is shorter"},
         {"mask_next", "the shape of data_next",
          "the index in partial_mask_blocks of this or the next partial block"},
         {"block_mask", "the shape of data_next", "the state of this block: 0 empty, 1 partial, 2 full"},
         {"partial_mask_blocks", "(P, bq, bk) bool",
          "the distinct partial blocks; none where a kernel computes the mask (--no-computable). With --dkv (P, bk, bq); with --dynamic every block, (heads, q blocks, kv blocks, bq, bk)"},
         {"q_sequence", "(Q,) int32",
          "0, 1, 2, ...: for a kernel that computes a causal, local or chunked mask"},
         {"is_dynamic_mask", "() bool", "whether --dynamic was given"},
         {"active_rows, active_cols", "(steps,) int8, int16 or int32",
          "tokamax: the block of each step, in its shard; mask_next and block_mask as long"},
         {"num_active_blocks", "(shards,) int32", "tokamax: the steps of each shard"},
         {"kv_num_blocks, full_kv_num_blocks", "(1, H, q blocks) int32",
          "flex: how many blocks of a row are partial, and full"},
         {"kv_indices, full_kv_indices", "(1, H, q blocks, kv blocks) int32", "flex: these blocks"},
         {"q_num_blocks, full_q_num_blocks", "(1, H, kv blocks) int32", "flex: the same of a column"},
         {"q_indices, full_q_indices", "(1, H, kv blocks, q blocks) int32", "flex: these blocks"},
         {"dq_write_order, dq_write_order_full", "the shape of q_indices, of fa4 of mask_block_idx, int32",
          "with --dq-write-order: how many key blocks add to dQ of this query block before this one"},
         {"dq_kv_order_spt, spt", "() bool", "flex, fa4: whether that order is descending"},
         {"mask_block_cnt, full_block_cnt", "(1, H, q blocks) int32",
          "fa4: how many blocks of a row (--dkv: a column) are partial, and full"},
         {"mask_block_idx, full_block_idx", "(1, H, q blocks, kv blocks) int32", "fa4: these blocks"},
         {"cu_total_m_blocks, cu_block_idx_offsets", "(sequences + 1,) int32",
          "fa4 with --cu-seqlens: the first query block, and index, of each sequence; counts are (H, q blocks), indices (H, N)"},
         {"cu_seqlens_q, cu_seqlens_k", "(sequences + 1,) int32", "fa4 with --cu-seqlens: as given"},
         {"partial_block_ids", "int32", "flex, fa4: the partial block of each entry in partial_mask_blocks"},
         {"indptr, indices", "(q blocks + 1,), (blocks,) int32",
          "bsr, flashinfer: the blocks of row i are indices[indptr[i]:indptr[i + 1]]"},
         {"data", "(blocks, bq, bk) bool", "bsr: the elements of each block"},
         {"packed_mask", "(bytes,) uint8", "flashinfer: the same as bits"},
         {"M, N, R, C", "() int32", "flashinfer: queries and keys, of the mask and of a block"},
         {"block_mask_map", "(H, q blocks, kv blocks) bool",
          "flashinfer-variable: which blocks attend, whole"},
         {"block_row_sz, block_col_sz", "(H, q blocks), (H, kv blocks) int32",
          "flashinfer-variable: the queries and keys of each block"},
         {"startend_row_indices", "(1, H, keys, n) int32",
          "flashmask: the hidden queries of each key, n 1, 2 or 4"},
         {"causal", "() bool", "flashmask: whether the queries before a key are hidden as well"},
         {"q_ranges, k_ranges", "(slices, 2) int32", "magi: the queries and keys of each slice"},
         {"attn_type_map", "(slices,) int32", "magi: 0 full, 1 causal, 2 inverse causal, 3 both"},
         {"block, BLOCK_SIZE, block_size", "(2,) int32",
          "of other libraries: the queries and keys of a block"},
         {"shape, seq_lengths", "(2,) int32", "of other libraries: queries and keys"},
         {"dkv", "() bool", "tokamax, fa4: whether --dkv was given"},
         {"q_seq_shards, kv_seq_shards", "() int32",
          "tokamax: the numbers of shards, where there are several"}},
    .use = R"(with h5py.File("info.h5") as f: a = {name: f[name][()] for name in f}
for h, i, j in np.argwhere(a["block_mask"]):  # not the empty ones
    key_block = a["data_next"][h, i, j]       # that query block i reads
    if a["block_mask"][h, i, j] == 1:         # the pairs of it that attend
        allowed = a["partial_mask_blocks"][a["mask_next"][h, i, j]])",
    .keys = R"(
direction | string | forward or dkv: the order in which a kernel walks the blocks | done; of other layouts with --dkv
kind | string | static; static, computable; or dynamic | done, of JAX's layout
layout | string | the library's arrays | with another --layout
exact | boolean | whether the arrays have exactly the mask | with another --layout
differing_elements | integer | elements in which they differ | where they are not exact
first_difference | shape | the first of them: head, query, key | where they are not exact
shape | shape | heads, queries, keys | done
heads, queries, keys | integer | heads, and queries and keys of a head | plan
block | shape | queries and keys of a block
grid | shape | heads, query blocks, key blocks | with --dry-run, of JAX's layout
padded_shape | shape | the shape after padding with False | with --pad, where it adds something
head_shards | integer | devices that share the heads | with --head-shards above 1
q_seq_shards | integer | devices that share the queries | with --q-seq-shards above 1
alignment | string | how queries and keys are aligned | where queries and keys differ in number
masks | table | the distinct masks | done
  mask | integer | its number
  heads | string | the heads that have it: 0-3, 7
  expression | string | the mask as an expression
  empty_blocks, partial_blocks, full_blocks | integer | blocks with no, some, only True elements
  block_sparsity, element_sparsity | share | empty blocks / blocks; False elements / elements
  distinct_partial_blocks | integer or null | partial blocks that differ from each other; null with --dynamic
  mean_keys_per_query | number | keys per query, on average
  keys_of_middle_query | integer or null | keys of the middle query; null where the mask is read in order
total | section | the sums over all heads | done
  blocks | integer | blocks
  empty_blocks, partial_blocks, full_blocks | integer | blocks with no, some, only True elements
  block_sparsity | share | empty blocks / blocks
  work_left | share | blocks that a kernel computes / blocks
  element_sparsity | share | False elements / elements
  true_elements | integer | True elements
  distinct_partial_blocks | integer | partial blocks that differ from each other | not with --dynamic
  rows_without_key, keys_without_row | integer | queries that attend to no key; keys that no query attends to
  grid, shrunk_grid | shape | the grid of blocks, and that of the arrays | of JAX's layout
rows_without_key | table | ranges of queries that attend to no key, at most 10,000 | done
  mask, begin, end, count | integer | the mask's number; the first, the one after the last, their count
keys_without_row | table | ranges of keys that no query attends to, at most 10,000 | done
  mask, begin, end, count | integer | the mask's number; the first, the one after the last, their count
arrays | table | the arrays that are written; with --dry-run at most | not with --dry-run of another --layout
  name | string | its name
  dtype | string | its element type
  shape | shape | its shape
  size_bytes | integer | bytes of its elements
arrays_bytes | integer | bytes of all arrays | done
dense_mask_bytes | integer | bytes of the dense mask as bools
arrays_of_dense | number | arrays_bytes / dense_mask_bytes | done
rows_of_blocks | table | the heaviest and lightest rows of blocks | without --dkv
  mask | integer | the mask's number
  rank | string | heaviest or lightest
  row | integer | the row of blocks
  q_begin | integer | its first query
  blocks | integer | blocks of it that are computed
  share | share | of all blocks of the row
columns_of_blocks | table | the heaviest and lightest columns of blocks | with --dkv
  mask | integer | the mask's number
  rank | string | heaviest or lightest
  column | integer | the column of blocks
  kv_begin | integer | its first key
  blocks | integer | blocks of it that are computed
  share | share | of all blocks of the column
picture_N | picture | the blocks of mask N: queries down, keys across | for masks 0 to 3
)",
    .arrays_of =
        [](std::string_view layout) {
          const auto is_named = [&](MaskLayout one) { return name_of(one) == layout; };
          return mask_array_names(*std::find_if(std::begin(kMaskLayouts), std::end(kMaskLayouts), is_named));
        },
    .declare = declare_mask_info,
    .is_divided = true,
};

}  // namespace ejk::app
