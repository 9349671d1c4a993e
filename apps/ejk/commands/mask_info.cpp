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
  bool dkv = false;
  bool dynamic = false;
  MaskInfoSettings how;
  std::optional<MaskLayout> layout;  // none: JAX's
  std::int64_t kv_seq_shards = 1;
  std::optional<WriteOrder> dq_write_order;
  bool require_exact = false;
  std::string q_sizes, kv_sizes, cu_seqlens, cu_seqlens_k;  // references
};

void check_words(const MaskInfoOptions& options) {
  const bool variable = options.layout == MaskLayout::flashinfer_variable,
             has_sizes = !options.q_sizes.empty() && !options.kv_sizes.empty();
  const bool needs_block = variable ? !has_sizes : !options.layout || has_blocks(*options.layout);
  if (needs_block && !options.block)
    throw usage("--block QxK is missing: the queries and keys of a block")
        .hint(variable ? "or --q-sizes and --kv-sizes" : "for example --block 128x128");
  const auto given = [](bool is, const char* option, const char* of) {
    if (is) throw usage("{} requires --layout {}", option, of);
  };
  const MaskInfoSettings usual;
  const bool jax = !options.layout, tokamax = options.layout == MaskLayout::tokamax;
  given(!variable && !options.q_sizes.empty(), "--q-sizes", "flashinfer-variable");
  given(!variable && !options.kv_sizes.empty(), "--kv-sizes", "flashinfer-variable");
  const bool packs = options.layout == MaskLayout::fa4 && !options.dkv;
  given(!packs && !options.cu_seqlens.empty(), "--cu-seqlens", "fa4, without --dkv");
  given(!packs && !options.cu_seqlens_k.empty(), "--cu-seqlens-k", "fa4, without --dkv");
  if (has_sizes && options.block) throw usage("--block and sizes of blocks: one of them");
  given(!needs_block && options.block.has_value(), "--block", "jax and others that have blocks");
  given(!jax && !tokamax && options.dynamic, "--dynamic", "jax and tokamax");
  const bool is_sharded = options.how.q_seq_shards != usual.q_seq_shards || options.kv_seq_shards != 1 ||
                          !options.how.shrink_grid;
  if (tokamax && options.dynamic && is_sharded)
    throw usage(
        "--dynamic excludes --q-seq-shards, --kv-seq-shards and --no-shrink-grid in --layout tokamax");
  given(!jax && options.how.head_shards != usual.head_shards, "--head-shards", "jax");
  given(!jax && !tokamax && options.how.q_seq_shards != usual.q_seq_shards, "--q-seq-shards",
        "jax and tokamax");
  given(!jax && !tokamax && !options.how.shrink_grid, "--no-shrink-grid", "jax and tokamax");
  given(!jax && !tokamax && !options.how.downcast, "--no-downcast", "jax and tokamax");
  given(!jax && !tokamax && !options.how.computable, "--no-computable", "jax and tokamax");
  given(!tokamax && options.kv_seq_shards != 1, "--kv-seq-shards", "tokamax");
  given(!jax && !tokamax && options.layout != MaskLayout::fa4 && options.dkv, "--dkv",
        "jax, tokamax and fa4");
  const bool has_columns =
      options.layout == MaskLayout::flex || (options.layout == MaskLayout::fa4 && options.dkv);
  given(options.dq_write_order && !has_columns, "--dq-write-order", "flex, or fa4 and --dkv");
  given(jax && options.require_exact, "--require-exact", "another library");
}

Output absent(const std::string& name, MaskInfoArray::Absent why) {
  using Absent = MaskInfoArray::Absent;
  return {name, nullptr,
          why == Absent::not_computable ? "only a single causal, local or chunked mask has one"
          : why == Absent::computed
              ? "a kernel computes a single causal, local or chunked mask; --no-computable writes it"
              : "no block is partial"};
}

