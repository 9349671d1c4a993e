// ejk pack, unpack: padded batches to packed tokens, and back.
//
// tests: tests/cli/pack/, tests/cli/unpack/
#include "ejk/pack.hpp"

#include <fmt/format.h>

#include "commands.hpp"
#include "ejk/program/text.hpp"
#include "integers.hpp"
#include "job.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

// A source that is slow to read at random is buffered, up to half of the memory allowed.
std::int64_t bytes_to_buffer(const ArraySource& source, const Job& job) {
  const std::int64_t bytes = type_of(source).bytes();
  return source.random_access() || bytes > job.budget.bytes() / 2 ? 0 : bytes;
}
std::shared_ptr<const ArraySource> buffered(const std::shared_ptr<const ArraySource>& source,
                                            const Job& job) {
  return bytes_to_buffer(*source, job) > 0 ? in_memory(*source) : source;
}

// Sequences with padding behind each, instead of a batch.
struct PaddedWords {
  std::string cu_seqlens, padded;

  // `other`: the positional argument in their place.
  bool given(const char* name, const std::string& other) const {
    if (cu_seqlens.empty() && other.empty())
      throw usage("{} is required", name)
          .hint("sequences with padding behind each: --cu-seqlens REF --cu-seqlens-padded REF");
    return !cu_seqlens.empty();
  }
};

void add_padded(OptionSet& set, PaddedWords& words, const char* other, const std::string& of) {
  add_reference(set, "--cu-seqlens", words.cu_seqlens,
                "how long sequences are\nSequence i is cu[i + 1] - cu[i] tokens.")
      .needs("--cu-seqlens-padded")
      .excludes(other);
  add_reference(set, "--cu-seqlens-padded", words.padded,
                "at which tokens they begin, with padding behind each\n" + of)
      .needs("--cu-seqlens");
}

// --- pack

struct PackOptions {
  std::string x, mask;
  PaddedWords padded;
};

Outcome run_pack(const PackOptions& options, Job& job) {
  const bool by_sequences = options.padded.given("MASK", options.mask);
  const auto x = job.open("x", options.x);
  const auto mask =
      by_sequences ? job.open("cu_seqlens", options.padded.cu_seqlens) : job.open("mask", options.mask);
  const auto begins = by_sequences ? job.open("cu_seqlens_padded", options.padded.padded) : nullptr;
  Report report;
  report.add("padded", "padded", x->shape()).add("dtype", "dtype", std::string(name_of(x->dtype())));
  if (begins && !x->shape().empty()) warn_of_tail(*begins, x->shape()[0], report);
  const std::int64_t index_bytes = pack_bytes(type_of(*mask)) + (begins ? pack_bytes(type_of(*begins)) : 0);
  if (job.plan(report, piece_buffers(2, type_of(*x).bytes()) + index_bytes + bytes_to_buffer(*x, job)))
    return Outcome::passed;
  const Packed p = job.phase(Phase::compute, [&] {
    return by_sequences ? pack_sequences(buffered(x, job), mask, begins) : pack(buffered(x, job), *mask);
  });
  const std::int64_t rows = p.cu_seqlens.size() - 1, tokens = p.packed->shape()[0],
                     places = by_sequences ? x->shape()[0] : element_count(mask->shape());
  report.add("packed", "packed", p.packed->shape())
      .add("sequences", "sequences", rows, Unit::count)
      .add("tokens", "tokens", tokens, Unit::count)
      .add("max_seqlen", "longest", p.max_seqlen, Unit::tokens)
      .add("padding_share", "padding left out",
           places > 0 ? ReportValue(1 - static_cast<double>(tokens) / static_cast<double>(places))
                      : ReportValue(),
           Unit::share);
  if (p.left_padded > 0) report.add("left_padded_rows", "left-padded", p.left_padded, Unit::rows);
  if (p.with_holes > 0) report.add("rows_with_holes", "with holes", p.with_holes, Unit::rows);
  if (p.max_seqlen > INT32_MAX)
    throw Error(Error::Kind::input,
                fmt::format("the longest row has {} tokens, more than int32 holds", p.max_seqlen));
  Array longest(DType::int32, {});
  longest.elements<std::int32_t>()[0] = static_cast<std::int32_t>(p.max_seqlen);
  job.deliver(std::move(report), {{"packed", p.packed, {}},
                                  {"cu_seqlens", make_source(p.cu_seqlens.view()), {}},
                                  {"indices", p.indices, {}},
                                  {"max_seqlen", make_source(longest.view()), {}}});
  return Outcome::passed;
}

