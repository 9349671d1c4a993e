// ejk mask-info: the MaskInfo arrays of masks, and a report of how sparse they are.
//
// tests: tests/cli/mask-info/
#include "ejk/mask_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "commands.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

struct MaskInfoOptions {
  MaskOptions masks;
  BlockShape block;
  bool dkv = false;
  bool dynamic = false;
  std::int64_t head_shards = 1;
  std::int64_t q_seq_shards = 1;
  bool no_shrink_grid = false;
  bool no_downcast = false;
  bool pad = false;
  bool no_computable = false;
};

std::int64_t whole_blocks(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

// The narrowest of int8, int16, int32 that holds `largest`.
const char* narrowest(std::int64_t largest, bool downcast) {
  return !downcast || largest > 32767 ? "int32" : largest > 127 ? "int16" : "int8";
}

// Whether all heads have the same mask, as far as that can be told without reading an array.
bool one_mask(const std::vector<Mask>& heads) {
  const Mask& first = heads.front();
  return std::all_of(heads.begin(), heads.end(), [&](const Mask& mask) {
    return &mask.node() == &first.node() ||
           (mask.is_computable() && first.is_computable() && mask.same_as(first));
  });
}

// What --dry-run says: bounds, since how many partial blocks differ is known only afterwards.
Report describe_plan(const MaskInfoOptions& options, const Masks& masks) {
  const std::int64_t heads = masks.head_count();
  const std::int64_t q_blocks = whole_blocks(masks.q_length, options.block.q);
  const std::int64_t kv_blocks = whole_blocks(masks.kv_length, options.block.kv);
  const bool padded =
      q_blocks * options.block.q != masks.q_length || kv_blocks * options.block.kv != masks.kv_length;

  Report report;
  report.warnings = masks.warnings;
  report.add("heads", "heads", heads)
      .add("queries", "queries", masks.q_length, Unit::rows)
      .add("keys", "keys", masks.kv_length, Unit::keys)
      .add("block", "block", Shape{options.block.q, options.block.kv}, Unit::count)
      .add("grid", "grid", Shape{heads, q_blocks, kv_blocks}, Unit::blocks)
      .add("dense_mask", "dense mask as bools",
           byte_count(Shape{heads, masks.q_length, masks.kv_length}, DType::boolean), Unit::bytes);

  Table table{"arrays",
              "arrays, at most",
              {{"name", "array"}, {"shape", "shape"}, {"dtype", "dtype"}, {"size", "size", Unit::bytes}},
              {}};
  const auto row = [&](const char* name, Shape shape, const std::string& dtype) {
    const std::int64_t bytes = byte_count(shape, *dtype_named(dtype));
    table.rows.push_back({name, std::move(shape), dtype, bytes});
  };
  // The largest values of a dynamic mask's indices are bounds, those of a static one are counted from 0.
  const bool one = !options.dynamic && one_mask(masks.heads);
  const std::int64_t rows = one ? options.head_shards : heads;
  const std::int64_t q_blocks_of_shard = q_blocks / options.q_seq_shards;
  const std::int64_t next = options.dkv ? q_blocks_of_shard : kv_blocks;
  const std::int64_t partial =
      options.dynamic ? element_count(Shape{heads / options.head_shards, q_blocks_of_shard, kv_blocks})
                      : element_count(Shape{one ? 1 : heads, q_blocks, kv_blocks});
  const std::int64_t last = options.dynamic ? 0 : 1;
  const bool downcast = !options.no_downcast;
  const Shape grid{rows, q_blocks, kv_blocks};
  Shape pattern{options.block.q, options.block.kv};
  if (options.dkv) std::swap(pattern[0], pattern[1]);
  const bool computable = one && masks.heads.front().is_computable() && !padded && !options.no_computable;

  row("data_next", grid, narrowest(next - last, downcast));
  if (!computable) row("mask_next", grid, narrowest(partial - last, downcast));
  row("block_mask", grid, narrowest(2, downcast));
  if (options.dynamic)
    row("partial_mask_blocks", {heads, q_blocks, kv_blocks, pattern[0], pattern[1]}, "bool");
  else if (!computable)
    row("partial_mask_blocks", {partial, pattern[0], pattern[1]}, "bool");
  if (computable) row("q_sequence", {masks.q_length}, "int32");
  row("is_dynamic_mask", {}, "bool");
  report.add(std::move(table));
  return report;
}

MaskInfo compute(const MaskInfoOptions& options, const Masks& masks, const ProcessMaskOptions& how) {
  if (options.dynamic)
    return options.dkv ? process_dynamic_mask_dkv(masks.heads, options.block, how)
                       : process_dynamic_mask(masks.heads, options.block, how);
  return options.dkv ? process_mask_dkv(masks.heads, options.block, how)
                     : process_mask(masks.heads, options.block, how);
}

Answer run(const MaskInfoOptions& options, Job& job) {
  const auto yes_no = [](bool value) { return value ? "true" : "false"; };
  job.note_setting("block", fmt::format("{}x{}", options.block.q, options.block.kv));
  job.note_setting("dkv", yes_no(options.dkv));
  job.note_setting("dynamic", yes_no(options.dynamic));
  job.note_setting("head_shards", fmt::format("{}", options.head_shards));
  job.note_setting("q_seq_shards", fmt::format("{}", options.q_seq_shards));
  job.note_setting("shrink_grid", yes_no(!options.no_shrink_grid));
  job.note_setting("downcast", yes_no(!options.no_downcast));
  job.note_setting("pad", yes_no(options.pad));
  job.note_setting("computable", yes_no(!options.no_computable));

  const Masks masks = job.phase(Job::Phase::read, [&] { return resolve_masks(options.masks, job); });
  job.note_setting("shape", fmt::format("{}x{}x{}", masks.head_count(), masks.q_length, masks.kv_length));
  ProcessMaskOptions how;
  how.head_shards = options.head_shards;
  how.q_seq_shards = options.q_seq_shards;
  how.shrink_grid = !options.no_shrink_grid;
  how.downcast = !options.no_downcast;
  how.pad = options.pad;
  how.computable = !options.no_computable;
  try {
    check_mask_blocks(masks.heads, options.block, how);
  } catch (Error& error) {
    error.at(masks.name);
    // Lengths that were typed, and no input's.
    if (!options.masks.shape.empty()) throw Error(Error::Kind::usage, error.message()).hint(error.hint());
    throw;
  }
  const std::int64_t index_bytes =
      mask_info_bytes(masks.head_count(), masks.q_length, masks.kv_length, options.block);
  if (job.plan(describe_plan(options, masks), index_bytes)) return Answer::yes;

  how.max_pattern_bytes = std::max<std::int64_t>(job.max_memory() - index_bytes, 1);
  how.progress = job.progress();
  MaskInfo info = job.phase(Job::Phase::compute, [&] { return compute(options, masks, how); });

  Report report;
  for (const std::string& remark : masks.remarks) report.add(Remark{remark});
  if (info.mask_function)
    report.add(Remark{
        "mask_next and partial_mask_blocks are left out: a kernel computes a single causal, local or chunked "
        "mask from positions. --no-computable writes them."});
  Report sparsity = describe(info);
  report.warnings = masks.warnings;
  std::move(sparsity.warnings.begin(), sparsity.warnings.end(), std::back_inserter(report.warnings));
  for (Report::Item& item : sparsity.items) report.add(std::move(item));

  const std::string no_partial = info.mask_function
                                     ? "a kernel computes a single causal, local or chunked mask; "
                                       "--no-computable writes it"
                                     : "no block is partial";
  Array dynamic(DType::boolean, {});
  dynamic.elements<bool>()[0] = info.is_dynamic_mask;
  const auto of = [](const Array& array) { return make_source(array.view()); };
  job.deliver(std::move(report), {{"data_next", of(info.data_next), {}},
                                  {"mask_next", info.mask_next ? of(*info.mask_next) : nullptr, no_partial},
                                  {"block_mask", of(info.block_mask), {}},
                                  {"partial_mask_blocks", info.partial_mask_blocks, no_partial},
                                  {"q_sequence", info.q_sequence ? of(*info.q_sequence) : nullptr,
                                   "only a single causal, local or chunked mask has one"},
                                  {"is_dynamic_mask", of(dynamic), {}}});
  return Answer::yes;
}

}  // namespace