std::vector<Output> outputs_of(const MaskInfo& info) {
  std::vector<Output> outputs;
  for (MaskInfoArray& array : arrays_of(info))
    outputs.push_back(array.elements ? Output{array.name, std::move(array.elements), {}}
                                     : absent(array.name, array.absent));
  return outputs;
}

std::vector<Output> outputs_of(const MaskInfoShare& share) {
  std::vector<Output> outputs;
  for (const MaskInfoShare::Array& array : share.arrays) {
    std::vector<OutputPart> parts;
    for (const MaskInfoShare::Part& part : array.parts) parts.push_back({part.box, part.elements});
    outputs.push_back(array.absent == MaskInfoArray::Absent::no
                          ? output_in_parts(array.name, array.type, std::move(parts))
                          : absent(array.name, array.absent));
  }
  return outputs;
}

const ArgumentOptions kArgumentOptions{{"q_sizes", "--q-sizes"},
                                       {"kv_sizes", "--kv-sizes"},
                                       {"cu_seqlens_q", "--cu-seqlens"},
                                       {"cu_seqlens_k", "--cu-seqlens-k"}};

MaskLayoutSettings layout_settings(const MaskInfoOptions& options, Job& job) {
  MaskLayoutSettings settings;
  settings.layout = *options.layout;
  settings.direction = options.dkv ? Direction::dkv : Direction::forward;
  settings.pad = options.how.pad;
  settings.q_seq_shards = options.how.q_seq_shards, settings.kv_seq_shards = options.kv_seq_shards;
  settings.shrink_grid = options.how.shrink_grid, settings.downcast = options.how.downcast;
  settings.computable = options.how.computable;
  settings.dynamic = options.dynamic;
  settings.dq_write_order = options.dq_write_order;
  for (auto [role, word, sizes] : {std::tuple{"q_sizes", &options.q_sizes, &settings.q_sizes},
                                   std::tuple{"kv_sizes", &options.kv_sizes, &settings.kv_sizes},
                                   std::tuple{"cu_seqlens", &options.cu_seqlens, &settings.cu_seqlens_q},
                                   std::tuple{"cu_seqlens_k", &options.cu_seqlens_k, &settings.cu_seqlens_k}})
    if (!word->empty()) {
      const auto array = job.open_integers(role, *word);
      *sizes = job.phase(Phase::read, [&] { return in_memory(*array); });
    }
  return settings;
}

