// ejk cp-order: the order of tokens among context-parallel ranks.
// tests: tests/cli/cp-order/
#include "ejk/cp_order.hpp"

#include <optional>

#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct CpOrderOptions {
  std::optional<CpOrder> order;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> tokens;
  std::string cu_seqlens, padded;
};

Outcome run(const CpOrderOptions& options, Job& job) {
  const CpOrder order = *options.order;
  const bool has_sequences = !options.cu_seqlens.empty();
  if (has_sequences == options.tokens.has_value())
    throw usage(has_sequences ? "--cu-seqlens and --tokens both give the tokens" : "the tokens are not given")
        .hint("--cu-seqlens CU is of packed sequences, --tokens T of one");
  if (!has_sequences && is_by_sequence(order)) throw usage("--order {} needs --cu-seqlens", name_of(order));
  if (!options.padded.empty() && order != CpOrder::thd) throw usage("--padded goes with --order thd");

  CpSettings settings{.order = order, .ranks = options.ranks, .tokens = options.tokens};
  std::int64_t tokens = options.tokens.value_or(0), sequences = 1;
  // The sequences determine the size of the result, so a dry run reads them.
  if (has_sequences) {
    const auto cu = job.open("cu_seqlens", options.cu_seqlens);
    const auto padded = options.padded.empty() ? nullptr : job.open("padded", options.padded);
    job.phase(Phase::read, [&] {
      settings.cu_seqlens = in_memory(*cu);
      if (padded) settings.padded = in_memory(*padded);
      tokens = count_sequences(padded ? settings.padded : settings.cu_seqlens).tokens;
    });
    sequences = element_count(cu->shape());
  }
  Report report;
  report.add("order", "order", std::string(name_of(order))).add("tokens", "places", tokens, Unit::count);
  if (job.plan(report, kPieceBytes + cp_order_bytes(tokens, sequences, options.ranks)))
    return Outcome::passed;
  const CpTokens made = job.phase(Phase::compute, [&] { return make_cp_order(settings); });
  for (Report::Item& item : describe_cp_work(made.ranks).items) report.add(std::move(item));
  job.deliver(std::move(report), {{"order", make_source(made.order.view()), {}},
                                  {"inverse", make_source(made.inverse.view()), {}},
                                  {"rank_offsets", make_source(made.rank_offsets.view()), {}},
                                  {"positions", make_source(made.positions.view()), {}}});
  return Outcome::passed;
}

Run declare_cp_order(OptionSet& set) {
  const auto options = std::make_shared<CpOrderOptions>();
  add_choice(set, "--order", options->order, named_choices<std::optional<CpOrder>>(kCpOrders), "ORDER",
             "how ranks share the tokens, as below")
      .required()
      .recorded("order");
  add_word(set, "--ranks", options->ranks, at_least(1), "N", "context-parallel ranks")
      .required()
      .recorded("ranks");
  add_word(set, "--tokens", options->tokens, at_least(0), "T", "how many tokens there are, in one sequence");
  add_reference(set, "--cu-seqlens", options->cu_seqlens,
                "instead where packed sequences begin, (sequences + 1,)");
  add_reference(set, "--padded", options->padded,
                "of thd, where they begin with padding behind each, (sequences + 1,)\nWithout it "
                "--cu-seqlens is of sequences with their padding.");
  set_footer(set,
             "Orders; a chunk is one of 2 N equal parts\n"
             "  contiguous    rank r has the r-th of N equal parts\n"
             "  head-tail     rank r has chunks r and 2 N - 1 - r of all tokens\n"
             "                (torch, and Megatron of one sequence)\n"
             "  per-document  those chunks of each sequence in turn (torch from 2.14)\n"
             "  thd           those of each sequence with its padding\n"
             "                (TransformerEngine's thd, and Megatron of packed sequences)\n\n"
             "A length that does not divide so is an error. The work of a rank is that of a\n"
             "causal mask in each sequence, and the keys received are those of other ranks.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command cp_order_command{
    .name = "cp-order",
    .group = "Sequences",
    .summary = "the order of tokens among context-parallel ranks",
    .example = "ejk cp-order --order per-document --ranks 4 --cu-seqlens cu_seqlens.npy -o cp.h5",
    .outputs = {{"order", "(tokens,) int32", "the token at each place, rank after rank"},
                {"inverse", "(tokens,) int32", "the place of each token"},
                {"rank_offsets", "(ranks + 1,) int32", "where the places of each rank begin"},
                {"positions", "(tokens,) int32",
                 "the position in its sequence of the token at each place, as rotary embeddings take it"}},
    .use = R"(with h5py.File("cp.h5") as f: order, inverse = f["order"][()], f["inverse"][()]
mine = np.split(x[order], N)[rank]
assert (x[order][inverse] == x).all())",
    .keys = R"(
order | string | as given
tokens | integer | tokens, with padding
ranks_count | integer | ranks | done
imbalance | number or null | causal pairs of the heaviest rank / the mean | done
ranks | table | work of each rank | done
  rank | integer | the rank
  tokens | integer | its tokens, without padding
  pairs | integer | causal pairs of a query and a key of its sequence
  keys_received | integer | keys of these that are on other ranks
)",
    .declare = declare_cp_order,
};

}  // namespace ejk::app
