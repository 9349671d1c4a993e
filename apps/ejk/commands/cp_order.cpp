// ejk cp-order: the order of tokens among context-parallel ranks.
// tests: tests/cli/cp-order/
#include "ejk/cp_order.hpp"

#include <optional>

#include "commands.hpp"
#include "ejk/sequence.hpp"
#include "ejk/sparsity.hpp"
#include "job.hpp"
#include "masks.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct CpOrderOptions {
  std::optional<CpOrder> order;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> tokens;
  std::string cu_seqlens, padded;
  MaskOptions masks;
  std::optional<BlockShape> block;
};

// Of ptrr and balanced: the mask, and the plan of its work.
struct WorkOfBlocks {
  Masks masks;
  SparsityPlan plan;
};

// Without `tokens` arrays of the mask determine them.
WorkOfBlocks plan_blocks(const CpOrderOptions& options, std::optional<std::int64_t> tokens, Job& job) {
  MaskOptions given = options.masks;
  given.shape_option = "--tokens";
  if (tokens) given.shape = {*tokens, *tokens};
  Masks masks = job.phase(Phase::read, [&] { return resolve_masks(given, job); });
  if (masks.q_length != masks.kv_length)
    throw usage("--mask has {} queries and {} keys: tokens are both", masks.q_length, masks.kv_length);
  SparsityPlan plan = plan_of_masks(
      given, masks, [&] { return SparsityPlan(masks.heads, {*options.block}, {.ranks = options.ranks}); });
  return {std::move(masks), std::move(plan)};
}

// The work of ranks by the mask; `settings` gets the rank of each block.
std::vector<CpRank> rank_blocks(const SparsityPlan& plan, CpSettings& settings, Job& job) {
  const Sparsity sparsity = plan.run(job.progress(), job.budget.bytes());
  const auto* const found =
      sparsity.find(settings.order == CpOrder::ptrr ? Distribution::ptrr : Distribution::balanced);
  if (found == nullptr)
    throw Error(Error::Kind::internal, "an order that divides the blocks has no ranks of blocks");
  settings.block_ranks = found->block_ranks;
  std::vector<CpRank> work;
  for (const RankLoad& load : found->ranks)
    work.push_back({load.queries, load.pairs_allowed, load.keys_received});
  return work;
}