// --- unpack

struct UnpackOptions {
  std::string packed, where;
  PaddedWords padded;
  Shape shape;
  Number fill = std::int64_t{0};
};

using Source = std::shared_ptr<const ArraySource>;

// `unpacked(tokens)` needs `bytes` of memory.
template <class Unpacked>
Outcome deliver_unpacked(Job& job, const Source& packed, Shape shape, std::int64_t bytes,
                         const Unpacked& unpacked) {
  Report report;
  report.add("packed", "packed", packed->shape())
      .add("dtype", "dtype", std::string(name_of(packed->dtype())));
  if (!packed->shape().empty()) shape.insert(shape.end(), packed->shape().begin() + 1, packed->shape().end());
  report.add("padded", "padded", shape);
  job.show_options(report);
  report.add("size", "size", byte_count(shape, packed->dtype()), Unit::bytes);
  if (job.plan(report,
               piece_buffers(2, byte_count(shape, packed->dtype())) + bytes_to_buffer(*packed, job) + bytes))
    return Outcome::passed;
  const Source result = job.phase(Phase::compute, [&] { return unpacked(buffered(packed, job)); });
  job.deliver(std::move(report), {{"unpack", result, {}}});
  return Outcome::passed;
}

Outcome run_unpack_sequences(const UnpackOptions& options, Job& job) {
  if (options.shape.size() == 2)
    throw usage("--shape is one length with --cu-seqlens-padded, that of all tokens");
  const auto packed = job.open("packed", options.packed);
  const auto cu_seqlens = job.open("cu_seqlens", options.padded.cu_seqlens),
             begins = job.open("cu_seqlens_padded", options.padded.padded);
  std::optional<std::int64_t> tokens;
  if (!options.shape.empty()) tokens = options.shape[0];
  const auto unpacked = [&](const Source& from) {
    return unpack_sequences(from, cu_seqlens, begins, tokens, options.fill);
  };
  const Source result = job.phase(Phase::compute, [&] { return unpacked(packed); });
  return deliver_unpacked(job, packed, {result->shape()[0]},
                          pack_bytes(type_of(*cu_seqlens)) + pack_bytes(type_of(*begins)), unpacked);
}

Outcome run_unpack(const UnpackOptions& options, Job& job) {
  if (options.padded.given("WHERE", options.where)) return run_unpack_sequences(options, job);
  const auto packed = job.open("packed", options.packed);
  const auto where = job.open("where", options.where);
  if (options.shape.size() == 1)
    throw usage("--shape is BxS for a batch: one length is that of tokens with --cu-seqlens-padded");
  const bool by_mask = where->shape().size() == 2;
  if (!by_mask && options.shape.empty())
    throw usage("--shape is required: only a mask says how long rows are")
        .hint("for example --shape 32x128 for 32 rows of 128");
  std::optional<std::int64_t> batch, seq;
  if (!options.shape.empty()) batch = options.shape[0], seq = options.shape[1];
  return deliver_unpacked(job, packed, by_mask ? where->shape() : options.shape, pack_bytes(type_of(*where)),
                          [&](const Source& from) { return unpack(from, *where, batch, seq, options.fill); });
}

