// The table of keys. Keys that commands share stand once, in functions and arrays above the table. A new key
// takes a row here, and a case that sees it.
//
// tests: tests/cli/run_cases.cpp, with every case
#include "schema.hpp"

#include <iterator>
#include <map>
#include <utility>

namespace ejk::app {

namespace {

using Keys = std::vector<ReportKey>;

constexpr std::string_view kInteger = "integer", kIntegerOrNull = "integer or null", kNumber = "number",
                           kNumberOrNull = "number or null", kShare = "share", kShareOrNull = "share or null",
                           kString = "string", kBoolean = "boolean", kShape = "shape",
                           kShapeOrNull = "shape or null", kTable = "table", kSection = "section";

template <class... More>
Keys joined(Keys keys, const More&... more) {
  (keys.insert(keys.end(), std::begin(more), std::end(more)), ...);
  return keys;
}

// The array that is written, or the first of those that are alike.
Keys array_made(std::string_view when = kAlways) {
  return {{"shape", kShape, when, "of the array that is made"},
          {"dtype", kString, when, "its element type"},
          {"size_bytes", kInteger, when, "bytes of its elements"}};
}

constexpr ReportKey kConvention{"convention", kString, kAlways, "document or ejkernel"};

Keys counts(std::string_view when) {
  return {{"sequences", kInteger, when, "sequences, with empty ones"},
          {"empty_sequences", kInteger, "where sequences are empty", "those without a token"},
          {"tokens", kInteger, when, "tokens of all sequences"},
          {"longest", kInteger, when, "tokens of the longest sequence"}};
}

constexpr ReportKey kPadding[] = {
    {"left_padded_rows", kInteger, "of a mask with such rows", "rows of the mask that begin with padding"},
    {"rows_with_holes", kInteger, "of a mask with such rows", "rows with padding between tokens"}};

Keys of_ids(const Keys& own) { return joined(joined(counts(kAlways), own), array_made()); }

constexpr ReportKey kChunkSize{"chunk_size", kInteger, kAlways, "tokens of a chunk, as --chunk-size says"};

// --- masks

constexpr ReportKey kMaskInfo[] = {
    {"direction", kString, kDone, "forward or dkv: in which order a kernel walks the blocks"},
    {"kind", kString, kDone, "static; static, computable; or dynamic"},
    {"shape", kShape, kDone, "heads, queries, keys"},
    {"heads", kInteger, kDryRun, "heads"},
    {"queries", kInteger, kDryRun, "queries of a head"},
    {"keys", kInteger, kDryRun, "keys of a head"},
    {"block", kShape, kAlways, "queries and keys of a block"},
    {"grid", kShape, kDryRun, "heads, query blocks, key blocks"},
    {"padded_shape", kShape, "with --pad, where it adds something", "the shape after padding with False"},
    {"head_shards", kInteger, "with --head-shards above 1", "devices that share the heads"},
    {"q_seq_shards", kInteger, "with --q-seq-shards above 1", "devices that share the queries"},
    {"alignment", kString, "where queries and keys differ in number", "how queries and keys are aligned"},
    {"masks", kTable, kDone, "the distinct masks"},
    {"masks[].mask", kInteger, kAlways, "its number"},
    {"masks[].heads", kString, kAlways, "the heads that have it: 0-3, 7"},
    {"masks[].expression", kString, kAlways, "the mask as an expression"},
    {"masks[].empty_blocks", kInteger, kAlways, "blocks without a True element"},
    {"masks[].partial_blocks", kInteger, kAlways, "blocks with True and False elements"},
    {"masks[].full_blocks", kInteger, kAlways, "blocks without a False element"},
    {"masks[].block_sparsity", kShare, kAlways, "empty blocks / blocks"},
    {"masks[].element_sparsity", kShare, kAlways, "False elements / elements"},
    {"masks[].distinct_partial_blocks", kIntegerOrNull, kAlways,
     "partial blocks that differ from each other; null with --dynamic"},
    {"masks[].mean_keys_per_query", kNumber, kAlways, "keys that a query sees, on average"},
    {"masks[].keys_of_middle_query", kIntegerOrNull, kAlways,
     "keys that the middle query sees; null where the mask is read in order"},
    {"total", kSection, kDone, "the sums over all heads"},
    {"total.blocks", kInteger, kAlways, "blocks"},
    {"total.empty_blocks", kInteger, kAlways, "blocks without a True element"},
    {"total.partial_blocks", kInteger, kAlways, "blocks with True and False elements"},
    {"total.full_blocks", kInteger, kAlways, "blocks without a False element"},
    {"total.block_sparsity", kShare, kAlways, "empty blocks / blocks"},
    {"total.work_left", kShare, kAlways, "blocks that a kernel computes / blocks"},
    {"total.element_sparsity", kShare, kAlways, "False elements / elements"},
    {"total.true_elements", kInteger, kAlways, "True elements"},
    {"total.distinct_partial_blocks", kInteger, "not with --dynamic",
     "partial blocks that differ from each other"},
    {"total.rows_without_key", kInteger, kAlways, "queries that see no key"},
    {"total.keys_without_row", kInteger, kAlways, "keys that no query sees"},
    {"total.grid", kShape, kAlways, "the grid of blocks before it shrinks"},
    {"total.shrunk_grid", kShape, kAlways, "the grid of the arrays"},
    {"rows_without_key", kTable, kDone, "where queries see no key: ranges, at most 10,000"},
    {"rows_without_key[].mask", kInteger, kAlways, "the mask's number"},
    {"rows_without_key[].begin", kInteger, kAlways, "the first query"},
    {"rows_without_key[].end", kInteger, kAlways, "the query after the last one"},
    {"rows_without_key[].count", kInteger, kAlways, "queries of the range"},
    {"keys_without_row", kTable, kDone, "where no query sees keys: ranges, at most 10,000"},
    {"keys_without_row[].mask", kInteger, kAlways, "the mask's number"},
    {"keys_without_row[].begin", kInteger, kAlways, "the first key"},
    {"keys_without_row[].end", kInteger, kAlways, "the key after the last one"},
    {"keys_without_row[].count", kInteger, kAlways, "keys of the range"},
    {"arrays", kTable, kAlways, "the arrays that are made; with --dry-run at most"},
    {"arrays[].name", kString, kAlways, "its name"},
    {"arrays[].dtype", kString, kAlways, "its element type"},
    {"arrays[].shape", kShape, kAlways, "its shape"},
    {"arrays[].size_bytes", kInteger, kAlways, "bytes of its elements"},
    {"arrays_bytes", kInteger, kDone, "bytes of all arrays"},
    {"dense_mask_bytes", kInteger, kAlways, "bytes of the dense mask as bools"},
    {"arrays_of_dense", kNumber, kDone, "arrays_bytes / dense_mask_bytes"},
    {"rows_of_blocks", kTable, "without --dkv", "the heaviest and lightest rows of blocks"},
    {"rows_of_blocks[].mask", kInteger, kAlways, "the mask's number"},
    {"rows_of_blocks[].rank", kString, kAlways, "heaviest or lightest"},
    {"rows_of_blocks[].row", kInteger, kAlways, "the row of blocks"},
    {"rows_of_blocks[].q_begin", kInteger, kAlways, "its first query"},
    {"rows_of_blocks[].blocks", kInteger, kAlways, "blocks of it that are computed"},
    {"rows_of_blocks[].share", kShare, kAlways, "of all blocks of the row"},
    {"columns_of_blocks", kTable, "with --dkv", "the heaviest and lightest columns of blocks"},
    {"columns_of_blocks[].mask", kInteger, kAlways, "the mask's number"},
    {"columns_of_blocks[].rank", kString, kAlways, "heaviest or lightest"},
    {"columns_of_blocks[].column", kInteger, kAlways, "the column of blocks"},
    {"columns_of_blocks[].kv_begin", kInteger, kAlways, "its first key"},
    {"columns_of_blocks[].blocks", kInteger, kAlways, "blocks of it that are computed"},
    {"columns_of_blocks[].share", kShare, kAlways, "of all blocks of the column"},
    {"picture_N", "picture", "for masks 0 to 3", "the blocks of mask N: queries down, keys across"},
};

// --- groups

constexpr ReportKey kGroupMetadata[] = {
    {"groups", kInteger, kDone, "groups"},
    {"groups_wanted", kInteger, "where some are left out", "groups that are computed"},
    {"start_group", kInteger, "where some are left out", "the first group that is computed"},
    {"m", kInteger, kAlways, "rows"},
    {"rows_past_last_group", kInteger, kDone, "rows after the last group, which belong to none"},
    {"tm", kInteger, kDone, "rows of a tile"},
    {"visit_empty_groups", kBoolean, kDone, "whether empty groups get a step"},
    {"num_tiles", kInteger, kDone, "steps of the kernel"},
    {"length", kInteger, kDone, "entries of group_ids and m_tile_ids"},
    {"group_offsets", kShape, kDryRun, "the shape of the array"},
    {"group_ids", kShape, kDryRun, "the shape of the array"},
    {"m_tile_ids", kShape, kDryRun, "the shape of the array"},
    {"tiles", kSection, kDone, "what the tiles cost; empty where no group is computed"},
    {"tiles.tiles_visited", kInteger, kAlways, "tiles that the kernel computes"},
    {"tiles.tiles_of_empty_groups", kInteger, "where empty groups are visited", "of them for empty groups"},
    {"tiles.tiles_aligned", kInteger, kAlways, "tiles if each group began at one: the least"},
    {"tiles.tiles_of_rows", kInteger, kAlways, "tiles that all rows make"},
    {"tiles.rows_computed", kInteger, kAlways, "rows in the tiles that are computed"},
    {"tiles.rows_thrown_away", kInteger, kAlways, "of them those that the group does not have"},
    {"tiles.thrown_away_share", kShareOrNull, kAlways, "rows_thrown_away / rows_computed"},
    {"tiles.rows_of_other_groups", kInteger, kAlways, "thrown away: rows of other groups"},
    {"tiles.rows_of_no_group", kInteger, kAlways, "thrown away: rows of no group"},
    {"load", kSection, kDone, "rows of the groups; empty where no group is computed"},
    {"load.empty_groups", kInteger, kAlways, "groups without a row"},
    {"load.smallest", kInteger, kAlways, "rows of the smallest group"},
    {"load.mean", kNumber, kAlways, "rows of a group on average"},
    {"load.largest", kInteger, kAlways, "rows of the largest group"},
    {"load.largest_group", kInteger, kAlways, "the number of the largest group"},
    {"load.max_over_mean", kNumberOrNull, kAlways, "largest / mean"},
    {"load.percentiles", kTable, kAlways, "one row"},
    {"load.percentiles[].pN", kNumber, kAlways,
     "p1, p5, p25, p50, p75, p95 and p99: N % of the groups have at most so many rows"},
    {"load.histogram", kTable, kAlways, "groups by rows, in bins that double"},
    {"load.histogram[].range", kString, kAlways, "the bin: 4-7"},
    {"load.histogram[].from", kInteger, kAlways, "its least number of rows"},
    {"load.histogram[].to", kInteger, kAlways, "its largest number of rows"},
    {"load.histogram[].groups", kInteger, kAlways, "groups in it"},
    {"load.histogram[].share", kShare, kAlways, "of all groups"},
    {"load.histogram[].row_share", kShareOrNull, kAlways, "its groups' share of all rows"},
    {"tile_sizes", kTable, kDone, "the same groups in other tiles"},
    {"tile_sizes[].tm", kInteger, kAlways, "rows of a tile"},
    {"tile_sizes[].tiles_visited", kInteger, kAlways, "tiles that the kernel computes"},
    {"tile_sizes[].tiles_aligned", kInteger, kAlways, "tiles if each group began at one"},
    {"tile_sizes[].tiles_of_rows", kInteger, kAlways, "tiles that all rows make"},
    {"tile_sizes[].rows_computed", kInteger, kAlways, "rows in the tiles that are computed"},
    {"tile_sizes[].rows_thrown_away", kInteger, kAlways, "of them those that the group does not have"},
    {"tile_sizes[].thrown_away_share", kShareOrNull, kAlways, "rows_thrown_away / rows_computed"},
};

constexpr ReportKey kGroupedMatmul[] = {
    {"lhs", kShape, kAlways, "the shape of LHS"},
    {"rhs", kShape, kAlways, "the shape of RHS"},
    {"out", kShape, kAlways, "the shape of the result"},
    {"factors", kString, kAlways, "the element types of LHS and RHS"},
    {"dtype", kString, kAlways, "the element type of the result"},
    {"groups", kInteger, kAlways, "groups"},
    {"first_group", kInteger, kAlways, "the first group that is computed"},
    {"groups_computed", kInteger, kAlways, "groups that are computed"},
    {"empty_groups", kInteger, kAlways, "of them those without a row"},
    {"rows", kInteger, kAlways, "rows of the groups that are computed"},
    {"rows_of_other_groups", kInteger, kAlways, "rows of the other groups"},
    {"rows_of_no_group", kInteger, kAlways, "rows after the last group"},
    {"work_flop", kInteger, kAlways, "multiplications and additions"},
    {"size_bytes", kInteger, kAlways, "bytes of the result"},
    {"tiling", kString, kAlways, "the tiles, TMxTKxTN, or automatic"},
    {"tiling_line", kIntegerOrNull, "with --tiling-table", "the line of the table that was used, or none"},
    {"instruction_set", kString, kAlways, "the instruction set that is used"},
    {"rate_flop_per_s", kNumberOrNull, kDone, "work_flop / the time of the product"},
    {"check", kSection, "with --check", "the comparison with float64"},
    {"check.passed", kBoolean, kAlways, "whether no element is beyond its tolerance"},
    {"check.method", kString, kAlways, "every element or sampled rows"},
    {"check.elements", kInteger, kAlways, "elements of the result"},
    {"check.compared", kInteger, kAlways, "of them those that were compared"},
    {"check.violating", kInteger, kAlways, "of those the ones beyond their tolerance"},
    {"check.violating_share", kShareOrNull, kAlways, "violating / compared"},
    {"check.rows_by_vector", kInteger, "with sampled rows",
     "rows that were also compared as a product with a random vector"},
    {"check.rows_refuted", kInteger, "with sampled rows",
     "rows that fail this, too many to compare by element"},
    {"check.rows_open", kInteger, "with sampled rows, where there are such",
     "rows with NaN or infinities, of which it says nothing"},
    {"check.differences", kTable, kAlways, "the largest differences"},
    {"check.differences[].kind", kString, kAlways,
     "absolute, relative, ulps, or worst: furthest beyond its tolerance"},
    {"check.differences[].difference", kNumberOrNull, kAlways, "the difference"},
    {"check.differences[].index", kShape, kAlways, "where it is"},
    {"check.differences[].value", kNumberOrNull, kAlways, "the result there"},
    {"check.differences[].reference", kNumberOrNull, kAlways, "the float64 value there"},
};

// --- attention

constexpr ReportKey kAttentionInputs[] = {
    {"layout", kString, kAlways, "bshd, bhsd or thd"},
    {"q", kShape, kAlways, "the shape of Q"},
    {"k", kShape, kAlways, "the shape of K"},
    {"v", kShape, kAlways, "the shape of V"},
    {"dtypes", kString, kAlways, "the element types of Q, K and V"},
    {"arithmetic", kString, kAlways, "the element type of the arithmetic"},
    {"entries", kInteger, kAlways, "batch entries, or packed sequences"},
    {"heads", kInteger, kAlways, "query heads"},
    {"kv_heads", kInteger, kAlways, "key and value heads"},
    {"head_size", kInteger, kAlways, "the size of a query and a key"},
    {"value_size", kInteger, kAlways, "the size of a value"},
    {"scale", kNumber, kAlways, "the factor of q k"},
    {"softcap", kNumber, "with --softcap", "the limit of scores"},
};

constexpr ReportKey kAttentionWork[] = {
    {"size_bytes", kInteger, kAlways, "bytes of the results"},
    {"block", kShape, kAlways, "queries and keys of a tile"},
    {"problems", kInteger, kAlways, "entries x heads"},
    {"distinct_masks", kInteger, kAlways, "distinct masks that were looked at"},
    {"dense_pairs", kInteger, kAlways, "pairs of a query and a key"},
    {"allowed_pairs", kInteger, kAlways, "of them those that attend"},
    {"computed_pairs", kInteger, kAlways, "pairs in the blocks that are computed"},
    {"computed_share", kShareOrNull, kAlways, "computed_pairs / dense_pairs"},
    {"empty_blocks", kInteger, kAlways, "blocks that are skipped"},
    {"partial_blocks", kInteger, kAlways, "blocks of which some pairs attend"},
    {"full_blocks", kInteger, kAlways, "blocks of which all pairs attend"},
    {"rows", kInteger, kAlways, "queries of all entries and heads"},
    {"rows_without_key", kInteger, kAlways, "queries that see no key"},
    {"alignment", kString, "where queries and keys differ in number", "how queries and keys are aligned"},
    {"first_row_without_key", kShape, "where there is one", "its entry, head and query"},
    {"forward_flop", kInteger, kAlways, "work of the forward pass, exact for the mask"},
};

constexpr ReportKey kMasksTime{"masks_time_s", kNumber, kDone,
                               "the time to read the masks and to sort their blocks"};
constexpr ReportKey kForwardTime{"forward_time_s", kNumber, kDone, "the time of the forward pass"};

constexpr ReportKey kAttentionEnd[] = {
    {"instruction_set", kString, kDone, "the instruction set that is used"},
    {"check", kSection, "with --check", "the comparison with float64"},
    {"check.passed", kBoolean, kAlways, "whether no element is beyond its tolerance"},
    {"check.method", kString, kAlways, "every element or sampled rows"},
    {"check.elements", kInteger, kAlways, "elements of the results"},
    {"check.compared", kInteger, kAlways, "of them those that were compared"},
    {"check.violating", kInteger, kAlways, "of those the ones beyond their tolerance"},
    {"check.differences", kTable, kAlways, "the largest difference of each array, and the worst"},
    {"check.differences[].array", kString, kAlways,
     "the array, after worst: where it is furthest beyond its tolerance"},
    {"check.differences[].difference", kNumberOrNull, kAlways, "the difference"},
    {"check.differences[].allowed", kNumberOrNull, kAlways, "the tolerance there"},
    {"check.differences[].index", kShape, kAlways, "where it is"},
    {"check.differences[].value", kNumberOrNull, kAlways, "the result there"},
    {"check.differences[].reference", kNumberOrNull, kAlways, "the float64 value there"},
};

// --- arrays

constexpr ReportKey kInfo[] = {
    {"arrays", kTable, kAlways, "the arrays of all files; with --dry-run what headers say"},
    {"arrays[].name", kString, kAlways, "the array as a reference"},
    {"arrays[].dtype", kString, kAlways, "its element type"},
    {"arrays[].shape", kShape, kAlways, "its shape"},
    {"arrays[].storage", kString, kAlways, "how it is stored"},
    {"arrays[].size_bytes", kInteger, kAlways, "bytes of its elements"},
    {"arrays[].min", kNumberOrNull, kAlways, "the least element that is not NaN"},
    {"arrays[].max", kNumberOrNull, kAlways, "the largest element that is not NaN"},
    {"arrays[].mean", kNumberOrNull, kAlways, "the mean of those that are not NaN"},
    {"arrays[].nans", kIntegerOrNull, kAlways, "elements that are NaN"},
    {"arrays[].infinities", kIntegerOrNull, kAlways, "elements that are infinite"},
    {"arrays_count", kInteger, kDone, "arrays that were read"},
    {"size_bytes", kInteger, kDone, "bytes of all arrays"},
    {"nans", kInteger, kDone, "elements of all arrays that are NaN"},
    {"links", kTable, "of HDF5 files with links", "links, which are not followed"},
    {"links[].name", kString, kAlways, "the link as a reference"},
    {"links[].kind", kString, kAlways, "its kind"},
    {"links[].target", "string or null", kAlways, "where it leads"},
    {"histogram", kTable, "with --histogram", "how elements are distributed"},
    {"histogram[].array", kString, kAlways, "the array as a reference"},
    {"histogram[].from", kNumber, kAlways, "where the bin begins"},
    {"histogram[].to", kNumber, kAlways, "where it ends"},
    {"histogram[].elements", kInteger, kAlways, "elements in it"},
    {"histogram[].share", kShare, kAlways, "of all elements of the array"},
    {"unreadable", kTable, "where something cannot be read", "inputs that cannot be read"},
    {"unreadable[].name", kString, kAlways, "the file or array"},
    {"unreadable[].why", kString, kAlways, "why not"},
};

constexpr std::string_view kOfTwo = "of two arrays", kOfAlike = "of two arrays of one shape",
                           kOfUnlike = "of two arrays of different shapes",
                           kOfFiles = "of two files, groups or folders";

constexpr ReportKey kCompare[] = {
    {"reference", kString, kAlways, "EXPECTED"},
    {"rtol", kNumber, kAlways, "the relative tolerance"},
    {"atol", kNumber, kAlways, "the absolute tolerance"},
    {"equal_nan", kBoolean, kAlways, "whether NaN equals NaN"},
    {"close", kBoolean, kDone, "whether all elements are close"},
    {"shape", kShape, kOfAlike, "the shape of both"},
    {"actual_shape", kShape, kOfUnlike, "the shape of ACTUAL"},
    {"expected_shape", kShape, kOfUnlike, "the shape of EXPECTED"},
    {"actual_dtype", kString, kOfTwo, "the element type of ACTUAL"},
    {"expected_dtype", kString, kOfTwo, "the element type of EXPECTED"},
    {"elements", kInteger, kOfAlike, "elements of each"},
    {"differing", kInteger, kOfAlike, "elements that are not close"},
    {"differing_share", kShareOrNull, kOfAlike, "differing / elements"},
    {"both_zero", kInteger, kOfAlike, "elements that are 0 in both"},
    {"actual_nans", kInteger, kOfAlike, "elements of ACTUAL that are NaN"},
    {"expected_nans", kInteger, kOfAlike, "elements of EXPECTED that are NaN"},
    {"actual_infinities", kInteger, kOfAlike, "elements of ACTUAL that are infinite"},
    {"expected_infinities", kInteger, kOfAlike, "elements of EXPECTED that are infinite"},
    {"worst", kTable, kOfAlike, "the largest differences of those that are not close"},
    {"worst[].by", kString, kAlways, "absolute, relative or ulps"},
    {"worst[].difference", kNumberOrNull, kAlways, "the difference; null if it is infinite or NaN"},
    {"worst[].index", kShape, kAlways, "where it is"},
    {"worst[].actual", kNumberOrNull, kAlways, "the element of ACTUAL"},
    {"worst[].expected", kNumberOrNull, kAlways, "the element of EXPECTED"},
    {"arrays_count", kInteger, kOfFiles, "arrays of both, by name"},
    {"differing_arrays", kInteger, kOfFiles, "of them those that are not close"},
    {"only_in_actual", kInteger, kOfFiles, "of them those that EXPECTED does not have"},
    {"only_in_expected", kInteger, kOfFiles, "of them those that ACTUAL does not have"},
    {"max_difference", kNumberOrNull, kDone,
     "the largest absolute difference of elements that are not close"},
    {"max_array", "string or null", kOfFiles, "the array where it is"},
    {"max_index", kShapeOrNull, kDone, "and the index"},
    {"arrays", kTable, "of two files, groups or folders, or with --dry-run", "the arrays by name"},
    {"arrays[].array", kString, kAlways, "its name"},
    {"arrays[].actual", kString, kDryRun, "type and shape in ACTUAL, or why it is not compared"},
    {"arrays[].expected", "string or null", kDryRun, "type and shape in EXPECTED"},
    {"arrays[].close", kBoolean, kDone, "whether all elements are close"},
    {"arrays[].elements", kIntegerOrNull, kDone, "its elements; null if it is not compared"},
    {"arrays[].differing", kIntegerOrNull, kDone, "elements that are not close"},
    {"arrays[].differing_share", kShareOrNull, kDone, "differing / elements"},
    {"arrays[].max_difference", kNumberOrNull, kDone, "the largest absolute difference of those"},
    {"arrays[].max_index", kShapeOrNull, kDone, "where it is"},
    {"arrays[].max_relative", kNumberOrNull, kDone, "the largest relative difference of those"},
    {"arrays[].max_ulps", kNumberOrNull, kDone, "the largest difference of those in ulps"},
    {"arrays[].why", "string or null", kDone, "why it is not compared"},
};

// --- settings

constexpr std::string_view kWhereSet = "where it is set", kOfWarps = "warps", kOfStages = "stages";

constexpr ReportKey kParams[] = {
    {"blocksize_m", kInteger, kWhereSet, "the parameter of this name"},
    {"blocksize_k", kInteger, kWhereSet, "the parameter of this name"},
    {"blocksize_n", kInteger, kWhereSet, "the parameter of this name"},
    {"q_blocksize", kInteger, kWhereSet, "the parameter of this name"},
    {"kv_blocksize", kInteger, kWhereSet, "the parameter of this name"},
    {"blocksize_heads", kInteger, kWhereSet, "the same, of forward parameters alone"},
    {"blocksize_keys", kInteger, kWhereSet, "the same, of forward parameters alone"},
    {"num_key_splits", kInteger, kWhereSet, "the same, of forward parameters alone"},
    {"q_block", kInteger, kOfWarps, "queries of a block"},
    {"kv_block", kInteger, kOfWarps, "keys of a block"},
    {"head_dim", kInteger, kOfWarps, "the length of a head's vectors"},
    {"dtype", kString, kOfWarps, "the element type"},
    {"num_warps", kInteger, "where it is set; warps", "the parameter of this name, or the answer"},
    {"smem_bytes", kInteger, kOfStages, "shared memory that a block takes"},
    {"smem_limit_bytes", kInteger, kOfStages, "shared memory there is"},
    {"num_stages", kInteger, "where it is set; stages", "the parameter of this name, or the answer"},
};

constexpr ReportKey kSharding[] = {
    {"spec_text", kString, kAlways, "the corrected spec as text"},
    {"spec", "list", kAlways, "the same: for each dimension null, an axis, or a list of axes"},
    {"dimensions", kTable, kAlways, "the dimensions of the shape"},
    {"dimensions[].dimension", kInteger, kAlways, "its number"},
    {"dimensions[].length", kInteger, kAlways, "its length"},
    {"dimensions[].asked", kString, kAlways, "the entry that was asked for"},
    {"dimensions[].spec", kString, kAlways, "the corrected entry"},
    {"dimensions[].shards", kInteger, kAlways, "parts that it is cut into"},
    {"dimensions[].local_length", kInteger, kAlways, "its length on each device"},
    {"dimensions[].times_more", kNumber, kAlways, "local_length / its length if cut as asked"},
    {"dimensions[].why", kString, kAlways, "why it was corrected, or nothing"},
    {"left_out", kTable, kAlways, "entries of the spec that no dimension has"},
    {"left_out[].dimension", kInteger, kAlways, "its place in the spec"},
    {"left_out[].asked", "string or list", kAlways, "the axis, or the axes"},
    {"corrections", kInteger, kAlways, "entries that were corrected or left out"},
    {"shape", kShape, kAlways, "the shape of the array"},
    {"local_shape", kShape, kAlways, "its shape on each device"},
    {"devices", kInteger, kAlways, "devices of the mesh"},
    {"copies", kInteger, kAlways, "devices that hold the same part"},
    {"local_elements", kInteger, kAlways, "elements on each device"},
    {"asked_elements", kInteger, kAlways, "the same if all were cut as asked"},
    {"dtype", kString, "with --dtype", "the element type"},
    {"local_bytes", kInteger, "with --dtype", "memory on each device"},
    {"asked_bytes", kInteger, "with --dtype", "the same if all were cut as asked"},
    {"parts", kTable, "of at most 64 devices", "what each device holds"},
    {"parts[].device", kString, kAlways, "its place in the mesh: dp=0 mp=3"},
    {"parts[].part", kString, kAlways, "its part of the array as a slice"},
};

constexpr ReportKey kFingerprint[] = {
    {"fingerprint", kString, kDone, "kind|version of the device"},
    kConvention,
    {"platform", kString, kDone, "cpu or gpu"},
    {"device_kind", kString, kDone, "the kind of the device"},
    {"cpu", kString, kDone, "the processor's name"},
    {"architecture", kString, kDone, "its architecture: x86_64"},
    {"vector_extensions", kString, kDone, "its vector extensions"},
    {"instruction_sets", kString, kDone, "the instruction sets that ejk found"},
    {"instruction_set", kString, kDone, "the one that it uses"},
    {"cores", kInteger, kDone, "cores of the machine"},
    {"usable_cores", kInteger, kDone, "cores that this process may use"},
    {"cpu_quota", kNumber, "where a control group limits it", "the limit in cores", Seen::on_some_machines},
    {"memory_bytes", kInteger, kDone, "memory of the machine"},
    {"memory_limit_bytes", kInteger, kDone, "memory that this process may use"},
    {"memory_available_bytes", kInteger, kDone, "of it free now"},
    {"caches", kTable, kDone, "the first core's caches, as far as the system names them"},
    {"caches[].name", kString, kAlways, "its level and kind", Seen::on_some_machines},
    {"caches[].size_bytes", kInteger, kAlways, "its size", Seen::on_some_machines},
    {"caches[].shared_by", kInteger, kAlways, "cores that share it", Seen::on_some_machines},
    {"gpu_query", kString, kDone, "done, failed or not_run: how nvidia-smi went"},
    {"gpus", kTable, kDone, "the GPUs that nvidia-smi lists"},
    {"gpus[].name", kString, kAlways, "the name"},
    {"gpus[].driver_version", kString, kAlways, "the driver's version"},
    {"gpus[].memory_bytes", kIntegerOrNull, kAlways, "its memory"},
};

const std::map<std::string_view, Keys>& table() {
  static const std::map<std::string_view, Keys> all{
      {"cu-seqlens",
       joined({{"from", kString, kAlways, "mask, lens or segment-ids: what INPUT was taken for"},
               {"dtype", kString, kAlways, "the element type of the result"},
               {"shape", kShape, kAlways, "its shape; with --dry-run, of segment ids, at most"}},
              kPadding, counts("without a float --dtype"))},
      {"lens", joined({{"from", kString, kAlways, "mask or cu-seqlens: what INPUT was taken for"}}, kPadding,
                      Keys{{"shape", kShape, kDone, "of the array that is made"},
                           {"dtype", kString, kDone, "its element type"}},
                      counts(kDone))},
      {"position-ids", of_ids({})},
      {"sequence-ids", of_ids({kConvention})},
      {"token-indices", of_ids({kConvention})},
      {"chunk-indices", of_ids({kChunkSize, kConvention})},
      {"chunk-offsets", of_ids({kChunkSize})},
      {"cdiv",
       {{"shape", kShape, kAlways, "of the array that is made"},
        {"dtype", kString, kAlways, "its element type"},
        {"by", kInteger, kAlways, "the divisor"}}},
      {"reorder-sequence", joined({{"order", kString, kAlways, "ring or contiguous"}}, array_made(),
                                  Keys{{"axis", kInteger, kAlways, "the axis of the sequence, from 0"},
                                       {"length", kInteger, kAlways, "tokens of the sequence"},
                                       {"ranks_count", kInteger, kAlways, "ranks"},
                                       {"imbalance_contiguous", kNumberOrNull, kAlways,
                                        "causal work of the heaviest rank / the mean, in order"},
                                       {"imbalance_ring", kNumberOrNull, kAlways, "the same in ring order"},
                                       {"ranks", kTable, kAlways, "causal work of each rank"},
                                       {"ranks[].rank", kInteger, kAlways, "the rank"},
                                       {"ranks[].contiguous_pairs", kInteger, kAlways,
                                        "pairs of a query and a key that it sees, in order"},
                                       {"ranks[].ring_pairs", kInteger, kAlways, "the same in ring order"}})},
      {"pack", joined({{"padded", kShape, kAlways, "the shape of X"},
                       {"dtype", kString, kAlways, "its element type"},
                       {"packed", kShape, kDone, "the shape of the packed tokens"},
                       {"sequences", kInteger, kDone, "rows of the mask"},
                       {"tokens", kInteger, kDone, "tokens of all rows"},
                       {"max_seqlen", kInteger, kDone, "tokens of the longest row"},
                       {"padding_share", kShareOrNull, kDone, "padding / elements of the mask"}},
                      kPadding)},
      {"unpack",
       {{"packed", kShape, kAlways, "the shape of PACKED"},
        {"dtype", kString, kAlways, "its element type"},
        {"padded", kShape, kAlways, "the shape of the result"},
        {"fill", kNumberOrNull, kAlways, "what padding becomes; null for NaN and infinities"},
        {"size_bytes", kInteger, kAlways, "bytes of the result"}}},
      {"bin-pack",
       {{"sequences", kInteger, kAlways, "sequences"},
        {"long_sequences", kInteger, "where there are such",
         "those longer than a row, which are truncated or split"},
        {"pieces", kInteger, "where sequences are longer than a row",
         "pieces, with those that are whole sequences"},
        {"tokens", kInteger, kDone, "tokens in all rows"},
        {"truncated_tokens", kInteger, "with --long truncate", "tokens that are cut off"},
        {"capacity", kInteger, kAlways, "tokens that a row holds"},
        {"rows", kInteger, kDone, "rows"},
        {"lower_bound", kInteger, kDone, "rows that any packing needs"},
        {"efficiency", kShare, kDone, "tokens / (rows x capacity)"}}},
      {"seq-info",
       {{"shape", kShape, kDryRun, "of CU_SEQLENS"},
        {"dtype", kString, kDryRun, "its element type"},
        {"sequences", kInteger, kDone, "sequences, with empty ones"},
        {"tokens", kInteger, kDone, "tokens of all sequences"},
        {"empty_sequences", kInteger, kDone, "sequences without a token"},
        {"shortest", kIntegerOrNull, kDone, "tokens of the shortest; null without sequences"},
        {"longest", kIntegerOrNull, kDone, "tokens of the longest"},
        {"mean", kNumberOrNull, kDone, "tokens of a sequence on average"},
        {"percentiles", kTable, kDone, "one row, none without sequences"},
        {"percentiles[].pN", kNumber, kAlways,
         "p1, p5, p25, p50, p75, p95 and p99: N % of the sequences have at most so many tokens"},
        {"histogram", kTable, kDone, "sequences by length, in bins that double"},
        {"histogram[].range", kString, kAlways, "the bin: 4-7"},
        {"histogram[].from", kInteger, kAlways, "its least length"},
        {"histogram[].to", kInteger, kAlways, "its largest length"},
        {"histogram[].sequences", kInteger, kAlways, "sequences in it"},
        {"histogram[].share", kShare, kAlways, "of all sequences"},
        {"histogram[].token_share", kShareOrNull, kAlways, "its sequences' share of all tokens"},
        {"packing", kSection, kDone, "packed against padded to the longest; empty without sequences"},
        {"packing.padded_tokens", kInteger, kAlways, "tokens and padding"},
        {"packing.padding_share", kShareOrNull, kAlways, "padding / padded_tokens"},
        {"packing.attention_pairs_packed", kInteger, kAlways, "pairs of tokens of one sequence"},
        {"packing.attention_pairs_padded", kInteger, kAlways, "the same with padding"},
        {"packing.attention_work_share", kShareOrNull, kAlways,
         "attention_pairs_packed / attention_pairs_padded"}}},
      {"segment-ids",
       {{"shape", kShape, kAlways, "of the mask"},
        kConvention,
        {"heads", kString, "of a mask with four axes", "ids for each, or head 0 alone counts"},
        {"segments", kInteger, kDone, "segments"},
        {"q_segment_ids", kShape, kDone, "the shape of the queries' ids"},
        {"kv_segment_ids", kShape, kDone, "the shape of the keys' ids"},
        {"elements", kInteger, kDone, "elements of the mask"},
        {"differing_elements", kInteger, kDone, "elements that the ids do not reproduce"},
        {"differing_share", kShare, kDone, "differing_elements / elements"},
        {"exact", kBoolean, kDone, "whether the ids reproduce the mask"}}},
      {"segment-mask", joined(array_made(), Keys{kConvention})},
      {"mask-info", joined({}, kMaskInfo)},
      {"mask", array_made()},
      {"group-metadata", joined({}, kGroupMetadata)},
      {"grouped-matmul", joined({}, kGroupedMatmul)},
      {"transposed-grouped-matmul", joined({}, kGroupedMatmul)},
      {"attention", joined({}, kAttentionInputs,
                           Keys{{"out", kShape, kAlways, "the shape of out"},
                                {"out_dtype", kString, kAlways, "its element type"},
                                {"lse", kShape, kAlways, "the shape of lse"},
                                {"lse_dtype", kString, kAlways, "its element type"}},
                           kAttentionWork,
                           Keys{kMasksTime,
                                kForwardTime,
                                {"rate_flop_per_s", kNumberOrNull, kDone, "forward_flop / forward_time_s"}},
                           kAttentionEnd)},
      {"attention-grad",
       joined({}, kAttentionInputs,
              Keys{{"saved", kString, kAlways, "given or computed: out and lse of the forward pass"},
                   {"dq", kShape, kAlways, "the shape of dq"},
                   {"dq_dtype", kString, kAlways, "its element type"},
                   {"dk", kShape, kAlways, "the shape of dk"},
                   {"dk_dtype", kString, kAlways, "its element type"},
                   {"dv", kShape, kAlways, "the shape of dv"},
                   {"dv_dtype", kString, kAlways, "its element type"}},
              kAttentionWork,
              Keys{{"backward_flop", kInteger, kAlways, "work of the backward pass, exact for the mask"},
                   kMasksTime,
                   kForwardTime,
                   {"backward_time_s", kNumber, kDone, "the time of the backward pass"},
                   {"rate_flop_per_s", kNumberOrNull, kDone, "backward_flop / backward_time_s"}},
              kAttentionEnd)},
      {"info", joined({}, kInfo)},
      {"convert",
       {{"arrays", kTable, kAlways, "the arrays"},
        {"arrays[].array", kString, kAlways, "its name"},
        {"arrays[].shape", kShape, kAlways, "its shape"},
        {"arrays[].from", kString, kAlways, "the element type that it had"},
        {"arrays[].dtype", kString, kAlways, "the one that it gets"},
        {"arrays[].size_bytes", kInteger, kAlways, "bytes of its new elements"},
        {"size_bytes", kInteger, kAlways, "bytes of all arrays"}}},
      {"compare", joined({}, kCompare)},
      {"generate", joined({{"what", kString, kAlways, "attention-inputs, masks, group-sizes or lens"},
                           {"seed", kInteger, kAlways, "the seed"},
                           {"sequences", kInteger, "masks and lens", "sequences"},
                           {"tokens", kInteger, "masks, group-sizes and lens", "tokens in all"},
                           {"longest", kInteger, "masks and lens", "tokens of the longest sequence"}},
                          Keys{{"shape", kShape, kAlways, "of each array that is made"},
                               {"dtype", kString, kAlways, "their element type"},
                               {"size_bytes", kInteger, kAlways, "bytes of all of them"}})},
      {"chunk",
       joined(array_made(), Keys{{"padding", kInteger, kAlways, "elements of it that are padding"}})},
      {"unchunk",
       joined(array_made(), Keys{{"dropped", kInteger, kAlways, "elements of X that are cut off"}})},
      {"log-sum-exp", joined({{"input_shape", kShape, kAlways, "of X"},
                              {"axis", "integer or string", kAlways, "the axis that is summed over, or all"}},
                             array_made(kDone))},
      {"safe-divide",
       joined(array_made(), Keys{{"min_denominator", kNumber, kAlways, "the lower limit of B"}})},
      {"params", joined({}, kParams)},
      {"hash",
       {kConvention,
        {"inputs_count", kInteger, kDryRun, "inputs"},
        {"hashes", kTable, kDone, "a row for each input"},
        {"hashes[].input", kString, kAlways, "the input as it was named"},
        {"hashes[].hash", kString, kAlways, "16 hex digits"},
        {"hashes[].canonical", kString, "with --canonical", "the stable JSON that is hashed"}}},
      {"sharding", joined({}, kSharding)},
      {"fingerprint", joined({}, kFingerprint)},
  };
  return all;
}

// The ends of keys that name a unit; the longest first.
constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
    {"_bytes_per_s", "bytes/s"}, {"_flop_per_s", "FLOP/s"}, {"_bytes", "bytes"},
    {"_flop", "FLOP"},           {"_s", "seconds"},
};

}  // namespace

