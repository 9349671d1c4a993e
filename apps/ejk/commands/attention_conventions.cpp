// Options for conventions of attention.
// tests: tests/cli/attention/conventions.case
#include "attention_conventions.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace ejk::app {

namespace {

std::optional<ArrayView> exchanged_view(const std::optional<ArrayView>& view) {
  if (!view) return std::nullopt;
  ArrayView to = *view;
  to.shape = exchanged(to.shape);
  to.strides = exchanged(to.strides);
  return to;
}

class ExchangedSource final : public ForwardingSource {
 public:
  explicit ExchangedSource(const std::shared_ptr<const ArraySource>& source)
      : ForwardingSource(source, {source->dtype(), exchanged(source->shape())}, access_of(*source)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const Shape from = exchanged(Shape(start.begin(), start.end())),
                size = exchanged(Shape(count.begin(), count.end()));
    Array stored(dtype(), size);
    inner().read(from, size, stored.data());
    const Shape origin(count.size(), 0);
    make_source(*exchanged_view(stored.view()))->read(origin, count, out);
  }

 private:
  static ArrayAccess access_of(const ArraySource& source) {
    const std::optional<ArrayView> view = exchanged_view(source.mapped());
    return view ? ArrayAccess(*view) : ArrayAccess(ArrayAccess::Order::sequential);
  }
};

double read_cap(const std::string& word) {
  const double value = read_finite(word);
  if (value <= 0)
    throw usage("{} is not above 0", word).hint(value < 0 ? "" : "without --softcap scores have no cap");
  return value;
}

void declare_scores(OptionSet& set, ConventionFlags& words) {
  add_reference(
      set, "--sinks", words.sinks,
      "one more score for each head (heads,)\n"
      "Without a value, as gpt-oss has it: alpha is neither scaled nor capped; exp(alpha) is added to the sum that "
      "divides, and to lse. -inf is no sink. attention-grad makes its gradient, too: dsinks.")
      .group(kScoresGroup);
  add_reference(set, "--alibi", words.alibi,
                "slopes of ALiBi (heads,), (batch, heads); or auto\n"
                "auto: 2^(-8 (h + 1) / n) for n heads, a power of two; more heads go on with every second "
                "slope of 2 n heads.")
      .recorded_by_command()
      .group(kScoresGroup);
  add_choice(set, "--alibi-form", words.alibi_form,
             named_choices<std::optional<AlibiForm>>({AlibiForm::absolute, AlibiForm::signed_distance}),
             "FORM",
             "what slopes multiply\n"
             "absolute: -|i + K - Q - j|, for query i of Q and key j of K. signed: j - i.")
      .needs("--alibi")
      .recorded_by_command()
      .group(kScoresGroup);
  add_choice(
      set, "--softcap-order", words.softcap_order,
      named_choices<std::optional<SoftcapOrder>>({SoftcapOrder::before_bias, SoftcapOrder::after_bias}),
      "ORDER", "when --softcap is applied\nBefore or after a bias and ALiBi are added.")
      .needs("--softcap")
      .recorded_by_command()
      .group(kScoresGroup);
}

void declare_row_ends(OptionSet& set, ConventionFlags& words) {
  add_choice(set, "--lse-base", words.lse_base,
             named_choices<std::optional<LseBase>>({LseBase::e, LseBase::two}), "BASE",
             "base of the logarithm of lse\nOf an --lse that is given, too, as the next two.")
      .recorded_by_command()
      .group(kConventionsGroup);
  add_choice(set, "--lse-empty", words.lse_empty,
             named_choices<std::optional<LseEmpty>>(
                 {LseEmpty::minus_infinity, LseEmpty::infinity, LseEmpty::zero, LseEmpty::finite}),
             "VALUE",
             "lse of a query without a key\n"
             "finite: -0.7 times the largest float32. With a sink that lse counts it is the sink.")
      .recorded_by_command()
      .group(kConventionsGroup);
  add_choice(set, "--lse-sink", words.lse_sink,
             named_choices<std::optional<LseSink>>({LseSink::in, LseSink::out}), "WHERE",
             "whether lse counts the sink")
      .needs("--sinks")
      .recorded_by_command()
      .group(kConventionsGroup);
  add_choice(
      set, "--masked-rows", words.masked_rows,
      named_choices<std::optional<MaskedRows>>({MaskedRows::zero, MaskedRows::mean}), "HOW",
      "out of a query without a key: 0, or the mean of V\n"
      "With a sink it is 0. The mean adds dout / K to dv of each of K values, as jax.grad has it; the backward "
      "pass of JAX's splash attention adds dout.")
      .recorded_by_command()
      .group(kConventionsGroup);
  add_choice(
      set, "--lse-layout", words.lse_layout,
      named_choices<std::optional<LseLayout>>({LseLayout::hn, LseLayout::nh}), "LAYOUT",
      "axes of lse: heads, then queries, or the reverse\n"
      "Of the one that is written, and of those that are read; hn by default. Reports name heads first.")
      .recorded_by_command()
      .group(kConventionsGroup);
}

void declare_libraries(OptionSet& set, ConventionFlags& words) {
  std::vector<std::string> names;
  for (const LibraryConventions& library : library_conventions()) names.emplace_back(library.name);
  Option& as = take_word(
      set, "--as",
      [names, &words](const std::string& word) {
        words.library = library_conventions()[read_choice(word, names)];
      },
      "LIBRARY",
      help_of_choices("conventions of a library; options given win", names, "") +
          "\nflashinfer: lse to base 2 with heads after queries, a cap of bias and ALiBi, too, and ALiBi signed. fa2, flashmla: lse inf "
          "without a key; flashmla: no sink in lse. torch: flex_attention; torch-sdpa, its CPU kernel: lse 0 "
          "without a key. jax-splash: no scale; without a key the mean of V, and a finite lse. fa3, fa4 and cudnn "
          "have the defaults. Masks are not among them: flash attention's causal is --mask "
          "'causal(align=bottom-right)'.");
  as.choices = names;
  as.group(kConventionsGroup);
}

}  // namespace