Run declare_pack(OptionSet& set) {
  const auto options = std::make_shared<PackOptions>();
  add_reference(set, "X", options->x,
                "a padded array (batch, seq, ...) of any type\n"
                "With --cu-seqlens-padded (tokens, ...), padding between its sequences.")
      .required();
  add_reference(
      set, "MASK", options->mask,
      "which elements are tokens (batch, seq), bool or integer\n"
      "Non-zero is a token, of integers one value beside 0: padding may be on the right, on the left and in between.");
  add_padded(
      set, options->padded, "MASK",
      "As TransformerEngine's THD layout has it: sequence i is the first tokens of X from padded[i] on.");
  return [options](Job& job) { return run_pack(*options, job); };
}

Run declare_unpack(OptionSet& set) {
  const auto options = std::make_shared<UnpackOptions>();
  add_reference(set, "PACKED", options->packed, "packed tokens (tokens, ...) of any type").required();
  add_reference(
      set, "WHERE", options->where,
      "their places: a mask (batch, seq), indices (tokens,) or cu_seqlens (batch + 1,)\n"
      "Indices are those that pack writes, batch * seq, in any order. By cu_seqlens row i begins with "
      "sequence i: padding is on the right. Numbers that can be both, batch + 1 tokens in batch rows, are "
      "indices if they are int64 and refused otherwise.");
  add_padded(set, options->padded, "WHERE",
             "As TransformerEngine's THD layout has it: sequence i goes to the tokens from padded[i] on.");
  add_word(
      set, "--shape", options->shape, [](const std::string& w) { return read_lengths(w, 1, 2, "BxS", 0); },
      "BxS",
      "rows and their length; a mask says it itself\n"
      "With --cu-seqlens-padded T, all tokens, where padding follows what it ends at.");
  add_word(set, "--fill", options->fill, read_number, "VALUE", "what padding becomes, 0 by default")
      .recorded()
      .shown("padding is");
  return [options](Job& job) { return run_unpack(*options, job); };
}

}  // namespace

extern const Command pack_command{
    .name = "pack",
    .group = "Sequences",
    .summary = "padded batches to packed tokens",
    .example = "ejk pack hidden.npy attention_mask.npy -o packed.h5",
    .outputs = {{"packed", "(tokens, ...) of X's type", "the tokens of X, row after row, without padding"},
                {"cu_seqlens", "(batch + 1,) int32", "where each row's tokens begin in packed"},
                {"indices", "(tokens,) int64",
                 "row * seq + column of each token, or its place in X; ejk unpack takes it"},
                {"max_seqlen", "() int32", "tokens of the longest row"}},
    .use = R"(with h5py.File("packed.h5") as f:
    tokens = x.reshape(batch * seq, -1)[f["indices"][()]]  # as f["packed"])",
    .keys = joined({R"(
padded | shape | the shape of X
dtype | string | its element type
packed | shape | the shape of the packed tokens | done
sequences | integer | rows of the mask, or sequences | done
tokens | integer | tokens of all rows | done
max_seqlen | integer | tokens of the longest row | done
padding_share | share or null | padding / elements of the mask, or all tokens | done
)",
                    kPaddingKeys}),
    .declare = declare_pack,
};

extern const Command unpack_command{
    .name = "unpack",
    .group = "Sequences",
    .summary = "packed tokens to padded batches",
    .example = "ejk unpack packed.h5:/packed packed.h5:/indices --shape 32x128 -o hidden.npy",
    .outputs = {{"unpack", "(batch, seq, ...) of PACKED's type",
                 "tokens in their places, --fill everywhere else"}},
    .use = R"(assert (np.load("hidden.npy")[mask] == packed).all())",
    .keys = R"(
packed | shape | the shape of PACKED
dtype | string | its element type
padded | shape | the shape of the result
fill | number or null | the value of padding; null for NaN and infinities
size_bytes | integer | bytes of the result
)",
    .declare = declare_unpack,
};

}  // namespace ejk::app