std::span<const KeyType> key_types() {
  static constexpr KeyType types[] = {
      {"string", "text"},
      {"boolean", "true or false"},
      {"integer", "a whole number; from 2^53 on perhaps with an exponent"},
      {"number", "a number, not rounded; NaN and infinities are null"},
      {"share", "a number from 0 to 1"},
      {"shape", "a list of integers: lengths of axes, or an index"},
      {"table", "a list of objects, its rows"},
      {"section", "an object"},
      {"picture", "an object; its keys stand below"},
      {"list", "a list"},
      {"null", "nothing: unknown, or not applicable"},
  };
  return types;
}

std::span<const ReportKey> envelope_keys() {
  static constexpr ReportKey keys[] = {
      {"schema", kInteger, kAlways, "1, the version of this form"},
      {"ejk_version", kString, kAlways, "as --version prints it"},
      {"command", kString, kAlways, "the command: mask-info"},
      {"inputs", kTable, kAlways, "what was read"},
      {"inputs[].role", kString, kAlways, "what it is for: mask"},
      {"inputs[].value", kString, kAlways, "as it was named: m.npy"},
      {"result", kSection, kAlways, "what the command found"},
      {"warnings", "list", kAlways, "texts, the same that text reports print on stderr"},
  };
  return keys;
}

