// ejk route, combine: the rows of a grouped product from the experts of tokens or from their logits, and the sum
// of each token's rows of the product.
// tests: tests/cli/route/
#include "ejk/route.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "against.hpp"
#include "commands.hpp"
#include "ejk/groups.hpp"
#include "ejk/matmul_check.hpp"
#include "ejk/program/routing.hpp"
#include "job.hpp"
#include "options.hpp"
#include "router.hpp"
#include "schema.hpp"
#include "sources.hpp"

namespace ejk::app {

namespace {

struct RouteOptions {
  std::string topk_ids;
  std::optional<std::int64_t> experts;
  RouterOptions router;
  std::optional<DType> dtype;
  std::int64_t ranks = 1;
  AgainstOptions against;
};

}  // namespace

RouterSettings RouterOptions::settings(Job& job) const {
  RouterSettings settings;
  settings.top_k = *top_k;
  settings.score = score.value_or(RouterScore::softmax);
  if (!bias.empty()) settings.bias = job.open("bias", bias);
  settings.groups = groups.value_or(1);
  settings.top_groups = top_groups.value_or(1);
  settings.renormalize = renormalize;
  return settings;
}

void declare_router(OptionSet& set, RouterOptions& into, const char* group) {
  add_reference(set, "--logits", into.logits, "scores of a router (tokens, experts)")
      .needs("--top-k")
      .group(group);
  add_word(set, "--top-k", into.top_k, at_least(1), "K", "experts of a token")
      .recorded()
      .needs("--logits")
      .group(group);
  add_choice(set, "--score", into.score,
             named_choices<std::optional<RouterScore>>({RouterScore::softmax, RouterScore::sigmoid}), "F",
             "the weight of an expert, softmax by default\nOf all experts, before the best are chosen.")
      .needs("--logits")
      .group(group);
  add_reference(
      set, "--bias", into.bias,
      "numbers (experts,) that are added to the scores\nThey choose experts; weights are without them.")
      .needs("--logits")
      .group(group);
  add_word(set, "--groups", into.groups, at_least(1), "G", "experts are in G groups of equal size")
      .needs("--logits")
      .needs("--top-groups")
      .group(group);
  add_word(
      set, "--top-groups", into.top_groups, at_least(1), "T",
      "experts are of the T best groups alone\nBy the largest score of a group; with --bias by the sum of the two "
      "largest.")
      .needs("--logits")
      .needs("--groups")
      .group(group);
  add_flag(set, "--renormalize", into.renormalize, "the weights of a token sum to 1")
      .needs("--logits")
      .group(group);
}

namespace {

void check_words(const RouteOptions& options) {
  if (options.topk_ids.empty() != options.router.given())
    throw usage(options.router.given() ? "TOPK_IDS and --logits both give the experts"
                                       : "TOPK_IDS is missing")
        .hint("ids: ejk route topk_ids.npy --experts 8; scores: ejk route --logits scores.npy --top-k 2");
  if (!options.router.given() && !options.experts)
    throw usage("--experts N is missing: ids do not say how many experts there are");
  if (options.against.given() && !options.router.given())
    throw usage("--against compares the choice of experts by logits: --logits is missing")
        .hint("ids beside ids: ejk compare A B --routing");
  if (!options.against.tiles.empty()) throw usage("--tiles: the picture is of tokens and choices");
}

// Another router's experts and weights; those of its own where it has weights alone.
class ActualRouter {
 public:
  ActualRouter(const RouteOptions& options, const ArraySource& logits, const RouterSettings& settings,
               Job& job, Report& report)
      : options_(options), logits_(logits), settings_(settings) {
    const Shape choices{logits.shape()[0], settings.top_k};
    actual_ = open_actual(
        options.against, {{"topk_ids", {DType::int32, choices}}, {"topk_weights", {settings.dtype, choices}}},
        {}, job, report);
  }
  std::int64_t bytes() const {
    const std::int64_t choices = logits_.shape()[0] * settings_.top_k;
    return options_.against.given() ? type_of(logits_).bytes() + 64 * choices : 0;
  }
  bool judge(const RoutedTokens& own, Job& job, Report& report) {
    const auto own_ids = make_source(own.topk_ids.view(), "topk_ids");
    const ArraySource& ids = actual_.results[0].source ? *actual_.results[0].source : *own_ids;
    bool passed = true;
    if (BufferedInput& weights = actual_.results[1]; weights.source) {
      const Against against =
          compare_weights(logits_, settings_, ids, weights.view(), options_.against.explain);
      passed = against.agrees();
      add_against(report, options_.against, against, actual_.others,
                  "'ejk compare MINE RESULT --explain' looks at the two arrays by themselves.", job);
    }
    if (actual_.results[0].source) {
      // Ties are of equal logits, where nothing else chooses.
      const bool by_logits = settings_.bias == nullptr && settings_.groups == 1;
      const RoutingComparison found =
          by_logits ? compare_routing(ids, logits_, settings_.top_k) : compare_routing(ids, *own_ids);
      passed = passed && found.close;
      add_routing(found, report);
    }
    return passed;
  }