// Every rank makes the arrays, which are no work beside the scan, and the first one writes them.
Outcome run_layout(const MaskInfoOptions& options, const Masks& masks, MaskLayoutSettings settings,
                   Job& job) {
  const BlockShape block = options.block ? *options.block : scan_block(masks.q_length, masks.kv_length);
  const std::int64_t peak = plan_of_masks(
      options.masks, masks, [&] { return mask_arrays_bytes(masks.heads, block, settings); },
      kArgumentOptions);
  Report planned;
  planned.warnings = masks.warnings();
  planned.add("layout", "layout", std::string(name_of(settings.layout)))
      .add("heads", "heads", masks.head_count(), Unit::count)
      .add("queries", "queries", masks.q_length, Unit::count)
      .add("keys", "keys", masks.kv_length, Unit::count)
      .add("block", "block", Shape{block.q, block.kv})
      .add("dense_mask", "dense mask as bools",
           byte_count(Shape{masks.head_count(), masks.q_length, masks.kv_length}, DType::boolean),
           Unit::bytes);
  if (job.plan(std::move(planned), peak)) return Outcome::passed;
  settings.max_pattern_bytes = std::max<std::int64_t>(job.budget.bytes() - peak, 1);
  settings.progress = job.progress();
  const MaskArrays made =
      job.phase(Phase::compute, [&] { return make_mask_arrays(masks.heads, block, settings); });
  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  report.warnings = masks.warnings();
  append(report, describe(made));
  std::vector<Output> outputs;
  for (const auto& [name, array] : made.arrays) {
    const ArrayType type = type_of(*array);
    outputs.push_back(job.comm.is_single()
                          ? Output{name, array, {}}
                          : output_in_parts(name, type,
                                            job.comm.is_first()
                                                ? std::vector<OutputPart>{{whole_box(type.shape), array}}
                                                : std::vector<OutputPart>()));
  }
  for (const std::string& name : mask_array_names(settings.layout))
    if (std::none_of(outputs.begin(), outputs.end(),
                     [&](const Output& output) { return output.name == name; }))
      outputs.push_back({name, nullptr,
                         name == "q_sequence"            ? "only a causal, local or chunked mask has one"
                         : name == "dkv"                 ? "it is for the forward pass"
                         : name.ends_with("_seq_shards") ? "it is written for several shards"
                         : name.starts_with("cu_")       ? "--cu-seqlens writes it"
                         : name.starts_with("dq_") || name == "spt"
                             ? "--dq-write-order writes it"
                             : "no block is partial, or the kernel computes those"});
  const bool fails = options.require_exact && made.differing > 0;
  if (fails) outputs.clear();
  if (made.differing > 0)
    report.warnings.push_back(
        fmt::format("{} of {} elements differ from the mask: the layout {} cannot store "
                    "it{}",
                    made.differing, masks.head_count() * masks.q_length * masks.kv_length,
                    name_of(settings.layout), fails ? ", and nothing is written" : ""));
  job.deliver(std::move(report), outputs);
  return fails ? Outcome::failed : Outcome::passed;
}