std::span<const ReportKey> shared_keys() {
  static constexpr ReportKey keys[] = {
      {"peak_bytes", kInteger, kDryRun, "memory that is needed, about"},
      {"max_memory_bytes", kInteger, kDryRun, "memory that is allowed"},
      {"stats", kSection, "with --stats", "time and memory"},
      {"stats.read_s", kNumber, kAlways, "time to read inputs"},
      {"stats.compute_s", kNumber, kAlways, "time to compute"},
      {"stats.write_s", kNumber, kAlways, "time to write outputs"},
      {"stats.elapsed_s", kNumber, kAlways, "time in all"},
      {"stats.input_bytes", kInteger, kAlways, "bytes that were read"},
      {"stats.output_bytes", kInteger, kAlways, "bytes that were written"},
      {"stats.throughput_bytes_per_s", kNumberOrNull, kAlways, "(input + output) / (read + compute + write)"},
      {"stats.peak_memory_bytes", kInteger, kAlways, "the most memory that was held"},
      {"stats.memory_allocated_bytes", kInteger, kAlways, "memory held at the end"},
      {"stats.memory_reserved_bytes", kInteger, kAlways, "memory reserved at the end"},
      {"stats.memory_limit_bytes", kInteger, kAlways, "memory that this process may use"},
      {"stats.threads", kInteger, kAlways, "threads"},
  };
  return keys;
}

std::span<const ReportKey> picture_keys() {
  static constexpr ReportKey keys[] = {
      {"title", kString, kAlways, "what the picture shows"},
      {"blocks", kShape, kAlways, "rows and columns of blocks"},
      {"blocks_per_cell", kShape, kAlways, "rows and columns of blocks that a cell stands for"},
      {"legend", kSection, kAlways, "what the letters mean"},
      {"legend.E", kString, kAlways, "empty"},
      {"legend.P", kString, kAlways, "partial"},
      {"legend.F", kString, kAlways, "full"},
      {"legend.M", kString, kAlways, "mixed: blocks of several states"},
      {"cells", "list", kAlways, "a text for each row of cells, a letter for each cell"},
  };
  return keys;
}

std::span<const ReportKey> keys_of(std::string_view command) {
  const auto found = table().find(command);
  return found == table().end() ? std::span<const ReportKey>() : found->second;
}

std::string form_of(const ReportKey& key) {
  for (const auto& [end, unit] : kUnits)
    if (key.path.ends_with(end)) return std::string(key.type) + ", " + std::string(unit);
  return std::string(key.type);
}

}  // namespace ejk::app