 private:
  static void add_routing(const RoutingComparison& found, Report& report) {
    auto about = std::make_shared<Report>();
    const auto list = [&](const std::vector<std::int64_t>& ids) {
      return found.first_token ? ReportValue(ids) : ReportValue();
    };
    about->add("close", "agree, but for ties", found.close)
        .add("tokens_equal", "tokens with the same experts", share_of(found.tokens_equal, found.tokens),
             Unit::share)
        .add("tokens_tied", "that differ by a tie alone", found.tokens_tied, Unit::count)
        .add("first_token", "first that differs",
             found.first_token ? ReportValue(*found.first_token) : ReportValue())
        .add("first_actual", "its experts, actual", list(found.first_actual))
        .add("first_expected", "its experts, expected", list(found.first_expected));
    if (!found.close) report.warnings.emplace_back("the experts of tokens differ");
    const std::int64_t wrong = found.tokens - found.tokens_equal - found.tokens_tied;
    const std::string ids = found.close ? "topk_ids is right"
                                        : fmt::format("topk_ids is wrong for {} of the tokens",
                                                      to_text(share_of(wrong, found.tokens), Unit::share));
    using Outcome = ReportCase::Outcome;
    report.cases.push_back({"topk_ids", found.close ? Outcome::passed : Outcome::failed,
                            found.close ? "" : ids, found.close ? 0.0 : 1.0});
    Line* const verdict = report.items.empty() ? nullptr : std::get_if<Line>(&report.items.front());
    if (verdict != nullptr)  // that of the weights
      verdict->text =
          fmt::format("{}; {}", found.close ? verdict->text : ids, found.close ? ids : verdict->text);
    else
      report.items.insert(report.items.begin(), Line{"verdict", ids});
    report.items.insert(report.items.begin() + 1,
                        Section{"routing", "topk_ids, in any order", std::move(about)});
  }

