// Findings, stored by rule and sorted by place, so that the first few do not depend on the order of
// insertion.
// tests: tests/check/test_findings.cpp, tests/check/test_rules.cpp
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "check/integers.hpp"
#include "core/require.hpp"
#include "ejk/check.hpp"
#include "ejk/program/text.hpp"

namespace ejk {

namespace {

// Names are stable; texts state what holds, and fit a line of help.
constexpr auto kError = Severity::error, kWarning = Severity::warning;

constexpr Rule kCuSeqlens[] = {
    {"length", kError, "there is at least one offset"},
    {"begin", kError, "the first offset is 0"},
    {"decreasing", kError, "no offset is less than the one before it"},
    {"tokens", kError, "the last offset is the number of tokens"},
    {"too-long", kError, "no sequence has more than the most tokens"},
    {"misaligned", kError, "no sequence with tokens is off the alignment"},
    {"count", kError, "there are as many offsets with padding as without"},
    {"longer", kError, "no sequence is longer than with its padding"},
    {"divisible", kError, "lengths divide among the ranks"},
    {"int32", kWarning, "offsets fit int32, which most kernels take"},
    {"empty", kWarning, "each sequence has a token"},
};

constexpr Rule kSegmentIds[] = {
    {"split", kError, "the tokens of a segment follow one another"},
    {"boundary", kError, "a sequence has one id, and not padding's"},
    {"repeated", kError, "no two sequences have the same id"},
    {"past-end", kError, "tokens past the last sequence are padding"},
    {"length", kError, "each token of the sequences has an id"},
    {"padding-inside", kWarning, "no padding stands between tokens of a row"},
    {"assumed", kWarning, "nothing is assumed: whether id 0 is padding"},
};

constexpr Rule kChunkIndices[] = {
    {"shape", kError, "there are rows of two, (chunks, 2)"},
    {"range", kError, "a row is a chunk that its sequence has"},
    {"duplicate", kError, "no chunk has two rows"},
    {"missing", kError, "each chunk has a row"},
    {"order", kError, "chunks follow one another, as chunk_offsets count"},
    {"per-row", kError, "chunks are of sequences, not of the packed row"},
    {"numbering", kError, "empty sequences are counted, or not as claimed"},
    {"tail", kError, "rows with a -1 stand behind the others"},
    {"offsets", kError, "offsets are sums of the numbers of chunks"},
};

constexpr Rule kSeqIdx[] = {
    {"length", kError, "each token of the sequences has an id"},
    {"range", kError, "an id is a sequence that there is"},
    {"boundary", kError, "ids change where sequences begin, and only there"},
    {"order", kError, "ids do not decrease"},
    {"repeated", kError, "no two sequences have the same id"},
    {"padding", kError, "-1 is behind the sequences, and nothing else"},
    {"type", kWarning, "ids are int32, which kernels read"},
};

constexpr Rule kStateIndices[] = {
    {"range", kError, "a slot is one that there is"},
    {"duplicate", kError, "no two sequences write the same slot"},
    {"padding", kError, "a negative slot is that of padding"},
    {"column", kError, "a slot is the page of the last computed token"},
    {"fresh", kError, "only sequences with computed tokens have a state"},
    {"null", kWarning, "no slot is page 0, which is null"},
};

constexpr Rule kPositionIds[] = {
    {"restart", kError, "a sequence, and a row, begins with position 0"},
    {"jump", kError, "a position is one more than the last, or 0"},
    {"counts-padding", kError, "with a mask, positions leave out padding"},
    {"length", kError, "each token of the sequences has a position"},
    {"padding-inside", kWarning, "no padding stands between tokens of a row"},
};

constexpr Rule kPermutation[] = {
    {"length", kError, "the order has a place for each token"},
    {"range", kError, "a place has a token that there is"},
    {"twice", kError, "no token has two places"},
    {"missing", kError, "each token has a place"},
    {"divisible", kError, "lengths divide among the ranks"},
    {"split", kError, "ranks share each sequence evenly, if they should"},
    {"order", kError, "places have the tokens of the claimed order"},
};

constexpr Rule kGroupSizes[] = {
    {"negative", kError, "no size is negative"},
    {"sum", kError, "the sizes sum to the number of rows"},
    {"int32", kWarning, "the offsets of the groups fit int32"},
    {"ends", kWarning, "the sizes are not where groups end"},
};

constexpr Rule kGroupMetadata[] = {
    {"shape", kError, "the lengths of the arrays go together"},
    {"begin", kError, "the first offset is 0"},
    {"decreasing", kError, "no offset is less than the one before it"},
    {"sizes", kError, "the offsets are those of the group sizes"},
    {"rows", kError, "the last offset is not beyond the rows"},
    {"misaligned", kError, "no group with rows is off the alignment"},
    {"num-tiles", kError, "there are as many labels as steps"},
    {"range", kError, "steps are of groups and tiles that there are"},
    {"order", kError, "neither groups nor tiles of steps decrease"},
    {"dropped", kError, "each row of the groups is computed"},
    {"twice", kError, "no row is computed twice"},
    {"experts", kError, "rows are of the expert that their token chose"},
    {"blocks", kError, "the blocks of the topology are those of the rows"},
    {"whole-blocks", kError, "rows with padding are whole blocks"},
    {"empty-groups", kError, "all empty groups have a step, or none has"},
    {"int32", kWarning, "offsets fit int32, which kernels take"},
    {"idle", kWarning, "each step has rows, or is of an empty group"},
    {"unchecked", kWarning, "the rows of tiles and groups are known"},
    {"assumed", kWarning, "nothing is assumed: labels or ends"},
};

constexpr Rule kTopkIds[] = {
    {"range", kError, "an entry is an expert that there is, or -1"},
    {"duplicate", kError, "no token has the same expert twice"},
    {"partial", kWarning, "a token's entries are all experts, or all -1"},
};

constexpr Rule kIndices[] = {
    {"range", kError, "an entry is a key that there is, or -1"},
    {"duplicate", kError, "no query has the same key twice"},
    {"future", kError, "no key is after its query"},
    {"gap", kWarning, "-1 stands behind the keys of a query"},
    {"empty", kWarning, "each query has a key"},
    {"assumed", kWarning, "nothing is assumed: where query 0 stands"},
};

constexpr Rule kBlockTable[] = {
    {"length", kError, "no sequence has a negative length"},
    {"beyond", kError, "no sequence needs more pages than a row holds"},
    {"missing", kError, "each page that a sequence needs has an entry"},
    {"range", kError, "entries are pages that there are"},
    {"twice", kError, "no sequence has a page twice"},
    {"null", kError, "null pages stand before a sequence's others"},
    {"window", kWarning, "no page is null (a window is assumed)"},
    {"shared", kWarning, "no page is of several sequences"},
};

constexpr Rule kSlotMapping[] = {
    {"length", kError, "each new token has a slot"},
    {"range", kError, "the table has a page for each position"},
    {"slot", kError, "a slot is page x size + offset of its position"},
    {"foreign", kError, "no slot is in a page of another sequence"},
    {"twice", kError, "no slot is written twice"},
    {"past-end", kError, "entries behind the tokens are -1"},
    {"unwritten", kWarning, "each new token is written, and not -1"},
};

constexpr Rule kMask[] = {
    {"outside", kError, "no pair is seen that a claim hides"},
    {"missing", kError, "no pair is hidden that a claim shows"},
    {"between", kError, "an additive mask holds 0, or -1e4 and less"},
    {"ids", kError, "integers are 0 and one other value, no ids"},
    {"values", kWarning, "a stored mask holds 0 and 1 alone"},
    {"inverted", kWarning, "who sees later keys sees its own position"},
    {"no-keys", kWarning, "each query sees a key"},
    {"unseen", kWarning, "each key is seen by a query"},
    {"padding-mask", kWarning, "it is of queries x keys, not batch x tokens"},
    {"assumed", kWarning, "nothing is assumed: how queries meet keys"},
};

constexpr Rule kMaskInfo[] = {
    {"shape", kError, "shapes and types of the arrays go together"},
    {"state", kError, "a block is 0, 1 (partial) or 2 (full)"},
    {"range", kError, "indices name blocks that there are"},
    {"elements", kError, "partial blocks have elements"},
    {"twice", kError, "no head visits a block twice"},
    {"order", kError, "steps of a row, and sequences, follow one another"},
    {"positions", kError, "q_sequence counts the queries from 0"},
    {"padding", kError, "no pair beyond the lengths is computed"},
    {"missing", kError, "each pair of the mask is computed"},
    {"outside", kError, "no pair is computed that the mask hides"},
    {"directions", kError, "lists of both directions have the same blocks"},
    {"write-order", kError, "key blocks add to dQ in their order"},
    {"runs-on", kError, "the kernel takes these blocks"},
    {"look-ahead", kWarning, "idle steps fetch what is needed next"},
    {"unused", kWarning, "each distinct partial block is used"},
    {"unread", kWarning, "bits that belong to no pair are 0"},
    {"decided", kWarning, "no partial block is all True or all False"},
    {"dtype", kWarning, "indices are int8, int16 or int32"},
    {"assumed", kWarning, "nothing is assumed: elements, alignment"},
};

constexpr Rule kCheckpoint[] = {
    {"scale-missing", kError, "quantised values have scales"},
    {"scale-shape", kError, "there is a scale for each block of values"},
    {"scale-dtype", kError, "scales have the type of their scheme"},
    {"scale-nonfinite", kError, "scales are finite"},
    {"scale-nonpositive", kError, "no scale is negative, no factor 0"},
    {"scale-e8m0-nan", kError, "no E8M0 scale is 0xFF, which is NaN"},
    {"scale-zero-block", kError, "the values of a scale of 0 are 0"},
    {"scale-uninitialised", kError, "scales are normal numbers, or 0"},
    {"scale-not-pow2", kError, "ue8m0 scales are powers of two"},
    {"global-missing", kError, "NVFP4 has a global scale"},
    {"global-reciprocal", kError, "no global scale is its inverse"},
    {"scale-reciprocal", kError, "scales make no weight of more than 1e5"},
    {"gate-up-scale", kError, "gate and up have one global scale"},
    {"experts-incomplete", kError, "experts have what the others have"},
    {"kv-scale", kError, "keys and values have positive scales"},
    {"index-disagrees", kError, "the index has each tensor, file and size"},
    {"nan-codes", kError, "no value is NaN or infinite"},
    {"scale-constant", kWarning, "scales are not all one number"},
    {"scale-orphan", kWarning, "scales have their values"},
    {"qkv-scale", kWarning, "q, k and v have one global scale"},
    {"config-disagrees", kWarning, "what is quantised is in the config"},
    {"unchecked", kWarning, "schemes of quantised tensors are checked"},
    {"codes-saturated", kWarning, "less than a quarter are the largest"},
    {"codes-unused", kWarning, "some value is the largest"},
    {"codes-negative-zero", kWarning, "some zero is not -0"},
};

}  // namespace

const char* name_of(Severity severity) { return severity == Severity::error ? "error" : "warning"; }

std::span<const CheckKind> check_kinds() {
  static constexpr CheckKind kinds[] = {
      {"cu-seqlens", kCuSeqlens},         {"segment-ids", kSegmentIds},
      {"chunk-indices", kChunkIndices},   {"seq-idx", kSeqIdx},
      {"state-indices", kStateIndices},   {"slot-mapping", kSlotMapping},
      {"position-ids", kPositionIds},     {"permutation", kPermutation},
      {"group-sizes", kGroupSizes},       {"topk-ids", kTopkIds},
      {"group-metadata", kGroupMetadata}, {"indices", kIndices},
      {"block-table", kBlockTable},       {"mask", kMask},
      {"mask-info", kMaskInfo},           {"checkpoint", kCheckpoint},
  };
  return kinds;
}

std::span<const Rule> rules_of(std::string_view kind) {
  for (const CheckKind& one : check_kinds())
    if (one.name == kind) return one.rules;
  throw core::usage("'{}' is no kind of artefact", kind);
}

Findings::Findings(std::span<const Rule> rules, std::int64_t most)
    : rules_(rules), most_(most), found_(rules.size()) {}

std::size_t Findings::row_of(std::string_view rule) const {
  for (std::size_t r = 0; r < rules_.size(); ++r)
    if (rules_[r].name == rule) return r;
  throw Error(Error::Kind::internal, fmt::format("no rule is called '{}'", rule));
}

void Findings::keep(OfRule& of, std::int64_t place, Finding finding) const {
  const auto after = std::upper_bound(of.kept.begin(), of.kept.end(), place,
                                      [](std::int64_t p, const Placed& other) { return p < other.place; });
  of.kept.insert(after, {place, std::move(finding)});
  if (static_cast<std::int64_t>(of.kept.size()) > most_) of.kept.pop_back();
}

void Findings::merge(Findings&& part) {
  for (std::size_t r = 0; r < found_.size(); ++r) {
    found_[r].count += part.found_[r].count;
    for (Placed& one : part.found_[r].kept)
      if (keeps(found_[r], one.place)) keep(found_[r], one.place, std::move(one.finding));
  }
}

std::int64_t Findings::count(std::string_view rule) const { return found_[row_of(rule)].count; }

std::int64_t Findings::count(Severity severity) const {
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < rules_.size(); ++r)
    if (rules_[r].severity == severity) sum += found_[r].count;
  return sum;
}

