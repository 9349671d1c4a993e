// ejk cu-seqlens, lens, position-ids, sequence-ids, token-indices, chunk-indices, chunk-offsets, cdiv: packed
// sequences, and arrays computed from their cu_seqlens.
//
// tests: tests/cli/cu-seqlens/, tests/cli/token-indices/ and a folder for each other command
#include "ejk/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <type_traits>
#include <vector>

#include "commands.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

using Source = std::shared_ptr<const ArraySource>;

using From = SequencesFrom;

void add_counts(Report& report, const SequenceCounts& counts) {
  report.add("sequences", "sequences", counts.sequences, Unit::count);
  if (counts.empty > 0) report.add("empty_sequences", "of them empty", counts.empty, Unit::count);
  report.add("tokens", "tokens", counts.tokens, Unit::count);
  report.add("longest", "longest", counts.longest, Unit::tokens);
}

// --- cu-seqlens

struct CuSeqlensOptions {
  std::string input;
  From from = From::automatic;
  DType dtype = DType::int32;
};

Outcome run_cu_seqlens(const CuSeqlensOptions& options, Job& job) {
  if (options.dtype == DType::boolean) throw usage("--dtype: cu_seqlens cannot be bool");
  const Source input = job.open("input", options.input);
  Report report;
  const From from = resolve_from(*input, options.from, From::lens, job, report);
  report.add("dtype", "dtype", std::string(name_of(options.dtype)));
  const bool by_token = from == From::segment_ids || from == From::position_ids;
  const std::int64_t entries = by_token                 ? element_count(input->shape())
                               : input->shape().empty() ? 0
                                                        : input->shape()[0];
  Report planned = report;
  planned.add("shape", by_token ? "shape, at most" : "shape",
              Shape{from == From::cu_seqlens ? entries : entries + 1});
  if (job.plan(planned, kPieceBytes + lengths_bytes(*input, from))) return Outcome::passed;

  const Array cu = job.phase(Phase::compute, [&] {
    const Lengths lengths = lengths_of(options.input, *input, from, options.from, DType::int64, report, job);
    if (!lengths.without_padding.empty())
      report.warnings.push_back(lengths.without_padding +
                                ": these offsets fit only the packed form, which 'ejk pack' makes");
    return prepare_cu_seqlens_from_lens(*make_source(lengths.lens.view(), input->name()), options.dtype);
  });
  report.add("shape", "shape", cu.shape());
  if (is_integer(cu.dtype())) add_counts(report, count_sequences(*make_source(cu.view(), "cu_seqlens")));
  job.deliver(std::move(report), {{"cu_seqlens", make_source(cu.view()), {}}});
  return Outcome::passed;
}

// --- lens

struct LensOptions {
  std::string input;
  From from = From::automatic;
};

Outcome run_lens(const LensOptions& options, Job& job) {
  const Source input = job.open("input", options.input);
  Report report;
  const From from = resolve_from(*input, options.from, From::cu_seqlens, job, report);
  if (job.plan(report, kPieceBytes + lengths_bytes(*input, from))) return Outcome::passed;

  const Array lens =
      job.phase(
             Phase::compute,
             [&] { return lengths_of(options.input, *input, from, options.from, DType::int32, report, job); })
          .lens;
  report.add("shape", "shape", lens.shape()).add("dtype", "dtype", std::string(name_of(lens.dtype())));
  const Array cu = prepare_cu_seqlens_from_lens(*make_source(lens.view(), "lens"), DType::int64);
  add_counts(report, count_sequences(*make_source(cu.view(), "cu_seqlens")));
  job.deliver(std::move(report), {{"lens", make_source(lens.view()), {}}});
  return Outcome::passed;
}

// --- ids, indices and chunk offsets

// Whose kernels read the chunks.
enum class ChunkLayout { fla, sglang, vllm };
const char* name_of(ChunkLayout layout) {
  constexpr const char* names[] = {"fla", "sglang", "vllm"};
  return names[static_cast<std::size_t>(layout)];
}

