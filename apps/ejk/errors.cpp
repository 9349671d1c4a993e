// Hints in terms of the command line: a row for each error code with an option or a command as its remedy.
#include "errors.hpp"

#include <fmt/format.h>

#include "ejk/program/text.hpp"
#include "terminal.hpp"

namespace ejk::app {

namespace {

using Code = Error::Code;

struct Row {
  Code code;
  const char* hint;  // {hint}: that of the library; {subject}: of the error
};

constexpr Row kHints[] = {
    {Code::no_such_axis, "--{hint}"},
    {Code::not_integers, "whole numbers of a float type: ejk convert IN -o OUT --dtype int32"},
    {Code::state_layout, "--state-layout {hint}"},
    {Code::negative_factor, "logarithms: --decay-space ln"},
    {Code::transposed_rhs, "--transpose-rhs takes weights (groups, n, k)"},
    {Code::plain_rhs, "weights (groups, k, n) exclude --transpose-rhs"},
    {Code::transposed_lhs, "--transpose-lhs takes tokens (m, k)"},
    {Code::masks_of_heads, "one --mask serves all heads, else each head has its own"},
    {Code::padding_mask,
     "a padding mask or segment ids (B, K): in attention --segment-ids {subject}, elsewhere row 0 as --mask "
     "'segments({subject}[0])'"},
    {Code::float_mask,
     "numbers 0 and 1 become a bool mask: ejk convert IN -o OUT --dtype bool; added to scores: --mask-kind "
     "additive (0 attends, -1e4 and less masks)"},
    {Code::integer_mask, "--mask-kind keep: non-zero attends; --mask-kind drop: non-zero is masked"},
    {Code::ids_in_mask,
     "segment ids of a row are --mask 'segments(REF)', in attention --segment-ids REF; of position ids 'ejk "
     "cu-seqlens REF --from position-ids' makes CU for --mask 'documents(CU)'; of a MaskInfo the blocks are "
     "--mask 'visited(FILE)'"},
    {Code::ones_in_mask, "numbers 0 and 1 become a bool mask: ejk convert IN -o OUT --dtype bool"},
    {Code::bias_in_mask,
     "-100 or the like at all hidden keys and 0 elsewhere: ejk convert IN -o OUT --dtype bool, and OUT with "
     "--mask-kind drop; added to the scores as it is: --bias REF of attention"},
    {Code::indivisible_mask, "--pad fills the mask up with False"},
    {Code::too_many_blocks, "use more --head-shards or --q-seq-shards"},
    {Code::too_many_patterns, "larger blocks have fewer partial ones; --max-memory sets the limit"},
    {Code::too_many_slices,
     "a mask of many short ranges of keys is smaller in blocks: --layout bsr; --max-memory sets the limit"},
    {Code::computable_mask,
     "ejk mask-info --no-computable stores them; visited(REF) is the blocks, which are stored"},
    {Code::not_of_fa4, "--arch is for those; of blocks alone ejk sparsity --blocks QxK --arch ARCH says it"},
    {Code::unknown_lengths, "--shape HxQxK gives them, or the mask that it should store"},
    {Code::repeated_key, "ejk attention --duplicates count counts it twice as well"},
    {Code::heads_of_mask, "--per-head makes ids for each head; or take one head with a slice: \"REF[:,0]\""},
    {Code::needs_integers, "ejk convert IN -o OUT --dtype int32"},
    {Code::not_floats, "ejk convert ... --dtype float32 makes it one of those"},
    {Code::untyped_bytes, "an 8-bit float as ml_dtypes writes it: ejk convert IN -o OUT --view {hint}"},
    {Code::not_offsets, "ejk cu-seqlens IN -o OUT makes cu_seqlens of lengths, masks and ids"},
    {Code::position_ids, "ejk cu-seqlens IN --from position-ids -o OUT makes cu_seqlens of position ids"},
    {Code::segment_ids,
     "of segment ids: ejk cu-seqlens IN --from segment-ids -o OUT makes cu_seqlens, ejk convert IN -o OUT --dtype bool "
     "a mask of what is not 0"},
    {Code::group_ends, "--from ends takes ends of groups, as torch's offs are"},
    {Code::tokens_left,
     "if padding follows sequences, --cu-seqlens-padded REF gives the tokens at which they begin"},
    {Code::exceeds_dtype, "--dtype int64 holds more"},
    {Code::exceeds_row, "--long truncate cuts such sequences off, --long split cuts them into pieces"},
    {Code::exists, "--overwrite replaces it"},
    {Code::external, "--allow-external follows it, and reads what it names"},
    {Code::plugin_filter, "--allow-external loads the HDF5 library's plug-ins"},
    {Code::unchecked_filter,
     "`h5repack -f GZIP=4 OLD NEW` stores it with gzip; for a file you trust, --allow-external"},
};

}  // namespace

int exit_status(Error::Kind kind) {
  constexpr int kByKind[] = {kExitUsage, kExitInput, kExitOutput, kExitBudget, kExitBug};
  return kByKind[static_cast<std::size_t>(kind)];
}

void add_hint(Error& error) {
  for (const Row& row : kHints)
    if (row.code == error.code())
      error.hint(fmt::format(fmt::runtime(row.hint), fmt::arg("hint", error.hint()),
                             fmt::arg("subject", error.subject())));
}

std::string error_text(const std::string& program, const Error& error, bool color) {
  const auto bold = [&](const char* style, const std::string& text) {
    return color ? fmt::format("\x1b[{}m{}:\x1b[0m", style, text) : text + ":";
  };
  std::string text =
      fmt::format("{} {}\n", bold("1;31", program), printable(error.message(), kLongestMessage));
  if (!error.hint().empty())
    text += fmt::format("{} {}\n", bold("1", "hint"), printable(error.hint(), kLongestMessage));
  return text;
}

}  // namespace ejk::app