Run mask_info(CLI::App& app) {
  const auto options = std::make_shared<MaskInfoOptions>();
  declare_masks(app, options->masks);
  add_word(
      app, "--block", options->block,
      [](const std::string& word) {
        const Shape lengths = read_lengths(word, 2, 2, "QxK");
        return BlockShape{lengths[0], lengths[1]};
      },
      "QxK", "queries and keys of a block, such as 128x128")
      .required();
  add_flag(app, "--dkv", options->dkv,
           "for the backward pass of keys and values\n"
           "data_next then names query blocks, and partial blocks are transposed.");
  add_flag(app, "--dynamic", options->dynamic,
           "keep every block of every head\nNothing is merged or shrunk: for masks that change at run time.");
  const auto at_least_one = [](const std::string& word) { return read_integer(word, 1); };
  add_word(app, "--head-shards", options->head_shards, at_least_one, "N", "devices that share the heads");
  add_word(app, "--q-seq-shards", options->q_seq_shards, at_least_one, "N", "devices that share the queries");
  add_flag(app, "--no-shrink-grid", options->no_shrink_grid,
           "keep empty blocks in the grid\nOtherwise they go where all heads have the same mask.");
  add_flag(app, "--no-downcast", options->no_downcast,
           "index arrays in int32\nOtherwise each in the narrowest of int8, int16 and int32.");
  add_flag(app, "--pad", options->pad,
           "fill up lengths that blocks do not divide with False\nDensities count the true area alone.");
  add_flag(
      app, "--no-computable", options->no_computable,
      "write a computable mask's blocks as well\nA kernel computes a single causal, local or chunked mask "
      "from positions; its mask_next and partial_mask_blocks are left out otherwise.");
  set_footer(app, kMaskHelp);
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace ejk::app
