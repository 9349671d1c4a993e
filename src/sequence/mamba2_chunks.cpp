// Chunks of packed sequences as kernels of Mamba 2 read them: SGLang's of the packed row
// (_query_start_loc_to_chunk_indices_offsets), vLLM's by positions in sequences (_compute_chunk_metadata).
// Cost: linear in chunks.
// tests: tests/sequence/test_mamba2_chunks.cpp
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/sequence.hpp"
#include "sequence/ids.hpp"

namespace ejk {

namespace {

std::vector<std::int64_t> offsets_of_chunks(const ArraySource& cu_seqlens, std::int64_t chunk_size) {
  if (chunk_size < 1) throw core::invalid("the chunk size is {}; it must be at least 1", chunk_size);
  std::vector<std::int64_t> cu = core::read_offsets(cu_seqlens);
  if (cu.back() > std::numeric_limits<std::int32_t>::max())
    throw std::move(core::invalid("{} tokens, more than the int32 of these kernels holds", cu.back())
                        .at(cu_seqlens.name()));
  return cu;
}

std::vector<std::int64_t> read_computed(const IntegerArray& computed, std::size_t sequences) {
  if (!computed) return std::vector<std::int64_t>(sequences);
  std::vector<std::int64_t> tokens = core::read_integers(*computed, "computed tokens");
  if (tokens.size() != sequences)
    throw std::move(
        core::invalid("computed tokens of {} sequences, and cu_seqlens are of {}", tokens.size(), sequences)
            .at(computed->name()));
  for (std::size_t s = 0; s < sequences; ++s)
    if (tokens[s] < 0)
      throw std::move(core::invalid("sequence {} has {} computed tokens", s, tokens[s]).at(computed->name()));
  return tokens;
}

}  // namespace

PackedRowChunks prepare_packed_row_chunks(const IntegerArray& cu_seqlens, std::int64_t chunk_size) {
  std::vector<std::int64_t> cu = offsets_of_chunks(cu_seqlens, chunk_size), begins;
  for (std::int64_t n = 0; n < core::ceil_div(cu.back(), chunk_size); ++n) begins.push_back(n * chunk_size);
  const auto multiples = std::ssize(begins);
  for (std::size_t s = 1; s + 1 < cu.size(); ++s)
    if (cu[s] % chunk_size != 0) begins.push_back(cu[s]);
  std::inplace_merge(begins.begin(), begins.begin() + multiples, begins.end());
  std::vector<std::int64_t> numbers, firsts;
  for (const std::int64_t begin : begins) {
    numbers.push_back(begin / chunk_size);
    firsts.push_back(begin % chunk_size);
  }
  std::vector<std::int64_t> labels(cu.size() - 1);
  std::iota(labels.begin(), labels.end(), 0);
  return {
      core::to_array(numbers, DType::int32, "chunk_indices"),
      core::to_array(firsts, DType::int32, "chunk_offsets"),
      sequence::make_ids(std::move(cu), std::move(labels), sequence::IdKind::label, DType::int32, "seq_idx")};
}

AlignedChunks prepare_aligned_chunks(const IntegerArray& cu_seqlens, std::int64_t chunk_size,
                                     const IntegerArray& computed) {
  const std::vector<std::int64_t> cu = offsets_of_chunks(cu_seqlens, chunk_size),
                                  before = read_computed(computed, cu.size() - 1);
  std::vector<std::int64_t> begins, sequences, last;
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    std::int64_t at = cu[s], rest = chunk_size - before[s] % chunk_size;  // tokens to the end of the chunk
    while (at < cu[s + 1] || (at == cu[s] && rest < chunk_size)) {
      begins.push_back(at);
      sequences.push_back(static_cast<std::int64_t>(s));
      at += std::min(rest, cu[s + 1] - at);
      rest = chunk_size;
    }
    last.push_back(std::ssize(begins) - 1);
  }
  begins.push_back(cu.back());
  return {core::to_array(begins, DType::int32, "cu_chunk_seqlens"),
          core::to_array(sequences, DType::int32, "seq_idx"),
          core::to_array(last, DType::int32, "last_chunk_indices")};
}

std::int64_t mamba2_chunks_bytes(const SequenceCounts& counts, std::int64_t chunk_size) {
  const double chunks =
      2 * static_cast<double>(counts.sequences) +
      static_cast<double>(counts.tokens) / static_cast<double>(std::max<std::int64_t>(1, chunk_size));
  return core::bytes_of_estimate((2 * 3 * 8 + 3 * 4) * chunks);  // vectors may grow to twice their size
}

}  // namespace ejk