  const RouteOptions& options_;
  const ArraySource& logits_;
  const RouterSettings& settings_;
  ActualArrays actual_;
};

Outcome run(const RouteOptions& options, Job& job) {
  check_words(options);
  RoutedTokens routed;
  std::shared_ptr<const ArraySource> ids;
  Report report;
  std::int64_t experts = 0;
  bool passed = true;
  if (options.router.given()) {
    const auto logits = job.open("logits", options.router.logits);
    experts = logits->shape().size() == 2 ? logits->shape()[1] : 0;
    if (options.experts && *options.experts != experts)
      throw Error(Error::Kind::input, fmt::format("{} has logits of {} experts, not {}",
                                                  printable(logits->name()), experts, *options.experts));
    RouterSettings settings = options.router.settings(job);
    settings.dtype = options.dtype.value_or(DType::float32);
    const std::int64_t tokens = logits->shape().empty() ? 0 : logits->shape()[0];
    const std::int64_t bytes = 40 * tokens * settings.top_k + 12 * experts + type_of(*logits).bytes();
    Report plan;
    plan.add("tokens", "tokens", tokens, Unit::count).add("experts", "experts", experts, Unit::count);
    std::optional<ActualRouter> actual;
    if (options.against.given()) actual.emplace(options, *logits, settings, job, report);
    if (job.plan(std::move(plan), bytes + (actual ? actual->bytes() : 0))) return Outcome::passed;
    routed = job.phase(Phase::compute, [&] { return choose_experts(*logits, settings, job.progress()); });
    ids = make_source(routed.topk_ids.view(), "topk_ids");
    if (actual) passed = job.phase(Phase::compute, [&] { return actual->judge(routed, job, report); });
    // Beside a verdict the rest are details.
    (options.against.given() ? report.details : report.items)
        .emplace_back(Field{"ties", "tokens decided by a tie", routed.ties, Unit::count});
    if (routed.ties > 0)
      report.warnings.push_back(
          fmt::format("{} tokens have equal scores at the limit; the lower expert was chosen",
                      format_count(routed.ties)));
  } else {
    ids = job.open("topk_ids", options.topk_ids);
    experts = *options.experts;
    Report plan;
    plan.add("tokens", "tokens",
             ids->shape().size() < 2
                 ? element_count(ids->shape())
                 : element_count(ids->shape()) / std::max<std::int64_t>(1, ids->shape().back()),
             Unit::count)
        .add("experts", "experts", experts, Unit::count);
    if (job.plan(std::move(plan), route_bytes(*ids, experts))) return Outcome::passed;
  }
  const Route route = job.phase(Phase::compute, [&] { return make_route(ids, experts); });
  Report described = describe(route, options.ranks);
  if (options.against.given()) described.move_to_details();
  append(described, std::move(report));
  const std::string none = "TOPK_IDS is given";
  const bool has_logits = options.router.given();
  const auto if_logits = [&](const Array& array) {
    return has_logits ? make_source(array.view()) : std::shared_ptr<const ArraySource>();
  };
  job.deliver(std::move(described), {{"group_sizes", make_source(route.group_sizes.view()), {}},
                                     {"order", make_source(route.order.view()), {}},
                                     {"inverse", make_source(route.inverse.view()), {}},
                                     {"token", make_source(route.token.view()), {}},
                                     {"topk_ids", if_logits(routed.topk_ids), none},
                                     {"topk_weights", if_logits(routed.topk_weights), none}});
  return passed ? Outcome::passed : Outcome::failed;
}

Run declare_route(OptionSet& set) {
  const auto options = std::make_shared<RouteOptions>();
  add_reference(set, "TOPK_IDS", options->topk_ids,
                "the experts of each token (tokens, k)\nIntegers; -1 is no expert.");
  add_word(set, "--experts", options->experts, at_least(0), "N", "how many experts there are").recorded();
  add_word(set, "--ranks", options->ranks, at_least(1), "N",
           "the load of N expert-parallel ranks, with as many consecutive experts each");
  const char* const group = "Instead of TOPK_IDS";
  declare_router(set, options->router, group);
  add_dtype(set, "--dtype", options->dtype, "type of the weights, float32 by default", float_dtypes())
      .needs("--logits")
      .group(group);
  declare_against(set, options->against);
  set_footer(set,
             "The layer of a mixture of experts\n"
             "  ejk route --logits scores.npy --top-k 2 --renormalize -o r.h5\n"
             "  ejk grouped-matmul 'rows(x.npy, r.h5:/token)' w.npy r.h5:/group_sizes -o y.npy\n"
             "  ejk combine y.npy r.h5:/inverse --weights r.h5:/topk_weights -o out.npy\n\n"
             "Equal scores are decided for the lower expert, and counted.");
  return [options](Job& job) { return run(*options, job); };
}

struct CombineOptions {
  std::string y, inverse, weights, group_sizes;
  std::optional<std::int64_t> top_k;
  std::optional<DType> dtype;
};

Outcome run_combine(const CombineOptions& options, Job& job) {
  if (options.weights.empty() == !options.top_k)
    throw usage(options.top_k ? "--weights has the experts of a token, and --top-k gives them, too"
                              : "--weights REF is missing, or --top-k K for sums without weights")
        .hint("for example: ejk combine y.npy r.h5:/inverse --weights r.h5:/topk_weights");
  BufferedInput y{"y", job.open("y", options.y)};
  const auto inverse = job.open("inverse", options.inverse);
  CombineSettings settings;
  settings.top_k = options.top_k.value_or(1);
  settings.dtype = options.dtype;
  if (!options.weights.empty()) settings.weights = job.open("weights", options.weights);
  if (!options.group_sizes.empty())
    settings.rows = group_offsets(job.open_integers("group_sizes", options.group_sizes),
                                  y.source->shape().empty() ? 0 : y.source->shape()[0])
                        .back();
  const std::int64_t choices = element_count(inverse->shape());
  const std::int64_t tokens = settings.weights && !settings.weights->shape().empty()
                                  ? settings.weights->shape()[0]
                                  : choices / settings.top_k;
  Report report;
  report.add("tokens", "tokens", tokens, Unit::count).add("choices", "choices", choices, Unit::count);
  const std::int64_t columns = y.source->shape().empty() ? 1 : y.source->shape().back();
  if (job.plan(report, y.bytes_to_buffer() + 24 * choices +
                           byte_count(Shape{tokens, columns}, options.dtype.value_or(y.source->dtype()))))
    return Outcome::passed;
  const ArrayView product = job.phase(Phase::read, [&] { return y.view(); });
  Array out = naming(std::array{&y}, [&] {
    return job.phase(Phase::compute, [&] { return combine_experts(product, inverse, settings); });
  });
  job.deliver(std::move(report), {{"out", make_source(std::move(out)), {}}});
  return Outcome::passed;
}

Run declare_combine(OptionSet& set) {
  const auto options = std::make_shared<CombineOptions>();
  add_reference(set, "Y", options->y, "rows of a grouped product (rows, n)").required();
  add_reference(set, "INVERSE", options->inverse, "the row of each choice (tokens * k,), as ejk route has it")
      .required();
  add_reference(set, "--weights", options->weights, "weights (tokens, k) of the choices");
  add_word(set, "--top-k", options->top_k, at_least(1), "K", "choices of a token, which count alike")
      .recorded();
  add_reference(set, "--group-sizes", options->group_sizes,
                "rows of each expert; later ones are of no expert\nChoices of theirs add nothing.");
  add_dtype(set, "--dtype", options->dtype, "type of the sums, by default that of Y", float_dtypes())
      .recorded();
  set_footer(set, "Sums are float64, in the order of the choices, and rounded once.");
  return [options](Job& job) { return run_combine(*options, job); };
}

}  // namespace

extern const Command combine_command{
    .name = "combine",
    .group = "Groups",
    .summary = "the rows of each token's experts, weighted and summed",
    .example = "ejk combine y.npy r.h5:/inverse --weights r.h5:/topk_weights -o out.npy",
    .outputs = {{"out", "(tokens, n)", "sum of weights[t, j] * Y[INVERSE[t * k + j]]"}},
    .use = R"(out = np.load("out.npy"))",
    .keys = R"(
tokens, choices | integer | tokens; elements of INVERSE
)",
    .declare = declare_combine,
};

