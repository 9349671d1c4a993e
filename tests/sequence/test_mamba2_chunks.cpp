// Chunks and ids by layout and convention: golden cases of fla, SGLang and vLLM, and token by token, with empty
// sequences.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "ejk/sequence.hpp"
#include "support/equal.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/random_mask.hpp"

using namespace ejk;

namespace {

using plain::between;
using plain::failure;
using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const Array& a) {
  Numbers numbers;
  for (const std::int32_t x : a.elements<std::int32_t>()) numbers.push_back(x);
  return numbers;
}

// Of each token, in order: a chunk begins at a multiple of the size, or with a sequence. Boundaries without a token
// begin one as well, unless they are multiples.
struct PlainRow {
  Numbers indices, offsets, seq_idx;

  PlainRow(const Numbers& cu, std::int64_t size) {
    for (std::int64_t t = 0; t <= cu.back(); ++t) {
      if (t < cu.back() && t % size == 0) add(t, size);
      for (std::size_t s = 1; s + 1 < cu.size(); ++s)
        if (cu[s] == t && t % size != 0) add(t, size);
    }
    for (std::size_t s = 0; s + 1 < cu.size(); ++s)
      seq_idx.insert(seq_idx.end(), static_cast<std::size_t>(cu[s + 1] - cu[s]),
                     static_cast<std::int64_t>(s));
  }
  void add(std::int64_t token, std::int64_t size) {
    indices.push_back(token / size);
    offsets.push_back(token % size);
  }
};

// vLLM's loop: cut off to the next multiple, then whole chunks, then the rest.
struct PlainAligned {
  Numbers begins, seq_idx, last;

  PlainAligned(const Numbers& cu, const Numbers& computed, std::int64_t size) {
    for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
      std::int64_t token = cu[s], left = cu[s + 1] - cu[s];
      const auto take = [&](std::int64_t count) {
        begins.push_back(token);
        seq_idx.push_back(static_cast<std::int64_t>(s));
        token += count;
        left -= count;
      };
      if (computed[s] % size != 0) take(std::min(left, (computed[s] + size - 1) / size * size - computed[s]));
      while (left > 0) take(std::min(left, size));
      last.push_back(std::ssize(begins) - 1);
    }
    begins.push_back(cu.back());
  }
};

}  // namespace

TEST_CASE("golden cases of fla, SGLang and vLLM") {
  int compared = 0;
  for (const golden::Case& c : golden::load("chunk_layouts")) {
    CAPTURE(c.name);
    const IntegerArray cu = make_source(c.in.at("cu_seqlens").view(), "cu"),
                       computed = make_source(c.in.at("computed").view(), "computed");
    const std::int64_t size = c.params.at("chunk_size");
    const auto check = [&](const Array& got, const std::string& name) {
      ++compared;
      golden::check_equal(got, c, name);
    };
    if (c.out.contains("chunk_indices")) {
      check(read_all(*prepare_chunk_indices(cu, size, Convention::fla)), "chunk_indices");
      check(prepare_chunk_offsets(cu, size), "chunk_offsets");
      check(read_all(*prepare_position_ids(cu)), "position_ids");
      check(read_all(*prepare_sequence_ids(cu, Convention::fla)), "sequence_ids");
      check(read_all(*prepare_token_indices(cu, Convention::fla)), "token_indices");
    }
    const PackedRowChunks row = prepare_packed_row_chunks(cu, size);
    check(row.chunk_indices, "sglang_chunk_indices");
    check(row.chunk_offsets, "sglang_chunk_offsets");
    check(read_all(*row.seq_idx), "sglang_seq_idx");
    for (const std::string prefix : {"vllm_", "vllm_computed_"}) {
      const AlignedChunks chunks =
          prepare_aligned_chunks(cu, size, prefix == "vllm_" ? IntegerArray() : computed);
      check(chunks.cu_chunk_seqlens, prefix + "cu_chunk_seqlens");
      check(chunks.seq_idx, prefix + "seq_idx");
      check(chunks.last_chunk_indices, prefix + "last_chunk_indices");
    }
  }
  CHECK(compared == 11 * 9 + 10 * 5);
}

TEST_CASE("chunks of random sequences are those of plain loops") {
  plain::Random random(4);
  for (int n = 0; n < 2000; ++n) {
    Numbers cu{0}, computed;
    for (std::int64_t s = between(random, 0, 6); s > 0; --s) {
      cu.push_back(cu.back() + (between(random, 0, 2) == 0 ? 0 : between(random, 0, 30)));
      computed.push_back(between(random, 0, 2) == 0 ? 0 : between(random, 0, 40));
    }
    const std::int64_t size = between(random, 1, 12);
    CAPTURE(to_string(cu));
    CAPTURE(to_string(computed));
    CAPTURE(size);
    Numbers rows;
    for (std::size_t s = 0; s + 1 < cu.size(); ++s)
      for (std::int64_t c = 0; c * size < cu[s + 1] - cu[s]; ++c)
        rows.insert(rows.end(), {static_cast<std::int64_t>(s), c});
    const Array pairs = read_all(*prepare_chunk_indices(cu, size, Convention::fla));
    CHECK(Numbers(pairs.elements<std::int64_t>().begin(), pairs.elements<std::int64_t>().end()) == rows);

    const PlainRow plain_row(cu, size);
    const PackedRowChunks row = prepare_packed_row_chunks(cu, size);
    CHECK(numbers_of(row.chunk_indices) == plain_row.indices);
    CHECK(numbers_of(row.chunk_offsets) == plain_row.offsets);
    CHECK(numbers_of(read_all(*row.seq_idx)) == plain_row.seq_idx);

    for (const bool fresh : {true, false}) {
      const PlainAligned expected(cu, fresh ? Numbers(computed.size()) : computed, size);
      const AlignedChunks chunks =
          prepare_aligned_chunks(cu, size, fresh ? IntegerArray() : IntegerArray(computed));
      CHECK(numbers_of(chunks.cu_chunk_seqlens) == expected.begins);
      CHECK(numbers_of(chunks.seq_idx) == expected.seq_idx);
      CHECK(numbers_of(chunks.last_chunk_indices) == expected.last);
    }
  }
}

TEST_CASE("wrong sizes, computed tokens and more tokens than int32 holds are errors") {
  const Numbers cu{0, 5, 9};
  CHECK(failure([&] { prepare_packed_row_chunks(cu, 0); }) == "the chunk size is 0; it must be at least 1");
  CHECK(failure([&] { prepare_aligned_chunks(cu, 4, Numbers{1}); }) ==
        "array: computed tokens of 1 sequences, and cu_seqlens are of 2");
  CHECK(failure([&] {
          prepare_aligned_chunks(cu, 4, Numbers{1, -1});
        }) == "array: sequence 1 has -1 computed tokens");
  const Numbers large{0, std::int64_t{1} << 31};
  CHECK(failure([&] { prepare_packed_row_chunks(large, 1 << 30); }) ==
        "array: 2147483648 tokens, more than the int32 of these kernels holds");
  // Sizes as large as any.
  CHECK(numbers_of(prepare_packed_row_chunks(cu, INT64_MAX).chunk_offsets) == Numbers{0, 5});
  CHECK(numbers_of(prepare_aligned_chunks(cu, INT64_MAX, Numbers{INT64_MAX, 1}).cu_chunk_seqlens) ==
        Numbers{0, 5, 9});
}
