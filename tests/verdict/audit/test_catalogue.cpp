// The catalogue of faults: names, kinds and public threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "ejk/audit.hpp"

using namespace ejk;

TEST_CASE("each fault has a name of its own, kinds, a text and public threads") {
  const std::regex thread(R"([\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*)"),
      kinds(
          "(attention|attention-grad|grouped-matmul|conv1d|linear-attention)( (attention-grad|grouped-matmul|linear-attention))*");
  std::set<std::string_view> names;
  for (const Fault& fault : fault_catalogue()) {
    CAPTURE(fault.name);
    CHECK(names.insert(fault.name).second);
    CHECK(std::regex_match(std::string(fault.kinds), kinds));
    CHECK(std::regex_match(std::string(fault.evidence), thread));
    CHECK_FALSE(fault.text.empty());
    CHECK(find_fault(fault.name) == &fault);
  }
  CHECK(find_fault("scale-thrice") == nullptr);
}