Shape exchanged(Shape shape) {
  if (shape.size() > 1) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

std::shared_ptr<const ArraySource> exchanged(const std::shared_ptr<const ArraySource>& source) {
  return std::make_shared<ExchangedSource>(source);
}

Output exchanged(Output output) {
  if (!output.parts) {
    output.source = exchanged(output.source);
    return output;
  }
  std::vector<ArrayPart> parts;
  for (const ArrayPart& part : *output.parts)
    parts.push_back({{exchanged(part.box.start), exchanged(part.box.count)}, exchanged(part.elements)});
  return output_in_parts(output.name, {output.source->dtype(), exchanged(output.source->shape())},
                         std::move(parts));
}

void declare_scale(OptionSet& set, AttentionSettings& into) {
  add_word(set, "--scale", into.scale, read_finite, "S", "factor of q k; 1/sqrt(size) by default")
      .recorded()
      .otherwise("1/sqrt(D)")
      .group(kScoresGroup);
  add_word(
      set, "--softcap", into.softcap, read_cap, "C",
      "scores s become C tanh(s / C)\nBefore a bias and ALiBi are added, unless --softcap-order says otherwise.")
      .recorded()
      .group(kScoresGroup);
}

void declare_conventions(OptionSet& set, ConventionFlags& words) {
  declare_scores(set, words);
  declare_row_ends(set, words);
  declare_libraries(set, words);
}

void check_conventions(const ConventionFlags& words, bool has_lse) {
  if (!has_lse && (words.lse_base || words.lse_empty || words.lse_sink || words.lse_layout))
    throw usage("--lse-base, --lse-empty, --lse-sink and --lse-layout require --lse");
}

void open_conventions(const ConventionFlags& words, std::int64_t heads, AttentionSettings& s, Job& job) {
  s.conventions = words.all();
  const AttentionConventions usual;
  const auto record = [&](const char* name, auto value, auto by_default) {
    if (value != by_default) job.provenance.record(name, std::string(name_of(value)));
  };
  record("softcap_order", s.conventions.softcap_order, usual.softcap_order);
  record("alibi_form", s.conventions.alibi_form, usual.alibi_form);
  record("lse_base", s.conventions.lse_base, usual.lse_base);
  record("lse_empty", s.conventions.lse_empty, usual.lse_empty);
  record("lse_sink", s.conventions.lse_sink, usual.lse_sink);
  record("masked_rows", s.conventions.masked_rows, usual.masked_rows);
  if (words.exchanges_lse()) job.provenance.record("lse_layout", std::string(name_of(LseLayout::nh)));
  if (words.library && !words.library->scales && !s.scale) {
    s.scale = 1;
    job.provenance.record("scale", "1");
  }
  const auto open = [&](const char* role, const std::string& reference) {
    return reference.empty() ? nullptr : job.open(role, reference);
  };
  s.sinks = open("sinks", words.sinks);
  if (words.alibi != "auto") {
    s.alibi = open("alibi", words.alibi);
    return;
  }
  const std::vector<double> slopes = alibi_slopes(heads);
  s.alibi = make_source(Array::from<double>({std::ssize(slopes)}, slopes), "--alibi auto");
  job.provenance.record("alibi", "auto");
}

}  // namespace ejk::app