extern const Command route_command{
    .name = "route",
    .group = "Groups",
    .summary = "tokens to experts: group sizes, and the order of the rows",
    .example = "ejk route topk_ids.npy --experts 8 -o route.h5",
    .outputs = {{"group_sizes", "(experts,) int32", "rows of each expert"},
                {"order", "(tokens * k,) int32", "the choice of each row, sorted by expert"},
                {"inverse", "(tokens * k,) int32", "the row of each choice"},
                {"token", "(tokens * k,) int32", "the token of each row"},
                {"topk_ids", "(tokens, k) int32", "with --logits: the experts of each token, best first"},
                {"topk_weights", "(tokens, k)", "with --logits: their weights"}},
    .use = R"(with h5py.File("route.h5") as f: r = {k: f[k][()] for k in f}
rows = x[r["token"]]  # LHS of grouped-matmul, with route.h5:/group_sizes
out = y[r["inverse"]].reshape(len(x), k, -1).sum(1))",
    .keys = joined({R"(
tokens, experts | integer | tokens; experts
choices | integer | entries of the ids that are of an expert | done
no_expert | integer | choices of -1, which come last | done
empty_experts, largest_expert, largest_expert_index | integer | experts without rows; rows of the largest; which it is | done
expert_max_over_mean | number or null | largest / mean | done
ranks | integer | expert-parallel ranks | with --ranks
empty_ranks, largest_rank, largest_rank_index | integer | the same of ranks | with --ranks
rank_max_over_mean | number or null | largest / mean | with --ranks
ties | integer | tokens decided by a tie | with --logits
routing | section | the experts of tokens in the other file, in any order | with --against, where it has topk_ids
  close | boolean | whether they are the same, but for ties
  tokens_equal | share or null | tokens with the same experts
  tokens_tied | integer | tokens with other experts that a tie accounts for
  first_token | integer or null | the first token that differs, ties apart
  first_actual, first_expected | shape or null | its experts on each side
)",
                    kAgainstKeys}),
    .declare = declare_route,
};

}  // namespace ejk::app