std::vector<Findings::Kept> Findings::kept() const& {
  std::vector<Kept> all;
  for (const Severity severity : {Severity::error, Severity::warning})
    for (std::size_t r = 0; r < rules_.size(); ++r)
      if (rules_[r].severity == severity)
        for (const Placed& one : found_[r].kept) all.push_back({rules_[r], one.finding});
  return all;
}

namespace {

// "1 error, 3 warnings"; "ok" if no finding fails.
std::string verdict_of(const Findings& findings, Severity fails) {
  const auto counted = [](std::int64_t count, const char* what) {
    return count == 0 ? "" : fmt::format("{} {}{}", format_count(count), what, count == 1 ? "" : "s");
  };
  const std::string errors = findings.errors() == 0 ? "ok" : counted(findings.errors(), "error");
  const std::string warnings = counted(findings.warnings(), "warning");
  if (fails == Severity::warning && findings.errors() == 0 && !warnings.empty())
    return warnings + " (strict)";
  return warnings.empty() ? errors : errors + ", " + warnings;
}

}  // namespace

Report describe(const Findings& findings, Severity fails) {
  Report report = findings.facts();
  report.items.insert(report.items.begin(), Line{"verdict", verdict_of(findings, fails)});
  report.add(JsonField{"errors", fmt::format("{}", findings.errors())})
      .add(JsonField{"warnings", fmt::format("{}", findings.warnings())});

  const auto kept = findings.kept();
  using Outcome = ReportCase::Outcome;
  const bool is_failed = findings.errors() > 0 || (fails == Severity::warning && findings.warnings() > 0);
  ReportCase& checked = report.cases.emplace_back(
      ReportCase{"", is_failed ? Outcome::failed : Outcome::passed, verdict_of(findings, fails)});
  for (const auto& [rule, finding] : kept)
    checked.findings.push_back(
        {rule.severity == Severity::error,
         fmt::format("{}{}: {} ({})", finding.array, finding.index.empty() ? "" : to_string(finding.index),
                     finding.message, rule.name)});
  if (!is_failed) checked.text.clear();
  const bool in_one = std::all_of(kept.begin(), kept.end(), [&](const Findings::Kept& one) {
    return one.finding.array == kept.front().finding.array;
  });
  Table table{"findings",
              "",
              {{"rule", "rule"},
               {"severity", "severity", Unit::none, true},
               {"array", "array", Unit::none, in_one && !findings.shows_arrays()},
               {"index", "index"},
               {"value", "value"},
               {"message", "what is wrong"}},
              {},
              std::numeric_limits<std::int64_t>::max()};
  for (const auto& [rule, finding] : kept)
    table.rows.push_back({std::string(rule.name), std::string(name_of(rule.severity)), finding.array,
                          finding.index, finding.value, finding.message});

  Table counts{
      "counts", "", {{"rule", "rule"}, {"severity", ""}, {"count", "findings"}, {"text", "what holds"}}, {}};
  for (const Severity severity : {Severity::error, Severity::warning})
    for (const Rule& rule : findings.rules())
      if (const std::int64_t count = findings.count(rule.name); rule.severity == severity && count > 0)
        counts.rows.push_back(
            {std::string(rule.name), std::string(name_of(severity)), count, std::string(rule.text)});
  // Of many arrays first how many findings there are of each rule.
  if (findings.shows_arrays()) return std::move(report.add(std::move(counts)).add(std::move(table)));
  return std::move(report.add(std::move(table)).add(std::move(counts)));
}

}  // namespace ejk