struct IdOptions {
  std::string cu_seqlens;
  std::int64_t chunk_size = 0;
  Convention convention = Convention::document;
  ChunkLayout layout = ChunkLayout::fla;
  std::string computed;
};

using MakeIds = std::vector<Output> (*)(const ArraySource& cu_seqlens, const IdOptions& options, Job& job);

// `more` bytes of work for these sequences.
Outcome run_ids(MakeIds make, const IdOptions& options, Job& job,
                std::int64_t (*more)(const SequenceCounts&, const IdOptions&) = nullptr) {
  const Source input = job.open("cu_seqlens", options.cu_seqlens);
  std::int64_t peak = kPieceBytes + type_of(*input).bytes() + sequence_work_bytes(type_of(*input));
  job.require_memory(peak);

  // The sequences determine the size of the result, so a dry run reads them.
  const Source cu = job.phase(Phase::read, [&] { return in_memory(*input); });
  const SequenceCounts counts = count_sequences(*cu);
  if (more != nullptr) job.require_memory(peak += more(counts, options));
  const std::vector<Output> ids = job.phase(Phase::compute, [&] { return make(*cu, options, job); });
  Report report;
  add_counts(report, counts);
  add_array(report, *ids.front().source);
  job.show_options(report);
  if (job.plan(report, peak)) return Outcome::passed;
  job.deliver(std::move(report), ids);
  return Outcome::passed;
}

std::vector<Output> make_mamba2_chunks(const ArraySource& cu, const IdOptions& options, Job& job) {
  const auto output = [](const char* name, Array& array) {
    return Output{name, make_source(std::move(array), name), {}};
  };
  if (options.layout == ChunkLayout::sglang) {
    PackedRowChunks chunks = prepare_packed_row_chunks(cu, options.chunk_size);
    return {output("chunk_indices", chunks.chunk_indices),
            output("chunk_offsets", chunks.chunk_offsets),
            {"seq_idx", chunks.seq_idx, {}}};
  }
  const IntegerArray computed =
      options.computed.empty() ? IntegerArray() : job.open("computed", options.computed);
  AlignedChunks chunks = prepare_aligned_chunks(cu, options.chunk_size, computed);
  return {output("cu_chunk_seqlens", chunks.cu_chunk_seqlens), output("seq_idx", chunks.seq_idx),
          output("last_chunk_indices", chunks.last_chunk_indices)};
}

enum class Has { neither, convention, chunk_size, both };

std::shared_ptr<IdOptions> declare_id_options(OptionSet& set, Has has) {
  auto options = std::make_shared<IdOptions>();
  add_reference(set, "CU_SEQLENS", options->cu_seqlens,
                "where each sequence begins, and the number of tokens (sequences + 1,)\n"
                "Integers that begin with 0 and never decrease; ejk cu-seqlens makes them.")
      .required();
  if (has == Has::chunk_size || has == Has::both)
    add_word(set, "--chunk-size", options->chunk_size, at_least(1), "N",
             "tokens of a chunk; the last one of a sequence may be shorter")
        .required()
        .recorded()
        .shown("chunk size", Unit::tokens);
  if (has == Has::convention || has == Has::both)
    add_convention(set, options->convention,
                   "ids around empty sequences\ndocument: an id is the index of the sequence. ejkernel: "
                   "empty sequences are not counted. fla: those of tokens are ejkernel's, of chunks the "
                   "document's.",
                   {Convention::document, Convention::ejkernel, Convention::fla});
  return options;
}

Run declare_ids(OptionSet& set, Has has, MakeIds make) {
  const auto options = declare_id_options(set, has);
  return [=](Job& job) { return run_ids(make, *options, job); };
}

// --- cdiv

struct CdivOptions {
  std::string array;
  std::int64_t by = 0;
};