Outcome run(const MaskInfoOptions& options, Job& job) {
  check_words(options);
  MaskLayoutSettings settings;
  MaskSet::Given lengths;
  if (options.layout) {
    settings = layout_settings(options, job);
    lengths = {naming_options(kArgumentOptions, [&] { return lengths_of(settings); }),
               settings.cu_seqlens_q ? "--cu-seqlens" : "--q-sizes"};
  }
  const Masks masks = job.phase(Phase::read, [&] { return resolve_masks(options.masks, job, lengths); });
  job.provenance.record("shape",
                        fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  if (options.layout) return run_layout(options, masks, std::move(settings), job);
  const MaskInfoPlan plan = plan_of_masks(options.masks, masks, [&] {
    return MaskInfoPlan(masks.heads, *options.block, options.dkv ? Direction::dkv : Direction::forward,
                        options.dynamic ? MaskInfoKind::dynamic : MaskInfoKind::fixed, options.how);
  });
  Report description = describe(plan);
  description.warnings = masks.warnings();
  std::vector<RankWork> work{{.peak_bytes = plan.work_bytes()}};
  if (!job.comm.is_single()) work = plan.shares(job.comm.size());
  const auto peak = [](const RankWork& a, const RankWork& b) { return a.peak_bytes < b.peak_bytes; };
  if (job.plan(
          std::move(description), std::max_element(work.begin(), work.end(), peak)->peak_bytes,
          [&](std::int64_t ranks) { return plan.shares(ranks); }, CostUnit::bytes))
    return Outcome::passed;
  // What is left for the partial blocks of this rank.
  const std::int64_t max_pattern_bytes = std::max<std::int64_t>(
      job.budget.bytes() - work[static_cast<std::size_t>(job.comm.rank())].peak_bytes, 1);

  const auto progress = job.progress();
  // A single process runs the plan; several ranks run their shares, and only rank 0 reports.
  MaskInfoShare share;
  job.phase(Phase::compute, [&] {
    if (job.comm.is_single())
      share.info = plan.run(progress, max_pattern_bytes);
    else
      share = plan.run_with(job.comm, progress, max_pattern_bytes);
  });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (share.info && share.info->mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  report.warnings = masks.warnings();
  if (share.info) append(report, describe(*share.info));

  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = options.dynamic;
  std::vector<Output> outputs = job.comm.is_single() ? outputs_of(*share.info) : outputs_of(share);
  outputs.push_back({"is_dynamic_mask", make_source(dynamic.view()), {}});
  job.deliver(std::move(report), outputs);
  return Outcome::passed;
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
  Choices<std::optional<MaskLayout>> layouts{{"jax", std::nullopt}};
  for (const MaskLayout layout : kMaskLayouts) layouts.emplace_back(name_of(layout), layout);
  add_choice(set, "--layout", options->layout, std::move(layouts), "LAYOUT",
             "the arrays of a library, under its names\njax: splash attention and ejkernel. tokamax. flex: "
             "PyTorch's BlockMask. fa4: FlashAttention-4. bsr: SciPy. flashinfer; flashinfer-variable: its "
             "blocks of any sizes. flashmask: Paddle. magi: MagiAttention.")
      .recorded();
  add_flag(set, "--dkv", options->dkv,
           "for the backward pass of keys and values\n"
           "data_next then names query blocks, and partial blocks are transposed.")
      .recorded();
  add_flag(set, "--dynamic", options->dynamic,
           "keep every block of every head\nNothing is merged or shrunk: for masks that change at run time.")
      .recorded();
  add_reference(set, "--cu-seqlens", options->cu_seqlens,
                "of fa4: where packed sequences begin, and the end (sequences + 1,)\n"
                "The blocks of each sequence begin with it; pairs of two sequences cannot be stored.");
  add_reference(set, "--cu-seqlens-k", options->cu_seqlens_k, "the same of keys, where they are others")
      .needs("--cu-seqlens");
  add_choice(set, "--dq-write-order", options->dq_write_order,
             named_choices<std::optional<WriteOrder>>({WriteOrder::ascending, WriteOrder::descending}),
             "ORDER",
             "of flex, and of fa4 with --dkv: the order of key blocks in dQ\n"
             "For a deterministic backward pass: how many key blocks add to a tile of dQ before each.")
      .recorded();
  add_word(set, "--head-shards", options->how.head_shards, at_least(1), "N", "devices that share the heads")
      .recorded();
  add_word(set, "--q-seq-shards", options->how.q_seq_shards, at_least(1), "N",
           "devices that share the queries")
      .recorded();
  add_word(set, "--kv-seq-shards", options->kv_seq_shards, at_least(1), "N",
           "devices that share the keys, with --layout tokamax")
      .recorded();
  add_flag(
      set, "--require-exact", options->require_exact,
      "write nothing where the layout cannot store the mask\nThe exit code is 1 then; otherwise a warning "
      "counts the elements.");
  add_flag(set, "--no-shrink-grid", options->how.shrink_grid,
           "keep empty blocks in the grid\nOtherwise they go where all heads have the same mask.", false)
      .recorded("shrink_grid");
  add_flag(set, "--no-downcast", options->how.downcast,
           "index arrays in int32\nOtherwise each in the narrowest of int8, int16 and int32.", false)
      .recorded("downcast");
  add_flag(set, "--pad", options->how.pad,
           "fill up lengths that blocks do not divide with False\nDensities count the true area alone.")
      .recorded();
  add_flag(
      set, "--no-computable", options->how.computable,
      "write a computable mask's blocks as well\nOtherwise a single causal or local mask, or a chunked one "
      "without an offset, has no mask_next and partial_mask_blocks: a kernel computes it from positions.",
      false)
      .recorded("computable");
  declare_picture(set);
  set.set_outputs([options] {
    if (options->layout) return mask_array_names(*options->layout);
    std::vector<std::string> names = {"data_next",           "mask_next",  "block_mask",
                                      "partial_mask_blocks", "q_sequence", "is_dynamic_mask"};
    return names;
  });
  set.set_footer(kMaskHelp);
  return [options](Job& job) { return run(*options, job); };
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
    .declare = declare_mask_info,
    .is_divided = true,
};

}  // namespace ejk::app
