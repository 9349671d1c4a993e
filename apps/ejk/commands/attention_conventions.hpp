// Conventions of attention on the command line: sinks, ALiBi, the order of the soft cap, forms of lse.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ejk/attention.hpp"
#include "job.hpp"
#include "options.hpp"
#include "outputs.hpp"

namespace ejk::app {

/// Conventions of the command line: those of --as, and over them those of other options.
struct ConventionFlags {
  std::optional<LibraryConventions> library;
  std::optional<SoftcapOrder> softcap_order;
  std::optional<AlibiForm> alibi_form;
  std::optional<LseBase> lse_base;
  std::optional<LseEmpty> lse_empty;
  std::optional<LseSink> lse_sink;
  std::optional<MaskedRows> masked_rows;
  std::optional<LseLayout> lse_layout;
  std::string sinks, alibi;  // references; "auto": slopes that follow from the number of heads

  AttentionConventions all() const {
    AttentionConventions c = library ? library->conventions : AttentionConventions();
    const auto override = [](auto& value, const auto& given) { value = given.value_or(value); };
    override(c.softcap_order, softcap_order);
    override(c.alibi_form, alibi_form);
    override(c.lse_base, lse_base);
    override(c.lse_empty, lse_empty);
    override(c.lse_sink, lse_sink);
    override(c.masked_rows, masked_rows);
    return c;
  }

  /// Whether the lse of files has heads after queries.
  bool exchanges_lse() const {
    return lse_layout.value_or(library ? library->lse_layout : LseLayout::hn) == LseLayout::nh;
  }
};

/// --scale and --softcap.
void declare_scale(OptionSet& set, AttentionSettings& into);
void declare_conventions(OptionSet& set, ConventionFlags& words);

/// Throws Error{usage} for options of lse without it. `has_lse`: lse is a result, or given.
void check_conventions(const ConventionFlags& words, bool has_lse);

/// Opens the sinks and the slopes of `heads` query heads, and records conventions that are not the default.
void open_conventions(const ConventionFlags& words, std::int64_t heads, AttentionSettings& settings,
                      Job& job);

/// An lse with heads before queries of one with heads after them, and the reverse: the last two axes exchanged.
Shape exchanged(Shape shape);
std::shared_ptr<const ArraySource> exchanged(const std::shared_ptr<const ArraySource>& source);
Output exchanged(Output output);

}  // namespace ejk::app