Outcome run_cdiv(const CdivOptions& options, Job& job) {
  const Source input = job.open("array", options.array);
  const std::int64_t bytes = byte_count(input->shape(), input->dtype());
  Report report;
  report.add("shape", "shape", input->shape()).add("dtype", "dtype", std::string(name_of(input->dtype())));
  job.show_options(report);
  if (job.plan(report, bytes + kPieceBytes)) return Outcome::passed;
  const Array result = job.phase(Phase::compute, [&] { return cdiv(*input, options.by); });
  job.deliver(std::move(report), {{"cdiv", make_source(result.view()), {}}});
  return Outcome::passed;
}

Run declare_cu_seqlens(OptionSet& set) {
  const auto options = std::make_shared<CuSeqlensOptions>();
  add_reference(set, "INPUT", options->input,
                "a mask (batch, seq), lengths (sequences,), or the ids of tokens\n"
                "A mask is bool, or integers of 0 and one other value, a token, anywhere in its row.")
      .required();
  add_sequences_from(
      set, options->from, {From::mask, From::lens, From::segment_ids, From::position_ids, From::cu_seqlens},
      "By default two axes are a mask and one is lens; elements that contradict that are an error. With --from mask "
      "all but 0 are tokens. Ids are (tokens,) or (rows, tokens), rows one after the other. Each run of "
      "equal segment ids is a sequence; so is each run of position ids from 0 up, and one "
      "from a later position at the beginning of a row.");
  add_dtype(set, "--dtype", options->dtype, "element type\nA sum that it cannot hold exactly is an error.");
  return [options](Job& job) { return run_cu_seqlens(*options, job); };
}

Run declare_lens(OptionSet& set) {
  const auto options = std::make_shared<LensOptions>();
  add_reference(set, "INPUT", options->input, "cu_seqlens (sequences + 1,) or a mask (batch, seq)")
      .required();
  add_sequences_from(set, options->from,
                     {From::cu_seqlens, From::mask, From::lens, From::segment_ids, From::position_ids},
                     "By default two axes are a mask and one is cu-seqlens.");
  return [options](Job& job) { return run_lens(*options, job); };
}

Run declare_position_ids(OptionSet& set) {
  return declare_ids(set, Has::neither, [](const ArraySource& cu, const IdOptions&, Job&) {
    return std::vector<Output>{{"position_ids", prepare_position_ids(cu), {}}};
  });
}

Run declare_sequence_ids(OptionSet& set) {
  return declare_ids(set, Has::convention, [](const ArraySource& cu, const IdOptions& options, Job&) {
    return std::vector<Output>{{"sequence_ids", prepare_sequence_ids(cu, options.convention), {}}};
  });
}

Run declare_token_indices(OptionSet& set) {
  return declare_ids(set, Has::convention, [](const ArraySource& cu, const IdOptions& options, Job&) {
    return std::vector<Output>{{"token_indices", prepare_token_indices(cu, options.convention), {}}};
  });
}

std::vector<Output> make_chunks(const ArraySource& cu, const IdOptions& options, Job& job) {
  if (options.layout != ChunkLayout::fla) return make_mamba2_chunks(cu, options, job);
  return {{"chunk_indices", prepare_chunk_indices(cu, options.chunk_size, options.convention), {}}};
}

