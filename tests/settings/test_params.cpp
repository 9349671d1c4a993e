// Parameters of kernels: golden cases, equality and hashes, invalid JSON.
#include "ejk/program/params.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <limits>
#include <set>
#include <unordered_set>

#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace ejk;

namespace {

nlohmann::ordered_json json_of(const ParamsDict& dict) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : dict) json[name] = value;
  return json;
}

FwdParams fwd(const nlohmann::json& json) { return fwd_params_from(parse_json(json.dump())); }
BwdParams bwd(const nlohmann::json& json) { return bwd_params_from(parse_json(json.dump())); }

ParamsDict result_of(const nlohmann::json& p) {
  const std::string op = p.at("op");
  if (op == "bwd_from_fwd") return to_dict(BwdParams::from_fwd_params(fwd(p.at("a")), p.at("scale")));
  const bool forward = p.at("kind") == "fwd";
  if (op == "to_dict") return forward ? to_dict(fwd(p.at("a"))) : to_dict(bwd(p.at("a")));
  return forward ? to_dict(merge(fwd(p.at("a")), fwd(p.at("b"))))
                 : to_dict(merge(bwd(p.at("a")), bwd(p.at("b"))));
}

std::string failure_of_params(const std::string& text) {
  return plain::failure([&] { fwd_params_from(parse_json(text)); });
}

}  // namespace

TEST_CASE("golden cases of parameters") {
  for (const golden::Case& c : golden::load("params")) {
    CAPTURE(c.name);
    if (c.is_error)
      CHECK_THROWS_AS(result_of(c.params), Error);
    else  // the order of the fields too
      CHECK(json_of(result_of(c.params)).dump() == c.texts.at("json"));
  }
  for (const golden::Case& c : golden::load("params_hash_ejkernel")) {
    CAPTURE(c.name);
    const auto& a = c.params.at("a");
    CHECK((c.params.at("kind") == "fwd" ? ejkernel_params_hash(fwd(a)) : ejkernel_params_hash(bwd(a))) ==
          c.texts.at("md5_hex"));
  }
}

TEST_CASE("golden cases of warps and stages") {
  for (const golden::Case& c : golden::load("select_num_warps")) {
    CAPTURE(c.name);
    const auto warps = [&] {
      return select_num_warps(c.params.at("q_block"), c.params.at("kv_block"), c.params.at("head_dim"),
                              dtype_named(c.params.at("dtype").get<std::string>()).value());
    };
    if (c.is_error)
      CHECK_THROWS_AS(warps(), Error);
    else
      CHECK(warps() == c.out.at("num_warps").elements<std::int64_t>()[0]);
  }
  for (const golden::Case& c : golden::load("select_num_stages")) {
    CAPTURE(c.name);
    CHECK(select_num_stages(c.params.at("smem_bytes"), c.params.at("smem_limit")) ==
          c.out.at("num_stages").elements<std::int64_t>()[0]);
  }
}

TEST_CASE("the intensity at which warps change is met exactly") {
  // 2·q·q / (2·q·2) = q / 2 for squares of 16-bit elements.
  CHECK(select_num_warps(10, 10, 1) == 2);
  CHECK(select_num_warps(11, 11, 1) == 4);
  CHECK(select_num_warps(40, 40, 1, DType::float64) == 2);
  CHECK(select_num_warps(41, 41, 1, DType::float64) == 4);
  CHECK(select_num_warps(40, 40, 1, DType::float32) == 4);
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(select_num_warps(huge, huge, huge) == 8);
  CHECK(select_num_warps(1, huge, huge) == 8);
  CHECK_THROWS_AS(select_num_warps(1, -1, 1), Error);
}

TEST_CASE("stages of sizes near the end of 64 bits") {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(select_num_stages(0, 0) == 1);
  CHECK(select_num_stages(0, 1) == 3);
  CHECK(select_num_stages(huge / 3, huge) == 3);
  CHECK(select_num_stages(huge / 3 + 1, huge) == 2);
  CHECK(select_num_stages(huge, huge) == 1);
  CHECK(select_num_stages(huge, 0) == 1);
  CHECK_THROWS_AS(select_num_stages(-1, 5), Error);
}

