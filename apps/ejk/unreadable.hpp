// Inputs that cannot be read: they are listed in the report, and are an error at the end.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ejk/error.hpp"
#include "ejk/program/text.hpp"
#include "ejk/report.hpp"

namespace ejk::app {

class Unreadable {
 public:
  /// Runs f() for the input `name`; false if it fails with an input error.
  template <class F>
  bool unless_failing(const std::string& name, F&& f) {
    try {
      f();
      return true;
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::input) throw;
      if (!first_) first_ = error;
      table_.rows.push_back({printable(name), printable(error.why())});
      return false;
    }
  }

  void add_to(Report& report) const {
    if (table_.rows.empty()) return;
    Table table = table_;
    if (table.rows.size() == 1) table.text_rows = 0;  // the error has the same text
    report.add(std::move(table));
  }
  /// Throws the first error, with the number of such inputs.
  void throw_if_any() const {
    if (first_ && table_.rows.size() == 1) throw Error(*first_);
    if (first_)
      throw Error(
          first_->kind(),
          fmt::format("{} inputs are unreadable, the first: {}", table_.rows.size(), first_->message()),
          first_->code())
          .hint(first_->hint());
  }

 private:
  std::optional<Error> first_;
  Table table_{"unreadable", "unreadable", {{"name", "what"}, {"why", "why"}}, {}, INT64_MAX};
};

}  // namespace ejk::app