Run declare_chunk_indices(OptionSet& set) {
  const auto options = declare_id_options(set, Has::both);
  add_choice(set, "--layout", options->layout,
             named_choices<ChunkLayout>({ChunkLayout::fla, ChunkLayout::sglang, ChunkLayout::vllm}), "WHOSE",
             "whose kernels read the chunks\n"
             "fla: of linear attention, chunks begin with each sequence. sglang: of Mamba 2, at multiples of "
             "--chunk-size of all tokens, and where a sequence begins. vllm: of Mamba 2, at multiples of "
             "--chunk-size in each sequence. The latter are three arrays each, of int32.")
      .recorded()
      .shown("layout");
  add_reference(set, "--computed", options->computed,
                "tokens of each sequence before those of CU_SEQLENS, (sequences,)\n"
                "For --layout vllm; by default none. A sequence's first chunk then ends at its next multiple "
                "of --chunk-size.");
  set.set_outputs([options]() -> std::vector<std::string> {
    if (options->layout == ChunkLayout::sglang) return {"chunk_indices", "chunk_offsets", "seq_idx"};
    if (options->layout == ChunkLayout::vllm) return {"cu_chunk_seqlens", "seq_idx", "last_chunk_indices"};
    return {"chunk_indices"};
  });
  return [options](Job& job) {
    if (options->layout != ChunkLayout::fla && options->convention != Convention::document)
      throw usage("--convention {} excludes --layout {}", name_of(options->convention),
                  name_of(options->layout))
          .hint("its kernels read the indices of sequences, as --convention document has them");
    if (!options->computed.empty() && options->layout != ChunkLayout::vllm)
      throw usage("--computed requires --layout vllm");
    return run_ids(make_chunks, *options, job, [](const SequenceCounts& counts, const IdOptions& of) {
      return of.layout == ChunkLayout::fla ? 0 : mamba2_chunks_bytes(counts, of.chunk_size);
    });
  };
}

Run declare_chunk_offsets(OptionSet& set) {
  return declare_ids(set, Has::chunk_size, [](const ArraySource& cu, const IdOptions& options, Job&) {
    return std::vector<Output>{
        {"chunk_offsets", make_source(prepare_chunk_offsets(cu, options.chunk_size), "chunk_offsets"), {}}};
  });
}

Run declare_cdiv(OptionSet& set) {
  const auto options = std::make_shared<CdivOptions>();
  add_reference(set, "A", options->array, "integers of any shape, negative ones too").required();
  add_word(set, "--by", options->by, at_least(1), "B", "what to divide by, at least 1")
      .required()
      .recorded()
      .shown("divided by", Unit::count);
  return [options](Job& job) { return run_cdiv(*options, job); };
}

constexpr std::string_view kChunkSizeKey = R"(
chunk_size | integer | tokens of a chunk, as given by --chunk-size
)";

}  // namespace

extern const Command cu_seqlens_command{
    .name = "cu-seqlens",
    .group = "Sequences",
    .summary = "where packed sequences begin, from a mask, lengths or ids",
    .example = "ejk cu-seqlens attention_mask.npy -o cu_seqlens.npy",
    .outputs =
        {{"cu_seqlens", "(sequences + 1,) int32, or --dtype",
          "begins with 0 and never decreases: sequence i is tokens cu_seqlens[i] to cu_seqlens[i + 1] - 1"}},
    .use = R"(cu = np.load("cu_seqlens.npy")
first = packed[cu[0]:cu[1]]  # tokens of sequence 0)",
    .keys = joined({kSequencesFromKey, R"(
dtype | string | the element type of the result
shape | shape | its shape; with --dry-run, of ids, at most
)",
                    kPaddingKeys, kZeroIdKey, count_keys("without a float --dtype")}),
    .declare = declare_cu_seqlens,
};

extern const Command lens_command{
    .name = "lens",
    .group = "Sequences",
    .summary = "lengths of sequences, from cu_seqlens or a mask",
    .example = "ejk lens cu_seqlens.npy",
    .outputs = {{"lens", "(sequences,) of the input's type, int32 of a mask and of ids",
                 "tokens of each sequence"}},
    .use = "assert lens.sum() == cu[-1]",
    .keys = joined({kSequencesFromKey, kPaddingKeys, kZeroIdKey, R"(
shape | shape | of the array that is written | done
dtype | string | its element type | done
)",
                    count_keys("done")}),
    .declare = declare_lens,
};

extern const Command position_ids_command{
    .name = "position-ids",
    .group = "Sequences",
    .summary = "each token's position in its sequence",
    .example = "ejk position-ids cu_seqlens.npy -o position_ids.npy",
    .outputs = {{"position_ids", "(tokens,) of cu_seqlens' type",
                 "0, 1, 2, ... from the beginning of each sequence"}},
    .use = R"(rotated = rope(q, np.load("position_ids.npy")))",
    .keys = joined({count_keys(), kArrayKeys}),
    .declare = declare_position_ids,
};