Outcome run(const CpOrderOptions& options, Job& job) {
  const CpOrder order = *options.order;
  const bool has_sequences = !options.cu_seqlens.empty(), by_work = is_by_work(order);
  if (by_work == options.masks.expressions.empty() || by_work != options.block.has_value())
    throw by_work ? usage("--order {} requires --mask EXPR and --block QxK", name_of(order))
                  : usage("--mask and --block require --order ptrr or balanced, not {}", name_of(order));
  if (order == CpOrder::ptrr && options.block->q != options.block->kv)
    throw usage("--order ptrr has square blocks, not {}x{}", options.block->q, options.block->kv);
  if (!has_sequences && !options.tokens && !by_work)
    throw usage("the tokens are not given").hint("--cu-seqlens CU is of packed sequences, --tokens T of one");
  if (!has_sequences && is_by_sequence(order))
    throw usage("--order {} requires --cu-seqlens", name_of(order));
  if (!options.padded.empty() && order != CpOrder::thd) throw usage("--padded requires --order thd");

  CpSettings settings{.order = order, .ranks = options.ranks, .tokens = options.tokens};
  std::optional<std::int64_t> tokens = options.tokens;
  std::int64_t sequences = 1;
  Report report;
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
  std::optional<WorkOfBlocks> work;
  std::int64_t peak = kPieceBytes;
  if (by_work) {
    settings.block = options.block->q;
    work = plan_blocks(options, tokens, job);
    tokens = work->masks.q_length;
    if (!has_sequences) settings.tokens = tokens;
    peak += work->plan.work_bytes();
    report.warnings = work->masks.warnings();
  }
  if (find_indivisible(settings)) make_cp_order(settings);  // throws what cannot be divided
  report.add("order", "order", std::string(name_of(order))).add("tokens", "places", *tokens, Unit::count);
  if (job.plan(report, peak + cp_order_bytes(*tokens, sequences, options.ranks))) return Outcome::passed;
  Report rank_report;
  const CpTokens made = job.phase(Phase::compute, [&] {
    if (work) rank_report = describe_cp_work(rank_blocks(work->plan, settings, job), "pairs of the mask");
    CpTokens tokens_of_ranks = make_cp_order(settings);
    if (!work) rank_report = describe_cp_work(tokens_of_ranks.ranks);
    return tokens_of_ranks;
  });
  for (Report::Item& item : rank_report.items) report.add(std::move(item));
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
  add_word(set, "--tokens", options->tokens, at_least(0), "T", "how many tokens there are, in one sequence")
      .excludes("--cu-seqlens");
  add_reference(set, "--cu-seqlens", options->cu_seqlens,
                "instead where packed sequences begin, (sequences + 1,)");
  add_reference(set, "--padded", options->padded,
                "of thd, where they begin with padding behind each, (sequences + 1,)\nWithout it "
                "--cu-seqlens is of sequences with their padding.");
  add_mask_expressions(
      set, "--mask", options->masks.expressions,
      "of ptrr and balanced, whose work is shared: a rule, such as causal\n"
      "Without --tokens and --cu-seqlens its arrays determine the tokens. ejk mask-info --help lists the terms.");
  add_mask_kind(set, options->masks.polarity);
  add_word(set, "--block", options->block, read_block, "QxK",
           "of ptrr and balanced: queries and keys of a block")
      .recorded();
  set_footer(set,
             "Orders; a chunk is one of 2 N equal parts\n"
             "  contiguous    rank r has the r-th of N equal parts\n"
             "  head-tail     rank r has chunks r and 2 N - 1 - r of all tokens\n"
             "                (torch, and Megatron of one sequence)\n"
             "  per-document  those chunks of each sequence in turn (torch from 2.14)\n"
             "  thd           those of each sequence with its padding\n"
             "                (TransformerEngine's thd, and Megatron of packed sequences)\n"
             "  ptrr          blocks of queries by their visited blocks, most first, are dealt\n"
             "                to ranks 0 ... N - 1, N - 1 ... 0 and so on (torch's PTRR)\n"
             "  balanced      blocks by their pairs, most first, go to the rank with the\n"
             "                least, as ejk sparsity --cp has it\n\n"
             "A length that does not divide so is an error. The work of a rank is that of the\n"
             "mask, else of a causal one in each sequence; keys received are of other ranks.");
  return [options](Job& job) { return run(*options, job); };
}

}  // namespace

extern const Command cp_order_command{
    .name = "cp-order",
    .group = "Sequences",
    .summary = "the order of tokens among context-parallel ranks",
    .example = "ejk cp-order --order per-document --ranks 4 --cu-seqlens cu.npy -o cp.h5",
    .outputs = {{"order", "(tokens,) int32", "the token at each place, rank after rank"},
                {"inverse", "(tokens,) int32", "the place of each token"},
                {"rank_offsets", "(ranks + 1,) int32", "where the places of each rank begin"},
                {"positions", "(tokens,) int32",
                 "the position in its sequence of the token at each place, as rotary embeddings take it"}},
    .use = R"(with h5py.File("cp.h5") as f: a = {name: f[name][()] for name in f}
mine = np.split(x[a["order"]], N)[rank]
assert (x[a["order"]][a["inverse"]] == x).all())",
    .keys = R"(
order | string | as given
tokens | integer | tokens, with padding
ranks_count | integer | ranks | done
imbalance | number or null | pairs of the heaviest rank / the mean | done
ranks | table | work of each rank | done
  rank | integer | the rank
  tokens | integer | its tokens, without padding
  pairs | integer | causal pairs of a query and a key of its sequence; with --mask pairs of the mask
  keys_received | integer | keys of these that are on other ranks
)",
    .declare = declare_cp_order,
};

}  // namespace ejk::app