TEST_CASE("the limit of shared memory is the variable's, else that of the GPU's name") {
  CHECK(smem_limit_of("NVIDIA A100-SXM4-80GB") == 164 * 1024);
  CHECK(smem_limit_of("Tesla V100-SXM2-16GB") == 96 * 1024);
  CHECK(smem_limit_of("Tesla T4") == 64 * 1024);
  CHECK(smem_limit_of("NVIDIA T400 4GB") == 48 * 1024);
  CHECK(smem_limit_of("NVIDIA H100 80GB HBM3") == 48 * 1024);
  CHECK(smem_limit_of("") == 48 * 1024);
  setenv("EJKERNEL_TRITON_SMEM_LIMIT", "1000", 1);
  CHECK(smem_limit() == 1000);
  setenv("EJKERNEL_TRITON_SMEM_LIMIT", "much", 1);
  CHECK_THROWS_AS(smem_limit(), Error);
  unsetenv("EJKERNEL_TRITON_SMEM_LIMIT");
  CHECK(smem_limit() >= 48 * 1024);
}

TEST_CASE("parameters are equal when their fields are, and then so are their hashes") {
  std::vector<FwdParams> all;
  for (const char* text :
       {"{}", R"({"blocksize_m":0})", R"({"blocksize_k":0})", R"({"blocksize_m":1,"blocksize_k":23})",
        R"({"blocksize_m":12,"blocksize_k":3})", R"({"blocksize_k":12,"blocksize_m":3})",
        R"({"num_stages":1})", R"({"num_warps":1})", R"({"q_blocksize":-1})"})
    all.push_back(fwd_params_from(parse_json(text)));
  std::set<std::size_t> hashes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all.size(); ++j) CHECK((all[i] == all[j]) == (i == j));
    CHECK(std::hash<FwdParams>()(all[i]) == std::hash<FwdParams>()(FwdParams(all[i])));
    hashes.insert(std::hash<FwdParams>()(all[i]));
  }
  CHECK(hashes.size() == all.size());
  std::unordered_set<BwdParams> set{BwdParams(), BwdParams::from_fwd_params({}), BwdParams()};
  CHECK(set.size() == 2);
}

TEST_CASE("backward blocks are cut towards zero, and must be numbers") {
  FwdParams f;
  f.q_blocksize = 65;
  f.kv_blocksize = -3;
  const BwdParams b = BwdParams::from_fwd_params(f, 0.5);
  CHECK(b.q_blocksize == 32);
  CHECK(b.kv_blocksize == -1);
  CHECK_FALSE(b.num_warps.has_value());
  CHECK_THROWS_AS(BwdParams::from_fwd_params(f, std::numeric_limits<double>::infinity()), Error);
  CHECK_THROWS_AS(BwdParams::from_fwd_params(f, std::numeric_limits<double>::quiet_NaN()), Error);
  CHECK_THROWS_AS(BwdParams::from_fwd_params(f, 1e300), Error);
}

TEST_CASE("JSON that holds no parameters is refused by the field's name") {
  CHECK(failure_of_params("[]") == "forward parameters are a JSON object");
  CHECK(failure_of_params(R"({"q_block":1})") == "forward parameters have no field 'q_block'");
  CHECK(failure_of_params(R"({"num_warps":4.0})") == "num_warps is not a whole number");
  CHECK(failure_of_params(R"({"num_warps":true})") == "num_warps is not a whole number");
  CHECK(failure_of_params(R"({"num_warps":"4"})") == "num_warps is not a whole number");
  CHECK(failure_of_params(R"({"num_warps":9223372036854775808})") ==
        "num_warps is 9223372036854775808, which 64 bits do not hold");
  CHECK(failure_of_params(R"({"num_warps":9223372036854775807})") == "no error");
  CHECK(fwd_params_from(parse_json(R"({"num_warps":4,"num_warps":null})")) == FwdParams());
}