extern const Command sequence_ids_command{
    .name = "sequence-ids",
    .group = "Sequences",
    .summary = "each token's sequence",
    .example = "ejk sequence-ids cu_seqlens.npy -o sequence_ids.npy",
    .outputs = {{"sequence_ids", "(tokens,) int32, or int64", "the index of each token's sequence, from 0"}},
    .use = R"(ids = np.load("sequence_ids.npy")
same = ids[:, None] == ids[None, :]  # may attend)",
    .keys = joined({count_keys(), kConventionKey, kArrayKeys}),
    .declare = declare_sequence_ids,
};

extern const Command token_indices_command{
    .name = "token-indices",
    .group = "Sequences",
    .summary = "each token's sequence and position",
    .example = "ejk token-indices cu_seqlens.npy -o token_indices.npy",
    .outputs = {{"token_indices", "(tokens, 2) of cu_seqlens' type",
                 "[sequence, position in it] of each token"}},
    .use = R"(sequence, position = np.load("token_indices.npy").T)",
    .keys = joined({count_keys(), kConventionKey, kArrayKeys}),
    .declare = declare_token_indices,
};

extern const Command chunk_indices_command{
    .name = "chunk-indices",
    .group = "Sequences",
    .summary = "each chunk's sequence and place in it",
    .example = "ejk chunk-indices cu_seqlens.npy --chunk-size 64 -o chunk_indices.npy",
    .outputs =
        {{"chunk_indices", "(chunks, 2) of cu_seqlens' type",
          "[sequence, chunk in it] of each chunk of --chunk-size tokens; a sequence's last may be shorter; "
          "with --layout sglang (chunks,) int32, which --chunk-size tokens each is in"},
         {"chunk_offsets", "(chunks,) int32, with --layout sglang", "the first token of each chunk in them"},
         {"cu_chunk_seqlens", "(chunks + 1,) int32, with --layout vllm",
          "the first token of each chunk, and the number of tokens"},
         {"seq_idx", "int32, with --layout sglang (tokens,), vllm (chunks,)",
          "the sequence of each token, or of each chunk"},
         {"last_chunk_indices", "(sequences,) int32, with --layout vllm",
          "the last chunk up to the end of each sequence; -1: none"}},
    .use = R"(sequence, chunk = np.load("chunk_indices.npy")[program_id]
begin = cu[sequence] + chunk * chunk_size
end = min(begin + chunk_size, cu[sequence + 1]))",
    .keys = joined({count_keys(), kChunkSizeKey, kConventionKey, R"(
layout | string | fla, sglang or vllm
)",
                    kArrayKeys}),
    .declare = declare_chunk_indices,
};

extern const Command chunk_offsets_command{
    .name = "chunk-offsets",
    .group = "Sequences",
    .summary = "where each sequence's chunks begin",
    .example = "ejk chunk-offsets cu_seqlens.npy --chunk-size 64",
    .outputs = {{"chunk_offsets", "(sequences + 1,) of cu_seqlens' type",
                 "chunks before each sequence: its chunks are chunk_offsets[i] to chunk_offsets[i + 1] - 1"}},
    .use = R"(chunks = np.diff(np.load("chunk_offsets.npy"))  # of each sequence)",
    .keys = joined({count_keys(), kChunkSizeKey, kArrayKeys}),
    .declare = declare_chunk_offsets,
};

extern const Command cdiv_command{
    .name = "cdiv",
    .group = "Sequences",
    .summary = "divide and round up",
    .example = "ejk cdiv lens.npy --by 64",
    .outputs = {{"cdiv", "the shape and type of A", "A / B, rounded up"}},
    .use = R"(assert (np.load("cdiv.npy") == -(-a // b)).all())",
    .keys = R"(
shape | shape | of the array that is written
dtype | string | its element type
by | integer | the divisor
)",
    .declare = declare_cdiv,
};

}  // namespace ejk::app
